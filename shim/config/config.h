// SPDX-License-Identifier: Apache-2.0
/*
 * config: the user's settings; parsed once, constant afterwards.
 *
 * Sources in rising order: built-in defaults, [defaults] of the INI file that FASTWRITE_CONFIG names,
 * variables FASTWRITE_<KEY>, [rule NAME] of the file for its own patterns.  FASTWRITE_PATHS makes one more
 * rule, "env", which is matched before those of the file.  An empty variable counts as unset.
 *
 * Called by the preloaded library at its start and by the `fastwrite` command.  No stdio, locale or malloc:
 * the file is read by raw system calls.  struct config holds everything and is large: static, never on a
 * stack.
 *
 * Parts, each calling only those behind it: config.c (order of sources, checks across keys), file.c (INI
 * file), paths.c (pattern lists), key.c (table of keys), error.c (the error line), rule.c (matching).
 * notice.c looks at a loaded configuration for probable mistakes.
 */
#ifndef FASTWRITE_CONFIG_CONFIG_H
#define FASTWRITE_CONFIG_CONFIG_H

#include "base/log.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CONFIG_RULES_MAX = 64,    /* rules, the one of FASTWRITE_PATHS included */
	CONFIG_PATTERNS_MAX = 64, /* patterns of one rule */
	CONFIG_ERROR_MAX = 512,   /* bytes of an error line, NUL included */
	CONFIG_NAME_MAX = 64,     /* bytes of a rule's name, NUL included */
};

enum sync_policy { SYNC_FDATASYNC, SYNC_FSYNC, SYNC_JOURNAL, SYNC_RELAXED, SYNC_OFF, SYNC_ORDERED };
enum writers_mode { WRITERS_AUTO, WRITERS_EXCLUSIVE, WRITERS_SHARED };
enum flush_mode { FLUSH_AUTO, FLUSH_DIRECT, FLUSH_BUFFERED };
enum prealloc_mode { PREALLOC_KEEP, PREALLOC_OFF };
enum visibility_mode { VISIBILITY_LAG, VISIBILITY_STRICT };
enum adapt_mode { ADAPT_ON, ADAPT_OFF };
enum stdio_mode { STDIO_ON, STDIO_OFF };

/* The part of `mem` that config takes for the arena's tables: mem >= 8 * block + this. */
#define CONFIG_TABLES_BYTES (UINT64_C(512) << 10)

/* Where a value came from. */
enum config_source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENV, SOURCE_RULE };
struct config_origin {
	enum config_source source;
	uint32_t line; /* of config.file, for SOURCE_FILE and SOURCE_RULE */
};

enum config_key {
	/* members of struct settings */
	KEY_SYNC,
	KEY_RELAXED_MS,
	KEY_ORDERED_MS,
	KEY_JOURNAL,
	KEY_MEM,
	KEY_BLOCK,
	KEY_LAG_MS,
	KEY_VISIBILITY,
	KEY_WRITERS,
	KEY_FLUSH,
	KEY_PREALLOC,
	KEY_PREALLOC_MODE,
	KEY_STAGING,
	KEY_SMALL,
	KEY_ADAPT,
	KEY_STDIO,
	KEY_COUNT,
	/* members of struct config: one value for the process */
	KEY_INHERIT = KEY_COUNT,
	KEY_LOG_TO, /* this and those up to KEY_STATS say how an error is reported */
	KEY_STRICT, /* the old name of on_error */
	KEY_ON_ERROR,
	KEY_LOG,
	KEY_STATS,
	KEY_CONFIG,
	KEY_PATHS,
	KEY_ALL
};

struct settings {
	enum sync_policy sync;            /* sync = fdatasync | fsync | journal | relaxed | off | ordered */
	uint32_t relaxed_ms;              /* relaxed_ms = 1..60000, default 50 */
	uint32_t ordered_ms;              /* ordered_ms = 1..60000, default 50 */
	uint64_t journal_bytes;           /* journal = 1M..4G, default 64M: size of the journal's file */
	uint64_t mem_bytes;               /* mem = 1M..64G, default 16M: whole arena, tables included */
	uint32_t block_bytes;             /* block = 64K..4M, power of two, default 128K */
	uint32_t lag_ms;                  /* lag_ms = 1..60000, default 100 */
	enum visibility_mode visibility;  /* visibility = lag | strict */
	enum writers_mode writers;        /* writers = auto | exclusive | shared */
	enum flush_mode flush;            /* flush = auto | direct | buffered */
	uint64_t prealloc_bytes;          /* prealloc = 0..16G, default 64M: largest step ahead of use */
	enum prealloc_mode prealloc_mode; /* prealloc_mode = keep | off */
	char staging[PATH_MAX];           /* staging = absolute directory, "" = beside the data */
	uint32_t small_bytes;             /* small = 512..64K, default 64K: larger writes are not staged */
	enum adapt_mode adapt;            /* adapt = on | off, see staging/staging_policy.h */
	enum stdio_mode stdio;            /* stdio = on | off, the same for all rules */
};

struct pattern {
	const char *glob; /* absolute, links in its literal directory resolved; points into config.text */
	bool exclude;     /* written with a leading '!' */
	bool several;     /* looks like several patterns with blanks or commas between them */
	bool missing;     /* its literal directory does not exist (yet) */
};

struct rule {
	char name[CONFIG_NAME_MAX];
	struct pattern patterns[CONFIG_PATTERNS_MAX];
	uint32_t pattern_count;
	struct settings set;
	struct config_origin origin[KEY_COUNT];
	struct config_origin paths_origin;
	char prefix[PATH_MAX]; /* literal directory of the first including pattern: "/", or no '/' at its end
	                        */
};

enum on_error { ON_ERROR_WARN, ON_ERROR_STOP };
enum stats_target { STATS_NONE, STATS_STDERR, STATS_FILE };
enum inherit_mode { INHERIT_OFF, INHERIT_ON };

struct config {
	struct rule rules[CONFIG_RULES_MAX];
	uint32_t rule_count;
	struct settings base;                 /* for rules that do not set a key themselves */
	struct config_origin origin[KEY_ALL]; /* of base, and of the keys of the process */
	enum on_error on_error;    /* FASTWRITE_ON_ERROR = warn | stop: about a wrong configuration */
	enum log_level log;        /* FASTWRITE_LOG = off | error | warn | info | debug */
	enum log_target log_to;    /* FASTWRITE_LOG_TO = stderr | syslog | both */
	enum inherit_mode inherit; /* inherit = 0 | 1, see process/inherit.h */
	enum stats_target stats;   /* FASTWRITE_STATS = stderr | FILE */
	char stats_file[PATH_MAX]; /* absolute */
	bool stats_json;           /* its name ends in .json */
	char file[PATH_MAX];       /* FASTWRITE_CONFIG made absolute, "" = none */
	char text[64 * 1024];      /* storage of patterns */
	size_t text_used;
	bool no_proc;                 /* /proc is not mounted: no file's path can be known */
	char error[CONFIG_ERROR_MAX]; /* one line without its newline, "" = none */
};

/*
 * Fills *c from `env` (NULL-terminated "K=V" vector, as environ).  Returns 0, or -EINVAL / -ENOENT / -EACCES
 * / -E2BIG / the error of reading; c->error then names the key, its value and what is allowed, c->rule_count
 * is 0, and c->on_error, c->log and c->log_to are right.  A FASTWRITE_* variable that is no key is an error,
 * except FASTWRITE_REGISTRY (set by `fastwrite run`), FASTWRITE_LIB (read by it), FASTWRITE_KILL_STEP and
 * FASTWRITE_KILL_CHILD_STEP (debug builds), and FASTWRITE_TEST_*.
 */
int config_load(struct config *c, char *const *env);

/* True if the rule says that nobody else reads or writes its files while this program runs. */
static inline bool config_is_alone(const struct settings *s)
{
	return s->writers == WRITERS_EXCLUSIVE && s->visibility == VISIBILITY_LAG;
}
/* True if a power loss leaves the files of such a rule in the order in which they were written
 * (flush/ordered.h): they are staged in an overlay of pages.  If the rule does not say that nobody else uses
 * them, a lease has to show it (flush/visibility.h).  With shared writers sync = ordered acts as fdatasync.
 */
static inline bool config_orders(const struct settings *s)
{
	return s->sync == SYNC_ORDERED && s->writers != WRITERS_SHARED;
}

/* The configuration in force; set once by hooks/init.c before any file is managed.  NULL: nothing is ever
 * staged. */
extern const struct config *live_config;

/*
 * Calls `say` with a line for each probable mistake of a loaded configuration; LOG_INFO: it may well be
 * meant.  `descriptors`: also for a standard descriptor of this process that is open on a file of a rule,
 * which keeps the file from being staged.
 */
void config_notices(const struct config *c, bool descriptors,
                    void (*say)(void *ctx, enum log_level level, const char *text), void *ctx);

/* Text of a value for people, into buf; returns buf.  key < KEY_COUNT. */
const char *config_value_text(const struct settings *s, enum config_key key, char *buf, size_t size);
/* "relaxed_ms" */
const char *config_key_name(enum config_key key);
/* "relaxed_ms" -> "FASTWRITE_RELAXED_MS" in buf; returns buf (64 bytes are enough for a key). */
const char *config_variable(const char *key, char *buf, size_t size);
/* The key of a rule by its name, or -1. */
int config_rule_key(const char *name);
/* "sync, relaxed_ms, ...", the keys of a rule, in buf; returns buf (CONFIG_ERROR_MAX bytes are enough). */
const char *config_rule_keys(char *buf, size_t size);
/* The spelling of an enum's value. */
const char *config_word(enum config_key key, unsigned value);
const char *config_source_name(enum config_source source);

/* "64K" -> 65536.  Units K, M, G, also with B or iB behind them, are binary; no sign, no blanks.
 * 0, or -EINVAL and *out is left alone. */
int config_parse_size(const char *text, uint64_t *out);
/* 65536 -> "64K", exact; returns buf (24 bytes are enough). */
const char *config_size_text(uint64_t bytes, char *buf, size_t size);

#endif
