// SPDX-License-Identifier: Apache-2.0
/*
 * quote: paths within the commands that messages name.  A user pastes them: what the shell would take apart
 * must stay one word.
 */
#ifndef FASTWRITE_BASE_QUOTE_H
#define FASTWRITE_BASE_QUOTE_H

#include <stddef.h>

enum { QUOTE_MOST = 4, QUOTE_AROUND = 3 }; /* bytes for one of the text; and for the quotes around it */

/* `text` as one word of a shell, in out[size]; without quotes where it needs none.  $'...' where a line of
 * text cannot have its bytes.  Without a closing quote if it does not fit: a shell then runs nothing. */
const char *quote_word(char *out, size_t size, const char *text);

#endif
