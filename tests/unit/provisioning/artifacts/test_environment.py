"""Which QNN and adaptor are chosen, and the variables with which a process uses them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from provisioning.artifacts import choice
from provisioning.artifacts.choice import (
    OverlayRecord,
    QnnChoice,
    find_backends,
    find_laid,
    find_overlays,
    lay_over,
    list_device_runtimes,
    read_choice,
    read_overlay,
    write_overlay,
)
from provisioning.artifacts.environment import (
    DROPPED_VARIABLES,
    Environment,
    compose_environment,
    render_github,
    render_shell,
)
from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.sources import load_source
from provisioning.errors import ManifestError, UnfitError, UsageError
from provisioning.manifest.reader import (
    Profile,
    list_toolchains,
    read_profile,
    read_profiles,
    read_toolchain,
)
from provisioning.manifest.releases import AnyRelease, FileRelease, Release
from provisioning.verbs.env import find_built
from tests.build.artifacts import Workspace


@pytest.fixture(autouse=True)
def bare(sdk: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's own manifests, an empty store, nothing of the caller's shell."""
    monkeypatch.delenv("QNN_CI_MANIFESTS")


# -- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize(
    ("qnn", "adaptor", "chosen", "profile", "usual", "options"),
    [
        ("", "", ("wheel", ""), "emulator", True, ("", "")),
        ("wheel", "wheel", ("wheel", "wheel"), "emulator", True, ("", "wheel")),
        ("wheel", "overlay", ("wheel", "overlay"), "emulator", False, ("", "overlay")),
        ("2.43.0.260128", "", ("2.43.0.260128", ""), "emulator-sdk", False, ("2.43.0.260128", "")),
        *(
            (word, word, ("TMP/dir",) * 2, "emulator-sdk", False, ("TMP/dir",) * 2)
            for word in ("dir", "./dir", "~/dir", "TMP/dir")
        ),
    ],
)
def test_sdk_and_adaptor_are_chosen_by_argument_or_variable_alike(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_variable: bool,
    qnn: str,
    adaptor: str,
    chosen: tuple[str, str],
    profile: str,
    usual: bool,
    options: tuple[str, str],
) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/sdk.yaml").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    words = [word.replace("TMP", str(tmp_path)) for word in (qnn, adaptor)]
    for name, word in zip(("QNN_CI_SDK", "QNN_CI_ADAPTOR"), words, strict=True):
        monkeypatch.setenv(name, word if by_variable else "")
    qnn_choice = read_choice() if by_variable else read_choice(*words)
    expected_words = [word.replace("TMP", str(tmp_path)) for word in chosen]
    assert qnn_choice == QnnChoice(*expected_words)
    assert [os.environ.get(name, "") for name in ("QNN_CI_SDK", "QNN_CI_ADAPTOR")] == [
        expected_words[0] if qnn else "",
        expected_words[1],
    ]
    assert (qnn_choice.profile, qnn_choice.is_usual) == (profile, usual)
    shown = [word.replace("TMP", str(tmp_path)) for word in options]
    assert qnn_choice.options == dict(zip(("sdk", "adaptor"), shown, strict=True))
    assert read_choice("wheel", "wheel") == QnnChoice("wheel", "wheel")  # outranks the variable


@pytest.mark.parametrize(
    ("qnn", "adaptor", "fix"),
    [
        ("gone", "", "wheel or pinned, or an existing directory"),
        ("file", "", "wheel or pinned, or an existing directory"),
        ("", "file", "wheel or overlay, or an existing directory"),
        ("", "gone", "wheel or overlay, or an existing directory"),
        ("", "pinned", "wheel or overlay, or an existing directory"),
        ("9.9.9", "", "2.43.0.260128"),
    ],
)
def test_choice_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qnn: str, adaptor: str, fix: str
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    (tmp_path / "file").touch()
    reason = "it is a file" if "file" in {qnn, adaptor} else "it does not exist"
    options = "--sdk" if qnn else "--adaptor", "QNN_CI_SDK" if qnn else "QNN_CI_ADAPTOR"
    for arguments, named in zip(((qnn, adaptor), ("", "")), options, strict=True):
        with pytest.raises(UsageError) as caught:
            read_choice(*arguments)
        assert fix in str(caught.value)
        if "directory" in fix:
            path = f"{tmp_path}/{qnn or adaptor}"
            assert caught.value.what == f"{named}: {path} is not a directory"
            assert caught.value.why == reason
        monkeypatch.setenv("QNN_CI_SDK", qnn)
        monkeypatch.setenv("QNN_CI_ADAPTOR", adaptor)


@pytest.mark.parametrize(
    ("below", "fix"),
    [
        ("", "correct --sdk, or leave it out"),
        ("2.37.0.250724", "use TMP/qairt/2.37.0.250724"),
        ("v2.37/qairt/2.37.0.250724", "use TMP/qairt/v2.37/qairt/2.37.0.250724"),
        ("a/b/c/2.37.0.250724", "correct --sdk, or leave it out"),
    ],
)
def test_a_directory_around_an_sdk_is_refused_with_the_path_of_the_sdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str, fix: str
) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    (tmp_path / "qairt" / below).mkdir(parents=True)
    if below:
        (tmp_path / "qairt" / below / "sdk.yaml").touch()
    with pytest.raises(UsageError) as caught:
        read_choice("qairt")
    assert caught.value.what == f"--sdk: {tmp_path}/qairt is not a QNN SDK"
    assert caught.value.why == "it has no sdk.yaml"
    assert caught.value.fix == fix.replace("TMP", str(tmp_path))


def test_profiles_that_push_qnn_state_the_version_for_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qnn, maven = read_toolchain("qnn-sdk").default, read_toolchain("qnn-android").default
    (tmp_path / "sdk.yaml").write_text("version: 2.36.1.250708\n")
    for chosen, profiles, runtimes in (
        ("", [], {}),
        ("", ["emulator", "emulator-sdk", "onnx-sdk"], {}),  # they have it for a host
        ("", ["qnn-android", "android"], {"qnn-android": maven, "android": qnn}),
        ("pinned", ["android"], {"android": qnn}),
        (str(tmp_path), ["android"], {"android": "2.36.1.250708"}),
        (
            "2.43.0.260128",
            ["linux", "android"],
            dict.fromkeys(["android", "linux"], "2.43.0.260128"),
        ),
    ):
        monkeypatch.setenv("QNN_CI_SDK", chosen)
        assert dict(list_device_runtimes(profiles)) == runtimes
    monkeypatch.setenv("QNN_CI_SDK", "")
    (pinned_version,) = (
        artifact.version
        for artifact in read_profiles()["lpai"].artifacts
        if artifact.name == "qnn-sdk"
    )
    assert dict(list_device_runtimes([*read_profiles()]))["lpai"] == pinned_version != qnn
    with pytest.raises(UsageError, match="'gone' is neither") as caught:
        list(list_device_runtimes(["android", "gone"]))
    assert "qnn-android" in caught.value.fix


# -- overlays -------------------------------------------------------------------------------------

TAG = f"cpython-{sys.version_info.major}{sys.version_info.minor}"


def make_overlay(place: Path, sdk: str, python: str = TAG) -> Path:
    place.mkdir(parents=True)
    write_overlay(place, OverlayRecord("1.5.1", sdk, python))
    return place


def test_overlays_of_an_sdk_and_this_python_are_found_newest_first(tmp_path: Path) -> None:
    builds = tmp_path / "home/builds"
    old = make_overlay(builds / "aot-1/overlay", "2.37.0")
    new = make_overlay(builds / "aot-2/overlay", "2.37.0")
    overlay_of_newer_sdk = make_overlay(builds / "aot-3/overlay", "2.40.0")
    make_overlay(builds / "aot-4/overlay", "2.37.0", "cpython-27")
    make_overlay(builds / "other/overlay", "2.37.0")
    (builds / "aot-5/overlay").mkdir(parents=True)
    for time, place in ((100, old), (200, new)):
        for path in (place / "overlay.json", place):
            os.utime(path, (time, time))
    record = OverlayRecord("1.5.1", "2.37.0", TAG)
    for sdk, overlays in (
        ("2.37.0", [(new, record), (old, record)]),
        ("2.37.0.250724", [(new, record), (old, record)]),  # one release
        ("2.40.0", [(overlay_of_newer_sdk, OverlayRecord("1.5.1", "2.40.0", TAG))]),
        ("2.50.0", []),
    ):
        assert find_overlays(sdk) == overlays
    for executorch, built in (("1.5.1", new), ("1.5.1+cpu", new), ("1.4.1", None)):
        versions = (("qnn-sdk", "2.37.0"), ("executorch", executorch))
        artifacts = tuple(Provisioned(name, version, tmp_path) for name, version in versions)
        assert find_built(Environment("aot", artifacts, {})) == built
    (new / "overlay.json").write_text("{}")
    for damaged in (new, tmp_path, new / "overlay.json"):  # the last is not a directory
        assert read_overlay(damaged) is None


def test_overlay_comes_first_for_python_and_the_loader(tmp_path: Path) -> None:
    """Links of the overlay to the wheel's backends do not count as its own."""
    overlay = tmp_path / "overlay"
    first_backend, second_backend = (overlay / place for place in choice.BACKENDS)
    assert find_backends(overlay) == []
    for path in (first_backend, tmp_path / "wheel" / second_backend.name):
        path.parent.mkdir(parents=True)
        path.touch()
    second_backend.parent.symlink_to(tmp_path / "wheel")
    assert find_backends(overlay) == [first_backend]
    second_backend.parent.unlink()
    second_backend.parent.mkdir()
    second_backend.touch()
    assert find_backends(overlay) == [first_backend, second_backend]
    plain = Environment("p", (), {"LD_LIBRARY_PATH": "/qnn", "X": "1"})
    for base, python in (({"PYTHONPATH": "/mine"}, f"{overlay}:/mine"), ({}, str(overlay))):
        laid = lay_over(plain, overlay, base)
        assert laid.variables == {
            "X": "1",
            "PYTHONPATH": python,
            "LD_LIBRARY_PATH": f"{first_backend.parent}:{second_backend.parent}:/qnn",
        }
        assert find_laid(laid) == overlay
    assert find_laid(plain) is None


# -- profiles -------------------------------------------------------------------------------------


def test_committed_profiles_and_manifests_are_consistent() -> None:
    for name in list_toolchains():
        toolchain = read_toolchain(name)
        assert (toolchain.name, toolchain.release().version) == (name, toolchain.default)
        assert toolchain.licence.name
        assert toolchain.licence.text
    for profile in read_profiles().values():
        for required in profile.artifacts:
            toolchain = read_toolchain(required.name)
            assert toolchain.release(required.version).version
            assert set(required.components) <= toolchain.components.keys()
    kinds: tuple[type[Release], ...] = get_args(AnyRelease)
    for kind in kinds:
        names = [field.name for field in msgspec.structs.fields(kind) if field.required]
        release = kind(**dict.fromkeys(names, "a" * 40))
        source = load_source(release.source)
        assert all(map(callable, (source.fill, source.mirror, source.find_release)))
        assert release.can_lock is issubclass(kind, FileRelease)


def test_variables_of_a_profile_refer_to_roots_unless_the_caller_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"QNN_CI_CALLER_DIR": str(tmp_path), "HOME": "/home/me", "MINE": "own", "NONE": ""}
    for name, value in {**values, "HOMELY": "~/own"}.items():
        monkeypatch.setenv(name, value)
    lines = {"ROOT": "{a}/x", "LD_LIBRARY_PATH": "{a}/lib", "MINE": "{a}", "NONE": "n"}
    profile = msgspec.convert(
        {
            "summary": "s",
            "artifacts": [{"name": "a"}, {"name": "b", "unless_library": "b.so"}],
            "variables": lines,
            "from_caller": ["MINE", "HOMELY", "NONE"],
        },
        Profile,
    )
    artifacts = tuple(Provisioned(name, "1", Path(f"/{name}")) for name in "ab")
    environment = compose_environment("p", profile, artifacts)
    shown = {
        "ROOT": "/a/x",
        "LD_LIBRARY_PATH": "/a/lib:/b/lib",
        "MINE": str(tmp_path / "own"),
        "HOMELY": "/home/me/own",
        "NONE": "n",
    }
    assert environment == Environment("p", artifacts, shown)
    assert environment.root("b") == Path("/b")
    with pytest.raises(KeyError):
        environment.root("other")
    alone = compose_environment("p", profile, artifacts[:1])
    assert alone.variables == {**shown, "LD_LIBRARY_PATH": "/a/lib"}
    with pytest.raises(ManifestError, match=r"a variable of profile p contains \{a\}"):
        compose_environment("p", profile, artifacts[1:])
    split = Provisioned("qnn-sdk", "1", tmp_path / "a:b")
    with pytest.raises(UnfitError, match="a:b has ':' in its path"):
        compose_environment("emulator-sdk", read_profile("emulator-sdk"), (split,))


@pytest.mark.parametrize(
    ("base", "left"),
    [
        (
            {
                "PATH": "/sdk/bin:/sdk:/sdk-two/bin:/usr/bin",
                "QNN_SDK_ROOT": "/sdk/",
                "PYTHONPATH": "/mine",
                "NEW": "theirs",
                **dict.fromkeys(set(DROPPED_VARIABLES) - {"QNN_SDK_ROOT"}, "/x"),
            },
            {"PATH": "/sdk-two/bin:/usr/bin", "PYTHONPATH": "/mine"},
        ),
        (
            {"SNPE_ROOT": "/snpe", "QNN_SDK_ROOT": "/sdk", "PATH": "/snpe/bin:/x:/sdk/bin:/snpe"},
            {"PATH": "/x"},
        ),
    ],
)
def test_environment_removes_variables_of_other_qnn_versions(
    base: dict[str, str], left: dict[str, str]
) -> None:
    ours = {"QNN_SDK_ROOT": "/ours", "NEW": "1"}
    assert Environment("p", (), ours).apply(base) == {**left, **ours}


def test_shell_and_github_read_the_variables_that_are_set() -> None:
    """GitHub cannot unset a variable, so variables of another QNN are set to nothing."""
    variables = {"LD_LIBRARY_PATH": "/a b", "X": "$1", "Y": "it's", "Z": "two\nX=3", "R": "a\rX=2"}
    environment = Environment("p", (), variables)
    stale = {*DROPPED_VARIABLES} - {"LD_LIBRARY_PATH"}
    script = f"{render_shell(environment)}env -0"
    before = {"PATH": os.environ["PATH"], "SNPE_ROOT": "/theirs"}
    ended = subprocess.run(["sh", "-c", script], env=before, capture_output=True, check=True)
    shown = dict(row.split("=", 1) for row in ended.stdout.decode().split("\0") if row)
    assert shown.items() >= variables.items()
    assert not shown.keys() & stale
    written = re.compile(r"(?s)(\w+)(?:=([^\r\n]*)|<<(\w+)\n(.*?)\n\3)\n")
    text = render_github(environment)
    assert {row[1]: row[2] or row[4] or "" for row in written.finditer(text)} == {
        **dict.fromkeys(stale, ""),
        **variables,
    }
    assert written.sub("", text) == ""
