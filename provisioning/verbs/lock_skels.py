"""``lock-skels``: show as a diff which genuine skels (QNN's DSP libraries) in wheels are not pinned
yet; --write pins them.
"""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
from contextlib import closing
from pathlib import Path, PurePosixPath

from provisioning.archives.layout import Limits, check_members
from provisioning.archives.zipfiles import FileSource, extract_members, read_directory
from provisioning.artifacts.pins import Change
from provisioning.artifacts.trust import SKELS
from provisioning.console.command import FILE, FLAG, Outcome
from provisioning.console.progress import Progress
from provisioning.documents import read_text
from provisioning.elf.facts import Genuine
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.elf.reader import read_elf
from provisioning.errors import IntegrityError, UsageError
from provisioning.files import hash_file
from provisioning.manifest.catalogs import KnownBuild, prove_skel, read_known
from provisioning.manifest.reader import manifests_root
from provisioning.verbs.lock import conclude
from provisioning.versions import parse_version

MOST_BYTES = 4 << 30  # ten times what a wheel with QNN unpacks to


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``lock-skels``."""
    text = "an unchanged wheel that contains QNN, from `pip download`"
    parser.add_argument("wheels", nargs="+", **{**FILE, "metavar": "WHEEL"}, help=text)
    parser.add_argument("--write", **FLAG, help="write the changes of the diff")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Return how the list of genuine skels would change, and write it with --write. Raises the
    errors of read_wheel and join.
    """
    path = manifests_root() / "policies" / "skels.toml"
    builds = dict(read_known())
    before = read_text(path) if builds else ""
    for wheel in args.wheels:
        progress.step(f"reading {wheel.name}")
        name, build = read_wheel(wheel)
        builds[name] = join(builds.get(name, build), build)
    head = before.partition("[builds.")[0]
    after = head + "".join(render(name, builds[name]) for name in sorted(builds, key=order))
    changes = [Change(path, before, after)] if after != before else []
    return conclude({"skels": changes}, write=args.write)


def read_wheel(wheel: Path) -> tuple[str, KnownBuild]:
    """Return the QNN build of a wheel and its skels.

    Raises UsageError for a file that is not a wheel or contains no skels, and IntegrityError for
    skels that are damaged, contain no complete QNN build, come from several builds, or contradict a
    catalog or the list of genuine skels.
    """
    skels, builds = {}, set()
    with tempfile.TemporaryDirectory(prefix="lock-skels-") as directory:
        try:
            paths = extract(wheel, Path(directory))
        except (OSError, IntegrityError) as error:
            why = error.why if isinstance(error, IntegrityError) else str(error)
            raise UsageError(f"{wheel} cannot be read as a wheel", why=why) from error
        for path in paths:
            elf, build, sha256 = read_elf(path), find_qnn_build(path), hash_file(path)
            proof = prove_skel(path, build)
            if elf.checksum and elf.checksum.is_wrong:
                raise refuse(f"{wheel.name}: {path.name} is damaged", elf.checksum.describe())
            # A skel for which there is neither a catalog nor an entry has no proof, and is what
            # this verb is for.
            if proof and proof.outcome is not Genuine.GENUINE:
                raise refuse(f"{wheel.name}: {path.name} is not genuine", proof.describe())
            if not (build and build.version and build.stamp):
                message = f"{wheel.name}: {path.name} contains no complete QNN build"
                raise refuse(message, "skels are listed by their build")
            builds.add(build.text.partition("_")[0])
            skels[path.name] = sha256
    if not skels:
        raise UsageError(f"{wheel} contains no {SKELS}", fix="use wheels that contain QNN's skels")
    if len(builds) > 1:
        raise refuse(f"{wheel.name} has skels of several builds", ", ".join(sorted(builds)))
    return builds.pop(), KnownBuild(wheel.name, hash_file(wheel), skels)


def extract(wheel: Path, directory: Path) -> list[Path]:
    """Unpack the skels and catalogs of a wheel below ``directory``, and return the paths of the
    skels. Raises OSError and IntegrityError.
    """
    with closing(FileSource(wheel)) as source:
        members = read_directory(source)
        check_members(wheel.name, members, Limits(MOST_BYTES))
        skels, placed = [], []
        for member in members:
            is_skel = fnmatch.fnmatch(PurePosixPath(member.name).name, SKELS)
            if member.kind == "file" and (is_skel or member.name.lower().endswith(".cat")):
                placed.append((member.name, member))
                skels += [directory / member.name] if is_skel else []
        extract_members(source, directory, placed)
    return skels


def join(old: KnownBuild, new: KnownBuild) -> KnownBuild:
    """Return the entry to keep for a QNN build: ``new`` if its wheel contains all skels of ``old``
    and at least one more, else ``old``.

    Raises IntegrityError if both name the same wheel but its content differs.
    """
    # An index may serve another file under the same name, or a proxy may have changed it.
    if old.wheel == new.wheel and old != new:
        raise refuse(
            f"{new.wheel} differs from the listed wheel of that name",
            f"its SHA-256 is {new.sha256}",
        )
    return new if set(new.skels) > set(old.skels) else old


def refuse(message: str, why: str) -> IntegrityError:
    """Return the error for a wheel with skels that cannot be listed."""
    return IntegrityError(message, why=why, fix="use unchanged wheels from the package index")


def order(name: str) -> tuple[object, str]:
    """Return the key that sorts builds by version, then by date."""
    version, _, stamp = name.removeprefix("v").rpartition(".")
    return parse_version(version), stamp


def render(name: str, build: KnownBuild) -> str:
    """Return a build as TOML."""
    fields = {"wheel": build.wheel, "sha256": build.sha256}
    fields |= {f'skels."{skel}"': build.skels[skel] for skel in sorted(build.skels)}
    lines = [f'[builds."{name}"]', *(f'{key} = "{value}"' for key, value in fields.items())]
    return "\n".join([*lines, "", ""])
