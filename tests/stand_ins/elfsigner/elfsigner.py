"""Stands in for the Hexagon SDK's tools/elfsigner/elfsigner.py, which cannot be had.

Takes its arguments, asks what it asks, writes what it writes: a log and a signed library in the
directory of -o, or testsig-0xSERIAL.so. ``STAND_IN_KEYS`` is a directory with key.json and
chain.der, by default that of this file; ``STAND_IN_FAILS`` names how to fail,
``STAND_IN_FAILS_ON`` a part of the file name to fail on.
"""

from __future__ import annotations

import argparse
import imp
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mbn_writer

FAILS = os.environ.get("STAND_IN_FAILS", "")
ONLY_ON = os.environ.get("STAND_IN_FAILS_ON", "")
TESTSIG_BASE = Path(__file__).resolve().parent / "testsigbase.so"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", dest="image")
    parser.add_argument("-o", dest="out", default="./output")
    parser.add_argument("-t", dest="serial")
    parser.add_argument("-a", dest="validate", action="store_true")
    args = parser.parse_args()
    global FAILS  # noqa: PLW0603 - one process is one run
    if ONLY_ON not in (args.image or args.serial):
        FAILS = ""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "Elfsigner_log.txt").write_text("Tool launched\n")
    print("Logging to", out / "Elfsigner_log.txt")
    ask()
    print("Signing a file may take up to 3 minutes. Please wait patiently.")
    if FAILS == "hang":
        time.sleep(600)
    if FAILS == "exit 1":
        print("Signing failed!")
        return 1
    source = Path(args.image) if args.image else TESTSIG_BASE
    serial = int(args.serial, 16) if args.serial else 0
    name = f"testsig-{serial:#x}.so" if args.serial else source.name
    write(out, name, source, serial)
    if args.serial:
        print("Signing for device", args.serial, "with token", os.environ.get("SIGN_TOKEN", ""))
    print("Signing complete! Output saved at", out / name)
    return 0


def ask() -> None:
    """Ask until the answer is one of four words, as the vendor's tool does."""
    print("Attention:\n  Use of this tool is conditioned upon the licence.")
    question = "Agree? [y/n]: "
    while True:
        print(question, end="", flush=True)
        answer = sys.stdin.readline()
        if not answer:
            print("EOFError: EOF when reading a line")
            sys.exit(1)
        if answer.strip().lower() in {"y", "yes"}:
            return
        if answer.strip().lower() in {"n", "no"}:
            sys.exit(2)


def write(out: Path, name: str, source: Path, serial: int) -> None:
    wrong = 3 if FAILS == "wrong hash" else None
    signed = mbn_writer.sign_elf(source.read_bytes(), read_key(), 6, "sha384", serial, wrong)
    (out / name).write_bytes(signed)


def read_key() -> mbn_writer.Key:
    keys = Path(os.environ.get("STAND_IN_KEYS", Path(__file__).resolve().parent))
    numbers = json.loads((keys / "valid.json").read_text())
    return mbn_writer.Key(chain=(keys / "valid.der").read_bytes(), **numbers)


if __name__ == "__main__":
    assert imp.new_module("probe")
    sys.exit(main())
