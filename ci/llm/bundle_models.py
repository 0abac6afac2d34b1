"""Opens the models of a bundle: contexts for Qualcomm's NPU run on QNN's emulator, and what is not
compiled on LiteRT's interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ci.judging.figures import Array
from ci.llm.bundle_file import AUXILIARY, EMBEDDER, MAIN, BundleFile
from ci.models.schemes import Scheme
from provisioning.errors import FailedError

Arrays = Mapping[str, Array]  # by the names that a signature gives to its inputs or outputs


class OpenModel(Protocol):
    """A model that is open. Numbers are passed and returned as they are encoded."""

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Return the outputs of a signature."""


class InterpretedModel:
    """A model on LiteRT's CPU interpreter. Raises FailedError if LiteRT does not load it."""

    def __init__(self, path: Path) -> None:
        from ci.graphs.litert_session import open_model_file

        try:
            self.interpreter = open_model_file(path)
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).partition("\n")[0].split())
            raise FailedError(f"LiteRT does not load {path.stem}", why=why) from error
        self.runners = {
            name: self.interpreter.get_signature_runner(name)
            for name in self.interpreter.get_signature_list()
        }

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Return the outputs of a signature."""
        results = self.runners[signature](**inputs)
        return {name: np.array(array) for name, array in results.items()}


class EmulatedModel:
    """A compiled model: its contexts on QNN's emulator, and the operators between them on the
    interpreter. ``library`` is QNN's backend. Raises FailedError or UnfitError if the contexts are
    not those of ``soc`` or of the model, as check_target does."""

    def __init__(self, path: Path, soc: str, library: Path, *, is_float: bool) -> None:
        from ci.graphs.litert_file import list_entries
        from ci.litert.compiled import CompiledModel, check_target
        from ci.litert.execution import Execution
        from ci.onnx.options import choose_options

        compiled = CompiledModel(path)
        check_target(compiled, soc)
        scheme = Scheme.FP16 if is_float else Scheme.ASIS
        options = {"backend_path": str(library), **choose_options(scheme, soc, {})}
        folder = path.with_suffix("")
        folder.mkdir()
        self.execution = Execution(compiled, compiled.model, folder, options)
        self.entries = {entry.key: entry for entry in list_entries(compiled.model)}

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Return the outputs of a signature."""
        entry = self.entries[signature]
        arrays = [inputs[name] for name in entry.input_names]
        outputs = self.execution.run_subgraph(entry.subgraph, arrays)
        return dict(zip(entry.output_names, outputs, strict=True))


@dataclass(frozen=True)
class OpenBundle:
    """The open models of a bundle."""

    file: BundleFile
    main: OpenModel
    embedder: OpenModel
    auxiliary: OpenModel


def open_bundle(file: BundleFile, directory: Path, soc: str, library: Path) -> OpenBundle:
    """Open the models of a bundle. ``directory`` is for their files. Raises the errors of the
    models."""
    directory.mkdir()
    main = file.copy_model(MAIN, directory)
    return OpenBundle(
        file,
        EmulatedModel(main, soc, library, is_float=file.is_float)
        if file.is_compiled
        else InterpretedModel(main),
        InterpretedModel(file.copy_model(EMBEDDER, directory)),
        InterpretedModel(file.copy_model(AUXILIARY, directory)),
    )
