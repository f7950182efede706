// SPDX-License-Identifier: Apache-2.0
/* stats: see staging/stats.h. */
#include "staging/stats.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/sys.h"
#include "files/file.h"

#include <fcntl.h>
#include <string.h>

/* For each rule: the counters of its arenas that were removed. */
struct tally {
	_Atomic bool used; /* the process had a file of the rule */
	uint64_t totals[COUNT_ALL];
	_Atomic uint64_t through[BYPASS_COUNT];
};

static const struct config *config;
static struct tally tallies[CONFIG_RULES_MAX];
static _Atomic bool said;

void stats_set(const struct config *c) { config = c; }

/* NULL: there is no summary. */
static struct tally *tally_of(const struct rule *rule)
{
	if (!config || config->stats == STATS_NONE || rule < config->rules ||
	    rule >= config->rules + config->rule_count)
		return NULL;
	return &tallies[rule - config->rules];
}

void stats_add(const struct arena *a)
{
	struct tally *t = tally_of(a->rule);

	if (!t)
		return;
	atomic_store(&t->used, true);
	for (int i = 0; i < COUNT_MAX; i++)
		t->totals[i] += a->header->live.counters[i];
	t->totals[COUNT_JOURNALED] += a->header->live.journaled;
	for (int i = 0; i < BYPASS_COUNT; i++)
		t->through[i] += a->header->live.through[i];
}

PROCESS_CODE void stats_forget(void)
{
	if (config && config->stats != STATS_NONE)
		memset(tallies, 0, config->rule_count * sizeof tallies[0]);
}

void stats_used(const struct rule *rule)
{
	struct tally *t = tally_of(rule);

	if (t)
		atomic_store(&t->used, true);
}

void stats_through(const struct rule *rule, enum bypass_reason why)
{
	struct tally *t = tally_of(rule);

	if (t) {
		atomic_store(&t->used, true);
		atomic_fetch_add(&t->through[why], 1);
	}
}

/* The name that `ps` shows, safe for a line of text and of JSON. */
static void put_program(char *out, size_t size)
{
	ssize_t n = sys_read_file("/proc/self/comm", out, size);

	if (n < 0)
		n = 0;
	if (n > 0 && out[n - 1] == '\n')
		n--;
	out[n] = '\0';
	for (char *c = out; *c; c++)
		if (*c < 0x20 || *c > 0x7e || *c == '"' || *c == '\\')
			*c = '?';
}

#define COUNTED(t, counter) ((unsigned long long)(t)->totals[counter])

static size_t compose(const struct tally *t, const char *program, const char *rule, char *text, size_t size)
{
	size_t n = log_format(
		text, size,
		"fastwrite: pid %d (%s), rule %s: %llu writes staged, %llu bytes; %llu flushes, %llu "
		"bytes, %llu by O_DIRECT; %llu syncs asked, %llu done, %llu by the journal; %llu drains",
		(int)sys_getpid(), program, rule, COUNTED(t, COUNT_WRITES), COUNTED(t, COUNT_BYTES),
		COUNTED(t, COUNT_FLUSHES), COUNTED(t, COUNT_FLUSH_BYTES), COUNTED(t, COUNT_DIRECT_BYTES),
		COUNTED(t, COUNT_SYNCS_ASKED), COUNTED(t, COUNT_SYNCS_DONE), COUNTED(t, COUNT_JOURNALED),
		COUNTED(t, COUNT_DRAINS));

	for (int i = 1; i < BYPASS_COUNT; i++)
		if (t->through[i])
			n += log_format(text + n, size - n, "; %llu files bypassed: %s",
			                (unsigned long long)t->through[i],
			                bypass_reason_name((enum bypass_reason)i));
	n += log_format(text + n, size - n, "\n");
	return n;
}

/* One object on one line.  No name needs escaping. */
static size_t compose_json(const struct tally *t, const char *program, const char *rule, char *text,
                           size_t size)
{
	const char *comma = "";
	size_t n = log_format(text, size, "{\"pid\": %d, \"program\": \"%s\", \"rule\": \"%s\"",
	                      (int)sys_getpid(), program, rule);

	for (int i = 0; i < COUNT_ALL; i++)
		n += log_format(text + n, size - n, ", \"%s\": %llu", counter_name(i), COUNTED(t, i));
	n += log_format(text + n, size - n, ", \"through\": {");
	for (int i = 1; i < BYPASS_COUNT; i++) {
		if (!t->through[i])
			continue;
		n += log_format(text + n, size - n, "%s\"%s\": %llu", comma,
		                bypass_reason_name((enum bypass_reason)i), (unsigned long long)t->through[i]);
		comma = ", ";
	}
	n += log_format(text + n, size - n, "}}\n");
	return n;
}

static void report_to(int fd)
{
	struct sys_quiet quiet;
	BUFFER(char, text);
	char program[64];

	put_program(program, sizeof program);
	for (uint32_t i = 0; i < config->rule_count; i++) {
		const struct tally *t = &tallies[i];
		const char *rule = config->rules[i].name;
		size_t n;

		if (!t->used)
			continue;
		n = config->stats_json ? compose_json(t, program, rule, text, BUFFER_BYTES)
		                       : compose(t, program, rule, text, BUFFER_BYTES);
		if (fd < 0) {
			log_text(text, n);
			continue;
		}
		sys_quiet_begin(&quiet);
		if (sys.write(fd, text, n) != (ssize_t)n)
			log_warn("cannot write the statistics");
		sys_quiet_end(&quiet);
	}
}

PROCESS_CODE void stats_report(void)
{
	bool any = false;
	int fd = -1; /* -1: standard error */

	if (!config || config->stats == STATS_NONE || atomic_exchange(&said, true))
		return;
	for (uint32_t i = 0; i < config->rule_count; i++)
		any |= tallies[i].used;
	if (!any)
		return;
	if (config->stats == STATS_FILE) {
		fd = sys.openat(AT_FDCWD, config->stats_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
		                0644);
		if (fd < 0) {
			log_warn("cannot open FASTWRITE_STATS file %s (error %d)", config->stats_file, -fd);
			return;
		}
	}
	report_to(fd);
	if (fd >= 0)
		sys.close(fd);
}
