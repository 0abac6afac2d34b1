"""Bad ONNX models: refused with what is wrong, without reading what is large."""

from __future__ import annotations

import os
import pickle
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.onnx.models import check_model, external_files
from provisioning.errors import UsageError
from tests.qnn_provider import raw
from tests.qnn_provider.raw import DOUBLE, attribute, graph, model, node, port, relu, relu_graph

GIANT = 3_000_000_000
GOOD = relu()


def weighted(tensor: bytes) -> bytes:
    """A graph that adds one weight, w."""
    return relu(nodes=[node("Add", ["x", "w"], ["y"])], tensors=[tensor])


def external(location: str, **more: str) -> bytes:
    return weighted(raw.tensor("w", [1, 3], external={"location": location, **more}))


def nested(depth: int) -> bytes:
    body = graph([node("Relu", ["x"], ["i"])], [], [port("i")])
    for _ in range(depth):
        branch = attribute("then_branch", body, 6)
        body = graph([node("If", ["c"], ["i"], attributes=[branch])], [], [port("i")])
    return relu(
        nodes=[
            node("If", ["c"], ["y"], attributes=[attribute("then_branch", body, 6)]),
        ],
        inputs=[port("x"), port("c", [], kind=9)],
    )


LOOP = node("Loop", ["x"], ["y"], name="steps", attributes=[attribute("body", relu_graph(), 6)])

# What is in the file, and what the error has to say.
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "bad.onnx is empty"),
    "truncated": (GOOD[: len(GOOD) // 2], "cut short"),
    "one byte short": (GOOD[:-1], "cut short"),
    "text": (b"hello, world\n", "cannot be read as one"),
    "zeros": (bytes(200), "a field of number 0"),
    "page of a server": (b"<!DOCTYPE html><html>no</html>", "HTML or XML"),
    "JSON": (b'{"error": "denied"}', "it is JSON"),
    "pickle": (pickle.dumps({"a": [1, 2]}, 4), "a Python pickle"),
    "zip": (b"PK\x03\x04" + bytes(50), "torch.save"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "no graph": (raw.message((1, 10), (2, "x")), "it has no graph"),
    "two graphs": (GOOD + raw.message((7, relu_graph())), "it has 2 graphs"),
    "a number for a graph": (raw.message((1, 10), (7, 5)), "a number where bytes belong"),
    "bytes for a number": (raw.message((1, b"ab"), (7, b"")), "bytes where a number belongs"),
    "endless number": (b"\x08" + b"\xff" * 30, "a number that does not end"),
    "group": (b"\x0b\x0c", "wire type 3"),
    "huge name": (relu(nodes=[node("R" * 70_000, ["x"], ["y"])]), "a name of 70000 bytes"),
    "name in Latin-1": (relu(nodes=[raw.message((1, b"\xe9"), (4, "Relu"))]), "utf-8"),
    "newer IR": (model(relu_graph(), ir=99), "IR version is 99, ONNX Runtime takes 1 to 13"),
    "no IR": (model(relu_graph(), ir=0), "IR version is 0"),
    "newer opset": (model(relu_graph(), opsets={"": 40}), "opset is 40, ONNX Runtime takes 1"),
    "opset 0": (model(relu_graph(), opsets={"": 0}), "opset is 0"),
    "no opset": (model(relu_graph(), opsets={}), "it names no opset"),
    "domain not imported": (
        relu(nodes=[node("Relu", ["x"], ["y"], domain="my.ops")]),
        "'my.ops', which the model does not import",
    ),
    "unknown domain": (
        model(
            relu_graph(nodes=[node("Fast", ["x"], ["y"], domain="my.ops", name="f")]),
            opsets={"": 21, "my.ops": 1},
        ),
        "Fast 'f' is of domain 'my.ops', which ONNX Runtime does not have",
    ),
    "no inputs": (relu(nodes=[node("Relu", ["x"], ["y"])], inputs=[]), "it has no inputs"),
    "no outputs": (relu(outputs=[]), "it has no outputs"),
    "no nodes": (relu(nodes=[]), "it has no nodes"),
    "dynamic by name": (relu(inputs=[port("x", ["batch", 3])]), "dimension 0 of input 'x'"),
    "dynamic": (relu(inputs=[port("x", [1, None])]), "is not given: QNN has fixed shapes only"),
    "no shape": (relu(inputs=[port("x", None)]), "input 'x' has no shape"),
    "dimension of 0": (relu(inputs=[port("x", [1, 0])]), "has a dimension of 0"),
    "negative dimension": (relu(inputs=[port("x", [1, -3])]), "has a dimension of -3"),
    "3 GB input": (
        relu(inputs=[port("x", [GIANT // 4])]),
        "has 2861 MiB, a graph on HTP at most",
    ),
    "float64 input": (relu(inputs=[port("x", kind=DOUBLE)]), "float64, which QNN does not have"),
    "string input": (relu(inputs=[port("x", kind=8)]), "is string, which"),
    "sequence input": (
        relu(inputs=[raw.message((1, "x"), (2, raw.message((4, b""))))]),
        "input 'x' is not a tensor",
    ),
    "loop": (relu(nodes=[LOOP]), "it has Loop 'steps': QNN has no loops"),
    "deep": (nested(40), "graphs inside graphs, more than 16 deep"),
    "nested deeper than Python": (nested(2000), "graphs inside graphs"),
    "circle": (
        relu(
            nodes=[
                node("Add", ["x", "b"], ["a"], name="n"),
                node("Relu", ["a"], ["b"]),
                node("Relu", ["b"], ["y"]),
            ]
        ),
        "read each other in a circle: Add 'n'",
    ),
    "node reads itself": (relu(nodes=[node("Add", ["x", "y"], ["y"])]), "in a circle"),
    "reads nothing": (relu(nodes=[node("Add", ["x", "gone"], ["y"])]), "reads 'gone'"),
    "output of nothing": (relu(outputs=[port("z")]), "output 'z' is made by no node"),
    "made twice": (relu(nodes=[node("Relu", ["x"], ["y"])] * 2), "'y' is there twice"),
    "weight twice": (
        relu(tensors=[raw.tensor("w", [1], bytes(4))] * 2),
        "'w' is there twice",
    ),
    "node makes the input": (
        relu(nodes=[node("Relu", ["x"], ["x"]), node("Relu", ["x"], ["y"])]),
        "makes 'x', which is an input",
    ),
    "weight too short": (weighted(raw.tensor("w", [1, 3], bytes(8))), "needs 12 bytes and has 8"),
    "weight too long": (weighted(raw.tensor("w", [1, 3], bytes(16))), "needs 12 bytes and has 16"),
    "weight of 3 GB": (
        weighted(raw.tensor("w", [GIANT // 4], bytes(8))),
        "needs 3000000000 bytes and has 8",
    ),
    "weight of 3 GB without data": (weighted(raw.tensor("w", [GIANT // 4])), "has no data"),
    "weight of too many dimensions": (weighted(raw.tensor("w", [2] * 5000, b"")), "and has 0"),
    "negative weight": (weighted(raw.tensor("w", [-1], b"")), "has a dimension of -1"),
    "element type": (weighted(raw.tensor("w", [3], bytes(12), kind=77)), "the element type 77"),
    "data is missing": (external("w.bin"), "'w.bin', is not there"),
    "data above": (external("../w.bin"), "leads out of the model's directory with '..'"),
    "data in /etc": (external("/etc/passwd"), "is an absolute path"),
    "data of Windows": (external("C:\\w.bin"), "is an absolute path"),
    "data through a link": (external("link.bin"), "is a symbolic link that leads out"),
    "data is a directory": (external("folder"), "is a directory"),
    "data without a name": (external(""), "has no name"),
    "data of 3 GB": (external("small.bin", length=str(GIANT)), "which has 16"),
    "data behind the end": (external("small.bin", offset="12"), "bytes 12 to 24"),
    "data before the start": (external("small.bin", offset="-4"), "bytes -4 to"),
    "data of other length": (external("small.bin", length="8"), "needs 12 bytes and has 8 in"),
    "offset is a word": (external("small.bin", offset="x"), "not a number"),
    "external without location": (
        weighted(raw.tensor("w", [1, 3], external={})),
        "without a location",
    ),
    "data of a constant above": (
        relu(
            nodes=[
                node(
                    "Constant",
                    [],
                    ["c"],
                    attributes=[
                        attribute("value", raw.tensor("v", [1], external={"location": "../c"}), 5)
                    ],
                ),
                node("Add", ["x", "c"], ["y"]),
            ]
        ),
        "leads out of the model's directory",
    ),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "folder").mkdir()
    (folder / "small.bin").write_bytes(bytes(16))
    (tmp_path / "outside.bin").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")

    def write(data: bytes) -> Path:
        path = folder / "bad.onnx"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("name", BAD)
def test_a_bad_model_is_refused(name: str, write: Callable[[bytes], Path]) -> None:
    data, says = BAD[name]
    with pytest.raises(UsageError) as caught:
        check_model(write(data))
    error = caught.value
    assert says in f"{error.what} {error.why} {error.fix}"
    assert error.fix
    assert "bad.onnx" in error.what


def test_good_models_are_let_through(write: Callable[[bytes], Path]) -> None:
    found = check_model(write(GOOD))
    assert [one.op_type for one in found.graph.nodes] == ["Relu"]
    assert found.graph.inputs[0].dims == (1, 3)
    assert (found.ir_version, found.opsets) == (10, {"": 21})
    within = external("small.bin", offset="4")
    assert external_files(write(within)) == [write(within).parent / "small.bin"]
    out_of_order = [node("Relu", ["a"], ["y"]), node("Relu", ["x"], ["a"])]
    check_model(write(relu(nodes=out_of_order)))
    check_model(
        write(relu(inputs=[port("x"), port("w", ["N"])], tensors=[raw.tensor("w", [2], bytes(8))]))
    )


def test_a_function_of_the_model_is_no_unknown_operator(write: Callable[[bytes], Path]) -> None:
    body = relu_graph(nodes=[node("Fast", ["x"], ["y"], domain="my.ops")])
    whole = model(body, opsets={"": 21, "my.ops": 1})
    function = raw.message((1, "Fast"), (10, "my.ops"))
    assert check_model(write(whole + raw.message((25, function)))).functions == {("my.ops", "Fast")}
    with pytest.raises(UsageError, match=r"'my\.ops', which ONNX Runtime does not have"):
        check_model(write(whole + raw.message((25, raw.message((1, "Slow"), (10, "my.ops"))))))


def test_how_to_fix_a_dynamic_shape_is_said_as_a_command(write: Callable[[bytes], Path]) -> None:
    with pytest.raises(UsageError) as caught:
        check_model(write(relu(inputs=[port("x", ["batch", 3])])))
    command = "make_dynamic_shape_fixed --dim_param batch --dim_value 1 bad.onnx fixed.onnx"
    assert command in caught.value.fix
    with pytest.raises(UsageError) as caught:
        check_model(write(relu(inputs=[port("x", [None, 3])])))
    assert "--input_name x --input_shape 1,3 bad.onnx" in caught.value.fix


def test_what_is_wrong_besides_is_said_too(write: Callable[[bytes], Path]) -> None:
    with pytest.raises(UsageError) as caught:
        check_model(write(model(relu_graph(outputs=[]), ir=99)))
    assert "IR version" in caught.value.what
    assert "no outputs" in caught.value.why


def test_a_directory_a_pipe_and_nothing_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in (".", "pipe.onnx", "gone.onnx"):
        with pytest.raises(UsageError, match="cannot read"):
            check_model(tmp_path / name)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """A gigabyte of weights that are not there, in a sparse file."""
    size = 1 << 30
    head = raw.varint(9 << 3 | 2) + raw.varint(size)
    fields = [(1, size // 4), (2, 1), (8, "w")]
    weight = raw.message(*fields) + head
    length = len(weight) + size
    inner = relu_graph(nodes=[node("Add", ["x", "w"], ["y"])])
    opening = inner + raw.varint(5 << 3 | 2) + raw.varint(length) + weight
    whole = raw.message((1, 10), (8, raw.message((2, 21))))
    whole += raw.varint(7 << 3 | 2) + raw.varint(len(opening) + size) + opening
    path = tmp_path / "large.onnx"
    path.write_bytes(whole)
    os.truncate(path, len(whole) + size)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert check_model(path).graph.tensors[0].raw == size
    assert time.monotonic() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    os.truncate(path, (2 << 30) + 1)
    with pytest.raises(UsageError, match="too large"):
        check_model(path)


def test_no_damage_gives_anything_but_an_error(write: Callable[[bytes], Path]) -> None:
    whole = weighted(raw.tensor("w", [1, 3], bytes(12)))
    dice = random.Random(17)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        if dice.random() < 0.3:
            del data[dice.randrange(len(data)) :]
        try:
            check_model(write(bytes(data)))
        except UsageError:
            refused += 1
    assert refused > 200
