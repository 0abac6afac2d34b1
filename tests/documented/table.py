"""Every documented command's recipe."""

from __future__ import annotations

from collections.abc import Mapping

from tests.documented.recipe import Recipe
from tests.documented.recipes import (
    builds,
    checks,
    choices,
    ci,
    docker,
    emulator,
    gate,
    main,
    onnx,
    parity,
    provisioning,
    reports,
    signing,
    your_repository,
)

PAGES = (
    main,
    onnx,
    builds,
    checks,
    choices,
    ci,
    docker,
    emulator,
    gate,
    parity,
    provisioning,
    reports,
    signing,
    your_repository,
)

# What can be run nowhere here, and why.
NOT_RUN = {
    "gh attestation verify": "it asks GitHub for an attestation that only a signing job makes",
}


def read_recipes() -> Mapping[str, Recipe]:
    """By the command's text. Raises AssertionError for a command with two recipes."""
    recipes: dict[str, Recipe] = {}
    for page in PAGES:
        assert not recipes.keys() & page.RECIPES.keys()
        recipes |= page.RECIPES
    return recipes
