"""What test-litert says about a file before anything is fetched or compiled."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.cases.engine import Staging
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.graphs.litert_file import pack_model, read_model, schema
from ci.graphs.litert_session import Reference
from ci.litert.compile import compile_litert
from ci.litert.source import load_litert
from ci.litert.suite import Net, make_model
from ci.models.schemes import Scheme
from ci.models.user_models import Limits, ModelBudget, ModelEntry, Source
from ci.report.schema import Budget
from ci.verbs.lanes.litert import LANE, LitertRequest, fit_cases
from provisioning.console.progress import Progress
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.targets import read_litert_socs
from tests.build.litert_states import make_lstm
from tests.stand_ins.litert import make_compiled

DENSE = make_model("dense")
REQUEST = LitertRequest(session=LANE.session)


def edit(change: Callable[[Any], object]) -> bytes:
    """The model ``dense`` after a change of its flatbuffer."""
    model = read_model(DENSE)
    change(model)
    return pack_model(model)


def move_weights(model: Any) -> None:
    """Put the data of a buffer behind the end of the file."""
    model.buffers[1].data, model.buffers[1].offset, model.buffers[1].size = None, 1 << 40, 4096


def shorten_weights(model: Any) -> None:
    model.buffers[1].data = model.buffers[1].data[:-4]


def misplace_operator(model: Any) -> None:
    model.subgraphs[0].operators[0].inputs = np.array([99, 1, 2], np.int32)


def misplace_code(model: Any) -> None:
    model.subgraphs[0].operators[0].opcodeIndex = 99


def misplace_subgraph(model: Any) -> None:
    model.signatureDefs[0].subgraphIndex = 7


def make_counter() -> bytes:
    """A model that adds its input to a variable."""
    net = Net()
    source = net.add_tensor((2, 4), "x")
    handle = net.call("VAR_HANDLE", (), (), "VarHandleOptions", container=b"", sharedName=b"sum")
    net.tensors[handle].type = schema.TensorType.RESOURCE
    state = net.call("READ_VARIABLE", (handle,), (2, 4), "ReadVariableOptions")
    total = net.call("ADD", (source, state), (2, 4), "AddOptions")
    net.call("ASSIGN_VARIABLE", (handle, total), (2, 4), "AssignVariableOptions")
    net.operators[-1].outputs = np.array([], np.int32)
    net.end([source], [total])
    return net.pack()


def make_two() -> bytes:
    """A model with two signatures, one of which has a state."""
    net = Net()
    source, state = net.add_tensor((1, 8), "x"), net.add_tensor((1, 20), "state")
    net.tensors[state].isVariable = True
    reads = (source, net.draw(4, 8), net.draw(4, 5), net.draw(4), state)
    net.end([source], [net.call("SVDF", reads, (1, 4), "SVDFOptions", rank=1)])
    second_input = net.add_tensor((1, 8), "y")
    net.end([second_input], [net.add_linear(second_input, (1, 8), 4)], "other")
    return net.pack()


def make_rnn() -> bytes:
    """A model with an operator whose state cannot be written as an input."""
    net = Net()
    source, state = net.add_tensor((1, 8), "x"), net.add_tensor((1, 4), "state")
    net.tensors[state].isVariable = True
    reads = (source, net.draw(4, 8), net.draw(4, 4), net.draw(4), state)
    net.end([source], [net.call("RNN", reads, (1, 4), "RNNOptions")])
    return net.pack()


def make_dropout() -> bytes:
    net = Net()
    source, shape = net.add_tensor((1, 4), "x"), net.add_constant(np.array([1, 4], np.int32))
    noise = net.call("RANDOM_UNIFORM", (shape,), (1, 4), "RandomOptions", seed=1, seed2=2)
    net.end([source], [net.call("ADD", (source, noise), (1, 4), "AddOptions")])
    return net.pack()


def change_ports(change: Callable[[Any], object]) -> bytes:
    """A model with two inputs and two outputs after a change of its signature."""
    net = Net()
    ports = [net.add_tensor((1, 4), name) for name in ("x", "y")]
    total = net.call("ADD", ports, (1, 4), "AddOptions")
    net.end(ports, [total, net.call("SUB", ports, (1, 4), "SubOptions")])
    model = read_model(net.pack())
    change(model.signatureDefs[0])
    return pack_model(model)


def repeat_input(signature: Any) -> None:
    signature.inputs[1].name = signature.inputs[0].name


def repeat_output(signature: Any) -> None:
    signature.outputs[1].name = signature.outputs[0].name


def drop_output(signature: Any) -> None:
    signature.outputs.pop()


def drop_outputs(model: Any) -> None:
    model.subgraphs[0].outputs, model.signatureDefs = None, None


def drop_operators(model: Any) -> None:
    model.subgraphs[0].operators, model.signatureDefs = None, None


def empty_input(model: Any) -> None:
    for tensor in model.subgraphs[0].tensors:
        if tensor.buffer == 0:
            tensor.shape = np.array([0, tensor.shape[1]], np.int32)


def repeat_signature(model: Any) -> None:
    model.signatureDefs.append(model.signatureDefs[0])


def spoil_name(model: Any) -> None:
    model.subgraphs[0].tensors[0].name = b"\xff"


def free_length(model: Any) -> None:
    """Make the width of the input free, which is 1 then, and too small for the weights."""
    tensor = model.subgraphs[0].tensors[0]
    tensor.shape = np.array([4, 1], np.int32)
    tensor.shapeSignature = np.array([4, -1], np.int32)


def make_archive() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("net.tflite", DENSE)
    return archive.getvalue()


WRONG = {
    "an archive": (make_archive(), "its content is a ZIP archive"),
    "text": (b"net = make_net()\n" * 9, "its content is none of LiteRT's"),
    "nothing": (b"", "its content is empty"),
    "a cut flatbuffer": (DENSE[: len(DENSE) // 2], "cannot be read"),
    "a start alone": (DENSE[:12], "cannot be read"),
    "weights behind the end": (edit(move_weights), "is cut short: a buffer ends at byte"),
    "weights that are too short": (edit(shorten_weights), "has weights that are too short"),
    "a tensor that is missing": (edit(misplace_operator), "LiteRT does not load the model"),
    "an operator that is missing": (edit(misplace_code), "operator code 99 is missing"),
    "a subgraph that is missing": (edit(misplace_subgraph), "has a signature of subgraph 7"),
    "a variable without a start": (make_counter(), "reads a variable before it has a value"),
    "random numbers": (make_dropout(), "draws random numbers, in RANDOM_UNIFORM"),
    "states of two signatures": (make_two(), "keeps values between its runs, and has 2 signatures"),
    "another kind of state": (make_rnn(), "keeps values between its runs (RNN)"),
    "a coupled gate": (make_lstm(coupled=True), "with more than weights and biases"),
    "two inputs of one name": (change_ports(repeat_input), "has two inputs called 'x'"),
    "two outputs of one name": (change_ports(repeat_output), "has two outputs called"),
    "an output without a name": (change_ports(drop_output), "does not name the output"),
    "a dimension of 0": (edit(empty_input), "the input x of net.tflite has a dimension of 0"),
    "no outputs": (edit(drop_outputs), "has no outputs"),
    "no operators": (edit(drop_operators), "has no operators"),
    "two signatures of one name": (edit(repeat_signature), "2 signatures called 'serve'"),
    "a name that is no text": (edit(spoil_name), "a tensor whose name is not UTF-8"),
    "a length that may change": (edit(free_length), "with sizes that may change (x [4, -1]) as 1"),
    "a compiled file": (make_compiled(), "is compiled already for Qualcomm SM8650"),
}


def write_case(folder: Path, data: bytes, soc: str = "SM8650", **source: Any) -> CaseSpec:
    path = folder / "net.tflite"
    path.write_bytes(data)
    return CaseSpec("net", Scheme.ASIS, soc, Source(str(path), **source))


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_compiled_is_refused_with_its_cause(
    name: str, tmp_path: Path
) -> None:
    data, message = WRONG[name]
    with pytest.raises(UsageError) as raised:
        fit_cases([write_case(tmp_path, data)], REQUEST, Progress())
    assert message in f"{raised.value}"


def test_a_case_that_runs_next_to_others_fails_for_the_same_reason(tmp_path: Path) -> None:
    """Its file is refused before, but if others can be used, it becomes a red case."""
    source = load_litert(write_case(tmp_path, make_dropout()))
    spec, nothing = write_case(tmp_path, make_dropout()), cast("Staging", None)
    with pytest.raises(UsageError, match="draws random numbers"):
        compile_litert(source, spec, nothing, library=tmp_path, timeout_s=1)


def drop_signatures(model: Any) -> None:
    model.signatureDefs = None


def test_a_model_without_a_signature_runs_its_first_subgraph(tmp_path: Path) -> None:
    spec = write_case(tmp_path, edit(drop_signatures))
    assert [case.scheme for case in fit_cases([spec], REQUEST, Progress())] == [Scheme.FP16]
    (entry,) = load_litert(spec).entries
    assert (entry.key, entry.subgraph, entry.input_names) == ("", 0, ("x",))


def drop_names(model: Any) -> None:
    drop_signatures(model)
    for tensor in model.subgraphs[0].tensors:
        tensor.name = b"same"


def empty_names(signature: Any) -> None:
    signature.inputs[0].name = signature.outputs[0].name = b""


def test_ports_without_names_of_their_own_are_passed(tmp_path: Path) -> None:
    net = Net()
    ports = [net.add_tensor((1, 4)), net.add_tensor((1, 4))]
    net.end(ports, [net.call("SUB", ports, (1, 4), "SubOptions")])
    model = read_model(net.pack())
    drop_names(model)
    for data, names in (
        (pack_model(model), ("same (0)", "same (1)")),
        (change_ports(empty_names), ("", "y")),
    ):
        source = load_litert(write_case(tmp_path, data))
        assert source.entries[0].input_names == names
        outputs = Reference(source.data, source.model, source.entries).run(source.evaluation)
        difference = source.evaluation[0][0] - source.evaluation[0][1]
        np.testing.assert_array_equal(outputs[0][-1], difference)


def free_batch(model: Any) -> None:
    tensors = model.subgraphs[0].tensors
    tensors[0].shapeSignature = np.array([-1, 64], np.int32)


def test_sizes_that_may_change_are_reported(tmp_path: Path) -> None:
    shown = io.StringIO()
    fit_cases([write_case(tmp_path, edit(free_batch))], REQUEST, Progress(shown))
    assert "sizes that may change (x [-1, 64]) are compiled as 1" in join_lines(shown)


def join_lines(stream: io.StringIO) -> str:
    return " ".join(stream.getvalue().split())


SOCS = read_litert_socs()
NO_FLOAT16 = [name for name, soc in SOCS.items() if soc.compiled and not soc.float16]


@pytest.mark.parametrize("soc", [*NO_FLOAT16[:3], "SM6650", "SDM865"])
def test_a_float_model_for_an_soc_without_float16_is_refused(soc: str, tmp_path: Path) -> None:
    spec = write_case(tmp_path, DENSE, soc)
    with pytest.raises(UsageError, match=f"{soc} has no float16") as raised:
        fit_cases([spec], REQUEST, Progress())
    assert "quantize it" in raised.value.fix


def test_other_cases_run_if_an_soc_has_no_float16(tmp_path: Path) -> None:
    shown = io.StringIO()
    specs = [write_case(tmp_path, DENSE, soc) for soc in (NO_FLOAT16[0], "SM8750")]
    fitted = fit_cases(specs, REQUEST, Progress(shown))
    assert [case.soc for case in fitted] == [NO_FLOAT16[0], "SM8750"]
    assert "has no float16" in join_lines(shown)
    quantized = replace_scheme(write_case(tmp_path, make_model("dense_int16"), NO_FLOAT16[0]))
    assert fit_cases([quantized], REQUEST, Progress()) == [quantized]


@pytest.mark.parametrize("model", ["dense", "dense_int16"])
def test_a_name_for_which_qnn_compiles_nothing_is_refused(model: str, tmp_path: Path) -> None:
    spec = write_case(tmp_path, make_model(model), "IPQ5404")
    with pytest.raises(UsageError, match="nothing can be compiled for IPQ5404") as raised:
        fit_cases([spec], REQUEST, Progress())
    assert "does not know its number, 80" in raised.value.why


def test_an_soc_without_an_htp_that_qnn_knows_is_a_warning(tmp_path: Path) -> None:
    shown = io.StringIO()
    spec = write_case(tmp_path, make_model("dense_int16"), "SM6125")
    assert fit_cases([spec], REQUEST, Progress(shown)) == [spec]
    assert "QNN knows no HTP of SM6125" in join_lines(shown)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("SM6650", ["SM6650"]),
        ("sa8295", ["SA8295"]),
        ("sm665*", ["SM6650"]),
        ("SM6450?", ["SM6450Q"]),
        ("QCS6490", ["QCM6490"]),
        ("SA8295P", ["SA8295"]),
        ("SA8296", "SA8295"),
        ("8650", "SM8650"),
        ("SM6650 ", ["SM6650"]),
        ("snapdragon", ""),
    ],
)
def test_a_name_of_an_soc_selects_it_or_the_nearest_is_named(
    word: str, names: list[str] | str, tmp_path: Path
) -> None:
    spec = write_case(tmp_path, DENSE)
    request = LitertRequest(session=LANE.session, models=(spec.reference,), socs=(word,))
    policy = read_emulator_policy(lane="litert")
    if isinstance(names, list):
        specs = LANE.select(request, policy, LANE.schemes, Progress())
        assert [selected.soc for selected in specs] == names
        return
    with pytest.raises(UsageError, match="no SoC") as raised:
        LANE.select(request, policy, LANE.schemes, Progress())
    assert (names in raised.value.why) if names else not raised.value.why


def test_a_policy_names_socs(tmp_path: Path) -> None:
    write_case(tmp_path, DENSE)
    path = tmp_path / "qnn.toml"
    path.write_text('extends = "default"\n[models.net]\npath = "net.tflite"\nsocs = ["sm7*5"]\n')
    request = LitertRequest(session=LANE.session, policy=path)
    policy = read_emulator_policy(path, lane="litert")
    specs = LANE.select(request, policy, LANE.schemes, Progress())
    assert {spec.soc for spec in specs if spec.model == "net"} >= {"SM7325", "SM7635"}


def replace_scheme(spec: CaseSpec) -> CaseSpec:
    return CaseSpec(spec.model, Scheme.ASIS, spec.soc, spec.source)


def test_only_the_chosen_signatures_of_a_model_are_judged(tmp_path: Path) -> None:
    data = make_model("signatures")
    with_all = load_litert(write_case(tmp_path, data))
    chosen = load_litert(write_case(tmp_path, data, signatures=("decode",)))
    assert [entry.key for entry in with_all.entries] == ["encode", "decode"]
    assert [(entry.key, entry.subgraph) for entry in chosen.entries] == [("decode", 1)]
    assert [array.shape for array in chosen.evaluation[0]] == [(2, 8)]
    assert chosen.digest != with_all.digest


def test_a_signature_that_the_file_lacks_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    spec = write_case(tmp_path, make_model("signatures"), signatures=("encode", "describe"))
    with pytest.raises(UsageError, match="no signature 'describe'") as raised:
        fit_cases([spec], REQUEST, Progress())
    assert raised.value.fix == "use encode or decode"


def test_cases_of_one_file_may_run_other_signatures(tmp_path: Path) -> None:
    data = make_model("signatures")
    specs = [
        write_case(tmp_path, data, signatures=(key,)) for key in ("encode", "describe", "decode")
    ]
    shown = io.StringIO()
    fit_cases(specs[:2], REQUEST, Progress(shown))
    assert "no signature 'describe'" in join_lines(shown)
    assert fit_cases(specs[::2], REQUEST, Progress()) == [
        CaseSpec(spec.model, Scheme.FP16, spec.soc, spec.source) for spec in specs[::2]
    ]


POLICY = 'extends = "default"\n[models.decoder]\npath = "{}"\nsignatures = ["decode"]\n'


def test_a_policy_names_the_signatures(tmp_path: Path) -> None:
    write_case(tmp_path, make_model("signatures"))
    path = tmp_path / "qnn.toml"
    path.write_text(POLICY.format("net.tflite"))
    entry = read_emulator_policy(path, lane="litert").models["decoder"]
    assert entry.make_source().signatures == ("decode",)
    (tmp_path / "net.onnx").touch()
    path.write_text(POLICY.format("net.onnx"))
    with pytest.raises(ManifestError, match=r"signatures is only for a \.tflite file"):
        read_emulator_policy(path, lane="litert")


@pytest.mark.parametrize(("model", "scheme"), [("dense", "fp16"), ("dense_int16", "asis")])
def test_limits_for_the_other_scheme_are_refused(model: str, scheme: str, tmp_path: Path) -> None:
    spec = write_case(tmp_path, make_model(model))
    other_scheme = "asis" if scheme == "fp16" else "fp16"
    entry = ModelEntry(spec.reference, limits={scheme: Limits()})
    (fitted,) = fit_cases([spec], REQUEST, Progress(), {spec.model: entry})
    assert fitted.scheme.value == scheme
    for unused in (
        ModelEntry(spec.reference, limits={other_scheme: Limits()}),
        ModelEntry(
            spec.reference, budget=ModelBudget(schemes={other_scheme: Budget(partitions=1)})
        ),
    ):
        with pytest.raises(UsageError, match=rf"{other_scheme} has no effect") as raised:
            fit_cases([spec], REQUEST, Progress(), {spec.model: unused})
        assert scheme in raised.value.fix


def test_limits_of_a_file_that_cannot_be_read_are_not_judged(tmp_path: Path) -> None:
    bad = write_case(tmp_path, b"no model")
    (tmp_path / "good").mkdir()
    good = write_case(tmp_path / "good", DENSE)
    entries = {bad.model: ModelEntry(bad.reference, limits={"fp16": Limits()})}
    assert len(fit_cases([bad, good], REQUEST, Progress(), entries)) == 2
