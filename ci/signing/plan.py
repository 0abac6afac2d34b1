"""Plan a run of ``sign``: check everything that the run will sign and use, but write nothing.

The directory of an SDK comes from the command line, otherwise from an environment variable,
otherwise from the store, if profile lpai was provisioned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ci.signing.record import RECORD_NAME
from ci.signing.selection import (
    Input,
    Selection,
    SigningPolicy,
    check_sdk_version,
    check_selection,
    find_sdk_version,
    list_mixed_notes,
    list_requested,
    read_directory_version,
    read_inputs,
)
from ci.signing.signer import Signer, find_interpreter, parse_signer
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import read_policy
from provisioning.versions import is_older

PROFILE = "lpai"
VARIABLES = {
    "qnn_sdk": "QNN_SDK_ROOT",
    "hexagon_sdk": "HEXAGON_SDK_ROOT",
    "hexagon_tools": "HEXAGON_TOOLS_ROOT",
}
# The profile of direct mode defines where the tools are in a Hexagon SDK.
TOOLS_PROFILE = "direct"


class Roots(NamedTuple):
    """The directories of the SDKs and of the build tree. An unknown one is None. The names are
    placeholders in manifests/policies/signing.toml."""

    qnn_sdk: Path | None = None
    hexagon_sdk: Path | None = None
    hexagon_tools: Path | None = None
    build: Path | None = None


def find_roots(
    options: Mapping[str, Path | None],
    build: Path,
    environment: Mapping[str, str],
    needed: AbstractSet[str],
    progress: Progress,
) -> Roots:
    """Return the roots of a run: from ``options``, otherwise from the variables in ``environment``.

    A root in ``needed`` that is in neither is looked up in the store, but never fetched. A root
    that is not found is None.
    """
    named: dict[str, Path | None] = {}
    for name, variable in VARIABLES.items():
        path = environment.get(variable)
        named[name] = options.get(name) or (Path(path) if path else None)
    missing = {name for name in needed if not named[name]}
    if not missing:
        return Roots(**named, build=build)
    from provisioning.artifacts.environment import profile_requests
    from provisioning.artifacts.provision import locate_artifact
    from provisioning.artifacts.sources import Options
    from provisioning.manifest.reader import read_profile
    from provisioning.store.store import Store

    located_roots = {"hexagon_sdk": named["hexagon_sdk"]}
    for request in profile_requests(read_profile(PROFILE), Options(offline=True)):
        name = request.toolchain.name.replace("-", "_")
        if name in missing or (name == "hexagon_sdk" and not located_roots[name]):
            located = locate_artifact(request, Store(), progress)
            located_roots[name] = located.root if located else None
    if "hexagon_tools" in missing and located_roots["hexagon_sdk"]:
        # The tools are a sub-directory of the Hexagon SDK.
        place = read_profile(TOOLS_PROFILE).variables[VARIABLES["hexagon_tools"]]
        located_roots["hexagon_tools"] = Path(
            place.format_map({"hexagon-sdk": located_roots["hexagon_sdk"]})
        )
    named |= {name: path for name, path in located_roots.items() if name in missing}
    return Roots(**named, build=build)


@dataclass(frozen=True)
class SignRequest:
    """One run of ``sign``. ``serial`` is the device's serial number, or "" if no test signature is
    wanted. ``signer_command`` and ``signer_python`` are "" for the defaults.
    """

    selection: Selection
    roots: Roots
    target: Path
    signer_command: str = ""
    signer_python: str = ""
    timeout_s: float = 300.0
    serial: str = ""
    force: bool = False
    accept_unrecognised: bool = False
    dry_run: bool = False  # whether the plan is only shown


@dataclass(frozen=True)
class SignPlan:
    """The work of one run, after all checks. Nothing is signed yet."""

    request: SignRequest
    policy: SigningPolicy
    inputs: tuple[Input, ...]
    notes: tuple[str, ...]


def make_plan(request: SignRequest) -> SignPlan:
    """Check the selection, every input and the target, and return the plan.

    Raises UsageError and UnfitError.
    """
    policy = read_policy("signing", SigningPolicy)
    selection, roots = request.selection, request.roots
    if not request.timeout_s > 0:
        raise UsageError("--timeout must be more than 0 seconds")
    # A test signature needs no library.
    if not request.serial or selection != Selection():
        check_selection(selection, policy)
    # Before the inputs are read, because they are large and this is quick.
    check_target(request)
    check_sdk_version(find_sdk_version(roots.qnn_sdk), selection, policy)
    libraries = list_requested(selection, policy, roots._asdict())
    inputs = read_inputs(libraries, selection, policy, roots.qnn_sdk)
    notes = (*list_version_notes(selection.htp_arch, roots), *list_mixed_notes(inputs))
    return SignPlan(request, policy, inputs, notes)


def check_target(request: SignRequest) -> None:
    """Check that signed libraries may be written to the target of ``request``.

    Raises UsageError in these cases:

    - the target is inside the directory of an SDK, or contains one
    - the target is a symbolic link or a file
    - the target exists, and ``force`` is false
    - the target contains files, but no record of an earlier run
    """
    target, roots = request.target, request.roots
    resolved = target.resolve()
    for root in filter(None, (roots.qnn_sdk, roots.hexagon_sdk, roots.hexagon_tools)):
        inside = resolved.is_relative_to(root.resolve())
        if inside or root.resolve().is_relative_to(resolved):
            raise UsageError(
                f"{target} {'is inside' if inside else 'contains'} {root}",
                why="an SDK is shared and verified, so signed libraries are never written into it",
                fix="choose another --out",
            )
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"{target} is a file or a symbolic link", fix="choose another --out")
    if not request.force:
        refuse_existing(target)
    elif target.is_dir() and any(target.iterdir()) and not (target / RECORD_NAME).is_file():
        raise UsageError(
            f"{target} was not created by `qnn-ci sign`",
            why=f"it contains files, but no {RECORD_NAME}; --force would remove them",
            fix="choose another --out",
        )


def refuse_existing(target: Path) -> None:
    """Raise UsageError if ``target`` exists."""
    if target.exists():
        raise UsageError(
            f"{target} already exists",
            fix="pass --force to replace it once everything is signed and verified",
        )


def list_version_notes(htp_arch: str, roots: Roots) -> Iterator[str]:
    """Check the versions of the Hexagon SDK and of the Hexagon tools. Yield a note for each that is
    older than the first version known to work with ``htp_arch``.

    The version is read from the path of the directory. Without a version, there is no note.
    """
    row = read_pairs().find_hexagon(htp_arch)
    sdk = ("Hexagon SDK", roots.hexagon_sdk, row.sdk)
    for product, root, first_known in (sdk, ("Hexagon tools", roots.hexagon_tools, row.tools)):
        version = read_directory_version(root)
        # A note and no error, since an earlier version may work, too.
        if version and first_known and is_older(version, first_known):
            yield (
                f"{product} {version}: the first version known to work with {htp_arch} is"
                f" {first_known}"
            )


def resolve_signer(plan: SignPlan) -> Signer:
    """Return the signer passed with ``--signer``, otherwise the Hexagon SDK's signer with a Python
    that can run it.

    Raises UsageError if ``--signer`` is not a command, and UnfitError if the signer or a Python for
    it is missing.
    """
    request = plan.request
    if request.signer_command:
        return parse_signer(request.signer_command, request.timeout_s)
    root = request.roots.hexagon_sdk
    script = root / plan.policy.signer if root else None
    if script is None or not script.is_file():
        raise UnfitError(
            f"the signer {script or plan.policy.signer} is missing",
            why="" if root else "neither --hexagon-sdk nor HEXAGON_SDK_ROOT is set",
            fix="run `qnn-ci fetch lpai`, or select another signer with --signer",
        )
    python = find_interpreter(request.signer_python)
    return Signer((str(python.path), str(script)), request.timeout_s, python)
