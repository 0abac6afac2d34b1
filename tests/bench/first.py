"""The parts of a first run from nothing: environments, as uv and as pip install them, QNN's wheel,
and what a lowering spends its CPU time on.

Each way has its own clone and caches. Packages come from the indexes of pip's settings.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from provisioning.artifacts.environment import Environment, provision_profile
from provisioning.console.process import run_process
from provisioning.console.progress import Progress
from provisioning.store.home import store_home

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 3600.0
WAYS = ("uv", "pip")
SECOND = "onnx"  # an environment that shares packages with that of the first run
MODELS, SCHEMES = ("mlp", "resnet", "transformer"), ("fp16", "8a8w")
IMPORTS, EXPORTS, QUANTIZER = "imports and the first lowering", "torch.export", "the quantizer"
PASSES, COMPILER, OTHER = "ExecuTorch's passes", "QNN's compiler", "references and analyses"
LOWER = "import sys; from tests.bench.first import write_parts; write_parts(sys.argv[1])"


def run_bench(progress: Progress) -> Mapping[str, Any]:
    """Measure; all times in seconds. Those of a lowering are CPU time."""
    figures: dict[str, Any] = {}
    # First, so that what cannot be had is known before minutes of measuring.
    environment = provision_profile("emulator", progress)
    with tempfile.TemporaryDirectory(dir=store_home(), prefix=".bench-") as name:
        for way in WAYS:
            progress.step(f"bench first: environments by {way}")
            figures[way] = measure_environments(Path(name) / way, way)
        progress.step("bench first: QNN's wheel")
        figures["wheel"] = measure_wheel(Path(name))
    progress.step(f"bench first: {', '.join(MODELS)} in {', '.join(SCHEMES)}")
    figures["lowering_cpu_s"] = measure_lowering(environment)
    return {**figures, "load_average": round(os.getloadavg()[0], 1), "cores": os.cpu_count()}


@contextmanager
def measure(figures: dict[str, Any], name: str) -> Iterator[None]:
    """Record the wall-clock time of the block, and the CPU time of the processes that it runs."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures[name] = {"wall_s": round(time.monotonic() - began, 1), "cpu_s": round(cpu_s, 1)}


def measure_environments(folder: Path, way: str) -> dict[str, Any]:
    """Install nox, the environments of a first run, and another one, from empty caches."""
    folder.mkdir()
    clone = folder / "clone"
    run_process(["git", "clone", "--quiet", f"file://{ROOT}", clone], timeout_s=LIMIT_S)
    env = {name: text for name, text in os.environ.items() if not name.startswith("UV_")}
    env.pop("PIP_CACHE_DIR", None)
    settings = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")  # pip.conf
    env |= {"XDG_CONFIG_HOME": settings, "XDG_CACHE_HOME": str(folder / "cache")}

    def nox(*words: str) -> None:
        run_process([clone / "nox", *words], env=env, cwd=folder, timeout_s=LIMIT_S)

    figures: dict[str, Any] = {}
    with measure(figures, "nox"):
        nox("-s", "environments", "--list")
    if way == "pip":
        (clone / ".nox" / "bootstrap" / "bin" / "uv").unlink()
        folders = env.get("PATH", os.defpath).split(os.pathsep)
        env["PATH"] = os.pathsep.join(path for path in folders if not Path(path, "uv").exists())
    with measure(figures, "packages"):
        nox("-s", "environments", "--", "core", "lowering")
    with measure(figures, "second environment"):
        nox("-s", "environments", "--", SECOND)
    return figures


def measure_wheel(folder: Path) -> dict[str, Any]:
    """Fetch and unpack QNN's libraries into an empty store."""
    figures: dict[str, Any] = {}
    argv = [sys.executable, "-m", "provisioning", "fetch", "--quiet", "emulator"]
    env = {**os.environ, "QNN_CI_HOME": str(folder / "home")}
    with measure(figures, "fetch"):
        run_process(argv, env=env, cwd=ROOT, timeout_s=LIMIT_S)
    return figures["fetch"]


def measure_lowering(environment: Environment) -> dict[str, float]:
    """Lower MODELS in a new process, and return the CPU seconds of each part."""
    env = environment.apply(os.environ)
    with tempfile.NamedTemporaryFile() as file:  # not stdout, to which QNN writes, too
        argv = [sys.executable, "-c", LOWER, file.name]
        run_process(argv, env=env, cwd=ROOT, timeout_s=LIMIT_S)
        seconds: dict[str, float] = json.load(file)
    return seconds


class Clock:
    """The CPU time of parts of a process. The time of a part within another one is only its own."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.stack = [OTHER]
        self.last_s = time.process_time()

    def note(self) -> None:
        """Add the time since the last change to the current part."""
        now_s = time.process_time()
        self.seconds[self.stack[-1]] += now_s - self.last_s
        self.last_s = now_s

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Let the block be of a part."""
        self.note()
        self.stack.append(part)
        try:
            yield
        finally:
            self.note()
            self.stack.pop()

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Let the calls of a function be of a part."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with self.measure(part):
                return function(*args, **options)

        setattr(owner, name, call)


def write_parts(target: str) -> None:
    """Lower MODELS in this process, and write the CPU seconds of each part to a file as JSON."""
    clock = Clock()
    with clock.measure(IMPORTS):
        import torch

        from ci.executorch.patches import warm_up

        warm_up(plain=False)
        from executorch.backends.qualcomm.python import PyQnnManagerAdaptor
        from executorch.exir import EdgeProgramManager

        from ci.cases.engine import Staging
        from ci.cases.spec import CaseSpec
        from ci.executorch import lower
        from ci.models.model import load_model
        from ci.models.schemes import Scheme
    clock.watch(torch.export, "export", EXPORTS)
    clock.watch(lower, "quantize_model", QUANTIZER)
    clock.watch(lower.utils, "to_edge_transform_and_lower_to_qnn", PASSES)
    clock.watch(EdgeProgramManager, "to_executorch", PASSES)
    for name in ("Compile", "IsNodeSupportedByBackend"):
        clock.watch(PyQnnManagerAdaptor.QnnManager, name, COMPILER)
    with tempfile.TemporaryDirectory() as name:
        for reference in MODELS:
            model = load_model(reference)
            for scheme in SCHEMES:
                folder = Path(name) / f"{reference}-{scheme}"
                folder.mkdir()
                log = folder.with_suffix(".log")
                log.touch()
                spec = CaseSpec(reference, Scheme(scheme), "SM8650")
                lower.Lowering(model, spec, Staging(folder, log, Path(name))).write()
    clock.note()
    seconds = {part: round(seconds, 2) for part, seconds in clock.seconds.items()}
    Path(target).write_text(json.dumps(seconds), "utf-8")


def render_bench(figures: Mapping[str, Any]) -> str:
    """Return the environments of both ways side by side, then the shares of a lowering."""
    lines = [f"{'from empty caches':<32}{'uv':>22}{'pip':>22}"]
    for name in figures["uv"]:
        cells = [figures[way][name] for way in WAYS]
        texts = [f"{cell['wall_s']:.1f} s ({cell['cpu_s']:.1f} CPU)" for cell in cells]
        lines.append(f"  {name:<30}" + "".join(f"{text:>22}" for text in texts))
    wheel = figures["wheel"]
    text = f"{wheel['wall_s']:.1f} s ({wheel['cpu_s']:.1f} CPU)"
    lines.append(f"  {'QNN wheel, fetched by us':<30}{text:>22}")
    parts = figures["lowering_cpu_s"]
    total = sum(parts.values())
    lines.append(f"{len(MODELS) * len(SCHEMES)} programs, CPU time of one process: {total:.1f} s")
    for part, seconds in sorted(parts.items(), key=lambda row: -row[1]):
        lines.append(f"  {part:<30}{seconds:>8.1f} s {seconds / total:>6.0%}")
    lines.append(f"load average {figures['load_average']}, {figures['cores']} cores")
    return "\n".join(lines) + "\n"
