"""Check the interpreter that lowers models: its version, torch, executorch and the adaptor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from provisioning.doctor.facts import PythonFacts
from provisioning.doctor.fitness import PythonPolicy
from provisioning.doctor.registry import Case, Seen, Subjects, seen
from provisioning.elf.facts import EM_X86_64, MACHINE_NAMES, ElfFacts
from provisioning.versions import is_older

QNN_WHEEL = "qnn-runtime"


class Interpreter(NamedTuple):
    """A Python interpreter, and the case (environment and requirements) that it belongs to."""

    facts: PythonFacts
    case: Case

    def seen(self, subject: str = "", where: object = "", **values: object) -> Seen:
        policy, place = self.policy, where or self.facts.executable
        defect = self.facts.adaptor.defect if self.facts.adaptor else None
        known = {
            "python": self.facts,
            "policy": policy,
            "pin": f"torch=={policy.torch} and executorch=={policy.executorch}",
            "names": ", ".join(Path(path).name for path in self.facts.adaptors),
            "directory": f"{self.facts.executorch}/backends/qualcomm/python",
            "host": MACHINE_NAMES[EM_X86_64],
            "defect": defect.value if defect else "unreadable",
        }
        return seen(subject, place, **known, **values)

    @property
    def policy(self) -> PythonPolicy:
        return self.case.policy.python

    @property
    def is_hidden(self) -> bool:
        """Whether it imports executorch from a directory on PYTHONPATH."""
        variables, place = self.case.facts.variables, self.facts.executorch
        entries = variables.executorch_on_path if variables else ()
        return place is not None and any(Path(place).is_relative_to(one) for one in entries)

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
    lambda case: [Interpreter(case.facts.python, case)] if case.facts.python else [],
    Interpreter.seen,
)


PYTHON.when(
    QNN501=lambda python: python.facts.error,
    QNN503=lambda python: python.facts.distributions.get("torch") is None,
    QNN506=lambda python: python.facts.executorch is None,
    QNN507=lambda python: not python.facts.adaptors and not python.is_hidden,  # QNN408 reports it
    QNN508=lambda python: python.facts.adaptors and python.facts.adaptor is None,
    QNN512=lambda python: python.facts.adaptor and python.elf is None,
    QNN513=lambda python: python.elf and python.elf.machine != EM_X86_64,
)


@PYTHON.check("QNN502")
def see_other_python(python: Interpreter) -> Iterator[Seen]:
    version, policy = ".".join(map(str, python.facts.version)), python.policy
    if is_older(version, policy.minimum) or not is_older(version, policy.below):
        yield python.seen("Python", version=version)


@PYTHON.check("QNN504")
def see_old_torch(python: Interpreter) -> Iterator[Seen]:
    torch = python.facts.distributions.get("torch")
    if torch and is_older(torch, python.policy.torch_minimum):
        yield python.seen("torch", torch=torch)


@PYTHON.check("QNN505")
def see_unknown_pair(python: Interpreter) -> Iterator[Seen]:
    found, qnn = python.facts.distributions, python.qnn
    executorch, torch = found.get("executorch"), found.get("torch")
    if not executorch or not torch or python.case.pairs.is_supported(executorch, torch, qnn):
        return
    near = python.case.pairs.find_nearest(executorch, torch, qnn)
    nearest = f"executorch=={near.executorch}, torch=={near.torch}, QNN {near.qnn}" if near else ""
    with_qnn = f" and the wheel of QNN {qnn}" if qnn else ""
    yield python.seen("torch", executorch=executorch, torch=torch, qnn=with_qnn, nearest=nearest)


@PYTHON.check("QNN516")
def see_hidden_by_folder(python: Interpreter) -> Iterator[Seen]:
    facts = python.facts
    if not facts.installed or facts.adaptors or python.is_hidden or not facts.executorch:
        return
    if Path(facts.installed) != Path(facts.executorch):
        parent = Path(facts.executorch).parent
        pth = f" (it is listed in {', '.join(facts.pth)})" if facts.pth else ""
        yield python.seen("executorch", place=facts.executorch, parent=parent, pth=pth)


@PYTHON.check("QNN517")
def see_hidden_packages(python: Interpreter) -> Iterator[Seen]:
    for name, place, installed in python.facts.shadowed:
        yield python.seen(name, place=place, installed=installed, parent=Path(place).parent)


@PYTHON.check("QNN515")
def see_lone_adaptor(python: Interpreter) -> Iterator[Seen]:
    for name in python.facts.lacking:
        yield python.seen(name, python.facts.adaptor.path if python.facts.adaptor else "")


@PYTHON.check("QNN514")
def see_unmet(python: Interpreter) -> Iterator[Seen]:
    for name, found, wanted in python.facts.unmet:
        yield python.seen(name, found=found, wanted=wanted)


@PYTHON.check("QNN509")
def see_newer_adaptor(python: Interpreter) -> Iterator[Seen]:
    adaptor, glibc = python.facts.adaptor, python.case.facts.host.glibc
    need = python.elf.highest_need("GLIBC") if python.elf else None
    text = ".".join(map(str, need or ()))
    if adaptor and glibc and is_older(glibc, text):
        yield python.seen(adaptor.name, adaptor.path, need=text, glibc=glibc)


@PYTHON.check("QNN510")
def see_no_module(python: Interpreter) -> Iterator[Seen]:
    for module, is_there in python.facts.modules.items():
        if not is_there:
            yield python.seen(python.policy.modules.get(module, module), module=module)


@PYTHON.check("QNN511")
def see_no_flatc(python: Interpreter) -> Iterator[Seen]:
    executorch = python.facts.distributions.get("executorch")
    is_old = executorch and is_older(executorch, python.policy.flatc_below)
    if is_old and python.facts.flatc is None:
        place = Path(python.facts.executable).parent
        yield python.seen("flatc", "PATH", executorch=executorch, bin=place)
