"""Graphs as text, the table of known faults, and patterns in graphs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ci.analysis.steps import Operand, Step
from ci.faults.graph import Graph, Node, Tensor, parse_graph
from ci.faults.known import (
    ENDS,
    Frontend,
    Pattern,
    Tried,
    describe,
    find_pattern,
    read_faults,
    relate,
)
from ci.graphs.graph import LITERT
from provisioning.errors import ManifestError, UsageError
from tests.stand_ins.snapshots import check_snapshot

ROW = """
[[fault]]
name = "one"
title = "a"
owner = "qnn"
seen = "b"
remedy = "c"
same_as = [{other_names}]
graph = '''
x = input(2, 4)
p = constant(4)
s = add(x, p)
return s
'''
pattern = {{ operators = [{operators}], schemes = ["{scheme}"], constant = "{constant}"{also} }}
{other_keys}
"""


def write(
    path: Path,
    *,
    operators: str = '"add"',
    scheme: str = "fp16",
    constant: str = "over_rows",
    also: str = "",
    other_names: str = "",
    other_keys: str = "",
) -> Path:
    file = path / "faults.toml"
    file.write_text(
        ROW.format(
            operators=operators,
            scheme=scheme,
            constant=constant,
            also=also,
            other_names=f'"{other_names}"' if other_names else "",
            other_keys=other_keys,
        ),
        encoding="utf-8",
    )
    return file


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "0 lines"),
        ("x = input(", "cannot be parsed"),
        ("x = input(2)\nreturn x", "not an operator's result"),
        ("x = input(2)\ny = relu(z)\nreturn y", "z is not a tensor from"),
        ("x = input(2)\nx = relu(x)\nreturn x", "defined twice"),
        ("x = input(2)\ny = __import__(x)\nreturn y", "no operator '__import__'"),
        ("x = input(2)\ny = relu(x, axis=open('a'))\nreturn y", "not a literal"),
        ("x = input(2)\ny = relu(x, axis='a')\nreturn y", "not a number"),
        ("x = input(0)\ny = relu(x)\nreturn y", "positive"),
        ("x = input(99999, 99999)\ny = relu(x)\nreturn y", "elements"),
        ("x = input(2, like='huge')\ny = relu(x)\nreturn y", "'like' must be one of"),
        ("import os\nreturn os", "NAME = OPERATOR"),
        ("x = input(2)\n" * 130, "130 lines"),
        ("#" * 9000, "9000 characters"),
        ("x = " + "(" * 3000 + ")" * 3000, "cannot be parsed|NAME = OPERATOR"),
    ],
)
def test_invalid_graph_text_is_refused_with_the_reason(text: str, word: str) -> None:
    with pytest.raises(UsageError, match="valid graph") as refusal:
        parse_graph(text)
    assert any(part in (refusal.value.why or "") for part in word.split("|"))


def test_graph_text_is_parsed_and_printed_without_loss() -> None:
    text = (
        'x = input(2, 3, like="large")\nk = constant(3)\nz = constant(3, value=0)\nu = input(2)\n'
        "a = add(z, x)\nr = mean(a, axes=[-1, 0], keep=0)\nc = clip(x, low=-1.5, high=2)\n"
        "s = add(r, u)\nreturn c, s\n"
    )
    graph = parse_graph(text)
    assert graph == Graph(
        {
            "x": Tensor((2, 3), is_input=True, like="large"),
            "z": Tensor((3,), is_input=False, value=0.0),
            "u": Tensor((2,), is_input=True),
        },
        {
            "a": Node("add", ("z", "x")),
            "r": Node("mean", ("a",), {"axes": (-1, 0), "keep": 0}),
            "c": Node("clip", ("x",), {"low": -1.5, "high": 2}),
            "s": Node("add", ("r", "u")),
        },
        ("c", "s"),
    )
    assert str(graph) == text.replace("k = constant(3)\n", "")
    assert (graph.inputs, graph.operators) == (["x", "u"], ("add", "mean", "clip", "add"))
    assert [graph.is_constant(name) for name in ("x", "z", "a")] == [False, True, False]


def test_the_table_is_read_and_each_graph_has_its_pattern() -> None:
    faults = read_faults()
    assert {"broadcast-add-before-norm", "batch-norm-alone"} <= {fault.name for fault in faults}
    first = faults[0]
    assert first.applies("fp16", "2.49.40.1")
    assert not first.applies("8a8w")
    times = next(fault for fault in faults if fault.name == "broadcast-mul-before-norm")
    assert not times.applies("fp16", "2.48.40")
    assert times.applies("fp16", "2.49.40")
    assert times.applies("fp16", "3.0.0")  # not tried: it may be there


TRIED = '[[fault.tried]]\nfrontend = "onnx"\nscheme = "u8"\n'


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"operators": ""}, "no operator"),
        ({"operators": '"relu"'}, "does not contain its pattern"),
        ({"constant": "over_batch"}, "does not contain its pattern"),
        ({"other_keys": "colour = 1"}, "unknown field|unknown key|colour"),
        (
            {"other_keys": f'{TRIED}wrong = ["2.49.40"]\nright = ["2.49.40"]'},
            "a version of QNN twice",
        ),
        *(({"other_keys": f'{TRIED}{end} = ["old"]'}, "'old' is not a version") for end in ENDS),
        ({"operators": '"add", "mull"'}, "no operator 'mull'"),
        ({"operators": '"add|subb"'}, "no operator 'subb'"),
        ({"also": ', not_after = ["relu", "rellu"]'}, "no operator 'rellu'"),
        ({"also": ', not_before = ["tanh", "tan"]'}, "no operator 'tan'"),
        ({"scheme": 'fp16", "9a9w'}, "no scheme '9a9w'"),
        ({"other_names": "one"}, "no other fault 'one'"),
        ({"other_names": "two"}, "no other fault 'two'"),
    ],
)
def test_a_fault_row_that_could_never_match_is_refused(
    tmp_path: Path, change: dict[str, str], word: str
) -> None:
    assert read_faults(write(tmp_path))
    with pytest.raises(ManifestError) as refusal:
        read_faults(write(tmp_path, **change))
    assert any(part in str(refusal.value) for part in word.split("|"))
    assert f"{tmp_path}/faults.toml" in str(refusal.value)


def test_a_graph_is_described_as_the_steps_of_a_model_are() -> None:
    rows = [
        *("x = input(2, 3)\ny = pow(x, base=-2.5)",),
        *("x = input(2, 3)\nu = constant(3, value=-5)\ny = pow(x, u)",),
        *("x = input(2, 1, 8)\nz = constant(3, 1, value=0)\ny = add(x, z)",),
        *("x = input(2, 1, 8)\nz = constant(3, 1, value=2)\ny = maximum(x, z)",),
        *("x = input(2, 3, 8)\ny = pad(x, axis=1, before=2, after=1, value=7)",),
        *("x = input(2, 3, 8)\ny = pad(x, axis=-1, before=2, after=1)",),
        *(
            f"x = input(2, 4, 6, 5)\nw = constant(8, 2, 3, 2)\ny = {call}"
            for call in (
                *("conv(x, w)", "conv(x, w, stride=2, pad=5, groups=2)"),
                "avg_pool(x, kernel=2, stride=1)",
                "avg_pool(x, kernel=3, stride=2, pad=1, counts_pad=0)",
            )
        ),
    ]
    lines = []
    for text in rows:
        lines.append(f"{text}\n")
        lines += [
            f"  {step}\n" for step in describe(parse_graph(f"{text}\nz0 = relu(y)\nreturn z0"))
        ]
    check_snapshot(Path(__file__).parent / "snapshots" / "described.txt", "".join(lines))


def test_a_pattern_needs_its_magnitude_and_no_operator_before_it() -> None:
    before = [Step(operator, operator, (), (), (2, 4)) for operator in ("relu", "tanh")]
    pattern = Pattern(("add",), ("fp16",), min_magnitude=2.0, not_after=("tanh",))
    for sources, magnitude, fits in (
        (("", ""), 2.0, True),
        (("", ""), 1.9, False),
        (("relu", "relu"), 2.0, True),
        (("relu", "tanh"), 2.0, False),
        (("tanh", ""), 2.0, False),
    ):
        operands = (Operand((2, 4), magnitude=1.0), Operand((2, 4), magnitude=magnitude))
        step = Step("a", "add", operands, sources, (2, 4))
        assert bool(find_pattern(pattern, [*before, step])) is fits
        computed = Pattern(("add",), ("fp16",), computed=True)
        assert bool(find_pattern(computed, [*before, step])) is any(sources)
    bare = Step("r", "rand", (), (), ())  # it has neither operands nor a known shape
    for conditions, fits in (
        ({}, True),
        ({"min_batch": 2}, False),
        ({"min_magnitude": 0.1}, False),
    ):
        assert bool(find_pattern(Pattern(("rand",), ("fp16",), **conditions), [bare])) is fits


def test_a_fault_pattern_matches_through_any_operand() -> None:
    steps = [
        Step("r", "relu", (), ("",), (2,)),
        Step("t", "tanh", (), ("",), (2,)),
        Step("a", "add", (), ("r", "t"), (2,)),
        Step("n", "neg", (), ("", "a"), (2,)),
    ]
    chains = find_pattern(Pattern(("tanh", "add", "neg"), ("fp16",)), steps)
    (chain,) = chains
    assert [step.name for step in chain] == ["t", "a", "n"]
    assert find_pattern(Pattern(("tanh", "neg"), ("fp16",)), steps) == []


def test_a_fault_pattern_matches_only_with_its_conditions() -> None:
    pattern = Pattern(
        ("add", "layer_norm|softmax"), ("fp16",), constant="over_batch", min_batch=2, ranks=(3,)
    )
    steps = [
        Step("a", "add", (Operand((2, 4, 8)), Operand((4, 8), constant=True)), ("", ""), (2, 4, 8)),
        Step("n", "layer_norm", (Operand((2, 4, 8)),), ("a",), (2, 4, 8)),
        Step("s", "softmax", (Operand((2, 4, 8)),), ("a",), (2, 4, 8)),
        Step("t", "softmax", (Operand((2, 4, 8)),), ("n",), (2, 4, 8)),
    ]
    chains = find_pattern(pattern, steps)
    to_norm, to_softmax = chains
    assert [step.name for step in to_norm] == ["a", "n"]
    assert [step.name for step in to_softmax] == ["a", "s"]


def test_a_pattern_with_not_before_does_not_match_before_that_operator() -> None:
    first = Step("a", "add", (Operand((2, 4)), Operand((2, 4))), ("", ""), (2, 4))
    for word, sources, fits in (
        *(("relu", ("a",), False), ("relu", ("", "a"), False), ("relu", ("",), True)),
        *(("tanh", ("a",), True), ("tanh", ("", "a"), True)),
    ):
        pattern = Pattern(("add",), ("fp16",), not_before=(word,))
        reader = Step("r", "relu", (Operand((2, 4)),), sources, (2, 4))
        assert bool(find_pattern(pattern, [first, reader])) is fits


@pytest.mark.parametrize(
    ("values", "limits", "fits"),
    [
        ((3.0, 3.0), ((2.0, 4.0),), True),
        ((3.0, 5.0), ((2.0, 4.0),), False),  # one limit is for all numbers
        ((5.0, 3.0), ((2.0, 4.0),), False),
        ((3.0, 5.0), ((2.0, 4.0), (5.0, 6.0)), True),
        ((5.0, 3.0), ((2.0, 4.0), (5.0, 6.0)), False),
        ((3.0, 5.0, 9.0), ((2.0, 4.0), (5.0, 6.0)), True),
        ((3.0,), ((2.0, 4.0), (5.0, 6.0)), False),
        ((2.0, 4.0), ((2.0, 4.0),), True),  # met exactly
        ((), ((2.0, 4.0),), False),
    ],
)
def test_one_limit_covers_all_numbers_of_an_argument_and_several_one_each(
    values: tuple[float, ...], limits: tuple[tuple[float, float], ...], fits: bool
) -> None:
    pattern = Pattern(("add", "pad"), ("fp16",), numbers={"pad": limits})
    first = Step("a", "add", (Operand((2, 4)),), ("",), (2, 4))
    step = Step("p", "pad", (Operand((2, 4)),), ("a",), (2, 4), {"pad": values})
    assert bool(find_pattern(pattern, [first, step])) is fits


@pytest.mark.parametrize(
    ("shape", "relations"),
    [
        ((16, 64), {"any", "over_batch"}),
        ((1, 16, 64), {"any", "over_batch"}),
        ((1, 16, 1), {"any", "over_batch"}),
        ((2, 16, 64), {"any", "whole"}),
        ((64,), {"any", "over_rows"}),
        ((1,), {"any", "scalar"}),
        ((2, 1, 64), {"any"}),
    ],
)
def test_the_shape_of_a_constant_gives_its_relation_to_the_result(
    shape: tuple[int, ...], relations: set[str]
) -> None:
    operands = (Operand((2, 16, 64)), Operand(shape, constant=True))
    assert relate(Step("s", "add", operands, ("", ""), (2, 16, 64))) == relations


def row(scheme: str, frontend: Any = "onnx", **versions: Any) -> Tried:
    return Tried(frontend, scheme, **versions)


OLD, NEW = ("2.49.40",), ("2.50.40",)


@pytest.mark.parametrize(
    ("tried", "applies"),
    [
        ((), True),
        ((row("fp16", right=NEW),), False),
        ((row("fp16", wrong=NEW),), True),
        ((row("fp16", right=OLD),), True),  # not tried with this version
        ((row("16a8w", right=NEW),), False),  # right wherever it was tried
        ((row("16a8w", refused=NEW),), True),
        ((row("fp16", right=NEW), row("16a8w", wrong=NEW)), False),  # its own scheme's counts
        ((row("fp16", wrong=NEW), row("16a8w", right=NEW)), True),
        ((row("fp16", right=NEW), row("fp16", "executorch", crashed=NEW)), True),
        ((row("fp16", right=NEW), row("fp16", "executorch", right=NEW)), False),
    ],
)
def test_a_fault_applies_unless_every_result_of_its_scheme_was_right(
    tried: tuple[Tried, ...], applies: bool
) -> None:
    first = read_faults()[0]
    pattern = structs.replace(first.pattern, schemes=("fp16", "16a8w"))
    fault = structs.replace(first, pattern=pattern, tried=tried)
    assert fault.applies("fp16", "2.50.40") is applies
    assert not fault.applies("8a8w", "2.50.40")


@pytest.mark.parametrize(
    ("tried", "front_end", "scheme", "applies"),
    [
        ((), "litert", "int8", True),  # as in the schemes with integers of 8 bits
        ((), "litert", "int16", False),
        ((), "onnx", "int8", False),  # 8a8w is a scheme of ExecuTorch
        ((row("8a8w", right=NEW),), "litert", "int8", False),
        # LiteRT's own results decide for its models, and for no others.
        ((row("8a8w", right=NEW), row("int8", "litert", wrong=NEW)), "litert", "int8", True),
        ((row("8a8w", wrong=NEW), row("int8", "litert", right=NEW)), "litert", "int8", False),
        ((row("fp16", wrong=NEW), row("fp16", "litert", right=NEW)), "litert", "fp16", False),
        ((row("fp16", right=NEW), row("fp16", "litert", wrong=NEW)), "executorch", "fp16", False),
        ((row("8a8w", right=NEW), row("int16", "litert", wrong=NEW)), "litert", "int16", True),
    ],
)
def test_the_results_of_a_front_end_decide_for_files_that_contain_their_quantization(
    tried: tuple[Tried, ...], front_end: str, scheme: str, applies: bool
) -> None:
    first = read_faults()[0]
    pattern = structs.replace(first.pattern, schemes=("fp16", "8a8w"), front_ends=())
    fault = structs.replace(first, pattern=pattern, tried=tried)
    assert fault.applies(scheme, "2.50.40", front_end) is applies


def test_a_fault_of_another_front_end_is_none_of_litert() -> None:
    first = read_faults()[0]
    pattern = structs.replace(first.pattern, front_ends=())
    fault = structs.replace(first, owner="executorch", pattern=pattern, tried=())
    assert fault.applies("fp16", front_end="executorch")
    assert not fault.applies("fp16", front_end="litert")


JOINED = "x = input(2, 8, 4, 4)\nw = constant(8, 8, 1, 1)\ng = constant(8)\nc = conv(x, w)\n"


@pytest.mark.parametrize(
    ("end", "count"),
    [
        ("n = batch_norm(c, g, g, g, g)\ny = add(c, n)", 1),
        ("n = batch_norm(c, g, g, g, g)\ny = relu(n)", 0),
        ("m = batch_norm(c, g, g, g, g)\nn = batch_norm(m, g, g, g, g)\ny = add(m, n)", 1),
    ],
)
def test_a_batch_norm_behind_a_convolution_that_others_read_is_a_fault_of_the_model(
    end: str, count: int
) -> None:
    (fault,) = (row for row in read_faults() if row.name == "batch-norm-folded-in-use")
    steps = describe(parse_graph(f"{JOINED}{end}\nreturn y"))
    assert len(find_pattern(fault.pattern, steps)) == count
    assert fault.owner == "quantization"


@pytest.mark.parametrize(
    ("operator", "count"), [("conv", 1), ("reshape", 1), ("sigmoid", 0), ("softmax", 0)]
)
def test_a_sigmoid_is_cut_only_if_it_is_joined_with_larger_numbers(
    operator: str, count: int
) -> None:
    (fault,) = (row for row in read_faults() if row.name == "bounded-activation-joined")
    steps = [
        Step("c", "conv", (), ("",), (2, 4)),
        Step("o", operator, (), ("c",), (2, 4)),
        Step("s", "sigmoid", (), ("c",), (2, 4)),
        Step("v", "reshape", (), ("s",), (2, 4)),
        Step("j", "stack", (), ("o", "v"), (2, 2, 4)),
    ]
    assert len(find_pattern(fault.pattern, steps)) == count


def test_wrong_values_explain_no_refusal() -> None:
    faults = {fault.name: fault for fault in read_faults()}
    wrong, refusing = faults["batch-norm-alone"], faults["joint-projection-of-batch"]
    assert wrong.applies("16a8w", "2.49.40")
    assert not wrong.applies("16a8w", "2.49.40", refused=True)
    assert refusing.applies("8a8w", "2.49.40", refused=True)
    assert not refusing.applies("8a8w", "2.49.40", compiled=True)
    # One of which nothing was tried was seen wrong if it has a figure.
    for least_db in (None, -99.0):
        untried = structs.replace(refusing, tried=(), refuses=True, least_db=least_db)
        assert untried.applies("8a8w", "2.49.40", refused=True)
        assert untried.applies("8a8w", "2.49.40", compiled=True) is (least_db is not None)


# What the user of a .tflite file has not: other front ends and their schemes, mend, another QNN.
OF_OTHERS = re.compile(
    r"(?i)executorch|onnx|torchao|\bmend|\bu8|\bu16|\d+a\d+w|QDQ|QNN 2\.|in the scheme"
)


def test_the_remedies_of_tflite_files_are_for_their_users() -> None:
    texts = {}
    for fault in read_faults():
        if any(fault.applies(scheme, "2.51.0", LITERT) for scheme in ("fp16", "int8", "int16")):
            wording = fault.describe(LITERT)
            texts[fault.name] = f"{wording.seen}; {wording.elsewhere}: {wording.remedy}"
    assert len(texts) > 40
    assert {
        name: match[0] for name, text in texts.items() if (match := OF_OTHERS.search(text))
    } == {}
    fault = next(fault for fault in read_faults() if fault.name == "power-of-constant")
    assert fault.describe("executorch").remedy == fault.remedy
    assert fault.remedy in fault.describe(LITERT).remedy != fault.remedy


def test_a_pytorch_model_through_litert_has_the_remedy_of_its_source() -> None:
    for fault in read_faults():
        of_file = fault.describe(LITERT).remedy
        of_source = fault.describe(LITERT, is_file=False).remedy
        assert "from which the file" not in of_source
        assert of_file.endswith(of_source) or "; or, in the model from which" in of_file
    merged = next(row for row in read_faults() if row.name == "broadcast-before-merged-norm")
    assert merged.describe(LITERT, is_file=False).remedy == merged.remedy


@pytest.mark.parametrize(
    ("rows", "qnn", "mended"),
    [
        ([("onnx", "fp16", "2.47.0 2.49.40", "2.50.40 2.51.0")], "2.49.40", "2.50.40"),
        ([("onnx", "fp16", "2.47.0 2.49.40", "2.50.40 2.51.0")], "v2.47.0.260601", "2.50.40"),
        ([("onnx", "fp16", "2.47.0 2.49.40", "2.50.40 2.51.0")], "2.50.40", "2.51.0"),
        ([("onnx", "fp16", "2.49.40", "2.48.40")], "2.49.40", ""),  # only an older one is right
        ([("onnx", "fp16", "2.49.40 2.51.0", "2.50.40")], "2.49.40", ""),  # wrong again
        ([("onnx", "u8", "2.49.40", "2.51.0")], "2.49.40", ""),
        ([("executorch", "fp16", "2.49.40", "2.51.0")], "2.49.40", ""),
        ([], "2.49.40", ""),
    ],
)
def test_a_fault_is_mended_by_the_first_qnn_from_which_on_all_are_right(
    rows: list[tuple[Frontend, str, str, str]], qnn: str, mended: str
) -> None:
    tried = tuple(
        Tried(frontend, scheme, tuple(wrong.split()), tuple(right.split()))
        for frontend, scheme, wrong, right in rows
    )
    fault = structs.replace(read_faults()[0], tried=tried)
    assert fault.find_mended("fp16", qnn, "onnx") == mended


@pytest.mark.parametrize(
    ("call", "front_end", "scheme", "is_known"),
    [
        ("matmul(x, y)", "onnx", "u16a8w", True),
        ("matmul(x, y)", "onnx", "u8", False),
        ("matmul(x, y)", "executorch", "16a8w", False),
        ("matmul(x, w)", "onnx", "u16a8w", False),  # a linear layer
    ],
)
def test_a_product_of_two_computed_tensors_is_computed_in_8_bits(
    call: str, front_end: str, scheme: str, is_known: bool
) -> None:
    text = f"x = input(2, 8, 8)\ny = input(2, 8, 8)\nw = constant(2, 8, 8)\nz = {call}\nreturn z"
    (fault,) = (fault for fault in read_faults() if fault.name == "second-operand-in-8-bits")
    chains = find_pattern(fault.pattern, describe(parse_graph(text), front_end=front_end))
    applies = fault.applies(scheme, "2.51.0", front_end)
    assert bool(chains and applies) == is_known
