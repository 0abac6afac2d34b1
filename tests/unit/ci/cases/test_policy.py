"""What a policy knows of a case, and what a user's one makes of the default; recorded figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ci.cases.kept import LIMIT_BYTES, check_tensor
from ci.cases.policy import LANES, EmulatorPolicy, Override, Unsupported, read_emulator_policy
from ci.explain.rules import Advice
from ci.facts.finding import Finding
from ci.facts.kinds import ON_CPU, OVER_BUDGET
from ci.models.schemes import Scheme
from ci.models.tensors import OutputPart, Range, TensorInfo
from ci.models.user_models import Limits, ModelEntry
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.targets import Backend
from tests.stand_ins.reports import say

DEFAULT = read_emulator_policy()
LPAI = next(backend for backend in Backend if backend.is_lpai)
FP16, A8W8 = Scheme.FP16, Scheme.A8W8


def test_a_scheme_asks_for_the_same_accuracy_in_every_runtime() -> None:
    """Otherwise one accuracy is green in one runtime and red in another, and ``test`` compares them
    in one table."""
    required: dict[str, list[tuple[str, float | None]]] = {}
    for lane in ("test_emulator", "test_onnx", "test_litert"):
        for scheme, limits in read_emulator_policy(lane=LANES[lane]).schemes.items():
            required.setdefault(scheme, []).append((lane, limits.min_sqnr_db_all))
    for scheme, of_lanes in required.items():
        _, decibels = of_lanes[0]
        assert of_lanes == [(lane, decibels) for lane, _ in of_lanes], scheme


def with_rows(*rows: Unsupported) -> EmulatorPolicy:
    return msgspec.structs.replace(DEFAULT, unsupported=rows)


ROW = Unsupported(
    pattern="no .*op",
    reason="known",
    models=("m*", "n"),
    schemes=("fp*",),
    socs=("SM8*",),
    choices=("saver", ""),
)


@pytest.mark.parametrize(
    ("model", "scheme", "soc", "choices", "is_known"),
    [
        ("mlp", FP16, "SM8650", "saver", True),
        ("n", FP16, "SM8650", "", True),
        ("lstm", FP16, "SM8650", "saver", False),
        ("mlp", A8W8, "SM8650", "saver", False),
        ("mlp", FP16, "QCM6490", "saver", False),
        ("mlp", FP16, "SM8650", "shared_buffer", False),
    ],
)
def test_an_unsupported_row_matches_model_scheme_soc_and_options_together(
    model: str, scheme: Scheme, soc: str, choices: str, is_known: bool
) -> None:
    policy = with_rows(Unsupported(pattern="other", reason="another"), ROW)
    expected = "known" if is_known else ""
    expects = partial(policy.expects_refusal, model, scheme, soc, choices=choices)
    assert expects(say("there is no such op")) == expects([], log="no such op") == expected
    assert expects(say("out of memory")) == ""
    lenient = msgspec.structs.replace(ROW, strict=False)
    assert with_rows(lenient, ROW).find_unmet(model, scheme, soc, choices) == expected
    assert with_rows(lenient).find_unmet(model, scheme, soc, choices) == ""


@pytest.mark.parametrize(
    ("choices", "log"),
    [
        ("online_prepare", "Error code 30010. Try verifying binary with online-prepare format."),
        ("weight_sharing", "Shared weights buffer isn't supported on this platform"),
    ],
)
def test_a_program_that_only_a_device_loads_is_unsupported_on_the_host(
    choices: str, log: str
) -> None:
    """QNN's lines are in the log; the finding has the cause that they explain, and the signal."""
    expects = partial(DEFAULT.expects_refusal, "mlp", Scheme.A8W8, "SM8650", choices=choices)
    assert "x86-64" in expects(say("run: libQnnSystem cannot read the context binary"), log=log)
    assert expects(say("run: the process was killed by SIGSEGV without a result")) == ""


def test_the_first_advice_that_fits_is_given() -> None:
    rows = (
        Advice(pattern="x", fix="one"),
        Advice(pattern="y.*z", fix="two", why="for a reason"),
        Advice(pattern="yz", fix="three"),
        Advice(id="QNN2302", fix="four"),
        Advice(id="QNN2301", pattern="bytes", fix="five"),
    )
    policy = msgspec.structs.replace(DEFAULT, advice=rows)

    def ask(*findings: Finding) -> tuple[list[str], list[str]]:
        advice = policy.advise(findings)
        return [cause.text for cause in advice.causes], [remedy.text for remedy in advice.remedies]

    assert ask(*say("a x")) == ([], ["one"])
    assert ask(*say("yaz")) == ask(*say("yz")) == (["for a reason"], ["two"])
    assert ask(*say("b")) == ask(OVER_BUDGET.find("nodes")) == ([], [])
    assert ask(ON_CPU.find("nodes")) == ([], ["four"])
    assert ask(OVER_BUDGET.find("9 bytes")) == ([], ["five"])


def test_another_backend_has_its_own_limits_and_none_that_was_found_on_htp() -> None:
    lpai = Unsupported(pattern="l", reason="l", backends=(LPAI,))
    several = Unsupported(pattern="s", reason="s", backends=(Backend.GPU, Backend.HTP, LPAI))
    policy = msgspec.structs.replace(
        DEFAULT,
        backends={LPAI: {A8W8: Limits(min_sqnr_db=3.0, full_delegation=True)}},
        models={"m": ModelEntry("net.py:f", limits={A8W8: Limits(min_sqnr_db=90.0)})},
        override=(Override("mlp", A8W8, Limits(min_sqnr_db=80.0), "why"),),
        unsupported=(ROW, lpai, several),
    )
    for backend, rows, limits in (
        (Backend.HTP, (ROW, several), [80.0, 90.0]),
        (LPAI, (lpai, several), [3.0, 3.0]),
    ):
        backend_policy = policy.for_backend(backend)
        assert backend_policy.unsupported == rows
        assert [backend_policy.limits_of(name, A8W8).min_sqnr_db for name in ("mlp", "m")] == limits
    with pytest.raises(ManifestError, match=r"no limits for scheme fp16(.|\n)*\[schemes.fp16\]"):
        policy.for_backend(LPAI).limits_of("mlp", FP16)
    with pytest.raises(UsageError, match=rf"no limits for backend {LPAI.value}"):
        msgspec.structs.replace(policy, backends={}).for_backend(LPAI)


# -- a user's policy -----------------------------------------------------------------------------


def test_a_policy_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no policy .*gone.toml(.|\n)*--policy; `qnn-ci init "):
        read_emulator_policy(tmp_path / "gone.toml")
    file = tmp_path / "qnn.toml"
    file.write_text('extends = "default"\nruntimes = ["gone"]\n', "utf-8")
    with pytest.raises(ManifestError, match=r"'gone' is neither(.|\n)*emulator, "):
        read_emulator_policy(file)


# -- recorded figures, tensors, words --------------------------------------------------------------


def tensor(**changes: Any) -> TensorInfo:
    return msgspec.structs.replace(TensorInfo(dtype="float32", shape=(2, 4)), **changes)


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"shape": ()}, True),
        ({"dtype": "int64"}, True),
        ({"dtype": "object"}, False),
        ({"shape": (2, 0)}, False),
        ({"shape": (1 << 20, 1 << 20)}, False),
        ({"shape": (1, LIMIT_BYTES)}, False),
        ({"step": -1.0}, False),
        ({"parts": (OutputPart((Range(0, 0, 1),)), OutputPart((Range(1, 1, 4),)))}, True),
        ({"parts": (OutputPart((Range(1, 0, 4, 2, 1),)),)}, True),
        ({"parts": (OutputPart(()),)}, False),
        ({"parts": (OutputPart((Range(0, 0, 3),)),)}, False),
        ({"parts": (OutputPart((Range(2, 0, 1),)),)}, False),
        ({"parts": (OutputPart((Range(-1, 0, 1),)),)}, False),
        ({"parts": (OutputPart((Range(1, 2, 2),)),)}, False),
        ({"parts": (OutputPart((Range(1, 0, 4, 2, 3),)),)}, False),
    ],
)
def test_a_tensor_entry_of_a_policy_has_a_valid_type_shape_and_scale(
    changes: dict[str, Any], good: bool
) -> None:
    if good:
        check_tensor(tensor(**changes))
    else:
        with pytest.raises(ValueError, match="tensor"):
            check_tensor(tensor(**changes))


@pytest.mark.parametrize("name", ["max_abs", "max_above_noise_db", "min_equal"])
def test_a_limit_of_0_is_not_treated_as_unset(name: str) -> None:
    assert Limits(**{name: 0.0}).stated_limits == {name: 0.0}
    entry = ModelEntry("net.py:make", limits={Scheme.FP16: Limits(**{name: 0.0})})
    policy = msgspec.structs.replace(DEFAULT, models={"net": entry})
    assert getattr(policy.limits_of("net", Scheme.FP16), name) == 0
