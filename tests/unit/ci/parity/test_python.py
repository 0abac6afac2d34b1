"""What a Python library imports is in its deps, or in those of everything built of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci.parity.compare.findings import Finding, Level
from ci.parity.policy import ParityPolicy
from tests.unit.ci.parity.conftest import LOAD

POLICY = ParityPolicy(imports=("p/**",), tests=("**/test_*",))
CMAKE = {"CMakeLists.txt": ""}


def rule(name: str, source: str, *deps: str, kind: str = "python_library") -> str:
    """One Python rule."""
    listed = ", ".join(f'"{dep}"' for dep in deps)
    return f'runtime.{kind}(name = "{name}", srcs = ["{source}"], deps = [{listed}])\n'


def tree(text: str, *deps: str, extra_rules: str = "") -> dict[str, str]:
    """A library p that imports, and q with the module x."""
    return {
        **CMAKE,
        "p/BUCK": LOAD + rule("p", "a.py", *deps) + extra_rules,
        "p/a.py": text,
        "p/b.py": "",
        "q/BUCK": LOAD + rule("q", "x.py"),
        "q/x.py": "",
    }


@pytest.mark.parametrize(
    "text",
    [
        "import executorch.q.x\n",
        "import executorch.q.x as x, os\n",
        "from executorch.q import x\n",
        "from executorch.q.x import (\n    a,  # q.x\n    b,\n)\n",
        "from executorch.q import (\n    x,\n)\n",
        "from ..q.x import a\n",
        "from ..q import x as y\n",
        "from ..q.x import *\n",
        "from executorch.q.x import *  # all of it\n",
        "def f():\n    from executorch.q.x import a\n",
    ],
)
def test_an_import_without_a_dependency_is_found(
    text: str, findings: Callable[..., list[Finding]]
) -> None:
    (finding,) = findings(tree(text), POLICY)

    assert (finding.kind.value, finding.path, finding.detail) == (
        "dependency",
        "p/a.py",
        "//p:p -> //q:q",
    )
    assert finding.fix.startswith('add "//q:q" to the deps of //p:p')
    assert findings(tree(text, "//executorch/q:q"), POLICY) == []
    (elsewhere,) = findings(tree(text), ParityPolicy())
    assert (elsewhere.detail, elsewhere.level) == (finding.detail, Level.NOTE)


@pytest.mark.parametrize(
    "text",
    [
        "# import executorch.q.x\n",
        "import q_x\n",
        "import executorch.q.y\n",
        "try:\n    import executorch.q.x\nexcept ImportError:\n    pass\n",
        "if TYPE_CHECKING:\n    from executorch.q.x import a\n",
    ],
    ids=["comment", "other module", "no such file", "tried", "for types"],
)
def test_comments_optional_and_foreign_imports_are_no_dependency(
    text: str, findings: Callable[..., list[Finding]]
) -> None:
    assert findings(tree(text), POLICY) == []


def test_an_unlisted_module_in_a_subfolder_is_found_if_listed_files_import_it(
    findings: Callable[..., list[Finding]],
) -> None:
    files = tree("from .deep.x import a\n") | {
        "p/deep/x.py": "",
        "p/deep/y.py": "",
        "p/BUCK": LOAD + rule("p", "a.py") + rule("b", "b.py"),
    }

    (finding,) = findings(files, POLICY)
    assert (finding.path, finding.level.value) == ("p/deep/x.py", "warning")
    assert "listed files import it" in finding.message
    assert findings({**files, "p/a.py": ""}, POLICY) == []


def test_modules_that_an_unlisted_module_imports_are_found_too(
    findings: Callable[..., list[Finding]],
) -> None:
    files = tree("from .deep.x import a\n") | {
        "p/deep/x.py": "from .y import b\n",
        "p/deep/y.py": "",
        "p/deep/z.py": "from .idle import c\n",
        "p/deep/idle.py": "",
        "p/BUCK": LOAD + rule("p", "a.py") + rule("b", "b.py"),
    }

    assert [f.path for f in findings(files, POLICY)] == ["p/deep/x.py", "p/deep/y.py"]
