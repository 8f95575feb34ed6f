"""The reference trainer, which trains tiny models with Dynamic CP and all other parallelism.

Start with ``trainer``, which has the training loop. The other modules follow in the order of a
step: ``data`` (the documents of a step), ``schedules`` (its plan), ``agreement`` (all ranks have
the same plan), ``routing`` (the exchange of rows), ``pipeline`` (forward and backward),
``gradients`` and ``sharded`` (reductions and the update), ``checkpoint`` and ``records``.
``options`` defines the options of a run, ``assembly`` builds everything that one rank holds, and
``banks`` captures its CUDA graphs.
"""
