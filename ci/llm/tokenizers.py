"""Reads four kinds of tokenizers.

llama2.c's .bin files are parsed here. sentencepiece cannot read them, and the C++ reader in
pytorch_tokenizers, which upstream's runner uses, supports only files with a longer header.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ci.cases.limited import run_limited
from provisioning.documents import POINTER, DocumentError, read_bytes, read_json, read_text
from provisioning.errors import UsageError, describe_exception

T = TypeVar("T")
MOST_BYTES = 256 << 20
PIECE = struct.Struct("<fi")  # score, length
SPECIALS = {
    "bos": ("<|begin_of_text|>", "<s>", "<bos>"),
    "eos": ("<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|endoftext|>"),
}


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of a certain ``kind``. ``encode`` returns ids without BOS, and ``decode`` returns
    text. ``vocabulary`` is the number of pieces. ``bos`` and ``eos`` are -1 if the file does not
    define them."""

    kind: str
    vocabulary: int
    bos: int
    eos: int
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]

    def prompt(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text, preceded by BOS if the tokenizer has it. Raises UsageError if
        there is no id at all, or if a character has no piece."""
        ids = (*((self.bos,) if self.bos >= 0 else ()), *self.encode(text))
        if not ids:
            raise UsageError(
                "the prompt has no tokens", why="it is empty, and the tokenizer has no BOS token"
            )
        return ids

    def require(self, owner: str, **numbers: int | None) -> None:
        """Raise UsageError if the tokenizer's ``bos`` or ``eos`` differs from the wanted one, or
        its ``vocabulary`` by more than 1 %: models have unused rows, and tokenizers pieces that
        only other models of a family use. ``owner`` names the program or weights that require it.
        None is ignored."""
        for name, number in numbers.items():
            own_number = getattr(self, name)
            spare = (number or 0) // 100 if name == "vocabulary" else 0
            if number is not None and abs(own_number - number) > spare:
                raise UsageError(
                    f"the tokenizer does not belong to {owner}",
                    why=f"it has {name} = {own_number}, but {owner} has {name} = {number}",
                    fix="pass the tokenizer that was published with the weights to --tokenizer",
                )


MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class TextAnswer:
    """The ids of texts, and those of BOS and EOS, which are -1 if there are none."""

    bos: int
    eos: int
    prompts: tuple[tuple[int, ...], ...]
    text: tuple[int, ...] = ()


@dataclass(frozen=True)
class TextQuestion:
    """Asks the tokenizer at ``path`` for the ids of prompts and, if there is one, of the text in
    the file ``text``. It must belong to ``owner``, which has a ``vocabulary``."""

    path: Path
    owner: str
    vocabulary: int
    prompts: tuple[str, ...]
    text: Path | None = None

    def __call__(self) -> TextAnswer:
        tokenizer = read_tokenizer(self.path)
        tokenizer.require(self.owner, vocabulary=self.vocabulary)
        prompts = tuple(tokenizer.prompt(prompt) for prompt in self.prompts)
        ids: tuple[int, ...] = ()
        if self.text:
            try:
                ids = tokenizer.prompt(read_text(self.text))
            except (OSError, ValueError) as error:
                raise UsageError(f"--text {self.text} cannot be read", why=str(error)) from error
        return TextAnswer(tokenizer.bos, tokenizer.eos, prompts, ids)


def check_tokenizer(path: Path) -> None:
    """Raise UsageError if the tokenizer at ``path`` cannot be read."""
    read_tokenizer(path)


def show_tokens(path: Path, ids: Sequence[int]) -> str:
    """Return the text of ids. Raises UsageError if the tokenizer at ``path`` cannot be used."""
    return ask_tokenizer(partial(_decode, path, tuple(ids)), path)


def _decode(path: Path, ids: Sequence[int]) -> str:
    return read_tokenizer(path).decode(ids)


def ask_tokenizer(job: Callable[[], T], path: Path) -> T:
    """Return the result of a job with the tokenizer at ``path``, in a process with limits: with
    some files, the packages do not end, take gigabytes or abort the process."""
    fix = "pass another tokenizer"
    return run_limited(job, f"the tokenizer {path.name}", max_bytes=MEMORY_BYTES, fix=fix)


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer file: .json from Hugging Face, .model from sentencepiece or tiktoken, or
    .bin from llama2.c or ExecuTorch.

    Raises UsageError for other files, and for files that cannot be read.
    """
    readers = {".json": _read_json, ".model": _read_model, ".bin": _read_bin}
    if path.suffix not in readers or not path.is_file():
        raise UsageError(
            f"{path} is not a tokenizer",
            why=f"it is missing, or its suffix is not one of {', '.join(readers)}",
        )
    try:
        data = read_bytes(path, MOST_BYTES)
        if data.startswith(POINTER):
            text = f"{path} is a Git LFS pointer"
            raise UsageError(text, fix="run `git lfs pull`")  # noqa: TRY301
        return readers[path.suffix](path, data)
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # such as the PanicException of a package in Rust
        why = describe_exception(error)
        raise UsageError(f"the tokenizer {path.name} cannot be read", why=why) from error


def _read_json(path: Path, data: bytes) -> Tokenizer:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_buffer(data)
    tokenizer.no_padding()  # to the length that the file names, which may need gigabytes
    tokenizer.no_truncation()
    beside = path.with_name("tokenizer_config.json")
    named: dict[str, Any] = {}
    if beside.exists():
        try:
            named = read_json(beside, dict[str, Any])
        except DocumentError as error:
            raise UsageError(f"{beside} cannot be read", why=str(error)) from error
    special_ids = {}
    for end, usual in SPECIALS.items():
        named_token = named.get(f"{end}_token")
        word = named_token.get("content") if isinstance(named_token, dict) else named_token
        ids = [tokenizer.token_to_id(number) for number in ((word,) if word else usual)]
        special_ids[end] = next((number for number in ids if number is not None), -1)
    return Tokenizer(
        "tokenizers",
        tokenizer.get_vocab_size(),
        special_ids["bos"],
        special_ids["eos"],
        lambda text: _run(path, lambda: tokenizer.encode(text, add_special_tokens=False).ids),
        lambda ids: _run(path, lambda: tokenizer.decode(list(ids), skip_special_tokens=True)),
    )


def _run(path: Path, call: Callable[[], T]) -> T:
    """Return the result of a call of the tokenizers package. Raises UsageError if it fails, for
    example because of a regular expression in the file at ``path``."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as the package's PanicException
        why = describe_exception(error)
        raise UsageError(f"the tokenizer {path.name} cannot be used", why=why) from error


def _read_model(path: Path, data: bytes) -> Tokenizer:
    first = data[:200].split(b"\n")[0].split(b" ")
    if len(first) == 2 and first[1].isdigit() and base64.b64decode(first[0], validate=True):
        from pytorch_tokenizers import TiktokenTokenizer

        ranks = TiktokenTokenizer(model_path=str(path))
        return Tokenizer(
            "tiktoken",
            ranks.n_words,
            ranks.bos_id,
            ranks.eos_id,
            lambda text: ranks.encode(text, bos=False, eos=False),
            lambda ids: ranks.decode(list(ids)),
        )
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_proto=data)
    return Tokenizer(
        "sentencepiece",
        pieces.vocab_size(),
        pieces.bos_id(),
        pieces.eos_id(),
        pieces.encode,
        lambda ids: pieces.decode(list(ids)),
    )


def _read_bin(path: Path, data: bytes) -> Tokenizer:
    """Read a tokenizer in the .bin format of llama2.c or ExecuTorch. A header of int32 numbers
    comes before the pieces. In llama2.c's format, it is the length of the longest piece; in
    ExecuTorch's, it is the size of the vocabulary, BOS, EOS and that length."""
    longest, bos, eos = struct.unpack_from("<i", data)[0], 1, 2
    pieces = _list_pieces(data, 4)
    # ExecuTorch's longer header can look like a short one and a piece.
    if pieces is None or max(len(piece) for piece, _ in pieces) != longest:
        count, bos, eos, longest = struct.unpack_from("<4i", data)
        pieces = _list_pieces(data, 16)
        if pieces is None or len(pieces) != count:
            raise UsageError(
                f"{path.name} is not a tokenizer of llama2.c",
                why="its pieces contradict its header",
            )
    table = PieceTable(pieces, bos, eos)
    return Tokenizer("llama2.c", len(pieces), bos, eos, table.encode, table.decode)


def _list_pieces(data: bytes, start: int) -> list[tuple[bytes, float]] | None:
    pieces = []
    while start + PIECE.size <= len(data):
        score, length = PIECE.unpack_from(data, start)
        start += PIECE.size + length
        # With a negative length, the reader might never advance.
        if length < 0 or start > len(data):
            return None
        pieces.append((data[start - length : start], score))
    return pieces if pieces and start == len(data) else None


class PieceTable:
    """Encodes text like llama2.c's run.c: it adds a leading space and splits the text into
    characters. Then it repeatedly merges the adjacent pair with the highest score, until no pair
    can be merged."""

    def __init__(self, pieces: Sequence[tuple[bytes, float]], bos: int, eos: int) -> None:
        self.pieces, self.ends = pieces, {bos, eos}
        self.ids: dict[bytes, int] = {}
        for number, (piece, _) in enumerate(pieces):
            self.ids.setdefault(piece, number)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. A character without a piece is encoded as bytes. Raises
        UsageError if such a byte has no piece either."""
        ids: list[int] = []
        for character in f" {text}" if text else "":
            encoded = character.encode()
            parts = [encoded] if encoded in self.ids else [b"<0x%02X>" % byte for byte in encoded]
            if missing := [part for part in parts if part not in self.ids]:
                raise UsageError(
                    f"the tokenizer has no piece for {character!r}",
                    why=f"it also lacks {missing[0].decode()}, the piece for one of its bytes",
                )
            ids += [self.ids[part] for part in parts]
        while best := self._find_pair(ids):
            _, place, merged = best
            ids[place : place + 2] = [merged]
        return ids

    def _find_pair(self, ids: Sequence[int]) -> tuple[float, int, int] | None:
        best = None
        for place in range(len(ids) - 1):
            merged = self.ids.get(self.pieces[ids[place]][0] + self.pieces[ids[place + 1]][0])
            if merged is not None and (best is None or self.pieces[merged][1] > best[0]):
                best = (self.pieces[merged][1], place, merged)
        return best

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text without BOS and EOS. Ids without a piece become U+FFFD."""
        parts = []
        for number in ids:
            if number in self.ends:
                continue
            piece = self.pieces[number][0] if 0 <= number < len(self.pieces) else b"\xef\xbf\xbd"
            is_byte = len(piece) == 6 and piece.startswith(b"<0x") and piece.endswith(b">")
            parts.append(bytes.fromhex(piece[3:5].decode()) if is_byte else piece)
        return b"".join(parts).decode("utf-8", "replace").removeprefix(" ")


def list_token_ids(document: Mapping[str, Any]) -> list[int]:
    """Return the ids of a tokenizer.json of Hugging Face: those of its vocabulary, and of its added
    tokens."""
    model, added = document.get("model"), document.get("added_tokens")
    words = model.get("vocab") if isinstance(model, dict) else None
    ids: list[Any] = []
    if isinstance(words, dict):
        ids += words.values()
    elif isinstance(words, list):  # of a unigram model: pairs of a token and its score
        ids += range(len(words))
    rows = added if isinstance(added, list) else []
    ids += [row.get("id") for row in rows if isinstance(row, dict)]
    return [number for number in ids if isinstance(number, int)]


def list_token_texts(document: Mapping[str, Any]) -> dict[int, str]:
    """Return the texts of the tokens that list_token_ids counts, by their ids."""
    model, added = document.get("model"), document.get("added_tokens")
    words = model.get("vocab") if isinstance(model, dict) else None
    texts: dict[Any, Any] = {}
    if isinstance(words, dict):
        texts |= {number: text for text, number in words.items() if isinstance(number, int)}
    elif isinstance(words, list):
        texts |= {place: row[0] for place, row in enumerate(words) if isinstance(row, list) and row}
    rows = added if isinstance(added, list) else []
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("id"), int):
            texts[row["id"]] = row.get("content")
    return {
        number: text
        for number, text in texts.items()
        if isinstance(number, int) and isinstance(text, str)
    }


def find_repeated_id(document: Mapping[str, Any]) -> tuple[int, str, str] | None:
    """Return an id that two added tokens of a tokenizer.json have, with their texts, None if there
    is none."""
    texts: dict[int, str] = {}
    for row in list_added_tokens(document):
        number, text = row.get("id"), str(row.get("content"))
        if isinstance(number, int) and texts.setdefault(number, text) != text:
            return number, texts[number], text
    return None


def find_wrong_merge(document: Mapping[str, Any]) -> str:
    """Return why a tokenizer.json cannot be loaded, "" if it can: one of its merges, pairs or texts
    with a space between, has a token, or makes one, that its vocabulary lacks."""
    model = document.get("model")
    if not isinstance(model, dict):
        return ""
    words, merges = model.get("vocab"), model.get("merges")
    if not isinstance(words, dict) or not isinstance(merges, list):
        return ""
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_text, pair)):
            continue
        first, second = pair
        prefix = model.get("continuing_subword_prefix") or ""
        for token in (first, second, first + second.removeprefix(str(prefix))):
            if token not in words:
                return f"a merge has the token {token[:40]!r}, which is not in the vocabulary"
    return ""


def is_text(value: object) -> bool:
    """Return whether a value of JSON is a text."""
    return isinstance(value, str)


def list_added_tokens(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of a tokenizer.json's added tokens."""
    added = document.get("added_tokens")
    return [row for row in added if isinstance(row, dict)] if isinstance(added, list) else []


def list_special_ids(document: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids of a tokenizer.json that no text of a user becomes: special tokens, and others
    that look like them."""
    rows = list_added_tokens(document)
    special = {row["id"] for row in rows if row.get("special") and isinstance(row.get("id"), int)}
    texts = list_token_texts(document)
    return frozenset(special | {number for number in texts if MARKER.fullmatch(texts[number])})


# What special tokens look like: <eos>, [INST], <|im_end|>, </s>.
# Those of chats, without [INST] of Llama 2, which is ordinary text there, and tags of tools.
CHAT_TOKEN = re.compile(r"<\|[a-z_]+\|?>|<(?:start|end)_of_[a-z]+>")
MARKER = re.compile(r"(<[^<>\s]+>|\[[A-Z_/]+\])")
# The tokens with which chat models end a turn: of Llama 3, Qwen, Gemma, Phi and GLM, LFM2, and
# Gemma 4. A base model may have them, too, and does not generate them.
ENDS_OF_TURN = (
    *("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|eot|>", "<turn|>"),
    *("<|endofturn|>", "<|end_of_turn|>", "<|return|>"),
)


def find_ends_of_turn(texts: Mapping[int, str]) -> list[tuple[int, str]]:
    """Return the ids and the texts of the tokens that end a turn, of those with these ``texts``."""
    return [(number, text) for number, text in texts.items() if text in ENDS_OF_TURN]
