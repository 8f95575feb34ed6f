"""The rules of a CUDA graph on a CPU: a test double of a device, exact and slow.

A capture runs the function once and records every ATen and c10d operation with the addresses that
it used. A replay runs the same operations on the same addresses and no Python of the function. This
shows what a GPU would do with new data in old places:

* Branches, shapes, process groups and Python numbers of the capture are constants.
* Tensors that the function takes from around it are read where they were: a value written there in
  place is seen, and a freed tensor is a dangling address (refused by name, or, if ``faithful``,
  read as NaN and extreme integers).
* Memory that is allocated and not written has no defined content, and memory that another capture
  of the same pool may have reused is lost (``poison``: NaN and extreme integers, where a device
  would have old data).
* Registered random generators continue from replay to replay.

Read in this order: ``memory`` (blocks, addresses, and their lives), ``operation``, ``recorder`` and
``refusals`` (what no device can capture), ``segment`` (a captured pass), ``backend``.

The tape differs from a device: the capture computes, and is undone at its end; nothing overlaps;
and memory that outlives a pass is not reused, only treated as lost where it could have been.
``refusals`` lists what a CPU cannot see.
"""
