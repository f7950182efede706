// SPDX-License-Identifier: Apache-2.0
/* credentials: the process changes its ids.  (It gives up capabilities in hooks/namespaces.c.) */
#include "hooks/hook.h"

#include "process/credentials.h"

#include <grp.h>
#include <sys/fsuid.h>
#include <unistd.h>

#define STAYS UINT32_MAX

static int ended(bool begun, int r)
{
	credentials_end(begun);
	return r;
}

EXPORT int setuid(uid_t uid)
{
	bool begun = credentials_begin(credentials_of_users(uid, uid, uid));

	return ended(begun, real.setuid(uid));
}
EXPORT int seteuid(uid_t uid)
{
	bool begun = credentials_begin(credentials_of_users(STAYS, uid, STAYS));

	return ended(begun, real.seteuid(uid));
}
EXPORT int setreuid(uid_t real_id, uid_t effective)
{
	bool begun = credentials_begin(credentials_of_users(real_id, effective, STAYS));

	return ended(begun, real.setreuid(real_id, effective));
}
EXPORT int setresuid(uid_t real_id, uid_t effective, uid_t saved)
{
	bool begun = credentials_begin(credentials_of_users(real_id, effective, saved));

	return ended(begun, real.setresuid(real_id, effective, saved));
}

EXPORT int setgid(gid_t gid)
{
	bool begun = credentials_begin(credentials_of_groups(gid, gid, gid));

	return ended(begun, real.setgid(gid));
}
EXPORT int setegid(gid_t gid)
{
	bool begun = credentials_begin(credentials_of_groups(STAYS, gid, STAYS));

	return ended(begun, real.setegid(gid));
}
EXPORT int setregid(gid_t real_id, gid_t effective)
{
	bool begun = credentials_begin(credentials_of_groups(real_id, effective, STAYS));

	return ended(begun, real.setregid(real_id, effective));
}
EXPORT int setresgid(gid_t real_id, gid_t effective, gid_t saved)
{
	bool begun = credentials_begin(credentials_of_groups(real_id, effective, saved));

	return ended(begun, real.setresgid(real_id, effective, saved));
}

EXPORT int setgroups(size_t count, const gid_t *groups)
{
	bool begun = credentials_begin(CREDENTIALS_GROUPS);

	return ended(begun, real.setgroups(count, groups));
}
EXPORT int initgroups(const char *user, gid_t group)
{
	bool begun = credentials_begin(CREDENTIALS_GROUPS);

	return ended(begun, real.initgroups(user, group));
}

/* Concerns the calling thread only.  A program passes the id -1 to ask for the current one. */
EXPORT int setfsuid(uid_t uid)
{
	if (uid != STAYS)
		credentials_of_thread();
	return real.setfsuid(uid);
}
EXPORT int setfsgid(gid_t gid)
{
	if (gid != STAYS)
		credentials_of_thread();
	return real.setfsgid(gid);
}
