"""Find what each session uses: the files of its record or its job, and what these import. A job of
a workflow runs the scripts that it calls, and CMake builds directories with the options and presets
in them.

The noxfile and the workflows are parsed, not run.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ci.gate.dependencies.tree import CMAKE_FILE, DOTTED, Graph, Reach, TreeFiles, parse_table
from ci.gate.rules import GateRules, Recorded
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from provisioning.documents import DocumentError, decoding

WORD = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*")
SCRIPT = re.compile(r".*\.(?:sh|ps1|ya?ml)")
PIP = re.compile(r"\bpip[\w.]*['\", ]+(?:install|wheel)\b|bdist_wheel")
SETUP, PRESETS, PRESET_FILE = "setup.py", "CMakePresets.json", "tools/cmake/preset/{}.cmake"
PRESET = re.compile(r"preset[\"',\s=]+([\w-]+)")
DEFINED = re.compile(r"-D(\w+)(?::\w+)?=\s*(?!OFF\b|0\b|FALSE\b)")
# The default of an option may be a variable, which may be on.
VALUE = re.compile(
    r"(\w+)\s+(?:ON|TRUE|1)|(\w+)\s+\"[^\"]*\"\s+BOOL\s+(?!OFF\b|0\b|FALSE\b).*", re.DOTALL
)
COMMAND = re.compile(
    r"^[ \t]*(if|elseif|else|endif|add_subdirectory|(?:set|define)_overridable_option)"
    r"\s*\(((?:[^()]|\([^()]*\))*)\)",
    re.MULTILINE,
)
COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
ROOT = re.compile(r"\$\{(?:CMAKE_CURRENT_SOURCE_DIR|EXECUTORCH_ROOT|PROJECT_SOURCE_DIR)\}/")
ENVIRONMENT = re.compile(r"DEFINED ENV\{(\w+)\}")


def list_jobs(tree: TreeFiles, read: Read, rules: GateRules) -> Iterator[tuple[str, set[str]]]:
    """Yield the jobs in the rules' workflows whose names match ``rules.jobs``, each with the files
    that it runs."""
    for path in sorted(path for path in tree.files if matches(path, rules.workflows)):
        try:
            with decoding():
                document = yaml.safe_load(read(path))
        except (yaml.YAMLError, DocumentError):
            continue
        jobs = document.get("jobs") if isinstance(document, dict) else None
        for name, job in (jobs if isinstance(jobs, dict) else {}).items():
            if matches(str(name), rules.jobs):
                text = yaml.safe_dump(job, width=1 << 20)
                yield str(name), follow_script(tree, read, text, rules.package)


def follow_script(tree: TreeFiles, read: Read, text: str, package: str) -> set[str]:
    """Return the files that a script names, directly or through other scripts, and the files of the
    directories that CMake adds with the options and presets that any of them names."""
    texts, found, waiting = [text], set[str](), [(text, "")]
    while waiting:
        named = {*list_named(tree, *waiting.pop(), package)} - found
        found |= named
        for path in sorted(named):
            if SCRIPT.fullmatch(path):
                texts.append(read(path))
                waiting.append((texts[-1], path))
            else:
                found.update(tree.expand(path))
    whole = "\n".join(texts)
    if PIP.search(whole) and SETUP in tree.files:
        found.add(SETUP)
        whole += read(SETUP)
    if names := PRESET.findall(whole) or DEFINED.findall(whole):
        cmake = Listed(whole, set(DEFINED.findall(whole)))
        presets = [PRESET_FILE.format(name) for name in ("default", *dict.fromkeys(names))]
        for path in (path for path in presets if path in tree.files):
            found.add(path)
            cmake.add_options(read(path))
        found.update({PRESETS} & tree.files, list_built(tree, read, cmake))
    return found & tree.files  # without the named directories


def list_named(tree: TreeFiles, text: str, script: str, package: str) -> Iterator[str]:
    """Yield the files and directories that ``text`` names: by path from the root or from the
    directory of ``script``, or as a module."""
    for word in set(WORD.findall(text)):
        name = word.rpartition("../")[2].removeprefix("./").strip("/")
        for path in (name, posixpath.join(directory_of(script), name)):
            if path in tree.files or ("/" in name and path in tree.folders):
                yield path
        if DOTTED.fullmatch(word):
            module = word.removeprefix(f"{package}.").replace(".", "/")
            yield from tree.files & {f"{module}.py", f"{module}/__main__.py"}


@dataclass
class Listed:
    """CMake's list files as a job runs them: ``text`` is all of its scripts, and ``options`` are
    the options that are on."""

    text: str
    options: set[str]

    def list_commands(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the commands of a list file with their arguments, except those in branches that the
        job cannot reach."""
        dead: list[bool] = []
        for word, words in COMMAND.findall(COMMENT.sub("", text)):
            if word == "if":
                dead.append(self.is_dead(words))
            elif word == "endif":
                del dead[-1:]
            elif word in {"elseif", "else"}:
                dead[-1:] = [word == "elseif" and self.is_dead(words)]
            elif not any(dead):
                yield word, words

    def add_options(self, text: str) -> None:
        """Switch on the options that a preset switches on."""
        for word, words in self.list_commands(text):
            if word != "add_subdirectory" and (match := VALUE.fullmatch(words.strip())):
                self.options.add(match[1] or match[2])

    def is_dead(self, condition: str) -> bool:
        """Return whether a condition of words, AND and OR cannot be true: because a target of
        ExecuTorch is off, for another operating system, or for a variable of the environment that
        no script names."""
        return all(
            any(map(self._is_false, part.split(" AND ")))
            for part in " ".join(condition.split()).split(" OR ")
        )

    def _is_false(self, term: str) -> bool:
        if term.startswith("NOT "):
            return False
        variable = ENVIRONMENT.search(term)
        others = ("Darwin", "APPLE", *(() if "windows" in self.text else ("Windows", "WIN32")))
        return (
            (term.startswith("EXECUTORCH_BUILD_") and term not in self.options)
            or any(name in term for name in others)
            or (variable is not None and variable[1] not in self.text)
        )


def list_built(tree: TreeFiles, read: Read, cmake: Listed) -> set[str]:
    """Return the files of the directories that the root's CMakeLists.txt adds, directly or through
    another one."""
    found, waiting = set[str](), [CMAKE_FILE]
    while waiting:
        path = waiting.pop()
        if path in found or path not in tree.files:
            continue
        found.add(path)
        for word, words in cmake.list_commands(read(path)):
            if word == "add_subdirectory":
                name = ROOT.sub("", words.split()[0].strip('"'))
                for folder in (name, posixpath.join(directory_of(path), name)):
                    if (inner := f"{folder}/{CMAKE_FILE}") in tree.files:
                        waiting.append(inner)
                        found.update({*tree.expand(folder)} - {inner})
    return found


NOXFILE, PYPROJECT = "noxfile.py", "pyproject.toml"
GROUPS = f"{PYPROJECT}#dependency-groups"
Read = Callable[[str], str]


@dataclass(frozen=True)
class SessionInputs:
    """What a session depends on. ``reach`` contains the session's first files and what they import.
    ``record`` is what its recorded run opened. ``uses`` maps parts of files, written as
    ``FILE#KEY``, to the reason why the session needs them.

    ``known`` is false if there is neither a record nor a first file. In that case, every change
    needs the session.
    """

    name: str
    reach: Reach
    record: Recorded = field(default_factory=Recorded)
    uses: Mapping[str, str] = field(default_factory=dict)
    known: bool = True

    def explain(self, path: str) -> str:
        """Return the reason why the session needs a file, or "" if it does not need it."""
        if self.record.covers(path):
            return "the recorded run of the session opened it"
        if path not in self.reach:
            return ""
        way = self.reach.explain(path)
        return f"read by {way}" if way else "the session runs it"

    def explain_key(self, path: str, key: str) -> str:
        """Return the reason why the session uses a changed key, a table that contains it or a key
        inside it. Return "" if it uses none of them."""
        name = f"{path}#{key}"
        for use, why in self.uses.items():
            if name == use or name.startswith(f"{use}.") or use.startswith(f"{name}."):
                return why
        return ""


def describe_sessions(graph: Graph, read: Read, rules: GateRules) -> dict[str, SessionInputs]:
    """Return the inputs of each session in the noxfile, the rules or the workflows, by name."""
    files = graph.tree.files
    sessions = parse_noxfile(read(NOXFILE)) if NOXFILE in files else ()
    jobs = dict(list_jobs(graph.tree, read, rules))
    project = load(read, PYPROJECT, files)
    found = {}
    for name in dict.fromkeys((*sessions, *rules.sessions, *jobs)):
        roots = rules.session_rule(name).roots
        record = rules.recorded.get(name, Recorded())
        starts = {path for path in files if matches(path, roots) or record.covers(path)}
        starts |= jobs.get(name, set())
        uses = {
            f"{GROUPS}.{group}": f"the session's environment contains the dependency group {group}"
            for group in close_groups(record.groups, project)
        }
        found[name] = SessionInputs(name, graph.follow(starts), record, uses, bool(starts))
    return found


def close_groups(groups: Iterable[str], project: Mapping[str, Any]) -> tuple[str, ...]:
    """Return dependency groups together with all groups that they include, directly or
    indirectly."""
    tables = project.get("dependency-groups", {})
    found: dict[str, None] = {}
    waiting = sorted(groups)
    while waiting:
        group = waiting.pop(0)
        if group not in found:
            found[group] = None
            rows = [row for row in tables.get(group, []) if isinstance(row, dict)]
            waiting += [row["include-group"] for row in rows if "include-group" in row]
    return tuple(found)


def load(read: Read, path: str, files: Iterable[str]) -> Mapping[str, Any]:
    """Return the content of a TOML file of the tree, or an empty mapping if the file is missing or
    is not valid TOML."""
    return (parse_table(read(path)) if path in files else None) or {}


def parse_noxfile(text: str) -> Iterator[str]:
    """Yield the names of the sessions in a noxfile. Raises SyntaxError if ``text`` is not
    Python."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            for one in node.decorator_list:
                if ast.unparse(one.func if isinstance(one, ast.Call) else one) == "nox.session":
                    yield node.name
