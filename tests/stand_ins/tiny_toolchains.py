"""Directories shaped as the QNN SDK, NDK r26c and the Hexagon SDK, from Debian's clang and lld.

Nothing of a vendor is in them: headers, C runtime objects and CMake toolchain files are a few
lines of our own each. What is built with them are real ELF files of the right machine.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from provisioning.doctor.policies import read_doctor_policy

HEADERS = read_doctor_policy().headers
ANDROID_CMAKE = """
foreach(wanted ANDROID_ABI ANDROID_PLATFORM)
  if(NOT ${wanted})
    message(FATAL_ERROR "${wanted} is not given")
  endif()
endforeach()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANDROID_ABI ANDROID_PLATFORM)
string(REPLACE "android-" "" level ${ANDROID_PLATFORM})
set(root ${CMAKE_CURRENT_LIST_DIR}/../../toolchains/llvm/prebuilt/linux-x86_64)
set(ANDROID TRUE)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER ${root}/bin/clang)
set(CMAKE_CXX_COMPILER ${root}/bin/clang++)
foreach(language C CXX) # as android-legacy.toolchain.cmake does: CFLAGS of the caller are lost
  set(CMAKE_${language}_FLAGS "" CACHE STRING "Flags used by all build types.")
  set(CMAKE_${language}_FLAGS "-DOF_NDK ${CMAKE_${language}_FLAGS}")
endforeach()
set(CMAKE_C_COMPILER_TARGET aarch64-linux-android${level})
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-android${level})
set(CMAKE_SYSROOT ${root}/sysroot)
set(libraries ${CMAKE_SYSROOT}/usr/lib)
set(flags "-fuse-ld=lld -nostdlib -Wl,--build-id=sha1 -L${libraries} -lc")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${libraries}/crtbegin_dynamic.o ${flags}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${libraries}/crtbegin_so.o ${flags}")
"""
ANDROID_NOTE = """
    .section .note.android.ident, "a", %note
    .balign 4
    .long 8, 132, 1
    .asciz "Android"
    .long 30
1:  .ascii "r26c"
    .zero 64 - (. - 1b)
2:  .ascii "11394342"
    .zero 64 - (. - 2b)
    .section .note.GNU-stack, "", %progbits
"""
ANDROID_START = """
    .text
    .globl _start
_start:
    bl main
    mov x8, #94
    svc #0
"""
HEXAGON_CMAKE = """
foreach(wanted HEXAGON_TOOLS_ROOT CDSP_VERSION DSP_TYPE)
  if(NOT DEFINED ${wanted})
    message(FATAL_ERROR "${wanted} is not given")
  endif()
endforeach()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEXAGON_TOOLS_ROOT CDSP_VERSION DSP_TYPE)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR Hexagon)
set(CMAKE_C_COMPILER ${HEXAGON_TOOLS_ROOT}/Tools/bin/hexagon-clang)
set(CMAKE_CXX_COMPILER ${HEXAGON_TOOLS_ROOT}/Tools/bin/hexagon-clang++)
set(CMAKE_C_FLAGS "-m${CDSP_VERSION}")
set(CMAKE_CXX_FLAGS "-m${CDSP_VERSION} -fno-exceptions -fno-rtti")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-fuse-ld=lld -nostdlib")
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def make_qnn_sdk(root: Path) -> Path:
    for name in HEADERS:
        write(root / "include/QNN" / name, f"#pragma once\n// {name}\n")
    write(root / "include/QNN/QnnInterface.h", "#pragma once\n#define QNN_API_VERSION_MAJOR 2\n")
    write(root / "sdk.yaml", "product: QNN\nversion: 2.37.0.250724\n")
    for part in ("x86_64-linux-clang", "aarch64-android", "aarch64-oe-linux-gcc11.2"):
        (root / "lib" / part).mkdir(parents=True)
    (root / "share").mkdir()
    return root


def make_libcxx(root: Path) -> Path:
    for name in ("libc++", "libc++abi", "libunwind"):
        write(root / "lib" / f"{name}.so.1", "")
    return root


def make_ndk(root: Path, revision: str = "26.2.11394342") -> Path:
    write(root / "source.properties", f"Pkg.Desc = Android NDK\nPkg.Revision = {revision}\n")
    write(root / "build/cmake/android.toolchain.cmake", ANDROID_CMAKE)
    prebuilt = root / "toolchains/llvm/prebuilt/linux-x86_64"
    (prebuilt / "bin").mkdir(parents=True)
    for name in ("clang", "clang++", "ld.lld", "llvm-objcopy"):
        (prebuilt / "bin" / name).symlink_to(str(shutil.which(name)))
    library = prebuilt / "sysroot/usr/lib"
    compiler = [str(prebuilt / "bin/clang"), "--target=aarch64-linux-android30", "-nostdlib"]
    for name, text in (
        ("crtbegin_so.o", ANDROID_NOTE),
        ("crtbegin_dynamic.o", ANDROID_NOTE + ANDROID_START),
    ):
        source = write(library / f"{name}.s", text)
        subprocess.run([*compiler, "-c", str(source), "-o", str(library / name)], check=True)
    stub = write(library / "libc.c", "void tiny_libc(void) {}\n")
    shared = ["-shared", "-fuse-ld=lld", "-Wl,-soname,libc.so", "-o", str(library / "libc.so")]
    subprocess.run([*compiler, "-fPIC", str(stub), *shared], check=True)
    return root


def make_hexagon_sdk(root: Path) -> Path:
    write(root / "build/cmake/hexagon_toolchain.cmake", HEXAGON_CMAKE)
    tools = root / "tools/HEXAGON_Tools/19.0.07/Tools/bin"
    tools.mkdir(parents=True)
    for name in ("clang", "clang++"):
        program = write(
            tools / f"hexagon-{name}",
            f'#!/bin/sh\nexec {name} --target=hexagon-unknown-linux-musl "$@"\n',
        )
        program.chmod(0o755)
    return root
