"""Models of the suite are known by their sources: what was lowered of one is found without torch.

known/<origin>/<case>/<job> in the cache holds the key of the program that such a job came to. The
origin is all that decides about the suite's models on this machine, and so about their graphs, of
which a key is made; a job names the rest.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from ci.cases.artifact import (
    FLOAT,
    Lowered,
    artifact_path,
    read_artifact,
    read_regular,
    read_sets,
)
from ci.cases.engine import LowerJob, LowerResult
from ci.cases.spec import CaseSpec
from ci.models.degenerate import find_degenerate
from ci.models.schemes import Scheme
from ci.models.source_lines import is_installed, name_file
from ci.models.user_models import Source, is_suite
from provisioning.files import digest_sources, write_whole

KNOWN = "known"
ROOMS = ("models", "cases", "executorch", "onnx")
CODE = re.compile(r"\.py$|\.so(\.|$)")
# What else than its kind decides about what a processor computes.
VARIABLES = re.compile("ATEN_|DNNL_|GLIBC_|KMP_|LD_PRELOAD|MKL_|OMP_|ONEDNN_|PYTORCH_|TORCH")
PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags")


def recall_lowering(job: LowerJob) -> LowerResult | None:
    """What was lowered before for such a job, whole and with references that prove something.

    None where that is not known: then the model has to be made, and its key computed.
    """
    if not (job.use_cache and is_plain(job.model, job.source)):
        return None
    with suppress(OSError, ValueError):
        key = read_regular(job_path(job)).decode("ascii").strip()
        directory = artifact_path(Path(job.cache), key)
        lowered = read_artifact(directory)
        if lowered and is_asked(lowered, job) and proves(directory, lowered, job):
            return LowerResult(str(directory), lowered, cached=True)
    return None


def is_asked(lowered: Lowered, job: LowerJob) -> bool:
    """Whether a program is one that the job could have come to."""
    asked = (job.model, job.scheme.value, job.soc)
    return (lowered.model, lowered.scheme, lowered.soc) == asked


def proves(directory: Path, lowered: Lowered, job: LowerJob) -> bool:
    """Whether something could be judged by the float32 model's outputs. Raises OSError."""
    reference = read_sets(directory / FLOAT, lowered.outputs, lowered.sets)
    return job.reference is None or not find_degenerate(reference, job.reference)


def remember_lowering(job: LowerJob, result: LowerResult) -> None:
    """Note what a job came to, where the cache can be written."""
    lowered = result.lowered
    if lowered and is_asked(lowered, job) and job.use_cache and is_plain(job.model, job.source):
        with suppress(OSError, ValueError):
            write_whole(job_path(job), f"{lowered.key}\n")


def is_plain(model: str, source: Source) -> bool:
    """Whether a model is the suite's, and nothing of the user's takes part."""
    return is_suite(model) and not source.has_data and not source.choices.functions


def seem_known(specs: Iterable[CaseSpec], kind: type[LowerJob], cache: Path) -> bool:
    """Whether all may be recalled: something was remembered of the same model, scheme and SoC."""
    return all(
        is_plain(spec.reference, spec.source)
        and case_path(kind, spec.reference, spec.scheme, spec.soc, cache).is_dir()
        for spec in specs
    )


def job_path(job: LowerJob) -> Path:
    """Where the key of a job is. All of a job counts, but for its places and the policy."""
    same = msgspec.structs.replace(job, cache="", log="", reference=None)
    name = hashlib.sha256(msgspec.json.encode(same)).hexdigest()
    return case_path(type(job), job.model, job.scheme, job.soc, Path(job.cache)) / name


def case_path(kind: type[LowerJob], model: str, scheme: Scheme, soc: str, cache: Path) -> Path:
    """The directory of what jobs of a case came to, made from the model as it is now."""
    return cache / KNOWN / name_origin() / hash_words([kind.__name__, model, scheme.value, soc])


@functools.cache
def name_origin() -> str:
    """SHA-256 over all that decides about the suite's models, their inputs and their outputs."""
    here = Path(__file__).resolve()
    rooms = [here.parents[1] / room for room in ROOMS]
    spec = importlib.util.find_spec("torch")
    torch = map(Path, spec.submodule_search_locations or ()) if spec else ()
    words = (
        digest_sources(*rooms),
        # By their times too: what is edited while a run has not loaded it yet is of no origin.
        *sorted(row for place in (*rooms, *torch) for row in stamp_code(place)),
        # Lines of the models are in their graphs, named so.
        name_file(here),
        str(is_installed(str(here))),
        sys.version,
        os.confstr("CS_GNU_LIBC_VERSION") or "",
        *describe_processor(),
        *sorted(f"{name}={value}" for name, value in os.environ.items() if VARIABLES.match(name)),
    )
    return hash_words(words)


def hash_words(words: Iterable[str]) -> str:
    """SHA-256 of words, also of such as are paths or variables that are not UTF-8."""
    text = "".join(f"{len(word)}:{word}" for word in words)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def stamp_code(root: Path) -> Iterator[str]:
    """Sizes and times of the code below a directory, wherever that lies."""
    for directory, _, names in os.walk(root):
        for path in (f"{directory}/{name}" for name in names if CODE.search(name)):
            stamp = os.stat(path)  # noqa: PTH116 - of thousands
            yield f"{path[len(str(root)) :]} {stamp.st_size} {stamp.st_mtime_ns}"


def describe_processor() -> Iterator[str]:
    """What the kernel says of the first processor, less what changes from moment to moment."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        rows = text.partition("\n\n")[0].splitlines()
        yield from (row for row in rows if row.startswith(PROCESSOR))
