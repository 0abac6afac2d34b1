"""Paths and hashes of manifests and locks: none leads out, capitals are no other hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from provisioning.artifacts.environment import compose_environment
from provisioning.artifacts.lockfile import Lock, project_lock_path, read_lock
from provisioning.artifacts.provision import Provisioned
from provisioning.errors import ManifestError
from provisioning.manifest.reader import Profile, ProfileArtifact, read_profiles, read_toolchain
from provisioning.manifest.releases import FileRelease, GitRelease
from provisioning.store.tree import TreeEntry, encode_record

SHA256 = hashlib.sha256(b"").hexdigest()
GOOD = {
    "name": "sdk",
    "version": "1",
    "filename": "sdk.zip",
    "put": "",
    "link": "lib/link",
    "write": "sdk.yaml",
    "output": "lib/made.so",
    "commit": "c" * 40,
    "url": "https://h/r.git",
    "package": "ziglang",
    "package_version": "1",
    "sha256": SHA256,
}
FILE = """
name = "{name}"
summary = "tiny"
default = "{version}"
[licence]
name = "free"
text = "none"
[[releases]]
source = "zig"
version = "{version}"
package = "{package}"
package_version = "{package_version}"
filename = "{filename}"
platform = "any"
python = "3.11"
sha256 = "{sha256}"
output = "{output}"
instead = "install it"
layout = [{{ take = "sdk/**", put = "{put}" }}]
links = {{ "{link}" = "one" }}
write = {{ "{write}" = "text" }}
[[releases]]
source = "git"
version = "2"
url = "{url}"
commit = "{commit}"
"""
OUTSIDE = ("../x", "/etc/x", "a/../../x", "..", "a\\u0000b")
INSIDE = ("..x", "a/..b/c...", "a b/c", ".x")


@pytest.fixture(autouse=True)
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    (tmp_path / "manifests/toolchains").mkdir(parents=True)
    (tmp_path / "manifests/locks").mkdir()
    return tmp_path / "manifests"


def read(manifests: Path, **changes: str) -> object:
    (manifests / "toolchains/sdk.toml").write_text(FILE.format(**{**GOOD, **changes}))
    return read_toolchain("sdk")


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("key", ["name", "version", "filename", "put", "link", "write", "output"])
def test_a_manifest_path_outside_the_tree_is_refused(manifests: Path, key: str, path: str) -> None:
    with pytest.raises(ManifestError, match=r"toolchains/sdk\.toml"):
        read(manifests, **{key: path})


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize(
    "row",
    [
        'layout = [{{ take = "x", put = "{}" }}]',
        'links = {{ "{}" = "x" }}',
        'write = {{ "{}" = "" }}',
    ],
)
def test_repository_path_outside_the_tree_is_refused(manifests: Path, row: str, path: str) -> None:
    text = FILE.format(**GOOD)
    (manifests / "toolchains/sdk.toml").write_text(text + row.format(path))
    with pytest.raises(ManifestError):
        read_toolchain("sdk")
    (manifests / "toolchains/sdk.toml").write_text(text + row.format("a/b"))
    assert read_toolchain("sdk").release("2").version == "2"


@pytest.mark.parametrize("path", INSIDE)
def test_a_manifest_path_inside_the_tree_is_accepted(manifests: Path, path: str) -> None:
    read(manifests, put=path, link=path, write=path, output=path)
    read(manifests, put="lib/")


@pytest.mark.parametrize("text", ["a/b", "", ".", "-a", "a\\nb", "a\\u001bb"])
@pytest.mark.parametrize("key", ["name", "version", "filename"])
def test_manifest_file_name_is_no_path_and_no_option(manifests: Path, key: str, text: str) -> None:
    with pytest.raises(ManifestError):
        read(manifests, **{key: text})


@pytest.mark.parametrize("text", ["1 --extra-index-url x", "1\\n-e .", "-r x", "", "1; x", "x @ y"])
@pytest.mark.parametrize("key", ["package", "package_version"])
def test_a_package_name_in_a_manifest_cannot_contain_pip_options(
    manifests: Path, key: str, text: str
) -> None:
    read(manifests, **{key: "com.q-x_y"})
    with pytest.raises(ManifestError):
        read(manifests, **{key: text})


@pytest.mark.parametrize("digits", [40, 64])  # git has SHA-1 and SHA-256
def test_a_hash_in_capitals_equals_the_same_in_small_letters(manifests: Path, digits: int) -> None:
    toolchain = read(manifests, sha256=SHA256.upper(), commit="C" * digits)
    first, second = toolchain.releases  # type: ignore[attr-defined]
    assert isinstance(first, FileRelease)
    assert isinstance(second, GitRelease)
    assert (first.sha256, second.commit) == (SHA256, "c" * digits)


@pytest.mark.parametrize(
    "text", ["x", SHA256[:-1], SHA256 + "0", "g" * 64, "--" + SHA256[2:], SHA256[:-1] + "g"]
)
def test_a_malformed_hash_in_a_manifest_is_refused(manifests: Path, text: str) -> None:
    with pytest.raises(ManifestError):
        read(manifests, sha256=text)
    with pytest.raises(ManifestError):
        read(manifests, commit=text)


def test_a_manifest_has_the_name_of_its_artifact(manifests: Path) -> None:
    with pytest.raises(ManifestError, match=r"toolchains/sdk\.toml"):
        read(manifests, name="ndk")


@pytest.mark.parametrize("url", ["--upload-pack=x", "-ux"])
def test_an_option_of_git_is_not_a_url(manifests: Path, url: str) -> None:
    with pytest.raises(ManifestError, match=r"toolchains/sdk\.toml"):
        read(manifests, url=url)


def write_lock(path: str = "a", sha256: str = SHA256) -> None:
    lock = Lock("sdk", "1", "u", 1, sha256, "today", (), (TreeEntry("a", 1, 0o444, SHA256),))
    data = encode_record(lock).replace(b'"path": "a"', f'"path": "{path}"'.encode())
    project_lock_path("sdk", "1").write_bytes(data.replace(SHA256.encode(), sha256.encode(), 1))


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_lock_with_a_path_outside_the_tree_is_refused(path: str) -> None:
    write_lock(path)
    with pytest.raises(ManifestError, match="cannot read the lock"):
        read_lock(project_lock_path("sdk", "1"))


def test_a_lock_of_another_schema_is_not_read(manifests: Path) -> None:
    write_lock()
    path = manifests / "locks" / "sdk-1.json"
    assert read_lock(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 2}))
    with pytest.raises(ManifestError, match=str(path)):
        read_lock(path)


ADOPTION = (
    '\n[adoption]\nvariable = "X"\nmarkers = []\nversion_file = "v"\nversion_pattern = "{}"\n'
)


@pytest.mark.parametrize("pattern", ["(", "a+", "(a)(b)", ""])
def test_a_version_pattern_needs_exactly_one_group(manifests: Path, pattern: str) -> None:
    file = manifests / "toolchains/sdk.toml"
    file.write_text(FILE.format(**GOOD) + ADOPTION.format("v(.+)"))
    read_toolchain("sdk")
    file.write_text(FILE.format(**GOOD) + ADOPTION.format(pattern))
    with pytest.raises(ManifestError, match=r"sdk\.toml"):
        read_toolchain("sdk")


PROFILE = '[p]\nsummary = "x"\nartifacts = []\n[p.variables]\n"{}" = "x"\n'


@pytest.mark.parametrize("name", ["A B;x", "A=B", "", "1A", "A\\nB", "$(id)"])
def test_a_name_of_a_variable_cannot_be_a_command(manifests: Path, name: str) -> None:
    (manifests / "profiles.toml").write_text(PROFILE.format("A_1"))
    assert read_profiles()["p"].variables == {"A_1": "x"}
    (manifests / "profiles.toml").write_text(PROFILE.format(name))
    with pytest.raises(ManifestError, match=r"profiles\.toml"):
        read_profiles()
    with pytest.raises(ValueError, match="not a valid name"):
        Profile("x", (), {}, ("A_1", name.replace("\\n", "\n")))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{sdk}/lib:{sdk}", "/r/lib:/r"),
        ("{", "{"),
        ("{{sdk}}", "{/r}"),
        ("{ndk}", None),
        ("{}", None),
        ("{sdk.__class__}", None),
        ("{sdk:>9}", None),
    ],
)
def test_a_profile_variable_can_only_refer_to_artifact_roots(text: str, value: str | None) -> None:
    profile = Profile("x", (ProfileArtifact("sdk"),), {"A": text})
    artifacts = (Provisioned("sdk", "1", Path("/r")),)
    if value is not None:
        assert compose_environment("p", profile, artifacts).variables == {"A": value}
        return
    with pytest.raises(ManifestError, match="profile p"):
        compose_environment("p", profile, artifacts)
