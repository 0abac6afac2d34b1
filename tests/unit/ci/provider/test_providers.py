"""What each CI system is told, read back as that system reads it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.report.annotation import Annotation, Level
from ci.report.providers import QUALITY_FILE, Provider, detect_provider
from ci.report.speech import find_secrets, group, mask_secrets
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, ToolError, UnfitError
from tests.workflows.commands import Heard, read_pairs

FOUND = (
    Annotation(Level.ERROR, "b.cpp is not built, 100%", "parity: x", "p/B:U,CK", 3),
    Annotation(Level.WARNING, "a line\n::error::of its own ##[add-mask]x"),
    Annotation(Level.NOTICE, "a note", path="a"),
)
ENVIRONS = {
    "github": {"GITHUB_ACTIONS": "true"},
    "gitlab": {"GITLAB_CI": "true"},
    "buildkite": {"BUILDKITE": "true"},
    "terminal": {"CI": "true", "JENKINS_URL": "https://ci.example"},
}
AGENT = """#!/usr/bin/env python3
import pathlib, sys
words = sys.argv[1:]
with (pathlib.Path(__file__).parent / "calls").open("a") as calls:
    calls.write(repr((words, sys.stdin.read())) + "\\n")
sys.exit(pathlib.Path(__file__).with_name("broken").exists())
"""


def detect(name: str, **more: str) -> Provider:
    return detect_provider({**ENVIRONS[name], **more})


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A buildkite-agent that writes down what it is asked."""
    program = tmp_path / "buildkite-agent"
    program.write_text(AGENT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def read_calls(agent: Path) -> list[tuple[list[str], str]]:
    return [eval(line) for line in (agent / "calls").read_text().splitlines()]  # noqa: S307


@pytest.mark.parametrize("name", ENVIRONS)
def test_each_is_detected(name: str) -> None:
    assert detect(name).name == name
    assert detect_provider(dict.fromkeys(ENVIRONS[name], "false")).name == "terminal"


def say(provider: Provider) -> str:
    stream = io.StringIO()
    progress = Progress(stream)
    with group(provider, progress, "aot: compile\nx"):
        progress.step("::group::not one")
        progress.step("inside")
    return stream.getvalue()


def test_a_group_of_github_folds_and_ends() -> None:
    heard = Heard()
    heard.hear(say(detect("github")))
    assert (heard.groups, heard.depth) == (["aot: compile\\nx"], 0)
    assert heard.log[1:3] == [": :group::not one", "inside"]


def test_a_group_ends_with_an_error_too() -> None:
    stream, heard = io.StringIO(), Heard()
    with pytest.raises(ToolError), group(detect("github"), Progress(stream), "a"):
        raise ToolError("x")
    heard.hear(stream.getvalue())
    assert (heard.groups, heard.depth) == (["a"], 0)


def test_a_section_of_gitlab_begins_and_ends_under_one_name() -> None:
    text = say(detect("gitlab"))
    names = re.findall(r"section_(start|end):\d+:([\w.-]+)(?:\[collapsed=true\])?\r\x1b\[0K", text)
    assert names == [("start", "aot_compile_x"), ("end", "aot_compile_x")]


def test_a_heading_of_buildkite_and_nothing_on_a_terminal() -> None:
    assert say(detect("buildkite")).startswith("--- aot: compile\\nx\n")
    assert say(detect("terminal")) == ": :group::not one\ninside\n"


def test_a_silent_verb_has_no_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with group(detect("github"), Progress(None), "a"):
        pass
    assert capsys.readouterr() == ("", "")


def test_github_reads_each_annotation_as_it_was_meant() -> None:
    heard = Heard()
    heard.hear(detect("github").annotate(FOUND))
    first, second, third = heard.annotations
    assert (first.level, first.text) == ("error", FOUND[0].message)
    assert first.properties == {"file": "p/B:U,CK", "line": "3", "title": "parity: x"}
    assert (second.level, second.properties) == ("warning", {})
    assert second.text == r"a line\n::error::of its own # #[add-mask]x"
    assert third.properties == {"file": "a", "line": "1"}


def test_gitlab_keeps_a_code_quality_report_that_grows_once(tmp_path: Path) -> None:
    provider = detect("gitlab", CI_PROJECT_DIR=str(tmp_path))
    assert provider.annotate(FOUND).splitlines()[0].startswith("p/B:U,CK:3: error: b.cpp")
    provider.annotate(FOUND[:1])
    rows = json.loads((tmp_path / QUALITY_FILE).read_text())
    assert [row["severity"] for row in rows] == ["major", "info"]
    assert rows[0]["location"] == {"path": "p/B:U,CK", "lines": {"begin": 3}}
    assert len({row["fingerprint"] for row in rows}) == 2
    (tmp_path / QUALITY_FILE).write_text("half a repo")
    provider.annotate(FOUND[1:2])
    assert (tmp_path / QUALITY_FILE).read_text() == "half a repo"
    provider.annotate(FOUND[:1])
    assert len(json.loads((tmp_path / QUALITY_FILE).read_text())) == 1


def test_buildkite_is_asked_through_its_agent(agent: Path) -> None:
    provider = detect("buildkite")
    text = provider.annotate(FOUND)
    assert provider.add_summary("## done\n", "test_emulator")
    assert provider.mask(["s3cret"]) == ""
    styles, given = zip(*read_calls(agent), strict=True)
    assert [words[words.index("--style") + 1] for words in styles[:4]] == [
        "error", "warning", "info", "info",
    ]  # fmt: skip
    assert given[0] == f"    {text.splitlines()[0]}\n"
    assert given[3:] == ("## done\n", "s3cret")
    assert styles[4] == ["redactor", "add"]


def test_an_agent_that_fails_costs_an_annotation_but_never_hides_a_secret(agent: Path) -> None:
    (agent / "broken").touch()
    provider = detect("buildkite")
    assert "buildkite-agent exited with 1" in provider.annotate(FOUND)
    assert not provider.add_summary("x", "y")
    with pytest.raises(ToolError):
        provider.mask(["s3cret"])


def test_a_terminal_reads_like_a_compiler() -> None:
    assert detect("terminal").annotate(FOUND).splitlines() == [
        "p/B:U,CK:3: error: b.cpp is not built, 100% [parity: x]",
        r"warning: a line\n::error::of its own # #[add-mask]x",
        "a:1: notice: a note",
    ]


def test_github_gets_variables_paths_outputs_and_a_summary(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ENV", "PATH", "OUTPUT", "STEP_SUMMARY")}
    provider = detect("github", **{f"GITHUB_{name}": str(path) for name, path in files.items()})
    variables = {"A": "1", "B": "two\nA=lines\n", "C": "x<<y=z"}
    assert provider.export(variables, [Path("/a/bin")], {"roots": "{}"})
    assert provider.add_summary("# x\n", "y")
    assert read_pairs(files["ENV"]) == {"A": "1", "B": "two\nA=lines\n", "C": "x<<y=z"}
    assert files["PATH"].read_text() == "/a/bin\n"
    assert read_pairs(files["OUTPUT"]) == {"roots": "{}"}
    assert files["STEP_SUMMARY"].read_text() == "# x\n"
    with pytest.raises(StoreError):
        detect("github", GITHUB_STEP_SUMMARY=str(tmp_path)).add_summary("x", "y")


@pytest.mark.parametrize("name", ["gitlab", "buildkite", "terminal"])
def test_the_others_have_no_steps_that_follow(name: str) -> None:
    assert not detect(name).export({"A": "1"}, [], {})


SECRETS: list[tuple[Mapping[str, str], list[str]]] = [
    ({"QNN_CI_BEARER_TOKENS": "a.example=t0ken==, b.example=other"}, ["t0ken==", "other"]),
    ({"QNN_CI_MIRROR": "https://u:pass%20w@m.example/{filename}?sig=s1g&x=1"}, ["pass%20w"]),
    ({"QNN_CI_MIRROR": "https://m.example/?sig=a%2Bsignature"}, ["a%2Bsignature", "a+signature"]),
    ({"QNN_CI_MIRROR": "/a/directory"}, []),
    ({"QNN_CI_MIRROR": "https://[broken"}, []),
    ({}, []),
]


@pytest.mark.parametrize(("environ", "secrets"), SECRETS)
def test_parts_of_variables_that_are_secrets(
    environ: Mapping[str, str], secrets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(find_secrets(environ)) == set(secrets)
    mask_secrets(detect("github"), environ)
    heard = Heard()
    heard.hear(capsys.readouterr().err)
    assert set(heard.masks) == set(secrets)


def test_malformed_tokens_are_an_error_that_shows_none() -> None:
    with pytest.raises(UnfitError) as caught:
        find_secrets({"QNN_CI_BEARER_TOKENS": "only-a-token"})
    assert "only-a-token" not in str(caught.value)
