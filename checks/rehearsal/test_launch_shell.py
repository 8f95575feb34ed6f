"""A script is followed as bash runs it: the words of the launch are those that bash hands over."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ringproof.errors import InputError
from ringproof.launch.reading import read_script

HEAD = "#!/bin/bash\n"
LAUNCH = "torchrun --nproc-per-node 2 train.py "

SCRIPTS = YAML(typ="safe", pure=True).load(Path(__file__).with_name("launches.yaml").read_text())
WORDS, REFUSED = SCRIPTS["words"], SCRIPTS["refused"]


def written(folder: Path, text: str) -> Path:
    script = folder / "train.sh"
    script.write_text(HEAD + text + "\n", encoding="utf-8")
    return script


@pytest.mark.parametrize("name", WORDS)
def test_the_words_are_those_of_bash(name: str, tmp_path: Path) -> None:
    script = written(tmp_path, WORDS[name])
    assert list(read_script(script).arguments) == _words_of_bash(script, tmp_path)


def test_the_oracle_tells_words_apart(tmp_path: Path) -> None:
    script = written(tmp_path, LAUNCH + '"a b"')
    assert _words_of_bash(script, tmp_path) == ["a b"] != ["a", "b"]


def _words_of_bash(script: Path, folder: Path) -> list[str]:
    """Run a snippet of this file with a ``torchrun`` that writes its arguments down."""
    bash = shutil.which("bash")
    assert bash is not None
    out = folder / "words"
    stand_in = folder / "torchrun"
    stand_in.write_text(f'#!/bin/bash\nprintf "%s\\0" "${{@:4}}" > {out}\n', encoding="utf-8")
    stand_in.chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    subprocess.run([bash, str(script)], env={"PATH": path}, cwd=folder, check=True,
                   capture_output=True, timeout=20)  # fmt: skip
    words = out.read_text(encoding="utf-8").split("\0")[:-1]
    return [] if words == [""] else words


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name: str, tmp_path: Path) -> None:
    case = REFUSED[name]
    with pytest.raises(InputError) as caught:
        read_script(written(tmp_path, case["script"]))
    message = str(caught.value)
    assert case["remedy"] in message and case["problem"] in message and "\n" not in message


def test_nothing_is_executed(tmp_path: Path) -> None:
    body = f"touch {tmp_path}/made\nA=$(touch {tmp_path}/made)\neval 'touch {tmp_path}/made'\n"
    script = written(tmp_path, body + LAUNCH + "--save $A")
    assert read_script(script).arguments[0] == "--save"
    assert not (tmp_path / "made").exists()


def test_sets_win_over_assignments(tmp_path: Path) -> None:
    script = written(tmp_path, "N=$(nproc)\n" + LAUNCH + "--seq-length $N")
    assert read_script(script, {"N": "64"}).arguments == ("--seq-length", "64")


def test_a_value_that_a_rehearsal_leaves_out_need_not_be_known(tmp_path: Path) -> None:
    text = LAUNCH + "--save $OUT --data-path ${1} --load $(pwd)/x $EXTRA --bf16"
    launch = read_script(written(tmp_path, text))
    assert launch.arguments[-1] == "--bf16" and "--data-path" in launch.arguments
    with pytest.raises(InputError, match="EXTRA"):
        read_script(written(tmp_path, LAUNCH + "--tensor-model-parallel-size $EXTRA"))


def test_a_sourced_script_is_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "conf.sh").write_text("SEQ=128\n", encoding="utf-8")
    text = 'D="$(dirname "$0")"\nsource "$D/conf.sh"\n. /venv/bin/activate\n' + LAUNCH + "--s $SEQ"
    launch = read_script(written(tmp_path, text))
    assert launch.arguments == ("--s", "128")
    assert len(launch.notes) == 1 and "/venv/bin/activate" in launch.notes[0]


def test_a_script_that_another_script_runs_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(LAUNCH + '--cp $CP --seq-length "$1"\n', encoding="utf-8")
    script = tmp_path / "job.sh"
    script.write_text(HEAD + "export CP=4\nHIDDEN=1\nbash ./train.sh 128\n", encoding="utf-8")
    assert read_script(script).arguments == ("--cp", "4", "--seq-length", "128")
    (tmp_path / "train.sh").write_text("bash train.sh\n", encoding="utf-8")
    with pytest.raises(InputError, match="call themselves"):
        read_script(script)


def test_an_evaluated_command_keeps_its_unknown_values(tmp_path: Path) -> None:
    line = f'C="{LAUNCH} --save $(pwd)/x --a \'b c\'"\neval "$C"'
    assert read_script(written(tmp_path, line)).arguments == ("--save", "$(pwd)/x", "--a", "b c")
    with pytest.raises(InputError, match="--set C=VALUE"):
        read_script(written(tmp_path, line.replace("--save", "--seq-length")))
