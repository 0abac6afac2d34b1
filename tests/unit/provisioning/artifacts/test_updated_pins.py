"""When a pin moves: recorded figures are taken over by the new version or removed, and its user
gets the lines that an update leaves.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from provisioning.artifacts.pins import (
    Change,
    list_by_hand,
    plan_baselines,
    rewrite_default,
    rewrite_release,
)
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.errors import ManifestError
from provisioning.manifest.reader import MANIFESTS_VARIABLE, Toolchain, parse_toml
from provisioning.manifest.releases import GitRelease

OF_BOTH = "executorch-1.5.1-qnn-runtime-2.49.40.toml"
OTHERS = (
    *("executorch-1.5.1-qnn-runtime-2.49.4.toml", "qnn-runtime-aarch64-2.49.40.toml"),
    *("qnn-runtime-2.49.401.toml", "qnn-runtime-2.49.40.1.toml"),
    "myqnn-runtime-2.49.40.toml",
)


@pytest.fixture
def baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path))
    folder = tmp_path / "baselines"
    folder.mkdir()
    for name in (OF_BOTH, *OTHERS, "qnn-runtime-2.49.40-lpai.toml"):
        (folder / name).write_text(f"# ü {name}\n", "utf-8")
    return folder


@pytest.mark.parametrize("carry", [True, False])
def test_figures_follow_a_pin_or_go(baselines: Path, *, carry: bool) -> None:
    changes = list(plan_baselines("qnn-runtime", "2.49.40", "2.50.1", carry=carry))
    shown = "".join(one.diff() for one in changes)
    assert (baselines / OF_BOTH).is_file()  # nothing is written yet
    for one in changes:
        one.write()
    moved = {
        OF_BOTH.replace("2.49.40", "2.50.1"): f"# ü {OF_BOTH}\n",
        "qnn-runtime-2.50.1-lpai.toml": "# ü qnn-runtime-2.49.40-lpai.toml\n",
    }
    kept = {name: f"# ü {name}\n" for name in OTHERS}
    found = {path.name: path.read_text("utf-8") for path in baselines.iterdir()}
    assert found == (kept | moved if carry else kept)
    assert ("rename " in shown) == carry
    assert OF_BOTH in shown


@pytest.mark.parametrize(
    ("old", "before", "after", "diff"),
    [
        (None, "1\n", "2\n", "-1\n+2\n"),
        (None, "1\n", "1\n", ""),
        ("old", "1\n", "2\n", "-1\n+2\n"),
        ("old", "1\n", "1\n", "rename "),
        (None, "1\n", "", "-1\n"),
    ],
)
def test_a_change_is_shown_as_what_it_does(
    baselines: Path, old: str | None, before: str, after: str, diff: str
) -> None:
    shown = Change(baselines / "new", before, after, old and baselines / old).diff()
    assert diff in shown
    assert bool(diff) == bool(shown)
    assert ("rename" in shown) == diff.startswith("rename")
    assert ("/old" in shown) == bool(old)


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
"""


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_only_the_row_of_the_release_is_rewritten_and_the_default_if_it_is_it(version: str) -> None:
    text = ROWS.format(one="1" * 40, two="2" * 40)
    toolchain = parse_toml(text, Toolchain)
    request = ArtifactRequest(toolchain, toolchain.release(version))
    old = request.release_as(GitRelease)
    new = msgspec.structs.replace(
        old, version="3.0", url=old.url.replace(version, "3.0"), commit="3" * 40
    )
    head, one, two, three = text.split("[[releases]]")
    if version == "1.0":
        new = msgspec.structs.replace(new, links={"lib.so": "lib-bb.so.9"})
        one = one.replace("1" * 40, "3" * 40).replace("1.0", "3.0").replace("-aa", "-bb")
    else:
        head = head.replace('"2.0"', '"3.0"')
        two = two.replace("2" * 40, "3" * 40).replace("2.0", "3.0")
    after, found = rewrite_release(text, request, new)
    assert after == "[[releases]]".join((head, one, two, three))
    note = {"note": "of 3.0"} if version == "1.0" else {}
    assert found == msgspec.structs.replace(new, write=note)


def test_a_link_whose_name_has_the_version_is_renamed() -> None:
    text = ROWS.format(one="1" * 40, two="2" * 40).replace('"lib.so"', '"lib-1.0.so"')
    toolchain = parse_toml(text, Toolchain)
    request = ArtifactRequest(toolchain, toolchain.release("1.0"))
    old = request.release_as(GitRelease)
    links = {"lib-3.0.so": "lib-aa.so.9"}
    url = old.url.replace("1.0", "3.0")
    new = msgspec.structs.replace(old, version="3.0", url=url, links=links)
    assert rewrite_release(text, request, new)[1].links == links


def test_a_default_that_is_written_twice_is_not_rewritten() -> None:
    text = ROWS.format(one="1" * 40, two="2" * 40)
    toolchain = parse_toml(text, Toolchain)
    request = ArtifactRequest(toolchain, toolchain.release("2.0"))
    assert rewrite_default(text, request, "3.0") == text.replace('= "2.0"  #', '= "3.0"  #')
    with pytest.raises(ManifestError, match="cannot be rewritten"):
        rewrite_default(f'{text}# default = "2.0"\n', request, "3.0")


def test_a_change_shows_no_password(baselines: Path) -> None:
    url = "https://user:secret@example.com/sdk.zip"
    shown = Change(baselines / "new", "", f'url = "{url}"\n').diff()
    assert "example.com" in shown
    assert "secret" not in shown


def test_lines_of_the_old_version_are_listed_without_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifests").mkdir()
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path / "manifests"))
    lines = [
        '"executorch==1.5.1",',
        '"asn1crypto>=1.5.1",',
        '"executorch-tools==1.5.1",',
        '"executorch==1.5.10",',
        '"asn1crypto==1.5.1", # of executorch 1.5.1',
    ]
    (tmp_path / "pyproject.toml").write_text("\n".join(lines))
    assert list_by_hand([], "executorch", "1.5.1") == [
        f"pyproject.toml:1: {lines[0]}",
        f"pyproject.toml:5: {lines[4]}",
    ]


def test_every_place_that_may_name_a_version_is_searched_except_what_the_plan_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path / "manifests"))
    places = [
        "pyproject.toml",
        "manifests/a.toml",
        "manifests/policies/a.toml",
        "manifests/toolchains/a.toml",
        ".github/workflows/a.yml",
        *(f"{page}.md" for page in ("docs/guide/a", "README")),  # made here
    ]
    others = ["manifests/locks/a.json", ".github/a.yml", "docs/a.md", "src/a.py"]
    for place in (*places, *others, "manifests/old.toml", "manifests/new.toml"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("# sdk\n  sdk 1.2.3 is used, ümlaut \n", encoding="utf-8")
    manifests = tmp_path / "manifests"
    plan = [Change(manifests / "new.toml", "a", "b", manifests / "old.toml")]
    found = list_by_hand(plan, "sdk", "1.2.3")
    assert found == [f"{place}:2: sdk 1.2.3 is used, ümlaut" for place in places]
    assert list_by_hand(plan, "sdk", "1.2") == list_by_hand(plan, "sdk", "2.3") == []
