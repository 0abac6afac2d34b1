"""Which ONNX models are read, and why others are refused, in bounded time and memory."""

from __future__ import annotations

import os
import pickle
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import ModelProto, TensorProto, helper

from ci.onnx.fitting import parse_shapes
from ci.onnx.models import (
    LIMIT_BYTES,
    MOST_SHOWN,
    check_model,
    external_files,
    find_batch,
    parse_model,
    read_model,
)
from provisioning.errors import UsageError
from tests.qnn_provider.models import build_model, tensor
from tests.stand_ins.snapshots import check_results

SHAPE = (1, 3)
RELU = helper.make_node("Relu", ["x"], ["y"], "n0")
ROOT = Path(__file__).parents[4]
SNAPSHOTS = Path(__file__).with_name("snapshots")
Write = Callable[[bytes], Path]


def relu(
    nodes: Sequence[Any] = (RELU,),
    *,
    inputs: Sequence[Any] = (tensor("x", SHAPE),),
    outputs: Sequence[Any] = (tensor("y", SHAPE),),
    weights: Sequence[Any] = (),
    **versions: int,
) -> ModelProto:
    """y = relu(x), with what is wrong about it."""
    return build_model(nodes, inputs, outputs, weights, **versions)


def late_opset() -> ModelProto:
    model = relu(opset=40)
    model.opset_import.insert(0, helper.make_opsetid("my.ops", 1))
    return model


def two_opsets(domain: str) -> ModelProto:
    model = relu()
    model.opset_import.append(helper.make_opsetid(domain, 13))
    return model


def named_opset(domain: str) -> ModelProto:
    model = relu(opset=40)
    model.opset_import[0].domain = domain
    return model


def of_input(shape: Sequence[int | str | None] | None, kind: int = TensorProto.FLOAT) -> ModelProto:
    return relu(inputs=[helper.make_tensor_value_info("x", kind, shape)])


def external(location: str | None, **sizes: str) -> ModelProto:
    """A weight ``w`` in a file next to the model."""
    weight = TensorProto(name="w", dims=SHAPE, data_type=1, data_location=TensorProto.EXTERNAL)
    if location is not None:
        for key, value in {"location": location, **sizes}.items():
            weight.external_data.add(key=key, value=value)
    return relu([helper.make_node("Add", ["x", "w"], ["y"])], weights=[weight])


def branch(node: Any, depth: int = 1) -> ModelProto:
    """The node inside ``depth`` conditions."""
    for _ in range(depth):
        body = helper.make_graph([node], "body", [], [tensor("y", SHAPE)])
        node = helper.make_node("If", ["x"], ["y"], then_branch=body)
    return relu([node])


def branches(*nodes: Any) -> ModelProto:
    bodies = {
        name: helper.make_graph([node], "body", [], [tensor("y", SHAPE)])
        for name, node in zip(("then_branch", "else_branch"), nodes, strict=True)
    }
    return relu([helper.make_node("If", ["x"], ["y"], **bodies)])


def field(number: int, data: bytes) -> bytes:
    """A part of a protobuf message."""
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data


def nested(depth: int) -> bytes:
    """Graphs in attributes of nodes of graphs."""
    body = b""
    for _ in range(depth):
        body = field(1, field(5, field(6, body)))
    return field(7, body)


LOOP = helper.make_node("Loop", ["x"], ["y"], "steps")
SCAN = helper.make_node("Scan", ["x"], ["y"], "rows", domain="ai.onnx")
FOREIGN = helper.make_node("Fast", ["x"], ["y"], "f", domain="my.ops")
TREE = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], "tree", domain="ai.onnx.ml")
CONSTANT = helper.make_node("Constant", [], ["c"], value=external("../c").graph.initializer[0])
LISTED = helper.make_node("Constant", [], ["c"])
LISTED.attribute.add(name="all", type=9, tensors=external("../c").graph.initializer)
BODIES = helper.make_node("If", ["x"], ["c"])
BODIES.attribute.add(name="all", type=10, graphs=[helper.make_graph([LOOP], "body", [], [])])
SEQUENCE = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, SHAPE)
GOOD = relu().SerializeToString()

# Files that are no models.
NO_MODEL: dict[str, bytes] = {
    "empty": b"",
    "truncated": GOOD[: len(GOOD) // 2],
    "one byte short": GOOD[:-1],
    "text": b"hello, world\n",
    "zeros": bytes(200),
    "page of a server": b"<!DOCTYPE html><html>no</html>",
    "JSON": b'{"error": "denied"}',
    "pickle": pickle.dumps({"a": [1, 2]}, 4),
    "zip": b"PK\x03\x04" + bytes(50),
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "ELF": b"\x7fELF" + bytes(60),
    "a .tflite file": b"\x1c\0\0\0TFL3" + bytes(60),
    "no graph": b"\x08\x0a",
    "a number for a graph": b"\x08\x0a\x38\x05",
    "endless number": b"\x08" + b"\xff" * 30,
    "group": b"\x0b\x0c",
    "deep": nested(2000),
}
# Models that cannot be used.
UNUSABLE: dict[str, ModelProto] = {
    "newer IR": relu(ir=99),
    "newer opset": relu(opset=40),
    "two opsets": two_opsets(""),
    "two opsets of one domain with two names": two_opsets("ai.onnx"),
    "newer opset after another domain": late_opset(),
    "newer opset of ai.onnx": named_opset("ai.onnx"),
    "opset 0": relu(opset=0),
    "no inputs": relu(inputs=[]),
    "no outputs": relu(outputs=[]),
    "dimension with a name": of_input(["batch", 3]),
    "dimension without one": of_input([1, None]),
    "dimension of -1": of_input([-1, 3]),
    "no shape": of_input(None),
    "dimension of 0": of_input([1, 0]),
    "negative dimension": of_input([1, -3]),
    "3 GB": of_input([750_000_000]),
    "3 GB of bytes": of_input([3_000_000_000], TensorProto.UINT8),
    "float64": of_input(SHAPE, TensorProto.DOUBLE),
    "string": of_input(SHAPE, TensorProto.STRING),
    "complex64": of_input(SHAPE, TensorProto.COMPLEX64),
    "complex128": of_input(SHAPE, TensorProto.COMPLEX128),
    "unknown type": of_input(SHAPE, 77),
    "no type of numpy": of_input(SHAPE, TensorProto.BFLOAT16),
    "four bits": of_input(SHAPE, TensorProto.INT4),
    "sequence": relu(inputs=[SEQUENCE]),
    "loop": relu([LOOP]),
    "loop of ai.onnx": relu([SCAN]),
    "loop in a condition": branch(LOOP, 3),
    "unknown domain": relu([FOREIGN]),
    "a tree of scikit-learn, with a batch": relu([TREE], inputs=[tensor("x", (None, 3))]),
    "data is missing": external("w.bin"),
    "data is incomplete": external("small.bin", offset="4", length="12"),
    "an offset of 5,000 digits": external("small.bin", offset="9" * 5000),
    "data above": external("../w.bin"),
    "data above, as Windows writes it": external("..\\w.bin"),
    "data in /etc": external("/etc/passwd"),
    "data of Windows": external("C:\\w.bin"),
    "data through a link": external("link.bin"),
    "data through a circle of links": external("circle.bin"),
    "data is a directory": external("folder"),
    "data is the directory itself": external("."),
    "data of a long name": external("w" * 5000),
    "data is not fetched": external("lfs.bin"),
    "data is a pipe": external("pipe"),
    "data without a name": external(""),
    "data of a name with a zero": external("a\0b"),
    "data without a location": external(None),
    "data of a name with a colon": external("C/w:1.bin"),
    "data of a constant": relu([CONSTANT, RELU]),
    "data of a list in a node": relu([LISTED, RELU]),
    "loop in a list of graphs": relu([BODIES, RELU]),
    "data of a constant in a condition": branch(CONSTANT),
    "loop in the first branch": branches(LOOP, RELU),
    "loop in the second branch": branches(RELU, LOOP),
    "every fault": relu([LOOP, FOREIGN, SCAN], outputs=[], ir=99),
    "many faults": relu([LOOP] * (MOST_SHOWN + 1)),
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "folder").mkdir()
    (folder / "small.bin").write_bytes(bytes(12))
    (folder / "lfs.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (tmp_path / "outside.bin").write_bytes(bytes(12))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "inside.bin").symlink_to("small.bin")
    (folder / "circle.bin").symlink_to("circle.bin")
    os.mkfifo(folder / "pipe")

    def write(data: bytes) -> Path:
        path = folder / "bad.onnx"
        path.write_bytes(data)
        return path

    return write


def test_invalid_onnx_models_are_refused_with_the_reason(write: Write, tmp_path: Path) -> None:
    def read(data: bytes, *shapes: Any) -> Callable[[], object]:
        return lambda: read_model(write(data), shapes)

    calls = {name: read(data) for name, data in NO_MODEL.items()}
    for name, model in UNUSABLE.items():
        calls[name] = read(model.SerializeToString())
    dynamic = of_inputs({"x": ["batch", 3], "h": ["batch", 3]}).SerializeToString()
    for shape in (("z", (1, 3)), ("x", (1,)), ("x", (1, 3, 1)), ("h", (1, 4))):
        calls[f"shape {shape}"] = read(dynamic, ("x", (1, 3)), shape)
    weight = helper.make_tensor("w", TensorProto.FLOAT, SHAPE, [1, 2, 3])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    old = relu([node], inputs=[tensor("w", SHAPE), tensor("x", SHAPE)], weights=[weight], ir=3)
    calls["shape of a weight that is an input"] = read(old.SerializeToString(), ("w", SHAPE))
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in (".", "pipe.onnx", "gone.onnx"):
        calls[name] = partial(read_model, tmp_path / name)
    for word in ("x", "=1,2", "x=1,,2", "x=0", "x=-1,3", "x=1x3", "x=a"):
        calls[f"--shape {word}"] = partial(parse_shapes, [word])
    check_results(SNAPSHOTS / "models.txt", calls, tmp_path)


def test_valid_onnx_models_are_accepted(write: Write) -> None:
    assert [node.op_type for node in read_model(write(GOOD)).graph.node] == ["Relu"]
    for name in ("small.bin", "inside.bin"):
        path = write(external(name).SerializeToString())
        assert external_files(read_model(path), path) == [path.parent / name]
    dynamic = write(of_input(["batch", 3]).SerializeToString())
    assert external_files(read_model(dynamic, [("x", (1, 3))]), dynamic) == []
    initial = TensorProto(name="w", dims=[2], data_type=1, raw_data=bytes(8))
    foreign = relu()
    foreign.opset_import.add(domain="my.ops", version=99)
    function = relu([FOREIGN])
    function.functions.add(domain="my.ops", name="Other")
    function.functions.add(domain="my.ops", name="Fast")
    good = {
        "a weight that is an input": relu(
            inputs=[tensor("x", SHAPE), tensor("w", ["N"])], weights=[initial]
        ),
        "a scalar": relu(inputs=[tensor("x", [])]),
        "branches": branch(RELU, 10),
        "the largest input": of_input([LIMIT_BYTES // 4]),
        "another Loop": relu([helper.make_node("Loop", ["x"], ["y"], domain="com.microsoft")]),
        "an opset that is not used": foreign,
        "a function of the model": function,
        **{
            str(arguments): relu(**arguments)
            for arguments in ({"opset": 1}, {"opset": 26}, {"ir": 13}, {"ir": 3})
        },
    }
    for model in good.values():
        read_model(write(model.SerializeToString()))


Ports = dict[str, Sequence[int | str | None] | None]


def of_inputs(ports: Ports) -> ModelProto:
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in ports.items()]
    return relu([helper.make_node("Relu", [inputs[0].name], ["y"])], inputs=inputs)


@pytest.mark.parametrize(
    ("ports", "options"),
    [
        ({"x": [-1, 3, "?", "?"]}, "--shape x=1,3,224,224"),
        ({"x": ["?", 3, "?", "?", "?"]}, "--shape x=1,3,128,128,128"),
        ({"my x:0": [None, "n", 3]}, "--shape 'my x:0=1,128,3'"),
        ({"x": ["n", "t"], "h": [2, "n", 8]}, "--shape x=1,128 --shape h=2,1,8"),
        ({"x": None, "h": [2]}, "--shape x=1,3,224,224"),
        ({"x": ["seq_len", 1, "n"]}, "--shape x=128,1,128"),
    ],
)
def test_dynamic_shapes_are_refused_with_the_options_that_fix_them(
    ports: Ports, options: str, write: Write
) -> None:
    path = write(of_inputs(ports).SerializeToString())
    with pytest.raises(UsageError) as caught:
        check_model(parse_model(path), path, "qnn-ci test-onnx --model 'a b.onnx'")
    assert caught.value.fix.endswith(f"\n    qnn-ci test-onnx --model 'a b.onnx' {options}")
    assert all(f"{name!r}" in caught.value.what for name in ports if f"{name}=" in options)
    shapes = parse_shapes([argument for argument in shlex.split(options) if argument != "--shape"])
    assert read_model(path, shapes.items())


@pytest.mark.parametrize(
    ("ports", "shapes", "name", "batch"),
    [
        ({"x": ["?", 3], "ids": ["?"]}, {}, "?", {"x": (1, 3), "ids": (1,)}),
        ({"x": ["n", 3], "h": [2, 1, 8], "s": []}, {}, "n", {"x": (1, 3)}),
        ({"x": ["n", 3], "h": ["m", 3]}, {"x": (4, 3)}, "m", {"h": (1, 3)}),
        ({"x": ["n", 3], "h": ["n", 3]}, {"x": (4, 3)}, "", {}),  # 1 would contradict 4
        ({"x": ["n", 3], "h": ["m", 3]}, {}, "", {}),
        ({"x": ["n", 3, "h", "w"]}, {}, "", {}),
        ({"x": ["n", 3], "h": [2, "n"]}, {}, "", {}),
        ({"x": ["n"]}, {}, "", {}),
        ({"x": ["seq_len", 1, 40]}, {}, "", {}),
        ({"x": None}, {}, "", {}),
        ({"x": [1, 3]}, {}, "", {}),
    ],
)
def test_a_dynamic_first_dimension_is_a_batch_if_no_other_dimension_varies(
    ports: Ports, shapes: dict[str, tuple[int, ...]], name: str, batch: dict[str, tuple[int, ...]]
) -> None:
    assert find_batch(of_inputs(ports), shapes.items()) == (name, batch)


def test_a_model_or_weights_that_are_too_large_are_refused(write: Write) -> None:
    path = write(external("small.bin").SerializeToString())
    assert read_model(path)
    os.truncate(path.with_name("small.bin"), 2 << 30)
    with pytest.raises(UsageError, match="and its weights are longer"):
        read_model(path)
    os.truncate(path, (2 << 30) + 1)
    with pytest.raises(UsageError, match=r"longer than(.|\n)*split the model"):
        read_model(path)


# Prints why a model is refused, the memory in KiB that reading it took, and whether the limit of
# memory is as before.
READ_LIMITED = """
import resource
import sys
from pathlib import Path

from ci.onnx import models
from provisioning.errors import UsageError


def read_peak_kib():
    # Not getrusage's, which a process has from the one that started it.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


models.MEMORY_BASE = int(sys.argv[2])
limits = resource.getrlimit(resource.RLIMIT_DATA)
before_kib = read_peak_kib()
try:
    models.read_model(Path(sys.argv[1]))
except UsageError as error:
    print(error.why.splitlines()[0])
print(read_peak_kib() - before_kib)
print(limits == resource.getrlimit(resource.RLIMIT_DATA))
"""


@pytest.mark.parametrize(("limit_bytes", "is_limited"), [(16 << 20, True), (512 << 20, False)])
def test_an_onnx_file_that_would_use_all_memory_is_refused(
    limit_bytes: int, is_limited: bool, tmp_path: Path
) -> None:
    """Each of its nodes has two bytes in the file and a hundred in memory. It is read in a new
    process: in one that ran other tests, the memory that these left free counts."""
    path = tmp_path / "bomb.onnx"
    path.write_bytes(field(7, field(1, b"") * 1_000_000))
    argv = [sys.executable, "-c", READ_LIMITED, str(path), str(limit_bytes)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    reason, growth_kib, is_restored = ended.stdout.splitlines()
    assert ("cannot be parsed completely" in reason) is is_limited  # else its nodes are refused
    assert (int(growth_kib) < 64 << 10) is is_limited
    assert is_restored == "True"


def test_a_damaged_onnx_model_raises_only_usage_errors(write: Write) -> None:
    content = external("small.bin").SerializeToString()
    dice = random.Random(17)
    refused = 0
    for _ in range(400):
        data = bytearray(content)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        if dice.random() < 0.3:
            del data[dice.randrange(len(data)) :]
        try:
            read_model(write(bytes(data)))
        except UsageError:
            refused += 1
    assert refused > 150
