"""Finds the decoder that a request names, and the prompts for it; or the program that was lowered
elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ci.cases.limited import run_limited
from ci.llm import tiny
from ci.llm.case import Show
from ci.llm.config import DecoderConfig
from ci.llm.families import require_form
from ci.llm.foreign import ForeignJob
from ci.llm.lowering import Subject
from ci.llm.request import TINY, LlmRequest
from ci.llm.tokenizers import TextAnswer, TextQuestion, ask_tokenizer, check_tokenizer, show_tokens
from provisioning.console.caller import shown_path
from provisioning.console.progress import Progress
from provisioning.doctor.survey.programs import read_program
from provisioning.errors import DownloadError, IntegrityError, UsageError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.files import hash_file
from provisioning.manifest.targets import read_decoders
from provisioning.store.home import store_home


def find_files(
    name: str, progress: Progress, *, offline: bool, environ: Mapping[str, str] = os.environ
) -> tuple[Path, Path]:
    """Return the paths of the weights and the tokenizer of the decoder ``name``.

    The files are in the store, to which they are downloaded if necessary. If an environment
    variable such as QNN_CI_STORIES260K is set, they must be in the directory that it names.

    Raises IntegrityError if a file in that directory is missing, or if a file or a download does
    not match its pin. Raises DownloadError if a download fails, or if ``offline`` forbids it.
    """
    decoder = read_decoders()[name]
    variable = f"QNN_CI_{name.upper()}"
    user_directory = environ.get(variable)
    # Files that the user names are never replaced by a download.
    place = Path(user_directory) if user_directory else store_home() / "decoders" / name
    for pin in (decoder.weights, decoder.tokenizer):
        path = place / pin.name
        # Hashed in each run: what is in the store may have changed since it was fetched.
        if not (path.is_file() and hash_file(path) == pin.sha256):
            if user_directory:
                raise IntegrityError(
                    f"{path} is missing or not the pinned file",
                    why=f"{variable} names the directory; the pinned file has SHA-256 {pin.sha256}",
                    fix=f"put the published file there, or unset {variable}",
                )
            if offline:
                raise DownloadError(
                    f"{pin.name} is not in the store, and --offline forbids the download",
                    fix=f"omit --offline, or set {variable} to a directory with the file",
                )
            fetch_file([pin.url], path, Pin(pin.size_bytes, pin.sha256), progress)
    return place / decoder.weights.name, place / decoder.tokenizer.name


def find_program(request: LlmRequest, program: Path) -> ForeignJob:
    """Return the job for --program, a program lowered elsewhere. Raises UsageError for missing or
    damaged files."""
    tokenizer = request.tokenizer or Path()
    if not program.is_file():
        raise UsageError(f"--program {shown_path(program)} is not a file")
    content = run_limited(partial(read_program, program), program.name)
    if content.kind != "program" or content.damage:
        why = f"it {content.damage}" if content.damage else "it is a context binary"
        raise UsageError(f"{program} is not a complete ExecuTorch program", why=why)
    # In a process with limits, as every parser of a user's file: it is written in C++ or Rust, and
    # may not end or may abort.
    ask_tokenizer(partial(check_tokenizer, tokenizer), tokenizer)
    if request.weights:
        read_dimensions(request.weights, request.timeout_s)
    return ForeignJob(program, tokenizer, request.prompt, request.tokens, request.weights)


def find_subject(request: LlmRequest, progress: Progress) -> tuple[Subject, Show]:
    """Return the model to lower, and a function that shows its token ids as text. The files of a
    known model are fetched if necessary. Raises UsageError for weights, a tokenizer or a text that
    do not match, and the same errors as ``find_files``."""
    place = Path(tiny.__file__).parent
    weights, path = place / "weights.bin", place / "tokenizer.bin"
    texts: Sequence[str] = tiny.PROMPTS
    if request.weights:
        weights, path, texts = request.weights, request.tokenizer or Path(), ("",)
    elif request.decoder != TINY:
        weights, path = find_files(request.decoder, progress, offline=request.offline)
        texts = read_decoders()[request.decoder].prompts
    config = read_dimensions(weights, request.timeout_s)
    texts = [request.prompt] if request.prompt else texts
    question = TextQuestion(path, f"{weights}", config.vocabulary, tuple(texts), request.text)
    answer = ask_tokenizer(question, path)
    prompts = answer.prompts
    require_context(request.context, config.most_context)
    room = request.context - max(map(len, prompts)) - request.prefill
    if room < 1:
        longest = max(map(len, prompts))
        raise UsageError(
            f"a prompt of {longest} tokens does not fit in a context of {request.context} tokens"
            f" with --prefill {request.prefill}",
            fix="pass a shorter prompt, a larger --context or a smaller --prefill",
        )
    windows = find_windows(request.text, request.context, answer) if request.text else ()
    if (highest := max(max(ids) for ids in (*prompts, *windows))) >= config.vocabulary:
        raise UsageError(
            f"a text has the token {highest}, but the model has {config.vocabulary} tokens",
            why="the tokenizer has tokens that only other models of its family use",
            fix="leave out such special tokens",
        )
    subject = Subject(
        weights=weights,
        prompts=prompts,
        tokens=min(request.tokens, room),
        context=request.context,
        prefill=request.prefill,
        bos=answer.bos,
        eos=answer.eos,
        text=windows,
        max_perplexity=request.max_perplexity,
    )
    return subject, partial(show_tokens, path)


def read_dimensions(path: Path, timeout_s: float) -> DecoderConfig:
    """Read weights in a process with limits, and return their dimensions. Raises UsageError as
    read_weights does."""
    fix = "use a smaller model, or raise --timeout-s"
    return run_limited(partial(_read_dimensions, path), f"{path}", timeout_s=timeout_s, fix=fix)


def _read_dimensions(path: Path) -> DecoderConfig:
    require_form(path)  # before torch is imported, which takes seconds
    from ci.llm.weights import read_weights

    return read_weights(path)[0]


def find_windows(text: Path, context: int, answer: TextAnswer) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of --text in windows that fit in the context. Each starts with BOS, or
    with the preceding token if there is no BOS. Raises UsageError for a text that is too short."""
    ids, size = answer.text, context - 1
    if len(ids) < 2:
        raise UsageError(f"--text {text} has fewer than two tokens", fix="pass a longer text")
    windows = []
    for start in range(1, len(ids), size):
        first = ids[0] if answer.bos >= 0 else ids[start - 1]
        windows.append((first, *ids[start : start + size]))
    return tuple(windows)


def require_context(context: int, most: int) -> None:
    """Raise UsageError for a context below 2 tokens, or longer than is supported for the model."""
    if context < 2:
        raise UsageError(f"--context {context} is below 2", fix="pass 2 or more")
    if context > most:
        raise UsageError(
            f"--context {context}: the model is supported up to {most} tokens",
            why="it was trained for no more, or has a sliding window or longrope of this length",
            fix="choose a shorter context",
        )
