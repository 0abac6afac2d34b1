"""Each rule says what it must, matches its own line and not two that are near it; codes match in
every spelling; expressions that may take for ever are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.explain.explain import Finding, explain_text
from ci.explain.rules import (
    HEADLINE_CHARS,
    Area,
    Naming,
    Place,
    Role,
    Rule,
    check_pattern,
    read_families,
    read_namings,
    read_rules,
)
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_toml

RULES = read_rules()
LOGCAT = "01-01 00:00:00.000  1  1 E tag : x\n" * 9
NOT_IN_AN_APP = re.compile(r"\bLD_|\bpip\b|libc\+\+1|\bpush\b|adb shell|qnn-ci fetch|chmod")
ONLY_PYTHON = ("libatomic-missing", "module-missing", "adaptor-python")
NEAR = read_toml("near.toml", dict[str, str], Path(__file__).parent)


def make_rule(**changes: object) -> Rule:
    fields = {"id": "x", "area": Area.DEVICE, "headline": "h", "remedy": "r", "source": ("a link",)}
    return Rule(**{**fields, "matches": "", "rejects": "", **changes})


def find_all(text: str, rules: Sequence[Rule]) -> dict[str, Finding]:
    explanation = explain_text(text, rules)
    findings = (
        *explanation.causes,
        *explanation.consequences,
        *explanation.notes,
        *explanation.harmless,
    )
    return {finding.rule: finding for finding in findings}


def is_matched(rule: Rule, line: str) -> bool:
    return bool(find_all(line, [replace(rule, log=())]))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_matches_its_line_alone_and_names_what_is_known(rule: Rule) -> None:
    """Each finding is complete by itself: one line without unfilled braces."""
    assert is_matched(rule, rule.matches)
    assert not is_matched(rule, rule.rejects)
    assert rule.id in NEAR, "add a line to near.toml that is near, but must not match"
    assert not is_matched(rule, NEAR[rule.id])
    finding = find_all(rule.matches, RULES).get(rule.id)
    assert finding, "another rule has its line"
    assert re.fullmatch(r"QNN1\d\d\d", finding.id)
    for headline in (finding.headline, *(place.headline for place in rule.places.values())):
        assert len(headline) <= HEADLINE_CHARS
        assert "{" not in headline or not rule.family
    assert all(remedy.text for remedy in finding.remedies)
    assert rule.source
    assert all(source == "experiment" or source.startswith("https://") for source in rule.source)
    assert rule.is_seen or "experiment" not in rule.source or rule.role is not Role.CAUSE
    assert not rule.proof or Path(rule.proof).exists()
    if rule.area in (Area.LOADING, Area.RUNNING, Area.DEVICE, Area.ONNX):
        in_logcat = find_all(f"{LOGCAT}{rule.matches}", RULES)
        for finding_in_app in in_logcat.values() if rule.id not in ONLY_PYTHON else ():
            assert finding_in_app.place is not Place.APP or not NOT_IN_AN_APP.search(
                finding_in_app.fix
            )


@pytest.mark.parametrize(
    ("name", "line", "code", "expected_other"),
    [
        ("datatype", "have mismatching datatypes. 0x232 != 0x216.", "float32", "float16"),
        ("datatype", "expected datatype 0x508 but got 0x32", "bool", "int32"),
        ("executorch", "Failed to load method forward, error: 0x:14", "OperatorMissing", ""),
        ("executorch", "Loading of method forward failed with status 0x30", "DelegateInvalid", ""),
        ("executorch", "returned Error::InvalidProgram", "InvalidProgram", ""),
        ("executorch", "(org.pytorch.executorch.error error 32.)", "NotFound", ""),
        ("executorch", "load method forward: 32 inputs", "", ""),
        ("fastrpc", "qnn_open failed, 0x8000040d, prio 100", "AEE_EBADSTATE", ""),
        ("fastrpc", "remote_handle64_open failed, error -2147482618", "AEE_EUNABLETOLOAD", ""),
        ("fastrpc", "error AEE_EUNSIGNEDMOD", "AEE_EUNSIGNEDMOD", ""),
        ("fastrpc", "IDspTransport: Unknown rpc status 0x00000016", "AEE_ERESOURCE", ""),
        ("fastrpc", "error 0x800004ff", "", ""),
        ("qnn", "QnnGraph_execute failed with error 6004", "QNN_GRAPH_ERROR_INVALID_TENSOR", ""),
        ("qnn", "Could not create context from binary : err 1009", "LOADING_BINARIES", ""),
        ("qnn", "<E> Failed to get context binary size with err 0x138b", "NOT_FINALIZED", ""),
        ("qnn", "Error: QNN_COMMON_ERROR_RESOURCE_UNAVAILABLE: no session", "RESOURCE", ""),
        ("qnn", "E litert : [compiled_model.cc:90] Failed to build graph: 1002", "", ""),
        ("qnn", "E litert: [qnn_manager.cc:615] Failed to create QNN context: 1009", "1009", ""),
        ("litert", "[litert_dispatch_x.cc:9] Failed to register, QNN error code: 7", "", ""),
        ("qnn", "the graph was written, 6004 bytes", "", ""),
        ("qnn", "error 6004 of the database", "", ""),
        ("fastrpc", "ggml-hex: dspqueue_read failed: 0x0000002e", "AEE_EINTERRUPTED", ""),
        ("fastrpc", "DspTransport call failed, error 0x00000027", "AEE_ENOSUCH", ""),
        ("qnn", "graphAddNode failed with error 6005", "QNN_GRAPH_ERROR_INVALID_OP_CONFIG", ""),
        ("genie", "GenieDialog_create failed: -8", "-8 (GENIE_STATUS_ERROR_JSON_SCHEMA)", ""),
        ("genie", "Genie: GENIE_STATUS_ERROR_INVALID_CONFIG", "-4 (GENIE_STATUS", ""),
        ("genie", "GenieDialog_query returned -1.5 s", "", ""),
        ("genie", "genie_config.json: -8 is no token", "", ""),
        ("windows", "exited with code 3221226505", "STATUS_STACK_BUFFER_OVERRUN", ""),
        ("windows", "Process finished with exit code -1073741819 (0xC0000005)", "ACCESS_VIOL", ""),
        ("windows", "returned 0xc0000135", "STATUS_DLL_NOT_FOUND", ""),
        ("windows", "exited with code 3221220000", "", ""),
        ("windows", "3221226505 bytes were written", "", ""),
    ],
)
def test_a_number_in_a_log_is_named_by_its_error_code_family(
    name: str, line: str, code: str, expected_other: str
) -> None:
    named = read_families()[name].find(line) or {}
    assert code in named.get("code", "")
    assert expected_other in named.get("other", "")
    assert bool(named) == bool(code)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (5005, "Failed to create context from binary. Error code: 5005"),
        (5005, "Context create failed, err 0x138d"),
        (5005, "Error: QNN_CONTEXT_ERROR_CREATE_FROM_BINARY: Failure"),
        (14001, "QnnDsp <E> Transport layer setup failed: 14001"),
        (14001, "deviceCreate returned 0x36b1"),
    ],
)
def test_a_code_matches_in_every_spelling(code: int, line: str) -> None:
    rule = next(coded for coded in RULES if coded.code == code)
    assert is_matched(rule, line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ERROR: [kv_cache.cc:12] no room", "no room"),
        ("E litert  : [kv_cache.cc:12] no room", "no room"),
        ("E/litert  (4711): [runtime/kv_cache.cc:12] no room", "no room"),
        ("E0000 00:00:1781.123456    4711 kv_cache.cc:12] no room", "no room"),
        ("x: INTERNAL: ERROR: [runtime/executor/kv_cache.cc:12]", ""),
        ("E 00:00:01.1 executorch:kv_cache.cc:12] no room", "no room"),
        ("2026-06-01 [E:onnxruntime:, kv_cache.cc:12 onnxruntime::F] no room", "no room"),
        ("INFO: [kv_cache.cc:12] no room", None),
        ("W litert  : [kv_cache.cc:12] no room", None),
        ("ERROR: [my_kv_cache.cc:12] no room", None),
        ("ERROR: kv_cache.cc is missing", None),
    ],
)
def test_an_error_line_names_its_source_file_in_the_form_of_each_logger(
    line: str, reason: str | None
) -> None:
    rule = make_rule(files=("kv_cache.cc", "sampler*.cc"), detail="{reason}")
    finding = find_all(line, [rule]).get("x")
    assert (finding and finding.detail) == reason


@pytest.mark.parametrize(
    "line",
    [
        *(
            "Error code: 50051",
            "error 15005",
            "err 5005.7 ms",
            "error 0x138d7",
            "listening on 5005",
        ),
        *("QnnDsp failed to write 5005 bytes", "Qnn returned 3 of 5005 tensors", "5005 errors"),
    ],
)
def test_a_longer_or_unrelated_number_does_not_match_an_error_code(line: str) -> None:
    assert not is_matched(next(coded for coded in RULES if coded.code == 5005), line)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|ab)*c", "((x)*)+", "(.*,)*z", ".*a.*b.*c.*d", "a*b+c{2,}d+", "(a{2,})+", "(a"],
)
def test_an_expression_that_may_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        check_pattern(pattern)
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        make_rule(pattern=pattern)


def test_a_rule_that_matches_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="no text"):
        make_rule()
    for text in (("e ",), ("a whole sentence", "e "), (" ab ",)):
        with pytest.raises(ValueError, match="every log"):
            make_rule(text=text)
    assert is_matched(make_rule(text=("abc",)), "x ABC x")


@pytest.mark.parametrize(
    ("old", "new", "fix"),
    [
        ('id = "no-space"', 'id = "zip-broken"', "consequence_of"),
        ("number = 1003", "number = 1004", "consequence_of"),
        ('"op-preparation", "constants-only"]', '"nothing-like-it"]', "consequence_of"),
        ('family = "datatype"', 'family = "\\u0000"', "codes.toml"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(
    old: str, new: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path("manifests") / "policies" / "errors.toml").read_text("utf-8")
    assert old in text
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "errors.toml").write_text(text.replace(old, new), "utf-8")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path))
    with pytest.raises(ManifestError, match=r"errors\.toml") as caught:
        read_rules.__wrapped__()
    assert fix in caught.value.fix
    late = [Role.SYMPTOM, Role.END, Role.COMPONENT]
    ranks = [late.index(rule.role) + 1 if rule.role in late else 0 for rule in RULES]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("naming", read_namings(), ids=lambda naming: naming.name)
def test_each_kind_of_naming_line_has_its_name_and_a_near_line_has_none(naming: Naming) -> None:
    match = re.search(naming.pattern, naming.matches)
    assert match is not None
    assert match["name"] == naming.name
    assert any(text in naming.matches.lower().encode() for text, _, _ in naming.literals)
    assert re.search(naming.pattern, naming.rejects) is None
