"""CMake snippets run by ``cmake -P`` and by the static interpreter: the same, or marked unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.parity.cmake.reader import Run
from ci.parity.cmake.state import Sources
from ci.parity.cmake.values import is_unknown
from ci.parity.facts import Configuration
from ci.parity.trees import DirectoryTree
from provisioning.console.process import run_process
from tests.programs import missing_programs

# Each leaves its result in OUT. In the file, two spaces separate the commands of a row.
ROWS = (Path(__file__).parents[2] / "artifacts" / "parity" / "snippets.cmake.txt").read_text(
    "utf-8"
)
SNIPPETS = [
    *(row.replace("  ", "\n") + "\n" for row in ROWS.splitlines()),
    'string(STRIP "  a b " OUT)\n',
    'set(V "a\\\nb")\nset(OUT "${V}")\n',
    'set(OUT "a\\tb\\;c\\\\d\\$e\\"")\n',
    "set(OUT [[raw ${X} \\n]])\n",
    "set(OUT [==[\nline ]] here]==])\n",
]
NO_CMAKE = missing_programs("cmake")


def run_statically(folder: Path, text: str) -> tuple[str, ...]:
    """What the interpreter makes of OUT: one value, or one for each way an if() may go."""
    (folder / "CMakeLists.txt").write_text(text, encoding="utf-8")
    return Run(Sources(DirectoryTree(folder)), Configuration.HOST, "").lookup("", "OUT")


HEAD = "cmake_minimum_required(VERSION 3.24)\n"
WRITE = 'file(WRITE "{out}" "${{OUT}}")\n'
# A block ends its variables, but not those in the cache.
CLEAR = """
get_cmake_property(cached CACHE_VARIABLES)
foreach(name IN LISTS cached)
  unset(${name} CACHE)
endforeach()
"""


def ask_cmake(folder: Path) -> dict[str, str]:
    """What CMake makes of each OUT. Snippets that this version of CMake refuses are left out."""
    answers: dict[str, str] = {}
    remaining = [*SNIPPETS]
    while remaining:
        # A process for all of them, up to the first that CMake refuses.
        blocks, outputs = [], [folder / f"{number}.out" for number in range(len(remaining))]
        for number, (text, out) in enumerate(zip(remaining, outputs, strict=True)):
            (folder / f"{number}.cmake").write_text(HEAD + text, encoding="utf-8")
            write = WRITE.format(out=out)
            blocks.append(f"block()\ninclude({folder}/{number}.cmake)\n{write}{CLEAR}endblock()\n")
        (folder / "all.cmake").write_text(f"{HEAD}{''.join(blocks)}", encoding="utf-8")
        ended = run_process(["cmake", "-P", folder / "all.cmake"], timeout_s=1200, check=False)
        answered = sum(out.exists() for out in outputs)
        assert ended.returncode or answered == len(remaining), remaining[answered]
        for text, out in zip(remaining[:answered], outputs, strict=False):
            answers[text] = out.read_text("utf-8")
            out.unlink()
        remaining = remaining[answered + 1 :]
    assert len(answers) > 200
    return answers


@pytest.mark.skipif(bool(NO_CMAKE), reason=NO_CMAKE)
def test_the_static_reader_agrees_with_cmake_or_says_unknown(tmp_path: Path) -> None:
    differences = {}
    for text, exact in ask_cmake(tmp_path).items():
        read = run_statically(tmp_path, text)
        if exact not in read and not all(map(is_unknown, read)):
            differences[text] = (read, exact)
    assert differences == {}
