"""What an entry asks of ExecuTorch beside a scheme: what it may say, and what excludes what."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.spec import CaseSpec, select_cases
from ci.models.lowering_options import EXCLUSIONS, NO_CHOICES, Choices, Part, RunOptions
from ci.models.schemes import EXECUTORCH, FLOAT16, ONNX, Scheme
from ci.verbs.emulate import check_runner, set_log_level
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import manifests_root
from provisioning.manifest.targets import Backend
from tests.stand_ins.reports import say

SOCS = ["SM8650"]
SET = manifests_root() / "policies" / "choices.toml"


def select(policy: EmulatorPolicy, **asked: object) -> list[CaseSpec]:
    return select_cases(policy.suite, SOCS, entries=policy.models, **asked)  # type: ignore[arg-type]


def read(tmp_path: Path, lowering: str, scheme: str = "8a8w") -> EmulatorPolicy:
    file = tmp_path / "qnn.toml"
    row = f'[models.net]\npath = "mlp"\nschemes = ["{scheme}"]\n'
    file.write_text(f'extends = "default"\n{row}lowering = {{ {lowering} }}\n')
    return read_emulator_policy(file)


def test_the_set_has_a_case_of_every_choice_and_of_every_scheme_beyond_the_suite() -> None:
    policy, default = read_emulator_policy(SET), read_emulator_policy()
    cases = select(policy)
    assert len({case.slug for case in cases}) == len(cases) >= 20
    chosen = {name for case in cases for name, _ in case.source.choices.chosen()}
    # QNN takes almost no unquantized node in a quantized model: docs/guides/precision.md.
    assert chosen == {*Choices.__struct_fields__} - {"discard_nodes"}
    suite = {scheme for schemes in default.suite.values() for scheme in schemes}
    lane = {scheme for scheme in Scheme if not scheme.recipe.activations}
    assert {case.scheme for case in cases} >= lane - suite
    for case in cases:
        assert policy.limits_of(case.model, case.scheme).min_sqnr_db_all


def test_which_choices_exclude_each_other() -> None:
    assert {frozenset(pair[:2]) for pair in EXCLUSIONS} == {
        *(frozenset({"recipe", one}) for one in ("parts", "annotation", "discard_nodes")),
        *(frozenset({"methods", one}) for one in ("dump_intermediate_outputs", "profile_level")),
        *(frozenset({"methods", one}) for one in ("saver", "online_prepare")),
        frozenset({"recipe", "block_size"}),
        frozenset({"profile_level", "dump_intermediate_outputs"}),
        frozenset({"online_prepare", "weight_sharing"}),
    }


@pytest.mark.parametrize("pair", EXCLUSIONS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_choices_that_exclude_each_other_are_refused_with_the_reason(
    tmp_path: Path, pair: tuple[str, str, str]
) -> None:
    words = {
        "recipe": 'recipe = "mlp:make_recipe"',
        "annotation": 'annotation = "mlp:annotate_last"',
        "parts": 'parts = [{ module = "layers.0", scheme = "16a8w" }]',
        "methods": 'methods = ["make_row"]',
        "profile_level": 'profile_level = "detailed"',
        "discard_nodes": 'discard_nodes = ["relu"]',
        "block_size": "block_size = 64",
    }
    one, other, why = pair
    asked = ", ".join(words.get(name, f"{name} = true") for name in (one, other))
    with pytest.raises(UsageError) as caught:
        select(read(tmp_path, asked))
    assert f"models.net.lowering: {one} and {other} cannot be combined" in caught.value.what
    assert caught.value.why == why
    assert select(read(tmp_path, words.get(one, f"{one} = true")))


@pytest.mark.parametrize(
    ("lowering", "scheme", "what"),
    [
        ("weight_sharing = true", "8a8w", "weight_sharing needs methods"),
        ('methods = ["make_row", "make_row"]', "8a8w", "a method is listed twice"),
        ('methods = ["forward"]', "8a8w", "a method is listed twice"),
        ('recipe = "mlp:make_recipe"', "fp16", "recipe cannot be used with fp16"),
        ('parts = [{ type = "Linear", scheme = "fp16" }]', "8a8w", "the part Linear fp16"),
        ('parts = [{ type = "ReLU", scheme = "u8" }]', "8a8w", "the part ReLU u8"),
        (
            'parts = [{ type = "Tanh", scheme = "16a8w" }, { type = "ReLU", scheme = "u8" }]',
            *("8a8w", "the part ReLU u8"),
        ),
        ('parts = [{ type = "ReLU", scheme = "16a4w_block" }]', "8a8w", "has an unsuitable scheme"),
        ('parts = [{ type = "ReLU", scheme = "8a8w_qat" }]', "8a8w", "does not fit 8a8w"),
        ('parts = [{ type = "ReLU", scheme = "8a8w" }]', "8a8w_qat", "does not fit 8a8w_qat"),
        ('discard_nodes = ["relu"]', "fp16", "discard_nodes cannot be used with fp16"),
        ("block_size = 64", "16a4w", "block_size cannot be used with 16a4w"),
    ],
)
def test_what_a_scheme_does_not_have_is_refused(
    tmp_path: Path, lowering: str, scheme: str, what: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(read(tmp_path, lowering, scheme))
    assert what in caught.value.what
    assert caught.value.why


@pytest.mark.parametrize(
    ("lowering", "words"),
    [
        ('profile_level = "basic"', "line 5"),
        ("onlin_prepare = true", "onlin_prepare"),
        ('shared_buffer = "yes"', "shared_buffer"),
        ('skip_ops = [""]', "skip_ops"),
        ('discard_node = ["relu"]', "did you mean discard_nodes?"),
        ("block_size = -1", "block_size"),
        ('log_level = "warning"', "did you mean warn?"),
        ('parts = [{ scheme = "8a8w" }]', "one of module, type, node, op, line and tensor"),
        ('recipe = "missing.py:recipe"', "models.net.lowering.recipe: no recipe"),
        ('annotation = "missing.py"', "no function name"),
    ],
)
def test_a_wrong_key_or_value_names_its_place(tmp_path: Path, lowering: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(tmp_path, lowering)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("lapi_fps = 30", "models.net.run.lapi_fps: unknown key; did you mean lpai_fps?"),
        ("lpai_clent_perf_type = 1", "did you mean lpai_client_perf_type?"),
        ("lpai_client_perf_type = 3", "lpai_client_perf_type"),
        ("iteration = 0", "iteration"),
        ("warm_up = -1", "warm_up"),
    ],
)
def test_a_wrong_option_of_a_run_is_refused_by_name(tmp_path: Path, run: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(tmp_path, "}\nrun = { " + run)
    assert words in str(caught.value)


def test_options_of_a_run_are_flags_that_lpai_and_another_runner_take(tmp_path: Path) -> None:
    (times,) = select(read(tmp_path, "}\nrun = { warm_up = 2, iteration = 9"))
    assert times.source.run.flags == {"warm_up": 2, "iteration": 9}
    for runner in ("python", "cpp", "./run.sh"):
        check_runner([times], runner)
    (lpai,) = select(read(tmp_path, "}\nrun = { lpai_fps = 30, lpai_affinity = 2"))
    check_runner([lpai], "./run.sh", Backend.LPAI_ARM)
    with pytest.raises(UsageError, match="passes no options"):
        check_runner([lpai], "python", Backend.LPAI)
    with pytest.raises(UsageError, match="--backend lpai"):
        check_runner([lpai], "./run.sh")


def test_one_level_of_the_log_replaces_that_of_an_entry(tmp_path: Path) -> None:
    (spec,) = select(read(tmp_path, 'log_level = "info", saver = true'))
    changed = set_log_level(spec, "debug").source.choices
    assert (changed.log_level, changed.saver) == ("debug", True)


def test_a_scheme_of_the_command_line_is_judged_too(tmp_path: Path) -> None:
    policy = read(tmp_path, 'parts = [{ node = "linear", scheme = "16a8w" }]')
    assert select(policy)[0].source.choices.parts == (Part(Scheme.A16W8, node="linear"),)
    with pytest.raises(UsageError, match="parts cannot be used with fp16"):
        select(policy, schemes=["fp16"])


def test_the_other_lane_has_no_such_choices(tmp_path: Path) -> None:
    for words, table in (("shared_buffer = true", "lowering"), ("}\nrun = { warm_up = 1", "run")):
        policy = read(tmp_path, words)
        with pytest.raises(UsageError, match=rf"models\.net\.{table} has options"):
            select(policy, lane=ONNX, schemes=["u8"])


@pytest.mark.parametrize("lowering", ['methods = ["make_row"]', 'profile_level = "optrace"'])
def test_another_runner_is_refused_where_it_would_leave_a_choice_out(
    tmp_path: Path, lowering: str
) -> None:
    cases = select(read(tmp_path, lowering))
    check_runner(cases, "python")
    with pytest.raises(UsageError, match=r"models\.net\.lowering sets "):
        check_runner(cases, "cpp")
    check_runner(select(read(tmp_path, "shared_buffer = true")), "cpp")


def test_choices_are_told_as_a_text_by_which_a_policy_knows_refusals(tmp_path: Path) -> None:
    choices = Choices(
        skip_ops=("aten.relu.default", "aten.add.Tensor"),
        parts=(Part(Scheme.A16W8, module="layers.0"),),
        annotation="/home/me/nets/notes.py:annotate",
        shared_buffer=True,
    )
    assert str(choices) == (
        "skip_ops aten.relu.default + aten.add.Tensor, parts layers.0 16a8w,"
        " annotation notes.py:annotate, shared_buffer"
    )
    assert str(NO_CHOICES) == ""
    for kind in ("module", "type", "node"):
        assert str(Part(Scheme.A16W8, **{kind: "one"})) == "one 16a8w"
    policy = read_emulator_policy()
    crash = "the process was killed by SIGSEGV\n Try verifying binary with online-prepare format."
    asked = partial(policy.expects_refusal, "mlp-online", Scheme.A8W8, "SM8650")
    assert "SIGSEGV" in asked(say(crash), choices="online_prepare")
    assert not asked(say(crash), choices="")
    assert not asked(say("the process was killed by SIGSEGV"), choices="online_prepare")


@pytest.mark.parametrize("scheme", EXECUTORCH.schemes)
def test_a_scheme_of_executorch_is_what_its_name_says(scheme: Scheme) -> None:
    recipe, name = scheme.recipe, scheme.value
    bits = re.match(r"(fp)?(\d+)(?:a\d+w)?", name)
    assert bits
    assert recipe.activation_bits == (FLOAT16.activation_bits if bits[1] else int(bits[2]))
    assert recipe.dtype == ("" if name == "fp16" else f"use_{name.removesuffix('_qat')}")
    assert scheme.quantized is (name != "fp16")
    assert bool(recipe.training_steps) is name.endswith("_qat")
    assert recipe.block == (32 if name.endswith("_block") else 0)
    assert recipe.linear_as_convolution is name.endswith("_block")
    assert (recipe.activations, recipe.weights, recipe.per_channel) == ("", "", False)


@pytest.mark.parametrize("scheme", [one for one in ONNX.schemes if one.recipe.weights])
def test_a_scheme_of_onnx_runtime_is_what_its_name_says(scheme: Scheme) -> None:
    recipe, name = scheme.recipe, scheme.value
    assert scheme.quantized
    assert (recipe.dtype, recipe.training_steps, recipe.block) == ("", 0, 0)
    if scheme is Scheme.ASIS:
        assert (recipe.activations, recipe.activation_bits) == ("given", 0)
        return
    activations, weights = re.fullmatch(r"u(\d+)(?:a(\d+)w)?(?:_channel)?", name).groups()  # type: ignore[union-attr]
    assert recipe.activation_bits == int(activations)
    assert recipe.activations == f"QUInt{activations}"
    assert recipe.per_channel is (name.endswith("_channel") or weights == "4")
    # HTP takes scales of channels, and weights of 16 bits, only with signed weights.
    sign = "" if recipe.per_channel or weights == "16" else "U"
    assert recipe.weights == f"Q{sign}Int{weights or activations}"


def test_the_lanes_share_float16_alone_and_their_defaults_are_theirs() -> None:
    assert {*EXECUTORCH.schemes} & {*ONNX.schemes} == {Scheme.FP16}
    assert {*EXECUTORCH.schemes} | {*ONNX.schemes} == {*Scheme}
    for lane in (EXECUTORCH, ONNX):
        assert {*lane.default} < {*lane.schemes}
        assert lane.default[0] is Scheme.FP16
    assert (EXECUTORCH.suffix, ONNX.suffix) == ("", ".onnx")


@pytest.mark.parametrize("name", RunOptions.__struct_fields__)
def test_each_flag_of_a_run_reaches_the_runner_and_is_told(name: str) -> None:
    options = RunOptions(**{name: 2})
    assert options.flags == {name: 2}
    assert str(options) == f"{name} 2"
    assert options.of_lpai == ((name,) if name.startswith("lpai_") else ())
    assert RunOptions().flags == {}
