"""Rank layout and process groups.

Read in this order: ``layout`` (the rank grid), ``hierarchy`` (levels of one group),
``catalogue`` (which groups a layout calls for) and ``dynamic_catalogue`` (those that Dynamic CP
chooses among); then, with torch, ``context`` and ``dynamic`` (create them) and ``census`` (lists
what exists). Only these three import torch, so the integer part is imported from its modules and
not from here.
"""
