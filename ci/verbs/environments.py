"""Which dependency group of pyproject.toml has the packages that a call of a verb needs.

The noxfile asks before it creates an environment, so this module imports neither the verbs nor
third-party packages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePath

from ci.models.suite import LITERT_SUITE, SUITE
from ci.verbs.options import (
    CORE,
    EVERYTHING,
    LITERT,
    LITERT_TORCH,
    LOWERING,
    ONNX,
    ONNX_TORCH,
    SHARED,
)
from ci.verbs.user_policy import (
    choose_policy,
    policy_path,
    read_own_paths,
    read_paths,
    read_runtimes,
)
from provisioning.console.command import user_path
from provisioning.errors import UsageError

OF_ONNX = {".onnx": ONNX}
OF_FILES = {**OF_ONNX, ".tflite": LITERT}
# Of models that are Python functions, by the runtime that compiles them
OF_RUNTIMES = {"executorch": LOWERING, "onnxruntime": ONNX_TORCH, "litert": LITERT_TORCH}
# Options with which a run provisions or imports something else than usual, or nothing
OTHERS = frozenset(
    {
        *("-h", "--help", "--list", "--suite", "--device", "--any", "--backend"),
        *("--sdk", "--adaptor", "--executorch"),
    }
)
UPSTREAM = ("upstream", "upstream-rework", "backend-suite")  # the suites of test-upstream


def find_group(arguments: Sequence[str], otherwise: str = "") -> str:
    """Return the group that the first option in SHARED with an environment requires, or
    ``otherwise`` if none of these options was passed."""
    # Without argparse, because the parsers belong to the verbs, which import third-party packages.
    typed = {argument.partition("=")[0] for argument in arguments}
    rows = ((flag, settings.get("environment", "")) for flag, (_, _, settings) in SHARED.items())
    return next((group for flag, group in rows if group and flag in typed), otherwise)


def find_suite_verb(arguments: Sequence[str]) -> str:
    """Return the verb that runs the test suites which arguments of test-emulator name, or ''."""
    return "test-upstream" if {*find_values(arguments, "--suite")} & {*UPSTREAM} else ""


def choose_emulator(arguments: Sequence[str]) -> str:
    """Return the group for test-emulator: the known faults need both engines, or LiteRT's if it is
    the --runtime, and the message that names another verb needs no packages."""
    if "litert" in find_values(arguments, "--runtime"):
        return LITERT_TORCH
    return CORE if find_suite_verb(arguments) else find_group(arguments, LOWERING)


def choose_onnx(arguments: Sequence[str]) -> str:
    """Return the group for test-onnx: only a model that is not an .onnx file needs torch."""
    return find_group(arguments) or choose_by_models(
        arguments, OF_ONNX, ONNX_TORCH, ONNX, "onnxruntime"
    )


def choose_litert(arguments: Sequence[str]) -> str:
    """Return the group for test-litert: only a model that is a Python function needs torch."""
    if group := find_group(arguments):
        return group
    try:
        paths = list_paths([*find_values(arguments, "--model")], find_policy(arguments), "litert")
    except UsageError:  # the verb reports it
        return LITERT
    return LITERT_TORCH if any(".py:" in path for path in paths) else LITERT


def choose_llm(arguments: Sequence[str]) -> str:
    """Return the group for test-llm: ExecuTorch lowers models, and LiteRT runs bundles."""
    return LITERT_TORCH if any(find_values(arguments, "--bundle")) else LOWERING


def choose_runtimes(arguments: Sequence[str]) -> dict[str, str]:
    """Return the group of each runtime that ``test`` runs: those of --runtime, and without it those
    that take the models. Empty if there is no model, or a device, which the verb reports."""
    if any(find_values(arguments, "--device")):
        return {}
    try:
        policy = find_policy(arguments)
    except UsageError:  # the verb reports it
        policy = None
    models = list_models([*find_values(arguments, "--model")], policy)
    of_files = {"executorch": "", "onnxruntime": ONNX, "litert": LITERT}
    requested = {*find_values(arguments, "--runtime")}
    groups = {}
    for name, group in OF_RUNTIMES.items():
        taken = [path for path, runtimes in models if takes(name, path, runtimes)]
        written_files = LITERT_SUITE if name == "litert" else {}
        is_file = [PurePath(path).suffix in OF_FILES or path in written_files for path in taken]
        if taken and (not requested or name in requested):
            groups[name] = of_files[name] if all(is_file) else group
    return groups


def takes(runtime: str, path: str, runtimes: Sequence[str]) -> bool:
    """Return whether a runtime can take a model: a file of its format, a PyTorch model, or one of
    its suite. It must be one of the ``runtimes`` that the model's entry in a policy lists, if it
    lists any."""
    suffix = PurePath(path).suffix
    of_file = {".onnx": "onnxruntime", ".tflite": "litert"}.get(suffix, runtime)
    if path in SUITE:  # LITERT_SUITE has a transformer, too, but that is another model
        is_of_suite = runtime != "litert"
    else:
        is_of_suite = path not in LITERT_SUITE or runtime == "litert"
    return of_file == runtime and is_of_suite and (not runtimes or runtime in runtimes)


def choose_localise(arguments: Sequence[str]) -> str:
    """Return the group for localise, mend and audit: files are compiled as by the verbs that test
    them, and other models by the runtime in --runtime, by default ExecuTorch."""
    return choose_by_models(arguments, OF_FILES, find_runtime_group(arguments), LOWERING)


def find_runtime_group(arguments: Sequence[str]) -> str:
    """Return the group for models that are Python functions, by the last --runtime."""
    runtimes = [*find_values(arguments, "--runtime")]
    if not runtimes:
        try:
            policy = find_policy(arguments)
        except UsageError:  # the verb reports it
            return LOWERING
        runtimes = [find_runtime([*find_values(arguments, "--model")], policy)]
    return OF_RUNTIMES.get(runtimes[-1], LOWERING)


def find_runtime(models: Sequence[str], policy: Path | None) -> str:
    """Return the runtime that compiles the chosen ``models``, or else those of the policy, if none
    was chosen: ExecuTorch, if it is one of the runtimes that the policy lists for each of them, or
    else the first one that is."""
    listed = [{*runtimes} for _, runtimes in list_models(models, policy) if runtimes]
    common = set.intersection(*listed) if listed else {*OF_RUNTIMES}
    return next((runtime for runtime in OF_RUNTIMES if runtime in common), "executorch")


def choose_by_models(
    arguments: Sequence[str],
    groups: Mapping[str, str],
    other_group: str,
    unknown: str,
    runtime: str = "",
) -> str:
    """Return the group in ``groups`` for the suffix of all models of a command line, or
    ``other_group`` if they have no such suffix. If the policy is invalid, which the verb reports,
    return ``unknown``."""
    try:
        policy = find_policy(arguments)
    except UsageError:
        return unknown
    chosen = [*find_values(arguments, "--model")]
    return groups.get(find_suffix(chosen, policy, runtime), other_group)


def find_policy(arguments: Sequence[str]) -> Path | None:
    """Return the policy of a command line. Raises UsageError if it is invalid."""
    policies = [policy_path(value) for value in find_values(arguments, "--policy")]
    return choose_policy(policies[-1] if policies else None)


def find_suffix(models: Sequence[str], policy: Path | None, runtime: str = "") -> str:
    """Return the suffix of the files that the chosen ``models``, or else those of the policy, are;
    "" if they have several, or if one is no file. With a ``runtime``, as in list_paths."""
    suffixes = {PurePath(path).suffix for path in list_paths(models, policy, runtime)}
    return suffixes.pop() if len(suffixes) == 1 else ""


def list_paths(models: Sequence[str], policy: Path | None, runtime: str = "") -> list[str]:
    """Return the paths of the chosen ``models``, or else of those of the policy. A model that is
    not in the policy is its own path. With a ``runtime``, models for others are left out."""
    return [
        path
        for path, runtimes in list_models(models, policy)
        if not (runtime and runtimes) or runtime in runtimes
    ]


def list_models(models: Sequence[str], policy: Path | None) -> list[tuple[str, list[str]]]:
    """Return the paths of the chosen ``models``, as list_paths does, each with the runtimes that
    the policy lists for it."""
    entries = read_entries(policy)
    chosen: list[tuple[str, list[str]]] = []
    for model in models:
        names = [name for name in entries if fnmatchcase(name.lower(), model.lower())]
        chosen += [entries[name] for name in names] or [(model, [])]
    return chosen or [*entries.values()]


def read_entries(policy: Path | None) -> dict[str, tuple[str, list[str]]]:
    """Return the path of each model of a policy and the runtimes that it lists, by name. A model
    that only tables below ``by_runtime`` name has their runtimes."""
    paths, runtimes = read_paths(policy), read_runtimes(policy)
    entries = {name: (path, runtimes.get(name, [])) for name, path in paths.items()}
    for runtime, own_paths in read_own_paths(policy).items():
        for name, path in own_paths.items():
            if runtime in OF_RUNTIMES and name not in paths:
                _, listed = entries.setdefault(name, (path, []))
                listed.append(runtime)
    return entries


def find_values(arguments: Sequence[str], option: str) -> Iterator[str]:
    """Yield the values of an option that takes one."""
    yield from (after for argument, after in pairwise(arguments) if argument == option)
    yield from (
        argument.partition("=")[2] for argument in arguments if argument.startswith(f"{option}=")
    )


def choose_fuzz(arguments: Sequence[str]) -> str:
    """Return the group for fuzz: that of the runtime that compiles its graphs."""
    runtimes = [*find_values(arguments, "--frontend"), *find_values(arguments, "--runtime")]
    return OF_RUNTIMES.get(runtimes[-1] if runtimes else "", ONNX_TORCH)


def choose_upgrade(arguments: Sequence[str]) -> str:
    """Return the group for upgrade-report: comparing two reports runs nothing; an SDK is tried
    through ExecuTorch and, for the known faults, through ONNX Runtime."""
    if "--matrix" in arguments:
        return find_group(arguments, otherwise=ONNX_TORCH)
    if any(argument.startswith("onnxruntime") for argument in arguments):
        return ONNX_TORCH
    files = [
        user_path(argument) for argument in arguments if argument and not argument.startswith("-")
    ]
    reports = [file for file in files if file.is_file() or (file / "report.json").is_file()]
    return CORE if len(reports) > 1 else EVERYTHING


def choose_estimate(arguments: Sequence[str]) -> str:
    """Return the group for estimate: fitting reports runs nothing; otherwise, the group of what
    lowers the models."""
    if group := find_group(arguments):
        return group
    if "onnx" in find_values(arguments, "--frontend"):  # as in earlier releases
        arguments = [*arguments, "--runtime=onnxruntime"]
    return choose_by_models(arguments, OF_FILES, find_runtime_group(arguments), LOWERING)


def choose_setup(arguments: Sequence[str]) -> str:
    """Return the group for setup, which also checks the Python that lowers or compiles models."""
    profiles = [
        argument.partition("+")[0].removesuffix("-sdk")
        for argument in arguments
        if argument[:1] != "-"
    ]
    return {"emulator": LOWERING, "onnx": ONNX, "litert": LITERT}.get(
        (*profiles, "emulator")[0], CORE
    )


def choose_init(arguments: Sequence[str]) -> str:
    """Return the group for init, which reads the model: LiteRT's package says whether a .tflite
    file is quantized. It has no release for Python 3.10."""
    is_litert = any(argument.endswith(".tflite") for argument in arguments)
    return LITERT if is_litert and sys.version_info >= (3, 11) else choose_file(arguments)


def choose_file(arguments: Sequence[str]) -> str:
    """Return the group for a verb that reads a file: the onnx package reads .onnx files."""
    return ONNX if any(argument.endswith(".onnx") for argument in arguments) else CORE
