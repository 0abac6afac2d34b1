"""The report as one HTML file that needs nothing but itself.

Jinja escapes every value, and the page's own policy lets no other script or style run.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ci.report.columns import LIMITS, columns_of, name_models
from ci.report.failures import repeat_command
from ci.report.figures import make_figures, make_phase_figure
from ci.report.schema import Control, ControlKind, Report, Status
from ci.report.text import show_bytes, show_counts, show_decibels, show_seconds, show_work
from provisioning.console.terminal import clean

TEMPLATES = Path(__file__).resolve().parent / "templates"


def render_html(report: Report) -> str:
    """index.html: the verdict, what failed and why, figures, every case, toolchain and controls."""
    style, script = (
        (TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    cases = list(enumerate(report.cases))
    page = _environment().get_template("index.html.j2")
    return page.render(
        report=report,
        counts=show_counts(report.summary),
        cases=cases,
        columns=columns_of(report.cases),
        limits=LIMITS,
        again=partial(repeat_command, report),
        broken=[(i, case) for i, case in cases if case.status is Status.FAILED],
        unsupported=[(i, case) for i, case in cases if case.status is Status.UNSUPPORTED],
        allowed=[(i, c) for i, c in cases if c.fallback_ops and c.status is Status.PASSED],
        passed_controls=[control for control in report.controls if not control.rejected],
        control_rows=group_controls(report.controls),
        kinds=[count_controls(report.controls, kind) for kind in ControlKind],
        names=name_models(report.cases),
        several_socs=len({case.soc for case in report.cases}) > 1,
        figures=make_figures(report),
        phases=make_phase_figure(report),
        work=show_work(report),
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
    )


def group_controls(
    controls: tuple[Control, ...],
) -> dict[tuple[str, str, str], dict[ControlKind, Control]]:
    """Controls by (model, scheme, soc), then by kind."""
    rows: dict[tuple[str, str, str], dict[ControlKind, Control]] = {}
    for control in controls:
        place = (control.model, control.scheme, control.soc)
        rows.setdefault(place, {})[control.kind] = control
    return rows


@dataclass(frozen=True)
class KindCount:
    """The controls of a kind; ``closest`` is the highest SQNR among them, in dB."""

    kind: ControlKind
    total: int
    rejected: int
    closest: float | None


def count_controls(controls: tuple[Control, ...], kind: ControlKind) -> KindCount:
    """How the controls of ``kind`` fared, and how near the nearest came to passing."""
    own = [control for control in controls if control.kind is kind]
    ratios = [control.sqnr_db for control in own if control.sqnr_db is not None]
    rejected = sum(control.rejected for control in own)
    return KindCount(kind, len(own), rejected, max(ratios, default=None))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: clean(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ratio": show_decibels, "seconds": show_seconds, "bytes": show_bytes}
    return environment


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
