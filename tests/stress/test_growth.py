"""The time that a verb takes does not grow with the square of its input's size."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.report.merge import digest_names
from ci.report.schema import Case, JudgementFacts, RunFacts, ShardMark, Status
from tests.stand_ins import android_apps, lowered, statements
from tests.stand_ins.reports import make_report, say

# For ten times the input. On a busy machine, whose caches hold less of it, it was up to 13.6.
MOST = 16.0
RULE = 'runtime.cxx_library(name = "l{0}", srcs = ["{0}.cpp"], deps = [":l{1}"])\n'


def write_statement(place: Path, size: int) -> list[str]:
    (place / "m.pte").write_bytes(statements.PROGRAM)
    document = statements.state(statements.make())
    (descriptor, *_) = document["predicate"]["configuration"]
    many = [{**descriptor, "name": f"more{number}", "annotations": {}} for number in range(size)]
    document["predicate"]["configuration"] += many
    descriptor["annotations"] |= {f"key{number}": "" for number in range(size)}
    (place / "e.json").write_text(json.dumps(document))
    return ["verify-evidence", "m.pte", "--evidence", "e.json"]


def write_shards(place: Path, size: int) -> list[str]:
    case = Case(
        model="m.py:make",
        scheme="fp16",
        soc="SM8650",
        run=RunFacts(log_tail="a line\n" * 9),
        judgement=JudgementFacts(status=Status.FAILED, findings=say("no")),
    )
    cases = [replace(case, model=f"m{number}.py:make") for number in range(2 * size)]
    digest = digest_names(case.name for case in cases)
    for index in (1, 2):
        part = range((index - 1) * size, index * size)
        report = replace(
            make_report([cases[number] for number in part]),
            shard=ShardMark(
                index=index, count=2, positions=tuple(part), whole=digest, policy="0" * 64
            ),
        )
        (place / f"{index}.json").write_bytes(msgspec.json.encode(report))
    return ["report", "1.json", "2.json", "--base", "1.json", "--to", "out", "--sarif", "o.sarif"]


def write_log(place: Path, size: int) -> list[str]:
    line = "[ERROR] [Qnn ExecuTorch]: Failed to create device, error {0} in line {0}\n"
    (place / "log").write_text("".join(line.format(14001 + number) for number in range(size)))
    return ["explain", "log"]


def write_chain(place: Path, size: int) -> list[str]:
    write_tree(place, size)
    rules = "".join(RULE.format(number, max(number - 1, 0)) for number in range(size))
    (place / "p" / "BUCK").write_text(rules.replace("deps", "exported_deps"))
    with (place / "p" / "CMakeLists.txt").open("a") as file:
        file.writelines(f"target_link_libraries(l{n} l{n - 1})\n" for n in range(1, size))
    return ["parity", "--source", ".", "--no-cache", "--scope", "p"]


def write_tree(place: Path, size: int) -> list[str]:
    sources = [f"{number}.cpp" for number in range(size)]
    (place / "p").mkdir()
    for name in sources:
        (place / "p" / name).touch()
    rules = "".join(RULE.format(number, number // 9) for number in range(size))
    (place / "p" / "BUCK").write_text(rules)
    adds = "".join(f"add_library(l{number} {name})\n" for number, name in enumerate(sources))
    (place / "p" / "CMakeLists.txt").write_text(adds)
    (place / "CMakeLists.txt").write_text("project(executorch)\nadd_subdirectory(p)\n")
    return ["parity", "--source", ".", "--no-cache", "--scope", "p"]


def write_program(place: Path, size: int) -> list[str]:
    graphs = [f"graph{number}" for number in range(size)]
    (place / "m.pte").write_bytes(lowered.make_program(lowered.make_binary(graphs=graphs)))
    return ["inspect", "m.pte"]


def write_app(place: Path, size: int) -> list[str]:
    libraries = {f"lib{number}.so": android_apps.library("l") for number in range(size // 10)}
    assets = {f"assets/{number}": b"x" for number in range(size)}
    android_apps.write_apk(
        place / "a.apk", {**android_apps.make_set(), **libraries}, other_files=assets
    )
    return ["inspect", "--load", "a.apk"]


@pytest.mark.parametrize(
    ("write", "size"),
    [
        (write_statement, 2000),
        (write_shards, 150),
        (write_log, 3000),
        (write_tree, 200),
        (write_chain, 400),
        (write_program, 300),
        (write_app, 150),
    ],
)
def test_run_time_grows_linearly_with_the_size_of_the_input(
    write: Callable[[Path, int], list[str]],
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    measure(write, size, tmp_path / "to import", monkeypatch)
    # Other programs on the machine lengthen some runs, but hardly the shortest of three.
    shortest_s = {}
    for factor in (1, 10):
        places = [tmp_path / f"{factor} {run}" for run in range(3)]
        shortest_s[factor] = min(
            measure(write, size * factor, place, monkeypatch) for place in places
        )
    print(write.__name__, shortest_s)
    assert shortest_s[10] < MOST * shortest_s[1]


def measure(
    write: Callable[[Path, int], list[str]],
    size: int,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> float:
    """Return the seconds of CPU time that a verb takes for an input in a new folder."""
    place.mkdir()
    monkeypatch.chdir(place)
    argv = write(place, size)
    began, out = time.process_time(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(argv)
    taken_s = time.process_time() - began
    assert code in {0, 1}, out.getvalue()
    return taken_s
