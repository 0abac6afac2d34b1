"""The page of ``test`` has the figures that each runtime's own verb reports alone, for real models:
a red one, and one of several outputs; in float and quantized."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ci.report.runtimes import FIGURES, NOTHING, TITLES
from ci.verbs.environments import choose_runtimes
from ci.verbs.runtimes import RUNTIMES
from tests.integration.conftest import MakeOnce
from tests.stand_ins.runs import JUDGED, ROOT, run_to_end

pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
MODELS = [f"tests/realistic/{name}" for name in ("lost.py:positions", "sequences.py:router")]
SCHEMES = ("fp16", "8a8w")
CHOSEN = [word for model in MODELS for word in ("--model", model)]
SOC = "SM8650"
# The titles of the lanes' columns, of which the nodes on the CPU are all that are not delegated.
LANE_TITLES = dict(zip(FIGURES, ("status", "SQNR dB", "estimate ms", "program size"), strict=False))
Figures = dict[tuple[str, str, str], dict[str, str]]  # by the model, the runtime and the scheme


class Rows(HTMLParser):
    """The rows of a page's tables: the text of each cell by the title of its column. The first one
    is the model."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self.column = ""
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "tr":
            self.rows.append({})
        elif tag == "th" and self.rows and "title" in values:
            self.rows[-1]["model"] = values["title"] or ""
        elif tag == "td" and self.rows:
            self.column = values.get("data-label") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self.column = ""

    def handle_data(self, data: str) -> None:
        if self.column:
            self.rows[-1][self.column] = self.rows[-1].get(self.column, "") + data


def list_pythons() -> dict[str, str]:
    """The Python of each runtime: that of an environment of ./nox, or this one."""
    pythons = {}
    for name, group in choose_runtimes(CHOSEN).items():
        made_by_nox = ROOT / ".nox" / group / "bin" / "python"
        modules, _ = RUNTIMES[name].modules.choose(has_functions=True)
        if made_by_nox.exists():
            pythons[name] = str(made_by_nox)
        elif all(map(importlib.util.find_spec, modules)):
            pythons[name] = sys.executable
    return pythons


def read_common(page: Path) -> Iterator[tuple[tuple[str, str, str], dict[str, str]]]:
    runtimes = {title: name for name, title in TITLES.items()}
    for row in Rows(page).rows:
        if row.get("runtime") in runtimes:
            row["verdict"] = row[SOC]
            figures = {figure: row[figure].strip() for figure in FIGURES}
            yield (row["model"], runtimes[row["runtime"]], row["scheme"]), figures


def read_lane(page: Path, runtime: str) -> Iterator[tuple[tuple[str, str, str], dict[str, str]]]:
    for row in Rows(page).rows:
        if row.get("model") in MODELS and "status" in row:
            delegated, _, nodes = row.get("delegated", NOTHING).partition("/")
            figures = {figure: row.get(title, NOTHING) for figure, title in LANE_TITLES.items()}
            figures["on CPU"] = str(int(nodes) - int(delegated)) if nodes else NOTHING
            yield (row["model"], runtime, row["scheme"]), figures


@pytest.fixture(scope="module")
def common(make_once: MakeOnce) -> Figures:
    """The figures of the page of all runtimes that this machine has."""
    pythons = list_pythons()

    def judge(folder: Path) -> None:
        words = [sys.executable, "-m", "ci", "test", *CHOSEN, "--reports", str(folder)]
        words += [word for scheme in SCHEMES for word in ("--scheme", scheme)]
        for name, python in pythons.items():
            words += ["--runtime", name, "--python", f"{name}={python}"]
        run_to_end(words, timeout_s=3000, codes=JUDGED)

    folder = make_once("runtimes", judge)
    return dict(read_common(folder / "test" / "index.html"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_common_page_has_the_figures_of_the_lane_alone(
    runtime: str, common: Figures, tmp_path: Path
) -> None:
    python = list_pythons().get(runtime)
    if not python:
        pytest.skip(f"no environment for {TITLES[runtime]}: ./nox -s test makes one")
    verb = RUNTIMES[runtime].verb
    words = [python, "-m", "ci", verb, *CHOSEN, "--estimate", "--reports", str(tmp_path)]
    words += [
        word for name in RUNTIMES[runtime].find_schemes(SCHEMES) for word in ("--scheme", name)
    ]
    words += ["--diagnose", "0"]  # no figure depends on experiments
    run_to_end(words, timeout_s=3000, codes=JUDGED, env={**os.environ, "PYTHONPATH": str(ROOT)})
    alone = dict(read_lane(tmp_path / verb.replace("-", "_") / "index.html", runtime))
    shared = {key: figures for key, figures in common.items() if key[1] == runtime}
    assert {model for model, _, _ in alone} == {*MODELS}
    assert shared == alone
