"""Answer which lanes support an SoC, from manifests/socs.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from provisioning.errors import UsageError
from provisioning.manifest.reader import suggest_near
from provisioning.manifest.targets import Soc, name_in, name_socs, read_all_socs
from provisioning.versions import parse_version

NO_HTP = "QNN knows no HTP of it: it compiles for V68, and this SoC has none"
HEXAGON = re.compile(r"(?:(?:HEXAGON|HTP)[ _-]?)?V(\d\d)")
NOT_COMPILED = "QNN 2.51 does not know its number"


class LaneAnswer(Struct, frozen=True):
    """Whether a lane compiles for an SoC. ``name`` is what the lane calls it, and ``why`` is the
    reason if it does not, or what else has to be known."""

    lane: str
    is_supported: bool
    name: str = ""
    why: str = ""


class SocAnswer(Struct, frozen=True):
    """What is known of an SoC. ``name`` is its name in manifests/socs.toml, and ``also_called`` are
    its other names. ``hexagon`` and ``vtcm_mb`` (MiB) are 0 if QNN knows no HTP of it. ``siblings``
    are SoCs with the same Hexagon version that ExecuTorch takes, the one with the nearest VTCM
    first. ``qnn`` is the oldest QNN known to know the SoC, ``not_qnn`` the newest known not to."""

    asked: str
    name: str
    number: int
    also_called: tuple[str, ...]
    hexagon: int
    vtcm_mb: int
    float16: bool
    lpai: int | None
    lanes: tuple[LaneAnswer, ...]
    siblings: tuple[str, ...]
    qnn: str = ""
    not_qnn: str = ""


class SocAnswers(Struct, frozen=True):
    """What `qnn-ci inspect --soc NAME` prints as JSON."""

    socs: tuple[SocAnswer, ...]
    schema_version: int = 1


def answer_soc(requested_name: str) -> SocAnswer:
    """Return what is known of an SoC, ignoring case. Raises UsageError if nothing is."""
    socs = read_all_socs()
    name = name_in(requested_name, socs)
    soc = socs.get(name)
    if soc is None:
        version = HEXAGON.fullmatch(requested_name.upper())
        if version and (with_version := _list_of_version(int(version[1]))):
            raise UsageError(
                f"{requested_name} is no SoC",
                why="it is a version of the Hexagon, which several SoCs have",
                fix=f"pass one of them: {', '.join(with_version)}",
            )
        names = [*socs, *(second_name for row in socs.values() for second_name in row.also_called)]
        meant = _list_family(requested_name) or suggest_near(
            # Names with which SoCs are sold are written so.
            requested_name.title() if " " in requested_name else requested_name.upper(),
            names,
        )
        raise UsageError(
            f"none of the lanes knows an SoC {requested_name!r}",
            why="it is neither in ExecuTorch's table, nor in that of LiteRT's compiler plugin, nor"
            " did QNN 2.51 compile for it",
            fix=f"{meant}docs/reference/socs.md lists all names; a name with another suffix, such"
            " as P, may be the same SoC, and of a phone `adb shell getprop ro.soc.model` prints the"
            " name",
        )
    other_names = [
        second_name for second_name, row in socs.items() if row.id == soc.id and second_name != name
    ]
    return SocAnswer(
        asked=requested_name,
        name=name,
        number=soc.id,
        also_called=(*other_names, *_list_second_names(soc.id)),
        hexagon=soc.hexagon,
        vtcm_mb=soc.vtcm_mb,
        float16=soc.float16,
        lpai=soc.lpai,
        lanes=tuple(_answer_lanes(name, soc)),
        siblings=find_siblings(soc),
        qnn=soc.qnn or _find_oldest_qnn(soc.id),
        not_qnn=soc.not_qnn,
    )


MOST_OF_FAMILY = 8


def _list_family(family: str) -> str:
    """Return the names under which the SoCs of a family are sold, such as those of Dragonwing, as
    the beginning of a fix; "" if the name is none of a family."""
    words = family.upper().split()
    names = [
        name
        for soc in read_all_socs().values()
        for name in soc.also_called
        if words and name.upper().split()[: len(words)] == words
    ]
    if not names:
        return ""
    count_of_others = (
        f" and {len(names) - MOST_OF_FAMILY} more" if len(names) > MOST_OF_FAMILY else ""
    )
    return f"names that begin so are {', '.join(names[:MOST_OF_FAMILY])}{count_of_others}; "


def _find_oldest_qnn(number: int) -> str:
    """Return the oldest QNN that is known to know a number: it compiles by the number, so that what
    is known of one name counts for the others."""
    versions = [soc.qnn for soc in read_all_socs().values() if soc.id == number and soc.qnn]
    return min(versions, key=parse_version, default="")


def _list_of_version(hexagon: int) -> list[str]:
    """Return the first name of each SoC with a Hexagon version."""
    socs = read_all_socs()
    return [name for name in name_socs().values() if socs[name].hexagon == hexagon]


def _list_second_names(number: int) -> Iterator[str]:
    for soc in read_all_socs().values():
        if soc.id == number:
            yield from soc.also_called


def find_siblings(soc: Soc) -> tuple[str, ...]:
    """Return the SoCs of ExecuTorch with the Hexagon version of ``soc`` and another number, the one
    with the nearest size of VTCM first."""
    near = [
        (abs(sibling.vtcm_mb - soc.vtcm_mb), sibling.float16 != soc.float16, name)
        for name, sibling in read_all_socs().items()
        if soc.hexagon
        and sibling.executorch
        and sibling.hexagon == soc.hexagon
        and sibling.id != soc.id
    ]
    return tuple(name for _, _, name in sorted(near))


def _answer_lanes(name: str, soc: Soc) -> Iterator[LaneAnswer]:
    socs = read_all_socs()
    executorch = name_in(name, [soc_name for soc_name, row in socs.items() if row.executorch])
    litert = name_in(name, [soc_name for soc_name, row in socs.items() if row.litert])
    why = "" if soc.float16 else "quantized models only: the HTP has no float16"
    if not soc.hexagon:
        why = NO_HTP if soc.compiled else NOT_COMPILED
    takes = executorch in socs and socs[executorch].executorch
    since = socs[executorch].executorch_since if takes else ""
    of_executorch = why or (f"since ExecuTorch {since} or before" if since else "")
    yield LaneAnswer(
        "test_emulator, test_llm (ExecuTorch)",
        takes,
        executorch if takes else "",
        of_executorch if takes else "ExecuTorch 1.5.1 has no name for it",
    )
    is_compiled = soc.compiled and bool(soc.hexagon)
    yield LaneAnswer("test_onnx (onnxruntime-qnn)", is_compiled, name if is_compiled else "", why)
    has_litert = litert in socs and socs[litert].litert
    yield LaneAnswer(
        "test_litert (LiteRT's plugin)",
        has_litert and is_compiled,
        litert if has_litert else "",
        why if has_litert else "the plugin of ai-edge-litert 2.3.0 has no name for it",
    )


def render_soc(answer: SocAnswer) -> str:
    """Return the answer as text."""
    spelled = {name.lower(): name for name in (answer.name, *answer.also_called)}
    other_name = spelled.get(answer.asked.lower(), answer.asked.upper())
    called = f" ({other_name})" if other_name != answer.name else ""
    rows = read_all_socs()
    further = [name for name in answer.also_called if name != other_name]
    of_number = ", ".join(name for name in further if name in rows)
    sold_as = ", ".join(name for name in further if name not in rows)
    same_names = f", the same as {of_number}" if of_number else ""
    same_names += f", also called {sold_as}" if sold_as else ""
    hardware = "QNN knows no HTP of it"
    if answer.hexagon:
        float16 = "float16" if answer.float16 else "no float16"
        hardware = f"Hexagon V{answer.hexagon}, {answer.vtcm_mb} MiB of VTCM, {float16}"
    if answer.lpai is not None:
        hardware += f", LPAI v{answer.lpai}"
    lines = [
        f"{answer.name}{called}: {hardware}",
        f"  QNN's number {answer.number}{same_names}",
        f"  QNN: {describe_versions(answer.qnn, answer.not_qnn)}",
    ]
    for lane in answer.lanes:
        state = "yes" if lane.is_supported else "no"
        option = f", --soc {lane.name}" if lane.is_supported and lane.name else ""
        why = f" ({lane.why})" if lane.why else ""
        lines.append(f"  {lane.lane}: {state}{option}{why}")
    if answer.siblings:
        first, *other_siblings = answer.siblings
        names = ", ".join(other_siblings)
        further_siblings = f"; others with this Hexagon version: {names}" if other_siblings else ""
        lines.append(f"  nearest sibling: {first}{further_siblings}")
    return "\n".join(lines)


def describe_versions(qnn: str, not_qnn: str) -> str:
    """Return since when QNN knows an SoC, as far as that is known."""
    if not qnn:
        return "since when it knows this SoC is not known"
    if not_qnn:
        return f"{qnn} knows it, {not_qnn} does not"
    return f"{qnn} knows it; older ones were not read"


def is_too_old(soc: Soc, version: str) -> bool:
    """Return whether QNN ``version`` is known not to know an SoC."""
    return bool(soc.not_qnn) and parse_version(version) <= parse_version(soc.not_qnn)
