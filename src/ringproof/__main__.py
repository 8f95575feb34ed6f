"""``python -m ringproof``: the form that ``torchrun -m`` needs."""

import os
import sys

if __name__ == "__main__":
    # ``python -m`` puts the current folder first on the import path, where a ``json.py`` of whoever
    # wrote that folder stands in for the real one. What Python imported before this line cannot
    # be undone (see SECURITY.md). In a source tree the same folder is where this package is.
    safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not safe and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH120
        del sys.path[0]
    from ringproof.cli.main import main

    main()
