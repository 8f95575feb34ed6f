"""Tiny models with the structure of real ones, whose parts work on a packed microbatch.

The CP group comes with the microbatch, and TP divides the weights.

Read in this order: ``config`` (parts of a model), ``batch`` (its input), ``parameters`` and
``tensor_parallel`` (division of weights, and communication), ``linear`` and ``norm``, the mixers
``attention`` and ``mla``, the feed-forwards ``feed_forward`` and ``moe``, ``layer``,
``vocabulary`` and ``stage``. ``static`` has microbatches of fixed capacity for CUDA graphs.
"""
