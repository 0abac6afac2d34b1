"""``fuzz``: run generated graphs, compare their outputs with a prediction, and shrink each
fault."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec

from ci.cases.spec import match_socs
from ci.faults.graph import parse_graph
from ci.faults.known import Frontend, read_faults
from ci.faults.render import render_coverage, render_markdown, render_searches
from ci.faults.results import UNTRIED, Finding, Item
from ci.faults.trial import Trial
from ci.models.schemes import Scheme
from ci.models.suite import DEFAULT_SOC
from ci.report.claim import claim_reports
from ci.report.export import check_session
from ci.verbs.lanes import litert
from ci.verbs.options import (
    FORMER_RUNTIMES,
    MOST,
    add_option,
    add_options,
    choose_runtime,
    refuse_options,
    require_effect,
)
from ci.verbs.trials import FRONTENDS, LANES, choose_schemes, open_bench
from provisioning.artifacts import choice
from provisioning.console.caller import shown_path
from provisioning.console.command import FILE, FLAG, HOW, Outcome, between
from provisioning.console.progress import Progress
from provisioning.documents import read_user_file
from provisioning.errors import ExitCode, UsageError
from provisioning.files import write_whole

MINUTES, SESSION = 10.0, "fuzz"
SOURCES = ("both", "blocks", "random")
LIMIT_BYTES, MOST_NAME = 1 << 20, 60
# What has an effect if a graph is tried instead of a search
WITH_GRAPH = ("--scheme", "--soc", "--runtime", "--frontend", "--reports", "--sdk", "--adaptor")
USUAL_RUNTIME = "onnxruntime"
PACKAGES = {"onnx": "onnxruntime-qnn", "executorch": "executorch", "litert": "ai-edge-litert"}
# As many as a search tries with the smallest graph of a finding.
SEEDS = tuple(range(10))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = partial(add_option, parser, "")
    add("--minutes N", "minutes to search; default: 10", type=between(0, MOST), default=MINUTES)
    add("--graphs N", "stop after N graphs per scheme", type=int, default=0)
    add_options(parser, "--scheme", group="", text="a quantization scheme; repeatable")
    add("--seed S", "seed of the generator; default: 0", type=int, default=0)
    text = f"what compiles the graphs: {', '.join(FRONTENDS)}; default: {USUAL_RUNTIME}"
    add("--runtime", text, choices=[*FRONTENDS], default="")
    add("--frontend", "the former name of --runtime", choices=[*FORMER_RUNTIMES])
    text = "report known faults like new ones, instead of only counting them"
    add("--without-known", text, **FLAG)
    text = (
        "graphs from blocks of which models are made, random graphs, or both in turns;"
        " default: both"
    )
    add("--source", text, choices=SOURCES, default=SOURCES[0])
    text = "an SoC to compile for; repeatable; default: {}"
    add_options(parser, "--soc", group="", text=text)
    text = "instead of a search, try a graph with ten seeds: a file, or the name of a known fault"
    add("--graph", text, **FILE)
    cores = len(os.sched_getaffinity(0))
    text = f"number of parallel workers; default: {cores}"
    add_option(parser, HOW, "--jobs", text, type=int, default=cores)
    add_options(parser, "--reports", gaps={"--reports": "fuzz/"})
    add_options(parser, "--offline", group="")
    add_options(parser, "--sdk", "--adaptor")


def check_numbers(**numbers: float) -> None:
    """Raise UsageError for a number that is too small."""
    for name, number in numbers.items():
        is_needed = name in {"minutes", "jobs"}
        if not number > (0 if is_needed else -1):  # also refuses NaN
            raise UsageError(f"--{name} {number} is too small", fix="pass a larger number")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    """Search for faults, or try one graph. The exit code is 1 for a finding whose cause is new.
    Raises UsageError, and the same errors as open_bench."""
    check_numbers(minutes=args.minutes, jobs=args.jobs, graphs=args.graphs, seed=args.seed)
    runtime = choose_runtime(args.runtime, args.frontend, progress)
    frontend = FRONTENDS[runtime or USUAL_RUNTIME]
    if frontend == "litert":
        refuse_options(args, litert.LANE.without, litert.LANE.schemes.title)
    schemes = choose_schemes(frontend, args.scheme)
    socs = choose_socs(frontend, schemes, args.soc)
    runs = [(scheme, soc) for scheme in schemes for soc in socs]
    if args.graph:
        require_effect(args, "--graph", *WITH_GRAPH)
    if args.graph and len(socs) > 1:
        raise UsageError("--graph tries one SoC", fix="pass --soc once")
    directory = args.reports / SESSION
    check_session(directory, ("fuzz.json", "coverage.md"))
    claim_reports(directory)
    text = read_graph(args.graph) if args.graph else ""
    with open_bench(
        frontend, choice.read_choice(args.sdk, args.adaptor), progress, offline=args.offline
    ) as bench:
        progress.step(f"3/4 try graphs in {', '.join(scheme.value for scheme in schemes)}")
        if text:
            trials = [(scheme, bench.make(scheme, soc)) for scheme, soc in runs]
            outcome, findings = try_graph(text, trials, frontend=frontend, soc=socs[0])
            for page in write_pages(findings, directory, frontend, bench.qnn):
                progress.step(f"report: {shown_path(page)}")
            return outcome

        from ci.faults.search import Search  # it imports torch

        searches = []
        start = time.monotonic()
        for number, (scheme, soc) in enumerate(runs, 1):
            search = Search(
                trial=bench.make(scheme, soc),
                frontend=frontend,
                scheme=scheme.value,
                soc=soc,
                seed=args.seed,
                jobs=args.jobs,
                progress=progress,
                qnn=bench.qnn,
                uses_known=not args.without_known,
                remedies=bench.list_remedies(scheme),
                source=args.source,
            )
            # Each scheme gets the same share of the time, and what one leaves goes to the next.
            deadline = start + 60 * args.minutes * number / len(runs)
            searches.append(search.run(deadline, args.graphs))
        qnn = bench.qnn
    progress.step("4/4 report")

    write_whole(directory / "fuzz.json", msgspec.json.format(msgspec.json.encode(searches)))
    findings = [finding for search in searches for finding in search.findings]
    write_pages(findings, directory, frontend, qnn)
    # Random graphs have no blocks that could be counted.
    if args.source != "random":
        write_whole(directory / "coverage.md", render_coverage(searches).encode())
    progress.step(f"report: {shown_path(directory)}")
    fresh = [finding for finding in findings if not finding.known]
    code = ExitCode.FAILED if fresh else ExitCode.OK
    return Outcome(render_searches(searches), {"found": msgspec.to_builtins(searches)}, code)


def choose_socs(frontend: Frontend, schemes: Sequence[Scheme], words: Iterable[str]) -> list[str]:
    """Return the requested SoCs, or the default one. Raises UsageError for an SoC that the runtime
    does not compile for, or for which QNN compiles no graph."""
    socs = [*dict.fromkeys(match_socs(words, sorted(LANES[frontend].socs())))] or [DEFAULT_SOC]
    if frontend == "litert":
        for soc in socs:
            for scheme in schemes:
                if refusal := litert.find_refusal(soc, scheme, "a graph of fuzz"):
                    raise refusal
    return socs


def write_pages(
    findings: list[Finding], directory: Path, frontend: Frontend, qnn: str
) -> list[Path]:
    """Write a bug report per finding into a directory. Return the files."""
    pages = []
    package = PACKAGES[frontend]
    release = version(package)
    for number, finding in enumerate(findings, 1):
        name = f"{finding.scheme}-{number:02}-{'-'.join(finding.operators)[:MOST_NAME]}.md"
        page = render_markdown(finding, release, f"QNN {qnn}, {package} {release}")
        write_whole(directory / name, page.encode())
        pages.append(directory / name)
    return pages


def read_graph(path: Path) -> str:
    """Return the graph in a file, or that of the known fault with this name, as text. Raises
    UsageError if there is no valid graph."""
    graphs = {fault.name: fault.graph for fault in read_faults() if fault.graph}
    if path.name in graphs and not path.exists():
        return graphs[path.name]
    data = read_user_file(path, "the graph", LIMIT_BYTES)
    return str(parse_graph(data.decode("utf-8", "replace")))


def try_graph(
    text: str, trials: list[tuple[Scheme, Trial]], *, frontend: Frontend, soc: str
) -> tuple[Outcome, list[Finding]]:
    """Try one graph in each scheme, with each of SEEDS. Return the results, and a finding for each
    scheme in which it fails with any seed. Raises UsageError if the graph cannot be computed."""
    from ci.faults.search import ORDER, make_finding
    from ci.faults.torch_graphs import find_shapes

    graph = parse_graph(text)
    find_shapes(graph)
    lines, data, findings = [], [], []
    for scheme, trial in trials:
        results = list(trial.run([Item(str(graph), seed) for seed in SEEDS], 1))
        for result in results:
            lines.append(
                f"{scheme} seed {result.seed}: {result.end}, {result.sqnr_db:.1f} dB"
                f" ({result.predicted_db:.1f} dB predicted) {result.place} {result.why}".rstrip()
            )
            data.append({"scheme": scheme.value, **msgspec.to_builtins(result)})
        if ends := [result.end for result in results if result.is_suspect]:
            end = min(ends, key=ORDER.index)
            origin = {"frontend": frontend, "scheme": scheme.value, "soc": soc}
            findings.append(make_finding(graph, end, results, **origin))
    text = "".join(f"{line}\n" for line in lines)
    is_tried = all(row["end"] != UNTRIED for row in data)
    code = ExitCode.OK if is_tried and not findings else ExitCode.FAILED
    return Outcome(text, {"results": data}, code), findings
