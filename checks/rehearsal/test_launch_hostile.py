"""A hostile launch is refused in one sentence with its line, before it takes the machine."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from checks.rehearsal.test_launch_shell import LAUNCH, written
from ringproof.errors import InputError
from ringproof.launch.reading import find, read_command, read_script
from ringproof.launch.shell.budget import MOST_CHARACTERS, MOST_STEPS

FAN = "f40() { :; }\n" + "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(40))
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnop"
SUMS = "".join(f'{one}="{two}+{two}"\n' for one, two in pairwise(NAMES))
LOOPS = "".join(f"for x{i} in {'1 ' * 40}; do " for i in range(8)) + ":; " + "done; " * 8

BOUNDLESS = {
    "functions that fan out": FAN + "f0",
    "nested loops": LOOPS,
    "a text that doubles": "X=ab\n" + "X=$X$X\n" * 60,
    "an array that doubles": "X=(a b)\n" + 'X=("${X[@]}" "${X[@]}")\n' * 60,
    "a replacement that multiplies": "X=aaaaaaaa\n" + "X=${X//a/$X}\n" * 60,
    "arithmetic that doubles": SUMS + "echo $((A))",
    "functions in subshells": FAN + "( f0 )",
    "words that are evaluated again": 'X=":; :"\n' + "X=\"eval '$X'; eval '$X'\"\n" * 40 + "$X",
    "cut at every letter": f"X={'a' * 50_000}\nY=${{X%%*b*}}",
    "words that may each start a launch": "x " + "python " * 20_000,
    "parentheses that are scanned again": "(" * 900 + "a" * 10_000 + " )" * 900,
}


@pytest.mark.parametrize("name", BOUNDLESS)
def test_work_without_bound_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_script(written(tmp_path, f"{BOUNDLESS[name]}\n{LAUNCH}"))
    message = str(caught.value)
    assert message.startswith("train.sh") and "\n" not in message
    assert "takes more than" in message or "call themselves" in message


def test_scripts_that_source_each_other_twice_are_refused(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / f"s{i}.sh").write_text(f"source s{i + 1}.sh\nsource s{i + 1}.sh\n")
    with pytest.raises(InputError, match=r"s\d+\.sh:\d+: reading .* more than 100 files"):
        read_script(written(tmp_path, "source s0.sh\n" + LAUNCH))


def test_a_shell_that_starts_itself_is_refused(tmp_path: Path) -> None:
    script = 'export X=\'bash -c "$X"; bash -c "$X"\'\nbash -c "$X"\n' + LAUNCH
    with pytest.raises(InputError):
        read_script(written(tmp_path, script))


class Counted(list[str]):
    """Words that count how often their rest is copied."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        self.copied += isinstance(at, slice)
        return super().__getitem__(at)


def test_the_rest_of_a_command_is_copied_only_where_a_launch_may_start() -> None:
    words = Counted(["srun", *"-" * 1000, "env"])
    assert find(words, {}, "train.sh") is None
    assert words.copied < 10


@pytest.mark.parametrize("content", [b"\x7fELF" + bytes(9000), b"# \xff\xfe latin\n" * 9])
def test_a_sourced_file_that_is_not_text_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_bytes(content)
    launch = read_script(written(tmp_path, "source env.sh\nbash env.sh\n" + LAUNCH))
    assert len([note for note in launch.notes if "env.sh was not read" in note]) == 2


def test_a_large_sourced_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "env.sh").open("wb") as stream:
        stream.truncate(1 << 40)
    launch = read_script(written(tmp_path, "source env.sh\n" + LAUNCH))
    assert "env.sh was not read" in launch.notes[0]


@pytest.mark.parametrize(
    "test",
    ["^(a+)+$", "^(a|aa)+$", "^((a)+)+$", "(a*)*b", "a*a*a*a*a*a*a*b", "^(a?){30}a{30}$"],
)
def test_a_costly_regular_expression_is_not_known(test: str, tmp_path: Path) -> None:
    script = f"X={'a' * 60}c\nif [[ $X =~ {test} ]]; then {LAUNCH}; fi"
    with pytest.raises(InputError, match="not known"):
        read_script(written(tmp_path, script))


NUMBERS = (
    "9223372036854775807 + 1", "1 << 64", "1 << 63", "3 ** 99", "-7 / 2", "-7 % 3", "010 + 1",
    "0x1F", "16#ff", "2#101", "~0", "99999999999 * 99999999999", "-1 >> 70", "5 > 3 ? 1 : 2",
)  # fmt: skip


@pytest.mark.parametrize("expression", NUMBERS)
def test_arithmetic_is_that_of_bash(expression: str, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    ran = subprocess.run([bash, "-c", f"echo $(({expression}))"], capture_output=True, timeout=20)
    launch = read_script(written(tmp_path, f"{LAUNCH} --seed $(({expression}))"))
    assert launch.arguments == ("--seed", ran.stdout.decode().strip())


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", "0"])
def test_an_odd_number_of_ranks_is_refused(number: str) -> None:
    with pytest.raises(InputError, match="is not a number"):
        read_command(["torchrun", "--nproc-per-node", number, "train.py"])


def test_many_wrappers_are_passed_over() -> None:
    words = [*["env"] * 5000, "torchrun", "--nproc-per-node", "2", "train.py"]
    assert read_command(words).ranks == 2


def test_forged_marks_of_unknown_values_are_taken_out(tmp_path: Path) -> None:
    launch = read_script(written(tmp_path, LAUNCH + "--name " + "\ue000" * 100_000))
    assert launch.arguments == ("--name", "?" * 100_000)


def test_an_ordinary_script_takes_a_small_part_of_the_budget(tmp_path: Path) -> None:
    script = "N=0\nwhile (( N < 900 )); do N=$((N + 1)); done\n" + LAUNCH + "--seed $N"
    assert read_script(written(tmp_path, script)).arguments == ("--seed", "900")
    assert MOST_STEPS > 10 * 900 and MOST_CHARACTERS > 100 * 900
