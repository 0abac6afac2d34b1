"""docs/reference/exit-codes.md is the error tree, and what an error says as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from provisioning import errors
from provisioning.console.command import run_command
from provisioning.errors import ExitCode, QnnCiError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def test_the_page_of_exit_codes_agrees_with_the_error_tree() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \| `(\w+)` \| (.*?) ?\|", PAGE.read_text(encoding="utf-8"))
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, QnnCiError) and kind is not QnnCiError
    ]
    assert [(int(code), name) for code, name, _ in rows] == [(c.value, c.name) for c in ExitCode]
    for code, _, names in rows:
        expected = {kind.__name__ for kind in kinds if kind.exit_code == int(code)}
        assert set(re.findall(r"`(\w+)`", names)) == expected
    assert sum(len(re.findall("`", names)) for _, _, names in rows) == 2 * len(kinds)


def test_the_page_names_the_keys_of_an_error_s_record(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = run_command("p", {}, ["nonsense", "--json"])
    (sentence,) = re.findall(r"(?s)on stdout as (.*?)\.", PAGE.read_text(encoding="utf-8"))
    assert re.findall(r"`(\w+)`", sentence) == list(json.loads(text))
    assert "unknown verb 'nonsense'" in capsys.readouterr().err
