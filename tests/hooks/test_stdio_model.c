// SPDX-License-Identifier: Apache-2.0
/*
 * Random calls on a stream whose file is managed and, one for one, on a twin whose file is not (it lies in
 * memory and has no name): results, errno, flags and bytes must be the same.  Between reading and writing the
 * stream is positioned or flushed, as the C standard asks for.  FASTWRITE_TEST_SEED repeats a run,
 * FASTWRITE_TEST_ROUNDS makes it longer.
 */
#include "hook_test.h"

#include <locale.h>
#include <stdio_ext.h>
#include <sys/mman.h>
#include <time.h>
#include <wchar.h>

enum { ROUNDS = 60, CALLS = 400, CHUNK = 3000, LOG = 40 };

static uint64_t random_state, seed;
static char log_lines[LOG][120];
static unsigned log_next;

static uint64_t draw(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state * 0x2545f4914f6cdd1dull;
}

static unsigned below(unsigned limit) { return (unsigned)((draw() >> 33) % limit); }

enum last { FRESH, READ, WRITTEN };

/* [0] is the managed one. */
struct twin {
	FILE *stream[2];
	char *buffer[2];
	int memory; /* the twin's file */
	char path[2][32];
	bool wide;
	enum last last;
};

static void __attribute__((format(printf, 1, 2))) tell(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(log_lines[log_next++ % LOG], sizeof log_lines[0], format, args);
	va_end(args);
}

static void __attribute__((noreturn)) differ(const char *what, long mine, long theirs)
{
	unsigned from = log_next > LOG ? log_next - LOG : 0;

	for (unsigned i = from; i < log_next; i++)
		print_error("  %s\n", log_lines[i % LOG]);
	fail_msg("%s: %ld, natively %ld; FASTWRITE_TEST_SEED=%llu repeats it", what, mine, theirs,
	         (unsigned long long)seed);
	abort();
}

static void same(const char *what, long mine, long theirs)
{
	if (mine != theirs)
		differ(what, mine, theirs);
}

/* One call on both; the results and the errors must be the same. */
#define BOTH(t, call) \
	({ \
		long result_[2]; \
		int error_[2]; \
		for (int n = 0; n < 2; n++) { \
			FILE *s = (t)->stream[n]; \
			(void)s; \
			errno = 0; \
			result_[n] = (long)(call); \
			error_[n] = errno; \
		} \
		same(#call, result_[0], result_[1]); \
		same("errno of " #call, error_[0], error_[1]); \
		result_[0]; \
	})

static char data[CHUNK + 1], back[2][CHUNK + 8];
static wchar_t wide_data[CHUNK + 1], wide_back[2][CHUNK + 8];

static unsigned fill(void)
{
	unsigned size = below(8) ? below(60) : below(CHUNK);

	for (unsigned i = 0; i < size; i++)
		data[i] = below(12) ? (char)('a' + below(26)) : '\n';
	data[size] = '\0';
	return size;
}

static unsigned fill_wide(void)
{
	unsigned size = below(8) ? below(40) : below(CHUNK);

	for (unsigned i = 0; i < size; i++)
		wide_data[i] = below(10) ? L'a' + (wchar_t)below(26) : L'\n';
	wide_data[size] = L'\0';
	return size;
}

static void same_back(long size)
{
	if (size > 0 && memcmp(back[0], back[1], (size_t)size) != 0)
		differ("bytes read", 0, 0);
}

static void same_file(struct twin *t)
{
	struct stat st[2];
	char *bytes[2];
	int fds[2] = {OK(open(t->path[0], O_RDONLY | O_CLOEXEC)), t->memory};

	OK(stat(t->path[0], &st[0]));
	OK(fstat(t->memory, &st[1]));
	same("size of the file", st[0].st_size, st[1].st_size);
	for (int n = 0; n < 2; n++) {
		bytes[n] = malloc((size_t)st[n].st_size + 1);
		assert_int_equal(OK(pread(fds[n], bytes[n], (size_t)st[n].st_size, 0)), st[n].st_size);
	}
	for (off_t i = 0; i < st[0].st_size; i++)
		if (bytes[0][i] != bytes[1][i])
			differ("byte of the file at", i, i);
	free(bytes[0]);
	free(bytes[1]);
	OK(close(fds[0]));
}

static void set_buffer(struct twin *t)
{
	static const int kinds[] = {_IONBF, _IOLBF, _IOLBF, _IOFBF};
	int kind = kinds[below(4)];
	size_t size = below(3) ? 4096 : 1 + below(200);

	tell("setvbuf %d %zu", kind, size);
	for (int n = 0; n < 2; n++) {
		t->buffer[n] = calloc(1, size);
		assert_int_equal(setvbuf(t->stream[n], t->buffer[n], kind, size), 0);
	}
}

static void forget_buffers(struct twin *t)
{
	for (int n = 0; n < 2; n++) {
		free(t->buffer[n]);
		t->buffer[n] = NULL;
	}
}

static const char *some_mode(void)
{
	static const char *const modes[] = {"r", "r+", "r+", "r+", "w", "w+", "w+", "a", "a+", "a+"};

	return modes[below(10)];
}

static void open_both(struct twin *t)
{
	const char *mode = some_mode();

	tell("fopen %s", mode);
	for (int n = 0; n < 2; n++) {
		t->stream[n] = fopen(t->path[n], mode);
		if (!t->stream[n])
			fail_msg("fopen(%s, %s): %s", t->path[n], mode, strerror(errno));
	}
	set_buffer(t);
	t->wide = below(4) == 0;
	if (t->wide)
		BOTH(t, fwide(s, 1) > 0);
}

static void close_both(struct twin *t)
{
	tell("fclose");
	BOTH(t, fclose(s));
	forget_buffers(t);
	same_file(t);
	t->last = FRESH;
}

static void reopen_both(struct twin *t)
{
	const char *mode = some_mode();
	bool same_name = below(2);

	tell("freopen %s %s", same_name ? "NULL" : "path", mode);
	for (int n = 0; n < 2; n++) {
		FILE *stream = freopen(same_name ? NULL : t->path[n], mode, t->stream[n]);

		if (!stream)
			fail_msg("freopen(%s, %s): %s", t->path[n], mode, strerror(errno));
		t->stream[n] = stream;
	}
	forget_buffers(t);
	set_buffer(t);
	t->wide = false;
	t->last = FRESH;
}

/* Going from writing to reading, or back. */
static void turn(struct twin *t, enum last to)
{
	if (t->last != FRESH && t->last != to) {
		tell("turn");
		if (t->wide)
			BOTH(t, (fflush(s), rewind(s), 0));
		else if (t->last == WRITTEN && below(2))
			BOTH(t, fflush(s));
		else
			BOTH(t, fseek(s, 0, SEEK_CUR));
	}
	t->last = to;
}

static void write_some(struct twin *t)
{
	unsigned size = t->wide ? fill_wide() : fill();

	turn(t, WRITTEN);

	switch (below(4)) {
	case 0:
		tell("put a character");
		if (t->wide)
			BOTH(t, fputwc(wide_data[0], s));
		else
			BOTH(t, fputc(data[0], s));
		break;
	case 1:
		tell("printf %u", size);
		if (t->wide)
			BOTH(t, fwprintf(s, L"%ls|%d\n", wide_data, (int)size));
		else
			BOTH(t, fprintf(s, "%s|%d\n", data, (int)size));
		break;
	case 2:
		tell("puts %u", size);
		if (t->wide)
			BOTH(t, fputws(wide_data, s));
		else
			BOTH(t, fputs(data, s));
		break;
	default:
		tell("fwrite %u", size);
		if (!t->wide)
			BOTH(t, fwrite(data, 1, size, s));
	}
}

/* Read, pushed back, seen in the position, and read or forgotten: the C library frees memory twice when there
 * was nothing to push back, or other calls come in between. */
static void push_back(struct twin *t)
{
	tell("push back");
	if ((int)(t->wide ? BOTH(t, fgetwc(s)) : BOTH(t, fgetc(s))) < 0)
		return;
	if (t->wide)
		BOTH(t, ungetwc(L'q', s));
	else
		BOTH(t, ungetc('q', s));
	BOTH(t, ftell(s));
	if (below(2))
		BOTH(t, fseek(s, 0, SEEK_SET));
	else if (t->wide)
		BOTH(t, fgetwc(s));
	else
		BOTH(t, fgetc(s));
}

static void read_some(struct twin *t)
{
	unsigned size = below(4) ? below(80) : below(CHUNK);
	long got;

	turn(t, READ);
	memset(back, 0, sizeof back);
	switch (below(4)) {
	case 0:
		tell("get a character");
		if (t->wide)
			BOTH(t, fgetwc(s));
		else
			BOTH(t, fgetc(s));
		break;
	case 1:
		tell("gets %u", size + 2);
		if (t->wide) {
			memset(wide_back, 0, sizeof wide_back);
			BOTH(t, fgetws(wide_back[n], (int)size + 2, s) != NULL);
			same("wide line", wmemcmp(wide_back[0], wide_back[1], CHUNK + 8), 0);
		} else {
			BOTH(t, fgets(back[n], (int)size + 2, s) != NULL);
			same_back(CHUNK + 8);
		}
		break;
	case 2: push_back(t); break;
	default:
		tell("fread %u", size);
		if (!t->wide) {
			got = BOTH(t, fread(back[n], 1, size, s));
			same_back(got);
		}
	}
}

static void move(struct twin *t)
{
	bool moves = true;
	long at = (long)below(20000);
	static const int whences[] = {SEEK_SET, SEEK_CUR, SEEK_END};
	int whence = whences[below(3)];
	fpos_t here[2];

	/* the C library does not come back from seeking into the middle of a buffer of wide characters */
	switch (t->wide ? 0 : below(5)) {
	case 0:
		tell("rewind");
		BOTH(t, (rewind(s), 0));
		break;
	case 1:
		tell("fgetpos, fsetpos");
		BOTH(t, fgetpos(s, &here[n]));
		BOTH(t, fseek(s, 0, SEEK_END));
		BOTH(t, fsetpos(s, &here[n]));
		break;
	case 2:
		tell("ftell");
		BOTH(t, ftell(s));
		moves = false;
		break;
	default:
		if (whence != SEEK_SET)
			at = at % 400 - 300;
		tell("fseek %ld %d", at, whence);
		moves = BOTH(t, fseek(s, at, whence)) == 0;
	}
	if (moves)
		t->last = FRESH;
}

/* Past the stream, on its descriptor. */
static void below_stream(struct twin *t)
{
	unsigned size = below(60);
	long at = (long)below(9000);

	switch (below(6)) {
	case 0:
		tell("write %u", size);
		memset(data, 'D', size);
		BOTH(t, write(fileno(s), data, size));
		break;
	case 1:
		tell("ftruncate %ld", at);
		BOTH(t, ftruncate(fileno(s), at));
		break;
	case 2:
		tell("lseek");
		BOTH(t, lseek(fileno(s), 0, SEEK_CUR));
		break;
	case 3:
		tell("dprintf");
		BOTH(t, dprintf(fileno(s), "%*d\n", (int)size, 5));
		break;
	case 4: {
		struct stat st[2];

		tell("fstat");
		BOTH(t, fstat(fileno(s), &st[n]));
		same("st_size", st[0].st_size, st[1].st_size);
		break;
	}
	default:
		tell("pread %ld", at);
		memset(back, 0, sizeof back);
		BOTH(t, pread(fileno(s), back[n], size, at));
		same_back(size);
	}
}

static void one_call(struct twin *t)
{
	unsigned what = below(100);

	if (what < 45)
		write_some(t);
	else if (what < 65)
		read_some(t);
	else if (what < 80)
		move(t);
	else if (what < 88)
		BOTH(t, fflush(s));
	else if (what < 92)
		below_stream(t);
	else if (what < 94)
		BOTH(t, (clearerr(s), 0));
	else if (what < 96)
		turn(t, FRESH), BOTH(t, (__fpurge(s), 0));
	else if (what < 98)
		reopen_both(t);
	else {
		close_both(t);
		open_both(t);
	}
	BOTH(t, feof(t->stream[n]) != 0);
	BOTH(t, ferror(t->stream[n]) != 0);
	BOTH(t, __fpending(t->stream[n]));
}

static void one_round(unsigned round)
{
	struct twin t = {.memory = (int)syscall(SYS_memfd_create, "twin", 1u)};

	assert_true(t.memory >= 0);
	random_state = seed * 1000003 + round + 1;
	log_next = 0;
	snprintf(t.path[0], sizeof t.path[0], "a");
	snprintf(t.path[1], sizeof t.path[1], "/proc/self/fd/%d", t.memory);
	fill();
	OK(close(OK(open("a", O_RDWR | O_CREAT | O_TRUNC, 0644))));
	open_both(&t);
	for (int i = 0; i < CALLS; i++)
		one_call(&t);
	close_both(&t);
	OK(close(t.memory));
	OK(unlink("a"));
}

static void rounds(void **state)
{
	const char *longer = getenv("FASTWRITE_TEST_ROUNDS");
	unsigned count = longer ? (unsigned)atoi(longer) : ROUNDS;

	(void)state;
	for (unsigned round = 0; round < count; round++)
		one_round(round);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(rounds)};
	const char *again = getenv("FASTWRITE_TEST_SEED");

	setlocale(LC_ALL, "C.UTF-8");
	close_inherited();
	seed = again ? strtoull(again, NULL, 10) : (uint64_t)time(NULL) * 1000 + (uint64_t)getpid() % 1000;
	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
