"""What ``test-llm`` refuses before anything is fetched, and what it passes on."""

from __future__ import annotations

import json
import struct
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from ci.__main__ import main
from ci.cases.pipeline import Setup
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.llm import subject
from ci.llm.decoder import Decoder
from ci.llm.families import HuggingFaceConfig
from ci.llm.request import LlmRequest
from ci.llm.tokenizers import TextAnswer, Tokenizer
from ci.models.schemes import Scheme
from ci.report.schema import Report
from ci.verbs import llm
from ci.verbs.lanes import llm as lane
from ci.verbs.requests import make_request
from provisioning.artifacts.choice import read_choice
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode
from tests.build.litert_bundles import make_other_tokenizer, write_tiny
from tests.stand_ins.reports import make_report
from tests.stand_ins.safetensors import write_safetensors
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.llm.decoders import PLACE, SIZES

WEIGHTS, TOKENIZER = str(PLACE / "weights.bin"), str(PLACE / "tokenizer.bin")
BOTH = ["--weights", WEIGHTS, "--tokenizer", TOKENIZER]


SNAPSHOTS = Path(__file__).with_name("snapshots")
PTE = b"\x3c\0\0\0ET12".ljust(64, b"\0")
LLAMA = {"model_type": "llama", **SIZES}
FOREIGN = ["--program", "m.pte", "--tokenizer", TOKENIZER]
MISTAKES = [
    ["--weights", WEIGHTS],
    ["--tokenizer", TOKENIZER],
    ["--weights", "gone.bin", "--tokenizer", TOKENIZER],
    [*BOTH[:3], "small.bin"],
    [*BOTH, "--prompt", "no € here"],
    ["--prompt", "Latin-1 \udce9"],
    ["--scheme", "u8"],
    ["--soc", "SM1"],
    ["--prefill", "1"],
    ["--context", "60"],
    ["--context", "8"],
    ["--context", "128"],
    ["--tokens", "0"],
    ["--prompt", "Ben has a blue boat. The boat sails far. Ben has a blue boat."],
    ["--text", "gone.txt"],
    ["--text", "small.bin"],
    ["--text", "empty.txt"],
    ["--max-perplexity", "3"],
    ["--text", "empty.txt", "--max-perplexity", "0.5"],
    [*FOREIGN, "--text", "a"],
    [*FOREIGN, "--max-perplexity", "9"],
    [*FOREIGN, "--tokens", "0"],
    [*FOREIGN, "--soc", "SM8650", "--soc", "SM8750"],
    [*FOREIGN, "--scheme", "fp16"],
    [*FOREIGN, "--weights", "gone.bin"],
    ["--program", "m.pte"],
    ["--program", "gone.pte", "--tokenizer", TOKENIZER],
    ["--program", TOKENIZER, "--tokenizer", TOKENIZER],
    ["--program", "cut.pte", "--tokenizer", TOKENIZER],
    ["--reference", "tiny.litertlm"],
    ["--bundle", "gone.litertlm"],
    ["--bundle", "m.pte"],
    ["--bundle", "cut.litertlm"],
    ["--bundle", "other.litertlm"],
    ["--bundle", "parts.litertlm"],
    ["--bundle", "tiny.litertlm", "--reference", "cut.litertlm"],
    ["--bundle", "tiny.litertlm", "--scheme", "fp16"],
    ["--bundle", "tiny.litertlm", "--text", "empty.txt"],
    ["--bundle", "tiny.litertlm", "--soc", "SM8650", "--soc", "SM8750"],
    ["--bundle", "tiny.litertlm", "--soc", "SM1"],
    ["--project", "gone.json"],
    ["--project", "config.json", "--context", "129"],
    ["--project", "config.json", "--context", "1"],
    ["--project", "config.json", "--scheme", "u8"],
]


def test_a_token_that_the_model_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer has one piece more than the 100 tokens of the model, and the prompt contains
    it."""
    monkeypatch.setattr("ci.verbs.steps.take_steps", None)
    config = {**LLAMA, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    hf_config = msgspec.convert(config, HuggingFaceConfig)
    with torch.device("meta"):
        sizes = {
            name: tensor.shape
            for name, tensor in Decoder(hf_config.convert(), 2).state_dict().items()
        }
    names = hf_config.list_names()
    weights = {theirs: torch.zeros(sizes[ours]) for ours, theirs in names.items()}
    write_safetensors(tmp_path / "model.safetensors", weights)
    pieces = [b"<unk>", b"<s>", b"</s>", b" ", *(chr(number).encode() for number in range(33, 129))]
    rows = b"".join(struct.pack("<fi", 0.0, len(piece)) + piece for piece in [*pieces, b"\xc3\xa9"])
    (tmp_path / "t.bin").write_bytes(struct.pack("<i", 5) + rows)
    words = ["--weights", str(tmp_path), "--tokenizer", str(tmp_path / "t.bin"), "--prompt"]
    assert main(["test-llm", *words, "\u00e9"]) == ExitCode.USAGE
    assert "has the token 100, but the model has 100 tokens" in capsys.readouterr().err


def test_wrong_llm_options_are_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ci.verbs.steps.take_steps", None)
    Path("m.pte").write_bytes(PTE)
    Path("cut.pte").write_bytes(b"\x10\0\0\0ET12")
    Path("empty.txt").write_text("")
    Path("config.json").write_text(json.dumps(LLAMA))
    Path("small.bin").write_bytes(b"\x01\0\0\0" + 2 * (b"\0\0\x80\x3f\x01\0\0\0" + b"a"))
    write_tiny(Path("tiny.litertlm"))
    write_tiny(Path("parts.litertlm"), auxiliary=None)
    write_tiny(Path("other.litertlm"), tokenizer=None, packed=make_other_tokenizer())
    Path("cut.litertlm").write_bytes(Path("tiny.litertlm").read_bytes()[:-1000])
    lines = []
    for words in MISTAKES:
        code = main(["test-llm", *words])
        lines.append(f"{' '.join(words)}\n{code:d} {capsys.readouterr().err}")
    text = "\n".join(lines).replace(str(PLACE), "TINY").replace(str(tmp_path), "HERE")
    check_snapshot(SNAPSHOTS / "usage.txt", text.encode(errors="backslashreplace").decode())


@pytest.mark.parametrize(
    "words",
    [
        "--project gone.json",
        "--program gone.pte --tokenizer t.bin",
        "--program t.bin",
        "--program t.bin --tokenizer gone.bin",
        "--weights gone --tokenizer t.bin",
        "--weights t.bin --tokenizer gone.bin",
        "--weights t.bin",
        "--text gone.txt",
        "--max-perplexity 3",
        "--prefill 1",
    ],
)
def test_options_that_no_run_can_use_are_refused_before_torch_is_needed(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the session refuses them before it installs torch, which takes minutes."""
    monkeypatch.chdir(tmp_path)
    Path("t.bin").touch()
    monkeypatch.setattr("ci.verbs.steps.require_packages", None)
    assert main(["test-llm", *words.split()]) == ExitCode.USAGE


# -- what a call passes on ------------------------------------------------------------------------


def make_tokenizer(bos: int) -> Tokenizer:
    """Each character is its code."""
    return Tokenizer("own", 256, bos, -1, lambda text: [*map(ord, text)], str)


@pytest.mark.parametrize(
    ("text", "bos", "context", "windows"),
    [
        ("abcdefg", 1, 4, ["1abc", "1def", "1g"]),
        ("abcdef", 1, 4, ["1abc", "1def"]),
        ("abcdef", 0, 4, ["0abc", "0def"]),
        ("abcdefg", -1, 4, ["abcd", "defg"]),
        ("abcdefgh", -1, 4, ["abcd", "defg", "gh"]),
        ("a", 1, 4, ["1a"]),
        ("ab", -1, 9, ["ab"]),
    ],
)
def test_a_text_is_measured_in_windows_that_follow_each_other(
    text: str, bos: int, context: int, windows: list[str]
) -> None:
    answer = TextAnswer(bos, -1, (), make_tokenizer(bos).prompt(text))
    expected_windows = []
    for window in windows:
        ids = [int(mark) if mark.isdigit() else ord(mark) for mark in window]
        expected_windows.append(tuple(ids))
    assert subject.find_windows(Path("text"), context, answer) == tuple(expected_windows)


def parse(*words: str) -> Namespace:
    parser = ArgumentParser("test-llm")
    llm.add_arguments(parser)
    return parser.parse_args([*words])


SUBJECTS = [
    "",
    "--tokens 99",  # as many as fit
    "--tokens 1 --context 32",
    "--prompt Ann --prefill 16",
    "--prompt Ann --prefill 2 --context 8",
    "--text text --max-perplexity 1",
]


def test_prompts_and_tokens_of_a_model_fit_in_its_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A known model has its own prompts; a user's model has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    Path("text").write_text("Ben has")
    decoders = {"story": SimpleNamespace(prompts=("Tom",))}
    for module in (llm, subject):
        monkeypatch.setattr(module, "read_decoders", lambda: decoders)
    files = {("story", True): (Path(WEIGHTS), Path(TOKENIZER))}
    monkeypatch.setattr(subject, "find_files", lambda name, _, offline: files[name, offline])
    lines = []
    for words in SUBJECTS:
        for model in (["--model", "tiny"], BOTH, ["--model", "story"]):
            args = parse(*model, *words.split(), "--offline")
            request = make_request(LlmRequest, args, "test_llm", decoder=args.model)
            decoder, show = subject.find_subject(request, Progress())
            lines.append(
                f"{' '.join(model)} {words}\n  {show(decoder.prompts[0][1:])}: {decoder}\n"
            )
    text = "".join(lines).replace(str(PLACE), "TINY")
    check_snapshot(SNAPSHOTS / "subjects.txt", text)


DEFAULT = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8, Scheme.A16W4)


TWO = ["--soc", "SM8650", "--soc", "SM8750"]


@pytest.mark.parametrize(
    ("words", "model", "schemes", "socs", "command"),
    [
        ([], "tiny", DEFAULT, ["SM8750"], ["--tokens 48"]),
        (
            [*TWO, "--scheme", "fp16", "--scheme", "16a4w", "--plain", "--prompt", "Ben"],
            "tiny",
            [Scheme.FP16, Scheme.A16W4],
            ["SM8650", "SM8750"],
            ["--plain", "--prompt Ben", "--tokens 48", "--context 64", "--prefill 8"],
        ),
        (BOTH, WEIGHTS, DEFAULT, ["SM8750"], []),
        (
            [
                *("--text", "text.txt", "--max-perplexity", "2.5", "--sdk", "pinned"),
                *("--policy", "limits.toml"),
            ],
            "tiny",
            DEFAULT,
            ["SM8750"],
            ["--text text.txt", "--max-perplexity 2.5", "--sdk pinned", "--policy limits.toml"],
        ),
        ([*FOREIGN, "--soc", "SM8650"], "m.pte", [Scheme.ASIS], ["SM8650"], []),
    ],
)
def test_each_option_reaches_the_cases_and_the_command_that_repeats_them(
    words: list[str],
    model: str,
    schemes: list[Scheme],
    socs: list[str],
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in ("QNN_CI_SDK", "QNN_CI_ADAPTOR"):
        monkeypatch.setenv(name, "")
    (tmp_path / "limits.toml").write_text('extends = "default"\n[schemes.fp16]\nmin_cosine = 0.5\n')
    for name in ("text.txt", "m.pte"):
        (tmp_path / name).touch()
    step_arguments: dict[str, Any] = {}

    def take(profile: str, work: str, run: Any, phases: Any, **keywords: Any) -> Any:
        step_arguments.update(keywords, profile=profile, work=work, phases=phases)
        environment = SimpleNamespace(apply=lambda variables: variables)
        return run(environment, SimpleNamespace(open=lambda _: "pool", scratch=tmp_path))

    sessions: list[Any] = []

    def run_session(setup: Setup, phases: Any, make_run: Any) -> Report:
        assert phases is step_arguments["phases"]
        sessions.append(setup)
        runs.extend(make_run(spec, setup) for spec in setup.options.specs)
        return make_report([])

    runs: list[Any] = []
    monkeypatch.setattr("ci.verbs.steps.take_steps", take)
    monkeypatch.setattr("ci.verbs.lanes.lane.run_session", run_session)
    monkeypatch.setattr(lane, "describe_toolchain", lambda _: [])
    monkeypatch.setattr(lane, "name_toolchain", lambda *_: ("tools",))
    monkeypatch.setattr(lane, "find_program", lambda _, program: f"job of {program.name}")
    monkeypatch.setattr(lane, "find_subject", lambda *_: ("subject", "show"))
    monkeypatch.setattr("ci.verbs.steps.publish", lambda _, request, *_a, **_k: request)
    args = parse(*words, "--jobs", "3", "--offline", "--reports", "out")
    request: Any = llm.execute(args, Progress())
    assert request.directory == tmp_path / "out" / "test_llm"
    (setup,) = sessions
    options, specs = setup.options, setup.options.specs
    assert specs == [CaseSpec(model, scheme, soc) for scheme in schemes for soc in socs]
    cases = {1: "1 case", 4: "4 cases, 3 at a time"}[len(specs)]
    assert step_arguments["work"].endswith(f"run and judge {cases}")
    if args.pte:
        assert [case_run.job for case_run in runs] == ["job of m.pte"]
        assert setup.engine.subject is None
    else:
        assert {(case_run.subject, case_run.show) for case_run in runs} == {("subject", "show")}
        assert (setup.engine.subject, setup.engine.plain) == ("subject", args.plain)
    assert [argument for argument in command if argument not in options.command] == []
    assert bool(command) is bool(options.command)
    assert options.baselines is None
    assert options.policy == read_emulator_policy(args.policy, "llm")
    choice = read_choice(args.sdk)
    assert step_arguments["profile"] == choice.profile
    assert (step_arguments["offline"], step_arguments["imports"], step_arguments["choice"]) == (
        True,
        lane.IMPORTS,
        choice,
    )
