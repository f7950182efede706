// SPDX-License-Identifier: Apache-2.0
/* real: see real.h. */
#include "real.h"

#include "log.h"

#include <dlfcn.h>
#include <string.h>

/* Symbols with an older incompatible version beside the current one: dlsym before glibc 2.36 returns the oldest. */
static const struct {
	const char *name, *version;
} versioned[] = {
	{"posix_spawn", "GLIBC_2.15"},
	{"posix_spawnp", "GLIBC_2.15"},
};

static void *resolve(const char *name)
{
	void *found = NULL;

	for (size_t i = 0; i < sizeof versioned / sizeof *versioned; i++)
		if (strcmp(name, versioned[i].name) == 0)
			found = dlvsym(RTLD_NEXT, name, versioned[i].version);
	return found ? found : dlsym(RTLD_NEXT, name);
}

/* Somebody calls a function that this C library does not have. */
static void *resolve_or_die(const char *name)
{
	void *found = resolve(name);

	if (!found) {
		log_error("this C library has no %s", name);
		__builtin_trap();
	}
	return found;
}

#define VARIADIC(result, name, base)
#define ALIAS(result, name, of)

/* First use before the constructor ran: resolve this one, then go on. */
#define HOOK(result, name, parameters, arguments) \
	static result first_##name parameters \
	{ \
		real.name = (result(*) parameters)(uintptr_t)resolve_or_die(#name); \
		return real.name arguments; \
	}
#include "hooks.def"
#undef HOOK

struct real real = {
#define HOOK(result, name, parameters, arguments) .name = first_##name,
#include "hooks.def"
#undef HOOK
};

void real_resolve(void)
{
	void *found;

#define HOOK(result, name, parameters, arguments) \
	found = resolve(#name); \
	if (found) \
		real.name = (result(*) parameters)(uintptr_t)found;
#include "hooks.def"
#undef HOOK
}
