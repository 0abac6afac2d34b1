"""``sign``: sign the libraries that a device's DSP loads, and publish them only if all of them
verify; with --verify, only verify libraries."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from ci.report.text import count
from ci.signing.masking import (
    FROM_ADB,
    Masker,
    list_secrets,
    mask_arguments,
    parse_serial,
    read_device_serial,
)
from ci.signing.plan import VARIABLES, SignPlan, SignRequest, find_roots, make_plan, resolve_signer
from ci.signing.record import RECORD_NAME, STATEMENT_NAME
from ci.signing.selection import Selection, SigningPolicy
from ci.signing.sign import sign
from ci.signing.verdict import render_reports
from ci.signing.verification import ACCEPTED, parse_date, verify_files
from ci.verbs.options import MOST
from provisioning.console.command import (
    DIR,
    FILE,
    FLAG,
    Outcome,
    between,
    group_options,
    nonempty_word,
    user_path,
)
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.reader import read_policy
from provisioning.quoting import shell_words

# What only signing uses
SIGNING = (
    *("lpai_arch", "direct_mode", "htp_arch", "op_package_dir", "testsig", "device", *VARIABLES),
    *("out", "signer", "signer_python", "force", "dry_run"),
)


@dataclass(frozen=True)
class VerifyRequest:
    """What a call with --verify verifies; the fields are the arguments of verify_files."""

    files: tuple[Path, ...]
    original: Path | None
    expect: str
    at: datetime | None
    accept_unrecognised: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_subject = group_options(parser, "what to sign")
    add_subject("files", "Hexagon libraries; of --verify also directories", nargs="*", **FILE)
    add_subject("--lpai-arch vN", "sign the LPAI libraries of this version, such as v6", default="")
    add_subject("--direct-mode", "sign the libraries for direct mode", **FLAG)
    add_subject("--htp-arch vNN", "the Hexagon version for direct mode, such as v81", default="")
    add_subject("--op-package-dir", "also sign the libraries of an op package", **DIR)
    text = f"make the test signature for this serial number; {FROM_ADB!r} asks the device for it"
    add_subject("--testsig SERIAL", text, type=nonempty_word)
    add_subject("--device ID", "the device's serial number in adb", default="")
    where = group_options(parser, "directories")
    for name, variable in VARIABLES.items():
        default = f"default: {variable}, otherwise the one that profile lpai provisioned"
        where("--" + name.replace("_", "-"), default, **DIR)
    text = "the output of `build direct`; default: build-direct"
    where("--build-dir", text, default="build-direct", **DIR)
    where("--out", "where to write; default: signed", **DIR)
    how = group_options(parser, "how")
    how("--signer CMD", "a signer other than the SDK's", type=nonempty_word)
    how("--signer-python PYTHON", "a Python older than 3.12, for the signer", default="")
    how("--timeout S", "time limit per library, in seconds", type=between(1, MOST), default=300.0)
    how("--force", "replace an existing --out", **FLAG)
    how("--dry-run", "check everything, but sign nothing", **FLAG)
    text = "accept a signature that no known scheme can verify, even though it may be wrong"
    how("--accept-unrecognised", text, **FLAG)
    check = group_options(parser, "verify")
    check("--verify", "sign nothing: verify libraries from their bytes, without a device", **FLAG)
    text = (
        "the unsigned library, or a directory with unsigned libraries of the same names: every"
        " loadable segment must have the same bytes"
    )
    check("--input PATH", text, type=user_path)
    text = (
        "what every library must be; genuine means unsigned, but listed in a catalog next to it or"
        " among the genuine skels; default: signed"
    )
    check("--expect", text, choices=sorted(ACCEPTED))
    text = (
        "fail if a certificate is not valid at this date or time in UTC, such as 2026-11-20 or"
        " 2026-11-20T12:00:00; default: only note certificates that are not valid today"
    )
    check("--at DATE", text, type=parse_date)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Sign libraries and verify them, or show what would be signed. Raises UsageError, UnfitError
    without a signer, and ToolError or FailedError if signing fails."""
    request = read_request(args, progress)
    if isinstance(request, VerifyRequest):
        return verify_files(
            request.files,
            progress,
            original=request.original,
            expect=request.expect,
            accept_unrecognised=request.accept_unrecognised,
            at=request.at,
        )
    plan = make_plan(request)
    for note in plan.notes:
        progress.step(f"note: {note}")
    if request.dry_run:
        return _render_plan(plan)
    signed = sign(plan, resolve_signer(plan), progress)
    text = render_reports({Path(name): report for name, report in signed.reports.items()})
    files = count(len(signed.reports), "file")
    text += f"\n{files} signed and verified in {request.target};"
    text += f" recorded in {RECORD_NAME} and {STATEMENT_NAME}\n"
    data = {
        "dry_run": False,
        "out": str(request.target),
        "record": msgspec.to_builtins(signed.record),
        "reports": {name: report.as_data() for name, report in signed.reports.items()},
    }
    return Outcome(text, data)


def read_request(args: argparse.Namespace, progress: Progress) -> SignRequest | VerifyRequest:
    """Return what a call signs or, with --verify, what it verifies. Raises UsageError for options
    of the other one, and the same errors as read_device_serial and find_roots."""
    if args.verify:
        for name in SIGNING:
            if getattr(args, name):
                raise UsageError(f"--{name.replace('_', '-')} cannot be used with --verify")
        if not args.files:
            raise UsageError("no library to verify", fix="pass files, or a directory of them")
        expect = args.expect or "signed"
        files = tuple(args.files)
        return VerifyRequest(files, args.input, expect, args.at, args.accept_unrecognised)
    for name in ("input", "expect", "at"):
        if getattr(args, name):
            raise UsageError(f"--{name} has no effect without --verify")
    paths = {name: getattr(args, name) for name in VARIABLES}
    needed = {"qnn_sdk", "hexagon_tools"} if args.lpai_arch else set[str]()
    needed |= set() if args.signer else {"hexagon_sdk"}
    serial = args.testsig or ""
    # A dry run needs no device.
    if serial == FROM_ADB and not args.dry_run:
        serial = read_device_serial(args.device)
    elif serial and serial != FROM_ADB:
        serial = parse_serial(serial)
    return SignRequest(
        selection=Selection(
            lpai_arch=args.lpai_arch,
            htp_arch=args.htp_arch,
            direct_mode=args.direct_mode,
            op_package=args.op_package_dir,
            files=tuple(args.files),
        ),
        roots=find_roots(paths, args.build_dir, os.environ, needed, progress),
        target=args.out or user_path(read_policy("signing", SigningPolicy).output),
        signer_command=args.signer or "",
        signer_python=args.signer_python,
        timeout_s=args.timeout,
        serial=serial,
        force=args.force,
        accept_unrecognised=args.accept_unrecognised,
        dry_run=args.dry_run,
    )


def _render_plan(plan: SignPlan) -> Outcome:
    """Return what would be signed, with the signer's command or the reason why there is none. (A
    dry run works without a signer.)"""
    try:
        signer = shell_words(mask_arguments(resolve_signer(plan).words))
    except UnfitError as error:
        signer = f"none found: {error.what}"
    rows, lines = [], []
    for entry in plan.inputs:
        library, version = entry.requested, f"V{entry.hexagon_version:X}"
        row = {"name": library.name, "source": library.label, "sha256": entry.sha256}
        rows.append({**row, "hexagon_version": version, "qnn_build": entry.qnn_build})
        lines.append(f"{library.name}: {version}, QNN {entry.qnn_build or 'none'}, {library.path}")
    # A dry run prints the signer's command, which may have credentials.
    mask = Masker(list_secrets())
    if plan.request.serial:
        lines.append("plus a device's test signature")
    lines += [
        f"signer: {mask(signer)}",
        f"the signed files would be written to {plan.request.target}",
    ]
    data = {
        "dry_run": True,
        "libraries": rows,
        "testsig": bool(plan.request.serial),
        "signer": mask(signer),
        "out": str(plan.request.target),
        "notes": list(plan.notes),
    }
    return Outcome("".join(f"{line}\n" for line in lines), data)
