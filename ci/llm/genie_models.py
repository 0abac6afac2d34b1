"""Opens a folder for Genie: its contexts on QNN's emulator, one part after another, and what Genie
computes between calls (see ci.llm.genie_file)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from ci.judging.figures import Array
from ci.llm.bundle_models import Arrays, OpenBundle
from ci.llm.genie_file import CACHE, IDS, LOGITS, MASK, MASKED, NUMPY, TURNS, GenieBundle, Step
from ci.models.schemes import Scheme
from provisioning.doctor.survey.context_binaries import TensorSpec

MASK_VALUE = -1000.0  # what libGenie adds to the scores of tokens that are not attended to


def encode(port: TensorSpec, array: Array) -> Array:
    """Return floats as a port takes them: the nearest number that its type has."""
    dtype = np.dtype(NUMPY[port.dtype])
    if port.scale is None or dtype.kind == "f" or array.dtype.kind != "f":
        return array.astype(dtype).reshape(port.shape)
    steps = np.rint(array / np.float32(port.scale)) + (port.zero_point or 0)
    limits = np.iinfo(dtype)
    return np.clip(steps, limits.min, limits.max).astype(dtype).reshape(port.shape)


class GenieParts:
    """The parts of a folder on the emulator."""

    def __init__(self, file: GenieBundle, directory: Path, soc: str, library: Path) -> None:
        from ci.litert.execution import Sessions
        from ci.onnx.options import choose_options

        self.file = file
        scheme = Scheme.FP16 if file.is_float else Scheme.ASIS
        options = {"backend_path": str(library), **choose_options(scheme, soc, {})}
        self.sessions = Sessions(options)
        self.paths: dict[tuple[int, int], Path] = {}
        for tokens, steps in file.steps.items():
            for number, step in enumerate(steps):
                self.paths[tokens, number] = write_model(step, directory)

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Return the new keys and values, and the logits, of all parts."""
        del signature  # the number of tokens says it
        tokens = inputs[IDS].size
        usual = {MASK: inputs[MASKED], IDS: inputs[IDS]}
        usual |= {name: inputs[short] for short, name in TURNS.items() if short in inputs}
        results: dict[str, Array] = {}
        outputs: dict[str, Array] = {}
        for number, step in enumerate(self.file.steps[tokens]):
            feed = {}
            for port in step.graph.inputs:
                if match := CACHE.fullmatch(port.name):
                    cache = inputs[f"kv_cache_{match[1][0]}_{match[2]}"]
                    feed[port.name] = cut_cache(port, match[1], cache)
                else:
                    array = results[port.name] if port.name in results else usual[port.name]
                    feed[port.name] = encode(port, array)
            names = [port.name for port in step.graph.outputs]
            session = self.sessions.find(self.paths[tokens, number])
            results |= dict(zip(names, session.run(names, feed), strict=True))
        for name, array in results.items():
            if match := CACHE.fullmatch(name):
                outputs[f"kv_slice_{match[1][0]}_{match[2]}"] = np.moveaxis(array, 1, 0)
            elif name == LOGITS:
                outputs[name] = array
        return outputs


def cut_cache(port: TensorSpec, kind: str, cache: Array) -> Array:
    """Return a cache [1, heads, ...] as a graph takes it, [heads, 1, ...]: without the places at
    its end, which are for the new tokens."""
    axis = 3 if kind == "key" else 2
    cut = np.take(cache, range(port.shape[axis]), axis)
    return np.ascontiguousarray(np.moveaxis(cut, 1, 0)).reshape(port.shape)


def write_model(step: Step, directory: Path) -> Path:
    """Write the ONNX file that runs a graph, and return its path."""
    from ci.litert.execution import write_context_model

    if step.model:
        return step.model
    context = directory / step.file.name
    if not context.exists():
        shutil.copyfile(step.file, context)
    ports = [
        [(port.name, NUMPY[port.dtype], port.shape) for port in side]
        for side in (step.graph.inputs, step.graph.outputs)
    ]
    path = directory / f"{step.file.stem}_{step.tokens}.onnx"
    write_context_model(path, step.graph.name, *ports, context=context.name)
    return path


class GenieHost:
    """What Genie computes itself: positions, masks, and the caches of the next call."""

    def __init__(self, file: GenieBundle) -> None:
        self.file = file

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """Return the outputs of a signature."""
        if "_embedder" in signature:
            return {IDS: next(iter(inputs.values()))}
        if "_rope" in signature:
            return self.rotate(inputs["input_pos"])
        if "_mask" in signature:
            return self.mask(int(inputs["time_step"]), inputs["valid_mask"].size)
        return self.update(inputs)

    def rotate(self, positions: Array) -> dict[str, Array]:
        """Return cosines and sines [1, 1, n, pairs]."""
        angles = np.outer(positions, np.array(self.file.rope.frequencies))
        gain = self.file.rope.gain
        return {
            "pos_emb_cos": (gain * np.cos(angles))[None, None].astype(np.float32),
            "pos_emb_sin": (gain * np.sin(angles))[None, None].astype(np.float32),
        }

    def mask(self, position: int, tokens: int) -> dict[str, Array]:
        """Return the mask [1, 1, n, context] for tokens after ``position`` earlier ones."""
        context = self.file.context
        mask = np.full((1, 1, tokens, context), MASK_VALUE, np.float32)
        mask[..., :position] = 0
        mask[..., context - tokens :] = np.where(
            np.tri(tokens, dtype=bool), np.float32(0), np.float32(MASK_VALUE)
        )
        return {MASKED: mask}

    def update(self, inputs: Arrays) -> dict[str, Array]:
        """Return the caches with the new keys and values at their positions."""
        places = inputs["input_pos"][inputs["valid_mask"].reshape(-1)]
        caches = {}
        for cache in self.file.caches:
            written = np.array(inputs[cache.name])
            target = np.moveaxis(written, cache.axis, 0)
            new = np.moveaxis(inputs[cache.slice_name], cache.axis, 0)
            target[places] = new[: len(places)]
            caches[cache.name] = written
        return caches


def open_genie(file: GenieBundle, directory: Path, soc: str, library: Path) -> OpenBundle:
    """Open the parts of a folder. ``directory`` is for copies of its contexts."""
    directory.mkdir()
    host = GenieHost(file)
    return OpenBundle(file, GenieParts(file, directory, soc, library), host, host)
