"""Options of inspect that judge one file, and files that they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode
from tests.stand_ins.android_apps import write_apk
from tests.stand_ins.litert import make_bundle, make_compiled, make_plain
from tests.stand_ins.lowered import make_binary, make_program


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.pte", "net.pte", "--load"], "only one file can be judged"),
        (["net.pte", "--seal", "--load"], "only one file can be judged"),
        (["net.pte", "--load"], "neither a runtime nor an SoC is specified"),
        (["net.pte", "--strict"], "--strict is for an app, and net.pte is none"),
        (["net.pte", "--soc", "SM8650", "--soc", "SM8750"], "more than one --soc is for an app"),
        (["net.pte", "--soc", "SM1"], "SM1"),
        (["app.apk", "--soc", "SM1"], "SM1"),
        (
            ["app.apk", "--runtime", "2.49"],
            "--qnn-runtime 2.49 is for a program, and this is an app",
        ),
        (["app", "--runtime", "2.49"], "--qnn-runtime 2.49 is for a program, and this is an app"),
    ],
)
def test_options_that_do_not_fit_the_file_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.pte").write_bytes(make_program())
    write_apk(Path("app.apk"), {})
    Path("app").mkdir()
    assert main(["inspect", *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


COMPILED = (3, make_compiled(), {"model_type": "tf_lite_prefill_decode"})
OTHER_SOC = make_compiled(binary=make_binary(soc=("SM8750", 69, 79)), stamp=b"Qualcomm\0SM8750")
EMBEDDER = (3, OTHER_SOC, {"model_type": "tf_lite_embedder"})
AUXILIARY = (3, make_plain(), {"model_type": "tf_lite_aux"})
# A bundle for an NPU whose models are not compiled.
PLAIN = [
    (3, make_plain(), {"model_type": kind})
    for kind in ("tf_lite_prefill_decode", "tf_lite_embedder", "tf_lite_aux")
]


@pytest.mark.parametrize(
    ("sections", "words", "code", "text"),
    [
        ([COMPILED, AUXILIARY], ["--soc", "SM8650"], ExitCode.FAILED, "it has no tf_lite_embedder"),
        ([COMPILED, AUXILIARY], ["--soc", "SM8750"], ExitCode.FAILED, "for SM8750: no"),
        ([COMPILED, AUXILIARY], ["--runtime", "2.48.40"], ExitCode.FAILED, "2.48.40: no (build)"),
        ([COMPILED, EMBEDDER, AUXILIARY], ["--soc", "SM8650"], ExitCode.FAILED, "tf_lite_embedder"),
        ([COMPILED], ["--soc", "SM8650"], ExitCode.FAILED, "it has no tf_lite_aux"),
        ([AUXILIARY], ["--soc", "SM8650"], ExitCode.FAILED, "runs it on the GPU or the CPU"),
        (PLAIN, ["--soc", "SM8650"], ExitCode.ENVIRONMENT, "compiles it on the phone"),
        ([COMPILED], ["--runtime-dir", "2.51.0"], ExitCode.FAILED, "only programs of ExecuTorch"),
        ([COMPILED], ["--load"], ExitCode.USAGE, "neither a runtime nor an SoC"),
        ([], ["--soc", "SM8650"], ExitCode.FAILED, "cannot be loaded"),
    ],
)
def test_a_bundle_of_litert_is_judged_by_all_of_its_models(
    sections: list[tuple[int, bytes, dict[str, str]]],
    words: list[str],
    code: ExitCode,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "model.litertlm").write_bytes(make_bundle(sections))
    assert main(["inspect", str(tmp_path / "model.litertlm"), *words]) == code
    printed = capsys.readouterr()
    assert text in printed.out + printed.err


@pytest.mark.parametrize(
    ("dependency", "code", "text"),
    [
        ("'androidx.core:core-ktx:1.13.1'", ExitCode.FAILED, "app: not fit"),
        ("'com.example:runner:1.0'", ExitCode.ENVIRONMENT, "app: cannot tell"),
        ("'com.google.ai.edge.litert:litert:2.1.5'", ExitCode.FAILED, "app: not fit"),
        ("project(':runner')", ExitCode.ENVIRONMENT, "app: cannot tell"),
    ],
)
@pytest.mark.parametrize("model", [make_compiled(), make_plain()], ids=["compiled", "plain"])
def test_sources_without_a_library_are_never_fit(
    dependency: str,
    code: ExitCode,
    text: str,
    model: bytes,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main_folder = tmp_path / "app/src/main"
    (main_folder / "assets").mkdir(parents=True)
    (main_folder / "assets/net.tflite").write_bytes(model)
    (main_folder / "AndroidManifest.xml").write_text("<manifest><application/></manifest>")
    build = f"plugins {{ id 'com.android.application' }}\nimplementation {dependency}"
    (tmp_path / "app/build.gradle").write_text(build)
    words = ["inspect", str(tmp_path / "app"), "--load", "--soc", "SM8650"]
    assert main(words) == code
    assert text in capsys.readouterr().out
    assert main([*words, "--strict"]) == ExitCode.FAILED


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--runtime", "executorch"], ExitCode.OK, "ExecuTorch program"),
        (["--runtime", "executorch", "--qnn-runtime", "2.51.0"], ExitCode.OK, "2.51.0: yes"),
        (["--runtime", "litert"], ExitCode.FAILED, "net.pte is not for LiteRT"),
        (["--runtime", "litert", "--soc", "SM8650"], ExitCode.FAILED, "which ExecuTorch loads"),
        (["--runtime", "2.51.0"], ExitCode.OK, "2.51.0: yes"),
        (["--runtime", "2.51.0", "--qnn-runtime", "2.51.0"], ExitCode.USAGE, "both QNN's"),
        (["--runtime", "tvm"], ExitCode.USAGE, "tvm"),
    ],
)
def test_a_runtime_of_models_and_one_of_qnn_are_told_apart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: ExitCode,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.pte").write_bytes(make_program())
    assert main(["inspect", "net.pte", *words]) == code
    shown = capsys.readouterr()
    assert message in shown.out + shown.err
