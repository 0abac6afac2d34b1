"""The situations that print a fix with an option or a command: a row per fix, or the reason why no
test types it. A new fix needs one of them."""

from __future__ import annotations

import re

# A command that is refused, and a part of the fix that it prints.
ROWS = (
    ("audit --model mlp --scheme u8", "pass --scheme 8a8w"),
    ("estimate --model mlp --runtime executorch --frontend onnx", "leave out --frontend, which"),
    ("estimate --model mlp --shape x=4,16", "pass one with --model"),
    (
        "init --policy-only --directory folder --model net.py:factory",
        "or pass --directory with a directory",
    ),
    ("localise --model net.onnx --runtime litert", "leave out --runtime, or pass file.py:factory"),
    ("parity --source checkout --scope gone", "correct the folder in --scope"),
    ("test-emulator --model mlp --backend gpu --runner cpp", "omit --runner, or pass a command"),
    ("test-emulator --backend gpu --plan plan.json", "select the cases with --model, --scheme and"),
    ("test-emulator --model mlp --backend lpai --soc SM8650", "use --soc with one of: "),
    ("test-emulator --model net.py:factory --record", "and pass --policy"),
    ("test-litert --device ssh:board", "or judge the PyTorch model with `qnn-ci test-emulator`"),
    ("build runner --source checkout --python ./broken", "correct --python"),
    ("deploy --bundle bundle --any soc=SM8650", "or pass boards: --device ssh:A --device ssh:B"),
    ("deploy --bundle bundle --device adb:", "pass --device adb:"),
    ("deploy", "pass --device adb:, --device ssh:HOST or --any soc=SOC"),
    ("deploy --bundle bundle --any soc=SM1", ", for which the bundle is"),
    ("deploy --bundle bundle --any soc=SM8750", "stage a bundle with --soc "),
    ("deploy --clean --any soc=SM8650", "pass one --device; without --clean, --any soc=SOC"),
    ("doctor emulator --root sdk", "for example, pass --root qnn-sdk="),
    ("explain run.log --soc SM8650", "pass --bundle"),
    ("fetch qnn-sdk", "run `qnn-ci fetch qnn-sdk --accept-licence --trust-first-use`"),
    ("fetch qnn-sdk --trust-first-use", "read it, then use --accept-licence or set "),
    ("fetch qnn-sdk --accept-licence", "add --trust-first-use on a machine that you trust"),
    ("image build", "or install docker.io"),
    ("inspect app.aab --load", "run `bundletool build-apks --mode=universal "),
    ("inspect judged --load", " for the program in it; or "),
    (
        "inspect folder --load",
        "build the APK and pass it; for libraries laid out as on a device, use ",
    ),
    ("inspect program.pte --load", "add --qnn-runtime, --soc or both"),
    ("judge judged", "wrote for --keep-artifacts"),
    ("test --model net.py:factory --scheme W8A8", "pass --scheme 8a8w"),
    ("judge folder", "run the model with --keep-artifacts kept, and pass kept"),
    ("lock executorch --from net.onnx", "omit --from"),
    ("parity --source folder/gone", "pass a checkout with --source"),
    ("report . --annotate --json", "leave out --json, or "),
    ("sign libQnnHtpV75Skel.so --signer gone", "correct --signer or PATH"),
    (
        "sign libQnnHtpV75Skel.so --signer 'true {input}' --testsig 12",
        "remove {input} and {output} from",
    ),
    ("sign libQnnHtpV75Skel.so --testsig adb", "connect one device, or select one with --device"),
    (
        "test-emulator --model mlp --reports taken",
        "move it, or pass another directory with --report",
    ),
    ("test-emulator --model mlp --reports net.onnx/x", "pass a writable directory with --reports"),
    ("test-emulatr", "--help` lists the "),
    ("update qnn-sdk --cooldown 3", "leave out --cooldown"),
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
    (
        "test --model net.py:factory --runtime executorch --soc QCM2290",
        "choose another SoC, or another --runtime",
    ),
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
    ("test-onnx --policy lowered.toml", "test this model with `qnn-ci test-emulator`"),
    (
        "test-emulator --policy prepared.toml --backend gpu",
        "use --model to choose models without these options",
    ),
    ("test-litert --policy eight.toml", "or pass another scheme, such as --scheme fp16"),
    ("estimate --calibrate judged", "pass the report of test_emulator with --estimate and"),
    ("test-llm --model stories260k --offline", "omit --offline, or set QNN_CI_STORIES260K to"),
    ("mend --apply --policy inline.toml --model m", "write it so, or leave out --apply, which"),
    (
        "stage --soc SM8650 --runner runner.so --runtime skels --out out",
        "pass a directory with this library to --runtime, which may be repeated",
    ),
    (
        "stage --soc SM8750 --runner runner.so --runtime v75 --out out",
        "pass an SDK to --runtime, or qnn-runtime-aarch64, which contains",
    ),
    (
        "test-emulator --model mlp --scheme fp16 --keep-artifacts kept",
        "move the directory away, or pass another one to --keep-artifacts",
    ),
    ("mend --model net.onnx --output users", "; or pass another directory to --output"),
    (
        "test-emulator --model mlp --runner cpp --adaptor overlay",
        "leave out --runner, or pass the qnn_executor_runner that ",
    ),
    ("test-emulator --policy lpai.toml --backend lpai", "accepts qnn_executor_runner's flags"),
    ("test-emulator --gone", "see `qnn-ci test-emulator --help`"),
    (
        "build android --source checkout --executorch 1.2.0",
        "omit --executorch, or set --source to a checkout of that version",
    ),
    ("build aot --source checkout --python ./isolated", "or add --install none"),
    (
        "sign libQnnHtpV75Skel.so --signer ./waits --timeout 1",
        "or raise the limit with --timeout",
    ),
    (
        "sign libQnnHtpV75Skel.so --signer './elsewhere {input} {output}'",
        "correct --signer: {input} is the file to sign",
    ),
    (
        "sign libQnnHtpV75Skel.so --hexagon-sdk hexagon --signer-python ./broken",
        "to a Python older than 3.12, or omit both",
    ),
    ("sign --lpai-arch v6 --qnn-sdk old", "and pass its directory with --qnn-sdk"),
)
# Rows that need a package which an environment may lack.
ROWS_WITH = {
    "executorch": (
        ("upgrade-report executorch==1.2.0 executorch==1.5.1 --model mlp", "in a checkout, run "),
    ),
    "onnx": (
        ("inspect net.onnx --runtime litert", "leave out --runtime"),
        (
            "test-onnx --model quantized.onnx --scheme u8",
            "pass --scheme asis, which replaces the schemes of a policy",
        ),
        ("test-onnx --policy quantized.toml", "write asis, or pass --scheme asis"),
        (
            "test-onnx --policy mixed.toml",
            "remove the mixture: the types that the file contains are shown by --list",
        ),
    ),
    "flatbuffers": (
        (
            "test-litert --model compiled.tflite",
            "from which it was compiled; `qnn-ci inspect compiled.tflite` describes it",
        ),
    ),
    "sentencepiece": (
        (
            "test-llm --bundle compiled.litertlm --soc SM8750",
            "pass the --soc that it was compiled for, or compile it again",
        ),
    ),
    "torch": (
        (
            "test-llm --prompt 'Ben has a blue boat. The boat sails far. Ben has a blue boat.'",
            "pass a shorter prompt, a larger --context or a smaller --prefill",
        ),
        (
            "test-llm --weights weights.bin --tokenizer small.bin",
            "pass the tokenizer that was published with the weights to --tokenizer",
        ),
    ),
}

PLANS = (
    "tests/unit/ci/gate/test_plan_verb.py"
    "::test_a_plan_of_a_repository_without_rules_says_whose_sessions_it_lists"
)
HINTS = "tests/unit/ci/verbs/test_hints_are_typed.py"
ARTIFACTS = "tests/unit/provisioning/artifacts/test_verbs.py"
SUITE = "tests/journeys/test_fake_suite.py"
BUNDLES = "tests/integration/llm/test_bundles.py"
LITERT = "tests/integration/litert/test_typed_remedies.py"
ONNX = "tests/integration/onnx/test_typed_remedies.py"
USERS = "tests/integration/cases/test_users_functions.py"
BUILDS = "tests/integration/builds"
DEVICES = "tests/integration/device/test_verbs.py"
BOARDS = "tests/integration/device/test_onnx_board.py"
LACKING = f"{HINTS}::test_no_hint_of_a_refusal_that_needs_more_than_files_ends_in_another_one"
# What a fix has in braces differs from call to call. These are typed by the row of a command, or by
# a test of their own.
TYPED_BY = {
    "pass --rules {rules} for ExecuTorch": PLANS,
    "for another repository, pass --rules": PLANS,
    "pass --scheme {counterpart or names[0]}": "test-emulator --scheme u8",
    "pass --scheme {meant}": "test --model net.py:factory --scheme W8A8",
    (
        "pass --scheme {matching_scheme}, which replaces the schemes of a policy"
    ): "test-onnx --model quantized.onnx --scheme u8",
    (
        "write {matching_scheme}, or pass --scheme {matching_scheme}"
    ): "test-onnx --policy quantized.toml",
    (
        "remove {scheme}, or pass another scheme, such as --scheme {remaining_schemes[0]}"
        "{other_way}"
    ): "test-litert --policy eight.toml",
    (
        "pass the model from which it was compiled; `qnn-ci inspect {name}` describes it"
    ): "test-litert --model compiled.tflite",
    (
        "omit --offline, or set {variable} to a directory with the file"
    ): "test-llm --model stories260k --offline",
    "{hint}see `{self.prog} --help`": "test-emulator --gone",
    "pass --rev HEAD, or run `git sparse-checkout disable`": LACKING,
    "pass --base a revision that shares history with the head": LACKING,
    "wait until it has ended, or pass another directory with --reports": LACKING,
    "install platform-tools, or pass the SoC's serial number with --testsig": LACKING,
    "pass another directory to --output, or --force, which renames the old policy": LACKING,
    (
        "pass all three parts of the runtime's version (--qnn-runtime {newest})"
    ): f"{HINTS}::test_a_version_in_two_parts_is_asked_for_in_three",
    (
        "rename it, pass another file to --policy, or `--policy default` to test this project's own"
        " suite"
    ): f"{HINTS}::test_a_policy_that_is_a_directory_is_replaced_by_another",
    **dict.fromkeys(
        (
            "run `qnn-ci lock {request.name}` to see every difference",
            "change the manifest by hand, then run `qnn-ci lock {job.request.name} --write`",
            "free some space, run `qnn-ci cache gc`, or set {HOME_VARIABLE}",
        ),
        f"{ARTIFACTS}::test_hints_about_a_lock_a_version_and_a_full_disk_are_typed",
    ),
    **dict.fromkeys(
        (
            "pass one --device",
            "leave out --direct and the option that selects another backend",
            "leave out --profile",
            "leave them out, or leave out --device",
        ),
        f"{BOARDS}::test_options_that_a_board_cannot_use_are_refused",
    ),
    "pass the --soc of the board": f"{BOARDS}::test_a_board_with_another_soc_is_refused",
    **dict.fromkeys(
        (
            (
                "install onnxruntime-qnn and the onnxruntime that it needs there, or pass the"
                " Python that has them with --board-python"
            ),
            "install Python 3.10 or newer there, or pass another one with --board-python",
        ),
        f"{BOARDS}::test_a_board_that_cannot_run_onnx_is_refused_before_anything_is_compiled",
    ),
    **dict.fromkeys(
        ("pass --wait SECONDS to wait for a device", "pass --wait SECONDS to wait for the device"),
        f"{DEVICES}::test_deploy_waits_for_a_device_in_use_only_with_wait",
    ),
    **dict.fromkeys(
        (
            "pass another directory with --place, or remove this one on the device",
            "free space on the device, or pass another directory with --place",
            "pass the --place with which the bundle was deployed",
        ),
        f"{DEVICES}::test_another_place_is_the_cure_of_one_that_cannot_be_used",
    ),
    (
        "call it in Python by itself, and let it return; raise --timeout-s if it is slow"
    ): f"{USERS}::test_the_nodes_of_a_model_are_listed_when_its_function_returns",
    (
        "choose a scheme that quantizes, such as --scheme u8, or another SoC"
    ): f"{ONNX}::test_a_float_model_is_green_in_the_scheme_that_its_fix_names",
    **dict.fromkeys(
        (
            "--keep-artifacts keeps QNN's messages, as plugin.stdout.log",
            "--keep-artifacts keeps its messages, as plugin.stderr.log",
            (
                "change or quantize these operators in another way; --keep-artifacts keeps all"
                " messages, as plugin.stderr.log"
            ),
            (
                "change what the reason names: the operator, its type (quantize the model) or the"
                " SoC; --keep-artifacts keeps all reasons of QNN, as plugin.stdout.log"
            ),
        ),
        f"{LITERT}::test_the_kept_file_that_a_fix_names_has_the_messages",
    ),
    (
        "leave out --last-failed to run all tests again"
    ): f"{SUITE}::test_references_and_program_get_what_the_test_gave",
    **dict.fromkeys(
        ("pass --prompt", "pass a shorter --prompt"),
        f"{BUNDLES}::test_a_prompt_or_metadata_that_does_not_fit_a_bundle_is_refused",
    ),
    (
        "git -C {shell_word(str(source))} submodule update --init --recursive"
        " {shell_words(missing)}"
    ): f"{BUILDS}/test_build_aot.py::"
    "test_submodules_that_a_checkout_lacks_are_there_after_the_command_in_the_fix",
    (
        "pass a newer SDK with --sdk, or build an ExecuTorch that works with this one"
        " (docs/reference/pairs.md)"
    ): f"{BUILDS}/test_build_aot.py::"
    "test_names_that_an_sdk_lacks_are_in_the_newer_one_that_the_fix_asks_for",
    "install torch there, or add --no-proof to only import the adaptor": (
        f"{BUILDS}/test_build_aot.py::"
        "test_what_a_python_lacks_is_named_before_the_build_unless_the_build_does_not_need_it"
    ),
    "`qnn-ci {'inspect', str(program), '--soc', soc)} shows every check": (
        "tests/unit/ci/device/test_messages.py::test_the_command_of_a_refusal_shows_every_check"
    ),
    (
        "give the engine access to the registry or to a mirror, or load the image into the"
        " engine and pass its name with --base"
    ): "tests/unit/ci/images/test_engine_calls.py::"
    "test_an_unpullable_base_image_is_reported_before_wheels_are_fetched",
    "use a longer prompt, or a smaller --prefill": (
        "tests/unit/ci/llm/test_lowering.py::"
        "test_a_text_ends_where_the_context_has_room_for_no_more_calls"
    ),
    "pass an SDK that contains it with --sdk, or omit the option for the backend": (
        "tests/unit/ci/onnx/test_arguments.py::"
        "test_a_library_that_is_missing_is_in_another_sdk_or_not_needed_without_the_option"
    ),
    "if the signer is known to use such keys, pass --accept-unrecognised": (
        "tests/integration/signing/test_failures.py::"
        "test_unrecognised_signature_fails_unless_it_is_accepted"
    ),
    (
        "check --filter, -k and --deselect; names are such as"
        " TestQNNQuantizedOperator::test_qnn_backend_relu"
    ): f"{SUITE}::test_a_fake_suite_has_every_outcome_and_the_failed_ones_run_again",
    (
        "`qnn-ci {mend_command}` tries known rewrites of the model, and proves the result"
    ): "tests/journeys/test_quoted_folder.py::test_a_model_below_a_quoted_folder_is_mended",
    "use a smaller model, or raise --timeout-s": (
        "tests/integration/cases/test_limited.py::"
        "test_a_file_whose_reading_does_not_end_in_time_is_refused"
    ),
    (
        "choose another directory for --keep-artifacts, on a disk with enough free space"
    ): "tests/unit/ci/cases/test_pipeline.py::"
    "test_another_directory_than_that_on_a_full_disk_keeps_the_artifacts",
    (
        "change the model; if it is only slow to compile, raise --timeout-s"
    ): "tests/unit/ci/litert/test_plugin.py::"
    "test_a_plugin_that_is_only_slow_compiles_with_a_higher_limit",
    (
        "change the manifest by hand, then run `qnn-ci lock {name} --write`"
    ): f"{ARTIFACTS}::test_the_hint_about_a_manifest_that_cannot_be_rewritten_is_typed",
    (
        "install Python 3.11 (`uv python install 3.11`), or pass a Python older than 3.12 with"
        " --signer-python or {PYTHON_VARIABLE}"
    ): "tests/unit/ci/signing/test_signer.py::"
    "test_the_signers_python_is_this_one_then_one_on_path_then_one_of_uv",
}
SDK = "needs a QNN SDK from Qualcomm's website, which demands an account"
# Fixes that no test types, and why.
LEFT = {
    (
        "pass such an SDK with --sdk, or provision the profile direct-lpai"
    ): "an SDK in --sdk or a variable is refused before, and any other one is provisioned: it has a"
    " licence",
    "build the adaptor for this Python, with --python and --clean": SDK,
    "remove -D options about Python, and build with --clean": SDK,
    (
        "build qnn_executor_runner with `qnn-ci build runner --source CHECKOUT` and the same --sdk,"
        " and pass it as --runner"
    ): SDK,
    "run `qnn-ci {'build', 'aot', '--sdk', str(sdk.root))}": SDK,
    (
        "build with --release, or look for large unneeded parts with `nm --size-sort`"
    ): "no build of this project exceeds its limit",
    (
        "set --runner to a command that runs it on such a device; the program is kept next to the"
        " report, in qnn/{self.spec.slug}"
    ): "needs a device whose GPU or LPAI runs the program",
    (
        "run without --saver: this QNN version writes another format, or Saver was stopped"
    ): "needs a QNN whose Saver writes another format",
    (
        "check that the engine can start a container: `docker run --rm {base} true`"
    ): "needs a Docker engine that fails",
    (
        "use a --prompt after which more steps have one token that is far better than others"
    ): "nobody knows such a prompt for a bundle whose controls are accepted",
    (
        "compile it first: `test_onnx` with --keep-artifacts keeps the context model"
    ): "a line of an answer; docs/guides/onnx.md types it",
    (
        "`qnn-ci {mend_command}` finds operators to compute in float"
    ): "needs a red quantized model; that of docs/guides/mend.md is mended by its command",
    (
        "`qnn-ci {mend_command}` searches other precisions; no rewrite applies"
    ): "needs a red model to which no rewrite applies; tests/unit/ci/mend compares it",
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*|`qnn-ci")
