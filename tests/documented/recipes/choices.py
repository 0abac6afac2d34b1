"""docs/choices.md: the set of choices, of which the tests of the pages run one."""

from __future__ import annotations

from tests.documented.recipe import Recipe
from tests.documented.setups import shrink_choices, use_our_store

RECIPES = {
    "nox -s test_emulator -- --policy manifests/policies/choices.toml": Recipe(
        setup=(use_our_store, shrink_choices),
        says=("1 passed", "mlp-shared-buffer +8a8w"),
        with_models=True,
    ),
}
