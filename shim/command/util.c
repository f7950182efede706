// SPDX-License-Identifier: Apache-2.0
/* util: messages, paths and JSON of the command. */
#include "command/command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *verb_now = "";

void cli_set_verb(const char *verb) { verb_now = verb; }

void cli_put_name(FILE *out, const char *name)
{
	for (const char *c = name; *c != '\0'; c++)
		fputc((unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c, out);
}

void cli_error(const char *format, ...)
{
	char *text = NULL;
	va_list args;

	fflush(stdout);
	fprintf(stderr, "fastwrite%s%s: ", *verb_now ? " " : "", verb_now);
	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	cli_put_name(stderr, text != NULL ? text : "out of memory for a message");
	fputc('\n', stderr);
	free(text);
}

/* ---- paths ---- */

static int executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return -errno;
	if (S_ISDIR(st.st_mode) || access(path, X_OK) != 0)
		return -EACCES;
	return 0;
}

int cli_find_program(const char *name, char *out)
{
	const char *list = getenv("PATH");
	int rc = -ENOENT;

	if (*name == '\0')
		return -ENOENT;
	if (strchr(name, '/') != NULL) {
		rc = executable(name);
		if (rc == -ENOTDIR)
			return -ENOENT;
		return rc != 0 ? rc : cli_canonical(name, out);
	}
	if (list == NULL)
		list = "/bin:/usr/bin";
	for (;;) {
		size_t length = strcspn(list, ":");
		char candidate[PATH_MAX];
		int n = snprintf(candidate, sizeof(candidate), "%.*s%s%s", (int)length, list,
		                 length ? "/" : "./", name);
		if (n > 0 && (size_t)n < sizeof(candidate)) {
			int found = executable(candidate);
			if (found == 0)
				return cli_canonical(candidate, out);
			if (found == -EACCES)
				rc = -EACCES;
		}
		if (list[length] == '\0')
			return rc;
		list += length + 1;
	}
}

/* A link as the last component is followed only where it leads to something. */
static int canonical_name(const char *path, char *out)
{
	char parent[PATH_MAX];
	const char *name = strrchr(path, '/');
	size_t length = name != NULL ? (size_t)(name - path) : 0;

	if (realpath(path, out) != NULL)
		return 0;
	if (errno != ENOENT)
		return -errno;
	if (length >= sizeof(parent))
		return -ENAMETOOLONG;
	if (name == NULL) {
		name = path;
		strcpy(parent, ".");
	} else {
		memcpy(parent, path, length);
		strcpy(parent + length, length == 0 ? "/" : "");
		name++;
	}
	if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return -ENOENT;
	if (realpath(parent, out) == NULL)
		return -errno;
	length = strlen(out);
	int n = snprintf(out + length, PATH_MAX - length, "%s%s", strcmp(out, "/") == 0 ? "" : "/", name);
	return (size_t)n < PATH_MAX - length ? 0 : -ENAMETOOLONG;
}

int cli_canonical(const char *path, char *out)
{
	enum { LINKS_MAX = 40 }; /* as the kernel */
	char now[PATH_MAX], target[PATH_MAX];

	if (strlen(path) >= sizeof(now))
		return -ENAMETOOLONG;
	strcpy(now, path);
	for (int i = 0; i < LINKS_MAX; i++) {
		int rc = canonical_name(now, out);
		ssize_t n = rc == 0 ? readlink(out, target, sizeof(target) - 1) : -1;
		if (n < 0)
			return rc;
		target[n] = '\0';
		int dir = target[0] == '/' ? 0 : (int)(strrchr(out, '/') + 1 - out);
		if (snprintf(now, sizeof(now), "%.*s%s", dir, out, target) >= (int)sizeof(now))
			return -ENAMETOOLONG;
	}
	return -ELOOP;
}

/* ---- JSON ---- */

size_t cli_utf8_length(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 0;

	if (s[0] >= 0xf0 && s[0] < 0xf5)
		length = 4;
	for (size_t i = 1; i < length; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	}
	if (length == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0)))
		return 0;
	if (length == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90)))
		return 0;
	return length;
}

/* A byte that is not UTF-8 becomes a lone low surrogate, as with Python's surrogateescape. */
static void put_string(FILE *out, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	fputc('"', out);
	while (*s != '\0') {
		size_t length = cli_utf8_length((const char *)s);
		if (length == 0) {
			fprintf(out, "\\udc%02x", *s++);
			continue;
		}
		if (*s == '"' || *s == '\\')
			fprintf(out, "\\%c", *s);
		else if (*s < 0x20 || *s == 0x7f)
			fprintf(out, "\\u%04x", *s);
		else
			fwrite(s, 1, length, out);
		s += length;
	}
	fputc('"', out);
}

static void begin_member(struct json *j, const char *key)
{
	if (j->comma)
		fputc(',', j->out);
	if (j->depth > 0) {
		fputc('\n', j->out);
		for (unsigned i = 0; i < j->depth; i++)
			fputs("  ", j->out);
	}
	if (key != NULL) {
		put_string(j->out, key);
		fputs(": ", j->out);
	}
	j->comma = true;
}

void json_open(struct json *j, const char *key, char bracket)
{
	begin_member(j, key);
	fputc(bracket, j->out);
	j->depth++;
	j->comma = false;
}

void json_close(struct json *j, char bracket)
{
	j->depth--;
	if (j->comma) {
		fputc('\n', j->out);
		for (unsigned i = 0; i < j->depth; i++)
			fputs("  ", j->out);
	}
	fputc(bracket, j->out);
	j->comma = true;
	if (j->depth == 0)
		fputc('\n', j->out);
}

void json_text(struct json *j, const char *key, const char *value)
{
	begin_member(j, key);
	if (value == NULL)
		fputs("null", j->out);
	else
		put_string(j->out, value);
}

void json_number(struct json *j, const char *key, long long value)
{
	begin_member(j, key);
	fprintf(j->out, "%lld", value);
}

void json_bool(struct json *j, const char *key, bool value)
{
	begin_member(j, key);
	fputs(value ? "true" : "false", j->out);
}
