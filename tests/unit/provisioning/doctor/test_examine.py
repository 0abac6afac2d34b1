"""Which policy, pins and adaptor an environment is examined with."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from provisioning.artifacts.choice import OverlayRecord, QnnChoice, python_tag, write_overlay
from provisioning.artifacts.environment import Environment
from provisioning.artifacts.provision import Provisioned
from provisioning.console.progress import Progress
from provisioning.doctor import examine as examining
from provisioning.doctor.examine import (
    CHECKOUT_COMMIT,
    Verdict,
    drop_consequences,
    examine,
    find_fitness,
    find_pins,
    list_overlays,
    settle_adaptor,
    summarize,
    wanted_requests,
)
from provisioning.doctor.facts import InstallationFacts
from provisioning.doctor.fitness import Fitness
from provisioning.doctor.policies import read_doctor_policy
from provisioning.doctor.registry import Finding, Severity
from provisioning.doctor.survey.environment import SurveyRequest, survey_environment
from provisioning.elf.facts import Genuine, Proof, VersionNeed
from provisioning.elf.qnn_build import QnnBuild
from provisioning.errors import ManifestError, UnfitError
from provisioning.manifest.reader import Adoption, read_profile, read_toolchain
from tests.stand_ins.environments import git
from tests.unit.provisioning.doctor import cases

USUAL, ANY = QnnChoice(), QnnChoice("pinned")


def pins_of(profile: str, roots: Mapping[str, Path]) -> dict[str, str]:
    return find_pins(wanted_requests(profile), roots)


def test_a_changed_profile_uses_its_base_profiles_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for changes in ("+qnn-runtime@2.49.40", "+qnn-runtime@2.49.40+libcxx@14"):
        assert find_fitness(f"emulator{changes}") == find_fitness("emulator")
    with pytest.raises(ManifestError, match="no policy for profile 'emulators'") as caught:
        find_fitness("emulators")
    assert "android" in caught.value.why
    assert "emulator or emulator-sdk" in caught.value.fix
    for name, fitness in read_doctor_policy().profiles.items():  # even if it is like another
        assert find_fitness(name) == fitness
    mine = {"mine": msgspec.structs.replace(read_profile("android"), like="android")}
    monkeypatch.setattr(examining, "read_profiles", lambda: mine)
    assert find_fitness("mine") == find_fitness("mine+x@1") == find_fitness("android")


def test_the_pin_of_a_checkout_is_the_commit_of_its_own_version(tmp_path: Path) -> None:
    toolchain = read_toolchain("executorch")
    commits = {release.version: release.pin for release in toolchain.releases}
    assert len(set(commits.values())) > 1
    usual = toolchain.release().version
    assert pins_of("linux", {})[CHECKOUT_COMMIT] == commits[usual]
    for version, commit in (*commits.items(), ("0.1", commits[usual])):
        (tmp_path / "version.txt").write_text(version)
        assert pins_of("linux", {"executorch": tmp_path})[CHECKOUT_COMMIT] == commit


def test_an_sdk_directory_that_the_user_chose_has_no_pin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNN_CI_SDK", raising=False)
    assert pins_of("emulator-sdk", {})["qnn-sdk"] == read_toolchain("qnn-sdk").default
    monkeypatch.setenv("QNN_CI_SDK", "pinned")
    assert "qnn-sdk" in pins_of("emulator-sdk", {})
    assert CHECKOUT_COMMIT not in pins_of("emulator-sdk", {})
    monkeypatch.setenv("QNN_CI_SDK", "2.43.0.260128")
    assert pins_of("emulator-sdk", {})["qnn-sdk"] == "2.43.0.260128"
    monkeypatch.setenv("QNN_CI_SDK", str(tmp_path))
    assert "qnn-sdk" not in pins_of("emulator-sdk", {})


def test_the_first_suitable_sdk_is_examined_and_its_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "there").touch()
    roots = {"a": tmp_path / "none", "b": tmp_path, "c": tmp_path}
    adoptions = {
        name: Adoption(f"{name.upper()}_ROOT", ("there", "gone")) for name in ("a", "b", "c", "d")
    }
    variables = {"B_ROOT": f"{tmp_path}/link/", "C_ROOT": f"{tmp_path}/there"}
    request = SurveyRequest("p", roots, variables, tmp_path / "home", adoptions=adoptions)
    facts = survey_environment(request, read_doctor_policy(), Fitness(sdk=("x", "b", "a")), {})
    assert facts.sdk_name == "b"
    assert facts.installations == (
        InstallationFacts("a", tmp_path / "none", ("there", "gone"), "A_ROOT"),
        InstallationFacts("b", tmp_path, ("gone",), "B_ROOT", variables["B_ROOT"]),
        InstallationFacts("c", tmp_path, ("gone",), "C_ROOT", variables["C_ROOT"], is_same=False),
    )


def test_a_tree_is_summarized_for_a_report() -> None:
    build, proof = "v2.49.40.260810104044", Proof(Genuine.GENUINE, "a.cat", "so")
    files = (
        cases.file("libQnnB.so", QnnBuild("2.49.40", "260810104044", build)),
        cases.file("libQnnA.so", QnnBuild("2.40.0", "1", "v2.40.0.1")),
        replace(cases.file("a.so", None), proof=proof),
        replace(cases.file("c.so", None), proof=proof._replace(outcome=Genuine.FORGED)),
    )
    tree = cases.tree_of(*files)
    adaptor = cases.file("a.so", version_needs=(VersionNeed("libc.so.6", ("GLIBC_2.4",)),))
    python = replace(cases.PYTHON, adaptor=adaptor)
    facts = replace(cases.case().facts, trees={"qnn-sdk": tree}, python=python)
    summary = json.loads(json.dumps(summarize(facts)))
    needs = summary["python"]["adaptor"]["elf"]["version_needs"]
    assert needs == [["libc.so.6", ["GLIBC_2.4"]]]
    assert summary["trees"] == {
        "qnn-sdk": {
            "root": str(tree.root),
            "files": 4,
            "bytes": sum(file.size_bytes for file in files),
            "builds": ["v2.40.0.1", build],
            "genuine": ["lib/a.so"],
        }
    }
    assert (summary["devices"], summary["variables"], summary["sdk"]) == ([], {}, None)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """One of QNN 2.49.40, with four overlays; two of them are for it and this Python."""
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path))
    records = {
        "fit": OverlayRecord("1.5.1", "2.49.40.260810", python_tag()),
        "older": OverlayRecord("1.5.1", "2.49.4", python_tag()),
        "other-python": OverlayRecord("1.5.1", "2.49.40", "cpython-27"),
        "newest": OverlayRecord("1.4.1", "2.49.40", python_tag()),
    }
    for number, (name, record) in enumerate(records.items()):
        overlay = tmp_path / "builds" / f"aot-{name}" / "overlay"
        (overlay / "executorch/backends/qualcomm/python").mkdir(parents=True)
        write_overlay(overlay, record)
        os.utime(overlay, (number, number))
    sdk = Provisioned("qnn-sdk", "2.49.40", tmp_path / "sdk")
    libcxx = Provisioned("libcxx", "14.0.0", tmp_path / "libcxx")
    return Environment("emulator-sdk", (libcxx, sdk), {"LD_LIBRARY_PATH": "/sdk/lib"})


def place(environment: Environment, name: str) -> Path:
    return environment.root("qnn-sdk").parent / "builds" / f"aot-{name}" / "overlay"


def test_the_sdk_and_adaptor_choice_restricts_the_candidate_adaptors(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitting_overlays = [place(environment, "newest"), place(environment, "fit")]
    older_overlay = place(environment, "older")
    for choice, overlays in (
        (USUAL, [None]),
        (QnnChoice("pinned", "wheel"), [None]),
        (ANY, [None, *fitting_overlays]),
        (QnnChoice("pinned", "overlay"), fitting_overlays),
        (QnnChoice("wheel", "overlay"), fitting_overlays),
        (QnnChoice("pinned", str(older_overlay)), [older_overlay]),
    ):
        assert list(list_overlays(choice, environment)) == overlays
    runtime = replace(environment.artifacts[1], name="qnn-runtime")
    small = replace(environment, artifacts=(environment.artifacts[0], runtime))
    assert list(list_overlays(ANY, small)) == [None, *fitting_overlays]
    monkeypatch.setenv("HOME", str(older_overlay.parent))
    assert list(list_overlays(QnnChoice("wheel", "~/overlay"), environment)) == [older_overlay]
    with pytest.raises(UnfitError, match="is not an overlay"):
        list(list_overlays(QnnChoice("pinned", str(tmp_path)), environment))
    shutil.rmtree(tmp_path / "builds")
    assert list(list_overlays(ANY, environment)) == [None]
    with pytest.raises(UnfitError, match=r"no overlay was built for QNN 2\.49\.40 and cpython-3"):
        list(list_overlays(QnnChoice("pinned", "overlay"), environment))


def verdict_with(*codes: str, severity: Severity = Severity.ERROR) -> Verdict:
    return Verdict("p", tuple(Finding(code, "", "", "", "", "", severity) for code in codes))


def test_a_tolerated_finding_is_a_warning(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit_verdict = verdict_with("QNN505", "QNN101")
    monkeypatch.setattr("provisioning.doctor.examine.examine_request", lambda *_: unfit_verdict)
    assert not examine("emulator", environment).fit
    verdict = examine("emulator", environment, tolerated=("QNN505",))
    assert [finding.id for finding in verdict.findings] == ["QNN505", "QNN101"]
    assert [error.id for error in verdict.errors] == ["QNN101"]


def test_a_build_needs_only_the_submodules_of_its_own_target(tmp_path: Path) -> None:
    checkout = tmp_path / "executorch"
    checkout.mkdir()
    git(checkout, "init", "-q", "-b", "main")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "first")
    aot = Environment("aot", (Provisioned("executorch", "1.5.1", checkout),), {})

    def list_missing(submodules: tuple[str, ...] | None) -> set[str]:
        verdict = examine("aot", aot, submodules=submodules)
        return {finding.subject for finding in verdict.findings if finding.id == "QNN705"}

    components = read_toolchain("executorch").components
    assert list_missing(None) == {*components["adaptor"], *components["runner"]}
    assert list_missing(("third-party/json",)) == {"third-party/json"}
    assert list_missing(()) == set()


UNFIT = verdict_with("QNN902")
WARNED = verdict_with("QNN225", severity=Severity.WARNING)


@pytest.mark.parametrize(
    ("verdicts", "taken", "count"),
    [
        ([verdict_with()], 0, 1),
        ([WARNED], 0, 1),
        ([Verdict("p", UNFIT.findings + WARNED.findings), verdict_with()], 1, 2),
        *(
            ([verdict_with(code, "QNN903"), verdict_with()], 1, 2)
            for code in ("QNN507", "QNN508", "QNN509", "QNN512", "QNN513", "QNN515", "QNN901")
        ),
        ([UNFIT, UNFIT, verdict_with()], 2, 3),
        ([UNFIT, UNFIT, UNFIT], 0, 3),
        ([verdict_with("QNN902", "QNN101"), verdict_with()], 0, 1),
        ([UNFIT, verdict_with("QNN101"), verdict_with()], 0, 2),
    ],
)
def test_the_first_adaptor_that_fits_is_taken(
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    verdicts: list[Verdict],
    taken: int,
    count: int,
) -> None:
    """Other adaptors are tried only if one of them can remove every error."""
    examined: list[tuple[str, Path | None, bool]] = []

    def examine(
        profile: str,
        candidate: Environment,
        *,
        python: Path | None,
        tries_device: bool,
        **_: object,
    ) -> Verdict:
        examined.append((candidate.variables.get("PYTHONPATH", ""), python, tries_device))
        return verdicts[len(examined) - 1]

    monkeypatch.setattr(examining, "examine", examine)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    messages = io.StringIO()
    got, verdict = settle_adaptor(ANY, environment, Progress(messages))
    paths = ["", *(str(place(environment, name)) for name in ("newest", "fit"))]
    assert examined == [
        (path, Path(sys.executable) if path else None, True) for path in paths[:count]
    ]
    assert verdict is verdicts[taken]
    assert got.variables.get("PYTHONPATH", "") == paths[taken]
    assert replace(got, variables=environment.variables) == environment
    shown_lines = [line.strip() for line in messages.getvalue().splitlines()]
    assert shown_lines == ([f"adaptor: {paths[taken]}"] if taken else [])


@pytest.mark.parametrize(
    ("code", "where", "severity", "remains"),
    [
        ("QNN212", "/sdk/lib/x86_64-linux-clang/libQnnHtp.so", Severity.ERROR, False),
        ("QNN107", "/sdk/lib/x86_64-linux-clang", Severity.ERROR, False),
        ("QNN228", "/sdk/lib/x86_64-linux-clang/libQnnHtp.so", Severity.WARNING, True),
        ("QNN212", "/sdk/lib/aarch64-android/libQnnHtp.so", Severity.ERROR, True),
    ],
)
@pytest.mark.parametrize("effect", ["QNN902", "QNN903", "QNN910"])
def test_a_consequence_of_a_broken_library_is_not_a_finding(
    code: str, where: str, severity: Severity, effect: str, remains: bool
) -> None:
    cause = Finding(code, "libQnnHtp.so", "", where, "", "", severity)
    directory = "/sdk/lib/x86_64-linux-clang"
    findings = drop_consequences([cause, Finding(effect, "", "", directory, "", "")], directory)
    assert [finding.id for finding in findings] == ([code, effect] if remains else [code])
