# SPDX-License-Identifier: Apache-2.0
"""`python -m harness cost`: what the library costs a program that gains nothing by it."""
