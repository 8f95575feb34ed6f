"""Launches of programs that use Megatron-LM as a library: commands with overrides, and slime."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ringproof.doctor.fields import DECIDES, of_fields, program_of
from ringproof.doctor.settings import Settings
from ringproof.errors import InputError
from ringproof.rehearsal.launch.flags import Flags
from ringproof.rehearsal.launch.reading import Launch, find
from ringproof.rehearsal.launch.shell.expand import marks
from ringproof.rehearsal.launch.shell.follow import follow

OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
ENOUGH = 2
"""Overrides that make a command one of a program that takes them."""


def overrides_of(words: Sequence[str]) -> dict[str, str]:
    """Return the overrides ``NAME.NAME=VALUE`` among the words of a command, the last of each."""
    return {match[1]: match[2] for word in words if (match := OVERRIDE.fullmatch(word))}


def of_command(
    words: Sequence[str], environment: Mapping[str, str], source: str
) -> Settings | None:
    """Return the settings of a command that starts another program; ``None`` for any other.

    Args:
        environment: Variables that hold where it runs.
    """
    if words and words[0].rpartition("/")[2] == "ray" and "--" in words:
        return _of_ray(words, environment, source)
    fields = overrides_of(words)
    if len(fields) < ENOUGH or not program_of(fields):
        return None
    unknown = [name for name, value in fields.items() if marks(value)]
    settings = of_fields({name: fields[name] for name in fields if name not in unknown}, source)
    notes = [f"the value of {name} is not known without running the script"
             for name in unknown if DECIDES.search(name)]  # fmt: skip
    if any(marks(word) and not OVERRIDE.fullmatch(word) for word in words):
        notes.append("some words of the command are not known without running the script")
    launch = _launcher(words, environment, source)
    if launch is not None and settings.ranks is None:
        settings = replace(settings, ranks=launch[0] * launch[1], ranks_per_node=launch[1])
    return replace(settings, notes=(*settings.notes, *notes))


def of_script(text: str, path: Path, sets: Mapping[str, str]) -> Settings | None:
    """Return the settings of the one command of a script that starts another program.

    Raises:
        InputError: There are several, and ``RINGPROOF_LAUNCH`` chooses none.
    """
    choice = sets.get("RINGPROOF_LAUNCH", "")
    given = {name: value for name, value in sets.items() if name != "RINGPROOF_LAUNCH"}
    commands = follow(text, path.name, given, path.parent).commands
    found = [settings for command in commands
             if (settings := of_command(command.words, command.environment,
                                        f"{path.name}:{command.line}"))]  # fmt: skip
    if len(found) > 1 and not (choice.isdigit() and 1 <= int(choice) <= len(found)):
        problem = f"the script starts {len(found)} programs"
        remedy = f"choose one with --set RINGPROOF_LAUNCH=1 to {len(found)}"
        raise InputError(path.name, choice or None, problem, remedy)
    return found[int(choice or 1) - 1] if found else None


def _launcher(
    words: Sequence[str], environment: Mapping[str, str], source: str
) -> tuple[int, int] | None:
    """Nodes and ranks of a node, where torchrun or srun in the command says them."""
    if not any("torchrun" in word or "torch.distributed" in word for word in words):
        return None
    kept = [word for word, following in zip(words, [*words[1:], ""], strict=True)
            if word != "-m" or following.startswith("torch.")]  # fmt: skip
    try:  # a module in the place of a script, which torchrun's own options do not depend on
        found = find(kept, environment, source)
    except InputError:
        return None
    return None if found is None or found.unknown else (found.nodes, found.ranks_per_node)


def _of_ray(words: Sequence[str], environment: Mapping[str, str], source: str) -> Settings | None:
    """Settings of ``ray job submit ... -- python train.py ...``, as slime starts Megatron-LM."""
    from ringproof.doctor.reading import of_launch

    at = words.index("--")
    program = [word for word in words[at + 1 :] if not marks(word)]
    script = next((i for i, word in enumerate(program) if word.endswith(".py")), None)
    if script is None or len(overrides_of(program)) >= ENOUGH:
        return of_command(program, environment, source)
    flags = Flags(tuple(program[script + 1 :]))
    sizes = [flags.one(f"--actor-num-{name}") or "" for name in ("nodes", "gpus-per-node")]
    nodes, each = (int(size) if size.isdigit() else 0 for size in sizes)
    runtime = Flags(tuple(words[:at])).one("--runtime-env-json") or "{}"
    try:
        variables = json.loads(runtime)["env_vars"].items()
    except (ValueError, AttributeError, KeyError, TypeError):
        variables = ()
    given = {**environment, **{str(name): str(value) for name, value in variables}}
    launch = Launch(program[script], flags.words, MappingProxyType(given), nodes, each, source)
    settings = replace(
        of_launch(launch), environment=MappingProxyType(given) if variables else None
    )
    return settings if nodes * each else replace(settings, ranks=None, ranks_per_node=None)
