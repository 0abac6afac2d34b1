"""What is checked of a file that LiteRT's plugin compiled, before the emulator runs it: the
emulator also runs programs for another SoC, and those of other models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.litert_file import read_model
from ci.litert.compiled import CompiledModel, check_order, check_target, clean_name
from ci.litert.engine import describe_problems
from ci.litert.suite import Net
from provisioning.errors import FailedError, QnnCiError
from tests.stand_ins.litert import (
    make_compiled,
    make_flexbuffer,
    make_model,
    make_operator,
    make_tensor,
)
from tests.stand_ins.lowered import Vector, make_binary


@dataclass(frozen=True)
class Wrong:
    """A file that is no program for SM8650, and what the error says."""

    data: bytes
    message: str


WRONG = {
    "a context for another SoC": Wrong(
        make_compiled(binary=make_binary(soc=("SM8750", 69, 79)), stamp=b"Qualcomm\0SM8750"),
        "is compiled for SM8750, not for SM8650",
    ),
    "a stamp of another SoC": Wrong(
        make_compiled(binary=make_binary(soc=("SM8750", 69, 79))),
        "is stamped as compiled for SM8650",
    ),
    "a cut context": Wrong(make_compiled()[:-1], "was cut short"),
    "no context": Wrong(make_compiled(binary=b"\1" * 99), "contains a context binary that"),
    # Weights that are too short are the compiler's damage, with which partitions can be run.
    "no context, and sparse weights": Wrong(
        make_compiled(binary=b"\1" * 99, weights=b"\1"), "is 99 bytes long, but"
    ),
    "a context without its SoC": Wrong(
        make_compiled(stamp=b"Qualcomm\0SM8750", binary=make_binary(soc=("", 0, 0), graphs=())),
        "says that it is compiled for SM8750, not for SM8650",
    ),
    "the graph of another model": Wrong(make_compiled(), "it has no graph qnn_partition_0"),
    "the tensors of another model": Wrong(
        make_compiled(binary=make_binary(graphs=["qnn_partition_0"])),
        "its tensors are x, but the file's are a",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_refused_with_its_cause(name: str, tmp_path: Path) -> None:
    path = tmp_path / "compiled.tflite"
    path.write_bytes(WRONG[name].data)
    with pytest.raises(QnnCiError) as raised:
        check_target(CompiledModel(path), "SM8650")
    assert WRONG[name].message in str(raised.value)


def make_partition(*results: str) -> bytes:
    """A compiled file of one partition, which returns y and z; its context returns ``results``."""
    binary = make_binary(graphs=["qnn_partition_0"], results=results)
    tensors = [make_tensor(name, (1, 4)) for name in ("x", "y", "z")]

    def build(offset: int) -> bytes:
        place = {"bytecode_offset": offset, "bytecode_size": len(binary)}
        options = make_flexbuffer({**place, "name": "qnn_partition_0"})
        graph = {
            0: Vector(tensors),
            1: Vector([0], "i"),
            2: Vector([1, 2], "i"),
            3: Vector([make_operator(2, (0,), (1, 2), options=options)]),
        }
        return make_model([graph], metadata={"LiteRtStamp": b"Qualcomm\0SM8650".ljust(250, b"\0")})

    return build(len(build(1 << 20))) + binary


def test_a_context_with_its_tensors_in_another_order_runs_here_only(tmp_path: Path) -> None:
    path = tmp_path / "compiled.tflite"
    path.write_bytes(make_partition("y", "z"))
    check_target(CompiledModel(path), "SM8650")
    path.write_bytes(make_partition("z", "y"))
    check_target(CompiledModel(path), "SM8650", is_shipped=False)
    with pytest.raises(FailedError, match="in another order than the file") as raised:
        check_target(CompiledModel(path), "SM8650")
    assert "its tensors are z, y, but the file's are y, z" in raised.value.why


def test_a_context_that_returns_an_unread_result_runs_here_only(tmp_path: Path) -> None:
    net = Net()
    values = net.call("TANH", (net.add_tensor((1, 4), "x"),), (1, 4))
    net.tensors[values].name = b"top/values"
    net.end([0], [values])
    path = tmp_path / "compiled.tflite"
    for results in (("top_values", "y", "z"), ("y", "z", "top_values")):
        path.write_bytes(make_partition(*results))
        check_target(CompiledModel(path), "SM8650", is_shipped=False)
        for source, named in ((None, "top_values to"), (read_model(net.pack()), "of TANH to")):
            with pytest.raises(FailedError, match=named) as raised:
                check_target(CompiledModel(path), "SM8650", source=source)
            assert "LiteRT's plugin makes each result that no operator reads" in raised.value.why
    # Fewer results than the file's, or others, are those of another model.
    for results in (("y",), ("y", "top_values"), ("y", "a", "b"), ("y", "y", "z")):
        path.write_bytes(make_partition(*results))
        with pytest.raises(FailedError, match="belongs to another model"):
            check_target(CompiledModel(path), "SM8650", is_shipped=False)


def make_ports(**ports: tuple[str, str]) -> Any:
    """A model with two inputs and two outputs per signature, in this order."""
    net = Net()
    for key, (inputs, outputs) in ports.items():
        numbers = {name: net.add_tensor((2, 4), name) for name in inputs}
        for name, source in zip("yz", sorted(inputs), strict=True):
            numbers[name] = net.call("TANH", (numbers[source],), (2, 4))
            net.tensors[numbers[name]].name = name.encode()
        net.end([numbers[name] for name in inputs], [numbers[name] for name in outputs], key)
    return read_model(net.pack())


ORDER: dict[str, tuple[str, str]] = {"encode": ("ab", "yz"), "decode": ("ab", "yz")}
REORDERED: dict[str, tuple[dict[str, tuple[str, str]], str]] = {
    "inputs": ({**ORDER, "decode": ("ba", "yz")}, "decode/b, decode/a"),
    "outputs": ({**ORDER, "encode": ("ab", "zy")}, "encode/z, encode/y"),
    "signatures": (dict(reversed(ORDER.items())), "signature decode, signature encode"),
}


@pytest.mark.parametrize("name", REORDERED)
def test_a_compiled_file_with_ports_in_another_order_is_refused_with_its_cause(name: str) -> None:
    ports, listed = REORDERED[name]
    source = make_ports(**ORDER)
    check_order("compiled.tflite", make_ports(**ORDER), source)
    with pytest.raises(FailedError, match="in another order than the model") as raised:
        check_order("compiled.tflite", make_ports(**ports), source)
    assert listed in raised.value.why


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("x", "x"),
        ("model/conv;relu:0", "model_conv_relu_0"),
        ("serving_default_x", "serving_default_x"),
        ("nn.Linear_q;;__main__.Net;", "nn_Linear_q___main___Net_"),
    ],
)
def test_tensors_have_the_names_that_the_plugin_gives_them(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


def test_a_file_whose_operators_on_the_cpu_do_not_load_is_no_program() -> None:
    assert describe_problems(()) == []
    (problem,) = describe_problems(("required_bytes <= bytes", "another"))
    assert "required_bytes <= bytes, and 1 other reason" in problem
