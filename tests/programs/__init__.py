# SPDX-License-Identifier: Apache-2.0
"""Real programs: natively, under the library, and killed under it; see docs/results/programs.md."""
