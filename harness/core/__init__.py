# SPDX-License-Identifier: Apache-2.0
"""What every other part stands on: the nouns (model), legs' surroundings (work directory, mounts, limits), samples
and their statistics. Imports no other part.
"""
