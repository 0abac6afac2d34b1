"""Which QNN headers an adaptor was compiled with, found in its machine code.

ExecuTorch's HtpBackend::GetExpectedBackendVersion returns QNN_HTP_API_VERSION (QnnHtpCommon.h) as a
struct of three 32-bit numbers in rax and edx. Its minor number is that of the QNN SDK: 5.37 came
with QNN 2.37, and so on in 2.30, 2.36, 2.37, 2.40 and 2.47 to 2.51.
"""

from __future__ import annotations

import re
from pathlib import Path

# movabs rax, MINOR << 32 | 5; xor edx, edx; ret. g++ and clang optimise it to this.
HTP_API = re.compile(rb"\x48\xb8\x05\0\0\0(.)\0\0\0\x31\xd2\xc3", re.DOTALL)
QNN_MAJOR = 2


def find_headers_version(path: Path) -> str:
    """The QNN release whose headers ``path`` was compiled with, such as 2.37.

    Empty where the code does not tell: an adaptor without optimisation, or of another machine.
    Raises OSError.
    """
    found = {match[1][0] for match in HTP_API.finditer(path.read_bytes())}
    return f"{QNN_MAJOR}.{found.pop()}" if len(found) == 1 else ""
