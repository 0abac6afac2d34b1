"""Evidence that a program was judged: an in-toto Statement with the test-result predicate. It can
be shipped with the program.

The file evidence/SHA256.intoto.json is named after the SHA-256 of the program, which is the subject
of the statement. The predicate's configuration contains the case, its limits, and the versions and
digests of the toolchain and the policy.
https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from ci.facts.finding import Question
from ci.report.schema import ANY_MODEL, Budget, Case, Report, Status, Threshold
from provisioning.documents import decode_json, decoding
from provisioning.files import write_whole

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
PACKAGE = "in_toto_attestation"
SUFFIX = ".intoto.json"
OWN = "executorch-qnn-ci"
CASE, LIMITS, POLICY, BASELINES, BUILD = "case", "limits", "policy", "baselines", "qnn-build"
NEEDED = {CASE, LIMITS, POLICY, BUILD, OWN}
CONTROL, OTHER = "control: {}", "delegation and recorded figures"
QUESTIONS = (Question.FAITHFUL.value, Question.QUANTIZED.value)
BUDGET = Question.BUDGET.value
PASSES = ("PASSED", "WARNED")
NAMES = ("session", "model", "scheme", "soc", "backend")
REFUSED = Status.UNSUPPORTED
RequiredLimits = Callable[[Mapping[str, str]], Threshold]  # the limits for a case
Digests = dict[Annotated[str, Meta(max_length=20)], Annotated[str, Meta(max_length=128)]]


class Descriptor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An in-toto ResourceDescriptor."""

    name: Annotated[str, Meta(min_length=1)]
    digest: Digests = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)


class Subject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the program."""

    name: str
    digest: Annotated[Digests, Meta(min_length=1)]


class TestResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The predicate of a statement. ``WARNED`` is a pass with warnings."""

    result: Literal["PASSED", "WARNED", "FAILED"]
    configuration: tuple[Descriptor, ...]
    passed_tests: tuple[str, ...] = ()
    warned_tests: tuple[str, ...] = ()
    failed_tests: tuple[str, ...] = ()

    def find(self, name: str) -> Descriptor:
        """Return the descriptor ``name`` of the configuration, or an empty one."""
        matching = (descriptor for descriptor in self.configuration if descriptor.name == name)
        return next(matching, Descriptor(name=name))

    def read_case(self) -> NamedCase:
        """Return the case that the result is about. Raises ValueError."""
        return msgspec.convert(self.find(CASE).annotations, NamedCase)


class NamedCase(Struct, frozen=True):
    """The fields of the descriptor CASE that are shown. Statements of other tools lack them."""

    model: str = "?"
    scheme: str = "?"
    soc: str = "?"
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The case as ``MODEL SCHEME SOC``."""
        return " ".join(f"{self.model} {self.scheme} {self.soc}".split())


class Statement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An in-toto Statement of a test result."""

    type: Literal["https://in-toto.io/Statement/v1"] = field(name="_type")
    subject: Annotated[tuple[Subject, ...], Meta(min_length=1)]
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"] = field(
        name="predicateType"
    )
    predicate: TestResult


def write_evidence(
    report: Report, directory: Path, version: str, digests: Mapping[str, str]
) -> list[Path]:
    """Write a statement into ``directory`` for each program that was judged, and return the files.

    Unsupported cases have no statement. If several cases share a program, such as two mixtures with
    the same parts, the statement is about a failed one if there is any, and otherwise about one
    with limits that are not weaker than the others'. ``version`` is this project's version.
    ``digests`` contains the SHA-256 of the policy and of the baselines, under the keys ``policy``
    and ``baselines``. Needs in-toto-attestation. Raises StoreError if a file cannot be written.
    """
    judged = [
        case for case in report.cases if case.program.files and case.judgement.status is not REFUSED
    ]
    written: dict[Path, Case] = {}
    # Failed cases come last, so that they replace other cases with the same program.
    for case in sorted(
        judged, key=lambda judged_case: judged_case.judgement.status is Status.FAILED
    ):
        path = directory / f"{case.program.files[0].sha256}{SUFFIX}"
        earlier = written.get(path)
        # Two mixtures with the same parts are one program. A statement with weaker limits proves
        # less.
        if earlier and case.judgement.status is not Status.FAILED:
            limits, earlier_limits = report.threshold_for(case), report.threshold_for(earlier)
            if limits and earlier_limits and any(find_weaker(limits, earlier_limits)):
                continue  # the earlier statement proves more
        write_whole(path, make_statement(report, case, version, digests))
        written[path] = case
    return list(written)


def make_statement(report: Report, case: Case, version: str, digests: Mapping[str, str]) -> str:
    """Return the statement of a judged case as JSON, after in-toto-attestation has validated it."""
    from google.protobuf.json_format import MessageToJson
    from in_toto_attestation.v1 import statement
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor

    subjects = [
        ResourceDescriptor(name=file.name, digest={"sha256": file.sha256}).pb
        for file in case.program.files
    ]
    message = statement.Statement(
        subjects, TEST_RESULT, describe_result(report, case, version, digests)
    )
    message.validate()
    return f"{MessageToJson(message.pb, indent=1, sort_keys=True)}\n"


def describe_result(
    report: Report, case: Case, version: str, digests: Mapping[str, str]
) -> dict[str, Any]:
    """Return the predicate of a judged case."""
    controls = [control for control in report.controls if control.name == case.name]
    named = {CONTROL.format(control.kind.value): control.rejected for control in controls}
    tests_needed = [
        *QUESTIONS,
        *([Question.TASK.value] if case.judgement.metric_name else []),
        BUDGET,
        OTHER,
    ]
    # The report names only the first failed question.
    wrong = case.question.value if case.question else OTHER
    tests = (
        dict.fromkeys(tests_needed, True)
        if case.judgement.status is Status.PASSED
        else {wrong: False}
    )
    tests |= named
    passed = all(tests.values())
    limits = report.threshold_for(case)
    described = {
        **msgspec.structs.asdict(case.name),
        "backend": report.backend,
        "session": report.session,
        "runner": case.run.runner,
        "findings": [f"{finding.headline} [{finding.id}]" for finding in case.judgement.findings],
        "warnings": list(case.judgement.warnings),
    }
    configuration = [
        {"name": CASE, "annotations": described},
        {
            "name": LIMITS,
            "digest": {"sha256": digest_limits(limits)},
            "annotations": msgspec.to_builtins(limits),
        },
        *({"name": name, "digest": {"sha256": sha256}} for name, sha256 in digests.items()),
        {"name": BUILD, "annotations": {"version": case.program.compiler}},
        {"name": OWN, "annotations": {"version": version}},
    ]
    for tool in report.toolchain:
        digest = {"digest": {"sha256": tool.sha256}} if tool.sha256 else {}
        configuration.append(
            {"name": tool.name, **digest, "annotations": {"version": tool.version}}
        )
    return {
        "result": "FAILED" if not passed else "WARNED" if case.judgement.warnings else "PASSED",
        "configuration": configuration,
        "passedTests": [name for name, good in tests.items() if good],
        "failedTests": [name for name, good in tests.items() if not good],
    }


def digest_limits(limits: Threshold | None, written: Mapping[str, Any] | None = None) -> str:
    """Return the SHA-256 of ``limits`` as sorted JSON.

    ``written`` are the limits in a statement. If they are given, only their keys are included,
    because an older statement lacks newer kinds of limits.
    """
    selected = _select(msgspec.to_builtins(limits), written)
    return hashlib.sha256(msgspec.json.encode(selected, order="sorted")).hexdigest()


def _select(limits: Any, written: Any) -> Any:
    if not (isinstance(limits, dict) and isinstance(written, dict)):
        return limits
    return {key: _select(value, written[key]) for key, value in limits.items() if key in written}


def parse_statement(data: bytes) -> Statement:
    """Parse a statement. Raises ValueError if it is not the statement of a test result."""
    with decoding():
        json.loads(
            data, object_pairs_hook=refuse_twice
        )  # decoders differ on which of two equal keys they use
        statement = decode_json(data, Statement)
        statement.predicate.read_case()
    return statement


def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Raises ValueError if a key occurs twice."""
    counts = Counter(name for name, _ in pairs)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"the key {min(twice)[:40]!r} occurs twice")
    return dict(pairs)


def find_faults(
    statement: Statement,
    sha256: str,
    build: str,
    find_required: RequiredLimits | None,
) -> Iterator[str]:
    """Yield the faults of ``statement``.

    It must be consistent, and state a pass for the program with this ``sha256`` that QNN ``build``
    compiled. With ``find_required``, the limits must not be weaker than those that it returns for
    the case in the statement.
    """
    result = statement.predicate
    # The other subjects are files that the program needs, which prove nothing by themselves.
    program, *parts = statement.subject
    if program.digest.get("sha256") != sha256:
        stated = program.digest.get("sha256", "none")[:16]
        if any(part.digest.get("sha256") == sha256 for part in parts):
            yield (
                f"the evidence is about the program {program.name} with SHA-256 {stated}, of which"
                " this file is only a part"
            )
        else:
            yield (
                f"the evidence is about a program with SHA-256 {stated}, but this program has"
                f" SHA-256 {sha256[:16]}"
            )
    if result.result not in PASSES:
        yield (
            f"the evidence states the result {result.result}; failed tests: "
            f"{', '.join(result.failed_tests) or 'none'}"
        )
    if result.result in PASSES and result.failed_tests:
        yield (
            f"the evidence states the result {result.result}, but these tests failed: "
            f"{', '.join(result.failed_tests)}"
        )
    all_tests = [*result.passed_tests, *result.warned_tests, *result.failed_tests]
    if len(set(all_tests)) < len(all_tests):
        yield "the evidence lists a test twice"
    if not {*QUESTIONS, OTHER} <= set(result.passed_tests):
        yield "the evidence does not state a pass for every question"
    if not any(name.startswith(CONTROL.format("")) for name in result.passed_tests):
        yield "no control was rejected, so nothing shows that the gate rejects wrong outputs"
    names = [descriptor.name for descriptor in result.configuration]
    twice = {name for name, count in Counter(names).items() if count > 1}
    if twice or NEEDED - set(names):
        yield (
            "the configuration in the evidence lacks or repeats "
            f"{', '.join(sorted(twice | NEEDED - set(names)))}"
        )
        return
    compiler = result.find(BUILD).annotations.get("version")
    if compiler != build:
        yield (
            f"the evidence is about a program that QNN {compiler} compiled, but this program was "
            f"compiled by {f'QNN {build}' if build else 'an unknown QNN'}"
        )
    yield from _find_limit_faults(result, find_required)


def _find_limit_faults(result: TestResult, find_required: RequiredLimits | None) -> Iterator[str]:
    case = result.find(CASE).annotations  # its names, see NAMES
    limits_descriptor = result.find(LIMITS)
    stated_limits = limits_descriptor.annotations
    try:
        # Not strict: in-toto's messages are protobuf, whose Struct turns the limit 3 into 3.0.
        limits = msgspec.convert(stated_limits, Threshold, strict=False)
    except msgspec.ValidationError as error:
        yield f"the limits in the evidence cannot be read: {error}"
        return
    if limits_descriptor.digest != {"sha256": digest_limits(limits, stated_limits)}:
        yield "the limits in the evidence do not match their digest"
    if not all(isinstance(case.get(name), str) for name in NAMES):
        yield "the evidence does not specify its case"
        return
    if limits.scheme != case["scheme"] or limits.model not in {ANY_MODEL, case["model"]}:
        yield f"the limits in the evidence are for another case: {limits.model} {limits.scheme}"
    if find_required:
        try:
            required = find_required(case)
        except ValueError as error:
            yield f"the evidence names a case that this version of qnn-ci does not know: {error}"
        else:
            for difference in find_weaker(limits, required):
                yield f"the limits in the evidence are weaker than the required ones: {difference}"


def find_weaker(limits: Threshold, required: Threshold) -> Iterator[str]:
    """Yield each limit of ``required``, for all or for single outputs, that is missing or weaker in
    ``limits``."""
    for name, stated, needed, is_lower_limit in _pair_limits(limits, required):
        if needed is None:
            continue
        if stated is None or (stated < needed if is_lower_limit else stated > needed):
            yield f"{name} is {stated}, but {needed} is required"
    for name in ("strict_noise", "full_delegation"):
        if getattr(required, name) and not getattr(limits, name):
            yield f"{name} is false, but true is required"


def _pair_limits(
    limits: Threshold, required: Threshold
) -> Iterator[tuple[str, float | None, float | None, bool]]:
    """Yield the name of each limit, its value in ``limits``, its value in ``required``, and whether
    it is a lower limit."""
    outputs = {None, *(output.output for output in (*limits.outputs, *required.outputs))}
    for index in sorted(outputs, key=lambda output: -1 if output is None else output):
        place = "" if index is None else f"output {index}: "
        stated = limits if index is None else limits.of_output(index)
        needed = required if index is None else required.of_output(index)
        for name in stated.__struct_fields__:
            if name.startswith(("min_", "max_")):
                is_lower_limit = name.startswith("min_")
                yield place + name, getattr(stated, name), getattr(needed, name), is_lower_limit
    for name in Budget.__struct_fields__:
        if name != "operators":
            size, needed_size = getattr(limits.budget, name), getattr(required.budget, name)
            yield f"budget {name}", size, needed_size, name == "segment_align"
    for glob, limit in required.budget.operators.items():
        yield f"budget operators {glob}", limits.budget.operators.get(glob), limit, False
