// SPDX-License-Identifier: Apache-2.0
/* origin: see format/origin.h. */
#include "format/origin.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/vfs.h>

/* glibc 2.36 and its kernel headers lack them. */
enum { MNT_ID_UNIQUE = 0x4000, MNT_ID_AT = 0x90 };
_Static_assert(offsetof(struct statx, stx_dev_minor) + 4 == MNT_ID_AT, "stx_mnt_id follows stx_dev_minor");

/* The text of the boot id; 0: a file is mounted over it, or a sandbox does not let us ask. */
static ssize_t read_boot_id(char *text, size_t size)
{
	enum { PROC = 0x9fa0 };
	int fd = sys.openat(AT_FDCWD, "/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC, 0);
	struct statfs fs;
	ssize_t n;

	if (fd < 0)
		return fd;
	n = 0;
	if (sys_raw(SYS_fstatfs, fd, (long)&fs, 0, 0, 0, 0) == 0 && fs.f_type == PROC)
		n = sys.read(fd, text, size);
	sys.close(fd);
	return n;
}

static int boot_id(uint8_t out[16])
{
	char text[64];
	ssize_t n = read_boot_id(text, sizeof text);
	int nibbles = 0;

	memset(out, 0, 16);
	if (n <= 0)
		return (int)n;
	for (ssize_t i = 0; i < n && nibbles < 32; i++) {
		int c = text[i];
		int v;

		if (c >= '0' && c <= '9')
			v = c - '0';
		else if (c >= 'a' && c <= 'f')
			v = c - 'a' + 10;
		else
			continue;
		out[nibbles / 2] = (uint8_t)((out[nibbles / 2] << 4) | v);
		nibbles++;
	}
	return nibbles == 32 ? 0 : -EINVAL;
}

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* When the kernel booted: the clocks differ by a constant until the wall clock is stepped.  The quickest of
 * several readings counts: it was interrupted least. */
static int64_t boot_ns(void)
{
	enum { LOOKS = 5 };
	int64_t best = 0, best_took = INT64_MAX;

	for (int i = 0; i < LOOKS; i++) {
		int64_t before = clock_ns(CLOCK_BOOTTIME);
		int64_t wall = clock_ns(CLOCK_REALTIME);
		int64_t took = clock_ns(CLOCK_BOOTTIME) - before;

		if (took < best_took) {
			best_took = took;
			best = wall - before - took / 2;
		}
	}
	return best;
}

/*
 * ext4 and xfs make a directory in sysfs for each mounted file system.  Its inode number is new each time. So
 * the number stands for the time from mount to unmount, however many mounts of the file system there are.
 */
static uint64_t super_or_kind(int fd, const struct statx *st)
{
	enum { EXT4 = 0xef53, XFS = 0x58465342 };
	BUFFER(char, text);
	char path[64];
	struct statfs fs;
	struct statx entry;
	const char *name;
	ssize_t n;

	if (sys_raw(SYS_fstatfs, fd, (long)&fs, 0, 0, 0, 0) < 0)
		return 0;
	if (fs.f_type != EXT4 && fs.f_type != XFS)
		return ORIGIN_KIND(fs.f_type);
	log_format(path, sizeof path, "/sys/dev/block/%u:%u", st->stx_dev_major, st->stx_dev_minor);
	n = sys.readlinkat(AT_FDCWD, path, text, PATH_MAX - 1);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	name = strrchr(text, '/');
	log_format(path, sizeof path, "/sys/fs/%s%s", fs.f_type == XFS ? "xfs" : "ext4", name ? name : "");
	if (!name || sys.statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_INO, &entry) < 0)
		return 0;
	return entry.stx_ino;
}

int origin_here(int fd, struct origin *out)
{
	struct origin o = {.boot_ns = boot_ns()};
	struct statx st;
	int r = boot_id(o.boot_id);

	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | MNT_ID_UNIQUE, &st);
	if (r < 0)
		return r;
	o.dev = sys_dev_of(&st);
	if (st.stx_mask & MNT_ID_UNIQUE)
		memcpy(&o.mount_id, (const uint8_t *)&st + MNT_ID_AT, sizeof o.mount_id);
	o.super_id = super_or_kind(fd, &st);
	*out = o;
	return 0;
}

static bool is_kind(uint64_t id) { return id >> 32 == UINT32_MAX; }

/* 0: not known. */
static uint64_t super_of(const struct origin *o) { return is_kind(o->super_id) ? 0 : o->super_id; }

/* On tmpfs: what was there is gone with its mount. */
static bool is_in_memory(const struct origin *o)
{
	enum { TMPFS = 0x01021994 };

	return o->super_id == ORIGIN_KIND(TMPFS);
}

/* The file system has been mounted all the time; false also if nobody says. */
static bool same_mounted(const struct origin *a, const struct origin *b)
{
	if (super_of(a) || super_of(b))
		return super_of(a) == super_of(b);
	if (is_in_memory(a) && is_in_memory(b))
		return a->dev == b->dev;
	return a->mount_id && a->mount_id == b->mount_id;
}

static bool same_kernel(const struct origin *a, const struct origin *b)
{
	static const uint8_t unknown[16];
	int64_t apart = (int64_t)((uint64_t)a->boot_ns - (uint64_t)b->boot_ns); /* (either may be forged) */
	bool known = memcmp(a->boot_id, unknown, sizeof unknown) != 0 &&
	             memcmp(b->boot_id, unknown, sizeof unknown) != 0;

	if (known && memcmp(a->boot_id, b->boot_id, sizeof unknown) != 0)
		return false;
	if (apart >= -ORIGIN_SLACK_NS && apart <= ORIGIN_SLACK_NS)
		return true;
	/* The wall clock was set.  (Virtual machines that were copied while they ran have the id in common.
	 * But each numbers its own mounts.) */
	return known && same_mounted(a, b);
}

enum origin_verdict origin_compare(const struct origin *then, const struct origin *now)
{
	if (!same_kernel(then, now))
		return ORIGIN_OTHER;
	if (super_of(then) && super_of(now))
		return super_of(then) == super_of(now) ? ORIGIN_SAME : ORIGIN_MOUNT;
	if (is_in_memory(then) && is_in_memory(now))
		return then->dev == now->dev ? ORIGIN_SAME : ORIGIN_MOUNT;
	if (then->mount_id && now->mount_id)
		return then->mount_id == now->mount_id ? ORIGIN_SAME : ORIGIN_MOUNT;
	return then->dev == now->dev ? ORIGIN_SAME : ORIGIN_MOUNT;
}

bool origin_other_kind(const struct origin *then, const struct origin *now)
{
	uint64_t a = then->super_id, b = now->super_id;

	return a && b && a != b && (is_kind(a) || is_kind(b));
}

bool origin_other_super(const struct origin *then, const struct origin *now)
{
	return super_of(then) && super_of(now) && super_of(then) != super_of(now);
}
