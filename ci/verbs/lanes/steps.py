"""Code shared by the verbs that judge cases: options, the list of choices, the steps, the
report."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ci.cases.baselines import name_figures, record_baselines, suite_folder, users_folder
from ci.cases.cache import hash_words
from ci.cases.forked import run_forked
from ci.cases.judged import Options
from ci.cases.policy import LANES, EmulatorPolicy, read_emulator_policy
from ci.cases.pool import ScratchPool, open_scratch_pool
from ci.cases.session import Phases, started_now
from ci.cases.spec import DEFAULT_SOC, CaseSpec, list_schemes, select_cases
from ci.executorch.toolchain import find_on_path
from ci.latency.calibrate import read_own
from ci.models.lowering_options import LOG_LEVELS
from ci.models.parts import Candidate, list_parts
from ci.models.schemes import Lane
from ci.models.source_lines import name_argument
from ci.models.suite import SUITE
from ci.models.user_models import check_data
from ci.report import evidence, publishing
from ci.report.schema import Report
from ci.report.text import align_rows
from ci.report.write import REPORTS_FIX, encode_report, report_data
from ci.verbs.user_policy import NAME, OURS, choose_policy, policy_path
from provisioning.artifacts.choice import QnnChoice
from provisioning.artifacts.environment import Environment, provision_profile
from provisioning.console.caller import shown_path
from provisioning.console.command import (
    HOW,
    RESULTS,
    WHAT,
    Outcome,
    group_options,
    read_version,
    user_path,
)
from provisioning.console.installation import CHECKOUT, install_command
from provisioning.console.progress import Progress
from provisioning.doctor.examine import Verdict, settle_adaptor
from provisioning.doctor.registry import Finding
from provisioning.errors import StoreError, UnfitError, UsageError, at_key
from provisioning.files import hash_file, require_writable, write_whole
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import Backend, read_socs

USUAL = QnnChoice()


def add_policy(parser: argparse.ArgumentParser, what: str, group: str = "") -> None:
    """Add --policy, in a group of options or in none. ``what`` describes the file."""
    add = group_options(parser, group) if group else parser.add_argument
    add(
        "--policy",
        type=policy_path,
        metavar="FILE",
        help=f"{what}; default: the {NAME} in the current directory or the nearest one above it"
        " in the repository, if there is one; `default`: this project's own suite and limits",
    )
    parser.set_defaults(ours=False, own=())


def read_limits(args: argparse.Namespace, lane: str, progress: Progress) -> EmulatorPolicy:
    """Return a lane's policy, show which file it is, and warn about limits that have no effect.

    ``args.policy`` becomes the file that is used, or None for this project's own policy. If the
    user asked for that one, ``args.ours`` becomes true. ``args.own`` becomes the names of the
    policy's models. ``args.strict_noise``, if there is one, overrides the policy. Raises
    ManifestError if the policy is missing or invalid, and UsageError as choose_policy does.
    """
    args.ours, args.policy = args.policy == OURS, choose_policy(args.policy)
    policy = read_emulator_policy(args.policy, lane)
    args.own = tuple(policy.models)
    if args.policy:
        progress.step(f"policy: {shown_path(args.policy)}")
    elif not args.ours and getattr(args, "model", None) == [] and not is_in_checkout():
        progress.step(
            f"note: there is no {NAME} here or above, so this project's own suite is tested"
        )
    for name in policy.dropped:
        progress.step(
            f"warning: {name} in the policy has no effect any more: max_above_noise_db covers it"
        )
    is_strict = getattr(args, "strict_noise", False)
    return replace(policy, strict_noise=True) if is_strict else policy


def is_in_checkout() -> bool:
    """Return whether the command was started in this project's own checkout."""
    return user_path(".").resolve().is_relative_to(CHECKOUT)


def add_case_arguments(parser: argparse.ArgumentParser, model: str, session: str) -> None:
    """Add the options of a verb that judges cases. ``model`` is the help text of --model, and
    ``session`` names the report's directory."""
    add_selection(parser, model, session)
    add = group_options(parser, RESULTS)
    add("--keep-artifacts", type=user_path, metavar="DIR", help="keep programs, outputs and logs")
    add(
        "--log-level",
        choices=LOG_LEVELS,
        default="",
        help="the level of QNN's log, which --keep-artifacts keeps",
    )
    group_options(parser, HOW)("--no-cache", action="store_true", help="lower everything again")
    add_strict_noise(parser)
    group_options(parser, HOW)(
        "--estimate",
        action="store_true",
        help="also predict the time of each case on a device, which lowers it a second time",
    )
    add(
        "--record",
        action="store_true",
        help="write the SQNR and footprint of each case that passes to a baselines file, to be"
        " committed",
    )
    publishing.add_arguments(parser)


def add_strict_noise(parser: argparse.ArgumentParser) -> None:
    """Add --strict-noise."""
    group_options(parser, HOW)(
        "--strict-noise",
        action="store_true",
        help="fail a case whose error is above the predicted noise even if it is too small to"
        " matter",
    )


def add_selection(parser: argparse.ArgumentParser, model: str, session: str) -> None:
    """Add the options that choose cases, jobs and policy. ``model`` and ``session`` are as for
    ``add_case_arguments``."""
    add = group_options(parser, WHAT)
    add("--model", action="append", default=[], help=model)
    add_schemes(parser)
    add(
        "--list",
        action="store_true",
        help="run nothing; list the models, schemes and SoCs or, with --model, the nodes of the"
        " model with the scheme of each in its mixtures",
    )
    add_run(parser, session)


def add_model(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add --model for models of both lanes. ``default`` is the text about what is used without
    it."""
    add = group_options(parser, WHAT)
    text = "a model's name, a glob, file.onnx, or file.py:factory; repeatable"
    add(
        "--model",
        action="append",
        default=[],
        help=f"{text}; default: {default}" if default else text,
    )


def add_schemes(parser: argparse.ArgumentParser, soc: str = DEFAULT_SOC) -> None:
    """Add --scheme and --soc."""
    add = group_options(parser, WHAT)
    add("--scheme", action="append", default=[], help="the name of a scheme, or a glob; repeatable")
    add(
        "--soc",
        action="append",
        default=[],
        help=f"the name of an SoC, or a glob; repeatable; default: {soc}",
    )


def add_run(parser: argparse.ArgumentParser, session: str, timeout_s: float = 300.0) -> None:
    """Add the options for jobs, time limit, policy and reports. If ``session`` is empty, --jobs and
    --reports are left out."""
    add_policy(parser, "your models and limits", WHAT)
    add = group_options(parser, HOW)
    add(
        "--timeout-s",
        type=float,
        default=timeout_s,
        help="time limit for each lowering and each run, in seconds",
    )
    add("--offline", action="store_true", help="use only what is already provisioned")
    parser.set_defaults(program=parser.prog)
    if session:
        cores = len(os.sched_getaffinity(0))
        jobs = os.environ.get("QNN_CI_JOBS") or cores
        add(
            "--jobs",
            type=int,
            default=jobs,
            help=f"number of cases to run at a time; default: QNN_CI_JOBS or {cores}",
        )
        publishing.add_reports(parser, f"the directory for {session}/")


def check_arguments(args: argparse.Namespace, session: str) -> None:
    """Raise UsageError for a number that is out of range, and StoreError if a directory that the
    run will write to is not writable."""
    if args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs} is below 1", fix="pass 1 or more")
    if not args.timeout_s > 0:
        raise UsageError(
            f"--timeout-s {args.timeout_s} is not above 0", fix="pass a number of seconds above 0"
        )
    if not args.list:
        require_writable(args.reports / session, REPORTS_FIX)
        if args.keep_artifacts:
            require_writable(args.keep_artifacts)
        if args.sarif and args.sarif.is_dir():
            why, fix = "it is a directory", "pass a file to --sarif"
            raise StoreError(f"{args.sarif} cannot be written", why=why, fix=fix)
        if args.sarif and not args.sarif.exists():
            require_writable(args.sarif.parent)


def require_forward(specs: Iterable[CaseSpec]) -> None:
    """Raise UsageError for a model with other methods than forward."""
    for spec in specs:
        if spec.source.choices.methods:
            raise UsageError(
                f"{spec.model} has several methods",
                fix="select a model whose only method is forward",
            )


def require_packages(names: Sequence[str], extra: str) -> None:
    """Raise UnfitError if one of the packages ``names`` is not installed. ``extra`` is the extra of
    this project that installs them."""
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
    **more: Any,
) -> Report:
    """Run the four steps of a session. Show and time each. ``run`` is the third step, and ``work``
    is its description.

    If the host lacks the backend's library, ``refuse`` returns the report instead. Findings whose
    id is in ``tolerated`` are noted in the report. ``more`` is passed to enter_environment.
    """
    progress = phases.progress
    with enter_environment(
        profile, phases, tolerated=tolerated, may_lack=refuse is not None, **more
    ) as (environment, scratch, verdict):
        if refuse and verdict.lacks:
            progress.step(f"3/4 nothing is lowered: {verdict.lacks.what}")
            report = refuse(environment, verdict.lacks)
        else:
            progress.step(f"3/4 {work}")
            report = run(environment, scratch)
    progress.step("4/4 report")
    tried = "; ".join(one.what for one in verdict.findings if one.id in tolerated)
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
            find_on_path(environment.variables)
        yield environment, scratch, verdict


def select_asked(
    args: argparse.Namespace, policy: EmulatorPolicy, lane: Lane, soc: str = DEFAULT_SOC
) -> list[CaseSpec]:
    """Return the requested cases. ``soc`` is the SoC if none is requested.

    Raises UsageError for an unknown name, an option that the lane does not support, or an invalid
    data file in the policy.
    """
    specs = select_cases(
        policy.suite,
        sorted(read_socs()),
        entries=policy.models,
        models=args.model,
        schemes=args.scheme,
        soc_names=args.soc,
        lane=lane,
        default_soc=soc,
    )
    unnamed = [spec.model for spec in specs if spec.model not in {*SUITE, *policy.models}]
    if args.record and unnamed:
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
    args: argparse.Namespace, session: str, policy: EmulatorPolicy, **more: Any
) -> Options:
    """Return the options of a run. ``more`` are further fields of Options."""
    return Options(
        policy=policy,
        session=session,
        started=started_now(),
        jobs=args.jobs,
        timeout_s=args.timeout_s,
        use_cache=not args.no_cache,
        keep=args.keep_artifacts,
        files_directory=args.reports / session / "qnn",
        record=args.record,
        estimate=getattr(args, "estimate", False),  # test_llm has none
        own_lines=read_own(args.policy),
        baselines=users_folder(args.policy),
        **more,
    )


def repeat_command(args: argparse.Namespace, *flags: str, **more: str | Sequence[str]) -> str:
    """Return the command line of this call without the options that select cases, as typed at the
    root of a repository. An option in ``more`` that has several values is repeated. An option
    without a value is left out."""
    words = ["--policy", str(OURS)] if args.ours else []
    words += ["--policy", name_argument(args.policy.absolute())] if args.policy else []
    words += [f"--{flag}" for flag in flags if getattr(args, flag.replace("-", "_"))]
    for name, given in more.items():
        values = [given] if isinstance(given, str) else given
        words += [word for value in values if value for word in (f"--{name}", value)]
    return " ".join([args.program, *map(shlex.quote, words)])


def name_mending(args: argparse.Namespace) -> str:
    """Return the start of the command that mends a case of this call."""
    given = argparse.Namespace(program="mend", ours=args.ours, policy=args.policy)
    return repeat_command(given, shape=getattr(args, "shape", []))


def publish(
    report: Report, directory: Path, args: argparse.Namespace, progress: Progress
) -> Outcome:
    """Write the report and its evidence, publish it on the CI system, and return its table."""
    from ci.report.table import render_table, terminal_style

    report = publishing.publish_run(report, directory, args, progress)
    keep_evidence(report, directory / "evidence", args.policy, progress)
    if args.keep_artifacts:
        write_whole(args.keep_artifacts / "report.json", encode_report(report))
    if args.record and report.summary.passed:
        for path in record_baselines(report, users_folder(args.policy), args.own):
            progress.step(f"recorded: {shown_path(path)}")
    colour, width = terminal_style()
    text = render_table(report, colour=colour, width=width)
    return Outcome(text, report_data(report), report.exit_code, exact=True)


def keep_evidence(report: Report, directory: Path, policy: Path | None, progress: Progress) -> None:
    """Write a statement of the result for each judged program, if in-toto-attestation is installed.
    Statements of an earlier run are removed."""
    shutil.rmtree(directory, ignore_errors=True)
    if not importlib.util.find_spec(evidence.PACKAGE):
        progress.step(
            "note: no evidence/ is written, because this Python has no in-toto-attestation"
        )
        return
    name = name_figures(report.toolchain, report.backend)
    folders = filter(None, (suite_folder(), users_folder(policy)))
    recorded = [hash_file(one / name) for one in folders if (one / name).is_file()]
    default = manifests_root() / "policies" / f"{LANES[report.session]}.toml"
    digests = {
        evidence.POLICY: hash_file(policy or default),
        **({evidence.BASELINES: hash_words(*recorded)} if recorded else {}),
    }
    evidence.write_evidence(report, directory, read_version(), digests)


def list_asked(
    args: argparse.Namespace,
    policy: EmulatorPolicy,
    lane: Lane,
    find_candidates: Callable[[CaseSpec], Sequence[Candidate]],
) -> Outcome:
    """Return what --list prints: with --model, the nodes of the models with the scheme and the part
    that each mixture assigns to them; otherwise, the choices.

    ``find_candidates`` runs in a fork, because it runs the user's code. Raises UsageError for a
    part that has no own nodes.
    """
    if not args.model:
        return list_choices(policy, lane)
    specs = select_asked(args, policy, lane)
    mixed = [one for one in specs if one.source.choices.parts]
    chosen = {(one.model, one.scheme.value if mixed else ""): one for one in mixed or specs}
    texts, listed = [], []
    for (model, scheme), spec in chosen.items():
        with at_key(f"{model} {scheme}".strip()):
            candidates = run_forked(partial(find_candidates, spec), f"reading {model}")
            parts, base = spec.source.choices.parts, spec.scheme.base.value if scheme else ""
            rows = list_parts(candidates, parts, base)
        listed.append({"model": model, "scheme": scheme, "nodes": rows})
        names = [name for name in COLUMNS if any(row[name] for row in rows)]
        cells = [names, *([row[name] for name in names] for row in rows)]
        lines = (f"  {one}" for one in align_rows(cells))
        texts.append("\n".join([f"{model} {scheme}".strip(), *lines]))
    return Outcome("\n\n".join(texts) + "\n", {"assigned": listed})


COLUMNS = ("node", "op", "line", "scheme", "part")


def list_choices(policy: EmulatorPolicy, lane: Lane) -> Outcome:
    """Return lists of the models (with descriptions and default schemes), the schemes and the
    SoCs."""
    socs = sorted(read_socs())
    own = {
        name: [scheme.value for scheme in list_schemes(one, lane)]
        for name, one in policy.models.items()
    }
    about = {name: one.path for name, one in policy.models.items()}
    about |= {name: text for name, text in SUITE.items() if name not in own}
    schemes = [scheme.value for scheme in lane.schemes]
    models = {
        name: {
            "about": about[name],
            "schemes": own.get(name)
            or [one.value for one in policy.suite.get(name, ()) if one in lane.schemes],
        }
        for name in about
    }
    width = max(map(len, models))
    rows = [
        f"  {name:<{width}}  {model['about']} ({', '.join(model['schemes'])})"
        for name, model in models.items()
    ]
    text = "\n".join(
        ["models (default schemes)", *rows, "", "schemes", "  " + " ".join(schemes), "", "SoCs"]
    )
    lines = [" ".join(socs[start : start + 10]) for start in range(0, len(socs), 10)]
    text += "".join(f"\n  {line}" for line in lines) + "\n"
    return Outcome(text, {"models": models, "schemes": schemes, "socs": socs})
