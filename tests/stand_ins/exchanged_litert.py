"""An engine of the LiteRT lane whose programs are those of another model, with the same names and
shapes. Nothing in a file shows this, because the plugin writes no hash of the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ci.cases.engine import Compiled, Staging
from ci.cases.spec import CaseSpec
from ci.litert.engine import PLUGIN_SHARE, LitertEngine


@dataclass(frozen=True, kw_only=True)
class ExchangingEngine(LitertEngine):
    """``exchanged`` is the model whose program replaces that of the case."""

    exchanged: Path

    def key(self, spec: CaseSpec) -> str:
        return f"{super().key(spec)[:-8]}exchange"

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        from ci.litert.compile import COMPILED, PROGRAM
        from ci.litert.plugin import run_plugin

        compiled = super().compile(spec, staging)
        run_plugin(
            self.exchanged,
            staging.directory / PROGRAM / COMPILED,
            spec.soc,
            library_folder=self.library.parent,
            log=staging.log,
            timeout_s=self.timeout_s * PLUGIN_SHARE,
        )
        return compiled
