# SPDX-License-Identifier: Apache-2.0
"""The rows of the database workloads: one per commit, numbered from 0."""


def payload(number):
    return f"{number:016d}" * 6


def verdict(problems, rows, commits):
    """What `verify` prints. problems: what the database's own check said; rows: (number, payload), in order."""
    problems = list(problems)
    if len(rows) != commits:
        problems.append(f"{len(rows)} rows, {commits} were committed")
    wrong = next((i for i, row in enumerate(rows) if row != (i, payload(i))), None)
    if wrong is not None:
        problems.append(f"row {wrong} is not what was inserted")
    return {"ok": not problems, "rows": len(rows), "first_problem": problems[0] if problems else ""}
