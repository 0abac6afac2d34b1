"""The stand-in signer as a Hexagon SDK, real skels from the store, the verb as a process: one of
its own where a test looks at it while it runs, else a fork of one that has imported it.

The skels come by the product's own provisioning: from $QNN_CI_HOME when they are there, else
from the package index once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioning.artifacts.environment import parse_selection
from provisioning.artifacts.sources import Options
from provisioning.console.progress import Progress
from provisioning.store.store import Store
from tests.stand_ins.dsp_toolchains import LIBRARY, make_inputs, make_signer_sdk
from tests.stand_ins.forks import Forks, start_forks
from tests.stand_ins.provisioned import provision_one

ROOT = Path(__file__).parents[3]
Ended = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def skels() -> dict[str, Path]:
    """Real Hexagon skels by version: v68 to v81."""
    (request,) = parse_selection(["qnn-runtime-aarch64:skels"], Options())
    root = provision_one(request, Store(), Progress()).root
    files = sorted(root.glob("lib/hexagon-v*/unsigned/libQnnHtpV*Skel.so"))
    assert len(files) == 6
    return {path.parts[-3].removeprefix("hexagon-"): path for path in files}


@pytest.fixture(scope="session")
def hexagon_sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hexagon SDK of which only the signer is there, with its keys."""
    return make_signer_sdk(tmp_path_factory.mktemp("sdk") / "6.4.0.2")


@dataclass(frozen=True)
class Verb:
    """``python -m ci`` in a directory of its own."""

    directory: Path
    environment: dict[str, str]
    forks: Forks

    def start(self, *words: str | Path, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ci", *map(str, words)],
            cwd=self.directory,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str | Path, **variables: str) -> Ended:
        environment = {**self.environment, **variables}
        return self.forks.run_module("ci", *map(str, words), cwd=self.directory, env=environment)


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    with start_forks("ci.verbs.sign", "tests.stand_ins.kills") as forks:
        yield forks


@pytest.fixture
def verb(tmp_path: Path, hexagon_sdk: Path, forks: Forks) -> Verb:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("STAND_IN")},
        "PYTHONPATH": str(ROOT),
        "HEXAGON_SDK_ROOT": str(hexagon_sdk),
        "STAND_IN_KEYS": str(hexagon_sdk / "tools" / "elfsigner"),
    }
    return Verb(tmp_path, environment, forks)


@pytest.fixture
def libraries(tmp_path: Path) -> list[Path]:
    """Two small Hexagon libraries, in the order in which they are signed."""
    paths = [tmp_path / "in" / name for name in ("libfirst.so", "libsecond.so")]
    paths[0].parent.mkdir()
    for path in paths:
        shutil.copy(LIBRARY, path)
    return paths


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` by its relative path."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def take_snapshot() -> Callable[[Path], dict[str, bytes]]:
    return snapshot


@pytest.fixture
def toolchains(tmp_path: Path) -> dict[str, Path]:
    """A QNN SDK, Hexagon tools and a build tree with what LPAI v6 and direct mode v81 need."""
    return make_inputs(tmp_path)
