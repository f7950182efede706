// SPDX-License-Identifier: Apache-2.0
/*
 * log: messages of the library, written without anything that could be interposed, lock or allocate.
 */
#include "base/log.h"

#include "base/buffer.h"
#include "base/process_pages.h"
#include "base/sys.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

/* Tells one file from another, even if an inode number is used again. */
struct identity {
	uint64_t dev, ino;
	int64_t born_sec;
	uint32_t born_nsec;
};
static PROCESS_DATA struct identity stderr_at_start;
static PROCESS_DATA enum { STDERR_ANY, STDERR_CLOSED, STDERR_KNOWN } stderr_is;

static _Atomic int level_now = LOG_WARN;
static log_sink *_Atomic sink_now;

/* Second of the monotonic clock in the high bits, lines sent in it in the low 16. */
static _Atomic uint64_t window;
static _Atomic uint64_t dropped;

struct out {
	char *buf;
	size_t size; /* > 0 */
	size_t used; /* < size */
};

static void put(struct out *o, char byte)
{
	if (o->used + 1 < o->size)
		o->buf[o->used++] = byte;
}

static void put_text(struct out *o, const char *text)
{
	if (text == NULL)
		text = "(null)";
	while (*text != '\0')
		put(o, *text++);
}

static void put_number(struct out *o, unsigned long long value, unsigned base)
{
	char digits[24];
	size_t n = 0;

	do {
		digits[n++] = "0123456789abcdef"[value % base];
		value /= base;
	} while (value != 0);
	while (n > 0)
		put(o, digits[--n]);
}

static void put_signed(struct out *o, long long value)
{
	if (value < 0) {
		put(o, '-');
		put_number(o, 0ULL - (unsigned long long)value, 10);
	} else {
		put_number(o, (unsigned long long)value, 10);
	}
}

size_t log_vformat(char *buf, size_t size, const char *format, va_list args)
{
	struct out o = {.buf = buf, .size = size};
	va_list list;

	va_copy(list, args);
	for (const char *f = format; *f != '\0'; f++) {
		if (*f != '%') {
			put(&o, *f);
			continue;
		}
		f++;
		int longs = 0;
		for (; *f == 'l' || *f == 'z'; f++)
			longs++;
		switch (*f) {
		case 's': put_text(&o, va_arg(list, const char *)); break;
		case 'c': put(&o, (char)va_arg(list, int)); break;
		case 'd':
			put_signed(&o, longs > 1    ? va_arg(list, long long)
			               : longs == 1 ? va_arg(list, long)
			                            : va_arg(list, int));
			break;
		case 'u':
		case 'x':
			put_number(&o,
			           longs > 1    ? va_arg(list, unsigned long long)
			           : longs == 1 ? va_arg(list, unsigned long)
			                        : va_arg(list, unsigned),
			           *f == 'x' ? 16 : 10);
			break;
		case '%': put(&o, '%'); break;
		default:
			/* Not a format of ours: stop: the positions of later arguments are unknown. */
			put_text(&o, "%(bad format)");
			goto end;
		}
	}
end:
	va_end(list);
	buf[o.used] = '\0';
	return o.used;
}

size_t log_format(char *buf, size_t size, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	size_t n = log_vformat(buf, size, format, args);
	va_end(args);
	return n;
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

bool log_enabled(enum log_level level)
{
	return level != LOG_OFF && (int)level <= atomic_load_explicit(&level_now, memory_order_relaxed);
}

void log_set_sink(log_sink *sink) { atomic_store_explicit(&sink_now, sink, memory_order_release); }

/* False when descriptor 2 is closed. */
static bool identify_stderr(struct identity *id)
{
	struct statx st;

	if (sys_raw(SYS_statx, STDERR_FILENO, (long)"", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, (long)&st,
	            0) < 0)
		return false;
	*id = (struct identity){.dev = sys_dev_of(&st), .ino = st.stx_ino};
	if (st.stx_mask & STATX_BTIME) {
		id->born_sec = st.stx_btime.tv_sec;
		id->born_nsec = st.stx_btime.tv_nsec;
	}
	return true;
}

void log_start(void) { stderr_is = identify_stderr(&stderr_at_start) ? STDERR_KNOWN : STDERR_CLOSED; }

/* Descriptor 2 may name a data file by now.  (Another thread may still replace it between this check and the
 * write.) */
static bool stderr_is_the_same(void)
{
	struct identity now;

	if (stderr_is != STDERR_KNOWN)
		return stderr_is == STDERR_ANY;
	return identify_stderr(&now) && now.dev == stderr_at_start.dev && now.ino == stderr_at_start.ino &&
	       now.born_sec == stderr_at_start.born_sec && now.born_nsec == stderr_at_start.born_nsec;
}

/* A write(2) to descriptor 2 that raises no signal. */
static void write_stderr(const char *line, size_t size)
{
	struct sys_quiet quiet;

	if (!stderr_is_the_same())
		return;
	sys_quiet_begin(&quiet);
	while (size > 0) {
		long n = sys_raw(SYS_write, STDERR_FILENO, (long)line, (long)size, 0, 0, 0);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			break;
		line += n;
		size -= (size_t)n;
	}
	sys_quiet_end(&quiet);
}

void log_text(const char *text, size_t size)
{
	log_sink *sink = atomic_load_explicit(&sink_now, memory_order_acquire);

	if (sink != NULL)
		sink(text, size);
	else
		write_stderr(text, size);
}

/* May one more line go out in this second?  *lost: the lines dropped since a line last went out in an earlier
 * second. */
static bool budget_take(uint64_t *lost)
{
	/* + 1: the initial 0 is never the current second */
	uint64_t second = sys_now_ns() / UINT64_C(1000000000) + 1;
	uint64_t seen = atomic_load(&window);
	uint64_t next;
	do {
		if (seen >> 16 != second) {
			next = second << 16 | 1;
		} else if ((seen & 0xffff) < LOG_BURST) {
			next = seen + 1;
		} else {
			atomic_fetch_add(&dropped, 1);
			return false;
		}
	} while (!atomic_compare_exchange_weak(&window, &seen, next));
	*lost = (next & 0xffff) == 1 ? atomic_exchange(&dropped, 0) : 0;
	return true;
}

static void show_control_bytes(char *text, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			text[i] = '?';
	}
}

void log_line(enum log_level level, const char *format, ...)
{
	static const char prefix[] = "fastwrite: ";
	BUFFER(char, line);
	uint64_t lost = 0;

	if (!log_enabled(level) || !budget_take(&lost))
		return;
	if (lost > 0) {
		size_t n = log_format(line, LOG_LINE_MAX, "%s%lu messages dropped\n", prefix,
		                      (unsigned long)lost);
		log_text(line, n);
	}
	size_t head = log_format(line, LOG_LINE_MAX - 1, "%s", prefix);
	va_list args;
	va_start(args, format);
	size_t n = head + log_vformat(line + head, LOG_LINE_MAX - 1 - head, format, args);
	va_end(args);
	show_control_bytes(line + head, n - head);
	line[n++] = '\n';
	log_text(line, n);
}
