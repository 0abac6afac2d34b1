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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What CMake makes of each OUT, in one process: N.out, up to a snippet that it refuses."""
    folder = tmp_path_factory.mktemp("snippets")
    blocks = []
    for number, text in enumerate(SNIPPETS):
        (folder / f"{number}.cmake").write_text(HEAD + text, encoding="utf-8")
        write = WRITE.format(out=folder / f"{number}.out")
        blocks.append(f"block()\ninclude({folder}/{number}.cmake)\n{write}endblock()\n")
    (folder / "all.cmake").write_text(f"{HEAD}{''.join(blocks)}", encoding="utf-8")
    run_process(["cmake", "-P", folder / "all.cmake"], timeout_s=60, check=False)
    return folder


def run_alone(text: str, folder: Path) -> Path:
    """The same of one snippet in a process of its own, which is skipped if it is refused."""
    script, out = folder / "snippet.cmake", folder / "out"
    script.write_text(HEAD + text + WRITE.format(out=out), encoding="utf-8")
    done = run_process(["cmake", "-P", script], timeout_s=60, check=False)
    if done.returncode:
        pytest.skip(f"this cmake refuses it: {done.output.strip().splitlines()[-1]}")
    return out


@pytest.mark.skipif(bool(NO_CMAKE), reason=NO_CMAKE)
@pytest.mark.parametrize("text", SNIPPETS, ids=lambda text: text.split("\n")[-2][:60])
def test_the_static_reader_agrees_with_cmake_or_says_unknown(
    text: str, answers: Path, tmp_path: Path
) -> None:
    out = answers / f"{SNIPPETS.index(text)}.out"
    exact = (out if out.exists() else run_alone(text, tmp_path)).read_text("utf-8")

    read = run_statically(tmp_path, text)

    assert exact in read or all(map(is_unknown, read)), (read, exact)
