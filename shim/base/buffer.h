// SPDX-License-Identifier: Apache-2.0
/*
 * buffer: buffers of a path's size that do not lie on the stack.
 *
 * A thread of the program may have 16 KiB of stack in all, and a signal handler half of that: what the library
 * needs beyond a few hundred bytes it takes from here.  Lock-free, and there is always one to have: when a small
 * fixed number is in use the next one is mapped.  Called by everything below the hooks.
 */
#ifndef FASTWRITE_BUFFER_H
#define FASTWRITE_BUFFER_H

enum { BUFFER_BYTES = 4096 + 512 };

/* BUFFER_BYTES, aligned for anything, whatever is in them. */
void *buffer_take(void);
void buffer_give(void *buffer);

static inline void buffer_leave(void *variable) { buffer_give(*(void **)variable); }

/* type *name, until the end of the block; the type is no larger than a buffer */
#define BUFFER(type, name) \
	_Static_assert(sizeof(type) <= BUFFER_BYTES, "too large for a buffer"); \
	type *name __attribute__((cleanup(buffer_leave))) = buffer_take()

#endif
