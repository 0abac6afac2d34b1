"""What keeps LiteRT-LM from running a .litertlm file on the NPU, whatever the phone, and what else
is wrong with the file. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ci.inspect.genie import SYSTEM, Libraries, describe_libraries
from ci.inspect.litert_libraries import (
    DISPATCH,
    LITERT_NAME,
    describe_releases,
    find_releases,
)
from ci.llm.bundle_file import (
    MAIN,
    PER_LAYER,
    BundleFile,
    LlmMetadata,
    TokenList,
    list_tokenizers,
    name_model,
)
from ci.llm.tokenizers import CHAT_TOKEN, find_ends_of_turn
from provisioning.console.command import user_path
from provisioning.doctor.survey.litert import Bundle
from provisioning.doctor.survey.tree import survey_tree
from provisioning.elf.facts import EM_AARCH64, name_machine

FORMAT = "1"  # the major version of .litertlm files
BACKEND = "npu"
# Methods of Python in a template that minijinja does not have. LiteRT-LM replaces those of texts,
# such as startswith, split and strip, and items without arguments (EditTemplateForMinijinja in
# runtime/components/prompt_template.cc).
TEMPLATE_METHOD = re.compile(
    r"\.(get|keys|values|items(?=\([^)])|upper|lower|title|capitalize|append|extend|insert|format"
    r"|find|index|count|pop|update|splitlines|isdigit|copy)\("
)
# Statements of transformers' templates that minijinja does not know (mitsuhiko/minijinja 815).
# LiteRT-LM removes this one, if it is written with one space on each side.
TEMPLATE_STATEMENT = re.compile(r"\{%(?! generation %\})[-+]?\s*(generation)\b")
# LiteRT-LM has one template, and these name another one.
TEMPLATE_FILE = re.compile(r"\{%[-+]?\s*(include|import|from|extends)\b")
JINJA_MARK = re.compile(r"\{[{%]")
# LiteRT-LM replaces this filter by one without arguments (runtime/components/rust/
# minijinja_template.rs).
TEMPLATE_JSON = re.compile(r"\|\s*tojson\(\s*[^)\s]")
EXPRESSION = r"\{\{"
# What opens and what closes a block of a template.
BLOCKS = (
    (r"\{%-?\s*for\b", r"\{%-?\s*endfor\b"),
    (r"\{%-?\s*if\b", r"\{%-?\s*endif\b"),
    (r"\{%-?\s*macro\b", r"\{%-?\s*endmacro\b"),
    (r"\{%", r"%\}"),
    (EXPRESSION, r"\}\}"),
)
USUAL_TOKENS = 4096  # without max_num_tokens (EngineSettings::MaybeUpdateAndValidate)
VISION = "tf_lite_vision_encoder"
DRAFTER, DRAFTER_AUX = "tf_lite_mtp_drafter", "tf_lite_mtp_aux"
# Types of models, what they need beside them, and what happens without it.
COMPANIONS = (
    (VISION, "tf_lite_vision_adapter", "'TF_LITE_VISION_ADAPTER not found'"),
    ("tf_lite_vision_adapter", VISION, "'TF_LITE_VISION_ENCODER not found'"),
    ("tf_lite_audio_encoder_hw", "tf_lite_audio_adapter", "'TF_LITE_AUDIO_ADAPTER not found'"),
    ("tf_lite_audio_adapter", "tf_lite_audio_encoder_hw", "'TF_LITE_AUDIO_ENCODER_HW not found'"),
    (DRAFTER_AUX, DRAFTER, "nothing is drafted"),
    (DRAFTER, DRAFTER_AUX, "on the NPU, LiteRT-LM computes masks and rotations of drafts with it"),
)
# Types of models in LlmModelType (runtime/proto/llm_model_type.proto, as in litert-lm-builder
# 0.18.1), and a token that starts the turns of their conversations.
TURNS_OF_TYPES = {
    2: ("gemma3n", "<start_of_turn>"),
    3: ("function_gemma", "<start_of_turn>"),
    4: ("gemma3", "<start_of_turn>"),
    5: ("qwen3", "<|im_start|>"),
    7: ("qwen2p5", "<|im_start|>"),
    9: ("fast_vlm", "<|im_start|>"),
    11: ("lfm2", "<|im_start|>"),
}
# Tokens for unknown text, and for the rest of a batch.
OF_NO_TEXT = ("<unk>", "<pad>", "[UNK]", "[PAD]", "<|pad|>")
# Those of Gemma, whose texts all start with this token.
OF_GEMMA, START_OF_GEMMA = (2, 3, 4), "<bos>"
# Types of models that are made for pictures; others have variants for texts alone.
OF_PICTURES = {9: "fast_vlm", 13: "minicpmv4"}
RUNTIME_VERSION = re.compile(r"\d+(\.\d+){0,2}([-+.][0-9A-Za-z.]+)?")
# Fields of SamplerParameters, with the smallest and largest numbers that make sense.
SAMPLED = {2: ("k", 0, 1 << 20), 3: ("p", 0, 1), 4: ("temperature", 0, 10)}
DSP_PART = re.compile(r"libQnnHtpV\d+(Stub|Skel)\.so")
QNN_HTP, LAYERED_EMBEDDER = "libQnnHtp.so", "tf_lite_per_layer_embedder"
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


def list_uncompiled(bundle: Bundle) -> Iterator[BundleFault]:
    """Yield a decoder that is not compiled in a bundle with other models that are."""
    models = {name_model(each): each.model for each in bundle.sections if each.model}
    compiled = [kind for kind, model in models.items() if model.contexts]
    if compiled and MAIN in models and MAIN not in compiled:
        yield BundleFault(
            f"the decoder is not compiled for the NPU, and {compiled[0]} is",
            "LiteRT-LM compiles it on the phone then, which takes minutes, or fails",
            "compile the decoder for the phone",
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
    if tokens.fault:
        yield BundleFault(
            f"the tokenizer cannot be loaded: {tokens.fault}",
            "LiteRT-LM ends when it loads the file",
            "pack the bundle again with the tokenizer of its model",
        )
    fix = "pack the bundle again with the start and stop tokens of its model"
    if not metadata.stops:
        yield BundleFault(
            "the metadata names no stop token",
            "LiteRT-LM requires one: 'Stop tokens are required'",
            "pack the bundle again with the stop tokens of its model",
        )
    elif not any(isinstance(stop, int) or stop in tokens for stop in metadata.stops):
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
    if (rows := file.count_embeddings()) and abs(rows - file.vocabulary) > file.vocabulary // 100:
        yield BundleFault(
            f"the embedder has {rows} embeddings, and the decoder {file.vocabulary} logits",
            "it belongs to another model, so that prompts and answers are noise",
            "pack the bundle again with the embedder of its model",
        )


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
    if chunks := [chunk for chunk in file.chunks if chunk > file.context]:
        yield BundleFault(
            f"prefill_{chunks[0]} takes more tokens at once than the caches hold, {file.context}",
            "LiteRT-LM cannot run it",
            "convert the model with prefill_lengths below cache_length",
        )
    allowed = metadata.most_tokens or USUAL_TOKENS
    if allowed < 0 or allowed > file.context:
        verb = "allows" if metadata.most_tokens else "does not limit, so that LiteRT-LM allows"
        yield BundleFault(
            f"the metadata {verb} {allowed} tokens, and the caches have room for {file.context}",
            "LiteRT-LM goes on when the caches are full, and answers become noise",
            f"pack the bundle again with max_num_tokens {file.context}",
        )
    elif 0 < metadata.most_tokens < min(file.chunks, default=0) <= file.context:
        yield BundleFault(
            f"the metadata allows {metadata.most_tokens} tokens, and prefill takes"
            f" {min(file.chunks)} at once",
            "LiteRT-LM has no signature that is small enough, or ends after the first words",
            f"pack the bundle again with max_num_tokens {file.context}",
        )
    yield from list_token_warnings(tokens, metadata)
    if isinstance(metadata.start, tuple) and len(metadata.start) > 1:
        yield BundleFault(
            f"the start token is {len(metadata.start)} ids: {', '.join(map(str, metadata.start))}",
            "LiteRT-LM takes a start token of one id, and leaves another one out",
            "pack the bundle again with one id",
        )
    if isinstance(metadata.start, str) and metadata.start not in tokens:
        yield BundleFault(
            f"the metadata names the start token {metadata.start}, which the tokenizer does not"
            " have",
            "prompts begin without it, or with several tokens instead",
            "pack the bundle again with the start token of its model",
        )
    for reason in list_cache_faults(file):
        yield BundleFault(
            reason,
            "if LiteRT-LM copies the numbers as they are, keys and values are wrong",
            "convert and compile all signatures again, in one run",
        )
        break
    yield from list_separate_caches(file)
    yield from list_missing_vision(file)
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


def list_missing_vision(file: BundleFile) -> Iterator[BundleFault]:
    """Yield a bundle without an encoder for pictures whose type of model is made for them."""
    kind = OF_PICTURES.get(file.metadata.model_type)
    if kind and not any(name_model(each) == VISION for each in file.bundle.sections if each.model):
        yield BundleFault(
            f"llm_model_type is {kind}, and there is no {VISION}",
            "the model is made for pictures, and a message with one is refused",
            f"pack the bundle again with {VISION} and tf_lite_vision_adapter",
        )


def list_separate_caches(file: BundleFile) -> Iterator[BundleFault]:
    """Yield a cache that decode has in another shape or type than prefill. Of the last layer,
    prefill needs none, since it returns no logits."""
    last = max(cache.layer for cache in file.caches)
    for cache in file.caches:
        if not cache.is_shared and cache.layer < last:
            yield BundleFault(
                f"{cache.name} has another shape or type in decode than in prefill",
                "LiteRT-LM gives decode a separate buffer, which stays empty, so that answers"
                " forget the prompt",
                "convert and compile all signatures again, in one run",
            )
            return


def list_token_warnings(tokens: TokenList, metadata: LlmMetadata) -> Iterator[BundleFault]:
    """Yield what is unlikely to be right in the tokens that the metadata names."""
    ids = {number for number in metadata.stops if isinstance(number, int)}
    ids |= {number for number, text in tokens.texts.items() if text in metadata.stops}
    alone = ids - {sequence[-1] for sequence in metadata.sequences}
    starts = {*metadata.start} if isinstance(metadata.start, tuple) else set()
    starts |= {number for number, text in tokens.texts.items() if text == metadata.start}
    fix = "pack the bundle again with the start and stop tokens of its model"
    if start_stop_ids := sorted(starts & ids):
        yield BundleFault(
            f"the start token {name_token(tokens, start_stop_ids[0])} is also a stop token",
            "each prompt begins with the end of a text, which many such models were not trained"
            " for: answers repeat the question",
            "pack the bundle again without start_token, if the tokenizer does not add one",
        )
    blank = {number for number in alone if is_blank(tokens.texts.get(number, ""))}
    if tokens.special_ids and (ordinary := sorted(alone - tokens.special_ids | blank)):
        yield BundleFault(
            f"the stop token {name_token(tokens, ordinary[0])} is ordinary text",
            "answers end wherever it occurs",
            fix,
        )
    if tokens.special_ids and (ordinary := sorted(starts - tokens.special_ids)):
        yield BundleFault(
            f"the start token {name_token(tokens, ordinary[0])} is ordinary text",
            "each prompt begins with a word that the user did not write",
            fix,
        )
    if never := sorted(ids & {*metadata.suppressed}):
        yield BundleFault(
            f"the stop token {name_token(tokens, never[0])} is among the suppressed tokens",
            "the model cannot generate it, so that answers do not end",
            "pack the bundle again without it in suppress_tokens",
        )
    for sequence in metadata.sequences:
        if tokens.special_ids and {*sequence} <= tokens.special_ids:
            yield BundleFault(
                f"the stop tokens {', '.join(map(str, sequence))} are one sequence",
                "LiteRT-LM waits for all of them, one after another, so that answers do not end",
                "write a stop_tokens of the metadata for each of them",
            )
    ends = find_ends_of_turn(tokens.texts)
    if ids and ends and not {number for number, _ in ends} & ids:
        number, text = ends[0]
        yield BundleFault(
            f"no stop token ends a turn: {text} ({number}) is missing",
            "answers of a chat model go on with a conversation that it invents",
            fix,
        )
    begins = metadata.template.lstrip(" {'\"")
    for text in (tokens.texts.get(number, "") for number in sorted(starts)):
        if text and begins.startswith(text):
            yield BundleFault(
                f"the chat template writes the start token {text}, and LiteRT-LM adds it, too",
                "each conversation begins with two of them: worse answers",
                "leave it out of the template, or of start_token",
            )
    yield from list_start_warnings(tokens, metadata)
    yield from list_template_warnings(tokens, metadata)
    yield from list_model_warnings(tokens, metadata)


def list_start_warnings(tokens: TokenList, metadata: LlmMetadata) -> Iterator[BundleFault]:
    """Yield a missing start token of a model that needs one, one that stands for no text, and an id
    of two tokens."""
    is_of_gemma = metadata.model_type in OF_GEMMA and START_OF_GEMMA in tokens
    if is_of_gemma and not metadata.start and START_OF_GEMMA not in metadata.template:
        yield BundleFault(
            f"the metadata names no start token, and texts of Gemma start with {START_OF_GEMMA}",
            "prompts begin without it: worse answers, or noise",
            f"pack the bundle again with the start token {START_OF_GEMMA}",
        )
    numbers = metadata.start if isinstance(metadata.start, tuple) else ()
    for number in numbers[:1]:
        if tokens.texts.get(number, "") in OF_NO_TEXT:
            yield BundleFault(
                f"the start token is {name_token(tokens, number)}",
                "texts that the model was trained with start with another token, or none",
                "pack the bundle again with the start token of its model",
            )
    if tokens.repeated:
        number, first, second = tokens.repeated
        yield BundleFault(
            f"two tokens of the tokenizer have the id {number}: {first} and {second}",
            "both texts become one token, which the model knows as one of them",
            "pack the bundle again with the tokenizer of its model",
        )


def list_model_warnings(tokens: TokenList, metadata: LlmMetadata) -> Iterator[BundleFault]:
    """Yield a type of model whose conversations need a token that the tokenizer does not have, and
    numbers of the sampler that make no sense."""
    name, token = TURNS_OF_TYPES.get(metadata.model_type, ("", ""))
    is_other_type = bool(token and tokens.special_ids and token not in tokens)
    if is_other_type:
        yield BundleFault(
            f"llm_model_type is {name}, and the tokenizer has no {token}",
            "LiteRT-LM writes conversations as this model needs them, which another one reads as"
            " ordinary text",
            "pack the bundle again with the llm_model_type of its model, or with generic_model",
        )
    if metadata.least_runtime and not RUNTIME_VERSION.fullmatch(metadata.least_runtime):
        yield BundleFault(
            f"min_runtime_version is {metadata.least_runtime[:40]!r}, which is no version",
            "LiteRT-LM cannot compare its version with it",
            "pack the bundle again with a version such as 0.14.0, or without it",
        )
    unknown = [text for text in CHAT_TOKEN.findall(metadata.texts) if text not in tokens]
    if tokens.special_ids and unknown and not is_other_type:
        yield BundleFault(
            f"the metadata names {unknown[0]}, which the tokenizer does not have",
            "it belongs to another model: pictures, sounds or thoughts are not told from text",
            "pack the bundle again with the metadata of its model",
        )
    for field, (sampled, low, high) in SAMPLED.items():
        value = metadata.sampler.get(field)
        if value is not None and not low <= value <= high:
            yield BundleFault(
                f"sampler_params has the {sampled} {value:g}, and usually {low:g} to {high:g}",
                "LiteRT-LM refuses it, or chooses among all tokens",
                "correct the number, or leave sampler_params out",
            )


def is_blank(text: str) -> bool:
    """Return whether a token's text is white space alone, as tokenizers of bytes and sentencepiece
    write it, too: ``Ċ`` is a new line, and ``▁`` a space."""
    return bool(text) and not text.translate(dict.fromkeys(map(ord, "ĊĠ▁"), " ")).strip()


def name_token(tokens: TokenList, number: int) -> str:
    """Return a token's id, with its text if that is known."""
    text = tokens.texts.get(number)
    return f"{number} ({text!r})" if text else str(number)


def list_template_warnings(tokens: TokenList, metadata: LlmMetadata) -> Iterator[BundleFault]:
    """Yield what does not work in the texts for chats: tokens of another model, and methods that
    LiteRT-LM's engine for templates, minijinja, does not have."""
    template = metadata.template
    is_json = metadata.jinja.lstrip().startswith('{"')
    if metadata.jinja and (is_json or not JINJA_MARK.search(metadata.jinja)):
        lack = "is JSON" if is_json else "has neither {{ nor {%"
        yield BundleFault(
            f"the chat template {lack}, and no template of Jinja",
            "the model gets this text, and nothing that the user wrote",
            "pack the bundle again with the text of chat_template.jinja, or the value of"
            " chat_template in tokenizer_config.json",
        )
        return
    strange = [text for text in CHAT_TOKEN.findall(template) if text not in tokens]
    if tokens.special_ids and strange:
        yield BundleFault(
            f"the chat template writes {strange[0]}, which the tokenizer does not have",
            "it belongs to another model, which reads it as several ordinary tokens",
            "pack the bundle again with the template of its model",
        )
    for opening, closing in BLOCKS:
        counts = [len(re.findall(pattern, template)) for pattern in (opening, closing)]
        # In a template, JSON may end in several braces.
        if counts[0] > counts[1] or (counts[0] < counts[1] and opening != EXPRESSION):
            yield BundleFault(
                f"the chat template has {counts[0]} of {show_pattern(opening)}, and {counts[1]} of"
                f" {show_pattern(closing)}",
                "LiteRT-LM cannot read it: 'Failed to apply template'",
                "copy the template of the model again",
            )
            return
    if statement := TEMPLATE_STATEMENT.search(template):
        yield BundleFault(
            f"the chat template has the statement {statement[1]}",
            "minijinja, which LiteRT-LM reads templates with, does not know it: 'unknown"
            " statement generation'",
            "write the template without it, or as {% generation %}, which LiteRT-LM removes",
        )
    if TEMPLATE_JSON.search(template) and metadata.is_generic:
        yield BundleFault(
            "the chat template calls tojson with an argument",
            "LiteRT-LM's tojson takes none: 'Failed to apply template', such as with tools",
            "write the template without it",
        )
    if statement := TEMPLATE_FILE.search(template):
        yield BundleFault(
            f"the chat template has the statement {statement[1]}, which names another file",
            "LiteRT-LM has this template alone: 'Failed to apply template'",
            "write the text of the other file into it",
        )
    method = TEMPLATE_METHOD.search(template)
    if method and metadata.is_generic:
        yield BundleFault(
            f"the chat template calls {method[0].strip('(')}",
            "LiteRT-LM's templates have no such method, except for models that it knows:"
            " 'Failed to apply template: unknown method'",
            "write it without a method, such as message['content'] or text | upper, and set"
            " llm_model_type",
        )


def show_pattern(pattern: str) -> str:
    """Return the word, or the signs, that a pattern of BLOCKS looks for."""
    word = re.search(r"[a-z]{2,}", pattern)
    return word[0] if word else pattern.replace("\\", "")


def list_missing_embedders(bundle: Bundle) -> Iterator[BundleFault]:
    """Yield the embedder per layer that a decoder needs, and that a bundle lacks."""
    kinds = {name_model(section) for section in bundle.sections if section.model}
    decoders = [each.model for each in bundle.sections if each.model and name_model(each) == MAIN]
    ports = [port for each in decoders for method in each.methods for port in method.inputs]
    if any(port.name.startswith(PER_LAYER) for port in ports) and LAYERED_EMBEDDER not in kinds:
        yield BundleFault(
            f"the decoder takes embeddings per layer, and there is no {LAYERED_EMBEDDER}",
            "'TF_LITE_PER_LAYER_EMBEDDER not found'",
            f"pack the bundle again with {LAYERED_EMBEDDER}",
        )


def list_missing_companions(bundle: Bundle) -> Iterator[BundleFault]:
    """Yield the models for pictures, sound and drafts that others need, and that a bundle lacks.
    Texts do not need them."""
    kinds = {name_model(section) for section in bundle.sections if section.model}
    for kind, needed, consequence in COMPANIONS:
        if kind in kinds and needed not in kinds:
            yield BundleFault(
                f"it has {kind}, and no {needed}",
                consequence,
                f"pack the bundle again with {needed}, or without {kind}",
            )


def list_library_faults(runtime_name: str, hexagons: Iterable[int]) -> Iterator[BundleFault]:
    """Yield what is wrong with QNN's libraries in a directory, for contexts for these Hexagon
    versions. Of libraries for x86-64, those for the DSP are not needed."""
    place = user_path(runtime_name) if runtime_name else None
    if place is None or not place.is_dir():
        return
    files = [file for file in survey_tree(place).files if file.elf or file.name.endswith(".so")]
    libraries = describe_libraries(files)
    if stranger := libraries.find_stranger():
        name, machine, usual = stranger
        names = [name_machine(number) for number in (machine, usual)]
        yield BundleFault(
            f"{name} in {place.name} is for {names[0]}, and the other libraries are for {names[1]}",
            "a process loads only libraries for the machine it runs on",
            f"copy {name} from the folder of the SDK that the others are from",
        )
    main_build = next((qnn for name, qnn in libraries.builds if name == QNN_HTP), "")
    other_builds = [
        (name, qnn) for name, qnn in libraries.builds if main_build and qnn != main_build
    ]
    if other_builds:
        yield BundleFault(
            f"{other_builds[0][0]} in {place.name} is of QNN {other_builds[0][1]}, and {QNN_HTP} of"
            f" {main_build}",
            "libraries of several versions do not work together: 'Qnn System library version ... is"
            " mismatched', error 1008 or 14001",
            "copy all libraries from one SDK",
        )
    for name, reason in libraries.damaged:
        yield BundleFault(
            f"{name} in {place.name} cannot be loaded: {reason}",
            "error 1008, 4000 or 14001, or the process ends when it loads the library",
            f"copy {name} again from the SDK, and keep the build from stripping it",
        )
    for name, missing in libraries.unresolved[:1]:
        yield BundleFault(
            f"{name} in {place.name} needs {missing}, which is missing",
            "the library cannot be loaded",
            f"copy {missing} from where {name} is from",
        )
    for missing in list_missing_of_qnn(libraries, hexagons):
        yield BundleFault(
            f"{place.name} has no {missing}",
            "LiteRT's dispatch library opens it, or the DSP does",
            f"copy {missing} from the SDK that the other libraries are from",
        )
    releases = {file.name: find_releases(file.path) for file in files}
    runtime, dispatch = releases.get(LITERT_NAME), releases.get(DISPATCH)
    if runtime and dispatch and not {*runtime} & {*dispatch}:
        yield BundleFault(
            f"{DISPATCH} is of {describe_releases(dispatch)}, and {LITERT_NAME} of"
            f" {describe_releases(runtime)}",
            "'Unsupported dispatch runtime version'",
            f"copy {DISPATCH} of the release of {LITERT_NAME}",
        )


def list_missing_of_qnn(libraries: Libraries, hexagons: Iterable[int]) -> Iterator[str]:
    """Yield the libraries of QNN that a device lacks, if its libraries are for ARM. If there are
    stubs or skels for other Hexagon versions only, that is reported for the contexts."""
    if not any(machine == EM_AARCH64 for _, machine in libraries.machines):
        return
    yield from (name for name in (QNN_HTP, SYSTEM) if name not in libraries.names)
    parts = {name for name in libraries.names if DSP_PART.fullmatch(name)}
    for hexagon in sorted({*hexagons} - {0}):
        needed = [f"libQnnHtpV{hexagon}Stub.so", f"libQnnHtpV{hexagon}Skel.so"]
        if not parts or parts & {*needed}:
            yield from (name for name in needed if name not in libraries.names)


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
