"""A call of this toolkit that a test may kill: a bundle is deployed, a program runs.

``python -m tests.stand_ins.device_call FOLDER LIMIT_S WORDS``, WORDS as ``deploy`` takes them. It
prints a line before each script that goes to the device, and the outputs at the end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ci.cases.engine import Compiled, Delegation, Program
from ci.device import runner
from ci.device.connection import Answer, Device
from ci.device.runner import DeviceProgram
from ci.models.tensors import TensorInfo
from ci.verbs.deploy import add_arguments, read_device, ready_device
from provisioning.console.progress import Progress
from tests.stand_ins.lanes import SPEC

PAIR = TensorInfo("float32", (2,))
COMPILED = Compiled(
    program="p",
    binary="p",
    size_bytes=1,
    sets=2,
    inputs=(PAIR,),
    outputs=(PAIR,),
    delegation=Delegation(1, 0, 1),
)
SETS = [[np.array([1, 2], np.float32)], [np.array([3, 4], np.float32)]]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tell_first(call: Callable[..., Answer]) -> Callable[..., Answer]:
    def told(*words: object, **options: object) -> Answer:
        say("call")
        return call(*words, **options)

    return told


def main(folder: Path, limit_s: float, words: list[str]) -> None:
    runner.PAUSE_S = 0.2
    Device.call = tell_first(Device.call)  # type: ignore[method-assign]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    (folder / "p").write_bytes(b"program")
    program = Program(SPEC, folder / "p", COMPILED, folder, folder / "log")
    choice = read_device(parser.parse_args(words))
    assert choice
    with ready_device(choice, Progress.to_stderr()) as (ready, _):
        outputs = DeviceProgram(ready, program, limit_s).run(SETS)
    say(str([output[0].tolist() for output in outputs]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
