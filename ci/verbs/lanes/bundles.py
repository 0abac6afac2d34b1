"""What test-llm does with a bundle of LiteRT-LM, or a folder for Genie. It is refused before
anything runs if it is not whole, if its parts do not fit each other, or if its contexts are for
another SoC or a newer QNN."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ci.cases.limited import run_limited
from ci.cases.pool import Pool
from ci.cases.session import list_parts
from ci.cases.spec import CaseSpec
from ci.inspect.compat import Axis, Runtime, Verdict, judge_compat
from ci.inspect.genie import place_file, read_genie, require_config
from ci.inspect.genie_checks import judge_genie
from ci.litert.engine import LitertEngine
from ci.llm.bundle_case import BundleJob, BundleRun, encode_prompt
from ci.llm.bundle_file import BundleFile, read_bundle
from ci.llm.generation import make_runner
from ci.llm.genie_file import GenieSource, read_genie_bundle
from ci.llm.request import LlmRequest
from ci.llm.subject import read_dimensions
from ci.onnx.options import find_library
from ci.packages.modules import LITERT
from ci.verbs import options, steps
from ci.verbs.lanes.lane import Plan, Tools
from provisioning.artifacts.choice import WHEEL, WHEEL_RUNTIME, QnnChoice
from provisioning.artifacts.environment import Environment
from provisioning.doctor.registry import Severity
from provisioning.errors import FailedError, UnfitError, UsageError
from provisioning.manifest.reader import read_profiles, read_toolchain

PROFILE = "litert"
PACKAGES = LITERT.for_files
# The findings of inspect on the libraries in a folder for Genie, which the emulator does not load.
OF_LIBRARIES = {"QNN964", "QNN965", "QNN971", "QNN972", "QNN979", "QNN983", "QNN984"}
OF_QNN = {Axis.BUILD, Axis.BINARY_INFO}  # what another version of QNN changes
PACKAGES_OF_TEXT = ("tokenizers", "sentencepiece", "torch")


def find_bundle_soc(path: Path) -> str:
    """Return the SoC for which the decoder of a bundle is compiled, or "". Raises the errors of
    read_bundle."""
    contexts = load_bundle(path).main.contexts
    return next((context.soc for context in contexts if context.soc), "")


def load_bundle(path: Path) -> BundleFile:
    """Read a bundle in a process with limits. Raises the errors of read_any."""
    return run_limited(partial(read_any, path), path.name)


def read_any(path: Path) -> BundleFile:
    """Return a bundle of LiteRT-LM, or a folder for Genie as one. Raises the errors of read_bundle,
    find_source and read_genie_bundle."""
    return read_genie_bundle(find_source(path)) if path.is_dir() else read_bundle(path)


def find_source(path: Path) -> GenieSource:
    """Return the files of a folder for Genie. Raises UsageError if it is none, and FailedError with
    the first finding of inspect that keeps Genie from loading it."""
    folder = read_genie(path, require_config(path))
    errors = [finding for finding in judge_genie(folder) if finding.severity is Severity.ERROR]
    # Whether the libraries for a phone are complete does not matter on the emulator.
    if errors := [finding for finding in errors if finding.id not in OF_LIBRARIES]:
        first = errors[0]
        raise FailedError(f"{path.name}: {first.what}", why=first.why, fix=first.fix)
    return GenieSource(
        path,
        folder.section(),
        tuple(place_file(path, name) for name in folder.part_names),
        place_file(path, str(folder.section("tokenizer").get("path"))),
    )


def check_bundle(path: Path, prompt: str) -> None:
    """Read a bundle and its tokenizer. Raises the errors of read_bundle and encode_prompt, and
    FailedError for a tokenizer of another model."""
    file = read_any(path)
    with TemporaryDirectory() as scratch:
        tokenizer = file.read_tokenizer(Path(scratch))
        try:
            tokenizer.require("the decoder", vocabulary=file.vocabulary)
        except UsageError as error:
            raise FailedError(
                f"the tokenizer of {file.name} belongs to another model",
                why=error.why,
                fix="pack the bundle again with the tokenizer of its model",
            ) from error
        encode_prompt(file, tokenizer, prompt)


def require_fit(path: Path, soc: str, qnn: str = "") -> None:
    """Raise UnfitError if the contexts of a bundle are for another SoC, or for a newer version than
    ``qnn``. The emulator runs contexts for other SoCs, and a phone does not."""
    file = load_bundle(path)
    if not file.is_compiled:
        return
    runtime = Runtime(f"QNN {qnn}", qnn=qnn) if qnn else None
    answer = judge_compat(file.main, runtime, soc)
    if answer.verdict is Verdict.NO:
        refusing_rows = [row for row in answer.rows if row.verdict is Verdict.NO]
        fix = "pass the --soc that it was compiled for, or compile it again"
        if all(row.axis in OF_QNN for row in refusing_rows):
            fix = f"compile it again with QNN {qnn} or older"
        raise UnfitError(
            f"the decoder of {path.name} does not load on {soc}" + (f" with QNN {qnn}" * bool(qnn)),
            why="; ".join(row.why for row in refusing_rows),
            fix=fix,
        )


def find_pinned_qnn() -> str:
    """Return the version of QNN that bundles run with."""
    (artifact,) = (
        each for each in read_profiles()[PROFILE].artifacts if each.name == WHEEL_RUNTIME
    )
    return artifact.version or read_toolchain(WHEEL_RUNTIME).default


def plan_bundle(request: LlmRequest, path: Path, specs: list[CaseSpec]) -> Plan:
    """Return the plan for a bundle. Raises UnfitError for a missing package, and the same errors as
    check_bundle and require_fit."""
    steps.require_packages((*PACKAGES, *PACKAGES_OF_TEXT), options.LITERT_TORCH)
    (spec,) = specs
    if path.is_dir() and request.reference:
        raise UsageError("--reference is for bundles of LiteRT-LM", fix="leave it out")
    run_limited(partial(check_bundle, path, request.prompt), path.name)
    bundles = [path, *([request.reference] if request.reference else [])]
    # The profile pins the QNN: a bundle that it cannot load is refused before anything is fetched.
    for bundle in bundles:
        require_fit(bundle, spec.soc, find_pinned_qnn())
    if request.weights:
        read_dimensions(request.weights, request.timeout_s)
    jobs: list[BundleJob] = []

    def open_tools(environment: Environment, pool: Pool) -> Tools:
        (qnn,) = (each for each in environment.artifacts if each.name == WHEEL_RUNTIME)
        job = BundleJob(
            path=path,
            prompt=request.prompt,
            tokens=request.tokens,
            soc=spec.soc,
            library=find_library(qnn.root, {}),
            reference=request.reference,
            weights=request.weights,
            genie=find_source(path) if path.is_dir() else None,
        )
        jobs.append(job)
        # Nothing is compiled here; the engine is only named.
        engine = LitertEngine(toolchain=(), sdk=qnn.root, timeout_s=request.timeout_s)
        return Tools(engine=engine, runner=make_runner(pool), parts=list_parts(environment))

    return Plan(
        specs=specs,
        profile=PROFILE,
        imports=("ci.llm.bundle_case",),
        choice=QnnChoice(WHEEL, WHEEL),
        open=open_tools,
        make_run=lambda case, setup: BundleRun(case, setup, jobs[0]),
        # Baselines are for the models of a policy, and no policy's models are tested here.
        options={"baselines": None},
        work="run and judge",
        mendable=(),
    )
