"""The situations that print a fix with an option or a command: a row per fix, or the reason why no
test types it. A new fix needs one of them."""

from __future__ import annotations

import re

# A command that is refused, and a part of the fix that it prints.
ROWS = (
    ("audit --model mlp --scheme u8", "pass --scheme 8a8w"),
    ("build direct --source tree", "add --soc, such as SM8750"),
    ("build direct --source tree --soc SM8450 --dsp-type 0", "use --dsp-type 3"),
    ("build runner --profile emulator", "omit --profile: this target does not use one"),
    ("doctor staged", "=DIR"),
    ("estimate", "pass --model"),
    ("estimate --model mlp --device S24 --soc SM8350", "pass either --device or --soc"),
    ("estimate --model mlp --device 'Snapdragon 8 Gen 3'", "pass --soc "),
    ("fuzz --graph net.py --soc SM8650 --soc SM8750", "pass --soc once"),
    ("init --policy-only", "move it away, or pass --force, which renames existing files"),
    ("init --workflow-only", "pass --uses OWNER/REPOSITORY@COMMIT, with "),
    ("init --workflow-only --directory folder --uses a/b@" + "c" * 40, "leave out --workflow-only"),
    ("inspect", "pass a file, or --soc alone"),
    (
        "localise --model mlp --model resnet --reproducer r.py",
        "select one --model, --scheme and --soc",
    ),
    ("mend --model net.onnx --standalone", "leave out --standalone"),
    ("mend --model net.onnx --output .", "pass another directory to --output"),
    (
        "mend --apply --policy qnn.toml --model m --output .",
        "pass another directory to --output, or leave out --apply",
    ),
    ("mend --apply --policy qnn.toml --model m --soc SM8750", "leave out --soc"),
    ("mend --apply --policy default --model mlp", "pass --policy, or leave out --apply"),
    ("parity --source tree --base HEAD", "omit --base"),
    ("parity --source tree --rev HEAD", "omit --rev"),
    ("parity --source .", "or --policy with this project's layout"),
    ("path qnn-sdk", "run `qnn-ci fetch "),
    ("plan --source folder", "or pass one with --source"),
    ("report folder --trend folder", "leave out PATH: --trend names"),
    ("sign", "pass --lpai-arch v6"),
    ("sign --lpai-arch v6 --out folder", "pass --force to replace it"),
    ("sign --lpai-arch v6 --out tree --force", "choose another --out"),
    ("upgrade-report", "pass OLD and NEW, or --model alone"),
    (
        "upgrade-report 2.49.0 2.50.0 --model mlp --with onnxruntime-qnn==2.7.0",
        "leave out --with, or OLD and NEW",
    ),
    ("stage --soc SM8650 --runner gone --runtime folder --out out", "run `qnn-ci build android`"),
    ("test --policy default", "pass --model file.py:factory"),
    ("test --model net.onnx --runtime litert", "and leave out --runtime"),
    ("test-emulator --plan empty.json", "to run all cases, leave out --plan"),
    ("test-emulator --plan plan.json --model m", "leave out --plan, or "),
    ("test-emulator --policy gone.toml", "`qnn-ci init --policy-only` writes one"),
    ("test-litert --model files", "run `qnn-ci test-onnx --model files` for its .onnx files"),
    ("test-emulator --model net.onnx", "if a policy also has other models, choose these"),
    ("test-emulator --policy both.toml", "if a policy also has other models, choose these"),
    ("test-emulator --model mlp --backend gpu --estimate", "leave out --estimate"),
    ("test-emulator --policy traced.toml --runner cpp", "leave out --runner"),
    ("test-emulator --scheme u8", "pass --scheme 8a8w"),
    ("test-emulator --model mlp --scheme mixed", "add --model "),
    ("test-emulator --policy lpai.toml", "add --backend lpai"),
    ("test-litert --scheme 8a8w", "pass --scheme fp16"),
    ("test-litert --model net.py:factory --scheme asis", "or quantize the model with LiteRT's"),
    ("test-llm --program net.pte --scheme fp16", "leave out --scheme, and pass at most one --soc"),
    ("test-llm --max-perplexity 5", "pass the text to measure with --text"),
    ("test-llm --bundle folder --soc SM8650 --soc SM8750", "pass at most one --soc"),
    ("test-onnx --model net.onnx --direct --embed-mode 0", "leave out --embed-mode"),
    ("test-onnx", "to export these models to ONNX, run "),
    ("test-onnx --model net.tflite", "if a policy also has other models, choose these"),
    ("upgrade-report qnn==1 qnn==2 --matrix", "pass a wheel to --with, or an SDK to --sdk"),
)

# Where fixes are printed that no row prints, and why.
UNTYPED = {
    "ci/builds/": "needs sources of ExecuTorch, an SDK and compilers",
    "ci/litert/plugin.py": "needs a model that LiteRT's plugin refuses",
    "ci/cases/limited.py": "needs a model that prints or hangs",
    "ci/cases/pipeline.py": "needs a program that was lowered",
    "ci/cases/qnn_files.py": "needs a QNN of another version",
    "ci/device/": "needs a phone or a board",
    "ci/images/": "needs a Docker engine",
    "ci/inspect/": "needs a program or an app; the tests of inspect print it",
    "ci/latency/calibrate.py": "needs a report with times of a device",
    "ci/litert/": "needs ai-edge-litert",
    "ci/llm/": "needs torch and weights",
    "ci/mend/policy.py": "needs a model that was mended",
    "ci/onnx/": "needs onnx",
    "ci/parity/": "needs a tree of ExecuTorch",
    "ci/report/claim.py": "needs another run that writes to the same directory",
    "ci/signing/": "needs a signer, or a phone",
    "ci/upstream/": "needs ExecuTorch's tests",
    "ci/verbs/build.py": "needs sources of ExecuTorch and an SDK",
    "ci/verbs/deploy.py": "needs a phone or a board",
    "ci/verbs/judge.py": "needs the outputs of a device",
    "ci/verbs/lanes/emulator.py": "needs a runner",
    "ci/verbs/mend.py": "needs a model that was mended",
    "ci/verbs/sides.py": "needs two versions of ExecuTorch",
    "provisioning/artifacts/": "needs an artifact that differs from its pin, or a server",
    "provisioning/console/command.py": "argparse prints it, with --help",
    "provisioning/doctor/": "needs an SDK of the user",
    "provisioning/store/": "needs a full disk",
    "provisioning/verbs/": "nobody knows the value",
}
# Single fixes that no row prints, and why.
LEFT = {
    "pass --base a revision that shares history with the head": "nobody knows the revision",
    (
        "rename it, pass another file to --policy, or `--policy default` to test this project's own"
        " suite"
    ): "test_hints_are_typed types it in a directory with such a policy",
    "pass --scheme {counterpart or names[0]}": "rows print it with a scheme",
    "pass --scheme {matching_scheme}, which replaces the schemes of a policy": "a quantized file",
    "write {matching_scheme}, or pass --scheme {matching_scheme}": "needs a quantized file",
    "remove {scheme}, or select other schemes with --scheme, such as {able[0]}": "edits a policy",
    "use --soc with one of: {able}": "an option of a lowering that few SoCs have",
    "use --model to choose models without these options": "nobody knows the models",
    "select the cases with --model, --scheme and --soc": "nobody knows the cases",
    "omit --runner, or pass a command that runs the .pte on a device that has it": "a device",
    "test this model with `qnn-ci test-emulator`": "an option of a lowering in a policy",
    "pass --bundle": "nobody knows the bundle",
    "pass the --soc that it was compiled for, or compile it again": "needs a bundle",
    "leave out --frontend, which is the former name of --runtime": "test_runtimes prints it",
    "leave out --runtime, or pass file.py:factory": "test_runtimes prints it",
    "leave out --runtime": "test_loading types it",
    (
        "copy the model into it, or pass --directory with a directory above the model"
    ): "nobody knows the directory",
    (
        "`qnn-ci {mend_command}` tries known rewrites of the model, and proves the result"
    ): "needs a red model; the README's is mended by its command",
    (
        "`qnn-ci {mend_command}` finds operators to compute in float"
    ): "needs a red quantized model; that of docs/guides/mend.md is mended by its command",
    "add the model to a policy (`qnn-ci init` writes one), and pass --policy": "needs torch",
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*|`qnn-ci")
