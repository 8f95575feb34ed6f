"""``ringproof doctor --checks``: which launches upstream's program is run on, and its answer."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.doctor.test_corpus import CORPUS, LATER, beyond
from checks.doctor.upstream_lines import COMMITS, cards, stack_at, upstream_at
from ringproof.cli.main import app
from ringproof.doctor import checked
from ringproof.doctor.examine import examine
from ringproof.doctor.lines import upstream_of
from ringproof.doctor.reading import of_launch, read_settings
from ringproof.doctor.repair import repaired
from ringproof.doctor.rule import Effect
from ringproof.errors import InputError
from ringproof.launch.reading import Launch
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.stack.products import BRIDGE, Product

LAUNCH = Launch("/somewhere/pretrain_gpt.py", ("--num-layers", "2"), {}, 1, 8, "train.sh:3")


def to_check(launch=LAUNCH):
    return checked.launch_to_check(examine(of_launch(launch), stack_at("main")))


def test_upstreams_own_program_takes_the_place_of_the_one_that_is_named():
    assert to_check().script == "pretrain_gpt.py"
    assert to_check().ranks == 8


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (replace(LAUNCH, script="train.py"), "not one of upstream's programs"),
        (replace(LAUNCH, script="/tmp/pretrain_gpt.py.py"), "not one of upstream's programs"),
        (
            replace(LAUNCH, arguments=("--num-layers", "2", "--use-checkpoint-args")),
            "from a checkpoint",
        ),
    ],
)
def test_nothing_else_is_run(launch, said):
    with pytest.raises(InputError, match=said):
        to_check(launch)


def test_only_a_launch_is_run():
    settings = read_settings(["model.context_parallel_size=2"], {})
    with pytest.raises(InputError, match=r"--checks: .*is not a launch"):
        checked.launch_to_check(examine(settings, stack_at("main")))


@pytest.mark.parametrize(
    ("failure", "accepted", "said"),
    [
        (Failure("raised", 0, "ValueError: no", "megatron/a.py:3"), False, "refused: ValueError"),
        (Failure("raised", 0, "StandInMissing: x", "", "torch.x"), None, "implements torch.x"),
        (Failure("raised", 0, "ImportError: FLA is not installed"), None, "cannot tell: Import"),
        (Failure("import", -1, "SyntaxError: x"), None, "cannot tell: Syntax"),
    ],
)
def test_the_answer_is_upstreams(monkeypatch, failure, accepted, said):
    fitting = pytest.importorskip("ringproof.rehearsal.fit.fitting", reason="needs torch")

    def refuse(*_):
        raise fitting.Refused(failure)

    monkeypatch.setattr(fitting, "fit", refuse)
    answer = checked.ask(
        LAUNCH, "here", None, cache=Path(), folder=Path(), offline=True, progress=print
    )
    assert answer.accepted is accepted
    assert said in "".join(checked.lines(answer, examine(of_launch(LAUNCH), stack_at("main"))))
    assert checked.data(answer)["accepted"] is accepted


def test_what_nobody_asked_for_has_a_limit(monkeypatch):
    fitting = pytest.importorskip("ringproof.rehearsal.fit.fitting", reason="needs torch")
    limits = []

    def refuse(request, _):
        limits.append(request.limit)
        raise fitting.Refused(Failure("timeout", 0, "not finished after 10 s"))

    monkeypatch.setattr(fitting, "fit", refuse)
    given = {"cache": Path(), "folder": Path(), "offline": True, "progress": print}
    answer = checked.ask(LAUNCH, "here", None, **given, limit=10.0)
    assert (answer.accepted, limits) == (None, [10.0])
    examined = examine(of_launch(LAUNCH), stack_at("main"))
    assert "were not run: they take longer than 10 s" in "".join(checked.lines(answer, examined))
    other = checked.ask(LAUNCH, "here", None, **given)
    assert "cannot tell" in "".join(checked.lines(other, examined))


ANSWERS = {
    None: "nothing found; upstream's own checks did not run",
    checked.Checked("x", None, why_not="torch"): "nothing found; upstream's own checks did not run",
    checked.Checked("x", None, symbol="a.b"): "nothing found; upstream's own program cannot tell",
    checked.Checked("x", False, "no"): "nothing found; upstream's own program refuses it",
    checked.Checked("x", True, why_not="15 s"): "checks accept it, and no step was run",
    checked.Checked("x", True, title="its checks"): "checks accept it, and no step was run",
    checked.Checked("x", True): "verdict: nothing found",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_first_line_says_what_upstream_did(monkeypatch, answer):
    commands = import_module("ringproof.cli.doctor")
    monkeypatch.setattr(commands, "_asked", lambda *_: answer)
    monkeypatch.setattr(commands, "load_cards", lambda _: cards())
    words = ("--", "torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", "--num-layers", "2")
    result = CliRunner().invoke(app, ["doctor", "--line", "main", *words])
    assert result.output.splitlines()[0].endswith(ANSWERS[answer]), result.output


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--upstream", "pip:megatron-core==0.0.1"], True),
        (["--upstream", "pip:megatron-core==0.0.1", "--quick"], False),
        (["--line", "main"], True),
        (["--line", "main", "--quick"], False),
    ],
)
def test_upstream_is_asked_where_it_is_named(monkeypatch, words, asked):
    commands = import_module("ringproof.cli.doctor")
    calls = []

    def checked_with(examination, options, limit=None):
        calls.append(limit)
        raise InputError("--upstream", "is not here; fetch it")

    monkeypatch.setattr(commands, "_checked", checked_with)
    monkeypatch.setattr(commands.DoctorCommand, "products", lambda _: ())
    stack = stack_at("main")
    monkeypatch.setattr(commands, "load_cards", lambda _: cards())
    options = commands.DoctorCommand(words=("x",), **options_of(words))
    answer = commands._asked(examine(of_launch(LAUNCH), stack), options)
    assert calls == ([checked.QUICK_SECONDS] if asked else [])
    assert (answer is not None and "is not here" in answer.why_not) is asked
    bridge = read_settings(["model.context_parallel_size=2"], {})
    answer = commands._asked(examine(bridge, stack), options)
    assert (answer is not None and bool(answer.why_not)) is asked


RECIPE = "torchrun run_recipe.py --recipe x model.context_parallel_size=2 train.train_iters=9"


@pytest.mark.parametrize(
    ("line", "there", "asked"),
    [
        ("r0.18", False, ("pip:megatron-bridge==0.5.1", "pip:megatron-core==0.18.2")),
        ("", True, ("pip:megatron-bridge==0.6.2", "pip:megatron-core==0.19.2")),
        ("", False, None),
        ("dev", True, None),
    ],
)
def test_a_line_names_a_release_of_bridge(monkeypatch, line, there, asked):
    commands = import_module("ringproof.cli.doctor")
    calls = []

    def ask(_, bridge, megatron, *__, **given):
        calls.append((bridge, megatron))
        return checked.Checked("x", False, "refused")

    monkeypatch.setattr(commands, "_cached", lambda *_: there)
    monkeypatch.setattr(commands, "require_packages", lambda *_: None)
    monkeypatch.setattr(commands, "load_cards", lambda _: cards())
    monkeypatch.setattr(commands, "find_products", nothing_installed)
    monkeypatch.setattr(commands.validated, "ask", ask)
    options = commands.DoctorCommand(words=("x",), line=line)
    examined = examine(read_settings(RECIPE.split(), {}), stack_at(line or "r0.19"))
    answer = commands._asked(examined, options)
    assert calls == ([asked] if asked else [])
    assert bool(answer.why_not) is (asked is None)
    if line == "dev":
        with pytest.raises(InputError, match="no release of Megatron-Bridge"):
            commands._checked(examined, options)


@pytest.mark.parametrize("there", [True, False])
def test_the_newest_release_is_asked_where_the_cache_has_it(monkeypatch, there):
    commands = import_module("ringproof.cli.doctor")
    opened, calls = [], []

    def open_tree(spec, **given):
        opened.append((spec, given["offline"]))
        if not there:
            raise InputError("--upstream", "is not in the cache")

    def checked_with(examination, options, limit=None):
        calls.append((examination.stack.name, limit))
        return checked.Checked("x", True)

    monkeypatch.setattr(commands, "open_tree", open_tree)
    monkeypatch.setattr(commands, "require_packages", lambda *_: None)
    monkeypatch.setattr(commands, "_checked", checked_with)
    monkeypatch.setattr(commands, "load_cards", lambda _: cards())
    options = commands.DoctorCommand(words=("x",))
    stacks = {name: stack_at(name) for name in ("main", "r0.19", "dev")}
    newest = options.newest_of(stacks)
    answer = commands._asked(examine(of_launch(LAUNCH), stacks[newest]), options)
    assert opened == [(upstream_of("r0.19", cards()), True)], "nothing is downloaded"
    assert calls == ([("r0.19", checked.QUICK_SECONDS)] if there else [])
    assert answer.accepted is (True if there else None)
    assert bool(answer.why_not) is not there
    quick = commands.DoctorCommand(words=("x",), quick=True)
    assert commands._asked(examine(of_launch(LAUNCH), stacks[newest]), quick) is None


def test_without_a_line_checks_ask_the_newest_release_and_mark_its_row(monkeypatch, tmp_path):
    commands = import_module("ringproof.cli.doctor")
    script = tmp_path / "train.sh"
    script.write_text("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2\n")
    monkeypatch.setattr(commands, "find_products", nothing_installed)
    monkeypatch.setattr(
        commands, "_checked", lambda *_: checked.Checked("x", False, "a reason", "arguments.py:9")
    )
    done = CliRunner().invoke(app, ["doctor", str(script), "--checks"])
    assert "a reason" in done.output, done.output
    marked = [row for row in done.output.splitlines() if "own program refuses it" in row]
    assert len(marked) == 1 and marked[0].split()[0] == "r0.19"


def nothing_installed(*_, **__):
    raise InputError("--upstream", "nothing is installed here")


def options_of(words):
    names = {"--upstream": "upstream", "--line": "line", "--quick": "quick"}
    given = {names[word]: True for word in words if word == "--quick"}
    name = names[words[0]]
    return {**given, name: (words[1],) if name == "upstream" else words[1]}


def test_the_code_of_a_line_is_a_release_or_a_commit():
    known = cards()
    assert upstream_of("r0.18", known) == "pip:megatron-core==0.18.2"
    for name in ("dev", "main", "pr5618", "pr6479", "release"):
        assert upstream_of(name, known) == f"fetched:NVIDIA/Megatron-LM@{COMMITS[name]}"
    assert upstream_of("megatron-core", known) == upstream_of(
        "release", known
    )  # its wheel has none
    with pytest.raises(InputError, match="no code of 'dynamic-v2' is known"):
        upstream_of("dynamic-v2", known)


@pytest.mark.parametrize("offline", [True, False])
def test_what_the_cache_lacks_is_fetched_unless_that_is_forbidden(offline):
    commands = import_module("ringproof.cli.doctor")
    asked, folders = [], []

    def ask(cached, folder, _):
        asked.append(cached)
        folders.append(folder)
        assert folder.is_dir()
        if cached:
            raise InputError("--upstream", "x is not in the cache, and this is offline")
        return checked.Checked("x", True)

    options = commands.DoctorCommand(words=("x",), line="main", offline=offline)
    if offline:
        with pytest.raises(InputError, match="not in the cache"):
            commands._from_cache(options, ask)
    else:
        assert commands._from_cache(options, ask).accepted
    assert asked == ([True] if offline else [True, False])
    assert not any(folder.exists() for folder in folders)  # its logs, too, are removed


@pytest.mark.parametrize(
    "words", [["--line", "main"], ["--upstream", "pip:megatron-bridge==0.5.1"]]
)
def test_two_launches_at_once_share_no_folder(monkeypatch, tmp_path, words):
    commands = import_module("ringproof.cli.doctor")
    folders = []

    def ask(*_, folder, **__):
        folders.append(folder)
        return checked.Checked("x", True)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checked, "ask", ask)
    monkeypatch.setattr(commands.validated, "ask", ask)
    monkeypatch.setattr(commands, "require_packages", lambda *_: None)
    monkeypatch.setattr(commands, "load_cards", lambda _: cards())
    bridge = Product(BRIDGE, tmp_path, "0.5.1")
    monkeypatch.setattr(commands.DoctorCommand, "products", lambda _: ((words[1], bridge),))
    options = commands.DoctorCommand(words=("x",), **options_of(words))
    settings = of_launch(LAUNCH)
    if options.upstream:
        recipe = "torchrun run_recipe.py --recipe x model.a=2 train.train_iters=9"
        settings = read_settings(recipe.split(), {})
    examined = examine(settings, stack_at("main"))
    commands._asked(examined, options)
    commands._asked(examined, options)
    assert len(set(folders)) == 2
    assert not list(tmp_path.iterdir())


def test_a_script_of_the_current_folder_is_not_run(monkeypatch, tmp_path):
    fitting = pytest.importorskip("ringproof.rehearsal.fit.fitting", reason="needs torch")
    monkeypatch.chdir(tmp_path)
    Path("pretrain_gpt.py").write_text("raise SystemExit('run')")
    without = Upstream(tmp_path / "wheel", "pip:megatron-core==0.16.1", tmp_path, "2", None)
    monkeypatch.setattr(fitting, "open_upstream", lambda *_, **__: without)
    given = {"cache": Path(), "folder": tmp_path / "logs", "offline": True, "progress": print}
    with pytest.raises(InputError, match=r"0\.16\.1 does not have the program 'pretrain_gpt\.py'"):
        checked.ask(replace(LAUNCH, script="pretrain_gpt.py"), "here", None, **given)


WORLD = replace(LAUNCH, arguments=(*LAUNCH.arguments, "--context-parallel-size", "3"))


@pytest.mark.parametrize(("accepted", "kept"), [(True, False), (False, True), (None, True)])
def test_upstreams_own_checks_speak_in_the_place_of_rules(accepted, kept):
    examined = examine(of_launch(WORLD), stack_at("main"))
    refused = [one for one in examined.findings if one.effect is Effect.REFUSED]
    assert "launch/world-size" in {one.rule.statement for one in refused}
    left = checked.settled(examined, checked.Checked("x", accepted)).findings
    assert ("launch/world-size" in {one.rule.statement for one in left}) is kept


def test_no_change_is_proposed_for_what_upstream_accepts():
    words = "--context-parallel-size 8 --cp-comm-type a2a+p2p --num-attention-heads 8 --sft"
    examined = examine(of_launch(replace(LAUNCH, arguments=tuple(words.split()))), stack_at("dev"))
    settled = checked.settled(examined, checked.Checked("x", True))
    after = repaired(settled)
    assert "hierarchical_context_parallel_sizes" in repaired(examined).settings.values
    assert "hierarchical_context_parallel_sizes" not in after.settings.values
    assert "sequence_packing_scheduler" in after.settings.values
    assert "max_seqlen_per_dp_cp_rank" not in after.settings.values, "no length is known"
    assert all(one.effect is not Effect.REFUSED for one in (*settled.findings, *after.findings))


def test_checks_that_accepted_a_launch_count_where_the_model_takes_too_long(monkeypatch):
    fitting = pytest.importorskip("ringproof.rehearsal.fit.fitting", reason="needs torch")

    def end(request, progress):
        assert request.checks
        progress(fitting.CHECKED, "")
        raise fitting.Refused(Failure("timeout", 0, "not finished after 10 s"))

    monkeypatch.setattr(fitting, "fit", end)
    given = {"cache": Path(), "folder": Path(), "offline": True, "progress": lambda *_: None}
    answer = checked.ask(LAUNCH, "here", None, **given, limit=10.0)
    assert answer.accepted
    told = "".join(checked.lines(answer, examine(of_launch(LAUNCH), stack_at("main"))))
    assert "its checks accept this; no step was run: they take longer than 10 s" in told


@pytest.mark.slow
def test_what_no_rule_says_is_refused_by_upstreams_own_checks(stage, tmp_path):
    """Layers that stages do not divide, checkpoints of another format, types of two layers."""
    upstream_at(stage, "r0.19")
    plain = "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 256 "
    plain += "--max-position-embeddings 256 --micro-batch-size 1 --eval-interval 2 --lr 1 "
    plain += "--train-iters 2 --global-batch-size 8 --pipeline-model-parallel-size 2 "
    said = {
        "--num-layers 5": "Number of layers should be divisible",
        "--ckpt-format fsdp_dtensor": "fsdp_dtensor",
        "--context-parallel-size 2 --cp-comm-type p2p a2a": "Length of cp_comm_type",
    }
    known = cards()
    for index, (word, message) in enumerate(said.items()):
        launch = Launch("pretrain_gpt.py", (*plain.split(), *word.split()), {}, 1, 4, "train.sh")
        found = examine(of_launch(launch), stack_at("r0.19"))
        assert not found.counts[Effect.REFUSED]
        answer = checked.ask(
            launch, upstream_of("r0.19", known), None, cache=stage.cache, offline=True,
            folder=tmp_path / str(index), progress=lambda *_: None,
        )  # fmt: skip
        assert answer.accepted is False, answer
        assert message in answer.message
        assert answer.place.startswith("megatron/")


LATE = [(one, line) for one in CORPUS for line, verdict in list(one.verdict.items())[:1]
        if beyond(verdict, LATER)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("one", "line"), LATE, ids=lambda given: getattr(given, "id", given))
def test_what_ends_after_the_checks_is_said_by_upstreams_own_program(one, line, stage, tmp_path):
    upstream_at(stage, line)
    examined = examine(one.settings(tmp_path, one.unknown.get(line, ())), stack_at(line))
    answer = checked.ask(
        checked.launch_to_check(examined), upstream_of(line, cards()), None, cache=stage.cache,
        offline=True, folder=tmp_path / "logs", progress=lambda *_: None,
    )  # fmt: skip
    assert answer.accepted is False, answer
    assert beyond(one.verdict[line], LATER) in answer.message


def test_a_message_that_a_finding_names_is_not_repeated():
    examined = examine(of_launch(WORLD), stack_at("main"))
    rule = next(one.rule for one in examined.findings if one.rule.name == "world-size")
    answer = checked.Checked("x", False, f"AssertionError: {rule.message} and more", "a.py:3")
    told = "".join(checked.lines(answer, examined))
    assert "refused, as launch/world-size says (at a.py:3)" in told
    assert "and more" not in told
