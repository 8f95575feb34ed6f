"""From what a user names (a checkout, a commit, a release, a wheel) to folders that can be run.

Folders are used as they are and never written to. Commits and releases are unpacked once into the
cache, under a name made of where they come from.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from ringproof.errors import InputError, shown
from ringproof.files import make_folder
from ringproof.launch.options import PROGRAMS
from ringproof.rehearsal.protocol.program import WHEELS, Upstream
from ringproof.rehearsal.standins import dataset_helpers
from ringproof.upstream.releases import download_wheels, examined, sha256_of
from ringproof.upstream.sources import RELEASE, open_tree
from ringproof.upstream.tree import (
    PICTURES,
    UpstreamError,
    UpstreamTree,
    UpstreamUnavailable,
    WheelTree,
)

ENGINE_PARTS = ("transformer_engine/", "transformer_engine-", "build_tools/")
OLDEST_ENGINE = Version("2.9")


TRAINING = "megatron/training/training.py"
PROGRAM = "pretrain_gpt.py"
MODEL_OPTIMIZER = "modelopt"
ITS_OPTIONS = "megatron/post_training/arguments.py"
REMEDY = "name the root of a checkout, git:PATH@REF, or a wheel"


@dataclass(frozen=True)
class _Lack:
    """A file or folder that training needs and wheels of megatron-core do not have.

    Attributes:
        needed_by: Module that needs it, and a word in it, without which nothing does.
    """

    path: str
    needed_by: tuple[str, str]
    sentence: str

    def matters(self, root: Path) -> bool:
        """Whether training needs it in this Megatron, which does not have it."""
        path, word = self.needed_by
        module = root / path
        return not (root / self.path).exists() and module.is_file() and word in module.read_text()


MOST_UNPACKED_BYTES = 2 << 30
"""Limit of what is unpacked of one version; the largest that cards name has 62 MB."""
LACKING = (
    _Lack(
        PROGRAM,
        (TRAINING, "def pretrain"),
        "The package has megatron.training and no program that calls it: a program of the "
        "rehearsal's own ran in the place of pretrain_gpt.py.",
    ),
    _Lack(
        "megatron/core/datasets/Makefile",
        ("megatron/training/initialize.py", "compile_helpers"),
        "A defect of the package: megatron.training runs make in megatron/core/datasets, and the "
        "package has no Makefile there, so that no training starts from it. The rehearsal left "
        "this step out.",
    ),
    _Lack(
        "megatron/post_training",
        (TRAINING, "has_modelopt_state"),
        "A defect of the package: where nvidia-modelopt is installed, megatron.training imports "
        "megatron.post_training, which the package does not have. The rehearsal ran as without "
        "nvidia-modelopt.",
    ),
)


@dataclass(frozen=True)
class _Product:
    """Megatron or Transformer Engine: its wheels, a package in it, and what is unpacked of it."""

    wheels: str
    package: str
    parts: tuple[str, ...]


_MEGATRON = _Product(
    "megatron-core",
    "megatron/core",
    ("megatron/", "megatron_core-", "examples/", "tests/functional_tests/"),
)
_ENGINE = _Product("transformer-engine", "transformer_engine/pytorch", ENGINE_PARTS)


def open_upstream(
    megatron: str,
    engine: str | None,
    *,
    cache: Path,
    offline: bool = False,
    option: str = "--upstream",
) -> Upstream:
    """Return folders of Megatron and Transformer Engine that ranks can import.

    Args:
        megatron: A folder, a wheel, ``git:PATH@REF`` or ``megatron-core==VERSION``.
        engine: A wheel, a folder, ``git:PATH@REF``, ``pip:transformer-engine==VERSION``; ``None``
            for the newest release on the package index.
        option: Option with which the user named Megatron, for messages.

    Raises:
        InputError: One of them is not what it should be.
    """
    root, name = open_megatron(megatron, cache=cache, offline=offline, option=option)
    engine_root, version = open_engine(engine, cache=cache, offline=offline)
    helpers = dataset_helpers.find(root, cache / "helpers")
    trains = (root / TRAINING).is_file()
    wheel = trains and not (root / PROGRAM).is_file()
    if not wheel:
        return Upstream(root, name, engine_root, version, helpers)
    lacks = tuple(one.sentence for one in LACKING if one.matters(root))
    return Upstream(root, name, engine_root, version, helpers, programs=WHEELS, lacks=lacks)


def without_unused(upstream: Upstream, script: str, arguments: Iterable[str] = ()) -> Upstream:
    """Return an upstream that runs as without nvidia-modelopt where nothing of a launch needs it.

    Megatron's training loop imports it where it is installed, with all that it imports, which takes
    longer than everything else. A program that is not upstream's own may import it itself.

    Args:
        script: Program of the launch, as `Upstream.program` finds it.
        arguments: Words of the launch; upstream's own file says which options are about it.
    """
    path = upstream.megatron / ITS_OPTIONS
    known = re.findall(r"""["'](--[\w-]+)["']""", path.read_text()) if path.is_file() else ()
    named = {word.partition("=")[0] for word in arguments}
    own = script in PROGRAMS and upstream.program(script) is not None
    if not own or named.intersection(known):
        return upstream
    return replace(upstream, hidden=(MODEL_OPTIMIZER,))


def open_megatron(
    spec: str, *, cache: Path, offline: bool = False, option: str = "--upstream"
) -> tuple[Path, str]:
    """Return the folder of a Megatron and a name for people; see `open_upstream`."""
    return _opened(_MEGATRON, spec, option, cache, offline)


def open_engine(spec: str | None, *, cache: Path, offline: bool = False) -> tuple[Path, str]:
    """Return the folder of a Transformer Engine and its version; see `open_upstream`."""
    if spec is None:
        spec = str(_newest_engine(cache, offline))
    root, _ = _opened(_ENGINE, spec, "--te", cache, offline)
    version = _engine_version(root)
    if Version(version) < OLDEST_ENGINE:
        raise InputError("--te", f"{version} is not supported; take {OLDEST_ENGINE} or newer")
    return root, version


def open_product(
    wheels: str, package: str, parts: tuple[str, ...], spec: str, *, option: str, cache: Path,
    offline: bool = False, inside: tuple[str, ...] = ("",),
) -> tuple[Path, str]:  # fmt: skip
    """Return the folder from which a package is imported, and its origin for people.

    Args:
        wheels: Name of the product on the package index.
        package: A folder of it, such as ``verl/trainer``.
        parts: What is unpacked of it; see `unpacked`.
        inside: Folders of a checkout in which ``package`` may be.

    Raises:
        InputError: The spec does not name such a product.
    """
    last = inside[-1]
    for folder in inside:
        product = _Product(wheels, str(Path(folder, package)), parts)
        try:
            root, name = _opened(product, spec, option, cache, offline)
        except InputError as error:
            if folder == last or "has no" not in error.sentence:
                raise
            continue
        return root / folder, name
    raise AssertionError(inside)


def open_bridge(spec: str, *, option: str, cache: Path, offline: bool = False) -> tuple[Path, str]:
    """Return the folder from which Megatron-Bridge is imported, and its origin for people."""
    return open_product(
        "megatron-bridge", "megatron/bridge", ("megatron/", "src/", "scripts/", "examples/"), spec,
        option=option, cache=cache, offline=offline, inside=("", "src"),
    )  # fmt: skip


def _opened(
    product: _Product, spec: str, option: str, cache: Path, offline: bool
) -> tuple[Path, str]:
    """Return the folder of a product and where it is from; a folder is used as it is."""
    tree: UpstreamTree | None = None
    spec = spec.removeprefix("dir:")  # is not unpacked: its name stays when its files change
    if not spec:
        raise InputError(option, f"the name is empty; {REMEDY}")
    if spec.endswith(".whl"):
        tree = _wheel(option, Path(spec), product.wheels)
    elif ":" in spec.split("/")[0] or RELEASE.fullmatch(spec):
        try:
            tree = open_tree(spec, cache=cache, offline=offline)
        except InputError as error:
            raise InputError(option, error.sentence) from error
    root = Path(spec).resolve() if tree is None else unpacked(tree, product.parts, cache)
    if not (root / product.package / "__init__.py").is_file():
        raise InputError(option, f"{shown(spec)} has no {product.package}; {REMEDY}")
    return root, f"dir:{root.name}" if tree is None else tree.origin


def _wheel(option: str, path: Path, package: str) -> WheelTree:
    if not path.is_file():
        raise InputError(option, f"there is no file {shown(path)}; name a wheel of {package}")
    try:
        return WheelTree(path, f"wheel:{path.name}", sha256_of(path))
    except UpstreamError as error:
        raise InputError(option, f"{error}; download the wheel again") from error


def _newest_engine(cache: Path, offline: bool) -> Path:
    """Return the newest release on the package index, or in the cache where that fails."""
    folder = cache / "transformer-engine"
    make_folder(folder, field="--cache")
    problem = "this is offline"
    if not offline:
        try:
            for archive in download_wheels("transformer-engine", folder / "newest"):
                return archive.path
        except UpstreamUnavailable as error:
            problem = str(error)
    kept = sorted(folder.rglob("*.whl"), key=lambda path: Version(path.name.split("-")[1]))
    if not kept:
        sentence = (
            f"no release of transformer-engine is in the cache, and {problem}; give --te a wheel "
            "or a checkout"
        )
        raise InputError("--te", sentence)
    return examined(kept[-1]).path


def is_unpacked(folder: Path) -> bool:
    """Whether `unpacked` made a folder, or one above it; any other is the user's own."""
    made = re.compile(r"[0-9a-f]{20}")
    lineage = (folder, *folder.parents)
    return any(made.fullmatch(one.name) and one.parent.name == "trees" for one in lineage)


def unpacked(tree: UpstreamTree, parts: Iterable[str], cache: Path) -> Path:
    """Write a tree's files below the cache once, whole or not at all, and return the folder.

    Args:
        parts: Folders that are written; files at the root always are, and pictures never.
    """
    parts = tuple(parts)
    key = hashlib.sha256("\n".join((tree.origin, *parts)).encode()).hexdigest()[:20]
    target = cache / "trees" / key
    if target.is_dir():
        return target
    make_folder(target.parent, field="--cache")
    draft = target.with_name(f".{key}-{secrets.token_hex(8)}")
    draft.mkdir()  # others may read a cache that is theirs, too, as the umask says
    try:
        _write(tree, parts, draft)
        draft.rename(target)
    except UpstreamError as error:
        sentence = f"{shown(tree.origin)} cannot be unpacked ({error}); download it again"
        raise InputError("upstream", sentence) from error
    except OSError as error:
        if not target.is_dir():  # another process may have been faster
            why = f"{shown(tree.origin)} cannot be unpacked ({error.strerror})"
            remedy = f"see whether {shown(cache)} has room, or take another version"
            raise InputError("upstream", f"{why}; {remedy}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _write(tree: UpstreamTree, parts: tuple[str, ...], folder: Path) -> None:
    """Write the files of a tree, each after its name was checked, up to a size of all."""
    left = MOST_UNPACKED_BYTES
    for path in tree.paths():
        if path.lower().endswith(("/", *PICTURES)):
            continue
        if "/" not in path or path.startswith(parts):
            data = tree.read(path)
            left -= len(data)
            if left < 0:
                raise UpstreamError(f"it has more than {MOST_UNPACKED_BYTES:,} bytes")
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def _engine_version(root: Path) -> str:
    """The version that a wheel's metadata or a checkout's build file gives."""
    file = root / "build_tools" / "VERSION.txt"
    try:
        for folder in sorted(root.glob("transformer_engine-*.dist-info")):
            return str(Version(importlib.metadata.Distribution.at(folder).version))
        return str(Version(file.read_text().strip()))
    except (OSError, ValueError, TypeError, KeyError):
        sentence = (
            f"{shown(root)} has no build_tools/VERSION.txt; name a wheel or a checkout's root"
        )
        raise InputError("--te", sentence) from None
