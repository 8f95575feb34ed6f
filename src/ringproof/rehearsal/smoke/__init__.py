"""A smoke run: upstream's training program with a feature on and off, launched by torchrun.

``pair`` makes the two programs from the launch of a skill, ``commands`` their commands and the
files of a scheduler, ``launcher`` starts them, and ``judging`` reads what they left in their logs.
"""
