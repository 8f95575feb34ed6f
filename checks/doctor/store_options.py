"""Write the options of each line of Megatron-LM from its source.

``python -m checks.doctor.store_options dev=git:PATH@REF ... > src/ringproof/launch/options.toml``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ringproof.cache import default_cache
from ringproof.launch.options import options_of
from ringproof.launch.stored import table
from ringproof.upstream.sources import open_tree


def main(words: Sequence[str]) -> None:
    """Print the table for ``LINE=SPEC`` words."""
    pairs = (word.split("=", 1) for word in words)
    known = {
        line: options_of(open_tree(spec, cache=default_cache(), offline=True))
        for line, spec in pairs
    }
    sys.stdout.write(table(known))


if __name__ == "__main__":
    main(sys.argv[1:])
