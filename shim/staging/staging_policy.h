// SPDX-License-Identifier: Apache-2.0
/*
 * staging_policy: does staging pay for a file?
 *
 * To attach a file and to detach it costs some hundred microseconds, and nothing may follow.  So a file is
 * attached when its small writes have cost the kernel as much as that.  Then the library costs
 * three times what the better choice would have cost at most: these writes, an attach for nothing, and the
 * credit below.
 *
 * An attached file has credit.  Each staged write adds what it would have cost in the kernel.  What staging
 * costs the program is subtracted: writes that do more than copy, drains that a sync or a look at the file
 * forces.  A file without credit is detached, and is attached again at twice the price.
 *
 * With adapt = off the second small write attaches, and a file stays attached.
 */
#ifndef FASTWRITE_STAGING_STAGING_POLICY_H
#define FASTWRITE_STAGING_STAGING_POLICY_H

#include "base/sys.h"
#include "files/file.h"

/* Nanoseconds, for the `begin` below; 0 if the rule asks for no measurement.  (Files in order are staged from
 * their first write, whatever it costs.) */
static inline uint64_t staging_policy_clock(const struct file *f)
{
	return f->rule->set.adapt == ADAPT_ON && !file_is_ordered(f) ? sys_now_ns() : 0;
}

/* A new value of a moving average.  A call that was interrupted counts for little. */
uint64_t staging_policy_average(uint64_t mean, uint64_t ns);

/* ---- passive ---- */

/* True if a sync of the device is cheaper for f than one of the journal (sync/journal_policy.h), so that
 * nothing shall be staged. */
static inline bool staging_policy_stays_passive(const struct file *f)
{
	return atomic_load_explicit(&f->turn.device, memory_order_relaxed);
}
/* True if the next small write shall attach the file. */
bool staging_policy_attaches(const struct file *f);
/* The kernel has made a small write, which began at `begin`. */
void staging_policy_written(struct file *f, uint64_t begin);
/* It made `count` of them before the file was known. */
void staging_policy_written_before(struct file *f, uint32_t count);
/* It made a sync that staging would have saved. */
void staging_policy_synced(struct file *f, uint64_t begin);
/* The next small write shall attach the file. */
void staging_policy_wanted(struct file *f);

/* Nothing was gained: the price is to be paid from the start. */
static inline void staging_policy_restart(struct file *f) { f->balance.rent_ns = 0; }
/* The file cannot be attached now: try again, less and less often. */
void staging_policy_later(struct file *f);

/* ---- attached, file lock held ---- */

/* The file was attached by this call, which began at `begin`. */
void staging_policy_attached(struct file *f, uint64_t begin);

/* It saved a sync, which costs more than any of the rest: as much credit as there can be. */
void staging_policy_pays(struct file *f);

enum {
	STAGING_COST_MOST = 150000, /* of one call: more is another program's doing */
	/* of a drain before a sync of the device: what the drain writes, the sync need not write */
	STAGING_SYNC_COST_MOST = 16000,
};
/* The program had to wait for what began at `begin`; at most `most` nanoseconds count. */
void staging_policy_cost(struct file *f, uint64_t begin, uint64_t most);
/* The same for a drain.  It contains at least one write of the kernel, so none costs more. */
void staging_policy_drained(struct file *f, uint64_t begin, uint64_t most);
/* The same for a drain before a sync of the device, of a file that the program writes by O_DIRECT.  If it was
 * quicker than such a write, it went to the page cache, and the sync has to write. */
void staging_policy_drained_direct(struct file *f, uint64_t begin);
/* f->writes writes were staged; the caller clears the count. */
void staging_policy_saved(struct file *f);
/* The program has opened a file for writing that was there before: it may do so often, as with a rollback
 * journal. A file in order is then attached at once. */
void staging_policy_opened_again(struct file *f);
/* Before another write is staged.  True: detach the file now. */
bool staging_policy_gives_back(const struct file *f);
/* It was detached for that. */
void staging_policy_gave_back(struct file *f);

/* ---- unresolved ---- */

/* The write of this number looks up what an unresolved descriptor is.  The look costs as much as some writes,
 * and most descriptors get few. */
extern uint32_t staging_policy_resolve_at;
/* True: a sync does so, too.  False: all rules adapt and sync the device.  Then a file with fewer writes
 * between two calls of fdatasync has nothing to gain, and its count begins anew at each. */
extern bool staging_policy_sync_resolves;
/* The configuration is in force. */
void staging_policy_configure(void);

#endif
