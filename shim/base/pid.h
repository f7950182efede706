// SPDX-License-Identifier: Apache-2.0
/* pid: when a process was started, which with its pid names it for as long as the kernel runs. */
#ifndef FASTWRITE_BASE_PID_H
#define FASTWRITE_BASE_PID_H

#include <stdint.h>
#include <sys/types.h>

/* In clock ticks after boot; 0: there is no such process, or it has ended and waits to be reaped. */
uint64_t pid_start_time(pid_t pid);

#endif
