"""A LiteRT model to compile, from a file, from the suite or from torch, with its inputs.

The inputs of a .tflite file are next to it, in an .npz file of the same name, with one array of
shape [sample, *shape] per input. A policy can specify other files. Missing inputs are generated,
and the report shows this. A torch module is converted by litert-torch; its inputs are those of its
factory or of a policy, as in the other lanes.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ci.cases.spec import CaseSpec
from ci.graphs.candidates import Candidate
from ci.graphs.litert_file import (
    Entry,
    has_data,
    list_entries,
    list_numbers,
    name_all_tensors,
    name_operator,
    name_tensor,
    read_dtype,
    read_levels,
    read_model,
    read_shape,
)
from ci.graphs.litert_reader import DRAWS
from ci.graphs.litert_session import Reference
from ci.graphs.litert_states import expose_states, has_states
from ci.litert.compiled import survey_model
from ci.litert.plugin import CONVERTER
from ci.litert.split import draw_integers
from ci.models import user_models
from ci.models.file_checks import check_pair, describe_mismatch, describe_random
from ci.models.file_samples import (
    SEED,
    Array,
    Arrays,
    Ports,
    gather_sets,
    make_sets,
    read_packed,
)
from ci.models.tensors import digest_sets
from ci.models.user_models import MIN_SETS, NO_SOURCE, RANDOM
from provisioning.documents import read_user_file
from provisioning.errors import FailedError, UsageError, at_key

# The version of the format, and the tag of one of the next fields: producer, domain, graph, opsets.
OF_ONNX = re.compile(rb"\x08[\x01-\x1f][\x12\x22\x3a\x42]")
LARGEST_CHANGE = 1e-5  # of an output's largest element, by a state that is an input


@dataclass(frozen=True)
class LitertSource:
    """A model and its inputs. ``digest`` is a hash of everything that determines both.
    ``evaluation`` has for each sample the inputs of all entries, one after another. ``expected``
    has the outputs of a torch module for them, and ``weights`` is the SHA-256 of its weights; both
    are empty for a file. ``remarks`` are what its conversion changed, and ``state`` the buffers
    that each call of the torch module changes."""

    name: str
    data: bytes
    model: Any
    entries: tuple[Entry, ...]
    digest: str
    evaluation: tuple[Arrays, ...]
    made_inputs: str = ""
    float_data: bytes = b""
    signatures: tuple[str, ...] = ()  # that are run; all if empty
    expected: tuple[Arrays, ...] = ()
    weights: str = ""
    remarks: tuple[str, ...] = ()
    state: tuple[str, ...] = ()


def digest_litert(spec: CaseSpec) -> str:
    """Return a hash of everything that determines the model and the inputs of a case. A torch
    module is loaded for it, but not converted. Raises the errors of load_litert."""
    if spec.is_function:
        from ci.models.model import load_digested  # it imports torch, which files do not need

        return load_digested(spec.reference, spec.source)[1]
    return load_litert(spec).digest


def count_samples(spec: CaseSpec) -> int:
    """Return the number of samples on which a case is judged. A torch module is not run."""
    if spec.is_function:
        from ci.models.model import count_judged

        return count_judged(spec.reference, spec.source)
    return len(load_litert(spec).evaluation)


def load_litert(spec: CaseSpec) -> LitertSource:
    """Return the model and the inputs of a case. A torch module is converted. Raises UsageError if
    the file or the module cannot be used, and FailedError if it cannot be converted."""
    if spec.is_function:
        return convert_source(spec)
    if not spec.is_file:
        from ci.litert.suite import make_model

        return make_source(f"{spec.model}.tflite", make_model(spec.model), NO_SOURCE)
    path = Path(spec.reference)
    data, float_data = read_litert(path), b""
    if spec.source.float_model:
        with at_key("float_model"):
            float_path = Path(spec.source.float_model)
            float_data = read_litert(float_path)
            float_model = read_model(float_data)
            check_float_model(float_path.name, float_model, read_model(data))
            choose_entries(float_path.name, float_model, spec.source.signatures)
    return make_source(path.name, data, spec.source, path=path, float_data=float_data)


def convert_source(spec: CaseSpec) -> LitertSource:
    """Return the source for a torch module. Raises FailedError if litert-torch cannot convert it,
    or if the file takes or returns other tensors than the module."""
    from ci.litert.convert import convert_module  # it imports litert-torch
    from ci.models.eager import find_changed
    from ci.models.model import digest_weights, load_digested

    module, digest = load_digested(spec.reference, spec.source)
    data = convert_module(module.module, module.evaluation[0])
    model = read_model(data)
    name = Path(spec.reference).name
    check_model(name, model)
    entries = choose_entries(name, model, spec.source.signatures)
    kinds: dict[str, None] = {}
    sets = []
    for kind, samples in (("input", module.evaluation), ("output", module.reference)):
        arrays = [tuple(tensor.numpy() for tensor in tensors) for tensors in samples]
        ports = list_tensors(model, entries, kind)
        sets.append(tuple(fit_module(kind, sample, ports, kinds) for sample in arrays))
    remarks = tuple(f"{CONVERTER} made {change} of the module" for change in kinds)
    return LitertSource(
        name,
        data,
        model,
        entries,
        digest,
        sets[0],
        module.made_inputs,
        signatures=spec.source.signatures,
        expected=sets[1],
        weights=digest_weights(module.module),
        remarks=remarks,
        state=tuple(find_changed(module.module, module.evaluation[0])),
    )


def list_tensors(model: Any, entries: Sequence[Entry], kind: str) -> list[Any]:
    """Return the tensors of all inputs or outputs of entries."""
    return [
        model.subgraphs[entry.subgraph].tensors[number]
        for entry in entries
        for number in (entry.inputs if kind == "input" else entry.outputs)
    ]


def fit_module(
    kind: str, arrays: Sequence[Array], tensors: Sequence[Any], changes: dict[str, None]
) -> Arrays:
    """Return the arrays of a torch module, its inputs or outputs, in the types of the ``tensors``
    of the file. Other types are added to ``changes``. Raises FailedError if their number or their
    shapes differ, or if a type does not have the values."""
    shapes = [array.shape for array in arrays]
    shapes_of_file = [read_shape(tensor) for tensor in tensors]
    if shapes != shapes_of_file:
        raise FailedError(
            f"{CONVERTER} changed the {kind}s of the model",
            why=f"the module's have the shapes {_list(shapes)}, and the file's"
            f" {_list(shapes_of_file)}",
            fix=f"pass on only {kind}s that the module uses"
            if kind == "input"
            else "return each tensor once",
        )
    fitted = []
    for index, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        dtype = np.dtype(read_dtype(tensor))
        converted = array.astype(dtype)
        if dtype != array.dtype:
            changes[f"{kind} {index} {dtype} instead of the {array.dtype}"] = None
            if not np.array_equal(converted, array, equal_nan=array.dtype.kind == "f"):
                raise FailedError(
                    f"{kind} {index} has values that {dtype} does not have",
                    why=f"{CONVERTER} makes {dtype} of {array.dtype}",
                    fix="use smaller numbers",
                )
        fitted.append(converted)
    return tuple(fitted)


def _list(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(str([*shape]) for shape in shapes) or "none"


def check_float_model(name: str, model: Any, quantized: Any) -> None:
    """Check that a ``quantized`` model could have been made from the float model in the file
    ``name``. Raises UsageError if the float model is itself quantized, if ``quantized`` is not, or
    if their inputs or outputs differ in number, shape or order."""
    check_pair(name, is_quantized(model), is_quantized(quantized))
    for kind in ("inputs", "outputs"):
        ports, quantized_ports = (_list_shapes(each, kind) for each in (model, quantized))
        names, quantized_names = ([port[0] for port in each] for each in (ports, quantized_ports))
        # Quantizers may change names, but not exchange them.
        is_reordered = names != quantized_names and sorted(names) == sorted(quantized_names)
        shapes = [port[1] for port in ports]
        if is_reordered or shapes != [port[1] for port in quantized_ports]:
            raise describe_mismatch(
                name,
                f"its {kind} are {_describe_ports(ports)}, but the quantized model's are"
                f" {_describe_ports(quantized_ports)}",
            )


def _list_shapes(model: Any, kind: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the shape of each input or output of all entries."""
    shapes = []
    for entry in list_entries(model):
        numbers = entry.inputs if kind == "inputs" else entry.outputs
        names = entry.input_names if kind == "inputs" else entry.output_names
        tensors = model.subgraphs[entry.subgraph].tensors
        for name, number in zip(names, numbers, strict=True):
            shapes.append((name, tuple(read_shape(tensors[number]))))
    return shapes


def _describe_ports(ports: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {[*shape]}" for name, shape in ports)


def read_litert(path: Path) -> bytes:
    """Return the bytes of a .tflite file. Raises UsageError if it is none, or is damaged, compiled
    already or empty."""
    data = read_user_file(path, "the model")
    check_litert(data, path.name)
    return data


def check_litert(data: bytes, name: str) -> None:
    """Raise UsageError for bytes that cannot be compiled. They are not trusted while they are
    read."""
    if data[4:8] != b"TFL3" and OF_ONNX.match(data):
        raise UsageError(
            f"{name} is not a .tflite file",
            why="its content is an ONNX model",
            fix="name the file NAME.onnx, and judge it with test-onnx",
        )
    if data[4:8] != b"TFL3":
        kind = "none of LiteRT's" if data else "empty"
        kind = "a ZIP archive" if data[:2] == b"PK" else kind
        raise UsageError(
            f"{name} is not a .tflite file",
            why=f"its content is {kind}: bytes 4 to 8 of a LiteRT model are TFL3",
            fix="pass the model itself; a bundle or an archive has to be unpacked first",
        )
    program = survey_model(data, name)
    if program.damage:
        raise UsageError(f"{name} {program.damage}", fix="write the file again")
    if program.compiled_for or any(method.partitions for method in program.methods):
        target = f" for {program.compiled_for}" if program.compiled_for else ""
        raise UsageError(
            f"{name} is compiled already{target}",
            why="LiteRT's plugin compiles only models that are not",
            fix=f"pass the model from which it was compiled; `qnn-ci inspect {name}` describes it",
        )


def check_model(name: str, model: Any) -> None:
    """Raise UsageError for what LiteRT's interpreter cannot pass by its names, and for a model that
    draws random numbers or has no outputs or operators."""
    for subgraph in model.subgraphs:
        for tensor in subgraph.tensors:
            check_text(name, tensor.name)
        for number in list_numbers(subgraph.inputs):
            if 0 in read_shape(subgraph.tensors[number]):
                raise UsageError(
                    f"the input {name_tensor(subgraph, number)} of {name} has a dimension of 0",
                    why="there is nothing to compute, and LiteRT's plugin fails on it",
                    fix="write the file with the sizes that the model has in use",
                )
        for operator in subgraph.operators or ():
            kind = name_operator(model, operator)
            if kind in DRAWS:
                error = describe_random(f"{kind} of {name}")
                raise UsageError(error.what, why=error.why, fix=error.fix)
    if not any(subgraph.operators for subgraph in model.subgraphs):
        raise UsageError(
            f"{name} has no operators",
            why="there is nothing to compile",
            fix="write the file again with the model's operators",
        )
    check_entries(name, model)


def check_text(name: str, text: bytes | None) -> None:
    """Raise UsageError for the name of a tensor that is no text."""
    try:
        (text or b"").decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} has a tensor whose name is not UTF-8: {text!r}",
            why="LiteRT's interpreter cannot return it",
            fix="write the file again, with names in UTF-8",
        ) from error


def check_entries(name: str, model: Any) -> None:
    """Raise UsageError for a model without outputs, or with signatures that LiteRT's interpreter
    does not tell apart, or of which it does not tell apart or return the inputs or outputs."""
    entries = list_entries(model)
    for entry in entries:
        signature_text = f"the signature {entry.key!r} of {name}" if entry.key else name
        if not entry.outputs:
            raise UsageError(
                f"{signature_text} has no outputs",
                why="there is nothing to judge",
                fix="return a result",
            )
    keys = [entry.key for entry in entries]
    repeated = find_repeated(keys)
    if repeated is not None:
        raise UsageError(
            f"{name} has {keys.count(repeated)} signatures called {repeated!r}",
            why="a signature is run by its name",
            fix="give each signature its own name",
        )
    for entry, signature in zip(entries, model.signatureDefs or (), strict=False):
        check_ports(f"the signature {entry.key!r} of {name}", entry, signature)


def check_ports(signature_text: str, entry: Entry, signature: Any) -> None:
    """Raise UsageError for a signature that has two inputs or outputs of one name, or not all of
    its subgraph."""
    for kind, numbers, names, ports in (
        ("input", entry.inputs, entry.input_names, signature.inputs),
        ("output", entry.outputs, entry.output_names, signature.outputs),
    ):
        by_number = dict(zip(numbers, names, strict=True))  # a tensor may be returned twice
        repeated = find_repeated([*by_number.values()])
        if repeated is not None:
            raise UsageError(
                f"{signature_text} has two {kind}s called {repeated!r}",
                why="LiteRT's interpreter passes them by their names",
                fix=f"give each {kind} its own name",
            )
        for number in by_number.keys() - {int(port.tensorIndex) for port in ports or ()}:
            raise UsageError(
                f"{signature_text} does not name the {kind} {by_number[number]!r} of its subgraph",
                why="LiteRT's interpreter passes only those that it names",
                fix=f"name each {kind} in the signature, or remove it from the subgraph",
            )


def find_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that occurs twice, or None."""
    return next((name for name, uses in Counter(names).items() if uses > 1), None)


def make_source(
    name: str,
    data: bytes,
    own_data: user_models.Source,
    *,
    path: Path | None = None,
    float_data: bytes = b"",
) -> LitertSource:
    """Return the source of a model that was checked. ``own_data`` are the policy's files with
    inputs, and ``path`` is the model's file, next to which samples may be."""
    own_file, data = data, name_all_tensors(data)
    model = read_model(data)
    is_stateful = has_states(model)
    if is_stateful:
        data = expose_states(name, data)
        model = read_model(data)
    entries = choose_entries(name, model, own_data.signatures)
    ports = list_ports(model, entries)
    quantized = [
        place
        for place, (entry, number) in enumerate(_list_inputs(entries))
        if read_levels(model.subgraphs[entry.subgraph].tensors[number])
    ]
    if path:
        beside = partial(read_packed, path, ports)
        gathered = gather_sets(ports, own_data, beside, calibrates=False)
        judged, made_inputs = gathered.judged, gathered.made_inputs
    else:
        judged, made_inputs = make_sets(ports, (), {}, MIN_SETS, SEED), ""
    if quantized and (made_inputs == RANDOM or not path):
        judged = tuple(
            _draw_quantized(model, entries, arrays, quantized, seed)
            for seed, arrays in enumerate(judged, SEED)
        )
    if is_stateful:
        require_same_steps(name, own_file, LitertSource(name, data, model, entries, "", judged))
    digest = hashlib.sha256(data)
    digest.update(f"{made_inputs} {digest_sets(judged)} {own_data.signatures}".encode())
    digest.update(hashlib.sha256(float_data).digest())
    return LitertSource(
        name,
        data,
        model,
        entries,
        digest.hexdigest(),
        judged,
        made_inputs,
        float_data,
        own_data.signatures,
        remarks=tuple(describe_carried(name, model, entries)),
    )


def describe_carried(name: str, model: Any, entries: Sequence[Entry]) -> list[str]:
    """Return what the user has to know about the states of a model."""
    states = [
        name_tensor(model.subgraphs[entry.subgraph], state.read)
        for entry in entries
        for state in entry.states
    ]
    if not states:
        return []
    remark = (
        f"{name} keeps values between its runs, which LiteRT's plugin refuses: they are inputs and"
        f" outputs of the program ({', '.join(states)}), the samples are successive runs, and an"
        " application has to pass each value on"
    )
    return [remark]


def require_same_steps(name: str, own_file: bytes, source: LitertSource) -> None:
    """Raise FailedError if the model with exposed states, run step by step on LiteRT's CPU, does
    not return what the user's file returns."""
    model = read_model(own_file)
    try:
        expected = Reference(own_file, model, list_entries(model)).run(source.evaluation)
        computed = Reference(source.data, source.model, source.entries).run(source.evaluation)
    except (RuntimeError, ValueError) as error:
        raise FailedError(
            f"LiteRT's interpreter does not run {name} on these inputs",
            why=" ".join(str(error).split()),
            fix="put samples that the model accepts next to it, in an .npz file of the same name",
        ) from error
    for step, pair in enumerate(zip(expected, computed, strict=True)):
        for index, (right, array) in enumerate(zip(*pair, strict=True)):
            scale = float(np.max(np.abs(right), initial=0.0)) or 1.0
            if not np.allclose(right, array, rtol=0, atol=LARGEST_CHANGE * scale, equal_nan=True):
                raise FailedError(
                    f"the states of {name} cannot be made inputs and outputs",
                    why=f"output {index} of run {step + 1} then has other values on LiteRT's CPU",
                    fix="return the values as outputs, and pass them as inputs to the next run",
                )


def list_nodes(spec: CaseSpec) -> list[Candidate]:
    """Return the operators of a case's model, with the types of their results."""
    model, candidates = load_litert(spec).model, []
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or ():
            kind, results = name_operator(model, operator), list_numbers(operator.outputs)
            tensor = subgraph.tensors[results[0]] if results else None
            candidates.append(
                Candidate(
                    node=(name_tensor(subgraph, results[0]) if results else kind,),
                    op=(kind,),
                    result_type=read_dtype(tensor) if tensor else "",
                )
            )
    return candidates


def choose_entries(name: str, model: Any, signatures: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries of a model that are run: those of these ``signatures``, or all. Raises
    UsageError for a signature that the file ``name`` does not have."""
    entries = list_entries(model)
    keys = [entry.key for entry in entries if entry.key]
    for signature in signatures:
        if signature not in keys:
            raise UsageError(
                f"signatures: {name} has no signature {signature!r}",
                fix=f"use {' or '.join(keys)}" if keys else "remove the key: the model has none",
            )
    return tuple(list_entries(model, signatures))


def _draw_quantized(
    model: Any, entries: tuple[Entry, ...], arrays: Arrays, quantized: list[int], seed: int
) -> Arrays:
    random = np.random.default_rng(seed)
    drawn = [*arrays]
    for place, (entry, number) in enumerate(_list_inputs(entries)):
        if place in quantized:
            drawn[place] = draw_integers(random, model.subgraphs[entry.subgraph].tensors[number])
    return tuple(drawn)


def _list_inputs(entries: tuple[Entry, ...]) -> list[tuple[Entry, int]]:
    return [(entry, number) for entry in entries for number in entry.inputs]


def list_ports(model: Any, entries: tuple[Entry, ...]) -> Ports:
    """Return the dtype and the shape of each input, by its name. With several signatures, the name
    of the signature is in front of it."""
    ports: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for entry in entries:
        for number, input_name in zip(entry.inputs, entry.input_names, strict=True):
            tensor = model.subgraphs[entry.subgraph].tensors[number]
            dtype = read_dtype(tensor)
            if not dtype:
                raise UsageError(
                    f"the input {input_name} has a type that cannot be passed to a model here",
                    why="only numbers and booleans can",
                )
            name = f"{entry.key}/{input_name}" if len(entries) > 1 else input_name
            ports[name] = np.dtype(dtype), read_shape(tensor)
    return ports


def is_quantized(model: Any) -> bool:
    """Return whether a model computes with integers that stand for other numbers. Weights alone do
    not count: the rest is then computed in float16."""
    return any(
        read_levels(tensor) is not None and not has_data(model, tensor)
        for subgraph in model.subgraphs
        for tensor in subgraph.tensors
    )
