"""Sessions of partitions, of which the emulator has no memory for many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.litert import execution
from ci.litert.execution import Sessions

BROKEN = Path("broken")


def test_if_a_context_does_not_fit_the_others_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, opened = Sessions({}), list[str]()

    def open_session(path: Path, *_: Any, **__: Any) -> object:
        if path == BROKEN or len(sessions.sessions) == 2:
            raise MemoryError(path.name)
        opened.append(path.name)
        return object()

    monkeypatch.setattr(execution, "open_session", open_session)
    first = sessions.find(Path("a"))
    assert sessions.find(Path("a")) is first
    for name in "bcab":
        sessions.find(Path(name))
    assert opened == ["a", "b", "c", "a", "b"]
    with pytest.raises(MemoryError, match="broken"):
        sessions.find(BROKEN)
