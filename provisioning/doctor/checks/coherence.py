"""Libraries that must be of one build of QNN: Htp, System, Prepare, stubs, skels.

A stub and a skel of different builds end on the device with "Stub lib id mismatch", error 1008.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.doctor.checks.version import is_same
from provisioning.doctor.facts import FileFacts
from provisioning.elf.facts import EM_QDSP6
from provisioning.elf.qnn_build import QnnBuild

PAIR = re.compile(
    r"libQnn(?P<backend>Htp|Lpai)(?:V(?P<version>[0-9a-f]{2,3}))?(?P<side>Stub|Skel)[.]so"
)
SKEL = re.compile(r"libQnnHtpV(?P<version>[0-9a-f]{2,3})(?:Skel)?[.]so")
WHY = "the device ends with 'Stub lib id mismatch' (error 1008), the host with error 14001"


def judge_builds(
    files: Sequence[FileFacts], version: str | None, stamp: str | None = None
) -> Iterator[Finding]:
    """Every library of another build than the most of them; the most of them against what
    sdk.yaml says, ``version`` and ``stamp``.
    """
    usual = usual_build(files)
    if usual is None:
        if any(file.name.startswith("libQnn") for file in files):
            yield _unknown(files)
        return
    same_version = not (version and usual.version) or is_same(usual.version, version)
    if not same_version or (stamp or usual.stamp) != usual.stamp:
        says = " build ".join(filter(None, (version, stamp)))
        yield Finding(
            "QNN302",
            "QNN libraries",
            f"sdk.yaml says {says}, the libraries are of {usual.text}",
            str(files[0].path.parent),
            "ExecuTorch takes what it compiles for from one and what it runs from the other",
            "provision it again; do not copy libraries from one SDK into another",
        )
    for file in files:
        if file.build and not file.build.agrees_with(usual):
            yield Finding(
                "QNN301",
                file.name,
                f"{file.name} is of {file.build.text}, the others are of {usual.text}",
                str(file.path),
                WHY,
                "take all of them from one SDK",
            )


def usual_build(files: Iterable[FileFacts]) -> QnnBuild | None:
    """The build that most libraries name whole."""
    builds = (file.build for file in files)
    counted = Counter(build for build in builds if build and build.version and build.stamp)
    return counted.most_common(1)[0][0] if counted else None


def _unknown(files: Sequence[FileFacts]) -> Finding:
    return Finding(
        "QNN303",
        "QNN libraries",
        "no library names its build of QNN",
        str(files[0].path.parent),
        "that they belong together cannot be shown",
        "take them from an SDK, unchanged",
        Severity.WARNING,
    )


def judge_pairs(
    files: Sequence[FileFacts], backends: Collection[str] = ("Htp", "Lpai")
) -> Iterator[Finding]:
    """A stub without its skel, and a skel that is for another Hexagon than its name says."""
    sides: dict[tuple[str, str], dict[str, FileFacts]] = {}
    for file in files:
        found = PAIR.fullmatch(file.name)
        if found and found["backend"] in backends:
            pair = sides.setdefault((found["backend"], found["version"] or ""), {})
            pair[found["side"]] = file
    for (backend, version), pair in sorted(sides.items()):
        if "Skel" not in pair:
            skel = f"libQnn{backend}{'V' + version if version else ''}Skel.so"
            yield Finding(
                "QNN304",
                pair["Stub"].name,
                f"{pair['Stub'].name} is here without {skel}",
                str(pair["Stub"].path),
                "the DSP cannot load its half: error 4000, or 14001 on the device",
                f"add {skel} of the same SDK (lib/hexagon-v{version or 'NN'}/unsigned)",
            )
    yield from _judge_names(files)


def _judge_names(files: Iterable[FileFacts]) -> Iterator[Finding]:
    for file in files:
        found = SKEL.fullmatch(file.name)
        if not found or file.elf is None or file.elf.machine != EM_QDSP6:
            continue
        # What disagrees with its directory's version is said by QNN214 already.
        directory = re.search(r"hexagon-v([0-9a-f]{2,3})", file.directory)
        flags = f"{file.elf.hexagon_version:x}"
        if directory and directory[1] == flags != found["version"]:
            yield Finding(
                "QNN305",
                file.name,
                f"{file.name} lies in {file.directory} and is for V{flags}",
                str(file.path),
                "scripts push the directory of the SoC's version and miss it, or push a wrong skel",
                f"take {file.name} from the SDK's hexagon-v{found['version']}",
            )
        elif not directory and flags != found["version"]:
            yield Finding(
                "QNN306",
                file.name,
                f"{file.name} holds code for Hexagon V{flags}",
                str(file.path),
                "the DSP refuses it, or runs without what the name promises: error 4000",
                "take it from the SDK again",
            )


def judge_soc(files: Iterable[FileFacts], soc: str, hexagon: int) -> Iterator[Finding]:
    """Whether the stub and the skel for a SoC's Hexagon version are there."""
    names = {file.name for file in files}
    skel = f"libQnnHtpV{hexagon}Skel.so"
    if skel not in names:
        yield Finding(
            "QNN307",
            soc,
            f"{soc} has Hexagon V{hexagon}; {skel} is not here",
            "lib/hexagon-v*/unsigned",
            "nothing can be run on that SoC: error 14001 or 4000",
            f"use an SDK that has lib/hexagon-v{hexagon}, and provision that component",
        )
