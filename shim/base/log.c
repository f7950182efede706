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
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
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
static _Atomic int target_now = LOG_TO_STDERR;
static const char *_Atomic syslog_path;
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

void log_set_target(enum log_target target)
{
	atomic_store_explicit(&target_now, (int)target, memory_order_relaxed);
}

void log_set_syslog(const char *path) { atomic_store(&syslog_path, path); }

/*
 * A socket with a number that no program uses: opens take the lowest one.  It is not marked as internal
 * (base/internal_fd.h): that table belongs to the process, and this may be a child with descriptors of its
 * own (sys_apart).  Descriptor or -errno.
 */
static int open_socket(void)
{
	enum { HIGH = 512 };
	int fd = (int)sys_raw(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, 0, 0, 0);
	long high = -EMFILE;

	if (fd < 0)
		return fd;
	for (int least = HIGH; high < 0 && least > STDERR_FILENO; least /= 2)
		high = sys_raw(SYS_fcntl, fd, F_DUPFD_CLOEXEC, least, 0, 0, 0);
	sys_raw(SYS_close, fd, 0, 0, 0, 0, 0);
	return (int)high;
}

/* Priorities of RFC 3164: facility "user", severities "error" and "warning". */
static int priority_of(enum log_level level) { return 1 << 3 | (level == LOG_ERROR ? 3 : 4); }

static void show_control_bytes(char *text, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			text[i] = '?';
	}
}

/* One datagram.  False: it went nowhere. */
static bool write_syslog(enum log_level level, const char *text, size_t size)
{
	const char *path = atomic_load(&syslog_path);
	struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
	char head[64], program[16] = "";
	struct iovec parts[2] = {{.iov_base = head}, {.iov_base = (void *)(uintptr_t)text, .iov_len = size}};
	struct msghdr message = {
		.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = parts, .msg_iovlen = 2};
	int fd = open_socket();
	long n;

	if (fd < 0)
		return false;
	if (path)
		log_format(to.sun_path, sizeof to.sun_path, "%s", path);
	sys_raw(SYS_prctl, PR_GET_NAME, (long)program, 0, 0, 0, 0);
	show_control_bytes(program, strlen(program));
	parts[0].iov_len = log_format(head, sizeof head, "<%d>fastwrite[%d]: %s: ", priority_of(level),
	                              (int)sys_program_pid(), program);
	n = sys_raw(SYS_sendmsg, fd, (long)&message, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0, 0);
	sys_raw(SYS_close, fd, 0, 0, 0, 0, 0);
	return n >= 0;
}

/* A line with its prefix and its line feed. */
static void put_line(enum log_level level, const char *line, size_t size, size_t prefix)
{
	int target =
		level <= LOG_WARN ? atomic_load_explicit(&target_now, memory_order_relaxed) : LOG_TO_STDERR;
	bool said = target != LOG_TO_STDERR && write_syslog(level, line + prefix, size - prefix - 1);

	if (target != LOG_TO_SYSLOG || !said)
		log_text(line, size);
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
		put_line(LOG_WARN, line, n, sizeof prefix - 1);
	}
	size_t head = log_format(line, LOG_LINE_MAX - 1, "%s", prefix);
	va_list args;
	va_start(args, format);
	size_t n = head + log_vformat(line + head, LOG_LINE_MAX - 1 - head, format, args);
	va_end(args);
	show_control_bytes(line + head, n - head);
	line[n++] = '\n';
	put_line(level, line, n, head);
}
