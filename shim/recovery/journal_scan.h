// SPDX-License-Identifier: Apache-2.0
/*
 * journal_scan: reads a journal (format/journal_format.h) that another process wrote, and writes batches of
 * its own. Nothing that it reads is trusted.
 */
#ifndef FASTWRITE_RECOVERY_JOURNAL_SCAN_H
#define FASTWRITE_RECOVERY_JOURNAL_SCAN_H

#include "foreign/parse.h"
#include "foreign/target.h"
#include "format/journal_format.h"
#include "recovery/recover.h"

/* The batches of one half. */
struct journal_chain {
	unsigned half;
	uint64_t first_seq, batches;
	uint64_t end; /* offset in the half behind the last batch */
};
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
	int64_t first_ns; /* when the first entry that counts was put */
	int64_t late_ns;  /* until then the program was about to change it, as it said after the last one */
	uint64_t void_seq, void_at; /* entries before this place do not count */
	uint64_t bytes;             /* in the entries that count */
	int fd_plus_1;
	bool orphan;
	bool appends; /* append-only: the kernel writes at its end only */
	bool waits;   /* the arena still has bytes of it: its entries stay */
};

/* The recovery of one journal. */
struct journal_scan {
	const struct recover_options *opt;
	struct recover_report *report;
	const char *path; /* of the journal, for events */
	int fd, dirfd;
	struct recover_place place;
	enum origin_verdict where;
	bool in_aside;
	bool keeps;       /* some entries stay in the journal, to be put aside */
	bool changes;     /* this recovery has changed files, */
	int64_t noted_ns; /* and has said so then */
	struct journal_header header;
	uint8_t *batch;                 /* JOURNAL_BATCH_MAX */
	struct journal_chain chains[2]; /* the older half first */
	struct entry_file *files;       /* open addressing */
	uint64_t file_places;           /* a power of two */
	uint32_t place_bits;            /* file_places is 1 << that */
	uint64_t names;                 /* entries of type JOURNAL_NAME */
	uint64_t newest;                /* seq of the newest batch */
	uint64_t written_seq;           /* of the newest batch that is not of a recovery */
	int64_t written_ns;             /* when that was written */
	int open_files;
	bool told;                        /* for each file it was reported what became of it */
	int64_t boot_ns;                  /* when this kernel booted */
	struct journal_replay replayed;   /* by earlier recoveries */
	const struct foreign_arena *held; /* the arena beside it: which files are as left; or NULL */
	struct foreign_arena *waiting; /* the same arena, when its recovery failed for some files; or NULL */
};

/* An entry and its place. */
struct journal_found {
	struct journal_entry e;
	const uint8_t *content;
	uint64_t content_at; /* in the journal file */
	uint64_t seq, at;    /* the place: seq of the batch, offset in the batch */
};

typedef int journal_visitor(struct journal_scan *s, const struct journal_found *f);

/* An event for the caller of recover_path. */
void scan_tell(const struct journal_scan *s, const char *target, const char *action, uint64_t bytes,
               int error, const char *detail);
/* The same, of something that failed; counts it. */
void scan_failed(const struct journal_scan *s, const char *target, uint64_t bytes, int error,
                 const char *detail);

/* Loads and checks the header.  0; -ENODATA: its process died before it was complete; -EBADMSG; -ESTALE: a
 * copy of a journal; other -errno. */
int scan_load_header(struct journal_scan *s);
/* Memory for one batch.  0 or -errno. */
int scan_take_batch(struct journal_scan *s);
/* Finds the batches of both halves.  0 or -errno. */
int scan_find_chains(struct journal_scan *s);
/* Calls `visit` for every entry, in order, until it returns -errno.  That, or 0. */
int scan_walk(struct journal_scan *s, journal_visitor *visit);

/* Adds a batch at the end of the chain: `used` bytes in s->batch, which gets its header here, and zeros
 * afterwards.  0 or -errno. */
int scan_put_batch(struct journal_scan *s, struct journal_chain *c, uint32_t used);
/* Before the journal is removed, its header is overwritten durably: a loss of power may bring a removed file
 * back, and its entries must not overwrite what the files get from now on.  0 or -errno. */
int scan_end_for_good(struct journal_scan *s);

/* ---- files ---- */

static inline bool files_has_bytes(const struct entry_file *file) { return file->number && file->bytes; }

/* Fills the table s->files: three walks over the entries.  0 or -errno. */
int files_collect(struct journal_scan *s);
void files_forget(struct journal_scan *s);
/* Where in a table of s->file_places places a key belongs.  It is there, or less than so many places behind:
 * whoever makes a journal chooses the keys, and must not make a recovery search for hours. */
uint64_t files_place(const struct journal_scan *s, uint64_t key);
enum { FILES_TRIES_MOST = 1024 };
/* The file of a JOURNAL_DATA entry that counts; else NULL. */
struct entry_file *files_of_entry(const struct journal_scan *s, const struct journal_found *f);

/* What the journal says of the file, in the form that recover_target_open takes.  0 or -errno. */
int files_load_name(const struct journal_scan *s, const struct entry_file *file, struct arena_entry *out);
/* A descriptor of the file, or -errno.  -ENOENT only without `keep`: else a file that is gone becomes an
 * orphan. */
int files_open(struct journal_scan *s, struct entry_file *file, bool keep);
void files_close(struct journal_scan *s, struct entry_file *file);
void files_close_all(struct journal_scan *s);

#endif
