// SPDX-License-Identifier: Apache-2.0
/*
 * log: the library's own messages.
 *
 * Each line is one raw write(2) to descriptor 2.  It is written only while descriptor 2 still names the file
 * of the start: a program may close descriptor 2 and open a data file there.  A line begins with "fastwrite:
 * ".  At most LOG_BURST lines go out in a second; a later line counts the dropped ones.  errno is preserved;
 * no stdio, no malloc, async-signal-safe; a closed pipe raises no SIGPIPE.  Control bytes become '?', so that
 * a line stays one line.
 *
 * Errors and warnings can go to the system's log instead, or too (log_set_target): one datagram to /dev/log,
 * "<PRIORITY>fastwrite[PID]: PROGRAM: text".  The socket lives for that one message.  It waits for nothing:
 * where nobody listens, or the listener is behind, the line goes to descriptor 2.
 *
 * Format: %s %c %d %u %x with l, ll or z, and %%.
 */
#ifndef FASTWRITE_BASE_LOG_H
#define FASTWRITE_BASE_LOG_H

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

enum log_level { LOG_OFF, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_target { LOG_TO_STDERR, LOG_TO_SYSLOG, LOG_TO_BOTH };
enum { LOG_BURST = 10, LOG_LINE_MAX = 1024 };

/* Remembers which file descriptor 2 names.  Without this call (command, tests) messages go to any
 * descriptor 2. */
void log_start(void);
void log_set_level(enum log_level level);
void log_set_target(enum log_target target);
/* For tests: the socket, of which the text stays where it is.  NULL: /dev/log. */
void log_set_syslog(const char *path);
bool log_enabled(enum log_level level);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes a text unchanged to where lines go.  For output that the user asked for, such as statistics. */
void log_text(const char *text, size_t size);

/* Sets where lines go; NULL = the raw write to descriptor 2.  Needed when descriptor 2 is a managed file:
 * while bytes are staged its kernel offset is not its logical one. */
typedef void log_sink(const char *line, size_t size);
void log_set_sink(log_sink *sink);

/* The formatter behind log_line, for modules that may not use stdio.  Returns the length; truncates at size
 * (> 0) and always NUL-terminates. */
size_t log_format(char *buf, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
size_t log_vformat(char *buf, size_t size, const char *format, va_list args)
	__attribute__((format(printf, 3, 0)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
