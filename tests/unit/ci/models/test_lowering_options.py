"""What an entry asks of ExecuTorch beside a scheme: what it may say, and what excludes what."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.spec import CaseSpec, select_cases
from ci.models.lowering_options import EXCLUSIONS, Choices, Part
from ci.models.schemes import Scheme
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import manifests_root

SOCS = ["SM8650"]
SET = manifests_root() / "policies" / "choices.toml"


def select(policy: EmulatorPolicy, **selection: object) -> list[CaseSpec]:
    return select_cases(policy.suite, SOCS, entries=policy.models, **selection)  # type: ignore[arg-type]


def read(tmp_path: Path, lowering: str, scheme: str = "8a8w") -> EmulatorPolicy:
    file = tmp_path / "qnn.toml"
    row = f'[models.net]\npath = "mlp"\nschemes = ["{scheme}"]\n'
    file.write_text(f'extends = "default"\n{row}lowering = {{ {lowering} }}\n')
    return read_emulator_policy(file)


def test_the_options_set_covers_every_lowering_option_and_scheme_outside_the_suite() -> None:
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
        "observer": 'observer = "histogram"',
    }
    option, excluded, why = pair
    lowering = ", ".join(words.get(name, f"{name} = true") for name in (option, excluded))
    with pytest.raises(UsageError) as caught:
        select(read(tmp_path, lowering))
    assert f"models.net.lowering: {option} and {excluded} cannot be combined" in caught.value.what
    assert caught.value.why == why
    assert select(read(tmp_path, words.get(option, f"{option} = true")))


@pytest.mark.parametrize(
    ("lowering", "scheme", "message"),
    [
        ("weight_sharing = true", "8a8w", "weight_sharing needs methods"),
        ('methods = ["make_row", "make_row"]', "8a8w", "a method is listed twice"),
        ('recipe = "mlp:make_recipe"', "fp16", "recipe cannot be used with fp16"),
        ('parts = [{ type = "Linear", scheme = "fp16" }]', "8a8w", "the part Linear fp16"),
        (
            'parts = [{ type = "Tanh", scheme = "16a8w" }, { type = "ReLU", scheme = "u8" }]',
            *("8a8w", "the part ReLU u8"),
        ),
        ('parts = [{ type = "ReLU", scheme = "16a4w_block" }]', "8a8w", "has an unsuitable scheme"),
        ('parts = [{ type = "ReLU", scheme = "8a8w_qat" }]', "8a8w", "does not fit 8a8w"),
        ('discard_nodes = ["relu"]', "fp16", "discard_nodes cannot be used with fp16"),
        ("block_size = 64", "16a4w", "block_size cannot be used with 16a4w"),
        ('observer = "histogram"', "fp16", "observer cannot be used with fp16"),
        ('observer = "histogram"', "8a8w_qat", "observer cannot be used with 8a8w_qat"),
        ('observer = "percentile"', "8a8w", "the observer percentile cannot be used with 8a8w"),
    ],
)
def test_lowering_options_that_a_scheme_does_not_support_are_refused(
    tmp_path: Path, lowering: str, scheme: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(read(tmp_path, lowering, scheme))
    assert message in caught.value.what
    assert caught.value.why


@pytest.mark.parametrize(
    ("lowering", "words"),
    [
        ('profile_level = "basic"', "line 5"),
        ("onlin_prepare = true", "onlin_prepare"),
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
        ("warm_up = -1", "warm_up"),
    ],
)
def test_a_wrong_option_of_a_run_is_refused_by_name(tmp_path: Path, run: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read(tmp_path, "}\nrun = { " + run)
    assert words in str(caught.value)


def test_lowering_options_are_checked_against_a_scheme_of_the_command_line(tmp_path: Path) -> None:
    policy = read(tmp_path, 'parts = [{ node = "linear", scheme = "16a8w" }]')
    assert select(policy)[0].source.choices.parts == (Part(Scheme.A16W8, node="linear"),)
    with pytest.raises(UsageError, match="parts cannot be used with fp16"):
        select(policy, schemes=["fp16"])
