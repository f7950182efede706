// SPDX-License-Identifier: Apache-2.0
/* recover_path: the recovery of one path, for all verbs. */
#include "command/command.h"

#include "recovery/recover.h"

#include <errno.h>
#include <string.h>

int cli_recover_path(const char *path, const struct recover_options *opt, struct recover_report *total)
{
	int rc = recover_path(path, opt, total);

	return rc == -ENODATA ? 0 : rc;
}

const char *cli_recover_detail(const struct recover_event *e, char *buf)
{
	const char *slash = strrchr(e->arena, '/');

	if (strcmp(e->action, "orphaned") != 0 || e->detail[0] == '/' || slash == NULL)
		snprintf(buf, PATH_MAX, "%s", e->detail);
	else
		snprintf(buf, PATH_MAX, "%.*s/%s%s", (int)(slash - e->arena), e->arena,
		         strncmp(e->detail, "orphans/", 8) == 0 ? "" : "orphans/", e->detail);
	return buf;
}

const char *cli_recover_reason(int rc)
{
	switch (-rc) {
	case ENOENT: return "no such file or directory; nothing was recovered";
	case EACCES:
	case EPERM:
		return "permission is missing; run it as the owner of the staging directory, or as root.  "
		       "Nobody else may be able to write to that directory (chmod go-w)";
	case ENOTDIR:
	case ELOOP: return "the staging directory is not a directory (perhaps a link); nothing was recovered";
	case EINVAL: return "neither an arena, nor a directory, nor a file that was staged";
	default: return strerror(-rc);
	}
}
