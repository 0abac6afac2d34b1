"""The models in a user's policy: their files, data and metrics, and the check of data files before
anything is lowered. Data from a function is checked later, when the function is called."""

from __future__ import annotations

import ast
import difflib
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, field, structs

from ci.models.lowering_options import (
    NO_CHOICES,
    ONE_RUN,
    QUANTIZING,
    Choices,
    MixtureEntry,
    RunOptions,
    check_choices,
)
from ci.models.schemes import (
    LANES_OF_FILES,
    LITERT,
    MODEL_FILES,
    ONNX,
    RUNTIMES,
    AnyScheme,
    Mixture,
    Scheme,
    SchemeSet,
    read_spelling,
)
from ci.models.suite import SUITE
from ci.report.schema import MOST_NUMBER, AccuracyLimits, Budget, Count, Number
from provisioning.console.caller import shown_path
from provisioning.documents import CONTENT_BYTES, POINTER, open_regular, read_bytes
from provisioning.errors import UsageError, at_key

FileOrFunction = Annotated[str, Meta(min_length=1)]
Shape = tuple[Annotated[int, Meta(ge=1, le=2**31 - 1)], ...]
T = TypeVar("T", Choices, MixtureEntry)
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
MIN_SETS = 4  # the least number of samples for judging a model
DERIVED_SETS = 7  # samples that are generated from an example, or next to a random one
RANDOM, SHUFFLED = "random inputs", "shuffled inputs"  # how inputs were generated
NPY = "an .npy file of shape [samples, *shape] for a single input"
NPZ = "an .npz file with one array per input"
SETS = f"{NPY}, or {NPZ}"
FORMATS = (b"\x93NUMPY", b"PK")  # how .npy and .npz files start
OF_QUANTIZED = "_quantized"  # how limits end that compare the program with the quantized model
FACTORY, FUNCTION = "factory", "function"
# A module that uses one of these may define names that static analysis does not find.
DYNAMIC = {"*", "__getattr__", "exec", "eval", "globals", "locals", "vars", "setattr", "__dict__"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class OutputLimits(AccuracyLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of an output.

    - ``min_sqnr_db`` and ``min_cosine`` apply to the worst sample, and ``min_sqnr_db_all`` to
      all samples together.
    - ``max_above_noise_db`` is by how much the program's error may exceed the predicted rounding
      noise.
    - ``max_abs`` is the largest allowed difference of an element from the float32 model.
    - ``min_equal`` is the required share of correct elements of an integer or boolean output.
    - Limits whose names end in ``_quantized`` compare the program with the quantized model.
    """

    def __post_init__(self) -> None:
        for name, value in self.stated_limits.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value}")


class Limits(OutputLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a scheme. With ``full_delegation``, no node may fall back to the CPU.
    ``outputs`` holds different limits for single outputs. Its keys are the outputs' indices as
    text."""

    full_delegation: bool = True
    outputs: dict[Annotated[str, Meta(pattern="^[0-9]+$")], OutputLimits] = field(
        default_factory=dict
    )


class ModelBudget(Budget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budget of a model's programs, for all schemes and for single schemes."""

    schemes: dict[str, Budget] = field(default_factory=dict)  # of schemes and mixtures

    def of(self, scheme: AnyScheme) -> Budget:
        """Return the budget for a scheme. Its own limits replace those for all schemes."""
        return Budget().merge(self).merge(self.schemes.get(scheme.value, Budget()))


class ReferencePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for references. An output of the float32 model cannot be used as a reference if its
    RMS is below ``min_rms``, or if its spread is below ``min_spread`` times the RMS."""

    min_rms: Annotated[float, Meta(ge=0, le=MOST_NUMBER)]
    min_spread: Annotated[float, Meta(ge=0, le=MOST_NUMBER)]


class Source(Struct, frozen=True):
    """A model and the options that determine its program."""

    reference: str = ""  # /absolute/path/file.py:factory, an ONNX file or a model of the suite
    # Data files or file.py:function, which replace the model's own sets; empty if there are none.
    calibration: str = ""
    inputs: str = ""  # on which the model is judged
    choices: Choices = NO_CHOICES
    run: RunOptions = ONE_RUN
    shapes: tuple[tuple[str, Shape], ...] = ()  # (name, shape) of inputs of an ONNX file
    float_model: str = ""  # the float file from which a quantized ONNX file was made
    signatures: tuple[str, ...] = ()  # of a .tflite file, that are run; all if empty

    @property
    def has_data(self) -> bool:
        """Return whether the user provides data."""
        return bool(self.calibration or self.inputs)


NO_SOURCE = Source()


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    """A user's metric. ``function`` takes (outputs, labels); higher results are better.

    The program's result may be lower than the float32 model's by at most ``max_drop``, and must be
    at least ``min``. With ``strict``, the quality of the quantization must also be sufficient.
    """

    function: FileOrFunction
    labels: FileOrFunction
    max_drop: Annotated[float, Meta(ge=0, le=MOST_NUMBER)]
    min: Number | None = None
    strict: bool = False

    @property
    def name(self) -> str:
        """Return the function's name, such as ``top1`` for metrics.py:top1."""
        return self.function.rpartition(":")[2]


class MetricResult(Struct, frozen=True):
    """A metric of the outputs of the program (``value``), of the float32 model and of the quantized
    model. ``shifted`` is the metric of the float32 outputs after each has been moved to the next
    sample. For a useful metric, it is lower than ``float32``."""

    value: float
    float32: float
    shifted: float
    quantized: float | None = None


class ModelEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A user's model in a policy. Paths are relative to the policy; resolve_entry makes them
    absolute."""

    path: FileOrFunction  # file.py:factory, an .onnx file or a model of the suite
    schemes: tuple[str, ...] = ()  # of the lanes, or the entry's mixtures
    socs: tuple[str, ...] = ()
    calibration: str = ""  # a data file or file.py:function
    inputs: str = ""  # likewise: the inputs on which the model is judged
    lowering: Choices = NO_CHOICES
    run: RunOptions = ONE_RUN
    limits: dict[str, Limits] = field(default_factory=dict)  # of schemes and mixtures
    budget: ModelBudget = ModelBudget()
    memory_bytes: Count = 0  # that a case may use; 0: the policy's
    metric: Metric | None = None
    shapes: dict[str, Shape] = field(default_factory=dict)  # of an .onnx file's inputs, by name
    float_model: str = ""  # the float file from which a quantized .onnx file was made
    signatures: tuple[str, ...] = ()  # of a .tflite file, that are run; all if empty
    estimate: bool = False  # whether the time on a device is predicted
    runtimes: tuple[str, ...] = ()  # that judge the model; all that can if empty
    mixtures: dict[str, MixtureEntry] = field(default_factory=dict)

    def is_for(self, runtime: str) -> bool:
        """Return whether a runtime judges the model."""
        return not self.runtimes or runtime in self.runtimes

    def find_scheme(self, name: str) -> AnyScheme:
        """Return the mixture or the scheme with this name. Raises ValueError if there is none."""
        mixture = self.mixtures.get(name)
        return Mixture(name, mixture.base) if mixture else Scheme(name)

    def make_source(self, scheme: AnyScheme | None = None) -> Source:
        """Return the part of the entry that determines the program. A mixture replaces the lowering
        options that determine how the model is quantized."""
        choices = self.lowering
        if isinstance(scheme, Mixture):
            choices = choices.mix(self.mixtures[scheme.value])
        shapes = tuple(self.shapes.items())
        return Source(
            self.path,
            self.calibration,
            self.inputs,
            choices,
            self.run,
            shapes,
            self.float_model,
            self.signatures,
        )


def resolve_entry(name: str, entry: ModelEntry, folder: Path) -> ModelEntry:
    """Return the entry with absolute paths. Raises UsageError for an invalid name, key or file."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"models.{name}: invalid name for a model",
            fix="choose another name: at most 64 letters and digits, with . _ - only in between",
        )

    check_keys(name, entry)

    def resolve(key: str, word: str, kind: str = "") -> str:
        if is_suite(word) and kind:
            return word
        with at_key(f"models.{name}.{key}"):
            return resolve_file(str(folder / word), kind, folder=folder) if word else ""

    def resolve_functions(table: T, key: str) -> T:
        annotation = resolve(f"{key}.annotation", table.annotation, "annotation")
        recipe = resolve(f"{key}.recipe", table.recipe, "recipe")
        return structs.replace(table, annotation=annotation, recipe=recipe)

    metric = entry.metric and structs.replace(
        entry.metric,
        function=resolve("metric.function", entry.metric.function, FUNCTION),
        labels=resolve("metric.labels", entry.metric.labels),
    )
    resolved = structs.replace(
        entry,
        path=resolve("path", entry.path, FACTORY),
        calibration=resolve("calibration", entry.calibration),
        inputs=resolve("inputs", entry.inputs),
        float_model=resolve("float_model", entry.float_model),
        lowering=resolve_functions(entry.lowering, "lowering"),
        mixtures={
            mixture: resolve_functions(table, f"mixtures.{mixture}")
            for mixture, table in entry.mixtures.items()
        },
        metric=metric,
    )
    check_mixtures(name, resolved)
    for scheme, limits in resolved.limits.items():
        check_limits(f"models.{name}.limits.{scheme}", resolved.find_scheme(scheme), limits)
    return resolved


def check_limits(key: str, scheme: AnyScheme, limits: Limits) -> None:
    """Raise UsageError for a limit in the table ``key`` of a policy that compares the program with
    a quantized model, if the scheme quantizes nothing."""
    if scheme.quantized:
        return
    tables: dict[str, OutputLimits] = {key: limits}
    tables |= {f"{key}.outputs.{number}": table for number, table in limits.outputs.items()}
    for table_key, table in tables.items():
        if names := [name for name in table.stated_limits if name.endswith(OF_QUANTIZED)]:
            raise UsageError(
                f"{table_key}.{names[0]} has no effect",
                why=f"{scheme} quantizes nothing, so that there is no quantized model to compare"
                " the program with",
                fix=f"write {names[0].removesuffix(OF_QUANTIZED)}, which compares it with the"
                " float32 model",
            )


def check_keys(name: str, entry: ModelEntry) -> None:
    """Raise UsageError for a key that has no effect for a model of this kind."""
    for key, value, suffixes, reason in (
        ("shapes", entry.shapes, (ONNX.suffix,), "the inputs of other models have shapes"),
        (
            "float_model",
            entry.float_model,
            MODEL_FILES,
            "a factory already returns the float model",
        ),
        ("signatures", entry.signatures, (LITERT.suffix,), "other models have none"),
    ):
        if value and not entry.path.endswith(suffixes):
            kinds = " or ".join(suffixes)
            article = "an" if kinds.startswith(ONNX.suffix) else "a"
            problem = f"models.{name}.{key} is only for {article} {kinds} file"
            raise UsageError(problem, fix=f"remove this key: {reason}")
    lane = next((files for files in LANES_OF_FILES if entry.path.endswith(files.suffix)), None)
    judging_runtimes = {lane.runtime: lane} if lane else RUNTIMES
    if unfit := [runtime for runtime in entry.runtimes if runtime not in judging_runtimes]:
        kind = f"{lane.file_kind} runs in" if lane else "the runtimes are"
        raise UsageError(
            f"models.{name}.runtimes: {unfit[0]} cannot judge this model",
            why=f"{kind} {', '.join(judging_runtimes)}",
            fix=f"remove {unfit[0]}",
        )
    if lane:
        require_used_keys(name, entry, lane)
    # A factory is judged by several lanes, of which its entry may list some.
    if lanes := [lane] if lane else [RUNTIMES[runtime] for runtime in entry.runtimes]:
        require_used_schemes(name, entry, lanes)


def require_used_keys(name: str, entry: ModelEntry, lane: SchemeSet) -> None:
    """Raise UsageError for a key that has no effect for a file of the lane."""
    for key in list_keys(entry):
        # A budget for a scheme has the keys of one for all.
        if unused := lane.unused_keys.get(re.sub(r"\.schemes\.[^.]+", "", key)):
            raise UsageError(
                f"models.{name}.{key} has no effect for {lane.file_kind}",
                why=unused,
                fix="remove this key",
            )


def require_used_schemes(name: str, entry: ModelEntry, lanes: Sequence[SchemeSet]) -> None:
    """Raise UsageError for limits or a budget of a scheme that none of the lanes has, which judge
    the model. Names that are no schemes are mixtures, or are refused by check_mixtures."""
    schemes = [*dict.fromkeys(scheme for lane in lanes for scheme in lane.schemes)]
    unused_schemes = {scheme.value for scheme in Scheme} - {*schemes}
    titles = " and ".join(lane.title for lane in lanes)
    kind = lanes[0].file_kind if entry.path.endswith(MODEL_FILES) else titles
    for table, scheme in list_scheme_tables(entry):
        if scheme in unused_schemes:
            raise UsageError(
                f"models.{name}.{table}.{scheme} has no effect for {kind}",
                why=f"{titles} {'have' if lanes[1:] else 'has'} {', '.join(schemes)}",
                fix="remove this key, or write one of these schemes",
            )


def list_scheme_tables(entry: ModelEntry) -> list[tuple[str, str]]:
    """Return the tables of an entry that are for one scheme or mixture, and its name."""
    return [
        *(("limits", scheme) for scheme in entry.limits),
        *(("budget.schemes", scheme) for scheme in entry.budget.schemes),
    ]


def list_keys(entry: ModelEntry) -> Iterator[str]:
    """Yield the keys of an entry that are set, and those of its budgets."""
    yield from _list_set(entry, ModelEntry("-"))
    yield from (f"budget.{key}" for key in _list_set(entry.budget, ModelBudget()))
    for scheme, budget in entry.budget.schemes.items():
        yield from (f"budget.schemes.{scheme}.{key}" for key in _list_set(budget, Budget()))


def _list_set(table: Struct, default: Struct) -> list[str]:
    return [key for key in table.__struct_fields__ if getattr(table, key) != getattr(default, key)]


def check_mixtures(name: str, entry: ModelEntry) -> None:
    """Raise UsageError for an invalid mixture, or for a key of the entry named ``name`` that is
    neither a scheme nor a mixture."""
    schemes = [scheme.value for scheme in Scheme]
    all_names = [*schemes, *entry.mixtures]
    for mixture, table in entry.mixtures.items():
        key = f"models.{name}.mixtures.{mixture}"
        if not NAME.fullmatch(mixture):
            fix = "choose a name like a model's: letters and digits, with . _ - only in between"
            raise UsageError(f"{key}: invalid name for a mixture", fix=fix)
        if [taken.lower() for taken in all_names].count(mixture.lower()) > 1:
            why = "a scheme or another mixture has this name (in capitals or not)"
            raise UsageError(f"{key}: the name is taken", why=why, fix="rename the mixture")
        quantizing = [option for option, _ in entry.lowering.chosen() if option in QUANTIZING]
        if quantizing:
            raise UsageError(
                f"{key} cannot be used together with models.{name}.lowering.{quantizing[0]}",
                why="both determine how the model is quantized",
                fix=f"make another mixture of {quantizing[0]}, and list it in `schemes`",
            )
        scheme = Mixture(mixture, table.base)
        check_choices(entry.make_source(scheme).choices, scheme, name)
    for key, names in (
        ("schemes", entry.schemes),
        ("limits", entry.limits),
        ("budget.schemes", entry.budget.schemes),
    ):
        for scheme_name in names:
            if scheme_name not in all_names:
                near = difflib.get_close_matches(scheme_name, all_names, n=1)
                if meant := read_spelling(scheme_name):
                    near = [meant.value]
                raise UsageError(
                    f"models.{name}.{key}: there is no scheme or mixture {scheme_name!r}",
                    why=f"the nearest is {near[0]}" if near else "",
                    fix=f"use a mixture of this model ({', '.join(entry.mixtures) or 'none'}), or"
                    f" a scheme: {', '.join(schemes)}",
                )


def is_function(source: str) -> bool:
    """Return whether the text is ``file.py:function``."""
    return source.rpartition(":")[0].endswith(".py")


def is_suite(reference: str) -> bool:
    """Return whether a reference is a model of the suite, or ``model:function`` for a function in
    the model's module."""
    return reference.partition(":")[0] in SUITE


IN_POLICY = "correct the path; it is relative to the policy file"
IN_COMMAND = "correct the path; it is relative to the directory from which you ran the command"


def resolve_file(
    word: str, kind: str = "", fix: str = IN_POLICY, folder: Path | None = None
) -> str:
    """Return ``file.py:function`` with an absolute path. Without ``kind``, ``word`` may also be a
    data file; with FACTORY, it may also be a model's file.

    Raises UsageError if the file or its function does not exist; ``fix`` is the advice for a
    missing file. If ``folder``, that of the policy, is not None, the user writes paths relative to
    it; otherwise in a command, relative to the caller's directory.
    """
    file, _, function = word.rpartition(":")
    has_function = is_function(word)
    is_model = kind == FACTORY and word.endswith(MODEL_FILES)
    problem = f"no {'model' if kind == FACTORY else kind or 'file'} {word!r}"
    if word.endswith((".py", ".py:")):
        written = show_file(Path(word.rstrip(":")), folder)
        fix = f"write {written}:{kind or FUNCTION}"
        raise UsageError(f"{written!r} has no function name", fix=fix)
    is_named = has_function or (kind and file and not is_model)
    path = Path(os.path.abspath(file if is_named else word))  # noqa: PTH100
    if not kind and path.is_dir():
        raise UsageError(
            f"{word!r} is a directory, which is not read for samples",
            why="how its files become tensors (size, order of channels, scale) is not known",
            fix="write a file.py:function that returns one tuple of tensors per file:"
            " `return [(prepare(Image.open(file)),) for file in sorted(folder.iterdir())]`",
        )
    if not path.is_file():
        raise UsageError(problem, why=f"{path} is not a file", fix=fix)
    if kind and not has_function and not is_model:
        raise UsageError(problem, why=f"{path} is not a Python file", fix=f"write file.py:{kind}")
    if not str(path).isprintable():  # reports, which are UTF-8 text, show it
        why = "its path contains bytes that are not UTF-8, or control characters"
        raise UsageError(problem, why=why, fix="rename or copy it")
    if has_function and find_function(path, function) is False:
        body = ast.parse(read_bytes(path)).body
        functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
        raise lacks_function(path, function, functions, folder)
    return f"{path}:{function}" if has_function else str(path)


def find_function(path: Path, function: str) -> bool | None:
    """Return whether a Python file defines a function, without importing it. Return None if only an
    import can show this: for example because of ``from models import *``, because the name occurs
    only elsewhere, because a call or a decorator may add names, or because of a syntax error."""
    try:
        tree = ast.parse(read_bytes(path))
        top = list(_list_statements(tree))
        bound = {name for node in ast.walk(tree) for name in _list_bound(node)}
        read = {getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(tree)}
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if function in list_defined(tree.body):
        return True
    calls = any(
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        for statement in top
    )
    decorated = any(
        statement.decorator_list for statement in top if isinstance(statement, DEFINITIONS)
    )
    unclear = calls or decorated or not bound or function in bound or (bound | read) & DYNAMIC
    return None if unclear else False


def list_defined(body: Sequence[ast.stmt]) -> list[str]:
    """Return the names of the functions and classes that statements define or import from
    modules."""
    names = [statement.name for statement in body if isinstance(statement, DEFINITIONS)]
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            names += _list_bound(statement)
    return names


def _list_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module that an import runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, (*DEFINITIONS, ast.expr)):
            yield from _list_statements(child)


def _list_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names to which a node of a syntax tree binds a value."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            for alias in aliases:
                yield (alias.asname or alias.name).partition(".")[0]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def show_file(path: Path, folder: Path | None) -> str:
    """Return a path as the user has to write it: relative to ``folder``, that of the policy, or, if
    ``folder`` is None, as shown_path returns it."""
    return os.path.relpath(path, folder) if folder else shown_path(path)


def lacks_function(
    path: Path, function: str, existing: Sequence[str], folder: Path | None = None
) -> UsageError:
    """Return the error for a function that a file lacks; ``existing`` are the functions that it
    has. For ``folder``, see show_file."""
    near = difflib.get_close_matches(function, existing, n=1)
    file = show_file(path, folder)
    if near:
        fix = f"write {file}:{near[0]}"
    elif existing:
        fix = f"use one of its functions: {', '.join(existing)}"
    else:
        fix = "define the function in it"
    return UsageError(f"{file} has no function {function!r}", fix=fix)


def name_made(judged: str, calibration: str, *, quantized: bool) -> str:
    """Return a note on generated inputs, such as ``random inputs`` or ``calibrated on random
    inputs``. Generated calibration inputs count only if the model is quantized. The note is empty
    if there is nothing to report."""
    return judged or (f"calibrated on {calibration}" if calibration and quantized else "")


def check_data(name: str, entry: ModelEntry) -> None:
    """Check the data files in a model's entry. Raises UsageError for the first invalid file; the
    message starts with its key."""
    labels = entry.metric.labels if entry.metric else ""
    sources = {"calibration": entry.calibration, "inputs": entry.inputs, "metric.labels": labels}
    counts = {}
    for key, source in sources.items():
        # How many samples a function returns is known only after its call.
        if source and not is_function(source):
            with at_key(f"models.{name}.{key}"):
                counts[key] = count_sets(
                    read_arrays(Path(source)).values(), shown_path(Path(source))
                )
    judged = counts.get("inputs", MIN_SETS)
    if judged < MIN_SETS:
        file = shown_path(Path(entry.inputs))
        raise UsageError(
            f"models.{name}.inputs: {file} has only {judged} of the {MIN_SETS} samples needed",
            fix="provide more samples",
        )
    if "inputs" in counts and counts.get("metric.labels", judged) != judged:
        rows = counts["metric.labels"]
        raise UsageError(
            f"models.{name}.metric.labels: {shown_path(Path(labels))} has {rows} rows",
            why=f"the model is judged on {judged} samples",
            fix="provide a label, or a row of labels, for each sample of `inputs`",
        )


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of an .npy or .npz file in the file's order. The keys are the arrays'
    names, ``arr_0`` for an .npy file. Raises UsageError if the file cannot be read, or if the file
    or its unpacked arrays are longer than CONTENT_BYTES."""
    import numpy as np  # not at the top: the gate reads policies without numpy

    try:
        with open_regular(path) as stream:
            _check_size(path, os.fstat(stream.fileno()).st_size)
            _check_start(path, stream.read(len(POINTER)))
            stream.seek(0)
            loaded: Any = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"arr_0": _to_native(loaded)}
            # A compressed file can unpack to far more than its own size.
            _check_size(path, sum(member.file_size for member in loaded.zip.infolist()))
            # A member is bytes if it is no array.
            return {name: _to_native(np.asarray(loaded[name])) for name in loaded}
    except UsageError:
        raise
    except Exception as error:  # of numpy, zipfile, zlib, or for lack of memory
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "allow_pickle" in why:  # numpy suggests to load it all the same
            why = "it has Python objects, which are not read, because reading them can run code"
        raise UsageError(
            f"{shown_path(path)} cannot be read", why=why, fix=f"write {SETS}"
        ) from error


def _to_native(array: Any) -> Any:
    """Return an array in this machine's byte order: torch and the runtimes take no other one."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_start(path: Path, start: bytes) -> None:
    if start == POINTER:
        fix = "run `git lfs pull`, or set `lfs: true` in a workflow"
        raise UsageError(f"{shown_path(path)} is a Git LFS pointer", fix=fix)
    if start and not start.startswith(FORMATS):
        raise UsageError(
            f"{shown_path(path)} is neither an .npy nor an .npz file", fix=f"write {SETS}"
        )


def _check_size(path: Path, size_bytes: int) -> None:
    if size_bytes > CONTENT_BYTES:
        why = f"its arrays are {size_bytes} bytes long; the limit is {CONTENT_BYTES}"
        raise UsageError(f"{shown_path(path)} is too large", why=why, fix="write fewer samples")


def count_sets(arrays: Collection[Any], called: str) -> int:
    """Return the number of samples, which is the length of each array's first axis. ``called``
    is the file's name. Raises UsageError for arrays that are not sets of finite numbers."""
    import numpy as np

    shapes = ", ".join(str(list(array.shape)) for array in arrays)
    lengths = {len(array) if array.ndim else 0 for array in arrays}
    if len(lengths) != 1 or not all(array.size for array in arrays) or lengths == {0}:
        summary = f"its arrays have shapes {shapes}" if arrays else "it has no arrays"
        why = (
            f"{summary}; no array may be empty, and the first axis (the samples) must have the same"
            " length in all arrays"
        )
        raise UsageError(f"{called} does not contain samples", why=why, fix=f"write {SETS}")
    kinds = [array.dtype for array in arrays]
    if not all(kind.kind in "biuf" and kind.itemsize <= 8 for kind in kinds):
        why = f"its arrays have dtypes {', '.join(map(str, kinds))}"
        raise UsageError(f"{called} has arrays of a dtype that torch does not support", why=why)
    if not all(np.isfinite(array).all() for array in arrays):
        fix = "leave out these samples, or replace these elements"
        raise UsageError(f"{called} has NaN or infinite elements", fix=fix)
    return lengths.pop()
