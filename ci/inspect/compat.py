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

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from provisioning.doctor.survey.context_binaries import KNOWN_INFO, ContextBinary
from provisioning.doctor.survey.programs import Program
from provisioning.elf.programs import is_loadable
from provisioning.manifest.targets import find_any_soc
from provisioning.versions import is_older, parse_version

# The oldest QNN version that is known to write binary info of version 3.
INFO_SINCE = "2.29.0"
# QNN versions whose libraries read socModel at byte 8 of QnnHtpDevice_CustomConfig_t. The libraries
# of 2.37 and 2.49.40 read it at byte 4, where headers up to OLD_HEADERS have it.
MOVED_SOC = {"2.47.0", "2.48.40", "2.50.40", "2.51.0"}
OLD_HEADERS = "2.37"
NO_RUNTIME = "--qnn-runtime was not given"


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


Judged: TypeAlias = tuple[Verdict, str]  # with the reason
Contexts: TypeAlias = tuple[ContextBinary, ...]


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
    verdicts = {
        Axis.FILE: _judge_file(program),
        Axis.BUILD: _judge_build(contexts, runtime),
        Axis.BINARY_INFO: _judge_binary_info(contexts, runtime),
        Axis.ADAPTOR: _judge_adaptor(program, runtime),
        Axis.HEXAGON: _judge_hexagon(contexts, runtime, soc),
        Axis.SOC: _judge_soc(contexts, soc),
        Axis.VTCM: _judge_vtcm(contexts, soc),
        Axis.OPERATORS: _judge_operators(program, runtime),
    }
    rows = tuple(Row(axis, *judged) for axis, judged in verdicts.items())
    met = {row.verdict for row in rows}
    verdict = Verdict.YES
    # One axis that does not fit is enough, whatever is unknown about others.
    if Verdict.NO in met:
        verdict = Verdict.NO
    elif Verdict.UNKNOWN in met:
        verdict = Verdict.UNKNOWN
    decided = tuple(row.axis for row in rows if row.verdict is verdict)
    return Answer(program.file, runtime.name if runtime else "", soc, verdict, decided, rows)


def _choose_contexts(program: Program, soc: str) -> tuple[ContextBinary, ...]:
    """Return the contexts that a device would load. If the program is a package with contexts for
    the SoC, return these, otherwise all of them."""
    if not program.is_package or not soc:
        return program.contexts
    number = find_any_soc(soc).id
    chosen = tuple(context for context in program.contexts if context.soc_id == number)
    return chosen or program.contexts


def _judge_file(program: Program) -> Judged:
    if program.damage:
        return Verdict.NO, f"the file {program.damage}"
    if program.is_of_other_maker and not program.contexts:
        return Verdict.NO, f"the file is compiled for {program.compiled_for}"
    if not program.contexts:
        why = "the file contains no QNN context binary"
        return Verdict.UNKNOWN, f"{why}; programs that are compiled on the device cannot be judged"
    also = f", but it needs the .ptd with {program.external[0]}" if program.external else ""
    return Verdict.YES, f"the file is complete{also}"


def _judge_build(contexts: Contexts, runtime: Runtime | None) -> Judged:
    compilers = [context.qnn for context in contexts]
    if runtime is None:
        return Verdict.SKIPPED, NO_RUNTIME
    if not compilers:
        return Verdict.SKIPPED, "there is no context binary"
    if not all(compilers):
        why = "the program does not state its QNN version: ask the person who compiled it"
        return Verdict.UNKNOWN, why
    if not runtime.qnn:
        why = f"{runtime.name} does not state its QNN version: pass one (--qnn-runtime 2.49.40)"
        return Verdict.UNKNOWN, why
    # A program may contain contexts of several compilers; the runtime has to load them all.
    newest = max(compilers, key=parse_version)
    why = f"compiled with QNN {newest}, and the runtime is QNN {runtime.qnn}"
    if is_loadable(newest, runtime.qnn):
        return Verdict.YES, why
    # 2.49 as a runtime may be 2.49.0 or 2.49.40.
    if newest.startswith(f"{runtime.qnn}."):
        fix = f"pass all three parts of the runtime's version (--qnn-runtime {newest})"
        return Verdict.UNKNOWN, f"{why}: {fix}"
    return Verdict.NO, f"{why}, which is older: use {newest} or later"


def _judge_binary_info(contexts: Contexts, runtime: Runtime | None) -> Judged:
    if runtime is None:
        return Verdict.SKIPPED, NO_RUNTIME
    versions = sorted({context.binary_info for context in contexts if context.binary_info})
    if not versions or not runtime.qnn:
        return Verdict.SKIPPED, "the version of the binary info or of the runtime is unknown"
    if versions[-1] > KNOWN_INFO or is_older(runtime.qnn, INFO_SINCE):
        format_text = f"binary info of version {', '.join(map(str, versions))}"
        why = f"QNN {runtime.qnn} was not tested with {format_text}: try the program"
        return Verdict.UNKNOWN, why
    return Verdict.YES, f"QNN {INFO_SINCE} and later read binary info of version 3"


def _judge_adaptor(program: Program, runtime: Runtime | None) -> Judged:
    if program.kind in ("litert", "onnx"):
        return Verdict.SKIPPED, "only programs of ExecuTorch need one"
    if runtime is None:
        return Verdict.SKIPPED, NO_RUNTIME
    headers, qnn = runtime.adaptor, runtime.qnn
    if not headers:
        return Verdict.SKIPPED, "the runtime does not contain ExecuTorch's backend"
    if headers == "unknown":
        return Verdict.SKIPPED, "ExecuTorch's backend does not state the version of its headers"
    if not qnn:
        return Verdict.SKIPPED, "the runtime does not state its QNN version"
    why = (
        f"ExecuTorch's backend was built with the headers of QNN {headers}, "
        f"and the libraries are from QNN {qnn}"
    )
    if is_older(qnn, headers):
        return Verdict.NO, f"{why}, which is older: 'Qnn API version mismatched'"
    if qnn in MOVED_SOC and not is_older(OLD_HEADERS, headers):
        return Verdict.NO, f"{why}, which read socModel at another byte: error 14001"
    return Verdict.YES, why


def _judge_hexagon(contexts: Contexts, runtime: Runtime | None, soc: str) -> Judged:
    versions = _list_hexagons(contexts)
    if not contexts or not soc:
        return _judge_parts(versions, runtime)
    soc_version = find_any_soc(soc).hexagon
    compiled_for = ", ".join(f"V{version}" for version in versions)
    if not soc_version:
        return Verdict.NO, f"QNN knows no HTP of {soc}"
    if not versions:
        return Verdict.UNKNOWN, "the program does not state its Hexagon version"
    if {context.soc_id for context in contexts} == {0} and versions[-1] < soc_version:
        why = (
            f"compiled for {compiled_for} and no SoC, and {soc} has V{soc_version}: QNN may accept "
            "the context as suboptimal (QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL); try it on a device"
        )
        return Verdict.UNKNOWN, why
    if versions != [soc_version]:
        return (
            Verdict.NO,
            f"compiled for {compiled_for}, but {soc} has V{soc_version} (error 5005 or 14001)",
        )
    return _judge_parts(versions, runtime, f"compiled for {compiled_for}, which {soc} has")


def _list_hexagons(contexts: Contexts) -> list[int]:
    """Return the Hexagon versions for which contexts were compiled, the smallest one first."""
    return sorted({context.hexagon for context in contexts if context.hexagon})


def _judge_parts(versions: list[int], runtime: Runtime | None, why: str = "") -> Judged:
    """Judge whether a runtime has a stub or skel for each of these Hexagon versions. If none is
    missing and ``why`` is not empty, the verdict is YES with this reason."""
    parts = {*runtime.stubs, *runtime.skels} if runtime else set()
    if lacking := [version for version in versions if parts and version not in parts]:
        has = ", ".join(f"V{part}" for part in sorted(parts))
        missing = ", ".join(f"V{version}" for version in lacking)
        problem = f"the runtime has stubs or skels for {has}, but none for {missing}"
        return Verdict.NO, f"{problem}: error 14001 or 4000"
    if why:
        return Verdict.YES, why
    if parts and versions:
        return Verdict.YES, "the runtime has a stub or skel for each Hexagon version of the program"
    why = "this needs a context binary, and either an SoC or a runtime with stubs or skels"
    return Verdict.SKIPPED, why


def _judge_soc(contexts: Contexts, soc: str) -> Judged:
    if not contexts or not soc:
        return Verdict.SKIPPED, "no SoC was given" if contexts else "no context binary"
    target = find_any_soc(soc)
    numbers = {context.soc_id for context in contexts}
    foreign = [context for context in contexts if context.soc_id != target.id]
    names = ", ".join(sorted({context.soc or f"SoC {context.soc_id}" for context in foreign}))
    if numbers == {target.id}:
        return Verdict.YES, f"compiled for {soc}"
    if 0 in numbers:
        why = "the program does not state its SoC: ask the person who compiled it"
        return Verdict.UNKNOWN, why
    why = f"compiled for {names}, not for {soc}"
    if _list_hexagons(contexts) != [target.hexagon]:
        return Verdict.NO, f"{why}: lower the model for {soc}"
    open_question = f"it is not known whether {soc} can load the program"
    return Verdict.UNKNOWN, f"{why}; all have Hexagon V{target.hexagon}, but {open_question}"


def _judge_vtcm(contexts: Contexts, soc: str) -> Judged:
    if not contexts or not soc:
        return Verdict.SKIPPED, "no SoC was given" if contexts else "no context binary"
    has, needed = find_any_soc(soc).vtcm_mb, max(context.vtcm_mb for context in contexts)
    if not has:
        return Verdict.SKIPPED, f"QNN knows no HTP of {soc}"
    if not needed:
        return Verdict.UNKNOWN, "the program does not state how much VTCM it needs"
    why = f"the program needs {needed} MiB of VTCM, and {soc} has {has} MiB"
    return Verdict.YES if needed <= has else Verdict.NO, why


def _judge_operators(program: Program, runtime: Runtime | None) -> Judged:
    names = sorted({operator for method in program.methods for operator in method.cpu_operators})
    if not names:
        return Verdict.YES, "no operator runs on the CPU"
    listed = ", ".join(names)
    if program.kind == "litert":
        return Verdict.SKIPPED, f"LiteRT runs {listed}; its kernels were not looked for"
    if program.kind == "onnx" or runtime is None or runtime.kernels is None:
        why = f"no runtime with ExecuTorch was given, so kernels for {listed} were not looked for"
        return Verdict.SKIPPED, why
    if lacking := [name for name in names if name not in runtime.kernels]:
        why = f"the runtime's libraries lack kernels for {', '.join(lacking)}: link such kernels"
        return Verdict.NO, why
    return Verdict.YES, f"the runtime contains kernels for {listed}"
