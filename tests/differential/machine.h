// SPDX-License-Identifier: Apache-2.0
/*
 * machine: executes a list of file operations in several processes and notes what each returned.
 *
 * The operations stand in memory that all processes share, and so does the one word that says whose turn it
 * is: at any moment one operation is executed, by one thread of one process.  So the order is the same in
 * every run, and what is noted (no times, no inode numbers, no addresses) must be the same with and without
 * the library.
 *
 * machine.c     lists, main, the turn       processes.c   processes come and go, hand-overs
 * files.c       operations on descriptors   streams.c     stdio            many.c  threads, signals, writers
 * at once generate.c    lists from a seed           compare.c     two trees of files
 */
#ifndef DIFFERENTIAL_MACHINE_H
#define DIFFERENTIAL_MACHINE_H

#include "raw.h"

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

enum {
	SLOTS = 10, /* 8 and 9: descriptors 0 and 45, by dup2 only */
	FILES = 6,  /* f0 to f3, d/f4, d/f5 */
	STREAMS = 3,
	MAPS = 3,
	PROCESSES = 5, /* 0 is the one that lasts */
	THREADS = 3,   /* 0 is the main thread of each process */
	ARGS = 7,
	BUFFER = 1 << 20,
	OPS_MAX = 1 << 16,
	DIRT_MAX = 512,
	TRACE_MAX = 48 << 20,
	ERRNO_BEFORE = 4242,
};

struct op {
	uint16_t kind;
	uint8_t process, thread;
	uint32_t sequence;
	long a[ARGS];
};

/*
 * One per name in operations.  `takes` has a letter per argument:
 *   s slot that is read or asked        w slot that may be written to    t slot that is replaced (closed)
 *   x slot that another program uses    f name of a file, by path        F the same, by another program
 *   k stream that may be written to     m mapping                        n a number
 *   A all streams (no argument)
 */
struct kind {
	const char *name;
	const char *takes;
	void (*run)(const long *a);
};

struct slot {
	int fd;               /* -1: none */
	uint32_t description; /* which open file description, by a number that no other one of the sequence
	                         has */
};

struct process {
	int pid;
	int parent;
	int family; /* changes with exec */
	bool alive;
	struct slot slot[SLOTS];
	struct slot stream[STREAMS]; /* the descriptor behind it */
};

/* Bytes that a process wrote by a description and may not have handed over yet. */
struct dirt {
	int process;
	int family;
	uint32_t description;
	bool orphan; /* its process was killed: some other member of the family answers for it */
	struct identity file;
};

enum asking { ASK_NOTHING, ASK_SETTLE, ASK_END };

struct control {
	uint64_t trace_at, trace_used; /* first: whoever reads the file needs no more */
	uint32_t bell;                 /* futex: rings when anything below changed */
	uint32_t turn;                 /* index of the operation that is due */
	uint32_t ops;
	uint32_t sequence;
	uint32_t failed; /* somebody ended who should not have */

	/* who has to reap whom; -1 = nobody */
	int reaper, dying;
	bool violent; /* it does not end by exit or exec */
	int ending;   /* it ends because the sequence does, for which process 0 waits */

	/* a request from the one whose turn it is to another process */
	int asked;
	enum asking asking;
	bool position; /* what is asked for includes the position of the description */
	struct dirt about;

	bool family_exact; /* members of a family see each other's bytes at once, whatever description */
	bool no_sleep;
	bool killed;           /* somebody died violently since the sequence began */
	struct timespec began; /* the sequence, by the coarse clock */
	uint32_t last_description;
	uint32_t dirts;
	struct dirt dirt[DIRT_MAX];
	struct process process[PROCESSES];
	char directory[PATH_MAX];
	char control_path[PATH_MAX];
	char program[PATH_MAX];
	struct op op[OPS_MAX];
	char trace[TRACE_MAX];
};

extern struct control *control;
extern int me; /* this process in control->process */

/* ---- machine.c ---- */

void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_result(long r); /* with errno */
const char *name_of(long file);
const char *place_of(const char *inside); /* in the directory of the sequence */
void fill(unsigned char *to, size_t n, uint64_t seed);
uint64_t digest(const unsigned char *from, size_t n, uint64_t h);
void unexpected(const char *what) __attribute__((noreturn));
int kind_find(const char *name);
const struct kind *kind_of(const struct op *op);
/* `errno` as it is before every call: success must leave it alone. */
void fresh_errno(void);
/* BUFFER bytes and more, of this thread. */
unsigned char *buffer_here(void);
unsigned char *aligned_here(void); /* to pages */

/* ---- processes.c ---- */

void processes_start(void);
/* Waits until an operation of this process is due; NULL at the end of the list (in process 0 only). */
const struct op *processes_next(void);
void processes_done(void); /* the turn goes on */
void processes_before(const struct op *op);
void processes_after(const struct op *op);
void processes_end_all(void);   /* all but process 0 end */
void processes_resume(int who); /* this program was started by exec */
uint32_t new_description(void);
void op_fork(const long *a);
void op_exit(const long *a);
void op_exec(const long *a);
void op_spawn(const long *a);
void op_program(const long *a);
void op_child(const long *a);

/* ---- files.c ---- */

struct slot *slot_of(long which);
int fd_of(long which);
bool is_direct(int fd);
/* SIGXFSZ of the operation: that it came, and not how often. */
void one_limit_signal(void);
void slots_close_all(void);
void maps_forget(void);
void maps_close_all(void);
struct identity map_identity(long which);
void files_start(void); /* signal handlers */
void write_from_handler(int fd, size_t n, uint64_t seed);

#define FILE_OPERATIONS(OP) \
	OP("open", "tfn", open) \
	OP("creat", "tf", creat) \
	OP("tmpfile", "tn", tmpfile) \
	OP("linktmp", "sf", linktmp) \
	OP("reopen", "stn", reopen) \
	OP("close", "t", close) \
	OP("dup", "st", dup) \
	OP("dup2", "st", dup2) \
	OP("dup3", "stn", dup3) \
	OP("dupfd", "st", dupfd) \
	OP("dupto", "sn", dupto) \
	OP("closerange", "n", closerange) \
	OP("getfl", "s", getfl) \
	OP("setfl", "sn", setfl) \
	OP("setfd", "sn", setfd) \
	OP("write", "wnn", write) \
	OP("burst", "wnnn", burst) \
	OP("scatter", "wnnnn", scatter) \
	OP("pwrite", "wnnn", pwrite) \
	OP("writev", "wnnn", writev) \
	OP("pwritev", "wnnnn", pwritev) \
	OP("pwritev2", "wnnnnn", pwritev2) \
	OP("dwrite", "wnnnn", dwrite) \
	OP("badwrite", "wnn", badwrite) \
	OP("aio", "wnnnn", aio) \
	OP("read", "sn", read) \
	OP("pread", "snn", pread) \
	OP("readv", "snn", readv) \
	OP("preadv", "snnn", preadv) \
	OP("dread", "snnn", dread) \
	OP("lseek", "snn", lseek) \
	OP("whole", "s", whole) \
	OP("holes", "s", holes) \
	OP("ftruncate", "wn", ftruncate) \
	OP("truncate", "fn", truncate) \
	OP("fallocate", "wnnn", fallocate) \
	OP("reserve", "wnn", reserve) \
	OP("fsync", "s", fsync) \
	OP("fdatasync", "s", fdatasync) \
	OP("syncrange", "snnn", syncrange) \
	OP("syncfs", "s", syncfs) \
	OP("fstat", "s", fstat) \
	OP("stat", "f", stat) \
	OP("lstat", "f", lstat) \
	OP("statx", "fn", statx) \
	OP("fstatx", "s", fstatx) \
	OP("pending", "s", pending) \
	OP("rename", "ff", rename) \
	OP("renameat2", "ffn", renameat2) \
	OP("link", "ff", link) \
	OP("unlink", "f", unlink) \
	OP("remove", "f", remove) \
	OP("symlink", "ff", symlink) \
	OP("list", "", list) \
	OP("chmod", "fn", chmod) \
	OP("fchmod", "sn", fchmod) \
	OP("utimens", "fn", utimens) \
	OP("futimens", "sn", futimens) \
	OP("lock", "s", lock) \
	OP("setlk", "snnnn", setlk) \
	OP("getlk", "snnn", getlk) \
	OP("flock", "sn", flock) \
	OP("lockf", "snn", lockf) \
	OP("map", "sn", map) \
	OP("mmap", "msnn", mmap) \
	OP("mread", "mnn", mread) \
	OP("mwrite", "mnnn", mwrite) \
	OP("msync", "mn", msync) \
	OP("munmap", "m", munmap) \
	OP("copy", "swn", copy) \
	OP("sendfile", "swn", sendfile) \
	OP("splice", "swn", splice) \
	OP("advise", "snnn", advise) \
	OP("rlimit", "n", rlimit) \
	OP("make", "fnn", make) \
	OP("sleep", "n", sleep)

/* ---- streams.c ---- */

void streams_close_all(void);
void streams_forget(void); /* after exec: the descriptors are left, the streams are gone */
void streams_after_fork(void);
int stream_fd(long which);

#define STREAM_OPERATIONS(OP) \
	OP("stream", "fnnn", stream) \
	OP("fopen", "kfn", fopen) \
	OP("fdopen", "ksn", fdopen) \
	OP("freopen", "kfn", freopen) \
	OP("fclose", "k", fclose) \
	OP("fwrite", "knn", fwrite) \
	OP("fprintf", "knn", fprintf) \
	OP("lines", "knn", lines) \
	OP("fwprintf", "knn", fwprintf) \
	OP("fputc", "knn", fputc) \
	OP("fread", "kn", fread) \
	OP("fgets", "k", fgets) \
	OP("fseek", "knn", fseek) \
	OP("ftell", "k", ftell) \
	OP("fflush", "k", fflush) \
	OP("flushall", "A", flushall) \
	OP("setvbuf", "knn", setvbuf) \
	OP("dprintf", "wnn", dprintf)

/* ---- many.c ---- */

void threads_forget(void);
void threads_run(const struct op *op); /* in another thread of this process, which we wait for */

#define MANY_OPERATIONS(OP) \
	OP("sigwrite", "wnn", sigwrite) \
	OP("storm", "wnnnn", storm) \
	OP("race", "wnnnn", race) \
	OP("writers", "nnnnn", writers)

#define PROCESS_OPERATIONS(OP) \
	OP("fork", "n", fork) \
	OP("exit", "Ann", exit) \
	OP("exec", "", exec) \
	OP("spawn", "xnnn", spawn) \
	OP("program", "F", program) \
	OP("child", "wnnn", child)

#define DECLARE(text, takes, name) void op_##name(const long *a);
FILE_OPERATIONS(DECLARE)
STREAM_OPERATIONS(DECLARE)
MANY_OPERATIONS(DECLARE)
#undef DECLARE

/* ---- the other jobs of the program ---- */

int generate(int argc, char **argv);
int compare(const char *one, const char *other);
int helper(int argc, char **argv);

#endif
