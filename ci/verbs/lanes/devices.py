"""What is missing to run the programs of ONNX Runtime on a phone, and those of LiteRT on a phone or
a board. Nothing here runs one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ci.device.connection import split_device
from ci.verbs.options import add_option
from provisioning.console.command import MANY
from provisioning.errors import UnfitError

TITLE, OPTION = "on a device", "--device adb:SERIAL|ssh:HOST"
TEXT = "report what is missing to run the program on a phone (adb:) or a board (ssh:)"
BOARD = "ssh:"
FOR_PYTORCH = "test_emulator"  # the lane that runs its programs on phones and boards
# By the verb's module. A program for the shell has to read inputs from files and to write outputs.
ON_PHONE = {
    "test_onnx": "a program of ONNX Runtime for Android's shell that writes its outputs: its AAR"
    " com.microsoft.onnxruntime:onnxruntime-android-qnn has libonnxruntime.so and a library for"
    " Java, but no program, and of those that `build.sh --android` makes from its sources,"
    " onnxruntime_perf_test only measures times, and onnx_test_runner only compares outputs",
    "test_litert": "a program of LiteRT for Android's shell that writes its outputs: Google's"
    " binaries for Android (litert-cli downloads them) have run_model, libLiteRt.so and"
    " libLiteRtDispatch_Qualcomm.so, and run_model reads inputs from files, but only prints"
    " elements of its outputs",
}
ON_BOARD = {
    "test_litert": "the dispatch library libLiteRtDispatch_Qualcomm.so: the wheel ai-edge-litert"
    " 2.3.0 for Linux on aarch64 has libLiteRt.so, but not that library",
}
SHIP = {
    "test_onnx": "run the context binary in your app (docs/guides/onnx.md)",
    "test_litert": "run the compiled file in your app (docs/guides/litert.md)",
}


def add_missing_device(parser: argparse.ArgumentParser) -> None:
    """Add an option that reports what is missing."""
    add_option(parser, TITLE, OPTION, TEXT, **MANY)


def refuse_device(names: list[str], session: str, lanes: Sequence[str] = ()) -> None:
    """Raise UnfitError if a device was chosen: the verb of a ``session`` runs nothing on one.
    Raise UsageError if one of the ``names`` is neither a phone's nor a board's. ``lanes`` are the
    sessions whose programs it would run, by default its own. Nothing is missing for those that are
    not in the table of the device's kind: their own verbs run theirs."""
    if not names:
        return
    for name in names:
        split_device(name)
    is_board = names[0].startswith(BOARD)
    table = ON_BOARD if is_board else ON_PHONE
    sessions = lanes or (session,)
    missing = "; and ".join(table[lane] for lane in sessions if lane in table)
    ways = [SHIP[lane] for lane in sessions if lane in SHIP] if len(sessions) == 1 else []
    running = [lane for lane in (FOR_PYTORCH, "test_onnx") if lane not in table]
    own_sessions = [lane for lane in running if lane in sessions]
    verbs = " or ".join(f"`qnn-ci {lane.replace('_', '-')}`" for lane in own_sessions or running)
    take = "takes" if len(own_sessions or running) == 1 else "take"
    model = "model" if own_sessions else "PyTorch model"
    judge = f"judge the {model} with {verbs}, which {take} --device"
    raise UnfitError(
        f"{session} runs no program on {names[0]}",
        why=f"missing is {missing}" if missing else "it compares runtimes on QNN's emulator",
        fix=judge if own_sessions else ", or ".join([*ways, judge]),
    )
