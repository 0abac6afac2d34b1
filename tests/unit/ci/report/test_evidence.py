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
from ci.facts.finding import Question
from ci.facts.kinds import NOISE, QUANTIZED_BADLY
from ci.models.schemes import Scheme
from ci.report.evidence import (
    CASE,
    LIMITS,
    OTHER,
    OWN,
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
    ControlKind,
    OutputThreshold,
    ProgramFile,
    Status,
    Threshold,
    Tool,
)
from ci.verbs import evidence as verb
from ci.verbs.evidence import find_limits, find_signature_faults
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import Backend
from tests.stand_ins.statements import BUILD, PROGRAM, SHA256, SOLD, make, state

BUNDLES = Path(__file__).parents[3] / "artifacts" / "evidence"
SIGNER = "sigstore-conformance/extremely-dangerous-public-oidc-beacon"


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
    assert all(one in text for one in (*SOLD, "not signed"))


def test_a_pass_with_warnings_is_a_pass_that_shows_them(judge: Judge) -> None:
    code, text = judge(state(make(warnings=("rounding alone",))))
    assert (code, "warning: rounding alone" in text) == (0, True)
    statement = state(make(warnings=("rounding alone",)))
    TAMPERED["another program"](statement)
    code, text = judge(statement)
    assert (code, "warning: rounding alone" in text) == (1, False)


def test_a_predicate_is_of_its_own_case_and_names_every_part() -> None:
    """Controls of another case do not count, whatever came of them."""
    report = make(metric_name="top1", warnings=("rounding",))
    of_another = [replace(one, model="lstm", rejected=False) for one in report.controls]
    tools = (*report.toolchain, Tool(name="torch", version="2.12"))
    report = replace(report, controls=(*of_another, *report.controls), toolchain=tools)
    (case,) = report.cases
    found = describe_result(report, case, "0.1.0", {POLICY: "b" * 64, "other": "c" * 64})
    limits = report.threshold_for(case)
    asked = (Question.FAITHFUL, Question.QUANTIZED, Question.TASK, Question.BUDGET)
    controls = [f"control: {one.value}" for one in (ControlKind.ZEROS, ControlKind.GAIN)]
    assert found["passedTests"] == [*(one.value for one in asked), OTHER, *controls]
    assert (found["failedTests"], found["result"]) == ([], "WARNED")
    assert found["configuration"] == [
        {
            "name": CASE,
            "annotations": {
                **dict(zip(("model", "scheme", "soc"), SOLD, strict=True)),
                "backend": report.backend,
                "session": report.session,
                "runner": "python",
                "findings": [],
                "warnings": ["rounding"],
            },
        },
        {
            "name": LIMITS,
            "digest": {"sha256": digest_limits(limits)},
            "annotations": msgspec.to_builtins(limits),
        },
        {"name": POLICY, "digest": {"sha256": "b" * 64}},
        {"name": "other", "digest": {"sha256": "c" * 64}},
        {"name": "qnn-build", "annotations": {"version": BUILD}},
        {"name": OWN, "annotations": {"version": "0.1.0"}},
        {
            "name": "qnn-runtime",
            "digest": {"sha256": "a" * 64},
            "annotations": {"version": "2.49.40"},
        },
        {"name": "torch", "annotations": {"version": "2.12"}},
    ]
    accepted = replace(report, controls=tuple(replace(one, rejected=False) for one in of_another))
    own = [replace(one, model=case.model) for one in accepted.controls[:1]]
    found = describe_result(replace(report, controls=tuple(own)), case, "0.1.0", {})
    assert (found["failedTests"], found["result"]) == (controls[:1], "FAILED")
    failed = replace(case, status=Status.FAILED, findings=(QUANTIZED_BADLY.find("20 dB"),))
    found = describe_result(report, failed, "0.1.0", {})
    assert found["failedTests"] == [Question.QUANTIZED.value]
    assert (found["passedTests"], found["result"]) == (controls, "FAILED")
    found = describe_result(report, replace(failed, findings=()), "0.1.0", {})
    assert found["failedTests"] == [OTHER]


def test_evidence_of_a_build_does_not_fit_a_program_that_names_none() -> None:
    statement = parse_statement(json.dumps(state(make())).encode())
    assert list(find_faults(statement, SHA256, BUILD, None)) == []
    (fault,) = find_faults(statement, SHA256, "", None)
    assert BUILD in fault
    assert "an unknown QNN" in fault
    (fault,) = find_faults(statement, SHA256, "v9", None)
    assert BUILD in fault
    assert "QNN v9" in fault


def test_evidence_of_a_failure_does_not_fit(judge: Judge) -> None:
    failed = make(status=Status.FAILED, findings=(NOISE.find("3 dB"),))
    code, text = judge(state(failed))
    assert (code, "FAILED; failed tests: faithful" in text) == (1, True)


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("in_toto_attestation")
    from ci.report.evidence import write_evidence

    (path,) = write_evidence(make(), tmp_path, "0.1.0", {POLICY: "b" * 64})
    assert path.name == f"{SHA256}.intoto.json"
    statement = parse_statement(path.read_bytes())
    assert statement == parse_statement(json.dumps(state(make())).encode())
    failed = replace(make().cases[0], status=Status.FAILED, soc="SM8750")
    both = replace(make(), cases=(failed, make().cases[0]))
    (path,) = write_evidence(both, tmp_path, "0.1.0", {POLICY: "b" * 64})
    assert parse_statement(path.read_bytes()).predicate.result == "FAILED"
    refused = make(status=Status.UNSUPPORTED)
    assert write_evidence(refused, tmp_path / "none", "0.1.0", {}) == []


def test_each_program_has_its_own_statement_which_its_reader_accepts(tmp_path: Path) -> None:
    """A program of several files, a refused case before, and whole numbers in the limits."""
    pytest.importorskip("in_toto_attestation")
    from ci.report.evidence import write_evidence

    (first,) = make().cases
    files = tuple(ProgramFile(name=f"part{one}", sha256=one * 64) for one in "ab")
    other = replace(first, soc="SM8750", program=files, warnings=("slow",))
    refused = replace(first, soc="SM8550", status=Status.UNSUPPORTED)
    (rule,) = make().thresholds
    rule = replace(
        rule,
        outputs=(OutputThreshold(output=1, min_equal=1.0),),
        budget=Budget(partitions=1, operators={"Conv*": 3}),
    )
    report = replace(make(), cases=(refused, first, other), thresholds=(rule,))
    digests = {POLICY: "b" * 64}
    paths = write_evidence(report, tmp_path, "0.1.0", digests)
    assert [one.name for one in paths] == [f"{one}.intoto.json" for one in (SHA256, "a" * 64)]
    found = [parse_statement(one.read_bytes()) for one in paths]
    assert [[(one.name, one.digest) for one in each.subject] for each in found] == [
        [("program.pte", {"sha256": SHA256})],
        [(one.name, {"sha256": one.sha256}) for one in files],
    ]
    assert [one.predicate.result for one in found] == ["PASSED", "WARNED"]
    assert [one.predicate.describe(CASE)["soc"] for one in found] == [first.soc, "SM8750"]
    assert list(find_faults(found[0], SHA256, BUILD, lambda _: rule)) == []
    for sha256 in "ab":
        of_no_control = "no control was rejected, so nothing shows that the gate rejects"
        (fault,) = find_faults(found[1], sha256 * 64, BUILD, lambda _: rule)
        assert fault.startswith(of_no_control)
    assert paths[0].read_text("utf-8").endswith("}\n")


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
        change(next(one for one in rows if one["name"] == name))

    return tamper


def without(name: str) -> Tamper:
    def tamper(statement: dict[str, Any]) -> None:
        rows = statement["predicate"]["configuration"]
        rows[:] = [one for one in rows if one["name"] != name]

    return tamper


def limit(name: str, value: Any, *, seal: bool = True) -> Tamper:
    """Another limit, with the digest that fits."""

    def change(row: dict[str, Any]) -> None:
        row["annotations"][name] = value
        if seal:
            limits = msgspec.convert(row["annotations"], Threshold)
            row["digest"] = {"sha256": digest_limits(limits)}

    return of(LIMITS, change)


def test_a_statement_from_before_a_kind_of_limit_fits(judge: Judge) -> None:
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
    rows.append(next(one for one in rows if one["name"] == LIMITS))


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
    "one question of two": lambda one: one[PREDICATE]["passedTests"].remove("quantized"),
    "no control": at(
        *(PREDICATE, "passedTests"), to=["faithful", "quantized", "delegation and recorded figures"]
    ),
    "a test as often as wanted": lambda one: one[PREDICATE]["passedTests"].append("faithful"),
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
def test_a_tampered_statement_does_not_fit(name: str, judge: Judge) -> None:
    Path("qnn.toml").write_text('extends = "default"\n')
    statement = state(make())
    TAMPERED[name](statement)
    code, text = judge(statement, "--policy", "qnn.toml")
    assert code == 1, text
    assert text.count("\n") > 1  # it says what


EVERY_QUESTION = "the evidence does not state a pass for every question"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"_type": ',
        "[" * 100_000,
        "\ud800".encode("utf-8", "replace").decode(),
        '{"a": 1, "a": 2}',
    ],
)
def test_a_file_that_is_no_statement_does_not_fit(text: str, judge: Judge) -> None:
    assert judge(text)[0] == 1


def test_a_key_that_comes_twice_does_not_fit(judge: Judge) -> None:
    """A decoder that takes the first one reads another statement than one that takes the last."""
    text = json.dumps(state(make()))
    twice = text.replace('"result": "PASSED"', '"result": "FAILED", "result": "PASSED"')
    assert judge(twice)[0] == 1


def test_a_program_that_changed_does_not_fit(judge: Judge) -> None:
    statement = state(make())
    Path("M.pte").write_bytes(PROGRAM + b"\0")
    assert judge(statement)[0] == 1
    Path("M.pte").write_bytes(b"")
    assert judge(statement)[0] == 1


@pytest.mark.parametrize("session", LANES)
@pytest.mark.parametrize("backend", [Backend.HTP, Backend.LPAI])
def test_limits_are_those_of_the_cases_lane_and_backend(session: str, backend: Backend) -> None:
    policy = manifests_root() / "policies" / f"{LANES[session]}.toml"
    case = {"session": session, "backend": backend.value, "scheme": "fp16", "model": "mlp"}
    own = read_emulator_policy(lane=LANES[session])
    if backend is not Backend.HTP:
        if backend not in own.backends:
            with pytest.raises(UsageError, match="no limits for backend"):
                find_limits(policy, case)
            return
        case["scheme"] = min(own.backends[backend]).value
    wanted = own.for_backend(backend).limits_of("mlp", Scheme(case["scheme"]))
    assert find_limits(policy, case) == wanted
    with pytest.raises(ValueError, match="there is no session x"):
        find_limits(policy, {**case, "session": "x"})


LIMIT = Threshold(scheme="8a8w", max_above_noise_db=10.0)
FIGURES = [one for one in Threshold.__struct_fields__ if one.startswith(("min_", "max_"))]
SIZES = [one for one in Budget.__struct_fields__ if one != "operators"]
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
    """A limit that is equal or stricter is not."""
    weaker, stricter = (4, 6) if name.startswith("min_") or name == "segment_align" else (6, 4)
    wanted = make(name, 5)
    assert not list(find_weaker(wanted, wanted))
    assert not list(find_weaker(make(name, stricter), wanted))
    assert list(find_weaker(make(name, weaker), wanted)) == [
        f"{shown} is {weaker}, but 5 is required"
    ]
    if not (make is limit_outputs and name == "max_above_noise_db"):
        (line,) = find_weaker(make(name, None), wanted)
        assert line == f"{shown} is None, but 5 is required"


def test_an_output_may_not_be_weaker_than_what_is_required_of_all() -> None:
    wanted = replace(LIMIT, min_sqnr_db=20.0)
    own = replace(wanted, outputs=(OutputThreshold(output=3, min_sqnr_db=10.0),))
    assert list(find_weaker(own, wanted)) == ["output 3: min_sqnr_db is 10.0, but 20.0 is required"]


def test_weaker_limits_of_outputs_are_listed_in_their_order() -> None:
    outputs = tuple(OutputThreshold(output=n, min_equal=0.5) for n in (2, 0, 10))
    wanted = replace(LIMIT, min_cosine=0.9, outputs=outputs)
    assert [line.partition(": ")[0] for line in find_weaker(LIMIT, wanted)] == [
        "min_cosine is None, but 0.9 is required",
        *("output 0", "output 0", "output 2", "output 2", "output 10", "output 10"),
    ]
    partial = replace(LIMIT, full_delegation=False)
    assert list(find_weaker(partial, LIMIT)) == ["full_delegation is false, but true is required"]
    strict = replace(LIMIT, strict_noise=True)
    assert list(find_weaker(LIMIT, strict)) == ["strict_noise is false, but true is required"]
    assert not list(find_weaker(strict, LIMIT))
    assert not list(find_weaker(LIMIT, partial))


def test_a_stricter_policy_is_not_met(judge: Judge) -> None:
    policy = 'extends = "default"\n[schemes.8a8w]\nmin_sqnr_db_all = 30.0\n'
    Path("qnn.toml").write_text(policy)
    code, text = judge(state(make()), "--policy", "qnn.toml")
    assert (code, "min_sqnr_db_all is 15.0, but 30" in text) == (1, True)
    Path("qnn.toml").write_text(
        policy.replace("min_sqnr_db_all = 30.0", "[schemes.8a8w.outputs.1]\nmin_equal = 1.0")
    )
    assert judge(state(make()), "--policy", "qnn.toml")[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--bundle", "b.json"],
        ["--repository", "a/b"],
        *(
            ["--bundle", "b.json", "--repository", one]
            for one in ("b", "a/", "/b", "a/b/c", "a b/c")
        ),
    ],
)
def test_a_signature_needs_its_signer(words: list[str], judge: Judge) -> None:
    Path("b.json").write_text("{}")
    assert judge(state(make()), *words)[0] == 2


@pytest.mark.parametrize("faults", [[], ["it is not valid"]])
def test_a_signature_is_checked_for_the_evidence_and_its_repository(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, faults: list[str]
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(
        verb, "find_signature_faults", lambda *given: checked.append(given) or faults
    )
    Path("b.json").write_text("the bundle")
    statement = state(make())
    words = ("--bundle", "b.json", "--repository", "a/b")
    for more, is_signed in ((words, True), ((), False)):
        data = json.loads(judge(statement, *more, "--json")[1])
        assert data["signed"] is is_signed
        assert data["faults"] == (faults if more else [])
        assert data["fits"] is not bool(data["faults"])
    checked.clear()
    code, text = judge(statement, *words)
    assert checked == [
        (b"the bundle", Path("evidence.json").read_bytes(), "a/b", "refs/heads/main", "")
    ]
    TAMPERED["no question"](other := state(make()))
    told = json.loads(judge(other, *words, "--json")[1])["faults"]
    assert told == [EVERY_QUESTION, *faults]
    assert (code, all(one in text for one in faults)) == (bool(faults), True)
    assert ("(signed by a/b for main)" in text) is (not faults)
    assert "anyone could" in judge(statement)[1]


def test_without_the_package_that_verifies_no_signature_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verb.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnfitError, match="no sigstore"):
        list(find_signature_faults(b"", b"", SIGNER, ""))


def test_a_missing_file_is_named(judge: Judge) -> None:
    assert judge(state(make()), "--policy", "none.toml")[0] == 2
    Path("M.pte").unlink()
    code, text = judge(state(make()))
    assert (code, "M.pte" in text) == (2, True)
    Path("M.pte").mkdir()
    code, text = judge(state(make()))
    assert (code, "it is not a file" in text) == (2, True)


# -- signatures, verified offline by the trust root in the package --------------------------------


def sign_faults(
    name: str,
    data: bytes | None = None,
    signer: str = SIGNER,
    ref: str = "refs/heads/main",
    workflow: str = "",
) -> list[str]:
    pytest.importorskip("sigstore")
    bundle = (BUNDLES / f"{name}.sigstore.json").read_bytes()
    signed = (BUNDLES / "a.txt").read_bytes() if data is None else data
    return list(find_signature_faults(bundle, signed, signer, ref, workflow))


def test_a_published_bundle_is_verified() -> None:
    assert sign_faults("good") == []


def test_a_token_of_another_issuer_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "ISSUER", "https://token.example.com")
    assert sign_faults("good")


@pytest.mark.parametrize("name", ["invalid-sig", "mismatch-envelope", "mismatch-sig"])
def test_bundles_that_are_forged_are_not(name: str) -> None:
    assert sign_faults(name)


def test_a_signature_of_another_file_or_by_another_signer_is_none() -> None:
    assert sign_faults("good", b"other bytes")
    assert sign_faults("good", signer="sigstore-conformance/another")
    assert sign_faults("good", signer=SIGNER[:-1])
    assert sign_faults("good", ref="refs/heads/other")
    own = "extremely-dangerous-oidc-beacon.yml"
    assert sign_faults("good", workflow="other.yml")
    assert sign_faults("good", workflow=f".github/workflows/{own}") == []


@pytest.mark.parametrize(
    ("kind", "payload", "is_signed"),
    [
        ("application/vnd.in-toto+json", {"subject": [{"digest": {"sha256": "OWN"}}]}, True),
        ("application/vnd.in-toto+json", {"subject": [{"digest": {"sha512": "OWN"}}]}, False),
        (
            "application/vnd.in-toto+json",
            {"subject": [{"digest": {"sha256": "0"}}, {"digest": {"sha256": "OWN"}}]},
            True,
        ),
        ("application/vnd.in-toto+json", {"subject": [{"name": "x"}]}, False),
        ("application/vnd.in-toto+json", {"subject": []}, False),
        ("application/vnd.in-toto+json", {"subjects": []}, False),
        ("application/vnd.in-toto+json", {"subject": 7}, False),
        ("application/vnd.in-toto+json", ["subject"], False),
        ("text/plain", {"subject": [{"digest": {"sha256": "OWN"}}]}, False),
    ],
)
def test_a_signed_payload_has_to_name_the_file(
    monkeypatch: pytest.MonkeyPatch, kind: str, payload: Any, is_signed: bool
) -> None:
    """The signature is right, but what is signed may be anything."""
    verify = pytest.importorskip("sigstore.verify")
    own = hashlib.sha256(b"file").hexdigest()
    text = json.dumps(payload).replace("OWN", own).encode()
    monkeypatch.setattr(verify.Verifier, "verify_dsse", lambda *_: (kind, text))
    bundle = (BUNDLES / "good.sigstore.json").read_bytes()
    assert (
        list(find_signature_faults(bundle, b"file", SIGNER, "refs/heads/main")) == []
    ) is is_signed


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"{" * 100, b'{"mediaType": 1}', b"\xff"])
def test_what_is_no_bundle_signs_nothing(text: bytes) -> None:
    pytest.importorskip("sigstore")
    assert list(find_signature_faults(text, b"", SIGNER, ""))
