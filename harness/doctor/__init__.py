# SPDX-License-Identifier: Apache-2.0
"""`python -m harness doctor DIR`: what decides how fast and how safe writes to a directory are."""
