"""Profiles that are like another one; the SoCs; and threads that decode at once: msgspec dies of
two that are the first to do so into a Struct.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from provisioning.__main__ import main
from provisioning.artifacts.environment import parse_selection
from provisioning.artifacts.sources import Options
from provisioning.console.process import run_process
from provisioning.doctor.policies import read_doctor_policy
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest import reader
from provisioning.manifest.reader import (
    GUIDE,
    MANIFESTS_VARIABLE,
    Profile,
    ProfileArtifact,
    find_faults,
    find_line,
    list_toolchains,
    manifests_root,
    read_policy,
    read_profile,
    read_profiles,
    read_toolchain,
    suggest_near,
)
from provisioning.manifest.targets import (
    find_any_soc,
    find_htp,
    find_soc,
    is_same_soc,
    name_in,
    name_socs,
    read_all_socs,
    read_htp_socs,
    read_litert_socs,
    read_socs,
)


def test_a_profile_overrides_the_profile_that_it_extends() -> None:
    base = Profile(
        "base",
        (ProfileArtifact("sdk", version="1"), ProfileArtifact("ndk", version="1")),
        {"A": "base", "B": "base"},
        ("HOME",),
    )
    extension = Profile(
        "own", (ProfileArtifact("sdk", version="2"),), {"B": "own"}, ("TERM",), "base"
    )
    merged = extension.over(base)
    assert [(artifact.name, artifact.version) for artifact in merged.artifacts] == [
        ("sdk", "2"),
        ("ndk", "1"),
    ]
    assert merged.variables == {"A": "base", "B": "own"}
    assert (merged.summary, merged.from_caller, merged.like) == ("own", ("HOME", "TERM"), "base")


def test_the_version_in_the_variable_comes_before_that_of_a_profile() -> None:
    toolchain = read_toolchain("qnn-sdk")
    default, (first, *_, last) = (
        toolchain.default,
        [release.version for release in toolchain.releases],
    )
    assert first != last
    for value, profile, expected_version in (
        (first, last, first),
        (last, "", last),
        ("", first, first),
        ("", "", default),
        ("pinned", last, last),  # a word, not a version
        ("/opt/sdk", last, last),
    ):
        chosen = toolchain.chosen_release({"QNN_CI_SDK": value}, profile)
        assert (value, profile, chosen.version) == (value, profile, expected_version)


@pytest.mark.parametrize(
    ("choice", "root", "named"),
    [
        ("/a", "/b", ("QNN_CI_SDK", "/a")),
        ("/a", "", ("QNN_CI_SDK", "/a")),
        ("pinned", "/b", ("QNN_SDK_ROOT", "/b")),
        ("", "/b", ("QNN_SDK_ROOT", "/b")),
        ("2.43.0", "", ("", "")),
    ],
)
def test_an_installation_is_found_by_the_variable_that_points_to_it(
    choice: str, root: str, named: tuple[str, str]
) -> None:
    adoption = read_toolchain("qnn-sdk").adoption
    assert adoption.find_named({"QNN_CI_SDK": choice, "QNN_SDK_ROOT": root}) == named


def test_a_profile_with_plus_artifact_at_version_changes_only_that_version() -> None:
    plain = read_profile("android")
    assert plain == read_profiles()["android"]
    changed = read_profile("android+android-ndk@r99+qnn-sdk@9.9")
    before = {artifact.name: artifact.version for artifact in plain.artifacts}
    after = {artifact.name: artifact.version for artifact in changed.artifacts}
    assert after == {**before, "android-ndk": "r99", "qnn-sdk": "9.9"}
    assert (changed.variables, changed.like) == (plain.variables, "android")
    assert read_profile("direct-lpai").like == "direct"
    assert read_profile("direct-lpai+qnn-sdk@9.9").like == "direct"
    for wrong in ("android+torch@2", "android+qnn-sdk", "android+qnn-sdk@"):
        with pytest.raises(UsageError, match="ARTIFACT@VERSION"):
            read_profile(wrong)
    with pytest.raises(UsageError, match="no profile"):
        read_profile("none+qnn-sdk@1")


@pytest.mark.parametrize("name", list_toolchains())
def test_a_version_without_a_release_tells_how_to_get_it(name: str) -> None:
    toolchain = read_toolchain(name)
    with pytest.raises(UsageError, match=f"{name} has no version none") as caught:
        toolchain.release("none")
    offered = [release.version for release in toolchain.releases]
    offered += [GUIDE]
    offered += filter(None, [toolchain.adoption.variable])
    assert [word for word in offered if word not in caught.value.fix] == []


def test_an_unknown_name_is_answered_with_similar_ones() -> None:
    for find, name, near in (
        (read_profile, "android-r27", "android"),
        (read_toolchain, "andriod-ndk", "android-ndk"),
        (find_soc, "sm8651", "SM8650"),
        (find_soc, "sm8560", "SM8650?"),
        (lambda word: parse_selection([word], Options()), "emulatr", "emulator"),
    ):
        with pytest.raises(UsageError, match=name) as caught:
            find(name)  # type: ignore[operator]
        assert near in caught.value.fix.partition("mean ")[2]
    with pytest.raises(UsageError) as unlike:
        read_profile("zzz")
    assert "did you mean" not in unlike.value.fix
    assert "manifests/profiles.toml" in unlike.value.fix


SCRIPT = """
import sys, threading
import msgspec
from provisioning.manifest.reader import convert_toml

sys.setswitchinterval(1e-6)
for number in range(100):
    row = msgspec.defstruct(f"Row{number}", [(f"a{one}", dict[str, int]) for one in range(5)])
    kind = msgspec.defstruct(f"Kind{number}", [(f"f{one}", row) for one in range(8)])
    value = {f"f{one}": {f"a{each}": {} for each in range(5)} for one in range(8)}
    start = threading.Barrier(4)
    threads = [
        threading.Thread(target=lambda: (start.wait(), convert_toml(value, kind, "")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_msgspec_structs_can_first_be_decoded_in_threads() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT], check=False).returncode == 0


PRINT_TABLE = """
import json
from executorch.backends.qualcomm.serialization.qc_schema import _soc_info_table as table
rows = {
    chip.name: [
        chip.value,
        info.htp_info.htp_arch.value,
        info.htp_info.vtcm_size_in_mb,
        info.lpai_info and info.lpai_info.lpai_hardware_version.value,
    ]
    for chip, info in table.items()
}
print("table", json.dumps(rows))
"""


def test_soc_ids_are_unique() -> None:
    assert len({soc.id for soc in read_socs().values()}) == len(read_socs())


def test_names_of_one_soc_number_stand_for_the_same_soc() -> None:
    socs = read_all_socs()
    assert len(socs) > len(read_socs()) == len({*socs} & {*read_socs()})
    for name, soc in socs.items():
        assert name == name.upper()
        first = socs[name_socs()[soc.id]]
        assert (first.hexagon, first.vtcm_mb, first.float16) == (
            soc.hexagon,
            soc.vtcm_mb,
            soc.float16,
        )
        assert bool(soc.hexagon) == bool(soc.vtcm_mb)
        assert soc.compiled or not soc.hexagon
        assert soc.hexagon or not soc.float16


@pytest.mark.parametrize(
    ("name", "other_name", "is_same"),
    [
        ("SA8775", "SA8255", True),
        ("SA8775P", "SA8650", True),
        ("qcs6490", "QCM6490", True),
        ("qcm4325", "QCM4325", True),
        ("SM8650", "SM8750", False),
        ("SM9999", "sm9999", True),  # unknown names are compared as texts
        ("SM9999", "SM8650", False),
    ],
)
def test_socs_are_compared_by_their_numbers(name: str, other_name: str, is_same: bool) -> None:
    assert is_same_soc(name, other_name) is is_same


@pytest.mark.parametrize(
    ("name", "in_executorch", "in_litert", "in_onnx"),
    [
        ("SA8775P", "SA8255", "SA8255", "SA8255"),
        ("SA8775", "SA8255", "SA8775", "SA8775"),
        ("qcs6490", "QCM6490", "QCM6490", "QCM6490"),
        ("sm7435", "sm7435", "SM7435", "SM7435"),  # ExecuTorch has none of its number
        ("SM8975", "SM8975", "SM8975", "SM8975"),
        ("SM8*", "SM8*", "SM8*", "SM8*"),
        ("SM9999", "SM9999", "SM9999", "SM9999"),
        ("snapdragon 8 gen 3", "SM8650", "SM8650", "SM8650"),
    ],
)
def test_each_lane_has_its_name_for_an_soc(
    name: str, in_executorch: str, in_litert: str, in_onnx: str
) -> None:
    tables = (read_socs(), read_litert_socs(), read_htp_socs())
    assert [name_in(name, table) for table in tables] == [in_executorch, in_litert, in_onnx]


def test_other_names_are_no_rows_and_stand_for_one_row() -> None:
    socs = read_all_socs()
    other_names = [name for soc in socs.values() for name in soc.also_called]
    assert len(other_names) == len({*other_names}) == len({*other_names} - {*socs})


def test_an_soc_that_executorch_does_not_know_is_found_where_files_are_read() -> None:
    assert find_any_soc("sm6650").id == 74
    assert find_htp("sm6650").hexagon == 73
    with pytest.raises(UsageError, match="there is no SoC 'SM6650'") as refused:
        find_soc("SM6650")
    assert "`qnn-ci inspect --soc SM6650` shows which lanes take it" in refused.value.fix
    with pytest.raises(UsageError) as unknown:
        find_any_soc("SM6659")
    assert "did you mean SM6650" in unknown.value.fix
    assert "inspect" not in unknown.value.fix  # which knows no more of it
    with pytest.raises(UsageError, match="QNN knows no HTP of SDM865"):
        find_htp("SDM865")


@pytest.mark.skipif(find_spec("executorch") is None, reason="executorch is not installed")
def test_the_soc_table_is_that_of_the_installed_executorch() -> None:
    ended = run_process([sys.executable, "-c", PRINT_TABLE], timeout_s=1200)
    line = next(line for line in ended.output.splitlines() if line.startswith("table "))
    ours = {name: [s.id, s.hexagon, s.vtcm_mb, s.lpai] for name, s in read_socs().items()}
    assert json.loads(line.removeprefix("table ")) == ours


@pytest.mark.parametrize(
    ("like", "is_wrong"), [("base", False), ("gone", True), ("second", True), ("third", True)]
)
def test_a_profile_can_only_extend_one_that_extends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, like: str, is_wrong: bool
) -> None:
    rows = {"base": "", "second": "base", "third": like}
    text = "".join(
        f'[{name}]\nsummary = "{name}"\nartifacts = []\n' + (f'like = "{word}"\n' * bool(word))
        for name, word in rows.items()
    )
    (tmp_path / "profiles.toml").write_text(text)
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path))
    if not is_wrong:
        assert [*read_profiles()] == [*rows]
        return
    with pytest.raises(ManifestError, match=f'profile third has `like = "{like}"`'):
        read_profiles()


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("ndk", "android-ndk"),
        ("sdk", "hexagon-sdk or qnn-sdk"),
        ("executorsh", "executorch"),
        ("and", ""),  # letters of a part
        ("up", ""),  # too short for a part
    ],
)
def test_a_suggestion_prefers_names_that_contain_the_word(word: str, near: str) -> None:
    names = ("android-ndk", "executorch", "hexagon-sdk", "qnn-sdk", "set-up")
    assert suggest_near(word, names) == (f"did you mean {near}? " if near else "")
    assert suggest_near("SM8651", ["SM8650", "QCS1"]) == "did you mean SM8650? "
    assert suggest_near("SM8651", ["SM8650", "SM8655"]) == "did you mean SM8655 or SM8650? "


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("models",), 0),
        (("models", "net.py:make", "path"), 2),
        (("models", "a b", "path"), 4),
        (("models", "a b", "limits", "8a8w", "min"), 5),
        (("override", 1, "a.b"), 11),
        (("twice",), 13),  # the first of two equal ones
    ],
)
def test_a_mistake_is_shown_at_the_line_of_its_key(path: tuple[str | int, ...], line: int) -> None:
    text = """[models."net.py:make"]
path = 1
[models.'a b']
path = 2
limits.8a8w.min = 3
  [models.plain-1] # a comment
soc = 4
[[override]]
"a.b" = 5
  [[override]]
"a.b" = 6
'c.d' = 7
[twice]
[twice]
"""
    assert find_line(text, path) == line


def test_manifests_come_from_the_variable_the_installation_or_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MANIFESTS_VARIABLE, raising=False)
    monkeypatch.setattr(reader, "__file__", str(tmp_path / "provisioning/manifest/reader.py"))
    assert manifests_root() == tmp_path / "manifests"
    (tmp_path / "provisioning/manifests").mkdir(parents=True)
    assert manifests_root() == tmp_path / "provisioning/manifests"
    monkeypatch.setenv(MANIFESTS_VARIABLE, "/mine")
    assert manifests_root() == Path("/mine")


class Cat(msgspec.Struct, tag="cat", forbid_unknown_fields=True):
    name: str


class Dog(msgspec.Struct, tag="dog", forbid_unknown_fields=True):
    name: str


class Place(msgspec.Struct, forbid_unknown_fields=True):
    near: str
    rank: float = 0
    size: Annotated[int, msgspec.Meta(ge=1)] = 1


class Checked(msgspec.Struct, forbid_unknown_fields=True):
    is_near: bool = msgspec.field(default=False, name="near")
    pattern: str = ""

    def __post_init__(self) -> None:
        if self.pattern == "(":
            raise ValueError("no pattern")


@pytest.mark.parametrize(
    ("value", "kind", "faults"),
    [
        ([{"near": True}, {"pattern": "("}], tuple[Checked, ...], [((1,), "no pattern")]),
        ({"is_near": True}, Checked, [(("is_near",), "did you mean near?")]),
        ({"near": "a"}, Place, []),
        ({}, Place, [((), "the key near is missing")]),
        ({"near": "a", "nears": 1}, Place, [(("nears",), "unknown key")]),
        ({"near": "a", "rank": math.inf}, Place, [(("rank",), "inf is not a finite number")]),
        ({"near": 1, "rank": "x"}, Place, [(("near",), "str"), (("rank",), "float")]),
        ({"near": "a", "size": 0}, Place, [(("size",), ">= 1")]),
        ([{"near": "a"}, {}], tuple[Place, ...], [((1,), "the key near is missing")]),
        ({"A": 1}, dict[Literal["a"], int], [(("A",), "valid: a")]),
        ("linear", Literal["line", "ring"], [((), "did you mean line?")]),
        ("x", Literal["line", "ring"], [((), "valid: line, ring")]),
        ({"type": "cat", "name": "a"}, Cat, []),
        ({"type": "dog", "name": "a"}, Cat | Dog, []),
        ({"type": "cow", "name": "a"}, Cat | Dog, [((), "cow")]),
    ],
)
def test_each_fault_of_a_table_has_its_place(
    value: Any, kind: Any, faults: list[tuple[tuple[str | int, ...], str]]
) -> None:
    faults_found = list(find_faults(value, kind))
    assert [place for place, _ in faults_found] == [place for place, _ in faults]
    for (_, message), (_, why) in zip(faults_found, faults, strict=True):
        assert why in message


@pytest.mark.parametrize("is_users", [True, False])
def test_a_missing_file_is_blamed_on_the_variable_only_if_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_users: bool
) -> None:
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ManifestError) as caught:
        read_policy("place", Place, tmp_path / "mine.toml" if is_users else None)
    assert (caught.value.fix == f"correct {MANIFESTS_VARIABLE}") is not is_users


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"near = 1\n", "line 1, near: "),
        (b"\n\nrank = 1\n", "the file: the key near is missing"),
        (b"near = \n", "line 1"),
        (b'# by\nnear = "caf\xe9"\n', "line 2 is not in UTF-8 (byte 0xe9)"),
        (b"near = " + b"[" * 100_000, "nested"),
    ],
)
def test_a_file_that_does_not_match_its_schema_is_named(
    tmp_path: Path, data: bytes, why: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b'\xef\xbb\xbfnear = "by"\n')  # with a mark of its byte order
    assert read_policy("place", Place, path) == Place("by")
    path.write_bytes(data)
    with pytest.raises(ManifestError) as caught:
        read_policy("place", Place, path)
    assert caught.value.what == "manifest mine.toml does not match its schema"
    assert why in caught.value.why
    assert str(path) in caught.value.fix
    assert "reference/policy" in caught.value.fix


def test_a_public_cache_leaves_out_artifacts_whose_licence_forbids_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    assert main(["cache", "key", "--json", *list_toolchains()]) == 0
    left_out = json.loads(capsys.readouterr().out)["left_out"]
    restricted = {name for name, why in left_out.items() if "licence does not allow" in why}
    assert restricted >= {
        "qnn-sdk",
        "qnn-runtime-aarch64",
        "qnn-runtime",
        "qnn-android",
        "hexagon-sdk",
        "android-ndk",
    }
    assert restricted.isdisjoint({"executorch", "libcxx", "libatomic"})


def test_the_doctors_host_libraries_are_those_of_libcxx() -> None:
    adoption = read_toolchain("libcxx").adoption
    libraries = {Path(marker).name for marker in adoption.markers}
    assert {*read_doctor_policy().host_libraries} == libraries
