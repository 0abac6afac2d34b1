"""The schemas of what some verbs print are those of the printed values.

``python -m tests.static.test_inspect_schemas`` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ci.audit.cures import CureReport
from ci.audit.operators import Audit
from ci.audit.upgrade import UpgradeReport
from ci.faults.expected import VersionsMatrix
from ci.faults.results import Searched
from ci.inspect.compat import Answer
from ci.inspect.files import Inspection
from ci.inspect.genie_verdict import JudgedFolder
from ci.inspect.loading import BundleAnswer
from ci.inspect.socs import SocAnswers
from ci.llm.projection import Projection
from ci.mend.report import Mends
from ci.report.runtimes import RuntimesReport
from ci.verbs.estimate import Estimates
from ci.verbs.localise import Localisation

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
SCHEMAS = {
    "audit.schema.json": Audit,
    "estimate.schema.json": Estimates,
    "inspect.schema.json": Inspection,
    "compat.schema.json": Answer,
    "genie.schema.json": JudgedFolder,
    "litertlm.schema.json": BundleAnswer,
    "socs.schema.json": SocAnswers,
    "localise.schema.json": Localisation,
    "mend.schema.json": Mends,
    "runtimes.schema.json": RuntimesReport,
    "upgrade-cures.schema.json": CureReport,
    "upgrade-report.schema.json": UpgradeReport,
    "fuzz.schema.json": Searched,
    "versions-matrix.schema.json": VersionsMatrix,
    "llm-projection.schema.json": Projection,
}


def make_schema(kind: Any) -> str:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(kind),
    }
    return json.dumps(schema, indent=1) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_inspect_schemas_are_generated_from_the_code(name: str) -> None:
    expected = make_schema(SCHEMAS[name])
    assert (FOLDER / name).read_text() == expected, (
        "run `python -m tests.static.test_inspect_schemas`"
    )


if __name__ == "__main__":
    for name, kind in SCHEMAS.items():
        (FOLDER / name).write_text(make_schema(kind))
