"""How many right programs that end in a matrix product the gate rejects, in all lanes and schemes:
the networks of tests/realistic/products.py.

A program is right if its outputs are, compared with float32 alone, as in tests.bench.right: no row
is more than 6 dB farther from float32 than that of the quantized model, unless it has 46 dB (in
float16: 40 dB). It is rejected if the gate says that it is not faithful; whether its model is
quantized well is another question. QNN_CI_NETWORKS is how many networks are judged, 25 by default;
each has up to nine programs. LiteRT's lane runs with the Python in QNN_CI_LITERT_PYTHON, or that of
the session test-litert, and is left out if there is none. Each line of progress has the figures
until then.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.facts.finding import Question
from ci.report.schema import Case, Status
from ci.report.write import read_report
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from tests.bench.gate import Kept, read_kept
from tests.bench.right import find_interval, is_right

ROOT = Path(__file__).resolve().parents[2]
NETWORKS, BUNDLE = 25, 5
LITERT_PYTHON = ROOT / ".nox" / "test-litert" / "bin" / "python"


@dataclass(frozen=True)
class Lane:
    """A verb with the schemes in which it judges PyTorch models, and the Python that runs it."""

    verb: str
    schemes: tuple[str, ...]
    python: str = sys.executable

    @property
    def session(self) -> str:
        """Return the name of its reports."""
        return self.verb.replace("-", "_")


def list_lanes(progress: Progress) -> Iterator[Lane]:
    """Yield the lanes that can be run here."""
    yield Lane("test-emulator", ("fp16", "8a8w", "16a8w"))
    yield Lane("test-onnx", ("fp16", "u8", "u8_channel", "u16a8w", "u16a8w_channel"))
    python = Path(os.environ.get("QNN_CI_LITERT_PYTHON", LITERT_PYTHON))
    if python.is_file():
        yield Lane("test-litert", ("fp16",), str(python))
    else:
        progress.step(f"note: LiteRT's lane is left out: there is no {python}")


def run_bundle(lane: Lane, numbers: range, folder: Path) -> Iterator[tuple[Case, Kept]]:
    """Judge some networks, and yield their cases that returned outputs."""
    words = ["--policy", "default", "--reports", str(folder), "--keep-artifacts", str(folder / "k")]
    for number in numbers:
        words += ["--model", f"tests/realistic/products.py:product_{number}"]
    for scheme in lane.schemes:
        words += ["--scheme", scheme]
    # Experiments would look for the cause of what is rejected.
    words += ["--diagnose", "0"] if lane.verb != "test-litert" else []
    argv = [lane.python, "-m", "ci", lane.verb, *words]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    run_process(argv, cwd=ROOT, env=variables, check=False, log=folder / "log.txt")
    cases = {case.name: case for case in read_report(folder / lane.session).cases}
    for place in sorted((folder / "k").glob("*/artifact/")):
        if (place.parent / "outputs").is_dir():
            kept_case = read_kept(place.parent, {})
            record = kept_case.artifact
            for name, case in cases.items():
                if record.model.endswith(name.model) and name.scheme == record.scheme:
                    yield case, kept_case


def is_right_program(kept_case: Kept) -> bool:
    """Return whether all outputs of a program are right, compared with float32."""
    references = kept_case.references
    for index, output in enumerate(kept_case.outputs):
        exact = references.float32[index].values
        best = references.quantized[index].values if references.quantized else exact
        if not is_right(exact, best, output, references.quantized is None):
            return False
    return True


def is_rejected(case: Case) -> bool:
    """Return whether the gate says that a program is not faithful."""
    findings = case.judgement.findings
    is_failed = case.judgement.status is Status.FAILED
    return is_failed and any(finding.question is Question.FAITHFUL for finding in findings)


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Judge the networks in all lanes."""
    networks = int(os.environ.get("QNN_CI_NETWORKS", NETWORKS))
    right, rejected, wrong = Counter[str](), Counter[str](), Counter[str]()
    names: list[str] = []
    for first in range(0, networks, BUNDLE):
        for lane in list_lanes(progress):
            with tempfile.TemporaryDirectory() as folder:
                numbers = range(first, min(first + BUNDLE, networks))
                for case, kept_case in run_bundle(lane, numbers, Path(folder)):
                    row = f"{lane.verb} {case.scheme}"
                    if not is_right_program(kept_case):
                        wrong[row] += 1
                        continue
                    right[row] += 1
                    if is_rejected(case):
                        rejected[row] += 1
                        names.append(f"{lane.verb} {case.name}: {case.headline}")
                        progress.step(f"rejected: {names[-1]}")
            total, bad = right.total(), rejected.total()
            progress.step(
                f"bench products: {first + BUNDLE} networks, {lane.verb}: {total} right programs,"
                f" {bad} rejected"
            )
    rows = {
        row: {"right": right[row], "rejected": rejected[row], "wrong": wrong[row]}
        for row in sorted({*right, *wrong})
    }
    interval = find_interval(rejected.total(), right.total())
    return {"rows": rows, "rejected": names, "interval": interval}


def render_bench(figures: Mapping[str, Any]) -> str:
    """Return the table: a lane and a scheme per row, then the rejected programs."""
    lines = [f"{'':32s} right   rejected   wrong"]
    total = Counter[str]()
    for row, counts in {**figures["rows"]}.items():
        total.update(counts)
        right, rejected, wrong = counts["right"], counts["rejected"], counts["wrong"]
        lines.append(f"{row:32s} {right:5d} {rejected:10d} {wrong:7d}")
    low, high = figures["interval"]
    lines.append(f"{'all':32s} {total['right']:5d} {total['rejected']:10d} {total['wrong']:7d}")
    lines.append(f"95 % interval of the share that is rejected: {low:.2%} to {high:.2%}")
    return "\n".join([*lines, *figures["rejected"]])
