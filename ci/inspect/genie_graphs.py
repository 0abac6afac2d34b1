"""Check whether the graphs of a folder for Genie fit each other, its configuration and its
libraries. Each check takes the facts of ci.inspect.genie, and reads nothing.

The names of graphs (``ar128_cl4096``) and tensors (``past_key_0_in``) are those that qai-hub-models
writes, and that libGenie searches for. What has other names is not judged.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

from ci.inspect.genie import GenieFolder, measure_graph
from ci.inspect.genie_keys import HEXADECIMAL, list_sections, read_keys
from ci.report.text import name_some
from provisioning.doctor.registry import Seen, seen
from provisioning.doctor.survey.context_binaries import SCALE_TOLERANCE, Graph, TensorSpec
from provisioning.elf.facts import name_machine
from provisioning.manifest.targets import read_all_socs

CACHE = re.compile(r"past_(key|value)_(\d+)_(in|out)")
MOST_NAMED, HTP, LOGITS = 4, "libQnnHtp.so", "logits"
# A process on Hexagon has addresses of 32 bits.
MOST_ADDRESSED = 1 << 32
# Models have unused rows in their vocabulary: of published ones, at most 1 %.
LEAST_USED = 0.9
OF_WINDOWS = "SC"  # how the SoCs of Windows PCs begin, such as SC8380XP
OF_IDS = ("int32", "uint32")
LEAST_CHUNK = 32  # tokens; smaller graphs are those for single tokens or for drafts
# Tensors that Genie computes, by the first words of their names.
OF_GENIE = (
    *("input_ids", "inputs_embeds", "input_embeds", "attention_mask", "position_ids", "past_"),
    *("full_attention", "sliding_", "swa_", "lora", "token_type", "cache_index", "visual_"),
    *("deepstack", "per_layer", "anchor"),
)
LEAST_WEIGHTS = 1 << 20  # graphs with fewer bytes of weights need not share them


def see_other_variants(folder: GenieFolder) -> Iterator[Seen]:
    """Report a part that lacks the graphs for a number of tokens that another part has."""
    variants: dict[tuple[int, int] | str, set[tuple[int, int]]] = defaultdict(set)
    names: dict[tuple[int, int] | str, str] = {}
    for binary in folder.binaries:
        if not binary.variants:
            return
        part = binary.place or binary.name
        variants[part] |= binary.variants
        names.setdefault(part, binary.name)
    everything = set().union(*variants.values())
    for part, of_part in variants.items():
        if lacking := sorted(everything - of_part):
            words = [f"{tokens} tokens in {length}" for tokens, length in lacking]
            yield seen(names[part], names[part], lacking=name_some(words, MOST_NAMED))


def see_wrong_caches(folder: GenieFolder) -> Iterator[Seen]:
    """Report the first cache that cannot be passed from a graph to the next call."""
    first_ports: dict[tuple[tuple[int, int] | str, str], tuple[str, TensorSpec]] = {}
    writers: dict[str, tuple[tuple[int, int] | str, str]] = {}
    for binary in folder.binaries:
        part = binary.place or binary.name
        for graph in binary.graphs:
            reason = find_cache_fault(graph)
            for port in (port for port in graph.inputs if CACHE.fullmatch(port.name)):
                first_graph, first = first_ports.setdefault((part, port.name), (graph.name, port))
                reason = reason or compare_graphs(port, first, first_graph)
            for port in (port for port in graph.outputs if CACHE.fullmatch(port.name)):
                writer, writer_graph = writers.setdefault(port.name, (part, graph.name))
                if writer != part and binary.place:  # else they may be graphs of one part
                    reason = reason or f"it returns {port.name}, as {writer_graph} of another part"
            if reason:
                yield seen(graph.name, binary.name, reason=reason)
                return
    if missing := find_missing_layer(folder):
        layer, layers = missing
        reason = f"no part has those of layer {layer}, and there are {layers[-1] + 1} layers"
        yield seen("all parts", folder.config_file, reason=reason)


def compare_graphs(port: TensorSpec, first: TensorSpec, first_graph: str) -> str:
    """Return why two graphs of a part cannot use the same cache, "" if they can."""
    if len(port.shape) == len(first.shape) == 4:
        length_axis = 3 if port.name.startswith("past_key") else 2
        rows, first_rows = [*port.shape], [*first.shape]
        rows[length_axis] = first_rows[length_axis]
        if rows != first_rows:
            return f"{port.name} is {list(port.shape)}, of other heads than in {first_graph}"
    if not port.is_encoded_as(first):
        encodings = port.encoding, first.encoding
        return f"{port.name} is {encodings[0]}, and in {first_graph} {encodings[1]}"
    return ""


def find_cache_fault(graph: Graph) -> str:
    """Return what is wrong with the caches of a graph, "" if nothing is. Keys are [heads, 1, dim,
    length], values [heads, 1, length, dim]."""
    inputs = {port.name: port for port in graph.inputs if CACHE.fullmatch(port.name)}
    outputs = {port.name: port for port in graph.outputs if CACHE.fullmatch(port.name)}
    lengths = set()
    for name, port in inputs.items():
        kind, layer, _ = CACHE.fullmatch(name).groups()  # type: ignore[union-attr]
        other_kind = "value" if kind == "key" else "key"
        if f"past_{other_kind}_{layer}_in" not in inputs:
            return f"it takes {name}, and no past_{other_kind}_{layer}_in"
        result = outputs.get(f"past_{kind}_{layer}_out")
        if outputs and result is None:
            return f"it takes {name}, and returns no past_{kind}_{layer}_out"
        if result and (reason := compare_encoding(port, result) or compare_rows(graph, result)):
            return reason
        if len(port.shape) == 4:
            lengths.add(port.shape[3] if kind == "key" else port.shape[2])
        value_name = f"past_value_{layer}_in"
        if kind == "key" and (reason := compare_kinds(port, inputs[value_name])):
            return reason
    variant = measure_graph(graph)
    # Of sliding windows, the caches have several lengths.
    if variant and len(lengths) == 1:
        tokens, context = variant
        (length,) = lengths
        if length not in {context - tokens, context}:
            return (
                f"its caches have room for {length} tokens, and for {tokens} new ones in a context"
                f" of {context}, {context - tokens} are needed"
            )
    return ""


def compare_kinds(key: TensorSpec, value: TensorSpec) -> str:
    """Return why the keys and values of a layer are not of the same heads and tokens, "" if they
    are."""
    if len(key.shape) != 4 or len(value.shape) != 4:
        return ""
    heads, _, _, length = key.shape
    if (heads, length) == (value.shape[0], value.shape[2]):
        return ""
    return (
        f"{key.name} is {list(key.shape)}, and {value.name} {list(value.shape)}: they differ in"
        " heads or tokens"
    )


def compare_rows(graph: Graph, result: TensorSpec) -> str:
    """Return why a graph returns another number of new rows of a cache than it has new tokens, ""
    if it does not. Some graphs return the whole cache."""
    variant, match = measure_graph(graph), CACHE.fullmatch(result.name)
    if not variant or not match or len(result.shape) != 4:
        return ""
    axis = 3 if match[1] == "key" else 2
    tokens, context = variant
    port = next((each for each in graph.inputs if each.name == result.name[:-3] + "in"), result)
    if result.shape[axis] not in {tokens, context, context - tokens}:
        return f"{result.name} is {list(result.shape)}, and the graph is for {tokens} new tokens"
    sizes, new_sizes = list(port.shape), list(result.shape)
    if len(sizes) != len(new_sizes) or any(
        size != new and place != axis
        for place, (size, new) in enumerate(zip(sizes, new_sizes, strict=True))
    ):
        return f"{result.name} is {new_sizes}, and {port.name} {sizes}"
    return ""


def compare_encoding(port: TensorSpec, result: TensorSpec) -> str:
    """Return why new rows of a cache cannot be copied into it, "" if they can."""
    if port.is_encoded_as(result):
        return ""
    return f"{result.name} is {result.encoding}, and {port.name} {port.encoding}"


def see_no_logits(folder: GenieFolder) -> Iterator[Seen]:
    """Report parts none of which returns logits. A .litertlm file has no configuration."""
    outputs = [port.name for binary in folder.binaries for g in binary.graphs for port in g.outputs]
    is_read = all(binary.graphs for binary in folder.binaries)
    if (
        folder.config
        and is_read
        and outputs
        and not any(name.startswith(LOGITS) for name in outputs)
    ):
        yield seen(folder.binaries[-1].name, folder.config_file)


def see_no_chain(folder: GenieFolder) -> Iterator[Seen]:
    """Report a part that takes none of the tensors that the part before it returns."""
    for first, second in pairwise(folder.binaries):
        if first.place is None or first.place == second.place:
            continue
        passed = {port.name for graph in first.graphs for port in graph.outputs}
        taken = {port.name for graph in second.graphs for port in graph.inputs}
        passed, taken = ({*filter(is_passed, names)} for names in (passed, taken))
        if passed and taken and not passed & taken:
            yield seen(
                second.name,
                second.name,
                first=first.name,
                takes=name_some(sorted(taken), MOST_NAMED),
                returns=name_some(sorted(passed), MOST_NAMED),
            )
            return


def list_embeddings(folder: GenieFolder) -> list[tuple[Graph, TensorSpec]]:
    """Return the inputs that have as many numbers per token as an embedding: embeddings, and what
    a part gets from the one before it."""
    graphs = [graph for binary in folder.binaries for graph in binary.graphs]
    returned = {port.name for graph in graphs for port in graph.outputs if is_passed(port.name)}
    return [
        (graph, port)
        for graph in graphs
        for port in graph.inputs
        if len(port.shape) > 1 and ("embed" in port.name or port.name in returned)
    ]


def is_passed(name: str) -> bool:
    """Return whether a part may get a tensor from the part before it, instead of from Genie."""
    return not name.startswith((*OF_GENIE, LOGITS)) and not CACHE.fullmatch(name)


def see_missing_end(folder: GenieFolder) -> Iterator[Seen]:
    """Report an eos-token without the token that ends a turn of a chat."""
    context = folder.section("context")
    eos, sequences = context.get("eos-token"), folder.section().get("stop-sequence")
    numbers = [*(eos if isinstance(eos, list) else [eos]), context.get("eot-token")]
    stops = [*numbers, *(sequences if isinstance(sequences, list) else [])]
    ends = folder.tokenizer.ends_of_turn if folder.tokenizer else ()
    if eos is not None and ends and not any(each in stops for end in ends for each in end):
        number, text = ends[0]
        yield seen("dialog.context.eos-token", folder.config_file, number=number, text=text)


def see_no_single_tokens(folder: GenieFolder) -> Iterator[Seen]:
    """Report parts without any graph for single tokens."""
    variants = [binary.variants for binary in folder.binaries]
    if not variants or not all(variants):
        return
    smallest = min(tokens for variant in variants for tokens, _ in variant)
    if smallest >= LEAST_CHUNK:
        yield seen(
            name_some([binary.name for binary in folder.binaries], MOST_NAMED),
            folder.name,
            tokens=smallest,
        )


def see_other_machine(folder: GenieFolder) -> Iterator[Seen]:
    """Report a library for another machine than the others, and one for Windows beside contexts for
    a phone."""
    where = folder.runtime.name if folder.runtime else folder.name
    socs = {context.soc for binary in folder.binaries for context in binary.contexts} - {""}
    if folder.dlls and socs and not any(soc.startswith(OF_WINDOWS) for soc in socs):
        others = f"the contexts are for {min(socs)}"
        yield seen(folder.dlls[0], where, machine="Windows", others=others)
    stranger = folder.libraries.find_stranger() if folder.libraries else None
    if stranger:
        name, machine, usual = stranger
        others = f"the other libraries are for {name_machine(usual)}"
        yield seen(name, where, machine=name_machine(machine), others=others)


def see_damaged_libraries(folder: GenieFolder) -> Iterator[Seen]:
    """Report libraries that cannot be loaded."""
    for name, reason in folder.libraries.damaged if folder.libraries else ():
        yield seen(name, folder.runtime.name if folder.runtime else "", reason=reason)


def see_unresolved_libraries(folder: GenieFolder) -> Iterator[Seen]:
    """Report the first library that needs a missing one."""
    for name, needed in folder.libraries.unresolved[:1] if folder.libraries else ():
        yield seen(name, folder.runtime.name if folder.runtime else "", needed=needed)


def see_strange_tokens(folder: GenieFolder) -> Iterator[Seen]:
    """Report texts for chats that write tokens of another model."""
    for name, token in folder.strange_tokens:
        yield seen(name, name, token=token)


def see_unread_prompts(folder: GenieFolder) -> Iterator[Seen]:
    """Report a prompt.json that is no JSON."""
    for name, reason in folder.unread_prompts:
        yield seen(name, name, reason=reason)


def see_renamed_parts(folder: GenieFolder) -> Iterator[Seen]:
    """Report a file whose name says another part than the names of its graphs."""
    for binary in folder.binaries:
        other_places = [place for place in binary.places if place != binary.place]
        if binary.place and other_places:
            (number, count), (other_number, _) = binary.place, other_places[0]
            yield seen(binary.name, binary.name, number=number, count=count, other=other_number)


def see_empty_files(folder: GenieFolder) -> Iterator[Seen]:
    """Report files that are there and have no content."""
    for name, reason in folder.empty_files:
        yield seen(name, folder.config_file, reason=reason)


def see_other_model(folder: GenieFolder) -> Iterator[Seen]:
    """Report a context in ctx-bins that is no part of the language model, such as the encoder of
    pictures: it takes nothing from Genie, and nothing from another part."""
    returned = [
        {port.name for graph in binary.graphs for port in graph.outputs}
        for binary in folder.binaries
    ]
    strangers = []
    for number, binary in enumerate(folder.binaries):
        other_outputs = set().union(*returned[:number], *returned[number + 1 :])
        taken = {port.name for graph in binary.graphs for port in graph.inputs}
        if taken and not any(name in other_outputs or not is_passed(name) for name in taken):
            strangers.append((binary, taken))
    if len(strangers) < len(folder.binaries):  # else the names are not those that are known here
        for binary, taken in strangers:
            yield seen(binary.name, folder.config_file, takes=name_some(sorted(taken), MOST_NAMED))


def see_wrong_types(folder: GenieFolder) -> Iterator[Seen]:
    """Report token ids of another type than int32, as Genie writes them."""
    for binary in folder.binaries:
        for graph in binary.graphs:
            for port in graph.inputs:
                if port.name == "input_ids" and port.dtype not in OF_IDS:
                    yield seen(port.name, binary.name, graph=graph.name, dtype=port.dtype)
                    return


def see_strange_numbers(folder: GenieFolder) -> Iterator[Seen]:
    """Report numbers of the configuration that libGenie accepts, and that make no sense."""
    sections = read_keys().sections
    for name, place, values in list_sections(folder.config):
        for key, (low, high) in sections[name].ranges.items():
            value = values.get(key)
            if isinstance(value, (int, float)) and not low <= value <= high:
                bounds = f"{low:g} to {high:g}"
                yield seen(f"{place}.{key}", folder.config_file, value=value, bounds=bounds)
    socs = {context.soc for binary in folder.binaries for context in binary.contexts}
    vtcm_by_soc = {name: soc.vtcm_mb for name, soc in read_all_socs().items() if name in socs}
    for file, size in folder.vtcm if len(vtcm_by_soc) == 1 else ():
        ((name, most),) = vtcm_by_soc.items()
        if size > most > 0:
            yield seen(
                f"vtcm_mb of {file}", file, value=size, bounds=f"up to {most}, as {name} has"
            )
    mask = folder.htp.get("cpu-mask")
    if isinstance(mask, str) and HEXADECIMAL.fullmatch(mask) and not int(mask, 16):
        subject = "dialog.engine.backend.QnnHtp.cpu-mask"
        yield seen(subject, folder.config_file, value=mask, bounds="the cores of a phone")
    stops = folder.section().get("stop-sequence")
    if isinstance(stops, list) and "" in stops:
        yield seen("dialog.stop-sequence", folder.config_file, value='""', bounds="no empty text")


def find_missing_layer(folder: GenieFolder) -> tuple[int, list[int]] | None:
    """Return the first layer without caches between layers that have some, and those. None unless
    all parts are there."""
    places = [binary.place for binary in folder.binaries if binary.graphs and binary.place]
    is_whole = bool(places) and {number for number, _ in places} == {*range(1, places[0][1] + 1)}
    if len(places) < len(folder.part_names) or not is_whole:
        return None
    ports = [port for each in folder.binaries for graph in each.graphs for port in graph.inputs]
    matches = [CACHE.fullmatch(port.name) for port in ports]
    layers = sorted({int(match[2]) for match in matches if match})
    missing = sorted({*range(layers[-1] + 1)} - {*layers}) if layers else []
    return (missing[0], layers) if missing else None


def see_wrong_embedding(folder: GenieFolder) -> Iterator[Seen]:
    """Report a first part that takes embeddings which the configuration does not give, or gives of
    another size."""
    if not folder.binaries or not folder.binaries[0].graphs:
        return
    graph = folder.binaries[0].graphs[0]
    ports = {port.name: port for port in graph.inputs}
    embedded = next((port for name, port in ports.items() if "embed" in name), None)
    embedding = folder.section("embedding")
    if "input_ids" in ports:
        return
    if embedded and not embedding:
        reason = f"{graph.name} takes {embedded.name} {list(embedded.shape)}, and no token ids"
        yield seen("dialog.embedding", folder.config_file, reason=f"it is missing, but {reason}")
        return
    size, rows = embedding.get("size"), folder.section("context").get("n-vocab")
    if not isinstance(size, int) or not isinstance(rows, int):
        return
    if embedded and embedded.shape and embedded.shape[-1] != size:
        reason = f"its size is {size}, and {embedded.name} is {list(embedded.shape)}"
        yield seen("dialog.embedding", folder.config_file, reason=reason)
    elif embedded and (reason := find_scale_fault(embedding, embedded)):
        yield seen("dialog.embedding", folder.config_file, reason=reason)
    elif folder.table_bytes and (kind := read_bits(embedding)):
        needed = size * rows * kind // 8
        if folder.table_bytes != needed:
            reason = (
                f"{embedding.get('lut-path')} has {folder.table_bytes} bytes, and n-vocab {rows}"
                f" times {size} numbers of {kind} bits are {needed}"
            )
            yield seen("dialog.embedding", folder.config_file, reason=reason)


def find_scale_fault(embedding: Mapping[str, object], port: TensorSpec) -> str:
    """Return why the numbers of the table are not those of the first part's input, "" if they are.
    Without the scale of one of them, that is not known. QNN's offset is the negative zero point."""
    parameters = embedding.get("quant-param")
    scale = parameters.get("scale") if isinstance(parameters, dict) else None
    if embedding.get("datatype") != port.dtype or not isinstance(scale, (int, float)):
        return ""
    if not port.scale or math.isclose(scale, port.scale, rel_tol=SCALE_TOLERANCE):
        return ""
    return f"quant-param has the scale {scale:.4g}, and {port.name} {port.scale:.4g}"


def read_bits(embedding: Mapping[str, object]) -> int:
    """Return the bits of a number of the embedding table, 0 if they are not known: float32 without
    ``datatype``."""
    datatype = embedding.get("datatype", "float32")
    match = re.fullmatch(r"[a-z]+(\d+)", datatype) if isinstance(datatype, str) else None
    return int(match[1]) if match else 0


def see_small_spill_buffer(folder: GenieFolder) -> Iterator[Seen]:
    """Report a shared buffer that is smaller than what a graph spills. 0 means none is shared."""
    size = folder.htp.get("spill-fill-bufsize")
    if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
        return
    spilled = [
        (graph.spill_bytes or 0, graph.name)
        for binary in folder.binaries
        for graph in binary.graphs
    ]
    needed, name = max(spilled, default=(0, ""))
    if needed > size:
        subject = "dialog.engine.backend.QnnHtp.spill-fill-bufsize"
        yield seen(subject, folder.config_file, size=size, graph=name, needed=needed)


def see_keys_of_other_library(folder: GenieFolder) -> Iterator[Seen]:
    """Report keys whose names are not in the libGenie that is shipped."""
    for key in folder.strange_keys:
        yield seen(key, folder.config_file, libraries=folder.runtime.name if folder.runtime else "")


def see_mixed_libraries(folder: GenieFolder) -> Iterator[Seen]:
    """Report QNN's libraries of several versions."""
    builds = folder.libraries.builds if folder.libraries else ()
    first = next((qnn for name, qnn in builds if name == HTP), "")
    for name, qnn in builds:
        if first and qnn != first:
            where = folder.runtime.name if folder.runtime else ""
            yield seen(name, where, qnn=qnn, other=first)
            return


def see_unshared_weights(folder: GenieFolder) -> Iterator[Seen]:
    """Report parts whose graphs for prompts and for single tokens do not share their weights."""
    files: dict[tuple[int, int], list[str]] = defaultdict(list)
    for binary in folder.binaries:
        if binary.place:
            files[binary.place].append(binary.name)
    for names in files.values():
        if len({*names}) > 1:
            subject = f"{name_some(names, MOST_NAMED)} are the same part in separate files"
            yield seen(subject, folder.config_file)
            return
    for binary in folder.binaries:
        graphs = binary.graphs
        smallest = min((graph.constant_bytes or 0 for graph in graphs), default=0)
        is_shared = any(graph.shared_bytes or graph.shared_bytes is None for graph in graphs)
        if len(graphs) > 1 and not is_shared and smallest > LEAST_WEIGHTS:
            yield seen(f"the graphs of {binary.name} share no weights", binary.name)
            return


def see_small_tokenizer(folder: GenieFolder) -> Iterator[Seen]:
    """Report a tokenizer with far fewer tokens than the model."""
    vocabulary, tokenizer = folder.section("context").get("n-vocab"), folder.tokenizer
    if not tokenizer or not isinstance(vocabulary, int):
        return
    if tokenizer.vocabulary < LEAST_USED * vocabulary:
        file = str(folder.section("tokenizer").get("path"))
        yield seen(file, file, ids=tokenizer.vocabulary - 1, vocabulary=vocabulary)


def see_large_parts(folder: GenieFolder) -> Iterator[Seen]:
    """Report a part that is larger than the addresses of a process on Hexagon."""
    for binary in folder.binaries:
        if binary.size_bytes > MOST_ADDRESSED:
            yield seen(binary.name, binary.name, size=f"{binary.size_bytes / 1e9:,.1f} GB")


def measure_caches(folder: GenieFolder) -> int:
    """Return the size in bytes of the caches of all parts, each for its largest graph."""
    total = 0
    for binary in folder.binaries:
        sizes = [0]
        for graph in binary.graphs:
            ports = [port for port in graph.inputs if CACHE.fullmatch(port.name)]
            sizes.append(sum(math.prod(port.shape) * read_type_bits(port) // 8 for port in ports))
        total += max(sizes)
    return total


def read_type_bits(port: TensorSpec) -> int:
    """Return the bits of a number of a tensor, by the name of its type, 0 if it has none."""
    match = re.search(r"\d+$", port.dtype)
    return int(match[0]) if match else 0
