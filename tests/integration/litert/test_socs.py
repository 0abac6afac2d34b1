"""The names of SoCs that LiteRT's plugin takes, and what QNN then compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.litert.compiled import CompiledModel
from ci.litert.empty_library import make_empty_library
from ci.litert.plugin import UNUSED_LIBRARY, NothingTakenError, run_plugin
from ci.litert.suite import make_model
from provisioning.artifacts.environment import Environment, provision_profile
from provisioning.console.progress import Progress
from provisioning.doctor.survey.context_binaries import ContextBinary, parse_context_binary
from provisioning.errors import FailedError
from provisioning.manifest.targets import is_same_soc, read_litert_socs
from tests.build.pinned_qnn import NEEDS_PINNED_QNN

pytestmark = NEEDS_PINNED_QNN
# A plugin is a library: it is asked in a process of its own, which finds QNN's libraries.
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
plugin, count = ctypes.create_string_buffer(4096), ctypes.c_size_t()
library.LiteRtGetNumCompilerPluginSupportedSocModels(plugin, ctypes.byref(count))
name = ctypes.c_char_p()
for index in range(count.value):
    get = library.LiteRtGetCompilerPluginSupportedSocModel
    get(plugin, ctypes.c_size_t(index), ctypes.byref(name))
    print("name", name.value.decode())  # between lines of the plugin
"""
PLUGIN = "vendors/qualcomm/compiler/libLiteRtCompilerPlugin_Qualcomm.so"


@pytest.fixture(scope="module")
def environment() -> Environment:
    return provision_profile("litert", Progress())


def test_the_plugin_takes_the_names_of_the_table(environment: Environment, tmp_path: Path) -> None:
    import ai_edge_litert

    library = Path(ai_edge_litert.__file__).parent / PLUGIN
    (tmp_path / UNUSED_LIBRARY).write_bytes(make_empty_library(UNUSED_LIBRARY))
    variables = environment.apply(os.environ)
    folders = [variables["LD_LIBRARY_PATH"], str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-c", ASK, library],
        env={**variables, "LD_LIBRARY_PATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=True,
    )
    lines = [line.split() for line in ended.stdout.splitlines()]
    names = [words[1] for words in lines if words[:1] == ["name"]]
    assert sorted(names) == sorted(read_litert_socs())


def compile_for(
    soc: str, model: str, environment: Environment, folder: Path
) -> ContextBinary | None:
    """The context binary of a model of the suite, or None if QNN compiles nothing."""
    source, target = folder / f"{model}.tflite", folder / f"{model}-compiled.tflite"
    source.write_bytes(make_model(model))
    libraries = next(environment.root("qnn-runtime").rglob("libQnnHtp.so")).parent
    try:
        run_plugin(
            source,
            target,
            soc,
            library_folder=libraries,
            log=folder / "log",
            timeout_s=100,
        )
    except (FailedError, NothingTakenError):
        return None
    compiled = CompiledModel(target)
    ((_, step),) = compiled.list_partitions()
    return parse_context_binary(memoryview(compiled.take_context(step)), step.span[0])


@pytest.mark.nightly
@pytest.mark.parametrize("name", read_litert_socs())
def test_qnn_compiles_for_an_soc_what_the_table_says(
    name: str, environment: Environment, tmp_path: Path
) -> None:
    soc = read_litert_socs()[name]
    context = compile_for(name, "convolution_int8", environment, tmp_path)
    assert bool(context) == soc.compiled
    assert bool(compile_for(name, "dense", environment, tmp_path)) == soc.float16
    if context:
        assert context.soc_id == soc.id
        assert not context.soc or is_same_soc(context.soc, name)
        is_default = [(target.hexagon, target.vtcm_mb) for target in context.targets] == [(68, 16)]
        assert is_default == (soc.hexagon == 0)
        if soc.hexagon:
            assert (context.hexagon, context.vtcm_mb) == (soc.hexagon, soc.vtcm_mb)
