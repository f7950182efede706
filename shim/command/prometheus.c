// SPDX-License-Identifier: Apache-2.0
/*
 * prometheus: `fastwrite status --prometheus`, the text exposition format 0.0.4.  All samples of a metric
 * stand together, so everything is collected first.  There are samples by arena, none by file: files may be
 * many.
 */
#include "command/command.h"
#include "command/snapshot.h"

#include "recovery/recover.h"

#include <stdlib.h>
#include <string.h>

#define BY_ARENA " One sample per arena (process, rule and place), none per file."

/* ---- the format ---- */

static void put_head(const char *name, const char *type, const char *help)
{
	printf("# HELP fastwrite_%s %s\n# TYPE fastwrite_%s %s\n", name, help, name, type);
}

/* The value of a label.  Bytes that are not UTF-8 would make the whole page invalid. */
static void put_value(const char *text)
{
	while (*text != '\0') {
		size_t length = cli_utf8_length(text);

		if (length == 0)
			fputs("\xef\xbf\xbd", stdout); /* U+FFFD, the replacement character */
		else if (*text == '\n')
			fputs("\\n", stdout);
		else if (*text == '"' || *text == '\\')
			printf("\\%c", *text);
		else if (length == 1)
			putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text);
		else
			fwrite(text, 1, length, stdout);
		text += length > 0 ? length : 1;
	}
}

static void put_label(const char *name, const char *value)
{
	printf("%s=\"", name);
	put_value(value);
	putchar('"');
}

/* "fastwrite_NAME{program=...": the labels are still open.  Only the path tells all arenas of a process
 * apart. */
static void open_sample(const char *name, const struct status_arena *a)
{
	printf("fastwrite_%s{", name);
	put_label("program", a->program);
	printf(",pid=\"%d\",", a->pid);
	put_label("rule", a->rule);
	putchar(',');
	put_label("arena", a->path);
}

/* ---- metrics of an arena ---- */

struct metric {
	const char *name, *type, *help;
	uint64_t (*value)(const struct snapshot_row *row); /* NULL: a counter of the arena */
	enum arena_counter counter;
	bool ordered;      /* only of arenas with a log */
	bool milliseconds; /* shown in seconds */
};

static uint64_t staged_bytes(const struct snapshot_row *row) { return row->staged_bytes; }
static uint64_t files(const struct snapshot_row *row) { return row->files; }
static uint64_t total_bytes(const struct snapshot_row *row) { return row->arena.total_bytes; }
static uint64_t blocks(const struct snapshot_row *row) { return row->arena.block_count; }
static uint64_t blocks_used(const struct snapshot_row *row) { return row->arena.blocks_used; }
static uint64_t epochs(const struct snapshot_row *row) { return row->arena.epochs; }
static uint64_t oldest(const struct snapshot_row *row) { return row->arena.oldest_ms; }
static uint64_t log_bytes(const struct snapshot_row *row) { return row->arena.log_bytes; }
static uint64_t largest(const struct snapshot_row *row) { return row->arena.largest_epoch; }

#define GAUGE(name, help, value) {name, "gauge", help BY_ARENA, value, COUNT_ALL, false, false}
#define COUNTER(name, help, counter) {name, "counter", help BY_ARENA, NULL, counter, false, false}
#define ORDER(name, type, help, value, milliseconds) \
	{"order_" name, type, help " with sync = ordered." BY_ARENA, value, COUNT_ALL, true, milliseconds}

static const struct metric metrics[] = {
	GAUGE("staged_bytes", "Bytes accepted and not yet in their files, exact.", staged_bytes),
	GAUGE("files", "Files that have an entry in the arena.", files),
	GAUGE("arena_bytes", "Size of the arena's file.", total_bytes),
	GAUGE("blocks", "Blocks of the arena.", blocks),
	GAUGE("blocks_used", "Blocks of the arena that belong to a file.", blocks_used),
	COUNTER("accepted_writes_total",
                "Write calls accepted into staging, counted when a block is flushed.", COUNT_WRITES),
	COUNTER("accepted_bytes_total", "Bytes accepted into staging, counted when a block is flushed.",
                COUNT_BYTES),
	COUNTER("flushes_total", "Flushes to files.", COUNT_FLUSHES),
	COUNTER("flushed_bytes_total", "Bytes that flushes wrote to files.", COUNT_FLUSH_BYTES),
	COUNTER("flushed_direct_bytes_total", "Flushed bytes that were written with O_DIRECT.",
                COUNT_DIRECT_BYTES),
	COUNTER("syncs_asked_total", "Syncs that the program asked for.", COUNT_SYNCS_ASKED),
	COUNTER("syncs_done_total", "Syncs passed to the device.", COUNT_SYNCS_DONE),
	COUNTER("syncs_by_journal_total", "Syncs that the journal answered.", COUNT_JOURNALED),
	COUNTER("drains_total", "Times that a file was flushed for a call that needed it.", COUNT_DRAINS),
	ORDER("epochs_total", "counter", "Epochs that are durable,", epochs, false),
	ORDER("oldest_seconds", "gauge", "Age of the oldest change that a power loss would take (0: none),",
              oldest, true),
	ORDER("log_bytes", "gauge", "Size of the log,", log_bytes, false),
	ORDER("largest_epoch_bytes", "gauge", "Largest epoch in the log,", largest, false),
};

static void put_number(const struct metric *m, const struct snapshot_row *row)
{
	uint64_t n = m->value != NULL ? m->value(row) : row->arena.counters[m->counter];

	if (m->milliseconds)
		printf("} %llu.%03llu\n", (unsigned long long)n / 1000, (unsigned long long)n % 1000);
	else
		printf("} %llu\n", (unsigned long long)n);
}

static void put_metric(const struct metric *m, const struct snapshot *s)
{
	bool begun = false;

	for (size_t i = 0; i < s->count; i++) {
		const struct status_arena *a = &s->rows[i].arena;

		if (m->ordered && a->log_bytes == 0)
			continue;
		if (!begun)
			put_head(m->name, m->type, m->help);
		begun = true;
		open_sample(m->name, a);
		put_number(m, &s->rows[i]);
	}
}

/* A reason that no file had is left out: there are many of them. */
static void put_bypassed(const struct snapshot *s)
{
	bool begun = false;

	for (size_t i = 0; i < s->count; i++) {
		for (int why = 1; why < BYPASS_COUNT; why++) {
			const struct status_arena *a = &s->rows[i].arena;

			if (a->through[why] == 0)
				continue;
			if (!begun)
				put_head("bypassed_files_total", "counter",
				         "Files that were staged and then bypassed, by reason. A reason that "
				         "no file had has no sample.");
			begun = true;
			open_sample("bypassed_files_total", a);
			putchar(',');
			put_label("reason", bypass_reason_name((enum bypass_reason)why));
			printf("} %llu\n", (unsigned long long)a->through[why]);
		}
	}
}

/* ---- bytes of dead programs ---- */

struct waiting {
	char *arena;
	uint64_t bytes, files;
};

struct waiting_list {
	struct waiting *all;
	size_t count;
	int unread;  /* places and arenas that could not be read */
	bool failed; /* no memory */
};

static struct waiting *waiting_of(struct waiting_list *l, const char *arena)
{
	struct waiting *all;
	char *copy;

	for (size_t i = 0; i < l->count; i++)
		if (strcmp(l->all[i].arena, arena) == 0)
			return &l->all[i];
	all = reallocarray(l->all, l->count + 1, sizeof *all);
	if (all != NULL)
		l->all = all;
	copy = strdup(arena);
	if (all == NULL || copy == NULL) {
		free(copy);
		return NULL;
	}
	all[l->count] = (struct waiting){.arena = copy};
	return &all[l->count++];
}

static void add_waiting(void *ctx, const struct recover_event *e)
{
	struct waiting_list *l = ctx;
	struct waiting *w = waiting_of(l, e->arena);

	if (w == NULL) {
		l->failed = true;
		return;
	}
	w->bytes += e->bytes;
	w->files++;
}

static void put_waiting_metric(const char *name, const char *help, const struct waiting_list *l, bool bytes)
{
	if (l->count > 0)
		put_head(name, "gauge", help);
	for (size_t i = 0; i < l->count; i++) {
		printf("fastwrite_%s{", name);
		put_label("arena", l->all[i].arena);
		printf("} %llu\n", (unsigned long long)(bytes ? l->all[i].bytes : l->all[i].files));
	}
}

static void put_waiting(const struct waiting_list *l)
{
	put_waiting_metric("waiting_bytes",
	                   "Bytes of programs that died, which wait to be recovered, by arena. Known only "
	                   "for places that the configuration names.",
	                   l, true);
	put_waiting_metric("waiting_files", "Files to which waiting bytes belong, by arena.", l, false);
}

static void free_waiting(struct waiting_list *l)
{
	for (size_t i = 0; i < l->count; i++)
		free(l->all[i].arena);
	free(l->all);
}

/* ---- the page ---- */

/* `known`: the configuration says where bytes may wait. */
static void put_page(const struct snapshot *s, const struct waiting_list *l, bool known)
{
	put_head(
		"config_valid", "gauge",
		"1 if the configuration of this command could be read. Without one nothing is known of waiting "
		"bytes.");
	printf("fastwrite_config_valid %d\n", known);
	put_head("waiting_unread_places", "gauge",
	         "Places for staging, and arenas in them, that could not be searched for waiting bytes.");
	printf("fastwrite_waiting_unread_places %d\n", l->unread);
	put_head("arenas", "gauge", "Arenas of running programs that stage writes.");
	printf("fastwrite_arenas %zu\n", s->count);
	for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++)
		put_metric(&metrics[i], s);
	put_bypassed(s);
	put_waiting(l);
}

/* Prints nothing unless all programs could be read: half a page would look as if some had ended. */
int cli_prometheus(const struct config *c)
{
	struct waiting_list list = {0};
	struct snapshot s;
	int rc = snapshot_take(&s, cli_say_newer);

	if (rc == 0 && c != NULL)
		list.unread = cli_waiting_each(c, add_waiting, &list);
	if (rc == 0 && list.failed)
		rc = -ENOMEM;
	if (rc == 0)
		put_page(&s, &list, c != NULL);
	else
		cli_error("cannot read what programs stage: %s", strerror(-rc));
	free_waiting(&list);
	snapshot_free(&s);
	return rc == 0 ? CLI_OK : CLI_FAILED;
}
