"""Which files test-litert compiles, and in which scheme."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.__main__ import main
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.graphs.litert_file import pack_model, read_model
from ci.litert.source import list_nodes
from ci.litert.suite import make_model
from ci.models.schemes import LITERT, Scheme
from ci.models.user_models import ModelEntry, Source
from ci.verbs.lanes.litert import LitertRequest, choose_packages, fit_cases, select
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError

REQUEST = LitertRequest(session="test_litert")


def write_spec(path: Path, data: bytes, scheme: Scheme = Scheme.ASIS) -> CaseSpec:
    path.write_bytes(data)
    return CaseSpec(path.stem, scheme, "SM8650", Source(str(path)))


def test_a_file_is_compiled_in_the_scheme_that_it_has(tmp_path: Path) -> None:
    specs = [
        write_spec(tmp_path / f"{name}.tflite", make_model(name))
        for name in ("dense", "convolution_int8")
    ]
    fitted = fit_cases(specs, REQUEST, Progress())
    assert [spec.scheme for spec in fitted] == [Scheme.FP16, Scheme.ASIS]


@pytest.mark.parametrize(
    ("model", "scheme", "fitting_scheme"),
    [
        ("convolution_int8", Scheme.FP16, Scheme.ASIS),
        ("dense", Scheme.ASIS, Scheme.FP16),
    ],
)
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_scheme_that_the_file_cannot_have_is_refused(
    tmp_path: Path, model: str, scheme: Scheme, fitting_scheme: Scheme, is_typed: bool
) -> None:
    spec = write_spec(tmp_path / "net.tflite", make_model(model), scheme)
    entry = ModelEntry(spec.reference, (scheme.value,))
    typed = (scheme.value,) if is_typed else ()
    place = "--scheme" if is_typed else "models.net.schemes"
    with pytest.raises(UsageError, match=f"{place}: net.tflite is .*{scheme} is for") as caught:
        fit_cases([spec], replace(REQUEST, schemes=typed), Progress(), {"net": entry})
    # No circle: what is to be passed instead is accepted, whatever the policy lists.
    assert f"--scheme {fitting_scheme}" in caught.value.fix
    request = replace(REQUEST, schemes=(fitting_scheme.value,))
    specs = [replace(spec, scheme=fitting_scheme)]
    assert fit_cases(specs, request, Progress(), {"net": entry}) == specs


def test_a_glob_selects_the_scheme_that_the_file_has(tmp_path: Path) -> None:
    specs = [
        write_spec(tmp_path / "net.tflite", make_model("dense"), scheme)
        for scheme in (Scheme.ASIS, Scheme.FP16)
    ]
    fitted = fit_cases(specs, replace(REQUEST, schemes=("*",)), Progress())
    assert [spec.scheme for spec in fitted] == [Scheme.FP16]


def test_a_file_that_cannot_be_used_ends_the_run_of_it_alone(tmp_path: Path) -> None:
    archive = write_spec(tmp_path / "archive.tflite", b"PK" * 9)
    with pytest.raises(UsageError, match=r"is not a \.tflite file"):
        fit_cases([archive], REQUEST, Progress())
    spec = write_spec(tmp_path / "dense.tflite", make_model("dense"), Scheme.FP16)
    assert fit_cases([archive, spec], REQUEST, Progress()) == [archive, spec]


def test_sizes_that_may_change_are_shown(tmp_path: Path) -> None:
    model = read_model(make_model("dense"))
    model.subgraphs[0].tensors[0].shapeSignature = [-1, 64]
    spec = write_spec(tmp_path / "dense.tflite", pack_model(model))
    shown = io.StringIO()
    fit_cases([spec], REQUEST, Progress(shown))
    assert "(x [-1, 64]) are compiled as 1" in shown.getvalue()


def select_function(folder: Path, *schemes: str) -> list[CaseSpec]:
    """Select the function ``make`` of a file net.py, which is never run."""
    (folder / "net.py").write_text("def make(): ...\n")
    policy_path = folder / "policy.toml"
    policy_path.write_text('extends = "default"\n[models.net]\npath = "net.py:make"\n')
    request = LitertRequest(session="test_litert", schemes=schemes)
    return select(request, read_emulator_policy(policy_path), LITERT, Progress())


@pytest.mark.parametrize("schemes", [(), ("fp16",), ("*",)])
def test_a_python_function_is_one_case_in_float(tmp_path: Path, schemes: tuple[str, ...]) -> None:
    specs = select_function(tmp_path, *schemes)
    assert [(spec.model, spec.scheme) for spec in specs] == [("net", Scheme.FP16)]
    assert fit_cases(specs, REQUEST, Progress()) == specs  # which would read a file
    assert choose_packages(specs)[1] == "litert-torch"


def test_a_python_function_is_not_quantized(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="net is a PyTorch model, which is converted in float"):
        select_function(tmp_path, "asis")


def test_the_operators_of_a_model_are_listed(tmp_path: Path) -> None:
    for name, types in (("dense", ["float32"] * 2), ("dense_int16", ["int16"] * 2)):
        nodes = list_nodes(write_spec(tmp_path / f"{name}.tflite", make_model(name)))
        assert [node.op for node in nodes] == [("FULLY_CONNECTED",)] * 2
        assert [node.result_type for node in nodes] == types


@pytest.mark.parametrize(("scheme", "code"), [("asis", ExitCode.USAGE), ("fp16", ExitCode.OK)])
def test_a_list_refuses_a_scheme_that_no_requested_file_has(
    tmp_path: Path, scheme: str, code: ExitCode
) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(make_model("dense"))
    assert main(["test-litert", "--model", str(path), "--scheme", scheme, "--list"]) == code
