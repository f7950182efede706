// SPDX-License-Identifier: Apache-2.0
/*
 * Wild pointers: a call that gets one ends as it does natively, with the same result, errno or signal.
 *
 * `calls` has a line for each hooked symbol that takes pointers, and for each system call by number.  Each
 * pointer of a line is replaced by each kind of wild one.  A worker, a program of its own, goes from one case
 * to the next until it dies, and another one goes on: once without the library, and once as this program
 * itself is run.  Both must agree.
 */
#include "hook_test.h"

#include <aio.h>
#include <ftw.h>
#include <linux/aio_abi.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <utmp.h>
#include <wordexp.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#endif
#ifndef SYS_removexattrat
#define SYS_removexattrat 466
#endif
#ifndef SYS_file_setattr
#define SYS_file_setattr 469
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

/* ---- the calls ---- */

/* What a call returns. */
enum {
	INT,    /* -1 and errno */
	LONG,   /* the same */
	NEW_FD, /* the same; which one it is does not matter */
	PID,    /* the same */
	ERROR,  /* an error's number, or its negative */
	PTR,    /* NULL and errno */
	NOTHING,
	RETURNS = 15,
	NO_ODD = 16, /* readable zeros would do harm */
	LAST = 32,   /* the worker is no more what it was */
	GAP = 64,    /* a known gap: where the bytes are staged a wild buffer is a segmentation fault */
};

/* Arguments that the worker fills in. */
enum {
	FD = 0x7e570000, /* of the file "a" */
	SOCKET,
	PROGRAM_FD, /* of /bin/true */
	AIO,        /* a context of the kernel's asynchronous I/O */
	CALLBACK,
	STACK,
	VA_LIST,
	ENVIRON,
	/* pointers, to be replaced by wild ones */
	PATH,
	NEW,
	NOWHERE,
	TEMPLATE,
	SUFFIXED,
	MODE,
	ROOM,
	DATA,
	IOV,
	IOV_BASE, /* good, but the second of its three buffers is the wild one; so are the following */
	LOCK,
	UNLOCK,
	OFFSET,
	HOW,
	MSG,
	MSG_IOV,
	MSG_CONTROL,
	MMSG,
	MMSG_IOV,
	MMSG_CONTROL,
	PROGRAM,
	ARGV,
	ARGV_ENTRY,
	ENV,
	ENV_ENTRY,
	COMMAND,
	CB,
	CBS,
	CBS_ENTRY,
	IOCBS,
	IOCBS_ENTRY,
	WORDS,
	CLONE_ARGS,
	PATHS,
	PATHS_ENTRY,
};
static bool is_pointer(long token) { return token >= PATH && token <= PATHS_ENTRY; }

enum { ARGS = 7 };
struct call {
	const char *name;
	long number; /* of a system call; -1: a function */
	int how;
	int count;
	long args[ARGS];
};
#define COUNT(...) (sizeof((long[]){__VA_ARGS__}) / sizeof(long))
#define CALL(name, how, ...) {#name, -1, how, COUNT(__VA_ARGS__), {__VA_ARGS__}},
#define NUMBER(name, how, ...) {"by number: " #name, SYS_##name, how, COUNT(__VA_ARGS__), {__VA_ARGS__}},

/* (older headers lack it) */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define AT AT_FDCWD
/* clang-format off */
static const struct call calls[] = {
	CALL(open, NEW_FD, PATH, O_RDONLY)
	CALL(open, NEW_FD, PATH, O_WRONLY)
	CALL(open, NEW_FD, PATH, O_WRONLY | O_CREAT | O_TRUNC, 0644)
	CALL(open64, NEW_FD, PATH, O_WRONLY | O_TRUNC)
	CALL(openat, NEW_FD, AT, PATH, O_WRONLY | O_APPEND)
	CALL(openat64, NEW_FD, AT, PATH, O_WRONLY | O_TRUNC)
	CALL(creat, NEW_FD, PATH, 0644)
	CALL(creat64, NEW_FD, PATH, 0644)
	CALL(__open_2, NEW_FD, PATH, O_WRONLY | O_TRUNC)
	CALL(__open64_2, NEW_FD, PATH, O_WRONLY)
	CALL(__openat_2, NEW_FD, AT, PATH, O_WRONLY | O_TRUNC)
	CALL(__openat64_2, NEW_FD, AT, PATH, O_WRONLY)
	CALL(__open, NEW_FD, PATH, O_WRONLY | O_TRUNC)
	CALL(__open64, NEW_FD, PATH, O_WRONLY | O_TRUNC)
	CALL(mkstemp, NEW_FD, TEMPLATE)
	CALL(mkstemp64, NEW_FD, TEMPLATE)
	CALL(mkostemp, NEW_FD, TEMPLATE, O_APPEND)
	CALL(mkostemp64, NEW_FD, TEMPLATE, O_APPEND)
	CALL(mkstemps, NEW_FD, SUFFIXED, 2)
	CALL(mkstemps64, NEW_FD, SUFFIXED, 2)
	CALL(mkostemps, NEW_FD, SUFFIXED, 2, O_APPEND)
	CALL(mkostemps64, NEW_FD, SUFFIXED, 2, O_APPEND)
	CALL(fcntl, INT, FD, F_SETLK, LOCK)
	CALL(fcntl, INT, FD, F_SETLK, UNLOCK)
	CALL(fcntl, INT, FD, F_SETLKW, LOCK)
	CALL(fcntl, INT, FD, F_GETLK, LOCK)
	CALL(fcntl, INT, FD, F_OFD_SETLK, LOCK)
	CALL(fcntl, INT, FD, F_SETOWN_EX, ROOM)
	CALL(fcntl, INT, FD, F_GETOWN_EX, ROOM)
	CALL(fcntl64, INT, FD, F_SETLK, LOCK)
	CALL(__fcntl, INT, FD, F_SETLK, UNLOCK)
	CALL(openat2, NEW_FD, AT, PATH, HOW, sizeof(struct open_how))
	CALL(open_by_handle_at, NEW_FD, AT, ROOM, O_RDONLY)
	CALL(open_by_handle_at, NEW_FD, AT, ROOM, O_WRONLY | O_TRUNC)
	CALL(shm_open, NEW_FD, NOWHERE, O_RDWR, 0600)
	CALL(shm_unlink, INT, NOWHERE)
	CALL(sendmsg, LONG, SOCKET, MSG, MSG_DONTWAIT)
	CALL(sendmsg, LONG, SOCKET, MSG_IOV, MSG_DONTWAIT)
	CALL(sendmsg, LONG, SOCKET, MSG_CONTROL, MSG_DONTWAIT)
	CALL(sendmmsg, INT, SOCKET, MMSG, 2, MSG_DONTWAIT)
	CALL(sendmmsg, INT, SOCKET, MMSG_IOV, 2, MSG_DONTWAIT)
	CALL(sendmmsg, INT, SOCKET, MMSG_CONTROL, 2, MSG_DONTWAIT)
	CALL(recvmsg, LONG, SOCKET, MSG, MSG_DONTWAIT)
	CALL(recvmsg, LONG, SOCKET, MSG_IOV, MSG_DONTWAIT)
	CALL(recvmsg, LONG, SOCKET, MSG_CONTROL, MSG_DONTWAIT)
	CALL(recvmmsg, INT, SOCKET, MMSG, 2, MSG_DONTWAIT, ROOM)
	CALL(recvmmsg, INT, SOCKET, MMSG_CONTROL, 2, MSG_DONTWAIT, 0)
	CALL(write, LONG | GAP, FD, DATA, RECORD)
	CALL(__write, LONG | GAP, FD, DATA, RECORD)
	CALL(pwrite, LONG | GAP, FD, DATA, RECORD, 0)
	CALL(pwrite64, LONG | GAP, FD, DATA, RECORD, 0)
	CALL(__pwrite64, LONG | GAP, FD, DATA, RECORD, 0)
	CALL(writev, LONG, FD, IOV, 3)
	CALL(writev, LONG, FD, IOV_BASE, 3)
	CALL(pwritev, LONG, FD, IOV, 3, 0)
	CALL(pwritev, LONG, FD, IOV_BASE, 3, 0)
	CALL(pwritev64, LONG, FD, IOV, 3, 0)
	CALL(pwritev64, LONG, FD, IOV_BASE, 3, 0)
	CALL(pwritev2, LONG, FD, IOV, 3, -1, 0)
	CALL(pwritev2, LONG, FD, IOV_BASE, 3, 0, 0)
	CALL(pwritev2, LONG, FD, IOV_BASE, 3, 0, RWF_DSYNC)
	CALL(pwritev64v2, LONG, FD, IOV, 3, 0, 0)
	CALL(pwritev64v2, LONG, FD, IOV_BASE, 3, -1, 0)
	CALL(read, LONG, FD, ROOM, RECORD)
	CALL(__read, LONG, FD, ROOM, RECORD)
	CALL(__read_chk, LONG, FD, ROOM, RECORD, RECORD)
	CALL(pread, LONG, FD, ROOM, RECORD, 0)
	CALL(pread64, LONG, FD, ROOM, RECORD, 0)
	CALL(__pread64, LONG, FD, ROOM, RECORD, 0)
	CALL(__pread_chk, LONG, FD, ROOM, RECORD, 0, RECORD)
	CALL(__pread64_chk, LONG, FD, ROOM, RECORD, 0, RECORD)
	CALL(readv, LONG, FD, IOV, 3)
	CALL(readv, LONG, FD, IOV_BASE, 3)
	CALL(preadv, LONG, FD, IOV, 3, 0)
	CALL(preadv, LONG, FD, IOV_BASE, 3, 0)
	CALL(preadv64, LONG, FD, IOV, 3, 0)
	CALL(preadv64, LONG, FD, IOV_BASE, 3, 0)
	CALL(preadv2, LONG, FD, IOV, 3, 0, 0)
	CALL(preadv2, LONG, FD, IOV_BASE, 3, 0, 0)
	CALL(preadv64v2, LONG, FD, IOV, 3, 0, 0)
	CALL(preadv64v2, LONG, FD, IOV_BASE, 3, 0, 0)
	CALL(msync, INT, ROOM, 4096, MS_SYNC)
	CALL(mprotect, INT, ROOM, 4096, PROT_READ | PROT_WRITE)
	CALL(pkey_mprotect, INT, ROOM, 4096, PROT_READ | PROT_WRITE, -1)
	CALL(truncate, INT, PATH, 10)
	CALL(truncate64, INT, PATH, 10)
	CALL(setrlimit, INT | NO_ODD, RLIMIT_FSIZE, ROOM)
	CALL(setrlimit64, INT | NO_ODD, RLIMIT_FSIZE, ROOM)
	CALL(prlimit, INT | NO_ODD, 0, RLIMIT_FSIZE, ROOM, 0)
	CALL(prlimit64, INT | NO_ODD, 0, RLIMIT_FSIZE, 0, ROOM)
	CALL(stat, INT, PATH, ROOM)
	CALL(stat64, INT, PATH, ROOM)
	CALL(lstat, INT, PATH, ROOM)
	CALL(lstat64, INT, PATH, ROOM)
	CALL(fstat, INT, FD, ROOM)
	CALL(fstat64, INT, FD, ROOM)
	CALL(fstatat, INT, AT, PATH, ROOM, 0)
	CALL(fstatat64, INT, AT, PATH, ROOM, 0)
	CALL(__xstat, INT, 1, PATH, ROOM)
	CALL(__xstat64, INT, 1, PATH, ROOM)
	CALL(__lxstat, INT, 1, PATH, ROOM)
	CALL(__lxstat64, INT, 1, PATH, ROOM)
	CALL(__fxstat, INT, 1, FD, ROOM)
	CALL(__fxstat64, INT, 1, FD, ROOM)
	CALL(__fxstatat, INT, 1, AT, PATH, ROOM, 0)
	CALL(__fxstatat64, INT, 1, AT, PATH, ROOM, 0)
	CALL(statx, INT, AT, PATH, 0, 0x7ff, ROOM)
	CALL(ftw, INT, PATH, CALLBACK, 5)
	CALL(ftw64, INT, PATH, CALLBACK, 5)
	CALL(nftw, INT, PATH, CALLBACK, 5, 0)
	CALL(nftw64, INT, PATH, CALLBACK, 5, 0)
	CALL(fts_open, PTR, PATHS, 0x10, 0)
	CALL(fts_open, PTR, PATHS_ENTRY, 0x10, 0)
	CALL(fts64_open, PTR, PATHS, 0x10, 0)
	CALL(fts64_open, PTR, PATHS_ENTRY, 0x10, 0)
	CALL(fts_read, PTR, ROOM)
	CALL(fts64_read, PTR, ROOM)
	CALL(fts_children, PTR | NO_ODD, ROOM, 0)
	CALL(fts64_children, PTR | NO_ODD, ROOM, 0)
	CALL(rename, INT, PATH, NEW)
	CALL(renameat, INT, AT, PATH, AT, NEW)
	CALL(renameat2, INT, AT, PATH, AT, NEW, 0)
	CALL(link, INT, PATH, NEW)
	CALL(linkat, INT, AT, PATH, AT, NEW, 0)
	CALL(unlink, INT, PATH)
	CALL(unlinkat, INT, AT, PATH, 0)
	CALL(unlinkat, INT, AT, PATH, AT_REMOVEDIR)
	CALL(remove, INT, PATH)
	CALL(rmdir, INT, PATH)
	CALL(chmod, INT, PATH, 0600)
	CALL(fchmodat, INT, AT, PATH, 0600, 0)
	CALL(fchmodat, INT, FD, PATH, 0600, 0)
	CALL(lchmod, INT, PATH, 0600)
	CALL(chown, INT, PATH, -1, -1)
	CALL(lchown, INT, PATH, -1, -1)
	CALL(fchownat, INT, AT, PATH, -1, -1, 0)
	CALL(fchownat, INT, FD, PATH, -1, -1, AT_EMPTY_PATH)
	CALL(futimens, INT, FD, ROOM)
	CALL(utimensat, INT, AT, PATH, ROOM, 0)
	CALL(utimensat, INT, FD, PATH, 0, 0)
	CALL(futimes, INT, FD, ROOM)
	CALL(utimes, INT, PATH, ROOM)
	CALL(lutimes, INT, PATH, ROOM)
	CALL(futimesat, INT, AT, PATH, ROOM)
	CALL(utime, INT, PATH, ROOM)
	CALL(fsetxattr, INT, FD, DATA, ROOM, 4, 0)
	CALL(setxattr, INT, PATH, DATA, ROOM, 4, 0)
	CALL(lsetxattr, INT, PATH, DATA, ROOM, 4, 0)
	CALL(fremovexattr, INT, FD, DATA)
	CALL(removexattr, INT, PATH, DATA)
	CALL(lremovexattr, INT, PATH, DATA)
	CALL(sendfile, LONG, SOCKET, FD, OFFSET, 10)
	CALL(sendfile64, LONG, SOCKET, FD, OFFSET, 10)
	CALL(splice, LONG, FD, OFFSET, SOCKET, 0, 10, 0)
	CALL(copy_file_range, LONG, FD, OFFSET, FD, OFFSET, 10, 0)
	CALL(ioctl, INT, FD, FIONREAD, ROOM)
	CALL(ioctl, INT, FD, _IOWR('f', 15, long[5]), ROOM)
	CALL(ioctl, INT, FD, FS_IOC_FIEMAP, ROOM)
	CALL(ioctl, INT, FD, _IOWR('X', 129, long[9]), ROOM)
	CALL(ioctl, INT, FD, 0x4C0A /* LOOP_CONFIGURE */, ROOM)
	CALL(aio_read, INT, CB)
	CALL(aio_read64, INT, CB)
	CALL(aio_write, INT, CB)
	CALL(aio_write64, INT, CB)
	CALL(aio_fsync, INT, O_SYNC, CB)
	CALL(aio_fsync, INT, 4242, CB)
	CALL(aio_fsync64, INT, O_SYNC, CB)
	CALL(aio_fsync64, INT, 4242, CB)
	CALL(lio_listio, INT, LIO_WAIT, CBS, 1, 0)
	CALL(lio_listio, INT, LIO_WAIT, CBS_ENTRY, 2, 0)
	CALL(lio_listio, INT, 4242, CBS, 1, 0)
	CALL(lio_listio64, INT, LIO_WAIT, CBS, 1, 0)
	CALL(lio_listio64, INT, 4242, CBS, 1, 0)
	CALL(io_submit, ERROR, AIO, 1, IOCBS)
	CALL(io_submit, ERROR, AIO, 2, IOCBS_ENTRY)
	CALL(io_uring_setup, ERROR | LAST, 0, ROOM)
	CALL(io_uring_queue_init, ERROR | LAST, 0, ROOM, 0)
	CALL(io_uring_queue_init_params, ERROR | LAST, 0, ROOM, ROOM)
	CALL(io_uring_queue_init_mem, ERROR | LAST, 0, ROOM, ROOM, ROOM, 4096)
	CALL(io_uring_queue_mmap, ERROR | LAST, -1, ROOM, ROOM)
	CALL(fopen, PTR, PATH, MODE)
	CALL(fopen64, PTR, PATH, MODE)
	CALL(_IO_fopen, PTR, PATH, MODE)
	CALL(freopen, PTR, PATH, MODE, 0)
	CALL(freopen64, PTR, PATH, MODE, 0)
	CALL(fdopen, PTR, FD, MODE)
	CALL(_IO_fdopen, PTR, FD, MODE)
	CALL(setmntent, PTR, PATH, MODE)
	CALL(__setmntent, PTR, PATH, MODE)
	CALL(fclose, INT | NO_ODD, ROOM)
	CALL(_IO_fclose, INT | NO_ODD, ROOM)
	CALL(dprintf, INT, FD, DATA)
	CALL(__dprintf_chk, INT, FD, 1, DATA)
	CALL(vdprintf, INT, FD, DATA, VA_LIST)
	CALL(__vdprintf_chk, INT, FD, 1, DATA, VA_LIST)
	CALL(execve, INT, PROGRAM, ARGV, ENV)
	CALL(execve, INT, PROGRAM, ARGV_ENTRY, ENV_ENTRY)
	CALL(execv, INT, PROGRAM, ARGV)
	CALL(execv, INT, PROGRAM, ARGV_ENTRY)
	CALL(execvp, INT, PROGRAM, ARGV)
	CALL(execvp, INT, NOWHERE, ARGV_ENTRY)
	CALL(execvpe, INT, PROGRAM, ARGV, ENV)
	CALL(execvpe, INT, PROGRAM, ARGV_ENTRY, ENV_ENTRY)
	CALL(fexecve, INT, PROGRAM_FD, ARGV, ENV)
	CALL(fexecve, INT, PROGRAM_FD, ARGV_ENTRY, ENV_ENTRY)
	CALL(execveat, INT, AT, PROGRAM, ARGV, ENV, 0)
	CALL(execveat, INT, AT, PROGRAM, ARGV_ENTRY, ENV_ENTRY, 0)
	CALL(execl, INT, PROGRAM, COMMAND, 0)
	CALL(execlp, INT, PROGRAM, COMMAND, 0)
	CALL(execle, INT, PROGRAM, COMMAND, 0, ENV)
	CALL(execle, INT, PROGRAM, COMMAND, 0, ENV_ENTRY)
	CALL(posix_spawn, ERROR, ROOM, PROGRAM, 0, 0, ARGV, ENV)
	CALL(posix_spawn, ERROR, 0, PROGRAM, ROOM, ROOM, ARGV_ENTRY, ENV_ENTRY)
	CALL(posix_spawnp, ERROR, ROOM, PROGRAM, 0, 0, ARGV, ENV)
	CALL(posix_spawnp, ERROR, 0, PROGRAM, ROOM, ROOM, ARGV_ENTRY, ENV_ENTRY)
	CALL(pidfd_spawn, ERROR, ROOM, PROGRAM, 0, 0, ARGV, ENV)
	CALL(pidfd_spawnp, ERROR, ROOM, PROGRAM, 0, 0, ARGV_ENTRY, ENV_ENTRY)
	CALL(sigaction, INT | NO_ODD, SIGUSR1, ROOM, ROOM)
	CALL(__sigaction, INT | NO_ODD, SIGUSR1, ROOM, ROOM)
	CALL(system, INT, COMMAND)
	CALL(popen, PTR, COMMAND, MODE)
	CALL(_IO_popen, PTR, COMMAND, MODE)
	CALL(posix_spawn_file_actions_init, ERROR, ROOM)
	CALL(posix_spawn_file_actions_destroy, ERROR, ROOM)
	CALL(posix_spawn_file_actions_adddup2, ERROR, ROOM, FD, 9)
	CALL(clone, PID | LAST, CALLBACK, STACK, SIGCHLD | CLONE_PARENT_SETTID, 0, ROOM, 0, ROOM)
	CALL(__clone, PID | LAST, CALLBACK, ROOM, SIGCHLD, 0, 0, 0, 0)
	CALL(capset, INT, ROOM, ROOM)
	CALL(socketpair, INT, AF_UNIX, SOCK_STREAM, 0, ROOM)
	CALL(accept, INT, SOCKET, ROOM, ROOM)
	CALL(accept4, INT, SOCKET, ROOM, ROOM, 0)
	CALL(pipe, INT, ROOM)
	CALL(pipe2, INT, ROOM, O_CLOEXEC)
	CALL(setgroups, INT, 2, ROOM)
	CALL(initgroups, INT, NOWHERE, 0)
	CALL(umount, INT, NOWHERE)
	CALL(umount2, INT, NOWHERE, 0)
	CALL(mount, INT, NOWHERE, NOWHERE, NOWHERE, 0, ROOM)
	CALL(mount_setattr, INT, AT, NOWHERE, 0, ROOM, 32)
	CALL(swapon, INT, NOWHERE, 0)
	CALL(forkpty, PID | LAST, ROOM, ROOM, 0, 0)
	CALL(wordexp, ERROR, WORDS, ROOM, 0)
	CALL(backtrace_symbols_fd, NOTHING, ROOM, 1, FD)
	CALL(__backtrace_symbols_fd, NOTHING, ROOM, 1, FD)
	CALL(pututline, PTR, ROOM)
	CALL(pututxline, PTR, ROOM)
	CALL(updwtmp, NOTHING, PATH, ROOM)
	CALL(updwtmpx, NOTHING, PATH, ROOM)
	CALL(login, NOTHING | NO_ODD, ROOM)
	CALL(logout, INT | NO_ODD, DATA)
	CALL(logwtmp, NOTHING | NO_ODD, DATA, DATA, DATA)
	CALL(pthread_cancel, ERROR, ROOM)
	CALL(longjmp, NOTHING | NO_ODD, ROOM, 1)
	CALL(_longjmp, NOTHING | NO_ODD, ROOM, 1)
	CALL(siglongjmp, NOTHING | NO_ODD, ROOM, 1)
	CALL(__longjmp_chk, NOTHING | NO_ODD, ROOM, 1)
	CALL(setcontext, INT | NO_ODD, ROOM)

	NUMBER(openat, NEW_FD, AT, PATH, O_WRONLY | O_TRUNC)
	NUMBER(openat, NEW_FD, AT, PATH, O_WRONLY)
	NUMBER(openat2, NEW_FD, AT, PATH, HOW, sizeof(struct open_how))
	NUMBER(open_by_handle_at, NEW_FD, AT, ROOM, O_WRONLY | O_TRUNC)
	NUMBER(fcntl, INT, FD, F_SETLK, LOCK)
	NUMBER(fcntl, INT, FD, F_SETLK, UNLOCK)
	NUMBER(sendmsg, LONG, SOCKET, MSG, MSG_DONTWAIT)
	NUMBER(sendmsg, LONG, SOCKET, MSG_CONTROL, MSG_DONTWAIT)
	NUMBER(sendmmsg, INT, SOCKET, MMSG, 2, MSG_DONTWAIT)
	NUMBER(sendmmsg, INT, SOCKET, MMSG_CONTROL, 2, MSG_DONTWAIT)
	NUMBER(recvmsg, LONG, SOCKET, MSG, MSG_DONTWAIT)
	NUMBER(recvmmsg, INT, SOCKET, MMSG, 2, MSG_DONTWAIT, 0)
	NUMBER(write, LONG | GAP, FD, DATA, RECORD)
	NUMBER(pwrite64, LONG | GAP, FD, DATA, RECORD, 0)
	NUMBER(writev, LONG, FD, IOV, 3)
	NUMBER(writev, LONG, FD, IOV_BASE, 3)
	NUMBER(pwritev, LONG, FD, IOV, 3, 0)
	NUMBER(pwritev, LONG, FD, IOV_BASE, 3, 0)
	NUMBER(pwritev2, LONG, FD, IOV, 3, 0, 0, 0)
	NUMBER(pwritev2, LONG, FD, IOV_BASE, 3, 0, 0, 0)
	NUMBER(read, LONG, FD, ROOM, RECORD)
	NUMBER(pread64, LONG, FD, ROOM, RECORD, 0)
	NUMBER(readv, LONG, FD, IOV, 3)
	NUMBER(preadv, LONG, FD, IOV, 3, 0)
	NUMBER(preadv2, LONG, FD, IOV_BASE, 3, 0, 0, 0)
	NUMBER(sendfile, LONG, SOCKET, FD, OFFSET, 10)
	NUMBER(splice, LONG, FD, OFFSET, SOCKET, 0, 10, 0)
	NUMBER(copy_file_range, LONG, FD, OFFSET, FD, OFFSET, 10, 0)
	NUMBER(ioctl, INT, FD, _IOWR('f', 15, long[5]), ROOM)
	NUMBER(ioctl, INT, FD, FS_IOC_FIEMAP, ROOM)
	NUMBER(io_submit, LONG, AIO, 1, IOCBS)
	NUMBER(io_submit, LONG, AIO, 2, IOCBS_ENTRY)
	NUMBER(io_uring_setup, NEW_FD | LAST, 0, ROOM)
	NUMBER(truncate, INT, PATH, 10)
	NUMBER(fchmodat, INT, AT, PATH, 0600)
	NUMBER(fchmodat2, INT, FD, PATH, 0600, AT_EMPTY_PATH)
	NUMBER(fchownat, INT, FD, PATH, -1, -1, AT_EMPTY_PATH)
	NUMBER(utimensat, INT, FD, PATH, ROOM, 0)
	NUMBER(setxattr, INT, PATH, DATA, ROOM, 4, 0)
	NUMBER(lsetxattr, INT, PATH, DATA, ROOM, 4, 0)
	NUMBER(fsetxattr, INT, FD, DATA, ROOM, 4, 0)
	NUMBER(setxattrat, INT, FD, PATH, AT_EMPTY_PATH, DATA, ROOM, 16)
	NUMBER(removexattr, INT, PATH, DATA)
	NUMBER(lremovexattr, INT, PATH, DATA)
	NUMBER(fremovexattr, INT, FD, DATA)
	NUMBER(removexattrat, INT, FD, PATH, AT_EMPTY_PATH, DATA)
	NUMBER(file_setattr, INT, FD, PATH, ROOM, 24, AT_EMPTY_PATH)
	NUMBER(swapon, INT, NOWHERE, 0)
	NUMBER(mprotect, INT, ROOM, 4096, PROT_READ | PROT_WRITE)
	NUMBER(pkey_mprotect, INT, ROOM, 4096, PROT_READ | PROT_WRITE, -1)
	NUMBER(setgroups, INT, 2, ROOM)
	NUMBER(cachestat, INT, FD, ROOM, ROOM, 0)
	NUMBER(setrlimit, INT | NO_ODD, RLIMIT_FSIZE, ROOM)
	NUMBER(prlimit64, INT | NO_ODD, 0, RLIMIT_FSIZE, ROOM, ROOM)
	NUMBER(fstat, INT, FD, ROOM)
	NUMBER(newfstatat, INT, AT, PATH, ROOM, 0)
	NUMBER(statx, INT, AT, PATH, 0, 0x7ff, ROOM)
	NUMBER(renameat2, INT, AT, PATH, AT, NEW, 0)
	NUMBER(linkat, INT, AT, PATH, AT, NEW, 0)
	NUMBER(unlinkat, INT, AT, PATH, 0)
	NUMBER(execve, INT, PROGRAM, ARGV, ENV)
	NUMBER(execve, INT, PROGRAM, ARGV_ENTRY, ENV_ENTRY)
	NUMBER(execveat, INT, AT, PROGRAM, ARGV, ENV_ENTRY, 0)
	NUMBER(clone, PID | LAST, SIGCHLD | CLONE_PARENT_SETTID, 0, ROOM, ROOM, 0)
	NUMBER(clone3, PID | LAST, CLONE_ARGS, sizeof(struct clone_args))
	NUMBER(capset, INT, ROOM, ROOM)
	NUMBER(rt_sigaction, INT | NO_ODD, SIGUSR1, ROOM, ROOM, 8)
	NUMBER(mount, INT, NOWHERE, NOWHERE, NOWHERE, 0, ROOM)
	NUMBER(umount2, INT, NOWHERE, 0)
	NUMBER(mount_setattr, INT, AT, NOWHERE, 0, ROOM, 32)
#ifdef SYS_open
	NUMBER(open, NEW_FD, PATH, O_WRONLY | O_TRUNC)
	NUMBER(creat, NEW_FD, PATH, 0644)
	NUMBER(stat, INT, PATH, ROOM)
	NUMBER(lstat, INT, PATH, ROOM)
	NUMBER(rename, INT, PATH, NEW)
	NUMBER(renameat, INT, AT, PATH, AT, NEW)
	NUMBER(link, INT, PATH, NEW)
	NUMBER(unlink, INT, PATH)
	NUMBER(rmdir, INT, PATH)
	NUMBER(chmod, INT, PATH, 0600)
	NUMBER(chown, INT, PATH, -1, -1)
	NUMBER(lchown, INT, PATH, -1, -1)
	NUMBER(utime, INT, PATH, ROOM)
	NUMBER(utimes, INT, PATH, ROOM)
	NUMBER(futimesat, INT, FD, PATH, ROOM)
#endif
};
/* clang-format on */
enum { CALLS = sizeof calls / sizeof *calls };

/* Hooked, but nothing in memory is read or written for the caller. */
static const char without_pointers[] =
	" dup dup2 dup3 __dup2 fanotify_init pidfd_getfd close close_range closefrom __close"
	" lseek lseek64 __lseek llseek fsync fdatasync sync syncfs sync_file_range"
	" ftruncate ftruncate64 fallocate fallocate64 posix_fallocate posix_fallocate64"
	" fchmod fchown mmap mmap64 flock lockf lockf64 tmpfile tmpfile64 syscall"
	" _Fork __register_atfork prctl vfork __vfork _exit _Exit quick_exit unshare setns login_tty daemon ulimit vlimit"
	" socket epoll_create epoll_create1 eventfd setuid seteuid setreuid setresuid setgid setegid setregid setresgid"
	" setfsuid setfsgid signal bsd_signal ssignal siginterrupt sysv_signal __sysv_signal sigset"
	" pthread_setcanceltype ";

/* ---- wild pointers ---- */

enum kind { IS_NULL, IS_ONE, UNMAPPED, NO_ACCESS, CUT_SHORT, KERNEL, ODD, KINDS };
static const char *const kinds[KINDS] = {
	"NULL",
	"1",
	"an unmapped page",
	"a page without access",
	"8 bytes before an unmapped page",
	"an address of the kernel",
	"an odd address of zeros",
};

/* Far from what the kernel chooses by itself: nobody else's mapping comes to lie there. */
static char *const pages = (char *)(1ul << 37);
enum { PAGE = 65536 }; /* of any machine */

static void make_pages(void)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;

	assert_true(mmap(pages, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == pages);
	assert_true(mmap(pages + 2 * PAGE, PAGE, PROT_NONE, flags, -1, 0) == pages + 2 * PAGE);
	assert_true(mmap(pages + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == pages + 4 * PAGE);
}

static void *wild(enum kind kind)
{
	switch (kind) {
	case IS_ONE: return (void *)1;
	case UNMAPPED: return pages + PAGE + 64;
	case NO_ACCESS: return pages + 2 * PAGE + 64;
	case CUT_SHORT: return memset(pages + PAGE - 8, 'a', 8);
	case KERNEL: return (void *)0xffff800000000000;
	case ODD: return memset(pages + 4 * PAGE, 0, PAGE) + 1;
	default: return NULL;
	}
}

/* ---- a worker ---- */

static struct {
	int fd, sockets[2], program;
	aio_context_t context;
	bool staged;
} world;

static int callback(void) { return 0; }

/* One of the three buffers is `bad`, unless that is NULL and not wanted. */
static void fill_vector(struct iovec *iov, void *bad, bool wanted)
{
	static char buffers[3][16];

	for (int i = 0; i < 3; i++)
		iov[i] = (struct iovec){.iov_base = buffers[i], .iov_len = 10};
	if (wanted)
		iov[1].iov_base = bad;
}

static void fill_message(struct msghdr *m, void *bad, bool in_vector, bool in_control)
{
	static struct iovec iov[3];

	fill_vector(iov, bad, in_vector);
	*m = (struct msghdr){.msg_iov = iov, .msg_iovlen = 3};
	if (in_control) {
		m->msg_control = bad;
		m->msg_controllen = CMSG_SPACE(sizeof(int));
	}
}

/* What stands for `token`: good, except for the wild one inside. */
static void *good(long token, void *bad)
{
	static char room[PAGE] __attribute__((aligned(16))), stack[4 * PAGE] __attribute__((aligned(16)));
	static char text[RECORD + 1], template[16], data[16];
	static struct iovec iov[3];
	static struct flock lock;
	static off_t offset;
	static struct open_how how;
	static struct msghdr message;
	static struct mmsghdr messages[2];
	static char *list[4];
	static struct aiocb cb;
	static struct aiocb *cbs[2];
	static struct iocb iocb;
	static struct iocb *iocbs[2];
	static struct clone_args clone;

	switch (token) {
	case CALLBACK: return callback;
	case STACK: return stack + sizeof stack - 64;
	case VA_LIST:
	case ROOM: return memset(room, 0, sizeof room);
	case PATH: return "a";
	case NEW: return "b";
	case NOWHERE: return "nowhere";
	case TEMPLATE: return strcpy(template, "tXXXXXX");
	case SUFFIXED: return strcpy(template, "tXXXXXX.s");
	case MODE: return "r";
	case DATA: record_fill(text, 1); return text;
	case IOV:
	case IOV_BASE: fill_vector(iov, bad, token == IOV_BASE); return iov;
	case LOCK:
	case UNLOCK: lock = (struct flock){.l_type = token == LOCK ? F_WRLCK : F_UNLCK}; return &lock;
	case OFFSET: offset = 0; return &offset;
	case HOW: how = (struct open_how){.flags = O_RDWR | O_TRUNC}; return &how;
	case MSG:
	case MSG_IOV:
	case MSG_CONTROL:
		fill_message(&message, bad, token == MSG_IOV, token == MSG_CONTROL);
		return &message;
	case MMSG:
	case MMSG_IOV:
	case MMSG_CONTROL:
		fill_message(&messages[0].msg_hdr, bad, token == MMSG_IOV, token == MMSG_CONTROL);
		messages[1] = messages[0];
		return messages;
	case PROGRAM: return "/bin/true";
	case COMMAND: return "true";
	case ARGV:
	case ARGV_ENTRY:
		list[0] = "true";
		list[1] = token == ARGV_ENTRY ? bad : NULL;
		list[2] = NULL;
		return list;
	case ENV:
	case ENV_ENTRY: {
		static char *env[4];

		env[0] = "A=1";
		env[1] = token == ENV_ENTRY ? bad : "B=2";
		env[2] = NULL;
		return env;
	}
	case PATHS:
	case PATHS_ENTRY:
		list[0] = token == PATHS_ENTRY ? bad : "a";
		list[1] = NULL;
		return list;
	case CB:
	case CBS:
	case CBS_ENTRY:
		cb = (struct aiocb){.aio_fildes = world.fd, .aio_buf = data, .aio_nbytes = 10};
		cb.aio_lio_opcode = LIO_WRITE;
		cbs[0] = &cb;
		cbs[1] = token == CBS_ENTRY ? bad : NULL;
		return token == CB ? (void *)&cb : cbs;
	case IOCBS:
	case IOCBS_ENTRY:
		iocb = (struct iocb){.aio_fildes = (unsigned)world.fd, .aio_lio_opcode = IOCB_CMD_PWRITE};
		iocb.aio_buf = (uintptr_t)data;
		iocb.aio_nbytes = 10;
		iocbs[0] = &iocb;
		iocbs[1] = token == IOCBS_ENTRY ? bad : NULL;
		return iocbs;
	case WORDS: return "a b";
	case CLONE_ARGS: clone = (struct clone_args){.exit_signal = SIGCHLD}; return &clone;
	default: return NULL;
	}
}

/* The value of argument `i`, when argument `replaced` is wild. */
static long argument(const struct call *c, int i, int replaced, enum kind kind)
{
	static const int inside[] = {IOV_BASE,   MSG_IOV,   MSG_CONTROL, MMSG_IOV,    MMSG_CONTROL,
	                             ARGV_ENTRY, ENV_ENTRY, CBS_ENTRY,   IOCBS_ENTRY, PATHS_ENTRY};
	long token = c->args[i];
	bool within = false;

	switch (token) {
	case FD: return world.fd;
	case SOCKET: return world.sockets[0];
	case PROGRAM_FD: return world.program;
	case AIO:
		/* (the end of a process that has one takes its time) */
		if (!world.context)
			syscall(SYS_io_setup, 8, &world.context);
		return (long)world.context;
	case ENVIRON: return (long)environ;
	default: break;
	}
	if (token < FD || token > PATHS_ENTRY)
		return token;
	for (size_t k = 0; k < sizeof inside / sizeof *inside; k++)
		within |= token == inside[k];
	if (i == replaced && !within)
		return (long)wild(kind);
	/* (beside a wild pointer all else is good) */
	if (within && i != replaced)
		token = token == IOV_BASE     ? IOV
		        : token == ENV_ENTRY  ? ENV
		        : token == ARGV_ENTRY ? ARGV
		                              : token;
	return (long)good(token, wild(i == replaced ? kind : IS_NULL));
}

typedef long function(long, ...);

/* Of the C library, or in front of it; NULL: not here. */
static function *find(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);

	return (function *)(found ? found : dlvsym(RTLD_DEFAULT, name, "GLIBC_2.2.5"));
}

struct outcome {
	int state; /* below */
	int number;
	long result;
	int error; /* errno, or the signal */
};
/* CAUGHT: the worker's handler for that signal ran.  KILLED: it could not, since the signal was blocked. */
enum { NOT_RUN, BEGUN, RETURNED, ABSENT, CAUGHT, KILLED, ENDED, ALL_DONE };

enum { TEXT = 100 };
static const char *text_of(const struct outcome *o, char *text)
{
	switch (o->state) {
	case RETURNED:
		snprintf(text, TEXT, "%ld%s%s", o->result, o->error ? ": " : "",
		         o->error ? strerror(o->error) : "");
		break;
	case CAUGHT: snprintf(text, TEXT, "signal %d", o->error); break;
	case KILLED: snprintf(text, TEXT, "signal %d, although that has a handler", o->error); break;
	case ENDED: snprintf(text, TEXT, "ended with status %d", o->error); break;
	case ABSENT: snprintf(text, TEXT, "not there"); break;
	default: snprintf(text, TEXT, "not run");
	}
	return text;
}

/* Past every hook. */
static void report(int pipe, const struct outcome *o)
{
	if (raw_call(SYS_write, pipe, (long)o, sizeof *o, 0) != sizeof *o)
		raw_call(SYS_exit_group, 98, 0, 0, 0);
}

/* The case under way. */
static struct {
	struct outcome outcome;
	int pipe;
	long pid;
} now;

/* The signal is not blocked: a program that has a handler gets it. */
static void died(int number)
{
	now.outcome.state = CAUGHT;
	now.outcome.error = number;
	if (raw_call(SYS_getpid, 0, 0, 0, 0) == now.pid)
		report(now.pipe, &now.outcome);
	raw_call(SYS_exit_group, 0, 0, 0, 0);
}

static void catch_signals(void)
{
	static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGALRM};
	static char stack[PAGE];
	const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction act = {.sa_handler = died, .sa_flags = SA_ONSTACK};

	assert_int_equal(sigaltstack(&other, NULL), 0);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		assert_int_equal(sigaction(numbers[i], &act, NULL), 0);
}

static void settle_result(const struct call *c, struct outcome *o, long r)
{
	o->error = errno;
	switch (c->how & RETURNS) {
	case INT:
	case NEW_FD:
	case PID:
	case ERROR: o->result = (int)r; break;
	case PTR: o->result = r ? 1 : -1; break;
	case LONG: o->result = r; break;
	default: o->result = 0; break;
	}
	if (o->result != -1 || (c->how & RETURNS) == ERROR)
		o->error = 0;
	if ((c->how & RETURNS) == NEW_FD && o->result >= 0) {
		close((int)o->result);
		o->result = 0;
	}
	if ((c->how & RETURNS) == PID && o->result > 0)
		o->result = 1;
	while (waitpid(-1, NULL, __WALL | WNOHANG) > 0)
		;
}

static void prepare(void)
{
	struct iovec iov = {.iov_base = "x", .iov_len = 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	unlink("b");
	world.fd = open_new("a", 0);
	write_records(world.fd, 0, world.staged ? RECORDS : 1);
	if (raw_call(SYS_sendmsg, world.sockets[1], (long)&m, MSG_DONTWAIT, 0) != 1)
		abort();
}

static void clean(void)
{
	char room[4096];

	close(world.fd);
	unlink("a");
	while (recv(world.sockets[0], room, sizeof room, MSG_DONTWAIT) > 0)
		;
	while (recv(world.sockets[1], room, sizeof room, MSG_DONTWAIT) > 0)
		;
}

static void run_case(const struct call *c, int replaced, enum kind kind)
{
	function *f = c->number < 0 ? find(c->name) : NULL;
	struct outcome *o = &now.outcome;
	long a[ARGS], r;

	if (c->number < 0 && !f) {
		o->state = ABSENT;
		report(now.pipe, o);
		return;
	}
	prepare();
	for (int i = 0; i < ARGS; i++)
		a[i] = i < c->count ? argument(c, i, replaced, kind) : 0;
	alarm(300); /* ends what hangs */
	o->state = BEGUN;
	report(now.pipe, o);
	errno = 0;
	if (f)
		r = f(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	else
		r = syscall(c->number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (raw_call(SYS_getpid, 0, 0, 0, 0) != now.pid)
		raw_call(SYS_exit_group, 0, 0, 0, 0);
	settle_result(c, o, r);
	o->state = RETURNED;
	report(now.pipe, o);
	clean();
}

enum { CASES = CALLS * ARGS * KINDS };

static bool is_case(int number)
{
	const struct call *c = &calls[number / KINDS / ARGS];
	int argument = number / KINDS % ARGS, kind = number % KINDS;

	return argument < c->count && is_pointer(c->args[argument]) && !(kind == ODD && (c->how & NO_ODD));
}

/* From this case on. */
static int work(bool staged, int from)
{
	int first = -1;

	world.staged = staged;
	make_pages();
	catch_signals();
	if (!staged && chdir("outside") < 0)
		return 97;
	utmpname("utmp");
	dlopen("librt.so.1", RTLD_NOW | RTLD_GLOBAL); /* before glibc 2.34: shm_open, aio_read, forkpty */
	dlopen("libutil.so.1", RTLD_NOW | RTLD_GLOBAL);
	dlopen("libaio.so.1", RTLD_NOW | RTLD_GLOBAL);
	dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL);
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, world.sockets) < 0)
		return 96;
	world.program = open("/bin/true", O_RDONLY | O_CLOEXEC);
	for (int i = from; i < CASES; i++) {
		int call = i / KINDS / ARGS;

		if (!is_case(i))
			continue;
		if (first >= 0 && call != first && (calls[first].how & LAST))
			return 0;
		first = call;
		now.outcome = (struct outcome){.number = i};
		run_case(&calls[call], i / KINDS % ARGS, (enum kind)(i % KINDS));
	}
	now.outcome = (struct outcome){.number = CASES, .state = ALL_DONE};
	report(now.pipe, &now.outcome);
	return 0;
}

/* ---- both ways ---- */

extern char **environ;
static const char *own_path;

/* Without the library, when it is not to be there. */
static char **environment(bool native)
{
	static char *env[512];
	int n = 0;

	for (char **e = environ; *e && n < 500; e++)
		if (!native || (strncmp(*e, "LD_PRELOAD=", 11) != 0 && strncmp(*e, "FASTWRITE_", 10) != 0))
			env[n++] = *e;
	if (native)
		env[n++] = "FASTWRITE_INHERIT=0";
	env[n] = NULL;
	return env;
}

static pid_t start(bool native, bool staged, int from, int *from_worker)
{
	char number[16], end[16];
	int ends[2], null;
	pid_t pid;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		snprintf(number, sizeof number, "%d", from);
		snprintf(end, sizeof end, "%d", ends[1]);
		close(ends[0]);
		null = open("/dev/null", O_RDWR);
		dup2(null, 0);
		dup2(null, 1);
		close(null);
		execle(own_path, own_path, staged ? "staged" : "unmanaged", number, end, NULL,
		       environment(native));
		_exit(95);
	}
	close(ends[1]);
	*from_worker = ends[0];
	return pid;
}

/* Until the end of one worker; the case to go on with. */
static int collect(bool native, bool staged, int from, struct outcome *outcomes)
{
	struct outcome o, *last = NULL;
	int status, end;
	pid_t pid = start(native, staged, from, &end);
	bool finished = false;

	while (read(end, &o, sizeof o) == sizeof o) {
		finished = o.state == ALL_DONE;
		if (finished)
			continue;
		last = &outcomes[o.number];
		*last = o;
	}
	close(end);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (finished)
		return CASES;
	if (!last)
		fail_msg("a worker did nothing: status %x, from case %d", status, from);
	if (last->state == BEGUN) {
		last->state = WIFSIGNALED(status) ? KILLED : ENDED;
		last->error = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
	}
	return (int)(last - outcomes) + 1;
}

static struct outcome *run_all(bool native, bool staged)
{
	struct outcome *outcomes = calloc(CASES, sizeof *outcomes);

	for (int i = 0; i < CASES;)
		i = collect(native, staged, i, outcomes);
	return outcomes;
}

static bool same(const struct outcome *a, const struct outcome *b)
{
	return a->state == b->state && a->result == b->result && a->error == b->error;
}

static bool is_gap(const struct call *c, bool staged, const struct outcome *here)
{
	return (c->how & GAP) && staged && (here->state == KILLED || here->state == CAUGHT) &&
	       here->error == SIGSEGV;
}

static void compare(bool staged)
{
	struct outcome *native = run_all(true, staged), *here = run_all(false, staged);
	int differ = 0, ran = 0, faulted = 0;
	char a[TEXT], b[TEXT];

	for (int i = 0; i < CASES; i++) {
		const struct call *c = &calls[i / KINDS / ARGS];

		if (!is_case(i))
			continue;
		assert_true(native[i].state != NOT_RUN && here[i].state != NOT_RUN);
		if (native[i].state == ABSENT)
			continue; /* the library has what the C library lacks: nothing to compare with */
		ran++;
		faulted += native[i].state == RETURNED && native[i].error == EFAULT;
		if (same(&native[i], &here[i]) || is_gap(c, staged, &here[i]))
			continue;
		differ++;
		print_message("%s, argument %d is %s: natively %s, here %s\n", c->name, i / KINDS % ARGS + 1,
		              kinds[i % KINDS], text_of(&native[i], a), text_of(&here[i], b));
	}
	print_message("%d calls with wild pointers, %d times EFAULT\n", ran, faulted);
	assert_true(faulted > 500);
	assert_int_equal(differ, 0);
	free(native);
	free(here);
}

static void nothing_managed(void **state)
{
	(void)state;
	OK(mkdir("outside", 0755));
	compare(false);
	OK(rmdir("outside"));
}

static void staged(void **state)
{
	(void)state;
	compare(true);
	clean_up();
}

static bool is_here(const char *name)
{
	char word[80];

	for (int i = 0; i < CALLS; i++)
		if (calls[i].number < 0 && strcmp(calls[i].name, name) == 0)
			return true;
	snprintf(word, sizeof word, " %s ", name);
	return strstr(without_pointers, word);
}

static void every_hook_has_a_line(void **state)
{
	static const char *const hooks[] = {
#define HOOK(result, name, parameters, arguments) #name,
#define OPTIONAL(result, name, parameters, arguments) #name,
#define VARIADIC(result, name, base) #name,
#define ALIAS(result, name, of) #name,
#include "../../shim/hooks/hooks.def"
	};
	int missing = 0;

	(void)state;
	for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
		if (!is_here(hooks[i])) {
			print_message("hooked, but without a line here: %s\n", hooks[i]);
			missing++;
		}
	assert_int_equal(missing, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_hook_has_a_line),
		cmocka_unit_test(nothing_managed),
		cmocka_unit_test(staged),
	};

	if (argc == 4) {
		now.pipe = atoi(argv[3]);
		now.pid = getpid();
		return work(strcmp(argv[1], "staged") == 0, atoi(argv[2]));
	}
	own_path = argv[0];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
