"""Read a folder for Genie, Qualcomm's runtime for language models: its configuration, the context
binaries, the tokenizer and the settings of the HTP that the configuration names. Nothing is run.

The form of the files is that of Genie's documentation (docs.qualcomm.com, Genie's JSON schemas) and
of what qai-hub-models exports. See docs/guides/bundles.md.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ci.inspect.apps import find_texts
from ci.inspect.compat import Runtime
from ci.inspect.files import BLOCK_BYTES, describe_runtime, describe_zero_tail, read_runtime
from ci.inspect.genie_keys import (
    DIALOG,
    ENGINE,
    NEAR,
    OF_DRAFTS,
    check_backends,
    check_keys,
    check_rotations,
    find_section,
    is_number,
    is_of_kind,
    list_keys,
    list_objects,
    name_kind,
    read_keys,
)
from ci.inspect.genie_model import ModelFacts, read_model_facts
from ci.llm.tokenizers import (
    CHAT_TOKEN,
    find_ends_of_turn,
    find_repeated_id,
    find_wrong_merge,
    list_added_tokens,
    list_token_ids,
    list_token_texts,
)
from provisioning.console.command import user_path
from provisioning.doctor.facts import FileFacts
from provisioning.doctor.survey.context_binaries import ContextBinary, Graph
from provisioning.doctor.survey.programs import (
    Program,
    describe_other,
    map_file,
    parse_program,
)
from provisioning.doctor.survey.tree import survey_tree
from provisioning.documents import (
    POINTER,
    DocumentError,
    decode_json,
    decoding,
    open_regular,
    read_json,
    read_text,
    read_user_file,
)
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, EM_X86_64, name_machine
from provisioning.errors import QnnCiError, UsageError
from provisioning.versions import is_older

CONFIG = "genie_config.json"
BINARIES = "dialog.engine.model.binary.ctx-bins"
PREFIX_KEY = "dialog.ssd-q1.forecast-prefix-name"  # the only one that names a folder
LORA = "dialog.engine.model.binary.lora.adapters"
GENIE, KEY_OF_ALL = "libGenie.so", b"spill-fill-bufsize"
SYSTEM = "libQnnSystem.so"
SENTENCEPIECE = b"\n"  # how the list of its pieces begins, in a file of sentencepiece
MACHINES = (EM_AARCH64, EM_X86_64, EM_QDSP6)
# Libraries that an app has to bring along, by their first letters.
SHIPPED = re.compile(r"lib(Qnn|Genie|LiteRt|c\+\+_shared|omp\.)")
DLL = re.compile(r"(Qnn|Genie)\w*\.dll")
# Files with texts for chats, as qai-hub-models, GenieX and GenieAPIService have them.
PROMPTS = "prompt.json"
TEMPLATES = (PROMPTS, "prompt.conf", "sample_prompt.txt", "chat_template.jinja")
# In the names of files and graphs: "prompt_ar128_cl4096_1_of_3", "model_part_2_of_4.bin".
PART = re.compile(r"(\d+)_of_(\d+)")
NUMBERS = re.compile(r"\d+")
LENGTHS = re.compile(r"ar(\d+)_cl(\d+)")
MASK = "attention_mask"
OF_VTCM = ("vtcm_mb", "vtcm_size_in_mb")  # keys of the settings of the HTP
UNREAD = "?"  # the name of a graph whose description cannot be read
BY_NAMES = "2.51.0"  # of QNN, whose libGenie orders graphs by their names
MOST_CONFIG_BYTES, MOST_TOKENIZER_BYTES = 1 << 20, 256 << 20


@dataclass(frozen=True)
class BinaryFile:
    """A context binary that the configuration names. ``problem`` is why it cannot be used, "" if it
    can; ``program`` is what it contains."""

    name: str
    size_bytes: int = 0
    program: Program | None = None
    problem: str = ""

    @property
    def contexts(self) -> tuple[ContextBinary, ...]:
        """Return the contexts in the file."""
        return self.program.contexts if self.program else ()

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """Return the graphs of all contexts."""
        return tuple(graph for context in self.contexts for graph in context.graphs)

    @property
    def variants(self) -> frozenset[tuple[int, int]]:
        """Return for how many new tokens, in a context of which length, there are graphs. None if
        that is not known of a graph."""
        variants = [measure_graph(graph) for graph in self.graphs]
        if None in variants:
            return frozenset()
        return frozenset(variant for variant in variants if variant)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Return which part of how many the file is, by its name and the names of its graphs."""
        texts = (self.name, *(graph.name for graph in self.graphs))
        matches = filter(None, map(PART.search, texts))
        return tuple((int(match[1]), int(match[2])) for match in matches)

    @property
    def place(self) -> tuple[int, int] | None:
        """Return which part of how many the file is, by its name or the names of its graphs."""
        return next(iter(self.places), None)


def measure_graph(graph: Graph) -> tuple[int, int] | None:
    """Return for how many new tokens, in a context of which length, a graph is, by its mask or its
    name; None if neither says it."""
    mask = next((port.shape for port in graph.inputs if port.name == MASK), ())
    if len(mask) >= 2:
        return mask[-2], mask[-1]
    match = LENGTHS.search(graph.name)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.json of Hugging Face: the smallest size of a vocabulary with all of its ids, the
    ids of its special tokens, and those that end a turn, with their texts. ``special_texts`` are
    the texts of those that look like tokens of a chat, ``added`` the ids of added tokens by their
    texts, and ``repeated`` is an id that two added tokens have, with their texts."""

    vocabulary: int
    special_ids: frozenset[int]
    ends_of_turn: tuple[tuple[int, str], ...] = ()
    special_texts: frozenset[str] = frozenset()
    added: Mapping[str, int] = field(default_factory=dict)
    repeated: tuple[int, str, str] | None = None


@dataclass(frozen=True)
class HtpDevice:
    """A device in the settings of the HTP: QNN's number of the SoC and the Hexagon version. 0 if
    the file states none."""

    soc_id: int = 0
    hexagon: int = 0


@dataclass(frozen=True)
class Libraries:
    """The libraries that a device gets: ``names`` of their files, ``builds`` of QNN's libraries,
    each as (file, version), ``genie``, the path of libGenie.so, None without one, and ``machines``,
    the file name and the machine of each library. ``damaged`` are those that cannot be loaded, each
    with the reason, and ``unresolved`` those that need a missing one, each with its name."""

    names: frozenset[str]
    builds: tuple[tuple[str, str], ...] = ()
    genie: Path | None = None
    machines: frozenset[tuple[str, int]] = frozenset()
    damaged: tuple[tuple[str, str], ...] = ()
    unresolved: tuple[tuple[str, str], ...] = ()

    def find_stranger(self) -> tuple[str, int, int] | None:
        """Return a library that none of the others can be loaded with, its machine, and theirs. A
        tree with each library for several machines has none. Libraries for the DSP do not count."""
        machines: dict[str, set[int]] = {}
        for name, machine in self.machines:
            if machine != EM_QDSP6:
                machines.setdefault(name, set()).add(machine)
        counts = Counter(machine for numbers in machines.values() for machine in numbers)
        usual = max(counts, key=lambda machine: (counts[machine], machine), default=0)
        strangers = sorted(name for name, numbers in machines.items() if usual not in numbers)
        return (strangers[0], min(machines[strangers[0]]), usual) if strangers else None


@dataclass(frozen=True)
class GenieFolder:
    """A folder for Genie.

    ``config`` is the parsed configuration, and ``faults`` are why it, or a file that it names, is
    not valid, each as (file, reason). Of several engines, the first is that of this folder, and
    ``other_engines`` are the same folder with each of the others.

    ``missing``, ``absolute`` and ``backslashed`` are the files that it names and that are not in
    the folder, that have an absolute path, or a backslash in their path, each as (key, path). Of a
    missing one, the third text says what is in the folder instead.
    ``ignored_settings`` are the settings of the HTP that QNN does not read, and ``empty_files`` the
    files without a content that can be used, as (file, reason). ``strange_tokens`` are the tokens
    that texts for chats write and the tokenizer does not have, as (file, token). ``model`` is what
    the model's own files in the folder say.

    ``soc`` is the SoC that was asked about. ``libraries`` are those of the ``runtime``, None if
    only its version is known, and ``dlls`` are QNN's libraries for Windows beside them.
    ``vtcm`` is the VTCM in MiB that the settings of the HTP ask for, as (file, number).
    ``unread_prompts`` are the files with texts for chats that cannot be read, as (file, reason).
    ``strange_keys`` are the keys that its libGenie does not contain, and ``table_bytes`` is the
    size of the embedding table, 0 without one.
    """

    name: str
    config_file: str
    config: Mapping[str, Any]
    faults: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, str, str], ...] = ()
    absolute: tuple[tuple[str, str], ...] = ()
    backslashed: tuple[tuple[str, str], ...] = ()
    ignored_settings: tuple[tuple[str, str], ...] = ()
    empty_files: tuple[tuple[str, str], ...] = ()
    strange_tokens: tuple[tuple[str, str], ...] = ()
    binaries: tuple[BinaryFile, ...] = ()
    tokenizer: Tokenizer | None = None
    devices: tuple[HtpDevice, ...] = ()
    runtime: Runtime | None = None
    libraries: Libraries | None = None
    strange_keys: tuple[str, ...] = ()
    table_bytes: int = 0
    soc: str = ""
    graph_names: tuple[tuple[str, str], ...] = ()
    vtcm: tuple[tuple[str, int], ...] = ()
    dlls: tuple[str, ...] = ()
    unread_prompts: tuple[tuple[str, str], ...] = ()
    other_engines: tuple[GenieFolder, ...] = ()
    model: ModelFacts = field(default_factory=ModelFacts)

    def section(self, *keys: str) -> Mapping[str, Any]:
        """Return a section of the dialog, empty if there is none."""
        return find_section(self.config, (DIALOG, *keys))

    @property
    def htp(self) -> Mapping[str, Any]:
        """Return the section of the HTP."""
        return self.section(ENGINE, "backend", "QnnHtp")

    @property
    def is_draft(self) -> bool:
        """Return whether the engine drafts tokens for another one."""
        return find_section(self.config, (DIALOG, ENGINE)).get("role") in OF_DRAFTS

    @property
    def part_names(self) -> list[Any]:
        """Return the names of the context binaries in the order of the configuration."""
        return list_part_names(self.config)


def list_part_names(document: Mapping[str, Any]) -> list[Any]:
    """Return what ``ctx-bins`` lists, or ``fcb``, as libGenie of QNN 2.51 also calls it."""
    binary = find_section(document, (DIALOG, ENGINE, "model", "binary"))
    names = binary.get("ctx-bins", binary.get("fcb"))
    return names if isinstance(names, list) else []


def find_config(folder: Path) -> Path | None:
    """Return the configuration of Genie in a folder: genie_config.json or, if that is missing, the
    only .json file with a dialog. None if there is none, or if several have one."""
    if (folder / CONFIG).is_file():
        return folder / CONFIG
    configs = []
    for path in sorted(folder.glob("*.json")):
        if path.is_file() and path.stat().st_size <= MOST_CONFIG_BYTES:
            try:
                document = read_json(path, dict[str, Any], MOST_CONFIG_BYTES)
            except (DocumentError, OSError):
                continue
            if isinstance(document.get(DIALOG), dict):
                configs.append(path)
    return configs[0] if len(configs) == 1 else None


def read_genie(folder: Path, config: Path, soc: str = "", runtime_name: str = "") -> GenieFolder:
    """Return the folder with the configuration ``config``. ``runtime_name`` specifies the libraries
    that the device has (see read_runtime); by default those in ``folder``, if there are any. Raises
    UsageError if the configuration cannot be read, or there is no such runtime."""
    data = read_user_file(config, "the configuration", MOST_CONFIG_BYTES)
    data = data.removeprefix(codecs.BOM_UTF8)  # libGenie skips it
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or data[1:2] == b"\0":
        why = "it is UTF-16, as PowerShell writes it, and libGenie reads UTF-8"
        return GenieFolder(folder.name, config.name, {}, faults=((config.name, why),))
    try:
        with decoding():
            document = decode_json(data, dict[str, Any])
    except DocumentError as error:
        return GenieFolder(folder.name, config.name, {}, faults=((config.name, str(error)),))
    if not find_section(document, (DIALOG,)):
        nodes = ", ".join(map(str, document)) or "nothing"
        why = f"it has no object `dialog`, but {nodes[:60]}: a dialog is not a node of a pipeline"
        return GenieFolder(folder.name, config.name, {}, faults=((config.name, why),))
    reader = FolderReader(folder)
    runtime, libraries = find_libraries(folder, runtime_name)
    library_keys = find_keys(libraries.genie, document) if libraries and libraries.genie else None
    reasons = [*check_keys(document, library_keys or frozenset()), *check_rotations(document)]
    reasons += check_backends(document)
    faults = [(config.name, reason) for reason in reasons]
    tokenizer = reader.read_tokenizer(find_section(document, (DIALOG, "tokenizer")).get("path"))
    prefix = find_section(document, (DIALOG, "ssd-q1"))
    reader.find(PREFIX_KEY, prefix.get(PREFIX_KEY.rpartition(".")[2]))
    reader.find_files(document, of_engine=False)
    word = find_section(document, (DIALOG, "embedding")).get("lut-path")
    table = place_file(folder, word) if isinstance(word, str) and word else None
    strange: list[str] = []
    if library_keys is not None:
        strange = [key for key in list_keys(document) if key not in library_keys]
    common = GenieFolder(
        folder.name,
        config.name,
        document,
        faults=tuple(faults),
        tokenizer=tokenizer,
        runtime=runtime,
        libraries=libraries,
        strange_keys=tuple(strange),
        table_bytes=table.stat().st_size if table and table.is_file() else 0,
        soc=soc,
        dlls=tuple(find_dlls(user_path(runtime_name) if runtime_name else folder)),
        strange_tokens=(
            *find_strange_tokens(folder, tokenizer),
            *find_strange_stops(config.name, document, tokenizer),
        ),
        unread_prompts=tuple(find_unread_prompts(folder)),
        model=read_model_facts(folder),
    )
    first_engine, *other_engines = list_engines(document)
    first = reader.read_engine(replace(common, config=first_engine))
    other_folders = []
    for engine in other_engines:
        separate = FolderReader(folder)
        other_folders.append(separate.read_engine(replace(common, config=engine, faults=())))
    return replace(first, other_engines=tuple(other_folders))


def list_engines(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the configuration with each of its engines as the only one. A draft model may have
    another vocabulary."""
    dialog = find_section(document, (DIALOG,))
    engines = dialog.get(ENGINE)
    if not isinstance(engines, list) or not engines:
        return [document]
    documents: list[Mapping[str, Any]] = []
    for engine in engines:
        context = dict(find_section(document, (DIALOG, "context")))
        is_draft = isinstance(engine, dict) and engine.get("role") in OF_DRAFTS
        if is_draft and "draft-n-vocab" in context:
            context["n-vocab"] = context["draft-n-vocab"]
        documents.append({**document, DIALOG: {**dialog, ENGINE: engine, "context": context}})
    return documents


def find_libraries(folder: Path, name: str) -> tuple[Runtime | None, Libraries | None]:
    """Return the runtime called ``name``, by default the one in ``folder``, and its libraries. Each
    is None if it is not known."""
    place = user_path(name) if name else folder
    if not place.is_dir():
        return read_runtime(name), None
    files = survey_tree(place).files
    if not name and not any(file.name.startswith("libQnn") for file in files):
        return None, None
    return describe_runtime(files, place.name, ()), describe_libraries(files)


def find_dlls(place: Path) -> list[str]:
    """Return the names of QNN's libraries for Windows in a directory."""
    names = (path.name for path in place.glob("*.dll")) if place.is_dir() else ()
    return sorted(filter(DLL.fullmatch, names))


def describe_libraries(files: Sequence[FileFacts]) -> Libraries:
    """Return what a device gets with these files."""
    names = frozenset(file.name for file in files)
    return Libraries(
        names,
        tuple(
            (file.name, file.version)
            for file in files
            if file.version and (file.qnn_name.backend or file.name == SYSTEM)
        ),
        next((file.path for file in files if file.name == GENIE), None),
        frozenset((file.name, file.machine) for file in files if file.machine is not None),
        tuple((file.name, reason) for file in files if (reason := describe_damage(file))),
        tuple(
            (file.name, needed)
            for file in files
            if file.elf and file.machine != EM_QDSP6
            for needed in file.elf.needed
            if SHIPPED.match(needed) and needed not in names
        ),
    )


def describe_damage(file: FileFacts) -> str:
    """Return why a library cannot be loaded, "" if it can."""
    if file.defect:
        return file.defect_why or file.defect.value
    if file.elf and file.machine not in MACHINES:
        return f"it is for {name_machine(file.elf.machine)}, for which there is no QNN"
    named = file.qnn_name.hexagon
    is_skel = file.qnn_name.is_htp_skel
    if file.elf and is_skel and file.machine != EM_QDSP6:
        return f"it is for {name_machine(file.elf.machine)}, and a skel runs on Hexagon"
    if file.elf and file.machine == EM_QDSP6 and is_skel:
        actual = f"{file.elf.hexagon_version:x}"
        if actual != named:
            return f"it is for Hexagon V{actual}, and its name says V{named}"
    checksum = file.elf.checksum if file.elf else None
    if checksum and checksum.is_wrong:
        changed = "it was stripped" if checksum.is_stripped else "it was changed"
        return f"{changed}: {checksum.describe()}"
    return ""


def find_keys(library: Path, document: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the keys of a configuration that a libGenie contains, or None for a library that
    contains no key at all. In libGenie of QNN 2.47 to 2.51, each key that it knows is a text."""
    texts = {key.encode(): key for key in list_keys(document)}
    found_texts = find_texts(library, [*texts, KEY_OF_ALL])
    return (
        frozenset(texts[text] for text in found_texts if text in texts)
        if KEY_OF_ALL in found_texts
        else None
    )


def place_file(folder: Path, word: str) -> Path:
    """Return where a file that the configuration names is. An absolute path is one on the device,
    so its name is that of a file in ``folder``, and so is that of a path out of the folder."""
    # libGenie removes spaces around a name.
    parts = PurePosixPath(word.strip().replace("\\", "/")).parts
    if not parts:
        return folder
    if is_outside(word):
        return folder / parts[-1]
    # Apps that start Genie in a folder above name the folders down to this one, too.
    for number in range(len(parts)):
        if (inner := folder.joinpath(*parts[number:])).exists():
            return inner
    return folder.joinpath(*parts)


def is_outside(word: str) -> bool:
    """Return whether a path is absolute, leads out of its folder, or has a part that an app
    replaces, such as ``<models_path>``."""
    relative = PurePosixPath(word.replace("\\", "/"))
    is_windows = PureWindowsPath(word).drive != ""
    return relative.is_absolute() or is_windows or ".." in relative.parts or word.startswith("<")


class FolderReader:
    """Finds and reads the files that a configuration names. What it cannot use is listed as in
    GenieFolder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: list[tuple[str, str, str]] = []
        self.absolute: list[tuple[str, str]] = []
        self.backslashed: list[tuple[str, str]] = []
        self.ignored_settings: list[tuple[str, str]] = []
        self.empty_files: list[tuple[str, str]] = []
        self.faults: list[tuple[str, str]] = []
        self.graph_names: list[tuple[str, str]] = []
        self.vtcm: list[tuple[str, int]] = []

    def read_engine(self, folder: GenieFolder) -> GenieFolder:
        """Return the folder with the files of its engine."""
        document, file = folder.config, folder.config_file
        names = list_part_names(document)
        engine = find_section(document, (DIALOG, ENGINE))
        binary = find_section(engine, ("model", "binary"))
        if binary and binary.get("ctx-bins", binary.get("fcb", [])) == []:
            self.faults.append((file, f"{BINARIES} names no file"))
        elif not all(isinstance(name, str) and name for name in names):
            self.faults.append((file, f"{BINARIES} has something that is no name of a file"))
        binaries = order_binaries(tuple(self.read_binaries(names)), folder.runtime)
        self.find_files({DIALOG: {ENGINE: engine}}, of_engine=True)
        for reason in self.find_adapters(binary.get("lora"), len(names)):
            self.faults.append((file, reason))
        extensions = find_section(engine, ("backend",)).get("extensions")
        devices: list[HtpDevice] = []
        for word in extensions if isinstance(extensions, list) else [extensions]:
            devices += self.read_devices(word)
        return replace(
            folder,
            faults=(*folder.faults, *self.faults),
            missing=tuple(self.missing),
            absolute=tuple(self.absolute),
            backslashed=tuple(self.backslashed),
            ignored_settings=tuple(self.ignored_settings),
            empty_files=tuple(self.empty_files),
            graph_names=tuple(self.graph_names),
            vtcm=tuple(self.vtcm),
            binaries=binaries,
            devices=tuple(devices),
        )

    def find(self, key: str, word: Any) -> Path | None:
        """Return the file that ``word`` names (see place_file), or None."""
        path = self.place(key, word)
        if path is None or path.is_file():
            if path and key != BINARIES and (reason := find_emptiness(path)):
                self.empty_files.append((path.name, reason))
                return None
            return path
        if path.is_dir() and key == PREFIX_KEY:
            if not any(path.iterdir()):
                self.empty_files.append((path.name, "the folder has no file"))
        else:
            self.missing.append((key, word, find_other_name(path)))
        return None

    def find_files(self, document: Mapping[str, Any], *, of_engine: bool) -> None:
        """Look for the files that keys of an engine, or other ones, name."""
        for key, kind in read_keys().names.items():
            if kind == "file" and (ENGINE in key.split(".")) is of_engine:
                for _, word in list_objects(document, key.split("."), ""):
                    self.find(key, word)

    def place(self, key: str, word: Any) -> Path | None:
        """Return where the file that ``word`` names is (see place_file), None if it names none."""
        if not isinstance(word, str) or not word:
            return None
        path = place_file(self.folder, word)
        inner = PurePosixPath(word.strip().replace("\\", "/"))
        if is_outside(word) or (path.exists() and path != self.folder / inner):
            self.absolute.append((key, word))
        elif "\\" in word:
            self.backslashed.append((key, word))
        return path

    def find_adapters(self, lora: Any, parts: int) -> Iterator[str]:
        """Look for the files of the adapters in a section ``lora``, and yield which adapters are
        not for ``parts`` context binaries."""
        adapters = lora.get("adapters") if isinstance(lora, dict) else None
        for adapter in adapters if isinstance(adapters, list) else []:
            if isinstance(adapter, dict):
                sections = adapter.get("bin-sections")
                words = sections if isinstance(sections, list) else []
                for word in words:
                    self.find(f"{LORA}.bin-sections", word)
                if words and len(words) != parts:
                    yield (
                        f"{LORA} has {len(words)} bin-sections of {adapter.get('name')}, and"
                        f" ctx-bins {parts} files"
                    )
                self.find(f"{LORA}.path", adapter.get("path"))

    def read_binaries(self, names: Sequence[Any]) -> Iterator[BinaryFile]:
        """Yield the context binaries in the order of the configuration."""
        for word in names:
            path = self.find(BINARIES, word)
            if path is None:
                continue
            try:
                program = parse_program(map_file(path), path.name)
            except QnnCiError as error:
                yield BinaryFile(path.name, problem=error.what)
                continue
            problem = f"it {describe_other(map_file(path))}" if program is None else program.damage
            if program and not problem and not any(each.qnn for each in program.contexts):
                problem = "it contains no context of QNN: a DLC must be compiled for the phone"
            graphs = (
                [graph for each in program.contexts for graph in each.graphs] if program else []
            )
            # Of a small file, the zeros may be what is left of its description.
            is_unread = any(graph.name == UNREAD for graph in graphs)
            if tail := describe_zero_tail(path, 0 if is_unread else BLOCK_BYTES):
                problem = f"it {tail}"
            yield BinaryFile(path.name, path.stat().st_size, program, problem)

    def read_tokenizer(self, word: Any) -> Tokenizer | None:
        """Return the tokenizer, or None if it is missing or not of Hugging Face's form."""
        path = self.find("dialog.tokenizer.path", word)
        if path is None:
            return None
        try:
            document = read_json(path, dict[str, Any], MOST_TOKENIZER_BYTES)
        except (DocumentError, OSError) as error:
            self.faults.append((path.name, describe_other_tokenizer(path) or str(error)))
            return None
        tokens = list_added_tokens(document)
        special = [row.get("id") for row in tokens if row.get("special")]
        numbers = list_token_ids(document)
        if not numbers:
            self.faults.append((path.name, "it lists no vocabulary"))
            return None
        if reason := find_wrong_merge(document):
            self.faults.append((path.name, reason))
        special_numbers = frozenset(number for number in special if isinstance(number, int))
        texts = {row["id"]: str(row.get("content")) for row in tokens if is_number(row.get("id"))}
        return Tokenizer(
            max(numbers) + 1,
            special_numbers,
            tuple(find_ends_of_turn(texts)),
            frozenset(filter(CHAT_TOKEN.fullmatch, list_token_texts(document).values())),
            {text: number for number, text in texts.items()},
            find_repeated_id(document),
        )

    def read_devices(self, word: Any) -> Iterator[HtpDevice]:
        """Yield the devices in the settings of the HTP."""
        path = self.place("dialog.engine.backend.extensions", word)
        if path is None:
            return
        if not path.is_file():
            if not isinstance(word, str) or not is_outside(word):
                self.ignored_settings.append((path.name, "it is missing"))
            return
        try:
            document = read_json(path, dict[str, Any], MOST_CONFIG_BYTES)
        except (DocumentError, OSError) as error:
            self.ignored_settings.append((path.name, str(error)))
            return
        if reason := find_wrong_setting(document) or find_other_kind(document):
            self.ignored_settings.append((path.name, reason))
            return
        self.note_settings(path.name, document)
        rows = document.get("devices")
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict):
                soc_id, arch = row.get("soc_model", row.get("soc_id")), row.get("dsp_arch")
                hexagon = re.fullmatch(r"[vV](\d+)", arch) if isinstance(arch, str) else None
                yield HtpDevice(
                    soc_id if isinstance(soc_id, int) else 0, int(hexagon[1]) if hexagon else 0
                )

    def note_settings(self, file: str, document: Mapping[str, Any]) -> None:
        """Note the names of graphs and the VTCM in the settings of the HTP."""
        for key, value in walk_settings(document):
            if key in OF_VTCM and is_number(value):
                self.vtcm.append((file, value))
            if key == "graph_names" and isinstance(value, list):
                self.graph_names += [(file, name) for name in value]


def describe_other_tokenizer(path: Path) -> str:
    """Return why a file that should be a tokenizer.json is none, "" if it starts like one."""
    view = map_file(path)
    head = bytes(view[:64])
    if head.lstrip()[:1] in {b"{", b"["}:
        return ""
    if head.startswith(SENTENCEPIECE):
        return "it is of sentencepiece, and libGenie reads a tokenizer.json of Hugging Face"
    return f"it {describe_other(view)}"


def order_binaries(
    binaries: tuple[BinaryFile, ...], runtime: Runtime | None
) -> tuple[BinaryFile, ...]:
    """Return context binaries in the order in which libGenie runs them. That of QNN 2.51 goes by
    the names of the graphs (``1_of_2``), if all have such a name, and that of 2.49.40 does not."""
    graphs = [graph for binary in binaries for graph in binary.graphs]
    is_numbered = bool(graphs) and all(PART.search(graph.name) for graph in graphs)
    qnn = runtime.qnn if runtime else ""
    if not qnn or is_older(qnn, BY_NAMES) or not is_numbered:
        return binaries
    return tuple(sorted(binaries, key=lambda binary: binary.place or (0, 0)))


def find_wrong_setting(document: Mapping[str, Any]) -> str:
    """Return which value of the HTP's settings QNN does not know, "" if there is none. Keys of
    genie.toml's ``settings`` are the same in all of their sections."""
    genie_keys = read_keys()
    for key, value in walk_settings(document):
        allowed, kind = genie_keys.setting_values.get(key, ()), genie_keys.settings.get(key)
        if kind and not is_of_kind(value, kind):
            return f"{key} is {json.dumps(value)[:40]}, not {name_kind(kind)}"
        if allowed and str(value).lower() not in allowed:
            return f"{key} is {json.dumps(value)[:40]}, and QNN knows {', '.join(allowed)}"
        near = get_close_matches(key, [*genie_keys.settings], 1, NEAR)
        if not kind and near:
            return f"{key} is a key that QNN does not know, but {near[0]}"
    return ""


def find_other_kind(document: Mapping[str, Any]) -> str:
    """Return why a document is no settings of the HTP, "" if it has one of their keys."""
    known_settings = read_keys().settings
    if DIALOG in document:
        return "it is the configuration of Genie, and no settings of the HTP"
    if not document or any(key in known_settings for key, _ in walk_settings(document)):
        return ""
    return f"it has no settings of the HTP, but {', '.join(document)[:60]}"


def walk_settings(document: object) -> Iterator[tuple[str, Any]]:
    """Yield all keys of a document with their values, also those in lists and objects."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from walk_settings(value)
    elif isinstance(document, list):
        for each in document:
            yield from walk_settings(each)


def find_emptiness(path: Path) -> str:
    """Return why a file has no content, "" if it has some."""
    with open_regular(path) as file:
        start = file.read(len(POINTER))
    if start == POINTER:
        return "it is a pointer of Git LFS"
    return "" if start else "it is empty"


def find_strange_tokens(folder: Path, tokenizer: Tokenizer | None) -> Iterator[tuple[str, str]]:
    """Yield the files with texts for chats that write a token which the tokenizer does not have,
    each with the first such token."""
    special_texts = tokenizer.special_texts if tokenizer else frozenset()
    for path in (folder / name for name in TEMPLATES if tokenizer):
        if path.is_file() and path.stat().st_size <= MOST_CONFIG_BYTES:
            tokens = CHAT_TOKEN.findall(read_text(path, "replace", MOST_CONFIG_BYTES))
            if token := next((each for each in tokens if each not in special_texts), ""):
                yield path.name, token


def find_strange_stops(
    file: str, document: Mapping[str, Any], tokenizer: Tokenizer | None
) -> Iterator[tuple[str, str]]:
    """Yield ``file``, the configuration, with each stop sequence that is a token of a chat which
    the tokenizer does not have."""
    sequences = find_section(document, (DIALOG,)).get("stop-sequence")
    for text in sequences if tokenizer and isinstance(sequences, list) else ():
        is_token = isinstance(text, str) and CHAT_TOKEN.fullmatch(text)
        if tokenizer and is_token and text not in tokenizer.special_texts:
            yield file, text


def find_unread_prompts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield a prompt.json that cannot be read, with the reason."""
    path = folder / PROMPTS
    if path.is_file():
        try:
            read_json(path, dict[str, Any], MOST_CONFIG_BYTES)
        except (DocumentError, OSError) as error:
            yield path.name, str(error)


def find_other_name(path: Path) -> str:
    """Return what is in the folder instead of a missing file: a link to nowhere, or a file whose
    name differs in the case of letters, or in a few of them. "" if there is neither."""
    if path.is_symlink():
        return f"; it is a link to {path.readlink()}, which is missing"
    if path.is_dir():
        return "; it is a folder"
    names = (each.name for each in path.parent.iterdir()) if path.parent.is_dir() else ()
    # Parts differ in their numbers, so that a name with other ones is that of another file.
    numbers = NUMBERS.findall(path.name)
    alike = [name for name in names if NUMBERS.findall(name) == numbers]
    names_in_other_case = [name for name in alike if name.lower() == path.name.lower()]
    other_name = next(iter(names_in_other_case or get_close_matches(path.name, alike, 1, NEAR)), "")
    return other_name and f"; the folder has {other_name}"


def require_config(folder: Path) -> Path:
    """Return the configuration of a folder for Genie. Raises UsageError if there is none."""
    if config := find_config(folder):
        return config
    raise UsageError(
        f"{folder} has no configuration of Genie",
        why=f"neither {CONFIG} nor a single .json file with an object `dialog` is in it",
        fix=f"pass the folder that contains {CONFIG}",
    )
