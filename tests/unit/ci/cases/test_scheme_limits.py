"""What each lane asks of each scheme: a limit is loosened here, too, or not at all."""

from __future__ import annotations

import pytest

from ci.cases.policy import read_emulator_policy
from ci.models.schemes import Scheme
from provisioning.manifest.targets import Backend

# SQNR over all input sets in dB, the share of equal elements of the quantized model, the program's.
LIMITS = {
    "emulator": {
        "fp16": (30, 0.995, None),
        "8a8w": (15, 0.9, 0.995),
        "16a8w": (20, 0.95, 0.995),
        "16a16w": (40, 0.99, 0.995),
        "16a4w": (10, 0.7, 0.995),
        "16a4w_block": (10, 0.7, 0.99),
        "8a4w": (10, 0.7, 0.995),
        "16a2w": (10, 0.7, 0.995),
        "fp16a8w": (20, 0.95, 0.995),
        "8a8w_qat": (15, 0.9, 0.995),
        "16a8w_qat": (20, 0.95, 0.995),
        "16a4w_qat": (15, 0.8, 0.995),
    },
    "onnx": {
        "fp16": (40, 0.995, None),
        "u8": (15, 0.9, 0.995),
        "u8_channel": (15, 0.9, 0.995),
        "u16a8w": (20, 0.95, 0.995),
        "u16a8w_channel": (20, 0.95, 0.995),
        "u16a16w": (40, 0.99, 0.995),
        "u16a4w": (10, 0.7, 0.995),
        "asis": (15, 0.9, 0.995),
    },
}
BACKENDS = {
    Backend.GPU: ("fp16",),
    Backend.LPAI: ("8a8w", "16a8w"),
    Backend.LPAI_ARM: ("8a8w", "16a8w"),
}
ABOVE_NOISE_DB = 10.0


@pytest.mark.parametrize("lane", LIMITS)
def test_no_limit_of_a_scheme_is_looser_than_here(lane: str) -> None:
    policy = read_emulator_policy(lane=lane)
    assert {one.value for one in policy.schemes} == set(LIMITS[lane])
    for name, (sqnr_db, equal, equal_quantized) in LIMITS[lane].items():
        rule = policy.limits_of("mlp", Scheme(name))
        assert (rule.min_sqnr_db_all, rule.min_equal) == (sqnr_db, equal), name
        assert rule.min_equal_quantized == equal_quantized, name
        assert rule.max_above_noise_db == ABOVE_NOISE_DB
        assert rule.full_delegation
        assert not rule.outputs
    assert not policy.override
    assert (policy.reference.min_rms, policy.reference.min_spread) == (0.001, 0.05)


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_backend_is_judged_by_the_same_limits(backend: Backend) -> None:
    policy = read_emulator_policy()
    own = policy.for_backend(backend)
    assert {one.value for one in own.schemes} == set(BACKENDS[backend])
    for name in BACKENDS[backend]:
        assert own.limits_of("mlp", Scheme(name)) == policy.limits_of("mlp", Scheme(name))
