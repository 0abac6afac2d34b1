"""``upgrade-report OLD NEW``: show what a different version of QNN or ExecuTorch changes, before
you change a pin."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ci.audit.upgrade import Difference, compare, compare_faults, make_document
from ci.cases.policy import LANES, read_emulator_policy
from ci.cases.spec import select_cases
from ci.faults.expected import Rerun, list_tried
from ci.faults.known import FRONTENDS, Fault, read_faults
from ci.models import schemes
from ci.models.suite import DEFAULT_SOC
from ci.onnx.toolchain import list_packages
from ci.report.claim import claim_reports
from ci.report.document import show_document
from ci.report.export import check_session
from ci.report.html import PAGE, write_page
from ci.report.schema import Report
from ci.report.write import read_report
from ci.verbs.built import installed_executorch
from ci.verbs.environments import choose_onnx
from ci.verbs.options import LOWERING, ONNX_TORCH, add_option, add_options, require_effect
from ci.verbs.steps import require_packages
from ci.verbs.trials import open_bench
from ci.verbs.user_policy import OURS, choose_policy
from provisioning.artifacts.choice import SDK_VARIABLE, WHEEL, python_tag, read_choice
from provisioning.console.caller import shown_path
from provisioning.console.command import Outcome, user_path
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.console.user_folder import UserFolder
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import DownloadError, ExitCode, QnnCiError, ToolError, UsageError
from provisioning.files import (
    explain_writes,
    publish_directory,
    scratch_directory,
    write_whole,
)
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.targets import read_socs
from provisioning.store.collect import FETCHED
from provisioning.store.store import store_home
from provisioning.versions import is_same, is_version, parse_version

EMULATOR, ONNX = "test_emulator", "test_onnx"
SCHEMES = {EMULATOR: schemes.EXECUTORCH, ONNX: schemes.ONNX}
# Each package and the session that tries it. An argument may join several packages with "+".
PACKAGES = {"onnxruntime-qnn": ONNX, "onnxruntime": ONNX, "executorch": EMULATOR}
FORMS = (
    "a report.json, the directory or version of an SDK, or a package such as onnxruntime-qnn==2.7.0"
    " or executorch==1.4.1"
)
LIBRARIES, SDK, HTP = "lib/x86_64-linux-clang", "qnn", "libQnnHtp.so"
QNN_LIBRARY = re.compile(r"lib(?:Qnn\w*|HtpPrepare|Genie)\.so")
# Libraries that a wheel bundles have a hash in their names, such as libc++-71bc274c.so.1.0.
BUNDLED = re.compile(r"(lib(?:c\+\+|c\+\+abi|unwind))-[0-9a-f]+\.so\.1\.0")
LAST_LINES = 6
OWN = Path(__file__).parents[2]  # where this package is found
OWN_VARIABLES = (SDK_VARIABLE, "QNN_CI_CAUSE_FILE")  # set for this call; not passed to the runs


@dataclass(frozen=True)
class Side:
    """One of the two versions: a ``report``, or a ``session`` to run.

    The session uses ``sdk``, and searches the directories ``packages`` before the installed
    packages. ``tree`` is a directory laid out like an SDK, with libraries.
    """

    name: str
    report: Report | None = None
    session: str = ""
    packages: tuple[Path, ...] = ()
    sdk: str = ""
    tree: Path | None = None

    @property
    def slug(self) -> str:
        """Return the name as a directory name."""
        return re.sub(r"[^\w.=-]+", "_", self.name).strip("_")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("old", metavar="OLD", help=FORMS)
    add("new", metavar="NEW", help="the version that would replace OLD, in one of the same forms")
    text = "a model, in any form that the session's --model accepts; repeatable"
    add_options(parser, "--model", group="", text=text)
    add_options(parser, "--scheme", "--soc", "--policy", group="")
    text = "the session to run for an SDK; default: test_emulator"
    add_option(parser, "", "--session", text, choices=(EMULATOR, ONNX), default=EMULATOR)
    add_options(
        parser,
        "--reports",
        default=Path("reports/upgrade").absolute(),
        text="the directory for the report of each run; default: reports/upgrade",
    )


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Run what has no report yet, and compare the two sides. The exit code is 1 if a run or a case
    is missing, or if a status became worse. Raises UsageError, UnfitError and DownloadError."""
    words = (args.old, args.new)
    for word in words:
        check_word(word)
    check_session(args.reports, (PAGE,))
    claim_reports(args.reports)
    for word in words:
        check_cases(word, args)
    for word in words:
        require_engine(word, args)
    old, new = (find_side(word, args.session, progress) for word in words)
    if old.report and new.report:
        require_effect(args, "two reports", "--reports")
    else:
        # Chosen here once, so that the runs of both sides have the same policy, wherever they
        # start.
        args.policy = choose_policy(args.policy)
    if args.policy:
        progress.step(f"policy: {shown_path(args.policy)}")
    noted: list[Difference] = []
    reports = [run_side(side, args, progress, noted) for side in (old, new)]
    builds = [find_qnn(*pair) for pair in zip((old, new), reports, strict=True)]
    # The known faults are QNN's: with the same QNN, their results are the same.
    if all(builds) and builds[0] != builds[1]:
        pairs = zip((old, new), builds, strict=True)
        noted += compare_faults(*[list_ends(*pair, progress, noted) for pair in pairs])
    comparison = compare((old.name, new.name), (reports[0], reports[1]), noted)
    document = make_document(comparison)
    write_page(document, args.reports, progress)
    code = ExitCode.FAILED if comparison.is_worse else ExitCode.OK
    return Outcome(show_document(document), msgspec.to_builtins(comparison), code, exact=True)


def check_word(word: str) -> None:
    """Raise UsageError for an argument in none of the FORMS, or for versions that cannot be tested.
    This is checked before anything is fetched or run."""
    pins = split_pins(word)
    for name, version in pins:
        if name not in PACKAGES or not is_version(version):
            raise UsageError(
                f"{word!r} is not a package and version that can be compared",
                fix=f"pass NAME==VERSION, where NAME is one of {', '.join(PACKAGES)}",
            )
        if name == "executorch":
            check_executorch(version)
    if len({PACKAGES[name] for name, _ in pins}) > 1:
        raise UsageError(
            f"{word!r} combines packages that different sessions test",
            fix="pass packages that the same session tests",
        )
    if not pins and not is_version(word) and not user_path(word).exists():
        raise UsageError(f"{word!r} is not a file, a directory or a version", fix=f"pass {FORMS}")


def find_session(word: str, default: str) -> str:
    """Return the session that runs for an argument, or "" for a report. ``default`` is the session
    for an SDK."""
    if pins := split_pins(word):
        return PACKAGES[pins[0][0]]
    path = user_path(word)
    return "" if path.is_file() or (path / "report.json").is_file() else default


def check_cases(word: str, args: argparse.Namespace) -> None:
    """Raise UsageError, as the session does, if the run of an argument cannot have the models,
    schemes and SoCs of the command line."""
    if session := find_session(word, args.session):
        policy = read_emulator_policy(choose_policy(args.policy), LANES[session])
        select_cases(
            policy.suite,
            sorted(read_socs()),
            entries=policy.models,
            models=args.model,
            schemes=args.scheme,
            soc_names=args.soc,
            lane=SCHEMES[session],
        )


def require_engine(word: str, args: argparse.Namespace) -> None:
    """Raise UnfitError if this Python lacks a package that a run of the argument needs and that the
    argument does not name itself."""
    pins = [name for name, _ in split_pins(word)]
    session = find_session(word, args.session)
    if not session:
        return
    needed: tuple[str, ...] = ("torch", "executorch")
    extra = LOWERING
    if session == ONNX:
        words = list_words({"model": args.model})
        words += ["--policy", str(args.policy)] if args.policy else []
        extra = choose_onnx(words)
        needed = list_packages(exports=extra == ONNX_TORCH)
    pinned = {name.replace("-", "_") for name in pins}
    require_packages([name for name in needed if name not in pinned], extra)


def list_words(values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return options with several values as words of a command, each value after its flag."""
    words = []
    for name, values_of_option in values.items():
        for value in values_of_option:
            words += [f"--{name}", value]
    return words


def split_pins(word: str) -> list[tuple[str, str]]:
    """Return the packages in an argument, with their versions. Return an empty list if the argument
    is something else, such as a version or an existing directory."""
    if "==" not in word or user_path(word).exists():
        return []
    pins = (pin.partition("==") for pin in word.split("+"))
    return [(name, version) for name, _, version in pins]


def check_executorch(version: str) -> None:
    """Raise UsageError for a version of ExecuTorch that is not supported, or that needs a torch
    other than the installed one."""
    torch = {row.executorch: row.torch for row in read_pairs().supported}
    if version not in torch:
        raise UsageError(
            f"executorch=={version} is not supported", fix=f"pass one of {', '.join(torch)}"
        )
    installed = installed_executorch() or ""
    if torch[version] != torch.get(installed, torch[version]):
        raise UsageError(
            f"executorch=={version} needs torch {torch[version]}, which is not installed",
            why=f"executorch {installed} is installed, with torch {torch[installed]}",
            fix=f"in a checkout, run `./nox -s test_emulator -- --executorch {version} --reports"
            f" {version}`, and pass {version}/test_emulator/report.json instead",
        )


def find_side(word: str, session: str, progress: Progress) -> Side:
    """Return the side that an argument describes. If the argument is a package, fetch it. Raises
    DownloadError or UsageError."""
    if pins := split_pins(word):
        packages = tuple(fetch_package(*pin, progress) for pin in pins)
        trees = [package / SDK for package in packages if (package / SDK).is_dir()]
        tree = trees[0] if trees else None
        return Side(word, None, PACKAGES[pins[0][0]], packages, str(tree or ""), tree)
    path = user_path(word)
    if is_version(word) and not path.exists():
        return Side(word, session=session, sdk=word)
    if path.is_file() or (path / "report.json").is_file():
        return Side(word, read_report(path))
    return Side(word, session=session, sdk=str(path.absolute()), tree=path.absolute())


def fetch_package(name: str, version: str, progress: Progress) -> Path:
    """Fetch one version of a package with pip, without its dependencies, unless the store has it.
    Return its directory. The libraries of onnxruntime-qnn are also laid out as in an SDK. Raises
    DownloadError."""
    home = store_home() / FETCHED
    target = home / f"{name}-{version}-{python_tag()}"
    if target.is_dir():
        return target
    progress.step(f"fetching {name} {version}")
    pip = [*module_command("pip"), "--disable-pip-version-check", "--no-input", "install"]
    with explain_writes(home):
        home.mkdir(parents=True, exist_ok=True)
        with scratch_directory(home, "fetching") as scratch:
            staging = scratch / target.name
            # Without dependencies: the other version is tried in this environment, with its numpy
            # and torch.
            words = ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(staging)]
            try:
                run_process([*pip, *words, f"{name}=={version}"])
            except ToolError as error:
                raise DownloadError(
                    f"pip could not fetch {name} {version}",
                    why=error.why,
                    fix="check the version, pip's index, proxy and certificates",
                ) from error
            if (staging / "onnxruntime_qnn").is_dir():
                lay_out_libraries(staging)
            # Another process may have fetched it in the meantime.
            if not target.is_dir():
                publish_directory(staging, target)
    return target


def lay_out_libraries(packages: Path) -> None:
    """Link the libraries of the onnxruntime-qnn wheel into a directory laid out like an SDK."""
    folder = packages / SDK / LIBRARIES
    folder.mkdir(parents=True)
    package = packages / "onnxruntime_qnn"
    # libc++, libc++abi and libunwind, which QNN's libraries need.
    bundled = sorted((packages / "onnxruntime_qnn.libs").glob("lib*"))
    libraries = (path for path in package.iterdir() if QNN_LIBRARY.fullmatch(path.name))
    for path in [*bundled, *libraries]:
        os.link(path, folder / path.name)
        if usual := BUNDLED.fullmatch(path.name):
            (folder / f"{usual[1]}.so.1").symlink_to(path.name)
    # sdk.yaml and QNN_README.txt mark a directory as an SDK.
    build = find_qnn_build(folder / HTP)
    version = (build and build.version) or "0"
    write_whole(
        packages / SDK / "sdk.yaml", f"product: QNN runtime of a wheel\nversion: {version}\n"
    )
    write_whole(packages / SDK / "QNN_README.txt", "QNN's libraries from a Python wheel\n")


def run_side(
    side: Side, args: argparse.Namespace, progress: Progress, failures: list[Difference]
) -> Report | None:
    """Return the side's report, or else the report of a new run. If the run leaves no report,
    return None and add the reason to ``failures``."""
    if side.report:
        return side.report
    directory: Path = args.reports / side.slug
    report = directory / side.session / "report.json"
    check_session(report.parent)  # what is not a report is the user's
    # A run that fails would otherwise be judged by the report of an earlier one.
    report.unlink(missing_ok=True)
    chosen = {name: getattr(args, name) for name in ("model", "scheme", "soc")}
    chosen |= {"policy": [str(args.policy or OURS)], "sdk": [side.sdk] if side.sdk else []}
    words = list_words(chosen)
    verb = side.session.replace("_", "-")
    argv = [*module_command("ci"), verb, *words, "--reports", str(directory)]
    # PYTHONPATH, because it comes before site-packages: the version under test hides the installed
    # one.
    paths = [*map(str, (*side.packages, OWN)), os.environ.get("PYTHONPATH", "")]
    variables = {name: text for name, text in os.environ.items() if name not in OWN_VARIABLES}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    progress.step(f"{side.name}: {verb} {' '.join(words)}")
    log = args.reports / f"{side.slug}.log"
    folder = UserFolder(args.reports)
    with folder.stage() as scratch:
        ended = run_process(argv, env=variables, check=False, log=scratch / log.name)
        folder.publish(scratch, force=True).say_aside(progress)
    if report.is_file():
        return read_report(report)
    lines = (line.strip() for line in ended.output.splitlines()[-LAST_LINES:])
    failure = f"{ended.describe()}: {' '.join(filter(None, lines))} (whole log: {shown_path(log)})"
    failures.append(Difference(side.name, "run", "a report", failure, "worse"))
    return None


def find_qnn(side: Side, report: Report | None) -> str:
    """Return the QNN version of a side, from its libraries or, if there are none, from its report.
    Return an empty string if neither states one."""
    library = side.tree / LIBRARIES / HTP if side.tree else None
    if library and library.is_file() and (build := find_qnn_build(library)):
        return build.version or ""
    tools = report.toolchain if report else ()
    named = next((tool.version for tool in tools if tool.name == HTP), "")
    return str(parse_version(named)) if named else ""


def list_ends(side: Side, qnn: str, progress: Progress, noted: list[Difference]) -> list[Rerun]:
    """Return the results of the known faults with a side's QNN. They come from faults.toml if it
    lists that version, otherwise from a run through onnxruntime.

    If no run is possible, return an empty list, and add the reason to ``noted``.
    """
    faults = read_faults()
    tried = [rerun for frontend in FRONTENDS for rerun in list_tried(faults, frontend)]
    recorded = [rerun for rerun in tried if is_same(qnn, rerun.qnn)]
    if recorded:
        return recorded
    why = "there is only a report, without libraries to run"
    if side.packages or side.sdk:
        try:
            return rerun_faults(side, faults, progress)[1]
        except QnnCiError as error:
            why = error.what
    untried = f"not tried with QNN {qnn}: {why}"
    noted.append(Difference("known faults", "fault", "", untried, "other"))
    return []


def rerun_faults(
    side: Side, faults: Sequence[Fault], progress: Progress
) -> tuple[str, list[Rerun]]:
    """Run the known faults through onnxruntime. Return the QNN version, and the result of each
    fault. Raises the same errors as ``open_bench``."""
    progress.step(f"known faults with {side.name}")
    choice = read_choice(side.sdk or WHEEL, WHEEL)
    with open_bench("onnx", choice, progress, packages=side.packages) as bench:
        return bench.qnn, bench.rerun(faults, DEFAULT_SOC, progress)
