"""Reads manifests/latency: public measurements of models on devices, and the lines from simulated
to measured times.

``python -m tests.bench latency`` writes these files. The measurements are those of AI Hub, of their
programs on their devices, and were not made with this project.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from ci.models.schemes import AnyScheme, Scheme
from provisioning.documents import DocumentError, decoding, read_json, read_text
from provisioning.errors import ManifestError
from provisioning.manifest.reader import manifests_root

FOLDER = "latency"
IMPLAUSIBLE = 0.1  # the largest share of cycles with a wrong cost
MOST_ERROR = 0.3  # a line with a larger median error predicts nothing
DEVICES, FIGURES, LINES = "devices.csv", "figures.csv", "lines.json"
# The published precision for each scheme. The others have no measurements of enough models.
PRECISIONS: Mapping[AnyScheme | str, str] = {
    Scheme.FP16: "float",
    **dict.fromkeys((Scheme.A8W8, Scheme.A8W8_TRAINED, Scheme.U8, Scheme.U8_CHANNEL), "w8a8"),
    **dict.fromkeys(
        (Scheme.A16W8, Scheme.A16W8_TRAINED, Scheme.U16A8W, Scheme.U16A8W_CHANNEL), "w8a16"
    ),
}
T = TypeVar("T", bound=Struct)

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    """A device with published times. ``soc`` is its SoC in socs.toml, or "" if it is not there, and
    ``soc_id`` is QNN's number for it."""

    device: str
    soc: str
    soc_id: int
    hexagon: int


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """A published time of a model on the NPU of a device. ``job`` identifies the measurement. The
    memory is the peak of the process that ran the program."""

    model: str
    precision: str
    device: str
    runtime: str
    ms: Positive
    memory_low_mb: Count
    memory_high_mb: Count
    npu_layers: Count
    layers: Count
    job: str


class Line(Struct, frozen=True, kw_only=True):
    """A line for a device and a precision: ms = ``base_ms`` + ``factor`` * simulated ms on ``soc``
    + ``hmx_factor`` * simulated ms in which HMX is busy.

    ``low`` and ``high`` are factors of the predicted time: 80 % of the models that were predicted
    from other families' models only were between them. ``median_error`` and ``worst_error`` are
    their relative errors, and ``order`` the share of pairs in the right order of those that differ
    by 20 %. ``least_ms`` and ``most_ms`` are the smallest and the largest simulated time of the
    fitted models. ``models`` were fitted, and ``jobs`` are their measurements.
    """

    device: str
    precision: str
    soc: str
    base_ms: Annotated[float, Meta(ge=0)]
    factor: Positive
    hmx_factor: Annotated[float, Meta(ge=0)] = 0.0
    low: Positive
    high: Positive
    median_error: float
    worst_error: float
    order: float
    least_ms: Positive
    most_ms: Positive
    models: tuple[str, ...]
    jobs: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Return whether the line predicts left-out models well enough."""
        return self.median_error <= MOST_ERROR

    def predict(self, simulated_ms: float, hmx_ms: float) -> float:
        """Return the predicted time in ms."""
        return self.base_ms + self.factor * simulated_ms + self.hmx_factor * hmx_ms


class Lines(Struct, frozen=True, kw_only=True):
    """The contents of lines.json."""

    source: str
    qnn: str
    lines: tuple[Line, ...]


def read_rows(name: str, kind: type[T], folder: Path | None = None) -> tuple[T, ...]:
    """Return the rows of a CSV file in manifests/latency, or in ``folder``. Raises ManifestError
    if the file is missing or invalid."""
    path = (folder or manifests_root() / FOLDER) / name
    try:
        with decoding():
            rows = csv.DictReader(read_text(path).splitlines())
            return tuple(msgspec.convert(row, kind, strict=False) for row in rows)
    except (DocumentError, csv.Error) as error:
        raise ManifestError(f"{path} is not usable", why=str(error)) from error


@functools.cache
def read_devices() -> tuple[Device, ...]:
    """Return the devices with published times."""
    return read_rows(DEVICES, Device)


@functools.cache
def read_lines() -> tuple[Line, ...]:
    """Return the fitted lines. Raises ManifestError."""
    return parse_lines(manifests_root() / FOLDER / LINES)


def parse_lines(path: Path) -> tuple[Line, ...]:
    """Return the lines of a file. Raises ManifestError if it is missing or invalid."""
    try:
        return read_json(path, Lines).lines
    except DocumentError as error:
        raise ManifestError(f"{path} is not usable", why=str(error)) from error
