// SPDX-License-Identifier: Apache-2.0
/*
 * vfork_entry: hooks/vfork.h says how and why.  While the vfork behind this one runs, the stack is as its
 * caller left it, and a callee-saved register names the slot in which return address and register wait.
 */
#include "hooks/vfork.h"

#if defined(__x86_64__)

#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR
#endif

	.text
	.globl vfork
	.type vfork, @function
	.globl __vfork
	.set __vfork, vfork
	.p2align 4
vfork:
	.cfi_startproc
	_CET_ENDBR
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	movq %rsp, %rdi
	call hook_vfork_enter
	popq %rcx
	.cfi_adjust_cfa_offset -8
	testq %rax, %rax
	jz .Lplain
	popq %rdx
	.cfi_adjust_cfa_offset -8
	.cfi_register rip, rdx
	movq %rdx, SLOT_RETURN(%rax)
	movq %rbx, SLOT_SAVED(%rax)
	movq %rax, %rbx
	/* DW_CFA_expression: rip (16) and rbx (3) are saved at rbx + 0 and rbx + 8 */
	.cfi_escape 0x10, 16, 2, 0x73, SLOT_RETURN
	.cfi_escape 0x10, 3, 2, 0x73, SLOT_SAVED
	call *SLOT_NEXT(%rbx)
	_CET_ENDBR
	testl %eax, %eax
	jnz .Lparent
	movq %rbx, %rdi
	call hook_vfork_child
	movq SLOT_RETURN(%rbx), %rdx
	.cfi_register rip, rdx
	movq SLOT_SAVED(%rbx), %rbx
	.cfi_restore rbx
	xorl %eax, %eax
	/* no ret: a shadow stack, which both share, must keep its entry for the parent */
	jmp *%rdx

	.cfi_escape 0x10, 16, 2, 0x73, SLOT_RETURN
	.cfi_escape 0x10, 3, 2, 0x73, SLOT_SAVED
.Lparent:
	cltq
	movq %rax, SLOT_RESULT(%rbx)
	movq %rbx, %rdi
	pushq SLOT_RETURN(%rbx)
	.cfi_adjust_cfa_offset 8
	.cfi_offset rip, -8
	movq SLOT_SAVED(%rbx), %rbx
	.cfi_restore rbx
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	call hook_vfork_parent
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	ret

.Lplain:
	jmp *%rcx
	.cfi_endproc
	.size vfork, . - vfork

#elif defined(__aarch64__)

	.text
	.globl vfork
	.type vfork, %function
	.globl __vfork
	.set __vfork, vfork
	.p2align 4
vfork:
	.cfi_startproc
	hint #34 /* bti c */
	stp x29, x30, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	add x0, sp, #16
	bl hook_vfork_enter
	ldr x16, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_adjust_cfa_offset -32
	.cfi_restore x29
	.cfi_restore x30
	cbz x0, .Lplain
	stp x30, x19, [x0, #SLOT_RETURN]
	mov x19, x0
	/* DW_CFA_expression: x30 and x19 are saved at x19 + 0 and x19 + 8 */
	.cfi_escape 0x10, 30, 2, 0x83, SLOT_RETURN
	.cfi_escape 0x10, 19, 2, 0x83, SLOT_SAVED
	ldr x16, [x19, #SLOT_NEXT]
	blr x16
	cbnz w0, .Lparent
	mov x0, x19
	bl hook_vfork_child
	ldp x30, x19, [x19, #SLOT_RETURN]
	.cfi_restore x30
	.cfi_restore x19
	mov w0, #0
	ret

	.cfi_escape 0x10, 30, 2, 0x83, SLOT_RETURN
	.cfi_escape 0x10, 19, 2, 0x83, SLOT_SAVED
.Lparent:
	sxtw x0, w0
	str x0, [x19, #SLOT_RESULT]
	mov x0, x19
	ldp x30, x19, [x19, #SLOT_RETURN]
	.cfi_restore x30
	.cfi_restore x19
	stp x29, x30, [sp, #-16]!
	.cfi_adjust_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	bl hook_vfork_parent
	ldp x29, x30, [sp], #16
	.cfi_adjust_cfa_offset -16
	.cfi_restore x29
	.cfi_restore x30
	ret

.Lplain:
	br x16
	.cfi_endproc
	.size vfork, . - vfork

#else
#error "libfastwrite supports LP64 Linux on x86-64 and aarch64"
#endif

	.section .note.GNU-stack, "", %progbits
