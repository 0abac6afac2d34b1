"""What staging a bundle refuses, word by word."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from ci.device import bundle as bundles
from ci.device.bundle import (
    BUNDLE,
    FILES,
    close_over,
    find_skel,
    find_target,
    read_bundle,
    require_loads,
    stage,
)
from ci.device.provenance import find_evidence, list_signed
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, QnnCiError, UnfitError
from tests.stand_ins import statements
from tests.stand_ins.lowered import make_program
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.device.test_transfers import (
    ANDROID,
    ARM,
    HEXAGON,
    SKEL75,
    make_facts,
    make_runtime,
    read_facts,
    write_elf,
)

SNAPSHOT = Path(__file__).with_name("snapshots") / "messages.txt"


def refuse(place: Path) -> dict[str, Callable[[], object]]:
    runner = write_elf(place / "runner", ARM, **ANDROID)
    runtime = make_runtime(place / "sdk", 75, **ANDROID)
    (place / "text").write_text("no program")
    program = place / "model.pte"
    program.write_bytes(make_program())  # for SM8650
    proven = place / "proven.pte"
    proven.write_bytes(statements.PROGRAM)
    (place / "evidence").mkdir()
    (place / "evidence" / f"{statements.SHA256}.intoto.json").write_text("{}")
    stage(["SM8650"], runner, [runtime], place / "whole", progress=Progress())
    record = json.loads((place / "whole" / BUNDLE).read_text())

    def staging(socs: str, runner_path: Path = runner, out: str = "out", **options: Any) -> Any:
        progress = Progress()
        return lambda: stage(
            [socs], runner_path, [runtime], place / out, progress=progress, **options
        )

    def read(**changes: Any) -> Callable[[], object]:
        def call() -> object:
            (place / "whole" / BUNDLE).write_text(json.dumps({**record, **changes}))
            return read_bundle(place / "whole")

        return call

    def change() -> object:
        (place / "whole" / FILES / "libQnnHtp.so").write_text("other")
        return read()()

    return {
        "no runner": staging("SM8650", place / "text"),
        "no SoC": staging("SM9"),
        "no skel": staging("SM8750"),
        "a program of another SoC": lambda: require_loads(program, place / "sdk", ["SM8750"]),
        "no program": lambda: require_loads(place / "text", place / "sdk", ["SM8650"]),
        "no room": staging("SM8650", out="text/out"),
        "another machine": lambda: find_target(make_facts(HEXAGON)),
        "a library": lambda: close_over(["libQnnHtp.so"], read_facts(runner), {}),
        "a skel": lambda: find_skel(SKEL75, [place / "evidence"]),
        "no bundle": lambda: read_bundle(place),
        "no record": read(files=3),
        "a name outside": read(runner="../runner"),
        "a file outside": read(files=[{**record["files"][0], "name": "../bundle.json"}]),
        "changed": change,
        "no evidence": lambda: find_evidence([program], place / "evidence"),
        "no pass": lambda: find_evidence([proven], place / "evidence"),
        "not signed": lambda: list_signed(place / "evidence"),
    }


def test_the_command_of_a_refusal_shows_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundles, "read_elf", read_facts)
    runtime = make_runtime(tmp_path / "sdk", 75, **ANDROID)
    program = tmp_path / "its model.pte"
    program.write_bytes(make_program())  # for SM8650
    with pytest.raises(UnfitError) as caught:
        require_loads(program, runtime, ["SM8750"])
    (command,) = re.findall(r"`qnn-ci (.+?)` shows every check", caught.value.fix)
    (axis,) = re.findall(r"failed check: (.+?)\)", caught.value.what)
    assert main(shlex.split(command)) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert axis in shown
    assert "for SM8750: no (" in shown


def test_refusals_say_what_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "read_elf", read_facts)
    monkeypatch.setattr(bundles, "require_fit", lambda *_: None)
    lines = []
    for name, call in refuse(tmp_path).items():
        with pytest.raises(QnnCiError) as caught:
            call()
        message = f"{type(caught.value).__name__} {caught.value.exit_code:d} {caught.value}"
        lines.append(f"{name}\n  {message}\n".replace(str(tmp_path), "PLACE"))
    check_snapshot(SNAPSHOT, "".join(lines))
