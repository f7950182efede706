# SPDX-License-Identifier: Apache-2.0
"""Numbered operations for some seconds, each timed: for the workloads in Python."""

import time

import latency


def run_for(operation, first, seconds, most):
    """Call operation(number) from `first` on, at most `most` times; (begin, end, latencies in ns)."""
    latencies = []
    begin = now = time.perf_counter_ns()
    deadline = begin + int(seconds * 1e9)
    for number in range(first, first + most):
        if now >= deadline:
            break
        operation(number)
        end = time.perf_counter_ns()
        latencies.append(end - now)
        now = end
    return begin, now, latencies


def measure(operation, warmup, seconds, most):
    """What a workload prints: operations after a time of warming that is not counted."""
    _, _, warm = run_for(operation, 0, warmup, most // 4)
    begin, end, latencies = run_for(operation, len(warm), seconds, most)
    return {
        "syncs": len(latencies),
        "syncs_with_warmup": len(warm) + len(latencies),
        "seconds": (end - begin) / 1e9,
        **latency.summary(latencies, 1e3),
    }
