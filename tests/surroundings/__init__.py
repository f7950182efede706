# SPDX-License-Identifier: Apache-2.0
"""The library in containers and in a virtual machine: README.md of this directory."""

USERS = (1001, 1002)
