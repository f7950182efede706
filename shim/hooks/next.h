// SPDX-License-Identifier: Apache-2.0
/*
 * next: finds the next definition of a symbol behind the library's own, as dlsym(RTLD_NEXT) does, in a tenth
 * of the time: it looks into the hash tables of the objects, and asks for nothing that a hook does not need.
 *
 * For the constructor: objects that were loaded at the start stay.
 */
#ifndef FASTWRITE_HOOKS_NEXT_H
#define FASTWRITE_HOOKS_NEXT_H

#include <stddef.h>

#define NEXT_UNKNOWN ((void *)-1)

/* The function, in its default version.  NULL: no object has such a symbol.  NEXT_UNKNOWN: dlsym has to look.
 */
void *next_function(const char *name);
/* The same for data, of *bytes bytes. */
void *next_object(const char *name, size_t *bytes);
/* The path of this library, as the loader found it; NULL: it is not known here. */
const char *next_own_path(void);

#endif
