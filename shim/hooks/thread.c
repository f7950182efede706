// SPDX-License-Identifier: Apache-2.0
/*
 * thread: pthread_cancel, and signal handlers that leave a write with longjmp.  Natively `write` and its
 * variants are cancellation points.  The calls that the library answers itself check for a cancellation once
 * any thread was cancelled.
 */
#include "hooks/hook.h"

#include "base/signals.h"
#include "base/user.h"
#include "hooks/cancel.h"
#include "staging/stage.h"

#include <pthread.h>
#include <setjmp.h>
#include <ucontext.h>

_Atomic bool cancel_used;

/* Such a cancellation comes as a signal of the C library, at any moment, and does not return. */
EXPORT int pthread_setcanceltype(int type, int *old)
{
	if (type == PTHREAD_CANCEL_ASYNCHRONOUS)
		signals_refuse();
	return real.pthread_setcanceltype(type, old);
}

EXPORT int pthread_cancel(pthread_t thread)
{
	atomic_store(&cancel_used, true);
	return real.pthread_cancel(thread);
}

/* The stack pointer after the jump, without the C library's pointer guard. */
static uintptr_t jump_target(const struct __jmp_buf_tag *env)
{
#if defined(__x86_64__)
	enum { STACK_POINTER = 6 };
	uintptr_t secret, mangled = (uintptr_t)env->__jmpbuf[STACK_POINTER];

	__asm__("movq %%fs:0x30, %0" : "=r"(secret)); /* tcbhead_t.pointer_guard */
	return (mangled >> 17 | mangled << 47) ^ secret;
#elif defined(__aarch64__)
	enum { STACK_POINTER = 13 };
	uintptr_t pointer;
	jmp_buf here;

	/* the loader does not tell the guard, but of this frame both pointers are known */
	(void)_setjmp(here);
	__asm__("mov %0, sp" : "=r"(pointer));
	return (uintptr_t)env->__jmpbuf[STACK_POINTER] ^ (uintptr_t)here->__jmpbuf[STACK_POINTER] ^ pointer;
#endif
}

static uintptr_t context_target(const ucontext_t *context)
{
#if defined(__x86_64__)
	return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
	return (uintptr_t)context->uc_mcontext.sp;
#endif
}

#define JUMP(name) \
	EXPORT __attribute__((noreturn)) void name(struct __jmp_buf_tag env[1], int value) \
	{ \
		if (__builtin_expect(stage_frames != NULL, 0)) \
			stage_left(jump_target(env)); \
		real.name(env, value); \
		__builtin_unreachable(); \
	}

EXPORT void __longjmp_chk(struct __jmp_buf_tag env[1], int value);
JUMP(longjmp)
JUMP(_longjmp)
JUMP(siglongjmp)
JUMP(__longjmp_chk)

EXPORT int setcontext(const ucontext_t *context)
{
	if (__builtin_expect(stage_frames != NULL, 0) && user_readable(context, sizeof *context))
		stage_left(context_target(context));
	return real.setcontext(context);
}
