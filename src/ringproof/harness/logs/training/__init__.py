"""Two training logs side by side. Reading order: ``source`` (a log's lines, and of which format
they are), ``columns`` (what is looked for), ``series`` (the values of one quantity by step),
``jsonl``, ``megatron`` and ``table`` (one reader per format), ``log`` (a log as read),
``difference`` (how far two series lie apart at each step), ``verdict`` (what kind of difference
that is), ``comparison`` (the whole), ``remarks`` (what should be said beside it), ``report`` (as
JSON) and ``drawing`` (the points of a picture).
"""
