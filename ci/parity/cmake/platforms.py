"""What CMake says about a platform before a project sets anything."""

from __future__ import annotations

from ci.parity.cmake.values import Value, unknown
from ci.parity.facts import Configuration

ROOT = "/tree"
BUILD = "/build"

PLATFORM_NAMES = (
    "ANDROID", "ANDROID_ABI", "APPLE", "BSD", "CMAKE_CROSSCOMPILING", "CMAKE_HOST_SYSTEM_NAME",
    "CMAKE_HOST_WIN32", "CMAKE_SYSTEM_NAME", "CMAKE_SYSTEM_PROCESSOR", "CMAKE_TOOLCHAIN_FILE",
    "CMAKE_TOOLCHAIN_ANDROID", "CMAKE_TOOLCHAIN_IOS", "CYGWIN", "EMSCRIPTEN", "IOS", "LINUX",
    "MINGW", "MSVC", "UNIX", "WASM", "WIN32", "XCODE",
)  # fmt: skip

HOST = {
    "UNIX": "1",
    "LINUX": "1",
    "CMAKE_SYSTEM_NAME": "Linux",
    "CMAKE_HOST_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "x86_64",
}
ANDROID = {
    "UNIX": "1",
    "ANDROID": "1",
    "ANDROID_ABI": "arm64-v8a",
    "CMAKE_SYSTEM_NAME": "Android",
    "CMAKE_HOST_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "aarch64",
    "CMAKE_CROSSCOMPILING": "1",
    "CMAKE_TOOLCHAIN_FILE": "/ndk/build/cmake/android.toolchain.cmake",
    "CMAKE_TOOLCHAIN_ANDROID": "1",
}


def platform_variables(configuration: Configuration) -> dict[str, Value]:
    """The platform's variables; in ANY each of them is not known, so both branches count."""
    if configuration is Configuration.ANY:
        return {name: unknown(name) for name in PLATFORM_NAMES}
    known = HOST if configuration is Configuration.HOST else ANDROID
    return {name: (known.get(name, ""),) for name in PLATFORM_NAMES}


def root_variables(
    configuration: Configuration, directory: str, root_variable: str
) -> dict[str, Value]:
    """What a top-level CMakeLists.txt in ``directory`` (from the tree's root) begins with.

    ``root_variable`` is the one that the project calls the tree's root.
    """
    source = f"{ROOT}/{directory}".rstrip("/")
    build = f"{BUILD}/{directory}".rstrip("/")
    fixed = {
        "CMAKE_SOURCE_DIR": source,
        "CMAKE_BINARY_DIR": build,
        "PROJECT_SOURCE_DIR": source,
        "PROJECT_BINARY_DIR": build,
        "CMAKE_CURRENT_SOURCE_DIR": source,
        "CMAKE_CURRENT_BINARY_DIR": build,
        "CMAKE_CURRENT_LIST_DIR": source,
        root_variable: ROOT,
        "CMAKE_INSTALL_PREFIX": "/install",
        "CMAKE_INSTALL_LIBDIR": "lib",
        "CMAKE_INSTALL_INCLUDEDIR": "include",
        "CMAKE_INSTALL_BINDIR": "bin",
    }
    variables = platform_variables(configuration)
    variables.update({name: (value,) for name, value in fixed.items()})
    return variables
