"""What a command prints that a log shows is a quotation, as the command is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.explain.explain import explain, explain_text
from ci.explain.printed import MOST_COMMANDS
from ci.explain.rules import read_rules
from provisioning.manifest.reader import read_toml

RULES = read_rules()
DISK = "OSError: [Errno 28] No space left on device"
LOGS = read_toml("printed.toml", dict[str, dict[str, str]], Path(__file__).parent)


def find_causes(log: str) -> list[str]:
    return [cause.rule for cause in explain_text(log.replace("{}", DISK), RULES).causes]


@pytest.mark.parametrize("name", LOGS["quoted"])
def test_what_a_command_prints_that_the_log_shows_is_no_cause(name: str) -> None:
    assert find_causes(LOGS["quoted"][name]) == []
    assert find_causes(f"{LOGS['quoted'][name]}fine\n##[group]Run ./b\n{{}}\n") == ["no-space"]


@pytest.mark.parametrize("name", LOGS["genuine"])
def test_an_error_that_no_command_of_the_script_printed_is_a_cause(name: str) -> None:
    assert "no-space" in find_causes(LOGS["genuine"][name])


def test_for_all_rules_what_a_trace_prints_is_no_cause() -> None:
    lines = [rule.matches.splitlines()[0] for rule in RULES]
    for line in lines[::20]:
        argument = line.replace("'", "'\\''")
        explanation = explain_text(f"fine\n+ echo '{argument}'\n{line}\n+ exit 0\n", RULES)
        assert explanation.causes == (), line


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_command_and_what_it_prints_may_be_in_two_chunks(size: int) -> None:
    log = LOGS["quoted"]["trace late"].replace("{}", DISK).encode()
    chunks = [log[at : at + size] for at in range(0, len(log), size)]
    assert explain("log", chunks, RULES).causes == ()


def test_of_very_many_commands_only_the_first_ones_are_read() -> None:
    commands = "".join(f"+ echo {number}\n{number}\n" for number in range(MOST_COMMANDS))
    assert find_causes(f"{commands}+ echo '{{}}'\n{{}}\n") == ["no-space"]
