"""One fault in the interpreter, in a variable, in a root."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioning.doctor.examine import examine_request
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.environments import (
    HOST,
    LIBRARIES,
    LINUX,
    TAG,
    World,
    adaptor_path,
    install,
)
from tests.stand_ins.faults import SIZES, Fault, check, nothing, variables


def reinstall(world: World, name: str, version: str) -> None:
    world.remove(world.site / f"{name}-0.dist-info")
    install(world.site, name, version)


def shadow(world: World) -> None:
    world.add(world.base / "other" / "libQnnHtp.so", (LIBRARIES / "libx86.so").read_bytes())


BUILT_ADAPTOR = f"backends/qualcomm/python/PyQnnManagerAdaptor{TAG}"


def drop_v81(world: World) -> None:
    world.remove(world.sdk / LINUX / "libQnnHtpV81Stub.so")
    world.remove(world.sdk / "lib" / "hexagon-v81")


PYTHON = [
    Fault(
        "torch of another pair",
        "emulator",
        "QNN505",
        lambda world: reinstall(world, "torch", "2.12.0"),
    ),
    Fault("no adaptor", "emulator", "QNN507", lambda world: world.remove(adaptor_path(world))),
    Fault(
        "an adaptor of a newer system",
        "emulator",
        "QNN509",
        lambda world: world.edit(adaptor_path(world), elf.set_string("GLIBC_2.9\0", "GLIBC_9.9\0")),
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
        "no PYTHONPATH for the checkout",
        "aot",
        "QNN409",
        lambda world: world.add(world.checkout / BUILT_ADAPTOR, b""),
        variables(PYTHONPATH=None),
    ),
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
