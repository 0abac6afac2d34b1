"""What proves that an adaptor works; ExecuTorch and its libraries stand in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import proof_program
from ci.builds.proof_program import ADAPTOR, load_quantized, main, prove

LIBRARY = "executorch/kernels/quantized/libquantized_ops_aot_lib.so"


class Torch:
    """Torch with the libraries that importing executorch.kernels.quantized loads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, adaptor: Path) -> None:
        self.loads: set[str] = set()
        self.overloads = ["", "out"]
        self.adaptor, self.imported = adaptor, list[str]()
        self.ops = SimpleNamespace(loaded_libraries=set[str]())
        self._C = SimpleNamespace(_jit_get_schemas_for_operator=self.list_schemas)
        monkeypatch.setitem(sys.modules, "torch", self)
        monkeypatch.setattr(proof_program, "importlib", SimpleNamespace(import_module=self.load))

    def load(self, name: str) -> Any:
        self.imported.append(name)
        if name != ADAPTOR:
            self.ops.loaded_libraries |= self.loads
        return SimpleNamespace(__file__=str(self.adaptor))

    def list_schemas(self, name: str) -> list[Any]:
        assert name == "quantized_decomposed::quantize_per_tensor"
        return [SimpleNamespace(overload_name=one) for one in self.overloads]


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Torch:
    monkeypatch.setattr(proof_program, "lower_model", lambda: b"..QnnBackend")
    return Torch(monkeypatch, tmp_path / "overlay/executorch/PyQnn.so")


def test_an_adaptor_below_the_overlay_that_lowers_for_qnn_is_proven(
    tmp_path: Path,
    torch: Torch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    overlay = tmp_path / "overlay"
    (tmp_path / "link").symlink_to(overlay)
    for place in (overlay, tmp_path / "link"):
        assert prove(place) == f"proved 12 {torch.adaptor}"
    with pytest.raises(ValueError, match="which is not below"):
        prove(tmp_path / "other")
    found, torch.adaptor = torch.adaptor, tmp_path / "link/executorch/PyQnn.so"
    assert prove(overlay) == f"proved 12 {found}"
    torch.adaptor = found
    monkeypatch.setattr(sys, "argv", ["proof", str(overlay)])
    assert (main(), capsys.readouterr().out) == (0, f"proved 12 {torch.adaptor}\n")
    monkeypatch.setattr(proof_program, "lower_model", lambda: b"on the CPU")
    assert main() == 1
    told = "ValueError: the lowered program contains no QNN delegate\n"
    assert capsys.readouterr().out == told


def test_a_library_of_quantized_operators_must_be_loaded_and_register_them(
    tmp_path: Path, torch: Torch
) -> None:
    library = tmp_path / LIBRARY
    library.parent.mkdir(parents=True)
    load_quantized(tmp_path)
    library.symlink_to(tmp_path / "the wheel's")
    (tmp_path / "the wheel's").touch()
    load_quantized(tmp_path)
    assert torch.imported == []
    library.unlink()
    library.touch()
    with pytest.raises(ValueError, match="does not load"):
        load_quantized(tmp_path)
    torch.loads = {str(library)}
    (tmp_path / "to").symlink_to(tmp_path)
    for place in (tmp_path, tmp_path / "to"):
        load_quantized(place)
    assert {*torch.imported} == {"executorch.kernels.quantized"}
    torch.overloads = [""]
    with pytest.raises(ValueError, match="registers no out variant"):
        load_quantized(tmp_path)
    with pytest.raises(ValueError, match="registers no out variant"):
        prove(tmp_path)
