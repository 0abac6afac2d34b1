"""The ONNX Runtime engine for the session and its workers. Only the process that runs a case
imports onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ci.cases.cache import digest_rooms, hash_words
from ci.cases.engine import Compiled, Staging
from ci.cases.spec import CaseSpec
from ci.onnx.options import SAVER_LIBRARY, choose_options, find_library
from ci.report.annotation import choose_case

ROOMS = ("models", "cases", "onnx")
BACKEND = ("backend_path", "backend_type")


@dataclass(frozen=True, kw_only=True)
class OnnxEngine:
    """Quantizes models, and compiles context binaries with QNN's provider.

    ``sdk`` is the root of QNN's libraries. ``given`` are the user's provider options. With
    ``embed``, the context binary is inside the ONNX file (embed mode 1), else next to it (0).
    ``saver`` requests a record of QNN's calls. ``log_level`` is QNN's while a program runs. With
    ``direct``, a session loads the model itself instead of a context binary. ``exports`` is true if
    any model is exported from torch. ``command`` is the command line of the session, without the
    selection of cases.
    """

    toolchain: tuple[str, ...]
    sdk: Path
    given: Mapping[str, str] = field(default_factory=dict)
    embed: bool = True
    saver: bool = False
    log_level: str = ""
    direct: bool = False
    exports: bool = True
    command: str = ""

    @property
    def imports(self) -> tuple[str, ...]:
        return ("ci.onnx.compile", *["ci.models.model"] * self.exports)

    def options(self, spec: CaseSpec) -> dict[str, str]:
        """Return all provider options of a case."""
        chosen = choose_options(spec.scheme, spec.soc, self.given)
        own = {name: text for name, text in chosen.items() if name not in BACKEND}
        return {"backend_path": str(find_library(self.sdk, self.given)), **own}

    def give_layers(self, spec: CaseSpec) -> CaseSpec | None:
        return replace(spec, layers=True)

    def repeat(self, spec: CaseSpec) -> str:
        """Return the command that runs only this case again; empty if unknown."""
        return self.command and choose_case(self.command, spec.model, spec.scheme.value, spec.soc)

    def preload(self, spec: CaseSpec) -> None:
        digest_rooms(ROOMS)
        if not spec.is_file:
            from ci.models.model import preload_model

            preload_model(spec.reference, spec.source)

    def key(self, spec: CaseSpec) -> str:
        from ci.models.numerics import NUMERICS, name_instructions
        from ci.onnx.compile import load_source

        options = choose_options(spec.scheme, spec.soc, self.given)
        return hash_words(
            load_source(spec, self.repeat(spec)).digest,
            *self.toolchain,
            digest_rooms(ROOMS),
            NUMERICS,
            name_instructions(),
            msgspec.json.encode(spec.scheme.recipe).decode(),
            spec.soc,
            msgspec.json.encode(sorted(options.items())).decode(),
            f"embed {self.embed} saver {self.saver} layers {spec.layers} direct {self.direct}",
        )

    def read_data(self, spec: CaseSpec) -> int:
        from ci.models.model import count_judged
        from ci.onnx.compile import load_source

        if spec.is_file:
            return len(load_source(spec).evaluation)
        return count_judged(spec.reference, spec.source)

    def warm_up(self, spec: CaseSpec) -> None:
        if not spec.is_file:
            from ci.onnx.compile import warm_exporter

            warm_exporter()

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        from ci.onnx.compile import compile_source, load_source

        saver = str(self.sdk / SAVER_LIBRARY) if self.saver else ""
        options = self.options(spec)
        embed = None if self.direct else self.embed
        return compile_source(load_source(spec), spec, staging, options, embed=embed, saver=saver)

    def explain(self, error: Exception, log: Path) -> str:
        from ci.onnx.stages import describe_refusal

        return describe_refusal(error, log)
