// SPDX-License-Identifier: Apache-2.0
/* fd_passing: see descriptors/fd_passing.h. */
#include "descriptors/fd_passing.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/fd_link.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/user.h"
#include "descriptors/by_name.h"
#include "descriptors/fd.h"
#include "descriptors/io.h"
#include "descriptors/unresolved.h"
#include "files/family.h"
#include "files/marked_fds.h"

#include <fcntl.h>
#include <string.h>

static void sent(int fd) { fd_use_unmodelled(fd, BYPASS_PASSED); }

/* Calls `act` with each descriptor in the control data, which must be readable. */
static void for_each_right(const struct msghdr *message, void (*act)(int fd))
{
	const struct msghdr *m = message;

	if (m->msg_controllen < sizeof(struct cmsghdr))
		return;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR((struct msghdr *)(uintptr_t)m, c)) {
		size_t room = m->msg_controllen - (size_t)((char *)c - (char *)m->msg_control);
		size_t n;

		if (c->cmsg_len < sizeof *c || c->cmsg_len > room)
			return; /* the kernel rejects it, or has truncated it */
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			act(fd);
		}
	}
}

void fd_passing_sent(const struct msghdr *message)
{
	struct user_pages pages = USER_PAGES_INIT;

	if (live_config && fd_any_known() && user_reads(&pages, message, sizeof *message) &&
	    user_reads(&pages, message->msg_control, message->msg_controllen))
		for_each_right(message, sent);
}

void fd_passing_all_sent(const struct mmsghdr *messages, unsigned count)
{
	struct user_pages pages = USER_PAGES_INIT;

	if (!live_config || !fd_any_known())
		return;
	for (unsigned i = 0; i < count && user_reads(&pages, &messages[i], sizeof messages[i]); i++)
		fd_passing_sent(&messages[i].msg_hdr);
}

void fd_passing_received(const struct msghdr *message)
{
	if (live_config)
		for_each_right(message, fd_passing_arrived);
}

void fd_passing_all_received(const struct mmsghdr *messages, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		fd_passing_received(&messages[i].msg_hdr);
}

void fd_passing_arrived(int fd)
{
	struct statx st;

	marked_fds_forget(fd);
	if (!live_config || fd_foreign_process())
		return;
	young_other();
	unresolved_clear(fd); /* an earlier descriptor of this number may have been closed unseen */
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &st) < 0)
		return;
	if ((st.stx_mode & S_IFMT) != S_IFREG) {
		if ((st.stx_mode & S_IFMT) == 0 && fd_link_is_io_uring(fd))
			attach_refuse(BYPASS_IO_URING);
		return;
	}
	/* An attach searches for such descriptors, but only in its own process.  In a family another process
	 * may attach the file. */
	if (family_is_shared())
		by_name_never(sys_dev_of(&st), st.stx_ino, BYPASS_UNKNOWN_FD);
	else
		by_name_unknown_fd(sys_dev_of(&st), st.stx_ino);
}
