"""A page of a task begins with the one command that does it and what it prints."""

from __future__ import annotations

import pytest

from tests.documented.pages import ROOT, commands_of
from tests.static.test_links import tokens_of

# Guides without such a command, and why.
OTHERS = {
    "concepts": "it explains terms",
}
GUIDES = sorted(path.stem for path in (ROOT / "docs/guides").glob("*.md"))
COMMAND = {"", "sh"}
# Guides whose reader has installed `qnn-ci`.
INSTALLED = {"air-gapped", "ci", "device-lab", "your-repository"}


@pytest.mark.parametrize("name", GUIDES)
def test_a_task_begins_with_its_command_and_what_it_prints(name: str) -> None:
    text = (ROOT / f"docs/guides/{name}.md").read_text("utf-8")
    fences = [token for token in tokens_of(text) if token.type == "fence"][:2]
    kinds = [fence.info.strip() for fence in fences]
    is_task = len(fences) == 2 and kinds[0] in COMMAND and kinds[1] == "text"
    typed = commands_of(name, f"```sh\n{fences[0].content}```\n") if is_task else []
    own_commands = [command for command in typed if command.is_nox or command.verb]
    assert (len(own_commands) == 1) is (name not in OTHERS)


@pytest.mark.parametrize("name", GUIDES)
def test_a_page_of_the_installed_command_says_how_a_checkout_calls_it(name: str) -> None:
    text = (ROOT / f"docs/guides/{name}.md").read_text("utf-8")
    fences = [token for token in tokens_of(text) if token.type == "fence"]
    blocks = [fence.content for fence in fences if fence.info.strip() in COMMAND]
    is_shown = any(line.startswith("qnn-ci ") for block in blocks for line in block.splitlines())
    assert not is_shown or name in INSTALLED or "`./nox -s qnn_ci -- VERB`" in text
