"""Rewrites of ONNX models, one function per row of manifests/policies/rewrites.toml."""

from __future__ import annotations

from ci.mend.rewrite import OnnxRewrite

REWRITES: dict[str, OnnxRewrite] = {}
