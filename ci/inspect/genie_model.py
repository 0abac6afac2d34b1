"""Read what the files of the model itself say in a folder for Genie: config.json,
generation_config.json and tokenizer_config.json of Hugging Face, which qai-hub-models copies into
the folders that it exports, and its metadata.json, which GenieX reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioning.documents import DocumentError, read_json

CONFIG, GENERATION, OF_TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
OF_EXPORT = "metadata.json"
SHARD = re.compile(r"\d+_of_(\d+)")  # in the names of files or graphs
MOST_BYTES = 16 << 20  # tokenizer_config.json lists all added tokens
# Where config.json of a model with several parts, such as one for pictures, describes its text.
TEXT_PARTS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True)
class ModelFacts:
    """What a model's files say. ``config`` is the part of config.json about text, empty without the
    file, ``ends`` are the tokens that end a text, as (file, ids or texts), and ``parts`` is the
    number of parts that metadata.json lists, 0 if it is not known."""

    config: Mapping[str, Any] = field(default_factory=dict)
    ends: tuple[tuple[str, tuple[int | str, ...]], ...] = ()
    parts: int = 0

    def find(self, places: Sequence[str]) -> Any:
        """Return the value of the first of these keys that config.json has, None without any. A key
        with a dot is one of an object below."""
        for place in places:
            value: Any = self.config
            for key in place.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                return value
        return None


def read_model_facts(folder: Path) -> ModelFacts:
    """Return what the files of the model in a folder say. A file that cannot be read says nothing:
    Genie does not read any of them."""
    config, generation, tokenizer = (
        read_object(folder / name) for name in (CONFIG, GENERATION, OF_TOKENIZER)
    )
    parts = [config.get(key) for key in TEXT_PARTS]
    text = next((part for part in parts if isinstance(part, dict)), {})
    merged = {**config, **text}
    is_of_text = "vocab_size" in merged  # else it is another program's config.json
    ends = (
        (CONFIG, tuple(list_ends(merged.get("eos_token_id")))),
        (GENERATION, tuple(list_ends(generation.get("eos_token_id")))),
        (OF_TOKENIZER, tuple(list_ends(tokenizer.get("eos_token")))),
    )
    return ModelFacts(
        merged if is_of_text else {},
        tuple((file, tokens) for file, tokens in ends if tokens and (file != CONFIG or is_of_text)),
        count_parts(read_object(folder / OF_EXPORT).get("model_files")),
    )


def count_parts(files: Any) -> int:
    """Return the number of parts that the files of metadata.json are, 0 if it is not known."""
    matches = map(SHARD.search, files) if isinstance(files, dict) else ()
    return max((int(match[1]) for match in matches if match), default=0)


def read_object(path: Path) -> Mapping[str, Any]:
    """Return the object in a file of JSON, empty if there is none."""
    if not path.is_file():
        return {}
    try:
        return read_json(path, dict[str, Any], MOST_BYTES)
    except (DocumentError, OSError):
        return {}


def list_ends(value: Any) -> Iterator[int | str]:
    """Yield the ids or the texts of tokens, of which there are one or several."""
    for token in value if isinstance(value, list) else [value]:
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, (int, str)) and not isinstance(content, bool):
            yield content
