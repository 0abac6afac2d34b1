"""One fault in the interpreter, in a variable, in a root."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioning.doctor.examine import examine_request
from provisioning.doctor.survey.environment import SurveyRequest
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.environments import (
    ANDROID,
    BUILD,
    HOST,
    LIBRARIES,
    LINUX,
    LPAI,
    TAG,
    VERSION,
    World,
    adaptor_path,
    install,
)
from tests.stand_ins.faults import SIZES, Ask, Fault, check, content, nothing


def reinstall(world: World, name: str, version: str) -> None:
    world.remove(world.site / f"{name}-0.dist-info")
    install(world.site, name, version)


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


def shadow(world: World) -> None:
    world.add(world.base / "other" / "libQnnHtp.so", (LIBRARIES / "libx86.so").read_bytes())


BUILT_ADAPTOR = f"backends/qualcomm/python/PyQnnManagerAdaptor{TAG}"


def age(world: World) -> None:
    """All of an older SDK, for profile lpai."""
    world.replace(world.android / "sdk.yaml", b"version: 2.37.0.250724\n")
    for path in [*(world.android / ANDROID).iterdir(), *(world.android / LPAI).iterdir()]:
        world.edit(path, elf.set_build(BUILD, "v2.37.0.250724175447"))
        world.edit(path, elf.reseal)


def drop_v81(world: World) -> None:
    world.remove(world.sdk / LINUX / "libQnnHtpV81Stub.so")
    world.remove(world.sdk / "lib" / "hexagon-v81")


def renamed(request: SurveyRequest, world: World) -> SurveyRequest:
    target = world.checkout.with_name("et")
    world.move(world.checkout, target)
    return replace(request, roots={**request.roots, "executorch": target})


PYTHON = [
    Fault(
        "no torch",
        "emulator",
        "QNN503",
        lambda world: world.remove(world.site / "torch-0.dist-info"),
    ),
    Fault("torch 2.4", "emulator", "QNN504", lambda world: reinstall(world, "torch", "2.4.1")),
    Fault(
        "torch of another pair",
        "emulator",
        "QNN505",
        lambda world: reinstall(world, "torch", "2.12.0"),
    ),
    Fault(
        "no executorch", "emulator", "QNN506", lambda world: world.remove(world.site / "executorch")
    ),
    Fault("no adaptor", "emulator", "QNN507", lambda world: world.remove(adaptor_path(world))),
    Fault(
        "an adaptor for Python 3.9",
        "emulator",
        "QNN508",
        lambda world: world.move(
            adaptor_path(world),
            adaptor_path(world).with_name("PyQnnManagerAdaptor.cpython-39-x86_64-linux-gnu.so"),
        ),
    ),
    Fault(
        "an adaptor of a newer system",
        "emulator",
        "QNN509",
        lambda world: world.edit(adaptor_path(world), elf.set_string("GLIBC_2.9\0", "GLIBC_9.9\0")),
    ),
    Fault(
        "no cpuinfo", "emulator", "QNN510", lambda world: world.remove(world.site / "cpuinfo.py")
    ),
    Fault(
        "an adaptor that is a page",
        "emulator",
        "QNN512",
        lambda world: world.replace(adaptor_path(world), b"<html>"),
    ),
]


ASKED = [
    Fault(
        "no SDK at all",
        "linux",
        "QNN100",
        nothing,
        lambda r, w: replace(r, roots={"executorch": w.checkout}),
    ),
    Fault(
        "a root that is not there",
        "emulator",
        "QNN101",
        nothing,
        lambda r, w: replace(r, roots={"qnn-runtime": w.base / "none"}),
    ),
    Fault(
        "another pin",
        "emulator",
        "QNN104",
        nothing,
        lambda r, w: replace(r, pins={"qnn-runtime": "2.37.0.250724"}),
    ),
    Fault("an SDK too old for LPAI", "lpai", "QNN105", age, lambda r, w: replace(r, pins={})),
    Fault(
        "another build in sdk.yaml",
        "emulator",
        "QNN302",
        content("sdk.yaml", f"version: {VERSION}\nbuild_id: 260810999999_1\n".encode()),
    ),
    Fault(
        "no skel for the SoC", "linux", "QNN307", drop_v81, lambda r, w: replace(r, soc="SM8850")
    ),
    Fault(
        "QNN_SDK_ROOT to another", "emulator", "QNN403", nothing, variables(QNN_SDK_ROOT="{base}")
    ),
    Fault(
        "another QNN first",
        "emulator",
        "QNN405",
        shadow,
        variables(LD_LIBRARY_PATH="{base}/other:{sdk}/" + HOST),
    ),
    Fault(
        "device libraries",
        "emulator",
        "QNN406",
        nothing,
        variables(LD_LIBRARY_PATH="{sdk}/" + HOST + ":{sdk}/" + LINUX),
    ),
    Fault("an SNPE too", "emulator", "QNN407", nothing, variables(SNPE_ROOT="/opt/snpe")),
    Fault(
        "no PYTHONPATH for the checkout",
        "aot",
        "QNN409",
        lambda world: world.add(world.checkout / BUILT_ADAPTOR, b""),
        variables(PYTHONPATH=None),
    ),
    Fault(
        "no such checkout",
        "linux",
        "QNN701",
        nothing,
        lambda r, w: replace(r, roots={**r.roots, "executorch": w.base / "none"}),
    ),
    Fault("a checkout of another name", "linux", "QNN702", nothing, renamed),
]


def test_a_libcxx_before_an_sdk_without_one_is_no_fault(world: World) -> None:
    request = world.request("aot")
    path = f"{world.libcxx}/lib:{request.variables['LD_LIBRARY_PATH']}"
    for name in ("libc++.so.1", "libc++abi.so.1", "libunwind.so.1"):
        world.remove(world.sdk / HOST / name)
    asked = replace(request, variables={**request.variables, "LD_LIBRARY_PATH": path})
    assert [one.id for one in examine_request(asked).findings if one.id not in SIZES] == []


def test_an_executorch_that_runs_flatc_lacks_it_and_has_no_pair(world: World) -> None:
    reinstall(world, "executorch", "1.2.0")
    findings = examine_request(world.request("emulator")).findings
    assert {one.id for one in findings} - SIZES == {"QNN505", "QNN511"}


@pytest.mark.parametrize("fault", [*PYTHON, *ASKED], ids=str)
def test_one_fault_has_one_check(world: World, fault: Fault) -> None:
    check(fault, world)
