"""The variables that concern QNN, and what the library search path holds of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from provisioning.doctor.facts import HOST_DIRECTORY, PathEntry, VariableFacts
from provisioning.doctor.survey.python_probe import find_adaptors
from provisioning.doctor.survey.tree import FactsCache, Identity, read_files

NAMES = (
    "QNN_SDK_ROOT",
    "QAIRT_SDK_ROOT",
    "QAIRT_ROOT",
    "SNPE_ROOT",
    "AISW_SDK_ROOT",
    "LD_LIBRARY_PATH",
    "ADSP_LIBRARY_PATH",
    "DSP_LIBRARY_PATH",
    "PYTHONPATH",
    "ANDROID_NDK_ROOT",
    "HEXAGON_SDK_ROOT",
    "HEXAGON_TOOLS_ROOT",
    "EXECUTORCH_ROOT",
)
CONCERNED = re.compile(r"lib(Qnn|Htp|Genie|c\+\+|unwind)[^/]*\.so[.0-9]*$")
RUNTIME = re.compile(r"libstdc\+\+\.so\.6|libgcc_s\.so\.1|libatomic\.so\.1")


def survey_variables(
    variables: Mapping[str, str], cache: FactsCache, sdk_root: Path | None = None
) -> VariableFacts:
    """Facts of the variables a job would get."""
    values = {name: variables[name] for name in NAMES if name in variables}
    entries = values["LD_LIBRARY_PATH"].split(":") if values.get("LD_LIBRARY_PATH") else []
    python_path = [part for part in values.get("PYTHONPATH", "").split(":") if part]
    roots = [value for name, value in values.items() if name.endswith("_ROOT") and value]
    on_path = tuple(part for part in python_path if (Path(part) / "executorch").is_dir())
    places = [Path(path) for path in [*roots, *filter(None, entries)]]
    if sdk_root:
        places += [sdk_root, sdk_root / HOST_DIRECTORY]
    return VariableFacts(
        values,
        library_path=tuple(_survey_entry(entry, cache) for entry in entries),
        executorch_on_path=on_path,
        without_adaptor=tuple(part for part in on_path if not find_adaptors(f"{part}/executorch")),
        roots_that_exist=frozenset(root for root in roots if Path(root).is_dir()),
        real={str(place): os.path.realpath(place) for place in places},
    )


def _survey_entry(directory: str, cache: FactsCache) -> PathEntry:
    place = Path(directory or ".")
    found: dict[str, tuple[Path, Identity]] = {}
    runtimes: dict[str, tuple[Path, Identity]] = {}
    try:
        for entry in os.scandir(place):
            kept = runtimes if RUNTIME.fullmatch(entry.name) else found
            if (kept is runtimes or CONCERNED.match(entry.name)) and entry.is_file():
                kept[entry.name] = (Path(entry.path), Identity.of(entry.stat()))
    except OSError:
        return PathEntry(directory)
    return PathEntry(directory, read_files(found, cache), read_files(runtimes, cache))
