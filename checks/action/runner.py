"""A runner for composite actions: inputs to environment, steps in order, as GitHub's does it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from checks.running import ran

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
STEP_KEYS = frozenset(("name", "id", "shell", "env", "run"))


@dataclass
class Done:
    """What a run of an action left behind; ``code`` is that of the last step executed."""

    code: int = 0
    stdout: str = ""
    stderr: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """An ``action.yml`` and how it is run.

    Args:
        folder: Where the action is; ``GITHUB_ACTION_PATH``.
        temporary: ``RUNNER_TEMP``, which jobs keep between steps.
        environment: What the runner's shell has besides.
    """

    folder: Path
    temporary: Path
    environment: Mapping[str, str]

    @property
    def data(self) -> Any:
        return YAML(typ="safe").load(self.folder / "action.yml")

    def run(self, workspace: Path, *, only: str = "", **inputs: str) -> Done:
        """Execute the steps, or the one of a name, until one fails."""
        declared = self.data["inputs"]
        unknown = inputs.keys() - declared.keys()
        assert not unknown, f"no such inputs: {unknown}"
        values = {
            f"inputs.{name}": inputs.get(name, entry["default"]) for name, entry in declared.items()
        }
        done = Done()
        for step in self.data["runs"]["steps"]:
            assert step.keys() <= STEP_KEYS, step.keys() - STEP_KEYS
            if only in ("", step["name"]) and done.code == 0:
                self._step(step, values, workspace, done)
        for name, entry in self.data["outputs"].items():
            done.outputs[name] = evaluate(entry["value"], values, missing="")
        return done

    def _step(
        self, step: Mapping[str, Any], values: dict[str, str], workspace: Path, done: Done
    ) -> None:
        assert step["shell"] == "bash"
        assert EXPRESSION.search(step["run"]) is None, "an input would become part of the script"
        script, output = self.temporary / "step.sh", self.temporary / "output"
        script.write_text(step["run"])
        output.write_text("")
        given = {name: evaluate(text, values) for name, text in step.get("env", {}).items()}
        places = {
            "GITHUB_ACTION_PATH": str(self.folder),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_WORKSPACE": str(workspace),
            "RUNNER_TEMP": str(self.temporary),
        }
        environment = {**self.environment, **places, **given}
        step_done = ran(*SHELL, script, cwd=workspace, env=environment)
        done.code = step_done.returncode
        done.stdout += step_done.stdout
        done.stderr += step_done.stderr
        for line in output.read_text().splitlines():
            name, equals, value = line.partition("=")
            assert equals, f"no NAME=VALUE line: {line}"
            values[f"steps.{step.get('id')}.outputs.{name}"] = value


def obeyed(printed: str) -> list[str]:
    """The lines of a step's output that GitHub's runner obeys.

    It takes a line that begins with ``::`` after blanks, and one with ``##[`` anywhere, unless
    ``::stop-commands::WORD`` went before and ``::WORD::`` did not come since.
    """
    found, word = [], ""
    for line in printed.splitlines():
        text = line.lstrip()
        if word:
            word = "" if text == f"::{word}::" else word
        elif text.startswith("::stop-commands::"):
            word = text.removeprefix("::stop-commands::")
        elif text.startswith("::") or "##[" in text:
            found.append(text)
    assert not word, "commands stay switched off for the steps that follow"
    return found


def evaluate(text: str, values: Mapping[str, str], *, missing: str | None = None) -> str:
    """A text with its ``${{ }}`` expressions replaced; only plain names are understood.

    Raises:
        KeyError: An expression is none of the values, and nothing stands for missing ones.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        is_output = re.fullmatch(r"steps\.\w+\.outputs\.\w+", name) is not None
        if name not in values and is_output and missing is not None:
            return missing
        return values[name]

    return EXPRESSION.sub(value, text)
