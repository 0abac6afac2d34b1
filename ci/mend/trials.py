"""Jobs for workers: apply recipes of rewrites to a model, and prove that it stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from ci.cases.spec import CaseSpec
from ci.facts.finding import Place
from ci.mend.different import Different
from ci.mend.proof import RewriteProof
from ci.mend.table import Rewrite, RewriteLane, read_rewrites
from ci.models.schemes import LITERT, ONNX, Scheme
from ci.models.user_models import Source
from provisioning.errors import describe_exception


class AppliedChange(Struct, frozen=True, kw_only=True):
    """A place where a rewrite was applied, see ci.mend.rewrite.Change."""

    rewrite: str
    nodes: tuple[str, ...]
    place: Place | None
    before: str
    after: str


class Attempt(Struct, frozen=True, kw_only=True):
    """What a recipe does to a model. ``difference`` is the largest difference between the outputs
    of both models, relative to the range of an output. ``fault`` is why the recipe cannot be used,
    or "". ``applies`` is false if the last rewrite of the recipe finds nothing to change."""

    names: tuple[str, ...]
    changes: tuple[AppliedChange, ...] = ()
    difference: float = 0.0
    fault: str = ""
    applies: bool = True


@dataclass(frozen=True)
class Trials:
    """A job that applies recipes to a PyTorch model or a file, each to the original one."""

    reference: str
    source: Source
    recipes: tuple[tuple[str, ...], ...]

    def __call__(self) -> list[Attempt]:
        lane = choose_lane(self.reference)
        rows = {rewrite.name: rewrite for rewrite in read_rewrites(lane)}
        attempts = []
        with TemporaryDirectory() as scratch:
            proof = self.open_proof(lane, Path(scratch))
            for names in self.recipes:
                recipe = [rows[name] for name in names]
                attempts.append(try_recipe(proof, recipe))
        return attempts

    def open_proof(self, lane: RewriteLane, scratch: Path) -> RewriteProof:
        """Load the model. What is written goes to ``scratch``."""
        if lane == "onnx":
            return self.open_file(scratch)
        return self.open_litert() if lane == "litert" else self.open_module()

    def open_litert(self) -> RewriteProof:
        """Load a .tflite file or, for a quantized one, its float model. Raises UsageError if
        rewrites cannot be applied to it."""
        if self.source.float_model:
            from ci.mend.litert_mixtures import open_float_subject

            return RewriteProof(
                open_float_subject(CaseSpec(self.reference, Scheme.ASIS, "", self.source))
            )
        from ci.litert.source import make_source
        from ci.mend.litert_files import open_file
        from ci.mend.litert_form import LitertSubject

        path = Path(self.reference)
        file = open_file(path)
        source = make_source(path.name, file.data, self.source, path=path)
        return RewriteProof(LitertSubject(file, source.evaluation))

    def open_module(self) -> RewriteProof:
        """Load a PyTorch model."""
        # torch is imported for PyTorch models only; .onnx files do not need it.
        from ci.mend.torch_form import TorchSubject
        from ci.models.model import load_digested

        model, _ = load_digested(self.reference, self.source)
        return RewriteProof(TorchSubject(model.module, model.evaluation))

    def open_file(self, scratch: Path) -> RewriteProof:
        """Load an .onnx file. Rewritten models are written to ``scratch``."""
        from ci.mend.onnx_files import OnnxFile
        from ci.mend.onnx_form import OnnxSubject
        from ci.onnx.models import external_files, read_model
        from ci.onnx.source import from_file

        path, shapes = Path(self.reference), self.source.shapes
        model = read_model(path, shapes)
        source = from_file(path, model, external_files(model, path), self.source)
        return RewriteProof(OnnxSubject(OnnxFile(path, shapes), source.evaluation, scratch))


def choose_lane(reference: str) -> RewriteLane:
    """Return whose rewrites are for a model: a file's kind has its own."""
    if reference.endswith(LITERT.suffix):
        return "litert"
    return "onnx" if reference.endswith(ONNX.suffix) else "torch"


def mend_module(name: str, module: Any, sets: Sequence[Any]) -> Any:
    """Return a small PyTorch module with one rewrite, see ci.faults.trial.Edit. Raises ValueError
    as ``mend_alone`` does."""
    from ci.mend.torch_form import TorchSubject

    return mend_alone(RewriteProof(TorchSubject(module, sets)), name, "torch")


def mend_file(name: str, path: Path, sets: Sequence[Any]) -> Path:
    """Write a small .onnx model with one rewrite next to it, and return its path, see
    ci.faults.trial.Edit. Raises ValueError as ``mend_alone`` does."""
    from ci.mend.onnx_files import OnnxFile
    from ci.mend.onnx_form import OnnxSubject, save

    proof = RewriteProof(OnnxSubject(OnnxFile(path, ()), sets, path.parent))
    return save(mend_alone(proof, name, "onnx"), path.with_name("mended.onnx"))


def mend_alone(proof: RewriteProof, name: str, lane: RewriteLane) -> Any:
    """Return a model with one rewrite, or with several, whose names have spaces between. Raises
    ValueError if the last one finds nothing to change, or if the proof fails."""
    names = name.split()
    rows = {rewrite.name: rewrite for rewrite in read_rewrites(lane)}
    attempt = try_recipe(proof, [rows[single] for single in names])
    if attempt.fault or not attempt.applies:
        raise ValueError(attempt.fault or f"{names[-1]} finds nothing to change")
    return proof.rewrite(names)[0]


def try_recipe(proof: RewriteProof, rows: Sequence[Rewrite]) -> Attempt:
    """Apply rewrites one after the other, and compare the result with the original model, unless
    one of them is approximate. A rewrite that raises an exception cannot be used."""
    names = tuple(row.name for row in rows)
    try:
        graph, changes = proof.rewrite(names)
    except Exception as error:  # noqa: BLE001 - a rewrite may fail on any graph
        return Attempt(names=names, fault=f"{names[-1]} failed: {describe_exception(error)}")
    if not changes[-1]:
        return Attempt(names=names, applies=False)

    applied: list[AppliedChange] = []
    replaced: list[str] = []  # names of nodes
    for name, changes_of_rewrite in zip(names, changes, strict=True):
        for change in changes_of_rewrite:
            applied.append(AppliedChange(rewrite=name, **vars(change)))
            replaced.extend(change.nodes)

    # The outputs of an approximate rewrite may differ by any amount, but not in form.
    is_exact = not any(row.approximate for row in rows)
    bound = max(row.bound for row in rows) if is_exact else float("inf")
    difference, fault = 0.0, ""
    try:
        difference = proof.measure(graph, bound, replaced)
    except Different as error:
        fault = str(error)
    except Exception as error:  # noqa: BLE001 - the rewritten graph may not run
        fault = f"the rewritten model fails: {describe_exception(error)}"
    return Attempt(names=names, changes=tuple(applied), difference=difference, fault=fault)
