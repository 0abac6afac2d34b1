"""``init``: write a policy and a workflow into a repository that has its own models."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
from pathlib import Path

from ci.cases.spec import FILE_VERBS, find_models
from ci.litert.reading import ask_quantized
from ci.models.schemes import MODEL_FILES, ONNX
from ci.models.source_lines import find_repository
from ci.onnx.reading import suggest_shapes_line
from ci.report.filled import fill_text
from ci.verbs.user_policy import read_paths
from provisioning.console.caller import CHECKOUT, find_origin, parse_github, shown_path
from provisioning.console.command import FLAG, Outcome, group_options, read_version, user_path
from provisioning.console.git import ask_git, read_commit
from provisioning.console.progress import Progress
from provisioning.console.user_folder import UserFolder, edit_file, lock_folder
from provisioning.documents import read_bytes, read_text
from provisioning.errors import ToolError, UsageError
from provisioning.files import explain_writes, write_whole
from provisioning.quoting import shell_word, show_command, toml_string

TEMPLATES = Path(__file__).resolve().parent / "templates"
POLICY, WORKFLOW, MODEL = "qnn.toml", ".github/workflows/qnn.yml", "qnn_model.py"
IGNORED = ".gitignore"
# What the commands on our pages write into a repository.
RESULTS = (b"reports/\n", b"/before/\n", b"/kept/\n", b"/qnn.sarif\n")
EMULATOR = "test-emulator"  # runs modules of PyTorch
USES = re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+@[0-9a-f]{40}")

# What the user has to fill in, because this program cannot know it.
REPLACED = (
    "the GitHub repository that contains executorch-qnn-ci for OWNER/REPOSITORY, and the 40 digits"
    " of a commit in it for COMMIT (`git rev-parse HEAD` in its clone prints them)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = group_options(parser)
    add(
        "--model",
        "file.py:factory, file.onnx or file.tflite; by default, an example is created",
        default="",
    )
    text = "the repository and commit of executorch-qnn-ci with the workflow to call"
    add("--uses OWNER/REPOSITORY@COMMIT", text, default="")
    only = parser.add_mutually_exclusive_group().add_argument
    only("--policy-only", **FLAG, help="write no workflow")
    only("--workflow-only", **FLAG, help="write only the workflow, for a qnn.toml")
    text = "the policy's directory; default: the root of the repository you are in"
    add("--directory", text, type=user_path)
    add("--force", "rename existing files, instead of refusing them", **FLAG)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Write the policy, an example of a model and the workflow. Raises UsageError for an invalid
    option or an existing file, and StoreError if a file cannot be written."""
    working_directory = user_path(".").absolute()
    directory = args.directory or find_repository(working_directory / POLICY) or working_directory
    # Not resolved, so that links in the path stay as the user typed them.
    root = Path(os.path.abspath(directory))  # noqa: PTH100
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory", fix="create it, or correct the path")
    top = find_repository(root / POLICY) or root  # GitHub reads no workflows elsewhere
    workflow = WORKFLOW if top == root else str(top / WORKFLOW)
    policy = (root / POLICY).relative_to(top).as_posix()
    uses = args.uses or find_workflow()
    if uses and not USES.fullmatch(uses):
        raise UsageError(
            f"--uses {uses} does not name a GitHub repository and one of its commits",
            why="the workflow is pinned by commit, because a tag can be moved",
            fix=f"pass --uses OWNER/REPOSITORY@COMMIT, with {REPLACED}; or --policy-only",
        )
    if args.uses and args.policy_only:
        raise UsageError("--uses is for a workflow, which --policy-only does not write")
    verb, notes = find_verb(args.model), list[str]()
    files: dict[str, str] = {}
    if args.workflow_only:
        if args.model:
            raise UsageError("--model is for a policy, which --workflow-only does not write")
        verb = choose_verb(root, uses)
    else:
        files = make_policy(args.model, root, notes)
    if uses and not args.policy_only:
        files[workflow] = make_workflow(uses, policy, verb)
    elif not args.policy_only and not (top / WORKFLOW).is_file():
        words = ["--workflow-only", "--uses", "OWNER/REPOSITORY@COMMIT"]
        words += ["--directory", shown_path(root)] if args.directory else []
        notes.append(
            f"{WORKFLOW} was not written, because it is not known which repository has the workflow"
            f" to call: run {show_command('init', *words)}, with {REPLACED}"
        )
    names = {os.path.relpath(root / name, top): name for name in files}
    fix = "move it away, or pass --force, which renames existing files"
    if workflow in files and files.keys() != {workflow} and not os.path.lexists(root / POLICY):
        fix += ", or --policy-only to keep the workflow"
    folder = UserFolder(top, fix, has_record=False)
    with lock_folder(top, progress):
        with folder.stage() as scratch:
            for path, name in names.items():
                write_whole(scratch / path, files[name])
            published = folder.publish(scratch, force=args.force)
        # Files that a run wrote before it was killed have the same content, and stay.
        written = [name for path, name in names.items() if path in published.written]
        written += ignore_results(root)
    published.say_aside(progress)
    shown_names = [shown_path(root / name) for name in written]
    unchanged = [shown_path(root / name) for name in names.values() if name not in written]
    shown = shown_path(root / POLICY)
    return Outcome(
        "".join(f"wrote {name}\n" for name in shown_names)
        + "".join(f"unchanged: {name}\n" for name in unchanged)
        + "".join(f"note: {note}\n" for note in notes)
        + f"next: run {show_command(verb, '--policy', shown)}, then commit these files\n",
        {"written": shown_names, "notes": notes, "policy": shell_word(shown)},
    )


def find_workflow() -> str:
    """Return ``OWNER/REPOSITORY@COMMIT`` of this copy of the project, which pip recorded, or which
    its clone knows. Return "" if neither does."""
    return find_origin() or find_pushed_commit(CHECKOUT)


def find_pushed_commit(checkout: Path) -> str:
    """Return ``OWNER/REPOSITORY@COMMIT`` for the commit that is checked out in a clone whose remote
    ``origin`` is on GitHub. Return "" if there is no such remote, or if none of its branches
    contains the commit, so that GitHub may not have it."""
    if not (checkout / ".git").exists():
        return ""
    try:
        url = ask_git(checkout, "config", "--get", "remote.origin.url").decode().strip()
        commit = read_commit(checkout)
        remote = ("for-each-ref", "--contains", commit, "--count=1", "refs/remotes/origin")
        repository = parse_github(url) if ask_git(checkout, *remote) else ""
    except ToolError:  # as without git, without a remote or without a commit
        return ""
    return f"{repository}@{commit}" if repository else ""


def ignore_results(root: Path) -> list[str]:
    """Add the missing RESULTS to ``.gitignore``, and return its name if there are any. A .gitignore
    that is a link or no file stays as it is. Raises StoreError."""
    path = root / IGNORED
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return []
    data = read_bytes(path) if path.is_file() else b""
    ignored = {line.strip().strip(b"/") for line in data.splitlines()}
    missing = b"".join(row for row in RESULTS if row.strip(b"/\n") not in ignored)
    if not missing:
        return []
    if not path.exists():
        with explain_writes(root, "pass another --directory"):
            write_whole(path, missing)
        return [IGNORED]
    # In bytes, because a .gitignore need not be UTF-8.
    newline = b"\r\n" if b"\r\n" in data else b"\n"
    end = b"" if data.endswith(b"\n") or not data else newline
    edit_file(path, data, data + end + missing.replace(b"\n", newline))
    return [IGNORED]


def find_verb(path: str) -> str:
    """Return the verb that tests a model with this path."""
    return FILE_VERBS.get(Path(path).suffix, EMULATOR)


def choose_verb(root: Path, uses: str) -> str:
    """Return the verb for the workflow of an existing policy. Raises UsageError if --workflow-only
    cannot write it."""
    if not uses:
        raise UsageError(
            "it is not known which workflow to call",
            fix=f"pass --uses OWNER/REPOSITORY@COMMIT, with {REPLACED}",
        )
    if not (root / POLICY).is_file():
        raise UsageError(
            f"there is no {POLICY} in {root}",
            why="the workflow uses it",
            fix="leave out --workflow-only",
        )
    verbs = {find_verb(path) for path in read_paths(root / POLICY).values()}
    return verbs.pop() if len(verbs) == 1 else EMULATOR


def make_policy(model: str, root: Path, notes: list[str]) -> dict[str, str]:
    """Return the text of the policy and, without a ``model``, of an example. The keys are paths
    below ``root``. Remarks for the user are added to ``notes``. Raises UsageError if the model does
    not exist, is not below ``root``, or is not an ONNX model although its name ends in .onnx."""
    file, path, factory, files, shapes = "", MODEL, "factory", {}, ""
    is_file = model.endswith(MODEL_FILES)
    if model:
        (entry,) = find_models(model, {}).values()
        file, _, factory = (entry.path, "", "") if is_file else entry.path.rpartition(":")
        if not Path(file).is_relative_to(root):
            raise UsageError(
                f"{file} is not in {root}",
                why="a policy names its models relative to its own place",
                fix="copy the model into it, or pass --directory with a directory above the model",
            )
        path = Path(file).relative_to(root).as_posix()
        shapes = write_shapes(Path(file), notes) if model.endswith(ONNX.suffix) else ""
    else:
        files[MODEL] = read_text(TEMPLATES / "qnn_model.txt")
    quoted = toml_string(path if is_file else f"{path}:{factory}")
    # Stripped once more at the end, because a long name may be cut at a dash.
    key = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).stem).strip("-_")[:40].rstrip("-_") or "model"
    files[POLICY] = fill_text(
        "verbs/templates/qnn.toml.j2",
        name=key,
        path=quoted,
        factory=factory,
        shapes=shapes,
        verb=find_verb(model),
        scheme=choose_scheme(find_verb(model), Path(file), notes),
    )
    return files


def choose_scheme(verb: str, path: Path, notes: list[str]) -> str:
    """Return the scheme of the template's limits. Those of a .tflite file are of fp16 if it is in
    float and of asis if it is quantized: limits of the other scheme would have no effect."""
    if verb != FILE_VERBS[".tflite"]:
        return {FILE_VERBS[".onnx"]: "u8"}.get(verb, "8a8w")
    if not importlib.util.find_spec("ai_edge_litert"):
        notes.append(
            f"this Python has no ai_edge_litert, so it is not known whether {path.name} is"
            " quantized: the limits in its policy are for fp16; for a quantized file, use asis"
        )
        return "fp16"
    return "asis" if ask_quantized(path) else "fp16"


def write_shapes(path: Path, notes: list[str]) -> str:
    """Return a line for the policy with the shapes of an .onnx file's inputs, empty if they are
    fixed. A batch size that varies needs no line, so that one is a comment."""
    if not importlib.util.find_spec("onnx"):
        notes.append(
            f"this Python has no onnx, so it is not known whether the inputs of {path.name} have"
            " fixed shapes"
        )
        return ""
    line = suggest_shapes_line(path)
    if not line.text:
        return ""
    if line.is_default:
        return f"\n# {line.text} # by default, the batch size is 1"
    notes.append(f"{path.name} has inputs whose sizes vary: check `shapes` in {POLICY}")
    return f"\n{line.text} # the sizes that you use in practice"


def make_workflow(uses: str, policy: str, verb: str = EMULATOR) -> str:
    """Return the text of the workflow, which calls the one of ``uses`` with the path ``policy`` and
    the lane of ``verb``."""
    owner, _, commit = uses.partition("@")
    words = {"OWNER/REPOSITORY": owner, "COMMIT": commit, "VERSION": f"v{read_version()}"}
    path = policy if policy == POLICY else json.dumps(policy, ensure_ascii=False)
    lane = "" if verb == EMULATOR else f", lane: {verb.removeprefix('test-')}"
    words["policy: qnn.toml"] = f"policy: {path}{lane}"
    text = read_text(TEMPLATES / "qnn.yml")  # with GitHub's own expressions in braces
    return re.sub("|".join(map(re.escape, words)), lambda match: words[match[0]], text)
