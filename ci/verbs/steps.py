"""Code shared by the verbs that judge cases: the policy, the cases, the list of choices, the steps,
the report."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ci.analysis.mixtures import list_parts
from ci.cases.baselines import name_figures, record_baselines, suite_folder, users_folder
from ci.cases.cache import hash_words
from ci.cases.facts import Options
from ci.cases.limited import run_limited
from ci.cases.pipeline import KEEP_FIX
from ci.cases.policy import LANES, EmulatorPolicy, read_emulator_policy
from ci.cases.pool import ScratchPool, open_scratch_pool
from ci.cases.request import Request
from ci.cases.session import Phases, started_now
from ci.cases.spec import CaseSpec, list_schemes, select_cases
from ci.executorch.toolchain import find_on_path
from ci.graphs.candidates import Candidate
from ci.latency.calibrate import read_own
from ci.models.schemes import LITERT, SchemeSet
from ci.models.suite import DEFAULT_SOC, OWN_MODELS
from ci.models.user_models import check_data
from ci.report import evidence, publishing
from ci.report.schema import Report
from ci.report.text import align_rows
from ci.report.write import encode_report, report_data
from ci.verbs.user_policy import NAME
from provisioning.artifacts.choice import QnnChoice
from provisioning.artifacts.environment import Environment, provision_profile
from provisioning.console.caller import CHECKOUT, install_command, shown_path
from provisioning.console.command import Outcome, read_version, user_path
from provisioning.console.progress import Progress
from provisioning.console.user_folder import UserFolder, require_owned
from provisioning.doctor.examine import Verdict, settle_adaptor
from provisioning.doctor.registry import Finding
from provisioning.errors import UnfitError, UsageError, at_key
from provisioning.files import hash_file, write_whole
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import Backend

USUAL = QnnChoice()


def read_limits(request: Request, section: str, progress: Progress) -> EmulatorPolicy:
    """Return the policy of a request, show which file it is, and warn about limits that have no
    effect. ``section`` names this project's own policy, which the user's file extends. Raises
    ManifestError if the policy is missing or invalid."""
    policy = read_emulator_policy(request.policy, section)
    if request.policy:
        progress.step(f"policy: {shown_path(request.policy)}")
    # A call that names a model needs no policy.
    elif request.models == () and not (
        request.is_own_policy_typed or user_path(".").resolve().is_relative_to(CHECKOUT)
    ):
        reason = f"there is no {NAME} here or above, so this project's own suite is tested"
        progress.step(f"note: {reason}")
    for name in policy.dropped:
        progress.step(
            f"warning: {name} in the policy has no effect any more: max_above_noise_db covers it"
        )
    return replace(policy, strict_noise=True) if request.strict_noise else policy


def require_packages(names: Sequence[str], extra: str) -> None:
    """Raise UnfitError if one of the packages ``names`` is not installed. ``extra`` is the extra of
    this project that installs them."""
    # Looked for, and not imported: the imports of torch take seconds.
    missing = [name for name in names if not importlib.util.find_spec(name)]
    if missing:
        raise UnfitError(
            f"this Python has no {' and no '.join(missing)}",
            why=f"this command needs {', '.join(names)}",
            fix=f"{install_command(extra)}, which installs the tested versions",
        )


def take_steps(
    profile: str,
    work: str,
    run: Callable[[Environment, ScratchPool], Report],
    phases: Phases,
    *,
    tolerated: Collection[str] = (),
    refuse: Callable[[Environment, Finding], Report] | None = None,
    **options: Any,
) -> Report:
    """Run the four steps of a session. Show and time each. ``run`` is the third step, and ``work``
    is its description.

    If the host lacks the backend's library, ``refuse`` returns the report instead. Findings whose
    id is in ``tolerated`` are noted in the report. ``options`` are passed to enter_environment.
    """
    progress = phases.progress
    with enter_environment(
        profile, phases, tolerated=tolerated, may_lack=refuse is not None, **options
    ) as (environment, scratch, verdict):
        if refuse and verdict.lacks:
            progress.step(f"3/4 nothing is lowered: {verdict.lacks.what}")
            report = refuse(environment, verdict.lacks)
        else:
            progress.step(f"3/4 {work}")
            report = run(environment, scratch)
    progress.step("4/4 report")
    tried = "; ".join(finding.what for finding in verdict.findings if finding.id in tolerated)
    return replace(report, unsupported=tried)


@contextmanager
def enter_environment(
    profile: str,
    phases: Phases,
    *,
    offline: bool,
    imports: Sequence[str],
    choice: QnnChoice = USUAL,
    backend: Backend = Backend.HTP,
    tolerated: Collection[str] = (),
    may_lack: bool = False,
) -> Iterator[tuple[Environment, ScratchPool, Verdict]]:
    """Provision and check the environment: the first two of the four steps. Yield the environment,
    a pool of processes and the doctor's verdict.

    The pool imports ``imports``. With the default ``choice``, it starts before the check, with the
    artifacts that seem to be provisioned. With ``may_lack``, a host without the library of
    ``backend`` is accepted, and ``verdict.lacks`` reports it. Raises UnfitError if the doctor finds
    an error.
    """
    progress = phases.progress
    with open_scratch_pool(imports) as scratch:
        progress.step(f"1/4 provision profile {profile}")
        # Only then are the artifacts known before the check of the adaptor: another QNN changes the
        # variables with which workers start.
        if choice.is_usual:
            scratch.guess(profile)
        with phases.measure("provision"):
            environment = provision_profile(profile, progress, verify=True, offline=offline)
        progress.step("2/4 check the environment")
        with phases.measure("check"):
            environment, verdict = settle_adaptor(
                choice, environment, progress, backend=backend, tolerated=tolerated
            )
            if not (may_lack and verdict.lacks):
                verdict.require()
            # This process must find the same modules as its jobs, such as those of an overlay.
            find_on_path(environment.variables)
        yield environment, scratch, verdict


def select_asked(
    request: Request, policy: EmulatorPolicy, schemes: SchemeSet, soc: str = DEFAULT_SOC
) -> list[CaseSpec]:
    """Return the requested cases. ``soc`` is the SoC if none is requested.

    Raises UsageError for an unknown name, an option that the lane does not support, or an invalid
    data file in the policy.
    """
    specs = select_cases(
        policy.suite,
        sorted(schemes.socs()),
        entries=policy.models,
        models=request.models or (),
        schemes=request.schemes,
        soc_names=request.socs,
        lane=schemes,
        default_soc=soc,
        translates=request.translate_schemes,
    )
    unnamed = [spec.model for spec in specs if spec.model not in {*OWN_MODELS, *policy.models}]
    if request.record and unnamed:
        raise UsageError(
            f"--record cannot be used with --model {unnamed[0]}",
            why="the baselines of a model are recorded next to the policy that lists it",
            fix="add the model to a policy (`qnn-ci init` writes one), and pass --policy",
        )
    named = {spec.model for spec in specs}
    for name, entry in policy.models.items():
        if name in named:
            check_data(name, entry)
    return specs


def read_options(
    request: Request, policy: EmulatorPolicy, specs: Sequence[CaseSpec], **fields: Any
) -> Options:
    """Return the options of a run of cases. ``fields`` are further ones of Options. Raises
    StoreError if --keep-artifacts would replace a file of the user's."""
    for spec in specs if request.keep else ():
        # Each case replaces its directory, and a file of the user's in it must not be lost.
        require_owned((request.keep or Path()) / spec.slug, KEEP_FIX)
    options: dict[str, Any] = {
        "policy": policy,
        "specs": specs,
        "session": request.session,
        "started": started_now(),
        "jobs": request.jobs,
        "timeout_s": request.timeout_s,
        "use_cache": request.use_cache,
        "keep": request.keep,
        "files_directory": request.directory / "qnn",
        "record": request.record,
        "estimate": request.estimate,
        "own_lines": read_own(request.policy),
        "baselines": users_folder(request.policy),
        "command": request.command,
        **fields,
    }
    return Options(**options)


def publish(
    report: Report,
    request: Request,
    models: Collection[str],
    progress: Progress,
    *,
    brief: bool = False,
) -> Outcome:
    """Write the report and its evidence, publish it on the CI system, and return its table, or what
    failed if ``brief``. ``models`` are those of the user's policy, whose figures can be
    recorded."""
    # These import rich and an HTTP client: the workers are started 0.1 s earlier without them.
    from ci.report.document import show_document
    from ci.report.overview import list_failed, make_document

    report = publishing.publish_run(
        report, request.directory, progress, base=request.base, sarif=request.sarif
    )
    keep_evidence(report, request.directory / "evidence", request.policy, progress)
    if request.keep:
        write_whole(request.keep / "report.json", encode_report(report))
    if request.record and report.summary.passed:
        for path in record_baselines(report, users_folder(request.policy), models):
            progress.step(f"recorded: {shown_path(path)}")
    text = show_document(list_failed(report) if brief else make_document(report))
    return Outcome(text, report_data(report), report.exit_code, exact=True)


def keep_evidence(report: Report, directory: Path, policy: Path | None, progress: Progress) -> None:
    """Write a statement of the result for each judged program, if in-toto-attestation is installed.
    Statements of an earlier run are removed. Files of the user's stay."""
    folder = UserFolder(directory)
    folder.remove_written()
    if report.session not in LANES:  # such as upstream's suites, which keep no programs
        return
    if not importlib.util.find_spec(evidence.PACKAGE):
        progress.step(
            "note: no evidence/ is written, because this Python has no in-toto-attestation"
        )
        return
    name = name_figures(report.toolchain, report.backend)
    folders = filter(None, (suite_folder(), users_folder(policy)))
    recorded = [hash_file(folder / name) for folder in folders if (folder / name).is_file()]
    default = manifests_root() / "policies" / f"{LANES[report.session]}.toml"
    digests = {
        evidence.POLICY: hash_file(policy or default),
        **({evidence.BASELINES: hash_words(*recorded)} if recorded else {}),
    }
    with folder.stage() as scratch:
        if evidence.write_evidence(report, scratch, read_version(), digests):
            folder.publish(scratch, force=True).say_aside(progress)


def list_asked(
    request: Request,
    policy: EmulatorPolicy,
    schemes: SchemeSet,
    list_nodes: Callable[[CaseSpec], Sequence[Candidate]],
) -> Outcome:
    """Return what --list prints: with --model, the nodes of the models with the scheme and the part
    that each mixture assigns to them; otherwise, the choices.

    ``list_nodes`` runs in a process with limits, because it runs the user's code. Raises UsageError
    for a part that has no own nodes.
    """
    if not request.models:
        return list_choices(policy, schemes)
    specs = select_asked(request, policy, schemes)
    mixed = [spec for spec in specs if spec.source.choices.parts]
    chosen = {(spec.model, spec.scheme.value if mixed else ""): spec for spec in mixed or specs}
    texts, listed = [], []
    for (model, scheme), spec in chosen.items():
        with at_key(f"{model} {scheme}".strip()):
            candidates = run_limited(partial(list_nodes, spec), model, timeout_s=request.timeout_s)
            parts, base = spec.source.choices.parts, spec.scheme.base.value if scheme else ""
            rows = list_parts(candidates, parts, base)
        listed.append({"model": model, "scheme": scheme, "nodes": rows})
        lines = (f"  {line}" for line in show_nodes(rows))
        texts.append("\n".join([f"{model} {scheme}".strip(), *lines]))
    return Outcome("\n\n".join(texts) + "\n", {"assigned": listed})


COLUMNS = ("node", "op", "line", "scheme", "part")


def show_nodes(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return nodes as lines of a table, without the columns in which no cell has a text."""
    columns = []
    for name in COLUMNS:
        cells = [row[name] for row in rows]
        if any(cells):
            columns.append([name, *cells])
    return align_rows([*zip(*columns, strict=True)])


def list_choices(policy: EmulatorPolicy, scheme_set: SchemeSet) -> Outcome:
    """Return lists of the models (with descriptions and default schemes), the schemes and the
    SoCs, with the names under which these are sold."""
    rows_of_socs = scheme_set.socs()
    socs = sorted(rows_of_socs)
    schemes = [scheme.value for scheme in scheme_set.schemes]
    about = {name: entry.path for name, entry in policy.models.items()}
    for name, text in scheme_set.suite.items():
        about.setdefault(name, text)  # a user's model may have the name of one of the suite
    models, rows, width = {}, [], max(map(len, about))
    for name, text in about.items():
        chosen = list_schemes(policy.models[name], scheme_set) if name in policy.models else []
        if not chosen:
            suite_schemes = policy.suite.get(name, ())
            chosen = [scheme for scheme in suite_schemes if scheme in scheme_set.schemes]
        names = [scheme.value for scheme in chosen]
        models[name] = {"about": text, "schemes": names}
        shown_names = ", ".join(names)
        if scheme_set is LITERT and name in policy.models and not policy.models[name].schemes:
            shown_names = "asis or fp16, as the file is"
        rows.append(f"  {name:<{width}}  {text} ({shown_names})")
    lines = [f"  {' '.join(socs[start : start + 10])}" for start in range(0, len(socs), 10)]
    sold_names = [
        f"  {other_name}: {soc}"
        for soc in socs
        for other_name in rows_of_socs[soc].also_called
        if " " in other_name
    ]
    blocks = (
        ["models (default schemes)", *rows],
        ["schemes", f"  {' '.join(schemes)}"],
        ["SoCs", *lines],
        ["names of SoCs, which --soc takes, too", *sold_names],
    )
    text = "\n\n".join(map("\n".join, blocks)) + "\n"
    return Outcome(text, {"models": models, "schemes": schemes, "socs": socs})
