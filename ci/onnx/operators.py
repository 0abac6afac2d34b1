"""The way round for ONNX operators that QNN refuses: manifests/policies/onnx-operators.toml."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from msgspec import Struct

from provisioning.manifest.reader import read_policy


class _File(Struct, forbid_unknown_fields=True):
    notes: dict[str, str]


@functools.cache
def read_notes() -> Mapping[str, str]:
    """Advice by operator; the domain stands before the name where it is not ONNX's own.

    Raises ManifestError.
    """
    return read_policy("onnx-operators", _File).notes


def name_operator(domain: str, op_type: str) -> str:
    """``com.microsoft:Inverse``, or ``Relu``: an operator as the notes call it."""
    return op_type if domain in ("", "ai.onnx") else f"{domain}:{op_type}"
