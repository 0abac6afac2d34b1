"""A build for a person: what was left, what was done, what is wrong with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ci.build.builder import Result
from ci.build.delivery.artifacts import Judged


def render_commands(commands: Iterable[Sequence[str]]) -> str:
    """A command a line, as a shell would take it."""
    return "".join(shlex.join(command) + "\n" for command in commands)


def render_result(result: Result, row: Mapping[str, Any]) -> str:
    """The artifacts with their sizes and faults, then one line of what was done."""
    lines = [line for one in result.artifacts for line in _render_artifact(one)]
    if python := row.get("python"):
        lacks = ", ".join(row["import_lacks"])
        lines.append(f"  imported  {f'not: no {lacks} in' if lacks else 'by'} {python}")
    lines += [f"  installed {path}" for path in row.get("installed", ())]
    if overlay := row.get("overlay"):
        lines.append(f"  overlay   {overlay} (for PYTHONPATH)")
    if proof := row.get("proof"):
        when = ", earlier" if proof["cached"] else ""
        lines.append(f"  proof     a model lowered with it in {proof['wall_s']:.1f} s{when}")
    where = result.place.artifacts if result.published else "not published"
    return "\n".join([_render_head(result), *lines, f"  in        {where}"]) + "\n"


def _render_head(result: Result) -> str:
    name = result.plan.target.name
    if result.up_to_date:
        return f"{name}: up to date ({result.wall_s:.2f} s)"
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in result.stage_s.items())
    cache = ""
    if result.cache:
        cache = f"; {result.cache.name}: {result.cache.hits} hits, {result.cache.misses} misses"
    verdict = "built" if result.published else "FAILED its policy"
    files = f"{result.changed_files} files changed"
    return f"{name}: {verdict} in {result.wall_s:.1f} s ({stages}; {files}{cache})"


def _render_artifact(one: Judged) -> list[str]:
    machine = one.facts.machine_name if one.facts else "not ELF"
    head = f"  {one.path.name}  {one.size_bytes} bytes  {machine}  sha256 {one.sha256[:12]}"
    return [head, *(f"    {finding}\n      fix: {finding.fix}" for finding in one.findings)]
