"""Ask the real QNN execution provider, in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioning.artifacts.environment import provision_profile
from provisioning.console.process import Completed, run_process
from provisioning.console.progress import Progress

WORKER = Path(__file__).with_name("provider.py")
SOC = {"backend_type": "htp", "soc_model": "69"}
STRICT = {"session.disable_cpu_ep_fallback": "1"}


def ask_process(requests: Sequence[dict[str, Any]], **settings: Any) -> Completed:
    text = "".join(json.dumps(request) + "\n" for request in requests)
    argv = [sys.executable, WORKER]
    settings.setdefault("env", {**os.environ, **find_libatomic()})
    return run_process(argv, input_text=text, timeout_s=1200, check=False, **settings)


def find_libatomic() -> dict[str, str]:
    """LD_LIBRARY_PATH with the libatomic.so.1 that was made, on a machine that lacks it."""
    artifacts = provision_profile("onnx", Progress()).artifacts
    folders = [f"{artifact.root}/lib" for artifact in artifacts if artifact.name == "libatomic"]
    return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}


def ask(requests: Sequence[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    """An answer a request, all out of one process."""
    ended = ask_process(requests, **settings)
    lines = [line for line in ended.output.splitlines() if line.startswith('{"session"')]
    answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert len(answers) == len(requests), ended.output[-2000:]
    return answers
