"""The decoder ``tiny`` in the form that Genie runs: ONNX models of its parts, with the names that
qai-hub-models gives to tensors, and a folder whose context binaries onnxruntime-qnn compiles:

``python -m tests.build.genie_decoder FOLDER LIBRARY [--shared]``

``LIBRARY`` is QNN's backend. With --shared, the graphs of a part share their weights in one
context, and with --models, the folder has the ONNX model of each graph, too.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ci.llm import tiny
from ci.llm.config import DecoderConfig
from ci.llm.weights import read_weights
from tests.stand_ins.tiny_decoder import PIECES

WEIGHTS = Path(tiny.__file__).with_name("weights.bin")
CHUNK, CONTEXT = 8, 64
KINDS = {CHUNK: "prompt", 1: "token"}
TARGET = {"soc_model": "57", "htp_arch": "75", "enable_htp_fp16_precision": "1"}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
OPSET, IR_VERSION = 17, 10
Array = np.ndarray[Any, Any]


@dataclass
class PartBuilder:
    """Builds the graph of a part for ``tokens`` new tokens in a context of ``context``."""

    config: DecoderConfig
    weights: Mapping[str, Array]
    tokens: int
    context: int = CONTEXT
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    def add(self, kind: str, *reads: str, **attributes: Any) -> str:
        """Add an operator, and return the name of its result."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, reads, [name], name=name, **attributes))
        return name

    def constant(self, array: Array | Sequence[int], name: str = "") -> str:
        """Add a constant, and return its name."""
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def weight(self, name: str) -> str:
        """Return the name of a linear layer's weight, of which the last axis is that of results."""
        return self.constant(np.ascontiguousarray(self.weights[name].T), name)

    def take(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        """Add an input, and return its name."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def give(self, name: str, value: str, shape: Sequence[int]) -> None:
        """Add an output."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def shaped(self, value: str, *shape: int) -> str:
        """Return a value with another shape."""
        return self.add("Reshape", value, self.constant(np.array(shape, np.int64)))

    def norm(self, value: str, name: str) -> str:
        """Return the RMS norm of a value [1, n, dim]."""
        square = self.add("Mul", value, value)
        mean = self.add("ReduceMean", square, axes=[-1], keepdims=1)
        safe = self.add("Add", mean, self.constant(np.float32(self.config.norm_eps)))
        scaled = self.add("Div", value, self.add("Sqrt", safe))
        return self.add("Mul", scaled, self.constant(self.weights[name], name))

    def rotate(self, value: str) -> str:
        """Apply RoPE to heads [heads, 1, n, dim]."""
        half = self.config.head_dim // 2
        axes, ends = self.constant([3]), [(0, half), (half, 2 * half)]
        first, second = (
            self.add("Slice", value, self.constant([start]), self.constant([end]), axes)
            for start, end in ends
        )
        cosine, sine = "position_ids_cos", "position_ids_sin"
        left = self.add("Sub", self.add("Mul", first, cosine), self.add("Mul", second, sine))
        right = self.add("Add", self.add("Mul", second, cosine), self.add("Mul", first, sine))
        return self.add("Concat", left, right, axis=3)

    def heads(self, value: str, count: int) -> str:
        """Return [1, n, count * dim] as [count, 1, n, dim]."""
        split = self.shaped(value, 1, self.tokens, count, self.config.head_dim)
        return self.add("Transpose", split, perm=[2, 0, 1, 3])

    def attend(self, value: str, layer: int) -> str:
        """Return the attention of new tokens to the cache and to each other."""
        config, n, room = self.config, self.tokens, self.context - self.tokens
        groups, dim, kv = config.heads // config.kv_heads, config.head_dim, config.kv_heads
        prefix = f"layers.{layer}.attention"
        q, k, v = (
            self.heads(self.add("MatMul", value, self.weight(f"{prefix}.{name}.weight")), count)
            for name, count in (("wq", config.heads), ("wk", kv), ("wv", kv))
        )
        k = self.add("Transpose", self.rotate(k), perm=[0, 1, 3, 2])
        self.give(f"past_key_{layer}_out", k, (kv, 1, dim, n))
        self.give(f"past_value_{layer}_out", v, (kv, 1, n, dim))
        past_k = self.take(f"past_key_{layer}_in", (kv, 1, dim, room))
        past_v = self.take(f"past_value_{layer}_in", (kv, 1, room, dim))
        keys = self.add("Concat", past_k, k, axis=3)
        values = self.add("Concat", past_v, v, axis=2)
        queries = self.shaped(self.rotate(q), kv, 1, groups * n, dim)
        scores = self.add("MatMul", queries, keys)
        scaled = self.add("Mul", scores, self.constant(np.float32(dim**-0.5)))
        grouped = self.shaped(scaled, kv, groups, n, self.context)
        masked = self.add("Add", grouped, "attention_mask")
        shares = self.shaped(self.add("Softmax", masked, axis=-1), kv, 1, groups * n, self.context)
        mixed = self.shaped(self.add("MatMul", shares, values), config.heads, 1, n, dim)
        joined = self.shaped(
            self.add("Transpose", mixed, perm=[1, 2, 0, 3]), 1, n, config.heads * dim
        )
        return self.add("MatMul", joined, self.weight(f"{prefix}.wo.weight"))

    def feed_forward(self, value: str, layer: int) -> str:
        """Return the SwiGLU of a value."""
        prefix = f"layers.{layer}.feed_forward"
        gate = self.add("MatMul", value, self.weight(f"{prefix}.w1.weight"))
        open_gate = self.add("Mul", gate, self.add("Sigmoid", gate))
        linear = self.add("MatMul", value, self.weight(f"{prefix}.w3.weight"))
        hidden = self.add("Mul", open_gate, linear)
        return self.add("MatMul", hidden, self.weight(f"{prefix}.w2.weight"))

    def build(self, layers: Sequence[int]) -> Any:
        """Return the model of these layers."""
        config, n = self.config, self.tokens
        if layers[0] == 0:
            ids = self.take("input_ids", (1, n), TensorProto.INT32)
            name = "tok_embeddings.weight"
            x = self.add("Gather", self.constant(self.weights[name], name), ids)
        else:
            x = self.take(f"hidden_{layers[0]}", (1, n, config.dim))
        self.take("attention_mask", (1, 1, n, self.context))
        for name in ("position_ids_cos", "position_ids_sin"):
            self.take(name, (1, 1, n, config.head_dim // 2))
        for layer in layers:
            normed = self.norm(x, f"layers.{layer}.attention_norm.weight")
            x = self.add("Add", x, self.attend(normed, layer))
            normed = self.norm(x, f"layers.{layer}.ffn_norm.weight")
            x = self.add("Add", x, self.feed_forward(normed, layer))
        if layers[-1] == config.layers - 1:
            logits = self.add("MatMul", self.norm(x, "norm.weight"), self.weight("output.weight"))
            self.give("logits", logits, (1, n, config.vocabulary))
        else:
            self.give(f"hidden_{layers[-1] + 1}", x, (1, n, config.dim))
        graph = helper.make_graph(
            self.nodes, "part", self.inputs, self.outputs, [*self.constants.values()]
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def make_part(layers: Sequence[int], tokens: int, weights: Path = WEIGHTS) -> Any:
    """The ONNX model of some layers for ``tokens`` new tokens."""
    config, tensors = read_weights(weights)
    arrays = {name: tensor.float().numpy() for name, tensor in tensors.items()}
    if config.tied:
        arrays.setdefault("output.weight", arrays["tok_embeddings.weight"])
    return PartBuilder(config, arrays, tokens).build(layers)


def make_tokenizer() -> dict[str, Any]:
    """The tokenizer of ``tiny`` as Hugging Face writes it: characters, three of them special."""
    special = [
        {"id": number, "content": piece, "special": True, **dict.fromkeys(FLAGS, False)}
        for number, piece in enumerate(PIECES[:3])
    ]
    model = {
        "type": "BPE",
        "unk_token": PIECES[0],
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {piece: number for number, piece in enumerate(PIECES)},
        "merges": [],
    }
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": model,
    }


def make_config(binaries: Sequence[str]) -> dict[str, Any]:
    """The configuration of ``tiny``."""
    htp = {
        "version": 1,
        "spill-fill-bufsize": 0,
        "mmap-budget": 0,
        "use-mmap": False,
        "cpu-mask": "0xe0",
        "poll": False,
        "kv-dim": 8,
    }
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "context": {
                "version": 1,
                "size": CONTEXT,
                "n-vocab": len(PIECES),
                "bos-token": 1,
                "eos-token": 2,
            },
            "tokenizer": {"version": 1, "path": "tokenizer.json"},
            "engine": {
                "version": 1,
                "n-threads": 1,
                "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": htp},
                "model": {
                    "version": 1,
                    "type": "binary",
                    "binary": {"version": 1, "ctx-bins": [*binaries]},
                    "positional-encoding": {"type": "rope", "rope-dim": 4, "rope-theta": 10000},
                },
            },
        }
    }


def name_graph(name: str, part: str) -> str:
    """The name of a graph of a part, as long as the one that it replaces in a context binary."""
    return part.rjust(len(name), "_")


def compile_folder(folder: Path, library: str, *, shared: bool, models: bool) -> None:
    """Write the folder: two parts, each with a graph for prompts and one for single tokens."""
    from ci.onnx.session import open_session

    options = {"backend_path": library, **TARGET}
    work = folder / "work"
    work.mkdir(parents=True)
    # libGenie of QNN 2.51 orders graphs by their names, which onnxruntime-qnn makes of hashes.
    graph_names: dict[bytes, bytes] = {}
    names: dict[int, list[str]] = {CHUNK: [], 1: []}
    for number, layers in enumerate(([0], [1]), start=1):
        for tokens, files in names.items():
            model = work / f"{KINDS[tokens]}_{number}_of_2.onnx"
            onnx.save(make_part(layers, tokens), model)
            context = work / f"{model.stem}_ctx.onnx"
            entries = {
                "ep.context_enable": "1",
                "ep.context_file_path": str(context),
                "ep.context_embed_mode": "0",
                "ep.share_ep_contexts": str(int(shared)),
                "ep.stop_share_ep_contexts": str(int(shared and tokens == 1)),
            }
            session = open_session(model, options, entries)
            del session
            (node,) = onnx.load(context, load_external_data=False).graph.node
            name = name_graph(node.name, model.stem)
            graph_names[node.name.encode()] = name.encode()
            # Of shared contexts, the last session writes the binary, with the name of the first.
            for binary in work.glob("*_qnn.bin") if not shared or tokens == 1 else ():
                file = f"part_{number}_of_2.bin" if shared else f"{model.stem}.bin"
                data = binary.read_bytes()
                for old, new in graph_names.items():
                    data = data.replace(old, new)
                (folder / file).write_bytes(data)
                binary.unlink()
                files.append(file)
            if models:
                model.rename(folder / f"{name}.onnx")
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer()))
    config = make_config([name for group in names.values() for name in group])
    (folder / "genie_config.json").write_text(json.dumps(config))
    shutil.rmtree(work)


if __name__ == "__main__":
    compile_folder(
        Path(sys.argv[1]),
        sys.argv[2],
        shared="--shared" in sys.argv,
        models="--models" in sys.argv,
    )
