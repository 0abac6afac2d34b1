"""The kinds of findings, each with an id, a question, its meaning and what usually helps.

docs/reference/findings.md is made from this table. An id is never used again for another meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ci.facts.finding import (
    HEADLINE_CHARS,
    LEADS,
    NO_ADVICE,
    Advice,
    Figure,
    Finding,
    Place,
    Question,
    describe_error,
    shorten,
)
from provisioning.errors import QnnCiError, describe_exception

_KINDS: dict[str, Kind] = {}
# The question of the kinds whose ids start with these characters.
QUESTIONS = {
    "QNN2401": Question.USABLE,
    "QNN20": Question.FAITHFUL,
    "QNN21": Question.QUANTIZED,
    "QNN22": Question.TASK,
    "QNN23": Question.BUDGET,
    "QNN24": Question.LOWERED,
    "QNN25": Question.RUN,
    "QNN26": Question.ENVIRONMENT,
    "QNN27": Question.PROOF,
    "QNN29": Question.OURS,
}


@dataclass(frozen=True)
class Kind:
    """A kind of finding. ``meaning`` says what it states, ``help`` what to do about it, and
    ``example`` is such a headline."""

    id: str
    question: Question
    meaning: str
    help: str
    example: str
    lead: str | None = None  # the first words of the headline, if not those of the question

    def find(
        self,
        text: str,
        *,
        subject: str = "",
        figures: Iterable[Figure] = (),
        details: Iterable[str] = (),
        evidence: str = "",
        advice: Advice = NO_ADVICE,
        places: Iterable[Place] = (),
    ) -> Finding:
        """Return a finding of this kind. The headline is ``text`` after the words of the question
        and the subject. If it is too long, it is cut, and the whole text becomes evidence."""
        lead = LEADS.get(self.question, "") if self.lead is None else self.lead
        whole = f"{lead}{f'{subject}: ' if subject else ''}{text}"
        headline = shorten(whole, HEADLINE_CHARS)
        kept = [text] if headline != whole and text not in evidence else []
        return Finding(
            id=self.id,
            question=self.question,
            headline=headline,
            subject=subject,
            figures=tuple(figures),
            details=tuple(details),
            evidence="\n".join([*kept, *([evidence] if evidence else [])]),
            places=tuple(places),
        ).explained(advice)

    def from_error(self, error: QnnCiError, *, evidence: str = "") -> Finding:
        """Return a finding that states an error of this project, with its reason and its fix."""
        return self.find(error.what, evidence=evidence, advice=describe_error(error))


def _add_kind(name: str, meaning: str, remedy: str, example: str, lead: str | None = None) -> Kind:
    """Return the kind with the id ``name``. Its question follows from its id."""
    if name in _KINDS:
        raise ValueError(f"{name} is used twice")
    question = next(one for start, one in QUESTIONS.items() if name.startswith(start))
    _KINDS[name] = kind = Kind(name, question, meaning, remedy, example, lead)
    return kind


def read_kinds() -> tuple[Kind, ...]:
    """Return all kinds, in the order of their ids."""
    return tuple(_KINDS[name] for name in sorted(_KINDS))


NOISE = _add_kind(
    "QNN2001",
    "The program's error is above the predicted rounding noise, in the whole output or in a part.",
    "read `seen`, `where` and `known fault` below the headline; `localise` finds the operator",
    "not faithful: the error is 47.6 dB above the predicted noise in axis 2, channel 13 of 64",
)
ELEMENTS = _add_kind(
    "QNN2002",
    "Noise explains the error of the output as a whole, but not that of single elements.",
    "give the model a metric: if the program keeps it, such an error is only a note",
    "not faithful: the error is 3.1 dB above the predicted noise in element [3, 0] of sample 2",
)
NOT_FINITE = _add_kind(
    "QNN2003",
    "An element of an output is NaN or infinite.",
    "look for values above 65504 in fp16, divisions by zero, and logarithms of zero",
    "not faithful: an element is NaN or infinite",
)
OFF_GRID = _add_kind(
    "QNN2004",
    "An output has values that its quantization cannot represent.",
    "compare the scale and zero point that the runner uses with those of the program",
    "not faithful: 12.50% of the elements have values that the output cannot have",
)
UNEQUAL = _add_kind(
    "QNN2005",
    "Too few elements of an output of integers or booleans equal those of the model.",
    "return the values behind the indices as well, to see how close the decisions are",
    "not faithful: 71.00% of the elements equal those of the quantized model, 99.50% required",
)
FAR = _add_kind(
    "QNN2006",
    "The SQNR or the cosine against the quantized model is below the policy's limit.",
    "`localise` finds the operator; the limit is in the policy",
    "not faithful: SQNR 18.2 dB in the worst sample, 30 dB required",
)
TOKENS = _add_kind(
    "QNN2007",
    "The program of a language model has other tokens, logits, keys or values than its model.",
    "read `where`, which names the first wrong layer, and compare with `--scheme fp16`",
    "not faithful: free: step 4: token 43 instead of 35, 2.31 below its logit (0.42 allowed)",
)
LOST = _add_kind(
    "QNN2101",
    "Rounding leaves so little of the output that the program cannot be judged by it.",
    "choose a scheme with more bits, or calibrate with inputs like the judged ones:"
    " docs/guides/precision.md",
    "not quantized well: the error is 14.0 dB above the predicted noise in the whole output",
)
CLIPPED = _add_kind(
    "QNN2102",
    "The judged inputs leave the calibrated ranges, so the quantized model clips values.",
    "calibrate with inputs like the judged ones",
    "not quantized well: the error is 11.2 dB above the predicted noise in row 1 of 4",
)
QUANTIZED_BADLY = _add_kind(
    "QNN2103",
    "The quantized model is further from the float32 model than the policy allows.",
    "calibrate with inputs like the judged ones, or give more bits to the layers that lose most:"
    " docs/guides/precision.md",
    "not quantized well: the quantized model has 14.2 dB of SQNR, 20 dB required",
)
PART = _add_kind(
    "QNN2104",
    "A part of a concatenated output is quantized too coarsely, because all parts share a step.",
    "return the parts as separate outputs",
    "not quantized well: SQNR 9.1 dB in part 0:4 along axis 1, 20 dB required",
)
FEW = _add_kind(
    "QNN2105",
    "Quantization changes too many of the indices, classes or booleans of an output.",
    "calibrate with inputs like the judged ones, or give more bits to the layers that lose most:"
    " docs/guides/precision.md",
    "not quantized well: 91.20% of the elements equal those of the float32 model, 99.00% required",
)
METRIC_LOST = _add_kind(
    "QNN2106",
    "The user's metric fails for the quantized model, but not for the float32 model.",
    "calibrate with inputs like the judged ones, or give more bits to the layers that lose most:"
    " docs/guides/precision.md",
    "not quantized well: top1 is 0.42 for the quantized model, 0.91 for float32",
)
METRIC_DROP = _add_kind(
    "QNN2201",
    "The user's metric is worse for the program than the policy allows.",
    "read the other findings first: a program that is not faithful explains it",
    "not good for the task: top1 is 0.42 for the program, 0.91 for float32",
)
METRIC_MODEL = _add_kind(
    "QNN2202",
    "The float32 model itself does not reach the metric that the policy asks for.",
    "check the metric, and that it gets the inputs, labels and order of outputs it expects",
    "not good for the task: top1 is 0.5, 0.9 required",
)
METRIC_BLIND = _add_kind(
    "QNN2203",
    "The user's metric also accepts the outputs of other inputs, so it proves nothing.",
    "use labels and inputs that vary, or a smaller max_drop",
    "not good for the task: top1 also returns 0.9 for the outputs of other inputs",
)
METRIC_ERROR = _add_kind(
    "QNN2204",
    "The code of the user's metric failed.",
    "correct the metric; its output is in the log",
    "not good for the task: metric: ValueError: labels and outputs differ in length",
    lead="not good for the task: metric: ",
)
OVER_BUDGET = _add_kind(
    "QNN2301",
    "A size, a time or a count of operators is over the policy's budget, or cannot be checked.",
    "the finding names the limit and what makes the figure smaller",
    "over its budget: program_bytes is 1,000,000 bytes, 800,000 allowed",
)
ON_CPU = _add_kind(
    "QNN2302",
    "Nodes stay on the CPU, although the policy requires that all run on the NPU.",
    "write these operators differently, or set full_delegation = false",
    "QNN does not take rank 6: view, permute in zoo.py:40",
    lead="",
)
INVALID = _add_kind(
    "QNN2401",
    "The model, its data or its policy entry cannot be used.",
    "the finding states the error and what to change",
    "net.py: AttributeError: 'NoneType' object has no attribute 'shape'",
)
NOT_LOWERED = _add_kind(
    "QNN2402",
    "ExecuTorch, ONNX Runtime or QNN refused the model.",
    "`audit` lists the operators that QNN does not take",
    "refused: aten.lstm.input is not quantized: ExecuTorch has no rule for it",
)
NO_NODE = _add_kind(
    "QNN2403",
    "QNN accepted no node of the model.",
    "`audit` lists the operators that QNN does not take",
    "refused: QNN accepted no node: aten.cdist.default",
)
DIED = _add_kind(
    "QNN2404",
    "The process that lowered the model died, was too slow, or used too much memory.",
    "see the end of its log; `--timeout` and the policy's memory_bytes are the limits",
    "lowering: did not end within 300 s",
    lead="",
)
NO_OUTPUTS = _add_kind(
    "QNN2501",
    "The program returned no outputs, or outputs of another shape.",
    "see the end of the log; `explain` names causes of many messages",
    "run: was killed by SIGSEGV",
)
RUNNER = _add_kind(
    "QNN2502",
    "The program ran, but its runner reports a fault, such as a profile without the NPU.",
    "the finding states what the runner reported",
    "run: QNN executed nothing, according to the session's profile",
)
LACKING = _add_kind(
    "QNN2601",
    "This machine lacks a library, a device or time on its CPU that the case needs.",
    "`doctor` examines the environment",
    "lowered; the program cannot run here: it needs an Adreno",
)
INCONCLUSIVE = _add_kind(
    "QNN2701",
    "The gate accepts wrong outputs of a kind for this case, so that it proves nothing.",
    "use inputs whose outputs differ more, or a scheme with less noise",
    "the gate accepts noise: this case proves nothing",
)
CHANGED = _add_kind(
    "QNN2702",
    "A figure differs from the one that an earlier run with this toolchain recorded.",
    "find the cause, or record the new figures with `--record`",
    "SQNR 32.1 dB, 40.2 dB recorded for this toolchain",
)
UNEXPECTED = _add_kind(
    "QNN2703",
    "The case passed, but the policy expects that it is refused.",
    "remove or narrow the row of [[unsupported]]",
    "the case passed, but the policy expects it to be unsupported",
)
CONTRADICTED = _add_kind(
    "QNN2704",
    "The kept outputs do not have the figures that the run reported.",
    "run the case again; do not trust the report",
    "sqnr_db is 40.0 in the report, 3.2 for the kept outputs",
)
UNRECORDED = _add_kind(
    "QNN2705",
    "A test or a known fault did not end as this project's tables say.",
    "find the cause, or change the row of the table",
    "passed by theirs, failed by ours: upstream compares no outputs",
)
RETYPED = _add_kind(
    "QNN2707",
    "A layer has fewer bits in the program than a mixture, recipe or annotation requested.",
    "the finding lists the layers; request the type for their neighbours, too, or drop the request",
    "softmax was requested in 16 bit, but its result is 8 bit",
)
EARLIER = _add_kind(
    "QNN2706",
    "A report that an earlier version of executorch-qnn-ci wrote states this reason as text only.",
    "run the case again with this version",
    "not faithful: SQNR 18.6 dB against the float32 model",
)
BUG = _add_kind(
    "QNN2901",
    "executorch-qnn-ci itself failed, so the case says nothing about the model.",
    "report the bug with the log",
    "this is a bug in executorch-qnn-ci: KeyError: 'scale'",
)


def find_bug(error: BaseException, evidence: str = "") -> Finding:
    """Return the finding that this project failed with an unexpected exception."""
    told = f"this is a bug in executorch-qnn-ci: {describe_exception(error)}"
    return BUG.find(told, evidence=evidence)
