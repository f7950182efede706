# SPDX-License-Identifier: Apache-2.0
"""Programs for developers: `PYTHONPATH=tests python -m tools.NAME`.  Some tests run them, too."""
