"""Lets ExecuTorch's partitioner judge a model in a worker; torch is imported where it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ci.audit.operators import Found
from ci.cases.engine import Staging
from ci.cases.forked import run_forked
from ci.cases.spec import CaseSpec
from ci.executorch.engine import ExecutorchEngine


@dataclass(frozen=True)
class AuditJob:
    """Quantizes a model and partitions it as test-emulator does, without QNN's compiler. ``work``
    is a scratch directory, ``log`` what everything prints to."""

    engine: ExecutorchEngine
    spec: CaseSpec
    work: Path
    log: Path

    def __call__(self) -> tuple[Found, float]:
        """Return what was found, and the seconds. Raises UsageError for a wrong model or data,
        FailedError for a model that fails or a partitioner that dies."""
        began = time.monotonic()
        self.engine.preload(self.spec)
        self.engine.warm_up(self.spec)
        found = run_forked(self.partition, "partitioning")
        return found, time.monotonic() - began

    def partition(self) -> Found:
        """Do it, in a fork."""
        from ci.audit.operators_partitions import partition_model
        from ci.models.model import load_digested

        model, _ = load_digested(self.spec.reference, self.spec.source)
        staging = Staging(self.work, self.log, self.work)
        return partition_model(model, self.spec, staging)
