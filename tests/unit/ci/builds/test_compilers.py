"""The CMake options, the identity and the values of each kind of compiler, on stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.builds import toolchains
from ci.builds.checkout import describe_soc
from ci.builds.plan import BuildRequest
from ci.builds.targets import CompilerChoice
from ci.builds.toolchains import Compilers, resolve_compilers
from provisioning.doctor.policies import elf_policy
from provisioning.errors import UnfitError, UsageError


@pytest.fixture(autouse=True)
def _identities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compiler is called by its name; none runs."""
    monkeypatch.setattr(toolchains, "identify_compiler", lambda path: f"this is {path.name}")
    for name in ("CC", "CXX", "TOOLCHAIN_ROOT_HOST", "TOOLCHAIN_ROOT_TARGET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in ("cc", "c++", "clang", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"):
        write_program(tmp_path / "bin" / name)


def write_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


CROSS = {
    "CMAKE_SYSTEM_NAME": "Linux",
    "CMAKE_SYSTEM_PROCESSOR": "aarch64",
    "CMAKE_FIND_ROOT_PATH_MODE_PROGRAM": "NEVER",
}


def test_a_host_is_built_for_by_the_compilers_of_the_variables_or_of_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "CMAKE_C_COMPILER": str(tmp_path / "bin/cc"),
        "CMAKE_CXX_COMPILER": str(tmp_path / "bin/c++"),
    }
    identity = {"cc": "this is cc", "cxx": "this is c++"}
    assert resolve_compilers(CompilerChoice.HOST) == Compilers(options, identity)
    monkeypatch.setenv("CC", str(tmp_path / "bin/clang"))
    options |= {"CMAKE_C_COMPILER": str(tmp_path / "bin/clang")}
    identity |= {"cc": "this is clang"}
    assert resolve_compilers(CompilerChoice.HOST) == Compilers(options, identity)


@pytest.mark.parametrize(("c", "cxx"), [("gcc", "g++"), ("clang", "clang++"), ("gcc", "clang++")])
def test_a_host_without_cc_has_gcc_or_clang(tmp_path: Path, c: str, cxx: str) -> None:
    for name in ("cc", "c++", "clang"):
        (tmp_path / "bin" / name).unlink()
    with pytest.raises(UnfitError, match="no cc or gcc or clang on PATH"):
        resolve_compilers(CompilerChoice.HOST)
    paths = [str(write_program(tmp_path / "bin" / name)) for name in (c, cxx)]
    assert [*resolve_compilers(CompilerChoice.HOST).options.values()] == paths
    for name in ("gcc", "g++", "cc", "c++"):  # each of these is preferred
        write_program(tmp_path / "bin" / name)
        found = resolve_compilers(CompilerChoice.HOST).options.values()
        assert str(tmp_path / "bin" / name) in found


def test_linux_is_built_for_by_the_cross_compilers_or_those_of_a_vendors_sdk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = f"{tmp_path}/bin/aarch64-linux-gnu-"
    found = resolve_compilers(CompilerChoice.LINUX_CROSS)
    assert found == Compilers(
        {"CMAKE_C_COMPILER": f"{prefix}gcc", "CMAKE_CXX_COMPILER": f"{prefix}g++", **CROSS},
        {"cc": "this is aarch64-linux-gnu-gcc", "cxx": "this is aarch64-linux-gnu-g++"},
        {"linux_policy": "aarch64-linux"},
    )
    (tmp_path / "target").mkdir()
    monkeypatch.setenv("TOOLCHAIN_ROOT_HOST", str(tmp_path / "host"))
    monkeypatch.setenv("TOOLCHAIN_ROOT_TARGET", str(tmp_path / "target"))
    prefix = f"{tmp_path}/host/usr/bin/aarch64-oe-linux/aarch64-oe-linux-"
    found = resolve_compilers(CompilerChoice.LINUX_CROSS)
    assert found == Compilers(
        {
            "CMAKE_C_COMPILER": f"{prefix}gcc",
            "CMAKE_CXX_COMPILER": f"{prefix}g++",
            "CMAKE_SYSROOT": str(tmp_path / "target"),
            **CROSS,
        },
        {"cc": "this is aarch64-oe-linux-gcc", "cxx": "this is aarch64-oe-linux-g++"},
        {"linux_policy": "aarch64-oe-linux"},
    )


@pytest.mark.parametrize("objcopy", [False, True])
def test_android_is_built_for_by_the_ndk_at_the_level_and_pages_of_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objcopy: bool
) -> None:
    monkeypatch.setattr(toolchains, "read_version", lambda root, _: f"version in {root.name}")
    monkeypatch.setattr(toolchains, "identify_compiler", str)
    policy = elf_policy("aarch64-android")
    level, pages = f"android-{policy.android_api}", str(policy.load_align)
    programs = tmp_path / "ndk/toolchains/llvm/prebuilt/linux-x86_64/bin"
    values = {"android_platform": level, "page_bytes": pages}
    if objcopy:
        values["objcopy"] = str(write_program(programs / "llvm-objcopy"))
    found = resolve_compilers(CompilerChoice.NDK, {"android-ndk": tmp_path / "ndk"})
    assert found == Compilers(
        {
            "CMAKE_TOOLCHAIN_FILE": f"{tmp_path}/ndk/build/cmake/android.toolchain.cmake",
            "ANDROID_ABI": "arm64-v8a",
            "ANDROID_PLATFORM": level,
            "QNN_CI_PAGE_BYTES": pages,
        },
        {"release": "version in ndk", "cxx": f"{programs}/clang++"},
        values,
    )


def test_hexagon_is_built_for_by_the_tools_of_its_variable(tmp_path: Path) -> None:
    toolchain = write_program(tmp_path / "sdk/build/cmake/hexagon_toolchain.cmake")
    write_program(tmp_path / "tools/Tools/bin/hexagon-clang++")
    roots, variables = (
        {"hexagon-sdk": tmp_path / "sdk"},
        {"HEXAGON_TOOLS_ROOT": f"{tmp_path}/tools"},
    )
    assert resolve_compilers(CompilerChoice.HEXAGON, roots, variables) == Compilers(
        {"CMAKE_TOOLCHAIN_FILE": str(toolchain)},
        {"cxx": "this is hexagon-clang++"},
        {"hexagon_tools_root": f"{tmp_path}/tools"},
    )


def test_a_toolchain_or_a_compiler_for_hexagon_that_is_missing_is_named(tmp_path: Path) -> None:
    roots = {"hexagon-sdk": tmp_path}
    variables = {"HEXAGON_TOOLS_ROOT": f"{tmp_path}/none"}
    with pytest.raises(UnfitError, match=r"no build/cmake/hexagon_toolchain\.cmake"):
        resolve_compilers(CompilerChoice.HEXAGON, roots, variables)
    write_program(tmp_path / "build/cmake/hexagon_toolchain.cmake")
    for names, fix in (((), "the directory that contains Tools/bin"), (("2", "1"), "")):
        tools = [tmp_path / toolchains.HEXAGON_TOOLS / name for name in names]
        for one in tools:
            write_program(one / "Tools/bin/hexagon-clang++")
        with pytest.raises(UnfitError) as caught:
            resolve_compilers(CompilerChoice.HEXAGON, roots, variables)
        assert caught.value.what == (
            f"the compiler {tmp_path}/none/Tools/bin/hexagon-clang++ is missing"
        )
        shown = fix or " or ".join(map(str, sorted(tools)))
        assert caught.value.fix == f"set HEXAGON_TOOLS_ROOT to {shown}"


@pytest.mark.parametrize(
    ("soc", "dsp_type", "arch"), [("SM8850", 0, "v81"), ("SM8850", 3, "v81"), ("SM8650", 3, "v75")]
)
def test_a_build_for_a_dsp_is_of_the_socs_hexagon(soc: str, dsp_type: int, arch: str) -> None:
    assert describe_soc(BuildRequest(soc=soc, dsp_type=dsp_type)) == {
        "dsp_arch": arch,
        "dsp_type": str(dsp_type),
        "hexagon_policy": f"hexagon-{arch}",
    }


@pytest.mark.parametrize(("soc", "dsp_type"), [("", 3), ("SM8650", 0), ("SM8850", 7)])
def test_a_dsp_that_a_soc_lacks_is_refused(soc: str, dsp_type: int) -> None:
    with pytest.raises(UsageError):
        describe_soc(BuildRequest(soc=soc, dsp_type=dsp_type))
