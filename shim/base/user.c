// SPDX-License-Identifier: Apache-2.0
/* user: see base/user.h. */
#include "base/user.h"

#include "base/process_pages.h"
#include "base/sys.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>

/*
 * rt_sigprocmask reads the new set before it rejects the operation -1 with EINVAL.  (process_vm_readv would
 * be the obvious call, but sandboxes forbid it.  They allow this one, which the library needs anyway.)
 */
static bool ask(uintptr_t page) { return sys_raw(SYS_rt_sigprocmask, -1, (long)page, 0, 8, 0, 0) == -EINVAL; }

static bool page_reads(struct user_pages *pages, uintptr_t page)
{
	for (int i = 0; i < USER_PAGES; i++)
		if (pages->known[i] == page)
			return page != 0;
	if (!ask(page))
		return false;
	pages->known[pages->next++ % USER_PAGES] = page;
	return true;
}

bool user_reads(struct user_pages *pages, const void *p, size_t n)
{
	uintptr_t first = (uintptr_t)p, last = first + n - 1;

	if (n == 0)
		return true;
	if (last < first)
		return false;
	first &= -(uintptr_t)USER_PAGE;
	for (uintptr_t page = first; page <= last; page += USER_PAGE)
		if (!page_reads(pages, page))
			return false;
	return true;
}

/*
 * Pages that could be written when the kernel was last asked: the address, shifted, and below it the number
 * of changes before that.  While that number is 0, no page is kept: so the empty table holds none.
 */
enum { FOUND = 1024, FOUND_SHIFT = 7 };
static const uint64_t found_changes = ((uint64_t)USER_PAGE << FOUND_SHIFT) - 1;
static _Atomic uint64_t found[FOUND];
static PROCESS_DATA _Atomic uint64_t changes = 1;

PROCESS_CODE void user_memory_changed(void)
{
	uint64_t before = atomic_fetch_add(&changes, 1);

	if (((before + 1) & found_changes) != 0)
		return;
	/* the numbers begin again */
	for (int i = 0; i < FOUND; i++)
		atomic_store_explicit(&found[i], 0, memory_order_relaxed);
}

/* The kernel changes the word at the beginning of the page into itself, atomically. */
static bool ask_writes(uintptr_t page)
{
	const uint32_t or_nothing = (uint32_t)FUTEX_OP_OR << 28;
	uint32_t nobody = 0;

	return sys_raw(SYS_futex, (long)&nobody, FUTEX_WAKE_OP_PRIVATE, 0, 0, (long)page, or_nothing) >= 0;
}

static bool page_writes(uintptr_t page)
{
	_Atomic uint64_t *slot = &found[page / USER_PAGE % FOUND];
	uint64_t number = atomic_load(&changes) & found_changes;
	uint64_t wanted = ((uint64_t)page << FOUND_SHIFT) | number;

	/* (no memory of a program has an address with the bits that the shift loses) */
	if (number == 0 || page >> (64 - FOUND_SHIFT) != 0)
		return ask_writes(page);
	if (atomic_load_explicit(slot, memory_order_relaxed) == wanted)
		return true;
	if (!ask_writes(page))
		return false;
	atomic_store_explicit(slot, wanted, memory_order_relaxed);
	return true;
}

bool user_writes(void *p, size_t n)
{
	uintptr_t first = (uintptr_t)p, last = first + n - 1;
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0) & -(uintptr_t)USER_PAGE;

	if (n == 0)
		return true;
	if (last < first)
		return false;
	for (uintptr_t page = first & -(uintptr_t)USER_PAGE; page <= last; page += USER_PAGE)
		if (page != frame && !page_writes(page))
			return false;
	return true;
}

bool user_reads_string(struct user_pages *pages, const char *s)
{
	for (;;) {
		size_t rest = USER_PAGE - ((uintptr_t)s & (USER_PAGE - 1));

		if (!user_reads(pages, s, rest))
			return false;
		if (memchr(s, '\0', rest))
			return true;
		s += rest;
	}
}

bool user_reads_list(char *const *list)
{
	struct user_pages pages = USER_PAGES_INIT;

	for (;; list++) {
		if (!user_reads(&pages, list, sizeof *list))
			return false;
		if (!*list)
			return true;
		if (!user_reads_string(&pages, *list))
			return false;
	}
}
