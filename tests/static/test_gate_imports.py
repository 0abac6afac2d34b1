"""manifests/policies/gate-imports.toml is what grimp finds: the files that each session imports,
and the data that these read.

``python -m tests.static.test_gate_imports`` writes the file.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("grimp", reason="grimp is not installed in this environment")

import grimp

from ci.gate.plan import make_plan
from ci.gate.rules import GateRules, read_rules
from ci.gate.schema import Change, Difference, Kind
from ci.parity.policy import matches
from ci.verbs.registry import VERBS
from provisioning.manifest.reader import read_policy
from tests.stand_ins.sources import parse_source

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "manifests" / "policies" / "gate-imports.toml"
PACKAGES = ("ci", "provisioning", "tests")
# They only name the modules of all verbs, of which a session runs one.
NAMES_ONLY = {"ci.verbs.registry", "provisioning.__main__"}
HEAD = """\
# The files that sessions import, as grimp finds them, and the data that gate.toml names for them.
# `python -m tests.static.test_gate_imports` writes this file.
"""


@cache
def read_own_rules() -> GateRules:
    """The rules of gate.toml, without those of the generated file."""
    return read_policy("gate", GateRules)


def list_files() -> list[str]:
    """The files of this checkout that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(file for file in set(listing.split("\0")) if file and (ROOT / file).exists())


# Modules
@cache
def read_graph() -> grimp.ImportGraph:
    """The imports between the modules, and those of modules that are loaded by their names."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for module in graph.modules - NAMES_ONLY:
        if not module.startswith("tests."):
            path = find_file(module)
            for name in list_names(module, path, graph.modules) if path else ():
                graph.add_import(importer=module, imported=name)
    return graph


def find_file(module: str) -> Path | None:
    """The source of a module, or None for a folder without one."""
    stem = ROOT.joinpath(*module.split("."))
    candidates = (stem.with_suffix(".py"), stem / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def list_names(module: str, path: Path, modules: set[str]) -> Iterator[str]:
    """The modules whose names a module has as texts, and those whose names an f-string starts:
    ``f"ci.models.suite.{name}"``, or ``f"{__name__}.{kind}"``."""
    for node in ast.walk(parse_source(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and node.value in modules - {*PACKAGES}:
            yield str(node.value)
        elif isinstance(node, ast.JoinedStr):
            start = ast.unparse(node).removeprefix("f")[1:].replace("{__name__}", module)
            folder, brace, _ = start.partition("{")
            if brace and folder.endswith(".") and folder.startswith(PACKAGES):
                yield from (name for name in modules if name.startswith(folder))


def list_imported(entries: set[str]) -> set[str]:
    """``entries``, the modules that they import, also indirectly, and the packages of these."""
    graph, modules = read_graph(), set(entries)
    for entry in entries:
        modules |= graph.find_upstream_modules(entry)
    for module in list(modules):
        parts = module.split(".")
        packages = [".".join(parts[:length]) for length in range(1, len(parts))]
        # An __init__ runs, too, with what it imports.
        for package in {*packages} & graph.modules:
            modules |= {package, *graph.find_upstream_modules(package)}
    return modules


# Sessions
def read_noxfile() -> tuple[Mapping[str, str], Mapping[str, ast.FunctionDef]]:
    """The sessions of noxfile.py: the verb that each in its tables runs, and the functions of the
    others."""
    tables: dict[str, dict[str, str]] = {}
    functions = {}
    for node in ast.parse((ROOT / "noxfile.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            if name in {"SESSIONS", "VERBS"}:
                tables[name] = ast.literal_eval(node.value)
        elif isinstance(node, ast.FunctionDef) and "nox.session" in ast.unparse(node):
            functions[node.name] = node
    verbs = {name: name.replace("_", "-") for name in tables["SESSIONS"]}
    return {**verbs, **tables["VERBS"]}, functions


def list_entries(session: str) -> set[str]:
    """The modules that a session of noxfile.py runs."""
    verbs, functions = read_noxfile()
    if session in verbs:
        return {"ci.__main__", VERBS[verbs[session].split()[0]].module}
    if session not in functions:
        return set()
    entries = set()
    constants = [node for node in ast.walk(functions[session]) if isinstance(node, ast.Constant)]
    texts = [str(node.value) for node in constants]
    for text, following in zip(texts, [*texts[1:], ""], strict=True):
        if text == "ci" and following in VERBS:
            entries |= {"ci.__main__", VERBS[following].module}
        elif text.startswith("tests."):
            entries |= {text, *read_graph().find_descendants(text)}
        elif text.startswith("tests/"):
            entries |= read_graph().find_descendants(text.replace("/", "."))
    return entries


@cache
def list_sessions() -> dict[str, set[str]]:
    """The modules that each session imports, also in the processes that it starts. Without those
    that every change needs, or that use the whole tree."""
    rules = read_own_rules()
    imported = {}
    for name, session in rules.sessions.items():
        if not (session.always or session.whole):
            entries = list_entries(name).union(*map(list_entries, session.runs))
            imported[name] = list_imported(entries)
    return imported


# The table
def name_modules(path: str) -> set[str]:
    """The module in a file; of another file, such as a template, the modules in the nearest folder
    above it that has any."""
    if path.endswith(".py"):
        return {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")}
    modules, folder = read_graph().modules, path.rpartition("/")[0]
    while folder:
        package = folder.replace("/", ".")
        if inside := {module for module in modules if module.rpartition(".")[0] == package}:
            return inside | ({package} & modules)
        folder = folder.rpartition("/")[0]
    return set()


def list_needs(modules: set[str]) -> tuple[str, ...]:
    """The sessions that import one of the modules."""
    sessions = list_sessions()
    return tuple(sorted(name for name, imported in sessions.items() if modules & imported))


def render_table(files: list[str]) -> str:
    """The table: a rule for each set of sessions."""
    needs = {}
    for path in files:
        if path.startswith(tuple(f"{package}/" for package in PACKAGES)):
            sessions = list_needs(name_modules(path))
            # Sessions that use the whole tree need each test anyway.
            if sessions or not path.startswith("tests/"):
                needs[path] = sessions
    rows = [*shorten(needs, files).items()]
    for row in read_own_rules().data:
        rows += [(glob, list_needs({*row.readers})) for glob in row.files]
    paths_by_sessions: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, sessions in rows:
        paths_by_sessions[sessions].append(path)
    text = HEAD
    for sessions, paths in sorted(paths_by_sessions.items(), key=lambda row: sorted(row[1])):
        listed = "".join(f"    {json.dumps(path)},\n" for path in sorted(paths))
        text += f"\n[[rule]]\nfiles = [\n{listed}]\nsessions = {json.dumps(list(sessions))}\n"
        text += 'reason = "the session imports it, or reads it"\n'
    return text


def shorten(needs: Mapping[str, tuple[str, ...]], files: list[str]) -> dict[str, tuple[str, ...]]:
    """``needs`` with ``FOLDER/**`` instead of the files of a folder that all need the same."""
    shortened = {}
    for path, sessions in needs.items():
        parts = path.split("/")
        for length in range(2, len(parts)):
            folder = "/".join(parts[:length])
            inside = {needs.get(file) for file in files if file.startswith(f"{folder}/")}
            if inside == {sessions}:
                path = f"{folder}/**"
                break
        shortened[path] = sessions
    return shortened


@pytest.mark.parametrize(
    ("path", "sessions", "unneeded"),
    [
        ("ci/judging/gate.py", "test_trained test_emulator test_litert mend", "parity plan"),
        ("ci/executorch/lower.py", "test_trained test_emulator", "test_litert provision"),
        ("ci/onnx/engine.py", "test_trained test_onnx", "test_emulator test_litert"),
        ("ci/models/suite/mlp.py", "test_emulator", "mutants"),
        ("ci/onnx/compile.py", "test_onnx", "parity"),  # a worker loads it by its name
        ("provisioning/artifacts/sources/wheel.py", "provision test_emulator", "mutants"),
        ("ci/report/templates/document.html.j2", "test_emulator test_trained", ""),
        ("manifests/policies/onnx.toml", "test_onnx test_trained", "test_emulator test_litert"),
        ("manifests/policies/emulator.toml", "test_emulator test_trained", "test_onnx"),
        ("docker/Dockerfile", "docker_build docker_shell", "test_trained test_emulator"),
        ("tests/trained/truth.json", "test_trained", "test_emulator bench"),
        ("tests/unit/ci/gate/test_plan.py", "unit tests", "test_trained bench"),
    ],
)
def test_a_change_runs_what_imports_or_reads_it(path: str, sessions: str, unneeded: str) -> None:
    plan = make_plan(Difference((Change(path, Kind.MODIFIED),)), read_rules())
    running = {session.name for session in plan.sessions if session.run}
    assert (set(sessions.split()) - running, set(unneeded.split()) & running) == (set(), set())
    assert plan.everything == ""


def test_each_manifest_names_its_readers() -> None:
    rules, modules = read_own_rules(), read_graph().modules
    assert {reader for row in rules.data for reader in row.readers} - modules == set()
    named = [file for row in rules.data for file in row.files]
    without = ("manifests/locks/python/", "manifests/policies/gate")  # rules name them
    files = [file for file in list_files() if file.startswith("manifests/")]
    assert [f for f in files if not f.startswith(without) and not matches(f, tuple(named))] == []
    # A glob that fits no file is a mistake.
    assert [glob for glob in named if not any(matches(file, (glob,)) for file in files)] == []


def test_each_session_that_is_run_in_a_process_exists() -> None:
    rules = read_own_rules()
    names = {name for session in rules.sessions.values() for name in session.runs}
    assert names
    assert names - rules.sessions.keys() == set()


def test_the_table_of_imports_is_what_grimp_finds() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    hint = "run `.nox/lint/bin/python -m tests.static.test_gate_imports`"
    assert TABLE.read_text("utf-8") == render_table(list_files()), hint


if __name__ == "__main__":
    TABLE.write_text(render_table(list_files()), "utf-8")
