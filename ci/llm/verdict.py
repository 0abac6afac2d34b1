"""Judges a generation: compares tokens and logits with those of the model that was lowered.

The functions here are pure. The effect of rounding on the logits is predicted by runs of the model
with random rounding errors (ci.analysis.noise). These runs use the same loop, so the prediction
includes errors that accumulate in the caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ci.judging.figures import Array, decibels
from ci.llm.generation import Generated, count_same
from ci.models.tensors import BEST_DB, limit_db

# A wrong hidden state makes keys and values wrong. Their errors are within this factor.
ALIKE = 4.0
MARGIN_DB = 10.0  # an error may exceed its prediction by this, the default of max_above_noise_db
# The same for the mean of many tokens, which varies less: in a program whose tokens and logits
# pass, and in one that is wrong anyway. The means of right programs are at most 0.5 dB above it.
# With gate and up swapped in a layer of a Qwen 3 in 8a8w, they are 4.8 to 5.7 dB above it.
MEAN_MARGIN_DB, LOCATE_DB, MANY_TOKENS = 6.0, 3.0, 8


@dataclass(frozen=True)
class Reference:
    """The data for judging a run: the model's ``run``, and the predicted ``noise`` [disturbed run,
    step], which is the mean square error of the logits. ``cache_noise`` [disturbed run, cache,
    token] is that of the keys of all layers, then of the values."""

    run: Generated
    noise: Array
    cache_noise: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))

    @classmethod
    def of(
        cls, run: Generated, disturbed: Sequence[Generated], steps: Sequence[float] = ()
    ) -> Reference:
        """Return the reference of a run, from ``disturbed`` runs that were fed the same tokens.
        ``steps`` are the quantization steps of the caches. An element that is near the edge of a
        step may be rounded either way, even if no disturbed run shows it."""
        noise = [np.mean((generated.logits - run.logits) ** 2, axis=1) for generated in disturbed]
        caches = [
            np.mean((generated.caches - run.caches) ** 2, axis=(2, 3)) for generated in disturbed
        ]
        # Without it, the first report for a right SmolLM 3 in 16a8w named the values of layer 0, of
        # which single elements were one step off.
        rounding = np.square(steps or np.zeros(len(run.caches)))[:, None] / 12
        return cls(run, np.stack(noise), np.maximum(np.stack(caches), rounding))

    def allowed(self) -> Array:
        """Return the largest mean square error that each step may have, see ``limit``."""
        return limit(self.noise)

    def ties(self) -> Array:
        """Return by how much the best logit of each step may exceed the chosen token's logit. Each
        of the two logits may be wrong by the root of the allowed error."""
        return 2 * np.sqrt(self.allowed())

    def margins(self) -> Array:
        """Return the difference between the two largest logits of each step, relative to the
        noise."""
        best = np.sort(self.run.logits, axis=1)[:, -2:]
        return (best[:, 1] - best[:, 0]) / self.ties()

    def decided(self) -> Array:
        """Return for each step whether its margin exceeds the noise."""
        return self.margins() > 1


def limit(noise: Array) -> Array:
    """Return the largest mean square error that each step may have, from those of disturbed runs
    [run, ..., step]. It is MARGIN_DB above the larger of two errors: the largest error of any run
    at this step, and the largest average error of any run."""
    usual = noise.mean(axis=-1, keepdims=True).max(axis=0)
    return np.maximum(noise.max(axis=0), usual) * 10 ** (MARGIN_DB / 10)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run. ``faults`` is empty if it passes. ``steps`` were compared: ``equal`` of
    them have the reference's token, and ``tied`` have a different token that is as good within the
    noise. ``rejected`` are the indices of wrong steps."""

    faults: tuple[str, ...]
    steps: int
    equal: int
    tied: int
    sqnr_db: float
    predicted_db: float
    rejected: frozenset[int] = frozenset()


def judge_forced(run: Generated, reference: Reference) -> Verdict:
    """Compare all steps of a run with the reference. Raises ValueError if the run was not fed the
    same tokens as the reference."""
    if run.fed != reference.run.fed:
        raise ValueError("the run was not fed the same tokens as the reference")
    return judge_part(run, reference)


def judge_free(run: Generated, reference: Reference) -> Verdict:
    """Compare a run that was fed its own tokens with the reference. Steps after the first differing
    token are ignored, because the texts differ from there on. If no token differs, a run that ends
    earlier or later than the reference is wrong."""
    token_count, expected_count = len(run.tokens), len(reference.run.tokens)
    same_count = count_same(run.tokens, reference.run.tokens)
    verdict = judge_part(run, reference, min(same_count + 1, token_count, expected_count))
    if same_count == min(token_count, expected_count) and token_count != expected_count:
        text = f"the text has {token_count} tokens, but the model's text has {expected_count}"
        return replace(verdict, faults=(*verdict.faults, text))
    return verdict


def judge_part(run: Generated, reference: Reference, steps: int = 0) -> Verdict:
    """Compare the first ``steps`` steps of a run with the reference, or all steps if ``steps`` is
    0."""
    steps = steps or len(run.tokens)
    expected, allowed, ties = reference.run, reference.allowed(), reference.ties()
    logits = run.logits[:steps].astype(np.float64)
    right = expected.logits[:steps].astype(np.float64)
    rows: dict[int, str] = {}
    equal = tied = 0
    power = np.full(steps, np.inf)
    for step in range(steps):
        chosen, best = run.tokens[step], expected.tokens[step]
        gap = right[step, best] - right[step, chosen]
        finite = bool(np.isfinite(logits[step]).all())
        power[step] = np.mean((logits[step] - right[step]) ** 2) if finite else np.inf
        equal += chosen == best
        tied += chosen != best and gap <= ties[step]
        if not finite:
            rows[step] = "the logits are not finite"
        elif chosen != best and gap > ties[step]:
            rows[step] = (
                f"token {chosen} instead of {best}, {gap:.2f} below its logit"
                f" ({ties[step]:.2f} allowed)"
            )
        elif power[step] > allowed[step]:
            above = 10 * math.log10(power[step] / allowed[step]) + MARGIN_DB
            rows[step] = f"the error of the logits is {above:.1f} dB above the predicted noise"
    noise = reference.noise[:, :steps].sum(axis=1).max()
    signal = float(np.mean(right**2, axis=1).sum())
    sqnr, predicted = (decibels(signal, float(noise_power)) for noise_power in (power.sum(), noise))
    faults = [f"step {step}: {fault}" for step, fault in list(rows.items())[:1]]
    if len(rows) > 1:
        faults.append(f"{len(rows)} of {steps} steps are wrong")
    if not rows and sqnr < predicted - MARGIN_DB:
        faults.append(
            f"the SQNR of the logits is {sqnr:.1f} dB, but {predicted:.1f} dB are predicted"
        )
    return Verdict(tuple(faults), steps, equal, tied, sqnr, predicted, frozenset(rows))


@dataclass(frozen=True)
class Departure:
    """The first token in the first layer at which keys or values are wrong, or None if only the
    mean of all tokens is. ``heads`` are the indices of their wrong heads, and ``above_db`` is how
    far the larger error is above the predicted noise."""

    layer: int
    token: int | None
    keys: bool
    values: bool
    heads: tuple[int, ...]
    above_db: float

    def describe(self, heads: int, text: str) -> str:
        """Return what is wrong first. ``heads`` is the number of heads of keys and values, and
        ``text`` the text of the token."""
        place = name_place(self.layer, keys=self.keys, values=self.values)
        quoted = f" ({text!r})" if text.strip() else ""
        some = "s"[: len(self.heads) > 1] + " " + ", ".join(map(str, self.heads))
        is_some = len(self.heads) < heads and not (self.keys and self.values)
        heads_text = f", only in head{some} of {heads}" if is_some else ""
        at = "in the mean of all tokens" if self.token is None else f"at token {self.token}{quoted}"
        above = f"{self.above_db:.1f} dB above the predicted noise"
        return f"first wrong in {place}, {at}{heads_text}: {above}"


def name_place(layer: int, *, keys: bool, values: bool) -> str:
    """Return where the fault is if the keys, the values or both of a layer are the first to be
    wrong."""
    if not (keys and values):
        return f"the {'keys' if keys else 'values'} of layer {layer}"
    source = f"layer {layer - 1}" if layer else "the embedding"
    text = f"the hidden state that {source} returns, or in the norm behind it"
    return f"{text} (keys and values of layer {layer})"


def find_departure(
    run: Generated, reference: Reference, span: slice, mean_db: float = MEAN_MARGIN_DB
) -> Departure | None:
    """Return where the keys or values of a run depart first from the reference's, among the tokens
    in ``span`` or in their mean, whose error may exceed its prediction by ``mean_db``; None if they
    do not. Those of a layer depend only on the layers before it."""
    right, noise = reference.run.caches.astype(np.float64), reference.cache_noise
    count, layers = min(len(run.fed), right.shape[1]), len(right) // 2
    first, end, _ = span.indices(count)
    if end <= first:
        return None
    errors = (run.caches[:, first:end] - right[:, first:end]) ** 2
    errors = np.where(np.isfinite(errors), errors, np.inf).mean(axis=3)  # per head
    # The last row of the ratios is that of the mean.
    usual = noise[..., first:end].mean(axis=2).max(axis=0) * 10 ** (mean_db / 10)
    allowed = np.concatenate([limit(noise)[:, first:end], usual[:, None]], axis=1)
    errors = np.concatenate([errors, errors.mean(axis=1, keepdims=True)], axis=1)
    ratios = errors / np.maximum(allowed, 1e-30)[..., None]
    if end - first < MANY_TOKENS:
        ratios[:, -1] = 0
    token_means = ratios.mean(axis=2)
    for layer in range(layers):
        pair = [layer, layers + layer]
        wrong = np.flatnonzero((token_means[pair] > 1).any(axis=0))
        if wrong.size:
            row = int(wrong[0])
            is_mean = row == end - first
            peaks = token_means[pair].max(axis=1)
            keys, values = (bool(is_wrong) for is_wrong in peaks >= peaks.max() / ALIKE)
            heads = np.flatnonzero((ratios[pair, row] > 1).any(axis=0))
            above = 10 * math.log10(float(token_means[pair, row].max()))
            above += mean_db if is_mean else MARGIN_DB
            token = None if is_mean else first + row
            return Departure(layer, token, keys, values, tuple(map(int, heads)), above)
    return None


def describe_drop(run: Generated, float32: Generated, rounded: Generated, span: slice) -> str:
    """Return at which layer the keys, the values or both are much less like the float32 model's
    than those of ``rounded``, the float32 model with coarse weights and caches; "" if there is no
    such layer. The likeness is the
    SQNR of the tokens in ``span`` after a fit of scale and offset, because a program that others
    lowered contains neither the scales of its caches nor its predicted noise."""
    # The layer with the largest fall of the SQNR would be the wrong one for 10 of 20 planted
    # faults: in stories260k, the natural fall at the values of layer 0, from 29.7 to 18.0 dB, is
    # larger.
    layers = len(run.caches) // 2
    for layer in range(layers):
        pair = [layer, layers + layer]
        right = float32.caches[pair, span]
        reached = list(map(fit_sqnr, run.caches[pair, span], right))  # of keys and values
        expected = list(map(fit_sqnr, rounded.caches[pair, span], right))
        lost = np.subtract(expected, reached)
        worst = int(lost.argmax())
        if lost[worst] > MARGIN_DB:
            keys, values = (bool(is_lost) for is_lost in lost >= lost[worst] - decibels(ALIKE, 1))
            text = f"an SQNR of {reached[worst]:.1f} dB against float32"
            return (
                f"first wrong in {name_place(layer, keys=keys, values=values)}: {text}, but"
                f" {expected[worst]:.1f} dB with coarse rounding"
            )
    return ""


def fit_sqnr(actual: Array, right: Array) -> float:
    """Return the SQNR in dB of values after the best fit of their offset and of their scale, which
    is positive. It is at most BEST_DB and at least -BEST_DB."""
    values = np.stack([actual.ravel(), right.ravel()]).astype(np.float64)
    if not np.isfinite(values).all() or not np.ptp(values, axis=1).all():
        return -BEST_DB
    share = max(float(np.corrcoef(values)[0, 1]), 0.0) ** 2
    return limit_db(decibels(share, 1 - share))


@dataclass(frozen=True)
class Likeness:
    """How similar logits are to the float32 model's for the same text. ``agreement`` is the share
    of steps with the same best token. ``divergence`` is the mean Kullback-Leibler divergence of the
    distributions, in nats."""

    agreement: float
    divergence: float


def compare_float(logits: Array, float32: Array) -> Likeness:
    """Compare logits [step, vocabulary] with those of the float32 model."""
    ours, theirs = log_softmax(logits), log_softmax(float32)
    divergence = (np.exp(theirs) * (theirs - ours)).sum(axis=1)
    is_same = logits.argmax(axis=1) == float32.argmax(axis=1)
    return Likeness(float(is_same.mean()), float(divergence.mean()))


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of the tokens' probabilities, as float64."""
    values = logits.astype(np.float64)
    shifted = values - values.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def measure_perplexity(logits: Array, tokens: Sequence[int]) -> float:
    """Return the perplexity of ``tokens`` for the logits of each step, [step, vocabulary], or
    infinity if a logit is not finite."""
    if not np.isfinite(logits).all():
        return math.inf
    chosen = log_softmax(logits)[np.arange(len(tokens)), np.array(tokens)]
    return float(np.exp(-chosen.mean()))
