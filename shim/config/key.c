// SPDX-License-Identifier: Apache-2.0
/* key: the table of keys.  The one place where a key's name, kind, limits, spelling and default stand. */
#include "config/internal.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>

enum kind { KIND_WORD, KIND_COUNT, KIND_SIZE, KIND_DIRECTORY, KIND_OTHER };

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))
#define KIB(n) (UINT64_C(n) << 10)
#define MIB(n) (UINT64_C(n) << 20)
#define GIB(n) (UINT64_C(n) << 30)

struct spec {
	const char *name;
	enum kind kind;
	enum key_scope scope;
	size_t offset; /* in struct settings, or in struct config for keys of the process */
	size_t size;
	const char *preset;   /* the default, and the example in messages */
	const char *words[6]; /* KIND_WORD: spelling of value 0, 1, ... */
	uint64_t min, max;    /* KIND_COUNT, KIND_SIZE */
	bool power_of_two;
};

#define AT(type, m) .offset = offsetof(type, m), .size = sizeof(((type *)0)->m)
#define IN_RULE(m) AT(struct settings, m), .scope = SCOPE_RULE
#define IN_DEFAULTS(type, m) AT(type, m), .scope = SCOPE_DEFAULTS
#define IN_ENVIRONMENT(m) AT(struct config, m), .scope = SCOPE_ENVIRONMENT
#define WORDS(...) .kind = KIND_WORD, .words = {__VA_ARGS__}
#define COUNT(least, most) .kind = KIND_COUNT, .min = (least), .max = (most)
#define SIZE(least, most) .kind = KIND_SIZE, .min = (least), .max = (most)

/* clang-format off */
static const struct spec specs[KEY_ALL] = {
	[KEY_SYNC] = {"sync", IN_RULE(sync), .preset = "fdatasync",
		WORDS("fdatasync", "fsync", "journal", "relaxed", "off", "ordered")},
	[KEY_RELAXED_MS] = {"relaxed_ms", IN_RULE(relaxed_ms), .preset = "50", COUNT(1, 60000)},
	[KEY_ORDERED_MS] = {"ordered_ms", IN_RULE(ordered_ms), .preset = "50", COUNT(1, 60000)},
	[KEY_JOURNAL] = {"journal", IN_RULE(journal_bytes), .preset = "64M", SIZE(MIB(1), GIB(4))},
	[KEY_MEM] = {"mem", IN_RULE(mem_bytes), .preset = "16M", SIZE(MIB(1), GIB(64))},
	[KEY_BLOCK] = {"block", IN_RULE(block_bytes), .preset = "128K", SIZE(KIB(64), MIB(4)),
		.power_of_two = true},
	[KEY_LAG_MS] = {"lag_ms", IN_RULE(lag_ms), .preset = "100", COUNT(1, 60000)},
	[KEY_VISIBILITY] = {"visibility", IN_RULE(visibility), .preset = "lag", WORDS("lag", "strict")},
	[KEY_WRITERS] = {"writers", IN_RULE(writers), .preset = "auto", WORDS("auto", "exclusive", "shared")},
	[KEY_FLUSH] = {"flush", IN_RULE(flush), .preset = "auto", WORDS("auto", "direct", "buffered")},
	[KEY_PREALLOC] = {"prealloc", IN_RULE(prealloc_bytes), .preset = "64M", SIZE(0, GIB(16))},
	[KEY_PREALLOC_MODE] = {"prealloc_mode", IN_RULE(prealloc_mode), .preset = "keep",
		WORDS("keep", "off")},
	[KEY_STAGING] = {"staging", IN_RULE(staging), .preset = "", .kind = KIND_DIRECTORY},
	[KEY_SMALL] = {"small", IN_RULE(small_bytes), .preset = "64K", SIZE(512, KIB(64))},
	[KEY_ADAPT] = {"adapt", IN_RULE(adapt), .preset = "on", WORDS("on", "off")},
	[KEY_STDIO] = {"stdio", IN_DEFAULTS(struct settings, stdio), .preset = "on", WORDS("on", "off")},

	[KEY_INHERIT] = {"inherit", IN_DEFAULTS(struct config, inherit), .preset = "1", WORDS("0", "1")},
	[KEY_STRICT] = {"strict", IN_ENVIRONMENT(on_error), .preset = "0", WORDS("0", "1")},
	[KEY_ON_ERROR] = {"on_error", IN_ENVIRONMENT(on_error), .preset = "warn", WORDS("warn", "stop")},
	[KEY_LOG] = {"log", IN_ENVIRONMENT(log), .preset = "warn",
		WORDS("off", "error", "warn", "info", "debug")},
	[KEY_LOG_TO] = {"log_to", IN_ENVIRONMENT(log_to), .preset = "stderr", WORDS("stderr", "syslog", "both")},
	[KEY_STATS] = {"stats", .kind = KIND_OTHER, .scope = SCOPE_ENVIRONMENT},
	[KEY_CONFIG] = {"config", .kind = KIND_OTHER, .scope = SCOPE_ENVIRONMENT},
	[KEY_PATHS] = {"paths", .kind = KIND_OTHER, .scope = SCOPE_RULE},
};
/* clang-format on */

const char *config_key_name(enum config_key key) { return specs[key].name; }

enum key_scope config_key_scope(enum config_key key) { return specs[key].scope; }

int config_key_find(const char *name)
{
	for (int key = 0; key < KEY_ALL; key++)
		if (strcmp(specs[key].name, name) == 0)
			return key;
	return -1;
}

int config_rule_key(const char *name)
{
	int key = config_key_find(name);

	return key < KEY_COUNT ? key : -1;
}

const char *config_rule_keys(char *buf, size_t size)
{
	size_t used = 0;

	for (int key = 0; key < KEY_COUNT; key++)
		used += log_format(buf + used, size - used, "%s%s", key > 0 ? ", " : "", specs[key].name);
	return buf;
}

const char *config_word(enum config_key key, unsigned value) { return specs[key].words[value]; }

const char *config_source_name(enum config_source source)
{
	static const char *const names[] = {
		[SOURCE_DEFAULT] = "default",
		[SOURCE_FILE] = "file",
		[SOURCE_ENV] = "environment",
		[SOURCE_RULE] = "rule",
	};

	return names[source];
}

/* ---- numbers ---- */

static int parse_digits(const char **text, uint64_t *out)
{
	const char *t = *text;
	uint64_t value = 0;

	if (*t < '0' || *t > '9')
		return -EINVAL;
	for (; *t >= '0' && *t <= '9'; t++) {
		uint64_t digit = (uint64_t)(*t - '0');
		if (value > (UINT64_MAX - digit) / 10)
			return -EINVAL;
		value = value * 10 + digit;
	}
	*text = t;
	*out = value;
	return 0;
}

/* "", B, K, KB, KiB, M, ...: the power of two, or -1.  Capital or small, always binary. */
static int unit_shift(const char *unit)
{
	static const char units[] = "kKmMgG";
	const char *at = *unit != '\0' ? strchr(units, *unit) : NULL;

	if (at != NULL)
		unit += unit[1] == 'i' && unit[2] != '\0' ? 2 : 1;
	if (*unit == 'b' || *unit == 'B')
		unit++;
	return *unit != '\0' ? -1 : at != NULL ? (int)(at - units) / 2 * 10 + 10 : 0;
}

int config_parse_size(const char *text, uint64_t *out)
{
	uint64_t value;
	int shift;

	if (parse_digits(&text, &value) != 0)
		return -EINVAL;
	shift = unit_shift(text);
	if (shift < 0 || value > UINT64_MAX >> shift)
		return -EINVAL;
	*out = value << shift;
	return 0;
}

const char *config_size_text(uint64_t bytes, char *buf, size_t size)
{
	static const char units[] = {'K', 'M', 'G'};
	char unit[2] = "";

	for (size_t i = 0; i < sizeof(units) && bytes != 0 && bytes % 1024 == 0; i++) {
		bytes /= 1024;
		unit[0] = units[i];
	}
	log_format(buf, size, "%llu%s", (unsigned long long)bytes, unit);
	return buf;
}

/* ---- values ---- */

/* The allowed values, for people. */
static void put_allowed(const struct spec *spec, char *out, size_t size)
{
	char min[24], max[24];
	size_t used = 0;

	switch (spec->kind) {
	case KIND_WORD:
		for (size_t i = 0; i < LENGTH(spec->words) && spec->words[i] != NULL; i++)
			used += log_format(out + used, size - used, "%s%s", i > 0 ? ", " : "",
			                   spec->words[i]);
		break;
	case KIND_COUNT:
		log_format(out, size, "%llu..%llu (milliseconds)", (unsigned long long)spec->min,
		           (unsigned long long)spec->max);
		break;
	case KIND_SIZE:
		log_format(out, size, "%s..%s%s (a size such as %s)",
		           config_size_text(spec->min, min, sizeof(min)),
		           config_size_text(spec->max, max, sizeof(max)),
		           spec->power_of_two ? ", a power of two" : "", spec->preset);
		break;
	default: log_format(out, size, "an absolute directory");
	}
}

static bool parse_word(const struct spec *spec, const char *text, uint64_t *out)
{
	for (size_t i = 0; i < LENGTH(spec->words) && spec->words[i] != NULL; i++) {
		if (strcmp(spec->words[i], text) == 0) {
			*out = i;
			return true;
		}
	}
	return false;
}

static bool parse_number(const struct spec *spec, const char *text, uint64_t *out)
{
	bool is_number = spec->kind == KIND_COUNT ? parse_digits(&text, out) == 0 && *text == '\0'
	                                          : config_parse_size(text, out) == 0;

	return is_number && *out >= spec->min && *out <= spec->max &&
	       (!spec->power_of_two || (*out & (*out - 1)) == 0);
}

static uint64_t fetch(const struct spec *spec, const void *values)
{
	const char *member = (const char *)values + spec->offset;
	uint64_t value = 0;

	/* little endian: the low bytes of a wider number are the number */
	memcpy(&value, member, spec->size);
	return value;
}

/* Without slashes and dots behind it: with them the kernel would follow a link, and recovery, which looks at
 * the directory itself, would not. */
static size_t length_of_directory(const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && (path[n - 1] == '/' || (path[n - 1] == '.' && path[n - 2] == '/')))
		n--;
	return n;
}

/* False: *values is left alone. */
static bool parse(const struct spec *spec, const char *text, void *values)
{
	char *member = (char *)values + spec->offset;
	uint64_t value;

	if (spec->kind == KIND_DIRECTORY) {
		size_t length = length_of_directory(text);

		if (length >= spec->size || (length > 0 && text[0] != '/'))
			return false;
		memcpy(member, text, length);
		member[length] = '\0';
		return true;
	}
	if (!(spec->kind == KIND_WORD ? parse_word(spec, text, &value) : parse_number(spec, text, &value)))
		return false;
	memcpy(member, &value, spec->size);
	return true;
}

int config_set(struct config *c, struct rule *rule, enum config_key key, const char *text,
               struct config_origin origin)
{
	const struct setting at = {origin, specs[key].name, text};
	void *values = key >= KEY_COUNT ? (void *)c : rule != NULL ? &rule->set : &c->base;
	char allowed[128];

	if (specs[key].kind == KIND_DIRECTORY && config_check_comment(c, &at) != 0)
		return -EINVAL;
	if (!parse(&specs[key], text, values)) {
		put_allowed(&specs[key], allowed, sizeof(allowed));
		return config_fail(c, -EINVAL, &at, "allowed: %s", allowed);
	}
	(rule != NULL ? rule->origin : c->origin)[key] = origin;
	return 0;
}

void config_set_defaults(struct config *c)
{
	memset(c->origin, 0, sizeof(c->origin));
	for (int key = 0; key < KEY_ALL; key++)
		if (specs[key].kind != KIND_OTHER)
			(void)parse(&specs[key], specs[key].preset, key < KEY_COUNT ? (void *)&c->base : c);
}

void config_set_from_base(const struct config *c, struct rule *rule)
{
	for (int key = 0; key < KEY_COUNT; key++) {
		const struct spec *spec = &specs[key];

		if (rule->origin[key].source == SOURCE_RULE)
			continue;
		memcpy((char *)&rule->set + spec->offset, (const char *)&c->base + spec->offset, spec->size);
		rule->origin[key] = c->origin[key];
	}
}

const char *config_value_text(const struct settings *s, enum config_key key, char *buf, size_t size)
{
	const struct spec *spec = &specs[key];

	switch (spec->kind) {
	case KIND_WORD: log_format(buf, size, "%s", spec->words[fetch(spec, s)]); break;
	case KIND_COUNT: log_format(buf, size, "%llu", (unsigned long long)fetch(spec, s)); break;
	case KIND_SIZE: config_size_text(fetch(spec, s), buf, size); break;
	default: log_format(buf, size, "%s", (const char *)s + spec->offset); break;
	}
	return buf;
}
