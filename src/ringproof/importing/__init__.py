"""Converts cards of NVIDIA's form. Every statement is kept, and none is shown as proven."""
