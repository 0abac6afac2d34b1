"""Tokenizers of four kinds, and those that do not belong to a model."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest

from ci.llm.tokenizers import PieceTable, read_tokenizer
from provisioning.errors import UsageError

PAIRS = [
    ("<unk>", 0.0),
    ("<s>", 0.0),
    ("</s>", 0.0),
    ("<0x0A>", 0.0),
    ("<0xC3>", 0.0),
    ("<0xAB>", 0.0),
]
PAIRS += [(character, -9.0) for character in " abc"] + [
    ("ab", -2.0),
    ("bc", -1.0),
    (" a", -3.0),
    ("abc", -4.0),
]


def write_bin(path: Path, *header: int) -> Path:
    rows = [(piece.encode(), score) for piece, score in PAIRS]
    data = b"".join(struct.pack("<fi", score, len(piece)) + piece for piece, score in rows)
    path.write_bytes(struct.pack(f"<{len(header)}i", *header) + data)
    return path


@pytest.mark.parametrize(
    ("header", "ends"),
    [
        ((6,), (1, 2)),
        ((len(PAIRS), 1, 2, 6), (1, 2)),
        # With the short header, the last number would be a piece of four bytes.
        ((len(PAIRS), 3, 4, 6), (3, 4)),
    ],
)
def test_both_headers_of_llama2c_are_read(
    header: tuple[int, ...], ends: tuple[int, int], tmp_path: Path
) -> None:
    tokenizer = read_tokenizer(write_bin(tmp_path / "t.bin", *header))
    assert (tokenizer.vocabulary, tokenizer.bos, tokenizer.eos) == (len(PAIRS), *ends)


@pytest.mark.parametrize("length", [-8, -1])
def test_a_tokenizer_piece_of_negative_length_is_refused(length: int, tmp_path: Path) -> None:
    """Otherwise, the reader would never advance."""
    path = write_bin(tmp_path / "t.bin", 6)
    path.write_bytes(path.read_bytes() + struct.pack("<fi", 0.0, length))
    with pytest.raises(UsageError, match=r"t\.bin"):
        read_tokenizer(path)


@pytest.mark.parametrize("header", [(6,), (len(PAIRS), 1, 2, 6)])
def test_truncated_or_longer_tokenizer_is_refused(header: tuple[int, ...], tmp_path: Path) -> None:
    path = write_bin(tmp_path / "t.bin", *header)
    data, last = path.read_bytes(), len("abc") + 8
    for wrong in (*(data[:-cut] for cut in range(1, last)), *(data + bytes(n) for n in (1, 7))):
        path.write_bytes(wrong)
        with pytest.raises(UsageError, match=r"t\.bin"):
            read_tokenizer(path)


def test_the_best_pair_is_merged_first_and_of_two_equal_ones_the_first_as_run_c_does() -> None:
    """The best pair is not the first one: a and b could be merged, too."""
    scores = {" ": 0.0, "a": 0.0, "b": 0.0, "c": 0.0, "ab": 1.0, "bc": 2.0, "ca": 2.0}
    pieces = [(piece.encode(), score) for piece, score in scores.items()]
    table = PieceTable(pieces, -1, -1)

    def cut(text: str) -> list[str]:
        return [[*scores][number] for number in table.encode(text)]

    assert cut("abc") == [" ", "a", "bc"]
    assert cut("ab") == [" ", "ab"]
    assert cut("bca") == [" ", "bc", "a"]
    assert cut("abab") == [" ", "ab", "ab"]
    low = PieceTable([(piece, -score) for piece, score in pieces], -1, -1)
    assert [[*scores][number] for number in low.encode("abc")] == [" ", "ab", "c"]
    assert table.encode("") == []


def test_characters_without_a_piece_are_bytes(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_bin(tmp_path / "t.bin", 6))
    ids = tokenizer.encode("aë\n")
    assert ids[-3:] == [4, 5, 3]
    assert tokenizer.decode([1, *ids, 2]) == "aë\n"
    with pytest.raises(UsageError, match="<0x7A>"):
        tokenizer.encode("z")
    assert tokenizer.decode([-1, 7, len(PAIRS) - 1, len(PAIRS)]) == "\ufffdaabc\ufffd"
    assert tokenizer.decode([0]) == "<unk>"
    assert tokenizer.decode([4, 7]) == "\ufffda"  # a text may end within a character


def test_a_hugging_face_tokenizer_is_read(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "[UNK]": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    without_config = read_tokenizer(tmp_path / "tokenizer.json")
    assert (
        without_config.kind,
        without_config.vocabulary,
        without_config.bos,
        without_config.eos,
    ) == ("tokenizers", 5, 0, 1)
    assert without_config.prompt("b a") == (0, 3, 2)
    named = {"bos_token": {"content": "a"}, "eos_token": "b"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    with_config = read_tokenizer(tmp_path / "tokenizer.json")
    assert (with_config.bos, with_config.eos) == (2, 3)
    assert with_config.decode((3, 2)) == "b a"
    named = {"bos_token": {"content": "gone"}, "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    with_config = read_tokenizer(tmp_path / "tokenizer.json")
    assert (with_config.bos, with_config.eos) == (-1, 1)
    assert with_config.prompt("a") == (2,)


def test_special_tokens_of_hugging_face_are_neither_added_nor_shown(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "a": 2, "[UNK]": 3}
    written = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    written.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|added|>"])
    ends = [("<|begin_of_text|>", 0)]
    written.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=ends
    )
    written.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.vocabulary, tokenizer.bos, tokenizer.eos) == (5, 0, 1)
    assert list(tokenizer.encode("a")) == [2]
    assert tokenizer.decode((0, 2, 1)) == "a"


def test_a_sentencepiece_tokenizer_is_read(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    with (tmp_path / "tokenizer.model").open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b ab abc cab b c a"] * 5),
            model_writer=stream,
            vocab_size=12,
            hard_vocab_limit=False,
            minloglevel=9,
        )
    tokenizer = read_tokenizer(tmp_path / "tokenizer.model")
    assert (tokenizer.kind, tokenizer.bos, tokenizer.eos) == ("sentencepiece", 1, 2)
    sentencepiece_processor = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "tokenizer.model")
    )
    assert tokenizer.vocabulary == sentencepiece_processor.vocab_size() > 3
    ids = tokenizer.prompt("ab c")
    assert ids == (1, *sentencepiece_processor.encode("ab c"))
    assert tokenizer.decode(ids[1:]) == "ab c"


def test_a_tiktoken_tokenizer_is_read(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    rows = [bytes([number]) for number in range(256)] + [b"ab"]
    text = "".join(f"{base64.b64encode(piece).decode()} {n}\n" for n, piece in enumerate(rows))
    (tmp_path / "tokenizer.model").write_text(text)
    tokenizer = read_tokenizer(tmp_path / "tokenizer.model")
    assert (tokenizer.kind, tokenizer.vocabulary, tokenizer.bos) == ("tiktoken", 257 + 256, 257)
    assert tokenizer.prompt("ab") == (257, 256)
    assert tokenizer.decode([97, 98]) == "ab"
    assert tokenizer.encode("ab<|end_of_text|>")[0] == 256
    assert tokenizer.eos == 258


@pytest.mark.parametrize("name", ["broken.json", "broken.model"])
def test_tokenizer_file_that_its_library_cannot_read_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"no tokenizer at all")
    with pytest.raises(UsageError, match=f"the tokenizer {name} cannot be read"):
        read_tokenizer(tmp_path / name)


def test_padding_that_a_file_asks_for_takes_no_memory(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    padding_tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    )
    padding_tokenizer.enable_padding(length=1000)
    data = json.loads(padding_tokenizer.to_str())
    data["padding"]["strategy"] = {"Fixed": 1 << 28}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    assert list(read_tokenizer(path).encode("b")) == [1]
