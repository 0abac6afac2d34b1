"""Try graphs in workers that may die: the batch continues after the graph that killed its
worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from ci.cases import pool
from ci.faults.known import CRASHED, REFUSED, Frontend
from ci.faults.results import LATE, UNJUDGED, Item, Result
from ci.models.schemes import Scheme

MOST_TEXT = 300
BUNDLE = {"onnx": 8, "executorch": 16}  # graphs that are compiled at a time
FIRST_S, EACH_S = 60.0, 20.0  # time limits for the first and each further graph of a batch


@dataclass(frozen=True)
class TrialJob:
    """Tries graphs in a worker, ``bundle`` at a time; a bundle that is refused as a whole is
    halved. Results are added to ``journal``, so that they survive the worker: one line each, in
    hexadecimal MessagePack, since JSON has no infinity."""

    items: tuple[Item, ...]
    frontend: Frontend
    scheme: Scheme
    soc: str
    options: Mapping[str, str]
    journal: Path
    bundle: int

    def __call__(self) -> list[Result]:
        """Return the results, in the order of the items."""
        found = []
        with self.journal.open("ab", buffering=0) as journal:
            for start in range(0, len(self.items), self.bundle):
                before = time.process_time()
                results = self.run_bundle(self.items[start : start + self.bundle])
                share = (time.process_time() - before) / len(results)
                for one in results:
                    found.append(msgspec.structs.replace(one, cpu_s=share))
                    journal.write(msgspec.msgpack.encode(found[-1]).hex().encode() + b"\n")
        return found

    def run_bundle(self, items: Sequence[Item]) -> list[Result]:
        """Return the results of graphs, compiled together if possible."""
        try:
            return self.run_together(items)
        except Exception as error:  # noqa: BLE001 - whatever a tool makes of a strange graph
            if len(items) > 1:
                half = len(items) // 2
                return [*self.run_bundle(items[:half]), *self.run_bundle(items[half:])]
            cause = error.__cause__ or error
            text = " ".join(f"{type(cause).__name__}: {cause}".split())[:MOST_TEXT]
            # An error before QNN gets the graph is not the compiler's fault.
            end = REFUSED if str(error) == "QNN" else UNJUDGED
            return [Result(items[0].text, items[0].seed, end, why=text)]

    def run_together(self, items: Sequence[Item]) -> list[Result]:
        """Compile and run graphs as one program. Raises the front end's errors."""
        if self.frontend == "onnx":
            from ci.faults.onnx_runner import run_items

            return run_items(items, self.scheme, self.options)
        from ci.faults.executorch_runner import run_modules

        return run_modules(items, self.scheme, self.soc)


@dataclass(frozen=True)
class Trial:
    """Tries graphs through a front end in a scheme. ``scratch`` is an empty directory."""

    workers: pool.Pool
    frontend: Frontend
    scheme: Scheme
    soc: str
    options: Mapping[str, str]
    scratch: Path

    def run(self, items: Iterable[Item], bundle: int = 0) -> Iterator[Result]:
        """Yield how each graph ends, in order. If a worker dies or times out while it tries a graph
        alone, that is the graph's result; the others are tried again without it."""
        left = list(items)
        bundle = bundle or BUNDLE[self.frontend]
        while left:
            journal = self.scratch / f"journal-{next(NUMBERS)}-{threading.get_ident()}"
            job = TrialJob(
                tuple(left),
                self.frontend,
                self.scheme,
                self.soc,
                self.options,
                journal,
                min(bundle, len(left)),
            )
            log = journal.with_suffix(".log")
            ended = self.workers.run(job, log, FIRST_S + EACH_S * len(left))
            done = read_journal(journal)
            journal.unlink(missing_ok=True)
            log.unlink(missing_ok=True)
            yield from done
            left = left[len(done) :]
            if not left:
                return
            if not ended.failure:
                raise RuntimeError("a worker left graphs out")
            if job.bundle > 1:  # find the culprit in its bundle: try its graphs one by one
                suspects, left = left[: job.bundle], left[job.bundle :]
                yield from self.run(suspects, bundle=1)
            else:
                end = LATE if pool.LATE in ended.failure else CRASHED
                yield Result(left[0].text, left[0].seed, end, why=ended.failure[:MOST_TEXT])
                left = left[1:]


NUMBERS = count()
RESULTS = msgspec.msgpack.Decoder(Result)  # made here: see CONVERTING in manifest/reader.py


def read_journal(path: Path) -> list[Result]:
    """Return the results that a worker wrote, without a line that it did not finish."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return [RESULTS.decode(bytes.fromhex(line.decode())) for line in lines]
