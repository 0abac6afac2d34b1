"""Run one CMakeLists.txt statically, with its subdirectories and all files that it includes.

If a condition is unknown, all its branches are taken, and the variables that they set are merged.
The numbers of steps, nested files and iterations are limited. ``Interpreter.not_evaluated`` lists
what was not evaluated.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, TypeAlias

from ci.parity.cmake.blocks import Argument, Block, CMakeSyntaxError, Command, Item, Node
from ci.parity.cmake.conditions import Answer, Operand, Scope, decide
from ci.parity.cmake.state import (
    PLATFORM_NAMES,
    ROOT,
    Call,
    Flow,
    LimitError,
    Routine,
    Sources,
    Targets,
    Variables,
    root_variables,
)
from ci.parity.cmake.values import (
    Value,
    expand,
    is_unknown,
    merge_value,
    split_list,
    split_values,
    unknown,
)
from ci.parity.facts import Configuration, NotEvaluated, Place

# Without these limits, a file in a pull request that is nested too deeply costs its whole side and
# five minutes, instead of one finding with its line.
MOST_STEPS = 100_000
MOST_DEPTH = 60
MOST_TURNS = 2000
Table: TypeAlias = MutableMapping[str, "Value | None"]
Branch: TypeAlias = "tuple[frozenset[str], list[Node]]"
LIST_FILE = "CMakeLists.txt"
NO_VALUES = (None, ("",))
TOO_DEEP = "blocks are nested too deeply"
# Commands that do something even without arguments.
WITHOUT_WORDS = {"return", "break", "continue", "include_guard"}


class Interpreter:
    """Runs list files. ``commands`` maps each supported command to a function.

    ``optional`` maps words that branches added to variables to the conditions of the branches.
    ``libraries`` maps the unknown result of each find_library() call to the name of the library.
    """

    def __init__(
        self,
        sources: Sources,
        configuration: Configuration,
        commands: dict[str, Callable[[Interpreter, Call], Flow | None]],
    ) -> None:
        self.sources = sources
        self.configuration = configuration
        self.commands = commands
        self.targets = Targets()
        self.routines: dict[str, Routine] = {}
        self.open_names = set(PLATFORM_NAMES)
        self.read: set[str] = set()
        self.guarded: set[str] = set()
        self.globbed: dict[str, Place] = {}
        self.optional: dict[str, set[frozenset[str]]] = {}
        self.not_evaluated: dict[tuple[str, str], NotEvaluated] = {}
        self.libraries: dict[str, str] = {}
        self.steps = 0
        self.scope = Variables()
        self.path = ""
        self.directory = ""
        self.stack: tuple[str, ...] = ()
        self.branch: tuple[int, ...] = ()
        self.entered: tuple[int, ...] = ()  # the branch of the add_subdirectory() call
        self.conditions: frozenset[str] = frozenset()
        self.hidden: dict[str, Value | None] = {}
        self._branches = 0

    # Variables

    def lookup(self, kind: str, name: str) -> Value:
        """Return the value that ``${name}`` expands to: empty for an unset variable, unknown for an
        environment variable.
        """
        if kind == "ENV":
            return unknown(f"ENV{{{name}}}")
        if name == "CMAKE_CURRENT_LIST_DIR":
            return (f"{ROOT}/{posixpath.dirname(self.path)}".rstrip("/"),)
        if name == "CMAKE_CURRENT_LIST_FILE":
            return (f"{ROOT}/{self.path}",)
        value = self.scope.get(name)
        return ("",) if value is None else value

    def get(self, name: str) -> str:
        """Return the first alternative of a variable's value, or "" if the variable is unset."""
        return self.lookup("", name)[0]

    def set(self, name: str, value: Value | None, *, parent: bool = False) -> None:
        """Set a variable, or unset it if ``value`` is None.

        ``parent`` selects the caller's scope instead of the current one. The outermost scope has
        none, so then nothing is set.
        """
        if parent and len(self.scope.maps) == 1:
            return
        scope = self.scope.parents if parent else self.scope
        if parent and self.branch:
            value = merge_value(None, scope.get(name), value)
        scope.maps[0][name] = value

    def expand(self, argument: Argument) -> Value:
        """Return all possible values of an argument, before lists are split."""
        if argument.literal:
            return (argument.text,)
        return expand(argument.text, self.lookup)

    def items(self, arguments: Sequence[Argument]) -> tuple[Item, ...]:
        """Return the words that the arguments expand to. Each possible value becomes a separate
        word.
        """
        items: list[Item] = []
        for argument in arguments:
            values = self.expand(argument)
            words = values if argument.quoted else split_values(values)
            items += [Item(word, argument.line) for word in words]
        return tuple(items)

    # Reporting

    def place(self, line: int) -> Place:
        """Return the place of a line of the current file."""
        return Place(self.path, line)

    def note_unread(
        self, line: int, reason: str, folder: str | None = None, *, is_broken: bool = False
    ) -> None:
        """Report something that could not be evaluated. A repeated report is ignored.

        ``folder`` is the directory that is unknown as a result.
        """
        row = NotEvaluated("cmake", self.place(line), reason, folder, is_broken)
        self.not_evaluated.setdefault((self.path, reason), row)

    def note_broken(self, line: int, reason: str) -> None:
        """Report a list file that cannot be run, which leaves the current directory incomplete."""
        self.note_unread(line, reason, self.directory, is_broken=True)

    # Files

    def run_root(self, directory: str) -> None:
        """Run the top-level CMakeLists.txt in ``directory``, which is relative to the tree's
        root."""
        root_variable = self.sources.tree.layout.root_variable
        self.scope.maps[0].update(root_variables(self.configuration, directory, root_variable))
        self.directory = directory
        self._run_directory(0)

    def _run_directory(self, line: int) -> None:
        """Run the CMakeLists.txt of the current directory. If the run exceeds a limit, it is ended
        for this directory only.
        """
        path, steps = posixpath.join(self.directory, LIST_FILE), self.steps
        try:
            self.run_file(path, line)
        except (LimitError, RecursionError) as error:
            self.steps = steps  # the other directories keep their share of the limit
            with self._within(path=path):
                self.note_broken(0, str(error) if isinstance(error, LimitError) else TOO_DEEP)

    def run_file(self, path: str, line: int) -> None:
        """Run a list file in the current scope. Syntax errors and cycles are reported. Raises
        LimitError."""
        if path in self.stack:
            chain = " -> ".join([*self.stack[self.stack.index(path) :], path])
            self.note_broken(line, f"list files include each other: {chain}")
            return
        if len(self.stack) > MOST_DEPTH:
            raise LimitError(f"list files are nested more than {MOST_DEPTH} levels deep")
        nodes = self.sources.nodes(path)
        self.read.add(path)
        with self._within(path=path, stack=(*self.stack, path)):
            if isinstance(nodes, CMakeSyntaxError):
                self.note_broken(nodes.line, nodes.reason)
            else:
                self.run(nodes)

    def add_directory(self, directory: str, line: int) -> None:
        """Run the CMakeLists.txt of a sub-directory in a new scope."""
        source = f"{ROOT}/{directory}"
        variables: dict[str, Value | None] = {
            "CMAKE_CURRENT_SOURCE_DIR": (source,),
            "CMAKE_CURRENT_BINARY_DIR": (source.replace(ROOT, "/build", 1),),
        }
        scope = self.scope.new_child(variables)
        with self._within(scope=scope, directory=directory, entered=self.branch):
            self._run_directory(line)

    @contextmanager
    def _within(self, **state: Any) -> Iterator[None]:
        """Set the attributes in ``state`` for the body of a with statement, and restore them
        afterwards.
        """
        outer = {name: getattr(self, name) for name in state}
        vars(self).update(state)
        try:
            yield
        finally:
            vars(self).update(outer)

    # Control flow

    def run(self, nodes: Sequence[Node]) -> Flow | None:
        """Run commands in order, until one of them, such as return() or break(), leaves the
        sequence. Raises LimitError.
        """
        for node in nodes:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise LimitError(f"the evaluation was stopped after {MOST_STEPS} commands")
            flow = self._run_block(node) if isinstance(node, Block) else self._run_command(node)
            if flow is not None:
                return flow
        return None

    def _run_block(self, block: Block) -> Flow | None:
        name = block.head.name
        if name == "if":
            return self._run_if(block)
        if name == "foreach":
            return self._run_foreach(block)
        if name == "block":
            self.note_unread(block.head.line, "block() was run in the enclosing scope")
            return self.run(block.body)
        if name == "while":
            return self._run_while(block)
        words = [item.text for item in self.items(block.head.arguments)]
        if words:
            self.routines[words[0].lower()] = Routine(block, words[1:], self.path)
        return None

    def _run_while(self, block: Block) -> Flow | None:
        """Run the body of while() once if it is certainly run. The variables that it sets become
        unknown.
        """
        # No list file of ExecuTorch from 1.0 to main has a while(), so its values are not computed.
        if not self._decide(block.head):
            return None
        self.note_unread(block.head.line, "while() is not evaluated")
        before = self.scope.maps[0]
        self._run_branches([(frozenset(), block.body)])
        for name, value in self.scope.maps[0].items():
            if value is not before.get(name):
                self.set(name, unknown("while()"))
        return None

    def _run_command(self, command: Command) -> Flow | None:
        routine = self.routines.get(command.name)
        handler = self.commands.get(command.name)
        if routine is None and handler is None:
            return None
        call = Call(command, self.items(command.arguments))
        if routine is not None:
            return self._run_routine(routine, call)
        if handler is None or not (call.items or command.name in WITHOUT_WORDS):
            return None
        return handler(self, call)

    def _run_routine(self, routine: Routine, call: Call) -> Flow | None:
        if len(self.stack) > MOST_DEPTH:
            raise LimitError(f"{call.command.name}() is nested more than {MOST_DEPTH} levels deep")
        bound = bind_parameters(routine, call.words)
        stack = (*self.stack, f"{call.command.name}()")
        if routine.block.head.name == "function":  # a macro runs in its caller's scope
            scope = self.scope.new_child(bound)
            with self._within(scope=scope, hidden={}, path=routine.path, stack=stack):
                self.run(routine.block.body)
            return None
        table = self.scope.maps[0]
        saved = {name: table[name] for name in bound if name in table}
        hidden = self.hidden | {name: self.scope.get(name) for name in bound}
        table.update(bound)
        with self._within(hidden=hidden, path=routine.path, stack=stack):
            flow = self.run(routine.block.body)
        for name in bound:
            self.scope.maps[0].pop(name, None)
        self.scope.maps[0].update(saved)
        return flow

    def _run_if(self, block: Block) -> Flow | None:
        taken: list[Branch] = []
        failed: frozenset[str] = frozenset()
        for head, body in [(block.head, block.body), *block.branches]:
            answer = True if head.name == "else" else self._decide(head)
            if answer is False:
                continue
            if answer and not taken:
                # The target in a TARGET term may exist only with some option.
                terms = {term for term in conditions_of(head) if term.startswith("TARGET ")}
                with self._within(conditions=self.conditions | terms):
                    return self.run(body)
            if answer:
                return self._run_branches([*taken, (failed, body)])
            taken.append((failed | conditions_of(head), body))
            failed |= refusals_of(head)
        return self._run_branches([*taken, (failed, [])]) if taken else None

    def _run_branches(self, branches: list[Branch]) -> Flow | None:
        """Run each branch from the same state, and merge the variables that they set."""
        before = Variables(dict(self.scope.maps[0]), *self.scope.maps[1:])
        merged: Table | None = None
        flows = set()
        for conditions, body in branches:
            self._branches += 1
            branch, around = (*self.branch, self._branches), self.conditions | conditions
            self.scope.maps[0] = dict(before.maps[0])
            with self._within(branch=branch, conditions=around):
                flows.add(self.run(body))
            after = self.scope.maps[0]
            self._note_optional(before, after, around)
            if merged is None:
                merged = after
                continue
            merged, half_set = merge_tables(before, merged, after)
            self.open_names |= half_set
        self.scope.maps[0] = merged if merged is not None else before.maps[0]
        return flows.pop() if len(flows) == 1 else None

    def _note_optional(self, before: Variables, after: Table, conditions: frozenset[str]) -> None:
        """Record under which conditions a branch added words to variables. ``before`` are the
        variables of all scopes before the branch.
        """
        scope_before = before.maps[0]
        for name, value in after.items() if after != scope_before else ():
            if value and value is not scope_before.get(name):
                words_before = {
                    word for text in before.get(name) or () for word in split_list(text)
                }
                words = {word for text in value for word in split_list(text)}
                for word in words - words_before:
                    self.optional.setdefault(word, set()).add(conditions)

    def _decide(self, head: Command) -> Answer:
        operands: list[Operand] = []
        for argument in head.arguments:
            values = self.expand(argument)
            parts = values if argument.quoted else tuple(p for v in values for p in split_list(v))
            if len(values) == 1 and not argument.quoted:
                operands.extend(Operand((part,), quoted=False) for part in parts)
            else:
                operands.append(Operand(parts or ("",), argument.quoted))
        scope = Scope(
            # A macro's parameters are text, not variables.
            variable=Variables(self.hidden, *self.scope.maps).get,
            is_open=self._is_open,
            has_target=self.targets.has,
            has_path=lambda path: self.relative(path) in self.sources.tree.files,
        )
        return decide(operands, scope)

    def _is_open(self, name: str) -> bool:
        """Return whether a variable can be either true or false.

        This is possible for options, and for variables that a find command sets or that only some
        branches set. In the configuration ANY, it is possible for platform variables, too.
        """
        is_known = name in PLATFORM_NAMES and not any(map(is_unknown, self.scope.get(name) or ()))
        return name in self.open_names and not is_known

    def _run_foreach(self, block: Block) -> Flow | None:
        names, rows = self._foreach_rows(block)
        before = {name: self.scope.maps[0].get(name) for name in names}
        if len(rows) > MOST_TURNS:
            self.note_unread(block.head.line, f"foreach() has more than {MOST_TURNS} items")
        flow = None
        for row in rows[:MOST_TURNS]:
            words = zip(names, row, strict=False)
            self.scope.maps[0].update({name: (word,) for name, word in words})
            flow = self.run(block.body)
            if flow in {Flow.RETURN, Flow.BREAK}:
                break
        self.scope.maps[0].update(before)
        return flow if flow is Flow.RETURN else None

    def _foreach_rows(self, block: Block) -> tuple[list[str], list[tuple[str, ...]]]:
        words = [item.text for item in self.items(block.head.arguments)]
        name, words_after = (words[0], words[1:]) if words else ("", [])
        # No list file of ExecuTorch from 1.0 to main has foreach(RANGE), so it is not computed.
        if words_after[:1] == ["RANGE"]:
            return [name], [unknown(f"foreach({name} RANGE)")]
        if "IN" in words_after and "ZIP_LISTS" in words_after:
            at = words_after.index("ZIP_LISTS")
            lists = [self._list_of(word) for word in words_after[at + 1 :]]
            names = [name, *words_after[: words_after.index("IN")]]
            if len(names) == 1:
                names = [f"{name}_{index}" for index in range(len(lists))]
            return names, list(zip_longest(*lists, fillvalue=""))
        elements: list[str] = []
        mode = ""
        for word in words_after[1:] if words_after[:1] == ["IN"] else words_after:
            if words_after[0] == "IN" and word in {"LISTS", "ITEMS"}:
                mode = word
            else:
                elements.extend(self._list_of(word) if mode == "LISTS" else [word])
        return [name], [(word,) for word in elements]

    def _list_of(self, name: str) -> list[str]:
        values = self.scope.get(name) or ()
        parts = [part for value in values for part in split_list(value)]
        return list(dict.fromkeys(parts)) if len(values) > 1 else parts

    # Paths

    def absolute(self, text: str) -> str:
        """Return the normalized path of ``text``, which may be relative to the current
        directory."""
        base = f"{ROOT}/{self.directory}"
        return posixpath.normpath(posixpath.join(base, text))

    def relative(self, text: str) -> str | None:
        """Return the path of ``text`` from the tree's root, or None if it is outside of the
        tree."""
        path = self.absolute(text)
        if path == ROOT:
            return ""
        return path[len(ROOT) + 1 :] if path.startswith(ROOT + "/") else None


def conditions_of(head: Command) -> frozenset[str]:
    """Return the terms that are true in the branch that starts with ``head``. A condition with OR
    or parentheses is a single term.
    """
    words = [argument.text for argument in head.arguments]
    if {"OR", "(", ")"} & set(words):
        return frozenset({" ".join(words)})
    terms = " ".join(words).split(" AND ")
    return frozenset(terms)


def refusals_of(head: Command) -> frozenset[str]:
    """Return the terms that are true if the branch that starts with ``head`` is not taken."""
    terms = conditions_of(head)
    text = " AND ".join(sorted(terms))
    single = len(terms) == 1 and not {"OR", "(", ")"} & set(text.split())
    return frozenset(
        {text.removeprefix("NOT ") if single and text[:4] == "NOT " else f"NOT {text}"}
    )


def bind_parameters(routine: Routine, words: list[str]) -> dict[str, Value | None]:
    """Return the variables that are set in a function or macro when it is called: its parameters,
    ARGV, ARGN, ARGC, and ARGV0 and so on.
    """
    bound: dict[str, Value | None] = {
        name: (word,) for name, word in zip(routine.parameters, words, strict=False)
    }
    bound["ARGC"] = (str(len(words)),)
    bound["ARGV"] = (";".join(words),)
    bound["ARGN"] = (";".join(words[len(routine.parameters) :]),)
    bound.update({f"ARGV{index}": (word,) for index, word in enumerate(words)})
    return bound


def merge_tables(before: Table, left: Table, right: Table) -> tuple[Table, set[str]]:
    """Merge the variables of two branches that could both be taken.

    Return the merged table, and the names that only one of the branches set to a value. An if() on
    such a name can go either way. In a branch that does not set a variable, the variable has its
    value from ``before``.
    """
    if left == right:
        return dict(left), set()
    merged, half_set = dict(left), set()
    for name in left.keys() | right.keys():
        if name in left and name in right and left[name] is right[name]:
            continue
        old = before.get(name)
        first, second = left.get(name, old), right.get(name, old)
        if first != second or name not in left:
            merged[name] = merge_value(old, first, second)
        is_half = (first in NO_VALUES) != (second in NO_VALUES)
        if is_half and left.get(name) != right.get(name):
            half_set.add(name)
    return merged, half_set
