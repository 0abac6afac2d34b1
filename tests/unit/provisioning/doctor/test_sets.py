"""Sets of libraries in one staged tree: which belong together, and what each is judged by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.doctor.checks.coherence import FAMILIES, split_sets
from provisioning.doctor.checks.device import STAGINGS
from provisioning.doctor.checks.elf import Placed, judge
from provisioning.doctor.checks.files import find_groups, judge_group
from provisioning.doctor.facts import STAGING, FileFacts, TreeFacts, parse_qnn_name
from provisioning.doctor.fitness import choose_policy
from provisioning.doctor.policies import elf_policy, read_elf_policies
from provisioning.doctor.registry import Severity
from provisioning.doctor.survey.tree import find_min_sdk, survey_tree
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, Defect, ElfFacts
from provisioning.elf.qnn_build import QnnBuild
from provisioning.elf.reader import read_elf
from provisioning.errors import UsageError
from tests.unit.provisioning.doctor import cases
from tests.unit.provisioning.doctor.cases import BUILD, NOTE, OTHER, elf, file, skel, within

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"
LIBS = "app/src/main/jniLibs/arm64-v8a"
DSP = "app/src/main/assets/hexagon-v79"


def at(place: str, build: QnnBuild = BUILD) -> tuple[FileFacts, FileFacts]:
    return file("libQnnHtp.so", build, place), file("libQnnHtpV79Stub.so", build, place)


def dsp(place: str, build: QnnBuild = BUILD) -> FileFacts:
    return replace(skel("libQnnHtpV79Skel.so", 0x79, place), build=build)


def staged(*files: FileFacts, **change: object) -> TreeFacts:
    return replace(TreeFacts(Path("/stage"), files), **change)


def find_ids(tree: TreeFacts, soc: tuple[str, int] | None = None) -> list[str]:
    case = within(soc=soc, trees={STAGING: tree})
    findings = [*FAMILIES.judge_all(case), *STAGINGS.judge_all(case)]
    return sorted({finding.id for finding in findings})


def test_libraries_and_skels_of_two_directories_are_one_set() -> None:
    for place in (LIBS, DSP, "", "other/place"):
        files = (*at(LIBS), dsp(place))
        assert [*split_sets(files).values()] == [files]
        assert find_ids(staged(*files)) == []
        assert find_ids(staged(*at(LIBS), dsp(place, OTHER))) == ["QNN301"]
    assert split_sets(()) == {"": ()}


def test_library_sets_of_two_versions_are_judged_separately() -> None:
    sets = [
        (*at(f"{version}/lib", build), dsp(f"{version}/dsp", build))
        for version, build in (("2.33", OTHER), ("2.34", BUILD))
    ]
    files = tuple(member for members in sets for member in members)
    assert [*split_sets(files).values()] == sets
    assert find_ids(staged(*files)) == []
    assert find_ids(staged(*sets[0], *at("2.34/lib"), dsp("2.34/dsp", OTHER))) == ["QNN301"]


def test_a_shared_skel_directory_belongs_to_each_library_set() -> None:
    shared = dsp("lib/hexagon-v79/unsigned")
    android, linux = at("lib/aarch64-android"), at("lib/aarch64-oe-linux-gcc11.2")
    sets = split_sets((*android, *linux, shared))
    assert [*sets.values()] == [(*android, shared), (*linux, shared)]


def test_a_program_is_compared_with_the_set_next_to_it() -> None:
    def ids(*places: str) -> list[str]:
        lowered = tuple(
            FileFacts(f"{place}/m.pte", Path(f"/stage/{place}/m.pte"), 1, build=BUILD)
            for place in places
        )
        return find_ids(staged(*at("old/lib", OTHER), *at("new/lib"), lowered=lowered))

    assert "QNN313" in ids("old/assets")
    assert "QNN313" not in ids("new/assets")


def test_thousands_of_programs_are_judged_one_by_one() -> None:
    """Each was compared with a set that had been made for it of all files, which took hours."""
    lowered = tuple(
        FileFacts(f"assets/{number}/m.pte", Path(f"/stage/{number}/m.pte"), 1, build=BUILD)
        for number in range(10_000)
    )
    libraries = tuple(dsp(f"lib/{number}", OTHER) for number in range(5_000))
    tree = staged(*at("lib", OTHER), *libraries, lowered=lowered)
    findings = list(STAGINGS.judge_all(within(trees={STAGING: tree})))
    assert sum(finding.id == "QNN313" for finding in findings) == len(lowered)


def test_stubs_without_skels_are_a_warning_if_the_device_may_have_them() -> None:
    stubs = [file(f"libQnnHtpV{version}Stub.so") for version in (75, 79)]
    assert find_ids(staged(*stubs)) == ["QNN317"]
    assert find_ids(staged(*stubs, dsp(""))) == ["QNN304"]
    assert find_ids(staged(*stubs, dsp("")), ("SM8750", 79)) == []


def test_a_missing_fastrpc_library_is_one_finding_per_set() -> None:
    needs = ("libcdsprpc.so", "libc.so.6")
    stubs = [
        file(f"libQnnHtpV{version}Stub.so", machine=EM_AARCH64, needed=needs)
        for version in (75, 79)
    ]
    case = within(trees={STAGING: staged(*stubs, file("libcdsprpc.so.1", machine=EM_AARCH64))})
    (missing,) = [finding for finding in STAGINGS.judge_all(case) if finding.id == "QNN325"]
    assert missing.subject == "libQnnHtpV75Stub.so, libQnnHtpV79Stub.so"
    assert "libcdsprpc.so.1" in missing.what
    tree = staged(*stubs, file("libcdsprpc.so.1", machine=EM_AARCH64))
    assert missing.where == str(tree.root)
    tree = staged(stubs[0], file("libcdsprpc.so.2"), file("libcdsprpc.so.1"))
    (missing,) = [
        finding
        for finding in STAGINGS.judge_all(within(trees={STAGING: tree}))
        if finding.id == "QNN325"
    ]
    assert (missing.subject, missing.where) == ("libQnnHtpV75Stub.so", str(stubs[0].path))
    assert "only libcdsprpc.so.1" in missing.what


@pytest.mark.parametrize(
    ("staged_too", "machine", "needed"),
    [
        ((), EM_AARCH64, ("libcdsprpc.so", "libc.so.6")),
        (("libcdsprpc.so",), EM_AARCH64, ("libcdsprpc.so", "libc.so.6")),
        (("libcdsprpc.so", "libcdsprpc.so.1"), EM_AARCH64, ("libcdsprpc.so", "libc.so.6")),
        (("libcdsprpc.so.1",), EM_AARCH64, ("libcdsprpc.so", "libc.so")),
        (("libcdsprpc.so.1",), EM_AARCH64, ("libc.so.6",)),
        (("libcdsprpc.so.1",), EM_X86_64, ("libcdsprpc.so", "libc.so.6")),
    ],
)
def test_missing_fastrpc_is_no_finding_if_staged_or_not_needed(
    staged_too: tuple[str, ...], machine: int, needed: tuple[str, ...]
) -> None:
    stub = file("libQnnHtpV75Stub.so", machine=machine, needed=needed)
    staged_files = [file(name, machine=EM_AARCH64) for name in staged_too]
    case = within(trees={STAGING: staged(stub, *staged_files)})
    assert "QNN325" not in {finding.id for finding in STAGINGS.judge_all(case)}


def judge_level(level: int, min_sdk: int | None) -> list[tuple[str, Severity]]:
    header = elf().program_headers
    facts = elf(machine=EM_AARCH64, android=NOTE._replace(api_level=level), program_headers=header)
    tree = staged(FileFacts("libQnnA.so", facts.path, 1, facts), min_sdk=min_sdk)
    case = replace(within(trees={STAGING: tree}), kinds=read_elf_policies())
    findings = [finding for group in find_groups(case) for finding in judge_group(group)]
    return [(finding.id, finding.severity) for finding in findings]


def test_libraries_need_at_most_the_apps_minimum_api_level() -> None:
    assert judge_level(31, 33) == []
    assert judge_level(31, 31) == []
    assert judge_level(31, 29) == [("QNN223", Severity.ERROR)]
    assert judge_level(30, 29) == [("QNN223", Severity.ERROR)]
    assert judge_level(30, None) == []
    assert judge_level(31, None) == [("QNN234", Severity.NOTE)]


@pytest.mark.parametrize(
    ("name", "text", "level"),
    [
        ("build.gradle.kts", "android {\n  defaultConfig {\n    minSdk = 31\n", 31),
        ("build.gradle", "android {\n    minSdkVersion 26\n", 26),
        ("build.gradle", "    minSdkVersion(28)\n", 28),
        ("build.gradle", "    minSdk rootProject.ext.minSdk\n", None),
        ("build.gradle", "    // minSdk 21\n", None),
        ("settings.gradle", "minSdk = 31\n", None),
    ],
)
def test_min_sdk_is_read_from_the_nearest_build_file(
    tmp_path: Path, name: str, text: str, level: int | None
) -> None:
    place = tmp_path / "repository" / "app" / "src" / "main" / "jniLibs" / "arm64-v8a"
    place.mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    (tmp_path / "build.gradle").write_text("minSdk 1\n")
    (tmp_path / "repository" / "app" / name).write_text(text)
    assert find_min_sdk(place) == level


def test_a_whole_sdk_and_pointers_are_one_finding() -> None:
    assert find_ids(staged(*cases.SDK_FILES)) == ["QNN320"]
    assert find_ids(staged(*cases.POINTERS)) == ["QNN321"]
    pointer = replace(file("libQnnHtp.so", None), elf=None, defect=Defect.LFS_POINTER)
    stub = replace(file("libQnnHtpV79Stub.so", None), elf=None, defect=Defect.LFS_POINTER)
    assert find_ids(staged(pointer, stub)) == ["QNN321"]
    for files in (cases.SDK_FILES, cases.POINTERS):
        case = replace(within(trees={STAGING: staged(*files)}), kinds=read_elf_policies())
        assert list(find_groups(case)) == []


def test_links_out_of_a_staged_tree_are_read_as_their_targets(tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "libQnnHtp.so").symlink_to(LIBRARIES / "libx86.so")
    (stage / "libQnnSystem.so").symlink_to("libQnnHtp.so")
    (stage / "libQnnGpu.so").symlink_to("libQnnGpu.so")
    (stage / "libQnnCpu.so").symlink_to(tmp_path)
    (tmp_path / "model").write_bytes(b"\0v2.49.40.260810104044\0")
    (stage / "model.bin").symlink_to("../model")
    tree = survey_tree(stage)
    assert [(library.name, bool(library.elf)) for library in tree.files] == [
        ("libQnnHtp.so", True),
        ("libQnnSystem.so", True),
    ]
    assert [(program.name, bool(program.build)) for program in tree.lowered] == [
        ("model.bin", True)
    ]
    assert "QNN309" not in find_ids(tree)


# -- policies -----------------------------------------------------------------------------------

X86 = read_elf(LIBRARIES / "libx86.so")
ANDROID = read_elf(LIBRARIES / "libandroid16k.so")
OE = replace(read_elf(LIBRARIES / "libaarch64.so"), runpath=("$ORIGIN",))
HEXAGON = read_elf(LIBRARIES / "libhexagon.so")


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (X86, "x86_64-linux-clang"),
        (ANDROID, "aarch64-android"),
        (OE, "aarch64-oe-linux"),
        (HEXAGON, "hexagon-v69"),
        (HEXAGON, "lpai"),
    ],
)
def test_a_library_fits_the_elf_policy_of_its_own_directory(facts: ElfFacts, kind: str) -> None:
    assert judge(Placed(facts, elf_policy(kind))) == []


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("lib/x86_64-linux-clang", "x86_64-linux-clang"),
        ("bin/aarch64-android", "aarch64-android"),
        ("lib/aarch64-oe-linux-gcc11.2", "aarch64-oe-linux"),
        ("lib/hexagon-v81/unsigned", "hexagon-v81"),
        ("lib/hexagon-v100/unsigned", "hexagon-v100"),
        ("my/lib/hexagon-v81/unsigned", None),
        ("lib/hexagon-v81/unsigned/more", None),
        ("lib/lpai-v6/unsigned", "lpai"),
        ("lib/aarch64-windows-msvc", None),
        ("lib", None),
    ],
)
def test_directory_of_a_library_determines_its_elf_policy(directory: str, kind: str | None) -> None:
    chosen = choose_policy(directory, read_elf_policies())
    assert (chosen[0] if chosen else None) == kind


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("libQnnHtp.so", ("Htp", "", "")),
        ("libQnnHtpV75Skel.so", ("Htp", "75", "Skel")),
        ("libQnnHtpV100Stub.so", ("Htp", "100", "Stub")),
        ("libQnnHtpPrepare.so", ("Htp", "", "Prepare")),
        ("libQnnLpaiSkel_v6.so", ("Lpai", "", "Skel")),
        ("libQnnLpaiStub.so", ("Lpai", "", "Stub")),
        *((name, ("", "", "")) for name in ("libQnnGpu.so", "libQnnHtpV75Skel.so.1", "QnnHtp.so")),
    ],
)
def test_the_name_of_a_qnn_library_is_parsed(name: str, parts: tuple[str, ...]) -> None:
    assert parse_qnn_name(name) == parts


def test_an_unknown_kind_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no ELF policy 'mips'"):
        elf_policy("mips")
