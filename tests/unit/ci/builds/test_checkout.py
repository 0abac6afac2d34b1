"""The job of a checkout; all that the checkout, an SDK or a Python lacks is named before."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import checkout
from ci.builds.checkout import (
    check_lpai,
    find_python,
    list_names,
    prepare_checkout,
    probe_python,
    require_same_version,
)
from ci.builds.plan import BuildRequest
from ci.builds.targets import Needs, find_target
from ci.builds.toolchains import Compilers
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned
from provisioning.console.progress import Progress
from provisioning.doctor.facts import PythonFacts
from provisioning.doctor.survey import host
from provisioning.errors import UnfitError
from provisioning.manifest.pairs import read_pairs
from tests.build.builds import TOOLS, explain

# What a checkout lacks


def locate(rows: tuple[Provisioned, ...], variables: dict[str, str]) -> Any:
    """A stand-in for locate_artifacts that finds these artifacts, and misses none."""

    def find_root(name: str) -> Path | None:
        return next((row.root for row in rows if row.name == name), None)

    def find(profile: str, _: Progress) -> Any:
        environment = Environment(profile, rows, variables)
        return SimpleNamespace(
            artifacts=rows, find_root=find_root, compose=lambda: environment, name=profile
        )

    return find


NOT_HEXAGON = "#ifndef __hexagon__\n"
A, B = "QNN_HTP_A\n", "QNN_HTP_B\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("QNN_HTP_A", "QNN_HTP_A"),
        *(
            (f"f({name}, x{name}, {name.lower()})", name)
            for name in (
                *("QNN_HTP_A_1", "QNN_GPU_A", "QNN_LPAI_A", "QNN_IR_A", "QNN_SAVER_A"),
                *("QNN_SYSTEM_A", "QnnHtp_Setting_t", "Qnn_A1_t"),
            )
        ),
        ("QNN_HTP_, QNN_OP_A, QNN_HTP_a, QnnHtp_Setting, QnnHtp_t", ""),
        (f"#endif\n#else\n{A}#elif\n", "QNN_HTP_A"),
        ("#define A QNN_HTP_A\n#pragma QNN_HTP_B\n", ""),
        ('"a\\"QNN_HTP_A" "QNN_HTP_B\nQNN_HTP_C"', "QNN_HTP_B QNN_HTP_C"),
        (f"{NOT_HEXAGON}{A}#endif\n{B}", "QNN_HTP_A QNN_HTP_B"),
        (f"{NOT_HEXAGON}#else\n{A}#endif", ""),
        (f"{NOT_HEXAGON}#elif NEWER\n{A}#endif", ""),
        (f"#if NEWER\n#else\n{A}#endif", ""),
        (f"#if NEWER\n#elif NEW\n{A}#else\n{A}#endif\n{B}", "QNN_HTP_B"),
        (f"#ifdef NEWER\n{A}#endif\n{B}", "QNN_HTP_B"),
        (f"{NOT_HEXAGON}#if NEWER\n{A}#endif\n{B}#endif", "QNN_HTP_B"),
        (f"{NOT_HEXAGON}{NOT_HEXAGON}#else\n#endif\n{B}#endif", "QNN_HTP_B"),
        (f"{NOT_HEXAGON}{NOT_HEXAGON}#else\n{A}#endif\n#endif", ""),
        (f"// A\n#ifndef A_H\n#define A_H\n{A}#endif  // A_H\n", "QNN_HTP_A"),
        (f"#ifndef A_H\n#define B_H\n{A}#endif\n", ""),
        (f"{B}#ifndef A\n#define A\n{A}#endif\n", "QNN_HTP_B"),
        ('// QNN_HTP_A\n/* QNN_HTP_A */ "QNN_HTP_A"', ""),
    ],
)
def test_only_qnn_names_that_every_platform_compiles_are_listed(text: str, names: str) -> None:
    assert list_names(text) == {*names.split()}


# The Python of a build


NEEDS = Needs(modules=("yaml", "ruamel"), option_modules={"A": ("torch",), "B": ("torch", "tomli")})


@pytest.mark.parametrize(
    ("present", "defines", "missing", "fix"),
    [
        ("yaml ruamel torch tomli", {}, "", ""),
        ("yaml torch tomli", {}, "ruamel", "ruamel"),
        ("yaml ruamel torch", {}, "tomli", "tomli, or add -D B=OFF"),
        ("ruamel", {"B": "OFF"}, "yaml, torch", "pyyaml torch, or add -D A=OFF"),
        ("yaml ruamel", {"A": "OFF", "B:BOOL": "0"}, "", ""),
    ],
)
def test_every_missing_module_is_named_with_the_options_that_need_it(
    monkeypatch: pytest.MonkeyPatch, present: str, defines: dict[str, str], missing: str, fix: str
) -> None:
    def ask(_: Path, modules: tuple[str, ...]) -> Any:
        presence = {name: name in present.split() for name in modules}
        return PythonFacts(
            "py", modules=presence, tag=".cpython-312-x86_64-linux", version=(3, 12, 1)
        )

    monkeypatch.setattr(checkout, "ask_python", ask)
    result = explain(lambda: probe_python(NEEDS, BuildRequest(python=Path("py"), defines=defines)))
    if missing:
        assert result.startswith(f"UnfitError py has no module {missing}\n")
        assert result.endswith(f"fix: py -m pip install {fix}")
    else:
        assert result == "('cpython-312', '3.12.1')"
    unchecked = BuildRequest(python=Path("py"), packages=False)
    assert probe_python(NEEDS, unchecked) == ("cpython-312", "3.12.1")


@pytest.mark.parametrize(
    ("cuda", "toolkit", "defines", "is_refused"),
    [
        ("", "", {}, False),
        ("12.8", "", {}, True),
        ("12.8", "", {"A": "OFF"}, True),  # B needs torch, too
        ("12.8", "", {"A": "OFF", "B": "OFF"}, False),
        ("12.8", "bin/nvcc", {}, False),
        ("12.8", "include/cuda.h", {}, True),
    ],
)
def test_a_cuda_torch_without_a_toolkit_is_refused_before_cmake(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cuda: str,
    toolkit: str,
    defines: dict[str, str],
    is_refused: bool,
) -> None:
    def ask(_: Path, modules: tuple[str, ...]) -> PythonFacts:
        presence = dict.fromkeys(modules, True)
        return PythonFacts(
            "py", (3, 12, 1), ".cpython-312-x86_64-linux", modules=presence, torch_cuda=cuda
        )

    if toolkit:
        (tmp_path / toolkit).parent.mkdir()
        (tmp_path / toolkit).touch()
    monkeypatch.setattr(host, "CUDA", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(checkout, "ask_python", ask)
    result = explain(lambda: probe_python(NEEDS, BuildRequest(python=Path("py"), defines=defines)))
    option = "B" if "A" in defines else "A"
    if is_refused:
        assert result.startswith("UnfitError torch in py was built for CUDA 12.8, and this machine")
        assert result.endswith(f"or add -D {option}=OFF")
    else:
        assert result == "('cpython-312', '3.12.1')"


def test_the_python_option_is_a_path_a_command_or_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python9.98", "mine", "pythonmine", "python"):
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "venv").symlink_to("mine")  # whose target has other packages
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    named = {"9.98": "python9.98", "./mine": "mine", str(tmp_path / "mine"): "mine"}
    for word, name in {**named, "mine": "mine", "venv": "venv"}.items():
        assert find_python(word) == tmp_path / name
    assert find_python("") == Path(sys.executable)
    for path in (str(tmp_path / "python3"), "bin/python3"):
        refusal = explain(lambda word=path: find_python(word))
        assert refusal.startswith(f"UnfitError {path} is not an executable file")
    assert explain(lambda: find_python("9.99")).startswith("UnfitError there is no Python '9.99'")


# SDKs and the doctor


@pytest.mark.parametrize(
    ("executorch", "sdk", "refused"),
    [
        ("1.5.1", "2.38.1", True),
        ("1.5.1", "2.39.0", False),
        ("1.5.1", "2.50.1", False),
        ("1.2", "2.38.1", False),  # without a version for LPAI
        ("9.9", "2.38.1", False),  # unknown
    ],
)
def test_a_build_for_lpai_needs_an_sdk_that_lowers_for_it(
    executorch: str, sdk: str, refused: bool
) -> None:
    row = read_pairs().find("1.5.1")
    assert row
    assert row.lpai == "2.39"
    versions = {"qnn-sdk": sdk, "executorch": executorch}
    rows = tuple(Provisioned(name, version, Path()) for name, version in versions.items())
    result = explain(lambda: check_lpai(Environment("direct-lpai", rows, {})))
    assert ("QNN SDK 2.39 or later" in result) is refused
    assert result.startswith("UnfitError for LPAI" if refused else "None")


# The job


@pytest.mark.parametrize(
    ("version", "first"),
    [
        ("1.4.1", "run `./nox -s build_aot -- --executorch 1.4.1`, which creates an environment"),
        ("1.5.0", "install executorch==1.5.0 for py"),  # ./nox refuses it
    ],
)
def test_nox_is_named_only_for_a_version_that_it_supports(version: str, first: str) -> None:
    with pytest.raises(UnfitError) as caught:
        require_same_version(Path("py"), "1.5.1", version)
    assert caught.value.fix.split("; or ")[0] == first


def test_another_version_is_named_before_anything_that_the_checkout_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No submodule that is fetched for the wrong version is of use: neither that of the wheel nor
    that of --executorch."""
    versions = {"executorch": "1.5.0", "qnn-sdk": "2.37.0"}
    rows = tuple(Provisioned(*row, tmp_path / row[0]) for row in versions.items())
    monkeypatch.setattr(checkout, "locate_artifacts", locate(rows, {}))
    facts = PythonFacts("py", distributions={"executorch": "1.5.1"})
    monkeypatch.setattr(checkout, "ask_python", lambda *_: facts)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))

    def prepare(target: str, *, lays_over: bool = False, executorch: str = "") -> str:
        request = BuildRequest(python=Path("py"), lays_over=lays_over, executorch=executorch)
        return explain(lambda: prepare_checkout(find_target(target), request, Progress(None)))

    mismatch = "UnfitError the checkout is ExecuTorch 1.5.0, but executorch 1.5.1 is installed"
    assert prepare("aot", lays_over=True).startswith(mismatch)
    assert not prepare("aot", lays_over=False).startswith(mismatch)
    assert not prepare("android", lays_over=True).startswith(mismatch)
    mismatch = "UsageError --executorch is 1.5.1, but the sources to build are ExecuTorch 1.5.0"
    assert prepare("android", executorch="1.5.1").startswith(mismatch)
    assert not prepare("android", executorch="v1.5.0").startswith("UsageError")


def test_each_python_and_sdk_has_a_build_of_an_adaptor_and_shares_that_of_a_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, files of one build would be used for another."""
    roots = ("QNN_SDK_ROOT", "ANDROID_NDK_ROOT", "HEXAGON_SDK_ROOT", "HEXAGON_TOOLS_ROOT")
    values = {"hexagon_tools_root": "/tools", "android_platform": "android-30"}
    for name, answer in {
        **dict.fromkeys(("check_submodules", "check_fitness", "check_headers", "check_names")),
        "check_programs": None,
        "resolve_compilers": Compilers({}, {"cxx": "one"}, values),
        **dict.fromkeys(("wanted_submodules", "list_submodules"), ()),
        "find_installed": frozenset(),
        "find_tools": TOOLS,
    }.items():
        monkeypatch.setattr(checkout, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))

    def place(target: str, tag: str, sdk: str, **choices: Any) -> Path:
        versions = {"executorch": "1.5.1", "qnn-sdk": sdk, "hexagon-sdk": "6", "android-ndk": "26"}
        rows = tuple(Provisioned(*row, tmp_path / row[0]) for row in versions.items())
        variables = {name: f"/{name}" for name in roots}
        monkeypatch.setattr(checkout, "locate_artifacts", locate(rows, variables))
        monkeypatch.setattr(checkout, "probe_python", lambda *_: (tag, "3.12.1"))
        checkout_plan = prepare_checkout(
            find_target(target), BuildRequest(**choices), Progress(None)
        )
        return checkout_plan.plan.place.root

    pairs = [("cpython-311", "2.37.0"), ("cpython-312", "2.37.0"), ("cpython-311", "2.49.40")]
    assert len({place("aot", *pair) for pair in (*pairs, pairs[0])}) == 3
    assert len({place("android", *pair) for pair in pairs}) == 1
    socs = [("SM8850", 0, "2.49.40"), ("SM8850", 3, "2.38.1"), ("SM8650", 3, "2.38.1")]
    assert len({place("direct", "x", sdk, soc=soc, dsp_type=kind) for soc, kind, sdk in socs}) == 3
    refusal = explain(lambda: place("direct", "x", "2.38.1", soc="SM8850", dsp_type=0))
    assert refusal.startswith("UnfitError for LPAI")
