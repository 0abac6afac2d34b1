"""Everything that a checkout, an SDK or a Python lacks is told at once, before any compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import checkout
from ci.builds.checkout import (
    check_headers,
    check_names,
    check_programs,
    check_submodules,
    find_installed,
    find_python,
    probe_python,
    wanted_submodules,
)
from ci.builds.plan import BuildRequest
from ci.builds.targets import Install, Needs
from ci.builds.toolchains import resolve_linux_cross
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError

ROWS = {"one": ("a", "deep/**"), "two": ("a", "b"), "other": ("c",)}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose submodules are listed by components; one of them has two of its own."""
    monkeypatch.setattr(checkout, "read_toolchain", lambda _: SimpleNamespace(components=ROWS))
    text = "".join(f'[submodule "{one}"]\n\tpath = {one}\n' for one in ("x", "y"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/.gitmodules").write_text(text)
    return tmp_path


def refuse(call: Any, *given: Any) -> tuple[str, str]:
    with pytest.raises(UnfitError) as caught:
        call(*given)
    return caught.value.what, caught.value.fix


def test_every_missing_submodule_is_named(source: Path) -> None:
    wanted = ("a", "deep", "deep/x", "deep/y", "b")
    assert wanted_submodules(source, ("one", "two")) == wanted
    (source / "a").mkdir()
    (source / "a/file").touch()
    (source / "b").mkdir()
    what, fix = refuse(check_submodules, source, ("one", "two"))
    assert what == f"{source} lacks 3 of 5 submodules: deep/x, deep/y, b"
    assert fix == f"git -C {source} submodule update --init --recursive deep/x deep/y b"
    for name in ("deep/x", "deep/y", "b"):
        (source / name).mkdir(exist_ok=True)
        (source / name / "file").touch()
    check_submodules(source, ("one", "two"))


def test_every_missing_header_program_and_name_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = SimpleNamespace(headers=("A.h", "B.h", "C.h"))
    monkeypatch.setattr(checkout, "read_doctor_policy", lambda: headers)
    include = tmp_path / "sdk/include/QNN"
    include.mkdir(parents=True)
    (include / "B.h").write_text("QNN_HTP_OLD QnnOld_get\n")
    what, _ = refuse(check_headers, tmp_path / "sdk")
    assert what.endswith("lacks include/QNN/A.h, include/QNN/C.h")
    for name in ("A.h", "C.h"):
        (include / name).touch()
    check_headers(tmp_path / "sdk")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refuse(check_programs, ("make", "g++"))[0].endswith(": make, g++")
    (tmp_path / "make").touch(mode=0o755)
    assert refuse(check_programs, ("make", "g++"))[0].endswith(": g++")
    check_programs(("make",))
    place = tmp_path / "source" / checkout.QNN_SOURCES
    place.mkdir(parents=True)
    (place / "a.cpp").write_text("QNN_HTP_NEW_A + QNN_HTP_OLD\n")
    (place / "b.h").write_text("#define QNN_HTP_OWN 1\nint x = QNN_HTP_NEW_B + QNN_HTP_OWN;\n")
    what, _ = refuse(check_names, tmp_path / "source", tmp_path / "sdk")
    assert what.split(" lack ")[1] == (
        f"QNN_HTP_NEW_A ({checkout.QNN_SOURCES}/a.cpp), QNN_HTP_NEW_B ({checkout.QNN_SOURCES}/b.h)"
    )
    (include / "A.h").write_text("QNN_HTP_NEW_A QNN_HTP_NEW_B\n")
    check_names(tmp_path / "source", tmp_path / "sdk")


NEEDS = Needs(modules=("yaml", "ruamel"), option_modules={"A": ("torch",), "B": ("torch", "tomli")})


@pytest.mark.parametrize(
    ("there", "off", "missing", "ways"),
    [
        ({"yaml", "ruamel", "torch", "tomli"}, {}, "", ""),
        ({"yaml", "torch", "tomli"}, {}, "ruamel", ""),
        ({"yaml", "ruamel", "torch"}, {}, "tomli", ", or add -D B=OFF"),
        ({"ruamel"}, {"B": "OFF"}, "yaml, torch", ", or add -D A=OFF"),
        ({"yaml", "ruamel"}, {"A": "OFF", "B:BOOL": "0"}, "", ""),
        ({"yaml", "ruamel"}, {}, "torch, tomli", ", or add -D A=OFF, or add -D B=OFF"),
    ],
)
def test_every_missing_module_is_named_with_the_options_that_need_it(
    monkeypatch: pytest.MonkeyPatch, there: set[str], off: dict[str, str], missing: str, ways: str
) -> None:
    def ask(_: Path, modules: tuple[str, ...]) -> Any:
        found = {name: name in there for name in modules}
        return SimpleNamespace(modules=found, tag=".cpython-312-x86_64-linux", version=(3, 12, 1))

    monkeypatch.setattr(checkout, "ask_python", ask)
    request = BuildRequest(python=Path("py"), defines=off)
    if not missing:
        assert probe_python(NEEDS, request) == ("cpython-312", "3.12.1")
        return
    what, fix = refuse(probe_python, NEEDS, request)
    assert what == f"py has no module {missing}"
    assert fix.startswith("py -m pip install ")
    assert fix.partition(", or")[1:] == ways.partition(", or")[1:]


@pytest.mark.parametrize("doctor", [True, False])
def test_a_build_starts_with_the_doctor_unless_that_is_turned_off(
    monkeypatch: pytest.MonkeyPatch, doctor: bool
) -> None:
    seen: list[Any] = []

    def see(*given: Any, **named: Any) -> Any:
        seen.append((given, named))
        return SimpleNamespace(require=lambda: seen.append("required"))

    monkeypatch.setattr("provisioning.doctor.examine.examine", see)
    environment, progress = Environment("aot", (), {}), Progress()
    request = BuildRequest(doctor=doctor, python=Path("py"), soc="SM8750")
    checkout.check_fitness(environment, request, progress)
    named = {"python": Path("py"), "soc": "SM8750", "progress": progress}
    assert seen == ([(("aot", environment), named), "required"] if doctor else [])


def test_a_module_is_installed_by_the_name_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ("yaml", "torchgen", "torch", "ruamel")
    facts = SimpleNamespace(modules=dict.fromkeys(modules, False))
    monkeypatch.setattr(checkout, "ask_python", lambda *_: facts)
    _, fix = refuse(probe_python, Needs(modules=modules), BuildRequest(python=Path("py")))
    assert fix == "py -m pip install pyyaml torch ruamel"


def test_all_files_that_builds_install_are_no_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = {
        "aot": SimpleNamespace(
            installs=[Install("lib/Py*.so", "python"), Install("lib/b.so", "lib")]
        ),
        "other": SimpleNamespace(installs=[Install("c.so", "lib")]),
    }
    monkeypatch.setattr(checkout, "read_targets", lambda: targets)
    for name in ("python/PyA.so", "python/PyB.so", "lib/b.so", "lib/c.so", "lib/d.so"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_installed(tmp_path) == {"python/PyA.so", "python/PyB.so", "lib/b.so", "lib/c.so"}


def test_a_python_is_a_path_a_command_or_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python9.98", "mine", "pythonmine"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        for word, name in (
            ("9.98", "python9.98"),
            ("mine", "mine"),
            ("./mine", "mine"),
            (str(tmp_path / "mine"), "mine"),
        ):
            assert find_python(word) == tmp_path / name
        # A virtual environment's Python is a link. Its target has other packages.
        (tmp_path / "venv").symlink_to("mine")
        assert find_python("venv") == tmp_path / "venv"
        (tmp_path / "python").touch(mode=0o755)
        assert find_python("") == Path(sys.executable)
    what, fix = refuse(find_python, str(tmp_path / "python3"))
    assert (str(tmp_path / "python3") in what, "version" in fix) == (True, False)
    what, fix = refuse(find_python, "9.99")
    assert ("'9.99'" in what, "version" in fix) == (True, True)


@pytest.mark.parametrize(
    ("host", "target", "named"),
    [
        ("/host", "", "TOOLCHAIN_ROOT_TARGET is not"),
        ("", "/target", "TOOLCHAIN_ROOT_HOST is not"),
        ("/host", "/no/such/target", "TOOLCHAIN_ROOT_TARGET=/no/such/target is not a directory"),
    ],
)
def test_the_sysroot_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, host: str, target: str, named: str
) -> None:
    monkeypatch.setenv("TOOLCHAIN_ROOT_HOST", host)
    monkeypatch.setenv("TOOLCHAIN_ROOT_TARGET", target)
    what, fix = refuse(resolve_linux_cross, {}, {})
    assert what.endswith(named)
    assert fix.startswith("set ")
