"""docs/checks.md: the doctor on what it finds fit and on what it does not."""

from __future__ import annotations

import json

import jsonschema

from provisioning.manifest.reader import read_profiles
from tests.documented.pages import ROOT
from tests.documented.recipe import Recipe
from tests.documented.setups import (
    LIBRARIES,
    attach_phone,
    clone_executorch,
    plant_toolchains,
    shrink_doctor_bench,
    stage_device,
    use_our_store,
)
from tests.documented.stage import Ended, Stage

FIT = {"setup": (use_our_store,), "with_models": True}


def fits_schema(stage: Stage, ended: Ended) -> None:
    schema = json.loads((ROOT / "docs/schemas/doctor.schema.json").read_text("utf-8"))
    verdict = json.loads(ended.stdout)
    jsonschema.validate(verdict, schema)
    assert verdict["fit"]


RECIPES = {
    "qnn-ci doctor emulator": Recipe(says=("emulator: fit",), **FIT),
    "nox -s validate -- --backend lpai": Recipe(
        says=("emulator: not fit", "QNN909"), **{**FIT, "code": 3}
    ),
    "qnn-ci doctor emulator --json": Recipe(then=fits_schema, **FIT),
    "nox -s validate -- PROFILE": Recipe(
        fill={"PROFILE": "emulator"}, says=("emulator: fit",), **FIT
    ),
    "qnn-ci doctor PROFILE": Recipe(
        fill={"PROFILE": sorted(read_profiles())}, code=3, says=("not fit", "QNN100")
    ),
    "qnn-ci doctor aot --root qnn-sdk=/opt/qairt/2.37.0.250724 "
    "--root executorch=$HOME/executorch": Recipe(
        setup=(plant_toolchains, clone_executorch),
        fill={"/opt/qairt/2.37.0.250724": "$QNN_SDK_ROOT"},
        code=3,
        says=("aot: not fit", "QNN107"),
        needs=("clang", "ld.lld"),
    ),
    "qnn-ci doctor linux --root staging=out/device --soc SM8750 --device": Recipe(
        setup=(stage_device, attach_phone), code=3, says=("QNN100", "QNN212", "QNN802")
    ),
    "nox -s validate -- linux --root staging=out/device --soc SM8750 --device": Recipe(
        setup=(stage_device, attach_phone), code=3, says=("QNN100", "QNN212", "QNN802")
    ),
    "nox -s bench -- doctor": Recipe(
        setup=(shrink_doctor_bench,),
        says=("ratio to the shell loop",),
        leaves=("reports/bench/doctor.json",),
        with_models=True,
    ),
    "readelf -h -d -l -n -V": Recipe(adds=str(LIBRARIES / "libx86.so"), says=("NEEDED",)),
}
