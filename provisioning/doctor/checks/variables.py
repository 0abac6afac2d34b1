"""Environment variables: which QNN a process would really load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.doctor.facts import PathEntry, VariableFacts
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6

HOST_DIRECTORY = "lib/x86_64-linux-clang"
LIBCXX = ("libc++", "libunwind")
RIVALS = ("QAIRT_SDK_ROOT", "QAIRT_ROOT", "SNPE_ROOT", "AISW_SDK_ROOT")
COMPOSE = "`qnn-ci env PROFILE` prints the lines that set them all"


def judge_variables(variables: VariableFacts, sdk_root: Path, *, runs: bool) -> Iterator[Finding]:
    """``runs`` is whether the profile loads QNN on the host, and so needs the search path."""
    yield from _judge_root(variables, sdk_root)
    yield from _judge_rivals(variables, sdk_root)
    yield from _judge_device_libraries(variables, sdk_root)
    if runs:
        yield from _judge_library_path(variables, sdk_root)


def _judge_root(variables: VariableFacts, sdk_root: Path) -> Iterator[Finding]:
    root = variables.values.get("QNN_SDK_ROOT", "")
    if not root:
        yield Finding(
            "QNN401",
            "QNN_SDK_ROOT",
            "QNN_SDK_ROOT is not set",
            "environment",
            "ExecuTorch then downloads an SDK of its own choice, at import or inside cmake",
            f"set it to {sdk_root}; {COMPOSE}",
        )
    elif root not in variables.roots_that_exist:
        yield Finding(
            "QNN402",
            "QNN_SDK_ROOT",
            "QNN_SDK_ROOT is not a directory",
            root,
            "a missing SDK configures with success and fails when it compiles",
            f"set it to {sdk_root}",
        )
    elif not variables.is_same(root, sdk_root):
        yield Finding(
            "QNN403",
            "QNN_SDK_ROOT",
            "QNN_SDK_ROOT is another SDK than the one examined",
            root,
            "what was examined is not what would be used",
            f"set it to {sdk_root}; {COMPOSE}",
        )


def _judge_rivals(variables: VariableFacts, sdk_root: Path) -> Iterator[Finding]:
    for name in RIVALS:
        value = variables.values.get(name)
        if value and not variables.is_same(value, sdk_root):
            yield Finding(
                "QNN407",
                name,
                f"{name} points at another SDK",
                value,
                "Qualcomm's converters and envsetup scripts prefer it to QNN_SDK_ROOT",
                f"unset {name}",
                Severity.WARNING,
            )


def _judge_library_path(variables: VariableFacts, sdk_root: Path) -> Iterator[Finding]:
    wanted = sdk_root / HOST_DIRECTORY
    before: list[PathEntry] = []
    for entry in variables.library_path:
        if entry.directory and variables.is_same(entry.directory, wanted):
            yield from _judge_shadows(before, entry)
            return
        before.append(entry)
    yield Finding(
        "QNN404",
        "LD_LIBRARY_PATH",
        f"LD_LIBRARY_PATH lacks {wanted}",
        variables.values.get("LD_LIBRARY_PATH", "(not set)"),
        "'libQnnHtp.so: cannot open shared object file', or another libQnnHtp.so is found",
        f"put {wanted} first, before Python starts; {COMPOSE}",
    )


def _judge_shadows(before: list[PathEntry], wanted: PathEntry) -> Iterator[Finding]:
    """Libraries of QNN, or of the same name, that the loader finds before those of the SDK."""
    own = {file.name for file in wanted.libraries}
    for entry in before:
        host = [file.name for file in entry.libraries if not _is_for_device(file.elf)]
        names = [name for name in host if name in own or not name.startswith(LIBCXX)]
        if names:
            yield Finding(
                "QNN405",
                "LD_LIBRARY_PATH",
                f"{', '.join(names[:3])} of another place come first",
                entry.directory or "(an empty entry: the current directory)",
                "two builds of QNN mix in one process: error 14001 or a crash",
                f"take it out, or put {wanted.directory} before it",
            )


def _judge_device_libraries(variables: VariableFacts, sdk_root: Path) -> Iterator[Finding]:
    for entry in variables.library_path:
        if variables.is_same(entry.directory, sdk_root / HOST_DIRECTORY):
            continue  # a foreign library in the SDK is told by QNN212
        names = [file.name for file in entry.libraries if _is_for_device(file.elf)]
        if names:
            yield Finding(
                "QNN406",
                "LD_LIBRARY_PATH",
                f"libraries of a device are on the host's search path: {', '.join(names[:3])}",
                entry.directory or "(an empty entry: the current directory)",
                "'wrong ELF class' or 'cannot open shared object file' for a file that is there",
                "take it out; LD_LIBRARY_PATH for a device is set on the device",
            )


def _is_for_device(elf: object) -> bool:
    return getattr(elf, "machine", None) in (EM_AARCH64, EM_QDSP6)


def judge_python_path(
    variables: VariableFacts, checkout: Path | None, *, uses_wheel: bool
) -> Iterator[Finding]:
    """PYTHONPATH: nothing for the wheel, the checkout's parent for a checkout."""
    others = variables.executorch_on_path
    if uses_wheel and others:
        yield Finding(
            "QNN408",
            "PYTHONPATH",
            "an executorch on PYTHONPATH hides the installed one",
            others[0],
            "a checkout has no compiled adaptor: 'No module named PyQnnManagerAdaptor'",
            "take it out of PYTHONPATH, or build the adaptor into that checkout",
        )
    elif checkout and not uses_wheel and str(checkout.parent) not in others:
        yield Finding(
            "QNN409",
            "PYTHONPATH",
            "PYTHONPATH lacks the directory that holds the checkout",
            variables.values.get("PYTHONPATH", "(not set)"),
            "Python then imports the installed executorch, not the one that was built",
            f"export PYTHONPATH={checkout.parent}",
            Severity.WARNING,
        )
