"""Let the audit judge the rows of tests/operators/rows.py, and write what it says.

``python -m tests.operators.survey [SCHEME...]`` runs ``qnn-ci audit`` and writes found.json and the
table in docs/findings/operators.md; ``--check`` compares instead, and exits with 1 on a difference;
``--render`` writes the table of what is found already.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.facts.kinds import NOT_LOWERED
from provisioning.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
FILE, FOUND = "tests/operators/rows.py", Path(__file__).with_name("found.json")
PAGE = ROOT / "docs" / "findings" / "operators.md"
BEGIN, END = "<!-- rows -->\n", "<!-- end of rows -->\n"
# Float16 by generation of the HTP, 16 bits also before Hexagon V73 (SA8295 has V68).
ASKED = {
    "fp16": ("SM8650", "SM8550", "SM8750", "QCM6490"),
    "8a8w": ("SM8650",),
    "16a8w": ("SM8650", "SA8295"),
    "16a16w": ("SM8650", "SA8295"),
}
VARYING = ("rope_dynamic", "topk_dynamic", "branch")
TAKEN, TOOLS = "taken", ("executorch", "qnn-runtime")
MARK = re.compile(r"# row: (\w+)")
# What is claimed in articles on ExecuTorch and QNN, and what is so.
CLAIMS = {
    "linear": ("nn.Linear (INT8)", "full"),
    "layer_norm": ("nn.LayerNorm, last axis", "full in INT8 and INT16"),
    "embedding": ("nn.Embedding (INT8)", "full"),
    "sdpa": ("F.scaled_dot_product_attention", "partial, needs explicit fusion"),
    "attention": ("attention by matmul and softmax", "falls back unless it is fused"),
    "rope": ("rotary embedding, fixed shape", "static shapes only"),
    "rope_dynamic": ("rotary embedding, length depends on data", "falls back to the CPU"),
    "gelu_tanh": ("nn.GELU, tanh form", "full"),
    "gelu": ("nn.GELU, exact form", "falls back: erf is not in HTP's kernels"),
    "gelu_erf": ("GELU written with torch.erf", "falls back"),
    "where": ("torch.where, condition depends on data", "falls back"),
    "branch": ("torch.cond", "falls back"),
    "matmul": ("matmul of two activations", "FP32 as FP16 only on SM8750, else on the CPU"),
    "topk": ("torch.topk, fixed k", "taken"),
    "topk_dynamic": ("torch.topk, k depends on data", "falls back to the CPU"),
}
ENDED = re.compile(r"ends with an error|partitioner fails")
OPERATOR = re.compile(r"^[\w.]+: ")
UNKNOWN_SIZE = re.compile(r"\bu\d+\b")  # torch counts these on with each trace of a program
MOST = 240
Answers = dict[str, dict[str, dict[str, str]]]  # row, scheme, SoC: TAKEN or why not


def run_audit(names: Sequence[str], scheme: str, socs: Sequence[str]) -> Any:
    """What the verb says of factories of rows.py, by its JSON."""
    words = [word for name in names for word in ("--model", f"{FILE}:{name}")]
    words += ["--timeout-s", "900", "--scheme", scheme]
    words += [word for soc in socs for word in ("--soc", soc)]
    with tempfile.TemporaryDirectory() as reports:
        argv = [sys.executable, "-m", "ci", "audit", "--json", "--reports", reports, *words]
        ended = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode not in {ExitCode.OK, ExitCode.FAILED}:
        raise SystemExit(ended.returncode)
    return json.loads(ended.stdout)


def read_answers(audit: Mapping[str, Any]) -> Answers:
    """Each row's answer, by the lines of the operators that stay on the CPU."""
    answers: Answers = {}
    marks = [MARK.search(line) for line in (ROOT / FILE).read_text("utf-8").splitlines()]
    for case in audit["cases"]:
        factory = case["model"].rpartition(":")[2]
        reason = "; ".join(map(explain, case["findings"]))
        rows = {mark[1] for mark in marks if mark} - {*VARYING}
        refused: dict[str, str] = {}
        rows_with_line: set[str] = set()  # a decomposition may lose the line
        lost = [operator for operator in case["operators"] if not operator["taken"]]
        for operator_row in case["operators"]:
            mark = (
                marks[operator_row["line"] - 1]
                if operator_row["line"] and "rows.py" in operator_row["file"]
                else None
            )
            if mark:
                rows_with_line.add(mark[1])
            if not operator_row["taken"] and mark:
                refused.setdefault(mark[1], f"{operator_row['op']}: {operator_row['reason']}")
                lost.remove(operator_row)
        for row in (factory,) if factory in VARYING else sorted(rows):
            answer = refused.get(row, TAKEN)
            if answer == TAKEN and "ends with an error" in reason and factory in VARYING:
                answer = reason
            if row not in rows_with_line and lost and answer == TAKEN:
                answer = f"{lost[0]['op']}: {lost[0]['reason']}"
            if not any(operator["taken"] for operator in case["operators"]) and answer == TAKEN:
                answer = reason
            answers.setdefault(row, {}).setdefault(case["scheme"], {})[case["soc"]] = answer
    return answers


def explain(finding: Mapping[str, Any]) -> str:
    """A finding's headline, or the error that ended a lowering, of which a headline shows less."""
    if finding["id"] == NOT_LOWERED.id and finding["evidence"]:
        error = UNKNOWN_SIZE.sub("u0", finding["evidence"].splitlines()[0])
        return f"a lowering ends with an error: {error}"
    return str(finding["headline"])


def survey(schemes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Ask for everything in these schemes, scheme by scheme."""
    for scheme in schemes:
        audits = [run_audit(("every",), scheme, ASKED[scheme])]
        if scheme == "fp16":
            audits.append(run_audit(VARYING, scheme, ("SM8650",)))
        for audit in audits:
            tools = {tool["name"]: tool["version"] for tool in audit["toolchain"]}
            versions = {name: tools[name] for name in TOOLS if name in tools}
            yield {"versions": versions, "answers": read_answers(audit)}


def merge(recorded: dict[str, Any], answered: Mapping[str, Any]) -> dict[str, Any]:
    """What was found, with what was found since."""
    answers: Answers = {
        row: {**by_scheme_recorded}
        for row, by_scheme_recorded in recorded.get("answers", {}).items()
    }
    for row, by_scheme in answered["answers"].items():
        answers.setdefault(row, {}).update(by_scheme)
    return {"versions": answered["versions"], "answers": answers}


def render_rows(recorded: Mapping[str, Any]) -> str:
    """The table of docs/findings/operators.md."""
    answers: Answers = recorded["answers"]
    answered_schemes = set().union(*answers.values())
    schemes = [scheme for scheme in ASKED if scheme in answered_schemes]
    lines = [
        f"| operator | often claimed | {' | '.join(schemes)} |",
        "|" + " --- |" * (len(schemes) + 2),
    ]
    for row, (name, claim) in CLAIMS.items():
        if row in answers:
            cells = [show_answers(answers[row].get(scheme, {})) for scheme in schemes]
            lines.append(f"| {name} | {claim} | {' | '.join(cells)} |")
    reasons = "The following list has the reason for each answer other than `taken`:"
    lines += ["", reasons, "", *list_reasons(answers)]
    return "".join(f"{line}\n" for line in lines)


def show_answers(by_soc: Mapping[str, str]) -> str:
    """``taken``, ``CPU``, or which SoCs leave it to the CPU."""
    if not by_soc:
        return "not asked"
    left = [soc for soc, answer in by_soc.items() if answer != TAKEN]
    if any(ENDED.search(answer) for answer in by_soc.values()):
        return "ends the lowering"
    if not left:
        return TAKEN
    return "CPU" if len(left) == len(by_soc) else f"taken, not by {', '.join(left)}"


def list_reasons(answers: Answers) -> Iterator[str]:
    """Each reason for which rows stay on the CPU, and where it is given for which."""
    where: dict[str, dict[str, list[str]]] = {}
    for row, by_scheme in answers.items():
        for scheme, by_soc in by_scheme.items():
            for soc, answer in by_soc.items():
                if answer != TAKEN:
                    reason = OPERATOR.sub("", answer)
                    rows = where.setdefault(reason, {}).setdefault(f"{scheme} on {soc}", [])
                    rows.append(CLAIMS[row][0])
    for reason, places in where.items():
        groups: dict[str, list[str]] = {}
        for place, rows in places.items():
            groups.setdefault("; ".join(sorted(set(rows))), []).append(place)
        for rows, places_of_rows in groups.items():
            cut = reason if len(reason) <= MOST else f"{reason[:MOST]}..."
            yield f"- {', '.join(places_of_rows)} ({rows}): `{cut}`"


def write_page(page: str, rows: str) -> str:
    """The page with the table."""
    head, _, after = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{rows}\n{END}{after.partition(END)[2]}"


def main() -> int:
    words = [scheme for scheme in sys.argv[1:] if scheme in ASKED] or [*ASKED]
    recorded = json.loads(FOUND.read_text("utf-8")) if FOUND.is_file() else {}
    if "--render" not in sys.argv:
        for answered in survey(words):
            merged = merge(recorded, answered)
            if "--check" in sys.argv and merged != recorded:
                sys.stdout.write(f"not as recorded: {json.dumps(answered, indent=1)}\n")
                return 1
            recorded = merged
            FOUND.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", "utf-8")
    rows = render_rows(json.loads(FOUND.read_text("utf-8")))
    PAGE.write_text(write_page(PAGE.read_text("utf-8"), rows), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
