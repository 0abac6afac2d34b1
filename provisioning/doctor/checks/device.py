"""Check attached devices and staging directories. The faults of a device are only warnings. A
staging directory has to contain everything that a program needs on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.coherence import most_common_build, split_sets
from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import STAGING, DeviceFacts, FileFacts, TreeFacts, parse_qnn_name
from provisioning.elf.facts import EM_AARCH64
from provisioning.elf.programs import NO_SOC, SEGMENT_ALIGN, is_loadable

RPC, LINUX_LIBC = "libcdsprpc.so", "libc.so.6"


class Device(NamedTuple):
    """A connected device and the requirements for it. The SDK in ``case`` is the one that would be
    pushed to it.
    """

    facts: DeviceFacts
    case: Case

    @property
    def soc(self) -> str:
        """The name of the requested SoC, '' if none was requested."""
        return self.case.soc[0] if self.case.soc else ""

    @property
    def align(self) -> int:
        """The smallest alignment of the SDK's libraries for the device, in bytes; 0 if there are
        none.
        """
        elves = (file.elf for file in self.case.sdk_files)
        aligns = [elf.load_align for elf in elves if elf and elf.machine == EM_AARCH64]
        return min(aligns, default=0)

    def seen(self, at: str = "", **values: object) -> Seen:
        where = f"{self.facts.serial}:{at}"
        known = {"device": self.facts, "soc": self.soc, "case": self.case, "align": self.align}
        return seen(f"device {self.facts.serial}", where, **known, **values)


DEVICES = Subjects(
    lambda case: [Device(one, case) for one in case.facts.devices or ()],
    Device.seen,
    Severity.WARNING,
)


def _is_below(found: int | None, least: int) -> bool:
    """Return whether ``found`` is known and less than ``least``."""
    return found is not None and found < least


DEVICES.add(
    "QNN801",
    "{subject} is {device.state}",
    "nothing can be pushed to it",
    "accept the computer's key on the device's screen, or reconnect it; 'adb "
    "kill-server' sometimes helps",
    lambda device: device.facts.state != "device",
    where="{where}state",
)
DEVICES.add(
    "QNN802",
    "{subject} has SoC {device.soc}, not {soc}",
    "a context binary for another SoC fails with error 5005 or 14001",
    "use --soc {device.soc}, and lower the model for this SoC",
    lambda device: device.soc and device.facts.soc.upper() not in {"", device.soc.upper()},
    where="{where}ro.soc.model",
    after=("QNN801",),
)
DEVICES.add(
    "QNN803",
    "{subject} has API level {device.api_level}, but the libraries are for {case.android_api}",
    "they fail to load with 'cannot locate symbol'",
    "build with ANDROID_PLATFORM android-{device.api_level}, or use a newer device",
    lambda device: _is_below(device.facts.api_level, device.case.android_api),
    where="{where}ro.build.version.sdk",
    after=("QNN801",),
)
DEVICES.add(
    "QNN804",
    "{subject} has {device.free_mb} MB free, but {case.policy.device.free_mb} MB are recommended",
    "a push may stop midway with 'No space left on device'",
    "remove what you do not need from {device.directory}",
    lambda device: _is_below(device.facts.free_mb, device.case.policy.device.free_mb),
    where="{where}{device.directory}",
    after=("QNN801",),
)
DEVICES.add(
    "QNN805",
    "{subject} does not allow root",
    "the LPAI skel is loaded from a directory that only root can write to",
    "run `adb root`, which needs a userdebug build of Android",
    lambda device: device.case.fitness.root_on_device and not device.facts.is_root,
    where="{where}id",
    after=("QNN801",),
)


@DEVICES.check(
    "QNN806",
    "{subject} has {name} from {there}, but the SDK's libraries are from {build}",
    "a run that pushes only some libraries fails with 'Stub lib id mismatch' (error 1008)",
    "push all of the SDK's libraries again, or remove {device.directory}/libQnn*",
    after=("QNN801",),
)
def see_stale_libraries(device: Device) -> Iterator[Seen]:
    build = most_common_build(device.case.sdk_files)
    for name, there in sorted(device.facts.libraries.items()):
        if there and build and there != build.text:
            where = f"{device.facts.directory}/{name}"
            yield device.seen(where, name=name, there=there, build=build.text)


DEVICES.add(
    "QNN807",
    "{subject} has pages of {device.page_bytes} bytes, but the SDK has libraries with a smaller "
    "alignment",
    "the loader refuses their segments, which are aligned to {align} bytes",
    "use libraries linked with -Wl,-z,max-page-size=16384 (QNN225 reports those that are not)",
    lambda device: device.facts.page_bytes and 0 < device.align < device.facts.page_bytes,
    where="{where}getconf PAGE_SIZE",
    after=("QNN801",),
)


class Staging(NamedTuple):
    """A staging directory, and the case (environment and requirements) that it belongs to."""

    tree: TreeFacts
    case: Case

    @property
    def wanted(self) -> tuple[str, ...]:
        """The files that the profile requires in a staging directory."""
        return self.case.fitness.staged

    @property
    def names(self) -> set[str]:
        present = self.tree.links.keys() - self.tree.dangling
        return {file.name for file in self.tree.files} | {
            path.rpartition("/")[2] for path in present
        }

    def seen(self) -> Seen:
        names = ", ".join(self.wanted or ("libQnnHtp.so", "libQnnSystem.so"))
        first = self.wanted[0] if self.wanted else "library"
        return seen("staging", self.tree.root, first=first, names=names, count=len(self.tree.files))


STAGINGS = Subjects(
    lambda case: [
        Staging(tree, case) for name, tree in case.facts.trees.items() if name == STAGING
    ],
    Staging.seen,
)


STAGINGS.add(
    "QNN308",
    "the path of the staging directory is not a directory",
    "there is nothing to push",
    "correct --root staging=DIR",
    lambda staging: not staging.tree.is_directory,
)


@STAGINGS.check(
    "QNN300",
    "{subject} is a link to {target}, which does not exist",
    "loading fails: 'library \"{subject}\" not found'; copying onto the link fails, too",
    "remove {where}, then copy {subject} itself there from the SDK",
    after=("QNN308",),
)
def see_dangling_link(staging: Staging) -> Iterator[Seen]:
    for path in sorted(staging.tree.dangling):
        if (name := path.rpartition("/")[2]).startswith("lib"):
            yield seen(name, staging.tree.root / path, target=staging.tree.links[path])


STAGINGS.add(
    "QNN309",
    "the staging directory contains no library",
    "no program on the device could load QNN: '{first} not found'",
    "copy the SDK's libraries for the device into {where}",
    lambda staging: not staging.tree.files,
    after=("QNN308",),
)
STAGINGS.add(
    "QNN320",
    "the staging directory is a whole QNN SDK",
    "a device loads all libraries from one directory, but an SDK has a directory for each kind of "
    "device",
    "stage a directory with the libraries of the device's kind (such as lib/aarch64-android): "
    "{names} and libQnnHtpVNNStub.so, and lib/hexagon-vNN/unsigned/libQnnHtpVNNSkel.so",
    lambda staging: staging.tree.is_sdk,
    after=("QNN309",),
)
STAGINGS.add(
    "QNN321",
    "all {count} staged libraries are LFS pointers",
    "loading any of them fails with 'invalid ELF header'",
    "run 'git lfs pull' in the checkout that they come from",
    lambda staging: staging.tree.is_pointers,
    after=("QNN309",),
)


@STAGINGS.check(
    "QNN325",
    "{subject} needs libcdsprpc.so, but the staging directory contains only {versioned}",
    "it fails to load with 'libcdsprpc.so: cannot open shared object file', as on "
    "Qualcomm Linux without the development files of fastrpc",
    "run `patchelf --replace-needed libcdsprpc.so {versioned}` on {subject}, as Qualcomm's own "
    "Yocto layer does, or stage a link libcdsprpc.so to {versioned}",
    after=("QNN309", "QNN320", "QNN321"),
    severity=Severity.WARNING,
)
def see_unversioned_rpc(staging: Staging) -> Iterator[Seen]:
    """Report all affected libraries in one finding. Libraries for Android are skipped, since the
    names of libcdsprpc.so and libc.so contain no version there.
    """
    names = staging.names | {path.rpartition("/")[2] for path in staging.tree.links}
    versioned = sorted(name for name in names if name.startswith(f"{RPC}."))
    found = [
        file
        for file in staging.tree.files
        if file.elf and file.elf.machine == EM_AARCH64 and {RPC, LINUX_LIBC} <= {*file.elf.needed}
    ]
    if found and versioned and RPC not in names:
        users = ", ".join(sorted({file.name for file in found}))
        where = found[0].path if len(found) == 1 else staging.tree.root
        yield seen(users, where, versioned=versioned[0])


@STAGINGS.check(
    "QNN326",
    "{subject} {faults}",
    "a runtime that maps the file into memory passes a misplaced context to QNN, or has to copy it",
    "lower the model again, with extract_delegate_segments and a segment_alignment of "
    "at least {least} in to_executorch",
    after=("QNN322",),
    severity=Severity.WARNING,
)
def see_unaligned_program(staging: Staging) -> Iterator[Seen]:
    for file in staging.tree.lowered:
        if file.misplaced:
            yield seen(file.name, file.path, faults=file.misplaced, least=SEGMENT_ALIGN)


@STAGINGS.check(
    "QNN322",
    "{subject} {damage}",
    "it cannot be loaded; possible causes are an incomplete copy or download, and a compiler "
    "that failed",
    "copy the program again, unpacked and as a binary file; if the original is a Git LFS pointer, "
    "run 'git lfs pull' there; if it is damaged, lower the model again",
    after=("QNN308",),
)
def see_damaged_program(staging: Staging) -> Iterator[Seen]:
    for file in staging.tree.lowered:
        if file.defect:
            yield seen(file.name, file.path, damage=file.defect_why)


@STAGINGS.check(
    "QNN323",
    "{subject} was compiled for {made}, not for {wanted}",
    "on the device it fails with error 5005 or 14001, although the emulator may run it",
    "lower the model for {wanted}, or stage the libraries for {made}",
    after=("QNN308",),
)
def see_program_for_another_hexagon(staging: Staging) -> Iterator[Seen]:
    """Compare the Hexagon versions of programs with the requested SoC's. If no SoC was requested,
    compare them with the ones in the names of the staged stubs and skels.
    """
    soc, names = staging.case.soc, map(parse_qnn_name, staging.names)
    staged = {one.hexagon for one in names if one and one.backend == "Htp" and one.hexagon}
    versions = {str(soc[1])} if soc else staged
    wanted = f"{soc[0]} (V{soc[1]})" if soc else ", ".join(f"V{one}" for one in sorted(staged))
    for file in staging.tree.lowered:
        # A context for no SoC and a smaller version may run: `compat` cannot tell.
        may_run = soc and all(one.soc == NO_SOC and one.hexagon < soc[1] for one in file.targets)
        is_other = versions and not versions & {str(one.hexagon) for one in file.targets}
        if file.targets and is_other and not may_run:
            yield seen(file.name, file.path, made=_name_targets(file), wanted=wanted)


@STAGINGS.check(
    "QNN324",
    "{subject} was compiled for {made}, not for {wanted}",
    "both SoCs have the same Hexagon version, but if the sizes of their VTCM (the HTP's memory) "
    "differ, the program fails with error 5005",
    "lower the model for {wanted}",
    after=("QNN308",),
    severity=Severity.WARNING,
)
def see_program_for_another_soc(staging: Staging) -> Iterator[Seen]:
    soc = staging.case.soc
    for file in staging.tree.lowered:
        names = {one.soc for one in file.targets}
        versions = {one.hexagon for one in file.targets}  # QNN323 reports other ones
        if soc and soc[1] in versions and not names & {soc[0], NO_SOC}:
            yield seen(file.name, file.path, made=_name_targets(file), wanted=soc[0])


def _name_targets(file: FileFacts) -> str:
    return ", ".join(f"{one.soc} (V{one.hexagon})" for one in file.targets)


@STAGINGS.check(
    "QNN310",
    "{subject} is missing",
    "loading fails on the device with 'library \"{subject}\" not found'",
    "copy {subject} from the SDK's libraries for the device into {where}",
    after=("QNN309", "QNN320", "QNN321"),
)
def see_not_staged(staging: Staging) -> Iterator[Seen]:
    dangling = {path.rpartition("/")[2] for path in staging.tree.dangling}  # QNN300 reports them
    for name in staging.wanted:
        if name not in staging.names | dangling:
            yield seen(name, staging.tree.root)


@STAGINGS.check(
    "QNN311",
    "there is no stub: {subject} is missing",
    "libQnnHtp.so reaches the DSP through the stub; without it, runs fail with error 4000 or 14001",
    "copy {subject} from the same SDK into {where}{more}",
    after=("QNN309", "QNN320", "QNN321"),
)
def see_no_stub(staging: Staging) -> Iterator[Seen]:
    parts = [one for one in map(parse_qnn_name, staging.names) if one]
    if "libQnnHtp.so" not in staging.names or staging.case.soc:
        return
    if not any(one.part == "Stub" for one in parts):
        skels = {one.hexagon for one in parts if (one.backend, one.part) == ("Htp", "Skel")}
        stubs = ", ".join(f"libQnnHtpV{one}Stub.so" for one in sorted(skels))
        more = "" if stubs else ", and its skel; NN is the Hexagon version, 79 for SM8750"
        yield seen(stubs or "libQnnHtpVNNStub.so", staging.tree.root, more=more)


@STAGINGS.check(
    "QNN312",
    "files for {soc} (Hexagon V{hexagon}) are missing: {subject}",
    "all runs on that SoC fail with error 14001 or 4000",
    "copy {subject} from the same SDK into {where}: the skel is in lib/hexagon-v{hexagon}/unsigned",
    after=("QNN309", "QNN320", "QNN321"),
)
def see_no_parts_for_soc(staging: Staging) -> Iterator[Seen]:
    if not staging.case.soc or "libQnnHtp.so" not in staging.wanted:
        return
    soc, hexagon = staging.case.soc
    stub, skel = (f"libQnnHtpV{hexagon}{side}.so" for side in ("Stub", "Skel"))
    missing = [name for name in (stub, skel) if name not in staging.names]
    if missing and missing != [skel]:  # QNN304 and QNN317 report a stub without a skel
        yield seen(" and ".join(missing), staging.tree.root, soc=soc, hexagon=hexagon)


@STAGINGS.check(
    "QNN313",
    "{subject} was compiled with QNN {compiler}, but the libraries next to it are from {runtime}",
    "an older runtime cannot read it: 'Unknown QNN BinaryInfo version', error 30010",
    "lower the model with QNN {runtime}, or stage libraries of QNN {compiler} or newer",
    after=("QNN309", "QNN320", "QNN321"),
)
def see_newer_program(staging: Staging) -> Iterator[Seen]:
    for file in staging.tree.lowered:
        compiler = file.build.version if file.build else None
        near = (one for one in split_sets((*staging.tree.files, file)) if file in one)
        for files in near:
            usual = most_common_build(one for one in files if one is not file)
            runtime = usual.version if usual else None
            if compiler and runtime and not is_loadable(compiler, runtime):
                yield seen(file.name, file.path, compiler=compiler, runtime=runtime)


@STAGINGS.check(
    "QNN315",
    "{subject} was compiled with QNN {compiler}, but this profile's SDK is {runtime}",
    "libraries staged from that SDK cannot read the program: 'Unknown QNN BinaryInfo "
    "version', error 30010",
    "lower the model with QNN {runtime} (test_emulator's --sdk), or stage libraries of QNN "
    "{compiler} or newer",
    after=("QNN308",),
    severity=Severity.WARNING,
)
def see_program_of_another_profile(staging: Staging) -> Iterator[Seen]:
    """Check programs that are staged without libraries. QNN313 checks those with libraries."""
    runtime = staging.case.sdk_version or staging.case.pin
    if staging.tree.files or not runtime:
        return
    for file in staging.tree.lowered:
        compiler = file.build.version if file.build else None
        if compiler and not is_loadable(compiler, runtime):
            yield seen(file.name, file.path, compiler=compiler, runtime=runtime)
