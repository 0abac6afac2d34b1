"""One sdk.yaml says one version to everybody: the doctor, adoption and signing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.signing.inputs import find_sdk_version
from provisioning.artifacts.sources.local import SdkIdentity, read_sdk_yaml, read_version
from provisioning.console.command import run_command
from provisioning.doctor.survey.host import survey_sdk
from provisioning.errors import ExitCode, UnfitError
from provisioning.manifest.reader import Adoption, read_toolchain

HOSTILE = {
    "not UTF-8": b"version: 2.39.0 \xff\xfe\n",
    "not YAML": b"version: [2.39.0\n",
    "deep": b"[" * 600,
    "a control character": b"version: 2.39\x00\n",
    "large": b"version: 2.39.0\n" + b"#" * (1 << 16),
    "a key of another kind": b"? [a]\n: b\n",
    "an unknown alias": b"version: *x\n",
}


@pytest.mark.parametrize(
    ("text", "version", "stamp"),
    [
        ("product: QAIRT\nversion: 2.37.0.250724175447\n", "2.37.0.250724175447", ""),
        ('version: "v2.49.40"\nbuild_id: 260810104044_1\n', "2.49.40", "260810104044"),
        ("version: 2.50\n", "2.50", ""),
        # Indented, it is another thing's version.
        ("tools:\n  version: 2.38.0\nversion: 2.39.0\n", "2.39.0", ""),
        ("tools:\n  version: 2.38.0\n", "", ""),
        ("  version: 2.39.0\n", "2.39.0", ""),
        ("text: |\n  a\nversion: 2.39.0  # or later\n", "2.39.0", ""),
        ("version: [2.39.0]\nbuild_id: 12\n", "", ""),
        ("!!python/object/apply:os.system [exit]\n", "", ""),
        ("- version: 2.39.0\n", "", ""),
        ("product: QNN\n", "", ""),
        ("", "", ""),
    ],
)
def test_everybody_reads_the_same(tmp_path: Path, text: str, version: str, stamp: str) -> None:
    (tmp_path / "sdk.yaml").write_text(text)
    adoption = read_toolchain("qnn-sdk").adoption
    assert adoption is not None
    facts = survey_sdk(tmp_path, ())

    assert read_sdk_yaml(tmp_path) == SdkIdentity(version, stamp)
    assert (facts.version or "", facts.stamp or "", facts.fault) == (version, stamp, "")
    assert find_sdk_version(tmp_path) == version
    assert read_version(tmp_path, adoption) == (version or "unknown")


def test_where_there_is_none_nothing_is_said(tmp_path: Path) -> None:
    assert read_sdk_yaml(tmp_path) == SdkIdentity()


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_yaml_is_an_unfit_environment(
    tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    sdk = tmp_path / "qnn"
    sdk.mkdir()
    (sdk / "sdk.yaml").write_bytes(data)
    with pytest.raises(UnfitError, match=r"sdk\.yaml cannot be read") as caught:
        read_sdk_yaml(sdk)
    assert caught.value.why
    assert survey_sdk(sdk, ()).fault == caught.value.why

    words = ["sign", "--lpai-arch", "v6", "--qnn-sdk", str(sdk), "--out", str(tmp_path / "signed")]
    code, _ = run_command("ci", VERBS, words)

    assert code == ExitCode.ENVIRONMENT
    assert "sdk.yaml cannot be read" in capsys.readouterr().err


def test_a_pipe_is_not_read_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sdk.yaml")
    with pytest.raises(UnfitError, match="cannot be read"):
        read_sdk_yaml(tmp_path)


def test_a_version_file_in_another_encoding_states_its_version(tmp_path: Path) -> None:
    adoption = Adoption("NDK", (), "source.properties", r"Revision = ([\d.]+)")
    (tmp_path / "source.properties").write_bytes(b"# Gr\xf6\xdfe\nPkg.Revision = 26.2\n")
    assert read_version(tmp_path, adoption) == "26.2"
    (tmp_path / "source.properties").write_bytes(b"Pkg.Revision = 26.2\n".ljust(1 << 17))
    assert read_version(tmp_path, adoption) == "unknown"
