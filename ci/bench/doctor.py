"""The doctor on a tree as large as an SDK, beside the shell loop that people write by hand.

The tree is made of real libraries: copies of what the pinned wheels hold, until there are about
350 ELF files and 4 GB. All are in the page cache. Each figure is the wall time of a process.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioning.checks.coherence import judge_builds, judge_pairs
from provisioning.checks.files import Surroundings, judge_files
from provisioning.manifest import read_toolchain
from provisioning.policies import read_elf_policies
from provisioning.process import run_process
from provisioning.progress import Progress
from provisioning.provision import provision_artifact
from provisioning.sources import Request
from provisioning.store import Store, store_home
from provisioning.survey.memory import Memory
from provisioning.survey.tree import survey_tree

ARTIFACTS = ("qnn-runtime", "qnn-runtime-aarch64")
COPIES = 11
SHELL_LOOP = r"""
find "$1" -type f -name '*.so*' | while read -r file; do
    readelf -h -d -l -n -V "$file"
    strings "$file" | grep -E 'v[0-9]+\.[0-9]+\.[0-9]+\.[0-9]{12}'
done > "$2" 2>&1
"""


def run_bench(progress: Progress) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(dir=store_home(), prefix=".bench-") as name:
        base = Path(name)
        progress.step(f"bench doctor: copying {COPIES} SDKs of real libraries")
        files, size_bytes = make_tree(base / "tree", progress)
        cold_s = min(time_scan(base / "tree", base / f"memory-{turn}") for turn in range(3))
        warm_s = min(time_scan(base / "tree", base / "memory-0") for _ in range(3))
        progress.step("bench doctor: the shell loop")
        started = time.monotonic()
        run_process(["sh", "-c", SHELL_LOOP, "sh", base / "tree", base / "said"], check=False)
        shell_s = time.monotonic() - started
    return {
        "ratio_shell": round(shell_s / cold_s, 1),
        "cold_s": round(cold_s, 3),
        "warm_s": round(warm_s, 3),
        "shell_s": round(shell_s, 2),
        "files": files,
        "bytes": size_bytes,
    }


def make_tree(tree: Path, progress: Progress) -> tuple[int, int]:
    """SDK-shaped directories 0, 1, ... below ``tree``: the number of libraries, their bytes."""
    sizes = []
    for name in ARTIFACTS:
        toolchain = read_toolchain(name)
        request = Request(toolchain, toolchain.release())
        root = provision_artifact(request, Store(), progress).root
        libraries = [path for path in root.rglob("*.so*") if not path.is_symlink()]
        for copy in range(COPIES):
            for path in libraries:
                target = tree / str(copy) / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)


def time_scan(tree: Path, memory: Path) -> float:
    """Seconds of a fresh process that scans ``tree``."""
    started = time.monotonic()
    run_process([sys.executable, "-m", "ci.bench.doctor", tree, memory])
    return time.monotonic() - started


def scan(tree: Path, memory: Path) -> int:
    """Facts of all files, and every judgement on them, one SDK at a time: how many findings."""
    found, kinds = Memory(memory), read_elf_policies()
    facts = survey_tree(tree, memory=found)
    findings = 0
    for copy in range(COPIES):
        start = f"{copy}/"
        files = [
            replace(file, relative=file.relative.removeprefix(start))
            for file in facts.files
            if file.relative.startswith(start)
        ]
        findings += len(list(judge_files(files, kinds, Surroundings({}))))
        findings += len(list(judge_builds(files, None))) + len(list(judge_pairs(files)))
    return findings


def render_bench(figures: Mapping[str, Any]) -> str:
    rows = (
        ("tree", f"{figures['files']} files, {figures['bytes'] / 1e9:.2f} GB"),
        ("doctor, nothing remembered", f"{figures['cold_s']:.2f} s"),
        ("doctor, nothing changed", f"{figures['warm_s']:.2f} s"),
        ("shell loop of readelf and strings", f"{figures['shell_s']:.2f} s"),
        ("ratio to the shell loop", f"{figures['ratio_shell']:.1f} x"),
    )
    return "".join(f"{label:<34} {value}\n" for label, value in rows)


if __name__ == "__main__":
    sys.exit(1 if scan(Path(sys.argv[1]), Path(sys.argv[2])) else 0)
