"""Which files of a directory or an archive belong to which app, and what its manifest says."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ci.inspect import apps
from ci.inspect.app_trees import read_app
from ci.inspect.apps import (
    MAX_BYTES,
    AppManifest,
    AppUnit,
    Kind,
    choose_splits,
    parse_manifest,
    read_manifest,
)
from ci.inspect.files import inspect_file
from provisioning.archives.layout import Member
from provisioning.errors import IntegrityError, QnnCiError, UnfitError, UsageError
from tests.build.apps import POINTER as LFS
from tests.build.apps import pack, read, unpacked, write_files
from tests.stand_ins.android_apps import ABI, ARTIFACTS, MANIFESTS, write_apk
from tests.stand_ins.snapshots import check_snapshot
from tests.stand_ins.users import unprivileged

SNAPSHOTS = Path(__file__).with_name("snapshots")
TEXT = (MANIFESTS / "declared.xml").read_text("utf-8")
POINTER = LFS.decode()
ELF = ARTIFACTS / "elf"
MANIFEST = "AndroidManifest.xml"


def describe(unit: AppUnit) -> str:
    """What is in a unit; fields that are empty are left out."""
    level = f", minSdk {unit.min_sdk}" if unit.min_sdk else ""
    lines = [f"{unit.name} ({unit.kind.value}){level}"]
    for name in ("libraries", "assets"):
        lines += [f"  {name}: {item.shown}" for item in getattr(unit, name)]
    for group in unit.duplicates:
        lines.append("  twice: " + ", ".join(item.shown for item in group))
    lines += [f"  pointers: {pointer}" for pointer in unit.pointers]
    return "".join(f"{line}\n" for line in lines)


# The files of a directory; the snapshot shows which apps they make.
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
    "directories that others generate are not searched": {
        f"{name}/lib/{ABI}/liba.so": ""
        for name in (
            *("mine", "build", "node_modules", "Pods", "third_party", "third-party", ".gradle"),
            "/".join("abcdefghijk"),
            "/".join("abcdefghijklm"),
        )
    },
    "only files with the names of libraries and programs count": {
        f"lib/{ABI}/libreal.so": "",
        f"lib/{ABI}/libdir.so/": "",
        f"lib/{ABI}/libgone.so": "-> nowhere",
        f"lib/{ABI}/notes.txt": "",
        "assets/deep/m.pte": "",
        **{f"assets/{name}": "" for name in ("c.bin", "o.onnx", "d.dlc", "s.so", "read.me")},
        "assets/dir.pte/": "",
        "assets/l.pte": POINTER,
        "res/font/f.bin": "",
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
    "a manifest alone is an app": {"AndroidManifest.xml": TEXT},
}


def test_each_app_of_a_directory_has_its_own_files(tmp_path: Path) -> None:
    shown = ""
    for number, (name, files) in enumerate(TREES.items()):
        units = read(write_files(tmp_path / str(number) / "ROOT", files), tmp_path / "scratch")
        shown += f"# {name}\n{''.join(map(describe, units))}"
        examined = [file.relative for unit in units for file in unit.tree.files]
        assert not [path for path in examined if not path.startswith((f"lib/{ABI}/", "assets/"))]
    check_snapshot(SNAPSHOTS / "app_trees.txt", shown)


# -- directories ----------------------------------------------------------------------------------


def test_files_next_to_the_given_directory_do_not_belong_to_the_app(tmp_path: Path) -> None:
    """With the directory of an ABI directory, "assets" of an APK would be above it."""
    unpacked(tmp_path / "libs")
    write_files(tmp_path, {"assets/other.pte": "x", MANIFEST: TEXT})
    for directory in (tmp_path / "libs", tmp_path / "libs" / ABI):
        (unit,) = read(directory, tmp_path / "scratch")
        assert (unit.assets, unit.manifest) == ((), None)


@pytest.mark.parametrize("name", ["build.gradle", "build.gradle.kts", "settings.gradle.kts"])
def test_sources_without_a_module_that_gradle_packages_are_refused(
    tmp_path: Path, name: str
) -> None:
    root = write_files(tmp_path / "ROOT", {name: "", f"app/src/main/jniLibs/{ABI}/liba.so": ""})
    with pytest.raises(UsageError, match="contains no Android app"):
        read(root, tmp_path / "scratch")
    (unit,) = read(root / "app/src/main/jniLibs", tmp_path / "scratch")
    assert [library.name for library in unit.libraries] == ["liba.so"]


def test_only_libraries_for_a_phone_are_examined_in_assets(tmp_path: Path) -> None:
    root = write_files(tmp_path / "ROOT", {f"lib/{ABI}/": "", "assets/a.so": POINTER})
    for name in ("libx86.so", "libaarch64.so", "libhexagon.so", "make.sh"):
        path = (root / "assets" / name).with_suffix(".so")
        path.write_bytes((ELF / name).read_bytes())
    (unit,) = read(root, tmp_path / "scratch")
    assert [file.name for file in unit.tree.files] == ["a.so", "libaarch64.so", "libhexagon.so"]
    names = ["libaarch64.so", "libhexagon.so", "libx86.so", "make.so"]
    assert [asset.name for asset in unit.assets] == names
    assert unit.pointers == ("assets/a.so",)


def test_libraries_for_linux_are_no_files_to_push_to_android(tmp_path: Path) -> None:
    data = (ELF / "libaarch64.so").read_bytes()
    for name, is_android in (("libc.so.6", False), ("libc.so", True)):
        place = tmp_path / name
        write_files(
            place, {"liba.so": data.replace(b"libneeded.so", name.encode().ljust(12, b"\0"))}
        )
        if is_android:
            (unit,) = read(place, tmp_path / "scratch")
            assert (unit.kind, [file.name for file in unit.libraries]) == (Kind.FILES, ["liba.so"])
        else:
            with pytest.raises(UsageError, match="contains no Android app"):
                read(place, tmp_path / "scratch")


# -- manifests ------------------------------------------------------------------------------------


def test_manifest_that_cannot_be_read_or_is_too_long_has_a_fault(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    assert read_manifest(path).fault
    for size, message in ((MAX_BYTES, ""), (MAX_BYTES + 1, "the limit is")):
        path.write_bytes(TEXT.encode().ljust(size))
        manifest = read_manifest(path)
        assert (message in manifest.fault, bool(manifest.fault)) == (True, bool(message))


DECLARED = AppManifest("org.example.app", "", 30, 35, True, {"libcdsprpc.so": False})
EXPECTED = {
    "declared": DECLARED,
    "inside": replace(DECLARED, extracts=False, native_libraries={"libcdsprpc.so": True}),
    "undeclared": replace(DECLARED, extracts=None, native_libraries={}),
    "split": replace(DECLARED, split="config.arm64_v8a", extracts=False, native_libraries={}),
}
ENTITIES = b"""<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>
<manifest package="&b;"/>"""


@pytest.mark.parametrize(
    ("place", "native_libraries"),
    [
        ("<application>{}</application>", {"libcdsprpc.so": True}),
        ("<application><activity/>{}<activity/></application>", {"libcdsprpc.so": True}),
        ("{}<application/>", {}),
        ("<application/>{}", {}),
        ("<application><activity>{}</activity></application>", {}),
    ],
)
def test_native_libraries_are_declared_in_the_application(
    place: str, native_libraries: Mapping[str, bool]
) -> None:
    android = "http://schemas.android.com/apk/res/android"
    declaration = '<uses-native-library android:name="libcdsprpc.so"/>'
    text = f'<manifest xmlns:android="{android}">{place.format(declaration)}</manifest>'
    assert parse_manifest(text.encode()).native_libraries == native_libraries


@pytest.mark.parametrize("name", EXPECTED)
def test_manifest_means_the_same_compiled_and_as_text(name: str) -> None:
    for suffix in ("bin", "xml"):
        assert parse_manifest((MANIFESTS / f"{name}.{suffix}").read_bytes()) == EXPECTED[name]


def test_manifest_that_is_cut_has_a_fault() -> None:
    data = (MANIFESTS / "declared.bin").read_bytes()
    manifests = [parse_manifest(data[:size]) for size in range(0, len(data), 9)]
    assert all(manifest.fault for manifest in manifests[: len(manifests) // 2])
    assert parse_manifest(b"").fault


@pytest.mark.parametrize("at", [28, 29, 116, 876])
def test_offset_that_leads_nowhere_is_a_fault(at: int) -> None:
    """The offset of a text, of the string pool, of a chunk or of an element name."""
    data = (MANIFESTS / "declared.bin").read_bytes()
    manifest = parse_manifest(data[:at] + b"\xff" + data[at + 1 :])
    assert manifest == AppManifest(fault=manifest.fault)
    assert "damaged" in manifest.fault


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ENTITIES, "document type"),
        (b"<manifest", "not XML"),
        (b"<other/>", "no manifest element"),
        (b'<?xml version="1.0" encoding="x-none"?><manifest/>', "not XML"),
    ],
)
def test_a_file_that_is_no_android_manifest_has_a_fault(data: bytes, reason: str) -> None:
    assert reason in parse_manifest(data).fault


@pytest.mark.parametrize("count", [600, 60_000])
def test_manifest_that_repeats_one_long_string_many_times_is_refused(count: int) -> None:
    text = ("a" * 20_000).encode("utf-16-le")
    pool = struct.pack(
        "<HHIIIIII", 1, 28, 28 + 4 * count + len(text), count, 0, 0, 28 + 4 * count, 0
    )
    pool += bytes(4 * count) + struct.pack("<H", 20_000) + text
    data = struct.pack("<HHI", 3, 8, 8 + len(pool)) + pool
    assert "over and over" in parse_manifest(data).fault


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
    ("data", "error", "message"),
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
    tmp_path: Path, data: object, error: type[QnnCiError], message: str
) -> None:
    path = tmp_path / "app"
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif callable(data):
        data(path)
    with pytest.raises(error, match=message) as caught:
        read(path, tmp_path / "scratch")
    assert caught.value.fix
    if "bundle" in message:
        assert f"--bundle={path} --output={path}.apks" in caught.value.fix


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
def test_aar_is_recognised_by_its_resource_list_or_libraries(
    tmp_path: Path, names: list[str], kind: Kind
) -> None:
    (tmp_path / "app").write_bytes(make_zip(*names))
    (unit,) = read(tmp_path / "app", tmp_path / "scratch")
    assert unit.kind is kind


def test_archives_contain_apps_or_the_apks_of_one(tmp_path: Path) -> None:
    other_files = {f"lib/{ABI}/liba.so": b"", f"lib/{ABI}/libdir.so/": b"", "assets/dir.pte/": b""}
    other_files |= {
        f"{place}m.pte": b"" for place in ("assets/", "assets/nets/", "res/raw/", "other/")
    }
    inner = write_apk(tmp_path / "base.apk", {}, other_files=other_files).read_bytes()
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
            other_files=other_files,
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
        (["universal.apk"], ["universal.apk"]),
        ([*SPLITS, "apks/universal.apk"], ["apks/universal.apk"]),
        (["standalones/one.apk", "standalones/two.apk"], ["standalones/one.apk"]),
        *(
            ([name, "b.apk"], [name, "b.apk"])
            for name in ("base.apk", "my-standalones/a.apk", "not-universal.apk")
        ),
    ],
)  # fmt: skip
def test_device_installs_splits_or_one_whole_apk(names: list[str], chosen: list[str]) -> None:
    splits = choose_splits([Member(name, 1) for name in names])
    assert [split.name for split in splits] == chosen


def test_archive_that_claims_more_than_4_gib_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "app.apk"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for name in ("a", "b"):
            archive.writestr(f"lib/{ABI}/lib{name}.so", bytes(3 << 20))
    data, place = bytearray(path.read_bytes()), 0
    while (place := data.find(b"PK\1\2", place + 1)) >= 0:  # both of the directory's rows
        data[place + 24 : place + 28] = (3 << 30).to_bytes(4, "little")
    path.write_bytes(data)
    message = f"more than {4 << 30} bytes"
    with pytest.raises(IntegrityError) as caught:
        apps.ArchiveReader(tmp_path).read_file(path)
    assert message in caught.value.why
    assert message in inspect_file(path).damage


def test_the_limit_of_unpacked_bytes_is_for_all_archives_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: Mapping[str, int] = {"a": 100, "b": 100, "empty": 0, "c": 100}
    for name, size in sizes.items():
        pack(tmp_path / f"{name}.aar", {"R.txt": b"", f"jni/{ABI}/lib{name}.so": bytes(size)})
    monkeypatch.setattr(apps, "MAX_UNPACKED", 200)
    reader = apps.ArchiveReader(tmp_path)
    for name in ("a", "b", "empty"):  # the limit is met, and an empty file needs no room
        (library,) = reader.read_file(tmp_path / f"{name}.aar").libraries
        assert library.name == f"lib{name}.so"
    with pytest.raises(IntegrityError, match=r"c\.aar is rejected"):
        reader.read_file(tmp_path / "c.aar")


def test_an_unreadable_directory_of_an_app_is_skipped_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "app" / "lib" / "arm64-v8a").mkdir(parents=True)
    (tmp_path / "scratch").mkdir(mode=0o777)
    (tmp_path / "scratch").chmod(0o777)
    closed = tmp_path / "app" / "closed"
    closed.mkdir(mode=0o000)
    skipped: list[Path] = []
    try:
        with unprivileged(tmp_path / "app"):
            units = read_app(tmp_path / "app", tmp_path / "scratch", skipped.append)
    finally:
        closed.chmod(0o755)
    assert ([unit.name for unit in units], skipped) == (["lib"], [closed])


def test_an_app_has_the_packages_of_modules_and_of_a_bundle_of_the_catalog(tmp_path: Path) -> None:
    catalog = """[libraries]
runtime = { group = "com.qualcomm.qti", name = "qnn-runtime", version = { strictly = "2.37.1" } }
[bundles]
npu = ["runtime"]
"""
    files = {
        "settings.gradle": "include ':app', ':npu'",
        "gradle/libs.versions.toml": catalog,
        "app/build.gradle": "id 'com.android.application'\nimplementation project(':npu')",
        "npu/build.gradle": "api libs.bundles.npu",
    }
    (unit,) = read(write_files(tmp_path / "shop", files), tmp_path / "scratch")
    assert unit.gradle
    assert unit.gradle.packages == ("com.qualcomm.qti:qnn-runtime:2.37.1",)


def test_an_app_has_the_native_libraries_that_the_manifests_of_its_modules_declare(
    tmp_path: Path,
) -> None:
    declared = """<manifest xmlns:android="http://schemas.android.com/apk/res/android"><application>
<uses-native-library android:name="libcdsprpc.so" android:required="false"/>
</application></manifest>"""
    files = {
        "settings.gradle": "include ':app', ':npu', ':other'",
        "app/build.gradle": "id 'com.android.application'\nimplementation project(':npu')",
        "app/src/main/AndroidManifest.xml": "<manifest><application/></manifest>",
        "npu/build.gradle": "api 'com.qualcomm.qti:qnn-runtime:2.49.0'",
        "npu/src/main/AndroidManifest.xml": declared,
        "other/build.gradle": "",
        "other/src/main/AndroidManifest.xml": declared.replace("libcdsprpc", "libother"),
    }
    (unit,) = read(write_files(tmp_path / "shop", files), tmp_path / "scratch")
    assert unit.manifest
    assert unit.manifest.native_libraries == {"libcdsprpc.so": False}


APP_SCRIPT = 'plugins { id("com.android.application") }'
LIBRARY_SCRIPT = 'plugins { id("com.android.library") }'
REGISTRATION = 'register("a") { id = "own.app"; implementationClass = "own.AppPlugin" }'
REVERSED = 'register("a") { implementationClass = "own.AppPlugin"; id = "own.app" }'
CLASS = 'class AppPlugin : Plugin<Project> { apply("com.android.application") }'


@pytest.mark.parametrize(
    ("applied", "files"),
    [
        ('id("own.app")', {"kotlin/own.app.gradle.kts": APP_SCRIPT}),
        ('id("own.app")', {"groovy/own.app.gradle": APP_SCRIPT}),
        ('id("own.app")', {"kotlin/own/app.gradle.kts": f"package own\n{APP_SCRIPT}"}),
        ("alias(libs.plugins.own)", {"kotlin/own.app.gradle.kts": APP_SCRIPT}),
        ('id("own.app")', {"kotlin/AppPlugin.kt": CLASS, "": REGISTRATION}),
        ('id("own.app")', {"kotlin/AppPlugin.kt": CLASS, "": REVERSED}),
    ],
)
def test_a_module_is_an_app_if_a_plugin_of_the_project_builds_one(
    applied: str, files: dict[str, str], tmp_path: Path
) -> None:
    build = files.get("", "")
    sources = {f"logic/src/main/{name}": text for name, text in files.items() if name}
    write_files(
        tmp_path / "a",
        {
            "settings.gradle.kts": 'include(":app", ":npu")',
            "gradle/libs.versions.toml": '[plugins]\nown = { id = "own.app" }\n',
            "logic/build.gradle.kts": f"plugins {{ `kotlin-dsl` }}\n{build}",
            "logic/src/main/kotlin/own.library.gradle.kts": LIBRARY_SCRIPT,
            **sources,
            "app/build.gradle.kts": f"plugins {{ {applied} }}\napi(project(':npu'))",
            "npu/build.gradle.kts": 'plugins { id("own.library") }\napi("x:qnn:1")',
        },
    )
    (unit,) = read(tmp_path / "a", tmp_path / "b")
    assert (unit.name, unit.gradle and unit.gradle.packages) == ("app", ("x:qnn:1",))


def test_constants_of_buildsrc_are_variables(tmp_path: Path) -> None:
    files = {
        "settings.gradle.kts": 'include(":app")',
        "buildSrc/src/main/kotlin/Deps.kt": 'object Versions { const val qnn = "2.37.1" }',
        "app/build.gradle.kts": f'{APP_SCRIPT}\napi("x:qnn:${{Versions.qnn}}")',
    }
    (unit,) = read(write_files(tmp_path / "a", files), tmp_path / "b")
    assert unit.gradle
    assert unit.gradle.packages == ("x:qnn:2.37.1",)


CATALOG_OF_ALIASES = """[versions]
least = "28"
qnn = "2.49.0"
[libraries]
qnn-runtime = { module = "com.qualcomm.qti:qnn-runtime", version.ref = "qnn" }
[plugins]
androidApplication = { id = "com.android.application", version = "8.13.0" }
"""
BY_ALIAS = "plugins { alias(libs.plugins.androidApplication) }"


def test_an_app_of_several_platforms_is_read_from_its_own_source_set(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "settings.gradle.kts": 'include(":composeApp")',
        "build.gradle.kts": "plugins { alias(libs.plugins.androidApplication) apply false }",
        "gradle/libs.versions.toml": CATALOG_OF_ALIASES,
        "composeApp/build.gradle.kts": f"{BY_ALIAS}\nimplementation(libs.qnn.runtime)\n"
        "minSdk = libs.versions.least.get().toInt()",
        f"composeApp/src/androidMain/jniLibs/{ABI}/liba.so": "",
        "composeApp/src/androidMain/AndroidManifest.xml": TEXT,
        f"composeApp/src/main/jniLibs/{ABI}/libunused.so": "",
    }
    (unit,) = read(write_files(tmp_path / "a", files), tmp_path / "b")
    assert [library.name for library in unit.libraries] == ["liba.so"]
    assert (unit.name, unit.min_sdk) == ("composeApp", 28)
    assert unit.gradle
    assert unit.gradle.packages == ("com.qualcomm.qti:qnn-runtime:2.49.0",)


@pytest.mark.parametrize("framework", ["package.json", "pubspec.yaml"])
def test_a_gradle_project_below_the_folder_is_read_as_sources(
    framework: str, tmp_path: Path
) -> None:
    files = {
        framework: "",
        "android/settings.gradle": "include ':app'",
        "android/build.gradle": "ext { minSdkVersion = 26 }",
        "android/gradle.properties": "expo.useLegacyPackaging=true",
        "android/app/build.gradle": "id 'com.android.application'\n"
        "minSdkVersion rootProject.ext.minSdkVersion\n"
        "jniLibs.useLegacyPackaging = findProperty('expo.useLegacyPackaging').toBoolean()",
        f"android/app/src/main/jniLibs/{ABI}/liba.so": "",
        "android/app/src/main/AndroidManifest.xml": "<manifest><application/></manifest>",
    }
    (unit,) = read(write_files(tmp_path / "shop", files), tmp_path / "b")
    assert (unit.name, unit.kind, unit.min_sdk) == ("android/app", Kind.SOURCES, 26)
    assert unit.gradle
    assert unit.gradle.legacy is True


@pytest.mark.parametrize(
    ("script", "packages"),
    [("gradle/deps.gradle", ("com.qualcomm.qti:qnn-runtime:2.49.0",)), ("../outside.gradle", ())],
)
def test_packages_of_a_script_that_the_project_applies_have_names(
    script: str, packages: tuple[str, ...], tmp_path: Path
) -> None:
    files = {
        "settings.gradle": "include ':app'",
        "build.gradle": f"apply from: '{script}'",
        script: 'ext { v = "2.49.0"; deps = [qnn: "com.qualcomm.qti:qnn-runtime:$v"] }',
        "app/build.gradle": "id 'com.android.application'\nimplementation deps.qnn",
    }
    (unit,) = read(write_files(tmp_path / "a", files), tmp_path / "b")
    assert unit.gradle
    assert (unit.gradle.packages, unit.gradle.may_have_other_libraries) == (packages, not packages)


def test_packages_that_buildsrc_names_are_those_of_an_app(tmp_path: Path) -> None:
    constants = """object Deps {
    const val qnn = "2.49.0"
    const val runtime = "com.qualcomm.qti:qnn-runtime:$qnn"
}"""
    files = {
        "settings.gradle.kts": 'include(":app")',
        "buildSrc/src/main/kotlin/Deps.kt": constants,
        "app/build.gradle.kts": f"{APP_SCRIPT}\nimplementation(Deps.runtime)",
    }
    (unit,) = read(write_files(tmp_path / "a", files), tmp_path / "b")
    assert unit.gradle
    assert unit.gradle.packages == ("com.qualcomm.qti:qnn-runtime:2.49.0",)


@pytest.mark.parametrize(
    ("source_set", "is_known"),
    [
        *(("main", True), ("npu", False), ("npuRelease", False)),
        *(("debug", True), ("npuDebug", True), ("androidTest", True), ("test", True)),
    ],
)
def test_libraries_of_a_flavour_are_not_known(
    source_set: str, is_known: bool, tmp_path: Path
) -> None:
    files = {
        "settings.gradle": "include ':app'",
        "app/build.gradle": "id 'com.android.application'",
        f"app/src/{source_set}/jniLibs/{ABI}/liba.so": "",
    }
    (unit,) = read(write_files(tmp_path / "a", files), tmp_path / "b")
    assert unit.gradle
    assert unit.gradle.may_have_other_libraries is not is_known
