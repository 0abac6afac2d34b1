"""The directory of compiled programs."""

from __future__ import annotations

from pathlib import Path

from provisioning.store.home import store_home


def programs_home() -> Path:
    """Return the directory of compiled programs."""
    return store_home() / "lowered"


def has_programs() -> bool:
    """Return whether the directory of compiled programs contains any. Raises UnfitError if the
    store has no place."""
    return next(programs_home().glob("??/*"), None) is not None
