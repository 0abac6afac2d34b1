"""ONNX Runtime's lane for real: exported, quantized, compiled, run on the emulator, judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np
import onnx
from onnx import TensorProto, helper

from ci.cases.pipeline import CaseResult, CaseRun
from ci.cases.policy import read_emulator_policy
from ci.cases.pool import Pool
from ci.cases.spec import CaseSpec
from ci.facts.finding import Question
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx.compile import write_context
from ci.onnx.engine import OnnxEngine, make_runner
from ci.report.schema import Status
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from tests.build.setups import make_setup
from tests.qnn_provider.contexts import read_context

pytestmark = pytest.mark.emulator
RunCase = Callable[..., CaseResult]
ROOT = Path(__file__).parents[3]
LIE = "LYING_SESSIONS"  # read by tests.stand_ins.lying_sessions, whose import replaces open_session


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, Path, Path]]:
    """A pool whose sessions lie when they are told to, a place for its files, QNN's libraries."""
    place = tmp_path_factory.mktemp("lane")
    (place / "lie").write_text("")
    (place / "cwd").mkdir()
    environment = provision_profile("onnx", Progress())
    variables = {**environment.apply(os.environ), LIE: str(place / "lie")}
    imports = ("ci.onnx.compile", "tests.stand_ins.lying_sessions")
    with closing(Pool(variables, place / "cwd", imports)) as pool:
        yield pool, place, environment.root("qnn-runtime")


@pytest.fixture
def run_case(shared: tuple[Pool, Path, Path], tmp_path: Path) -> Iterator[RunCase]:
    pool, place, sdk = shared

    def run(
        model: str,
        scheme: Scheme,
        *,
        lie: str = "",
        embed: bool = True,
        timeout_s: float = 200,
        saver: bool = False,
        profile: str = "",
        float_model: str = "",
        direct: bool = False,
        **provider_options: str,
    ) -> CaseResult:
        (place / "lie").write_text(lie)
        engine = OnnxEngine(
            toolchain=("test",),
            sdk=sdk,
            user_options=provider_options,
            embed=embed,
            saver=saver,
            direct=direct,
        )
        setup = make_setup(
            tmp_path,
            engine,
            make_runner(engine, pool, profile),
            pool,
            policy=read_emulator_policy(lane="onnx"),
            timeout_s=timeout_s,
            keep=tmp_path / "kept",
            files_directory=tmp_path / "beside",
            cache=place / "lowered",
        )
        source = Source(model, float_model=float_model) if os.sep in model else Source()
        return CaseRun(CaseSpec(Path(model).name, scheme, "SM8650", source), setup).run()

    yield run
    (place / "lie").write_text("")


def save(path: Path, *nodes: onnx.NodeProto, opset: int = 21) -> str:
    """A model of an input x [1, 8, 4], a constant bias [4] and an output y of x's shape."""
    form = (TensorProto.FLOAT, [1, 8, 4])
    inputs, outputs = (helper.make_tensor_value_info(name, *form) for name in "xy")
    bias = onnx.numpy_helper.from_array(np.ones(4, "float32"), "bias")
    graph = helper.make_graph(nodes, "graph", [inputs], [outputs], [bias])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return str(path)


def test_a_program_has_the_same_bytes_wherever_its_model_is(
    shared: tuple[Pool, Path, Path], tmp_path: Path
) -> None:
    pool, _, sdk = shared
    options = OnnxEngine(toolchain=("test",), sdk=sdk).options(
        CaseSpec("net", Scheme.FP16, "SM8650", Source())
    )
    programs = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        model = save(folder / "net.onnx", helper.make_node("Add", ["x", "bias"], ["y"]))
        call = (Path(model), folder / "program", folder / "run.log", "SM8650", options)
        job = partial(write_context, *call, embed=True)
        ended = pool.run(job, folder / "job.log", 200, fresh=True)  # as the lane lowers
        assert not ended.failure
        (program,) = (folder / "program").iterdir()
        programs.append(program.read_bytes())
    assert programs[0] == programs[1]


def test_with_direct_a_session_loads_the_quantized_model_not_a_context(
    run_case: RunCase, tmp_path: Path
) -> None:
    result = run_case("mlp", Scheme.U8, direct=True)
    assert result.case.judgement.status is Status.PASSED, describe(result)
    (kept_model,) = (tmp_path / "kept").glob("*/artifact/program/*")
    nodes = {node.op_type for node in onnx.load(kept_model).graph.node}
    assert "QuantizeLinear" in nodes
    assert "EPContext" not in nodes


METRIC = """
import numpy

def sets():
    return [(one,) for one in numpy.random.default_rng(1).random((8, 1, 8, 4), "float32")]

def ramp(outputs, labels):
    assert type(outputs[0]) is type(labels) is numpy.ndarray
    return -abs(outputs[0].mean((1, 2, 3)) - labels).mean()
"""
WITHOUT_TORCH = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
"""
POLICY = """
extends = "default"
[models.net]
path = "net.onnx"
schemes = ["fp16", "u8"]
inputs = "data.py:sets"
calibration = "sets.npz"
metric = {function = "data.py:ramp", labels = "labels.npy", max_drop = 0.01}
[models.random]
path = "net.onnx"
schemes = ["u16a8w"]
"""


def test_onnx_files_are_judged_without_torch_installed(tmp_path: Path) -> None:
    save(tmp_path / "net.onnx", helper.make_node("Mul", ["x", "bias"], ["y"]))
    random = np.random.default_rng(1).random((8, 1, 8, 4), "float32")
    np.savez(tmp_path / "sets.npz", x=random)
    np.save(tmp_path / "labels.npy", random.mean((1, 2, 3)))
    (tmp_path / "data.py").write_text(METRIC)
    (tmp_path / "qnn.toml").write_text(POLICY)
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(WITHOUT_TORCH)
    ended = subprocess.run(
        [sys.executable, "-m", "ci", "test-onnx", "--policy", "qnn.toml", "--json"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "without"), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert [
        (case["judgement"]["status"], case["asked"]["made_inputs"]) for case in report["cases"]
    ] == [
        ("passed", ""), ("passed", ""), ("passed", "random inputs"),
    ]  # fmt: skip
    assert all(case["judgement"]["metric"] <= 0 for case in report["cases"][:2])
    assert not {"torch", "onnxscript"} & {tool["name"] for tool in report["toolchain"]}


def describe(result: CaseResult) -> str:
    return f"{result.case.reason}\n{result.case.run.log_tail}"


@pytest.mark.parametrize(
    ("scheme", "embed"),
    [(Scheme.U8, True), pytest.param(Scheme.U16A4W, False, marks=pytest.mark.nightly)],
)
def test_a_suite_model_passes_and_is_not_compiled_again(
    run_case: RunCase, tmp_path: Path, scheme: Scheme, embed: bool
) -> None:
    first = run_case("mlp", scheme, embed=embed)
    assert first.case.judgement.status is Status.PASSED, describe(first)
    assert (
        first.case.program.fallback_nodes,
        first.case.program.partitions,
        first.case.asked.inputs,
    ) == (0, 1, 4)
    assert first.case.program.delegated_nodes == 3
    taken = first.case.program.footprint
    assert taken
    assert taken.program_bytes == first.case.program.pte_bytes
    assert 0 < (taken.context_bytes or 0) < (taken.program_bytes or 0)
    assert (taken.spill_bytes, taken.write_bytes, taken.vtcm_mb) == (0, 2048, 4)
    assert (taken.read_bytes or 0) > 4096
    assert "Gemm" in {operator.op for operator in taken.operators}
    assert first.controls
    assert all(control.rejected for control in first.controls)
    (kept_folder,) = (tmp_path / "kept").iterdir()
    names = sorted(path.name for path in (kept_folder / "artifact" / "program").iterdir())
    assert names == (["model.onnx"] if embed else ["model.onnx", "model_qnn.bin"])
    context = read_context(kept_folder / "artifact" / "program" / "model.onnx")
    assert context.seal
    assert [target.soc for target in context.targets] == ["SM8650"]
    second = run_case("mlp", scheme, embed=embed)
    assert (second.case.judgement.status, second.case.program.cached) == (Status.PASSED, True)
    assert second.case.judgement.sqnr_db == first.case.judgement.sqnr_db


def test_saver_and_profile_results_are_in_the_report_if_requested(
    run_case: RunCase, tmp_path: Path
) -> None:
    beside = tmp_path / "beside" / "mlp-u8-SM8650"
    plain = run_case("mlp", Scheme.U8).case
    assert (plain.program.qnn_ops, plain.run.accelerator_cycles, plain.run.accelerator_us) == (
        (),
        None,
        None,
    )
    assert not beside.exists()
    requested = run_case("mlp", Scheme.U8, saver=True, profile="detailed").case
    assert requested.judgement.status is Status.PASSED, requested.reason
    counts = {operator.op: operator.count for operator in requested.program.qnn_ops}
    assert counts == {"FullyConnected": 3, "Quantize": 1, "Dequantize": 1}
    assert requested.run.accelerator_cycles
    assert requested.run.accelerator_us
    calls = (beside / "saver_output.c").read_text()
    assert calls.rstrip().endswith("}")
    assert calls.count("interface.graphAddNode(") == 5
    assert (beside / "params.bin").stat().st_size > 30_000
    assert "Accelerator (execute) time" in (beside / "profile.csv").read_text()
    assert requested.judgement.sqnr_db == plain.judgement.sqnr_db
    # Out of the cache, with what was compiled for it alone.
    saved = run_case("mlp", Scheme.U8, saver=True, profile="basic").case
    assert (saved.program.cached, saved.program.qnn_ops, saved.run.accelerator_cycles) == (
        True,
        requested.program.qnn_ops,
        None,
    )
    assert saved.run.accelerator_us
    cached = run_case("mlp", Scheme.U8).case
    assert (cached.program.cached, cached.program.qnn_ops, cached.run.accelerator_us) == (
        True,
        (),
        None,
    )


def test_a_quantized_onnx_file_is_judged_unchanged_with_scheme_asis(
    run_case: RunCase, tmp_path: Path
) -> None:
    """The kept quantized model is the reference that the program is compared with."""
    model = save(tmp_path / "net.onnx", helper.make_node("Sigmoid", ["x"], ["y"], name="s"))
    first = run_case(model, Scheme.U8)
    assert first.case.asked.made_inputs == "random inputs"
    (kept_folder,) = (tmp_path / "kept").iterdir()
    quantized = (kept_folder / "artifact" / "quantized.onnx").rename(tmp_path / "quantized.onnx")
    second = run_case(str(quantized), Scheme.ASIS)
    assert second.case.judgement.status is Status.PASSED, describe(second)
    assert second.case.judgement.sqnr_db == second.case.judgement.sqnr_db_quantized
    assert second.case.judgement.sqnr_db_scheme is None
    (warning,) = second.case.judgement.warnings
    assert "float_model" in warning
    (kept_again,) = (tmp_path / "kept").glob("quantized*")
    graph_again = onnx.load(kept_again / "artifact" / "quantized.onnx").graph
    operators = [node.op_type for node in onnx.load(quantized).graph.node]
    assert [node.op_type for node in graph_again.node] == operators
    record = json.loads((kept_again / "artifact" / "artifact.json").read_text())
    assert record["files"]["quantized.onnx"]


def dequantize(name: str, values: Any, scale: float, after: str) -> list[onnx.NodeProto]:
    """Nodes that give ``values`` in int8."""
    constants = {
        "q": np.clip(np.round(values / scale), -128, 127).astype("int8"),
        "s": np.float32(scale),
        "z": np.int8(0),
    }
    nodes = [
        NODE("Constant", [], [f"{name}_{key}"], value=onnx.numpy_helper.from_array(np.array(value)))
        for key, value in constants.items()
    ]
    return [*nodes, NODE("DequantizeLinear", [f"{name}_{key}" for key in constants], [after])]


@pytest.mark.parametrize(
    ("scale", "question"), [(0.02, None), (0.5, Question.QUANTIZED)], ids=["fine", "coarse"]
)
def test_a_quantized_file_is_judged_against_the_float_one_it_was_made_of(
    run_case: RunCase, tmp_path: Path, scale: float, question: Question | None
) -> None:
    """Only the weights of the file are quantized: everything else is computed in float16."""
    matrix = np.random.default_rng(3).uniform(-0.5, 0.5, (4, 4)).astype("float32")
    last = [NODE("MatMul", ["x", "m"], ["a"]), NODE("Add", ["a", "bias"], ["y"])]
    value = onnx.numpy_helper.from_array(matrix)
    plain = save(tmp_path / "plain.onnx", NODE("Constant", [], ["m"], value=value), *last)
    judged_file = save(tmp_path / "given.onnx", *dequantize("m", matrix, scale, "m"), *last)
    case = run_case(judged_file, Scheme.ASIS, float_model=plain).case
    assert case.question is question, case.reason
    assert not case.judgement.warnings
    assert case.judgement.sqnr_db_scheme is not None
    assert case.judgement.sqnr_db_quantized is not None
    assert case.judgement.sqnr_db_scheme < 55 < case.judgement.sqnr_db_quantized
    assert (case.judgement.sqnr_db_scheme > 15) is (question is None)
    if question:
        return
    wrong = save(tmp_path / "wrong.onnx", *dequantize("m", 2 * matrix, scale, "m"), *last)
    (tmp_path / "kept").rename(tmp_path / "before")
    lie = run_case(judged_file, Scheme.ASIS, lie=f"cpu {wrong}").case
    assert lie.judgement.status is Status.FAILED


@pytest.mark.parametrize(
    ("operator", "domain", "operands", "attributes", "opset"),
    [
        ("Erf", "", ["a"], {}, 21),
        ("BiasGelu", "com.microsoft", ["a", "bias"], {}, 21),
        # onnxruntime draws the errors of the prediction in another way from opset 22 on.
        ("Attention", "", ["a", "a", "a"], {"q_num_heads": 2, "kv_num_heads": 2}, 23),
    ],
)
def test_an_operator_that_stays_on_the_cpu_fails_by_name_and_reason(
    run_case: RunCase,
    tmp_path: Path,
    operator: str,
    domain: str,
    operands: list[str],
    attributes: dict[str, int],
    opset: int,
) -> None:
    model = save(
        tmp_path / "net.onnx",
        helper.make_node("Tanh", ["x"], ["a"], name="first"),
        helper.make_node(operator, operands, ["b"], name="odd_one", domain=domain, **attributes),
        helper.make_node("Sigmoid", ["b"], ["y"], name="last"),
        opset=opset,
    )
    case = run_case(model, Scheme.FP16).case
    assert case.judgement.status is Status.FAILED
    named = f"{domain}:{operator}" if domain else operator
    assert f"{named} odd_one" in case.judgement.findings[0].words
    why = f"Operators of type `{operator}` are not supported by QNN EP"
    assert why in case.judgement.findings[0].evidence
    assert case.judgement.findings[0].remedies
    assert case.judgement.sqnr_db is not None
    assert case.judgement.sqnr_db > 40
    assert (case.program.delegated_nodes, case.program.fallback_nodes, case.program.partitions) == (
        2,
        1,
        2,
    )


NODE = helper.make_node


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("others", "not faithful: "),
        ("hang", "did not end within 3 s"),
        ("restart 9", "the subsystem restarted 4 times"),
    ],
)
def test_an_onnx_session_with_wrong_outputs_a_hang_or_restarts_fails(
    run_case: RunCase, lie: str, why: str
) -> None:
    run_case("mlp", Scheme.U8)
    result = run_case("mlp", Scheme.U8, lie=lie, timeout_s=3 if lie == "hang" else 200)
    assert result.case.judgement.status is Status.FAILED
    assert why in result.case.reason


def test_a_session_on_the_cpu_fails_although_its_outputs_are_right(
    run_case: RunCase, shared: tuple[Pool, Path, Path], tmp_path: Path
) -> None:
    run_case("mlp", Scheme.U8)
    (kept_folder,) = (tmp_path / "kept").iterdir()
    quantized = (kept_folder / "artifact" / "quantized.onnx").rename(tmp_path / "quantized.onnx")
    case = run_case("mlp", Scheme.U8, lie=f"cpu {quantized}").case
    assert case.judgement.status is Status.FAILED
    assert case.headline == "run: the session ran on another provider, without an error"
    assert "QNN executed nothing, according to the session's profile" in case.reason
    assert case.judgement.sqnr_db is not None
    assert case.judgement.sqnr_db > 25
