"""Text of a pull request steers neither GitHub's runner nor the Markdown of a summary."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from checks.action.installed import ROOT
from checks.action.runner import Action, obeyed
from checks.running import ran

HOSTILE = "  ::add-mask::a\n::error::b\nd ##[set-output name=sarif]e\n::stop-commands::f"
PRINTS = f"""#!/bin/sh
cat <<'END'
{HOSTILE}
END
cat >&2 <<'END'
{HOSTILE}
END
exit 1
"""
ANNOTATES = f"""#!/bin/sh
echo '::error file=a,line=1,title=RP201::b'
cat >&2 <<'END'
{HOSTILE}
END
exit 1
"""


def _action(folder: Path, program: str) -> Action:
    place = folder / "ringproof" / "bin" / "ringproof"
    place.parent.mkdir(parents=True)
    place.write_text(program)
    place.chmod(0o755)
    return Action(ROOT, folder, {"PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    "given",
    [{"format": "text"}, {"command": "prove"}, {"command": "render"}, {"format": "github x"}],
)
def test_no_printed_text_is_a_command_of_the_runner(tmp_path: Path, given: dict[str, str]) -> None:
    done = _action(tmp_path, PRINTS).run(tmp_path, only="Run", **given)
    assert done.code == 1 and done.stdout.count("add-mask") == 2, "all is shown"
    assert obeyed(done.stdout) == [] and done.stderr == ""


def test_annotations_are_the_only_commands(tmp_path: Path) -> None:
    done = _action(tmp_path, ANNOTATES).run(tmp_path, only="Run")
    assert obeyed(done.stdout) == ["::error file=a,line=1,title=RP201::b"]
    assert done.code == 1 and "add-mask" in done.stdout and done.stderr == ""


def test_no_text_leaves_the_block_of_a_summary() -> None:
    said = "```\n# one\r<img src=x>\r\n\n@everyone [a](b)\n    ~~~\n\t<!-- x"
    done = ran("bash", ROOT / ".ci" / "quoted", input=f"{said}\n")
    shown = [token.type for token in MarkdownIt().parse(f"Output:\n{done.stdout}")]
    assert shown == ["paragraph_open", "inline", "paragraph_close", "code_block"]
    texts = [(ROOT / name).read_text() for name in (".ci/newest", ".github/workflows/nightly.yml")]
    assert [text.count("/quoted") for text in texts] == [2, 1]
    assert not any("```" in text for text in texts)
