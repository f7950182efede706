// SPDX-License-Identifier: Apache-2.0
/* stats: see stats.h. */
#include "stats.h"

#include "buffer.h"
#include "file.h"
#include "log.h"
#include "sys.h"

#include <fcntl.h>
#include <string.h>

static const struct config *config;
static uint64_t totals[COUNT_ALL];
static _Atomic uint64_t through[THROUGH_COUNT];
static _Atomic bool said;

void stats_set(const struct config *c) { config = c; }

void stats_add(const struct arena *a)
{
	for (int i = 0; i < COUNT_MAX; i++)
		totals[i] += a->header->live.counters[i];
	totals[COUNT_JOURNALED] += a->header->live.journaled;
	for (int i = 0; i < THROUGH_COUNT; i++)
		through[i] += a->header->live.through[i];
}

void stats_forget(void)
{
	memset(totals, 0, sizeof totals);
	memset(through, 0, sizeof through);
}
void stats_through(enum through_reason why) { atomic_fetch_add(&through[why], 1); }

static size_t compose(char *text, size_t size)
{
	size_t n = log_format(
		text, size,
		"fastwrite: pid %d: %llu writes absorbed, %llu bytes; %llu flushes, %llu bytes, %llu by "
		"O_DIRECT; %llu syncs asked, %llu done, %llu by the journal; %llu settles",
		(int)sys_getpid(), (unsigned long long)totals[COUNT_WRITES],
		(unsigned long long)totals[COUNT_BYTES], (unsigned long long)totals[COUNT_FLUSHES],
		(unsigned long long)totals[COUNT_FLUSH_BYTES], (unsigned long long)totals[COUNT_DIRECT_BYTES],
		(unsigned long long)totals[COUNT_SYNCS_ASKED], (unsigned long long)totals[COUNT_SYNCS_DONE],
		(unsigned long long)totals[COUNT_JOURNALED], (unsigned long long)totals[COUNT_SETTLES]);

	for (int i = 1; i < THROUGH_COUNT; i++)
		if (through[i])
			n += log_format(text + n, size - n, "; %llu files written through: %s",
			                (unsigned long long)through[i],
			                through_reason_name((enum through_reason)i));
	n += log_format(text + n, size - n, "\n");
	return n;
}

void stats_report(void)
{
	struct sys_quiet quiet;
	BUFFER(char, text);
	size_t n;
	int fd;

	if (!config || config->stats == STATS_NONE || atomic_exchange(&said, true))
		return;
	n = compose(text, BUFFER_BYTES);
	if (config->stats == STATS_STDERR) {
		log_text(text, n);
		return;
	}
	fd = sys.openat(AT_FDCWD, config->stats_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (fd < 0) {
		log_warn("cannot open FASTWRITE_STATS file %s (error %d)", config->stats_file, -fd);
		return;
	}
	sys_quiet_begin(&quiet);
	if (sys.write(fd, text, n) != (ssize_t)n)
		log_warn("cannot write the statistics");
	sys_quiet_end(&quiet);
	sys.close(fd);
}
