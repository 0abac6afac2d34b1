"""The only reader of sdk.yaml, in which a QNN SDK says what it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.console.user_files import read_user_file
from provisioning.errors import UnfitError, UsageError

SDK_YAML = "sdk.yaml"
MAX_BYTES = 1 << 16
VERSION = re.compile(r"v?(\d+(?:\.\d+)+)")
STAMP = re.compile(r"(\d{12})(?!\d)")


@dataclass(frozen=True)
class SdkIdentity:
    """``version`` such as 2.37.0.250724, ``stamp`` (12 digits, of build_id); "" where not there."""

    version: str = ""
    stamp: str = ""


def read_sdk_yaml(root: Path) -> SdkIdentity:
    """What the sdk.yaml of an SDK says, nothing where there is none.

    Raises UnfitError for one that cannot be read or is not YAML.
    """
    path = root / SDK_YAML
    if not path.exists():
        return SdkIdentity()
    try:
        rows = parse_rows(read_user_file(path, "the QNN SDK's", MAX_BYTES))
    except (UsageError, ValueError) as error:
        why = error.why if isinstance(error, UsageError) else str(error)
        raise UnfitError(
            f"{path} cannot be read",
            why=why,
            fix="provision the QNN SDK again, or name another one with QNN_SDK_ROOT",
        ) from error
    version, stamp = VERSION.match(rows.get("version", "")), STAMP.match(rows.get("build_id", ""))
    return SdkIdentity(version[1] if version else "", stamp[1] if stamp else "")


def parse_rows(data: bytes) -> dict[str, str]:
    """The plain values at the top of a YAML document, as they stand. Raises ValueError."""
    import yaml  # 30 ms that most verbs do not need

    try:
        document: Any = yaml.load(data, Loader=yaml.BaseLoader)  # noqa: S506 - makes only str
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    rows = document if isinstance(document, dict) else {}
    return {key: value for key, value in rows.items() if isinstance(value, str)}
