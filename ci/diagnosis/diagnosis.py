"""The procedure that finds the cause of a red verdict: the smallest part of the model that is wrong
by itself, the suspects in it, and one experiment for each, until one makes the part right."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ci.diagnosis.experiments import (
    NO_PART,
    TIME_IS_UP,
    UNCHANGED,
    WHOLE,
    Answer,
    Change,
    ExamineCured,
    Experiment,
    FindSmallest,
    KeepPart,
    ListOperators,
    ListRemedies,
    Operator,
    RemedyChoice,
    Result,
    RunPart,
    Second,
    Smallest,
)
from ci.facts.known_fault import KnownFault
from ci.judging.causes import LEAST_GAIN_DB

MOST_PARTS = 6  # programs to find the smallest part
MOST_OF_PART = 8  # remedies that are tried on a part
MOST_OF_WHOLE = 3  # and on the whole model, whose programs cost more
MOST_PARTNERS = 2  # that gained nothing, with one that helps but does not suffice
MOST_OPERATORS = 3  # kinds of them in a part, each of which gets more bits, or is decomposed
SMALL = 12  # operators of a model that needs no smaller part
NOT_AGAIN = "a second time, its process did not die like this: chance may have ended it"
KEPT_SHARE = 0.5  # of the dB below the prediction: what a part must keep, and a cause explain


@dataclass(frozen=True)
class Suspicion:
    """What is known of a red case before the experiments. ``whole_result`` is the case's own
    result. ``first`` is the name of the first wrong layer's node, with its operator and its
    line, or empty. ``faults`` are the known faults that may be the cause, the likeliest first.
    ``count`` is the number of operators of the model, ``finer`` the scheme with more bits for
    activations, and ``wider`` a float scheme; either is empty if there is none. ``searches`` is
    whether the smallest part may be searched with many programs, as localise does. ``exceeded`` is
    whether a limit of time or memory ended the case, which may end its parts, too. ``worst`` is the
    first layer with most of the error, if that is another one than the first wrong layer."""

    whole_result: Result
    first: tuple[str, str, str] = ("", "", "")
    worst: tuple[str, str, str] = ("", "", "")
    faults: tuple[str, ...] = ()
    count: int = 0
    divides: bool = True  # whether parts can show the error, and not only the whole model
    finer: str = ""
    wider: str = ""
    in_float16: bool = False  # whether numbers may be beyond the range of the type
    searches: bool = False
    repeats: bool = False  # whether chance may have ended the process, so that it is run again
    exceeded: bool = False


@dataclass(frozen=True)
class Tried:
    """A remedy that was tried on the part, or ``on_whole`` model, and its result."""

    remedies: tuple[RemedyChoice, ...]
    result: Result
    on_whole: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """What the experiments showed. ``part`` are the operators of the smallest part that is wrong by
    itself, empty for the whole model, and ``before`` its result. ``cure`` are the remedies that
    make it better, and ``after`` the result with them: right, or the best that was found.
    ``on_whole`` are the results of the whole model without and with the cure of a part, or None if
    that was not tried. ``is_fused`` is whether the part is right if it returns the results inside
    of it, ``finer`` the scheme with more bits in which it is right, or empty, ``single`` the
    operator that needs these bits, if one suffices, ``form`` the other form of the part with which
    it is right, and ``change`` the change of its quantizers with which it is. ``examined`` are the
    forms and schemes of the part that were run, with their results. ``second`` is what is wrong
    with the cured model, if something is and was examined. ``ended`` is why the experiments stopped
    early, or empty, and ``untried`` are the remedies that were left then."""

    before: Result
    part: tuple[Operator, ...] = ()
    cure: tuple[RemedyChoice, ...] = ()
    after: Result = field(default_factory=Result)
    on_whole: tuple[Result, Result] | None = None
    is_fused: bool = False
    finer: str = ""
    single: str = ""
    form: RunPart | None = None
    change: Change | None = None
    second: Second | None = None
    tried: tuple[Tried, ...] = ()
    examined: tuple[tuple[RunPart, Result], ...] = ()
    reproducer: str = ""
    ended: str = ""
    untried: tuple[RemedyChoice, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Return whether an experiment showed the cause."""
        has_cure = bool(self.cure) and not self.is_only_of_part
        is_shown = bool(self.finer or self.form or self.change)
        return has_cure or is_shown or self.is_fused

    @property
    def names_cause(self) -> bool:
        """Return whether what was shown says what is wrong, and not only that more bits help, which
        they do whatever is wrong with fewer."""
        return self.is_proven and not (self.finer and not self.cure)

    @property
    def cures_whole(self) -> bool:
        """Return whether the whole model gains by the cure, as far as that was tried."""
        if self.on_whole is None:
            return True
        before, after = self.on_whole
        return gains(after, before)

    @property
    def leaves_wrong(self) -> bool:
        """Return whether the outputs of the whole model are rejected with the cure, too."""
        cured = self.on_whole[1] if self.on_whole else self.after
        has_outputs = cured.reached_db is not None
        is_shown = bool(self.on_whole) or self.before.is_refused
        is_rejected = cured.is_wrong or not (cured.is_right or cured.cpu_nodes)
        return bool(self.cure and is_shown and self.cures_whole and has_outputs and is_rejected)

    @property
    def spoilt(self) -> tuple[RemedyChoice, ...]:
        """Return the first remedies with which no node is on the CPU and the outputs are wrong."""
        if not self.before.cpu_nodes or self.is_proven:
            return ()
        for trial in self.tried:
            is_taken = not (trial.result.failure or trial.result.cpu_nodes)
            if is_taken and trial.result.is_wrong:
                return trial.remedies
        return ()

    @property
    def is_only_of_part(self) -> bool:
        """Return whether the cure makes a part right whose error the whole model does not have: its
        outputs are as wrong with it. A product that is wrong if it is returned may be right if a
        sigmoid reads it. Of a model that is refused, the cure may remove the first of several
        reasons."""
        if self.on_whole is None or self.cures_whole:
            return False
        before, after = self.on_whole
        # A node of the part is one of the model's: there would be one less.
        has_outputs = before.reached_db is not None or bool(before.cpu_nodes)
        return has_outputs and not after.failure

    def choose_shown(self, faults: Sequence[KnownFault]) -> list[KnownFault]:
        """Return the known faults that the cure cures at one of the places that it changed."""
        cured = [fault for fault in faults if self._list_cures_of(fault.fault)]
        touched = [
            fault
            for fault in cured
            for remedy in self._list_cures_of(fault.fault)
            if not fault.marks.isdisjoint(remedy.places)
        ]
        if not touched:  # a lane may name nodes otherwise than the file that it rewrites
            return cured
        marks: dict[str, set[str]] = {}
        for fault in touched:
            marks.setdefault(fault.fault, set()).update(fault.marks)
        shown = {
            name for name, names_of_places in marks.items() if self._shows(name, names_of_places)
        }
        return [fault for fault in dict.fromkeys(touched) if fault.fault in shown]

    def _list_cures_of(self, fault: str) -> list[RemedyChoice]:
        """Return the remedies of the cure that are known to cure a fault."""
        return [remedy for remedy in self.cure if fault in remedy.cures]

    def _shows(self, fault: str, marks: Collection[str]) -> bool:
        """Return whether the experiments show that a known fault is the cause at the places with
        these marks. A remedy that also changed others may have cured something else: it has, if
        another remedy of the fault changed these places and gained nothing."""
        changed = {
            place for remedy in self._list_cures_of(fault) for place in self._list_changed(remedy)
        }
        if changed.isdisjoint(marks):  # in the part, it changed only other places
            return False
        in_vain = {
            place
            for trial in self.tried
            if not trial.result.failure and not gains(trial.result, self.before)
            for remedy in trial.remedies
            if fault in remedy.cures and remedy not in self.cure  # which may need another one
            for place in self._list_changed(remedy)
        }
        return changed <= {*marks} or in_vain.isdisjoint(marks)

    def _list_changed(self, remedy: RemedyChoice) -> set[str]:
        """Return the places that a remedy changed in what the experiments were made with."""
        inside = {place for operator in self.part for place in operator.places}
        # Without a name of the part, the names are those of another graph.
        return inside.intersection(remedy.places) or {*remedy.places}

    def excludes(self, fault: str) -> bool:
        """Return whether a known fault is not the cause: something else is, or its remedies were
        tried and gained nothing."""
        is_cured = any(fault in remedy.cures for remedy in self.cure)
        if self.names_cause:
            return not is_cured
        if self.is_only_of_part and is_cured:
            return True
        # Of a model that is refused, a remedy with which it is refused again has gained nothing.
        is_refused = self.before.reached_db is None
        gained = [
            gains(trial.result, self.before)
            for trial in self.tried
            if any(fault in remedy.cures for remedy in trial.remedies)
            and (not trial.result.failure or (is_refused and trial.result.is_refused))
        ]
        return bool(gained) and not any(gained)


Part = tuple[Operator, ...]
Steps = Generator[Experiment, Answer, Diagnosis]


def diagnose(suspicion: Suspicion) -> Steps:
    """Ask for experiments, and return what they showed."""
    remedies = cast("list[RemedyChoice] | Result | None", (yield ListRemedies()))
    if remedies is None or isinstance(remedies, Result):
        ended = remedies.failure if remedies else TIME_IS_UP
        unchanged = Diagnosis(suspicion.whole_result, ended=ended)
        return (yield from keep_unknown(unchanged, suspicion))
    # Otherwise, whatever is changed would seem to cure what chance did once.
    if suspicion.repeats:
        repeated_result = cast(Result, (yield RunPart(WHOLE)))
        if not repeated_result.is_refused:
            ended = TIME_IS_UP if repeated_result.failure == TIME_IS_UP else NOT_AGAIN
            return Diagnosis(suspicion.whole_result, ended=ended)
    diagnosis = yield from find_cause(suspicion, remedies)
    if suspicion.searches and not diagnosis.ended:
        names = tuple(operator.name for operator in diagnosis.part)
        smallest = cast("Smallest | None", (yield FindSmallest(names)))
        if smallest is not None:
            diagnosis = yield from narrow(diagnosis, smallest, remedies, suspicion)
    diagnosis = yield from try_on_whole(diagnosis, suspicion)
    if any(suspicion.worst) and not (diagnosis.is_proven or diagnosis.ended):
        diagnosis = yield from try_worst(diagnosis, suspicion, remedies)
    diagnosis = yield from examine_last(diagnosis, suspicion)
    cure = diagnosis.cure if diagnosis.leaves_wrong else diagnosis.spoilt
    if cure and not diagnosis.ended:
        # The first reason of a refusal, or of nodes on the CPU, hides another one.
        second = yield ExamineCured(tuple(remedy.name for remedy in cure))
        diagnosis = replace(diagnosis, second=cast("Second | None", second))
    return (yield from keep_unknown(diagnosis, suspicion))


def try_worst(
    diagnosis: Diagnosis, suspicion: Suspicion, remedies: Sequence[RemedyChoice]
) -> Steps:
    """Repeat the experiments at the layer with most of the error, if they showed nothing at the
    first wrong one. A softplus with 37.7 dB came before a product with -23.5 dB, which made the
    outputs wrong."""
    at_worst = replace(suspicion, first=suspicion.worst)
    second = yield from find_cause(at_worst, remedies)
    second = yield from try_on_whole(second, at_worst)
    if second.is_proven:
        return second
    return replace(diagnosis, ended=second.ended, untried=second.untried)


def keep_unknown(diagnosis: Diagnosis, suspicion: Suspicion) -> Steps:
    """Keep the part of an unknown cause as a reproducer, or the whole model if it is small. A part
    whose error the whole model does not have shows nothing of that cause."""
    part: Part = () if diagnosis.is_only_of_part else diagnosis.part
    is_small = suspicion.count <= SMALL
    if diagnosis.is_proven or not (part or is_small):
        return diagnosis
    names = tuple(operator.name for operator in part) or WHOLE
    return replace(diagnosis, reproducer=cast(str, (yield KeepPart(names))) or "")


def try_on_whole(diagnosis: Diagnosis, suspicion: Suspicion) -> Steps:
    """Try the cure of a part on the whole model, which may have another fault, too."""
    if not diagnosis.cure or not diagnosis.part or diagnosis.ended:
        return diagnosis
    names = tuple(remedy.name for remedy in diagnosis.cure)
    result = cast(Result, (yield RunPart(WHOLE, names)))
    if result.failure == TIME_IS_UP:
        return diagnosis
    return replace(diagnosis, on_whole=(suspicion.whole_result, result))


def find_cause(suspicion: Suspicion, remedies: Sequence[RemedyChoice]) -> Steps:
    """Find a part that is wrong by itself, and what makes it right, with few programs."""
    is_small = suspicion.count <= SMALL
    part: Part = ()
    before = suspicion.whole_result
    # Of a model that is refused, the whole one is tried first: what the compiler takes proves most.
    whole_first = is_small or suspicion.whole_result.is_refused
    if not whole_first:
        part, before = yield from find_part(suspicion)
    ordered = order_remedies(remedies, suspicion, part)
    limit = MOST_OF_PART if part or is_small else MOST_OF_WHOLE
    diagnosis = yield from try_remedies(part, before, ordered, limit)
    if diagnosis.cure or diagnosis.ended:
        return diagnosis
    if whole_first:
        part, before = yield from find_part(suspicion)
        diagnosis = replace(diagnosis, part=part, before=before)
    if not part:
        return diagnosis
    if not is_small and whole_first:  # more of them may be tried than on the whole model
        of_whole = {remedy for trial in diagnosis.tried for remedy in trial.remedies}
        left = [remedy for remedy in ordered if remedy not in of_whole]
        inner_order = order_remedies(left, suspicion, part)
        inner = yield from try_remedies(part, before, inner_order, limit)
        diagnosis = replace(inner, tried=(*diagnosis.tried, *inner.tried))
        if diagnosis.cure or diagnosis.ended:
            return diagnosis
    diagnosis = yield from try_others(diagnosis, remedies, suspicion)
    if diagnosis.cure or diagnosis.ended:
        return diagnosis
    if before.cpu_nodes and not whole_first:
        diagnosis = yield from try_unfit(diagnosis, suspicion)
        if diagnosis.cure or diagnosis.ended:
            return diagnosis
    return (yield from examine(diagnosis, suspicion.finer))


def try_unfit(diagnosis: Diagnosis, suspicion: Suspicion) -> Steps:
    """Try on the whole model what failed on its part, or changed nothing there. A rewrite of views
    of six axes changes them together, and a part that ends within them has nothing that it changes;
    one of windows wrote them as images, which QNN took only with what read them. Outputs of a part
    may be wrong that are accurate enough within the model, which has its own limits."""
    unfit: list[RemedyChoice] = []
    for trial in diagnosis.tried:
        left_nodes = trial.result.cpu_nodes >= diagnosis.before.cpu_nodes
        is_unfit = trial.result.failure or left_nodes or trial.result.is_wrong
        if len(trial.remedies) == 1 and is_unfit:
            unfit += trial.remedies
    if not unfit:
        return diagnosis
    whole = yield from try_remedies((), suspicion.whole_result, unfit, MOST_OF_WHOLE)
    of_whole = {trial.remedies for trial in whole.tried}
    of_part = (trial for trial in diagnosis.tried if trial.remedies not in of_whole)
    return replace(whole if whole.cure else diagnosis, tried=(*of_part, *whole.tried))


def try_others(
    diagnosis: Diagnosis, remedies: Sequence[RemedyChoice], suspicion: Suspicion
) -> Steps:
    """Try the remedies that keep the function of the part, and are none of the whole model: this
    may amplify what is only rounded differently beyond what a remedy may change. The logarithm of
    1 - p for p near 1 did."""
    part, names = diagnosis.part, {remedy.name for remedy in remedies}
    of_part = cast(
        "list[RemedyChoice] | None",
        (yield ListRemedies(tuple(operator.name for operator in part))),
    )
    part_remedies = [remedy for remedy in of_part or () if remedy.name not in names]
    if not part_remedies:
        return diagnosis
    ordered = order_remedies(part_remedies, suspicion, part)
    inner = yield from try_remedies(part, diagnosis.before, ordered, MOST_OF_PART)
    return replace(inner, tried=(*diagnosis.tried, *inner.tried))


def find_part(suspicion: Suspicion) -> Generator[Experiment, Answer, tuple[Part, Result]]:
    """Return the smallest part around the first wrong layer that is wrong by itself, with its
    result. It is empty, which is the whole model, if none was found in MOST_PARTS programs. If no
    layer is known to be wrong, a small model is searched from its last operator on."""
    no_part: tuple[Part, Result] = ((), suspicion.whole_result)
    is_small = suspicion.count <= SMALL
    if not suspicion.divides or not (any(suspicion.first) or is_small):
        return no_part
    operators = {
        operator.name: operator
        for operator in cast("list[Operator] | None", (yield ListOperators())) or []
    }
    first = find_first(suspicion.first, [*operators.values()])
    if first is None and is_small:
        first = next(reversed(operators.values()), None)
    if first is None:
        return no_part
    wanted_db = KEPT_SHARE * excess(suspicion.whole_result)
    parts = list_parts(operators, first)
    if not is_small:  # of a small model, the whole is a part, too
        parts = [part for part in parts if len(part) < len(operators)]
    for count, part in enumerate(parts, 1):
        result = cast(Result, (yield RunPart(tuple(operator.name for operator in part))))
        is_wrong = not result.failure and not result.is_right
        if suspicion.whole_result.is_refused:
            is_wrong = result.is_refused
        if is_wrong and (result.is_refused or result.cpu_nodes or excess(result) >= wanted_db):
            return part, result
        if count == MOST_PARTS or result.failure == TIME_IS_UP:
            break
    return no_part


def find_first(first: tuple[str, str, str], operators: Sequence[Operator]) -> Operator | None:
    """Return the operator that is the first wrong layer: the only one of its line and kind, or else
    that with its node, which another graph may have under another name. If only the line is known,
    the first one there."""
    node, kind, line = first
    on_line = [operator for operator in operators if line and operator.line == line]
    alike = [operator for operator in on_line if operator.kind == kind]
    named = [operator for operator in operators if node and node in {operator.node, operator.name}]
    if line:
        named = [operator for operator in named if operator.line == line]
    if not named and not (kind and node):  # only the line is known, and perhaps the operator
        named = alike or on_line
    return next(iter(alike if len(alike) == 1 else named), None)


def list_parts(operators: dict[str, Operator], first: Operator) -> list[Part]:
    """Return parts around an operator, the smallest first: with what it reads, what reads it, and
    then with more of both."""
    readers: dict[str, list[str]] = {}
    for operator in operators.values():
        for name in operator.inputs:
            readers.setdefault(name, []).append(operator.name)

    def widen(names: set[str], neighbours: Callable[[str], Sequence[str]]) -> set[str]:
        return names | {near for name in names for near in neighbours(name) if near in operators}

    def before(names: set[str]) -> set[str]:
        return widen(names, lambda name: operators[name].inputs)

    def behind(names: set[str]) -> set[str]:
        return widen(names, lambda name: readers.get(name, []))

    parts: dict[Part, None] = {}
    inner = before({first.name})
    for names in (
        inner,
        behind(inner),
        before(inner),
        behind(before(inner)),
        before(before(behind(inner))),
        behind(before(before(before(inner)))),
    ):
        part = tuple(operator for name, operator in operators.items() if name in names)
        parts[part] = None
    return [*parts]


def order_remedies(
    remedies: Sequence[RemedyChoice], suspicion: Suspicion, part: Part
) -> list[RemedyChoice]:
    """Return the remedies in the order in which they are tried: those of known faults first, then
    those that change the first wrong layer or the part, then those that are known to cure such
    findings. Of a part, only those that change one of its places are left, if there are any."""
    first_places = {suspicion.first[0], suspicion.first[2]} - {""}
    part_places = {place for operator in part for place in operator.places}
    inner = [remedy for remedy in remedies if not part_places.isdisjoint(remedy.places)]
    remedies = inner or remedies

    def rank(remedy: RemedyChoice) -> tuple[int, bool, bool]:
        places = [
            suspicion.faults.index(fault) for fault in remedy.cures if fault in suspicion.faults
        ]
        is_near = not first_places.isdisjoint(remedy.places)
        known_place = min(places, default=len(suspicion.faults))
        return known_place, not is_near, not remedy.is_for_finding

    return sorted(remedies, key=rank)


def try_remedies(part: Part, before: Result, remedies: Sequence[RemedyChoice], limit: int) -> Steps:
    """Try remedies on a part, one by one, see try_singly. If none makes it right, try the best one
    together with others, see list_partners."""
    names = tuple(operator.name for operator in part) or WHOLE
    tried, untried = yield from try_singly(part, before, remedies, limit)
    ended = TIME_IS_UP if untried else ""
    helpful = [(trial.result, trial.remedies[0]) for trial in tried if gains(trial.result, before)]
    if helpful and helpful[-1][0].is_right:
        result, remedy = helpful[-1]
        return Diagnosis(before, part, (remedy,), result, tried=tuple(tried))
    helpful.sort(key=lambda pair: (pair[0].cpu_nodes, -(pair[0].reached_db or 0.0)))
    cure: tuple[RemedyChoice, ...] = tuple(remedy for _, remedy in helpful[:1])
    after = helpful[0][0] if helpful else before
    for partner in list_partners(tried, helpful) if not ended else ():
        pair = (helpful[0][1], partner)
        result = cast(Result, (yield RunPart(names, tuple(remedy.name for remedy in pair))))
        if result.failure == TIME_IS_UP:
            break
        tried.append(Tried(pair, result, on_whole=not part))
        if gains(result, after):
            cure, after = pair, result
        if after.is_right:
            break
    # What explains less than half of the error is not its cause.
    if not after.is_right and excess(after) > (1 - KEPT_SHARE) * excess(before):
        cure, after = (), Result()
    return Diagnosis(
        before,
        part,
        cure,
        after,
        tried=tuple(tried),
        ended=ended,
        untried=untried,
    )


def try_singly(
    part: Part, before: Result, remedies: Sequence[RemedyChoice], limit: int
) -> Generator[Experiment, Answer, tuple[list[Tried], tuple[RemedyChoice, ...]]]:
    """Try remedies on a part, one by one, until one makes it right or ``limit`` programs were
    compiled; one that changes nothing there needs none. Return what was tried, and what was left
    when the time was up."""
    names = tuple(operator.name for operator in part) or WHOLE
    tried: list[Tried] = []
    for number, remedy in enumerate(remedies):
        left = limit - sum(trial.result.failure != UNCHANGED for trial in tried)
        if not left:
            break
        result = cast(Result, (yield RunPart(names, (remedy.name,))))
        if result.failure == TIME_IS_UP:
            return tried, tuple(remedies[number : number + left])
        tried.append(Tried((remedy,), result, on_whole=not part))
        if result.is_right and gains(result, before):
            break
    return tried, ()


def list_partners(
    tried: Sequence[Tried], helpful: Sequence[tuple[Result, RemedyChoice]]
) -> list[RemedyChoice]:
    """Return the remedies that are tried together with the best of the ``helpful`` ones: the second
    best, or else some that gained nothing. Of a group norm before SiLU in 16 bits, another form of
    SiLU alone has 13 dB, another form of the norm alone gains nothing, and both have 48 dB."""
    if not helpful:
        return []
    best, *other_helpful = (remedy for _, remedy in helpful)
    in_vain = [
        trial.remedies[0]
        for trial in tried
        if trial.remedies[0] != best and not trial.result.failure
    ]
    return other_helpful[:1] or in_vain[:MOST_PARTNERS]


def examine(diagnosis: Diagnosis, finer: str) -> Steps:
    """Find out whether a part that no remedy makes right is right if it returns the results inside
    of it, or with more bits."""
    names = tuple(operator.name for operator in diagnosis.part)
    before = diagnosis.before
    experiments = []
    if len(names) > 1 and not (before.cpu_nodes or before.is_refused):
        experiments.append(RunPart(names, returns_all=True))
    if finer:
        experiments.append(RunPart(names, scheme=finer))
    return (yield from try_forms(diagnosis, experiments))


def try_forms(diagnosis: Diagnosis, experiments: Sequence[RunPart]) -> Steps:
    """Find the first form of a part, or scheme, with which it is right."""
    for experiment in experiments:
        result = cast(Result, (yield experiment))
        if result.failure == TIME_IS_UP:
            return replace(diagnosis, ended=TIME_IS_UP)
        if result.failure != NO_PART:
            diagnosis = replace(diagnosis, examined=(*diagnosis.examined, (experiment, result)))
        if result.is_right and gains(result, diagnosis.before):
            has_form = experiment.doubled or experiment.decomposed or experiment.shrunk
            return replace(
                diagnosis,
                after=result,
                is_fused=experiment.returns_all,
                finer=experiment.scheme,
                single=experiment.operator,
                form=experiment if has_form else None,
            )
    return diagnosis


def examine_last(diagnosis: Diagnosis, suspicion: Suspicion) -> Steps:
    """Find out more of a part than that it is wrong: whether it is right with smaller numbers, with
    inputs of another size, with an operator as its definition, or in float. One that is right with
    more bits is examined, too, since these help whatever is wrong; if nothing else does, whether
    one operator needs them: more is proven of one."""
    names = tuple(operator.name for operator in diagnosis.part)
    kinds = [*dict.fromkeys(operator.kind for operator in diagnosis.part)][:MOST_OPERATORS]
    if not names or diagnosis.ended or diagnosis.is_only_of_part:
        return diagnosis
    scheme, before = diagnosis.finer, diagnosis.before
    # That QNN takes them only with more bits says all of operators that are refused.
    is_untaken = bool(before.is_refused or before.cpu_nodes)
    if not (diagnosis.names_cause or (scheme and is_untaken)):
        has_wider = suspicion.wider and not scheme
        experiments = [RunPart(names, shrunk=True)] if suspicion.in_float16 else []
        experiments.append(RunPart(names, doubled=True))
        experiments += [RunPart(names, decomposed=kind) for kind in kinds]
        experiments += [RunPart(names, scheme=suspicion.wider)] if has_wider else []
        diagnosis = yield from try_forms(diagnosis, experiments)
        if scheme:  # of a cause that is shown, nothing was left out
            diagnosis = replace(diagnosis, ended="")
    scheme = diagnosis.finer
    if scheme and len(kinds) > 1:
        singles = [RunPart(names, scheme=scheme, operator=kind) for kind in kinds]
        shown = yield from try_forms(diagnosis, singles)
        return replace(shown, ended="", finer=scheme)
    return diagnosis


def narrow(
    diagnosis: Diagnosis,
    smallest: Smallest,
    remedies: Sequence[RemedyChoice],
    suspicion: Suspicion,
) -> Steps:
    """Repeat the experiments on the smallest part: its cause is that of fewer operators. Without a
    cure, what makes it right with the quantizers of the whole model is the cause."""
    part, tried = smallest.part, diagnosis.tried
    if part and {*part} != {*diagnosis.part}:
        names = tuple(operator.name for operator in part)
        before = cast(Result, (yield RunPart(names)))
        if before.is_refused or not (before.failure or before.is_right):
            # What cures the larger part may cure this one; that only this one is cured is news.
            ordered = order_remedies(diagnosis.cure or remedies, suspicion, part)
            narrowed = yield from try_remedies(part, before, ordered, len(ordered))
            # A remedy that was tried on both is one that was tried: on the part that is named.
            by_names = {trial.remedies: trial for trial in (*tried, *narrowed.tried)}
            tried = tuple(by_names.values())
            if not (narrowed.cure or narrowed.ended or diagnosis.is_proven):
                narrowed = yield from examine(narrowed, suspicion.finer)
            if narrowed.is_proven:
                return narrowed
    if diagnosis.is_proven:
        return diagnosis
    shown = replace(diagnosis, before=smallest.result, part=part or diagnosis.part, tried=tried)
    if smallest.change:
        return replace(shown, after=smallest.change.result, change=smallest.change)
    if smallest.returning:
        return replace(shown, after=smallest.returning, is_fused=True)
    return shown


def gains(result: Result, before: Result) -> bool:
    """Return whether a result is better than another one: by its SQNR, because a verdict may be
    green without any gain. Outputs are better than none, and so are fewer nodes on the CPU, unless
    the outputs become wrong."""
    if before.cpu_nodes:
        is_fewer = not result.failure and result.cpu_nodes < before.cpu_nodes
        return is_fewer and not (result.is_wrong and (not before.is_wrong or loses(result, before)))
    if result.failure or result.reached_db is None:
        return False
    return before.reached_db is None or result.reached_db >= before.reached_db + LEAST_GAIN_DB


def loses(result: Result, before: Result) -> bool:
    """Return whether a result has a lower SQNR than another one."""
    if result.reached_db is None or before.reached_db is None:
        return False
    return result.reached_db <= before.reached_db - LEAST_GAIN_DB


def excess(result: Result) -> float:
    """Return by how many dB a result is below its prediction; 0 if either is unknown."""
    if result.reached_db is None or result.predicted_db is None:
        return 0.0
    return max(result.predicted_db - result.reached_db, 0.0)


def advance(steps: Steps, answer: Answer) -> tuple[Experiment | None, Diagnosis | None]:
    """Answer a diagnosis's question. Return the next one, or the diagnosis if it has ended."""
    try:
        return steps.send(answer), None
    except StopIteration as stopped:
        return None, cast(Diagnosis, stopped.value)
