"""One version of QNN or ExecuTorch for ``upgrade-report``: a report, an SDK, or packages that pip
fetches."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.faults.expected import Rerun
from ci.faults.known import Fault
from ci.models.suite import DEFAULT_SOC
from ci.report.schema import Report
from ci.report.write import read_report
from ci.verbs.built import installed_executorch
from ci.verbs.trials import open_bench
from provisioning.artifacts.choice import WHEEL, python_tag, read_choice
from provisioning.console.command import user_path
from provisioning.console.process import module_command, run_process
from provisioning.console.progress import Progress
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import DownloadError, ToolError, UsageError
from provisioning.files import (
    explain_writes,
    publish_directory,
    scratch_directory,
    write_whole,
)
from provisioning.manifest.pairs import read_pairs
from provisioning.store.collect import FETCHED
from provisioning.store.home import store_home
from provisioning.versions import is_version

EMULATOR, ONNX = "test_emulator", "test_onnx"
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


@dataclass(frozen=True)
class Side:
    """One version: a ``report``, or a ``session`` to run.

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
    path = user_path(word)  # a pipe is not a directory of an SDK
    if not (pins or is_version(word) or path.is_file() or path.is_dir()):
        raise UsageError(f"{word!r} is not a file, a directory or a version", fix=f"pass {FORMS}")


def find_session(word: str, default: str) -> str:
    """Return the session that runs for an argument, or "" for a report. ``default`` is the session
    for an SDK."""
    if pins := split_pins(word):
        return PACKAGES[pins[0][0]]
    path = user_path(word)
    return "" if path.is_file() or (path / "report.json").is_file() else default


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


def rerun_faults(
    side: Side, faults: Sequence[Fault], progress: Progress
) -> tuple[str, list[Rerun]]:
    """Run the known faults through onnxruntime. Return the QNN version, and the result of each
    fault. Raises the same errors as ``open_bench``."""
    progress.step(f"known faults with {side.name}")
    choice = read_choice(side.sdk or WHEEL, WHEEL)
    with open_bench("onnx", choice, progress, packages=side.packages) as bench:
        return bench.qnn, bench.rerun(faults, DEFAULT_SOC, progress)
