"""Find the QNN build of a library, and the QNN headers that an adaptor was compiled with, by
searching their bytes.

Most libraries contain a full version such as ``v2.49.40.260810104044``. libGenie and
NetRunExtensions contain only ``AISW_VERSION: 2.49.40``, and libQnnSystem contains only the stamp.
This was observed in QNN 2.20, 2.37 and 2.47 to 2.51.

An adaptor contains the version of its headers, because HtpBackend::GetExpectedBackendVersion of
ExecuTorch returns QNN_HTP_API_VERSION (QnnHtpCommon.h) as a struct of three 32-bit numbers in rax
and edx. The minor number is that of the QNN SDK: API 5.37 belongs to QNN 2.37. This was observed
for 2.30, 2.36, 2.37, 2.40 and 2.47 to 2.51.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import NamedTuple

from provisioning.documents import CONTENT_BYTES, open_regular, read_bytes
from provisioning.elf.facts import Defect, ElfError
from provisioning.elf.programs import View

# The last part is the number of the vendor's CI job: v2.37.0.250724175447_124859.
WHOLE = re.compile(rb"v(\d{1,3}(?:\.\d{1,4}){2})\.(\d{12})(?!\d)(?:_\d{1,8})?")
PRODUCT = re.compile(rb"AISW_VERSION: (\d{1,3}(?:\.\d{1,4}){2})(?![\d.])")
STAMP = re.compile(rb"(2[2-9](?:0[1-9]|1[0-2])[0-3]\d[0-2]\d[0-5]\d[0-5]\d)(?:_\d{1,8})?\0")
# The largest known library is 98 MB; a sparse file may claim any size.
MAX_SEARCH_BYTES = 1 << 28
# movabs rax, MINOR << 32 | 5; xor edx, edx; ret: the optimised code of g++ and clang.
HTP_API = re.compile(rb"\x48\xb8\x05\0\0\0(.)\0\0\0\x31\xd2\xc3", re.DOTALL)
QNN_MAJOR = 2
PARTIAL_NAMES = re.compile(r"lib(Qnn|Genie|Htp|Snpe|SNPE)")


class QnnBuild(NamedTuple):
    """A QNN build: a ``version`` such as 2.49.40, a ``stamp`` such as 260810104044 (UTC,
    yymmddHHMMSS).

    Either is None if the library does not contain it; ``text`` is the text in the file.
    """

    version: str | None
    stamp: str | None
    text: str

    def agrees_with(self, peer: QnnBuild) -> bool:
        """Return whether two builds may be the same: the parts that both contain are equal."""
        for part, peer_part in ((self.version, peer.version), (self.stamp, peer.stamp)):
            if None not in {part, peer_part} and part != peer_part:
                return False
        return True


def find_qnn_build(path: Path, likely: tuple[int, int] | None = None) -> QnnBuild | None:
    """Return the QNN build that the file ``path`` contains, or None if it contains none. Raises
    ElfError if it cannot be read.

    ``likely`` is the (offset, size) of .rodata, which contains the full version in most libraries.
    It is searched first, to avoid reading the rest of the file.
    """
    try:
        with (
            open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if likely and (build := search_whole(data, likely[0], sum(likely))):
                return build
            return search_build(data, partial=bool(PARTIAL_NAMES.match(path.name)))
    except ValueError:  # an empty file cannot be mapped
        return None
    except OSError as error:
        raise ElfError(path, Defect.UNREADABLE, error.strerror or str(error)) from error


def search_build(data: bytes | mmap.mmap, *, partial: bool = True) -> QnnBuild | None:
    """Return the first full version in ``data``. If there is none and ``partial`` is true, return
    the version after AISW_VERSION or, failing that, a stamp. Return None if nothing is found.
    """
    if full_build := search_whole(data, 0, len(data)):
        return full_build
    end = min(len(data), MAX_SEARCH_BYTES) if partial else 0
    if product := PRODUCT.search(data, 0, end):
        return QnnBuild(product[1].decode(), None, product.group().decode())
    for stamp in STAMP.finditer(data, 0, end):
        # A separate text: twelve digits inside of another text, such as a serial number, are no
        # stamp.
        if stamp.start() and data[stamp.start() - 1] == 0:
            return QnnBuild(None, stamp[1].decode(), stamp.group()[:-1].decode())
    return None


def search_whole(data: View, start: int, end: int) -> QnnBuild | None:
    """Return the first full version in ``data`` between the bytes ``start`` and ``end``, or None if
    there is none.
    """
    limit = min(len(data), MAX_SEARCH_BYTES)
    match = WHOLE.search(data, min(start, limit), min(end, limit))
    if match is None:
        return None
    version, stamp = (part.decode() for part in match.groups())
    return QnnBuild(version, stamp, match.group().decode())


def find_headers_version(path: Path) -> str:
    """Return the QNN release, such as 2.37, whose headers the adaptor ``path`` was compiled with.

    Returns '' if the adaptor's code does not contain the version in the form that optimisation for
    x86-64 produces. Raises OSError.
    """
    minors = {match[1][0] for match in HTP_API.finditer(read_bytes(path, CONTENT_BYTES))}
    # Several different numbers show that the pattern also matches other code.
    return f"{QNN_MAJOR}.{minors.pop()}" if len(minors) == 1 else ""
