// SPDX-License-Identifier: Apache-2.0
/*
 * claim: may this process recover an arena or a journal, and is the process that made it dead?
 *
 * The kernel vouches for the owner of a file; what its header claims proves nothing.
 */
#ifndef FASTWRITE_FOREIGN_CLAIM_H
#define FASTWRITE_FOREIGN_CLAIM_H

#include "format/origin.h"

#include <errno.h>
#include <stdbool.h>

/*
 * The arenas that this process has mapped, by file name: its own recovery leaves them alone.  The pid in a
 * file name proves nothing: in a container the process that died may have had the same one.  Any thread, also
 * in a signal handler.
 *
 * A process that closes any descriptor of a file loses its POSIX locks on it, and the family locks its arenas
 * by POSIX locks.  So no thread looks at an arena of this process (claim_look_begin): before the process
 * locks an arena, it notes the name, which waits until a look that may not know it is over.
 */
void claim_note_own(const char *name); /* `name` stays where it is until it is forgotten */
void claim_forget_own(const char *name);
bool claim_is_own(const char *name);

/* Around opening and closing arenas of others in the program's own process.  One thread at a time.  Signals
 * blocked. */
void claim_look_begin(void);
void claim_look_end(void);

/* fd: an arena or a journal of this process, which says for all others to see that its maker, or one of the
 * maker's family, lives.  The locks stay until the last descriptor of this description is closed.  0 or
 * -errno: -EWOULDBLOCK: a recovery has it. */
int claim_hold(int fd);
/* fd: another description of an arena or a journal.  True if a process holds it by claim_hold.  This only
 * asks: it takes no lock that a fork could hand on.  False also if that cannot be found out. */
bool claim_is_held(int fd);

/* A staging directory: it is ours, or we are root, and nobody else may write to it.  0 or -errno. */
int claim_dir_allowed(int dirfd);
/* Opens an arena or a journal for reading and writing; for a dry run on a read-only file system, for reading.
 * Descriptor or -errno. */
int claim_open(int dirfd, const char *name, bool dry_run);
/* fd: an arena or a journal in dirfd.  It must be a regular file with one name that only its owner may write
 * to.  That must be the owner of the directory, unless that is root.  And it must be us, unless we are root.
 * 0, -EBADMSG, -EPERM, other -errno. */
int claim_file_allowed(int dirfd, int fd);

/*
 * Waits for other recoverers.  Any owner of an arena can look like one, for as long as they like.  So the
 * waits for one arena or journal have CLAIM_PATIENCE_NS together, and none of this thread's is longer than
 * until `at`.  claim_until: when a wait of at most `ns` ends that begins now.  claim_gave_up: it is later
 * than `at`.
 */
#define CLAIM_PATIENCE_NS 10000000000u
#define CLAIM_FOREVER UINT64_MAX /* at first */
void claim_give_up(uint64_t at);
uint64_t claim_until(uint64_t ns);
bool claim_gave_up(void);

/*
 * Locks a dead arena or journal for its recovery.  0; -EWOULDBLOCK: the processes of its family live, and
 * share the lock; other -errno.  Waits while another process recovers it: the caller must find the files
 * complete, and must not write to them before.  *met: there was one.
 */
int claim_lock(int fd, bool *met);

/* fd: an arena or a journal; then, pid, pid_start: from its header.  0: the process that made it is dead;
 * -EWOULDBLOCK: it runs; CLAIM_OTHER_KIND, unless `any_kind`: nobody sees here whether it runs (see
 * origin_other_kind); other -errno: that cannot be found out.  *where: is it still the same boot and mount?
 */
#define CLAIM_OTHER_KIND (-EXDEV)
int claim_maker(int fd, const struct origin *then, int pid, uint64_t pid_start, bool any_kind,
                enum origin_verdict *where);

/* Why an arena or a journal is left alone: a sentence for the errors above. */
const char *claim_refusal(int error);

#endif
