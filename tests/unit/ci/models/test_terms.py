"""The terms of operators: which version of QNN has which."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.models.rounding import FLOAT16, NO_TERM, list_files, read_terms, take_term
from provisioning.manifest.reader import MANIFESTS_VARIABLE


@pytest.mark.parametrize(
    ("measured", "version", "used"),
    [
        (["2.49.40"], "2.49.40", "2.49.40"),
        (["2.49.40"], "2.51.0", "2.49.40"),
        (["2.49.40"], "2.41.0", "2.49.40"),
        (["2.9.0", "2.10.0", "2.49.40"], "2.48.0", "2.10.0"),
        ([], "2.49.40", ""),
    ],
)
def test_a_version_of_qnn_has_the_terms_of_the_nearest_older_one(
    measured: list[str], version: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rounding").mkdir()
    for one in measured:
        text = f'term = [{{ operator = "{one}", numbers = "8" }}]\n'
        (tmp_path / "rounding" / f"{one}.toml").write_text(text, "utf-8")
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path))
    assert [key[0] for key in read_terms(version)] == ([used] if used else [])


def test_the_measured_terms_are_errors_of_known_types() -> None:
    for path in list_files():
        terms = read_terms(path.stem)
        assert {one.numbers for one in terms.values()} == {FLOAT16, "8", "16"}
        assert all(one.power(1.0) > 0 and one.graphs for one in terms.values())
        assert take_term(terms, "gelu", "16").steps > take_term(terms, "neg", "16").steps
        assert take_term(terms, "gelu", "16", "layer") == take_term(terms, "gelu", "16")
        assert take_term(terms, "unknown", "16") == NO_TERM
