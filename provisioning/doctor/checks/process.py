"""Check what determines which QNN a process loads: its environment variables, and the interpreter
that lowers models (its version, torch, executorch and the adaptor).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from provisioning.doctor.facts import (
    HOST_DIRECTORY,
    FileFacts,
    PathEntry,
    PythonFacts,
    VariableFacts,
)
from provisioning.doctor.fitness import PythonPolicy
from provisioning.doctor.registry import ENVIRONMENT, Case, Seen, Subjects, seen
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, EM_X86_64, MACHINE_NAMES, ElfFacts
from provisioning.versions import is_older

LIBCXX = ("libc++", "libunwind")
OF_DEVICES = (EM_AARCH64, EM_QDSP6)
RIVALS = ("QAIRT_SDK_ROOT", "QAIRT_ROOT", "SNPE_ROOT", "AISW_SDK_ROOT")
LIBSTDCXX = "libstdc++.so.6"
FAMILIES = ("GLIBCXX", "CXXABI", "GCC")
EMPTY_ENTRY = "an empty entry (the current directory)"


class Variables(NamedTuple):
    """The variables of a job, the SDK that they should point to, and whether QNN runs on
    the host.
    """

    facts: VariableFacts
    sdk_root: Path
    profile: str
    runs: bool = False

    @property
    def sdk_libraries(self) -> Path:
        """The directory that LD_LIBRARY_PATH should contain."""
        return self.sdk_root / HOST_DIRECTORY

    @property
    def root(self) -> str:
        """The value of QNN_SDK_ROOT; empty if it is not set."""
        return self.facts.values.get("QNN_SDK_ROOT", "")

    def seen(self) -> Seen:
        """Return a fault of the variables, with the values that the texts of their checks use."""
        return seen(
            "QNN_SDK_ROOT",
            self.root or "environment",
            root=self.sdk_root,
            profile=self.profile,
            wanted=self.sdk_libraries,
            library_path=self.facts.values.get("LD_LIBRARY_PATH", "(not set)"),
        )

    def is_wanted(self, entry: PathEntry) -> bool:
        """Return whether an entry of LD_LIBRARY_PATH is the SDK's directory."""
        return bool(entry.directory) and self.facts.is_same(entry.directory, self.sdk_libraries)


def find_variables(case: Case) -> Iterator[Variables]:
    """Yield the variables, if there is an SDK that they should point to."""
    facts = case.facts
    if facts.variables and facts.sdk and facts.sdk.markers:
        yield Variables(facts.variables, facts.sdk.root, facts.profile, case.runs_on_host)


VARIABLES = Subjects(find_variables, Variables.seen)


VARIABLES.when(
    QNN401=lambda variables: not variables.root,
    QNN402=lambda variables: variables.root not in variables.facts.roots_that_exist,
    QNN403=lambda variables: not variables.facts.is_same(variables.root, variables.sdk_root),
    QNN404=lambda variables: (
        variables.runs and not any(map(variables.is_wanted, variables.facts.library_path))
    ),
    QNN414=lambda variables: not Path(variables.root).is_absolute(),
)


@VARIABLES.check("QNN405")
def see_shadows(variables: Variables) -> Iterator[Seen]:
    """Find entries of LD_LIBRARY_PATH before the SDK's directory that contain a QNN library, or a
    library with the name of one in the SDK's directory.
    """
    path = variables.facts.library_path if variables.runs else ()
    before = list(takewhile(lambda entry: not variables.is_wanted(entry), path))
    sdk_names = {file.name for entry in path[len(before) :][:1] for file in entry.libraries}
    for entry in before:
        # The loader skips libraries for another machine, so they cannot shadow anything (QNN406
        # reports them).
        host = [file.name for file in entry.libraries if file.machine not in OF_DEVICES]
        # Other toolchains bring their libc++; it matters only if the SDK has one, too.
        if names := [name for name in host if name in sdk_names or not name.startswith(LIBCXX)]:
            where = entry.directory or EMPTY_ENTRY
            yield seen(
                "LD_LIBRARY_PATH", where, names=", ".join(names[:3]), wanted=variables.sdk_libraries
            )


@VARIABLES.check("QNN406")
def see_device_libraries(variables: Variables) -> Iterator[Seen]:
    """Report entries of LD_LIBRARY_PATH with libraries for a device, except the SDK's."""
    for entry in variables.facts.library_path:
        if variables.facts.is_same(entry.directory, variables.sdk_libraries):
            continue  # a foreign library in the SDK is reported by QNN212
        if names := [file.name for file in entry.libraries if file.machine in OF_DEVICES]:
            where = entry.directory or EMPTY_ENTRY
            yield seen("LD_LIBRARY_PATH", where, names=", ".join(names[:3]))


@VARIABLES.check("QNN410")
def see_hidden_path(variables: Variables) -> Iterator[Seen]:
    """Report that DSP_LIBRARY_PATH hides another value of ADSP_LIBRARY_PATH."""
    values = variables.facts.values
    hiding, hidden = values.get("DSP_LIBRARY_PATH"), values.get("ADSP_LIBRARY_PATH")
    # FastRPC reads ADSP_LIBRARY_PATH only if DSP_LIBRARY_PATH is not set.
    if hiding and hidden and hiding != hidden:
        yield seen("DSP_LIBRARY_PATH", hiding, wanted=hidden)


VARIABLES.each(
    QNN407=lambda variables: (
        seen(name, value)
        for name, value in variables.facts.values.items()
        if name in RIVALS and value and not variables.facts.is_same(value, variables.sdk_root)
    )
)


class Runtime(NamedTuple):
    """A libstdc++, libgcc_s or libatomic on the search path, and the highest required version of
    each family of symbols, with the library that needs it.
    """

    entry: str
    file: FileFacts
    needs: Mapping[str, tuple[tuple[int, ...], str]]

    def seen(self, **values: object) -> Seen:
        """Return a fault of the library, with the values that the texts of its checks use."""
        defect = self.file.defect.value if self.file.defect else ""
        return seen(self.file.name, self.entry, defect=defect, **values)


def find_runtimes(case: Case) -> Iterator[Runtime]:
    """Yield each libstdc++, libgcc_s or libatomic that this machine's loader would use instead of
    the system's.
    """
    facts = case.facts
    adaptor = facts.python.adaptor if facts.python else None
    users = [*case.sdk_files, *([adaptor] if adaptor else [])]
    elves = [(file.elf, file.name) for file in users if file.elf and file.machine == EM_X86_64]
    needs: dict[str, tuple[tuple[int, ...], str]] = {}
    for family in FAMILIES:
        for elf, name in elves:
            need = elf.highest_need(family)
            if need and (family not in needs or need > needs[family][0]):
                needs[family] = need, name
    taken: set[str] = set()
    for entry in facts.variables.library_path if facts.variables and case.runs_on_host else ():
        for file in entry.runtimes:
            # The loader takes the first on the path.
            if file.name not in taken and file.machine in {None, EM_X86_64}:
                taken.add(file.name)
                yield Runtime(entry.directory or EMPTY_ENTRY, file, needs)


RUNTIMES = Subjects(find_runtimes, Runtime.seen)


@RUNTIMES.check("QNN415")
def see_old_runtime(runtime: Runtime) -> Iterator[Seen]:
    """Report a library that lacks the symbol versions which the SDK or the adaptor need."""
    for family, (need, user) in runtime.needs.items():
        has = runtime.file.elf.highest_def(family) if runtime.file.elf else None
        if has and need > has:
            defined, needed = (".".join(map(str, version)) for version in (has, need))
            yield runtime.seen(family=family, found=defined, need=needed, user=user)


RUNTIMES.when(
    QNN417=lambda runtime: (
        runtime.file.name == LIBSTDCXX
        and runtime.file.elf
        and runtime.file.elf.highest_def("GLIBCXX") is None
    ),
    QNN411=lambda runtime: runtime.file.defect,
)


ENVIRONMENT.each(
    # FastRPC separates directories by ";": it takes a value with ":" as one name, and the skel is
    # not found (error 4000).
    QNN412=lambda case: (
        seen(name, value, joined=value.replace(":", ";"))
        for name, value in case.values.items()
        if name in {"ADSP_LIBRARY_PATH", "DSP_LIBRARY_PATH"} and ":" in value
    ),
    # An executorch on PYTHONPATH without an adaptor hides the installed one.
    QNN408=lambda case: (
        [seen("PYTHONPATH", entry) for entry in case.facts.variables.without_adaptor[:1]]
        if case.facts.variables and case.fitness.python
        else []
    ),
    QNN518=lambda case: (
        seen(name, case.facts.python.executable)
        for name in case.fitness.packages
        if case.facts.python and case.facts.python.distributions.get(name) is None
    ),
)


@ENVIRONMENT.check("QNN409")
def see_no_checkout(case: Case) -> Iterator[Seen]:
    """Find a checkout with a built adaptor whose parent directory is not on PYTHONPATH."""
    checkout, variables = case.facts.checkout, case.facts.variables
    if case.fitness.python or not variables or not checkout or not checkout.has_adaptor:
        return
    parent = checkout.root.parent
    is_importable = checkout.root.name == "executorch"
    if is_importable and str(parent) not in variables.executorch_on_path:
        where = case.values.get("PYTHONPATH", "(not set)")
        yield seen("PYTHONPATH", where, parent=parent)


QNN_WHEEL = "qnn-runtime"


class Interpreter(NamedTuple):
    """A Python interpreter, and the case (environment and requirements) that it belongs to."""

    facts: PythonFacts
    case: Case

    def seen(self, subject: str = "", where: object = "", **values: object) -> Seen:
        """Return a fault of the interpreter, with the values that the texts of all its
        checks use.
        """
        policy, place = self.policy, where or self.facts.executable
        defect = self.facts.adaptor.defect if self.facts.adaptor else None
        common_values = {
            "python": self.facts,
            "policy": policy,
            "pin": f"torch=={policy.torch} and executorch=={policy.executorch}",
            "names": ", ".join(Path(path).name for path in self.facts.adaptors),
            "directory": f"{self.facts.executorch}/backends/qualcomm/python",
            "host": MACHINE_NAMES[EM_X86_64],
            "defect": defect.value if defect else "unreadable",
        }
        return seen(subject, place, **common_values, **values)

    @property
    def policy(self) -> PythonPolicy:
        """The requirements of an interpreter."""
        return self.case.policy.python

    @property
    def is_hidden(self) -> bool:
        """Whether it imports executorch from a directory on PYTHONPATH."""
        variables, place = self.case.facts.variables, self.facts.executorch
        entries = variables.executorch_on_path if variables else ()
        return place is not None and any(Path(place).is_relative_to(entry) for entry in entries)

    @property
    def qnn(self) -> str:
        """The version of QNN's wheel. It is '' if another QNN or an overlay's adaptor is used;
        these are compared by the versions in their libraries.
        """
        sdk, is_wheel = self.case.facts.sdk, self.case.facts.sdk_name == QNN_WHEEL
        return (is_wheel and not self.facts.checkout and sdk and sdk.version) or ""

    @property
    def elf(self) -> ElfFacts | None:
        """The ELF facts of the adaptor for this Python."""
        return self.facts.adaptor.elf if self.facts.adaptor else None


PYTHON = Subjects(
    lambda case: (
        [Interpreter(case.facts.python, case)]
        if case.facts.python and not case.fitness.packages
        else []
    ),
    Interpreter.seen,
)


PYTHON.when(
    QNN501=lambda python: python.facts.error,
    QNN503=lambda python: python.facts.distributions.get("torch") is None,
    QNN506=lambda python: python.facts.executorch is None,
    QNN507=lambda python: not python.facts.adaptors and not python.is_hidden,  # QNN408 reports it
    # Three scripts of ExecuTorch name cpython-310, whatever the Python (pytorch/executorch#16310).
    QNN508=lambda python: python.facts.adaptors and python.facts.adaptor is None,
    QNN512=lambda python: python.facts.adaptor and python.elf is None,
    QNN513=lambda python: python.elf and python.elf.machine != EM_X86_64,
)


@PYTHON.check("QNN502")
def see_other_python(python: Interpreter) -> Iterator[Seen]:
    """Report a Python version outside the supported range."""
    version, policy = ".".join(map(str, python.facts.version)), python.policy
    if is_older(version, policy.minimum) or not is_older(version, policy.below):
        yield python.seen("Python", version=version)


@PYTHON.check("QNN504")
def see_old_torch(python: Interpreter) -> Iterator[Seen]:
    """Report a torch that is too old for ExecuTorch."""
    torch = python.facts.distributions.get("torch")
    if torch and is_older(torch, python.policy.torch_minimum):
        yield python.seen("torch", torch=torch)


@PYTHON.check("QNN505")
def see_unknown_pair(python: Interpreter) -> Iterator[Seen]:
    """Report versions of ExecuTorch, torch and QNN that are not listed as working together."""
    versions, qnn = python.facts.distributions, python.qnn
    executorch, torch = versions.get("executorch"), versions.get("torch")
    if not executorch or not torch or python.case.pairs.is_supported(executorch, torch, qnn):
        return
    near = python.case.pairs.find_nearest(executorch, torch, qnn)
    nearest = f"executorch=={near.executorch}, torch=={near.torch}, QNN {near.qnn}" if near else ""
    with_qnn = f" and the wheel of QNN {qnn}" if qnn else ""
    yield python.seen("torch", executorch=executorch, torch=torch, qnn=with_qnn, nearest=nearest)


@PYTHON.check("QNN519")
def see_cuda_torch(python: Interpreter) -> Iterator[Seen]:
    """Report a torch for CUDA, with which CMake needs a toolkit that the machine lacks."""
    is_build = python.case.fitness.headers
    if is_build and python.facts.torch_cuda and not python.case.facts.host.has_cuda:
        yield python.seen("torch")


@PYTHON.check("QNN516")
def see_hidden_by_folder(python: Interpreter) -> Iterator[Seen]:
    """Report that a folder called executorch is imported instead of the installed package."""
    facts = python.facts
    if not facts.installed or facts.adaptors or python.is_hidden or not facts.executorch:
        return
    if Path(facts.installed) != Path(facts.executorch):
        parent = Path(facts.executorch).parent
        pth = f" (it is listed in {', '.join(facts.pth)})" if facts.pth else ""
        yield python.seen("executorch", place=facts.executorch, parent=parent, pth=pth)


PYTHON.each(
    # ExecuTorch 1.3.1 and 1.4.1 import py-cpuinfo without requiring it, so that modules are looked
    # for, too, and not only requirements.
    QNN510=lambda python: (
        python.seen(python.policy.modules.get(module, module), module=module)
        for module, is_there in python.facts.modules.items()
        if not is_there
    ),
    QNN514=lambda python: (
        python.seen(name, found=installed, wanted=required)
        for name, installed, required in python.facts.unmet
    ),
    QNN517=lambda python: (
        python.seen(name, place=place, installed=installed, parent=Path(place).parent)
        for name, place, installed in python.facts.shadowed
    ),
)


@PYTHON.check("QNN515")
def see_lacking_libraries(python: Interpreter) -> Iterator[Seen]:
    """Report the libraries that the adaptor needs and the loader does not find."""
    where = python.facts.adaptor.path if python.facts.adaptor else ""
    for name in python.facts.lacking:
        yield python.seen(name, where)


@PYTHON.check("QNN509")
def see_newer_adaptor(python: Interpreter) -> Iterator[Seen]:
    """Report an adaptor that needs a newer glibc than the machine's."""
    adaptor, glibc = python.facts.adaptor, python.case.facts.host.glibc
    need = python.elf.highest_need("GLIBC") if python.elf else None
    text = ".".join(map(str, need or ()))
    if adaptor and glibc and is_older(glibc, text):
        yield python.seen(adaptor.name, adaptor.path, need=text, glibc=glibc)


@PYTHON.check("QNN511")
def see_no_flatc(python: Interpreter) -> Iterator[Seen]:
    """Report that flatc is missing, if this version of ExecuTorch needs it."""
    executorch = python.facts.distributions.get("executorch")
    # ExecuTorch 1.2.0 runs flatc, which its wheel installs into the environment's bin.
    is_old = executorch and is_older(executorch, python.policy.flatc_below)
    if is_old and python.facts.flatc is None:
        place = Path(python.facts.executable).parent
        yield python.seen("flatc", "PATH", executorch=executorch, bin=place)
