"""Build the artifacts of a job, unless they are up to date, and describe the finished build as data
for artifacts.json, and as text.

The numbers of hits and misses in a compiler cache come from ccache's log or sccache's statistics.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ci.builds.files import (
    NO_FILE,
    Built,
    Copy,
    Judged,
    Snapshot,
    State,
    collect_artifacts,
    digest_snapshot,
    has_artifacts,
    inspect_copy,
    publish_artifacts,
    read_record,
    record_copy,
    split_symbols,
    sync_overlay,
    take_snapshot,
    write_record,
)
from ci.builds.plan import BuildJob, BuildPlan
from ci.builds.steps import run_stages
from ci.builds.toolchains import PROBE_S
from ci.report.filled import fill_text
from provisioning.console.caller import own_command
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.doctor.registry import Finding
from provisioning.documents import decode_json, read_text
from provisioning.elf.facts import ElfFacts
from provisioning.elf.qnn_build import find_headers_version
from provisioning.files import hash_file, write_whole
from provisioning.manifest.pairs import read_pairs
from provisioning.store.home import explain_errors
from provisioning.versions import is_same

SOURCE = "source"
SHOWN = 5  # paths listed in one line


@dataclass(frozen=True)
class Result:
    """A finished build; times are in seconds.

    ``published`` is false if an artifact violates its policy. In that case, the files of the last
    published build are kept. ``up_to_date`` is true if nothing had to be built. ``changed_files``
    is the number of input files that changed since the last build. ``stage_s`` maps each stage to
    its time. ``cache`` holds the hits and misses of the compiler cache, or is None if no cache was
    used. ``undone`` lists the files in the copy of the sources that had been edited and were
    restored.
    """

    plan: BuildPlan
    inputs_sha256: str
    artifacts: tuple[Judged, ...]
    published: bool
    up_to_date: bool
    changed_files: int = 0
    stage_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0
    cache: CacheCounts | None = None
    undone: tuple[str, ...] = ()


def run_build(job: BuildJob, progress: Progress) -> Result:
    """Build the job unless nothing has changed since its last build.

    If it raises one of these errors, the published files stay unchanged:

    - UnfitError if a requirement is not met, a source is unreadable or another process runs this
      build
    - StoreError if files cannot be written
    - ToolError if a step fails
    - FailedError if the build does not produce an artifact
    """
    started = time.monotonic()
    place = job.plan.place
    job.check()
    with explain_errors(place.root), place.locked():
        write_whole(place.origin, str(job.plan.source))
        before = State() if job.request.clean else read_record(place.state, State)
        source = take_snapshot(job.plan.source, before.inputs.get(SOURCE), job.skip)
        snapshots = {SOURCE: source}
        for name, directory in job.inputs.items():
            snapshots[name] = take_snapshot(directory, before.inputs.get(name))
        rows = (f"{name}\0{digest_snapshot(snapshots[name])}" for name in sorted(snapshots))
        digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()
        now = State(job.plan.settings_digest, snapshots, digest, before.artifacts)
        copy = inspect_copy(job.plan.overlay, before.inputs.get(SOURCE, {}), place.tree_record)
        is_current = (before.settings, before.digest) == (now.settings, now.digest)
        if is_current and copy.sure and not copy.edited and has_artifacts(place.artifacts, before):
            # The new times and inodes of files with the old content save hashing them next time.
            write_record(place.state, now)
            artifacts = collect_artifacts(job.plan, job.request)
            return Result(
                job.plan, digest, artifacts, True, True, wall_s=time.monotonic() - started
            )
        result = _build(job, before, now, copy, progress)
        return replace(result, wall_s=time.monotonic() - started)


def _build(job: BuildJob, before: State, now: State, copy: Copy, progress: Progress) -> Result:
    plan, place = job.plan, job.plan.place
    if undone := copy.edited:
        ellipsis = f" and {len(undone) - SHOWN} more" if len(undone) > SHOWN else ""
        progress.step(f"restoring files in {plan.overlay}: {', '.join(undone[:SHOWN])}{ellipsis}")
        progress.step(f"  this directory is a copy: edit {plan.source} instead")
    if before.settings != now.settings or not copy.sure:
        # Ninja does not notice a compiler that was replaced in its place or other CFLAGS, and
        # nothing is known of a copy without a record.
        for directory in (place.tree, place.stages, place.prefix, place.stripped):
            shutil.rmtree(directory, ignore_errors=True)
        copy = Copy({}, frozenset(), (), sure=True)
    # From here on, an interrupted build leaves no record of the copy and a state without a digest,
    # so that the next run neither trusts the copy nor takes the published files for current.
    for record in (place.tree_record, *((place.proof,) if job.request.clean else ())):
        record.unlink(missing_ok=True)
    write_record(place.state, State(now.settings, now.inputs, "", before.artifacts))
    for log in (place.log, place.cache_log):
        log.unlink(missing_ok=True)
    progress.step(f"building {plan.target.name} in {place.root}")
    changed = sum(_count_changes(before.inputs.get(name), now.inputs[name]) for name in now.inputs)
    sources = now.inputs[SOURCE]
    sync_overlay(plan.source, plan.overlay, sources, copy)
    counts_before = read_counts(plan)
    try:
        times = run_stages(plan, progress)
    finally:
        with suppress(OSError):  # without a record, the next build starts from scratch
            record_copy(plan.overlay, sources, copy, place.tree_record)
    split_symbols(plan)
    judged = collect_artifacts(plan, job.request)
    good = not any(artifact.errors for artifact in judged)
    if good:
        publish_artifacts(plan, judged)
        files = [path for artifact in judged for path in (artifact.path, artifact.symbols) if path]
        built = tuple(Built(path.name, hash_file(path)) for path in files)
        write_record(place.state, State(now.settings, now.inputs, now.digest, built))
    counts = read_counts(plan)
    cache = counts.since(counts_before) if counts and counts_before else None
    return Result(plan, now.digest, judged, good, False, changed, times, cache=cache, undone=undone)


def _count_changes(before: Snapshot | None, now: Snapshot) -> int:
    """Return the number of files that were added, removed or changed, or 0 if there is no earlier
    snapshot.
    """
    earlier = now if before is None else before
    return sum(
        earlier.get(path, NO_FILE).sha256 != now.get(path, NO_FILE).sha256
        for path in earlier.keys() | now.keys()
    )


HITS = frozenset({"direct_cache_hit", "preprocessed_cache_hit"})
MISS = "cache_miss"


@dataclass(frozen=True)
class CacheCounts:
    """The number of compilations whose results were in a compiler cache (``hits``) or not
    (``misses``)."""

    name: str
    version: str
    hits: int
    misses: int

    def since(self, before: CacheCounts) -> CacheCounts:
        """Return how much the counts have grown since ``before``. (sccache counts from the start of
        its server.)"""
        hits, misses = self.hits - before.hits, self.misses - before.misses
        # At least 0, because the server of sccache may have been restarted in between.
        return replace(self, hits=max(hits, 0), misses=max(misses, 0))


def read_counts(plan: BuildPlan) -> CacheCounts | None:
    """Return the counts of the plan's compiler cache so far, or None if the plan uses no cache.
    Unavailable counts are 0."""
    program = plan.tools.cache
    if program is None:
        return None
    hits, misses = 0, 0
    if program.path.name == "sccache":  # its server counts for each language
        words = [str(program.path), "--show-stats", "--stats-format", "json"]
        ended = run_process(words, env=plan.environment, timeout_s=PROBE_S, check=False)
        with suppress(ValueError, KeyError, TypeError):
            stats = decode_json(ended.output, dict[str, Any])["stats"]
            kinds = ("cache_hits", "cache_misses")
            hits, misses = (sum(stats[kind]["counts"].values()) for kind in kinds)
    else:
        with suppress(OSError):  # each line of CCACHE_STATSLOG names a counter to increment
            lines = read_text(plan.place.cache_log).splitlines()
            hits, misses = sum(line in HITS for line in lines), lines.count(MISS)
    return CacheCounts(program.path.name, str(program.version), hits, misses)


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
        "artifacts": [_describe_artifact(artifact, result) for artifact in result.artifacts],
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
    fit = any(is_same(row, executorch) for row in rows)
    return sdk if fit and (Path(sdk) / HOST_LIBRARY).is_file() else ""


def _describe_artifact(artifact: Judged, result: Result) -> dict[str, Any]:
    symbols = headers_version = elf = None
    # A build with faults is not published: its files stay where they were built.
    folder = result.plan.place.artifacts if result.published else artifact.path.parent
    if artifact.symbols:
        symbols = os.fspath(folder / artifact.symbols.name)
    if artifact.facts:  # an ELF file that can be parsed
        headers_version = find_headers_version(artifact.path) or None
        elf = describe_elf(artifact.facts)
    accepted = []
    for finding in artifact.accepted:
        reason = artifact.row.accept[finding.id]  # from the artifact's row in targets.toml
        accepted.append({**_describe_finding(finding), "reason": reason})
    return {
        "name": artifact.path.name,
        "path": os.fspath(folder / artifact.path.name),
        "size_bytes": artifact.size_bytes,
        "symbols": symbols,
        "size_budget": artifact.row.size_budget or None,
        "qnn_headers": headers_version,
        "sha256": artifact.sha256,
        "elf": elf,
        "findings": [_describe_finding(finding) for finding in artifact.findings],
        "accepted": accepted,
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
    For an adaptor, the text also says where it was installed, how it is used, and whether it was
    proven."""
    command = ""
    if overlay := row.get("overlay"):
        sdk = result.plan.values["qnn_sdk_root"]
        command = own_command("test-emulator", "--sdk", sdk, "--adaptor", overlay)
    return fill_text("builds/templates/result.txt.j2", result=result, row=row, command=command)
