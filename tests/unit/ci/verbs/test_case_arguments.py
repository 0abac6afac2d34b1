"""How many cases run at a time, and where the run writes: seen before anything is provisioned."""

from __future__ import annotations

import argparse
import io
import os
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.baselines import name_figures
from ci.cases.policy import LANES, read_emulator_policy
from ci.cases.session import Phases
from ci.cases.spec import EXECUTORCH, ONNX
from ci.models.schemes import Scheme
from ci.models.source_lines import name_argument
from ci.models.suite import SUITE
from ci.report.evidence import BASELINES, POLICY
from ci.report.schema import Case, Status, Tool
from ci.report.write import read_report, report_data, write_report
from ci.verbs.lanes import steps
from ci.verbs.lanes.steps import (
    add_case_arguments,
    check_arguments,
    keep_evidence,
    publish,
    repeat_command,
    take_steps,
)
from ci.verbs.user_policy import OURS
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, StoreError, UnfitError, UsageError
from provisioning.files import hash_file
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import read_socs
from tests.stand_ins.reports import make_report


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)


CASE = Case(model="mlp", scheme="fp16", soc="SM8650", status=Status.PASSED, sqnr_db=70.0)
TOOLS = (Tool(name="executorch", version="9.2"), Tool(name="qnn-runtime", version="9.1"))
CORES = str(len(os.sched_getaffinity(0)))


def read_jobs(*words: str) -> int:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_case_arguments(parser, "a model", "a_session")
    args = parser.parse_args(words)
    check_arguments(args, "a_session")
    jobs: int = args.jobs
    return jobs


@pytest.mark.parametrize(
    ("variable", "words", "jobs"),
    [
        ("", (), CORES),
        ("37", (), "37"),
        ("37", ("--jobs", "2"), "2"),
        ("x", ("--jobs", "2"), "2"),
    ],
)
def test_who_says_it_last_is_heard(
    variable: str, words: tuple[str, ...], jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_JOBS", variable)
    assert read_jobs(*words) == int(jobs)


def test_without_the_variable_it_is_one_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_CI_JOBS", raising=False)
    assert read_jobs() == int(CORES)


@pytest.mark.parametrize("verb", ["test-emulator", "test-onnx"])
@pytest.mark.parametrize("option", ["--reports", "--keep-artifacts"])
def test_a_directory_that_cannot_be_written_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, option: str
) -> None:
    (tmp_path / "a-file").touch()
    code = main([verb, "--model", "mlp", "--offline", option, "a-file"])
    told = capsys.readouterr().err
    assert code == ExitCode.DOWNLOAD
    assert "a-file" in told
    assert "cannot be written" in told
    assert "1/4" not in told


@pytest.mark.parametrize("lacks", [None, SimpleNamespace(what="libQnnLpai.so is missing")])
def test_libraries_are_hashed_and_the_environment_checked_before_a_run(
    monkeypatch: pytest.MonkeyPatch, lacks: Any
) -> None:
    done: list[Any] = []
    found = Environment("emulator", (), {})
    findings = [SimpleNamespace(id=f"QNN{number}", what=f"no. {number}") for number in (2, 1, 4, 3)]
    verdict = SimpleNamespace(
        lacks=lacks, findings=findings, require=lambda: done.append("required")
    )
    said = io.StringIO()

    def provision(*given: Any, **more: Any) -> Environment:
        done.append((given[0], more))
        return found

    def act(name: str) -> Callable[..., Any]:
        return lambda *given: done.append((name, *given)) or make_report([])

    scratch = SimpleNamespace(guess=act("guess"))
    monkeypatch.setattr(steps, "provision_profile", provision)
    monkeypatch.setattr(steps, "settle_adaptor", lambda *_, **__: (found, verdict))
    monkeypatch.setattr(steps, "open_scratch_pool", lambda _: nullcontext(scratch))
    more: dict[str, Any] = {"offline": True, "imports": (), "tolerated": {"QNN1", "QNN2"}}
    phases = Phases(Progress(said))
    report = take_steps("emulator", "work", act("run"), phases, refuse=act("refuse"), **more)
    hashed = [("guess", "emulator"), ("emulator", {"verify": True, "offline": True})]
    ran = [("refuse", found, lacks)] if lacks else ["required", ("run", found, scratch)]
    assert done == hashed + ran
    assert report.unsupported == "no. 2; no. 1"
    done.clear()
    take_steps("emulator", "work", act("run"), Phases(Progress()), **more)
    assert done == [*hashed, "required", ("run", found, scratch)]  # nothing stands in for a run
    assert [line.strip() for line in said.getvalue().splitlines()] == [
        "1/4 provision profile emulator",
        "2/4 check the environment",
        f"3/4 nothing is lowered: {lacks.what}" if lacks else "3/4 work",
        "4/4 report",
    ]


def test_limits_without_effect_are_each_told(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SimpleNamespace(dropped=("a.b", "c.d"), models={})
    monkeypatch.setattr(steps, "read_emulator_policy", lambda *given: given and policy)
    said = io.StringIO()
    assert steps.read_limits(argparse.Namespace(policy=OURS), "onnx", Progress(said)) is policy
    assert [line.split()[1] for line in said.getvalue().splitlines()] == ["a.b", "c.d"]


@pytest.mark.parametrize(
    ("present", "start", "found"),
    [
        (["qnn.toml", ".git/"], "", "qnn.toml"),
        (["qnn.toml", ".git/", "a/b/"], "a/b", "qnn.toml"),
        (["qnn.toml", "a/qnn.toml", "a/b/"], "a/b", "a/qnn.toml"),
        (["qnn.toml", "a/.git/", "a/b/"], "a/b", None),
        (["qnn.toml", "a/.git", "a/b/"], "a/b", None),  # a file: a submodule or a work tree
        (["qnn.toml/", "a/"], "a", UsageError),
        (["a ü/qnn.toml", "a ü/b/"], "link", "a ü/qnn.toml"),
    ],
)
def test_a_policy_is_found_upwards_in_its_repository(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    present: list[str],
    start: str,
    found: str | type[UsageError] | None,
) -> None:
    for name in present:
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text('extends = "default"')
    (tmp_path / "link").symlink_to("a ü/b")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path / start))
    args, said = argparse.Namespace(policy=None, model=[]), io.StringIO()
    if found is UsageError:
        with pytest.raises(UsageError, match="is not a file"):
            steps.read_limits(args, "emulator", Progress(said))
        return
    steps.read_limits(args, "emulator", Progress(said))
    assert args.policy == (tmp_path / str(found) if found else None)
    assert said.getvalue().splitlines()[0].endswith(str(found or "own suite is tested"))


def test_every_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.importlib.util, "find_spec", lambda name: name == "b")
    with pytest.raises(UnfitError) as caught:
        steps.require_packages(("a", "b", "c"), "extra")
    assert caught.value.what == "this Python has no a and no c"
    assert "[extra]" in caught.value.fix
    steps.require_packages(("b",), "extra")


def test_only_data_of_the_models_that_run_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.toml"
    rows = [f'[models.{name}]\npath = "{name}.py:make"\n' for name in ("one", "two", "three")]
    path.write_text('extends = "default"\n' + "".join(rows))
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.py").write_text("def make(): ...\n")
    policy = read_emulator_policy(path)
    checked: list[Any] = []
    monkeypatch.setattr(steps, "check_data", lambda *given: checked.append(given))
    parser = argparse.ArgumentParser()
    add_case_arguments(parser, "a model", "a_session")
    args = parser.parse_args(
        ["--model", "t[wh]*", "--model", "mlp", "--scheme", "fp16", "--record"]
    )
    specs = steps.select_asked(args, policy, EXECUTORCH, "SM8450")
    assert {(one.model, one.scheme, one.soc) for one in specs} == {
        (name, Scheme.FP16, "SM8450") for name in ("mlp", "two", "three")
    }
    assert checked == [(name, policy.models[name]) for name in ("two", "three")]
    several = ["--model", "mlp", "--model", "lstm", "--scheme", "fp16", "--scheme", "8a8w"]
    several += ["--soc", "SM8750", "--soc", "SM8650"]
    specs = steps.select_asked(parser.parse_args(several), policy, EXECUTORCH)
    assert {(one.model, one.scheme.value, one.soc) for one in specs} == {
        (model, scheme, soc)
        for model in ("mlp", "lstm")
        for scheme in ("fp16", "8a8w")
        for soc in ("SM8650", "SM8750")
    }
    (tmp_path / "net.py").write_text("def make(): ...\n")
    unnamed = ["--model", "net.py:make", "--scheme", "fp16"]
    (spec,) = steps.select_asked(parser.parse_args(unnamed), policy, EXECUTORCH)
    assert spec.model.endswith("net.py:make")
    for more in ([], ["--model", "mlp", "--model", "one"]):
        words = [*unnamed, *more, "--record"]
        with pytest.raises(UsageError, match=r"--record cannot be used with .*net\.py:make"):
            steps.select_asked(parser.parse_args(words), policy, EXECUTORCH)
    args = parser.parse_args(["--model", "mlp", "--scheme", Scheme.U8.value])
    assert [one.scheme for one in steps.select_asked(args, policy, ONNX)] == [Scheme.U8]
    with pytest.raises(UsageError, match="u8"):
        steps.select_asked(args, policy, EXECUTORCH)


def test_a_command_to_repeat_is_one_that_a_shell_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = argparse.Namespace(
        program="./nox -s test_emulator --",
        policy=tmp_path / "a b.toml",
        ours=False,
        plain=True,
        no_cache=False,
    )
    told = repeat_command(args, "plain", "no-cache", runner="sh 'x'", soc="")
    words = ["./nox", "-s", "test_emulator", "--", "--policy", "a b.toml", "--plain"]
    assert shlex.split(told) == [*words, "--runner", "sh 'x'"]
    args.policy, args.plain = None, False
    assert repeat_command(args, "plain", soc=["a", "b"]) == f"{args.program} --soc a --soc b"
    for name in (".git", "below"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("QNN_CI_CALLER_DIR", raising=False)
    args.policy = Path("qnn.toml")  # the command is for the root of the repository
    assert repeat_command(args) == f"{args.program} --policy below/qnn.toml"
    args.policy, args.ours = None, True
    assert repeat_command(args) == f"{args.program} --policy default"


def test_a_file_of_no_repository_is_repeated_by_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    inside, outside = tmp_path / "repository" / "own" / "a.txt", Path("/elsewhere/a.txt")
    assert [name_argument(path) for path in (inside, outside)] == ["own/a.txt", str(outside)]
    worktree = tmp_path / "worktree"
    worktree.mkdir()
    (worktree / ".git").write_text("gitdir: ../repository/.git/worktrees/worktree\n")
    assert name_argument(worktree / "own" / "a.txt") == "own/a.txt"


@pytest.mark.parametrize("installed", [True, False])
def test_evidence_is_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(
        steps.importlib.util, "find_spec", lambda _: object() if installed else None
    )
    old = tmp_path / "evidence" / "old.intoto.json"
    old.parent.mkdir()
    old.touch()
    keep_evidence(make_report([]), old.parent, None, Progress())
    assert not old.exists()


def test_without_the_package_that_writes_evidence_a_note_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        steps.importlib.util, "find_spec", lambda name: name != "in_toto_attestation"
    )
    monkeypatch.setattr(steps.evidence, "write_evidence", None)
    said = io.StringIO()
    keep_evidence(make_report([]), tmp_path / "evidence", None, Progress(said))
    assert "no in-toto-attestation" in said.getvalue()


def test_a_sarif_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_case_arguments(parser, "a model", "a_session")
    usual = ["--reports", str(tmp_path / "reports"), "--sarif"]
    (tmp_path / "file").touch()
    for name in ("new/a.sarif", "file"):
        check_arguments(parser.parse_args([*usual, str(tmp_path / name)]), "a_session")
        assert not (tmp_path / "new" / "a.sarif").exists()
    for name in ("", "file/a.sarif"):
        with pytest.raises(StoreError, match="cannot be written") as caught:
            check_arguments(parser.parse_args([*usual, str(tmp_path / name)]), "a_session")
        assert caught.value.why
        assert caught.value.fix


def args_of(**more: Any) -> argparse.Namespace:
    """What a call without options gives what publishes its report."""
    usual = {
        "base": None,
        "policy": None,
        "keep_artifacts": None,
        "record": False,
        "sarif": None,
        "own": (),
    }
    return argparse.Namespace(**{**usual, **more})


@pytest.mark.parametrize(
    ("ends", "record", "recorded"),
    [
        ([Status.PASSED], True, 1),
        ([Status.PASSED], False, 0),
        ([Status.FAILED], True, 0),
        ([Status.FAILED, Status.PASSED], True, 1),
    ],
)
def test_figures_of_a_run_that_passed_are_recorded_when_that_is_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: list[Status],
    record: bool,
    recorded: int,
) -> None:
    found: list[Any] = []
    paths = [tmp_path / "a.toml", tmp_path / "b.toml"]
    monkeypatch.setattr(steps, "record_baselines", lambda *given: found.append(given) or paths)
    report = make_report([replace(CASE, status=one) for one in ends])
    args = args_of(record=record, policy=write_policy(tmp_path))
    said = io.StringIO()
    outcome = publish(report, tmp_path / "reports", args, Progress(said))
    told = [line.strip() for line in said.getvalue().splitlines() if "recorded" in line]
    assert told == ["recorded: a.toml", "recorded: b.toml"] * recorded
    assert outcome.exit_code == report.exit_code
    assert found == [(report, tmp_path / "own-baselines", ())] * recorded


def test_a_report_is_written_where_reports_and_kept_files_are(tmp_path: Path) -> None:
    """With what differs from a base; what an earlier run wrote there is replaced."""
    report = make_report([CASE])
    write_report(make_report([replace(CASE, sqnr_db=60.0)]), tmp_path / "base")
    kept = tmp_path / "kept"
    args = args_of(keep_artifacts=kept, base=tmp_path / "base", sarif=tmp_path / "a.json")
    outcome = publish(report, tmp_path / "base", args, Progress())
    written = read_report(tmp_path / "base")
    assert written == read_report(kept)
    assert written.comparison
    assert outcome.data == report_data(written)
    assert (tmp_path / "a.json").is_file()


def write_policy(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text('extends = "default"\n')
    return path


@pytest.mark.parametrize("session", ["test_emulator", "test_onnx"])
def test_evidence_names_the_policy_and_the_figures_that_a_run_was_judged_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    found: list[Any] = []
    monkeypatch.setattr(steps.evidence, "write_evidence", lambda *given: found.append(given))
    monkeypatch.setattr(steps.importlib.util, "find_spec", lambda _: True)
    suite, policy = tmp_path / "suite", write_policy(tmp_path)
    monkeypatch.setattr(steps, "suite_folder", lambda: suite)
    report = replace(make_report([CASE], toolchain=TOOLS), session=session)
    default = manifests_root() / "policies" / f"{LANES[session]}.toml"
    digests: list[Any] = []
    for path, recorded in (
        (None, ()),
        (policy, ()),
        (policy, (tmp_path / "own-baselines",)),
        (policy, (tmp_path / "own-baselines", suite)),
    ):
        for folder in recorded:
            folder.mkdir(exist_ok=True)
            (folder / name_figures(TOOLS)).write_text(folder.name)
        keep_evidence(report, tmp_path / "evidence", path, Progress())
        digests.append(found[-1][-1])
        assert digests[-1][POLICY] == hash_file(path or default)
        assert (BASELINES in digests[-1]) is bool(recorded)
    assert digests[2] != digests[3]
    assert found[-1][:2] == (report, tmp_path / "evidence")
    other = replace(report, backend="lpai")  # figures of another backend are in another file
    keep_evidence(other, tmp_path / "evidence", policy, Progress())
    assert BASELINES not in found[-1][-1]
    (suite / name_figures(TOOLS, "lpai")).write_text("lpai")
    keep_evidence(other, tmp_path / "evidence", policy, Progress())
    assert BASELINES in found[-1][-1]


def test_a_list_writes_nothing(tmp_path: Path) -> None:
    assert main(["test-emulator", "--list"]) == ExitCode.OK
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("verb", "schemes", "shown"),
    [("test-emulator", '["16a8w", "8a8w"]', "16a8w, 8a8w"), ("test-onnx", '["u8"]', "u8")],
)
def test_a_list_has_the_user_s_models_first_then_the_suite_and_every_scheme_and_soc(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    schemes: str,
    shown: str,
) -> None:
    (tmp_path / "net.py").write_text("def make(): ...\n")
    entry = f'[models.own]\npath = "net.py:make"\nschemes = {schemes}\n'
    (tmp_path / "qnn.toml").write_text(f'extends = "default"\n{entry}')
    assert main([verb, "--list", "--policy", "qnn.toml"]) == ExitCode.OK
    models, _, rest = capsys.readouterr().out.partition("\n\nschemes\n")
    lane = {"test-emulator": EXECUTORCH, "test-onnx": ONNX}[verb]
    first, *others = [line.strip() for line in models.splitlines()[1:]]
    assert [one.split()[0] for one in others] == [*SUITE]
    assert (first.split()[0], first.endswith(f"net.py:make ({shown})")) == ("own", True)
    assert all(line.endswith(" ()") for line in others)  # a policy of models runs these alone
    listed, _, socs = rest.partition("\n\nSoCs\n")
    assert listed.split() == [one.value for one in lane.schemes]
    assert socs.split() == sorted(read_socs())
    assert main([verb, "--list", "--policy", "default"]) == ExitCode.OK
    models = capsys.readouterr().out.partition("\n\nschemes\n")[0]
    suite = read_emulator_policy(lane=LANES[verb.replace("-", "_")]).suite
    for line, (name, about) in zip(models.splitlines()[1:], SUITE.items(), strict=True):
        usual = ", ".join(one.value for one in suite[name] if one in lane.schemes)
        assert line.split(maxsplit=1) == [name, f"{about} ({usual})"]
