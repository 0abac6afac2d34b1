"""``test-emulator --suite faults``: check that the known faults still have their recorded results,
with ExecuTorch and ONNX Runtime, or with the runtime in --runtime."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ci.cases.session import Phases, read_host, read_source, started_now
from ci.facts.finding import Finding, Proof, advise
from ci.facts.kinds import UNRECORDED
from ci.faults.expected import FaultsRequest, Rerun, list_runnable
from ci.faults.known import RERUNNING, read_faults
from ci.models.suite import DEFAULT_SOC
from ci.report.claim import claim_reports
from ci.report.schema import Case, JudgementFacts, Report, Status, Tool, summarize
from ci.verbs.built import require_executorch
from ci.verbs.options import repeat_command, require_effect
from ci.verbs.requests import check_arguments, make_request
from ci.verbs.steps import publish, require_packages
from ci.verbs.trials import FRONTENDS, open_bench
from ci.verbs.user_policy import OURS
from provisioning.artifacts.choice import read_choice
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import find_soc

SUITE = "faults"
SELECTING, INSTEAD = ("--model", "--scheme", "--plan"), "; choose faults with --filter"
USES = (
    *("--filter", "--soc", "--policy", "--reports", "--base", "--sarif"),
    *("--executorch", "--sdk", "--adaptor", "--runtime"),
)
NEEDS = {"onnx": "onnxruntime_qnn", "executorch": "executorch"}


def read_request(args: argparse.Namespace) -> FaultsRequest:
    """Return the request of a call. Raises UsageError for options that do not apply to faults, and
    the same errors as check_arguments."""
    require_effect(args, f"--suite {SUITE}", *USES, hints=dict.fromkeys(SELECTING, INSTEAD))
    check_arguments(args, SUITE)
    if len(args.soc) > 1:
        raise UsageError("--suite accepts only one --soc", fix="run the suite once per SoC")
    policy = None if args.policy == OURS else args.policy  # it is never searched for
    # What a variable chose becomes an option, so that the command repeats the run.
    choice = read_choice(args.sdk, args.adaptor)
    command = repeat_command(args, policy=policy, **choice.options)
    soc = [name.upper() for name in args.soc]
    return make_request(
        FaultsRequest,
        args,
        SUITE,
        parsed={"policy": policy or OURS},
        filters=tuple(args.filter),
        front_ends=(FRONTENDS[args.runtime],) if args.runtime else RERUNNING,
        socs=tuple(soc),
        command=" ".join([command, *(f"--soc {name}" for name in soc)]),
    )


def run_faults(request: FaultsRequest, progress: Progress) -> Outcome:
    """Run the known faults that --filter selects, and report each fault whose result differs from
    the one recorded in faults.toml. Raises UsageError if --filter matches no fault, or none that
    was tried with these front ends."""
    require_executorch(request.executorch)
    # The name of a case starts with that of its fault.
    globs = [glob.split(" ")[0] for glob in request.filters or ["*"]]
    all_faults = read_faults(request.policy)
    faults = [fault for fault in all_faults if matches_any(fault.name, globs)]
    if not faults:
        raise UsageError(f"--filter {request.filters[0]} matches no fault")
    runnable = [row for name in request.front_ends for row in list_runnable(faults, name)]
    if request.front_ends and not runnable:
        names = " or ".join(request.front_ends)
        raise UsageError(f"no graph of the selected faults was tried with {names}")
    soc = request.socs[0] if request.socs else DEFAULT_SOC
    find_soc(soc)
    claim_reports(request.directory)
    phases = Phases(progress)
    runs: list[Rerun] = []
    tools, remarks = [], []
    # Several, because they tell whose fault it is: what is wrong through all is QNN's.
    for frontend in request.front_ends:
        is_chosen = request.front_ends != RERUNNING  # then it must be installed
        if not is_chosen and not importlib.util.find_spec(NEEDS[frontend]):
            remarks.append(f"{frontend}: not run, because this Python has no {NEEDS[frontend]}")
            continue
        with open_bench(frontend, request.choice, progress, offline=request.offline) as bench:
            tools.append(Tool(name=f"QNN of {frontend}", version=bench.qnn))
            with phases.measure(frontend):
                runs += bench.rerun(faults, soc, progress)
    if not runs:
        require_packages((NEEDS["onnx"],), "onnx")
    cases = tuple(make_case(run, soc) for run in runs)
    judged = sum(bool(run.expected) for run in runs)
    right = sum(bool(run.expected and not run.problem) for run in runs)
    unrecorded = ""
    if judged < len(runs):
        unrecorded = f"; {len(runs) - judged} more have no recorded result with this QNN"
    remark = f"{right} of {judged} graphs have the result recorded in faults.toml{unrecorded}"
    report = Report(
        session=SUITE,
        started=started_now(),
        host=read_host(),
        source=read_source(),
        toolchain=tuple(tools),
        thresholds=(),
        cases=cases,
        controls=(),
        summary=summarize(cases, (), phases.wall_s(), phases.rows),
        command=request.command,
        remarks=(*remarks, remark),
    )
    return publish(report, request, (), progress, brief=True)


def matches_any(name: str, globs: Sequence[str]) -> bool:
    """Return whether a name matches one of the globs."""
    return any(fnmatchcase(name, glob) for glob in globs)


def make_case(rerun: Rerun, soc: str) -> Case:
    """Return the report's case for a graph. Its status is unsupported if faults.toml records no
    result with this QNN."""
    status, findings = Status.PASSED, list[Finding]()
    if rerun.problem:
        status = Status.FAILED
        advice = advise(fix="change the row of this fault in faults.toml", proof=Proof.PROVEN)
        findings.append(UNRECORDED.find(rerun.problem, advice=advice))
    elif not rerun.expected:
        status = Status.UNSUPPORTED
        result = f"faults.toml records no result with QNN {rerun.qnn}; the result is: {rerun.end}"
        findings.append(UNRECORDED.find(result))
    return Case(
        model=f"{rerun.fault} {rerun.form} {rerun.frontend}",
        scheme=rerun.scheme,
        soc=soc,
        judgement=JudgementFacts(
            status=status,
            outcome=rerun.end,
            findings=tuple(findings),
            sqnr_db=rerun.sqnr_db,
            predicted_sqnr_db=rerun.predicted_db,
        ),
    )
