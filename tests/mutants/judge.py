"""``python -m tests.mutants.judge JOBS SIZE SEED TEST...``, in mutmut's directory ``mutants``.

One pytest collects the tests. A first fork runs all of them without a mutant, and notes which
functions each reaches. Then each mutant has a fork of its own, which runs the tests that reach its
function, quickest first, up to the first that fails. Verdicts are kept in mutmut's .meta files,
each as soon as it is known.

Controls come before: under a mutant that does not exist all tests pass, in this order too; and
where every function raises, tests fail.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.utils.format_utils import mangled_name_from_mutant_name

from provisioning.files import write_whole
from tests.mutants.first_run import FirstRun, follow, run_first, run_test
from tests.mutants.forks import FAILS, Task, run_tasks
from tests.mutants.packages import Sample
from tests.mutants.verdicts import Verdicts

JUDGED = "judged"  # as FAILS, what a line of the output begins with
# Other tracebacks would parse the whole module of mutants for each failure.
OPTIONS = ("-q", "--rootdir=.", "-s", "--tb=native", "-pno:cacheprovider", "-pno:xdist")
FIRST_RUN, FAILURE, KILLERS = "first-run.json", "failure.txt", "killers"
CONTROL = "__mutmut_0"  # mutmut counts from 1
CONTROLS = 8
FAILED, NO_TESTS, TIMED_OUT = 1, 33, 36  # as mutmut has them
CODES = {-signal.SIGALRM: TIMED_OUT, -signal.SIGPROF: TIMED_OUT}


class Judge:
    """A pytest plugin in the place of pytest's loop over the tests. ``done`` tells its success."""

    def __init__(self, jobs: int, sample: Sample) -> None:
        self.jobs, self.sample = jobs, sample
        self.done = False
        self.items: dict[str, pytest.Item] = {}
        self.first = FirstRun()
        self.place = Path.cwd()  # tests change it
        (self.place / KILLERS).mkdir(exist_ok=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or not session.items:
            return True  # pytest says why
        gc.collect()
        gc.freeze()
        self.items = {item.nodeid: item for item in session.items}
        self.done = self.run_first() and self.run_controls() and self.judge(Verdicts(self.place))
        return True

    def run_first(self) -> bool:
        """Whether all tests pass without a mutant."""
        code = run_alone(partial(run_first, list(self.items.values()), self.place / FIRST_RUN))
        if code:
            print(f"the tests without a mutant ended with {code}")
            return False
        self.first = FirstRun.read(self.place / FIRST_RUN)
        for name, report in self.first.failures.items():
            print(f"{report}\n{FAILS} {name}")
        for item in self.items.values():
            item.add_marker(pytest.mark.timeout(0), append=False)  # FirstRun.limit is stricter
        return not self.first.failures

    def run_controls(self) -> bool:
        """Whether tests fail with a mutant, and only then, for functions of few and many tests."""
        functions = sorted(self.first.reached, key=self.first.cost_s)
        chosen = functions[:: max(1, len(functions) // CONTROLS)]
        failure = self.place / FAILURE
        failure.write_text(f"{FAILS} a test that did not end", "utf-8")
        codes = self.run_all({f"{function}{CONTROL}": function for function in chosen})
        if any(code for _, code in codes):
            print(failure.read_text("utf-8"))
            return False
        if not any(run_alone(partial(self.run_mutant, one, "fail")) for one in chosen):
            print("no test fails where each function of the package raises")
            return False
        return True

    def judge(self, verdicts: Verdicts) -> bool:
        """Judge the mutants of the sample that have no verdict."""
        names = verdicts.list_open(self.sample)
        functions = {name: mangled_name_from_mutant_name(name) for name in names}
        with closing(self.run_all(functions)) as ended:
            for count, (name, code) in enumerate(ended, 1):
                verdicts.keep(name, CODES.get(code, code))
                print(f"{JUDGED} {count} of {len(names)}", flush=True)
        return True

    def run_all(self, functions: Mapping[str, str]) -> Generator[tuple[str, int]]:
        """Run mutants of these functions, each in a fork: exit codes as they end."""
        tasks = [Task(name, partial(self.run_mutant, functions[name], name)) for name in functions]
        return run_tasks(tasks, self.jobs)

    def run_mutant(self, function: str, mutant: str) -> int:
        """Run the tests of a function up to the first that fails."""
        killers = self.place / KILLERS / function
        known = set(killers.read_text("utf-8").splitlines()) if killers.exists() else set[str]()
        # What found another fault of the function is likely to find this one.
        names = sorted(self.first.tests_of(function), key=lambda name: name not in known)
        if not names:
            return NO_TESTS
        set_mutant_under_test(mutant)
        for item, following in follow([self.items[name] for name in names]):
            self.first.limit(item.nodeid)
            report = run_test(item, following)
            if not report:
                continue
            if mutant.endswith(CONTROL):
                write_whole(self.place / FAILURE, f"{report}\n{FAILS} {item.nodeid}")
            elif item.nodeid not in known:
                with killers.open("a", encoding="utf-8") as file:
                    file.write(f"{item.nodeid}\n")
            return FAILED
        return 0


def run_alone(run: Callable[[], int]) -> int:
    """Run one thing in a fork."""
    [(_, code)] = run_tasks([Task("", run)], 1)
    return code


def main(jobs: int, sample: Sample, tests: list[str]) -> int:
    """Judge; 1 if that was not possible, and why on stdout."""
    config()  # it is read once, from the directory that is current then: a test may change it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    judge = Judge(jobs, sample)
    pytest.main([*OPTIONS, *tests], plugins=[judge])
    return 0 if judge.done else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Sample(*map(int, sys.argv[2:4])), sys.argv[4:]))
