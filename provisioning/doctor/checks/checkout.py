"""A checkout of ExecuTorch before it is built: CMake says these late or never."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.doctor.facts import CheckoutFacts, SubmoduleFacts
from provisioning.elf.facts import EM_X86_64, MACHINE_NAMES

UPDATE = "git submodule update --init --recursive"


def judge_checkout(
    checkout: CheckoutFacts, pin: str | None, needed: Collection[str], machine: str
) -> Iterator[Finding]:
    """``needed`` are the submodules of the targets, ``machine`` the name of the target's, such as
    aarch64.
    """
    where = str(checkout.root)
    if not checkout.is_directory:
        yield Finding(
            "QNN701",
            "checkout",
            "the checkout of ExecuTorch is not a directory",
            where,
            "there is nothing to build",
            "correct --root executorch=DIR, or provision executorch",
        )
        return
    if checkout.root.name != "executorch":
        yield Finding(
            "QNN702",
            "checkout",
            f"the checkout is named {checkout.root.name}, not executorch",
            where,
            "its includes are <executorch/...>, found from the directory above: 'file not found'",
            "rename the directory to executorch",
        )
    if not checkout.is_git:
        yield Finding(
            "QNN703",
            "checkout",
            "git knows no commit of the checkout",
            where,
            "neither its commit nor its submodules can be compared with anything",
            "clone it with git; an archive of a release has no submodules in it",
        )
        return
    yield from _judge_commit(checkout, pin)
    yield from _judge_submodules(checkout, needed)
    yield from _judge_leftovers(checkout, machine)


def _judge_commit(checkout: CheckoutFacts, pin: str | None) -> Iterator[Finding]:
    if pin and checkout.commit != pin:
        yield Finding(
            "QNN704",
            "checkout",
            f"the checkout is at {(checkout.commit or '')[:12]}, the pin is {pin[:12]}",
            str(checkout.root),
            "what is built is not what was tested",
            f"git checkout {pin[:12]} && {UPDATE}",
            Severity.WARNING,
        )


def _judge_submodules(checkout: CheckoutFacts, needed: Collection[str]) -> Iterator[Finding]:
    known = {module.path for module in checkout.submodules}
    unknown = [SubmoduleFacts(path, "missing") for path in needed if path not in known]
    for module in (*checkout.submodules, *unknown):
        owner = next((path for path in needed if _is_within(module.path, path)), None)
        if owner is None or module.state == "ok":
            continue
        nested = f" inside {owner}" if module.path != owner else ""
        if module.state == "missing":
            yield Finding(
                "QNN705" if module.path == owner else "QNN706",
                module.path,
                f"submodule {module.path}{nested} is not there",
                f"{checkout.root}/{module.path}",
                "CMake names the first group of missing ones only, or stops at a target without it",
                f"{UPDATE} {module.path}",
            )
        else:
            yield Finding(
                "QNN707",
                module.path,
                f"submodule {module.path} is at {module.commit[:12]}, not at the recorded commit",
                f"{checkout.root}/{module.path}",
                "headers and sources of different commits compile, and differ at run time",
                f"{UPDATE} {module.path}",
            )


def _is_within(path: str, owner: str) -> bool:
    return path == owner or path.startswith(owner + "/")


def _judge_leftovers(checkout: CheckoutFacts, machine: str) -> Iterator[Finding]:
    """flatcc's compiler runs on the host, its runtime library is linked into the target."""
    for path, has in checkout.leftovers:
        wanted = machine if path.endswith(".a") else MACHINE_NAMES[EM_X86_64]
        if has not in (wanted, "unknown"):
            yield Finding(
                "QNN708",
                "flatcc",
                f"flatcc's source tree holds outputs of an earlier build for {has}",
                path,
                f"the build takes it: 'is incompatible with' {wanted}, or 'Exec format error'",
                "make -C third-party/flatcc clean, or use one work tree a target",
            )
