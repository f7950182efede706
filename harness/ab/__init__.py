# SPDX-License-Identifier: Apache-2.0
"""`python -m harness ab -- CMD`: any command with and without the shim, and a rule recommended for it.

trace (strace's lines) -> story (operations by process and file) -> profile (per file) -> advice (a rule, or why
none) -> twin (the same calls replayed on this disk, natively and under the rule) -> predict -> runs (the
command itself, in interleaved pairs) -> show.
"""
