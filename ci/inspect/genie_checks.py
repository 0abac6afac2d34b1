"""Check whether the parts of a folder for Genie fit each other, the libraries and the phone. Each
check takes the facts of ci.inspect.genie, and reads nothing.

The consequences are those that users met: the issues of qualcomm/ai-hub-apps and
qualcomm/ai-hub-models that docs/guides/bundles.md lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ci.inspect import genie_facts, genie_graphs
from ci.inspect.compat import Axis, Verdict, judge_compat
from ci.inspect.genie import BinaryFile, GenieFolder
from ci.inspect.genie_keys import ENGINE, find_section, is_number, list_objects, read_keys
from ci.report.text import name_some
from provisioning.doctor.registry import Finding, Seen, Subjects, seen
from provisioning.doctor.survey.context_binaries import TensorSpec
from provisioning.manifest.targets import find_any_soc, read_all_socs

MOST_NAMED, OF_HTP = 4, "HTP"
MARKS = ("bos-token", "eos-token", "eot-token")
ALWAYS_NEEDED = ("libGenie.so", "libQnnHtp.so", "libQnnSystem.so")
EXTENSIONS = "libQnnHtpNetRunExtensions.so"
# Where the configuration has the dimensions of a head. Of several positional encodings, each for
# the tensors with its prefix, none is compared.
HTP, KV_DIM = "dialog.engine.backend.QnnHtp", "kv-dim"
DIMENSIONS = {
    KV_DIM: HTP,
    "pos-id-dim": HTP,
    "rope-dim": "dialog.engine.model.positional-encoding",
}
USUAL_DIMENSION = 64  # numbers of a token's rotations, without pos-id-dim and positional-encoding
# The axes of compat on which a context does not fit a phone, and those on which it does not fit
# the libraries.
OF_PHONE = (Axis.HEXAGON, Axis.SOC, Axis.VTCM)
OF_LIBRARIES = (Axis.BUILD, Axis.BINARY_INFO)

FOLDERS: Subjects[GenieFolder] = Subjects()
FOLDERS.each(
    QNN948=genie_graphs.see_unread_prompts,
    QNN967=genie_graphs.see_other_variants,
    QNN968=genie_graphs.see_wrong_caches,
    QNN969=genie_graphs.see_wrong_embedding,
    QNN970=genie_graphs.see_small_spill_buffer,
    QNN971=genie_graphs.see_keys_of_other_library,
    QNN972=genie_graphs.see_mixed_libraries,
    QNN973=genie_graphs.see_unshared_weights,
    QNN974=genie_graphs.see_small_tokenizer,
    QNN975=genie_graphs.see_large_parts,
    QNN978=genie_graphs.see_no_logits,
    QNN979=genie_graphs.see_other_machine,
    QNN980=genie_graphs.see_no_chain,
    QNN981=genie_graphs.see_missing_end,
    QNN982=genie_graphs.see_no_single_tokens,
    QNN983=genie_graphs.see_damaged_libraries,
    QNN984=genie_graphs.see_unresolved_libraries,
    QNN985=genie_graphs.see_strange_tokens,
    QNN986=genie_graphs.see_renamed_parts,
    QNN987=genie_graphs.see_empty_files,
    QNN988=genie_graphs.see_other_model,
    QNN989=genie_facts.see_unknown_names,
    QNN990=genie_graphs.see_strange_numbers,
    QNN991=genie_graphs.see_wrong_types,
    QNN993=genie_facts.see_contradictions,
    QNN994=genie_facts.see_unlike_graphs,
    QNN995=genie_facts.see_other_order,
    QNN996=genie_facts.see_other_numbers,
    QNN997=genie_facts.see_other_ends,
    QNN998=genie_facts.see_repeated_names,
    QNN999=genie_facts.see_dumps,
)


def judge_genie(folder: GenieFolder) -> list[Finding]:
    """Return the findings on a folder, sorted by id and without duplicates."""
    engines = (folder, *folder.other_engines)
    return sorted({finding for engine in engines for finding in FOLDERS.judge(engine)})


@FOLDERS.check("QNN950")
def see_invalid_files(folder: GenieFolder) -> Iterator[Seen]:
    """Report a configuration, a tokenizer or settings that libGenie refuses."""
    for file, reason in folder.faults:
        yield seen(file, file, reason=reason)


@FOLDERS.check("QNN951")
def see_missing_files(folder: GenieFolder) -> Iterator[Seen]:
    """Report files that the configuration names and the folder lacks."""
    for key, word, hint in folder.missing:
        yield seen(word, folder.config_file, key=key, hint=hint)


@FOLDERS.check("QNN952")
def see_absolute_paths(folder: GenieFolder) -> Iterator[Seen]:
    """Report paths that are right only on one machine."""
    for key, word in folder.absolute:
        yield seen(word, folder.config_file, key=key)


@FOLDERS.check("QNN976")
def see_ignored_settings(folder: GenieFolder) -> Iterator[Seen]:
    """Report settings of the HTP that QNN does not read."""
    for file, reason in folder.ignored_settings:
        yield seen(file, folder.config_file, reason=reason)


@FOLDERS.check("QNN977")
def see_backslashes(folder: GenieFolder) -> Iterator[Seen]:
    """Report paths that only Windows opens."""
    for key, word in folder.backslashed:
        yield seen(word, folder.config_file, key=key)


@FOLDERS.check("QNN953")
def see_damaged_binaries(folder: GenieFolder) -> Iterator[Seen]:
    """Report files that are no whole context binaries, and those for another backend."""
    for binary in folder.binaries:
        backends = {context.backend for context in binary.contexts} - {"", OF_HTP}
        if binary.problem:
            yield seen(binary.name, binary.name, reason=binary.problem)
        elif backends and folder.htp:
            reason = f"it was compiled for QNN's {min(backends)}, and the backend is QnnHtp"
            yield seen(binary.name, binary.name, reason=reason)


@FOLDERS.check("QNN954")
def see_mixed_parts(folder: GenieFolder) -> Iterator[Seen]:
    """Report parts that were compiled by several versions of QNN or for several SoCs."""
    targets: dict[str, str] = {}
    for binary in folder.binaries:
        for context in binary.contexts:
            target = f"QNN {context.qnn or 'unknown'} for {context.soc or 'no SoC'}"
            targets.setdefault(target, binary.name)
    if len(targets) > 1:
        (first, first_name), (second, second_name), *_ = targets.items()
        yield seen(second_name, second_name, second=second, first=first, other=first_name)


@FOLDERS.check("QNN955")
def see_wrong_parts(folder: GenieFolder) -> Iterator[Seen]:
    """Report parts that are missing, twice there, or in another order than their names say."""
    variants: dict[tuple[int, int], list[frozenset[tuple[int, int]]]] = {}
    names = [binary.name for binary in folder.binaries]
    for binary in folder.binaries:
        if binary.place is None:
            if len(set(names)) < len(names):
                listed = name_some(names, MOST_NAMED)
                yield seen("ctx-bins", folder.config_file, names=listed, count=len(set(names)))
            return
        variants.setdefault(binary.place, []).append(binary.variants)
    if not variants:
        return
    count = max(place[1] for place in variants)
    # Graphs for prompts and for single tokens may be in separate files.
    is_twice = any(
        sum(map(len, sets)) > len(frozenset().union(*sets)) for sets in variants.values()
    )
    is_twice |= any(len(sets) > 1 and not all(sets) for sets in variants.values())
    if is_twice or [place[0] for place in variants] != [*range(1, count + 1)]:
        listed = name_some(names, MOST_NAMED)
        yield seen("ctx-bins", folder.config_file, names=listed, count=count)


@FOLDERS.check("QNN956")
def see_broken_chain(folder: GenieFolder) -> Iterator[Seen]:
    """Report a part that takes a tensor which neither the part before it nor the configuration
    gives: two parts of different models, or of one model compiled twice."""
    readable = [binary for binary in folder.binaries if binary.graphs]
    if len(readable) != len(folder.binaries):
        return
    for givers, takers in pairwise(group_parts(readable)):
        for taker in takers:
            for graph in taker.graphs:
                for port in graph.inputs:
                    if fault := find_chain_fault(givers, port):
                        yield seen(taker.name, graph.name, port=port.name, **fault)
                        return


def group_parts(binaries: Sequence[BinaryFile]) -> list[list[BinaryFile]]:
    """Return context binaries by part: graphs for prompts and for single tokens may be in separate
    files, which libGenie of QNN 2.51 runs next to each other."""
    parts: dict[object, list[BinaryFile]] = {}
    for number, binary in enumerate(binaries):
        parts.setdefault(binary.place or number, []).append(binary)
    return [*parts.values()]


def find_chain_fault(givers: Sequence[BinaryFile], port: TensorSpec) -> dict[str, str]:
    """Return as what a part takes a tensor, and the files of the part before it return it, empty if
    that fits. Graphs for prompts and for single tokens differ in the number of tokens, so any graph
    counts."""
    results = [
        (giver.name, result)
        for giver in givers
        for graph in giver.graphs
        for result in graph.outputs
        if result.name == port.name
    ]
    of_shape = [(name, result) for name, result in results if result.shape == port.shape]
    if not results or any(port.is_encoded_as(result) for _, result in of_shape):
        return {}
    name, result = (of_shape or results)[0]
    if of_shape:
        return {"first": name, "takes": f"as {port.encoding}", "returns": f"as {result.encoding}"}
    return {
        "first": name,
        "takes": f"of shape {list(port.shape)}",
        "returns": f"of shape {list(result.shape)}",
    }


@FOLDERS.check("QNN957")
def see_context_length(folder: GenieFolder) -> Iterator[Seen]:
    """Report a context length of the configuration that no graph was compiled for, or none of those
    for a number of new tokens."""
    size = folder.section("context").get("size")
    lengths: dict[int, set[int]] = {}
    for binary in folder.binaries:
        for tokens, length in binary.variants:
            lengths.setdefault(tokens, set()).add(length)
    for compiled in lengths.values():
        if isinstance(size, int) and size not in compiled:
            text = ", ".join(map(str, sorted(compiled)))
            yield seen("dialog.context.size", folder.config_file, size=size, lengths=text)
            return


@FOLDERS.check("QNN958")
def see_vocabulary(folder: GenieFolder) -> Iterator[Seen]:
    """Report an n-vocab that differs from the logits of the last part."""
    vocabulary = folder.section("context").get("n-vocab")
    sizes = {graph_size for binary in folder.binaries for graph_size in _list_logits(binary)}
    if isinstance(vocabulary, int) and sizes and vocabulary not in sizes:
        yield seen(
            "dialog.context.draft-n-vocab" if folder.is_draft else "dialog.context.n-vocab",
            folder.config_file,
            vocabulary=vocabulary,
            sizes=", ".join(map(str, sorted(sizes))),
        )


def _list_logits(binary: BinaryFile) -> Iterator[int]:
    """Yield the last dimension of each output that is called logits."""
    for graph in binary.graphs:
        for port in graph.outputs:
            if port.name.startswith(genie_graphs.LOGITS) and port.shape:
                yield port.shape[-1]


@FOLDERS.check("QNN959")
def see_tokenizer(folder: GenieFolder) -> Iterator[Seen]:
    """Report a tokenizer with ids that the model does not have."""
    vocabulary, tokenizer = folder.section("context").get("n-vocab"), folder.tokenizer
    if tokenizer and isinstance(vocabulary, int) and tokenizer.vocabulary > vocabulary:
        file = str(folder.section("tokenizer").get("path"))
        yield seen(file, file, ids=tokenizer.vocabulary - 1, vocabulary=vocabulary)


@FOLDERS.check("QNN960")
def see_special_tokens(folder: GenieFolder) -> Iterator[Seen]:
    """Report a token that the model does not have, and one that begins or ends texts and is none of
    the tokenizer's special tokens: -1 means none."""
    special = folder.tokenizer.special_ids if folder.tokenizer else frozenset()
    vocabulary = folder.section("context").get("n-vocab")
    for key in (key for key, kind in read_keys().names.items() if kind == "token"):
        for _, number in list_objects(folder.config, key.split("."), ""):
            if not isinstance(number, int) or number < 0:
                continue
            is_beyond = isinstance(vocabulary, int) and number >= vocabulary
            is_mark = key.rpartition(".")[2] in MARKS
            if is_beyond or (is_mark and special and number not in special):
                yield seen(key, folder.config_file, number=number)


@FOLDERS.check("QNN992")
def see_no_eos(folder: GenieFolder) -> Iterator[Seen]:
    """Report a configuration in which nothing ends an answer: -1 is no token."""
    context = folder.section("context")
    eos = context.get("eos-token")
    numbers = [*(eos if isinstance(eos, list) else [eos]), context.get("eot-token", -1)]
    is_none = all(isinstance(number, int) and number < 0 for number in numbers)
    if is_none and not folder.section().get("stop-sequence"):
        yield seen("dialog.context.eos-token", folder.config_file, number=numbers[0])


@FOLDERS.check("QNN961")
def see_dimensions(folder: GenieFolder) -> Iterator[Seen]:
    """Report a pos-id-dim, rope-dim or n-embd that differs from the tensors of the graphs, once
    each, and a kv-dim or pos-id-dim that is missing. libGenie of QNN 2.51 needs kv-dim, and
    assumes a pos-id-dim of 64 without any description of the rotations."""
    is_described = "positional-encoding" in folder.section(ENGINE, "model")
    for key, place in DIMENSIONS.items():
        value = find_section(folder.config, place.split(".")).get(key)
        usual = USUAL_DIMENSION if key == "pos-id-dim" and not is_described else None
        shown = value
        if value is None and usual and folder.htp:
            value, shown = usual, f"{usual}, because it is missing"
        elif value is None and key == KV_DIM and folder.htp:
            value, shown = 0, "missing"
        elif key == KV_DIM:
            continue
        yield from see_dimension(folder, key, value, shown)

    size, carriers = folder.section("context").get("n-embd"), genie_graphs.list_embeddings(folder)
    if isinstance(size, int) and carriers and size not in {port.shape[-1] for _, port in carriers}:
        graph, port = carriers[0]
        yield seen(
            "dialog.context.n-embd",
            folder.config_file,
            value=size,
            graph=graph.name,
            port=port.name,
            shape=list(port.shape),
        )


def see_dimension(folder: GenieFolder, key: str, value: object, shown: object) -> Iterator[Seen]:
    """Report a dimension of the configuration that differs from the first such input of a graph.
    ``shown`` is what is said of its value."""
    if not is_number(value):
        return
    graphs = [graph for binary in folder.binaries for graph in binary.graphs]
    wrong = [
        (graph, port) for graph in graphs for port in graph.inputs if differs(key, value, port)
    ]
    for graph, port in wrong[:1]:
        yield seen(
            f"{DIMENSIONS[key]}.{key}",
            folder.config_file,
            value=shown,
            graph=graph.name,
            port=port.name,
            shape=list(port.shape),
        )


@FOLDERS.check("QNN949")
def see_other_head(folder: GenieFolder) -> Iterator[Seen]:
    """Report a kv-dim that differs from the caches of the graphs, from which libGenie of QNN 2.51
    takes the size of a head: it generated the right text with 4, 16 and 32 instead of 8."""
    value = folder.htp.get(KV_DIM)
    yield from see_dimension(folder, KV_DIM, value, value)


def differs(key: str, value: int, port: TensorSpec) -> bool:
    """Return whether an input has another size than the configuration's key. Keys in a cache are
    [heads, 1, kv-dim, length], values [heads, 1, length, kv-dim]."""
    if key == KV_DIM:
        is_cache = port.name.startswith(("past_key", "past_value")) and len(port.shape) > 1
        return is_cache and value not in port.shape[-2:]
    is_position = port.name.startswith("position_ids_") and bool(port.shape)
    return is_position and value != port.shape[-1]


@FOLDERS.check("QNN962")
def see_other_device(folder: GenieFolder) -> Iterator[Seen]:
    """Report settings of the HTP that are for another SoC than the contexts."""
    compiled = [context for binary in folder.binaries for context in binary.contexts]
    hexagons = {context.hexagon for context in compiled if context.hexagon}
    soc_ids = {context.soc_id for context in compiled if context.soc_id}
    file = str(folder.section("engine", "backend").get("extensions"))
    for device in folder.devices:
        if device.hexagon and hexagons and device.hexagon not in hexagons:
            contexts = f"Hexagon V{', V'.join(map(str, sorted(hexagons)))}"
            yield seen(file, file, settings=f"Hexagon V{device.hexagon}", contexts=contexts)
        elif device.soc_id and soc_ids and device.soc_id not in soc_ids:
            yield seen(
                file, file, settings=_name_socs({device.soc_id}), contexts=_name_socs(soc_ids)
            )


def _name_socs(soc_ids: set[int]) -> str:
    """Return the names of SoCs by QNN's numbers."""
    names: dict[int, str] = {}
    for name, soc in read_all_socs().items():
        names.setdefault(soc.id, name)
    return ", ".join(f"{names.get(number, 'an SoC')} ({number})" for number in sorted(soc_ids))


@FOLDERS.check("QNN963")
def see_other_phone(folder: GenieFolder) -> Iterator[Seen]:
    """Report contexts that do not fit the SoC that was asked about."""
    if not folder.soc:
        return
    find_any_soc(folder.soc)
    for binary in folder.binaries:
        if binary.program and not binary.problem:
            for row in judge_compat(binary.program, None, folder.soc).rows:
                if row.axis in OF_PHONE and row.verdict is Verdict.NO:
                    yield seen(binary.name, binary.name, soc=folder.soc, reason=row.why)
                    break


@FOLDERS.check("QNN964")
def see_older_libraries(folder: GenieFolder) -> Iterator[Seen]:
    """Report libraries that are older than the QNN that compiled a context."""
    if folder.runtime is None:
        return
    for binary in folder.binaries:
        if binary.program and not binary.problem:
            for row in judge_compat(binary.program, folder.runtime).rows:
                if row.axis in OF_LIBRARIES and row.verdict is Verdict.NO:
                    where = folder.runtime.name
                    yield seen(binary.name, binary.name, libraries=where, reason=row.why)
                    break


@FOLDERS.check("QNN965")
def see_missing_libraries(folder: GenieFolder) -> Iterator[Seen]:
    """Report libraries that Genie opens and the folder of the libraries lacks."""
    if folder.runtime is None or folder.libraries is None:
        return
    needed = [*ALWAYS_NEEDED]
    if folder.section("engine", "backend").get("extensions"):
        needed.append(EXTENSIONS)
    contexts = [context for binary in folder.binaries for context in binary.contexts]
    for hexagon in sorted({context.hexagon for context in contexts if context.hexagon}):
        needed += [f"libQnnHtpV{hexagon}Stub.so", f"libQnnHtpV{hexagon}Skel.so"]
    for name in needed:
        if name not in folder.libraries.names:
            yield seen(name, folder.runtime.name)


@FOLDERS.check("QNN966")
def see_unknown_fit(folder: GenieFolder) -> Iterator[Seen]:
    """Note what was not judged, because neither a SoC nor libraries are known."""
    lacking, options = [], []
    if not folder.runtime:
        lacking.append("QNN's libraries")
        options.append("--qnn-runtime with their directory or version")
    if not folder.soc:
        lacking.append("the phone's SoC")
        options.append("--soc SOC")
    if lacking:
        yield seen(" and ".join(lacking), folder.name, options=" and ".join(options))
