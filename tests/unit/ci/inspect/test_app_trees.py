"""Which files of a directory or an archive belong to which app."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePath

import pytest

from ci.inspect import apps
from ci.inspect.app_manifest import MAX_BYTES, AppManifest
from ci.inspect.app_trees import MAX_DEPTH
from ci.inspect.apps import AppUnit, Kind, PackedFile, choose_splits, read_manifest
from ci.inspect.files import inspect_file
from provisioning.archives.layout import Member
from provisioning.errors import IntegrityError, QnnCiError, UnfitError, UsageError
from tests.build.apps import POINTER as LFS
from tests.build.apps import add_to_git, pack, read, unpacked, write_files
from tests.stand_ins.android_apps import (
    ABI,
    ARTIFACTS,
    MANIFESTS,
    library,
    write_apk,
)
from tests.stand_ins.environments import git
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
APP = 'plugins { id("com.android.application") }\n'
MODULE = 'plugins { id("com.android.library") }\n'
TEXT = (MANIFESTS / "declared.xml").read_text("utf-8")
POINTER = LFS.decode()
ELF = ARTIFACTS / "elf"
JNI, OTHER = f"src/main/jniLibs/{ABI}", "src/main/jniLibs/x86"
MANIFEST = "AndroidManifest.xml"
ANDROID = 'xmlns:a="http://schemas.android.com/apk/res/android"'


def describe(unit: AppUnit) -> str:
    """What is in a unit; fields that are empty are left out."""
    level = f", minSdk {unit.min_sdk}" if unit.min_sdk else ""
    lines = [f"{unit.name} ({unit.kind.value}){level}"]
    for name in ("libraries", "assets"):
        lines += [f"  {name}: {one.shown}" for one in getattr(unit, name)]
    lines += ["  twice: " + ", ".join(one.shown for one in group) for group in unit.duplicates]
    for name in ("absent", "pointers", "damaged"):
        lines += [f"  {name}: {one}" for one in getattr(unit, name)]
    return "".join(f"{line}\n" for line in lines)


# The files of a directory; a snapshot has the apps that they are.
TREES: dict[str, dict[str, str]] = {
    "each ABI of Android": {
        f"lib/{abi}/liba.so": ""
        for abi in (
            *("arm64-v8a", "armeabi", "armeabi-v7a", "mips", "mips64", "riscv64", "x86", "x86_64"),
            "sparc",
        )
    },
    "an unpacked app with assets": dict.fromkeys(
        [f"lib/{ABI}/liba.so", "assets/m.pte", "res/raw/other.pte"], ""
    ),
    "modules of modules are packaged, and a loop of modules ends": {
        "app/build.gradle": f"{APP} implementation project(':core')",
        "core/build.gradle": f"{MODULE} project(':lib:qnn')\nproject(':app')",
        "lib/qnn/build.gradle": f"{MODULE} project(':core')\nproject(':none')",
        f"app/{JNI}/liba.so": "",
        f"core/{JNI}/libb.so": "",
        f"lib/qnn/{JNI}/libc.so": "",
    },
    "the app at the top has its modules below it": {
        "build.gradle": f"{APP} project(':core')",
        "core/build.gradle": MODULE,
        f"core/{JNI}/libc.so": "",
    },
    "a module is not looked for above the given directory": {
        "app/build.gradle": f"{APP} project(':ROOT:core')",
        "core/build.gradle": MODULE,
        f"core/{JNI}/libc.so": "",
    },
    "a module that no other uses is a unit if it has libraries": {
        "app/build.gradle": APP,
        "lone/build.gradle": f"{MODULE} project(':inner')",
        f"lone/{JNI}/libx.so": "",
        "inner/build.gradle": MODULE,
        f"inner/{JNI}/libi.so": "",
        "bare/build.gradle": MODULE,
        "bare/src/main/assets/m.pte": "",
    },
    "directories that Gradle or others generate are not searched": {
        "build.gradle": APP,
        **{
            f"{name}/x/build.gradle": APP
            for name in (
                *("build", "node_modules", "Pods", "third_party", "third-party"),
                *(".gradle", "/".join("abcdefghijklm")),
            )
        },
        "/".join("abcdefghijkl") + "/build.gradle": APP,
    },
    "only files with the names of libraries and programs count": {
        "build.gradle": f"{APP} jniLibs.srcDirs = ['more']\nminSdk 26",
        f"{JNI}/libreal.so": "",
        f"{JNI}/libdir.so/": "",
        f"{JNI}/libgone.so": "-> nowhere",
        f"{JNI}/notes.txt": "",
        f"src/jniLibs/{ABI}/libnone.so": "",
        f"{OTHER}/libreal.so": "",
        f"more/{ABI}/libmore.so": "",
        f"more/{ABI}/libreal.so": "",
        "src/main/assets/deep/m.pte": "",
        "src/main/assets/c.bin": "",
        "src/main/assets/o.onnx": "",
        "src/main/assets/d.dlc": "",
        "src/main/assets/s.so": "",
        "src/main/assets/dir.pte/": "",
        "src/main/assets/read.me": "",
        "src/main/res/raw/r.pte": "",
        "src/main/res/font/f.bin": "",
    },
    "each flavour with libraries is a unit, and a test's libraries are not": {
        "build.gradle": APP,
        f"src/free/jniLibs/{ABI}/libf.so": "",
        "src/free/assets/f.pte": "",
        f"src/paid/jniLibs/{ABI}/libm.so": "",
        f"src/test/jniLibs/{ABI}/libt.so": "",
        f"src/androidTestFree/jniLibs/{ABI}/libt.so": "",
        f"src/benchmark/jniLibs/{ABI}/libt.so": "",
        "src/plain/assets/p.pte": "",
        f"{JNI}/libm.so": "",
        "src/main/assets/m.pte": "",
    },
    "AARs that are named but missing, pointers or damaged are listed": {
        "app/build.gradle": f"{APP} files('libs/gone.aar', 'far.aar', 'libs/lfs.aar')\n"
        "files('$dir/a.aar', 'libs/*.aar', 'other/dir.aar', 'm/near.aar')",
        **{f"app/{name}/near.aar": POINTER for name in ("a", "m", "z")},
        "app/far.aar/": "",
        "app/deep/far.aar": POINTER,  # the first by name counts
        **{f"app/{name}/far.aar": POINTER for name in ("zz", "m", "x", "q", "f")},
        "app/other/dir.aar/": "",
        "app/libs/lfs.aar": POINTER,
        "app/libs/bad.aar": "PK damaged",
        "app/libs/text.aar": "no archive",
        "app/src/main/assets/m.pte": POINTER,
        "app/src/main/assets/whole.pte": "",
        f"app/{JNI}/liba.so": POINTER,
        f"app/{OTHER}/liba.so": POINTER,  # for an ABI that is not checked
    },
    "an AAR that the build file at the top names is listed without a directory": {
        "build.gradle": f"{APP} files('libs/gone.aar')"
    },
    "a directory of directories of ABIs is an app each": {
        f"one/lib/{ABI}/liba.so": "",
        "one/lib/x86/liba.so": "",
        "one/AndroidManifest.xml": TEXT,
        f"two/{ABI}/libb.so": "",
    },
    "the nearest manifest is that of an unpacked app": {
        f"deep/one/lib/{ABI}/liba.so": "",
        "deep/one/AndroidManifest.xml": TEXT,
        "deep/AndroidManifest.xml": TEXT.replace('"30"', '"21"'),
        "AndroidManifest.xml": TEXT.replace('"30"', '"22"'),
        f"deep/two/lib/{ABI}/libb.so": "",
    },
    "directories of ABIs may be at the top": {
        f"{ABI}/liba.so": "",
        "armeabi-v7a/libb.so": "",
        f"{ABI}/x86/libc.so": "",
    },
    "a project's minSdk is for all its modules": {
        "build.gradle": f"{MODULE} minSdk 27",
        "app/build.gradle": APP,
    },
    "the level of a project's build file goes before that of a manifest": {
        "build.gradle": f"{MODULE} minSdk 27",
        "app/build.gradle": APP,
        "app/src/main/AndroidManifest.xml": TEXT,
    },
    "a manifest alone is an app": {"AndroidManifest.xml": TEXT},
}


def test_each_app_of_a_directory_has_its_own_files(tmp_path: Path) -> None:
    shown = ""
    for number, (name, files) in enumerate(TREES.items()):
        units = read(write_files(tmp_path / str(number) / "ROOT", files), tmp_path / "scratch")
        shown += f"# {name}\n{''.join(map(describe, units))}"
        examined = [one.relative for unit in units for one in unit.tree.files]
        assert not [one for one in examined if not one.startswith((f"lib/{ABI}/", "assets/"))]
    check_snapshot(SNAPSHOTS / "app_trees.txt", shown)


# -- checkouts ------------------------------------------------------------------------------------

ABSENT: dict[str, tuple[dict[str, str], list[str]]] = {
    "a file of each kind": (
        {
            "build.gradle": f"{APP} files('libs/../libs/x.aar')",  # it is listed once
            **dict.fromkeys([f"{JNI}/libb.so", f"{JNI}/liba.so", "libs/x.aar"], ""),
            **{f"src/main/assets/{name}": "" for name in ("m.pte", "c.bin", "o.onnx", "d.dlc")},
            "src/main/Main.kt": "",
            "docs/other.so": "",
        },
        ["build.gradle"],
    ),
    "the only library of a module": (
        {"build.gradle": MODULE, f"{JNI}/liba.so": ""},
        ["build.gradle"],
    ),
    "a library of a module that an app uses": (
        {
            "app/build.gradle": f"{APP} project(':lib')",
            f"lib/{JNI}/liba.so": "",
            "lib/build.gradle": MODULE,
        },
        ["app/build.gradle", "lib/build.gradle"],
    ),
    "a library of an unpacked app": (
        dict.fromkeys([f"lib/{ABI}/liba.so", f"lib/{ABI}/libb.so", "assets/m.pte"], ""),
        [f"lib/{ABI}/libb.so"],
    ),
}  # fmt: skip


def test_files_that_git_lists_but_that_are_missing_are_absent(tmp_path: Path) -> None:
    shown = ""
    for number, (name, (files, kept)) in enumerate(ABSENT.items()):
        root = write_files(tmp_path / str(number) / "ROOT", files)
        add_to_git(root)
        for path in files.keys() - {*kept}:
            (root / path).unlink()
        shown += f"# {name}\n{''.join(map(describe, read(root, tmp_path / 'scratch')))}"
    check_snapshot(SNAPSHOTS / "app_absent.txt", shown)


def test_files_are_absent_from_an_app_below_the_root_of_its_repository(tmp_path: Path) -> None:
    """Also in a worktree, where .git is a file."""
    repository, linked = tmp_path / "repository", tmp_path / "linked"
    write_files(repository, {"ROOT/build.gradle": APP, f"ROOT/{JNI}/liba.so": ""})
    write_files(repository, {f"other/{JNI}/libb.so": ""})
    add_to_git(repository)
    git(repository, "commit", "--quiet", "-m", "one")
    git(repository, "worktree", "add", "--quiet", str(linked))
    for root in (repository, linked):
        (root / "ROOT" / JNI / "liba.so").unlink()
        (root / "other" / JNI / "libb.so").unlink()
        (unit,) = read(root / "ROOT", tmp_path / "scratch")
        assert unit.absent == (f"{JNI}/liba.so",)


# -- directories ----------------------------------------------------------------------------------


def test_files_next_to_the_given_directory_do_not_belong_to_the_app(tmp_path: Path) -> None:
    """With the directory of an ABI directory, "assets" of an APK would be above it."""
    unpacked(tmp_path / "libs")
    write_files(tmp_path, {"assets/other.pte": "x", MANIFEST: TEXT})
    for given in (tmp_path / "libs", tmp_path / "libs" / ABI):
        (unit,) = read(given, tmp_path / "scratch")
        assert (unit.assets, unit.manifest) == ((), None)


def test_links_to_directories_are_not_followed_and_the_depth_is_limited(tmp_path: Path) -> None:
    deep = "/".join("d" * (MAX_DEPTH + 1))
    names = ("app/build.gradle", f"{deep}/build.gradle", f"{deep}/d/build.gradle")
    root = write_files(tmp_path / "ROOT", dict.fromkeys(names, APP))
    (root / "linked").symlink_to(root / "app")
    (root / "loop").symlink_to(root)
    found = read(root, tmp_path / "scratch")
    assert {unit.name for unit in found} == {"app", "linked", deep}


def test_only_libraries_for_a_phone_are_examined_in_assets(tmp_path: Path) -> None:
    root = write_files(tmp_path / "ROOT", {"build.gradle": APP, "src/main/assets/a.so": POINTER})
    for name in ("libx86.so", "libaarch64.so", "libhexagon.so", "make.sh"):
        path = (root / "src/main/assets" / name).with_suffix(".so")
        path.write_bytes((ELF / name).read_bytes())
    (unit,) = read(root, tmp_path / "scratch")
    assert [one.name for one in unit.tree.files] == ["a.so", "libaarch64.so", "libhexagon.so"]
    names = ["libaarch64.so", "libhexagon.so", "libx86.so", "make.so"]
    assert [one.name for one in unit.assets] == names
    assert unit.pointers == ("src/main/assets/a.so",)


def test_aars_are_read_wherever_they_are_and_the_first_is_packaged(tmp_path: Path) -> None:
    outside = write_files(tmp_path / "other", {"lfs.aar": POINTER, "bad.aar": "PK damaged"})
    build = f"{APP} files('{outside}/lfs.aar', '{outside}/bad.aar')"
    root = write_files(tmp_path / "ROOT", {"build.gradle": build})
    for name in "dbfaec":
        pack(root / f"libs/{name}.aar", {f"jni/{ABI}/libq.so": library("libq.so")})
    (unit,) = read(root, tmp_path / "scratch")
    places = [f"libs/{name}.aar/jni/{ABI}/libq.so" for name in "abcdef"]
    assert [one.shown for one in unit.libraries] == places[:1]
    assert [[one.shown for one in group] for group in unit.duplicates] == [places]
    assert unit.pointers == (f"{outside}/lfs.aar",)
    ((path, reason),) = unit.damaged.items()
    assert (path, bool(reason), "bad.aar" in reason) == (f"{outside}/bad.aar", True, False)


# -- manifests ------------------------------------------------------------------------------------


def test_manifest_of_a_flavour_outranks_the_main_one(tmp_path: Path) -> None:
    """As Gradle merges them. Other modules and AARs only add libraries."""
    free = (
        f'<manifest {ANDROID}><uses-sdk a:minSdkVersion="31"/>'
        '<application a:extractNativeLibs="false"><uses-native-library a:name="libcdsprpc.so"/>'
        '<uses-native-library a:name="libx.so"/></application></manifest>'
    )
    files = {
        "app/build.gradle": f"{APP} project(':lib')\nfiles('libs/*.aar', 'libs/a.aar', 'b/a.aar')",
        "app/b/a.aar": "the one in libs counts",
        f"app/src/main/{MANIFEST}": TEXT,
        f"app/src/free/{MANIFEST}": free,
        f"app/src/free/jniLibs/{ABI}/libf.so": "",
        f"app/src/paid/jniLibs/{ABI}/libp.so": "",
        "lib/build.gradle": MODULE,
        f"lib/src/main/{MANIFEST}": free.replace("libx.so", "liby.so").replace(
            "minSdk", "targetSdk"
        ),
    }
    root = write_files(tmp_path / "ROOT", files)
    manifest = TEXT.replace("libcdsprpc.so", "libz.so")
    pack(root / "app/libs/a.aar", {MANIFEST: manifest, f"jni/{ABI}/libq.so": library("libq.so")})
    units = read(root, tmp_path / "scratch")
    assert [unit.manifest for unit in units] == [
        AppManifest(
            *("org.example.app", "", 31, 35, False),
            {"libcdsprpc.so": True, "libx.so": True, "liby.so": True, "libz.so": False},
        ),
        AppManifest(
            *("org.example.app", "", 30, 35, True),
            {"libcdsprpc.so": False, "liby.so": True, "libz.so": False},
        ),
    ]
    assert [unit.min_sdk for unit in units] == [31, 30]
    assert units[0].libraries[-1].shown == f"app/libs/a.aar/jni/{ABI}/libq.so"
    assert [(unit.duplicates, unit.damaged) for unit in units] == [((), {})] * 2


def test_manifest_that_cannot_be_read_or_is_too_long_has_a_fault(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    assert read_manifest(path).fault
    for size, told in ((MAX_BYTES, ""), (MAX_BYTES + 1, "the limit is")):
        path.write_bytes(TEXT.encode().ljust(size))
        found = read_manifest(path)
        assert (told in found.fault, bool(found.fault)) == (True, bool(told))


# -- archives -------------------------------------------------------------------------------------


def make_zip(*names: str) -> bytes:
    """A ZIP archive of empty files, with a link of the name of an APK."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
        link = zipfile.ZipInfo("link.apk")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "a.apk")
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (None, UsageError, "app"),
        (Path.mkdir, UsageError, "app"),
        (os.mkfifo, UsageError, "app"),
        (POINTER.encode(), UnfitError, "is a Git LFS pointer"),
        (b"\x7fELF", UsageError, "is not an Android app"),
        (make_zip("BundleConfig.pb", MANIFEST), UsageError, "is an app bundle"),
        (make_zip(f"base/manifest/{MANIFEST}", "a.apk"), UsageError, "is an app bundle"),
        (make_zip("a.class"), UsageError, "is a ZIP archive, but not an Android app"),
        (make_zip("assets/m.pte"), UsageError, "is a ZIP archive, but not an Android app"),
        (b"PK\3\4 cut", IntegrityError, "app is rejected"),
        *((make_zip(MANIFEST, name), IntegrityError, "app is rejected") for name in ("../x", "/x")),
        (make_zip(MANIFEST, "a/../../x"), IntegrityError, "app is rejected"),
    ],
)
def test_file_that_is_no_app_is_refused_with_its_kind(
    tmp_path: Path, data: object, error: type[QnnCiError], told: str
) -> None:
    path = tmp_path / "app"
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif callable(data):
        data(path)
    with pytest.raises(error, match=told) as caught:
        read(path, tmp_path / "scratch")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ([MANIFEST], Kind.APK),
        ([MANIFEST, "R.txt"], Kind.AAR),
        ([MANIFEST, f"jni/{ABI}/liba.so"], Kind.AAR),
        ([f"lib/{ABI}/liba.so", "res/R.txt"], Kind.APK),
        ([f"lib/{ABI}/liba.so", f"lib/{ABI}/libA.so"], Kind.APK),  # no Android folds case
    ],
)
def test_aar_has_a_list_of_resources_or_libraries_of_its_own(
    tmp_path: Path, names: list[str], kind: Kind
) -> None:
    (tmp_path / "app").write_bytes(make_zip(*names))
    (unit,) = read(tmp_path / "app", tmp_path / "scratch")
    assert unit.kind is kind


def test_archives_contain_apps_or_the_apks_of_one(tmp_path: Path) -> None:
    one = {f"lib/{ABI}/liba.so": b"", f"lib/{ABI}/libdir.so/": b"", "assets/dir.pte/": b""}
    one |= {f"{place}m.pte": b"" for place in ("assets/", "assets/nets/", "res/raw/", "other/")}
    inner = write_apk(tmp_path / "base.apk", {}, others=one).read_bytes()
    splits = {"splits/base.apk": inner, "notes.txt": b""}
    shown = describe(read(tmp_path / "base.apk", tmp_path / "scratch")[0])
    for name, files in {
        "splits.apks": splits,
        "universal.apks": {**splits, "universal.apk": inner},
        "with-apks-as-data.apk": {**splits, MANIFEST: TEXT, f"lib/{ABI}/libown.so": b""},
    }.items():
        (unit,) = read(pack(tmp_path / name, files), tmp_path / "scratch")
        shown += describe(unit)
    for name in "cbda":
        write_apk(
            tmp_path / f"set/{name}.apk",
            {},
            others=one,
            manifest="split" if name == "a" else "declared",
        )
    write_files(tmp_path / "set", {"0.apk/": "", "below/e.apk": inner})
    (unit,) = read(tmp_path / "set", tmp_path / "scratch")
    check_snapshot(SNAPSHOTS / "app_archives.txt", shown + describe(unit))
    assert unit.manifest
    assert (unit.manifest.split, unit.manifest.extracts) == ("", True)  # of the base


SPLITS = ["splits/base-master.apk", "splits/base-arm64_v8a.apk"]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (SPLITS, SPLITS),
        ([*SPLITS, "standalones/standalone-arm64_v8a.apk"], SPLITS),
        (["universal.apk"], ["universal.apk"]),
        ([*SPLITS, "universal.apk"], ["universal.apk"]),
        ([*SPLITS, "apks/universal.apk"], ["apks/universal.apk"]),
        (["standalones/one.apk", "standalones/two.apk"], ["standalones/one.apk"]),
        *(
            ([name, "b.apk"], [name, "b.apk"])
            for name in ("base.apk", "my-standalones/a.apk", "not-universal.apk")
        ),
    ],
)  # fmt: skip
def test_device_installs_splits_or_one_whole_apk(names: list[str], chosen: list[str]) -> None:
    assert [one.name for one in choose_splits([Member(name, 1) for name in names])] == chosen


def test_file_of_an_archive_has_its_place_and_its_size_there(tmp_path: Path) -> None:
    data, path = bytes(5000) + b"end", tmp_path / "app.apk"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MANIFEST, TEXT)
        for name, method in (("a", zipfile.ZIP_STORED), ("b", zipfile.ZIP_DEFLATED)):
            archive.writestr(f"lib/{ABI}/lib{name}.so", data, method)
            archive.writestr(f"assets/deep/{name}.pte", data, method)
        link = zipfile.ZipInfo(f"lib/{ABI}/liblink.so")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "liba.so")
        sizes = {one.filename: one.compress_size for one in archive.infolist()}
    (unit,) = read(path, tmp_path / "scratch")
    files = {one.shown: one for one in (*unit.libraries, *unit.assets)}
    assert files.keys() == {f"app.apk/{name}" for name in sizes.keys() - {MANIFEST, link.filename}}
    for shown, one in files.items():
        member = shown.partition("/")[2]
        assert one.path.read_bytes() == data
        abi = ABI if member.startswith("lib") else ""
        size = (len(data), abi, sizes[member], one.offset)
        assert one == PackedFile(PurePath(member).name, one.path, shown, *size)
        is_stored, start = PurePath(member).stem.endswith("a"), one.offset or 0
        assert (one.offset is not None) == is_stored
        assert (path.read_bytes()[start : start + len(data)] == data) == is_stored


def test_archive_that_claims_more_than_4_gib_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "app.apk"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for name in ("a", "b"):
            archive.writestr(f"lib/{ABI}/lib{name}.so", bytes(3 << 20))
    data, place = bytearray(path.read_bytes()), 0
    while (place := data.find(b"PK\1\2", place + 1)) >= 0:  # both of the directory's rows
        data[place + 24 : place + 28] = (3 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    told = f"more than {4 << 30} bytes"
    with pytest.raises(IntegrityError) as caught:
        apps.ArchiveReader(tmp_path).read_file(path)
    assert told in caught.value.why
    assert told in inspect_file(path).damage


def test_one_limit_is_for_all_archives_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: Mapping[str, int] = {"a": 100, "b": 100, "empty": 0, "c": 100}
    for name, size in sizes.items():
        pack(tmp_path / f"{name}.aar", {"R.txt": b"", f"jni/{ABI}/lib{name}.so": bytes(size)})
    monkeypatch.setattr(apps, "MAX_UNPACKED", 200)
    reader = apps.ArchiveReader(tmp_path)
    for name in ("a", "b", "empty"):  # the limit is met, and an empty file needs no room
        (found,) = reader.read_file(tmp_path / f"{name}.aar").libraries
        assert found.name == f"lib{name}.so"
    with pytest.raises(IntegrityError, match=r"c\.aar is rejected"):
        reader.read_file(tmp_path / "c.aar")
