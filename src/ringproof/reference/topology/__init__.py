"""Rank layout and process groups.

Read in this order: ``layout`` (the rank grid), ``hierarchy`` (levels of one group),
``catalogue`` (which groups a layout calls for), then, with torch, ``context`` (creates them) and
``census`` (lists what exists). Only the last two import torch, so the integer part is imported
from its modules and not from here.
"""
