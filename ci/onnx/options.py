"""Options of the QNN execution provider (EP), judged before a session is made.

The EP ignores a key it does not know, and most values: a session then runs with other settings
than those asked for, and says nothing. manifests/policies/onnx-options.toml is the table.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ci.onnx.option_conflicts import find_conflicts
from ci.onnx.option_table import Kind, Option, read_options
from provisioning.errors import UsageError
from provisioning.manifest.socs import read_socs
from provisioning.versions import is_older

PACKAGE = "onnxruntime-qnn"
PREFIX = "ep.qnnexecutionprovider."  # what the EP's options become as session entries


def parse_options(words: Sequence[str]) -> dict[str, str]:
    """Options from words ``KEY=VALUE``; what they need of each other is check_options' question.

    Raises UsageError, which names every fault.
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
    _refuse([*faults, *_find_own_faults(options, read_options().provider, installed_version())])
    return options


def check_options(
    options: Mapping[str, str],
    entries: Mapping[str, str] | None = None,
    *,
    version: str = "",
) -> None:
    """Judge the options and session entries of one session, for the EP's ``version`` (installed).

    Raises UsageError, which names every fault with the values that are allowed.
    """
    version = version or installed_version()
    table, entries = read_options(), entries or {}
    faults = [
        *_find_own_faults(options, table.provider, version),
        *_find_own_faults(entries, table.session, version),
    ]
    _refuse(faults or list(find_conflicts(options, entries)))


def installed_version() -> str:
    """Of onnxruntime-qnn; where it is not installed, the one that the table was checked with."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return read_options().checked


def _refuse(faults: Iterable[str]) -> None:
    listed = list(faults)
    if listed:
        count = "an option" if len(listed) == 1 else f"{len(listed)} options"
        raise UsageError(
            f"{count} of the QNN execution provider cannot be used:"
            + "".join(f"\n    {fault}" for fault in listed),
            why="the provider ignores most of what it does not understand, without an error",
            fix="correct them; docs/onnx.md lists every option with its values",
        )


def _find_own_faults(
    given: Mapping[str, str], options: Sequence[Option], version: str
) -> Iterator[str]:
    known = {option.name: option for option in options}
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            yield from _explain_unknown(name, known)
        elif option.since and is_older(version, option.since):
            yield f"{name} needs {PACKAGE} {option.since}, this is {version}"
        elif fault := _find_value_fault(option, value):
            yield f"{name}={value}: {fault}"


def _explain_unknown(name: str, known: Mapping[str, Option]) -> Iterator[str]:
    table = read_options()
    if "session.disable_cpu_ep_fallback" in known:
        if name in table.others:
            return
        if name.startswith(PREFIX):
            yield f"{name} is a provider option, give it as {name.removeprefix(PREFIX)}"
            return
    for elsewhere, options in (
        ("provider option", table.provider),
        ("session entry", table.session),
        ("run option", table.run),
    ):
        if any(option.name == name for option in options):
            yield f"{name} is a {elsewhere}, and has no effect here"
            return
    candidates = [*known, *(table.others if "ep.context_enable" in known else ())]
    near = difflib.get_close_matches(name.lower(), candidates, n=2, cutoff=0.6)
    meant = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(known)}"
    yield f"no option {name!r} in {PACKAGE} up to {table.newest}{meant}"


def _find_value_fault(option: Option, value: str) -> str:
    for part in value.split(",") if option.several else (value,):
        if fault := _find_part_fault(option, part):
            return fault
    return ""


def _find_part_fault(option: Option, value: str) -> str:
    if option.kind in (Kind.FILE, Kind.DIRECTORY):
        return _find_path_fault(option, value)
    if option.kind is Kind.NUMBER:
        fits = re.fullmatch(r"\d{1,9}", value, re.ASCII) is not None
        fits = fits and option.least <= int(value) <= (option.most or 2**31)
        if option.most == 0:
            fits = value == "0"
    elif option.kind is Kind.TEXT:
        fits = re.fullmatch(option.pattern, value) is not None
    else:
        fits = value in (option.values or ("0", "1"))
    if fits:
        return ""
    near = difflib.get_close_matches(value.lower(), option.values, n=1)
    if option.name == "soc_model" and value.upper() in read_socs():
        near = [str(read_socs()[value.upper()].id)]
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"allowed: {option.allowed}{meant}"


def _find_path_fault(option: Option, value: str) -> str:
    path = Path(value)
    if not value or "\0" in value:
        return f"allowed: {option.allowed}"
    if option.kind is Kind.DIRECTORY:
        return "" if path.is_dir() else "no such directory"
    if option.made:
        return "" if path.parent.is_dir() and not path.is_dir() else "its directory does not exist"
    if len(path.parts) == 1:  # a name, which the loader looks for
        return "" if re.fullmatch(r"lib\w+\.so", value) else "allowed: a library, libQnnHtp.so"
    return "" if path.is_file() else "no such file"
