"""Sixty planted mistakes, and which of them the tests see."""
