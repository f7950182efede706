// SPDX-License-Identifier: Apache-2.0
/*
 * origin: where an arena or a journal was made: which kernel, which mount, which device.
 *
 * The boot id alone lies: containers get one of their own, images carry a fixed one.  So it is held against
 * the moment of the boot, which no step but one of the wall clock changes, and against the mount of the file:
 * a file system that was shut down by force and mounted again in the same boot has lost what it had not
 * written.
 *
 * Only ORIGIN_SAME says that everything stored in the file's pages is still there.
 */
#ifndef FASTWRITE_ORIGIN_H
#define FASTWRITE_ORIGIN_H

#include <stdint.h>

struct origin {
	uint8_t boot_id[16];
	int64_t boot_ns;   /* CLOCK_REALTIME at CLOCK_BOOTTIME 0 */
	uint64_t mount_id; /* STATX_MNT_ID_UNIQUE, 0 = not known */
	uint64_t super_id; /* of the mounted file system's entry below /sys/fs, 0 = not known */
	uint64_t dev;      /* as sys_dev_of gives it */
};

/* Two readings of boot_ns in one boot lie no further apart: more than a reading takes, also on a busy
 * machine, and less than any two boots. */
enum { ORIGIN_SLACK_NS = 2000000 };

enum origin_verdict {
	ORIGIN_SAME,  /* the same kernel has had the file system mounted all the time */
	ORIGIN_MOUNT, /* the same kernel, but perhaps another mount of the file system */
	ORIGIN_OTHER, /* another kernel, or nobody can say */
};

/* Of the file behind fd, here and now: 0 or -errno. */
int origin_here(int fd, struct origin *out);

enum origin_verdict origin_compare(const struct origin *then, const struct origin *now);

#endif
