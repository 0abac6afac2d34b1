"""An option or a key that a call cannot honour is refused before any work, and not ignored."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode

MODEL = '[models.net]\npath = "net.py:factory"\n'
FILE = '[models.net]\npath = "net.onnx"\n'
MIXTURE = '[models.net.mixtures.mixed]\nbase = "{}"\nparts = [{{ op = "relu", scheme = "{}" }}]\n'
KEYS = {
    "a scheme": ("test-emulator", f'{MODEL}schemes = ["u8"]', "models.net.schemes: u8"),
    "one of two": ("test-emulator", f'{MODEL}schemes = ["8a8w", "u8"]', "models.net.schemes: u8"),
    "in ONNX": (
        "test-onnx --policy qnn.toml",
        f'{MODEL}schemes = ["16a8w"]',
        "models.net.schemes: 16a8w",
    ),
    "a file": ("test-onnx", f'{FILE}schemes = ["fp16", "8a8w"]', "models.net.schemes: 8a8w"),
    "a mixture": (
        "test-emulator",
        f'{MODEL}schemes = ["mixed"]\n{MIXTURE.format("u8", "u16a8w")}',
        "models.net.schemes: mixed is a mixture of u8",
    ),
    "a mixture that is tested by default": (
        "test-emulator",
        f"{MODEL}{MIXTURE.format('u8', 'u16a8w')}",
        "models.net.mixtures: mixed is a mixture of u8",
    ),
    "audit": ("audit", f'{MODEL}schemes = ["u8"]', "models.net.schemes: u8"),
    "mend": ("mend", f'{MODEL}schemes = ["u8"]', "models.net.schemes: u8"),
    "localise": ("localise --model net", f'{MODEL}schemes = ["u8"]', "models.net.schemes: u8"),
    "estimate": ("estimate --model net", f'{MODEL}schemes = ["u8"]', "models.net.schemes: u8"),
    "the suite": ("test-emulator", '[suite]\nmlp = ["u8"]', "suite.mlp: u8"),
    "a backend": (
        "test-emulator --backend lpai",
        f'{MODEL}schemes = ["16a16w"]',
        "models.net.schemes: 16a16w",
    ),
    "part of a backend's": (
        "test-emulator --backend lpai",
        f'{MODEL}schemes = ["8a8w", "fp16"]',
        "models.net.schemes: fp16",
    ),
    "limits of the usual backend": (
        "test-emulator",
        f"{MODEL}[backends.htp.fp16]\nmin_sqnr_db_all = 90",
        "backends.htp has no effect",
    ),
    "an override of one's own model": (
        "test-emulator",
        f'{MODEL}[[override]]\nmodel = "net"\nscheme = "fp16"\nlimits = {{}}\nreason = "r"',
        "move its limits to [models.net.limits.fp16]",
    ),
    "limits of a quantized model in float": (
        "test-emulator",
        f"{MODEL}[models.net.limits.fp16]\nmin_sqnr_db_quantized = 30",
        "models.net.limits.fp16.min_sqnr_db_quantized has no effect",
    ),
    "such limits of one output": (
        "test-onnx",
        f"{FILE}[models.net.limits.fp16.outputs.1]\nmin_equal_quantized = 0.9",
        "models.net.limits.fp16.outputs.1.min_equal_quantized has no effect",
    ),
    "such limits of a scheme": (
        "test-emulator",
        f"{MODEL}[schemes.fp16]\nmin_cosine_quantized = 0.9",
        "schemes.fp16.min_cosine_quantized has no effect",
    ),
    "such limits of a backend": (
        "test-emulator",
        f"{MODEL}[backends.gpu.fp16]\nmin_cosine_quantized = 0.9",
        "backends.gpu.fp16.min_cosine_quantized has no effect",
    ),
    "such limits of the suite": (
        "test-emulator",
        """[[override]]\nmodel = "mlp"\nscheme = "fp16"\nreason = "r"
limits = {min_sqnr_db_quantized = 30}""",
        "override]] of mlp.min_sqnr_db_quantized has no effect",
    ),
    "times of a file that runs on no device": (
        "test-onnx",
        f"{FILE}[models.net.budget]\np50_ms = 3.0",
        "models.net.budget.p50_ms has no effect for an .onnx file",
    ),
    "times of a policy of such files": (
        "test-onnx",
        f"{FILE}[budget]\nload_ms = 3.0",
        "budget.load_ms has no effect for an .onnx file",
    ),
    "an override of no model": (
        "test-emulator",
        '[[override]]\nmodel = "mpl"\nscheme = "fp16"\nlimits = {}\nreason = "r"',
        "nearest model of the suite is mlp",
    ),
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and no QNN: a call that is not refused ends with another exit code."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("def factory(): ...\n")
    (tmp_path / "net.onnx").write_text("")
    return tmp_path


@pytest.mark.parametrize(("words", "text", "message"), KEYS.values(), ids=KEYS)
def test_a_key_without_effect_is_refused(
    repository: Path, words: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "qnn.toml").write_text(f'extends = "default"\n{text}\n')
    assert main([*shlex.split(words), "--offline"]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_a_scheme_of_the_command_line_replaces_those_of_the_policy(repository: Path) -> None:
    (repository / "qnn.toml").write_text(f'extends = "default"\n{MODEL}schemes = ["u8"]\n')
    call = ["test-emulator", "--scheme", "fp16", "--offline"]
    assert main(call) in {ExitCode.ENVIRONMENT, ExitCode.DOWNLOAD}


@pytest.mark.parametrize("verb", ["audit", "mend", "localise", "estimate"])
@pytest.mark.parametrize("runtime", ["onnxruntime", "litert"])
def test_a_runtime_that_is_chosen_has_its_own_schemes_for_those_of_the_policy(
    repository: Path, verb: str, runtime: str
) -> None:
    text = f'extends = "default"\n{MODEL}schemes = ["fp16", "8a8w"]\n'
    (repository / "qnn.toml").write_text(text)
    call = [verb, "--model", "net", "--runtime", runtime, "--offline"]
    assert main(call) in {ExitCode.ENVIRONMENT, ExitCode.DOWNLOAD}


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("test-emulator --list --record", "--record"),
        ("localise --model net.py:f --runtime litert --runtime onnxruntime", "--runtime is typed"),
        ("mend --runtime=litert --model net.py:f --runtime executorch", "--runtime is typed"),
        ("test-emulator --model mlp --backend gpu --backend lpai", "--backend is typed"),
        ("test-emulator --list --scheme fp16", "--scheme"),
        # The number of cores is the default, which may be 2.
        *((f"test-emulator --list --jobs {number}", "--jobs") for number in (1, 2, 3, 4)),
        ("test-onnx --list --model net.onnx --no-cache", "--no-cache"),
        ("test-litert --list --timeout-s 300", "--timeout-s"),
        ("audit --list --sdk wheel", "--sdk"),
        ("test-emulator --model mlp --base gone.json", "--base gone.json does not exist"),
        ("test-onnx --model net.onnx --base .", "--base"),
        ("report . --base gone.json", "--base gone.json does not exist"),
        ("judge . --base gone.json", "--base gone.json does not exist"),
        ("test-llm --base gone.json", "--base gone.json does not exist"),
        ("mend --model net.onnx --adaptor wheel", "--adaptor is not for ONNX Runtime"),
        ("localise --model net.onnx --adaptor wheel", "--adaptor is not for ONNX Runtime"),
        ("localise --model net.tflite --adaptor wheel", "--adaptor is not for LiteRT"),
        ("test --model net.onnx --runtime onnxruntime --runtime litert", "--runtime litert"),
        (f"test --model net.onnx --python litert={sys.executable}", "--python litert"),
        ("test-emulator --suite faults --jobs 2", "--jobs"),
        ("test-emulator --model mlp --starts 0", "--starts"),
        ("test-emulator --suite faults --strict-noise", "--strict-noise"),
        ("test-emulator --backend gpu --estimate", "--estimate"),
        ("test-onnx --model net.onnx --direct --embed-mode 0", "--embed-mode"),
        ("test-onnx --model net.onnx --option backend_type=cpu --estimate", "--estimate"),
        ("estimate --calibrate report.json --model mlp", "--model"),
        ("estimate --calibrate report.json --trace out", "--trace"),
        ("estimate --calibrate report.json --no-cache", "--no-cache"),
        ("test-llm --project . --prompt Once", "--prompt"),
        ("test-llm --program x.pte --tokenizer t.json --context 128", "--context"),
        ("test-llm --program x.pte --tokenizer t.json --keep-artifacts k", "--keep-artifacts"),
        ("test-llm --weights w.bin --tokenizer t.bin --model stories260k", "--model"),
        ("fuzz --graph broadcast-add-before-norm --minutes 3", "--minutes"),
        ("fuzz --graph broadcast-add-before-norm --minutes 10", "--minutes"),
        ("fuzz --runtime litert --adaptor wheel", "--adaptor"),
        ("report --schema --base report.json", "--base"),
        ("report --trend . --sarif x.sarif", "--sarif"),
        ("report . --annotate --summary", "--annotate"),
        ("report . --annotate --json", "--annotate"),
        ("report . --force", "--force"),
        ("explain a.log --github --json", "--github"),
        ("plan --markdown --json", "--markdown"),
        ("gate plan.json --needs n.json --results . --markdown --json", "--markdown"),
        ("env emulator --github --json", "--github"),
        ("deploy --device adb:1 --clean --bundle b", "--bundle"),
        ("deploy --device adb:1 --clean --wait 3", "--wait"),
        ("judge . --by phone", "--by"),
        ("upgrade-report --matrix --known --sdk 2.49.40", "--sdk"),
        ("upgrade-report --matrix --model mlp", "--model"),
        ("upgrade-report --matrix 2.49.40 2.50.40", "2.49.40"),
        ("upgrade-report 2.49.40 --fault broadcast-add-before-norm 2.50.40", "--fault"),
        (f"init --policy-only --uses a/b@{'0' * 40}", "--uses"),
    ],
)
def test_an_option_without_effect_is_refused(
    repository: Path, words: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) == ExitCode.USAGE
    assert flag in capsys.readouterr().err


def test_what_is_not_typed_is_no_option_without_effect(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_JOBS", "37")
    assert main(["test-emulator", "--list", "--offline"]) == ExitCode.OK
