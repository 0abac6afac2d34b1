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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What CMake makes of each OUT, and None for a snippet that it refuses."""
    folder = tmp_path_factory.mktemp("snippets")
    answers_of_snippets: dict[str, str | None] = {}
    while remaining := [text for text in SNIPPETS if text not in answers_of_snippets]:
        # A process for all of them, up to the first that CMake refuses.
        blocks, outputs = [], [folder / f"{number}.out" for number in range(len(remaining))]
        for number, (text, out) in enumerate(zip(remaining, outputs, strict=True)):
            (folder / f"{number}.cmake").write_text(HEAD + text, encoding="utf-8")
            write = WRITE.format(out=out)
            blocks.append(f"block()\ninclude({folder}/{number}.cmake)\n{write}{CLEAR}endblock()\n")
        (folder / "all.cmake").write_text(f"{HEAD}{''.join(blocks)}", encoding="utf-8")
        ended = run_process(["cmake", "-P", folder / "all.cmake"], timeout_s=60, check=False)
        for text, out in zip(remaining, outputs, strict=True):
            if not out.exists():
                assert ended.returncode, text
                answers_of_snippets[text] = None
                break
            answers_of_snippets[text] = out.read_text("utf-8")
            out.unlink()
    return answers_of_snippets


@pytest.mark.skipif(bool(NO_CMAKE), reason=NO_CMAKE)
@pytest.mark.parametrize("text", SNIPPETS, ids=lambda text: text.split("\n")[-2][:60])
def test_the_static_reader_agrees_with_cmake_or_says_unknown(
    text: str, answers: dict[str, str | None], tmp_path: Path
) -> None:
    exact = answers[text]
    if exact is None:
        pytest.skip("this cmake refuses it")

    read = run_statically(tmp_path, text)

    assert exact in read or all(map(is_unknown, read)), (read, exact)
