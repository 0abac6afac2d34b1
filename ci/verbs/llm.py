"""``test-llm``: run a language model on the emulator and judge the tokens that it generates."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.engine import RunNotes
from ci.cases.judged import CaseResult, Evidence, Options, Run, make_case
from ci.cases.limited import run_limited
from ci.cases.pipeline import Setup
from ci.cases.pool import ScratchPool
from ci.cases.session import Phases, make_report, run_session
from ci.cases.spec import CaseSpec, match_all
from ci.executorch.toolchain import describe_toolchain, name_toolchain
from ci.facts.finding import Advice
from ci.facts.kinds import NO_OUTPUTS, TOKENS
from ci.judging.verdict import CaseFigures
from ci.llm import tiny
from ci.llm.case import LlmRun, Show, describe_speed
from ci.llm.config import DecoderConfig
from ci.llm.families import read_config
from ci.llm.foreign import Foreign, ForeignJob
from ci.llm.generation import NAME, make_runner
from ci.llm.lowering import LlmEngine, Subject
from ci.llm.projection import Projection, project, render_projection
from ci.llm.recipes import DEFAULT, RECIPES
from ci.llm.tokenizers import TextAnswer, TextQuestion, ask_tokenizer, check_tokenizer, show_tokens
from ci.models.schemes import Scheme
from ci.report.claim import claim_reports
from ci.report.schema import Report, Status
from ci.report.text import count
from ci.verbs import steps
from ci.verbs.options import (
    PARALLEL,
    add_option,
    add_options,
    least,
    name_path,
    repeat_command,
    require_effect,
)
from provisioning.artifacts import choice
from provisioning.artifacts.environment import Environment
from provisioning.console.caller import shown_path
from provisioning.console.command import FILE, WHAT, Outcome, Settings, user_path
from provisioning.console.progress import Progress
from provisioning.doctor.survey.programs import read_program
from provisioning.errors import DefectError, DownloadError, IntegrityError, UsageError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.files import hash_file
from provisioning.manifest.targets import read_decoders, read_socs
from provisioning.store.store import store_home


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


SESSION, POLICY, DEFAULT_SOC = "test_llm", "llm", "SM8750"
IMPORTS = LlmEngine.imports
TINY = "tiny"
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
    add_options(parser, "--offline", *PARALLEL, gaps={"--reports": f"{SESSION}/"})
    add_options(parser, "--base", "--sarif", "--sdk", "--adaptor")


def require_text(flag: str, value: str) -> None:
    """Raise UsageError for an argument with bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{flag} is not UTF-8", fix="pass the text in UTF-8") from error


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run a language model or a program, or estimate sizes. Raises UsageError for an option or a
    file that cannot be used, and UnfitError for a missing package."""
    if args.project:
        require_effect(args, "--project", "--scheme", "--context")
        require_files(args)
        steps.require_packages(("torch", "executorch"), "lowering")
        return project_model(args)
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
    steps.check_arguments(args, SESSION)
    policy = steps.read_limits(args, POLICY, progress)
    if unused := [name for name in ("models", "suite") if getattr(policy, name)]:
        untested = f"{' and '.join(unused)} of the policy are not tested here"
        progress.step(f"note: {untested}: --model selects decoders")
    claim_reports(args.reports / SESSION)
    steps.require_packages(("torch", "executorch"), "lowering")

    schemes = choose_schemes(args.scheme)
    socs = match_all("SoC", args.soc, sorted(read_socs())) or [DEFAULT_SOC]
    run: Callable[..., Report]
    if args.pte:
        run = partial(run_program, find_program(args))
        specs = [CaseSpec(shown_path(args.pte), Scheme.ASIS, socs[0])]
        work = f"run {specs[0].model}"
    else:
        run = partial(run_specs, *find_subject(args, progress), plain=args.plain)
        name = shown_path(args.weights) if args.weights else args.model
        specs = [CaseSpec(name, scheme, soc) for scheme in schemes for soc in socs]
        work = f"lower, run and judge {count(len(specs), 'case')}, {args.jobs} at a time"
    chosen = choice.read_choice(args.sdk, args.adaptor)
    phases = Phases(progress)
    # No command repeats a case with the user's own files: it would need --model, which cannot name
    # them.
    command = ""
    if not (args.pte or args.weights):
        vars(args).update(chosen.options)
        command = repeat_command(args)
    options = steps.read_options(args, SESSION, policy, specs=specs, command=command)
    # Baselines are for the models of a policy, and no policy's models are tested here.
    options = replace(options, baselines=None)
    report: Report = steps.take_steps(
        chosen.profile,
        work,
        lambda environment, scratch: run(
            options, environment=environment, phases=phases, scratch=scratch
        ),
        phases,
        offline=args.offline,
        imports=IMPORTS,
        choice=chosen,
    )
    return steps.publish(report, args.reports / SESSION, args, progress)


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


def choose_schemes(globs: Sequence[str]) -> Sequence[Scheme]:
    """Return the schemes that match ``globs`` or, without globs, the default schemes. Raises
    UsageError for a glob that matches none."""
    named = match_all("scheme", globs, [scheme.value for scheme in RECIPES])
    return [scheme for scheme in RECIPES if scheme.value in named] or DEFAULT


def project_model(args: argparse.Namespace) -> Outcome:
    """Return the estimated size of a model's programs. Raises UsageError if the model is not a
    Llama or was trained for a shorter context."""
    # Without torch, this takes 0.5 s instead of 2.2.
    job = partial(_read_projection, args.project, choose_schemes(args.scheme), args.context)
    projection = run_limited(job, f"{args.project}")
    data = msgspec.to_builtins(projection)
    return Outcome(render_projection(projection), data, exact=True)


def _read_projection(path: Path, schemes: Sequence[Scheme], context: int) -> Projection:
    _, config = read_config(path)
    require_context(context, config.most_context)
    return project(config, schemes, context)


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


def find_program(args: argparse.Namespace) -> ForeignJob:
    """Return the job for --program, a program lowered elsewhere. Raises UsageError for missing or
    damaged files."""
    if not args.pte.is_file():
        raise UsageError(f"--program {shown_path(args.pte)} is not a file")
    content = run_limited(partial(read_program, args.pte), args.pte.name)
    if content.kind != "program" or content.damage:
        why = f"it {content.damage}" if content.damage else "it is a context binary"
        raise UsageError(f"{args.pte} is not a complete ExecuTorch program", why=why)
    # In a process with limits, as every parser of a user's file: it is written in C++ or Rust, and
    # may not end or may abort.
    ask_tokenizer(partial(check_tokenizer, args.tokenizer), args.tokenizer)
    if args.weights:
        read_dimensions(args.weights, args.timeout_s)
    return ForeignJob(args.pte, args.tokenizer, args.prompt, args.tokens, args.weights)


def find_subject(args: argparse.Namespace, progress: Progress) -> tuple[Subject, Show]:
    """Return the model to lower, and a function that shows its token ids as text. The files of a
    known model are fetched if necessary. Raises UsageError for weights, a tokenizer or a text that
    do not match, and the same errors as ``find_files``."""
    place = Path(tiny.__file__).parent
    weights, path = place / "weights.bin", place / "tokenizer.bin"
    texts: Sequence[str] = tiny.PROMPTS
    if args.weights:
        weights, path, texts = args.weights, args.tokenizer, ("",)
    elif args.model != TINY:
        weights, path = find_files(args.model, progress, offline=args.offline)
        texts = read_decoders()[args.model].prompts
    config = read_dimensions(weights, args.timeout_s)
    texts = [args.prompt] if args.prompt else texts
    question = TextQuestion(path, f"{weights}", config.vocabulary, tuple(texts), args.text)
    answer = ask_tokenizer(question, path)
    prompts = answer.prompts
    require_context(args.context, config.most_context)
    room = args.context - max(map(len, prompts)) - args.prefill
    if room < 1:
        longest = max(map(len, prompts))
        raise UsageError(
            f"a prompt of {longest} tokens does not fit in a context of {args.context} tokens"
            f" with --prefill {args.prefill}",
            fix="pass a shorter prompt, a larger --context or a smaller --prefill",
        )
    windows = find_windows(args, answer) if args.text else ()
    if (highest := max(max(ids) for ids in (*prompts, *windows))) >= config.vocabulary:
        raise UsageError(
            f"a text has the token {highest}, but the model has {config.vocabulary} tokens",
            why="the tokenizer has tokens that only other models of its family use",
            fix="leave out such special tokens",
        )
    subject = Subject(
        weights=weights,
        prompts=prompts,
        tokens=min(args.tokens, room),
        context=args.context,
        prefill=args.prefill,
        bos=answer.bos,
        eos=answer.eos,
        text=windows,
        max_perplexity=args.max_perplexity,
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


def find_windows(args: argparse.Namespace, answer: TextAnswer) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of --text in windows that fit in the context. Each starts with BOS, or
    with the preceding token if there is no BOS. Raises UsageError for a text that is too short."""
    ids, size = answer.text, args.context - 1
    if len(ids) < 2:
        raise UsageError(f"--text {args.text} has fewer than two tokens", fix="pass a longer text")
    windows = []
    for start in range(1, len(ids), size):
        first = ids[0] if answer.bos >= 0 else ids[start - 1]
        windows.append((first, *ids[start : start + size]))
    return tuple(windows)


def run_specs(
    subject: Subject,
    show: Show,
    options: Options,
    *,
    plain: bool,
    environment: Environment,
    phases: Phases,
    scratch: ScratchPool,
) -> Report:
    """Lower, run and judge a decoder for each case, and return the report. Raises
    StoreError if the disk is full."""
    parts = tuple(describe_toolchain(environment))
    pool = scratch.open(environment.apply(os.environ))
    setup = Setup(
        options=options,
        engine=LlmEngine(name_toolchain(parts, environment), subject, plain),
        runner=make_runner(pool),
        pool=pool,
        work=scratch.scratch,
        parts=parts,
    )
    return run_session(setup, phases, lambda spec, setup: LlmRun(spec, setup, subject, show))


def run_program(
    job: ForeignJob,
    options: Options,
    *,
    environment: Environment,
    phases: Phases,
    scratch: ScratchPool,
) -> Report:
    """Run a foreign program, and return the report. Raises UsageError if program, tokenizer and
    weights do not match."""
    (spec,) = options.specs
    parts = tuple(describe_toolchain(environment))
    pool = scratch.open(environment.apply(os.environ))
    with phases.measure("cases"):
        memory = options.policy.memory_bytes
        ended = pool.run(job, scratch.scratch / "run.log", options.timeout_s, max_bytes=memory)
    if isinstance(ended.error, UsageError):
        raise ended.error
    if ended.failure:
        failed = make_case(
            spec,
            Evidence(is_defect=isinstance(ended.error, DefectError)),
            status=Status.FAILED,
            findings=[ended.find(NO_OUTPUTS)],
            runner=NAME,
            log_tail=ended.log_tail,
        )
        result = CaseResult(failed)
    else:
        foreign, text = ended.result
        min_equal = options.policy.limits_of(spec.model, spec.scheme).min_equal or 0.0
        result = judge_program(spec, foreign, text, min_equal)
    return make_report(options, parts, [result], phases)


def judge_program(spec: CaseSpec, foreign: Foreign, text: str, min_equal: float) -> CaseResult:
    """Return the result of a foreign program. ``min_equal`` is the share of steps at which its
    token must equal the float32 model's after the same text."""
    likeness, faults = foreign.likeness, list(foreign.faults)
    if likeness and likeness.agreement < min_equal:
        share = f"{likeness.agreement:.0%} of the program's tokens equal the float32 model's"
        faults.append(f"{share}, but at least {min_equal:.0%} are required")
    notes = RunNotes(run_ms=foreign.step_s * 1000)
    # A layer that departs is no fault of a program whose tokens are right.
    warnings = () if faults else foreign.where
    where = foreign.where
    if not likeness:
        warnings = ("without --weights, only obvious faults in the tokens and logits are detected",)
    elif not where:
        where = ("no keys or values are far worse than those of float32 with coarse rounding",)
    evidence = Evidence(
        figures=CaseFigures(equal=likeness.agreement if likeness else None),
        run=Run(notes=notes),
        warnings=warnings,
    )
    status = Status.FAILED if faults else Status.PASSED
    advice = Advice(where=where)  # one is enough
    findings = [TOKENS.find(fault, advice=advice) for fault in faults[:1]]
    findings += map(TOKENS.find, faults[1:])
    case = make_case(spec, evidence, status=status, findings=findings, runner=NAME)
    remarks = [f"{len(foreign.tokens)} tokens"]
    if likeness:
        remarks += [
            f"the first {foreign.same_count} equal those of float32",
            f"top-1 {likeness.agreement:.0%} and KL {likeness.divergence:.3f} against float32",
        ]
    remarks.append(describe_speed(notes))
    return CaseResult(case, noted=f"{text!r} ({'; '.join(remarks)})")
