// SPDX-License-Identifier: Apache-2.0
/* error: composes the error line of a configuration. */
#include "config/internal.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>

enum { SHOWN_VALUE_MAX = 120, SHOWN_FILE_MAX = 160 };

/* "FILE:LINE: "; of a long path the end, which tells more. */
static size_t put_place(char *out, size_t size, const char *file, uint32_t line)
{
	size_t length = strlen(file);
	bool cut = length > SHOWN_FILE_MAX;

	return log_format(out, size, "%s%s:%u: ", cut ? "..." : "",
	                  cut ? file + length - SHOWN_FILE_MAX : file, line);
}

const char *config_variable(const char *key, char *out, size_t size)
{
	size_t used = log_format(out, size, "FASTWRITE_%s", key);

	for (size_t i = 0; i < used; i++)
		if (out[i] >= 'a' && out[i] <= 'z')
			out[i] = (char)(out[i] - 'a' + 'A');
	return out;
}

/* `key = "value": ` */
static size_t put_value(char *out, size_t size, const char *key, const char *value)
{
	char shown[SHOWN_VALUE_MAX];
	bool cut = log_format(shown, sizeof(shown), "%s", value) < strlen(value);

	return log_format(out, size, "%s = \"%s%s\": ", key, shown, cut ? "..." : "");
}

int config_fail(struct config *c, int code, const struct setting *at, const char *format, ...)
{
	char variable[64];
	char *text = c->error;
	size_t used = 0, size = sizeof(c->error);
	const char *key = at->key;
	va_list args;

	if (at->origin.source == SOURCE_ENV)
		key = config_variable(key, variable, sizeof(variable));
	else if (at->origin.line != 0)
		used = put_place(text, size, c->file, at->origin.line);
	if (at->value != NULL)
		used += put_value(text + used, size - used, key, at->value);
	else if (at->origin.source == SOURCE_ENV)
		used += log_format(text + used, size - used, "%s: ", key);
	va_start(args, format);
	log_vformat(text + used, size - used, format, args);
	va_end(args);
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
	return code;
}

int config_check_comment(struct config *c, const struct setting *at)
{
	for (const char *text = at->value; *text != '\0'; text++) {
		if (*text == '\\' && text[1] != '\0')
			text++;
		else if ((*text == ' ' || *text == '\t') && text[1] == '#')
			return config_fail(c, -EINVAL, at,
			                   "a comment behind a value begins with ' ;', not with ' #'");
	}
	return 0;
}
