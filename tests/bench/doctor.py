"""The doctor on a tree as large as an SDK, beside the shell loop that people write by hand.

The tree is made of real libraries: those of several versions of the wheels, and copies of them
until there are 350. All are in the page cache. Each figure is the wall time of a process.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.doctor.checks.coherence import FAMILIES, Family
from provisioning.doctor.checks.files import group_tree, judge_group
from provisioning.doctor.facts import FileFacts
from provisioning.doctor.policies import read_elf_policies
from provisioning.doctor.registry import Finding
from provisioning.doctor.survey.tree import survey_tree
from provisioning.errors import DownloadError
from provisioning.store.home import store_home
from tests.bench.wheels import unpack_versions

FILES = 350
SHELL_LOOP = r"""
find "$1" -type f -name '*.so*' | while read -r file; do
    readelf -h -d -l -n -V "$file"
    strings "$file" | grep -E 'v[0-9]+\.[0-9]+\.[0-9]+\.[0-9]{12}'
done > "$2" 2>&1
"""


def run_bench(progress: Progress) -> Mapping[str, Any]:
    store_home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store_home(), prefix=".bench-") as name:
        base = Path(name)
        progress.step("bench doctor: assembling a tree of real libraries")
        files, size_bytes = make_tree(base / "tree", progress)
        scan_s = min(time_scan(base / "tree") for _ in range(3))
        progress.step("bench doctor: the shell loop")
        started = time.monotonic()
        run_process(["sh", "-c", SHELL_LOOP, "sh", base / "tree", base / "said"], check=False)
        shell_s = time.monotonic() - started
    return {
        "ratio_shell": round(shell_s / scan_s, 1),
        "scan_s": round(scan_s, 3),
        "shell_s": round(shell_s, 2),
        "files": files,
        "bytes": size_bytes,
    }


def make_tree(tree: Path, progress: Progress) -> tuple[int, int]:
    """SDK-shaped directories below ``tree``: the number of libraries, their bytes.

    One directory a version of the wheels, then copies of them until there are enough files.
    """
    roots = unpack_versions(tree, store_home() / "downloads" / "bench", progress)
    if not roots:
        raise DownloadError("no wheel of QNN could be fetched", fix="check pip's index")
    sizes = _sizes(roots)
    endless = enumerate(itertools.cycle(roots))
    while len(sizes) < FILES:
        number, root = next(endless)
        copy = tree / f"{root.name}-{number}"
        shutil.copytree(root, copy)
        sizes += _sizes([copy])
    return len(sizes), sum(sizes)


def _sizes(roots: list[Path]) -> list[int]:
    return [path.stat().st_size for root in roots for path in root.rglob("*") if path.is_file()]


def time_scan(tree: Path) -> float:
    """Seconds of a fresh process that scans ``tree``."""
    started = time.monotonic()
    run_process([sys.executable, "-m", "tests.bench.doctor", tree])
    return time.monotonic() - started


def scan(tree: Path) -> int:
    """Facts of all files, and every judgement on them, one SDK at a time: how many findings."""
    facts, kinds = survey_tree(tree), read_elf_policies()
    sdks: dict[str, list[FileFacts]] = {}
    for file in facts.files:
        sdk, _, relative = file.relative.partition("/")
        sdks.setdefault(sdk, []).append(replace(file, relative=relative))
    findings: list[Finding] = []
    for files in sdks.values():
        findings += FAMILIES.judge(Family(files))
        for group in group_tree(files, kinds, {}):
            findings += judge_group(group)
    return len(findings)


def render_bench(figures: Mapping[str, Any]) -> str:
    rows = (
        ("tree", f"{figures['files']} files, {figures['bytes'] / 1e9:.2f} GB"),
        ("doctor", f"{figures['scan_s']:.2f} s"),
        ("shell loop of readelf and strings", f"{figures['shell_s']:.2f} s"),
        ("ratio to the shell loop", f"{figures['ratio_shell']:.1f} x"),
    )
    return "".join(f"{label:<34} {value}\n" for label, value in rows)


if __name__ == "__main__":
    sys.stdout.write(f"{scan(Path(sys.argv[1]))} findings\n")
