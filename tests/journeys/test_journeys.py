"""What people do with the project, from a fresh clone or an installed wheel to what they read last.

Only public commands are typed, with default arguments, in an empty home. A journey looks at exit
codes, report.json and the text that its reader sees, so it holds whatever changes inside. The tests
of a room may be rewritten as long as the journeys through it pass.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.report.schema import Case, JudgementFacts, Status
from ci.report.write import write_report
from tests.integration.device.conftest import Lab
from tests.journeys.traveller import Traveller
from tests.stand_ins.browser import open_browser
from tests.stand_ins.reports import make_report, say
from tests.stand_ins.repository import Checkout
from tests.workflows.document import ROOT, read_document

USES = f"example/executorch-qnn-ci@{'0123456789' * 4}"
REPORTS = "reports/test_emulator"
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def factory():
    torch.manual_seed(0)
    sets = [(torch.randn(4, 16),) for _ in range(8)]
    return Net(), sets[0], sets[1:]
"""
# A pitch tracker in miniature: its BatchNorm follows a ReLU, so no convolution absorbs it.
PITCH = '''
import pathlib
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent


def make():
    return nn.Sequential(
        nn.Conv1d(1, 8, 9, stride=4), nn.ReLU(), nn.BatchNorm1d(8),
        nn.Conv1d(8, 8, 5, stride=2), nn.ReLU(), nn.BatchNorm1d(8),
        nn.Flatten(), nn.LazyLinear(4),
    )


def draw(seed):
    """Tones of four pitches with noise, and the pitches."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (64,), generator=generator)
    time = torch.arange(256) / 256
    waves = torch.sin(2 * torch.pi * (4 + 6 * labels[:, None]) * time)
    return (waves + 0.3 * torch.randn(waves.shape, generator=generator))[:, None], labels


def train():
    torch.manual_seed(0)
    net = make()
    net(draw(0)[0])
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for step in range(60):
        waves, labels = draw(step)
        loss = nn.functional.cross_entropy(net(waves), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(net.eval().state_dict(), HERE / "pitch.pt")


def load():
    net = make().eval()
    net(draw(0)[0])
    net.load_state_dict(torch.load(HERE / "pitch.pt", weights_only=True))
    sets = [(waves[:1],) for waves in (draw(seed)[0] for seed in range(100, 112))]
    return net, sets[0], sets[1:]


def tracker():
    return load()


if __name__ == "__main__":
    train()
'''


def test_pytorch_team_gets_a_green_and_a_red_pull_request(team: Traveller) -> None:
    """Runs the commands of qnn-ci.yml on the files that ``init`` wrote."""
    team = team.install("lowering")
    team.type(f"qnn-ci init --uses {USES}")
    Checkout(team.here).commit()
    assert f"uses: {USES.replace('@', '/.github/workflows/qnn-ci.yml@')}" in team.read(
        ".github/workflows/qnn.yml"
    )
    judge = read_step("Judge the models", LANE="emulator", MODELS="", POLICY="qnn.toml")
    assert "2 passed" in team.type(judge)
    assert (team.here / ".qnn-ci-base/report.json").is_file()  # kept by a push to main
    model = team.read("qnn_model.py")
    team.write("qnn_model.py", f"{model}\n# a comment\n")
    assert "2 passed, 0 failed, 0 unsupported, 2 cached" in team.type(judge)
    assert team.report()["uncompared"] == ""
    team.write("qnn_model.py", model.replace("Linear(32, 8)", "Linear(31, 8)"))
    on_github = 'export GITHUB_ACTIONS=true GITHUB_STEP_SUMMARY="$PWD/summary.md"\n'
    red = team.type(on_github + judge, 1)
    assert set(team.statuses().values()) == {"failed"}
    assert re.search(r"(?m)^::error .*file=qnn_model\.py,line=\d+", red)
    summary = html.unescape(team.read("summary.md"))
    assert re.search(r"Against the base\s+\W*2 cases differ", summary)
    assert "at: qnn_model.py:6" in summary
    assert "qnn_model.py" in team.read("reports/failures.sarif")


def read_step(name: str, **variables: str) -> str:
    """The run block of a step of qnn-ci.yml, with its variables."""
    document = read_document(ROOT / ".github/workflows/qnn-ci.yml")
    (step,) = [
        named_step
        for named_step in document.data["jobs"]["emulator"]["steps"]
        if named_step.get("name") == name
    ]
    assert step["env"].keys() == variables.keys()
    exports = [f"export {key}='{value}'" for key, value in variables.items()]
    return "\n".join([*exports, step["run"]])


def test_a_language_model_is_judged_by_its_tokens(clone: Traveller) -> None:
    """The stories260k of QNN_CI_STORIES260K, or else the tiny decoder of this project."""
    folder = os.environ.get("QNN_CI_STORIES260K", "")
    words = f"--weights {folder} --tokenizer {folder}/tok512.bin" if folder else ""
    output = clone.type(f"./nox -s test_llm -- --scheme fp16 {words}")
    assert "1 passed, 0 failed" in output
    kinds = {
        control["kind"] for control in clone.report("test_llm")["controls"] if control["rejected"]
    }
    assert {"top_two", "caches_shifted", "other_prompt"} <= kinds


def write_onnx(path: Path, batch: int | str) -> None:
    """A small convolutional network."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed in this environment")
    import numpy as np

    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 3, 3, 3)).astype("float32") / 5
    ends = [
        onnx.helper.make_tensor_value_info("image", 1, [batch, 3, 16, 16]),
        onnx.helper.make_tensor_value_info("maps", 1, [batch, 4, 14, 14]),
    ]
    nodes = [
        onnx.helper.make_node("Conv", ["image", "w"], ["c"], name="conv"),
        onnx.helper.make_node("Relu", ["c"], ["maps"], name="relu"),
    ]
    graph = onnx.helper.make_graph(
        nodes, "net", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "w")]
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.mark.nightly  # the journeys of a team with models of one kind run always
def test_one_repository_tests_torch_and_onnx_models_with_two_policies(team: Traveller) -> None:
    """The second policy is the one that docs/guides/your-repository.md shows."""
    page = (ROOT / "docs/guides/your-repository.md").read_text("utf-8")
    (policy,) = re.findall(r'(?s)```toml\n(extends[^`]*?path = "detector.onnx"\n)```', page)
    team.write("onnx.toml", policy)
    team.write("nets/net.py", NET)
    write_onnx(team.here / "detector.onnx", 1)
    first, second = team.install("lowering"), team.install("onnx")
    first.type("qnn-ci init --model nets/net.py:factory --policy-only")
    output = first.type("cd nets && qnn-ci test-emulator --reports ../reports")
    assert "qnn.toml" in output.splitlines()[0]
    second.type("qnn-ci test-onnx --policy onnx.toml")
    assert first.statuses() == {"net 8a8w": "passed", "net 16a8w": "passed"}
    assert set(second.statuses("test_onnx").values()) == {"passed"}


@pytest.mark.nightly  # by day, tests/documented localises and mends a model
def test_a_failing_trained_model_is_localised_and_mended(clone: Traveller) -> None:
    clone.write("pitch.py", PITCH)
    subprocess.run([sys.executable, "pitch.py"], cwd=clone.here, check=True)
    red = clone.type("./nox -s test_emulator -- --model pitch.py:tracker --scheme 16a8w", 1)
    assert "BatchNorm" in red or "batch_norm" in red
    where = clone.type("./nox -s localise -- --model pitch.py:tracker --scheme 16a8w", 1)
    assert re.search("batch_?norm", where, re.IGNORECASE)
    mended = clone.type("./nox -s mend -- --model pitch.py:tracker --scheme 16a8w")
    assert "0 of 1 case green before, 1 after" in mended
    assert "1 passed" in clone.type("./nox -s test_emulator -- --policy mended/qnn.toml")


@pytest.mark.nightly  # tests/integration/device does each step on a board by day
def test_a_staged_bundle_runs_on_a_board_over_ssh(clone: Traveller, board: Lab) -> None:
    built = clone.type("./nox -s build_runner")
    (folder,) = re.findall(r"(?m)^  in +(\S+)$", built)
    runner = f"{folder}/qnn_wheel_runner"
    (runtime,) = re.findall(r"(?m)^/.+$", clone.type("./nox -s qnn_ci -- path qnn-runtime"))
    clone.type(f"./nox -s stage -- --soc SM8650 --runner {runner} --runtime {runtime} --out bundle")
    place = f"--place '{board.place}'"
    clone.type(f"./nox -s deploy -- --device ssh:board --bundle bundle {place}")
    words = f"--device ssh:board --bundle bundle {place} --model mlp --scheme 8a8w"
    clone.type(f"./nox -s test_emulator -- {words}")
    (case,) = clone.report()["cases"]
    assert (case["judgement"]["status"], case["device"]["equal_emulator"]) == ("passed", 1)
    assert case["run"]["runner"].startswith("ssh:board")


def test_an_executorch_checkout_gets_its_parity_report_and_plan(clone: Traveller) -> None:
    checkout = os.environ.get("EXECUTORCH_ROOT", "")
    if not checkout or not (Path(checkout) / ".git").exists():
        pytest.skip("EXECUTORCH_ROOT names no clone of pytorch/executorch")
    subprocess.run(
        ["git", "clone", "-q", "--shared", checkout, clone.here / "executorch"], check=True
    )
    output = clone.type("cd executorch && ../nox -s parity", 1)
    assert "backends/qualcomm" in output
    rules = "--rules ../manifests/policies/gate-executorch.toml"
    planned = clone.type(f"cd executorch && ../nox -s plan -- {rules} --base HEAD~1 --head HEAD")
    assert "build_android" in planned


@pytest.mark.nightly  # by day, tests/integration/upstream has a suite of its own
def test_upstream_s_tests_of_relu_pass_by_both_gates(clone: Traveller) -> None:
    output = clone.type("./nox -s test_upstream -- --filter '*FloatingPointOperator*relu*'")
    assert "5 tests: 5 both" in output


def test_a_report_of_100_cases_works_in_a_browser(clone: Traveller, tmp_path: Path) -> None:
    cases = [
        Case(
            model=f"nets/group_{number // 10}/model_{number}.py:factory",
            scheme=("fp16", "8a8w")[number % 2],
            soc="SM8650",
            judgement=JudgementFacts(
                status=Status.FAILED if number % 25 == 7 else Status.PASSED,
                sqnr_db=20.0 + number / 2,
                findings=say("not faithful: SQNR 20.0 dB" if number % 25 == 7 else ""),
            ),
        )
        for number in range(100)
    ]
    folder = clone.here / REPORTS
    write_report(make_report(cases), folder)
    (folder / "index.html").unlink()
    output = clone.type(f"./nox -s qnn_ci -- report {REPORTS} --to {REPORTS}", 1)
    assert "96 passed, 4 failed" in output
    with open_browser(tmp_path) as browser:
        for width in (1240, 400):
            browser.resize(width)
            browser.open(folder / "index.html")
            rows = "document.querySelectorAll('#case-table tbody tr').length"
            assert browser.ask(rows) == 100
            page = "document.documentElement"
            assert browser.ask(f"{page}.scrollWidth <= {page}.clientWidth + 1")
        assert browser.console == []


# Last, as it waits until the packages of the first team are installed.
def test_an_onnx_team_gets_a_green_run_for_a_model_with_a_dynamic_batch(team: Traveller) -> None:
    team = team.install("onnx")
    write_onnx(team.here / "nets/detector.onnx", "batch")
    output = team.type("qnn-ci init --model nets/detector.onnx")
    (command,) = re.findall(r"next: run `(.+?)`", output)
    assert "batch" in team.type(command)
    assert team.statuses("test_onnx") == {
        f"detector {scheme}": "passed" for scheme in ("fp16", "u8", "u16a8w")
    }
