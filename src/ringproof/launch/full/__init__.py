"""Launches at their full size."""
