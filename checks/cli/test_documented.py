"""Each command that a page shows is one that the program takes, and nothing is left to fill in."""

from __future__ import annotations

import itertools
import re
import shlex
import typing
from typing import Any
from unittest import mock

import pytest
import typer

from checks.cli.fuzz import leaves
from checks.documented import PAGES, ROOT, documented
from checks.running import run_here
from ringproof.cli import main as command
from ringproof.cli import options
from ringproof.cli.plan_memory import OPTION
from ringproof.launch.flags import Flags
from ringproof.launch.reading import Launch, read_launch
from ringproof.rehearsal.fit.vary import combinations, with_settings

PLACEHOLDER = re.compile(r"<[\w-]+>|\.\.\.$|path/to|\b(?:PATH|DIR|NAME|SHA|SPEC|FILE|COMMIT)\b")
"""What a reader would have to replace before the command does anything."""


class Taken(Exception):
    """The command would run now."""


def refusal(words: list[str]) -> str:
    """What the program says against the words of a command, which is not run; empty if nothing."""
    known = dict(leaves(typer.main.get_command(command.app)))
    name = max((one for one in known if tuple(words[: len(one)]) == one), key=len, default=())
    if not name:
        return f"{words[:2]} is not a command"
    found, built = known[name], options._built

    def stop(*arguments: Any) -> typing.NoReturn:
        built(*arguments)
        raise Taken

    taken: Any = found.callback if is_built(found.callback) else stop_at_once
    with mock.patch.object(options, "_built", stop), mock.patch.object(found, "callback", taken):
        try:
            found.main(words[len(name) :], standalone_mode=False)
        except Taken:
            return ""
        except Exception as error:  # of click, which is not imported by this name, or an InputError
            missing = " does not exist; name a" in str(error)  # the reader's own files
            return "" if missing else f"{type(error).__name__}: {error}"
    return "it ended before it began"


def is_built(callback: Any) -> bool:
    """Whether it makes a dataclass first, which refuses options that contradict each other."""
    while callback is not None and callback.__code__.co_filename != options.__file__:
        callback = getattr(callback, "__wrapped__", None)
    return callback is not None


def stop_at_once(**_: Any) -> typing.NoReturn:
    raise Taken


def shown() -> list[tuple[str, list[str]]]:
    """Pages and words of all their commands of ringproof."""
    found = []
    for page in PAGES:
        for line in documented(page):
            words = shlex.split(line.partition(" > ")[0])
            if "ringproof" in words:
                found.append((page, words[words.index("ringproof") + 1 :]))
    return found


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.slow
def test_every_documented_command_is_taken() -> None:
    commands = shown()
    assert len(commands) > 90 and len({page for page, _ in commands}) > 20
    wrong = [
        f"{page}: {shlex.join(words)}: {said}"
        for page, words in commands
        if (said := refusal(words))
    ]
    assert wrong == []


def launches(page: str) -> list[Launch]:
    """What the commands of ``fit`` on a page measure, each choice for itself."""
    found = []
    for words in (words for at, words in shown() if at == page and words[0] == "fit"):
        given = {name: [] for name in ("--set", "--vary")}
        for name, value in itertools.pairwise(words):
            given.get(name, []).append(value)
        sets = dict(one.split("=", 1) for one in given["--set"])
        launch = read_launch(ROOT / "examples" / words[1], sets)
        found += [with_settings(launch, one) for one in combinations(given["--vary"])]
    return found


def domain(launch: Launch) -> tuple[int, int]:
    """DP x CP ranks and CP, after what upstream checks of them."""
    flags = Flags(launch.arguments)
    cp = int(flags.one("--context-parallel-size") or 1)
    assert launch.ranks % cp == 0, "ranks are not a multiple of CP"
    assert int(flags.one("--global-batch-size") or 1) % (launch.ranks // cp) == 0
    assert cp == 1 or flags.has("--bf16"), "no attention of Transformer Engine has CP in fp32"
    return launch.ranks, cp


def test_what_the_pages_measure_is_a_launch_that_upstream_takes() -> None:
    degrees = [domain(launch) for launch in launches("docs/fit.md")]
    assert degrees[0] == (2, 2) and {cp for _, cp in degrees[1:]} == {2, 4, 8}
    (plan,) = (words for page, words in shown() if page == "docs/planner.md" and OPTION in words)
    options = dict(itertools.pairwise(plan))
    assert (ROOT / "examples" / options["--lengths"]).is_file()
    assert {domain(one)[0] for one in launches("docs/planner.md")} == {int(options["--ranks"])}
    assert "--tp" not in options and "--pp" not in options


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("doctr train.sh", "is not a command"),
        ("doctor train.sh --lin dev", "--lin"),
        ("parity attention --comm p2p --ranks many", "integer"),
        ("doctor train.sh --line dev --to main", "give only one of"),
        ("logs groups run.log --hpc 2,2", "--hpc"),
    ],
)
def test_a_command_that_is_refused_is_seen(words: str, said: str) -> None:
    assert said in refusal(words.split())


def test_no_documented_command_has_a_gap() -> None:
    lines = [(page, line) for page in PAGES for line in documented(page)]
    assert [(page, line) for page, line in lines if PLACEHOLDER.search(line)] == []
    assert PLACEHOLDER.search("ringproof conform --upstream PATH")
    assert not PLACEHOLDER.search("export CUDA_PATH=1")


WRITTEN = ("--html", "--json", "--log", "--slurm", "--kubernetes", "-o", ">", "tee")
"""What stands before the name of a file that a command writes."""
OTHERS = ("pretrain_gpt.py", "run_recipe.py")
"""Programs of upstream, which a launch names."""


def unknown_files(page: str) -> list[str]:
    """Files that commands of ringproof read, and that are neither a sample nor written."""
    lines = [one.split() for one in documented(page) if "ringproof " in one]
    pairs = [pair for words in lines for pair in itertools.pairwise(words)]
    known = {*OTHERS, *(word for before, word in pairs if before in WRITTEN)}
    named = re.compile(r"[^=]*\.(?:jsonl?|log|py|sh|txt|ya?ml|md)")
    read = [word for _, word in pairs if named.fullmatch(word) and word not in known]
    return [word for word in read if not any((ROOT / "examples").glob(word))]


def test_every_file_that_a_page_reads_is_a_sample() -> None:
    pages = [page for page in PAGES if not page.startswith("skills/")]
    assert {page: files for page in pages if (files := unknown_files(page))} == {
        "docs/commands.md": ["references/pitfalls.md"],  # of a skill, which the command shows
    }


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("diagnose", ("logs", "diagnose", *(f"logs/rank-{rank}.log" for rank in range(8)))),
        ("fences", ("fences", "doc.md", "--upstream", "pkg=dir:code/pkg")),
        ("logs", ("logs", "parity", "single.jsonl", "parallel.jsonl", "--tol", "1e-9")),
    ],
)
def test_the_output_of_a_page_is_that_of_the_samples(page: str, words: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    said = [line.rstrip() for line in run_here(ROOT / "examples", words).stdout.splitlines()]
    while said[-1] == "":
        said.pop()
    blocks = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert said in [block.splitlines() for block in blocks]
