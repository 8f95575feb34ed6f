"""The skills that ringproof brings with it, for use outside a checkout of it.

A wheel holds the folders that prove needs of a checkout, laid out as they are there. An editable
installation uses the checkout that it was made from.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE / "_checkout"
"""Where a wheel has them; ``pyproject.toml`` lists the folders."""


def shipped_skills(package: Path = PACKAGE) -> Path | None:
    """Return the folder of the skills that were installed with ringproof.

    Args:
        package: The folder of the package ``ringproof``.

    Returns:
        ``None`` where neither the package nor a checkout around it has cards and skills.
    """
    for root in (package / CHECKOUT.name, package.parents[1]):
        if (root / "cards").is_dir() and (root / "skills").is_dir():
            return root / "skills"
    return None


@contextlib.contextmanager
def workplace(skills: Path) -> Iterator[Path]:
    """Yield a folder of the same skills in which tests can run.

    Tests write into their checkout, and an installed package must stay as it is, so that shipped
    skills are copied with all that is beside them. Other folders are yielded unchanged.
    """
    if skills.resolve() != (CHECKOUT / "skills").resolve():
        yield skills
        return
    with tempfile.TemporaryDirectory(prefix="ringproof-prove-") as folder:
        root = Path(folder, "ringproof")
        shutil.copytree(CHECKOUT, root, ignore=shutil.ignore_patterns("__pycache__"))
        (root / "src").mkdir()
        (root / "src" / PACKAGE.name).symlink_to(PACKAGE, target_is_directory=True)
        yield root / "skills"
