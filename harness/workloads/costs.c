// SPDX-License-Identifier: Apache-2.0
/*
 * lab-costs: the loops of the suite `cost`: calls of programs that gain little or nothing by staging.
 *
 *   lab-costs LOOP DIR COUNT [WRITES]
 *
 * Prints one JSON object: seconds, of COUNT rounds of the loop, and arena, whether this process (or the one
 * that stages beside it) has an arena mapped.  Files hold numbered lines, so that each byte can be verified.
 *
 *   lab-costs ten DIR             is a program of its own: appends ten lines and ends; it prints nothing
 *   lab-costs beside DIR          stages a file until its standard input ends; "loop beside" starts it
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab.h"

enum {
	PATH_BYTES = 4096,
	LINE = 50,        /* bytes of a logger's line, with its end */
	LONG_LINE = 100,  /* of ten appends and of small files */
	STAGED = 2000,    /* lines after which a file is staged, if it ever is */
	BESIDE_MS = 10,   /* pause of the process that stages beside the measured one */
	WINDOW = 1 << 14, /* bytes of a mapping, as in experiment E3 */
	WORKERS = 4,      /* of the prefork server */
	ROWS = 100,       /* of the table that is read */
};

struct loop {
	const char *dir;
	uint64_t count, writes;
	uint64_t ns; /* measured */
	bool arena;
};

static void path_of(char *out, const char *dir, const char *name)
{
	if (snprintf(out, PATH_BYTES, "%s/%s", dir, name) >= PATH_BYTES)
		lab_usage("%s: path too long", dir);
}

static int open_file(const char *dir, const char *name, int flags)
{
	char path[PATH_BYTES];
	int fd;

	path_of(path, dir, name);
	fd = open(path, flags | O_CLOEXEC, 0644);
	if (fd < 0)
		lab_die("%s", path);
	return fd;
}

static int open_append(const char *dir, const char *name)
{
	return open_file(dir, name, O_WRONLY | O_CREAT | O_APPEND);
}

/* Lines first ... first + count - 1, each `size` bytes. */
static char *numbered(uint64_t first, uint64_t count, int size)
{
	char *lines = malloc(count * (size_t)size + 1);

	if (!lines)
		lab_die("memory");
	for (uint64_t i = 0; i < count; i++)
		snprintf(lines + i * (size_t)size, (size_t)size + 1, "%0*llu\n", size - 1,
		         (unsigned long long)(first + i));
	return lines;
}

static void put(int fd, const char *bytes, size_t size)
{
	if (write(fd, bytes, size) != (ssize_t)size)
		lab_die("write of %zu bytes", size);
}

static void put_line(int fd, uint64_t number, int size)
{
	char *line = numbered(number, 1, size);

	put(fd, line, (size_t)size);
	free(line);
}

static void shut(int fd)
{
	if (close(fd) != 0)
		lab_die("close");
}

static bool has_arena(void)
{
	char line[PATH_BYTES];
	bool found = false;
	FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && fgets(line, sizeof(line), maps))
		found |= strstr(line, "/.fastwrite/") != NULL;
	if (!maps || fclose(maps) != 0)
		lab_die("/proc/self/maps");
	return found;
}

static void end_well(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid || status != 0)
		lab_usage("a process ended with status %#x", status);
}

/* ---- forks ---- */

static void fork_once(struct loop *loop)
{
	uint64_t begin = lab_now_ns();
	pid_t pid = fork();

	if (pid < 0)
		lab_die("fork");
	if (pid == 0)
		exit(0);
	end_well(pid);
	loop->ns += lab_now_ns() - begin;
}

static void do_fork(struct loop *loop)
{
	for (uint64_t i = 0; i < loop->count; i++)
		fork_once(loop);
}

static void do_fork_staged(struct loop *loop)
{
	int fd = open_append(loop->dir, "log");

	for (uint64_t i = 0; i < STAGED; i++)
		put_line(fd, i, LINE);
	for (uint64_t i = 0; i < loop->count; i++) {
		put_line(fd, STAGED + i, LINE);
		fork_once(loop);
	}
	loop->arena = has_arena();
	shut(fd);
}

/* ---- open, write a little, close ---- */

static void do_append(struct loop *loop)
{
	char *lines = numbered(0, loop->count * loop->writes, LINE), *next = lines;
	uint64_t begin = lab_now_ns();

	for (uint64_t i = 0; i < loop->count; i++) {
		int fd = open_append(loop->dir, "log");

		for (uint64_t w = 0; w < loop->writes; w++, next += LINE)
			put(fd, next, LINE);
		shut(fd);
	}
	loop->ns = lab_now_ns() - begin;
	free(lines);
}

/* The process beside: says by one byte that it has staged, 1, or could not, 0. */
static int beside(const char *dir)
{
	struct pollfd asked = {.fd = 0, .events = POLLIN};
	int fd = open_append(dir, "beside");
	uint64_t number = 0;
	char arena;

	while (number < STAGED)
		put_line(fd, number++, LINE);
	arena = has_arena();
	put(1, &arena, 1);
	while (poll(&asked, 1, BESIDE_MS) == 0)
		put_line(fd, number++, LINE);
	shut(fd);
	return 0;
}

static void do_append_beside(struct loop *loop)
{
	char self[PATH_BYTES] = "", *argv[] = {self, "beside", (char *)loop->dir, NULL}, arena;
	posix_spawn_file_actions_t actions;
	int in[2], out[2];
	pid_t pid;

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0 || pipe2(in, O_CLOEXEC) ||
	    pipe2(out, O_CLOEXEC))
		lab_die("beside");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], 0);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	errno = posix_spawn(&pid, self, &actions, NULL, argv, environ);
	if (errno)
		lab_die("%s", self);
	posix_spawn_file_actions_destroy(&actions);
	shut(in[0]);
	shut(out[1]);
	if (read(out[0], &arena, 1) != 1)
		lab_usage("the process beside has ended");
	loop->arena = arena != 0;
	do_append(loop);
	shut(in[1]);
	end_well(pid);
}

static void do_files(struct loop *loop)
{
	char *lines = numbered(0, loop->count, LONG_LINE), name[32];
	uint64_t begin = lab_now_ns();

	for (uint64_t i = 0; i < loop->count; i++) {
		snprintf(name, sizeof(name), "f%llu", (unsigned long long)i);
		int fd = open_file(loop->dir, name, O_WRONLY | O_CREAT | O_EXCL);

		put(fd, lines + i * LONG_LINE, LONG_LINE);
		shut(fd);
	}
	loop->ns = lab_now_ns() - begin;
	free(lines);
}

static int ten(const char *dir)
{
	int fd = open_append(dir, "log");

	for (uint64_t i = 0; i < 10; i++)
		put_line(fd, i, LONG_LINE);
	shut(fd);
	return 0;
}

/* ---- locks and mappings ---- */

static void set_lock(int fd, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET};

	if (fcntl(fd, F_SETLK, &lock) != 0)
		lab_die("F_SETLK");
}

static void do_lock(struct loop *loop)
{
	int fd = open_file(loop->dir, "lock", O_RDWR | O_CREAT);
	uint64_t begin = lab_now_ns();

	for (uint64_t i = 0; i < loop->count; i++) {
		set_lock(fd, F_WRLCK);
		set_lock(fd, F_UNLCK);
	}
	loop->ns = lab_now_ns() - begin;
	shut(fd);
}

static void do_window(struct loop *loop)
{
	int fd = open_file(loop->dir, "windows", O_RDWR | O_CREAT);
	uint64_t begin;

	errno = posix_fallocate(fd, 0, (off_t)(loop->count * WINDOW));
	if (errno)
		lab_die("posix_fallocate");
	begin = lab_now_ns();
	for (uint64_t i = 0; i < loop->count; i++) {
		uint64_t *words =
			mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(i * WINDOW));

		if (words == MAP_FAILED)
			lab_die("mmap");
		for (size_t k = 0; k < WINDOW / sizeof(*words); k++)
			words[k] = i;
		munmap(words, WINDOW);
	}
	loop->ns = lab_now_ns() - begin;
	shut(fd);
}

/* ---- SQLite, by its shared library: no header is needed ---- */

static struct {
	void *database;
	int (*open)(const char *, void **);
	int (*exec)(void *, const char *, void *, void *, void *);
	int (*prepare)(void *, const char *, int, void **, void *);
	int (*bind)(void *, int, long long);
	int (*step)(void *);
	int (*reset)(void *);
	long long (*column)(void *, int);
	int (*finalize)(void *);
	int (*close)(void *);
} sql;

enum { SQL_ROW = 100, SQL_DONE = 101 };

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		lab_usage("%s", dlerror());
	return found;
}

static void sql_open(const char *dir)
{
	void *library = dlopen("libsqlite3.so.0", RTLD_NOW);
	char path[PATH_BYTES];

	if (!library)
		lab_usage("%s", dlerror());
	sql.open = symbol(library, "sqlite3_open");
	sql.exec = symbol(library, "sqlite3_exec");
	sql.prepare = symbol(library, "sqlite3_prepare_v2");
	sql.bind = symbol(library, "sqlite3_bind_int64");
	sql.step = symbol(library, "sqlite3_step");
	sql.reset = symbol(library, "sqlite3_reset");
	sql.column = symbol(library, "sqlite3_column_int64");
	sql.finalize = symbol(library, "sqlite3_finalize");
	sql.close = symbol(library, "sqlite3_close");
	path_of(path, dir, "lab.db");
	if (sql.open(path, &sql.database) != 0)
		lab_usage("%s: cannot be opened", path);
}

static void sql_run(const char *text)
{
	int error = sql.exec(sql.database, text, NULL, NULL, NULL);

	if (error)
		lab_usage("%s: SQLite error %d", text, error);
}

static void *sql_statement(const char *text)
{
	void *statement;

	if (sql.prepare(sql.database, text, -1, &statement, NULL) != 0)
		lab_usage("%s: cannot be prepared", text);
	return statement;
}

static void sql_end(void *statement)
{
	if (sql.finalize(statement) != 0 || sql.close(sql.database) != 0)
		lab_usage("SQLite does not close");
}

static void sql_insert(void *insert, uint64_t number)
{
	sql.bind(insert, 1, (long long)number);
	if (sql.step(insert) != SQL_DONE || sql.reset(insert) != 0)
		lab_usage("row %llu cannot be inserted", (unsigned long long)number);
}

static void do_commit(struct loop *loop)
{
	void *insert;
	uint64_t begin;

	sql_open(loop->dir);
	sql_run("CREATE TABLE lab (number INTEGER PRIMARY KEY)");
	insert = sql_statement("INSERT INTO lab VALUES (?)");
	begin = lab_now_ns();
	for (uint64_t i = 0; i < loop->count; i++)
		sql_insert(insert, i);
	loop->ns = lab_now_ns() - begin;
	sql_end(insert);
}

static void do_select(struct loop *loop)
{
	void *insert, *query;
	uint64_t begin;

	sql_open(loop->dir);
	sql_run("CREATE TABLE lab (number INTEGER PRIMARY KEY)");
	insert = sql_statement("INSERT INTO lab VALUES (?)");
	sql_run("BEGIN");
	for (uint64_t i = 0; i < ROWS; i++)
		sql_insert(insert, i);
	sql_run("COMMIT");
	sql.finalize(insert);
	query = sql_statement("SELECT number FROM lab WHERE number = ?");
	begin = lab_now_ns();
	for (uint64_t i = 0; i < loop->count; i++) {
		sql.bind(query, 1, (long long)(i % ROWS));
		if (sql.step(query) != SQL_ROW || sql.column(query, 0) != (long long)(i % ROWS))
			lab_usage("row %llu is not there", (unsigned long long)(i % ROWS));
		if (sql.step(query) != SQL_DONE || sql.reset(query) != 0)
			lab_usage("the query does not end");
	}
	loop->ns = lab_now_ns() - begin;
	sql_end(query);
}

/* ---- a prefork server: every worker appends to the log that it has inherited ---- */

static int connected(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0)
		lab_die("connect");
	return fd;
}

/* A request is the number of its line; UINT64_MAX ends the worker. */
static void work(int listening, int log)
{
	for (;;) {
		int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		uint64_t number;

		if (fd < 0 || read(fd, &number, sizeof(number)) != sizeof(number))
			lab_die("request");
		if (number == UINT64_MAX)
			return;
		put_line(log, number, LINE);
		put(fd, (const char *)&number, sizeof(number));
		shut(fd);
	}
}

static void do_prefork(struct loop *loop)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), log;
	uint64_t begin, answer, quit = UINT64_MAX;
	pid_t workers[WORKERS];

	/* abstract, since a path may be too long for a socket */
	snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "fastwrite-lab-%d", (int)getpid());
	if (bind(listening, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(listening, WORKERS) != 0)
		lab_die("listen");
	log = open_append(loop->dir, "log");
	for (int i = 0; i < WORKERS; i++) {
		workers[i] = fork();
		if (workers[i] < 0)
			lab_die("fork");
		if (workers[i] == 0) {
			work(listening, log);
			exit(0);
		}
	}
	begin = lab_now_ns();
	for (uint64_t i = 0; i < loop->count; i++) {
		int fd = connected(&address);

		put(fd, (const char *)&i, sizeof(i));
		if (read(fd, &answer, sizeof(answer)) != sizeof(answer) || answer != i)
			lab_usage("request %llu: no answer", (unsigned long long)i);
		shut(fd);
	}
	loop->ns = lab_now_ns() - begin;
	for (int i = 0; i < WORKERS; i++) {
		int fd = connected(&address);

		put(fd, (const char *)&quit, sizeof(quit));
		shut(fd);
	}
	for (int i = 0; i < WORKERS; i++)
		end_well(workers[i]);
	shut(log);
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"fork",   "fork-staged", "append", "append-beside",
	                                    "files",  "lock",        "window", "select",
	                                    "commit", "prefork",     NULL};
	static void (*const loops[])(struct loop *) = {do_fork,   do_fork_staged, do_append, do_append_beside,
	                                               do_files,  do_lock,        do_window, do_select,
	                                               do_commit, do_prefork};
	struct loop loop = {.writes = 1};

	if (argc == 3 && strcmp(argv[1], "ten") == 0)
		return ten(argv[2]);
	if (argc == 3 && strcmp(argv[1], "beside") == 0)
		return beside(argv[2]);
	if (argc < 4 || argc > 5)
		lab_usage("usage: lab-costs LOOP DIR COUNT [WRITES]");
	loop.dir = argv[2];
	loop.count = lab_number("count", argv[3], 1, 1u << 30);
	if (argc == 5)
		loop.writes = lab_number("writes", argv[4], 1, 1000);
	loops[lab_choice("loop", argv[1], names)](&loop);
	printf("{\"seconds\": %.9f, \"arena\": %s}\n", (double)loop.ns / 1e9, loop.arena ? "true" : "false");
	return 0;
}
