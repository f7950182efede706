// SPDX-License-Identifier: Apache-2.0
/* streams: operations on stdio streams, which share descriptions with descriptors; see machine.h. */
#include "machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

enum { LINE = 400 };

static FILE *streams[STREAMS];

static const char *const modes[] = {"r", "r+", "w", "w+", "a", "a+", "wx", "r+e", "ae"};

static const char *mode_of(long which)
{
	return modes[(unsigned long)which % (sizeof modes / sizeof *modes)];
}

static struct slot *stream_slot(long which) { return &control->process[me].stream[which]; }

int stream_fd(long which) { return stream_slot(which)->fd; }

static void close_stream(long which)
{
	if (!streams[which])
		return;
	fresh_errno();
	if (fclose(streams[which]) != 0)
		say(" fclose-implied %d", errno);
	streams[which] = NULL;
	stream_slot(which)->fd = -1;
	fresh_errno();
}

void streams_close_all(void)
{
	for (long i = 0; i < STREAMS; i++)
		close_stream(i);
}

/* After exec the streams are gone; a descriptor that was inherited is closed, so that it is not left behind.
 */
void streams_forget(void)
{
	for (long i = 0; i < STREAMS; i++) {
		struct slot *s = stream_slot(i);

		if (s->fd >= 0 && fcntl(s->fd, F_GETFD) >= 0)
			close(s->fd);
		s->fd = -1;
		streams[i] = NULL;
	}
}

static void set_stream(long which, FILE *stream, const struct slot *like)
{
	struct slot *s = stream_slot(which);

	streams[which] = stream;
	s->fd = stream ? fileno(stream) : -1;
	if (stream)
		s->description = like ? like->description : new_description();
}

static bool there(long which)
{
	if (!streams[which])
		say(" no");
	return streams[which] != NULL;
}

/* Of streams only this much of errno is promised: why a call failed. */
static void say_outcome(long r, bool failed) { say(" %ld %d", r, failed ? errno : 0); }

/* file size seed append: a stream for one write */
void op_stream(const long *a)
{
	FILE *stream = fopen(name_of(a[0]), a[3] ? "a" : "r+");
	size_t n = a[1] > BUFFER ? BUFFER : (size_t)a[1], done = 0;
	int closed = -1;

	if (stream) {
		fill(buffer_here(), n, (uint64_t)a[2]);
		done = fwrite(buffer_here(), 1, n, stream);
		closed = fclose(stream);
	}
	say(" %ld %d", stream ? (long)done : -1, closed);
}

/* stream file mode */
void op_fopen(const long *a)
{
	FILE *stream;

	close_stream(a[0]);
	stream = fopen(name_of(a[1]), mode_of(a[2]));
	say_outcome(stream ? fileno(stream) : -1, !stream);
	set_stream(a[0], stream, NULL);
}

/* stream slot mode: on a descriptor of its own, same description */
void op_fdopen(const long *a)
{
	int fd;
	FILE *stream;

	if (is_direct(fd_of(a[1]))) { /* see op_setfl */
		say(" no");
		return;
	}
	close_stream(a[0]);
	fd = dup(fd_of(a[1]));
	stream = fd >= 0 ? fdopen(fd, mode_of(a[2])) : NULL;
	say_outcome(stream ? fd : -1, !stream);
	if (!stream && fd >= 0)
		close(fd);
	set_stream(a[0], stream, slot_of(a[1]));
}

/* stream file mode */
void op_freopen(const long *a)
{
	FILE *stream;

	if (!there(a[0]))
		return;
	stream = freopen(name_of(a[1]), mode_of(a[2]), streams[a[0]]);
	say_outcome(stream ? fileno(stream) : -1, !stream);
	one_limit_signal(); /* what cannot be written is tried again and again: how often is nowhere said */
	set_stream(a[0], stream, NULL);
}

void op_fclose(const long *a)
{
	int r;

	if (!there(a[0]))
		return;
	r = fclose(streams[a[0]]);
	say_outcome(r, r != 0);
	set_stream(a[0], NULL, NULL);
}

static void say_written(long r, long wanted, FILE *stream)
{
	say_outcome(r, r != wanted);
	say(" %d", ferror(stream) != 0);
}

/* stream size seed */
void op_fwrite(const long *a)
{
	size_t n = a[1] > BUFFER ? BUFFER : (size_t)a[1];

	if (!there(a[0]))
		return;
	fill(buffer_here(), n, (uint64_t)a[2]);
	fresh_errno();
	say_written((long)fwrite(buffer_here(), 1, n, streams[a[0]]), (long)n, streams[a[0]]);
}

static const char *text(long n, long seed)
{
	static __thread char words[LINE + 1];
	size_t length = (size_t)n % LINE;

	for (size_t i = 0; i < length; i++)
		words[i] = (char)('a' + ((unsigned long)seed + i * i) % 26);
	words[length] = '\0';
	return words;
}

/* stream size seed */
void op_fprintf(const long *a)
{
	int r;

	if (!there(a[0]))
		return;
	fresh_errno();
	r = fprintf(streams[a[0]], "%ld %s %08lx\n", a[2], text(a[1], a[2]),
	            (unsigned long)a[2] * 2654435761u);
	say_outcome(r, r < 0);
}

/* stream count seed: a log */
void op_lines(const long *a)
{
	int r = 0;
	long total = 0;

	if (!there(a[0]))
		return;
	for (long i = 0; i < a[1] && r >= 0; i++) {
		fresh_errno();
		r = fprintf(streams[a[0]], "line %ld of %ld: %s\n", i, a[2], text(i * 13 % 120, a[2] + i));
		total += r;
	}
	say_outcome(total, r < 0);
}

/* stream size seed */
void op_fwprintf(const long *a)
{
	int r;

	if (!there(a[0]))
		return;
	fresh_errno();
	r = fwprintf(streams[a[0]], L"%ld %s wide\n", a[2], text(a[1], a[2]));
	say_outcome(r, false);
}

/* stream count seed */
void op_fputc(const long *a)
{
	long done = 0;

	if (!there(a[0]))
		return;
	for (long i = 0; i < a[1]; i++)
		done += fputc((int)(a[2] + i) & 255, streams[a[0]]) >= 0;
	say_outcome(done, false);
}

/* stream size */
void op_fread(const long *a)
{
	size_t n = a[1] > BUFFER ? BUFFER : (size_t)a[1];
	size_t r;

	if (!there(a[0]))
		return;
	r = fread(buffer_here(), 1, n, streams[a[0]]);
	say(" %ld %d %d %016lx", (long)r, feof(streams[a[0]]) != 0, ferror(streams[a[0]]) != 0,
	    (unsigned long)digest(buffer_here(), r, 1));
}

void op_fgets(const long *a)
{
	char *line = (char *)buffer_here();

	if (!there(a[0]))
		return;
	line = fgets(line, LINE, streams[a[0]]);
	say(" %ld %016lx", line ? (long)strlen(line) : -1,
	    line ? (unsigned long)digest((unsigned char *)line, strlen(line), 1) : 0);
}

/* stream offset whence.  Of bytes that are no characters the C library never finds the place in a wide
 * stream. */
void op_fseek(const long *a)
{
	int r;

	if (!there(a[0]))
		return;
	if (fwide(streams[a[0]], 0) > 0 && __freadable(streams[a[0]])) {
		say(" no");
		return;
	}
	r = fseek(streams[a[0]], a[1], (int)a[2]);
	say_outcome(r, r < 0);
}

void op_ftell(const long *a)
{
	long r;

	if (!there(a[0]))
		return;
	r = ftell(streams[a[0]]);
	say_outcome(r, r < 0);
}

void op_fflush(const long *a)
{
	int r;

	if (!there(a[0]))
		return;
	r = fflush(streams[a[0]]);
	say_outcome(r, r < 0);
}

void op_flushall(const long *a)
{
	int r = fflush(NULL);

	(void)a;
	say_outcome(r, r < 0);
}

/* stream mode size */
void op_setvbuf(const long *a)
{
	static const int kinds[] = {_IOFBF, _IOLBF, _IONBF};

	if (there(a[0]))
		say(" %d", setvbuf(streams[a[0]], NULL, kinds[(unsigned long)a[1] % 3], (size_t)a[2]));
}

/* slot size seed */
void op_dprintf(const long *a)
{
	int r;

	if (is_direct(fd_of(a[0]))) { /* see op_setfl */
		say(" no");
		return;
	}
	fresh_errno();
	r = dprintf(fd_of(a[0]), "%ld %s\n", a[2], text(a[1], a[2]));
	say_outcome(r, r < 0);
}
