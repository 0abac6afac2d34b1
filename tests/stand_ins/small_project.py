"""A project like this one, small enough to know by heart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ci.gate.reading import compare_keys, read_suite
from ci.gate.rules import read_rules
from ci.gate.schema import Change, Difference, Kind
from ci.parity.trees import SourceTree

NOXFILE = "import nox\n" + "".join(
    f"@nox.session(default=False)\ndef {name}(session): ...\n"
    for name in (
        *("test_emulator", "tests", "unit", "lint", "build_android", "sign_skel"),
        *("docker_build", "bench"),
    )
)

PROJECT = """
[project]
name = "small"
[build-system]
requires = ["hatchling"]
[dependency-groups]
core = ["msgspec==1"]
lowering = [{ include-group = "core" }, "torch==2"]
unit = [{ include-group = "core" }, "pytest==9"]
test = [{ include-group = "lowering" }, { include-group = "unit" }]
lint = ["ruff==1"]
[tool.ruff]
line-length = 100
[tool.mypy]
strict = true
[tool.pytest.ini_options]
timeout = 600
"""

FILES: Mapping[str, str] = {
    "README.md": "# Small\n",
    "LICENSE": "free\n",
    "nox": "#!/bin/sh\n",
    "noxfile.py": NOXFILE,
    "pyproject.toml": PROJECT,
    "docs/emulator.md": "`nox -s test_emulator`\n",
    "docs/schemas/report.json": "{}\n",
    ".github/workflows/pr.yml": "name: pr\n",
    ".github/workflows/sign.yml": "name: sign\n",
    ".ci/run": "./nox -s tests\n",
    "docker/Dockerfile": "FROM scratch\n",
    "docker/packages/emulator.txt": "git\n",
    "docker/entry.sh": "cp docs/emulator.md /\n",
    "ci/__init__.py": "",
    "ci/__main__.py": 'VERBS = {"test-emulator": Verb("ci.verbs.emulate", "t"),\n'
    ' "build": Verb("ci.verbs.build", "b"), "sign": Verb("ci.verbs.sign", "s"),\n'
    ' "image": Verb("ci.verbs.image", "i")}\n',
    "ci/verbs/__init__.py": "",
    "ci/verbs/emulate.py": "from ci.cases import session\nfrom provisioning.files import x\n"
    'PROFILE = "emulator"\n',
    "ci/verbs/build.py": "def execute():\n    from ci.builds.builder import build\n",
    "ci/verbs/sign.py": 'PROFILE = "lpai"\nfrom provisioning.files import x\n',
    "ci/verbs/image.py": "import ci.images.build\n",
    "ci/builds/__init__.py": "",
    "ci/builds/builder.py": "from provisioning.manifest.reader import read_toml\n"
    'read_toml("targets.toml")\n',
    "ci/builds/stand_in.cmake": "# nothing\n",
    "ci/cases/__init__.py": "",
    "ci/cases/session.py": "from . import policy\nfrom ci.report import write\n"
    "from ci.models.model import load\n",
    "ci/cases/policy.py": "from provisioning.manifest.reader import read_policy\n"
    'read_policy("emulator", object)\nread_toml("socs.toml")\n'
    'Path("baselines", f"{name}.toml")\n',
    "ci/models/__init__.py": "",
    "ci/models/model.py": 'import_module(f"ci.models.suite.{name}")\nimport ci.models.suite\n',
    "ci/models/suite/__init__.py": 'SUITE = {"mlp": "a", "lstm": "b"}\n',
    "ci/models/suite/mlp.py": "from ci.models.suite.seeding import seed\n",
    "ci/models/suite/lstm.py": "from ci.models.suite.seeding import seed\nimport ci.models.cell\n",
    "ci/models/suite/seeding.py": "import torch\n",
    "ci/models/cell.py": "",
    "ci/images/__init__.py": "",
    "ci/images/build.py": 'folder = ROOT / "docker"\n',
    "ci/report/__init__.py": "",
    "ci/report/write.py": 'TEMPLATE = "page.html.j2"\n',
    "ci/report/templates/page.html.j2": "<html>\n",
    "ci/forgotten.py": "",
    "provisioning/__init__.py": "",
    "provisioning/__main__.py": "VERBS = {}\n",
    "provisioning/files.py": "",
    "provisioning/manifest/__init__.py": "",
    "provisioning/manifest/reader.py": 'ROOT / "manifests"\n',
    "manifests/profiles.toml": '[emulator]\nartifacts = [{ name = "qnn-runtime" }]\n'
    '[android]\nartifacts = [{ name = "ndk" }, { name = "qnn-sdk" }]\n'
    '[android16]\nlike = "android"\nartifacts = [{ name = "ndk2" }]\n'
    '[lpai]\nartifacts = [{ name = "qnn-sdk" }]\n',
    "manifests/targets.toml": '[[target]]\nname = "android"\nsession = "build_android"\n'
    'profile = "android16"\n',
    "manifests/socs.toml": "[SM8650]\nid = 57\n[SM8750]\nid = 69\n",
    "manifests/policies/emulator.toml": '[suite]\nmlp = ["fp16", "8a8w"]\nlstm = ["fp16"]\n'
    "[schemes.fp16]\nmin = 40\n[schemes.8a8w]\nmin = 20\n[reference]\nmin_rms = 1\n",
    "manifests/policies/gate.toml": "\n",
    "manifests/baselines/one.toml": '[cases]\n"mlp fp16 SM8650" = 1\n"lstm fp16 SM8650" = 2\n',
    "manifests/toolchains/qnn-runtime.toml": 'version = "1"\n',
    "manifests/toolchains/qnn-runtime-aarch64.toml": 'version = "1"\n',
    "manifests/toolchains/qnn-sdk.toml": 'version = "1"\n',
    "manifests/toolchains/ndk.toml": 'version = "1"\n',
    "manifests/toolchains/ndk2.toml": 'version = "1"\n',
    "manifests/locks/qnn-runtime-2.49.json": "{}\n",
    "manifests/locks/qnn-runtime-aarch64-2.49.json": "{}\n",
    "tests/conftest.py": "",
    "tests/unit/test_files.py": "from provisioning.files import x\n"
    'SCHEMA = ROOT / "docs" / "schemas" / "report.json"\n',
    "tests/integration/test_run.py": 'run("mlp")\nimport tests.stand_ins.server\n'
    "import ci.verbs.emulate\n",
    "tests/stand_ins/server.py": "",
    "tests/artifacts/lib.so": "ELF\n",
    "tests/bench/__init__.py": "",
    "tests/bench/__main__.py": "from tests.bench import run\n",
    "tests/bench/run.py": "",
}


RULES = read_rules()


@dataclass
class MemoryTree(SourceTree):
    """A tree of texts."""

    texts: Mapping[str, str]

    def read(self, path: str) -> str | None:
        return self.texts.get(path)


Edits = Mapping[str, "str | None"]


def edit(files: Mapping[str, str], edits: Edits) -> dict[str, str]:
    """``files`` with new texts; None deletes, a text that begins with + is added at the end."""
    changed = dict(files)
    for path, text in edits.items():
        if text is None:
            del changed[path]
        else:
            changed[path] = files.get(path, "") + text[1:] if text.startswith("+") else text
    return changed


def list_differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """The changes between two trees, without renames."""
    kinds = {(True, False): Kind.DELETED, (False, True): Kind.ADDED, (True, True): Kind.MODIFIED}
    return tuple(
        Change(path, kinds[path in before, path in after])
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def compare(after: Mapping[str, str], before: Mapping[str, str] = FILES) -> Difference:
    """The difference between two small projects."""
    old, new = MemoryTree(before), MemoryTree(after)
    changes = list_differences(before, after)
    suites = {"test_emulator": read_suite(new, "manifests/policies/emulator.toml")}
    return Difference(changes, compare_keys(old, new, changes), suites)
