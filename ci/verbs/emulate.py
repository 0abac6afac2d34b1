"""``test-emulator``: lower models, run the programs and judge their outputs."""

from __future__ import annotations

import argparse
from functools import partial

from ci.cases.spec import require_options
from ci.device.runner import STARTS
from ci.executorch.engine import NAME
from ci.faults.expected import FaultsRequest
from ci.verbs import deploy
from ci.verbs.built import find_built, follow_build
from ci.verbs.lanes.emulator import LANE, EmulatorRequest
from ci.verbs.lanes.lane import run_lane
from ci.verbs.options import CASES, add_option, add_options
from ci.verbs.requests import check_arguments, make_request
from provisioning.console.command import FILE, FLAG, HOW, TOOLS, WHAT, Outcome
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import Backend

FAULTS = "faults"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    gaps = {"--model": "or file.py:factory", "--reports": f"{LANE.session}/"}
    add_options(parser, *CASES, gaps=gaps)
    add = partial(add_option, parser)
    runner = (
        "what runs the programs: python, cpp, or a program that accepts the flags of"
        " qnn_executor_runner"
    )
    add(HOW, "--runner", runner, default=NAME, again=str, digest=True)
    text = "the processor to lower for; default: htp"
    add(
        HOW,
        "--backend",
        text,
        choices=[backend.value for backend in Backend],
        default=Backend.HTP.value,
        again=str,
        digest=True,
    )
    add(WHAT, "--plan", "run only the cases in this plan.json", **FILE)
    shard = "run only part I of N of the cases, as in 2/3"
    add(WHAT, "--shard I/N", shard, default="")
    add_options(parser, "--plain")
    untested = "accept versions that are not in manifests/pairs.toml; the report notes this"
    add(TOOLS, "--try-unsupported", untested, **FLAG, again=str)
    add_options(parser, "--executorch")
    text = "exit with code 3 if the runner that this nox call built cannot load the programs"
    add(TOOLS, "--strict", text, **FLAG)
    add_options(parser, "--sdk", "--adaptor")
    deploy.add_device(parser)
    add_options(parser, "--starts", needs=deploy.ON_DEVICE, gaps={"--starts": f"{STARTS}"})
    gaps = {"--suite": "the known faults instead of cases", "--filter": "known faults"}
    add_options(parser, "--suite", choices=[FAULTS], gaps=gaps)
    add_options(parser, "--filter", needs="--suite", gaps=gaps)
    text = "run the known faults only through this; default: executorch and onnxruntime"
    add_options(parser, "--runtime", needs="--suite", text=text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run the requested cases or, with --suite, the known faults. Raises the same errors as
    read_request, run_lane and run_faults."""
    request = read_request(args)
    if isinstance(request, EmulatorRequest):
        return run_lane(LANE, request, progress)
    from ci.verbs.faults import run_faults

    return run_faults(request, progress)


def read_request(args: argparse.Namespace) -> EmulatorRequest | FaultsRequest:
    """Return the request of a call, with --suite for the known faults. Raises UsageError for
    options that exclude each other, and the same errors as check_arguments and choose_socs."""
    if args.suite:
        from ci.verbs import faults

        return faults.read_request(args)
    check_arguments(args, LANE.session)
    typed = [f"--{name}" for name in ("model", "scheme", "soc") if getattr(args, name)]
    if args.plan and typed:
        raise UsageError(
            "--plan already selects the cases", fix=f"leave out --plan, or {' and '.join(typed)}"
        )
    backend, device = Backend(args.backend), deploy.read_device(args)
    require_options(backend, runner=args.runner, plan=bool(args.plan), estimate=args.estimate)
    built = find_built(args.reports)
    return make_request(
        EmulatorRequest,
        args,
        LANE.session,
        # After a build in the same call, programs are for the runner that was built.
        parsed={"sdk": follow_build(built, args.sdk)},
        backend=backend,
        built=built,
        on_device=device,
        judges=True,
        socs=choose_socs(device, args.soc, args.runner) if device else tuple(args.soc),
    )


def choose_socs(device: deploy.DeviceChoice, names: list[str], runner: str) -> tuple[str, ...]:
    """Return the SoCs of a run on a device: ``names``, or else that of --any or the bundle. Raises
    UsageError for a SoC or a runner that the bundle lacks, and the same errors as
    require_bundle."""
    if runner != NAME:
        raise UsageError(
            "--runner cannot be used with a device",
            fix="leave it out: the bundle contains a runner",
        )
    socs = deploy.require_bundle(device).socs
    any_soc = device.any_soc.partition("=")[2].upper()
    chosen = names or [any_soc if any_soc in socs else socs[0]]
    if unknown := [soc for soc in chosen if soc.upper() not in socs]:
        raise UsageError(
            f"--soc {', '.join(unknown)}: the bundle is for {', '.join(socs)}",
            fix="stage a bundle for that SoC",
        )
    return tuple(chosen)
