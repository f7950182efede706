// SPDX-License-Identifier: Apache-2.0
/* pid: what /proc says of a process: when it was started, and whether it runs. */
#ifndef FASTWRITE_BASE_PID_H
#define FASTWRITE_BASE_PID_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* When the process was started, which with its pid names it for as long as the kernel runs.  In clock ticks
 * after boot; 0: there is no such process, or it has ended and waits to be reaped. */
uint64_t pid_start_time(pid_t pid);

/* True if this thread is stopped, by a signal or a debugger. */
bool pid_is_stopped(pid_t tid);

#endif
