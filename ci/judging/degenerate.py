"""References that prove nothing, whatever a program gives: found before anything is lowered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ci.judging.figures import Array, is_floating
from ci.models.user_models import ReferencePolicy
from provisioning.errors import FailedError


def require_proof(reference: Sequence[Sequence[Array]], policy: ReferencePolicy | None) -> None:
    """Raises FailedError for outputs of a float32 model that no program could be judged by."""
    if policy and (fault := find_degenerate(reference, policy)):
        raise FailedError(f"the reference proves nothing: {fault}")


def find_degenerate(reference: Sequence[Sequence[Array]], policy: ReferencePolicy) -> str:
    """Why a reference proves nothing; empty when it is good. One list an input set.

    A floating-point output has to be finite, to differ from zero and from a constant, and to
    depend on the input. Integers and booleans may be the same for every input, as the mask of
    unpadded text is, where another output is not.
    """
    columns = [np.stack(arrays) for arrays in zip(*reference, strict=True)]
    faults = [_find_fault(column, index, policy) for index, column in enumerate(columns)]
    floating = [fault for fault, one in zip(faults, columns, strict=True) if is_floating(one)]
    if floating and not any(floating):
        return ""
    return next(filter(None, floating), "") or ("" if "" in faults else faults[0])


def _find_fault(stacked: Array, index: int, policy: ReferencePolicy) -> str:
    if is_floating(stacked):
        values = stacked.astype(np.float64)
        if not np.isfinite(values).all():
            return f"output {index} of the float32 model is not finite"
        rms = float(np.sqrt(np.mean(values**2))) if values.size else 0.0
        if rms < policy.min_rms:
            return f"output {index} is near zero (RMS {rms:.2g} < {policy.min_rms:g})"
        if float(values.std()) < policy.min_spread * rms:
            return f"output {index} is constant (spread {values.std() / rms:.2g} of its RMS)"
    elif (stacked == stacked.reshape(-1)[:1]).all():
        return f"output {index} is constant"
    if len(stacked) > 1 and (stacked == stacked[:1]).all():
        return f"output {index} is the same for every input: vary the inputs, or leave it out"
    return ""
