"""Everything that a checkout, an SDK or a Python lacks is told at once, before any compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

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
from ci.builds.plan import BuildRequest, find_place
from ci.builds.targets import Install, Needs, find_target
from ci.builds.toolchains import Compilers, Program, Tools, Version, resolve_linux_cross
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned
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
    (place / "a.cpp").write_bytes(b"QNN_HTP_NEW_A + QNN_HTP_OLD + QNN_HTP_NEW_C\n// \xff\n")
    (place / "notes.md").write_text("QNN_HTP_NO_CODE\n")
    (place / "deep").mkdir()
    (place / "deep/b.h").write_text("#define QNN_HTP_OWN 1\nx = QNN_HTP_NEW_B + QNN_HTP_OWN;\n")
    what, _ = refuse(check_names, tmp_path / "source", tmp_path / "sdk")
    assert what.split(" lack ")[1] == (
        f"QNN_HTP_NEW_A ({checkout.QNN_SOURCES}/a.cpp), "
        f"QNN_HTP_NEW_B ({checkout.QNN_SOURCES}/deep/b.h), "
        f"QNN_HTP_NEW_C ({checkout.QNN_SOURCES}/a.cpp)"
    )
    (include / "HTP").mkdir()
    (include / "HTP/A.h").write_bytes(b"\xff QNN_HTP_NEW_A QNN_HTP_NEW_B QNN_HTP_NEW_C\n")
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


def test_without_packages_a_python_is_asked_for_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(python: Path, modules: tuple[str, ...]) -> Any:
        assert (python, modules) == (Path("py"), ())
        return SimpleNamespace(modules={}, tag=".cpython-312-x86_64-linux", version=(3, 12, 1))

    monkeypatch.setattr(checkout, "ask_python", ask)
    request = BuildRequest(python=Path("py"), packages=False)
    assert probe_python(NEEDS, request) == ("cpython-312", "3.12.1")


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
    for path in (str(tmp_path / "python3"), "bin/python3"):
        what, fix = refuse(find_python, path)
        assert (path in what, "version" in fix) == (True, False)
    what, fix = refuse(find_python, "9.99")
    assert ("'9.99'" in what, "version" in fix) == (True, True)


@pytest.mark.parametrize(
    ("host", "target", "named"),
    [
        ("/host", "", "TOOLCHAIN_ROOT_HOST is set, but TOOLCHAIN_ROOT_TARGET is not"),
        ("", "/target", "TOOLCHAIN_ROOT_TARGET is set, but TOOLCHAIN_ROOT_HOST is not"),
        ("/host", "/no/such/target", "TOOLCHAIN_ROOT_TARGET=/no/such/target is not a directory"),
        ("/host", "/dev/null", "TOOLCHAIN_ROOT_TARGET=/dev/null is not a directory"),
    ],
)
def test_the_sysroot_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, host: str, target: str, named: str
) -> None:
    monkeypatch.setenv("TOOLCHAIN_ROOT_HOST", host)
    monkeypatch.setenv("TOOLCHAIN_ROOT_TARGET", target)
    what, fix = refuse(resolve_linux_cross, {}, {})
    assert what == named
    assert fix.startswith("set ")


@pytest.mark.parametrize(("name", "is_for_lpai"), [("android", False), ("direct", True)])
def test_a_job_is_made_of_its_checkout_and_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_for_lpai: bool
) -> None:
    names = {"executorch": "1.5.1", "qnn-sdk": "2.49", "hexagon-sdk": "6", "android-ndk": "26"}
    roots = {one: tmp_path / one for one in names}
    exported = ("QNN_SDK_ROOT", "ANDROID_NDK_ROOT", "HEXAGON_SDK_ROOT", "HEXAGON_TOOLS_ROOT")
    variables = {**{one: f"/{one}" for one in exported}, "LD_LIBRARY_PATH": "/libraries"}
    environment = Environment(
        "p", tuple(Provisioned(*one, roots[one[0]]) for one in names.items()), variables
    )
    asked: list[tuple[Any, ...]] = []

    def note(kind: str, answer: Any = None) -> None:
        def ask(*given: Any) -> Any:
            asked.append((kind, *given))
            return answer

        monkeypatch.setattr(checkout, kind, ask)

    values = {"hexagon_tools_root": "/tools", "android_platform": "android-30"}
    tools = Tools(Program(Path("/c"), Version("3.30")), Program(Path("/n"), Version("1.11")), None)
    note("locate_profile", environment)
    for one in ("check_lpai", "check_submodules", "check_fitness"):
        note(one)
    note("resolve_compilers", Compilers({}, {"cxx": "one"}, values))
    note("probe_python", ("cpython-312", "3.12.1"))
    note("unneeded_submodules", frozenset({"third-party/other"}))
    note("find_installed", frozenset({"python/PyA.so"}))
    for one in ("check_headers", "check_names", "check_programs"):
        monkeypatch.setattr(checkout, one, lambda *_: None)
    monkeypatch.setattr(checkout, "find_tools", lambda: tools)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("EXECUTORCH_ROOT", raising=False)

    target, progress = find_target(name), Progress(None)
    more = {"b": ("three",), "a": ("one", "two"), "c": ("four",)}
    needs = replace(target.needs, components=("core", "runner"), extras=more)
    target, extras = replace(target, profile="own", needs=needs), frozenset({"a", "b", "other"})
    request = BuildRequest(python=Path("/py"), soc="SM8850", dsp_type=0, extras=extras)
    job = checkout.prepare_checkout(target, request, progress)
    source = roots["executorch"]
    components = ("core", "runner", "one", "two", "three")
    assert asked == [
        ("locate_profile", "own", progress),
        *([("check_lpai", environment)] if is_for_lpai else []),
        ("check_submodules", source, components),
        ("probe_python", target.needs, request),
        *(("resolve_compilers", kind, roots, variables) for kind in target.toolchains),
        ("unneeded_submodules", source, components),
        ("find_installed", source),
    ]
    assert (job.request, job.plan.source, job.variables) == (request, source, variables)
    variant = "\0".join(["", "v81", "0", "hexagon-v81"] if is_for_lpai else [""])
    assert job.plan.place.root == find_place(name, source, variant).root
    assert job.plan.place.root.parent == tmp_path / "home/builds"
    assert job.inputs == {"qnn-sdk": roots["qnn-sdk"] / "include"}
    assert job.skip == {"third-party/other", "python/PyA.so"}
    dsp = {"dsp_arch": "v81", "dsp_type": "0", "hexagon_policy": "hexagon-v81"}
    known = {**(dsp if is_for_lpai else {}), "python": "/py", **values}
    found = {key: one for key, one in job.plan.values.items() if key in {*dsp, *known}}
    assert found == known
    given = {key: one for key, one in job.plan.environment.items() if key in variables}
    assert given == {key: variables[key] for key in exported}
    asked.clear()
    job.check()
    assert asked == [("check_fitness", environment, request, progress)]
