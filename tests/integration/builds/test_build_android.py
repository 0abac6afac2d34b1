"""ExecuTorch in miniature is built for Android, Hexagon and aarch64 Linux, for real."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.builds.worlds import (
    BACKEND,
    NEEDS,
    BuildWorld,
    Kept,
    index_artifacts,
    needs_clang,
    needs_cross,
)
from tests.programs import missing_programs
from tests.stand_ins.second_ndk import PROFILE, REVISION, make_manifests
from tests.stand_ins.tiny_toolchains import make_hexagon_sdk, make_ndk, make_qnn_sdk

pytestmark = NEEDS


@needs_cross
def test_an_aarch64_linux_runner_is_cross_compiled_and_runs_under_qemu(world: BuildWorld) -> None:
    build = world.build("linux")
    rows = index_artifacts(build)
    assert {row["elf"]["machine"] for row in rows.values()} == {"aarch64"}
    assert all(row["findings"] == [] for row in rows.values())
    if missing := missing_programs("qemu-aarch64"):
        pytest.skip(f"built and judged; not run: {missing}")
    runner = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", rows["qnn_executor_runner"]["path"]]
    assert subprocess.run(runner, check=False).returncode == 42


@needs_clang
@pytest.mark.usefixtures("built_android")
def test_android_artifacts_record_their_api_level_and_ndk(kept_android: Kept) -> None:
    build = kept_android.build
    rows = index_artifacts(build)
    assert set(rows) == {"qnn_executor_runner", BACKEND}
    for row in rows.values():
        assert row["elf"]["machine"] == "aarch64"
        assert row["elf"]["android"] == {"api_level": 30, "ndk": "r26c", "build": "11394342"}
        assert row["elf"]["build_id"]
        # NDK r26 by itself aligns to 4096.
        assert (row["elf"]["load_align"], row["findings"]) == (16384, [])
    assert build["identity"]["ndk release"] == "26.2.11394342"
    for path in build["compile_commands"]:
        commands = [row["command"] for row in json.loads(Path(path).read_text())]
        assert all(
            "-DOF_NDK" in command and "-ffile-prefix-map=" in command for command in commands
        )


@needs_clang
def test_the_android_runner_is_stripped_with_its_symbols_next_to_it(
    built_android: BuildWorld, kept_android: Kept
) -> None:
    for up_to_date, build in enumerate((kept_android.build, built_android.build("android"))):
        rows = index_artifacts(build)
        runner, symbols = rows["qnn_executor_runner"], rows["qnn_executor_runner"]["symbols"]
        assert build["up_to_date"] == up_to_date
        assert runner["elf"]["stripped"]
        assert rows[BACKEND]["symbols"] is None
        words = ["readelf", "-SnW", symbols]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert (".debug_info" in shown, runner["elf"]["build_id"] in shown) == (True, True)
        assert b"qnn_executor_runner.debug" in Path(runner["path"]).read_bytes()
    Path(symbols).unlink()
    assert not built_android.build("android")["up_to_date"]


@pytest.mark.nightly
@needs_clang
def test_with_llama_builds_the_llama_runner_if_its_submodules_are_checked_out(
    built_android: BuildWorld,
) -> None:
    code, data, _ = built_android.call("android", "--with", "llama")
    assert code == 3
    nested = "extension/llm/tokenizers/third-party/re2"
    assert f"lacks 1 of 9 submodules: {nested}" in data["what"]
    (built_android.checkout / nested).mkdir(parents=True)
    (built_android.checkout / nested / "README").write_text("stands in")
    row = index_artifacts(built_android.build("android", "--with", "llama"))["qnn_llama_runner"]
    assert (BACKEND in row["elf"]["needed"], row["findings"]) == (True, [])
    assert "qnn_llama_runner" not in index_artifacts(built_android.build("android"))


@needs_clang
def test_a_direct_mode_build_targets_one_hexagon_version(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "ndk"))
    world.variables["HEXAGON_SDK_ROOT"] = str(make_hexagon_sdk(world.folder / "hexagon"))
    build = world.build("direct", "--soc", "SM8450")
    rows = index_artifacts(build)
    machines = {name: (row["elf"]["machine"], row["elf"]["flags"]) for name, row in rows.items()}
    assert machines == {
        BACKEND: ("hexagon", 0x69),
        "libqnn_executorch_skel.so": ("hexagon", 0x69),
        "libqnn_executorch_stub.so": ("aarch64", 0),
        "qnn_executor_direct_runner": ("aarch64", 0),
    }
    assert rows[BACKEND]["size_budget"] == 200 * 1024


@pytest.mark.nightly  # by day, an unknown library is what keeps an artifact from publication
@needs_clang
def test_a_direct_mode_library_over_its_size_budget_is_not_published(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "ndk"))
    world.variables["HEXAGON_SDK_ROOT"] = str(make_hexagon_sdk(world.folder / "hexagon"))
    code, data, _ = world.call("direct", "--soc", "SM8450", "-D", "TINY_BALLAST=300000")
    findings = index_artifacts(data["builds"][0])[BACKEND]["findings"]
    assert (code, [finding["id"] for finding in findings]) == (1, ["BUILD102"])
    assert not data["builds"][0]["published"]
    assert world.published() == []


@needs_clang
def test_an_sdk_that_is_too_old_for_lpai_is_replaced_by_the_one_that_the_fix_asks_for(
    world: BuildWorld,
) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "ndk"))
    world.variables["HEXAGON_SDK_ROOT"] = str(make_hexagon_sdk(world.folder / "hexagon"))
    newer = make_qnn_sdk(world.folder / "newer")
    (newer / "sdk.yaml").write_text("product: QNN\nversion: 2.43.0.260128\n")
    words = ("direct", "--soc", "SM8850", "--dsp-type", "0", "--check")
    older = world.variables.pop("QNN_SDK_ROOT")
    data = world.refuse(3, "^qnn-sdk 2.37.0.* in --sdk is too old$", *words, "--sdk", older)
    assert data["fix"].startswith("pass version 2.39 or later to --sdk")
    assert world.call(*words, "--sdk", str(newer))[0] == 0


@needs_clang
def test_an_unfit_ndk_is_refused_unless_the_doctor_is_turned_off(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "old", "21.4.7075529"))
    assert world.call("android", "--dry-run")[0] == 0
    world.with_doctor = True
    world.refuse(3, r"^QNN\d", "android", "--dry-run")


@needs_clang
def test_a_second_ndk_is_built_with_by_its_own_profile(world: BuildWorld) -> None:
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "new", REVISION))
    world.variables["QNN_CI_MANIFESTS"] = str(make_manifests(world.folder / "manifests"))
    code, data, _ = world.call("android", "--profile", PROFILE, "--dry-run")
    assert code == 0
    assert any("-DANDROID_PLATFORM=android-30" in command for command in data["commands"])
    world.refuse(2, "cannot use profile linux", "android", "--profile", "linux", "--dry-run")
    world.refuse(2, "cannot use profile aot", "runner", "--profile", "aot", "--dry-run")
