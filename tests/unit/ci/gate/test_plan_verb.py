"""When a push runs everything, and what a plan of another repository says."""

from __future__ import annotations

from pathlib import Path
from subprocess import run
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.verbs.plan import find_base
from provisioning.errors import UsageError
from provisioning.manifest.reader import manifests_root


@pytest.mark.parametrize("event", ["push", "pull_request", ""])
def test_only_a_push_without_its_base_runs_everything(event: str) -> None:
    def fail(*_: str) -> str:
        raise UsageError("gone")

    repository: Any = SimpleNamespace(find_base=fail, resolve=lambda revision: f"{revision}!")
    name = "0123456789abcdef"
    if event == "push":
        for head, resolved in (("", "HEAD!"), ("topic", "topic!")):
            base, why = find_base(repository, name, head, event)
            assert (base, "0123456789ab cannot" in why) == (resolved, True)
        return
    with pytest.raises(UsageError):
        find_base(repository, name, "", event)


def test_a_plan_of_a_repository_without_rules_says_whose_sessions_it_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = []
    for files in ((), ("backends/qualcomm/a.cpp",), ("manifests/policies/gate.toml",)):
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True)
            (tmp_path / name).touch()
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        for words in (("init", "-q"), (*who, "commit", "-q", "--allow-empty", "-m", "x")):
            run(["git", "-C", str(tmp_path), *words], check=True)
        assert main(["plan", "--source", str(tmp_path), "--base", "HEAD"]) == 0
        warning = capsys.readouterr().err.partition("sessions of executorch-qnn-ci itself; ")[2]
        notes.append(warning.strip().replace(str(manifests_root()), "MANIFESTS"))
    assert notes == [
        "for another repository, pass --rules",
        "pass --rules MANIFESTS/policies/gate-executorch.toml for ExecuTorch",
        "",
    ]
    rules = str(manifests_root() / "policies" / "gate-executorch.toml")
    words = ["plan", "--source", str(tmp_path), "--base", "HEAD", "--rules", rules]
    assert main(words) == 0
    assert "build_android" in capsys.readouterr().out


def test_record_is_accepted_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--record", "unit", "--out", "opened.toml"]) == 0
    assert "--record will be removed" in capsys.readouterr().err
    assert not Path("opened.toml").exists()
