"""docs/builds.md: ExecuTorch in miniature and stand-ins for SDKs, built for real."""

from __future__ import annotations

import json
import shutil

from ci.builds.plan.targets import read_targets
from tests.documented.recipe import Recipe
from tests.documented.setups import (
    keep_artifacts,
    plant_second_ndk,
    plant_toolchains,
    serve_artifacts,
    share_runner,
    shrink_suite,
    take_program,
    use_our_store,
)
from tests.documented.stage import Ended, Stage

# The stand-ins for SDKs hold no libraries, to which the doctor objects with reason.
NO_DOCTOR = "--no-doctor"
NEEDS = ("clang", "ld.lld", "g++", "make")
ADAPTOR = "PyQnnManagerAdaptor.*.so"


def is_recorded(stage: Stage, ended: Ended) -> None:
    """artifacts.json says that everything was published."""
    (path,) = stage.project.glob("reports/build_*/artifacts.json")
    builds = json.loads(path.read_text("utf-8"))["builds"]
    assert builds
    assert all(build["published"] for build in builds)


def is_installed(stage: Stage, ended: Ended) -> None:
    """The adaptor and the schemas are in the checkout."""
    is_recorded(stage, ended)
    checkout = stage.folder / "src" / "executorch"
    assert list(checkout.glob(f"backends/qualcomm/python/{ADAPTOR}"))
    assert (checkout / "exir/_serialize/program.fbs").is_file()


def has_outputs(stage: Stage, ended: Ended) -> None:
    """One output an execution, as long as the list of inputs."""
    rows = (stage.project / "L.txt").read_text().splitlines()
    assert {path.name for path in (stage.project / "DIR").iterdir()} == {
        f"output_{number}_0.raw" for number in range(len(rows))
    }


def ran_the_wheel_runner(stage: Stage, ended: Ended) -> None:
    """It was that runner; what it ran is what keep_artifacts gives, if that was not there first."""
    if not (stage.shared / "kept").exists():
        shutil.copytree(stage.project / "kept", stage.shared / "kept")
    report = json.loads((stage.project / "reports/test_emulator/report.json").read_text("utf-8"))
    assert ["qnn_wheel_runner" in case["runner"] for case in report["cases"]] == [True]


BUILD = {"setup": (plant_toolchains,), "then": is_recorded, "needs": NEEDS, "with_models": True}
LINUX = {**BUILD, "needs": (*NEEDS, "aarch64-linux-gnu-g++"), "adds": f"-- {NO_DOCTOR}"}

RECIPES = {
    "nox -s build_runner": Recipe(
        setup=(use_our_store, share_runner),
        says=("qnn_wheel_runner",),
        then=is_recorded,
        needs=NEEDS,
        with_models=True,
    ),
    "nox -s build_runner -- --source $EXECUTORCH_ROOT": Recipe(
        says=("qnn_executor_runner",), adds=NO_DOCTOR, **BUILD
    ),
    "build_runner -- --source DIR": Recipe(
        fill={"build_runner": "./nox -s build_runner", "DIR": "$EXECUTORCH_ROOT"},
        says=("runner_checkout",),
        adds=f"{NO_DOCTOR} --dry-run",
        setup=(plant_toolchains,),
        needs=NEEDS,
        with_models=True,
    ),
    "nox -s build_aot -- --no-proof": Recipe(adds=NO_DOCTOR, **BUILD),
    "nox -s build_aot -- --install checkout": Recipe(
        adds=NO_DOCTOR, **{**BUILD, "then": is_installed}
    ),
    "nox -s build_android -- --release --jobs 4": Recipe(adds=NO_DOCTOR, **BUILD),
    "nox -s build_android -- --profile android-r27": Recipe(
        setup=(plant_second_ndk,),
        says=("android_toolchain|cmake",),
        adds=f"{NO_DOCTOR} --dry-run",
        needs=NEEDS,
        with_models=True,
    ),
    "nox -s build_linux": Recipe(**LINUX),
    "nox -s build_linux -- --clean": Recipe(**{**LINUX, "adds": NO_DOCTOR}),
    "nox -s build_direct -- --soc SM8750 --dsp-type 3 --dry-run": Recipe(
        setup=(plant_toolchains,),
        says=("CDSP_VERSION=v79", "hexagon_toolchain"),
        needs=NEEDS,
        adds=NO_DOCTOR,
        with_models=True,
    ),
    "qnn-ci build TARGET": Recipe(
        setup=(plant_toolchains,),
        fill={"TARGET": tuple(read_targets())},
        adds=f"{NO_DOCTOR} --dry-run --soc SM8750",
        says=("cmake .*-S",),
        needs=NEEDS,
        with_models=True,
    ),
    "nox -s test_emulator -- --runner cpp": Recipe(
        setup=(use_our_store, share_runner, shrink_suite),
        adds="--keep-artifacts kept",
        says=("1 passed",),
        then=ran_the_wheel_runner,
        needs=NEEDS,
        with_models=True,
    ),
    "qnn_wheel_runner --model_path M.pte --input_list_path L.txt --output_folder_path DIR": Recipe(
        setup=(use_our_store, share_runner, keep_artifacts, take_program),
        then=has_outputs,
        needs=NEEDS,
        with_models=True,
    ),
    "nox -s provision": Recipe(setup=(serve_artifacts,), says=(".",)),
}
