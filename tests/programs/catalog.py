# SPDX-License-Identifier: Apache-2.0
"""The list of the programs."""

from __future__ import annotations

from importlib import import_module

from programs.case import Case

# in the order of the table
MODULES = (
    "sqlite",
    "postgres",
    "mariadb",
    "redis",
    "loggers",
    "cpython",
    "syslog",
    "nginx",
    "git",
    "fio",
    "stress",
    "build",
    "copies",
)


def all_cases() -> list[Case]:
    return [case for name in MODULES for case in import_module(f"programs.{name}").CASES]
