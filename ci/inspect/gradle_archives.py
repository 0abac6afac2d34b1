"""The AARs and JARs in a project's folders that its build files name: what Gradle packages from
them can be read without a build.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ci.inspect.gradle_text import QUOTED

MAX_ARCHIVES = 100
MAX_PATH = 200  # characters
# fileTree(dir: 'libs', include: ['*.aar']), fileTree("libs") { include("*.aar") }
FILE_TREE = re.compile(
    r"\bfileTree\s{0,9}\(((?:[^()]|\([^()]{0,300}\)){0,400}?)\)(?:\s{0,9}\{([^{}]{0,400})\})?"
)
FOLDER = re.compile(r"\bdir[\"']?\s{0,9}(?::|=|to\b|,)\s{0,9}[\"']([^\"'\n]{1,200})[\"']")
# Such as files('libs/a.aar', 'libs/b.jar').
FILES = re.compile(r"\bfiles\s{0,9}\(([^()]{0,600})\)")
# artifacts.add("default", file("a.aar")), of a module that consists of an archive
ARTIFACT = re.compile(
    r"\bartifacts\s{0,9}\.\s{0,9}add[\s(]{1,9}[\"']default[\"']\s{0,9},"
    r"\s{0,9}file[\s(]{1,9}[\"']([^\"'\n]{1,200})[\"']\s{0,9}\)"
)
# (name: 'qnn', ext: 'aar') and ':qnn@aar', of the folders in flatDir
FLAT = re.compile(
    r"\bname\s{0,9}[:=]\s{0,9}[\"']([\w.+-]{1,100})[\"']\s{0,9},\s{0,9}ext\s{0,9}[:=]\s{0,9}[\"']aar[\"']"
    r"|[\"']:([\w.+-]{1,100})(?::[\w.+-]{0,60})?@aar[\"']"
)
FLAT_FOLDERS = re.compile(r"\bflatDir\s{0,9}[{(][^{}()]{0,40}?\bdirs?\b([^{}]{0,300})")
LITERALS = re.compile(r"(?:\s|,|[\"'][^\"'\n$]*[\"'])*")
ARCHIVES = (".aar", ".jar", "*")
OF_ROOT = re.compile(r"^\$\{?(?:rootDir|rootProject\.(?:projectDir|rootDir))\}?/")
OF_MODULE = re.compile(r"^\$(?:\{projectDir\}|projectDir)/|^[.]/")
# Such as rootProject.file("libs") and layout.projectDirectory.dir("libs").
FILE_OF_ROOT = re.compile(
    r"\brootProject\s{0,9}\.\s{0,9}(?:file|layout\.projectDirectory\.(?:dir|file))"
    r"\s{0,9}\(\s{0,9}[\"']([^\"'\n$]{1,200})[\"']\s{0,9}\)"
)
FILE_OF_MODULE = re.compile(
    r"\blayout\.projectDirectory\.(?:dir|file)\s{0,9}\(\s{0,9}[\"']([^\"'\n$]{1,200})[\"']\s{0,9}\)"
)


def spell_paths(text: str) -> str:
    """Return the text of a build file in which paths that it computes from the folder of the
    project or of the module are texts, as ``"$rootDir/libs"``."""
    return FILE_OF_MODULE.sub(r"'\1'", FILE_OF_ROOT.sub(r"'$rootDir/\1'", text))


def list_archives(text: str) -> tuple[tuple[str, ...], str]:
    """Return the globs of the archives that a build file adds, relative to its module or starting
    with ``$rootDir``, and the text without the expressions that name them."""
    globs: list[str] = []
    flat_folders = QUOTED.findall(" ".join(FLAT_FOLDERS.findall(text))) or ["libs"]

    def take_tree(match: re.Match[str]) -> str:
        inside, block = match[1], match[2] or ""
        folder = FOLDER.search(inside)
        names = QUOTED.findall(inside)
        if not folder and not (names and inside.lstrip().startswith(("'", '"'))):
            return match[0]
        place = folder[1] if folder else names[0]
        patterns = [name for name in (*names, *QUOTED.findall(block)) if name.endswith(ARCHIVES)]
        globs.extend(f"{place}/{pattern}" for pattern in patterns or ["*"])
        return " "

    def take_files(match: re.Match[str]) -> str:
        names = QUOTED.findall(match[1])
        if not LITERALS.fullmatch(match[1]) or not all(name.endswith(ARCHIVES) for name in names):
            return match[0]
        globs.extend(names)
        return " "

    def take_flat(match: re.Match[str]) -> str:
        # One of the folders has it, with a version in its name or without.
        name = match[1] or match[2]
        globs.append(f"{{{','.join(flat_folders)}}}/{name}*.aar")
        return " "

    def take_artifact(match: re.Match[str]) -> str:
        globs.append(match[1])
        return " "

    text = ARTIFACT.sub(take_artifact, text)
    text = FLAT.sub(take_flat, FILES.sub(take_files, FILE_TREE.sub(take_tree, text)))
    return tuple(dict.fromkeys(globs)), text


def find_archives(
    top: Path, root: Path, module: Path, globs: Iterable[str]
) -> tuple[list[Path], bool]:
    """Return the archives of a module in a project, and whether all that it names are there. Those
    outside of ``top`` are not read."""
    paths: list[Path] = []
    are_all_found = True
    for glob in globs:
        choices = [glob]
        if glob.startswith("{"):
            folders, _, name = glob[1:].partition("}/")
            choices = [f"{folder}/{name}" for folder in folders.split(",")]
        is_tree = "*" in glob and not glob.startswith("{")
        files: list[Path] = []
        for choice in choices:
            place = find_place(root, module, choice)
            if place is None:
                are_all_found = False
                continue
            base, pattern = place
            try:
                files += islice(base.glob(pattern), MAX_ARCHIVES)
            except (OSError, ValueError, NotImplementedError):  # a glob of Gradle's, such as **.aar
                are_all_found = False
        inside = [
            path
            for path in sorted(files)
            if path.suffix in ARCHIVES and path.is_file() and is_inside(path, top)
        ]
        are_all_found &= bool(inside) or is_tree
        paths += [path for path in inside if path not in paths]
    return paths, are_all_found


def is_inside(path: Path, top: Path) -> bool:
    """Return whether a path is inside of a directory, also if it leads through symbolic links."""
    with suppress(OSError, RuntimeError):  # RuntimeError: links that lead to each other
        return path.resolve().is_relative_to(top.resolve())
    return False


def find_place(root: Path, module: Path, text: str) -> tuple[Path, str] | None:
    """Return the folder that a path or a glob of a build file is relative to, and the rest of it;
    None if the path is computed or absolute."""
    base = root if OF_ROOT.match(text) else module
    relative = OF_MODULE.sub("", OF_ROOT.sub("", text))
    is_computed = "$" in relative or not relative.strip("./") or relative.startswith("/")
    return None if is_computed or len(relative) > MAX_PATH else (base, relative)
