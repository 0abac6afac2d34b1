"""Which cases and options make sense for a backend: without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ci.cases.spec import DEFAULT_SOC, LPAI_SOC, CaseSpec
from ci.models.schemes import Lane, Scheme
from provisioning.errors import UsageError
from provisioning.manifest.backends import Backend, read_backends
from provisioning.manifest.socs import read_socs

# Choices that ask something of QNN itself.
OF_HTP = frozenset(
    {
        "online_prepare",
        "shared_buffer",
        "dump_intermediate_outputs",
        "profile_level",
        "saver",
        "methods",
        "weight_sharing",
    }
)


def choose_lane(
    lane: Lane, backend: Backend, judged: Iterable[Scheme], asked: Sequence[str]
) -> Lane:
    """The lane with the schemes that ``backend`` is ``judged`` in. Raises UsageError where a scheme
    or glob that is ``asked`` for matches none of these."""
    if backend is Backend.HTP:
        return lane
    schemes = tuple(scheme for scheme in lane.schemes if scheme in set(judged))
    for word in asked:
        known = any(fnmatchcase(scheme.value, word.lower()) for scheme in lane.schemes)
        if known and not any(fnmatchcase(scheme.value, word.lower()) for scheme in schemes):
            raise UsageError(
                f"--scheme {word} with --backend {backend.value}",
                why=f"the policy has limits for {', '.join(schemes)} on it, and no others",
                fix=f"take one of these, or add [backends.{backend.value}.{word}] to the policy",
            )
    return Lane(schemes, schemes)


def default_soc(backend: Backend) -> str:
    """The SoC of a case that names none."""
    return LPAI_SOC if backend.is_lpai else DEFAULT_SOC


def require_hardware(specs: Iterable[CaseSpec], backend: Backend) -> None:
    """Raises UsageError for a SoC without the backend's hardware."""
    socs = read_socs()
    without = [spec.soc for spec in specs if backend.is_lpai and socs[spec.soc].lpai is None]
    if without:
        able = ", ".join(sorted(name for name, soc in socs.items() if soc.lpai is not None))
        raise UsageError(f"{without[0]} has no LPAI block", fix=f"--soc with one of: {able}")


def require_choices(specs: Iterable[CaseSpec], backend: Backend) -> None:
    """Raises UsageError for a choice of a model's entry that was seen with HTP alone."""
    for spec in specs:
        own = [name for name, _ in spec.source.choices.chosen() if name in OF_HTP]
        if own and backend is not Backend.HTP:
            raise UsageError(
                f"models.{spec.model}.lowering has {', '.join(own)}: --backend {backend.value}"
                " takes none of that",
                why="it was seen with HTP alone",
                fix="leave the model out with --model, or name one without these",
            )


def require_options(backend: Backend, *, runner: str, plan: bool) -> None:
    """Raises UsageError for an option that goes with HTP alone."""
    if backend is Backend.HTP:
        return
    if plan:
        raise UsageError(
            f"--plan with --backend {backend.value}",
            why="a plan has cases for HTP",
            fix="name the cases with --model, --scheme and --soc",
        )
    device = read_backends()[backend].device
    if runner == "cpp" and device:
        raise UsageError(
            f"--runner cpp with --backend {backend.value}",
            why=f"it runs on this machine, and the program needs {device}",
            fix="leave --runner out, or name a program that runs the .pte there",
        )
