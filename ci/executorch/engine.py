"""The ExecuTorch engine for the session and its workers. torch is imported only when a method needs
it, so that the session's process does not load it."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ci.cases.cache import digest_rooms, hash_words
from ci.cases.engine import Compiled, Staging
from ci.cases.spec import CaseSpec
from provisioning.manifest.targets import Backend

ROOMS = ("models", "cases", "executorch")


@dataclass(frozen=True)
class ExecutorchEngine:
    """Quantizes and lowers with ExecuTorch. ``toolchain`` has the versions and digests of all
    tools involved. ``plain`` disables the patches of ci.executorch.patches."""

    toolchain: tuple[str, ...]
    backend: Backend = Backend.HTP
    plain: bool = False
    imports = ("ci.executorch.runtime", "ci.models.model")

    def give_layers(self, spec: CaseSpec) -> CaseSpec | None:
        return None if spec.source.choices.methods else replace(spec, layers=True)

    def preload(self, spec: CaseSpec) -> None:
        from ci.models.model import preload_model

        digest_rooms(ROOMS)
        preload_model(spec.reference, spec.source)

    def key(self, spec: CaseSpec) -> str:
        from ci.models.model import load_digested

        return self.digest_key(load_digested(spec.reference, spec.source)[1], spec)

    def digest_key(self, model: str, spec: CaseSpec) -> str:
        """Return the cache key of a case; ``model`` is the model's digest.

        A key includes only the recipe of the case's scheme, so a new scheme does not change other
        keys. The effect of a user's functions is unknown, so with one the key is random.
        """
        from ci.models.numerics import NUMERICS, name_instructions

        choices = spec.source.choices
        return hash_words(
            model,
            *self.toolchain,
            digest_rooms(ROOMS),
            NUMERICS,
            name_instructions(),
            msgspec.json.encode(spec.scheme.recipe).decode(),
            spec.soc,
            self.backend.value,
            "plain" if self.plain else "",
            "layers" if spec.layers else "",
            msgspec.json.encode(choices).decode(),
            secrets.token_hex() if choices.functions else "",
        )

    def read_data(self, spec: CaseSpec) -> int:
        from ci.models.model import count_judged

        return count_judged(spec.reference, spec.source)

    def warm_up(self, spec: CaseSpec) -> None:
        from ci.executorch.patches import warm_up

        del spec
        for note in warm_up(plain=self.plain):
            logging.getLogger(__name__).warning(note)

    def compile(self, spec: CaseSpec, staging: Staging) -> Compiled:
        from ci.executorch.lower import Lowering
        from ci.models.model import load_digested

        model, _ = load_digested(spec.reference, spec.source)
        return Lowering(model, spec, staging, self.backend).write()

    def explain(self, error: Exception, log: Path) -> str:
        from ci.executorch.lower import describe_refusal

        return describe_refusal(error, log)
