"""Run the commands of a plan: the output followed, the first error told, nothing left running."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.builds.plan import BuildPlan, StagePlan
from ci.report.providers import detect_provider, group
from provisioning.console.process import run_process
from provisioning.console.progress import Bar, Progress
from provisioning.errors import StoreError, ToolError

CONFIGURED = "configured"  # left by a configuration that succeeded


def run_stage(plan: BuildPlan, stage: StagePlan, progress: Progress) -> float:
    """Configure, build and install one stage; returns seconds.

    Raises ToolError with the first error, StoreError when the disk is full.
    """
    started = time.monotonic()
    name = plan.target.name
    configured = stage.build / CONFIGURED
    if not configured.is_file():
        forget_configuration(stage.build)
    configured.unlink(missing_ok=True)
    query = stage.build / API / "query"
    query.mkdir(parents=True, exist_ok=True)
    (query / CODE_MODEL).touch()
    _run_step(plan, f"{name}: configure {stage.name}", plan.configure_command(stage), progress)
    configured.touch()
    present = read_cmake_targets(stage.build) if stage.if_present else frozenset()
    more = tuple(target for target in stage.if_present if target in present)
    _run_step(plan, f"{name}: compile {stage.name}", plan.compile_command(stage, more), progress)
    if stage.install:
        _run_step(plan, f"{name}: install {stage.name}", plan.install_command(stage), progress)
    return time.monotonic() - started


def forget_configuration(build: Path) -> None:
    """Remove what CMake found out, as ``cmake --fresh`` does, but leave the objects."""
    (build / "CMakeCache.txt").unlink(missing_ok=True)
    for found in build.glob("CMakeFiles/[0-9]*"):
        shutil.rmtree(found)


def _run_step(plan: BuildPlan, label: str, command: Sequence[str], progress: Progress) -> None:
    provider = detect_provider()
    log = plan.place.root / "step.log"
    name_sources = PathMap(plan)
    with group(provider, progress, label), progress.bar(label, unit="") as bar:
        output = Output(bar, progress, echo=provider.is_github)
        try:
            ended = run_process(
                command,
                env=plan.environment,
                log=log,
                on_line=lambda line: output.read_line(name_sources(line)),
                check=False,
            )
        finally:
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            with plan.place.log.open("a", encoding="utf-8") as stream:
                stream.write(f"$ {' '.join(command)}\n{name_sources(text)}\n")
            log.unlink(missing_ok=True)
    if ended.returncode != 0:
        tail = name_sources(ended.tail)
        raise explain_failure(label, output, ended.describe(), tail, plan.place.log)


class PathMap:
    """Names the checkout's files where a tool names those of the copy that it compiled, or the
    names that ``-ffile-prefix-map`` gave them: a message leads to the file to edit."""

    def __init__(self, plan: BuildPlan) -> None:
        self.plan = plan
        self.aliases = plan.aliases
        roots = "|".join(map(re.escape, {str(plan.place.root), *self.aliases}))
        self.pattern = re.compile(rf"(?<![\w./-])({roots})(/[\w.+@/-]+)")

    def __call__(self, text: str) -> str:
        return self.pattern.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        path = Path(self.aliases.get(match[1], match[1]) + match[2])
        if path.is_relative_to(self.plan.overlay):
            source = self.plan.source / path.relative_to(self.plan.overlay)
            return str(source if source.exists() else path)
        return str(path) if path.exists() else match[0]


def explain_failure(
    label: str, output: Output, how: str, tail: str, log: Path
) -> ToolError | StoreError:
    """The error for a step that failed: the disk, or the first error that the tools printed."""
    if output.disk_is_full:
        return StoreError(
            f"{label}: the disk is full",
            why=output.first_error,
            fix="free space or set QNN_CI_HOME to another disk; the next run continues from here",
        )
    what = output.first_error or how
    return ToolError(
        f"{label} failed: {what}",
        why=output.excerpt or tail or "it printed nothing",
        fix=f"the whole output is in {log}",
    )


API = Path(".cmake/api/v1")
CODE_MODEL = "codemodel-v2"


def read_cmake_targets(build: Path) -> frozenset[str]:
    """The names of a configured project's targets. Raises ToolError without a reply."""
    reply = build / API / "reply"
    try:
        index = json.loads(max(reply.glob("index-*.json")).read_text(encoding="utf-8"))
        name = index["reply"][CODE_MODEL]["jsonFile"]
        model = json.loads((reply / name).read_text(encoding="utf-8"))
        return frozenset(
            target["name"] for part in model["configurations"] for target in part["targets"]
        )
    except (OSError, ValueError, KeyError) as error:
        raise ToolError(f"cmake left no file API reply in {build}", why=repr(error)) from error


NINJA_COUNT = re.compile(r"^\[(\d+)/(\d+)\] ")
ERROR = re.compile(r"(?:\b(?:fatal )?error:|CMake Error|undefined reference|^FAILED: )")
FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large")
EXCERPT_LINES, LATER_ERRORS = 8, 4


@dataclass
class Output:
    """Reads lines as they come: advances ``bar``, keeps what explains a failure."""

    bar: Bar
    progress: Progress
    echo: bool
    _excerpt: list[str] = field(default_factory=list)
    _done: int = 0
    disk_is_full: bool = False

    def read_line(self, line: str) -> None:
        count = NINJA_COUNT.match(line)
        if count:
            words = line[count.end() :].split()
            self._count(int(count[1]), int(count[2]), words[-1].rpartition("/")[2] if words else "")
        if self.echo:
            self.progress.step(line)
        self.disk_is_full = self.disk_is_full or bool(FULL_DISK.search(line))
        if not line.startswith("FAILED: ") and (self._excerpt or ERROR.search(line)):
            self._keep(line)

    def _keep(self, line: str) -> None:
        """The lines after the first error, then only more errors: CMake puts a cause far below."""
        room = EXCERPT_LINES + (LATER_ERRORS if ERROR.search(line) else 0)
        if line.strip() and len(self._excerpt) < room:
            self._excerpt.append(line)

    def _count(self, done: int, total: int, what: str) -> None:
        self.bar.total = total
        self.bar.advance(max(done - self._done, 0), what)
        self._done = done

    @property
    def first_error(self) -> str:
        """The first line that is an error, or nothing."""
        return self._excerpt[0].strip() if self._excerpt else ""

    @property
    def excerpt(self) -> str:
        return "\n".join(self._excerpt).rstrip()
