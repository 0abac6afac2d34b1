"""What a call of `sign` asks for, and what a dry run tells."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.signing.selection import Selection
from ci.signing.verdict import Verification, render_reports
from ci.verbs import sign as verb
from provisioning.errors import ExitCode, UnfitError

INPUTS = [
    SimpleNamespace(
        requested=SimpleNamespace(name=name, label=f"{{sdk}}/{name}", path=f"/sdk/{name}"),
        sha256=letter * 64,
        hexagon_version=version,
        qnn_build=build,
    )
    for name, letter, version, build in (("a.so", "a", 0x75, "v2.49"), ("b.so", "b", 0x81, ""))
]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was asked for: the request, and the roots that were given or are needed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    recorded: dict[str, Any] = {}

    def find(roots: Any, build: Path, environ: Any, needed: Any, _progress: Any) -> None:
        assert environ is os.environ
        recorded.update(roots=roots, build=build, needed=needed)

    def plan(request: Any) -> Any:
        recorded["request"] = request
        return SimpleNamespace(request=request, notes=("a note", "more"), inputs=INPUTS)

    def resolve(_: Any) -> Any:
        if recorded["request"].signer_command:
            return SimpleNamespace(
                words=["sign", "k3y-of-ours", "--password", "secret", "testsig-0x12.so"]
            )
        raise UnfitError("no signer")

    monkeypatch.setattr(verb, "find_roots", find)
    monkeypatch.setattr(verb, "make_plan", plan)
    monkeypatch.setattr(verb, "resolve_signer", resolve)
    monkeypatch.setattr(verb, "read_device_serial", lambda device: f"0x{device}")
    return recorded


def test_every_option_of_sign_reaches_the_request(recorded: dict[str, Any], tmp_path: Path) -> None:
    words = ["--lpai-arch", "v6", "--htp-arch", "v81", "--direct-mode", "--op-package-dir", "op"]
    words += ["--qnn-sdk", "q", "--hexagon-sdk", "h", "--hexagon-tools", "t", "--build-dir", "b"]
    words += ["--out", "o", "--signer", "mine", "--signer-python", "py", "--timeout", "7"]
    words += ["--testsig", "12", "--force", "--accept-unrecognised"]
    assert main(["sign", "x.so", "y.so", *words, "--dry-run"]) == ExitCode.OK
    request = recorded["request"]
    assert request.selection == Selection(
        "v6", "v81", True, tmp_path / "op", (tmp_path / "x.so", tmp_path / "y.so")
    )
    assert recorded["roots"] == {
        name: tmp_path / name[0] if name != "hexagon_tools" else tmp_path / "t"
        for name in ("qnn_sdk", "hexagon_sdk", "hexagon_tools")
    }
    assert (recorded["build"], request.target) == (tmp_path / "b", tmp_path / "o")
    assert (request.signer_command, request.signer_python, request.timeout_s) == ("mine", "py", 7)
    assert (request.serial, request.force, request.accept_unrecognised) == ("0xc", True, True)
    assert recorded["needed"] == {"qnn_sdk", "hexagon_tools"}


def test_the_device_serial_is_read_only_for_a_real_signature(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = {name: Verification(size) for name, size in (("a.so", 7), ("b.so", 9))}
    ended = SimpleNamespace(reports=reports, record={"signer": "mine"})
    monkeypatch.setattr(verb, "sign", lambda *_: ended)
    words = ["sign", "--signer", "mine", "--out", "o", "--device", "77", "--testsig"]
    for words_of_call, serial in (
        (["adb", "--dry-run"], "adb"),
        (["12"], "0xc"),
        (["adb"], "0x77"),
    ):
        assert main([*words, *words_of_call]) == ExitCode.OK
        assert recorded["request"].serial == serial
    printed = capsys.readouterr().out
    assert render_reports({Path(name): report for name, report in reports.items()}) in printed
    assert f"2 files signed and verified in {recorded['request'].target}" in printed
    assert main([*words, "adb", "--json"]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert (data["dry_run"], data["record"]) == (False, {"signer": "mine"})
    assert data["out"] == str(recorded["request"].target)
    assert data["reports"] == {name: report.as_data() for name, report in reports.items()}


def test_a_sign_dry_run_lists_every_library_and_masks_secrets(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIGNING_TOKEN", "K3Y-of-ours")
    words = ["sign", "x.so", "--out", "o", "--dry-run"]
    assert main([*words, "--signer", "mine"]) == ExitCode.OK
    printed = capsys.readouterr()
    *lines, signer, target = printed.out.splitlines()
    assert lines == ["a.so: V75, QNN v2.49, /sdk/a.so", "b.so: V81, QNN none, /sdk/b.so"]
    assert signer == "signer: sign *** --password '***' testsig-***.so"
    assert target.endswith(str(recorded["request"].target))
    assert [line for line in printed.err.splitlines() if line.startswith("note: ")] == [
        *("note: a note", "note: more")
    ]
    masked = signer.removeprefix("signer: ")
    for words_of_call, signer, testsig in (
        ([], "none found: no signer", False),
        (["--signer", "mine", "--testsig", "12"], masked, True),
    ):
        assert main([*words, *words_of_call, "--json"]) == ExitCode.OK
        data = json.loads(capsys.readouterr().out)
        assert [
            (library["name"], library["source"], library["sha256"][0])
            for library in data["libraries"]
        ] == [
            ("a.so", "{sdk}/a.so", "a"),
            ("b.so", "{sdk}/b.so", "b"),
        ]
        assert (data["signer"], data["testsig"], data["dry_run"]) == (signer, testsig, True)
        assert (data["out"], data["notes"]) == (str(recorded["request"].target), ["a note", "more"])
