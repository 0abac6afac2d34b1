"""`.ci/night` has each job of nightly.yml and weekly.yml.

Stand-ins of ./nox record their commands and results.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import read_toolchain
from tests.stand_ins.night import Night, make_night

ROOT = Path(__file__).parents[3]
# They ask for Qualcomm's headers as well, which no public job may have.
LICENSED = {"tests/integration/builds/test_build_executorch.py"}


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return make_night(tmp_path)


def list_jobs(night: Night, *words: str) -> list[str]:
    return night.run(*words, "--list").stdout.split()


@pytest.mark.parametrize(
    ("words", "workflow", "name", "commands"),
    [
        ((), "nightly.yml", "night", ['.ci/night "$JOB"', "sudo .ci/night fresh"]),
        (("--weekly",), "weekly.yml", "week", ['.ci/night "$JOB"']),
    ],
)
def test_a_workflow_has_each_job_and_calls_it(
    night: Night, words: tuple[str, ...], workflow: str, name: str, commands: list[str]
) -> None:
    text = (ROOT / ".github/workflows" / workflow).read_text()
    job: dict[str, Any] = yaml.safe_load(text)["jobs"][name]
    jobs = list_jobs(night, *words)
    matrix = job["strategy"]["matrix"]
    assert matrix["job"] == jobs
    assert {row["job"] for row in matrix.get("include", ())} <= {*jobs}
    assert [step["run"] for step in job["steps"] if "run" in step] == commands


@pytest.mark.parametrize("words", [(), ("--weekly",)])
def test_all_jobs_run_and_are_counted(night: Night, words: tuple[str, ...]) -> None:
    run = night.run(*words)
    times = run.stdout.rpartition("\n\n")[2]
    results = re.findall(r"(?m)^(\S+) +\d+ s  (.+)$", times)
    expected_results = dict.fromkeys(list_jobs(night, *words), "passed")
    if "fresh" in expected_results and os.geteuid() != 0:
        expected_results["fresh"] = "skipped: it needs root"
    assert results == [*expected_results.items()]
    passed = [*expected_results.values()].count("passed")
    assert run.stdout.splitlines()[-1] == f"{passed} passed, 0 failed in 0 min"
    assert run.returncode == 0, run.stderr


def test_two_jobs_run_at_a_time(night: Night) -> None:
    """Each of these ends only while the other runs: a pipe is opened for both ends at once."""
    os.mkfifo(night.folder / "pipe")
    for script, opening in (("audit", "<"), ("newest", ">")):
        (night.folder / ".ci" / script).write_text(f'#!/bin/sh\n: {opening}"$RECORD/pipe"\n')
    run = night.run("audit", "newest-qnn")
    assert run.stdout.splitlines()[-1] == "2 passed, 0 failed in 0 min"


@pytest.mark.parametrize("words", [(), ("--weekly",)])
def test_no_two_jobs_write_their_reports_to_the_same_folder(
    night: Night, words: tuple[str, ...]
) -> None:
    """They would refuse each other if they run at once."""
    night.run(*words)
    folders = []
    for program, *arguments in night.words:
        call = " ".join(arguments)
        if program == "nox" and (session := re.match(r"-s (test\w*)", call)):
            named = re.findall(r"--(?:reports|junit-xml)[ =](\S+)", call)
            folders.append(named[-1] if named else f"reports/{session[1]}")
    assert len(folders) > 2
    assert sorted(folders) == sorted({*folders})


def test_a_night_that_is_ended_ends_what_a_job_started_in_another_session(night: Night) -> None:
    for pipe in ("held", "never"):
        os.mkfifo(night.folder / pipe)
    starts = """#!/bin/sh\nsetsid sh -c 'exec > "$RECORD/held"; : < "$RECORD/never"'\n"""
    (night.folder / ".ci/audit").write_text(starts)
    call = [night.folder / ".ci/night", "audit"]
    with (
        subprocess.Popen(call, env=night.variables, stdout=subprocess.DEVNULL) as running,
        (night.folder / "held").open("rb") as held_pipe,  # opened once the process has opened it
    ):
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 128 + signal.SIGTERM
        assert held_pipe.read() == b""  # nobody has it open any longer


@pytest.mark.parametrize(
    ("job", "red", "calls"),
    [
        ("stories", "stories", ["nox -s test_llm -- --model stories260k"]),
        # The second command of a job does not hide that the first one failed.
        ("trained", "test_trained", ["nox -s test_trained"]),
        (
            "litert",
            "test-litert",
            ["nox -s test_litert", "nox -s environments -- test-litert"],
        ),
        ("executorch-1.2.0", "1.2.0", None),
        ("debian-3.11", "debian-3.11", ["container debian-3.11"]),
        ("newest-torch-2.14.0", "torch", ["newest torch-2.14.0"]),
    ],
)
def test_a_job_fails_at_its_first_command_that_fails(
    night: Night, job: str, red: str, calls: list[str] | None
) -> None:
    run = night.run(job, "wheels", red=red)
    assert run.returncode == 1
    assert run.stdout.splitlines()[-1] == "1 passed, 1 failed in 0 min"
    assert re.search(rf"(?m)^{job} +\d+ s  failed$", run.stdout)
    assert f"--- {job}: reports/night/{job}.log ---" in run.stdout
    assert "--- wheels" not in run.stdout
    of_wheels = [call for call in night.calls if "integration/elf/test_real_wheels.py" in call]
    assert len(of_wheels) == 1
    assert calls is None or [call for call in night.calls if call not in of_wheels] == calls


def test_a_job_that_lacks_something_is_skipped_unless_it_is_asked_for(night: Night) -> None:
    (night.folder / ".ci/container").write_text("#!/bin/sh\nexit 75\n")
    run = night.run()
    times = run.stdout.rpartition("\n\n")[2]
    skipped = re.findall(r"(?m)^(\S+) +\d+ s  skipped: its image cannot be pulled$", times)
    assert skipped == ["debian-3.11", "ubuntu-3.12", "fedora-3.10", "fedora-3.13"]
    assert run.returncode == 0
    run = night.run("fedora-3.10")
    assert run.stdout.splitlines()[-1] == "0 passed, 1 failed in 0 min"
    assert "failed: its image cannot be pulled" in run.stdout


def test_weights_that_cannot_be_fetched_are_lacking(night: Night) -> None:
    (night.folder / "nox").write_text("#!/bin/sh\nexit 4\n")
    run = night.run("stories")
    assert run.returncode == 1
    assert "failed: its weights cannot be fetched" in run.stdout


def test_a_job_that_does_not_exist_fails_with_what_lists_them(night: Night) -> None:
    run = night.run("no-such")
    assert run.returncode == 1
    assert "failed: there is no such job; .ci/night --list lists them" in run.stdout
    assert night.calls == []


def test_a_job_runs_a_case_of_each_supported_pair_in_an_environment_of_its_own(
    night: Night,
) -> None:
    """Except the default, which the jobs of pr.yml run."""
    rows = read_pairs().supported
    versions = [row.executorch for row in rows][1:]
    jobs = [job for job in list_jobs(night) if job.startswith("executorch-")]
    assert jobs == [f"executorch-{version}" for version in versions]
    night.run(*jobs)
    options = "--model mlp --scheme 8a8w"
    assert sorted(night.calls) == [
        f"nox -s test_emulator -- --executorch {version} {options}"
        f" --reports reports/executorch-{version}"
        for version in sorted(versions)
    ]
    # nox installs the row's torch; the QNN is that of every row.
    assert {row.qnn for row in rows} == {read_toolchain("qnn-runtime").default}


def list_files(night: Night, *jobs: str) -> set[str]:
    """The test files that jobs run, relative to the checkout."""
    files: set[str] = set()
    for job in jobs:
        assert night.run(job).returncode == 0
        for call in night.calls:
            words = call.split()
            left_out = {
                word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")
            }
            for word in words:
                place = ROOT / word
                if word.startswith("tests/") and place.exists():
                    test_files = [place] if place.is_file() else place.rglob("test_*.py")
                    files |= {str(path.relative_to(ROOT)) for path in test_files} - left_out
    return files


def test_jobs_clone_executorch_and_run_every_test_that_reads_it(night: Night) -> None:
    needing = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests/integration").rglob("test_*.py")
        for text in [path.read_text(encoding="utf-8")]
        if "WALKS" in text or "skipif(not EXECUTORCH" in text
    }
    assert len(needing) >= 4
    assert needing - LICENSED <= list_files(night, "upstream", "history")
    assert not list_files(night, "upstream") & list_files(night, "history")


def test_every_test_that_is_skipped_by_day_runs_in_one_job(night: Night) -> None:
    """Those marked nightly in other folders run in one call, by their marker."""
    marked: dict[str, set[str]] = {"emulator": set(), "llm": set()}
    for folder, files in marked.items():
        for path in (ROOT / "tests/integration" / folder).rglob("test_*.py"):
            if "mark.nightly" in path.read_text(encoding="utf-8"):
                files.add(str(path.relative_to(ROOT)))
    assert marked["emulator"] <= list_files(night, "emulator", "programs", "runtimes")
    assert not list_files(night, "emulator") & list_files(night, "programs", "runtimes")
    assert marked["llm"] <= list_files(night, "llm")
    calls = {}
    for job in ("long", "emulator", "programs", "llm", "litert", "runtimes", "runtimes-trained"):
        night.run(job)
        calls[job] = [call for call in night.calls if " by night " in call]
    assert {job: len(of_job) for job, of_job in calls.items()} == dict.fromkeys(calls, 1)
    ignored = " ".join(f"--ignore=tests/integration/{folder}" for folder in marked)
    assert calls["long"][0].endswith(f"-m nightly tests {ignored}")
    selections = [calls[job][0].partition(" -k ")[2] for job in ("runtimes", "runtimes-trained")]
    assert selections == ["not trained", "trained"]
    # In an environment that has another QNN, and litert-torch, without which these are skipped.
    needs = re.compile(r'"litert_(converter|torch)"|version\("onnxruntime-qnn"\) <')
    converting = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if needs.search(path.read_text(encoding="utf-8"))
    ]
    assert "tests/unit/ci/faults/test_litert_runner.py" in converting
    _, _, named = calls["litert"][0].partition(" -m pytest ")
    folder, *others = (word.partition("::")[0] for word in named.split())
    assert folder == "tests/integration/litert"
    assert sorted(set(others)) == [path for path in converting if not path.startswith(f"{folder}/")]
