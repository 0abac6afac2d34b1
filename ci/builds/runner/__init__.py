"""Build the C++ runner on demand, from the sources here and the C++ SDK in the executorch wheel."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ci.builds.builder import run_build
from ci.builds.plan import BuildJob, BuildRequest, Kit, find_place, make_plan
from ci.builds.targets import Target, find_target
from ci.builds.toolchains import find_tools, resolve_compilers
from provisioning.console.caller import install_command
from provisioning.console.progress import Progress
from provisioning.errors import FailedError, UnfitError

TARGET, PROGRAM = "runner", "qnn_wheel_runner"
SOURCES = Path(__file__).resolve().parent
SDK_PARTS = ("include", "lib", "share/cmake")
NOT_SOURCES = frozenset({"__init__.py"})


def find_wheel_sdk() -> Path:
    """Return the root of the installed executorch package, which contains the C++ SDK. Raises
    UnfitError if the package is not installed or has no C++ SDK."""
    fix = f"{install_command('lowering')}, or only executorch==1.5.1"
    # Found, not imported, since only its directory is needed.
    spec = importlib.util.find_spec("executorch")
    for root in map(Path, spec.submodule_search_locations or ()) if spec else ():
        if all((root / part).is_dir() for part in SDK_PARTS):
            return root
    if spec is None:
        raise UnfitError("executorch is not installed in this Python", fix=fix)
    raise UnfitError(
        "the installed executorch has no C++ SDK",
        why="it lacks include/, lib/ or share/cmake/",
        fix=fix,
    )


def prepare_runner(target: Target, request: BuildRequest, _: Progress) -> BuildJob:
    """Return the planned build of the runner with the C++ SDK in the installed wheel.

    Raises UnfitError if the wheel, cmake, ninja or a compiler is missing, and UsageError if the
    request demands another version.
    """
    sdk = find_wheel_sdk()
    # Per wheel: several environments may have different versions of executorch.
    place = find_place(target.name, SOURCES, str(sdk))
    values = {"wheel_root": str(sdk), "executorch_version": "unknown"}
    with suppress(PackageNotFoundError):
        values["executorch_version"] = version("executorch")
    request.require_version(values["executorch_version"])
    kit = Kit(find_tools(), {target.toolchain: resolve_compilers(target.toolchain)}, values)
    plan = make_plan(target, request, SOURCES, place, kit)
    return BuildJob(plan, request, {part: sdk / part for part in SDK_PARTS}, NOT_SOURCES)


def ensure_wheel_runner(progress: Progress) -> Path:
    """Return the path of the runner; build it if sources, wheel or compiler have changed.

    Run it as ``RUNNER --model_path M.pte --input_list_path L.txt --output_folder_path DIR``; it
    writes DIR/output_EXECUTION_INDEX.raw. Raises FailedError if the built runner violates its
    policy, and the same errors as prepare_runner and run_build.
    """
    result = run_build(prepare_runner(find_target(TARGET), BuildRequest(), progress), progress)
    if not result.published:
        faults = [str(fault) for artifact in result.artifacts for fault in artifact.errors]
        raise FailedError("the C++ runner was built but violates its policy", why="\n".join(faults))
    return result.plan.place.artifacts / PROGRAM
