"""Runs foreign programs: decoders that another tool lowered, such as upstream's static Llamas.

The model from which they were lowered is unknown, so their rounding error cannot be predicted. If
float32 weights are available, the tokens and logits are compared with those of a decoder with these
weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ci.cases.engine import needed
from ci.judging.figures import Array
from ci.llm.generation import (
    Loop,
    StaticProgram,
    Step,
    code_step,
    count_same,
    eager_step,
    run_decode,
    run_forced,
    run_free,
)
from ci.llm.interface import DECODE, MASKED, PREFILL, Border, Coding, Interface
from ci.llm.tokenizers import Tokenizer, read_tokenizer
from ci.llm.verdict import Likeness, compare_float, describe_drop
from ci.models.numerics import fix_numerics
from ci.models.tensors import TensorInfo
from provisioning.errors import UsageError

# The bits of weights and caches to which the float32 model is rounded for comparison, by whether
# the program's caches are integers. 10 bits have about the noise of a program in float16.
# With 4 and 8 bits, keys and values are within 4 dB of those of ExecuTorch's stories260k.
COARSE = {True: (4, 8), False: (10, 10)}
WIDTHS = {"uint8": 8, "uint16": 16, "float32": 32}
INTEGERS = ("uint8", "uint16")
# ExecuTorch's scalar types, with numpy's names.
DTYPES = {0: "uint8", 3: "int32", 4: "int64", 6: "float32", 27: "uint16"}


@dataclass(frozen=True)
class Declared:
    """What a program declares: the constants that its methods without inputs return, and the
    inputs and outputs of prefill and decode."""

    constants: Mapping[str, Any]
    inputs: Mapping[str, tuple[TensorInfo, ...]]
    outputs: Mapping[str, tuple[TensorInfo, ...]]


def read_interface(name: str, declared: Declared) -> Interface:
    """Return the interface of the program ``name`` if it is like upstream's static Llama. Raises
    UsageError if the program has a different interface, or constants that do not match its
    tensors."""
    missing = [name for name in (PREFILL, DECODE) if name not in declared.inputs]
    if missing:
        raise UsageError(
            f"{name} has no method {missing[0]}",
            why="only ExecuTorch's static Llamas with prefill and decode are supported",
        )
    decode, prefill = declared.inputs[DECODE], declared.inputs[PREFILL]
    layers = (len(decode) - 3) // 2
    try:
        _, heads, head_dim, left = decode[3].shape
        _, count, vocabulary = declared.outputs[DECODE][0].shape
        size, context = prefill[0].shape[1], decode[1].shape[3]
    except (IndexError, ValueError) as error:
        raise _refuse(
            name,
            "the shapes of its first inputs are not a static Llama's:"
            f" {[info.shape for info in decode[:4]]}",
        ) from error
    constants = declared.constants
    interface = Interface(
        layers=layers,
        kv_heads=heads,
        head_dim=head_dim,
        vocabulary=vocabulary,
        context=context,
        prefill=size,
    )
    if (count, left) != (1, context - 1) or size < 2:
        raise _refuse(
            name,
            f"tokens per call: {size} in prefill (2 or more expected), {count} in decode (1"
            f" expected); tokens in the caches of decode: {left} ({context - 1} expected)",
        )
    for method, taken in ((PREFILL, size), (DECODE, 1)):
        _require_caches(name, interface, declared.inputs[method][3:], taken)
    expected = {
        "get_n_layers": layers,
        "get_n_kv_heads": heads,
        "get_head_dim": head_dim,
        "get_vocab_size": vocabulary,
        "get_max_context_len": context,
        "get_kv_io_bit_width": WIDTHS.get(decode[3].dtype),
    }
    for constant, number in expected.items():
        if constant in constants and constants[constant] != number:
            raise UsageError(
                f"{name} contradicts itself",
                why=f"{constant} returns {constants[constant]}, but its tensors imply {number}",
                fix="export the program again: its metadata belongs to another model",
            )
    if declared.outputs[DECODE][0].dtype != "float32" and not constants.get("get_logits_scale"):
        raise _refuse(name, "its logits are integers, but it has no method get_logits_scale")
    return interface


def read_border(declared: Declared, method: str) -> Border:
    """Return the codings of the inputs and outputs of a method. The scale of integer caches is
    unknown, so their integers are passed on unchanged."""
    constants = declared.constants
    mask, logits = declared.inputs[method][1], declared.outputs[method][0]
    most = np.iinfo(mask.dtype).max if mask.dtype in INTEGERS else 1

    def code(info: TensorInfo, scale: float = 1.0, zero_point: int = 0) -> Coding | None:
        return Coding(scale, zero_point, info.dtype) if info.dtype in INTEGERS else None

    _, _, _, *taken = map(code, declared.inputs[method])
    _, *caches = map(code, declared.outputs[method])
    scale, zero_point = (
        constants.get(f"get_logits_{field}", 0) for field in ("scale", "zero_point")
    )
    return Border(
        (None, code(mask, -MASKED / most, most), None, *taken),
        (code(logits, float(scale), int(zero_point)), *caches),
    )


def _require_caches(
    name: str, interface: Interface, caches: tuple[TensorInfo, ...], taken: int
) -> None:
    left = interface.context - taken
    key, value = (interface.head_dim, left), (left, interface.head_dim)
    shapes = [
        (1, interface.kv_heads, *shape)
        for shape in [key] * interface.layers + [value] * interface.layers
    ]
    if [info.shape for info in caches] != shapes:
        raise _refuse(
            name,
            f"the caches of {'prefill' if taken > 1 else 'decode'} do not all have the expected"
            f" shapes, such as {shapes[0]}",
        )


def _refuse(name: str, why: str) -> UsageError:
    return UsageError(f"{name} is not a static Llama that is supported here", why=why)


def read_declared(path: Path) -> Declared:
    """Return what a program declares. This runs its methods without inputs."""
    from ci.executorch import internals

    program = internals.pybindings._load_program(str(path))
    constants: dict[str, Any] = {}
    inputs, outputs = {}, {}
    for name in (program.get_method_name(number) for number in range(program.num_methods())):
        meta = program.method_meta(name)
        if meta.num_inputs():
            inputs[name] = _list_infos(meta.num_inputs(), meta.input_tensor_meta)
            outputs[name] = _list_infos(meta.num_outputs(), meta.output_tensor_meta)
        else:
            values = program.load_method(name)([])
            constants[name] = values[0] if len(values) == 1 else tuple(values)
    return Declared(constants, inputs, outputs)


def _list_infos(count: int, describe: Any) -> tuple[TensorInfo, ...]:
    metas = [describe(number) for number in range(count)]
    return tuple(
        TensorInfo(DTYPES.get(int(meta.dtype()), f"type {meta.dtype()}"), tuple(meta.sizes()))
        for meta in metas
    )


@dataclass(frozen=True)
class Foreign:
    """The result of a foreign program. ``same_count`` and ``likeness`` need float32 weights."""

    tokens: tuple[int, ...]  # the generated tokens, without the prompt
    # The first of these tokens as chosen by the decode method without prefill.
    alone: tuple[int, ...]
    step_s: float  # the mean time of a decode step in seconds
    same_count: int | None = None  # how many tokens at the start equal those of the float32 model
    likeness: Likeness | None = None  # of the logits for the program's text
    where: tuple[str, ...] = ()  # the first layers with wrong keys or values, in prefill and decode
    faults: tuple[str, ...] = ()  # the reasons to reject the program


@dataclass(frozen=True)
class ForeignJob:
    """A job that opens a program and generates text. ``weights`` are float32 weights for
    comparison, or None."""

    path: Path
    tokenizer: Path
    prompt: str
    tokens: int
    weights: Path | None = None

    def __call__(self) -> tuple[Foreign, str]:
        """Check that program, tokenizer and weights match, and generate text. Return the result and
        the text. Raises UsageError if they do not match, or if the prompt is too long."""
        fix_numerics()
        declared = read_declared(self.path)
        with needed("the interface of the program"):
            interface = read_interface(self.path.name, declared)
            borders = {
                size: read_border(declared, method)
                for size, method in {1: DECODE, interface.prefill: PREFILL}.items()
            }
        tokenizer = read_tokenizer(self.tokenizer)
        constants = declared.constants
        tokenizer.require(
            self.path.name,
            vocabulary=interface.vocabulary,
            bos=constants.get("get_bos_id"),
            eos=constants.get("get_eos_id"),
        )
        program = StaticProgram(self.path)
        coded = borders[1].inputs[3] is not None
        answers = self.generate(
            interface, tokenizer, code_step(program.call, borders), is_coded=coded
        )
        step_s = program.finish()
        prompt = tokenizer.prompt(self.prompt)
        return (
            replace(answers, step_s=step_s),
            tokenizer.decode((*prompt, *answers.tokens)),
        )

    def generate(
        self, interface: Interface, tokenizer: Tokenizer, step: Step, *, is_coded: bool = False
    ) -> Foreign:
        """Generate tokens with prefill and decode, repeat the first of them with decode alone, and
        compare them with float32 if there are weights. ``is_coded`` is true if the caches are
        integers. Raises UsageError if the prompt is too long."""
        prompt = tokenizer.prompt(self.prompt)
        room = interface.context - len(prompt) - interface.prefill
        if room < 1:
            raise UsageError(
                f"a prompt of {len(prompt)} tokens does not fit in a context of"
                f" {interface.context} tokens",
                why=f"each call of prefill needs room for {interface.prefill} tokens",
            )
        count = min(self.tokens, room)
        free = run_free(Loop(interface, step), prompt, count, (tokenizer.eos,))
        alone = run_decode(Loop(interface, step), free.fed[: len(prompt) + 4])
        after = alone.tokens[len(prompt) - 1 :]
        with needed("the faults in the tokens and logits"):
            faults = list(find_faults(free.tokens, free.logits))
        if after != free.tokens[: len(after)]:
            expected = free.tokens[: len(after)]
            faults.append(
                f"decode alone yields {after}, but decode after prefill yields {expected}"
            )
        if not self.weights:
            return Foreign(free.tokens, after, 0.0, faults=tuple(faults))
        with needed("the comparison with float32"):
            decoder = self.load(interface)
            methods = dict.fromkeys((1, interface.prefill), decoder)
            plain = eager_step(methods)
            float32 = run_forced(Loop(interface, plain), prompt, free.fed[len(prompt) :])
            text = run_free(Loop(interface, plain), prompt, count, (tokenizer.eos,)).tokens
            same_count = count_same(free.tokens, text)
            likeness = compare_float(free.logits, float32.logits)
        where: tuple[str, ...] = ()
        if faults or likeness.agreement < 1:
            with needed("the layer at which the program departs"):
                coarse = coarse_step(methods, float32.caches, *COARSE[is_coded])
                rounded = run_forced(Loop(interface, coarse), prompt, free.fed[len(prompt) :])
                spans = {"prefill": slice(len(prompt)), "decode": slice(len(prompt), None)}
                drops = []
                for name, span in spans.items():
                    has_caches = free.caches[:, span].size
                    if has_caches and (drop := describe_drop(free, float32, rounded, span)):
                        drops.append(f"{name}: {drop}")
                where = tuple(drops)
        return Foreign(free.tokens, after, 0.0, same_count, likeness, where, tuple(faults))

    def load(self, interface: Interface) -> Any:
        """Return the float32 decoder. Raises UsageError if the weights and the program have
        different dimensions."""
        from ci.llm.decoder import make_decoder
        from ci.llm.weights import read_weights

        path = self.weights or Path()
        config, weights = read_weights(path)
        for name in ("layers", "kv_heads", "head_dim", "vocabulary"):
            from_config, from_program = getattr(config, name), getattr(interface, name)
            if from_config != from_program:
                raise UsageError(
                    f"{path.name} does not contain the weights of {self.path.name}",
                    why=f"it has {name} = {from_config}, but the program has {name} ="
                    f" {from_program}",
                )
        return make_decoder(config, weights, interface.context)


def coarse_step(
    methods: Mapping[int, Any], caches: Array, weight_bits: int, cache_bits: int
) -> Step:
    """Return the step of a decoder after rounding its weights, in place, to integers with a scale
    for each row, and its keys and values to the range of ``caches`` (see Loop.read_caches)."""
    import torch

    with torch.no_grad():
        for weight in methods[1].parameters():
            if weight.dim() > 1:
                most = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12)
                scale = most / (2 ** (weight_bits - 1) - 1)
                weight.copy_((weight / scale).round() * scale)
    plain = eager_step(dict(methods))
    lows = caches.min(axis=(1, 2, 3))
    scales = np.maximum(np.ptp(caches, axis=(1, 2, 3)), 1e-12) / (2**cache_bits - 1)

    def step(arrays: Sequence[Array]) -> list[Array]:
        logits, *caches = plain(arrays)
        rows = zip(caches, lows, scales, strict=True)
        steps = [(np.rint((cache - low) / scale), low, scale) for cache, low, scale in rows]
        return [logits, *((cache * scale + low).astype(np.float32) for cache, low, scale in steps)]

    return step


def find_faults(tokens: tuple[int, ...], logits: Array) -> list[str]:
    """Return a list with at most one fault, which no correct program has, whatever its model is."""
    if not np.isfinite(logits).all():
        return ["the logits are not finite"]
    if float(np.ptp(logits, axis=1).min()) == 0.0:
        return ["all logits of a step are the same"]
    if len(tokens) > 4 and len(set(tokens)) == 1:
        return [f"every token is {tokens[0]} (executorch issue 20168)"]
    if len(logits) > 1 and (logits == logits[:1]).all():
        return ["the logits are the same at every step"]
    return []
