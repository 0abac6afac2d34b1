"""Ask the provider about every case of operators.py, and put the answers into a table.

``python -m tests.qnn_provider.survey`` takes minutes; it writes operators.toml beside it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.qnn_provider.asking import SOC, STRICT, ask_process
from tests.qnn_provider.operators import KINDS, Case, list_cases, write_case
from tests.qnn_provider.table import (
    TABLE,
    Answer,
    Operator,
    OperatorTable,
    Row,
    read_operators,
)

BATCH = 60
REASON = re.compile(r"REASON : (.*)")
QNN_CODE = re.compile(r"of type `(\w+)` with error code (\d+)")
NODE = re.compile(r" ?\w+ node `[^`]*` will not be assigned to QNN EP\.?| node `[^`]*`")
RUNNING = re.compile(r"Non-zero status code returned .* Status Message: ")
LEAST_DB = {"float32": 35.0, "float16": 35.0, "u8": 12.0, "u16": 35.0}


@dataclass(frozen=True)
class Said:
    """``verdict`` is one of Answer, or invalid for what is no ONNX."""

    case: Case
    verdict: str
    reason: str = ""
    agreement: float | None = None


def survey(cases: Sequence[Case]) -> Iterator[Said]:
    """An answer a case; a process that dies costs the case that it died of."""
    waiting = list(cases)
    with tempfile.TemporaryDirectory() as folder:
        while waiting:
            batch = waiting[:BATCH]
            answers = _ask(batch, Path(folder))
            for case, answer in zip(batch, answers, strict=False):
                yield _judge(case, answer)
            waiting = waiting[len(answers) :]
            if len(answers) < len(batch):
                yield Said(waiting.pop(0), "crashed", "the process crashed")


def _ask(cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    requests = []
    for place, case in enumerate(cases):
        path = write_case(case, folder / f"{place}.onnx")
        request = {
            "model": str(path),
            "options": SOC,
            "entries": STRICT,
            "compare": [*case.span, case.step],
        }
        requests.append(request)
    lines = ask_process(requests).output.splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"session"')]


def _judge(case: Case, answer: dict[str, Any]) -> Said:
    if "This is an invalid model" in answer["error"]:
        return Said(case, "invalid")
    if not answer["session"]:
        return Said(case, "refused", find_reason(answer))
    agreement = answer.get("agreement")
    least_db = LEAST_DB.get(case.kind, 99.0)
    right = agreement is None or agreement >= least_db
    return Said(case, "taken" if right else "wrong", "", agreement)


def find_reason(answer: dict[str, Any]) -> str:
    """The provider's reason, and QNN's code, in a line."""
    reasons = [NODE.sub("", match).strip() for match in REASON.findall(answer["log"])]
    reason = reasons[0] if reasons else answer["error"].split(" : ")[-1].strip()
    reason = RUNNING.sub("the session is created, but a run fails: ", reason)
    codes = QNN_CODE.findall(answer["log"])
    return f"{reason} (QNN's {codes[0][0]}: error {codes[0][1]})" if codes else reason


def tabulate(answers: Sequence[Said]) -> list[Operator]:
    """Operators in the order of the cases; rows with the same answer in one."""
    groups: dict[str, dict[tuple[str, ...], dict[int, set[str]]]] = {}
    for answer in answers:
        if answer.verdict == "invalid":
            continue
        case = answer.case
        name = f"{case.domain}:{case.op}" if case.domain else case.op
        kinds_by_rank = groups.setdefault(name, {}).setdefault(
            (case.variant, answer.verdict, answer.reason), {}
        )
        kinds_by_rank.setdefault(case.rank, set()).add(case.kind)
    return [Operator(name, tuple(_rows(groups[name]))) for name in sorted(groups)]


def _rows(group: dict[tuple[str, ...], dict[int, set[str]]]) -> Iterator[Row]:
    for (variant, verdict, reason), by_rank in group.items():
        ranks_of: dict[str, list[int]] = {}
        for rank, kinds in by_rank.items():
            for kind in kinds:
                ranks_of.setdefault(kind, []).append(rank)
        alike: dict[tuple[int, ...], list[str]] = {}
        for kind in sorted(ranks_of, key=list(KINDS).index):
            alike.setdefault(tuple(sorted(ranks_of[kind])), []).append(kind)
        for ranks, kinds_of_row in alike.items():
            yield Row(Answer(verdict), tuple(kinds_of_row), ranks, variant, reason)


def render(operators: Sequence[Operator], table: OperatorTable) -> str:
    """The whole file; its head is that of ``table``."""
    head = TABLE.read_text("utf-8").partition("provider = ")[0]
    listed = "\n  ".join(textwrap.wrap(", ".join(map(json.dumps, table.listed)), 96))
    lines = [f'{head}provider = "{table.provider}"', f'qnn = "{table.qnn}"', f'soc = "{table.soc}"']
    lines += [f"listed = [\n  {listed},\n]", "", "[rows]"]
    for operator in operators:
        rows = [_inline(row) for row in operator.rows]
        value = rows[0] if len(rows) == 1 else "\n" + "".join(f"  {row},\n" for row in rows)
        lines.append(
            f"{operator.name if operator.name.isalnum() else json.dumps(operator.name)} = [{value}]"
        )
    return "\n".join(lines) + "\n"


def _inline(row: Row) -> str:
    parts = [f'answer = "{row.answer.value}"', f"kinds = {json.dumps(row.kinds)}"]
    parts.append(f"ranks = {json.dumps(row.ranks)}")
    parts += [f"variant = {json.dumps(row.variant)}"] * bool(row.variant)
    parts += [f"reason = {json.dumps(row.reason)}"] * bool(row.reason)
    return "{ " + ", ".join(parts) + " }"


if __name__ == "__main__":
    answered = []
    for answer in survey(list(list_cases())):
        answered.append(answer)
        sys.stderr.write(f"{answer.case.key}: {answer.verdict} {answer.agreement}\n")
    TABLE.write_text(render(tabulate(answered), read_operators()), "utf-8")
