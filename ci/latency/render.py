"""Shows estimates as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from ci.report.schema import CaseName, Estimate, PredictedTime, Simulation
from ci.report.text import show_bytes

NOTE = (
    "The times are from a fit to AI Hub's measurements of other models, made with other converters"
    " and QNN 2.50. Nothing was measured on a device."
)


def render_estimate(case: CaseName, estimate: Estimate) -> Iterator[str]:
    """Yield the lines of one case."""
    yield str(case)
    if estimate.unknown:
        yield f"  cannot tell the time: {estimate.unknown}"
    width = max((len(one.device) for one in estimate.times), default=0)
    for one in estimate.times:
        yield f"  {one.device:{width}}  {show_time(one)}{name_neighbours(one)}"
    if estimate.simulation:
        yield from render_simulation(estimate.simulation)


def show_time(time: PredictedTime) -> str:
    """Return text such as ``1.05 ms (0.91 to 1.3)``."""
    return f"{time.ms:.3g} ms ({time.low_ms:.3g} to {time.high_ms:.3g})"


def name_neighbours(time: PredictedTime) -> str:
    """Return the nearest measured models, such as ``, between resnet18 1.0 and regnet 1.2``."""
    below, above = (one and f"{one.model} {one.ms:.3g}" for one in (time.below, time.above))
    if below and above:
        return f", between {below} and {above}"
    return f", above {below}" if below else f", below {above}" if above else ""


def render_simulation(one: Simulation) -> Iterator[str]:
    """Yield the lines of a simulation: cycles, traffic, and the most expensive operators."""
    yield (
        f"  {one.cycles:,} cycles ({one.lower_cycles:,} to {one.upper_cycles:,}), simulated for"
        f" {one.soc} at {one.clock_mhz:g} MHz"
    )
    yield (
        f"  {show_bytes(one.read_bytes)} in, {show_bytes(one.write_bytes)} out,"
        f" {show_bytes(one.spill_bytes)} spilled, {show_bytes(one.fill_bytes)} filled again"
    )
    if not one.costs:
        return
    busy = one.hmx_cycles + one.hvx_cycles + one.dma_cycles
    yield "  the most expensive operators, in % of the busy time of the NPU's units:"
    names = [cost.operator or "(several)" for cost in one.costs]
    width = max(map(len, names))
    for cost, name in zip(one.costs, names, strict=True):
        place = f"  [{cost.place}]" if cost.place else ""
        yield f"    {100 * cost.cycles / busy:5.1f}  {name:{width}}  {cost.name}{place}"
