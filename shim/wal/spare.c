// SPDX-License-Identifier: Apache-2.0
/* spare: see wal/spare.h. */
#include "wal/spare.h"

#include "base/sys.h"
#include "format/wal_format.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/quota.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum {
	TAKE_SHARE = 16, /* at most so much of the free space */
	GIVE_SHARE = 8,  /* and no more than so much later */
};

static uint64_t free_bytes(const struct statfs *st) { return (uint64_t)st->f_bavail * (uint64_t)st->f_bsize; }

/* True if users or projects have limits of space: what one file gives back another one may not get. */
static bool has_quotas(int fd)
{
	struct fs_quota_stat state;
	long r = sys_raw(SYS_quotactl_fd, fd, (long)QCMD(Q_XGETQSTAT, USRQUOTA), 0, (long)&state, 0, 0);

	/* a kernel without that call says the same as a file system without quotas */
	return r != -ENOSYS || sys_raw(SYS_quotactl_fd, -1, 0, 0, 0, 0, 0) == -ENOSYS;
}

/* A page takes one page of space, wherever it is, and overwriting it takes no other. */
static bool is_plain(int fd, uint64_t bytes)
{
	struct statfs st;

	return sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) == 0 && st.f_type == SPARE_EXT4 &&
	       free_bytes(&st) / TAKE_SHARE >= bytes && !has_quotas(fd);
}

/* Of clusters or extents of a fixed size a page takes a whole one. */
static int reserve_page(int fd, uint64_t at)
{
	struct statx before, after;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_BLOCKS, &before);

	if (r == 0)
		r = sys_reserve(fd, at, at + WAL_PAGE_BYTES);
	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_BLOCKS, &after);
	return r == 0 && after.stx_blocks != before.stx_blocks + WAL_PAGE_BYTES / 512 ? -EOPNOTSUPP : r;
}

int spare_take(int fd, uint64_t bytes)
{
	struct statx st;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	if (r == 0 && !is_plain(fd, bytes))
		r = -EOPNOTSUPP;
	if (r == 0)
		r = reserve_page(fd, st.stx_size);
	if (r == 0)
		r = sys_reserve(fd, st.stx_size, st.stx_size + bytes);
	if (r < 0)
		(void)spare_give(fd); /* (else the space is free when the log is removed) */
	return r;
}

bool spare_is_due(int fd, uint64_t bytes)
{
	struct statfs st;

	return sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) < 0 || free_bytes(&st) / GIVE_SHARE < bytes;
}

int spare_give(int fd)
{
	struct statx st;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	return r < 0 ? r : sys.ftruncate(fd, (off_t)st.stx_size);
}
