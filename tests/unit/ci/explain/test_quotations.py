"""A line that only quotes an error is no cause, for any rule and in any form; the same error in the
forms in which programs print errors is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ci.explain.explain import Explanation, explain, explain_text, find_known
from ci.explain.quotations import Form, Where, read_forms, unquote
from ci.explain.rules import Role, read_rules
from provisioning.manifest.reader import read_toml

RULES = read_rules()
LINES = [rule.matches.splitlines()[0] for rule in RULES]
TABLE: list[dict[str, Any]] = read_toml("quotations.toml", dict[str, Any], Path(__file__).parent)[
    "group"
]
FORMS = [form for group in TABLE for form in group["forms"]]
PREFIXES = [
    *("2026-11-29T10:00:00.1234567Z ", "[12:00:01] ", "#12 3.4 ", "web-1  | ", "web_1  | "),
    *("build\ttest\t2026-11-29T10:00:00.1234567Z ", "2026-03-27T21:09:08.000000Z 01O "),
    *("[2026-11-29T10:00:00.123Z] ", "[12:00:01]i:\t", "##[debug]", "[  123.456789] "),
    *("\x1b_bk;t=1732874400123\x07", "\x1b[32m", "2026-11-29 10:00:00,123 - INFO - "),
    *("Jan 08 20:57:45 board run.sh[3286]: ", "Jan  8 20:57:45 board kernel: "),
    *("2025-06-01T19:57:20.518428+03:00 board run.sh[12]: ", "I/run.sh: "),
    *("11-22 12:00:01.331 17202 17203 I run.sh  : ", "11-22 12:00:01.331 I/run.sh  (17202): "),
    *('{"time":"2026-11-29T10:00:00Z","msg":"', '{"stream": "stdout", "log": "'),
    *("I/run.sh  (17202): ", "2025-12-25 15:40:33.897 31787-32293 run.sh  com.example  I  "),
]
MOST_OTHERS = 25  # rules for lines that start in a certain way
# Gradle writes a reason directly behind the mark; three spaces there are code that pytest shows.
GRADLE = "* What went wrong:\nExecution failed for task ':app:x'.\n> {}"
# Forms of errors. Rules for lines that start in a certain way do not match all of them.
GENUINE = [
    *("{}", "ERROR: {}", "E/qnn ( 12): {}", "11-22 12:00:01.331 17202 17203 E qnn : {}"),
    *("[ERROR] {}", "Caused by: {}", "  {}", '{"level":"error","msg":"{}"}', "stderr: {}"),
    *("build.log:12:{}", "build.log:{}", "E   {}", "* {}", "#12 3.4 {}", "failed: '{}'"),
    *('because "{}"', "{} [retry 1/3]", "##[error]{}", "::error::{}", "got error '{}'"),
    *("FAILED tests/test_x.py::test_a[1] - {}", "x.cpp:12:3: error: {}"),
    *("E/qnn: {}", "11-22 12:00:01.331 E/qnn (12): {}", "E(  12) {} (qnn)"),
    *("[ 11-22 12:00:01.331 17202:17203 E/qnn ]\n{}", "--- Captured stderr call ---\n{}"),
    *('  File "x.py", line 3, in f\n    g()\n{}', "worker-1  | {}", "1 error: {}"),
    GRADLE,
]
# A text that is JSON, and so has quotation marks itself, is not always seen to be quoted.
JSON = {"genie-failed"}
# Java's crash reports start with "# A fatal error", some shells' messages with "-bash: ", and lld's
# remarks with ">>> ".
ODD = {"java-crashed", "windows-lines", "permission", "link-other-cxx", "link-extern-c"}
DISK = "OSError: [Errno 28] No space left on device"


def quote(form: str, line: str, prefix: str = "") -> str:
    """A log with a quotation between other lines."""
    lines = form.replace("{}", line).split("\n")
    return "fine\n" + "\n".join(prefix + text for text in lines) + "\nfine\n"


def names(explanation: Explanation) -> list[str]:
    findings = (*explanation.causes, *explanation.consequences, *explanation.notes)
    return [finding.rule for finding in (*findings, *explanation.harmless)]


def require_no_cause(form: str, lines: list[str]) -> None:
    explanation = explain_text("".join(quote(form, line) for line in lines), RULES)
    assert set(names(explanation)) <= ODD | JSON
    assert explanation.unknown == ()


@pytest.mark.parametrize(("number", "form"), list(enumerate(FORMS)))
def test_a_line_that_only_quotes_an_error_is_no_cause(number: int, form: str) -> None:
    # Each rule is quoted in a quarter of the forms; by night in all.
    require_no_cause(form, LINES[number % 4 :: 4])


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
def test_a_line_that_only_quotes_an_error_is_no_cause_for_any_rule(form: str) -> None:
    require_no_cause(form, LINES)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_quotation_has_the_same_form_behind_what_a_ci_system_writes_before_each_line(
    prefix: str,
) -> None:
    log = "".join(quote(form, line, prefix) for form in FORMS for line in (DISK, *LINES[::80]))
    assert names(explain_text(log, RULES)) == []
    (cause,) = explain_text(f"x\n{prefix}{DISK}\nx\n", RULES).causes
    assert cause.rule == "no-space"


@pytest.mark.parametrize("form", FORMS)
def test_the_error_after_its_quotation_is_the_cause(form: str) -> None:
    log = quote(form, DISK)
    explanation = explain_text(f"{log}{DISK}\n", RULES)
    assert [(cause.rule, cause.line) for cause in explanation.causes] == [
        ("no-space", log.count("\n") + 1)
    ]
    assert find_known(log, RULES) is None


@pytest.mark.parametrize("form", GENUINE)
def test_an_error_is_recognised_in_each_form_in_which_programs_print_it(form: str) -> None:
    lines = [line.lstrip() for line in LINES] if form == GRADLE else LINES
    log = "".join(f"x\n{form.replace('{}', line)}\nx\n" for line in lines)
    # Beside the causes of other lines no component is shown, and a rule with unless may not be.
    shown = {rule.id for rule in RULES if rule.role is not Role.COMPONENT and not rule.unless}
    missing = shown - set(names(explain_text(log, RULES)))
    assert len(missing) <= MOST_OTHERS, missing
    (cause,) = explain_text(f"x\n{form.replace('{}', DISK)}\n", RULES).causes
    assert cause.rule == "no-space"


@pytest.mark.parametrize(
    ("message", "causes"),
    [
        (f"building\n+ grep -q '{DISK}' log\nfine", []),
        (f"@@ -1,2 +1,2 @@\n-fine\n+{DISK}\n context", []),
        (f'  File "x.py", line 3, in f\n    raise OSError("{DISK}")\nfine', []),
        (f'  File "x.py", line 3, in f\n    g()\n{DISK}', ["no-space"]),
        (f"step 3\n{DISK}\nstopped", ["no-space"]),
        (f'the check expects "{DISK}" in the log', []),
        (f'the check failed: "{DISK}"', ["no-space"]),
    ],
)
def test_the_lines_in_a_text_of_json_quote_as_others_do(message: str, causes: list[str]) -> None:
    for key in ("msg", "exception"):
        log = json.dumps({"level": "info", key: message})
        found = explain_text(f"fine\n{log}\nfine\n", RULES).causes
        assert [cause.rule for cause in found] == causes


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_blocks_that_quote_are_found_in_chunks_of_any_size(size: int) -> None:
    log = "".join(quote(form, DISK) for form in FORMS if "\n" in form).encode() + DISK.encode()
    chunks = [log[at : at + size] for at in range(0, len(log), size)]
    (cause,) = explain("log", chunks, RULES).causes
    assert (cause.rule, cause.count) == ("no-space", 1)


def test_a_script_of_github_ends_where_its_group_does() -> None:
    script = f"##[group]Run df\ngrep '{DISK}' x\n"
    assert names(explain_text(f"{script}##[endgroup]\nfine\n", RULES)) == []
    assert names(explain_text(f"##[group]Run df\n{DISK}\n", RULES)) == ["no-space"]


@pytest.mark.parametrize("quoted_log", ["> {}\n> {}\n", "{}\n    $ x\n"])
def test_a_log_that_is_quoted_as_a_whole_is_explained(quoted_log: str) -> None:
    assert names(explain_text(quoted_log.replace("{}", DISK), RULES)) == ["no-space"]


@pytest.mark.parametrize("form", read_forms(), ids=lambda form: form.of)
def test_each_form_has_an_example_that_it_explains_alone(
    form: Form,
) -> None:
    unquoted_line = unquote(form.matches, form.matches)
    assert unquoted_line == "" if form.where is not Where.PART else "no space" not in unquoted_line
    assert unquoted_line != form.matches
    assert unquote("no space", "no space") == "no space"
