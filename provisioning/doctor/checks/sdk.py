"""Check a QNN SDK: its root, marker files, version, layout and headers. Also check what has to
match the SDK: ExecuTorch, its adaptor, backends and the Hexagon SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.coherence import most_common_build
from provisioning.doctor.checks.registry import ENVIRONMENT, Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import (
    CHECKOUT,
    LIBCXX,
    NDK,
    InstallationFacts,
    PythonFacts,
    SdkFacts,
    TreeFacts,
)
from provisioning.versions import find_place_version, is_older, is_same, parse_version

REFETCH = "provision the profile again, or specify the root of another SDK"


@ENVIRONMENT.check(
    "QNN100",
    "profile {profile} needs {subject}, which is missing",
    "builds and runs of the profile need its files",
    "run `qnn-ci fetch {profile}`, or pass --root {subject}=DIR",
)
def see_no_root(case: Case) -> Iterator[Seen]:
    """Find missing roots; of the artifacts that may serve as the SDK, only the first is
    reported."""
    facts, fitness = case.facts, case.fitness
    for name in [*fitness.roots, *([] if facts.sdk_name else fitness.sdk[:1])]:
        if name not in facts.roots:
            yield seen(name, f"profile {facts.profile}", profile=facts.profile)


INSTALLATIONS: Subjects[InstallationFacts] = Subjects(
    lambda case: case.facts.installations,
    lambda one: seen(one.name, one.root, one=one, missing=", ".join(one.missing)),
)
HAVE_OWN_CHECKS = (NDK, CHECKOUT, LIBCXX)


INSTALLATIONS.add(
    "QNN113",
    "this is not {subject}: it has no {missing}",
    "a build or signing fails halfway, or uses another installation",
    "specify the root of {subject} with --root {subject}=DIR or {one.variable}",
    lambda one: one.missing and one.name not in HAVE_OWN_CHECKS and not one.name.startswith("qnn-"),
)
INSTALLATIONS.add(
    "QNN416",
    "{one.variable} points to a directory other than the examined {subject}",
    "builds and runs would use the one in {one.variable}",
    "set {one.variable} to {one.root}; `qnn-ci env PROFILE` prints lines that set all variables",
    lambda one: not one.is_same and one.variable != "QNN_SDK_ROOT",  # reported by QNN403
    where="{one.value}",
)


class Sdk(NamedTuple):
    """The SDK of an environment and its files."""

    facts: SdkFacts
    case: Case

    @property
    def pin(self) -> str | None:
        return self.case.pin

    def seen(self) -> Seen:
        fault = f": it cannot be read: {self.facts.fault}" if self.facts.fault else ""
        minimum, reason = self.case.minimum
        values = {"minimum": minimum, "reason": reason, "fault": fault, "pin": self.pin}
        return seen("QNN SDK", self.facts.root, sdk=self.facts, **values)

    @property
    def tree(self) -> TreeFacts:
        return self.case.facts.trees[self.case.facts.sdk_name]


SDK = Subjects(lambda case: [Sdk(case.facts.sdk, case)] if case.facts.sdk else [], Sdk.seen)


SDK.add(
    "QNN101",
    "the root of the QNN SDK is not a directory",
    "QNN_SDK_ROOT would point to nothing: CMake then configures ExecuTorch without an error, but "
    "the build fails",
    "provision an SDK, or correct --root or QNN_SDK_ROOT",
    lambda sdk: not sdk.facts.is_directory,
)
SDK.add(
    "QNN102",
    "this is not a QNN SDK: sdk.yaml is missing",
    "the directory is not an SDK, or the SDK was only partly unpacked; a build would fail halfway "
    "because of missing files",
    f"{REFETCH}; the root is the directory that contains sdk.yaml",
    lambda sdk: "sdk.yaml" not in sdk.facts.markers,
    after=("QNN101",),
)
SDK.add(
    "QNN103",
    "sdk.yaml states no version{fault}",
    "programs that this SDK compiles cannot be traced to a version",
    REFETCH,
    lambda sdk: sdk.facts.version is None,
    subject="sdk.yaml",
    where="{sdk.root}/sdk.yaml",
    after=("QNN102",),
)
SDK.add(
    "QNN105",
    "QNN {sdk.version} is too old for this profile: {minimum} or newer is needed",
    "{reason}",
    "provision QNN {minimum} or newer for this profile",
    lambda sdk: sdk.facts.version and is_older(sdk.facts.version, sdk.case.minimum[0]),
    where="{sdk.root}/sdk.yaml",
    after=("QNN103",),
)
SDK.add(
    "QNN104",
    "QNN {sdk.version} was found, but the pin is {pin}",
    "only the pinned version was tested; with other versions, the emulator has failed with error "
    "14001",
    "to use this SDK, choose it with --sdk {sdk.root} (QNN_CI_SDK); otherwise, provision QNN {pin}",
    lambda sdk: sdk.pin and sdk.facts.version and not is_same(sdk.facts.version, sdk.pin),
    where="{sdk.root}/sdk.yaml",
    after=("QNN105",),
)


@SDK.check(
    "QNN106",
    "{subject} is missing",
    "it should contain libraries that the profile needs; without them, linking fails with "
    "'cannot find -lQnnHtp', or a push fails",
    f"{REFETCH}; a provisioned subset must include this component",
    after=("QNN102",),
)
def see_no_part(sdk: Sdk) -> Iterator[Seen]:
    for directory in sdk.case.fitness.libraries:
        if directory not in sdk.facts.directories:
            yield seen(directory, sdk.facts.root)


@SDK.check(
    "QNN107",
    "{subject} is missing from {directory}",
    "creating the backend fails with '{subject}: cannot open shared object file'",
    REFETCH,
    after=("QNN102",),
)
def see_no_library(sdk: Sdk) -> Iterator[Seen]:
    there = {file.relative for file in sdk.tree.files} | sdk.tree.links.keys()
    for directory, names in sdk.case.fitness.libraries.items():
        for name in names if directory in sdk.facts.directories else ():
            if f"{directory}/{name}" not in there:
                yield seen(name, f"{sdk.facts.root}/{directory}", directory=directory)


@SDK.check(
    "QNN108",
    "headers are missing: {names}",
    "CMake configures without an error, but the compiler fails: 'no such file or directory'",
    f"{REFETCH}; the SDK must contain include/QNN (the QNN libraries in a Python wheel do not)",
    after=("QNN102",),
)
def see_no_headers(sdk: Sdk) -> Iterator[Seen]:
    wanted = sdk.case.policy.headers if sdk.case.fitness.headers else ()
    if names := [name for name in wanted if name not in sdk.facts.headers]:
        yield seen("include/QNN", f"{sdk.facts.root}/include/QNN", names=", ".join(names))


@SDK.check(
    "QNN110",
    "the headers have QNN API {headers}, but libQnnHtp.so has {library}",
    "lowering fails with 'Qnn API version mismatched': code that is compiled with these headers "
    "needs another library",
    f"use headers and libraries from the same SDK: {REFETCH}",
    after=("QNN108",),
)
def see_other_api(sdk: Sdk) -> Iterator[Seen]:
    headers, library = sdk.facts.api_version, sdk.facts.library_api
    if headers and library:
        asked, has = parse_version(headers), parse_version(library)
        if asked.major != has.major or asked.minor > has.minor:
            where = f"{sdk.facts.root}/include/QNN/QnnCommon.h"
            yield seen("QnnCommon.h", where, headers=headers, library=library)


SDK.add(
    "QNN111",
    "the path of the SDK contains a ':'",
    "LD_LIBRARY_PATH is split at every ':', so no library of this SDK is found",
    "move it to a path without ':'",
    lambda sdk: ":" in str(sdk.facts.root),
    after=("QNN101",),
)


@SDK.check(
    "QNN112",
    "{subject} is a link to {target}, which does not exist",
    "loading fails with '{subject}: cannot open shared object file', although ls shows it",
    "copy the whole SDK including the links' targets (cp -a), or provision it again",
    after=("QNN102",),
)
def see_dangling_links(sdk: Sdk) -> Iterator[Seen]:
    for path in sorted(sdk.tree.dangling):
        name = path.rpartition("/")[2]
        if name.startswith("libQnn"):  # others are reported if they are needed
            yield seen(name, sdk.facts.root / path, target=sdk.tree.links[path])


SDK.add(
    "QNN109",
    "QnnCommon.h has no QNN_API_VERSION",
    "ExecuTorch's sources compare this version with the library's at run time",
    REFETCH,
    lambda sdk: sdk.case.fitness.headers and sdk.facts.api_version is None,
    subject="QnnCommon.h",
    where="{sdk.root}/include/QNN",
    after=("QNN108",),
    severity=Severity.WARNING,
)


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
        return self.python.distributions.get("executorch") or ""

    @property
    def checkout(self) -> str:
        return self.python.checkout

    def seen(self) -> Seen:
        where, offset = self.python.adaptor.path if self.python.adaptor else "", self.sdk.soc_offset
        given = {"library": self.library, "root": self.sdk.root, "installed": self.installed}
        given |= {"checkout": self.checkout, "headers": self.python.headers or "an unknown QNN"}
        place = f"byte {offset}" if offset else "an unknown byte"
        return seen("PyQnnManagerAdaptor", where, adaptor=self, place=place, **given)


def find_adaptor(case: Case) -> Iterator[Adaptor]:
    """Yield the adaptor with its SDK, if both exist."""
    facts = case.facts
    if facts.python and facts.python.adaptor and facts.sdk and facts.sdk.is_directory:
        usual = most_common_build(facts.trees[facts.sdk_name].files)
        library = (usual.version if usual else None) or facts.sdk.version or "an unknown version"
        yield Adaptor(facts.python, facts.sdk, library)


ADAPTOR = Subjects(find_adaptor, Adaptor.seen)
REBUILD = (
    "`qnn-ci build aot --sdk {root}` builds an adaptor for this SDK; then pass --adaptor overlay"
)


ADAPTOR.add(
    "QNN901",
    "the QNN adaptor was built from ExecuTorch {checkout}, but executorch {installed} is installed",
    "executorch's Python code may pass structures of another version to the adaptor",
    "install executorch=={checkout}, or build the adaptor from a checkout of {installed}",
    lambda one: one.checkout and not is_same(one.checkout, one.installed or one.checkout),
)


ADAPTOR.add(
    "QNN902",
    "the QNN adaptor was built with headers of QNN {headers}, but libQnnHtp.so is from {library}",
    "it calls functions that an older library lacks, and fails with 'Qnn API version mismatched' "
    "or error 30010",
    REBUILD,
    lambda one: one.library[:1].isdigit() and is_older(one.library, one.python.headers),
)
ADAPTOR.add(
    "QNN903",
    "the QNN adaptor (headers of QNN {headers}) cannot create a device with QNN {library}: "
    "{adaptor.python.no_device}",
    "each lowering starts by creating a device. If QNN's message mentions socModel, the "
    "cause is that this library reads socModel at {place} of QnnHtpDevice_CustomConfig_t, "
    "but the adaptor's headers have it elsewhere (error 14001)",
    REBUILD,
    lambda adaptor: adaptor.python.no_device,
    after=("QNN902",),
)


ENVIRONMENT.add(
    "QNN904",
    "QNN SDK {case.sdk_version} is too old for ExecuTorch {case.executorch}: "
    "{case.row.qnn.oldest} is the oldest SDK that works with it",
    "ExecuTorch's sources need newer headers and libraries",
    "use QNN {case.row.qnn.oldest} or later (ExecuTorch pins {case.row.qnn.pinned}), or an "
    "older ExecuTorch",
    lambda case: case.row and is_older(case.sdk_version, case.row.qnn.oldest),
    subject="QNN SDK",
    where="{case.facts.sdk.root}",
)
ENVIRONMENT.add(
    "QNN905",
    "QNN SDK {case.sdk_version} is newer than {case.row.qnn.newest}, the newest SDK that is "
    "known to work with ExecuTorch {case.executorch}",
    "structures in its headers may have changed: creating a device then fails with error 14001",
    "run the emulator's suite with this SDK before you ship it",
    lambda case: case.row and is_older(case.row.qnn.newest, case.sdk_version),
    subject="QNN SDK",
    where="{case.facts.sdk.root}",
    severity=Severity.WARNING,
)


@ENVIRONMENT.check(
    "QNN906",
    "Hexagon SDK {version} is too old for {soc}: the first with tools for Hexagon V{hexagon} is "
    "{first}",
    "its compiler does not know the architecture: 'unknown target CPU'",
    "specify the root of Hexagon SDK {first} or later, or an SoC that this SDK supports",
)
def see_older_hexagon(case: Case) -> Iterator[Seen]:
    version = find_place_version(case.facts.roots.get(HEXAGON_SDK, ""))
    yield from _see_older(case, HEXAGON_SDK, version, "sdk")


def _see_older(case: Case, subject: str, version: str, field: str) -> Iterator[Seen]:
    """Yield a fault if ``version`` is older than the first version that supports the SoC's Hexagon
    version. That first version is the attribute ``field`` of a HexagonPair.
    """
    if case.soc and version:
        soc, hexagon = case.soc
        first = getattr(case.pairs.find_hexagon(f"v{hexagon}"), field)
        if is_older(version, first):
            yield seen(subject, soc, version=version, soc=soc, hexagon=hexagon, first=first)


@ENVIRONMENT.check(
    "QNN907",
    "Hexagon tools {version} are too old for {soc}: the first for Hexagon V{hexagon} are {first}",
    "their compiler does not know the architecture: 'unknown target CPU'",
    "set HEXAGON_TOOLS_ROOT to tools {first} or later, such as those below tools/HEXAGON_Tools of "
    "the Hexagon SDK, or unset it",
)
def see_older_tools(case: Case) -> Iterator[Seen]:
    version = find_place_version(case.values.get("HEXAGON_TOOLS_ROOT", ""))
    yield from _see_older(case, "Hexagon tools", version, "tools")


ENVIRONMENT.add(
    "QNN908",
    "QNN SDK {case.sdk_version} is too old for LPAI: with ExecuTorch {case.executorch}, "
    "{case.row.lpai} is the first SDK that supports it",
    "ExecuTorch lowers for LPAI only with that version or later, and the runtime must not be older",
    "use --sdk DIR with QNN {case.row.lpai} or later; profile lpai provisions one that works",
    lambda case: (
        case.facts.backend
        and case.facts.backend.name.startswith("lpai")
        and case.row
        and is_older(case.sdk_version, case.row.lpai)
    ),
    subject="QNN SDK",
    where="{case.facts.sdk.root}",
)
ENVIRONMENT.add(
    "QNN909",
    "{subject} is not in the SDK: models cannot be lowered for backend {backend.name}",
    "{backend.why}",
    "{backend.fix}",
    lambda case: case.facts.backend and not case.facts.backend.is_there,
    subject="{backend.library}",
    where="{libraries}",
    after=("QNN908",),
)
ENVIRONMENT.add(
    "QNN910",
    "{subject} of QNN {version} cannot create a backend on this machine: {backend.no_backend}",
    "{backend.why}",
    "{backend.fix}",
    lambda case: case.facts.backend and case.facts.backend.no_backend,
    subject="{backend.library}",
    where="{libraries}",
    after=("QNN908", "QNN909"),
)
