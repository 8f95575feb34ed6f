"""CUDA graphs without CUDA: the tape in the place of ``torch.cuda.CUDAGraph``.

Upstream's own code decides what is captured, into which pool and in which order; the tape
(`ringproof.reference.graphs.tape`) records it and replays it. Read in this order: ``memory`` (raw
addresses that upstream keeps), ``recording`` (one capture), ``cuda_graph`` (the classes that
upstream sees).
"""
