"""A case of three outputs: an engine and a runner for it, policies, options, a user's metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ci.cases.engine import Compiled, Delegation, Sets
from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.pool import Ended, Job
from ci.models.tensors import TensorInfo
from ci.models.user_data import run_metric
from ci.models.user_models import Metric, MetricResult
from tests.stand_ins.lanes import EchoRunner, FloatEngine, InlinePool

RANDOM = np.random.default_rng(8)
LOGITS = RANDOM.standard_normal((4, 6, 20)).astype(np.float32)
IDS = LOGITS.argmax(-1)
MASK = LOGITS[:, :, 0] > 0
COARSE = LOGITS + 0.02 * RANDOM.standard_normal(LOGITS.shape).astype(np.float32)
RIGHT = [COARSE, IDS, MASK]
SETS = [[np.int64(number).reshape(1)] for number in range(4)]
BOUNDS = {
    f"{name}/{number}_1.{side}.raw": IDS[number] + (side == "high" and number == 0)
    for name in ("float", "quantized")
    for number in range(4)
    for side in ("low", "high")
}
COMPILED = Compiled(
    program="program.txt",
    binary="program.txt",
    size_bytes=15,
    sets=4,
    inputs=(TensorInfo("int64", (1,)),),
    outputs=tuple(TensorInfo(str(output.dtype), output.shape[1:]) for output in RIGHT),
    delegation=Delegation(3, 0, 1),
)


METRIC = Metric(function="/m.py:top1", labels="/l.npy", max_drop=0.1)


def make_engine(**fields: Any) -> FloatEngine:
    """A model of three outputs: logits, ids with bounds, a mask."""
    return FloatEngine(
        lambda number: [LOGITS[number[0]], IDS[number[0]], MASK[number[0]]],
        SETS,
        lambda number: [COARSE[number[0]], IDS[number[0]], MASK[number[0]]],
        **{"bounds": BOUNDS, "noise": 0.002, **fields},
    )


def give(*turns: Any, **fields: Any) -> EchoRunner:
    """A runner that gives these in turn, and the last one from then on: outputs, [sample,
    *shape] each, what a function makes of a sample oran error."""
    left = [*turns]

    def answer(sets: Sets) -> Sets:
        turn = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(turn, Exception):
            raise turn
        if callable(turn):
            return [turn(*inputs) for inputs in sets]
        return [list(outputs) for outputs in zip(*turn, strict=True)]

    return EchoRunner(answer, **fields)


def change_policy(**fields: Any) -> EmulatorPolicy:
    return msgspec.structs.replace(read_emulator_policy(), **fields)


class MeasuringPool(InlinePool):
    """Has the answer of the user's metric, or a process that died of it."""

    def __init__(self, *measured: float, failure: str = "") -> None:
        result = MetricResult(*measured) if measured else None
        self.measured = Ended(result, failure, "")
        self.asked: Any = ()

    def run(self, job: Job, log: Path, timeout_s: float, **options: Any) -> Ended:
        if getattr(job, "func", None) is run_metric:
            assert options["fresh"]  # a user's function may change the process that it runs in
            self.asked = getattr(job, "args", ())
            return self.measured
        return super().run(job, log, timeout_s, **options)
