// SPDX-License-Identifier: Apache-2.0
/*
 * origin: the kernel, the mount and the device on which an arena or a journal was made.
 *
 * The kernel has an id for each boot.  Containers get one of their own, and images carry a fixed one: a file
 * that is mounted over the kernel's.  Such an id does not count, and virtual machines that were copied while
 * they ran have one in common.  So the time of the boot counts, too, which a step of the wall clock changes:
 * then a file system that has been mounted all the time shows that it is the same boot.  The mount counts
 * anyway: a file system that was shut down by force and mounted again in the same boot has lost what it had
 * not written.
 *
 * Only with ORIGIN_SAME everything that was stored in the file's pages is sure to be there.
 */
#ifndef FASTWRITE_FORMAT_ORIGIN_H
#define FASTWRITE_FORMAT_ORIGIN_H

#include <stdbool.h>
#include <stdint.h>

struct origin {
	uint8_t boot_id[16]; /* 0: not known */
	int64_t boot_ns;     /* CLOCK_REALTIME at CLOCK_BOOTTIME 0 */
	uint64_t mount_id;   /* STATX_MNT_ID_UNIQUE, 0 = not known */
	uint64_t super_id;   /* inode of the mounted file system's directory in /sys/fs, or its ORIGIN_KIND,
	                        0 = not known */
	uint64_t dev;        /* as sys_dev_of gives it */
};

/*
 * What a file system without such a directory has in its place: f_type of statfs.  No inode there has such a
 * number.  (Earlier versions store 0.  They compare it with their own 0, or with an inode that differs.)
 */
#define ORIGIN_KIND(type) (0xffffffff00000000ull | (uint32_t)(type))

/* Two readings of boot_ns in one boot differ by less: more than a reading takes on
 * a busy machine, less than a boot. */
enum { ORIGIN_SLACK_NS = 2000000 };

enum origin_verdict {
	ORIGIN_SAME,  /* the same kernel has had the file system mounted all the time */
	ORIGIN_MOUNT, /* the same kernel, but perhaps another mount of the file system */
	ORIGIN_OTHER, /* another kernel, or unknown */
};

/* The origin of a file made now where fd is.  0 or -errno. */
int origin_here(int fd, struct origin *out);

enum origin_verdict origin_compare(const struct origin *then, const struct origin *now);

/*
 * The file was made on one kind of file system and is found on another: through an overlay and in its upper
 * directory, through a network and on the server.  Neither side sees the locks that the other one takes.
 */
bool origin_other_kind(const struct origin *then, const struct origin *now);

/* It is known that the file system that the file was made on is not this one, which may be a copy of it, or
 * not mounted any more.  What had the file open there has not this one open. */
bool origin_other_super(const struct origin *then, const struct origin *now);

#endif
