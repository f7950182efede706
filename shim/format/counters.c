// SPDX-License-Identifier: Apache-2.0
/* counters: see format/counters.h. */
#include "format/counters.h"

static const char *const counter_names[COUNT_ALL] = {
	[COUNT_WRITES] = "writes",
	[COUNT_BYTES] = "bytes",
	[COUNT_FLUSHES] = "flushes",
	[COUNT_FLUSH_BYTES] = "flush_bytes",
	[COUNT_DIRECT_BYTES] = "direct_bytes",
	[COUNT_SYNCS_ASKED] = "syncs_asked",
	[COUNT_SYNCS_DONE] = "syncs_done",
	[COUNT_DRAINS] = "settles", /* the name that JSON has had from the start */
	[COUNT_JOURNALED] = "syncs_by_journal",
};

const char *counter_name(enum arena_counter counter) { return counter_names[counter]; }

static const char *const reason_names[BYPASS_COUNT] = {
	[BYPASS_NONE] = "none",
	[BYPASS_FORK] = "fork",
	[BYPASS_EXEC] = "exec",
	[BYPASS_MMAP] = "mmap",
	[BYPASS_STDIO] = "stdio",
	[BYPASS_STANDARD_FD] = "standard descriptor",
	[BYPASS_UNKNOWN_FD] = "unknown descriptor",
	[BYPASS_SPLICE] = "splice or sendfile",
	[BYPASS_UNLINKED] = "unlinked",
	[BYPASS_NO_ARENA] = "no arena",
	[BYPASS_NO_THREAD] = "no thread",
	[BYPASS_NO_PREALLOC] = "no fallocate",
	[BYPASS_PATH] = "path",
	[BYPASS_AIO] = "asynchronous I/O",
	[BYPASS_IOCTL] = "ioctl",
	[BYPASS_SYNC] = "synchronous",
	[BYPASS_EXIT] = "exit",
	[BYPASS_NO_LEASE] = "no lease",
	[BYPASS_LEASE_BUSY] = "lease busy",
	[BYPASS_INHERITED] = "inherited descriptor",
	[BYPASS_CLONE] = "clone",
	[BYPASS_PASSED] = "descriptor passed on",
	[BYPASS_IO_URING] = "io_uring",
	[BYPASS_ENCRYPTED] = "encrypted",
	[BYPASS_RIGHTS] = "rights",
	[BYPASS_SYSCALL] = "system call by number",
	[BYPASS_REPLACED] = "descriptor replaced",
	[BYPASS_SET_ID] = "set-id",
	[BYPASS_SECCOMP] = "seccomp",
};

const char *bypass_reason_name(enum bypass_reason reason)
{
	return (unsigned)reason < BYPASS_COUNT ? reason_names[reason] : "?";
}

static const char *const reason_texts[BYPASS_COUNT] = {
	[BYPASS_FORK] = "a forked process has it open and does not share its staging",
	[BYPASS_EXEC] = "a program that was started has its descriptor",
	[BYPASS_MMAP] = "the program has mapped it",
	[BYPASS_STDIO] = "a stream of the C library reads or writes it unseen",
	[BYPASS_STANDARD_FD] = "it is open as standard input, output or error",
	[BYPASS_UNKNOWN_FD] = "the process has a descriptor of it whose opening the library did not see",
	[BYPASS_SPLICE] = "splice or sendfile moves its data inside the kernel",
	[BYPASS_UNLINKED] = "its name was removed",
	[BYPASS_NO_ARENA] = "its rule has no usable staging directory",
	[BYPASS_NO_THREAD] = "the library's thread could not be started",
	[BYPASS_NO_PREALLOC] = "its file system cannot reserve space (fallocate)",
	[BYPASS_PATH] = "its path is unknown or too long",
	[BYPASS_AIO] = "it is used with asynchronous I/O",
	[BYPASS_IOCTL] = "an ioctl on it may read or write it",
	[BYPASS_SYNC] = "the file, or its file system, is synchronous (mount -o sync, chattr +S)",
	[BYPASS_EXIT] = "the process ends",
	[BYPASS_NO_LEASE] = "visibility is strict, and there are no leases here",
	[BYPASS_LEASE_BUSY] = "visibility is strict, and another process has it open",
	[BYPASS_INHERITED] = "another program has its descriptor",
	[BYPASS_CLONE] = "the process made a clone that shares its memory or descriptors",
	[BYPASS_PASSED] = "its descriptor was passed to another process",
	[BYPASS_IO_URING] = "the process has an io_uring, which reads and writes unseen",
	[BYPASS_ENCRYPTED] = "it is encrypted, and the staging directory is not, or by another key",
	[BYPASS_RIGHTS] =
		"recovery could not write to it by its path, or the process changes its user or group",
	[BYPASS_SYSCALL] = "the program reads or writes it by syscall()",
	[BYPASS_REPLACED] = "it replaced a descriptor through which another thread may be writing",
	[BYPASS_SET_ID] = "each write takes its set-user-ID or set-group-ID bit or its capabilities",
	[BYPASS_SECCOMP] =
		"the process has asked for a seccomp filter, which may refuse what the library calls",
};

const char *bypass_reason_text(enum bypass_reason reason)
{
	return reason > BYPASS_NONE && reason < BYPASS_COUNT ? reason_texts[reason] : "?";
}
