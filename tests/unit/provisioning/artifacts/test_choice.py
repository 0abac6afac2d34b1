"""Which QNN is chosen, what a profile's environment is, and which artifacts words name."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from provisioning.artifacts import choice, environment
from provisioning.artifacts.choice import (
    OverlayRecord,
    QnnChoice,
    add_arguments,
    find_backends,
    find_laid,
    find_overlays,
    lay_over,
    list_device_runtimes,
    python_tag,
    read_choice,
    read_overlay,
    write_overlay,
)
from provisioning.artifacts.environment import Environment, github_line, render_github, render_shell
from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.selection import all_requests, parse_selection, unique_requests
from provisioning.artifacts.sources import Options
from provisioning.errors import UsageError
from provisioning.manifest.reader import read_profiles, read_toolchain
from provisioning.verbs.env import find_built
from tests.stand_ins.snapshots import check_snapshot


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the caller's shell; what is set is undone."""
    names = ("QNN_CI_SDK", "QNN_CI_ADAPTOR", "QNN_SDK_ROOT", "PYTHONPATH", "QNN_CI_CALLER_DIR")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))


# -- the choice -----------------------------------------------------------------------------------


def test_without_a_word_the_wheel_s_runtime_is_chosen() -> None:
    assert read_choice() == QnnChoice("wheel", "")
    assert "QNN_CI_SDK" not in os.environ
    assert "QNN_CI_ADAPTOR" not in os.environ


def test_a_word_outranks_its_variable_and_becomes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QNN_CI_SDK", "pinned")
    monkeypatch.setenv("QNN_CI_ADAPTOR", "overlay")
    assert read_choice() == QnnChoice("pinned", "overlay")
    assert read_choice("wheel", "wheel") == QnnChoice("wheel", "wheel")
    assert (os.environ["QNN_CI_SDK"], os.environ["QNN_CI_ADAPTOR"]) == ("wheel", "wheel")
    (tmp_path / "sdk").mkdir()
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    assert read_choice("sdk", "sdk") == QnnChoice(str(tmp_path / "sdk"), str(tmp_path / "sdk"))
    version = read_toolchain("qnn-sdk").releases[0].version
    assert read_choice(version).sdk == version


@pytest.mark.parametrize(
    ("sdk", "adaptor", "fix"),
    [
        ("gone", "", "wheel or pinned, or an existing directory"),
        ("", "gone", "wheel or overlay, or an existing directory"),
        ("overlay", "", "wheel or pinned, or an existing directory"),
        ("", "pinned", "wheel or overlay, or an existing directory"),
        ("", "2.37.0", "wheel or overlay, or an existing directory"),
        ("9.9.9", "", ""),
    ],
)
def test_what_is_neither_a_word_nor_a_directory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sdk: str, adaptor: str, fix: str
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for given in ((sdk, adaptor), ("", "")):
        with pytest.raises(UsageError) as caught:
            read_choice(*given)
        assert fix in caught.value.fix
        if fix:
            assert caught.value.what == f"{tmp_path}/{sdk or adaptor} is not a directory"
        monkeypatch.setenv("QNN_CI_SDK", sdk)
        monkeypatch.setenv("QNN_CI_ADAPTOR", adaptor)


@pytest.mark.parametrize("word", ["sdk", "./sdk", "~/sdk"])
def test_a_directory_is_chosen_by_its_absolute_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: str
) -> None:
    (tmp_path / "sdk").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    chosen = QnnChoice(str(tmp_path / "sdk"), str(tmp_path / "sdk"))
    assert read_choice(word, word) == chosen
    monkeypatch.setenv("QNN_CI_SDK", word)
    monkeypatch.setenv("QNN_CI_ADAPTOR", word)
    assert read_choice() == chosen
    assert (os.environ["QNN_CI_SDK"], os.environ["QNN_CI_ADAPTOR"]) == (chosen.sdk, chosen.adaptor)


@pytest.mark.parametrize(
    ("sdk", "adaptor", "profile", "usual", "options"),
    [
        ("wheel", "", "emulator", True, ("", "")),
        ("wheel", "wheel", "emulator", True, ("", "wheel")),
        ("wheel", "overlay", "emulator", False, ("", "overlay")),
        ("pinned", "", "emulator-sdk", False, ("pinned", "")),
        ("/sdk", "wheel", "emulator-sdk", False, ("/sdk", "wheel")),
    ],
)
def test_a_choice_names_its_profile_and_how_to_repeat_it(
    sdk: str, adaptor: str, profile: str, usual: bool, options: tuple[str, str]
) -> None:
    chosen = QnnChoice(sdk, adaptor)
    assert (chosen.profile, chosen.is_usual) == (profile, usual)
    assert chosen.options == {"sdk": options[0], "adaptor": options[1]}


def test_its_options_are_empty_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for adaptor in (True, False):
        parser = argparse.ArgumentParser()
        add_arguments(parser, adaptor=adaptor)
        assert vars(parser.parse_args([])) == {"sdk": "", **({"adaptor": ""} if adaptor else {})}
        assert parser.parse_args(["--sdk", "pinned"]).sdk == "pinned"
    parser = argparse.ArgumentParser(prog="verb")
    add_arguments(parser)
    assert parser.parse_args(["--adaptor", "x"]).adaptor == "x"
    monkeypatch.setenv("COLUMNS", "100")
    check_snapshot(Path(__file__).parent / "snapshots" / "choice.txt", parser.format_help())


# -- overlays -------------------------------------------------------------------------------------


def make_overlay(place: Path, sdk: str, python: str = "") -> Path:
    place.mkdir(parents=True)
    write_overlay(place, OverlayRecord("1.5.1", sdk, python or python_tag()))
    return place


def test_an_overlay_tells_what_it_was_built_from(tmp_path: Path) -> None:
    place = make_overlay(tmp_path / "overlay", "2.37.0")
    version = f"cpython-{sys.version_info.major}{sys.version_info.minor}"
    assert read_overlay(place) == OverlayRecord("1.5.1", "2.37.0", version)
    (place / "overlay.json").write_text("{}")
    for damaged in (place, tmp_path, place / "overlay.json"):  # the last is not a directory
        assert read_overlay(damaged) is None


def test_overlays_of_an_sdk_are_found_the_newest_first(tmp_path: Path) -> None:
    builds = tmp_path / "home" / "builds"
    old = make_overlay(builds / "aot-1" / "overlay", "2.37.0")
    new = make_overlay(builds / "aot-2" / "overlay", "2.37.0")
    make_overlay(builds / "aot-3" / "overlay", "2.40.0")
    make_overlay(builds / "aot-4" / "overlay", "2.37.0", "cpython-27")
    make_overlay(builds / "other" / "overlay", "2.37.0")
    (builds / "aot-5" / "overlay").mkdir(parents=True)
    for time, place in ((100, old), (200, new)):
        os.utime(place / "overlay.json", (time, time))
        os.utime(place, (time, time))
    assert [path for path, _ in find_overlays("2.37.0")] == [new, old]
    assert [record.sdk for _, record in find_overlays("2.40.0")] == ["2.40.0"]
    assert find_overlays("2.50.0") == []
    assert [path for path, _ in find_overlays("2.37.0.250724")] == [new, old]  # one release
    for executorch, found in (("1.5.1", new), ("1.5.1+cpu", new), ("1.4.1", None)):
        artifacts = tuple(
            Provisioned(name, version, tmp_path)
            for name, version in (("qnn-sdk", "2.37.0"), ("executorch", executorch))
        )
        assert find_built(Environment("aot", artifacts, {})) == found


def test_only_backends_of_the_overlay_itself_count(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    own, other = (overlay / place for place in choice.BACKENDS)
    own.parent.mkdir(parents=True)
    own.touch()
    (tmp_path / "wheel").mkdir()
    (tmp_path / "wheel" / other.name).touch()
    other.parent.parent.mkdir(exist_ok=True)
    other.parent.symlink_to(tmp_path / "wheel")
    assert find_backends(overlay) == [own]
    (tmp_path / "link").symlink_to(overlay)
    assert find_backends(tmp_path / "link") == [tmp_path / "link" / choice.BACKENDS[0]]
    assert find_backends(tmp_path) == []
    other.parent.unlink()
    other.parent.mkdir()
    other.touch()
    assert find_backends(overlay) == [own, other]
    own.unlink()
    assert find_backends(overlay) == [other]


def test_an_overlay_comes_first_for_python_and_the_loader(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    backend = overlay / choice.BACKENDS[0]
    backend.parent.mkdir(parents=True)
    backend.touch()
    plain = Environment("p", (), {"LD_LIBRARY_PATH": "/qnn", "X": "1"})
    laid = lay_over(plain, overlay, {"PYTHONPATH": "/mine"})
    assert laid.variables == {
        "X": "1",
        "PYTHONPATH": f"{overlay}:/mine",
        "LD_LIBRARY_PATH": f"{backend.parent}:/qnn",
    }
    assert lay_over(plain, overlay, {}).variables["PYTHONPATH"] == str(overlay)
    assert find_laid(laid) == overlay
    assert find_laid(plain) is None


# -- what devices get -----------------------------------------------------------------------------


def test_profiles_that_push_qnn_tell_its_version(tmp_path: Path) -> None:
    sdk, maven = read_toolchain("qnn-sdk"), read_toolchain("qnn-android")
    assert list(list_device_runtimes([])) == []
    assert list(list_device_runtimes(["emulator"])) == []
    assert list(list_device_runtimes(["qnn-android"])) == [("qnn-android", maven.default)]
    found = dict(list_device_runtimes([*read_profiles()]))
    assert {"android", "linux"} <= {*found}
    assert not {"emulator-sdk", "onnx-sdk"} & {*found}  # they have the SDK, for a host
    assert found["android"] == sdk.release().version
    (own,) = (one.version for one in read_profiles()["lpai"].artifacts if one.name == "qnn-sdk")
    assert found["lpai"] == own != sdk.default
    with pytest.raises(UsageError, match="'gone' is neither") as caught:
        list(list_device_runtimes(["android", "gone"]))
    assert "qnn-android" in caught.value.fix


def test_a_chosen_sdk_is_what_profiles_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / "sdk.yaml").write_text("version: 2.36.1.250708\n")
    monkeypatch.setenv("QNN_CI_SDK", str(tmp_path / "sdk"))
    assert list(list_device_runtimes(["android"])) == [("android", "2.36.1.250708")]
    monkeypatch.setenv("QNN_CI_SDK", "2.43.0.260128")
    found = [*list_device_runtimes(["linux", "android", "emulator-sdk"])]
    assert sorted(found) == [("android", "2.43.0.260128"), ("linux", "2.43.0.260128")]
    monkeypatch.setenv("QNN_CI_SDK", "pinned")
    usual = read_toolchain("qnn-sdk").default
    assert list(list_device_runtimes(["android"])) == [("android", usual)]


# -- environments ---------------------------------------------------------------------------------


def test_an_environment_holds_no_other_qnn(tmp_path: Path) -> None:
    base = {
        "PATH": "/sdk/bin:/sdk:/sdk-two/bin:/usr/bin",
        "QNN_SDK_ROOT": "/sdk/",
        "LD_LIBRARY_PATH": "/sdk/lib",
        "ADSP_LIBRARY_PATH": "/dsp",
        "PYTHONPATH": "/mine",
        "HOME": "/root",
        "NEW": "theirs",
    }
    artifact = Provisioned("qnn", "1", tmp_path)
    made = Environment("p", (artifact,), {"QNN_SDK_ROOT": "/ours", "NEW": "1"})
    assert made.apply(base) == {
        "PATH": "/sdk-two/bin:/usr/bin",
        "PYTHONPATH": "/mine",
        "HOME": "/root",
        "QNN_SDK_ROOT": "/ours",
        "NEW": "1",
    }
    assert made.apply({}) == {"QNN_SDK_ROOT": "/ours", "NEW": "1"}
    two = {"SNPE_ROOT": "/snpe", "QNN_SDK_ROOT": "/sdk", "PATH": "/snpe/bin:/x:/sdk/bin:/snpe"}
    assert made.apply(two) == {"PATH": "/x", "QNN_SDK_ROOT": "/ours", "NEW": "1"}
    other = {"SNPE_ROOT": "/snpe", "PATH": "/snpe/bin:/bin"}
    assert made.apply(other) == {"PATH": "/bin", "QNN_SDK_ROOT": "/ours", "NEW": "1"}
    assert made.root("qnn") == tmp_path
    with pytest.raises(KeyError):
        made.root("other")


def test_a_shell_unsets_another_qnn_and_exports_ours() -> None:
    lines = render_shell(
        Environment("p", (), {"LD_LIBRARY_PATH": "/a b", "X": "$1", "Y": "it's"})
    ).splitlines()
    stale = sorted({*environment.DROPPED_VARIABLES} - {"LD_LIBRARY_PATH"})
    assert lines == [
        *(f"unset {name}" for name in stale),
        "export LD_LIBRARY_PATH='/a b'",
        "export X='$1'",
        """export Y='it'"'"'s'""",
    ]


def test_a_file_of_github_holds_values_of_several_lines() -> None:
    assert github_line("X", "one\rX=two").startswith("X<<end_")
    text = render_github(Environment("p", (), {"X": "one", "Y": "two\nlines"}))
    rows = text.splitlines()
    assert "X=one" in rows
    (start,) = [number for number, row in enumerate(rows) if row.startswith("Y<<")]
    mark = rows[start].partition("<<")[2]
    assert mark
    assert rows[start + 1 : start + 4] == ["two", "lines", mark]
    own = render_github(Environment("p", (), {"LD_LIBRARY_PATH": "/a"})).splitlines()
    stale = {f"{name}=" for name in environment.DROPPED_VARIABLES}  # of another QNN
    assert stale <= {*rows}
    assert {*own} == stale - {"LD_LIBRARY_PATH="} | {"LD_LIBRARY_PATH=/a"}


# -- selections -----------------------------------------------------------------------------------


def test_words_name_profiles_and_artifacts_once() -> None:
    options = Options(offline=True)

    def names(*words: str) -> list[str]:
        return [request.name for request in parse_selection(words, options)]

    assert names() == names("emulator") != []
    assert names("emulator", "emulator") == names("emulator")
    (one,) = parse_selection(["qnn-sdk"], options)
    toolchain = read_toolchain("qnn-sdk")
    assert (one.release, one.components, one.options) == (toolchain.release(), (), options)
    other = next(one.version for one in toolchain.releases if one.version != toolchain.default)
    component = next(iter(toolchain.components))
    (two,) = parse_selection([f"qnn-sdk@{other}:{component},"], options)
    assert (two.release.version, two.components) == (other, (component,))
    word = f"emulator-sdk+qnn-sdk@{other}"
    versions = {one.name: one.release.version for one in parse_selection([word], options)}
    assert versions["qnn-sdk"] == other
    assert all(request.options == options for request in all_requests(options))
    everything = {request.name for request in all_requests(options)}
    assert {request.name for request in parse_selection(["emulator"], options)} <= everything
    assert unique_requests([one, two, one]) in ([one, two], [two, one])
