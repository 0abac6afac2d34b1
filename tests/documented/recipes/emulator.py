"""docs/emulator.md: a choice of models, and one of the reader's own."""

from __future__ import annotations

from tests.documented.recipe import Recipe
from tests.documented.setups import shrink_suite, shrink_suite_to_resnet, use_our_store, write_net

MODELS = {"setup": (use_our_store, shrink_suite), "with_models": True}

RECIPES = {
    "python net.py": Recipe(setup=(write_net,), with_models=True),
    "nox -s test_emulator -- --list": Recipe(says=("mlp ", "16a4w_block", "SM8650")),
    "nox -s test_emulator -- --model 'm*' --scheme 8a8w": Recipe(
        says=("2 passed", "mlp +8a8w", "mobilenet +8a8w"), **MODELS
    ),
    "nox -s test_emulator -- --model resnet --soc SM8750 --soc SM8550": Recipe(
        says=("2 passed", "resnet +fp16 +SM8750", "resnet +fp16 +SM8550"),
        setup=(use_our_store, shrink_suite_to_resnet),
        with_models=True,
    ),
    "nox -s test_emulator -- --model net.py:factory --soc SM8750 --scheme 8a8w": Recipe(
        setup=(use_our_store, write_net),
        says=("1 passed", "8a8w +SM8750"),
        leaves=("reports/test_emulator/report.json",),
        with_models=True,
    ),
    "nox -s test_emulator -- --backend gpu": Recipe(
        says=("NOT RUN", "QNN910", "libQnnGpu.so of QNN 2.49.40", "TuningMode"), code=3, **MODELS
    ),
    "nox -s test_emulator -- --backend lpai": Recipe(
        says=("NOT RUN", "QNN909", "libQnnLpai.so", "mlp +16a8w +SM8850 +unsupported"),
        code=3,
        **MODELS,
    ),
    "nox -s bench -- emulator": Recipe(
        says=("1 cases on", "cold +[0-9.]+ s", "warm +[0-9.]+ s", "one by one", "0 failed"),
        leaves=("reports/bench/emulator.json",),
        **MODELS,
    ),
}
