"""``qnn-ci explain``: files, directories, standard input, exit codes, JSON by its schema."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

from ci.__main__ import explain_error, main
from ci.explain.explain import find_known
from ci.explain.render import advise
from ci.explain.rules import read_rules
from ci.verbs.explain import MOST_BYTES
from provisioning.errors import ExitCode, QnnCiError

ROOT = Path(__file__).parents[4]
SCHEMA = ROOT / "docs" / "schemas" / "explain.schema.json"
SPACE = "OSError: [Errno 28] No space left on device\n"


class Pipe:
    """Standard input that holds a log."""

    def __init__(self, log: bytes) -> None:
        self.buffer = io.BytesIO(log)

    def isatty(self) -> bool:
        return False


def test_explain_exits_with_1_for_a_cause_and_0_for_a_clean_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad.log", tmp_path / "good.txt"
    bad.write_text(SPACE)
    good.write_text("all fine\n")
    assert main(["explain", str(good)]) == 0
    assert main(["explain", str(good), str(bad)]) == 1
    assert "no-space]" in capsys.readouterr().out


def test_explain_describes_a_finding_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "QNN1608", "QNN1003"]) == 0
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("AEE_EUNABLETOLOAD", "(app) pack", "QNN1003 no-space"))
    assert main(["explain", "QNN999"]) == 2
    capsys.readouterr()
    assert main(["explain", "--json", "QNN1608"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(("size", "code"), [(4, ExitCode.OK), (5, ExitCode.USAGE)])
def test_explain_reads_no_log_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    size: int,
    code: ExitCode,
) -> None:
    monkeypatch.setattr("ci.verbs.explain.PART_BYTES", 1)
    monkeypatch.setattr("ci.verbs.explain.MOST_BYTES", 4)
    monkeypatch.setattr(sys, "stdin", Pipe(b"x" * size))
    (tmp_path / "long.log").write_bytes(b"x" * size)
    for name in ("-", str(tmp_path / "long.log")):
        assert main(["explain", name]) == code
        assert ("tail -c" in capsys.readouterr().err) == (code == ExitCode.USAGE)


def test_a_log_that_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_one(_name: str, parts: Iterator[bytes], _rules: object) -> None:
        next(parts)
        pytest.fail("the log was read")

    monkeypatch.setattr("ci.verbs.explain.explain", read_one)
    log = tmp_path / "huge.log"
    with log.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert main(["explain", str(log)]) == 2
    assert "tail -c" in capsys.readouterr().err


def test_explain_reads_every_log_of_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    names = ["a.err", "b.log", "c.logcat", "d.out", "e.TXT"]
    for name in [*names, "model.pte"]:
        (tmp_path / "in" / name).write_text(SPACE)
    (tmp_path / "in" / "folder.log").mkdir()
    assert main(["explain", str(tmp_path), "--json"]) == 1
    logs = json.loads(capsys.readouterr().out)["logs"]
    assert [Path(log["file"]).name for log in logs] == names


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_explain_exits_with_2_for_an_unreadable_log_and_says_why(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["explain", str(tmp_path / name)]) == 2
    why = {"nothing": "No such file", "empty": ".logcat"}[name]
    assert why in capsys.readouterr().err


def zip_of(log: bytes) -> bytes:
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as file:
        file.writestr("build.txt", log)
    return archive.getvalue()


@pytest.mark.parametrize("pack", [zip_of, gzip.compress, lzma.compress, bz2.compress])
def test_a_compressed_log_is_refused_by_explain(
    pack: Callable[[bytes], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    packed = tmp_path / "logs_123"
    packed.write_bytes(pack(SPACE.encode()))
    monkeypatch.setattr(sys, "stdin", Pipe(packed.read_bytes()))
    for word in (str(packed), "-"):
        assert main(["explain", word]) == 2
        assert "unpack it" in capsys.readouterr().err


@pytest.mark.parametrize(("log", "code"), [(b"", 0), (SPACE.encode(), 1)])
@pytest.mark.parametrize("words", [[], ["-"]])
def test_explain_reads_a_log_from_standard_input(
    log: bytes,
    code: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Pipe(log))
    assert main(["explain", *words]) == code
    assert "standard input: " in capsys.readouterr().out


def test_explain_refuses_terminal_as_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe(b"")
    monkeypatch.setattr(pipe, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", pipe)
    assert main(["explain"]) == 2
    log = tmp_path / "x.log"
    log.write_text("all fine\n")
    assert main(["explain", str(log)]) == 0


def test_workflow_commands_in_a_log_are_not_repeated_as_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "x.log"
    log.write_text("::warning::No space left on device\n")
    assert main(["explain", "--github", str(log)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("::error title=explain%3A QNN1003 no-space::")
    assert main(["explain", str(log)]) == 1
    assert not any(line.lstrip().startswith("::") for line in capsys.readouterr().out.splitlines())


def test_the_json_of_explain_fits_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        f"{SPACE}BadZipFile: no\nfrob: error\nexpected magic number: 0x5678abcd but get: 1\n"
    )
    assert main(["explain", str(log), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["logs"][0]["consequences"][0]["consequence_of"] == "no-space"
    assert document["logs"][0]["unknown"] == [{"line": 3, "text": "frob: error"}]


def test_advice_rows_of_a_users_policy_apply_and_patterns_for_another_engine_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, log = tmp_path / "qnn.toml", tmp_path / "x.log"
    log.write_text("the frob is loose\n")
    rows = '[[advice]]\npattern = "frob is"\nfix = "tighten it"\n'
    policy.write_text(f'extends = "default"\n{rows}')
    assert main(["explain", str(log)]) == 0
    assert main(["explain", str(log), "--policy", str(policy)]) == 1
    log.write_text(f"{SPACE}the frob is loose\n")
    for pattern, rules in (("frob is", ["no-space", "policy-1"]), ("No space", ["policy-1"])):
        policy.write_text(f'extends = "default"\n{rows.replace("frob is", pattern)}')
        capsys.readouterr()
        assert main(["explain", str(log), "--policy", str(policy), "--json"]) == 1
        causes = json.loads(capsys.readouterr().out)["logs"][0]["causes"]
        assert [cause["rule"] for cause in causes] == rules  # a team's row comes before ours
    policy.write_text(f'extends = "default"\n{rows.replace("frob is", "(?=f)frob")}')
    assert main(["explain", str(log), "--policy", str(policy)]) == 2


def test_an_error_without_a_fix_gets_the_fix_of_the_matching_rule() -> None:
    our_error = "python -m ci fetch: libcxx could not be fetched\n  fix: try again\n"
    assert advise(our_error) == ""
    missing = "net.py raised ModuleNotFoundError: No module named 'timm'\n"
    assert advise(missing) != ""
    assert advise(f"{missing}  fix: install timm\n") == ""
    assert advise("frobnicator failed") == ""
    assert "cache info" in advise(our_error + SPACE)
    rule = find_known(SPACE, read_rules())
    assert rule is not None
    assert advise(SPACE) == f"{rule.fix} ({rule.cause})"
    assert explain_error("git exited with 128\nfatal: unable to access 'https://x/': no") != ""


def test_every_failing_verb_without_a_fix_gets_the_fix_of_a_matching_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise QnnCiError("cmake exited with 1", why=SPACE)

    monkeypatch.setattr("ci.verbs.explain.execute", fail)
    assert main(["explain", "x.log"]) == QnnCiError.exit_code
    assert "cache info" in capsys.readouterr().err


def test_a_headline_does_not_deny_what_the_log_says() -> None:
    """A model of which QNN refuses one operator when it validates, and another one later."""
    log = (
        "[ERROR] [Qnn ExecuTorch]: <E> Failed to validate op aten_add_tensor_2 with error 0xc26\n"
        '[ERROR] [Qnn ExecuTorch]: <E> "dequantize_2" generated: could not create op\n'
    )
    finding = find_known(log, read_rules())
    assert finding is not None
    assert "accepted" not in f"{finding.headline} {finding.detail}"
