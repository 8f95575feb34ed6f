"""Planted defects in upstream's code, and defects of upstream that nobody planted.

``programs`` names small training programs, ``table`` the planted defects and the program that
shows each, ``judging`` compares a run with its reference, ``upstream`` lists upstream's defects.
The modules ``megatron`` and ``engine`` hold the functions that plant; they run in ranks only.
"""
