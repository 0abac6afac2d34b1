"""`qnn-ci check-app` on apps of all forms: exit codes, JSON, hostile and damaged archives."""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from ci.__main__ import main
from provisioning.errors import ExitCode
from tests.stand_ins.android_apps import (
    ABI,
    KEPT,
    MANIFESTS,
    OLDER,
    library,
    make_set,
    write_apk,
    write_sources,
)

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
SET = make_set()
REPOSITORIES = "QNN_CI_ANDROID_REPOSITORIES"
# Checkouts of public apps, by the name of their directory below $QNN_CI_ANDROID_REPOSITORIES, and
# ids that readelf, git and their build files confirm.
KNOWN = {
    "CLIPExecuTorch": {"QNN225", "QNN853", "QNN856", "QNN860", "QNN866"},
    "QnnDemo": {"QNN316", "QNN853"},
    "ZipDepth-Quantized-Qualcomm-QNN-SM8350": {"QNN854", "QNN865"},
    "gaze": {"QNN853", "QNN854", "QNN860"},
    "GHOST": {"QNN853"},
    "ChatBotApp": {"QNN225", "QNN853", "QNN856"},
}
Check = Callable[..., tuple[int, dict[str, object]]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    names = ("app", "doctor")
    schemas = {name: json.loads((SCHEMAS / f"{name}.schema.json").read_text()) for name in names}
    pairs = [
        (f"{name}.schema.json", Resource.from_contents(each)) for name, each in schemas.items()
    ]
    validator = Draft202012Validator(schemas["app"], registry=Registry().with_resources(pairs))

    def run(path: Path, *options: str) -> tuple[int, dict[str, object]]:
        code = main(["check-app", str(path), *options, "--json"])
        data = json.loads(capsys.readouterr().out)
        if "error" not in data:
            validator.validate(data)
        return code, data

    return run


def ids(data: dict[str, object]) -> set[str]:
    return {one["id"] for unit in data["units"] for one in unit["findings"]}  # type: ignore[attr-defined]


def names(data: dict[str, object]) -> list[str]:
    return [unit["name"] for unit in data["units"]]  # type: ignore[attr-defined]


def test_a_right_app_and_a_wrong_one(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = write_apk(tmp_path / "right.apk", SET)
    code, data = check(right, "--soc", "sm8650")
    assert (code, data["fit"], ids(data)) == (ExitCode.OK, True, set())
    wrong = write_apk(tmp_path / "wrong.apk", SET, manifest="undeclared")
    assert check(wrong)[0] == ExitCode.FAILED
    assert main(["check-app", str(wrong)]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "QNN860" in shown
    assert "QNN, HTP skels" in shown


def test_a_warning_counts_with_strict_only(check: Check, tmp_path: Path) -> None:
    path = write_apk(tmp_path / "a.aar", SET, manifest="")
    assert check(path)[0] == ExitCode.OK
    assert check(path, "--strict")[0] == ExitCode.FAILED


def test_an_unknown_soc_is_a_usage_error(check: Check, tmp_path: Path) -> None:
    assert check(write_apk(tmp_path / "a.apk", SET), "--soc", "SM1")[0] == ExitCode.USAGE


def test_split_apks_are_one_app(check: Check, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    write_apk(parts / "base.apk", {}, manifest="declared")
    write_apk(parts / "split_config.arm64_v8a.apk", SET, manifest="split")
    for path in (parts, tmp_path / "app.apks"):
        if path != parts:
            with zipfile.ZipFile(path, "w") as archive:
                for one in sorted(parts.iterdir()):
                    archive.write(one, f"splits/{one.name}")
                archive.writestr("toc.pb", "")
        code, data = check(path, "--soc", "SM8650")
        assert (code, ids(data)) == (ExitCode.OK, set())
    code, data = check(parts / "base.apk")
    assert (code, ids(data)) == (ExitCode.FAILED, {"QNN850"})


def test_an_aar_and_its_unpacked_directory(check: Check, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.aar", "w") as archive:
        archive.writestr("AndroidManifest.xml", (MANIFESTS / "undeclared.xml").read_bytes())
        archive.writestr("R.txt", "")
        for name, data in SET.items():
            archive.writestr(f"jni/{ABI}/{name}", data)
    code, found = check(tmp_path / "a.aar")
    assert (code, ids(found)) == (ExitCode.OK, {"QNN860"})  # a warning: the app may declare it
    zipfile.ZipFile(tmp_path / "a.aar").extractall(tmp_path / "unpacked")
    code, found = check(tmp_path / "unpacked")
    assert ids(found) == {"QNN860"}


def test_each_flavour_is_an_app(check: Check, tmp_path: Path) -> None:
    root = write_sources(tmp_path / "p", {})
    write_sources(root, SET, source_set="qnn")
    write_sources(root, {"libapp.so": library("libapp.so")}, source_set="plain")
    write_sources(root, SET, source_set="androidTest")
    code, data = check(root)
    assert (code, names(data)) == (ExitCode.FAILED, ["app (plain)", "app (qnn)"])
    assert ids(data) == {"QNN852"}


def test_a_failure_counts_more_than_an_incomplete_copy(check: Check, tmp_path: Path) -> None:
    root = write_sources(tmp_path / "p", {})
    pointer = b"version https://git-lfs.github.com/spec/v1"
    write_sources(root, SET | {"libQnnHtp.so": pointer}, source_set="qnn")
    assert check(root)[0] == ExitCode.ENVIRONMENT
    write_sources(root, {"libapp.so": library("libapp.so")}, source_set="plain")
    assert check(root)[0] == ExitCode.FAILED


def test_of_a_set_what_a_device_gets_together_counts(check: Check, tmp_path: Path) -> None:
    right = write_apk(tmp_path / "right.apk", SET)
    wrong = write_apk(tmp_path / "wrong.apk", SET, manifest="undeclared")
    other = write_apk(tmp_path / "other.apk", make_set(OLDER))
    members = {"splits/base.apk": right, "standalones/standalone-x86.apk": other}
    for extra in ({}, {"universal.apk": wrong}):
        with zipfile.ZipFile(tmp_path / "app.apks", "w") as archive:
            for name, path in (members | extra).items():
                archive.write(path, name)
        assert ids(check(tmp_path / "app.apks")[1]) == ({"QNN860"} if extra else set())


def test_modules_that_an_app_depends_on_are_packaged_with_it(check: Check, tmp_path: Path) -> None:
    root = tmp_path / "android"
    write_sources(root, {}, dependencies='implementation(project(":qnn:htp"))')
    write_sources(root, SET, module="qnn/htp")
    gradle = root / "qnn" / "htp" / "build.gradle.kts"
    gradle.write_text('plugins { id("com.android.library") }')
    code, data = check(tmp_path)
    assert (code, names(data), ids(data)) == (ExitCode.OK, ["android/app"], set())
    other = write_sources(tmp_path / "android", make_set(OLDER), module="other")
    assert names(check(other)[1]) == ["app", "other"]


def test_what_gradle_leaves_out_adds_or_starts_is_read(check: Check, tmp_path: Path) -> None:
    """Excluded libraries, a process with LD_LIBRARY_PATH, skels in assets, and a framework."""
    left_out = 'excludes += "**/libQnn*"; excludes += "**/libHtp*"'
    excluded = write_sources(tmp_path / "excluded", SET, jni=f"{KEPT}; {left_out}")
    assert ids(check(excluded)[1]) == {"QNN850"}
    started = write_sources(tmp_path / "started", SET, manifest="undeclared")
    assert ids(check(started)[1]) == {"QNN860"}
    code = started / "app" / "src" / "main" / "cpp" / "run.cpp"
    code.parent.mkdir()
    code.write_text('setenv("LD_LIBRARY_PATH", path, 1);')
    assert ids(check(started)[1]) == {"QNN861"}
    assert check(started)[0] == ExitCode.OK


def test_a_tree_without_an_app_is_no_pass(check: Check, tmp_path: Path) -> None:
    (tmp_path / "build.gradle").write_text("// nothing\n")
    code, data = check(tmp_path)
    assert code == ExitCode.USAGE
    assert "contains no Android app, so nothing was checked" in json.dumps(data)
    app = tmp_path / "app"
    app.mkdir()
    linked = "plugins { id 'com.android.application'; id 'dev.flutter.flutter-gradle-plugin' }"
    (app / "build.gradle").write_text(linked)
    code, data = check(tmp_path)
    assert (code, ids(data) & {"QNN850", "QNN868"}) == (ExitCode.OK, {"QNN850", "QNN868"})


def test_links_out_of_the_sources_are_followed_and_loops_are_not(
    check: Check, tmp_path: Path
) -> None:
    root = write_sources(tmp_path / "p", {})
    libraries = root / "app" / "src" / "main" / "jniLibs" / ABI
    for name, data in SET.items():
        (tmp_path / name).write_bytes(data)
        (libraries / name).symlink_to(tmp_path / name)
    (root / "loop").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    assert ids(check(root)[1]) == set()
    (libraries / "libgone.so").symlink_to(tmp_path / "nowhere")
    assert ids(check(root)[1]) == {"QNN300"}


@pytest.mark.parametrize(
    "members",
    [
        [(f"lib/{ABI}/../../../evil.so", b"x")],
        [(f"lib/{ABI}/libA.so", b"x"), (f"lib/{ABI}/libA.so", b"y")],
        [("assets/../../evil.bin", b"x")],
        [("assets/" + "a/" * 200 + "x.pte", b"x")],
        [("assets/a\\b.pte", b"x")],
    ],
)
def test_a_hostile_archive_is_refused_and_writes_nothing(
    members: list[tuple[str, bytes]], check: Check, tmp_path: Path
) -> None:
    path = tmp_path / "app.apk"
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w") as archive:
        archive.writestr("AndroidManifest.xml", (MANIFESTS / "declared.bin").read_bytes())
        for name, data in members:
            archive.writestr(name, data)
    code, answer = check(path)
    assert (code, "app.apk" in answer["what"]) == (ExitCode.DOWNLOAD, True)
    assert not list(tmp_path.rglob("evil*"))


def test_damaged_archives_end_with_a_documented_code(check: Check, tmp_path: Path) -> None:
    """More of them: QNN_CI_MUTATED_APKS=500."""
    dice = random.Random(7)
    whole = write_apk(tmp_path / "a.apk", SET, stored=True).read_bytes()
    known = {ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE, ExitCode.ENVIRONMENT, ExitCode.DOWNLOAD}
    for index in range(int(os.environ.get("QNN_CI_MUTATED_APKS", "25"))):
        data = bytearray(whole)
        for _ in range(dice.choice([1, 3, 30])):
            start = dice.choice([0, 0, len(data) - 900])  # headers more often than code
            data[dice.randrange(start, len(data))] = dice.randrange(256)
        if index % 5 == 0:
            del data[dice.randrange(len(data)) :]
        path = tmp_path / "mutated.apk"
        path.write_bytes(bytes(data))
        assert check(path)[0] in known, index


@pytest.mark.parametrize("name", KNOWN)
def test_apps_of_others(name: str, check: Check) -> None:
    place = os.environ.get(REPOSITORIES, "")
    if not (Path(place) / name).is_dir() or not place:
        pytest.skip(f"{REPOSITORIES} names no directory with {name}")
    assert ids(check(Path(place) / name)[1]) >= KNOWN[name]


@pytest.mark.skipif(not shutil.which("zipalign"), reason="zipalign is not installed")
@pytest.mark.parametrize(("align", "fits"), [(4, False), (4096, True)])
def test_zipalign_agrees(align: int, fits: bool, check: Check, tmp_path: Path) -> None:
    path = write_apk(tmp_path / "a.apk", SET, manifest="inside", stored=True, align=align)
    ended = os.system(f"zipalign -c -p 4 {path} > {tmp_path}/log")  # noqa: S605
    assert (ended == 0) is fits
    assert ("QNN858" not in ids(check(path)[1])) is fits
