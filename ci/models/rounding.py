"""The errors that QNN makes when it rounds. ci.analysis.noise inserts them.

Operators that QNN computes more coarsely than rounding have a term in manifests/rounding, a file
per version of QNN that `./nox -s bench -- operators` measures. All other constants were determined
by comparison with programs on the HTP emulator of QNN 2.49.40; docs/findings/gate.md has a table of
predictions and measurements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from provisioning.documents import read_bytes
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.manifest.reader import manifests_root, read_toml
from provisioning.versions import parse_version

RUNS = 8
MAX_BYTES = 128 << 20  # of all outputs in all runs; a model with large outputs gets fewer runs
MIN_RUNS = 2
# The share of elements that a quantizer after arithmetic may round to the next step.
# With these, in the first measurements, the SQNR of programs lay -3.5 to +5.3 dB from the
# prediction in 8a8w (20 outputs), and -3.6 to +8.4 dB in 16a8w (19 outputs).
MOVED = {8: 0.1, 16: 1.0}
# Layers with 4-bit or 16-bit weights: a relative error per channel, plus an error in steps of the
# output. With 4-bit weights, the latter is the same for all elements of a channel; with 16-bit
# weights, it varies.
WEIGHT_GAIN, WEIGHT_STEPS = 2**-9, 6
# ONNX Runtime's schemes: in a layer with unsigned weights and 16-bit activations, and in a product
# of two 16-bit activations, this share of the elements is wrong by up to this many steps, as if the
# carry from the lower byte were lost.
CARRY_SHARE, CARRY_STEPS = 2**-6, 1.5 * 2**8
# An 8-bit output that QNN computes with weights from several products of two computed tensors: each
# multiple of four steps is one step larger in the program, a quarter of a step on average. 0.24 to
# 0.27 was measured in 9 outputs of onnxruntime-qnn with QNN 2.49.40, and 0.00 to 0.06 in programs
# with a single product (batch 1), or with any operator between the products.
PRODUCT_BIAS, VARIES = 0.25, 0.01
# The largest level of the second operand of a product of two activations of 16 bits, which
# ExecuTorch stores as int16. HTP splits it into two signed bytes, high * 256 + low, so that 32640
# to 32767 become 127 * 256 + 127. Measured with QNN 2.49.40 in 16a8w, x @ relu(x).T: with it, the
# quantized model has 81 and 79 dB against two programs, and without it 56 and 62.
MOST_SPLIT = 127 * 2**8 + 127
# HTP also approximates recurrent layers. CELL is the absolute error of their float16 results. Gates
# multiply the cell state of an LSTM, which is the result STATE, so its error grows with it.
CELLS, CELL, STATE = frozenset({"lstm", "gru", "rnn"}), 2**-8, 2
# In 18 of 23 outputs, the SQNR of programs lay -7 to +4.5 dB from the prediction. The others end in
# a softmax or a sigmoid, which have terms for that reason.
RELATIVE = 2**-11  # of each operator's result in float16
FLOAT16_MAX = 65504.0
# For ties, this share of the RMS of an operand is added to its elements or subtracted: 0.1 is an
# SQNR of 20 dB, 0.01 is 40 dB. The keys are the bits of an activation.
# These are about two steps of an 8-bit tensor, and ten times the error of right outputs with more
# bits.
TIE_SHARES = {8: 0.1, 11: 0.01, 16: 0.01}
TIE_RUNS = 16
FLOAT16 = "float16"
# What directly precedes an operator that HTP fuses with it in float16: a layer, or the sum of two
# tensors. A tall sum has at least LEAST_TALL rows; only a sigmoid is fused with it.
LAYER, ADD, TALL, LEAST_TALL = "layer", "add", "tall add", 8


class Term(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The error of an operator, as measured in ``graphs`` graphs.

    ``numbers`` are the type of its results: FLOAT16, or the bits of an activation. ``after`` is
    what precedes it, if that matters. ``front_end`` is that whose graphs have this error, or ""
    for all. ``steps`` is the RMS of an error in steps of the output (in float16, of an absolute
    error). ``bias`` is the mean of one that all elements share, in the same unit, and ``varies``
    its standard deviation over the graphs. ``relative`` is the RMS of an error
    relative to each element, and ``row`` of one that all elements along the last axis share. The
    error of a single graph was from ``least_db`` to ``most_db`` above that of the term.
    """

    operator: str
    numbers: str
    after: str = ""
    front_end: str = ""
    steps: float = 0.0
    bias: float = 0.0
    varies: float = 0.0
    relative: float = 0.0
    row: float = 0.0
    graphs: int = 0
    least_db: float = 0.0
    most_db: float = 0.0


class TermFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a file in manifests/rounding."""

    term: tuple[Term, ...] = ()


Terms = Mapping[tuple[str, str, str], Term]  # by operator, numbers and what precedes it
NO_TERM = Term(operator="", numbers="")
UNIFORM = 3**0.5  # the largest value of a uniform distribution with an RMS of 1


def take_term(terms: Terms, operator: str, numbers: str, after: str = "") -> Term:
    """Return the term of an operator. If there is none for what precedes it, return the one for
    the operator alone, or else a term without an error."""
    term = terms.get((operator, numbers, after)) or terms.get((operator, numbers, ""))
    return term or NO_TERM


def find_version(library: Path) -> str:
    """Return the version of a libQnnHtp.so, such as 2.49.40; empty if it is unknown."""
    build = find_qnn_build(library) if library.is_file() else None
    return (build and build.version) or ""


def list_files() -> list[Path]:
    """Return the files in manifests/rounding, from the oldest version of QNN to the newest."""
    files = (manifests_root() / "rounding").glob("*.toml")
    return sorted(files, key=lambda path: parse_version(path.stem))


def read_terms(version: str = "", front_end: str = "") -> Terms:
    """Return the terms of a version of QNN for the graphs of a front end: those of all front ends,
    replaced by its own. If the version was not measured, they are those of the newest older one, or
    else of the oldest."""
    terms: dict[tuple[str, str, str], Term] = {}
    for name in dict.fromkeys(("", front_end)):
        for term in _read_nearest(version, name):
            terms[term.operator, term.numbers, term.after] = term
    return terms


def _read_nearest(version: str, front_end: str) -> list[Term]:
    """Return the terms of a front end, or those of all if it is "", for a version of QNN."""
    nearest: list[Term] = []
    for file in list_files():
        is_newer = version and parse_version(file.stem) > parse_version(version)
        if nearest and is_newer:
            break
        terms = read_toml(f"rounding/{file.name}", TermFile).term
        nearest = [term for term in terms if term.front_end == front_end] or nearest
    return nearest


def digest_terms() -> str:
    """Return the SHA-256 of all files in manifests/rounding."""
    return hashlib.sha256(b"".join(map(read_bytes, list_files()))).hexdigest()


def count_runs(sizes: Iterable[int]) -> int:
    """Return the number of disturbed runs for outputs with these numbers of elements."""
    return max(MIN_RUNS, min(RUNS, MAX_BYTES // max(4 * sum(sizes), 1)))


POOR_DB = 45.0  # a float16 program with a lower prediction may fail the gate


def is_poor(errors: Iterable[Any], outputs: Sequence[Sequence[Any]]) -> bool:
    """Return whether an output's predicted SQNR is below POOR_DB. ``errors`` are the predicted
    errors of each output, [run, sample, *shape] or empty, and ``outputs`` the right outputs per
    sample."""
    for index, error in enumerate(map(np.asarray, errors)):
        if error.size:
            right = np.stack([np.asarray(sample[index]) for sample in outputs]).astype(np.float64)
            noise = float(np.mean(np.square(np.nan_to_num(error, nan=0.0, posinf=0.0, neginf=0.0))))
            if noise * 10 ** (POOR_DB / 10) > float(np.mean(np.square(right))):
                return True
    return False
