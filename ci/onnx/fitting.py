"""Fits cases to their .onnx files: the sizes of dynamic inputs, and the scheme of files that are
quantized already."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from ci.cases.limited import TIMEOUT_S
from ci.cases.policy import EmulatorPolicy
from ci.cases.spec import CaseSpec, require_fitting_schemes
from ci.models.schemes import MODEL_FILES, ONNX, Mixture, Scheme
from ci.models.user_models import Source
from ci.onnx.fallback import tell_untaken
from ci.onnx.reading import FileFit, check_float_model, fit_file
from ci.report.text import name_models
from provisioning.console.caller import shown_path
from provisioning.console.process import run_tasks
from provisioning.console.progress import Progress
from provisioning.errors import UsageError, at_key
from provisioning.quoting import shell_words, show_command


def require_files(policy: EmulatorPolicy, path: Path | None) -> None:
    """Raise UsageError if the user's policy at ``path``, which was found and not passed, has models
    but only PyTorch models, and none that lists ONNX Runtime in its runtimes. In a repository with
    both kinds, the files are in another policy."""
    if not policy.models or any(
        model.path.endswith(MODEL_FILES) or ONNX.runtime in model.runtimes
        for model in policy.models.values()
    ):
        return
    name = shown_path(path or Path())
    raise UsageError(
        f"{name} lists no .onnx file",
        why="its models are PyTorch models, which `qnn-ci test-emulator` tests",
        fix="pass the policy of your .onnx files with --policy, or a file with --model; to export"
        f" these models to ONNX, run {show_command('test-onnx', '--policy', name)}",
    )


def parse_shapes(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return each input's shape from arguments like ``x=1,3,224,224``. Raises UsageError for an
    argument in any other format."""
    shapes = {}
    for word in words:
        name, _, sizes = word.rpartition("=")
        if not name or not re.fullmatch(r"(?:[1-9]\d{0,9}(?:,[1-9]\d{0,9})*)?", sizes):
            raise UsageError(
                f"--shape {word!r} is not a shape", fix="pass NAME=SIZES, such as x=1,3,224,224"
            )
        shapes[name] = tuple(map(int, sizes.split(","))) if sizes else ()
    return shapes


def refuse_shapes() -> UsageError:
    """Return the error for --shape without an .onnx file."""
    return UsageError("--shape is for .onnx files", fix="pass one with --model")


def fit_files(
    specs: Sequence[CaseSpec], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[CaseSpec]:
    """Yield the cases with their shapes. For .onnx files, ``shapes`` override the policy's shapes.
    Raises UsageError if there are ``shapes`` but no case is for an .onnx file."""
    if shapes and not any(spec.is_file for spec in specs):
        raise refuse_shapes()
    for spec in specs:
        merged = {**dict(spec.source.shapes), **shapes} if spec.is_file else {}
        source = msgspec.structs.replace(spec.source, shapes=tuple(merged.items()))
        yield replace(spec, source=source)


def fit_shapes(
    specs: Sequence[CaseSpec],
    policy: EmulatorPolicy,
    progress: Progress,
    command: str = "",
    *,
    judges: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> tuple[list[CaseSpec], set[str]]:
    """Read the .onnx files of cases, each in a process that may take ``timeout_s`` seconds. Return
    the cases, with a batch of 1 for files whose batch size varies, and the paths of the files that
    are quantized already. ``command`` is the session's command line without the options that select
    cases.

    Raises UsageError if QNN cannot load a file, or if the inputs or outputs of a float model differ
    from those of the quantized model. If the session ``judges`` cases and only some of the files
    cannot be loaded, the reason is shown instead, and their cases fail later.
    """
    quantized: set[str] = set()
    fitted: dict[Source, Source] = {}
    unusable: list[UsageError] = []
    names = name_models(spec.model for spec in specs)
    # Each file is read once. Reversed, so that its first case stands for all of them.
    files = [*{spec.source: spec for spec in reversed(specs) if spec.is_file}.values()]

    def fit(spec: CaseSpec) -> FileFit | UsageError:
        together = [peer for peer in specs if peer.source == spec.source]
        repeating = choose_together(together, command) if command else ""
        entry = spec.model if spec.model in policy.models else ""
        source = msgspec.structs.replace(spec.source, reference=spec.reference)
        try:
            with at_key(entry and f"models.{entry}.path"):
                return fit_file(source, names[spec.model], repeating, entry, timeout_s)
        except UsageError as error:
            return error

    # Each file is read in its own process: a parser in C++ that does not end, takes all memory or
    # aborts would do the same to the verb.
    fits = run_tasks([partial(fit, spec) for spec in files], len(os.sched_getaffinity(0)))
    for spec, fit_or_error in zip(files, fits, strict=True):
        if isinstance(fit_or_error, UsageError):
            unusable.append(fit_or_error)
            continue
        entry = spec.model if spec.model in policy.models else ""
        for remark in describe_fit(fit_or_error, entry):
            progress.step(f"{names[spec.model]}: {remark}")
        fitted[spec.source] = msgspec.structs.replace(spec.source, shapes=fit_or_error.shapes)
        with at_key(f"models.{entry}.float_model"):
            if spec.source.float_model:
                source = msgspec.structs.replace(spec.source, reference=spec.reference)
                check_float_model(source, fit_or_error.shapes, timeout_s)
        if fit_or_error.is_quantized:
            quantized.add(spec.reference)
    # One file of several that cannot be used does not end a run of the others.
    if unusable and not (judges and len(unusable) < len({spec.source for spec in specs})):
        raise unusable[-1]
    for error in unusable:
        progress.step(f"{error}")
    cases = [replace(spec, source=fitted.get(spec.source, spec.source)) for spec in specs]
    return cases, quantized


def describe_fit(fit: FileFit, entry: str) -> Iterator[str]:
    """Yield remarks on a file, whose ``entry`` in the policy is "" if it has none."""
    if fit.batch:
        option = f"`shapes` in [models.{entry}]" if entry else "--shape"
        yield f"its batch size ({fit.batch}) varies, so 1 is used; {option} sets another"
    if fit.untaken:
        yield tell_untaken(dict(fit.untaken))


def choose_together(specs: Sequence[CaseSpec], command: str) -> str:
    """Return a run's ``command`` with options that select all these cases of one model."""
    names = [spec.name for spec in specs]
    schemes, socs = {name.scheme for name in names}, {name.soc for name in names}
    words = ["--model", names[0].model]
    # Several schemes or SoCs may be all of the model's: without the option, all are selected.
    if len(schemes) == 1:
        words += ["--scheme", *schemes]
    if len(socs) == 1:
        words += ["--soc", *socs]
    return f"{command} {shell_words(words)}"


def fit_schemes(
    specs: Sequence[CaseSpec],
    quantized: Collection[str],
    policy: EmulatorPolicy,
    requested_schemes: Sequence[str],
) -> list[CaseSpec]:
    """Return the cases, with the scheme ``asis`` for ``quantized`` files, and only for those.
    Raises UsageError if a model has none of the requested schemes."""
    fitted = []
    unmixed = [spec for spec in specs if not isinstance(spec.scheme, Mixture)]
    require_fitting_schemes(unmixed, quantized, requested_schemes, policy.models, Scheme.U8)
    for spec in specs:
        is_quantized = spec.reference in quantized
        if is_quantized and isinstance(spec.scheme, Mixture):
            raise UsageError(
                f"models.{spec.model}.mixtures: {Path(spec.reference).name} is quantized already",
                why=f"{spec.scheme} would quantize it again",
                fix="remove the mixture: the types that the file contains are shown by --list",
            )
        if is_quantized:
            fitted.append(replace(spec, scheme=Scheme.ASIS))
        elif spec.scheme is not Scheme.ASIS:
            fitted.append(spec)
    return list(dict.fromkeys(fitted))
