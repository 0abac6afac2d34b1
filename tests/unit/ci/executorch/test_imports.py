"""Which modules the fork server imports before it starts workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.executorch import BYTECODE, COMPILER, IMPORTS, choose_imports


@pytest.mark.parametrize(
    ("entry", "use_cache", "plain", "compiles"),
    [
        ("", True, False, True),
        ("", True, True, False),  # the patches of the compiler must not be applied
        ("ab/abcd", True, False, False),  # perhaps no case has to be compiled
        ("ab/abcd", False, False, True),
        ("lowering.x/abcd", True, False, True),  # of a run that was killed
    ],
)
def test_the_compiler_is_imported_once_for_all_workers_if_every_case_needs_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: str,
    use_cache: bool,
    plain: bool,
    compiles: bool,
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    (tmp_path / "lowered" / entry).mkdir(parents=True)
    modules = choose_imports(use_cache=use_cache, plain=plain)
    assert modules == ((BYTECODE, *IMPORTS, COMPILER) if compiles else IMPORTS)
