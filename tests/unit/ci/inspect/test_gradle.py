"""Build files of Gradle in Groovy and Kotlin, and version catalogs, which are read as text."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from ci.inspect.gradle import (
    Gradle,
    is_excluded,
    join_modules,
    parse_gradle,
    read_build_file,
    read_catalog,
    read_variables,
)
from ci.inspect.gradle_text import MAX_BYTES

SKEL = "lib/arm64-v8a/libQnnHtpV75Skel.so"

FLAVOURS = "productFlavors { a { dimension 'a' }; b { dimension 'a' } }\n"
CATALOG = {
    "litert.npu": ("com.google.ai.edge.litert:litert:2",),
    "bundles.npu": ("com.qualcomm.qti:qnn-runtime:2.49.0", "x:litert:1"),
}


VARIABLES = {
    "npu": "3",
    "on": "true",
    "x.off": "false",
    "least": "26",
    "qnn": "a.b:qnn:1",
    "libs.versions.sdk.least": "27",
}


def parse(text: str) -> Gradle:
    return parse_gradle("build.gradle", text, CATALOG, VARIABLES)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("packaging { jniLibs { useLegacyPackaging = true } }", "legacy", True),
        ("packagingOptions { jniLibs { useLegacyPackaging false } }", "legacy", False),
        ("packaging.jniLibs.useLegacyPackaging = true", "legacy", True),
        ("packaging { dex { useLegacyPackaging = true } }", "legacy", None),
        ("// jniLibs { useLegacyPackaging = true }", "legacy", None),
        ("jniLibs.useLegacyPackaging = on.toBoolean()", "legacy", True),
        (
            "jniLibs { useLegacyPackaging (findProperty('x.off')?.toBoolean() ?: true) }",
            "legacy",
            False,
        ),
        (
            "jniLibs.useLegacyPackaging = providers.gradleProperty('on').get().toBoolean()",
            "legacy",
            True,
        ),
        ("jniLibs.useLegacyPackaging = property('gone').toBoolean()", "is_computed", True),
        ("jniLibs { useLegacyPackaging enabled.toBoolean() }", "is_computed", True),
        ("minSdkVersion 29 // minSdk 1", "min_sdk", 29),
        ("minSdk = libs.versions.min.get().toInt()", "min_sdk", None),
        ("minSdk = libs.versions.sdk.least.get().toInt()", "min_sdk", 27),
        ("minSdkVersion rootProject.ext.least", "min_sdk", 26),
        ("minSdkVersion Integer.parseInt(findProperty('least') ?: '24')", "min_sdk", 26),
        ("minSdk = flutter.minSdkVersion", "min_sdk", None),
        ("def low = 23; minSdk low; targetSdk = gone", "min_sdk", 23),
        ("targetSdk = 35", "target_sdk", 35),
        ("ndk { abiFilters.addAll(listOf('arm64-v8a', 'x86')) }", "abis", ("arm64-v8a", "x86")),
        ("abiFilters 'x86'; abiFilters 'arm', 'x86'", "abis", ("x86", "arm")),
        ("id('com.android.application') version '8.13' apply false", "is_app", False),
        ("apply plugin: 'com.android.application'", "is_app", True),
        ("alias(libs.plugins.android.application)", "is_app", True),
        (
            "'org.pytorch:executorch-android:1.0.0'",
            "packages",
            ("org.pytorch:executorch-android:1.0.0",),
        ),
        ("implementation(libs.litert.npu)", "packages", ("com.google.ai.edge.litert:litert:2",)),
        ("'com.google:guava:1'; implementation(libs.guava)", "packages", ()),
        ("implementation libs.bundles.npu", "packages", CATALOG["bundles.npu"]),
        ("testImplementation('x:qnn:1'); implementation('x:qnn:2')", "packages", ("x:qnn:2",)),
        ("debugImplementation(libs.litert.npu)", "packages", ()),
        ("implementation(Deps.qnn)", "packages", ("a.b:qnn:1",)),
        ("npuImplementation rootProject.ext.qnn", "packages", ("a.b:qnn:1",)),
        ("testImplementation(Deps.qnn)", "packages", ()),
        ("val own = 'x:qnn:$npu'; api(own)", "packages", ("x:qnn:3",)),
        ("api 'x:qnn:${libs.versions.sdk.least.get()}'", "packages", ("x:qnn:27",)),
        ("implementation(Deps.gone)", "may_have_other_libraries", True),
        ("implementation('com.acme:npu:1.+')", "may_have_other_libraries", True),
        ("implementation('com.acme:npu:[1.0, 2.0)')", "may_have_other_libraries", True),
        ("implementation(Deps.qnn)", "may_have_other_libraries", False),
        (
            "implementation(compose.runtime); api(projects.a); api platform(libs.b)",
            "may_have_other_libraries",
            True,
        ),
        ("implementation(compose.runtime); api(projects.a)", "may_have_other_libraries", False),
        ("compileOnly 'x:qnn:1'", "packages", ()),
        ("force('x:qnn:1'); api('x:qnn:2')", "packages", ("x:qnn:1",)),
        ("force('x:qnn:1')", "forced", ("x:qnn:1",)),
        ("splits { abi { enable true; reset(); include 'x86' } }", "splits", ("x86",)),
        ("splits { abi { isEnable = true; include('x86') } }", "splits", ()),
        (
            "splits { abi { enable true; reset(); include 'x86'; universalApk true } }",
            "splits",
            (),
        ),
        ("def ort = '1.2'; api \"x:qnn:$ort\"", "packages", ("x:qnn:1.2",)),
        ("val ort: String = '1.2'; api('x:qnn:' + ort)", "packages", ("x:qnn:1.2",)),
        ("ext { v = '1.2' }; api \"x:qnn:${rootProject.ext.v}\"", "packages", ("x:qnn:1.2",)),
        ("api('x:qnn:${property(\"npu\")}')", "packages", ("x:qnn:3",)),
        ("api('x:qnn:$gone')", "packages", ("x:qnn:$gone",)),
        ("ext { v = '1.2' }; api \"x:qnn:$rootProject.ext.v\"", "packages", ("x:qnn:1.2",)),
        ("api(group = 'x', name = 'qnn', version = '1.2')", "packages", ("x:qnn:1.2",)),
        ("def v = '3'; api group: 'x', name: 'qnn', version: v", "packages", ("x:qnn:3",)),
        ("api(group = 'x', name = 'qnn')", "packages", ("x:qnn",)),
        ("val v = '4'; api('x:qnn') { version { strictly(v) } }", "packages", ("x:qnn:4",)),
        ("api('x:qnn') { version { strictly '5' } }", "packages", ("x:qnn:5",)),
        (
            "api('x:qnn') { version { strictly('[1, 6['); prefer('5') } }",
            *("packages", ("x:qnn:5",)),
        ),
        ("// val npu = '4'\napi('x:qnn:$npu')", "packages", ("x:qnn:3",)),
        ("jniLibs.srcDirs = ['a', \"$projectDir/b\"]", "jni_folders", ("a", "b")),
        ("jniLibs { srcDir(file('a')) }", "jni_folders", ("a",)),
        ("jniLibs.srcDirs = [a]", "may_have_other_libraries", True),
        ("externalNativeBuild { cmake { path 'a' } }", "may_have_other_libraries", True),
        ("exclude(group = 'com.qualcomm.qti', module = 'qnn-runtime')", "drops_runtime", True),
        ("exclude group: 'com.qualcomm.qti'", "drops_runtime", True),
        ("exclude group: 'com.qualcomm.qti', module: 'other'", "drops_runtime", False),
        ("exclude group: 'org.other', module: 'qnn-runtime'", "drops_runtime", False),
        ("api(project(':npu')); api(projects.npuCore.io)", "modules", (":npu", ":npu-core:io")),
    ],
)
def test_literal_values_of_a_build_file_are_read(text: str, field: str, value: object) -> None:
    assert getattr(parse(text), field) == value


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ('keepDebugSymbols += "**/libQnnHtpV*Skel.so"', True),
        ("keepDebugSymbols += ['**/*Skel.so',\n '**/x.so']", True),
        ('doNotStrip "*/arm64-v8a/*.so"', True),
        ('doNotStrip "/x86/*.so"', False),
        ('// keepDebugSymbols += "**/*.so"', False),
    ],
)
def test_kept_symbols_are_patterns_of_paths(text: str, is_kept: bool) -> None:
    assert parse(text).keeps(SKEL) is is_kept


@pytest.mark.parametrize(
    ("text", "excludes"),
    [
        ('packaging { jniLibs { excludes += "**/a.so" } }', ("**/a.so",)),
        (
            'packaging { jniLibs { excludes += setOf("**/a.so", "**/b.so") } }',
            ("**/a.so", "**/b.so"),
        ),
        ("packaging { jniLibs { x = true; excludes.add('**/a.so') } }", ("**/a.so",)),
        ("packagingOptions { exclude '/lib/x86/a.so'; exclude 'b.so' }", ("/lib/x86/a.so", "b.so")),
        ("packagingOptions { jniLibs { y = 1 }; exclude 'b.so' }", ("b.so",)),
        ("packagingOptions.jniLibs.excludes += ['**/a.so']", ("**/a.so",)),
        ("packaging { resources { excludes += '**/a.so' } }", ()),
        ("packaging { jniLibs { pickFirsts += '**/a.so' } }", ()),
        ("packaging { // jniLibs { excludes += '**/a.so' }\n}", ()),
        ("implementation('x:y:1') { exclude group: 'z', module: 'a.so' }", ()),
    ],
)
def test_libraries_that_jnilibs_excludes_are_read(text: str, excludes: tuple[str, ...]) -> None:
    assert parse(text).excludes == excludes


TO_SKELS = "jniLibs.excludes.add('**/*Skel.so')"
SKELS = ("**/*Skel.so",)


@pytest.mark.parametrize(
    ("text", "excludes", "maybe_excludes"),
    [
        (f"onVariants(selector().all()) {{ it.packaging.{TO_SKELS} }}", SKELS, ()),
        (f"onVariants(selector().withBuildType('release')) {{ it.{TO_SKELS} }}", SKELS, ()),
        (f"onVariants(selector().withBuildType('debug')) {{ it.{TO_SKELS} }}", (), ()),
        (f"onVariants {{ v -> if (v.buildType == 'debug') {{ v.{TO_SKELS} }} }}", (), ()),
        (f"onVariants {{ v -> if (v.buildType == 'release') {{ v.{TO_SKELS} }} }}", SKELS, ()),
        (f"onVariants {{ v -> if (v.isSmall) {{ v.{TO_SKELS} }} }}", (), SKELS),
        (f"buildTypes {{ debug {{ a {{ b }}; packaging {{ {TO_SKELS} }} }} }}", (), ()),
        (f"buildTypes {{ getByName('debug') {{ packaging {{ {TO_SKELS} }} }} }}", (), ()),
        (f"productFlavors {{ lite {{ packaging {{ {TO_SKELS} }} }} }}", (), SKELS),
        ("val a = listOf('**/*Skel.so')\njniLibs { excludes += a }", SKELS, ()),
        ("def a = ['**/*Skel.so']\npackaging { jniLibs { excludes.addAll(a) } }", SKELS, ()),
        ("jniLibs { excludes += a }", (), ("**",)),
        ("packaging { jniLibs { excludes += unused() } }", (), ("**",)),
        ("packaging { jniLibs { excludes += '**/lib' + name } }", (), ("**",)),
        ("jniLibs { excludes += listOf('68').map { '**/*V$it*' } }", (), ("**",)),
        ("listOf('68').forEach { jniLibs.excludes.add('**/*V${it}*') }", (), ("**",)),
        ("packaging { resources { excludes += a }; jniLibs { excludes -= b } }", (), ()),
    ],
)
def test_excludes_of_other_builds_do_not_count_and_computed_ones_are_not_known(
    text: str, excludes: tuple[str, ...], maybe_excludes: tuple[str, ...]
) -> None:
    build = parse(text)
    assert (build.excludes, build.maybe_excludes) == (excludes, maybe_excludes)


@pytest.mark.parametrize(
    ("pattern", "is_matched"),
    [
        ("**/libQnnHtpV75Skel.so", True),
        ("**libQnnHtpV75Skel.so", True),
        ("**/*Skel.so", True),
        ("**/libQnnHtpV??Skel.so", True),
        ("**/libQnnHtp{V68,V7*}Skel.so", True),
        ("lib/*/libQnnHtp*.so", True),
        ("/lib/arm64-v8a/**", True),
        ("**", True),
        ("lib/x86/**", False),
        ("*.so", False),  # an asterisk matches no slash
        ("libQnnHtpV75Skel.so", False),  # which is at the root of the app
        ("**/libQnnHtpV{68,69}Skel.so", False),
        ("**/libQnnHtpV75Skel", False),
        ("**" * 200, False),
    ],
)
def test_patterns_are_javas_globs_of_the_path_in_the_app(pattern: str, is_matched: bool) -> None:
    assert is_excluded(pattern, SKEL) is is_matched


@pytest.mark.parametrize(
    ("text", "packages"),
    [
        (
            '[libraries]\na-b = "com.qualcomm.qti:qnn-runtime:2.37.1"',
            ["com.qualcomm.qti:qnn-runtime:2.37.1"],
        ),
        (
            '[versions]\nq = "1"\n[libraries]\na = {module = "x:qnn", version.ref = "q"}',
            ["x:qnn:1"],
        ),
        ('[libraries]\na = {group = "x", name = "litert"}', ["x:litert"]),
        (
            '[versions]\nq = {prefer = 1}\n[libraries]\na = {module = "x:qnn", version.ref = "q"}',
            ["x:qnn"],
        ),
        (
            '[libraries]\na = {module="x:qnn", version={strictly="[1,3[", prefer="2"}}',
            ["x:qnn:[1,3[!!2"],
        ),
        (
            '[versions]\nq.strictly = "1"\n[libraries]\na = {module="x:qnn", version.ref="q"}',
            ["x:qnn:1"],
        ),
        ("libraries = 3\nversions = []", []),
        ("[libraries", []),
        ("a = " + "[" * 90_000, []),
        ("#".ljust(MAX_BYTES + 1), []),
    ],
)
def test_version_catalog_names_packages(tmp_path: Path, text: str, packages: list[str]) -> None:
    (tmp_path / "gradle").mkdir()
    (tmp_path / "gradle" / "libs.versions.toml").write_text(text)
    assert [*chain(*read_catalog(tmp_path).values())] == packages


def test_variables_come_from_build_files_and_gradle_properties(tmp_path: Path) -> None:
    (tmp_path / "build.gradle.kts").write_text('extra["ort"] = "1.2" // val no = "3"\n')
    (tmp_path / "gradle.properties").write_text("# no=1\nqnn.version=2.49.0\nnpu : 3\n")
    variables = read_variables(tmp_path)
    assert variables == {"ort": "1.2", "qnn.version": "2.49.0", "npu": "3"}
    assert read_variables(tmp_path / "gone") == {}


def test_build_file_that_is_too_large_or_none_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "build.gradle"
    for text, is_read in (("minSdk 30".ljust(MAX_BYTES), True), (" ".ljust(MAX_BYTES + 1), False)):
        path.write_text(text)
        assert bool(read_build_file(tmp_path)) is is_read
    path.unlink()
    path.mkdir()
    assert read_build_file(tmp_path) is None


def test_a_module_has_the_packages_of_those_that_it_depends_on() -> None:
    builds = {
        ":app": parse("api(project(':npu')); implementation('x:litert:1')"),
        ":npu": parse("api(project(path: ':io')); api('x:qnn:2')"),
        ":io": parse("api(project(':app')); api('x:qnn:1'); api(project(':gone'))"),
    }
    assert join_modules(":app", builds).packages == ("x:litert:1", "x:qnn:2", "x:qnn:1")
    builds[":app"] = parse("force('x:qnn:1'); api(project(':npu'))")
    assert join_modules(":app", builds).packages == ("x:qnn:1",)
    assert join_modules(":io", builds).packages == ("x:qnn:1", "x:qnn:2")


@pytest.mark.parametrize(
    ("app", "npu", "expected"),
    [
        ("api('x:qnn:1')", "exclude group: 'com.qualcomm.qti'", False),
        ("", "exclude group: 'com.qualcomm.qti'; api('x:qnn:1')", True),
        ("exclude group: 'com.qualcomm.qti'; api('x:qnn:1')", "", True),
        ("api('x:qnn:1')", "", False),
    ],
)
def test_an_app_lacks_the_runtime_if_each_module_with_packages_excludes_it(
    app: str, npu: str, expected: bool
) -> None:
    builds = {":app": parse(f"api(project(':npu')); {app}"), ":npu": parse(npu)}
    assert join_modules(":app", builds).drops_runtime is expected


@pytest.mark.parametrize("name", ["qnn", "litert", "executorch", "qnn.-"])
def test_a_coordinate_as_long_as_a_build_file_may_be_is_read(name: str) -> None:
    """An expression that tries each place of the name does not end: it needs 10 ** 12 steps."""
    most = MAX_BYTES // len(name) - 100
    build = parse(f'dependencies {{ implementation "a:{name * most}!" }}')
    assert build.packages == ()
