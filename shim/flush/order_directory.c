// SPDX-License-Identifier: Apache-2.0
/* order_directory: see flush/order_directory.h. */
#include "flush/order_directory.h"

#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/sys.h"
#include "flush/order_loose.h"

#include <fcntl.h>
#include <string.h>

enum state { NONE, FILLING, KNOWN, LOST };

void order_directory_reset(struct order_directory *d)
{
	atomic_store(&d->unsynced, false);
	atomic_store(&d->state, NONE);
}

static void fill(struct order_directory *d, uint64_t dev, uint64_t ino, const char *path, uint32_t links)
{
	uint32_t none = NONE;

	if (strlen(path) >= sizeof d->path || !atomic_compare_exchange_strong(&d->state, &none, FILLING))
		return;
	d->dev = dev;
	d->ino = ino;
	atomic_store(&d->links, links);
	strcpy(d->path, path);
	atomic_store(&d->state, KNOWN);
}

bool order_directory_note_known(struct order_directory *d)
{
	if (atomic_load(&d->state) != KNOWN)
		return false;
	atomic_store(&d->unsynced, true);
	/* (else nobody may ever look again) */
	return atomic_load(&d->state) == KNOWN;
}

static bool has_links(const struct order_directory *d, uint32_t links)
{
	uint32_t had = atomic_load(&d->links);

	return had == 0 || had == links;
}

bool order_directory_note(struct order_directory *d, uint64_t dev, uint64_t ino, const char *path,
                          uint32_t links)
{
	if (path && atomic_load(&d->state) == NONE)
		fill(d, dev, ino, path, links);
	if (atomic_load(&d->state) != KNOWN || d->dev != dev || d->ino != ino)
		return false;
	if (path)
		atomic_store(&d->links, links);
	return has_links(d, links) && order_directory_note_known(d);
}

bool order_directory_has_name(const struct order_directory *d, const char *path)
{
	size_t n;

	if (atomic_load(&d->state) != KNOWN)
		return false;
	n = strlen(d->path);
	return strncmp(path, d->path, n) == 0 && path[n] == '/' && !strchr(path + n + 1, '/');
}

bool order_directory_note_name(struct order_directory *d, const char *path)
{
	return order_directory_has_name(d, path) && order_directory_note_known(d);
}

bool order_directory_is_unsynced(const struct order_directory *d) { return atomic_load(&d->unsynced); }

static bool is_the_one(const struct order_directory *d, int fd, const char *path, int flags)
{
	struct statx st;

	return sys.statx(fd, path, flags, STATX_INO, &st) == 0 && st.stx_ino == d->ino &&
	       sys_dev_of(&st) == d->dev;
}

bool order_directory_is_at(const struct order_directory *d, const char *path, size_t n)
{
	return atomic_load(&d->state) == KNOWN && strncmp(d->path, path, n) == 0 && d->path[n] == '\0' &&
	       is_the_one(d, AT_FDCWD, d->path, 0);
}

static bool take_unsynced(struct order_directory *d)
{
	bool had = atomic_exchange(&d->unsynced, false);

	if (had && order_loose_is_coming())
		atomic_store(&d->unsynced, true);
	return had;
}

int order_directory_sync(struct order_directory *d)
{
	int fd, r = -ESTALE;

	if (!take_unsynced(d))
		return 0;
	fd = sys.openat(AT_FDCWD, d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (fd >= 0)
		fd = internal_fd_raise(fd);
	if (fd >= 0 && is_the_one(d, fd, "", AT_EMPTY_PATH)) {
		kill_step();
		r = sys.fsync(fd);
		kill_step();
		if (r < 0)
			atomic_store(&d->unsynced, true);
	} else {
		atomic_store(&d->state, LOST);
	}
	internal_fd_close(fd);
	return r;
}

void order_directory_forget(struct order_directory *d) { (void)take_unsynced(d); }
