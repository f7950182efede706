// SPDX-License-Identifier: Apache-2.0
/* Functions of the C library that open, write, duplicate or fork inside, with files that are staged around
 * them. */
#include "hook_test.h"

#include <aio.h>
#include <execinfo.h>
#include <linux/fs.h>
#include <mntent.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/xattr.h>
#include <ulimit.h>
#include <utmp.h>
#include <utmpx.h>
#include <wordexp.h>

int vlimit(int resource, int value);
FILE *_IO_fopen(const char *path, const char *mode);
FILE *_IO_fdopen(int fd, const char *mode);
int _IO_fclose(FILE *stream);
FILE *_IO_popen(const char *command, const char *mode);
FILE *__setmntent(const char *path, const char *mode);
void __backtrace_symbols_fd(void *const *addresses, int count, int fd);

static void child_puts(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		CHILD(write(fd, record, RECORD) == RECORD);
	}
}

static int child_staged(const char *path, int more)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | more, 0644);

	CHILD(fd >= 0);
	child_puts(fd, 0, RECORDS);
	return fd;
}

/* ---- a program that changes the file ---- */

/* Another program makes a staged file longer, or empty.  Its own writes and reads go on where they are then.
 */
static void changed_by_a_program(void **state)
{
	char text[RECORD];
	off_t at;
	int fd;

	(void)state;
	fd = open_staged("a", O_APPEND);
	assert_int_equal(system("head -c 500 /dev/zero >>a"), 0);
	assert_int_equal(write(fd, "x", 1), 1);
	assert_int_equal(read(fd, text, sizeof text), 0);
	OK(close(fd));
	fd = open_staged("a", O_APPEND);
	assert_int_equal(system("head -c 500 /dev/zero >>a"), 0);
	at = OK(lseek(fd, 0, SEEK_END));
	assert_int_equal(write(fd, "abc", 3), 3);
	assert_int_equal(pread(fd, text, sizeof text, at), 3);
	assert_memory_equal(text, "abc", 3);
	OK(close(fd));
	fd = open_staged("a", O_APPEND);
	assert_int_equal(system(": >a"), 0);
	assert_int_equal(write(fd, "abc", 3), 3);
	assert_int_equal(pread(fd, text, sizeof text, 0), 3);
	OK(close(fd));
	fd = open_staged("a", 0);
	assert_int_equal(system(": >a"), 0);
	assert_int_equal(pwrite(fd, "abc", 3, 100), 3);
	assert_int_equal(pread(fd, text, 10, 50), 10);
	OK(close(fd));
	OK(unlink("a"));
}

/* The limit counts from the end that another program gave the file. */
static void limit_of_a_longer_file(void **state)
{
	const char zeros[100] = {0};
	struct rlimit before, small;
	struct stat st;
	int fd = open_staged("a", O_APPEND);

	(void)state;
	OK(getrlimit(RLIMIT_FSIZE, &before));
	small = (struct rlimit){.rlim_cur = STAGED + 1000, .rlim_max = before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	OK(setrlimit(RLIMIT_FSIZE, &small));
	assert_int_equal(system("head -c 990 /dev/zero >>a"), 0);
	assert_int_equal(write(fd, zeros, sizeof zeros), 10);
	OK(close(fd));
	OK(setrlimit(RLIMIT_FSIZE, &before));
	signal(SIGXFSZ, SIG_DFL);
	OK(stat("a", &st));
	assert_int_equal(st.st_size, STAGED + 1000);
	OK(unlink("a"));
}

/* ---- terminals ---- */

/* What was standard output before goes on as a file; what it is now is the terminal. */
static void logging_in(void **state)
{
	(void)state;
	for (int how = 0; how < 2; how++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = child_staged("a", O_CLOEXEC), master, slave;
			char text[8] = "";

			CHILD(dup2(fd, 1) == 1);
			child_puts(1, RECORDS, 3);
			if (how == 0) /* no terminal: nothing is replaced */
				CHILD(login_tty(open("/dev/null", O_RDWR)) == -1);
			child_puts(fd, RECORDS + 3, 1);
			child_puts(1, RECORDS + 4, 1);
			if (how == 0) {
				if (openpty(&master, &slave, NULL, NULL, NULL) < 0)
					_exit(77);
				CHILD(setsid() >= 0 || errno == EPERM);
				CHILD(login_tty(slave) == 0);
				CHILD(write(1, "hello", 5) == 5);
			} else {
				pid = forkpty(&master, NULL, NULL, NULL);
				if (pid < 0)
					_exit(77);
				if (pid == 0) {
					CHILD(write(1, "hello", 5) == 5);
					child_puts(fd, RECORDS + 5, RECORDS);
					CHILD(read(0, text, 1) >= 0); /* until the master goes */
					CHILD(close(fd) == 0);
					_exit(0);
				}
			}
			CHILD(read(master, text, sizeof text) == 5);
			CHILD(memcmp(text, "hello", 5) == 0);
			if (how == 1) {
				CHILD(write(master, "\n", 1) == 1);
				CHILD(waitpid(pid, &slave, 0) == pid && slave == 0);
				child_puts(1, 2 * RECORDS + 5, RECORDS);
			} else {
				child_puts(fd, RECORDS + 5, 2 * RECORDS);
			}
			CHILD(close(fd) == 0 && close(1) == 0);
			_exit(0);
		}
		{
			int status;

			assert_int_equal(waitpid(pid, &status, 0), pid);
			if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
				print_message("no terminals here\n");
				OK(unlink("a"));
				skip();
			}
			assert_int_equal(status, 0);
		}
		check_file("a", 0, 3 * RECORDS + 5);
		OK(unlink("a"));
	}
}

static void becoming_a_daemon(void **state)
{
	int pipes[2], fd;
	pid_t pid;
	char byte;

	(void)state;
	OK(pipe(pipes));
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		fd = child_staged("a", 0);
		close(pipes[0]);
		CHILD(dup2(fd, 1) == 1);
		child_puts(1, RECORDS, 5);
		CHILD(daemon(1, 0) == 0);
		/* standard output leads nowhere now */
		CHILD(write(1, "lost", 4) == 4);
		child_puts(fd, RECORDS + 5, RECORDS - 5);
		CHILD(close(fd) == 0);
		fd = child_staged("b", 0);
		CHILD(write(pipes[1], "x", 1) == 1);
		CHILD(close(fd) == 0);
		_exit(0);
	}
	OK(close(pipes[1]));
	check_exit(pid, 0);
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	assert_int_equal(read(pipes[0], &byte, 1), 0);
	OK(close(pipes[0]));
	check_file("a", 0, 2 * RECORDS);
	check_file("b", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* ---- other programs, other ways to write ---- */

static void expanding_words(void **state)
{
	int fd = open_staged("a", 0);
	wordexp_t words;

	(void)state;
	assert_int_equal(wordexp("$(wc -c <a) plain", &words, 0), 0);
	assert_int_equal(words.we_wordc, 2);
	assert_int_equal(atoi(words.we_wordv[0]), STAGED);
	wordfree(&words);
	write_records(fd, RECORDS, RECORDS);
	assert_int_equal(wordexp("`wc -c <a`", &words, 0), 0);
	assert_int_equal(atoi(words.we_wordv[0]), 2 * STAGED);
	wordfree(&words);
	assert_int_equal(wordexp("$(wc -c <a)", &words, WRDE_NOCMD), WRDE_CMDSUB);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

static void printing_a_trace(void **state)
{
	void *addresses[2] = {(void *)(uintptr_t)printing_a_trace, (void *)(uintptr_t)fopen};

	(void)state;
	for (int alias = 0; alias < 2; alias++) {
		int fd = open_staged("a", O_APPEND);
		size_t size, middle;
		char *bytes;

		if (alias)
			__backtrace_symbols_fd(addresses, 2, fd);
		else
			backtrace_symbols_fd(addresses, 2, fd);
		write_records(fd, RECORDS, RECORDS);
		OK(close(fd));
		bytes = file_bytes("a", &size);
		middle = size - 2 * STAGED;
		assert_true(middle > 10);
		check_records(bytes, 0, RECORDS);
		check_records(bytes + STAGED + middle, RECORDS, RECORDS);
		bytes[STAGED + middle] = '\0';
		assert_non_null(strstr(bytes + STAGED, "]\n"));
		free(bytes);
		OK(unlink("a"));
	}
}

static void limits(void **state)
{
	enum { LIM_FSIZE = RLIMIT_FSIZE + 1 };
	pid_t pid;

	(void)state;
	for (int how = 0; how < 2; how++) {
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = child_staged("a", 0);
			struct stat st;

			signal(SIGXFSZ, SIG_IGN);
			CHILD(ulimit(UL_GETFSIZE) > 0);
			if (how)
				CHILD(vlimit(LIM_FSIZE, 1024) == 0);
			else
				CHILD(ulimit(UL_SETFSIZE, 2L) != -1);
			/* accepted is accepted */
			CHILD(raw_call(SYS_fstat, fd, (long)&st, 0, 0) == 0 && st.st_size == STAGED);
			CHILD(write(fd, "x", 1) == -1 && errno == EFBIG);
			CHILD(close(fd) == 0);
			leave();
		}
		check_exit(pid, 0);
		check_file("a", 0, RECORDS);
		OK(unlink("a"));
	}
	clean_up();
}

/* ---- records of logins ---- */

static struct utmp login_entry(const char *line)
{
	struct utmp entry = {.ut_type = USER_PROCESS, .ut_pid = 1};

	snprintf(entry.ut_line, sizeof entry.ut_line, "%s", line);
	snprintf(entry.ut_id, sizeof entry.ut_id, "%s", line + 3);
	snprintf(entry.ut_user, sizeof entry.ut_user, "user");
	return entry;
}

/* Ten records that the program writes by itself; the functions below come behind them. */
static int own_entries(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

	CHILD(fd >= 0);
	for (int i = 0; i < 10; i++) {
		struct utmp entry;
		char line[8];

		snprintf(line, sizeof line, "tty%d", i);
		entry = login_entry(line);
		CHILD(write(fd, &entry, sizeof entry) == sizeof entry);
	}
	return fd;
}

/* One of them, on a file that has ten records of the program's own, staged. */
static void one_login(int how)
{
	struct utmp entry = login_entry("ttya");
	struct utmpx entryx;

	memcpy(&entryx, &entry, sizeof entryx);
	CHILD(utmpname("/utmp") == 0);
	switch (how) {
	case 0: updwtmp("/utmp", &entry); break;
	case 1: updwtmpx("/utmp", &entryx); break;
	case 2: CHILD(pututline(&entry)); break;
	case 3: CHILD(pututxline(&entryx)); break;
	/* these choose the file; the first the line, too, and there is no terminal here to name */
	case 4: login(&entry); break;
	case 5: logwtmp("ttya", "user", "here"); break;
	/* rewrites an entry in its place */
	case 6: CHILD(logout("tty3") == 1); break;
	}
	endutent();
}

static void logins(void **state)
{
	static const char *const lines[] = {"ttya", "ttya", "ttya", "ttya", NULL, "ttya", "tty3"};

	(void)state;
	if (geteuid() != 0) {
		print_message("chroot needs root\n");
		skip();
	}
	OK(mkdir("var", 0755));
	OK(mkdir("var/log", 0755));
	OK(mkdir("var/run", 0755));
	for (int how = 0; how < 7; how++) {
		const char *path = how == 4 || how == 5 ? "var/log/wtmp" : how == 6 ? "var/run/utmp" : "utmp";
		struct utmp entry;
		size_t size;
		char *bytes;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = own_entries(path);

			/* the machine's own records are out of reach from here */
			CHILD(chroot(".") == 0 && chdir("/") == 0);
			one_login(how);
			CHILD(close(fd) == 0);
			leave();
		}
		check_exit(pid, 0);
		bytes = file_bytes(path, &size);
		assert_int_equal(size, (how == 6 ? 10 : 11) * sizeof entry);
		for (unsigned i = 0; i < 10; i++) {
			char own[8];

			snprintf(own, sizeof own, "tty%u", i);
			memcpy(&entry, bytes + i * sizeof entry, sizeof entry);
			assert_string_equal(entry.ut_line, own);
			assert_int_equal(entry.ut_type, how == 6 && i == 3 ? DEAD_PROCESS : USER_PROCESS);
		}
		memcpy(&entry, bytes + (how == 6 ? 3 : 10) * sizeof entry, sizeof entry);
		if (lines[how])
			assert_string_equal(entry.ut_line, lines[how]);
		else
			assert_string_equal(entry.ut_user, "user");
		free(bytes);
		OK(unlink(path));
	}
	OK(rmdir("var/log"));
	OK(rmdir("var/run"));
	OK(rmdir("var"));
	clean_up();
}

static void mount_table(void **state)
{
	struct mntent entry = {.mnt_fsname = (char *)"none",
	                       .mnt_dir = (char *)"/nowhere",
	                       .mnt_type = (char *)"tmpfs",
	                       .mnt_opts = (char *)"rw"};

	(void)state;
	for (int alias = 0; alias < 2; alias++) {
		int fd = open_staged("a", O_APPEND);
		FILE *table = alias ? __setmntent("a", "r+") : setmntent("a", "r+");
		size_t size;
		char *bytes;

		assert_non_null(table);
		assert_int_equal(addmntent(table, &entry), 0);
		assert_int_equal(endmntent(table), 1);
		write_records(fd, RECORDS, RECORDS);
		OK(close(fd));
		bytes = file_bytes("a", &size);
		assert_true(size > 2 * STAGED);
		check_records(bytes, 0, RECORDS);
		assert_memory_equal(bytes + STAGED, "none /nowhere tmpfs rw", 22);
		check_records(bytes + size - STAGED, RECORDS, RECORDS);
		free(bytes);
		assert_null(setmntent("none", "r"));
		OK(unlink("a"));
	}
}

/* ---- what else lets others at a file ---- */

static void more_attributes(void **state)
{
	int fd = open_staged("a", 0);

	(void)state;
	if (lchmod("a", 0600) < 0)
		assert_true(errno == EOPNOTSUPP || errno == ENOSYS);
	assert_int_equal(kernel_size("a"), STAGED);
	write_records(fd, RECORDS, RECORDS);
	for (int how = 0; how < 3; how++) {
		int r = how == 0   ? fremovexattr(fd, "user.none")
		        : how == 1 ? removexattr("a", "user.none")
		                   : lremovexattr("a", "user.none");

		assert_int_equal(r, -1);
		assert_true(errno == ENODATA || errno == EOPNOTSUPP);
		assert_int_equal(kernel_size("a"), (how + 2) * STAGED);
		write_records(fd, (unsigned)(how + 2) * RECORDS, RECORDS);
	}
	OK(close(fd));
	check_file("a", 0, 5 * RECORDS);
	OK(unlink("a"));
}

/* Requests to one file, or to the directory, that are about another. */
static void cloning(void **state)
{
	struct file_clone_range range = {0};
	int fd = open_staged("a", 0), other = open_new("b", 0), here = OK(open(".", O_RDONLY)), flags;
	unsigned n = RECORDS;

	(void)state;
	for (int how = 0; how < 3; how++) {
		int r = 0;

		switch (how) {
		case 0: r = ioctl(other, FICLONE, fd); break;
		case 1:
			range.src_fd = fd;
			r = ioctl(other, FICLONERANGE, &range);
			break;
		case 2: r = ioctl(here, FS_IOC_GETFLAGS, &flags); break;
		}
		if (r < 0)
			assert_true(errno == EOPNOTSUPP || errno == EINVAL || errno == ENOTTY ||
			            errno == ENOSYS);
		assert_int_equal(kernel_size("a"), n * RECORD);
		if (r == 0 && how < 2)
			assert_int_equal(kernel_size("b"), n * RECORD);
		write_records(fd, n, RECORDS);
		n += RECORDS;
	}
	OK(close(fd));
	OK(close(other));
	OK(close(here));
	check_file("a", 0, n);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* The flags of the description change, and stay so. */
static void flags_by_ioctl(void **state)
{
	static const unsigned long requests[] = {FIONBIO, FIOASYNC};
	int fd = open_staged("a", 0), on = 1;

	(void)state;
	OK(ioctl(fd, requests[0], &on));
	write_records(fd, RECORDS, 10 * RECORDS);
	OK(fdatasync(fd));
	assert_true(OK(fcntl(fd, F_GETFL)) & O_NONBLOCK);
	(void)!ioctl(fd, requests[1], &on); /* (regular files have no such thing everywhere) */
	write_records(fd, 11 * RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 12 * RECORDS);
	OK(unlink("a"));
}

/* Names that only programs from before 2000 have. */
static void old_names(void **state)
{
	int fd = open_staged("a", O_APPEND);
	char text[32] = "", record[RECORD + 1] = "";
	FILE *stream;

	(void)state;
	stream = _IO_popen("wc -c <a", "r");
	assert_non_null(stream);
	assert_non_null(fgets(text, sizeof text, stream));
	assert_int_equal(atoi(text), STAGED);
	assert_int_equal(pclose(stream), 0);
	OK(close(fd));
	/* a stream on a file that is staged, and one on its descriptor: each comes behind what was before it
	 */
	for (int how = 0; how < 2; how++) {
		fd = open_staged("a", O_APPEND);
		for (unsigned i = RECORDS; i < RECORDS + 8; i += 2) {
			stream = how ? _IO_fdopen(dup(fd), "a") : _IO_fopen("a", "a");
			assert_non_null(stream);
			record_fill(record, i);
			assert_true(fputs(record, stream) >= 0);
			assert_int_equal(_IO_fclose(stream), 0);
			write_records(fd, i + 1, 1);
		}
		OK(close(fd));
		check_file("a", 0, RECORDS + 8);
		OK(unlink("a"));
	}
}

#if defined(__x86_64__)
__asm__(".symver old_llseek, llseek@GLIBC_2.2.5");
off64_t old_llseek(int fd, off64_t offset, int whence);

static void old_seek(void **state)
{
	int fd = open_staged("a", 0);
	char back[RECORD];

	(void)state;
	assert_int_equal(OK(old_llseek(fd, 0, SEEK_END)), STAGED);
	write_records(fd, RECORDS, 1);
	assert_int_equal(OK(old_llseek(fd, 0, SEEK_CUR)), STAGED + RECORD);
	assert_int_equal(OK(old_llseek(fd, 3 * RECORD, SEEK_SET)), 3 * RECORD);
	assert_int_equal(OK(read(fd, back, RECORD)), RECORD);
	check_records(back, 3, 1);
	OK(close(fd));
	check_file("a", 0, RECORDS + 1);
	OK(unlink("a"));
}
#endif

static void syncing_in_the_background(void **state)
{
	(void)state;
	for (int how = 0; how < 2; how++) {
		int fd = open_staged("a", 0);
		struct aiocb cb = {.aio_fildes = fd};
		const struct aiocb *list[1] = {&cb};

		if (how)
			OK(aio_fsync64(O_SYNC, (struct aiocb64 *)(void *)&cb));
		else
			OK(aio_fsync(O_DSYNC, &cb));
		while (aio_error(&cb) == EINPROGRESS)
			aio_suspend(list, 1, NULL);
		assert_int_equal(aio_return(&cb), 0);
		assert_int_equal(kernel_size("a"), STAGED);
		write_records(fd, RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 2 * RECORDS);
		OK(unlink("a"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(changed_by_a_program),
		cmocka_unit_test(limit_of_a_longer_file),
		cmocka_unit_test(logging_in),
		cmocka_unit_test(becoming_a_daemon),
		cmocka_unit_test(expanding_words),
		cmocka_unit_test(printing_a_trace),
		cmocka_unit_test(limits),
		cmocka_unit_test(logins),
		cmocka_unit_test(mount_table),
		cmocka_unit_test(more_attributes),
		cmocka_unit_test(cloning),
		cmocka_unit_test(syncing_in_the_background),
		cmocka_unit_test(flags_by_ioctl),
		cmocka_unit_test(old_names),
#if defined(__x86_64__)
		cmocka_unit_test(old_seek),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
