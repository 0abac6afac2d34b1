"""`qnn-ci check-app` on apps of all forms: exit codes, JSON, hostile and damaged archives."""

from __future__ import annotations

import json
import os
import random
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
    MANIFESTS,
    make_set,
    write_apk,
)

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
SET = make_set()
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
        code = main(["inspect", "--load", str(path), *options, "--json"])
        data = json.loads(capsys.readouterr().out)
        if "error" not in data:
            validator.validate(data)
        return code, data

    return run


def ids(data: dict[str, object]) -> set[str]:
    return {finding["id"] for unit in data["units"] for finding in unit["findings"]}  # type: ignore[attr-defined]


def names(data: dict[str, object]) -> list[str]:
    return [unit["name"] for unit in data["units"]]  # type: ignore[attr-defined]


def test_check_app_passes_a_complete_app_and_fails_an_undeclared_library(
    check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = write_apk(tmp_path / "right.apk", SET)
    code, data = check(right, "--soc", "sm8650")
    assert (code, data["fit"], ids(data)) == (ExitCode.OK, True, set())
    wrong = write_apk(tmp_path / "wrong.apk", SET, manifest="undeclared")
    assert check(wrong)[0] == ExitCode.FAILED
    assert main(["inspect", "--load", str(wrong)]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "QNN860" in shown
    assert "QNN, HTP skels" in shown


def test_check_app_fails_on_warnings_only_with_strict(check: Check, tmp_path: Path) -> None:
    path = write_apk(tmp_path / "a.aar", SET, manifest="")
    assert check(path)[0] == ExitCode.OK
    assert check(path, "--strict")[0] == ExitCode.FAILED


def test_an_unknown_soc_is_a_usage_error(check: Check, tmp_path: Path) -> None:
    assert check(write_apk(tmp_path / "a.apk", SET), "--soc", "SM1")[0] == ExitCode.USAGE


def test_split_apks_are_checked_as_one_app(check: Check, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    write_apk(parts / "base.apk", {}, manifest="declared")
    write_apk(parts / "split_config.arm64_v8a.apk", SET, manifest="split")
    for path in (parts, tmp_path / "app.apks"):
        if path != parts:
            with zipfile.ZipFile(path, "w") as archive:
                for part in sorted(parts.iterdir()):
                    archive.write(part, f"splits/{part.name}")
                archive.writestr("toc.pb", "")
        code, data = check(path, "--soc", "SM8650")
        assert (code, ids(data)) == (ExitCode.OK, set())
    code, data = check(parts / "base.apk")
    assert (code, ids(data)) == (ExitCode.FAILED, {"QNN850"})


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
    """QNN_CI_MUTATED_APKS=500 tries more of them."""
    dice = random.Random(7)
    apk = write_apk(tmp_path / "a.apk", SET, stored=True).read_bytes()
    documented = {
        ExitCode.OK,
        ExitCode.FAILED,
        ExitCode.USAGE,
        ExitCode.ENVIRONMENT,
        ExitCode.DOWNLOAD,
    }
    for index in range(int(os.environ.get("QNN_CI_MUTATED_APKS", "25"))):
        data = bytearray(apk)
        for _ in range(dice.choice([1, 3, 30])):
            start = dice.choice([0, 0, len(data) - 900])  # headers more often than code
            data[dice.randrange(start, len(data))] = dice.randrange(256)
        if index % 5 == 0:
            del data[dice.randrange(len(data)) :]
        path = tmp_path / "mutated.apk"
        path.write_bytes(bytes(data))
        assert check(path)[0] in documented, index
