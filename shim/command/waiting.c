// SPDX-License-Identifier: Apache-2.0
/* waiting: prints the bytes of dead processes that wait to be recovered.  Changes nothing. */
#include "command/command.h"

#include "base/quote.h"
#include "format/arena_format.h"
#include "recovery/recover.h"

#include <string.h>

struct look {
	const char *path; /* of the one file to look for, NULL = all */
	cli_waiting_fn *fn;
	void *ctx;
	int unread; /* arenas that may hold bytes, and cannot be read */
};

static bool is_waiting(const struct look *l, const struct recover_event *e)
{
	if (e->bytes == 0 || strcmp(e->action, "live") == 0 || strcmp(e->action, "nothing") == 0)
		return false;
	return l->path == NULL || strcmp(l->path, e->target) == 0;
}

static void say_unread(const struct recover_event *e)
{
	if (e->error == FORMAT_NEWER)
		cli_error("%s: %s", e->arena, e->detail);
	else
		cli_error("%s: %s (%s)", e->arena, strerror(-e->error), e->detail);
}

static void on_event(void *ctx, const struct recover_event *e)
{
	struct look *l = ctx;

	if (strcmp(e->action, "failed") == 0 && e->bytes == 0) {
		l->unread++;
		say_unread(e);
	}
	if (!is_waiting(l, e))
		return;
	l->fn(l->ctx, e);
}

static void put_json(struct json *j, const struct recover_event *e)
{
	json_open(j, NULL, '{');
	json_text(j, "path", e->target);
	json_number(j, "bytes", (long long)e->bytes);
	json_text(j, "arena", e->arena);
	json_text(j, "detail", e->detail[0] != '\0' ? e->detail : NULL);
	json_close(j, '}');
}

static void put_text(const struct recover_event *e)
{
	char word[QUOTE_PATH_MAX];

	printf("waiting    ");
	cli_put_name(stdout, e->target);
	printf("  %llu bytes of a process that died", (unsigned long long)e->bytes);
	/* the detail of bytes that were put aside names the command that writes them */
	if (e->detail[0] != '\0') {
		printf("  (");
		cli_put_name(stdout, e->detail);
		putchar(')');
	} else {
		printf("; `fastwrite recover %s` writes them", quote_word(word, sizeof(word), e->arena));
	}
	putchar('\n');
}

/* ctx: struct json, NULL for text. */
static void put_one(void *ctx, const struct recover_event *e)
{
	if (ctx != NULL)
		put_json(ctx, e);
	else
		put_text(e);
}

int cli_waiting_each(const struct config *c, cli_waiting_fn *fn, void *ctx)
{
	struct look look = {.fn = fn, .ctx = ctx};
	struct recover_report report = {0};
	const struct recover_options opt = {.dry_run = true, .event = on_event, .ctx = &look};

	return cli_recover_all(c, &opt, &report) + look.unread;
}

void cli_waiting_all(const struct config *c, struct json *json) { cli_waiting_each(c, put_one, json); }

void cli_waiting_for(const struct rule *rule, const char *path, struct json *json)
{
	struct look look = {.path = path, .fn = put_one, .ctx = json};
	struct recover_report report = {0};
	const struct recover_options opt = {.dry_run = true, .event = on_event, .ctx = &look};

	cli_recover_file(rule, path, &opt, &report);
}
