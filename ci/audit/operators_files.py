"""Asks ONNX Runtime's provider or LiteRT's plugin which operators of a model QNN takes, without
compiling the model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from msgspec import structs

from ci.audit.operators import Found
from ci.cases.engine import Fallback
from ci.cases.spec import CaseSpec
from ci.facts.finding import NOWHERE, Origin
from ci.facts.kinds import INVALID
from ci.litert.engine import PLUGIN_SHARE, LitertEngine
from ci.onnx.engine import OnnxEngine
from provisioning.errors import QnnCiError


def ask_onnxruntime(engine: OnnxEngine, spec: CaseSpec, work: Path, log: Path) -> Found:
    """Return which nodes of a case's model ONNX Runtime's QNN provider takes. Files are written to
    ``work``. A model that cannot be exported, quantized or read has a failure."""
    from ci.graphs.onnx_file import list_origins
    from ci.onnx.compile import (
        QUANTIZED_MODEL,
        load_source,
        measure_file,
        write_float,
        write_quantized,
    )
    from ci.onnx.models import read_model
    from ci.onnx.offers import ask_provider

    try:
        source = load_source(spec)
        model = write_float(source, work / "float.onnx", spec.source.shapes)
        steps = measure_file(model, work / "measured.onnx", source.evaluation)
        origins = list_origins(read_model(model, ()))
        if spec.scheme.quantized:
            plain, model = model, work / QUANTIZED_MODEL
            write_quantized(source, plain, model, spec)
        delegation, taken = ask_provider(model, engine.options(spec), log)
    except QnnCiError as error:
        return Found(failure=INVALID.from_error(error), partitions=None)
    except Exception as error:  # noqa: BLE001 - it is the failure of this case
        return Found(failure=engine.explain(error, log), partitions=None)
    left = tuple(
        structs.replace(fallback, origin=origins.get(fallback.name, NOWHERE))
        for fallback in delegation.fallback_ops
    )
    counts = Counter((operator, origins.get(name, NOWHERE)) for name, operator in taken)
    return Found(counts, left, None, steps=steps)


def ask_litert(engine: LitertEngine, spec: CaseSpec, work: Path, log: Path) -> Found:
    """Return which operators of a case's model LiteRT's plugin for Qualcomm takes. Files are
    written to ``work``. A model that cannot be converted or read has a failure."""
    from ci.audit.localise_litert import read_litert_steps
    from ci.graphs.litert_file import is_custom, name_operator
    from ci.litert.compile import find_reason, name_result
    from ci.litert.plugin import NothingTakenError, run_plugin
    from ci.litert.source import check_model, load_litert
    from ci.litert.split import list_unknown

    try:
        source = load_litert(spec)
        list_unknown(source.data, source.model)
        check_model(source.name, source.model)
        path = work / "source.tflite"
        path.write_bytes(source.data)
        steps = read_litert_steps(spec)
        try:
            result = run_plugin(
                path,
                work / "partitioned.tflite",
                spec.soc,
                library_folder=engine.library.parent,
                log=log,
                timeout_s=engine.timeout_s * PLUGIN_SHARE,
                compiles=False,
            )
        except NothingTakenError as error:
            result = error.result
    except QnnCiError as error:
        return Found(failure=INVALID.from_error(error), partitions=None)
    taken = Counter[tuple[str, Origin]]()
    left = []
    for number, subgraph in enumerate(source.model.subgraphs):
        for place, operator in enumerate(subgraph.operators or ()):
            kind, at = name_operator(source.model, operator), (number, place)
            is_left = at in result.refused or is_custom(source.model, operator)
            if is_left or not result.selected.get(number):
                reason = find_reason(source.model, operator, result.refused, at)
                left.append(Fallback(kind, reason, name=name_result(subgraph, operator)))
            else:
                taken[kind, NOWHERE] += 1
    return Found(taken, tuple(left), None, steps=steps)
