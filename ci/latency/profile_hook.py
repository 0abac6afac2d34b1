"""Reads what QNN's simulator predicts for a graph that ExecuTorch compiles.

ExecuTorch's adaptor and LiteRT's plugin give QNN a profile handle, but do not read it after
compiling a graph. So
the entry for graphFinalize in the interface table of libQnnHtp.so is replaced by a function that
calls the original and then reads the handle. The layouts are those of QnnInterface.h and
QnnProfile.h. This changes memory of the process: use it only in a fork, and only with the versions
in VERIFIED, for which tests compare the programs with and without it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    sizeof,
    string_at,
)
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ci.latency.simulation import SCHEMATIC, Event, Observed
from provisioning.documents import CONTENT_BYTES, read_text
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import FailedError

# Versions of QNN with which the hook is verified, by what compiles graphs
VERIFIED = {"executorch": (("1.5.1", "2.49.40"),), "ai-edge-litert": (("2.3.0", "2.51.0"),)}
TITLES = {"executorch": "ExecuTorch", "ai-edge-litert": "LiteRT"}
UNITS = {1: "US", 2: "BYTES", 3: "CYCLES", 4: "COUNT", 5: "OBJECT"}
OBJECT = 5
FUNCTIONS_OFFSET = 40  # of the functions in QnnInterface_t
FINALIZE, EVENTS, SUB_EVENTS, DATA, EXTENDED_DATA = 19, 30, 31, 32, 33
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

Ids = POINTER(c_uint64)
Finalize = CFUNCTYPE(c_uint64, c_void_p, c_void_p, c_void_p)
List = CFUNCTYPE(c_uint64, c_void_p, POINTER(Ids), POINTER(c_uint32))


class EventData(Structure):
    """QnnProfile_EventData_t."""

    _fields_ = (("type", c_uint32), ("unit", c_uint32), ("value", c_uint64), ("name", c_char_p))


class ExtendedData(Structure):
    """QnnProfile_ExtendedEventData_t with a backend's object."""

    _fields_ = (
        ("version", c_uint64),  # 32 bits, padded
        ("type", c_uint32),
        ("unit", c_uint32),
        ("object", c_void_p),
        ("object_bytes", c_uint64),
        ("file", c_char_p),
        ("timestamp", c_uint64),
        ("name", c_char_p),
    )


class SimulatorHook:
    """Collects events and traces of the graphs that this process compiles, after ``install``.
    ``package`` is what compiles them."""

    def __init__(self, library: Path, package: str = "executorch") -> None:
        self.library, self.package = library, package
        self.events: list[Event] = []
        self.traces: list[bytes] = []
        self.schematics: list[str] = []
        self.fault = ""

    def install(self) -> None:
        """Replace graphFinalize. Raises FailedError if the hook is not verified with the installed
        versions."""
        build = find_qnn_build(self.library)
        versions = (version(self.package), build.version if build else "unknown")
        if versions not in VERIFIED[self.package]:
            title = TITLES[self.package]
            verified = " and ".join(
                f"{title} {compiler} with QNN {qnn}" for compiler, qnn in VERIFIED[self.package]
            )
            raise FailedError(
                f"QNN's simulator was not read: this is verified with {verified}, not with"
                f" {title} {versions[0]} and QNN {versions[1]}"
            )
        table, number = c_void_p(), c_uint32()
        library = CDLL(str(self.library))
        if library.QnnInterface_getProviders(byref(table), byref(number)) or not number.value:
            raise FailedError(f"{self.library.name} has no interface")
        base = c_void_p.from_address(table.value or 0).value or 0
        functions = (c_size_t * (EXTENDED_DATA + 1)).from_address(base + FUNCTIONS_OFFSET)
        self.original = Finalize(functions[FINALIZE])
        self.list_events, self.list_below = List(functions[EVENTS]), List(functions[SUB_EVENTS])
        self.get_data = CFUNCTYPE(c_uint64, c_uint64, POINTER(EventData))(functions[DATA])
        extended = CFUNCTYPE(c_uint64, c_uint64, POINTER(ExtendedData))
        self.get_object = extended(functions[EXTENDED_DATA])
        self.replacement = Finalize(self.finalize)  # QNN calls it as long as this object lives
        address = base + FUNCTIONS_OFFSET + FINALIZE * sizeof(c_void_p)
        # mprotect takes whole pages.
        page = address & -mmap.PAGESIZE
        length = c_size_t(address + sizeof(c_void_p) - page)
        if CDLL(None, use_errno=True).mprotect(c_void_p(page), length, READ_WRITE):
            raise FailedError(f"{self.library.name} cannot be hooked: {ctypes.get_errno()}")
        c_void_p.from_address(address).value = cast(self.replacement, c_void_p).value

    def finalize(self, graph: Any, profile: Any, signal: Any) -> int:
        """Call QNN's graphFinalize, then read the profile. Return QNN's result, whatever happens
        while reading."""
        result: int = self.original(graph, profile, signal)
        try:
            if profile and not result:
                for event in self.walk(self.list_events, profile):
                    self.note(event)
                # QNN writes it to the working directory while it compiles.
                for path in Path().glob(SCHEMATIC):
                    self.schematics.append(read_text(path, "replace", CONTENT_BYTES))
                    path.unlink()
        except Exception as error:  # noqa: BLE001 - must not reach QNN, which called this
            self.fault = repr(error)
        return result

    def walk(self, listing: Any, parent: Any) -> Iterator[int]:
        """Yield the ids of the events below a profile or an event, each before those below it."""
        ids, number = Ids(), c_uint32()
        if listing(parent, byref(ids), byref(number)):
            return
        for place in range(number.value):
            yield ids[place]
            yield from self.walk(self.list_below, ids[place])

    def note(self, event: int) -> None:
        """Record an event, or the object that belongs to it."""
        data = EventData()
        if self.get_data(event, byref(data)):
            return
        if data.unit != OBJECT:
            unit = UNITS.get(data.unit, str(data.unit))
            name = (data.name or b"").decode("utf-8", "replace")
            self.events.append((unit, name, data.value))
            return
        extended = ExtendedData(version=1)
        if not self.get_object(event, byref(extended)) and extended.object:
            self.traces.append(string_at(extended.object, extended.object_bytes))

    def observe(self) -> Observed:
        """Return what was collected. Raises FailedError if reading failed."""
        if self.fault:
            raise FailedError("QNN's simulator could not be read", why=self.fault)
        return Observed(self.events, b"\0".join(self.traces), tuple(self.schematics))
