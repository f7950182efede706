# SPDX-License-Identifier: Apache-2.0
"""A SQLite database with one small row per commit: `commits.py write ...` and, afterwards, `commits.py verify ...`.

Run as a program of its own. write: for some seconds after a time of warming that is not
counted. Both print one JSON object.
"""

import argparse
import json
import sqlite3
import sys

import rows
import timed


def write(args):
    database = sqlite3.connect(args.database, isolation_level=None)
    (mode,) = database.execute(f"PRAGMA journal_mode = {args.mode}").fetchone()
    if mode != args.mode:
        sys.exit(f"journal_mode is {mode}, not {args.mode}")
    database.execute(f"PRAGMA synchronous = {args.synchronous}")
    database.execute("CREATE TABLE lab (number INTEGER PRIMARY KEY, payload TEXT)")

    def commit(number):
        database.execute("INSERT INTO lab VALUES (?, ?)", (number, rows.payload(number)))

    answer = timed.measure(commit, args.warmup, args.seconds, args.most)
    database.close()
    return answer


def verify(args):
    database = sqlite3.connect(args.database)
    problems = [row[0] for row in database.execute("PRAGMA integrity_check") if row[0] != "ok"]
    found = database.execute("SELECT number, payload FROM lab ORDER BY number").fetchall()
    return rows.verdict(problems, found, args.commits)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("write", "verify"))
    parser.add_argument("database")
    parser.add_argument("--mode", default="delete", choices=("delete", "wal"))
    parser.add_argument("--synchronous", default="full", choices=("off", "normal", "full"))
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--most", type=int, default=400_000)
    parser.add_argument("--commits", type=int, default=0)
    args = parser.parse_args()
    print(json.dumps(write(args) if args.verb == "write" else verify(args)))


if __name__ == "__main__":
    main()
