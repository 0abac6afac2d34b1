"""What keeps LiteRT-LM from running a .litertlm file on the NPU, whatever the phone, and what else
is wrong with the file. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ci.inspect.litert_libraries import DISPATCH
from ci.llm.bundle_file import (
    MAIN,
    BundleFile,
    list_tokenizers,
    name_model,
)
from provisioning.console.command import user_path
from provisioning.doctor.survey.litert import Bundle
from provisioning.doctor.survey.tree import survey_tree

FORMAT = "1"  # the major version of .litertlm files
BACKEND = "npu"
# The types of models in the schema of litert-lm-builder 0.18.1, all of which begin alike.
TYPE_PREFIX = "tf_lite_"


@dataclass(frozen=True)
class BundleFault:
    """What is wrong with a .litertlm file or the libraries, its consequence and its remedy."""

    what: str
    why: str = ""
    fix: str = ""


def list_header_faults(bundle: Bundle) -> Iterator[BundleFault]:
    """Yield whether LiteRT-LM does not read the format of a file, models whose sections keep it
    from running them on the NPU, and those for the NPU of another manufacturer."""
    if bundle.version.partition(".")[0] != FORMAT:
        yield BundleFault(
            f"it has version {bundle.version} of the format, and LiteRT-LM reads {FORMAT}",
            fix="pack the bundle with a litert-lm-builder of the LiteRT-LM that the app contains",
        )
    for section in bundle.sections:
        if section.model and section.model.is_of_other_maker:
            yield BundleFault(
                f"{name_model(section)} is compiled for {section.model.compiled_for}",
                "it runs on the NPU of this manufacturer only: 'No usable Dispatch runtime found'",
                "use the file for Qualcomm's NPU, or one that is not compiled",
            )
        kind = name_model(section)
        if section.model and not kind.startswith(TYPE_PREFIX):
            yield BundleFault(
                f"a model has the type {kind}",
                "LiteRT-LM refuses the file: 'Unknown model type'",
                f"pack it again with a type such as {MAIN}",
            )
        backends = str(section.items.get("backend_constraint") or BACKEND).lower().split(",")
        if section.model and kind == MAIN and BACKEND not in map(str.strip, backends):
            yield BundleFault(
                f"the decoder's section has the backend_constraint {','.join(backends)}",
                "LiteRT-LM does not run it on the NPU: 'backend constraint mismatch'",
                f"pack the bundle again without backend_constraint, or with {BACKEND}",
            )


def list_faults(file: BundleFile) -> Iterator[BundleFault]:
    """Yield what does not fit in a bundle whose models fit each other: tokenizer, metadata, and how
    the caches are encoded. Raises the errors of BundleFile.list_tokens."""
    tokens, metadata = file.list_tokens(), file.metadata
    # Models have unused rows, and tokenizers pieces that only other models of a family use.
    if abs(tokens.count - file.vocabulary) > file.vocabulary // 100:
        yield BundleFault(
            f"the tokenizer has {tokens.count} tokens, and the decoder {file.vocabulary} logits",
            "it belongs to another model, so that prompts and answers are noise",
            "pack the bundle again with the tokenizer of its model",
        )
    fix = "pack the bundle again with the start and stop tokens of its model"
    if not metadata.stops:
        yield BundleFault(
            "the metadata names no stop token",
            "LiteRT-LM requires one: 'Stop tokens are required'",
            "pack the bundle again with the stop tokens of its model",
        )
    elif not any(isinstance(stop, int) or stop in tokens.texts for stop in metadata.stops):
        yield BundleFault(
            f"the metadata names the stop token {metadata.stops[0]}, which the tokenizer does not"
            " have",
            "the model does not generate it, so that answers do not end",
            fix,
        )
    if strange := [token for token in metadata.ids if not 0 <= token < file.vocabulary]:
        yield BundleFault(
            f"the metadata names the token {strange[0]}, and the decoder has {file.vocabulary}"
            " logits",
            "answers do not end, or the first token of a prompt has no embedding",
            fix,
        )
    for reason in list_cache_faults(file):
        yield BundleFault(
            reason,
            "LiteRT-LM copies the numbers as they are, so that keys and values are wrong",
            "convert and compile all signatures again, in one run",
        )
        return


def list_cache_faults(file: BundleFile) -> Iterator[str]:
    """Yield why new keys and values cannot be copied into a cache: the numbers of prefill and
    decode, or of a cache and what is written into it, mean other values."""
    for signature, method in file.signatures[MAIN].items():
        ports = {port.name: port for port in (*method.inputs, *method.outputs)}
        for cache in file.shared_caches:
            for port in filter(None, map(ports.get, (cache.name, cache.slice_name))):
                if not port.is_encoded_as(cache.port):
                    yield (
                        f"{port.name} of {signature} is {port.encoding}, and {cache.name}"
                        f" {cache.port.encoding}"
                    )


def list_warnings(file: BundleFile) -> Iterator[BundleFault]:
    """Yield what is wrong in a bundle that LiteRT-LM loads. Raises the errors of
    BundleFile.list_tokens."""
    tokens, metadata = file.list_tokens(), file.metadata
    if metadata.most_tokens > file.context:
        yield BundleFault(
            f"the metadata allows {metadata.most_tokens} tokens, and the caches have room for"
            f" {file.context}",
            "LiteRT-LM goes on when the caches are full, and answers become noise",
            f"pack the bundle again with max_num_tokens {file.context}",
        )
    if isinstance(metadata.start, str) and metadata.start not in tokens.texts:
        yield BundleFault(
            f"the metadata names the start token {metadata.start}, which the tokenizer does not"
            " have",
            "prompts begin without it, or with several tokens instead",
            "pack the bundle again with the start token of its model",
        )
    chosen, *ignored = list_tokenizers(file.bundle)
    for section in ignored:
        yield BundleFault(
            f"it has two tokenizers: {chosen.content} and {section.content}",
            f"LiteRT-LM takes the first of these, with {tokens.count} tokens; the other one has"
            f" {file.list_tokens_of(section).count}",
            "pack the bundle again with the tokenizer of its model alone",
        )
    for signature, method in file.signatures[MAIN].items():
        if file.is_compiled and not method.partitions:
            yield BundleFault(
                f"{signature} of the decoder is not compiled for the NPU",
                "it runs on the CPU, with its own copy of the weights, or not at all",
                "compile all signatures of the decoder",
            )


def list_missing_libraries(runtime_name: str) -> Iterator[BundleFault]:
    """Yield the libraries of LiteRT that a directory with other libraries of it lacks. A directory
    with QNN's libraries alone says nothing of LiteRT's."""
    place = user_path(runtime_name) if runtime_name else None
    if place is None or not place.is_dir():
        return
    names = {file.name for file in survey_tree(place).files}
    if DISPATCH not in names and any(name.lower().startswith("liblitert") for name in names):
        yield BundleFault(
            f"{place.name} has no {DISPATCH}",
            "LiteRT opens it for compiled models: 'No usable Dispatch runtime found'",
            f"add {DISPATCH} of the release of LiteRT that the other libraries are from",
        )
