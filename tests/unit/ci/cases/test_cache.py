from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.cases import cache
from ci.cases.cache import (
    RECORD,
    Artifact,
    CompileJob,
    artifact_path,
    hash_files,
    hash_words,
    publish_artifact,
    read_artifact,
    write_artifact,
)
from ci.cases.engine import Compiled, CompilerError, Delegation, Staging
from ci.cases.forked import DiedError, run_forked
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.facts.kinds import DIED, NOT_LOWERED
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.models.user_models import Source

ROOT = Path(__file__).parents[4]
LOWERING = {"models", "cases", "executorch", "onnx", "llm", "litert"}
KEY = "0123abcd"
PROGRAM = "program.pte"
ARTIFACT = Artifact(
    key=KEY,
    model="mlp",
    scheme="fp16",
    soc="SM8650",
    compiled=Compiled(
        program=PROGRAM,
        binary=PROGRAM,
        size_bytes=4,
        sets=4,
        inputs=(TensorInfo("float32", (1, 16)),),
        outputs=(TensorInfo("int64", (4,)),),
        delegation=Delegation(3, 0, 1),
    ),
    lower_s=1.5,
    files={},
)


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    """An artifact that is ready to be published."""
    return make_artifact(tmp_path / "staging" / KEY)


def make_artifact(directory: Path, program: bytes = b"good") -> Path:
    directory.mkdir(parents=True)
    (directory / PROGRAM).write_bytes(program)
    write_artifact(directory, msgspec.structs.replace(ARTIFACT, files=hash_files(directory)))
    return directory


def test_any_flipped_bit_of_a_cache_record_is_detected_or_harmless(staging: Path) -> None:
    right = read_artifact(staging)
    record = (staging / RECORD).read_bytes()
    assert right is not None
    with (staging / RECORD).open("r+b") as stream:  # a file that is truncated is slow to write
        for index, right_byte in enumerate(record):
            for wrong in (right_byte ^ 1 << bit for bit in range(8)):
                os.pwrite(stream.fileno(), bytes([wrong]), index)
                assert read_artifact(staging) in (None, right), (index, wrong)
            os.pwrite(stream.fileno(), bytes([right_byte]), index)
    assert (staging / RECORD).read_bytes() == record


@pytest.mark.parametrize(
    "harm",
    [
        *(
            lambda place, text=text: (place / RECORD).write_bytes(text)
            for text in (b"", b"[" * 100_000, b'{"key": "\xff"}', b'{"key": 1}', b"null")
        ),
        lambda place: os.mkfifo(place / "special"),
        lambda place: (place / "special").symlink_to("gone"),
        lambda place: (place / "options.json").write_text("{}"),
        lambda place: (place / "model").mkdir() or (place / "model/a.txt").write_text("{}"),
        lambda place: place.rename(place.with_name("f" * 8)).rename(place.with_name("e" * 8)),
    ],
)
def test_a_cache_entry_that_differs_from_its_record_or_key_is_a_miss(
    staging: Path, harm: Callable[[Path], object]
) -> None:
    assert read_artifact(staging)
    harm(staging)
    (place,) = staging.parent.iterdir()
    assert read_artifact(place) is None


@pytest.mark.parametrize("link", ["", "gone", KEY])
def test_a_cache_entry_is_replaced_only_if_it_is_damaged_or_a_broken_link(
    tmp_path: Path, staging: Path, link: str
) -> None:
    entry = artifact_path(tmp_path / "cache", KEY)
    entry.parent.mkdir(parents=True)
    if link:
        entry.symlink_to(link)
    assert publish_artifact(staging, entry)
    first = (entry / PROGRAM).stat().st_ino
    assert not publish_artifact(make_artifact(tmp_path / "second" / KEY, b"new"), entry)
    assert (entry / PROGRAM).stat().st_ino == first
    (entry / PROGRAM).write_bytes(b"rust")
    assert publish_artifact(tmp_path / "second" / KEY, entry)
    assert (entry / PROGRAM).read_bytes() == b"new"


@pytest.mark.parametrize(
    ("program", "error"), [(b"good", None), (b"rust", FileExistsError), (None, PermissionError)]
)
def test_a_cache_entry_that_another_process_published_meanwhile_is_used(
    tmp_path: Path,
    staging: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: bytes | None,
    error: type[OSError] | None,
) -> None:
    def lose(staged: Path, target: Path) -> None:
        if program is None:
            raise PermissionError(str(target))
        (make_artifact(target) / PROGRAM).write_bytes(program)
        raise FileExistsError(str(target))

    monkeypatch.setattr(cache, "publish_directory", lose)
    with pytest.raises(error) if error else nullcontext():
        assert not publish_artifact(staging, artifact_path(tmp_path, KEY))


class ChangingEngine:
    """An engine of a model that changes after the lookup, when the worker warms up, and again
    while it is lowered."""

    def __init__(self, model: Path) -> None:
        self.model = model

    def preload(self, spec: CaseSpec) -> None: ...

    def key(self, spec: CaseSpec) -> str:
        return hash_words(self.model.read_text())

    def warm_up(self, spec: CaseSpec) -> None:
        self.model.write_text("after")

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        (staging.directory / PROGRAM).write_bytes(self.model.read_bytes())
        self.model.write_text("later")
        return ARTIFACT.compiled


def test_a_model_edited_after_the_lookup_is_not_cached_under_the_earlier_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.write_text("before")
    spec = CaseSpec("net", Scheme.FP16, "SM8650", Source("/me/net.py:factory"))
    clock = iter((10.0, 12.5))
    monkeypatch.setattr(cache, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    engine: Any = ChangingEngine(model)
    compiled = CompileJob(engine, spec, tmp_path / "cache", tmp_path / "lower.log")()
    assert compiled.artifact is not None
    assert (compiled.artifact.model, compiled.artifact.lower_s) == ("/me/net.py:factory", 2.5)
    assert (compiled.artifact.scheme, compiled.artifact.soc) == ("fp16", "SM8650")
    assert compiled.artifact.key == Path(compiled.directory).name == hash_words("after")
    assert read_artifact(artifact_path(tmp_path / "cache", hash_words("before"))) is None


def refuse(_spec: CaseSpec, _staging: Staging) -> Compiled:
    raise RuntimeError("error 3110")


def die(_spec: CaseSpec, _staging: Staging) -> Compiled:
    os.kill(os.getpid(), signal.SIGFPE)
    raise AssertionError


def test_what_is_refused_or_dies_has_the_key_of_its_program(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("after")
    engine: Any = ChangingEngine(tmp_path / "model")
    engine.explain = lambda error, _log: NOT_LOWERED.find(str(error))
    job = CompileJob(
        engine, CaseSpec("net", Scheme.FP16, "SM8650"), tmp_path / "cache", tmp_path / "log"
    )
    engine.compile = refuse
    assert job().key == hash_words("after")
    engine.compile = die
    with pytest.raises(DiedError, match="SIGFPE"):
        job()
    assert (tmp_path / cache.KEY).read_text() == hash_words("after")


class KillingEngine(ChangingEngine):
    """An engine whose worker is killed while it warms up, as by the kernel if memory runs out."""

    def warm_up(self, spec: CaseSpec) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_leaves_the_key_of_its_program(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("model")
    engine: Any = KillingEngine(tmp_path / "model")
    spec = CaseSpec("net", Scheme.FP16, "SM8650")
    job = CompileJob(engine, spec, tmp_path / "cache", tmp_path / "log")
    with pytest.raises(DiedError, match="SIGKILL"):
        run_forked(job)
    assert (tmp_path / cache.KEY).read_text() == hash_words("model")


@pytest.mark.parametrize(
    ("died", "exceeded", "refused"),
    [
        (True, False, DIED.find("the plugin ended")),
        (False, True, DIED.find("the plugin ended")),
        (False, False, NOT_LOWERED.find("the plugin ended")),
    ],
)
def test_a_compiler_that_refuses_a_model_dies_or_exceeds_a_limit_is_no_mistake_of_the_user(
    died: bool, exceeded: bool, refused: Finding, tmp_path: Path
) -> None:
    def fail(_spec: CaseSpec, _staging: Staging) -> Compiled:
        raise CompilerError("the plugin ended", fix="", died=died, exceeded=exceeded)

    (tmp_path / "model").write_text("model")
    engine: Any = ChangingEngine(tmp_path / "model")
    engine.compile, engine.explain = fail, lambda error, _log: NOT_LOWERED.find(str(error))
    spec = CaseSpec("net", Scheme.FP16, "SM8650")
    result = CompileJob(engine, spec, tmp_path / "cache", tmp_path / "log")()
    assert (result.refused, result.died, result.exceeded) == (refused, died, exceeded)


def test_lowering_without_the_cache_replaces_only_a_damaged_entry(
    tmp_path: Path,
) -> None:
    (tmp_path / "model").write_text("before")
    engine: Any = ChangingEngine(tmp_path / "model")
    engine.key = lambda spec: KEY
    write = engine.compile
    engine.compile = lambda *arguments: msgspec.structs.replace(write(*arguments), sets=0)
    entry, log = artifact_path(tmp_path / "cache", KEY), tmp_path / "case/lower.log"
    log.parent.mkdir()
    spec = CaseSpec("net", Scheme.FP16, "SM8650")

    def lower(*, use_cache: bool = True) -> tuple[Path, bool, bool]:
        compiled = CompileJob(engine, spec, tmp_path / "cache", log, use_cache=use_cache)()
        assert compiled.artifact
        assert read_artifact(Path(compiled.directory))
        return Path(compiled.directory), compiled.cached, compiled.repaired

    assert lower() == (entry, False, False)
    assert lower() == (entry, True, False)
    first = (entry / PROGRAM).stat().st_ino
    fresh, *flags = lower(use_cache=False)
    assert fresh.is_relative_to(log.parent)
    assert flags == [False, False]
    assert (entry / PROGRAM).stat().st_ino == first
    (entry / PROGRAM).write_bytes(b"rust")
    assert lower() == (entry, False, True)


def test_every_source_file_that_affects_a_program_is_in_its_cache_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only code that chooses among programs or judges them is left out."""
    hashed: list[Path] = []
    monkeypatch.setattr(cache, "digest_sources", lambda *paths: hashed.extend(paths) or "")
    rooms = ("models", "cases", "executorch", "onnx")
    cache.digest_rooms.__wrapped__(rooms)
    all_sources = {place for room in rooms for place in (ROOT / "ci" / room).iterdir()}
    imported = {
        name
        for path in all_sources & {*hashed}
        if path.suffix == ".py"
        for name in re.findall(
            r"^from (provisioning\.(?:elf|doctor)\S*) ", path.read_text(), re.MULTILINE
        )
    } - {"provisioning.doctor.facts", "provisioning.doctor.survey.python_probe"}  # the toolchain
    hashed_modules = {place.relative_to(ROOT).with_suffix("") for place in hashed}
    for name in imported:
        module = Path(*name.split("."))  # or an object of the module that is its parent
        assert hashed_modules & {module, module.parent}, name
    left = {place.relative_to(ROOT / "ci").as_posix() for place in all_sources - set(hashed)}
    assert {source for source in left if not source.endswith("__pycache__")} == {
        *("models/schemes.py", "models/suite", "onnx/fitting.py"),
        *("cases/baselines.py", "cases/costs.py", "cases/facts.py", "cases/judged.py"),
        *("cases/kept.py", "cases/lowering_findings.py", "cases/pipeline.py"),
        *("cases/reasons.py", "cases/row.py"),
        *("cases/policy.py", "cases/request.py", "cases/session.py", "cases/spec.py"),
    }


@pytest.mark.parametrize(
    ("room", "file"),
    [
        ("executorch", "ci/executorch/engine.py"),
        ("onnx", "ci/onnx/engine.py"),
        ("llm", "ci/llm/lowering.py"),
        ("litert", "ci/litert/engine.py"),
    ],
)
def test_the_key_of_a_program_covers_the_rooms_that_its_lowering_imports(
    room: str, file: str
) -> None:
    sources = (ROOT / "ci" / room).rglob("*.py")
    # A bundle of a language model is compiled already.
    lowering = [path for path in sources if not path.name.startswith(("bundle_", "genie_"))]
    text = "".join(path.read_text("utf-8") for path in lowering)
    imported = re.findall(r"^\s*from ci\.(\w+)", text, re.MULTILINE)
    digested = re.search(r"^ROOMS = \((.*)\)", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    assert digested
    assert {room, *imported} & LOWERING <= {*re.findall(r'"(\w+)"', digested[1])}
