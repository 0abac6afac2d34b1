"""The ExecuTorch engine: quantizes models, lowers them to QNN programs, and runs the programs."""

from __future__ import annotations

from collections.abc import Sequence

# What the processes that lower and run programs have imported before they start.
IMPORTS = ("ci.executorch.runtime", "ci.models.model")
# Not spelled out: every verb imports this package, but few need the compiler (see ci.gate).
COMPILER = f"{__name__}.patches"
BYTECODE = f"{__name__}.bytecode"  # first, because it works beside the others


def choose_imports(*, use_cache: bool, plain: bool) -> Sequence[str]:
    """Return what processes import before they start. If no program can be in the cache, this
    includes the compiler: each worker that loads it by itself takes seconds of CPU time. The
    patches, which ``plain`` rules out, are applied then."""
    from ci.cases.programs import has_programs

    if plain or (use_cache and has_programs()):
        return IMPORTS
    return (BYTECODE, *IMPORTS, COMPILER)
