"""Reads a folder for Genie as a bundle whose parts are context binaries, so that it is run and
judged as one of LiteRT-LM. Nothing is run here.

What Genie passes on was recorded with libGenie of QNN 2.51.0 on the emulator, by its own dump of
tensors (dialog.debug): all tokens of a prompt in chunks, the last one padded at its end; masks of
-1000, whose last columns are for the new tokens; caches that are filled from the start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ci.llm.bundle_file import (
    AUXILIARY,
    DECODE,
    EMBEDDER,
    MAIN,
    PREFILL,
    BundleFile,
    Cache,
    LlmMetadata,
)
from ci.llm.config import Rope, RopeFactors, RopeScaling
from ci.llm.tokenizers import Tokenizer, read_tokenizer
from provisioning.doctor.survey.context_binaries import Graph, TensorSpec
from provisioning.doctor.survey.litert import Bundle
from provisioning.doctor.survey.programs import Method, Program, map_file, parse_program
from provisioning.errors import FailedError, UnfitError, UsageError

MOST_TOKENIZER_BYTES = 256 << 20
MOST_FACTOR = 1e12
IDS, MASK, LOGITS = "input_ids", "attention_mask", "logits"
TURNS = {"pos_emb_cos": "position_ids_cos", "pos_emb_sin": "position_ids_sin"}
CACHE = re.compile(r"past_(key|value)_(\d+)_(in|out)")
LENGTHS = re.compile(r"ar(\d+)_cl(\d+)")
# The types of numpy that QNN's types are passed on as.
NUMPY = {"ufixed8": "uint8", "sfixed8": "int8", "ufixed16": "uint16", "sfixed16": "int16"}
NUMPY |= {name: name for name in ("float32", "float16", "int32", "uint8", "uint16", "int8")}
MASKED = "mask_global"
SHARED = (
    "QNN's emulator does not open them: 'Shared weights buffer isn't supported on this platform',"
    " error 1000 (QNN 2.51.0)"
)
# Seen with a program of ExecuTorch that has a DLC: docs/reference/policy.md, online_prepare.
NO_DLC = "; the .dlc files are not used: libQnnSystem.so for x86-64 crashes on a DLC (QNN 2.49.40)"


@dataclass(frozen=True)
class GenieSource:
    """The files of a folder, and its ``dialog``."""

    path: Path
    dialog: Mapping[str, Any]
    binaries: tuple[Path, ...]
    tokenizer: Path

    def find(self, *keys: str) -> Mapping[str, Any]:
        """Return a section of the dialog, empty if there is none."""
        section: Any = self.dialog
        for key in keys:
            section = section.get(key) if isinstance(section, Mapping) else None
            section = section[0] if key == "engine" and isinstance(section, list) else section
        return section if isinstance(section, Mapping) else {}


@dataclass(frozen=True)
class Step:
    """A graph of a part, for ``tokens`` new tokens. ``model`` is its ONNX file if it runs instead
    of the context binary ``file``."""

    file: Path
    graph: Graph
    tokens: int
    model: Path | None = None


@dataclass(frozen=True)
class GenieBundle(BundleFile):
    """A folder for Genie as a bundle. ``steps`` are the graphs by the number of new tokens, in the
    order of the parts. The names in ``signatures`` are those of LiteRT-LM's."""

    source: GenieSource = field(default_factory=lambda: GenieSource(Path(), {}, (), Path()))
    steps: Mapping[int, tuple[Step, ...]] = field(default_factory=dict)
    programs: tuple[Program, ...] = ()
    rope: Rope = field(default_factory=lambda: Rope(()))

    @cached_property
    def main(self) -> Program:
        """Return the contexts of all parts as one program."""
        contexts = tuple(context for program in self.programs for context in program.contexts)
        return replace(self.programs[0], contexts=contexts)

    @property
    def keeps_last(self) -> bool:
        """Genie computes the logits of a prompt's last token with the prompt."""
        return False

    def read_tokenizer(self, directory: Path) -> Tokenizer:
        """Return the folder's tokenizer. Raises UsageError if it cannot be read."""
        del directory
        return read_tokenizer(self.source.tokenizer)


def read_genie_bundle(source: GenieSource) -> GenieBundle:
    """Return a folder as a bundle. Raises FailedError if its parts do not form a decoder,
    UsageError for one that is not supported here, and UnfitError for contexts that the emulator
    cannot open."""
    name = source.path.name
    programs = [read_program(path) for path in source.binaries]
    size = source.find("context").get("size")
    steps, remarks = find_steps(source, programs, size)
    chunks = tuple(sorted((tokens for tokens in steps if tokens > 1), reverse=True))
    for kind, is_there in (("prompts, such as ar128", chunks), ("single tokens, ar1", 1 in steps)):
        if not is_there:
            raise UsageError(
                f"{name} has no graphs for {kind}",
                why=f"its graphs are for {', '.join(map(str, sorted(steps)))} tokens",
            )
    caches = find_caches(name, steps[1], steps[chunks[0]], int(size or 0))
    context = source.find("context")
    eos = context.get("eos-token")
    bos = context.get("bos-token", -1)
    bundle = GenieBundle(
        source.path,
        Bundle(),
        LlmMetadata(
            (bos,) if isinstance(bos, int) and bos >= 0 else (),
            tuple(eos) if isinstance(eos, list) else (eos,) if isinstance(eos, int) else (),
            int(size or 0),
        ),
        {},
        chunks,
        caches,
        make_signatures(steps, caches, int(size or 0)),
        tuple(remarks),
        source,
        steps,
        tuple(programs),
        read_rope(source, steps),
    )
    for tokens, graphs in steps.items():
        require_known_ports(name, tokens, graphs)
    return bundle


def read_program(path: Path) -> Program:
    """Return the content of a context binary. Raises FailedError if it is none."""
    program = parse_program(map_file(path), path.name)
    problem = "is no context binary of QNN" if program is None else program.damage
    if program is None or problem:
        raise FailedError(f"{path.name} {problem}", fix="copy the file again")
    return program


def find_steps(
    source: GenieSource, programs: Sequence[Program], size: object
) -> tuple[dict[int, tuple[Step, ...]], list[str]]:
    """Return the graphs for a context of ``size`` tokens by the number of new tokens, in the order
    of the parts, and remarks. Only numbers for which each part has a graph count: a file without
    graphs for one is of other graphs of the same parts."""
    steps_by_tokens: dict[int, list[Step]] = {}
    remarks: list[str] = []
    for path, program in zip(source.binaries, programs, strict=True):
        for context in program.contexts:
            if context.unread:
                raise UsageError(f"{path.name} cannot be run", why=context.unread)
            for graph in context.graphs:
                tokens, length = measure_graph(path, graph)
                if length != size:
                    continue
                step = Step(path, graph, tokens)
                if graph.shared_bytes:
                    step = replace(step, model=find_model(source.path, path, graph))
                    remarks.append(path.name)
                steps_by_tokens.setdefault(tokens, []).append(step)
    count = max((len(steps) for steps in steps_by_tokens.values()), default=0)
    remarks = [
        f"{name} ran from the .onnx files of its graphs, because these share weights: {SHARED}"
        for name in dict.fromkeys(remarks)
    ]
    return {
        tokens: tuple(steps)
        for tokens, steps in sorted(steps_by_tokens.items())
        if len(steps) == count
    }, remarks


def find_model(folder: Path, path: Path, graph: Graph) -> Path:
    """Return the ONNX file of a graph, which is called like it. Raises UnfitError if there is
    none."""
    model = folder / f"{graph.name}.onnx"
    if model.is_file():
        return model
    has_dlc = any(folder.glob("*.dlc"))
    raise UnfitError(
        f"the graphs of {path.name} share weights",
        why=SHARED + (NO_DLC if has_dlc else ""),
        fix=f"put each graph's ONNX model into the folder ({model.name}), or export the contexts"
        " without shared weights for this test",
    )


def measure_graph(path: Path, graph: Graph) -> tuple[int, int]:
    """Return the number of new tokens of a graph, and the length of its context: of its mask, or by
    its name. Raises UsageError if neither says it."""
    mask = next((port.shape for port in graph.inputs if port.name == MASK), ())
    if len(mask) >= 2:
        return mask[-2], mask[-1]
    if match := LENGTHS.search(graph.name):
        return int(match[1]), int(match[2])
    raise UsageError(
        f"{path.name} has a graph {graph.name} without {MASK}",
        why="for how many tokens it is, is not known",
    )


def find_caches(
    name: str, decode: Sequence[Step], prefill: Sequence[Step], context: int
) -> tuple[Cache, ...]:
    """Return the caches: all keys by layer, then all values, each [1, heads, ...] with room for the
    whole context. Raises UsageError for ring buffers, whose length is another, and for types that
    are not supported."""
    caches = []
    later = {port.name: port for step in prefill for port in step.graph.inputs}
    for port in (port for step in decode for port in step.graph.inputs):
        match = CACHE.fullmatch(port.name)
        if not match:
            continue
        kind, axis = match[1][0], 3 if match[1] == "key" else 2
        if len(port.shape) != 4 or port.shape[1] != 1 or port.dtype not in NUMPY:
            raise UsageError(
                f"{name} has a cache {port.name} {list(port.shape)} {port.dtype}",
                why="only [heads, 1, dim, length] and [heads, 1, length, dim] are supported here",
            )
        if port.shape[axis] not in {context - 1, context}:
            raise UsageError(
                f"{name} has a cache {port.name} for {port.shape[axis]} tokens in a context of"
                f" {context}",
                why="ring buffers of a sliding window are not supported here",
            )
        later_port = later.get(port.name)
        if later_port and (later_port.dtype, later_port.scale, later_port.zero_point) != (
            port.dtype,
            port.scale,
            port.zero_point,
        ):
            raise FailedError(
                f"{name}: {port.name} is encoded otherwise for single tokens than for prompts",
                why="Genie passes the same cache to both",
                fix="export both graphs together",
            )
        heads, _, *sizes = port.shape
        sizes[axis - 2] = context
        spec = replace(
            port,
            name=f"kv_cache_{kind}_{match[2]}",
            dtype=NUMPY[port.dtype],
            shape=(1, heads, *sizes),
        )
        caches.append(Cache(kind, int(match[2]), spec, axis))
    caches.sort(key=lambda cache: (cache.kind, cache.layer))
    key_layers = [cache.layer for cache in caches if cache.kind == "k"]
    value_layers = [cache.layer for cache in caches if cache.kind == "v"]
    if not caches or key_layers != value_layers:
        raise FailedError(
            f"{name} has keys of {len(key_layers)} layers, and values of {len(value_layers)}"
        )
    return tuple(caches)


def require_known_ports(name: str, tokens: int, steps: Sequence[Step]) -> None:
    """Raise UsageError for an input that neither Genie's loop nor a part before it computes, and
    FailedError if nothing returns logits."""
    ports = {IDS, MASK, *TURNS.values()}
    for step in steps:
        for port in step.graph.inputs:
            if port.name not in ports and not CACHE.fullmatch(port.name):
                raise UsageError(
                    f"{step.graph.name} of {name} takes {port.name}",
                    why="only token ids, one mask, one rotation, caches and what the part before"
                    " returns are supported here",
                )
            if port.dtype not in NUMPY:
                raise UsageError(f"{name}: {port.name} has the type {port.dtype}")
        ports |= {port.name for port in step.graph.outputs}
    if LOGITS not in ports:
        raise FailedError(f"{name} has no part that returns {LOGITS} for {tokens} tokens")


def make_signatures(
    steps: Mapping[int, tuple[Step, ...]], caches: Sequence[Cache], context: int
) -> dict[str, dict[str, Method]]:
    """Return the signatures that LiteRT-LM would call: those of the parts together, and of what the
    host computes."""
    signatures: dict[str, dict[str, Method]] = {MAIN: {}, EMBEDDER: {}, AUXILIARY: {}}
    cache_ports = [cache.port for cache in caches]
    for tokens, graphs in steps.items():
        prefix, suffix = (PREFILL, f"_{tokens}") if tokens > 1 else (DECODE, "")
        ids = TensorSpec(IDS, "int32", (1, tokens))
        mask = TensorSpec(MASKED, "float32", (1, 1, tokens, context))
        ports = {port.name: port for step in graphs for port in step.graph.inputs}
        turns = [
            TensorSpec(short, "float32", ports[name].shape)
            for short, name in TURNS.items()
            if name in ports
        ]
        results = {port.name: port for step in graphs for port in step.graph.outputs}
        slices = list(list_slices(caches, tokens))
        logits = results.get(LOGITS)
        places = TensorSpec("input_pos", "int32", (tokens,))
        flags = TensorSpec("valid_mask", "bool", (1, tokens))
        time = TensorSpec("time_step", "int32", ())
        for part, word, inputs, outputs in (
            (MAIN, "", [*cache_ports, ids, mask, *turns], [*slices, *([logits] if logits else [])]),
            (EMBEDDER, "_embedder", [replace(ids, name="token_ids")], [ids]),
            (AUXILIARY, "_rope", [places], turns),
            (AUXILIARY, "_mask", [time, flags], [mask]),
            (AUXILIARY, "_cache_update", [*cache_ports, *slices, places, flags], cache_ports),
        ):
            key = f"{prefix}{word}{suffix}"
            signatures[part][key] = Method(key, tuple(inputs), tuple(outputs), (), {})
    return signatures


def list_slices(caches: Sequence[Cache], tokens: int) -> Iterator[TensorSpec]:
    """Yield the new keys and values of a call."""
    for cache in caches:
        shape = list(cache.port.shape)
        shape[cache.axis] = tokens
        yield replace(cache.port, name=cache.slice_name, shape=tuple(shape))


def read_rope(source: GenieSource, steps: Mapping[int, tuple[Step, ...]]) -> Rope:
    """Return how positions are rotated: positional-encoding of the model, or pos-id-dim and
    rope-theta of the HTP. Raises UsageError for scalings that are not supported here."""
    ports = {port.name: port for step in steps[1] for port in step.graph.inputs}
    turns = ports.get(TURNS["pos_emb_cos"])
    if turns is None:
        raise UsageError(
            f"{source.path.name} takes no {TURNS['pos_emb_cos']}",
            why="other encodings of positions are not supported here",
        )
    width = turns.shape[-1]
    encoding = source.find("engine", "model").get("positional-encoding")
    htp = source.find("engine", "backend", "QnnHtp")
    described = encoding if isinstance(encoding, Mapping) else {}
    if isinstance(encoding, list) or described.get("type", "rope") != "rope":
        raise UsageError(
            f"the positional-encoding of {source.path.name} is not supported here",
            why="only one object of the type rope is",
        )
    name = source.path.name
    base = read_factor(name, {**htp, **described}, "rope-theta", 10000)
    plain = Rope(tuple(base ** (-index / width) for index in range(width)))
    scaling = described.get("rope-scaling")
    kind = scaling.get("rope-type", "default") if isinstance(scaling, Mapping) else "default"
    if not isinstance(scaling, Mapping) or kind == "default":
        return plain
    if kind == "linear":
        return RopeFactors((read_factor(name, scaling, "factor", 1),) * width).apply(plain)
    if kind == "llama3":
        original = read_factor(name, scaling, "original-max-position-embeddings")
        try:
            return RopeScaling(
                factor=read_factor(name, scaling, "factor"),
                low_freq_factor=read_factor(name, scaling, "low-freq-factor"),
                high_freq_factor=read_factor(name, scaling, "high-freq-factor"),
                original_max_position_embeddings=int(original),
            ).apply(plain)
        except ValueError as error:
            raise UsageError(f"rope-scaling of {name} is not right", why=str(error)) from error
    raise UsageError(
        f"rope-scaling of {source.path.name} is {kind}",
        why="only default, linear and llama3 are supported here",
    )


def read_factor(
    name: str, values: Mapping[str, Any], key: str, usual: float | None = None
) -> float:
    """Return a number of the configuration of ``name``, by default ``usual``. Raises UsageError for
    one that is missing, or not above 0."""
    value = values.get(key, usual)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < MOST_FACTOR:
        raise UsageError(
            f"{key} of {name} is {json.dumps(value)[:40]}", why="it must be a number above 0"
        )
    return float(value)
