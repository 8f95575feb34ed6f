"""Capture a computation once and replay it without Python.

Read in this order: ``backend`` (the interface), ``capture`` (warm-up, forward, backward, and their
conditions), ``replay`` (the captured callable under autograd), ``cuda`` (the backend of a GPU;
``tape`` is the one for a CPU), ``scopes`` (captured parts of a model), ``bank`` (one graph for each
part, slot and CP size), ``sizing`` (size of the graphs of a batch) and ``names`` (names of backends
and scopes).
"""
