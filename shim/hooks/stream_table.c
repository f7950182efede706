// SPDX-License-Identifier: Apache-2.0
/*
 * stream_table: what the C library's streams do to descriptors.
 *
 * fprintf, fread and fclose reach the kernel by calls inside the C library, which no exported symbol
 * intercepts.  But every file stream calls its read, write, seek, close and stat through one of two tables,
 * one for narrow and one for wide streams.  At the start the library finds their entries by value and
 * replaces them in place.  So existing streams follow, too, and the C library's check of a table's address
 * still succeeds.
 *
 * Each function here does the work of the replaced one for managed and noted descriptors
 * (descriptors/unresolved.h), and calls the replaced one for all others.  The fields of a stream that write
 * updates differ between versions of the C library.  So the library learns them from the replaced function,
 * on a FILE made for that purpose.  Before the first file is managed, each entry must pass a test on a pipe.
 * Otherwise all entries are restored, and files with a stream are bypassed.
 *
 * With the versions of glibc with which the hook programs run (tests/run_glibc.py) the streams on a pipe are
 * left out: they take 18 system calls.  The debug build always tries them.
 */
#include "hooks/stream_table.h"

#include "base/log.h"
#include "base/sys.h"
#include "files/fdtable.h"
#include "hooks/cancel.h"
#include "hooks/hook.h"
#include "hooks/next.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <wchar.h>

enum slot { SLOT_READ, SLOT_WRITE, SLOT_SEEK, SLOT_CLOSE, SLOT_STAT, SLOTS };
enum { TABLES = 2, ALL_SLOTS = (1 << SLOTS) - 1 };

static const char *const table_symbols[TABLES] = {"_IO_file_jumps", "_IO_wfile_jumps"};

static struct {
	uintptr_t table[TABLES];
	_Atomic uintptr_t *place[TABLES][SLOTS];
	uintptr_t replaced[SLOTS];
	/* glibc 2.42 and later: offset in a FILE of the 64-bit count of bytes written; 0 = none */
	size_t counter;
	/* the C library is not the reason: no free descriptor */
	bool poor;
} slots;

/* During the test: which entries were called for one of these descriptors. */
static struct {
	bool on;
	int fds[2];
	unsigned seen;
} trial;

static void note(const FILE *stream, enum slot which)
{
	if (__builtin_expect(trial.on, 0) &&
	    (stream->_fileno == trial.fds[0] || stream->_fileno == trial.fds[1]))
		trial.seen |= 1u << which;
}

#define REPLACED(slot, result, ...) ((result(*)(__VA_ARGS__))slots.replaced[slot])

static ssize_t next_write(FILE *stream, const void *data, ssize_t size)
{
	return REPLACED(SLOT_WRITE, ssize_t, FILE *, const void *, ssize_t)(stream, data, size);
}

/* ---- the functions ---- */

/* The C library's own functions are one, too, unless the stream's mode has a 'c'. */
static void stream_cancel_point(const FILE *stream)
{
	enum { NOT_CANCELLED = 2 }; /* _IO_FLAGS2_NOTCANCEL */

	if (!(stream->_flags2 & NOT_CANCELLED))
		cancel_point();
}

/* Updates the stream as write does after `done` bytes went out.  `failed`: one more call failed. */
static void keep_books(FILE *stream, ssize_t done, bool failed)
{
	if (failed)
		stream->_flags |= _IO_ERR_SEEN;
	if (stream->_offset >= 0)
		stream->_offset += done;
	if (slots.counter) {
		uint64_t *counter = (uint64_t *)(void *)((char *)stream + slots.counter);

		*counter += (uint64_t)done;
	}
}

/* One write to a managed or noted descriptor: bytes or -errno.  IO_PASS: the C library must write the rest.
 * If *counted is not 0, unresolved_written must follow. */
static long put(int fd, const void *data, size_t size, uint32_t *counted)
{
	struct ofd *o = unresolved_write(fd, size, counted);

	return o ? io_write(fd, o, data, size) : IO_PASS;
}

static bool is_bypassed_now(int fd)
{
	struct ofd *o = fdtable_get(fd);

	return o ? atomic_load(&atomic_load(&o->file)->mode) == FILE_BYPASSED : !fdtable_knows(fd);
}

static ssize_t slot_write(FILE *stream, const void *data, ssize_t size)
{
	int fd = stream->_fileno;
	ssize_t done = 0;
	bool failed = false;
	int asks = 0;

	if (!fdtable_knows(fd)) {
		note(stream, SLOT_WRITE);
		return next_write(stream, data, size);
	}
	stream_cancel_point(stream); /* not later, when bytes are out that the stream does not count */
	while (done < size && !failed) {
		const char *rest = (const char *)data + done;
		uint32_t counted;
		long r = put(fd, rest, (size_t)(size - done), &counted);

		if (r == IO_PASS && !counted && asks++ < ASK_TRIES && !is_bypassed_now(fd))
			continue; /* fd may refer to another description by now (fd_dup_onto_prepare) */
		if (r == IO_PASS) {
			keep_books(stream, done, false);
			r = next_write(stream, rest, size - done);
			if (counted)
				unresolved_written(fd, counted);
			return r < 0 ? r : done + r;
		}
		failed = r < 0;
		if (failed)
			errno = (int)-r;
		else
			done += r;
	}
	keep_books(stream, done, failed);
	return done;
}

static ssize_t slot_read(FILE *stream, void *data, ssize_t size)
{
	int fd = stream->_fileno;
	struct ofd *o = unresolved_moved(fd);
	long r = IO_PASS;

	if (o) {
		stream_cancel_point(stream);
		r = io_read_at(fd, o, data, (size_t)size, IO_NO_OFFSET);
	}
	if (r != IO_PASS)
		return hook_result(r);
	note(stream, SLOT_READ);
	return REPLACED(SLOT_READ, ssize_t, FILE *, void *, ssize_t)(stream, data, size);
}

static off64_t slot_seek(FILE *stream, off64_t offset, int whence)
{
	int fd = stream->_fileno;
	struct ofd *o = unresolved_moved(fd);
	long r = o ? io_lseek(fd, o, offset, whence) : IO_PASS;

	if (r != IO_PASS)
		return hook_result(r);
	note(stream, SLOT_SEEK);
	return REPLACED(SLOT_SEEK, off64_t, FILE *, off64_t, int)(stream, offset, whence);
}

static int slot_close(FILE *stream)
{
	long staged = FD_PASS;
	int r;

	marked_fds_forget(stream->_fileno);
	if (fdtable_knows(stream->_fileno))
		staged = fd_close_prepare(stream->_fileno);
	else
		note(stream, SLOT_CLOSE);
	r = REPLACED(SLOT_CLOSE, int, FILE *)(stream);
	return r == 0 && staged != FD_PASS ? (int)hook_result(staged) : r;
}

static int slot_stat(FILE *stream, void *out)
{
	int (*next)(FILE *, void *) = REPLACED(SLOT_STAT, int, FILE *, void *);
	struct hook_look look = hook_look();
	int r;

	unresolved_use(stream->_fileno);
	do
		r = next(stream, out);
	while (hook_looks_again(&look, r, stream->_fileno, NULL, out));
	note(stream, SLOT_STAT);
	return r;
}

static const char *const slot_symbols[SLOTS] = {
	[SLOT_READ] = "_IO_file_read",   [SLOT_WRITE] = "_IO_file_write", [SLOT_SEEK] = "_IO_file_seek",
	[SLOT_CLOSE] = "_IO_file_close", [SLOT_STAT] = "_IO_file_stat",
};

static uintptr_t ours(enum slot which)
{
	switch (which) {
	case SLOT_READ: return (uintptr_t)slot_read;
	case SLOT_WRITE: return (uintptr_t)slot_write;
	case SLOT_SEEK: return (uintptr_t)slot_seek;
	case SLOT_CLOSE: return (uintptr_t)slot_close;
	default: return (uintptr_t)slot_stat;
	}
}

/* ---- find ---- */

/* The only entry of a table that holds `function`; NULL if there is none or more than one. */
static _Atomic uintptr_t *find_entry(_Atomic uintptr_t *table, size_t entries, uintptr_t function)
{
	_Atomic uintptr_t *found = NULL;

	for (size_t i = 0; i < entries; i++) {
		if (atomic_load(&table[i]) != function)
			continue;
		if (found)
			return NULL;
		found = &table[i];
	}
	return found;
}

/* NULL: there is none. */
static void *find_object(const char *name, size_t *bytes)
{
	const Elf64_Sym *symbol;
	Dl_info info;
	void *start = next_object(name, bytes);

	if (start != NEXT_UNKNOWN)
		return start;
	start = dlsym(RTLD_NEXT, name);
	if (!start || !dladdr1(start, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol ||
	    info.dli_saddr != start)
		return NULL;
	*bytes = symbol->st_size;
	return start;
}

static bool find_table(int table)
{
	size_t bytes;
	void *start = find_object(table_symbols[table], &bytes);

	if (!start)
		return false;
	slots.table[table] = (uintptr_t)start;
	for (int which = 0; which < SLOTS; which++) {
		_Atomic uintptr_t *place = find_entry(start, bytes / sizeof *place, slots.replaced[which]);

		if (!place)
			return false;
		slots.place[table][which] = place;
	}
	return true;
}

static bool find_all(void)
{
	for (int which = 0; which < SLOTS; which++) {
		void *function = next_function(slot_symbols[which]);

		if (function == NEXT_UNKNOWN)
			function = dlsym(RTLD_NEXT, slot_symbols[which]);
		if (!function)
			return false;
		slots.replaced[which] = (uintptr_t)function;
	}
	return find_table(0) && find_table(1);
}

/* ---- replace ---- */

struct object {
	uintptr_t page;
	int prot; /* of the page, or -1 */
};

static uintptr_t page_of(uintptr_t address) { return address & -(uintptr_t)getauxval(AT_PAGESZ); }

/* The loader has protected all objects as they say, before any constructor runs. */
static int look_in_object(struct dl_phdr_info *info, size_t size, void *ctx)
{
	struct object *o = ctx;
	bool relocated = false;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const Elf64_Phdr *h = &info->dlpi_phdr[i];
		uintptr_t from = info->dlpi_addr + h->p_vaddr, to = from + h->p_memsz;

		if (o->page < page_of(from) || o->page >= to)
			continue;
		if (h->p_type == PT_LOAD)
			o->prot = (h->p_flags & PF_R ? PROT_READ : 0) | (h->p_flags & PF_W ? PROT_WRITE : 0) |
			          (h->p_flags & PF_X ? PROT_EXEC : 0);
		relocated |= h->p_type == PT_GNU_RELRO && o->page < page_of(to);
	}
	if (o->prot >= 0 && relocated)
		o->prot = PROT_READ;
	return o->prot >= 0;
}

typedef int each_object(int (*look)(struct dl_phdr_info *, size_t, void *), void *ctx);

/* Protection of the page, or -1. */
static int protection_of(uintptr_t page)
{
	/* (not the program's own: it has not begun) */
	static const char name[] = "dl_iterate_phdr";
	struct object o = {.page = page, .prot = -1};
	void *each = next_function(name);

	if (each == NEXT_UNKNOWN)
		each = dlsym(RTLD_NEXT, name);
	if (each)
		((each_object *)(uintptr_t)each)(look_in_object, &o);
	return o.prot;
}

/* The page that is writable for now. */
struct window {
	uintptr_t page;
	int prot; /* its protection before, restored afterwards */
};

static long protect(uintptr_t page, int prot)
{
	return sys_raw(SYS_mprotect, (long)page, (long)getauxval(AT_PAGESZ), prot, 0, 0, 0);
}

static void window_close(struct window *w)
{
	if (w->page && !(w->prot & PROT_WRITE))
		protect(w->page, w->prot);
	w->page = 0;
}

static bool window_move(struct window *w, uintptr_t address)
{
	uintptr_t page = page_of(address);

	if (w->page == page)
		return true;
	window_close(w);
	w->prot = protection_of(page);
	if (w->prot < 0 || (!(w->prot & PROT_WRITE) && protect(page, w->prot | PROT_WRITE) < 0))
		return false;
	w->page = page;
	return true;
}

/* Puts our functions into the tables, or restores the former ones. */
static bool exchange(bool back)
{
	struct window w = {0};
	bool done = true;

	for (int table = 0; table < TABLES && done; table++) {
		for (int which = 0; which < SLOTS && done; which++) {
			_Atomic uintptr_t *place = slots.place[table][which];

			done = window_move(&w, (uintptr_t)place);
			if (done)
				atomic_store(place, back ? slots.replaced[which] : ours((enum slot)which));
		}
	}
	window_close(&w);
	return done;
}

/* ---- test ---- */

/* A FILE for write alone: without lock, list and buffer. */
union books {
	FILE stream;
	uint64_t words[sizeof(FILE) / sizeof(uint64_t)];
};
_Static_assert(sizeof(FILE) % sizeof(uint64_t) == 0, "a FILE is seen as words");

static void books_open(union books *b, int fd)
{
	memset(b, 0, sizeof *b);
	b->stream._fileno = fd;
	b->stream._offset = 1000;
}

/* Finds the word besides the offset in which the C library's write counts bytes. */
static void learn_counter(const union books *before, const union books *after, ssize_t size)
{
	for (size_t i = 0; i < sizeof before->words / sizeof *before->words; i++) {
		size_t at = i * sizeof *before->words;

		if (at != offsetof(FILE, _offset) && after->words[i] - before->words[i] == (uint64_t)size)
			slots.counter = at;
	}
}

/* True if keep_books changes a stream exactly as the C library does: after a write to `to`, and after a
 * failed write to `from`, the reading end. */
static bool learn_books(int from, int to)
{
	static const char data[3] = "abc";
	union books mine, theirs;
	char back[sizeof data];
	bool same;

	books_open(&mine, to);
	books_open(&theirs, to);
	if (next_write(&theirs.stream, data, sizeof data) != sizeof data ||
	    sys.read(from, back, sizeof back) != sizeof back || memcmp(back, data, sizeof data) != 0)
		return false;
	learn_counter(&mine, &theirs, sizeof data);
	keep_books(&mine.stream, sizeof data, false);
	same = memcmp(&mine, &theirs, sizeof mine) == 0;
	books_open(&mine, from);
	books_open(&theirs, from);
	same = same && next_write(&theirs.stream, data, sizeof data) == 0;
	keep_books(&mine.stream, 0, true);
	return same && memcmp(&mine, &theirs, sizeof mine) == 0;
}

/* Writes a line to one stream and reads it from the other; then a seek, which fails on a pipe. */
static bool use_streams(FILE *in, FILE *out, bool wide)
{
	static const wchar_t wide_line[] = L"wide\n";
	static const char line[] = "narrow\n";
	wchar_t wide_back[8] = L"";
	char back[8] = "";

	if (wide)
		return fputws(wide_line, out) >= 0 && fflush(out) == 0 && fgetws(wide_back, 8, in) &&
		       wcscmp(wide_back, wide_line) == 0 && fseek(out, 0, SEEK_END) < 0;
	return fputs(line, out) >= 0 && fflush(out) == 0 && fgets(back, 8, in) && strcmp(back, line) == 0 &&
	       fseek(out, 0, SEEK_END) < 0;
}

/* Tests every entry of one table, with streams on both ends of a pipe. */
static bool try_table(const int fds[2], bool wide)
{
	char in_buffer[64], out_buffer[64];
	FILE *in = real.fdopen(fds[0], "r");
	FILE *out = real.fdopen(fds[1], "w");
	bool fine = in && out;

	trial.fds[0] = fds[0];
	trial.fds[1] = fds[1];
	trial.seen = 0;
	trial.on = true;
	if (fine)
		fine = setvbuf(in, in_buffer, _IOFBF, sizeof in_buffer) == 0 &&
		       setvbuf(out, out_buffer, _IOFBF, sizeof out_buffer) == 0 && use_streams(in, out, wide);
	if (out)
		fine = real.fclose(out) == 0 && fine;
	else
		sys.close(fds[1]);
	if (in)
		fine = real.fclose(in) == 0 && fine;
	else
		sys.close(fds[0]);
	trial.on = false;
	return fine && trial.seen == ALL_SLOTS;
}

static bool make_pipe(int fds[2])
{
	bool made = sys_raw(SYS_pipe2, (long)fds, O_CLOEXEC | O_NONBLOCK, 0, 0, 0, 0) == 0;

	slots.poor |= !made;
	return made;
}

static void close_pipe(const int fds[2])
{
	sys.close(fds[0]);
	sys.close(fds[1]);
}

/* Leaves the pipe open, and empty. */
static bool try_books(int fds[2])
{
	if (!make_pipe(fds))
		return false;
	if (learn_books(fds[0], fds[1]))
		return true;
	close_pipe(fds);
	return false;
}

/* Closes the pipe. */
static bool try_tables(int fds[2]) { return try_table(fds, false) && make_pipe(fds) && try_table(fds, true); }

/* ---- installation ---- */

/* In the debug build a test makes one step fail. */
static bool spoiled(const char *step)
{
#ifdef FASTWRITE_DEBUG
	const char *chosen = getenv("FASTWRITE_TEST_SLOTS");

	return chosen && strcmp(chosen, step) == 0;
#else
	(void)step;
	return false;
#endif
}

static bool is_tested_version(void)
{
#ifdef FASTWRITE_DEBUG
	return false;
#else
	enum { MAJOR = 2, OLDEST = 31, NEWEST = 41 };
	const char *version = gnu_get_libc_version();
	int minor = 0;

	if (version[0] != '0' + MAJOR || version[1] != '.')
		return false;
	for (const char *c = version + 2; *c >= '0' && *c <= '9' && minor <= NEWEST; c++)
		minor = minor * 10 + *c - '0';
	return minor >= OLDEST && minor <= NEWEST;
#endif
}

static const char *install(void)
{
	const char *why = NULL;
	int fds[2];

	if (spoiled("find") || !find_all())
		return "their tables were not found in this C library";
	if (spoiled("books") || !try_books(fds))
		return "this C library writes them in a way that is not known";
	if (spoiled("exchange") || !exchange(false)) {
		why = "their tables cannot be changed";
		close_pipe(fds);
	} else if (is_tested_version()) {
		close_pipe(fds);
	} else if (!try_tables(fds) || spoiled("try")) {
		why = "they did not pass the check at the start";
	}
	if (why)
		exchange(true);
	return why;
}

void stream_table_install(void)
{
	int before = errno;
	const char *why;

	why = install();
	dlerror(); /* the program must not see the errors of our lookups */
	fd_streams_seen = why == NULL;
	if (why)
		log_line(slots.poor ? LOG_INFO : LOG_WARN, "files with a stream (FILE) are bypassed: %s%s",
		         why, slots.poor ? " (no descriptor to spare)" : "");
	errno = before;
}

bool stream_table_sees(const FILE *stream)
{
	/* the C library stores the table's address behind the public part of a FILE */
	uintptr_t table = *(const uintptr_t *)(const void *)(stream + 1);

	return fd_streams_seen && (table == slots.table[0] || table == slots.table[1]);
}
