# SPDX-License-Identifier: Apache-2.0
"""From samples to tables, verdicts, charts and the page. judge and summary decide; the rest shows."""
