"""Reports to render: an ordinary run of forty cases, a small one, and one full of hostile text."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from ci.facts.finding import Place
from ci.judging.controls import MAKERS
from ci.report.schema import (
    AskedFacts,
    Case,
    Control,
    FallbackOp,
    JudgementFacts,
    OpCount,
    Phase,
    ProgramFacts,
    Report,
    RunFacts,
    Status,
    Threshold,
    Tool,
)
from tests.stand_ins import reports
from tests.stand_ins.reports import change_case, say

MODELS = ("mlp", "resnet", "mobile", "deeplab", "encoder", "decoder_step", "superres", "lstm")
SCHEMES = {"fp16": 62.0, "8a8w": 27.0, "16a8w": 41.0, "16a16w": 58.0, "16a4w": 22.0}
LIMITS = {"fp16": 45.0, "8a8w": 20.0, "16a8w": 30.0, "16a16w": 40.0, "16a4w": 15.0}
HOSTILE = '<script>alert("x")</script> & ]]> \x1b[31mred\x00 ##[error]boo `|` \u202egnp.exe'


def make_case(model: str, scheme: str, index: int) -> Case:
    ratio = SCHEMES[scheme] + 6 * math.sin(index)
    return Case(
        model=model,
        scheme=scheme,
        soc="SM8650",
        judgement=JudgementFacts(
            status=Status.PASSED,
            sqnr_db=ratio,
            sqnr_db_quantized=ratio + 9,
            cosine=1 - 10 ** (-ratio / 10) / 2,
            cosine_quantized=1.0,
            max_abs=10 ** (-ratio / 20),
            above_noise_db=4 - ratio,
            above_noise_place="channel 3 of 16 along axis 1",
            gain=1.0004,
            offset=-0.0002,
        ),
        program=ProgramFacts(
            delegated_nodes=12 + 7 * (index % 8),
            fallback_nodes=0,
            partitions=1,
            lower_s=1.1 + 0.3 * (index % 7),
            pte_bytes=90_000 + 41_000 * (index % 9),
            cached=index % 3 == 0,
        ),
        run=RunFacts(wall_s=0.004 + 0.011 * (index % 5), runner="executorch.runtime 1.5.1"),
        asked=AskedFacts(inputs=4),
    )


def make_report(cases: list[Case], controls: list[Control]) -> Report:
    phases = [Phase(name="provision", seconds=2.4), Phase(name="lower", seconds=81.0)]
    phases += [Phase(name="run", seconds=9.5), Phase(name="compare", seconds=1.2)]
    return reports.make_report(
        cases,
        controls,
        toolchain=(
            Tool(name="onnxruntime-qnn", version="2.5.0", sha256="a1" * 32),
            Tool(name="executorch", version="1.5.1", sha256="b2" * 32),
            Tool(name="torch", version="2.13.0"),
        ),
        thresholds=tuple(
            Threshold(scheme=scheme, min_sqnr_db=limit, min_cosine=0.99)
            for scheme, limit in LIMITS.items()
        ),
        wall_s=94.2,
        phases=phases,
    )


@pytest.fixture
def controls() -> list[Control]:
    return [
        Control(model="mlp", scheme="8a8w", soc="SM8650", kind=kind, rejected=True, sqnr_db=-1.0)
        for kind in MAKERS
    ]


@pytest.fixture
def report(controls: list[Control]) -> Report:
    """Forty cases that passed, all controls rejected."""
    pairs = [(model, scheme) for model in MODELS for scheme in SCHEMES]
    return make_report([make_case(*pair, i) for i, pair in enumerate(pairs)], controls)


@pytest.fixture
def troubled(controls: list[Control]) -> Report:
    """A case of each status with all that can be said of it, and a control that passed."""
    passed, failed = (make_case(model, "8a8w", i) for i, model in enumerate(MODELS[:2]))
    passed = change_case(
        passed,
        equal=0.99999,
        metric=0.75,
        metric_float=0.8,
        metric_name="top1",
        choices="use_mha2sha",
        compiler="v2.49.40.260810104044",
        qnn_ops=tuple(OpCount(op=op, count=n) for op, n in zip("ABCD", (5, 4, 2, 1), strict=True)),
        accelerator_cycles=11600000,
        accelerator_us=987,
    )
    failed = change_case(
        failed,
        status=Status.FAILED,
        sqnr_db=3.4,
        fallback_nodes=1,
        findings=say("SQNR 3.4 dB is below 20.0 dB", Place(file="nets/a b.py", line=7)),
        fallback_ops=(FallbackOp(op="aten.cdist.default", reason="no builder"),),
    )
    unsupported = Case(
        model="mobile",
        scheme="16a4w_block",
        soc="SM8650",
        judgement=JudgementFacts(
            status=Status.UNSUPPORTED, findings=say("QNN: block quantization needs rank 4")
        ),
    )
    crashed = Case(
        model="nets/a b.py:f",
        scheme="8a8w",
        soc="SM8650",
        judgement=JudgementFacts(
            status=Status.FAILED, findings=say("the emulator was killed by SIGSEGV")
        ),
        run=RunFacts(log_tail="loading\nQnnBackend: error 14001\n"),
    )
    let_through = replace(controls[0], rejected=False, sqnr_db=0.0)
    cases = [passed, failed, unsupported, crashed]
    return replace(
        make_report(cases, [let_through, *controls[1:]]),
        command="qnn-ci test-emulator --policy 'q;n.toml'",
        runtimes=(Tool(name="qnn-android", version="2.37.1"), Tool(name="mine", version="2.49.40")),
    )


@pytest.fixture
def hostile(controls: list[Control]) -> Report:
    """Markup, terminal sequences and runner commands in every text that others write."""
    case = Case(
        model=HOSTILE,
        scheme=HOSTILE,
        soc=HOSTILE,
        judgement=JudgementFacts(
            status=Status.FAILED,
            sqnr_db=1.0,
            findings=say(f"::set-env name=PATH::/evil\n{HOSTILE}"),
        ),
        program=ProgramFacts(fallback_ops=(FallbackOp(op=HOSTILE, reason=HOSTILE),)),
        run=RunFacts(log_tail=f"::error::evil\n{HOSTILE}\n", runner=HOSTILE),
    )
    control = replace(controls[0], model=HOSTILE, scheme=HOSTILE, rejected=False)
    hostile_report = make_report([case], [control])
    return replace(
        hostile_report,
        toolchain=(Tool(name=HOSTILE, version=HOSTILE),),
        thresholds=(Threshold(scheme=HOSTILE, min_sqnr_db=20.0, reason=HOSTILE),),
        host=replace(hostile_report.host, processor=HOSTILE),
    )
