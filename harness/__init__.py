# SPDX-License-Identifier: Apache-2.0
"""The laboratory: published write experiments, run natively and under the library, verified and compared.

Packages, from the bottom up; a package imports only from those above it in this list:
  core     the nouns, the surroundings of a leg, samples, statistics
  report   summary and verdicts, and how they are shown: terminal, Markdown, CSV, page
  sync     the benchmark of syncs
  cost     what programs pay that gain nothing
  apps     real applications and their load
  tools    one class for each kind of workload: command line, size, parsing, verification
  run      catalog of experiments, plan, runner, session
  doctor   what decides how fast and how safe writes to a directory are
  ab       any command with and without the library
  options, cli   the options and the verbs of the command line
workloads/ holds the programs that a leg runs, in C, so that the timed process imports nothing.

Reading order: core.model -> run.catalog -> run.plan -> run.runner -> tools -> core.store -> report.summary
-> report.judge -> report.page.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: configs/ and build/ lie below it."""
WORKLOADS = Path(__file__).resolve().parent / "workloads"
"""Sources of the workload programs."""
