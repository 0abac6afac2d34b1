"""What ``qnn-ci init`` writes, and what it leaves alone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import ci.verbs.init
from ci.__main__ import main
from ci.cases.policy import read_emulator_policy
from provisioning.console.git import read_commit, run_git
from provisioning.errors import ExitCode

USES = "example/executorch-qnn-ci@" + "0a" * 20
PULL_REQUESTS_ALONE = "${{ github.event_name == 'pull_request' }}"
EMPTY_GRAPH = b":\0"  # of an ONNX model
WRITTEN = ["qnn_model.py", "qnn.toml", ".github/workflows/qnn.yml"]


def make_litert(model: str = "dense") -> bytes:
    """A .tflite file of the suite; empty where LiteRT is missing, so that no verb reads it."""
    if not importlib.util.find_spec("ai_edge_litert"):
        return b""
    from ci.litert.suite import make_model

    return make_model(model)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, with the caller below its root."""
    root = tmp_path / "a répo"
    (root / ".git").mkdir(parents=True)
    (root / "below").mkdir()
    monkeypatch.chdir(root / "below")
    monkeypatch.delenv("QNN_CI_CALLER_DIR", raising=False)
    return root


def test_a_policy_a_workflow_and_a_model_are_written_at_the_root(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--uses", USES, "--json"]) == ExitCode.OK
    written = [*WRITTEN, ".gitignore"]
    assert json.loads(capsys.readouterr().out)["written"] == [str(root / name) for name in written]
    policy = read_emulator_policy(root / "qnn.toml")
    assert policy.extends == "default"
    assert policy.models["qnn_model"].path == f"{root}/qnn_model.py:factory"
    text = (root / WRITTEN[2]).read_text()
    workflow = yaml.safe_load(text)
    name, _, commit = USES.partition("@")
    called = workflow["jobs"]["models"]["uses"]
    assert called == f"{name}/.github/workflows/qnn-ci.yml@{commit}"
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["cancel-in-progress"] == PULL_REQUESTS_ALONE
    assert "github.sha" in workflow["concurrency"]["group"]  # no push replaces one that waits
    assert len([line for line in text.splitlines() if not line.lstrip().startswith("#")]) <= 12


@pytest.mark.parametrize("folder", ["below", "below/a, b}"])
def test_the_workflow_for_a_policy_in_a_folder_is_at_the_root(
    root: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / folder).mkdir(exist_ok=True)
    at = ["--directory", str(root / folder)]
    assert main(["init", "--uses", USES, *at]) == ExitCode.OK
    workflow = yaml.safe_load((root / WRITTEN[2]).read_text())
    assert workflow["jobs"]["models"]["with"] == {"policy": f"{folder}/qnn.toml"}
    assert not (root / folder / ".github").exists()
    (root / "other").mkdir()
    assert main(["init", "--uses", USES, "--directory", "../other"]) == ExitCode.USAGE
    assert "or --policy-only to keep the workflow" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, b"reports/\n/before/\n/kept/\n/qnn.sarif\n"),
        (b"*.pyc", b"*.pyc\nreports/\n/before/\n/kept/\n/qnn.sarif\n"),
        (b"caf\xe9\n", b"caf\xe9\nreports/\n/before/\n/kept/\n/qnn.sarif\n"),
        (b"/reports\nkept", b"/reports\nkept\n/before/\n/qnn.sarif\n"),
        (b"/reports\nkept\nbefore/\nqnn.sarif", b"/reports\nkept\nbefore/\nqnn.sarif"),
    ],
)
def test_reports_are_ignored_by_git(root: Path, before: bytes | None, after: bytes) -> None:
    if before is not None:
        (root / ".gitignore").write_bytes(before)
    for force in ([], ["--force"]):
        assert main(["init", "--policy-only", *force]) == ExitCode.OK
        assert (root / ".gitignore").read_bytes() == after


def test_an_ignore_file_that_is_no_file_is_left(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / ".gitignore").symlink_to("nowhere")
    assert main(["init", "--policy-only", "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {
        "written": [str(root / name) for name in WRITTEN[:2]],
        "notes": [],
        "policy": shlex.quote(str(root / WRITTEN[1])),
    }
    assert not (root / ".gitignore").exists()


def test_init_for_an_onnx_file_writes_an_onnx_policy_and_workflow(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "net.onnx").write_bytes(EMPTY_GRAPH)
    assert main(["init", "--uses", USES, "--model", "../net.onnx"]) == ExitCode.OK
    printed = [line for line in capsys.readouterr().out.splitlines() if "has no onnx" not in line]
    written = ("qnn.toml", WRITTEN[2], ".gitignore")
    assert printed[:-1] == [f"wrote {root / name}" for name in written]
    assert "test-onnx" in printed[-1]
    entry = read_emulator_policy(root / "qnn.toml", "onnx").models["net"]
    assert (entry.path, entry.schemes) == (f"{root}/net.onnx", ())  # it may be quantized already
    workflow = yaml.safe_load((root / WRITTEN[2]).read_text())
    assert workflow["jobs"]["models"]["with"] == {"policy": "qnn.toml", "lane": "onnx"}
    assert main(["test-onnx", "--list", "--policy", "../qnn.toml", "--json"]) == ExitCode.OK
    assert "test-emulator" not in (root / "qnn.toml").read_text()


@pytest.mark.parametrize(
    ("model", "lane", "key", "scheme"),
    [
        ("qnn_model.py:factory", "emulator", "qnn_model", "8a8w"),
        ("net.onnx", "onnx", "net", "u8"),
        ("net.tflite", "litert", "net", "fp16"),
    ],
)
def test_every_commented_key_of_the_policy_from_init_is_valid(
    root: Path, model: str, lane: str, key: str, scheme: str
) -> None:
    names = ("data/calibration.npz", "data/evaluation.npz", "data/labels.npy", "metrics.py")
    for name in (*names, "net.onnx", "float.onnx", "net.tflite", "float.tflite", "qnn_model.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(make_litert() if name.endswith("tflite") else EMPTY_GRAPH)
    main(["init", "--uses", USES, "--model", f"../{model}"])
    text = (root / "qnn.toml").read_text()
    (root / "all.toml").write_text(re.sub(r"(?m)^# (?=\[|\w+ = )", "", text))
    entry = read_emulator_policy(root / "all.toml", lane).models[key]
    assert entry.metric
    assert (entry.metric.name, [*entry.limits], bool(entry.inputs)) == ("top1", [scheme], True)
    assert bool(entry.calibration) is (lane != "litert")  # which calibrates nothing
    assert scheme in entry.schemes or lane == "litert"
    assert bool(entry.float_model) is (lane != "emulator")


@pytest.mark.parametrize(("model", "scheme"), [("dense", "fp16"), ("convolution_int8", "asis")])
def test_the_limits_for_a_litert_file_are_those_of_its_scheme(
    root: Path, model: str, scheme: str
) -> None:
    pytest.importorskip("ai_edge_litert")
    (root / "net.tflite").write_bytes(make_litert(model))
    assert main(["init", "--uses", USES, "--model", "../net.tflite"]) == ExitCode.OK
    assert f"# [models.net.limits.{scheme}]\n" in (root / "qnn.toml").read_text()


@pytest.mark.parametrize("name", WRITTEN)
def test_init_overwrites_no_file_without_force(
    root: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to("nowhere")
    assert main(["init", "--uses", USES]) == ExitCode.USAGE
    assert f"{name} " in capsys.readouterr().err
    assert sum(os.path.lexists(root / written) for written in WRITTEN) == 1
    assert main(["init", "--uses", USES, "--force"]) == ExitCode.OK
    assert (root / name).is_file()


def test_init_does_not_say_that_it_did_not_write_a_file_that_the_user_changed_since(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--uses", USES]) == ExitCode.OK
    with (root / "qnn.toml").open("a") as policy:
        policy.write("# mine\n")
    capsys.readouterr()
    assert main(["init", "--uses", USES]) == ExitCode.USAGE
    message = capsys.readouterr().err
    assert "qnn.toml would be overwritten" in message
    assert "changed since" in message
    assert "did not write" not in message


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ('nets/FACTORY "COMMIT".py', "FACTORY-COMMIT"),
        ("mlp.py", "mlp"),
        ("a:b/net.py", "net"),
        ("é.py", "model"),
        ("a\\b.py", "a-b"),
        (f"-{'n' * 39}-{'m' * 9}.py", "n" * 39),
    ],
)
def test_a_model_of_any_name_is_found_by_the_policy(root: Path, file: str, name: str) -> None:
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("")
    assert main(["init", "--uses", USES, "--model", f"../{file}:NAME"]) == ExitCode.OK
    assert not (root / "qnn_model.py").exists()
    policy = read_emulator_policy(root / "qnn.toml")
    assert {key: entry.path for key, entry in policy.models.items()} == {
        name: f"{root}/{file}:NAME"
    }
    assert "# NAME() returns" in (root / "qnn.toml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workflow-only"], "it is not known which workflow to call"),
        (["--workflow-only", "--uses", USES], "there is no qnn.toml"),
        (["--workflow-only", "--uses", USES, "--model", "net.py:f"], "--model is for a policy"),
        (["--uses", "example/executorch-qnn-ci@main"], "does not name a GitHub repository"),
        (["--uses", USES[:-1]], "does not name a GitHub repository"),
        (["--uses", f"{USES}0"], "does not name a GitHub repository"),
        (["--uses", f"{USES}; rm -rf"], "does not name a GitHub repository"),
        (["--uses", USES, "--model", "gone.py:f"], "gone.py is not a file"),
        (["--uses", USES, "--model", f"{__file__}:root"], "is not in"),
        (["--uses", USES, "--directory", "gone"], "is not a directory"),
    ],
)
def test_init_names_the_file_that_cannot_be_written(
    root: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ci.verbs.init, "find_workflow", lambda: "")
    assert main(["init", *words]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not any((root / name).exists() for name in WRITTEN)


@pytest.mark.parametrize(
    ("model", "lane"),
    [
        ("qnn_model.py:factory", {}),
        ("net.onnx", {"lane": "onnx"}),
        ("net.tflite", {"lane": "litert"}),
    ],
)
def test_a_workflow_whose_repository_is_not_known_is_written_later(
    root: Path,
    model: str,
    lane: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ci.verbs.init, "find_workflow", lambda: "")
    (root / "qnn_model.py").write_text("def factory(): ...")
    (root / "net.onnx").write_bytes(EMPTY_GRAPH)
    (root / "net.tflite").write_bytes(make_litert())
    assert main(["init", "--model", f"../{model}", "--json"]) == ExitCode.OK
    (note_of_uses,) = (
        note for note in json.loads(capsys.readouterr().out)["notes"] if "--uses" in note
    )
    assert "init --workflow-only --uses" in note_of_uses
    policy = (root / "qnn.toml").read_text()
    assert not (root / WRITTEN[2]).exists()
    assert main(["init", "--workflow-only", "--uses", USES]) == ExitCode.OK
    workflow = yaml.safe_load((root / WRITTEN[2]).read_text())
    assert workflow["jobs"]["models"]["with"] == {"policy": "qnn.toml", **lane}
    assert (root / "qnn.toml").read_text() == policy
    # A workflow that exists is not said to be missing.
    capsys.readouterr()
    assert main(["init", "--model", f"../{model}", "--json"]) == ExitCode.OK
    assert not any("--uses" in note for note in json.loads(capsys.readouterr().out)["notes"])


@pytest.mark.parametrize(
    ("shape", "line", "notes"),
    [
        ((1, 3), None, 0),
        (("n", 3), "# shapes = {x = [1, 3]}", 0),
        (("n", "t"), "shapes = {x = [1, 128]}", 1),
    ],
)
def test_a_policy_has_shapes_that_work_for_an_onnx_file(
    root: Path, shape: tuple[int | str, ...], line: str | None, notes: int
) -> None:
    helper = pytest.importorskip("onnx.helper")
    ends = [helper.make_tensor_value_info(name, 1, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    (root / "net.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    remarks: list[str] = []
    text = ci.verbs.init.make_policy(str(root / "net.onnx"), root, remarks)["qnn.toml"]
    shapes_line = next(
        (
            policy_line.partition(" #")[0]
            for policy_line in text.splitlines()
            if "shapes = " in policy_line
        ),
        None,
    )
    assert (shapes_line, len(remarks)) == (line, notes)


FOUND = "example/executorch-qnn-ci@" + "b" * 40


@pytest.mark.parametrize(
    ("url", "commit"),
    [
        ("https://github.com/example/executorch-qnn-ci.git", FOUND),
        ("https://github.com/example/executorch-qnn-ci/", FOUND),
        ("git@github.com:example/executorch-qnn-ci.git", FOUND),
        ("https://gitlab.com/example/executorch-qnn-ci", ""),
        ("file:///home/me/executorch-qnn-ci", ""),
    ],
)
def test_an_installation_from_github_knows_its_commit(
    tmp_path: Path, url: str, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip records the commit as PEP 610 says."""
    origin = {"url": url, "vcs_info": {"vcs": "git", "commit_id": "b" * 40}}
    (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    installed = metadata.PathDistribution(tmp_path)
    monkeypatch.setattr(metadata, "distribution", lambda _: installed)
    assert ci.verbs.init.find_origin() == commit


@pytest.mark.parametrize(
    ("url", "pushed", "repository"),
    [
        ("https://github.com/example/executorch-qnn-ci.git", True, "example/executorch-qnn-ci"),
        ("https://github.com/example/executorch-qnn-ci.git", False, ""),
        ("https://gitlab.com/example/executorch-qnn-ci.git", True, ""),
        ("", True, ""),
    ],
)
def test_a_clone_from_github_knows_its_commit_if_it_was_pushed(
    tmp_path: Path, url: str, pushed: bool, repository: str
) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    for words in (
        ("init", "--quiet"),
        (
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "--quiet",
            "--allow-empty",
            "-m",
            "a",
        ),
    ):
        subprocess.run(["git", "-C", str(clone), *words], check=True)
    commit = read_commit(clone)
    if url:
        run_git(clone, "remote", "add", "origin", url)
    if pushed:
        run_git(clone, "update-ref", "refs/remotes/origin/main", commit)
    pushed_commit = f"{repository}@{commit}" if repository else ""
    assert ci.verbs.init.find_pushed_commit(clone) == pushed_commit
    assert ci.verbs.init.find_pushed_commit(tmp_path) == ""
