// SPDX-License-Identifier: Apache-2.0
/* watch: `fastwrite status --watch`, a table of the running programs that is drawn again and again. */
#include "command/command.h"
#include "command/snapshot.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define CLEAR_SCREEN "\033[H\033[J"

/* Of the terminal.  Not one: everything is printed. */
struct screen {
	bool terminal;
	unsigned columns, lines;
};

static struct screen screen_now(void)
{
	struct screen s = {isatty(STDOUT_FILENO) == 1, UINT_MAX, UINT_MAX};
	struct winsize w;

	if (s.terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0) {
		s.columns = w.ws_col > 0 ? w.ws_col : UINT_MAX;
		s.lines = w.ws_row > 1 ? w.ws_row - 1u : UINT_MAX; /* the cursor takes one */
	}
	return s;
}

/* ---- cells ---- */

/* At most `columns` characters; other bytes than UTF-8 and control bytes as '?'.  The number printed. */
static unsigned put_cut(FILE *out, const char *text, unsigned columns)
{
	unsigned n = 0;

	for (; *text != '\0' && n < columns; n++) {
		size_t length = cli_utf8_length(text);

		if (length == 0 || (unsigned char)*text < 0x20 || *text == 0x7f)
			fputc('?', out);
		else
			fwrite(text, 1, length, out);
		text += length > 0 ? length : 1;
	}
	return n;
}

static void put_name(FILE *out, const char *text, unsigned columns)
{
	unsigned n = put_cut(out, text, columns);

	fprintf(out, "%*s ", (int)(columns - n), "");
}

/* "17.7K" */
static const char *short_size(uint64_t bytes, char *buf, size_t size)
{
	static const char units[] = "KMGT";
	double n = (double)bytes;
	int unit = -1;

	for (; n >= 1000 && unit < 3; unit++)
		n /= 1024;
	if (unit < 0)
		snprintf(buf, size, "%llu", (unsigned long long)bytes);
	else
		snprintf(buf, size, "%.1f%c", n, units[unit]);
	return buf;
}

/* Per second since `old`, or "-" when the arena is new.  A counter may seem to run back: a look in the moment
 * in which the counters of a closed file move to the arena's may miss them. */
static void put_rate(FILE *out, const struct snapshot_row *row, const struct snapshot_row *old,
                     enum arena_counter counter, double unit, int width)
{
	uint64_t now = row->arena.counters[counter];

	if (old == NULL || row->seen_ns <= old->seen_ns) {
		fprintf(out, "%*s ", width, "-");
		return;
	}
	uint64_t more = now > old->arena.counters[counter] ? now - old->arena.counters[counter] : 0;
	double rate = (double)more / unit * 1e9 / (double)(row->seen_ns - old->seen_ns);
	fprintf(out, "%*.*f ", width, unit > 1 ? 2 : rate < 10 ? 1 : 0, rate);
}

static void put_loss(FILE *out, const struct status_arena *a)
{
	if (a->log_bytes == 0)
		fprintf(out, "%7s ", "-");
	else
		fprintf(out, "%7llu ", (unsigned long long)a->oldest_ms);
}

static void put_reasons(FILE *out, const struct status_arena *a)
{
	const char *joint = "";

	for (int why = 1; why < BYPASS_COUNT; why++) {
		if (a->through[why] == 0)
			continue;
		fprintf(out, "%s%s %llu", joint, bypass_reason_name((enum bypass_reason)why),
		        (unsigned long long)a->through[why]);
		joint = ", ";
	}
	if (*joint == '\0')
		fputc('-', out);
}

/* ---- the table ---- */

#define HEAD \
	"    PID PROGRAM          RULE          STAGED       BLOCKS " \
	" WRITES/S    MB/S FLUSHES/S SYNCS/S LOSS MS BYPASSED"

static void write_row(FILE *out, const struct snapshot_row *row, const struct snapshot_row *old)
{
	const struct status_arena *a = &row->arena;
	char size[32], used[32];

	snprintf(used, sizeof used, "%u/%u", a->blocks_used, a->block_count);
	fprintf(out, "%7d ", a->pid);
	put_name(out, a->program, 16);
	put_name(out, a->rule, 12);
	fprintf(out, "%7s %12s ", short_size(row->staged_bytes, size, sizeof size), used);
	put_rate(out, row, old, COUNT_WRITES, 1, 9);
	put_rate(out, row, old, COUNT_BYTES, 1e6, 7);
	put_rate(out, row, old, COUNT_FLUSHES, 1, 9);
	put_rate(out, row, old, COUNT_SYNCS_ASKED, 1, 7);
	put_loss(out, a);
	put_reasons(out, a);
}

static void print_line(const char *line, const struct screen *s)
{
	put_cut(stdout, line, s->columns);
	putchar('\n');
}

/* False: no memory. */
static bool print_row(const struct snapshot_row *row, const struct snapshot_row *old, const struct screen *s)
{
	char *line = NULL;
	size_t size;
	FILE *out = open_memstream(&line, &size);

	if (out == NULL)
		return false;
	write_row(out, row, old);
	bool made = fclose(out) == 0;
	if (made)
		print_line(line, s);
	free(line);
	return made;
}

/* 0 or -errno. */
static int print_table(const struct snapshot *now, const struct snapshot *before)
{
	struct screen s = screen_now();
	unsigned lines = 1;

	if (s.terminal)
		fputs(CLEAR_SCREEN, stdout);
	print_line(now->count > 0 ? HEAD : "no running program stages writes", &s);
	for (size_t i = 0; i < now->count && lines < s.lines; i++, lines++)
		if (!print_row(&now->rows[i], snapshot_find(before, &now->rows[i].arena), &s))
			return -ENOMEM;
	if (!s.terminal)
		putchar('\n'); /* an empty line ends a table */
	return fflush(stdout) == 0 ? 0 : -errno;
}

/* ---- time ---- */

/* True: go on; false: SIGINT came. */
static bool wait_for_next(double seconds)
{
	struct timespec t = {.tv_sec = (time_t)seconds};
	sigset_t set;

	t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	return sigtimedwait(&set, NULL, &t) != SIGINT;
}

/* It is waited for and not handled: no table is cut off. */
static void hold_interrupts(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

int cli_watch(double seconds, unsigned long count)
{
	struct snapshot before = {0}, now;
	int rc;

	hold_interrupts();
	for (unsigned long n = 1;; n++) {
		rc = snapshot_take(&now, NULL);
		if (rc == 0)
			rc = print_table(&now, &before);
		snapshot_free(&before);
		before = now;
		if (rc < 0 || n == count || !wait_for_next(seconds))
			break;
	}
	snapshot_free(&before);
	if (rc < 0)
		cli_error("cannot go on: %s", strerror(-rc));
	return rc < 0 ? CLI_FAILED : CLI_OK;
}
