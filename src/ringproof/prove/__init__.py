"""Proofs: runs the proofs of cards and derives verdicts.

This package imports nothing, since the pytest plugin `recorder` in it is loaded into test runs.
"""
