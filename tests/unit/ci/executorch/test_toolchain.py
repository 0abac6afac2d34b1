"""What a program is named to be made by: artifacts, packages, the adaptor, QNN's own build."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from ci.executorch import internals, toolchain
from ci.report.schema import Tool
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned
from provisioning.manifest.releases import Origin

BUILD = b"\0v2.49.40.260810104044\0"
HEADERS = b"\x48\xb8\x05\0\0\0\x25\0\0\0\x31\xd2\xc3"


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An SDK's root next to an installed executorch."""
    place = tmp_path / "site/executorch"
    adaptors = place / "backends/qualcomm/python"
    adaptors.mkdir(parents=True)
    (adaptors / f"PyQnnManagerAdaptor{EXTENSION_SUFFIXES[0]}").write_bytes(HEADERS)
    (adaptors / "PyQnnManagerAdaptor.another.python").write_bytes(b"")
    monkeypatch.setattr(toolchain, "list_places", lambda: [str(place)])
    monkeypatch.setattr(toolchain.importlib.metadata, "version", lambda name: f"{name}'s")
    root = tmp_path / "sdk"
    (root / toolchain.HOST_DIRECTORY).mkdir(parents=True)
    return root


def describe(sdk: Path) -> dict[str, tuple[str, str | None]]:
    """Version and digest of each part."""
    artifact = Provisioned("qnn-runtime", "2.49.40", sdk, Origin(sha256="a" * 64))
    environment = Environment("emulator", (artifact,), {"QNN_SDK_ROOT": str(sdk)})
    tools = list(toolchain.describe_toolchain(environment))
    assert all(isinstance(tool, Tool) for tool in tools)
    described = {tool.name: (tool.version, tool.sha256) for tool in tools}
    assert len(described) == len(tools)
    return described


def test_the_toolchain_of_a_report_lists_artifacts_packages_library_and_adaptor(sdk: Path) -> None:
    library = sdk / toolchain.HOST_DIRECTORY / "libQnnHtp.so"
    library.write_bytes(BUILD)
    assert describe(sdk) == {
        "qnn-runtime": ("2.49.40", "a" * 64),
        **{name: (f"{name}'s", None) for name in ("torch", "executorch", "torchao", "numpy")},
        "libQnnHtp.so": ("v2.49.40.260810104044", None),
        "adaptor": ("QNN 2.37", hashlib.sha256(HEADERS).hexdigest()),
        "operator-validation": ("none", None),
    }


def test_operator_validation_is_probed_with_the_given_variables(sdk: Path) -> None:
    (sdk / toolchain.HOST_DIRECTORY / "libQnnHtp.so").write_bytes(BUILD)
    place = sdk / "lib/python/qti/aisw/converters/common"
    place.mkdir(parents=True)
    (place / "backend_opinfo.py").write_text(
        f"import os; assert os.environ['QNN_SDK_ROOT'] == {str(sdk)!r}\n"
    )
    assert describe(sdk)["operator-validation"][0] == "sdk"


def test_operator_validation_uses_the_sdk_if_its_module_can_be_imported(tmp_path: Path) -> None:
    place = tmp_path / "lib/python/qti/aisw/converters/common"
    assert toolchain.find_validation(tmp_path, os.environ) == "none"
    place.mkdir(parents=True)
    assert toolchain.find_validation(tmp_path, os.environ) == (
        "none (ModuleNotFoundError: No module named 'qti.aisw.converters.common.backend_opinfo')"
    )
    (place / "backend_opinfo.py").write_text("import os; assert os.environ['QNN_CI_X'] == 'y'\n")
    assert toolchain.find_validation(tmp_path, {**os.environ, "QNN_CI_X": "y"}) == "sdk"
    (place / "backend_opinfo.py").write_text("import os; os._exit(3)\n")
    assert toolchain.find_validation(tmp_path, os.environ) == "none (exited with 3)"
    (place / "backend_opinfo.py").write_text(f"raise SystemExit({'x' * 200!r})\n")
    assert toolchain.find_validation(tmp_path, os.environ) == f"none ({'x' * 100})"


def test_pythonpath_entries_are_first_on_sys_path_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/old", "/two"])
    toolchain.find_on_path({"PYTHONPATH": f"/one{os.pathsep}{os.pathsep}/two{os.pathsep}/three"})
    assert sys.path == ["/one", "/three", "/old", "/two"]
    toolchain.find_on_path({})
    assert sys.path == ["/one", "/three", "/old", "/two"]


def test_libraries_used_in_place_are_identified_by_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "digest_packages", lambda names: f"{len(names)} packages")
    library = tmp_path / "lib/x86_64-linux-clang/libQnnHtp.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"four")
    os.utime(library, ns=(1, 2))
    other_library = library.with_name("libQnnCpu.so.1")
    other_library.touch()
    os.utime(other_library, ns=(3, 4))
    fetched = Provisioned("qnn-runtime", "2.49.40", tmp_path)
    adopted = Provisioned("qnn-runtime", "2.49.40", tmp_path, adopted=True)
    tools = (Tool(name="torch", version="2"), Tool(name="adaptor", version="1", sha256="b" * 64))
    named = ("torch 2 None", f"adaptor 1 {'b' * 64}", f"{len(toolchain.LOWERING)} packages")
    assert toolchain.name_toolchain(tools, Environment("emulator", (fetched,), {})) == named
    assert toolchain.name_toolchain(tools, Environment("emulator", (adopted,), {})) == (
        *named,
        "lib/x86_64-linux-clang/libQnnCpu.so.1 0 4",
        "lib/x86_64-linux-clang/libQnnHtp.so 4 2",
    )


@pytest.mark.parametrize(
    ("lacking", "modules"),
    [
        ({}, ["a"]),
        ({"a": ImportError}, ["a", "b:c"]),
        ({"a": ImportError, "b:c": AttributeError}, ["a", "b:c", "d:e"]),
        (dict.fromkeys(("a", "b:c", "d:e"), ImportError), ["a", "b:c", "d:e"]),
    ],
)
def test_an_executorch_internal_is_taken_from_the_first_module_that_has_it(
    monkeypatch: pytest.MonkeyPatch, lacking: dict[str, type[Exception]], modules: list[str]
) -> None:
    tried: list[str] = []

    def find(place: str) -> str:
        tried.append(place)
        if place in lacking:
            raise lacking[place](place)
        return f"the object at {place}"

    monkeypatch.setitem(internals.PLACES, "moved", ("a", "b:c", "d:e"))
    monkeypatch.setattr(internals, "find", find)
    if len(lacking) == 3:
        with pytest.raises(ImportError, match="d:e"):
            internals.moved  # noqa: B018 - looks it up
    else:
        assert internals.moved == f"the object at {modules[-1]}"
    assert tried == modules
    with pytest.raises(AttributeError, match="gone"):
        internals.gone  # noqa: B018 - looks it up
