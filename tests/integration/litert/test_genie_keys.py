"""manifests/policies/genie.toml says the same of a configuration as libGenie itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.inspect.genie_keys import check_keys
from ci.onnx.options import find_library
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

pytestmark = NEEDS_PINNED_QNN
ROOT = Path(__file__).parents[3]
# A dialog of each kind, with all of its keys.
DIALOGS = json.loads((ROOT / "tests/artifacts/genie/dialogs.json").read_bytes())
OTHER_VALUES = ("abc", -5, 0, 0.5, True, [], {}, None)


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a document."""
    items = value.items() if isinstance(value, dict) else ()
    for key, content in enumerate(value) if isinstance(value, list) else items:
        yield (*place, key)
        yield from list_places(content, (*place, key))


def list_changed(dialog: Any) -> Iterator[Any]:
    """The dialog, with one value left out or replaced by another one."""
    yield dialog
    for *heads, last in list_places(dialog):
        for value in (*OTHER_VALUES, dialog):  # the dialog itself: the value is left out
            changed = deepcopy(dialog)
            section = changed
            for key in heads:
                section = section[key]
            if value is dialog:
                del section[last]
            else:
                section[last] = value
            yield changed


@pytest.mark.parametrize("name", DIALOGS)
def test_libgenie_refuses_what_the_table_refuses(name: str) -> None:
    documents = [{"dialog": dialog} for dialog in list_changed(DIALOGS[name])]
    runtime = provision_profile("litert", Progress()).root("qnn-runtime")
    libraries = find_library(runtime, {}).parent
    lines = "".join(json.dumps(json.dumps(document)) + "\n" for document in documents)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.stand_ins.genie_configs", str(libraries)],
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    lines_of_status = [line for line in ended.stdout.splitlines() if line.startswith("status ")]
    assert len(lines_of_status) == len(documents)
    unlike = [
        (line, document, [*check_keys(document)])
        for line, document in zip(lines_of_status, documents, strict=True)
        if (line == "status 0") == any(check_keys(document))
    ]
    assert lines_of_status[0] == "status 0"
    assert unlike == []
