"""Check what the parts of a folder for Genie say about the same thing, by the tables in
manifests/policies/genie.toml: the names that the configuration uses, and its numbers that depend on
each other. Each check takes the facts of ci.inspect.genie, and reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from ci.inspect.genie import GenieFolder, measure_graph
from ci.inspect.genie_graphs import CACHE, list_embeddings
from ci.inspect.genie_keys import ENGINE, Relation, find_section, list_objects, read_keys
from ci.inspect.genie_model import CONFIG, OF_EXPORT
from provisioning.doctor.registry import Seen, seen
from provisioning.doctor.survey.context_binaries import Graph, TensorSpec

IDS, EMBEDDINGS = "input_ids", "inputs_embeds"
ROTATIONS = ("position_ids_cos", "position_ids_sin")
SCALING_TYPES = ("rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type")
# Scalings with which a model is used beyond its max_position_embeddings.
BEYOND_MODEL = ("linear", "dynamic", "yarn")
WITH_CACHES = ("full_attention", "sliding_attention", "chunked_attention")  # layer_types
TOLERANCE = 1e-6  # of numbers that two files write in their own way
DUMPS = ("dump-tensors", "dump-outputs")  # dump-specs writes one small file
ADAPTERS = "dialog.engine.model.binary.lora.adapters.name"
LACKING: Mapping[str, str] = {
    "tensor": "no graph takes",
    "prefix": "no input of a graph starts with",
    "graph": "no context has",
    "adapter": "no adapter is called",
}


def list_texts(document: Mapping[str, Any], key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts that a key has, also those in lists, each with the key's name."""
    for place, value in list_objects(document, key.split("."), ""):
        if isinstance(value, str) and value:
            yield place, value


def see_unknown_names(folder: GenieFolder) -> Iterator[Seen]:
    """Report a name that nothing in the folder has: of a tensor, a graph or an adapter."""
    graphs = [graph for binary in folder.binaries for graph in binary.graphs]
    if not graphs or len(folder.binaries) < len(folder.part_names):
        return
    inputs = {port.name for graph in graphs for port in graph.inputs}
    known_names = {
        "tensor": inputs,
        "prefix": {name[:length] for name in inputs for length in range(1, len(name) + 1)},
        "graph": {graph.name for graph in graphs},
        "adapter": {name for _, name in list_texts(folder.config, ADAPTERS)},
    }
    names = [("graph", f"graph_names of {file}", name) for file, name in folder.graph_names]
    for key, kind in read_keys().names.items():
        names += [(kind, place, name) for place, name in list_texts(folder.config, key)]
    for kind, place, name in names:
        if kind in known_names and name not in known_names[kind]:
            yield seen(place, folder.config_file, name=name, lacking=LACKING[kind])


def see_contradictions(folder: GenieFolder) -> Iterator[Seen]:
    """Report numbers of the configuration that contradict each other."""
    for relation in read_keys().relations:
        for place, section in list_objects(folder.config, relation.section.split("."), ""):
            left = measure_value(section, relation.left, relation.measure)
            right = measure_value(section, relation.right, "")
            if left is None or right is None or is_kept(relation, left, right):
                continue
            measure = f"the {relation.measure} of " if relation.measure else ""
            yield seen(
                f"{measure}{place}.{relation.left}",
                folder.config_file,
                value=f"{left:g}",
                other=f"{place}.{relation.right}",
                number=f"{right:g}",
                relation=relation.means,
                why=relation.why,
            )


def measure_value(section: object, key: str, measure: str) -> float | None:
    """Return a number below a section, or the ``sum`` or ``count`` of a list; None without one."""
    *heads, last = key.split(".")
    value = find_section(section, heads).get(last) if isinstance(section, dict) else None
    if measure and isinstance(value, list):
        numbers = [each for each in value if isinstance(each, (int, float))]
        return sum(numbers) if measure == "sum" else len(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and not measure else None


def is_kept(relation: Relation, left: float, right: float) -> bool:
    """Return whether two numbers are related as they should be."""
    if relation.means == "below":
        return left < right
    if relation.means == "a multiple of":
        return right > 0 and left % right == 0
    return left == right


def see_unlike_graphs(folder: GenieFolder) -> Iterator[Seen]:
    """Report a graph whose inputs are for several numbers of tokens, and one whose inputs and
    outputs are not those of another graph of its part, or of another part for as many tokens."""
    first_of_part: dict[object, Graph] = {}
    first_of_tokens: dict[tuple[int, int], Graph] = {}
    graphs = [graph for binary in folder.binaries for graph in binary.graphs]
    masked = next((graph.name for graph in graphs if has_input(graph, takes_mask)), "")
    for binary in folder.binaries:
        for graph in binary.graphs:
            variant = measure_graph(graph)
            if masked and has_input(graph, CACHE.fullmatch) and not has_input(graph, takes_mask):
                reason = f"it takes caches and no mask, and {masked} takes one"
                yield seen(graph.name, binary.name, reason=reason)
                break
            if variant is None:
                continue
            reason = find_unlike_ports(graph)
            peer = first_of_part.setdefault(binary.place or binary.name, graph)
            reason = reason or compare_variants(graph, peer)
            peer = first_of_tokens.setdefault(variant, graph)
            reason = reason or compare_inputs(graph, peer)
            if reason:
                yield seen(graph.name, binary.name, reason=reason)
                break


def has_input(graph: Graph, is_wanted: Callable[[str], object]) -> bool:
    """Return whether a graph has an input with such a name."""
    return any(is_wanted(port.name) for port in graph.inputs)


def takes_mask(name: str) -> bool:
    """Return whether an input is a mask: of all tokens, or of those in a sliding window."""
    return "mask" in name


def compare_variants(graph: Graph, peer: Graph) -> str:
    """Return what differs between two graphs of a part except their numbers of tokens, "" if
    nothing does. An axis has as many numbers in both, or follows from tokens and context."""
    tokens, peer_tokens = measure_graph(graph), measure_graph(peer)
    if not tokens or not peer_tokens:
        return ""
    for verb, ports, peer_ports in (
        ("takes", graph.inputs, peer.inputs),
        ("returns", graph.outputs, peer.outputs),
    ):
        shapes, peer_shapes = (
            {port.name: port.shape for port in each} for each in (ports, peer_ports)
        )
        for name in shapes.keys() ^ peer_shapes.keys():
            first, second = (graph, peer) if name in shapes else (peer, graph)
            return f"{first.name} {verb} {name}, and {second.name} does not"
        for name, shape in shapes.items():
            peer_shape = peer_shapes[name]
            is_alike = len(shape) == len(peer_shape) and all(
                is_same_axis(new, old, tokens, peer_tokens)
                for new, old in zip(shape, peer_shape, strict=True)
            )
            if not is_alike:
                return f"{name} is {list(shape)}, and in {peer.name} {list(peer_shape)}"
    return ""


def is_same_axis(
    size: int, peer_size: int, tokens: tuple[int, int], peer_tokens: tuple[int, int]
) -> bool:
    """Return whether an axis has as many numbers in two graphs, except for their numbers of new
    tokens, or the lengths of their contexts. Caches have room for what precedes the new tokens,
    also those of a sliding window, which is shorter than the context."""
    (new, context), (peer_new, peer_context) = tokens, peer_tokens
    return (
        size == peer_size
        or (size, peer_size) in {(new, peer_new), (context, peer_context)}
        or size + new == peer_size + peer_new
        or (size + new, peer_size + peer_new) == (context, peer_context)
    )


def compare_inputs(graph: Graph, peer: Graph) -> str:
    """Return which input of Genie has another shape than in another part for as many tokens, "" if
    none has."""
    peer_shapes = {port.name: port.shape for port in peer.inputs}
    for port in graph.inputs:
        shape = peer_shapes.get(port.name, port.shape)
        if port.shape != shape and not CACHE.fullmatch(port.name):
            return f"{port.name} is {list(port.shape)}, and in {peer.name} {list(shape)}"
    return ""


def find_unlike_ports(graph: Graph) -> str:
    """Return which input of a graph is for another number of tokens than its mask, or its name; ""
    if none is."""
    variant = measure_graph(graph)
    if not variant:
        return ""
    tokens, _ = variant
    ports = {port.name: port for port in graph.inputs}
    for name, port in ports.items():
        if count_tokens(name, port) not in {None, tokens}:
            return f"{name} is {list(port.shape)}, and the graph is for {tokens} tokens"
    cosine, sine = (ports.get(name) for name in ROTATIONS)
    if (cosine is None) != (sine is None):
        lacking, present = ROTATIONS if cosine is None else ROTATIONS[::-1]
        return f"it takes {present}, and no {lacking}"
    if cosine and sine and cosine.shape != sine.shape:
        return f"{ROTATIONS[0]} is {list(cosine.shape)}, and {ROTATIONS[1]} {list(sine.shape)}"
    return ""


def count_tokens(name: str, port: TensorSpec) -> int | None:
    """Return the number of tokens that a tensor has values of, None if that is not known."""
    if name == IDS:
        return math.prod(port.shape)
    if len(port.shape) > 1 and (name in ROTATIONS or name == EMBEDDINGS):
        return port.shape[-2]
    return None


def see_other_order(folder: GenieFolder) -> Iterator[Seen]:
    """Report a part whose layers precede those of the part before it."""
    last_layer, last_name, last_place = -1, "", (0, 0)
    for binary in folder.binaries:
        layers = list_layers([port for graph in binary.graphs for port in graph.inputs])
        if not layers or binary.place is None:
            return
        # Graphs for single tokens may be in files behind those of all graphs for prompts.
        if binary.place > last_place and layers[0] < last_layer:
            yield seen(binary.name, binary.name, layer=layers[0], other=last_name, last=last_layer)
            return
        last_layer, last_name, last_place = layers[-1], binary.name, binary.place


def list_layers(ports: Sequence[TensorSpec]) -> list[int]:
    """Return the numbers of the layers that have caches."""
    return sorted({int(match[2]) for port in ports if (match := CACHE.fullmatch(port.name))})


def see_other_numbers(folder: GenieFolder) -> Iterator[Seen]:
    """Report a number of the configuration, or of layers, that the model's config.json has, too,
    and otherwise. A draft model has another config.json."""
    model, genie_keys = folder.model, read_keys()
    yield from see_other_parts(folder)
    yield from see_strange_ends(folder)
    if not model.config or folder.is_draft:
        return
    for number in genie_keys.model_numbers:
        values = [value for _, value in list_objects(folder.config, number.key.split("."), "")]
        expected = model.find(number.places)
        # Of several encodings, each for the tensors with its prefix, none is compared.
        if len(values) != 1 or not is_figure(values[0]) or not is_figure(expected):
            continue
        if not math.isclose(values[0], expected, rel_tol=TOLERANCE):
            yield seen(
                number.key,
                CONFIG,
                value=f"{values[0]:g}",
                file=CONFIG,
                expected=f"{expected:g}",
            )
    scaling = model.find(SCALING_TYPES)
    encoding = folder.section(ENGINE, "model").get("positional-encoding", {})
    is_single = isinstance(encoding, dict) and bool(folder.htp)
    if is_single and scaling in genie_keys.scalings and "rope-scaling" not in encoding:
        subject = "dialog.engine.model.positional-encoding.rope-scaling"
        yield seen(subject, CONFIG, value="missing", file=CONFIG, expected=f"rope_type {scaling}")
    yield from see_other_sizes(folder)
    layers, expected = count_layers(folder), model.find(("num_hidden_layers",))
    if layers and is_figure(expected) and layers != expected and has_caches_in_all(model.config):
        subject = "the number of layers with caches"
        text = f"num_hidden_layers {expected}"
        yield seen(subject, CONFIG, value=layers, file=CONFIG, expected=text)


def see_other_sizes(folder: GenieFolder) -> Iterator[Seen]:
    """Report a context that is longer than those the model was made for, another bos token, and
    caches of another number or size of heads than config.json has."""
    model, context = folder.model, folder.section("context")
    size, most = context.get("size"), model.find(("max_position_embeddings",))
    is_beyond = is_figure(size) and is_figure(most) and size > most
    if is_beyond and model.find(SCALING_TYPES) not in BEYOND_MODEL:
        text = f"max_position_embeddings {most:g}"
        yield seen("dialog.context.size", CONFIG, value=size, file=CONFIG, expected=text)
    widths = {port.shape[-1] for _, port in list_embeddings(folder)}
    width = model.find(("hidden_size",))
    if widths and is_figure(width) and width not in widths and "n-embd" not in context:
        subject = "the size of an embedding in the graphs"
        text = f"hidden_size {width:g}"
        yield seen(subject, CONFIG, value=min(widths), file=CONFIG, expected=text)
    bos, expected = context.get("bos-token"), model.find(("bos_token_id",))
    # Without one, the app writes it into its prompts.
    if is_figure(bos) and bos >= 0 and is_figure(expected) and bos != expected:
        text = f"bos_token_id {expected:g}"
        yield seen("dialog.context.bos-token", CONFIG, value=bos, file=CONFIG, expected=text)
    ports = [port for each in folder.binaries for graph in each.graphs for port in graph.inputs]
    keys = [
        port for port in ports if port.name.startswith("past_key") and CACHE.fullmatch(port.name)
    ]
    shapes = {(port.shape[0], port.shape[2]) for port in keys if len(port.shape) == 4}
    # Models with layers of several kinds have several sizes of heads.
    if len(shapes) != 1:
        return
    ((heads, head_size),) = shapes
    all_heads = model.find(("num_attention_heads",))
    key_heads = model.find(("num_key_value_heads",)) or all_heads
    if is_figure(key_heads) and heads not in {key_heads, all_heads}:
        text = f"num_key_value_heads {key_heads:g}"
        subject = "the number of heads in the caches"
        yield seen(subject, CONFIG, value=heads, file=CONFIG, expected=text)
    expected = model.find(("head_dim",))
    kv_dim = folder.htp.get("kv-dim")
    if is_figure(expected) and head_size != expected and kv_dim == head_size:
        return  # kv-dim is reported
    if is_figure(expected) and head_size != expected:
        subject = "the size of a head in the caches"
        yield seen(subject, CONFIG, value=head_size, file=CONFIG, expected=f"head_dim {expected:g}")


def see_strange_ends(folder: GenieFolder) -> Iterator[Seen]:
    """Report a file whose end of a text is beyond the vocabulary: it is of another model."""
    vocabulary = folder.section("context").get("n-vocab")
    for file, tokens in () if folder.is_draft else folder.model.ends:
        numbers = [token for token in tokens if is_figure(token)]
        if is_beyond(numbers, vocabulary):
            text = f"eos_token_id {max(numbers)}"
            yield seen("dialog.context.n-vocab", file, value=vocabulary, file=file, expected=text)


def see_other_parts(folder: GenieFolder) -> Iterator[Seen]:
    """Report another number of parts than metadata.json lists, of which GenieX opens each."""
    places = [binary.place for binary in folder.binaries]
    numbers = {place[1] for place in places if place}
    is_known = bool(folder.model.parts and numbers) and None not in places
    if is_known and not folder.is_draft and numbers != {folder.model.parts}:
        expected = str(folder.model.parts)
        yield seen(
            "the number of parts", OF_EXPORT, value=max(numbers), file=OF_EXPORT, expected=expected
        )


def is_figure(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def count_layers(folder: GenieFolder) -> int:
    """Return the number of layers that have caches, 0 if a part is missing, or its caches have
    other names."""
    if len(folder.binaries) < len(folder.part_names):
        return 0
    ports = [port for each in folder.binaries for graph in each.graphs for port in graph.inputs]
    return len(list_layers(ports))


def has_caches_in_all(config: Mapping[str, Any]) -> bool:
    """Return whether each layer of a model has caches: some share those of others, and layers
    without attention have none."""
    kinds = config.get("layer_types")
    has_layers_without_caches = isinstance(kinds, list) and not {*map(str, kinds)} <= {*WITH_CACHES}
    return not (has_layers_without_caches or config.get("num_kv_shared_layers"))


def see_other_ends(folder: GenieFolder) -> Iterator[Seen]:
    """Report a configuration that stops at none of the tokens that end a text by a file of the
    model. Chat models also stop at the end of a turn."""
    context, tokenizer = folder.section("context"), folder.tokenizer
    eos, sequences = context.get("eos-token"), folder.section().get("stop-sequence")
    stops = {*(eos if isinstance(eos, list) else [eos]), context.get("eot-token")}
    turns = {number for number, _ in tokenizer.ends_of_turn} if tokenizer else set()
    if eos is None or sequences or stops & turns:
        return
    added = tokenizer.added if tokenizer else {}
    for file, tokens in folder.model.ends:
        numbers = [added.get(token) if isinstance(token, str) else token for token in tokens]
        is_known = None not in numbers and not is_beyond(numbers, context.get("n-vocab"))
        if is_known and not stops & {*numbers}:
            names = [text for text, number in added.items() if number == numbers[0]]
            token = f"{numbers[0]} ({names[0]})" if names else str(numbers[0])
            yield seen("dialog.context.eos-token", file, token=token, file=file)
            return


def is_beyond(numbers: Sequence[object], vocabulary: object) -> bool:
    """Return whether a token is beyond the vocabulary."""
    return is_figure(vocabulary) and any(is_figure(each) and each >= vocabulary for each in numbers)


def see_repeated_names(folder: GenieFolder) -> Iterator[Seen]:
    """Report an adapter whose name another one has, and a token whose id another one has."""
    names = [name for _, name in list_texts(folder.config, ADAPTERS)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        why = "an app selects adapters by their names, and gets one of the two"
        yield seen(
            f"the adapter {name}",
            folder.config_file,
            file=folder.config_file,
            names=ADAPTERS,
            why=why,
        )
    if folder.tokenizer and folder.tokenizer.repeated:
        number, *texts = folder.tokenizer.repeated
        file = str(folder.section("tokenizer").get("path"))
        why = "both texts become one token, which the model knows as one of them"
        yield seen(f"the id {number}", file, file=file, names=" and ".join(texts), why=why)


def see_dumps(folder: GenieFolder) -> Iterator[Seen]:
    """Report a configuration that lets Genie write its tensors."""
    for key in DUMPS:
        if folder.section("debug").get(key) is True:
            yield seen(f"dialog.debug.{key}", folder.config_file)
