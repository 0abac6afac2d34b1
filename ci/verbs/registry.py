"""The verbs of ``qnn-ci``, with the environment that each call needs.

The noxfile asks for environments, so this module imports neither the verbs nor third-party
packages.
"""

from __future__ import annotations

from collections.abc import Sequence

import provisioning.__main__
from ci.verbs.environments import (
    choose_emulator,
    choose_estimate,
    choose_file,
    choose_fuzz,
    choose_init,
    choose_litert,
    choose_llm,
    choose_localise,
    choose_onnx,
    choose_setup,
    choose_upgrade,
    find_suite_verb,
)
from ci.verbs.options import DEVICE, EVERYTHING, LOWERING
from provisioning.console.command import Verb, find_verb, order_words, replace_renamed

VERBS: dict[str, Verb] = {
    **provisioning.__main__.VERBS,
    "update": Verb(
        "ci.verbs.update",
        "show as a diff what would change if other versions were pinned; --write pins them",
        examples=("qnn-runtime@2.49.40",),
    ),
    "setup": Verb(
        "ci.verbs.setup",
        "provision and check a profile for the later steps of a CI job",
        environment=choose_setup,
        examples=("emulator",),
    ),
    "test": Verb(
        "ci.verbs.runtimes",
        "judge models by every runtime that can take them, and compare the results",
        "test",
        examples=("--model net.py:factory", "--model net.py:factory --scheme 8a8w --soc SM8750"),
    ),
    "test-emulator": Verb(
        "ci.verbs.emulate",
        "lower models, run them on the HTP emulator, and judge the outputs",
        "test_emulator",
        environment=choose_emulator,
        examples=(
            "--model mlp --scheme 8a8w",
            "--model net.py:factory --soc SM8750 --keep-artifacts kept",
            "--suite faults --filter 'broadcast-*'",
        ),
        find_successor=find_suite_verb,
    ),
    "test-upstream": Verb(
        "ci.verbs.upstream",
        "run ExecuTorch's own QNN tests on the emulator, and judge their outputs",
        "test_upstream",
        environment=EVERYTHING,
        examples=("--filter '*relu*'", "--suite upstream-rework --last-failed"),
    ),
    "test-onnx": Verb(
        "ci.verbs.onnx",
        "compile models with ONNX Runtime, and run them on the emulator",
        "test_onnx",
        environment=choose_onnx,
        examples=("--model net.onnx --scheme u8", "--model net.onnx --shape x=1,3,224,224"),
    ),
    "test-litert": Verb(
        "ci.verbs.litert",
        "compile .tflite files with LiteRT's plugin, and run them on the emulator",
        "test_litert",
        environment=choose_litert,
        examples=("--model net.tflite", "--model dense --soc SM8750"),
    ),
    "audit": Verb(
        "ci.verbs.audit",
        "list the operators of a model that QNN supports and those that stay on the CPU",
        "audit",
        environment=choose_localise,
        examples=("--model net.py:factory", "--model mlp --scheme 8a8w --soc SM8750"),
    ),
    "test-llm": Verb(
        "ci.verbs.llm",
        "run a language model on the emulator, and judge its tokens",
        "test_llm",
        environment=choose_llm,
        examples=(
            "--scheme 16a8w --prompt Once",
            "--weights llama --tokenizer tokenizer.json",
            "--bundle gemma.litertlm --reference gemma_cpu.litertlm",
        ),
    ),
    "init": Verb(
        "ci.verbs.init",
        "write a policy and a workflow into a repository",
        environment=choose_init,
        examples=("--model nets/net.py:factory", "--policy-only --model net.tflite"),
    ),
    "build": Verb(
        "ci.verbs.build",
        "build adaptors and runners with CMake",
        "build_",
        environment=LOWERING,
        examples=("runner", "android --source executorch", "aot --source executorch --dry-run"),
    ),
    "image": Verb("ci.verbs.image", "build Docker images, and run a dev shell in one"),
    "report": Verb(
        "ci.verbs.report",
        "show a report.json again, or rewrite the report's other files",
        examples=(
            "reports/test_emulator",
            "reports/test_emulator --base before/report.json --summary",
        ),
    ),
    "judge": Verb(
        "ci.verbs.judge",
        "judge the outputs that a run kept, without running it again",
        environment=LOWERING,
        examples=("kept", "kept --pulled results"),
    ),
    "fuzz": Verb(
        "ci.verbs.fuzz",
        "search for faults in QNN's compiler with generated graphs",
        "fuzz",
        environment=choose_fuzz,
        examples=("--graphs 20", "--runtime executorch --seed 1"),
    ),
    "localise": Verb(
        "ci.verbs.localise",
        "name the operators at which a model loses accuracy",
        environment=choose_localise,
        examples=("--model net.py:factory --scheme 8a8w", "--model net.tflite"),
    ),
    "mend": Verb(
        "ci.verbs.mend",
        "make red models green by rewriting them, with proof",
        "mend",
        environment=choose_localise,
        examples=("--model net.py:factory --scheme 8a8w", "--model net.onnx --minutes 5"),
    ),
    "estimate": Verb(
        "ci.verbs.estimate",
        "predict the time of a model on a device, without one",
        environment=choose_estimate,
        examples=(
            "--model net.py:factory --scheme 8a8w --device 'Galaxy S24'",
            "--model net.onnx --scheme fp16 --trace traces",
        ),
    ),
    "parity": Verb(
        "ci.verbs.parity",
        "report where Buck and CMake build different things",
        "parity",
        examples=("--source executorch", "--source executorch --base origin/main"),
    ),
    "plan": Verb(
        "ci.verbs.plan",
        "list the sessions that a change requires, and why",
        "plan",
        examples=("--base main --head HEAD", "--head HEAD --out plan.json"),
    ),
    "matrix": Verb("ci.verbs.matrix", "print a plan's jobs as the matrix of a GitHub workflow"),
    "gate": Verb("ci.verbs.gate", "judge the results of all jobs of a plan together"),
    "stage": Verb(
        "ci.verbs.stage",
        "collect the files that a device needs to run programs",
        "stage",
        environment=DEVICE,
        examples=("--soc SM8650 --runner qnn_executor_runner --runtime sdk --out bundle",),
    ),
    "deploy": Verb(
        "ci.verbs.deploy",
        "push a bundle to a phone or a board",
        "deploy",
        environment=DEVICE,
        examples=("--device adb: --bundle bundle", "--any soc=SM8650 --bundle bundle"),
    ),
    "sign": Verb(
        "ci.verbs.sign",
        "sign and verify the libraries that the DSP loads",
        "sign_skel",
        examples=("--lpai-arch v6", "--verify signed"),
    ),
    "inspect": Verb(
        "ci.verbs.inspect",
        "show what a program, library or app contains, and whether it can load",
        environment=choose_file,
        examples=("net.pte --soc SM8750", "app.apk --soc SM8650 --strict", "--soc SA8775P"),
    ),
    "explain": Verb(
        "ci.verbs.explain",
        "name the causes of a failure in a log, with their fixes and sources",
        examples=("build.log", "QNN2001", "genie.log --bundle bundle"),
    ),
    "completion": Verb(
        "ci.verbs.completion", "print completions for bash or zsh", examples=("bash",)
    ),
    "upgrade-report": Verb(
        "ci.verbs.upgrade_report",
        "show what changes with another version of QNN or ExecuTorch",
        environment=choose_upgrade,
        examples=(
            "--model net.onnx --scheme u8",
            "onnxruntime-qnn==2.5.0 onnxruntime-qnn==2.7.0 --model mlp",
            "--matrix --known",
        ),
    ),
    "verify-evidence": Verb(
        "ci.verbs.evidence",
        "check the evidence that a program passed",
        examples=("model.pte --evidence evidence.intoto.json",),
    ),
}


# Verbs of an earlier release, with the arguments that replace them.
RENAMED = {
    **provisioning.__main__.RENAMED,
    "check-app": "inspect --load",
    "compat": "inspect --load",
    "verify-signature": "sign --verify",
    "versions-matrix": "upgrade-report --matrix",
}


def choose_environment(words: Sequence[str]) -> str:
    """Return the dependency group for a call with the arguments ``words``. An unknown verb explains
    itself in any group."""
    words = replace_renamed(order_words(words), RENAMED)
    name = find_verb(VERBS, words[0])
    return VERBS[name].choose_environment(words[1:]) if name else "core"
