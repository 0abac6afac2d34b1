"""Find an interpreter's installed packages and its QNN adaptor without importing them. Find out in
a separate process whether the adaptor can create a device, and cache the result.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from provisioning.artifacts.choice import read_overlay
from provisioning.console.process import run_process
from provisioning.doctor.facts import FileFacts, PythonFacts
from provisioning.doctor.survey import python_probe, qnn_probe
from provisioning.doctor.survey.tree import read_file
from provisioning.documents import decode_json, read_text
from provisioning.elf.facts import EM_X86_64
from provisioning.elf.loader import find_libraries
from provisioning.elf.qnn_build import find_headers_version
from provisioning.errors import ToolError
from provisioning.files import hash_file, write_whole
from provisioning.manifest.targets import Backend

TIMEOUT_S = 60.0
DEVICE_TIMEOUT_S = 120.0
QNN_SAYS = re.compile(r"(?:<E> |\[ERROR\] \[Qnn ExecuTorch\]: )([^\n]+)")
ANSWER = re.compile(r"^device (.*)$", re.MULTILINE)


def survey_python(
    python: Path | None,
    distributions: Sequence[str],
    modules: Sequence[str],
    variables: Mapping[str, str],
) -> PythonFacts:
    """Return facts about ``python``, or about the running interpreter if it is None."""
    request = {"distributions": list(distributions), "modules": list(modules)}
    if python is None:
        return _describe(python_probe.probe(**request), variables)
    try:
        ended = run_process(
            [python, python_probe.__file__, json.dumps(request)],
            env=variables,
            timeout_s=TIMEOUT_S,
        )
        # The last line, since sitecustomize or a wrapper may print something before it.
        answer: dict[str, Any] = decode_json(ended.output.splitlines()[-1], dict[str, Any])
        return _describe(answer, variables)
    except ToolError as error:
        return PythonFacts(
            str(python), error=error.why.splitlines()[-1] if error.why else error.what
        )
    except (ValueError, IndexError, KeyError, TypeError):
        why = "its output cannot be read: is it another program, or a wrapper that prints text?"
        return PythonFacts(str(python), error=why)


def _describe(answer: Mapping[str, Any], variables: Mapping[str, str]) -> PythonFacts:
    adaptors = tuple(answer["adaptors"])
    fitting = [path for path in adaptors if path.endswith(answer["tag"])]
    adaptor = read_file(Path(fitting[0]).name, Path(fitting[0])) if fitting else None
    built = read_overlay(Path(answer["executorch"]).parent) if answer["executorch"] else None
    headers = ""
    if adaptor and adaptor.elf:
        with suppress(OSError):
            headers = find_headers_version(adaptor.path)
    fields: dict[str, Any] = {}
    for name, value in answer.items():
        if name != "asked":  # the requirements, see _unmet
            fields[name] = tuple(value) if isinstance(value, list) else value
    return PythonFacts(
        **fields,
        adaptor=adaptor,
        lacking=tuple(_lacking(adaptor, variables)) if adaptor else (),
        unmet=tuple(_unmet(answer["asked"], ".".join(map(str, answer["version"])))),
        headers=headers,
        checkout=built.executorch if built else "",
        built_with=built.sdk if built else "",
    )


def _lacking(file: FileFacts, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield needed libraries that the loader does not find through the file's RPATH or RUNPATH, on
    the job's search path or in the system.
    """
    if file.elf is None or file.machine != EM_X86_64:
        return
    folder, path_entries = str(file.path.parent), variables.get("LD_LIBRARY_PATH", "").split(":")
    file_entries = [entry.replace("${ORIGIN}", "$ORIGIN") for entry in file.elf.search_path]
    entries = filter(None, [*file_entries, *path_entries])
    searched_folders = [Path(entry.replace("$ORIGIN", folder)) for entry in entries]
    system_paths = find_libraries(file.elf.needed)  # None for a library that is not in the system
    for name in file.elf.needed:
        in_searched = any((searched / name).exists() for searched in searched_folders)
        if not system_paths[name] and not in_searched:
            yield name


def _unmet(requirements: Sequence[Sequence[str]], version: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, installed version and required versions of each distribution that does not
    meet its requirement.
    """
    from packaging.requirements import Requirement

    python = {"python_full_version": version, "python_version": ".".join(version.split(".")[:2])}
    for line, installed in requirements:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({**python, "extra": ""})
        if (
            installed
            and applies
            and not requirement.specifier.contains(installed, prereleases=True)
        ):
            yield requirement.name, installed, str(requirement.specifier)


def try_device(
    python: Path,
    adaptor: Path,
    library: Path,
    variables: Mapping[str, str],
    remembered: Path,
    *,
    backend: Backend = Backend.HTP,
) -> str:
    """Return why the adaptor that ``python`` finds cannot create a device for ``backend``, or '' if
    it can. ``library`` is the backend's library in the SDK.

    ``remembered`` is a cache directory. If an adaptor and a library with the same content were
    tried before, the earlier result is returned, unless it was not final (see _try_device).
    """
    key = hashlib.sha256(backend.value.encode())
    # By content: a rebuilt adaptor has the same path, and the probe's own changes count, too.
    for path in (adaptor, library, Path(qnn_probe.__file__)):
        key.update(hash_file(path).encode())
    cache_file = remembered / f"device-{key.hexdigest()[:32]}.txt"
    if cache_file.is_file():
        return read_text(cache_file)
    why, is_known = _try_device(python, variables, backend)
    if is_known:
        with suppress(OSError):  # then it is tried again
            write_whole(cache_file, why)
    return why


def _try_device(python: Path, variables: Mapping[str, str], backend: Backend) -> tuple[str, bool]:
    """Return the reason why no device can be created, or '' if one can, and whether this is final.
    It is not final if the process could not be started or exceeded the time limit.
    """
    argv = [str(python), qnn_probe.__file__, "device", backend.value]
    try:
        ended = run_process(argv, env=variables, timeout_s=DEVICE_TIMEOUT_S, check=False)
    except ToolError as error:
        return str(error.why or error.what), False
    # Not remembered: on a busy machine, the next attempt may succeed.
    if ended.exceeded:
        return f"the attempt {ended.describe()}; if the machine was busy, run this again", False
    # The last one, since QNN's messages come before it on the same stream.
    answers = ANSWER.findall(ended.output)
    if answers and answers[-1] == "ok":
        return "", True
    reasons: list[str] = [
        *QNN_SAYS.findall(ended.output),
        *answers,
        f"the process {ended.describe()}",
    ]
    return reasons[0].strip(), True
