"""What other parts call: examine() of a provisioned profile, and the benchmark's scan."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.doctor.examine import examine
from provisioning.errors import ExitCode, UnfitError
from tests.bench import doctor as bench
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.environments import HOST, VERSION, World, adaptor_path
from tests.stand_ins.faults import SIZES


def test_the_provisioned_emulator_is_fit(world: World) -> None:
    environment = provision_profile("emulator", Progress())
    verdict = examine("emulator", environment, python=world.python)
    assert verdict.fit
    assert {finding.id for finding in verdict.findings} <= SIZES
    facts = verdict.facts
    assert facts["sdk"]["version"] == VERSION
    assert facts["trees"]["qnn-runtime"]["files"] == 11
    assert facts["python"]["distributions"]["executorch"] == "1.5.1"


def test_a_fault_ends_a_job_with_exit_code_3(world: World) -> None:
    world.remove(adaptor_path(world))
    environment = provision_profile("emulator", Progress())
    with pytest.raises(UnfitError, match="QNN507") as caught:
        examine("emulator", environment, python=world.python).require()
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_the_benchmark_scans_what_it_says(world: World, tmp_path: Path) -> None:
    host = tmp_path / "tree" / "0" / HOST
    shutil.copytree(world.sdk / HOST, host, symlinks=True)
    assert bench.scan(tmp_path / "tree", tmp_path / "memory") == 0
    data = bytearray((host / "libQnnSaver.so").read_bytes())
    elf.set_string(f"v{VERSION}.", "v2.11.40.")(data)
    (host / "libQnnSaver.so").chmod(0o644)
    (host / "libQnnSaver.so").write_bytes(data)
    assert bench.scan(tmp_path / "tree", tmp_path / "memory") == 1


def test_the_benchmark_prints_its_ratio() -> None:
    figures = {"files": 350, "bytes": 4e9, "cold_s": 2, "warm_s": 0.3, "shell_s": 30}
    text = bench.render_bench({**figures, "ratio_shell": 15.0})
    assert "15.0 x" in text
    assert "350 files, 4.00 GB" in text
