# SPDX-License-Identifier: Apache-2.0
"""Real applications: how each is started, loaded and checked."""
