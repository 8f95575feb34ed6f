"""Context parallel attention: four communication types, one loop, one merge.

Read in this order: ``steps`` (which rows meet which, as integers), ``kernels`` (local math),
``masks`` (masks that are tensors, for captured graphs), ``calls`` (all sequences of a step in few
kernel calls), ``merge`` (partial results into one), ``communicator`` and ``blocks`` (what moves,
and when), ``loop`` (the one loop), ``exchange`` (sequence to heads and back), ``plan`` (the four
types put together, once for a microbatch), ``attention`` (the entry point), ``dense`` and
``parity`` (the proof). Import from the modules; ``names``, ``heads``, ``steps`` and ``case`` do not
need torch.

Shape letters: B batch, S local sequence, T key/value sequence, H query heads, G key/value heads,
D query/key head dimension, V value head dimension. A pack (THD) has no B: its sequences are rows.
"""
