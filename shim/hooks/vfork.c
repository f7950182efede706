// SPDX-License-Identifier: Apache-2.0
/* vfork: see hooks/vfork.h. */
#include "hooks/vfork.h"

#include "hooks/hook.h"

#include "attach/attach.h"
#include "process/child.h"
#include "process/process.h"

#ifdef __SANITIZE_THREAD__
#include <dlfcn.h>
#endif

enum { NESTED_MAX = 4 }; /* children of vfork that call vfork */

struct vfork_slot {
	uintptr_t return_to, saved;
	pid_t (*next)(void);
	int64_t result;
	struct child_vfork state;
};
_Static_assert(offsetof(struct vfork_slot, return_to) == SLOT_RETURN, "vfork.S");
_Static_assert(offsetof(struct vfork_slot, saved) == SLOT_SAVED, "vfork.S");
_Static_assert(offsetof(struct vfork_slot, next) == SLOT_NEXT, "vfork.S");
_Static_assert(offsetof(struct vfork_slot, result) == SLOT_RESULT, "vfork.S");

static __thread struct vfork_slot slots[NESTED_MAX];
static __thread unsigned depth;

/* What hooks/vfork_entry.S calls: before, then in the child, then in the parent. */
struct vfork_slot *hook_vfork_enter(pid_t (**next)(void));
void hook_vfork_child(const struct vfork_slot *slot);
int64_t hook_vfork_parent(const struct vfork_slot *slot);

/* NULL: there is nothing to do, or no room: go to *next at once. */
struct vfork_slot *hook_vfork_enter(pid_t (**next)(void))
{
	static atomic_bool resolved;
	struct vfork_slot *slot;

	/* the function that resolves itself when called must not be in the way of the two returns */
	if (!atomic_exchange(&resolved, true)) {
		real_resolve();
#ifdef __SANITIZE_THREAD__
		/* the sanitizer replaces vfork by fork, which is not what is to be tested */
		real.vfork = (pid_t(*)(void))(uintptr_t)dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD),
		                                              "vfork");
#endif
	}
	*next = real.vfork;
	if (!live_config || fd_has_left() || depth == NESTED_MAX)
		return NULL;
	slot = &slots[depth++];
	slot->next = real.vfork;
	child_vfork_prepare(&slot->state);
	return slot;
}

void hook_vfork_child(const struct vfork_slot *slot) { child_vfork_child(&slot->state); }

int64_t hook_vfork_parent(const struct vfork_slot *slot)
{
	/* whatever the child counted up */
	depth = (unsigned)(slot - slots);
	child_vfork_parent(&slot->state, slot->result >= 0);
	return slot->result;
}
