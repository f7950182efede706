# SPDX-License-Identifier: Apache-2.0
"""Python's logging: numbered lines by a FileHandler, which writes each one out before the call returns.

Run as a program of its own: some seconds after a time of warming that is not counted; prints one JSON object. With
--buffered the handler leaves the lines in its stream's buffer, as programs do that find the default too slow.
"""

import argparse
import json
import logging

import timed


class BufferedFileHandler(logging.FileHandler):
    """Lines stay in the stream's buffer until it is full or closed."""

    def flush(self):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--buffered", action="store_true")
    parser.add_argument("--warmup", type=float, default=0.3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--most", type=int, default=2_000_000)
    args = parser.parse_args()
    handler = (BufferedFileHandler if args.buffered else logging.FileHandler)(args.path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger("lab")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(handler)

    def write(number):
        log.info("%d request from %s took %d us", number, "10.0.0.1", number % 977)

    answer = timed.measure(write, args.warmup, args.seconds, args.most)
    logging.shutdown()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
