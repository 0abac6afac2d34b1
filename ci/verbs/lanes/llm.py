"""The lane of test-llm: ExecuTorch lowers decoders, and the emulator generates tokens with them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ci.cases.limited import run_limited
from ci.cases.policy import EmulatorPolicy
from ci.cases.pool import Pool
from ci.cases.request import Request
from ci.cases.spec import CaseSpec, match_all
from ci.executorch.engine import PACKAGES
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.llm import tiny
from ci.llm.case import ForeignRun, LlmRun, Show
from ci.llm.config import DecoderConfig
from ci.llm.foreign import ForeignJob
from ci.llm.generation import make_runner
from ci.llm.lowering import LlmEngine, Subject
from ci.llm.recipes import DEFAULT, RECIPES
from ci.llm.tokenizers import TextAnswer, TextQuestion, ask_tokenizer, check_tokenizer, show_tokens
from ci.models.schemes import Scheme, SchemeSet
from ci.verbs.lanes.lane import Lane, Plan, Tools
from ci.verbs.options import LOWERING
from provisioning.artifacts.environment import Environment
from provisioning.console.caller import shown_path
from provisioning.console.progress import Progress
from provisioning.doctor.survey.programs import read_program
from provisioning.errors import DownloadError, IntegrityError, UsageError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.files import hash_file
from provisioning.manifest.targets import read_decoders, read_socs
from provisioning.store.store import store_home

DEFAULT_SOC = "SM8750"
IMPORTS = LlmEngine.imports
TINY = "tiny"


@dataclass(frozen=True, kw_only=True)
class LlmRequest(Request):
    """A request with the options of test-llm."""

    decoder: str = TINY  # a name; without effect if there are weights or a program
    weights: Path | None = None
    tokenizer: Path | None = None
    pte: Path | None = None  # a program that was lowered elsewhere
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
    (check_program_options if request.pte else check_model_options)(request)
    require_files(
        {
            "--program": request.pte,
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


def select(
    request: LlmRequest, policy: EmulatorPolicy, schemes: SchemeSet, progress: Progress
) -> list[CaseSpec]:
    """Return the requested cases. Raises UsageError for a scheme or a SoC that does not exist."""
    if unused := [name for name in ("models", "suite") if getattr(policy, name)]:
        untested = f"{' and '.join(unused)} of the policy are not tested here"
        progress.step(f"note: {untested}: --model selects decoders")
    socs = match_all("SoC", request.socs, sorted(read_socs())) or [DEFAULT_SOC]
    if request.pte:
        return [CaseSpec(shown_path(request.pte), Scheme.ASIS, socs[0])]
    name = shown_path(request.weights) if request.weights else request.decoder
    chosen = choose_schemes(request.schemes, schemes)
    return [CaseSpec(name, scheme, soc) for scheme in chosen for soc in socs]


@contextlib.contextmanager
def prepare(
    request: LlmRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> Iterator[Plan]:
    """Yield the plan of a run. The files of a known decoder are fetched. Raises UnfitError for a
    missing package, and the same errors as find_program or find_subject."""
    del policy
    LANE.require_packages(specs)
    usual: dict[str, Any] = {
        "specs": specs,
        "profile": LANE.profile(request.choice),
        "imports": IMPORTS,
        "choice": request.choice,
        # Baselines are for the models of a policy, and no policy's models are tested here.
        "options": {"baselines": None},
    }
    if request.pte:
        job = find_program(request, request.pte)
        yield Plan(
            **usual,
            open=partial(open_tools, None, plain=request.plain),
            make_run=lambda spec, setup: ForeignRun(spec, setup, job),
            work="run and judge",
        )
        return
    subject, show = find_subject(request, progress)
    yield Plan(
        **usual,
        open=partial(open_tools, subject, plain=request.plain),
        make_run=lambda spec, setup: LlmRun(spec, setup, subject, show),
    )


def open_tools(
    subject: Subject | None, environment: Environment, pool: Pool, *, plain: bool
) -> Tools:
    """Return the engine that lowers a decoder, None for a foreign program, and the runner."""
    parts = tuple(describe_toolchain(environment))
    toolchain = name_toolchain(parts, environment) if subject else ()
    engine = LlmEngine(toolchain, subject, plain)
    return Tools(engine=engine, runner=make_runner(pool), parts=parts)


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


def choose_schemes(globs: Sequence[str], schemes: SchemeSet) -> Sequence[Scheme]:
    """Return the schemes that match ``globs`` or, without globs, the default schemes. Raises
    UsageError for a glob that matches none."""
    named = match_all("scheme", globs, [scheme.value for scheme in schemes.schemes])
    return [scheme for scheme in schemes.schemes if scheme.value in named] or schemes.default


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
    from ci.llm.weights import read_weights  # it imports torch

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


LANE = Lane(
    session="test_llm",
    schemes=SchemeSet(tuple(RECIPES), tuple(DEFAULT)),
    request=LlmRequest,
    packages=lambda _: (PACKAGES, LOWERING),
    profile=lambda choice: choice.profile,
    select=select,
    prepare=prepare,
)
