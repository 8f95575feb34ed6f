"""The reference trainer: Dynamic CP with everything it has to live with.

Read ``trainer`` first: the loop. Then, in the order of a step: ``documents``, ``language`` and
``data`` (where text comes from, and which of it is held out), ``sampler`` (which documents a step
has), ``schedules`` (its plan) and ``agreement`` (that all ranks have the same), ``routes`` (who
needs which rows) and ``routing`` (how they get there), ``stages``, ``microbatches`` and
``pipeline`` (who computes when), ``gradients`` and ``sharded`` (what is summed over whom),
``optimizer``, ``checkpoint``. ``options`` says what can be asked for, ``fit`` what cannot,
``records`` what a run says of itself; ``assembly`` makes a rank's part of it. With graphs:
``graph_options``, ``banks`` (what is captured, before the first step), ``bank_memory`` and
``graph_records`` (what it holds, and how often it was replayed).
"""
