// SPDX-License-Identifier: Apache-2.0
/* rights: see recovery/rights.h. */
#include "recovery/rights.h"

#include "base/buffer.h"
#include "base/sys.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* ---- /etc/passwd and /etc/group ---- */

struct field {
	const char *text;
	size_t size;
};

static bool field_is(const struct field *f, const char *text, size_t size)
{
	return f->size == size && memcmp(f->text, text, size) == 0;
}

static bool field_number(const struct field *f, uint32_t *out)
{
	uint64_t value = 0;

	for (size_t i = 0; i < f->size; i++) {
		if (f->text[i] < '0' || f->text[i] > '9' || value > UINT32_MAX)
			return false;
		value = value * 10 + (uint64_t)(f->text[i] - '0');
	}
	*out = (uint32_t)value;
	/* (the highest number means "no change") */
	return f->size > 0 && value < UINT32_MAX;
}

enum { FIELDS = 4 };

/* The first fields of the next line; fields that it lacks are empty.  False at the end. */
static bool next_line(const char **at, const char *end, struct field fields[FIELDS])
{
	const char *p = *at;
	const char *line_end;

	if (p >= end)
		return false;
	line_end = memchr(p, '\n', (size_t)(end - p));
	if (!line_end)
		line_end = end;
	for (int i = 0; i < FIELDS; i++) {
		const char *colon = p < line_end ? memchr(p, ':', (size_t)(line_end - p)) : NULL;
		const char *stop = colon ? colon : line_end;

		fields[i] = (struct field){p, (size_t)(stop - p)};
		p = colon ? colon + 1 : line_end;
	}
	*at = line_end + 1;
	return true;
}

/* Is `name` in the list, which commas separate? */
static bool is_member(const struct field *list, const struct field *name)
{
	const char *p = list->text;
	const char *end = p + list->size;

	while (p < end) {
		const char *comma = memchr(p, ',', (size_t)(end - p));
		const char *stop = comma ? comma : end;

		if (field_is(name, p, (size_t)(stop - p)))
			return true;
		p = stop + 1;
	}
	return false;
}

int recover_rights_groups(uint32_t uid, const char *passwd, size_t passwd_size, const char *group,
                          size_t group_size, uint32_t groups[RECOVER_GROUPS_MAX])
{
	struct field user[FIELDS], f[FIELDS];
	uint32_t number;
	int count = 0;

	/* name:password:uid:gid */
	for (const char *at = passwd; count == 0 && next_line(&at, passwd + passwd_size, user);)
		if (field_number(&user[2], &number) && number == uid && user[0].size > 0 &&
		    field_number(&user[3], &groups[0]))
			count = 1;
	if (count == 0)
		return 0;
	/* name:password:gid:members */
	for (const char *at = group; count < RECOVER_GROUPS_MAX && next_line(&at, group + group_size, f);)
		if (field_number(&f[2], &number) && number != groups[0] && is_member(&f[3], &user[0]))
			groups[count++] = number;
	return count;
}

enum { TEXT_MAX = 64 << 20 };
struct text {
	char *at;
	size_t size, room;
};

/* A whole file; an empty text when there is none. */
static int text_read(struct text *t, const char *path)
{
	struct statx st;
	ssize_t n = 1;
	int fd = sys.openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	int r;

	*t = (struct text){0};
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);
	if (r == 0 && st.stx_size > TEXT_MAX)
		r = -EFBIG;
	if (r == 0 && st.stx_size > 0) {
		t->at = sys.mmap(NULL, st.stx_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		                 0);
		if (sys_is_error(t->at))
			r = (int)(intptr_t)t->at;
		else
			t->room = st.stx_size;
	}
	while (r == 0 && t->size < t->room && n != 0) {
		n = sys.pread(fd, t->at + t->size, t->room - t->size, (off_t)t->size);
		if (n > 0)
			t->size += (size_t)n;
		else if (n != -EINTR)
			r = (int)n;
	}
	sys.close(fd);
	return r;
}

static void text_forget(const struct text *t)
{
	if (t->room)
		sys.munmap(t->at, t->room);
}

/* How many groups; 0: the user is not listed; or -errno. */
static int groups_of(uint32_t uid, uint32_t groups[RECOVER_GROUPS_MAX])
{
	struct text passwd, group = {0};
	int r = text_read(&passwd, "/etc/passwd");

	if (r == 0)
		r = text_read(&group, "/etc/group");
	if (r == 0)
		r = recover_rights_groups(uid, passwd.at, passwd.size, group.at, group.size, groups);
	text_forget(&passwd);
	text_forget(&group);
	return r;
}

/* ---- the rights of this thread: by system calls, since the C library's functions change every thread ----
 */

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
	count = groups_of(uid, groups);
	if (count < 0)
		return count;
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
