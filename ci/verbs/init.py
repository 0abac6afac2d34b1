"""``init``: write a policy and a workflow into a repository that has its own models."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from pathlib import Path

from ci.cases.spec import find_models
from ci.models.schemes import ONNX
from ci.models.source_lines import find_repository
from ci.report.filled import fill_text
from ci.verbs.user_policy import read_paths
from provisioning.console.caller import find_origin, shown_path
from provisioning.console.command import FLAG, Outcome, group_options, read_version, user_path
from provisioning.console.progress import Progress
from provisioning.documents import read_bytes, read_text
from provisioning.errors import UsageError
from provisioning.files import explain_writes, write_whole

TEMPLATES = Path(__file__).resolve().parent / "templates"
POLICY, WORKFLOW, MODEL = "qnn.toml", ".github/workflows/qnn.yml", "qnn_model.py"
IGNORED = ".gitignore"
# What the commands on our pages write into a repository.
RESULTS = (b"reports/\n", b"/before/\n", b"/kept/\n")
USES = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser)
    add("--model", "file.py:factory or file.onnx; by default, an example is created", default="")
    text = "the repository and commit of executorch-qnn-ci with the workflow to call"
    add("--uses OWNER/REPOSITORY@COMMIT", text, default="")
    only = parser.add_mutually_exclusive_group().add_argument
    only("--policy-only", **FLAG, help="write no workflow")
    only("--workflow-only", **FLAG, help="write only the workflow, for a qnn.toml")
    text = "the policy's directory; default: the root of the repository you are in"
    add("--directory", text, type=user_path)
    add("--force", "overwrite existing files", **FLAG)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    here = user_path(".").absolute()
    root = Path(os.path.abspath(args.directory or find_repository(here / POLICY) or here))  # noqa: PTH100
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory")
    top = find_repository(root / POLICY) or root  # GitHub reads no workflows elsewhere
    workflow = WORKFLOW if top == root else str(top / WORKFLOW)
    policy = (root / POLICY).relative_to(top).as_posix()
    uses = args.uses or find_origin()
    if uses and not USES.fullmatch(uses):
        raise UsageError(
            f"--uses {uses} is not OWNER/REPOSITORY@COMMIT",
            why="the workflow is pinned by commit, because a tag can be moved",
            fix="pass --uses OWNER/REPOSITORY@COMMIT with all 40 digits, or --policy-only",
        )
    is_onnx, notes = args.model.endswith(ONNX.suffix), list[str]()
    files: dict[str, str] = {}
    if args.workflow_only:
        is_onnx = choose_lane(args, root, uses)
    else:
        files = make_policy(args.model, root, notes)
    if uses and not args.policy_only:
        files[workflow] = make_workflow(uses, policy, is_onnx=is_onnx)
    elif not args.policy_only:
        where = f" --directory {shlex.quote(shown_path(root))}" if args.directory else ""
        notes.append(
            f"{WORKFLOW} was not written, because it is not known which repository has the workflow"
            f" to call: run `qnn-ci init --workflow-only --uses OWNER/REPOSITORY@COMMIT{where}`"
        )
    present = [name for name in files if os.path.lexists(root / name)]
    if present and not args.force:
        what = f"{', '.join(present)} {'exists' if len(present) == 1 else 'exist'} already"
        fix = "pass --force to overwrite existing files"
        if present == [workflow] and files.keys() != {workflow}:
            fix += ", or --policy-only to keep the workflow"
        raise UsageError(what, why="nothing was written", fix=fix)
    every: dict[str, bytes | str] = {**files, **ignore_results(root)}
    with explain_writes(root, "pass another --directory"):
        for name, data in every.items():
            write_whole(root / name, data)
    written = [shown_path(root / name) for name in every]
    verb = "test-onnx" if is_onnx else "test-emulator"
    shown = shlex.quote(shown_path(root / POLICY))
    return Outcome(
        "".join(f"wrote {name}\n" for name in written)
        + "".join(f"note: {note}\n" for note in notes)
        + f"next: run `qnn-ci {verb} --policy {shown}`, then commit these files\n",
        {"written": written, "notes": notes, "policy": shown},
    )


def ignore_results(root: Path) -> dict[str, bytes]:
    """Return a dict that maps ``.gitignore`` to its content with the missing RESULTS added. Return
    an empty dict if none is missing, or if .gitignore is not a regular file."""
    path = root / IGNORED
    if os.path.lexists(path) and not path.is_file():
        return {}
    data = read_bytes(path) if path.is_file() else b""
    known = {line.strip().strip(b"/") for line in data.splitlines()}
    missing = b"".join(row for row in RESULTS if row.strip(b"/\n") not in known)
    if not missing:
        return {}
    return {IGNORED: data + (b"" if data.endswith(b"\n") or not data else b"\n") + missing}


def choose_lane(args: argparse.Namespace, root: Path, uses: str) -> bool:
    """Return whether the workflow for an existing policy tests .onnx files. Raises UsageError if
    --workflow-only cannot write it."""
    if not uses:
        raise UsageError(
            "it is not known which workflow to call", fix="pass --uses OWNER/REPOSITORY@COMMIT"
        )
    if args.model:
        raise UsageError("--model is for a policy, which --workflow-only does not write")
    if not (root / POLICY).is_file():
        raise UsageError(
            f"there is no {POLICY} in {root}",
            why="the workflow uses it",
            fix="leave out --workflow-only",
        )
    paths = read_paths(root / POLICY).values()
    return bool(paths) and all(path.endswith(ONNX.suffix) for path in paths)


def make_policy(model: str, root: Path, notes: list[str]) -> dict[str, str]:
    """Return the text of the policy and, without a ``model``, of an example. The keys are paths
    below ``root``. Remarks for the user are added to ``notes``. Raises UsageError if the model does
    not exist, is not below ``root``, or is not an ONNX model although its name ends in .onnx."""
    path, factory, files, shapes = MODEL, "factory", {}, ""
    is_onnx = model.endswith(ONNX.suffix)
    if model:
        (entry,) = find_models(model, {}).values()
        file, _, factory = (entry.path, "", "") if is_onnx else entry.path.rpartition(":")
        if not Path(file).is_relative_to(root):
            raise UsageError(f"{file} is not in {root}", fix="pass --directory, or another model")
        path = Path(file).relative_to(root).as_posix()
        shapes = write_shapes(Path(file), notes) if is_onnx else ""
    else:
        files[MODEL] = read_text(TEMPLATES / "qnn_model.txt")
    quoted = json.dumps(path if is_onnx else f"{path}:{factory}", ensure_ascii=False)
    key = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).stem).strip("-_")[:40].rstrip("-_") or "model"
    files[POLICY] = fill_text(
        "verbs/templates/qnn.toml.j2",
        name=key,
        path=quoted,
        factory=factory,
        shapes=shapes,
        is_onnx=is_onnx,
        verb="test-onnx" if is_onnx else "test-emulator",
    )
    return files


def write_shapes(path: Path, notes: list[str]) -> str:
    """Return a line for the policy with the shapes of an .onnx file's inputs, empty if they are
    fixed. A batch size that varies needs no line, so that one is a comment."""
    try:
        from ci.onnx import models
    except ImportError:
        notes.append(
            f"this Python has no onnx, so it is not known whether the inputs of {path.name} have"
            " fixed shapes"
        )
        return ""
    model = models.parse_model(path)
    if batch := models.find_batch(model)[1]:
        return f"\n# {models.write_shapes(batch)} # by default, the batch size is 1"
    free = models.list_free(models.list_required_inputs(model))
    if not free:
        return ""
    line = models.write_shapes(models.suggest_shapes(free))
    notes.append(f"{path.name} has inputs whose sizes vary: check `shapes` in {POLICY}")
    return f"\n{line} # the sizes that you use in practice"


def make_workflow(uses: str, policy: str, *, is_onnx: bool) -> str:
    """Return the text of the workflow, which calls the one of ``uses`` with the path ``policy``."""
    owner, _, commit = uses.partition("@")
    words = {"OWNER/REPOSITORY": owner, "COMMIT": commit, "VERSION": f"v{read_version()}"}
    path = policy if policy == POLICY else json.dumps(policy, ensure_ascii=False)
    words["policy: qnn.toml"] = f"policy: {path}{', lane: onnx' if is_onnx else ''}"
    text = read_text(TEMPLATES / "qnn.yml")  # with GitHub's own expressions in braces
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)
