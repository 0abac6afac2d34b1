"""CMake snippets run by ``cmake -P`` and by the static interpreter: the same, or marked unknown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ci.parity.cmake.commands.flow import FLOW_COMMANDS
from ci.parity.cmake.commands.targets import Targets
from ci.parity.cmake.commands.variables import VARIABLE_COMMANDS
from ci.parity.cmake.interpreter import Interpreter
from ci.parity.cmake.state import Sources, State
from ci.parity.cmake.values import is_unknown
from ci.parity.facts import Configuration
from ci.parity.trees import DirectoryTree
from provisioning.console.process import run_process

# Each leaves its result in OUT.
TEXT = r"""
set(OUT a b c)
set(OUT "a;b" c)
set(OUT a "" b)
set(L a b)
list(APPEND L c d)
set(OUT ${L})
---
set(L a b c)
list(POP_BACK L)
set(OUT ${L})
---
set(L a b c)
list(POP_BACK L x)
set(OUT "${L}|${x}")
---
set(L a b c)
list(POP_FRONT L x y)
set(OUT "${L}|${x}|${y}")
---
set(L a b)
list(POP_FRONT L x y z)
set(OUT "${L}|${x}|${y}|${z}|")
---
set(L a b c d)
list(REMOVE_AT L 0 2)
set(OUT "${L}")
---
set(L a b c d)
list(REMOVE_AT L -1)
set(OUT "${L}")
---
set(L a b c d)
list(GET L 0 -1 OUT)
---
set(L a b c d)
list(GET L 2 OUT)
---
set(L a b c d)
list(SUBLIST L 1 2 OUT)
---
set(L a b c d)
list(SUBLIST L 2 -1 OUT)
---
set(L a b c d)
list(LENGTH L OUT)
---
list(LENGTH NONE OUT)
---
set(L a b c)
list(FIND L b OUT)
---
set(L a b c)
list(FIND L z OUT)
---
set(L a b c)
list(JOIN L "-" OUT)
---
set(L c a b a)
list(REMOVE_DUPLICATES L)
set(OUT "${L}")
---
set(L c a b)
list(SORT L)
set(OUT "${L}")
---
set(L c a b)
list(SORT L ORDER DESCENDING)
set(OUT "${L}")
---
set(L b A c)
list(SORT L CASE INSENSITIVE)
set(OUT "${L}")
---
set(L b10 b9 a)
list(SORT L COMPARE NATURAL)
set(OUT "${L}")
---
set(L d/a c/b)
list(SORT L COMPARE FILE_BASENAME)
set(OUT "${L}")
---
set(L c a b)
list(REVERSE L)
set(OUT "${L}")
---
set(L a b)
list(INSERT L 1 x y)
set(OUT "${L}")
---
set(L a b)
list(INSERT L -1 x)
set(OUT "${L}")
---
set(L a b)
list(PREPEND L x y)
set(OUT "${L}")
---
set(L a b a c)
list(REMOVE_ITEM L a c)
set(OUT "${L}")
---
set(L one two three)
list(FILTER L INCLUDE REGEX "^t")
set(OUT "${L}")
---
set(L one two three)
list(FILTER L EXCLUDE REGEX "e$")
set(OUT "${L}")
---
set(L a b)
list(TRANSFORM L PREPEND "x/")
set(OUT "${L}")
---
set(L a b)
list(TRANSFORM L APPEND ".cpp")
set(OUT "${L}")
---
set(L a b)
list(TRANSFORM L TOUPPER)
set(OUT "${L}")
---
set(L A B)
list(TRANSFORM L TOLOWER)
set(OUT "${L}")
---
set(L "a " " b")
list(TRANSFORM L STRIP)
set(OUT "${L}")
---
set(L a.c b.c)
list(TRANSFORM L REPLACE "\\.c$" ".o")
set(OUT "${L}")
---
set(L a b)
list(TRANSFORM L PREPEND "x/" OUTPUT_VARIABLE M)
set(OUT "${L}|${M}")
---
set(L a b c)
list(TRANSFORM L APPEND "!" AT 0 2)
set(OUT "${L}")
---
set(L a b c)
list(TRANSFORM L APPEND "!" FOR 1 2)
set(OUT "${L}")
---
set(L a b c)
list(TRANSFORM L APPEND "!" REGEX "[ab]")
set(OUT "${L}")
---
set(L "$<1:a>b" c)
list(TRANSFORM L GENEX_STRIP)
set(OUT "${L}")
---
string(REPLACE a b OUT banana)
---
string(REPLACE "." "/" OUT a.b c.d)
---
string(REGEX REPLACE "a(.)" "<\\1>" OUT "abac")
---
string(REGEX REPLACE "[.]h$" ".cpp" OUT "x.h")
---
string(REGEX REPLACE "(x)(y)" "\\2\\1\\0" OUT "xy")
---
string(REGEX REPLACE "a{2}" "b" OUT "a{2}aa")
---
string(REGEX REPLACE "[\\.]" "_" OUT "a.b")
---
string(REGEX MATCH "[0-9]+" OUT "ab12cd34")
---
string(REGEX MATCHALL "[0-9]+" OUT "ab12cd34")
---
string(REGEX MATCH "v([0-9]+)[.]([0-9]+)" x "v12.7")
set(OUT "${CMAKE_MATCH_0}|${CMAKE_MATCH_1}|${CMAKE_MATCH_2}|${CMAKE_MATCH_COUNT}")
---
if("kernel_op_add.cpp" MATCHES "op_(.*)\\.cpp")
  set(OUT ${CMAKE_MATCH_1})
endif()
---
string(TOLOWER AbC OUT)
---
string(TOUPPER AbC OUT)
---
string(STRIP "  a b " OUT)
---
string(LENGTH "hello" OUT)
---
string(SUBSTRING "hello" 1 3 OUT)
---
string(SUBSTRING "hello" 2 -1 OUT)
---
string(FIND "hello" l OUT)
---
string(FIND "hello" l OUT REVERSE)
---
string(FIND "hello" z OUT)
---
string(CONCAT OUT a b "c d")
---
string(JOIN "," OUT a b c)
---
set(OUT x)
string(APPEND OUT y z)
---
set(OUT x)
string(PREPEND OUT y z)
---
string(REPEAT "ab" 3 OUT)
---
string(COMPARE EQUAL a a OUT)
---
string(COMPARE LESS a b OUT)
---
string(MAKE_C_IDENTIFIER "a-b.c" OUT)
---
string(GENEX_STRIP "a$<1:b>c" OUT)
---
set(V 7)
string(CONFIGURE "x@V@y" OUT @ONLY)
---
get_filename_component(OUT "/a/b/c.tar.gz" NAME)
---
get_filename_component(OUT "/a/b/c.tar.gz" EXT)
---
get_filename_component(OUT "/a/b/c.tar.gz" LAST_EXT)
---
get_filename_component(OUT "/a/b/c.tar.gz" NAME_WE)
---
get_filename_component(OUT "/a/b/c.tar.gz" NAME_WLE)
---
get_filename_component(OUT "/a/b/c.tar.gz" DIRECTORY)
---
get_filename_component(OUT "a" DIRECTORY)
---
get_filename_component(OUT ".hidden" NAME_WE)
---
get_filename_component(OUT ".hidden" EXT)
---
get_filename_component(OUT "../x/y" ABSOLUTE BASE_DIR "/q/r")
---
set(V "a\
b")
set(OUT "${V}")
---
set(OUT "a\tb\;c\\d\$e\"")
---
set(OUT a\ b)
---
set(OUT [[raw ${X} \n]])
---
set(OUT [==[
line ]] here]==])
---
set(A B)
set(B c)
set(OUT ${${A}})
---
set(A_x 1)
set(n x)
set(OUT ${A_${n}})
---
block()
  set(INNER 1)
endblock()
set(OUT "${INNER}|")
---
set(OUT before)
block(SCOPE_FOR VARIABLES)
  set(OUT inside)
endblock()
---
set(OUT before)
block(PROPAGATE OUT)
  set(OUT inside)
endblock()
---
block(SCOPE_FOR POLICIES)
  set(OUT kept)
endblock()
---
function(f)
  set(OUT "${ARGN}|${ARGC}|${ARGV0}" PARENT_SCOPE)
endfunction()
cmake_language(CALL f a b)
---
cmake_language(EVAL CODE "set(OUT from_eval)")
---
function(f a)
  set(OUT "${a}|${ARGN}" PARENT_SCOPE)
endfunction()
f(x y z)
---
function(f a)
  set(OUT inner)
endfunction()
set(OUT outer)
f(x)
---
macro(m a)
  set(OUT "${a}|${ARGN}")
endmacro()
m(x y z)
---
macro(m)
  if(ARGN)
    set(OUT yes)
  else()
    set(OUT no)
  endif()
endmacro()
m(x)
---
macro(m a)
  if("${a}" STREQUAL x)
    set(OUT yes)
  endif()
endmacro()
m(x)
---
function(f)
  return()
  set(OUT never PARENT_SCOPE)
endfunction()
f()
set(OUT after)
---
set(OUT "")
foreach(i RANGE 3)
  list(APPEND OUT ${i})
endforeach()
---
set(OUT "")
foreach(i RANGE 2 8 3)
  list(APPEND OUT ${i})
endforeach()
---
set(OUT "")
set(L a b)
foreach(i IN LISTS L ITEMS c)
  list(APPEND OUT ${i})
endforeach()
---
set(OUT "")
set(L a b a)
foreach(i IN LISTS L)
  list(APPEND OUT ${i})
endforeach()
---
set(OUT "")
set(A 1 2)
set(B x y)
foreach(p IN ZIP_LISTS A B)
  list(APPEND OUT "${p_0}${p_1}")
endforeach()
---
set(i keep)
foreach(i a b)
endforeach()
set(OUT "${i}")
---
set(OUT "")
foreach(i a b c)
  if(i STREQUAL b)
    continue()
  endif()
  list(APPEND OUT ${i})
endforeach()
---
set(OUT "")
foreach(i a b c)
  if(i STREQUAL b)
    break()
  endif()
  list(APPEND OUT ${i})
endforeach()
---
set(n 0)
while(n LESS 3)
  math(EXPR n "${n} + 1")
endwhile()
set(OUT ${n})
---
math(EXPR OUT "(2 + 3) * 4 - 7 / 2")
---
math(EXPR OUT "0x1F & 7" OUTPUT_FORMAT DECIMAL)
---
math(EXPR OUT "255" OUTPUT_FORMAT HEXADECIMAL)
---
if(NOT DEFINED XX AND NOT XX)
  set(OUT unset)
endif()
---
set(X OFF)
if(X)
  set(OUT on)
elseif(NOT X)
  set(OUT off)
endif()
---
if("abc" STRLESS "abd")
  set(OUT less)
endif()
---
if(1.10 VERSION_GREATER 1.9)
  set(OUT newer)
else()
  set(OUT older)
endif()
---
set(L a b)
if(b IN_LIST L)
  set(OUT in)
endif()
---
if(5 GREATER_EQUAL 5 AND 3 LESS 4 OR FALSE)
  set(OUT yes)
endif()
---
if((FALSE OR TRUE) AND NOT (TRUE AND FALSE))
  set(OUT yes)
endif()
---
if("/a/b" PATH_EQUAL "/a//b")
  set(OUT same)
endif()
---
if(IS_ABSOLUTE "/a/b")
  set(OUT absolute)
endif()
---
set(OUT x)
unset(OUT)
set(OUT "${OUT}-")
---
set(V "a;b;c")
set(OUT "${V}" d)
---
set(V a b)
set(OUT pre_${V}_post)
---
include(CMakeParseArguments)
function(f)
  cmake_parse_arguments(A "FLAG" "ONE" "MANY" ${ARGN})
  set(OUT "${A_FLAG}|${A_ONE}|${A_MANY}|${A_UNPARSED_ARGUMENTS}" PARENT_SCOPE)
endfunction()
f(u FLAG ONE 1 MANY a b v)
---
function(f)
  cmake_parse_arguments(PARSE_ARGV 0 A "FLAG" "ONE" "MANY")
  set(OUT "${A_FLAG}|${A_ONE}|${A_MANY}|${A_UNPARSED_ARGUMENTS}" PARENT_SCOPE)
endfunction()
f(u ONE 1 MANY a b)
---
function(f first)
  cmake_parse_arguments(PARSE_ARGV 1 A "" "" "MANY")
  set(OUT "${first}|${A_MANY}|${A_UNPARSED_ARGUMENTS}" PARENT_SCOPE)
endfunction()
f(u v MANY a b)
---
set(p /a/b.c)
cmake_path(GET p FILENAME OUT)
---
set(p /a/b/c.tar.gz)
cmake_path(GET p STEM OUT)
---
set(p /a/b)
cmake_path(APPEND p c d)
set(OUT ${p})
---
separate_arguments(OUT UNIX_COMMAND "a b 'c d'")
---
set(OUT "a b c")
separate_arguments(OUT)
---
set(OUT a)
set_property(GLOBAL PROPERTY P v w)
get_property(OUT GLOBAL PROPERTY P)
---
set(ENV{QNN_CI_X} val)
set(OUT "$ENV{QNN_CI_X}")
---
file(RELATIVE_PATH OUT /a/b /a/c/d)
---
set(V "x\\;y;z")
list(LENGTH V OUT)
---
set(A "")
set(OUT a ${A} b "${A}" c)
---
set(V 1)
set(OUT "@V@")
---
string(ASCII 65 66 OUT)
---
string(TIMESTAMP OUT "x")
---
string(SHA256 OUT abc)
"""
SNIPPETS = [part.strip("\n") + "\n" for part in TEXT.split("---\n")]
CMAKE = shutil.which("cmake")


def run_statically(folder: Path, text: str) -> tuple[str, ...]:
    """What the interpreter makes of OUT: one value, or one for each way an if() may go."""
    (folder / "CMakeLists.txt").write_text(text, encoding="utf-8")
    state = State(Sources(DirectoryTree(folder)), Configuration.HOST)
    run = Interpreter(state, {**VARIABLE_COMMANDS, **FLOW_COMMANDS}, Targets().has)
    run.run_root("")
    return run.lookup("", "OUT")


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


@pytest.mark.skipif(CMAKE is None, reason="cmake is not installed")
@pytest.mark.parametrize("text", SNIPPETS, ids=lambda text: text.split("\n")[-2][:60])
def test_a_snippet_is_read_as_cmake_runs_it_or_as_unknown(
    text: str, answers: Path, tmp_path: Path
) -> None:
    out = answers / f"{SNIPPETS.index(text)}.out"
    exact = (out if out.exists() else run_alone(text, tmp_path)).read_text("utf-8")

    read = run_statically(tmp_path, text)

    assert exact in read or all(map(is_unknown, read)), (read, exact)
