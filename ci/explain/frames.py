"""Read the lines of a backtrace: which function of which library a frame is in, and which line of
Python raised an exception.

The first frames of a crash are often the system's: of the C library, which was given a bad pointer
or called ``abort``, or of the loader. The first one that is not the system's tells whose code
crashed.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping

NAME_CHARS = 80
BELOW_BYTES = 600  # below a line, which may have its reason
REASON_CHARS = 250
TRACEBACK_BYTES = 2000  # above an exception, in which its last frame has to be
# Below a frame are its code and marks under a part of that, then the exception.
_PYTHON_FRAME = re.compile(
    rb"File \"([^\"\n]{1,400})\", line (\d{1,6})(?:, in ([^\n]{1,100}))?\n((?:[^\n]*\n){0,4})\Z"
)
_REASON_BELOW = re.compile(r"(?:> |[ \t]{2,}(?:> )?)\S")
_CODE = re.compile(rb"[^\n]{0,200}?\s{4,}([^\s~^][^\n]{1,200})")
_SLASH, _SEPARATOR = re.compile(r"[/\\]"), re.compile(r"[/\\!]")  # `!`: of a file in an APK
_LINE_NUMBER = re.compile(r"(?::\d+)+$")
_ADDRESS = r"0x[0-9a-f]{3,16}"
_FUNCTION = r"(?P<function>[A-Za-z_~?][^\n]{0,300}?)"  # of C++, with spaces
_SOURCE = r"\S{1,300}:\d"
_FORMS = (
    # Android: `#01 pc 00000000000123 /data/app/lib/arm64/libx.so (f()+12) (BuildId: a)`
    (
        r"#\d\d +pc (?:0x)?[0-9a-f]{6,16} +(?P<library>[^\s(]{1,300})"
        rf"(?: \(offset {_ADDRESS}\))?(?: \({_FUNCTION}\+\d+\))?"
    ),
    # The sanitizers, without a symbol: `#0 0x7f12  (/opt/libx.so+0x12)`
    rf"#\d{{1,3}} +{_ADDRESS} +\((?P<library>[^\s()]{{1,300}})\+0x[0-9a-f]+\)",
    # gdb and the sanitizers: `#1  0x7f12 in f (x=1) at a.cc:12`, `#0 0x7f12 in f from /lib/x.so`
    (
        rf"#\d{{1,3}} +(?:{_ADDRESS} in |(?=\S{{1,200}} \()){_FUNCTION}"
        rf" (?:at (?={_SOURCE})|from (?=/)|(?=/{_SOURCE}))\(?(?P<library>[^\s()]{{1,300}})"
    ),
    # gdb, without addresses and sources: `#0 f(x=1)`, `#3 a::f(...)`
    (
        r"^\s*#\d{1,3} +(?P<function>[A-Za-z_~][\w:~]{0,200}(?:<[^\n(]{0,200}>[\w:~]{0,200})?)"
        r"\((?=[^\n]{0,300}(?:=|\.\.\.)|\)?\s*$)"
    ),
    # Symbols without addresses: `* a::f() (/opt/libx.so)`
    rf"^\s*(?:\*|at|#\d{{1,3}}) +{_FUNCTION} \((?P<library>/[^\s()]{{1,300}}\.so)\)\s*$",
    # The C library: `/opt/libx.so(f+0x12) [0x7f12]`
    (
        r"(?P<library>[^\s()]{1,300})\((?P<function>[^()+\n]{1,300})\+0x[0-9a-f]+\) ?"
        rf"\[{_ADDRESS}\]"
    ),
    # lldb: `frame #1: f(x=1) at a.cc:12`
    (
        rf"frame #\d{{1,3}}: (?:{_ADDRESS} )?(?:[^\s`]{{1,200}}`)?{_FUNCTION}"
        rf" at (?P<library>{_SOURCE})"
    ),
    # lldb: `frame #1: 0x7f12 libx.so`f(x=1) + 12`
    (
        rf"frame #\d{{1,3}}: (?:{_ADDRESS} )?(?:(?P<library>[^\s`]{{1,200}})`)?"
        rf"{_FUNCTION}(?=\(| \+ \d|$)"
    ),
    # Java's crash reports: `C  [libx.so+0x12]  f+0x3`
    rf"^#? *C +\[(?P<library>[^\]+\s]{{1,200}})\+0x[0-9a-f]+\](?: +{_FUNCTION}(?=\+|$))?",
    # Windows' event log: `Faulting module name: x.dll, version: 1.2`
    r"Faulting module name: (?P<library>[^,\n]{1,200})",
)
_SYSTEM_LIBRARY = re.compile(
    r"(?i)^(?:\[|<|linux-vdso|ld[-.]"
    r"|lib(?:c|m|dl|rt|pthread|stdc\+\+|c\+\+(?:abi|_shared)?|gcc_s|asan|ubsan|art|artbase|base"
    r"|utils|log|android_runtime|hwui|binder|cutils|openjdkjvm|unwind)(?:[-.\d]|$)"
    r"|python[\d.]*$|libpython|app_process|dalvik-|boot|base\.|ntdll|kernel32|kernelbase"
    r"|ucrtbase|vcruntime|msvcp|unknown)"
)
_SYSTEM_FUNCTION = re.compile(
    r"^(?:_*(?:pthread_|libc_|GI_|kernel_|interceptor_|asan|sanitizer|cxa_|clone|start)"
    r"|gsignal|raise|abort|tgkill|syscall|mem(?:cpy|move|set|cmp)|bcmp|malloc|free|calloc"
    r"|str(?:len|cmp|cpy|dup|nlen|chr)|realloc|operator (?:new|delete)|std::|__gnu_cxx"
    r"|art_|art::|_?Py|\?\?|main$|exit$|_Unwind|__assert"
    # What programs end themselves with: its caller is the one that failed.
    r"|et_pal_abort|(?:torch::executor|executorch::runtime)::runtime_abort|ggml_(?:abort|print_back)"
    r"|absl::(?:\w+::)*LogMessage|absl::log_internal|google::LogMessage|android::base::LogMessage"
    r"|__android_log_assert|abort_message|demangling_terminate|\w*abort_handler)"
)
_NULL_ARGUMENT = re.compile(r"[(,] ?(?P<name>[A-Za-z_]\w{0,60})=0x0(?![0-9a-f])")  # as gdb shows it
_SOURCE_OF_SYSTEM = re.compile(r"sysdeps|nptl|\.\./csu|/usr/include|bits/|/libcxx/|libstdc\+\+")


def find_frame(line: str) -> Mapping[str, str]:
    """Return the ``function``, the ``library`` (or source file) and, if gdb shows one, a ``null``
    argument of a line of a backtrace.

    Returns nothing if it is no such line or if both are the system's.
    """
    for form in _compile_forms():
        if not (match := form.search(line)):
            continue
        groups = match.groupdict()
        library = _SEPARATOR.split((groups.get("library") or "").strip())[-1]
        library = _LINE_NUMBER.sub("", library)
        function = " ".join((groups.get("function") or "").split())
        is_system = _SYSTEM_LIBRARY.search(library) if library else not function
        if is_system or _SYSTEM_FUNCTION.search(function) or _SOURCE_OF_SYSTEM.search(line):
            return {}
        function = (function.partition("(")[0] or function).strip()
        null = _NULL_ARGUMENT.search(line)
        return {
            "function": function[:NAME_CHARS] or "an unnamed function",
            "library": library[:NAME_CHARS] or "the program",
            "null": f", whose argument {null['name']} is a null pointer" if null else "",
        }
    return {}


@functools.cache
def _compile_forms() -> list[re.Pattern[str]]:
    return [re.compile(form) for form in _FORMS]


def find_below(chunk: bytes, start: int) -> str:
    """Return what the lines below the one at ``start`` say, or "". CMake indents the reason below
    the line with the place, and Gradle starts it with ``> ``."""
    end = chunk.find(b"\n", start)
    below = chunk[end + 1 : end + 1 + BELOW_BYTES].decode("utf-8", "replace") if end >= 0 else ""
    lines = itertools.takewhile(_REASON_BELOW.match, below.splitlines())
    text = " ".join(line.strip().removeprefix("> ") for line in lines)
    return f": {text[:REASON_CHARS]}" if text else ""


def find_raising_frame(chunk: bytes, start: int) -> tuple[str, str]:
    """Return the last frame of Python's traceback directly above the line at ``start``, with its
    code, and the installed package that it is in. Each is "" if there is none."""
    above = chunk[max(0, start - TRACEBACK_BYTES) : start]
    place = above.rfind(b'File "')
    match = _PYTHON_FRAME.match(above[place:]) if place >= 0 else None
    if not match:
        return "", ""
    package = ""
    path, line, function, below = (part.decode("utf-8", "replace") for part in match.groups(b""))
    # The converters of QAIRT are in the SDK's own folder.
    for marker in ("site-packages/", "dist-packages/", "site-packages\\", "lib/python/"):
        _, is_installed, path = path.rpartition(marker)
        package = _SLASH.split(path)[0].removesuffix(".py") if is_installed else package
    shown = f"{path}, line {line}" + (f", in {function.strip()}" if function else "")
    code = _CODE.match(below.encode())
    if code:
        shown = f"{shown}: {code[1].decode('utf-8', 'replace').strip()}"
    return shown, package
