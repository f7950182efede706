// SPDX-License-Identifier: Apache-2.0
/*
 * log: the library's own messages.  One raw write(2) to descriptor 2 per line, and only while that is the file that it
 * was at the start: a program may close it, and the next file that it opens gets the number.  Prefix "fastwrite: ", at most LOG_BURST lines a second (then one line that counts what was dropped).  errno is preserved,
 * no stdio, no malloc, async-signal-safe; a closed pipe behind descriptor 2 raises no SIGPIPE.
 * Control bytes are shown as '?', so that a line stays one line.
 * Format: %s %c %d %u %x with l, ll or z where it applies, and %% (own formatter).
 */
#ifndef FASTWRITE_LOG_H
#define FASTWRITE_LOG_H

#include "config/config.h"

#include <stdarg.h>

enum { LOG_BURST = 10, LOG_LINE_MAX = 1024 };

/* Remembers which file descriptor 2 is.  Without this call messages go to whatever it is: the command, tests. */
void log_start(void);
void log_set_level(enum log_level level);
bool log_enabled(enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A text that was asked for, such as statistics: where lines go, as it is. */
void log_text(const char *text, size_t size);

/* Where lines go; NULL = the raw write to descriptor 2.  For a program whose descriptor 2 is itself a
 * managed file, whose kernel offset is not the logical one while bytes are staged. */
typedef void log_sink(const char *line, size_t size);
void log_set_sink(log_sink *sink);

/* The formatter behind log_line, for others that may not use stdio.  Returns the length written,
 * always NUL-terminates, truncates at size (> 0). */
size_t log_format(char *buf, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
size_t log_vformat(char *buf, size_t size, const char *format, va_list args)
	__attribute__((format(printf, 3, 0)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
