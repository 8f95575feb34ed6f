"""``python -m ringproof``, the form that ``torchrun -m`` needs, and the command ``ringproof``."""

import os
import sys


def start() -> None:
    """Run the command line, or say in one line that there is too little memory to load it.

    Until the command line answers SIGINT itself, it ends this process, without Python's traceback.
    """
    import signal  # not before the current folder has left the import path

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from ringproof.cli.main import main
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        os.write(2, b"error: memory: there is too little for ringproof; raise `ulimit -v`\n")
        sys.exit(2)
    main()


if __name__ == "__main__":
    # ``python -m`` puts the current folder first on the import path, where a ``json.py`` of whoever
    # wrote that folder stands in for the real one. What Python imported before this line cannot
    # be undone (see SECURITY.md). In a source tree the same folder is where this package is.
    safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    if not safe and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH120
        del sys.path[0]
    start()
