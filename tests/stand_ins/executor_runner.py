#!/usr/bin/env python3
"""Stands in for an emulator that goes wrong: qnn_executor_runner's flags after a fault and the
cache of lowered programs, in which it looks for what the program ought to give."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("cache", type=Path)
    parser.add_argument("--model_path", type=Path)
    parser.add_argument("--input_list_path", type=Path)
    parser.add_argument("--output_folder_path", type=Path)
    args = parser.parse_args()
    print(f"stand-in runner: {args.fault}", flush=True)
    if args.fault == "hang":
        time.sleep(600)
    if args.fault == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if args.fault == "exit":
        return 134
    references = find_references(args.cache, args.model_path.read_bytes())
    beside = [path for path in args.model_path.parent.rglob("*") if "float" in path.parts]
    for file in sorted(references.iterdir()):
        right, target = file.read_bytes(), args.output_folder_path / f"output_{file.name}"
        if args.fault == "overwrite":
            for path in (file, *beside):
                path.chmod(0o644)
                path.write_bytes(bytes(len(right)))
        if args.fault != "missing" or file.name.startswith("0_"):
            target.write_bytes(right if args.fault == "missing" else bytes(len(right)))
    return 0


def find_references(cache: Path, program: bytes) -> Path:
    """The float32 references of the program, wherever the cache has them; what others are about to
    publish there may vanish meanwhile."""
    for file in cache.glob("??/*/program.pte"):
        with suppress(OSError):
            if file.read_bytes() == program:
                return file.parent / "float"
    raise SystemExit("no such program in the cache")


if __name__ == "__main__":
    sys.exit(main())
