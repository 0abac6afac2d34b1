"""What belongs together: ExecuTorch, its adaptor, the QNN SDK, its backends and the Hexagon SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.coherence import most_common_build
from provisioning.doctor.checks.registry import ENVIRONMENT, Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import HOST_DIRECTORY, BackendFacts, PythonFacts, SdkFacts
from provisioning.versions import find_place_version, is_older, is_same

HEXAGON_SDK = "hexagon-sdk"


class Adaptor(NamedTuple):
    """The adaptor that lowers, and the SDK whose libraries it loads; ``library`` is their QNN."""

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
    """Yield the adaptor, if there is one and an SDK."""
    facts = case.facts
    if facts.python and facts.python.adaptor and facts.sdk and facts.sdk.is_directory:
        usual = most_common_build(facts.trees[facts.sdk_name].files)
        library = (usual.version if usual else None) or facts.sdk.version or "an unknown version"
        yield Adaptor(facts.python, facts.sdk, library)


ADAPTOR = Subjects(find_adaptor, Adaptor.seen)
REBUILD = "`qnn-ci build aot --sdk {root}` builds one for this SDK: then add --adaptor overlay"


ADAPTOR.add(
    "QNN901",
    "the QNN adaptor was built from ExecuTorch {checkout}, executorch {installed} is installed",
    "the Python that calls it passes structures of another version",
    "install executorch=={checkout}, or build the adaptor from a checkout of {installed}",
    lambda one: one.checkout and not is_same(one.checkout, one.installed or one.checkout),
)


@ADAPTOR.check(
    "QNN902",
    "the QNN adaptor was built with the headers of QNN {headers}, libQnnHtp.so is of {library}",
    "it calls what an older library does not have: 'Qnn API version mismatched', error 30010",
    REBUILD,
)
def see_newer_headers(adaptor: Adaptor) -> Iterator[Seen]:
    headers = adaptor.python.headers
    is_known = headers and adaptor.library[:1].isdigit()
    if is_known and is_older(adaptor.library, headers):
        yield adaptor.seen()


ADAPTOR.add(
    "QNN903",
    "the QNN adaptor (headers of QNN {headers}) creates no device with QNN {library}: "
    "{adaptor.python.no_device}",
    "each lowering begins by creating one. If QNN names socModel: this library reads it at {place} "
    "of QnnHtpDevice_CustomConfig_t, the adaptor's headers have it elsewhere (error 14001)",
    REBUILD,
    lambda adaptor: adaptor.python.no_device,
    after=("QNN902",),
)


def find_executorch(case: Case) -> str:
    """The version of the checkout, else of what is installed; "" without either."""
    checkout, python = case.facts.checkout, case.facts.python
    installed = python.distributions.get("executorch") if python else None
    return (checkout.version if checkout else "") or installed or ""


@ENVIRONMENT.check(
    "QNN904",
    "QNN SDK {sdk} with ExecuTorch {executorch}: {oldest} is the oldest that goes with it",
    "its sources use what older headers and libraries do not have",
    "take QNN {oldest} or later (upstream's pin is {pinned}), or an older ExecuTorch",
)
def see_older_sdk(case: Case) -> Iterator[Seen]:
    executorch, sdk = find_executorch(case), case.facts.sdk
    row = case.pairs.find(executorch)
    if row and sdk and sdk.version and is_older(sdk.version, row.qnn.oldest):
        versions = {"sdk": sdk.version, "executorch": executorch}
        yield seen("QNN SDK", sdk.root, **versions, oldest=row.qnn.oldest, pinned=row.qnn.pinned)


@ENVIRONMENT.check(
    "QNN905",
    "QNN SDK {sdk} with ExecuTorch {executorch}: {newest} is the newest that was seen to work",
    "structures of later headers have moved before: error 14001 when a device is created",
    "run the emulator's suite with it before it ships",
    severity=Severity.WARNING,
)
def see_newer_sdk(case: Case) -> Iterator[Seen]:
    executorch, sdk = find_executorch(case), case.facts.sdk
    row = case.pairs.find(executorch)
    if row and sdk and sdk.version and is_older(row.qnn.newest, sdk.version):
        versions = {"sdk": sdk.version, "executorch": executorch, "newest": row.qnn.newest}
        yield seen("QNN SDK", sdk.root, **versions)


@ENVIRONMENT.check(
    "QNN906",
    "Hexagon SDK {version} with {soc}: the first with tools for its V{hexagon} is {first}",
    "its compiler does not know the architecture: 'unknown target CPU'",
    "give the root of Hexagon SDK {first} or later, or an SoC that it knows",
)
def see_older_hexagon(case: Case) -> Iterator[Seen]:
    version = find_place_version(case.facts.roots.get(HEXAGON_SDK, ""))
    if case.soc and version:
        soc, hexagon = case.soc
        first = case.pairs.find_hexagon(f"v{hexagon}").sdk
        if first and is_older(version, first):
            yield seen(HEXAGON_SDK, soc, version=version, soc=soc, hexagon=hexagon, first=first)


@ENVIRONMENT.check(
    "QNN907",
    "Hexagon tools {version} with {soc}: the first for its V{hexagon} are {first}",
    "their compiler does not know the architecture: 'unknown target CPU'",
    "set HEXAGON_TOOLS_ROOT to tools {first} or later, such as those below tools/HEXAGON_Tools of "
    "the Hexagon SDK, or unset it",
)
def see_older_tools(case: Case) -> Iterator[Seen]:
    version = find_place_version(case.values.get("HEXAGON_TOOLS_ROOT", ""))
    if case.soc and version:
        soc, hexagon = case.soc
        first = case.pairs.find_hexagon(f"v{hexagon}").tools
        if first and is_older(version, first):
            yield seen("Hexagon tools", soc, version=version, soc=soc, hexagon=hexagon, first=first)


@ENVIRONMENT.check(
    "QNN908",
    "QNN SDK {sdk} with ExecuTorch {executorch}: {first} is the first for LPAI",
    "ExecuTorch lowers for LPAI with that version or later, and a runtime must not be older",
    "--sdk DIR with QNN {first} or later; profile lpai provisions one",
)
def see_older_lpai(case: Case) -> Iterator[Seen]:
    executorch, sdk = find_executorch(case), case.facts.sdk
    row = case.pairs.find(executorch)
    asks = case.facts.backend and case.facts.backend.name.startswith("lpai")
    if asks and row and row.lpai and sdk and sdk.version and is_older(sdk.version, row.lpai):
        versions = {"sdk": sdk.version, "executorch": executorch, "first": row.lpai}
        yield seen("QNN SDK", sdk.root, **versions)


@ENVIRONMENT.check(
    "QNN909",
    "{subject} is not in the SDK: nothing is lowered for backend {backend}",
    "{why}",
    "{fix}",
    after=("QNN908",),
)
def see_no_library(case: Case) -> Iterator[Seen]:
    if case.facts.backend and not case.facts.backend.is_there:
        yield see_backend(case.facts.backend, case.facts.sdk)


@ENVIRONMENT.check(
    "QNN910",
    "{subject} of QNN {version} creates no backend on this machine: {reason}",
    "{why}",
    "{fix}",
    after=("QNN908", "QNN909"),
)
def see_no_backend(case: Case) -> Iterator[Seen]:
    if case.facts.backend and case.facts.backend.no_backend:
        yield see_backend(case.facts.backend, case.facts.sdk)


def see_backend(one: BackendFacts, sdk: SdkFacts | None) -> Seen:
    """A fault of a backend's library."""
    return seen(
        one.library,
        sdk.root / HOST_DIRECTORY if sdk else "",
        backend=one.name,
        version=(sdk.version if sdk else None) or "an unknown version",
        reason=one.no_backend,
        why=one.why,
        fix=one.fix,
    )
