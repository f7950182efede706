// SPDX-License-Identifier: Apache-2.0
/* init: the library's constructor and destructor. */
#include "attach/attach.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "config/config.h"
#include "descriptors/fd.h"
#include "files/workers.h"
#include "hooks/hook.h"
#include "hooks/next.h"
#include "hooks/real.h"
#include "hooks/stream_table.h"
#include "process/inherit.h"
#include "process/process.h"
#include "recovery/recover.h"
#include "staging/registry.h"
#include "staging/staging_policy.h"
#include "staging/stats.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config config;

static void wrong_configuration(void)
{
	bool stop = config.on_error == ON_ERROR_STOP;

	log_error("%s%s", config.error,
	          stop ? "; not started (FASTWRITE_ON_ERROR = stop)"
	               : "; nothing is staged, the program runs as it is");
	if (stop)
		sys_raw(SYS_exit_group, 2, 0, 0, 0, 0, 0);
}

/* Recovers the bytes of dead processes before the program can look at its files. */
static void recover_known_places(void)
{
	char dir[PATH_MAX];

	for (uint32_t i = 0; i < config.rule_count; i++) {
		const struct rule *rule = &config.rules[i];

		if (rule->set.staging[0])
			recover_dead(rule->set.staging, -1, rule->set.mem_bytes);
		if (strcmp(rule->prefix, "/") != 0 &&
		    log_format(dir, sizeof dir, "%s/" ARENA_DIR, rule->prefix) + 1 < sizeof dir)
			recover_dead(dir, -1, rule->set.mem_bytes);
	}
}

static void say_notice(void *ctx, enum log_level level, const char *text)
{
	(void)ctx;
	log_line(level, "%s", text);
}

static void start_inheriting(void)
{
	const struct inherit_files files = {.config = config.file, .stats = config.stats_file};
	const char *path = next_own_path();
	Dl_info own;

	if (!path)
		path = dladdr(&config, &own) != 0 ? own.dli_fname : NULL;
	if (!path || inherit_start(path, environ, &files) < 0)
		log_warn(
			"cannot remember the environment: programs with one of their own run without the library");
}

static void set_interval(void)
{
	uint32_t pace = UINT32_MAX;

	for (uint32_t i = 0; i < config.rule_count; i++) {
		const struct settings *set = &config.rules[i].set;

		if (set->lag_ms < pace)
			pace = set->lag_ms;
		if (set->sync == SYNC_RELAXED && set->relaxed_ms < pace)
			pace = set->relaxed_ms;
		if (config_orders(set) && set->ordered_ms < pace)
			pace = set->ordered_ms;
	}
	workers_set_interval(pace);
}

/* Notes of a loaded object: each a header, the owner's name and a description, both in steps of four bytes.
 */
static bool has_go_build_id(const char *notes, size_t bytes)
{
	static const char owner[4] = "Go";
	enum { GO_BUILD_ID = 4 };
	const ElfW(Nhdr) * n;

	for (size_t at = 0; at + sizeof *n + sizeof owner <= bytes;) {
		const char *name = notes + at + sizeof *n;

		n = (const ElfW(Nhdr) *)(const void *)(notes + at);
		if (n->n_type == GO_BUILD_ID && n->n_namesz == sizeof owner &&
		    memcmp(name, owner, sizeof owner) == 0)
			return true;
		at += sizeof *n + ((n->n_namesz + 3ul) & ~3ul) + ((n->n_descsz + 3ul) & ~3ul);
	}
	return false;
}

/* Tools that change programs leave notes that are not there. */
static bool is_loaded(const struct dl_phdr_info *object, const ElfW(Phdr) * part)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &object->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && (p->p_flags & PF_R) && part->p_vaddr >= p->p_vaddr &&
		    part->p_vaddr - p->p_vaddr <= p->p_filesz &&
		    part->p_memsz <= p->p_filesz - (part->p_vaddr - p->p_vaddr))
			return true;
	}
	return false;
}

static int is_go(struct dl_phdr_info *object, size_t size, void *ctx)
{
	(void)size;
	(void)ctx;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &object->dlpi_phdr[i];

		if (p->p_type == PT_NOTE && is_loaded(object, p) &&
		    has_go_build_id((const char *)(uintptr_t)(object->dlpi_addr + p->p_vaddr), p->p_memsz))
			return 1;
	}
	return 0;
}

__attribute__((constructor)) static void fastwrite_start(void)
{
	log_start();
	real_resolve();
	bool valid = config_load(&config, environ) == 0;
	log_set_target(config.log_to);
#ifdef FASTWRITE_DEBUG
	log_set_syslog(getenv("FASTWRITE_TEST_SYSLOG"));
#endif
	if (!valid) {
		wrong_configuration();
		return;
	}
	log_set_level(config.log);
	if (config.rule_count == 0)
		return;
	fd_set_process();
	set_interval();
	registry_set(getenv("FASTWRITE_REGISTRY"));
	stats_set(&config);
#ifdef FASTWRITE_DEBUG
	{
		const char *step = getenv("FASTWRITE_KILL_STEP");

		kill_arm(step ? strtoul(step, NULL, 10) : 0);
		step = getenv("FASTWRITE_KILL_CHILD_STEP");
		kill_arm_children(step ? strtoul(step, NULL, 10) : 0);
	}
#endif
	/* `fastwrite run` prints the notices itself, once, instead of every program */
	if (!getenv("FASTWRITE_REGISTRY"))
		config_notices(&config, log_enabled(LOG_INFO), say_notice, NULL);
	recover_known_places();
	/* what Go's code writes, looks at, starts and ends goes past all hooks */
	if (dl_iterate_phdr(is_go, NULL)) {
		log_info("a Go program: it makes system calls itself, so nothing is staged");
		return;
	}
	if (config.inherit)
		start_inheriting();
	if (config.rules[0].set.stdio == STDIO_ON)
		stream_table_install();
	if (hook_watch_forks() != 0) {
		log_error("cannot watch fork; nothing is managed");
		return;
	}
	live_config = &config;
	staging_policy_configure();
}

/* Later exit handlers may still write.  So everything is drained here, and bypassed from now on. */
__attribute__((destructor)) static void fastwrite_stop(void) { process_exit(); }
