"""Checks a case's options for the QNN execution provider (EP) before a session is created.

The EP ignores an unknown key and most invalid values. The session then runs with different settings
than requested, without an error. manifests/policies/onnx-options.toml lists the known options.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from ci.cases.qnn_files import PROFILE_CSV
from ci.models.lowering_options import LOG_LEVELS
from ci.models.schemes import Scheme
from ci.report.text import count
from provisioning.errors import UnfitError, UsageError
from provisioning.files import hash_file
from provisioning.manifest.reader import read_policy
from provisioning.manifest.targets import Soc, find_any_soc, name_socs, read_all_socs, read_socs
from provisioning.versions import is_older

PACKAGE = "onnxruntime-qnn"
PREFIX = "ep.qnnexecutionprovider."  # in front of an EP option that is set as a session entry
OFF = ("", "0", "off")
BF16_SOC = 88  # the lowest soc_model with bfloat16, according to the EP
UDMA_HEXAGON = 81  # V75 and V79 return error 6007, V81 works
LIBRARIES = "lib/x86_64-linux-clang"
HTP = f"{LIBRARIES}/libQnnHtp.so"
SAVER_LIBRARY = f"{LIBRARIES}/libQnnSaver.so"


class Option(Struct, frozen=True, forbid_unknown_fields=True):
    """One option. The comment at the top of onnx-options.toml explains each field."""

    name: str
    kind: Literal["switch", "choice", "number", "file", "directory", "text"]
    default: str
    doc: str
    wrong: str
    source: str
    values: tuple[str, ...] = ()
    several: bool = False
    least: int = 0
    most: int | None = None
    is_output: bool = False
    pattern: str = ".+"
    example: str = ""
    since: str = ""
    backends: tuple[str, ...] = ()
    where: str = ""
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """Return the allowed values as text."""
        if self.kind == "number" and self.most is not None:
            return f"{self.least} to {self.most}" if self.most > self.least else str(self.least)
        return {
            "switch": "0, 1",
            "choice": ", ".join(self.values),
            "number": f"a whole number, at least {self.least}",
            "file": "a file" + (" to write" if self.is_output else ""),
            "directory": "a directory",
            "text": self.example or "text",
        }[self.kind]

    def fits(self, value: str) -> bool:
        """Return whether ``value`` is allowed. This does not check paths."""
        if self.kind == "number":
            most = 2**31 if self.most is None else self.most
            # Otherwise, \d also matches digits of other scripts.
            is_number = re.fullmatch(r"\d{1,9}", value, re.ASCII)
            return is_number is not None and self.least <= int(value) <= most
        if self.kind == "text":
            return re.fullmatch(self.pattern, value) is not None
        return value in (self.values or ("0", "1"))


class OptionTable(Struct, frozen=True, forbid_unknown_fields=True):
    """All options in onnx-options.toml. ``others`` are session entries that do not concern QNN."""

    checked: str
    newest: str
    others: tuple[str, ...]
    provider: tuple[Option, ...]
    session: tuple[Option, ...]
    run: tuple[Option, ...]


@functools.cache
def read_options() -> OptionTable:
    """Return the table of options. Raises ManifestError if its file is invalid."""
    return read_policy("onnx-options", OptionTable)


def parse_options(words: Sequence[str]) -> dict[str, str]:
    """Return the options in ``KEY=VALUE`` arguments. Each value is checked, but conflicts between
    options are left to check_options.

    Raises UsageError with all faults, if there are any.
    """
    options: dict[str, str] = {}
    faults = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            faults.append(f"{word!r} is not KEY=VALUE")
        elif name in options:
            faults.append(f"{name} is given twice")
        else:
            options[name] = value
    _refuse([*faults, *_find_own_faults(options, read_options().provider)])
    return options


def check_options(
    options: Mapping[str, str], entries: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Check the options and session entries of one session against the installed EP.

    Raises UsageError with all faults, if there are any, and the allowed values.
    """
    table = read_options()
    faults = [
        *_find_own_faults(options, table.provider),
        *_find_own_faults(entries, table.session, table.others),
    ]
    _refuse(faults or list(find_conflicts(options, entries)))


def installed_version() -> str:
    """Return the version of onnxruntime-qnn. If it is not installed, return the version for which
    the table of options was checked."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return read_options().checked


def _refuse(faults: Iterable[str]) -> None:
    listed = list(faults)
    if listed:
        options = "an option" if len(listed) == 1 else f"{len(listed)} options"
        raise UsageError(
            f"{options} of the QNN execution provider cannot be used:"
            + "".join(f"\n    {fault}" for fault in listed),
            why="the provider ignores most options that it does not understand, without an error",
            fix="correct them; docs/reference/onnx.md lists every option with its values",
        )


def _find_own_faults(
    settings: Mapping[str, str], options: Sequence[Option], unrelated: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the faults of single settings, which are options or session entries. ``options`` are
    those that exist, and ``unrelated`` the names of entries that do not concern QNN."""
    by_name, version = {option.name: option for option in options}, installed_version()
    for name, value in settings.items():
        option = by_name.get(name)
        if option is None:
            if name not in unrelated:
                yield _explain_unknown(name, [*by_name, *unrelated], [*by_name])
        elif option.since and is_older(version, option.since):
            yield f"{name} needs {PACKAGE} {option.since}, but {version} is installed"
        elif fault := _find_value_fault(option, value):
            yield f"{name}={value}: {fault}"


def _explain_unknown(name: str, similar: Sequence[str], existing: Sequence[str]) -> str:
    """Return why a setting does not exist. One of the names in ``similar`` is suggested if it is
    similar, or else all ``existing`` ones are listed."""
    table, plain = read_options(), name.removeprefix(PREFIX)
    tables = (table.provider, table.session, table.run)
    kinds = ("provider option", "session entry", "run option")
    for kind, options in zip(kinds, tables, strict=True):
        if any(option.name == plain for option in options):
            return f"{name} has no effect where it was set: {plain} is a {kind}"
    near = difflib.get_close_matches(name.lower(), similar, n=2, cutoff=0.6)
    advice = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(existing)}"
    return f"{PACKAGE} up to {table.newest} has no option {name!r}; {advice}"


def _find_value_fault(option: Option, value: str) -> str:
    if option.kind in {"file", "directory"}:
        return _find_path_fault(option, value)
    parts = value.split(",") if option.several else [value]
    wrong = [part for part in parts if not option.fits(part)]
    if not wrong:
        return ""
    near = difflib.get_close_matches(wrong[0].lower(), option.values, n=1)
    # The name of an SoC is what users know, but the option takes QNN's number.
    if option.name == "soc_model" and wrong[0].upper() in read_all_socs():
        near = [str(read_all_socs()[wrong[0].upper()].id)]
    return f"not valid; allowed: {option.allowed}" + (f"; did you mean {near[0]}?" if near else "")


def _find_path_fault(option: Option, value: str) -> str:
    path = Path(value)
    if not value or "\0" in value:
        return f"not valid; allowed: {option.allowed}"
    if option.kind == "directory":
        return "" if path.is_dir() else "no such directory"
    if option.is_output:
        fits = path.parent.is_dir() and not path.is_dir()
        return "" if fits else "not valid; allowed: a file in an existing directory"
    if len(path.parts) == 1:  # the loader searches for such a name
        fits = re.fullmatch(r"lib\w+\.so", value) is not None
        return "" if fits else "not valid; allowed: a library (libQnnHtp.so)"
    if path.is_file():
        return ""
    return "not a regular file" if path.exists() else "no such file"


def find_conflicts(options: Mapping[str, str], entries: Mapping[str, str]) -> Iterator[str]:
    """Yield the conflicts between provider options and session entries. All values must be
    valid."""
    table = read_options()
    settings = {**options, **entries}
    for option in (*table.provider, *table.session):
        if option.name in settings:
            yield from _find_lacks(option, settings)
    yield from _find_soc_faults(options)
    several = any("," in settings.get(name, "") for name in ("soc_model", "htp_arch"))
    if several and not _is_on(settings, "ep.context_enable"):
        yield "only a context binary can be for several SoCs: this needs ep.context_enable=1"
    if several and _is_on(settings, "ep.share_ep_contexts"):
        yield "ep.share_ep_contexts=1 works with only one SoC, but several are given"


def _is_on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "") not in OFF


def _find_lacks(option: Option, settings: Mapping[str, str]) -> Iterator[str]:
    """Yield why an option that is on has no effect with the other settings."""
    value = settings[option.name]
    if value in OFF:
        return
    shown = f"{option.name}={value}"
    backend = find_backend(settings)
    if option.backends and backend not in option.backends:
        yield f"{shown} has no effect on the backend {backend}: it is only for {option.backends[0]}"
    if option.where:
        yield f"{shown} has no effect here: it is only for {option.where}"
    for need in option.needs:
        name, _, values = need.partition("=")
        if not _is_on(settings, name) or (values and settings[name] not in values.split("|")):
            yield f"{shown} has no effect without {need.replace('|', ' or ')}"
    for excluded in option.excludes:
        if _is_on(settings, excluded):
            why = f"{option.name}: {option.doc}"
            yield f"{shown} cannot be used together with {excluded}={settings[excluded]} ({why})"


def find_backend(options: Mapping[str, str]) -> str:
    """Return the backend, such as ``htp`` or ``gpu``, from backend_type or the library's name."""
    if "backend_path" in options:
        stem = PurePath(options["backend_path"]).name.split(".")[0]
        return stem.removeprefix("lib").removeprefix("Qnn").lower()
    return options.get("backend_type", "htp")


def _find_soc_faults(options: Mapping[str, str]) -> Iterator[str]:
    lists = {
        name: options[name].split(",")
        for name in ("soc_model", "htp_arch", "vtcm_mb")
        if _is_on(options, name)
    }
    many = max((len(values) for values in lists.values()), default=0)
    for name, values in lists.items():
        if len(values) != many and (name != "vtcm_mb" or len(values) > 1):
            yield f"{name} has {count(len(values), 'value')}, but another option has {many}"
            return
    known_socs = ((name, read_all_socs()[name]) for name in name_socs().values())
    by_id = {soc.id: (name, soc) for name, soc in known_socs if soc.hexagon}
    for place, text in enumerate(lists.get("soc_model", ())):
        if int(text) not in by_id:
            socs = ", ".join(f"{soc.id} {name}" for name, soc in sorted(read_socs().items()))
            yield f"soc_model={text}: no SoC with an HTP has this number; known: {socs}"
            continue
        name, soc = by_id[int(text)]
        # A list has a value per SoC. Only vtcm_mb may have a single value, which is for all.
        soc_values = {key: values[place % len(values)] for key, values in lists.items()}
        yield from _find_contradictions(options, soc_values, name, soc)


def _find_contradictions(
    options: Mapping[str, str], soc_values: Mapping[str, str], name: str, soc: Soc
) -> Iterator[str]:
    """Yield the values of ``soc_values``, which are those for one SoC, and the ``options`` that
    contradict this SoC."""
    arch, vtcm = int(soc_values.get("htp_arch", 0)), int(soc_values.get("vtcm_mb", 0))
    if arch and arch != soc.hexagon:
        yield f"htp_arch={arch} contradicts soc_model={soc.id}: {name} has V{soc.hexagon}"
    if vtcm > soc.vtcm_mb:
        yield f"vtcm_mb={vtcm} is more than {name} (soc_model={soc.id}) has: {soc.vtcm_mb} MiB"
    if _is_on(options, "htp_bf16_enable") and soc.id < BF16_SOC:
        yield f"htp_bf16_enable=1 needs soc_model={BF16_SOC} or more, but {name} has {soc.id}"
    if _is_on(options, "extended_udma") and soc.hexagon < UDMA_HEXAGON:
        yield (
            f"extended_udma=1 needs Hexagon V{UDMA_HEXAGON} or later, but {name}"
            f" (soc_model={soc.id}) has V{soc.hexagon}"
        )


def choose_options(scheme: Scheme, soc: str, user_options: Mapping[str, str]) -> dict[str, str]:
    """Return all provider options of a case except the backend's path.

    ``user_options`` take precedence. By default, the emulator computes float models in float32,
    which no HTP does, and the provider leaves the quantization of inputs and outputs to the CPU.
    Both defaults are changed for HTP; for other backends, only the user's options are returned.
    """
    if find_backend(user_options) != "htp":
        return dict(user_options)
    return {
        "soc_model": str(find_any_soc(soc).id),
        "enable_htp_fp16_precision": str(int(not scheme.quantized)),
        "offload_graph_io_quantization": "0",
        **user_options,
    }


def find_library(sdk: Path, user_options: Mapping[str, str]) -> Path:
    """Return the library that backend_path or backend_type in ``user_options`` selects, by default
    HTP's. Raises UnfitError if one of these options asks for a library that the SDK at ``sdk``
    lacks."""
    kind = user_options.get("backend_type", "")
    name = user_options.get("backend_path") or (f"libQnn{kind.capitalize()}.so" if kind else "")
    if not name:
        return sdk / HTP
    if len(Path(name).parts) > 1:
        return Path(name)
    path = sdk / LIBRARIES / (name if kind in {"", "cpu", "gpu", "saver", "ir"} else Path(HTP).name)
    if not path.is_file():
        raise UnfitError(
            f"{sdk} has no {path.name}",
            why="the wheels do not contain this library; QNN SDKs from Qualcomm may contain it",
            fix="pass an SDK that contains it with --sdk, or omit the option for the backend",
        )
    return path


def hash_option_files(options: Mapping[str, str]) -> list[str]:
    """Return the SHA-256 of each file that ``options`` name and that a compilation reads, such as
    the user's own backend or the libraries in op_packages. A name without a directory stands for a
    library of the SDK, which is hashed with the SDK."""
    read_files = set()
    for option in read_options().provider:
        if option.kind == "file" and not option.is_output:
            read_files.add(option.name)
    words = [value for name, value in sorted(options.items()) if name in read_files]
    for package in options.get("op_packages", "").split(","):
        words += package.split(":")[1:2]  # the library of OP:LIBRARY:SYMBOL
    paths = [Path(word) for word in words if len(Path(word).parts) > 1]
    return [hash_file(path) for path in paths if path.is_file()]


def profile_options(level: str, path: Path) -> dict[str, str]:
    """Return options that make QNN write its profile to ``path``; none if ``level`` is empty."""
    return {"profiling_level": level, "profiling_file_path": str(path)} if level else {}


def list_host_paths(user_options: Mapping[str, str]) -> list[str]:
    """Return the options, as KEY=VALUE, that name a file or a directory of this computer."""
    kinds = {option.name: option.kind for option in read_options().provider}
    return [
        f"{name}={value}"
        for name, value in user_options.items()
        if name == "op_packages" or (kinds.get(name) in {"file", "directory"} and "/" in value)
    ]


def rate_severity(log_level: str) -> int:
    """Return ONNX Runtime's severity for one of QNN's log levels, by default ``warn``."""
    return max(FATAL - LOG_LEVELS.index(log_level or "warn"), 0)


FATAL = 4  # ONNX Runtime's severities are QNN's levels, except debug, in reverse order
NO_FALLBACK = {"session.disable_cpu_ep_fallback": "1"}
COMPILING = {"ep.context_enable": "1"}


def check_sessions(
    chosen: Mapping[str, str], profile: str, *, saver: bool, direct: bool = False
) -> None:
    """Check the provider options of all ONNX Runtime sessions of a case: the sessions that run the
    model, compile it, or record it with Saver.

    Raises UsageError for the first session with invalid options. The error lists all of them.
    """
    profiling = profile_options(profile, Path(PROFILE_CSV))
    if twice := sorted(profiling.keys() & chosen.keys()):
        raise UsageError(
            f"--profile and --option {twice[0]} exclude each other", fix="pass only one of them"
        )
    check_options({**chosen, **profiling})
    if not direct:
        check_options(chosen, COMPILING)
    if saver:
        check_options({**chosen, "qnn_saver_path": Path(SAVER_LIBRARY).name})
