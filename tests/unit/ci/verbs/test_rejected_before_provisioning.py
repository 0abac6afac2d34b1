"""What is wrong with a model, its data or its limits is said before anything is provisioned, with
the file and the key."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.__main__ import main
from ci.onnx.toolchain import EXPORTING, PACKAGES
from ci.verbs import steps
from provisioning.documents import CONTENT_BYTES
from provisioning.errors import ExitCode, UnfitError

RANDOM = np.random.default_rng(4)
ENTRY = 'extends = "default"\n[models.m]\npath = "net.py:factory"\n'
METRIC = '[models.m.metric]\nfunction = "{}"\nlabels = "{}"\nmax_drop = 0.1\n'
LIMIT = "[models.m.limits.8a8w]\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with data, and no QNN: what is not refused before ends with 4."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("def factory(): ...\ndef top1(outputs, labels): ...\n")
    (tmp_path / "x.onnx").write_text("")
    (tmp_path / "photos").mkdir()
    (tmp_path / "bad.npz").write_text("no archive")
    (tmp_path / "lfs.npz").write_text("version https://git-lfs.github.com/spec/v1\n")
    sets = RANDOM.standard_normal((8, 2, 4)).astype(np.float32)
    holes = np.where(sets > 1, np.float32(np.nan), sets)
    np.savez(tmp_path / "apart.npz", a=sets, b=sets[:5])
    np.savez(tmp_path / "one_hole.npz", a=sets, b=holes)
    np.savez(tmp_path / "nothing.npz")
    arrays = {"sets": sets, "three": sets[:3], "empty": sets[:0], "scalar": sets[0, 0, 0]}
    arrays |= {"words": np.array(["a"] * 8), "holes": holes, "swapped": sets.astype(">f4")}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.save(tmp_path / "pickled.npy", np.array([{}] * 8), allow_pickle=True)
    np.savez(tmp_path / "bomb.npz", a=sets, b=sets)
    data = bytearray((tmp_path / "bomb.npz").read_bytes())
    for at in (data.find(b"PK\1\2"), data.rfind(b"PK\1\2")):  # each claims half of the limit
        data[at + 24 : at + 28] = struct.pack("<I", CONTENT_BYTES // 2 + 1)
    (tmp_path / "bomb.npz").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("a.txt", "no array")
    np.save(tmp_path / "sparse.npy", sets)
    os.truncate(tmp_path / "sparse.npy", CONTENT_BYTES + 1)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('inputs = "gone.npy"\n', "models.m.inputs"),
        ('inputs = "photos"\n', "is a directory, which is not read for samples"),
        ('inputs = "bad.npz"\n', "models.m.inputs: bad.npz is neither an .npy"),
        ('inputs = "lfs.npz"\n', "models.m.inputs: lfs.npz is a Git LFS pointer"),
        ('inputs = "pickled.npy"\n', "models.m.inputs: pickled.npy cannot be read"),
        ('inputs = "three.npy"\n', "models.m.inputs: three.npy has only 3 of the 4 samples"),
        ('inputs = "empty.npy"\n', "models.m.inputs: empty.npy does not contain samples"),
        ('inputs = "scalar.npy"\n', "models.m.inputs: scalar.npy does not contain samples"),
        ('inputs = "words.npy"\n', "models.m.inputs: words.npy has arrays of a dtype"),
        ('inputs = "holes.npy"\n', "models.m.inputs: holes.npy has NaN"),
        ('inputs = "one_hole.npz"\n', "models.m.inputs: one_hole.npz has NaN"),
        ('inputs = "bomb.npz"\n', "models.m.inputs: bomb.npz is too large"),
        ('inputs = "text.npz"\n', "models.m.inputs: text.npz does not contain samples"),
        ('inputs = "sparse.npy"\n', "models.m.inputs: sparse.npy is too large"),
        ('calibration = "apart.npz"\n', "models.m.calibration: apart.npz does not contain"),
        ('calibration = "nothing.npz"\n', "models.m.calibration: nothing.npz does not contain"),
        ('calibration = "net.py:gone"\n', "models.m.calibration:"),
        (METRIC.format("net.py:gone", "sets.npy"), "models.m.metric.function:"),
        (METRIC.format("net.py:top1", "bad.npz"), "models.m.metric.labels: bad.npz is neither"),
        (
            f'inputs = "sets.npy"\n{METRIC.format("net.py:top1", "three.npy")}',
            "models.m.metric.labels: three.npy has 3 rows",
        ),
        (f"{LIMIT}min_sqnr_db = -50.0\n", "models.m.limits.8a8w.min_sqnr_db"),
        (f"{LIMIT}min_sqnr_db_all = -1.0\n", "models.m.limits.8a8w.min_sqnr_db_all"),
        (f"{LIMIT}min_sqnr_db_quantized = -1\n", "limits.8a8w.min_sqnr_db_quantized"),
        (f"{LIMIT}min_cosine = 2.0\n", "models.m.limits.8a8w.min_cosine"),
    ],
)
@pytest.mark.parametrize("verb", ["test-emulator", "test-onnx"])
def test_wrong_data_files_of_a_policy_are_refused_before_provisioning(
    repository: Path, verb: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "x.onnx" if verb == "test-onnx" else "net.py:factory"
    (repository / "qnn.toml").write_text(ENTRY.replace("net.py:factory", path) + text)
    assert main([verb, "--policy", "qnn.toml"]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert message in err
    assert "qnn.toml" in err or ".np" in err


@pytest.mark.parametrize("name", ["sets", "swapped"])  # of another byte order
def test_right_data_files_of_a_policy_are_accepted_before_provisioning(
    repository: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(steps, "provision_profile", raise_unfit)
    (repository / "qnn.toml").write_text(
        f'{ENTRY}inputs = "{name}.npy"\n{METRIC.format("net.py:top1", "sets.npy")}'
    )
    assert main(["test-emulator", "--policy", "qnn.toml", "--json"]) == ExitCode.ENVIRONMENT
    assert "models.m" not in json.dumps(capsys.readouterr().err)


def raise_unfit(*_: Any, **__: Any) -> None:
    raise UnfitError("provisioning starts")


LOWERING = ("torch", "executorch")


@pytest.mark.parametrize(
    ("module", "words", "names"),
    [
        ("steps", ["test-emulator", "--model", "mlp"], LOWERING),
        ("steps", ["audit", "--model", "mlp"], LOWERING),
        ("steps", ["localise", "--model", "mlp", "--scheme", "fp16"], LOWERING),
        ("steps", ["test-llm"], LOWERING),
        ("steps", ["test-llm", "--project", "."], LOWERING),
        ("steps", ["test-upstream"], (*LOWERING, "pytest")),
        ("steps", ["test-onnx", "--model", "mlp"], (*PACKAGES, *EXPORTING)),
        ("trials", ["fuzz", "--frontend", "executorch"], LOWERING),
        ("upgrade_matrix", ["upgrade-report", "--matrix"], ("torch", "onnx")),
    ],
)
def test_packages_that_a_verb_needs_are_checked_before_provisioning(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    words: list[str],
    names: tuple[str, ...],
) -> None:
    required: list[tuple[str, ...]] = []

    def refuse(packages: tuple[str, ...], _: str) -> None:
        required.append(tuple(packages))
        raise UnfitError("it is missing")

    monkeypatch.setattr(f"ci.verbs.{module}.require_packages", refuse)
    has_offline = "--project" not in words and words[0] != "upgrade-report"
    assert main([*words, *(["--offline"] if has_offline else [])]) == ExitCode.ENVIRONMENT
    assert required == [names]


@pytest.mark.parametrize(
    "words",
    [
        ["test-emulator", "--model", "mlp"],
        ["test-upstream"],
        ["test-emulator", "--suite", "faults"],
        ["audit", "--model", "mlp"],
        ["test-llm"],
        ["test-onnx", "--model", "mlp"],
    ],
)
@pytest.mark.parametrize(
    "wrong", [["--jobs", "0"], ["--timeout-s", "0"], ["--timeout-s", "inf"], ["--starts", "-1"]]
)
def test_numbers_that_no_run_can_have_are_refused(
    repository: Path, words: list[str], wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--offline", *wrong]) == ExitCode.USAGE
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize("by_variable", [False, True])
@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("test-emulator", "--sdk --adaptor"),
        ("test-onnx", "--sdk"),
        ("test-llm --model tiny", "--sdk --adaptor"),
        ("test-upstream", "--sdk --adaptor"),
        ("audit", "--sdk --adaptor"),
        ("fuzz", "--sdk --adaptor"),
        ("localise --model net.py:factory", "--sdk --adaptor"),
        ("mend --model net.py:factory", "--sdk --adaptor"),
        ("estimate --model net.py:factory", "--sdk"),
    ],
)
def test_an_sdk_or_adaptor_that_does_not_exist_is_refused_before_packages_are_needed(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    flags: str,
    by_variable: bool,
) -> None:
    """This Python has no package at all."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    for flag in flags.split():
        variable = f"QNN_CI_{flag[2:].upper()}"
        choice = [] if by_variable else [flag, "gone"]
        with monkeypatch.context() as environment:
            environment.setenv(variable, "gone" if by_variable else "")
            assert main([*words.split(), *choice]) == ExitCode.USAGE
        name = variable if by_variable else flag
        assert f"{name}: {repository}/gone is not a directory" in capsys.readouterr().err
