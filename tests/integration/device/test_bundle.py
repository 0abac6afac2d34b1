from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ci.device.bundle import FILES, Target, read_bundle, stage
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from tests.stand_ins.lowered import make_program


def compile_to(path: Path, *words: str, compiler: str = "gcc", text: str = "int x;") -> Path:
    """A real ELF file; skips without the compiler."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is needed")
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(text)
    words = (compiler, str(source), "-o", str(path), *words)
    subprocess.run(words, check=True, cwd=path.parent)
    source.unlink()
    return path


def library(
    folder: Path, name: str, *needs: str, compiler: str = "gcc", text: str = "int x;"
) -> Path:
    links = [f"-l:{need}" for need in needs]
    words = ("-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-soname,{name}", f"-L{folder}", *links)
    return compile_to(folder / name, *words, compiler=compiler, text=text)


@pytest.fixture
def host(tmp_path: Path) -> tuple[Path, Path]:
    """A runner for this machine and the libraries of an emulator."""
    folder = tmp_path / "runtime"
    library(folder, "libc++.so.1")
    for name in ("libQnnHtp.so", "libQnnSystem.so", "libHtpPrepare.so"):
        library(folder, name, "libc++.so.1")
    library(folder, "libQnnGpu.so")
    words = ("-Wl,--no-as-needed", f"-L{folder}", "-l:libQnnSystem.so", f"-Wl,-rpath-link,{folder}")
    return compile_to(tmp_path / "made/runner", *words, text="int main(){return 0;}"), folder


def names(out: Path) -> set[str]:
    return {path.name for path in (out / FILES).iterdir()}


def test_a_bundle_has_what_is_needed_and_no_more(host: tuple[Path, Path], tmp_path: Path) -> None:
    runner, runtime = host
    out = tmp_path / "out"
    bundle = stage(["sm8650", "SM8750"], runner, [runtime], out, progress=Progress())
    wanted = {"runner", "libQnnHtp.so", "libQnnSystem.so", "libHtpPrepare.so", "libc++.so.1"}
    assert names(out) == wanted
    assert (bundle.target, bundle.socs) == (Target.EMULATOR, ("SM8650", "SM8750"))
    assert read_bundle(out) == bundle
    again = stage(["SM8650", "SM8750"], runner, [runtime], tmp_path / "b", progress=Progress())
    assert again.digest == bundle.digest
    assert (out / FILES / "libQnnHtp.so").read_bytes() == (runtime / "libQnnHtp.so").read_bytes()


@pytest.mark.parametrize("name", ["libQnnHtp.so", "libQnnSystem.so", "libc++.so.1"])
def test_without_a_library_nothing_is_written(
    host: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    runner, runtime = host
    (runtime / name).unlink()
    with pytest.raises(UnfitError, match=name.replace("+", r"\+")):
        stage(["SM8650"], runner, [runtime], tmp_path / "out", progress=Progress())
    assert not (tmp_path / "out").exists()


def test_a_program_has_to_load_on_each_soc(host: tuple[Path, Path], tmp_path: Path) -> None:
    runner, runtime = host
    program = tmp_path / "model.pte"
    program.write_bytes(make_program())  # for SM8650
    out = tmp_path / "out"
    with pytest.raises(UnfitError, match=r"model\.pte does not load on SM8750"):
        stage(["SM8650", "SM8750"], runner, [runtime], out, programs=[program], progress=Progress())
    assert not out.exists()
    stage(["SM8650"], runner, [runtime], out, programs=[program], progress=Progress())
    assert (out / FILES / "model.pte").read_bytes() == program.read_bytes()
    program.write_bytes(b"no program")
    with pytest.raises(UnfitError, match="is not a program"):
        stage(["SM8650"], runner, [runtime], out, programs=[program], progress=Progress())


def test_libraries_for_another_machine_are_not_taken(
    host: tuple[Path, Path], tmp_path: Path
) -> None:
    """The stub and the skel of the SoC are asked for, and an x86-64 library is none of them."""
    _, runtime = host
    cross = "aarch64-linux-gnu-gcc"
    runner = compile_to(tmp_path / "arm/runner", compiler=cross, text="int main(){return 0;}")
    with pytest.raises(UnfitError, match=r"libQnnHtpV75Skel\.so"):
        stage(["SM8650"], runner, [runtime], tmp_path / "out", progress=Progress())
    skel = runtime / "hexagon-v75/unsigned/libQnnHtpV75Skel.so"
    skel.parent.mkdir(parents=True)
    shutil.copyfile(runner, skel)
    with pytest.raises(UnfitError, match="missing"):
        stage(["SM8650"], runner, [runtime], tmp_path / "out", progress=Progress())
    for name in ("libQnnHtp.so", "libQnnSystem.so", "libQnnHtpV75Stub.so"):
        library(tmp_path / "arm", name, compiler=cross)
    with pytest.raises(UnfitError, match=r"QNN\d+"):  # the doctor: that skel is no Hexagon library
        stage(["SM8650"], runner, [runtime], tmp_path / "out", progress=Progress())
    assert not (tmp_path / "out").exists()
