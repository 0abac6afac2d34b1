"""Actions of GitHub's and others, as far as the project's workflows use them, failures included.

Each follows the README of its pinned version. What a real one would refuse is refused here: a
permission that the job lacks, a key that is too long, an artifact's name that is taken.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.workflows.job import Action, ActionCall, ActionError

BAD_IN_NAMES = re.compile(r'["*:<>|?\\/\r\n]')
TRUE = frozenset({"true", "True", "TRUE"})


@dataclass
class Entry:
    """A saved cache; ``scope`` is the ref whose runs may read it, besides those on top of it."""

    key: str
    version: str
    scope: str
    folder: Path


@dataclass
class Services:
    """GitHub's side: repositories, caches, artifacts, and what was asked of it."""

    folder: Path
    repository: Path
    caches: list[Entry] = field(default_factory=list)
    artifacts: dict[str, Path] = field(default_factory=dict)
    other_repositories: dict[str, Path] = field(default_factory=dict)  # repositories by OWNER/NAME
    calls: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    scanned: dict[str, list[Any]] = field(default_factory=dict)  # results by category

    def reset(self) -> None:
        """Forget everything except the repository."""
        for records in (
            self.caches,
            self.artifacts,
            self.other_repositories,
            self.calls,
            self.scanned,
        ):
            records.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def actions(self) -> dict[str, Action]:
        """The stand-ins, by the name before the @."""
        table: dict[str, Callable[[ActionCall], Mapping[str, str]]] = {
            "actions/checkout": self.check_out,
            "actions/setup-python": self.set_up_python,
            "actions/cache/restore": self.restore,
            "actions/cache/save": self.save,
            "actions/upload-artifact": self.upload,
            "actions/download-artifact": self.download,
            "actions/attest": self.attest,
            "github/codeql-action/upload-sarif": self.upload_sarif,
        }
        return {name: self._note(action) for name, action in table.items()}

    def _note(self, action: Action) -> Action:
        def run(call: ActionCall) -> Mapping[str, str]:
            self.calls.append((call.name, call.inputs))
            return action(call)

        return run

    def check_out(self, call: ActionCall) -> Mapping[str, str]:
        """v7: one commit, and the token in .git/config unless it is told not to."""
        need(call, "contents", "read")
        ref = call.inputs.get("ref") or call.job.contexts["github"]["sha"]
        depth = call.inputs.get("fetch-depth", "1")
        target = call.job.setting.workspace / call.inputs.get("path", ".")
        source = self.other_repositories.get(call.inputs.get("repository", ""), self.repository)
        target.mkdir(parents=True, exist_ok=True)
        git(target, "init", "--quiet")
        with (target / ".git" / "config").open("a") as config:
            config.write(f'[remote "origin"]\n\turl = file://{source}\n')
            config.write("\tfetch = +refs/heads/*:refs/remotes/origin/*\n")
        shared = target / ".git" / "objects" / "info" / "alternates"  # nothing is copied
        shared.write_text(f"{source}/.git/objects\n")
        deep = [] if depth == "0" else [f"--depth={depth}"]
        refspec = "+refs/heads/*:refs/remotes/origin/*" if depth == "0" else ref
        git(target, "fetch", "--quiet", *deep, "origin", refspec)
        git(target, "-c", "advice.detachedHead=false", "checkout", "--quiet", ref)
        if call.inputs.get("persist-credentials", "true") in TRUE:
            git(target, "config", "http.https://github.com/.extraheader", "AUTHORIZATION: token")
        return {"ref": ref, "commit": ref}

    def set_up_python(self, call: ActionCall) -> Mapping[str, str]:
        """v7: the asked version, which is this machine's whatever was asked."""
        version = call.inputs.get("python-version", "")
        if not re.fullmatch(r"3\.\d+", version):
            raise ActionError(f"The version '{version}' with architecture 'x64' was not found")
        return {"python-version": version}

    # -- caches: v6.1.0

    def restore(self, call: ActionCall) -> Mapping[str, str]:
        key, version = check_cache(call)
        prefixes = [
            prefix for prefix in call.inputs.get("restore-keys", "").splitlines() if prefix.strip()
        ]
        entry = self._find(key, prefixes, version, call.job.contexts["github"])
        if entry is None:
            if call.inputs.get("fail-on-cache-miss") in TRUE:
                raise ActionError(f"Failed to restore cache entry: {key}")
            return {"cache-primary-key": key}
        for saved in sorted(entry.folder.iterdir()):
            target = Path("/" + saved.name.replace("%2F", "/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_over(saved, target)
        exact = str(entry.key == key).lower()
        return {"cache-hit": exact, "cache-primary-key": key, "cache-matched-key": entry.key}

    def _find(
        self, key: str, prefixes: list[str], version: str, github: Mapping[str, object]
    ) -> Entry | None:
        scopes = (github["ref"], github.get("base_ref"), "refs/heads/main")
        for scope in scopes:
            in_scope = [
                cache for cache in self.caches if cache.scope == scope and cache.version == version
            ]
            for cache in in_scope:
                if cache.key == key:
                    return cache
            for prefix in prefixes:
                for cache in reversed(in_scope):  # the newest first
                    if cache.key.startswith(prefix.strip()):
                        return cache
        return None

    def save(self, call: ActionCall) -> Mapping[str, str]:
        key, version = check_cache(call)
        scope = call.job.contexts["github"]["ref"]
        if any(
            (cache.key, cache.version, cache.scope) == (key, version, scope)
            for cache in self.caches
        ):
            call.job.heard.hear(f"::warning::Unable to reserve cache with key {key}")
            return {}
        workspace = call.job.setting.workspace
        named = [Path(workspace, line) for line in call.inputs["path"].splitlines()]
        paths = [path for path in named if path.exists()]
        if not paths:
            call.job.heard.hear("::warning::Path Validation Error: Path(s) do(es) not exist")
            return {}
        folder = self.folder / f"cache-{len(self.caches)}"
        folder.mkdir(parents=True)
        for path in paths:
            copy_over(path, folder / str(path)[1:].replace("/", "%2F"))
        self.caches.append(Entry(key, version, scope, folder))
        return {}

    # -- artifacts: upload v7.0.1, download v8.0.1

    def upload(self, call: ActionCall) -> Mapping[str, str]:
        name = call.inputs.get("name") or "artifact"
        if BAD_IN_NAMES.search(name):
            raise ActionError(f"The artifact name is not valid: {name}")
        files = find_files(call.job.setting.workspace, call.inputs["path"].splitlines())
        if not files:
            missing = "No files were found with the provided path"
            if call.inputs.get("if-no-files-found", "warn") == "error":
                raise ActionError(missing)
            if call.inputs.get("if-no-files-found", "warn") == "warn":
                call.job.heard.hear(f"::warning::{missing}")
            return {}
        if name in self.artifacts and call.inputs.get("overwrite") not in TRUE:
            raise ActionError("(409) Conflict: an artifact with this name already exists")
        target = self.folder / "artifacts" / name
        shutil.rmtree(target, ignore_errors=True)
        root = find_root(files, call.inputs["path"].splitlines(), call.job.setting.workspace)
        for path in files:
            place = target / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)  # an artifact keeps no mode
        self.artifacts[name] = target
        return {"artifact-id": str(len(self.artifacts))}

    def download(self, call: ActionCall) -> Mapping[str, str]:
        target = call.job.setting.workspace / call.inputs.get("path", ".")
        name, pattern = call.inputs.get("name", ""), call.inputs.get("pattern", "*")
        if name:
            if name not in self.artifacts:
                raise ActionError(f"Unable to download artifact(s): Artifact not found: {name}")
            copy_over(self.artifacts[name], target)
            return {"download-path": str(target)}
        for artifact in fnmatch.filter(sorted(self.artifacts), pattern):
            merged = call.inputs.get("merge-multiple") in TRUE
            copy_over(self.artifacts[artifact], target if merged else target / artifact)
        return {"download-path": str(target)}

    # -- what leaves the repository

    def attest(self, call: ActionCall) -> Mapping[str, str]:
        """v4.2.2: an attestation of files, which must exist."""
        need(call, "id-token", "write")
        need(call, "attestations", "write")
        subjects = find_files(call.job.setting.workspace, call.inputs["subject-path"].splitlines())
        if not subjects:
            raise ActionError("Could not find subject at path")
        bundle = call.job.setting.temp / "attestation.json"
        bundle.write_text("{}")
        return {"bundle-path": str(bundle)}

    def upload_sarif(self, call: ActionCall) -> Mapping[str, str]:
        """v4.38.3: a log of one run a category, in a job that may write security events."""
        need(call, "security-events", "write")
        need(call, "actions", "read")  # asked of private repositories alone
        path = call.job.setting.workspace / call.inputs["sarif_file"]
        if not path.is_file():
            raise ActionError(f"Path does not exist: {path}")
        category = call.inputs["category"]
        if category in self.scanned:
            raise ActionError(f"only one run of the codeql/analyze or upload-sarif: {category}")
        (run,) = json.loads(path.read_text(encoding="utf-8"))["runs"]
        self.scanned[category] = run["results"]
        return {"sarif-id": category}


def need(call: ActionCall, permission: str, level: str) -> None:
    """Fail as the API does for a token without a permission."""
    has = call.job.permissions.get(permission, "none")
    if has not in {level, "write"}:
        raise ActionError(f"Resource not accessible by integration ({permission}: {level})")


def check_cache(call: ActionCall) -> tuple[str, str]:
    """The key, and what the paths make of it. Raises ActionError as the toolkit does."""
    key, paths = call.inputs["key"], call.inputs["path"]
    if not paths.strip():
        raise ActionError("Input required and not supplied: path")
    if len(key) > 512 or "," in key or not key:
        raise ActionError(f"Key Validation Error: {key}")
    return key, paths


def find_files(workspace: Path, patterns: list[str]) -> list[Path]:
    """Files that glob patterns name; hidden ones are left out."""
    files: set[Path] = set()
    for pattern in filter(str.strip, patterns):
        path = Path(pattern.strip())
        base, name = (path, "") if path.is_absolute() else (workspace, pattern.strip().rstrip("/"))
        matches = [base] if not name else [*base.glob(name)]
        for match in matches:
            inside = match.rglob("*") if match.is_dir() else [match]
            files |= {file for file in inside if file.is_file() and not is_hidden(file, workspace)}
    return sorted(files)


def is_hidden(path: Path, workspace: Path) -> bool:
    """Whether a part of its name below the workspace begins with a dot."""
    inside = path.relative_to(workspace) if path.is_relative_to(workspace) else Path(path.name)
    return any(part.startswith(".") for part in inside.parts)


def find_root(files: list[Path], patterns: list[str], workspace: Path) -> Path:
    """The directory that is the artifact's root: of one path itself, of several what they share."""
    paths = [pattern.strip() for pattern in patterns if pattern.strip()]
    if len(paths) == 1 and "*" not in paths[0]:
        path = workspace / paths[0]
        return path if path.is_dir() else path.parent
    folders = []
    for pattern in paths:
        base = workspace / re.split(r"/?[^/]*[*?[]", pattern)[0]
        folders.append(base if base.is_dir() else base.parent)
    return Path(os.path.commonpath(folders))


def copy_over(source: Path, target: Path) -> None:
    """Copy a file or tree, modes and links as they are, over what is there."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def git(folder: Path, *words: str) -> str:
    """Run git there; its words are what it prints."""
    ended = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise ActionError(f"git {words[0]} failed: {ended.stderr.strip()}")
    return ended.stdout
