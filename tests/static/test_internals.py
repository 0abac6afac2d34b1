"""What is used of ExecuTorch is in one module, and on its page."""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from ci.executorch import internals

ROOT = Path(__file__).parents[2]
IMPORT = re.compile(r"^\s*(?:from|import) executorch[.\s]", re.MULTILINE)
# They run in an interpreter that may lack this project, and a user's model.
ELSEWHERE = {
    "ci/audit/templates/reproducer.txt",
    "ci/builds/proof_program.py",
    "ci/faults/templates/executorch.txt",
    "ci/faults/templates/executorch_quantize.txt",
    "ci/models/suite/mlp.py",
    "provisioning/doctor/survey/qnn_probe.py",
}


def test_no_other_module_imports_executorch() -> None:
    files = [
        path
        for room, suffix in product(("ci", "provisioning"), ("py", "txt"))
        for path in (ROOT / room).rglob(f"*.{suffix}")
    ]
    importing = {str(path.relative_to(ROOT)) for path in files if IMPORT.search(path.read_text())}
    assert importing == ELSEWHERE


def test_the_page_of_pairs_lists_every_executorch_internal() -> None:
    page = (ROOT / "docs/reference/pairs.md").read_text()
    rows = []
    for name, places in internals.PLACES.items():
        quoted = ", ".join(f"`{place}`" for place in places)
        rows.append(f"| `{name}` | {quoted} |")
    assert "\n".join(rows) in page


@pytest.mark.skipif(find_spec("executorch") is None, reason="ExecuTorch is not installed")
def test_an_executorch_internal_is_looked_up_in_each_of_its_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(internals.PLACES, "moved", ("nowhere:one", "version:__version__"))
    assert internals.moved == internals.find("version:__version__")
    monkeypatch.setitem(internals.PLACES, "gone", ("version:gone",))
    with pytest.raises(AttributeError, match="gone"):
        _ = internals.gone
    with pytest.raises(AttributeError, match="neither"):
        _ = internals.neither
