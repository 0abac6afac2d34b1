from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from provisioning.__main__ import main
from provisioning.console.progress import Progress
from provisioning.doctor.examine import SCHEMA_VERSION, Verdict, find_fitness
from provisioning.doctor.policies import read_doctor_policy
from provisioning.doctor.registry import Finding, Severity
from provisioning.doctor.survey.environment import SurveyRequest
from provisioning.doctor.verdict_text import render_verdict
from provisioning.errors import ExitCode, UnfitError, UsageError
from provisioning.manifest.reader import read_profile, read_profiles
from provisioning.manifest.targets import Backend
from provisioning.store.store import Published, Store
from provisioning.verbs import doctor
from provisioning.verbs.doctor import check_roots, compose_request, parse_roots

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


def make(number: int, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(
        f"QNN{number}", "it", f"fault {number} " + "long " * 40, "here", "later", "repair", severity
    )


@pytest.mark.parametrize(
    ("errors", "lacks"),
    [
        ((), None),
        ((909,), "QNN909"),
        ((909, 910), "QNN909"),
        ((101, 909), None),  # QNN101 is another kind of error
        ((909, 999), None),
    ],
)
def test_a_machine_lacks_a_library_only_if_that_is_the_only_error(
    errors: tuple[int, ...], lacks: str | None
) -> None:
    findings = (make(100, Severity.WARNING), *map(make, errors), make(998, Severity.NOTE))
    lacking = Verdict("p", findings).lacks
    assert (lacking.id if lacking else None) == lacks


def test_a_fit_verdict_shows_its_facts_with_units() -> None:
    facts = {
        "sdk": {"version": "2.49", "root": "/sdk"},
        "trees": {
            "a": {"files": 3, "bytes": 2_000_000, "builds": ["v2.49.40.260810104044"]},
            "b": {"files": 40, "bytes": 1_499_000_000, "builds": []},
            "c": {"files": 4, "bytes": 1_000_000, "builds": ["v2.49.40.1", "v2.50.40.1"]},
        },
        "host": {"system": "Linux", "machine": "x86_64", "glibc": "2.36", "cores": 8},
        "python": {"version": (3, 11, 7), "distributions": {"torch": "2.12", "numpy": ""}},
        "devices": [
            {"serial": "1", "soc": "SM8650", "android": "16"},
            {"serial": "2", "soc": "SM8750", "android": "15"},
        ],
    }
    assert [line.strip() for line in render_verdict(Verdict("p", (), facts)).splitlines()] == [
        "p: fit",
        "QNN 2.49 in /sdk",
        "3 libraries and programs, 1.91 MiB, QNN build v2.49.40.260810104044",
        "40 libraries and programs, 1.40 GiB",
        "4 libraries and programs, 977 KiB",
        "Linux x86_64, glibc 2.36, 8 cores",
        "Python 3.11.7, torch 2.12",
        "device 1: SM8650, Android 16",
        "device 2: SM8750, Android 15",
    ]
    python = {"version": (3, 11), "distributions": {"torch": ""}}
    assert render_verdict(Verdict("p", (), {"python": python})).endswith("  Python 3.11\n")


@pytest.mark.parametrize(
    ("numbers", "count_text"),
    [
        ((1,), ""),
        ((2, 1), " (and 1 more)"),
        ((3, 2, 1), " (and 2 more)"),
    ],
)
def test_an_unfit_error_names_the_first_finding_and_lists_the_rest(
    numbers: tuple[int, ...], count_text: str
) -> None:
    findings = (*map(make, numbers), make(8, Severity.WARNING), make(9, Severity.NOTE))
    verdict = Verdict("p", findings, {"a": 1})
    with pytest.raises(UnfitError) as caught:
        verdict.require()
    headlines = [finding.what for finding in findings]
    assert caught.value.what == f"QNN{numbers[0]}: {headlines[0]}{count_text}"
    later_lines = [f"also {finding.id}: {finding.what}; fix: repair" for finding in findings[1:-2]]
    assert caught.value.why.split("\n    ") == ["later (seen: here)", *later_lines]
    assert caught.value.fix == "repair"
    data = verdict.data(strict=True)
    assert (data["errors"], data["warnings"], len(data["findings"])) == (
        *(len(numbers), 1),
        len(numbers) + 2,
    )
    assert (data["profile"], data["strict"], data["facts"]) == ("p", True, {"a": 1})
    assert (data["schema_version"], data["fit"]) == (SCHEMA_VERSION, False)


@pytest.mark.parametrize(("why", "room"), [("later", 8), ("later " * 20, 7)], ids=["even", "odd"])
@pytest.mark.parametrize("kinds", [7, 8, 9, 40])
def test_warnings_beyond_one_screen_are_counted(kinds: int, why: str, room: int) -> None:
    findings = tuple(
        Finding(f"QNN{number}", "it", "a fault", "here", why, "repair", severity)
        for number, severity in enumerate(
            [Severity.ERROR, *[Severity.WARNING] * (kinds - 1)], start=200
        )
    )
    lines = render_verdict(Verdict("p", findings)).splitlines()
    shown = sum(line.lstrip().startswith("QNN") for line in lines)
    hidden = kinds - shown
    plural = "s" if hidden > 1 else ""
    left = f"  and {hidden} more kind{plural} of warning; --json lists everything"
    assert shown == min(kinds, room)
    assert lines[-1] == (left if shown < kinds else " " * 9 + "fix: repair")


def test_all_errors_are_listed() -> None:
    errors = tuple(make(number) for number in range(200, 240))
    less = (make(300, Severity.WARNING), make(301, Severity.NOTE), make(302, Severity.NOTE))
    lines = render_verdict(Verdict("p", (*errors, *less))).splitlines()
    assert sum(line.lstrip().startswith("QNN2") for line in lines) == 40
    hidden = "1 more kind of warning and 2 more kinds of note"
    assert lines[-1] == f"  and {hidden}; --json lists everything"


def test_errors_come_before_warnings_and_these_before_notes() -> None:
    findings = tuple(
        Finding(f"QNN{number}", "it", "a fault", "here", "later", "repair", severity)
        for number, severity in enumerate((Severity.NOTE, Severity.WARNING, Severity.ERROR), 101)
    )
    assert render_verdict(Verdict("p", findings)).splitlines() == [
        "p: not fit, 1 error, 1 warning, 1 note",
        *("", "Fix this first:", "  QNN103  a fault"),
        *("  seen    here", "  why     later", "  fix     repair"),
        *("", "Then:", "  QNN102 warning: a fault", "         fix: repair"),
        *("  QNN101 note: a fault", "         fix: repair"),
    ]
    assert render_verdict(Verdict("p", findings[:2])).startswith("p: fit, 1 warning, 1 note\n")


def test_faults_of_one_kind_are_one_entry() -> None:
    text = render_verdict(Verdict("p", (make(101), make(216), make(216), make(216))))
    assert text.count("QNN216") == 1
    assert "(and 2 more) fix: repair" in " ".join(text.split())
    assert "3 errors" not in text.splitlines()[0]
    assert "4 errors" in text.splitlines()[0]


def test_a_root_option_is_name_equals_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_CALLER_DIR", "/caller")
    monkeypatch.setenv("HOME", "/home/me")
    assert parse_roots(["qnn-sdk=/opt/q=1", "ndk=here", "executorch=~/e"]) == {
        "qnn-sdk": Path("/opt/q=1"),
        "ndk": Path("/caller/here"),
        "executorch": Path("/home/me/e"),
    }
    for wrong in ("/opt/q", "=/opt/q", "qnn-sdk=", "="):
        with pytest.raises(UsageError, match="is not NAME=DIR"):
            parse_roots(["ndk=/n", wrong])
    monkeypatch.delenv("QNN_CI_CALLER_DIR")
    assert parse_roots(["ndk=here"]) == {"ndk": Path.cwd() / "here"}


def test_root_staging_is_accepted_for_every_profile_and_an_unknown_root_is_not() -> None:
    for profile in ("android", "emulator"):
        check_roots(profile, {"staging": Path("/s")})
    with pytest.raises(UsageError, match="has no artifact other"):
        check_roots("android", {"staging": Path("/s"), "other": Path("/o")})


def test_given_roots_come_before_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    base = {"QNN_SDK_ROOT": "/from/shell", "EXECUTORCH_ROOT": "/src/executorch"}
    request = compose_request("aot", {"qnn-sdk": Path("/given")}, base, keep_variables=False)
    assert request.roots == {"qnn-sdk": Path("/given"), "executorch": Path("/src/executorch")}
    path = "/given/lib/x86_64-linux-clang"
    assert request.variables == {**base, "QNN_SDK_ROOT": "/given", "LD_LIBRARY_PATH": path}
    alone = {"QNN_SDK_ROOT": "/from/shell"}
    request = compose_request("aot", {"qnn-sdk": Path("/given")}, alone, keep_variables=False)
    assert request.roots == {"qnn-sdk": Path("/given")}
    assert request.variables == alone  # the profile also needs executorch
    given_roots = {"executorch": Path("/given")}
    request = compose_request("aot", given_roots, alone, keep_variables=False)
    assert request.roots == {"qnn-sdk": Path("/from/shell"), **given_roots}


@pytest.mark.parametrize(
    ("variable", "paths_by_name", "named"),
    [
        ("QNN_SDK_ROOT", {}, "QNN_SDK_ROOT=PLACE/file is not"),
        ("QNN_CI_SDK", {}, "QNN_CI_SDK=PLACE/file is not"),
        ("", {"qnn-sdk": "file"}, "--root qnn-sdk=PLACE/file is not"),
    ],
)
def test_a_root_that_is_a_file_is_named_with_its_origin(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    paths_by_name: dict[str, str],
    named: str,
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    (tmp_path / "file").touch()
    roots = {name: tmp_path / path for name, path in paths_by_name.items()}
    base = {variable: str(tmp_path / "file")} if variable else {}
    with pytest.raises(UnfitError) as caught:
        compose_request("aot", roots, base, keep_variables=False)
    assert caught.value.what.startswith(named.replace("PLACE", str(tmp_path)))
    assert caught.value.why == "it is a file"


@pytest.mark.parametrize("has_libcxx", [True, False])
def test_a_given_sdk_may_contain_libcxx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_libcxx: bool
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    given_roots = {"qnn-sdk": Path("/opt/q"), **({} if has_libcxx else {"libcxx": Path("/opt/c")})}
    request = compose_request("emulator-sdk", given_roots, {"PATH": "/bin"}, keep_variables=False)
    assert request.roots == given_roots
    assert request.variables["QNN_SDK_ROOT"] == "/opt/q"
    places = request.variables["LD_LIBRARY_PATH"].split(":")
    assert places == ["/opt/q/lib/x86_64-linux-clang", *([] if has_libcxx else ["/opt/c/lib"])]


def test_a_given_sdk_is_examined_instead_of_that_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "find", lambda store, key: Published(tmp_path, key.artifact))
    base = {"PATH": "/bin", "LD_LIBRARY_PATH": "/mine"}
    stored = compose_request("emulator", {}, base, keep_variables=False)
    assert stored.roots["qnn-runtime"] == tmp_path / "qnn-runtime"
    assert stored.variables["QNN_SDK_ROOT"] == str(tmp_path / "qnn-runtime")
    assert compose_request("emulator", {}, base, keep_variables=True).variables == base
    given_sdk = compose_request("emulator", {"qnn-sdk": Path("/opt/q")}, base, keep_variables=False)
    assert (given_sdk.roots["qnn-sdk"], "qnn-runtime" in given_sdk.roots) == (Path("/opt/q"), False)
    assert given_sdk.variables == base


@pytest.mark.parametrize("profile", sorted(read_doctor_policy().profiles))
def test_what_the_doctor_asks_for_is_what_the_profile_provisions(profile: str) -> None:
    fitness, provisioned = find_fitness(profile), read_profile(profile)
    names = {artifact.name for artifact in provisioned.artifacts}
    assert {*fitness.sdk[:1], *fitness.roots} <= names


def test_every_profile_has_a_policy() -> None:
    assert read_profiles().keys() == read_doctor_policy().profiles.keys()


def test_the_doctors_pinned_torch_and_executorch_are_those_of_pyproject() -> None:
    groups = tomllib.loads(PYPROJECT.read_text())["dependency-groups"]["lowering"]
    policy = read_doctor_policy().python
    assert f"torch=={policy.torch}" in groups
    assert f"executorch=={policy.executorch}" in groups


@pytest.mark.parametrize(
    ("words", "severity", "code"),
    [
        ([], Severity.WARNING, ExitCode.OK),
        (["--strict"], Severity.WARNING, ExitCode.ENVIRONMENT),
        (["--strict"], None, ExitCode.OK),
        ([], Severity.ERROR, ExitCode.ENVIRONMENT),
    ],
)
def test_the_exit_code_depends_on_the_severity_of_findings_and_on_strict(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    severity: Severity | None,
    code: ExitCode,
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    verdict = Verdict("emulator", (make(225, severity),) if severity else ())
    monkeypatch.setattr(doctor, "examine_request", lambda request, progress: verdict)
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    outcome = doctor.execute(parser.parse_args(words), Progress())
    assert outcome.exit_code is code
    assert outcome.data["fit"] is (code is ExitCode.OK)
    assert ("not fit" in outcome.text) is (code is not ExitCode.OK)


def test_every_option_of_doctor_reaches_the_survey_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    requests: list[SurveyRequest] = []

    def examine(request: SurveyRequest, progress: Progress) -> Verdict:
        requests.append(request)
        return Verdict("emulator", ())

    monkeypatch.setattr(doctor, "examine_request", examine)
    words = ["--soc", "SM8650", "--device", "--backend", "gpu", "--python", "/opt/python"]
    for extra_words in ([], [*words, "--shell", f"--root=qnn-runtime={tmp_path}"]):
        assert main(["doctor", "emulator", *extra_words]) == ExitCode.OK
    usual, chosen = requests
    assert (usual.soc, usual.device, usual.backend, usual.python) == (
        None,
        False,
        Backend.HTP,
        None,
    )
    assert (chosen.soc, chosen.device, chosen.backend) == ("SM8650", True, Backend.GPU)
    assert (chosen.python, chosen.roots["qnn-runtime"]) == (Path("/opt/python"), tmp_path)
    assert chosen.variables["LD_LIBRARY_PATH"] == "/mine"


@pytest.mark.parametrize(
    "words",
    [["android", "--backend", "gpu"], ["emulator", "--backend", "x"], ["emulator", "--root=x=/"]],
)
def test_options_that_a_profile_has_no_use_for_are_refused_before_anything_is_examined(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(doctor, "examine_request", None)
    assert main(["doctor", *words]) == ExitCode.USAGE
