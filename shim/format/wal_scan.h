// SPDX-License-Identifier: Apache-2.0
/*
 * wal_scan: reads a write-ahead log as a power loss has left it: the whole epochs up to the last one, and
 * nothing of what comes after.  Trusts nothing of what it reads.
 */
#ifndef FASTWRITE_FORMAT_WAL_SCAN_H
#define FASTWRITE_FORMAT_WAL_SCAN_H

#include "format/wal_format.h"

enum { WAL_BATCH_MOST = WAL_HEAD_MAX + WAL_IMAGES_MAX * WAL_PAGE_BYTES };

struct wal_scan {
	int fd;
	struct wal_header header;
	uint64_t end;       /* of the last whole epoch in the file */
	uint64_t epochs;    /* how many whole ones there are */
	uint64_t last;      /* the number of the last one, 0: none */
	bool recovery;      /* that is one of a recovery */
	int64_t written_ns; /* when that was written, or the log was emptied after it */
	struct wal_absent absent;
	uint8_t *batch; /* WAL_BATCH_MOST bytes, aligned to 8 */
};

struct wal_item {
	uint64_t epoch;
	uint32_t file;
	enum wal_type type;
	const struct wal_name *name; /* WAL_NAME */
	const char *path;
	const struct wal_size *size; /* WAL_SIZE */
	uint64_t page;               /* WAL_PAGE */
	const uint8_t *image;
};

/* Reads the header and finds the end; `batch` has room.  0; -ENODATA: it was never made to the end; -EBADMSG:
 * not a log, or damaged; FORMAT_NEWER, then the header has its version; other -errno. */
int wal_scan_begin(struct wal_scan *s, int fd, uint8_t *batch);

/* Not 0: wal_scan_each ends with it. */
typedef int wal_visit(void *ctx, const struct wal_item *item);
/* All records of the whole epochs, in order.  0; -EBADMSG: a record makes no sense; other -errno, or what
 * `visit` returned. */
int wal_scan_each(struct wal_scan *s, wal_visit *visit, void *ctx);

/* The names that no file has at the end of the last epoch, one after the other; nothing else is read
 * meanwhile. *i: 0 before the first.  1; 0: no more; -EBADMSG: the list makes no sense; other -errno. */
int wal_scan_absent(struct wal_scan *s, uint32_t *i, const struct wal_listed **name, const char **path);

#endif
