"""A script is followed as bash runs it: the words of the launch are those that bash hands over."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.launch.reading import read_script

HEAD = "#!/bin/bash\n"
LAUNCH = "torchrun --nproc-per-node 2 train.py "

SNIPPETS = {
    "variables": 'A=4; B="$A x"; ' + LAUNCH + "--a $A --b \"$B\" --c ${A}k --d '$A'",
    "splitting": 'A="--x 1  --y 2"\n' + LAUNCH + '$A "$A" x$A',
    "defaults": LAUNCH + '${N:-8} ${N-9} ${N:+no} "${N:-a b}" ${N:-a b} ${M:=5} $M ${M:+yes}',
    "empty default": "N=\n" + LAUNCH + "${N:-8} x${N-9}y",
    "nested default": LAUNCH + "${N:-${P:-$((2 * 3))}}",
    "arithmetic": "A=7 B=2\n" + LAUNCH + "$((A*B+1)) $(($A/$B)) $((A%B)) $((-A/B)) $((A>B&&!0)) "
    "$((A>3?10:20)) $((2**5))",
    "arrays": "A=(--a 1 'two words' \"$#\")\nA+=(--b)\nB=()\n"
    + LAUNCH
    + '"${A[@]}" "${B[@]}" ${A[@]} ${A[2]} ${#A[@]} "${A[*]}"',
    "array comments": "A=(\n  --a 1 # comment\n  # more\n  --b '#2'\n)\n" + LAUNCH + "${A[@]}",
    "continued": LAUNCH + "--a \\\n  1 \\\n  --b 2",
    "string continued": 'O=" \\\n --a 1 \\\n --b 2"\n' + LAUNCH + "$O",
    "if": 'T=2\nif [ $T -gt 1 ]; then S="--sp"; else S=""; fi\n' + LAUNCH + "$S",
    "elif": 'M=b\nif [[ $M == a ]]; then V=1\nelif [[ "$M" == b* && -n $M ]]; then V=2; fi\n'
    + LAUNCH
    + "$V",
    "unset in tests": 'if [ -z "$NOT_SET" ]; then V=1; fi\n[[ -n $NOT_SET ]] && V=2\n'
    + LAUNCH
    + "$V",
    "regular expression": "X=moe_8b\n[[ $X =~ ^moe ]] && V=1 || V=2\n"
    "[[ $X =~ ^(dense|big)_ || b =~ ^(a|c)$ ]] && W=1 || W=2\n" + LAUNCH + "$V $W",
    "case": 'M=8B\ncase "$M" in\n 1B|8B) L=32;;\n *) L=1;;\nesac\n' + LAUNCH + "$L",
    "for": 'for i in 1 2 3; do L+=" --d $i"; done\n' + LAUNCH + "$L",
    "while": "set -- --tp 4\nwhile [[ $# -gt 0 ]]; do case $1 in --tp) T=$2; shift 2;; esac; done\n"
    + LAUNCH
    + "$T",
    "functions": "go() {\n local n=$1; shift\n " + LAUNCH + '--name "$n" "$@"\n}\nn=out\n'
    'go base --x "1 2"',
    "prefix removal": "P=/a/b.c.d\n" + LAUNCH + "${P##*/} ${P%.*} ${P%%.*} ${P#/} ${P/b/X} ${#P} "
    "${P:1:3}",
    "case change": "P=Abc\n" + LAUNCH + "${P^^} ${P,,}",
    "here-document": "cat <<EOF\ntorchrun nothing $((\nEOF\n" + LAUNCH + "--a",
    "redirection": LAUNCH + "--a 1 2>&1 | tee -a log.txt",
    "arguments": LAUNCH + '"$@" $# --end',
    "colon default": ": ${A:=3}\n" + LAUNCH + "$A",
    "subshell": "A=1\n(A=2; echo $A) > /dev/null\n" + LAUNCH + "$A",
    "and or": "true && A=1 || A=2\nfalse || B=3\n" + LAUNCH + "$A $B",
    "increment": "A=1\n(( A++ ))\n(( A += 3 ))\n" + LAUNCH + "$A",
    "json": 'J=\'{"mode":"d","n":[1,2]}\'\n' + LAUNCH + '--json "$J"',
    "indirect": "A=5; B=A\n" + LAUNCH + "${!B}",
    "quotes in quotes": LAUNCH + '"it\'s" \'say "x"\' a\\ b "\\$A" "a\\b"',
    "exported": "export A=1 B='x y'\n" + LAUNCH + '$A "$B"',
}


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_words_are_those_of_bash(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(HEAD + SNIPPETS[name] + "\n", encoding="utf-8")
    assert list(read_script(script).arguments) == _words_of_bash(script, tmp_path)


def test_the_oracle_tells_words_apart(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(HEAD + LAUNCH + '"a b"\n', encoding="utf-8")
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


REFUSED = {
    "command": ("N=$(nproc)\n" + LAUNCH + "--seq-length $N", r"--set N=VALUE", "$(nproc)"),
    "not set": (LAUNCH + "--seq-length $SEQ", r"--set SEQ=VALUE", "$SEQ"),
    "positional": (LAUNCH + "--seq-length ${1}", r"--set 1=VALUE", "${1}"),
    "arithmetic": (LAUNCH + "--seq-length $((SEQ * $CP))", r"--set CP=VALUE", "$CP"),
    "ranks": ("torchrun --nproc-per-node $G train.py --a", r"--set G=VALUE", "$G"),
    "condition": (
        "if [ -f x ]; then N=1; else N=2; fi\n" + LAUNCH + "--n $N",
        "--set N=",
        "line 2",
    ),
    "under a condition": ("if [ -f x ]; then\n" + LAUNCH + "\nfi", "--set NAME=", "line 2"),
    "two": (LAUNCH + "--a\n" + LAUNCH + "--b", "RINGPROOF_LAUNCH", "lines 2, 3"),
    "none": ("echo torchrun train.py", "torchrun", "launches no training"),
    "exits": ("exit 0\n" + LAUNCH, "torchrun", "exits in line 2"),
    "launcher": ("deepspeed train.py --a", "torchrun line", "deepspeed"),
    "quote": (LAUNCH + '"abc', "close", "double quote"),
    "endless": ("while true; do A=1; done\n" + LAUNCH, "write it out", "does not end"),
    "recursion": ("f() { f; }\nf\n" + LAUNCH, "unroll", "call themselves"),
    "module": ("torchrun -m a.b", "path", "module"),
    "number": ("torchrun --nproc-per-node gpu train.py", "number", "gpu"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name: str, tmp_path: Path) -> None:
    text, remedy, problem = REFUSED[name]
    script = tmp_path / "train.sh"
    script.write_text(HEAD + text + "\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_script(script)
    message = str(caught.value)
    assert remedy in message and problem in message and "\n" not in message


def test_nothing_is_executed(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    body = f"touch {tmp_path}/made\nA=$(touch {tmp_path}/made)\neval 'touch {tmp_path}/made'\n"
    script.write_text(HEAD + body + LAUNCH + "--save $A\n", encoding="utf-8")
    assert read_script(script).arguments[0] == "--save"
    assert not (tmp_path / "made").exists()


def test_sets_win_over_assignments(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(HEAD + "N=$(nproc)\n" + LAUNCH + "--seq-length $N\n", encoding="utf-8")
    assert read_script(script, {"N": "64"}).arguments == ("--seq-length", "64")


def test_a_value_that_a_rehearsal_leaves_out_need_not_be_known(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    text = LAUNCH + "--save $OUT --data-path ${1} --load $(pwd)/x $EXTRA --bf16"
    script.write_text(HEAD + text + "\n", encoding="utf-8")
    launch = read_script(script)
    assert launch.arguments[-1] == "--bf16" and "--data-path" in launch.arguments
    with pytest.raises(InputError, match="EXTRA"):
        script.write_text(HEAD + LAUNCH + "--tensor-model-parallel-size $EXTRA\n", encoding="utf-8")
        read_script(script)


def test_a_sourced_script_is_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "conf.sh").write_text("SEQ=128\n", encoding="utf-8")
    script = tmp_path / "train.sh"
    text = 'D="$(dirname "$0")"\nsource "$D/conf.sh"\n. /venv/bin/activate\n' + LAUNCH + "--s $SEQ"
    script.write_text(HEAD + text + "\n", encoding="utf-8")
    launch = read_script(script)
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
    script = tmp_path / "train.sh"
    line = f'C="{LAUNCH} --save $(pwd)/x --a \'b c\'"\neval "$C"\n'
    script.write_text(HEAD + line, encoding="utf-8")
    assert read_script(script).arguments == ("--save", "$(pwd)/x", "--a", "b c")
    script.write_text(HEAD + line.replace("--save", "--seq-length"), encoding="utf-8")
    with pytest.raises(InputError, match="--set C=VALUE"):
        read_script(script)
