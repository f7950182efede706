// SPDX-License-Identifier: Apache-2.0
/*
 * config_key: the table of keys that may differ per rule.  The one place where a key's name, limits,
 * spelling and default stand.
 */
#include "config/internal.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>

enum kind { KIND_ENUM, KIND_COUNT32, KIND_SIZE32, KIND_SIZE64, KIND_DIRECTORY };

#define KIB(n) (UINT64_C(n) << 10)
#define MIB(n) (UINT64_C(n) << 20)
#define GIB(n) (UINT64_C(n) << 30)

struct spec {
	const char *name;
	const char *allowed;
	enum kind kind;
	size_t offset;
	size_t size;
	uint64_t min;
	uint64_t max;
	bool power_of_two;
	bool for_all; /* cannot differ per rule */
	const char *preset;
	const char *words[5]; /* KIND_ENUM: spelling of value 0, 1, ... */
	const char *later[2]; /* a word of a later version, and what to use until then */
};

#define MEMBER(m) .offset = offsetof(struct settings, m), .size = sizeof(((struct settings *)0)->m)

static const struct spec specs[KEY_COUNT] = {
	[KEY_SYNC] =
		{
			.name = "sync",
			.allowed = "fdatasync, fsync, journal, relaxed, off",
			.kind = KIND_ENUM,
			MEMBER(sync),
			.preset = "fdatasync",
			.words = {"fdatasync", "fsync", "relaxed", "off", "journal"},
		},
	[KEY_RELAXED_MS] =
		{
			.name = "relaxed_ms",
			.allowed = "1..60000 (milliseconds)",
			.kind = KIND_COUNT32,
			MEMBER(relaxed_ms),
			.min = 1,
			.max = 60000,
			.preset = "50",
		},
	[KEY_JOURNAL] =
		{
			.name = "journal",
			.allowed = "1M..4G (a size such as 16M)",
			.kind = KIND_SIZE64,
			MEMBER(journal_bytes),
			.min = MIB(1),
			.max = GIB(4),
			.preset = "64M",
		},
	[KEY_MEM] =
		{
			.name = "mem",
			.allowed = "1M..64G (a size such as 16M)",
			.kind = KIND_SIZE64,
			MEMBER(mem_bytes),
			.min = MIB(1),
			.max = GIB(64),
			.preset = "16M",
		},
	[KEY_BLOCK] =
		{
			.name = "block",
			.allowed = "64K..4M, a power of two (a size such as 128K)",
			.kind = KIND_SIZE32,
			MEMBER(block_bytes),
			.min = KIB(64),
			.max = MIB(4),
			.power_of_two = true,
			.preset = "128K",
		},
	[KEY_LAG_MS] =
		{
			.name = "lag_ms",
			.allowed = "1..60000 (milliseconds)",
			.kind = KIND_COUNT32,
			MEMBER(lag_ms),
			.min = 1,
			.max = 60000,
			.preset = "100",
		},
	[KEY_VISIBILITY] =
		{
			.name = "visibility",
			.allowed = "lag, strict",
			.kind = KIND_ENUM,
			MEMBER(visibility),
			.preset = "lag",
			.words = {"lag", "strict"},
		},
	[KEY_WRITERS] =
		{
			.name = "writers",
			.allowed = "auto, exclusive, shared",
			.kind = KIND_ENUM,
			MEMBER(writers),
			.preset = "auto",
			.words = {"auto", "exclusive", "shared"},
		},
	[KEY_FLUSH] =
		{
			.name = "flush",
			.allowed = "auto, direct, buffered",
			.kind = KIND_ENUM,
			MEMBER(flush),
			.preset = "auto",
			.words = {"auto", "direct", "buffered"},
		},
	[KEY_PREALLOC] =
		{
			.name = "prealloc",
			.allowed = "0..16G (a size such as 64M)",
			.kind = KIND_SIZE64,
			MEMBER(prealloc_bytes),
			.min = 0,
			.max = GIB(16),
			.preset = "64M",
		},
	[KEY_PREALLOC_MODE] =
		{
			.name = "prealloc_mode",
			.allowed = "keep, off, zero",
			.kind = KIND_ENUM,
			MEMBER(prealloc_mode),
			.preset = "keep",
			.words = {"keep", "off", "zero"},
		},
	[KEY_STAGING] =
		{
			.name = "staging",
			.allowed = "an absolute directory",
			.kind = KIND_DIRECTORY,
			MEMBER(staging),
			.preset = "",
		},
	[KEY_SMALL] =
		{
			.name = "small",
			.allowed = "512..64K (a size such as 4K)",
			.kind = KIND_SIZE32,
			MEMBER(small_bytes),
			.min = 512,
			.max = KIB(64),
			.preset = "64K",
		},
	[KEY_ADAPT] =
		{
			.name = "adapt",
			.allowed = "on, off",
			.kind = KIND_ENUM,
			MEMBER(adapt),
			.preset = "on",
			.words = {"on", "off"},
		},
	[KEY_STDIO] =
		{
			.name = "stdio",
			.allowed = "on, off",
			.kind = KIND_ENUM,
			MEMBER(stdio),
			.for_all = true,
			.preset = "on",
			.words = {"on", "off"},
		},
};

const char *config_key_name(enum config_key key) { return specs[key].name; }

const char *config_key_allowed(enum config_key key) { return specs[key].allowed; }

bool config_key_for_all(enum config_key key) { return specs[key].for_all; }

int config_key_find(const char *name)
{
	for (int key = 0; key < KEY_COUNT; key++) {
		if (strcmp(specs[key].name, name) == 0)
			return key;
	}
	return -1;
}

const char *config_source_name(enum config_source source)
{
	switch (source) {
	case SOURCE_FILE: return "file";
	case SOURCE_ENV: return "environment";
	case SOURCE_RULE: return "rule";
	case SOURCE_DEFAULT: break;
	}
	return "default";
}

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

static bool same_letter(char byte, char small) { return byte == small || byte == small - 'a' + 'A'; }

/* "", B, K, KB, KiB, M, ...: the power of two, or -1.  Capital or small, always binary. */
static int unit_shift(const char *unit)
{
	int shift = same_letter(*unit, 'k')   ? 10
	            : same_letter(*unit, 'm') ? 20
	            : same_letter(*unit, 'g') ? 30
	                                      : 0;

	if (shift > 0) {
		unit++;
		if (*unit == 'i' && same_letter(unit[1], 'b'))
			unit++;
	}
	if (same_letter(*unit, 'b'))
		unit++;
	return *unit == '\0' ? shift : -1;
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

static int parse_number(const struct spec *spec, const char *text, uint64_t *out)
{
	uint64_t value;
	int rc = spec->kind == KIND_COUNT32 ? parse_digits(&text, &value) : config_parse_size(text, &value);

	if (rc == 0 && spec->kind == KIND_COUNT32 && *text != '\0')
		rc = -EINVAL;
	if (rc != 0)
		return rc;
	if (value < spec->min || value > spec->max)
		return -EINVAL;
	if (spec->power_of_two && (value & (value - 1)) != 0)
		return -EINVAL;
	*out = value;
	return 0;
}

static int parse_word(const struct spec *spec, const char *text, uint64_t *out, const char **refused)
{
	for (uint64_t i = 0; i < sizeof(spec->words) / sizeof(spec->words[0]) && spec->words[i] != NULL;
	     i++) {
		if (strcmp(spec->words[i], text) == 0) {
			*out = i;
			return 0;
		}
	}
	if (spec->later[0] != NULL && strcmp(spec->later[0], text) == 0)
		*refused = spec->later[1];
	return -EINVAL;
}

static void store(const struct spec *spec, uint64_t value, struct settings *set)
{
	char *member = (char *)set + spec->offset;

	if (spec->size == sizeof(uint64_t)) {
		memcpy(member, &value, sizeof(value));
	} else {
		uint32_t narrow = (uint32_t)value;
		_Static_assert(sizeof(enum sync_policy) == sizeof(narrow), "enums are stored as 32 bits");
		memcpy(member, &narrow, sizeof(narrow));
	}
}

static uint64_t fetch(const struct spec *spec, const struct settings *set)
{
	const char *member = (const char *)set + spec->offset;
	uint64_t value;
	uint32_t narrow;

	if (spec->size == sizeof(value)) {
		memcpy(&value, member, sizeof(value));
		return value;
	}
	memcpy(&narrow, member, sizeof(narrow));
	return narrow;
}

int config_key_parse(enum config_key key, const char *text, struct settings *set, const char **refused)
{
	const struct spec *spec = &specs[key];
	uint64_t value = 0;
	int rc;

	*refused = NULL;
	if (spec->kind == KIND_DIRECTORY) {
		size_t length = strlen(text);
		if (length >= spec->size || (length > 0 && text[0] != '/'))
			return -EINVAL;
		memcpy((char *)set + spec->offset, text, length + 1);
		return 0;
	}
	rc = spec->kind == KIND_ENUM ? parse_word(spec, text, &value, refused)
	                             : parse_number(spec, text, &value);
	if (rc == 0)
		store(spec, value, set);
	return rc;
}

void config_key_copy(enum config_key key, const struct settings *from, struct settings *to)
{
	const struct spec *spec = &specs[key];

	memcpy((char *)to + spec->offset, (const char *)from + spec->offset, spec->size);
}

void config_key_defaults(struct settings *set)
{
	const char *refused;

	for (int key = 0; key < KEY_COUNT; key++)
		(void)config_key_parse((enum config_key)key, specs[key].preset, set, &refused);
}

const char *config_value_text(const struct settings *s, enum config_key key, char *buf, size_t size)
{
	const struct spec *spec = &specs[key];

	switch (spec->kind) {
	case KIND_DIRECTORY: log_format(buf, size, "%s", (const char *)s + spec->offset); break;
	case KIND_ENUM: log_format(buf, size, "%s", spec->words[fetch(spec, s)]); break;
	case KIND_COUNT32: log_format(buf, size, "%llu", (unsigned long long)fetch(spec, s)); break;
	case KIND_SIZE32:
	case KIND_SIZE64: config_size_text(fetch(spec, s), buf, size); break;
	}
	return buf;
}
