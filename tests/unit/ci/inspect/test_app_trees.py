"""Which files of a directory belong to which app."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import pytest

from ci.inspect.app_manifest import MAX_BYTES, AppManifest
from ci.inspect.app_trees import MAX_DEPTH, read_app
from ci.inspect.apps import AppUnit, Kind, PackedFile, read_manifest
from provisioning.errors import IntegrityError, QnnCiError, UnfitError, UsageError
from tests.stand_ins.android_apps import ABI, ARTIFACTS, MANIFESTS, library, write_apk
from tests.stand_ins.environments import git

APP = 'plugins { id("com.android.application") }\n'
MODULE = 'plugins { id("com.android.library") }\n'
TEXT = (MANIFESTS / "declared.xml").read_text("utf-8")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
ELF = ARTIFACTS / "elf"
JNI, OTHER = f"src/main/jniLibs/{ABI}", "src/main/jniLibs/x86"


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files. Names that end in '/' are directories, and '-> x' makes a link to x."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(parents=True)
        elif text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text, "utf-8")
    return root


def read(root: Path, tmp_path: Path) -> list[AppUnit]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return read_app(root, scratch)


def describe(unit: AppUnit) -> dict[str, Any]:
    """Return what is in a unit. Fields that are empty are left out."""
    found = {
        "libraries": [one.shown for one in unit.libraries],
        "assets": [one.shown for one in unit.assets],
        "twice": [[one.shown for one in group] for group in unit.duplicates],
        "absent": [*unit.absent],
        "pointers": [*unit.pointers],
        "damaged": [*unit.damaged],
        "min_sdk": unit.min_sdk,
    }
    return {"name": unit.name, "kind": unit.kind} | {
        name: value for name, value in found.items() if value
    }


def app(name: str, kind: Kind = Kind.SOURCES, **fields: object) -> dict[str, Any]:
    return {"name": name, "kind": kind, **fields}


UNITS: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = {
    "modules of modules are packaged, and a loop of modules ends": (
        {
            "app/build.gradle": f"{APP} implementation project(':core')",
            "core/build.gradle": f"{MODULE} project(':lib:qnn')\nproject(':app')",
            "lib/qnn/build.gradle": f"{MODULE} project(':core')\nproject(':none')",
            f"app/{JNI}/liba.so": "",
            f"core/{JNI}/libb.so": "",
            f"lib/qnn/{JNI}/libc.so": "",
        },
        [
            app(
                "app",
                libraries=[
                    f"app/{JNI}/liba.so",
                    f"core/{JNI}/libb.so",
                    f"lib/qnn/{JNI}/libc.so",
                ],
            )
        ],
    ),
    "the app at the top has its modules below it": (
        {
            "build.gradle": f"{APP} project(':core')",
            "core/build.gradle": MODULE,
            f"core/{JNI}/libc.so": "",
        },
        [app("ROOT", libraries=[f"core/{JNI}/libc.so"])],
    ),
    "a module is not looked for above the given directory": (
        {
            "app/build.gradle": f"{APP} project(':ROOT:core')",
            "core/build.gradle": MODULE,
            f"core/{JNI}/libc.so": "",
        },
        [app("app"), app("core", Kind.LIBRARY, libraries=[f"core/{JNI}/libc.so"])],
    ),
    "a module that no other uses is a unit if it has libraries": (
        {
            "app/build.gradle": APP,
            "lone/build.gradle": f"{MODULE} project(':inner')",
            f"lone/{JNI}/libx.so": "",
            "inner/build.gradle": MODULE,
            f"inner/{JNI}/libi.so": "",
            "bare/build.gradle": MODULE,
            "bare/src/main/assets/m.pte": "",
        },
        [
            app("app"),
            app(
                "lone",
                Kind.LIBRARY,
                libraries=[f"inner/{JNI}/libi.so", f"lone/{JNI}/libx.so"],
            ),
        ],
    ),
    "directories that Gradle or others generate are not searched": (
        {
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
        [app("ROOT"), app("/".join("abcdefghijkl"))],
    ),
    "only files with the names of libraries and programs count": (
        {
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
        [
            app(
                "ROOT",
                libraries=[
                    *(f"{JNI}/libgone.so", f"more/{ABI}/libmore.so"),
                    *(f"{JNI}/libreal.so", f"{OTHER}/libreal.so"),
                ],
                assets=[
                    *(f"src/main/assets/{name}" for name in ("c.bin", "d.dlc", "deep/m.pte")),
                    *("src/main/assets/o.onnx", "src/main/assets/s.so", "src/main/res/raw/r.pte"),
                ],
                min_sdk=26,
            )
        ],
    ),
    "each flavour with libraries is a unit, and a test's libraries are not": (
        {
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
        [
            app(
                "ROOT (free)",
                libraries=[f"src/free/jniLibs/{ABI}/libf.so", f"{JNI}/libm.so"],
                assets=["src/free/assets/f.pte", "src/main/assets/m.pte"],
            ),
            app(
                "ROOT (paid)",
                libraries=[f"src/paid/jniLibs/{ABI}/libm.so"],
                assets=["src/main/assets/m.pte"],
            ),
        ],
    ),
    "AARs that are named but missing, pointers or damaged are listed": (
        {
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
        [
            app(
                "app",
                absent=["app/libs/gone.aar", "app/other/dir.aar"],
                libraries=[f"app/{JNI}/liba.so", f"app/{OTHER}/liba.so"],
                assets=["app/src/main/assets/whole.pte"],
                pointers=[
                    *("app/deep/far.aar", "app/libs/lfs.aar", "app/m/near.aar"),
                    *(f"app/{JNI}/liba.so", "app/src/main/assets/m.pte"),
                ],
                damaged=["app/libs/bad.aar", "app/libs/text.aar"],
            )
        ],
    ),
    "an AAR that the build file at the top names is listed without a directory": (
        {"build.gradle": f"{APP} files('libs/gone.aar')"},
        [app("ROOT", absent=["libs/gone.aar"])],
    ),
    "a directory of directories of ABIs is an app each": (
        {
            f"one/lib/{ABI}/liba.so": "",
            "one/lib/x86/liba.so": "",
            "one/AndroidManifest.xml": TEXT,
            f"two/{ABI}/libb.so": "",
        },
        [
            app(
                "one/lib",
                Kind.DIRECTORY,
                libraries=[f"one/lib/{ABI}/liba.so", "one/lib/x86/liba.so"],
                min_sdk=30,
            ),
            app("two", Kind.DIRECTORY, libraries=[f"two/{ABI}/libb.so"]),
        ],
    ),
    "the nearest manifest is that of an unpacked app": (
        {
            f"deep/one/lib/{ABI}/liba.so": "",
            "deep/one/AndroidManifest.xml": TEXT,
            "deep/AndroidManifest.xml": TEXT.replace('"30"', '"21"'),
            "AndroidManifest.xml": TEXT.replace('"30"', '"22"'),
            f"deep/two/lib/{ABI}/libb.so": "",
        },
        [
            app(
                f"deep/{name}/lib",
                Kind.DIRECTORY,
                libraries=[f"deep/{name}/lib/{ABI}/lib{end}.so"],
                min_sdk=level,
            )
            for name, end, level in (("one", "a", 30), ("two", "b", 21))
        ],
    ),
    "directories of ABIs may be at the top": (
        {f"{ABI}/liba.so": "", "armeabi-v7a/libb.so": "", f"{ABI}/x86/libc.so": ""},
        [app("ROOT", Kind.DIRECTORY, libraries=[f"{ABI}/liba.so", "armeabi-v7a/libb.so"])],
    ),
    "a project's minSdk is for all its modules": (
        {"build.gradle": f"{MODULE} minSdk 27", "app/build.gradle": APP},
        [app("app", min_sdk=27)],
    ),
    "the level of a project's build file goes before that of a manifest": (
        {
            "build.gradle": f"{MODULE} minSdk 27",
            "app/build.gradle": APP,
            "app/src/main/AndroidManifest.xml": TEXT,
        },
        [app("app", min_sdk=27)],
    ),
    "a manifest alone is an app": (
        {"AndroidManifest.xml": TEXT},
        [app("ROOT", Kind.DIRECTORY)],
    ),
}


@pytest.mark.parametrize("name", UNITS)
def test_each_unit_has_its_own_files(name: str, tmp_path: Path) -> None:
    files, expected = UNITS[name]
    units = read(write(tmp_path / "ROOT", files), tmp_path)
    assert [describe(unit) for unit in units] == expected
    examined = [one.relative for unit in units for one in unit.tree.files]
    assert not [one for one in examined if not one.startswith((f"lib/{ABI}/", "assets/"))]


@pytest.mark.parametrize("name", ["gone", "pipe", "empty"])
def test_what_is_no_app_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=str(tmp_path / name)):
        read(tmp_path / name, tmp_path)


def pack(*names: str) -> bytes:
    """A ZIP archive with these files, and with a link of the name of an APK."""
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
        (POINTER.encode(), UnfitError, "is a Git LFS pointer"),
        (b"\x7fELF", UsageError, "is not an Android app"),
        (pack("BundleConfig.pb", "AndroidManifest.xml"), UsageError, "is an app bundle"),
        (pack("base/manifest/AndroidManifest.xml", "a.apk"), UsageError, "is an app bundle"),
        (pack("a.class"), UsageError, "is a ZIP archive, but not an Android app"),
        (pack("assets/m.pte"), UsageError, "is a ZIP archive, but not an Android app"),
        (b"PK\3\4 cut", IntegrityError, "app is rejected"),
        (pack("AndroidManifest.xml", "../x"), IntegrityError, "app is rejected"),
        (pack("AndroidManifest.xml", "a/../../x"), IntegrityError, "app is rejected"),
        (pack("AndroidManifest.xml", "/x"), IntegrityError, "app is rejected"),
    ],
)
def test_a_file_that_is_no_app_is_refused_with_its_kind(
    tmp_path: Path, data: bytes, error: type[QnnCiError], told: str
) -> None:
    (tmp_path / "app").write_bytes(data)
    with pytest.raises(error, match=told) as caught:
        read(tmp_path / "app", tmp_path)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["AndroidManifest.xml"], Kind.APK),
        (["AndroidManifest.xml", "R.txt"], Kind.AAR),
        (["AndroidManifest.xml", f"jni/{ABI}/liba.so"], Kind.AAR),
        ([f"lib/{ABI}/liba.so", "res/R.txt"], Kind.APK),
        ([f"lib/{ABI}/liba.so", f"lib/{ABI}/libA.so"], Kind.APK),  # no Android folds case
    ],
)
def test_an_aar_has_a_list_of_resources_or_libraries_of_its_own(
    tmp_path: Path, names: list[str], kind: Kind
) -> None:
    (tmp_path / "app").write_bytes(pack(*names))
    (unit,) = read(tmp_path / "app", tmp_path)
    assert unit.kind is kind


def test_the_manifest_of_a_set_is_that_of_its_base(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for name, manifest in (("a", "split"), ("b", "declared"), ("c", "split")):
        write_apk(root / f"{name}.apk", {}, manifest=manifest)
    (unit,) = read(root, tmp_path)
    assert unit.manifest
    assert (unit.manifest.split, unit.manifest.extracts) == ("", True)


def test_an_archive_without_a_manifest_is_its_libraries_or_the_apks_inside(tmp_path: Path) -> None:
    inner = write_apk(tmp_path / "base.apk", {"liba.so": b""}).read_bytes()
    whole = tmp_path / "app.apks"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("splits/base.apk", inner)
        archive.writestr("notes.txt", "")
    (unit,) = read(whole, tmp_path)
    assert describe(unit) == app(
        "app.apks", Kind.APK, libraries=[f"base.apk/lib/{ABI}/liba.so"], min_sdk=30
    )
    with zipfile.ZipFile(whole, "a") as archive:  # an app may contain APKs as data
        archive.writestr("AndroidManifest.xml", TEXT)
        archive.writestr(f"lib/{ABI}/libown.so", b"")
    (unit,) = read_app(whole, tmp_path / "scratch")
    assert [one.shown for one in unit.libraries] == [f"app.apks/lib/{ABI}/libown.so"]


def test_a_flavours_manifest_goes_before_the_main_one(tmp_path: Path) -> None:
    """As Gradle merges them. Other modules only add libraries."""
    free_text = (
        '<manifest xmlns:a="http://schemas.android.com/apk/res/android">'
        '<uses-sdk a:minSdkVersion="31"/><application a:extractNativeLibs="false">'
        '<uses-native-library a:name="libcdsprpc.so"/><uses-native-library a:name="libx.so"/>'
        "</application></manifest>"
    )
    module_text = free_text.replace("libx.so", "liby.so").replace("minSdk", "targetSdk")
    files = {
        "app/build.gradle": f"{APP} project(':lib')\n",
        "app/src/main/AndroidManifest.xml": TEXT,
        "app/src/free/AndroidManifest.xml": free_text,
        f"app/src/free/jniLibs/{ABI}/libf.so": "",
        f"app/src/paid/jniLibs/{ABI}/libp.so": "",
        "lib/build.gradle": MODULE,
        "lib/src/main/AndroidManifest.xml": module_text,
    }
    free, paid = read(write(tmp_path / "ROOT", files), tmp_path)
    assert free.manifest == AppManifest(
        *("org.example.app", "", 31, 35, False),
        {"libcdsprpc.so": True, "libx.so": True, "liby.so": True},
    )
    assert paid.manifest == AppManifest(
        *("org.example.app", "", 30, 35, True), {"libcdsprpc.so": False, "liby.so": True}
    )
    assert (free.min_sdk, paid.min_sdk) == (31, 30)


def test_manifests_of_all_modules_count(tmp_path: Path) -> None:
    root = write(
        tmp_path / "ROOT",
        {
            "app/build.gradle": f"{APP} project(':lib')\n"
            "files('libs/*.aar', 'libs/app.aar', 'other/app.aar')",
            "app/other/app.aar": "the one in libs counts",
            "lib/build.gradle": MODULE,
            "app/src/main/AndroidManifest.xml": TEXT,
            "lib/src/main/AndroidManifest.xml": TEXT.replace("libcdsprpc.so", "libx.so"),
        },
    )
    with zipfile.ZipFile(root / "app.aar", "w") as archive:
        archive.writestr("AndroidManifest.xml", TEXT.replace("libcdsprpc.so", "liby.so"))
        archive.writestr(f"jni/{ABI}/libq.so", library("libq.so"))
    asset = root / "app" / "src" / "main" / "assets" / "other.so"
    asset.parent.mkdir()
    asset.write_bytes((ELF / "libx86.so").read_bytes())
    (root / "app" / "libs").mkdir()
    (root / "app.aar").rename(root / "app" / "libs" / "app.aar")
    (unit,) = read(root, tmp_path)
    assert unit.manifest
    assert {*unit.manifest.native_libraries} == {"libcdsprpc.so", "libx.so", "liby.so"}
    assert [one.shown for one in unit.libraries] == [f"app/libs/app.aar/jni/{ABI}/libq.so"]
    assert (unit.duplicates, unit.damaged) == ((), {})
    assert unit.min_sdk == unit.manifest.min_sdk  # no build file sets it
    assert [(one.relative, one.elf is not None) for one in unit.tree.files] == [
        (f"lib/{ABI}/libq.so", True)
    ]


def test_of_an_assets_libraries_those_for_a_phone_and_pointers_are_examined(
    tmp_path: Path,
) -> None:
    root = write(tmp_path / "ROOT", {"build.gradle": APP, "src/main/assets/a.so": POINTER})
    for name in ("libx86.so", "libaarch64.so", "libhexagon.so", "make.sh"):
        data = (ELF / name).read_bytes()
        (root / "src/main/assets" / name).with_suffix(".so").write_bytes(data)
    (unit,) = read(root, tmp_path)
    assert [one.name for one in unit.tree.files] == ["a.so", "libaarch64.so", "libhexagon.so"]
    names = ["libaarch64.so", "libhexagon.so", "libx86.so", "make.so"]
    assert [one.name for one in unit.assets] == names
    assert unit.pointers == ("src/main/assets/a.so",)


def test_a_manifest_that_cannot_be_read_or_is_too_long_has_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "AndroidManifest.xml"
    assert read_manifest(path).fault
    for size, told in ((MAX_BYTES, ""), (MAX_BYTES + 1, "the limit is")):
        path.write_bytes(TEXT.encode().ljust(size))
        found = read_manifest(path)
        assert (told in found.fault, bool(found.fault)) == (True, bool(told))


def test_an_aar_outside_of_the_project_has_its_whole_path(tmp_path: Path) -> None:
    outside = write(tmp_path / "other", {"lfs.aar": POINTER, "bad.aar": "PK damaged"})
    build = f"{APP} files('{outside}/lfs.aar', '{outside}/bad.aar')"
    (unit,) = read(write(tmp_path / "ROOT", {"build.gradle": build}), tmp_path)
    assert describe(unit) == app(
        "ROOT", pointers=[f"{outside}/lfs.aar"], damaged=[f"{outside}/bad.aar"]
    )
    (reason,) = unit.damaged.values()
    assert reason
    assert "bad.aar" not in reason  # the finding names it


def test_the_first_of_several_aars_by_name_is_packaged(tmp_path: Path) -> None:
    root = write(tmp_path / "ROOT", {"build.gradle": APP})
    (root / "libs").mkdir()
    for name in "dbfaec":
        with zipfile.ZipFile(root / "libs" / f"{name}.aar", "w") as archive:
            archive.writestr(f"jni/{ABI}/libq.so", library("libq.so"))
    (unit,) = read(root, tmp_path)
    places = [f"libs/{name}.aar/jni/{ABI}/libq.so" for name in "abcdef"]
    assert describe(unit) == app("ROOT", libraries=places[:1], twice=[places])


def test_a_file_of_an_archive_has_its_place_and_its_size_there(tmp_path: Path) -> None:
    data, path = bytes(5000) + b"end", tmp_path / "app.apk"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("AndroidManifest.xml", TEXT)
        for name, method in (("a", zipfile.ZIP_STORED), ("b", zipfile.ZIP_DEFLATED)):
            archive.writestr(f"lib/{ABI}/lib{name}.so", data, method)
            archive.writestr(f"assets/deep/{name}.pte", data, method)
        sizes = {one.filename: one.compress_size for one in archive.infolist()}
    (unit,) = read(path, tmp_path)
    for kind, files in (
        (f"lib/{ABI}/lib{{}}.so", unit.libraries),
        ("assets/deep/{}.pte", unit.assets),
    ):
        for name, one in zip("ab", files, strict=True):
            member = kind.format(name)
            assert one.path.read_bytes() == data
            assert one == PackedFile(
                *(PurePath(member).name, one.path, f"app.apk/{member}", len(data)),
                *(ABI if kind.startswith("lib") else "", sizes[member], one.offset),
            )
            assert (one.offset is not None) == (name == "a")
            start = one.offset or 0
            assert (path.read_bytes()[start : start + len(data)] == data) == (name == "a")


# The names that end in '/' are directories.
FILES = {
    "assets/m.pte": b"",
    "assets/dir.pte/": b"",
    "lib/x86/libx.so": b"",
    "lib/x86/libdir.so/": b"",
}


def test_apks_of_a_directory_are_one_app(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for name in ("c", "b", "d", "a"):
        write_apk(root / f"{name}.apk", {}, others=FILES)
    (root / "0.apk").mkdir()
    write_apk(root / "below" / "e.apk", {}, others=FILES)
    (unit,) = read(root, tmp_path)
    assert describe(unit) == app(
        "set",
        Kind.APK,
        libraries=["a.apk/lib/x86/libx.so"],
        assets=[f"{name}.apk/assets/m.pte" for name in "abcd"],
        twice=[[f"{name}.apk/lib/x86/libx.so" for name in "abcd"]],
        min_sdk=30,
    )


def test_a_link_in_an_archive_is_no_library(tmp_path: Path) -> None:
    path = write_apk(tmp_path / "app.apk", {"libone.so": library("libone.so")})
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo(f"lib/{ABI}/liblink.so")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "libone.so")
    (unit,) = read(path, tmp_path)
    assert [one.shown for one in unit.libraries] == [f"app.apk/lib/{ABI}/libone.so"]


def test_files_that_git_knows_but_that_are_not_there_are_absent(tmp_path: Path) -> None:
    root = write(
        tmp_path / "ROOT",
        {
            "build.gradle": f"{APP} files('libs/../libs/x.aar')",  # it is listed once
            f"{JNI}/libb.so": "",
            f"{JNI}/liba.so": "",
            "src/main/assets/m.pte": "",
            "src/main/assets/c.bin": "",
            "src/main/assets/o.onnx": "",
            "src/main/assets/d.dlc": "",
            "src/main/Main.kt": "",
            "libs/x.aar": "",
            "docs/other.so": "",
        },
    )
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", root, *words], check=True)
    gone = [one for one in root.rglob("*") if one.is_file() and ".git" not in one.parts]
    for path in gone:
        if path.name != "build.gradle":
            path.unlink()
    (unit,) = read(root, tmp_path)
    assert describe(unit) == app(
        "ROOT",
        absent=[
            "libs/x.aar",
            *(f"src/main/assets/{name}" for name in ("c.bin", "d.dlc", "m.pte", "o.onnx")),
            *(f"{JNI}/liba.so", f"{JNI}/libb.so"),
        ],
    )


def test_an_app_below_the_root_of_its_repository_has_absent_files_too(tmp_path: Path) -> None:
    names = {"build.gradle": APP, f"{JNI}/liba.so": ""}
    root = write(tmp_path / "repository" / "ROOT", names)
    write(tmp_path / "repository", {f"other/{JNI}/libb.so": ""})
    for words in (["init", "--quiet"], ["add", "."]):
        git(root.parent, *words)
    git(root.parent, "commit", "--quiet", "-m", "one")
    linked = tmp_path / "linked"  # its .git is a file
    git(root.parent, "worktree", "add", "--quiet", str(linked))
    (tmp_path / "scratch").mkdir()
    for repository in (root.parent, linked):
        (repository / "ROOT" / JNI / "liba.so").unlink()
        (repository / "other" / JNI / "libb.so").unlink()
        (unit,) = read_app(repository / "ROOT", tmp_path / "scratch")
        assert describe(unit) == app("ROOT", absent=[f"{JNI}/liba.so"])


def test_a_module_whose_only_library_is_absent_is_checked(tmp_path: Path) -> None:
    root = write(tmp_path / "ROOT", {"build.gradle": MODULE, f"{JNI}/liba.so": ""})
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", root, *words], check=True)
    (root / JNI / "liba.so").unlink()
    (unit,) = read(root, tmp_path)
    assert describe(unit) == app("ROOT", Kind.LIBRARY, absent=[f"{JNI}/liba.so"])


def test_libraries_of_a_module_that_an_app_uses_are_absent_from_the_app(tmp_path: Path) -> None:
    names = {"app/build.gradle": f"{APP} project(':lib')", f"lib/{JNI}/liba.so": ""}
    root = write(tmp_path / "ROOT", {**names, "lib/build.gradle": MODULE})
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", root, *words], check=True)
    (root / f"lib/{JNI}/liba.so").unlink()
    (unit,) = read(root, tmp_path)
    assert unit.absent == (f"lib/{JNI}/liba.so",)


def test_the_current_directory_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path / "ROOT", {f"{ABI}/liba.so": ""}))
    (unit,) = read(Path(), tmp_path)
    assert describe(unit) == app("ROOT", Kind.DIRECTORY, libraries=[f"{ABI}/liba.so"])
    assert [one.name for one in unit.tree.files] == ["liba.so"]


def test_files_are_absent_from_an_unpacked_app_too(tmp_path: Path) -> None:
    names = (f"lib/{ABI}/liba.so", f"lib/{ABI}/libb.so", "assets/m.pte")
    root = write(tmp_path / "ROOT", dict.fromkeys(names, ""))
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", root, *words], check=True)
    (root / names[0]).unlink()
    (root / names[2]).unlink()
    (unit,) = read(root, tmp_path)
    assert describe(unit) == app("lib", Kind.DIRECTORY, libraries=[names[1]], absent=[names[0]])


def test_links_to_directories_are_not_followed_and_the_depth_is_limited(tmp_path: Path) -> None:
    deep = "/".join("d" * (MAX_DEPTH + 1))
    root = write(
        tmp_path / "ROOT",
        {"app/build.gradle": APP, f"{deep}/build.gradle": APP, f"{deep}/d/build.gradle": APP},
    )
    (root / "linked").symlink_to(root / "app")
    (root / "loop").symlink_to(root)
    assert {unit.name for unit in read(root, tmp_path)} == {"app", "linked", deep}
