"""Measurements of the reference trainer."""
