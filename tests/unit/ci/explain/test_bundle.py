"""A log that is read together with its bundle: which findings explain its errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from ci.inspect.bundle_log import LogFacts
from ci.inspect.genie_keys import read_keys
from provisioning.errors import ExitCode
from provisioning.manifest.reader import read_policy
from tests.build import genie
from tests.stand_ins import litert

HEAD = "Using libGenie.so version 1.9.0\nQNN build v2.42.0.251225135753_193295\n"
NEWER = "QNN build v2.51.0.260901000000\n"
ERR = '[ERROR] "Could not create context from binary for context index = 0 : err {}"\n'
SECOND = ERR.replace("index = 0", "index = 1")
DIALOG = "Failed to create the dialog.\n"


def other_part(folder: Path, _: dict[str, Any]) -> None:
    (folder / genie.PARTS[1]).write_bytes(genie.make_part(2, soc=("SM8750", 69, 79)))


def cut_part(folder: Path, _: dict[str, Any]) -> None:
    data = (folder / genie.PARTS[0]).read_bytes()
    (folder / genie.PARTS[0]).write_bytes(data[: len(data) // 2])


def without_first_part(folder: Path, _: dict[str, Any]) -> None:
    (folder / genie.PARTS[0]).unlink()


def without_vocabulary(_: Path, config: dict[str, Any]) -> None:
    del config["dialog"]["context"]["n-vocab"]


def keep(_: Path, __: dict[str, Any]) -> None:
    """Nothing is wrong."""


# A log, what is wrong with the folder, options, the findings with the lines that they explain, and
# the lines that nothing explains.
Case = tuple[str, genie.Change, list[str], list[str], list[str]]
CASES: dict[str, Case] = {
    "contexts of a newer QNN than the log names": (
        HEAD + ERR.format(5000),
        keep,
        [],
        ["QNN964 3 err 5000", "QNN964", "QNN966"],
        [],
    ),
    "a part for another SoC than the log names": (
        NEWER + "soc: SM8650\n" + SECOND.format(5005),
        other_part,
        [],
        ["QNN954 3 err 5005", "QNN963 3 err 5005"],
        [],
    ),
    "the other part is for another SoC than the log names": (
        NEWER + "soc: SM8650\n" + ERR.format(1009) + ERR.format(5005),
        other_part,
        [],
        ["QNN954 4 err 5005", "QNN963"],
        ["3 err 1009"],
    ),
    "errors of both parts, of which the first is missing": (
        NEWER + ERR.format(1009) + SECOND.format(1009),
        without_first_part,
        ["--soc", "SM8750"],
        ["QNN951", "QNN963 3 err 1009"],
        ["2 err 1009"],
    ),
    "another phone than the one of the contexts": (
        NEWER + ERR.format(1009) + DIALOG,
        keep,
        ["--soc", "SM8750"],
        ["QNN963 2 err 1009", "QNN963 3 the model is not loaded"],
        [],
    ),
    "the NPU restarts, and the contexts are for another SoC": (
        NEWER + "error: 0x3ef\n",
        keep,
        ["--soc", "SM8550"],
        ["QNN963 2 err 1007", "QNN963 2 err 1007"],
        [],
    ),
    "a part that is cut": (
        NEWER + ERR.format(1009),
        cut_part,
        ["--soc", "SM8650"],
        ["QNN953 2 err 1009"],
        [],
    ),
    "a missing key": (
        NEWER + DIALOG,
        without_vocabulary,
        ["--soc", "SM8650"],
        ["QNN950 2 the model is not loaded"],
        [],
    ),
    "a right folder": (
        NEWER + ERR.format(5000),
        keep,
        ["--soc", "SM8650"],
        [],
        ["2 err 5000"],
    ),
    "a log with neither": ("all is well 5000\n", keep, [], ["QNN966"], []),
}


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(log: str, bundle: Path, *words: str) -> dict[str, Any]:
        (tmp_path / "run.log").write_text(log)
        code = main(
            ["explain", str(tmp_path / "run.log"), "--bundle", str(bundle), *words, "--json"]
        )
        data: dict[str, Any] = json.loads(capsys.readouterr().out)
        errors = [row for row in data["bundle"]["findings"] if row["severity"] == "error"]
        causes = data["logs"][0]["causes"]
        assert code == (ExitCode.FAILED if errors or causes else ExitCode.OK)
        return dict(data["bundle"])

    return run


def list_findings(bundle: dict[str, Any]) -> Iterator[str]:
    for finding in bundle["findings"]:
        lines = [f"{line} {text}" for line, text in finding["lines"]]
        yield " ".join([finding["id"], *lines])


@pytest.mark.parametrize("name", CASES)
def test_findings_on_the_folder_explain_the_log(
    tmp_path: Path, explain: Callable[..., dict[str, Any]], name: str
) -> None:
    log, change, words, findings, open_lines = CASES[name]
    bundle = explain(log, genie.make_genie(tmp_path / "bundle", change), *words)
    assert [*list_findings(bundle)] == findings
    assert [f"{line} {text}" for line, text in bundle["open_lines"]] == open_lines


def test_a_finding_names_each_error_that_it_explains() -> None:
    texts = read_policy("checks", dict[str, dict[str, Any]])
    for number, findings in read_keys().explains.items():
        assert {name: number in texts[name]["why"] for name in findings} == dict.fromkeys(
            findings, True
        )


def test_a_file_of_litert_lm_is_read_likewise(
    tmp_path: Path, explain: Callable[..., dict[str, Any]]
) -> None:
    section = (3, litert.make_compiled(), {"model_type": "tf_lite_prefill_decode"})
    path = tmp_path / "model.litertlm"
    path.write_bytes(litert.make_bundle([section]))
    bundle = explain("err 5005\n", path, "--soc", "SM8750")
    assert [*list_findings(bundle)] == ["QNN963 1 err 5005", "QNN966"]
    path.write_bytes(path.read_bytes()[:-100])
    bundle = explain("err 5000\n", path, "--soc", "SM8750")
    assert [*list_findings(bundle)] == ["QNN953 1 err 5000", "QNN966"]


def test_explain_refuses_a_bundle_with_several_logs_or_unfit_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("err 5000\n")
    folder = genie.make_genie(tmp_path / "bundle")
    wrong = {
        "no effect without --bundle": ["--soc", "SM8650"],
        "cannot be used with several logs": [str(log), "--bundle", str(folder)],
        "does not exist": ["--bundle", "gone"],
        "cannot be used with --github": ["--bundle", str(folder), "--github"],
        "no configuration of Genie": ["--bundle", str(tmp_path)],
        "--runtime litert has no effect here": ["--bundle", str(folder), "--runtime", "litert"],
        "are both QNN's libraries": [
            *("--bundle", str(folder), "--runtime", "2.49.40", "--qnn-runtime", "2.49.40")
        ],
    }
    for text, words in wrong.items():
        assert main(["explain", str(log), *words]) == ExitCode.USAGE
        assert text in capsys.readouterr().err


def test_the_old_name_of_qnn_runtime_is_accepted_and_the_new_one_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.log"
    log.write_text("err 5000\n")
    folder = str(genie.make_genie(tmp_path / "bundle"))
    outputs = []
    for option in ("--runtime", "--qnn-runtime"):
        main(["explain", str(log), "--bundle", folder, option, "2.42.0"])
        outputs.append(capsys.readouterr())
    old, new = outputs
    assert old.out == new.out
    assert "--runtime is now called --qnn-runtime: pass --qnn-runtime 2.42.0" in old.err
    assert "now called" not in new.err


def test_a_log_in_parts_of_any_size_says_the_same() -> None:
    log = (HEAD + ERR.format(5000) + "SM8650\n" + DIALOG).encode()
    whole_log_facts = LogFacts()
    assert [*whole_log_facts.read([log])] == [log]
    for size in (1, 7, 64):
        facts = LogFacts()
        assert b"".join(facts.read(log[at : at + size] for at in range(0, len(log), size))) == log
        assert facts == whole_log_facts
    assert (whole_log_facts.numbers, whole_log_facts.not_loaded) == ({(5000, 0): 3}, 5)
    assert (whole_log_facts.find_version(), whole_log_facts.find_soc()) == ("2.42.0", "SM8650")
