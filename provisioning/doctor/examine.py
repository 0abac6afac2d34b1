"""Gather the facts of an environment, run all checks on them and return a verdict. Also choose the
QNN adaptor for a session: the wheel's if it is compatible, else an overlay's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from provisioning.artifacts.choice import (
    OVERLAY,
    WHEEL,
    QnnChoice,
    find_backends,
    find_laid,
    find_overlays,
    lay_over,
    python_tag,
)
from provisioning.artifacts.environment import Environment, profile_requests
from provisioning.artifacts.installations import read_version
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.progress import Progress
from provisioning.doctor.checks.board import BOARDS
from provisioning.doctor.checks.coherence import FAMILIES
from provisioning.doctor.checks.device import DEVICES, STAGINGS
from provisioning.doctor.checks.elf import CONTENT, DEFECTS, TARGET
from provisioning.doctor.checks.files import NEEDS, find_groups, judge_group
from provisioning.doctor.checks.machine import CHECKOUTS, NDKS, TOOLS
from provisioning.doctor.checks.process import PYTHON, RUNTIMES, VARIABLES
from provisioning.doctor.checks.sdk import ADAPTOR, INSTALLATIONS, SDK
from provisioning.doctor.facts import (
    CHECKOUT,
    HOST_DIRECTORY,
    HOST_KIND,
    STAGING,
    EnvironmentFacts,
    HostFacts,
    TreeFacts,
)
from provisioning.doctor.fitness import Fitness
from provisioning.doctor.policies import read_doctor_policy, read_elf_policies
from provisioning.doctor.registry import ENVIRONMENT, Case, Finding, Severity, Subjects, read_rows
from provisioning.doctor.survey.environment import SurveyRequest, survey_environment
from provisioning.elf.facts import Genuine
from provisioning.errors import ManifestError, UnfitError
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import read_profile, read_profiles, read_toolchain, suggest_near
from provisioning.manifest.targets import Backend, find_htp, find_soc
from provisioning.quoting import show_command
from provisioning.store.home import store_home

SCHEMA_VERSION = 2
CHECKOUT_COMMIT = "executorch-commit"
# Findings about the library of a backend.
OF_BACKEND = frozenset({"QNN909", "QNN910"})


@dataclass(frozen=True)
class Verdict:
    """The findings for a profile; ``facts`` describes the environment for --json."""

    profile: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the environment unfit."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that make it unfit only with --strict."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    @property
    def fit(self) -> bool:
        """Whether there are no errors; warnings are ignored."""
        return not self.errors

    @property
    def lacks(self) -> Finding | None:
        """The first error, if all errors are about a backend's library that is missing or unusable;
        else None.
        """
        alone = {error.id for error in self.errors} <= OF_BACKEND
        return self.errors[0] if self.errors and alone else None

    def require(self) -> None:
        """Raise UnfitError for the first error, with its reason and fix, unless the environment is
        fit. All other errors are listed, because a command that prints them would need the same
        options, such as --source and --sdk.
        """
        if not self.errors:
            return
        first, *further_errors = self.errors
        lines = [f"{first.why} (seen: {first.where})"]
        lines += [f"also {error.id}: {error.what}; fix: {error.fix}" for error in further_errors]
        count_text = f" (and {len(further_errors)} more)" if further_errors else ""
        raise UnfitError(
            f"{first.id}: {first.what}{count_text}", why="\n    ".join(lines), fix=first.fix
        )

    def data(self, *, strict: bool = False) -> dict[str, Any]:
        """Return the JSON form, described by docs/schemas/doctor.schema.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "profile": self.profile,
            "fit": self.fit and not (strict and self.warnings),
            "strict": strict,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "findings": msgspec.to_builtins(self.findings),
            "facts": dict(self.facts),
        }


def examine(
    profile: str,
    environment: Environment,
    *,
    python: Path | None = None,
    soc: str = "",
    tries_device: bool = False,
    backend: Backend = Backend.HTP,
    tolerated: Collection[str] = (),
    submodules: Collection[str] | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Examine a profile's environment as a process in a job would see it.

    If ``python`` is None, the running interpreter is examined. If ``tries_device`` is true, or for
    a ``backend`` other than HTP, the adaptor has to create a device in a separate process. Of the
    checkout, ``submodules`` must exist; if it is None, those of all of the profile's targets.
    Faults are returned as findings; those with ids in ``tolerated`` become warnings. Raises
    UsageError for an unknown profile or SoC, and ManifestError for a profile without a policy.
    """
    roots = {artifact.name: artifact.root for artifact in environment.artifacts}
    profile_request = make_request(profile, roots, environment.apply(os.environ))
    needed = profile_request.submodules if submodules is None else tuple(sorted(submodules))
    request = replace(
        profile_request,
        submodules=needed,
        python=python,
        soc=soc or None,
        tries_device=tries_device,
        backend=backend,
    )
    verdict = examine_request(request, progress)
    findings = []
    for finding in verdict.findings:
        if finding.id in tolerated:
            finding = replace(finding, severity=Severity.WARNING)
        findings.append(finding)
    return replace(verdict, findings=tuple(findings))


def wanted_requests(profile: str) -> list[ArtifactRequest]:
    """Return requests for a profile's artifacts, and for others that may serve as its SDK."""
    requests = profile_requests(read_profile(profile), Options(offline=True))
    requested_names = {request.name for request in requests}
    for name in find_fitness(profile).sdk:
        if name not in requested_names:
            toolchain = read_toolchain(name)
            requests.append(ArtifactRequest(toolchain, toolchain.chosen_release(os.environ)))
    return requests


def make_request(
    profile: str, roots: Mapping[str, Path], variables: Mapping[str, str]
) -> SurveyRequest:
    """Return the request for a survey of a profile, with its pins and submodules."""
    requests = wanted_requests(profile)
    # The submodules of the checkout that the profile's targets need.
    checkouts = (request for request in requests if request.name == CHECKOUT)
    submodules = {path for request in checkouts for path in request.patterns}
    pins = find_pins(requests, roots)
    adoptions = {request.name: request.toolchain.adoption for request in requests}
    return SurveyRequest(
        profile, roots, variables, store_home(), pins, adoptions, tuple(sorted(submodules))
    )


def find_pins(requests: Sequence[ArtifactRequest], roots: Mapping[str, Path]) -> dict[str, str]:
    """Return the pinned version of each artifact, or the version that the user chose with a
    variable such as QNN_CI_SDK. An artifact has no pin if the user chose a directory.

    The value of the key CHECKOUT_COMMIT is the commit that a checkout in ``roots`` should have:
    the one pinned for the checkout's version or, if the manifest does not contain that version, for
    the profile's.
    """
    pins = {}
    for request in requests:
        adoption = request.toolchain.adoption
        if not adoption.find_choice(os.environ):
            pins[request.name] = request.release.version
        if request.name == CHECKOUT:
            # A user's checkout may be another release than the profile's, and then has its own pin.
            commits = {release.version: release.pin for release in request.toolchain.releases}
            root = roots.get(CHECKOUT)
            version = read_version(root, adoption) if root else ""
            pins[CHECKOUT_COMMIT] = commits.get(version, request.release.pin)
    return pins


def examine_request(request: SurveyRequest, progress: Progress | None = None) -> Verdict:
    """Survey an environment and judge it. Raises UsageError for an unknown SoC, and
    ManifestError.
    """
    policy, kinds = read_doctor_policy(), read_elf_policies()
    fitness = find_fitness(request.profile)
    policies = {name: kinds[name] for name in fitness.kinds}
    soc = (request.soc.upper(), find_soc(request.soc).hexagon) if request.soc else None
    facts = survey_environment(request, policy, fitness, policies, progress=progress)
    minimum = read_profile(request.profile).minimum(facts.sdk_name)
    case = Case(facts, policy, fitness, kinds, soc, minimum, read_pairs())
    return Verdict(request.profile, tuple(judge_environment(case)), summarize(facts))


def find_fitness(profile: str) -> Fitness:
    """Return the requirements of a profile or, if it has none, of the profile that it extends.
    Raises ManifestError if neither has any.
    """
    profiles = read_doctor_policy().profiles
    manifest_profiles = read_profiles()
    name = profile.partition("+")[0]
    if name in manifest_profiles:
        profile = name if name in profiles else manifest_profiles[name].like
    if profile not in profiles:
        raise ManifestError(
            f"the doctor has no policy for profile {profile!r}",
            why="manifests/policies/doctor.toml has policies for " + ", ".join(profiles),
            fix=suggest_near(profile, profiles)
            + "use one of these profiles, or add a table [profiles.NAME] to that file",
        )
    return profiles[profile]


def summarize(facts: EnvironmentFacts) -> dict[str, Any]:
    """Return facts as JSON types, with a summary instead of each tree of files."""
    trees = {}
    for name, tree in facts.trees.items():
        proven = [
            file.relative
            for file in tree.files
            if file.proof and file.proof.outcome is Genuine.GENUINE
        ]
        trees[name] = {
            "root": tree.root,
            "files": len(tree.files),
            "bytes": tree.size_bytes,
            "builds": sorted({file.build.text for file in tree.files if file.build}),
            "genuine": sorted(proven),
        }
    summary = {
        "host": facts.host,
        "roots": facts.roots,
        "pins": facts.pins,
        "sdk": facts.sdk,
        "trees": trees,
        "python": facts.python,
        "backend": facts.backend,
        "variables": facts.variables.values if facts.variables else {},
        "ndk": facts.ndk,
        "checkout": facts.checkout,
        "devices": facts.devices or (),
    }
    plain: dict[str, Any] = msgspec.to_builtins(summary, enc_hook=str)
    # A list of more than a hundred flags is too long to read.
    plain["host"]["cpu_flags"] = len(facts.host.cpu_flags)
    return plain


SUBJECTS: tuple[Subjects[Any], ...] = (
    *(ENVIRONMENT, TOOLS, INSTALLATIONS, SDK, DEFECTS, TARGET, CONTENT, NEEDS, FAMILIES, STAGINGS),
    *(VARIABLES, RUNTIMES, PYTHON, NDKS, CHECKOUTS, DEVICES, BOARDS, ADAPTOR),
)


def judge_environment(case: Case, subjects: Iterable[Subjects[Any]] = SUBJECTS) -> list[Finding]:
    """Return every finding once, sorted by id. This machine's glibc is the limit for its own
    libraries, since host programs run here.
    """
    facts = case.facts
    glibc, policy = facts.host.glibc, case.host_policy
    if glibc and policy:
        policy = msgspec.structs.replace(policy, glibc=glibc)
        case = replace(case, kinds={**case.kinds, HOST_KIND: policy})
    findings = [finding for subject in subjects for finding in subject.judge_all(case)]
    findings += [finding for group in find_groups(case) for finding in judge_group(group)]
    if facts.sdk:
        # A broken library makes the device, the API version and the backend fail as well.
        findings = drop_consequences(findings, str(facts.sdk.root / HOST_DIRECTORY))
    # A set, since a file that belongs to two families is judged twice.
    return sorted({finding.printable() for finding in findings})


def drop_consequences(findings: Iterable[Finding], libraries: str) -> list[Finding]:
    """Return the findings without those that follow from an error in the directory ``libraries``
    (see ``CheckRow.after_libraries``)."""
    rows, findings = read_rows(), list(findings)
    causes = [
        finding
        for finding in findings
        if finding.severity is Severity.ERROR
        and not rows[finding.id].after_libraries
        and f"{finding.where}/".startswith(f"{libraries}/")
    ]
    return [finding for finding in findings if not (causes and rows[finding.id].after_libraries)]


def judge_staged(
    tree: TreeFacts, profile: str, soc: str = "", required_names: Sequence[str] | None = None
) -> list[Finding]:
    """Return every finding once, sorted, for libraries and programs staged for a device of
    ``profile``. ``required_names`` are by default the profile's. Raises UsageError for an unknown
    SoC, and for one without an HTP.
    """
    fitness = find_fitness(profile)
    if required_names is not None:
        fitness = msgspec.structs.replace(fitness, staged=tuple(required_names))
    facts = EnvironmentFacts(profile, HostFacts("", "", None, 0, 0, 0, ""), trees={STAGING: tree})
    pair = (soc.upper(), find_htp(soc).hexagon) if soc else None
    case = Case(facts, read_doctor_policy(), fitness, read_elf_policies(), pair)
    return judge_environment(case, (FAMILIES, STAGINGS))


# Findings that a different adaptor fixes: the adaptor is missing, or does not match the Python, the
# machine or the SDK.
OF_HEADERS = frozenset({"QNN902", "QNN903"})
OF_ADAPTOR = OF_HEADERS | {"QNN507", "QNN508", "QNN509", "QNN512", "QNN513", "QNN515", "QNN901"}
PYTHONPATH = "PYTHONPATH"


def settle_adaptor(
    choice: QnnChoice,
    environment: Environment,
    progress: Progress,
    *,
    python: Path | None = None,
    backend: Backend = Backend.HTP,
    tolerated: Collection[str] = (),
) -> tuple[Environment, Verdict]:
    """Return the environment with the first compatible adaptor that ``choice`` allows, and its
    verdict. Findings with ids in ``tolerated`` become warnings.

    If no adaptor is compatible, or if a fault has a cause other than the adaptor, returns the
    environment with the first adaptor, and its verdict. Raises UnfitError if ``choice`` requires an
    overlay and there is none.
    """
    tried: list[tuple[Environment, Verdict]] = []
    for overlay in list_overlays(choice, environment):
        candidate = lay_over(environment, overlay, os.environ) if overlay else environment
        verdict = examine(
            candidate.profile,
            candidate,
            python=python or (Path(sys.executable) if overlay else None),
            tries_device=not choice.is_usual,
            backend=backend,
            tolerated=tolerated,
            progress=progress,
        )
        tried.append((candidate, verdict))
        if verdict.fit:
            if overlay:
                progress.step(f"adaptor: {overlay}")
            return candidate, verdict
        # Another adaptor would not help.
        if not {error.id for error in verdict.errors} <= OF_ADAPTOR:
            break
    return tried[0]


def require_runtime(environment: Environment, progress: Progress) -> None:
    """Raise UnfitError if programs that an overlay's adaptor lowers would run with the wheel's
    backend, and that backend cannot create a device.

    The wheel's adaptor shows whether it can, since both were built with the same headers.
    """
    overlay = find_laid(environment)
    if not overlay or find_backends(overlay):
        return
    # Without PYTHONPATH, Python imports the wheel's executorch instead of the overlay's.
    variables = {name: text for name, text in environment.variables.items() if name != PYTHONPATH}
    wheel = replace(environment, variables=variables)
    verdict = examine(wheel.profile, wheel, tries_device=True, progress=progress)
    for fault in verdict.errors:
        if fault.id in OF_HEADERS:
            raise UnfitError(
                f"{overlay} has no QNN backend for Python's runtime, and the wheel's does not work",
                why="the wheel's backend was built with the same headers as its adaptor: "
                f"{fault.what}; since ExecuTorch 1.5, build_aot does not build a backend",
                fix="build qnn_executor_runner with `qnn-ci build runner --source CHECKOUT` and "
                "the same --sdk, and pass it as --runner",
            )


def list_overlays(choice: QnnChoice, environment: Environment) -> Iterator[Path | None]:
    """Yield the overlays that ``choice`` allows, in the order in which they are tried; None stands
    for the wheel's adaptor. Raises UnfitError if the chosen directory is not an overlay, or if
    ``choice`` requires an overlay and none was built for this SDK and Python.
    """
    if choice.adaptor in {"", WHEEL}:
        yield None
    if choice.adaptor not in {"", WHEEL, OVERLAY}:
        overlay = Path(choice.adaptor).expanduser().absolute()
        if not (overlay / "executorch" / "backends" / "qualcomm" / "python").is_dir():
            raise UnfitError(
                f"{overlay} is not an overlay",
                why="it has no executorch/backends/qualcomm/python",
                fix="use the directory that build_aot prints as overlay",
            )
        yield overlay
    # The usual QNN is the one that the baselines were recorded with, so that no overlay may change
    # it unasked.
    if choice.adaptor == OVERLAY or (not choice.adaptor and not choice.is_usual):
        sdk = next(
            artifact for artifact in environment.artifacts if artifact.name.startswith("qnn-")
        )
        overlays = [path for path, _ in find_overlays(sdk.version)]
        if choice.adaptor == OVERLAY and not overlays:
            raise UnfitError(
                f"no overlay was built for QNN {sdk.version} and {python_tag()}",
                why="--adaptor overlay needs one that build_aot built for this SDK and Python",
                fix=f"run {show_command('build', 'aot', '--sdk', str(sdk.root))}",
            )
        yield from overlays
