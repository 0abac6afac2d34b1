"""A user's policy: what it extends, what it may say, and what is said of one that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from ci.cases.policy import EmulatorPolicy, read_emulator_policy
from ci.cases.spec import CaseSpec, select_cases
from ci.models.schemes import Scheme
from ci.models.tensors import TensorInfo
from ci.models.user_models import Source
from ci.report.schema import Budget
from provisioning.errors import ManifestError
from provisioning.manifest.targets import Backend
from tests.stand_ins.reports import say

SOCS = ["SM8550", "SM8650", "SM8750"]
EXTENDS = 'extends = "default"\n'
WHOLE = """extends = "default"

[schemes.8a8w]
min_sqnr_db = 25.0

[models.net]
path = "nets/net.py:factory"
schemes = ["8a8w", "fp16"]
socs = ["SM8[67]50"]
calibration = "data/calibration.npz"
inputs = "data/make.py:inputs"

[models.net.limits.8a8w]
max_abs = 0.5

[models.net.metric]
function = "metrics.py:top1"
labels = "data/labels.npy"
max_drop = 0.02

[models."other-net"]
path = "nets/net.py:other"
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "a répo"
    for name in ("nets/net.py", "metrics.py", "data/make.py", "data/labels.npy"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    (root / "data/calibration.npz").write_text("")
    return root


def read(root: Path, text: str | bytes) -> EmulatorPolicy:
    file = root / "qnn.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_emulator_policy(file)


def test_a_policy_that_extends_the_default_changes_only_its_own_keys(repository: Path) -> None:
    default, user_policy = read_emulator_policy(), read(repository, WHOLE)
    assert user_policy.limits_of("mlp", Scheme.FP16) == default.limits_of("mlp", Scheme.FP16)
    changed = user_policy.limits_of("mlp", Scheme.A8W8)
    assert changed.min_sqnr_db == 25.0
    assert changed.min_sqnr_db_all == default.limits_of("mlp", Scheme.A8W8).min_sqnr_db_all
    limits = user_policy.limits_of("net", Scheme.A8W8)
    assert (limits.min_sqnr_db, limits.max_abs, limits.model) == (25.0, 0.5, "net")
    assert (limits.max_metric_drop, limits.min_metric) == (0.02, None)
    only = {"max_abs": 0.5, "model": "net", "max_metric_drop": 0.02}
    assert limits == msgspec.structs.replace(changed, **only)
    assert user_policy.limits_of("net", Scheme.FP16).max_abs is None
    assert user_policy.limits_of("net", Scheme.FP16).max_metric_drop == 0.02
    assert user_policy.limits_of("other-net", Scheme.A8W8).max_metric_drop is None
    assert user_policy.advice == default.advice
    assert user_policy.unsupported == default.unsupported


def test_models_of_a_policy_are_run_with_their_schemes_socs_and_data(repository: Path) -> None:
    policy = read(repository, WHOLE)
    assert policy.suite == {}
    cases = select_cases(policy.suite, SOCS, entries=policy.models)
    source = Source(
        f"{repository}/nets/net.py:factory",
        f"{repository}/data/calibration.npz",
        f"{repository}/data/make.py:inputs",
    )
    assert cases[:2] == [CaseSpec("net", Scheme.A8W8, soc, source) for soc in ("SM8650", "SM8750")]
    assert [case.scheme.value for case in cases[4:]] == ["fp16", "8a8w", "16a8w"]
    assert {case.soc for case in cases[4:]} == {"SM8650"}
    assert len({case.slug for case in cases}) == len(cases) == 7
    (net_case,) = select_cases(
        {}, SOCS, entries=policy.models, models=["n*"], schemes=["fp16"], soc_names=["SM8550"]
    )
    assert (net_case.model, net_case.source) == ("net", source)
    (mlp,) = select_cases({}, SOCS, entries=policy.models, models=["mlp"], schemes=["fp16"])
    assert mlp.source == Source()


def test_advice_of_the_users_policy_comes_before_the_defaults(repository: Path) -> None:
    text = EXTENDS + '[[advice]]\npattern = "did not end within"\nfix = "mine"\n'
    policy = read(repository, text)
    assert policy.advise(say("the runner did not end within 4 s")).remedies[0].text == "mine"
    assert len(policy.advice) == len(read_emulator_policy().advice) + 1
    assert policy.suite == read_emulator_policy().suite
    assert read(repository, EXTENDS + '[suite]\nmlp = ["fp16"]\n').suite == {"mlp": (Scheme.FP16,)}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_policy_with_a_bom_and_crlf_line_ends_is_read(repository: Path, ends: str) -> None:
    policy = read(repository, b"\xef\xbb\xbf" + WHOLE.replace("\n", ends).encode())
    assert set(policy.models) == {"net", "other-net"}


def test_a_policy_without_extends_needs_its_own_reference_and_schemes(repository: Path) -> None:
    parts = ("[reference]\nmin_rms = 0.1\nmin_spread = 0.1\n", "[schemes.8a8w]\nmin_sqnr_db = 25\n")
    text = "".join(parts)
    policy = read(repository, text)
    assert ([*policy.schemes], policy.suite, policy.models) == ([Scheme.A8W8], {}, {})
    for part in parts:
        with pytest.raises(ManifestError, match=r"lacks \[reference\] or \[schemes\]"):
            read(repository, text.replace(part, ""))


WRONG: list[tuple[str | bytes, str]] = [
    (WHOLE.replace("schemes =", "schems ="), "line 8, models.net.schems.*did you mean schemes"),
    (WHOLE.replace("[models.net.metric]", "[models.net.metrics]"), "line 16, .*mean metric"),
    (WHOLE.replace("max_abs", "max_ab"), r"line 14, .*limits.8a8w.max_ab: .*mean max_abs"),
    (WHOLE.replace("[schemes.8a8w]", "[schemes.8w8a]"), "line 3, .*schemes.8w8a"),
    (WHOLE.replace("= 0.5", '= "half"'), "line 14, .*max_abs: Expected `float | null`, got"),
    (WHOLE.replace('["8a8w", "fp16"]', '"fp16"'), "line 8, .*schemes: Expected `array`"),
    (WHOLE.replace("= 0.02", "= -0.02"), "line 19, .*max_drop: Expected `float` >= 0"),
    (WHOLE.replace("= 25.0", "= nan"), "line 4, .*min_sqnr_db: nan"),
    (WHOLE.replace("= 0.5", "= -inf"), "line 14, .*max_abs: -inf"),
    (WHOLE.replace("max_drop = 0.02\n", ""), "line 16, .*metric: the key max_drop is"),
    (WHOLE.replace('"default"', '"defualt"'), "line 1, .*mean default"),
    (EXTENDS + "models = 3\n", "line 2, models: Expected `object`, got `int`"),
    (
        EXTENDS + '[[advice]]\npattern = "a"\nfix = "b"\n[[advice]]\npattern = 3\nfix = "b"\n',
        r"line 6, advice\[1\].pattern: Expected `str`",
    ),
    (WHOLE + "[models.net]\n", "twice .at line 23"),
    (WHOLE.replace("socs =", "schemes ="), "line 9"),
    ("[models.net]\n", r'\[schemes\].*fix: write extends = "default"'),
    ("extends = \n", "line 1"),
    (b"\xff\xfe", "line 1 is not in UTF-8"),
    (EXTENDS + "a=" + "[" * 3000, "recursion|nested|Unclosed|Invalid"),
    (WHOLE.replace("nets/net.py:other", "nets/nte.py:other"), "nte.py is not a file"),
    (WHOLE.replace("net.py:other", "net.py"), "models.other-net.path: .*no function name"),
    (WHOLE.replace("net.py:other", "net.pt"), "net.pt is not a file"),
    (WHOLE.replace("net.py:other", "../data/labels.npy"), "not a Python file"),
    (WHOLE.replace("calibration.npz", "../../gone.npz"), "models.net.calibration: .*gone.npz"),
    (WHOLE.replace("labels.npy", "label.npy"), "models.net.metric.labels: no file"),
    (WHOLE.replace("metrics.py:top1", "metrics.py"), "metrics.py:function"),
    (EXTENDS + '[suite]\nmlp = ["fp16"]\n[models.mlp]\npath = "mlp"', "have the same name"),
    (WHOLE.replace('"other-net"', '"a/b"'), "invalid name for a model"),
    (WHOLE.replace('"other-net"', '"::error::x"'), "invalid name for a model"),
    (EXTENDS + '[suite]\nmpl = ["fp16"]\n', "the nearest is mlp"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_a_mistake_in_a_policy_is_reported_with_its_line_and_the_nearest_key(
    repository: Path, text: str | bytes, words: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        read(repository, text)
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)
    assert not words.startswith("line ") or "qnn.toml" in str(caught.value)


def test_a_dropped_limit_in_a_policy_is_accepted_with_a_warning(repository: Path) -> None:
    text = """
extends = "default"
[schemes.8a8w]
min_sqnr_db_channel = 10.0
max_nearer_db = 6.0
[models.net]
path = "nets/net.py:factory"
[models.net.limits.8a8w]
max_offset = 0.01
min_sqnr_db_all = 25.0
[models.net.limits.8a8w.outputs.1]
min_sqnr_db_all = 15.0
"""
    policy = read(repository, text)
    assert policy.dropped == ("max_nearer_db", "max_offset", "min_sqnr_db_channel")
    limits = policy.limits_of("net", Scheme.A8W8)
    assert (limits.min_sqnr_db_all, limits.of_output(1).min_sqnr_db_all) == (25.0, 15.0)
    assert limits.of_output(0) == limits
    for wrong in ("outputs.A", "outputs.-1"):
        with pytest.raises(ManifestError):
            read(repository, text.replace("outputs.1", wrong))


BUDGET = """
[budget]
lowering_memory_bytes = 9_000
[models.net.budget]
spill_bytes = 0
operators = { "*permute*" = 2 }
[models.net.budget.schemes.8a8w]
program_bytes = 70_000
operators = { "aten.cat.*" = 1 }
"""
GRAPH_BYTES = 2_097_152 << 10  # what QNN holds of a graph


def test_schemes_budget_overrides_the_models_which_overrides_the_defaults(repository: Path) -> None:
    policy = read(repository, WHOLE + BUDGET)
    common = Budget(context_bytes=GRAPH_BYTES, lowering_memory_bytes=9_000)
    assert policy.limits_of("other-net", Scheme.A8W8).budget == common
    operators = {"*permute*": 2}
    net_budget = common.merge(Budget(spill_bytes=0, operators=operators))
    assert policy.limits_of("net", Scheme.FP16).budget == net_budget
    narrow = Budget(program_bytes=70_000, operators={"aten.cat.*": 1})
    assert policy.limits_of("net", Scheme.A8W8).budget == net_budget.merge(narrow)
    assert policy.budget_of("net", Scheme.FP16) == Budget(spill_bytes=0, operators=operators)
    assert policy.for_backend(Backend.LPAI).limits_of("net", Scheme.A8W8).budget == common


UNSUPPORTED = """
[[unsupported]]
{} = ["{}"]
pattern = "x"
reason = "r"
"""


@pytest.mark.parametrize(
    ("key", "glob", "why"),
    [
        ("schemes", "8a8", "the nearest of them is 8a8w"),
        ("socs", "SM8[67]5", ""),
        ("socs", "sm8650", ""),
        ("models", "nett", "the nearest of them is net"),
        ("models", "net", None),
        ("models", "mlp", None),
        ("models", "file-of-another-run.onnx", None),
        ("models", "*", None),
        ("schemes", "mixed", None),
        ("schemes", "u8*", None),  # of ONNX models, in the policy of all lanes
        ("socs", "SA8255", None),
    ],
)
def test_a_row_of_refusals_that_covers_nothing_is_refused(
    repository: Path, key: str, glob: str, why: str | None
) -> None:
    mixture = (
        '[models.net.mixtures.mixed]\nbase = "8a8w"\nparts = [{ op = "x", scheme = "16a8w" }]\n'
    )
    text = f"{WHOLE}{mixture}{UNSUPPORTED.format(key, glob)}".replace(
        '["8a8w", "fp16"]', '["8a8w", "fp16", "mixed"]'
    )
    if why is None:
        assert read(repository, text).unsupported[0].reason == "r"
        return
    with pytest.raises(ManifestError, match=r"in \[?\w+.* matches nothing") as caught:
        read(repository, text)
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("limits", "dtypes", "errors"),
    [
        ("min_equal = 0.8", "int64 float32", []),
        ("min_equal = 0.8", "float32 float16", ["8a8w.min_equal has no effect"]),
        ("max_abs = 1.0", "int64 bool", ["8a8w.max_abs has no effect"]),
        ("max_abs = 1.0", "float16", []),
        ("outputs.1.min_equal = 0.9", "int64 float32", ["8a8w.outputs.1.min_equal has no effect"]),
        ("outputs.1.min_equal = 0.9", "float32 int64", []),
        ("outputs.2.max_abs = 1.0", "int64 float32", ["8a8w.outputs.2: the model's last output"]),
    ],
)
def test_limits_for_other_outputs_than_the_model_has_are_errors(
    repository: Path, limits: str, dtypes: str, errors: list[str]
) -> None:
    policy = read(repository, WHOLE.replace("max_abs = 0.5", limits))
    outputs = [TensorInfo(dtype, (1, 2)) for dtype in dtypes.split()]
    unused_limits = [error.what for error in policy.find_unused_limits("net", Scheme.A8W8, outputs)]
    assert len(unused_limits) == len(errors)
    for unused_limit, start in zip(unused_limits, errors, strict=True):
        assert unused_limit.startswith(f"models.net.limits.{start}")
