"""The action setup-qnn, step by step, in a repository that is not this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.verbs.registry import VERBS
from provisioning.console.command import run_command
from provisioning.store.home import store_home
from tests.integration.workflows.project import GitHub, commit, site_packages
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.quick_venv import make_python
from tests.stand_ins.toolchains import World
from tests.workflows.commands import Annotation
from tests.workflows.document import ROOT, read_document
from tests.workflows.expressions import Context, judge
from tests.workflows.job import JobRun

ACTION = f"somebody/executorch-qnn-ci/.github/actions/setup-qnn@{'0' * 40}"
WORKFLOW = """
    on: push
    permissions: {{}}
    jobs:
      test:
        runs-on: ubuntu-24.04
        permissions: {{ contents: read }}
        defaults: {{ run: {{ shell: bash }} }}
        outputs:
          hit: ${{{{ steps.qnn.outputs.cache-hit }}}}
          repaired: ${{{{ steps.qnn.outputs.repaired }}}}
          roots: ${{{{ steps.qnn.outputs.roots }}}}
          versions: ${{{{ steps.qnn.outputs.versions }}}}
          report: ${{{{ steps.qnn.outputs.report }}}}
        steps:
          - uses: actions/checkout@{zeros} # v7
            with: {{ persist-credentials: false }}
          - uses: {action}
            id: qnn
            with: {inputs}
          - run: {command}
"""


def write_workflow(command: str = "true", **inputs: str) -> str:
    renamed_inputs = {key.replace("_", "-"): value for key, value in inputs.items()}
    words = {"zeros": "0" * 40, "action": ACTION, "command": json.dumps(command)}
    return WORKFLOW.format(inputs=json.dumps(renamed_inputs), **words)


def warnings(run: JobRun) -> list[str]:
    return [annotation.text for annotation in run.heard.annotations if annotation.level != "notice"]


# -- a usable environment -----------------------------------------------------------------------


def test_a_job_of_another_repository_gets_an_environment_that_it_can_use(github: GitHub) -> None:
    """Installation, store and doctor are real; pip is a stand-in, and torch and ExecuTorch are
    those of this Python."""
    github.variables |= {"PYTHONPATH": site_packages(), "QNN_CI_HOME": str(store_home())}
    (github.services.repository / "ci").mkdir()  # a package of that name is the caller's
    (github.services.repository / "ci" / "__init__.py").write_text("raise ImportError")
    commit(github.services.repository, "with a ci of its own")
    command = (
        "python3 -c \"import ctypes, os; ctypes.CDLL('libQnnHtp.so');"
        " print('QNN at', os.environ['QNN_SDK_ROOT'])\"\n"
        "qnn-ci --version"
    )
    inputs = {"extras": "", "torch_index": ""}
    inputs["python"] = str(make_python(github.folder / "quick"))
    (result,) = github.run(write_workflow(command, **inputs)).values()
    (run,) = result.runs

    assert result.result == "success", run.heard.text
    root = json.loads(result.outputs["roots"])["qnn-runtime"]
    assert f"QNN at {root}" in run.heard.log
    assert "executorch-qnn-ci 0." in run.heard.text
    assert json.loads(result.outputs["versions"])["qnn-runtime"] == "2.49.40"
    assert json.loads(Path(result.outputs["report"]).read_text())["fit"] is True
    assert (result.outputs["hit"], result.outputs["repaired"]) == ("false", "false")
    assert run.path == [f"{run.setting.temp}/setup-qnn/bin"]
    assert "qnn-runtime is not cached: its licence does not allow redistribution" in run.heard.text
    # On a machine without libatomic.so.1, only the library compiled there is cached.
    downloads = [cache for cache in github.services.caches if "/libatomic-" not in cache.version]
    assert (downloads, run.heard.depth) == ([], 0)


# -- caches --------------------------------------------------------------------------------------


@pytest.fixture
def tiny(github: GitHub, world: World, quick_python: Path) -> GitHub:
    """A GitHub whose artifacts are those of a test's server; libcxx may be passed on."""
    manifest = world.manifests / "toolchains" / "libcxx.toml"
    text = manifest.read_text().replace('text = "none"', 'text = "none"\nredistribute = true')
    manifest.write_text(text)
    profiles = world.manifests / "profiles.toml"
    profiles.write_text(profiles.read_text() + PROFILE)
    policies = world.manifests / "policies"
    for path in (ROOT / "manifests").rglob("*.toml"):  # whatever the doctor reads beside those
        copy = world.manifests / path.relative_to(ROOT / "manifests")
        if path.parent.name in {"manifests", "policies"} and not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(path.read_text())
    with (policies / "doctor.toml").open("a") as file:
        file.write("\n[profiles.cxx]\n")
    github.variables |= {**world.variables, "QNN_CI_BACKOFF_S": "0.01"}
    github.variables["QUICK_PYTHON"] = str(quick_python)
    return github


PROFILE = """
[cxx]
summary = "what may be passed on, and what may not"
artifacts = [{ name = "libcxx" }, { name = "qnn-sdk", components = ["headers"] }]
[cxx.variables]
CXX_ROOT = "{libcxx}"
"""


def run_tiny(github: GitHub, **inputs: str) -> tuple[dict[str, str], JobRun, str]:
    """One run on a machine with an empty disk."""
    home = Path(github.variables["QNN_CI_HOME"])
    if home.exists():
        home.rename(home.with_name(f"home-{github.runs}"))
    given_inputs = {"profile": "cxx", "python": github.variables["QUICK_PYTHON"], **inputs}
    given_inputs.setdefault("accept_licence", "qnn-sdk")
    (result,) = github.run(
        write_workflow('test -f "$CXX_ROOT/lib/libc++.so.1"', **given_inputs)
    ).values()
    (run,) = result.runs
    return result.outputs, run, result.result


def test_the_cache_key_depends_on_the_content_not_on_the_branch(tiny: GitHub, world: World) -> None:
    run_tiny(tiny)
    tiny.github = {"ref": "refs/heads/topic", "event_name": "push"}
    outputs, _, _ = run_tiny(tiny)
    assert outputs["hit"] == "true"  # a branch reads what main has
    manifest = world.manifests / "toolchains" / "libcxx.toml"
    manifest.write_text(manifest.read_text().replace('"lib/" },\n]', '"lib64/" },\n]'))
    tiny.github = {}
    outputs, _, _ = run_tiny(tiny)
    assert outputs["hit"] == "false"  # the same version with another layout is another content
    first, second = (cache.key.rsplit("-", 2)[0] for cache in tiny.services.caches)
    assert first != second


def test_a_trusted_run_saves_a_cache_that_is_used_and_repaired_once(
    tiny: GitHub, server: BadServer
) -> None:
    """Each run restores the last saved cache: with a flipped bit, or without its file."""
    _, run, result = run_tiny(tiny)
    assert result == "success", run.heard.text
    (entry,) = tiny.services.caches
    assert [path.name.split("%2F")[-1] for path in entry.folder.iterdir()] == ["llvm.tar.xz"]

    for number, damage in enumerate(("flipped", "gone"), 2):
        (saved,) = tiny.services.caches[-1].folder.iterdir()
        data = bytearray(saved.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "gone":
            saved.unlink()
        else:
            saved.write_bytes(data)
        outputs, run, result = run_tiny(tiny)
        assert (result, outputs["hit"]) == ("success", "true"), run.heard.text
        text = ["llvm.tar.xz from a cache was damaged and has been fetched again"]
        assert warnings(run) == ([] if damage == "gone" else text)
        assert outputs["repaired"] == str(damage != "gone").lower()
        assert len(tiny.services.caches) == number  # the newest is what later runs get

    server.files.pop("llvm.tar.xz")
    outputs, run, result = run_tiny(tiny)
    assert (result, outputs["hit"], outputs["repaired"]) == ("success", "true", "false")
    assert warnings(run) == []
    assert len(tiny.services.caches) == 3


def test_a_locked_tree_that_comes_back_damaged_is_repaired_file_by_file(
    tiny: GitHub, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree is cached if every file of it is locked; the restored cache has half of the files, a
    foreign file and a link."""
    for name, value in tiny.variables.items():
        monkeypatch.setenv(name, value)
    assert run_command("ci", VERBS, ["lock", "libcxx", "--write"])[0] == 0
    run_tiny(tiny)
    (entry,) = tiny.services.caches
    (tree,) = entry.folder.iterdir()
    assert "store%2Flibcxx-14.0.0" in tree.name
    library = tree / "libcxx" / "lib" / "libc++.so.1.0"
    library.unlink()
    library.symlink_to("/etc/passwd")
    (tree / "libcxx" / "lib" / "libstrange.so").write_bytes(b"x")

    outputs, run, result = run_tiny(tiny)
    assert (result, outputs["hit"], outputs["repaired"]) == ("success", "true", "true")
    (warning,) = warnings(run)
    assert warning.startswith("libcxx 14.0.0 in the store was damaged and has been repaired: ")
    assert "lib/libc++.so.1.0" in warning
    assert "lib/libstrange.so" in warning
    outputs, _, result = run_tiny(tiny)
    assert (result, outputs["hit"], outputs["repaired"]) == ("success", "true", "false")


PULL_REQUEST = {"event_name": "pull_request", "ref": "refs/pull/1/merge", "base_ref": "main"}


def test_a_pull_request_saves_no_cache(tiny: GitHub) -> None:
    tiny.github = PULL_REQUEST
    _, run, result = run_tiny(tiny)
    assert (result, tiny.services.caches) == ("success", []), run.heard.text
    assert "Save the cache" not in run.ran


@pytest.mark.parametrize(
    ("event", "ref", "saves"),
    [
        ("push", "refs/heads/main", True),
        ("workflow_dispatch", "refs/heads/main", True),
        ("schedule", "refs/heads/main", True),
        ("push", "refs/heads/topic", False),
        ("push", "refs/tags/main", False),
        ("workflow_dispatch", "refs/heads/topic", False),
        ("pull_request", "refs/pull/1/merge", False),
        ("pull_request_target", "refs/heads/main", False),
        ("workflow_run", "refs/heads/main", False),
    ],
)
def test_the_step_that_saves_the_cache_runs_only_for_trusted_events(
    event: str, ref: str, saves: bool
) -> None:
    steps = read_document(ROOT / ".github/actions/setup-qnn/action.yml").data["runs"]["steps"]
    (condition,) = (step["if"] for step in steps if step.get("name") == "Save the cache")
    repository = {"default_branch": "main"}
    values = {
        "steps": {"setup": {"outputs": {"changed": "true"}}},
        "github": {"event_name": event, "ref": ref, "event": {"repository": repository}},
    }
    assert judge(condition, Context(values)) is saves


def test_a_private_cache_in_a_public_repository_warns_and_holds_no_qnn_files(tiny: GitHub) -> None:
    _, run, result = run_tiny(tiny, cache="private")
    assert result == "success"
    assert "cache: private has no effect here" in warnings(run)[0]
    (entry,) = tiny.services.caches
    # A name is the path that was saved, with %2F for each slash.
    names = [path.name.rpartition("%2Fhome%2F")[2] for path in entry.folder.iterdir()]
    assert "qnn" not in " ".join(names)


def test_a_private_cache_in_a_private_repository_also_holds_qnn_archives(tiny: GitHub) -> None:
    tiny.github = {"event": {"repository": {"private": True, "default_branch": "main"}}}
    run_tiny(tiny, cache="private")
    (entry,) = tiny.services.caches
    names = {path.name.split("%2F")[-1] for path in entry.folder.iterdir()}
    assert names == {"llvm.tar.xz", "qairt-2.37.0.250724.zip"}


# -- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", ["", "libcxx"])
def test_setup_qnn_fails_unless_the_caller_accepts_the_licence(tiny: GitHub, accepted: str) -> None:
    _, run, result = run_tiny(tiny, accept_licence=accepted)
    assert result == "failure"
    assert "QNN_CI_ACCEPT_LICENCE=qnn-sdk" in run.heard.text


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"cache": "branch"}, "the input cache must be public, private or off"),
        ({"profile": "no-such"}, "no profile or artifact 'no-such'"),
        ({"profile": "cxx\nprogram=/bin/false"}, "profile must be a name"),
        ({"versions": "libcxx@3"}, "libcxx has no version 3"),
        ({"versions": "$(id)"}, "profile must be a name"),
        ({"versions": "libcxx@14.0.0\nqnn-sdk@3"}, "qnn-sdk has no version 3"),
        ({"extras": "lowering,onx"}, "no extra 'onx'; use build, lowering, onnx, "),
        ({"offline": "true"}, "--offline was given"),
    ],
)
def test_a_wrong_input_of_setup_qnn_fails_with_the_reason(
    tiny: GitHub, inputs: dict[str, str], message: str
) -> None:
    _, run, result = run_tiny(tiny, **inputs)
    assert (result, message in run.heard.text) == ("failure", True), run.heard.text


def test_an_unfit_environment_ends_with_the_doctor_s_words_and_the_report(tiny: GitHub) -> None:
    outputs, run, result = run_tiny(tiny, profile="emulator")
    assert result == "failure"
    assert Path(outputs["report"]).is_file()
    errors = [annotation for annotation in run.heard.annotations if annotation.level == "error"]
    assert any(isinstance(error, Annotation) and "Fix: " in error.text for error in errors)
    assert "QNN_SDK_ROOT" not in run.env


def test_tokens_are_masked_for_the_steps_that_follow(tiny: GitHub) -> None:
    tiny.variables["QNN_CI_BEARER_TOKENS"] = "mirror.example=s3cret-token"
    home = tiny.variables["QNN_CI_HOME"]
    text = write_workflow("echo s3cret-token", profile="cxx", accept_licence="all",
                          python=tiny.variables["QUICK_PYTHON"])  # fmt: skip
    (result,) = tiny.run(text).values()
    assert (result.result, Path(home).is_dir()) == ("success", True)
    assert result.runs[0].heard.log[-1] == "***"
