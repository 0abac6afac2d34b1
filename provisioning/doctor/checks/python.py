"""The interpreter that lowers: its version, torch, executorch and the adaptor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from provisioning.doctor.checks.finding import Finding
from provisioning.doctor.checks.fitness import PythonPolicy
from provisioning.doctor.checks.version import is_older, is_same
from provisioning.doctor.facts import PythonFacts

WHY_TAG = "a bare ModuleNotFoundError for PyQnnManagerAdaptor, although a file of it is there"


def judge_python(python: PythonFacts, policy: PythonPolicy, glibc: str | None) -> Iterator[Finding]:
    """Everything of one interpreter; ``glibc`` is the machine's."""
    version = ".".join(map(str, python.version))
    if python.error:
        yield Finding(
            "QNN501",
            "Python",
            f"the interpreter does not answer: {python.error}",
            python.executable,
            "nothing can be lowered with it",
            "give another with --python",
        )
        return
    if is_older(version, policy.minimum) or not is_older(version, policy.below):
        yield Finding(
            "QNN502",
            "Python",
            f"this is Python {version}, {policy.minimum} to below {policy.below} are supported",
            python.executable,
            "there is no wheel of ExecuTorch for it",
            "use Python 3.11 or 3.12",
        )
        return
    yield from _judge_torch(python, policy)
    yield from _judge_executorch(python, policy, glibc)


def _judge_torch(python: PythonFacts, policy: PythonPolicy) -> Iterator[Finding]:
    torch = python.distributions.get("torch")
    executorch = python.distributions.get("executorch")
    pin = f"install torch=={policy.torch} and executorch=={policy.executorch}"
    if torch is None:
        yield Finding(
            "QNN503",
            "torch",
            "torch is not installed",
            python.executable,
            "nothing can be exported without it",
            pin,
        )
    elif is_older(torch, policy.torch_minimum):
        yield Finding(
            "QNN504",
            "torch",
            f"torch {torch} is older than {policy.torch_minimum}",
            python.executable,
            "torch.export of that version does not give what ExecuTorch reads",
            pin,
        )
    elif executorch and not _is_known_pair(executorch, torch, policy):
        is_pin = is_same(executorch, policy.executorch)
        yield Finding(
            "QNN505",
            "torch",
            f"executorch {executorch} with torch {torch} was not seen to work",
            python.executable,
            "its C++ extensions are linked against one torch: 'undefined symbol' at import",
            pin if not is_pin else f"install torch=={policy.torch}",
        )


def _is_known_pair(executorch: str, torch: str, policy: PythonPolicy) -> bool:
    pairs = [(policy.executorch, policy.torch), *policy.pairs]
    return any(is_same(executorch, left) and is_same(torch, right) for left, right in pairs)


def _judge_executorch(
    python: PythonFacts, policy: PythonPolicy, glibc: str | None
) -> Iterator[Finding]:
    version = python.distributions.get("executorch")
    if python.executorch is None:
        yield Finding(
            "QNN506",
            "executorch",
            "executorch is not installed",
            python.executable,
            "nothing can be lowered without it",
            f"install executorch=={policy.executorch}",
        )
        return
    yield from _judge_adaptor(python, glibc)
    missing = [name for name, there in python.modules.items() if not there]
    for name in missing:
        distribution = policy.modules.get(name, name)
        yield Finding(
            "QNN510",
            distribution,
            f"{distribution} is not installed",
            python.executable,
            f"'No module named {name}': ExecuTorch imports it, some wheels forget to ask for it",
            f"install {distribution}",
        )
    if python.flatc is None and version and is_older(version, policy.flatc_below):
        yield Finding(
            "QNN511",
            "flatc",
            f"flatc is not on PATH, executorch {version} runs it",
            "PATH",
            "'No such file or directory: flatc' when a program is written",
            "put the environment's bin directory on PATH",
        )


def _judge_adaptor(python: PythonFacts, glibc: str | None) -> Iterator[Finding]:
    where = f"{python.executorch}/backends/qualcomm/python"
    reinstall = "install the executorch wheel for this Python, or build target aot for it"
    if not python.adaptors:
        yield Finding(
            "QNN507",
            "PyQnnManagerAdaptor",
            "executorch is here without its QNN adaptor",
            where,
            "'No module named PyQnnManagerAdaptor' when a model is lowered",
            f"{reinstall} (only the x86_64 Linux wheels have it)",
        )
    elif python.adaptor is None:
        names = ", ".join(Path(path).name for path in python.adaptors)
        yield Finding(
            "QNN508",
            "PyQnnManagerAdaptor",
            f"the QNN adaptor is for another Python: {names}, not {python.tag}",
            where,
            WHY_TAG,
            reinstall,
        )
    else:
        need = python.adaptor.elf.highest_need("GLIBC") if python.adaptor.elf else None
        text = ".".join(map(str, need or ()))
        if python.adaptor.elf is None:
            defect = python.adaptor.defect
            yield Finding(
                "QNN512",
                python.adaptor.name,
                f"the QNN adaptor is {defect.value if defect else 'unreadable'}",
                str(python.adaptor.path),
                "'invalid ELF header' when a model is lowered",
                reinstall,
            )
        elif need and glibc and is_older(glibc, text):
            yield Finding(
                "QNN509",
                python.adaptor.name,
                f"the QNN adaptor needs GLIBC {text}, the machine has {glibc}",
                str(python.adaptor.path),
                f'"version `GLIBC_{text}\' not found" when a model is lowered',
                "build it on this machine, or use the wheel's",
            )
