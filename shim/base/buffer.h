// SPDX-License-Identifier: Apache-2.0
/*
 * buffer: buffers that do not lie on the stack.
 *
 * A thread of the program may have 16 KiB of stack, and a signal handler half of that.  So the library takes
 * every buffer of more than a few hundred bytes from here.  Lock-free.  Taking one never fails: when all
 * fixed buffers of a size are in use, another one is mapped.  Called by everything below the hooks.
 */
#ifndef FASTWRITE_BASE_BUFFER_H
#define FASTWRITE_BASE_BUFFER_H

enum {
	BUFFER_BYTES = 4096 + 512, /* a path, and a line around it */
	BUFFER_LARGE_BYTES = 16 << 10
};

/* Aligned to 64, not cleared. */
void *buffer_take(void);
void buffer_give(void *buffer);
void *buffer_take_large(void);
void buffer_give_large(void *buffer);

/* In the child of a fork: gives back what the threads had that the child does not have. */
void buffer_fork_child(void);

static inline void buffer_leave(void *variable) { buffer_give(*(void **)variable); }

/* Declares `type *name`, valid until the end of the block.  sizeof(type) <= BUFFER_BYTES. */
#define BUFFER(type, name) \
	_Static_assert(sizeof(type) <= BUFFER_BYTES, "too large for a buffer"); \
	type *name __attribute__((cleanup(buffer_leave))) = buffer_take()

#endif
