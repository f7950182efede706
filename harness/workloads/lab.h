// SPDX-License-Identifier: Apache-2.0
/*
 * lab: what the laboratory's workload programs share: the record pattern, the progress file, option
 * parsing and a few system-call wrappers that either work or end the program with a clear line.
 *
 * Pattern.  A record is `record_bytes` long.  Its first 8 bytes (little endian) are
 * LAB_TAG << 56 | thread << 40 | record number; the 8-byte words after it are seed + k * odd constant,
 * where the seed is a mix of that first word.  So every byte is determined by (thread, record number,
 * position), and a record found in the wrong place says where it belongs.
 *
 * Progress file.  One page of header, then one 64-byte slot per thread, mapped MAP_SHARED.  A thread
 * stores the number of records whose write has returned into its slot after each return; the page is
 * the kernel's, so the count survives SIGKILL and is the acknowledged-writes log of the kill test.
 * The harness reads the same bytes (harness/core/progress.py): change both together.
 */
#ifndef LAB_H
#define LAB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	LAB_ALIGN = 4096, /* alignment of buffers and of O_DIRECT writes */
	LAB_PROGRESS_HEADER = 4096,
	LAB_THREADS_MAX = 4096,
	LAB_EXIT_FAILED = 1, /* the work or the verification failed */
	LAB_EXIT_USAGE = 2,
	LAB_EXIT_SKIP = 77, /* something that this machine lacks; stderr says what */
};
#define LAB_TAG UINT64_C(0xf5)
#define LAB_PROGRESS_MAGIC UINT64_C(0x3142414c57465f5f)

enum lab_phase { LAB_PREPARE = 0, LAB_WRITING = 1, LAB_SYNCED = 2, LAB_DONE = 3 };

struct lab_progress_header {
	uint64_t magic;
	uint64_t threads;
	uint64_t records; /* per thread */
	uint64_t record_bytes;
	_Atomic uint64_t phase;    /* enum lab_phase */
	_Atomic uint64_t start_ns; /* CLOCK_MONOTONIC when writing began */
	_Atomic uint64_t end_ns;   /* CLOCK_MONOTONIC when the last sync had returned */
	char unused[LAB_PROGRESS_HEADER - 7 * 8];
};

struct lab_progress_slot {
	_Atomic uint64_t acked; /* records whose write has returned */
	char unused[56];
};

struct lab_progress {
	struct lab_progress_header header;
	struct lab_progress_slot slot[];
};

_Static_assert(sizeof(struct lab_progress_header) == LAB_PROGRESS_HEADER, "one page");
_Static_assert(sizeof(struct lab_progress_slot) == 64, "one cache line");

/* The first word of a record; unpack is its inverse and returns false for a word that is none. */
uint64_t lab_record_word(uint64_t thread, uint64_t record);
bool lab_record_unpack(uint64_t word, uint64_t *thread, uint64_t *record);

/* Write the pattern of one record to out, which has room for bytes rounded up to 8. */
void lab_record_fill(void *out, size_t bytes, uint64_t thread, uint64_t record);

/* Map the progress file: create it (sized and zeroed), or open what a run has left. */
struct lab_progress *lab_progress_create(const char *path, uint64_t threads, uint64_t records,
                                         uint64_t record_bytes);
const struct lab_progress *lab_progress_open(const char *path);

uint64_t lab_now_ns(void);
void *lab_buffer(size_t bytes); /* LAB_ALIGN-aligned, touched, never NULL */

/* "program: what: strerror(errno)" to stderr, exit LAB_EXIT_FAILED. */
void lab_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* The same without errno, exit LAB_EXIT_USAGE. */
void lab_usage(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Decimal number in [low, high], or lab_usage naming the option. */
uint64_t lab_number(const char *option, const char *text, uint64_t low, uint64_t high);

/* Index of text among names (NULL at the end), or lab_usage naming the option. */
int lab_choice(const char *option, const char *text, const char *const *names);

/* DIR/NAMEn into out. */
void lab_path(char *out, size_t size, const char *dir, const char *name, uint64_t n);

#endif
