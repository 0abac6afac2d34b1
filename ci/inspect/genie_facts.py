"""Check what the parts of a folder for Genie say about the same thing, by the tables in
manifests/policies/genie.toml: the names that the configuration uses, and its numbers that depend on
each other. Each check takes the facts of ci.inspect.genie, and reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ci.inspect.genie import GenieFolder, measure_graph
from ci.inspect.genie_graphs import CACHE
from ci.inspect.genie_keys import Relation, find_section, list_objects, read_keys
from provisioning.doctor.registry import Seen, seen
from provisioning.doctor.survey.context_binaries import Graph, TensorSpec

IDS, EMBEDDINGS = "input_ids", "inputs_embeds"
ROTATIONS = ("position_ids_cos", "position_ids_sin")
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
    known = {
        "tensor": inputs,
        "prefix": {name[:length] for name in inputs for length in range(1, len(name) + 1)},
        "graph": {graph.name for graph in graphs},
        "adapter": {name for _, name in list_texts(folder.config, ADAPTERS)},
    }
    names = [("graph", f"graph_names of {file}", name) for file, name in folder.graph_names]
    for key, kind in read_keys().names.items():
        names += [(kind, place, name) for place, name in list_texts(folder.config, key)]
    for kind, place, name in names:
        if kind in known and name not in known[kind]:
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
    for binary in folder.binaries:
        for graph in binary.graphs:
            variant = measure_graph(graph)
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
            other = peer_shapes[name]
            is_alike = len(shape) == len(other) and all(
                is_same_axis(new, old, tokens, peer_tokens)
                for new, old in zip(shape, other, strict=True)
            )
            if not is_alike:
                return f"{name} is {list(shape)}, and in {peer.name} {list(other)}"
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
        lacking, other = ROTATIONS if cosine is None else ROTATIONS[::-1]
        return f"it takes {other}, and no {lacking}"
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
