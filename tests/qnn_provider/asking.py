"""Ask the real QNN execution provider, in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioning.console.process import Completed, run_process

WORKER = Path(__file__).with_name("provider.py")
SOC = {"backend_type": "htp", "soc_model": "69"}
STRICT = {"session.disable_cpu_ep_fallback": "1"}


def ask_process(requests: Sequence[dict[str, Any]], **settings: Any) -> Completed:
    text = "".join(json.dumps(request) + "\n" for request in requests)
    argv = [sys.executable, WORKER]
    return run_process(argv, input_text=text, timeout_s=300, check=False, **settings)


def ask(requests: Sequence[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
    """An answer a request, all out of one process."""
    ended = ask_process(requests, **settings)
    lines = [line for line in ended.output.splitlines() if line.startswith('{"session"')]
    answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert len(answers) == len(requests), ended.output[-2000:]
    return answers
