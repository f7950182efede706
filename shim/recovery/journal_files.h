// SPDX-License-Identifier: Apache-2.0
/* journal_files: the files that a journal's entries name. */
#ifndef FASTWRITE_RECOVERY_JOURNAL_FILES_H
#define FASTWRITE_RECOVERY_JOURNAL_FILES_H

#include "recovery/journal_scan.h"

/* A file that entries name. */
struct entry_file {
	uint64_t number;  /* that entries name it by; 0 = free place */
	uint64_t name_at; /* content of its last JOURNAL_NAME, in the journal file */
	uint32_t name_bytes;
	uint64_t ino;
	int64_t btime_sec; /* tells a new file with the inode number of one that is gone */
	uint32_t btime_nsec;
	int result; /* 0 or -errno: what became of it */
	bool aside; /* its entries may be older than the file */
	bool held;  /* the arena says that it has what the entries have: they are kept only for safety */
	int64_t first_ns;           /* when the first entry that counts was written */
	uint64_t void_seq, void_at; /* entries before this place do not count */
	uint64_t bytes;             /* in the entries that count */
	int fd_plus_1;
	bool orphan;
	bool appends; /* append-only: the kernel writes at its end only */
	bool waits;   /* the arena still has bytes of it: its entries stay */
};

static inline bool files_has_bytes(const struct entry_file *file) { return file->number && file->bytes; }

/* Fills the table s->files: three walks over the entries.  0 or -errno. */
int files_collect(struct journal_scan *s);
void files_forget(struct journal_scan *s);
/* The file of a JOURNAL_DATA entry that counts; else NULL. */
struct entry_file *files_of_entry(const struct journal_scan *s, const struct journal_found *f);

/* What the journal says of the file, in the form that recover_target_open takes.  0 or -errno. */
int files_load_name(const struct journal_scan *s, const struct entry_file *file, struct arena_slot *out);
/* A descriptor of the file, or -errno.  -ENOENT only without `keep`: else a file that is gone becomes an
 * orphan. */
int files_open(struct journal_scan *s, struct entry_file *file, bool keep);
void files_close(struct journal_scan *s, struct entry_file *file);
void files_close_all(struct journal_scan *s);

#endif
