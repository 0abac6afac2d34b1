"""A cold fetch beside ExecuTorch's own downloader and beside curl and unzip, in one run.

The archive is made of real QNN libraries, laid out as the SDK is, and served on loopback.
Every way runs as a whole process, in turn, and ends with the same tree; medians are taken.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from provisioning.archives.zipfiles import FileSource, read_directory
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from tests.bench.file_server import ask_server
from tests.bench.sdk_course import HOST, VERSION, Course, lay_course

ROUNDS = 5
WARM_ROUNDS = 10
UPSTREAM = Path("backends/qualcomm/scripts/download_qnn_sdk.py")
RUN_UPSTREAM = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("downloader", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.QNN_VERSION, module.QNN_ZIP_URL = sys.argv[3], sys.argv[2]
sys.exit(module._download_qnn_sdk(pathlib.Path(sys.argv[4])) is None)
"""
RUN_SHELL = 'curl -sS -o sdk.zip "$1" && unzip -tq sdk.zip && unzip -q sdk.zip'


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure; all times in seconds but warm_ms."""
    downloader = find_upstream()
    with lay_course(progress) as course:
        times = race(course, downloader, progress)
        figures: dict[str, Any] = {
            "archive_bytes": course.archive.stat().st_size,
            **times,
            **measure_warm(course),
            **measure_verify(course),
            **measure_component(course, progress),
        }
    ours_s = figures["ours_s"]
    figures["ratio_upstream_downloader"] = ours_s / figures["upstream_s"]
    figures["ratio_shell"] = ours_s / figures["shell_s"]
    figures["load_average"] = os.getloadavg()[0]
    figures["cores"] = os.cpu_count()
    return {name: _round(value) for name, value in figures.items()}


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return [_round(item) for item in value] if isinstance(value, list) else value


def find_upstream() -> Path:
    """ExecuTorch's downloader in the installed wheel; the package is not imported.

    Raises UnfitError when ExecuTorch is not installed.
    """
    spec = importlib.util.find_spec("executorch")
    for root in spec.submodule_search_locations or [] if spec else []:
        if (path := Path(root) / UPSTREAM).is_file():
            return path
    raise UnfitError(
        "ExecuTorch is not installed here",
        why="its downloader is what this benchmark is measured against",
        fix="run `nox -s bench -- provisioning`, whose environment has it",
    )


def time_process(argv: Sequence[str], course: Course, cwd: Path | None = None) -> float:
    """Wall seconds of a whole process, after what earlier ones wrote is on the disk."""
    os.sync()
    started = time.monotonic()
    # Not run_process, which notices up to 50 ms later that a process has ended.
    subprocess.run(
        argv, env=course.variables, cwd=cwd, timeout=1200, check=True, capture_output=True
    )
    return time.monotonic() - started


def race(course: Course, downloader: Path, progress: Progress) -> dict[str, Any]:
    """Each way in turn, ROUNDS times; the medians and all times."""
    runners: dict[str, Callable[[], float]] = {
        "ours": lambda: run_ours(course),
        "upstream": lambda: run_upstream(course, downloader),
        "shell": lambda: run_shell(course),
    }
    times: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(1, ROUNDS + 1):
        for name, run in runners.items():
            times[name].append(run())
            progress.step(f"round {number}: {name} {times[name][-1]:.2f} s")
    medians: dict[str, Any] = {f"{name}_s": statistics.median(all_) for name, all_ in times.items()}
    return {**medians, **{f"{name}_all_s": all_ for name, all_ in times.items()}}


def run_ours(course: Course) -> float:
    """A cold fetch, verified and published."""
    shutil.rmtree(course.home, ignore_errors=True)
    argv = [sys.executable, "-m", "provisioning", "fetch", "qnn-sdk"]
    return time_process(argv, course)


def run_upstream(course: Course, downloader: Path) -> float:
    """ExecuTorch's own downloader, which checks no hash."""
    target = course.work / "upstream"
    argv = [sys.executable, "-c", RUN_UPSTREAM, str(downloader), course.url, VERSION, str(target)]
    wall_s = time_process(argv, course)
    shutil.rmtree(target)
    return wall_s


def run_shell(course: Course) -> float:
    """curl, unzip -t and unzip, as ExecuTorch's shell script has them."""
    target = course.work / "shell"
    target.mkdir()
    wall_s = time_process(["sh", "-c", RUN_SHELL, "sh", course.url], course, cwd=target)
    shutil.rmtree(target)
    return wall_s


def measure_warm(course: Course) -> dict[str, float]:
    """A fetch that finds all in place, as a whole process."""
    run_ours(course)
    argv = [sys.executable, "-m", "provisioning", "fetch", "qnn-sdk"]
    times = [time_process(argv, course) for _ in range(WARM_ROUNDS)]
    return {"warm_ms": 1000 * statistics.median(times), "warm_min_ms": 1000 * min(times)}


def measure_verify(course: Course) -> dict[str, float]:
    """Hashing everything again."""
    argv = [sys.executable, "-m", "provisioning", "verify", "qnn-sdk"]
    return {"verify_s": time_process(argv, course)}


def measure_component(course: Course, progress: Progress) -> dict[str, float]:
    """The host's libraries alone, of a locked archive: bytes sent beyond their own."""
    progress.step("fetching one component by ranges")
    prefix = [sys.executable, "-m", "provisioning"]
    run_process([*prefix, "lock", "qnn-sdk", "--write"], env=course.variables, timeout_s=1200)
    shutil.rmtree(course.home)
    before = ask_server(course.base, "sent")
    wall_s = time_process([*prefix, "fetch", "qnn-sdk:host"], course)
    sent = ask_server(course.base, "sent") - before
    with closing(FileSource(course.archive)) as source:
        needed_bytes = sum(
            member.compressed for member in read_directory(source) if member.name.startswith(HOST)
        )
    return {
        "component_s": wall_s,
        "component_bytes": sent,
        "component_overhead": sent / needed_bytes - 1,
    }


def render_bench(figures: Mapping[str, Any]) -> str:
    """The ratios, and what a fetch takes otherwise."""
    values = json.loads(json.dumps(figures))
    rows = [
        ("ours: cold, verified, published", f"{values['ours_s']:.2f} s", ""),
        ("ExecuTorch's downloader", f"{values['upstream_s']:.2f} s", "ratio_upstream_downloader"),
        ("curl, unzip -t, unzip", f"{values['shell_s']:.2f} s", "ratio_shell"),
    ]
    lines = [f"archive of {values['archive_bytes'] / 1e6:.0f} MB on loopback, medians"]
    for label, value, ratio in rows:
        note = f"   ours is {values[ratio]:.3f} of it" if ratio else ""
        lines.append(f"  {label:<34} {value:>10}{note}")
    lines.append(f"  {'component: bytes beyond its own':<34} {values['component_overhead']:>10.2%}")
    lines.append(f"  {'all in place, whole process':<34} {values['warm_ms']:>7.0f} ms")
    lines.append(f"  {'verify, whole process':<34} {values['verify_s']:>8.2f} s")
    lines.append(f"  load average {values['load_average']}, {values['cores']} cores")
    return "\n".join(lines) + "\n"
