"""What a call of localise refuses, and what it passes on to the search. Nothing is lowered."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.policy import read_emulator_policy
from ci.report.schema import Tool
from ci.verbs import localise as verb
from provisioning.artifacts.choice import ADAPTOR_VARIABLE, SDK_VARIABLE, QnnChoice
from provisioning.errors import ExitCode
from provisioning.manifest.targets import Backend

ONE = ["--model", "mlp", "--scheme", "fp16"]


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Namespace]:
    """The cases that the verb searched. The environment and the search are stand-ins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in (SDK_VARIABLE, ADAPTOR_VARIABLE):
        monkeypatch.setenv(name, "")
    done: list[Namespace] = []

    class Localiser:
        def __init__(self, spec: Any, setup: Any, engine: Any, _: Any, qnn: str) -> None:
            self.own = {"spec": spec, "setup": setup, "engine": engine, "qnn": qnn}

        def run(self, limit: int, reproducer: Path | None) -> Namespace:
            done.append(Namespace(**self.own, limit=limit, reproducer=reproducer))
            return done[-1]

    @contextmanager
    def enter(profile: str, _: Any, **more: Any) -> Iterator[Any]:
        scratch = SimpleNamespace(open=lambda variables: ("pool", variables), scratch=tmp_path)
        environment = SimpleNamespace(apply=lambda _: {"A": "1"}, more={"profile": profile, **more})
        entered.append(environment)
        yield environment, scratch, None

    entered.clear()
    monkeypatch.setattr(verb, "enter_environment", enter)
    monkeypatch.setattr(verb, "Localiser", Localiser)
    tools = [Tool(name="other", version="1"), Tool(name=verb.LIBRARY, version="2.49")]
    monkeypatch.setattr(verb, "describe_toolchain", lambda _: tools)
    monkeypatch.setattr(verb, "name_toolchain", lambda parts, _: [one.name for one in parts])
    monkeypatch.setattr(verb, "ExecutorchEngine", Engine)
    monkeypatch.setattr(verb, "require_packages", lambda *_: None)
    monkeypatch.setattr(verb, "make_runner", lambda pool, timeout_s: (pool, timeout_s))
    monkeypatch.setattr(verb, "render_cases", lambda cases: f"{len(cases)} cases")
    monkeypatch.setattr(verb, "data_of", lambda _: {})
    monkeypatch.setattr(verb, "choose_exit", lambda _: ExitCode.FAILED)
    return done


entered: list[Any] = []


class Engine:
    imports = ("torch",)

    def __init__(self, toolchain: list[str]) -> None:
        self.toolchain = toolchain


def test_every_option_reaches_the_search(searched: list[Namespace], tmp_path: Path) -> None:
    (tmp_path / "sdk").mkdir()
    more = ["--limit", "1", "--reproducer", "out/one.py", "--no-cache", "--offline"]
    words = ["--timeout-s", "0.5", "--soc", "SM8750", "--sdk", "sdk", "--adaptor", "wheel"]
    (tmp_path / "own.toml").write_text('extends = "default"\n[schemes.fp16]\nmin_cosine = 0.5\n')
    more += ["--policy", "own.toml"]
    assert main(["localise", *ONE, *more, *words]) == ExitCode.FAILED
    (one,) = searched
    own = replace(read_emulator_policy(tmp_path / "own.toml"), strict_noise=True)
    assert one.setup.options.policy == own.for_backend(Backend.HTP)
    assert (one.spec.soc, one.limit) == ("SM8750", 1)
    assert one.reproducer == tmp_path / "out" / "one.py"
    assert (one.setup.options.timeout_s, one.setup.options.use_cache) == (0.5, False)
    assert one.setup.runner == (one.setup.pool, 0.5)
    (environment,) = entered
    assert environment.more["offline"]
    assert environment.more["choice"] == QnnChoice(str(tmp_path / "sdk"), "wheel")
    assert environment.more["profile"] == environment.more["choice"].profile != "emulator"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--limit", "0"], "--limit 0"),
        (["--timeout-s", "0"], "--timeout-s 0"),
        (["--timeout-s", "nan"], "--timeout-s nan"),
        (["--reproducer", "one.txt"], "one.txt"),
        (["--reproducer", "one.py", "--model", "lstm"], "2 are selected"),
        (["--policy", "methods.toml", "--model", "m"], "several methods"),
        (["--policy", "methods.toml", "--model", "mlp", "--model", "m"], "several methods"),
    ],
)
def test_a_call_that_makes_no_sense_searches_nothing(
    searched: list[Namespace],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    (tmp_path / "net.py").write_text("def factory(): ...\ndef other(): ...\n")
    (tmp_path / "methods.toml").write_text(
        'extends = "default"\n[models.m]\npath = "net.py:factory"\n'
        '[models.m.lowering]\nmethods = ["other"]\n'
    )
    named = [] if "--policy" in words else ONE
    assert main(["localise", *named, *words]) == ExitCode.USAGE
    assert (searched, entered) == ([], [])
    assert told in capsys.readouterr().err


def test_a_reproducer_that_cannot_be_written_is_named_before_the_search(
    searched: list[Namespace], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    words = ["--reproducer", "file/one.py"]
    assert main(["localise", *ONE, *words]) == ExitCode.DOWNLOAD
    assert not searched
