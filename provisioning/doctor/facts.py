"""The classes that hold the facts of an environment. The survey fills them; checks judge them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from provisioning.elf.facts import EM_QDSP6, Defect, ElfFacts, Proof
from provisioning.elf.programs import Target
from provisioning.elf.qnn_build import QnnBuild

HOST_KIND = "x86_64-linux-clang"
HOST_DIRECTORY = f"lib/{HOST_KIND}"
STAGING, NDK, CHECKOUT, LIBCXX = "staging", "android-ndk", "executorch", "libcxx"


# The LPAI skel of QNN 2.33 is libQnnLpaiV79Skel_v5.so, for LPAI hardware v5.
QNN_NAME = re.compile(
    r"libQnn(Htp|Lpai)(?:V([0-9a-f]{2,3}))?(Stub|Skel|Prepare)?(?:_v[0-9]+)?[.]so"
)


class QnnName(NamedTuple):
    """The parts of a library's name: the backend, the Hexagon version, and ``part``: ``Stub`` (runs
    on the CPU), ``Skel`` (runs on the DSP) or ``Prepare`` (compiles graphs). A part that the name
    does not contain is ''.
    """

    backend: str
    hexagon: str
    part: str

    @property
    def is_half(self) -> bool:
        """Whether it is a stub or a skel, which need each other."""
        return self.part in {"Stub", "Skel"}

    @property
    def is_htp_skel(self) -> bool:
        """Whether it is HTP's library for the DSP."""
        return (self.backend, self.part) == ("Htp", "Skel")


def parse_qnn_name(name: str) -> QnnName:
    """Parse a name such as ``libQnnHtpV75Skel.so``; for other libraries, all parts are ''."""
    match = QNN_NAME.fullmatch(name)
    return QnnName(*(match.groups("") if match else ("", "", "")))


@dataclass(frozen=True)
class FileFacts:
    """A library or program of a tree. ``elf`` is None for a lowered program, and for a library that
    cannot be read. ``defect`` is the fault of a file that cannot be read or loaded, and
    ``defect_why`` has the details.

    ``proof`` is what catalogs, or the list of genuine skels, prove about an unsigned DSP library.
    ``targets`` are the SoCs that a lowered program was compiled for; ``misplaced`` is the reason
    why its segments cannot be mapped.
    """

    relative: str
    path: Path
    size_bytes: int
    elf: ElfFacts | None = None
    build: QnnBuild | None = None
    defect: Defect | None = None
    defect_why: str = ""
    proof: Proof | None = None
    targets: tuple[Target, ...] = ()
    misplaced: str = ""

    @property
    def name(self) -> str:
        """The file's name without directories."""
        return self.path.name

    @property
    def qnn_name(self) -> QnnName:
        """The parts of the file's name, if it is a QNN library."""
        return parse_qnn_name(self.name)

    @property
    def machine(self) -> int | None:
        """e_machine; None for a file that is not ELF or cannot be read."""
        return self.elf.machine if self.elf else None

    @property
    def version(self) -> str:
        """The QNN version that it contains, '' if there is none."""
        return (self.build.version if self.build else None) or ""

    @property
    def is_cpu_library(self) -> bool:
        """Whether it is a QNN library for a CPU."""
        return self.name.startswith("libQnn") and self.machine not in {None, EM_QDSP6}

    @property
    def directory(self) -> str:
        """The directory below the root, '' for the root itself."""
        return self.relative.rpartition("/")[0]


@dataclass(frozen=True)
class TreeFacts:
    """The libraries and programs below ``root``. ``links`` maps symbolic links to their targets,
    and ``dangling`` are the links with a missing target. ``lowered`` are the lowered programs.
    ``min_sdk`` is the lowest API level of the Android app that the tree belongs to, None if
    unknown.
    """

    root: Path
    files: tuple[FileFacts, ...]
    links: Mapping[str, str] = field(default_factory=dict)
    dangling: frozenset[str] = frozenset()
    lowered: tuple[FileFacts, ...] = ()
    is_directory: bool = True
    min_sdk: int | None = None

    @property
    def is_sdk(self) -> bool:
        """Whether it looks like a whole SDK: with skels of several Hexagon versions, and libraries
        for several kinds of CPU.
        """
        places = {file.directory for file in self.files}
        kinds = {place for place in places if re.search(r"(^|/)lib/(x86_64|aarch64)-", place)}
        skels = {place for place in places if re.search(r"(^|/)lib/hexagon-v", place)}
        return len(kinds) > 1 and len(skels) > 1

    @property
    def is_pointers(self) -> bool:
        """Whether it has several libraries and all of them are LFS pointers."""
        pointers = [file for file in self.files if file.defect is Defect.LFS_POINTER]
        return len(pointers) == len(self.files) > 1

    @property
    def link_names(self) -> frozenset[str]:
        """The names of the symbolic links, without directories."""
        return frozenset(PurePosixPath(link).name for link in self.links)

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class SdkFacts:
    """A QNN SDK, or a tree with its layout.

    ``version`` and ``stamp`` (12 digits, from build_id) come from sdk.yaml. ``fault`` is the reason
    why sdk.yaml cannot be read. ``markers`` and ``headers`` are the marker files and the required
    headers that exist. ``api_version`` is the version of QNN's API in the headers, and
    ``library_api`` the one in libQnnHtp.so.
    """

    root: Path
    is_directory: bool
    markers: tuple[str, ...] = ()
    version: str | None = None
    stamp: str | None = None
    fault: str = ""
    directories: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    api_version: str | None = None
    library_api: str | None = None


@dataclass(frozen=True)
class ToolFacts:
    """A program. ``path`` is None if it is not on PATH, ``version`` is None if it is unknown.
    ``output`` is what it printed, or why it could not be run.
    """

    name: str
    path: str | None
    version: str | None = None
    output: str = ""


@dataclass(frozen=True)
class NdkFacts:
    """An Android NDK."""

    root: Path
    is_directory: bool
    revision: str | None = None
    has_toolchain_file: bool = False
    host_tags: tuple[str, ...] = ()
    clang: ToolFacts | None = None
    api_levels: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostFacts:
    """The machine. Sizes are in GB (10**9 bytes). ``address_space_gb`` is the limit of the address
    space of a process (``ulimit -v``), 0 if there is none. ``libraries`` maps the names of wanted
    libraries to the paths where the loader finds them, or to None. ``has_cuda`` is whether CMake
    would find a CUDA toolkit.
    """

    system: str
    machine: str
    glibc: str | None
    cores: int
    memory_gb: float
    disk_free_gb: float
    disk_path: str
    address_space_gb: float = 0
    cpu_flags: frozenset[str] = frozenset()
    tools: tuple[ToolFacts, ...] = ()
    libraries: Mapping[str, str | None] = field(default_factory=dict)
    has_cuda: bool = False


@dataclass(frozen=True)
class PythonFacts:
    """An interpreter and its installed packages, none of which were imported.

    ``tag`` is the end of an extension module's file name, such as
    ``.cpython-311-x86_64-linux-gnu.so``. ``flatc`` is the path of that program, None if it is not
    on PATH. ``error`` is set if the interpreter did not answer.

    ``executorch`` is the directory of the executorch package that the interpreter would import,
    and ``pth`` are the .pth files that list its parent directory. ``installed`` is the package
    directory of the installed executorch. ``shadowed`` are other packages that Python would import
    from elsewhere, as (name, that place, the installed directory). ``unmet`` are requirements of
    executorch that are not met, as (distribution, installed version, required version).

    ``adaptors`` are the files of PyQnnManagerAdaptor in ``executorch``, and ``adaptor`` is the one
    for this Python. ``lacking`` are libraries that it needs and the loader does not find.
    ``headers`` is the QNN release whose headers it was built with. ``checkout`` and ``built_with``
    are the versions of ExecuTorch and the SDK that an overlay was built from. ``no_device`` is the
    reason why the adaptor cannot create a device, '' if it can, None if it was not tried.
    ``torch_cuda`` is the version of CUDA for which torch was built, '' for a CPU build.
    """

    executable: str
    version: tuple[int, ...] = ()
    tag: str = ""
    distributions: Mapping[str, str | None] = field(default_factory=dict)
    modules: Mapping[str, bool] = field(default_factory=dict)
    executorch: str | None = None
    adaptors: tuple[str, ...] = ()
    adaptor: FileFacts | None = None
    lacking: tuple[str, ...] = ()
    flatc: str | None = None
    unmet: tuple[tuple[str, str, str], ...] = ()
    error: str = ""
    headers: str = ""
    checkout: str = ""
    built_with: str = ""
    no_device: str | None = None
    installed: str = ""
    pth: tuple[str, ...] = ()
    shadowed: tuple[tuple[str, str, str], ...] = ()
    torch_cuda: str = ""


@dataclass(frozen=True)
class BackendFacts:
    """A backend other than HTP. ``is_there`` states whether its library is in the SDK;
    ``no_backend`` is the reason why the adaptor cannot create the backend, '' if it can, None if it
    was not tried. ``why`` and ``fix`` are shown if the library is missing or the backend cannot be
    created.
    """

    name: str
    library: str
    is_there: bool
    why: str
    fix: str
    no_backend: str | None = None


@dataclass(frozen=True)
class PathEntry:
    """An entry of LD_LIBRARY_PATH. ``libraries`` are those in it that concern QNN. ``runtimes`` are
    its copies of libstdc++, libgcc_s and libatomic, which hide the system's.
    """

    directory: str
    libraries: tuple[FileFacts, ...] = ()
    runtimes: tuple[FileFacts, ...] = ()


@dataclass(frozen=True)
class VariableFacts:
    """The variables that concern QNN. ``executorch_on_path`` are the entries of PYTHONPATH that
    contain an executorch; ``without_adaptor`` are the entries whose executorch has no QNN adaptor.
    ``roots_that_exist`` are the values of root variables that are directories.

    ``real`` maps each path in these variables, and the SDK's root, to the path without symbolic
    links.
    """

    values: Mapping[str, str]
    library_path: tuple[PathEntry, ...] = ()
    executorch_on_path: tuple[str, ...] = ()
    without_adaptor: tuple[str, ...] = ()
    roots_that_exist: frozenset[str] = frozenset()
    real: Mapping[str, str] = field(default_factory=dict)

    def is_same(self, left: str | Path, right: str | Path) -> bool:
        """Return whether two paths lead to the same place, with all symbolic links followed."""
        names = [str(Path(path)) for path in (left, right)]
        return self.real.get(names[0], names[0]) == self.real.get(names[1], names[1])


@dataclass(frozen=True)
class InstallationFacts:
    """An artifact at its root: the marker files that it lacks, and the name and value of the
    variable that should point to it. ``is_same`` is false if the variable points to another
    directory.
    """

    name: str
    root: Path
    missing: tuple[str, ...] = ()
    variable: str = ""
    value: str = ""
    is_same: bool = True


@dataclass(frozen=True)
class SubmoduleFacts:
    """A submodule: ``state`` is ok, missing or moved (not at the recorded commit)."""

    path: str
    state: str
    commit: str = ""


@dataclass(frozen=True)
class CheckoutFacts:
    """A source tree of ExecuTorch. ``leftovers`` lists flatcc's outputs as (path, machine name).
    ``has_adaptor`` is true if an adaptor was built into it; ``version`` comes from version.txt.
    """

    root: Path
    is_directory: bool
    is_git: bool = False
    commit: str | None = None
    submodules: tuple[SubmoduleFacts, ...] = ()
    leftovers: tuple[tuple[str, str], ...] = ()
    has_adaptor: bool = False
    version: str = ""


@dataclass(frozen=True)
class DeviceFacts:
    """A device that adb lists. ``state`` is as adb prints it; ``free_mb`` counts 10**6 bytes.
    ``libraries`` maps the names of the QNN libraries in ``directory`` on the device to their
    builds, '' if unknown.
    """

    serial: str
    state: str
    soc: str = ""
    android: str = ""
    api_level: int | None = None
    page_bytes: int | None = None
    free_mb: int | None = None
    is_root: bool = False
    directory: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BoardFacts:
    """A Linux board that was asked over ssh. ``failure`` is why it gave no answer, or ''. ``nodes``
    are the device nodes of its DSP, each with whether its user can open it, and ``files`` the paths
    of the files that the DSP may load. ``daemons`` are FastRPC's daemons that run.
    """

    address: str
    failure: str = ""
    nodes: Mapping[str, bool] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    daemons: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvironmentFacts:
    """All facts of an environment. Facts that were not examined are None or empty."""

    profile: str
    host: HostFacts
    pins: Mapping[str, str] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    submodules: tuple[str, ...] = ()
    sdk_name: str = ""
    sdk: SdkFacts | None = None
    trees: Mapping[str, TreeFacts] = field(default_factory=dict)
    ndk: NdkFacts | None = None
    python: PythonFacts | None = None
    backend: BackendFacts | None = None
    variables: VariableFacts | None = None
    checkout: CheckoutFacts | None = None
    installations: tuple[InstallationFacts, ...] = ()
    devices: tuple[DeviceFacts, ...] | None = None
    board: BoardFacts | None = None
