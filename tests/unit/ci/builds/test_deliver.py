"""An adaptor in a checkout or laid over an installed wheel, and the proof that it works, with a
wheel of a few files and an adaptor that is a module of Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.builds import checkout, deliver
from ci.builds.deliver import (
    CHECKOUT,
    OVERLAY,
    PLACES,
    Proof,
    check_delivery,
    run_import,
    run_proof,
)
from ci.builds.plan import Place
from ci.builds.targets import Install, find_target
from provisioning.artifacts.choice import OverlayRecord, read_overlay
from provisioning.console.progress import Progress
from provisioning.errors import FailedError
from tests.build.builds import explain, write_files

PYTHON = Path(sys.executable)
ADAPTORS, OPERATORS = "backends/qualcomm/python", "kernels/quantized/libquantized_ops_aot_lib.so"
PROVES = (
    "import os, sys; print('a warning'); "
    "print('proved 12', os.environ['PYTHONPATH'], os.environ['A'], sys.argv[1])"
)

WRAPPED = (
    "try:\n    import no_such\nexcept ImportError as error:\n"
    "    raise ImportError('wrapped') from error\n"
)


class Delivery:
    """A job that was built: an adaptor for each of two Pythons, and an installed wheel."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.source = Place(folder / "builds/aot-1"), folder / "source"
        self.wheel = folder / "wheel/executorch"
        self.overlay = self.place.root / "overlay"
        names = ("version.py", "backends/qualcomm/a.py", f"{ADAPTORS}/PyQnnOld.so", OPERATORS)
        write_files(self.wheel, dict.fromkeys(names, "the wheel's"))
        write_files(self.source, {"a.py": ""})
        self.built = {"PyQnnA.py": "import os; assert os.environ['A'] == 'b'", "PyQnnB.py": ""}
        write_files(self.place.artifacts, {**self.built, "libqnn.so": "no adaptor"})
        monkeypatch.setenv("A", "of the caller")
        monkeypatch.setenv("PYTHONPATH", "/own")
        self.facts = SimpleNamespace(
            distributions={"executorch": "1.5.1+cpu"},
            modules={"torch": True},
            executorch=str(self.wheel),
        )
        self.asked: list[str] = []
        for module in (checkout, deliver):
            monkeypatch.setattr(module, "ask_python", self.ask)
        self.program = folder / "program.py"
        self.program.write_text(PROVES)
        monkeypatch.setattr(deliver, "PROGRAM", self.program)
        installs = (Install("artifacts/Py*.py", ADAPTORS),)
        self.target = msgspec.structs.replace(find_target("aot"), installs=installs)
        values = {"executorch_version": "1.5.1", "qnn_sdk_version": "2.49"}
        values["python_version"] = "cpython-311 3.11.7"
        self.plan = SimpleNamespace(
            target=self.target, source=self.source, place=self.place, values=values
        )
        self.job: Any = SimpleNamespace(
            plan=self.plan, request=SimpleNamespace(python=PYTHON), variables={"A": "b"}
        )
        self.artifacts = [
            SimpleNamespace(path=Path("built") / name, sha256=name)
            for name in (*self.built, "libqnn.so")
        ]

    def ask(self, python: Path, *_: Any, variables: Any = None) -> Any:
        assert python == PYTHON
        if variables is not None:
            self.asked.append(variables["PYTHONPATH"])
        return self.facts

    def deliver(self, where: str, *, with_proof: bool = True) -> dict[str, Any]:
        result: Any = SimpleNamespace(artifacts=self.artifacts)
        return deliver.deliver(self.job, result, where, Progress(None), with_proof=with_proof)

    def is_proven_again(self) -> bool:
        return not self.deliver(OVERLAY)["proof"]["cached"]

    def check(self, where: str, *, with_proof: bool) -> str:
        return explain(lambda: check_delivery(self.job, where, with_proof=with_proof))


@pytest.fixture
def delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Delivery:
    return Delivery(tmp_path, monkeypatch)


def read_files(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_text() for path in files}


def test_an_adaptor_is_imported_and_copied_to_its_install_place(delivery: Delivery) -> None:
    expected = {"python": str(PYTHON), "import_lacks": []}
    assert delivery.deliver("none") == expected
    installed = [delivery.source / ADAPTORS / name for name in delivery.built]
    assert delivery.deliver(CHECKOUT) == {
        **expected,
        "installed": [str(path) for path in installed],
    }
    assert read_files(delivery.source / ADAPTORS) == delivery.built
    for name, text in (("A", "import numpy_that_is_missing"), ("B", "import a_module")):
        (delivery.place.artifacts / f"PyQnn{name}.py").write_text(text)
    assert delivery.deliver("none")["import_lacks"] == ["a_module", "numpy_that_is_missing"]
    delivery.plan.target = msgspec.structs.replace(delivery.target, installs=())
    assert delivery.deliver(CHECKOUT) == {}


def test_an_overlay_is_made_and_proven_again_only_if_something_changed(
    delivery: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a proof would be used for other bytes."""
    expected = {
        "python": str(PYTHON),
        "import_lacks": [],
        "overlay": str(delivery.overlay),
        "wheel": {"path": str(delivery.wheel), "version": "1.5.1+cpu"},
    }
    assert delivery.deliver(OVERLAY, with_proof=False) == expected
    assert read_files(delivery.overlay / "executorch/backends/qualcomm/python") == delivery.built
    assert read_overlay(delivery.overlay) == OverlayRecord("1.5.1", "2.49", "cpython-311")
    proven = delivery.deliver(OVERLAY)
    proof = proven.pop("proof")
    assert (proven, proof["cached"], proof["program_bytes"]) == (expected, False, 12)
    assert proof["adaptor"] == f"{delivery.overlay}:/own b {delivery.overlay}"
    assert delivery.deliver(OVERLAY)["proof"] == {**proof, "cached": True}
    for artifact in delivery.artifacts:  # an adaptor would be imported each time
        artifact.path = Path("libqnn.so")
    monkeypatch.setattr(deliver, "run_proof", lambda *_: Proof("another", 7, 1.5))

    def change(step: Any) -> bool:
        step()
        changed = delivery.is_proven_again()
        assert not delivery.is_proven_again()
        return changed

    assert (
        change(lambda: (delivery.overlay / "executorch").rename(delivery.overlay.parent / "x"))
        is False
    )
    assert change(lambda: delivery.overlay.rename(delivery.overlay.parent / "y"))
    assert change(lambda: setattr(delivery.artifacts[0], "sha256", "other"))
    assert change(delivery.artifacts.pop)
    assert change(lambda: delivery.job.variables.update(B="c"))
    assert change(lambda: os.utime(delivery.wheel, ns=(0, 1)))  # another wheel was installed
    assert change(lambda: delivery.program.write_text(f"{PROVES}\n# other"))
    delivery.place.proof.write_text("damaged")
    assert delivery.is_proven_again()


@pytest.mark.parametrize(
    ("program", "why", "fix"),
    [
        ("print('proved 12 a b.so')", "", ""),
        ("print('proved 1 a'); raise SystemExit(1)", "proved 1 a", deliver.OTHER_VERSION),
        (
            "import os; print('proved 1 a', flush=True); os.kill(os.getpid(), 9)",
            *("proved 1 a", deliver.OTHER_VERSION),
        ),
        ("print('nothing')", "nothing", deliver.OTHER_VERSION),
        ("import no_such_module", "ModuleNotFoundError", deliver.MISSING),
        ("raise ValueError('other')", "ValueError: other", deliver.OTHER_VERSION),
        ("", "it printed nothing", deliver.OTHER_VERSION),
    ],
)
def test_a_failed_proof_of_an_overlay_states_the_last_line_of_its_output(
    delivery: Delivery, tmp_path: Path, program: str, why: str, fix: str
) -> None:
    delivery.program.write_text(program)
    if not why:
        proof = run_proof(tmp_path, PYTHON, {})
        assert proof == Proof("a b.so", 12, proof.wall_s)
        return
    with pytest.raises(FailedError, match="could not prove that the overlay") as caught:
        run_proof(tmp_path, PYTHON, {})
    assert (caught.value.why.startswith(why), caught.value.fix) == (True, fix)


@pytest.mark.parametrize(
    ("body", "lacks", "why"),
    [
        ("assert __name__ == 'PyQnn'", "", ""),
        ("import no_such_module", "no_such_module", ""),
        (WRAPPED, "no_such", ""),
        ("raise ValueError('not for this Python')", "", "ValueError: not for this Python"),
        ("import os; os._exit(9)", "", "exited with 9"),
    ],
)
def test_importing_the_adaptor_succeeds_names_the_missing_module_or_fails(
    tmp_path: Path, body: str, lacks: str, why: str
) -> None:
    (tmp_path / "PyQnn.cpython.py").write_text(
        f"print('a warning') if {bool(lacks)} else 0\n{body}"
    )
    if not why:
        assert run_import(tmp_path / "PyQnn.cpython.py", PYTHON, {}) == lacks
        return
    with pytest.raises(FailedError, match="cannot import PyQnn") as caught:
        run_import(tmp_path / "PyQnn.cpython.py", PYTHON, {})
    assert caught.value.why == why


# Before the build


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("installed", "torch", "wheel", "refused"),
    [
        ("1.5.1", True, True, ""),
        ("1.5.1+cpu", True, True, ""),
        ("", True, True, ""),  # an unknown version is accepted
        ("1.4.1", True, True, "the checkout is ExecuTorch 1.5.1, but executorch 1.4.1 is"),
        ("1.5.1", False, True, "torch is not installed"),
        ("1.5.1", True, False, "executorch is not installed for"),
    ],
)
def test_only_an_overlay_needs_a_wheel_of_the_checkouts_version_and_torch(
    delivery: Delivery, where: str, installed: str, torch: bool, wheel: bool, refused: str
) -> None:
    delivery.facts.distributions["executorch"] = installed
    delivery.facts.modules["torch"] = torch
    delivery.facts.executorch = str(delivery.wheel) if wheel else ""
    result = delivery.check(where, with_proof=True)
    assert result.startswith(f"UnfitError {refused}" if refused and where == OVERLAY else "None")
    if not torch:
        assert delivery.check(where, with_proof=False) == "None"
    delivery.plan.target = msgspec.structs.replace(
        delivery.target, installs=()
    )  # nothing is delivered
    assert delivery.check(where, with_proof=True) == "None"
