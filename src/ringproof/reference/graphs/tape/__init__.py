"""The rules of a CUDA graph on a CPU: a test instrument, exact and slow.

A capture runs the function once, for real, and writes down every ATen and c10d operation with the
addresses that it used. A replay runs the same operations on the same addresses and no Python of the
function. What that shows is what a GPU would do with new data in old places:

* branches, shapes, process groups and Python numbers of the capture are there for good;
* tensors that the function takes from around it are read where they were: a value written there in
  place is seen, one that was freed is a dangling address (refused by name, or, if ``faithful``,
  read as NaN and extreme integers);
* memory that is allocated and not written has no defined content, and memory that another capture
  of the same pool may have reused is gone (``poison``: NaN and extreme integers, where a device
  would hold whatever was there before);
* registered random generators go on from replay to replay.

Read in this order: ``memory`` (blocks, addresses, and when they live), ``source`` (which line did
it), ``chance`` (random numbers), ``transfers`` (communication in flight), ``operation`` (what is
written down), ``scratch`` (memory that results of one pass share), ``recorder`` (who writes it),
``calls`` and ``fill`` (Python calls that no operation shows, and numbers written to a tensor),
``segment`` (a captured pass), ``backend``.

What differs from a device: the capture computes, and is undone at its end; nothing overlaps; memory
that outlives a pass is not really reused, only treated as lost where it could have been.
``refusals`` lists what a CPU cannot see.
"""
