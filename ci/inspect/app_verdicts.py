"""Checks whether an Android app can run QNN, without a device."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ci.inspect.app_checks import find_extraction, is_unread, judge_unit, lacks_only_files
from ci.inspect.app_trees import read_app
from ci.inspect.apps import QNN_ABI, AppUnit, Kind
from ci.inspect.litert_libraries import describe_releases
from ci.report.text import show_bytes
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.doctor.examine import Verdict
from provisioning.doctor.registry import Finding
from provisioning.doctor.verdict_text import WIDTH, render_verdict
from provisioning.errors import ExitCode
from provisioning.files import scratch_directory

SCHEMA_VERSION = 2
LEAST_WIDTH = 40  # columns
# A file belongs to the first component whose pattern matches its name.
COMPONENTS = {
    "QNN, HTP skels": r"libQnn(Htp|Dsp)V\w+Skel.*",
    "QNN, HTP stubs": r"libQnn(Htp|Dsp)V\w+Stub.*",
    "QNN, graph preparation": r"libQnnHtpPrepare\.so|libHtpPrepare\.so",
    "QNN, others": r"lib(Qnn|Genie).*",
    "SNPE": r"lib(Snpe|SNPE).*",
    "ExecuTorch": r"lib(qnn_)?executorch.*|libfbjni\.so",
    "ONNX Runtime": r"libonnxruntime.*",
    "LiteRT": r"libLiteRt.*|liblitert.*|libtensorflowlite.*",
    "C++ runtime": r"libc\+\+.*",
    "programs": r".*\.(pte|bin|onnx|dlc|tflite|litertlm)",
}


@dataclass(frozen=True)
class CheckedUnit:
    """An app, or a library, with its findings."""

    unit: AppUnit
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the findings as the verdict on the unit."""
        return Verdict(self.unit.name, self.findings)

    def exit_code(self, *, strict: bool) -> ExitCode:
        """Return ENVIRONMENT if the unit only lacks files, FAILED for errors and, if ``strict``,
        for warnings, ENVIRONMENT if its libraries are not known, otherwise OK."""
        if lacks_only_files(self.unit, self.findings):
            return ExitCode.ENVIRONMENT
        verdict = self.verdict
        if verdict.errors or (strict and verdict.warnings):
            return ExitCode.FAILED
        return ExitCode.ENVIRONMENT if is_unread(self.findings) else ExitCode.OK


def choose_exit(checked: Sequence[CheckedUnit], *, strict: bool) -> ExitCode:
    """Return FAILED if any unit failed, otherwise ENVIRONMENT if one is an incomplete copy,
    otherwise OK."""
    codes = {checked_unit.exit_code(strict=strict) for checked_unit in checked}
    by_severity = (ExitCode.FAILED, ExitCode.ENVIRONMENT, ExitCode.OK)
    return next(code for code in by_severity if code in codes)


def render_units(checked: Sequence[CheckedUnit], *, strict: bool, width: int) -> str:
    """Return a description of each unit with the sizes of its components and its verdict."""
    lines = []
    for checked_unit in checked:
        unit = checked_unit.unit
        extraction = {True: "yes", False: "no", None: "unknown"}[find_extraction(unit)]
        level = unit.min_sdk if unit.min_sdk is not None else "not stated"
        qnn = ", ".join(_builds(unit)) or "unknown"
        lines += [
            f"{unit.name} ({unit.kind.value}), minSdk {level}, libraries extracted: {extraction}",
            f"  ABIs: {', '.join(unit.abis) or 'none'}; QNN: {qnn}",
        ]
        for file, versions in unit.litert_libraries:
            lines.append(f"  {file.name} for {file.abi}: {describe_releases(versions)}")
        for name, (count, size, packed) in measure(unit).items():
            is_packed = packed and unit.kind in {Kind.APK, Kind.AAR}
            within = f", {show_bytes(packed)} in the archive" if is_packed else ""
            files = f"{count:>4} file{'s' if count > 1 else ' '}"
            lines.append(f"  {name:<24} {files} {show_bytes(size):>9}{within}")
        unknown = is_unread(checked_unit.findings)
        text = render_verdict(checked_unit.verdict, strict=strict, width=width, unknown=unknown)
        lines += ["", text]
    return "\n".join(lines)


def measure(unit: AppUnit) -> dict[str, tuple[int, int, int]]:
    """Return the number of files, the bytes and the bytes in the archive for each component. The
    largest component is first. Assets and libraries for QNN's ABI are grouped by ``COMPONENTS``.
    The libraries for each other ABI form one component."""
    components: dict[str, tuple[int, int, int]] = {}
    for file in (*unit.libraries, *unit.assets):
        names = (name for name, pattern in COMPONENTS.items() if re.fullmatch(pattern, file.name))
        is_other = file.abi not in {QNN_ABI, ""}
        name = f"all for {file.abi}" if is_other else next(names, "other libraries")
        count, size, packed = components.get(name, (0, 0, 0))
        components[name] = (count + 1, size + file.size_bytes, packed + (file.packed_bytes or 0))
    return dict(sorted(components.items(), key=lambda row: -row[1][1]))


def _builds(unit: AppUnit) -> list[str]:
    """Return the versions of QNN of a unit's libraries."""
    builds = (file.build for file in unit.tree.files if file.name.startswith("lib"))
    return sorted({build.version for build in builds if build and build.version})


def data_of(
    app: str, checked: Sequence[CheckedUnit], socs: Sequence[str], *, strict: bool
) -> dict[str, Any]:
    """Return the checked app as data for JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "app": app,
        "socs": list(socs),
        "strict": strict,
        "fit": choose_exit(checked, strict=strict) is ExitCode.OK,
        "units": list(map(_unit_data, checked)),
    }


def _unit_data(checked_unit: CheckedUnit) -> dict[str, Any]:
    """Return a checked unit as data for JSON."""
    unit, verdict = checked_unit.unit, checked_unit.verdict
    components = [
        {"name": name, "files": count, "bytes": size, "packed_bytes": packed or None}
        for name, (count, size, packed) in measure(unit).items()
    ]
    return {
        "name": unit.name,
        "kind": unit.kind.value,
        "min_sdk": unit.min_sdk,
        "extracted": find_extraction(unit),
        "native_libraries": unit.manifest and dict(unit.manifest.native_libraries),
        "abis": list(unit.abis),
        "qnn": _builds(unit),
        "litert": [
            {"file": file.name, "abi": file.abi, "versions": list(versions)}
            for file, versions in unit.litert_libraries
        ],
        "components": components,
        "errors": len(verdict.errors),
        "warnings": len(verdict.warnings),
        "findings": msgspec.to_builtins(checked_unit.findings),
    }


def warn_unreadable(progress: Progress, directory: Path) -> None:
    """Show that a directory of the app was skipped."""
    progress.step(f"warning: {directory} cannot be read, so nothing in it was checked")


def check_app(app: Path, progress: Progress, socs: Sequence[str], *, strict: bool) -> Outcome:
    """Check the units of an app. The exit code is 3 if a unit only lacks files, and 1 for errors
    or, if ``strict`` is true, warnings."""
    with scratch_directory(Path(tempfile.gettempdir()), "qnn-ci-app") as scratch:
        units = read_app(app, scratch, partial(warn_unreadable, progress))
        progress.step("judging")
        checked = [CheckedUnit(unit, tuple(judge_unit(unit, socs))) for unit in units]
        columns = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
        return Outcome(
            render_units(checked, strict=strict, width=max(LEAST_WIDTH, columns)),
            data_of(app.name, checked, socs, strict=strict),
            choose_exit(checked, strict=strict),
        )
