"""An installation that a variable names is recognised, judged and used in place."""

from __future__ import annotations

import errno
import io
import shutil
from contextlib import closing
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from provisioning.archives.layout import FileWriter
from provisioning.artifacts.choice import read_choice
from provisioning.artifacts.environment import (
    compose_environment,
    locate_profile,
    profile_requests,
    provision_profile,
)
from provisioning.artifacts.pins import plan_update
from provisioning.artifacts.provision import Provisioned
from provisioning.artifacts.sources import ArtifactRequest, Options, load_source
from provisioning.artifacts.sources.local import expected_paths, explain_reads, find_installation
from provisioning.console.progress import Progress
from provisioning.doctor.examine import find_pins, wanted_requests
from provisioning.errors import ExitCode, IntegrityError, ManifestError, UnfitError, UsageError
from provisioning.manifest.reader import (
    Adoption,
    Profile,
    ProfileArtifact,
    list_toolchains,
    manifests_root,
    read_profile,
    read_profiles,
    read_toolchain,
)
from provisioning.manifest.releases import AnyRelease, FileRelease, Release
from provisioning.store.store import Store

PIN, LINUX = "2.37.0.250724", "lib/aarch64-oe-linux-gcc11.2"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    for name in ("QNN_SDK_ROOT", "ANDROID_NDK_ROOT", "HEXAGON_SDK_ROOT", "EXECUTORCH_ROOT"):
        monkeypatch.delenv(name, raising=False)


def make_sdk(root: Path, version: str = "2.37.0.250724", *folders: str) -> Path:
    for folder in ("include/QNN", *folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "sdk.yaml").write_text(f"product: QAIRT\nversion: {version}175447\n")
    return root


def make_checkout(root: Path, version: str = "1.5.1") -> Path:
    (root / "backends/qualcomm").mkdir(parents=True)
    (root / "backends/qualcomm/CMakeLists.txt").touch()
    (root / "version.txt").write_text(f"{version}\n")
    for module in read_toolchain("executorch").components["runner"]:
        (root / module).mkdir(parents=True, exist_ok=True)
    return root


HOST = "lib/x86_64-linux-clang"


def test_an_sdk_that_has_libcxx_needs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_names() -> list[str]:
        return [one.name for one in profile_requests(read_profile("emulator-sdk"), Options())]

    sdk = make_sdk(tmp_path / "sdk", PIN, HOST)
    monkeypatch.delenv("QNN_CI_LIBCXX_ROOT", raising=False)
    monkeypatch.setenv("QNN_CI_SDK", str(sdk))
    for name in ("libc++.so.1", "libc++abi.so.1"):
        (sdk / HOST / name).touch()
    assert "libcxx" in list_names()
    (sdk / HOST / "libunwind.so.1").touch()
    assert "libcxx" not in list_names()
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, is_needed in (("sdk", False), ("~/sdk", False), ("~/other", True)):
        monkeypatch.setenv("QNN_CI_SDK", named)
        assert ("libcxx" in list_names()) is is_needed
    monkeypatch.setenv("QNN_CI_SDK", str(sdk))
    profile = read_profile("emulator-sdk")
    artifact = Provisioned("qnn-sdk", PIN, sdk, adopted=True)
    path = compose_environment("emulator-sdk", profile, (artifact,)).variables["LD_LIBRARY_PATH"]
    assert path == str(sdk / HOST)
    monkeypatch.setenv("QNN_CI_LIBCXX_ROOT", str(tmp_path))
    assert "libcxx" in list_names()


def test_a_root_that_would_be_two_directories_of_a_search_path_is_refused(tmp_path: Path) -> None:
    artifact = Provisioned("qnn-sdk", PIN, tmp_path / "a:b")
    with pytest.raises(UnfitError, match="a:b"):
        compose_environment("emulator-sdk", read_profile("emulator-sdk"), (artifact,))


def test_a_relative_installation_is_found_from_where_nox_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_sdk(tmp_path / "here" / "sdk", PIN, HOST)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    (tmp_path / "here" / "link").symlink_to("sdk")
    toolchain = read_toolchain("qnn-sdk")
    request = ArtifactRequest(toolchain, toolchain.release())
    for named in ("sdk", "./link", "~/sdk", str(tmp_path / "here" / "sdk")):
        found = find_installation(request, {"QNN_SDK_ROOT": named})
        assert found == (tmp_path / "here" / "sdk", f"{PIN}175447")


def test_an_installation_has_the_markers_and_the_fixed_part_of_each_glob() -> None:
    toolchain = read_toolchain("qnn-sdk")
    globs = {"a": ("a/b.so", "c/*", "d/e*.so", "f/?.so", "g/h?/x"), "b": ("i/**", "include")}
    toolchain = msgspec.structs.replace(toolchain, components=globs)
    request = ArtifactRequest(toolchain, toolchain.release(), ("a", "b"))
    adoption = Adoption("X", ("sdk.yaml", "include"))
    assert expected_paths(request, adoption) == ["sdk.yaml", "include", "a/b.so", "c", "f", "i"]


def test_what_is_missing_is_named_with_the_command_that_provisions_it() -> None:
    with pytest.raises(UnfitError) as caught:
        locate_profile("android", Progress())
    message = str(caught.value)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "qnn-sdk 2.37.0.250724, android-ndk 26.2.11394342, executorch 1.5.1" in message
    assert "`qnn-ci fetch android`" in message
    assert "QNN_SDK_ROOT, ANDROID_NDK_ROOT, EXECUTORCH_ROOT" in message


def test_installations_are_used_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = ("lib/aarch64-oe-linux-gcc11.2",)
    sdk = make_sdk(tmp_path / "sdk", "2.37.0.250724", *folders)
    checkout = make_checkout(tmp_path / "executorch")
    monkeypatch.setenv("QNN_SDK_ROOT", str(sdk))
    monkeypatch.setenv("EXECUTORCH_ROOT", str(checkout))
    said = io.StringIO()
    environment = locate_profile("linux", Progress(said))
    assert environment.root("qnn-sdk") == sdk
    assert environment.variables["EXECUTORCH_ROOT"] == str(checkout)
    assert all(artifact.adopted for artifact in environment.artifacts)
    (line,) = (one for one in said.getvalue().splitlines() if "EXECUTORCH_ROOT" in one)
    (executorch,) = (one for one in environment.artifacts if one.name == "executorch")
    told = f"executorch: using EXECUTORCH_ROOT={checkout}, version {executorch.version}"
    assert line.strip().partition(" (the pinned version is ")[0] == told
    assert (" (the pinned version is " in line) == (
        executorch.version != read_toolchain("executorch").default
    )
    assert not (tmp_path / "home").exists()


def test_another_version_in_the_store_is_used_and_what_env_gave_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_SDK_ROOT", str(make_sdk(tmp_path / "sdk", PIN, LINUX)))
    trees = tmp_path / "home/store"
    other = make_checkout(trees / "executorch-1.4.1-0123456789ab/executorch", "1.4.1")
    monkeypatch.setenv("EXECUTORCH_ROOT", str(other))
    assert locate_profile("linux", Progress()).root("executorch") == other
    pins = find_pins(wanted_requests("linux"), {"executorch": other})
    assert pins["executorch-commit"] == read_toolchain("executorch").release("1.4.1").pin
    for name in ("executorch-1.5.1-0123456789ab/executorch", "qnn-runtime-2.49-0123/qnn-runtime"):
        checkout = make_checkout(trees / name)
        link = tmp_path / checkout.name
        link.symlink_to(checkout)
        for place in (checkout, link, f"~/{checkout.relative_to(tmp_path)}", trees):
            monkeypatch.setenv("HOME", str(tmp_path))
            monkeypatch.setenv("EXECUTORCH_ROOT", str(place))
            with pytest.raises(UnfitError, match="lacks executorch"):
                locate_profile("linux", Progress())
    (tmp_path / "linked").symlink_to(tmp_path / "home")
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "linked"))
    with pytest.raises(UnfitError, match="lacks executorch"):
        locate_profile("linux", Progress())
    longer = make_checkout(trees / "executorch-1.5.10-0123456789ab/executorch", "1.5.10")
    monkeypatch.setenv("EXECUTORCH_ROOT", str(longer))
    assert locate_profile("linux", Progress()).root("executorch") == longer


def test_a_tree_of_the_store_that_the_user_chose_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = make_sdk(tmp_path / f"home/store/qnn-sdk-{PIN}-0123456789ab/qnn-sdk", PIN, LINUX)
    monkeypatch.setenv("EXECUTORCH_ROOT", str(make_checkout(tmp_path / "executorch")))
    monkeypatch.setenv("QNN_CI_SDK", str(sdk))
    found = locate_profile("linux", Progress()).artifacts[0]
    assert (found.name, found.root, found.adopted) == ("qnn-sdk", sdk, True)


@pytest.mark.parametrize("missing", ["sdk.yaml", "include"])
def test_an_installation_that_lacks_a_part_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    sdk = make_sdk(tmp_path / "sdk", "2.37.0.250724", "lib/aarch64-oe-linux-gcc11.2")
    (sdk / missing).rename(tmp_path / "away")
    monkeypatch.setenv("QNN_SDK_ROOT", str(sdk))
    with pytest.raises(UnfitError, match="is not a usable qnn-sdk") as caught:
        locate_profile("linux", Progress())
    assert f"it has no {missing}" in caught.value.why


def test_an_installation_too_old_for_the_profile_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = ["lib/x86_64-linux-clang", "lib/aarch64-android", "lib/lpai-v6"]
    monkeypatch.setenv("QNN_SDK_ROOT", str(make_sdk(tmp_path / "sdk", "2.37.0.250724", *folders)))
    with pytest.raises(UnfitError, match="is too old") as caught:
        provision_profile("lpai", Progress(), offline=True)
    assert "needs QNN SDK 2.39 or later" in caught.value.why
    assert "QNN_SDK_ROOT" in caught.value.what
    sdk = make_sdk(tmp_path / "chosen", "2.36.0.250627", *folders)
    monkeypatch.setenv("QNN_CI_SDK", str(sdk))
    with pytest.raises(UnfitError, match="is too old") as caught:
        provision_profile("lpai", Progress(), offline=True)
    assert "2.36.0.250627175447 in QNN_CI_SDK" in caught.value.what
    assert "QNN_CI_SDK" in caught.value.fix


def test_every_profile_names_artifacts_and_components_that_exist() -> None:
    known = list_toolchains()
    for profile in read_profiles().values():
        for wanted in profile.artifacts:
            assert wanted.name in known
            toolchain = read_toolchain(wanted.name)
            assert toolchain.release(wanted.version).version
            assert set(wanted.components) <= toolchain.components.keys()


def test_a_profile_asks_for_its_versions_and_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_CI_SDK", raising=False)
    rows = (
        ProfileArtifact("executorch", version="1.4.1", components=("runner",)),
        ProfileArtifact("qnn-sdk", "2.43.0.260128", minimum="2.39", minimum_reason="it hangs"),
        ProfileArtifact("android-ndk"),
    )
    options = Options(offline=True, accept_licence=True)
    assert profile_requests(Profile("s", rows), options) == [
        ArtifactRequest(
            read_toolchain(row.name),
            read_toolchain(row.name).release(row.version),
            row.components,
            options,
            row.minimum,
            row.minimum_reason,
        )
        for row in rows
    ]


@pytest.mark.parametrize("kind", get_args(AnyRelease))
def test_every_kind_of_release_has_the_source_of_its_name(kind: type[Release]) -> None:
    names = [field.name for field in msgspec.structs.fields(kind) if field.required]
    release = kind(**dict.fromkeys(names, "a" * 40))
    source = load_source(release.source)
    assert all(map(callable, (source.fill, source.mirror, source.find_release)))
    assert release.can_lock is issubclass(kind, FileRelease)


def test_a_manifest_of_another_kind_or_with_its_keys_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path))
    (tmp_path / "toolchains").mkdir()
    manifest = tmp_path / "toolchains" / "one.toml"
    for release, why in (
        ('source = "ftp"', "releases[0]: Invalid value 'ftp' - at `$.source`"),
        ('source = "git"\nurl = ""\ncommit = ""\nsha256 = ""', "unknown field `sha256`"),
        ('source = "archive"\nurl = ""', "missing required field `filename`"),
    ):
        manifest.write_text(f"""
name = "one"
summary = ""
default = "1"
licence = {{ name = "", text = "" }}
[[releases]]
version = "1"
{release}
""")
        with pytest.raises(ManifestError) as caught:
            read_toolchain("one")
        assert why in caught.value.why


def test_every_manifest_has_one_default_and_a_licence() -> None:
    for name in list_toolchains():
        toolchain = read_toolchain(name)
        assert toolchain.name == name
        assert toolchain.release().version == toolchain.default
        assert toolchain.licence.name
        assert toolchain.licence.text


def test_a_chosen_version_is_what_every_profile_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the profile's own version nor an installation of another one is in its way."""
    monkeypatch.setenv("QNN_CI_SDK", "")
    choice = read_choice("2.43.0.260128")
    assert choice.profile == "emulator-sdk"
    monkeypatch.setenv("QNN_SDK_ROOT", str(make_sdk(tmp_path / "sdk")))
    for name in ("aot", "android", "lpai"):
        with pytest.raises(UnfitError, match=r"qnn-sdk 2\.43\.0\.260128"):
            locate_profile(name, Progress())
    monkeypatch.setenv("EXECUTORCH_ROOT", str(make_checkout(tmp_path / "executorch")))
    newer = make_sdk(tmp_path / "newer", "2.43.0.260128", LINUX, "lib/hexagon-v75/unsigned")
    monkeypatch.setenv("QNN_SDK_ROOT", str(newer))
    (sdk, *_) = locate_profile("linux", Progress()).artifacts
    assert sdk.root == newer
    own = next(one.version for one in read_profile("lpai").artifacts if one.name == "qnn-sdk")
    assert own not in {"", "2.39.0.250926"}
    monkeypatch.delenv("QNN_SDK_ROOT")
    read_choice("2.39.0.250926")
    with pytest.raises(UnfitError, match=r"qnn-sdk 2\.39\.0\.250926"):
        locate_profile("lpai", Progress())


def test_a_chosen_version_has_to_be_known_and_new_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_SDK", "")
    with pytest.raises(UsageError, match=r"2\.43\.0\.260128"):
        read_choice("2.42.0")
    read_choice("2.37.0.250724")
    with pytest.raises(UnfitError, match=r"2\.39") as caught:
        locate_profile("lpai", Progress())
    assert "QNN_CI_SDK" in caught.value.what
    assert caught.value.why == read_profile("lpai").minimum("qnn-sdk")[1]


def test_an_sdk_whose_hash_the_vendor_published_needs_no_first_use() -> None:
    pins = {one.version: one.pin for one in read_toolchain("qnn-sdk").releases}
    assert {version for version, pin in pins.items() if not pin} == {
        "2.37.0.250724",
        "2.39.0.250926",
    }


@pytest.mark.parametrize("version", ["2.43.0.260128", "v2.43.0.260128"])
def test_a_version_that_has_a_row_becomes_the_default_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    shutil.copytree(manifests_root(), tmp_path / "manifests")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    before = read_toolchain("qnn-sdk")
    request = ArtifactRequest(before, before.release())
    (change,) = plan_update(request, version, Store(), Progress())
    change.write()
    after = read_toolchain("qnn-sdk")
    assert after == msgspec.structs.replace(before, default="2.43.0.260128")


@pytest.mark.parametrize("carry", [True, False])
def test_figures_follow_a_version_that_has_a_row_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, carry: bool
) -> None:
    shutil.copytree(manifests_root(), tmp_path / "manifests")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    sdk = read_toolchain("qnn-sdk")
    figures = tmp_path / "manifests/baselines"
    old, new = (figures / f"qnn-sdk-{one}.toml" for one in (sdk.default, "2.43.0.260128"))
    old.write_text("# figures\n")
    request = ArtifactRequest(sdk, sdk.release())
    changes = plan_update(request, "2.43.0.260128", Store(), Progress(), carry=carry)
    for change in changes:
        change.write()
    assert not old.exists()
    assert new.exists() is carry


def test_two_rows_of_one_version_are_refused() -> None:
    toolchain = read_toolchain("qnn-sdk")
    with pytest.raises(ValueError, match=r"2\.37\.0\.250724"):
        msgspec.structs.replace(toolchain, releases=(*toolchain.releases, toolchain.release()))


def test_an_installation_that_cannot_be_copied_is_not_blamed_on_the_store(tmp_path: Path) -> None:
    root, target = tmp_path / "installed", tmp_path / "tree"
    for path in (root, target):
        path.mkdir()
    with pytest.raises(UnfitError, match="cannot be read"), explain_reads(root):
        raise PermissionError(errno.EACCES, "Permission denied", str(root / "a"))
    with pytest.raises(OSError, match="No space"), explain_reads(root):
        raise OSError(errno.ENOSPC, "No space left", str(target / "a"))
    with pytest.raises(IntegrityError, match="of the tree"), explain_reads(root):
        raise IntegrityError("a file of the tree clashes with another")

    with closing(FileWriter(target, "a", f"{root}/a", 4)) as to:

        def copy_more() -> None:
            with explain_reads(root):
                to.write(b"textmore")  # it had 4 bytes

        with pytest.raises(UnfitError, match="changed while it was copied"):
            copy_more()
