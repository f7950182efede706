# SPDX-License-Identifier: Apache-2.0
"""Takes power away from file systems on which programs write and sync: see docs/results/power-loss.md."""
