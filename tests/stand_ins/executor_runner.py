#!/usr/bin/env python3
"""Stands in for an emulator that goes wrong: qnn_executor_runner's flags, a fault as first word."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--model_path", type=Path)
    parser.add_argument("--input_list_path", type=Path)
    parser.add_argument("--output_folder_path", type=Path)
    args = parser.parse_args()
    record = json.loads((args.model_path.parent / "lowered.json").read_text())
    print(f"stand-in runner: {args.fault}", flush=True)
    if args.fault == "hang":
        time.sleep(600)
    if args.fault == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if args.fault == "exit":
        return 134
    rows = args.input_list_path.read_text().splitlines()
    for number in range(len(rows)):
        for index in range(len(record["outputs"])):
            name = f"output_{number}_{index}.raw"
            right = (args.model_path.parent / "float" / f"{number}_{index}.raw").read_bytes()
            wrong = {
                "right": right,
                "zeros": bytes(len(right)),
                "short": right[:-4],
                "missing": None if number else right,
            }[args.fault]
            if wrong is not None:
                (args.output_folder_path / name).write_bytes(wrong)
    return 0


if __name__ == "__main__":
    sys.exit(main())
