"""docs/your-repository.md: a repository that knows nothing of this project, as the page goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from markdown_it import MarkdownIt

from tests.documented.pages import ROOT
from tests.documented.recipe import Recipe
from tests.documented.setups import git, use_our_store
from tests.documented.stage import Ended, Stage

COMMIT = "example/executorch-qnn-ci@" + "0123456789" * 4
INIT = "qnn-ci init --uses OWNER/REPOSITORY@COMMIT"
RUN = "qnn-ci test-emulator --policy qnn.toml"
RED = f"{RUN} --base before/report.json --sarif qnn.sarif"
REVIEW = "qnn-ci report reports/test_emulator --base before/report.json --summary"
WRITTEN = ("qnn.toml", ".github/workflows/qnn.yml", "qnn_model.py")


def enter_repository(stage: Stage) -> None:
    """A repository with a ``ci`` of its own."""
    stage.directory = stage.home / "a repository"
    (stage.directory / "ci").mkdir(parents=True)
    (stage.directory / "ci" / "__init__.py").write_text("raise SystemExit('not this one')\n")
    git(stage.directory, "init", "-q")


def initialise(stage: Stage) -> None:
    use_our_store(stage)
    enter_repository(stage)
    ended = stage.run(INIT.replace("OWNER/REPOSITORY@COMMIT", COMMIT))
    assert ended.returncode == 0, ended.said


def are_written(stage: Stage, ended: Ended) -> None:
    assert [name for name in WRITTEN if not (stage.directory / name).is_file()] == []
    assert all(name in ended.said for name in WRITTEN)


def goes_red(stage: Stage, ended: Ended) -> None:
    """The rest of the page, after the green run: its report is kept, and the model broken."""
    shutil.copytree(stage.directory / "reports/test_emulator", stage.directory / "before")
    model = stage.directory / "qnn_model.py"
    text = model.read_text("utf-8")
    assert text.count("Linear(32, 8)") == 1
    model.write_text(text.replace("Linear(32, 8)", "Linear(31, 8)"))
    red = stage.run(f"{RED} || test $? = 1")
    assert "again: qnn-ci test-emulator --policy qnn.toml --model" in red.stdout, red.said
    log = json.loads((stage.directory / "qnn.sarif").read_text("utf-8"))
    (result,) = log["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "qnn_model.py"
    assert "8a8w SM8650, 16a8w SM8650" in result["message"]["text"]
    review = stage.run(f"{REVIEW} || test $? = 1").stdout
    assert review.count(":white_check_mark: → :x:") == 2, review

    compute_metrics()


def compute_metrics() -> None:
    """The metrics of the page are what they are called."""
    import torch

    page = (ROOT / "docs/your-repository.md").read_text("utf-8")
    (block,) = [one.content for one in MarkdownIt("commonmark").parse(page) if one.info == "python"]
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - the page's own code
    logits = torch.tensor([[[3.0, 1.0]], [[0.0, 2.0]], [[5.0, 4.0]], [[1.0, 0.0]]])
    assert float(names["top1"]([logits], torch.tensor([0, 1, 1, 0]))) == 0.75
    seen = torch.tensor([[0, 0], [1, 1]])  # rows and columns
    maps = torch.nn.functional.one_hot(seen, 2).permute(2, 0, 1)[None, None].float()
    wanted = torch.tensor([[0, 1], [1, 1]])[None, None]
    iou = float(names["mean_iou"]([maps], wanted))
    assert abs(iou - (1 / 2 + 2 / 3) / 2) < 1e-6


def serve_wheel(stage: Stage) -> None:
    """An index with the wheel, which is built of the checkout; torch stays away."""
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", "index", "./project"]
    subprocess.run(words, cwd=stage.folder, check=True, timeout=300)
    stage.variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(stage.folder / "index")}


def has_extras(stage: Stage, ended: Ended) -> None:
    """The wheel asks for torch with the extra, and runs without the checkout."""
    (metadata,) = stage.project.glob("installed/executorch_qnn_ci-*.dist-info/METADATA")
    needs = [row for row in metadata.read_text("utf-8").splitlines() if "extra ==" in row]
    assert any(row.startswith("Requires-Dist: torch==") for row in needs), needs
    stage.variables["PYTHONPATH"] = str(stage.project / "installed")
    stage.directory = stage.home
    listed = stage.run(f"{stage.project}/installed/bin/qnn-ci test-emulator --list")
    assert "mlp" in listed.stdout, listed.said


INSTALL = {"adds": "--quiet --no-deps --target installed", "says": ("^",), "then": has_extras}

RECIPES = {
    'pip install "executorch-qnn-ci[lowering]"': Recipe(setup=(serve_wheel,), **INSTALL),
    'pip install ".[lowering]"': Recipe(**INSTALL),
    INIT: Recipe(
        setup=(enter_repository,),
        fill={"OWNER/REPOSITORY@COMMIT": COMMIT},
        says=("wrote .*qnn.toml",),
        then=are_written,
    ),
    "qnn-ci init --policy-only": Recipe(setup=(enter_repository,), says=("wrote qnn.toml",)),
    RUN: Recipe(setup=(initialise,), says=("2 passed",), then=goes_red, with_models=True),
    # After the green run, which they need, see goes_red.
    RED: Recipe(elsewhere="docs/your-repository.md"),
    REVIEW: Recipe(elsewhere="docs/your-repository.md"),
}
