// SPDX-License-Identifier: Apache-2.0
/*
 * config_internal: what the parts of config share while a configuration is being loaded.
 *
 * config/config.c        order of sources, merging, checks across keys
 * config/key.c    the table of keys: names, limits, parsing and printing of values
 * config/file.c   the INI file
 * config/paths.c  pattern lists
 */
#ifndef FASTWRITE_CONFIG_INTERNAL_H
#define FASTWRITE_CONFIG_INTERNAL_H

#include "config/config.h"

/* Where a value stands, for messages. */
struct origin {
	const char *variable; /* environment variable, or NULL: then a line of the file */
	const char *file;
	uint32_t line;
};

/* Values of one layer (the base, or one rule) with where each came from. */
struct layer {
	struct settings *set;
	enum config_source *source;
	uint32_t *line;
};

struct loader {
	struct config *c;
	char *error;
	int status;           /* 0, or the first error's -errno */
	uint32_t status_line; /* line of the file it is about, or 0 */
	struct settings base;
	enum config_source base_source[KEY_COUNT];
	uint32_t base_line[KEY_COUNT];
};

/* Records the first error: "ORIGIN: text".  at may be NULL.  Returns code (< 0). */
int config_fail(struct loader *l, int code, const struct origin *at, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* The same for one value: "VARIABLE = "value": text" or "FILE:LINE: key = "value": text". */
int config_fail_value(struct loader *l, const struct origin *at, const char *key, const char *value,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Key by name, or -1. */
int config_key_find(const char *name);

/* True when a rule cannot have a value of its own. */
bool config_key_for_all(enum config_key key);

/* Parses text into the key's member of *set.  0, or -EINVAL with *set untouched; then *refused is the value
 * to use instead when the text is a value that this version does not have yet, else NULL. */
int config_key_parse(enum config_key key, const char *text, struct settings *set, const char **refused);

/* Copies one key's value. */
void config_key_copy(enum config_key key, const struct settings *from, struct settings *to);

void config_key_defaults(struct settings *set);

/* One value of a layer, errors recorded in l. */
int config_set(struct loader *l, struct layer *to, enum config_key key, const char *text,
               const struct origin *at, enum config_source source);

/* The one key that is not a rule's. */
int config_set_inherit(struct loader *l, const char *text, const struct origin *at,
                       enum config_source source);

/* Reads c->file into l's base and c's rules. */
int config_read_file(struct loader *l);

/* Adds a colon-separated list of patterns to *rule. */
int config_add_patterns(struct loader *l, struct rule *rule, const char *list, const struct origin *at,
                        const char *key);

/* After the last pattern of *rule: something is included, nothing is shadowed; sets rule->prefix. */
int config_finish_patterns(struct loader *l, struct rule *rule, const struct origin *at);

#endif
