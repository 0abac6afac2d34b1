"""The options of the verbs that run models. Each is defined once: how it is parsed, which values a
run can use, how the command in a report (``again:``) repeats it, whether it is part of a run's
digest, and which environment it needs. SHARED has the options of several verbs, and those that need
an environment; a verb adds its other ones with ``add_option``.

The noxfile asks for environments, so this module imports third-party packages only in functions.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ci.models.suite import DEFAULT_SOC
from ci.verbs.user_policy import NAME, OURS, policy_path
from provisioning.console.caller import shown_path
from provisioning.console.command import (
    DIR,
    FILE,
    FLAG,
    HOW,
    MANY,
    RESULTS,
    TOOLS,
    WHAT,
    Settings,
    group_options,
    user_path,
)
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.quoting import shell_word

# The dependency groups of pyproject.toml: onnx has no torch, which .onnx files do not need, and
# EVERYTHING has both engines, pytest and Sigstore.
CORE, LOWERING, ONNX, ONNX_TORCH, DEVICE = "core", "lowering", "onnx", "onnx-torch", "device"
# They have another version of onnxruntime-qnn. The second one also converts PyTorch models.
LITERT, LITERT_TORCH = "litert", "litert-torch"
EVERYTHING = "test"


# Passed by ``test`` to the verb of each runtime, whose policy may list the schemes of another one
TRANSLATE = "--translate-schemes"
JOBS = "QNN_CI_JOBS"  # the variable with the default of --jobs
# What a call with them promises, it keeps even if it needs nothing for it.
PROMISES = frozenset({"--offline"})
DIAGNOSE_S = 30.0  # of experiments for a red case
# The values of --frontend, the former name of --runtime.
FORMER_RUNTIMES = {"executorch": "executorch", "onnx": "onnxruntime"}


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a parser.

    ``check`` raises UsageError for a value that no run can use. Its first argument is the option's
    flag. ``again`` returns the value that repeats a run; without it, an option is not repeated,
    because it selects cases or changes no result. With ``always``, the default is repeated, too.
    An option with ``digest`` changes results, so the shards of a run, and a run that is resumed,
    need the same value. ``environment`` is the dependency group for a call with this option.
    ``needs`` names the option without which this one has no effect; it may be several, joined by
    " or ".
    """

    argument: argparse.Action
    check: Callable[[str, Any], None] | None = None
    again: Callable[[Any], str] | None = None
    always: bool = False
    digest: bool = False
    environment: str = ""
    needs: str = ""

    @property
    def flag(self) -> str:
        """Return the option as it is typed, such as ``--model``."""
        return self.argument.option_strings[0]

    def is_given(self, values: Mapping[str, Any]) -> bool:
        """Return whether the option has a value in the values of a parser's options, and another
        one than its default."""
        value = values[self.argument.dest]
        return bool(value) and value != self.argument.default

    def is_typed(self, values: Mapping[str, Any]) -> bool:
        """Return whether the option is in the command line with a value, which may be its default.
        A parser that no command line has filled does not know, and then is_given decides."""
        flags = values.get("typed_flags")
        if flags is None:
            return self.is_given(values)
        return self.flag in flags and values[self.argument.dest] not in (None, "", [])

    def repeat(self, values: Mapping[str, Any]) -> list[str]:
        """Return the words that repeat the option in a command."""
        value = values[self.argument.dest]
        if not (self.again and (self.always or self.is_given(values))):
            return []
        if value is True:
            return [self.flag]
        words = []
        for single in value if isinstance(value, list) else [value]:
            words += [self.flag, self.again(single)]
        return words


def least(number: int) -> Callable[[str, int], None]:
    """Return a check that raises UsageError for a value below ``number``."""

    def check(flag: str, value: int) -> None:
        if value < number:
            problem = f"is below {number}" if number else "is negative"
            raise UsageError(f"{flag} {value} {problem}", fix="pass 1 or more")

    return check


def not_negative(flag: str, value: float) -> None:
    """Raise UsageError for a number of seconds that is below 0, or that is no number."""
    if not 0 <= value <= MOST:
        raise UsageError(f"{flag} {value:g} is no number of seconds", fix="pass 0 or more")


# Without it, `inf` is a number above 0: it was a time limit, or ended in a traceback.
MOST = 1e9  # seconds or minutes; more have no end


def positive(replacement: str) -> Callable[[str, float], None]:
    """Return a check that raises UsageError for a value that is not above 0, or above MOST, such as
    ``inf``. ``replacement`` is to be passed instead."""

    def check(flag: str, value: float) -> None:
        if not value > 0:
            raise UsageError(f"{flag} {value} is not above 0", fix=f"pass {replacement}")
        if value > MOST:
            raise UsageError(f"{flag} {value} is above {MOST:g}", fix="pass a smaller number")

    return check


def name_path(path: Path) -> str:
    """Return a path as typed at the root of its repository."""
    from ci.models.source_lines import name_argument

    return name_argument(path.absolute())


def check_base(flag: str, value: Path | None) -> None:
    """Raise UsageError for an earlier report that does not exist. It is read only when the run has
    ended."""
    from ci.report.write import find_report

    if value and not find_report(value).is_file():
        raise UsageError(
            f"{flag} {shown_path(value)} does not exist",
            why="there is no report to compare with",
            fix=f"pass the report.json of an earlier run, or leave out {flag}",
        )


def list_runtimes() -> Sequence[str]:
    """Return the values of --runtime."""
    from ci.models.schemes import RUNTIMES

    return [*RUNTIMES]


def choose_runtime(runtime: str, frontend: str | None, progress: Progress) -> str:
    """Return the requested runtime, or "". Raises UsageError for two different ones."""
    former = FORMER_RUNTIMES.get(frontend or "", "")
    if former:
        progress.step(
            f"warning: --frontend will be removed in the next release; use --runtime {former}"
        )
    if former and runtime not in {"", former}:
        raise UsageError(
            f"--runtime {runtime} contradicts --frontend {frontend}",
            fix="leave out --frontend, which is the former name of --runtime",
        )
    return runtime or former


def list_log_levels() -> Sequence[str]:
    """Return the values of --log-level."""
    from ci.models.lowering_options import LOG_LEVELS

    return LOG_LEVELS


def describe_choice(flag: str) -> str:
    """Return the help of --sdk or --adaptor."""
    from provisioning.artifacts.choice import OPTIONS

    return OPTIONS[flag]


def check_choice(flag: str, value: str) -> None:
    """Raise UsageError for a QNN or an adaptor, chosen by an option or its environment variable,
    that does not exist, as read_choice does. Verbs read the choice only after torch is installed,
    which takes minutes."""
    from provisioning.artifacts.choice import read_choice

    if flag == "--sdk":
        read_choice(sdk=value)
    else:
        read_choice(adaptor=value)


DEVICE_OPTIONS = "on a device"  # the title of the options for phones and boards
MODELS = "a model's name, a glob, {}; repeatable"
Text = str | Callable[[], str]
# A function instead of a value is called when the option is added. A verb may fill a gap in a help.
SHARED: Mapping[str, tuple[str, Text, Settings]] = {
    "--model": (WHAT, MODELS, {**MANY}),
    "--scheme": (WHAT, "the name of a scheme, or a glob; repeatable", {**MANY}),
    "--soc": (WHAT, "the name of an SoC, or a glob; repeatable; default: {}", MANY),
    "--runtime": (
        WHAT,
        (
            "what compiles the model, which is a Python function: {}; default: executorch, and for"
            " files the runtime of their kind"
        ),
        {"choices": list_runtimes, "default": "", "again": str},
    ),
    "--shape": (
        WHAT,
        "the shape of an input with dynamic sizes, for an .onnx file, such as x=1,3,224,224",
        {**MANY, "metavar": "NAME=SIZES", "again": str},
    ),
    TRANSLATE: (WHAT, argparse.SUPPRESS, {**FLAG}),
    "--list": (
        WHAT,
        (
            "run nothing; list the models, schemes and SoCs or, with --model, the nodes of the"
            " model with the scheme of each in its mixtures"
        ),
        {**FLAG, "environment": CORE},
    ),
    "--suite": (WHAT, "run {}", {"again": str, "environment": EVERYTHING}),
    "--filter": (WHAT, "run only {} with a matching name; repeatable", {**MANY, "metavar": "GLOB"}),
    "--known": (WHAT, "run nothing: {}", {**FLAG, "environment": CORE}),
    "--calibrate": (
        RESULTS,
        (
            "fit the device of these reports, which have estimates and times of the same cases, and"
            " write {} next to the policy"
        ),
        {"type": user_path, "nargs": "+", "metavar": "REPORT", "environment": CORE},
    ),
    "--policy": (
        WHAT,
        (
            f"{{}}; default: the {NAME} in the current directory or the nearest one above it"
            " in the repository, if there is one; `default`: this project's own suite and limits"
        ),
        {**FILE, "type": policy_path},
    ),
    "--timeout-s": (
        HOW,
        "time limit for each lowering and each run, in seconds",
        {"type": float, "default": 300.0, "check": positive("a number of seconds above 0")},
    ),
    "--offline": (HOW, "use only what is already provisioned", FLAG),
    "--jobs": (
        HOW,
        f"number of {{}} to run at a time; default: {JOBS} or {count_cores()}",
        {
            "type": int,
            "default": lambda: os.environ.get(JOBS) or count_cores(),
            "check": least(1),
        },
    ),
    # Absolute, because processes with other working directories use it.
    "--reports": (
        RESULTS,
        "the directory for {}; default: reports",
        {**DIR, "default": lambda: Path("reports").absolute()},
    ),
    "--base": (
        RESULTS,
        "an earlier report.json to compare with",
        {**FILE, "check": check_base},
    ),
    "--sarif": (RESULTS, "also write failures as SARIF 2.1.0", FILE),
    "--keep-artifacts": (RESULTS, "keep programs, outputs and logs", {**DIR}),
    "--log-level": (
        RESULTS,
        "the level of QNN's log, which --keep-artifacts keeps",
        {"choices": list_log_levels, "default": "", "again": str, "digest": True},
    ),
    "--no-cache": (HOW, "lower everything again", FLAG),
    "--strict-noise": (
        HOW,
        "fail a case whose error is above the predicted noise even if it is too small to matter",
        {**FLAG, "digest": True},
    ),
    "--diagnose": (
        HOW,
        "how long experiments may look for the cause of a red case; 0 for none; default: {}",
        {
            "type": float,
            "default": DIAGNOSE_S,
            "metavar": "SECONDS",
            "check": not_negative,
        },
    ),
    "--estimate": (
        HOW,
        "also predict the time of each case on a device, which lowers it a second time",
        {**FLAG, "digest": True},
    ),
    "--record": (
        RESULTS,
        (
            "write the SQNR and footprint of each case that passes to a baselines file, to be"
            " committed"
        ),
        {**FLAG},
    ),
    "--plain": (
        HOW,
        "do not apply this project's patches to torch, which make lowering faster",
        {**FLAG, "again": str, "digest": True},
    ),
    "--executorch": (
        TOOLS,
        "a supported version of ExecuTorch, for which `./nox -s` creates an environment",
        {"default": "", "metavar": "VERSION"},
    ),
    "--starts": (
        DEVICE_OPTIONS,
        "how often to start each program, to measure times; default: {}",
        {
            "type": int,
            "default": 0,
            "metavar": "N",
            "check": least(0),
            "again": str,
            "digest": True,
        },
    ),
    **{
        flag: (
            TOOLS,
            partial(describe_choice, flag),
            {"default": "", "metavar": flag[2:].upper(), "again": str, "check": check_choice},
        )
        for flag in ("--sdk", "--adaptor")
    },
}
GAPS = {
    "--diagnose": f"{DIAGNOSE_S:g}",
    "--jobs": "cases",
    "--model": "file.py:factory, or file.onnx",
    "--policy": "your models and limits",
    "--runtime": "executorch, onnxruntime or litert",
    "--soc": DEFAULT_SOC,
}
SELECTION = ("--model", "--scheme", "--soc", "--list")
RUN = ("--policy", "--timeout-s", "--offline")
PARALLEL = ("--jobs", "--reports")
CASES = (  # of a verb that judges cases
    *(*SELECTION, TRANSLATE, *RUN, *PARALLEL),
    *("--keep-artifacts", "--log-level", "--no-cache", "--strict-noise", "--diagnose"),
    *("--estimate", "--record"),
    *("--base", "--sarif"),
)
# The values of options that a verb does not have
ABSENT: Settings = {
    "list": False,
    "record": False,
    "strict_noise": False,
    "estimate": False,
    "keep_artifacts": None,
    "sarif": None,
    "adaptor": "",
}
LAZY = {"text", "choices", "default"}
MEANINGS = {field.name for field in fields(Option)}


def add_option(
    parser: argparse.ArgumentParser, group: str, usage: str, text: str, **settings: Any
) -> None:
    """Add an option to a group of a parser's help, or to none. ``usage`` is the flag and, after a
    space, its metavar. ``settings`` are fields of Option and arguments of
    ArgumentParser.add_argument."""
    meaning = {name: settings.pop(name) for name in MEANINGS & settings.keys()}
    argument = group_options(parser, group)(usage, text, **settings)
    option = Option(argument=argument, **meaning)
    if not (options := parser.get_default("options") or ()):
        parser.set_defaults(program=parser.prog, **ABSENT)
    parser.set_defaults(options=(*options, option))


def add_options(
    parser: argparse.ArgumentParser,
    *flags: str,
    gaps: Mapping[str, str] = MappingProxyType({}),
    **overrides: Any,
) -> None:
    """Add options of SHARED. ``gaps`` fill the gaps in their helps, and ``overrides`` replace the
    group, the text or other settings of all ``flags``."""
    for flag in flags:
        group, text, settings = SHARED[flag]
        row = {"group": group, "text": text, **settings, **overrides}
        for name in LAZY & row.keys():
            row[name] = row[name]() if callable(row[name]) else row[name]
        # Without its gap, a text that has one is an error.
        row["text"] = row["text"].format(*filter(None, [{**GAPS, **gaps}.get(flag)]))
        add_option(parser, usage=flag, **row)


def check_values(args: argparse.Namespace) -> None:
    """Raise UsageError for an option with a value that no run can use, or without the option that
    it needs."""
    for option in args.options:
        if option.check:
            option.check(option.flag, getattr(args, option.argument.dest))
    given_options = list_given(args)
    flags = {option.flag for option in given_options}
    for option in given_options:
        if option.needs and flags.isdisjoint(option.needs.split(" or ")):
            raise UsageError(
                f"{option.flag} needs {option.needs}",
                why="it has no effect without",
                fix=f"add {option.needs}, or leave out {option.flag}",
            )


def require_effect(
    args: argparse.Namespace,
    mode: str,
    *uses: str,
    hints: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise UsageError for an option that has no effect in a call with the option ``mode``.
    ``uses`` are the options that have an effect with it, and ``hints`` say by flag what to do
    instead."""
    for option in list_given(args):
        if option.flag not in {mode.split(maxsplit=1)[0], *PROMISES, *uses}:
            raise UsageError(
                f"{option.flag} cannot be used with {mode}",
                why="it would have no effect",
                fix=f"leave out {option.flag}{hints.get(option.flag, '')}",
            )


def refuse_options(args: argparse.Namespace, flags: Collection[str], title: str) -> None:
    """Raise UsageError for an option of a call that is one of ``flags``: it has no effect in the
    lane that is called ``title``."""
    for option in list_given(args):
        if option.flag in flags:
            raise UsageError(
                f"{option.flag} is not for {title}",
                why="it would have no effect",
                fix=f"leave out {option.flag}",
            )


def list_given(args: argparse.Namespace) -> list[Option]:
    """Return the options that the command line sets."""
    return [option for option in args.options if option.is_typed(vars(args))]


def list_digested(args: argparse.Namespace) -> list[str]:
    """Return the options with ``digest``, each followed by its value."""
    words = []
    for option in args.options:
        if option.digest:
            words += [option.flag, str(getattr(args, option.argument.dest))]
    return words


def repeat_policy(policy: Path | None) -> list[str]:
    """Return the words that repeat the choice of a policy: OURS, a file, or None for no choice."""
    if policy == OURS:
        return ["--policy", str(OURS)]
    return ["--policy", name_path(policy)] if policy else []


def repeat_command(args: argparse.Namespace, **values: Any) -> str:
    """Return the command line of this call without the options that select cases, as typed at the
    root of a repository. ``values`` replace those that were parsed."""
    parsed = {**vars(args), **values}
    words = [word for option in args.options for word in option.repeat(parsed)]
    return " ".join([args.program, *map(shell_word, [*repeat_policy(parsed["policy"]), *words])])


def name_mending(args: argparse.Namespace, policy: Path | None) -> str:
    """Return the start of the command that mends a case of this call. ``policy`` is as for
    repeat_policy."""
    shapes: list[str] = []
    for option in args.options:
        if option.flag == "--shape":
            shapes = option.repeat(vars(args))
    return " ".join(["mend", *map(shell_word, [*repeat_policy(policy), *shapes])])
