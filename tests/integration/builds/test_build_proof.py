"""An overlay of the installed wheel lowers a model, and a broken one is told from a good one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("executorch", reason="the executorch wheel is not installed here")

from ci.builds.deliver import find_package, make_overlay, run_proof
from ci.builds.plan import Place
from ci.builds.targets import find_target
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from provisioning.errors import FailedError

pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def variables() -> Mapping[str, str]:
    return provision_profile("emulator", Progress()).variables


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """What a build of aot leaves, with the wheel's own adaptor for the one that was built."""
    build_place = Place(tmp_path / "build")
    build_place.artifacts.mkdir(parents=True)
    schema = build_place.tree / "executorch/schema"
    schema.mkdir(parents=True)
    package = find_package(Path(sys.executable))
    for adaptor in (package / "backends/qualcomm/python").glob("PyQnnManagerAdaptor*.so"):
        (build_place.artifacts / adaptor.name).write_bytes(adaptor.read_bytes())
    for name in ("program.fbs", "scalar_type.fbs"):
        (schema / name).write_bytes((package / "exir/_serialize" / name).read_bytes())
    return build_place


def lay_over(place: Place) -> Path:
    overlay = place.root / "overlay"
    make_overlay(find_target("aot"), place, find_package(Path(sys.executable)), overlay)
    return overlay


@pytest.mark.nightly
def test_a_model_is_lowered_with_the_adaptor_of_the_overlay(
    place: Place, variables: Mapping[str, str]
) -> None:
    package = find_package(Path(sys.executable))
    before = sorted((package / "backends/qualcomm/python").iterdir())
    overlay = lay_over(place)
    proof = run_proof(overlay, Path(sys.executable), variables)
    assert proof.adaptor.startswith(str(overlay))
    assert proof.program_bytes > 10_000
    assert sorted((package / "backends/qualcomm/python").iterdir()) == before


def test_an_adaptor_that_does_not_load_fails_the_proof(
    place: Place, variables: Mapping[str, str]
) -> None:
    for adaptor in place.artifacts.iterdir():
        adaptor.write_bytes(b"not an ELF file")
    overlay = lay_over(place)
    with pytest.raises(FailedError, match="could not prove") as caught:
        run_proof(overlay, Path(sys.executable), variables)
    assert "ImportError" in caught.value.why
    assert "Traceback" not in caught.value.why


def test_an_overlay_without_its_own_adaptor_fails_the_proof(
    place: Place, variables: Mapping[str, str]
) -> None:
    for adaptor in place.artifacts.iterdir():
        adaptor.unlink()
    overlay = lay_over(place)
    with pytest.raises(FailedError, match="could not prove"):
        run_proof(overlay, Path(sys.executable), variables)
