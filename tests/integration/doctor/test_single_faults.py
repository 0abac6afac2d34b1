"""Single faults, each found under its own id; those of ``MENDED`` are gone when their fix, as
docs/reference/checks.md has it, is followed to the letter.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from provisioning.doctor.examine import examine_request
from provisioning.doctor.survey.environment import SurveyRequest
from tests.stand_ins.environments import (
    BUILD,
    HOST,
    LIBRARIES,
    LINUX,
    World,
    adaptor_path,
    git,
    install,
)
from tests.stand_ins.faults import (
    SIZES,
    Ask,
    Fault,
    Mutate,
    as_it_is,
    check,
    content,
    find,
    nothing,
    staged,
    variables,
)
from tests.stand_ins.lowered import make_program

OLDER, NEWER = "v2.11.40.230710101010", "v2.99.40.290901101010"
STUB, SKEL = "libQnnHtpV79Stub.so", "libQnnHtpV79Skel.so"
SKEL_PLACE = f"lib/hexagon-v79/unsigned/{SKEL}"
NEWER_API = b"".join(
    b"#define QNN_API_VERSION_%s %d\n" % row
    for row in ((b"MAJOR", 2), (b"MINOR", 99), (b"PATCH", 0))
)


class Row(NamedTuple):
    """A fault, and what its fix makes of it: of files, of what is asked, or both."""

    name: str
    profile: str
    finding_id: str
    mutate: Mutate = nothing
    ask: Ask = as_it_is
    repair: Mutate = nothing
    asked_again: Ask = as_it_is

    def __str__(self) -> str:
        return f"{self.finding_id} {self.name}"


def request_of(world: World, profile: str) -> SurveyRequest:
    return staged(world) if profile == "staging" else world.request(profile)


def findings_of(request: SurveyRequest) -> dict[str, str]:
    """The fix of each finding by its id."""
    verdict = examine_request(request)
    return {finding.id: finding.fix for finding in verdict.findings if finding.id not in SIZES}


def rooted(name: str, place: Callable[[World], Path]) -> Ask:
    return lambda request, world: replace(request, roots={**request.roots, name: place(world)})


def empty_staging(world: World) -> None:
    for path in sorted(world.staging.iterdir()):
        world.remove(path)


def unstage_pair(world: World) -> None:
    for name in (STUB, SKEL):
        world.remove(world.staging / name)


def stage_all(world: World) -> None:
    """Copy the SDK's files to where the fix says."""
    names = ("libQnnHtp.so", "libQnnHtpPrepare.so", "libQnnSystem.so", STUB)
    for source in (*(world.sdk / LINUX / name for name in names), world.sdk / SKEL_PLACE):
        (world.staging / source.name).unlink(missing_ok=True)
        (world.staging / source.name).write_bytes(source.read_bytes())


def lowered(build: str) -> Mutate:
    """A program whose only build is ``build``, behind its last segment."""
    content = make_program(b"graph") + b"\0" + build.encode() + b"\0"
    return lambda world: world.add(world.staging / "model.pte", content)


def other_adaptor(name: str) -> Mutate:
    return lambda world: world.replace(adaptor_path(world), (LIBRARIES / name).read_bytes())


def installed(name: str, installed_version: str, line: str) -> Mutate:
    """A distribution in a version that the metadata of executorch does not ask for."""

    def mutate(world: World) -> None:
        path = world.site / "executorch-0.dist-info" / "METADATA"
        world.replace(path, path.read_bytes() + f"Requires-Dist: {line}\n".encode())
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {installed_version}\n"
        world.add(world.site / f"{name}-0.dist-info" / "METADATA", text.encode())

    return mutate


def move_sdk(world: World) -> None:
    world.move(world.sdk, world.base / "opt:qairt")


def in_colon(request: SurveyRequest, world: World) -> SurveyRequest:
    place = world.base / "opt:qairt"
    variables = {**request.variables, "QNN_SDK_ROOT": str(place)}
    return replace(request, roots={**request.roots, "qnn-sdk": place}, variables=variables)


def dangle(name: str) -> Mutate:
    def mutate(world: World) -> None:
        world.remove(find(world, name))
        find(world, name).symlink_to("../gone/libQnnSystem.so")

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


def run_fix(finding_id: str) -> Mutate:
    """Run the commands that the finding tells, as a reader would."""

    def mutate(world: World) -> None:
        fix = findings_of(world.request("linux"))[finding_id]
        words = fix.split()
        assert words[:2] == ["git", "-C"], fix
        git(Path(words[2]), *words[3:])
        world.undo.clear()

    return mutate


def flip_skel(world: World) -> None:
    """One bit of the skel's code."""
    data = bytearray((world.staging / SKEL).read_bytes())
    data[0x2000] ^= 1
    world.replace(world.staging / SKEL, bytes(data))


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


FAULTS = [
    Fault(
        "a stub under the skel's name",
        "staging",
        "QNN306",
        lambda world: world.replace(world.staging / SKEL, (world.sdk / LINUX / STUB).read_bytes()),
    ),
    Fault("a staged broken link", "staging", "QNN300", dangle("staging/libQnnSystem.so")),
    Fault("a skel with a flipped byte", "staging", "QNN230", flip_skel),
    Fault("an adaptor for aarch64", "emulator", "QNN513", other_adaptor("libaarch64.so")),
    Fault("headers of a newer QNN", "aot", "QNN110", content("include/QNN/QnnCommon.h", NEWER_API)),
    Fault("a colon in the SDK's path", "linux", "QNN111", move_sdk, in_colon),
    Fault(
        "the directory above the SDK",
        "emulator",
        "QNN102",
        wrap,
        rooted("qnn-runtime", lambda world: world.base / "wrapped"),
    ),
]

MENDED = [
    Row("an empty staging directory", "staging", "QNN309", empty_staging, repair=stage_all),
    Row("no skel and stub", "staging", "QNN311", unstage_pair, repair=stage_all),
    Row(
        "an executorch that is first in a .pth file",
        "emulator",
        "QNN516",
        hide_by_path_file,
        repair=lambda world: (world.site / "first.pth").unlink(),
    ),
    Row(
        "an old flatbuffers",
        "emulator",
        "QNN514",
        installed("flatbuffers", "2.0", "flatbuffers>=23.5"),
        repair=lambda world: install(world.site, "flatbuffers", "24.3.25"),
    ),
    Row(
        "an executorch on PYTHONPATH",
        "emulator",
        "QNN408",
        lambda world: world.add(world.base / "pythonpath/executorch/__init__.py", b""),
        variables(PYTHONPATH="{base}/pythonpath"),
    ),
    Row(
        "ADSP_LIBRARY_PATH joined by colons",
        "linux",
        "QNN412",
        ask=variables(ADSP_LIBRARY_PATH="/a:/b"),
        asked_again=variables(ADSP_LIBRARY_PATH="/a;/b"),
    ),
    Row(
        "a home directory that no shell expanded",
        "emulator",
        "QNN404",
        ask=variables(LD_LIBRARY_PATH="~/sdk/lib"),
        asked_again=variables(LD_LIBRARY_PATH="{sdk}/" + HOST + ":/usr/lib"),
    ),
    Row("a nested submodule elsewhere", "linux", "QNN707", reset_nested, repair=run_fix("QNN707")),
    Row(
        "a submodule that was never fetched",
        "linux",
        "QNN705",
        lambda world: git(world.checkout, "submodule", "deinit", "-q", "-f", "third-party/flatcc"),
        repair=run_fix("QNN705"),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_each_single_fault_is_found_by_one_check(world: World, fault: Fault) -> None:
    check(fault, world)


@pytest.mark.parametrize("row", MENDED, ids=str)
def test_each_fault_is_found_and_gone_after_its_fix(world: World, row: Row) -> None:
    row.mutate(world)
    findings = findings_of(row.ask(request_of(world, row.profile), world))
    assert set(findings) == {row.finding_id}, findings
    row.repair(world)
    assert findings_of(row.asked_again(request_of(world, row.profile), world)) == {}


@pytest.mark.parametrize("build", [BUILD, OLDER], ids=["the same", "older"])
def test_a_program_compiled_by_the_same_or_an_older_qnn_is_no_finding(
    world: World, build: str
) -> None:
    lowered(build)(world)
    assert findings_of(staged(world)) == {}


def test_a_namespace_folder_does_not_shadow_the_installed_executorch(world: World) -> None:
    hide_by_path_file(world)
    (world.base / "first" / "executorch" / "__init__.py").unlink()
    world.remove(world.site / "executorch" / "__init__.py")
    assert findings_of(request_of(world, "emulator")) == {}
