"""What ``test-llm`` refuses before anything is fetched, and what it passes on."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec
from ci.llm import tiny, weights
from ci.llm.foreign import ForeignJob
from ci.llm.lowering import Subject
from ci.llm.tokenizers import Tokenizer
from ci.models.schemes import Scheme
from ci.verbs.lanes import llm
from provisioning.artifacts.choice import read_choice
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError
from tests.unit.ci.llm.decoders import PLACE

WEIGHTS, TOKENIZER = str(PLACE / "weights.bin"), str(PLACE / "tokenizer.bin")
BOTH = ["--weights", WEIGHTS, "--tokenizer", TOKENIZER]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", WEIGHTS], "belong together"),
        (["--tokenizer", TOKENIZER], "belong together"),
        (["--weights", "gone.bin", "--tokenizer", TOKENIZER], "gone.bin has no weights"),
        ([*BOTH[:3], "small.bin"], "it has vocabulary = 2, but "),
        ([*BOTH, "--prompt", "no € here"], "no piece for"),
        (["--scheme", "u8"], "u8"),
        (["--soc", "SM1"], "SM1"),
        (["--prefill", "1"], "--prefill 1"),
        (["--context", "60"], "--context 60"),
        (["--context", "128"], "at most 64"),
        (["--tokens", "0"], "--tokens 0"),
        (
            ["--prompt", "Ben has a blue boat. The boat sails far. Ben has a blue boat."],
            "context of 64",
        ),
        (["--text", "gone.txt"], "gone.txt cannot be read"),
        (["--text", "small.bin"], "small.bin cannot be read"),
        (["--text", "empty.txt"], "empty.txt"),
        (["--max-perplexity", "3"], "--max-perplexity 3 needs --text"),
        (["--text", "empty.txt", "--max-perplexity", "0.5"], "--max-perplexity 0.5"),
        (
            ["--program", TOKENIZER, "--tokenizer", TOKENIZER, "--text", "a"],
            "--text cannot be used",
        ),
        (
            ["--program", TOKENIZER, "--tokenizer", TOKENIZER, "--max-perplexity", "9"],
            "--max-perplexity cannot be used",
        ),
        (["--program", "gone.pte", "--tokenizer", TOKENIZER], "no program"),
        (["--program", TOKENIZER], "--program needs --tokenizer"),
        (["--program", TOKENIZER, "--tokenizer", TOKENIZER], "neither an ExecuTorch program"),
        (["--program", "cut.pte", "--tokenizer", TOKENIZER], "cut.pte"),
        (["--program", TOKENIZER, "--tokenizer", TOKENIZER, "--scheme", "fp16"], "already"),
    ],
)
def test_a_mistake_ends_with_its_words(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cut.pte").write_bytes(b"\x10\0\0\0ET12")
    Path("empty.txt").write_text("")
    Path("small.bin").write_bytes(b"\x01\0\0\0" + 2 * (b"\0\0\x80\x3f\x01\0\0\0" + b"a"))
    assert main(["test-llm", *words]) == ExitCode.USAGE
    assert said in capsys.readouterr().err


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
        ("a", -1, 4, []),
    ],
)
def test_a_text_is_measured_in_windows_that_follow_each_other(
    tmp_path: Path, text: str, bos: int, context: int, windows: list[str]
) -> None:
    (tmp_path / "text").write_text(text)
    args = Namespace(text=tmp_path / "text", context=context)
    ids = tuple(
        tuple(int(one) if one.isdigit() else ord(one) for one in window) for window in windows
    )
    if windows:
        assert llm.find_windows(args, make_tokenizer(bos)) == ids
        return
    with pytest.raises(UsageError, match="fewer than two tokens"):
        llm.find_windows(args, make_tokenizer(bos))


@pytest.mark.parametrize(
    ("context", "most", "said"),
    [(2, 2, ""), (1, 9, "below 2"), (9, 9, ""), (10, 9, "for at most 9 tokens")],
)
def test_a_model_is_projected_for_a_context_that_it_was_trained_for(
    monkeypatch: pytest.MonkeyPatch, context: int, most: int, said: str
) -> None:
    config = SimpleNamespace(most_context=most)
    monkeypatch.setattr(weights, "read_config", lambda path: config if path == Path("m") else None)
    monkeypatch.setattr(llm, "project", lambda *given: {"given": [*map(str, given)]})
    monkeypatch.setattr(llm, "render_projection", lambda found: f"{len(found)} rows")
    monkeypatch.setattr(llm, "require_packages", lambda *_: None)
    args = Namespace(project=Path("m"), scheme=["8a8w"], context=context)
    if said:
        with pytest.raises(UsageError, match=said):
            llm.execute(args, Progress())
        return
    given = [str(config), str(llm.choose_schemes(["8a8w"])), str(context)]
    assert llm.execute(args, Progress()) == Outcome("1 rows", {"given": given}, exact=True)


@pytest.mark.parametrize(
    ("held", "change", "said"),
    [
        (("program", ""), {}, ""),
        (("program", ""), {"weights": Path("w.bin")}, ""),
        (("program", "is cut short"), {}, "it is cut short"),
        (("context", ""), {}, "it is a context binary"),
        (("program", ""), {"soc": ["a", "b"]}, "--program cannot be used with"),
        (("program", ""), {"tokens": 0}, "--tokens 0"),
    ],
)
def test_a_program_is_run_with_its_own_tokenizer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: tuple[str, str],
    change: dict[str, Any],
    said: str,
) -> None:
    program = SimpleNamespace(kind=held[0], damage=held[1])
    read: list[Path] = []
    monkeypatch.setattr(llm, "read_program", lambda _: program)
    monkeypatch.setattr(llm, "read_tokenizer", read.append)
    monkeypatch.setattr(weights, "read_weights", read.append)
    (tmp_path / "m.pte").touch()
    usual = {
        "scheme": [],
        "soc": ["a"],
        "text": None,
        "max_perplexity": None,
        "tokenizer": Path("t.bin"),
        "prompt": "hi",
    }
    usual |= {"pte": tmp_path / "m.pte", "weights": None, "tokens": 1, **change}
    if said:
        with pytest.raises(UsageError) as caught:
            llm.find_program(Namespace(**usual))
        assert said in str(caught.value)
        return
    found = llm.find_program(Namespace(**usual))
    own = [one for one in (Path("t.bin"), usual["weights"]) if one]
    assert read == own
    assert found == ForeignJob(usual["pte"], Path("t.bin"), "hi", 1, usual["weights"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "prompts", "tokens", "said"),
    [
        ({}, ("ab", "abcd"), 6, ""),
        ({"tokens": 99}, ("ab", "abcd"), 8, ""),  # as many as fit
        ({"prompt": "abcdefghijk", "tokens": 99}, ("abcdefghijk",), 1, ""),
        (
            {"prompt": "abcdefghijkl"},
            (),
            0,
            "a prompt of 12 tokens does not fit in a context of 16",
        ),
        ({"context": 24, "prefill": 4}, (), 0, "at most 20 tokens"),
        ({"context": 20, "tokens": 1}, ("ab", "abcd"), 1, ""),
        ({"context": 8, "prompt": "a"}, ("a",), 3, ""),  # twice --prefill
        ({"prefill": 8, "prompt": "a"}, ("a",), 6, ""),
        ({"context": 4}, (), 0, "--prefill 4"),
        ({"context": 18}, (), 0, "--prefill 4"),
        ({"context": 8, "prefill": 8}, (), 0, "--prefill 8 does not work with --context 8"),
        ({"prefill": 1}, (), 0, "--prefill 1"),
        ({"prefill": 2, "context": 4, "prompt": "a"}, ("a",), 1, ""),
        ({"tokens": 0}, (), 0, "--tokens 0"),
        ({"max_perplexity": 1.0, "text": "t"}, ("ab", "abcd"), 6, ""),
        ({"max_perplexity": 0.9, "text": "t"}, (), 0, "is below 1"),
        ({"max_perplexity": 1.0}, (), 0, "needs --text"),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_a_known_model_is_fetched_and_its_prompts_fit_in_the_context(
    monkeypatch: pytest.MonkeyPatch,
    own: bool,
    words: dict[str, Any],
    prompts: tuple[str, ...],
    tokens: int,
    said: str,
) -> None:
    asked: list[Any] = []
    config = SimpleNamespace(vocabulary=256, most_context=20)
    files = (Path("w.bin"), Path("t.bin"))
    monkeypatch.setattr(
        llm, "find_files", lambda name, _, offline: asked.append((name, offline)) or files
    )
    known = {"story": SimpleNamespace(prompts=("ab", "abcd"))}
    monkeypatch.setattr(llm, "read_decoders", lambda: known)
    tokenizer = make_tokenizer(-1)
    monkeypatch.setattr(llm, "read_tokenizer", lambda path: tokenizer if path == files[1] else 0)
    monkeypatch.setattr(weights, "read_weights", lambda path: (config, path))
    monkeypatch.setattr(llm, "find_windows", lambda *_: ((1, 2),))
    usual = {"prompt": "", "context": 16, "prefill": 4, "tokens": 6, "text": None}
    usual |= {"max_perplexity": None, "model": "story", "weights": None, "tokenizer": None}
    if own:
        usual |= {"weights": files[0], "tokenizer": files[1], "model": "tiny"}
        words = {"prompt": "abcd", **words}
        prompts = prompts and tuple(one for one in prompts if one != "ab")
    args = Namespace(**{**usual, "offline": True, **words})
    if said:
        with pytest.raises(UsageError, match=said):
            llm.find_subject(args, Progress())
        return
    subject, show = llm.find_subject(args, Progress())
    assert asked == ([] if own else [("story", True)])
    assert subject == Subject(
        weights=files[0],
        prompts=tuple(tuple(map(ord, one)) for one in prompts),
        tokens=tokens,
        context=args.context,
        prefill=args.prefill,
        bos=-1,
        eos=-1,
        text=((1, 2),) if args.text else (),
        max_perplexity=args.max_perplexity,
    )
    assert show is tokenizer.decode


DEFAULT = (Scheme.FP16, Scheme.A8W8, Scheme.A16W8, Scheme.A16W4)


@pytest.mark.parametrize(
    ("files", "asked", "prompts"),
    [
        ((None, None), (PLACE / "weights.bin", PLACE / "tokenizer.bin"), tiny.PROMPTS),
        ((Path("w.bin"), Path("t.bin")), (Path("w.bin"), Path("t.bin")), ("",)),
    ],
)
def test_without_a_prompt_each_model_continues_its_own_texts(
    monkeypatch: pytest.MonkeyPatch,
    files: tuple[Path | None, Path | None],
    asked: tuple[Path, Path],
    prompts: tuple[str, ...],
) -> None:
    """The small model has some; the user's has none."""
    read: list[Path] = []
    config = SimpleNamespace(vocabulary=256, most_context=64)
    tokenizer = make_tokenizer(1)
    monkeypatch.setattr(llm, "read_tokenizer", lambda path: read.append(path) or tokenizer)
    monkeypatch.setattr(weights, "read_weights", lambda path: read.append(path) or (config, path))
    usual = {"prompt": "", "context": 64, "prefill": 8, "tokens": 6, "text": None}
    usual |= {"max_perplexity": None, "model": llm.TINY, "offline": True}
    args = Namespace(**usual, weights=files[0], tokenizer=files[1])
    subject, _ = llm.find_subject(args, Progress())
    assert read == [*asked[::-1]]
    assert subject.weights == asked[0]
    assert subject.prompts == tuple((1, *map(ord, one)) for one in prompts)


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
        (["--program", "m.pte", "--soc", "SM8650"], "m.pte", [Scheme.ASIS], ["SM8650"], []),
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
    ran: list[Any] = []
    given: dict[str, Any] = {}

    def take(profile: str, told: str, run: Any, phases: Any, **more: Any) -> Any:
        given.update(more, profile=profile, work=told, phases=phases)
        return run("environment", "scratch")

    def note(*words: Any, **more: Any) -> str:
        assert more.pop("phases") is given["phases"]
        ran.append((words, more))
        return "report"

    monkeypatch.setattr(llm, "take_steps", take)
    monkeypatch.setattr(llm, "run_specs", note)
    monkeypatch.setattr(llm, "run_program", note)
    monkeypatch.setattr(llm, "find_program", lambda args: f"job of {args.pte.name}")
    monkeypatch.setattr(llm, "find_subject", lambda *_: ("subject", "show"))
    monkeypatch.setattr(llm, "publish", lambda *words: words)
    parser = ArgumentParser("test-llm")
    llm.add_arguments(parser)
    args = parser.parse_args([*words, "--jobs", "3", "--offline", "--reports", "out"])
    report, directory, same, _ = llm.execute(args, Progress())  # type: ignore[misc]
    assert (report, directory, same) == ("report", tmp_path / "out" / "test_llm", args)
    ((first, *rest, options), more) = ran[0]
    found = [first] if args.pte else first
    assert found == [CaseSpec(model, scheme, soc) for scheme in schemes for soc in socs]
    rooms = {"environment": "environment", "scratch": "scratch"}
    if args.pte:
        assert (rest, more) == (["job of m.pte"], rooms)
        assert given["work"] == "run m.pte"
    else:
        assert (rest, more) == (["subject", "show"], {"plain": args.plain, **rooms})
        told = f"{len(found)} case{'s' * (len(found) > 1)}, 3 at a time"
        assert given["work"] == f"lower, run and judge {told}"
    assert [one for one in command if one not in options.command] == []
    assert bool(command) is bool(options.command)
    assert options.baselines is None
    assert options.policy == read_emulator_policy(args.policy, "llm")
    choice = read_choice(args.sdk)
    assert given["profile"] == choice.profile
    assert (given["offline"], given["imports"], given["choice"]) == (True, llm.IMPORTS, choice)
