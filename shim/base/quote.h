// SPDX-License-Identifier: Apache-2.0
/*
 * quote: paths within the commands that messages name.  A user pastes them: what the shell would take apart
 * must stay one word.
 */
#ifndef FASTWRITE_BASE_QUOTE_H
#define FASTWRITE_BASE_QUOTE_H

#include <limits.h>
#include <stddef.h>

enum { QUOTE_PATH_MAX = 4 * PATH_MAX + 3 }; /* of a path, each byte may take four, and the quotes three */

/* `text` as one word of a shell, in out[size]; without quotes where it needs none.  $'...' where a line of
 * text cannot have its bytes.  Without a closing quote if it does not fit: a shell then runs nothing. */
const char *quote_word(char *out, size_t size, const char *text);

#endif
