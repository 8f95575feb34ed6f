"""The reference trainer, which trains tiny models with Dynamic CP and all other parallelism.

Start with ``trainer``, which has the training loop. The other modules follow in the order of a
step: ``documents``, ``language`` and ``data`` (text, and the part that is held out), ``sampler``
(the documents of a step), ``schedules`` (the plan of a step), ``agreement`` (all ranks have the
same plan), ``routes`` and ``routing`` (the rows that each rank needs, and the exchange that moves
them), ``stages``, ``microbatches`` and ``pipeline`` (forward and backward), ``gradients`` and
``sharded`` (reductions), ``optimizer`` and ``checkpoint``. ``options`` defines the options of a
run, ``fit`` refuses CP sizes that the model does not support, ``records`` defines the log, and
``assembly`` builds everything that one rank holds. CUDA graphs are in ``graph_options``, ``banks``
(the captures), ``bank_memory`` and ``graph_records`` (memory, and the number of replays).
"""
