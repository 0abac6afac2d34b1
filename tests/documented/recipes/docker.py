"""docs/docker.md, without an engine: tests/integration/images runs the same verbs with one."""

from __future__ import annotations

from tests.documented.recipe import Recipe
from tests.documented.stage import Stage


def have_no_engine(stage: Stage) -> None:
    stage.variables["DOCKER_HOST"] = f"unix://{stage.folder}/no.sock"


ABSENT = {
    "setup": (have_no_engine,),
    "code": 3,
    "says": ("no Docker engine answers", r"fix: .*start docker"),
}
IMAGE = {**ABSENT, "fill": {"IMAGE": "debian:bookworm"}}

RECIPES = {
    "nox -s docker_build -- emulator": Recipe(**ABSENT),
    "nox -s docker_build -- emulator --base IMAGE": Recipe(**IMAGE),
    "nox -s docker_build -- emulator --push REF": Recipe(**ABSENT),
    "nox -s docker_shell": Recipe(**ABSENT),
    "nox -s docker_shell -- emulator ./nox -s test_emulator -- --model mlp": Recipe(**ABSENT),
    "nox -s qnn_ci -- image digest emulator": Recipe(**ABSENT),
    "nox -s qnn_ci -- image digest emulator --check": Recipe(**ABSENT),
    "nox -s qnn_ci -- image list": Recipe(**ABSENT),
    "nox -s qnn_ci -- image lock emulator --base IMAGE": Recipe(**IMAGE),
    "nox -s qnn_ci -- image lock emulator --base IMAGE --write": Recipe(**IMAGE),
    "nox -s qnn_ci -- image prune": Recipe(**ABSENT),
    "nox -s qnn_ci -- image prune --dry-run": Recipe(**ABSENT),
}
