"""Which wrong outputs which gate accepts: this project's, with and without recorded figures, the
tolerance of ExecuTorch's own tests, and a cosine.

The suite is run once; its right outputs are made wrong in each way of tests/stand_ins/liars.py, and
replaced by those of other schemes and of the float32 model. The same is done with heads that join
parts, such as boxes and scores: in their right outputs, one part or one channel becomes zero.
``QNN_CI_KEPT`` names directories that `--keep-artifacts` wrote, separated by colons, which are
measured instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ci.cases.baselines import Baseline, find_changes, read_baselines
from ci.cases.cache import RECORD, Artifact
from ci.cases.outputs import read_outputs, read_references, stack_outputs
from ci.cases.policy import EMULATOR, EmulatorPolicy, read_emulator_policy
from ci.facts.finding import Question
from ci.judging.figures import Array, channel_axes, decibels, is_floating, measure, measure_pooled
from ci.judging.gate import Expected, Judgement, References, judge
from ci.judging.verdict import summarize_figures
from ci.models.schemes import ONNX, Scheme
from ci.models.tensors import OutputPart, Range
from ci.report.write import read_report
from provisioning.console.progress import Progress
from provisioning.errors import FailedError
from tests.stand_ins.liars import LIES

ROOT = Path(__file__).resolve().parents[2]
Outputs = Sequence[Array]
STRICT = "ours, strict"


class Kept(msgspec.Struct, frozen=True):
    """A case that was run: what is expected, and what came out."""

    artifact: Artifact
    references: References
    outputs: list[Array]
    baseline: Baseline | None = None

    @property
    def name(self) -> str:
        return f"{self.artifact.model.rpartition('/')[2]} {self.artifact.scheme}"


def read_kept(directory: Path, baselines: Mapping[str, Baseline]) -> Kept:
    """Return a case of a directory that --keep-artifacts wrote."""
    artifact = directory / "artifact"
    record = msgspec.json.decode((artifact / RECORD).read_bytes(), type=Artifact)
    compiled = record.compiled
    outputs = stack_outputs(read_outputs(directory / "outputs", compiled, compiled.sets), compiled)
    baseline = baselines.get(f"{record.model} {record.scheme} {record.soc}")
    return Kept(record, read_references(artifact, compiled), outputs, baseline)


def run_cases(reports: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run test-emulator, and return how it ended."""
    argv = [sys.executable, "-m", "ci", "test-emulator", "--reports", str(reports), *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False)


def run_suite(folder: Path) -> list[Kept]:
    """Run the suite, and return its cases. Raises FailedError unless all pass."""
    done = run_cases(folder, "--keep-artifacts", str(folder / "kept"))
    if done.returncode:
        raise FailedError("the suite does not pass", why=done.stdout[-2000:] + done.stderr[-2000:])
    baselines = read_baselines(read_report(folder / "test_emulator").toolchain)
    return [read_kept(place, baselines) for place in sorted((folder / "kept").glob("*/"))]


# Heads of tests/realistic/joined.py whose programs are right, by scheme.
HEADS = {
    "16a8w": ("yolo", "levels", "keypoints", "masks", "uncertain", "one_class"),
    "8a8w": ("yolo", "keypoints", "masks"),
}


def run_heads(folder: Path) -> list[Kept]:
    """Run the heads of HEADS, and return their cases. Raises FailedError unless all pass."""
    cases = []
    for scheme, names in HEADS.items():
        form = "joined" if scheme == "16a8w" else "apart"
        words = ["--scheme", scheme, "--keep-artifacts", str(folder / scheme)]
        for name in names:
            words += ["--model", f"tests/realistic/joined.py:{name}_{form}"]
        done = run_cases(folder, *words)
        if done.returncode:
            why = done.stdout[-2000:] + done.stderr[-2000:]
            raise FailedError(f"the heads do not pass in {scheme}", why=why)
        cases += [read_kept(place, {}) for place in sorted((folder / scheme).glob("*/"))]
    return cases


def list_lost(case: Kept) -> Iterator[tuple[str, list[Array]]]:
    """Yield outputs of a case in which a part or a channel is zero: each part that the model joins,
    each output of several, and the middle channel of each part and output."""
    for index, (info, output) in enumerate(
        zip(case.artifact.compiled.outputs, case.outputs, strict=True)
    ):
        all_values = OutputPart(tuple(Range(axis, 0, size) for axis, size in enumerate(info.shape)))
        parts = [*info.parts, *([all_values] if len(case.outputs) > 1 else [])]
        for part in parts:
            yield f"{part} zero", silence(case.outputs, index, part)
        for part in parts or [all_values]:
            for axis in sorted({axis - 1 for axis in channel_axes(output.ndim)}):
                places = part.list_indices(axis) or tuple(range(info.shape[axis]))
                if len(places) > 1:
                    place = places[len(places) // 2]
                    other_ranges = tuple(bounds for bounds in part.ranges if bounds.axis != axis)
                    channel = OutputPart((*other_ranges, Range(axis, place, place + 1)))
                    yield f"{channel} zero", silence(case.outputs, index, channel)


def silence(outputs: Sequence[Array], index: int, part: OutputPart) -> list[Array]:
    """Return the outputs with zeros in a part of one of them."""
    wrong = [output.copy() for output in outputs]
    shape = wrong[index].shape
    places = [range(shape[0])]
    for axis, size in enumerate(shape[1:]):
        places.append(part.list_indices(axis) or range(size))
    wrong[index][np.ix_(*places)] = 0
    return wrong


def count_lost(heads: Sequence[Kept]) -> dict[str, Any]:
    """Return how many outputs of list_lost the gate accepts, and how many right ones it rejects."""
    accepted, wrong = list[str](), 0
    policy = read_emulator_policy(lane=EMULATOR)
    for case in heads:
        for lie, outputs in list_lost(case):
            wrong += 1
            if accepts(case, outputs, policy):
                accepted.append(f"{case.name}: {lie}")
    rejected = sum(not accepts(case, case.outputs, policy) for case in heads)
    return {"wrong": wrong, "cases": len(heads), "accepted": accepted, "rejected": rejected}


def list_wrong(case: Kept, cases: Sequence[Kept]) -> Iterator[tuple[str, list[Array]]]:
    """Yield each kind of wrong outputs of a case that can be made, by name."""
    for lie, make in LIES.items():
        wrong = list(case.outputs)
        for index, output in enumerate(case.outputs):
            if is_floating(output):
                wrong[index] = make(output)
        pairs = zip(wrong, case.outputs, strict=True)
        if any(changed.tobytes() != output.tobytes() for changed, output in pairs):
            yield lie, wrong
    yield "float32's", [expected.values for expected in case.references.float32]
    for other_case in cases:
        same_model = other_case.artifact.model == case.artifact.model
        if same_model and other_case.artifact.scheme != case.artifact.scheme:
            yield f"{other_case.artifact.scheme}'s", other_case.outputs


def judge_case(case: Kept, outputs: Outputs, policy: EmulatorPolicy) -> Judgement:
    """Return the gate's judgement of outputs."""
    limits = policy.limits_of(case.artifact.model, Scheme(case.artifact.scheme))
    with np.errstate(all="ignore"):
        return judge(case.references, outputs, case.artifact.compiled.outputs, limits)


def accepts(case: Kept, outputs: Outputs, policy: EmulatorPolicy, *, records: bool = False) -> bool:
    """Return whether this project's gate accepts outputs; ``records`` adds recorded figures."""
    judgement = judge_case(case, outputs, policy)
    if any(reason.question is Question.FAITHFUL for reason in judgement.findings):
        return False
    figures = summarize_figures(judgement)
    return not records or case.baseline is None or not list(find_changes(figures, case.baseline))


def weigh(case: Kept, outputs: Outputs, policy: EmulatorPolicy) -> dict[str, Any]:
    """Return the largest effect of outputs that are accepted only because their errors do not
    matter: by how many dB they raise the error of the scheme, and how often the quantized model and
    these outputs agree with float32 on the largest channel and on the sign."""
    noted = [
        excess
        for output in judge_case(case, outputs, policy).outputs
        for excess in output.excesses
        if excess.over_db > 0
    ]
    worst = max(noted, key=lambda excess: excess.raised_db)
    best_outputs = [case.references.best(index)[0].values for index in range(len(outputs))]
    return {
        "case": case.name,
        "place": worst.place,
        "above_noise_db": worst.above_db,
        "raised_db": worst.raised_db,
        "choices": [
            min(map(agree, case.references.float32, compared))
            for compared in (best_outputs, outputs)
        ],
    }


def agree(eager: Expected, output: Array) -> float:
    """Return the share of decisions that agree: the largest channel, and the sign."""
    values = eager.values
    if not is_floating(values):
        return 1.0
    signs = float(((values > 0) == (output > 0)).mean())
    axes = channel_axes(values.ndim)
    return min(
        signs, *(float((values.argmax(axis) == output.argmax(axis)).mean()) for axis in axes)
    )


def snap(case: Kept, outputs: Outputs) -> list[Array]:
    """Return the nearest outputs that a quantized program can have: as if it were at fault itself,
    and not what reads its outputs."""
    snapped = []
    for info, output in zip(case.artifact.compiled.outputs, outputs, strict=True):
        if info.step and np.isfinite(output).all():
            with np.errstate(over="ignore"):
                steps = np.clip(np.round(output / info.step), info.lowest, info.highest)
            snapped.append((steps * info.step).astype(output.dtype))
        else:
            snapped.append(output)
    return snapped


def has_tolerance(case: Kept, outputs: Outputs) -> bool:
    """As ExecuTorch's tests of QNN compare: atol 0.1, and rtol 1 for quantized models, else 0.1.

    The tolerance is a share of the reference, as in `_assert_outputs_equal` of
    backends/qualcomm/tests/utils.py, so zeros pass for every quantized model.
    """
    rtol = 1.0 if Scheme(case.artifact.scheme).quantized else 0.1
    pairs = zip(case.references.float32, outputs, strict=True)
    return all(
        np.allclose(output, expected.values, atol=0.1, rtol=rtol) for expected, output in pairs
    )


def has_cosine(case: Kept, outputs: Outputs, lowest: float) -> bool:
    """Return whether each output has this cosine with the float32 model's."""
    with np.errstate(all="ignore"):
        pairs = zip(case.references.float32, outputs, strict=True)
        return all(measure(expected.values, output).cosine >= lowest for expected, output in pairs)


def count_accepted(cases: Sequence[Kept], *names: str) -> dict[str, Any]:
    """Return how many wrong and how many right outputs each gate accepts, or each of ``names``."""

    def find_policy(case: Kept, *, strict: bool = False) -> EmulatorPolicy:
        is_onnx = Scheme(case.artifact.scheme) in ONNX.schemes[1:]
        policy = read_emulator_policy(lane="onnx" if is_onnx else EMULATOR)
        return msgspec.structs.replace(policy, strict_noise=strict)

    def plain(case: Kept, outputs: Outputs) -> bool:
        return accepts(case, outputs, find_policy(case))

    gates: dict[str, Callable[[Kept, Outputs], bool]] = {
        "ours": plain,
        STRICT: lambda case, outputs: accepts(case, outputs, find_policy(case, strict=True)),
        "ours, with records": lambda case, outputs: accepts(
            case, outputs, find_policy(case), records=True
        ),
        "ours, rounded to its steps": lambda case, outputs: plain(case, snap(case, outputs)),
        "ExecuTorch's tolerance": has_tolerance,
        "cosine 0.99": lambda case, outputs: has_cosine(case, outputs, 0.99),
        "cosine 0.95": lambda case, outputs: has_cosine(case, outputs, 0.95),
    }
    gates = {name: gates[name] for name in names or gates}
    accepted: dict[str, dict[str, list[str]]] = {name: {} for name in gates}
    wrong, added = 0, []
    for case in cases:
        for lie, outputs in list_wrong(case, cases):
            wrong += 1
            passed = [name for name, gate in gates.items() if gate(case, outputs)]
            for name in passed:
                accepted[name].setdefault(lie, []).append(case.name)
            if "ours" in passed and STRICT in gates.keys() - passed:
                added.append({"lie": lie, **weigh(case, outputs, find_policy(case))})
    right = {}
    for name, gate in gates.items():
        right[name] = sum(gate(case, case.outputs) for case in cases)
    return {
        "wrong": wrong,
        "cases": len(cases),
        "accepted": accepted,
        "right": right,
        "added": added,
    }


def spread(cases: Sequence[Kept]) -> dict[str, Any]:
    """Return, by scheme, between what the measured SQNR less the predicted one lies, in dB, and
    between what the measured one does, of each output over all samples."""
    rows: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        for index, info in enumerate(case.artifact.compiled.outputs):
            right = case.references.best(index)[0].values
            if is_floating(right):
                noise = case.references.predict(index, info).runs.astype(np.float64)
                signal = float(np.mean(right.astype(np.float64) ** 2))
                predicted = decibels(signal, float(np.mean(noise**2)))
                measured = measure_pooled(right, case.outputs[index])
                rows.setdefault(case.artifact.scheme, []).append((measured - predicted, measured))
    figures = {}
    for scheme, pairs in sorted(rows.items()):
        differences, measurements = zip(*pairs, strict=True)
        figures[scheme] = {
            "outputs": len(pairs),
            "measured_db": [round(min(measurements), 1), round(max(measurements), 1)],
            "difference_db": [round(min(differences), 1), round(max(differences), 1)],
        }
    return figures


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure the suite, or what QNN_CI_KEPT names."""
    heads: list[Kept] = []
    folders = [Path(folder) for folder in os.environ.get("QNN_CI_KEPT", "").split(":") if folder]
    if folders:
        places = [place for folder in folders for place in sorted(folder.glob("*/"))]
        cases = [read_kept(place, {}) for place in places if (place / "outputs").is_dir()]
    else:
        progress.step("bench gate: the suite")
        with tempfile.TemporaryDirectory() as folder:
            cases = run_suite(Path(folder))
            progress.step("bench gate: heads that join parts")
            heads = run_heads(Path(folder))
    progress.step("bench gate: wrong outputs")
    return {**count_accepted(cases), "lost": count_lost(heads), "prediction": spread(cases)}


def render_bench(figures: Mapping[str, Any]) -> str:
    """Return the table: a row per gate, then what ours accepts."""
    wrong, cases = figures["wrong"], figures["cases"]
    rows = [f"{'':26s} wrong accepted of {wrong}   right rejected of {cases}"]
    for name, accepted in figures["accepted"].items():
        count = sum(map(len, accepted.values()))
        rows.append(f"{name:26s} {count:8d} {cases - figures['right'][name]:24d}")
    for lie, names in figures["accepted"]["ours"].items():
        rows.append(f"ours accepts {lie}: {', '.join(names)}")
    for added in figures["added"]:
        quantized, program = added["choices"]
        rows.append(
            f"not with strict_noise: {added['lie']} for {added['case']},"
            f" {added['above_noise_db']:.1f} dB above the noise, raises the error by"
            f" {added['raised_db']:.2f} dB in {added['place']}; decisions as float32's"
            f" {program:.2%}, quantized {quantized:.2%}"
        )
    lost = figures["lost"]
    counts = f"lost parts: {len(lost['accepted'])} of {lost['wrong']} accepted"
    rows.append(f"{counts}, {lost['rejected']} of {lost['cases']} right ones rejected")
    rows += [f"ours accepts {part}" for part in lost["accepted"]]
    rows += [f"{'scheme':16s} outputs   SQNR measured, dB   less predicted, dB"]
    for scheme, row in figures["prediction"].items():
        low, high = row["measured_db"]
        rows.append(
            f"{scheme:16s} {row['outputs']:7d}   {low:6.1f} to {high:6.1f}"
            f"    {row['difference_db'][0]:+6.1f} to {row['difference_db'][1]:+6.1f}"
        )
    return "\n".join(rows)
