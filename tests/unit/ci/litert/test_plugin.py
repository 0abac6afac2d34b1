"""What LiteRT's compiler plugin says is read, and its failures have their causes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ci.cases.engine import CompilerError
from ci.litert import plugin
from ci.litert.plugin import read_messages, run_plugin
from provisioning.errors import FailedError

REFUSED = "LiteRT Op #{} '{}' (code=1) is not supported in Qualcomm Compiler."
PARTITIONED = (
    "INFO: [compiler_plugin.cc:742] Partitioned subgraph<{}>, selected {} ops, from a total of {}"
    " ops. resulted in 1 partitions."
)
TYPES = "Unsupported input/output datatypes requested for the HTP Op 'PoolAvg2d'."
QNN_REFUSES = f"""\
     0.0ms [ ERROR ]   <E> {TYPES}
     0.0ms [ ERROR ]   <E> Requested I/O datatype set:
     0.0ms [ ERROR ]   <E> QnnBackend_validateOpConfig failed 3110
     0.0ms [ ERROR ]   <E> Failed to validate op PoolAvg2d_0 with error 0xc26
"""
QNN_RANK = """\
     0.0ms [ ERROR ]   <E> [4294967295] has incorrect Rank 6.
     0.0ms [ ERROR ]   <E> QnnBackend_validateOpConfig failed 3110
     0.0ms [ ERROR ]   <E> Failed to validate op ElementWiseBinary_0 with error 0xc26
"""


@dataclass(frozen=True)
class Messages:
    """Messages of the plugin and of QNN, and what is read from them."""

    stderr: tuple[str, ...]
    stdout: str = ""
    refused: dict[tuple[int, int], str] = field(default_factory=dict)
    selected: dict[int, int] = field(default_factory=dict)


MESSAGES = {
    "all taken": Messages((PARTITIONED.format(0, 4, 4),), selected={0: 4}),
    "with QNN's reason": Messages(
        (REFUSED.format(2, "AveragePool2d"), PARTITIONED.format(0, 3, 4)),
        QNN_REFUSES,
        {(0, 2): TYPES},
        {0: 3},
    ),
    "two reasons in order": Messages(
        (REFUSED.format(0, "Pool"), REFUSED.format(1, "Add"), PARTITIONED.format(0, 1, 3)),
        QNN_REFUSES + QNN_RANK,
        {(0, 0): TYPES, (0, 1): "QNN takes no tensor with 6 axes here"},
        {0: 1},
    ),
    # QNN was not asked about one of them, so the reason could be that of either.
    "a reason too few": Messages(
        (REFUSED.format(0, "Densify"), REFUSED.format(1, "Pool"), PARTITIONED.format(0, 1, 3)),
        QNN_REFUSES,
        {(0, 0): "", (0, 1): ""},
        {0: 1},
    ),
    "two subgraphs": Messages(
        (
            REFUSED.format(1, "FloorMod"),
            PARTITIONED.format(0, 2, 3),
            REFUSED.format(0, "Shape"),
            PARTITIONED.format(1, 0, 1),
        ),
        refused={(0, 1): "", (1, 0): ""},
        selected={0: 2, 1: 0},
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_the_operators_on_the_cpu_have_their_reasons(name: str) -> None:
    messages = MESSAGES[name]
    result = read_messages("\n".join(messages.stderr), messages.stdout)
    assert (result.refused, result.selected) == (messages.refused, messages.selected)


@dataclass(frozen=True)
class Failure:
    """A script that stands for the plugin, and what the error says."""

    script: str
    message: str
    why: str = ""


FAILURES = {
    "dies": Failure("kill -SEGV $$", "SIGSEGV"),
    "dies as it writes": Failure(
        "echo '[LITERT_TOOLS:APPLY] Starting Serializing model...' >&2; kill -SEGV $$",
        "SIGSEGV while it wrote the compiled file",
        "STABLEHLO_SCATTER",
    ),
    "never ends": Failure("sleep 600", "did not end within 1 s"),
    "takes nothing": Failure(
        f"echo \"{REFUSED.format(0, 'Add')}\" >&2; echo '{PARTITIONED.format(0, 0, 1)}' >&2;"
        f" cat <<'END'\n{QNN_RANK}\nEND\nexit 1",
        "QNN takes no operator of the model",
        "6 axes",
    ),
    "loses what it took": Failure(
        "echo '0.0ms [ ERROR ]   <E> graph prepare failed 1'; exit 6",
        "could not prepare its graph",
        "graph prepare failed 1",
    ),
    "cannot translate what it took": Failure(
        "echo 'ERROR: [Qnn] FP16 FullyConnected only supports weights per channel.' >&2;"
        " echo 'ERROR: [apply_plugin.cc:455] ERROR: [compiler_plugin.cc:504]' >&2; exit 3",
        "could not translate them",
        "only supports weights per channel",
    ),
    "meets two tensors of one name": Failure(
        "echo 'ERROR: [a.cc:9] Failed to create graph tensor, error: 7003, message:"
        " QNN_TENSOR_ERROR_ALREADY_EXISTS: registered' >&2; exit 3",
        "several tensors of one name",
        "some names are then the same",
    ),
    "names a file instead of a reason": Failure(
        "echo 'ERROR: [a.cc:1] invalid op config' >&2; echo 'ERROR: [a.cc:4] ERROR: [b.cc:5]' >&2;"
        " exit 3",
        "exited with 3",
        "invalid op config",
    ),
    "does not know this QNN": Failure(
        "echo 'ERROR: Qnn System library version 1.13.0 is mismatched. The minimum supported"
        " version is 1.14.0.' >&2; exit 1",
        "does not work with this QNN",
        "1.14.0",
    ),
    "says nothing": Failure("exit 244", "exited with 244"),
    "writes nothing": Failure(": > ${3#--o=}", "exited with 0"),
}


# Whether the compiler died, and whether it exceeded a limit; what is missing is no fault of QNN.
STOPS = {
    "dies": (True, False),
    "dies as it writes": (True, False),
    "never ends": (False, True),
    "loses what it took": (False, False),
    "cannot translate what it took": (False, False),
    "names a file instead of a reason": (False, False),
    "says nothing": (False, False),
    "writes nothing": (False, False),
}


def install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``script`` the plugin's program."""
    program = folder / "package" / plugin.PROGRAM
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(plugin, "find_package", lambda: folder / "package")


@pytest.mark.parametrize("name", FAILURES)
def test_a_plugin_that_compiles_nothing_is_an_error_with_its_cause(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = FAILURES[name]
    install(tmp_path, failure.script, monkeypatch)
    with pytest.raises(FailedError) as raised:
        compile_with(tmp_path, timeout_s=1 if name == "never ends" else 600)
    assert failure.message in raised.value.what
    assert failure.why in raised.value.why
    assert isinstance(raised.value, CompilerError) is (name in STOPS)
    if isinstance(raised.value, CompilerError):
        assert (raised.value.died, raised.value.exceeded) == STOPS[name]


def compile_with(folder: Path, timeout_s: float = 600) -> plugin.PluginResult:
    return run_plugin(
        folder / "net.tflite",
        folder / "compiled.tflite",
        "SM8650",
        library_folder=folder / "qnn",
        log=folder / "lower.log",
        timeout_s=timeout_s,
    )


def test_a_plugin_that_is_only_slow_compiles_with_a_higher_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, f"read word <{tmp_path}/end; echo model > ${{3#--o=}}", monkeypatch)
    os.mkfifo(tmp_path / "end")
    with pytest.raises(CompilerError) as raised:
        compile_with(tmp_path, timeout_s=1)
    assert raised.value.fix.endswith("if it is only slow to compile, raise --timeout-s")
    with ThreadPoolExecutor() as pool:
        pool.submit((tmp_path / "end").write_text, "end\n")  # when the plugin reads it
        compile_with(tmp_path, timeout_s=600)
    assert (tmp_path / "compiled.tflite").read_text() == "model\n"


def test_the_plugin_finds_the_library_that_it_names_and_its_messages_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'echo "$LD_LIBRARY_PATH"; echo aloud >&2; echo model > ${3#--o=}'
    install(tmp_path, script, monkeypatch)
    compile_with(tmp_path)
    assert (tmp_path / "plugin.stderr.log").read_text() == "aloud\n"
    folders = (tmp_path / "plugin.stdout.log").read_text().strip().split(os.pathsep)
    assert folders[0] == str(tmp_path / "qnn")
    assert Path(folders[-1], plugin.UNUSED_LIBRARY).is_file()
