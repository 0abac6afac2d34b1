"""What is mutated, and by which tests it is judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

IN_ONE_PROCESS = "tests/integration/in_one_process"
ARTIFACTS = "tests/integration/artifacts"

# The packages that decide verdicts, and noxfile.py. A mutant is judged by those of the tests that
# reach its function.
PACKAGES: dict[str, tuple[str, ...]] = {
    "ci/audit": ("tests/unit/ci/audit",),
    "ci/cases": (
        "tests/unit/ci/cases",
        "tests/unit/ci/judging",
        "tests/unit/ci/executorch",
        "tests/unit/ci/models",
        "tests/unit/ci/verbs/test_emulate_arguments.py",
        "tests/unit/ci/verbs/test_rejected_before_provisioning.py",
        "tests/unit/ci/onnx/test_lanes.py",
    ),
    "ci/device": ("tests/unit/ci/device", "tests/integration/device/test_bundle.py"),
    "ci/executorch": (
        "tests/unit/ci/executorch",
        "tests/unit/ci/models",
        "tests/unit/ci/cases",
        f"{IN_ONE_PROCESS}/models_and_keys.py",
        f"{IN_ONE_PROCESS}/quantized_graphs.py",
        f"{IN_ONE_PROCESS}/lowering_steps.py",
    ),
    "ci/gate": ("tests/unit/ci/gate", "tests/integration/gate/test_plan_verb.py"),
    "ci/images": ("tests/unit/ci/images",),
    "ci/judging": ("tests/unit/ci/judging", "tests/unit/ci/cases"),
    "ci/llm": ("tests/unit/ci/llm",),
    "ci/models": (
        "tests/unit/ci/models",
        "tests/unit/ci/cases",
        "tests/unit/ci/judging",
        "tests/unit/ci/verbs/test_emulate_arguments.py",
        "tests/unit/ci/verbs/test_rejected_before_provisioning.py",
        f"{IN_ONE_PROCESS}/models_and_keys.py",
        f"{IN_ONE_PROCESS}/eager_models.py",
    ),
    "ci/onnx": (
        "tests/unit/ci/onnx",
        f"{IN_ONE_PROCESS}/onnx_compiling.py",
        f"{IN_ONE_PROCESS}/onnx_quantizing.py",
    ),
    "ci/parity/compare": ("tests/unit/ci/parity",),
    "ci/report": ("tests/unit/ci/report",),
    "ci/signing": ("tests/unit/ci/signing",),
    "ci/upstream": ("tests/unit/ci/upstream",),
    "noxfile.py": ("tests/unit/test_noxfile.py",),
    "provisioning/archives": ("tests/unit/provisioning/archives",),
    "provisioning/artifacts": (
        "tests/unit/provisioning/artifacts",
        f"{ARTIFACTS}/test_compiled_library.py",
        f"{ARTIFACTS}/test_provision_archive.py",
        f"{ARTIFACTS}/test_provision_git.py",
        f"{ARTIFACTS}/test_provision_wheel.py",
        f"{ARTIFACTS}/test_update.py",
        "tests/unit/provisioning/elf/test_checksum.py",
    ),
    "provisioning/console": ("tests/unit/provisioning/console",),
    "provisioning/doctor/checks": ("tests/unit/provisioning/doctor",),
    "provisioning/elf": ("tests/unit/provisioning/elf", "tests/unit/ci/inspect"),
    "provisioning/fetch": ("tests/unit/provisioning/fetch",),
    "provisioning/store": ("tests/unit/provisioning/store",),
}
# The modules that decide, where not all of a package do: the others call a compiler, start
# processes or draw.
DECIDING: dict[str, str] = {
    "ci/audit": "localise_search operators upgrade",
    "ci/cases": "baselines cache engine judged kept outputs pipeline policy qnn_files runners spec",
    "ci/device": "bundle figures provenance",
    "ci/executorch": "delegation engine quantize toolchain",
    "ci/gate": "cases changes evidence jobs names parts plan reach reading replay results rules "
    "schema sessions tree verdict workflows",
    "ci/images": "definition digest normalize prune push",
    "ci/llm": "case controls foreign generation interface known session tokenizers verdict weights",
    "ci/models": "eager layers lowering_options model noise numerics "
    "schemes source_lines tensors user_code user_data user_models",
    "ci/onnx": "contexts engine fallback models noise options preparation source target",
    "ci/report": "annotation columns comparison github junit merge providers sarif schema",
    "ci/upstream": "expectations journal judged kept session",
    "provisioning/console": "caller clock command git interrupts process terminal",
}


def list_modules(place: Path, package: str) -> list[Path]:
    """The modules of a row of PACKAGES below ``place`` that decide."""
    found = place / package
    if found.suffix == ".py":
        return [found]
    wanted = DECIDING.get(package, "").split()
    return sorted(path for path in found.rglob("*.py") if not wanted or path.stem in wanted)


@dataclass(frozen=True)
class Sample:
    """Which mutants are judged: ``size`` drawn by ``seed``, all if it is 0."""

    size: int = 0
    seed: int = 0

    def draw(self, names: Iterable[str]) -> list[str]:
        """The drawn mutants, in no order: a run that is cut off has judged a sample too."""
        drawn = sorted(names, key=lambda name: sha256(f"{self.seed} {name}".encode()).digest())
        return drawn[: self.size or None]
