"""Index the facts by file: which targets list a file, on which side and in which configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from ci.parity.facts import (
    BuckTarget,
    CMakeFacts,
    CMakeTarget,
    Configuration,
    ListEntry,
    ParityFacts,
    Word,
    closure,
    collect,
    directory_of,
    group,
    is_inside,
    is_source,
)
from ci.parity.policy import ParityPolicy, matches

Target = TypeVar("Target", BuckTarget, CMakeTarget)

BUILT = (Configuration.HOST, Configuration.ANDROID)
# Rules that list files without compiling them.
NOT_COMPILING = (
    "filegroup", "genrule", "export_file", "export_files", "python_", "command_alias", "sh_",
    "buck_filegroup", "buck_genrule", "buck_sh_test", "fb_xplat_resource", "alias", "zip_file",
)  # fmt: skip
FORWARDING = ("filegroup", "export_file", "buck_filegroup")
HOST_KEYS = ("linux", "x86", "macos", "windows", "host")
ANDROID_KEYS = ("android",)


@dataclass(frozen=True)
class Use(Generic[Target]):
    """A use of a file by a target of one side (for CMake, in one configuration)."""

    target: Target
    entry: ListEntry


def is_compiling(target: BuckTarget) -> bool:
    """Return whether a rule passes its sources to a compiler."""
    return not target.kind.startswith(NOT_COMPILING)


def is_native(target: BuckTarget) -> bool:
    """Return whether a rule is for C++: by its kind, or because it compiles a source of C or
    C++."""
    words = ("cxx", "cpp", "apple_library", "pybind")
    return any(word in target.kind for word in words) or (
        is_compiling(target) and any(is_source(entry.path) for entry in target.srcs)
    )


def name_of(word: Word) -> str:
    """Return the name of the macro that a define sets."""
    return word.text.partition("=")[0]


def area_of(path: str) -> str:
    """Return the first two folders of a path, such as ``backends/qualcomm``."""
    return "/".join(path.split("/")[:2])


def folders_above(path: str) -> list[str]:
    """Return the folders above a path, starting with the outermost."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


def topmost_of(path: str, packages: Iterable[str]) -> str:
    """Return the outermost folder above ``path`` that is not one of ``packages`` and has none of
    them below it. If there is none, return the innermost folder.
    """
    unsuitable = {folder for package in packages for folder in folders_above(f"{package}/")}
    return next((f for f in folders_above(path) if f not in unsuitable), directory_of(path))


class Index:
    """The facts of both sides by file, and the relations that follow from files that both list."""

    def __init__(self, facts: ParityFacts, policy: ParityPolicy) -> None:
        self.facts = facts
        self.not_evaluated = facts.not_evaluated
        self.policy = policy
        self.labelled = group((target.label, target) for target in facts.buck.targets)
        # If a Python and a native target have the same name, CMake has the native one.
        self.by_label = {label: rows[0] for label, rows in self.labelled.items()}
        self.packages = frozenset(facts.buck.packages)
        self.by_package = group((target.package, target) for target in facts.buck.targets)
        self.native_packages = {t.package for t in facts.buck.targets if is_native(t)}
        self._reading: dict[str, set[str]] = {}

    @cached_property
    def sides(self) -> dict[Configuration, CMakeFacts]:
        """The facts of CMake in each configuration. A configuration that was not read has none."""
        none = {configuration: CMakeFacts(configuration) for configuration in Configuration}
        return none | {facts.configuration: facts for facts in self.facts.cmake}

    @cached_property
    def built(self) -> tuple[CMakeTarget, ...]:
        """The CMake targets in the configurations of both platforms. A target that both platforms
        have occurs twice.
        """
        return tuple(t for c in BUILT for t in self.sides[c].targets)

    @cached_property
    def everywhere(self) -> set[str]:
        """The files that CMake compiles in any configuration."""
        return {path for uses in self.cmake_uses.values() for path in uses}

    @cached_property
    def imported(self) -> set[str]:
        """The Python files that another file imports."""
        return {path for files in self.facts.imports.values() for path in files}

    @cached_property
    def includers(self) -> dict[str, list[str]]:
        """For each header, the files that include it."""
        rows = self.facts.headers.items()
        return group((header, path) for path, headers in rows for header in headers)

    @cached_property
    def exporting(self) -> dict[str, set[str]]:
        """For the label of each Buck target, the macros that the target exports."""
        words = ((t.label, word) for t in self.by_label.values() for word in t.defines)
        return collect((label, name_of(word)) for label, word in words if word.exported)

    def files_that_read(self, macro: str) -> set[str]:
        """Return the files that mention a macro, and those that include such files."""
        # Kept, because it is needed again and again: with this and the edges of targets, comparing
        # main takes 2.9 s of CPU instead of 7.5 s.
        if macro not in self._reading:
            mentioning = self.facts.macros.get(macro, ())
            readers = closure(mentioning, lambda path: self.includers.get(path, ()))
            self._reading[macro] = readers
        return self._reading[macro]

    @cached_property
    def buck_uses(self) -> dict[str, list[Use[BuckTarget]]]:
        """For each file that Buck compiles, the targets that use it."""
        compiling = filter(is_compiling, self.facts.buck.targets)
        uses = (Use(target, entry) for target in compiling for entry in self.resolved(target.srcs))
        return group((use.entry.path, use) for use in uses)

    @cached_property
    def buck_mentions(self) -> set[str]:
        """All files that some Buck target lists, compiled or not."""
        entries = (entry for t in self.facts.buck.targets for entry in self.resolved(t.entries))
        return {*self.buck_uses, *(entry.path for entry in entries)}

    @cached_property
    def cmake_uses(self) -> dict[Configuration, dict[str, list[Use[CMakeTarget]]]]:
        """For each configuration and file that CMake compiles, the targets that use it."""
        uses_of = {}
        for configuration, facts in self.sides.items():
            uses = (Use(target, entry) for target in facts.targets for entry in target.srcs)
            uses_of[configuration] = group((use.entry.path, use) for use in uses)
        return uses_of

    @cached_property
    def cmake_mentions(self) -> set[str]:
        """All files that CMake lists or mentions in some configuration, compiled or not."""
        mentioned = set(self.everywhere)
        for facts in self.facts.cmake:
            mentioned.update(facts.mentioned)
            mentioned.update(e.path for target in facts.targets for e in target.headers)
        return mentioned

    @cached_property
    def cmake_targets(self) -> list[CMakeTarget]:
        """The CMake targets of all configurations."""
        return [target for facts in self.facts.cmake for target in facts.targets]

    @cached_property
    def not_in_product(self) -> set[str]:
        """Files of the product that CMake compiles only into test programs and examples."""
        product = {
            path
            for target in self.cmake_targets
            if not self.is_test_program(target)
            for path in target.sources
            if self.is_example(path) or not self.is_example(f"{target.directory}/")
        }
        return {path for path in self.everywhere - product if not self.policy.is_test(path)}

    def is_example(self, path: str) -> bool:
        """Return whether a path is in a folder that is mostly built by CMake only."""
        return matches(path, self.policy.without_buck)

    def is_test_program(self, target: CMakeTarget) -> bool:
        """Return whether a CMake target is a test, even if it compiles product files too."""
        return "test" in target.name.lower() and any(map(self.policy.is_test, target.sources))

    @cached_property
    def tested_areas(self) -> set[str]:
        """The first two folders of every directory in which CMake builds tests."""
        named = (target for target in self.cmake_targets if "test" in target.name.lower())
        places = [f"{target.directory}/x" for target in named]
        return {area_of(path) for path in (*places, *self.everywhere) if self.policy.is_test(path)}

    def resolved(self, entries: Iterable[ListEntry], depth: int = 3) -> Iterator[ListEntry]:
        """Yield the entries, with labels of filegroups and exported files replaced by the files."""
        for entry in entries:
            if not entry.path.startswith("//"):
                yield entry
                continue
            target = self.by_label.get(entry.path)
            if target is not None and target.kind in FORWARDING and depth:
                srcs = target.srcs
                if not srcs and target.kind == "export_file":  # it passes on the file of its name
                    path = f"{target.package}/{target.name}".lstrip("/")
                    srcs = (ListEntry(path, target.place),)
                for inner in self.resolved(srcs, depth - 1):
                    yield ListEntry(inner.path, entry.place, entry.condition)

    def copied(self, target: BuckTarget) -> Iterator[str]:
        """Yield the originals of sources that are copies made by a rule, such as a.cpp for
        //p:rule[a.cpp].
        """
        read: dict[str, list[str]] = {}
        for entry in target.srcs:
            label, _, name = entry.path.removesuffix("]").partition("[")
            rule = self.by_label.get(label)
            if rule is not None and label not in read:
                read[label] = [each.path for each in self.resolved(rule.srcs)]
            originals = [path for path in read.get(label, ()) if f"/{path}".endswith(f"/{name}")]
            yield from originals if len(originals) == 1 else ()

    # Configurations of the Buck side

    def configurations(self, use: Use[BuckTarget]) -> tuple[Configuration, ...]:
        """Return the configurations in which Buck uses a file: according to the select() key of the
        entry, otherwise according to the target.
        """
        condition = use.entry.condition.lower()
        if any(key in condition for key in ANDROID_KEYS):
            return (Configuration.ANDROID,)
        if any(key in condition for key in HOST_KEYS):
            return (Configuration.HOST,)
        return self.target_configurations(use.target)

    def target_configurations(self, target: BuckTarget) -> tuple[Configuration, ...]:
        """Return only HOST or only ANDROID for a target that is a variant for that platform, and
        both for any other target.
        """
        # The variants of backends/qualcomm/runtime come from a loop over include_aot_qnn_lib, not
        # from select(), so only their names show the platform.
        if matches(target.name, self.policy.android_only):
            return (Configuration.ANDROID,)
        if self.android_twin(target.label) or matches(target.name, self.policy.host_only):
            return (Configuration.HOST,)
        return BUILT

    def android_twin(self, label: str) -> str:
        """Return the label of a target's variant for Android, or "" if there is none."""
        package, _, name = label.partition(":")
        for pattern in self.policy.android_only:
            if pattern.startswith("*"):
                twin = f"{package}:{pattern.replace('*', name)}"
                if twin in self.by_label:
                    return twin
        return ""

    # Areas

    def package_of(self, path: str) -> str | None:
        """Return the innermost Buck package that contains ``path``, or None if there is none."""
        folder = directory_of(path)
        while folder not in self.packages:
            if not folder:
                return None
            folder = directory_of(folder)
        return folder

    def files_of(self, target: BuckTarget) -> set[str]:
        """Return the files that a Buck target lists, directly or through labels."""
        return {entry.path for entry in self.resolved(target.entries)}

    def is_outside(self, path: str) -> bool:
        """Return whether a file is in a submodule, or excluded by the policy."""
        return is_inside(path, self.facts.submodules) or self.policy.is_excluded(path)

    def exists(self, path: str) -> bool:
        """Return whether the tree has a file."""
        return path in self.facts.files

    @cached_property
    def shared_files(self) -> set[str]:
        """The sources that both sides compile."""
        return {path for path in self.buck_uses.keys() & self.everywhere if is_source(path)}
