"""Selects the cases of a run by the names of models, schemes and SoCs, and checks that the backend
supports them. This module does not import torch."""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from msgspec import structs

from ci.latency.estimate import find_soc_of_device, refuse_device
from ci.models.lowering_options import OF_ONNX, ONE_RUN, check_choices
from ci.models.schemes import (
    EXECUTORCH,
    LANES_OF_FILES,
    MODEL_FILES,
    ONNX,
    RUNTIMES,
    AnyScheme,
    Scheme,
    SchemeSet,
    read_spelling,
)
from ci.models.source_lines import name_argument
from ci.models.suite import DEFAULT_SOC, OWN_MODELS
from ci.models.user_models import FACTORY, IN_COMMAND, NO_SOURCE, ModelEntry, Source, resolve_file
from ci.report.schema import CaseName
from ci.report.text import ELLIPSIS, NAME_CHARS, cut_middle
from provisioning.console.command import nonempty_word, user_path
from provisioning.errors import UsageError
from provisioning.manifest.targets import (
    Backend,
    name_in,
    point_to_socs,
    read_backends,
    read_socs,
)
from provisioning.quoting import show_command

# ExecuTorch supports LPAI only with hardware v6, which SM8850 and SAR2230P have.
LPAI_SOC = "SM8850"
# Lowering options that QNN itself implements. They were tried only with HTP.
OF_HTP = frozenset(
    {
        "online_prepare",
        "shared_buffer",
        "dump_intermediate_outputs",
        "profile_level",
        "saver",
        "methods",
        "weight_sharing",
    }
)

MOST_LISTED = 60  # names in an error; --list shows more

# What torch and others store models in, none of which is lowered.
OWN = f"net.py:{FACTORY}"  # the user's own function, in hints
STORED = (".pt2", ".pt", ".pth", ".pte", ".ckpt", ".safetensors")
FILE_VERBS = {".onnx": "test-onnx", ".tflite": "test-litert"}  # which run a file


@dataclass(frozen=True)
class CaseSpec:
    """One case: a model's name as shown in reports, a scheme, the name of an SoC and, for a user's
    model, its source. With ``layers``, the program returns the outputs of its layers after the
    model's own outputs. With ``simulated``, it is compiled for a SoC that QNN's simulator knows,
    and only simulated: it has no references."""

    model: str
    scheme: AnyScheme
    soc: str
    source: Source = NO_SOURCE
    layers: bool = False
    simulated: bool = False

    @property
    def name(self) -> CaseName:
        """The name of the case in reports."""
        return CaseName(self.model, self.scheme.value, self.soc)

    @property
    def reference(self) -> str:
        """The reference from which the model is loaded: ``file.py:factory``, an ONNX or a
        LiteRT file, or the name of a model of the suite."""
        return self.source.reference or self.model

    @property
    def is_file(self) -> bool:
        """Whether the model is an ONNX or a LiteRT file, not the result of a Python function."""
        return self.reference.endswith(MODEL_FILES)

    @property
    def is_ours(self) -> bool:
        """Whether the model is one of the suite, and not a user's model, which may have the same
        name."""
        return self.model in OWN_MODELS and not self.source.reference

    @property
    def is_function(self) -> bool:
        """Whether the model is the result of a user's Python function, ``file.py:factory``."""
        return not self.is_file and not self.is_ours

    @property
    def slug(self) -> str:
        """A unique file name for the case."""
        name = self.model
        if name not in OWN_MODELS:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            end = "-".join(Path(name).parts[-2:]).replace(".py:", "-").strip("/-")
            short = cut_middle(end, NAME_CHARS).replace(ELLIPSIS, "_")
            name = f"{short}-{digest}"
        return f"{name}-{self.scheme}-{self.soc}"


def select_cases(
    suite: Mapping[str, Sequence[str]],
    socs: Sequence[str],
    *,
    entries: Mapping[str, ModelEntry] = MappingProxyType({}),
    models: Sequence[str] = (),
    schemes: Sequence[str] = (),
    soc_names: Sequence[str] = (),
    lane: SchemeSet = EXECUTORCH,
    default_soc: str = DEFAULT_SOC,
    translates: bool = False,
) -> list[CaseSpec]:
    """Return the requested cases without duplicates, in the order of ``models``, or else of
    ``entries`` and the suite.

    If the call ``translates`` schemes, a model without ``runtimes`` is one that any runtime judges,
    so that its entry may list schemes of other lanes, for which this lane uses its own.

    Without ``schemes``, a model is tested with the schemes that its entry or the suite lists and
    the lane supports, or else with the lane's default schemes and the entry's mixtures. Without
    ``soc_names``, it is tested for the SoCs in its entry, or else for ``default_soc``. Raises
    UsageError for a name or glob that matches nothing, and for a model or an option that the lane
    or the scheme does not support.
    """
    known_models = {
        **{name: ModelEntry("", tuple(suite.get(name, ()))) for name in lane.suite},
        **entries,
    }
    own_entries = [name for name, entry in entries.items() if entry.is_for(lane.runtime)]
    words = expand_files(models, known_models, lane.suffix) if models else [*own_entries, *suite]
    chosen = choose_entries(words, known_models, lane)
    if entries and not chosen:
        raise refuse_runtimes([*entries], lane)
    if translates:
        chosen = {
            name: structs.replace(entry, runtimes=entry.runtimes or tuple(RUNTIMES))
            for name, entry in chosen.items()
        }
    for name, entry_of_model in chosen.items() if lane.suffix else ():
        key = "run" if entry_of_model.run != ONE_RUN else ""
        chosen_options = {name for name, _ in entry_of_model.lowering.chosen()}
        key = "lowering" if chosen_options - (OF_ONNX if lane is ONNX else set()) else key
        if key:
            is_file = entry_of_model.path.endswith(MODEL_FILES)  # which test-emulator cannot lower
            raise UsageError(
                f"models.{name}.{key} has options that only ExecuTorch supports",
                fix="remove them" if is_file else "test this model with `qnn-ci test-emulator`",
            )
    require_files(chosen, lane)
    if not schemes:
        for name, entry_of_model in chosen.items():
            require_schemes(name, entry_of_model, lane)
    chosen_schemes = choose_schemes(schemes, lane, chosen, known_models)
    asked_socs = match_socs(soc_names, socs)
    cases: list[CaseSpec] = []
    for name, entry in chosen.items():
        model_schemes = chosen_schemes[name] if schemes else list_schemes(entry, lane)
        model_socs = asked_socs or match_socs(entry.socs, socs) or [default_soc]
        cases += [
            CaseSpec(name, scheme, soc, entry.make_source(scheme))
            for scheme in model_schemes
            for soc in model_socs
        ]
    for case in cases:
        check_choices(case.source.choices, case.scheme, case.model)
    return list(dict.fromkeys(cases))


def require_fitting_schemes(
    specs: Sequence[CaseSpec],
    quantized: Collection[str],
    requested: Sequence[str],
    entries: Mapping[str, ModelEntry],
    usual: Scheme,
) -> None:
    """Raise UsageError for a requested scheme, of the command line or a policy, that no file has:
    asis is for files that are quantized already, and the others for those that are not.

    ``specs`` are the cases of files, ``quantized`` the references of files that are quantized,
    ``requested`` the values of --scheme, and ``usual`` the scheme to suggest for float files. A
    glob may select more schemes than fit.
    """
    misfits = [spec for spec in specs if is_misfit(spec, quantized)]
    fitting = [spec for spec in specs if not is_misfit(spec, quantized)]
    for spec in misfits:
        entry = entries.get(spec.model)
        if requested:
            place = "--scheme"
            peers = [peer for peer in fitting if peer.scheme == spec.scheme]
            is_useless = spec.scheme.value in requested and not peers
            # Of its model, nothing would run.
            is_useless |= all(peer.model != spec.model for peer in fitting)
        else:
            place = f"models.{spec.model}.schemes"
            is_useless = bool(entry and entry.schemes)
        if is_useless:
            is_quantized = spec.reference in quantized
            matching_scheme = Scheme.ASIS if is_quantized else usual
            raise UsageError(
                f"{place}: {Path(spec.reference).name} is"
                f" {'quantized already' if is_quantized else 'not quantized'}, and {spec.scheme} is"
                f" for models that are{' not' * is_quantized}",
                fix=f"pass --scheme {matching_scheme}, which replaces the schemes of a policy"
                if requested
                else f"write {matching_scheme}, or pass --scheme {matching_scheme}",
            )


def is_misfit(spec: CaseSpec, quantized: Collection[str]) -> bool:
    """Return whether the file of a case cannot have its scheme, as require_fitting_schemes says."""
    return (spec.scheme is Scheme.ASIS) != (spec.reference in quantized)


def choose_entries(
    words: Iterable[str], known_models: Mapping[str, ModelEntry], lane: SchemeSet
) -> dict[str, ModelEntry]:
    """Return the entries of the models that ``words`` select and that the lane's runtime judges.
    Raises UsageError for a word that selects none."""
    chosen: dict[str, ModelEntry] = {}
    for word in words:
        found_models = find_models(word, known_models)
        if not any(entry.is_for(lane.runtime) for entry in found_models.values()):
            raise refuse_runtimes([*found_models], lane)
        for name, entry in found_models.items():
            if entry.is_for(lane.runtime):
                alike = chosen.get(name, entry).make_source() != entry.make_source()
                chosen[entry.path if alike else name] = entry
    return chosen


def refuse_runtimes(names: Sequence[str], lane: SchemeSet) -> UsageError:
    """Return the error for models of which the lane's runtime judges none."""
    return UsageError(
        f"models.{names[0]}.runtimes does not list {lane.runtime}, which this command runs",
        fix=f'add "{lane.runtime}" to this key',
    )


def require_files(chosen: Mapping[str, ModelEntry], lane: SchemeSet) -> None:
    """Raise UsageError for a model whose file another lane compiles."""
    for name, entry in chosen.items():
        suffix = Path(entry.path).suffix
        if suffix in MODEL_FILES and suffix != lane.suffix:
            judge = show_command(FILE_VERBS[suffix], "--model", name)
            file_kind = next(lane.file_kind for lane in LANES_OF_FILES if lane.suffix == suffix)
            raise UsageError(
                f"{name} is {file_kind}, which this command does not run",
                fix=f"run {judge}; if a policy also has other models, choose these with --model, or"
                f" put the {suffix} files into another policy",
            )


def choose_schemes(
    words: Sequence[str],
    lane: SchemeSet,
    chosen: Mapping[str, ModelEntry],
    known_models: Mapping[str, ModelEntry],
) -> dict[str, list[AnyScheme]]:
    """Return the schemes and mixtures that the globs in ``words`` select for each model in
    ``chosen``. A mixture is selected only for its own model. Raises UsageError for a glob that
    selects nothing; ``known_models`` are the entries of all models, which may have it."""
    own_mixtures = {name: list_mixtures(model, lane) for name, model in chosen.items()}
    scheme_names = [scheme.value for scheme in lane.schemes]
    scheme_names += dict.fromkeys(name for names in own_mixtures.values() for name in names)
    for word in words:
        owners = [
            name for name, model in known_models.items() if word in list_mixtures(model, lane)
        ]
        if word not in scheme_names and owners:
            raise UsageError(
                f"--scheme {word} is a mixture of models.{owners[0]}, which is not selected",
                fix=f"add --model {owners[0]}, or define the mixture for your model, too",
            )
    for word in words:
        require_own_scheme(word, scheme_names, lane)
    names = match_all("scheme", words, scheme_names)
    selected = {}
    for model, entry in chosen.items():
        own_names = (*own_mixtures[model], *lane.schemes)
        selected[model] = [entry.find_scheme(name) for name in names if name in own_names]
    if words and not any(selected.values()):
        raise UsageError(f"no selected model has the scheme {words[0]!r}")
    return selected


def require_own_scheme(word: str, names: Sequence[str], lane: SchemeSet) -> None:
    """Raise UsageError if ``word`` is the name of another lane's scheme, or another spelling of a
    scheme, with the one that this lane has for it. ``names`` are those that this lane has."""
    schemes_by_name = {scheme.value: scheme for scheme in Scheme}
    meant = schemes_by_name.get(word) or read_spelling(word)
    if word.lower() in names or meant is None:
        return
    counterpart = lane.find_counterpart(meant)
    raise UsageError(
        f"{lane.title} has no scheme {word}",
        why=f"it has {', '.join(names)}",
        fix=f"pass --scheme {counterpart or names[0]}",
    )


def require_schemes(name: str, entry: ModelEntry, lane: SchemeSet) -> None:
    """Raise UsageError if the entry of a model asks for a scheme that the lane lacks, or has a
    mixture of such a scheme and lists no schemes. The suite's models may have schemes for which
    the policy has no limits on the lane's backend, if they have another one, too."""
    engine = next((files for files in LANES_OF_FILES if files.suffix == lane.suffix), EXECUTORCH)
    if not entry.path and any(scheme in lane.schemes for scheme in entry.schemes):
        lane = engine
    required = entry.schemes or tuple(entry.mixtures)
    listed = [entry.find_scheme(scheme) for scheme in required]
    # A model with runtimes may list schemes of each of them.
    others = [RUNTIMES[runtime] for runtime in entry.runtimes if runtime != lane.runtime]
    known_schemes = {*lane.schemes, *chain.from_iterable(other.schemes for other in others)}
    refused = {scheme.value: scheme.base for scheme in listed if scheme.base not in known_schemes}
    if entry.runtimes and entry.schemes and not lane.translate(listed):
        refused = {scheme.value: scheme.base for scheme in listed}
    if not refused:
        return
    scheme, base = next(iter(refused.items()))
    only = f"{engine.title} has"
    if base in engine.schemes:
        only = "on this backend, the policy has limits only for"
    key = f"models.{name}.schemes" if entry.schemes else f"models.{name}.mixtures"
    key = key if entry.path else f"suite.{name}"
    mixed = f" is a mixture of {base}, which" if scheme != base else ""
    remaining_schemes = [scheme for scheme in required if scheme not in refused]
    remaining_schemes = remaining_schemes or [lane.find_counterpart(base) or lane.schemes[0]]
    table = f"[by_runtime.{lane.runtime}.models.{name}]"
    other_way = f", or list the schemes of {lane.title} in {table}" if entry.path else ""
    raise UsageError(
        f"{key}: {scheme}{mixed} cannot be tested here",
        why=f"{only} {', '.join(lane.schemes)}",
        fix=f"remove {scheme}, or pass another scheme, such as --scheme {remaining_schemes[0]}"
        f"{other_way}",
    )


def list_mixtures(entry: ModelEntry, lane: SchemeSet) -> list[str]:
    """Return the names of an entry's mixtures that the lane supports."""
    return [name for name, mixture in entry.mixtures.items() if mixture.base in lane.schemes]


def list_schemes(entry: ModelEntry, lane: SchemeSet) -> list[AnyScheme]:
    """Return the schemes and mixtures with which a model is tested if none is requested."""
    listed = [entry.find_scheme(name) for name in entry.schemes]
    mixtures = [entry.find_scheme(name) for name in list_mixtures(entry, lane)]
    if entry.runtimes:  # the schemes of one stand for those of the others
        listed = lane.translate(listed)
    usable = [mixture for mixture in listed if mixture.base in lane.schemes]
    return usable or [*lane.default, *mixtures]


def match_all(kind: str, words: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the ``names`` that match the globs in ``words``, in the order of the globs. Raises
    UsageError if a glob matches none."""
    all_names = list(names)
    return [name for word in words for name in match_names(kind, word, all_names)]


def match_socs(words: Iterable[str], names: Collection[str]) -> list[str]:
    """Return the SoCs of a lane that match the globs in ``words``; another name of one stands for
    it. Raises UsageError if a glob matches none."""
    return [name for word in words for name in _match_soc(word, names)]


def _match_soc(word: str, names: Collection[str]) -> list[str]:
    try:
        return match_names("SoC", name_in(word, names), names)
    except UsageError as error:
        message, fix = error.what, f"{error.fix}{point_to_socs(word)}"
        if (soc := find_soc_of_device(word)) in names:
            message, fix = refuse_device(word, soc)
        raise UsageError(message, why=error.why, fix=fix) from None


def expand_files(words: Sequence[str], names: Iterable[str], suffix: str) -> Iterator[str]:
    """Yield ``words`` with the files that they select instead of a folder or a glob of files with a
    model. ``names`` are those of models, which come before folders, and ``suffix`` is that of the
    lane's files, "" if it has none. Raises UsageError for a folder or a glob without such a file.
    """
    all_names = [name.lower() for name in names]
    for word in words:
        is_name = any(fnmatchcase(name, word.lower()) for name in all_names)
        # Not with methods of Path, which raise OSError for a name that is too long.
        if suffix and word and not is_name and os.path.isdir(user_path(word)):  # noqa: PTH112
            yield from _list_folder(word, user_path(word), suffix)
        elif (
            word.endswith(MODEL_FILES)
            and glob.has_magic(word)
            and not os.path.exists(user_path(word))  # noqa: PTH110
        ):
            # The caller's directory is no part of the pattern: it may contain brackets.
            pattern = str(Path(word).expanduser())
            files = sorted(glob.glob(pattern, root_dir=user_path("."), recursive=True))  # noqa: PTH207
            if not files:
                raise UsageError(
                    f"no file matches {word!r}",
                    fix="correct the path; it is relative to the directory from which you ran the"
                    " command",
                )
            yield from files
        else:
            yield word


def _list_folder(word: str, folder: Path, suffix: str) -> list[str]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"the folder {word} cannot be read", why=str(error)) from error
    if files := [str(entry) for entry in entries if entry.suffix == suffix]:
        return files
    other_suffixes = sorted({entry.suffix for entry in entries} & {*MODEL_FILES})
    fix = f"pass the folder with the files, or a glob: '{word.rstrip('/')}/**/*{suffix}'"
    if other_suffixes:
        commands = " and ".join(
            show_command(FILE_VERBS[ending], "--model", word) for ending in other_suffixes
        )
        fix = f"run {commands} for its {' and '.join(other_suffixes)} files"
    raise UsageError(
        f"the folder {word} has no {suffix} file", why="folders in it are not searched", fix=fix
    )


def find_models(word: str, known_models: Mapping[str, ModelEntry]) -> dict[str, ModelEntry]:
    """Return the entries of the models that ``word`` selects. The keys are the models' names in
    reports. ``word`` is a name or glob, a user's ``file.py:factory``, or an ONNX or LiteRT file.
    Raises UsageError if there is no such model."""
    refuse_mistyped(word)
    is_file = word.endswith(MODEL_FILES)
    if not is_file and ":" not in word:
        is_name = any(fnmatchcase(name.lower(), word.lower()) for name in known_models)
        is_folder = not is_name and os.path.isdir(user_path(word))  # noqa: PTH112
        if "/" in word or is_folder:  # a path: names have none, see resolve_entry
            path = user_path(word)
            why, fix = f"there is no {path}", IN_COMMAND
            if os.path.isdir(path):  # noqa: PTH112 - as in expand_files
                why = f"{path} is a directory"
                fix = f"pass a function in it: {word.rstrip('/')}/net.py:{FACTORY}"
            elif os.path.exists(path):  # noqa: PTH110
                why = f"{path} is neither Python nor a format of models that this command reads"
                fix = f"write a function that returns the module and its inputs: {OWN}"
            raise UsageError(f"no model {word!r}", why=why, fix=fix)
        return {name: known_models[name] for name in match_names("model", word, known_models)}
    file, _, function = word.rpartition(":")
    place = str(user_path(word)) if is_file else f"{user_path(file)}:{function}"
    reference = resolve_file(place, FACTORY, IN_COMMAND)
    path = Path(reference if is_file else reference.rpartition(":")[0])
    name = name_argument(path)
    return {name if is_file else f"{name}:{function}": ModelEntry(reference)}


def refuse_mistyped(word: str) -> None:
    """Raise UsageError for what newcomers type for a model: nothing, a Python file without a
    function or without .py, or a file with a model that the lanes do not read. Otherwise, its path
    would be taken for the name of a model."""
    nonempty_word(word)
    if word.endswith(".py"):
        raise UsageError(f"{word} has no function name", fix=f"write {word}:{FACTORY}")
    if word.endswith(STORED) and user_path(word).is_file():
        what = f"{word} is a file with a model, which this command does not read"
        if word.endswith(".pte"):
            shown = show_command("inspect", word)
            raise UsageError(what, why="it is lowered already", fix=f"{shown} shows what is in it")
        fix = f"write a function that returns the module, with its weights, and its inputs: {OWN}"
        raise UsageError(what, fix=fix)
    file, colon, function = word.rpartition(":")
    if colon and not file:
        raise UsageError(f"{word} has no file name", fix=f"write net.py{word}")
    if colon and not word.endswith(MODEL_FILES):
        _require_python_file(word, file, function)


def _require_python_file(word: str, file: str, function: str) -> None:
    """Raise UsageError for a file that is written without .py, or as Python imports it."""
    for path in (f"{file}.py", f"{file.replace('.', '/')}.py"):
        if file and not user_path(file).exists() and user_path(path).is_file():
            fix = f"did you mean {path}:{function or FACTORY}?"
            raise UsageError(f"no model {word!r}", why=f"there is no {user_path(file)}", fix=fix)


def match_names(kind: str, word: str, names: Iterable[str]) -> list[str]:
    """Return the ``names`` that the glob ``word`` matches, ignoring case. Raises UsageError if it
    matches none."""
    all_names = list(names)
    matches = [name for name in all_names if fnmatchcase(name.lower(), word.lower())]
    if matches:
        return matches
    near = difflib.get_close_matches(word.upper(), [name.upper() for name in all_names])
    fix = f"use one of: {', '.join(all_names)}"
    if len(all_names) > MOST_LISTED:
        where = "docs/reference/socs.md has" if kind == "SoC" else "--list prints"
        fix = f"use one of the {len(all_names)} names that {where}"
    nearest = next((name for name in all_names if near and name.upper() == near[0]), "")
    raise UsageError(
        f"no {kind} {word!r}",
        why=f"the nearest is {nearest}" if nearest else "",
        fix=fix,
    )


def choose_lane(
    lane: SchemeSet, backend: Backend, judged: Iterable[Scheme], words: Sequence[str]
) -> SchemeSet:
    """Return the lane with the schemes that can be judged on ``backend``. For HTP, the lane is
    unchanged. For another backend, it keeps only the schemes in ``judged``, for which the policy
    has limits. Raises UsageError if a glob in ``words`` matches only schemes without limits."""
    if backend is Backend.HTP:
        return lane
    schemes = tuple(scheme for scheme in lane.schemes if scheme in set(judged))
    for word in words:
        is_known = any(fnmatchcase(scheme.value, word.lower()) for scheme in lane.schemes)
        if is_known and not any(fnmatchcase(scheme.value, word.lower()) for scheme in schemes):
            raise UsageError(
                f"--scheme {word} cannot be used with --backend {backend.value}",
                why=f"for this backend, the policy has limits only for {', '.join(schemes)}",
                fix=f"use one of these schemes, or add [backends.{backend.value}.{word}] to the"
                " policy",
            )
    return SchemeSet(schemes, schemes)


def default_soc(backend: Backend) -> str:
    """Return the SoC for cases on ``backend`` if neither the user nor the model's entry specifies
    one."""
    return LPAI_SOC if backend.is_lpai else DEFAULT_SOC


def require_backend(specs: Sequence[CaseSpec], backend: Backend) -> None:
    """Raise UsageError if an SoC lacks the hardware of the backend, or a model's entry has a
    lowering option that was tried only with HTP."""
    socs = read_socs()
    without = [spec.soc for spec in specs if backend.is_lpai and socs[spec.soc].lpai is None]
    if without:
        with_lpai = ", ".join(sorted(name for name, soc in socs.items() if soc.lpai is not None))
        raise UsageError(
            f"{without[0]} has no LPAI block", fix=f"use --soc with one of: {with_lpai}"
        )
    for spec in specs:
        htp_options = [name for name, _ in spec.source.choices.chosen() if name in OF_HTP]
        if htp_options and backend is not Backend.HTP:
            raise UsageError(
                f"models.{spec.model}.lowering has options that --backend {backend.value} does not"
                f" support: {', '.join(htp_options)}",
                why="these options were tried only with HTP",
                fix="use --model to choose models without these options",
            )


def require_options(backend: Backend, *, runner: str, plan: bool, estimate: bool = False) -> None:
    """Raise UsageError for options that work only with HTP: --plan, --estimate, and --runner cpp if
    programs for ``backend`` cannot run on this host."""
    if backend is Backend.HTP:
        return
    if estimate:
        raise UsageError(
            f"--estimate cannot be used with --backend {backend.value}",
            why="the simulator predicts the time of a program for HTP",
            fix="leave out --estimate",
        )
    if plan:
        raise UsageError(
            f"--plan cannot be used with --backend {backend.value}",
            why="a plan contains only cases for HTP",
            fix="select the cases with --model, --scheme and --soc",
        )
    device = read_backends()[backend].device
    if runner == "cpp" and device:
        raise UsageError(
            f"--runner cpp cannot be used with --backend {backend.value}",
            why=f"this runner runs on the host, but the program needs {device}",
            fix="omit --runner, or pass a command that runs the .pte on a device that has it",
        )
