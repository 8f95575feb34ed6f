"""Upstream code opened, and programs run on forked ranks of this machine."""
