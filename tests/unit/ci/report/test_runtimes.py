"""Reports of several runtimes are compared by their own figures: planted here, nothing is run."""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec
import pytest
from msgspec import structs

from ci.facts.finding import Certainty, Proof, advise
from ci.facts.kinds import METRIC_ERROR, UNRECORDED
from ci.report.columns import COLUMNS
from ci.report.document import escape_markdown, render_markdown, render_text
from ci.report.html import render_document
from ci.report.runtimes import NAME_HEIGHT, RING, RuntimesReport, make_document, make_report
from ci.report.schema import (
    AskedFacts,
    Case,
    Estimate,
    FallbackOp,
    JudgementFacts,
    PredictedTime,
    ProgramFacts,
    Status,
)
from ci.report.text import clean_name
from tests.stand_ins import reports

Time = tuple[float, float, float] | float | None  # likely, low and high, or only a bound


def make_case(
    scheme: str,
    time: Time = None,
    *,
    status: Status = Status.PASSED,
    soc: str = "SM8650",
    sqnr_db: float | None = 40.0,
    max_abs: float | None = None,
    size: int | None = 1000,
    on_cpu: tuple[str, ...] = (),
    remedy: str = "",
    proof: Proof = Proof.PROVEN,
    no_time: str = "",
    made_inputs: str = "",
    device: str = "x",
    model: str = "net.py:net",
    metric: float | None = None,
) -> Case:
    """A case of a runtime."""
    times: tuple[PredictedTime, ...] = ()
    if isinstance(time, tuple):
        likely, low, high = time
        times = (
            PredictedTime(device=device, ms=likely, low_ms=low, high_ms=high, median_error=0.1),
        )
    elif time is not None:
        bound = PredictedTime(
            device=device, ms=time, low_ms=0.0, high_ms=time, median_error=0.1, is_bound=True
        )
        times = (bound,)
    findings = ()
    if status is Status.FAILED:
        advice = advise(fix=remedy, proof=proof) if remedy else advise()
        findings = (UNRECORDED.find(f"{scheme} is wrong", advice=advice),)
    program = ProgramFacts(
        pte_bytes=size,
        fallback_nodes=len(on_cpu),
        fallback_ops=tuple(FallbackOp(op=name, reason="") for name in on_cpu),
        estimate=Estimate(times=times, unknown=no_time),
    )
    judged = JudgementFacts(
        status=status, sqnr_db=sqnr_db, max_abs=max_abs, findings=findings, metric=metric
    )
    asked_facts = AskedFacts(made_inputs=made_inputs)
    return Case(
        model=model,
        scheme=scheme,
        soc=soc,
        asked=asked_facts,
        program=program,
        judgement=judged,
    )


def compare(not_run: dict[str, str] | None = None, **cases: list[Case]) -> RuntimesReport:
    """The comparison of the cases of each runtime."""
    report_by_runtime = {runtime: reports.make_report(rows) for runtime, rows in cases.items()}
    return make_report(report_by_runtime, dict.fromkeys(report_by_runtime, "place"), not_run or {})


FAST, NEAR, SLOW = (1.0, 0.9, 1.1), (1.15, 1.05, 1.3), (3.0, 2.5, 3.5)
RED = Status.FAILED
COMPARISONS: dict[str, tuple[dict[str, Any], str]] = {
    "one is the best of all": (
        {
            "executorch": [make_case("8a8w", FAST, size=900, sqnr_db=45.0)],
            "onnxruntime": [make_case("u8", SLOW)],
        },
        (
            "fastest: ExecuTorch 8a8w (1 ms, 0.9 to 1.1); smallest: ExecuTorch 8a8w (900 B);"
            " most accurate: ExecuTorch 8a8w (45.0 dB)"
        ),
    ),
    "two times overlap": (
        {"executorch": [make_case("8a8w", FAST)], "onnxruntime": [make_case("u8", NEAR)]},
        (
            "fastest: ExecuTorch 8a8w (1 ms, 0.9 to 1.1), which cannot be distinguished from ONNX"
            " Runtime u8; smallest: ExecuTorch 8a8w (0.98 KiB), as small"
            " as ONNX Runtime u8; most accurate: ExecuTorch 8a8w (40.0 dB), which cannot be"
            " distinguished from ONNX Runtime u8"
        ),
    ),
    "inputs that are not the user's": (
        {
            "executorch": [make_case("8a8w", sqnr_db=45.0, made_inputs="shuffled inputs")],
            "litert": [make_case("fp16", made_inputs="random inputs")],
        },
        (
            "most accurate: ExecuTorch 8a8w (45.0 dB); random inputs and shuffled inputs: the"
            " comparison proves arithmetic, not accuracy"
        ),
    ),
    "a bound starts at 0": (
        {"executorch": [make_case("8a8w", 2.0)], "onnxruntime": [make_case("u8", FAST)]},
        (
            "fastest: ONNX Runtime u8 (1 ms, 0.9 to 1.1), which cannot be distinguished from"
            " ExecuTorch 8a8w;"
        ),
    ),
    "no time for one": (
        {"executorch": [make_case("8a8w", SLOW)], "litert": [make_case("fp16", size=None)]},
        (
            "fastest: ExecuTorch 8a8w (3 ms, 2.5 to 3.5); smallest: ExecuTorch 8a8w (0.98 KiB);"
            " most accurate: ExecuTorch 8a8w (40.0 dB), which cannot be distinguished from LiteRT"
            " fp16; no time is known for LiteRT fp16"
        ),
    ),
    "no time for two, with the reasons": (
        {
            "executorch": [make_case("8a8w", SLOW)],
            "onnxruntime": [
                make_case("u8", no_time="1 node runs on the CPU"),
                make_case("fp16", no_time="1 node runs on the CPU"),
            ],
            "litert": [make_case("fp16", no_time="too few measurements")],
        },
        (
            "no time is known for ONNX Runtime u8 and ONNX Runtime fp16 (1 node runs on the CPU),"
            " LiteRT fp16 (too few measurements): measure it on a device, docs/guides/device.md"
        ),
    ),
    "no time for two schemes, with one reason": (
        {
            "executorch": [
                make_case("8a8w", SLOW),
                make_case("16a8w", no_time="too few measurements in 16a8w"),
            ],
            "onnxruntime": [make_case("u16a8w", no_time="too few measurements in u16a8w")],
        },
        (
            "no time is known for ExecuTorch 16a8w and ONNX Runtime u16a8w (too few measurements in"
            " 16a8w and u16a8w): measure it on a device, docs/guides/device.md"
        ),
    ),
    "no time at all, with the reason": (
        {"litert": [make_case(name, no_time="too few measurements") for name in ("fp16", "asis")]},
        (
            "smallest: LiteRT fp16 (0.98 KiB), as small as LiteRT asis; most accurate: LiteRT fp16"
            " (40.0 dB), which cannot be distinguished from LiteRT asis; no time is known (too few"
            " measurements): measure it on a device, docs/guides/device.md"
        ),
    ),
    "no time at all": (
        {"litert": [make_case("fp16", size=9), make_case("asis")]},
        (
            "smallest: LiteRT fp16 (9 B); most accurate: LiteRT fp16 (40.0 dB), which cannot be"
            " distinguished from LiteRT asis; no time is known"
        ),
    ),
    "all red": (
        {"executorch": [make_case("8a8w", status=RED)], "litert": [make_case("fp16", status=RED)]},
        "no row passed (ExecuTorch 8a8w: 8a8w is wrong; LiteRT fp16: fp16 is wrong)",
    ),
    "all red for the same reason": (
        {
            "executorch": [make_case("fp16", status=RED), make_case("8a8w", status=RED)],
            "onnxruntime": [make_case("fp16", status=RED)],
            "litert": [make_case("fp16", status=RED)],
        },
        (
            "no row passed (ExecuTorch fp16, ONNX Runtime fp16, LiteRT fp16: fp16 is wrong;"
            " ExecuTorch 8a8w: 8a8w is wrong)"
        ),
    ),
    "a faster one is red": (
        {
            "executorch": [make_case("8a8w", FAST, status=RED, remedy="expand the constant")],
            "onnxruntime": [make_case("u8", SLOW)],
        },
        (
            "ExecuTorch 8a8w would be faster (1 ms, 0.9 to 1.1), but is red: 8a8w is wrong; fix:"
            " expand the constant"
        ),
    ),
    "a faster one and a smaller one are red": (
        {
            "executorch": [
                make_case("8a8w", SLOW),
                make_case("16a8w", FAST, status=RED, remedy="a"),
                make_case("fp16", (1.0, 0.8, 1.05), status=RED),
            ],
            "litert": [make_case("fp16", size=10, status=RED)],
        },
        (
            "ExecuTorch 16a8w would be faster (1 ms, 0.9 to 1.1), but is red: 16a8w is wrong; fix:"
            " a; LiteRT fp16 would be smaller (10 B), but is red: fp16 is wrong"
        ),
    ),
    "a red one would be better in both": (
        {
            "executorch": [make_case("8a8w", SLOW)],
            "onnxruntime": [make_case("u8", FAST, size=10, status=RED)],
        },
        "ONNX Runtime u8 would be faster and smaller (1 ms, 0.9 to 1.1), but is red: u8 is wrong",
    ),
    "the remedy is another row": (
        {
            "executorch": [make_case("fp16", SLOW)],
            "onnxruntime": [
                make_case(
                    "u8", FAST, size=10, status=RED, remedy="lower it in fp16", proof=Proof.TRIED
                )
            ],
        },
        "ONNX Runtime u8 would be faster and smaller (1 ms, 0.9 to 1.1), but is red: u8 is wrong",
    ),
    "all red, one with a proven cure": (
        {
            "executorch": [make_case("8a8w", SLOW, status=RED, remedy="expand it")],
            "litert": [make_case("fp16", status=RED)],
        },
        (
            "no row passed (ExecuTorch 8a8w: 8a8w is wrong; LiteRT fp16: fp16 is wrong); ExecuTorch"
            " 8a8w: a proven cure: expand it"
        ),
    ),
    "a model that all refuse": (
        {
            "executorch": [make_case("fp16", status=RED, size=None, sqnr_db=None, remedy="a")],
            "litert": [make_case("fp16", status=RED, size=None, sqnr_db=None, remedy="a")],
        },
        "no row passed: fp16 is wrong; fix: a",
    ),
    "all red, some with proven cures": (
        {
            "executorch": [
                make_case("8a8w", FAST, status=RED, sqnr_db=-3.0, remedy="expand it"),
                make_case("fp16", status=RED, sqnr_db=39.0, remedy="expand it"),
            ],
            "onnxruntime": [make_case("u8", status=RED, sqnr_db=None, remedy="name it")],
        },
        (
            "; ExecuTorch 8a8w, ExecuTorch fp16: a proven cure: expand it; ONNX Runtime u8: a"
            " proven cure: name it"
        ),
    ),
    "a red one is faster than the only green one whose time is known": (
        {
            "executorch": [make_case("8a8w", SLOW)],
            "onnxruntime": [make_case("u8", FAST, status=RED)],
            "litert": [make_case("fp16", no_time="1 node runs on the CPU")],
        },
        (
            "ONNX Runtime u8 would be faster (1 ms, 0.9 to 1.1) than ExecuTorch 8a8w, but is red:"
            " u8 is wrong"
        ),
    ),
    "sizes that differ by less than is shown": (
        {
            "executorch": [make_case("8a8w", size=54_272)],
            "onnxruntime": [make_case("u8", size=54_290)],
        },
        "smallest: ExecuTorch 8a8w (53.0 KiB), as small as ONNX Runtime u8;",
    ),
    "times of two devices": (
        {
            "executorch": [make_case("fp16", FAST, device="a phone")],
            "onnxruntime": [make_case("u8", SLOW, device="a board")],
        },
        (
            "fastest: ExecuTorch fp16 (1 ms, 0.9 to 1.1); these times are of different devices:"
            " ExecuTorch fp16 on a phone, ONNX Runtime u8 on a board;"
        ),
    ),
    "an SQNR that is no number": (
        {
            "executorch": [make_case("8a8w", FAST, sqnr_db=float("nan"))],
            "onnxruntime": [make_case("u8", SLOW, sqnr_db=20.0)],
        },
        "most accurate: ONNX Runtime u8 (20.0 dB)",
    ),
    "equal outputs are more accurate than any SQNR": (
        {
            "executorch": [make_case("8a8w", SLOW, sqnr_db=99.0)],
            "litert": [make_case("fp16", sqnr_db=None, max_abs=0.0)],
        },
        (
            "fastest: ExecuTorch 8a8w (3 ms, 2.5 to 3.5); smallest: ExecuTorch 8a8w (0.98 KiB), as"
            " small as LiteRT fp16; most accurate: LiteRT fp16 (exact); no time is known for LiteRT"
            " fp16"
        ),
    ),
    "a single row": (
        {"litert": [make_case("fp16", SLOW, on_cpu=("CUMSUM",))]},
        "LiteRT fp16 passed (3 ms, 2.5 to 3.5; 0.98 KiB; 40.0 dB)",
    ),
    "what is neither green nor red is no cure and no choice": (
        {
            "executorch": [make_case("8a8w", SLOW)],
            "onnxruntime": [make_case("u8", FAST, size=1, status=Status.UNSUPPORTED)],
        },
        "only ExecuTorch 8a8w passed (3 ms, 2.5 to 3.5; 0.98 KiB; 40.0 dB)",
    ),
    "all rows are equal": (
        {
            "executorch": [make_case("8a8w", FAST)],
            "onnxruntime": [make_case("u8", FAST)],
            "litert": [make_case("fp16", FAST)],
        },
        (
            "fastest: ExecuTorch 8a8w (1 ms, 0.9 to 1.1), which cannot be distinguished from ONNX"
            " Runtime u8, LiteRT fp16; smallest: ExecuTorch 8a8w (0.98 KiB), as small as ONNX"
            " Runtime u8, LiteRT fp16; most accurate: ExecuTorch 8a8w (40.0 dB), which cannot be"
            " distinguished from ONNX Runtime u8, LiteRT fp16"
        ),
    ),
    "a mixture's name is no pattern in a reason": (
        {"executorch": [make_case("8a8w(+", SLOW), make_case("a(+b", no_time="no a(+b")]},
        "no time is known for ExecuTorch a(+b (no a(+b): measure it on a device",
    ),
    "a red one may be as slow": (
        {
            "executorch": [make_case("8a8w", NEAR, status=RED)],
            "onnxruntime": [make_case("u8", FAST)],
        },
        "only ONNX Runtime u8 passed (1 ms, 0.9 to 1.1; 0.98 KiB; 40.0 dB)",
    ),
    "the only one that passed has no time and equal outputs": (
        {
            "executorch": [make_case("8a8w", FAST, status=RED)],
            "litert": [make_case("fp16", sqnr_db=None, max_abs=0.0, no_time="too few")],
        },
        (
            "only LiteRT fp16 passed (0.98 KiB; exact); no time is known (too few): measure it on a"
            " device, docs/guides/device.md"
        ),
    ),
    "the only one that passed has inputs that are not the user's": (
        {"litert": [make_case("fp16", SLOW, size=None, made_inputs="random inputs")]},
        (
            "LiteRT fp16 passed (3 ms, 2.5 to 3.5; 40.0 dB); random inputs: the comparison proves"
            " arithmetic, not accuracy"
        ),
    ),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_fastest_smallest_and_most_accurate_green_row_is_named(name: str) -> None:
    cases, text = COMPARISONS[name]
    (answer,) = compare(**cases).answers
    start = "net.py:net on SM8650: "
    assert answer.startswith(start)
    assert text in answer
    if not text.endswith(";"):
        assert answer.endswith(text) or "would be faster" not in answer
    if text.startswith(("fastest", "smallest", "only", "LiteRT")) and not text.endswith(";"):
        assert answer == start + text


def test_each_soc_has_an_answer_and_one_that_a_runtime_lacks_is_judged_by_the_others() -> None:
    cases_of_two_socs = [make_case("8a8w", FAST), make_case("8a8w", SLOW, soc="SM8750")]
    report = compare(executorch=cases_of_two_socs, onnxruntime=[make_case("u8", NEAR)])
    table = make_document(report).tables[0]
    assert table.head == ("runtime", "scheme", "SM8650", "SM8750")
    assert table.rows[0].tones == ("", "", "passed", "passed")
    assert table.rows[1].cells[2] == "passed: 40.0 dB, 1.15 (1.05 to 1.3) ms, 0.98 KiB, 0 on CPU"
    assert (table.rows[1].cells[3], table.rows[1].tones[3]) == ("-", "")
    first, second = report.answers
    assert "SM8650: fastest: ExecuTorch 8a8w (1" in first
    assert "cannot be distinguished from ONNX Runtime u8" in first
    assert second.startswith("net.py:net on SM8750: ExecuTorch 8a8w passed (3 ms")
    assert "ONNX" not in second


def test_each_soc_has_its_own_fastest_row_and_one_that_is_red_there_is_no_choice() -> None:
    report = compare(
        executorch=[make_case("8a8w", FAST), make_case("8a8w", SLOW, soc="SM8750")],
        onnxruntime=[
            make_case("u8", SLOW, size=500),
            make_case("u8", FAST, soc="SM8750", size=500),
        ],
        litert=[
            make_case("fp16", (0.1, 0.09, 0.11), sqnr_db=90.0),
            make_case("fp16", (0.1, 0.09, 0.11), soc="SM8750", status=RED, remedy="expand it"),
        ],
    )
    first, second = report.answers
    assert first == (
        "net.py:net on SM8650: fastest: LiteRT fp16 (0.1 ms, 0.09 to 0.11); smallest: ONNX Runtime"
        " u8 (500 B); most accurate: LiteRT fp16 (90.0 dB)"
    )
    assert second == (
        "net.py:net on SM8750: fastest: ONNX Runtime u8 (1 ms, 0.9 to 1.1); smallest: ONNX Runtime"
        " u8 (500 B); most accurate: ExecuTorch 8a8w (40.0 dB), which cannot be distinguished from"
        " ONNX Runtime u8; LiteRT fp16 would be faster (0.1 ms, 0.09 to 0.11), but is red: fp16 is"
        " wrong; fix: expand it"
    )
    document = make_document(report)
    assert document.tables[0].rows[2].tones == ("", "", "passed", "failed")
    assert (document.tables[0].rows[2].tone, document.tone) == ("failed", "failed")
    rings = [
        [point.name for point in card.plot.points if point.chosen]
        for card in document.cards
        if card.plot
    ]
    assert rings == [["LiteRT fp16"], ["ONNX Runtime u8"]]
    # A terminal has no pictures, and no card that has nothing else.
    without_lines = [card.title for card in document.cards if card.plot and not card.lines]
    shown = render_text(document, 120)
    assert not any(line.endswith(title) for title in without_lines for line in shown.splitlines())


def test_what_all_socs_have_in_common_is_said_once() -> None:
    socs = ("SM8650", "SM8750")
    report = compare(
        executorch=[make_case("8a8w", FAST, soc="SM8650"), make_case("8a8w", SLOW, soc="SM8750")],
        onnxruntime=[make_case("u8", None, size=500, status=RED, soc=soc) for soc in socs],
        litert=[make_case("fp16", None, size=800, sqnr_db=60.0, soc=soc) for soc in socs],
    )
    document = make_document(report)
    common = (
        "smallest: LiteRT fp16 (800 B); most accurate: LiteRT fp16 (60.0 dB); no time is known for"
        " LiteRT fp16; ONNX Runtime u8 would be smaller (500 B), but is red: u8 is wrong"
    )
    assert document.notes == (
        f"net.py:net on SM8650, SM8750: {common}",
        "net.py:net on SM8650: fastest: ExecuTorch 8a8w (1 ms, 0.9 to 1.1)",
        "net.py:net on SM8750: fastest: ExecuTorch 8a8w (3 ms, 2.5 to 3.5)",
    )
    differences = [card for card in document.cards if card.kind == "differences"]
    assert [(card.title, card.lines) for card in differences] == [
        ("net.py:net on SM8650, SM8750", (("only ONNX Runtime", "ONNX Runtime u8: u8 is wrong"),))
    ]
    assert all(answer.endswith(common) for answer in report.answers)  # of the JSON


def test_a_metric_is_among_the_figures_of_models_that_have_one() -> None:
    cases = [make_case("8a8w", FAST, metric=0.98765), make_case("fp16", SLOW)]
    table = make_document(compare(executorch=cases)).tables[0]
    title = {column.name: column.show for column in COLUMNS}["metric"]
    place = table.head.index("metric")
    assert [row.cells[place] for row in table.rows] == [title(case) for case in cases]
    assert {table.head[number] for number in table.numbers} == {
        "SQNR dB",
        "metric",
        "size",
        "on CPU",
    }
    cases.append(make_case("8a8w", FAST, metric=0.5, soc="SM8750"))
    table = make_document(compare(executorch=cases)).tables[0]
    assert table.rows[0].cells[2:] == (
        "passed: 40.0 dB, metric 0.9877, 1 (0.9 to 1.1) ms, 0.98 KiB, 0 on CPU",
        "passed: 40.0 dB, metric 0.5, 1 (0.9 to 1.1) ms, 0.98 KiB, 0 on CPU",
    )


HOSTILE = "a|b*_ <img src=x> @octocat #1.py:net\n::error::no" + "y" * 300


def test_a_terminal_too_narrow_for_all_socs_names_those_that_are_left_out() -> None:
    socs = ("SM8450", "SM8550", "SM8650", "SM8750", "QCS8550", "SXR2330P")
    report = compare(executorch=[make_case("16a8w", NEAR, soc=soc) for soc in socs])
    text = render_text(make_document(report), 100)
    head, (left_out,) = text.splitlines()[0], re.findall("left out at 100 columns: (.*)", text)
    assert [*re.findall(r"[SQ]\w+\d\w*", head), *left_out.split(", ")] == [*socs]
    assert "left out" not in render_text(make_document(report), 160)


@pytest.mark.parametrize("models", [("net.py:net",), (HOSTILE,), (HOSTILE, "net.py:net")])
def test_all_forms_say_the_same_sentence(models: tuple[str, ...]) -> None:
    report = compare(
        executorch=[make_case("8a8w", FAST, model=model) for model in models],
        onnxruntime=[make_case("u8", NEAR, status=RED, model=model) for model in models],
    )
    document = make_document(report)
    text, markdown = render_text(document, 100), render_markdown(document)
    page = html.unescape(render_document(document))
    encoded = msgspec.json.decode(msgspec.json.encode(report))
    assert tuple(encoded["answers"]) == report.answers
    for model, answer in zip(models, report.answers, strict=True):
        # Those of several models follow the name of the model, as the lines of a card.
        start = f"{model} on SM8650: "
        sentence = answer.removeprefix(start) if len(models) > 1 else answer
        assert clean_name(sentence).split() == find_words(text, clean_name(sentence))
        assert escape_markdown(sentence) in markdown
        assert sentence in page
        assert answer.startswith(f"{start}only ExecuTorch 8a8w passed (1 ms")
    for line in (*text.splitlines(), *markdown.splitlines()):
        assert not line.lstrip(" #").startswith("::")
    assert "<img" not in markdown
    assert "@octocat" not in markdown
    assert "<img src=x>" not in render_document(document)


def find_words(text: str, sentence: str) -> list[str]:
    """The words of ``sentence`` in a terminal's text, which wraps lines at any place."""
    squeezed = re.sub(r"\s|\| ", "", text)
    return sentence.split() if re.sub(r"\s|\| ", "", sentence) in squeezed else []


def test_several_models_have_one_table_and_their_details_are_folded() -> None:
    models = ("a.py:net", "b.py:net")
    report = compare(
        executorch=[
            *(make_case("8a8w", FAST, model=model) for model in models),
            make_case("16a8w", status=RED, model=models[1], no_time="too few"),
        ],
        onnxruntime=[
            make_case("u8", NEAR, size=900, model=models[0]),
            make_case("u8", SLOW, sqnr_db=50.0, model=models[1]),
        ],
    )
    document = make_document(report)
    (table,) = document.tables
    assert (table.title, table.head[0], table.head[-1]) == (
        "2 models on SM8650",
        "model",
        "best at",
    )
    found = {(row.cells[0][0], row.cells[2]): (row.tone, row.cells[-1]) for row in table.rows}
    assert found == {
        ("a", "8a8w"): ("passed", "time, SQNR"),
        ("a", "u8"): ("passed", "time, size, SQNR"),
        ("b", "8a8w"): ("passed", "time, size"),
        ("b", "16a8w"): ("failed", ""),
        ("b", "u8"): ("passed", "size, SQNR"),
    }
    assert document.notes == ()
    details = [card for card in document.cards if card.is_folded]
    assert [card.title for card in details] == [
        "a.py:net on SM8650: 2 of 2 rows passed",
        "b.py:net on SM8650: 2 of 3 rows passed",
    ]
    for card, answer in zip(details, report.answers, strict=True):
        assert answer.endswith(f" on SM8650: {card.lines[0][1]}")
    assert details[1].lines[-1][1].startswith("for ExecuTorch 16a8w (too few)")
    page = render_document(document)
    # Closed, as no attribute opens it
    assert page.count('<details class="finding"><summary>') == len(models)
    assert page.index("<table") < page.index("<details")


def test_models_are_in_the_order_in_which_they_were_chosen() -> None:
    cases = {"executorch": ["third", "first"], "litert": ["second", "other"]}
    by_runtime = {
        runtime: reports.make_report([make_case("fp16", model=name) for name in names])
        for runtime, names in cases.items()
    }
    report = make_report(by_runtime, {}, {}, models=["first", "second", "third"])
    assert [row.model for row in report.rows] == ["first", "second", "third", "other"]


def test_what_only_one_runtime_does_is_listed_and_what_was_not_run_says_why() -> None:
    erf = ("aten.erf.default", "aten.sin.default")
    red = make_case("u8", NEAR, status=RED, on_cpu=erf[:1])
    report = compare(
        {"litert": "ai_edge_litert is not installed"},
        executorch=[make_case("8a8w", FAST, on_cpu=erf)],
        onnxruntime=[red],
    )
    text = " ".join(render_text(make_document(report), 160).split())
    assert "ExecuTorch alone leaves aten.sin.default there" in text
    assert "only ONNX Runtime: ONNX Runtime u8: u8 is wrong" in text
    assert "aten.erf" not in text
    assert "LiteRT | why: ai_edge_litert is not installed" in text
    assert "1 row passed, 1 failed, 1 runtime not run" in text
    page = render_document(make_document(report))
    places = [f"{place}/index.html" for place in report.reports.values()]
    assert all(f'<a href="{place}">{place}</a>' in page for place in places)
    assert places


def test_operators_on_the_cpu_are_not_those_of_one_runtime_alone_if_another_leaves_some_too() -> (
    None
):
    top = make_case("fp16", on_cpu=("aten.topk.default",))
    report = compare(executorch=[top], onnxruntime=[make_case("fp16", on_cpu=("TopK",))])
    text = " ".join(render_text(make_document(report), 160).split())
    assert "ExecuTorch leaves aten.topk.default there" in text
    assert "ONNX Runtime leaves TopK there" in text
    program = ProgramFacts(fallback_nodes=None)
    not_compiled = structs.replace(make_case("fp16", status=RED), program=program)
    report = compare(executorch=[top], litert=[not_compiled])
    text = " ".join(render_text(make_document(report), 160).split())
    assert "leaves" not in text


def test_the_picture_has_a_point_per_row_with_a_time_and_a_ring_on_the_fastest_green_one() -> None:
    rows = [make_case("fp16", SLOW), make_case("8a8w", FAST, status=RED), make_case("16a8w")]
    document = make_document(compare(executorch=rows))
    (plot,) = (card.plot for card in document.cards if card.plot)
    points = [(point.tone, point.chosen) for point in plot.points]
    assert points == [("passed", True), ("failed", False)]
    # A red point is drawn above a green one at the same place, which would cover it.
    same = make_document(
        compare(executorch=[make_case("8a8w", SLOW, status=RED)], litert=[rows[0]])
    )
    (plot,) = (card.plot for card in same.cards if card.plot)
    assert [(point.tone, point.name) for point in plot.points] == [
        ("passed", "LiteRT fp16"),
        ("failed", "ExecuTorch 8a8w"),
    ]
    assert "the ring is the fastest that passed" in plot.caption
    (plot,) = (
        card.plot
        for card in make_document(compare(executorch=[rows[1]], litert=[rows[1]])).cards
        if card.plot
    )
    assert "the ring" not in plot.caption  # none passed, and none has one
    alone = make_document(compare(executorch=[structs.replace(rows[0])]))
    assert not any(card.plot for card in alone.cards)


def test_a_row_shows_what_the_report_of_its_runtime_shows() -> None:
    """The cells are those of the runtime's own table and page."""
    cases = [
        make_case("8a8w", FAST, sqnr_db=41.26, size=123456, on_cpu=("aten.erf.default",)),
        make_case("fp16", 0.2, sqnr_db=None, max_abs=0.0),
        make_case("16a8w", status=RED, size=None, sqnr_db=-3.04),
    ]
    table = make_document(compare(executorch=cases)).tables[0]
    titles = {column.title or column.name: column.show for column in COLUMNS}
    for row, case in zip(table.rows, cases, strict=True):
        figures = dict(zip(table.head, row.cells, strict=True))
        assert figures["SM8650"] == titles["status"](case)
        assert figures["SQNR dB"] == titles["SQNR dB"](case)
        assert figures["estimated ms"] == titles["estimate ms"](case)
        assert figures["size"] == titles["program size"](case)
        assert figures["on CPU"] == str(case.program.fallback_nodes)


def test_an_soc_for_which_a_runtime_does_not_compile_is_named() -> None:
    rows = {"executorch": reports.make_report([make_case("8a8w", FAST)])}
    report = make_report(rows, {}, {}, {"litert": ("SXR2330P",)})
    text = " ".join(render_text(make_document(report), 160).split())
    assert "not run LiteRT on SXR2330P | why: it does not compile for this SoC" in text


def test_an_answer_names_the_runtimes_that_take_the_model_and_have_no_row() -> None:
    rows = {"executorch": reports.make_report([make_case("8a8w", FAST)])}
    not_run, unknown = {"onnxruntime": "not installed"}, {"litert": ("SM8650", "SM8750")}
    report = make_report(rows, {}, not_run, unknown, for_all=["executorch", *not_run, *unknown])
    (answer,) = report.answers
    assert answer.endswith(
        "; not compared: ONNX Runtime, which was not run, and LiteRT, which does not compile for"
        " SM8650"
    )
    # One that takes only some of the models may not be for this one.
    (answer,) = make_report(rows, {}, not_run, unknown, for_all=["executorch"]).answers
    assert "not compared" not in answer


def draw_names(rows: list[Case]) -> list[tuple[str, bool, int]]:
    """For each name in the picture of ``rows``: whether it is left of its point, and how much lower
    than its usual place."""
    (plot,) = (card.plot for card in make_document(compare(executorch=rows)).cards if card.plot)
    return [
        (point.name, point.is_left, round(point.name_y - point.y - NAME_HEIGHT / 3))
        for point in plot.points
    ]


def test_names_in_the_picture_cover_neither_each_other_nor_points() -> None:
    rows = [make_case(scheme, FAST) for scheme in ("fp16", "8a8w", "16a8w", "16a16w", "16a4w")]
    assert draw_names(rows) == [
        ("ExecuTorch fp16", True, 0),
        ("ExecuTorch 8a8w", True, 20),
        ("ExecuTorch 16a8w", True, 40),
        ("ExecuTorch 16a16w", True, 60),
        ("ExecuTorch 16a4w", True, 80),
    ]
    document = make_document(compare(executorch=rows))
    page = render_document(document)
    assert page.count("ExecuTorch 16a16w</text>") == 1
    (plot,) = (card.plot for card in document.cards if card.plot)
    for point in plot.points:
        assert abs(point.name_x - point.x) > RING  # which has one, if it is the fastest
        assert f'x="{point.name_x}" y="{point.name_y}">{point.name}</text>' in page
    # The usual place of the first two names is at each other's point.
    near = [
        make_case("8a8w", (0.96, 0.9, 1.0), sqnr_db=33.0),
        make_case("16a8w", (1.04, 1.0, 1.1), sqnr_db=31.0),
        make_case("fp16", (2.0, 1.9, 2.1), sqnr_db=66.0),
    ]
    assert draw_names(near) == [
        ("ExecuTorch fp16", True, 0),
        ("ExecuTorch 8a8w", True, 0),
        ("ExecuTorch 16a8w", False, 0),
    ]
    # On a phone, "ExecuTorch 8a8w" has 160 units in DejaVu Sans, and 151 are right of its point.
    wide = [
        make_case("16a8w", (0.213, 0.2, 0.3), sqnr_db=22.7),
        make_case("8a8w", (0.213, 0.2, 0.3), sqnr_db=20.5),
        make_case("fp16", (0.275, 0.2, 0.4), sqnr_db=55.5),
    ]
    assert [is_left for _, is_left, _ in draw_names(wide)] == [True, True, True]


def test_what_is_wrong_in_several_runtimes_is_listed_once_and_a_fault_of_one_says_so() -> None:
    def fail(scheme: str, headline: str, remedy: str = "") -> Case:
        case = make_case(scheme, NEAR, status=RED)
        advice = advise(fix=remedy, proof=Proof.PROVEN) if remedy else advise()
        finding = UNRECORDED.find(headline, advice=advice)
        judged = structs.replace(case.judgement, findings=(finding,))
        return structs.replace(case, judgement=judged)

    # A cause that is certain is listed once, too. A known fault is the cause itself.
    def explain(case: Case, why: str, certainty: Certainty, name: str = "") -> Case:
        (finding,) = case.judgement.findings
        explained = finding.explained(advise(why, certainty=certainty, name=name))
        judged = structs.replace(case.judgement, findings=(explained,))
        return structs.replace(case, judgement=judged)

    red = fail("fp16", "not quantized well")
    report = compare(
        executorch=[make_case("8a8w", FAST), explain(red, "the ranges", Certainty.PROVEN)],
        onnxruntime=[explain(red, "the ranges", Certainty.PROVEN)],
        litert=[explain(red, "the norm", Certainty.KNOWN, "a-fault")],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert card.lines == (
        ("red", "ExecuTorch fp16, ONNX Runtime fp16, LiteRT fp16: not quantized well"),
        ("why", "ExecuTorch fp16, ONNX Runtime fp16: the ranges"),
    )
    report = compare(executorch=[explain(red, "it is large", Certainty.LIKELY)])
    assert "it is large" not in render_text(make_document(report), 120)
    report = compare(
        executorch=[make_case("8a8w", FAST), fail("fp16", "the sum is wrong")],
        onnxruntime=[make_case("u8", FAST), fail("fp16", "the sum is wrong")],
        litert=[fail("fp16", "the norm is wrong")],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert card.lines == (
        ("red", "ExecuTorch fp16, ONNX Runtime fp16: the sum is wrong"),
        ("only LiteRT", "LiteRT fp16: the norm is wrong"),
    )
    # Each runtime has its own place for a fault that all of them have.
    report = compare(
        executorch=[make_case("8a8w", FAST), fail("fp16", "known fault a [net.py:3]")],
        onnxruntime=[make_case("u8", FAST), fail("fp16", "known fault a [net.py:3]", "expand it")],
        litert=[fail("fp16", "known fault a [node Net;1]")],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    labels = "ExecuTorch fp16, ONNX Runtime fp16, LiteRT fp16"
    assert card.lines == (("red", f"{labels}: known fault a [net.py:3]; fix: expand it"),)
    # Each runtime has its own schemes that passed.
    report = compare(
        executorch=[make_case("fp16", FAST), fail("8a8w", "too coarse", "use fp16 or 16a8w")],
        onnxruntime=[make_case("fp16", FAST), fail("u8", "too coarse", "use fp16")],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert card.lines[:2] == (
        ("red", "ExecuTorch 8a8w: too coarse; fix: use fp16 or 16a8w"),
        ("red", "ONNX Runtime u8: too coarse; fix: use fp16"),
    )
    # The limits of the runtimes differ.
    report = compare(
        executorch=[make_case("8a8w", FAST), fail("fp16", "it has 24.0 dB, 30 dB required")],
        litert=[fail("fp16", "it has 20.1 dB, 40 dB required")],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert [word for word, _ in card.lines] == ["red", "red"]
    # One remedy for two causes of a runtime is listed once.
    report = compare(
        executorch=[fail("fp16", "no builder", "by a series"), fail("8a8w", "slow", "by a series")],
        onnxruntime=[make_case("u8", FAST), fail("fp16", "the sum is wrong", "by a series")],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert card.lines == (
        (
            "only ExecuTorch",
            "ExecuTorch fp16: no builder; ExecuTorch 8a8w: slow; fix: by a series",
        ),
        ("red", "ONNX Runtime fp16: the sum is wrong; fix: by a series"),
    )


def test_why_a_row_is_red_is_listed_also_if_only_its_own_runtime_passed() -> None:
    long = f"known fault {'a' * 90} reaches the output"
    finding = UNRECORDED.find(long)
    assert finding.headline.endswith("...")
    red = make_case("u8", NEAR, status=RED)
    red = structs.replace(red, judgement=structs.replace(red.judgement, findings=(finding,)))
    report = compare(
        onnxruntime=[make_case("fp16", FAST), red], litert=[make_case("fp16", status=RED)]
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert card.lines == (
        ("red", f"ONNX Runtime u8: {long}"),
        ("only LiteRT", "LiteRT fp16: fp16 is wrong"),
    )
    # What precedes the text depends on the kind of the finding.
    error = "metrics.py:accuracy raised ModuleNotFoundError: No module named 'scipy.optimize'"
    finding = METRIC_ERROR.find(error)
    assert "scipy" not in finding.headline
    broken = structs.replace(red, judgement=structs.replace(red.judgement, findings=(finding,)))
    assert f"metric: {error})" in compare(onnxruntime=[broken]).answers[0]
    report = compare(litert=[make_case("fp16", status=RED)], onnxruntime=[red])
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    # The sentence says why none passed.
    assert card.lines == (("", "nothing that only one runtime leaves on the CPU"),)


def test_a_model_that_one_runtime_judges_is_not_compared() -> None:
    rows = [make_case("fp16", FAST), make_case("u8", SLOW)]
    (card,) = (
        card
        for card in make_document(compare(onnxruntime=rows)).cards
        if card.kind == "differences"
    )
    assert card.plot
    assert card.lines == (("", "no other runtime judged this model"),)


@pytest.mark.parametrize(
    ("compiled", "text"),
    [(1, "only ONNX Runtime compiled this model"), (0, "no runtime compiled this model")],
)
def test_what_stays_on_the_cpu_is_not_compared_if_only_one_runtime_compiled_the_model(
    compiled: int, text: str
) -> None:
    case = make_case("fp16", status=RED, on_cpu=("DFT",))
    refused = structs.replace(case, program=ProgramFacts())
    cases = [*[case] * compiled, *[refused] * (3 - compiled)]
    onnxruntime, executorch, litert = ([each] for each in cases)
    report = compare(executorch=executorch, onnxruntime=onnxruntime, litert=litert)
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert card.lines[0] == ("", text)


def test_a_known_fault_with_a_name_per_runtime_is_one_fault() -> None:
    def fail(fault: str) -> Case:
        case = make_case("fp16", NEAR, status=RED)
        advice = advise(f"known fault: {fault}", name=fault, certainty=Certainty.KNOWN)
        finding = UNRECORDED.find(f"known fault {fault} [net.py:3]", advice=advice)
        return structs.replace(case, judgement=structs.replace(case.judgement, findings=(finding,)))

    def list_red(names: dict[str, tuple[str, ...]], litert: str) -> tuple[tuple[str, str], ...]:
        cases = {
            "executorch": [make_case("8a8w", FAST), fail("sum")],
            "onnxruntime": [make_case("u8", FAST), fail("sum-in-onnx")],
            "litert": [fail(litert)],
        }
        rows = {runtime: reports.make_report(each) for runtime, each in cases.items()}
        report = make_report(rows, {}, {}, fault_names=names)
        (card,) = (card for card in make_document(report).cards if card.kind == "differences")
        return card.lines

    names = {
        "sum": ("sum",),
        "sum-in-onnx": ("sum-in-onnx", "sum"),
        "sum-of-file": ("sum-of-file", "product", "sum"),
        "norm": ("norm",),
    }
    all_labels = "ExecuTorch fp16, ONNX Runtime fp16, LiteRT fp16"
    assert list_red(names, "sum-of-file") == (("red", f"{all_labels}: known fault sum [net.py:3]"),)
    assert list_red(names, "norm") == (
        ("red", "ExecuTorch fp16, ONNX Runtime fp16: known fault sum [net.py:3]"),
        ("only LiteRT", "LiteRT fp16: known fault norm [net.py:3]"),
    )


def test_why_a_row_has_no_time_is_listed_also_if_it_is_red() -> None:
    report = compare(
        executorch=[make_case("8a8w", FAST), make_case("16a8w", status=RED, no_time="too few")],
        onnxruntime=[make_case("u8", 2.0)],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert card.lines[-1] == (
        "no time",
        "for ExecuTorch 16a8w (too few): measure it on a device, docs/guides/device.md",
    )
    assert card.plot
    assert "a time with only an upper bound is at that bound" in card.plot.caption


def test_a_warning_about_rows_that_passed_is_listed_once() -> None:
    def warn(case: Case, *texts: str) -> Case:
        return structs.replace(case, judgement=structs.replace(case.judgement, warnings=texts))

    report = compare(
        executorch=[make_case("8a8w", SLOW), warn(make_case("fp16", status=RED), "of a red row")],
        onnxruntime=[
            warn(make_case("u8", FAST), "all operators are float16"),
            warn(make_case("u16a8w", NEAR), "all operators are float16", "one clip"),
        ],
    )
    (card,) = (card for card in make_document(report).cards if card.kind == "differences")
    assert [line for line in card.lines if line[0] == "warning"] == [
        ("warning", "ONNX Runtime u8, ONNX Runtime u16a8w: all operators are float16"),
        ("warning", "ONNX Runtime u16a8w: one clip"),
    ]


def test_a_program_that_is_hardly_smaller_is_not_called_smaller() -> None:
    rows = [make_case("8a8w", SLOW, size=1000), make_case("16a8w", SLOW, status=RED, size=960)]
    assert "would be smaller" not in compare(executorch=rows).answers[0]
    rows[1] = make_case("16a8w", SLOW, status=RED, size=940)
    assert "16a8w would be smaller (940 B)" in compare(executorch=rows).answers[0]
