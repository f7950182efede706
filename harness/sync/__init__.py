# SPDX-License-Identifier: Apache-2.0
"""`python -m harness sync`: what a durable write costs."""
