"""Estimates the size of a decoder's program from the decoder's dimensions, without lowering it.

The constants were compared with the sizes of programs of QNN 2.49.40, for the two decoders that
this project lowers (tests/unit/ci/llm/test_projection.py). Host memory is extrapolated from an
issue report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ci.llm.config import DecoderConfig
from ci.llm.recipes import RECIPES
from ci.models.schemes import Scheme
from ci.report.text import align_rows, count, show_bytes

MOST_BYTES = 2 << 30  # the largest context binary that HTP can map
TILE = 32  # HTP pads the channels of a weight to a multiple of this
OF_CHANNEL = 8  # bytes for scale and bias of a quantized output channel
# Bytes that QNN stores per layer in addition to weights, such as tables, by activation_bits.
OF_LAYER = {11: 4 << 10, 8: 12 << 10, 16: 21 << 10}
# 117 GB for a Llama of 8 billion parameters: https://github.com/pytorch/executorch/issues/14402
HOST_COPIES = 117e9 / (8.03e9 * 4)
HOST_BYTES = 1 << 30  # memory of ExecuTorch, torch and QNN with a small decoder


class Projected(Struct, frozen=True, kw_only=True):
    """The estimated size of a program in ``scheme``, in bytes.

    ``graph_bytes`` are the constants of a method. A phone's program shares them between prefill and
    decode; the emulator's has two copies. ``shards`` is the number of programs into which the
    layers must be split so that each fits into 2 GiB, or None if a single layer is too large.
    ``shard_bytes`` is the size of the largest shard. ``cache_bytes`` is the size of all keys and
    values, as float32 in fp16 and as 8-bit integers otherwise. ``host_bytes`` is the memory that
    lowering needs.
    """

    scheme: str
    graph_bytes: int
    shards: int | None
    shard_bytes: int
    cache_bytes: int
    host_bytes: int


class Projection(Struct, frozen=True, kw_only=True):
    """The output of ``test_llm --project --json``."""

    parameters: int
    context: int
    rows: tuple[Projected, ...]
    measured: Literal[False] = False
    schema_version: Literal[1] = 1


def project(config: DecoderConfig, schemes: Sequence[Scheme], context: int) -> Projection:
    """Estimate a program for each scheme, which has a recipe."""
    embeddings = config.vocabulary * config.dim * (1 if config.tied else 2)
    parameters = embeddings + config.layers * sum(
        outputs * inputs for outputs, inputs in list_weights(config)
    )
    rows = tuple(_project(config, scheme, context, parameters) for scheme in schemes)
    return Projection(parameters=parameters, context=context, rows=rows)


def list_weights(config: DecoderConfig) -> Iterator[tuple[int, int]]:
    """Yield the number of output channels and of input channels for each weight of a layer."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield from ((rows, config.dim) for rows in (queries, keys, keys, config.hidden, config.hidden))
    yield from ((config.dim, columns) for columns in (queries, config.hidden))


def _project(config: DecoderConfig, scheme: Scheme, context: int, parameters: int) -> Projected:
    bits, head = scheme.weight_bits or 16, RECIPES[scheme].head
    table = config.vocabulary * config.dim * (1 if scheme is Scheme.A8W8 else 2)
    last = measure_weight(config.vocabulary, config.dim, head.weight_bits if head else bits)
    layer = OF_LAYER[scheme.recipe.activation_bits] + sum(
        measure_weight(outputs, inputs, bits) for outputs, inputs in list_weights(config)
    )
    cache = 2 * config.layers * config.kv_heads * config.head_dim * context
    shards, largest = cut(table, [layer] * config.layers, last)
    return Projected(
        scheme=scheme.value,
        graph_bytes=table + config.layers * layer + last,
        shards=shards,
        shard_bytes=largest,
        cache_bytes=cache * (1 if scheme.quantized else 4),
        host_bytes=int(HOST_BYTES + HOST_COPIES * 4 * parameters),
    )


def measure_weight(outputs: int, inputs: int, bits: int) -> int:
    """Return the size in bytes of a weight in HTP's layout, including its scales."""
    wide, deep = (-(-size // TILE) * TILE for size in (outputs, inputs))
    return wide * deep * bits // 8 + (OF_CHANNEL * wide if bits < 16 else 0)


def cut(table: int, layers: Sequence[int], last: int) -> tuple[int | None, int]:
    """Return the number of shards into which a decoder must be split so that none exceeds
    MOST_BYTES, and the size of the largest in bytes. The layers are divided evenly. The first shard
    also has the embedding, the last one the output layer. If a shard with a single layer is still
    too large, the number is None."""
    for shards in range(1, len(layers) + 1):
        size = -(-len(layers) // shards)
        sums = [sum(layers[start : start + size]) for start in range(0, len(layers), size)]
        sums[0] += table
        sums[-1] += last
        if max(sums) <= MOST_BYTES:
            return shards, max(sums)
    return None, max(sums)


HEADINGS: Mapping[str, str] = {
    "scheme": "scheme",
    "graph_bytes": "weights",
    "shards": "shards",
    "shard_bytes": "largest",
    "cache_bytes": "caches",
    "host_bytes": "host memory",
}


def render_projection(projection: Projection) -> str:
    """Return the estimate as a table for a terminal."""
    rows = [list(HEADINGS.values())]
    for row in projection.rows:
        values = (getattr(row, name) for name in HEADINGS)
        rows.append([_show(name, value) for name, value in zip(HEADINGS, values, strict=True)])
    size = f"{projection.parameters:,} parameters"
    return "\n".join(
        [
            f"projected, not measured: {size}, a context of {count(projection.context, 'token')}",
            *align_rows(rows),
            "weights: for one method; a phone's program has one copy, the emulator's has two",
            "shards: the number of programs needed so that none exceeds 2 GiB",
            "host memory: extrapolated from executorch issue 14402, 117 GB for 8e9 parameters",
        ]
    )


def _show(name: str, value: int | str | None) -> str:
    if name.endswith("_bytes"):
        return show_bytes(int(value or 0))
    return "none fits" if value is None else str(value)
