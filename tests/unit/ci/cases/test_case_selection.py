"""Selection of cases, and the policy that judges them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ci.cases.policy import read_emulator_policy
from ci.cases.spec import (
    LPAI_SOC,
    CaseSpec,
    default_soc,
    find_models,
    require_backend,
    select_cases,
)
from ci.models.lowering_options import Choices, RunOptions
from ci.models.schemes import EXECUTORCH, ONNX, Lane, Scheme
from ci.models.suite import SUITE
from ci.models.user_models import ModelEntry, Source
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.targets import Backend

SOCS = ["SM8550", "SM8650", "SM8750"]
SUITE_SCHEMES = {"mlp": (Scheme.FP16, Scheme.A8W8), "resnet": (Scheme.FP16,)}


def test_the_default_is_the_suite_on_sm8650() -> None:
    cases = select_cases(SUITE_SCHEMES, SOCS)
    assert [(case.model, case.scheme.value, case.soc) for case in cases] == [
        ("mlp", "fp16", "SM8650"),
        ("mlp", "8a8w", "SM8650"),
        ("resnet", "fp16", "SM8650"),
    ]


@pytest.mark.parametrize(
    ("file", "lane", "schemes"),
    [
        ("net.py:make", EXECUTORCH, ["fp16", "8a8w", "16a8w"]),
        ("net.onnx", ONNX, ["fp16", "u8", "u16a8w"]),
    ],
)
def test_a_model_of_ones_own_is_tested_in_the_schemes_that_the_manual_names(
    file: str, lane: Lane, schemes: list[str]
) -> None:
    cases = select_cases(SUITE_SCHEMES, SOCS, entries={"net": ModelEntry(file)}, lane=lane)
    chosen = [case.scheme.value for case in cases if case.model == "net"]
    assert chosen == schemes


def test_models_of_a_policy_come_first_and_replace_those_of_the_suite() -> None:
    own = {"net": ModelEntry("net.py:make"), "mlp": ModelEntry("mine.py:make")}
    cases = select_cases(SUITE_SCHEMES, SOCS, entries=own, schemes=["fp16"])
    assert [(case.model, case.reference) for case in cases] == [
        ("net", "net.py:make"),
        ("mlp", "mine.py:make"),
        ("resnet", "resnet"),
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
        ({"soc_names": ["SM8655"]}, "the nearest is SM8650"),
        ({"schemes": ["8w8a"]}, "no scheme '8w8a'"),
        ({"models": ["resnett"]}, "no model 'resnett'\n  why: the nearest is resnet"),
        ({"models": ["missing.py:make"]}, "is not a file"),
        ({"models": ["net.py"]}, "no function name"),
    ],
)
def test_a_wrong_name_gives_the_nearest_and_the_list(
    selection: dict[str, list[str]], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select_cases(SUITE_SCHEMES, SOCS, **selection)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert caught.value.fix


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


@pytest.mark.parametrize("name", ["imported", "nets", "assigned", "conditional", "Net", "factory"])
def test_a_function_that_a_file_defines_or_imports_is_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / "net.py").write_text(FILE)
    (case,) = select_cases({}, SOCS, models=[f"{tmp_path}/net.py:{name}"], schemes=["fp16"])
    assert case.reference == f"{tmp_path}/net.py:{name}"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("factry", "net.py:factory"), ("make_model", "functions: Net"), ("only_used", "Net")],
)
def test_a_function_that_a_file_lacks_is_refused_with_the_nearest(
    tmp_path: Path, name: str, nearest: str
) -> None:
    (tmp_path / "net.py").write_text(FILE)
    with pytest.raises(UsageError, match=f"has no function '{name}'") as caught:
        select_cases({}, SOCS, models=[f"{tmp_path}/net.py:{name}"])
    assert nearest in caught.value.fix
    assert "factory_of_a_class" not in caught.value.fix


@pytest.mark.parametrize("colon", ["", ":"])
def test_a_file_without_a_functions_name_is_refused_with_one(tmp_path: Path, colon: str) -> None:
    (tmp_path / "net.py").write_text(FILE)
    with pytest.raises(UsageError, match="has no function name") as caught:
        select_cases({}, SOCS, models=[f"{tmp_path}/net.py{colon}"])
    assert caught.value.fix.endswith("net.py:factory")


@pytest.mark.parametrize(
    "text",
    [
        "from models import *",
        "def __getattr__(name): ...",
        "globals()['made'] = print",
        "exec('made = print')",
        "def other(): ...\nexec('made = print')",
        "eval('print')",
        "locals()['made'] = print",
        "vars()['made'] = print",
        "setattr(module, 'made', print)",
        "import sys\nsys.modules[__name__].__dict__['made'] = print",
        "from own import add_functions\nadd_functions()",
        "from own import add_functions\n@add_functions\ndef other(): ...",
        "made = print",
        "if print:\n    def made(): ...",
        "broken = (",
        "nul = '\0'",
    ],
)
def test_what_only_an_import_can_tell_is_left_to_the_case(tmp_path: Path, text: str) -> None:
    (tmp_path / "net.py").write_text(text)
    assert select_cases({}, SOCS, models=[f"{tmp_path}/net.py:made"], schemes=["fp16"])


def test_an_onnx_file_is_taken_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    file = tmp_path / "a:b" / "net.onnx"
    file.parent.mkdir()
    for path, word in ((file, str(file)), (file, "a:b/net.onnx"), (tmp_path / "net.onnx",) * 2):
        path.touch()
        assert find_models(str(word), {}) == {
            path.relative_to(tmp_path).as_posix(): ModelEntry(str(path))
        }


def test_a_case_has_a_reference_and_a_name_for_its_files() -> None:
    suite = CaseSpec("mlp", Scheme.FP16, "SM8650")
    assert (suite.reference, suite.is_file, suite.slug) == ("mlp", False, "mlp-fp16-SM8650")
    digest = hashlib.sha256(b"nets/net.py:make").hexdigest()[:8]
    own = CaseSpec("nets/net.py:make", Scheme.A8W8, "SM8750", Source("/nets/net.py:make"))
    assert (own.reference, own.is_file) == ("/nets/net.py:make", False)
    assert own.slug == f"nets-net-make-{digest}-8a8w-SM8750"
    long = CaseSpec(f"{'é' * 40}/model.onnx", Scheme.U8, "SM8650", Source("/a/model.onnx"))
    assert len(long.slug) == 32 + len("-12345678-u8-SM8650")
    assert long.slug.startswith("é")
    assert CaseSpec("net", Scheme.U8, "SM8750", Source("/nets/net.onnx")).is_file


def test_the_default_soc_has_the_hardware_of_the_backend() -> None:
    assert [default_soc(one) for one in (Backend.HTP, Backend.GPU)] == ["SM8650", "SM8650"]
    assert default_soc(Backend.LPAI) == LPAI_SOC == "SM8850"


def test_a_users_model_may_be_relative_to_where_nox_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("def make(): ...")
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    (case,) = select_cases(SUITE_SCHEMES, SOCS, models=["net.py:make"], schemes=["8a8w"])
    assert case.model == "net.py:make"
    assert case.source.reference == f"{tmp_path / 'net.py'}:make"


def test_a_model_in_a_repository_is_called_by_its_path_in_it_wherever_the_caller_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repository in ("mine", "other"):
        (tmp_path / repository / ".git").mkdir(parents=True)
        (tmp_path / repository / "nets").mkdir()
        (tmp_path / repository / "nets" / "net.py").write_text("def make(): ...")
    monkeypatch.chdir(tmp_path / "mine" / "nets")
    words = ["net.py:make", "../nets/net.py:make", str(tmp_path / "mine/nets/net.py:make")]
    (case,) = select_cases(SUITE_SCHEMES, SOCS, models=words, schemes=["8a8w"])
    assert case.model == "nets/net.py:make"
    words = ["net.py:make", "../../other/nets/net.py:make"]
    two = select_cases(SUITE_SCHEMES, SOCS, models=words, schemes=["8a8w"])
    assert [one.model for one in two] == ["nets/net.py:make", f"{tmp_path}/other/nets/net.py:make"]
    assert len({one.slug for one in two}) == 2


@pytest.mark.parametrize("folder", ["\udcff", "a\nb"])
def test_a_users_model_whose_path_no_report_can_hold_is_refused(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir()
    file = tmp_path / folder / "net.py"
    file.write_text("")
    with pytest.raises(UsageError, match="no model") as caught:
        select_cases(SUITE_SCHEMES, SOCS, models=[f"{file}:make"])
    assert "not UTF-8" in caught.value.why


def test_the_default_suite_is_large_enough() -> None:
    policy = read_emulator_policy()
    cases = select_cases(policy.suite, SOCS)
    assert len(cases) >= 20
    assert set(policy.suite) == set(SUITE)
    assert len({case.scheme for case in cases}) >= 5


def test_an_override_of_a_model_and_scheme_is_for_them_alone_and_needs_a_reason(
    tmp_path: Path,
) -> None:
    text = (
        "[reference]\nmin_rms = 0.1\nmin_spread = 0.1\n"
        "[schemes.fp16]\nmin_sqnr_db = 40\nmin_cosine = 0.9\n[schemes.8a8w]\nmin_sqnr_db = 20\n"
        '[[override]]\nmodel = "mlp"\nscheme = "fp16"\n{}'
        "[override.limits]\nmin_sqnr_db = 30\n"
    )
    file = tmp_path / "mine.toml"
    file.write_text(text.format('reason = "a short accumulator"\n'))
    policy = read_emulator_policy(file)
    own = policy.limits_of("mlp", Scheme.FP16)
    assert (own.model, own.min_sqnr_db, own.reason) == ("mlp", 30, "a short accumulator")
    assert own.min_cosine is None
    for model, scheme, db in (("mlp", Scheme.A8W8, 20), ("resnet", Scheme.FP16, 40)):
        other = policy.limits_of(model, scheme)
        assert (other.model, other.scheme, other.min_sqnr_db) == ("*", scheme.value, db)
    file.write_text(text.format(""))
    with pytest.raises(ManifestError, match="reason"):
        read_emulator_policy(file)


def test_the_options_of_each_model_are_checked() -> None:
    entries = {
        name: ModelEntry("mlp", (Scheme.FP16,), lowering=Choices(block_size=size))
        for name, size in (("good", 0), ("bad", 32))
    }
    for names in (("good", "bad"), ("bad", "good")):
        with pytest.raises(UsageError, match=r"models\.bad\.lowering: block_size .* fp16"):
            select_cases({}, SOCS, entries={name: entries[name] for name in names})


def test_a_backend_is_required_of_each_case_and_the_fix_names_what_has_it() -> None:
    good = CaseSpec("good", Scheme.A8W8, LPAI_SOC)
    other = CaseSpec("other", Scheme.A8W8, "SM8650")
    saver = Source(choices=Choices(saver=True, online_prepare=True))
    asks = CaseSpec("asks", Scheme.A8W8, LPAI_SOC, saver)
    for specs in ((good, other), (other, good)):
        with pytest.raises(UsageError, match="SM8650 has no LPAI block") as caught:
            require_backend(specs, Backend.LPAI)
        head, _, able = caught.value.fix.partition("--soc with one of: ")
        assert head == "use "
        assert able.split(", ") == sorted(able.split(", "))
        require_backend([CaseSpec("m", Scheme.A8W8, soc) for soc in able.split(", ")], Backend.LPAI)
        require_backend(specs, Backend.GPU)
    for specs in ((good, asks), (asks, good)):
        with pytest.raises(
            UsageError, match=r"models\.asks\.lowering .*: online_prepare, saver"
        ) as caught:
            require_backend(specs, Backend.LPAI)
        assert "--model" in caught.value.fix
        require_backend(specs, Backend.HTP)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        (ModelEntry("net.onnx", lowering=Choices(saver=True)), "lowering"),
        (ModelEntry("net.onnx", run=RunOptions(warm_up=1)), "run"),
    ],
)
def test_options_that_only_executorch_has_are_refused_in_the_other_lane(
    entry: ModelEntry, key: str
) -> None:
    entries = {"plain": ModelEntry("net.onnx"), "own": entry}
    with pytest.raises(UsageError, match=rf"models\.own\.{key} has options") as caught:
        select_cases({}, SOCS, entries=entries, lane=ONNX)
    assert "`qnn-ci test-emulator`" in caught.value.fix
    with pytest.raises(UsageError, match=r"net\.onnx|plain is an .onnx file") as caught:
        select_cases({}, SOCS, entries={"mlp2": ModelEntry("mlp"), "plain": entries["plain"]})
    assert "`qnn-ci test-onnx`" in caught.value.fix


def test_what_is_asked_for_goes_before_the_entry_and_that_before_the_default() -> None:
    entry = ModelEntry("mlp", (Scheme.A16W8, Scheme.U8), ("SM8550", "SM87*"))
    bare = ModelEntry("mlp", (Scheme.U8,))  # a scheme of the other lane alone
    entries = {"own": entry, "bare": bare}

    def select(**given: list[str]) -> list[tuple[str, str, str]]:
        cases = select_cases({}, SOCS, entries=entries, default_soc="SM8650", **given)
        return [(one.model, one.scheme.value, one.soc) for one in cases]

    usual = [("bare", one.value, "SM8650") for one in EXECUTORCH.default]
    assert select() == [("own", "16a8w", "SM8550"), ("own", "16a8w", "SM8750"), *usual]
    assert select(schemes=["fp16"], models=["own"]) == [
        ("own", "fp16", "SM8550"),
        ("own", "fp16", "SM8750"),
    ]
    assert select(soc_names=["SM8650"], models=["own"]) == [("own", "16a8w", "SM8650")]
