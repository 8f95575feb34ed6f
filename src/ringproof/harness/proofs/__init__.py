"""Proofs: from what a card claims to what ran, and the verdict that follows.

Kept free of imports: the pytest plugin `recorder` lives here and is loaded into test runs.
"""
