"""Selection of cases, and the policy that judges them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec, default_soc, find_models, require_backend, select_cases
from ci.models.lowering_options import Choices, Part, RunOptions
from ci.models.schemes import EXECUTORCH, LITERT, ONNX, Mixture, Scheme, SchemeSet
from ci.models.user_models import ModelEntry, Source
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.targets import Backend

SOCS = ["SM8550", "SM8650", "SM8750"]
SUITE_SCHEMES = {"mlp": (Scheme.FP16, Scheme.A8W8), "resnet": (Scheme.FP16,)}


def test_the_default_is_the_suite_on_sm8650_after_the_models_of_a_policy() -> None:
    def select(**arguments: Any) -> list[tuple[str, str, str, str]]:
        cases = select_cases(SUITE_SCHEMES, SOCS, **arguments)
        return [(case.model, case.reference, case.scheme.value, case.soc) for case in cases]

    assert select() == [
        ("mlp", "mlp", "fp16", "SM8650"),
        ("mlp", "mlp", "8a8w", "SM8650"),
        ("resnet", "resnet", "fp16", "SM8650"),
    ]
    entries = {"net": ModelEntry("net.py:make"), "mlp": ModelEntry("mine.py:make")}
    assert select(entries=entries, schemes=["fp16"]) == [
        ("net", "net.py:make", "fp16", "SM8650"),
        ("mlp", "mine.py:make", "fp16", "SM8650"),
        ("resnet", "resnet", "fp16", "SM8650"),
    ]


def test_globs_and_repeats_select_each_case_once() -> None:
    cases = select_cases(
        SUITE_SCHEMES,
        SOCS,
        models=["mlp", "ml*"],
        schemes=["16a4w*", "16A4W"],
        soc_names=["sm8[57]50"],
    )
    assert cases == [
        CaseSpec("mlp", scheme, soc)
        for scheme in (Scheme.A16W4, Scheme.A16W4_BLOCK, Scheme.A16W4_TRAINED)
        for soc in ("SM8550", "SM8750")
    ]


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"soc_names": ["SM8655"]}, "the nearest is SM8650.*fix: "),
        ({"schemes": ["9w8a"]}, "no scheme '9w8a'.*fix: "),
        ({"schemes": ["8w8a"]}, "no scheme 8w8a.*fix: pass --scheme 8a8w"),
        ({"schemes": ["W4A16"]}, "no scheme W4A16.*fix: pass --scheme 16a4w"),
        ({"schemes": ["w8a8"], "lane": ONNX}, "no scheme w8a8.*fix: pass --scheme u8"),
        ({"schemes": ["a16_w8"], "lane": ONNX}, "no scheme a16_w8.*fix: pass --scheme u16a8w"),
        ({"schemes": ["int8"], "lane": LITERT}, "no scheme int8.*fix: pass --scheme fp16"),
        ({"schemes": ["float16"], "lane": LITERT}, "no scheme float16.*fix: pass --scheme fp16"),
        ({"models": ["resnett"]}, "no model 'resnett'\n  why: the nearest is resnet.*fix: "),
        ({"models": ["missing.py:make"]}, "is not a file.*fix: "),
        ({"models": ["net.py"]}, "has no function name.*net.py:factory"),
        ({"models": ["net.pt2"]}, "a file with a model.*a function that returns the module"),
        ({"models": ["net.py:"]}, "has no function name.*net.py:factory"),
        ({"models": ["net.py:factry"]}, "has no function 'factry'.*net.py:factory"),
        ({"models": ["net.py:make_model"]}, "has no function 'make_model'.*functions: factory$"),
        ({"models": ["net.py:only_used"]}, "has no function 'only_used'.*functions: factory$"),
        ({"models": ["a\nb/net.py:make"]}, "no model.*not UTF-8"),
        ({"models": ["\udcff/net.py:make"]}, "no model.*not UTF-8"),
    ],
)
def test_a_wrong_name_gives_the_nearest_and_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selection: dict[str, list[str]], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (".", "a\nb", "\udcff"):
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "net.py").write_text(FILE)
    Path("net.pt2").write_bytes(b"PK")
    suite = {} if "lane" in selection else SUITE_SCHEMES
    with pytest.raises(UsageError) as caught:
        select_cases(suite, SOCS, **selection)  # type: ignore[arg-type]
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)
    assert "factory_of_a_class" not in caught.value.fix
    assert "nets" not in caught.value.fix  # a module


FILE = """
from models import big as imported
import nets.small
assigned = lambda: only_used
if assigned:
    async def conditional(): ...
class Net:
    def factory_of_a_class(self): ...
def factory(): ...
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(
            (FILE, name)
            for name in ("imported", "nets", "assigned", "conditional", "Net", "factory")
        ),
        # What is known only after an import is checked when the case runs.
        *(
            (text, "made")
            for text in (
                *("from models import *", "def __getattr__(name): ..."),
                *("globals()['made'] = print", "def other(): ...\nexec('made = print')"),
                "import sys\nsys.modules[__name__].__dict__['made'] = print",
                "from own import add_functions\n@add_functions\ndef other(): ...",
                *("if print:\n    def made(): ...", "broken = (", "nul = '\0'"),
            )
        ),
    ],
)
def test_a_model_function_is_accepted_if_its_file_may_define_it(
    tmp_path: Path, text: str, name: str
) -> None:
    (tmp_path / "net.py").write_text(text)
    (case,) = select_cases({}, SOCS, models=[f"{tmp_path}/net.py:{name}"], schemes=["fp16"])
    assert case.reference == f"{tmp_path}/net.py:{name}"


def test_an_onnx_file_is_taken_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    file = tmp_path / "a:b" / "net.onnx"
    file.parent.mkdir()
    for path, word in ((file, str(file)), (file, "a:b/net.onnx"), (tmp_path / "net.onnx",) * 2):
        path.touch()
        assert find_models(str(word), {}) == {
            path.relative_to(tmp_path).as_posix(): ModelEntry(str(path))
        }


@pytest.mark.parametrize(
    ("words", "selected"),
    [
        (["nets"], ["nets/a.onnx", "nets/b.onnx"]),
        (["nets/"], ["nets/a.onnx", "nets/b.onnx"]),
        (["nets/b*.onnx"], ["nets/b.onnx"]),
        (["nets/**/*.onnx"], ["nets/a.onnx", "nets/b.onnx", "nets/deep/[c].onnx"]),
        (["nets/deep/[c].onnx"], ["nets/deep/[c].onnx"]),  # a file of this name is no glob
        (["nets", "nets/a.onnx"], ["nets/a.onnx", "nets/b.onnx"]),
        (["mlp"], ["mlp"]),  # a model's name comes before a folder's
    ],
)
def test_a_folder_or_a_glob_selects_the_files_of_the_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], selected: list[str]
) -> None:
    make_folders(tmp_path, monkeypatch)
    cases = select_cases(SUITE_SCHEMES, SOCS, models=words, schemes=["fp16"], lane=ONNX)
    assert [case.model for case in cases] == selected


@pytest.mark.parametrize(
    ("word", "lane", "problem", "fix"),
    [
        ("nets/a.npz", ONNX, "nets/a.npz is neither Python nor", "net.py:factory"),
        ("nets/a.npz/b", ONNX, "there is no ", "correct the path"),
        ("a" * 300 + "/b", ONNX, "there is no ", "correct the path"),
        ("Nets/Deep", ONNX, "there is no ", "correct the path"),
        ("*/mlp", EXECUTORCH, "there is no ", "correct the path"),
        ("nets/*.tflite", LITERT, "no file matches", "correct the path"),
        ("nets", LITERT, "the folder nets has no .tflite file", "`qnn-ci test-onnx --model nets`"),
        ("mlp", LITERT, "the folder mlp has no .tflite file", "'mlp/**/*.tflite'"),
        ("nets/*.onnx", LITERT, "is an .onnx file", "`qnn-ci test-onnx --model nets/a.onnx`"),
        ("nets", EXECUTORCH, "nets is a directory", "nets/net.py:factory"),
        (".", EXECUTORCH, "no model '.'", "./net.py:factory"),
        ("own.net:make", EXECUTORCH, "there is no ", "did you mean own/net.py:make?"),
        ("own/net:", EXECUTORCH, "there is no ", "did you mean own/net.py:factory?"),
        ("gone:make", EXECUTORCH, "gone is not a file", "correct the path"),
        (
            "own/w.pt",
            EXECUTORCH,
            "own/w.pt is a file with a model",
            "with its weights, and its inputs",
        ),
        ("own/p.pte", EXECUTORCH, "it is lowered already", "`qnn-ci inspect own/p.pte` shows"),
        ("nets/deep/", EXECUTORCH, "no model 'nets/deep/'", "nets/deep/net.py:factory"),
        ("../gone/nets", LITERT, "no model '../gone/nets'", "correct the path"),
    ],
)
def test_a_folder_or_a_glob_without_files_of_the_lane_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    lane: SchemeSet,
    problem: str,
    fix: str,
) -> None:
    make_folders(tmp_path, monkeypatch)
    with pytest.raises(UsageError) as raised:
        select_cases({}, SOCS, models=[word], lane=lane)
    assert problem in f"{raised.value.what}\n{raised.value.why}"
    assert fix in raised.value.fix


def make_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    of_nets = ("nets/a.onnx", "nets/b.onnx", "nets/a.npz", "nets/deep/[c].onnx")
    for name in (*of_nets, "mlp/a.npz", "own/net.py", "own/w.pt", "own/p.pte"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_case_has_a_reference_and_a_name_for_its_files() -> None:
    suite = CaseSpec("mlp", Scheme.FP16, "SM8650")
    assert (suite.reference, suite.is_file, suite.slug) == ("mlp", False, "mlp-fp16-SM8650")
    digest = hashlib.sha256(b"nets/net.py:make").hexdigest()[:8]
    user_case = CaseSpec("nets/net.py:make", Scheme.A8W8, "SM8750", Source("/nets/net.py:make"))
    assert (user_case.reference, user_case.is_file) == ("/nets/net.py:make", False)
    assert user_case.slug == f"nets-net-make-{digest}-8a8w-SM8750"
    long = CaseSpec(f"{'é' * 40}/model.onnx", Scheme.U8, "SM8650", Source("/a/model.onnx"))
    assert len(long.slug) == 32 + len("-12345678-u8-SM8650")
    assert long.slug.startswith("é")
    assert CaseSpec("net", Scheme.U8, "SM8750", Source("/nets/net.onnx")).is_file


def test_a_model_in_a_repository_is_called_by_its_path_in_it_wherever_the_caller_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repository in ("mine", "other"):
        (tmp_path / repository / ".git").mkdir(parents=True)
        (tmp_path / repository / "nets").mkdir()
        (tmp_path / repository / "nets" / "net.py").write_text("def make(): ...")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path / "mine/nets"))
    words = ["net.py:make", "../nets/net.py:make", str(tmp_path / "mine/nets/net.py:make")]
    (case,) = select_cases(SUITE_SCHEMES, SOCS, models=words, schemes=["8a8w"])
    assert (case.model, case.source.reference) == ("nets/net.py:make", words[2])
    words = ["net.py:make", "../../other/nets/net.py:make"]
    two_nets = select_cases(SUITE_SCHEMES, SOCS, models=words, schemes=["8a8w"])
    names = ["nets/net.py:make", f"{tmp_path}/other/nets/net.py:make"]
    assert [net.model for net in two_nets] == names
    assert len({net.slug for net in two_nets}) == 2
    (quantized_case,) = select_cases(SUITE_SCHEMES, SOCS, models=words[1:], schemes=["8a8w"])
    # Its path in the other repository leads nowhere from here.
    assert quantized_case.model == names[1]


def test_override_applies_to_its_model_and_scheme_only_and_needs_a_reason(tmp_path: Path) -> None:
    text = (
        "[reference]\nmin_rms = 0.1\nmin_spread = 0.1\n"
        "[schemes.fp16]\nmin_sqnr_db = 40\nmin_cosine = 0.9\n[schemes.8a8w]\nmin_sqnr_db = 20\n"
        '[[override]]\nmodel = "mlp"\nscheme = "fp16"\n{}'
        "[override.limits]\nmin_sqnr_db = 30\n"
    )
    file = tmp_path / "mine.toml"
    file.write_text(text.format('reason = "a short accumulator"\n'))
    policy = read_emulator_policy(file)
    limits = policy.limits_of("mlp", Scheme.FP16)
    assert (limits.model, limits.min_sqnr_db, limits.reason) == ("mlp", 30, "a short accumulator")
    assert limits.min_cosine is None
    softmax_in_fp16 = Mixture("softmax-in-fp16", Scheme.A8W8)  # an experiment of the diagnosis
    for model, scheme, db in (
        ("mlp", Scheme.A8W8, 20),
        ("mlp", softmax_in_fp16, 20),
        ("resnet", Scheme.FP16, 40),
    ):
        limits = policy.limits_of(model, scheme)
        assert (limits.model, limits.scheme, limits.min_sqnr_db) == ("*", scheme.value, db)
    file.write_text(text.format(""))
    with pytest.raises(ManifestError, match="reason"):
        read_emulator_policy(file)


def test_every_case_must_support_the_backend_and_the_fix_names_socs_that_do() -> None:
    good = CaseSpec("good", Scheme.A8W8, default_soc(Backend.LPAI))
    on_gpu = CaseSpec("other", Scheme.A8W8, default_soc(Backend.GPU))
    asks = replace(good, model="asks", source=Source(choices=Choices(saver=True)))
    require_backend([good, on_gpu], Backend.GPU)
    require_backend([good, asks], Backend.HTP)
    with pytest.raises(UsageError, match="SM8650 has no LPAI block") as caught:
        require_backend([good, on_gpu], Backend.LPAI)
    _, _, able = caught.value.fix.partition("use --soc with one of: ")
    require_backend([CaseSpec("m", Scheme.A8W8, soc) for soc in able.split(", ")], Backend.LPAI)
    with pytest.raises(UsageError, match=r"models\.asks\.lowering .*: saver(.|\n)*--model"):
        require_backend([good, asks], Backend.LPAI)


def test_options_that_a_lane_or_a_scheme_does_not_have_are_refused() -> None:
    plain = ModelEntry("net.onnx")
    blocks = ModelEntry("mlp", (Scheme.FP16,), lowering=Choices(block_size=32))
    saver = ModelEntry("net.onnx", lowering=Choices(saver=True))
    factory = ModelEntry("net.py:make", lowering=Choices(saver=True))
    runs = ModelEntry("net.onnx", run=RunOptions(warm_up=1))
    averaged = ModelEntry("net.onnx", (Scheme.FP16,), lowering=Choices(observer="moving_average"))
    other_lane = ModelEntry("net.tflite", lowering=Choices(observer="moving_average"))
    for entry, lane, words in (
        (blocks, EXECUTORCH, r"models\.own\.lowering: block_size .* fp16"),
        (saver, ONNX, r"models\.own\.lowering has options.*remove them"),
        (factory, ONNX, r"models\.own\.lowering has options.*`qnn-ci test-emulator`"),
        (averaged, ONNX, r"models\.own\.lowering: observer cannot be used with fp16"),
        (other_lane, LITERT, r"models\.own\.lowering has options.*remove them"),
        (runs, ONNX, r"models\.own\.run has options.*remove them"),
        (plain, EXECUTORCH, r"own is an .onnx file.*`qnn-ci test-onnx --model own`"),
    ):
        good = ModelEntry("mlp", (Scheme.FP16,)) if lane is EXECUTORCH else plain
        with pytest.raises(UsageError) as caught:
            select_cases({}, SOCS, entries={"good": good, "own": entry}, lane=lane)
        assert re.search(words, str(caught.value), re.DOTALL)


def test_test_onnx_accepts_the_options_that_mend_writes_for_a_file() -> None:
    choices = Choices(parts=(Part(Scheme.U16A8W, tensor="y"),), observer="moving_average")
    entries = {"own": ModelEntry("net.onnx", (Scheme.U8,), lowering=choices)}
    (case,) = select_cases({}, SOCS, entries=entries, lane=ONNX)
    assert (case.source.choices, case.scheme) == (choices, Scheme.U8)


def test_the_command_line_overrides_the_policy_entry_which_overrides_the_default() -> None:
    entry = ModelEntry("mlp", (Scheme.A16W8,), ("SM8550", "SM87*"))
    bare = ModelEntry("mlp")
    entries = {"own": entry, "bare": bare}

    def select(**arguments: list[str]) -> list[tuple[str, str, str]]:
        cases = select_cases({}, SOCS, entries=entries, default_soc="SM8650", **arguments)
        return [(case.model, case.scheme.value, case.soc) for case in cases]

    usual = [("bare", scheme.value, "SM8650") for scheme in EXECUTORCH.default]
    assert select() == [("own", "16a8w", "SM8550"), ("own", "16a8w", "SM8750"), *usual]
    assert select(schemes=["fp16"], models=["own"]) == [
        ("own", "fp16", "SM8550"),
        ("own", "fp16", "SM8750"),
    ]
    assert select(soc_names=["SM8650"], models=["own"]) == [("own", "16a8w", "SM8650")]
