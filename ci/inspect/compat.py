"""Judge whether a runtime can load a program on an SoC. The answer has one row per axis. An axis is
a property in which program, runtime and SoC must agree. Nothing here reads a file.

The rules, and the evidence for them (docs/findings/versions.md has the tables):

- Build: a runtime loads contexts that were compiled with its QNN version or an older one. All 25
  pairs of QNN 2.47 to 2.51 behave like this on the emulator. A newer core API alone is no obstacle,
  so it is not an axis.
- Hexagon, SoC, VTCM: a device rejects a context that is for another Hexagon version or needs more
  VTCM than the device has (error 5005 or 14001: pytorch/executorch#1176, #9084). The emulator runs
  all of them.
- A context that was compiled for a smaller Hexagon version and no SoC may run on a newer one: QNN's
  headers have QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL for it, which is an error only if the caller asks
  for strict compatibility (QnnContext.h). Whether it does is not known.
- Adaptor: QNN rejects an adaptor whose headers are newer than the library
  (pytorch/executorch#16011). An adaptor with headers up to 2.37 cannot create a device with
  libraries that read socModel at another byte (error 14001).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from provisioning.doctor.survey.context_binaries import KNOWN_INFO, ContextBinary
from provisioning.doctor.survey.programs import Program
from provisioning.elf.programs import is_loadable
from provisioning.manifest.targets import find_soc
from provisioning.versions import is_older, parse_version

# The oldest QNN version that is known to write binary info of version 3.
INFO_SINCE = "2.29.0"
# QNN versions whose libraries read socModel at byte 8 of QnnHtpDevice_CustomConfig_t. The libraries
# of 2.37 and 2.49.40 read it at byte 4, where headers up to OLD_HEADERS have it.
MOVED_SOC = {"2.47.0", "2.48.40", "2.50.40", "2.51.0"}
OLD_HEADERS = "2.37"


class Verdict(str, Enum):
    """The verdict of a row or an answer. ``SKIPPED`` means that a row was not requested or does not
    apply."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "cannot tell"
    SKIPPED = "not judged"


class Axis(str, Enum):
    """The properties in which a program, a runtime and an SoC must agree, in the order of rows."""

    FILE = "file"
    BUILD = "build"
    BINARY_INFO = "binary info"
    ADAPTOR = "adaptor"
    HEXAGON = "Hexagon"
    SOC = "SoC"
    VTCM = "VTCM"
    OPERATORS = "operators"


@dataclass(frozen=True)
class Runtime:
    """A runtime of QNN."""

    name: str
    qnn: str = ""  # its version, or empty if it is unknown
    stubs: tuple[int, ...] = ()  # the Hexagon versions for which it has stubs
    skels: tuple[int, ...] = ()  # the Hexagon versions for which it has skels
    # The QNN version whose headers ExecuTorch's backend was built with, or "unknown"; empty if the
    # runtime does not contain this backend.
    adaptor: str = ""
    # The program's CPU operators that are named in the runtime's libraries, or None without
    # ExecuTorch.
    kernels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Row:
    """The verdict on an axis, with the reason. If the verdict is unknown, the reason says which
    information is missing."""

    axis: Axis
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Answer:
    """The answer to the question whether a program loads. ``decided_by`` lists the axes whose
    verdict is the answer."""

    file: str
    runtime: str
    soc: str
    verdict: Verdict
    decided_by: tuple[Axis, ...]
    rows: tuple[Row, ...]
    schema_version: int = 1


def judge_compat(program: Program, runtime: Runtime | None = None, soc: str = "") -> Answer:
    """Judge a program for a runtime, for an SoC such as SM8750, or for both. Raises UsageError for
    an unknown SoC."""
    contexts = _choose_contexts(program, soc)
    rows = (
        _judge_file(program),
        *_judge_runtime(contexts, runtime),
        *_judge_soc(contexts, runtime, soc),
        _judge_operators(program, runtime),
    )
    met = {row.verdict for row in rows}
    verdict = next((one for one in (Verdict.NO, Verdict.UNKNOWN) if one in met), Verdict.YES)
    decided = tuple(row.axis for row in rows if row.verdict is verdict)
    return Answer(program.file, runtime.name if runtime else "", soc, verdict, decided, rows)


def _choose_contexts(program: Program, soc: str) -> tuple[ContextBinary, ...]:
    """Return the contexts that a device would load. If the program is a package with contexts for
    the SoC, return these, otherwise all of them."""
    if not program.is_package or not soc:
        return program.contexts
    number = find_soc(soc).id
    return (
        tuple(context for context in program.contexts if context.soc_id == number)
        or program.contexts
    )


def _judge_file(program: Program) -> Row:
    if program.damage:
        return Row(Axis.FILE, Verdict.NO, f"the file {program.damage}")
    if not program.contexts:
        why = (
            "the file contains no QNN context binary; programs that are compiled on the device"
            " cannot be judged"
        )
        return Row(Axis.FILE, Verdict.UNKNOWN, why)
    also = f", but it needs the .ptd with {program.external[0]}" if program.external else ""
    return Row(Axis.FILE, Verdict.YES, f"the file is complete{also}")


def _judge_runtime(contexts: Iterable[ContextBinary], runtime: Runtime | None) -> Iterator[Row]:
    if runtime is None:
        for axis in (Axis.BUILD, Axis.BINARY_INFO, Axis.ADAPTOR):
            yield Row(axis, Verdict.SKIPPED, "no runtime was given")
        return
    compilers = [context.qnn for context in contexts]
    yield _judge_build(compilers, runtime)
    versions = {context.binary_info for context in contexts if context.binary_info}
    if not versions or not runtime.qnn:
        yield Row(
            Axis.BINARY_INFO,
            Verdict.SKIPPED,
            "the version of the binary info or of the runtime is unknown",
        )
    elif max(versions) > KNOWN_INFO or is_older(runtime.qnn, INFO_SINCE):
        which = ", ".join(map(str, sorted(versions)))
        why = (
            f"QNN {runtime.qnn} was not tested with binary info of version {which}: try the program"
        )
        yield Row(Axis.BINARY_INFO, Verdict.UNKNOWN, why)
    else:
        yield Row(
            Axis.BINARY_INFO,
            Verdict.YES,
            f"QNN {INFO_SINCE} and later read binary info of version 3",
        )
    yield _judge_adaptor(runtime)


def _judge_build(compilers: list[str], runtime: Runtime) -> Row:
    if not compilers:
        return Row(Axis.BUILD, Verdict.SKIPPED, "there is no context binary")
    if not all(compilers) or not runtime.qnn:
        why = "the program does not state its QNN version: ask the person who compiled it"
        if all(compilers):
            why = f"{runtime.name} does not state its QNN version: pass one (--runtime 2.49.40)"
        return Row(Axis.BUILD, Verdict.UNKNOWN, why)
    newest = max(compilers, key=parse_version)
    why = f"compiled with QNN {newest}, and the runtime is QNN {runtime.qnn}"
    if is_loadable(newest, runtime.qnn):
        return Row(Axis.BUILD, Verdict.YES, why)
    if newest.startswith(f"{runtime.qnn}."):
        told = f"{why}: pass all three parts of the runtime's version (--runtime {newest})"
        return Row(Axis.BUILD, Verdict.UNKNOWN, told)
    return Row(Axis.BUILD, Verdict.NO, f"{why}, which is older: use {newest} or later")


def _judge_adaptor(runtime: Runtime) -> Row:
    headers, qnn = runtime.adaptor, runtime.qnn
    if not headers or headers == "unknown" or not qnn:
        why = "the runtime does not state its QNN version"
        if not headers:
            why = "the runtime does not contain ExecuTorch's backend"
        elif headers == "unknown":
            why = "ExecuTorch's backend does not state the version of its headers"
        return Row(Axis.ADAPTOR, Verdict.SKIPPED, why)
    why = (
        f"ExecuTorch's backend was built with the headers of QNN {headers}, "
        f"and the libraries are from QNN {qnn}"
    )
    if is_older(qnn, headers):
        return Row(Axis.ADAPTOR, Verdict.NO, f"{why}, which is older: 'Qnn API version mismatched'")
    if qnn in MOVED_SOC and not is_older(OLD_HEADERS, headers):
        return Row(
            Axis.ADAPTOR, Verdict.NO, f"{why}, which read socModel at another byte: error 14001"
        )
    return Row(Axis.ADAPTOR, Verdict.YES, why)


def _judge_soc(
    contexts: tuple[ContextBinary, ...], runtime: Runtime | None, soc: str
) -> Iterator[Row]:
    versions = sorted({context.hexagon for context in contexts if context.hexagon})
    made = ", ".join(f"V{version}" for version in versions)
    if not contexts or not soc:
        yield _judge_parts(versions, runtime)
        for axis in (Axis.SOC, Axis.VTCM):
            yield Row(
                axis, Verdict.SKIPPED, "no SoC was given" if contexts else "no context binary"
            )
        return
    wanted = find_soc(soc)
    if not versions:
        yield Row(Axis.HEXAGON, Verdict.UNKNOWN, "the program does not state its Hexagon version")
    elif {context.soc_id for context in contexts} == {0} and max(versions) < wanted.hexagon:
        why = (
            f"compiled for {made} and no SoC, and {soc} has V{wanted.hexagon}: QNN may accept the "
            "context as suboptimal (QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL); try it on a device"
        )
        yield Row(Axis.HEXAGON, Verdict.UNKNOWN, why)
    elif versions != [wanted.hexagon]:
        why = f"compiled for {made}, but {soc} has V{wanted.hexagon} (error 5005 or 14001)"
        yield Row(Axis.HEXAGON, Verdict.NO, why)
    else:
        yield _judge_parts(versions, runtime, f"compiled for {made}, which {soc} has")
    numbers = {context.soc_id for context in contexts}
    others = [context for context in contexts if context.soc_id != wanted.id]
    names = ", ".join(sorted({other.soc or f"SoC {other.soc_id}" for other in others}))
    if numbers == {wanted.id}:
        yield Row(Axis.SOC, Verdict.YES, f"compiled for {soc}")
    elif numbers & {0}:
        yield Row(
            Axis.SOC,
            Verdict.UNKNOWN,
            "the program does not state its SoC: ask the person who compiled it",
        )
    elif versions == [wanted.hexagon]:
        why = (
            f"compiled for {names}, not for {soc}; all have Hexagon V{wanted.hexagon}, but it is "
            f"not known whether {soc} can load the program"
        )
        yield Row(Axis.SOC, Verdict.UNKNOWN, why)
    else:
        yield Row(
            Axis.SOC, Verdict.NO, f"compiled for {names}, not for {soc}: lower the model for {soc}"
        )
    needed = max(context.vtcm_mb for context in contexts)
    why = f"the program needs {needed} MB of VTCM, and {soc} has {wanted.vtcm_mb} MB"
    if not needed:
        yield Row(Axis.VTCM, Verdict.UNKNOWN, "the program does not state how much VTCM it needs")
    else:
        fits = needed <= wanted.vtcm_mb
        yield Row(Axis.VTCM, Verdict.YES if fits else Verdict.NO, why)


def _judge_parts(versions: list[int], runtime: Runtime | None, why: str = "") -> Row:
    """Judge whether a runtime has a stub or skel for each of these Hexagon versions. If none is
    missing and ``why`` is not empty, the verdict is YES with this reason."""
    parts = {*runtime.stubs, *runtime.skels} if runtime else set()
    if lacking := [version for version in versions if parts and version not in parts]:
        has = ", ".join(f"V{part}" for part in sorted(parts))
        missing = ", ".join(f"V{one}" for one in lacking)
        told = (
            f"the runtime has stubs or skels for {has}, but none for {missing}: error 14001 or 4000"
        )
        return Row(Axis.HEXAGON, Verdict.NO, told)
    if why:
        return Row(Axis.HEXAGON, Verdict.YES, why)
    if parts and versions:
        told = "the runtime has a stub or skel for each Hexagon version of the program"
        return Row(Axis.HEXAGON, Verdict.YES, told)
    why = "this needs a context binary, and either an SoC or a runtime with stubs or skels"
    return Row(Axis.HEXAGON, Verdict.SKIPPED, why)


def _judge_operators(program: Program, runtime: Runtime | None) -> Row:
    names = sorted({operator for method in program.methods for operator in method.cpu_operators})
    if not names:
        return Row(Axis.OPERATORS, Verdict.YES, "no operator runs on the CPU")
    listed = ", ".join(names)
    if program.kind == "onnx" or runtime is None or runtime.kernels is None:
        why = f"no runtime with ExecuTorch was given, so kernels for {listed} were not looked for"
        return Row(Axis.OPERATORS, Verdict.SKIPPED, why)
    if lacking := [name for name in names if name not in runtime.kernels]:
        why = f"the runtime's libraries lack kernels for {', '.join(lacking)}: link such kernels"
        return Row(Axis.OPERATORS, Verdict.NO, why)
    return Row(Axis.OPERATORS, Verdict.YES, f"the runtime contains kernels for {listed}")
