"""What an app's sources show of the app that Gradle builds from several files: flavours, plugins of
the project, settings, catalogs, archives and scripts."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.inspect.app_checks import judge_unit
from ci.inspect.flavours import choose_flavours, list_source_sets, list_variants
from ci.inspect.gradle_settings import list_folders
from tests.build.apps import POINTER, SET, read, write_files
from tests.stand_ins.android_apps import ABI, library
from tests.stand_ins.litert import make_compiled, make_plain
from tests.stand_ins.lowered import make_binary

ANDROID = 'xmlns:android="http://schemas.android.com/apk/res/android"'
DECLARED = '<uses-native-library android:name="libcdsprpc.so" android:required="false"/>'
DECLARES = f"<manifest {ANDROID}><application>{DECLARED}</application></manifest>"
NO_MANIFEST_VALUES = "<manifest><application/></manifest>"
PACKAGING = "packaging { jniLibs { useLegacyPackaging = true\nkeepDebugSymbols += '**/*Skel.so' } }"
APP = "plugins { id 'com.android.application' }\nminSdk 30\n"
OF_RUNTIME = "group: 'com.qualcomm.qti', module: 'qnn-runtime'"
RUNTIME = "com.qualcomm.qti:qnn-runtime:2.49.0"
ORT = "com.microsoft.onnxruntime:onnxruntime-android-qnn:1.26.0"
Files = Mapping[str, str | bytes]
Expected = list[tuple[str, list[str]]]


def jni(place: str, libraries: Mapping[str, bytes] = SET) -> dict[str, str | bytes]:
    return {f"{place}/{ABI}/{name}": data for name, data in libraries.items()}


def aar(libraries: Mapping[str, bytes] = SET, manifest: str = DECLARES) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("AndroidManifest.xml", manifest)
        for name, content in libraries.items():
            archive.writestr(f"jni/{ABI}/{name}", content)
    return data.getvalue()


def app(build: str, files: Files | None = None, manifest: str = DECLARES) -> dict[str, str | bytes]:
    """A project with the module app, whose skels are files, and others."""
    return {
        "settings.gradle": "include ':app'",
        "app/build.gradle": f"{APP}{PACKAGING}\n{build}",
        "app/src/main/AndroidManifest.xml": manifest,
        **(files or {}),
    }


def judge(files: Files, place: Path, *socs: str, root: str = "shop") -> Expected:
    """The name of each app of a project, and the checks of apps that find a fault in it."""
    results = []
    for unit in read(write_files(place / "a", files) / root, place / "b"):
        ids = sorted({finding.id for finding in judge_unit(unit, socs)})
        results.append((unit.name, [code for code in ids if code >= "QNN849" and code != "QNN882"]))
    return results


def in_shop(files: Files) -> dict[str, str | bytes]:
    return {f"shop/{name}": data for name, data in files.items()}


FLAVOURS = "productFlavors { npu { dimension 'a' }\ncpu { dimension 'a' } }\n"
OF_NPU, OF_CPU = "app (flavour npu)", "app (flavour cpu)"
SECOND_CATALOG = """[versions]
qnn = "2.49.0"
[libraries]
qnn-runtime = { module = "com.qualcomm.qti:qnn-runtime", version.ref = "qnn" }
[bundles]
all = ["qnn-runtime"]
"""
OF_BUNDLE, INLINE = "implementation(npu.bundles.all)", "implementation(npu.runtime)"
KOTLIN_DSL = {"logic/build.gradle.kts": "plugins { `kotlin-dsl` }"}
SCRIPT = "logic/src/main/kotlin/own.npu.gradle.kts"
REGISTRATION = 'register("a") { id = "own.npu"; implementationClass = "own.NpuPlugin" }'
BY_PLUGIN = f"{APP}plugins {{ id 'own.npu' }}\n"
ADDS_RUNTIME = 'add("implementation", libs.findLibrary("qnn-runtime").get())'
NPU_MODULE = {
    "npu/build.gradle": "plugins { id 'com.android.library' }",
    "npu/src/main/AndroidManifest.xml": DECLARES,
    **jni("npu/src/main/jniLibs"),
}
INCLUDES = {"settings.gradle": "includeBuild('npu')"}
OF_OWN_GROUP = {**NPU_MODULE, "npu/build.gradle": "group = 'org.own'\nplugins { }"}
OWN_CATALOG = {"gradle/libs.versions.toml": '[libraries]\nown-npu = "org.own:npu:1.0"'}
LIBS_AAR = {"app/libs/qnn-set.aar": aar()}
OF_PACK = """<c:device-targeting-config xmlns:c="http://schemas.android.com/apk/config">
<c:device-group name="flagship"><c:device-selector>
<c:system-on-chip manufacturer="QTI" model="SM8750"/>
<c:system-on-chip manufacturer="QTI" model="SM8650"/>
<c:system-on-chip manufacturer="QTI" model="QCS8625"/></c:device-selector></c:device-group>
</c:device-targeting-config>"""
FOR_SM8650 = make_compiled()
FOR_SM8750 = make_compiled(stamp=b"Qualcomm\0SM8750", binary=make_binary(soc=("SM8750", 69, 79)))
WITH_LITERT = SET | {
    name: library(name) for name in ("libLiteRt.so", "libLiteRtDispatch_Qualcomm.so")
}


def with_own_group(**models: bytes) -> dict[str, str | bytes]:
    """An app with an asset pack that has a directory for a device group of its own."""
    folder = "pack/src/main/assets/net#group_flagship"
    return app(
        "bundle { deviceTargetingConfig = file('groups.xml') }",
        {
            "app/groups.xml": OF_PACK,
            "pack/build.gradle": "plugins { id 'com.android.asset-pack' }",
            "pack/src/main/assets/net#group_other/m.tflite": make_plain(),
            **{f"{folder}/{name}.tflite": data for name, data in models.items()},
            **jni("app/src/main/jniLibs", WITH_LITERT),
        },
    )


PROJECTS: dict[str, tuple[Files, str, Expected]] = {
    # ------------------------------------------------------------------------- product flavours
    "a package of one flavour": (
        app(f"{FLAVOURS}npuImplementation '{ORT}'\ncpuImplementation 'x:other:1'"),
        *("SM8650", [(OF_NPU, []), (OF_CPU, ["QNN849"])]),
    ),
    "a package whose configuration is a text": (
        app(f"{FLAVOURS}add('npuImplementation', '{ORT}')"),
        *("SM8650", [(OF_NPU, []), (OF_CPU, ["QNN849"])]),
    ),
    "a package over several lines": (
        app(f"{FLAVOURS}npuImplementation(\n'{ORT}'\n) {{\nbecause('fast')\n}}\n"),
        *("SM8650", [(OF_NPU, []), (OF_CPU, ["QNN849"])]),
    ),
    "libraries and a manifest of one flavour": (
        app(
            FLAVOURS,
            {"app/src/npu/AndroidManifest.xml": DECLARES, **jni("app/src/npu/jniLibs")},
            NO_MANIFEST_VALUES,
        ),
        *("SM8650", [(OF_NPU, []), (OF_CPU, ["QNN849"])]),
    ),
    "a manifest of the other flavour": (
        app(
            f"{FLAVOURS}implementation '{ORT}'",
            {"app/src/cpu/AndroidManifest.xml": DECLARES},
            NO_MANIFEST_VALUES,
        ),
        *("SM8650", [(OF_NPU, ["QNN860"]), (OF_CPU, [])]),
    ),
    "no flavour has QNN": (
        app(FLAVOURS),
        *("", [(OF_NPU, ["QNN850"]), (OF_CPU, ["QNN850"])]),
    ),
    "ABIs of one flavour": (
        app(f"productFlavors {{ a {{ ndk {{ abiFilters 'x86' }} }}\nb {{ }} }}\napi '{ORT}'"),
        *("", [("app (flavour a)", ["QNN880"]), ("app (flavour b)", [])]),
    ),
    "two dimensions": (
        app(
            "productFlavors { create('npu') { dimension = 'a' }\ncreate('x') { dimension = 'b' }\n"
            f"create('y') {{ dimension = 'b' }} }}\nnpuXImplementation '{ORT}'"
        ),
        *("", [("app (flavours npu, x)", []), ("app (flavours npu, y)", ["QNN849"])]),
    ),
    "a module with the flavours of the app": (
        app(
            f"{FLAVOURS}implementation project(':npu')",
            {"npu/build.gradle": f"{FLAVOURS}npuApi '{RUNTIME}'"},
        ),
        *("", [(OF_NPU, []), (OF_CPU, ["QNN849"])]),
    ),
    "libraries that one flavour leaves out": (
        app(
            f"{FLAVOURS}androidComponents {{ onVariants(selector().withFlavor('a' to 'cpu')) {{\n"
            "it.packaging.jniLibs.excludes.add('**/libQnn*.so') } }\n"
            f"implementation '{ORT}'"
        ),
        *("SM8650", [(OF_NPU, []), (OF_CPU, ["QNN894"])]),
    ),
    "flavours that are computed": (
        app(f"productFlavors {{ ['a'].each {{ create(it) }} }}\naImplementation '{ORT}'"),
        *("", [("app", [])]),
    ),
    "ABIs that a property names": (
        app(
            f"abiFilters.addAll(project.property('abis').split(','))\napi '{ORT}'",
            {"gradle.properties": "abis=armeabi-v7a,x86_64"},
        ),
        *("", [("app", ["QNN880"])]),
    ),
    "ABIs of a function with the name of a property": (
        app(
            f"ndk {{ abiFilters (*architectures()) }}\napi '{ORT}'",
            {"gradle.properties": "architectures=arm64-v8a,x86_64"},
        ),
        *("", [("app", [])]),
    ),
    "ABIs that are computed": (
        app(f"ndk {{ abiFilters (*architectures()) }}\napi '{ORT}'"),
        *("", [("app", ["QNN897"])]),
    ),
    # ------------------------------------------------------------------------- version catalogs
    "a catalog of another file": (
        app(
            OF_BUNDLE,
            {
                "settings.gradle": "versionCatalogs { npu { from(files('gradle/npu.toml')) } }",
                "gradle/npu.toml": SECOND_CATALOG,
            },
        ),
        *("SM8850", [("app", [])]),
    ),
    "a catalog that the settings fill": (
        app(
            INLINE,
            {
                "settings.gradle": 'versionCatalogs { create("npu") { version("q", "2.49.0")\n'
                'library("runtime", "com.qualcomm.qti", "qnn-runtime").versionRef("q") } }'
            },
        ),
        *("SM8850", [("app", [])]),
    ),
    "a catalog that nothing describes": (app(OF_BUNDLE), "", [("app", ["QNN893"])]),
    "packaging that a version of the catalog is": (
        {
            **app("", {"gradle/libs.versions.toml": '[versions]\nlegacy = "true"'}),
            "app/build.gradle": f"{APP}api '{ORT}'\n"
            "jniLibs.useLegacyPackaging = libs.versions.legacy.get().toBoolean()",
        },
        *("SM8650", [("app", [])]),
    ),
    "a package that is excluded from all": (
        app(
            f"configurations.all {{ exclude {OF_RUNTIME} }}\n"
            f"api 'org.pytorch:executorch-android-qnn:1.5.1'\napi '{RUNTIME}'"
        ),
        *("", [("app", ["QNN885"])]),
    ),
    "a package of a module that is excluded from all": (
        app(
            f"configurations {{ implementation {{ exclude {OF_RUNTIME} }} }}\napi project(':npu')",
            {"npu/build.gradle": f"api '{ORT}'"},
        ),
        *("", [("app", ["QNN885"])]),
    ),
    "a package that is excluded from tests": (
        app(f"configurations.testImplementation {{ exclude {OF_RUNTIME} }}\napi '{RUNTIME}'"),
        *("", [("app", [])]),
    ),
    "a package that modules exclude for themselves": (
        app(
            "api project(':npu')",
            {"npu/build.gradle": f"configurations.all {{ exclude {OF_RUNTIME} }}\napi '{ORT}'"},
        ),
        *("", [("app", ["QNN885"])]),
    ),
    # ---------------------------------------------------------- plugins and scripts of the project
    "packaging by a script plugin": (
        {
            **app("", {**KOTLIN_DSL, SCRIPT: PACKAGING, **jni("app/src/main/jniLibs")}),
            "app/build.gradle": BY_PLUGIN,
        },
        *("", [("app", [])]),
    ),
    "packaging by a plugin that is not applied": (
        {
            **app("", {**KOTLIN_DSL, SCRIPT: PACKAGING, **jni("app/src/main/jniLibs")}),
            "logic/src/main/kotlin/own.other.gradle.kts": "",
            "app/build.gradle": f"{APP}plugins {{ id 'own.other' }}\n",
        },
        *("", [("app", ["QNN856", "QNN879"])]),
    ),
    "packages of a class": (
        {
            **app(""),
            "logic/build.gradle.kts": f"plugins {{ `kotlin-dsl` }}\n{REGISTRATION}",
            "logic/src/main/kotlin/NpuPlugin.kt": f"class A {{ {PACKAGING}\n{ADDS_RUNTIME} }}",
            "gradle/libs.versions.toml": SECOND_CATALOG,
            "app/build.gradle": BY_PLUGIN,
        },
        *("SM8850", [("app", [])]),
    ),
    "a plugin that another plugin applies": (
        {
            **app("", {**KOTLIN_DSL, SCRIPT: PACKAGING, **jni("app/src/main/jniLibs")}),
            "logic/src/main/kotlin/own.first.gradle.kts": "plugins { id('own.npu') }",
            "app/build.gradle": f"{APP}plugins {{ id 'own.first' }}\n",
        },
        *("", [("app", [])]),
    ),
    "a script that a module applies": (
        app("apply from: '../npu.gradle'", {"npu.gradle": f"implementation '{ORT}'"}),
        *("SM8650", [("app", [])]),
    ),
    "packaging that the root sets for all apps": (
        {
            **app("", jni("app/src/main/jniLibs")),
            "build.gradle": "subprojects { if (plugins.hasPlugin('com.android.application')) {\n"
            f"android {{ {PACKAGING} }} }} }}",
            "app/build.gradle": APP,
        },
        *("", [("app", [])]),
    ),
    "packaging that the root sets for libraries": (
        {
            **app("", jni("app/src/main/jniLibs")),
            "build.gradle": "subprojects { plugins.withId('com.android.library') {\n"
            f"android {{ {PACKAGING} }} }} }}",
            "app/build.gradle": APP,
        },
        *("", [("app", ["QNN856", "QNN879"])]),
    ),
    "a plugin that asks for the plugin of apps": (
        {
            **app(f"api project(':npu')\napi '{RUNTIME}'", KOTLIN_DSL),
            "logic/src/main/kotlin/own.lint.gradle.kts": "withPlugin('com.android.application') {}",
            "npu/build.gradle": "plugins { id 'own.lint' }",
        },
        *("", [("app", [])]),
    ),
    "packages of Flutter": (
        app("apply plugin: 'dev.flutter.flutter-gradle-plugin'"),
        *("", [("app", ["QNN893"])]),
    ),
    "packages of React Native": (
        app("apply plugin: 'com.facebook.react'"),
        *("", [("app", ["QNN893"])]),
    ),
    "packages of Flutter's script": (
        app('apply from: "$flutterRoot/packages/flutter_tools/gradle/flutter.gradle"'),
        *("", [("app", ["QNN893"])]),
    ),
    # -------------------------------------------------------------------------- folders of modules
    "a module in another folder": (
        app(
            "implementation project(':own')",
            {
                "settings.gradle": "project(':own').projectDir = new File(rootDir, 'npu')",
                **NPU_MODULE,
            },
            NO_MANIFEST_VALUES,
        ),
        *("", [("app", [])]),
    ),
    "a manifest in another place": (
        app(
            "implementation project(':npu')",
            {
                "npu/build.gradle": "sourceSets { main { manifest.srcFile 'AndroidManifest.xml'\n"
                "jniLibs.srcDirs = ['libs'] } }",
                "npu/AndroidManifest.xml": DECLARES,
                **jni("npu/libs"),
            },
            NO_MANIFEST_VALUES,
        ),
        *("", [("app", [])]),
    ),
    "a folder whose name is computed": (
        app(
            "implementation project(':own')",
            {"settings.gradle": 'project(":own").projectDir = file("$npu")', **NPU_MODULE},
        ),
        *("", [("app", ["QNN893"]), ("npu", ["QNN879"])]),
    ),
    "a build file with the name of its module": (
        app("implementation project(':npu')", {"npu/npu.gradle": f"api '{ORT}'"}),
        *("SM8650", [("app", [])]),
    ),
    "libraries in a folder of the project": (
        app('jniLibs.srcDirs "$rootDir/qnn"', jni("qnn")),
        *("", [("app", [])]),
    ),
    "libraries in a folder that a file of the project is": (
        app('jniLibs.srcDir(rootProject.file("qnn"))', jni("qnn")),
        *("", [("app", [])]),
    ),
    "libraries in a folder that is computed": (
        app('jniLibs.srcDirs "$sdk/qnn"'),
        *("", [("app", ["QNN893"])]),
    ),
    # ------------------------------------------------------------------------------ included builds
    "a package that an included build replaces": (
        app("api 'org.own:npu:1.0'", {**INCLUDES, **OF_OWN_GROUP}),
        *("", [("app", [])]),
    ),
    "a package of the catalog that an included build replaces": (
        app("api libs.own.npu", {**INCLUDES, **OF_OWN_GROUP, **OWN_CATALOG}),
        *("", [("app", [])]),
    ),
    "a module of an included build": (
        app(
            "api 'org.own:core:1.0'",
            {
                **INCLUDES,
                "npu/gradle.properties": "GROUP=org.own",
                "npu/core/build.gradle": "api project(':io')",
                "npu/io/build.gradle": f"api '{ORT}'",
            },
        ),
        *("SM8650", [("app", [])]),
    ),
    "a package of another group": (
        app("api 'org.other:npu:1.0'", {**INCLUDES, **OF_OWN_GROUP}),
        *("", [("app", ["QNN893"]), ("npu", ["QNN879"])]),
    ),
    "an included build of plugins": (
        app(
            "api 'org.own:npu:1.0'",
            {**OF_OWN_GROUP, "settings.gradle": "pluginManagement { includeBuild 'npu' }"},
        ),
        *("", [("app", ["QNN893"]), ("npu", ["QNN879"])]),
    ),
    # ------------------------------------------------------------------------------------ archives
    "an archive in a folder": (
        app("api fileTree(dir: 'libs', include: ['*.jar', '*.aar'])", LIBS_AAR, NO_MANIFEST_VALUES),
        *("", [("app", [])]),
    ),
    "an archive in a folder of another kind": (
        app("api fileTree(dir: 'libs', include: ['*.jar'])", LIBS_AAR),
        *("", [("app", ["QNN850"])]),
    ),
    "an archive in a folder that is a text": (
        app('api(fileTree("libs") { include("*.aar") })', LIBS_AAR),
        *("", [("app", [])]),
    ),
    "an archive by name": (app("api files('libs/qnn-set.aar')", LIBS_AAR), "", [("app", [])]),
    "an archive of a flat folder": (
        app("api(name: 'qnn-set', ext: 'aar')\napi ':qnn@aar'", LIBS_AAR),
        *("", [("app", [])]),
    ),
    "an archive that is a module": (
        app(
            "api project(':set')",
            {
                "set/build.gradle": "configurations.maybeCreate('default')\n"
                "artifacts.add('default', file('a.aar'))",
                "set/a.aar": aar(),
            },
        ),
        *("", [("app", [])]),
    ),
    "an archive that is missing": (app("api files('libs/a.aar')"), "", [("app", ["QNN893"])]),
    "archives by a glob that only Gradle has": (
        app("api fileTree(dir: 'libs', include: '**.aar')", LIBS_AAR),
        *("", [("app", ["QNN893"])]),
    ),
    "an archive outside of the project": (
        app("api files('../../a.aar')\napi files('/a.aar')", {"../a.aar": aar()}),
        *("", [("app", ["QNN893"])]),
    ),
    "links that lead to each other": (
        app("api files('a.aar')", {"app/a.aar": "-> b.aar", "app/b.aar": "-> a.aar"}),
        *("", [("app", ["QNN893"])]),
    ),
    "an archive that is damaged": (
        app("api files('a.aar')", {"app/a.aar": b"PK\3\4 cut"}),
        *("", [("app", ["QNN893"])]),
    ),
    "an archive that is an LFS pointer": (
        app("api files('a.aar')", {"app/a.aar": POINTER}),
        *("", [("app", ["QNN893"])]),
    ),
    "an archive whose skels stay inside": (
        {**app("", LIBS_AAR), "app/build.gradle": f"{APP}api files('libs/qnn-set.aar')"},
        *("", [("app", ["QNN856", "QNN879"])]),
    ),
    # --------------------------------------------------------------------------------------- packs
    "a pack by the name of its plugin in the catalog": (
        {
            **with_own_group(m=FOR_SM8750),
            "gradle/libs.versions.toml": '[plugins]\nai-pack = "com.android.ai-pack:8.9.0"',
            "pack/build.gradle": "plugins { alias(libs.plugins.ai.pack) }",
        },
        *("SM8650", [("app", ["QNN878"])]),
    ),
    "a group with an SoC that the model is not for": (
        with_own_group(m=FOR_SM8750),
        *("SM8650", [("app", ["QNN878"])]),
    ),
    "a group with another SoC of this Hexagon version": (
        with_own_group(m=FOR_SM8650),
        *("SM8650", [("app", ["QNN878"])]),  # a warning, for SM8750
    ),
    "a group with a model for each SoC": (
        with_own_group(m=FOR_SM8650, n=FOR_SM8750),
        *("SM8650", [("app", [])]),
    ),
}


@pytest.mark.parametrize("name", PROJECTS)
def test_an_app_is_what_gradle_builds_from_several_files(name: str, tmp_path: Path) -> None:
    files, soc, expected = PROJECTS[name]
    assert judge(in_shop(files), tmp_path, *filter(None, [soc])) == expected


def test_a_module_outside_of_the_project_is_read_if_it_is_in_the_tree(tmp_path: Path) -> None:
    settings = (
        "project(':npu').projectDir = new File(rootProject.projectDir, '../node_modules/npu')"
    )
    project = app("implementation project(':npu')", {"settings.gradle": settings})
    module = {
        name.replace("npu/", "node_modules/npu/", 1): data for name, data in NPU_MODULE.items()
    }
    files = {f"android/{name}": data for name, data in project.items()} | module
    expected = {"": [("android/app", [])], "android": [("app", ["QNN893"])]}
    for number, (root, result) in enumerate(expected.items()):
        assert judge(in_shop(files), tmp_path / str(number), root=f"shop/{root}") == result


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ("project(':a').projectDir = new File('x')", "x"),
        ('project(":a").projectDir = file("$rootDir/x")', "x"),
        ("project(':a').projectDir = new File(settingsDir, '../x')", "../x"),
        ("project(':a').setProjectDir(rootDir.resolve('x/y'))", "x/y"),
        ("project(':a').projectDir = file(folder)", None),
        ("project(':a').projectDir = file(\"$folder/x\")", None),
    ],
)
def test_settings_name_the_folder_of_a_module(settings: str, folder: str | None) -> None:
    expected = [(":a", Path("r") / folder)] if folder else []
    assert [*list_folders(Path("r"), settings)] == expected


@pytest.mark.parametrize(
    ("text", "variants"),
    [
        ("", [()]),
        ("productFlavors { a { dimension 'x' }; b { dimension 'x' } }", [("a",), ("b",)]),
        ('productFlavors { create("a"); create("b") { } }', [("b",), ("a",)]),
        (
            "productFlavors { a { dimension 'x' }; b { dimension 'y' }; c { dimension 'y' } }",
            [("a", "b"), ("a", "c")],
        ),
        ("productFlavors { all { x = 1 }; a { } }", [("a",)]),
        ("productFlavors { for (x in y) { create(x) } }", [()]),
        ("productFlavors {" + "".join(f"f{number} {{ }}\n" for number in range(13)) + "}", [()]),
    ],
)
def test_an_app_is_built_for_each_combination_of_flavours(
    text: str, variants: list[tuple[str, ...]]
) -> None:
    assert list_variants(text) == variants


def test_source_sets_of_a_variant_replace_those_of_all() -> None:
    text = "productFlavors { a { dimension 'x' }; b { dimension 'y' }; c { dimension 'y' } }"
    assert list_source_sets(text, ("a", "c")) == ["aCRelease", "release", "aC", "a", "c", "main"]
    assert list_source_sets("", ()) == ["release", "main"]


@pytest.mark.parametrize(
    ("text", "has_npu", "has_cpu"),
    [
        ("npuApi 'MARK'", True, False),
        ("'npuReleaseApi'('MARK')", True, False),
        ("npuDebugApi 'MARK'", False, False),
        ("sourceSets { npu { a 'MARK' } }", True, False),
        ("sourceSets { main { a 'MARK' } }", True, True),
        ("onVariants(selector().withFlavor('a' to 'npu')) { it.x 'MARK' }", True, False),
        ("onVariants(selector().withFlavor(new Pair('a', 'npu'))) { it.x 'MARK' }", True, False),
        ("productFlavors { npu { dimension 'a'; x 'MARK' } }", True, False),
        ("missingDimensionStrategy 'a', 'npu'; api 'MARK'", True, True),
        ("npuMore 'MARK'", True, True),
    ],
)
def test_what_is_for_another_flavour_is_left_out(text: str, has_npu: bool, has_cpu: bool) -> None:
    build = f"{FLAVOURS}\n{text}\n"
    texts = (choose_flavours(build, [name]) for name in ("npu", "cpu"))
    assert tuple("MARK" in chosen for chosen in texts) == (has_npu, has_cpu)
