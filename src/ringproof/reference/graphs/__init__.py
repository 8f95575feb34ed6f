"""Capture a computation once, replay it without Python: on CUDA, and by the same rules on a CPU.

Read in this order: ``backend`` (what is asked for, and what comes back), ``order`` (in which order
passes are captured, and why memory depends on it), ``conditions`` (what a capture asks for),
``capturing`` (warm-up, forward, backward: the same for every backend), ``replaying`` (the captured
callable under autograd), ``refusals`` (what no device can capture). Then the backends: ``cuda``,
``transformer_engine``, and the folder ``tape``, which has a reading order of its own. ``choose``
picks one.

On top of them: ``scopes`` (which parts of a model), ``key`` (what a graph of one is for), ``slots``
(who may replay, and until when), ``installed`` (a part that replays), and ``bank`` (one graph for
each part, slot and CP size, and which of them a microbatch gets). Apart from all of it, ``sizing``:
how large graphs have to be for a batch.
"""
