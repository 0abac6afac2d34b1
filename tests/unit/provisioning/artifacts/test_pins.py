"""Plans that move a pin: its manifest, lock and recorded figures, and the lines that are left."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from provisioning.artifacts.lockfile import project_lock_path
from provisioning.artifacts.pins import (
    Change,
    list_by_hand,
    plan_baselines,
    plan_lock,
    plan_update,
    rewrite_default,
    rewrite_release,
)
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.errors import ManifestError, UsageError
from provisioning.files import hash_file
from provisioning.manifest.reader import Toolchain, manifests_root, parse_toml, read_toolchain
from provisioning.manifest.releases import GitRelease
from tests.build.artifacts import FILES, Workspace, ask, commit, pack_zip, write
from tests.build.artifacts import git as run
from tests.stand_ins import toolchains as made

OF_BOTH = "executorch-1.5.1-qnn-runtime-2.49.40.toml"
OTHERS = (
    *("executorch-1.5.1-qnn-runtime-2.49.4.toml", "qnn-runtime-aarch64-2.49.40.toml"),
    *("qnn-runtime-2.49.401.toml", "qnn-runtime-2.49.40.1.toml", "myqnn-runtime-2.49.40.toml"),
)


@pytest.mark.parametrize("carry", [True, False])
def test_update_renames_or_removes_the_recorded_figures_of_a_pin(
    sdk: Workspace, *, carry: bool
) -> None:
    folder = sdk.manifests / "baselines"
    for name in (OF_BOTH, *OTHERS, "qnn-runtime-2.49.40-lpai.toml", "qnn-runtime-2.49.40.txt"):
        write(folder / name, f"# ü {name}\n")
    before = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    changes = list(plan_baselines("qnn-runtime", "2.49.40", "2.50.1", carry=carry))
    assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == before
    shown = "".join(change.diff() for change in changes)
    assert (OF_BOTH in shown, "rename " in shown) == (True, carry)
    for change in changes:
        change.write()
    unchanged = {
        name: text for name, text in before.items() if name in (*OTHERS, "qnn-runtime-2.49.40.txt")
    }
    moved = {name.replace("2.49.40", "2.50.1"): before[name] for name in before.keys() - unchanged}
    files = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert files == (unchanged | moved if carry else unchanged)


ROWS = """name = "sdk"
summary = "tiny"
default = "2.0"  # not 1.0
[licence]
name = "free"
text = "none"
# comes first
[[releases]]
source = "git"
version = "1.0"
url = "https://h/r-1.0.git"
commit = "{one}"  # of 1.0
write = {{ "note" = "of 1.0" }}
links = {{ "lib.so" = "lib-aa.so.9" }}
[[releases]]
source = "git"
version = "2.0"
url = "https://h/r-2.0.git"
commit = "{two}"
[[releases]]  # older
source = "git"
version = "1.0.1"
url = "https://h/r-1.0.git"
commit = "{one}"
""".format(one="1" * 40, two="2" * 40)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_update_rewrites_only_its_release_row_and_the_default_if_it_names_it(
    version: str,
) -> None:
    toolchain = parse_toml(ROWS, Toolchain)
    request = ArtifactRequest(toolchain, toolchain.release(version))
    old = request.release_as(GitRelease)
    url = old.url.replace(version, "3.0")
    new = msgspec.structs.replace(old, version="3.0", url=url, commit="3" * 40)
    head, first, two, three = ROWS.split("[[releases]]")
    if version == "1.0":
        new = msgspec.structs.replace(new, links={"lib.so": "lib-bb.so.9"})
        first = first.replace("1" * 40, "3" * 40).replace("1.0", "3.0").replace("-aa", "-bb")
    else:
        head = head.replace('"2.0"', '"3.0"')
        two = two.replace("2" * 40, "3" * 40).replace("2.0", "3.0")
    after, release = rewrite_release(ROWS, request, new)
    assert after == "[[releases]]".join((head, first, two, three))
    note = {"note": "of 3.0"} if version == "1.0" else {}
    assert release == msgspec.structs.replace(new, write=note)
    with pytest.raises(ManifestError, match="cannot be rewritten"):
        rewrite_default(f'{ROWS}# default = "2.0"\n', request, "3.0")


def test_lines_of_the_old_version_are_listed_except_what_the_plan_changes(sdk: Workspace) -> None:
    places = [
        *("pyproject.toml", "manifests/a.toml", "manifests/policies/a.toml"),
        *("manifests/toolchains/a.toml", ".github/workflows/a.yml"),
        *(f"{page}.md" for page in ("docs/guide/a", "README")),  # made here
    ]
    unlisted = ["manifests/locks/a.json", ".github/a.yml", "docs/a.md", "src/a.py"]
    for place in (*places, *unlisted, "manifests/old.toml", "manifests/new.toml"):
        write(sdk.root / place, "# sdk\n  sdk 1.2.3 is used, ümlaut \n")
    plan = [Change(sdk.manifests / "new.toml", "a", "b", sdk.manifests / "old.toml")]
    sdk.manifest.unlink()
    lines = list_by_hand(plan, "sdk", "1.2.3")
    assert lines == [f"{place}:2: sdk 1.2.3 is used, ümlaut" for place in places]
    assert list_by_hand(plan, "sdk", "1.2") == list_by_hand(plan, "sdk", "2.3") == []


@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("version", ["2.43.0.260128", "v2.43.0.260128"])
def test_version_that_the_manifest_has_becomes_the_default(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch, version: str, carry: bool
) -> None:
    monkeypatch.delenv("QNN_CI_MANIFESTS")
    shutil.copytree(manifests_root(), sdk.root / "copy")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(sdk.root / "copy"))
    before = read_toolchain("qnn-sdk")
    assert plan_update(ask("qnn-sdk"), before.default, sdk.store, sdk.progress) == []
    figures = sdk.root / "copy/baselines"
    old, new = (
        figures / f"qnn-sdk-{version_name}.toml"
        for version_name in (before.default, "2.43.0.260128")
    )
    write(old, "# figures\n")
    for change in plan_update(ask("qnn-sdk"), version, sdk.store, sdk.progress, carry=carry):
        change.write()
    assert read_toolchain("qnn-sdk") == msgspec.structs.replace(before, default="2.43.0.260128")
    assert (old.exists(), new.exists()) == (False, carry)
    with pytest.raises(ValueError, match=r"2\.37\.0\.250724"):
        msgspec.structs.replace(before, releases=(*before.releases, before.release()))


def test_hash_that_is_not_published_is_written_into_the_lock_alone(sdk: Workspace) -> None:
    for version in ("1.3.0", "1.2.3"):
        data = pack_zip(FILES | {"sdk.yaml": f"version: {version}\n".encode()})
        path = write(sdk.root / f"vendor-{version}.zip", data)
    sdk.describe(archive=path, filename="sdk-1.2.3.zip", pinned=False)
    sdk.lock()
    for version in ("../1.3", 'x"y', "a/b", "1.3\n"):
        with pytest.raises(UsageError, match="version"):
            plan_update(sdk.ask(), version, sdk.store, sdk.progress)
    for change in plan_update(sdk.ask(trust=True), "1.3.0", sdk.store, sdk.progress):
        change.write()
    lock = sdk.ask().pinned(sdk.store).lock
    assert lock
    assert (lock.version, lock.sha256) == ("1.3.0", hash_file(sdk.root / "vendor-1.3.0.zip"))
    assert "sha256" not in sdk.manifest.read_text()
    assert not project_lock_path("sdk", "1.2.3").exists()


def test_update_of_a_repository_moves_its_row_alone(sdk: Workspace) -> None:
    repository = sdk.root / "code"
    heads = {}
    for tag in ("v1.0", "v1.1"):
        heads[tag] = commit(repository, {"tag": tag})
        run(repository, "tag", tag)
    made.describe_git(sdk.manifests, f"file://{repository}", heads["v1.0"])
    request = ask("executorch")
    assert plan_update(request, "1.0", sdk.store, sdk.progress) == []
    (change,) = plan_update(request, "", sdk.store, sdk.progress)
    change.write()
    new = ask("executorch").release
    assert new == msgspec.structs.replace(
        request.release, version="1.1", tag="v1.1", commit=heads["v1.1"]
    )
    assert [path.name for path in sdk.store.downloads.iterdir()] == []
    assert not (sdk.manifests / "locks").exists()
    with pytest.raises(UsageError, match="executorch cannot be locked"):
        plan_lock(request, sdk.store, sdk.progress)
