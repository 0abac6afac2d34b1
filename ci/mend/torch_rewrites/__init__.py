"""Rewrites of graphs of torch.export, one function per row of
manifests/policies/rewrites.toml."""

from __future__ import annotations

from ci.mend.rewrite import TorchRewrite
from ci.mend.torch_rewrites.batch_norm import scale_batch_norm

REWRITES: dict[str, TorchRewrite] = {"scale-batch-norm": scale_batch_norm}
