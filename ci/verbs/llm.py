"""``test-llm``: run a language model on the emulator and judge the tokens that it generates."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.limited import run_limited
from ci.llm.families import read_config
from ci.llm.projection import Projection, project, render_projection
from ci.models.schemes import Scheme
from ci.verbs.lanes.lane import run_lane
from ci.verbs.lanes.llm import (
    DEFAULT_SOC,
    LANE,
    TINY,
    LlmRequest,
    choose_schemes,
    require_context,
)
from ci.verbs.options import (
    PARALLEL,
    add_option,
    add_options,
    least,
    name_path,
    require_effect,
)
from ci.verbs.requests import check_arguments, make_request
from provisioning.console.caller import shown_path
from provisioning.console.command import FILE, WHAT, Outcome, Settings, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import read_decoders

# What has an effect with --program. find_program explains why --scheme and --text have none.
WITH_PROGRAM = (
    *("--weights", "--tokenizer", "--prompt", "--tokens", "--soc", "--policy"),
    *("--reports", "--base", "--sarif", "--scheme", "--text", "--max-perplexity"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser, WHAT)
    add("--model", "default: tiny", choices=(TINY, *read_decoders()), default=TINY)
    add("--weights", "a .bin file of llama2.c, or a Hugging Face model directory", type=user_path)
    add("--tokenizer", "the tokenizer of --weights: .json, .model or .bin", type=user_path)
    add(
        "--program",
        "run a static Llama that was lowered elsewhere; needs --tokenizer; --weights adds a"
        " comparison with float32",
        dest="pte",
        **FILE,
    )
    project = "estimate the size of a model's programs from its config.json, and lower nothing"
    add("--project CONFIG", project, type=user_path)
    add_options(parser, "--scheme", "--soc", gaps={"--soc": DEFAULT_SOC})
    add("--prompt", "the text to continue", default="", check=require_text, again=str)
    number: Settings = {"type": int, "again": str, "always": True}
    tokens = "maximum number of tokens to generate; default: 48"
    add("--tokens", tokens, default=48, check=least(1), **number)
    add("--context", "context length in tokens; default: 64", default=64, **number)
    add("--prefill", "tokens per prefill call; default: 8", default=8, **number)
    text = "a text file on which to measure the model's perplexity"
    add("--text", text, type=user_path, again=name_path)
    most = "fail if the perplexity of --text is above X"
    add("--max-perplexity X", most, type=float, again="{:g}".format)
    add_options(parser, "--keep-artifacts", text="keep programs, references and logs")
    add_options(parser, "--no-cache", "--plain", "--policy")
    add_options(parser, "--timeout-s", default=600.0)
    add_options(parser, "--offline", *PARALLEL, gaps={"--reports": f"{LANE.session}/"})
    add_options(parser, "--base", "--sarif", "--sdk", "--adaptor")


def require_text(flag: str, value: str) -> None:
    """Raise UsageError for an argument with bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{flag} is not UTF-8", fix="pass the text in UTF-8") from error


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run a language model or a program, or estimate sizes. Raises UsageError for an option or a
    file that cannot be used, and the same errors as run_lane."""
    if args.project:
        require_effect(args, "--project", "--scheme", "--context")
        require_files(args)
        LANE.require_packages([])
        return project_model(args.project, choose_schemes(args.scheme, LANE.schemes), args.context)
    return run_lane(LANE, read_request(args), progress)


def read_request(args: argparse.Namespace) -> LlmRequest:
    """Return the request of a call. Raises UsageError for an option or a file that cannot be used,
    and the same errors as check_arguments."""
    if args.pte:
        require_effect(args, "--program", *WITH_PROGRAM)
    if args.weights and args.model != TINY:
        raise UsageError(
            f"--model {args.model} cannot be used with --weights",
            why="both name the model to run",
            fix="pass one of them",
        )
    (check_program_options if args.pte else check_model_options)(args)
    require_files(args)
    check_arguments(args, LANE.session)
    request = make_request(LlmRequest, args, LANE.session, decoder=args.model, judges=True)
    # No command repeats a case with the user's own files: it would need --model, which cannot name
    # them.
    return replace(request, command="") if args.pte or args.weights else request


def require_files(args: argparse.Namespace) -> None:
    """Raise UsageError for an option whose file or directory does not exist."""
    for option, path in (
        ("--project", args.project),
        ("--program", args.pte),
        ("--weights", args.weights),
        ("--tokenizer", args.tokenizer),
        ("--text", args.text),
    ):
        if path and not path.exists():
            raise UsageError(
                f"{option} {shown_path(path)} does not exist",
                fix="correct the path; it is relative to the directory from which you ran the"
                " command",
            )


def check_program_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not work with --program."""
    if args.scheme or len(args.soc) > 1:
        raise UsageError(
            "--program cannot be used with --scheme, or with several --soc",
            why="the program is already lowered",
            fix="leave out --scheme, and pass at most one --soc",
        )
    if args.text or args.max_perplexity is not None:
        option = "--text" if args.text else "--max-perplexity"
        raise UsageError(
            f"{option} cannot be used with --program",
            why="perplexity needs a model that is lowered here",
        )
    if not args.tokenizer:
        raise UsageError(
            "--program needs --tokenizer", fix="pass the tokenizer of the program's model"
        )


def check_model_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that do not work together if a model is lowered."""
    if args.max_perplexity is not None and not (args.text and args.max_perplexity >= 1):
        text = f"--max-perplexity {args.max_perplexity:g}" + (
            " is below 1" if args.text else " needs --text"
        )
        fix = "pass 1 or more" if args.text else "pass the text to measure with --text"
        raise UsageError(text, fix=fix)
    if bool(args.weights) != bool(args.tokenizer):
        raise UsageError("--weights and --tokenizer belong together", fix="pass both or neither")
    if args.prefill < 2 or args.context < 2 * args.prefill or args.context % args.prefill:
        raise UsageError(
            f"--prefill {args.prefill} does not work with --context {args.context}",
            why="--prefill must be at least 2, and --context must be a larger multiple of it",
        )


def project_model(path: Path, schemes: Sequence[Scheme], context: int) -> Outcome:
    """Return the estimated size of a model's programs. Raises UsageError if the model is not a
    Llama or was trained for a shorter context."""
    # Without torch, this takes 0.5 s instead of 2.2.
    projection = run_limited(partial(_read_projection, path, schemes, context), f"{path}")
    data = msgspec.to_builtins(projection)
    return Outcome(render_projection(projection), data, exact=True)


def _read_projection(path: Path, schemes: Sequence[Scheme], context: int) -> Projection:
    _, config = read_config(path)
    require_context(context, config.most_context)
    return project(config, schemes, context)
