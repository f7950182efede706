// SPDX-License-Identifier: Apache-2.0
/* quote: see base/quote.h. */
#include "base/quote.h"

#include "base/log.h"

#include <stdbool.h>
#include <string.h>

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c != '\0' && strchr("_./:@%+=,-", c));
}

static bool is_control(char c) { return (unsigned char)c < 0x20 || c == 0x7f; }

const char *quote_word(char *out, size_t size, const char *text)
{
	bool plain = text[0] != '\0', control = false;
	size_t n;

	for (const char *p = text; *p; p++) {
		plain &= is_plain(*p);
		control |= is_control(*p);
	}
	if (plain) {
		log_format(out, size, "%s", text);
		return out;
	}
	n = log_format(out, size, control ? "$'" : "'");
	for (const char *p = text; *p && n + 1 < size; p++) {
		unsigned c = (unsigned char)*p;

		if (is_control(*p))
			n += log_format(out + n, size - n, "\\%u%u%u", c >> 6, c >> 3 & 7, c & 7);
		else if (*p == '\'')
			n += log_format(out + n, size - n, control ? "\\'" : "'\\''");
		else if (*p == '\\' && control)
			n += log_format(out + n, size - n, "\\\\");
		else
			n += log_format(out + n, size - n, "%c", *p);
	}
	log_format(out + n, size - n, "'");
	return out;
}
