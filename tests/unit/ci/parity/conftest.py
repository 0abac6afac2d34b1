"""Miniature trees: files in a dictionary become a directory, and its findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import msgspec
import pytest

from ci.parity.compare.findings import Finding, ParityReport
from ci.parity.policy import Layout, ParityPolicy
from ci.parity.run import ParityRequest, compare_trees
from provisioning.manifest.reader import read_policy
from tests.stand_ins.text_tree import TextTree

LAYOUT = read_policy("parity", ParityPolicy).layout
POLICY = ParityPolicy(
    tests=("**/test/**", "test/**"),
    android_only=("*_android_build",),
    ignored_defines=("NDEBUG",),
)
LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
MACRO = 'load(":targets.bzl", "define_common_targets")\n\ndefine_common_targets()\n'

Files = Mapping[str, str]


def library(name: str, source: str, options: str = "") -> str:
    """A build file with one library."""
    return LOAD + f'runtime.cxx_library(name = "{name}", srcs = ["{source}"], {options})\n'


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[Files], Path]:
    """Write files below a fresh directory."""

    def write(files: Files) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def report() -> Callable[..., ParityReport]:
    """Compare a miniature tree."""

    def compare(files: Files, policy: ParityPolicy = POLICY, **options: object) -> ParityReport:
        today = date(2026, 1, 1)
        request = ParityRequest(source=Path(), today=today, **options)  # type: ignore[arg-type]
        policy = msgspec.structs.replace(policy, layout=Layout())  # of any project
        return compare_trees(TextTree(files, LAYOUT), None, request, policy)

    return compare


@pytest.fixture
def findings(report: Callable[..., ParityReport]) -> Callable[..., list[Finding]]:
    """The findings of a miniature tree."""

    def compare(files: Files, policy: ParityPolicy = POLICY, **options: object) -> list[Finding]:
        return list(report(files, policy, **options).findings)

    return compare


@pytest.fixture
def pairs(findings: Callable[..., list[Finding]]) -> Callable[..., set[tuple[str, str]]]:
    """Kind and path of each finding of a miniature tree."""

    def compare(
        files: Files, policy: ParityPolicy = POLICY, **options: object
    ) -> set[tuple[str, str]]:
        return {(f.kind.value, f.path) for f in findings(files, policy, **options)}

    return compare
