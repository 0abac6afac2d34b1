"""Mixtures: schemes that an entry of a policy defines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.analysis.mixtures import assign_parts, list_parts
from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.spec import CaseSpec, select_cases
from ci.graphs.candidates import Candidate
from ci.models.lowering_options import Part
from ci.models.schemes import EXECUTORCH, Mixture, Scheme
from provisioning.errors import QnnCiError

ENTRIES = """
extends = "default"
[models.net]
path = "mlp"
{keys}
[models.net.mixtures.first16]
base = "8a8w"
parts = [{{ module = "layers.0", scheme = "16a8w" }}]
{mixtures}
[models.other]
path = "lstm"
[models.other.mixtures.mine]
base = "16a8w"
parts = [{{ op = "tanh", scheme = "8a8w" }}]
"""
SECOND = '[models.net.mixtures.{}]\nbase = "{}"\nparts = [{{ op = "{}", scheme = "16a8w" }}]'


def read(folder: Path, keys: str = "", mixtures: str = "") -> EmulatorPolicy:
    (folder / "qnn.toml").write_text(ENTRIES.format(keys=keys, mixtures=mixtures))
    return read_emulator_policy(folder / "qnn.toml")


def select(policy: EmulatorPolicy, **selection: Any) -> list[CaseSpec]:
    return select_cases({}, ["SM8650"], entries=policy.models, **selection)


def name(specs: list[CaseSpec]) -> list[str]:
    return [f"{spec.model} {spec.scheme.value}" for spec in specs]


def test_a_mixed_precision_scheme_is_selected_like_any_scheme(tmp_path: Path) -> None:
    keys = 'schemes = ["8a8w", "first16"]\nlimits.first16.min_sqnr_db_all = 31\n'
    keys += "limits.8a8w.min_sqnr_db_all = 21\nbudget.schemes.first16.program_bytes = 9\n"
    policy = read(tmp_path, keys, SECOND.format("last16", "8a8w", "linear"))
    mixed = Mixture("first16", Scheme.A8W8)
    plain = [f"other {scheme.value}" for scheme in EXECUTORCH.default]
    assert name(select(policy)) == ["net 8a8w", "net first16", *plain, "other mine"]
    assert name(select(policy, schemes=["*16", "8A8W"])) == [
        *("net fp16", "net first16", "net last16", "net 8a8w"),
        *("other fp16", "other 8a8w"),
    ]
    (spec,) = select(policy, models=["net"], schemes=["FIRST16"])
    assert (spec.scheme, spec.slug) == (mixed, spec.slug.replace("8a8w", "first16"))
    assert str(spec.source.choices) == "parts layers.0 16a8w"
    limits = {}
    for scheme in ("8a8w", "first16", "last16"):
        limits[scheme] = policy.limits_of("net", policy.find_scheme("net", scheme))
    assert [limit.min_sqnr_db_all for limit in limits.values()] == [21, 31, 21]
    assert [limit.scheme for limit in limits.values()] == [*limits]
    assert limits["first16"].min_equal == limits["8a8w"].min_equal
    assert limits["first16"].budget.program_bytes == 9


FAULTS = {  # of the policy: keys of the entry, another mixture, arguments and the message
    "a name": ("", SECOND.format("'a b'", "8a8w", "relu"), {}, "mixtures.a b: invalid name"),
    "the name of a scheme": ("", SECOND.format("FP16", "8a8w", "relu"), {}, "name is taken"),
    "an unknown base": ("", SECOND.format("x", "8a9w", "relu"), {}, "mixtures.x.base: '8a9w'"),
    "a float base": ("", SECOND.format("x", "fp16", "relu"), {}, "cannot be used with fp16"),
    "no part": ("", '[models.net.mixtures.x]\nbase = "8a8w"', {}, "x: it is the same as 8a8w"),
    "a limit": ("limits.first61.max_abs = 1", "", {}, "models.net.limits: there is no scheme or"),
    "of another": ("limits.mine.max_abs = 1", "", {}, "mixture 'mine'"),
    "a budget": ("budget.schemes.first61 = {}", "", {}, "the nearest is first16"),
    "a scheme": ('schemes = ["first61"]', "", {}, "models.net.schemes: there is no scheme or"),
    "two tables": ('lowering.discard_nodes = ["a"]', "", {}, "with models.net.lowering.discard_"),
    "a tensor": ("", SECOND.format("x", "8a8w", "a").replace("op", "tensor"), {}, "a tensor"),
    "--scheme of another": (
        *("", "", {"models": ["net"], "schemes": ["mine"]}),
        "--scheme mine is a mixture of models.other, which is not selected",
    ),
    "an unknown --scheme": ("", "", {"schemes": ["first61"]}, "no scheme 'first61'"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_mixture_is_refused_before_anything_is_lowered(tmp_path: Path, fault: str) -> None:
    keys, mixtures, selection, words = FAULTS[fault]
    with pytest.raises(QnnCiError) as caught:
        select(read(tmp_path, keys, mixtures), **selection)
    assert words in str(caught.value)
    assert caught.value.fix or caught.value.why


BODY = ("body", "body.0")
NODES = [
    Candidate(("conv", "conv2d"), ("conv2d",), BODY, ("Sequential", "Conv2d"), ("nets/net.py:41",)),
    Candidate(("relu",), ("relu",), BODY, ("Sequential", "ReLU"), ("nets/net.py:41",)),
    Candidate(("softmax",), ("softmax",), ("bodyguard",), ("Net",), ("nets/net.py:7",)),
    Candidate(("last",), ("Gemm",), tensor=("logits",)),
]


@pytest.mark.parametrize(
    ("selectors", "chosen"),
    [
        ({"module": "body"}, ["conv", "relu"]),
        ({"module": "bod"}, "the model has no module bod\n  fix: use one of its modules: body, "),
        ({"type": "Conv2d"}, ["conv"]),
        ({"op": "gemm"}, ["last"]),
        ({"op": "gelu"}, "use one of its operators: conv2d, relu, softmax, Gemm"),
        ({"line": "net.py:41"}, ["conv", "relu"]),
        ({"line": "et.py:41"}, "the model has no line et.py:41"),
        ({"line": "net.py:41", "op": "relu"}, ["relu"]),
        ({"tensor": "logits"}, ["last"]),
    ],
)
def test_a_part_selects_the_nodes_that_all_its_selectors_match(
    selectors: dict[str, str], chosen: list[str] | str
) -> None:
    part = Part(Scheme.A16W8, **selectors)
    if isinstance(chosen, list):
        assert assign_parts(NODES, [part]) == dict.fromkeys(chosen, part)
        return
    with pytest.raises(QnnCiError, match=f"no node belongs to the part {part}") as caught:
        assign_parts(NODES, [part])
    assert chosen in str(caught.value)


def test_the_first_matching_part_wins_and_a_hidden_part_is_refused() -> None:
    conv, body = Part(Scheme.A16W4, op="conv2d"), Part(Scheme.A16W8, module="body")
    rows = list_parts(NODES, [conv, body], "8a8w")
    assert [" ".join(filter(None, row.values())) for row in rows] == [
        "conv conv2d nets/net.py:41 16a4w op=conv2d",
        "relu relu nets/net.py:41 16a8w module=body",
        "softmax softmax nets/net.py:7 8a8w",
        "last Gemm 8a8w",
    ]
    with pytest.raises(QnnCiError, match="part conv2d 16a4w is hidden by the part body 16a8w"):
        assign_parts(NODES, [body, conv])
