"""Tiny models, structurally true, whose every part works on a packed microbatch under CP and TP.

Read in this order: ``config`` (what a model is made of), ``batch`` (what it is fed),
``parameters`` and ``tensor_parallel`` (how weights are cut, and what moves for it), ``linear``,
``norm`` and ``rope``, then the mixers ``attention``, ``mla`` and ``mamba``, the feed-forwards
``feed_forward`` and ``moe``, and what puts them together: ``layer``, ``cross_entropy``, ``mtp``
and ``stage``.
"""
