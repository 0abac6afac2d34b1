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
from provisioning.console.caller import shown_path
from provisioning.console.command import Outcome, read_version, user_path
from provisioning.console.installation import find_origin
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.files import explain_writes, write_whole

TEMPLATES = Path(__file__).resolve().parent / "templates"
POLICY, WORKFLOW, MODEL = "qnn.toml", ".github/workflows/qnn.yml", "qnn_model.py"
IGNORED = ".gitignore"
# Replacements in the template of the policy, if the model is an .onnx file.
OF_ONNX = {
    "test-emulator": "test-onnx",
    " # FACTORY() returns (module, example_inputs) or (..., calibration)": "",
    'schemes = ["8a8w", "16a8w"] # others: fp16, 16a16w, 16a4w, 16a4w_block': (
        '# schemes = ["u8"] # fp16, u8 and u16a8w by default; a quantized file runs as it is\n'
        '# float_model = "float.onnx" # the float model of a quantized file'
    ),
    '"data/calibration.npz" # one array per input, [sets, *shape], or data.py:function': (
        '"data/calibration.npz" # one array per input, named after it, [sets, *shape]'
    ),
    "limits.8a8w": "limits.u8",
}
USES = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        default="",
        help="file.py:factory or file.onnx; by default, an example is created",
    )
    add(
        "--uses",
        default="",
        metavar="OWNER/REPOSITORY@COMMIT",
        help="the repository and commit of executorch-qnn-ci with the workflow to call",
    )
    add("--policy-only", action="store_true", help="write no workflow")
    add(
        "--directory",
        type=user_path,
        help="the repository; default: the one that contains the current directory",
    )
    add("--force", action="store_true", help="overwrite existing files")


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    here = user_path(".").absolute()
    root = Path(os.path.abspath(args.directory or find_repository(here / POLICY) or here))  # noqa: PTH100
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory")
    uses = args.uses or find_origin()
    files = make_files(args.model, root, uses, policy_only=args.policy_only)
    present = [name for name in files if os.path.lexists(root / name)]
    if present and not args.force:
        what = f"{', '.join(present)} {'exists' if len(present) == 1 else 'exist'} already"
        raise UsageError(
            what, why="nothing was written", fix="pass --force to overwrite existing files"
        )
    is_onnx = args.model.endswith(ONNX.suffix)
    every: dict[str, bytes | str] = {**files, **ignore_reports(root)}
    with explain_writes(root, "pass another --directory"):
        for name, data in every.items():
            write_whole(root / name, data)
    written = [shown_path(root / name) for name in every]
    verb = "test-onnx" if is_onnx else "test-emulator"
    policy = shlex.quote(shown_path(root / POLICY))
    return Outcome(
        "".join(f"wrote {name}\n" for name in written)
        + f"next: run `qnn-ci {verb} --policy {policy}`, then commit these files\n",
        {"written": written, "policy": policy},
    )


def ignore_reports(root: Path) -> dict[str, bytes]:
    """Return a dict that maps ``.gitignore`` to its content with reports/ added. Return an empty
    dict if .gitignore already lists reports/ or is not a regular file."""
    path = root / IGNORED
    if os.path.lexists(path) and not path.is_file():
        return {}
    data = path.read_bytes() if path.is_file() else b""
    if any(line.strip().strip(b"/") == b"reports" for line in data.splitlines()):
        return {}
    return {IGNORED: data + (b"" if data.endswith(b"\n") or not data else b"\n") + b"reports/\n"}


def make_files(model: str, root: Path, uses: str, *, policy_only: bool) -> dict[str, str]:
    """Return the text of each file to write. The keys are paths below ``root``. Raises UsageError
    if the model does not exist or is not below ``root``, or if the workflow to call is not known.
    """
    if not policy_only and not USES.fullmatch(uses):
        raise UsageError(
            f"--uses {uses} is not OWNER/REPOSITORY@COMMIT"
            if uses
            else "it is not known which workflow to call",
            why="the workflow is pinned by commit, because a tag can be moved",
            fix="pass --uses OWNER/REPOSITORY@COMMIT with all 40 digits, or --policy-only",
        )
    path, factory, files = MODEL, "factory", {}
    is_onnx = model.endswith(ONNX.suffix)
    if model:
        (entry,) = find_models(model, {}).values()
        file, _, factory = (entry.path, "", "") if is_onnx else entry.path.rpartition(":")
        if not Path(file).is_relative_to(root):
            raise UsageError(f"{file} is not in {root}", fix="pass --directory, or another model")
        path = Path(file).relative_to(root).as_posix()
    else:
        files[MODEL] = fill_template("qnn_model.txt", {})
    quoted = json.dumps(path if is_onnx else f"{path}:{factory}", ensure_ascii=False)
    words = {'"PATH:FACTORY"': quoted, "FACTORY": factory, "NAME": name_model(path)}
    words = {**(OF_ONNX if is_onnx else {}), **words}
    files[POLICY] = fill_template("qnn.toml", words)
    if not policy_only:
        owner, _, commit = uses.partition("@")
        words = {"OWNER/REPOSITORY": owner, "COMMIT": commit, "VERSION": f"v{read_version()}"}
        if is_onnx:
            words |= {"policy: qnn.toml": "policy: qnn.toml, lane: onnx"}
        files[WORKFLOW] = fill_template("qnn.yml", words)
    return files


def name_model(path: str) -> str:
    """Return a key for a model file in the policy, made from the file's name."""
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).stem).strip("-_")
    return words[:40].rstrip("-_") or "model"


def fill_template(name: str, words: dict[str, str]) -> str:
    """Return a template with each key of ``words`` replaced by its value, in one pass."""
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return re.sub("|".join(map(re.escape, words)) or "$^", lambda found: words[found[0]], text)
