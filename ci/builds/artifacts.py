"""Collect and check the files that a build produces, and publish all of them or none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ci.builds.plan import BuildPlan, BuildRequest
from ci.builds.targets import Artifact, fill_placeholders
from ci.builds.toolchains import PAGE_BYTES
from provisioning.console.process import run_process
from provisioning.doctor.checks.elf import judge, judge_defect
from provisioning.doctor.fitness import ElfPolicy
from provisioning.doctor.policies import elf_policy
from provisioning.doctor.registry import Finding, Severity
from provisioning.elf.facts import ElfError, ElfFacts
from provisioning.errors import FailedError
from provisioning.files import hash_file, staged_directory
from provisioning.store.store import explain_errors

SYMBOLS = ".debug"
SMALL_PAGES = "QNN225"
UNEXPECTED_NEED, OVER_BUDGET, OTHER_PYTHON = "BUILD101", "BUILD102", "BUILD103"


@dataclass(frozen=True)
class Judged:
    """A file that a build produced, with its row in the target, its facts and its findings.

    ``accepted`` are the findings that the row accepts, and ``findings`` are all others. ``facts``
    is None if the file cannot be parsed.
    """

    row: Artifact
    path: Path
    sha256: str
    size_bytes: int
    facts: ElfFacts | None
    findings: tuple[Finding, ...]
    accepted: tuple[Finding, ...] = ()

    @property
    def symbols(self) -> Path | None:
        """The file with this file's symbols, or None if it was not stripped."""
        path = self.path.with_name(self.path.name + SYMBOLS)
        return path if self.row.split_symbols and path.is_file() else None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that prevent the build's files from being published."""
        return tuple(one for one in self.findings if one.severity is Severity.ERROR)


def collect_artifacts(plan: BuildPlan, request: BuildRequest) -> tuple[Judged, ...]:
    """Return the target's files with their findings. Files that the request turns off or does not
    ask for are left out. Raises FailedError if a required file is missing.
    """
    judged: list[Judged] = []
    pages = request.named.get(PAGE_BYTES, plan.values.get("page_bytes", ""))
    for row in plan.target.artifacts:
        if (row.extra and row.extra not in request.extras) or request.turns_off(row.option):
            continue
        built = _find_built(plan, row)
        stripped = {path.name: path for path in plan.place.stripped.glob("*") if path.is_file()}
        paths = [stripped.get(path.name, path) for path in built]
        if not paths and not row.optional:
            raise FailedError(
                f"{plan.target.name}: the build succeeded but produced no {row.path}",
                fix=f"read {plan.place.log}, or correct the target in manifests/targets.toml",
            )
        kind = fill_placeholders(row.policy, plan.values)
        judged += [
            judge_artifact(row, path, elf_policy(kind), python_tag(plan), pages) for path in paths
        ]
    return tuple(judged)


def _find_built(plan: BuildPlan, row: Artifact) -> list[Path]:
    return sorted(path for path in plan.place.root.glob(row.path) if path.is_file())


def split_symbols(plan: BuildPlan) -> None:
    """Split each file whose row sets ``split_symbols`` into a stripped copy and a file with its
    symbols. Do nothing if the toolchain has no objcopy. Raises ToolError if objcopy fails.

    gdb, lldb and ndk-stack find the symbols through the debug link and the build id. Hexagon skels
    must never be stripped, because that invalidates the signature or checksum in them.
    """
    shutil.rmtree(plan.place.stripped, ignore_errors=True)
    objcopy = plan.values.get("objcopy")
    for row in plan.target.artifacts:
        for path in _find_built(plan, row) if row.split_symbols and objcopy else ():
            plan.place.stripped.mkdir(exist_ok=True)
            stripped = plan.place.stripped / path.name
            symbols = stripped.with_name(path.name + SYMBOLS)
            run_process([str(objcopy), "--only-keep-debug", path, symbols])
            link = f"--add-gnu-debuglink={symbols}"
            run_process([str(objcopy), "--strip-all", link, path, stripped])


def python_tag(plan: BuildPlan) -> str:
    """Return a tag such as ``cpython-312`` for a target that is built per Python version, otherwise
    ""."""
    return plan.values["python_version"].split()[0] if plan.target.per_python else ""


def judge_artifact(
    row: Artifact, path: Path, policy: ElfPolicy, tag: str = "", pages: str = ""
) -> Judged:
    """Judge a file by its policy, its needed libraries, its size budget and its Python tag.

    ``pages`` is the max-page-size that the build passed to the linker, or "" for the linker's
    default.
    """
    from provisioning.elf.reader import read_elf

    digest, size = hash_file(path), path.stat().st_size
    try:
        facts = read_elf(path)
    except ElfError as error:
        return Judged(row, path, digest, size, None, (judge_defect(error),))
    found = [*judge(facts, policy), *_judge_build(facts, policy, row, tag)]
    found = [_tell_pages(one, pages, policy) if one.id == SMALL_PAGES else one for one in found]
    faults = tuple(one for one in found if one.id not in row.accept)
    accepted = tuple(one for one in found if one.id in row.accept)
    return Judged(row, path, digest, size, facts, faults, accepted)


def _tell_pages(finding: Finding, pages: str, policy: ElfPolicy) -> Finding:
    """Return the finding with a cause and a fix that mention this build's options."""
    if pages == str(policy.load_align):
        why = f"this build linked with max-page-size={pages}, but another link option overrode it"
        return replace(
            finding, why=why, fix="look for max-page-size in the -D options and in the build's log"
        )
    fix = f"build without that option: {policy.load_align} is the default"
    return replace(finding, why=f"the build used -D {PAGE_BYTES}={pages}", fix=fix)


def _judge_build(facts: ElfFacts, policy: ElfPolicy, row: Artifact, tag: str) -> Iterator[Finding]:
    """Yield findings about the needed libraries, the size and the Python tag of a file."""
    name, where = facts.path.name, str(facts.path)
    for library in facts.needed:
        if library not in (*policy.system, *row.needed):
            yield Finding(
                UNEXPECTED_NEED,
                name,
                f"{name} needs {library}",
                where,
                "neither the target's system nor this build provides that library",
                "link that library statically, or list it in the artifact's row in "
                "manifests/targets.toml",
            )
    if row.size_budget and facts.size_bytes > row.size_budget:
        yield Finding(
            OVER_BUDGET,
            name,
            f"{name} is {facts.size_bytes} bytes long, but its size budget is {row.size_budget}",
            where,
            "the DSP has little memory, and ExecuTorch sets the same budget",
            "build with --release, or look for large unneeded parts with `nm --size-sort`",
        )
    if tag and name.startswith("Py") and f".{tag}-" not in name:
        yield Finding(
            OTHER_PYTHON,
            name,
            f"{name} is not built for {tag}",
            where,
            "CMake found a Python other than the requested one",
            "remove -D options about Python, and build with --clean",
        )


def publish_artifacts(plan: BuildPlan, judged: tuple[Judged, ...]) -> None:
    """Replace the published files with the new ones, in one step. Raises StoreError if the files
    cannot be written."""
    where = plan.place.artifacts
    with explain_errors(where), staged_directory(where) as fresh:
        for one in judged:
            for path in filter(None, (one.path, one.symbols)):
                shutil.copy2(path, fresh)
