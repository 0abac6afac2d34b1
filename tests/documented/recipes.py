"""How documented commands are run and judged: a recipe per verb and model.

A command follows the first recipe whose pattern its text matches. The test suite runs SAMPLES, the
option ``--every-documented-command`` runs all, as nightly.yml does; tests/static parses the rest.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ci.__main__
from ci.builds.targets import read_targets
from provisioning.manifest.reader import read_profiles
from tests.documented import setups
from tests.documented.pages import ROOT, Command
from tests.documented.stage import Ended, Stage

SKEL, PUSHED = "signed/libQnnLpaiSkel.so", "data/local/tmp/model/libQnnLpaiSkel.so"
TORCH = ("torch", "executorch", "torchgen", "yaml")
LANE = (*TORCH, "onnxruntime_qnn")
COMPILERS = ("clang", "ld.lld", "g++", "make")


@dataclass(frozen=True)
class Recipe:
    """How the commands are run whose text ``of`` matches, and what they must do.

    ``code`` and ``says``, an expression to be found in the output, are the documented result;
    ``then`` looks at more. ``fill`` replaces placeholders before FILL does, each value in a run of
    its own; ``adds`` is what only a stand-in makes necessary. ``needs`` are programs, ``packages``
    Python's. A command run ``elsewhere`` is a line of that file.
    """

    of: str
    setup: Sequence[Callable[[Stage], None]] = ()
    says: str = ""
    code: int = 0
    fill: Mapping[str, Sequence[str]] = field(default_factory=dict)
    adds: str = ""
    then: Callable[[Stage, Ended], None] | None = None
    needs: Sequence[str] = ()
    packages: Sequence[str] = ()
    elsewhere: str = ""

    @property
    def lacks(self) -> str:
        """Why it cannot run here; empty if it can."""
        missing = [name for name in self.needs if not shutil.which(name)]
        missing += [name for name in self.packages if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(missing)}" if missing else ""

    def lines(self, command: Command) -> list[str]:
        """The lines to type for ``command``."""
        lines = [command.typed]
        for placeholder, values in self.fill.items():
            if placeholder in command.text:
                lines = [line.replace(placeholder, value) for line in lines for value in values]
        return [f"{fill(line)} {self.adds}".strip() for line in lines]


def fill(line: str) -> str:
    """A line with a value in the place of each placeholder."""
    for placeholder, value in FILL.items():
        line = line.replace(placeholder, value)
    return line


def find_recipe(command: Command) -> Recipe:
    """The first recipe that fits a command. Raises LookupError if there is none."""
    for recipe in RECIPES:
        if re.search(recipe.of, command.key):
            return recipe
    raise LookupError(f"{command} has no recipe")


def prove(command: Command, recipe: Recipe, stage: Stage) -> None:
    """Run a command as its recipe says. Raises AssertionError if it does something else."""
    if recipe.elsewhere:
        require_line(command, recipe.elsewhere)
        return
    for prepare in recipe.setup:
        prepare(stage)
    for line in recipe.lines(command):
        judge(line, recipe, stage, stage.run(line))


def require_line(command: Command, file: str) -> None:
    """Raises AssertionError if no line of ``file`` runs a command."""
    lines = (ROOT / file).read_text("utf-8").splitlines()
    shown = {line.strip().removeprefix("- ").removeprefix("run: ") for line in lines}
    assert {command.key, f"./{command.key}"} & shown, f"{file} does not run {command.text}"


def judge(line: str, recipe: Recipe, stage: Stage, ended: Ended) -> None:
    """Raises AssertionError if ``ended`` is not the result that the recipe names."""
    said = f"{line}\n{ended.said}"
    assert ended.returncode == recipe.code, said
    assert "Traceback" not in ended.said, said
    assert re.search(recipe.says, ended.said, re.DOTALL), f"no {recipe.says!r} in:\n{said}"
    if recipe.then:
        recipe.then(stage, ended)


# -- what only a look at files shows ------------------------------------------------------------


def runs_without_the_checkout(stage: Stage, ended: Ended) -> None:
    """The installed wheel has its manifests, and asks for torch with the extra."""
    (metadata,) = stage.project.glob("installed/executorch_qnn_ci-*.dist-info/METADATA")
    assert re.search(r"(?m)^Requires-Dist: torch==.*extra ==", metadata.read_text("utf-8"))
    stage.variables["PYTHONPATH"] = str(stage.project / "installed")
    stage.directory = stage.home
    listed = stage.run(f"{stage.project}/installed/bin/qnn-ci test-emulator --list")
    assert "mlp" in listed.stdout, listed.said


def scored_as_named(stage: Stage, ended: Ended) -> None:
    """The metrics of the page are what they are called."""
    import torch

    names: dict[str, Any] = {}
    exec(setups.read_block("docs/guides/your-repository.md"), names)  # noqa: S102 - the page's own code
    logits = torch.tensor([[[3.0, 1.0]], [[0.0, 2.0]], [[5.0, 4.0]], [[1.0, 0.0]]])
    assert float(names["top1"]([logits], torch.tensor([0, 1, 1, 0]))) == 0.75
    seen = torch.tensor([[0, 0], [1, 1]])  # rows and columns
    maps = torch.nn.functional.one_hot(seen, 2).permute(2, 0, 1)[None, None].float()
    iou = float(names["mean_iou"]([maps], torch.tensor([[0, 1], [1, 1]])[None, None]))
    assert abs(iou - (1 / 2 + 2 / 3) / 2) < 1e-6


def wrote_outputs(stage: Stage, ended: Ended) -> None:
    """One output per execution, as many as the list of inputs has rows."""
    rows = (stage.project / "L.txt").read_text().splitlines()
    assert len(list((stage.project / "DIR").glob("output_*_0.raw"))) == len(rows)


# -- the table ----------------------------------------------------------------------------------

MODEL_RUN = (setups.use_our_store, setups.shrink_suites, setups.write_models)
BUILD = (setups.plant_toolchains, setups.leave_doctor_out)
RUNNER = (setups.use_our_store, setups.share_runner)
SERVED = (setups.serve_artifacts,)
ACCEPTED = (*SERVED, setups.accept_licences)
FETCHED = (*SERVED, setups.fetch_all)
SIGNED = (setups.give_signer, setups.sign)
# Run with one test instead: other jobs of nightly.yml run these.
ONE_TEST = dict.fromkeys(
    (
        "tests/unit/ci/judging",
        "tests/static/test_links.py",
        "tests/integration/emulator/test_sdk_and_adaptor.py",
        "tests/integration/emulator/test_localise.py",
        "tests/integration/llm/test_stories.py",
        "tests/integration/onnx/test_operators_real.py",
        "tests/integration/onnx/test_options_real.py",
        "tests/integration/parity/test_parity_file_api.py",
        "tests/integration/parity",
    ),
    ("tests/unit",),
)
OURS = {"setup": (setups.use_our_store,), "packages": TORCH}
MODELS = {"setup": MODEL_RUN, "packages": TORCH}
BUILDS = {"setup": BUILD, "packages": TORCH, "needs": (*COMPILERS, "aarch64-linux-gnu-g++")}

# What the test suite runs: a command per verb, and per way to name a model.
SAMPLES = (
    "nox -s test_emulator",
    "nox -s test_emulator -- --model net.py:factory --soc SM8750 --scheme 8a8w",
    "nox -s audit -- --model net.py:factory --scheme 8a8w --soc SM8650 --soc QCM6490",
    "nox -s test_onnx -- --model net.onnx --scheme fp16 --soc SM8750",
    "nox -s test_llm -- --scheme fp16",
    "nox -s build_android -- --release --jobs 4",
    "nox -s validate -- emulator",
    "nox -s parity -- --source ~/executorch",
    "nox -s plan",
    "nox -s sign_skel -- --lpai-arch v6",
    "nox -s stage -- --soc SM8650 --runner qnn_executor_runner --runtime runtime --out bundle",
    "nox -s docker_build -- emulator",
    "nox -s qnn_ci -- cache info",
    "nox -s provision -- emulator",
    "nox -s bench -- parity",
    "nox -s tests",
    "qnn-ci cache-key emulator",
    "qnn-ci check-app app.apk",
    "qnn-ci completion bash",
    "qnn-ci compat model.pte --runtime 2.49.40 --soc SM8650",
    "qnn-ci context model_ctx.onnx",
    "qnn-ci deploy --device ssh:board --bundle bundle",
    "qnn-ci env PROFILE",
    "qnn-ci estimate --model net.onnx --scheme u8 --trace traces",
    "qnn-ci explain build.log",
    "qnn-ci fuzz --graph graph.txt --scheme fp16",
    "qnn-ci gate plan.json --needs needs.json --results results",
    "qnn-ci gc",
    "qnn-ci init --policy-only",
    "qnn-ci inspect model.pte",
    "qnn-ci judge kept",
    'qnn-ci judge kept --pulled results --by "SM8650 of the farm"',
    "qnn-ci list",
    "qnn-ci localise --model net.py:factory --scheme fp16",
    "qnn-ci lock NAME...",
    "qnn-ci lock-skels WHEEL...",
    "qnn-ci matrix plan.json",
    "qnn-ci path NAME",
    "qnn-ci report --trend DIR",
    "qnn-ci report PATH",
    "qnn-ci setup",
    "qnn-ci update ARTIFACT[@VERSION]",
    "qnn-ci upgrade-report before/report.json reports/test_emulator",
    "qnn-ci verify [NAME...]",
    "qnn-ci verify-evidence model.pte --evidence evidence.intoto.json",
    "qnn-ci versions-matrix --known",
    "qnn-ci verify-signature signed",
)
# What the pages leave to the reader.
FILL = {
    "[NAME...]": "libcxx",
    "NAME...": "qnn-runtime libcxx",
    "lock NAME": "lock qnn-sdk",
    " NAME": " libcxx",
    "ARTIFACT[@VERSION]": "qnn-runtime@1.0",
    "fetch --to": "fetch libcxx --to DIR",
    "--from FILE": "--from ../sdk.zip",
    "WHEEL...": "../qnn.whl",
    "WHEEL ": "../qnn.whl ",
    "FILE ...": "signed/libQnnLpaiSkel.so",
    "DIRECTORY": "signed",
    "--source DIR": "--source $EXECUTORCH_ROOT",
    "PROFILE": "emulator",
    "IMAGE": "debian:bookworm",
    "--base BASE": "--base main",
    "report PATH": "report reports/test_emulator",
    "--trend DIR": "--trend reports",
    "SESSION": "sign_skel",
    "TARGET": "android",
    "OWNER/REPOSITORY@COMMIT": setups.COMMIT,
    "OLD NEW": "before/report.json reports/test_emulator",
}
PLACEHOLDER = "OWNER/REPOSITORY@COMMIT"
TWO_MODELS = "--model mlp --model resnet"
# What can be run nowhere here, and why.
NOT_RUN = {
    "adb connect HOST:PORT": "tests/integration/device/conftest.py does, to a stand-in",
    "qnn-ci verify-evidence model.pte --evidence evidence.intoto.json --bundle bundle.json"
    " --repository OWNER/NAME": "only a signing job makes a bundle; unit tests have published ones",
    "nox -s bench -- latency": "it builds and simulates eighty models, which takes hours",
    "qnn-ci estimate --calibrate reports/test_emulator/report.json reports/deploy/report.json": (
        "it needs times of a device; tests/unit/ci/latency has reports with such times"
    ),
    "qnn-ci localise --model tests/realistic/sequences.py:gru_cell --scheme 16a8w --reproducer"
    " smallest.py": "tests/integration/emulator/test_localise.py runs it",
    "qnn-ci localise --model tests/realistic/lost.py:norm --scheme 16a8w": (
        "tests/integration/emulator/test_localise.py runs it"
    ),
    "qnn-ci localise --model tests/realistic/lost.py:positions --scheme fp16": (
        "tests/integration/emulator/test_localise.py runs it"
    ),
    "qnn-ci localise --model tests/realistic/llama.py:stories --scheme 16a8w --soc SM8750": (
        "it lowers 28 programs of a Llama whose weights are not here"
    ),
    **{
        f"nox -s test_emulator -- --model tests/realistic/{words}": (
            f"tests/integration/emulator/{file}.py runs this model"
        )
        for words, file in {
            "vision.py:mobilevit --scheme 8a8w": "test_realistic_models",
            "sequences.py:gru --scheme fp16": "test_realistic_models",
            "sequences.py:gru_cell --scheme 16a8w": "test_realistic_models",
            "lost.py:norm --scheme 16a8w": "test_localise",
        }.items()
    },
    **{
        f"nox -s test_llm -- --model stories260k --tokens 64 --context 96{words}": (
            "its weights are not here; tests/integration/llm/test_stories.py runs it"
        )
        for words in ("", " --scheme 16a4w_block")
    },
    **{
        f"nox -s test_emulator -- --suite {words}": "it lowers hundreds of programs"
        for words in (
            "upstream-rework",
            "upstream --filter '*Operator::*'",
            "upstream --filter '*Operator::*' --resume",
        )
    },
    "nox -s build_aot -- --executorch 1.4.1 --sdk $QNN_SDK_ROOT": (
        "the checkout in miniature has one version"
    ),
    "nox -s build_aot test_emulator": "no program can be lowered with an adaptor in miniature",
    "j adb -P 15037 tunnel > tunnel.log 2>&1 & tunnel=$!; trap 'kill -9 $tunnel' EXIT; sleep 5": (
        "tests/integration/device/test_jumpstarter.py runs that script"
    ),
    "adb push model.pte tokenizer.json qnn_llama_runner /data/local/tmp/llm/": (
        "the stand-in for adb pushes one file at a time"
    ),
    "pip install executorch-extension-model-explorer": "it is a package of others",
    "git clone https://github.com/OWNER/REPOSITORY": "OWNER/REPOSITORY is a placeholder",
    "cd REPOSITORY": "likewise",
    **{
        f'pip install "executorch-qnn-ci[{extra}] @ git+https://github.com/{PLACEHOLDER}"': (
            "OWNER/REPOSITORY is a placeholder; .github/workflows/release.yml installs the wheel"
        )
        for extra in ("lowering", "evidence")
    },
    "nox -s fuzz": "it searches for ten minutes; tests/unit/ci/faults has what it does",
    "nox -s fuzz -- --minutes 30 --scheme fp16 --scheme u8 --seed 7": "it searches for 30 minutes",
    "qnn-ci fuzz --frontend executorch --scheme 16a8w": "it searches for ten minutes",
    "nox -s fuzz -- --minutes 10 --scheme fp16 --seed 42 --without-known": "likewise",
    "nox -s fuzz -- --minutes 6 --frontend executorch --scheme 16a8w --seed 42 --without-known": (
        "it searches for six minutes"
    ),
    "python -m tests.operators.survey": "tests/integration/emulator/test_audit.py runs it",
    "nox -s test_emulator -- --suite faults": "it lowers 30 programs, each in its own process",
    "nox -s test_emulator -- --suite faults --filter 'broadcast-*'": "likewise",
    "qnn-ci versions-matrix": "it fetches five wheels of 200 MB",
    **{
        f"qnn-ci upgrade-report {words}": (
            "it fetches two packages; tests/unit/ci/audit/test_upgrade.py has what it does then"
        )
        for words in (
            "onnxruntime-qnn==2.5.0 onnxruntime-qnn==2.7.0 --model mlp --scheme u8",
            f"onnxruntime-qnn==2.4.0 onnxruntime-qnn==2.5.0 {TWO_MODELS} --scheme u8 --scheme fp16",
            "executorch==1.4.1 executorch==1.5.1 --policy qnn.toml",
            f"executorch==1.4.1 executorch==1.5.1 {TWO_MODELS} --scheme 8a8w --scheme fp16",
            "executorch==1.4.1 executorch==1.5.1 --model transformer --model lstm --scheme 16a8w",
        )
    },
    "export ANDROID_ADB_SERVER_ADDRESS=127.0.0.1 ANDROID_ADB_SERVER_PORT=15037": (
        "tests/integration/device/test_jumpstarter.py runs that script"
    ),
    "gh attestation verify": "it asks GitHub for an attestation that only a signing job makes",
}
RECIPES = (
    # Models. What only lists, has no hardware or is planned comes before all that runs.
    Recipe(r"nox -s test_\w+ -- --list", says="mlp .*SM8650"),
    Recipe("test_emulator -- --backend (gpu|lpai)$", says="NOT RUN", code=3, **MODELS),
    Recipe("nox -s audit", MODEL_RUN, "[1-9] passed.*an audit does not run", packages=TORCH),
    Recipe("--plan", (setups.use_our_store, setups.plan_two_cases), "1 passed", packages=TORCH),
    Recipe("verify-evidence", (setups.leave_evidence,), "mlp 8a8w SM8650 passed"),
    Recipe(
        "--policy qnn.toml$", (setups.initialise,), "2 passed", then=scored_as_named, packages=TORCH
    ),
    Recipe(
        "--policy qnn.toml --record", (setups.initialise,), "recorded: qnn-base", packages=TORCH
    ),
    Recipe(
        "qnn-ci fuzz --graph",
        (setups.use_our_store, setups.write_graph),
        "fp16 seed 9: right",
        packages=(*TORCH, "onnxruntime_qnn"),
    ),
    Recipe("qnn-ci versions-matrix --known", says="regression: broadcast-mul-before-norm"),
    Recipe("qnn-ci upgrade-report", (setups.leave_reports,), "1 worse.*spill_bytes.*800"),
    Recipe("before/report.json", (setups.break_model,), "qnn_model.py|:x:", 1, packages=TORCH),
    Recipe(
        "--runner cpp|build_runner$",
        (*RUNNER, setups.shrink_suites),
        "[1-9] passed|qnn_wheel_runner",
        needs=COMPILERS,
        packages=TORCH,
    ),
    Recipe("build_android test_emulator", (*BUILD, *MODEL_RUN), "[1-9] passed", packages=TORCH),
    Recipe(
        "tests/realistic/(sequences.py:router|lost.py:twice) ",
        says="not faithful",
        code=1,
        **MODELS,
    ),
    Recipe("lost.py:positions", says="broadcast-add-before-norm", code=1, **MODELS),
    Recipe("--any soc", (setups.leave_bundle,), "no usable device with SM8650", 3, needs=("adb",)),
    Recipe("--suite backend-suite", says="upstream compares no outputs", code=1, **MODELS),
    Recipe("--model resnet", says="2 passed", adds="--scheme fp16", **MODELS),
    Recipe("^nox -s test_emulator", says="[1-9] passed.*index.html", **MODELS),
    Recipe("nox -s test_onnx", MODEL_RUN, "[1-9] passed.*index.html", packages=LANE),
    Recipe("qnn-ci localise --model net.py", says="as predicted.*2 programs", **MODELS),
    Recipe("qnn-ci estimate --model net", says="cycles.*simulated for QCS9100", **MODELS),
    Recipe(
        "test_llm -- --project",
        (setups.leave_config,),
        "projected, not measured: 1,2.*fp16.*GiB",
        packages=TORCH,
    ),
    # Hugging Face's weights and a program of upstream's are not ours to ship.
    Recipe("test_llm -- --weights", says="has no weights|not a tokenizer", code=2, packages=TORCH),
    Recipe("test_llm -- --program", says="no program", code=2, packages=TORCH),
    Recipe("nox -s test_llm", says="[1-9] passed.*index.html", **MODELS),
    Recipe(
        "qnn_wheel_runner",
        (*RUNNER, setups.keep_artifacts, setups.take_program),
        then=wrote_outputs,
        needs=COMPILERS,
        packages=TORCH,
    ),
    # A small app with libraries of one build.
    Recipe("check-app", (setups.build_app,), r"fit|\"fit\": true"),
    Recipe("compat model_ctx.onnx --runtime 2.47.0", (setups.leave_context,), "no", 1),
    Recipe(
        "qnn-ci (inspect|compat|context) model_ctx",
        (setups.leave_context,),
        "QNN 2.49.40",
        packages=("onnx",),
    ),
    Recipe(
        "nox -s stage .*--cases",
        (setups.keep_artifacts, setups.leave_bundle),
        "x86_64-linux for SM8650",
        packages=TORCH,
    ),
    Recipe("(qnn-ci|nox -s) stage", (setups.leave_bundle,), "x86_64-linux for SM8650"),
    # Without a phone or a board, what a user without one sees.
    Recipe(
        "(deploy|test-emulator) .*--device adb:",
        (setups.leave_bundle,),
        "no phone",
        3,
        needs=("adb",),
    ),
    Recipe(
        "(deploy|test-emulator) .*--device ssh:",
        (setups.leave_bundle,),
        "cannot be reached",
        5,
        needs=("ssh",),
    ),
    Recipe("qnn-ci compat .*SM8750", (setups.leave_program,), "V75, but SM8750 has V79", 1),
    Recipe("qnn-ci compat", (setups.leave_program,), ": yes"),
    Recipe("qnn-ci inspect", (setups.leave_program,), "SM8650, V75, 8 MB VTCM"),
    Recipe("qnn-ci explain", (setups.leave_logs,), r"line 1: .*libc\+\+.*\[libcxx-missing\]", 1),
    # Builds of ExecuTorch in miniature.
    Recipe("build_direct$", says="needs an SoC", code=2, packages=TORCH),
    Recipe("r27", (*BUILD, setups.plant_second_ndk), "cmake", adds="--dry-run", packages=TORCH),
    Recipe("build_direct --", says="CDSP_VERSION=v79", **BUILDS),
    Recipe(
        "build TARGET",
        fill={"TARGET": tuple(read_targets())},
        adds="--dry-run --soc SM8750",
        says="cmake .*-S",
        **BUILDS,
    ),
    Recipe("--with llama", says="third-party/.*submodule update", code=3, **BUILDS),
    Recipe("build_aot$", says="artifacts.json", adds="-- --no-proof", **BUILDS),
    Recipe(
        "--sdk (SDK|DIR)",
        says="cmake",
        fill={
            "--sdk SDK": ("--sdk $QNN_SDK_ROOT --dry-run",),
            "--sdk DIR": ("--sdk $QNN_SDK_ROOT",),
        },
        **BUILDS,
    ),
    Recipe("build_", says="artifacts.json", **BUILDS),
    # The doctor.
    Recipe("--device$", (setups.attach_phone,), "QNN100.*QNN212.*QNN802", 3),
    Recipe("validate -- (android|--backend)", says="not fit", code=3),
    Recipe("doctor PROFILE", says="not fit", code=3, fill={"PROFILE": tuple(read_profiles())}),
    Recipe(
        "doctor aot",
        (setups.plant_toolchains, setups.clone_executorch),
        "aot: not fit.*QNN107",
        3,
        fill={"/opt/qairt/2.37.0.250724": ("$QNN_SDK_ROOT",)},
        needs=COMPILERS,
    ),
    Recipe("-ci doctor|validate", says='emulator: fit|"fit": true', **OURS),
    Recipe("^eval .*setup", says="x86_64-linux-clang", adds='&& ls "$QNN_SDK_ROOT/lib"', **OURS),
    Recipe("qnn-ci setup", says="export QNN_SDK_ROOT=", **OURS),
    # Small artifacts of every kind, from an index and a server of the tests.
    Recipe("fetch (qnn-sdk$|android)", SERVED, "licence", 3, fill={"android": ("aot",)}),
    Recipe("provision -- lpai", says="licence", code=3),
    Recipe("fetch|-s prov", ACCEPTED, fill={"@2.49.40": ("@9.9.9",), "libatomic": ("libcxx",)}),
    Recipe("lock qnn-sdk --from", SERVED, "locks/qnn-sdk"),
    Recipe("lock-skels", (setups.hold_wheel,), r"\+skels.+V75"),
    Recipe(
        "qnn-ci lock", ACCEPTED, r"\+\+\+ b/manifests/locks/qnn-sdk", fill={"NAME...": ("qnn-sdk",)}
    ),
    Recipe("qnn-ci update", ACCEPTED, "nothing changed"),
    Recipe("verify --repair", (*FETCHED, setups.damage_store), "repaired"),
    Recipe("qnn-ci verify ", FETCHED, "all unchanged"),
    Recipe("qnn-ci list", FETCHED, "profile aot: qnn-sdk, libcxx"),
    Recipe("qnn-ci path", FETCHED, "^/.*/store/"),
    Recipe("qnn-ci gc", FETCHED, r"freed 0\.0 MiB"),
    Recipe("GITHUB_ENV", FETCHED, "QNN_SDK_ROOT=", adds='&& cat "$GITHUB_ENV"'),
    Recipe("^eval .*env", FETCHED, "x86_64-linux-clang", adds='&& ls "$QNN_SDK_ROOT/lib"'),
    Recipe("qnn-ci env", FETCHED, "export QNN_SDK_ROOT=", fill={"PROFILE": ("emulator", "aot")}),
    Recipe("cache info|cache clean", says="total|removed .* MiB from store"),
    Recipe("cache-key", says="qnn-ci-"),
    # Benchmarks and tests.
    Recipe("bench -- emulator", says="warm +[0-9.]+ s", **MODELS),
    Recipe("bench -- gate", says="ours +[0-9]+", **MODELS),
    Recipe(
        "bench -- (doctor|provisioning|device|upstream)", elsewhere=".github/workflows/nightly.yml"
    ),
    Recipe("nox -s test_trained", elsewhere=".github/workflows/nightly.yml"),
    Recipe("bench -- parity", (setups.shrink_bench,), "whole tree, nothing kept", packages=TORCH),
    Recipe("nox -s (tests|unit)$", says="1 passed"),
    Recipe("nox -s (tests|unit) -- tests/", says="1 passed", fill=ONE_TEST),
    Recipe("nox -s lint", elsewhere=".ci/run"),
    Recipe("nox -s release", elsewhere=".github/workflows/release.yml"),
    Recipe("-s mutants", (setups.shrink_judging,), r"ci/judging +2 +1 +1 +0 +0 +0 +50\.0\n"),
    # A clone whose last commit adds a file to CMake alone.
    Recipe(
        "parity$",
        (setups.enter_executorch,),
        setups.NEW_FILE,
        1,
        fill={"./nox": ("../../project/nox",)},
    ),
    Recipe("parity -- --source", (setups.clone_beside,), setups.NEW_FILE, 1),
    # A change of one model, and the jobs that it needs.
    Recipe(
        "plan --verify",
        (setups.branch_off,),
        "1 commit; 0 ran everything",
        fill={"main~20..main": ("main..change",)},
    ),
    Recipe(
        "plan --record",
        (setups.branch_off,),
        "docker_build: opened",
        fill={"unit": ("docker_build",)},
    ),
    Recipe("-s plan|-ci plan", (setups.branch_off,), "(1 file changed|## Plan).*test_emulator"),
    Recipe("qnn-ci matrix", (setups.plan_two_cases,), '^{"include":.*test_emulator-1-of-1'),
    Recipe("qnn-ci gate", (setups.leave_results,), "green"),
    Recipe("qnn-ci judge .*--pulled", (setups.pull_outputs,), "outputs of SM8650 of the farm"),
    Recipe("qnn-ci judge", (setups.leave_outputs,), "1 passed"),
    Recipe("report shard-1", (setups.record_shards,), "3 passed"),
    Recipe("report --trend", (setups.record_report,), "1 report, .*mlp +fp16"),
    Recipe("qnn-ci report", (setups.record_report,), r'mlp +fp16.*1 passed|"\$schema"'),
    # Small Hexagon libraries, signed by a stand-in for the SDK's signer.
    Recipe("SESSION|sign_skel$|qnn-ci sign$", (setups.give_signer,), code=2),
    Recipe("sign_skel", (setups.give_signer,), "libQnnLpaiSkel.so: V79|signed and verified"),
    Recipe("verify-signature", SIGNED, "proven"),
    Recipe("adb push", (*SIGNED, setups.attach_phone), adds=f"&& cmp {SKEL} $ADB_DEVICE/{PUSHED}"),
    Recipe("adb", (setups.attach_phone,), r"adbd|searched \. and \. for --model_path"),
    Recipe("readelf", says="NEEDED", adds=str(setups.LIBRARIES / "libx86.so")),
    # No engine answers: tests/integration/images runs the same verbs with one.
    Recipe("docker_|image", (setups.have_no_engine,), "no Docker engine answers", 3),
    # The program itself.
    Recipe(
        "pip install",
        (setups.serve_wheel,),
        adds="--quiet --no-deps --target installed",
        then=runs_without_the_checkout,
    ),
    Recipe("qnn_ci -- VERB", says="usage: ", fill={"VERB": ("list",)}, adds="--help"),
    Recipe("VERB", says="usage: ", fill={"VERB": tuple(ci.__main__.VERBS)}, adds="--help"),
    Recipe("--version", says=r"^executorch-qnn-ci \d"),
    Recipe("^eval .*completion", says="-F ", adds="&& complete -p qnn-ci"),
    Recipe("completion", says="complete .*qnn-ci|#compdef"),
    Recipe(
        "qnn-ci init$",
        (setups.enter_repository,),
        "wrote .*qnn.toml",
        adds=f"--uses {setups.COMMIT}",  # which pip records where it installs from GitHub
    ),
    Recipe("qnn-ci init", (setups.enter_repository,), "wrote .*qnn.toml"),
)
