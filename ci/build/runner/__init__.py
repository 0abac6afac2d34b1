"""The C++ runner against the SDK inside the executorch wheel: sources here, built on demand."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ci.build.builder import Result, run_build
from ci.build.place import find_place
from ci.build.plan import Kit, Plan, Request, make_plan
from ci.build.targets import find_target
from ci.build.toolchains import resolve_compilers
from ci.build.tools import find_tools
from provisioning.errors import UnfitError
from provisioning.progress import Progress

TARGET = "runner"
SOURCES = Path(__file__).resolve().parent
SDK_PARTS = ("include", "lib", "share/cmake")
NOT_SOURCES = frozenset({"__init__.py"})


def find_wheel_sdk() -> Path:
    """The root of the installed executorch package with its C++ SDK. Raises UnfitError."""
    todo = "install the pinned executorch (1.5.1 has a C++ SDK): ./nox -s env_models"
    spec = importlib.util.find_spec("executorch")
    for root in map(Path, spec.submodule_search_locations or ()) if spec else ():
        if all((root / part).is_dir() for part in SDK_PARTS):
            return root
    if spec is None:
        raise UnfitError("executorch is not installed in this Python", todo=todo)
    raise UnfitError("the installed executorch has no C++ SDK", why="no include/ in it", todo=todo)


def plan_wheel_runner(request: Request) -> tuple[Plan, dict[str, Path]]:
    """The plan of the runner, and the directories of the wheel that it reads.

    Raises UnfitError when the wheel, cmake, ninja or a compiler is missing.
    """
    target = find_target(TARGET)
    sdk = find_wheel_sdk()
    place = find_place(TARGET, SOURCES, str(sdk))
    values = {"wheel_root": str(sdk), "executorch_version": _read_version()}
    kit = Kit(find_tools(), resolve_compilers(target.toolchain), values)
    return make_plan(target, request, place, kit), {part: sdk / part for part in SDK_PARTS}


def build_wheel_runner(request: Request, progress: Progress) -> Result:
    """Build the runner unless it is up to date. Raises UnfitError, ToolError or FailedError."""
    plan, inputs = plan_wheel_runner(request)
    return run_build(plan, request, inputs, NOT_SOURCES, progress)


def ensure_wheel_runner(progress: Progress) -> Path:
    """The runner's path, built when its sources, the wheel or the compiler have changed.

    Run it as ``RUNNER --model_path M.pte --input_list_path L.txt --output_folder_path DIR``;
    it leaves DIR/output_EXECUTION_INDEX.raw. Raises UnfitError, ToolError or FailedError.
    """
    return build_wheel_runner(Request(SOURCES), progress).plan.place.artifacts / "qnn_wheel_runner"


def _read_version() -> str:
    try:
        return version("executorch")
    except PackageNotFoundError:
        return "unknown"
