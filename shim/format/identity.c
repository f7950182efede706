// SPDX-License-Identifier: Apache-2.0
/* identity: see format/identity.h. */
#include "format/identity.h"

#include "base/sys.h"

#include <fcntl.h>
#include <linux/fs.h>

static uint32_t generation_of(int fd)
{
	/* the request is named after a long; file systems store an int */
	long generation = 0;

	return sys_raw(SYS_ioctl, fd, FS_IOC_GETVERSION, (long)&generation, 0, 0, 0) == 0
	               ? (uint32_t)generation
	               : 0;
}

static uint64_t handle_hash_of(int fd)
{
	_Alignas(struct file_handle) uint8_t room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	struct file_handle *handle = (struct file_handle *)(void *)room;
	const uint8_t *bytes = room + sizeof *handle;
	uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */
	int mount_id;

	handle->handle_bytes = MAX_HANDLE_SZ;
	if (sys_raw(SYS_name_to_handle_at, fd, (long)"", (long)handle, (long)&mount_id, AT_EMPTY_PATH, 0) < 0)
		return 0;
	hash = (hash ^ (uint32_t)handle->handle_type) * 0x100000001b3ull;
	for (uint32_t i = 0; i < handle->handle_bytes && i < MAX_HANDLE_SZ; i++)
		hash = (hash ^ bytes[i]) * 0x100000001b3ull;
	return hash ? hash : 1;
}

void identity_by_stat(const struct statx *st, struct identity *out)
{
	*out = (struct identity){.ino = st->stx_ino};
	if (st->stx_mask & STATX_BTIME) {
		out->btime_sec = st->stx_btime.tv_sec;
		out->btime_nsec = st->stx_btime.tv_nsec;
	}
}

void identity_of(int fd, const struct statx *st, struct identity *out)
{
	identity_by_stat(st, out);
	out->handle_hash = handle_hash_of(fd);
	/* (A handle contains it.  A sandbox may forbid handles later: then the birth time is left.) */
	out->generation = out->handle_hash && (st->stx_mask & STATX_BTIME) ? 0 : generation_of(fd);
}

void identity_of_entry(const struct arena_entry *entry, struct identity *out)
{
	*out = (struct identity){.ino = entry->ino,
	                         .btime_sec = entry->btime_sec,
	                         .btime_nsec = entry->btime_nsec,
	                         .generation = entry->generation,
	                         .handle_hash = entry->handle_hash};
}

enum sign { UNKNOWN, EQUAL, DIFFERENT };

static enum sign sign_of(bool known, bool equal) { return !known ? UNKNOWN : equal ? EQUAL : DIFFERENT; }

struct signs {
	enum sign btime, generation, handle;
};

static struct signs compare(const struct identity *a, const struct identity *b)
{
	bool btimes = (a->btime_sec || a->btime_nsec) && (b->btime_sec || b->btime_nsec);

	return (struct signs){
		.btime = sign_of(btimes, a->btime_sec == b->btime_sec && a->btime_nsec == b->btime_nsec),
		.generation = sign_of(a->generation && b->generation, a->generation == b->generation),
		.handle = sign_of(a->handle_hash && b->handle_hash, a->handle_hash == b->handle_hash),
	};
}

bool identity_same(const struct identity *a, const struct identity *b)
{
	struct signs s = compare(a, b);

	return a->ino == b->ino && s.btime != DIFFERENT && s.generation != DIFFERENT && s.handle != DIFFERENT;
}

bool identity_proved(const struct identity *a, const struct identity *b)
{
	struct signs s = compare(a, b);

	return identity_same(a, b) && (s.btime == EQUAL || s.generation == EQUAL || s.handle == EQUAL);
}
