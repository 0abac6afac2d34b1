"""Cases of ONNX files, compiled with a stand-in for QNN's provider that writes contexts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx

from ci.cases.engine import Compiled, Staging
from ci.cases.spec import CaseSpec
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.onnx.engine import OnnxEngine
from ci.onnx.options import HTP
from tests.qnn_provider import contexts

BLOB = contexts.make_blob(soc="SM8650", arch=75)
REFUSED = (
    "Validation FAILED for 1 nodes in OrtNodeUnit ({0}) :\n\tOperator type: {0} Node name: {1} Node"
    " index: 2\n\tREASON : QNN has no {0}\n\n"
)


@dataclass
class Provider:
    """QNN's provider as ci.onnx.compile opens it: it leaves nodes of the operators ``left`` to the
    CPU, and writes ``blob`` as the context. ``opened`` has what each session was opened with."""

    left: tuple[str, ...] = ()
    blob: bytes = BLOB
    opened: list[dict[str, Any]] = field(default_factory=list)

    def open_session(self, model: Path, options: Any, entries: Any, **flags: Any) -> Any:
        self.opened.append({"model": model.name, "options": options, "entries": entries, **flags})
        nodes = onnx.load(model).graph.node
        parts: dict[str, list[Any]] = {"QNNExecutionProvider": [], "CPUExecutionProvider": []}
        for node in nodes:
            is_left = node.op_type in self.left
            parts["CPUExecutionProvider" if is_left else "QNNExecutionProvider"].append(node)
            if is_left:
                os.write(1, REFUSED.format(node.op_type, node.name).encode())
        os.write(2, b"\xff of a library\n")  # it may write anything
        if "ep.context_enable" in entries and parts["QNNExecutionProvider"]:
            self.write_context(Path(entries["ep.context_file_path"]), entries)
        if options.get("qnn_saver_path"):
            Path("saver_output").mkdir()
        assignments = [
            SimpleNamespace(
                ep_name=name,
                get_nodes=lambda nodes_of_provider=nodes_of_provider: nodes_of_provider,
            )
            for name, nodes_of_provider in parts.items()
            if nodes_of_provider
        ]
        return SimpleNamespace(get_provider_graph_assignment_info=lambda: assignments)

    def write_context(self, path: Path, entries: Any) -> None:
        if entries["ep.context_embed_mode"] == "1":
            node = contexts.make_node(ep_cache_context=self.blob, embed_mode=1)
        else:
            path.with_name("model_qnn.bin").write_bytes(self.blob)
            node = contexts.make_node(ep_cache_context="model_qnn.bin")
        contexts.write_nodes(path, [node], "57")


def make_engine(sdk: Path, **fields: Any) -> OnnxEngine:
    """An engine with an SDK in ``sdk``, whose library is empty."""
    (sdk / HTP).parent.mkdir(parents=True, exist_ok=True)
    (sdk / HTP).touch()
    return OnnxEngine(toolchain=(), sdk=sdk, **fields)


def compile_case(
    work: Path,
    engine: OnnxEngine,
    model: Path,
    scheme: Scheme,
    *,
    policy: Any = None,
    **fields: Any,
) -> Compiled:
    """Compile a file in the new directory ``work``; ``fields`` are those of its source, and
    ``layers``. The program is in ``work``/staging."""
    layers = fields.pop("layers", False)
    spec = CaseSpec("net", scheme, "SM8650", Source(str(model), **fields), layers=layers)
    work.mkdir()
    staging = Staging(work / "staging", work / "log", work, reference=policy)
    staging.directory.mkdir()
    return engine.compile(spec, staging)
