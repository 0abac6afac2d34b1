"""Bytes on their way to a device and back: a bundle, a case to run by hand, starts that differ."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import tarfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from ci.cases.engine import Sets
from ci.device import bundle as bundles
from ci.device.bundle import (
    BUNDLE,
    FILES,
    Bundle,
    BundleFile,
    Target,
    close_over,
    copy_licences,
    describe,
    find_target,
    list_parts,
    read_bundle,
    require_fit,
    stage,
)
from ci.device.provenance import PROGRAM, RUN_CASES, list_programs, write_by_hand
from ci.device.runner import DeviceProgram, is_gone, name_owner
from ci.models.lowering_options import ONE_RUN
from ci.signing.record import RECORD_NAME, STATEMENT_NAME
from provisioning.console.progress import Progress
from provisioning.console.user_folder import RECORD
from provisioning.doctor.examine import Verdict
from provisioning.doctor.facts import STAGING
from provisioning.doctor.registry import Finding, Severity
from provisioning.elf.facts import AndroidNote, Defect, ElfError, ElfFacts
from provisioning.errors import UnfitError, UsageError
from provisioning.files import hash_file, write_json
from tests.stand_ins.lowered import make_binary, make_program
from tests.stand_ins.snapshots import check_snapshot


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of two files."""
    place = tmp_path / "bundle"
    (place / FILES).mkdir(parents=True)
    rows = []
    for name in ("libQnnHtp.so", "runner"):
        path = place / FILES / name
        path.write_text(f"the bytes of {name}")
        rows.append(BundleFile(name, hash_file(path), path.stat().st_size))
    new_bundle = Bundle(
        target=Target.LINUX, socs=("SM8650",), runner="runner", qnn="", files=tuple(rows)
    )
    write_json(place / BUNDLE, msgspec.to_builtins(new_bundle))
    return place


def test_a_bundle_with_a_changed_file_is_refused(bundle: Path) -> None:
    unchanged = read_bundle(bundle)
    assert [file.name for file in unchanged.files] == ["libQnnHtp.so", "runner"]
    for name, text in (("libQnnHtp.so", "THE BYTES OF LIB"), ("runner", "other"), ("runner", None)):
        file = bundle / FILES / name
        before = file.read_text()
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(UnfitError, match=rf"{name} is not the file"):
            read_bundle(bundle)
        file.write_text(before)
    assert read_bundle(bundle).digest == unchanged.digest
    for text in ('{"other": ' + "[" * 99_999, "{}"):
        (bundle / BUNDLE).write_text(text)
        with pytest.raises(UnfitError, match=r"is not a bundle(.|\n)*stage"):
            read_bundle(bundle)


def test_a_digest_is_over_the_names_and_the_bytes_of_all_files() -> None:
    digests = []
    for rows in ("a 1 b 2", "a 1", "a 1 c 2", "a 1 b 3", "a 2 b 1"):
        words = rows.split()
        files = tuple(BundleFile(*pair, 1) for pair in zip(words[::2], words[1::2], strict=True))
        digested = Bundle(target=Target.LINUX, socs=(), runner="a", qnn="", files=files)
        digests.append(digested.digest)
    assert len({*digests}) == 5
    assert digests[0] == hashlib.sha256(b"a 1\nb 2\n").hexdigest()


def test_kept_programs_are_listed_in_order_and_damaged_ones_are_named(tmp_path: Path) -> None:
    kept_folder = tmp_path / "kept"
    names = [f"case{number}" for number in (7, 3, 9, 1)]
    for name in names:
        record = {"compiled": {"program": f"{name}.pte", "sets": 0, "inputs": []}}
        write_record(kept_folder / name, msgspec.json.encode(record))
    (kept_folder / "case0").mkdir()
    write_record(
        kept_folder / "older/case4", b"damaged"
    )  # of another run that kept its cases there
    expected = [kept_folder / name / "artifact" / f"{name}.pte" for name in sorted(names)]
    assert list(list_programs(kept_folder)) == expected
    assert list(list_programs(None)) == []
    deep = b'{"compiled": {"program": "m.pte", "sets": 1, "inputs": ' + b"[" * 99_999
    for damaged in (b"{}", b'{"compiled": 1}', deep):
        write_record(kept_folder / "case3", damaged)
        with pytest.raises(UsageError, match=r"case3/artifact/artifact\.json is damaged"):
            list(list_programs(kept_folder))
    with pytest.raises(UsageError, match="contains no case"):
        list(list_programs(kept_folder / "case0"))


def write_record(case: Path, data: bytes) -> Path:
    """Write the record of a kept program, and return its directory."""
    (case / "artifact").mkdir(parents=True, exist_ok=True)
    (case / "artifact" / "artifact.json").write_bytes(data)
    return case / "artifact"


@pytest.mark.parametrize(("android", "absent"), [(True, "ssh"), (False, "adb")])
def test_manual_commands_use_adb_or_ssh_as_the_bundle_needs(
    tmp_path: Path, android: bool, absent: str
) -> None:
    artifact = tmp_path / "kept" / "a" / "artifact"
    artifact.mkdir(parents=True)
    record = {"compiled": {"program": "a.pte", "sets": 0, "inputs": []}}
    (artifact / "artifact.json").write_bytes(msgspec.json.encode(record))
    (artifact / "a.pte").touch()
    write_by_hand(tmp_path, "my_runner", tmp_path / "kept", android=android)
    page = (tmp_path / "by-hand.md").read_text()
    present = {"ssh": "adb", "adb": "ssh"}[absent]
    assert f"\n{present} " in page
    assert f"\n{absent} " not in page
    blocks = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    commands = blocks.findall(page)
    snapshot = Path(__file__).with_name("snapshots") / f"by-hand-{present}.txt"
    check_snapshot(snapshot, "\n".join(commands))
    write_by_hand(tmp_path, "my_runner", None, android=android)
    alone = blocks.findall((tmp_path / "by-hand.md").read_text())
    assert alone == commands[:1]


RUNNER = """#!/bin/sh
for word; do
  case $word in --output_folder_path=*) touch "${word#*=}/output_0_0.raw";; esac
done
cat input_list.txt; echo "$LD_LIBRARY_PATH $ADSP_LIBRARY_PATH" >&2
exit $(cat program.pte)
"""


@pytest.mark.parametrize("android", [True, False])
def test_the_manual_run_script_fails_if_one_case_fails(tmp_path: Path, android: bool) -> None:
    kept_folder, bundle = tmp_path / "kept", tmp_path / "a bundle"
    (bundle / FILES).mkdir(parents=True)
    (bundle / FILES / "runner").write_text(RUNNER)
    record = {"compiled": {"program": "m.pte", "sets": 1, "inputs": [{}]}}
    codes = {"a": "0", "b": "3", "c": "0"}
    for name, code in codes.items():
        (kept_folder / name / "artifact/inputs").mkdir(parents=True)
        (kept_folder / name / "artifact/artifact.json").write_bytes(msgspec.json.encode(record))
        (kept_folder / name / "artifact/m.pte").write_text(code)
        (kept_folder / name / "artifact/inputs/0_0.raw").touch()
    write_by_hand(bundle, "runner", kept_folder, android=android)
    (bundle / "results/old").mkdir(parents=True)

    def run() -> tuple[int, str, dict[str, str]]:
        words = ["sh", bundle / RUN_CASES]
        ended = subprocess.run(words, check=False, capture_output=True, text=True)
        code_files = {code: (bundle / "results" / code / "code.txt").read_text() for code in codes}
        return ended.returncode, ended.stdout, code_files

    assert run() == (1, "a: 0\nb: 3\nc: 0\n", {case: f"{code}\n" for case, code in codes.items()})
    assert list_names(bundle / "results") == {*codes}
    log = (bundle / "results/c/log.txt").read_text()
    assert log == f"0_0.raw\n{bundle}/files {bundle}/files\n"
    with tarfile.open(bundle / "results.tar") as tar:
        files = {member.name.removeprefix("results/") for member in tar if member.isfile()}
    ends = ("code.txt", "log.txt", "outputs/output_0_0.raw")
    assert files == {f"{name}/{end}" for name in codes for end in ends}
    (bundle / "cases/b" / PROGRAM).write_text("0")
    assert run()[0] == 0


@dataclass
class Starts(DeviceProgram):
    """Gives what a test says at each start; nothing is sent."""

    gives: Any = ()

    def send(self, sets: Sets) -> None:
        del sets

    def run_once(self, sets: int) -> Sets:
        del sets
        outputs: Sets = self.gives.pop(0)
        return outputs


def start(*outputs: list[list[Any]]) -> Starts:
    runner: Any = SimpleNamespace(
        starts=len(outputs), bundle=SimpleNamespace(target=Target.LINUX), name="adb:1"
    )
    program: Any = SimpleNamespace(spec=SimpleNamespace(source=SimpleNamespace(run=ONE_RUN)))
    starts_of_program = Starts(runner, program, 1.0)
    starts_of_program.gives = list(outputs)
    return starts_of_program


A, B, ZERO = np.float32([1, 2]), np.float32([3]), np.float32([0.0])


@pytest.mark.parametrize(
    ("starts", "unequal"),
    [
        ([[[A], [B]], [[A], [B + 1]], [[A], [B]], [[A], [B + 1]]], [2, 4]),
        ([[[A, B]], [[A, B + 1]], [[A + 1, B]]], [2, 3]),
        ([[[A]], [[A]], [[A + 1]]], [3]),
        ([[[ZERO]], [[-ZERO]]], [2]),  # bytes, not values
    ],
)
def test_a_start_with_other_output_bytes_is_a_fault_of_the_case(
    starts: list[Any], unequal: list[int]
) -> None:
    program_starts = start(*starts)
    assert program_starts.run([]) == starts[0]
    assert program_starts.unequal == unequal


def test_a_lease_owner_is_gone_only_if_its_process_on_this_computer_has_ended() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    own_name, host = name_owner(), socket.gethostname()
    assert own_name.startswith(f"{host}-{os.getpid()}-")
    assert not is_gone(own_name)
    assert is_gone(f"{host}-{ended.pid}-0a1b")
    assert not is_gone(f"other-{host}-{ended.pid}-0a1b")
    assert not is_gone("somebody")
    assert not is_gone(f"{host}-host-0a1b")  # no number of a process


# -- staging; an ELF file is its facts as JSON here ------------------------------------------------

X86, ARM, HEXAGON = 62, 183, 164
QNN = "v2.49.40.260810104044"
SKEL75, STUB75 = "libQnnHtpV75Skel.so", "libQnnHtpV75Stub.so"


def write_elf(path: Path, machine: int = X86, *needed: str, **facts: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "needed": needed, **facts}), encoding="utf-8")
    return path


def read_facts(path: Path) -> ElfFacts:
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ElfError(path, Defect.NOT_ELF) from error
    note = AndroidNote(30, "r26c", "1") if document.get("android") else None
    return ElfFacts(
        path,
        1,
        64,
        True,
        document["machine"],
        3,
        0,
        needed=tuple(document["needed"]),
        runpath=tuple(document.get("runpath", ())),
        android=note,
        interpreter=document.get("interpreter"),
    )


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Path]]:
    """What the doctor was asked for: profile, SoC and directory. It finds nothing wrong."""
    requests: list[tuple[str, str, Path]] = []

    def examine(request: Any, progress: Any) -> Verdict:
        del progress
        requests.append((request.profile, request.soc, request.roots[STAGING]))
        return Verdict(request.profile, ())

    monkeypatch.setattr(bundles, "read_elf", read_facts)
    monkeypatch.setattr(bundles, "examine_request", examine)
    return requests


def make_runtime(place: Path, *versions: int, **android: Any) -> Path:
    """Libraries of a device: stubs and skels of these versions."""
    for name in ("libQnnHtp.so", "libQnnSystem.so", "libQnnLpai.so", "libQnnLpaiStub.so"):
        write_elf(place / name, ARM, "libc.so", **android)
    for version in versions:
        write_elf(place / f"libQnnHtpV{version}Stub.so", ARM, "libcdsprpc.so", **android)
        write_elf(place / f"dsp/unsigned/libQnnHtpV{version}Skel.so", HEXAGON)
    return place


ANDROID = {"android": True}


def list_names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


@pytest.mark.parametrize(
    ("system", "target", "profile", "has_sbom"),
    [(ANDROID, Target.ANDROID, "android", True), ({}, Target.LINUX, "linux", False)],
)
def test_a_bundle_has_stub_and_skel_of_each_of_its_socs(
    tmp_path: Path,
    staged: Any,
    monkeypatch: pytest.MonkeyPatch,
    system: Any,
    target: Target,
    profile: str,
    has_sbom: bool,
) -> None:
    sboms: list[tuple[Any, ...]] = []
    monkeypatch.setattr(bundles.provenance, "has_sbom_library", lambda: has_sbom)
    monkeypatch.setattr(
        bundles.provenance, "write_sbom", lambda *arguments: sboms.append(arguments)
    )
    runner = write_elf(tmp_path / "bin/runner", ARM, "libQnnSystem.so", "libm.so", **system)
    runtime = make_runtime(tmp_path / "sdk", 73, 75, 79, **system)
    (runtime / "LICENSE.pdf").write_text("terms")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "NOTICE").write_text("more terms")
    out = tmp_path / "out"
    runtimes = [runtime, tmp_path / "more"]
    bundle = stage(["sm8650", "SM8550", "SM8650"], runner, runtimes, out, progress=Progress())
    expected = {"runner", "libQnnHtp.so", "libQnnSystem.so", SKEL75, STUB75}
    expected |= {"libQnnHtpV73Stub.so", "libQnnHtpV73Skel.so"}
    assert {file.name for file in bundle.files} == list_names(out / FILES) == expected
    assert (bundle.target, bundle.socs, bundle.runner) == (target, ("SM8650", "SM8550"), "runner")
    assert [request[:2] for request in staged] == [(profile, "SM8650"), (profile, "SM8550")]
    assert all(place.name == FILES for _, _, place in staged)
    assert {oct((out / FILES / name).stat().st_mode & 0o777) for name in expected} == {"0o755"}
    assert list_names(out / "licences") == {"LICENSE.pdf", "NOTICE"}
    assert read_bundle(out) == bundle
    assert json.loads((out / BUNDLE).read_bytes())["schema_version"] == 1
    assert (out / "by-hand.md").is_file()
    assert list_names(out) == {RECORD, BUNDLE, FILES, "licences", "by-hand.md"}
    assert [(path.name, *arguments) for path, *arguments in sboms] == [
        ("sbom.cdx.json", bundles.BUNDLE_NAME, bundle.digest, list_parts(bundle, out / FILES))
    ] * has_sbom


def test_bundle_for_the_emulator_is_staged_without_the_doctor(tmp_path: Path, staged: Any) -> None:
    """Its libraries are next to the runner and on its RUNPATH."""
    runner = write_elf(tmp_path / "bin/runner", X86, runpath=[str(tmp_path / "near"), "/no/where"])
    for name in ("near/libQnnHtp.so", "bin/libQnnSystem.so", "near/libQnnHtpPrepare.so"):
        write_elf(tmp_path / name)
    write_elf(tmp_path / "near/libQnnSystem.so", runpath=["/a/second/one"])
    bundle = stage(["SM8650"], runner, [], tmp_path / "out", progress=Progress())
    first = tmp_path / "bin/libQnnSystem.so"
    assert (tmp_path / "out" / FILES / first.name).read_bytes() == first.read_bytes()
    names = ["libQnnHtp.so", "libQnnHtpPrepare.so", "libQnnSystem.so", "runner"]
    assert [file.name for file in bundle.files] == names
    assert (bundle.target, staged) == (Target.EMULATOR, [])
    assert "adb" not in (tmp_path / "out/by-hand.md").read_text()


@pytest.mark.parametrize(("of_runner", "of_other"), [(ANDROID, {}), ({}, ANDROID)])
def test_libraries_of_another_system_are_not_staged(
    tmp_path: Path, staged: Any, of_runner: dict[str, Any], of_other: dict[str, Any]
) -> None:
    del staged
    runner = write_elf(tmp_path / "runner", ARM, **of_runner)
    runtimes = [
        make_runtime(tmp_path / "a", 75, **of_other),
        make_runtime(tmp_path / "b", 75, **of_runner),
    ]
    out = tmp_path / "out"
    stage(["SM8650"], runner, runtimes, out, progress=Progress())
    for name in ("libQnnHtp.so", STUB75):
        assert (out / FILES / name).read_bytes() == (runtimes[1] / name).read_bytes()


def test_a_bundle_includes_programs_signed_libraries_and_evidence(
    tmp_path: Path, staged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = write_elf(tmp_path / "runner", ARM, **ANDROID)
    runtime = make_runtime(tmp_path / "sdk", 75, **ANDROID)
    artifact = tmp_path / "kept/mlp-8a8w-SM8650/artifact"
    (artifact / "inputs").mkdir(parents=True)
    record = {"compiled": {"program": "model.pte", "sets": 1, "inputs": [{}]}}
    (artifact / "artifact.json").write_bytes(msgspec.json.encode(record))
    (artifact / "inputs/0_0.raw").write_bytes(b"x")
    program = tmp_path / "mine.pte"
    for path in (artifact / "model.pte", program):
        path.write_bytes(make_program())
    skel = write_elf(tmp_path / "signed/libQnnLpaiSkel.so", HEXAGON)
    for name in (RECORD_NAME, STATEMENT_NAME):
        (tmp_path / "signed" / name).write_text(name)
    statement = tmp_path / "proof.intoto.json"
    statement.write_text("a pass")
    calls = []

    def find(programs: Any, folder: Path) -> dict[Path, Path]:
        calls.append(([*programs], folder))
        return {program: statement}

    monkeypatch.setattr(bundles.provenance, "find_evidence", find)
    monkeypatch.setattr(
        bundles.provenance, "list_signed", lambda folder: {skel.name: folder / skel.name}
    )
    out = tmp_path / "out"
    bundle = stage(
        ["SM8650"],
        runner,
        [runtime],
        out,
        programs=[program],
        cases=tmp_path / "kept",
        evidence=tmp_path / "evidence",
        signed=tmp_path / "signed",
        progress=Progress(),
    )
    assert calls == [([program, artifact / "model.pte"], tmp_path / "evidence")]
    names = {file.name for file in bundle.files}
    assert names >= {"mine.pte", "libQnnLpai.so", "libQnnLpaiStub.so", "libQnnLpaiSkel.so"}
    assert (out / "evidence" / statement.name).read_text() == "a pass"
    assert list_names(out / "signing") == {RECORD_NAME, STATEMENT_NAME}
    assert (out / "cases/mlp-8a8w-SM8650/program.pte").read_bytes() == program.read_bytes()
    assert staged
    runtimes = [make_runtime(tmp_path / "sdk", 79, **ANDROID)]
    for socs in (["SM8750"], ["SM8650", "SM8750"]):  # the program is for the first of the two
        for arguments in ({"programs": [program]}, {"cases": tmp_path / "kept"}):
            with pytest.raises(UnfitError, match=r"\.pte does not load on SM8750") as caught:
                stage(socs, runner, runtimes, out, progress=Progress(), **arguments)  # type: ignore[arg-type]
            assert caught.value.why
    second = tmp_path / "second.pte"
    second.write_bytes(make_program(make_binary(soc=("SM8750", 69, 79))))
    with pytest.raises(UnfitError, match=r"mine\.pte does not load on SM8750"):
        stage(["SM8750"], runner, runtimes, out, programs=[second, program], progress=Progress())
    twin = tmp_path / "other/mine.pte"
    twin.parent.mkdir()
    twin.write_bytes(make_program())
    with pytest.raises(UsageError, match=re.escape(f"{program} and {twin} have the same")):
        stage(["SM8650"], runner, [runtime], out, programs=[program, twin], progress=Progress())
    assert f"inspect {artifact / 'model.pte'} --soc SM8750" in caught.value.fix


@pytest.mark.parametrize(
    ("identity", "severity", "is_in_bundle", "refused"),
    [
        ("QNN301", Severity.ERROR, True, True),
        ("QNN317", Severity.WARNING, True, True),
        ("QNN318", Severity.WARNING, True, False),
        ("QNN301", Severity.ERROR, False, False),
        ("QNN317", Severity.WARNING, False, False),
    ],
)
def test_what_the_doctor_finds_in_the_staged_files_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    identity: str,
    severity: Severity,
    is_in_bundle: bool,
    refused: bool,
) -> None:
    place = f"{tmp_path}/libQnnHtp.so" if is_in_bundle else "/elsewhere"
    first = Finding("QNN000", "subject", "what", str(tmp_path), "why", "fix", Severity.WARNING)
    second = Finding(identity, "subject", "what", place, "why", "fix", severity)
    verdict = Verdict("linux", (first, second))
    monkeypatch.setattr(bundles, "examine_request", lambda *_: verdict)
    message = rf"{identity}: what\n  why: why\n  fix: fix"
    with pytest.raises(UnfitError, match=message) if refused else nullcontext():
        require_fit(Target.LINUX, "SM8650", tmp_path, Progress())


def make_facts(machine: int, **facts: Any) -> ElfFacts:
    return ElfFacts(Path("runner"), 1, 64, True, machine, 3, 0, **facts)


NOTE = AndroidNote(30, "r26c", "1")


@pytest.mark.parametrize(
    ("facts", "target"),
    [
        (make_facts(X86), Target.EMULATOR),
        (make_facts(X86, android=NOTE), Target.EMULATOR),
        (make_facts(ARM, android=NOTE), Target.ANDROID),
        (make_facts(ARM, interpreter="/system/bin/linker64"), Target.ANDROID),
        (make_facts(ARM, interpreter="/lib/ld-linux-aarch64.so.1"), Target.LINUX),
        (make_facts(ARM), Target.LINUX),
    ],
)
def test_the_system_of_a_runner_is_read_from_its_elf_file(facts: ElfFacts, target: Target) -> None:
    assert find_target(facts) is target


def test_staged_libraries_include_their_transitive_needs() -> None:
    def make(name: str, *needed: str) -> ElfFacts:
        return replace(make_facts(ARM, needed=needed), path=Path("/at") / name)

    libraries = {
        "libQnnHtp.so": make("libQnnHtp.so", "libc.so", "liba.so"),
        "liba.so": make("liba.so", "liba.so", "libb.so"),
        "libb.so": make("libb.so"),
        "libother.so": make("libother.so"),
    }
    closed = close_over(["libQnnHtp.so"], make("runner", "libm.so"), libraries)
    assert closed == {name: Path("/at") / name for name in ("libQnnHtp.so", "liba.so", "libb.so")}
    for needed_names, runner in (
        (["libgone.so"], make("runner")),
        ([], make("runner", "libQnnGone.so")),
        (["libx.so"], make("runner")),
    ):
        with_needing_library = {**libraries, "libx.so": make("libx.so", "libexecutorch_gone.so")}
        with pytest.raises(UnfitError, match=r"one\.so is missing") as caught:
            close_over(needed_names, runner, with_needing_library)
        assert "--runtime" in caught.value.fix


def test_record_of_a_bundle_lists_every_file_with_its_build(tmp_path: Path, staged: Any) -> None:
    del staged
    write_elf(tmp_path / "libQnnHtp.so", ARM, "libb.so", build=f"a {QNN} b")
    write_elf(tmp_path / "runner", ARM, "libQnnHtp.so", build=f"a {QNN} b")
    (tmp_path / "m.pte").write_bytes(b"the program")
    newer = "v2.99.40.260810104044"
    write_elf(tmp_path / "libA.so", ARM, build=f"a {newer} b")
    bundle = describe(Target.LINUX, ("SM8650",), "runner", tmp_path)
    assert (bundle.target, bundle.socs, bundle.runner) == (Target.LINUX, ("SM8650",), "runner")
    assert bundle.qnn == QNN
    assert [(file.name, file.qnn) for file in bundle.files] == [
        ("libA.so", newer),
        ("libQnnHtp.so", QNN),
        ("m.pte", ""),
        ("runner", ""),
    ]
    for file in bundle.files:
        path = tmp_path / file.name
        assert (file.sha256, file.size_bytes) == (hash_file(path), path.stat().st_size)
    parts = list_parts(bundle, tmp_path)
    assert [(file.name, file.qnn, needs) for file, needs in parts.items()] == [
        ("libA.so", newer, ()),
        ("libQnnHtp.so", QNN, ("libb.so",)),
        ("m.pte", "", ()),
        ("runner", "", ("libQnnHtp.so",)),
    ]
    assert tuple(parts) == bundle.files
    (tmp_path / "libQnnHtp.so").unlink()
    assert describe(Target.LINUX, (), "runner", tmp_path).qnn == ""


def test_a_bundle_includes_the_licences_next_to_its_libraries(tmp_path: Path) -> None:
    licences = ("LICENSE", "LICENCE.txt", "QNN_LICENSE.pdf", "NOTICE", "LICENSES/NOTICE2")
    first = {name: name for name in (*licences, "README", "LICENSES/ThirdPartyNotices.txt")}
    other_texts = {"LICENSE": "LICENSE", "NOTICE": "2", "LICENSES/LICENSE": "3"}
    for folder, files in (("first", first), ("other", other_texts)):
        for name, text in files.items():
            (tmp_path / folder / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "first/NOTICES").mkdir()

    def copy(*folders: str) -> dict[str, str]:
        out = tmp_path / f"out {folders}"
        copy_licences([tmp_path / folder for folder in folders], out)
        return {licence.name: licence.read_text() for licence in out.glob("*")}

    alone = copy("first", "gone")
    names = {Path(licence).name for licence in licences} | {"ThirdPartyNotices.txt"}
    assert alone.keys() == names
    assert copy("first", "other") == alone | {"2-NOTICE": "2", "2-LICENSE": "3"}
    assert copy("other")["LICENSE"] == "LICENSE"  # those beside the libraries keep their names
    assert copy("gone") == {}
