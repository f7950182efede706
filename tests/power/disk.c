// SPDX-License-Identifier: Apache-2.0
/*
 * disk IMAGE LOG [fuse options] MOUNTPOINT: a FUSE file system with two files.  `image` is the image, for a
 * loop device; every write to it and every flush is appended to LOG.  What is written to `marks` is logged,
 * too, so that a program's "this sync has returned" has its place among the writes of the disk.
 *
 * One thread: what is logged before a flush was on the disk before it.  No cache of the kernel's holds writes
 * back.
 */
#define FUSE_USE_VERSION 35
#include "writelog.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <linux/falloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int image_fd, log_fd;
static off_t image_size;

static void record(uint32_t type, off_t offset, size_t length, const void *data)
{
	struct timespec now;
	struct log_event event = {.type = type, .length = (uint32_t)length, .offset = (uint64_t)offset};
	struct iovec parts[2] = {{&event, sizeof event}, {(void *)(uintptr_t)data, data ? length : 0}};

	clock_gettime(CLOCK_MONOTONIC, &now);
	event.ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (writev(log_fd, parts, 2) != (ssize_t)(parts[0].iov_len + parts[1].iov_len)) {
		perror("disk: log"); /* without its log the disk is worth nothing */
		_exit(1);
	}
}

static int is_image(const char *path) { return strcmp(path, "/image") == 0; }
static int is_marks(const char *path) { return strcmp(path, "/marks") == 0; }

static int do_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	memset(st, 0, sizeof *st);
	st->st_nlink = 1;
	if (strcmp(path, "/") == 0) {
		st->st_mode = S_IFDIR | 0700;
	} else if (is_image(path) || is_marks(path)) {
		st->st_mode = S_IFREG | 0600;
		st->st_size = is_image(path) ? image_size : 0;
	} else {
		return -ENOENT;
	}
	return 0;
}

static int do_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t at, struct fuse_file_info *fi,
                      enum fuse_readdir_flags flags)
{
	(void)path, (void)at, (void)fi, (void)flags;
	fill(buf, "image", NULL, 0, 0);
	fill(buf, "marks", NULL, 0, 0);
	return 0;
}

static int do_open(const char *path, struct fuse_file_info *fi)
{
	fi->direct_io = is_marks(path); /* each write of the program is one mark */
	fi->keep_cache = is_image(path);
	return 0;
}

static int do_read(const char *path, char *buf, size_t size, off_t offset, struct fuse_file_info *fi)
{
	(void)fi;
	if (!is_image(path))
		return 0;
	for (size_t done = 0; done < size;) {
		ssize_t r = pread(image_fd, buf + done, size - done, offset + (off_t)done);

		if (r < 0)
			return -errno;
		if (r == 0)
			return (int)done;
		done += (size_t)r;
	}
	return (int)size;
}

static int do_write(const char *path, const char *buf, size_t size, off_t offset, struct fuse_file_info *fi)
{
	(void)fi;
	if (is_marks(path)) {
		record(LOG_MARK, 0, size, buf);
		return (int)size;
	}
	for (size_t done = 0; done < size;) {
		ssize_t r = pwrite(image_fd, buf + done, size - done, offset + (off_t)done);

		if (r < 0)
			return -errno;
		done += (size_t)r;
	}
	record(LOG_WRITE, offset, size, buf);
	return (int)size;
}

static int do_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
	(void)data_only, (void)fi;
	if (is_image(path))
		record(LOG_FLUSH, 0, 0, NULL);
	return 0;
}

static int do_fallocate(const char *path, int mode, off_t offset, off_t length, struct fuse_file_info *fi)
{
	const int clears = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;

	(void)fi;
	if (!is_image(path) || !(mode & clears) || offset + length > image_size)
		return -EOPNOTSUPP;
	if (fallocate(image_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) < 0)
		return -errno;
	record(LOG_ZERO, offset, (size_t)length, NULL);
	return 0;
}

static int do_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
	(void)fi;
	return is_marks(path) || size == image_size ? 0 : -EPERM;
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
	config->attr_timeout = 1000;
	config->entry_timeout = 1000;
	connection->want &= ~(unsigned)FUSE_CAP_WRITEBACK_CACHE;
	connection->max_write = 1 << 20;
	/* what gets mounted from the image must not be ours, too: killed as the last who has it, we would
	 * unmount it at our end, and wait for ourselves to write its journal */
	if (unshare(CLONE_NEWNS) != 0) {
		perror("disk: unshare");
		_exit(1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const struct fuse_operations operations = {
		.getattr = do_getattr,
		.readdir = do_readdir,
		.open = do_open,
		.read = do_read,
		.write = do_write,
		.fsync = do_fsync,
		.fallocate = do_fallocate,
		.truncate = do_truncate,
		.init = do_init,
	};
	struct stat st;

	if (argc < 4) {
		fprintf(stderr, "usage: disk IMAGE LOG [fuse options] MOUNTPOINT\n");
		return 2;
	}
	/* whoever started us is to take the disk with them */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	image_fd = open(argv[1], O_RDWR | O_CLOEXEC);
	log_fd = open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (image_fd < 0 || log_fd < 0 || fstat(image_fd, &st) < 0) {
		perror("disk");
		return 1;
	}
	image_size = st.st_size;
	argv[2] = argv[0];
	return fuse_main(argc - 2, argv + 2, &operations, NULL);
}
