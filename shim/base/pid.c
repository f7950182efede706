// SPDX-License-Identifier: Apache-2.0
/* pid: see base/pid.h. */
#include "base/pid.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/sys.h"

#include <string.h>

/* Reads the line of `pid` into `text`, a BUFFER.  Its part from the ")" before the state on, or NULL. */
static const char *read_stat(pid_t pid, char *text)
{
	char path[64];
	const char *p;

	log_format(path, sizeof path, "/proc/%d/stat", (int)pid);
	if (sys_read_file(path, text, BUFFER_BYTES) < 0)
		return NULL;
	p = strrchr(text, ')'); /* (the command name may hold anything, also ") ") */
	return p && p[1] == ' ' ? p : NULL;
}

bool pid_is_stopped(pid_t tid)
{
	BUFFER(char, text);
	const char *p = read_stat(tid, text);

	return p && (p[2] == 'T' || p[2] == 't');
}

uint64_t pid_start_time(pid_t pid)
{
	BUFFER(char, text);
	const char *p = read_stat(pid, text);
	uint64_t value = 0;

	if (!p || p[2] == 'Z' || p[2] == 'X')
		return 0;
	/* behind the ')' stand the fields from number 3 on; the start time is number 22 */
	for (int field = 2; field < 22; field++) {
		p = strchr(p + 1, ' ');
		if (!p)
			return 0;
	}
	for (p++; *p >= '0' && *p <= '9'; p++)
		value = value * 10 + (uint64_t)(*p - '0');
	return value;
}
