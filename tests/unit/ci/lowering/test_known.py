from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ci.cases import memo as known
from ci.cases.artifact import (
    FLOAT,
    PROGRAM,
    Delegation,
    Lowered,
    TensorInfo,
    artifact_path,
    hash_files,
    write_record,
    write_sets,
)
from ci.cases.engine import LowerJob, LowerResult
from ci.cases.memo import (
    KNOWN,
    hash_words,
    job_path,
    name_origin,
    recall_lowering,
    remember_lowering,
    seem_known,
)
from ci.cases.pipeline import SessionOptions, programs_home
from ci.cases.policy import read_emulator_policy
from ci.cases.session import choose_imports
from ci.cases.spec import CaseSpec
from ci.models.degenerate import ReferencePolicy
from ci.models.lowering_options import Choices
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx.job import CompileJob
from provisioning.manifest.backends import Backend

KEY, OTHER_KEY = "01" * 32, "23" * 32
SETS = [[np.arange(4, dtype="float32") + number, np.array([True, False])] for number in range(4)]


@pytest.fixture
def job(tmp_path: Path) -> LowerJob:
    policy = ReferencePolicy(min_rms=0.1, min_spread=0.01)
    return LowerJob(
        "mlp", Scheme.FP16, "SM8650", str(tmp_path), ("torch 2",), "log", reference=policy
    )


def make_result(job: LowerJob, key: str = KEY) -> LowerResult:
    """A program in the cache, as if it had just been lowered for the job."""
    directory = artifact_path(Path(job.cache), key)
    write_sets(directory / FLOAT, SETS)
    (directory / PROGRAM).write_bytes(b"good")
    lowered = Lowered(
        key=key,
        model=job.model,
        scheme=job.scheme.value,
        soc=job.soc,
        sets=4,
        inputs=(),
        outputs=(TensorInfo("float32", (4,)), TensorInfo("bool", (2,))),
        delegation=Delegation(3, 0, 1),
        lower_s=1.5,
        pte_bytes=4,
        files=hash_files(directory),
    )
    write_record(directory, lowered)
    return LowerResult(str(directory), lowered, stages={"QNN": 1.0})


def test_what_was_lowered_for_a_model_of_the_suite_is_recalled(job: LowerJob) -> None:
    assert recall_lowering(job) is None
    made = make_result(job)
    remember_lowering(job, made)
    found = recall_lowering(job)
    assert found
    assert found.lowered
    assert (found.directory, found.cached, found.repaired) == (made.directory, True, False)
    assert msgspec.structs.replace(found.lowered, digest="") == made.lowered


@pytest.mark.parametrize(
    "change",
    [
        {"use_cache": False},
        {"model": "/my/net.py:factory"},
        {"source": Source("mlp", inputs="/my/inputs.npz")},
        {"source": Source("mlp", calibration="/my/data.py:draw")},
        {"source": Source("mlp", choices=Choices(annotation="/my/net.py:annotate"))},
        {"source": Source("mlp", choices=Choices(recipe="/my/net.py:make_recipe"))},
    ],
)
def test_with_anything_of_the_users_nothing_is_remembered_or_recalled(
    job: LowerJob, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = msgspec.structs.replace(job, **change)
    made = make_result(asked)
    remember_lowering(asked, made)
    assert not (Path(job.cache) / KNOWN).exists()
    job_path(asked).parent.mkdir(parents=True)
    job_path(asked).write_text(KEY)
    assert recall_lowering(asked) is None


def test_a_job_that_no_text_can_hold_is_as_ever(job: LowerJob) -> None:
    options = {"backend_path": os.fsdecode(b"\xff/libQnnHtp.so")}
    odd = CompileJob(**msgspec.structs.asdict(job), options=options)
    remember_lowering(odd, make_result(odd))
    assert recall_lowering(odd) is None
    assert not seem_known(
        [CaseSpec(os.fsdecode(b"mlp:\xff"), odd.scheme, odd.soc)], LowerJob, Path()
    )


def test_a_program_that_another_name_of_the_model_came_to_is_not_remembered(job: LowerJob) -> None:
    made = make_result(msgspec.structs.replace(job, model="mlp:make_case"))
    remember_lowering(job, made)
    assert not (Path(job.cache) / KNOWN).exists()


def test_a_refusal_is_not_remembered(job: LowerJob) -> None:
    remember_lowering(job, LowerResult(refused="QNN took no node"))
    assert not (Path(job.cache) / KNOWN).exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        KEY[:-1].encode(),
        OTHER_KEY.encode(),
        b"../../01/" + KEY.encode(),
        b"\xff" * 64,
        b"\0" * 64,
        b"0" * 100_000,
    ],
)
def test_what_is_damaged_is_not_recalled_and_written_again(job: LowerJob, content: bytes) -> None:
    made = make_result(job)
    make_result(msgspec.structs.replace(job, scheme=Scheme.A8W8), OTHER_KEY)
    remember_lowering(job, made)
    job_path(job).write_bytes(content)
    assert recall_lowering(job) is None
    remember_lowering(job, made)
    assert recall_lowering(job)


@pytest.mark.parametrize("name", [PROGRAM, f"{FLOAT}/2_0.raw", "lowered.json"])
def test_a_damaged_program_is_not_recalled(job: LowerJob, name: str) -> None:
    made = make_result(job)
    remember_lowering(job, made)
    path = Path(made.directory, name)
    path.write_bytes(path.read_bytes()[:-1])
    assert recall_lowering(job) is None


def test_no_pipe_is_waited_for(job: LowerJob) -> None:
    made = make_result(job)
    remember_lowering(job, made)
    for path in (job_path(job), Path(made.directory, "lowered.json")):
        kept = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        assert recall_lowering(job) is None
        path.unlink()
        path.write_bytes(kept)
    assert recall_lowering(job)


def test_references_are_judged_by_the_policy_of_the_run(job: LowerJob) -> None:
    remember_lowering(job, make_result(job))
    for policy, proves in (
        (ReferencePolicy(min_rms=2.0, min_spread=0.01), True),
        (ReferencePolicy(min_rms=9.0, min_spread=0.01), False),
        (None, True),
    ):
        again = msgspec.structs.replace(job, reference=policy)
        assert bool(recall_lowering(again)) is proves


def test_a_cache_that_cannot_be_written_is_left_alone(job: LowerJob) -> None:
    made = make_result(job)
    (Path(job.cache) / KNOWN).write_text("a file in its place")
    remember_lowering(job, made)
    assert recall_lowering(job) is None


def test_all_of_a_job_but_its_places_tells_it_from_others(job: LowerJob) -> None:
    compiling = CompileJob(**msgspec.structs.asdict(job))
    different = [
        msgspec.structs.replace(job, model="mlp:make_row"),
        msgspec.structs.replace(job, scheme=Scheme.A8W8),
        msgspec.structs.replace(job, soc="SM8750"),
        msgspec.structs.replace(job, toolchain=("torch 3",)),
        msgspec.structs.replace(job, backend=Backend.LPAI),
        msgspec.structs.replace(job, source=Source("mlp", choices=Choices(shared_buffer=True))),
        compiling,
        msgspec.structs.replace(compiling, embed=False),
        msgspec.structs.replace(compiling, options={"vtcm_mb": "4"}),
    ]
    assert len({job_path(one) for one in (job, *different)}) == len(different) + 1
    same = msgspec.structs.replace(job, log="other", reference=None)
    assert job_path(same) == job_path(job)


def make_code(root: Path) -> None:
    names = ("torch/__init__.py", "torch/export/__init__.py", "torch/lib.so.1")
    own = ("ci/cases/memo.py", "ci/models/suite/mlp.py", "ci/onnx/case.py")
    for path in (root / name for name in (*names, *own)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def use_code(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.delitem(sys.modules, "torch", raising=False)
    patch.syspath_prepend(root)
    patch.setattr(known, "__file__", str(root / "ci/cases/memo.py"))


def set_variable(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("MKL_CBWR", os.fsdecode(b"\xff"))


def change_torch(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch/export/__init__.py").write_text("changed = True")


def change_library(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch/lib.so.1").write_bytes(b"another")


def change_processor(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(known, "describe_processor", lambda: ["flags: sse"])


def change_source(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ci/models/suite/mlp.py").write_text("layers = 4")


def change_source_in_its_place(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    """As a tool does that keeps times."""
    path = tmp_path / "ci/onnx/case.py"
    before = path.stat()
    path.write_text("x = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_and_undo(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    """A process that began before may have loaded the edit, and remembers it of what was before."""
    (tmp_path / "ci/models/suite/mlp.py").write_text("x = 1\n")


def move(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()


@pytest.mark.parametrize(
    "change",
    [
        set_variable,
        change_torch,
        change_library,
        change_processor,
        change_source,
        change_source_in_its_place,
        edit_and_undo,
        move,
    ],
)
def test_what_decides_about_a_model_decides_what_is_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    make_code(tmp_path)
    use_code(tmp_path, monkeypatch)
    before = name_origin.__wrapped__()
    monkeypatch.setenv("UNHEARD_OF", "1")
    assert name_origin.__wrapped__() == before
    change(tmp_path, monkeypatch)
    assert name_origin.__wrapped__() != before


def test_a_word_ends_where_it_ends() -> None:
    assert len({hash_words(words) for words in (["ab", "c"], ["a", "bc"], ["abc"])}) == 3


def test_a_copy_elsewhere_has_the_same_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origins = set()
    make_code(tmp_path / "one")
    (tmp_path / "one/.git").mkdir()
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    for name in ("one", "other"):
        use_code(tmp_path / name, monkeypatch)
        origins.add(name_origin.__wrapped__())
    assert len(origins) == 1
    installed = tmp_path / "site-packages"
    shutil.copytree(tmp_path / "one", installed)
    use_code(installed, monkeypatch)
    assert name_origin.__wrapped__() not in origins


def test_all_seems_known_where_something_was_remembered_of_each_case(
    job: LowerJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Path(job.cache)
    suite = CaseSpec("mlp", Scheme.FP16, "SM8650")
    alias = CaseSpec("net", Scheme.FP16, "SM8650", Source("mlp"))
    others = [
        CaseSpec("mlp", Scheme.A8W8, "SM8650"),
        CaseSpec("mlp", Scheme.FP16, "SM8750"),
        CaseSpec("lstm", Scheme.FP16, "SM8650"),
        CaseSpec("mlp", Scheme.FP16, "SM8650", Source("/my/net.py:factory")),
        CaseSpec("mlp", Scheme.FP16, "SM8650", Source("mlp", inputs="/my/inputs.npz")),
    ]
    assert not seem_known([suite], LowerJob, cache)
    remember_lowering(job, make_result(job))
    assert seem_known([suite, alias], LowerJob, cache)
    assert not seem_known([suite], CompileJob, cache)
    assert not any(seem_known([suite, other], LowerJob, cache) for other in others)
    monkeypatch.setattr(known, "name_origin", lambda: "another")
    assert not seem_known([suite], LowerJob, cache)


def test_what_makes_programs_is_imported_for_all_unless_they_seem_to_be_there(
    job: LowerJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [CaseSpec("mlp", Scheme.FP16, "SM8650")]
    options = SessionOptions(policy=read_emulator_policy(), timeout_s=1.0)
    monkeypatch.setenv("QNN_CI_HOME", str(Path(job.cache) / "home"))
    cached = msgspec.structs.replace(job, cache=str(programs_home()))

    def choose(options: SessionOptions) -> tuple[str, ...]:
        return choose_imports(specs, options, LowerJob, ("running",), ("making",))

    assert choose(options) == ("running", "making")
    remember_lowering(cached, make_result(cached))
    assert choose(options) == ("running",)
    assert choose(replace(options, use_cache=False)) == ("running", "making")
