// SPDX-License-Identifier: Apache-2.0
/* Shared by the parts of config while a configuration is loaded. */
#ifndef FASTWRITE_CONFIG_INTERNAL_H
#define FASTWRITE_CONFIG_INTERNAL_H

#include "config/config.h"

/* ---- error.c ---- */

/* The subject of an error: its place and, if not NULL, its key and value. */
struct setting {
	struct config_origin origin;
	const char *key;
	const char *value;
};

/*
 * Makes c->error the line "FILE:LINE: key = "value": text" or "FASTWRITE_KEY = "value": text".  Returns code
 * (< 0).
 */
int config_fail(struct config *c, int code, const struct setting *at, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* 0; or the error of a value with an unescaped blank and '#', which begin no comment behind a value. */
int config_check_comment(struct config *c, const struct setting *at);

/* ---- key.c ---- */

/* Where a key may stand. */
enum key_scope {
	SCOPE_RULE,        /* in a [rule NAME] and everywhere below */
	SCOPE_DEFAULTS,    /* in [defaults] and as a variable: one value for all rules */
	SCOPE_ENVIRONMENT, /* as a variable only */
};
enum key_scope config_key_scope(enum config_key key);

/* Any key by its name, or -1. */
int config_key_find(const char *name);

/* Sets one key, of *rule or (NULL) for all rules and the process.  0, or -EINVAL and nothing is changed. */
int config_set(struct config *c, struct rule *rule, enum config_key key, const char *text,
               struct config_origin origin);

/* Copies the keys that the rule does not set itself from c->base. */
void config_set_from_base(const struct config *c, struct rule *rule);

/* Every key has its default. */
void config_set_defaults(struct config *c);

/* ---- paths.c ---- */

/* Adds a list of patterns, separated by ':', to *rule. */
int config_add_patterns(struct config *c, struct rule *rule, const char *list, struct config_origin origin);

/* After the last pattern of *rule: does it include anything, can each pattern match?  Sets rule->prefix. */
int config_finish_patterns(struct config *c, struct rule *rule);

/* Canonical path of an open descriptor into out[PATH_MAX]; false when the kernel does not say. */
bool config_path_of_fd(int fd, char *out);

/* ---- file.c ---- */

/* A new rule at the end of c->rules, with no patterns and no keys; NULL when there is no room. */
struct rule *config_add_rule(struct config *c, const char *name, struct config_origin origin);

/* Reads c->file. */
int config_read_file(struct config *c);

#endif
