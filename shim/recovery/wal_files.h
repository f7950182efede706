// SPDX-License-Identifier: Apache-2.0
/*
 * wal_files: the files that a log of sync = ordered names (recovery/wal_replay.h).
 *
 * Whoever makes a log chooses what it names.  So each file takes little memory and time, and few of them are
 * open at once.
 */
#ifndef FASTWRITE_RECOVERY_WAL_FILES_H
#define FASTWRITE_RECOVERY_WAL_FILES_H

#include "foreign/target.h"
#include "format/wal_scan.h"

/* One name of a file. */
struct wal_file {
	struct wal_name name;
	uint64_t path_at;  /* in wal_files.paths */
	uint32_t next;     /* 1 + place of another one with these numbers of device and inode; 0: none */
	uint32_t path_sum; /* CRC32C */
	int fd_plus_1;     /* wal_files_open */
	bool missing;      /* it was not found: an orphan gets its bytes */
	bool orphan;       /* it has one */
	bool changes;      /* the log has more of it than its name */
	bool goes;         /* the last epoch says so: the program may have removed it */
	bool gone;         /* it has */
	bool maybe_cut;    /* its time may be that of a mount, which made it as short as `cut` */
	uint64_t cut;
	struct wal_size size; /* of its last SIZE record */
	uint64_t kept; /* the file has bytes up to there that no image has, and the last epoch has, too */
	uint64_t bytes;
};

struct wal_place;

struct wal_files {
	struct wal_file *files;
	uint64_t count;
	uint64_t names, path_bytes; /* of all records, for wal_files_begin */
	uint32_t bits;              /* of the tables */
	struct wal_place *numbers;  /* open addressing: by which number records call a file */
	struct wal_place *inodes;   /* the first file with numbers of device and inode */
	char *paths;
	uint64_t paths_end;
	int open;
};

/* 0 or -errno; wal_files_end must follow. */
int wal_files_begin(struct wal_files *w);
void wal_files_end(struct wal_files *w);

/* Takes the name of a WAL_NAME record, which gives its file a number for this epoch.  0; -EBADMSG: no program
 * makes such a log. */
int wal_files_take(struct wal_files *w, const struct wal_item *item);
/* The file of any record; a name gives it the number of its epoch.  NULL: there is none. */
struct wal_file *wal_files_find(struct wal_files *w, const struct wal_item *item);
/* The next name of the same file, `f` itself among them; NULL: no more.  `last`: the one before, or NULL. */
struct wal_file *wal_files_same(const struct wal_files *w, const struct wal_file *f,
                                const struct wal_file *last);

const char *wal_files_path(const struct wal_files *w, const struct wal_file *f);
/* What the log says of the file, in the form that recover_target_open takes. */
void wal_files_entry(const struct wal_files *w, const struct wal_file *f, struct arena_entry *out);
/* A descriptor of the file, until another one is opened; or -errno, as recover_target_open.  A file that is
 * missing has an orphan. */
int wal_files_open(struct wal_files *w, struct wal_file *f, const struct recover_place *place);

#endif
