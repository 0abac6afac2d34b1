"""Check that all libraries come from one QNN build: Htp, System, Prepare, stubs, skels.

A stub (the CPU's part of a backend) and a skel (the DSP's part) of different builds fail on the
device with "Stub lib id mismatch", error 1008, or with 0x8000040e, AEE_EBADCLASS.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from provisioning.doctor.checks.elf import FIRST_CHECKSUM
from provisioning.doctor.facts import STAGING, FileFacts, QnnName, TreeFacts
from provisioning.doctor.registry import Case, Seen, Subjects, seen
from provisioning.elf.facts import EM_QDSP6, Genuine
from provisioning.elf.qnn_build import PARTIAL_NAMES, QnnBuild
from provisioning.versions import is_older, is_same


class Family(NamedTuple):
    """A family of libraries that are used together.

    ``version`` and ``stamp`` come from the SDK's sdk.yaml; None if there is no SDK, or if it does
    not state them. ``backends`` are the backends whose skels are checked. ``soc`` is the name and
    the Hexagon version of an SoC for which the family must contain a skel, None if no skel is
    required. ``hexagon`` is the only relevant Hexagon version, such as 79, or '' for any. A staged
    family may lack libraries that the device has.
    """

    files: Sequence[FileFacts]
    version: str | None = None
    stamp: str | None = None
    backends: tuple[str, ...] = ("Htp", "Lpai")
    soc: tuple[str, int] | None = None
    hexagon: str = ""
    is_staged: bool = False


def find_families(case: Case) -> Iterator[Family]:
    """Yield the SDK's libraries, and each set of libraries in the staging directory, as a
    family.
    """
    facts = case.facts
    if facts.sdk and facts.sdk.is_directory:
        files, is_pushed = facts.trees[facts.sdk_name].files, case.fitness.skels
        soc = case.soc if is_pushed and facts.sdk.markers else None
        backends = ("Htp",) if is_pushed else ()
        yield Family(files, facts.sdk.version, facts.sdk.stamp, backends, soc)
    staging = facts.trees.get(STAGING)
    if staging and not (staging.is_sdk or staging.is_pointers):
        hexagon = str(case.soc[1]) if case.soc else ""
        for files in filter(None, split_sets(staging.files).values()):
            yield Family(files, hexagon=hexagon, is_staged=True)


def split_sets(files: Sequence[FileFacts]) -> dict[str, tuple[FileFacts, ...]]:
    """Split a tree into sets of libraries, one for each directory with QNN's CPU libraries, or one
    for the root if there are none.

    A file in another directory, such as a skel, belongs to the set whose directory is nearest to
    it, or to several if they are equally near. Without CPU libraries, all files are one set.
    """
    places = sorted({file.directory for file in files if file.is_cpu_library}) or [""]
    sets: dict[str, list[FileFacts]] = {place: [] for place in places}
    for file in files:
        for place in nearest_places(sets, file):
            sets[place].append(file)
    return {place: tuple(members) for place, members in sets.items()}


def nearest_places(places: Iterable[str], file: FileFacts) -> list[str]:
    """Return those of ``places`` that are nearest to a file."""
    near = {place: _shared_parts(place, file.directory) for place in places}
    nearest = max(near.values())
    return [place for place, parts in near.items() if parts == nearest]


def _shared_parts(place: str, directory: str) -> tuple[bool, int]:
    """Return whether both directories are equal, and how many leading parts of their paths are
    equal.
    """
    pairs = zip(place.split("/"), directory.split("/"), strict=False)
    return place == directory, len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


FAMILIES = Subjects(find_families)


def most_common_build(files: Iterable[FileFacts]) -> QnnBuild | None:
    """Return the most common QNN build among libraries that contain a complete build ID, or None if
    none does.
    """
    builds = (file.build for file in files)
    counted = Counter(build for build in builds if build and build.version and build.stamp)
    # Of two builds, the rarer one is the stray: users replace single libraries of an SDK.
    return counted.most_common(1)[0][0] if counted else None


def see_dangling(tree: TreeFacts, start: str) -> Iterator[Seen]:
    """Find links to missing files. The names of the links begin with ``start``."""
    for path in sorted(tree.dangling):
        if (name := path.rpartition("/")[2]).startswith(start):
            yield seen(name, tree.root / path, target=tree.links[path])


def see_stray(newer: set[bool], family: Family) -> Iterator[Seen]:
    """Find QNN's own libraries that are not from the most common build. ``newer`` is {True} for a
    libQnnSystem.so that is newer, and {False} for all others. Libraries of models and of users'
    operators are skipped: they contain the version of the QNN that compiled them, and newer
    versions can run them.
    """
    usual = most_common_build(family.files)
    for file in family.files:
        is_own, build = PARTIAL_NAMES.match(file.name), file.build
        is_stray = usual and is_own and build and not build.agrees_with(usual)
        if usual and build and is_stray and _is_newer_system(file, build, usual) in newer:
            yield seen(file.name, file.path, build=build.text, usual=usual.text)


# Two checks, because a libQnnSystem.so of 2.48.40 is reported to run next to libraries of 2.46.
FAMILIES.each(QNN301=partial(see_stray, {False}), QNN316=partial(see_stray, {True}))


def _is_newer_system(file: FileFacts, build: QnnBuild, usual: QnnBuild) -> bool:
    # libQnnSystem.so names only the stamp from QNN 2.33 on, so the dates are compared then.
    if build.version and usual.version and not is_same(build.version, usual.version):
        is_newer = is_older(usual.version, build.version)
    else:
        is_newer = (build.stamp or "") > (usual.stamp or "")
    return file.name == "libQnnSystem.so" and is_newer


@FAMILIES.check("QNN302")
def see_other_statement(family: Family) -> Iterator[Seen]:
    """Report that the SDK's statement of its version or build differs from most of its
    libraries.
    """
    usual, version, stamp = most_common_build(family.files), family.version, family.stamp
    if usual is None:
        return
    is_other = version and usual.version and not is_same(usual.version, version)
    if is_other or (stamp or usual.stamp) != usual.stamp:
        stated = " build ".join(filter(None, (version, stamp)))
        yield seen("QNN libraries", family.files[0].path.parent, stated=stated, usual=usual.text)


@FAMILIES.check("QNN303")
def see_no_build(family: Family) -> Iterator[Seen]:
    """Report that no library states a complete build."""
    qnn_files = [file for file in family.files if file.name.startswith("libQnn")]
    if qnn_files and most_common_build(family.files) is None:
        versions = sorted({file.version for file in qnn_files} - {""})
        partly = f", only the version {', '.join(versions)}" if versions else ""
        yield seen("QNN libraries", qnn_files[0].path.parent, partly=partly)


@FAMILIES.check("QNN314")
def see_unidentified_library(family: Family) -> Iterator[Seen]:
    """Report libraries without a build, if libraries of this name have one in every known QNN."""
    usual_build = most_common_build(family.files)
    if usual_build is None:
        return  # there is nothing to compare with, see QNN303
    for file in family.files:
        # Other checks report files that are not ELF or big-endian.
        is_readable = file.elf and file.elf.little_endian
        if is_readable and not file.build and _names_a_build(file):
            yield seen(file.name, file.path, usual=usual_build.text)


def _names_a_build(file: FileFacts) -> bool:
    """Return whether libraries with this name contain their build in all examined versions of QNN
    (2.20, 2.37 and 2.47 to 2.51). The LPAI skel, for example, does not.
    """
    qnn_name = file.qnn_name
    is_htp = qnn_name.backend == "Htp" and bool(qnn_name.hexagon) == qnn_name.is_half
    return is_htp or file.name == "libHtpPrepare.so"


@FAMILIES.check("QNN317")
def see_no_skel(family: Family) -> Iterator[Seen]:
    """Report all stubs of backends that have no skel in the family, in one finding. An app may
    contain many stubs, and rely on the device's own skels.
    """
    skels = _backends_with_skels(family)
    lone = [(file, stub) for file, stub in _lone_stubs(family) if stub.backend not in skels]
    if family.is_staged and lone:
        parts = [_name_skel(stub) for _, stub in lone]
        names = ", ".join(file.name for file, _ in lone)
        skel, path = ", ".join(part["skel"] for part in parts), lone[0][0].path
        if len(lone) > 1:
            yield seen(names, path.parent, skel=skel, directory="hexagon-vNN")
        else:
            yield seen(names, path, **parts[0])


def _lone_stubs(family: Family) -> Iterator[tuple[FileFacts, QnnName]]:
    """Yield stubs of the relevant Hexagon version whose skel is not in the family."""
    skels = {file.qnn_name for file in family.files}
    for file in family.files:
        stub = file.qnn_name
        if stub.part != "Stub" or stub.backend not in family.backends:
            continue
        counts = stub.backend != "Htp" or family.hexagon in {"", stub.hexagon}
        if counts and stub._replace(part="Skel") not in skels:
            yield file, stub


def _backends_with_skels(family: Family) -> set[str]:
    names = [file.qnn_name for file in family.files]
    return {name.backend for name in names if name.part == "Skel"}


def _name_skel(stub: QnnName) -> dict[str, str]:
    """Return the file name of a stub's skel, and its directory in an SDK."""
    hexagon = f"V{stub.hexagon}" if stub.hexagon else ""
    if stub.backend == "Htp":
        return {"skel": f"libQnnHtp{hexagon}Skel.so", "directory": f"hexagon-v{stub.hexagon}"}
    # In QNN 2.33, both names contain the DSP's version. The skel's also contains LPAI's hardware
    # version.
    return {"skel": f"libQnnLpai{hexagon}Skel{'_v5' * bool(hexagon)}.so", "directory": "lpai-vN"}


FAMILIES.each(
    QNN304=lambda family: (
        seen(file.name, file.path, **_name_skel(stub))
        for file, stub in _lone_stubs(family)
        if not family.is_staged or stub.backend in _backends_with_skels(family)
    ),
    QNN305=lambda family: (
        seen(file.name, file.path, directory=file.directory, flags=flags, version=version)
        for file, version, flags, directory in _skels(family)
        if directory == flags != version  # QNN214 reports other files in the wrong directory
    ),
    QNN318=lambda family: (
        seen(file.name, file.path, catalog=catalog, reason=reason)
        for file, catalog, reason in _refuted(family, Genuine.FORGED)
    ),
    QNN319=lambda family: (
        seen(file.name, file.path, catalog=catalog, reason=reason)
        for file, catalog, reason in _refuted(family, Genuine.NOT_COVERED)
        if not _is_reported(file)
    ),
)


def _refuted(family: Family, outcome: Genuine) -> Iterator[tuple[FileFacts, str, str]]:
    """Yield the files for which a catalog, or the list of genuine skels, has this outcome, with its
    name and the reason.
    """
    for file in family.files:
        if file.proof and file.proof.outcome is outcome:
            yield file, file.proof.catalog, file.proof.why


def _is_reported(file: FileFacts) -> bool:
    """Return whether another check reports a change of the skel: QNN230, QNN231 or QNN236 because
    of its checksum, or QNN214, QNN305 or QNN306 because of its Hexagon version.
    """
    elf = file.elf
    if elf is None or file.qnn_name.hexagon != f"{elf.hexagon_version:x}":
        return True  # libCalculator_skel.so has the same name for each version
    if elf.checksum is None:
        return bool(file.version) and not is_older(file.version, FIRST_CHECKSUM)
    return elf.checksum.is_wrong


@FAMILIES.check("QNN306")
def see_misnamed_skel(family: Family) -> Iterator[Seen]:
    """Report skels with another Hexagon version in their name than in their flags, and staged
    skels that are not for the DSP at all.
    """
    for file, version, flags, directory in _skels(family):
        if not directory and flags != version:
            yield seen(file.name, file.path, machine=f"Hexagon V{flags}", version=version)
    for file in family.files if family.is_staged else ():
        name = file.qnn_name
        if file.elf and name.is_htp_skel and file.machine != EM_QDSP6:
            yield seen(file.name, file.path, machine=file.elf.machine_name, version=name.hexagon)


def _skels(family: Family) -> Iterator[tuple[FileFacts, str, str, str]]:
    """Yield HTP's libraries for the DSP with a Hexagon version in their name: the file, and the
    Hexagon versions in its name, its flags and its directory ('' if the directory is for none).
    """
    for file in family.files if "Htp" in family.backends else ():
        qnn_name = file.qnn_name
        is_skel = qnn_name.backend == "Htp" and qnn_name.hexagon and qnn_name.part in ("Skel", "")
        if is_skel and file.elf and file.machine == EM_QDSP6:
            directory = re.search(r"hexagon-v([0-9a-f]{2,3})", file.directory)
            flags = f"{file.elf.hexagon_version:x}"
            yield file, qnn_name.hexagon, flags, directory[1] if directory else ""


@FAMILIES.check("QNN307")
def see_no_skel_for_soc(family: Family) -> Iterator[Seen]:
    """Report that the SDK has no skel for the requested SoC's Hexagon version."""
    if family.soc:
        soc, hexagon = family.soc
        if f"libQnnHtpV{hexagon}Skel.so" not in {file.name for file in family.files}:
            yield seen(soc, "lib/hexagon-v*/unsigned", hexagon=hexagon)
