"""A verdict that travels with its program: what is written, and what of it does not fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import ci.__main__
from ci.cases.policy import LANES, read_emulator_policy
from ci.facts.kinds import NOISE, QUANTIZED_BADLY
from ci.models.schemes import Scheme
from ci.report.evidence import (
    CASE,
    LIMITS,
    POLICY,
    describe_result,
    digest_limits,
    find_faults,
    find_weaker,
    parse_statement,
)
from ci.report.schema import (
    AccuracyLimits,
    Budget,
    OutputThreshold,
    ProgramFile,
    Status,
    Threshold,
    Tool,
)
from ci.verbs.evidence import find_limits
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import Backend
from tests.stand_ins.reports import change_case
from tests.stand_ins.snapshots import check_snapshot
from tests.stand_ins.statements import BUILD, PROGRAM, SHA256, SOLD, make, state


@pytest.fixture
def judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """What verify-evidence makes of a statement: its exit code, and what it prints."""
    monkeypatch.chdir(tmp_path)
    Path("M.pte").write_bytes(PROGRAM)

    def run(statement: Any, *words: str) -> tuple[int, str]:
        text = statement if isinstance(statement, str) else json.dumps(statement)
        Path("evidence.json").write_text(text)
        argv = ["verify-evidence", "M.pte", "--evidence", "evidence.json", *words]
        code = ci.__main__.main(argv)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out + printed.err

    return run


Judge = Callable[..., tuple[int, str]]


def test_evidence_of_a_pass_fits_its_program_and_the_default_policy(judge: Judge) -> None:
    Path("qnn.toml").write_text('extends = "default"\n')
    code, text = judge(state(make()), "--policy", "qnn.toml")
    assert code == 0, text
    assert all(words in text for words in (*SOLD, "signature of the evidence was not checked"))


def test_evidence_of_a_failure_is_refused_and_of_a_warning_accepted(judge: Judge) -> None:
    failed = make(status=Status.FAILED, findings=(NOISE.find("3 dB"),))
    code, text = judge(state(failed))
    assert (code, "FAILED; failed tests: faithful" in text) == (1, True)
    statement = state(make(warnings=("rounding alone",)))
    code, text = judge(statement)
    assert (code, "warning: rounding alone" in text) == (0, True)
    Path("M.pte").write_bytes(PROGRAM + b"\0")
    code, text = judge(statement)
    assert (code, "warning: rounding alone" in text) == (1, False)


def test_an_evidence_predicate_covers_only_its_own_case_and_all_its_parts() -> None:
    """Controls of other cases do not count, whatever their results are."""
    report = make(metric_name="top1", warnings=("rounding",))
    (case,) = report.cases
    own_controls = report.controls
    other_controls = tuple(
        replace(control, model="lstm", rejected=False) for control in own_controls
    )
    tools = (*report.toolchain, Tool(name="torch", version="2.12"))
    report = replace(report, controls=(*other_controls, *own_controls), toolchain=tools)
    accepted = replace(
        report, controls=(replace(own_controls[0], rejected=False), *own_controls[1:])
    )
    failed = change_case(case, status=Status.FAILED, findings=(QUANTIZED_BADLY.find("20 dB"),))
    rows = {
        "passed": (report, case),
        "a control is accepted": (accepted, case),
        "failed": (report, failed),
        "failed without a finding": (report, change_case(failed, findings=())),
    }
    digests = {POLICY: "b" * 64, "other": "c" * 64}
    predicates = {name: describe_result(*row, "0.1.0", digests) for name, row in rows.items()}
    for predicate in [*predicates.values()][1:]:
        del predicate["configuration"]
    text = json.dumps(predicates, indent=1) + "\n"
    check_snapshot(Path(__file__).with_name("snapshots") / "predicates.json", text)


@pytest.mark.parametrize(("build", "qnn_shown"), [("", "an unknown QNN"), ("v9", "QNN v9")])
def test_evidence_of_a_build_does_not_fit_a_program_of_another(build: str, qnn_shown: str) -> None:
    statement = parse_statement(json.dumps(state(make())).encode())
    (fault,) = find_faults(statement, SHA256, build, None)
    assert BUILD in fault
    assert qnn_shown in fault


@pytest.mark.parametrize("order", [1, -1])
def test_a_program_that_passed_twice_gets_the_statement_with_the_strictest_limits(
    tmp_path: Path, order: int
) -> None:
    pytest.importorskip("in_toto_attestation")
    from ci.report.evidence import write_evidence

    (case,), (rule,) = make().cases, make().thresholds
    cases = tuple(replace(case, scheme=name) for name in ("loose", "strict", "other"))
    floors = {"loose": 10, "strict": 30, "other": None}
    rules = tuple(
        replace(rule, scheme=scheme, min_sqnr_db_all=floor) for scheme, floor in floors.items()
    )
    report = replace(make(), cases=cases[::order], thresholds=rules)
    (path,) = write_evidence(report, tmp_path, "0.1.0", {POLICY: "b" * 64})
    predicate = parse_statement(path.read_bytes()).predicate
    assert predicate.find(CASE).annotations["scheme"] == "strict"
    assert predicate.find(LIMITS).annotations["min_sqnr_db_all"] == floors["strict"]


def list_subjects(statement: Any) -> list[tuple[str, dict[str, str]]]:
    return [(subject.name, subject.digest) for subject in statement.subject]


def test_each_program_has_its_own_statement_which_its_reader_accepts(tmp_path: Path) -> None:
    """The report has a program of several files, a refused case, one that fails in another case,
    and limits that are whole numbers."""
    pytest.importorskip("in_toto_attestation")
    from ci.report.evidence import write_evidence

    (first,) = make().cases
    files = tuple(ProgramFile(name=f"part{letter}", sha256=letter * 64) for letter in "ab")
    other_case = change_case(first, soc="SM8750", files=files, warnings=("slow",))
    refused = change_case(first, soc="SM8550", status=Status.UNSUPPORTED)
    (rule,) = make().thresholds
    rule = replace(
        rule,
        outputs=(OutputThreshold(output=1, min_equal=1.0),),
        budget=Budget(partitions=1, operators={"Conv*": 3}),
    )
    report = replace(make(), cases=(refused, first, other_case), thresholds=(rule,))
    digests = {POLICY: "b" * 64}
    paths = write_evidence(report, tmp_path, "0.1.0", digests)
    assert [path.name for path in paths] == [f"{SHA256}.intoto.json", f"{'a' * 64}.intoto.json"]
    of_first, of_other = [parse_statement(path.read_bytes()) for path in paths]
    assert list_subjects(of_first) == [("program.pte", {"sha256": SHA256})]
    assert list_subjects(of_other) == [(file.name, {"sha256": file.sha256}) for file in files]
    assert (of_first.predicate.result, of_other.predicate.result) == ("PASSED", "WARNED")
    assert of_first.predicate.find(CASE).annotations["soc"] == first.soc
    assert of_other.predicate.find(CASE).annotations["soc"] == "SM8750"
    assert list(find_faults(of_first, SHA256, BUILD, lambda _: rule)) == []
    (fault,) = find_faults(of_other, "a" * 64, BUILD, lambda _: rule)
    assert fault.startswith("no control was rejected, so nothing shows that the gate rejects")
    part, _ = find_faults(of_other, "b" * 64, BUILD, lambda _: rule)
    assert "of which this file is only a part" in part
    with_failed_case = replace(
        report, cases=(first, change_case(first, status=Status.FAILED, soc="SM8750"))
    )
    (path,) = write_evidence(with_failed_case, tmp_path, "0.1.0", digests)
    assert parse_statement(path.read_bytes()).predicate.result == "FAILED"


def test_a_later_run_replaces_its_statements_and_keeps_files_of_the_user(tmp_path: Path) -> None:
    pytest.importorskip("in_toto_attestation")
    from ci.verbs.steps import keep_evidence

    (case,) = make().cases
    later = change_case(case, files=(ProgramFile(name="program.pte", sha256="c" * 64),))
    for cases in ((case,), (later,)):
        keep_evidence(replace(make(), cases=cases), tmp_path, None, Progress())
        (tmp_path / "notes.md").write_text("mine")
    statements = {path.name for path in tmp_path.glob("*.intoto.json")}
    assert statements == {f"{'c' * 64}.intoto.json"}
    keep_evidence(replace(make(), cases=()), tmp_path, None, Progress())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


Tamper = Callable[[dict[str, Any]], None]


def at(*path: str | int, to: Any) -> Tamper:
    """Set what is at a path of the statement."""

    def tamper(statement: dict[str, Any]) -> None:
        place: Any = statement
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = to

    return tamper


def of(name: str, change: Callable[[dict[str, Any]], None]) -> Tamper:
    """Change a descriptor of the configuration."""

    def tamper(statement: dict[str, Any]) -> None:
        rows = statement["predicate"]["configuration"]
        change(next(row for row in rows if row["name"] == name))

    return tamper


def without(name: str) -> Tamper:
    def tamper(statement: dict[str, Any]) -> None:
        rows = statement["predicate"]["configuration"]
        rows[:] = [row for row in rows if row["name"] != name]

    return tamper


def limit(name: str, value: Any, *, seal: bool = True) -> Tamper:
    """Another limit, with the digest that fits."""

    def change(row: dict[str, Any]) -> None:
        row["annotations"][name] = value
        if seal:
            limits = msgspec.convert(row["annotations"], Threshold)
            row["digest"] = {"sha256": digest_limits(limits)}

    return of(LIMITS, change)


def test_a_statement_written_before_a_limit_existed_is_accepted(judge: Judge) -> None:
    def forget(row: dict[str, Any]) -> None:
        del row["annotations"]["budget"]
        limits = msgspec.to_builtins(msgspec.convert(row["annotations"], Threshold, strict=False))
        del limits["budget"]
        text = msgspec.json.encode(limits, order="sorted")
        row["digest"] = {"sha256": hashlib.sha256(text).hexdigest()}

    statement = state(make())
    of(LIMITS, forget)(statement)
    code, text = judge(statement)
    assert code == 0, text
    of(LIMITS, lambda row: row["annotations"].update(min_sqnr_db_all=9.0))(statement)
    assert judge(statement)[0] == 1


def repeat_limits(statement: dict[str, Any]) -> None:
    """Strict limits first, for a reader that takes the first, and weak ones after them."""
    rows = statement["predicate"]["configuration"]
    rows.append(next(row for row in rows if row["name"] == LIMITS))


PREDICATE = "predicate"
TAMPERED: dict[str, Tamper] = {
    "another program": at("subject", 0, "digest", "sha256", to="0" * 64),
    "another digest": at("subject", 0, "digest", to={"sha512": SHA256 * 2}),
    "no digest": at("subject", 0, "digest", to={}),
    "no subject": at("subject", to=[]),
    "another type": at("_type", to="https://in-toto.io/Statement/v0.1"),
    "another predicate": at("predicateType", to="https://slsa.dev/provenance/v1"),
    "a failure": at(PREDICATE, "result", to="FAILED"),
    "a result that is none": at(PREDICATE, "result", to="passed"),
    "a failed test of a pass": at(PREDICATE, "failedTests", to=["faithful"]),
    "no test": at(PREDICATE, "passedTests", to=[]),
    "no question": at(PREDICATE, "passedTests", to=["control: zeros"]),
    "one question of two": lambda statement: statement[PREDICATE]["passedTests"].remove(
        "quantized"
    ),
    "no control": at(
        *(PREDICATE, "passedTests"), to=["faithful", "quantized", "delegation and recorded figures"]
    ),
    "a test as often as wanted": lambda statement: statement[PREDICATE]["passedTests"].append(
        "faithful"
    ),
    "a control that passed": at(PREDICATE, "failedTests", to=["control: gain"]),
    "no configuration": at(PREDICATE, "configuration", to=[]),
    "no limits": without(LIMITS),
    "no policy": without(POLICY),
    "no case": without(CASE),
    "no version of ours": without("executorch-qnn-ci"),
    "no build of QNN": without("qnn-build"),
    "another build of QNN": of("qnn-build", lambda row: row.update(annotations={"version": "v9"})),
    "limits twice": repeat_limits,
    "a weaker limit": limit("min_sqnr_db_all", 1.0),
    "a wider margin": limit("max_above_noise_db", 60.0),
    "a limit left out": limit("min_equal", None),
    "a larger budget": limit("budget", {"context_bytes": 3 << 30}),
    "no budget": limit("budget", {}),
    "any delegation": limit("full_delegation", False),
    "a second digest of limits": of(LIMITS, lambda row: row["digest"].update(sha512=SHA256 * 2)),
    "a limit without its digest": limit("min_sqnr_db_all", 90.0, seal=False),
    "limits that are words": limit("min_sqnr_db_all", "much", seal=False),
    "a limit that is unknown": limit("min_luck", 1, seal=False),
    "limits of an output": limit("outputs", [{"output": 0, "min_equal": 0.1}], seal=False),
    "limits of another scheme": limit("scheme", "16a4w"),
    "limits of another model": limit("model", "resnet"),
    "another scheme": of(CASE, lambda row: row["annotations"].update(scheme="fp16")),
    **{
        f"no {name}": of(CASE, lambda row, name=name: row["annotations"].pop(name))  # type: ignore[misc]
        for name in ("session", "model", "scheme", "soc", "backend")
    },
    "a scheme that is a list": of(CASE, lambda row: row["annotations"].update(scheme=["8a8w"])),
    "a session that is a list": of(CASE, lambda row: row["annotations"].update(session=[])),
    "a session that is none": of(CASE, lambda row: row["annotations"].update(session="../x")),
    "a backend that is none": of(CASE, lambda row: row["annotations"].update(backend="cpu")),
    "a field that is none": at(PREDICATE, "verdict", to="PASSED"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_evidence_statement_is_refused(name: str, judge: Judge) -> None:
    Path("qnn.toml").write_text('extends = "default"\n')
    statement = state(make())
    TAMPERED[name](statement)
    code, text = judge(statement, "--policy", "qnn.toml")
    assert code == 1, text
    assert text.count("\n") > 1  # it says what


GOOD = json.dumps(state(make()))
# A decoder that takes the first of two keys reads another statement than one that takes the last.
TWICE = GOOD.replace('"result": "PASSED"', '"result": "FAILED", "result": "PASSED"')
BROKEN = (
    "",
    "[]",
    "null",
    '{"_type": ',
    "[" * 100_000,
    "\ud800".encode("utf-8", "replace").decode(),
)


@pytest.mark.parametrize("text", [*BROKEN, '{"a": 1, "a": 2}', TWICE])
def test_a_file_that_is_no_evidence_statement_is_refused(text: str, judge: Judge) -> None:
    assert judge(text)[0] == 1
    assert judge(GOOD)[0] == 0


@pytest.mark.parametrize("session", LANES)
@pytest.mark.parametrize("backend", [Backend.HTP, Backend.LPAI])
def test_limits_are_those_of_the_cases_lane_and_backend(session: str, backend: Backend) -> None:
    policy = manifests_root() / "policies" / f"{LANES[session]}.toml"
    case = {"session": session, "backend": backend.value, "scheme": "fp16", "model": "mlp"}
    policy_of_lane = read_emulator_policy(lane=LANES[session])
    if backend is not Backend.HTP:
        if backend not in policy_of_lane.backends:
            with pytest.raises(UsageError, match="no limits for backend"):
                find_limits(policy, case)
            return
        case["scheme"] = min(policy_of_lane.backends[backend]).value
    expected = policy_of_lane.for_backend(backend).limits_of("mlp", Scheme(case["scheme"]))
    assert find_limits(policy, case) == expected
    with pytest.raises(ValueError, match="there is no session x"):
        find_limits(policy, {**case, "session": "x"})


LIMIT = Threshold(scheme="8a8w", max_above_noise_db=10.0)
FIGURES = [limit for limit in Threshold.__struct_fields__ if limit.startswith(("min_", "max_"))]
SIZES = [limit for limit in Budget.__struct_fields__ if limit != "operators"]
OF_OUTPUTS = AccuracyLimits.__struct_fields__


def limit_all(name: str, value: float | None) -> Threshold:
    return replace(LIMIT, **{name: value})


def limit_outputs(name: str, value: float | None) -> Threshold:
    """Three outputs; the last has the limit."""
    outputs = (OutputThreshold(output=n, **{name: value} if n == 7 else {}) for n in (1, 7, 0))
    return replace(LIMIT, outputs=tuple(outputs), max_above_noise_db=9.0)


def limit_size(name: str, value: float | None) -> Threshold:
    return replace(LIMIT, budget=Budget(**{name: value}))


def limit_operators(glob: str, value: float | None) -> Threshold:
    return replace(LIMIT, budget=Budget(operators={} if value is None else {glob: int(value)}))


@pytest.mark.parametrize(
    ("make", "name", "shown"),
    [
        *((limit_all, name, name) for name in FIGURES),
        *((limit_outputs, name, f"output 7: {name}") for name in OF_OUTPUTS),
        *((limit_size, name, f"budget {name}") for name in SIZES),
        (limit_operators, "Conv*", "budget operators Conv*"),
    ],
)
def test_each_limit_that_is_missing_or_weaker_is_named(
    make: Callable[[str, float | None], Threshold], name: str, shown: str
) -> None:
    """Equal and stricter limits are not named."""
    weaker, stricter = (4, 6) if name.startswith("min_") or name == "segment_align" else (6, 4)
    required = make(name, 5)
    assert not list(find_weaker(required, required))
    assert not list(find_weaker(make(name, stricter), required))
    assert list(find_weaker(make(name, weaker), required)) == [
        f"{shown} is {weaker}, but 5 is required"
    ]
    if not (make is limit_outputs and name == "max_above_noise_db"):
        (line,) = find_weaker(make(name, None), required)
        assert line == f"{shown} is None, but 5 is required"


@pytest.mark.parametrize(
    ("limits", "required", "lines"),
    [
        (
            {"min_sqnr_db": 20.0, "outputs": (OutputThreshold(output=3, min_sqnr_db=10.0),)},
            {"min_sqnr_db": 20.0},
            ["output 3: min_sqnr_db is 10.0, but 20.0 is required"],
        ),
        ({"full_delegation": False}, {}, ["full_delegation is false, but true is required"]),
        ({}, {"full_delegation": False}, []),
        ({}, {"strict_noise": True}, ["strict_noise is false, but true is required"]),
        ({"strict_noise": True}, {}, []),
    ],
)
def test_an_output_or_a_rule_may_not_be_weaker_than_what_is_required(
    limits: dict[str, Any], required: dict[str, Any], lines: list[str]
) -> None:
    assert list(find_weaker(replace(LIMIT, **limits), replace(LIMIT, **required))) == lines


def test_evidence_does_not_fit_a_stricter_policy(judge: Judge) -> None:
    policy = 'extends = "default"\n[schemes.8a8w]\nmin_sqnr_db_all = 30.0\n'
    Path("qnn.toml").write_text(policy)
    code, text = judge(state(make()), "--policy", "qnn.toml")
    assert (code, "min_sqnr_db_all is 15.0, but 30" in text) == (1, True)
    Path("qnn.toml").write_text(
        policy.replace("min_sqnr_db_all = 30.0", "[schemes.8a8w.outputs.1]\nmin_equal = 1.0")
    )
    assert judge(state(make()), "--policy", "qnn.toml")[0] == 1


def test_a_missing_evidence_file_is_named(judge: Judge) -> None:
    assert judge(state(make()), "--policy", "none.toml")[0] == 2
    Path("M.pte").unlink()
    code, text = judge(state(make()))
    assert (code, "M.pte" in text) == (2, True)
    Path("M.pte").mkdir()
    code, text = judge(state(make()))
    assert (code, "it is not a file" in text) == (2, True)
