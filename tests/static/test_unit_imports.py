"""`./nox -s unit` needs neither torch nor ONNX: a test that imports them says so first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.stand_ins.sources import parse_source

ROOT = Path(__file__).parents[2]
MISSING = {"executorch", "onnx", "onnxruntime", "onnxruntime_qnn", "onnxscript", "torch", "torchao"}


def list_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, without types' imports."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test):
            yield from list_statements([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.With):
            yield from list_statements(statement.body)


@cache
def find_module(name: str) -> Path | None:
    base = ROOT / name.replace(".", "/")
    return next(
        (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None
    )


@cache
def list_imports(path: Path) -> frozenset[str]:
    """The modules that ``path`` imports itself before it may skip its tests."""
    modules: set[str] = set()
    text = path.read_text("utf-8")
    skips = "importorskip" in text  # few do, and to write out all statements takes seconds
    for statement in list_statements(parse_source(text).body):
        if isinstance(statement, ast.FunctionDef):
            continue
        if skips and "importorskip" in ast.unparse(statement):
            break
        if isinstance(statement, ast.Import):
            modules |= {name.name for name in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            modules |= {f"{statement.module}.{name.name}" for name in statement.names}
    parents = (name.rsplit(".", count)[0] for name in modules for count in range(name.count(".")))
    return frozenset({*modules, *parents})


def find_missing(path: Path) -> set[str]:
    """Which of MISSING are imported with ``path``, by itself or through this project's modules."""
    reached, waiting, missing = {path}, [path], set[str]()
    while waiting:
        for name in list_imports(waiting.pop()):
            if name.partition(".")[0] in MISSING:
                missing.add(name.partition(".")[0])
            elif (module := find_module(name)) and module not in reached:
                reached.add(module)
                waiting.append(module)
    return missing


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("import torch.fx", {"torch"}),
        ("def test():\n    import torch", set()),
        ("from ci.faults import generate", {"torch"}),
        ('import pytest\npytest.importorskip("torch")\nimport torch', set()),
        ("if TYPE_CHECKING:\n    import onnx", set()),
        ("if True:\n    import onnx", {"onnx"}),
    ],
)
def test_an_import_is_found_wherever_it_is_made(
    tmp_path: Path, text: str, missing: set[str]
) -> None:
    (tmp_path / "test_it.py").write_text(text)
    assert find_missing(tmp_path / "test_it.py") == missing


def test_unit_tests_are_collected_without_torch_and_onnx() -> None:
    folder = ROOT / "tests" / "unit"
    apart = {
        conftest.parent
        for conftest in folder.rglob("conftest.py")
        if "importorskip" in conftest.read_text("utf-8")
    }
    missing_by_file = {
        str(path.relative_to(ROOT)): find_missing(path)
        for path in sorted(folder.rglob("*.py"))
        if path.parent not in apart
    }
    assert {name: missing for name, missing in missing_by_file.items() if missing} == {}
