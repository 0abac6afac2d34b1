"""Programs of CI are those of a plain script, byte for byte.

All of them are lowered with the patches, those of one small model in each scheme also with
``--plain``, without them: the script shows for the others that the patches change nothing.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from ci.cases.policy import read_emulator_policy
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from tests.integration.conftest import MakeOnce
from tests.integration.emulator.test_liars import run_suite
from tests.integration.emulator.test_realistic_models import CASES, run_models
from tests.stand_ins.runs import JUDGED, run_to_end

pytestmark = [pytest.mark.emulator, pytest.mark.nightly, pytest.mark.timeout(3600)]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

SUITE = {
    f"{name}-{scheme.value}": f"ci.models.suite.{name}:make_case:{scheme.value}"
    for name, schemes in read_emulator_policy().suite.items()
    for scheme in schemes
}
REALISTIC = {
    f"{name}-????????-{scheme}": f"tests.realistic.{Path(file).stem}:{name}:{scheme}"
    for file, scheme, name in CASES
}
# ExecuTorch 1.5.1 inserts transpositions for a node's users in the order of a set of nodes, which
# is that of their addresses (backends/qualcomm/_passes/layout_transform.py, traverse). So the names
# of two or three tensors differ from process to process: the plain script alone gives two programs
# of each of these models, depending on what it lowered before or on PYTHONMALLOC.
REORDERED = {
    f"{name}-????????-{scheme}"
    for name, scheme in (
        *(("anomaly", "8a8w"), ("depth", "fp16"), ("mobilevit", "8a8w")),
        *(("ssd_apart", "fp16"), ("ssd_joined", "8a8w"), ("ssd_joined", "16a8w")),
        ("yolo", "8a8w"),
    )
}
MOST_REORDERED = 0.005  # of a program's bytes; seen: 0.0023
PLAIN = "mlp"  # it has all schemes
# By the name of the directory that a case's artifacts are kept in.
PROGRAMS = {**SUITE, **REALISTIC}


def lower_by_script(directory: Path) -> None:
    environment = provision_profile("emulator", Progress()).apply(os.environ)
    argv = [sys.executable, "-m", "tests.plain_script", str(directory), *PROGRAMS.values()]
    variables = {**environment, "PYTHONUTF8": "1"}
    run_to_end(argv, timeout_s=3000, env=variables)


def lower_without_patches(directory: Path) -> None:
    argv = [sys.executable, "-m", "ci", "test-emulator", "--no-cache", "--plain", "--model", PLAIN]
    argv += ["--keep-artifacts", str(directory / "kept"), "--reports", str(directory)]
    run_to_end(argv, timeout_s=3000, codes=JUDGED)


class Programs(NamedTuple):
    """Where each way of lowering leaves its programs."""

    script: Path
    patched: tuple[Path, ...]
    plain: Path


@pytest.fixture(scope="module")
def programs(make_once: MakeOnce) -> Programs:
    patched = make_once("suite", run_suite), make_once("realistic", run_models)
    return Programs(
        make_once("plain-script", lower_by_script),
        tuple(folder / "kept" for folder in patched),
        make_once("plain-plain", lower_without_patches) / "kept",
    )


@pytest.fixture(scope="module")
def sign() -> Callable[[bytes], bytes]:
    """``sign_by_content``, imported late, since it imports ExecuTorch.

    Without QNN_SDK_ROOT that import downloads an SDK; and it warns of what it uses itself.
    """
    with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ci.executorch.lower import sign_by_content
    return sign_by_content


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_lowered_program_equals_that_of_a_plain_upstream_script(
    programs: Programs, sign: Callable[[bytes], bytes], name: str
) -> None:
    script = sign((programs.script / f"{PROGRAMS[name].replace(':', '-')}.pte").read_bytes())
    folders = [*programs.patched, programs.plain]
    files = [
        path for folder in folders for path in folder.glob(f"{name}-SM8650/artifact/program.pte")
    ]
    assert len(files) == (2 if name.startswith(f"{PLAIN}-") else 1)
    lowered_by_ci = [file.read_bytes() for file in files]
    if name in REORDERED:
        for program in lowered_by_ci:
            assert len(program) == len(script)
            differing = sum(
                own_byte != script_byte
                for own_byte, script_byte in zip(program, script, strict=True)
            )
            assert differing < MOST_REORDERED * len(script)
    else:
        assert all(program == script for program in lowered_by_ci)
