# SPDX-License-Identifier: Apache-2.0
"""A run: experiments from TOML (catalog), their legs in order (plan), and the legs carried out (runner, execution)."""
