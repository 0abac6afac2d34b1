"""The cache of compiled programs and their references. A program's directory is published when it
is complete, and contains:

artifact.json and the engine's program
inputs/<set>_<index>.raw           row-major, in the dtype that artifact.json specifies
float/<set>_<index>.raw            outputs of the float32 model
quantized/<set>_<index>.raw        outputs of the quantized model, if there is one
<set>_<index>.low.raw, .high.raw   next to an integer output: its lowest and highest correct values,
                                   because rounding noise may change the output
noise/<index>.npy                  predicted rounding errors of an output, if they are known
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from ci.cases.engine import FLOAT, Compiled, CompilerError, Engine, Staging, require_proof
from ci.cases.forked import LOWERING, DiedError, is_own, run_forked
from ci.cases.pool import Ended
from ci.cases.spec import CaseSpec
from ci.facts.finding import Finding
from ci.facts.kinds import BUG, DIED, INVALID, NOT_LOWERED, find_bug
from ci.models.tensors import read_sets
from ci.models.user_models import ReferencePolicy
from provisioning.documents import DocumentError, read_json, read_text
from provisioning.errors import DefectError, QnnCiError
from provisioning.files import (
    digest_sources,
    explain_no_room,
    explain_writes,
    hash_file,
    publish_directory,
    scratch_directory,
)

RECORD = "artifact.json"
KEY = "key"  # the file next to the log in which a worker that is ended leaves the program's key
# These modules select cases and judge outputs but do not affect the programs. Models are hashed by
# what they call (see ci.models.calls).
CHOOSING = frozenset(
    {
        *("cases/baselines.py", "cases/costs.py", "cases/facts.py", "cases/judged.py"),
        *("cases/kept.py", "cases/lowering_findings.py", "cases/pipeline.py"),
        *("cases/reasons.py", "cases/row.py"),
        *("cases/policy.py", "cases/request.py", "cases/session.py", "cases/spec.py"),
        *("models/schemes.py", "models/suite", "upstream/judged.py"),
        *("onnx/fitting.py", "llm/request.py", "llm/subject.py"),
    }
)
# These measure the programs and models, and an artifact's record contains the results.
MEASURING = (
    "ci/latency/simulation.py",
    "ci/judging/figures.py",
    "provisioning/doctor/survey/context_binaries.py",
    "provisioning/doctor/survey/programs.py",
    "provisioning/elf",
)
# Files of an unpacked image or a copied directory have the times at which they were written.
COPYING_NS = 600 * 10**9
WRITING_NS = 10**9
# Only user extensions compile against C++ headers, and nothing imports a package's tests.
SKIPPED = frozenset({"__pycache__", "include", "test", "tests"})


class Artifact(Struct, frozen=True):
    """The contents of artifact.json. ``files`` maps the relative path of every other file to its
    SHA-256. ``digest`` is the SHA-256 of all other fields. ``lower_s`` is the compilation time in
    seconds."""

    key: str
    model: str
    scheme: str
    soc: str
    compiled: Compiled
    lower_s: float
    files: dict[str, str]
    digest: str = ""

    def digest_sets(self, folder: str) -> str:
        """Return the SHA-256 of the names and hashes of the tensor files in ``folder``. Files with
        bounds of integer outputs are ignored."""
        hashes = sorted(
            (name, digest)
            for name, digest in self.files.items()
            if name.startswith(f"{folder}/") and name.count(".") == 1
        )
        return hash_words(*(word for row in hashes for word in row))


def artifact_path(cache: Path, key: str) -> Path:
    """Return the directory for the artifact with this key. It may not exist."""
    return cache / key[:2] / key


def hash_words(*words: str) -> str:
    """Return one SHA-256 for all ``words``, each prefixed with its length."""
    return hashlib.sha256("".join(f"{len(word)}:{word}" for word in words).encode()).hexdigest()


@cache
def digest_rooms(rooms: tuple[str, ...]) -> str:
    """Return one SHA-256 for the source files of the packages ``rooms`` in ci, except the modules
    in CHOOSING, and those in MEASURING."""
    root = Path(__file__).parents[2]
    places = (place for room in rooms for place in (root / "ci" / room).iterdir())
    return digest_sources(
        # With the room's name: ci/onnx/session.py compiles, but is named like a module that
        # chooses.
        *(place for place in places if f"{place.parent.name}/{place.name}" not in CHOOSING),
        *(root / place_name for place_name in MEASURING),
    )


def digest_packages(names: Iterable[str]) -> str:
    """Return one SHA-256 for Python's version and the files in ``names``. A name is a package or a
    directory in a package, such as ``executorch/exir``. SKIPPED directories are left out. Hashing
    the packages' versions would not be enough, because they do not change when a file is edited.

    A missing package or directory is treated as empty. The libraries that a wheel's builder puts
    next to a package, such as ``numpy.libs``, are included. A wheel's installer writes RECORD last,
    with the hash and size of each file. If a file still has that size and did not change after
    RECORD, the hash in RECORD is used. Otherwise the file is hashed. The time of change (ctime) is
    compared, too, because no program can set it. It may be up to COPYING_NS later if RECORD itself
    was copied, so that its own two times differ. Raises OSError if a file cannot be read.
    """
    parts: dict[str, list[str]] = {}  # directories by package; "" is the whole package
    for name in sorted(names):
        package, _, part = name.partition("/")
        parts.setdefault(package, []).append(part)
    rows: list[str] = []
    for package, directories in parts.items():
        rows += _describe(package, directories)
    return hashlib.sha256("".join([sys.version, *sorted(rows)]).encode()).hexdigest()


def _describe(package: str, parts: Iterable[str]) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations if spec else None) or ():
        parent = Path(place).parent
        recorded, written_ns, slack_ns = _read_record(package, parent)
        tops = [*(Path(place, part) for part in parts), parent / f"{package}.libs"]
        for entry in (entry for top in tops for entry in _walk(top)):
            path, state = entry.path[len(str(parent)) + 1 :], entry.stat()
            digest, size = recorded.get(path, ("", ""))
            times = (state.st_mtime_ns, state.st_ctime_ns - slack_ns)
            if size != str(state.st_size) or max(times) > written_ns:
                raw = base64.urlsafe_b64encode(bytes.fromhex(hash_file(Path(entry.path))))
                digest = f"sha256={raw.decode().rstrip('=')}"  # as in RECORD
            yield f"{path}\0{digest}\n"


def _read_record(package: str, parent: Path) -> tuple[dict[str, tuple[str, str]], int, int]:
    """Return a mapping from paths to hashes and sizes, the time of RECORD's last change in ns, and
    how much later its files may have changed. Without a RECORD next to the package, as in a
    checkout, the result is ({}, 0, 0)."""
    records = sorted(parent.glob(f"{package}-*.dist-info/RECORD"))
    if not records:
        return {}, 0, 0
    try:
        text = read_text(records[-1], "replace")
    except OSError:  # it is not a file
        return {}, 0, 0
    # From the right, because a path may contain commas, such as a shape in the name of a kernel's
    # file.
    rows = (line.rsplit(",", 2) for line in text.splitlines())
    recorded = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3 and row[1]}
    state = records[-1].stat()
    is_copied = abs(state.st_ctime_ns - state.st_mtime_ns) > WRITING_NS
    return recorded, state.st_ctime_ns, COPYING_NS if is_copied else 0


def _walk(top: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the regular files below a directory, except in directories with a name in SKIPPED.
    Symbolic links are followed, unless they lead nowhere, as Emacs's locks do."""
    pending = [str(top)] if top.is_dir() else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir() and entry.name not in SKIPPED:
                        pending.append(entry.path)
                    elif entry.is_file():
                        yield entry


def hash_files(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in ``directory`` except artifact.json. The keys are relative
    paths. The hash of a special entry, such as a pipe or a broken link, is ""."""
    hashes = {}
    for path in sorted(directory.rglob("*")):
        if not path.is_dir() and path.name != RECORD:
            # A pipe is not opened: a lookup would wait for its writer without an end.
            hashes[str(path.relative_to(directory))] = hash_file(path) if path.is_file() else ""
    return hashes


def write_artifact(directory: Path, artifact: Artifact) -> None:
    """Write artifact.json, including its digest."""
    sealed = msgspec.structs.replace(artifact, digest=digest_record(artifact))
    (directory / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(sealed), indent=1))


def digest_record(artifact: Artifact) -> str:
    """Return the SHA-256 of a record's fields except its digest."""
    plain = msgspec.structs.replace(artifact, digest="")
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


def read_artifact(directory: Path) -> Artifact | None:
    """Return the record of an artifact, or None if the artifact is missing, incomplete or
    altered."""
    try:
        artifact = read_json(directory / RECORD, Artifact)
        is_sound = artifact.digest == digest_record(artifact) and artifact.key == directory.name
        # A hit is hashed again: its files may have been altered or cut short since they were
        # written.
        return artifact if is_sound and hash_files(directory) == artifact.files else None
    except (OSError, DocumentError):
        return None


def publish_artifact(staging: Path, directory: Path) -> bool:
    """Move ``staging`` to ``directory`` atomically and return True. A damaged artifact there is
    replaced.

    If a good artifact is already there, leave it, because another process may be using it, and
    return False. Raises OSError if ``staging`` cannot be moved.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    if read_artifact(directory):
        return False
    try:
        publish_directory(staging, directory)
    except OSError:
        if read_artifact(directory):  # another process was first
            return False
        raise
    return True


class CompileResult(Struct, frozen=True):
    """The result of a CompileJob: the directory and record of an artifact or, in ``refused``, why
    the case was not compiled. ``repaired`` is true if a damaged artifact was replaced. ``key`` is
    that of a program which the compiler refused; of one whose process ended, see KEY. ``exceeded``
    is whether the compiler, a program that the worker ran, exceeded a limit, and ``died`` whether
    it died."""

    directory: str = ""
    artifact: Artifact | None = None
    cached: bool = False
    repaired: bool = False
    refused: Finding | None = None
    key: str = ""
    died: bool = False
    exceeded: bool = False


def as_compiled(ended: Ended) -> CompileResult:
    """Return the result of a CompileJob that a worker ran. It also states how the worker failed."""
    if ended.failure:
        error, where = ended.error, "" if ended.error else "lowering: "
        kind = INVALID if error and not isinstance(error, DiedError) else DIED
        kind = BUG if isinstance(error, DefectError) else kind
        return CompileResult(refused=kind.find(f"{where}{ended.failure}", advice=ended.advice))
    result: CompileResult = ended.result
    return result


@dataclass(frozen=True)
class CompileJob:
    """A job for a worker: finds the program of a case in the cache, or compiles it.

    ``reference`` specifies which outputs of a float32 model are unusable as references. Without it,
    references are not checked.
    """

    engine: Engine
    spec: CaseSpec
    cache: Path
    log: Path
    use_cache: bool = True
    reference: ReferencePolicy | None = None

    def __call__(self) -> CompileResult:
        """Return the artifact of the case, or the reason why the case was refused. The cache lookup
        and the compilation run in forks of the worker, so the worker itself never loads QNN.

        Raises UsageError if the model or its data are invalid, and StoreError if the disk is full.
        Raises FailedError if the model's code fails, if a cached artifact's references are
        unusable, or if a fork dies.
        """
        self.engine.preload(self.spec)
        lookup = run_forked(self._find, "loading the model")
        if lookup.artifact:
            return lookup
        # Answers about the model are found by its key, also if this process or the fork is killed.
        note = self.log.with_name(KEY)
        note.write_text(Path(lookup.directory).name, encoding="ascii")
        self.engine.warm_up(self.spec)
        compiled = run_forked(lambda: self._compile(lookup), LOWERING)
        note.unlink()
        return compiled

    def _find(self) -> CompileResult:
        directory = artifact_path(self.cache, self.engine.key(self.spec))
        artifact = read_artifact(directory) if self.use_cache else None
        if artifact and (
            sets := artifact.compiled.sets
        ):  # else its references are stored elsewhere
            outputs = artifact.compiled.outputs
            require_proof(read_sets(directory / FLOAT, outputs, sets), self.reference)
        with explain_writes(self.cache):  # another user's entries may be unreadable
            damaged = self.use_cache and artifact is None and directory.exists()
        return CompileResult(
            str(directory), artifact, cached=artifact is not None, repaired=damaged
        )

    def _compile(self, lookup: CompileResult) -> CompileResult:
        """Compile in a scratch directory and publish the artifact. A good artifact that already has
        this key is kept. If ``use_cache`` is off, the new artifact is then moved next to the log.

        The key is computed again, because the user's files may have changed since the lookup, and a
        factory may return another model in each call.
        """
        directory = artifact_path(self.cache, self.engine.key(self.spec))
        with explain_writes(self.cache):
            self.cache.mkdir(parents=True, exist_ok=True)
        with explain_writes(self.cache), scratch_directory(self.cache, "lowering") as scratch:
            staging = Staging(scratch / directory.name, self.log, self.cache, self.reference)
            staging.directory.mkdir()
            try:
                artifact = self._fill(staging)
            except Exception as error:
                if no_room := explain_no_room(error, self.cache):
                    raise no_room from error
                refused = self.engine.explain(error, self.log)
                died = exceeded = False
                if isinstance(error, CompilerError):
                    died, exceeded = error.died, error.exceeded
                    refused = (DIED if died or exceeded else NOT_LOWERED).from_error(error)
                elif isinstance(error, QnnCiError):
                    refused = (BUG if is_own(error) else INVALID).from_error(error)
                elif is_own(error):
                    refused = find_bug(error, evidence=refused.evidence)
                return CompileResult(
                    refused=refused, key=directory.name, died=died, exceeded=exceeded
                )
            if not publish_artifact(staging.directory, directory) and not self.use_cache:
                fresh = self.log.with_name("lowered") / directory.name
                shutil.move(staging.directory, fresh)
                directory = fresh
        return msgspec.structs.replace(lookup, directory=str(directory), artifact=artifact)

    def _fill(self, staging: Staging) -> Artifact:
        started = time.monotonic()
        compiled = self.engine.compile(self.spec, staging)
        compiled = msgspec.structs.replace(compiled, warnings=tuple(staging.notes))
        artifact = Artifact(
            key=staging.directory.name,
            model=self.spec.reference,
            scheme=self.spec.scheme.value,
            soc=self.spec.soc,
            compiled=compiled,
            lower_s=round(time.monotonic() - started, 3),
            files=hash_files(staging.directory),
        )
        write_artifact(staging.directory, artifact)
        return artifact
