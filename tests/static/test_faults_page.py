"""The example of docs/guides/faults.md counts the blocks and size classes of
manifests/policies/blocks.toml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from provisioning.manifest.reader import read_policy

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "faults.md"
EXAMPLE = re.compile(r"of (\d+) blocks, in \d+ of (\d+) size classes")


def test_the_example_of_a_search_counts_the_blocks_and_size_classes_of_its_runtime() -> None:
    blocks = read_policy("blocks", dict[str, Any])
    supported = [block for block in blocks["block"] if "onnx" in block.get("frontends", ["onnx"])]
    classes = [len(blocks["sizes"][block["sizes"]]) for block in supported]
    shown = EXAMPLE.search(PAGE.read_text(encoding="utf-8"))
    assert shown
    assert [int(number) for number in shown.groups()] == [len(classes), sum(classes)]
