"""For each check what it must see, and the nearest thing that it must not.

The second of each pair is on the right side of a limit, a look-alike, or lacks what makes it a
fault; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec

from provisioning.doctor.checks.board import Board
from provisioning.doctor.checks.coherence import Family
from provisioning.doctor.checks.device import RPC, Device, Staging
from provisioning.doctor.checks.elf import Placed
from provisioning.doctor.checks.files import Need
from provisioning.doctor.checks.machine import Checkout, Ndk, Tool
from provisioning.doctor.checks.process import Interpreter, Runtime, Variables
from provisioning.doctor.checks.sdk import Adaptor, Sdk
from provisioning.doctor.examine import SUBJECTS
from provisioning.doctor.facts import (
    HOST_KIND,
    BackendFacts,
    BoardFacts,
    CheckoutFacts,
    DeviceFacts,
    EnvironmentFacts,
    FileFacts,
    HostFacts,
    InstallationFacts,
    NdkFacts,
    PathEntry,
    PythonFacts,
    SdkFacts,
    SubmoduleFacts,
    ToolFacts,
    TreeFacts,
    VariableFacts,
)
from provisioning.doctor.fitness import (
    DevicePolicy,
    DoctorPolicy,
    ElfPolicy,
    Fitness,
    NdkPolicy,
    PythonPolicy,
    ToolPolicy,
)
from provisioning.doctor.registry import Case, Subjects
from provisioning.elf.facts import (
    EM_AARCH64,
    EM_QDSP6,
    EM_X86_64,
    PT_LOAD,
    AndroidNote,
    Checksum,
    Defect,
    ElfError,
    ElfFacts,
    Genuine,
    ProgramHeader,
    Proof,
    VersionNeed,
)
from provisioning.elf.programs import Target
from provisioning.elf.qnn_build import QnnBuild
from provisioning.manifest.pairs import (
    ExecutorchPairs,
    HexagonPair,
    NdkRange,
    Pairs,
    QnnRange,
    Supported,
)

HOST = HostFacts("Linux", "x86_64", "2.34", 2, 3, 5, "/")
FIT = Fitness(cpu_flags=("avx",), memory_gb=3, address_space_gb=2, disk_gb=5, cores=2)
ELF = ElfFacts(
    Path("/sdk/libQnnA.so"),
    1,
    64,
    True,
    EM_X86_64,
    3,
    0,
    soname="libQnnA.so",
    program_headers=(ProgramHeader(PT_LOAD, 5, 0, 0, 0, 9, 9, 16384),),
)
PLAIN = ElfPolicy(bits=64, machine=EM_X86_64, glibc="2.34", glibcxx="3.4.29", cxxabi="1.3.13")
DROID = ElfPolicy(bits=64, machine=EM_X86_64, android_api=30, load_align=16384)
DSP = ElfPolicy(bits=32, machine=EM_QDSP6, flags=0x75)
NOTE = AndroidNote(30, "r26c", "1")
BUILD = QnnBuild("2.49.40", "260810104044", "v2.49.40.260810104044")
OTHER = QnnBuild("2.48.40", "260710104044", "v2.48.40.260710104044")
LATER = QnnBuild("2.49.40", "260810104045", "v2.49.40.260810104045")
BARE_STAMP = QnnBuild(None, "260810104044", "260810104044")
NEWER = QnnBuild("2.50.0", "260910104044", "v2.50.0.260910104044")


def tool(version: str | None, *, path: str | None = "/bin/cmake", optional: bool = False) -> Tool:
    policy = ToolPolicy("cmake", minimum="3.24", advised="3.28", why="so", optional=optional)
    return Tool(ToolFacts("cmake", path, version, "says"), policy)


def elf(**change: Any) -> ElfFacts:
    return replace(ELF, **change)


def needing(*versions: str) -> Placed:
    return Placed(elf(version_needs=(VersionNeed("lib", versions),)), PLAIN)


def file(name: str, build: QnnBuild | None = BUILD, place: str = "lib", **change: Any) -> FileFacts:
    path = Path("/sdk") / place / name
    return FileFacts(f"{place}/{name}", path, 1, elf(path=path, **change), build)


def skel(name: str, version: int, place: str = "") -> FileFacts:
    return file(name, place=place, machine=EM_QDSP6, flags=version)


def aligned(align: int) -> tuple[ProgramHeader, ...]:
    return (ProgramHeader(PT_LOAD, 5, 0, 0, 0, 9, 9, align),)


def case(
    fitness: Fitness = FIT, *, minimum: str = "", pin: str = "", headers: tuple[str, ...] = ()
) -> Case:
    facts = EnvironmentFacts("p", HOST, pins={"qnn-sdk": pin} if pin else {}, sdk_name="qnn-sdk")
    policy = DoctorPolicy(
        headers,
        (),
        PythonPolicy("3.10", "3.14", "2.5", "2.13.0", "1.5.1"),
        NdkPolicy(26, "linux-x86_64"),
        DevicePolicy(500),
        {},
        {},
    )
    return Case(facts, policy, fitness, {}, None, (minimum, "so"))


def within(fitness: Fitness = FIT, soc: tuple[str, int] | None = None, **change: Any) -> Case:
    """A case for a check; ``change`` are its facts."""
    base = case(fitness)
    return replace(base, facts=replace(base.facts, **change), soc=soc)


BOARD_FILES = (
    *("/d/fastrpc_shell_3", "/d/fastrpc_shell_unsigned_3", "/d/libc++.so.1", "/d/libc++abi.so.1"),
    "/d/libQnnHtpV68Skel.so",
)


def board(**change: Any) -> Board:
    """A board with each file; ``change`` is what is different."""
    nodes = {"/dev/fastrpc-cdsp": True}
    facts = BoardFacts("ssh:b", nodes=nodes, files=BOARD_FILES, daemons=("cdsprpcd",))
    return Board(replace(facts, **change), case(FIT))


def machine(fitness: Fitness = FIT, **change: Any) -> Case:
    return within(fitness, host=replace(HOST, **change))


def sdk(
    base_case: Case | None = None,
    *,
    root: str = "/sdk",
    tree: TreeFacts | None = None,
    **change: Any,
) -> Sdk:
    place = Path(root)
    facts = SdkFacts(place, is_directory=True, markers=("sdk.yaml",), version="2.37.0")
    base = base_case or case()
    trees = {"qnn-sdk": tree or TreeFacts(place, ())}
    return Sdk(replace(facts, **change), replace(base, facts=replace(base.facts, trees=trees)))


def wanting(*names: str) -> Case:
    return case(Fitness(libraries={"lib/a": names}))


WITH_HEADERS = case(Fitness(headers=True), headers=("QnnInterface.h",))
LINKED = TreeFacts(Path("/sdk"), (), {"lib/libQnnA.so": "gone.so"}, frozenset({"lib/libQnnA.so"}))
UNNEEDED = TreeFacts(Path("/sdk"), (), {"lib/libz.so": "gone.so"}, frozenset({"lib/libz.so"}))


def tree_of(*files: FileFacts) -> TreeFacts:
    return TreeFacts(Path("/sdk"), files)


BOTH = ("libQnnHtp.so", "libQnnSystem.so")


def staging(
    *names: str,
    soc: bool = False,
    staged: tuple[str, ...] = BOTH,
    runtime: str = "",
    **change: Any,
) -> Staging:
    tree = replace(tree_of(*(file(name) for name in names)), **change)
    pins = {"qnn-sdk": runtime} if runtime else {}
    base = within(Fitness(staged=staged), ("SM8750", 79) if soc else None, pins=pins)
    return Staging(tree, base)


STUB_OF_LINUX = file("libQnnHtpV73Stub.so", machine=EM_AARCH64, needed=(RPC, "libc.so.6"))
PAIR = ("libQnnHtpV79Stub.so", "libQnnHtpV79Skel.so")
OLD_PAIR = (file("libQnnHtp.so", OTHER), file("libQnnHtpPrepare.so", OTHER))


SDK_FILES = tuple(
    file(f"lib{number}.so", place=f"lib/{place}")
    for number, place in enumerate(
        ("x86_64-linux-clang", "aarch64-android", "hexagon-v75/unsigned", "hexagon-v79/unsigned")
    )
)
POINTERS = tuple(replace(file(name), elf=None, defect=Defect.LFS_POINTER) for name in PAIR)


def lowered(build: QnnBuild | None, **change: Any) -> tuple[FileFacts, ...]:
    return (FileFacts("m.pte", Path("/sdk/m.pte"), 1, build=build, **change),)


def variables(root: str = "/sdk", *path: PathEntry, runs: bool = True, **values: str) -> Variables:
    facts = VariableFacts(
        {"QNN_SDK_ROOT": root, **values},
        path,
        roots_that_exist=frozenset({"/sdk", "/other", "sdk"}),
        real={"sdk": "/sdk"},
    )
    return Variables(facts, Path("/sdk"), "emulator", runs)


def entry(directory: str, *files: FileFacts) -> PathEntry:
    return PathEntry(directory, files)


OWN = entry("/sdk/lib/x86_64-linux-clang", file("libQnnA.so"))


def runtime(defs: tuple[str, ...], defect: Defect | None = None) -> Runtime:
    path = Path("/conda/libstdc++.so.6")
    facts = None if defect else elf(path=path, version_defs=defs)
    needs = {"GLIBCXX": ((3, 4, 21), "libA.so")}
    return Runtime("/conda", FileFacts(path.name, path, 1, facts, defect=defect), needs)


def dsp(**values: str) -> Case:
    return within(variables=VariableFacts(values))


def on_path(*entries: str, wheel: bool, checkout: str = "", **values: str) -> Case:
    """A PYTHONPATH whose first entry alone has an adaptor, unless there is no other one."""
    facts = VariableFacts(values, (), entries, entries[1:] or entries)
    built = CheckoutFacts(Path(checkout), is_directory=True, has_adaptor=True)
    return within(Fitness(python=wheel), variables=facts, checkout=built if checkout else None)


def lacking(name: str, path: str | None) -> Case:
    """A library of the system that a library of the SDK needs."""
    facts = {
        "host": replace(HOST, libraries={name: path}),
        "trees": {"qnn-sdk": tree_of(file("u", needed=(name,)))},
    }
    system = msgspec.structs.replace(PLAIN, system=(name,))
    return replace(within(**facts), kinds={HOST_KIND: system})


ADAPTOR = FileFacts("P.so", Path("/site/P.so"), 1, elf())
PYTHON = PythonFacts(
    "/venv/bin/python",
    (3, 12, 1),
    ".so",
    {"torch": "2.13.0+cpu", "executorch": "1.5.1"},
    {"yaml": True},
    "/site/executorch",
    ("/site/P.so",),
    ADAPTOR,
    flatc=None,
)
POLICY = PythonPolicy("3.10", "3.14", "2.5", "2.13.0", "1.5.1", {"yaml": "pyyaml"}, "1.3")


SUPPORTED = [Supported(name, "2.13.0", "2.49.40", "") for name in ("1.5.1", "1.4.1")]


def python(*, hidden: bool = False, glibc: str | None = "2.36", **change: Any) -> Interpreter:
    path = VariableFacts({}, executorch_on_path=("/site",) if hidden else ())
    base = within(host=replace(HOST, glibc=glibc), variables=path)
    policy = msgspec.structs.replace(base.policy, python=POLICY)
    base = replace(base, policy=policy, pairs=Pairs("1.5.1", (), supported=tuple(SUPPORTED)))
    return Interpreter(replace(PYTHON, **change), base)


def cuda_torch(*, has_toolkit: bool) -> Interpreter:
    """A torch for CUDA in the Python of a build."""
    facts, base = python(torch_cuda="12.8")
    host = replace(HOST, has_cuda=has_toolkit)
    fitness = msgspec.structs.replace(base.fitness, headers=True)
    return Interpreter(facts, replace(base, fitness=fitness, facts=replace(base.facts, host=host)))


def having(**versions: str | None) -> Interpreter:
    return python(distributions={**PYTHON.distributions, **versions})


def adaptor(**change: Any) -> Interpreter:
    return python(adaptor=replace(ADAPTOR, **change))


NDK = NdkFacts(
    Path("/ndk"), True, "26.2.11394342", True, ("linux-x86_64",), ToolFacts("c", "/c", "17"), (30,)
)


def ndk(pin: str = "26.2.11394342", level: int = 30, **change: Any) -> Ndk:
    android = msgspec.structs.replace(DROID, android_api=level)
    base = within(pins={"android-ndk": pin})
    return Ndk(replace(NDK, **change), replace(base, kinds={"aarch64-android": android}))


TREE = CheckoutFacts(Path("/src/executorch"), is_directory=True, is_git=True, commit="a" * 40)


def checkout(*modules: SubmoduleFacts, pin: str = "a" * 40, **change: Any) -> Checkout:
    facts = replace(TREE, submodules=modules, **change)
    pins = {"executorch-commit": pin, "executorch": "1.5.1"}
    return Checkout(facts, within(pins=pins, submodules=("third-party/json",)))


def module(path: str, state: str) -> SubmoduleFacts:
    return SubmoduleFacts(path, state, "b" * 40)


JSON = module("third-party/json", "ok")
FLATCC = "/src/executorch/third-party/flatcc"
PHONE = DeviceFacts(
    "abc", "device", "SM8750", "15", 30, 16384, 500, True, "/data", {"libQnnHtp.so": BUILD.text}
)


def device(
    *,
    root: bool = True,
    align: int = 16384,
    soc_name: str = "SM8750",
    build: QnnBuild | None = BUILD,
    **change: Any,
) -> Device:
    """``align`` is the smallest of the libraries' for the device."""
    files = [
        file("libA.so", build, machine=EM_AARCH64, program_headers=aligned(align)),
        file("libB.so", build, machine=EM_AARCH64, program_headers=aligned(align * 2)),
        file("libC.so", build, program_headers=aligned(1)),
    ]
    soc = (soc_name, 79) if soc_name else None
    base = within(Fitness(root_on_device=root), soc, trees={"qnn-sdk": tree_of(*files)})
    return Device(replace(PHONE, **change), replace(base, kinds={"aarch64-android": DROID}))


def laid(**change: Any) -> Adaptor:
    facts = SdkFacts(Path("/sdk"), is_directory=True, version="2.49.40")
    return Adaptor(replace(PYTHON, **{"headers": "2.37", **change}), facts, "2.49.40")


ROW = ExecutorchPairs(
    "1.5.1", QnnRange("2.37", "2.49.40", "2.37.0"), NdkRange("26", "26.2"), "seen"
)


def tools(
    version: str = "2.37",
    *,
    executorch: str | None = "1.5.1",
    hexagon: str = "",
    compiler: str = "",
    soc: int = 0,
    **change: Any,
) -> Case:
    facts = {
        "sdk": SdkFacts(Path("/sdk"), is_directory=True, version=version),
        "python": replace(PYTHON, distributions={"executorch": executorch}),
        "roots": {"hexagon-sdk": f"/opt/{hexagon}", "qnn-sdk": "/opt/2.0"},
        "variables": VariableFacts({"HEXAGON_TOOLS_ROOT": f"/opt/{compiler}"}),
    }
    base = within(soc=("SM8850", soc) if soc else None, **{**facts, **change})
    return replace(base, pairs=Pairs("1.5.1", (ROW,), (HexagonPair("v81", "19.0", "6.4.0"),)))


def backed(
    name: str = "lpai", version: str = "2.39.0.250926", *, sdk: bool = True, **change: Any
) -> Case:
    """With a backend beside HTP."""
    executorch = change.pop("executorch", "1.5.1")
    facts = BackendFacts(name, "libQnnLpai.so", is_there=True, why="it lowers", fix="an SDK")
    row = msgspec.structs.replace(ROW, lpai="2.39")
    without = {} if sdk else {"sdk": None}
    base = tools(version, executorch=executorch, backend=replace(facts, **change), **without)
    return replace(base, pairs=Pairs("1.5.1", (row,)))


def proven_family(outcome: Genuine, checksum: Checksum | None = None) -> Family:
    library = replace(skel(PAIR[1], 0x79), proof=Proof(outcome, "v79.cat", "so"))
    assert library.elf
    return Family((replace(library, elf=replace(library.elf, checksum=checksum)),))


def bare_skel(build: QnnBuild | None, name: str = "libQnnHtpV75Skel.so") -> Placed:
    """A skel without a checksum."""
    return Placed(elf(path=Path("/s") / name, machine=EM_QDSP6), DSP, build=build)


def error(defect: Defect) -> ElfError:
    return ElfError(Path("/sdk/lib.so"), defect)


PAIRS: Mapping[str, tuple[Any, Any]] = {
    "QNN001": (machine(machine="aarch64"), machine()),
    "QNN002": (machine(glibc="2.33"), machine(glibc="2.34")),
    "QNN003": (lacking("l", None), lacking("l", "/l")),
    "QNN004": (machine(cpu_flags=frozenset({"avx2"})), machine(cpu_flags=frozenset({"avx"}))),
    "QNN005": (machine(disk_free_gb=4.9), machine(disk_free_gb=5)),
    "QNN006": (machine(memory_gb=2.9), machine(memory_gb=3)),
    "QNN007": (machine(cores=1), machine(cores=2)),
    "QNN008": (machine(address_space_gb=1.9), machine(address_space_gb=2)),
    "QNN010": (tool(None, path=None), tool(None, path=None, optional=True)),
    "QNN011": (tool(None), tool("3.28")),
    "QNN012": (tool("3.23.9"), tool("3.24")),
    "QNN013": (tool("3.27.9"), tool("3.28")),
    "QNN100": (within(Fitness(roots=("n",))), within(Fitness(roots=("n",)), roots={"n": "/n"})),
    "QNN101": (sdk(is_directory=False), sdk()),
    "QNN102": (sdk(markers=("QNN_README.txt",)), sdk()),
    "QNN103": (sdk(version=None), sdk()),
    "QNN104": (sdk(case(pin="2.37.1")), sdk(case(pin="2.37.0.250724"))),
    "QNN105": (
        sdk(case(minimum="2.39"), version="2.38.9"),
        sdk(case(minimum="2.39"), version="2.39"),
    ),
    "QNN106": (sdk(wanting(), directories=("lib/ab",)), sdk(wanting(), directories=("lib/a",))),
    "QNN107": (
        sdk(
            wanting("libQnnA.so"),
            directories=("lib/a",),
            tree=tree_of(file("libQnnA.so", place="lib/b")),
        ),
        sdk(
            wanting("libQnnA.so"),
            directories=("lib/a",),
            tree=tree_of(file("libQnnA.so", place="lib/a")),
        ),
    ),
    "QNN108": (sdk(WITH_HEADERS), sdk(WITH_HEADERS, headers=("QnnInterface.h",))),
    "QNN109": (
        sdk(WITH_HEADERS, headers=("QnnInterface.h",)),
        sdk(WITH_HEADERS, headers=("QnnInterface.h",), api_version="2.38.0"),
    ),
    "QNN110": (
        sdk(api_version="2.39.0", library_api="2.38.5"),
        sdk(api_version="2.38.9", library_api="2.38.0"),
    ),
    "QNN111": (sdk(root="/opt:qnn"), sdk(root="/opt;qnn")),
    "QNN112": (sdk(tree=LINKED), sdk(tree=UNNEEDED)),
    "QNN113": (
        InstallationFacts("hexagon-sdk", Path("/h"), ("tools",)),
        InstallationFacts("libcxx", Path("/h"), ("lib",)),
    ),
    "QNN201": (error(Defect.UNREADABLE), error(Defect.EMPTY)),
    "QNN202": (error(Defect.EMPTY), error(Defect.TRUNCATED)),
    "QNN203": (error(Defect.LFS_POINTER), error(Defect.NOT_ELF)),
    "QNN204": (error(Defect.HTML), error(Defect.NOT_ELF)),
    "QNN205": (error(Defect.NOT_ELF), error(Defect.HTML)),
    "QNN206": (error(Defect.TRUNCATED), error(Defect.CORRUPT)),
    "QNN207": (error(Defect.CORRUPT), error(Defect.TRUNCATED)),
    "QNN208": (error(Defect.APPLE_DOUBLE), error(Defect.NOT_ELF)),
    "QNN210": (Placed(elf(bits=32), PLAIN), Placed(elf(), PLAIN)),
    "QNN211": (Placed(elf(little_endian=False), PLAIN), Placed(elf(), PLAIN)),
    "QNN212": (Placed(elf(machine=EM_AARCH64), PLAIN), Placed(elf(), PLAIN)),
    "QNN213": (Placed(elf(type=1), PLAIN), Placed(elf(type=3), PLAIN)),
    "QNN214": (
        Placed(elf(machine=EM_QDSP6, bits=32, flags=0x73), DSP),
        Placed(elf(machine=EM_QDSP6, bits=32, flags=0x8075), DSP),
    ),
    "QNN215": (Placed(elf(soname="libQnnB.so"), PLAIN), Placed(elf(soname=None), PLAIN)),
    "QNN216": (
        Need("l", ["u"], Path("/u"), "u", is_libcxx=False),
        Need("libc++.so.1", ["u"], Path("/u"), "u", is_libcxx=True),
    ),
    "QNN217": (
        Placed(elf(runpath=("$ORIGIN/../..",)), PLAIN, 1),
        Placed(elf(runpath=("$ORIGIN/..",)), PLAIN, 1),
    ),
    "QNN218": (Placed(elf(rpath=("/opt/lib",)), PLAIN), Placed(elf(rpath=("$ORIGIN",)), PLAIN)),
    "QNN219": (needing("GLIBC_2.35"), needing("GLIBC_2.34", "GLIBC_PRIVATE")),
    "QNN220": (needing("GLIBCXX_3.4.30"), needing("GLIBCXX_3.4.29")),
    "QNN221": (needing("CXXABI_1.3.14"), needing("CXXABI_1.3.13")),
    "QNN222": (Placed(elf(), DROID), Placed(elf(), PLAIN)),
    "QNN223": (
        Placed(elf(android=NOTE._replace(api_level=31)), DROID),
        Placed(elf(android=NOTE), DROID),
    ),
    "QNN225": (
        Placed(elf(program_headers=aligned(8192)), DROID),
        Placed(elf(program_headers=aligned(16384)), DROID),
    ),
    "QNN226": (Placed(elf(textrel=True), PLAIN), Placed(elf(), PLAIN)),
    "QNN227": (Placed(elf(execstack=True), PLAIN), Placed(elf(), PLAIN)),
    "QNN228": (
        Placed(elf(sections=(".symtab",)), PLAIN),
        Placed(elf(sections=(".dynsym",)), PLAIN),
    ),
    "QNN229": (
        Need("libc++.so.1", ["u"], Path("/u"), "u", is_libcxx=True),
        Need("l", ["u"], Path("/u"), "u", is_libcxx=False),
    ),
    "QNN230": (
        Placed(elf(checksum=Checksum(1, 2)), DSP),
        Placed(elf(checksum=Checksum(1, 2, is_stripped=True)), DSP),
    ),
    "QNN231": (
        bare_skel(QnnBuild("2.40.0", "2", "v2.40.0.2")),
        bare_skel(QnnBuild("2.39.9", "2", "v2.39.9.2")),
    ),
    "QNN232": (
        Placed(elf(needed=("libc.so.6",)), DROID),
        Placed(elf(needed=("libc.so",)), DROID),
    ),
    "QNN233": (Placed(elf(android=NOTE), PLAIN), Placed(elf(android=NOTE), DROID)),
    "QNN234": (
        Placed(elf(android=NOTE._replace(api_level=31)), DROID, knows_level=False),
        Placed(elf(android=NOTE._replace(api_level=31)), DROID),
    ),
    "QNN235": (
        bare_skel(QnnBuild("2.38.0", "2", "v2.38.0.2")),
        bare_skel(QnnBuild("2.37.1", "2", "v2.37.1.2")),
    ),
    "QNN236": (
        Placed(elf(checksum=Checksum(1, 2, is_stripped=True)), DSP),
        Placed(elf(checksum=Checksum(1, 2)), DSP),
    ),
    "QNN301": (
        Family((file("a.so"), file("b.so"), file("libQnnC.so", LATER))),
        Family((file("a.so"), file("b.so"), file("libmodel.so", LATER))),
    ),
    "QNN302": (
        Family((file("a.so"),), "2.49.40", "260810104045"),
        Family((file("a.so"),), "2.49.40", "260810104044"),
    ),
    "QNN303": (Family((file("libQnnA.so", None),)), Family((file("libother.so", None),))),
    "QNN304": (Family((file(PAIR[0]),)), Family((file(PAIR[0]), file(PAIR[1])))),
    "QNN305": (
        Family((skel(PAIR[1], 0x75, "lib/hexagon-v75/unsigned"),)),
        Family((skel(PAIR[1], 0x75, "lib/hexagon-v79/unsigned"),)),
    ),
    "QNN306": (Family((skel(PAIR[1], 0x75),)), Family((skel(PAIR[1], 0x79),))),
    "QNN307": (
        Family((skel("libQnnHtpV75Skel.so", 0x75),), soc=("SM8750", 79)),
        Family((skel(PAIR[1], 0x79),), soc=("SM8750", 79)),
    ),
    "QNN308": (staging(is_directory=False), staging()),
    "QNN300": (
        staging(*BOTH, links={"libA.so": "../libA.so"}, dangling=frozenset({"libA.so"})),
        staging(*BOTH, links={"libA.so": "libB.so"}),
    ),
    "QNN309": (staging(), staging("libQnnHtp.so")),
    "QNN310": (staging("libQnnHtp.so", "libQnnSystem2.so"), staging(*BOTH)),
    "QNN311": (staging(*BOTH, "libQnnHtpStub.txt"), staging(*BOTH, PAIR[0])),
    "QNN312": (
        staging(*BOTH, "libQnnHtpV75Stub.so", "libQnnHtpV75Skel.so", soc=True),
        staging(*BOTH, *PAIR, soc=True),
    ),
    "QNN313": (staging(*BOTH, lowered=lowered(NEWER)), staging(*BOTH, lowered=lowered(OTHER))),
    "QNN314": (
        Family((file("libQnnA.so"), file("libQnnHtp.so", None))),
        Family((file("libQnnA.so"), file("libQnnLpaiSkel.so", None))),
    ),
    "QNN315": (
        staging(lowered=lowered(BUILD), runtime="2.37.1"),
        staging(lowered=lowered(BUILD), runtime="2.49.40"),
    ),
    "QNN316": (
        Family((*OLD_PAIR, file("libQnnSystem.so", BARE_STAMP))),
        Family((*OLD_PAIR, file("libQnnGpu.so", BARE_STAMP))),
    ),
    "QNN317": (
        Family((file(PAIR[0]),), is_staged=True),
        Family((file(PAIR[0]), skel("libQnnHtpV75Skel.so", 0x75)), is_staged=True),
    ),
    "QNN318": (proven_family(Genuine.FORGED), proven_family(Genuine.NOT_COVERED)),
    "QNN319": (
        proven_family(Genuine.NOT_COVERED, Checksum(1, 1)),
        proven_family(Genuine.NOT_COVERED, Checksum(1, 2)),
    ),
    "QNN320": (staging(*BOTH, files=SDK_FILES), staging(*BOTH, files=SDK_FILES[1:])),
    "QNN321": (staging(files=POINTERS), staging(files=(*POINTERS, file("libQnnHtp.so")))),
    "QNN322": (
        staging(*BOTH, lowered=lowered(None, defect=Defect.TRUNCATED, defect_why="is empty")),
        staging(*BOTH, lowered=lowered(None)),
    ),
    "QNN323": (
        staging(PAIR[0], lowered=lowered(None, targets=(Target("SM8650", 75, 8),))),
        staging(PAIR[0], lowered=lowered(None, targets=(Target("SM8750", 79, 8),))),
    ),
    "QNN324": (
        staging(soc=True, lowered=lowered(None, targets=(Target("SM8735", 79, 8),))),
        staging(soc=True, lowered=lowered(None, targets=(Target("UNKNOWN_SDM", 79, 8),))),
    ),
    "QNN325": (
        staging(*BOTH, files=(STUB_OF_LINUX, file("libcdsprpc.so.1", machine=EM_AARCH64))),
        staging(*BOTH, files=(STUB_OF_LINUX,)),
    ),
    "QNN326": (
        staging(*BOTH, lowered=lowered(None, misplaced="has a segment at byte 7")),
        staging(*BOTH, lowered=lowered(None)),
    ),
    "QNN401": (variables(""), variables("/sdk")),
    "QNN402": (variables("/sdk2"), variables("/sdk")),
    "QNN403": (variables("/other"), variables("/sdk/")),
    "QNN404": (variables("/sdk", entry("/sdk/lib")), variables("/sdk", OWN)),
    "QNN405": (
        variables("/sdk", entry("/a", file("libQnnB.so")), OWN),
        variables("/sdk", entry("/a", file("libc++.so.1")), OWN, entry("/b", file("libQnnB.so"))),
    ),
    "QNN406": (
        variables("/sdk", OWN, entry("/b", file("libQnnB.so", machine=EM_AARCH64))),
        variables("/sdk", OWN, entry("/b", file("libQnnB.so"))),
    ),
    "QNN407": (variables(SNPE_ROOT="/snpe"), variables(SNPE_ROOT="/sdk")),
    "QNN408": (on_path("/src", wheel=True), on_path("/src", wheel=False)),
    "QNN409": (
        on_path("/src2", wheel=False, checkout="/src/executorch"),
        on_path("/src", wheel=False, checkout="/src/executorch"),
    ),
    "QNN410": (
        variables(DSP_LIBRARY_PATH="/a", ADSP_LIBRARY_PATH="/b"),
        variables(DSP_LIBRARY_PATH="/a", ADSP_LIBRARY_PATH="/a"),
    ),
    "QNN411": (runtime((), Defect.EMPTY), runtime(("GLIBCXX_3.4.21",))),
    "QNN412": (dsp(ADSP_LIBRARY_PATH="/a:/b"), dsp(ADSP_LIBRARY_PATH="/a;/b")),
    "QNN414": (variables("sdk"), variables("/sdk")),
    "QNN415": (runtime(("GLIBCXX_3.4.20",)), runtime(("GLIBCXX_3.4.21",))),
    "QNN417": (runtime(("CXXABI_1.3",)), runtime(("GLIBCXX_3.4.21",))),
    "QNN416": (
        InstallationFacts("android-ndk", Path("/n"), (), "ANDROID_NDK_ROOT", "/m", is_same=False),
        InstallationFacts("qnn-sdk", Path("/n"), (), "QNN_SDK_ROOT", "/m", is_same=False),
    ),
    "QNN501": (python(error="no"), python()),
    "QNN502": (python(version=(3, 14, 0)), python(version=(3, 13, 9))),
    "QNN503": (having(torch=None), having()),
    "QNN504": (having(torch="2.4.1"), having(torch="2.5")),
    "QNN505": (having(executorch="1.4.0"), having(executorch="1.4.1")),
    "QNN506": (python(executorch=None), python()),
    "QNN507": (python(adaptors=()), python(adaptors=(), hidden=True)),
    "QNN516": (
        python(adaptors=(), installed="/elsewhere/executorch"),
        python(installed="/elsewhere/executorch"),
    ),
    "QNN517": (python(shadowed=(("torch", "/path/torch.py", "/site/torch"),)), python()),
    "QNN519": (cuda_torch(has_toolkit=False), cuda_torch(has_toolkit=True)),
    "QNN518": (
        within(Fitness(packages=("torch", "onnx")), python=PYTHON),
        within(Fitness(packages=("torch",)), python=PYTHON),
    ),
    "QNN508": (python(adaptor=None), python()),
    "QNN509": (
        adaptor(elf=elf(version_needs=(VersionNeed("l", ("GLIBC_2.37",)),))),
        adaptor(elf=elf(version_needs=(VersionNeed("l", ("GLIBC_2.36",)),))),
    ),
    "QNN510": (python(modules={"yaml": False}), python()),
    "QNN511": (
        python(distributions={"executorch": "1.2.0"}),
        python(distributions={"executorch": "1.2.0"}, flatc="/bin/flatc"),
    ),
    "QNN512": (adaptor(elf=None, defect=Defect.HTML), adaptor()),
    "QNN513": (adaptor(elf=elf(machine=EM_AARCH64)), adaptor()),
    "QNN514": (python(unmet=(("numpy", "1.26", ">=2"),)), python()),
    "QNN515": (python(lacking=("libexecutorch.so",)), python()),
    "QNN601": (ndk(revision=None), ndk()),
    "QNN602": (ndk(revision="25.9.9"), ndk(revision="26.0.1")),
    "QNN603": (ndk(revision="26.1.10909125"), ndk()),
    "QNN604": (ndk(has_toolchain_file=False), ndk()),
    "QNN605": (ndk(host_tags=("darwin-x86_64",)), ndk(host_tags=("darwin-x86_64", "linux-x86_64"))),
    "QNN606": (ndk(clang=ToolFacts("c", "/c", None, "no")), ndk(clang=None)),
    "QNN607": (ndk(api_levels=(29, 31)), ndk(api_levels=(29, 30))),
    "QNN608": (ndk(clang=None), ndk(clang=ToolFacts("c", "/c", None, "no"))),
    "QNN701": (checkout(is_directory=False), checkout()),
    "QNN702": (checkout(root=Path("/src/executorch2")), checkout()),
    "QNN703": (checkout(is_git=False), checkout()),
    "QNN704": (checkout(commit="a" * 39 + "b"), checkout()),
    "QNN705": (checkout(module("third-party/json", "missing")), checkout(JSON)),
    "QNN706": (
        checkout(JSON, module("third-party/json/deep", "missing")),
        checkout(JSON, module("third-party/json2/deep", "missing")),
    ),
    "QNN707": (
        checkout(module("third-party/json", "moved")),
        checkout(JSON, module("third-party/other", "moved")),
    ),
    "QNN708": (
        checkout(leftovers=((f"{FLATCC}/lib/libflatccrt.a", "x86-64"),)),
        checkout(leftovers=((f"{FLATCC}/bin/flatcc", "x86-64"),)),
    ),
    "QNN801": (device(state="offline"), device()),
    "QNN802": (device(soc="SM8650"), device(soc="sm8750")),
    "QNN803": (device(api_level=29), device(api_level=30)),
    "QNN804": (device(free_mb=499), device(free_mb=500)),
    "QNN805": (device(is_root=False), device(is_root=False, root=False)),
    "QNN806": (device(libraries={"l": OTHER.text}), device(libraries={"l": ""})),
    "QNN807": (device(align=4096), device(align=16384)),
    "QNN808": (within(devices=()), within(devices=(PHONE,))),
    "QNN810": (board(failure="no route"), board()),
    "QNN811": (board(nodes={}), board()),
    "QNN812": (board(nodes={"/dev/fastrpc-cdsp": False}), board()),
    "QNN813": (board(files=BOARD_FILES[2:]), board(files=BOARD_FILES[1:])),
    "QNN814": (board(files=BOARD_FILES[:1]), board(files=(*BOARD_FILES[:1], "/d/testsig-0x1.so"))),
    "QNN815": (board(files=BOARD_FILES[:2]), board()),
    "QNN816": (board(files=BOARD_FILES[:4]), board()),
    "QNN817": (board(daemons=("adsprpcd",)), board()),
    "QNN901": (laid(checkout="1.4.1"), laid(checkout="1.5.1+cpu")),
    "QNN902": (laid(headers="2.50"), laid(headers="2.49")),
    "QNN903": (laid(no_device="unknown custom config socModel 0"), laid(no_device="")),
    "QNN904": (tools("2.36.1"), tools("2.37.0.250724")),
    "QNN905": (tools("2.49.41"), tools("2.49.40")),
    "QNN906": (tools(hexagon="6.3.9", soc=81), tools(hexagon="6.4.0.2", soc=81)),
    "QNN907": (tools(compiler="8.8.06", soc=81), tools(compiler="19.0.07", soc=81)),
    "QNN908": (backed(version="2.38.9"), backed("gpu", "2.38.9")),
    "QNN909": (backed(is_there=False), backed()),
    "QNN910": (backed(no_backend="TuningMode must be enabled"), backed(no_backend="")),
}


def subjects_of(code: str) -> Iterator[Subjects[Any]]:
    for subjects in SUBJECTS:
        if code in {check.id for check in subjects.checks}:
            yield subjects


def describe(code: str, subject: object) -> Iterator[str]:
    """What a check saw: the subject, where, and each value that its texts name."""
    for check in (
        row for subjects in subjects_of(code) for row in subjects.checks if row.id == code
    ):
        texts = Formatter().parse(f"{check.row.what}{check.row.why}{check.row.fix}")
        names = sorted({name for _, name, _, _ in texts if name} - {"subject", "where"})
        for values in check.see(subject):
            pairs = [f"{name}={f'{{{name}}}'.format_map(values)}" for name in names]
            yield " | ".join([values["subject"], values["where"], *pairs])


def tell(rows: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """What a check tells of each thing, a line each; ``nothing`` where it sees no fault."""
    for code, subject in rows:
        assert code in PAIRS
        yield from (f"{code} {line}" for line in list(describe(code, subject)) or ["nothing"])


def read_snapshot(name: str) -> list[str]:
    return Path(__file__).with_name(name).read_text("utf-8").splitlines()
