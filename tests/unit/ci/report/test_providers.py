"""What each CI system is told, read back as that system reads it."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from ci.report.annotation import Annotation, Level, safe_line
from ci.report.providers import Provider, find_secrets, group, mask_secrets
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
    "terminal": {"CI": "true", "JENKINS_URL": "https://ci.example"},
}


def detect(name: str, **variables: str) -> Provider:
    return Provider({**ENVIRONS[name], **variables})


def write_group(provider: Provider) -> str:
    stream = io.StringIO()
    progress = Progress(stream)
    with group(provider, progress, "aot: compile\nx"):
        progress.step("::group::not one")
        progress.step("inside")
    return stream.getvalue()


def test_a_github_log_group_is_opened_and_closed_even_after_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A silent verb prints no group."""
    heard = Heard()
    heard.hear(write_group(detect("github")))
    assert (heard.groups, heard.depth) == (["aot: compile\\nx"], 0)
    assert heard.log[1:3] == [": :group::not one", "inside"]
    stream, heard = io.StringIO(), Heard()
    with pytest.raises(ToolError), group(detect("github"), Progress(stream), "a"):
        raise ToolError("x")
    heard.hear(stream.getvalue())
    assert (heard.groups, heard.depth) == (["a"], 0)
    with group(detect("github"), Progress(None), "a"):
        pass
    assert capsys.readouterr() == ("", "")


def test_annotations_survive_githubs_escaping() -> None:
    heard = Heard()
    heard.hear(detect("github").annotate(FOUND))
    first, second, third = heard.annotations
    assert (first.level, first.text) == ("error", FOUND[0].message)
    assert first.properties == {"file": "p/B:U,CK", "line": "3", "title": "parity: x"}
    assert (second.level, second.properties) == ("warning", {})
    assert second.text == r"a line\n::error::of its own # #[add-mask]x"
    assert third.properties == {"file": "a", "line": "1"}


def test_a_terminal_gets_compiler_style_lines_and_no_ci_features(tmp_path: Path) -> None:
    provider = detect("terminal", GITHUB_ENV=str(tmp_path / "env"))
    assert provider.annotate(FOUND).splitlines() == [
        "p/B:U,CK:3: error: b.cpp is not built, 100% [parity: x]",
        r"warning: a line\n::error::of its own # #[add-mask]x",
        "a:1: notice: a note",
    ]
    assert write_group(provider) == ": :group::not one\ninside\n"
    assert not provider.export({"A": "1"}, [], {})
    assert not provider.add_summary("# x\n")
    assert list(tmp_path.iterdir()) == []


def test_github_gets_variables_paths_outputs_and_a_summary(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ENV", "PATH", "OUTPUT", "STEP_SUMMARY")}
    provider = detect("github", **{f"GITHUB_{name}": str(path) for name, path in files.items()})
    variables = {"A": "1", "B": "two\nA=lines\n", "C": "x<<y=z"}
    assert provider.export(variables, [Path("/a/bin")], {"roots": "{}"})
    assert provider.export({"E": "5"}, [Path("/c")], {"more": "6"})
    partly = detect("github", GITHUB_ENV=str(files["ENV"]))
    assert not partly.export({"D": "4"}, [Path("/b")], {})
    assert read_pairs(files["ENV"]) == {**variables, "E": "5", "D": "4"}
    assert files["PATH"].read_text() == "/a/bin\n/c\n"
    assert read_pairs(files["OUTPUT"]) == {"roots": "{}", "more": "6"}
    for text in ("# x\n", "more\n"):
        assert provider.add_summary(text)
    assert files["STEP_SUMMARY"].read_text() == "# x\nmore\n"
    with pytest.raises(StoreError, match=r"(.|\n)*GITHUB_STEP_SUMMARY"):
        detect("github", GITHUB_STEP_SUMMARY=str(tmp_path)).add_summary("x")


def test_a_pipe_gets_the_summary_only_if_it_has_a_reader(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    provider = detect("github", GITHUB_STEP_SUMMARY=str(pipe))
    with pytest.raises(StoreError):
        provider.add_summary("x")
    text = "more than a pipe holds\n" * 9999
    descriptor = os.open(pipe, os.O_RDWR)  # the reader gets the text before the end
    with os.fdopen(descriptor, "rb") as reader, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(provider.add_summary, text)
        assert not wait([writing], timeout=0.05).done, "it waits for its reader"
        assert reader.read(len(text)).decode() == text
        assert writing.result()


SECRETS: list[tuple[Mapping[str, str], list[str]]] = [
    ({"QNN_CI_BEARER_TOKENS": "a.example=t0ken==, b.example=other"}, ["t0ken==", "other"]),
    (
        {"QNN_CI_MIRROR": "https://u:pass%20w@m.example/{filename}?sig=s1g&x=1"},
        ["pass%20w", "pass w"],
    ),
    ({"QNN_CI_MIRROR": "https://u:abc@m/?a=bcde&b=fgh&c=ijkl"}, ["bcde", "ijkl"]),
    ({"QNN_CI_MIRROR": "https://u:abcd@m/", "QNN_CI_BEARER_TOKENS": "a=efgh"}, ["abcd", "efgh"]),
    ({"QNN_CI_MIRROR": "https://m.example/?sig=a%2Bsignature"}, ["a%2Bsignature", "a+signature"]),
    ({"QNN_CI_MIRROR": "https://m.example/?sig=abcd=efgh=="}, ["abcd=efgh=="]),
    ({"QNN_CI_MIRROR": "/a/directory"}, []),
    ({"QNN_CI_MIRROR": "https://[broken"}, []),
    ({}, []),
]


@pytest.mark.parametrize(("environ", "secrets"), SECRETS)
def test_secrets_in_urls_and_tokens_of_variables_are_masked(
    environ: Mapping[str, str], secrets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(find_secrets(environ)) == set(secrets)
    mask_secrets(detect("github"), environ)
    heard = Heard()
    heard.hear(capsys.readouterr().err)
    assert set(heard.masks) == set(secrets)


def test_each_line_of_a_secret_is_masked_except_blank_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.report.providers.find_secrets", lambda _: ["one\n \n two", "5 %"])
    mask_secrets(detect("github"), {})
    assert capsys.readouterr().err.splitlines() == [
        *("::add-mask::one", "::add-mask:: two", "::add-mask::5 %25")
    ]
    mask_secrets(detect("gitlab"), {})
    assert capsys.readouterr().err == ""


def test_an_error_for_malformed_tokens_does_not_show_them() -> None:
    with pytest.raises(UnfitError) as caught:
        find_secrets({"QNN_CI_BEARER_TOKENS": "only-a-token"})
    assert "only-a-token" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["::error::x", "  ::error::x", "\t::error::x", "\u2003::set-env::x"]
)
def test_a_line_with_leading_blanks_cannot_become_a_workflow_command(text: str) -> None:
    line = safe_line(text)
    assert not line.strip().startswith("::")
    plain = Annotation(Level.ERROR, "x", path=text, line=1).plain()
    assert not plain.strip().startswith("::")


def test_what_could_reorder_or_break_a_line_is_escaped() -> None:
    unsafe = "\x00\x1f\x7f\x9f\u2028\u2029\u202a\u202e\u2066\u2069\ud800\udfff"
    harmless = " \xa0\u2027\u202f\u2065\u206a\ue000"
    shown = Annotation(Level.ERROR, unsafe + harmless).plain()
    assert not set(unsafe) & set(shown)
    assert shown.endswith(harmless)
