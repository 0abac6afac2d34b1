"""Reads a bundle of LiteRT-LM (.litertlm), and checks whether its parts fit each other. Nothing is
run, and the models in it are never copied into memory as a whole.

A bundle for an NPU has three models: the embedder, the decoder, and the auxiliary graphs, which
compute masks and the rotations of positions, and write the caches. Their signatures have the names
that LiteRT-LM looks up (runtime/executor/llm_litert_npu_compiled_model_executor.cc, lines 60 to 112
at 767d74f).
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ci.llm.tokenizers import (
    MARKER,
    Tokenizer,
    find_repeated_id,
    find_wrong_merge,
    list_special_ids,
    list_token_ids,
    list_token_texts,
    read_tokenizer,
)
from provisioning.console.caller import shown_path
from provisioning.doctor.survey.context_binaries import TensorSpec
from provisioning.doctor.survey.litert import (
    Bundle,
    Section,
    find_largest_constant,
    is_bundle,
    parse_bundle,
)
from provisioning.doctor.survey.litert_names import MODEL_SECTION, SECTIONS
from provisioning.doctor.survey.programs import Method, Program, map_file
from provisioning.documents import DocumentError, decode_json, open_regular
from provisioning.errors import FailedError, UsageError
from provisioning.files import write_whole

MAIN, EMBEDDER, AUXILIARY = "tf_lite_prefill_decode", "tf_lite_embedder", "tf_lite_aux"
MODEL = SECTIONS[MODEL_SECTION]
PARTS = {MAIN: "decoder", EMBEDDER: "embedder", AUXILIARY: "auxiliary graphs"}
WEIGHTS_SECTION = 7  # the type of a section with the weights of a model
SENTENCEPIECE, HUGGING_FACE = "SentencePiece tokenizer", "Hugging Face tokenizer, compressed"
METADATA = "metadata of the language model"
# Contents of sections that belong to a type of model, and those of which a bundle may have several.
OF_MODELS = (MODEL, SECTIONS[WEIGHTS_SECTION], SENTENCEPIECE, HUGGING_FACE)
REPEATED = ("nothing", "binary data", "deprecated data")
PREFILL, DECODE = "prefill", "decode"
PREFILL_SIZE = re.compile(r"prefill_(\d+)")
OF_SEVERAL_CONTEXTS = re.compile(r"(prefill_\d+|decode)_cache_\d+")
CACHE = re.compile(r"kv_cache_([kv])_(\d+)")
SLICE, CACHE_PREFIX, PER_LAYER = "kv_slice_", "kv_cache_", "per_layer"
# Fields of LlmMetadata. Those of OF_TOKENS are tokens, and OF_TEMPLATES are texts for chats.
START, STOPS, SAMPLER, MOST_TOKENS, SUPPRESSED, PADDING = 1, 2, 4, 5, 9, 13
CHANNELS, FLOAT_BYTES = 8, 4
LEAST_RUNTIME = 14
OF_TOKENS = (START, STOPS, PADDING)
JINJA = 7
OF_TEMPLATES, MODEL_TYPE, GENERIC = (3, JINJA), 6, 1
# How a text form of LlmMetadata begins: a field, or a comment.
TEXT_FORM = re.compile(rb"\s*(#|[a-z_]+\s*[:{])")
MOST_METADATA, MOST_TOKENIZER, MOST_CHUNK = 16 << 20, 256 << 20, 1 << 16
COPY_BYTES = 1 << 20
PIECES = 1  # the field of sentencepiece's ModelProto that lists its pieces
PIECE_TEXT, PIECE_KIND, CONTROL = 1, 3, 3  # the fields of a piece; control is its kind
# What LiteRT-LM passes on to each model, and what it takes from it, by the names that it looks up
# (the structs *Signatures). Releases until summer 2025 have the second name where there are two.
# The input of the decoder for embeddings, with the name that the output of the embedder has.
TABLES: Mapping[str, str] = {"embeddings": "embeddings", "input_embeds": "embeds"}
NEEDED_INPUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "embedder": (("token_ids", "tokens"),),
    "cache_update": (("input_pos",),),
    "rope": (("input_pos",),),
    "mask": (("time_step",), ("input_tokens",)),
}
# LiteRT-LM writes them as int32 (the same file, Prefill and Decode), valid_mask as bool.
INPUT_TYPES = ("int32", "bool")
PASSED_INPUTS = ("token_ids", "tokens", "time_step", "input_tokens", "input_pos", "valid_mask")
OF_ONE_NUMBER = "time_step"


@dataclass(frozen=True)
class Cache:
    """A cache of the decoder: the input of prefill, which has its name, its shape and how its
    numbers are encoded, and the axis along which it grows. ``kind`` is k or v.

    If decode has it in another type, it is not ``is_shared``: of some models, a cache that nothing
    needs is such a one, and LiteRT-LM gives decode a separate buffer for it, which stays empty
    (lines 627 to 640 at 767d74f).
    """

    kind: str
    layer: int
    port: TensorSpec
    axis: int
    is_shared: bool = True

    @property
    def name(self) -> str:
        """Return the name of the cache's input."""
        return self.port.name

    @property
    def slice_name(self) -> str:
        """Return the name of the output with the new keys or values."""
        return f"{SLICE}{self.kind}_{self.layer}"

    @property
    def length(self) -> int:
        """Return how many tokens fit in the cache."""
        return self.port.shape[self.axis]


@dataclass(frozen=True)
class LlmMetadata:
    """What the metadata of the language model says. ``start`` is the token that precedes each
    prompt, and ``stops`` are those that end a text: ids, or their text. ``most_tokens`` is the
    largest number of tokens of a conversation, 0 if it is not stated. ``ids`` are all ids that it
    names, also those that are never generated, and ``sequences`` those of its stops that are
    several ids, which must be generated one after another. ``template`` are its texts for chats,
    and ``jinja`` is the one of them that is a template of Jinja,
    and ``suppressed`` the tokens that are never generated. Of a model that LiteRT-LM does not know
    by name, it ``is_generic``. ``model_type`` is the number of its llm_model_type, or 0,
    ``sampler`` has the numbers of its sampler_params by their fields, and ``texts`` are what its
    type of model and its channels write, and ``least_runtime`` is its min_runtime_version."""

    start: tuple[int, ...] | str = ()
    stops: tuple[int | str, ...] = ()
    most_tokens: int = 0
    ids: tuple[int, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()
    template: str = ""
    jinja: str = ""
    suppressed: tuple[int, ...] = ()
    is_generic: bool = True
    model_type: int = 0
    sampler: Mapping[int, float] = field(default_factory=dict)
    texts: str = ""
    least_runtime: str = ""


@dataclass(frozen=True)
class TokenList:
    """The tokens of a tokenizer: how many ids it has, their texts, and the ids of those that no
    text of a user becomes. ``repeated`` is an id that two of them have, with their texts, and
    ``fault`` is why a library for tokenizers refuses it, or ""."""

    count: int
    texts: Mapping[int, str]
    special_ids: frozenset[int]
    repeated: tuple[int, str, str] | None = None
    fault: str = ""

    def __contains__(self, text: object) -> bool:
        """Return whether a text is one token."""
        return text in self.texts.values()


@dataclass(frozen=True)
class BundleFile:
    """A bundle whose parts fit each other. ``chunks`` are the numbers of tokens that its prefill
    signatures take, the largest first, and ``caches`` are all keys by layer, then all values.
    ``models`` are the models by their types, such as ``tf_lite_aux``, and ``remarks`` say what was
    done otherwise than on a phone."""

    path: Path
    bundle: Bundle
    metadata: LlmMetadata
    models: Mapping[str, Section]
    chunks: tuple[int, ...] = ()
    caches: tuple[Cache, ...] = ()
    signatures: Mapping[str, Mapping[str, Method]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return self.path.name

    @cached_property
    def main(self) -> Program:
        """Return the decoder."""
        return self.models[MAIN].model or Program("", "", 0)

    @property
    def is_compiled(self) -> bool:
        """Return whether the decoder is compiled for Qualcomm's NPU."""
        return bool(self.main.contexts)

    @property
    def keeps_last(self) -> bool:
        """Return whether the last token of each chunk is put aside, and passed on with the next
        one, as LiteRT-LM does."""
        return True

    @property
    def is_float(self) -> bool:
        """Return whether the decoder passes floats on."""
        return self.caches[0].port.dtype.startswith("float")

    @property
    def shared_caches(self) -> list[Cache]:
        """Return the caches that prefill and decode share, which are compared."""
        return [cache for cache in self.caches if cache.is_shared]

    @property
    def context(self) -> int:
        """Return how many tokens fit in the caches."""
        return min(cache.length for cache in self.caches)

    @property
    def logits(self) -> TensorSpec:
        """Return the logits of the decoder."""
        return find_port(self.signatures[MAIN][DECODE].outputs, "logits")

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens that have a logit."""
        return self.logits.shape[-1]

    def copy_model(self, kind: str, directory: Path) -> Path:
        """Write a model to a separate file in ``directory``, and return its path."""
        section, target = self.models[kind], directory / f"{kind}.tflite"
        with open_regular(self.path) as source, target.open("wb") as copy:
            source.seek(section.offset)
            remaining = section.size_bytes
            while remaining and (block := source.read(min(COPY_BYTES, remaining))):
                copy.write(block)
                remaining -= len(block)
        return target

    def list_tokens(self) -> TokenList:
        """Return the tokens of the bundle's tokenizer, without its library. Raises FailedError if
        it is damaged."""
        return self.list_tokens_of(find_tokenizer(self.name, self.bundle))

    def list_tokens_of(self, section: Section) -> TokenList:
        """Return the tokens of a section with a tokenizer. Raises FailedError if it is damaged."""
        data = read_section(self.path, section, MOST_TOKENIZER)
        if section.content == HUGGING_FACE:
            try:
                document = decode_json(decompress(self.name, data), dict[str, Any])
            except DocumentError as error:
                raise FailedError(
                    f"{self.name}: the tokenizer is damaged", why=str(error)
                ) from error
            count = max(list_token_ids(document), default=-1) + 1
            return TokenList(
                count,
                list_token_texts(document),
                list_special_ids(document),
                find_repeated_id(document),
                find_wrong_merge(document),
            )
        try:
            pieces = [
                dict(list_fields(value))
                for number, value in list_fields(data)
                if number == PIECES and isinstance(value, bytes)
            ]
        except ValueError as error:
            raise FailedError(f"{self.name}: the tokenizer is damaged", why=str(error)) from error
        if not pieces:
            raise FailedError(f"{self.name}: the tokenizer is damaged", why="it lists no pieces")
        texts, special = {}, set()
        for number, piece in enumerate(pieces):
            content = piece.get(PIECE_TEXT, b"")
            texts[number] = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
            if piece.get(PIECE_KIND) == CONTROL or MARKER.fullmatch(texts[number]):
                special.add(number)
        return TokenList(len(pieces), texts, frozenset(special))

    def count_embeddings(self) -> int:
        """Return the number of rows of the embedder's table, 0 if it is not known: its largest
        constant, if that has as many columns as an embedding has numbers."""
        section, embedding = self.models[EMBEDDER], find_embedding(self.signatures[MAIN][DECODE])
        view = memoryview(map_file(self.path))
        end = section.offset + section.size_bytes
        table = find_largest_constant(view[section.offset : end])
        if not table or not embedding or len(table.shape) != 2:
            return 0
        rows, columns = table.shape
        return rows if columns == embedding.shape[-1] else 0

    def read_tokenizer(self, directory: Path) -> Tokenizer:
        """Return the bundle's tokenizer, whose file is written to ``directory``. Raises UsageError
        if it cannot be read."""
        section = find_tokenizer(self.name, self.bundle)
        data = read_section(self.path, section, MOST_TOKENIZER)
        target = directory / "tokenizer.model"
        if section.content == HUGGING_FACE:
            target, data = directory / "tokenizer.json", decompress(self.name, data)
        write_whole(target, data)
        return read_tokenizer(target)


def read_bundle(path: Path) -> BundleFile:
    """Return a bundle, after checking that it is whole and that its parts fit each other.

    Raises UsageError for a file that is no bundle, or one of a kind that is not supported here.
    Raises FailedError if the bundle is damaged, or lacks something that LiteRT-LM needs.
    """
    name = shown_path(path)
    view = map_file(path)
    if not is_bundle(view):
        raise UsageError(
            f"--bundle {name} is not a bundle of LiteRT-LM", fix="pass a .litertlm file"
        )
    bundle = parse_bundle(view)
    if bundle.damage:
        raise FailedError(
            f"{name} cannot be loaded: it {bundle.damage}", fix="copy or pack the bundle again"
        )
    require_single_sections(name, bundle)
    models = choose_models(bundle)
    for kind, part in PARTS.items():
        if kind not in models:
            raise FailedError(
                f"{name} has no {part}",
                why=f"LiteRT-LM needs a model of the type {kind} to run a bundle on the NPU",
                fix="pack the bundle again with it; a bundle for the GPU or the CPU has none",
            )
    if any(section.content == SECTIONS[WEIGHTS_SECTION] for section in bundle.sections):
        raise UsageError(
            f"{name} has weights in a section apart from their model",
            why="such models are not run here",
            fix="pack it without externalized weights",
        )
    find_tokenizer(name, bundle)
    section = next((each for each in bundle.sections if each.content == METADATA), None)
    if section is None:
        raise FailedError(f"{name} has no {METADATA}", fix="pack the bundle again")
    metadata = parse_metadata(name, read_section(path, section, MOST_METADATA))
    signatures = {kind: list_signatures(models[kind].model) for kind in PARTS}
    loaded = BundleFile(path, bundle, metadata, models, signatures=signatures)
    loaded = replace(
        loaded, chunks=find_chunks(name, signatures), caches=find_caches(name, signatures)
    )
    for chunk in loaded.chunks:
        check_signatures(loaded, f"{PREFILL}_{chunk}", f"_{chunk}", f"{PREFILL}_")
    check_signatures(loaded, DECODE, "", f"{DECODE}_")
    return loaded


def name_model(section: Section) -> str:
    """Return the type of model that a section belongs to, in small letters. LiteRT-LM takes a model
    or a tokenizer without one as the decoder's (litert_lm_loader.cc)."""
    types = (value for key, value in section.items.items() if key.lower() == "model_type")
    return str(next(types, MAIN)).lower()


def choose_models(bundle: Bundle) -> dict[str, Section]:
    """Return the models of a bundle by their types."""
    return {name_model(section): section for section in bundle.sections if section.model}


def require_single_sections(name: str, bundle: Bundle) -> None:
    """Raise FailedError if a bundle has two sections of which LiteRT-LM takes one, the last."""
    sections: set[tuple[str, str]] = set()
    for section in bundle.sections:
        kind = name_model(section) if section.content in OF_MODELS else ""
        if (section.content, kind) in sections and section.content not in REPEATED:
            section_kind = f"{section.content}, {kind}" if kind else section.content
            raise FailedError(
                f"{name} has two sections of the kind {section_kind}",
                why="LiteRT-LM takes the last one, and prints no warning",
                fix="pack it again with one; a model without `model_type` is taken as the decoder",
            )
        sections.add((section.content, kind))


def list_signatures(model: Program | None) -> dict[str, Method]:
    """Return the signatures of a model by their names."""
    methods = model.methods if model else ()
    return {name: method for method in methods for name in method.name.split(", ")}


def find_chunks(name: str, signatures: Mapping[str, Mapping[str, Method]]) -> tuple[int, ...]:
    """Return the numbers of tokens that the prefill signatures take, the largest first. Raises
    FailedError if the decoder has none, or no decode signature."""
    if several := [key for key in signatures[MAIN] if OF_SEVERAL_CONTEXTS.fullmatch(key)]:
        raise UsageError(
            f"{name} has signatures for several lengths of a context: {several[0]}",
            why="LiteRT-LM chooses among them, which is not supported here",
        )
    matches = filter(None, map(PREFILL_SIZE.fullmatch, signatures[MAIN]))
    sizes = sorted({int(match[1]) for match in matches}, reverse=True)
    chunks = tuple(size for size in sizes if 1 < size <= MOST_CHUNK)
    for signature, is_there in ((f"{PREFILL}_128", chunks), (DECODE, DECODE in signatures[MAIN])):
        if not is_there:
            raise FailedError(
                f"the decoder of {name} has no signature such as {signature}",
                why=f"LiteRT-LM runs it; it has {', '.join(signatures[MAIN]) or 'none'}",
                fix="convert the model with litert-torch, with prefill_lengths",
            )
    return chunks


def find_caches(name: str, signatures: Mapping[str, Mapping[str, Method]]) -> tuple[Cache, ...]:
    """Return the caches of the decoder: all keys by layer, then all values.

    Raises FailedError if a cache has no slice, and UsageError for caches that are not supported
    here: of several lengths, as those of a ring buffer, or other ones than keys and values.
    """
    decode = signatures[MAIN][DECODE]
    slices = {port.name: port for port in decode.outputs}
    prefill_key = f"{PREFILL}_{find_chunks(name, signatures)[0]}"
    prefill = {port.name: port for port in signatures[MAIN][prefill_key].inputs}
    caches = []
    for port in decode.inputs:
        if not port.name.startswith(CACHE_PREFIX):
            continue
        match = CACHE.fullmatch(port.name)
        if not match:
            raise UsageError(
                f"{name} has a cache {port.name}",
                why="only keys and values (kv_cache_k_0, kv_cache_v_0, ...) are supported here",
            )
        slice_name = f"{SLICE}{match[1]}_{match[2]}"
        part = slices.get(slice_name)
        if part is None:
            raise FailedError(
                f"the decoder of {name} has no output {slice_name}",
                why=f"LiteRT-LM copies it into {port.name} after each call",
                fix="convert the model with split_cache",
            )
        axes = [
            axis
            for axis, (size, new) in enumerate(zip(port.shape, part.shape, strict=False))
            if size != new
        ]
        if len(port.shape) != 4 or len(part.shape) != 4 or len(axes) != 1 or axes[0] < 2:
            raise FailedError(
                f"{port.name} of {name} is {list(port.shape)}, and {slice_name} of decode is"
                f" {list(part.shape)}",
                why="they must have four axes, and may differ in that of time alone",
            )
        shared = prefill.get(port.name, port)
        is_shared = (shared.shape, shared.dtype) == (port.shape, port.dtype)
        caches.append(Cache(match[1], int(match[2]), shared, axes[0], is_shared))
    caches.sort(key=lambda cache: (cache.kind, cache.layer))
    key_layers = [cache.layer for cache in caches if cache.kind == "k"]
    value_layers = [cache.layer for cache in caches if cache.kind == "v"]
    if not caches or key_layers != value_layers:
        raise FailedError(
            f"the decoder of {name} has keys of {len(key_layers)} layers, and values of"
            f" {len(value_layers)}"
        )
    lengths = sorted({cache.length for cache in caches})
    if len(lengths) > 1:
        raise UsageError(
            f"{name} has caches of {', '.join(map(str, lengths))} tokens",
            why="ring buffers of a sliding window are not supported here",
        )
    return tuple(caches)


def check_signatures(bundle: BundleFile, main: str, suffix: str, prefix: str) -> None:
    """Raise FailedError if a signature that LiteRT-LM calls together with the decoder's ``main`` is
    missing, or if it passes a tensor on with another shape or type."""
    method, caches = bundle.signatures[MAIN][main], {each.name: each.port for each in bundle.caches}
    separate = {cache.name for cache in bundle.caches if not cache.is_shared}
    keys = {word: f"{prefix}{word}{suffix}" for word in NEEDED_INPUTS}
    graphs = {
        word: _find_signature(bundle, EMBEDDER if word == "embedder" else AUXILIARY, key)
        for word, key in keys.items()
    }
    if layered := [port.name for port in method.inputs if port.name.startswith(PER_LAYER)]:
        raise UsageError(
            f"the decoder of {bundle.name} takes {layered[0]}",
            why="embeddings per layer, as Gemma 3n has them, are not supported here",
        )
    for word, graph in graphs.items():
        _check_inputs(bundle, keys[word], word, graph, int(suffix[1:] or 1))
    computed = {port.name: port for word in ("rope", "mask") for port in graphs[word].outputs}
    embedding = find_embedding(method)
    if embedding and len(graphs["embedder"].outputs) == 1:
        computed[embedding.name] = graphs["embedder"].outputs[0]
    for port in method.inputs:
        if port.name not in separate:
            _compare(bundle, port, {**computed, **caches}, main)
    if embedding is None or embedding.name not in TABLES:
        raise FailedError(
            f"{main} of {bundle.name} has no input embeddings",
            why="LiteRT-LM passes the embeddings of the tokens on by this name",
            fix="convert the model with an external embedder",
        )
    needed = TABLES[embedding.name]
    if needed not in (names := [port.name for port in graphs["embedder"].outputs]):
        raise FailedError(
            f"{bundle.name}: {keys['embedder']} has no output {needed}",
            why=f"LiteRT-LM looks it up by this name; there are {', '.join(names) or 'none'}",
            fix="convert decoder and embedder again, with one release of litert-torch",
        )
    _check_decoder(bundle, main, method)
    results = {port.name: port for port in method.outputs}
    for port in graphs["cache_update"].inputs:
        if port.name.startswith((SLICE, CACHE_PREFIX)):
            _compare(bundle, port, {**results, **caches}, keys["cache_update"])
    _check_update(bundle, keys["cache_update"], graphs["cache_update"], results)


def _check_decoder(bundle: BundleFile, main: str, method: Method) -> None:
    """Raise FailedError if a signature of the decoder takes no mask or rotation that decode takes,
    no cache of a layer before the last, or returns logits of several tokens."""
    last = max(cache.layer for cache in bundle.caches)
    needed = {port.name for port in bundle.signatures[MAIN][DECODE].inputs}
    for chunk in bundle.chunks:
        ports = bundle.signatures[MAIN][f"{PREFILL}_{chunk}"].inputs
        needed |= {port.name for port in ports if not port.name.startswith(CACHE_PREFIX)}
    # Prefill returns no logits, so that the converter may remove what only the last layer needs.
    needed -= {cache.name for cache in bundle.caches if cache.layer == last}
    taken = {port.name for port in method.inputs}
    embedding = find_embedding(method)
    if lacking := sorted(needed - taken - ({embedding.name} if embedding else set())):
        raise FailedError(
            f"{main} of {bundle.name} does not read {lacking[0]}, and another signature does",
            why="it computes without it, so that tokens see others than they should",
            fix="convert all signatures of the decoder again, in one run",
        )
    logits = next((port for port in method.outputs if port.name == "logits"), None)
    if main == DECODE and logits and math.prod(logits.shape[:-1]) != 1:
        raise FailedError(
            f"{bundle.name}: logits of {DECODE} are {list(logits.shape)}",
            why="LiteRT-LM selects one token among all of these numbers",
            fix="convert the model again; decode takes one token",
        )


def _check_inputs(bundle: BundleFile, key: str, word: str, graph: Method, size: int) -> None:
    """Raise FailedError if the embedder or an auxiliary graph lacks an input that LiteRT-LM writes,
    has one that it does not write, or one for another number of tokens than ``size``."""
    fix = "convert the models again, with the litert-torch of the LiteRT-LM that the app contains"
    ports = {port.name: port for port in graph.inputs}
    for names in NEEDED_INPUTS[word]:
        if not ports.keys() & {*names}:
            raise FailedError(
                f"{bundle.name}: {key} has no input {names[0]}",
                why=f"LiteRT-LM writes it before each call; there are {', '.join(ports) or 'none'}",
                fix=fix,
            )
    for name, port in ports.items():
        if name.startswith((SLICE, CACHE_PREFIX)):
            continue
        if name not in PASSED_INPUTS:
            raise FailedError(
                f"{bundle.name}: {key} has an input {name}",
                why=f"LiteRT-LM only writes {', '.join(PASSED_INPUTS)}",
                fix=fix,
            )
        if port.dtype not in INPUT_TYPES:
            raise FailedError(
                f"{bundle.name}: {name} of {key} has the type {port.dtype}",
                why="LiteRT-LM writes tokens and positions as int32",
                fix=fix,
            )
        tokens = 1 if name == OF_ONE_NUMBER else size
        if math.prod(port.shape) != tokens:
            raise FailedError(
                f"{bundle.name}: {name} of {key} is {list(port.shape)}, and {tokens} needed",
                why="LiteRT-LM writes as many tokens as the name of the signature says",
                fix=fix,
            )


def _check_update(
    bundle: BundleFile, key: str, update: Method, results: Mapping[str, TensorSpec]
) -> None:
    """Raise FailedError if the signature that writes the caches leaves out a new key or value, or a
    cache."""
    reads = {port.name for port in update.inputs}
    writes = {port.name for port in update.outputs}
    caches = {cache.name: cache.port for cache in bundle.shared_caches}
    for port in update.outputs:
        if port.name in caches:
            _compare(bundle, port, caches, key, "returns")
    for cache in bundle.shared_caches:
        if cache.slice_name not in results:
            continue
        for verb, name, names in (
            ("read", cache.slice_name, reads),
            ("read", cache.name, reads),
            ("return", cache.name, writes),
        ):
            if name not in names:
                raise FailedError(
                    f"{bundle.name}: {key} does not {verb} {name}",
                    why=f"{cache.name} stays as it is, so that the layer forgets the tokens before",
                    fix="pack models that were converted together",
                )


def find_embedding(method: Method) -> TensorSpec | None:
    """Return the input of the decoder for the embeddings: the only one that is neither a cache, nor
    a mask, nor a rotation."""
    other_prefixes = (CACHE_PREFIX, "mask", "pos_emb")
    ports = [port for port in method.inputs if not port.name.startswith(other_prefixes)]
    return ports[0] if len(ports) == 1 else None


def find_port(ports: Sequence[TensorSpec], name: str) -> TensorSpec:
    """Return the port with a name. Raises FailedError if there is none."""
    port = next((port for port in ports if port.name == name), None)
    if port is None:
        raise FailedError(f"the decoder has no output {name}")
    return port


def _find_signature(bundle: BundleFile, kind: str, key: str) -> Method:
    signatures = bundle.signatures[kind]
    if key in signatures:
        return signatures[key]
    raise FailedError(
        f"{bundle.name}: there is no signature {key} in the {PARTS[kind]}",
        why="LiteRT-LM runs it with the decoder's; the signatures there are"
        f" {', '.join(signatures) or 'none'}",
        fix="pack models that were converted together, with the same prefill_lengths",
    )


def _compare(
    bundle: BundleFile,
    port: TensorSpec,
    sources: Mapping[str, TensorSpec],
    reader: str,
    how: str = "reads",
) -> None:
    """Raise FailedError unless there is a source for a tensor that ``reader`` reads or returns, of
    the same shape and type."""
    fix = "pack models that were converted together"
    source = sources.get(port.name)
    if source is None:
        raise FailedError(
            f"{bundle.name}: nothing computes {port.name}, which {reader} reads",
            why=f"the other models have {', '.join(sorted(sources))}",
            fix=fix,
        )
    for verb, needed, actual in (
        ("is", list(port.shape), list(source.shape)),
        ("has the type", port.dtype, source.dtype),
    ):
        if needed != actual:
            raise FailedError(
                f"{bundle.name}: {port.name} {verb} {actual}, but {reader} {how} {needed}",
                why="LiteRT-LM passes the same buffer from one model to the next",
                fix=fix,
            )


def find_tokenizer(name: str, bundle: Bundle) -> Section:
    """Return the section with the tokenizer. Raises FailedError if there is none."""
    tokenizers = list_tokenizers(bundle)
    if not tokenizers:
        raise FailedError(f"{name} has no tokenizer", fix="pack the bundle again with one")
    return tokenizers[0]


def list_tokenizers(bundle: Bundle) -> list[Section]:
    """Return the sections with tokenizers of the decoder. The first one counts: LiteRT-LM looks for
    one of SentencePiece, and for one of Hugging Face only if there is none."""
    return [
        section
        for kind in (SENTENCEPIECE, HUGGING_FACE)
        for section in bundle.sections
        if section.content == kind and name_model(section) == MAIN
    ]


def read_section(path: Path, section: Section, most_bytes: int) -> bytes:
    """Return the bytes of a section. Raises FailedError if they are more than ``most_bytes``."""
    if section.size_bytes > most_bytes:
        raise FailedError(
            f"{path.name}: the {section.content} has {section.size_bytes} bytes",
            why=f"at most {most_bytes} are read",
        )
    with open_regular(path) as file:
        file.seek(section.offset)
        return file.read(section.size_bytes)


def decompress(name: str, data: bytes) -> bytes:
    """Return the tokenizer of Hugging Face in a section: its size (u64), then the data of zlib, as
    litert-lm-builder 0.18.1 writes it. Raises FailedError for other data."""
    size = int.from_bytes(data[:8], "little")
    if data.lstrip()[:1] == b"{":
        raise FailedError(
            f"{name}: the tokenizer is not compressed",
            why="LiteRT-LM unpacks this section with zlib",
            fix="pack the bundle again with litert-lm-builder",
        )
    if not 0 < size <= MOST_TOKENIZER:
        raise FailedError(f"{name}: the tokenizer would have {size} bytes")
    try:
        content = zlib.decompressobj().decompress(data[8:], size)
    except zlib.error as error:
        raise FailedError(f"{name}: the tokenizer cannot be unpacked", why=str(error)) from error
    if len(content) != size:
        raise FailedError(f"{name}: the tokenizer has {len(content)} bytes instead of {size}")
    return content


def parse_metadata(name: str, data: bytes) -> LlmMetadata:
    """Return what the metadata of the language model says: LlmMetadata in
    runtime/proto/llm_metadata.proto of LiteRT-LM. Raises FailedError if it cannot be read."""
    start: tuple[int, ...] | str = ()
    stops: list[int | str] = []
    ids: list[int] = []
    sequences: list[tuple[int, ...]] = []
    suppressed: list[int] = []
    most_tokens, template, jinja = 0, "", ""
    try:
        kinds = [kind for part in list_parts(data, MODEL_TYPE) for kind, _ in list_fields(part)]
        sampler = dict(pair for part in list_parts(data, SAMPLER) for pair in list_numbers(part))
        parts = [*list_parts(data, MODEL_TYPE), *list_parts(data, CHANNELS)]
        runtimes = list_parts(data, LEAST_RUNTIME)
        least_runtime = b"".join([*runtimes][-1:]).decode("utf-8", "replace")
        for number, value in list_fields(data):
            if number in OF_TOKENS and isinstance(value, bytes):
                tokens = parse_tokens(value)
                ids += [token for token in tokens if isinstance(token, int)]
                if number == START:
                    start = tokens
                elif number == STOPS:
                    stops += [tokens] if isinstance(tokens, str) else tokens[-1:]
                    sequences += [tokens] if isinstance(tokens, tuple) and tokens[1:] else []
            elif number == SUPPRESSED and isinstance(value, bytes):
                suppressed += list_ids(value)
            elif number == MOST_TOKENS and isinstance(value, int):
                most_tokens = value - (1 << 64) if value >> 63 else value
            elif number in OF_TEMPLATES and isinstance(value, bytes):
                text = value.decode("utf-8", "replace")
                template += text
                jinja += text if number == JINJA else ""
    except (ValueError, IndexError) as error:
        why = str(error)
        if TEXT_FORM.match(data):
            why = "it is in the text form of protobuf, and LiteRT-LM reads the binary one"
        raise FailedError(
            f"{name}: the {METADATA} cannot be read",
            why=why,
            fix="pack the bundle again with litert-lm-builder, which converts a .pbtext",
        ) from error
    return LlmMetadata(
        start,
        tuple(stops),
        most_tokens,
        (*ids, *suppressed),
        tuple(sequences),
        template,
        jinja,
        tuple(suppressed),
        kinds in ([], [GENERIC]),
        kinds[-1] if kinds else 0,
        sampler,
        " ".join(part.decode("utf-8", "replace") for part in parts),
        least_runtime,
    )


def parse_tokens(data: bytes) -> tuple[int, ...] | str:
    """Return a TokenUnion (runtime/proto/token.proto): ids, or a text."""
    for number, value in list_fields(data):
        if number == 2 and isinstance(value, bytes):
            return value.decode("utf-8")
        if number == 1 and isinstance(value, bytes):
            return tuple(list_ids(value))
    return ()


def list_ids(data: bytes) -> list[int]:
    """Return the ids of a TokenIds, which are int32, packed or not. Raises ValueError for other
    data."""
    ids: list[int] = []
    for number, content in list_fields(data):
        if number == 1:
            ids += [content] if isinstance(content, int) else list_varints(content)
    return [token - (1 << 64) if token >> 63 else token for token in ids]


def list_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message in protobuf's encoding (protobuf.dev/programming-guides/
    encoding): each with its number, and a number or bytes. Raises ValueError for other data."""
    place = 0
    while place < len(data):
        key, place = read_varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = read_varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = read_varint(data, place)
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has the type {kind}")
        if place + size > len(data):
            raise ValueError("it is cut short")
        yield key >> 3, data[place : place + size]
        place += size


def list_parts(data: bytes, field_number: int) -> Iterator[bytes]:
    """Yield the messages or texts that a field of a message has. Raises ValueError for other
    data."""
    for number, value in list_fields(data):
        if number == field_number and isinstance(value, bytes):
            yield value


def list_numbers(data: bytes) -> Iterator[tuple[int, float]]:
    """Yield the fields of a message that are numbers: int32, or float. Raises ValueError for other
    data."""
    for number, value in list_fields(data):
        if isinstance(value, int):
            yield number, value - (1 << 64) if value >> 63 else value
        elif len(value) == FLOAT_BYTES:
            yield number, struct.unpack("<f", value)[0]


def list_varints(data: bytes) -> list[int]:
    """Return numbers that follow each other. Raises ValueError for other data."""
    numbers, place = [], 0
    while place < len(data):
        number, place = read_varint(data, place)
        numbers.append(number)
    return numbers


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number at ``place``, and the place behind it. Raises ValueError if it does not
    end."""
    number = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError("it is cut short in a number")
