"""``estimate``: predict the time of a program on a device, from QNN's simulator and public
measurements."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.cache import CompileResult, as_compiled
from ci.cases.facts import Options
from ci.cases.spec import CaseSpec, match_socs
from ci.facts.kinds import NOT_LOWERED
from ci.latency.calibrate import OWN_LINES, calibrate, describe_line, read_own, write_own
from ci.latency.estimate import Device, Line, estimate_times, explain_unsimulated, find_device
from ci.latency.simulation import TRACE, choose_simulated, convert_trace
from ci.report.export import describe_fix, is_own_trace
from ci.report.filled import fill_text
from ci.report.schema import CaseName, Estimate
from ci.report.write import read_report
from ci.verbs.lanes.lane import Plan
from ci.verbs.localise import make_lane_request
from ci.verbs.options import (
    FORMER_RUNTIMES,
    RUN,
    add_option,
    add_options,
    check_values,
    choose_runtime,
    require_effect,
)
from ci.verbs.trials import open_setup
from provisioning.console.caller import shown_path
from provisioning.console.command import DIR, RESULTS, WHAT, Outcome
from provisioning.console.progress import Progress
from provisioning.console.user_folder import require_output, write_output
from provisioning.documents import CONTENT_BYTES, read_bytes
from provisioning.errors import ExitCode, UsageError
from provisioning.files import require_writable
from provisioning.manifest.targets import read_socs

SESSION = "estimate"
NOTE = (
    "The times are from a fit to AI Hub's measurements of other models, made with other converters"
    " and QNN 2.50. Nothing was measured on a device."
)


SCHEMA_VERSION = 1


class EstimatedCase(CaseName, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The estimate for a case, and the file of its trace, if one was requested."""

    estimate: Estimate
    trace: str = ""


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON that estimate prints (docs/schemas/estimate.schema.json)."""

    cases: tuple[EstimatedCase, ...]
    note: str = NOTE
    schema_version: int = SCHEMA_VERSION


def render_estimates(cases: Sequence[EstimatedCase]) -> str:
    """Return the times, the cycles, the traffic and the most expensive operators of each case."""
    return fill_text("verbs/templates/estimate.txt.j2", cases=cases, note=NOTE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "--model", gaps={"--model": "file.onnx, or file.py:factory"})
    add_options(parser, "--runtime", "--shape", "--scheme", "--soc")
    add = partial(add_option, parser)
    device = "a device with published times, such as 'Galaxy S24'; this also chooses the SoC"
    add(WHAT, "--device NAME", device, default="")
    add(WHAT, "--frontend", "the former name of --runtime", choices=[*FORMER_RUNTIMES])
    add_options(parser, *RUN, "--no-cache")
    trace = "write the predicted timeline of each case to DIR, for ui.perfetto.dev"
    add(RESULTS, "--trace", trace, **DIR)
    add_options(parser, "--calibrate", gaps={"--calibrate": OWN_LINES})
    add_options(parser, "--sdk")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Predict the time of each case, or fit a device to reports. The exit code is 1 if a case
    cannot be simulated. Raises UsageError, and the same errors as prepare_tools."""
    check_values(args)
    if args.calibrate:
        require_effect(args, "--calibrate", "--policy")
        lines = calibrate([read_report(path) for path in args.calibrate])
        progress.step(f"wrote {shown_path(write_own(lines, args.policy))}")
        text = "".join(f"{describe_line(line)}\n" for line in lines)
        return Outcome(text, msgspec.to_builtins(lines))
    if not args.model:
        raise UsageError("there is no model to estimate", fix="pass --model")
    device = find_device(args.device) if args.device else None
    if args.trace:
        require_writable(args.trace)
    models = (args.model, args.shape, args.policy)
    runtime = choose_runtime(args.runtime, args.frontend, progress)
    socs = choose_socs(args.soc, device)
    lane, request = make_lane_request(args, SESSION, *models, runtime=runtime, socs=socs)
    policy, schemes = lane.read_policy(request, progress)
    specs = lane.select(request, policy, schemes, progress)
    with lane.prepare(request, policy, specs, progress) as plan:
        options = Options(
            policy=policy,
            specs=plan.specs,
            timeout_s=request.timeout_s,
            use_cache=request.use_cache,
            own_lines=read_own(request.policy),
        )
        results = simulate(options, plan, progress, offline=request.offline)
        return estimate_cases(results, options, device, args.trace)


def estimate_cases(
    results: Iterable[tuple[CaseSpec, CompileResult]],
    options: Options,
    device: Device | None,
    trace_folder: Path | None,
) -> Outcome:
    """Predict the time of each case from the result of its simulation, and write their traces to a
    folder, if there is one. Raises StoreError if the folder has another file under the name of a
    trace."""
    targets: dict[CaseSpec, Path] = {}
    if trace_folder:
        targets = {spec: trace_folder / f"{spec.slug}.json" for spec in options.specs}
    # Refused before anything is simulated.
    for target in targets.values():
        require_output(target, is_own_trace, describe_fix("--trace"))
    cases = []
    for spec, result in results:
        estimated = judge_result(spec, result, device, options.own_lines)
        if targets and estimated.estimate.simulation:
            target = targets[spec]
            timeline = read_bytes(Path(result.directory) / TRACE, CONTENT_BYTES)
            trace = json.dumps(convert_trace(gzip.decompress(timeline))).encode()
            write_output(target, trace, is_own_trace, describe_fix("--trace"))
            estimated = msgspec.structs.replace(estimated, trace=str(target))
        cases.append(estimated)
    data = msgspec.to_builtins(Estimates(cases=tuple(cases)))
    failed = any(case.estimate.simulation is None for case in cases)
    return Outcome(render_estimates(cases), data, ExitCode.FAILED if failed else ExitCode.OK)


def choose_socs(names: Sequence[str], device: Device | None) -> tuple[str, ...]:
    """Return the values of --soc or, without it, the SoC of a device. If socs.toml lacks that, it
    is a SoC with the same Hexagon. Raises UsageError if a value matches another SoC."""
    if not device:
        return tuple(names)
    socs = read_socs()
    alike = [name for name, soc in socs.items() if soc.hexagon == device.hexagon]
    device_socs = [device.soc] if device.soc else alike
    if other_socs := sorted({*match_socs(names, sorted(socs))} - {*device_socs}):
        has = device.soc or f"Hexagon V{device.hexagon}"
        problem = f"{device.device} has {has}, and not {other_socs[0]}"
        raise UsageError(problem, fix="pass either --device or --soc")
    return tuple(names or device_socs[:1])


def judge_result(
    spec: CaseSpec, result: CompileResult, device: Device | None, user_lines: Sequence[Line]
) -> EstimatedCase:
    """Return the estimate for a case from the result of its simulation."""
    compiled = result.artifact.compiled if result.artifact else None
    estimate = estimate_times(
        compiled.simulation if compiled else None,
        spec.scheme,
        spec.soc,
        cpu_nodes=compiled.delegation.fallback_nodes if compiled else 0,
        device=device,
        user_lines=user_lines,
        fault=result.refused.text if result.refused else "",
    )
    return EstimatedCase(**msgspec.structs.asdict(spec.name), estimate=estimate)


def simulate(
    options: Options, plan: Plan, progress: Progress, *, offline: bool
) -> Iterator[tuple[CaseSpec, CompileResult]]:
    """Provision, check the environment, and simulate one case after the other. Yield each case with
    its result. A case that cannot be simulated is refused with the reason."""
    with open_setup(plan, options, progress, offline=offline) as setup:
        for number, spec in enumerate(options.specs):
            progress.step(f"3/4 simulate {Path(spec.model).name} {spec.scheme} {spec.soc}")
            if not choose_simulated(spec.soc):
                yield spec, CompileResult(refused=NOT_LOWERED.find(explain_unsimulated(spec.soc)))
                continue
            folder = setup.work / f"estimate-{number}"
            folder.mkdir()
            job = setup.make_job(replace(spec, simulated=True), folder / "lower.log")
            memory = options.policy.memory_of(spec.model)
            ended = setup.pool.run(job, job.log, options.timeout_s, max_bytes=memory)
            yield spec, as_compiled(ended)
    progress.step("4/4 report")
