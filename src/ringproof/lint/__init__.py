"""Checks agent skills of any repository: whether they are valid, safe and well-formed.

Everything read here comes from people we do not know: it is bounded in size, never executed, and
shown only with its control and invisible characters spelled out.
"""
