"""Generates with a bundle as LiteRT-LM does on an NPU, and once more token by token, without its
auxiliary graphs for prefill and for the caches.

BundleLoop does what LiteRT-LM's executor does (runtime/executor/
llm_litert_npu_compiled_model_executor.cc at 767d74f): Prefill (line 1060) passes a prompt on in
chunks; PrefillInternal (line 1123) puts the last token of each chunk aside, which is the first of
the next one (lines 1169 to 1191), and calls embedder, RoPE, mask, decoder and cache update in this
order (lines 1195 to 1332); so does Decode (line 1337) with one token. Places without a token are 0.
Since 004ee26, masks and cache updates have an input valid_mask, which is true where there is one.
GetOptimizedPrefillWorkGroups in litert_compiled_model_executor_utils.cc makes the chunks: of one
size, as long as a model has one prefill signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ci.judging.figures import Array
from ci.llm.bundle_file import (
    AUXILIARY,
    DECODE,
    EMBEDDER,
    MAIN,
    PREFILL,
    SLICE,
    Cache,
    find_embedding,
)
from ci.llm.bundle_models import Arrays, OpenBundle
from ci.llm.generation import Generated
from provisioning.doctor.survey.context_binaries import TensorSpec

NO_CACHES = np.zeros((0, 0, 0, 0), np.float32)


def restore(port: TensorSpec, array: Array) -> Array:
    """Return the numbers of a tensor as float32."""
    if port.scale is None or array.dtype.kind == "f":
        return np.asarray(array, np.float32)
    return (array.astype(np.float32) - np.float32(port.zero_point or 0)) * np.float32(port.scale)


def list_rows(cache: Cache, array: Array) -> Array:
    """Return a cache as [token, head, dim], a view."""
    return np.moveaxis(array[0], cache.axis - 1, 0)


def make_caches(bundle: OpenBundle) -> dict[str, Array]:
    """Return caches without tokens: zero bytes, as LiteRT-LM clears its buffers."""
    return {
        cache.name: np.zeros(cache.port.shape, cache.port.dtype) for cache in bundle.file.caches
    }


# Changes what a stage of a call passes on: takes the number of the call, the stage (positions, mask
# or caches) and the arrays.
Spoil = Callable[[int, str, dict[str, Array]], Mapping[str, Array]]


def keep(call: int, stage: str, arrays: dict[str, Array]) -> Mapping[str, Array]:
    """Change nothing."""
    del call, stage
    return arrays


@dataclass
class BundleLoop:
    """A conversation with a bundle whose prompts are passed on in chunks of ``chunk`` tokens.

    ``position`` tokens are in the caches. ``calls`` are the numbers of tokens that each call added.
    ``rows`` are the keys and values that each call wrote, read right after it: [cache, token, head,
    dim] per call. ``overwritten`` are the calls that changed what earlier ones wrote.
    """

    bundle: OpenBundle
    chunk: int
    spoil: Spoil = keep
    position: int = 0
    calls: list[int] = field(default_factory=list)
    rows: list[Array] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    caches: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.caches = make_caches(self.bundle)

    def prefill(self, tokens: Sequence[int]) -> int:
        """Pass a prompt on in chunks, except its last token, and return this token. Raises
        ValueError if it exceeds the context."""
        pending: list[int] = []
        for start in range(0, len(tokens), self.chunk):
            part = [*pending, *tokens[start : start + self.chunk]]
            self.call(part[:-1], self.chunk)
            pending = part[-1:]
        return pending[0]

    def read_prompt(self, tokens: Sequence[int]) -> Array:
        """Pass a prompt on, and return the logits of its last token [vocabulary]. Raises ValueError
        if it exceeds the context."""
        if self.bundle.file.keeps_last:
            return self.decode(self.prefill(tokens))
        logits: Array = np.zeros(0, np.float32)
        for start in range(0, len(tokens), self.chunk):
            part = tokens[start : start + self.chunk]
            logits = read_logits(self.bundle, self.call(part, self.chunk), len(part) - 1)
        return logits

    def decode(self, token: int) -> Array:
        """Pass one token on, and return its logits [vocabulary]."""
        return read_logits(self.bundle, self.call([token], 1), 0)

    def call(self, tokens: Sequence[int], size: int) -> Arrays:
        """Call the signatures for ``size`` tokens once, and return the decoder's outputs. Raises
        ValueError if ``size`` more tokens exceed the context."""
        if self.position + size > self.bundle.file.context:
            raise ValueError(f"{self.position} and {size} more tokens exceed the context")
        prefix, suffix = (PREFILL, f"_{size}") if size > 1 else (DECODE, "")
        count, number = len(tokens), len(self.calls)
        ids = np.zeros((1, size), np.int32)
        ids[0, :count] = tokens
        positions = np.zeros(size, np.int32)
        positions[:count] = self.position + np.arange(count)
        is_valid = np.zeros((1, size), bool)
        is_valid[0, :count] = True
        usual: dict[str, Array] = {
            "input_pos": positions,
            "time_step": np.array(self.position, np.int32),
            "input_tokens": ids,
            "valid_mask": is_valid,
        }
        bundle = self.bundle
        main = f"{prefix}{suffix}"
        inputs = embed(bundle, f"{prefix}_embedder{suffix}", ids, main)
        spoiled = self.spoil(number, "positions", dict(usual))
        inputs |= self.auxiliary(f"{prefix}_rope{suffix}", spoiled)
        mask = self.auxiliary(f"{prefix}_mask{suffix}", usual)
        inputs |= self.spoil(number, "mask", dict(mask))
        outputs = bundle.main.run(main, {**inputs, **choose_caches(bundle, main, self.caches)})
        slices = {name: array for name, array in outputs.items() if name.startswith(SLICE)}
        update = {**usual, **slices, **self.caches}
        written = self.auxiliary(f"{prefix}_cache_update{suffix}", update)
        written = self.spoil(number, "caches", {**self.caches, **written})
        self.record(dict(written), count)
        return outputs

    def auxiliary(self, signature: str, arrays: Arrays) -> Arrays:
        """Run an auxiliary graph with those of the arrays that it takes."""
        ports = self.bundle.file.signatures[AUXILIARY][signature].inputs
        shaped = {port.name: arrays[port.name].reshape(port.shape) for port in ports}
        return self.bundle.auxiliary.run(signature, shaped)

    def record(self, written: dict[str, Array], count: int) -> None:
        """Note what a call wrote into the caches, and what it changed in them."""
        start, added = self.position, []
        is_changed = False
        for cache in self.bundle.file.shared_caches:
            old, new = (list_rows(cache, arrays[cache.name]) for arrays in (self.caches, written))
            is_changed |= not np.array_equal(old[:start], new[:start])
            added.append(restore(cache.port, new[start : start + count]))
        if is_changed:
            self.overwritten.append(len(self.calls))
        self.rows.append(np.stack(added))
        self.calls.append(count)
        self.position += count
        self.caches = written

    def collect(self, fed: Sequence[int], logits: Sequence[Array]) -> Generated:
        """Return the generation of this loop, from the logits of each step."""
        tokens = tuple(int(np.argmax(row)) for row in logits)
        return Generated(tuple(fed), tokens, np.stack(logits), np.concatenate(self.rows, axis=1))


def choose_caches(bundle: OpenBundle, main: str, caches: Arrays) -> dict[str, Array]:
    """Return the caches as a signature of the decoder takes them: an empty one if it has another
    type there."""
    chosen = {}
    for port in bundle.file.signatures[MAIN][main].inputs:
        if port.name in caches:
            cache = caches[port.name]
            is_same = cache.dtype == np.dtype(port.dtype)
            chosen[port.name] = cache if is_same else np.zeros(port.shape, port.dtype)
    return chosen


def embed(bundle: OpenBundle, signature: str, ids: Array, main: str) -> dict[str, Array]:
    """Return the embeddings of tokens, by the name that the decoder's signature has for them."""
    method = bundle.file.signatures[EMBEDDER][signature]
    (embedded,) = bundle.embedder.run(signature, {method.inputs[0].name: ids}).values()
    port = find_embedding(bundle.file.signatures[MAIN][main])
    return {port.name: embedded} if port else {}


def read_logits(bundle: OpenBundle, outputs: Arrays, row: int) -> Array:
    """Return the logits of a token of a call as float32 [vocabulary]."""
    port = bundle.file.logits
    return restore(port, outputs[port.name]).reshape(-1, port.shape[-1])[row]


Disturb = Callable[[Array], Array]


@dataclass
class ReferenceLoop:
    """A conversation token by token, with decode alone. The caches are written here instead of by
    the auxiliary graphs. ``disturb`` changes embeddings, keys and values."""

    bundle: OpenBundle
    disturb: Disturb = np.array
    position: int = 0
    rows: list[Array] = field(default_factory=list)
    caches: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.caches = make_caches(self.bundle)

    def decode(self, token: int) -> Array:
        """Pass one token on, and return its logits [vocabulary]."""
        bundle = self.bundle
        ids, position = np.array([[token]], np.int32), np.array([self.position], np.int32)
        arrays: dict[str, Array] = {
            "input_pos": position,
            "time_step": position,
            "input_tokens": ids,
            "valid_mask": np.ones((1, 1), bool),
        }
        embedded = embed(bundle, f"{DECODE}_embedder", ids, DECODE)
        inputs = {name: self.change(array) for name, array in embedded.items()}
        for word in ("rope", "mask"):
            signature = f"{DECODE}_{word}"
            ports = bundle.file.signatures[AUXILIARY][signature].inputs
            shaped = {port.name: arrays[port.name].reshape(port.shape) for port in ports}
            inputs |= bundle.auxiliary.run(signature, shaped)
        outputs = bundle.main.run(DECODE, {**inputs, **choose_caches(bundle, DECODE, self.caches)})
        added = []
        for cache in bundle.file.shared_caches:
            new = list_rows(cache, self.change(outputs[cache.slice_name]))
            list_rows(cache, self.caches[cache.name])[self.position] = new[0]
            added.append(restore(cache.port, new))
        self.rows.append(np.stack(added))
        self.position += 1
        return read_logits(bundle, outputs, 0)

    def change(self, array: Array) -> Array:
        """Return floats as ``disturb`` changes them. Integers are encoded coarsely enough."""
        return self.disturb(array).astype(array.dtype) if array.dtype.kind == "f" else array

    def run(self, tokens: Sequence[int]) -> Generated:
        """Return the logits and the most likely token after each of the tokens."""
        logits = [self.decode(token) for token in tokens]
        chosen = tuple(int(np.argmax(row)) for row in logits)
        return Generated(tuple(tokens), chosen, np.stack(logits), np.concatenate(self.rows, axis=1))
