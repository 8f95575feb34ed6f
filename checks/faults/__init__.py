"""Planted defects in upstream's code, and defects of upstream that nobody planted.

``programs`` has the small training programs and upstream's own defects, ``trials`` the planted
defects and how each shows. The functions of ``megatron`` and ``engine`` plant them in a rank.
"""
