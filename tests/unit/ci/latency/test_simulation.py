"""What QNN's simulator reports is read as a whole, and anything that contradicts itself is refused.

The events and traces have the form that QNN 2.49.40 writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.facts.finding import Origin
from ci.latency.profile_hook import SimulatorHook
from ci.latency.simulation import (
    Event,
    Observed,
    convert_trace,
    read_simulation,
)
from ci.report.schema import OperatorCost, Simulation
from provisioning.errors import FailedError

CYCLES = "Simulated (Accelerator exec cycles"
MISSING = "Missing Ops (Number of Ops with no Costs associated)"
SCHEMATIC = """graph_before_optimization = { # :::BEGIN:graph_before_optimization:::
\t0x0000000000000011: {
\t\t'operation':'q::QNN_Conv2d',
\t},
\t0x0000000000000015: {
\t\t'operation':'q::QNN_Relu',
\t},
# :::END:graph_before_optimization:::
\t0x0000000000000099: {
\t\t'operation':'q::QNN_Later',
qnn_name_translations = {
0x0000000000000011: 'node_conv_token_7',
0x0000000000000015: 'node_relu',
}
"""


def make_events(**changed_values: int) -> list[Event]:
    values = {
        "cycles": 3000,
        "lower": 2500,
        "upper": 3600,
        "read": 800,
        "missing": 0,
    } | changed_values
    return [
        ("US", "QNN (finalize) time", 123400),
        ("US", "Performance Estimates", 0),
        ("CYCLES", f"{CYCLES})", values["cycles"]),
        ("CYCLES", f"{CYCLES} (lower estimate))", values["lower"]),
        ("CYCLES", f"{CYCLES} (upper estimate))", values["upper"]),
        ("BYTES", "Input Fill", values["read"]),
        ("BYTES", "Intermediate Fill", 200),
        ("BYTES", "Intermediate Spill", 200),
        ("BYTES", "Output Spill", 64),
        ("US", MISSING, values["missing"]),
    ]


def make_trace(soc: str = "QCS9100", **ids: Any) -> bytes:
    def run(name: str, start: int, length: int, flag: str, moved: int) -> dict[str, Any]:
        args = {"id": hex(0x2A << 32 | ids.get(name, 0x11)), "flags": [flag], "dmabytes": moved}
        return {"name": name, "ph": "X", "tid": 1, "ts": start, "dur": length, "args": args}

    trace = {
        "traceEvents": [
            {"name": "TCM usage", "ph": "C", "ts": 0, "args": {"Bytes": 1}},
            run("dma", 0, 600, "for_dma", 800),
            run("conv", 600, 1200, "uses_hmx", 100),
            run("relu", 1800, 1200, "for_hvx", 500),
            run("spawn", 3000, 0, "scalar", 0),
        ],
        "DMA/L2 Access Statistics": {"total_num_dma_read_bytes": 1000},
        "Hextimate Configuration": {"soc_type": soc, "sim_core_freq": 1500.0},
    }
    return b"\x10\0\0" + json.dumps(trace).replace('{"name"', '\n{"name"').encode() + b"\0\x07tail"


WHOLE = Observed(make_events(), make_trace(relu=0x15), (SCHEMATIC,))


def test_a_simulation_is_read_with_the_operators_that_cost_most() -> None:
    assert read_simulation(
        WHOLE, "QCS9100", 1, {"node_conv": Origin(file="net.py", line=4)}
    ) == Simulation(
        soc="QCS9100",
        graphs=1,
        clock_mhz=1500.0,
        cycles=3000,
        lower_cycles=2500,
        upper_cycles=3600,
        read_bytes=800,
        fill_bytes=200,
        spill_bytes=200,
        write_bytes=64,
        missing_ops=0,
        hmx_cycles=1200,
        hvx_cycles=1200,
        dma_cycles=600,
        costs=(
            OperatorCost(cycles=1800, operator="Conv2d", name="node_conv", place="net.py:4"),
            OperatorCost(cycles=1200, operator="Relu", name="node_relu"),
        ),
    )


FAULTS: dict[str, tuple[Callable[[], Observed], str]] = {
    "cycles in thousands": (
        lambda: Observed(make_events(cycles=3, lower=2, upper=4), make_trace()),
        "its trace ends after 3,000",
    ),
    "bytes in thousands": (
        lambda: Observed(
            [(u, n, v // 1000 if u == "BYTES" else v) for u, n, v in make_events()], make_trace()
        ),
        "its trace reads 1,000",
    ),
    "another unit": (
        lambda: Observed([("US", n, v) for _, n, v in make_events()], make_trace()),
        "in US, not in CYCLES",
    ),
    "another SoC": (lambda: Observed(make_events(), make_trace("SA8797")), "simulated SA8797"),
    "lower and upper exchanged": (
        lambda: Observed(make_events(lower=3600, upper=2500), make_trace()),
        "outside of its range",
    ),
    "no cycles": (lambda: Observed(make_events(cycles=0, lower=0), make_trace()), "outside of"),
    "no Missing Ops": (
        lambda: Observed([event for event in make_events() if event[1] != MISSING], make_trace()),
        "0 times for 1 graphs",
    ),
    "one graph of two": (lambda: Observed(make_events() * 2, make_trace()), "2 times for 1 graphs"),
    "no events": (lambda: Observed([], make_trace()), "0 times"),
    "no trace": (lambda: Observed(make_events(), b""), "0 traces for 1 graphs"),
    "half a trace": (lambda: Observed(make_events(), make_trace()[:300]), "not valid JSON"),
    "another format": (
        lambda: Observed(make_events(), make_trace().replace(b"soc_type", b"soc_kind")),
        "another format",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_figures_that_contradict_each_other_are_refused(name: str) -> None:
    make, text = FAULTS[name]
    with pytest.raises(FailedError, match=text):
        read_simulation(make(), "QCS9100", 1)


def test_a_trace_for_perfetto_has_microseconds_and_a_process_per_graph() -> None:
    events = convert_trace(make_trace() * 2)["traceEvents"]
    assert [
        (event["pid"], event["ts"], event["dur"]) for event in events if event["name"] == "relu"
    ] == [
        (0, 1.2, 0.8),
        (1, 1.2, 0.8),
    ]


def test_the_simulator_hook_is_refused_for_unverified_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.latency.profile_hook.version", lambda _: "1.6.0")
    library = tmp_path / "libQnnHtp.so"
    library.write_bytes(b"\0v2.60.0.270101000000\0")
    message = "verified with ExecuTorch 1.5.1 with QNN 2.49.40, not with ExecuTorch 1.6.0"
    with pytest.raises(FailedError, match=message):
        SimulatorHook(library).install()
