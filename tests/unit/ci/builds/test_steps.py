"""The stages of a build: what is called, which options are refused, and how a failure is told."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ci.builds.steps import Output, explain_failure, refuse_options
from provisioning.console.progress import Bar, Progress
from provisioning.errors import StoreError
from tests.build.builds import Cmake, write_files
from tests.build.signing import show
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")


@pytest.fixture
def cmake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cmake:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return Cmake(tmp_path)


def test_each_stage_is_configured_compiled_and_installed(cmake: Cmake) -> None:
    """A target that only some checkouts have is built if the last configuration has it."""
    cmake.reply("index-2026-01-01T00-00.json", ["z"])
    assert cmake.run() == [
        "first: -S",
        "first: --build --target all p q",
        "second: -S",
        "second: --build --target all w",
        "second: --install",
    ]
    for stage in cmake.plan.stages:
        assert (stage.build / "configured").is_file()
        assert [query.name for query in stage.build.glob(".cmake/api/v1/query/*")] == [
            "codemodel-v2"
        ]


@pytest.mark.parametrize("text", ["{", '{"reply": {}}', ""])
def test_a_cmake_configuration_without_a_file_api_reply_has_failed(cmake: Cmake, text: str) -> None:
    for path in (cmake.folder / "reply").glob("index*"):
        path.unlink() if not text else path.write_text(text)
    assert cmake.fail().what.startswith("cmake left no usable file API reply in ")


def test_an_unknown_cmake_option_is_refused_with_the_nearest_known_one(cmake: Cmake) -> None:
    texts = {"CMakeLists.txt": "option(MY_FIRST)", "a/b.cmake": "if(MY_OTHER)", "a/c.txt": "MY_NO"}
    texts |= {"a/CMakeLists.txt": "set(MY_SECOND)", "a/d.cmake": "set(MY_THIRD MY_OTHERX)"}
    write_files(cmake.plan.overlay, texts)
    for wrong, near in (
        ("MY_FIRTS", "MY_FIRST"),
        ("MY_OTHR", "MY_OTHER"),
        ("MY_SECOMD", "MY_SECOND"),
        ("MY_THIRB", "MY_THIRD"),
        ("CMAKE_CXX_STANDART", "CMAKE_CXX_STANDARD"),
        ("MY_NO_WORD", ""),
    ):
        fix = refuse_options(cmake.plan, frozenset({wrong})).fix
        assert fix == (
            f"did you mean {near}?" if near else "correct the name, or remove the option"
        )


NINJA = """\
[1/9] Building CXX object a.o
[2/9] Building CXX object b.o
FAILED: b.o
/usr/bin/c++ -Werror=all -o b.o -c b.cpp
b.cpp:3:5: error: expected ';'
    3 | int x
      |     ^
[3/9] Building CXX object c.o
c.cpp:1:1: error: another
ninja: build stopped
"""
QUOTED = """\
CMake Error at CMakeTestCXXCompiler.cmake:73 (message):
  The C++ compiler

    "/usr/bin/c++"

  is not able to compile a simple test program.

  It fails with the following output:

    Change Dir: '/build/TryCompile-ugg73j'
    
    Run Build Command(s): ninja -v cmTC_5c518
    [1/2] ccache c++ -o a.o -c a.cxx
    FAILED: [code=1] a.o 
    ccache: error: Failed to create directory /ccache/tmp: Permission denied
    ninja: build stopped: subcommand failed.
"""  # noqa: W291, W293
TWICE = (
    "CMake Error at a.cmake:1 (find_package):\n  no Torch\n\n  Add it.\n\n"
    "CMake Error at b.cmake:2 (message):\n  no Torch either\n"
)
CALM = "all is well: no terror: x\nFAILED: a.o\n{}\nmore\nb: error: late\n"
FAILURES = {
    "ninja": NINJA,
    "a tool that CMake quotes": QUOTED,
    "CMake alone": TWICE,
    "nothing": "",
    "no error": "all quiet\n",
    **{
        line: CALM.format(line)
        for line in (
            *("a.cpp:1:2: error: no", "a.cpp:1:2: fatal error: no", "error: no"),
            *("CMake Error: no", "a.o: undefined reference to `f'"),
        )
    },
    "a header of QNN": "a.cpp:1: fatal error: QnnInterface.h: No such file or directory\n"
    + "compiled\n" * 99,
    "many lines": "a: error: first\n" + "more\n" * 20 + "b: error: late\n" * 9,
    "a killed linker": "collect2: fatal error: ld terminated with signal 9\n",
    "a full disk": "/usr/bin/ld: final link failed: No space left on device\n",
    "a large file": "fatal error: error writing to /tmp/x.s: File too large\n",
    "a quota": "fatal error: error writing to /tmp/x.s: Disk quota exceeded\n",
    "a full disk first": "a.c: No space left on device\nb.c: File too large\nninja: error: x\n",
}


def read(text: str) -> Output:
    output = Output(Bar("build", 0, "", Progress(None)), Progress(None), echo=False)
    for line in text.splitlines():
        output.read_line(line)
    return output


def test_a_step_that_fails_names_its_first_error_and_what_helps(cmake: Cmake) -> None:
    messages = {}
    for name, text in FAILURES.items():
        error = explain_failure("compile", read(text), "exited with 1", text[-30:], Path("LOG"))
        is_full = bool({"full", "large", "quota"} & {*name.split()})
        assert isinstance(error, StoreError) is is_full, name
        messages[name] = f"{type(error).__name__} {error}"
    cmake.answer("first", "--build", "echo quiet; kill -9 $$")
    messages["a step that is killed"] = str(cmake.fail())
    cmake.say("first", "--build", FAILURES["a header of QNN"], 1)
    assert "QNN_SDK_ROOT" in cmake.fail().fix
    assert not (cmake.place.root / "step.log").exists()
    check_snapshot(SNAPSHOTS / "failures.txt", show(messages, {str(cmake.place.root): "PLACE"}))


def test_output_of_a_step_is_logged_and_shown_in_ci_with_paths_of_the_checkout(
    cmake: Cmake, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cmake.plan.source / "a.cpp").touch()
    shown = f"{cmake.plan.source}/a.cpp:3: error: no"
    cmake.say("first", "--build", f"{cmake.plan.overlay}/a.cpp:3: error: no\n", 1)
    cmake.place.log.write_text("earlier\n")
    for github in ("", "true"):
        monkeypatch.setenv("GITHUB_ACTIONS", github)
        stream = io.StringIO()
        error = cmake.fail(stream)
        assert (error.what, error.why) == (f"t: compile first failed: {shown}", "")
        lines = stream.getvalue().splitlines()
        group = "::group::t: compile first"
        assert (shown in lines, group in lines) == (bool(github),) * 2
    log = cmake.place.log.read_text()
    assert log.startswith("earlier\n$ ")
    assert log.count(f"\n{shown}\n") == 2
    cmake.plan.tools.cmake.path.unlink()
    assert "cannot start" in str(cmake.fail()) or "cmake" in str(cmake.fail())
    assert cmake.place.log.read_text().endswith("\n\n")
