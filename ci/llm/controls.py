"""Controls: wrong runs, each with a fault that was observed in a host or a program. The verdict
must reject them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ci.judging.figures import Array
from ci.llm.generation import Generated, Loop, Step
from ci.llm.interface import Interface
from ci.llm.verdict import Reference, Verdict, judge_part
from ci.report.schema import ControlKind


@dataclass(frozen=True)
class Repeated:
    """A program that passed. ``run`` is what it generated after ``prompt``; the verdict compared
    this with ``reference``. ``step`` runs the program. ``eos`` is the token that ends a text."""

    interface: Interface
    step: Step
    prompt: Sequence[int]
    run: Generated
    reference: Reference
    eos: int

    def repeat(
        self,
        spoil: Callable[[Sequence[Array], int], Sequence[Array]] | None = None,
        caches: Callable[[Repeated, Loop], list[Array]] | None = None,
        *,
        in_prefill: bool = True,
    ) -> Iterator[Generated]:
        """Yield wrong runs. Each repeats ``run`` up to a certain step, and computes this step with
        a fault. Every step of ``run`` whose margin exceeds the noise is tried, except the first,
        in the order of decreasing margins.

        In each run, prefill receives the text before the step except its last token, which decode
        receives. ``spoil`` changes the inputs of each call, and ``caches`` returns the caches that
        decode receives. With ``spoil`` and ``in_prefill``, there is also a run per step in which
        prefill receives the whole text.
        """

        def step(arrays: Sequence[Array]) -> Sequence[Array]:
            return self.step(spoil(arrays, self.interface.layers) if spoil else arrays)

        # In 8 bits, rounding can have as large an effect as a fault: with decode positions one too
        # far, the verdict accepts the three steps with the largest margins, and rejects only the
        # fourth.
        margins = self.reference.margins()[1:]
        order = np.argsort(-margins)[: int((margins > 1).sum())]
        for last in order + 1:
            fed = self.run.fed[: len(self.prompt) + last]
            for parts in ([fed[:-1], fed[-1:]], [fed])[: 2 if spoil and in_prefill else 1]:
                loop = Loop(self.interface, step)
                for part in parts[:-1]:
                    loop.feed(part)
                if caches:
                    loop.caches = caches(self, loop)
                row = loop.feed(parts[-1])[-1]
                logits = np.concatenate([self.run.logits[:last], row[None]])
                yield Generated(fed, (*self.run.tokens[:last], int(row.argmax())), logits)


def _token_zero(repeated: Repeated) -> Iterator[Generated]:
    """Choose token 0 in every step: https://github.com/pytorch/executorch/issues/20168"""
    yield replace(repeated.run, tokens=(0,) * len(repeated.run.tokens))


def _top_two(repeated: Repeated) -> Iterator[Generated]:
    yield replace(repeated.run, tokens=tuple(int(row.argsort()[-2]) for row in repeated.run.logits))


def _previous_logits(repeated: Repeated) -> Iterator[Generated]:
    logits = np.concatenate([repeated.run.logits[:1], repeated.run.logits[:-1]])
    yield Generated(repeated.run.fed, tuple(int(row.argmax()) for row in logits), logits)


def _endless(repeated: Repeated) -> Iterator[Generated]:
    """Yield a run in which the text does not end, or nothing if the correct text does not end
    either."""
    if repeated.eos in repeated.run.tokens:
        pairs = zip(repeated.run.tokens, repeated.run.logits, strict=True)
        tokens = (
            int(row.argsort()[-2]) if token == repeated.eos else token for token, row in pairs
        )
        yield replace(repeated.run, tokens=tuple(tokens))


def _shift_caches(arrays: Sequence[Array], layers: int) -> list[Array]:
    caches = [np.roll(cache, 1, 3 if n < layers else 2) for n, cache in enumerate(arrays[3:])]
    return [*arrays[:3], *caches]


def _invert_mask(arrays: Sequence[Array], _: int) -> list[Array]:
    mask = arrays[1]
    return [arrays[0], mask.max() + mask.min() - mask, *arrays[2:]]


def _mask_all(arrays: Sequence[Array], _: int) -> list[Array]:
    """Mask all positions: https://github.com/pytorch/executorch/issues/18812"""
    return [arrays[0], np.full_like(arrays[1], -np.inf), *arrays[2:]]


def _move_on(arrays: Sequence[Array], _: int) -> list[Array]:
    """After a correct prefill, decode at a position that is one too large. If all positions were
    wrong by the same amount, almost nothing would change, because RoPE is relative."""
    off = np.int32(arrays[0].shape[1] == 1)
    return [*arrays[:2], arrays[2] + off, *arrays[3:]]


def _read_other(repeated: Repeated, loop: Loop) -> list[Array]:
    """Return the caches after another prompt."""
    text, reversed_loop = repeated.run.fed[: loop.position], Loop(loop.interface, repeated.step)
    reversed_loop.feed([*text[:1], *reversed(text[1:])])
    return reversed_loop.caches


def _read_nothing(_: Repeated, loop: Loop) -> list[Array]:
    return loop.interface.empty_caches()


MAKERS: Mapping[ControlKind, Callable[[Repeated], Iterator[Generated]]] = {
    ControlKind.TOKEN_ZERO: _token_zero,
    ControlKind.TOP_TWO: _top_two,
    ControlKind.PREVIOUS_LOGITS: _previous_logits,
    ControlKind.ENDLESS: _endless,
    ControlKind.CACHES_SHIFTED: partial(Repeated.repeat, spoil=_shift_caches),
    ControlKind.MASK_INVERTED: partial(Repeated.repeat, spoil=_invert_mask),
    ControlKind.MASK_INFINITE: partial(Repeated.repeat, spoil=_mask_all),
    ControlKind.POSITION_OFF: partial(Repeated.repeat, spoil=_move_on, in_prefill=False),
    ControlKind.OTHER_PROMPT: partial(Repeated.repeat, caches=_read_other),
    ControlKind.PREFILL_IGNORED: partial(Repeated.repeat, caches=_read_nothing),
}


def judge_control(runs: Iterable[Generated], reference: Reference) -> tuple[bool, Verdict | None]:
    """Return whether one of the wrong runs is rejected at a step whose margin exceeds the noise.
    The second value is the verdict on that run. If none is rejected, it is the verdict on the last
    run, or None if there are no runs."""
    decided, verdict = set(np.flatnonzero(reference.decided())), None
    for run in runs:
        verdict = judge_part(run, reference)
        if verdict.rejected & decided:
            return True, verdict
    return False, verdict
