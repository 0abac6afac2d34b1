"""The release of LiteRT's libraries: by their hashes, in files and in apps."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import jsonschema
import pytest

from ci.__main__ import main
from ci.inspect import litert_libraries
from ci.inspect.files import inspect_file
from ci.inspect.litert_libraries import (
    DISPATCH,
    LITERT_NAME,
    NAMES,
    OLDER_NAME,
    PLUGIN,
    find_releases,
    read_known_libraries,
)
from provisioning.errors import ExitCode
from provisioning.manifest.reader import MANIFESTS_VARIABLE
from tests.build.apps import SET, apk, judge, write_files
from tests.build.litert_libraries import list_libraries, make_library
from tests.stand_ins.android_apps import ABI

TWO, NEXT, OTHER, UNLISTED = "2.1.0", "2.1.2", "2.3.0", "2.9.9"
SCHEMA = Path(__file__).parents[4] / "docs" / "schemas" / "app.schema.json"


@pytest.fixture(autouse=True)
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of libraries of several releases."""
    list_libraries(tmp_path / "manifests", monkeypatch)


@pytest.mark.parametrize(
    ("name", "release", "versions", "text"),
    [
        *((name, OTHER, ("2.3.0",), "LiteRT 2.3.0,") for name in NAMES),
        (LITERT_NAME, TWO, ("2.1.0", "2.1.1"), "LiteRT 2.1.0 or 2.1.1,"),
        (LITERT_NAME, UNLISTED, (), "an unknown release of LiteRT"),
        ("libLiteRtDispatch_MediaTek.so", OTHER, None, "QNN 2.49.99"),
    ],
)
def test_inspect_shows_the_releases_of_a_library_of_litert(
    name: str,
    release: str,
    versions: tuple[str, ...] | None,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    path.write_bytes(make_library(name, release))
    library = inspect_file(path).library
    assert library
    assert library.litert == versions
    assert main(["inspect", str(path)]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert text in shown
    assert ("LiteRT " in shown) == (versions is not None)


def test_a_file_that_is_too_large_or_missing_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / LITERT_NAME
    assert find_releases(path) is None
    path.write_bytes(make_library(LITERT_NAME, OTHER))
    monkeypatch.setattr(litert_libraries, "MAX_HASHED", path.stat().st_size)
    assert find_releases(path) == ("2.3.0",)
    monkeypatch.setattr(litert_libraries, "MAX_HASHED", path.stat().st_size - 1)
    assert find_releases(path) == ()


def test_without_a_list_every_release_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path))
    path = tmp_path / LITERT_NAME
    path.write_bytes(make_library(LITERT_NAME, OTHER))
    assert find_releases(path) == ()


@pytest.mark.parametrize(
    ("releases", "pairs"),
    [
        ({LITERT_NAME: TWO, DISPATCH: OTHER}, {DISPATCH: LITERT_NAME}),
        ({LITERT_NAME: TWO, PLUGIN: OTHER}, {PLUGIN: LITERT_NAME}),
        ({OLDER_NAME: OTHER, PLUGIN: TWO}, {PLUGIN: OLDER_NAME}),
        ({DISPATCH: OTHER, PLUGIN: TWO}, {PLUGIN: DISPATCH}),
        ({LITERT_NAME: TWO, DISPATCH: TWO, PLUGIN: TWO}, {}),
        ({LITERT_NAME: TWO, PLUGIN: NEXT}, {}),  # both are in 2.1.1
        ({LITERT_NAME: TWO, DISPATCH: UNLISTED, PLUGIN: TWO}, {}),
        ({LITERT_NAME: UNLISTED, DISPATCH: TWO, PLUGIN: OTHER}, {PLUGIN: DISPATCH}),
        ({LITERT_NAME: TWO}, {}),
    ],
)
def test_libraries_without_a_common_release_are_a_warning(
    releases: dict[str, str], pairs: dict[str, str], tmp_path: Path
) -> None:
    libraries = {name: make_library(name, release) for name, release in releases.items()}
    app = apk(SET | libraries)(tmp_path / "app")
    folder = write_files(tmp_path / "push", SET | libraries)
    for path in (app, folder):
        findings = judge(path, tmp_path / "scratch")
        of_releases = [finding for finding in findings if finding.id == "QNN884"]
        assert {finding.subject for finding in of_releases} == pairs.keys()
        for finding in of_releases:
            assert pairs[finding.subject] in finding.what
            assert finding.severity.value == "warning"


def test_libraries_for_different_abis_are_not_compared(tmp_path: Path) -> None:
    files = {
        f"{ABI}/{LITERT_NAME}": make_library(LITERT_NAME, TWO),
        f"x86_64/{DISPATCH}": make_library(DISPATCH, OTHER),
    }
    write_files(tmp_path / "app", files | {f"{ABI}/{name}": data for name, data in SET.items()})
    findings = judge(tmp_path / "app", tmp_path / "scratch")
    assert "QNN884" not in {finding.id for finding in findings}


def test_an_app_is_shown_with_the_releases_of_its_libraries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    releases = {LITERT_NAME: TWO, DISPATCH: UNLISTED}
    libraries = {name: make_library(name, release) for name, release in releases.items()}
    app = str(apk(SET | libraries)(tmp_path / "app"))
    main(["inspect", "--load", app])
    shown = capsys.readouterr().out
    assert f"{LITERT_NAME} for {ABI}: LiteRT 2.1.0 or 2.1.1" in shown
    assert f"{DISPATCH} for {ABI}: an unknown release of LiteRT" in shown
    main(["inspect", "--load", app, "--json"])
    (unit,) = json.loads(capsys.readouterr().out)["units"]
    properties = json.loads(SCHEMA.read_text("utf-8"))["$defs"]["unit"]["properties"]
    jsonschema.validate(unit["litert"], properties["litert"])
    assert unit["litert"] == [
        {"file": LITERT_NAME, "abi": ABI, "versions": ["2.1.0", "2.1.1"]},
        {"file": DISPATCH, "abi": ABI, "versions": []},
    ]


def test_the_list_is_of_files_with_different_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MANIFESTS_VARIABLE)
    libraries = read_known_libraries()
    hashes = [library.sha256 for library in libraries]
    assert len(set(hashes)) == len(hashes)
    assert {library.name for library in libraries} <= set(NAMES)


def test_the_list_contains_the_installed_ai_edge_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        package = metadata.distribution("ai-edge-litert")
    except metadata.PackageNotFoundError:
        pytest.skip("ai-edge-litert is not installed in this environment")
    monkeypatch.delenv(MANIFESTS_VARIABLE)
    paths = [Path(str(path.locate())) for path in package.files or () if path.name in NAMES]
    assert paths
    for path in paths:
        assert package.version in (find_releases(path) or ()), path.name
