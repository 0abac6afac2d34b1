from __future__ import annotations

from pathlib import Path

import pytest

from ci.cases.session import expect_lower_s
from ci.cases.spec import CaseSpec
from ci.executorch.toolchain import name_toolchain
from ci.models.schemes import Scheme
from ci.report.schema import Tool
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned

TOOLS = (Tool(name="qnn-runtime", version="2.49.40"),)


def test_a_library_replaced_in_an_adopted_installation_changes_the_keys(tmp_path: Path) -> None:
    library = tmp_path / "lib/x86_64-linux-clang/libQnnHtp.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"one")
    sdk = Provisioned("qnn-runtime", "2.49.40", tmp_path, adopted=True)
    environment = Environment("emulator", (sdk,), {})
    before = name_toolchain(TOOLS, environment)
    assert name_toolchain(TOOLS, environment) == before
    library.write_bytes(b"another")
    assert name_toolchain(TOOLS, environment) != before
    (library.parent / "libQnnSystem.so").write_bytes(b"")
    assert len(name_toolchain(TOOLS, environment)) == len(before) + 1


def test_another_adaptor_on_pythonpath_changes_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment("emulator", (), {})
    keys = {name_toolchain(TOOLS, environment)}
    adaptor = tmp_path / "executorch/backends/qualcomm/python/PyQnnManagerAdaptor.so"
    adaptor.parent.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    for content in (b"one", b"another"):
        adaptor.write_bytes(content)
        keys.add(name_toolchain(TOOLS, environment))
    assert len(keys) == 3


def test_the_cases_that_take_longest_come_first() -> None:
    specs = [
        CaseSpec("mlp", Scheme.FP16, "SM8650"),
        CaseSpec("lstm", Scheme.FP16, "SM8650"),
        CaseSpec("lstm", Scheme.A8W8, "SM8650"),
        CaseSpec("/net.py:factory", Scheme.FP16, "SM8650"),
    ]
    assert sorted(specs, key=expect_lower_s, reverse=True) == specs[::-1]
