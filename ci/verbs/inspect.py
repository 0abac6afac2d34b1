"""``inspect FILE...``: show what programs, context binaries, LiteRT models, libraries, APKs and
AARs contain, and whether a program or an app can load. ``inspect --soc NAME``: show which lanes
support an SoC."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ci.inspect.app_verdicts import check_app
from ci.inspect.files import Inspected, Inspection, Library, inspect_file
from ci.inspect.genie import CONFIG, find_config, read_genie
from ci.inspect.genie_verdict import check_genie
from ci.inspect.litert_libraries import describe_releases
from ci.inspect.loading import judge_bundle, judge_program
from ci.inspect.socs import SocAnswers, answer_soc, render_soc
from ci.latency.estimate import find_soc_of_device, refuse_device
from ci.onnx.reading import seal_file
from ci.report.filled import fill_text
from ci.report.runtimes import TITLES
from ci.report.text import name_some, show_row
from provisioning.console.command import FILE, FLAG, MANY, Outcome, nonempty_word
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, FailedError, UsageError
from provisioning.manifest.targets import find_any_soc, name_in, read_all_socs

KINDS = {
    "program": "ExecuTorch program",
    "bundle": "ExecuTorch program bundled with test cases",
    "data": "tensors for ExecuTorch programs",
    "context": "QNN context binary",
    "onnx": "ONNX model",
    "litert": "LiteRT model",
    "litertlm": "bundle of LiteRT-LM",
    "library": "library",
    "package": "package",
    "unknown": "file",
}
# What loads each kind of file; several load the others.
LOADERS = {
    "program": ("executorch",),
    "bundle": ("executorch",),
    "data": ("executorch",),
    "onnx": ("onnxruntime",),
    "litert": ("litert",),
    "litertlm": ("litert",),
}
INDENT, COLUMN, SHOWN = "  ", 14, 4


def render_files(files: Iterable[Inspected]) -> str:
    """Return a block of text for each file."""
    return fill_text(
        "verbs/templates/inspect.txt.j2",
        files=files,
        kinds=KINDS,
        shown=SHOWN,
        show_row=show_row,
        row=_row,
        name_some=name_some,
        describe_library=_describe_library,
    )


def _row(name: str, value: str) -> str:
    return f"{INDENT}{name:<{COLUMN}}{show_row(value)}"


def _describe_library(library: Library) -> str:
    parts = [
        f"{library.machine}{f' V{library.hexagon}' if library.hexagon else ''}",
        describe_releases(library.litert) if library.litert is not None else "",
        f"QNN {library.qnn}" if library.qnn else "states no QNN build",
        f"Android API {library.api_level}" if library.api_level else "",
        f"aligned to {library.align} bytes",
    ]
    return ", ".join(filter(None, parts))


# Suffixes of apps and their parts, which are judged as a whole.
APPS = (".apk", ".apks", ".xapk", ".aar")
OF_LITERT_LM = (".litertlm", ".task")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "a .pte, a context binary, an ONNX context model, a .tflite, a .litertlm, a library, an"
        " APK, a set of APKs (.apks, .xapk), an AAR, the directory of an unpacked app, or a folder"
        " for Genie"
    )
    parser.add_argument("files", nargs="*", **FILE, help=text)
    text = "write the SHA-256 of an ONNX context model's binary into the model"
    parser.add_argument("--seal", **FLAG, help=text)
    text = (
        "judge one file: whether a program loads (with --qnn-runtime, --soc or both), or whether an"
        " app can run QNN. The options below imply it, and so does a directory"
    )
    parser.add_argument("--load", **FLAG, help=text)
    text = (
        "of a program: a directory with QNN's libraries, an APK or AAR, ARTIFACT@VERSION, or a QNN"
        " version"
    )
    options = ("--qnn-runtime", "--runtime-dir")
    parser.add_argument(*options, type=nonempty_word, metavar="QNN", help=text)
    text = (
        f"what is to load the file: {', '.join(TITLES)}; any other value is taken as that of"
        " --qnn-runtime"
    )
    parser.add_argument("--runtime", type=nonempty_word, metavar="RUNTIME", help=text)
    text = (
        "the SoC to run on, such as SM8750; repeatable for an app. Without a file: show which lanes"
        " support it"
    )
    parser.add_argument("--soc", metavar="SOC", **MANY, help=text)
    parser.add_argument("--strict", **FLAG, help="of an app: treat warnings as errors")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Describe each file, or judge whether one can load. The exit code is 1 if a file is damaged or
    does not load, and 3 if that is unknown. Without a file, describe each SoC; the code is 1 if no
    lane supports one. Raises UsageError for a file that cannot be read."""
    qnn, loader = choose_runtimes(args.runtime or "", args.qnn_runtime or "")
    if not args.files:
        needs_file = args.load or args.runtime or args.qnn_runtime or args.seal or args.strict
        return describe_socs(args.soc, is_alone=not needs_file)
    for path in args.files:
        refuse_function(path)
    if loader:
        for path in args.files:
            require_loader(path, loader)
    if args.load or qnn or args.soc or args.strict or args.files[0].is_dir():
        if len(args.files) > 1 or args.seal:
            raise UsageError("only one file can be judged, and --seal judges none")
        return judge_file(args.files[0], qnn, args.soc, progress, strict=args.strict)
    inspected_files: list[Inspected] = []
    for path in args.files:
        progress.step(f"reading {path.name}")
        inspected_files.append(inspect_file(path, str(path)))
        if args.seal and inspected_files[-1].kind == "onnx" and not inspected_files[-1].damage:
            seal_file(path)
    code = (
        ExitCode.FAILED if any(inspected.damage for inspected in inspected_files) else ExitCode.OK
    )
    return Outcome(
        render_files(inspected_files), msgspec.to_builtins(Inspection(tuple(inspected_files))), code
    )


def choose_runtimes(word: str, qnn: str) -> tuple[str, str]:
    """Return where QNN's libraries are, and the runtime that is to load the files, of the values of
    --runtime and --qnn-runtime. Raises UsageError if both are QNN's libraries."""
    if not word or word in TITLES:
        return qnn, word
    if qnn:
        raise UsageError(
            f"--runtime {word} and --qnn-runtime {qnn} are both QNN's libraries",
            why=f"only {name_some([*TITLES], len(TITLES))} are runtimes of models",
            fix="leave one of them out",
        )
    return word, ""


def refuse_function(path: Path) -> None:
    """Raise UsageError for a PyTorch model, ``file.py:factory``, which is no file."""
    file, _, function = str(path).rpartition(":")
    if function and file.endswith(".py") and Path(file).is_file():
        raise UsageError(
            f"{path.name} is a PyTorch model, and inspect reads files",
            why="it has no file before a runtime compiles it",
            fix="pass a compiled file; the verb audit lists the operators that a runtime takes",
        )


def require_loader(path: Path, runtime: str) -> None:
    """Raise FailedError for a file that another runtime loads than this one. What several load,
    such as a context binary or an app, is for each of them."""
    if path.is_dir():
        return
    kind = inspect_file(path).kind
    loaders = LOADERS.get(kind, tuple(TITLES))
    if runtime not in loaders:
        raise FailedError(
            f"{path.name} is not for {TITLES[runtime]}",
            why=f"it is of the kind {KINDS[kind]}, which {TITLES[loaders[0]]} loads",
            fix="leave out --runtime",
        )


@contextmanager
def devices_refused(names: Sequence[str]) -> Iterator[None]:
    """Name the SoC of the first of ``names`` that is a device, if the block refuses an SoC."""
    try:
        yield
    except UsageError as error:
        for name in names:
            if (soc := find_soc_of_device(name)) and repr(name) in error.what:
                message, fix = refuse_device(name, soc)
                raise UsageError(message, fix=fix) from error
        raise


def describe_socs(names: Sequence[str], *, is_alone: bool) -> Outcome:
    """Describe the SoCs with these ``names``. ``is_alone`` is whether no other option was passed.
    Raises UsageError if there is another one or no SoC, or if one is unknown."""
    if not names or not is_alone:
        raise UsageError(
            "no file was given",
            why="" if is_alone else "only --soc can be used without one",
            fix="pass a file, or --soc alone to see which lanes support an SoC",
        )
    with devices_refused(names):
        answers = tuple(map(answer_soc, names))
    is_supported = all(any(lane.is_supported for lane in answer.lanes) for answer in answers)
    return Outcome(
        "\n\n".join(map(render_soc, answers)),
        msgspec.to_builtins(SocAnswers(answers)),
        ExitCode.OK if is_supported else ExitCode.FAILED,
    )


def find_inner_folder(path: Path) -> Path | None:
    """Return the only folder below ``path`` that is one for Genie, as archives are unpacked twice;
    None if there is none, or if there are several."""
    folders = [
        each for each in sorted(path.iterdir()) if each.is_dir() and (each / CONFIG).is_file()
    ]
    return folders[0] if len(folders) == 1 else None


def judge_file(
    path: Path, runtime: str | None, names: Sequence[str], progress: Progress, *, strict: bool
) -> Outcome:
    """Judge whether a program can load or an app can run QNN, by what the file is, on the SoCs with
    these ``names``. Raises UsageError for options that the file cannot use."""
    socs = [name_in(name, read_all_socs()) for name in names]
    with devices_refused(names):
        for soc in socs:
            find_any_soc(soc)
    progress.step(f"reading {path.name}")
    if path.is_dir() and (config := find_config(path)):
        if len(socs) > 1:
            raise UsageError(
                "a folder for Genie is judged for one --soc", fix="pass them one by one"
            )
        return check_genie(read_genie(path, config, "".join(socs), runtime or ""), strict=strict)
    if path.is_dir() and (inner := find_inner_folder(path)):
        raise UsageError(
            f"{path} has no configuration of Genie",
            why=f"the folder {inner.name} in it has one",
            fix=f"pass {inner}",
        )
    is_program = path.is_file() and not path.name.lower().endswith(APPS)
    inspected = inspect_file(path) if is_program else None
    if inspected and inspected.kind == "package" and path.suffix.lower() in OF_LITERT_LM:
        raise FailedError(
            f"{path.name} is a ZIP archive, and not a bundle of LiteRT-LM",
            why="a .task file of MediaPipe is one; LiteRT-LM says 'Unsupported or unknown file"
            " format', or runs it on the CPU and the GPU only",
            fix="download or pack a .litertlm file",
        )
    if inspected is None or inspected.kind == "package":
        if runtime:
            raise UsageError(
                f"--qnn-runtime {runtime} is for a program, and this is an app", fix="leave it out"
            )
        return check_app(path, progress, socs, strict=strict)
    if strict or len(socs) > 1:
        option = "--strict" if strict else "more than one --soc"
        raise UsageError(f"{option} is for an app, and {path.name} is none", fix="leave it out")
    if inspected.kind == "litertlm":
        return judge_bundle(path, inspected, runtime or "", "".join(socs))
    return judge_program(inspected, runtime or "", "".join(socs))
