"""Run the commands of a plan, follow their output and report the first error."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from ci.builds.plan import BuildPlan, StagePlan
from ci.builds.toolchains import PROBE_S
from ci.explain.render import advise
from ci.report.providers import Provider, group
from provisioning.console.process import run_process
from provisioning.console.progress import Bar, Progress
from provisioning.documents import CONTENT_BYTES, DOCUMENT_BYTES, read_json, read_text, read_window
from provisioning.errors import StoreError, ToolError, UsageError

CONFIGURED = "configured"  # a file that marks a successful configuration


def run_stages(plan: BuildPlan, progress: Progress) -> dict[str, float]:
    """Configure, build and install all stages. Return how many seconds each of them took.

    Raises UsageError for a -D option that no stage uses, ToolError with the first error, and
    StoreError if the disk is full.
    """
    times: dict[str, float] = {}
    unused = plan.named
    for stage in plan.stages:
        started = time.monotonic()
        unused &= _configure(plan, stage, progress)
        # A later stage may use the option, so only one that no CMake file mentions is refused
        # before the first stage is compiled.
        if unused and (stage is plan.stages[-1] or not unused & _read_words(plan)):
            raise refuse_options(plan, unused)
        (stage.build / CONFIGURED).touch()
        present = read_cmake_targets(stage.build) if stage.if_present else frozenset()
        optional_targets = tuple(target for target in stage.if_present if target in present)
        label = f"{plan.target.name}: compile {stage.name}"
        _run_step(plan, label, plan.compile_command(stage, optional_targets), progress)
        if stage.install:
            label = f"{plan.target.name}: install {stage.name}"
            _run_step(plan, label, plan.install_command(stage), progress)
        times[stage.name] = time.monotonic() - started
    return times


def _configure(plan: BuildPlan, stage: StagePlan, progress: Progress) -> frozenset[str]:
    """Run CMake's configuration. In a fresh directory, return the user's options that it did not
    use.

    If the stage was configured with these options before, the result is empty, because they were
    checked then.
    """
    name = plan.target.name
    configured = stage.build / CONFIGURED
    is_fresh = not configured.is_file()
    if is_fresh:  # remove the cached configuration, as ``cmake --fresh`` does, but keep the objects
        (stage.build / "CMakeCache.txt").unlink(missing_ok=True)
        for configuration in stage.build.glob("CMakeFiles/[0-9]*"):
            shutil.rmtree(configuration)
    # CMake keeps the cache of a configuration that failed, and would take its values for checked
    # ones.
    configured.unlink(missing_ok=True)
    query = stage.build / API / "query"
    query.mkdir(parents=True, exist_ok=True)
    # The file API (cmake-file-api(7)) replies to queries that exist before the configuration.
    (query / CODE_MODEL).touch()
    label = f"{name}: configure {stage.name}"
    output = _run_step(plan, label, plan.configure_command(stage), progress)
    return output.unused if is_fresh else frozenset()


def refuse_options(plan: BuildPlan, unused: frozenset[str]) -> UsageError:
    """Return the error for options that CMake did not use. The error suggests known options with
    similar names."""
    read_options = sorted(_read_words(plan) - unused)
    near = []
    for option in sorted(unused):
        near += get_close_matches(option, read_options, 1, 0.8)
    return UsageError(
        f"CMake did not use -D {', '.join(sorted(unused))}",
        why="an option that no CMake file of this target reads has no effect",
        fix=f"did you mean {', '.join(near)}?"
        if near
        else "correct the name, or remove the option",
    )


def _read_words(plan: BuildPlan) -> frozenset[str]:
    """Return words in the sources' CMake files that may be names of options, and the names of
    CMake's variables."""
    paths = (*plan.overlay.rglob("CMakeLists.txt"), *plan.overlay.rglob("*.cmake"))
    texts = [read_text(path, "replace") for path in paths]
    command = [str(plan.tools.cmake.path), "--help-variable-list"]
    texts.append(run_process(command, timeout_s=PROBE_S, check=False).output)
    return frozenset(OPTION_NAME.findall("\n".join(texts)))


def _run_step(plan: BuildPlan, label: str, command: Sequence[str], progress: Progress) -> Output:
    provider = Provider()
    # A file for each step, so that the rules of known errors see only the step that failed.
    log = plan.place.root / "step.log"
    name_sources = map_paths(plan)
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
            text = read_window(log, most_bytes=DOCUMENT_BYTES)
            with plan.place.log.open("a", encoding="utf-8") as stream:
                stream.write(f"$ {' '.join(command)}\n{name_sources(text)}\n")
            log.unlink(missing_ok=True)
    if ended.returncode != 0:
        tail = name_sources(ended.tail)
        advice = advise(text)
        raise explain_failure(label, output, ended.describe(), tail, plan.place.log, advice=advice)
    return output


def map_paths(plan: BuildPlan) -> Callable[[str], str]:
    """Return a function that replaces paths in the copy, and names from ``-ffile-prefix-map``, with
    paths in the checkout. Messages then show the path of the file to edit.
    """
    aliases = plan.aliases
    roots = "|".join(map(re.escape, {str(plan.place.root), *aliases}))
    pattern = re.compile(rf"(?<![\w./-])({roots})(/[\w.+@/-]+)")

    def replace(match: re.Match[str]) -> str:
        path = Path(aliases.get(match[1], match[1]) + match[2])
        if path.is_relative_to(plan.overlay):
            source = plan.source / path.relative_to(plan.overlay)
            return str(source if source.exists() else path)
        # Text that only looks like such a path stays as it is.
        return str(path) if path.exists() else match[0]

    return partial(pattern.sub, replace)


def explain_failure(
    label: str, output: Output, how: str, tail: str, log: Path, *, advice: str = ""
) -> ToolError | StoreError:
    """Return the error for a failed step: a full disk, or the first error that the tools printed.

    If the tools printed no error, ``how`` says how the step ended. ``advice`` is a known fix, or
    "".
    """
    if output.full_disk:
        return StoreError(
            f"{label}: the disk is full",
            why=output.full_disk,
            fix="free space, or set QNN_CI_HOME to another disk; the next run continues this build",
        )
    cause = output.first_error
    details = f"the output also says:\n{output.details}" if output.details else ""
    return ToolError(
        f"{label} failed: {cause or how}",
        why=details if cause else tail or "it printed nothing",
        fix="; ".join(filter(None, [advice, f"the complete output is in {log}"])),
    )


API = Path(".cmake/api/v1")
CODE_MODEL = "codemodel-v2"


def read_cmake_targets(build: Path) -> frozenset[str]:
    """Return the names of a configured project's targets. Raises ToolError if CMake left no usable
    reply.
    """
    reply = build / API / "reply"
    try:
        # cmake-file-api(7): the index with the largest name is the current one.
        index: Any = read_json(max(reply.glob("index-*.json")), dict[str, Any])
        name = index["reply"][CODE_MODEL]["jsonFile"]
        model: Any = read_json(reply / name, dict[str, Any], CONTENT_BYTES)
        return frozenset(
            target["name"] for part in model["configurations"] for target in part["targets"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ToolError(
            f"cmake left no usable file API reply in {build}", why=repr(error)
        ) from error


NINJA_COUNT = re.compile(r"^\[(\d+)/(\d+)\] ")
ERROR = re.compile(r"(?:\b(?:fatal )?error:|CMake Error|undefined reference|^FAILED: )")
FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large")
UNUSED = "Manually-specified variables were not used by the project"
OPTION_NAME = re.compile(r"\b[A-Za-z]\w*_\w+\b")
CMAKE_ERROR = "CMake Error"
EXCERPT_LINES, LATER_ERRORS = 8, 4


@dataclass
class Output:
    """Reads the lines of a step as they arrive, advances ``bar``, and keeps the lines that explain
    a failure."""

    bar: Bar
    progress: Progress
    echo: bool
    _excerpt: list[str] = field(default_factory=list)
    _done: int = 0
    _lists_unused: bool = False
    unused: frozenset[str] = frozenset()
    full_disk: str = ""  # the first line that reports a full disk

    def read_line(self, line: str) -> None:
        """Read the next line: unused options, ninja's progress, a full disk, or a part of an
        error."""
        self._lists_unused = UNUSED in line or (self._lists_unused and line[:1] in {"", " "})
        if self._lists_unused and OPTION_NAME.fullmatch(line.strip()):
            self.unused |= {line.strip()}
        if count := NINJA_COUNT.match(line):
            done, words = int(count[1]), line[count.end() :].split()
            self.bar.total = int(count[2])
            file_name = words[-1].rpartition("/")[2] if words else ""
            self.bar.advance(max(done - self._done, 0), file_name)
            self._done = done
        if self.echo:
            self.progress.step(line)
        if FULL_DISK.search(line) and not self.full_disk:
            self.full_disk = line.strip()
        # Keep up to EXCERPT_LINES lines from the first error on. Then keep up to LATER_ERRORS more
        # lines with errors, because the cause can be far below.
        is_error = bool(ERROR.search(line))
        room = EXCERPT_LINES + (LATER_ERRORS if is_error else 0)
        # ninja's line FAILED: repeats the whole command of the compiler, before the error.
        follows = (self._excerpt or is_error) and not line.startswith("FAILED: ")
        if follows and line.strip() and len(self._excerpt) < room:
            self._excerpt.append(line)

    @property
    def first_error(self) -> str:
        """The first error line, or "" if there is none.

        A CMake error can quote the output of a tool, such as a compiler. The result is then the
        first error line of that tool. Without such a line, it is the first two lines of the CMake
        error.
        """
        lines = [line.strip() for line in self._excerpt]
        if not lines or not lines[0].startswith(CMAKE_ERROR):
            return lines[0] if lines else ""
        quoted = (line for line in lines if ERROR.search(line) and not line.startswith(CMAKE_ERROR))
        return next(quoted, " ".join(lines[:2]))

    @property
    def details(self) -> str:
        """The kept lines besides the first error: what follows it, and later errors."""
        first_two = " ".join(line.strip() for line in self._excerpt[:2])
        if self.first_error == first_two:
            return "\n".join(self._excerpt[2:]).rstrip()
        lines = [line for line in self._excerpt if line.strip() != self.first_error]
        return "\n".join(lines).rstrip()
