"""Where the SDKs are: as given, as a variable names them, or as profile lpai put them in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from provisioning.console.progress import Progress

PROFILE = "lpai"
VARIABLES = {
    "qnn_sdk": "QNN_SDK_ROOT",
    "hexagon_sdk": "HEXAGON_SDK_ROOT",
    "hexagon_tools": "HEXAGON_TOOLS_ROOT",
}
# The profile of direct mode says where the tools are in a Hexagon SDK.
TOOLS_PROFILE = "direct"


@dataclass(frozen=True)
class Roots:
    """Where the SDKs and the build tree are; None is not set."""

    qnn_sdk: Path | None = None
    hexagon_sdk: Path | None = None
    hexagon_tools: Path | None = None
    build: Path | None = None

    def places(self) -> Mapping[str, Path | None]:
        """The roots by the names that the policy uses."""
        return {
            "qnn_sdk": self.qnn_sdk,
            "hexagon_tools": self.hexagon_tools,
            "build": self.build,
        }

    def protected(self) -> Iterator[Path]:
        return (
            root
            for root in (self.qnn_sdk, self.hexagon_sdk, self.hexagon_tools)
            if root is not None
        )


def find_roots(
    given: Mapping[str, Path | None],
    build: Path,
    environment: Mapping[str, str],
    needed: AbstractSet[str],
    progress: Progress,
) -> Roots:
    """The roots of a run; those ``needed`` and not named are looked up, nothing is fetched.

    What is not found is None.
    """
    named = {
        name: given.get(name) or (Path(value) if (value := environment.get(variable)) else None)
        for name, variable in VARIABLES.items()
    }
    missing = {name for name in needed if not named[name]}
    if missing:
        named |= locate_roots(missing, named["hexagon_sdk"], progress)
    return Roots(**named, build=build)


def locate_roots(
    missing: AbstractSet[str], hexagon_sdk: Path | None, progress: Progress
) -> dict[str, Path | None]:
    """Those of ``missing`` that profile lpai has in the store."""
    from provisioning.artifacts.environment import profile_requests
    from provisioning.artifacts.provision import locate_artifact
    from provisioning.artifacts.sources import Options
    from provisioning.manifest.reader import read_profile
    from provisioning.store.store import Store

    found: dict[str, Path | None] = {"hexagon_sdk": hexagon_sdk}
    for request in profile_requests(read_profile(PROFILE), Options(offline=True)):
        name = request.toolchain.name.replace("-", "_")
        if name in missing or (name == "hexagon_sdk" and not hexagon_sdk):
            located = locate_artifact(request, Store(), progress)
            found[name] = located.root if located else None
    if "hexagon_tools" in missing and found["hexagon_sdk"]:
        place = read_profile(TOOLS_PROFILE).variables[VARIABLES["hexagon_tools"]]
        found["hexagon_tools"] = Path(place.format_map({"hexagon-sdk": found["hexagon_sdk"]}))
    return {name: path for name, path in found.items() if name in missing}
