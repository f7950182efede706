// SPDX-License-Identifier: Apache-2.0
/*
 * config: what the user asked for, parsed once, immutable afterwards.
 *
 * Sources, later ones win: built-in defaults, [defaults] of the INI file named by FASTWRITE_CONFIG,
 * FASTWRITE_<KEY> environment variables; a [rule NAME] section overrides all of them for its own
 * patterns.  FASTWRITE_PATHS makes one more rule, named "env", that is matched before the file's rules.
 * An empty variable counts as unset.
 *
 * Called by: init (the preloaded library) and the `fastwrite` command.  No stdio, no locale and no malloc,
 * files are read with raw system calls; all storage is inside struct config, which is large: static, not
 * on a stack.
 */
#ifndef FASTWRITE_CONFIG_H
#define FASTWRITE_CONFIG_H

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

enum sync_policy { SYNC_FDATASYNC, SYNC_FSYNC, SYNC_RELAXED, SYNC_OFF, SYNC_JOURNAL };
enum writers_mode { WRITERS_AUTO, WRITERS_EXCLUSIVE, WRITERS_SHARED };
enum flush_mode { FLUSH_AUTO, FLUSH_DIRECT, FLUSH_BUFFERED };
enum prealloc_mode { PREALLOC_KEEP, PREALLOC_OFF, PREALLOC_ZERO };
enum visibility_mode { VISIBILITY_LAG, VISIBILITY_STRICT };
enum adapt_mode { ADAPT_ON, ADAPT_OFF };
enum stdio_mode { STDIO_ON, STDIO_OFF };

/* The part of `mem` that config takes for the arena's tables: mem >= 8 * block + this. */
#define CONFIG_TABLES_BYTES (UINT64_C(512) << 10)

/* Where a value came from; shown by `fastwrite config`. */
enum config_source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENV, SOURCE_RULE };

/* Keys that may differ per rule (stdio may not).  KEY_COUNT values, one entry each in struct rule.source. */
enum config_key {
	KEY_SYNC,
	KEY_RELAXED_MS,
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
	KEY_COUNT
};

struct settings {
	enum sync_policy sync;            /* sync = fdatasync | fsync | journal | relaxed | off */
	uint32_t relaxed_ms;              /* relaxed_ms = 1..60000, default 50 */
	uint64_t journal_bytes;           /* journal = 1M..4G, default 64M: size of the journal's file */
	uint64_t mem_bytes;               /* mem = 1M..64G, default 16M: whole arena, tables included */
	uint32_t block_bytes;             /* block = 64K..4M, power of two, default 128K */
	uint32_t lag_ms;                  /* lag_ms = 1..60000, default 100 */
	enum visibility_mode visibility;  /* visibility = lag | strict */
	enum writers_mode writers;        /* writers = auto | exclusive | shared */
	enum flush_mode flush;            /* flush = auto | direct | buffered */
	uint64_t prealloc_bytes;          /* prealloc = 0..16G, default 64M: largest step ahead of use */
	enum prealloc_mode prealloc_mode; /* prealloc_mode = keep | off | zero */
	char staging[PATH_MAX];           /* staging = absolute directory, "" = beside the data */
	uint32_t small_bytes;             /* small = 512..64K, default 64K: larger writes are not staged */
	enum adapt_mode adapt;            /* adapt = on | off, see staging/staging_policy.h */
	enum stdio_mode stdio;            /* stdio = on | off, the same for all rules */
};

struct pattern {
	const char *glob; /* absolute, symlinks of its literal directory resolved; points into config.text */
	bool exclude;     /* written with a leading '!' */
	bool several;     /* looks like several, with blanks or commas between them */
	bool missing;     /* its literal directory does not exist (yet) */
};

struct rule {
	char name[CONFIG_NAME_MAX];
	struct pattern patterns[CONFIG_PATTERNS_MAX];
	uint32_t pattern_count;
	struct settings set;
	enum config_source source[KEY_COUNT];
	uint32_t line[KEY_COUNT]; /* line of c->file for SOURCE_FILE and SOURCE_RULE, else 0 */
	uint32_t paths_line;      /* likewise for its patterns; 0 = FASTWRITE_PATHS */
	char prefix[PATH_MAX];    /* deepest literal directory of the first including pattern, no trailing '/'
	                          except for "/" itself */
};

enum stats_target { STATS_NONE, STATS_STDERR, STATS_FILE };
enum log_level { LOG_OFF, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

struct config {
	struct rule rules[CONFIG_RULES_MAX];
	uint32_t rule_count;
	enum stats_target stats;   /* FASTWRITE_STATS = stderr | file */
	char stats_file[PATH_MAX]; /* absolute */
	bool stats_json;           /* its name ends in .json */
	enum log_level log;        /* FASTWRITE_LOG = off | error | warn (default) | info | debug */
	bool strict;               /* FASTWRITE_STRICT = 0 | 1: a wrong configuration stops the start */
	bool inherit; /* FASTWRITE_INHERIT, inherit in [defaults] = 0 | 1 (default), see process/inherit.h */
	enum config_source inherit_source;
	uint32_t inherit_line; /* of c->file for SOURCE_FILE */
	char file[PATH_MAX];   /* FASTWRITE_CONFIG made absolute, "" = none */
	char text[64 * 1024];  /* pattern storage */
	size_t text_used;
};

/*
 * Fills *c from `env` (NULL-terminated "K=V" vector, as environ).  Returns 0, or -EINVAL / -ENOENT /
 * -EACCES / -E2BIG with one line (no newline) in error[CONFIG_ERROR_MAX] that names the key, the value and
 * what is allowed.  On failure c->rule_count is 0 and c->strict is still right.
 * A FASTWRITE_* variable that is not a known key is an error ("unknown key"), except those in the
 * reserved list: FASTWRITE_REGISTRY (set by `fastwrite run`), FASTWRITE_LIB (read by it),
 * FASTWRITE_KILL_STEP (debug builds), and FASTWRITE_TEST_*.
 */
int config_load(struct config *c, char *const *env, char *error);

/* What the author of a rule may not have meant: a text that follows "fastwrite: ", false when there is nothing to say. */
enum config_doubt {
	DOUBT_SEVERAL, /* patterns that are separated by something else than ':' */
	DOUBT_MISSING, /* a directory that does not exist */
};
bool config_doubt(const struct config *c, const struct rule *rule, enum config_doubt which, char *out,
                  size_t size);
/* The rule that names the file behind descriptor fd, when it can be written to by it; its path is then in out[PATH_MAX].
 * A file whose descriptor a program is given is not staged. */
const struct rule *config_rule_of_fd(const struct config *c, int fd, char *out);
/* "standard output is PATH, ...": what to say of descriptor fd <= 2 then. */
void config_fd_text(int fd, const char *path, const struct rule *rule, char *out, size_t size);

/* Text of an enum or size value for people, into buf; returns buf.  key < KEY_COUNT. */
const char *config_value_text(const struct settings *s, enum config_key key, char *buf, size_t size);
const char *config_key_name(enum config_key key);
const char *config_key_allowed(enum config_key key);
const char *config_source_name(enum config_source source);

/* "64K" -> 65536.  Accepts K, M, G, with B or iB behind them (binary all of them), no sign, no blanks.  0, or -EINVAL, *out untouched. */
int config_parse_size(const char *text, uint64_t *out);
/* 65536 -> "64K", exact; returns buf (24 bytes are always enough). */
const char *config_size_text(uint64_t bytes, char *buf, size_t size);

#endif
