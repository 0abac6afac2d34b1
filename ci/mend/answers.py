"""Keeps the answers of experiments in the store, so that a rerun repeats none."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ci.cases.cache import hash_words
from ci.diagnosis.experiments import (
    Experiment,
    ListOperators,
    ListRemedies,
    Operator,
    RemedyChoice,
    Result,
    RunPart,
)
from provisioning.documents import DocumentError, read_json
from provisioning.files import digest_sources, write_whole
from provisioning.manifest.reader import manifests_root
from provisioning.store.home import store_home

KINDS: dict[type[Any], Any] = {
    ListRemedies: list[RemedyChoice],
    ListOperators: list[Operator],
    RunPart: Result,
}


def answers_home() -> Path:
    """Return the directory of answers."""
    return store_home() / "answers"


@cache
def digest_code() -> str:
    """Return one SHA-256 for all that decides an answer besides the program: this project's code
    and its policies, such as the table of rewrites."""
    return digest_sources(Path(__file__).parents[1], manifests_root() / "policies")


@dataclass(frozen=True)
class Answers:
    """The answers about the model of one program. ``words`` determine them: the key of the program,
    which stands for model, scheme, SoC and toolchain, and what judges and runs it."""

    words: tuple[str, ...]
    home: Path

    def find_path(self, experiment: Experiment) -> Path | None:
        """Return the file of an experiment's answer; None for one that is not kept."""
        if type(experiment) not in KINDS:
            return None
        question = msgspec.json.encode(experiment)
        name = hashlib.sha256(question).hexdigest()
        key = hash_words(digest_code(), *self.words, type(experiment).__name__, name)
        return self.home / f"{key}.json"

    def read(self, experiment: Experiment) -> Any:
        """Return the answer to an experiment, or None if there is none."""
        path = self.find_path(experiment)
        with suppress(OSError, DocumentError):
            return read_json(path, KINDS[type(experiment)]) if path else None
        return None

    def write(self, experiment: Experiment, answer: Any) -> None:
        """Keep an answer. One that cannot be written, as in a full or foreign store, is made again
        by the next run."""
        path = self.find_path(experiment)
        if path is None or answer is None:
            return
        with suppress(OSError):
            self.home.mkdir(parents=True, exist_ok=True)
            write_whole(path, msgspec.json.encode(answer))
