"""Describe a finished build as data for artifacts.json, and as text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ci.builds.artifacts import Judged
from ci.builds.builder import Result
from ci.report.text import count
from provisioning.doctor.checks.registry import Finding
from provisioning.elf.facts import ElfFacts
from provisioning.elf.qnn_build import find_headers_version
from provisioning.manifest.pairs import read_pairs
from provisioning.versions import is_same

SCHEMA_VERSION = 2
HOST_LIBRARY = "lib/x86_64-linux-clang/libQnnHtp.so"


def describe_result(result: Result) -> dict[str, Any]:
    """Return a build as data: sizes in bytes, times in seconds, absolute paths."""
    plan = result.plan
    target = plan.target
    return {
        "target": target.name,
        "platform": target.platform,
        "up_to_date": result.up_to_date,
        "published": result.published,
        "wall_s": round(result.wall_s, 3),
        "stage_s": {name: round(seconds, 3) for name, seconds in result.stage_s.items()},
        "changed_files": result.changed_files,
        "undone": list(result.undone),
        "inputs_sha256": result.inputs_sha256,
        "settings_sha256": plan.settings_digest,
        "source": os.fspath(plan.source),
        "identity": dict(plan.identity),
        "roots": {name: path for name, path in plan.values.items() if name.endswith("_root")},
        "lowers_with": find_lowering_sdk(plan.values),
        "ccache": asdict(result.cache) if result.cache else None,
        "log": os.fspath(plan.place.log),
        "artifacts": [_describe_artifact(one, result) for one in result.artifacts],
        "compile_commands": [str(stage.build / "compile_commands.json") for stage in plan.stages],
    }


def find_lowering_sdk(values: Mapping[str, str]) -> str:
    """Return the directory of a build's QNN SDK, or "" if this machine cannot use it to lower
    models for the built runtime.

    The SDK must have its libraries for x86-64 hosts, and this project must support the ExecuTorch
    version.
    """
    sdk, executorch = values.get("qnn_sdk_root", ""), values.get("executorch_version", "")
    rows = (row.executorch for row in read_pairs().supported)
    fit = any(is_same(one, executorch) for one in rows)
    return sdk if fit and (Path(sdk) / HOST_LIBRARY).is_file() else ""


def _describe_artifact(one: Judged, result: Result) -> dict[str, Any]:
    published = result.place.artifacts / one.path.name
    return {
        "name": one.path.name,
        "path": os.fspath(published if result.published else one.path),
        "size_bytes": one.size_bytes,
        "symbols": os.fspath(published.with_name(one.symbols.name)) if one.symbols else None,
        "size_budget": one.row.size_budget or None,
        "qnn_headers": (find_headers_version(one.path) or None) if one.facts else None,
        "sha256": one.sha256,
        "elf": describe_elf(one.facts) if one.facts else None,
        "findings": [_describe_finding(finding) for finding in one.findings],
        "accepted": [
            {**_describe_finding(finding), "reason": one.row.accept[finding.id]}
            for finding in one.accepted
        ],
    }


def _describe_finding(finding: Finding) -> dict[str, str]:
    names = ("id", "what", "why", "fix")
    return {**{name: getattr(finding, name) for name in names}, "severity": finding.severity.value}


def describe_elf(facts: ElfFacts) -> dict[str, Any]:
    """Return the facts of an ELF file that determine where it can run."""
    floors = {name.lower(): facts.highest_need(name) for name in ("GLIBC", "GLIBCXX", "CXXABI")}
    return {
        "machine": facts.machine_name,
        "flags": facts.flags,
        "soname": facts.soname,
        "needed": list(facts.needed),
        "runpath": list(facts.runpath),
        "rpath": list(facts.rpath),
        "build_id": facts.build_id,
        "floors": {name: ".".join(map(str, need)) for name, need in floors.items() if need},
        "android": facts.android._asdict() if facts.android else None,
        "load_align": facts.load_align,
        "stripped": facts.stripped,
    }


def render_result(result: Result, row: Mapping[str, Any]) -> str:
    """Return the text about a build: a summary, and the artifacts with their sizes and findings.
    For an adaptor, the text also says where it was installed and whether it was proven."""
    lines = [line for one in result.artifacts for line in _render_artifact(one)]
    if python := row.get("python"):
        lacks = ", ".join(row["import_lacks"])
        lines.append(
            f"  imported  {f'no, because {python} lacks {lacks}' if lacks else f'by {python}'}"
        )
    lines += [f"  installed {path}" for path in row.get("installed", ())]
    if overlay := row.get("overlay"):
        lines.append(f"  overlay   {overlay} (for PYTHONPATH)")
    if proof := row.get("proof"):
        when = ", earlier" if proof["cached"] else ""
        lines.append(
            f"  proof     lowered a model with the adaptor in {proof['wall_s']:.1f} s{when}"
        )
    where = result.place.artifacts if result.published else "not published"
    return "\n".join([_render_head(result), *lines, f"  in        {where}"]) + "\n"


def _render_head(result: Result) -> str:
    name = result.plan.target.name
    if result.up_to_date:
        return f"{name}: up to date ({result.wall_s:.2f} s)"
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in result.stage_s.items())
    cache = ""
    if result.cache:
        hits, misses = count(result.cache.hits, "hit"), count(result.cache.misses, "miss", "misses")
        cache = f"; {result.cache.name}: {hits}, {misses}"
    verdict = "" if result.published else ", but VIOLATES its policy"
    files = f"{count(result.changed_files, 'file')} changed"
    return f"{name}: built in {result.wall_s:.1f} s{verdict} ({stages}; {files}{cache})"


def _render_artifact(one: Judged) -> list[str]:
    machine = one.facts.machine_name if one.facts else "not ELF"
    head = f"  {one.path.name}  {one.size_bytes} bytes  {machine}  sha256 {one.sha256[:12]}"
    if one.facts and one.facts.android:
        head += f"  pages of {one.facts.load_align} bytes"
    return [head, *(f"    {finding}\n      fix: {finding.fix}" for finding in one.findings)]
