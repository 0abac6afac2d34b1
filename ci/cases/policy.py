"""The policy of test_emulator and test_onnx: models, limits and known refusals. The default
policies are in manifests/policies; a user's policy extends or replaces the default. Also advice on
the operators that QNN refuses, from manifests/policies/operators.toml."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct, field

from ci.cases.spec import CaseSpec, match_names
from ci.explain import rules
from ci.explain.explain import find_known
from ci.explain.linear import compile_linear
from ci.explain.rules import Role, check_pattern, read_rules, require_match
from ci.facts.finding import NO_ADVICE, Advice, Cause, Certainty, Finding, Proof, advise
from ci.facts.kinds import NOT_LOWERED
from ci.models.schemes import (
    EXECUTORCH,
    LANES_OF_FILES,
    LITERT,
    ONNX,
    RUNTIMES,
    AnyScheme,
    Scheme,
)
from ci.models.suite import OWN_MODELS
from ci.models.user_models import (
    Limits,
    Metric,
    ModelBudget,
    ModelEntry,
    OutputLimits,
    ReferencePolicy,
    check_limits,
    resolve_entry,
)
from ci.report.schema import (
    ANY_MODEL,
    NO_BUDGET,
    Budget,
    Count,
    OutputThreshold,
    Threshold,
    find_threshold,
)
from provisioning.artifacts.choice import list_device_runtimes
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import read_policy, read_toml
from provisioning.manifest.targets import Backend, find_any_soc, read_all_socs

if TYPE_CHECKING:  # it imports numpy, which ci.gate does not need
    from ci.cases.engine import Fallback
    from ci.models.tensors import TensorInfo

DEFAULT, EMULATOR = "default", "emulator"
LANES = {  # policies by session
    "test_emulator": EMULATOR,
    "test_onnx": "onnx",
    "test_llm": "llm",
    "test_litert": "litert",
}
# The runtimes of the policies of lanes
RUNTIMES_OF = {
    EMULATOR: EXECUTORCH.runtime,
    LANES["test_onnx"]: ONNX.runtime,
    LANES["test_llm"]: EXECUTORCH.runtime,
    LANES["test_litert"]: LITERT.runtime,
}
NO_ENTRY = ModelEntry("none")
# Limits of earlier versions, which no longer have an effect.
DROPPED_LIMITS = ("min_sqnr_db_channel", "max_gain_error", "max_offset", "max_nearer_db")


class Override(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for one model in one scheme, and the reason for them. They replace the scheme's
    limits."""

    model: str
    scheme: Scheme
    limits: Limits
    reason: str


class Unsupported(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of [[unsupported]]: cases that QNN is known to refuse with a finding that has this
    ``id`` and whose text matches ``pattern``. At least one of both is given.

    ``models``, ``schemes``, ``socs`` and ``choices`` are globs; a case must match one of each.
    Choices are a model's lowering options as text, such as ``shared_buffer, saver``, or empty. The
    row applies only to ``backends``. With ``strict``, a case that passes fails the run, because the
    row is out of date.
    """

    reason: str
    pattern: str = ""
    id: str = ""
    models: tuple[str, ...] = ("*",)
    schemes: tuple[str, ...] = ("*",)
    socs: tuple[str, ...] = ("*",)
    choices: tuple[str, ...] = ("*",)
    backends: tuple[Backend, ...] = (Backend.HTP,)
    strict: bool = True

    def __post_init__(self) -> None:
        require_match(self.id, self.pattern)

    def covers(self, model: str, scheme: str, soc: str, choices: str = "") -> bool:
        """Return whether a case matches the globs of the row."""
        return (
            _matches_any(model, self.models)
            and _matches_any(scheme, self.schemes)
            and _matches_any(soc, self.socs)
            and _matches_any(choices, self.choices)
        )


def _matches_any(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


class EmulatorPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole policy."""

    reference: ReferencePolicy
    schemes: dict[Scheme, Limits]  # the limits for HTP
    # the limits for other backends
    backends: dict[Backend, dict[Scheme, Limits]] = field(default_factory=dict)
    budget: Budget = NO_BUDGET  # for the footprint of every program and of its lowering
    # The memory that a case may use; 0 for a share of the machine's memory, see share_memory.
    memory_bytes: Count = 0
    suite: dict[str, tuple[Scheme, ...]] = field(default_factory=dict)  # this project's models
    models: dict[str, ModelEntry] = field(default_factory=dict)  # the user's models
    extends: Literal["", "default"] = ""
    override: tuple[Override, ...] = field(default_factory=tuple)
    unsupported: tuple[Unsupported, ...] = field(default_factory=tuple)
    advice: tuple[rules.Advice, ...] = field(default_factory=tuple)
    # Tables that replace those of the policy for one runtime, merged when the policy is read
    by_runtime: dict[str, dict[str, Any]] = field(default_factory=dict)
    runtimes: tuple[str, ...] = ()  # where devices get QNN from: see list_device_runtimes
    # whether an error above the predicted noise fails a case even if it is too small to matter
    strict_noise: bool = False
    dropped: tuple[str, ...] = ()  # limits in the user's file that no longer have an effect

    def for_backend(self, backend: Backend) -> EmulatorPolicy:
        """Return the policy for a run on ``backend``. Rows of [[unsupported]] for other backends
        are removed. For a backend other than HTP, the limits and budgets of single models are
        removed too, because they are for HTP. Raises UsageError if there are no limits for the
        backend."""
        unsupported = tuple(row for row in self.unsupported if backend in row.backends)
        if backend is Backend.HTP:
            return msgspec.structs.replace(self, unsupported=unsupported)
        limits = self.backends.get(backend)
        if not limits:
            raise UsageError(
                f"the policy has no limits for backend {backend.value}",
                why="a case without limits proves nothing",
                fix=f"add [backends.{backend.value}.SCHEME] to the policy",
            )
        models = {
            name: msgspec.structs.replace(entry, limits={}, budget=ModelBudget())
            for name, entry in self.models.items()
        }
        changes = {"schemes": limits, "models": models, "override": (), "unsupported": unsupported}
        return msgspec.structs.replace(self, **changes)

    def find_entry(self, model: str) -> ModelEntry:
        """Return the entry of a model, which is NO_ENTRY for a model of the suite."""
        return self.models.get(model, NO_ENTRY)

    def budget_of(self, model: str, scheme: AnyScheme) -> Budget:
        """Return the budget of a scheme in a model's entry. Without an entry, the budget has no
        limits."""
        return self.find_entry(model).budget.of(scheme)

    def memory_of(self, model: str) -> int:
        """Return the memory that a case of a model may use, in bytes; 0 if the policy sets none."""
        return self.find_entry(model).memory_bytes or self.memory_bytes

    def find_scheme(self, model: str, scheme: str) -> AnyScheme:
        """Return the scheme, or the mixture of a model's entry, that a report names. Raises
        ValueError if there is none."""
        return self.find_entry(model).find_scheme(scheme)

    def limits_of(self, model: str, scheme: AnyScheme) -> Threshold:
        """Return the limits of a case. A mixture without its own limits has those of its base.
        Raises ManifestError if there are none."""
        entry = self.models.get(model)
        budget = self.budget.merge(self.budget_of(model, scheme))
        if entry and (
            own_limits := entry.limits.get(scheme.value)
            or entry.limits.get(scheme.base.value)
            or self.schemes.get(scheme.base)
        ):
            threshold = _threshold(scheme, own_limits, model, metric=entry.metric)
            return msgspec.structs.replace(threshold, budget=budget, strict_noise=self.strict_noise)
        base = scheme.base  # of an experiment with a model that has no entry, too
        rules = [
            _threshold(scheme, limits) for name, limits in self.schemes.items() if name is base
        ]
        rules += [
            _threshold(scheme, row.limits, row.model, row.reason)
            for row in self.override
            if row.scheme is base
        ]
        rule = find_threshold(rules, model, scheme.value)
        if rule is None:
            raise ManifestError(
                f"no limits for scheme {scheme}",
                why="a case without limits proves nothing",
                fix=f"add [schemes.{scheme}] to the policy",
            )
        return msgspec.structs.replace(rule, budget=budget, strict_noise=self.strict_noise)

    def find_unused_limits(
        self, model: str, scheme: AnyScheme, outputs: Sequence[TensorInfo]
    ) -> Iterator[UsageError]:
        """Yield an error for each limit in a model's entry that has no effect: it is for an output
        beyond those that the model has, or for integers if all outputs that it is for are
        floating-point numbers, or the reverse."""
        entry, usual = self.find_entry(model), self.schemes.get(scheme.base, Limits())
        for name in dict.fromkeys((scheme.value, scheme.base.value)):
            limits = entry.limits.get(name, Limits())
            key = f"models.{model}.limits.{name}"
            yield from _find_other_kind(key, limits, usual, outputs)
            for output in sorted(limits.outputs.keys() - usual.outputs.keys(), key=int):
                table = f"{key}.outputs.{output}"
                if int(output) >= len(outputs):
                    yield UsageError(
                        f"{table}: the model's last output is number {len(outputs) - 1}",
                        why="outputs are counted from 0, so these limits have no effect",
                        fix="correct the number, or remove the table",
                    )
                else:
                    limited = [outputs[int(output)]]
                    yield from _find_other_kind(table, limits.outputs[output], Limits(), limited)

    def describe_limits(self, specs: Iterable[CaseSpec]) -> tuple[Threshold, ...]:
        """Return the limits of the cases, without duplicates."""
        limits = [self.limits_of(spec.model, spec.scheme) for spec in specs]
        return tuple({(limit.scheme, limit.model): limit for limit in limits}.values())

    def expects_refusal(
        self,
        model: str,
        scheme: AnyScheme,
        soc: str,
        findings: Sequence[Finding],
        *,
        choices: str = "",
        log: str = "",
    ) -> str:
        """Return the explanation from the first row of [[unsupported]] that covers a case and
        matches one of its ``findings`` or its ``log``, or "" if there is none."""
        rows = (row for row in self.unsupported if is_match(row.id, row.pattern, findings, log))
        reasons = (row.reason for row in rows if row.covers(model, scheme.value, soc, choices))
        return next(reasons, "")

    def find_unmet(self, model: str, scheme: AnyScheme, soc: str, choices: str = "") -> str:
        """Return the explanation from the first strict row of [[unsupported]] that covers a case,
        or "" if there is none. If the case passed, the row is out of date."""
        rows = (row for row in self.unsupported if row.strict)
        reasons = (row.reason for row in rows if row.covers(model, scheme.value, soc, choices))
        return next(reasons, "")

    def advise(self, findings: Sequence[Finding], log: str = "") -> Advice:
        """Return the cause of a failure and what helps. They come from the policy's first advice
        that matches, or else from the first rule of errors.toml that matches the findings, or else
        the ``log``."""
        own_rows = (
            advice for advice in self.advice if is_match(advice.id, advice.pattern, findings)
        )
        if row := next(own_rows, None):
            return advise(row.why, row.fix, certainty=Certainty.KNOWN, proof=Proof.PROVEN)
        # Without our own first words: "run: " is how a workflow quotes a command.
        words = "\n".join(finding.words.removeprefix(finding.lead) for finding in findings)
        rule = find_known(words, read_rules()) or (find_known(log, read_rules()) if log else None)
        if rule is None:
            return NO_ADVICE
        cause = ": ".join(filter(None, (rule.headline, rule.detail)))
        tried = any(remedy.proof is Proof.PROVEN for remedy in rule.remedies)
        vague = rule.role is Role.HINT and not tried
        return Advice(
            causes=(Cause(text=cause, certainty=rule.certainty, name=rule.id),),
            remedies=rule.remedies,
            title="" if rule.certainty is Certainty.GUESS or vague else rule.headline,
        )


def is_match(name: str, pattern: str, findings: Sequence[Finding], log: str = "") -> bool:
    """Return whether a finding has the id ``name`` and a text that ``pattern`` matches. An empty
    condition always holds. Without a ``name``, the ``log`` may match instead."""
    search = compile_linear(pattern).search
    for finding in (finding for finding in findings if name in {"", finding.id}):
        if search(finding.words) or search(finding.evidence):
            return True
    return bool(log and not name and search(log))


def _threshold(
    scheme: AnyScheme,
    limits: Limits,
    model: str = ANY_MODEL,
    reason: str = "",
    *,
    metric: Metric | None = None,
) -> Threshold:
    return Threshold(
        scheme=scheme.value,
        model=model,
        reason=reason,
        min_metric=metric.min if metric else None,
        max_metric_drop=metric.max_drop if metric else None,
        full_delegation=limits.full_delegation,
        outputs=tuple(
            OutputThreshold(output=int(number), **output_limits.stated_limits)
            for number, output_limits in limits.outputs.items()
        ),
        **limits.stated_limits,
    )


def count_rows(table: dict[str, Any], name: str) -> int:
    """Return the number of rows of a list in a table, or 0 if there is none."""
    rows = table.get(name)
    return len(rows) if isinstance(rows, list) else 0


def read_emulator_policy(path: Path | None = None, lane: str = EMULATOR) -> EmulatorPolicy:
    """Return a lane's default policy, or the user's policy at ``path`` with absolute paths. Raises
    ManifestError if the policy is missing or invalid."""
    if path is None:
        return read_policy(lane, EmulatorPolicy)
    if not path.is_file():
        raise ManifestError(
            f"there is no policy {path}",
            why="it is not a file",
            fix="pass an existing file to --policy; `qnn-ci init --policy-only` writes one",
        )
    # Rows of the user's own, which come before those of the default policy
    overrides = unsupported = 0

    def extend(user_table: dict[str, Any]) -> dict[str, Any]:
        nonlocal overrides, unsupported
        overrides = count_rows(user_table, "override")
        unsupported = count_rows(user_table, "unsupported")
        return extend_default(user_table, lane)

    policy = read_toml(path.name, EmulatorPolicy, path.parent, prepare=extend)
    try:
        check_tables(policy, policy.override[:overrides])
        check_unsupported(policy.unsupported[:unsupported], policy.models)
        tuple(list_device_runtimes(policy.runtimes))
        check_suite(policy)
        check_budget(policy)
        models = {
            name: resolve_entry(name, entry, path.parent) for name, entry in policy.models.items()
        }
    except UsageError as error:
        raise ManifestError(f"{path}: {error.what}", why=error.why, fix=error.fix) from error
    return msgspec.structs.replace(policy, models=models)


GLOB_OR_PATH = re.compile(r"[*?\[./:]")
OF_INTEGERS = frozenset({"min_equal", "min_equal_quantized"})


def _find_other_kind(
    key: str, limits: OutputLimits, usual: OutputLimits, outputs: Sequence[TensorInfo]
) -> Iterator[UsageError]:
    """Yield the limits, besides the usual ones, that are for another kind of numbers than all of
    these outputs have."""
    are_float = {info.dtype.startswith("float") for info in outputs}
    for name, limit in limits.stated_limits.items():
        is_for_float = name not in OF_INTEGERS
        if are_float == {not is_for_float} and usual.stated_limits.get(name) != limit:
            kind = "integers or booleans" if is_for_float else "floating-point numbers"
            yield UsageError(
                f"{key}.{name} has no effect",
                why=f"the outputs that it is for are {kind}",
                fix="remove it",
            )


def check_unsupported(rows: Sequence[Unsupported], models: Mapping[str, ModelEntry]) -> None:
    """Raise UsageError for a row of [[unsupported]] that covers no case: one of its globs matches
    no scheme or SoC, or is a plain name that no model has."""
    mixtures = [name for entry in models.values() for name in entry.mixtures]
    for row in rows:
        for key, globs, names in (
            ("schemes", row.schemes, [*(scheme.value for scheme in Scheme), *mixtures]),
            ("socs", row.socs, [*read_all_socs()]),
            ("models", row.models, [*OWN_MODELS, *models]),
        ):
            for glob in globs:
                # A file may be passed with --model, whatever it is called.
                is_open = key == "models" and bool(GLOB_OR_PATH.search(glob))
                if is_open or any(fnmatchcase(name, glob) for name in names):
                    continue
                near = difflib.get_close_matches(glob, names, n=1)
                raise UsageError(
                    f"{glob} in {key} of a row of [[unsupported]] matches nothing",
                    why=f"the nearest of them is {near[0]}" if near else "the row has no effect",
                    fix=f"use a glob that matches one of {key}, or leave the row out",
                )


def check_tables(policy: EmulatorPolicy, overrides: Sequence[Override]) -> None:
    """Raise UsageError for limits in a table that no case looks in: for HTP in ``backends``, and
    for a user's own model, or for a name that no model has, in ``overrides``."""
    if Backend.HTP in policy.backends:
        raise UsageError(
            "backends.htp has no effect",
            why="the limits for HTP are in [schemes]",
            fix="move its tables to [schemes.SCHEME]",
        )
    for name, limits in policy.schemes.items():
        check_limits(f"schemes.{name}", name, limits)
    for backend, schemes in policy.backends.items():
        for name, limits in schemes.items():
            check_limits(f"backends.{backend.value}.{name}", name, limits)
    for row in overrides:
        check_limits(f"limits in the [[override]] of {row.model}", row.scheme, row.limits)
        if row.model in policy.models:
            raise UsageError(
                f"[[override]] of {row.model} has no effect",
                why="it is for the models of this project's suite",
                fix=f"move its limits to [models.{row.model}.limits.{row.scheme}]",
            )
        if row.model not in OWN_MODELS and "/" not in row.model and ":" not in row.model:
            near = difflib.get_close_matches(row.model, OWN_MODELS, n=1)
            raise UsageError(
                f"[[override]] of {row.model} has no effect",
                why=f"the nearest model of the suite is {near[0]}" if near else "",
                fix=f"use one of: {', '.join(OWN_MODELS)}",
            )


def check_budget(policy: EmulatorPolicy) -> None:
    """Raise UsageError for a key of ``budget`` that has no effect for any model: all of them are
    files of a kind that this project never runs on a device."""
    suffixes = {Path(entry.path).suffix for entry in policy.models.values()}
    if policy.suite or len(suffixes) != 1:
        return
    for lane in LANES_OF_FILES:
        for key, reason in lane.unused_keys.items() if lane.suffix in suffixes else ():
            table, _, name = key.partition(".")
            if table == "budget" and getattr(policy.budget, name) is not None:
                raise UsageError(
                    f"{key} has no effect for {lane.file_kind}",
                    why=reason,
                    fix="remove this key: all models of this policy are such files",
                )


def check_suite(policy: EmulatorPolicy) -> None:
    """Raise UsageError if ``suite`` lists a model that does not exist, or one whose name another
    model has."""
    for name in policy.suite:
        match_names("model", name, OWN_MODELS)
        if name in policy.models:
            raise UsageError(
                f"suite.{name} and models.{name} have the same name",
                fix="rename your model, or remove the suite's from `suite`",
            )


def extend_default(user_table: dict[str, Any], lane: str = EMULATOR) -> dict[str, Any]:
    """Return a user's policy. If it sets ``extends``, it is merged into the lane's default policy.
    The default's suite is then dropped if the user's policy has ``models`` or ``suite``. The limits
    in a model's entry are merged into the limits of their scheme.

    Raises UsageError for a policy that lacks a required table and does not extend another policy.
    """
    user_table = choose_tables(user_table, RUNTIMES_OF.get(lane, ""))
    # Policies that were written for an earlier version are accepted, with a warning.
    dropped = sorted(set(drop_limits(user_table)))
    merged = user_table
    if user_table.get("extends") == DEFAULT:
        merged = merge(deepcopy(read_policy(lane, dict[str, Any])), user_table)
        if user_table.keys() & {"models", "suite"}:
            merged["suite"] = user_table.get("suite", {})
    elif "extends" not in user_table and not {"reference", "schemes"} <= user_table.keys():
        raise UsageError(
            "the policy lacks [reference] or [schemes], and does not extend another policy",
            fix=f'write extends = "{DEFAULT}" as the first line of the policy',
        )
    for entry in _tables(merged.get("models")).values():
        limits = _tables(_tables(entry).get("limits"))
        mixtures = _tables(_tables(entry).get("mixtures"))
        bases = {name: _tables(mixture).get("base", name) for name, mixture in mixtures.items()}
        # A mixture without its own limits has those of its base, which must be merged by then.
        for scheme in sorted(limits, key=lambda name: name in bases):  # mixtures last
            base = bases.get(scheme, scheme)
            usual = limits.get(base) if scheme in bases else None
            usual = usual or _tables(merged.get("schemes")).get(base)
            limits[scheme] = merge(usual, limits[scheme])
    return {**merged, "dropped": dropped} if dropped else merged


def choose_tables(user_table: dict[str, Any], runtime: str) -> dict[str, Any]:
    """Return a user's policy for a runtime: the tables below ``by_runtime.RUNTIME`` are merged into
    it, and what they set replaces what it sets. Those for other runtimes are left out. Raises
    UsageError for the name of no runtime, and for tables of a scheme that their runtime lacks."""
    tables: dict[str, Any] = _tables(user_table.get("by_runtime"))
    if not tables:
        return user_table
    if unknown := [name for name in tables if name not in RUNTIMES]:
        raise UsageError(
            f"by_runtime.{unknown[0]} is for no runtime", fix=f"use one of: {', '.join(RUNTIMES)}"
        )
    for name, own_tables in tables.items():
        require_own_schemes(name, _tables(own_tables))
    common = {key: value for key, value in user_table.items() if key != "by_runtime"}
    changes: dict[str, Any] = _tables(tables.get(runtime))
    if "by_runtime" in changes:
        raise UsageError(
            f"by_runtime.{runtime}.by_runtime has no effect",
            fix=f"move its tables to by_runtime.{runtime}",
        )
    return replace_tables(common, changes)


def require_own_schemes(runtime: str, tables: dict[str, Any]) -> None:
    """Raise UsageError for limits or budgets below ``by_runtime.RUNTIME`` of a scheme that the
    runtime lacks. Other names are those of mixtures, or are refused later."""
    lane = RUNTIMES[runtime]
    foreign_schemes = {scheme.value for scheme in Scheme} - {*lane.schemes}
    of_schemes = {"schemes": tables.get("schemes")}
    for model, entry in _tables(tables.get("models")).items():
        of_schemes[f"models.{model}.limits"] = _tables(entry).get("limits")
        budget = _tables(_tables(entry).get("budget"))
        of_schemes[f"models.{model}.budget.schemes"] = budget.get("schemes")
    for key, table in of_schemes.items():
        for scheme in foreign_schemes.intersection(_tables(table)):
            raise UsageError(
                f"by_runtime.{runtime}.{key}.{scheme} has no effect",
                why=f"{lane.title} has {', '.join(lane.schemes)}",
                fix="remove this table, or write one of these schemes",
            )


def replace_tables(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values in ``changes``, which replace its own. Tables are merged by
    key."""
    changed = dict(base)
    for key, value in changes.items():
        before = base.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            changed[key] = replace_tables(before, value)
        else:
            changed[key] = value
    return changed


def drop_limits(table: Any) -> Iterator[str]:
    """Remove limits that no longer have an effect from a table and all tables in it. Yield their
    names."""
    for value in table if isinstance(table, list) else ():
        yield from drop_limits(value)
    for key, value in [*_tables(table).items()]:
        if key in DROPPED_LIMITS:
            del table[key]
            yield key
        yield from drop_limits(value)


def merge(base: Any, addition: Any) -> Any:
    """Return ``addition`` merged into ``base``. Tables are merged by key. In a list, the entries of
    ``addition`` come first, because the first match applies. Any other value of ``addition``
    replaces the one in ``base``."""
    if isinstance(base, dict) and isinstance(addition, dict):
        return {**base, **{key: merge(base.get(key), value) for key, value in addition.items()}}
    if isinstance(base, list) and isinstance(addition, list):
        return [*addition, *base]
    return addition


def _tables(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class OperatorRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of manifests/policies/operators.toml: why QNN refuses an operator, and what to write
    instead. ``proof`` is the file with the tried remedy, or empty. ``operator`` and ``reason`` are
    patterns for the operator's name and QNN's reason. The row applies to ``schemes`` (globs) and to
    ``socs``. If ``socs`` is empty, it applies to SoCs whose Hexagon version is lower than
    ``before_hexagon``, or to all SoCs if that is 0. ``mended_in`` is the package and version that
    take the operator, if one does, and ``mended_for`` which operators of this kind it takes, if not
    all."""

    operator: str
    fix: str
    why: str = ""
    proof: str = ""
    reason: str = ""
    schemes: tuple[str, ...] = ("*",)
    socs: tuple[str, ...] = ()
    before_hexagon: int = 0
    mended_in: str = ""
    mended_for: str = ""

    def __post_init__(self) -> None:
        check_pattern(self.operator)
        check_pattern(self.reason)

    @property
    def advice(self) -> Advice:
        """Return the cause and the remedy."""
        proof = Proof.PROVEN if self.proof else Proof.SUGGESTED
        kinds = f"{self.mended_for}, " if self.mended_for else ""
        mended = f"; or {kinds}use {self.mended_in} or newer, which takes it"
        mended = mended if self.mended_in else ""
        return advise(self.why, f"{self.fix}{mended}", certainty=Certainty.KNOWN, proof=proof)

    def covers(self, scheme: str, soc: str) -> bool:
        """Return whether the row applies to a scheme and an SoC."""
        if not any(fnmatchcase(scheme, glob) for glob in self.schemes):
            return False
        if self.socs:
            return soc in self.socs
        return not self.before_hexagon or find_any_soc(soc).hexagon < self.before_hexagon

    def fits(self, operator: str, reason: str) -> bool:
        """Return whether the row matches an operator and QNN's reason for refusing it."""
        return bool(re.search(self.operator, operator) and re.search(self.reason, reason))


class _OperatorRules(Struct, frozen=True, forbid_unknown_fields=True):
    remedy: tuple[OperatorRule, ...]


@functools.cache
def read_remedies() -> tuple[OperatorRule, ...]:
    """Return the rows of manifests/policies/operators.toml. Raises ManifestError if the file is
    invalid."""
    return read_policy("operators", _OperatorRules).remedy


def find_advice(fallback: Fallback, scheme: str, soc: str, policy: EmulatorPolicy) -> Advice:
    """Return why an operator is refused, and what to do about it: a proven remedy of the policy's
    advice or of errors.toml, else a row of manifests/policies/operators.toml, else the rest."""
    findings = [NOT_LOWERED.find("", evidence=f"{fallback.op}: {fallback.reason}")]
    advice = policy.advise(findings)
    if any(remedy.proof is Proof.PROVEN for remedy in advice.remedies):
        return advice
    if not any(is_match(user_row.id, user_row.pattern, findings) for user_row in policy.advice):
        for row in read_remedies():
            if row.covers(scheme, soc) and row.fits(fallback.op, fallback.reason):
                return row.advice
    return advice
