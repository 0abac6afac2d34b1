"""Single faults, each found under its own id, and gone when its fix is followed to the letter.

Each row says what is broken and what the fix of docs/reference/checks.md makes of it.
"""

from __future__ import annotations

import ctypes.util
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from provisioning.doctor.examine import examine_request
from provisioning.doctor.survey.environment import SurveyRequest
from provisioning.elf.reader import read_elf
from tests.stand_ins.environments import (
    ANDROID,
    BUILD,
    HOST,
    LIBRARIES,
    LINUX,
    World,
    adaptor_path,
    git,
    install,
    write,
    write_program,
)
from tests.stand_ins.faults import SIZES, Ask, Mutate, as_it_is, find, nothing, staged
from tests.stand_ins.lowered import make_program

OLDER, NEWER = "v2.11.40.230710101010", "v2.99.40.290901101010"
STUB, SKEL = "libQnnHtpV79Stub.so", "libQnnHtpV79Skel.so"
SKEL_PLACE = f"lib/hexagon-v79/unsigned/{SKEL}"
CLANG = "toolchains/llvm/prebuilt/linux-x86_64/bin/clang++"
CORE = f"{ANDROID}/libQnnHtp.so"
STDCXX = ctypes.util.find_library("stdc++")


class Row(NamedTuple):
    """A fault, and what its fix makes of it: of files, of what is asked, or both."""

    name: str
    profile: str
    wanted: str
    mutate: Mutate = nothing
    ask: Ask = as_it_is
    repair: Mutate = nothing
    asked_again: Ask | None = None

    def __str__(self) -> str:
        return f"{self.wanted} {self.name}"


def request_of(world: World, profile: str) -> SurveyRequest:
    return staged(world) if profile == "staging" else world.request(profile)


def findings_of(request: SurveyRequest) -> dict[str, str]:
    """The fix of each finding by its id."""
    verdict = examine_request(request)
    return {one.id: one.fix for one in verdict.findings if one.id not in SIZES}


def rooted(name: str, place: Callable[[World], Path]) -> Ask:
    return lambda request, world: replace(request, roots={**request.roots, name: place(world)})


def variables(**values: str) -> Ask:
    def ask(request: SurveyRequest, world: World) -> SurveyRequest:
        filled = {
            name: text.format(base=world.base, sdk=world.sdk) for name, text in values.items()
        }
        return replace(request, variables={**request.variables, **filled})

    return ask


def for_soc(request: SurveyRequest, world: World) -> SurveyRequest:
    return replace(request, soc="SM8750")


def removed(*names: str) -> Mutate:
    def mutate(world: World) -> None:
        for name in names:
            world.remove(find(world, name))

    return mutate


def copied(*pairs: tuple[str, str]) -> Mutate:
    """Copy files of the SDK to where the fix says."""

    def mutate(world: World) -> None:
        for source, target in pairs:
            path = find(world, target)
            path.unlink(missing_ok=True)
            path.write_bytes(find(world, source).read_bytes())

    return mutate


def empty_staging(world: World) -> None:
    for path in sorted(world.staging.iterdir()):
        world.remove(path)


def stage_all(world: World) -> None:
    names = ("libQnnHtp.so", "libQnnHtpPrepare.so", "libQnnSystem.so", STUB)
    for source in (*(world.sdk / LINUX / name for name in names), world.sdk / SKEL_PLACE):
        (world.staging / source.name).write_bytes(source.read_bytes())


def restore(world: World) -> None:
    """What taking it from the SDK again, or provisioning it again, comes to."""
    world.restore()


def other_pair(world: World) -> None:
    """Stub and skel of V75 in the place of V79's."""
    removed(f"staging/{STUB}", f"staging/{SKEL}")(world)
    for source in (f"{LINUX}/libQnnHtpV75Stub.so", "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"):
        path = world.sdk / source
        world.add(world.staging / path.name, path.read_bytes())


def lowered(build: str) -> Mutate:
    """A program whose only build is ``build``, behind its last segment."""
    content = make_program(b"graph") + b"\0" + build.encode() + b"\0"
    return lambda world: world.add(world.staging / "model.pte", content)


def lower_again(build: str) -> Mutate:
    def mutate(world: World) -> None:
        path = world.staging / "model.pte"
        path.write_bytes(path.read_bytes().replace(NEWER.encode(), build.encode()))

    return mutate


def anonymous(name: str) -> Mutate:
    """A file of the right name, machine and soname that no SDK has."""

    def mutate(world: World) -> None:
        data = bytearray(find(world, name).read_bytes())
        for text in (BUILD, BUILD[9:], "AISW_VERSION"):
            data = data.replace(text.encode(), b"x" * len(text))
        world.replace(find(world, name), bytes(data))

    return mutate


def foreign_runtime(edit: Callable[[bytes], bytes]) -> Mutate:
    def mutate(world: World) -> None:
        use_libstdcxx(world)
        source = next(Path("/").glob(f"usr/lib/*/{STDCXX}"))
        world.add(world.base / "conda" / "libstdc++.so.6", edit(source.read_bytes()))

    return mutate


def use_libstdcxx(world: World) -> None:
    """An adaptor that needs a version of libstdc++, as the real one does."""
    source = next(Path("/").glob(f"usr/lib/*/{STDCXX}"))
    world.replace(adaptor_path(world), needing_libstdcxx(source.parent))


def needing_libstdcxx(libraries: Path) -> bytes:
    for path in sorted(libraries.glob("lib*.so*")):
        if path.is_file() and not path.name.startswith("libstdc++"):
            facts = read_elf(path)
            if (facts.highest_need("GLIBCXX") or ()) > (3, 4, 20) and facts.machine == 62:
                return path.read_bytes()
    pytest.skip("no library of this machine needs libstdc++")


def age_libstdcxx(data: bytes) -> bytes:
    """Without any version after GLIBCXX_3.4.19."""
    return re.sub(
        rb"GLIBCXX_3\.4\.(2\d|3\d)\0", lambda found: b"GLIBCXX_3.4.1" + found[1][:1] + b"\0", data
    )


def requires(world: World, line: str) -> None:
    """Metadata of executorch that asks for it."""
    path = world.site / "executorch-0.dist-info" / "METADATA"
    world.replace(path, path.read_bytes() + f"Requires-Dist: {line}\n".encode())


def installed(name: str, found: str, line: str) -> Mutate:
    def mutate(world: World) -> None:
        requires(world, line)
        world.add(
            world.site / f"{name}-0.dist-info" / "METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {found}\n".encode(),
        )

    return mutate


def api(major: int, minor: int) -> Mutate:
    parts = (("MAJOR", major), ("MINOR", minor), ("PATCH", 0))
    text = "".join(f"#define QNN_API_VERSION_{name} {number}\n" for name, number in parts)
    return lambda world: world.replace(world.sdk / "include/QNN/QnnCommon.h", text.encode())


def colon(world: World) -> Path:
    return world.base / "opt:qairt"


def move_sdk(world: World) -> None:
    world.move(world.sdk, colon(world))


def move_back(world: World) -> None:
    colon(world).rename(world.sdk)
    world.undo.clear()


def in_colon(request: SurveyRequest, world: World) -> SurveyRequest:
    place = colon(world)
    values = {"QNN_SDK_ROOT": str(place)}
    roots = {**request.roots, "qnn-sdk": place}
    return replace(request, roots=roots, variables={**request.variables, **values})


def glibc_on_android(world: World) -> None:
    world.replace(find(world, f"android/{CORE}"), find(world, f"{LINUX}/libQnnHtp.so").read_bytes())
    name = (world.sdk / LINUX / "libQnnHtp.so").name
    assert name == "libQnnHtp.so"


def android_on_linux(world: World) -> None:
    data = bytearray(find(world, f"android/{ANDROID}/libQnnSystem.so").read_bytes())
    world.replace(world.sdk / LINUX / "libQnnSystem.so", bytes(data))


def hide_executorch(world: World) -> None:
    world.add(world.base / "pythonpath" / "executorch" / "__init__.py", b"")


def without_path(request: SurveyRequest, world: World) -> SurveyRequest:
    kept = {name: text for name, text in request.variables.items() if name != "PYTHONPATH"}
    return replace(request, variables=kept)


def dangle(world: World) -> None:
    path = world.sdk / HOST / "libQnnSystem.so"
    world.remove(path)
    path.symlink_to("../gone/libQnnSystem.so")


def break_interpreter(world: World) -> None:
    write_program(world.base / "broken" / "python", "no such library", 127)
    world.undo.append(lambda: shutil.rmtree(world.base / "broken"))


def fake_python(world: World) -> None:
    """Python 3.9, as a script that answers what it would."""
    said = (
        '{\\"executable\\": \\"/opt/python3.9\\", \\"version\\": [3, 9, 18], \\"tag\\": \\".so\\", '
        '\\"distributions\\": {}, \\"modules\\": {}, \\"executorch\\": null, \\"adaptors\\": [], '
        '\\"flatc\\": null, \\"asked\\": [], \\"installed\\": \\"\\", \\"pth\\": []}'
    )
    write_program(world.base / "broken" / "python", said)
    world.undo.append(lambda: shutil.rmtree(world.base / "broken"))


def asks_python(request: SurveyRequest, world: World) -> SurveyRequest:
    return replace(request, python=world.base / "broken" / "python")


def tool(name: str, says: str, code: int = 0) -> Mutate:
    def mutate(world: World) -> None:
        world.remove(world.tools / name)
        write_program(world.tools / name, says, code)

    return mutate


def wrap(world: World) -> None:
    (world.base / "wrapped").mkdir()
    (world.base / "wrapped" / "qairt").symlink_to(world.sdk)
    world.undo.append(lambda: shutil.rmtree(world.base / "wrapped"))


def reset_nested(world: World) -> None:
    nested = world.checkout / "third-party/json/deep"
    before = git(nested, "rev-parse", "HEAD").strip()
    git(nested, "commit", "-q", "--allow-empty", "-m", "mine")
    world.undo.append(lambda: git(nested, "reset", "-q", "--hard", before))


def run_fix(wanted: str) -> Mutate:
    """Run the commands that the finding tells, as a reader would."""

    def mutate(world: World) -> None:
        fix = findings_of(world.request("linux"))[wanted]
        words = fix.split()
        assert words[:2] == ["git", "-C"], fix
        git(Path(words[2]), *words[3:])
        world.undo.clear()

    return mutate


def replace_text(name: str, text: str) -> Mutate:
    return lambda world: world.replace(find(world, name), text.encode())


def leave_flatcc(world: World) -> None:
    compiler = (LIBRARIES / "libaarch64.so").read_bytes()
    path = world.checkout / "third-party" / "flatcc" / "bin" / "flatcc"
    write(path, "")
    path.write_bytes(compiler)


def drop_flatcc(world: World) -> None:
    (world.checkout / "third-party" / "flatcc" / "bin" / "flatcc").unlink()


def no_mode(world: World) -> None:
    (world.ndk / CLANG).chmod(0o644)


def flip_skel(world: World) -> None:
    """One bit of the skel's code."""
    data = bytearray((world.staging / SKEL).read_bytes())
    data[0x2000] ^= 1
    world.replace(world.staging / SKEL, bytes(data))


def needing_more(world: World) -> None:
    """An adaptor that needs a library which no loader finds."""
    world.replace(adaptor_path(world), (LIBRARIES / "libx86.so").read_bytes())


def give_mode(world: World) -> None:
    (world.ndk / CLANG).chmod(0o755)


def dangle_staged(world: World) -> None:
    path = world.staging / "libQnnSystem.so"
    world.remove(path)
    path.symlink_to("../gone/libQnnSystem.so")


def copy_over_link(world: World) -> None:
    (world.staging / "libQnnSystem.so").unlink()
    shutil.copyfile(world.sdk / LINUX / "libQnnSystem.so", world.staging / "libQnnSystem.so")


def hide_by_path_file(world: World) -> None:
    """A folder named executorch, of a package that has nothing of it, comes first."""
    folder = world.base / "first" / "executorch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    world.undo.append(lambda: shutil.rmtree(folder.parent))
    line = f"import sys; sys.path.insert(0, {str(folder.parent)!r})\n"
    path = world.site / "first.pth"
    path.write_text(line)
    world.undo.append(lambda: path.unlink(missing_ok=True))


STAGING = [
    Row(
        "staged nowhere",
        "staging",
        "QNN308",
        ask=rooted("staging", lambda world: world.base / "none"),
        asked_again=as_it_is,
    ),
    Row("an empty staging directory", "staging", "QNN309", empty_staging, repair=stage_all),
    Row(
        "no libQnnHtp.so",
        "staging",
        "QNN310",
        removed("staging/libQnnHtp.so"),
        repair=copied((f"{LINUX}/libQnnHtp.so", "staging/libQnnHtp.so")),
    ),
    Row(
        "neither stub nor skel",
        "staging",
        "QNN311",
        removed(f"staging/{STUB}", f"staging/{SKEL}"),
        repair=copied((f"{LINUX}/{STUB}", f"staging/{STUB}"), (SKEL_PLACE, f"staging/{SKEL}")),
    ),
    Row(
        "stub and skel of another SoC",
        "staging",
        "QNN312",
        other_pair,
        for_soc,
        copied((f"{LINUX}/{STUB}", f"staging/{STUB}"), (SKEL_PLACE, f"staging/{SKEL}")),
    ),
    Row(
        "a skel without its stub",
        "staging",
        "QNN312",
        removed(f"staging/{STUB}"),
        for_soc,
        copied((f"{LINUX}/{STUB}", f"staging/{STUB}")),
    ),
    Row(
        "a stub under the skel's name",
        "staging",
        "QNN306",
        lambda world: world.replace(world.staging / SKEL, (world.sdk / LINUX / STUB).read_bytes()),
        repair=copied((SKEL_PLACE, f"staging/{SKEL}")),
    ),
    Row(
        "code for V75 under V79's name",
        "staging",
        "QNN306",
        lambda world: world.replace(
            world.staging / SKEL, (world.sdk / SKEL_PLACE.replace("79", "75")).read_bytes()
        ),
        repair=copied((SKEL_PLACE, f"staging/{SKEL}")),
    ),
    Row(
        "a staged link that leads nowhere",
        "staging",
        "QNN300",
        dangle_staged,
        repair=copy_over_link,
    ),
    Row(
        "a skel without a stub, for any SoC",
        "staging",
        "QNN311",
        removed(f"staging/{STUB}"),
        repair=copied((f"{LINUX}/{STUB}", f"staging/{STUB}")),
    ),
    Row("a program of a newer QNN", "staging", "QNN313", lowered(NEWER), repair=lower_again(BUILD)),
    Row(
        "a stub that is nobody's",
        "staging",
        "QNN314",
        anonymous(f"staging/{STUB}"),
        repair=copied((f"{LINUX}/{STUB}", f"staging/{STUB}")),
    ),
    Row(
        "a skel with a flipped byte",
        "staging",
        "QNN230",
        flip_skel,
        repair=copied((SKEL_PLACE, f"staging/{SKEL}")),
    ),
]


IMPORT = [
    Row(
        "an old libstdc++ first",
        "emulator",
        "QNN415",
        foreign_runtime(age_libstdcxx),
        variables(LD_LIBRARY_PATH="{base}/conda:{sdk}/" + HOST),
        asked_again=as_it_is,
    ),
    Row(
        "a libstdc++ that is empty",
        "emulator",
        "QNN411",
        lambda world: world.add(world.base / "conda" / "libstdc++.so.6", b""),
        variables(LD_LIBRARY_PATH="{sdk}/" + HOST + ":{base}/conda"),
        asked_again=as_it_is,
    ),
    Row(
        "an adaptor for aarch64",
        "emulator",
        "QNN513",
        lambda world: world.replace(
            adaptor_path(world), (LIBRARIES / "libaarch64.so").read_bytes()
        ),
        repair=restore,
    ),
    Row(
        "an executorch that is first in a .pth file",
        "emulator",
        "QNN516",
        hide_by_path_file,
        repair=lambda world: (world.site / "first.pth").unlink(),
    ),
    Row(
        "numpy without its folder",
        "emulator",
        "QNN510",
        removed("site/numpy.py"),
        repair=restore,
    ),
    Row(
        "an old flatbuffers",
        "emulator",
        "QNN514",
        installed("flatbuffers", "2.0", "flatbuffers>=23.5"),
        repair=lambda world: install(world.site, "flatbuffers", "24.3.25"),
    ),
    Row(
        "a libQnnHtp.so that is nobody's",
        "emulator",
        "QNN314",
        anonymous(f"{HOST}/libQnnHtp.so"),
        repair=restore,
    ),
    Row(
        "an executorch on PYTHONPATH",
        "emulator",
        "QNN408",
        hide_executorch,
        variables(PYTHONPATH="{base}/pythonpath"),
        asked_again=without_path,
    ),
    Row(
        "a Python that cannot start",
        "emulator",
        "QNN501",
        break_interpreter,
        asks_python,
        asked_again=as_it_is,
    ),
    Row("Python 3.9", "emulator", "QNN502", fake_python, asks_python, asked_again=as_it_is),
]

VARIABLES = [
    Row(
        "ADSP_LIBRARY_PATH joined by colons",
        "linux",
        "QNN412",
        ask=variables(ADSP_LIBRARY_PATH="/a:/b"),
        asked_again=variables(ADSP_LIBRARY_PATH="/a;/b"),
    ),
    Row(
        "two paths for the DSP",
        "linux",
        "QNN410",
        ask=variables(ADSP_LIBRARY_PATH="/a", DSP_LIBRARY_PATH="/b"),
        asked_again=variables(ADSP_LIBRARY_PATH="/a"),
    ),
    Row(
        "an empty QNN_SDK_ROOT",
        "emulator",
        "QNN401",
        ask=variables(QNN_SDK_ROOT=""),
        asked_again=variables(QNN_SDK_ROOT="{sdk}"),
    ),
    Row(
        "a file as QNN_SDK_ROOT",
        "emulator",
        "QNN402",
        ask=variables(QNN_SDK_ROOT="{sdk}/sdk.yaml"),
        asked_again=variables(QNN_SDK_ROOT="{sdk}"),
    ),
    Row(
        "a home directory that no shell expanded",
        "emulator",
        "QNN404",
        ask=variables(LD_LIBRARY_PATH="~/sdk/lib"),
        asked_again=variables(LD_LIBRARY_PATH="{sdk}/" + HOST + ":/usr/lib"),
    ),
]

SDKS = [
    Row("headers of a newer QNN", "aot", "QNN110", api(2, 99), repair=restore),
    Row("a colon in the SDK's path", "linux", "QNN111", move_sdk, in_colon, move_back, as_it_is),
    Row("a library that is a broken link", "emulator", "QNN112", dangle, repair=restore),
    Row(
        "the directory above the SDK",
        "emulator",
        "QNN102",
        wrap,
        rooted("qnn-runtime", lambda world: world.base / "wrapped"),
        asked_again=as_it_is,
    ),
    Row("glibc's libraries for Android", "android", "QNN232", glibc_on_android, repair=restore),
    Row("Android's libraries for Linux", "linux", "QNN233", android_on_linux, repair=restore),
]

BUILDS = [
    Row(
        "another directory as the Hexagon SDK",
        "lpai",
        "QNN113",
        ask=rooted("hexagon-sdk", lambda world: world.ndk),
        asked_again=as_it_is,
    ),
    Row(
        "another NDK in the shell",
        "android",
        "QNN416",
        ask=variables(ANDROID_NDK_ROOT="{base}/tools"),
        asked_again=variables(ANDROID_NDK_ROOT="{base}/android-ndk"),
    ),
    Row("an adaptor without its library", "emulator", "QNN515", needing_more, repair=restore),
    Row("an NDK without clang++", "android", "QNN608", removed(f"ndk/{CLANG}"), repair=restore),
    Row("a clang++ without its mode", "android", "QNN606", no_mode, repair=give_mode),
    Row("a cmake that says nothing", "linux", "QNN011", tool("cmake", ""), repair=restore),
    Row(
        "a cmake just too old",
        "linux",
        "QNN012",
        tool("cmake", "cmake version 3.23.5"),
        repair=lambda world: write_program(world.tools / "cmake", "cmake version 3.28.0"),
    ),
    Row("a nested submodule elsewhere", "linux", "QNN707", reset_nested, repair=run_fix("QNN707")),
    Row(
        "a submodule that was never fetched",
        "linux",
        "QNN705",
        lambda world: git(world.checkout, "submodule", "deinit", "-q", "-f", "third-party/flatcc"),
        repair=run_fix("QNN705"),
    ),
    Row("a flatcc of another machine", "linux", "QNN708", leave_flatcc, repair=drop_flatcc),
    Row(
        "an NDK just too old",
        "android",
        "QNN602",
        replace_text("ndk/source.properties", "Pkg.Revision = 25.9.99999999\n"),
        repair=restore,
    ),
]


@pytest.mark.parametrize("row", [*STAGING, *IMPORT, *VARIABLES, *SDKS, *BUILDS], ids=str)
def test_a_fault_is_found_and_its_fix_mends_it(world: World, row: Row) -> None:
    if row.wanted == "QNN415" and STDCXX is None:
        pytest.skip("no libstdc++ here")
    row.mutate(world)
    found = findings_of(row.ask(request_of(world, row.profile), world))
    assert set(found) == {row.wanted}, found
    row.repair(world)
    again = row.asked_again or row.ask
    assert findings_of(again(request_of(world, row.profile), world)) == {}


@pytest.mark.parametrize("build", [BUILD, OLDER], ids=["the same", "older"])
def test_a_program_of_the_same_or_an_older_qnn_is_no_fault(world: World, build: str) -> None:
    lowered(build)(world)
    assert findings_of(staged(world)) == {}


def test_a_folder_with_the_name_of_a_package_without_init_hides_nothing(world: World) -> None:
    hide_by_path_file(world)
    (world.base / "first" / "executorch" / "__init__.py").unlink()
    world.remove(world.site / "executorch" / "__init__.py")
    assert findings_of(request_of(world, "emulator")) == {}


def test_a_libstdcxx_of_this_machine_is_no_fault(world: World) -> None:
    if STDCXX is None:
        pytest.skip("no libstdc++ here")
    foreign_runtime(bytes)(world)
    ask = variables(LD_LIBRARY_PATH="{base}/conda:{sdk}/" + HOST)
    assert findings_of(ask(world.request("emulator"), world)) == {}
