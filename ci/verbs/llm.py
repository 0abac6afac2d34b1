"""``test-llm``: run a language model on the emulator and judge the tokens that it generates."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.limited import run_limited
from ci.llm.families import read_config
from ci.llm.projection import Projection, project, render_projection
from ci.llm.request import TINY, LlmRequest, check_request, require_files
from ci.llm.subject import require_context
from ci.models.schemes import Scheme
from ci.verbs.lanes.lane import run_lane
from ci.verbs.lanes.llm import DEFAULT_SOC, LANE, choose_schemes
from ci.verbs.options import (
    PARALLEL,
    add_option,
    add_options,
    least,
    name_path,
    require_effect,
)
from ci.verbs.requests import check_arguments, make_request
from provisioning.console.command import FILE, WHAT, Outcome, Settings, user_path
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import read_decoders

# What has an effect with --program. find_program explains why --scheme and --text have none.
WITH_PROGRAM = (
    *("--weights", "--tokenizer", "--prompt", "--tokens", "--soc", "--policy"),
    *("--reports", "--base", "--sarif", "--scheme", "--text", "--max-perplexity"),
    *("--timeout-s", "--jobs", "--sdk", "--adaptor"),
)
WITH_BUNDLE = (
    *("--reference", "--weights", "--prompt", "--tokens", "--soc", "--policy"),
    *("--reports", "--base", "--sarif"),
)


@dataclass(frozen=True)
class ProjectRequest:
    """The sizes to estimate: a model's config.json, and the schemes and the context of its
    programs."""

    path: Path
    schemes: Sequence[Scheme]
    context: int


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
    bundle = (
        "judge a .litertlm file as LiteRT-LM runs it on an NPU, or a folder for Genie: chunks,"
        " decode and free text"
    )
    add("--bundle", bundle, **FILE)
    reference = (
        "of --bundle: a bundle of the same model to compare with, such as the uncompiled one"
    )
    add("--reference", reference, **FILE)
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
    request = read_request(args)
    if isinstance(request, LlmRequest):
        return run_lane(LANE, request, progress)
    LANE.require_packages([])
    return project_model(request)


def read_request(args: argparse.Namespace) -> LlmRequest | ProjectRequest:
    """Return the request of a call. Raises UsageError for an option or a file that cannot be used,
    and the same errors as check_arguments."""
    if args.project:
        require_effect(args, "--project", "--scheme", "--context")
        require_files({"--project": args.project})
        schemes = choose_schemes(args.scheme, LANE.schemes)
        return ProjectRequest(args.project, schemes, args.context)
    if args.bundle:
        require_effect(args, "--bundle", *WITH_BUNDLE)
    elif args.reference:
        raise UsageError("--reference has no effect without --bundle", fix="leave it out")
    elif args.pte:
        require_effect(args, "--program", *WITH_PROGRAM)
    request = make_request(LlmRequest, args, LANE.session, decoder=args.model, judges=True)
    check_request(request)
    check_arguments(args, LANE.session)
    # No command repeats a case with the user's own files: it would need --model, which cannot name
    # them.
    is_users = request.pte or request.weights or request.bundle
    return replace(request, command="") if is_users else request


def project_model(request: ProjectRequest) -> Outcome:
    """Return the estimated size of a model's programs. Raises UsageError if the model is not a
    Llama or was trained for a shorter context."""
    # Without torch, this takes 0.5 s instead of 2.2.
    projection = run_limited(partial(_read_projection, request), f"{request.path}")
    data = msgspec.to_builtins(projection)
    return Outcome(render_projection(projection), data, exact=True)


def _read_projection(request: ProjectRequest) -> Projection:
    _, config = read_config(request.path)
    require_context(request.context, config.most_context)
    return project(config, request.schemes, request.context)
