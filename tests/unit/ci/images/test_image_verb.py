"""`image` as it is typed, on an engine that stands in: what it prints, exits with and asks."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from ci.images.definition import find_checkout, recall_base
from ci.images.shell import ShellRequest
from ci.verbs import image as verb
from tests.stand_ins.docker_engine import FakeImage, pack
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.images.conftest import OWN

COMMANDS = """
list
build
build emulator aot --base OWN
list
build aot emulator aot --base OWN --json
build emulator --check
UNEQUAL build emulator --check
lock
lock emulator aot --write
lock emulator aot
shell
shell aot
shell aot make aot
shell make aot
shell --read-only-store aot true
GONE list
build gone
build --base gone:1
LARGE build emulator
LARGE build emulator aot
"""


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Manifests that may be written."""
    shutil.copytree(find_checkout() / "manifests", tmp_path / "manifests")
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(tmp_path / "manifests"))
    return tmp_path / "manifests"


def prepare(engine: Any, checkout: Path, manifests: Path, state: str) -> None:
    if state == "UNEQUAL":
        build = engine.build

        def build_otherwise(**words: Any) -> Any:
            events = build(**words)
            number = len(engine.called("build"))
            engine.store[f"sha256:raw{number}"].layers[-1] = pack({"made": b"%d" % number})
            return events

        engine.api.build = build_otherwise
    elif state == "GONE":
        (checkout / ".nox" / "image-base").write_text("gone:1\n")
    elif state == "LARGE":
        file = manifests / "images.toml"
        file.write_text(re.sub(r"budget_mb = \d+", "budget_mb = 1", file.read_text()))
        large = FakeImage([b"l" * 2_000_000])
        engine.add(large, "large:1")


@pytest.mark.usefixtures("wheels")
def test_each_image_command_reads_as_its_snapshot(
    engine: Any,
    checkout: Path,
    locks: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def note_shell(_: Any, request: ShellRequest) -> int:
        image = request.built.reference
        words = (*request.words, "read-only" * request.read_only_store)
        engine.note(f"shell in {image}: {' '.join(words)}")
        return 7

    monkeypatch.setattr(verb, "run_shell", note_shell)
    shown = []
    for row in COMMANDS.strip().splitlines():
        state, _, command_words = row.partition(" ")
        if state.isupper():
            prepare(engine, checkout, locks, state)
        words = (command_words if state.isupper() else row).replace("OWN", OWN).split()
        if state == "LARGE":
            words += ["--base", "large:1"]
        engine.calls.clear()
        code = main(["image", *words])
        out, err = capsys.readouterr()
        messages = [line for line in err.splitlines() if line.startswith(("note", "base", "error"))]
        calls = " ".join(name for name, _ in engine.calls if not name.startswith("probe"))
        base = recall_base(checkout)
        lines = [*messages, *out.splitlines(), f"asked: {calls}", f"remembered: {base}"]
        shown += [f"{row} -> {code:d}", *(f"  {line}".rstrip() for line in lines)]
    names_of_digests: dict[str, str] = {}

    def name_digest(match: re.Match[str]) -> str:
        return names_of_digests.setdefault(match[0], f"<{len(names_of_digests)}>")

    text = re.sub(r"\b[0-9a-f]{12,64}\b", name_digest, "\n".join(shown) + "\n")
    check_snapshot(Path(__file__).with_name("snapshots") / "verb.txt", text)


@pytest.mark.parametrize(
    ("session", "command"),
    [("docker_build", "./nox -s docker_build --"), ("qnn_ci", "./nox -s qnn_ci -- image build")],
)
def test_help_and_errors_of_a_build_name_the_session_that_was_typed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    session: str,
    command: str,
) -> None:
    monkeypatch.setenv("QNN_CI_COMMAND", "./nox")
    monkeypatch.setenv("QNN_CI_SESSION", session)
    with pytest.raises(SystemExit):
        main(["image", "build", "--help"])
    assert capsys.readouterr().out.startswith(f"usage: {command} [")
    assert main(["image", "build", "--chekc"]) == 2
    assert capsys.readouterr().err.startswith(command.removesuffix(" --").removesuffix(" build"))
