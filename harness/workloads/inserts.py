# SPDX-License-Identifier: Apache-2.0
"""One connection to a MariaDB server that inserts a small row per commit, or checks them afterwards:
`inserts.py write|verify SOCKET ...`.

Run as a program of its own, by the C library of MariaDB: its shell would take longer than a commit. write:
for some seconds after a time of warming that is not counted. Both print one JSON object.
"""

import argparse
import ctypes
import json
import sys

import rows
import timed

LIBRARY = "libmariadb.so.3"


class Connection:
    """OSError: what the server says."""

    def __init__(self, socket):
        self.lib = ctypes.CDLL(LIBRARY)
        for name in ("mysql_init", "mysql_real_connect", "mysql_store_result"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.mysql_error.restype = ctypes.c_char_p
        self.lib.mysql_fetch_row.restype = ctypes.POINTER(ctypes.c_char_p)
        self.handle = ctypes.c_void_p(self.lib.mysql_init(None))
        if not self.lib.mysql_real_connect(
            self.handle, None, b"root", None, None, 0, socket.encode(), ctypes.c_ulong(0)
        ):
            raise OSError(self.error())

    def error(self):
        return self.lib.mysql_error(self.handle).decode(errors="replace")

    def run(self, statement):
        """Its rows."""
        text = statement.encode()
        if self.lib.mysql_real_query(self.handle, text, ctypes.c_ulong(len(text))):
            raise OSError(self.error())
        result = ctypes.c_void_p(self.lib.mysql_store_result(self.handle))
        if not result:
            return []
        columns = range(self.lib.mysql_num_fields(result))
        answer = []
        while row := self.lib.mysql_fetch_row(result):
            answer.append([(row[column] or b"").decode() for column in columns])
        self.lib.mysql_free_result(result)
        return answer


def write(connection, args):
    connection.run("CREATE DATABASE lab")
    connection.run("CREATE TABLE lab.lab (number INTEGER PRIMARY KEY, payload TEXT)")

    def commit(number):
        connection.run(f"INSERT INTO lab.lab VALUES ({number}, '{rows.payload(number)}')")

    return timed.measure(commit, args.warmup, args.seconds, args.most)


def verify(connection, args):
    said = [row[-1] for row in connection.run("CHECK TABLE lab.lab EXTENDED")]
    problems = [text for text in said if text != "OK"]
    answers = connection.run("SELECT number, payload FROM lab.lab ORDER BY number")
    found = [(int(number), text) for number, text in answers]
    return rows.verdict(problems, found, args.commits)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("write", "verify"))
    parser.add_argument("socket")
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--most", type=int, default=400_000)
    parser.add_argument("--commits", type=int, default=0)
    args = parser.parse_args()
    try:
        connection = Connection(args.socket)
        print(json.dumps(write(connection, args) if args.verb == "write" else verify(connection, args)))
    except OSError as error:
        sys.exit(f"the server: {error}")


if __name__ == "__main__":
    main()
