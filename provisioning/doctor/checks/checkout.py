"""A checkout of ExecuTorch before it is built: CMake says these late or never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import CheckoutFacts, SubmoduleFacts
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, MACHINE_NAMES

UPDATE = "git -C {root} submodule update --init --recursive"


class Checkout(NamedTuple):
    """A checkout in its case."""

    facts: CheckoutFacts
    case: Case

    def seen(self, subject: str = "checkout", where: object = "", **values: object) -> Seen:
        root = self.facts.root
        return seen(subject, where or root, root=root, **values)

    def submodules(self, state: str) -> Iterator[tuple[SubmoduleFacts, str]]:
        """Each needed submodule, or one within, that is in this state, and the needed one."""
        needed = self.case.facts.submodules
        known = {module.path for module in self.facts.submodules}
        unknown = [SubmoduleFacts(path, "missing") for path in needed if path not in known]
        for module in (*self.facts.submodules, *unknown):
            within = (path for path in needed if _is_within(module.path, path))
            owner = next(within, None)
            if owner and module.state == state:
                yield module, owner


def _is_within(path: str, owner: str) -> bool:
    return path == owner or path.startswith(owner + "/")


CHECKOUTS = Subjects(
    lambda case: [Checkout(case.facts.checkout, case)] if case.facts.checkout else []
)


@CHECKOUTS.check(
    "QNN701",
    "the checkout of ExecuTorch is not a directory",
    "there is nothing to build",
    "correct --root executorch=DIR, or provision executorch",
)
def see_no_directory(checkout: Checkout) -> Iterator[Seen]:
    if not checkout.facts.is_directory:
        yield checkout.seen()


@CHECKOUTS.check(
    "QNN702",
    "the checkout is named {name}, not executorch",
    "its includes are <executorch/...>, found from the directory above: 'file not found'",
    "rename the directory to executorch",
    after=("QNN701",),
)
def see_other_name(checkout: Checkout) -> Iterator[Seen]:
    if checkout.facts.root.name != "executorch":
        yield checkout.seen(name=checkout.facts.root.name)


@CHECKOUTS.check(
    "QNN703",
    "git knows no commit of the checkout",
    "neither its commit nor its submodules can be compared with anything",
    "clone it with git; an archive of a release has no submodules in it",
    after=("QNN701",),
)
def see_no_git(checkout: Checkout) -> Iterator[Seen]:
    if not checkout.facts.is_git:
        yield checkout.seen()


@CHECKOUTS.check(
    "QNN704",
    "the checkout is at {commit}, the pin is {pin}",
    "what is built is not what was tested",
    f"git -C {{root}} checkout {{pin}} && {UPDATE}",
    after=("QNN703",),
    severity=Severity.WARNING,
)
def see_other_commit(checkout: Checkout) -> Iterator[Seen]:
    commit = checkout.facts.commit or ""
    pin = checkout.case.facts.pins.get("executorch-commit", "")
    if pin and commit != pin:
        yield checkout.seen(commit=commit[:12], pin=pin[:12])


@CHECKOUTS.check(
    "QNN705",
    "submodule {subject} is not there",
    "CMake names the first group of missing ones only, or stops at a target without it",
    f"{UPDATE} {{subject}}",
    after=("QNN703",),
)
def see_no_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("missing"):
        if module.path == owner:
            yield checkout.seen(module.path, f"{checkout.facts.root}/{module.path}")


@CHECKOUTS.check(
    "QNN706",
    "submodule {subject} inside {owner} is not there",
    "CMake stops at a target without it",
    f"{UPDATE} {{owner}}",
    after=("QNN703",),
)
def see_no_nested_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("missing"):
        if module.path != owner:
            where = f"{checkout.facts.root}/{module.path}"
            yield checkout.seen(module.path, where, owner=owner)


@CHECKOUTS.check(
    "QNN707",
    "submodule {subject} is at {commit}, not at the recorded commit",
    "headers and sources of different commits compile, and differ at run time",
    f"{UPDATE} --force {{owner}}",
    after=("QNN703",),
)
def see_moved_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("moved"):
        where = f"{checkout.facts.root}/{module.path}"
        yield checkout.seen(module.path, where, owner=owner, commit=module.commit[:12])


@CHECKOUTS.check(
    "QNN708",
    "flatcc's source tree holds outputs of an earlier build for {machine}",
    "the build takes it: 'is incompatible with' {wanted}, or 'Exec format error'",
    "remove {where}, or use one work tree a target",
    after=("QNN703",),
)
def see_leftovers(checkout: Checkout) -> Iterator[Seen]:
    """flatcc's compiler runs on the host, its runtime library is linked into the target."""
    target = EM_X86_64 if checkout.case.runs_on_host else EM_AARCH64
    for path, machine in checkout.facts.leftovers:
        wanted = MACHINE_NAMES[target if path.endswith(".a") else EM_X86_64]
        if machine not in (wanted, "unknown"):
            yield checkout.seen("flatcc", path, machine=machine, wanted=wanted)
