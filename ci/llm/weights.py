"""Reads a decoder's weights: llama2.c's .bin files, or Hugging Face's safetensors with
config.json."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from msgspec import Meta, Struct
from torch import Tensor

from ci.llm.config import DecoderConfig
from ci.llm.decoder import Decoder, Layer, pair_to_half
from ci.llm.families import (
    CONFIG,
    FORMS,
    HEADER,
    OF_LAYER,
    read_config,
    read_header,
    require_form,
)
from provisioning.documents import (
    POINTER,
    DocumentError,
    decode_json,
    decoding,
    open_regular,
    read_json,
)
from provisioning.errors import UsageError

Weights = dict[str, Tensor]

FREQUENCIES = "frequencies"  # in llama2.c's files, but unused
TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MOST_HEADER = 100 << 20


def read_weights(path: Path) -> tuple[DecoderConfig, Weights]:
    """Return the dimensions and the float32 weights, with the names in ci.llm.decoder. The rows of
    queries and keys are in the order for RoPE on halves. Raises UsageError if the files do not
    contain a decoder that is supported, or if a weight has NaN or infinite values."""
    config, weights = _read_weights(path)
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            text = f"{path}: {name} has NaN or infinite values"
            raise UsageError(text, fix="train or fetch the model again")
    return config, weights


def _read_weights(path: Path) -> tuple[DecoderConfig, Weights]:
    require_form(path)
    if path.is_dir():
        return read_huggingface(path)
    return read_llama2c(path)


def read_llama2c(path: Path) -> tuple[DecoderConfig, Weights]:
    """Read a file in the first version of llama2.c's format.

    Raises UsageError if the file's size contradicts its header.
    """
    config = read_header(path)
    try:
        with decoding(), open_regular(path) as file:
            data: Any = np.memmap(file, np.uint8, "r")
    except DocumentError as error:
        raise UsageError(f"{path} cannot be read", why=str(error)) from error
    shapes = list(_list_shapes(config))
    size = HEADER.size + 4 * sum(math.prod(shape) for _, shape in shapes)
    if len(data) != size:
        raise UsageError(
            f"{path.name} is {len(data)} bytes long, but its header requires {size}",
            why=f"the header states layers={config.layers}, dim={config.dim}, "
            f"vocabulary={config.vocabulary}",
            fix=f"use {FORMS}",
        )
    weights: Weights = {}
    start = HEADER.size
    for name, shape in shapes:
        count = math.prod(shape)
        values = np.frombuffer(data, "<f4", count, start).reshape(shape)
        start += 4 * count
        if name != FREQUENCIES:
            weights[name] = torch.from_numpy(values.copy())
    for number in range(config.layers):
        for name, heads in (("wq", config.heads), ("wk", config.kv_heads)):
            key = f"layers.{number}.attention.{name}.weight"
            weights[key] = pair_to_half(weights[key], heads)
    return config, {"output.weight": weights["tok_embeddings.weight"], **weights}


def _list_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each tensor in llama2.c's order."""
    with torch.device("meta"):
        layer = Layer(config).state_dict()
    yield "tok_embeddings.weight", (config.vocabulary, config.dim)
    for name in OF_LAYER:
        for number in range(config.layers):
            yield f"layers.{number}.{name}.weight", layer[f"{name}.weight"].shape
    yield "norm.weight", (config.dim,)
    yield FREQUENCIES, (2, config.most_context, config.head_dim // 2)
    if not config.tied:
        yield "output.weight", (config.vocabulary, config.dim)


def read_huggingface(directory: Path) -> tuple[DecoderConfig, Weights]:
    """Read config.json and the tensors, which are in a single safetensors file or in all files of
    an index. Raises UsageError if a weight is missing, unknown or of another shape than config.json
    requires."""
    file_config, config = read_config(directory / CONFIG)
    tensors: Weights = {}
    for file in _list_files(directory):
        tensors |= read_safetensors(file)
    tensors = file_config.split_fused(tensors)
    names = file_config.list_names()
    if missing := [name for name in names.values() if name not in tensors]:
        raise UsageError(
            f"{directory} does not contain the weight {missing[0]}",
            why=f"{len(missing)} of {len(names)} weights that {CONFIG} requires are missing",
        )
    known_names = {*names.values(), "lm_head.weight"}
    if unknown := [
        tensor for tensor in tensors if tensor not in known_names and "rotary_emb" not in tensor
    ]:
        raise UsageError(
            f"{directory} contains the weight {unknown[0]}",
            why=f"a {file_config.model_type} as its {CONFIG} describes it has no such weight",
        )
    # Only shapes are needed: on this device, no memory is allocated.
    with torch.device("meta"):
        expected = Decoder(config, 2).state_dict()
    for ours, theirs in names.items():
        if tensors[theirs].shape != expected[ours].shape:
            raise UsageError(
                f"{directory} has the weight {theirs} of {list(tensors[theirs].shape)}",
                why=f"{CONFIG} requires {list(expected[ours].shape)}",
            )
    return config, {
        ours: file_config.adapt(ours, tensors[theirs].float()) for ours, theirs in names.items()
    }


def _list_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    # Not is_file(): an index that is a pipe or a link to nothing would be left out without a word.
    if not os.path.lexists(index):
        if not (directory / TENSORS).exists():
            raise UsageError(
                f"{directory} has neither {TENSORS} nor {INDEX}",
                fix=f"fetch them, or if there is a pytorch_model.bin, write {TENSORS} with"
                " transformers: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)",
            )
        return [directory / TENSORS]
    try:
        files = read_json(index, TensorIndex).weight_map.values()
    except DocumentError as error:
        raise UsageError(f"{index} cannot be read", why=str(error)) from error
    # Only names count, so that an index cannot lead out of the directory.
    return [directory / Path(name).name for name in sorted(set(files))]


class TensorIndex(Struct, frozen=True):
    """The index of a model in several files: the name of the file with each tensor."""

    weight_map: dict[str, str]


class TensorRow(Struct, frozen=True):
    """A tensor in a safetensors header. ``data_offsets`` are the start and the end of its data."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> Weights:
    """Return the tensors of a file. The file starts with the size of a JSON header as a u64,
    followed by the header (name: dtype, shape, data_offsets) and the data. All numbers are
    little-endian (https://github.com/huggingface/safetensors).

    Raises UsageError for a damaged file, for tensors that share bytes, or for dtypes other than
    F32, F16 and BF16.
    """
    try:
        with decoding():
            with open_regular(path) as file:
                data: Any = np.memmap(file, np.uint8, "r")
            return dict(_list_tensors(data))
    except DocumentError as error:
        raise UsageError(f"{path.name} is not a safetensors file", why=str(error)) from error


def _list_tensors(data: Any) -> Iterator[tuple[str, Tensor]]:
    if data[: len(POINTER)].tobytes() == POINTER:
        raise ValueError("it is a Git LFS pointer: run `git lfs pull`")
    size = int.from_bytes(data[:8].tobytes(), "little")
    if size > min(len(data) - 8, MOST_HEADER):
        raise ValueError(f"the header is too long: {size} bytes")
    rows: dict[str, Any] = decode_json(data[8 : 8 + size].tobytes(), dict[str, Any])
    rows.pop("__metadata__", None)
    listed = msgspec.convert(rows, dict[str, TensorRow])
    tensor_data = data[8 + size :]
    taken = 0
    for name, row in listed.items():
        yield name, _take(tensor_data, row)
        taken += row.data_offsets[1] - row.data_offsets[0]
        if taken > len(tensor_data):
            raise ValueError("its tensors share bytes")


def _take(data: Any, row: TensorRow) -> Tensor:
    if row.dtype not in DTYPES:
        raise ValueError(f"the dtype {row.dtype} is not supported, only {', '.join(DTYPES)}")
    begin, end = row.data_offsets
    if not 0 <= begin <= end <= len(data):
        raise ValueError(
            f"a tensor is at bytes {begin} to {end}, but the data is only {len(data)} bytes long"
        )
    dtype = DTYPES[row.dtype]
    if math.prod(row.shape) * dtype.itemsize != end - begin:
        raise ValueError(
            f"{end - begin} bytes do not match the tensor {row.dtype} {list(row.shape)}"
        )
    # A copy, because torch.frombuffer expects memory that can be written, and the file's cannot.
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(row.shape)
