"""Single faults: an edit of bytes, a file taken away, another in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from provisioning.doctor.examine import examine_request
from provisioning.doctor.survey.environment import SurveyRequest
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.environments import LIBRARIES, World

Mutate = Callable[[World], object]
Ask = Callable[[SurveyRequest, World], SurveyRequest]

# How large the machine is, is not what these faults are about.
SIZES = {"QNN004", "QNN005", "QNN006", "QNN007", "QNN008"}


def as_it_is(request: SurveyRequest, world: World) -> SurveyRequest:
    return request


def nothing(world: World) -> None:
    pass


class Fault(NamedTuple):
    """A fault, the profile that is asked about, and the only check that may report it."""

    name: str
    profile: str
    check_id: str
    mutate: Mutate = nothing
    ask: Ask = as_it_is

    def __str__(self) -> str:
        return f"{self.check_id} {self.name}"


def check(fault: Fault, world: World) -> None:
    """Make the fault, examine, compare."""
    fault.mutate(world)
    request = staged(world) if fault.profile == "staging" else world.request(fault.profile)
    verdict = examine_request(fault.ask(request, world))
    findings = [finding for finding in verdict.findings if finding.id not in SIZES]
    assert {finding.id for finding in findings} == {fault.check_id}, list(map(str, findings))


def staged(world: World) -> SurveyRequest:
    """A question about the staging directory too."""
    request = world.request("linux")
    return replace(request, roots={**request.roots, "staging": world.staging})


def variables(**changed: str | None) -> Ask:
    """Variables set, or taken away with None; {base} and {sdk} are filled in."""

    def ask(request: SurveyRequest, world: World) -> SurveyRequest:
        values = dict(request.variables)
        for name, value in changed.items():
            if value is None:
                values.pop(name)
            else:
                values[name] = value.format(base=world.base, sdk=world.sdk)
        return replace(request, variables=values)

    return ask


def file_edit(name: str, edit: elf.Edit) -> Mutate:
    """One field of a file is another, and its checksum right."""

    def edit_and_reseal(data: bytearray) -> None:
        edit(data)
        elf.reseal(data)

    return damage(name, edit_and_reseal)


def damage(name: str, edit: elf.Edit) -> Mutate:
    """Bytes of a file are others, and nothing else."""
    return lambda world: world.edit(find(world, name), edit)


def content(name: str, data: bytes) -> Mutate:
    return lambda world: world.replace(find(world, name), data)


def cut(name: str, size: int) -> Mutate:
    def mutate(world: World) -> None:
        data = find(world, name).read_bytes()
        world.replace(find(world, name), data[:size])

    return mutate


def taken(name: str, source: str) -> Mutate:
    """Another real file in the place of ``name``."""
    return lambda world: world.replace(find(world, name), find(world, source).read_bytes())


def removed(name: str) -> Mutate:
    return lambda world: world.remove(find(world, name))


def moved(name: str, target: str) -> Mutate:
    def mutate(world: World) -> None:
        path = find(world, name)
        world.move(path, path.parent / target)

    return mutate


def find(world: World, name: str) -> Path:
    """A path below one of the roots: lib/... is the SDK's, others name their root."""
    roots = {
        "android": world.android,
        "ndk": world.ndk,
        "checkout": world.checkout,
        "site": world.site,
        "staging": world.staging,
        "libcxx": world.libcxx,
        "tools": world.tools,
        "elf": LIBRARIES,
    }
    head, _, inner = name.partition("/")
    pattern = roots[head] / inner if head in roots else world.sdk / name
    if "*" in pattern.name:
        return next(pattern.parent.glob(pattern.name))
    return pattern
