"""Which keys of TOML files and which code blocks of pages count as changed."""

from __future__ import annotations

import pytest

from ci.gate.parts import list_changed_keys, list_changed_parts


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("a = 1", "a = 1 # note", set()),
        ("a = 1", "a = 2", {"a"}),
        ("a = 1", "", {"a"}),
        ("a = 0", "a = false", {"a"}),
        ("[a.b]\nc = 1\nd = 1", "[a.b]\nc = 2\nd = 1", {"a.b"}),
        ("", "[a]\nb = 1\nc = 1", {"a.b", "a.c"}),
        ("[a]\nb = 1", "a = 1", {"a"}),
        ("[[a]]\nb = 1", "[[a]]\nb = 2", {"a"}),
        ("a = 1", "[[[", {"?"}),
        ("a = 1", f"a = {'[' * 9999}{']' * 9999}", {"?"}),
    ],
)
def test_changed_keys_of_a_toml_file_are_listed(old: str, new: str, keys: set[str]) -> None:
    assert list_changed_keys(old, new) == keys
    assert list_changed_parts("a.toml", old, new) == keys
    assert list_changed_parts("a.py", old, new) is None


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("text", "other text", False),
        ("", "```python\nx\n```\n", True),
        ("", "  ```python\n  x\n  ```  \n", True),
        ("``` toml \nx\n```\n", "```toml\nx\n```\n", False),
        ("```toml\nx\n```\n", "```yaml\nx\n```\n", True),
        ("```toml\nx\n```\n", "```sh\nx\n```\n```toml\nx\n```\n", False),
        *(
            ("", f"```{kind}\nx\n```\n", False)
            for kind in ("", " ", "sh", " bash ", "console", "text")
        ),
    ],
)
def test_markdown_page_changes_only_with_its_code_blocks(old: str, new: str, differs: bool) -> None:
    for before, after in ((old, new), (new, old)):
        changed_parts = list_changed_parts("a.md", before, after)
        assert changed_parts == frozenset({"code"} if differs else ())
