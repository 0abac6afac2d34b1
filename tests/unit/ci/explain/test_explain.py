"""The first cause comes first, consequences are marked, and what no rule knows is not guessed."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.explain.explain import (
    LINE_CHARS,
    Explanation,
    Finding,
    Unknown,
    explain,
    explain_text,
    find_known,
)
from ci.explain.render import annotate, render
from ci.explain.rules import Area, Place, Role, Rule, read_rules
from ci.facts.finding import Certainty, Proof, Remedy
from ci.report.annotation import Level
from tests.stand_ins.snapshots import check_snapshot

RULES = read_rules()
PROOFS = (Proof.SUGGESTED, Proof.PROVEN)
STUB = "<E> Stub lib id mismatch: expected (v2.28), detected (v2.25)"
DEVICE = "[ERROR] [Qnn ExecuTorch]: Failed to create device_handle for Backend ID 6, error=14001"
INIT = "[QnnExecuTorchBackend.cpp:92] Fail to initialize Qnn Manager"
FP16 = "[ERROR] [Qnn ExecuTorch]:  <E> The SocModel doesn't support FP16"
REFUSED = "[ERROR] [Qnn ExecuTorch]:  <E> QnnBackend_validateOpConfig failed 3110"
CUDA = "  Downloading nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux_2_27_x86_64.whl"
MAGIC = "QnnContextCustomProtocol expected magic number: 0x5678abcd but get: 0x2000000"


def say(*lines: str) -> Explanation:
    return explain_text("\n".join(lines) + "\n", RULES)


def names(findings: tuple) -> list[str]:
    return [finding.rule for finding in findings]


RED_RUN = """\
3/4 lower, run and judge 1 case, 2 at a time
  [1/1] lost.py:positions fp16 SM8650      failed       18.6 dB  not faithful
lost.py:positions  fp16    SM8650  failed  18.6       66.4  +47.8        4/4   5.90  1.30  50.2 KiB
failed  lost.py:positions fp16 SM8650
  | not faithful: known fault broadcast-add-before-norm [net.py:45] [QNN2001]
  | why: in fp16, all rows of the batch except the first are wrong
  | not accurate enough: the program has 18.8 dB of SQNR, which is much less than the
  | 30 dB required [QNN2103]
failed  lost.py:positions fp16 SM8750
  | not faithful: the error is 47.8 dB above the predicted noise [QNN2001]
FAILED: 0 passed, 1 failed, 0 unsupported, 0 cached; 91.9 s
nox > Command python -m ci test-emulator failed with exit code 1
"""
BROKEN = "not accurate enough: the program has 18.8 dB of SQNR, which is much less than the"


def test_the_findings_that_a_red_run_prints_are_the_causes_in_its_log() -> None:
    """Its own rows of failed cases are no further errors."""
    explanation = say(*RED_RUN.splitlines())
    assert [
        (cause.id, cause.label, cause.line, cause.count, cause.headline)
        for cause in explanation.causes
    ] == [
        (
            "QNN2001",
            "QNN2001",
            5,
            2,
            "not faithful: known fault broadcast-add-before-norm [net.py:45]",
        ),
        ("QNN2103", "QNN2103", 8, 1, f"{BROKEN} 30 dB required"),
    ]
    assert explanation.causes[0].fix.startswith("read `why`, `where`")
    assert names(explanation.consequences) == ["nox-failed"]
    assert (explanation.unknown, explanation.unknown_count) == ((), 0)
    # Another program's rows are errors that no rule matches, and a number alone is no finding.
    foreign_log = say("test_a   failed   1 s", "QNN2001", "see [QNN2001] for more", "[QNN2999]")
    assert (foreign_log.causes, foreign_log.unknown_count) == ((), 1)
    assert find_known(RED_RUN, RULES) is None


def test_a_line_counts_for_the_next_rule_if_the_log_is_not_that_of_the_first() -> None:
    """Whether a log contains the text that a rule needs is only known at the end of the log."""
    line = "Failed to create context from binary. Error code: 1002"
    no_memory = "QNN_COMMON_ERROR_MEM_ALLOC: no memory for the context"
    for lines, count in (
        ([line], 1),
        ([line, line], 2),
        ([line, no_memory], 2),
        ([no_memory, line], 2),
    ):
        (cause,) = say("fine", *lines).causes
        assert (cause.rule, cause.line, cause.count) == ("graph-memory", 2, count)
    for lines in ["perf --device gpu", line], [line, "perf --device gpu"]:
        assert names(say(*lines).causes) == ["context-of-other-backend"]


AVC = 'avc: denied { read } for name="adsprpc-smd-secure" permissive=0'


@pytest.mark.parametrize(
    ("second_line", "causes", "harmless"),
    [
        ("x", ["dsp-node-refused"], []),
        ("DspClient.cpp (132): open_hal_session: opened device fd 93", [], ["dsp-node-by-service"]),
        ("open_shell failed for domain 3 (errno Permission denied)", ["dsp-denied"], []),
    ],
)
def test_a_line_does_not_count_in_a_log_that_excludes_its_rule(
    second_line: str, causes: list[str], harmless: list[str]
) -> None:
    explanation = say(AVC, second_line)
    assert (names(explanation.causes), names(explanation.harmless)) == (causes, harmless)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (("open /dev/adsprpc-smd: No such file or directory",), "dsp-node-missing"),
        (("cdsprpcd.service: Failed with result 'exit-code'.",), "dsp-daemon-failed"),
        (
            (
                "sh: cdsprpcd: not found",
                "open /dev/fastrpc-cdsp: No such file or directory",
            ),
            "dsp-node-missing",
        ),
    ],
)
def test_what_a_board_lacks_is_the_cause_of_what_fastrpc_says_next(
    lines: tuple[str, ...], cause: str
) -> None:
    for consequence in (
        "QnnDsp <E> DspTransport.openSession qnn_open failed, 0x80000600, prio 100",
        "ERROR 0x80000600: Failed to compute sum on domain 3",
        "qnn_open failed, 0x80000406",
    ):
        assert names(say(*lines, consequence).causes) == [cause]


SKEL = "dynamic loading failed for file:///libQnnHtpV75Skel.so on domain 3"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            (
                "fastrpc: failed to enable unsigned PD (errno Operation not permitted)",
                "E adsprpc : Error 0x80000416: remote_handle64_open failed",
                "E QnnDsp : Transport layer setup failed: 14001",
            ),
            "unsigned-pd",
        ),
        (
            (
                f"Error 0x80000406: {SKEL} (dlerror elf header magic mismatch)",
                "<E> DspTransport.openSession qnn_open failed, 0x80000406, prio 100",
            ),
            "skel-damaged",
        ),
        (("libQnnHtpV79Skel.so: file too short", "qnn_open failed, 0x80000406"), "skel-damaged"),
        (
            ("<E> Unsupported SOC model provided: 97", "Failed to create device, error=14001"),
            "soc-unknown-to-qnn",
        ),
        (
            (
                "libMyOps.so: wrong ELF class: ELFCLASS32",
                "QnnBackend_registerOpPackage failed 4001",
            ),
            "elf-class",
        ),
        (("QnnBackend_registerOpPackage failed 4001",), "op-package-not-registered"),
        (
            ("Could not open op package path: C:\\a.dll", "registerOpPackage returned 4001"),
            "onnx-op-package",
        ),
    ],
)
def test_what_follows_from_a_refusal_is_no_second_cause(lines: tuple[str, ...], cause: str) -> None:
    assert names(say(*lines).causes) == [cause]


def test_consequences_of_a_cause_are_marked_before_and_after_it() -> None:
    for lines in ((STUB, DEVICE, INIT), (INIT, DEVICE, STUB)):
        explanation = say("fine", *lines)
        assert names(explanation.causes) == ["stub-mismatch"]
        assert explanation.causes[0].line == 2 + lines.index(STUB)
        effects = {DEVICE: "device-config", INIT: "backend-not-initialized"}
        assert [
            (consequence.rule, consequence.consequence_of)
            for consequence in explanation.consequences
        ] == [(effects[line], "stub-mismatch") for line in lines if line != STUB]


def test_causes_are_listed_in_the_order_of_their_lines() -> None:
    no_space, not_a_zip = "No space left on device", "zipfile.BadZipFile: File is not a zip file"
    space, missing = "OSError: [Errno 28] No space left on device", "KeyError: 'use_9a9w'"
    assert names(say(space, missing).causes) == ["no-space", "quantization-unknown"]
    assert names(say(missing, space).causes) == ["quantization-unknown", "no-space"]
    assert names(say(not_a_zip, no_space).consequences) == ["zip-broken"]


def test_a_symptom_is_reported_only_without_a_cause() -> None:
    assert names(say(INIT).causes) == ["backend-not-initialized"]
    explanation = say(INIT, "Segmentation fault (core dumped)")
    assert names(explanation.causes) == ["backend-not-initialized"]
    assert [
        (consequence.rule, consequence.consequence_of) for consequence in explanation.consequences
    ] == [("crashed", "backend-not-initialized")]


def test_a_refused_operator_is_a_cause_only_in_a_run_that_failed() -> None:
    assert say(FP16, REFUSED, "wrote m.pte").causes == ()
    assert names(say(FP16, REFUSED).notes) == ["op-refused-fp16", "op-refused"]
    failed = say(FP16, REFUSED, "RuntimeError: Node x was not decomposed or delegated.")
    assert names(failed.causes) == ["op-refused-fp16"]
    assert names(failed.consequences) == ["not-delegated"]
    explained = say(FP16, STUB, INIT)
    assert (names(explained.causes), names(explained.notes)) == (
        ["stub-mismatch"],
        ["op-refused-fp16"],
    )


def test_in_a_chain_of_consequences_only_the_first_is_the_cause() -> None:
    def make(name: str, role: Role = Role.CAUSE, *before: str) -> Rule:
        return Rule(
            name, Area.DEVICE, "h", "r", "", "", ("a link",),
            text=(f"a {name}",), role=role, consequence_of=before,
        )  # fmt: skip

    rules = [
        make("third", Role.CAUSE, "second"),
        make("second", Role.CAUSE, "gone", "first", "hint"),
        make("first"),
        make("hint", Role.HINT),
    ]
    explanation = explain_text("a third\na second\na hint\na first\n", rules)
    assert (names(explanation.causes), names(explanation.notes)) == (["first"], ["hint"])
    assert [
        (consequence.rule, consequence.consequence_of) for consequence in explanation.consequences
    ] == [
        ("third", "second"),
        ("second", "first"),
    ]


def test_the_component_that_reports_an_error_counts_only_if_nothing_else_is_known() -> None:
    line = "ERROR: [tensor_buffer.cc:300] Failed to lock"
    alone = say(line, line)
    assert [(cause.rule, cause.count) for cause in alone.causes] == [("at-litert-buffer", 2)]
    assert alone.unknown == ()
    beside_cause = say(line, STUB)
    assert (names(beside_cause.causes), beside_cause.consequences) == (["stub-mismatch"], ())
    assert [unknown.text for unknown in beside_cause.unknown] == [line]
    assert find_known(line, read_rules()) is None


def test_unknown_error_lines_are_listed_and_not_guessed() -> None:
    explanation = say(
        "  frobnicator: fatal error 77 ", "all 3 tests passed, 0 errors", *["E: failed"] * 30
    )
    assert explanation.causes == ()
    assert explanation.unknown[0].line == 1
    assert explanation.unknown[0].text == "frobnicator: fatal error 77"
    assert (len(explanation.unknown), explanation.unknown_count) == (20, 31)
    assert "31 other error lines" in render(explanation)


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ((CUDA, "OSError: [Errno 28] No space left on device"), "no-space"),
        ((CUDA,), "torch-cuda"),
        ((CUDA, INIT), "torch-cuda"),
        ((INIT,), ""),
        ((MAGIC, "fine"), ""),
    ],
)
def test_a_failure_is_identified_by_its_cause_or_else_by_a_hint(
    lines: tuple[str, ...], rule: str
) -> None:
    cause = find_known("\n".join(lines), RULES)
    assert (cause.rule if cause else "") == rule


@pytest.mark.parametrize(
    "line",
    [
        *("error: x", "a fatal flaw", "failed", "a failure", "an exception", "unable to run"),
        *("abort", "aborted", "aborting", "cannot run", "can't run"),
        *("RuntimeException", "SIGSEGV", "got SIGABRT"),
        *("2026-01-01 [E:runtime:, a.cc:1] x", "E/qnn ( 12): x", "1-1 0:0 12 13 E qnn : x"),
    ],
)
def test_each_form_of_an_error_line_is_listed_as_unknown_without_a_rule(line: str) -> None:
    for text in (line, line.upper() if "E:" not in line else line):
        assert [(unknown.line, unknown.text) for unknown in say(text, "", "x", text).unknown] == [
            (1, text), (4, text),
        ]  # fmt: skip
    assert say("x", "share/qnn", "erroneous", "defailed", "x").unknown == ()


def test_a_line_belongs_to_the_most_specific_rule() -> None:
    missing = "libc++.so.1: cannot open shared object file: No such file or directory"
    explanation = say(f"Cannot Open QNN library libQnnHtp.so, with error: {missing}")
    assert names(explanation.causes) == ["libcxx-missing"]
    assert explanation.consequences == ()


@pytest.mark.parametrize(
    "line",
    [
        *('  File "x.py", line 1, in fail: error', "  raise error", "return error", "except error"),
        *("  at a.b.error(C.java:1)", "# error: x", "  | error: x", "12 | error: x"),
        *("no errors", "0 failures", "without error", "errors: 0", "failed=0", '"errors": 0'),
        *("error: deprecated", "the above exception was fatal"),
        *("[9/9] Building abort.cpp.o", "cp a/error/b.h c", "error.cpp compiled"),
    ],
)
def test_quoted_code_is_no_error_line(line: str) -> None:
    assert say("x", line).unknown == ()


@pytest.mark.parametrize(
    "escape",
    [b"\x1b[1;31m", b"\x1b[0m", b"\x1b[K", b"\x1b]0;title\x07", b"\x1b]8;;x\x1b\\", b"\x1bM"],
)
def test_an_error_with_an_escape_sequence_inside_a_word_is_found(escape: bytes) -> None:
    explanation = explain("log", [b"frob: fatal er" + escape + b"ror 77\n"], RULES)
    assert [unknown.text for unknown in explanation.unknown] == ["frob: fatal error 77"]


@pytest.mark.parametrize(
    "log",
    [
        f"{STUB}\r\n{DEVICE}\r\n".encode(),
        f"{STUB}\r{DEVICE}\r".encode(),
        f"\x1b[1;31m{STUB[:9]}\x1b[0m{STUB[9:]}\x1b[m\n".encode(),
        f"03-13 17:53:30.249 29043 29043 E [Qnn ExecuTorch]: {STUB}\n".encode(),
        f"2026-11-22T12:25:43.1230657Z {STUB}\n".encode(),
        f"\ufeff{STUB}\r\n{DEVICE}".encode("utf-16-le"),
        f"\ufeff{STUB}\r\n{DEVICE}".encode("utf-16-be"),
        b"\xff\x00\x80 \xc3(\n" + STUB.encode() + b"\xfe\n\x00\x00",
        STUB.encode(),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
def test_any_line_ending_encoding_or_chunk_size_of_a_log_gives_the_same_cause(
    log: bytes, size: int
) -> None:
    parts = [log[at : at + size] for at in range(0, len(log), size)]
    if size == 1:
        parts = [log[:2], *parts[2:]]
    assert names(explain("log", parts, RULES).causes) == ["stub-mismatch"]


def test_the_expressions_of_rules_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = "\n".join(rule.matches for rule in RULES)
    first = names(explain_text(log, RULES).causes)
    name = "sre_compile" if sys.version_info < (3, 11) else "re._compiler"
    compiler = importlib.import_module(name)
    compile_expression, compiled = compiler.compile, list[object]()

    def note(expression: object, flags: int = 0) -> object:
        compiled.append(expression)
        return compile_expression(expression, flags)

    re.purge()  # what Python's own cache has depends on earlier tests
    monkeypatch.setattr(compiler, "compile", note)
    assert names(explain_text(log, RULES).causes) == first
    assert compiled == []


@pytest.mark.parametrize(
    ("encoding", "end"),
    [("utf-8", "\r\n"), ("utf-8-sig", "\r"), ("utf-16-le", "\r\n"), ("utf-16-be", "\n")],
)
@pytest.mark.parametrize(
    ("before", "after", "is_read"),
    [
        (0, 9 << 16, True),
        ((1 << 16) - LINE_CHARS, 9 << 16, True),
        (9 << 16, (1 << 16) - LINE_CHARS, True),
        (9 << 16, 0, True),
        (1 << 16, 1 << 16, True),
        (9 << 16, 9 << 16, False),
    ],
)
def test_numbers_and_texts_are_right_after_a_very_long_line(
    encoding: str, end: str, before: int, after: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cause counts once in a long line, and is not found in the middle of a longer one."""
    monkeypatch.setattr("ci.explain.explain.LINE_BYTES", 4 << 16)
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    lines = ["frob: fatal error", f"{'x' * before} {STUB} {'y' * after}", "b", f"{DEVICE} é"]
    log = (mark + end.join(lines) + end).encode(encoding)
    explanation = explain(
        "log", (log[at : at + (1 << 16)] for at in range(0, len(log), 1 << 16)), RULES
    )
    device = (*explanation.causes, *explanation.consequences)[-1]
    assert (explanation.lines, "stub-mismatch" in names(explanation.causes)) == (4, is_read)
    assert [(cause.line, cause.count) for cause in explanation.causes] == [(2 if is_read else 4, 1)]
    assert (device.line, device.text) == (4, f"{DEVICE} é")
    assert explanation.unknown == (Unknown(1, lines[0]),)


def test_lines_of_a_log_stay_whole_at_chunk_borders() -> None:
    """A chunk that ends within a line waits for the rest."""
    log = f"fine\n{STUB}\n".encode()
    for cut in range(len(log) + 1):
        explanation = explain("log", [log[:cut], log[cut:]], RULES)
        assert (explanation.lines, [cause.line for cause in explanation.causes]) == (2, [2])
    assert explain("log", [b"a\n", b" "], RULES).lines == 2


def find(number: int, role: Role = Role.CAUSE, **fields: Any) -> Finding:
    """A finding of which each text has this number."""
    texts = {
        "certainty": Certainty.KNOWN,
        "remedies": (Remedy(text=f"remedy {number}", proof=PROOFS[number % 2]),),
        "source": (f"link {number}", f"page {number}"),
        "detail": f"detail {number}" * (number % 2),
        "place": Place.UNKNOWN,
        "is_seen": True,
        **fields,
    }
    return Finding(
        id=f"QNN{number}",
        rule=f"rule-{number}",
        role=role,
        headline=f"headline {number}",
        line=number,
        text=f"text {number}",
        **texts,
    )


def test_an_explanation_of_two_logs_reads_as_its_snapshot() -> None:
    with_causes = Explanation(
        file="first.log",
        lines=90,
        causes=(find(1, versions="QNN 2.1"), find(2, is_seen=False, certainty=Certainty.GUESS)),
        consequences=(
            find(3, consequence_of="rule-1"),
            find(4, consequence_of="rule-1"),
            find(5, Role.SYMPTOM, consequence_of="rule-2"),
        ),
        notes=(find(6, Role.HINT), find(7, Role.HINT, consequence_of="rule-6")),
        harmless=(find(8, Role.HARMLESS), find(9, Role.HARMLESS)),
        unknown=(Unknown(10, "an odd line"), Unknown(11, "x" * 300)),
        unknown_count=12,
    )
    with_cause = Explanation(file="other.log", lines=1, causes=(find(20),), unknown_count=0)
    with_unknown = Explanation(
        file="good.log", lines=2, unknown=(Unknown(1, "odd"),), unknown_count=1
    )
    only_refused = Explanation(
        file="refused.log",
        lines=3,
        notes=(find(21, Role.HINT), find(22, Role.HINT, consequence_of="rule-21")),
    )
    text = "".join(
        [
            *map(render, (with_causes, with_cause, with_unknown, only_refused)),
            *(
                f"{note.title}: {note.message}\n"
                for note in annotate([with_causes, with_unknown, with_cause])
            ),
        ]
    )
    assert {note.level for note in annotate([with_causes, with_cause])} == {Level.ERROR}
    check_snapshot(Path(__file__).parent / "snapshots" / "explanation.txt", text)


FASTRPC = "fastrpc_apps_user.c:1452: Error 0x80000001: remote_handle64_invoke failed"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (f"{FASTRPC} (errno Connection reset by peer)", "fastrpc-ended"),
        (f"{FASTRPC} (errno 104)", "fastrpc-ended"),
        (f"{FASTRPC} (errno Cannot allocate memory)", "fastrpc-no-memory"),
        (f"{FASTRPC} (errno No space left on device)", "fastrpc-no-memory"),
        (f"{FASTRPC} (errno Permission denied)", "fastrpc-permission"),
        ("libQnnHtp.so: cannot open shared object file: Permission denied", "library-unreadable"),
        ("x.so: failed to map segment from shared object: Operation not permitted", "map-refused"),
        ("x.so: failed to map segment from shared object: Cannot allocate memory", "map-memory"),
        ("inotify_add_watch failed: No space left on device", ""),
        ("binder: transaction failed: Connection refused", ""),
        ("curl: (7) Failed to connect: Connection refused", "connection-refused"),
        ("tar: x: Cannot write: No space left on device", "no-space"),
        ("Fatal signal 7 (SIGBUS), code 1 (BUS_ADRALN), fault addr 0x7a51c01003", "bus-alignment"),
        ("Fatal signal 7 (SIGBUS), code 2 (BUS_ADRERR), fault addr 0x7a51c000", "library-crash"),
        ("Fatal signal 7 (SIGBUS), code -6 (SI_TKILL)", "crashed"),
        ("Fatal signal 7 (SIGBUS), code 4 (BUS_MCEERR_AR)", "bus-hardware"),
        ("Fatal signal 11 (SIGSEGV), code 1 (SEGV_MAPERR), fault addr 0x0", "crashed-null"),
        ("Fatal signal 11 (SIGSEGV), code 1 (SEGV_MAPERR), fault addr 0x7a51c00000", "crashed"),
        ("Fatal signal 31 (SIGSYS), code 1 (SYS_SECCOMP)", "system-call-refused"),
        ("ERROR: [qnn_manager.cc:494] Failed to create QNN context: 1002", "graph-memory"),
        ("I qnn : [Qnn] failed to call device create, 14001", "device-config"),
        ("E litert : [compiled_model.cc:90] Failed to build graph: 1002", "litert-status"),
        ("E litert : [compiled_model.cc:90] Failed to start the transport: 4000", "litert-status"),
        ("Status Message: QNN graph execute error. Error code: 6999", "gpu-undefined"),
    ],
)
def test_a_text_or_number_belongs_to_the_layer_that_wrote_it(line: str, cause: str) -> None:
    assert names(say("x", line).causes) == ([cause] if cause else [])


@pytest.mark.parametrize(
    ("lines", "operators"),
    [
        (("could not create op: q::A", '"node_3" generated: could not create op'), ["node_3"]),
        (('"node_3" generated: could not create op', "could not create op: q::A"), ["node_3"]),
        (("graph prepare failed 12", '"node_3" generated: could not create op'), ["node_3"]),
        (("Visiting: a_1, a", "Visiting: b_2, b", "Failed to finalize graph"), ["b_2"]),
        (("Visiting: a_1, a", "Failed to finalize graph", "Visiting: b_2, b"), ["a_1"]),
        (("Visiting: a_1, a", "could not create op", '"c" generated: could not create op'), ["c"]),
    ],
)
def test_the_operator_is_shown_wherever_the_log_names_it(
    lines: tuple[str, ...], operators: list[str]
) -> None:
    explanation = say(*lines)
    named = explanation.operators_of(explanation.causes[0])
    assert [operator.name for operator in named] == operators
    for operator in named:
        assert lines[operator.line - 1].find(operator.name) >= 0
        assert f"names   {operator.name} (line {operator.line}" in render(explanation)


def test_a_pass_that_failed_is_named() -> None:
    explanation = say("Exception: An error occurred when running the 'LayoutTransform' pass after")
    assert "LayoutTransform" in explanation.causes[0].headline


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("Linux board 6.6.65 #1 SMP PREEMPT aarch64 GNU/Linux", "aarch64-oe-linux"),
        ("/opt/qairt/lib/aarch64-oe-linux-gcc11.2", "aarch64-oe-linux"),
        ("/home/dev/x.py, aarch64", "aarch64-oe-linux"),
        ("/home/dev/x.py", "x86_64-linux-clang"),
        ("/opt/qairt/bin/x86_64-linux-clang for aarch64-android", "x86_64-linux-clang"),
    ],
)
def test_a_log_that_names_aarch64_gets_libraries_for_aarch64(where: str, says: str) -> None:
    missing = "libQnnHtp.so: cannot open shared object file: No such file or directory"
    assert says in say(where, missing).causes[0].fix


ANDROID_FRAME = (
    "  #02 pc 0000000000f2e4d8  /data/app/com.x/base.apk!libfrob.so (offset 0x1a84000) "
    "(frob::Engine::load(int)+120) (BuildId: 4d8)"
)
FRAMES = (
    (ANDROID_FRAME, "frob::Engine::load in libfrob.so"),
    (
        "A  #11 pc 00000000007cfd2c  /data/app/com.x/lib/arm64/libfrob.so",
        "an unnamed function in libfrob.so",
    ),
    (
        "#2  0x00007f5c8a1b in frob::load (this=0x0) at src/engine.cpp:41",
        "frob::load in engine.cpp, whose argument this is a null pointer",
    ),
    ("#3  0x00007f5c8a1b in frob_load () from /opt/frob/libfrob.so", "frob_load in libfrob.so"),
    ("    #1 0x55d0c1 in frob::load() /src/engine.cpp:41:7", "frob::load in engine.cpp"),
    (
        "#0 FloatToHalf(size=262144, src=0x0)",
        "FloatToHalf in the program, whose argument src is a null pointer",
    ),
    ("#0 FloatToHalf(src=0x0f00, size=0)", "FloatToHalf in the program"),
    ("* frob::Graph::prepare() (/data/lib/libfrob.so)", "frob::Graph::prepare in libfrob.so"),
    ("/opt/libfrob.so(frob_load+0x1a) [0x7f5c8a1b]", "frob_load in libfrob.so"),
    ("    frame #0: 0x0102 libfrob.dylib`frob::load(int) + 1212", "frob::load in libfrob.dylib"),
    ("C  [libfrob.so+0x123e0]  frob_load+0x3a0", "frob_load in libfrob.so"),
    (
        "Faulting module name: frob.dll, version: 1.2.0.0",
        "an unnamed function in frob.dll",
    ),
)
SYSTEM_FRAMES = (
    "A  #10 pc 00000000000c3d20  /apex/com.android.runtime/lib64/bionic/libc.so (memcpy+208)",
    "#0  0x00007f5c8a1b in raise () from /lib/x86_64-linux-gnu/libc.so.6",
    "#1  __pthread_kill_implementation (no_tid=0) at ./nptl/pthread_kill.c:44",
    "#1 install the package (optional)",
    "see #2 for more",
    "A  #03 pc 00000000000c3d20  /data/app/com.x/libfrob.so (et_pal_abort+8)",
    "A  #04 pc 00000000000c3d40  /data/app/com.x/libfrob.so (torch::executor::runtime_abort()+8)",
)


@pytest.mark.parametrize(("line", "frame"), FRAMES)
def test_the_first_frame_that_is_not_the_systems_is_where_a_program_crashed(
    line: str, frame: str
) -> None:
    explanation = say("Segmentation fault (core dumped)", *SYSTEM_FRAMES, line)
    (cause,) = explanation.causes
    assert (cause.rule, cause.detail, cause.line) == ("at-native-frame", frame, 9)
    assert names(explanation.consequences) == ["crashed"]
    # What a line tells of the crash itself is its cause, and the frame its place.
    null = "Fatal signal 11 (SIGSEGV), code 1 (SEGV_MAPERR), fault addr 0x0"
    (cause,) = say(null, *SYSTEM_FRAMES, line).causes
    assert (cause.rule, cause.raised_in) == ("crashed-null", frame)


def test_frames_of_the_system_alone_are_no_cause() -> None:
    explanation = say("Segmentation fault (core dumped)", *SYSTEM_FRAMES)
    assert (names(explanation.causes), names(explanation.consequences)) == (["crashed"], [])


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/venv/lib/python3.11/site-packages/frob/engine.py", line 41, in load',
    "    return self.open(path)",
    "           ^^^^^^^^^^^^^^^",
    "frob.errors.FrobError: no engine of size 3",
)


@pytest.mark.parametrize(
    ("lines", "raised_in", "within"),
    [
        (
            TRACEBACK,
            "frob/engine.py, line 41, in load: return self.open(path)",
            " in the package frob",
        ),
        (
            TRACEBACK[:2] + TRACEBACK[4:],
            "frob/engine.py, line 41, in load",
            " in the package frob",
        ),
        (TRACEBACK[4:], "", ""),
        ((*TRACEBACK[:4], *["later"] * 9, TRACEBACK[4]), "", ""),
        (
            ('  File "/w/run.py", line 3, in <module>', "    frob()", TRACEBACK[4]),
            "/w/run.py, line 3, in <module>: frob()",
            "",
        ),
        (
            ('  File "/opt/sdk/lib/python/frob/ir.py", line 7, in load', TRACEBACK[4]),
            "frob/ir.py, line 7, in load",
            " in the package frob",
        ),
    ],
)
def test_an_exception_that_no_rule_knows_is_shown_with_the_line_that_raised_it(
    lines: tuple[str, ...], raised_in: str, within: str
) -> None:
    (cause,) = say(*lines).causes
    assert (
        cause.headline == f"a Python program stopped{within} with an exception that no rule knows"
    )
    assert (cause.rule, cause.detail, cause.raised_in) == (
        "at-python",
        "frob.errors.FrobError no engine of size 3",
        raised_in,
    )


def test_a_library_that_a_program_on_android_lacks_is_to_be_pushed() -> None:
    lacking = 'library "libQnnHtp.so" not found: needed by main executable'
    (cause,) = explain_text(f'CANNOT LINK EXECUTABLE "./app": {lacking}\n', RULES).causes
    assert (cause.rule, cause.place) == ("qnn-library-missing", Place.DEVICE)
    assert cause.fix.startswith("push the library in the line")


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        (
            ("CMake Error at frob.cmake:12 (message):", "  no frob at", "  /opt/frob", "", "--"),
            "frob.cmake:12: no frob at /opt/frob",
        ),
        (("CMake Error at frob.cmake:12 (message):", "later"), "frob.cmake:12"),
        (("CMake Error at frob.cmake:12 (message):",), "frob.cmake:12"),
        (
            (
                "Execution failed for task ':app:frob'.",
                "> A frob failed",
                "   > no frob",
                "",
                "* Try:",
            ),
            ":app:frob: A frob failed no frob",
        ),
        (("CMake Error at f.cmake:1 (message):", f"  {'no ' * 999}"), f"f.cmake:1: {'no ' * 83}n"),
    ],
)
def test_the_reason_that_cmake_and_gradle_print_below_the_place_belongs_to_it(
    lines: tuple[str, ...], detail: str
) -> None:
    (cause,) = say(*lines).causes
    assert cause.detail == detail


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            (
                '  File "/v/site-packages/executorch/backends/qualcomm/qnn_preprocess.py", line 9',
                "    visitors[node.target.__name__]",
                "KeyError: 'aten.frob.default'",
            ),
            "qnn-no-builder",
        ),
        (
            (
                "INFO:qnn_preprocess.py: ready",
                '  File "/v/site-packages/frob/passes.py", line 9',
                "    table[name]",
                "KeyError: 'llama.frob'",
            ),
            "at-python",
        ),
        (
            (
                "  Getting requirements to build wheel did not run successfully.",
                "      ModuleNotFoundError: No module named 'frob'",
            ),
            "build-isolation",
        ),
        (
            (
                "  Getting requirements to build wheel did not run successfully.",
                "went on without it",
                "ModuleNotFoundError: No module named 'frob'",
            ),
            "module-missing",
        ),
    ],
)
def test_an_exception_belongs_to_the_code_that_raised_it(
    lines: tuple[str, ...], cause: str
) -> None:
    assert names(say(*lines).causes) == [cause]


STOPPED = "ninja: build stopped: subcommand failed."
FOREIGN = "/x/frob.cpp:33:5: error: array has incomplete element of frob"
QNN_ERROR = "QnnDsp <E> the frob of this graph is not known"
NO_REASON = "[ERROR] [Qnn ExecuTorch]: Fail to initialize Qnn Manager"
CRASH = "Segmentation fault (core dumped)"
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: 'graph.json'"


@pytest.mark.parametrize(
    ("lines", "causes", "consequences"),
    [
        ((STOPPED,), ["build-stopped"], []),
        ((FOREIGN, STOPPED), ["at-compiler"], ["build-stopped"]),
        ((CRASH, NO_FILE), ["crashed"], ["file-missing"]),
        ((NO_FILE, CRASH), ["file-missing"], ["crashed"]),
        ((QNN_ERROR, NO_REASON), ["at-qnn-log"], ["backend-not-initialized"]),
    ],
)
def test_what_only_ends_a_step_is_the_cause_if_nothing_else_is(
    lines: tuple[str, ...], causes: list[str], consequences: list[str]
) -> None:
    explanation = say(*lines)
    assert (names(explanation.causes), names(explanation.consequences)) == (causes, consequences)
