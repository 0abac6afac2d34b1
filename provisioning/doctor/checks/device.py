"""Check attached devices and staging directories. The faults of a device are only warnings. A
staging directory has to contain everything that a program needs on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.coherence import (
    most_common_build,
    nearest_places,
    see_dangling,
    split_sets,
)
from provisioning.doctor.facts import STAGING, DeviceFacts, FileFacts, TreeFacts, parse_qnn_name
from provisioning.doctor.registry import ENVIRONMENT, Case, Seen, Subjects, seen
from provisioning.elf.facts import EM_AARCH64
from provisioning.elf.programs import NO_SOC, SEGMENT_ALIGN, is_loadable
from provisioning.manifest.targets import is_same_soc

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
        files = (file for file in self.case.sdk_files if file.machine == EM_AARCH64)
        aligns = [file.elf.load_align for file in files if file.elf]
        return min(aligns, default=0)

    def seen(self, at: str = "", **values: object) -> Seen:
        """Return a fault of the device, with the values that the texts of all its checks
        use. ``at`` is the place on the device.
        """
        where = f"{self.facts.serial}:{at}"
        common_values = {
            "device": self.facts,
            "soc": self.soc,
            "case": self.case,
            "align": self.align,
        }
        return seen(f"device {self.facts.serial}", where, **common_values, **values)


DEVICES = Subjects(
    lambda case: [Device(device_facts, case) for device_facts in case.facts.devices or ()],
    Device.seen,
)


def _is_below(value: int | None, minimum: int) -> bool:
    """Return whether ``value`` is known and less than ``minimum``."""
    return value is not None and value < minimum


DEVICES.when(
    QNN801=lambda device: device.facts.state != "device",
    QNN802=lambda device: device.soc and device.facts.soc.upper() not in {"", device.soc.upper()},
    QNN803=lambda device: _is_below(device.facts.api_level, device.case.android_api),
    QNN804=lambda device: _is_below(device.facts.free_mb, device.case.policy.device.free_mb),
    # LPAI's skel can only be loaded as root.
    QNN805=lambda device: device.case.fitness.root_on_device and not device.facts.is_root,
    QNN807=lambda device: device.facts.page_bytes and 0 < device.align < device.facts.page_bytes,
)


ENVIRONMENT.when(QNN808=lambda case: case.facts.devices == ())


@DEVICES.check("QNN806")
def see_stale_libraries(device: Device) -> Iterator[Seen]:
    """Report libraries on the device that come from another QNN build than the SDK's."""
    build = most_common_build(device.case.sdk_files)
    for name, device_build in sorted(device.facts.libraries.items()):
        if device_build and build and device_build != build.text:
            where = f"{device.facts.directory}/{name}"
            yield device.seen(where, name=name, there=device_build, build=build.text)


class Staging(NamedTuple):
    """A staging directory, and the case (environment and requirements) that it belongs to."""

    tree: TreeFacts
    case: Case

    @property
    def required(self) -> tuple[str, ...]:
        """The files that the profile requires in a staging directory."""
        return self.case.fitness.staged

    @property
    def names(self) -> set[str]:
        """The names of the staged files, and of the links whose targets exist."""
        present = self.tree.links.keys() - self.tree.dangling
        return {file.name for file in self.tree.files} | {
            path.rpartition("/")[2] for path in present
        }

    def seen(self) -> Seen:
        """Return a fault of the staging directory, with the values that the texts of its
        checks use.
        """
        names = ", ".join(self.required or ("libQnnHtp.so", "libQnnSystem.so"))
        first = self.required[0] if self.required else "library"
        return seen("staging", self.tree.root, first=first, names=names, count=len(self.tree.files))


STAGINGS = Subjects(
    lambda case: [
        Staging(tree, case) for name, tree in case.facts.trees.items() if name == STAGING
    ],
    Staging.seen,
)


STAGINGS.when(
    QNN308=lambda staging: not staging.tree.is_directory,
    QNN309=lambda staging: not staging.tree.files,
    QNN320=lambda staging: staging.tree.is_sdk,
    QNN321=lambda staging: staging.tree.is_pointers,
)


STAGINGS.each(
    QNN300=lambda staging: see_dangling(staging.tree, "lib"),
    QNN322=lambda staging: (
        seen(file.name, file.path, damage=file.defect_why)
        for file in staging.tree.lowered
        if file.defect
    ),
    QNN326=lambda staging: (
        seen(file.name, file.path, faults=file.misplaced, least=SEGMENT_ALIGN)
        for file in staging.tree.lowered
        if file.misplaced
    ),
)


@STAGINGS.check("QNN325")
def see_unversioned_rpc(staging: Staging) -> Iterator[Seen]:
    """Report all affected libraries in one finding. Libraries for Android are skipped, since the
    names of libcdsprpc.so and libc.so contain no version there.
    """
    names = staging.names | {path.rpartition("/")[2] for path in staging.tree.links}
    versioned = sorted(name for name in names if name.startswith(f"{RPC}."))
    affected = [
        file
        for file in staging.tree.files
        if file.elf and file.machine == EM_AARCH64 and {RPC, LINUX_LIBC} <= {*file.elf.needed}
    ]
    # QNN before 2.45 needs libcdsprpc.so, and Qualcomm Linux has only libcdsprpc.so.1: meta-qcom
    # patches DT_NEEDED.
    if affected and versioned and RPC not in names:
        users = ", ".join(sorted({file.name for file in affected}))
        where = affected[0].path if len(affected) == 1 else staging.tree.root
        yield seen(users, where, versioned=versioned[0])


@STAGINGS.check("QNN323")
def see_program_for_another_hexagon(staging: Staging) -> Iterator[Seen]:
    """Compare the Hexagon versions of programs with the requested SoC's. If no SoC was requested,
    compare them with the ones in the names of the staged stubs and skels.
    """
    soc, names = staging.case.soc, map(parse_qnn_name, staging.names)
    staged = {name.hexagon for name in names if name.backend == "Htp"} - {""}
    versions = {str(soc[1])} if soc else staged
    expected = (
        f"{soc[0]} (V{soc[1]})" if soc else ", ".join(f"V{version}" for version in sorted(staged))
    )
    for file in staging.tree.lowered:
        # A context for no SoC and a smaller version may run: `compat` cannot tell.
        may_run = soc and all(
            target.soc == NO_SOC and target.hexagon < soc[1] for target in file.targets
        )
        is_other = versions and not versions & {str(target.hexagon) for target in file.targets}
        if file.targets and is_other and not may_run:
            yield seen(file.name, file.path, targets=_name_targets(file), wanted=expected)


@STAGINGS.check("QNN324")
def see_program_for_another_soc(staging: Staging) -> Iterator[Seen]:
    """Report programs for other SoCs with the same Hexagon version as the requested SoC."""
    soc = staging.case.soc
    for file in staging.tree.lowered:
        names = {target.soc for target in file.targets}
        versions = {target.hexagon for target in file.targets}  # QNN323 reports other ones
        is_for_it = soc and any(name == NO_SOC or is_same_soc(name, soc[0]) for name in names)
        if soc and soc[1] in versions and not is_for_it:
            yield seen(file.name, file.path, targets=_name_targets(file), wanted=soc[0])


def _name_targets(file: FileFacts) -> str:
    return ", ".join(f"{target.soc} (V{target.hexagon})" for target in file.targets)


@STAGINGS.check("QNN310")
def see_not_staged(staging: Staging) -> Iterator[Seen]:
    """Report the files that the profile requires and that are missing."""
    dangling = {path.rpartition("/")[2] for path in staging.tree.dangling}  # QNN300 reports them
    for name in staging.required:
        if name not in staging.names | dangling:
            yield seen(name, staging.tree.root)


@STAGINGS.check("QNN311")
def see_no_stub(staging: Staging) -> Iterator[Seen]:
    """Report that there is no stub for libQnnHtp.so. If an SoC was requested, QNN312 names its
    stub.
    """
    parts = [*map(parse_qnn_name, staging.names)]
    if "libQnnHtp.so" not in staging.names or staging.case.soc:
        return
    if not any(part.part == "Stub" for part in parts):
        skels = {part.hexagon for part in parts if part.is_htp_skel}
        stubs = ", ".join(f"libQnnHtpV{skel}Stub.so" for skel in sorted(skels))
        note = "" if stubs else ", and its skel; NN is the Hexagon version, 79 for SM8750"
        yield seen(stubs or "libQnnHtpVNNStub.so", staging.tree.root, more=note)


@STAGINGS.check("QNN312")
def see_no_parts_for_soc(staging: Staging) -> Iterator[Seen]:
    """Report that the requested SoC's stub, or stub and skel, are missing."""
    if not staging.case.soc or "libQnnHtp.so" not in staging.required:
        return
    soc, hexagon = staging.case.soc
    stub, skel = (f"libQnnHtpV{hexagon}{side}.so" for side in ("Stub", "Skel"))
    missing = [name for name in (stub, skel) if name not in staging.names]
    if missing and missing != [skel]:  # QNN304 and QNN317 report a stub without a skel
        yield seen(" and ".join(missing), staging.tree.root, soc=soc, hexagon=hexagon)


@STAGINGS.check("QNN313")
def see_newer_program(staging: Staging) -> Iterator[Seen]:
    """Report programs from a newer QNN than the libraries next to them."""
    sets = split_sets(staging.tree.files)
    builds = {place: most_common_build(files) for place, files in sets.items()}
    for file in staging.tree.lowered:
        for place in nearest_places(sets, file):
            usual = builds[place]
            runtime = usual.version if usual else None
            # A newer runtime loads older programs: a program of SDK 2.37.0 ran on 2.49.40.
            if file.version and runtime and not is_loadable(file.version, runtime):
                yield seen(file.name, file.path, compiler=file.version, runtime=runtime)


@STAGINGS.check("QNN315")
def see_program_of_another_profile(staging: Staging) -> Iterator[Seen]:
    """Check programs that are staged without libraries. QNN313 checks those with libraries."""
    runtime = staging.case.sdk_version or staging.case.pin or ""
    for file in staging.tree.lowered if runtime and not staging.tree.files else ():
        if file.version and not is_loadable(file.version, runtime):
            yield seen(file.name, file.path, compiler=file.version, runtime=runtime)
