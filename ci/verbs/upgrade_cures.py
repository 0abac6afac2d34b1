"""``upgrade-report --model RED``: judge the user's red cases with the other versions of what lowers
them, and tell which version mends them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

import msgspec

from ci.audit.cures import compare_versions, find_red, make_document
from ci.audit.upgrade import Difference
from ci.faults.known import read_faults
from ci.faults.match import name_package
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.report.html import PAGE, write_page
from ci.report.schema import Report
from ci.report.write import read_report
from ci.verbs.options import LOWERING, ONNX_TORCH
from ci.verbs.sides import ONNX, Side, check_word, find_side, split_pins
from ci.verbs.upgrade_matrix import SIDES
from ci.verbs.upgrade_runs import UpgradeRequest, check_cases, find_qnn, run_logged, run_side
from provisioning.console.caller import CHECKOUT, install_command
from provisioning.console.command import Outcome, user_path
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, QnnCiError, UnfitError, UsageError
from provisioning.files import write_whole
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import find_package_versions
from provisioning.versions import is_older, is_version, parse_version

CURES = "cures.json"
QNN_PACKAGE, EXECUTORCH_PACKAGE = "onnxruntime-qnn", "executorch"
SUFFIXES = {".onnx": ONNX}  # of files that another session than test_emulator judges
# What `pip index versions` prints.
AVAILABLE = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class CureRequest:
    """The red cases to judge with other versions: what the run of each version tests, and the
    versions as ``words``, as for upgrade-report. Without words, all versions are judged that the
    package index serves and that can be run."""

    run: UpgradeRequest
    words: tuple[str, ...]

    @property
    def package(self) -> str:
        """Return the package that lowers the models."""
        return QNN_PACKAGE if self.run.session == ONNX else EXECUTORCH_PACKAGE


def make_request(run: UpgradeRequest, words: Sequence[str]) -> CureRequest:
    """Return the request for a run with other versions. Raises UsageError for versions or cases
    that cannot be run."""
    request = CureRequest(run, (*words,))
    for word in request.words:
        check_version(word, request.package)
    check_cases(f"{request.package}==0", run)
    return request


def choose_session(models: Sequence[str], chosen: str) -> str:
    """Return the session that judges the models. Raises UsageError for .tflite files, whose
    compiler is pinned."""
    for model in models:
        if model.endswith(".tflite"):
            raise UsageError(
                f"{model} cannot be judged with other versions",
                why="LiteRT's plugin works with one version of QNN, which this project pins",
                fix="pass a PyTorch model or an .onnx file",
            )
    sessions = {SUFFIXES.get(Path(model).suffix, chosen) for model in models}
    if len(sessions) > 1:
        raise UsageError(
            "--model names .onnx files and PyTorch models",
            why="other versions of other packages lower them",
            fix="run the command once for each kind",
        )
    return sessions.pop()


def find_cures(request: CureRequest, progress: Progress) -> Outcome:
    """Judge the cases with the installed version, and those that are red with each other version.
    The exit code is 1 if a case is red with all of them. Raises UsageError, UnfitError and
    StoreError before anything is run."""
    package, run = request.package, request.run
    installed = find_installed(package)
    words = request.words or list_versions(package, progress)
    check_session(run.reports, (PAGE, CURES))
    claim_reports(run.reports)
    current, failures = f"{package} {installed}", dict[str, str]()
    report = judge_side(Side(f"{package}=={installed}", session=run.session), run, progress)
    if isinstance(report, str):
        raise UnfitError(
            f"the cases were not judged with {current}",
            why=report,
            fix="run the session of these models, and mend what it reports",
        )
    reports = {current: report}
    if red := find_red(report):
        run = replace(
            run,
            models=tuple(dict.fromkeys(case.model for case in red)),
            schemes=tuple(dict.fromkeys(case.scheme for case in red)),
            socs=tuple(dict.fromkeys(case.soc for case in red)),
        )
        for word in words:
            name = name_version(word)
            if name == current:
                continue
            judged = judge_version(word, run, progress)
            if isinstance(judged, str):
                failures[name] = judged
                progress.step(f"{name}: {judged}")
            else:
                reports[name] = judged
    versions = sorted({*reports, *failures}, key=lambda name: parse_version(name.split()[1]))
    qnn = find_qnn(Side(current), report)
    front_end = "onnx" if run.session == ONNX else "executorch"
    find_mended = partial(name_mended, qnn, front_end)
    cures = compare_versions(current, versions, reports, failures, find_mended)
    document = make_document(cures)
    write_page(document, run.reports, progress)
    write_whole(run.reports / CURES, msgspec.json.encode(cures))
    code = ExitCode.OK if cures.is_cured else ExitCode.FAILED
    return Outcome(show_document(document), msgspec.to_builtins(cures), code, exact=True)


def name_mended(qnn: str, front_end: str, name: str, scheme: str) -> str:
    """Return the version after ``qnn`` that mends the known fault ``name``, or empty."""
    for fault in read_faults():
        if fault.name == name and (mended := fault.find_mended(scheme, qnn, front_end)):
            return name_package(mended)
    return ""


def find_installed(package: str) -> str:
    """Return the installed version of a package. Raises UnfitError if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise UnfitError(
            f"{package} is not installed",
            why="the cases are judged with the installed version first",
            fix=install_command(LOWERING if package == EXECUTORCH_PACKAGE else ONNX_TORCH),
        ) from error


def check_version(word: str, package: str) -> None:
    """Raise UsageError for a word that is no version of a package that can be run."""
    pins = dict(split_pins(word))
    if package not in pins:
        raise UsageError(
            f"--with {word} is no version of {package}",
            why="it lowers these models",
            fix=f"name a version of {package} there, as {package}==VERSION",
        )
    supported = {row.executorch for row in read_pairs().supported}
    if package != EXECUTORCH_PACKAGE or pins[package] not in supported:
        check_word(word)  # of ExecuTorch, it names the supported ones


def name_version(word: str) -> str:
    """Return a word for a version as it is shown, such as ``onnxruntime-qnn 2.7.0``."""
    pins = dict(split_pins(word))
    package = next(name for name in (QNN_PACKAGE, EXECUTORCH_PACKAGE) if name in pins)
    return f"{package} {pins[package]}"


def list_versions(package: str, progress: Progress) -> list[str]:
    """Return the words of all versions of a package that can be run, oldest first: of
    ExecuTorch, those of manifests/pairs.toml, and of QNN's provider, those that this project has
    tried and newer ones that the package index serves."""
    if package == EXECUTORCH_PACKAGE:
        versions = {row.executorch for row in read_pairs().supported}
        return [f"{package}=={version}" for version in sorted(versions, key=parse_version)]
    # An older wheel may need an older ONNX Runtime.
    tried = {dict(split_pins(word))[package]: word for word in SIDES}
    known_versions = find_package_versions(package).values()
    newest = max(known_versions, key=parse_version)
    served = {version for version in ask_index(package, progress) if is_older(newest, version)}
    versions = {*known_versions} | served
    return [
        tried.get(version, f"{package}=={version}")
        for version in sorted(versions, key=parse_version)
    ]


def ask_index(package: str, progress: Progress) -> list[str]:
    """Return the versions of a package that pip's index serves, newest first; empty if it cannot
    be asked."""
    pip = [*module_command("pip"), "--disable-pip-version-check", "--no-input", "index", "versions"]
    ended = run_process([*pip, package], check=False)
    if match := AVAILABLE.search(ended.output):
        return [version for version in match[1].split(", ") if is_version(version)]
    progress.step(f"note: pip's index did not list the versions of {package}")
    return []


def judge_version(word: str, request: UpgradeRequest, progress: Progress) -> Report | str:
    """Return the report of a run with another version, or why there is none."""
    pins = dict(split_pins(word))
    version = pins.get(EXECUTORCH_PACKAGE, "")
    if version and (CHECKOUT / "nox").is_file():
        return run_nox(version, request, progress)
    try:
        check_word(word)  # without a checkout, ExecuTorch runs with the installed torch
        side = find_side(word, request.session, progress)
    except QnnCiError as error:
        return f"{error.what}: {error.why}" if error.why else error.what
    return judge_side(side, request, progress)


def judge_side(side: Side, request: UpgradeRequest, progress: Progress) -> Report | str:
    """Return the report of a run of one side, or why there is none."""
    failures: list[Difference] = []
    report = run_side(side, request, progress, failures)
    return report or failures[0].now


def run_nox(version: str, request: UpgradeRequest, progress: Progress) -> Report | str:
    """Return the report of a run in the environment of a version of ExecuTorch, which the noxfile
    makes from its lock, or why there is none."""
    name = f"{EXECUTORCH_PACKAGE}-{version}"
    directory = request.reports / name
    report = directory / request.session / "report.json"
    check_session(report.parent)
    report.unlink(missing_ok=True)
    words = ["--executorch", version, *request.selecting, "--reports", str(directory)]
    # The variables of this call's own session would be those of the other one, too.
    of_this_call = ("QNN_CI_CAUSE_FILE", "QNN_CI_SESSION", "QNN_CI_SESSIONS", "QNN_CI_FINISHED")
    variables = {key: text for key, text in os.environ.items() if key not in of_this_call}
    variables["QNN_CI_CALLER_DIR"] = str(user_path("."))
    progress.step(f"{name}: ./nox -s {request.session} -- {' '.join(words)}")
    argv = [str(CHECKOUT / "nox"), "-s", request.session, "--", *words]
    failure = run_logged(argv, variables, request.reports / f"{name}.log", progress)
    return read_report(report) if report.is_file() else failure
