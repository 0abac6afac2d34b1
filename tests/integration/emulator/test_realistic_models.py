"""Models as users bring them: none is red for the gate's sake."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from ci.report.schema import Case, Status
from ci.report.write import read_report
from tests.integration.conftest import MakeOnce
from tests.stand_ins.runs import JUDGED, run_to_end

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.emulator]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

# One scheme a model is enough, and keeps this short.
SCHEMES = {
    "vision.py": {
        "fp16": ("ssd_apart", "unet_masks", "depth", "vision_transformer"),
        "8a8w": (
            "yolo",
            "unet",
            "squeeze_excite",
            "mobilevit",
            "convnext",
            "pose",
            "anomaly",
            "ssd_joined",
        ),
        "16a8w": ("ssd_joined",),
    },
    "sequences.py": {
        "fp16": ("gru", "tcn", "router", "matching", "kv_cache"),
        "8a8w": ("keyword", "grouped_queries", "swiglu", "masked_pooling", "latent", "tagger"),
        "16a8w": ("actor_critic", "denoiser", "gru_cell"),
    },
}
# Models that fail because of QNN or of quantization, with the reason that the report states.
RED = {
    "ssd_joined 8a8w": "not quantized well: ",
    "mobilevit 8a8w": "aten.view_copy.default: [4294967295] has incorr",
    "router fp16": "try: cast them directly after the operator: indices.to(torch.int32)",
    "gru_cell 16a8w": "not faithful: output 0: ",
}
CASES = [
    (file, scheme, name)
    for file, by_scheme in SCHEMES.items()
    for scheme, names in by_scheme.items()
    for name in names
]


def write_policy(folder: Path) -> Path:
    """A policy of each model in the schemes that it is tried in: one run, one set of imports."""
    schemes: dict[tuple[str, str], list[str]] = {}
    for file, scheme, name in CASES:
        schemes.setdefault((file, name), []).append(scheme)
    rows = [
        f'[models.{name}]\npath = "{ROOT}/tests/realistic/{file}:{name}"\nschemes = {names}\n'
        for (file, name), names in schemes.items()
    ]
    policy = folder / "policy.toml"
    policy.write_text('extends = "default"\n' + "".join(rows))
    return policy


def run_models(folder: Path) -> None:
    """Lower and judge all models. test_plain_script compares the same programs, in ``kept``."""
    argv = [sys.executable, "-m", "ci", "test-emulator", "--reports", str(folder)]
    argv += ["--keep-artifacts", str(folder / "kept"), "--policy", str(write_policy(folder))]
    run_to_end(argv, timeout_s=1700, codes=JUDGED)


@pytest.fixture(scope="module")
def cases(make_once: MakeOnce) -> dict[str, Case]:
    """Every model in its scheme, by "MODEL SCHEME"."""
    report = read_report(make_once("realistic", run_models) / "test_emulator")
    return {f"{case.model} {case.scheme}": case for case in report.cases}


@pytest.mark.nightly
@pytest.mark.parametrize("name", [f"{name} {scheme}" for _, scheme, name in CASES])
def test_a_realistic_model_fails_only_for_its_known_qnn_or_quantization_reason(
    cases: dict[str, Case], name: str
) -> None:
    case = cases[name]
    if name in RED:
        assert case.judgement.status is Status.FAILED
        assert RED[name] in case.reason
    else:
        assert case.judgement.status is Status.PASSED, case.reason
    assert "proves nothing" not in case.reason


def test_every_model_in_tests_realistic_has_a_case() -> None:
    from tests.realistic import sequences, vision

    functions = {
        name
        for module in (vision, sequences)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not inspect.signature(function).parameters
    }
    assert functions == {name for _, _, name in CASES}
