"""Hold what the audit says of models against their programs.

``python -m tests.operators.agreement [NAME...]`` lowers and audits each group of models in
processes of its own and prints a line per case; it exits with 1 if any differs. A name is a part of
a group's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.cases.spec import CaseSpec
from ci.facts.kinds import ON_CPU
from ci.models.schemes import Scheme
from provisioning.doctor.survey.programs import Program, read_program
from tests.integration.emulator.test_realistic_models import write_policy
from tests.stand_ins.runs import JUDGED, run_to_end

# The operators of a program are the out variants of the graph's.
VARIANT = re.compile(r"^\w+(?:::|\.)(\w+?)(?:_copy)?(?:\.\w+)*$")
VIEWS = {"view", "et_view", "squeeze", "unsqueeze"}  # ExecuTorch plans those that move nothing away
WRITES_BACK = "copy_"  # a buffer that the model changes
ROWS = "tests/operators/rows.py:every"
GROUPS = ("rows", "suite", "realistic")
TIMEOUT_S = 3000


@dataclass(frozen=True)
class Compared:
    """A case: how many nodes and partitions its program has, how many operators of the graph, and
    what the audit says otherwise."""

    name: str
    operators: Counter[str]
    on_npu: int
    on_cpu: int
    partitions: int
    differences: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "; ".join(self.differences) or "agrees"
        counts = f"{self.on_npu} on QNN, {self.on_cpu} on the CPU, {self.partitions} partitions"
        return f"{self.name}: {counts}: {verdict}"


def select_models(group: str, place: Path) -> list[str]:
    """The arguments with which both verbs take the models of a group; ``place`` exists."""
    if group == "rows":
        return ["--model", ROWS, *(f"--scheme={scheme}" for scheme in ("fp16", "8a8w", "16a8w"))]
    return ["--policy", str(write_policy(place)) if group == "realistic" else "default"]


def run_verb(verb: str, group: str, place: Path, *words: str) -> None:
    """Run a verb for a group; what it writes is below ``place``."""
    selected_models = select_models(group, place)
    argv = [sys.executable, "-m", "ci", verb, *selected_models, "--reports", str(place)]
    run_to_end([*argv, "--timeout-s", "900", *words], timeout_s=TIMEOUT_S, codes=JUDGED)


def lower_group(group: str, place: Path) -> Path:
    """Lower models, and keep their programs and report in a folder, which is returned."""
    kept_folder = place / "kept"
    run_verb("test-emulator", group, place, "--keep-artifacts", str(kept_folder))
    return kept_folder


def compare_group(group: str, place: Path, kept_folder: Path) -> Iterator[Compared]:
    """Audit models that were lowered, and compare case by case. ``place`` is an empty directory."""
    run_verb("audit", group, place)
    report = json.loads((kept_folder / "report.json").read_text())
    audit = json.loads((place / "audit" / "audit.json").read_text())
    lowered = {(case["model"], case["scheme"], case["soc"]): case for case in report["cases"]}
    programs = {path.parts[-3]: path for path in kept_folder.glob("*/artifact/program.pte")}
    for case in audit["cases"]:
        row = lowered[case["model"], case["scheme"], case["soc"]]
        slug = CaseSpec(case["model"], Scheme(case["scheme"]), case["soc"]).slug
        if slug in programs:
            yield compare_case(case, row, read_program(programs[slug]))
        elif case["partitions"] and all(finding["id"] == ON_CPU.id for finding in case["findings"]):
            why = " ".join(finding["headline"] for finding in row["judgement"]["findings"])
            yield Compared(slug, Counter(), 0, 0, 0, (f"no program: {why}",))


def compare_case(case: Mapping[str, Any], lowered: Mapping[str, Any], read: Program) -> Compared:
    """Compare the audit of a case with its row of the report and with its program's bytes."""
    differences = []
    partitions = sum(len(method.partitions) for method in read.methods)
    if partitions != len(case["partitions"]):
        differences.append(f"{len(case['partitions'])} partitions, the program has {partitions}")
    left = count_named(case["operators"], taken=False)
    called: Counter[str] = Counter()
    for method in read.methods:
        called.update(method.cpu_operators)
    differences += compare_cpu(left, called, case["written_back"])
    for processor, taken in (("npu", True), ("cpu", False)):
        audited = count_named(case["operators"], taken=taken)
        nodes = {
            operator["op"]: operator[processor]
            for operator in lowered["program"]["footprint"]["operators"]
        }
        lowering = Counter({op: number for op, number in nodes.items() if number})
        if audited != lowering:
            differences.append(
                f"{processor}: {show(audited - lowering)} not in the lowering's graph"
            )
            differences.append(
                f"{processor}: {show(lowering - audited)} only in the lowering's graph"
            )
    return Compared(
        f"{Path(case['model']).name} {case['scheme']} {case['soc']}",
        count_named(case["operators"], taken=True) + left,
        count_named(case["operators"], taken=True).total(),
        sum(called.values()),
        partitions,
        tuple(differences),
    )


def compare_cpu(
    left: Counter[str], program_calls: Counter[str], written_back: int
) -> Iterator[str]:
    """Yield how what the audit leaves to the CPU differs from the calls of a program."""
    audited, called = Counter[str](), Counter[str]()
    for counts, bare in ((left, audited), (program_calls, called)):
        for name, number in counts.items():
            bare[name_base(name)] += number
    audited[WRITES_BACK] += written_back
    for name in sorted({*audited, *called}):
        few = called[name] < audited[name] and name not in VIEWS
        if few or called[name] > audited[name]:
            yield f"{name}: {audited[name]} on the CPU, the program calls {called[name]}"


def name_base(operator: str) -> str:
    """``aten::erf.out`` and ``aten.erf.default`` as ``erf``."""
    match = VARIANT.match(operator)
    assert match, operator
    return "view" if match[1] in VIEWS else match[1]


def count_named(rows: Sequence[Mapping[str, Any]], *, taken: bool) -> Counter[str]:
    """How many nodes of each operator the audit says QNN takes, or leaves."""
    counts: Counter[str] = Counter()
    for row in rows:
        if row["taken"] is taken:
            counts[row["op"]] += row["count"]
    return counts


def show(counts: Counter[str]) -> str:
    return ", ".join(f"{op} {number}" for op, number in sorted(counts.items())) or "nothing"


def is_selected(group: str, words: Sequence[str]) -> bool:
    """Without words, every group is."""
    return not words or any(word in group for word in words)


def main(words: Sequence[str]) -> int:
    """Print a line per case, then the figures."""
    cases: list[Compared] = []
    groups = [group for group in GROUPS if is_selected(group, words)]
    for number, group in enumerate(groups, 1):
        print(f"{number}/{len(groups)} {group}", flush=True)
        with tempfile.TemporaryDirectory() as place:
            try:
                compared = list(compare_group(group, Path(place), lower_group(group, Path(place))))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                compared = [Compared(group, Counter(), 0, 0, 0, (str(error)[-800:],))]
        print("".join(f"  {comparison}\n" for comparison in compared), end="", flush=True)
        cases += compared
    names = {op for case in cases for op in case.operators}
    nodes = sum(case.operators.total() for case in cases)
    wrong = sum(bool(case.differences) for case in cases)
    print(
        f"{len(cases)} programs, {len(names)} operators, {nodes} nodes,"
        f" {sum(case.on_cpu for case in cases)} calls of the CPU: {len(cases) - wrong} agree,"
        f" {wrong} do not"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
