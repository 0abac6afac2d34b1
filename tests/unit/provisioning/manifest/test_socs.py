from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest

from provisioning.console.process import run_process
from provisioning.errors import UsageError
from provisioning.manifest.targets import find_soc, read_socs

PRINT_TABLE = """
import json
from executorch.backends.qualcomm.serialization.qc_schema import _soc_info_table as table
rows = {
    chip.name: [
        chip.value,
        info.htp_info.htp_arch.value,
        info.htp_info.vtcm_size_in_mb,
        info.lpai_info and info.lpai_info.lpai_hardware_version.value,
    ]
    for chip, info in table.items()
}
print("table", json.dumps(rows))
"""


def test_a_soc_is_found_in_any_case() -> None:
    soc = find_soc("sm8850")
    assert (soc.id, soc.hexagon, soc.vtcm_mb, soc.lpai) == (87, 81, 8, 6)


def test_an_unknown_name_gives_the_nearest_and_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        find_soc("SM8655")
    assert "did you mean SM8650" in caught.value.fix
    assert "SXR2330P" in caught.value.fix


def test_ids_are_unique() -> None:
    assert len({soc.id for soc in read_socs().values()}) == len(read_socs())


@pytest.mark.skipif(find_spec("executorch") is None, reason="executorch is not installed")
def test_the_table_is_that_of_the_installed_executorch() -> None:
    ended = run_process([sys.executable, "-c", PRINT_TABLE], timeout_s=300)
    line = next(line for line in ended.output.splitlines() if line.startswith("table "))
    ours = {name: [s.id, s.hexagon, s.vtcm_mb, s.lpai] for name, s in read_socs().items()}
    assert json.loads(line.removeprefix("table ")) == ours
