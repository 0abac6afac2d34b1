"""The request of test-llm, and the checks of its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.cases.request import Request
from provisioning.console.caller import shown_path
from provisioning.errors import UsageError

TINY = "tiny"


@dataclass(frozen=True, kw_only=True)
class LlmRequest(Request):
    """A request with the options of test-llm."""

    decoder: str = TINY  # a name; without effect if there are weights or a program
    weights: Path | None = None
    tokenizer: Path | None = None
    pte: Path | None = None  # a program that was lowered elsewhere
    bundle: Path | None = None  # a bundle of LiteRT-LM
    reference: Path | None = None  # another bundle of the same model
    prompt: str = ""
    tokens: int = 48
    context: int = 64
    prefill: int = 8
    text: Path | None = None  # whose perplexity is measured
    max_perplexity: float | None = None


def check_request(request: LlmRequest) -> None:
    """Raise UsageError for options that do not work together, and for files that do not exist."""
    if request.weights and request.decoder != TINY:
        raise UsageError(
            f"--model {request.decoder} cannot be used with --weights",
            why="both name the model to run",
            fix="pass one of them",
        )
    if request.bundle:
        check_bundle_options(request)
    else:
        (check_program_options if request.pte else check_model_options)(request)
    require_files(
        {
            "--program": request.pte,
            "--bundle": request.bundle,
            "--reference": request.reference,
            "--weights": request.weights,
            "--tokenizer": request.tokenizer,
            "--text": request.text,
        }
    )


def require_files(files: Mapping[str, Path | None]) -> None:
    """Raise UsageError for an option whose file or directory does not exist. ``files`` are the
    values by option."""
    for option, path in files.items():
        if path and not path.exists():
            raise UsageError(
                f"{option} {shown_path(path)} does not exist",
                fix="correct the path; it is relative to the directory from which you ran the"
                " command",
            )


def check_bundle_options(request: LlmRequest) -> None:
    """Raise UsageError for options that do not work with --bundle."""
    if len(request.socs) > 1:
        raise UsageError(
            "--bundle cannot be used with several --soc",
            why="its decoder is already compiled, for one of them",
            fix="pass at most one --soc",
        )


def check_program_options(request: LlmRequest) -> None:
    """Raise UsageError for options that do not work with --program."""
    if request.schemes or len(request.socs) > 1:
        raise UsageError(
            "--program cannot be used with --scheme, or with several --soc",
            why="the program is already lowered",
            fix="leave out --scheme, and pass at most one --soc",
        )
    if request.text or request.max_perplexity is not None:
        option = "--text" if request.text else "--max-perplexity"
        raise UsageError(
            f"{option} cannot be used with --program",
            why="perplexity needs a model that is lowered here",
        )
    if not request.tokenizer:
        raise UsageError(
            "--program needs --tokenizer", fix="pass the tokenizer of the program's model"
        )


def check_model_options(request: LlmRequest) -> None:
    """Raise UsageError for options that do not work together if a model is lowered."""
    if request.max_perplexity is not None and not (request.text and request.max_perplexity >= 1):
        text = f"--max-perplexity {request.max_perplexity:g}" + (
            " is below 1" if request.text else " needs --text"
        )
        fix = "pass 1 or more" if request.text else "pass the text to measure with --text"
        raise UsageError(text, fix=fix)
    if bool(request.weights) != bool(request.tokenizer):
        raise UsageError("--weights and --tokenizer belong together", fix="pass both or neither")
    if (
        request.prefill < 2
        or request.context < 2 * request.prefill
        or request.context % request.prefill
    ):
        raise UsageError(
            f"--prefill {request.prefill} does not work with --context {request.context}",
            why="--prefill must be at least 2, and --context must be a larger multiple of it",
        )
