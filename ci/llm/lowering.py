"""The engine of test_llm. It lowers a decoder to a program with two methods, and runs the models
with which the program is compared."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from ci.cases.cache import digest_rooms, hash_words
from ci.cases.engine import Compiled, Staging, needed
from ci.cases.spec import CaseSpec
from ci.executorch.engine import load_compiler
from ci.facts.finding import Finding
from ci.judging.figures import Array
from ci.llm.generation import (
    Generated,
    Loop,
    Step,
    eager_step,
    run_decode,
    run_forced,
    run_free,
)
from ci.llm.interface import DECODE, PREFILL, Border, Coding, Interface, describe_methods
from ci.llm.recipes import RECIPES
from ci.llm.verdict import Reference, measure_perplexity
from ci.models.lowering_options import NO_CHOICES, Choices
from ci.models.numerics import NUMERICS, fix_numerics, name_instructions
from ci.models.rounding import digest_terms, read_terms
from provisioning.documents import CONTENT_BYTES, read_bytes
from provisioning.errors import FailedError
from provisioning.files import hash_file
from provisioning.manifest.targets import Backend

ROOMS = ("analysis", "graphs", "models", "cases", "executorch", "llm")
RUNS = "runs.msgpack"
DISTURBED_RUNS = 3  # per prediction; each is a whole generation
ALONE = 2  # the number of tokens after the prompt that are also decoded without prefill


@dataclass(frozen=True)
class Subject:
    """The model to lower. Quantization ranges are calibrated on the float32 model's texts for all
    prompts."""

    weights: Path  # a file or directory
    prompts: tuple[tuple[int, ...], ...]  # token ids; the program is judged on the first prompt
    tokens: int  # the most tokens to generate after the first prompt
    context: int  # the number of tokens that fit into the caches and a call together
    prefill: int  # the number of tokens that a call of prefill takes
    bos: int
    eos: int
    # Windows of token ids, on which the perplexity is measured.
    text: tuple[tuple[int, ...], ...] = ()
    max_perplexity: float | None = None  # the limit for the perplexity

    def digest(self) -> str:
        """Return the SHA-256 of the contents of the weights and of all fields except
        ``max_perplexity``, which does not affect the program."""
        files = sorted(self.weights.iterdir()) if self.weights.is_dir() else [self.weights]
        hashes = [
            hash_file(path) for path in files if path.suffix in {".bin", ".json", ".safetensors"}
        ]
        words = (self.prompts, self.tokens, self.context, self.prefill, self.bos, self.eos)
        return hash_words(*hashes, msgspec.json.encode((*words, self.text)).decode())

    def perplexity(self, interface: Interface, step: Step) -> float | None:
        """Return the perplexity on the text for the program or model that ``step`` runs, or None if
        there is no text."""
        if not self.text:
            return None
        rows = [Loop(interface, step).feed(window)[:-1] for window in self.text]
        logits = np.concatenate(rows)  # that predict all tokens of each window except its first
        return measure_perplexity(logits, [token for window in self.text for token in window[1:]])


@dataclass(frozen=True)
class LlmEngine:
    """Quantizes and lowers decoders with ExecuTorch. ``toolchain`` lists the versions and digests
    of all tools involved. ``subject`` is None for foreign programs, which are not lowered.
    ``plain`` disables the patches of ci.executorch.patches."""

    toolchain: tuple[str, ...]
    subject: Subject | None = None
    plain: bool = False
    imports = ("ci.executorch.runtime", "ci.llm.lowering", "ci.models.model")

    def preload(self, spec: CaseSpec) -> None:
        """Compute the digest of the code before a worker forks, once for all cases."""
        del spec
        digest_rooms(ROOMS)

    def key(self, spec: CaseSpec) -> str:
        """Return the SHA-256 of everything that determines the program and its references. Raises
        FailedError if the engine is for foreign programs."""
        recipes = (spec.scheme.recipe, RECIPES[spec.scheme.base])
        return hash_words(
            self.require_subject().digest(),
            *self.toolchain,
            digest_rooms(ROOMS),
            digest_terms(),
            NUMERICS,
            name_instructions(),
            msgspec.json.encode(recipes).decode(),
            spec.soc,
            "plain" if self.plain else "",
        )

    def read_data(self, spec: CaseSpec) -> int:
        """Return 0: a decoder is judged on its prompts, not on samples of the user's."""
        del spec
        return 0

    def warm_up(self, spec: CaseSpec) -> None:
        """Load and patch ExecuTorch before the worker forks, and log which patches are disabled."""
        del spec
        load_compiler(plain=self.plain)

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        """Write the program and its reference runs to ``staging``. Raises FailedError as
        DecoderLowering.write does, or if the engine is for foreign programs."""
        fix_numerics()
        return DecoderLowering(self.require_subject(), spec, staging).write()

    def require_subject(self) -> Subject:
        """Return the model to lower. Raises FailedError if the engine is for foreign programs."""
        if self.subject is None:
            raise FailedError("this engine has no model to lower")
        return self.subject

    def explain(self, error: Exception, log: Path) -> Finding:
        """Return why a decoder was refused, from the exception of ``compile`` and QNN's log."""
        from ci.executorch.lower import describe_refusal

        return describe_refusal(error, log)


@dataclass(frozen=True)
class DecoderLowering:
    """Lowers a decoder to a program in ``staging``."""

    subject: Subject
    spec: CaseSpec
    staging: Staging

    def write(self) -> Compiled:
        """Calibrate and quantize the decoder on texts of the float32 model, run the models for
        comparison, and lower the decoder. Write the program and the reference runs. Raises
        FailedError if a text is too short, if the methods quantize a cache differently, or if the
        program cannot be mapped into memory."""
        from ci.executorch.internals import utils
        from ci.executorch.lower import Lowering
        from ci.llm.decoder import make_decoder
        from ci.llm.weights import read_weights
        from ci.models.model import Methods, Model, digest_weights

        subject = self.subject
        config, weights = read_weights(subject.weights)
        masked = RECIPES[self.spec.scheme.base].masked
        with needed("the texts of the float32 model"):
            interface = Interface.of(config, subject.context, subject.prefill, masked)
            decoder = make_decoder(config, weights, subject.context)
            sets = self.collect_inputs(decoder, interface)
        quantized = self.spec.scheme.quantized
        self.staging.enter("quantize" if quantized else "reference")
        # Upstream lowers linear layers as 1x1 convolutions, too.
        convolutions = utils.convert_linear_to_conv2d(copy.deepcopy(decoder))
        modules = self.quantize(convolutions, sets)
        self.staging.enter("reference")
        with needed("the reference runs"):
            borders = {size: find_border(subject) for size, subject in modules.items() if quantized}
            require_caches(borders, config.layers)
            runs = self.run_references(decoder, modules, interface, sets, borders)
            write_runs(runs, self.staging.directory)
        counts = {name: len(sets[size][0]) for name, size in self.methods.items()}
        joined = Methods({name: modules[size] for name, size in self.methods.items()}, counts)
        example = tuple(tensor for size in self.methods.values() for tensor in sets[size][0])
        lowering = Lowering(
            Model(self.spec.model, joined, (example,), ()),
            self.spec,
            self.staging,
            Backend.HTP,
            describe_methods(config, subject.context, subject.bos, subject.eos, borders.get(1)),
            # Otherwise, upstream's runner fails with "Output 0 is memory planned".
            runner_io=True,
        )
        self.staging.enter("lower")
        return lowering.write_compiled(
            joined,
            NO_CHOICES,
            methods=tuple(self.methods),
            weights=digest_weights(decoder),
            calibration=hashlib.sha256(repr(subject.prompts).encode()).hexdigest(),
        )

    @property
    def methods(self) -> dict[str, int]:
        """Return the number of tokens that each method takes."""
        return {PREFILL: self.subject.prefill, DECODE: 1}

    def collect_inputs(self, decoder: Any, interface: Interface) -> dict[int, list[Any]]:
        """Return the inputs that each method gets while it processes the float32 model's texts for
        all prompts, as tuples of tensors. The keys are the numbers of tokens that the methods take.

        The length of a text is reduced to a multiple of the number of tokens that prefill takes,
        and both methods process all texts. They therefore get the same ranges for the caches, which
        they share. Raises FailedError if a text is too short.
        """
        import torch

        subject = self.subject
        samples: dict[int, list[Any]] = {1: [], subject.prefill: []}
        plain = eager_step(dict.fromkeys(samples, decoder))

        def step(arrays: Sequence[Array]) -> Sequence[Array]:
            sample = tuple(torch.from_numpy(np.array(array)) for array in arrays)
            samples[arrays[0].shape[1]].append(sample)
            return plain(arrays)

        for prompt in subject.prompts:
            room = subject.context // subject.prefill * subject.prefill
            text = run_free(
                Loop(interface, plain), prompt, room - len(prompt) + 1, (subject.eos,)
            ).fed
            full_chunks = text[: len(text) // subject.prefill * subject.prefill]
            if not full_chunks:
                raise FailedError(
                    f"the text is shorter than one prefill: {len(text)} tokens instead of at least"
                    f" {subject.prefill}",
                    fix="use a longer prompt, or a smaller --prefill",
                )
            run_decode(Loop(interface, step), full_chunks)
            Loop(interface, step).feed(full_chunks)
        return samples

    def quantize(self, decoder: Any, sets: dict[int, list[Any]]) -> dict[int, Any]:
        """Return the module to lower for each number of tokens: a quantized module or, in fp16, the
        decoder itself."""
        if not self.spec.scheme.quantized:
            return dict.fromkeys(sets, decoder)
        from ci.executorch.internals import annotate_kv_8bit
        from ci.executorch.quantize import make_quantizer, quantize_method
        from ci.models.model import Model

        scheme, recipe = self.spec.scheme.base, RECIPES[self.spec.scheme.base]
        narrow = recipe.cache_bits < scheme.recipe.activation_bits
        return {
            size: quantize_method(
                Model(self.spec.model, decoder, tuple(samples[:1]), tuple(samples)),
                scheme,
                Choices(parts=recipe.parts),
                make_quantizer(self.spec.soc),
                (annotate_kv_8bit,) if narrow else (),
            )
            for size, samples in sets.items()
        }

    def run_references(
        self,
        decoder: Any,
        modules: dict[int, Any],
        interface: Interface,
        sets: dict[int, list[Any]],
        borders: Mapping[int, Border],
    ) -> ReferenceRuns:
        """Return the reference runs of the float32 ``decoder`` and of ``modules``, which become the
        program. ``modules`` run once as they are, and then with random rounding errors.

        In the runs of ``modules``, the caches initially contain the value that zero bytes encode,
        as in upstream's runner. In a quantized cache, this need not be 0.
        """
        from ci.analysis.noise import find_errors
        from ci.executorch.toolchain import find_qnn_version
        from ci.graphs.run import Recipe
        from ci.graphs.torch_program import TorchProgram, TorchTools, trace_methods

        subject, float16 = self.subject, not self.spec.scheme.quantized
        prompt, eager, float32 = subject.prompts[0], eager_step(modules), interface
        if borders:
            caches = borders[1].inputs[3:]
            empty = tuple(float(each.decode(np.zeros(1))[0]) if each else 0.0 for each in caches)
            interface = structs.replace(interface, empty=empty)
        free = run_free(Loop(interface, eager), prompt, subject.tokens, (subject.eos,))
        generated = free.fed[len(prompt) :]
        alone = run_decode(Loop(interface, eager), free.fed[: len(prompt) + ALONE])
        plain = eager_step(dict.fromkeys(modules, decoder))
        forced = run_forced(Loop(float32, plain), prompt, generated)
        text = run_free(Loop(float32, plain), prompt, subject.tokens, (subject.eos,))
        perplexity = (subject.perplexity(interface, eager), subject.perplexity(float32, plain))
        if float16:
            modules = {size: trace_methods(decoder, sets[size][0])["forward"] for size in modules}
        codings = borders[1].outputs[1:] if borders else ()
        steps = [each.scale if each else 0.0 for each in codings]
        terms = read_terms(find_qnn_version())
        tools = TorchTools()
        steps_of_size: dict[int, Any] = {}
        for size, module in modules.items():
            program = TorchProgram(module, {"forward": module})
            recipes = {
                name: Recipe(find_errors(graph, terms)) for name, graph in program.graphs.items()
            }
            steps_of_size[size] = program.prepare(recipes, tools).changed
        noise: list[Generated] = []
        noise_alone: list[Generated] = []
        for seed in range(DISTURBED_RUNS):
            tools.restart(seed)
            step = eager_step(steps_of_size)
            noise.append(run_forced(Loop(interface, step), prompt, generated))
            noise_alone.append(run_decode(Loop(interface, step), alone.fed))
        return ReferenceRuns(
            interface,
            prompt,
            Reference.of(free, noise, steps),
            Reference.of(alone, noise_alone, steps),
            forced.logits,
            text.tokens,
            tuple(number for number in perplexity if number is not None),
            borders,
        )


def find_border(module: Any) -> Border:
    """Return the codings of the inputs and outputs that a quantized module's program will have."""
    from torch.utils._pytree import tree_leaves

    inputs: list[Coding | None] = []
    outputs: list[Coding | None] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(next(filter(None, map(read_coding, node.users)), None))
        elif node.op == "output":
            outputs += map(read_coding, tree_leaves(node.args))
    return Border(tuple(inputs), tuple(outputs))


def read_coding(node: Any) -> Coding | None:
    """Return the coding of a node that quantizes to unsigned integers or dequantizes them, or None
    for other nodes."""
    from ci.graphs.torch_calls import name_operator

    if not name_operator(node).endswith("quantize_per_tensor"):
        return None
    _, scale, zero, low, high, *_ = node.args
    return None if low else Coding(float(scale), int(zero), "uint8" if high < 2**8 else "uint16")


def require_caches(borders: Mapping[int, Border], layers: int) -> None:
    """Raise FailedError unless all methods encode each cache in the same way, in their inputs and
    in their outputs."""
    for border in borders.values():
        expected = borders[1].inputs[3:]
        for codings in (border.inputs[3:], border.outputs[1:]):
            for number, (coding, expected_coding) in enumerate(zip(codings, expected, strict=True)):
                if coding != expected_coding and not (
                    coding and expected_coding and coding.is_like(expected_coding)
                ):
                    kind = "values" if number >= layers else "keys"
                    text = f"the methods quantize the {kind} of layer {number % layers} differently"
                    raise FailedError(text, why=f"{coding} and {expected_coding}")


@dataclass(frozen=True)
class ReferenceRuns:
    """The runs with which a program is compared."""

    interface: Interface
    prompt: tuple[int, ...]
    model: Reference  # a greedy run of the lowered model, with prefill for the prompt
    # A run of the lowered model with the decode method alone, on the prompt and the next ALONE
    # tokens.
    alone: Reference
    float32: Array  # the float32 model's logits for the text of ``model``
    text: tuple[int, ...]  # the tokens that the float32 model itself chooses
    # Of the lowered and the float32 model, or empty if there is no text to measure.
    perplexity: tuple[float, ...] = ()
    # For a quantized program: the Border of each method, keyed by the number of tokens that it
    # takes.
    borders: Mapping[int, Border] = field(default_factory=dict)


def write_runs(runs: ReferenceRuns, directory: Path) -> None:
    """Write the reference runs of a program."""
    (directory / RUNS).write_bytes(msgspec.msgpack.encode(runs, enc_hook=_write_array))


def _write_array(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()


def _read_array(_: Any, parts: tuple[str, tuple[int, ...], bytes]) -> Array:
    dtype, shape, data = parts
    return np.frombuffer(data, dtype).reshape(shape)


# Created at import: msgspec 0.22 crashes if several threads are the first to decode a Struct.
READER = msgspec.msgpack.Decoder(ReferenceRuns, dec_hook=_read_array)


def read_runs(directory: Path) -> ReferenceRuns:
    """Return the reference runs of a program. Raises OSError or ValueError if the file is missing
    or damaged."""
    return READER.decode(read_bytes(directory / RUNS, CONTENT_BYTES))
