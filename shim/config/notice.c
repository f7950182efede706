// SPDX-License-Identifier: Apache-2.0
/* notice: probable mistakes in a configuration that is valid. */
#include "config/internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "config/rule.h"

#include <fcntl.h>
#include <string.h>

enum { NOTICE_MAX = PATH_MAX + 256 };

struct notices {
	const struct config *c;
	void (*say)(void *ctx, enum log_level level, const char *text);
	void *ctx;
	char text[NOTICE_MAX];
};

static void old_name(struct notices *n)
{
	if (n->c->origin[KEY_STRICT].source == SOURCE_DEFAULT)
		return;
	log_format(n->text, sizeof(n->text),
	           "FASTWRITE_STRICT is the old name of FASTWRITE_ON_ERROR = %s; it still works",
	           config_word(KEY_ON_ERROR, n->c->on_error));
	n->say(n->ctx, LOG_WARN, n->text);
}

/* The first such pattern of a rule stands for all. */
static void several_in_one(struct notices *n, const struct rule *rule)
{
	for (uint32_t i = 0; i < rule->pattern_count; i++) {
		const struct pattern *p = &rule->patterns[i];
		size_t used;

		if (!p->several)
			continue;
		if (rule->paths_origin.source == SOURCE_ENV)
			used = log_format(n->text, sizeof(n->text), "FASTWRITE_PATHS");
		else
			used = log_format(n->text, sizeof(n->text), "%s:%u: paths", n->c->file,
			                  rule->paths_origin.line);
		log_format(
			n->text + used, sizeof(n->text) - used,
			" = \"%s%s\" is one pattern; patterns are separated by ':', not by blanks or commas",
			p->exclude ? "!" : "", p->glob);
		n->say(n->ctx, LOG_WARN, n->text);
		return;
	}
}

/* It may be made later. */
static void missing_directory(struct notices *n, const struct rule *rule)
{
	char dir[PATH_MAX];

	for (uint32_t i = 0; i < rule->pattern_count; i++) {
		if (!rule->patterns[i].missing || rule->patterns[i].exclude)
			continue;
		rule_literal_prefix(rule->patterns[i].glob, dir);
		log_format(n->text, sizeof(n->text), "rule %s: the directory %s does not exist", rule->name,
		           dir);
		n->say(n->ctx, LOG_INFO, n->text);
		return;
	}
}

static void order_without_effect(struct notices *n, const struct rule *rule)
{
	if (rule->set.sync != SYNC_ORDERED || config_orders(&rule->set))
		return;
	log_format(n->text, sizeof(n->text),
	           "rule %s: sync = ordered with writers = shared acts as fdatasync", rule->name);
	n->say(n->ctx, LOG_WARN, n->text);
}

/* Does an earlier rule decide, by whichever pattern, about all that this one matches? */
static bool decided_before(const struct config *c, const struct rule *rule, const char *glob)
{
	for (const struct rule *early = c->rules; early < rule; early++)
		for (uint32_t i = 0; i < early->pattern_count; i++)
			if (rule_covers(early->patterns[i].glob, glob))
				return true;
	return false;
}

static void never_applies(struct notices *n, const struct rule *rule)
{
	for (uint32_t i = 0; i < rule->pattern_count; i++)
		if (!rule->patterns[i].exclude && !decided_before(n->c, rule, rule->patterns[i].glob))
			return;
	log_format(n->text, sizeof(n->text),
	           "rule %s never applies: earlier rules cover all of its patterns; put it before them",
	           rule->name);
	n->say(n->ctx, LOG_WARN, n->text);
}

/* Output that was redirected into a file of a rule: only files that the program opens itself are staged. */
static void standard_descriptors(struct notices *n)
{
	static const char *const names[] = {"input", "output", "error"};
	const struct rule *said = NULL;
	char path[PATH_MAX];

	for (int fd = 0; fd <= 2; fd++) {
		int flags = (int)sys.fcntl(fd, F_GETFL, 0);
		const struct rule *rule = NULL;

		if (flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_RDONLY &&
		    config_path_of_fd(fd, path))
			rule = rule_match(n->c, path);
		if (rule == NULL || rule == said)
			continue;
		said = rule;
		log_format(n->text, sizeof(n->text),
		           "standard %s is %s, a file of rule %s; it is bypassed, since "
		           "the program does not open it itself",
		           names[fd], path, rule->name);
		n->say(n->ctx, LOG_INFO, n->text);
	}
}

void config_notices(const struct config *c, bool descriptors,
                    void (*say)(void *ctx, enum log_level level, const char *text), void *ctx)
{
	struct notices n = {.c = c, .say = say, .ctx = ctx};

	old_name(&n);
	if (c->no_proc)
		say(ctx, LOG_WARN, "/proc is not mounted: nothing is staged");
	for (uint32_t i = 0; i < c->rule_count; i++) {
		several_in_one(&n, &c->rules[i]);
		missing_directory(&n, &c->rules[i]);
		order_without_effect(&n, &c->rules[i]);
		never_applies(&n, &c->rules[i]);
	}
	if (descriptors)
		standard_descriptors(&n);
}
