"""Runs and judges a bundle of LiteRT-LM: one case of test_llm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ci.cases.engine import RunNotes
from ci.cases.facts import CaseResult, Run
from ci.cases.pipeline import CaseRun, Setup
from ci.cases.spec import CaseSpec
from ci.facts.finding import Advice, Finding, advise
from ci.facts.kinds import INCONCLUSIVE, NO_OUTPUTS, TOKENS
from ci.judging.figures import Array
from ci.judging.verdict import CaseFigures, ControlResult
from ci.llm.bundle_file import BundleFile, read_bundle
from ci.llm.bundle_models import OpenBundle, open_bundle
from ci.llm.bundle_verdict import (
    AFTER,
    ALONE,
    Judged,
    Text,
    choose_error,
    choose_lengths,
    make_controls,
    make_reference,
    make_text,
    run_decode,
    run_free,
    run_prompt,
)
from ci.llm.case import describe_speed
from ci.llm.generation import Loop, eager_step
from ci.llm.genie_file import GenieSource, read_genie_bundle
from ci.llm.genie_models import open_genie
from ci.llm.interface import Interface
from ci.llm.tokenizers import Tokenizer
from ci.llm.verdict import compare_float
from ci.models.numerics import fix_numerics
from ci.report.schema import Status
from provisioning.console.caller import shown_path
from provisioning.errors import FailedError, UsageError

NAME = "litert-lm"


@dataclass(frozen=True)
class BundleResult:
    """What a bundle gave. ``judged`` are its runs, ``controls`` says for each fault whether it was
    rejected, and ``decode_s`` is the mean time of a step of decode in seconds. ``agreement`` is the
    share of steps at which the token is that of the float32 weights, and ``divergence`` the mean
    Kullback-Leibler divergence; None without weights."""

    text: str
    judged: tuple[Judged, ...]
    controls: tuple[ControlResult, ...]
    decode_s: float
    warnings: tuple[str, ...] = ()
    agreement: float | None = None
    divergence: float = 0.0


@dataclass(frozen=True)
class BundleJob:
    """Runs a bundle and judges what it gives, in a worker. ``reference`` is another bundle of the
    same model, and ``weights`` are float32 weights, or None. ``library`` is QNN's backend.
    ``genie`` is the folder if the bundle is one for Genie."""

    path: Path
    prompt: str
    tokens: int
    soc: str
    library: Path
    reference: Path | None = None
    weights: Path | None = None
    genie: GenieSource | None = None

    def __call__(self) -> BundleResult:
        """Return the result. Raises UsageError for a prompt that does not fit, and the errors of
        read_bundle and open_bundle."""
        fix_numerics()
        if self.genie:
            folder = read_genie_bundle(self.genie)
            with TemporaryDirectory() as scratch:
                bundle = open_genie(folder, Path(scratch) / "bundle", self.soc, self.library)
                return self.judge(bundle, bundle, folder.read_tokenizer(Path(scratch)))
        file = read_bundle(self.path)
        with TemporaryDirectory() as scratch:
            tokenizer = file.read_tokenizer(Path(scratch))
            bundle = open_bundle(file, Path(scratch) / "bundle", self.soc, self.library)
            right = bundle
            if self.reference:
                reference = read_bundle(self.reference)
                require_same_model(file, reference)
                right = open_bundle(reference, Path(scratch) / "reference", self.soc, self.library)
            return self.judge(bundle, right, tokenizer)

    def judge(self, bundle: OpenBundle, right: OpenBundle, tokenizer: Tokenizer) -> BundleResult:
        """Run prompts, decode alone and free text, and the faults that must be rejected. ``right``
        is what the reference runs."""
        file = bundle.file
        prompt, stops = encode_prompt(file, tokenizer, self.prompt)
        context = min(file.context, right.file.context)
        if file.metadata.most_tokens:
            context = min(context, file.metadata.most_tokens)
        lengths = {chunk: choose_lengths(chunk, context) for chunk in file.chunks}
        require_room(prompt, file, context)
        free = min(self.tokens, context - len(prompt))
        size = max((max(each) for each in lengths.values() if each), default=1) + AFTER
        ids, generated = make_text(right, prompt, stops, free=free, size=size)
        error = choose_error(is_compiled=file.is_compiled, is_float=file.is_float)
        text = Text(tuple(ids), len(prompt), generated, make_reference(right, ids, error))
        judged, controls = [], []
        warnings = [*file.remarks]
        for chunk, chunk_lengths in lengths.items():
            judged += [run_prompt(bundle, text, length, chunk) for length in chunk_lengths]
            longest = max(chunk_lengths, default=0)
            if longest < 2 * chunk:
                warnings.append(
                    f"only one chunk of {chunk} tokens fits in the context of {context}: a second"
                    " one was not judged"
                )
                continue
            for kind, spoil in make_controls(bundle, chunk, longest // chunk).items():
                wrong = run_prompt(bundle, text, longest, chunk, spoil)
                rejected = bool(wrong.faults)
                controls.append(ControlResult(kind, rejected, wrong.verdict.sqnr_db))
        began = time.monotonic()
        alone = run_decode(bundle, text, min(len(ids), ALONE))
        decode_s = (time.monotonic() - began) / len(alone.run.tokens)
        judged += [alone, run_free(bundle, text, max(file.chunks), stops)]
        shown = tokenizer.decode((*prompt, *judged[-1].run.tokens))
        if not file.is_compiled:
            warnings.append(
                "the decoder is not compiled for Qualcomm's NPU: it ran on LiteRT's interpreter"
            )
        if right is bundle and not self.weights:
            option = "--weights" if self.genie else "--reference or --weights"
            warnings.append(
                "the reference is decode of the bundle itself, so that wrong weights go unnoticed;"
                f" pass {option}"
            )
        likeness = None
        if self.weights:
            likeness = compare_float(*compare_weights(self.weights, file, text, judged))
        return BundleResult(
            shown,
            tuple(judged),
            tuple(controls),
            decode_s if file.is_compiled else 0.0,
            tuple(warnings),
            likeness.agreement if likeness else None,
            likeness.divergence if likeness else 0.0,
        )


def encode_prompt(
    file: BundleFile, tokenizer: Tokenizer, prompt: str
) -> tuple[list[int], tuple[int, ...]]:
    """Return the ids of the prompt, which the start token of the metadata precedes, and those that
    end a text. Raises UsageError if there is none, and FailedError for ids that the decoder does
    not have."""

    def find_id(word: str, special: int) -> list[int]:
        ids = list(tokenizer.encode(word))
        return ids if len(ids) == 1 else [special] * (special >= 0)

    start = file.metadata.start
    ids = list(find_id(start, tokenizer.bos) if isinstance(start, str) else start)
    ids += tokenizer.encode(prompt)
    stops: list[int] = []
    for stop in file.metadata.stops:
        stops += find_id(stop, tokenizer.eos) if isinstance(stop, str) else [stop]
    if not ids:
        raise UsageError(
            "the prompt has no tokens",
            why=f"it is empty, and the metadata of {file.name} has no start token",
            fix="pass --prompt",
        )
    if excess := [token for token in ids if token >= file.vocabulary]:
        raise FailedError(
            f"{file.name}: the tokenizer gives the token {excess[0]}, and the decoder has"
            f" {file.vocabulary} logits",
            why="the tokenizer belongs to another model",
            fix="pack the bundle again with the tokenizer of its model",
        )
    return ids, tuple(stops)


def require_room(prompt: Sequence[int], file: BundleFile, context: int) -> None:
    """Raise UsageError for a prompt that does not fit in the context."""
    calls = -(-len(prompt) // max(file.chunks))
    if calls * max(file.chunks) - (calls > 1) > context or len(prompt) >= context:
        raise UsageError(
            f"a prompt of {len(prompt)} tokens does not fit in a context of {context} tokens",
            why=f"it is passed on in chunks of {max(file.chunks)} tokens",
            fix="pass a shorter --prompt",
        )


def require_same_model(file: BundleFile, reference: BundleFile) -> None:
    """Raise UsageError if a bundle cannot be the reference of another one."""
    layers = [
        [(cache.kind, cache.layer) for cache in each.shared_caches] for each in (file, reference)
    ]
    if layers[0] == layers[1] and file.vocabulary == reference.vocabulary:
        return
    sizes = [
        f"{len(each.caches)} caches and {each.vocabulary} tokens" for each in (file, reference)
    ]
    raise UsageError(
        f"--reference {shown_path(reference.path)} is another model than {file.name}",
        why=f"it has {sizes[1]}, and {file.name} has {sizes[0]}",
        fix="pass a bundle that was made from the same weights",
    )


def compare_weights(
    weights: Path, file: BundleFile, text: Text, judged: Sequence[Judged]
) -> tuple[Array, Array]:
    """Return the logits of a bundle's runs, and those of the float32 weights after the same tokens.
    Raises UsageError for weights of another model."""
    from ci.llm.decoder import make_decoder
    from ci.llm.weights import read_weights

    config, tensors = read_weights(weights)
    layers = len(file.caches) // 2
    if (config.layers, config.vocabulary) != (layers, file.vocabulary):
        raise UsageError(
            f"--weights {shown_path(weights)} is another model than {file.name}",
            why=f"it has {config.layers} layers and {config.vocabulary} tokens, and the bundle has"
            f" {layers} and {file.vocabulary}",
        )
    size = len(text.ids)
    interface = Interface.of(config, size + 1, size)
    decoder = make_decoder(config, tensors, size + 1)
    loop = Loop(interface, eager_step({1: decoder, size: decoder}))
    right = loop.feed(text.ids)
    forced = [each for each in judged if each.run.fed == text.ids[: len(each.run.fed)]]
    rows = [each.run.logits for each in forced]
    places = [
        np.arange(len(each.run.fed) - len(each.run.tokens), len(each.run.fed)) for each in forced
    ]
    return np.concatenate(rows), np.concatenate([right[place] for place in places])


class BundleRun(CaseRun):
    """The case of a bundle. ``job`` runs it."""

    def __init__(self, spec: CaseSpec, setup: Setup, job: BundleJob) -> None:
        super().__init__(spec, setup)
        self.job, self.facts.runner = job, NAME

    def run(self) -> CaseResult:
        """Run and judge the bundle. Raises the errors of BundleJob that are the user's."""
        self.stage = "run"
        log = self.setup.work / "run.log"
        began = time.monotonic()
        # A new process: QNN's libraries keep the device of a process's first session.
        ended = self.setup.pool.run(
            self.job, log, self.options.timeout_s, fresh=True, max_bytes=self.facts.memory_bytes
        )
        if isinstance(ended.error, UsageError):
            raise ended.error
        if ended.failure:
            return self.end(Status.FAILED, [ended.find(NO_OUTPUTS)], ended.log_tail)
        result: BundleResult = ended.result
        notes = RunNotes(run_ms=result.decode_s * 1000)
        self.facts.evidence.run = Run(notes=notes, wall_s=time.monotonic() - began)
        self.facts.evidence.controls = result.controls
        self.facts.evidence.warnings += result.warnings
        verdicts = [judged.verdict for judged in result.judged]
        steps = sum(verdict.steps for verdict in verdicts)
        equal = sum(verdict.equal + verdict.tied for verdict in verdicts)
        self.facts.evidence.figures = CaseFigures(
            sqnr_db=min(verdict.sqnr_db for verdict in verdicts),
            predicted_sqnr_db=min(verdict.predicted_db for verdict in verdicts),
            equal=equal / steps,
        )
        self.facts.remarks.append(f"{equal} of {steps} tokens equal the reference's")
        if result.agreement is not None:
            self.facts.remarks.append(
                f"top-1 {result.agreement:.0%} and KL {result.divergence:.3f} against float32"
            )
        self.facts.remarks.append(describe_speed(notes))
        findings = list_findings(result, self.facts.limits.min_equal or 0.0)
        case = self.end(Status.FAILED if findings else Status.PASSED, findings)
        return replace(case, noted=f"{result.text!r} ({case.remark})")


def list_findings(result: BundleResult, min_equal: float) -> list[Finding]:
    """Return why to reject a bundle, or [] if there is no reason. ``min_equal`` is the share of
    steps at which its token must be the one of the float32 weights."""
    findings: list[Finding] = []
    for judged in result.judged:
        for fault in judged.faults[:1]:
            advice = Advice(where=(judged.where,)) if judged.where else Advice()
            findings.append(TOKENS.find(f"{judged.name}: {fault}", advice=advice))
    if result.agreement is not None and result.agreement < min_equal:
        text = (
            f"{result.agreement:.0%} of the tokens are those of the float32 weights, but at least"
            f" {min_equal:.0%} are required"
        )
        findings.append(TOKENS.find(text))
    accepted = sorted({each.kind.value for each in result.controls if not each.rejected})
    if accepted and not findings:
        text = f"the verdict accepts {', '.join(accepted)}: this case proves nothing"
        fix = "use a --prompt after which more steps have one token that is far better than others"
        findings.append(INCONCLUSIVE.find(text, advice=advise(fix=fix)))
    return findings
