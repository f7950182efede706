# SPDX-License-Identifier: Apache-2.0
"""Percentiles of single latencies, for workloads in Python and for the harness alike. Imports nothing."""

PER_MILLE = {"p50_us": 500, "p90_us": 900, "p95_us": 950, "p99_us": 990, "p999_us": 999}


def summary(latencies, per_us):
    """Of at least one latency; per_us: how many of their units make a microsecond. The value at a percentile is one
    that was measured (nearest rank, rounded up)."""
    ordered = sorted(latencies)
    count = len(ordered)
    found = {name: ordered[count * share // 1000] / per_us for name, share in PER_MILLE.items()}
    return {**found, "mean_us": sum(ordered) / count / per_us, "max_us": ordered[-1] / per_us}
