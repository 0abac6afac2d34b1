"""What each documented command promises: a row per command, or per pattern of commands.

A command takes the first row whose pattern is in its text. A row neither adds, drops nor changes an
argument or a variable: ``before`` puts files where the page says that the reader has them, or types
the page's earlier commands. FILL has a value for each placeholder that pages leave to the reader.
Commands that cannot run are listed in docs/reference/commands.md, with the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from tests.documented import readers
from tests.documented.pages import ROOT, Command
from tests.documented.place import Place
from tests.programs import missing_programs

Given = str | Callable[[Place], None]
LIST = "docs/reference/commands.md"


@dataclass(frozen=True)
class Row:
    """The promise of the commands whose key contains a match of ``of``.

    ``says`` is in the output, in order, where `` ... `` stands for anything. If ``code`` is not 0,
    the command's page shows ``says``, too. ``before`` is done first, in order: a function puts
    files in place, a text is a command of a page. ``needs`` are programs of the machine. Commands
    that are ``slow``, with the minutes that they may take, run only by night. ``daily_in`` is the
    page of which a command with the same session or verb runs daily instead, or the table of
    sessions that has one. What a search finds within its minutes depends on the machine: if it
    ``may_find``, it may also end with 1.
    """

    of: str
    says: str
    code: int = 0
    before: Sequence[Given] = ()
    needs: Sequence[str] = ()
    slow: float = 0
    weekly: bool = False
    daily_in: str = ""
    may_find: bool = False

    @property
    def codes(self) -> set[int]:
        """The exit codes of which one is kept."""
        return {self.code, 1} if self.may_find else {self.code}

    @property
    def limit_s(self) -> float:
        return 60 * (self.slow or 10)

    @property
    def lacks(self) -> str:
        """Why it cannot run on this machine; empty if it can."""
        return missing_programs(*self.needs)

    def is_kept_by(self, text: str) -> bool:
        """Whether ``text`` has everything that ``says`` promises."""
        parts = (re.escape(" ".join(part.split())) for part in self.says.split(" ... "))
        return bool(re.search(".*".join(parts), " ".join(text.split())))


def find_row(command: Command) -> Row:
    """The first row that fits a command. Raises LookupError if there is none."""
    if row := _find_by_key(command.key):
        return row
    raise LookupError(f"{command} has no row in tests/documented/table.py")


@cache
def _find_by_key(key: str) -> Row | None:
    return next((row for row in ROWS if re.search(row.of, key)), None)


@cache
def read_list(section: str) -> dict[str, str]:
    """The commands of a section of the list, each with the other column's text."""
    _, _, text = (ROOT / LIST).read_text("utf-8").partition(f"## {section}\n")
    return dict(re.findall(r"(?m)^\| `(.+?)` \| (.+) \|$", text.partition("\n## ")[0]))


def fill(text: str, place: Place) -> str:
    """A command with a value for each placeholder. The project's repository is the clone."""
    for placeholder, value in FILL.items():
        text = text.replace(placeholder, value.replace("{clone}", str(place.clone)))
    return text


FILL = {
    "https://github.com/OWNER/REPOSITORY@COMMIT": "file://localhost{clone}@main",
    "https://github.com/OWNER/REPOSITORY": "file://{clone}",
    "cd REPOSITORY": "cd executorch-qnn-ci",
    "/path/to/clone": "{clone}",
    "[NAME...]": "qnn-runtime",
    "staging=DIR": "staging=libs",
    "NAME... --to": "emulator --to",
    "NAME...": "qnn-runtime libatomic",
    "path NAME": "path qnn-runtime",
    "fetch NAME": "fetch libatomic",
    "lock NAME": "lock qnn-sdk",
    "ARTIFACT[@VERSION]": "qnn-runtime@2.5.0",
    "WHEEL...": "~/qnn.whl",
    "WHEEL ": "~/qnn.whl ",
    "--from FILE": "--from ~/v2.37.0.250724.zip",
    "FILE ...": "signed/libQnnLpaiSkel.so",
    "DIRECTORY": "signed",
    "--source DIR": "--source $EXECUTORCH_ROOT",
    "--sdk SDK": "--sdk $QNN_SDK_ROOT",
    "PROFILE": "emulator",
    "--base IMAGE": "--base qnn-ci-tests/bare",
    "--base BASE": "--base main",
    "report PATH": "report reports/test_emulator",
    "--trend DIR": "--trend reports",
    "-s SESSION": "-s validate",
    "TARGET": "android",
    "OWNER/REPOSITORY@COMMIT": "example/executorch-qnn-ci@" + "0123456789" * 4,
    "OLD NEW": "before/report.json reports/test_emulator",
    "VERB": "list",
    '"$GITHUB_EVENT_NAME"': "pull_request",
    '"$GITHUB_ENV"': "github.env",
}
EXPORTS = (
    (
        "export QNN_SDK_ROOT=~/qairt/2.37.0.250724 ANDROID_NDK_ROOT=~/android-ndk-r26c "
        "EXECUTORCH_ROOT=~/executorch"
    ),
    "export HEXAGON_SDK_ROOT=~/hexagon-sdk QNN_CI_LIBCXX_ROOT=~/libcxx",
)
SDKS = (readers.sdks, *EXPORTS)
SIGNER = (
    readers.signer,
    (
        "export QNN_SDK_ROOT=~/qairt/2.43.0.260128 HEXAGON_SDK_ROOT=~/hexagon-sdk "
        "HEXAGON_TOOLS_ROOT=~/hexagon-sdk/tools/HEXAGON_Tools/19.0.07"
    ),
)
COMPILERS = ("clang", "ld.lld", "g++", "make", "aarch64-linux-gnu-g++")
BUILD = {"before": SDKS, "needs": COMPILERS}
KEEP = "./nox -s test_emulator -- --model net.py:factory --scheme fp16 --keep-artifacts kept"
INIT = "qnn-ci init --uses OWNER/REPOSITORY@COMMIT"
GREEN = "qnn-ci test-emulator --policy qnn.toml"
NET = (readers.net,)
MEND_ONNX = "./nox -s mend -- --model red.onnx --scheme u8 --output mended-onnx"
RED_PART = "qnn-ci localise --model red.onnx --scheme u8 --reproducer smallest.onnx"
RED_TFLITE = (readers.red_tflite,)
RED_LITERT_PART = "qnn-ci localise --model red.tflite --reproducer smallest.tflite"
QUANTIZED = (readers.quantized_tflite,)
MEND_QUANTIZED = "./nox -s mend -- --policy quantized.toml --output mended-quantized"
MEND = "./nox -s mend -- --model red.py:factory --scheme 16a8w"
BUNDLE = (
    readers.runner_and_runtime,
    ("./nox -s stage -- --soc SM8650 --runner qnn_executor_runner --runtime runtime --out bundle"),
)
PLAN = (readers.change, "qnn-ci plan --head HEAD --out plan.json")
PASSED = "[1/1] ... passed ... controls: ... passed ... 1 passed, 0 failed"
README, CONTRIBUTING = "README.md", "CONTRIBUTING.md"
SESSIONS = "tests/documented/sessions.py"
NO_ENGINE = "no Docker engine answers"

ROWS = (
    Row("^uvx .* test-emulator", "3 passed, 0 failed", before=NET, slow=15),
    Row("^uv tool install ", "Installed 1 executable: qnn-ci", slow=15),
    Row("^uv cache dir", "uv"),
    Row(
        "test_onnx -- --policy mended",
        "1 passed, 0 failed",
        before=(readers.red_onnx, MEND_ONNX),
        daily_in=SESSIONS,
    ),
    Row(
        "--policy mended/qnn.toml",
        "1 passed, 0 failed",
        before=(readers.red_net, MEND),
        daily_in=README,
    ),
    Row("^nox -l$", "judge a model ... test_emulator ... CI of your repository"),
    Row("^qnn-ci --help$", "judge a model ... test-emulator ... CI of your repository"),
    Row("^qnn-ci help why$", "find out why ... localise: ... explain:"),
    Row("^docker image prune", "This will remove all images", needs=("docker",)),
    Row("docker_|image", NO_ENGINE, 3),
    # -- all runtimes --
    Row(
        "-s test -- --model",
        "ExecuTorch fp16 ... ONNX Runtime fp16 ... LiteRT fp16 ... on SM8650: fastest: ",
        before=NET,
        slow=15,
    ),
    # -- test_emulator, from special cases to the suite --
    Row("test_(emulator|onnx) -- --list$", "models (default schemes) ... mlp ... SM8650"),
    Row("test_emulator -- --backend gpu$", "TuningMode must be enabled", 3),
    Row("test_emulator -- --backend lpai$", "QNN909", 3),
    Row("test_emulator -- --shard 1/2", "passed"),
    Row(
        "^nox -s test_emulator .*lost.py:positions",
        "not faithful: the error is 47.4 dB above the predicted noise",
        1,
    ),
    Row("^nox -s test_emulator .*lost.py:twice", "24.0 dB ... 75.9 dB", 1),
    Row("vision.py:mobilevit", "6 nodes fall back to the CPU", 1, daily_in=README),
    Row("^nox -s test_emulator .*(sequences.py|lost.py:norm)", "not faithful", 1, daily_in=README),
    Row("test_upstream -- --filter '[*]Floating", "2 tests: 2 both", slow=3),
    Row("test_upstream -- --filter '[*]Quantized", "not faithful ... theirs only", 1, slow=10),
    Row("--suite backend-suite", "not quantized well", 1, slow=20),
    Row("--suite faults (--runtime litert )?--filter", "passed", slow=20),
    Row("--suite faults$", "passed", slow=40, weekly=True),
    Row("--policy manifests/policies/choices.toml", "0 failed", slow=20),
    Row("test_emulator -- --model net.py.* --keep-artifacts", "1 passed, 0 failed", before=NET),
    Row("test_emulator -- --model net.py", "1 passed, 0 failed", before=NET, daily_in=README),
    Row(
        "--policy qnn.toml --model net$",
        "net 8a8w SM8650 failed ... net 16a8w SM8650 passed ... net finer SM8650 passed",
        1,
        (readers.mixed_net,),
    ),
    Row("^nox -s test_emulator -- --any", "no usable device with SM8650", 3, BUNDLE, ("adb",)),
    Row(
        "test_emulator -- --model mlp --scheme fp16$",
        PASSED.replace("[1/1]", "[1/1] mlp fp16 SM8650"),
    ),
    Row("test_emulator -- --model (mlp|lost.py:expanded)", "passed ... 0 failed", daily_in=README),
    Row("^nox -s test_emulator", "controls: ... passed ... 0 failed", slow=30),
    # -- other lanes --
    Row("test_onnx -- --model net.onnx", PASSED, before=(readers.onnx_net,), daily_in=SESSIONS),
    Row("nox -s test_onnx", "passed ... 0 failed", slow=30),
    Row("test_litert -- --list$", "models (default schemes) ... dense ... SM8650"),
    Row("test_litert -- --model dense", PASSED),
    Row(
        "test_litert -- --policy mended-quantized",
        "1 passed, 0 failed",
        before=(*QUANTIZED, MEND_QUANTIZED),
    ),
    Row("test_litert -- --model net.py", "1 passed, 0 failed", before=NET, slow=30),
    Row("nox -s test_litert$", "passed ... 0 failed", slow=30),
    Row("test_llm -- --project", "projected, not measured", before=(readers.llama_files,)),
    Row(
        "-s test_llm .*--bundle bundle ",
        "bundle: model_part_2_of_2.bin was compiled with QNN 2.49.40 for SM8750",
        1,
        (readers.bundle,),
    ),
    Row(
        "-s test_llm .*--bundle model",
        "where: from the second chunk on: keys of layer 0",
        1,
        (readers.wrong_bundle,),
    ),
    Row("nox -s test_llm", "controls: ... passed ... 0 failed", slow=20, weekly=True),
    Row("estimate .*--runtime onnxruntime", "u8", before=NET, slow=10),
    Row(
        "estimate --model net.py",
        "cycles ... simulated for QCS9100",
        before=NET,
        daily_in=SESSIONS,
    ),
    Row(
        "estimate --model net.onnx",
        "traces/",
        before=(readers.onnx_net,),
        daily_in=SESSIONS,
    ),
    Row("estimate --calibrate", "qnn-latency.json", before=(readers.timed_report,)),
    Row(
        "-s audit .*net.onnx",
        "1 passed, 0 failed",
        before=(readers.onnx_net,),
        daily_in=SESSIONS,
    ),
    Row(
        "-s audit .*--runtime litert",
        "1 passed, 0 failed",
        before=NET,
        daily_in=SESSIONS,
    ),
    Row("-s audit", "an audit does not run QNN's compiler", before=NET, daily_in=SESSIONS),
    Row(
        "localise .*--runtime (onnxruntime|litert)",
        "as predicted",
        before=NET,
        daily_in=SESSIONS,
    ),
    Row(
        "-s mend .*positions --runtime onnxruntime",
        "expand-constant green ... -- --policy mended",
    ),
    Row(
        "qnn-ci localise --model net.py",
        "as predicted ... 2 programs",
        before=NET,
        daily_in=SESSIONS,
    ),
    Row("qnn-ci localise .*positions", "first wrong operator", 1),
    Row("qnn-ci localise --model red.onnx", "smallest part", 1, before=(readers.red_onnx,)),
    Row("test-onnx --model smallest.onnx", "0 passed", 1, before=(readers.red_onnx, RED_PART)),
    Row("localise .*red.tflite", "smallest part", 1, before=RED_TFLITE),
    Row("test-litert --model smallest", "0 passed", 1, before=(*RED_TFLITE, RED_LITERT_PART)),
    Row("qnn-ci localise", "first wrong operator", 1, slow=30),
    Row(
        "-s mend .*red.onnx",
        "0 of 1 case green before, 1 after",
        before=(readers.red_onnx,),
        daily_in=SESSIONS,
    ),
    Row(
        "-s mend .*red.tflite",
        "expand-constant green ... 0 of 1 case green before, 1 after",
        before=RED_TFLITE,
    ),
    Row(
        "-s mend .*quantized.toml",
        "narrow fp16, wide fp16 green ... 0 of 1 case green before, 1 after",
        before=QUANTIZED,
    ),
    Row("-s mend .*lost.py:norm", "0 of 1 case green before, 1 after", slow=10),
    Row(
        "-s mend .*lost.py:positions",
        "expand-constant green ... 0 of 1 case green before, 1 after",
    ),
    Row("-s mend$", "32 of 32 cases green before, 32 after", slow=10, weekly=True),
    Row(
        "-s mend",
        "0 of 1 case green before, 1 after",
        before=(readers.red_net,),
        daily_in=SESSIONS,
    ),
    Row("qnn-ci fuzz --graph", "wrong", 1, (readers.wrong_graph,), slow=3),
    Row("fuzz -- --runtime litert --graph", "wrong", 1, (readers.wrong_graph,), slow=6),
    Row("fuzz", "graphs", slow=30, weekly=True, may_find=True),
    Row("upgrade-report --matrix --known", "pad-beyond-range"),
    Row("upgrade-report --matrix", "report: ... matrix.md", slow=60, weekly=True),
    Row("upgrade-report before|upgrade-report OLD", "1 worse", before=(readers.two_reports,)),
    Row(
        "upgrade-report --model",
        "nothing to mend",
        before=(readers.onnx_net, readers.net),
        slow=60,
        weekly=True,
    ),
    Row("upgrade-report .*--policy", "worse", before=(INIT,), slow=60, weekly=True),
    Row("upgrade-report", "worse", slow=60, weekly=True),
    # -- a team's repository --
    Row("init --workflow-only", "qnn.yml", before=("qnn-ci init --policy-only",)),
    Row("init --model net.tflite", "wrote ... qnn.toml", before=(readers.tflite_net,)),
    Row("qnn-ci init", "wrote ... qnn.toml", daily_in=SESSIONS),
    Row(
        "qnn-ci test-emulator --policy qnn.toml --base",
        "qnn_model.py",
        1,
        (INIT, GREEN, readers.broken_model),
    ),
    Row("--policy qnn.toml --record", "recorded: ", before=(INIT,)),
    Row("test-emulator --policy qnn.toml$", "2 passed, 0 failed", before=(INIT,), daily_in=README),
    Row(
        "qnn-ci report .*--base",
        "test_emulator: FAILED",
        1,
        (INIT, GREEN, readers.broken_model, f"{GREEN} --base before/report.json --sarif qnn.sarif"),
    ),
    Row("qnn-ci cache key", "qnn-ci-"),
    Row("^eval .*setup", ""),
    Row("qnn-ci setup", "export QNN_SDK_ROOT="),
    # -- programs, libraries, apps, logs --
    Row(
        "inspect app.apk --load$", "QNN, HTP skels 2 files ... app.apk: fit", before=(readers.app,)
    ),
    Row("qnn-ci inspect app.apk", "", before=(readers.app,)),
    Row("qnn-ci inspect bundle", "bundle: not fit, 2 errors", 1, (readers.bundle,)),
    Row(
        "inspect model.litertlm --soc SM8750 --qnn-runtime 2.51.0",
        "model.litertlm for 2.51.0 on SM8750: no",
        1,
        (readers.litert_bundle,),
    ),
    Row("qnn-ci inspect model.litertlm", "tf_lite_prefill_decode", before=(readers.litert_bundle,)),
    Row(
        "inspect app --load --soc SM8475", "the pack has no seg for SM8475", before=(readers.pack,)
    ),
    Row(
        "inspect model_ctx.onnx --qnn-runtime 2.47.0",
        "model_ctx.onnx for QNN 2.47.0: no (build)",
        1,
        (readers.context_model,),
    ),
    Row("inspect model_ctx", "2.49.40", before=(readers.context_model,)),
    Row(
        "inspect model.pte --soc SM8750",
        "model.pte for SM8750: no (Hexagon, SoC)",
        1,
        (readers.program,),
    ),
    Row("inspect --soc SA8775P", "SA8255 (SA8775P): Hexagon V73"),
    Row("inspect --soc SM7435", "test_onnx (onnxruntime-qnn): yes, --soc SM7435"),
    Row("inspect model.pte --qnn-runtime", "yes", before=(readers.program,)),
    Row("qnn-ci inspect", "SM8650, V75", before=(readers.program,)),
    Row("qnn-ci explain QNN1608", "AEE_EUNABLETOLOAD"),
    Row(
        "explain QNN2001",
        "states  The program's error is above",
    ),
    Row(
        "qnn-ci explain run.log --bundle",
        "bundle: 4 findings; SoC SM8650; QNN 2.42.0, from line 2",
        1,
        (readers.bundle, readers.genie_log),
    ),
    Row("qnn-ci explain", "libc++.so.1: cannot open shared object file", 1, (readers.logs,)),
    # -- builds --
    Row("--with llama", "qnn_llama_runner", daily_in=SESSIONS, **BUILD),
    # With QNN_SDK_ROOT set, the command of docs/findings/builds.md compiles the same.
    Row("build_runner -- .*--sdk SDK", "built in", daily_in=SESSIONS, **BUILD),
    Row("build_direct --.* --dry-run", "CDSP_VERSION=v79", **BUILD),
    Row(
        "--profile android-r27", "built in", before=(readers.second_ndk, *EXPORTS), needs=COMPILERS
    ),
    Row("build linux --dry-run", "cmake -S", **BUILD),
    Row("build_(android|linux|aot|runner|direct) ?-- |build_linux", "built in", **BUILD),
    Row("build_android$|build TARGET", "built in", **BUILD),
    Row("build_runner$", "qnn_wheel_runner", daily_in=SESSIONS),
    Row(
        "qnn_wheel_runner",
        "",
        before=(
            readers.net,
            KEEP,
            "./nox -s build_runner",
            readers.wheel_runner,
            'eval "$(qnn-ci env emulator --shell)"',
        ),
    ),
    # -- doctor --
    Row("validate -- --backend", "QNN909", 3),
    Row("doctor linux", "QNN100", 3),
    Row("(validate --|doctor) (android|linux)", "not fit", 3),
    Row("doctor aot", "aot: fit", 0, SDKS, COMPILERS),
    Row("doctor staged", "staged: fit", before=(readers.staged_libraries,)),
    Row("doctor emulator --json", '"fit": true'),
    Row("SESSION|doctor|validate", "emulator: fit"),
    # -- store --
    Row("fetch qnn-sdk --to mirror", "licence that you have not accepted", 3),
    Row("fetch (qnn-sdk|aot|android)|provision -- lpai", "this fetch needs your consent", 3),
    Row("env aot", "QNN_SDK_ROOT", before=SDKS, needs=COMPILERS),
    Row("fetch|provision", ""),
    Row("lock qnn-sdk --write|lock NAME --write", "licence that you have not accepted", 3),
    Row("lock-skels", "+skels", before=(readers.skel_wheel,)),
    Row("lock qnn-sdk --from", "locks/qnn-sdk", before=(readers.sdk_archive,)),
    Row("qnn-ci lock", "nothing changed"),
    # What it prints last depends on what the index has since the locks were written.
    Row(
        "update locks",
        "resolving core ... resolving test-litert ... resolving torch 2.13.0",
        weekly=True,
    ),
    Row("(qnn-ci|qnn_ci --) update", "nothing changed"),
    Row("qnn-ci verify( |$)", "all unchanged"),
    Row("qnn-ci list", "profile emulator: "),
    Row("qnn-ci path", "/store/qnn-runtime-"),
    Row("qnn-ci cache gc", "freed"),
    Row("GITHUB_ENV", ""),
    Row("env emulator|env PROFILE", ""),
    Row("cache info", "total"),
    Row("cache clean all", "removed"),
    # -- devices, signing, images --
    Row("deploy .*--(device adb|any)", "no", 3, BUNDLE, ("adb",), daily_in=SESSIONS),
    Row(
        "test-emulator .*--(device adb|any)",
        "no",
        3,
        BUNDLE,
        ("adb",),
        daily_in="docs/guides/device-lab.md",
    ),
    Row("test-onnx --device ssh:", "cannot be reached", 5, (readers.onnx_net,), ("ssh",)),
    Row("--device ssh:", "cannot be reached", 5, BUNDLE, ("ssh",)),
    Row("export ", ""),
    Row("stage .*--cases", "", before=(readers.net, KEEP, readers.runner_and_runtime)),
    Row("stage", "x86_64-linux for SM8650", before=(readers.runner_and_runtime,)),
    Row("sign_skel$|qnn-ci sign$", "no library to sign is selected", 2),
    Row("sign_skel .*--dry-run", "libQnnLpaiSkel.so", before=SIGNER),
    Row("sign_skel", "signed and verified", before=SIGNER),
    Row("sign --verify$", "no library to verify", 2),
    Row(
        "sign --verify",
        "proven",
        before=(*SIGNER, "./nox -s sign_skel -- --lpai-arch v6"),
    ),
    # -- plans and reports --
    Row("-s plan|-ci plan", "", before=(readers.change,), daily_in=SESSIONS),
    Row("qnn-ci matrix", "include", before=PLAN),
    Row("qnn-ci gate", "green", before=(*PLAN, readers.results)),
    Row("judge kept --pulled", "", before=(readers.net, KEEP, readers.pulled_outputs)),
    Row("judge kept", "", before=(readers.net, KEEP)),
    Row("report shard-1", "3 passed", before=(readers.two_shards,)),
    Row("report --schema", '"$schema"'),
    Row("report --trend", "1 report", before=(readers.report,)),
    Row("qnn-ci report .*--json", '"judgement"', before=(readers.report,)),
    Row("qnn-ci report", "1 passed", before=(readers.report,)),
    Row("verify-evidence", "passed ... case: mlp 8a8w SM8650", before=(readers.evidence,), slow=3),
    # -- parity --
    Row(
        "-s parity$|qnn-ci parity", "cmake-only-source", 1, (readers.two_build_systems, EXPORTS[0])
    ),
    Row("parity -- ", "cmake-only-source", 1, (readers.executorch_below,)),
    # -- the project itself --
    Row("bench -- (emulator|gate|first)", "", slow=60, weekly=True),
    Row("-s journeys", "passed", slow=30, daily_in=SESSIONS),
    Row("-s stress|stress -- ", "passed", slow=30, daily_in=SESSIONS),
    Row("mutants -- .* --sample", "10 of ... mutants tried", slow=5, daily_in=SESSIONS),
    Row("test_trained -- --model", "bad cases, 0 green", slow=20, daily_in=SESSIONS),
    Row("-s environments", "Session environments was successful", daily_in=SESSIONS),
    Row("unit -- tests/unit/ci/audit", " passed", daily_in=SESSIONS),
    Row("tests -- tests/static/test_links", " passed"),
    Row("tests -- .*llm/test_stories.py", "QNN_CI_STORIES260K", daily_in=CONTRIBUTING),
    Row("tests -- .*llm/test_families.py", "QNN_CI_NIGHTLY is not set", daily_in=CONTRIBUTING),
    Row("nox -s (unit|tests)", " passed", slow=60, weekly=True),
    Row("^pip ", "Successfully installed", weekly=True),  # pip downloads torch for each
    Row("^git clone", "Cloning into 'executorch-qnn-ci'"),
    Row("^cd ", "", before=("git clone https://github.com/OWNER/REPOSITORY",)),
    Row("qnn_ci -- VERB|qnn-ci VERB", "profile emulator: "),
    Row("--version", "executorch-qnn-ci"),
    Row("completion", "qnn"),
)
