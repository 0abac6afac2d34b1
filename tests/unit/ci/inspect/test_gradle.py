"""Build files of Gradle, in Groovy and Kotlin."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ci.inspect.gradle import MAX_BYTES, Gradle, parse_gradle, read_build

SKEL = "lib/arm64-v8a/libQnnHtpV75Skel.so"


def parse(text: str) -> Gradle:
    return parse_gradle("build.gradle", text)


@pytest.mark.parametrize(
    ("text", "legacy"),
    [
        ("packaging { jniLibs { useLegacyPackaging = true } }", True),
        ("packagingOptions { jniLibs { useLegacyPackaging false } }", False),
        ("packaging.jniLibs.useLegacyPackaging = true", True),
        ("packaging { dex { useLegacyPackaging = true } }", None),
        ("// jniLibs { useLegacyPackaging = true }", None),
        ("/* jniLibs { useLegacyPackaging = true }", None),
        ('jniLibs { excludes += "**/*.so"; useLegacyPackaging = true } // **/', True),
        ("jniLibs { useLegacyPackaging enabled.toBoolean() }", None),
    ],
)
def test_packaging_is_read_of_native_libraries_alone(text: str, legacy: bool | None) -> None:
    assert parse(text).legacy is legacy
    assert parse(text).is_legacy_computed == ("enabled" in text)


def test_first_build_file_that_is_small_enough_is_read(tmp_path: Path) -> None:
    assert read_build([tmp_path], tmp_path) == {}
    for name, module in (("build.gradle", "b"), ("build.gradle.kts", "a")):
        (tmp_path / name).write_text(f"project(':{module}')".ljust(MAX_BYTES))
    found = read_build([tmp_path], tmp_path)[tmp_path]
    assert (found.file, found.projects) == ("build.gradle.kts", ("a",))
    with (tmp_path / "build.gradle.kts").open("a") as file:
        file.write(" ")
    found = read_build([tmp_path], tmp_path)[tmp_path]
    assert (found.file, found.projects) == ("build.gradle", ("b",))
    (tmp_path / "build.gradle").write_bytes(b"// M\xfcnchen\nproject(':b')")  # Latin-1
    found = read_build([tmp_path], tmp_path)[tmp_path]
    assert found.projects == ("b",)
    (tmp_path / "build.gradle").unlink()
    (tmp_path / "build.gradle").mkdir()
    assert read_build([tmp_path], tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('jniLibs { keepDebugSymbols += "**/libQnnHtpV*Skel.so" }', True),
        ("jniLibs { keepDebugSymbols += ['**/*Skel.so',\n '**/x.so'] }", True),
        ('doNotStrip "*/arm64-v8a/*.so"', True),
        ('doNotStrip "/lib/arm64-v8a/*.so"', True),
        ('doNotStrip "/x86/*.so"', False),
        ('keepDebugSymbols += "**/libQnnHtpV73Skel.so"', False),
        ('// keepDebugSymbols += "**/*.so"', False),
        ("", False),
    ],
)
def test_kept_symbols_are_patterns_of_paths(text: str, kept: bool) -> None:
    assert parse(text).keeps(SKEL) is kept


def test_whole_build_file_is_read() -> None:
    found = parse(
        """plugins { alias(libs.plugins.android.application) }
        android { ndk { abiFilters.addAll(listOf("arm64-v8a", "x86")) }
          defaultConfig { minSdkVersion 29; targetSdkVersion 34 } // minSdk 1
          flavour { minSdk = 31 }
          sourceSets { main { jniLibs.srcDirs = ['libs', 'more'] } }
          packaging { jniLibs { pickFirsts += ['**/libc++_shared.so'] } } }
        dependencies { implementation project(path: ':lib:qnn')
          implementation files('libs/a.aar'); implementation(name: 'b', ext: 'aar')
          implementation "org.pytorch:executorch-android-qnn:1.0.0"
          implementation 'com.google:guava:1' }"""
    )
    assert found.is_app
    assert (found.abis, found.libraries) == (("arm64-v8a", "x86"), ("libs", "more"))
    assert (found.projects, found.archives) == (("lib:qnn",), ("libs/a.aar", "b.aar"))
    assert found.maven == ("org.pytorch:executorch-android-qnn:1.0.0",)
    assert (found.min_sdk, found.target_sdk) == (29, 34)
    assert found.picks_first("lib/x86/libc++_shared.so")
    assert not found.picks_first("lib/x86/libb.so")


@pytest.mark.parametrize(
    ("text", "field", "found"),
    [
        ("pickFirst '**/liba.so'", "first", ("**/liba.so",)),
        ("abiFilters 'x86', 'arm64-v8a'", "abis", ("x86", "arm64-v8a")),
        ("jniLibs.srcDir 'libs'", "libraries", ("libs",)),
        ('jniLibs { setSrcDirs(listOf("a")) }', "libraries", ("a",)),
        (
            "'org.pytorch:executorch-android:1.0.0'",
            "maven",
            ("org.pytorch:executorch-android:1.0.0",),
        ),
        ("'com.example:QNN-tools:1'", "maven", ("com.example:QNN-tools:1",)),
        ("'com.example:tools:1'", "maven", ()),
        ("'a:qnn:1' 'c:qnn:1' 'b:qnn:1' 'a:qnn:1'", "maven", ("a:qnn:1", "c:qnn:1", "b:qnn:1")),
        ("".join(f"project(':{one}')" for one in "ecadbfe"), "projects", (*"ecadbf",)),
        ("abiFilters 'x86', 'mips'; abiFilters 'arm', 'x86'", "abis", ("x86", "mips", "arm")),
    ],
)
def test_each_form_of_a_setting_is_read(text: str, field: str, found: tuple[str, ...]) -> None:
    assert getattr(parse(text), field) == found


@pytest.mark.parametrize(
    ("text", "is_app"),
    [
        ('id("com.android.application") version "8.13" apply false', False),
        ("id 'com.android.library'", False),
        ("apply plugin: 'com.android.application'", True),
    ],
)
def test_module_that_applies_the_plugin_is_an_app(text: str, is_app: bool) -> None:
    assert parse(text).is_app is is_app


@pytest.mark.parametrize(
    "part",
    [
        'keepDebugSymbols += "a", ',
        "keepDebugSymbols  ",
        "pickFirsts.aa",
        '"\\',
        "/*",
        "jniLibs {",
    ],
)
def test_hostile_build_file_takes_little_time(part: str) -> None:
    started = time.process_time()
    parse(part * (MAX_BYTES // len(part)))
    parse(part[:20] + part[-1] * (MAX_BYTES - 20))
    assert time.process_time() - started < 5


def write(root: Path, files: dict[str, str]) -> list[Path]:
    """Write files, and return the directories that have build files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return sorted({path.parent for path in root.rglob("build.gradle*")})


SCRIPT = 'plugins { id("com.android.application") }\nandroid { defaultConfig { minSdk = 29 } }'
CLASS = """package shop.build
class AppPlugin : Plugin<Project> {
    override fun apply(target: Project) { target.pluginManager.apply("com.android.application")
        extensions.configure<ApplicationExtension> { packaging.jniLibs.useLegacyPackaging = true } }
}"""
REGISTER = """plugins { `java-gradle-plugin` }
gradlePlugin { plugins { register("app") {
    id = "shop.app"
    implementationClass = "shop.build.AppPlugin"
} } }"""


@pytest.mark.parametrize(
    ("files", "applied", "facts"),
    [
        (
            {
                "build-logic/c/build.gradle.kts": REGISTER,
                "build-logic/c/src/main/java/AppPlugin.kt": CLASS,
            },
            'plugins { id("shop.app") }',
            (True, True, None),
        ),
        (
            {"buildSrc/build.gradle": "x", "buildSrc/src/main/groovy/shop.app.gradle": SCRIPT},
            "apply plugin: 'shop.app'",
            (True, None, 29),
        ),
        (
            {
                "gradle/build-logic/build.gradle.kts": "plugins { `kotlin-dsl` }",
                "gradle/build-logic/src/main/kotlin/app.gradle.kts": f"package shop\n{SCRIPT}",
                "gradle/libs.versions.toml": '[plugins]\nshop-mobile = { id = "shop.app" }',
            },
            "plugins { alias(libs.plugins.shop.mobile) }",
            (True, None, 29),
        ),
        (
            {"gradle-plugins/build.gradle": REGISTER},
            'plugins { id("shop.app") }',
            (False, None, None),
        ),
    ],
)
def test_plugin_of_the_tree_makes_an_app_of_a_module(
    files: dict[str, str], applied: str, facts: tuple[bool, bool | None, int | None], tmp_path: Path
) -> None:
    modules = write(tmp_path, files | {"app/build.gradle.kts": applied})
    found = read_build(modules, tmp_path)
    assert [*found] == [tmp_path / "app"]
    app = found[tmp_path / "app"]
    assert (app.is_app, app.legacy, app.min_sdk) == facts
