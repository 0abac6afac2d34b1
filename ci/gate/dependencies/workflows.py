"""Find the files that a job of a GitHub workflow runs: the scripts that it calls, and the
directories that CMake builds with the options and presets in them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import yaml

from ci.gate.dependencies.names import DOTTED
from ci.gate.dependencies.tree import CMAKE_FILE, TreeFiles
from ci.gate.rules import GateRules
from ci.parity.facts import directory_of
from ci.parity.policy import matches
from provisioning.documents import DocumentError, decoding

Read = Callable[[str], str]
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
