// SPDX-License-Identifier: Apache-2.0
/* Streams on managed files: every way to make one, to write, read and position it, and to end it. */
#include "hook_test.h"

#include <mntent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio_ext.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <wchar.h>

int __fprintf_chk(FILE *stream, int flag, const char *format, ...);
int __fwprintf_chk(FILE *stream, int flag, const wchar_t *format, ...);
int __dprintf_chk(int fd, int flag, const char *format, ...);
int __vdprintf_chk(int fd, int flag, const char *format, va_list args);

#define SHUT(stream) assert_int_equal(fclose(stream), 0)

static FILE *open_stream(const char *path, const char *mode)
{
	FILE *stream;

	errno = 4242;
	stream = fopen(path, mode);
	if (!stream)
		fail_msg("fopen(%s, %s): %s", path, mode, strerror(errno));
	return stream;
}

static void put_records(FILE *stream, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		assert_int_equal(fwrite(record, 1, RECORD, stream), RECORD);
	}
}

/* A new file with STAGED bytes written through a line-buffered stream. */
static FILE *open_lines(const char *path, const char *mode)
{
	FILE *stream = open_stream(path, mode);

	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 4096), 0);
	put_records(stream, 0, RECORDS);
	return stream;
}

/* As the kernel has it, for a reader that no hook sees. */
static off_t size_outside(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_size;
}

static void check_text(const char *path, const char *expected)
{
	size_t size;
	char *bytes = file_bytes(path, &size);

	if (size != strlen(expected) || memcmp(bytes, expected, size) != 0)
		fail_msg("%s has %zu bytes \"%.*s\", expected \"%s\"", path, size, (int)size, bytes,
		         expected);
	free(bytes);
}

/* ---- writing ---- */

static void printing(void **state)
{
	char expected[40 * 5 * 8] = "";
	FILE *stream = open_stream("a", "w");

	(void)state;
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	for (int i = 0; i < 40; i++) {
		char line[64];

		assert_int_equal(fprintf(stream, "%03d f\n", i), 6);
		assert_int_equal(__fprintf_chk(stream, 1, "%03d c\n", i), 6);
		assert_true(fputs("puts\n", stream) >= 0);
		assert_int_equal(fputs_unlocked("p\n", stream) >= 0, 1);
		assert_int_equal(putc('x', stream), 'x');
		assert_int_equal(putc_unlocked('y', stream), 'y');
		assert_int_equal(fputc_unlocked('\n', stream), '\n');
		assert_int_equal(fwrite_unlocked("w\n", 1, 2, stream), 2);
		snprintf(line, sizeof line, "%03d f\n%03d c\nputs\np\nxy\nw\n", i, i);
		strcat(expected, line);
		if (i % 10 == 9)
			check_text("a", expected);
	}
	SHUT(stream);
	check_text("a", expected);
	OK(unlink("a"));
}

static void wide(void **state)
{
	FILE *stream = open_stream("a", "w+");
	wchar_t line[32];

	(void)state;
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	assert_true(fwide(stream, 1) > 0);
	for (int i = 0; i < 200; i++) {
		assert_int_equal(fwprintf(stream, L"%05d\n", i), 6);
		assert_int_equal(__fwprintf_chk(stream, 1, L"%05d\n", i), 6);
		assert_true(fputws(L"ws\n", stream) >= 0);
		assert_int_equal(putwc(L'\n', stream), L'\n');
	}
	assert_int_equal(size_outside("a"), 200 * 16);
	rewind(stream);
	for (int i = 0; i < 200; i++) {
		wchar_t expected[32];

		swprintf(expected, 32, L"%05d\n", i);
		for (int twice = 0; twice < 2; twice++) {
			assert_non_null(fgetws(line, 32, stream));
			assert_int_equal(wcscmp(line, expected), 0);
		}
		assert_int_equal(getwc(stream), L'w');
		assert_int_equal(ungetwc(L'v', stream), L'v');
		assert_non_null(fgetws(line, 32, stream));
		assert_int_equal(wcscmp(line, L"vs\n"), 0);
		assert_int_equal(getwc(stream), L'\n');
	}
	assert_int_equal(getwc(stream), WEOF);
	assert_true(feof(stream));
	SHUT(stream);
	/* through a conversion of its own */
	stream = open_stream("b", "w,ccs=UTF-8");
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	for (int i = 0; i < 100; i++)
		assert_int_equal(fwprintf(stream, L"\u00e4\u20ac%03d\n", i), 6);
	SHUT(stream);
	assert_int_equal(size_outside("b"), 100 * 9);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void buffering(void **state)
{
	static const struct {
		int mode;
		size_t size;
	} kinds[] = {{_IONBF, 0},  {_IOLBF, 0},    {_IOLBF, 64}, {_IOFBF, 1},
	             {_IOFBF, 33}, {_IOFBF, 8192}, {-1, 0}};

	(void)state;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		FILE *stream = open_stream("a", "w");
		char *buffer = malloc(8192);

		if (kinds[i].mode >= 0)
			assert_int_equal(
				setvbuf(stream, kinds[i].size ? buffer : NULL, kinds[i].mode, kinds[i].size),
				0);
		put_records(stream, 0, RECORDS);
		assert_int_equal(ftell(stream), STAGED);
		/* what the buffer still has is not in the file, as natively */
		if (kinds[i].mode == _IONBF || kinds[i].mode == _IOLBF)
			assert_int_equal(size_outside("a"), STAGED);
		if (kinds[i].size == 8192 || kinds[i].mode < 0)
			assert_int_equal(size_outside("a"), 0);
		put_records(stream, RECORDS, RECORDS);
		assert_int_equal(fflush(stream), 0);
		check_file("a", 0, 2 * RECORDS);
		SHUT(stream);
		check_file("a", 0, 2 * RECORDS);
		free(buffer);
		OK(unlink("a"));
	}
}

static void flushing_all(void **state)
{
	FILE *first = open_stream("a", "w"), *second = open_stream("b", "a");

	(void)state;
	for (unsigned i = 0; i < RECORDS; i++) {
		put_records(first, i, 1);
		put_records(second, i, 1);
		assert_int_equal(fflush(NULL), 0);
		assert_int_equal(__fpending(first) + __fpending(second), 0);
	}
	check_file("a", 0, RECORDS);
	check_file("b", 0, RECORDS);
	put_records(first, RECORDS, 1);
	_flushlbf();
	assert_int_equal(fcloseall(), 0);
	check_file("a", 0, RECORDS + 1);
	SHUT(first);
	SHUT(second);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* ---- positions ---- */

static void positions(void **state)
{
	FILE *stream = open_lines("a", "w+");
	char record[RECORD], *line = NULL;
	size_t room = 0;
	fpos_t middle;

	(void)state;
	assert_int_equal(ftell(stream), STAGED);
	assert_int_equal(fseek(stream, 5 * RECORD, SEEK_SET), 0);
	assert_int_equal(fgetpos(stream, &middle), 0);
	assert_int_equal(fread(record, 1, RECORD, stream), RECORD);
	check_records(record, 5, 1);
	assert_int_equal(fseeko(stream, -RECORD, SEEK_END), 0);
	assert_int_equal(ftello(stream), STAGED - RECORD);
	assert_int_equal(getline(&line, &room, stream), RECORD);
	check_records(line, RECORDS - 1, 1);
	assert_int_equal(getc(stream), EOF);
	assert_true(feof(stream));
	assert_int_equal(fsetpos(stream, &middle), 0);
	assert_false(feof(stream));
	record_fill(record, 77);
	assert_int_equal(fwrite(record, 1, RECORD, stream), RECORD);
	assert_int_equal(fseek(stream, 0, SEEK_CUR), 0);
	assert_non_null(fgets(record, RECORD + 1 > sizeof record ? (int)sizeof record : RECORD + 1, stream));
	rewind(stream);
	for (unsigned i = 0; i < RECORDS; i++) {
		assert_int_equal(getline(&line, &room, stream), RECORD);
		check_records(line, i == 5 ? 77 : i, 1);
	}
	/* pushed back, then written over */
	assert_int_equal(fseek(stream, 10, SEEK_SET), 0);
	assert_int_equal(ungetc('!', stream), '!');
	assert_int_equal(ftell(stream), 9);
	assert_int_equal(getc(stream), '!');
	assert_int_equal(ftell(stream), 10);
	assert_int_equal(fseek(stream, 0, SEEK_END), 0);
	assert_int_equal(putw(0x0a0a0a0a, stream), 0);
	assert_int_equal(fseek(stream, -4, SEEK_CUR), 0);
	assert_int_equal(getw(stream), 0x0a0a0a0a);
	SHUT(stream);
	assert_int_equal(size_outside("a"), STAGED + 4);
	free(line);
	OK(unlink("a"));
}

/* The stream and its descriptor, one after the other. */
static void under_the_stream(void **state)
{
	FILE *stream = open_lines("a", "w+");
	int fd = fileno(stream), other;
	char record[RECORD];
	struct stat st;

	(void)state;
	write_records(fd, RECORDS, 5);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), STAGED + 5 * RECORD);
	assert_int_equal(fseek(stream, 0, SEEK_END), 0);
	put_records(stream, RECORDS + 5, RECORDS - 5);
	assert_int_equal(fflush(stream), 0);
	OK(fstat(fd, &st));
	assert_int_equal(st.st_size, 2 * STAGED);
	OK(ftruncate(fd, STAGED));
	assert_int_equal(fseek(stream, 0, SEEK_END), 0);
	assert_int_equal(ftell(stream), STAGED);
	put_records(stream, RECORDS, RECORDS);
	assert_int_equal(OK(pread(fd, record, RECORD, STAGED)), RECORD);
	check_records(record, RECORDS, 1);
	other = open_new("b", 0);
	OK(lseek(fd, 0, SEEK_SET));
	assert_int_equal(OK(sendfile(other, fd, NULL, 2 * STAGED)), 2 * STAGED);
	OK(close(other));
	check_file("b", 0, 2 * RECORDS);
	OK(fsync(fd));
	SHUT(stream);
	FAILS(fcntl(fd, F_GETFD), EBADF);
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* ---- how streams are made ---- */

static void modes(void **state)
{
	FILE *stream = open_lines("a", "wx"), *other;
	char record[RECORD];
	int fd;

	(void)state;
	SHUT(stream);
	errno = 0;
	assert_null(fopen("a", "wx"));
	assert_int_equal(errno, EEXIST);
	errno = 0;
	assert_null(fopen("a", "+r"));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(fopen("none/a", "w"));
	assert_int_equal(errno, ENOENT);
	assert_null(fopen("c", "w,ccs=no-such-set"));
	OK(unlink("c"));

	stream = open_stream("a", "ae");
	assert_int_equal(OK(fcntl(fileno(stream), F_GETFD)), FD_CLOEXEC);
	assert_int_equal(OK(fcntl(fileno(stream), F_GETFL)) & (O_ACCMODE | O_APPEND), O_WRONLY | O_APPEND);
	assert_int_equal(setvbuf(stream, NULL, _IONBF, 0), 0);
	put_records(stream, RECORDS, RECORDS);
	/* a second stream, which must find the end where it is */
	other = fopen64("a", "a+");
	assert_non_null(other);
	assert_int_equal(setvbuf(other, NULL, _IOLBF, 0), 0);
	put_records(other, 2 * RECORDS, RECORDS);
	assert_int_equal(ftell(other), 3 * STAGED);
	put_records(stream, 3 * RECORDS, RECORDS);
	rewind(other);
	for (unsigned i = 0; i < 4 * RECORDS; i++) {
		assert_int_equal(fread_unlocked(record, 1, RECORD, other), RECORD);
		check_records(record, i, 1);
	}
	SHUT(other);
	SHUT(stream);
	check_file("a", 0, 4 * RECORDS);

	/* it starts at the end, with what is staged */
	fd = open_staged("c", 0);
	stream = open_stream("c", "a");
	assert_int_equal(OK(lseek(fileno(stream), 0, SEEK_CUR)), STAGED);
	assert_int_equal(ftell(stream), STAGED);
	SHUT(stream);
	OK(close(fd));
	OK(unlink("c"));

	stream = open_stream("a", "r+");
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	put_records(stream, 4 * RECORDS, RECORDS);
	/* cut under it */
	other = open_lines("a", "w");
	assert_int_equal(fseek(stream, 0, SEEK_END), 0);
	assert_int_equal(ftell(stream), STAGED);
	put_records(stream, RECORDS, RECORDS);
	SHUT(stream);
	SHUT(other);
	check_file("a", 0, 2 * RECORDS);

	/* may read by a mapping */
	stream = open_stream("a", "a");
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	put_records(stream, 2 * RECORDS, RECORDS);
	other = open_stream("a", "rm");
	for (unsigned i = 0; i < 3 * RECORDS; i++) {
		assert_int_equal(fread(record, 1, RECORD, other), RECORD);
		check_records(record, i, 1);
	}
	put_records(stream, 3 * RECORDS, RECORDS);
	SHUT(other);
	SHUT(stream);
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

static void on_descriptors(void **state)
{
	int fd = open_staged("a", 0), copy;
	FILE *stream = fdopen(fd, "r+"), *second;
	char record[RECORD];

	(void)state;
	assert_non_null(stream);
	assert_int_equal(ftell(stream), STAGED);
	put_records(stream, RECORDS, RECORDS);
	assert_int_equal(fflush(stream), 0);
	write_records(fd, 2 * RECORDS, RECORDS);
	rewind(stream);
	for (unsigned i = 0; i < 3 * RECORDS; i++) {
		assert_int_equal(fread(record, 1, RECORD, stream), RECORD);
		check_records(record, i, 1);
	}
	copy = OK(dup(fd));
	SHUT(stream);
	FAILS(close(fd), EBADF);
	write_records(copy, 3 * RECORDS, RECORDS);

	/* makes the descriptor append */
	OK(lseek(copy, 0, SEEK_SET));
	second = fdopen(copy, "a");
	assert_non_null(second);
	assert_int_equal(OK(fcntl(copy, F_GETFL)) & O_APPEND, O_APPEND);
	OK(lseek(copy, 0, SEEK_SET));
	write_records(copy, 4 * RECORDS, RECORDS);
	put_records(second, 5 * RECORDS, RECORDS);
	SHUT(second);
	check_file("a", 0, 6 * RECORDS);

	/* reads by a mapping, and closes past everybody */
	fd = OK(open("a", O_RDWR | O_APPEND));
	write_records(fd, 6 * RECORDS, RECORDS);
	OK(lseek(fd, 0, SEEK_SET));
	stream = fdopen(fd, "rm");
	assert_non_null(stream);
	for (unsigned i = 0; i < 7 * RECORDS; i++) {
		assert_int_equal(fread(record, 1, RECORD, stream), RECORD);
		check_records(record, i, 1);
	}
	SHUT(stream);
	FAILS(write(fd, "x", 1), EBADF);
	assert_int_equal(OK(open("b", O_RDWR | O_CREAT, 0644)), fd);
	write_records(fd, 0, RECORDS);
	OK(close(fd));
	check_file("b", 0, RECORDS);

	/* what must fail fails */
	fd = OK(open("a", O_WRONLY | O_APPEND));
	write_records(fd, 7 * RECORDS, RECORDS);
	errno = 0;
	assert_null(fdopen(fd, "r"));
	assert_int_equal(errno, EINVAL);
	errno = 0;
	assert_null(fdopen(fd, "q"));
	assert_int_equal(errno, EINVAL);
	OK(close(fd));
	errno = 0;
	assert_null(fdopen(fd, "w"));
	assert_int_equal(errno, EBADF);
	check_file("a", 0, 8 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void reopened(void **state)
{
	FILE *stream = open_lines("a", "w");
	int fd = fileno(stream), other;
	char record[RECORD];

	(void)state;
	/* what is in its buffer goes to the old file; the number stays */
	assert_int_equal(fwrite("rest", 1, 4, stream), 4);
	assert_ptr_equal(freopen("b", "w+", stream), stream);
	assert_int_equal(fileno(stream), fd);
	assert_int_equal(size_outside("a"), STAGED + 4);
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	put_records(stream, 0, RECORDS);
	assert_ptr_equal(freopen64("a", "r+", stream), stream);
	check_file("b", 0, RECORDS);
	assert_int_equal(fread(record, 1, RECORD, stream), RECORD);
	check_records(record, 0, 1);
	/* the same file in another mode */
	assert_ptr_equal(freopen(NULL, "a", stream), stream);
	assert_int_equal(fileno(stream), fd);
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	OK(truncate("a", STAGED));
	put_records(stream, RECORDS, RECORDS);
	check_file("a", 0, 2 * RECORDS);
	/* with bytes staged by another, which it cuts off */
	other = OK(open("a", O_RDWR | O_APPEND));
	write_records(other, 2 * RECORDS, RECORDS);
	assert_ptr_equal(freopen(NULL, "w", stream), stream);
	write_records(other, 0, RECORDS);
	assert_int_equal(fseek(stream, 0, SEEK_END), 0);
	put_records(stream, RECORDS, RECORDS);
	SHUT(stream);
	OK(close(other));
	check_file("a", 0, 2 * RECORDS);
	/* a reader that becomes a writer of the same file */
	other = open_staged("a", 0);
	stream = open_stream("a", "r");
	write_records(other, RECORDS, RECORDS);
	assert_ptr_equal(freopen(NULL, "w", stream), stream);
	put_records(stream, 0, RECORDS);
	SHUT(stream);
	OK(lseek(other, 0, SEEK_END));
	write_records(other, RECORDS, RECORDS);
	OK(close(other));
	check_file("a", 0, 2 * RECORDS);
	/* what its buffer holds goes out before it leaves the file, others wait for their turn */
	other = OK(open("a", O_RDWR | O_APPEND));
	stream = open_stream("a", "a");
	write_records(other, 2 * RECORDS, RECORDS);
	put_records(stream, 3 * RECORDS, 2);
	assert_ptr_equal(freopen("b", "a", stream), stream);
	write_records(other, 3 * RECORDS + 2, RECORDS);
	SHUT(stream);
	OK(close(other));
	check_file("a", 0, 4 * RECORDS + 2);
	/* what fails closes */
	stream = open_stream("b", "a");
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	put_records(stream, RECORDS, RECORDS);
	fd = fileno(stream);
	errno = 0;
	assert_null(freopen("none/a", "w", stream));
	assert_int_equal(errno, ENOENT);
	FAILS(write(fd, "x", 1), EBADF);
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* stdout, stdin and stderr on files of the program's own. */
static void standard_streams(void **state)
{
	int saved[3], fd;
	char expected[512];

	(void)state;
	fflush(stdout);
	for (int i = 0; i < 3; i++)
		saved[i] = OK(fcntl(i, F_DUPFD_CLOEXEC, 50));
	assert_ptr_equal(freopen("a", "w", stdout), stdout);
	assert_int_equal(fileno(stdout), 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < 200; i++)
		printf("%05d\n", i);
	fflush(stdout);
	fd = open_staged("b", 0);
	OK(dup2(fd, 1));
	OK(close(fd));
	for (int i = 0; i < 200; i++)
		printf("%05d\n", i);
	puts("end");
	fflush(stdout);
	OK(dup2(saved[1], 1));

	/* messages of the C library itself */
	fd = open_new("c", O_APPEND);
	OK(dup2(fd, 2));
	for (int i = 0; i < 5; i++) {
		errno = EACCES;
		perror("p");
		fprintf(stderr, "line\n");
		OK(write(fd, "own\n", 4));
	}
	psignal(SIGINT, "s");
	dprintf(2, "line\n");
	OK(dup2(saved[2], 2));
	OK(close(fd));

	/* a closed 0, and what is opened then */
	OK(close(0));
	assert_int_equal(OK(open("d", O_RDWR | O_CREAT, 0644)), 0);
	write_records(0, 0, RECORDS);
	OK(lseek(0, 0, SEEK_SET));
	clearerr(stdin);
	for (unsigned i = 0; i < RECORDS; i++) {
		char record[RECORD];

		assert_int_equal(fread(record, 1, RECORD, stdin), RECORD);
		check_records(record, i, 1);
	}
	OK(dup2(saved[0], 0));
	clearerr(stdin);
	__fpurge(stdin);

	assert_int_equal(size_outside("a"), 200 * 6);
	assert_int_equal(size_outside("b"), STAGED + 200 * 6 + 4);
	expected[0] = '\0';
	for (int i = 0; i < 5; i++)
		strcat(expected, "p: Permission denied\nline\nown\n");
	strcat(expected, "s: Interrupt\nline\n");
	check_text("c", expected);
	check_file("d", 0, RECORDS);
	for (int i = 0; i < 3; i++)
		OK(close(saved[i]));
	for (const char *name = "abcd"; *name; name++)
		OK(unlink((char[]){*name, '\0'}));
}

static void mount_table(void **state)
{
	struct mntent entry = {.mnt_fsname = "/dev/a", .mnt_dir = "/a", .mnt_type = "ext4", .mnt_opts = "rw"};
	FILE *stream = setmntent("a", "a+");
	const struct mntent *back;

	(void)state;
	assert_non_null(stream);
	for (entry.mnt_passno = 0; entry.mnt_passno < 50; entry.mnt_passno++)
		assert_int_equal(addmntent(stream, &entry), 0);
	rewind(stream);
	for (int i = 0; i < 50; i++) {
		back = getmntent(stream);
		assert_non_null(back);
		assert_int_equal(back->mnt_passno, i);
		assert_string_equal(back->mnt_dir, "/a");
	}
	assert_int_equal(endmntent(stream), 1);
	assert_int_equal(size_outside("a"), 10 * 22 + 40 * 23);
	OK(unlink("a"));
}

static ssize_t count_cookie(void *cookie, const char *data, size_t size)
{
	(void)data;
	*(size_t *)cookie += size;
	return (ssize_t)size;
}

/* Streams that are no files, and files that are no names. */
static void others(void **state)
{
	char memory[64] = "", *made = NULL;
	size_t size = 0, counted = 0;
	FILE *stream = fmemopen(memory, sizeof memory, "w");
	FILE *(*const nameless[])(void) = {tmpfile, tmpfile64};

	(void)state;
	assert_int_equal(fprintf(stream, "%d", 12345), 5);
	SHUT(stream);
	assert_string_equal(memory, "12345");
	stream = open_memstream(&made, &size);
	put_records(stream, 0, RECORDS);
	SHUT(stream);
	assert_int_equal(size, STAGED);
	check_records(made, 0, RECORDS);
	free(made);
	stream = fopencookie(&counted, "w", (cookie_io_functions_t){.write = count_cookie});
	put_records(stream, 0, RECORDS);
	SHUT(stream);
	assert_int_equal(counted, STAGED);
	stream = popen("cat > a", "w");
	assert_non_null(stream);
	put_records(stream, 0, RECORDS);
	assert_int_equal(pclose(stream), 0);
	check_file("a", 0, RECORDS);
	stream = popen("cat a", "r");
	assert_non_null(stream);
	for (unsigned i = 0; i < RECORDS; i++) {
		char record[RECORD];

		assert_int_equal(fread(record, 1, RECORD, stream), RECORD);
		check_records(record, i, 1);
	}
	assert_int_equal(pclose(stream), 0);
	for (int i = 0; i < 2; i++) {
		char record[RECORD];

		stream = nameless[i]();
		assert_non_null(stream);
		setvbuf(stream, NULL, _IOLBF, 0);
		put_records(stream, 0, RECORDS);
		rewind(stream);
		assert_int_equal(fread(record, 1, RECORD, stream), RECORD);
		check_records(record, 0, 1);
		SHUT(stream);
	}
	OK(unlink("a"));
}

/* ---- dprintf ---- */

static int print_by(int (*print)(int, const char *, va_list), int fd, const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = print(fd, format, args);
	va_end(args);
	return r;
}

static int fortified(int fd, const char *format, va_list args) { return __vdprintf_chk(fd, 1, format, args); }

static void printing_to_descriptors(void **state)
{
	static const int sizes[] = {0,    1,    1022,  1023,  1024,  1025,  4095,
	                            4096, 4097, 65535, 65536, 65537, 200000};
	size_t total = 0, size, at = 0;
	int fd = open_new("a", 0), before;
	char *bytes, name[64];

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		for (int how = 0; how < 4; how++) {
			int n = sizes[i], r;

			errno = EDOM;
			if (how == 0)
				r = dprintf(fd, "%0*d%m", n, 7);
			else if (how == 1)
				r = __dprintf_chk(fd, 1, "%0*d%m", n, 7);
			else
				r = print_by(how == 2 ? vdprintf : fortified, fd, "%0*d%m", n, 7);
			assert_int_equal(r, (n ? n : 1) + (int)strlen(strerror(EDOM)));
			assert_int_equal(errno, EDOM);
			total += (size_t)r;
			assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), total);
		}
	}
	assert_int_equal(dprintf(fd, "%s", ""), 0);
	bytes = file_bytes("a", &size);
	assert_int_equal(size, total);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		for (int how = 0; how < 4; how++) {
			int n = sizes[i] ? sizes[i] : 1;

			for (int zero = 0; zero < n - 1; zero++)
				assert_int_equal(bytes[at + (size_t)zero], '0');
			snprintf(name, sizeof name, "7%s", strerror(EDOM));
			assert_memory_equal(bytes + at + n - 1, name, strlen(name));
			at += (size_t)n - 1 + strlen(name);
		}
	}
	free(bytes);
	/* a character that has no bytes in this locale */
	OK(ftruncate(fd, 0));
	OK(lseek(fd, 0, SEEK_SET));
	write_records(fd, 0, RECORDS);
	errno = 0;
	assert_int_equal(dprintf(fd, "%ls", L"\u4e00"), -1);
	assert_int_equal(errno, EILSEQ);
	write_records(fd, RECORDS, RECORDS);
	assert_int_equal(dprintf(fd, "x%nyz", &before), 3);
	assert_int_equal(before, 1);
	OK(close(fd));
	OK(truncate("a", 2 * STAGED));
	check_file("a", 0, 2 * RECORDS);
	FAILS(dprintf(fd, "x"), EBADF);
	fd = OK(open("a", O_RDONLY));
	FAILS(dprintf(fd, "x"), EBADF);
	OK(close(fd));
	OK(unlink("a"));
}

static int fifo_fd;
static volatile sig_atomic_t fifo_signals;

static void on_alarm(int sig)
{
	(void)sig;
	if (++fifo_signals == 5)
		fcntl(fifo_fd, F_SETFL, O_NONBLOCK); /* the call goes on after signals: end it */
}

static void print_interrupted(void **state)
{
	struct itimerval every = {.it_interval.tv_usec = 20000, .it_value.tv_usec = 20000}, none = {0};
	struct sigaction action = {.sa_handler = on_alarm}, old;
	int reader;

	(void)state;
	OK(mkfifo("fifo", 0600));
	reader = OK(open("fifo", O_RDONLY | O_NONBLOCK));
	fifo_fd = OK(open("fifo", O_WRONLY));
	OK(sigaction(SIGALRM, &action, &old));
	OK(setitimer(ITIMER_REAL, &every, NULL));
	FAILS(dprintf(fifo_fd, "%0300000d", 1), EINTR);
	OK(setitimer(ITIMER_REAL, &none, NULL));
	OK(sigaction(SIGALRM, &old, NULL));
	OK(close(fifo_fd));
	OK(close(reader));
	OK(unlink("fifo"));
}

/* ---- the end of it ---- */

static void unflushed(void **state)
{
	FILE *stream = open_lines("a", "w");
	pid_t child;

	(void)state;
	/* both sides have it, and both write it */
	assert_int_equal(setvbuf(stream, NULL, _IOFBF, 4096), 0);
	put_records(stream, RECORDS, 1);
	child = fork();
	if (child == 0) {
		CHILD(fclose(stream) == 0);
		_exit(0);
	}
	check_exit(child, 0);
	put_records(stream, RECORDS + 1, 1);
	SHUT(stream);
	assert_int_equal(size_outside("a"), STAGED + 3 * RECORD);

	/* _exit flushes nothing, exit does */
	for (int how = 0; how < 2; how++) {
		fflush(stdout);
		child = fork();
		if (child == 0) {
			close_inherited();
			stream = fopen("b", "w");
			CHILD(stream != NULL);
			for (int i = 0; i < 100; i++)
				CHILD(fprintf(stream, "%05d\n", i) == 6 && fflush(stream) == 0);
			CHILD(fputs("rest\n", stream) >= 0);
			if (how == 0)
				_exit(0);
			exit(0);
		}
		check_exit(child, 0);
		assert_int_equal(size_outside("b"), how == 0 ? 600 : 605);
	}
	OK(unlink("a"));
	OK(unlink("b"));
}

static void errors(void **state)
{
	struct rlimit old, limit;
	FILE *stream = open_lines("a", "w");
	int fd = fileno(stream);

	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	OK(getrlimit(RLIMIT_FSIZE, &old));
	limit = old;
	limit.rlim_cur = STAGED + 50;
	OK(setrlimit(RLIMIT_FSIZE, &limit));
	assert_int_equal(setvbuf(stream, NULL, _IONBF, 0), 0);
	errno = 0;
	assert_int_equal(fwrite("0123456789", 1, 10, stream), 10);
	assert_int_equal(fwrite("0123456789012345678901234567890123456789+lost", 1, 45, stream), 40);
	assert_int_equal(errno, EFBIG);
	assert_true(ferror(stream));
	assert_int_equal(ftell(stream), STAGED + 50);
	clearerr(stream);
	errno = 0;
	assert_int_equal(fputc('x', stream), EOF);
	assert_int_equal(errno, EFBIG);
	assert_true(ferror(stream));
	OK(setrlimit(RLIMIT_FSIZE, &old));
	signal(SIGXFSZ, SIG_DFL);
	SHUT(stream);
	assert_int_equal(size_outside("a"), STAGED + 50);
	/* closed behind its back */
	stream = open_lines("a", "w");
	fd = fileno(stream);
	OK(close(fd));
	errno = 0;
	assert_int_equal(fputs("x\n", stream), EOF);
	assert_int_equal(errno, EBADF);
	assert_true(ferror(stream));
	errno = 0;
	assert_int_equal(fclose(stream), EOF);
	assert_int_equal(errno, EBADF);
	check_file("a", 0, RECORDS);
	/* not for writing, not for reading */
	stream = open_stream("a", "r");
	FAILS(fputc('x', stream), EBADF);
	SHUT(stream);
	stream = open_stream("a", "a");
	FAILS(fgetc(stream), EBADF);
	SHUT(stream);
	OK(unlink("a"));
}

enum { THREADS = 8, LINES = 300 };

static void *write_lines(void *arg)
{
	FILE *stream = arg;
	static _Atomic int next;
	int id = next++;

	for (int i = 0; i < LINES; i++) {
		if (i % 3 == 0) {
			/* one line from several calls */
			flockfile(stream);
			fprintf(stream, "%d ", id);
			fprintf(stream, "%03d", i);
			putc_unlocked('\n', stream);
			funlockfile(stream);
		} else {
			fprintf(stream, "%d %03d\n", id, i);
		}
	}
	return NULL;
}

static void threads(void **state)
{
	FILE *stream = open_stream("a", "w");
	pthread_t list[THREADS];
	int next[THREADS] = {0}, id, number;

	(void)state;
	assert_int_equal(setvbuf(stream, NULL, _IOLBF, 0), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&list[i], NULL, write_lines, stream), 0);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(list[i], NULL), 0);
	SHUT(stream);
	assert_int_equal(size_outside("a"), THREADS * LINES * 6);
	stream = open_stream("a", "r");
	for (int i = 0; i < THREADS * LINES; i++) {
		assert_int_equal(fscanf(stream, "%d %d\n", &id, &number), 2);
		assert_in_range(id, 0, THREADS - 1);
		assert_int_equal(number, next[id]++);
	}
	SHUT(stream);
	OK(unlink("a"));
}

enum { DESCRIPTORS = 200 };

/* The library's own descriptors are not missing when the program needs the last two for streams. */
static void few_descriptors(void **state)
{
	int fd = open_staged("a", 0), fds[DESCRIPTORS], count = 0;
	FILE *stream, *other;

	(void)state;
	write_records(fd, RECORDS, RECORDS);
	while (count < DESCRIPTORS - 3 - 1 - 2)
		fds[count++] = OK(open("/dev/null", O_WRONLY));
	stream = open_stream("b", "w");
	other = open_stream("c", "w");
	SHUT(other);
	put_records(stream, 0, RECORDS);
	write_records(fd, 2 * RECORDS, RECORDS);
	/* one more for a moment */
	assert_ptr_equal(freopen("b", "a", stream), stream);
	put_records(stream, RECORDS, RECORDS);
	other = open_stream("c", "w");
	errno = 0;
	assert_null(fopen("d", "w"));
	assert_int_equal(errno, EMFILE);
	SHUT(other);
	SHUT(stream);
	while (count > 0)
		OK(close(fds[--count]));
	OK(close(fd));
	check_file("a", 0, 3 * RECORDS);
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
	OK(unlink("c"));
}

/* "a" on a descriptor that does not append yet goes to the end, "a+" does not. */
static void appending_made_of_a_descriptor(void **state)
{
	(void)state;
	for (int reads = 0; reads < 2; reads++) {
		int writer = open_staged("a", 0), fd = OK(open("a", O_RDWR | O_CLOEXEC));
		FILE *stream;

		write_records(writer, RECORDS, 1);
		stream = fdopen(fd, reads ? "a+" : "a");
		assert_non_null(stream);
		assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), reads ? 0 : STAGED + RECORD);
		assert_int_equal(fclose(stream), 0);
		OK(close(writer));
		OK(unlink("a"));
	}
}

int main(void)
{
	static const struct rlimit few = {.rlim_cur = DESCRIPTORS, .rlim_max = DESCRIPTORS};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(printing),
		cmocka_unit_test(wide),
		cmocka_unit_test(buffering),
		cmocka_unit_test(flushing_all),
		cmocka_unit_test(positions),
		cmocka_unit_test(under_the_stream),
		cmocka_unit_test(modes),
		cmocka_unit_test(on_descriptors),
		cmocka_unit_test(reopened),
		cmocka_unit_test(standard_streams),
		cmocka_unit_test(mount_table),
		cmocka_unit_test(others),
		cmocka_unit_test(printing_to_descriptors),
		cmocka_unit_test(print_interrupted),
		cmocka_unit_test(unflushed),
		cmocka_unit_test(errors),
		cmocka_unit_test(threads),
		cmocka_unit_test(appending_made_of_a_descriptor),
		cmocka_unit_test(few_descriptors),
	};

	close_inherited();
	setrlimit(RLIMIT_NOFILE, &few);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
