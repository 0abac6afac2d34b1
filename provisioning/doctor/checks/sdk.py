"""Check a QNN SDK: its root, marker files, version, layout and headers. Also check what has to
match the SDK: ExecuTorch, its adaptor, backends and the Hexagon SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.coherence import most_common_build, see_dangling
from provisioning.doctor.facts import (
    CHECKOUT,
    LIBCXX,
    NDK,
    InstallationFacts,
    PythonFacts,
    SdkFacts,
    TreeFacts,
)
from provisioning.doctor.registry import ENVIRONMENT, Case, Seen, Subjects, seen
from provisioning.versions import find_place_version, is_older, is_same, parse_version


@ENVIRONMENT.check("QNN100")
def see_no_root(case: Case) -> Iterator[Seen]:
    """Find missing roots; of the artifacts that may serve as the SDK, only the first is
    reported."""
    facts, fitness = case.facts, case.fitness
    for name in [*fitness.roots, *([] if facts.sdk_name else fitness.sdk[:1])]:
        if name not in facts.roots:
            yield seen(name, f"profile {facts.profile}", profile=facts.profile)


INSTALLATIONS: Subjects[InstallationFacts] = Subjects(
    lambda case: case.facts.installations,
    lambda facts: seen(facts.name, facts.root, one=facts, missing=", ".join(facts.missing)),
)
HAVE_OWN_CHECKS = (NDK, CHECKOUT, LIBCXX)


INSTALLATIONS.when(
    QNN113=lambda facts: (
        facts.missing and facts.name not in HAVE_OWN_CHECKS and not facts.name.startswith("qnn-")
    ),
    # QNN403 reports QNN_SDK_ROOT.
    QNN416=lambda facts: not facts.is_same and facts.variable != "QNN_SDK_ROOT",
)


class Sdk(NamedTuple):
    """The SDK of an environment and its files."""

    facts: SdkFacts
    case: Case

    def seen(self) -> Seen:
        """Return a fault of the SDK, with the values that the texts of its checks use."""
        fault = f": it cannot be read: {self.facts.fault}" if self.facts.fault else ""
        minimum, reason = self.case.minimum
        values = {"minimum": minimum, "reason": reason, "fault": fault, "pin": self.case.pin}
        return seen("QNN SDK", self.facts.root, sdk=self.facts, **values)

    @property
    def tree(self) -> TreeFacts:
        """The files of the SDK."""
        return self.case.facts.trees[self.case.facts.sdk_name]


SDK = Subjects(lambda case: [Sdk(case.facts.sdk, case)] if case.facts.sdk else [], Sdk.seen)


SDK.when(
    QNN101=lambda sdk: not sdk.facts.is_directory,
    QNN102=lambda sdk: "sdk.yaml" not in sdk.facts.markers,
    QNN103=lambda sdk: sdk.facts.version is None,
    QNN105=lambda sdk: sdk.facts.version and is_older(sdk.facts.version, sdk.case.minimum[0]),
    # ExecuTorch 1.5.1 lowers some operators differently by the SDK's version, so that a result
    # holds for this version only.
    QNN104=lambda sdk: (
        sdk.case.pin and sdk.facts.version and not is_same(sdk.facts.version, sdk.case.pin)
    ),
    # LD_LIBRARY_PATH has no way to quote a colon.
    QNN111=lambda sdk: ":" in str(sdk.facts.root),
    QNN109=lambda sdk: sdk.case.fitness.headers and sdk.facts.api_version is None,
)


SDK.each(
    QNN106=lambda sdk: (
        seen(directory, sdk.facts.root)
        for directory in sdk.case.fitness.libraries
        if directory not in sdk.facts.directories
    ),
    QNN112=lambda sdk: see_dangling(sdk.tree, "libQnn"),  # others are reported if they are needed
)


@SDK.check("QNN107")
def see_no_library(sdk: Sdk) -> Iterator[Seen]:
    """Report missing libraries, in directories that exist. Another check reports the
    directories.
    """
    existing_paths = {file.relative for file in sdk.tree.files} | sdk.tree.links.keys()
    for directory, library_names in sdk.case.fitness.libraries.items():
        if directory not in sdk.facts.directories:
            continue
        for library_name in library_names:
            if f"{directory}/{library_name}" not in existing_paths:
                yield seen(library_name, f"{sdk.facts.root}/{directory}", directory=directory)


@SDK.check("QNN108")
def see_no_headers(sdk: Sdk) -> Iterator[Seen]:
    """Report missing headers, if the profile compiles against them."""
    required = sdk.case.policy.headers if sdk.case.fitness.headers else ()
    if names := [name for name in required if name not in sdk.facts.headers]:
        yield seen("include/QNN", f"{sdk.facts.root}/include/QNN", names=", ".join(names))


@SDK.check("QNN110")
def see_other_api(sdk: Sdk) -> Iterator[Seen]:
    """Report headers of another API version than the library's. Older headers with the same
    major version work.
    """
    headers, library = sdk.facts.api_version, sdk.facts.library_api
    if headers and library:
        headers_api, library_api = parse_version(headers), parse_version(library)
        if headers_api.major != library_api.major or headers_api.minor > library_api.minor:
            where = f"{sdk.facts.root}/include/QNN/QnnCommon.h"
            yield seen("QnnCommon.h", where, headers=headers, library=library)


HEXAGON_SDK = "hexagon-sdk"


class Adaptor(NamedTuple):
    """The adaptor, and the SDK with the libraries that it loads; ``library`` is the QNN version of
    these libraries.
    """

    python: PythonFacts
    sdk: SdkFacts
    library: str

    @property
    def installed(self) -> str:
        """The version of the installed ExecuTorch; empty if there is none."""
        return self.python.distributions.get("executorch") or ""

    @property
    def checkout(self) -> str:
        """The version of the checkout that an overlay was built from; empty for the wheel's
        adaptor.
        """
        return self.python.checkout

    def seen(self) -> Seen:
        """Return a fault of the adaptor, with the values that the texts of its checks use."""
        where = self.python.adaptor.path if self.python.adaptor else ""
        values = {"library": self.library, "root": self.sdk.root, "installed": self.installed}
        values |= {"checkout": self.checkout, "headers": self.python.headers or "an unknown QNN"}
        return seen("PyQnnManagerAdaptor", where, adaptor=self, **values)


def find_adaptor(case: Case) -> Iterator[Adaptor]:
    """Yield the adaptor with its SDK, if both exist."""
    facts = case.facts
    if facts.python and facts.python.adaptor and facts.sdk and facts.sdk.is_directory:
        usual = most_common_build(facts.trees[facts.sdk_name].files)
        library = (usual.version if usual else None) or facts.sdk.version or "an unknown version"
        yield Adaptor(facts.python, facts.sdk, library)


ADAPTOR = Subjects(find_adaptor, Adaptor.seen)


ADAPTOR.when(
    QNN901=lambda adaptor: (
        adaptor.checkout and adaptor.installed and not is_same(adaptor.checkout, adaptor.installed)
    ),
    QNN902=lambda adaptor: (
        adaptor.library[:1].isdigit() and is_older(adaptor.library, adaptor.python.headers)
    ),
    QNN903=lambda adaptor: adaptor.python.no_device,
)


ENVIRONMENT.when(
    QNN904=lambda case: case.row and is_older(case.sdk_version, case.row.qnn.oldest),
    QNN905=lambda case: case.row and is_older(case.row.qnn.newest, case.sdk_version),
    # ExecuTorch's Python code lowers for LPAI with SDK 2.39 or later; its C++ code of 1.4.1
    # compiles with 2.37.
    QNN908=lambda case: (
        case.facts.backend
        and case.facts.backend.name.startswith("lpai")
        and case.row
        and is_older(case.sdk_version, case.row.lpai)
    ),
    QNN909=lambda case: case.facts.backend and not case.facts.backend.is_there,
    QNN910=lambda case: case.facts.backend and case.facts.backend.no_backend,
)


def _see_older(case: Case, subject: str, place: str, field: str) -> Iterator[Seen]:
    """Yield a fault if the version in ``place`` is older than the first version that supports the
    SoC's Hexagon version. That first version is the attribute ``field`` of a HexagonPair.
    """
    version = find_place_version(place)
    if case.soc and version:
        soc, hexagon = case.soc
        first = getattr(case.pairs.find_hexagon(f"v{hexagon}"), field)
        if is_older(version, first):
            yield seen(subject, soc, version=version, soc=soc, hexagon=hexagon, first=first)


ENVIRONMENT.each(
    QNN906=lambda case: _see_older(case, HEXAGON_SDK, case.facts.roots.get(HEXAGON_SDK, ""), "sdk"),
    QNN907=lambda case: _see_older(
        case, "Hexagon tools", case.values.get("HEXAGON_TOOLS_ROOT", ""), "tools"
    ),
)
