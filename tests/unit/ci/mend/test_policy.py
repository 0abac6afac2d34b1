"""What mend writes: the policy, its functions, the user's policy edited in place, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ci.cases.spec import CaseSpec
from ci.facts.finding import Advice, Cause, Certainty, Place, Proof, Remedy
from ci.facts.kinds import (
    INVALID,
    NO_OUTPUTS,
    NOISE,
    NOT_LOWERED,
    ON_CPU,
    QUANTIZED_BADLY,
    UNRECORDED,
)
from ci.judging.causes import NOT_TRIED
from ci.mend.mending import Mended
from ci.mend.offers import suggest_mending
from ci.mend.policy import (
    Written,
    check_editable,
    list_factories,
    plan_entries,
    read_tables,
    write_toml,
)
from ci.mend.report import choose_exit, describe_case, make_document
from ci.mend.search import Recipe, Search, Step
from ci.mend.source import Factory, make_source, read_source
from ci.mend.trials import AppliedChange
from ci.models.lowering_options import Part
from ci.models.schemes import EXECUTORCH, LITERT, ONNX, Scheme
from ci.models.user_models import Source
from ci.report.document import render_text
from ci.report.html import render_document
from ci.report.schema import Case, JudgementFacts, ProgramFacts, Status
from provisioning.errors import ExitCode, UsageError
from tests.stand_ins.reports import change_case, make_report

REWRITTEN, MIXED = Recipe(rewrites=("r",)), Recipe(parts=(Part(Scheme.A16W8, node="add"),))
OTHER = Recipe(scheme="16a8w")


def judged(model: str, scheme: str, status: Status, sqnr_db: float = 20) -> Case:
    findings = (UNRECORDED.find("output 0 is wrong"),) if status is Status.FAILED else ()
    return Case(
        model=model,
        scheme=scheme,
        soc="SM8650",
        judgement=JudgementFacts(status=status, findings=findings, sqnr_db=sqnr_db),
        program=ProgramFacts(pte_bytes=int(sqnr_db * 1000)),
    )


def mended(folder: Path, model: str, scheme: str, recipe: Recipe, soc: str = "SM8650") -> Mended:
    """A case that ``recipe`` makes green, or a green one."""
    source = Source(f"{folder}/net.py:factory")
    is_red = recipe != Recipe()
    before = judged(model, scheme, Status.FAILED if is_red else Status.PASSED)
    mended_case = Mended(CaseSpec(model, Scheme(scheme), soc, source), before)
    if is_red:
        mended_case.search = Search(before, ())
        mended_case.recipe, mended_case.case = recipe, judged(model, scheme, Status.PASSED, 40)
        mended_case.search.steps.append(Step(recipe, mended_case.case, is_kept=True))
    return mended_case


ENTRY = '[models.net]  # ours\npath = "net.py:factory"  # the net\n'
ENTRY_MENDED = ENTRY.replace("net.py:factory", "mended/mended_net.py:net")
LIMITS = "\n[models.net.limits.8a8w]\nmin_sqnr_db = 12.5\n"
OVERRIDE = '\n[[override]]\nmodel = "net"\nscheme = "8a8w"\nreason = "small"\n'
MENDED = f"""
[models.net_mended]
path = "mended/mended_net.py:net"
schemes = ["8a8w"]
{LIMITS.replace("net", "net_mended")}{OVERRIDE.replace("net", "net_mended")}"""
MUL, ONLY_8A8W = '{ op = "mul", scheme = "fp16" }', 'schemes = ["8a8w"]\n'
LOWERING, PARTS = "[models.net.lowering]\n", 'parts = [{ scheme = "16a8w", node = "add" }]\n'
EDITED = {
    "the path of an entry": (
        f'{ENTRY}schemes = ["8a8w"]\n{LIMITS}',
        {"8a8w": REWRITTEN},
        f'{ENTRY_MENDED}schemes = ["8a8w"]\n{LIMITS}',
    ),
    "one of its schemes": (
        f'{ENTRY}schemes = [\n  "fp16",\n  "8a8w",\n]\n{LIMITS}{OVERRIDE}',
        {"8a8w": REWRITTEN},
        f'{ENTRY}schemes = ["fp16"]\n{LIMITS}{OVERRIDE}{MENDED}',
    ),
    "other schemes for parts": (
        f'{LOWERING}shared_buffer = true\n\n{ENTRY}schemes = ["8a8w"]\n',
        {"8a8w": MIXED},
        f'{LOWERING}{PARTS}shared_buffer = true\n\n{ENTRY}schemes = ["8a8w"]\n',
    ),
    "another scheme for a node that has a part already": (
        f'{LOWERING}parts = [{{ node = "add", scheme = "8a8w" }}, {MUL}]\n\n{ENTRY}{ONLY_8A8W}',
        {"8a8w": MIXED},
        f'{LOWERING}parts = [{{ scheme = "16a8w", node = "add" }}, {MUL}]\n\n{ENTRY}{ONLY_8A8W}',
    ),
    "another scheme": (
        f'{ENTRY}schemes = ["8a8w"]\n',
        {"8a8w": OTHER},
        f'{ENTRY}schemes = ["16a8w"]\n',
    ),
    "the scheme of another case": (
        f'{ENTRY}schemes = ["8a8w", "16a8w"]\n',
        {"8a8w": OTHER, "16a8w": Recipe()},
        f'{ENTRY}schemes = ["16a8w"]\n',
    ),
    "an observer": (
        f'{ENTRY}schemes = ["8a8w"]\n',
        {"8a8w": Recipe(observer="histogram")},
        f'{ENTRY}schemes = ["8a8w"]\n\n[models.net.lowering]\nobserver = "histogram"\n',
    ),
    "nothing": (f'{ENTRY}schemes = ["8a8w"]\n', {"8a8w": Recipe()}, f'{ENTRY}schemes = ["8a8w"]\n'),
}


def written(
    folder: Path, cases: list[Mended], policy_models: tuple[str, ...] = ("net",)
) -> Written:
    entries = plan_entries(cases, policy_models)
    return Written(
        entries, list_factories(entries), folder / "mended" / "mended_net.py", EXECUTORCH
    )


@pytest.mark.parametrize("edit", EDITED)
def test_a_policy_is_edited_in_place(tmp_path: Path, edit: str) -> None:
    text, recipes, edited = EDITED[edit]
    (tmp_path / "qnn.toml").write_text(text)
    cases = [mended(tmp_path, "net", *pair) for pair in recipes.items()]
    assert written(tmp_path, cases).apply(tmp_path / "qnn.toml") == edited


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('models.net = { path = "net.py:factory", schemes = ["8a8w"] }\n', "cannot be edited"),
        (f'{ENTRY}schemes = ["8a8w"]\nsocs = ["SM8550"]\n', "not all SoCs"),
    ],
)
def test_a_policy_that_cannot_be_edited_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "qnn.toml").write_text(text)
    files = written(tmp_path, [mended(tmp_path, "net", "8a8w", REWRITTEN)])
    with pytest.raises(UsageError, match=message):
        files.apply(tmp_path / "qnn.toml")


def test_a_new_policy_keeps_limits_and_has_an_entry_per_recipe(tmp_path: Path) -> None:
    (tmp_path / "qnn.toml").write_text(
        f'memory_bytes = 5\n\n{ENTRY}calibration = "net.py"\n{LIMITS}'
    )
    (tmp_path / "net.py").touch()
    cases = [
        mended(tmp_path, "net", "fp16", Recipe()),
        mended(tmp_path, "net", "8a8w", REWRITTEN),
        mended(tmp_path, "net.py:factory", "8a8w", REWRITTEN),
    ]
    policy_text = write_toml(written(tmp_path, cases).make_policy(tmp_path / "qnn.toml"))
    usual = {"socs": ["SM8650"], "schemes": ["8a8w"]}
    net_keys = {"calibration": "../net.py", "limits": {"8a8w": {"min_sqnr_db": 12.5}}}
    (tmp_path / "made.toml").write_text(policy_text)
    assert read_tables(tmp_path / "made.toml") == {
        "memory_bytes": 5,
        "models": {
            "net": {**net_keys, **usual, "path": "../net.py:factory", "schemes": ["fp16"]},
            "net_8a8w": {**net_keys, **usual, "path": "mended_net.py:net_8a8w"},
            "net_8a8w_2": {**usual, "path": "mended_net.py:net_8a8w_2"},
        },
    }


def test_functions_of_earlier_runs_stay_unless_their_model_is_mended_again(tmp_path: Path) -> None:
    path = tmp_path / "mended_net.py"
    assert read_source(path) == []
    earlier = [Factory("net", f"{tmp_path}/net.py:factory", ("a", "b"))]
    path.write_text(make_source(tmp_path, earlier))
    assert read_source(path) == earlier
    in_same_folder = plan_entries([mended(tmp_path, "net", "8a8w", REWRITTEN)], ("net",))
    in_sub_folder = plan_entries([mended(tmp_path / "sub", "net", "8a8w", REWRITTEN)], ("net",))
    assert [
        factories["net"].name
        for factories in (
            list_factories(in_same_folder, earlier),
            list_factories(in_sub_folder, earlier),
        )
    ] == [
        "net",
        "net_2",
    ]
    path.write_text("# mine\n")
    assert read_source(path) is None


ODD_FOLDERS = ["it's", 'a"b', "a\\b", "a\nb", "{HERE}", "é 漢", '"""', "a b", "\x7f"]


@pytest.mark.parametrize("folder", ODD_FOLDERS)
def test_functions_call_models_in_folders_of_any_name(tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder
    place.mkdir()
    factories = [Factory("net", f"{place}/n{folder}.py:factory", ("a", "b"))]
    text = make_source(tmp_path, factories)
    (tmp_path / "mended_net.py").write_text(text)
    assert read_source(tmp_path / "mended_net.py") == factories
    calls: list[tuple[str, list[str]]] = []
    source = text.replace("from ci.mend import call_rewritten", "")
    names = {"call_rewritten": lambda *call: calls.append(call), "__file__": f"{tmp_path}/m.py"}
    exec(source, names)  # noqa: S102 - our own text
    names["net"]()  # type: ignore[operator]
    assert calls == [(factories[0].reference, ["a", "b"])]


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize("edit", EDITED)
def test_line_endings_and_a_byte_order_mark_stay(tmp_path: Path, edit: str, newline: str) -> None:
    text, recipes, right = EDITED[edit]
    policy = tmp_path / "qnn.toml"
    policy.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", newline).encode())
    check_editable(policy, {"net": ["SM8650"]})
    cases = [mended(tmp_path, "net", *pair) for pair in recipes.items()]
    edited = written(tmp_path, cases).apply(policy)
    assert edited == "\ufeff" + right.replace("\n", newline)


EDITABLE = [
    '[models.net]\npath = "net.py:f"\nschemes = [ # "]"\n  "8a8w", # mine ]\n]\n',
    "[models.net]\npath = '''net.py:f'''\nschemes = ['8a8w']\n",
    '[ models . "net" ] # a ] comment\n"path" = "net.py:f"\n',
    '[models.net]\npath = "net.py:f"',
    '[models.net]\npath = "net.py:f"\n[models.net.lowering]\nparts = [{ node = "a]" }, [1]]\n',
    '# path = "x"\n[models.other]\npath = "x"\n[models.net]\n\npath = "net.py:f"\n',
]
NOT_EDITABLE = [
    'models.net = { path = "net.py:f" }\n',
    'models.net.path = "net.py:f"\n',
    '[models]\nnet = { path = "net.py:f" }\n',
    '[models.net]\npath = "net.py:f"\nlowering = { observer = "histogram" }\n',
    'x = """\n[models.net]\npath = 1\n"""\n[models.net]\npath = "net.py:f"\n',
]


@pytest.mark.parametrize("text", [*EDITABLE, *NOT_EDITABLE])
def test_whether_a_policy_can_be_edited_is_known_before_the_search(
    tmp_path: Path, text: str
) -> None:
    policy = tmp_path / "qnn.toml"
    policy.write_text(text)
    cases = [mended(tmp_path, "net", "8a8w", Recipe(rewrites=("r",), observer="histogram"))]
    if text in EDITABLE:
        check_editable(policy, {"net": ["SM8650"]})
        policy.write_text(written(tmp_path, cases).apply(policy))
        entry = read_tables(policy)["models"]
        assert "histogram" in str(entry)
        assert "mended_net.py" in str(entry)
        return
    with pytest.raises(UsageError, match=r"cannot be edited") as refused:
        check_editable(policy, {"net": ["SM8650"]})
    assert "models.net is not written as a table" in refused.value.why


def test_a_policy_that_is_a_link_is_not_edited(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(ENTRY)
    (tmp_path / "qnn.toml").symlink_to("real.toml")
    with pytest.raises(UsageError, match="cannot be edited") as refused:
        check_editable(tmp_path / "qnn.toml", {})
    assert "symbolic link" in refused.value.why


def test_an_onnx_file_has_an_entry_with_the_rewritten_file(tmp_path: Path) -> None:
    cases = []
    for scheme, recipe in (("u8", REWRITTEN), ("fp16", Recipe())):
        source = Source(f"{tmp_path}/net.onnx", shapes=(("x", (1, 3)),))
        mended_case = mended(tmp_path, "../a/net.onnx", scheme, recipe)
        cases.append(replace(mended_case, spec=replace(mended_case.spec, source=source)))
        cases[-1].recipe = recipe
    entries = plan_entries(cases)
    source = tmp_path / "mended" / "mended_net.py"
    files = Written(entries, list_factories(entries), source, ONNX)
    shapes = {"x": [1, 3]}
    assert files.make_policy(None)["models"] == {
        "net": {"path": "net.onnx", "schemes": ["u8"], "socs": ["SM8650"], "shapes": shapes},
        "net_fp16": {
            "path": "../net.onnx",
            "schemes": ["fp16"],
            "socs": ["SM8650"],
            "shapes": shapes,
        },
    }


def test_what_is_still_red_says_how_the_precisions_that_were_tried_ended() -> None:
    advice = Advice(
        remedies=(Remedy(text=f"use 16-bit activations{NOT_TRIED}", proof=Proof.SUGGESTED),)
    )
    findings = (NOISE.find("output 0 is wrong", advice=advice),)
    before = change_case(judged("net", "fp16", Status.FAILED), findings=findings)
    mended_case = Mended(CaseSpec("net", Scheme.FP16, "SM8650"), before, Search(before, ()))
    assert "16-bit activations, which was not tried" in describe_case(mended_case).obstacle
    tried = Step(Recipe(scheme="16a8w"), judged("net", "16a8w", Status.FAILED), is_kept=False)
    mended_case.search.steps.append(tried)  # type: ignore[union-attr]
    assert "activations (in this run, 16a8w failed)" in describe_case(mended_case).obstacle


def test_mended_cases_are_shown_with_their_result_and_changes(tmp_path: Path) -> None:
    mended_cases = [
        mended(tmp_path, "net", "8a8w", REWRITTEN),
        mended(tmp_path, "net", "fp16", Recipe()),
        Mended(CaseSpec("b", Scheme.FP16, "SM8650"), judged("b", "fp16", Status.FAILED)),
    ]
    cases = [describe_case(mended_case) for mended_case in mended_cases]
    assert [case.result for case in cases] == ["mended", "green", "no remedy found"]
    assert choose_exit(mended_cases) is ExitCode.FAILED
    assert choose_exit(mended_cases[:2]) is ExitCode.OK
    text = render_text(make_document(cases), 100)
    assert "1 of 3 cases green before, 2 after" in text
    assert "still red: output 0 is wrong" in text
    silu = AppliedChange(rewrite="r", nodes=("n",), place=None, before="F.silu(x)", after="x * g")
    places = [Place(file="a.py", line=line) for line in (1, 1, 2, 3, 4, 5, 6)]
    changed = tuple(structs.replace(silu, place=place) for place in places)
    many = [structs.replace(cases[0], changes=changed)]
    shown = render_text(make_document(many), 100)
    assert "a.py:1, a.py:2, a.py:3 and 3 more: r, 7 times" in shown
    assert shown.count("F.silu(x)") == 1
    named = (Part(Scheme.U16A8W, tensor="scores"), Part(Scheme.A16W8, node="add"))
    mixed = render_text(make_document([structs.replace(cases[0], parts=named)]), 100)
    assert "scores: u16a8w" in mixed
    assert "add: 16a8w" in mixed
    page = render_document(make_document(cases))
    assert page.count("<circle") == 3  # before, after, and the ring around the chosen one
    assert "r: 40.0 dB, 39.1 KiB" in page


def test_a_red_case_ends_with_the_command_that_mends_it_if_a_rewrite_is_known() -> None:
    red = judged("net", "16a8w", Status.FAILED)
    named = NOISE.find("not faithful: known fault batch-norm-alone [net.py:3]")
    report = make_report([change_case(red, findings=(named,)), red])
    first, second = suggest_mending(report, EXECUTORCH, "mend --policy q.toml").cases
    command = "`qnn-ci mend --policy q.toml --model net --scheme 16a8w --soc SM8650`"
    assert first.judgement.findings[0].remedies[-1].text.startswith(command)
    assert second == red
    assert suggest_mending(report, EXECUTORCH, "mend", mendable={red.name}) != report
    assert suggest_mending(report, EXECUTORCH, "mend", mendable=()) == report
    for lane, files, words in (
        (ONNX, (), "mend --runtime onnxruntime --model net"),
        (LITERT, (), "mend --runtime litert --model net"),
        (ONNX, {red.name}, "mend --model net"),
    ):
        by_runtime = suggest_mending(report, lane, "mend", files=files).cases[0]
        assert f"`qnn-ci {words} " in by_runtime.judgement.findings[0].remedies[-1].text
    lossy = make_report([change_case(red, findings=(QUANTIZED_BADLY.find("6.0 dB"),)), red])
    names = {red.name}
    first, second = suggest_mending(
        lossy, LITERT, "mend --policy q.toml", mendable=(), files=names, in_float=names
    ).cases
    remedy = first.judgement.findings[0].remedies[-1].text
    assert remedy == f"{command} finds operators to compute in float"
    assert second == red
    index = "IndexError: tuple index out of range"
    pool = f"{index} [executorch/backends/qualcomm/builders/op_avg_pool3d.py]"
    texts = ("aten.gru.input is not quantized", pool, index, "ElementWiseAdd failed 3110")
    refused = [change_case(red, findings=(NOT_LOWERED.find(text),)) for text in texts]
    cases = suggest_mending(make_report(refused), EXECUTORCH, "mend").cases
    assert [len(case.judgement.findings[0].remedies) for case in cases] == [1, 1, 0, 0]
    lstm_cause = "ExecuTorch does not quantize nn.LSTM"
    cause = Cause(text=lstm_cause, certainty=Certainty.KNOWN, name="QNN1346")
    left = ON_CPU.find("QNN does not take these types: slice", advice=Advice(causes=(cause,)))
    (lstm,) = suggest_mending(
        make_report([change_case(red, findings=(left,))]), EXECUTORCH, "mend"
    ).cases
    assert len(lstm.judgement.findings[0].remedies) == 1
    too_new = Advice(causes=(Cause(text="too new", certainty=Certainty.KNOWN, name="QNN1736"),))
    unread = NOT_LOWERED.find(texts[0], advice=too_new)
    (new,) = suggest_mending(
        make_report([change_case(red, findings=(unread,))]), EXECUTORCH, "mend"
    ).cases
    assert new.judgement.findings[0].remedies == ()  # nothing was read that mend could rewrite
    silent = make_report([change_case(red, findings=(NO_OUTPUTS.find("exited with 127"),))])
    assert suggest_mending(silent, EXECUTORCH, "mend").cases != silent.cases
    assert suggest_mending(silent, EXECUTORCH, "mend", on_device=True).cases == silent.cases
    lone = CaseSpec("net", Scheme.FP16, "SM8650")
    for spec, lane, offer in (
        (replace(lone, scheme=Scheme.A16W8), EXECUTORCH, "searches other precisions; no rewrite"),
        (lone, EXECUTORCH, "searches other precisions; no rewrite applies"),
        (lone, LITERT, ""),  # a float file has no other precision there
    ):
        wrong = change_case(judged("net", spec.scheme, Status.FAILED), findings=(named,))
        (case,) = suggest_mending(
            make_report([wrong]), lane, "mend", unchangeable={wrong.name: spec}
        ).cases
        remedies = case.judgement.findings[0].remedies
        assert [offer in remedy.text for remedy in remedies] == [True] * bool(offer)
    users_error = change_case(red, findings=(INVALID.find("net.py raised: no index"),))
    assert suggest_mending(make_report([users_error]), EXECUTORCH, "mend").cases == (users_error,)
