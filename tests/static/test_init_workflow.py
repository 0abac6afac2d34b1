"""The workflow that ``qnn-ci init`` writes is one that the linters of this project accept."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.verbs.init import WORKFLOW, make_workflow
from tests.workflows.lint import PROGRAMS, check_schema, run_linter

USES = "example/executorch-qnn-ci@" + "0a" * 20


@pytest.mark.skipif(not (PROGRAMS / "zizmor").exists(), reason="the lint environment has zizmor")
def test_the_workflow_that_init_writes_passes_zizmor_and_its_schema(tmp_path: Path) -> None:
    path = tmp_path / WORKFLOW
    path.parent.mkdir(parents=True)
    text = make_workflow(USES, "a folder/qnn.toml")
    path.write_text(text)
    words = ("zizmor", "--offline", "--quiet", "--persona=auditor")
    assert check_schema("vendor.github-workflows", [path]) == []
    assert run_linter(*words, str(tmp_path / ".github")) == []
    path.write_text(text.replace("0a" * 20, "main"))
    assert run_linter(*words, str(tmp_path / ".github"))
    path.write_text(text.replace("jobs:", "job:"))
    assert check_schema("vendor.github-workflows", [path])
