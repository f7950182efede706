/* SPDX-License-Identifier: Apache-2.0 */
/*
 * syscall_entry: the exported syscall().  Some system calls return twice, or on another stack, so none may be
 * made from within a C function: hook_syscall (hooks/syscall.c) looks at the call and either answers it or
 * names the function to go on with, which then finds registers and stack as the caller left them.
 *
 * syscall_here is that function while the C library's own is not known yet: the system call itself.
 */

#if defined(__x86_64__)
#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR
#endif

	.text
	.globl syscall
	.type syscall, @function
	.p2align 4
syscall:
	.cfi_startproc
	_CET_ENDBR
	subq $56, %rsp
	.cfi_adjust_cfa_offset 56
	movq %rdi, (%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	movq 64(%rsp), %rax /* the sixth argument; garbage when the call has fewer, and then nobody looks */
	movq %rax, 48(%rsp)
	movq %rsp, %rdi
	call hook_syscall
	testq %rax, %rax
	jz .Lanswered
	movq (%rsp), %rdi
	movq 8(%rsp), %rsi
	movq 16(%rsp), %rdx
	movq 24(%rsp), %rcx
	movq 32(%rsp), %r8
	movq 40(%rsp), %r9
	addq $56, %rsp
	.cfi_adjust_cfa_offset -56
	movq %rax, %r11
	xorl %eax, %eax /* no vector registers: the C library declares it with an ellipsis */
	jmp *%r11
.Lanswered:
	.cfi_adjust_cfa_offset 56
	movq (%rsp), %rax
	addq $56, %rsp
	.cfi_adjust_cfa_offset -56
	ret
	.cfi_endproc
	.size syscall, .-syscall

	.globl syscall_here
	.hidden syscall_here
	.type syscall_here, @function
	.p2align 4
syscall_here:
	.cfi_startproc
	_CET_ENDBR
	movq %rdi, %rax
	movq %rsi, %rdi
	movq %rdx, %rsi
	movq %rcx, %rdx
	movq %r8, %r10
	movq %r9, %r8
	movq 8(%rsp), %r9
	syscall
	cmpq $-4095, %rax
	jae .Lfailed
	ret
.Lfailed:
	movq errno@gottpoff(%rip), %rcx
	negl %eax
	movl %eax, %fs:(%rcx)
	movq $-1, %rax
	ret
	.cfi_endproc
	.size syscall_here, .-syscall_here

#elif defined(__aarch64__)

	.text
	.globl syscall
	.type syscall, %function
	.p2align 4
syscall:
	.cfi_startproc
	stp x29, x30, [sp, -80]!
	.cfi_def_cfa_offset 80
	.cfi_offset 29, -80
	.cfi_offset 30, -72
	mov x29, sp
	stp x0, x1, [sp, 16]
	stp x2, x3, [sp, 32]
	stp x4, x5, [sp, 48]
	str x6, [sp, 64]
	add x0, sp, 16
	bl hook_syscall
	cbz x0, .Lanswered
	mov x16, x0
	ldp x0, x1, [sp, 16]
	ldp x2, x3, [sp, 32]
	ldp x4, x5, [sp, 48]
	ldr x6, [sp, 64]
	ldp x29, x30, [sp], 80
	.cfi_remember_state
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	br x16
.Lanswered:
	.cfi_restore_state
	ldr x0, [sp, 16]
	ldp x29, x30, [sp], 80
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size syscall, .-syscall

	.globl syscall_here
	.hidden syscall_here
	.type syscall_here, %function
	.p2align 4
syscall_here:
	.cfi_startproc
	mov x8, x0
	mov x0, x1
	mov x1, x2
	mov x2, x3
	mov x3, x4
	mov x4, x5
	mov x5, x6
	svc 0
	cmn x0, 4095
	b.cs .Lfailed
	ret
.Lfailed:
	adrp x2, :gottprel:errno
	ldr x2, [x2, :gottprel_lo12:errno]
	mrs x3, tpidr_el0
	neg w1, w0
	str w1, [x3, x2]
	mov x0, -1
	ret
	.cfi_endproc
	.size syscall_here, .-syscall_here

#endif

	.section .note.GNU-stack, "", %progbits
