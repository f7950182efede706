// SPDX-License-Identifier: Apache-2.0
/* rights: see foreign/rights.h. */
#include "foreign/rights.h"

#include "base/buffer.h"
#include "base/sys.h"

#include <linux/capability.h>
#include <sys/prctl.h>

int (*recover_rights_groups)(uint32_t uid, uint32_t groups[RECOVER_GROUPS_MAX]);

/* By system calls, for this thread alone: the C library's functions change every thread. */

/* nogroup, which by convention owns nothing that matters */
enum { NO_GROUP = 65534 };

static long capabilities(int number, struct recover_rights *r, bool none)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	long result;

	for (int i = 0; i < 2; i++)
		data[i] = (struct __user_cap_data_struct){.effective = none ? 0 : r->capabilities[i][0],
		                                          .permitted = r->capabilities[i][1],
		                                          .inheritable = r->capabilities[i][2]};
	result = sys_raw(number, (long)&header, (long)data, 0, 0, 0, 0);
	for (int i = 0; i < 2 && number == SYS_capget; i++) {
		r->capabilities[i][0] = data[i].effective;
		r->capabilities[i][1] = data[i].permitted;
		r->capabilities[i][2] = data[i].inheritable;
	}
	return result;
}

int recover_rights_take(struct recover_rights *r, uint32_t uid)
{
	BUFFER(uint32_t, groups);
	int count;
	long n;

	_Static_assert(RECOVER_GROUPS_MAX * sizeof(uint32_t) <= BUFFER_BYTES, "groups fit");
	r->changed = false;
	if (sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0) != 0 || uid == 0)
		return 0;
	count = recover_rights_groups ? recover_rights_groups(uid, groups) : 0;
	if (count == 0)
		groups[0] = NO_GROUP;
	n = sys_raw(SYS_getgroups, RECOVER_GROUPS_MAX, (long)r->groups, 0, 0, 0, 0);
	if (n < 0)
		return (int)n;
	r->group_count = (int)n;
	n = capabilities(SYS_capget, r, false);
	/* root's supplementary groups may open what the owner cannot */
	if (n == 0 && (count > 0 || r->group_count > 0))
		n = sys_raw(SYS_setgroups, count, (long)groups, 0, 0, 0, 0);
	if (n < 0)
		return (int)n;
	r->changed = true;
	r->dumpable = (int)sys_raw(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0, 0);
	r->death_signal = 0;
	sys_raw(SYS_prctl, PR_GET_PDEATHSIG, (long)&r->death_signal, 0, 0, 0, 0);
	sys_raw(SYS_setfsgid, groups[0], 0, 0, 0, 0, 0);
	sys_raw(SYS_setfsuid, uid, 0, 0, 0, 0, 0);
	/* (they return the id before, never an error: ask again) */
	n = (uint32_t)sys_raw(SYS_setfsgid, groups[0], 0, 0, 0, 0, 0) == groups[0] &&
	                    (uint32_t)sys_raw(SYS_setfsuid, uid, 0, 0, 0, 0, 0) == uid
	            ? capabilities(SYS_capset, r, true)
	            : -EPERM;
	if (n < 0)
		recover_rights_drop(r);
	return (int)n;
}

void recover_rights_drop(struct recover_rights *r)
{
	if (!r->changed)
		return;
	capabilities(SYS_capset, r, false);
	sys_raw(SYS_setfsuid, 0, 0, 0, 0, 0, 0);
	sys_raw(SYS_setfsgid, sys_raw(SYS_getegid, 0, 0, 0, 0, 0, 0), 0, 0, 0, 0, 0);
	sys_raw(SYS_setgroups, r->group_count, (long)r->groups, 0, 0, 0, 0);
	/* (setfsuid has raised the capabilities for file access; there may have been fewer) */
	capabilities(SYS_capset, r, false);
	if (r->dumpable == 1)
		sys_raw(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0, 0);
	if (r->death_signal > 0)
		sys_raw(SYS_prctl, PR_SET_PDEATHSIG, r->death_signal, 0, 0, 0, 0);
	r->changed = false;
}
