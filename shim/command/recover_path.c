// SPDX-License-Identifier: Apache-2.0
/* recover_path: the recovery of one path, for all verbs. */
#include "command/command.h"

#include "foreign/rights.h"
#include "recovery/recover.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

/* From all sources of the C library (/etc/nsswitch.conf). */
static int groups_of(uint32_t uid, uint32_t groups[RECOVER_GROUPS_MAX])
{
	/* cppcheck-suppress getpwuidCalled */ /* the command has one thread */
	const struct passwd *user = getpwuid(uid);
	int count = RECOVER_GROUPS_MAX - 1;

	if (user == NULL)
		return 0;
	groups[0] = user->pw_gid;
	if (getgrouplist(user->pw_name, user->pw_gid, groups + 1, &count) < 0)
		count = RECOVER_GROUPS_MAX - 1; /* the first of them */
	return 1 + count;
}

int cli_recover_path(const char *path, const struct recover_options *opt, struct recover_report *total)
{
	int rc;

	recover_rights_groups = groups_of;
	rc = recover_path(path, opt, total);
	return rc == -ENODATA ? 0 : rc;
}

const char *cli_recover_detail(const struct recover_event *e, char *buf)
{
	const char *slash = strrchr(e->arena, '/');
	const char *name = strncmp(e->detail, "orphans/", 8) == 0 ? e->detail + 8 : e->detail;
	char above[PATH_MAX], place[PATH_MAX];
	int length = slash != NULL ? (int)(slash - e->arena) : 0;

	snprintf(buf, PATH_MAX, "%s", e->detail);
	if (strcmp(e->action, "orphaned") != 0 || *name == '\0' || *name == '/' || slash == NULL)
		return buf;
	snprintf(buf, PATH_MAX, "%.*s/orphans/%s", length, e->arena, name);
	if (access(buf, F_OK) == 0)
		return buf;
	/* the arena had been put aside: it is one level deeper */
	snprintf(above, sizeof(above), "%.*s/..", length, e->arena);
	if (cli_canonical(above, place) == 0)
		snprintf(buf, PATH_MAX, "%.*s/orphans/%s", (int)(PATH_MAX - sizeof("/orphans/")), place,
		         name);
	return buf;
}

const char *cli_recover_reason(int rc)
{
	switch (-rc) {
	case ENOENT: return "no such file or directory; nothing was recovered";
	case EACCES:
	case EPERM:
		return "permission is missing; run it as the owner of the staging directory, or as root.  "
		       "Others must not be able to write to that directory (chmod go-w)";
	case ENOTDIR:
	case ELOOP: return "the staging directory is not a directory (perhaps a link); nothing was recovered";
	case EINVAL: return "neither an arena, nor a directory, nor a file that was staged";
	default: return strerror(-rc);
	}
}
