"""Reads known faults, which are data in manifests/policies/faults.toml, and finds their patterns in
a graph.

A pattern is a chain of operators, each of which reads the result of the previous one. Most of its
conditions are on the shapes and constants of the first operator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct, structs

from ci.analysis.steps import Step, describe_steps
from ci.faults.graph import ONLY_IN_PATTERNS, Graph, Shape, parse_graph, read_operators
from ci.faults.graph_reader import read_graph
from ci.graphs.graph import EXECUTORCH, LITERT, ONNXRUNTIME
from ci.models.schemes import Scheme
from provisioning.errors import ManifestError, UsageError
from provisioning.manifest.reader import read_policy
from provisioning.versions import is_older, is_same, is_version, parse_version

POLICY = "faults"
Owner = Literal["qnn", "onnxruntime", "executorch", "quantization", "unknown"]
Frontend = Literal["onnx", "executorch", "litert"]  # which builds and runs small graphs
# A fault that several have is QNN's: two front ends tell whose fault it is.
FRONTENDS: tuple[Frontend, ...] = ("onnx", "executorch", "litert")
# Which run the graphs of known faults again, unless LiteRT is asked for: it has other packages.
RERUNNING: tuple[Frontend, ...] = ("onnx", "executorch")
# Before the remedy of a fault in a .tflite file, which its user cannot change by hand, and what
# {in_source} of a text for LiteRT stands for.
CHANGE_SOURCE = "change the model from which the file was written, and write it again: "
IN_SOURCE = "in the model from which the file was written, "
OTHER_FRONT_ENDS = frozenset({"executorch", "onnxruntime"})  # whose faults LiteRT does not have
# A file that contains its quantization is in none of this project's schemes: those whose rows apply
# to its operators, by their integers. Through onnxruntime, only those that start with ``u`` do.
INTEGERS: Mapping[str, tuple[str, ...]] = {
    "int8": ("8a8w", "u8", "u8_channel"),
    "int16": ("16a8w", "u16a8w", "u16a8w_channel"),
}
WRONG, RIGHT, REFUSED, CRASHED = "wrong", "right", "refused", "crashed"
MOVES = frozenset({"reshape", "transpose", "expand", "slice", "select"})
ENDS = (RIGHT, REFUSED, CRASHED, WRONG)  # worst last: a wrong result raises no error

# How a constant operand relates to the result of its operator, see Pattern and relate.
Relation = Literal["", "any", "first", "whole", "over_batch", "over_rows", "scalar"]


class Pattern(Struct, frozen=True, forbid_unknown_fields=True):
    """The pattern of a fault. ``operators`` is a chain of names of ci.faults.graph, with ``|``
    between alternatives; a place that ends with ``?`` may be missing in a graph. ``schemes`` are
    the schemes with the fault, and ``front_ends`` the front ends, if not all have it.

    The following fields are conditions on the first operator. ``constant`` is how a constant
    operand relates to the result: ``any``, ``whole`` (same shape), ``scalar``, ``over_rows`` (more
    than one element only along the last axis), ``over_batch`` (broadcast along the first axis,
    which is 2 or more) or ``first`` (it is the first operand). ``min_batch`` is the least size of
    the result's first axis. ``ranks`` are the permitted ranks of the result; if it is empty, all
    are. ``min_magnitude`` is the magnitude that at least one operand must reach. ``not_after`` are
    operators that must not produce an operand. With ``computed``, an operand must be the result of
    another operator, not an input or a constant.

    ``not_before`` are operators that must not read the result of the last operator. With
    ``read_again``, the result of an operator before the last one must also be read by a step
    outside of the chain. With ``joins_others``, the last step must also read something other than
    results of the first place's operators and of a softmax. With ``reads_first``, the last step
    must also read the result of the first one, as the product of x * sigmoid(x). ``numbers`` limits
    arguments of the operators, under torch's names, and the numbers of
    ci.analysis.steps.measure_step, under their names. ``rank`` is the rank of a step's result.
    ``add.second`` is that of the first ``add`` of the chain. A limit is a pair of the least and the
    greatest magnitude. If an argument has several numbers, a single limit applies to every number,
    and several limits apply to one number each.
    """

    operators: tuple[str, ...]
    schemes: tuple[str, ...]
    constant: Relation = ""
    min_batch: int = 1
    ranks: tuple[int, ...] = ()
    min_magnitude: float = 0.0
    not_after: tuple[str, ...] = ()
    computed: bool = False
    not_before: tuple[str, ...] = ()
    read_again: bool = False
    joins_others: bool = False
    reads_first: bool = False
    front_ends: tuple[Frontend, ...] = ()
    numbers: dict[str, tuple[tuple[float, float], ...]] = {}

    @property
    def chains(self) -> list[list[list[str]]]:
        """Return the chains, each with and without the places that may be missing. A place is a
        list of alternative operators."""
        chains: list[list[list[str]]] = [[]]
        for place in self.operators:
            longer = [[*chain, place.removesuffix("?").split("|")] for chain in chains]
            chains = [*longer, *(chains if place.endswith("?") else [])]
        return chains


class Tried(Struct, frozen=True, forbid_unknown_fields=True):
    """The results of a fault's graph in a front end and a scheme. Each result lists the versions of
    QNN with which it was seen. ``scheme`` is ``int8`` or ``int16`` for a file that contains its
    quantization. ``of_file`` is true if LiteRT's converter writes the graph with other operators,
    so that a file of the graph's own operators was tried."""

    frontend: Frontend
    scheme: str
    wrong: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    crashed: tuple[str, ...] = ()
    of_file: bool = False

    def find_end(self, qnn: str) -> str:
        """Return the graph's result with a version of QNN; empty if it was not tried with that
        version."""
        for end in ENDS:
            if any(is_same(qnn, version) for version in self[end]):
                return end
        return ""

    def __getitem__(self, end: str) -> tuple[str, ...]:
        """Return the versions of QNN with the result ``end``."""
        return cast("tuple[str, ...]", getattr(self, end))


class Wording(Struct, frozen=True, forbid_unknown_fields=True):
    """What the user of another lane reads instead; empty if the other text is right."""

    seen: str = ""
    remedy: str = ""
    elsewhere: str = ""


class Fault(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A known fault. ``graph`` and ``mended`` are graphs in the format of ci.faults.graph: the
    smallest graph with the fault, and an equivalent graph without it. ``seen`` is what a user
    observes, and ``remedy`` is the fix. ``executorch``, ``onnx`` and ``litert`` have the texts for
    models of one front end, if others are right for them. ``elsewhere`` says in which schemes it is
    right, which a run may contradict. ``least_db`` is the lowest SQNR with which it was seen, or
    None if that is not recorded. ``tried`` lists the results of ``graph``. A fault without a graph
    is reported to users but cannot be run. ``refuses`` is true if models with the fault may be
    refused, although no result in ``tried`` shows it. ``same_as`` are the faults that this one is
    in other words: the same mistake of QNN, in the operators that another front end writes."""

    name: str
    title: str
    owner: Owner
    seen: str
    remedy: str
    pattern: Pattern
    same_as: tuple[str, ...] = ()
    graph: str = ""
    mended: str = ""
    executorch: Wording = Wording()
    onnx: Wording = Wording()
    litert: Wording = Wording()
    elsewhere: str = ""
    least_db: float | None = None
    tried: tuple[Tried, ...] = ()
    refuses: bool = False

    def describe(self, front_end: str, *, is_file: bool = True) -> Wording:
        """Return the texts for users of a front end. The user of a .tflite file cannot change it,
        but what it was written from, and how that is quantized. Of a PyTorch model that LiteRT
        compiles, which is no file, the user has the source."""
        wordings = {EXECUTORCH: self.executorch, ONNXRUNTIME: self.onnx, LITERT: self.litert}
        wording = wordings.get(front_end, Wording())
        is_written = is_file and front_end == LITERT
        remedy = CHANGE_SOURCE * is_written + self.remedy
        if wording.remedy:
            remedy = wording.remedy.replace("{in_source}", IN_SOURCE * is_written)
        return Wording(
            seen=wording.seen or self.seen,
            remedy=remedy,
            elsewhere=wording.elsewhere or self.elsewhere,
        )

    def find_mended(self, scheme: str, qnn: str, front_end: str) -> str:
        """Return the first version of QNN after ``qnn`` from which on all results of the fault's
        graph in a scheme and a front end are right; empty if none is known."""
        rows = [row for row in self.tried if (row.frontend, row.scheme) == (front_end, scheme)]
        tried = {version for row in rows for end in ENDS for version in row[end]}
        mended = ""
        for version in sorted(tried, key=parse_version, reverse=True):
            if {row.find_end(version) for row in rows} - {""} != {RIGHT}:
                break
            if is_older(qnn, version):
                mended = version
        return mended

    def only_stops(self, front_end: str = "") -> bool:
        """Return whether the graph was refused or crashed, and its values were never wrong."""
        is_litert = front_end == LITERT
        own_rows = [row for row in self.tried if (row.frontend == LITERT) == is_litert]
        rows = own_rows or self.tried
        return bool(rows) and not any(row.wrong for row in rows)

    def applies(
        self,
        scheme: str,
        qnn: str = "",
        front_end: str = "",
        *,
        compiled: bool = False,
        refused: bool = False,
    ) -> bool:
        """Return whether the fault affects models in ``scheme`` with the QNN version ``qnn``. The
        results in this scheme decide or, if the fault was not tried in this scheme, those in all
        schemes. Models are affected unless there are results with that version and all of them are
        right. A ``compiled`` model is only affected if a result may be wrong, and a ``refused`` one
        only if a result is not a program: wrong values explain no refusal.

        LiteRT's plugin builds QNN's graphs from other operators than onnxruntime and ExecuTorch do,
        so its results count for its models alone, and decide for them if there are any."""
        front_ends = self.pattern.front_ends
        if front_ends and front_end and front_end not in front_ends:
            return False
        if front_end == LITERT:
            rows = [row for row in self.tried if row.frontend == LITERT and row.scheme == scheme]
            if rows:
                return self._affects(rows, qnn, compiled=compiled, refused=refused)
            if self.owner in OTHER_FRONT_ENDS:
                return False
        rows_of_other_lanes = [row for row in self.tried if row.frontend != LITERT]
        for name in (scheme, *INTEGERS.get(scheme, ())):
            is_foreign = name != scheme and front_end == ONNXRUNTIME and not name.startswith("u")
            if name not in self.pattern.schemes or is_foreign:
                continue
            rows = [row for row in rows_of_other_lanes if row.scheme == name]
            rows = rows or rows_of_other_lanes
            if self._affects(rows, qnn, compiled=compiled, refused=refused):
                return True
        return False

    def _affects(self, rows: Sequence[Tried], qnn: str, *, compiled: bool, refused: bool) -> bool:
        ends = {row.find_end(qnn) for row in rows} - {""}
        if compiled or refused:
            # If it was not tried with this version, the results with all others count.
            ends = ends or {end for row in rows for end in ENDS if row[end]}
        if refused:
            return self.refuses or not ends.isdisjoint({REFUSED, CRASHED})
        if compiled:
            # A fault without results was seen wrong if an SQNR of it is recorded.
            is_wrong = not self.refuses or self.least_db is not None
            return WRONG in ends or (not ends and is_wrong)
        return ends != {RIGHT}


class Faults(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/faults.toml."""

    fault: tuple[Fault, ...]


_checked: list[tuple[Fault, ...]] = []  # what read_faults has returned


def read_faults(path: Path | None = None) -> tuple[Fault, ...]:
    """Return the known faults in the file ``path``, by default this project's. Raises ManifestError
    for a fault that does not match the schema, names an unknown operator or scheme, or contradicts
    itself."""
    faults = read_policy(POLICY, Faults, path).fault
    # The file is read for every case. An unchanged file is the same object again (see parse_toml),
    # and its checks, which parse all graphs, took 10 ms each time.
    if any(faults is checked for checked in _checked):
        return faults
    names = [fault.name for fault in faults]
    for fault in faults:
        problems = list(find_problems(fault))
        if names.count(fault.name) > 1:
            problems.append("another fault has the same name")
        others = {name for name in names if name != fault.name}
        problems += [
            f"there is no other fault {name!r}" for name in fault.same_as if name not in others
        ]
        if problems:
            raise ManifestError(
                f"{path or f'policies/{POLICY}.toml'}, fault {fault.name!r}: {problems[0]}",
                why="models with this fault could be missed, or reported wrongly",
                fix="docs/guides/faults.md describes every key",
            )
    _checked.append(faults)
    return faults


def find_problems(fault: Fault) -> Iterator[str]:
    """Yield the reasons to reject a fault. A valid fault has none."""
    pattern = fault.pattern
    if not pattern.operators:
        yield "the pattern has no operator"
        return
    if not pattern.schemes:
        yield "the pattern has no scheme"
    if not fault.name.replace("-", "").isalnum() or fault.name != fault.name.lower():
        yield "its name must consist of lowercase letters, digits and hyphens"
    yield from _find_unknown_names(fault)
    if not (fault.title and fault.seen and fault.remedy):
        yield "'title', 'seen' and 'remedy' must not be empty"
    yield from _find_tried_problems(fault)
    try:
        graph = parse_graph(fault.graph) if fault.graph else None
        if fault.mended:
            parse_graph(fault.mended)
    except UsageError as error:
        yield f"'graph' or 'mended' is invalid: {error.why}"
        return
    if graph is not None and not find_pattern(pattern, describe(graph)):
        yield "its graph does not contain its pattern"


def _find_unknown_names(fault: Fault) -> Iterator[str]:
    pattern = fault.pattern
    operators = {*read_operators(), *ONLY_IN_PATTERNS}
    for place in (*pattern.chains[0], pattern.not_after, pattern.not_before):
        for operator in place:
            if operator not in operators:
                yield f"there is no operator {operator!r}"
    schemes = {*INTEGERS, *(scheme.value for scheme in Scheme)}
    for scheme in (*pattern.schemes, *(tried.scheme for tried in fault.tried)):
        if scheme not in schemes:
            yield f"there is no scheme {scheme!r}"


def _find_tried_problems(fault: Fault) -> Iterator[str]:
    for tried in fault.tried:
        versions = [version for end in ENDS for version in tried[end]]
        for version in versions:
            if not is_version(version):
                yield f"{version!r} is not a version of QNN"
        if len(set(versions)) < len(versions):
            yield "a row in 'tried' lists a version of QNN twice"
        if not fault.graph:
            yield "it has results in 'tried', but no graph"


@cache
def name_operators() -> Mapping[str, str]:
    """Map torch's names of operators to those in ci.faults.graph."""
    names: dict[str, str] = {}
    for name, operator in read_operators().items():
        names.update(dict.fromkeys(operator.aten, name))
    return names


def rename_steps(steps: Sequence[Step]) -> list[Step]:
    """Return steps whose operators have the names in ci.faults.graph."""
    names = name_operators()
    return [
        structs.replace(step, operator=names.get(step.operator, step.operator)) for step in steps
    ]


def describe(
    graph: Graph, exact: Mapping[str, Shape] | None = None, front_end: str = ""
) -> list[Step]:
    """Return the steps of a ci.faults graph. ``exact`` and ``front_end`` are those of
    read_graph."""
    return rename_steps(describe_steps(read_graph(graph, exact, front_end)))


def find_pattern(pattern: Pattern, steps: Sequence[Step]) -> list[list[Step]]:
    """Return the chains of steps that match a pattern, one for each possible last step. ``steps``
    are in execution order, with the names of rename_steps."""
    by_name = {step.name: step for step in steps}
    chains = pattern.chains
    last_operators = {operator for places in chains for operator in places[-1]}
    matches = []
    for last in steps:
        # Most steps end here: the readers of each would make this quadratic in the size of a graph.
        if last.operator not in last_operators or _is_read_by(pattern.not_before, last, steps):
            continue
        for places in chains:
            chain = _follow(places, last, by_name)
            if not chain or not _fits(pattern, chain[0], by_name):
                continue
            if pattern.read_again and not _is_read_again(chain, steps):
                continue
            if pattern.joins_others and not _joins_others(places[0], last, by_name):
                continue
            if pattern.reads_first and chain[0].name not in last.sources:
                continue
            if _has_numbers(pattern, chain):
                matches.append(chain)
                break
    return matches


def _is_read_by(operators: Collection[str], last: Step, steps: Sequence[Step]) -> bool:
    """Return whether a step with one of ``operators`` reads the result of ``last``."""
    if not operators:
        return False
    return any(step.operator in operators and last.name in step.sources for step in steps)


def _is_read_again(chain: Sequence[Step], steps: Sequence[Step]) -> bool:
    """Return whether a step outside of a chain reads the result of a step before its last one."""
    names, inner = {step.name for step in chain}, {step.name for step in chain[:-1]}
    return any(step.name not in names and not inner.isdisjoint(step.sources) for step in steps)


def _joins_others(operators: Sequence[str], last: Step, steps: Mapping[str, Step]) -> bool:
    """Return whether ``last`` reads something other than results of ``operators`` or of a softmax,
    which may be moved."""
    for name in last.sources:
        step = steps.get(name)
        while step and step.operator in MOVES and step.sources:
            step = steps.get(step.sources[0])
        if step is None or step.operator not in {*operators, "softmax"}:
            return True
    return False


def _follow(places: Sequence[Sequence[str]], last: Step, steps: Mapping[str, Step]) -> list[Step]:
    """Return a chain of steps that ends with ``last`` and has an operator of each place; empty if
    there is none."""
    if last.operator not in places[-1]:
        return []
    if len(places) == 1:
        return [last]
    for name in last.sources:
        if name in steps and (before := _follow(places[:-1], steps[name], steps)):
            return [*before, last]
    return []


def _fits(pattern: Pattern, step: Step, steps: Mapping[str, Step]) -> bool:
    """Return whether ``step``, the first of a chain, meets the pattern's conditions on it."""
    relations = relate(step)
    shape = step.shape or next((operand.shape for operand in step.operands), ())
    before = {steps[name].operator for name in step.sources if name in steps}
    magnitude = max((operand.magnitude for operand in step.operands), default=0.0)
    return (
        (not pattern.constant or pattern.constant in relations)
        and (shape[0] if shape else 1) >= pattern.min_batch
        and (not pattern.ranks or len(shape) in pattern.ranks)
        and magnitude >= pattern.min_magnitude
        and before.isdisjoint(pattern.not_after)
        and (not pattern.computed or bool(before))
    )


def _has_numbers(pattern: Pattern, chain: Sequence[Step]) -> bool:
    """Return whether the numbers of a chain's steps are within the pattern's limits."""
    for key, limits in pattern.numbers.items():
        operator, _, name = key.rpartition(".")
        steps = [step for step in chain if operator in {"", step.operator}]
        numbers = _find_numbers(steps, name)
        pairs = limits * len(numbers) if len(limits) == 1 else limits
        if not numbers or len(numbers) < len(pairs):
            return False
        for number, (low, high) in zip(numbers, pairs, strict=False):  # others have no limit
            if not low <= abs(number) <= high:
                return False
    return True


def _find_numbers(steps: Sequence[Step], name: str) -> tuple[float, ...]:
    """Return the numbers with this name of the first step that has them; empty if none has."""
    for step in steps:
        if name == "rank":
            return (float(len(step.shape)),)
        if step.numbers.get(name):
            return step.numbers[name]
    return ()


def relate(step: Step) -> set[str]:
    """Return how a step's constant operands relate to its result, as values of Relation."""
    relations = {"first" for operand in step.operands[:1] if operand.constant}
    rank = len(step.shape)
    for operand in step.operands:
        if not operand.constant:
            continue
        shape = (1,) * (rank - len(operand.shape)) + operand.shape  # as it is broadcast
        relations.add("any")
        if shape == step.shape:
            relations.add("whole")
        if all(size == 1 for size in shape):
            relations.add("scalar")
        elif rank and all(size == 1 for size in shape[:-1]):
            relations.add("over_rows")
        elif rank and shape[0] == 1 < step.shape[0]:
            relations.add("over_batch")
    return relations
