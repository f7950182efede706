# SPDX-License-Identifier: Apache-2.0
"""The laboratory: published write experiments, run natively and under the shim, verified and compared.

Reading order: model (the nouns) -> catalog (experiments from TOML) -> plan (which legs, in which order)
-> runner (one leg after another) -> tools (what a leg executes) -> store (JSONL) -> summary, judge,
statistics (what the samples say) -> outputs, report (how it is shown).
"""
