"""Packs of sequences: padding, partition over ranks and fixed capacity, as integers."""
