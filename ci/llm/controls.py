"""What the verdict has to reject: runs with one fault each, as hosts and programs had them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ci.judging.figures import Array
from ci.llm.generation import Generated, Loop, Step
from ci.llm.interface import Interface
from ci.llm.verdict import Reference, Verdict, judge_forced
from ci.report.schema import ControlKind

STEPS = 8  # of a control that runs the program again


@dataclass(frozen=True)
class Repeated:
    """A program that passed: its ``run`` after ``prompt``, what runs it, and the ``caches`` that it
    has after another prompt of the same length."""

    interface: Interface
    step: Step
    prompt: Sequence[int]
    run: Generated
    eos: int

    def repeat(
        self,
        spoil: Callable[[Sequence[Array], int], Sequence[Array]] | None = None,
        caches: Callable[[Loop], list[Array]] | None = None,
    ) -> Generated:
        """Run the prompt and STEPS tokens again. ``spoil`` changes what the method takes, once the
        prompt is in the caches; ``caches`` gives other caches then."""
        spoiling = False

        def step(arrays: Sequence[Array]) -> Sequence[Array]:
            return self.step(spoil(arrays, self.interface.layers) if spoil and spoiling else arrays)

        loop = Loop(self.interface, step)
        first = loop.feed(self.prompt)[-1]
        spoiling = True
        if caches:
            loop.caches = caches(loop)
        given = self.run.fed[len(self.prompt) :][:STEPS]
        rows = [first, *(loop.feed([token])[0] for token in given)]
        fed = (*self.prompt, *given)
        return Generated(fed, tuple(int(np.argmax(row)) for row in rows), np.stack(rows))


def _token_zero(one: Repeated) -> Generated:
    """https://github.com/pytorch/executorch/issues/20168"""
    return replace(one.run, tokens=(0,) * len(one.run.tokens))


def _top_two(one: Repeated) -> Generated:
    return replace(one.run, tokens=tuple(int(row.argsort()[-2]) for row in one.run.logits))


def _previous_logits(one: Repeated) -> Generated:
    logits = np.concatenate([one.run.logits[:1], one.run.logits[:-1]])
    return Generated(one.run.fed, tuple(int(row.argmax()) for row in logits), logits)


def _endless(one: Repeated) -> Generated | None:
    """A text that never ends: None if the right one does not either."""
    if one.eos not in one.run.tokens:
        return None
    pairs = zip(one.run.tokens, one.run.logits, strict=True)
    tokens = (int(row.argsort()[-2]) if token == one.eos else token for token, row in pairs)
    return replace(one.run, tokens=tuple(tokens))


def _caches_shifted(one: Repeated) -> Generated:
    def spoil(arrays: Sequence[Array], layers: int) -> list[Array]:
        caches = [np.roll(held, 1, 3 if n < layers else 2) for n, held in enumerate(arrays[3:])]
        return [*arrays[:3], *caches]

    return one.repeat(spoil)


def _mask_inverted(one: Repeated) -> Generated:
    def spoil(arrays: Sequence[Array], _: int) -> list[Array]:
        mask = arrays[1]
        return [arrays[0], (mask.max() + mask.min() - mask).astype(mask.dtype), *arrays[2:]]

    return one.repeat(spoil)


def _mask_infinite(one: Repeated) -> Generated:
    """Nothing is attended; https://github.com/pytorch/executorch/issues/18812"""

    def spoil(arrays: Sequence[Array], _: int) -> list[Array]:
        least = -np.inf if arrays[1].dtype.kind == "f" else 0
        return [arrays[0], np.full_like(arrays[1], least), *arrays[2:]]

    return one.repeat(spoil)


def _position_off(one: Repeated) -> Generated:
    def spoil(arrays: Sequence[Array], _: int) -> list[Array]:
        return [*arrays[:2], arrays[2] + np.int32(1), *arrays[3:]]

    return one.repeat(spoil)


def _other_prompt(one: Repeated) -> Generated:
    def caches(loop: Loop) -> list[Array]:
        other = Loop(loop.interface, one.step)
        other.feed([*one.prompt[:1], *reversed(one.prompt[1:])])
        return other.caches

    return one.repeat(caches=caches)


def _prefill_ignored(one: Repeated) -> Generated:
    return one.repeat(caches=lambda loop: loop.interface.empty_caches())


MAKERS: Mapping[ControlKind, Callable[[Repeated], Generated | None]] = {
    ControlKind.TOKEN_ZERO: _token_zero,
    ControlKind.TOP_TWO: _top_two,
    ControlKind.PREVIOUS_LOGITS: _previous_logits,
    ControlKind.ENDLESS: _endless,
    ControlKind.CACHES_SHIFTED: _caches_shifted,
    ControlKind.MASK_INVERTED: _mask_inverted,
    ControlKind.MASK_INFINITE: _mask_infinite,
    ControlKind.POSITION_OFF: _position_off,
    ControlKind.OTHER_PROMPT: _other_prompt,
    ControlKind.PREFILL_IGNORED: _prefill_ignored,
}


def judge_control(run: Generated, reference: Reference) -> tuple[bool, Verdict]:
    """Return whether a wrong run is rejected at a step whose margin is above the noise."""
    steps = len(run.tokens)
    wanted = replace(
        reference.run,
        fed=run.fed,
        tokens=reference.run.tokens[:steps],
        logits=reference.run.logits[:steps],
    )
    verdict = judge_forced(run, Reference(wanted, reference.noise[:, :steps]))
    decided = set(np.flatnonzero(reference.decided()[:steps]))
    return bool(verdict.rejected & decided), verdict
