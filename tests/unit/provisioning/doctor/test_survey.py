"""What the survey sees: the thing that counts, with the one beside it that must not."""

from __future__ import annotations

import importlib.machinery
import json
import shutil
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from provisioning.artifacts.choice import OverlayRecord, write_overlay
from provisioning.console import usage
from provisioning.console.git import read_commit
from provisioning.console.process import Completed
from provisioning.doctor.facts import (
    CheckoutFacts,
    DeviceFacts,
    PythonFacts,
    SdkFacts,
    SubmoduleFacts,
    ToolFacts,
)
from provisioning.doctor.survey import host, qnn_probe
from provisioning.doctor.survey.environment import _may_load as may_load
from provisioning.doctor.survey.environment import survey_variables
from provisioning.doctor.survey.host import (
    ask_version,
    survey_checkout,
    survey_devices,
    survey_host,
    survey_sdk,
    survey_tools,
)
from provisioning.doctor.survey.python import _lacking as lacking_of
from provisioning.doctor.survey.python import survey_python, try_device
from provisioning.elf.facts import EM_AARCH64, Defect
from provisioning.elf.reader import read_elf
from provisioning.errors import ToolError
from provisioning.manifest.targets import Backend
from tests.stand_ins.environments import git
from tests.unit.provisioning.doctor import cases

ROOT = Path(__file__).parents[4]
LIBRARY = ROOT / "tests" / "artifacts" / "elf" / "libx86.so"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("limits", "memory_gb"),
    [(("max\n", "3000000000\n"), 3.0), (("2000000000\n", "9" * 19), 2.0), (("0\n",), 0)],
)
def test_the_memory_of_a_host_is_limited_by_its_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[str, ...], memory_gb: float
) -> None:
    monkeypatch.setattr(usage, "GROUP_ROOT", tmp_path)
    for (limit, used, *_), text in zip(usage.GROUPS, limits, strict=False):
        (tmp_path / limit).parent.mkdir(exist_ok=True)
        (tmp_path / limit).write_text(text)
        (tmp_path / used).write_text("1\n")
    assert survey_host(tmp_path, {}, (), {}).memory_gb == memory_gb


def test_a_machine_is_asked_for_its_tools_and_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {Path("/proc/cpuinfo"): "processor : 0\nflags\t: fpu avx2\nflags : other\n"}
    monkeypatch.setattr(host, "read_window", lambda path: files.get(path, ""))
    monkeypatch.setattr(host.platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(host, "free_bytes", lambda place: 2_500_000_000 if place == tmp_path else 0)
    program(tmp_path / "bin/cmake", "echo cmake 3.28.1")
    variables = {"PATH": str(tmp_path / "bin")}
    host_facts = survey_host(tmp_path, {"c": "cmake"}, ["libnone.so"], variables)
    assert host_facts.tools == (ToolFacts("c", f"{tmp_path}/bin/cmake", "3.28.1", "cmake 3.28.1"),)
    assert (host_facts.libraries, host_facts.cpu_flags) == ({"libnone.so": None}, {"fpu", "avx2"})
    assert (host_facts.glibc, host_facts.disk_free_gb, host_facts.disk_path) == (
        "2.36",
        2.5,
        str(tmp_path),
    )
    files.clear()
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(usage, "read_window", lambda _: "")
    monkeypatch.setattr(host.platform, "libc_ver", lambda: ("musl", "1.2"))
    bare = survey_host(tmp_path, {}, (), variables)
    assert (bare.tools, bare.cpu_flags, bare.glibc, bare.memory_gb) == ((), set(), None, 0)


def test_a_tool_is_found_on_the_given_path_and_must_exit_with_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "a" / "cmake", "echo cmake 3.28.1 of 2024.1; echo 9.9")
    program(tmp_path / "b" / "cmake", "echo cmake 3.28.1; exit 2")
    for place, version in (("a", "3.28.1"), ("b", None), ("c", None)):
        variables = {"PATH": str(tmp_path / place)}
        (tool,) = survey_tools({"c": "cmake"}, variables)
        path = str(tmp_path / place / "cmake") if place != "c" else None
        assert (tool.name, tool.path, tool.version) == ("c", path, version)
    assert "cmake 3.28.1" in ask_version("c", tmp_path / "b" / "cmake").output
    lengthy = program(tmp_path / "lengthy", "echo a tool; echo version 1.2")
    assert ask_version("c", lengthy).version == "1.2"
    killed = program(tmp_path / "killed", "echo cmake 3.28.1; kill -9 $$")
    assert ask_version("c", killed).version is None
    silent = program(tmp_path / "silent", "exit 0")
    assert ask_version("c", silent).version is None
    monkeypatch.setattr(host, "TIMEOUT_S", 0.3)
    late = program(tmp_path / "late", "trap 'exit 0' TERM INT; echo cmake 3.28.1; sleep 600 & wait")
    assert ask_version("c", late).version is None


def test_qnn_libraries_and_runtimes_on_the_library_path_are_found(tmp_path: Path) -> None:
    qnn_names = ("libQnnHtp.so", "libHtpPrepare.so", "libGenie.so", "libc++.so.1", "libunwind.so.1")
    runtimes = ("libatomic.so.1", "libgcc_s.so.1", "libstdc++.so.6")
    beside = ("libstdc++.so.6.0.30", "libQnnHtp.so.txt", "myQnn.so", "libstdc++.so.60")
    for name in (*qnn_names, *runtimes, *beside):
        shutil.copy(LIBRARY, tmp_path / name)
    (tmp_path / "libQnnDirectory.so").mkdir()
    facts = survey_variables({"LD_LIBRARY_PATH": f"{tmp_path}::/none"})
    (first_place, empty, none) = facts.library_path
    assert {file.name for file in first_place.libraries} == set(qnn_names)
    assert tuple(file.name for file in first_place.runtimes) == runtimes
    assert (empty.directory, none.directory) == ("", "/none")


def test_a_submodule_whose_files_are_there_is_not_missing(tmp_path: Path) -> None:
    """A copy of a mirror, or a manual clone, was never initialised by git."""
    inner, root = tmp_path / "inner", tmp_path / "executorch"
    for place in (inner, root):
        place.mkdir()
        git(place, "init", "-q", "-b", "main")
        git(place, "commit", "-q", "--allow-empty", "-m", "first")
    git(root, "submodule", "--quiet", "add", str(inner), "third-party/a b")
    git(root, "commit", "-q", "-m", "second")
    (module,) = survey_checkout(root).submodules
    assert (module.path, module.state) == ("third-party/a b", "ok")
    place = root / "third-party/a b"
    git(root, "submodule", "--quiet", "deinit", "-f", "third-party/a b")
    (place / "json.hpp").write_text("// a copy")
    assert survey_checkout(root).submodules == (module,)
    # Git lists no submodule inside one that has no repository.
    nested = "third-party/a b/re2"
    needed = module.path, nested
    missing = SubmoduleFacts(nested, "missing")
    assert survey_checkout(root, needed).submodules == (module, missing)
    (place / "re2").mkdir()
    (place / "re2/re2.h").write_text("// a copy")
    assert survey_checkout(root, needed).submodules == (module, replace(missing, state="ok"))
    git(place, "init", "-q")
    git(place, "commit", "-q", "--allow-empty", "-m", "another")
    (moved,) = survey_checkout(root).submodules
    assert moved == replace(module, state="moved", commit=read_commit(place))
    assert moved.commit != module.commit


def test_a_checkout_has_a_version_and_may_have_an_adaptor(tmp_path: Path) -> None:
    bare = CheckoutFacts(tmp_path, is_directory=True)
    assert survey_checkout(tmp_path) == bare
    (tmp_path / "version.txt").write_text(f" 1.5.1{'a' * 40}\n")
    place = tmp_path / "backends/qualcomm/python"
    place.mkdir(parents=True)
    (place / "PyQnnManagerAdaptor.so").touch()
    checkout = survey_checkout(tmp_path)
    assert checkout == replace(bare, has_adaptor=True, version=f"1.5.1{'a' * 35}")
    gone = tmp_path / "gone"
    assert survey_checkout(gone) == CheckoutFacts(gone, is_directory=False)


def test_each_phone_is_addressed_by_its_serial_number(tmp_path: Path) -> None:
    program(
        tmp_path / "adb",
        "[ $1 = devices ] && printf 'List of devices attached\\na\\tdevice\\nb\\toffline\\n"
        'c\\tdevice\\n\' && exit\n[ "$1$3" = -sshell ] || exit 1\n[ $2 = c ] && exit 1\n'
        "echo soc=$2; echo page=16384",
    )
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ready = DeviceFacts("a", "device", soc="a", page_bytes=16384, directory="/d")
    silent = DeviceFacts("c", "device", directory="/d")
    assert survey_devices(path, "/d") == (ready, DeviceFacts("b", "offline"), silent)


@pytest.mark.parametrize(("su", "is_root"), [("echo 0", True), ("echo no >&2; exit 1", False)])
def test_commands_for_a_device_are_run_by_its_shell(tmp_path: Path, su: str, is_root: bool) -> None:
    """This computer stands in for the device, with a program that prints properties."""
    program(tmp_path / "bin/getprop", "echo of-$1")
    program(tmp_path / "bin/su", su)
    program(tmp_path / "bin/id", "echo 2000")
    program(tmp_path / "bin/getconf", "echo of $1 >&2; echo 4096")
    program(tmp_path / "bin/df", "echo a header\necho /dev/x 9 4 5000000 45% $2")
    place = tmp_path / "place"
    place.mkdir()
    (place / "libQnnHtp.so").write_bytes(b"\0v2.49.40.260810104044\0v2.50.40.260810104044\0")
    (place / "libQnnGpu.so").write_bytes(b"\0none\0")
    (place / "libQnnDirectory.so").mkdir()
    (place / "libother.so").write_bytes(b"v2.49.40.260810104044")
    program(
        tmp_path / "adb",
        f"[ $1 = devices ] && printf 'List of devices attached\\na\\tdevice\\n' && exit\n"
        f'PATH={tmp_path}/bin:$PATH sh -c "$4"',
    )
    assert survey_devices({"PATH": f"{tmp_path}:/usr/bin:/bin"}, str(place)) == (
        DeviceFacts(
            *("a", "device", "of-ro.soc.model", "of-ro.build.version.release"),
            page_bytes=4096,
            free_mb=5120,
            is_root=is_root,
            directory=str(place),
            libraries={"libQnnHtp.so": "v2.49.40.260810104044", "libQnnGpu.so": ""},
        ),
    )


def test_creating_a_qnn_device_is_tried_once_per_adaptor_and_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = tmp_path / "says"
    python = program(tmp_path / "python", f"echo $MARK >> {tmp_path}/asked; cat {says}")
    adaptor, library = tmp_path / "P.so", tmp_path / "libQnnHtp.so"
    probe = tmp_path / "probe.py"
    monkeypatch.setattr(qnn_probe, "__file__", str(probe))

    def ask() -> tuple[str, int]:
        variables, kept_file = {"PATH": "/usr/bin:/bin", "MARK": "x"}, tmp_path / "kept"
        why = try_device(python, adaptor, library, variables, kept_file)
        return why, (tmp_path / "asked").read_text().count("x")

    for path in (adaptor, library, probe):
        path.write_text("first")
    says.write_text("device ok\n")
    assert [ask(), ask()] == [("", 1), ("", 1)]
    says.write_text("device ok\n <E> no socModel \ndevice Error\n")
    for count, path in enumerate((adaptor, library, probe), 2):
        path.write_text("second")
        assert [ask(), ask()] == [("no socModel", count)] * 2
    says.write_text("device Error\n")
    adaptor.write_text("third")
    assert ask()[0] == "Error"
    says.write_text("no word of a device")
    adaptor.write_text("fourth")
    assert ask()[0].startswith("the process exited")


def test_creating_a_qnn_device_is_remembered_per_backend(tmp_path: Path) -> None:
    python = program(tmp_path / "python", '[ "$3" = htp ] && echo device ok || echo device no')
    for name in ("P.so", "lib.so"):
        (tmp_path / name).touch()
    places = (python, tmp_path / "P.so", tmp_path / "lib.so", {"PATH": "/bin"}, tmp_path / "kept")
    reasons = {
        backend: try_device(*places, backend=backend) for backend in (Backend.HTP, Backend.GPU)
    }
    assert reasons == {Backend.HTP: "", Backend.GPU: "no"}


def test_version_headers_and_libraries_of_an_sdk_are_surveyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of the SDK is loaded only on request."""
    monkeypatch.setattr(host, "run_process", None)
    for name in ("lib/hexagon-v75/unsigned", "lib/hexagon-v75/other", "bin/x", "include/QNN"):
        (tmp_path / name).mkdir(parents=True)
    parts = (("MAJOR", 2), ("MINOR", 27), ("PATCH", 1))
    text = "".join(f" #  define QNN_API_VERSION_{name} {number}\n" for name, number in parts)
    (tmp_path / "include/QNN/QnnCommon.h").write_text(text)
    description = tmp_path / "sdk.yaml"
    description.write_text("version: 2.49.40\nbuild_id: '260810104044'\n")
    sdk = survey_sdk(tmp_path, ["QnnCommon.h", "b"])
    assert sdk == SdkFacts(
        tmp_path,
        is_directory=True,
        markers=("sdk.yaml",),
        version="2.49.40",
        stamp="260810104044",
        directories=("bin/x", "lib/hexagon-v75", "lib/hexagon-v75/unsigned"),
        headers=("QnnCommon.h",),
        api_version="2.27.1",
    )
    description.write_text("version: [")
    damaged = survey_sdk(tmp_path, ["QnnCommon.h"])
    assert damaged.fault
    assert "sdk.yaml" not in damaged.fault  # the finding already names it
    assert damaged == replace(sdk, version=None, stamp=None, fault=damaged.fault)
    assert not survey_sdk(description, []).is_directory


@pytest.mark.parametrize(
    ("printed", "api"),
    [("it logs\napi 2.27.1\n", "2.27.1"), ("an api 2.27.1\napi 2.27\n", None), (None, None)],
)
def test_a_library_is_loaded_in_a_process_that_finds_its_neighbours(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str | None,
    api: str | None,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    place = str(tmp_path / "lib/x86_64-linux-clang")
    questions: list[tuple[str, str | None]] = []

    def answer(words: list[str], *, env: dict[str, str], **_: object) -> Completed:
        questions.append((words[-1], env["LD_LIBRARY_PATH"]))
        if printed is None:
            raise ToolError("it cannot be started")
        return Completed(tuple(words), -11, printed, 0)

    monkeypatch.setattr(host, "run_process", answer)
    facts = survey_sdk(tmp_path, [], asks_library=True)
    assert questions == [(f"{place}/libQnnHtp.so", place)]
    assert facts == replace(survey_sdk(tmp_path, []), library_api=api)


def answer(tmp_path: Path, **change: object) -> Path:
    answers: dict[str, object] = {
        "executable": "/py",
        "version": [3, 11, 4],
        "tag": ".cpython-311.so",
        "distributions": {},
        "modules": {},
        "executorch": None,
        "adaptors": [],
        "flatc": None,
        "asked": [],
        "installed": "",
        "pth": [],
        "shadowed": [],
        **change,
    }
    return program(tmp_path / "py", f"echo hello\ncat <<'END'\n{json.dumps(answers)}\nEND")


@pytest.mark.parametrize(
    ("line", "installed", "is_unmet"),
    [
        ("numpy>=2", "1.26.4", True),
        ("numpy>=2", "2.0", False),
        ("numpy>=2", "", False),
        ("numpy>=2; python_version<'3.11'", "1.26.4", False),
        ("numpy>=2; python_version>='3.11'", "1.26.4", True),
        ("numpy>=2; extra=='dev'", "1.26.4", False),
        ("numpy", "1", False),
    ],
)
def test_unmet_requirements_of_executorch_on_this_python_are_found(
    tmp_path: Path, line: str, installed: str, is_unmet: bool
) -> None:
    facts = survey_python(answer(tmp_path, asked=[[line, installed]]), (), (), {})
    assert facts.error == ""
    assert facts.unmet == ((("numpy", installed, ">=2"),) if is_unmet else ())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("echo Traceback; echo ImportError: no; exit 1", "ImportError: no"),
        ("exit 1", "it printed nothing"),
        ("", "its output cannot be read: "),
        *(
            (f"echo '{printed}'", "its output cannot be read: ")
            for printed in ("no JSON", "{}", "[]", "null", '{"adaptors": 1}')
        ),
    ],
)
def test_a_python_that_fails_is_an_error(tmp_path: Path, text: str, error: str) -> None:
    python = program(tmp_path / "py", text)
    facts = survey_python(python, (), (), {})
    assert facts == PythonFacts(str(python), error=facts.error)
    assert facts.error.startswith(error)


def test_an_adaptor_of_an_overlay_tells_what_it_was_built_with(tmp_path: Path) -> None:
    package, adaptor = tmp_path / "overlay/executorch", tmp_path / "P.cpython-311.so"
    package.mkdir(parents=True)
    write_overlay(package.parent, OverlayRecord("1.5.1", "2.49.40", "cpython-311"))
    shutil.copy(LIBRARY, adaptor)
    python = answer(tmp_path, adaptors=[str(adaptor)], executorch=str(package))
    facts = survey_python(python, (), (), {})
    assert (facts.checkout, facts.built_with) == ("1.5.1", "2.49.40")
    assert facts.lacking == ("libneeded.so",)
    lone = survey_python(answer(tmp_path, adaptors=[str(adaptor)]), (), (), {})
    assert (lone.checkout, lone.built_with, lone.lacking) == ("", "", facts.lacking)


@pytest.mark.parametrize(
    ("change", "variables", "lacking"),
    [
        ({}, {}, ["libone.so", "libtwo.so"]),
        ({"needed": ("libc.so.6", "libtwo.so")}, {}, ["libtwo.so"]),
        ({}, {"LD_LIBRARY_PATH": "/nowhere:{root}/one:"}, ["libtwo.so"]),
        ({"runpath": ("$ORIGIN/../two",)}, {}, ["libone.so"]),
        ({"rpath": ("{root}/two",), "runpath": ("$ORIGIN/../one",)}, {}, []),
    ],
)
def test_missing_libraries_of_an_adaptor_are_found_as_the_loader_searches(
    tmp_path: Path,
    host_libraries: Path,
    change: dict[str, Any],
    variables: dict[str, str],
    lacking: list[str],
) -> None:
    (host_libraries / "libc.so.6").touch()
    for name in ("one", "two", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"lib{name}.so").touch()
    for name in ("rpath", "runpath"):
        change[name] = tuple(entry.format(root=tmp_path) for entry in change.get(name, ()))
    variables = {name: text.format(root=tmp_path) for name, text in variables.items()}
    needed = change.pop("needed", ("libone.so", "libtwo.so"))
    elf = replace(read_elf(LIBRARY), needed=needed, **change)
    file = replace(cases.file("a.so"), path=tmp_path / "own/a.so", elf=elf)
    assert list(lacking_of(file, variables)) == lacking


@pytest.mark.parametrize(
    ("change", "loads"),
    [
        ({"headers": "2.49.0", "checkout": "1.5.1"}, True),
        ({"headers": "2.50.0"}, False),
        ({"adaptor": None}, False),
        ({"adaptor": cases.file("a.so", machine=EM_AARCH64)}, False),
        ({"lacking": ("libx.so",)}, False),
        ({"checkout": "1.4.1"}, False),
    ],
)
def test_an_adaptor_is_loaded_only_if_it_fits_the_sdk(change: dict[str, Any], loads: bool) -> None:
    usual: dict[str, Any] = {"adaptor": cases.file("a.so"), "lacking": ()}
    python = replace(cases.PYTHON, **{**usual, **change})
    assert may_load(python, SdkFacts(Path("/sdk"), is_directory=True, version="2.49.0")) is loads


def test_the_adaptor_is_the_one_with_pythons_own_suffix(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"P.cpython-{tag}.so") for tag in ("310", "311", "312")]
    for path in paths:
        shutil.copy(LIBRARY, path)
    paths.insert(1, str(shutil.copy(LIBRARY, tmp_path / "P.cpython-311.so.old")))
    (tmp_path / "executorch").mkdir()
    facts = survey_python(
        answer(tmp_path, adaptors=paths, executorch=str(tmp_path / "executorch")), (), (), {}
    )
    assert facts.adaptor is not None
    assert str(facts.adaptor.path) == paths[2]
    assert facts.adaptors == tuple(paths)
    Path(paths[2]).write_bytes(b"")
    facts = survey_python(answer(tmp_path, adaptors=paths), (), (), {})
    assert facts.adaptor is not None
    assert facts.adaptor.defect is Defect.EMPTY
    assert survey_python(answer(tmp_path, adaptors=paths[:2]), (), (), {}).adaptor is None


def test_facts_of_another_python_are_read_in_its_own_process() -> None:
    """Modules next to the script that asks do not count as its modules."""
    facts = survey_python(Path(sys.executable), ["pytest", "none-such"], ["json", "host"], {})
    assert (facts.version, facts.distributions, facts.modules, facts.error) == (
        tuple(sys.version_info[:3]),
        {"pytest": metadata.version("pytest"), "none-such": None},
        {"json": True, "host": False},
        "",
    )
    assert facts.tag == importlib.machinery.EXTENSION_SUFFIXES[0]
    assert Path(facts.executable).samefile(sys.executable)


# -- the whole environment ------------------------------------------------------------------------
