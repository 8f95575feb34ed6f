"""Refutations: edits of upstream's code under which the proofs of a statement have to fail.

This package imports nothing, since the pytest plugin `planting` in it is loaded into test runs.
"""
