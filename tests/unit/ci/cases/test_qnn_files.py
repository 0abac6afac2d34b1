"""What QNN writes about a graph, read: Saver's source and the CSV of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.cases.qnn_files import count_operators, read_accelerator
from provisioning.errors import FailedError

HEAD = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n"
CYCLES = "0,BACKEND,{},CYCLES,BACKEND,ROOT,Accelerator (execute) time (cycles)\n"
TIME = "0,BACKEND,{},US,BACKEND,ROOT,Accelerator (execute) time\n"
OTHERS = (
    "0,BACKEND,18757,US,BACKEND,ROOT,Accelerator (load binary) time\n"
    "0,NODE,932,CYCLES,BACKEND,SUB-EVENT,Input OpId_2 (cycles)\n"
    '0,NODE,5,CYCLES,BACKEND,SUB-EVENT,"a, node ""named"" so:OpId_3 (cycles)"\n'
    "0,EXECUTE,761,US,BACKEND,ROOT,QNN (execute) time\n"
)


def write_calls(*nodes: tuple[str, str]) -> str:
    """The lines of Saver's source for nodes (name, type)."""
    return "".join(
        f'  Qnn_OpConfigV1_t c_0_{n}_v1 = {{"{name}", "qti.aisw", "{kind}", 0, p, 1, i, 1, o}};\n'
        f"  VALIDATE(error, interface.graphAddNode(context_0, c_0_{n}));\n"
        for n, (name, kind) in enumerate(nodes)
    )


def test_operators_are_counted_by_type_whatever_their_names_say() -> None:
    calls = write_calls(
        ("a", "Transpose"),
        ('b\\", \\"qti.aisw\\", \\"Cast', "Conv2d"),
        ("Conv2d", "Transpose"),
        ("d", "Quantize"),
        ("e", "Add"),
    )
    counts = [(operator.op, operator.count) for operator in count_operators(calls)]
    assert counts == [("Transpose", 2), ("Add", 1), ("Conv2d", 1), ("Quantize", 1)]


def test_operators_that_saver_only_validates_are_not_counted() -> None:
    validated = write_calls(("a", "Relu")).replace("c_0_0", "a_0")
    validated = validated.replace("graphAddNode(context_0,", "backendValidateOpConfig(backend_0,")
    counts = count_operators(validated + write_calls(("a", "Relu"), ("b", "Relu")))
    assert [(count.op, count.count) for count in counts] == [("Relu", 2)]
    with pytest.raises(FailedError, match=r"adds 0 nodes, but describes 0"):
        count_operators(validated)


@pytest.mark.parametrize(
    "calls", ["", write_calls(("a", "Relu")).replace('"qti.aisw", ', ""), "interface.graphAddNode("]
)
def test_saver_code_of_an_unknown_form_is_an_error(calls: str) -> None:
    with pytest.raises(FailedError, match=r"adds [01] nodes, but describes 0"):
        count_operators(calls)


def read(tmp_path: Path, text: str, runs: int = 2, partitions: int = 1) -> dict[str, int]:
    (tmp_path / "profile.csv").write_text(text, encoding="utf-8")
    return read_accelerator(tmp_path / "profile.csv", runs, partitions)


def test_cycles_and_time_are_means_of_the_runs(tmp_path: Path) -> None:
    run = OTHERS + CYCLES + TIME
    detailed = HEAD + run.format(100, 9) + run.format(50, 4)
    assert read(tmp_path, detailed) == {"accelerator_cycles": 75, "accelerator_us": 6}
    assert read(tmp_path, detailed, 1, 2) == {"accelerator_cycles": 150, "accelerator_us": 13}
    basic = HEAD + TIME.format(10) + OTHERS + TIME.format(20)
    assert read(tmp_path, basic) == {"accelerator_us": 15}


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEAD + OTHERS,
        HEAD + TIME.format(1),
        HEAD + TIME.format(1) * 3,
        HEAD + TIME.format("-1") * 2,
        HEAD + TIME.replace("time\n", "time of one core\n").format(1) * 2,
        HEAD + TIME.format("much") * 2,
        "0,BACKEND\n\0\n",
        HEAD + "0,BACKEND\n",
    ],
)
def test_a_profile_with_another_number_of_runs_gives_no_figures(tmp_path: Path, text: str) -> None:
    assert read_accelerator(tmp_path / "profile.csv", 1, 1) == {}
    assert read(tmp_path, text) == {}
