"""The verbs and the sessions of nox by purpose: what ``qnn-ci --help`` and ``./nox -l`` list.

Each line is the help of the verb or the first line of the session's docstring, unless the
row has a shorter one. A verb or session without a row fails tests/static/test_groups.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ci.verbs.registry import VERBS
from provisioning.console.command import VerbGroup

COLUMNS = 80


@dataclass(frozen=True)
class Row:
    """A verb, a session or both. A session of another name runs the same verb. ``line`` says what
    they do, if that is not said elsewhere in so few characters."""

    verb: str = ""
    session: str = ""
    line: str = ""


@dataclass(frozen=True)
class Purpose:
    """What a user wants: ``qnn-ci help NAME`` prints its verbs. Those of ``most`` users come
    first."""

    name: str
    title: str
    rows: tuple[Row, ...]


PURPOSES = (
    Purpose(
        "models",
        "judge a model",
        (
            Row("test", "test", "judge a model by every runtime: which one to ship"),
            Row("test-emulator", "test_emulator", "judge PyTorch models on the HTP emulator"),
            Row("test-onnx", "test_onnx", "judge ONNX models on the HTP emulator"),
            Row("test-litert", "test_litert", "judge .tflite files on the HTP emulator"),
            Row("test-llm", "test_llm", "judge the tokens of a language model"),
            Row("audit", "audit", "list which operators of a model QNN supports"),
            Row("judge", "judge"),
            Row("report", "report", "show a report again, or rewrite its other files"),
        ),
    ),
    Purpose(
        "green",
        "make it green",
        (Row("mend", "mend"),),
    ),
    Purpose(
        "why",
        "find out why",
        (
            Row("localise", "localise"),
            Row("explain", "explain", "name the causes of a failure in a log, with fixes"),
            Row("fuzz", "fuzz"),
            Row("test-upstream", "test_upstream", "run and judge ExecuTorch's own QNN tests"),
        ),
    ),
    Purpose(
        "speed",
        "how fast is it",
        (Row("estimate", "estimate"),),
    ),
    Purpose(
        "devices",
        "apps and devices",
        (
            Row("inspect", "inspect", "show what a program or app contains, and if it can load"),
            Row("stage", "stage"),
            Row("deploy", "deploy"),
            Row("sign", "sign_skel"),
        ),
    ),
    Purpose(
        "toolchain",
        "the toolchain: QNN, ExecuTorch, SDKs",
        (
            Row("doctor", "validate"),
            Row("fetch", "provision"),
            Row("upgrade-report", "upgrade_report", "show what another QNN or ExecuTorch changes"),
            Row("env", "env"),
            Row("list", "list"),
            Row("path", "path"),
            Row("cache", "cache", "show or clear caches, or print the key for a CI's cache"),
            Row("verify", "verify", "hash the files in the store again, or repair them"),
            Row("update", "update", "show what another version would change, or pin it"),
            Row("lock", "lock", "show how an artifact's lock would change, or change it"),
            Row("lock-skels", "lock_skels", "list the genuine skels in new wheels, or add them"),
        ),
    ),
    Purpose(
        "builds",
        "builds, images and parity",
        (
            Row("build"),
            Row("", "build_aot", "build the adaptor with which ExecuTorch lowers"),
            Row("", "build_android", "build the runtime and the runner for Android"),
            Row("", "build_linux", "build them for embedded Linux on aarch64"),
            Row("", "build_direct", "build the QNN backend that runs on the Hexagon DSP"),
            Row("", "build_runner", "build the x86-64 runner"),
            Row("image"),
            Row("", "docker_build", "build Docker images"),
            Row("", "docker_shell", "open a shell, or run a command, in a Docker image"),
            Row("parity", "parity"),
        ),
    ),
    Purpose(
        "ci",
        "CI of your repository",
        (
            Row("init", "init"),
            Row("setup", "setup", "prepare a profile for the later steps of a CI job"),
            Row("plan", "plan"),
            Row("matrix", "matrix"),
            Row("gate", "gate"),
            Row("verify-evidence", "verify_evidence"),
            Row("completion", "completion"),
            Row("", "qnn_ci", "run any verb: ./nox -s qnn_ci -- VERB"),
        ),
    ),
    Purpose(
        "own",
        "this project's own",
        (
            Row("", "tests"),
            Row("", "unit", "run the tests that need neither torch nor a download"),
            Row("", "journeys", "run the tests that type whole commands, as users do"),
            Row("", "stress", "run the tests that kill at random instants, or race"),
            Row("", "lint", "check style, types, imports, workflows and pages"),
            Row("", "test_trained"),
            Row("", "bench"),
            Row("", "mutants", "check that tests detect small faults in the judging code"),
            Row("", "release", "build the sdist, the wheel, the SBOM and the pages"),
            Row("", "environments", "create the Python environments of dependency groups"),
        ),
    ),
)


def group_verbs() -> tuple[VerbGroup, ...]:
    """Return the purposes that have verbs, with their verbs and lines."""
    groups = []
    for purpose in PURPOSES:
        lines = {row.verb: row.line or VERBS[row.verb].help for row in purpose.rows if row.verb}
        if lines:
            groups.append(VerbGroup(purpose.name, purpose.title, lines))
    return tuple(groups)


def describe_sessions(command: str, documented: Mapping[str, str]) -> str:
    """Return the list of sessions for ``command``, such as ./nox. ``documented`` maps the sessions
    to their docstrings. Sessions without a row come last."""
    width = max(len(row.session) for purpose in PURPOSES for row in purpose.rows)
    remaining = dict(documented)
    forms = ("SESSION... [-- ARGUMENTS]", "SESSION -- --help", "qnn_ci -- help JOB")
    first, *others = (f"{command} -s {form}\n" for form in forms)
    blocks = ["       ".join([f"usage: {first}", *others])]
    for purpose in PURPOSES:
        lines = []
        for row in filter(lambda row: row.session, purpose.rows):
            verb = VERBS.get(row.verb)
            text = row.line or (verb.help if verb else shorten_doc(remaining.get(row.session, "")))
            remaining.pop(row.session, None)
            lines.append(f"  {row.session:<{width}}  {text}\n")
        has_help = any(row.verb for row in purpose.rows)
        title = f"{purpose.title} (help {purpose.name})" if has_help else purpose.title
        blocks.append(f"{title}\n{''.join(lines)}")
    if remaining:
        lines = [f"  {name:<{width}}  {shorten_doc(text)}\n" for name, text in remaining.items()]
        blocks.append(f"others\n{''.join(lines)}")
    return "\n".join(blocks)


def shorten_doc(text: str) -> str:
    """Return the first line of a docstring as the other lines of a list are written."""
    line = text.strip().partition("\n")[0].rstrip(".")
    return line[:1].lower() + line[1:]
