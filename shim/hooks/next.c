// SPDX-License-Identifier: Apache-2.0
/* next: see hooks/next.h. */
#include "hooks/next.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
	OBJECTS_MAX = 64,
	VERSION_HIDDEN = 0x8000, /* not the default version of its name */
};

/* Of one object: its hash table (DT_GNU_HASH), and what that leads to. */
struct table {
	uint32_t bucket_count, first, bloom_count, bloom_shift;
	const ElfW(Addr) * bloom;
	const uint32_t *buckets, *chains; /* chains[0] belongs to symbol `first` */
	const ElfW(Sym) * symbols;
	const char *names;
	const ElfW(Half) * versions; /* NULL: it has none */
	ElfW(Addr) base;
};

static struct {
	bool looked;
	bool whole; /* the tables are those of all objects behind this one */
	const char *own_path;
	size_t count;
	size_t trusted; /* tables up to the C library's; what lies behind it may be another's alone */
	struct table tables[OBJECTS_MAX]; /* (last: a start touches one page of it) */
} next;

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* (The loader adds the base to what it finds there, where it can.) */
static const void *pointer_of(const struct link_map *map, const ElfW(Dyn) * d)
{
	ElfW(Addr) at = d->d_un.d_ptr;

	if (at < map->l_addr)
		at += map->l_addr;
	return (const void *)at;
}

static bool read_object(const struct link_map *map, struct table *t)
{
	const uint32_t *hash = NULL;

	*t = (struct table){.base = map->l_addr};
	if ((intptr_t)map->l_addr < 0)
		return false; /* (what the loader has done to its pointers cannot be told) */
	for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_GNU_HASH: hash = pointer_of(map, d); break;
		case DT_SYMTAB: t->symbols = pointer_of(map, d); break;
		case DT_STRTAB: t->names = pointer_of(map, d); break;
		case DT_VERSYM: t->versions = pointer_of(map, d); break;
		default: break;
		}
	}
	if (!hash || !t->symbols || !t->names || hash[0] == 0 || hash[2] == 0)
		return false;
	t->bucket_count = hash[0];
	t->first = hash[1];
	t->bloom_count = hash[2];
	t->bloom_shift = hash[3];
	t->bloom = (const void *)(hash + 4);
	t->buckets = (const void *)(t->bloom + t->bloom_count);
	t->chains = t->buckets + t->bucket_count;
	return true;
}

static uint32_t hash_of(const char *name)
{
	uint32_t h = 5381;

	for (const unsigned char *c = (const unsigned char *)name; *c; c++)
		h = h * 33 + *c;
	return h;
}

static bool is_default(const struct table *t, uint32_t i)
{
	return !t->versions || (t->versions[i] != 0 && !(t->versions[i] & VERSION_HIDDEN));
}

/* Index of the symbol, or 0.  *others: there are other versions of it. */
static uint32_t find(const struct table *t, const char *name, uint32_t hash, bool *others)
{
	enum { BITS = 8 * sizeof *t->bloom };
	ElfW(Addr) word = t->bloom[hash / BITS % t->bloom_count];
	uint32_t i;

	if (!(word >> hash % BITS & 1) || !(word >> (hash >> t->bloom_shift) % BITS & 1))
		return 0;
	i = t->buckets[hash % t->bucket_count];
	if (i < t->first)
		return 0;
	for (;; i++) {
		uint32_t chain = t->chains[i - t->first];

		if ((chain | 1) == (hash | 1) && t->symbols[i].st_shndx != SHN_UNDEF &&
		    strcmp(t->names + t->symbols[i].st_name, name) == 0) {
			if (is_default(t, i))
				return i;
			*others = true;
		}
		if (chain & 1)
			return 0;
	}
}

static bool is_c_library(const struct table *t)
{
	static const char name[] = "__libc_start_main";
	bool others;

	return find(t, name, hash_of(name), &others) != 0;
}

static void look(void)
{
	const struct link_map *map = _r_debug.r_map;
	bool has_c_library = false;

	next.looked = true;
	/* (not found: this is another namespace than the program's) */
	while (map && map->l_ld != _DYNAMIC)
		map = map->l_next;
	if (!map)
		return;
	next.own_path = map->l_name;
	/* (an auditor hears of what dlsym finds, and may change it) */
	if (getenv("LD_AUDIT"))
		return;
	for (map = map->l_next; map; map = map->l_next) {
		if (next.count == OBJECTS_MAX || !read_object(map, &next.tables[next.count++]))
			return;
		if (!has_c_library)
			next.trusted = next.count;
		has_c_library |= is_c_library(&next.tables[next.count - 1]);
	}
	/* (else this object was loaded by dlopen) */
	next.whole = has_c_library;
}

/* *bytes: of data; NULL: a function is asked for. */
static void *find_next(const char *name, size_t *bytes)
{
	uint32_t hash = hash_of(name);
	bool others = false;

	if (!next.looked)
		look();
	if (!next.whole)
		return NEXT_UNKNOWN;
	for (size_t n = 0; n < next.count && !others; n++) {
		const struct table *t = &next.tables[n];
		uint32_t i = find(t, name, hash, &others);

		if (i == 0)
			continue;
		if (n >= next.trusted)
			return NEXT_UNKNOWN;
		/* (one that chooses its function by the processor has to be asked) */
		if (ELF64_ST_TYPE(t->symbols[i].st_info) != (bytes ? STT_OBJECT : STT_FUNC))
			return NEXT_UNKNOWN;
		if (bytes)
			*bytes = t->symbols[i].st_size;
		return (void *)(t->base + t->symbols[i].st_value);
	}
	return others ? NEXT_UNKNOWN : NULL;
}

void *next_function(const char *name) { return find_next(name, NULL); }

void *next_object(const char *name, size_t *bytes)
{
	*bytes = 0;
	return find_next(name, bytes);
}

const char *next_own_path(void)
{
	if (!next.looked)
		look();
	return next.own_path && next.own_path[0] ? next.own_path : NULL;
}
