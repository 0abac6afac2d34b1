"""``check-app APP``: check whether an Android app can run QNN, without a device."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from ci.inspect.app_checks import judge_unit
from ci.inspect.app_report import CheckedUnit, choose_exit, data_of, render_units
from ci.inspect.app_trees import read_app
from provisioning.console.command import Outcome, user_path
from provisioning.console.progress import Progress
from provisioning.doctor.verdict_text import WIDTH
from provisioning.files import scratch_directory
from provisioning.manifest.targets import find_soc

LEAST = 40  # columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "app",
        type=user_path,
        metavar="APK|AAR|DIR",
        help="an APK, a set of APKs (.apks, .xapk), an AAR, one of these unpacked, or source code",
    )
    parser.add_argument(
        "--soc",
        action="append",
        default=[],
        metavar="SOC",
        help="an SoC that the app must run on, such as SM8650; repeatable",
    )
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    socs = [soc.upper() for soc in args.soc]
    for soc in socs:
        find_soc(soc)
    progress.step(f"reading {args.app.name}")
    with scratch_directory(Path(tempfile.gettempdir()), "qnn-ci-app") as scratch:
        units = read_app(args.app, scratch)
        progress.step("judging")
        checked = [CheckedUnit(unit, tuple(judge_unit(unit, socs))) for unit in units]
        columns = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
        return Outcome(
            render_units(checked, strict=args.strict, width=max(LEAST, columns)),
            data_of(args.app.name, checked, socs, strict=args.strict),
            choose_exit(checked, strict=args.strict),
        )
