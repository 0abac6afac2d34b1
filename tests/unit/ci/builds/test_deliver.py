"""What is laid over an installed executorch, and which proof of it counts, with a package and a
Python that take milliseconds."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.builds import deliver
from ci.builds.deliver import (
    CHECKOUT,
    OVERLAY,
    Proof,
    check_delivery,
    install_files,
    make_overlay,
    recall_proof,
    remember_proof,
    run_import,
    run_proof,
)
from ci.builds.plan import Place
from ci.builds.targets import Install, find_target
from provisioning.artifacts.choice import OverlayRecord
from provisioning.console.progress import Progress
from provisioning.errors import FailedError, StoreError, UnfitError

ADAPTOR = "backends/qualcomm/python/PyQnnManagerAdaptor.cpython-311-x86_64-linux-gnu.so"
OPERATORS = "kernels/quantized/libquantized_ops_aot_lib.so"


@pytest.mark.parametrize("installs", [1, None])
def test_an_overlay_has_the_wheels_files_as_links_and_none_of_its_adaptors(
    tmp_path: Path, installs: int | None
) -> None:
    package, place = tmp_path / "package", Place(tmp_path / "build")
    for name in ("version.py", "backends/qualcomm/a.py", ADAPTOR, OPERATORS):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("the wheel's")
    place.artifacts.mkdir(parents=True)
    built = place.artifacts / Path(ADAPTOR).name.replace("311", "312")
    for path in (built, place.artifacts / Path(OPERATORS).name):
        path.write_text("built")
    overlay, target = tmp_path / "overlay", find_target("aot")
    target = msgspec.structs.replace(target, installs=target.installs[:installs])
    make_overlay(target, place, package, overlay)
    laid = overlay / "executorch"
    assert (laid / "version.py").readlink() == package / "version.py"
    assert (laid / "backends/qualcomm/a.py").read_text() == "the wheel's"
    adaptors = [*(laid / Path(ADAPTOR).parent).iterdir()]
    assert [(one.name, one.read_text()) for one in adaptors] == [(built.name, "built")]
    assert (laid / OPERATORS).read_text() == ("the wheel's" if installs == 1 else "built")
    assert {(package / name).read_text() for name in (ADAPTOR, OPERATORS)} == {"the wheel's"}


def test_an_overlay_of_a_relative_package_has_links_that_lead_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/version.py").write_text("the wheel's")
    (tmp_path / "build/artifacts").mkdir(parents=True)
    (tmp_path / "build/artifacts" / Path(ADAPTOR).name).write_text("built")
    monkeypatch.chdir(tmp_path)
    make_overlay(find_target("aot"), Place(tmp_path / "build"), Path("package"), Path("overlay"))
    assert (tmp_path / "overlay/executorch" / ADAPTOR).read_text() == "built"
    assert (tmp_path / "overlay/executorch/version.py").read_text() == "the wheel's"


def test_files_are_installed_into_a_checkout_over_earlier_ones(tmp_path: Path) -> None:
    place, root = Place(tmp_path / "build"), tmp_path / "checkout"
    for name in ("lib/z.so", "lib/a.so", "bin/tool", "bin/other"):
        (place.root / name).parent.mkdir(parents=True, exist_ok=True)
        (place.root / name).write_text(f"new {name}")
    (place.root / "bin/tool").chmod(0o755)
    (root / "deep/libs").mkdir(parents=True)
    (root / "deep/libs/a.so").write_text("old")
    target: Any = SimpleNamespace(
        installs=(Install("lib/*.so", "deep/libs"), Install("bin/tool", "more/tools"))
    )
    names = ["deep/libs/a.so", "deep/libs/z.so", "more/tools/tool"]
    assert install_files(target, place, root) == tuple(root / name for name in names)
    found = {str(one.relative_to(root)): one for one in root.rglob("*") if one.is_file()}
    assert sorted(found) == names
    assert [found[name].read_text() for name in names] == [
        "new lib/a.so",
        "new lib/z.so",
        "new bin/tool",
    ]
    assert found["more/tools/tool"].stat().st_mode & 0o777 == 0o755


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "build/artifacts").mkdir(parents=True)
    (tmp_path / "build/artifacts" / Path(ADAPTOR).name).write_text("built")
    (tmp_path / "package").mkdir()
    (tmp_path / "a-file").touch()
    place, target = Place(tmp_path / "build"), find_target("aot")
    with pytest.raises(StoreError, match="a-file"):
        install_files(target, place, tmp_path / "a-file")
    with pytest.raises(StoreError, match="a-file"):
        make_overlay(target, place, tmp_path / "package", tmp_path / "a-file/overlay")


@pytest.mark.parametrize("where", [CHECKOUT, OVERLAY, "none"])
def test_an_adaptor_is_imported_wherever_it_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    imported: list[tuple[Path, Path, dict[str, str]]] = []
    lacks = {"PyQnnA.so": "torch", "PyQnnB.so": "", "PyQnnC.so": "numpy"}

    def run_import(path: Path, python: Path, variables: dict[str, str]) -> str:
        imported.append((path, python, variables))
        return lacks[path.name]

    monkeypatch.setattr(deliver, "run_import", run_import)
    monkeypatch.setattr(deliver, "install_files", lambda *words: words[2:])
    monkeypatch.setattr(deliver, "_deliver_overlay", lambda *_, with_proof: {"with": with_proof})
    place = Place(tmp_path)
    names = ("PyQnnA.so", "libqnn.so", "PyQnnB.so", "PyQnnC.so")
    result: Any = SimpleNamespace(
        place=place, artifacts=[SimpleNamespace(path=Path("built") / name) for name in names]
    )
    plan = SimpleNamespace(target=find_target("aot"), source=Path("/source"))
    python = Path("/python")
    job: Any = SimpleNamespace(
        plan=plan, request=SimpleNamespace(python=python), variables={"A": "b"}
    )
    told = deliver.deliver(job, result, where, Progress(None), with_proof=True)
    more = {CHECKOUT: {"installed": ["/source"]}, OVERLAY: {"with": True}, "none": {}}[where]
    assert told == {"python": "/python", "import_lacks": ["numpy", "torch"], **more}
    assert imported == [(place.artifacts / name, python, {"A": "b"}) for name in lacks]
    plan.target = SimpleNamespace(installs=())
    assert deliver.deliver(job, result, where, Progress(None), with_proof=True) == {}


def test_a_proof_counts_for_what_it_was_made_with(tmp_path: Path) -> None:
    record, proof = tmp_path / "proof.json", Proof("adaptor.so", 7, 1.5)
    assert recall_proof(record, "key") is None
    remember_proof(record, "key", proof)
    assert recall_proof(record, "key") == proof
    assert recall_proof(record, "other") is None


def test_an_overlay_is_made_and_proven_again_only_if_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, package = Place(tmp_path / "place"), tmp_path / "wheel"
    place.root.mkdir()
    package.mkdir()
    done: list[tuple[Any, ...]] = []

    def make(*given: Any) -> None:
        done.append(given)
        given[-1].mkdir(exist_ok=True)

    def prove(*given: Any) -> Proof:
        done.append(given)
        return Proof("adaptor.so", 7, 1.5)

    facts = SimpleNamespace(distributions={"executorch": "1.5.1+cpu"})
    monkeypatch.setattr(deliver, "ask_python", lambda *_: facts)
    monkeypatch.setattr(deliver, "_find_wheel", lambda _: package)
    monkeypatch.setattr(deliver, "python_tag", lambda _: "cpython-311")
    monkeypatch.setattr(deliver, "make_overlay", make)
    monkeypatch.setattr(deliver, "write_overlay", lambda *given: done.append(given))
    monkeypatch.setattr(deliver, "run_proof", prove)
    values = {"executorch_version": "1.5.1", "qnn_sdk_version": "2.49"}
    plan = SimpleNamespace(target=find_target("aot"), values=values)
    python, overlay = Path("/python"), place.root / "overlay"
    request = SimpleNamespace(python=python)
    job: Any = SimpleNamespace(plan=plan, request=request, variables={"A": "b"})
    result: Any = SimpleNamespace(place=place, artifacts=[SimpleNamespace(sha256="a")])

    def run(*, with_proof: bool = True) -> dict[str, Any]:
        done.clear()
        return deliver._deliver_overlay(job, result, Progress(None), with_proof=with_proof)

    making = [
        (plan.target, place, package, overlay),
        (overlay, OverlayRecord("1.5.1", "2.49", "cpython-311")),
    ]
    told = {
        "overlay": str(overlay),
        "wheel": {"path": str(package), "version": "1.5.1+cpu"},
    }
    proof = {"adaptor": "adaptor.so", "program_bytes": 7, "wall_s": 1.5}
    proven = [*making, (overlay, python, {"A": "b"})]
    assert (run(with_proof=False), done) == (told, making)
    assert (run(), done) == ({**told, "proof": {**proof, "cached": False}}, proven)
    assert (run(), done) == ({**told, "proof": {**proof, "cached": True}}, [])
    overlay.rmdir()
    assert (run()["proof"]["cached"], done) == (False, proven)
    result.artifacts[0].sha256 = "b"
    assert (run()["proof"]["cached"], done) == (False, proven)


def test_what_a_proof_was_made_with_is_code_bytes_variables_and_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(sha256: str = "a", value: str = "1", package: Path = tmp_path) -> tuple[str, ...]:
        job: Any = SimpleNamespace(variables={"LD_LIBRARY_PATH": value})
        files = [SimpleNamespace(sha256=one, path=Path("p.so")) for one in sha256]
        made: Any = SimpleNamespace(artifacts=files)
        return tuple(deliver._list_ingredients(job, made, package))

    other = tmp_path / "other"
    other.mkdir()
    assert digest() == digest()
    before = digest()
    others = {digest("b"), digest("ab"), digest("ac"), digest(value="2"), digest(package=other)}
    assert len({before, *others}) == 6
    os.utime(tmp_path, ns=(0, 1))  # as if another wheel was installed there
    assert digest() != before
    program = other / "program.py"
    program.write_text("another proof")
    monkeypatch.setattr(deliver, "PROGRAM", program)
    assert digest()[0] != before[0]


@pytest.mark.parametrize(
    ("program", "is_proved"),
    [
        ("print('proved 12 a b.so')", True),
        ("print('proved 12 a.so'); raise SystemExit(1)", False),
        ("import os; print('proved 12 a.so', flush=True); os.kill(os.getpid(), 9)", False),
        ("print('nothing')", False),
        ("", False),
    ],
)
def test_a_lowering_that_fails_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, is_proved: bool
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    monkeypatch.setattr(deliver, "PROGRAM", path)
    if is_proved:
        proof = run_proof(tmp_path, Path(sys.executable), {})
        assert (proof.adaptor, proof.program_bytes) == ("a b.so", 12)
    else:
        with pytest.raises(FailedError, match="could not prove that the overlay"):
            run_proof(tmp_path, Path(sys.executable), {})


@pytest.mark.parametrize(
    ("program", "why", "fix"),
    [
        ("import no_such_module", "ModuleNotFoundError", deliver.MISSING),
        ("raise ValueError('other')", "ValueError: other", deliver.OTHER_VERSION),
        ("", "it printed nothing", deliver.OTHER_VERSION),
    ],
)
def test_a_proof_that_fails_tells_its_last_line_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str, fix: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    monkeypatch.setattr(deliver, "PROGRAM", path)
    with pytest.raises(FailedError) as caught:
        run_proof(tmp_path, Path(sys.executable), {})
    assert (caught.value.why.startswith(why), caught.value.fix) == (True, fix)


def test_a_proof_finds_the_overlay_first_and_the_variables_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import os, sys; print('proved 1', os.environ['PYTHONPATH'], os.environ['X'], sys.argv[1])"
    )
    monkeypatch.setattr(deliver, "PROGRAM", path)
    for name, value in {"PYTHONPATH": "/own", "X": "mine"}.items():
        monkeypatch.setenv(name, value)
    proof = run_proof(tmp_path, Path(sys.executable), {"X": "build", "PYTHONPATH": "/profile"})
    assert proof.adaptor == f"{tmp_path}:/own build {tmp_path}"
    monkeypatch.delenv("PYTHONPATH")
    assert run_proof(tmp_path, Path(sys.executable), {}).adaptor == f"{tmp_path} mine {tmp_path}"


@pytest.mark.parametrize(
    ("where", "installed", "is_fit"),
    [
        (OVERLAY, "1.5.1", True),
        (OVERLAY, "1.5.1+cpu", True),
        (OVERLAY, "1.4.1", False),
        (OVERLAY, "", True),
        (CHECKOUT, "1.4.1", True),
        ("none", "1.4.1", True),
    ],
)
def test_an_overlay_is_of_the_version_of_the_checkout(
    monkeypatch: pytest.MonkeyPatch, where: str, installed: str, is_fit: bool
) -> None:
    """An unknown version is accepted."""
    python = SimpleNamespace(distributions={"executorch": installed}, modules={"torch": True})
    monkeypatch.setattr(deliver, "ask_python", lambda *words, **named: python)
    monkeypatch.setattr(deliver, "_find_wheel", lambda job: Path("wheel"))
    plan = SimpleNamespace(target=find_target("aot"), values={"executorch_version": "1.5.1"})
    job: Any = SimpleNamespace(plan=plan, request=SimpleNamespace(python=Path("python")))
    if is_fit:
        check_delivery(job, where, with_proof=True)
        return
    with pytest.raises(UnfitError, match=r"1\.5\.1, but executorch 1\.4\.1"):
        check_delivery(job, where, with_proof=True)


@pytest.mark.parametrize(
    ("where", "with_proof", "has_torch", "is_fit"),
    [
        (OVERLAY, True, True, True),
        (OVERLAY, True, False, False),
        (OVERLAY, False, False, True),
        (CHECKOUT, True, False, True),
    ],
)
def test_only_an_overlay_that_is_proven_needs_torch(
    monkeypatch: pytest.MonkeyPatch, where: str, with_proof: bool, has_torch: bool, is_fit: bool
) -> None:
    facts = SimpleNamespace(distributions={"executorch": "1.5.1"}, modules={"torch": has_torch})
    monkeypatch.setattr(deliver, "ask_python", lambda *_: facts)
    monkeypatch.setattr(deliver, "_find_wheel", lambda _: Path("wheel"))
    plan = SimpleNamespace(target=find_target("aot"), values={"executorch_version": "1.5.1"})
    job: Any = SimpleNamespace(plan=plan, request=SimpleNamespace(python=Path("python")))
    with nullcontext() if is_fit else pytest.raises(UnfitError, match="torch is not installed"):
        check_delivery(job, where, with_proof=with_proof)
    plan.target = SimpleNamespace(installs=())  # nothing is delivered
    check_delivery(job, where, with_proof=with_proof)


@pytest.mark.parametrize("where", [OVERLAY, CHECKOUT, "none"])
def test_only_an_overlay_needs_a_wheel(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def find(_: object) -> Path:
        raise UnfitError("executorch is not installed")

    facts = SimpleNamespace(distributions={"executorch": ""}, modules={"torch": True})
    monkeypatch.setattr(deliver, "ask_python", lambda *_: facts)
    monkeypatch.setattr(deliver, "_find_wheel", find)
    plan = SimpleNamespace(target=find_target("aot"), values={"executorch_version": "1.5.1"})
    job: Any = SimpleNamespace(plan=plan, request=SimpleNamespace(python=Path("python")))
    with pytest.raises(UnfitError) if where == OVERLAY else nullcontext():
        check_delivery(job, where, with_proof=True)


def test_an_adaptor_is_loaded_by_the_python_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extension is a module of Python here; what matters is how loading it ends."""
    for name in ("A", "OWN"):
        monkeypatch.setenv(name, "mine")
    adaptor, python = tmp_path / "PyQnn.cpython.py", Path(sys.executable)
    adaptor.write_text(
        "import os\nassert __name__ == 'PyQnn'\n"
        "assert (os.environ['A'], os.environ['OWN']) == ('b', 'mine')\n"
    )
    assert run_import(adaptor, python, {"A": "b"}) == ""
    adaptor.write_text("import no_such_module\n")
    assert run_import(adaptor, python, {}) == "no_such_module"
    wrapped = (
        "try:\n    import no_such_module\nexcept ImportError as error:\n    raise {} from error\n"
    )
    adaptor.write_text(wrapped.format("ImportError('wrapped')"))
    assert run_import(adaptor, python, {}) == "no_such_module"
    adaptor.write_text("raise ValueError('not for this Python')\n")
    with pytest.raises(FailedError, match="cannot import") as caught:
        run_import(adaptor, python, {})
    assert caught.value.why == "ValueError: not for this Python"
