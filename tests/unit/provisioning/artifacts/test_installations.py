"""Installations of the user: found, checked, used in place or copied, and what sdk.yaml states."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ci.signing.selection import find_sdk_version
from ci.verbs.registry import VERBS
from provisioning.artifacts.environment import locate_profile, profile_requests, provision_profile
from provisioning.artifacts.installations import (
    SdkIdentity,
    check_minimum,
    find_installation,
    read_sdk_yaml,
    read_version,
)
from provisioning.artifacts.provision import adopt_artifact, locate_artifact
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.command import run_command
from provisioning.doctor.examine import find_pins, wanted_requests
from provisioning.doctor.survey.host import survey_sdk
from provisioning.errors import ExitCode, UnfitError
from provisioning.manifest.reader import Adoption, read_profile, read_toolchain
from tests.build.artifacts import Workspace, install, write

PIN, HOST, LINUX = "2.37.0.250724", "lib/x86_64-linux-clang", "lib/aarch64-oe-linux-gcc11.2"


@pytest.fixture
def installed(sdk: Workspace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation that TINY_ROOT names."""
    root = install(sdk.root / "installed")
    monkeypatch.setenv("TINY_ROOT", str(root))
    return root


@pytest.fixture
def real(sdk: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The project's own manifests, an empty store and paths relative to the workspace."""
    monkeypatch.delenv("QNN_CI_MANIFESTS")
    for name in ("QNN_CI_CALLER_DIR", "HOME"):
        monkeypatch.setenv(name, str(sdk.root))
    return sdk


def make_qnn(root: Path, version: str = PIN, *folders: str) -> Path:
    for folder in ("include/QNN", *folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
    write(root / "sdk.yaml", f"product: QAIRT\nversion: {version}175447\n")
    return root


def make_checkout(root: Path, version: str = "1.5.1") -> Path:
    write(root / "backends/qualcomm/CMakeLists.txt", "")
    write(root / "version.txt", f"{version}\n")
    for module in read_toolchain("executorch").components["runner"]:
        (root / module).mkdir(parents=True, exist_ok=True)
    return root


# -- in place -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("1.2.3", "lib/one.so: is missing"),
        ("1.2.3.99", "lib/one.so: is missing (and 1 more)"),  # its sdk.yaml
        ("1.2.4", ""),  # no lock is known
    ],
)
def test_installation_is_used_and_its_pinned_files_are_verified(
    sdk: Workspace, installed: Path, version: str, why: str
) -> None:
    """It may have more files and other modes."""
    sdk.lock()
    write(installed / "sdk.yaml", f"version: {version}\n")
    write(installed / "lib/more.so", "")
    adopted = adopt_artifact(sdk.ask(), sdk.store, sdk.progress)
    assert adopted
    assert (adopted.root, adopted.version, adopted.adopted) == (installed, version, True)
    note = "" if version == "1.2.3" else " (the pinned version is 1.2.3)"
    assert sdk.printed() == f"sdk: using TINY_ROOT={installed}, version {version}{note}\n"
    assert locate_artifact(sdk.ask(), sdk.store, sdk.progress) == adopted
    if "more" not in why:
        assert sdk.provision(verify=True) == adopted
    (installed / "lib/one.so").unlink()
    assert sdk.provision() == adopted  # nothing is hashed without being asked for
    if not why:
        assert sdk.provision(verify=True) == adopted
        return
    with pytest.raises(UnfitError, match=r"does not match the lock of sdk 1\.2\.3") as caught:
        sdk.provision(verify=True)
    assert caught.value.why == why


@pytest.mark.parametrize("variable", ["QNN_SDK_ROOT", "QNN_CI_SDK"])
@pytest.mark.parametrize(
    ("name", "why"),
    [("file", "it is a file"), ("gone", "it does not exist"), ("empty", "it has no sdk.yaml")],
)
def test_a_variable_that_points_to_no_sdk_is_named_with_its_value(
    real: Workspace, variable: str, name: str, why: str
) -> None:
    (real.root / "file").touch()
    (real.root / "empty").mkdir()
    request = replace(real_request(), toolchain=read_toolchain("qnn-sdk"))
    with pytest.raises(UnfitError, match=f"^{variable}={name} is not a usable qnn-sdk") as caught:
        find_installation(request, {variable: name})
    assert caught.value.why.startswith(why)


def test_installation_is_found_from_where_nox_was_called(real: Workspace) -> None:
    make_qnn(real.root / "sdk", PIN, HOST)
    (real.root / "link").symlink_to("sdk")
    toolchain = read_toolchain("qnn-sdk")
    request = replace(real_request(), toolchain=toolchain)
    for named in ("sdk", "./link", "~/sdk", str(real.root / "sdk")):
        installation = find_installation(request, {"QNN_SDK_ROOT": named})
        assert installation == (real.root / "sdk", f"{PIN}175447")


def real_request() -> ArtifactRequest:
    return profile_requests(read_profile("emulator-sdk"), Options())[0]


def test_profile_is_composed_of_installations_and_names_what_is_missing(
    real: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnfitError) as missing:
        locate_profile("android", real.progress)
    message = str(missing.value)
    assert missing.value.exit_code is ExitCode.ENVIRONMENT
    for part in (
        f"qnn-sdk {PIN}, android-ndk 26.2.11394342, executorch 1.5.1",
        "`qnn-ci fetch android`",
        "set QNN_SDK_ROOT, ANDROID_NDK_ROOT and EXECUTORCH_ROOT to your installations",
    ):
        assert part in message
    qnn, checkout = make_qnn(real.root / "sdk", PIN, LINUX), make_checkout(real.root / "code")
    monkeypatch.setenv("QNN_SDK_ROOT", str(qnn))
    monkeypatch.setenv("EXECUTORCH_ROOT", str(checkout))
    environment = locate_profile("linux", real.progress)
    assert (environment.root("qnn-sdk"), environment.root("executorch")) == (qnn, checkout)
    assert environment.variables["EXECUTORCH_ROOT"] == str(checkout)
    assert all(artifact.adopted for artifact in environment.artifacts)
    assert not real.store.home.exists()
    for name in ("sdk.yaml", "include"):
        (qnn / name).rename(real.root / "away")
        with pytest.raises(UnfitError, match="is not a usable qnn-sdk") as caught:
            locate_profile("linux", real.progress)
        assert caught.value.why == f"it has no {name}"
        (real.root / "away").rename(qnn / name)


def test_only_another_version_in_the_store_counts_as_an_installation(
    real: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables from `qnn-ci env` point into the store, where the pinned version is found without
    them."""
    monkeypatch.setenv("QNN_SDK_ROOT", str(make_qnn(real.root / "sdk", PIN, LINUX)))
    trees = real.store.trees
    for name, version, is_used in (
        ("executorch-1.4.1-0123456789ab/executorch", "1.4.1", True),
        ("executorch-1.5.10-0123456789ab/executorch", "1.5.10", True),
        ("executorch-1.5.1-0123456789ab/executorch", "1.5.1", False),
        ("qnn-runtime-2.49-0123/qnn-runtime", "1.5.1", False),
    ):
        checkout = make_checkout(trees / name, version)
        link = real.root / checkout.parent.name
        link.symlink_to(checkout)
        places = (checkout, link, f"~/{checkout.relative_to(real.root)}")
        for place in places if is_used else (*places, trees):
            monkeypatch.setenv("EXECUTORCH_ROOT", str(place))
            if is_used:
                assert locate_profile("linux", real.progress).root("executorch") == checkout
                continue
            with pytest.raises(UnfitError, match="lacks executorch"):
                locate_profile("linux", real.progress)
    (real.root / "linked").symlink_to(real.store.home)
    monkeypatch.setenv("QNN_CI_HOME", str(real.root / "linked"))
    with pytest.raises(UnfitError, match="lacks executorch"):
        locate_profile("linux", real.progress)
    older_checkout = trees / "executorch-1.4.1-0123456789ab/executorch"
    pins = find_pins(wanted_requests("linux"), {"executorch": older_checkout})
    assert pins["executorch-commit"] == read_toolchain("executorch").release("1.4.1").pin
    chosen = make_qnn(trees / f"qnn-sdk-{PIN}-0123456789ab/qnn-sdk", PIN, LINUX)
    monkeypatch.setenv("QNN_CI_SDK", str(chosen))  # the user chose it
    monkeypatch.setenv("EXECUTORCH_ROOT", str(make_checkout(real.root / "code")))
    assert locate_profile("linux", real.progress).root("qnn-sdk") == chosen


@pytest.mark.parametrize(
    ("profile", "chosen", "fetched"),
    [
        ("linux", "", "linux"),
        ("linux", "2.50.0.260828", "linux+qnn-sdk@2.50.0.260828"),
        ("linux", "2.37.0.250724", "linux"),
        ("direct-lpai", "2.43.0.260128", "direct-lpai"),
        ("linux+qnn-sdk@2.41.0.251128", "", "linux+qnn-sdk@2.41.0.251128"),
    ],
)
def test_the_command_for_a_missing_artifact_fetches_the_chosen_version(
    real: Workspace, monkeypatch: pytest.MonkeyPatch, profile: str, chosen: str, fetched: str
) -> None:
    monkeypatch.setenv("QNN_CI_SDK", chosen)
    with pytest.raises(UnfitError) as caught:
        locate_profile(profile, real.progress)
    assert f"run `qnn-ci fetch {fetched}`, or" in caught.value.fix


def test_messages_name_the_option_with_which_an_installation_was_chosen(
    real: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that fetches the rest of the profile fetches no second checkout."""
    for variable in ("QNN_SDK_ROOT", "QNN_CI_SDK", "EXECUTORCH_ROOT"):
        monkeypatch.setenv(variable, "")
    checkout, other_checkout = make_checkout(real.root / "code"), make_checkout(real.root / "other")
    qnn = make_qnn(real.root / "sdk", PIN, HOST)

    def build(*words: str) -> list[str]:
        arguments = ["build", "linux", "--check", "--no-doctor", *words]
        assert run_command("ci", VERBS, arguments)[0] == 3
        # How many other things are missing depends on the programs of this machine.
        messages = re.sub(r" \(and \d+ more\)", "", capsys.readouterr().err)
        lines = messages.splitlines()
        return [line for line in lines if not line.startswith(("  why", "    also", "note"))]

    fetch = "ci fetch qnn-sdk:base,headers,linux,hexagon"
    lacks_sdk = [
        f"ci build: profile linux lacks qnn-sdk {PIN}",
        f"  fix: run `{fetch}`, or set QNN_SDK_ROOT to an installation",
    ]
    used = "version 1.5.1"
    assert build("--source", "code") == [
        f"executorch: using --source {checkout}, {used}",
        *lacks_sdk,
    ]
    monkeypatch.setenv("EXECUTORCH_ROOT", "other")
    assert build() == [f"executorch: using EXECUTORCH_ROOT={other_checkout}, {used}", *lacks_sdk]
    (checkout / "version.txt").unlink()
    assert build("--source", "code") == [
        f"ci build: --source {checkout} is not a usable executorch",
        "  fix: correct --source, or leave it out and run `ci fetch executorch`",
    ]
    monkeypatch.setenv("EXECUTORCH_ROOT", "")
    assert build("--sdk", "sdk") == [
        f"qnn-sdk: using --sdk {qnn}, version {PIN}175447 (the pinned version is {PIN})",
        "ci build: profile linux lacks executorch 1.5.1",
        "  fix: run `ci fetch executorch:runner`, or set EXECUTORCH_ROOT to an installation",
    ]


def test_version_that_is_too_old_for_a_profile_is_refused_with_the_reason(
    real: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [HOST, "lib/aarch64-android", "lib/lpai-v6"]
    reason = read_profile("lpai").minimum("qnn-sdk")[1]
    own_sdk, chosen = real.root / "own", real.root / "chosen"
    for variable, value, shown in (
        ("QNN_SDK_ROOT", str(make_qnn(own_sdk, PIN, *folders)), PIN),
        ("QNN_CI_SDK", str(make_qnn(chosen, "2.36.0.250627", *folders)), "2.36.0.250627175447"),
        ("QNN_CI_SDK", PIN, PIN),
    ):
        monkeypatch.setenv(variable, value)
        with pytest.raises(UnfitError, match="is too old") as caught:
            provision_profile("lpai", real.progress, offline=True)
        assert f"{shown}" in caught.value.what
        assert (variable in caught.value.what, variable in caught.value.fix) == (True, True)
        assert caught.value.why == reason
    request = replace(real_request(), minimum="2.38", minimum_reason="")
    for version in ("unknown", "2.38", "3.0"):
        check_minimum(request, "X", version)
    with pytest.raises(UnfitError) as caught:
        check_minimum(request, "X", "2.37.9")
    assert caught.value.why == "2.38 or later is needed"


def test_sdk_that_contains_libcxx_needs_no_other(
    real: Workspace, host_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(host_libraries / "libatomic.so.1", "")

    def needs_libcxx() -> bool:
        requests = profile_requests(read_profile("emulator-sdk"), Options())
        return "libcxx" in [request.name for request in requests]

    qnn = make_qnn(real.root / "sdk", PIN, HOST)
    monkeypatch.setenv("QNN_CI_SDK", str(qnn))
    for name in ("libc++.so.1", "libc++abi.so.1", "libunwind.so.1"):
        assert needs_libcxx()
        write(qnn / HOST / name, "")
    for named, is_needed in ((str(qnn), False), ("sdk", False), ("~/sdk", False), ("~/x", True)):
        monkeypatch.setenv("QNN_CI_SDK", named)
        assert needs_libcxx() is is_needed
    monkeypatch.setenv("QNN_CI_SDK", str(qnn))
    environment = locate_profile("emulator-sdk", real.progress)
    assert environment.variables["LD_LIBRARY_PATH"] == str(qnn / HOST)
    monkeypatch.setenv("QNN_CI_LIBCXX_ROOT", str(real.root))
    assert needs_libcxx()


# -- sdk.yaml -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version", "stamp"),
    [
        ("product: QAIRT\nversion: 2.37.0.250724175447\n", "2.37.0.250724175447", ""),
        ('version: "v2.49.40"\nbuild_id: 260810104044_1\n', "2.49.40", "260810104044"),
        # Indented, it is another thing's version.
        ("tools:\n  version: 2.38.0\nversion: 2.39.0\n", "2.39.0", ""),
        ("text: |\n  a\nversion: 2.39.0  # or later\n", "2.39.0", ""),
        ("version: [2.39.0]\nbuild_id: 12\n", "", ""),
        ("!!python/object/apply:os.system [exit]\n", "", ""),
        ("", "", ""),
    ],
)
def test_every_reader_of_an_sdk_yaml_finds_the_same_version(
    tmp_path: Path, text: str, version: str, stamp: str
) -> None:
    assert read_sdk_yaml(tmp_path) == SdkIdentity()
    (tmp_path / "sdk.yaml").write_text(text)
    adoption = Adoption("QNN_SDK_ROOT", (), "sdk.yaml")
    facts = survey_sdk(tmp_path, ())
    assert read_sdk_yaml(tmp_path) == SdkIdentity(version, stamp)
    assert (facts.version or "", facts.stamp or "", facts.fault) == (version, stamp, "")
    assert find_sdk_version(tmp_path) == version
    assert read_version(tmp_path, adoption) == (version or "unknown")
    assert read_version(tmp_path, Adoption("X", ())) == "unknown"


@pytest.mark.parametrize(
    "data",
    [
        b"version: 2.39.0 \xff\xfe\n",
        b"version: [2.39.0\n",
        b"[" * 600,
        b"version: 2.39\x00\n",
        b"version: 2.39.0\n" + b"#" * (1 << 16),
        b"? [a]\n: b\n",
        b"version: *x\n",
        None,
    ],
    ids=["not UTF-8", "not YAML", "deep", "control", "large", "odd key", "alias", "pipe"],
)
def test_sdk_yaml_that_cannot_be_read_is_an_unfit_environment(
    tmp_path: Path, data: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sdk"
    root.mkdir()
    if data is None:
        os.mkfifo(root / "sdk.yaml")
    else:
        (root / "sdk.yaml").write_bytes(data)
    with pytest.raises(UnfitError, match=r"sdk\.yaml cannot be read") as caught:
        read_sdk_yaml(root)
    assert survey_sdk(root, ()).fault == caught.value.why != ""
    words = ["sign", "--lpai-arch", "v6", "--qnn-sdk", str(root), "--out", str(tmp_path / "out")]
    assert run_command("ci", VERBS, words)[0] == ExitCode.ENVIRONMENT
    assert "sdk.yaml cannot be read" in capsys.readouterr().err


def test_version_file_in_another_encoding_states_its_version(tmp_path: Path) -> None:
    adoption = Adoption("NDK", (), "source.properties", r"Revision = ([\d.]+)")
    for data, version in (
        (b"# Gr\xf6\xdfe\nPkg.Revision = 26.2\n", "26.2"),
        (b"Pkg.Revision = 26.2\n".ljust(1 << 17), "unknown"),
        (b"Pkg.Revision\n", "unknown"),
    ):
        (tmp_path / "source.properties").write_bytes(data)
        assert read_version(tmp_path, adoption) == version
