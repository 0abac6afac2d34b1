"""Which dependency group of pyproject.toml has the packages that a call of a verb needs.

The noxfile asks before it creates an environment, so this module imports neither the verbs nor
third-party packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePath

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
from ci.verbs.user_policy import choose_policy, policy_path, read_paths
from provisioning.console.command import user_path
from provisioning.errors import UsageError

OF_ONNX = {".onnx": ONNX}
# Of models that are Python functions, by the runtime that compiles them
OF_RUNTIMES = {"executorch": LOWERING, "onnxruntime": ONNX_TORCH, "litert": LITERT_TORCH}
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
    """Return the group for test-emulator: the known faults need both engines, and the message that
    names another verb needs no packages."""
    return CORE if find_suite_verb(arguments) else find_group(arguments, LOWERING)


def choose_onnx(arguments: Sequence[str]) -> str:
    """Return the group for test-onnx: only a model that is not an .onnx file needs torch."""
    return find_group(arguments) or choose_by_models(arguments, OF_ONNX, ONNX_TORCH, ONNX)


def choose_litert(arguments: Sequence[str]) -> str:
    """Return the group for test-litert: only a model that is a Python function needs torch."""
    if group := find_group(arguments):
        return group
    try:
        paths = list_paths([*find_values(arguments, "--model")], find_policy(arguments))
    except UsageError:  # the verb reports it
        return LITERT
    return LITERT_TORCH if any(".py:" in path for path in paths) else LITERT


def choose_runtimes(arguments: Sequence[str]) -> dict[str, str]:
    """Return the group of each runtime that ``test`` runs: those of --runtime, and without it those
    that take the models. Empty if there is no model, which the verb reports."""
    suffixes = {PurePath(model).suffix for model in find_values(arguments, "--model")}
    has_modules = bool(suffixes - {".onnx", ".tflite"})
    groups = dict(OF_RUNTIMES) if has_modules else {}
    if not has_modules and ".onnx" in suffixes:
        groups["onnxruntime"] = ONNX
    if not has_modules and ".tflite" in suffixes:
        groups["litert"] = LITERT
    requested = {*find_values(arguments, "--runtime")}
    return {name: group for name, group in groups.items() if not requested or name in requested}


def choose_mend(arguments: Sequence[str]) -> str:
    """Return the group for mend: .onnx files are lowered by ONNX Runtime, and other models by the
    runtime in --runtime, by default ExecuTorch."""
    return choose_by_models(arguments, OF_ONNX, find_runtime_group(arguments), LOWERING)


def choose_localise(arguments: Sequence[str]) -> str:
    """Return the group for localise: files are compiled as by the verbs that test them, and other
    models by the runtime in --runtime, by default ExecuTorch."""
    groups = {**OF_ONNX, ".tflite": LITERT}
    return choose_by_models(arguments, groups, find_runtime_group(arguments), LOWERING)


def find_runtime_group(arguments: Sequence[str]) -> str:
    """Return the group for models that are Python functions, by the last --runtime."""
    runtimes = ["executorch", *find_values(arguments, "--runtime")]
    return OF_RUNTIMES.get(runtimes[-1], LOWERING)


def choose_by_models(
    arguments: Sequence[str], groups: Mapping[str, str], other_group: str, unknown: str
) -> str:
    """Return the group in ``groups`` for the suffix of all models of a command line, or
    ``other_group`` if they have no such suffix. If the policy is invalid, which the verb reports,
    return ``unknown``."""
    try:
        policy = find_policy(arguments)
    except UsageError:
        return unknown
    return groups.get(find_suffix([*find_values(arguments, "--model")], policy), other_group)


def find_policy(arguments: Sequence[str]) -> Path | None:
    """Return the policy of a command line. Raises UsageError if it is invalid."""
    policies = [policy_path(value) for value in find_values(arguments, "--policy")]
    return choose_policy(policies[-1] if policies else None)


def find_suffix(models: Sequence[str], policy: Path | None) -> str:
    """Return the suffix of the files that the chosen ``models``, or else those of the policy, are;
    "" if they have several, or if one is no file."""
    suffixes = {PurePath(path).suffix for path in list_paths(models, policy)}
    return suffixes.pop() if len(suffixes) == 1 else ""


def list_paths(models: Sequence[str], policy: Path | None) -> list[str]:
    """Return the paths of the chosen ``models``, or else of those of the policy. A model that is
    not in the policy is its own path."""
    paths_by_name = read_paths(policy)
    paths = []
    for model in models:
        matched = [
            path for name, path in paths_by_name.items() if fnmatchcase(name.lower(), model.lower())
        ]
        paths += matched or [model]
    return paths or [*paths_by_name.values()]


def find_values(arguments: Sequence[str], option: str) -> Iterator[str]:
    """Yield the values of an option that takes one."""
    yield from (after for argument, after in pairwise(arguments) if argument == option)
    yield from (
        argument.partition("=")[2] for argument in arguments if argument.startswith(f"{option}=")
    )


def choose_fuzz(arguments: Sequence[str]) -> str:
    """Return the group for fuzz: the one of the frontend that lowers its graphs."""
    return LOWERING if {"executorch", "--frontend=executorch"} & {*arguments} else ONNX_TORCH


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
    return choose_by_models(arguments, OF_ONNX, find_runtime_group(arguments), LOWERING)


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


def choose_file(arguments: Sequence[str]) -> str:
    """Return the group for a verb that reads a file: the onnx package reads .onnx files."""
    return ONNX if any(argument.endswith(".onnx") for argument in arguments) else CORE
