"""The QNN that devices get: what an application takes from Maven, and what profiles push."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from provisioning.artifacts.sources.local import read_version
from provisioning.manifest.reader import read_profiles, read_toolchain

MAVEN, SDK = "qnn-android", "qnn-sdk"
DEVICE_COMPONENTS = {"android", "linux"}


def list_device_runtimes() -> Iterator[tuple[str, str]]:
    """Names and QNN versions, such as ("qnn-sdk of profile android", "2.37.0.250724").

    Where QNN_CI_SDK chooses an SDK, profiles push that one.
    """
    yield MAVEN, read_toolchain(MAVEN).default
    toolchain = read_toolchain(SDK)
    adoption = toolchain.adoption
    chosen = adoption.find_choice(os.environ) if adoption else ""
    for name, profile in read_profiles().items():
        for wanted in profile.artifacts:
            if wanted.name == SDK and DEVICE_COMPONENTS & set(wanted.components):
                version = wanted.version or toolchain.default
                if adoption and chosen:
                    version = read_version(Path(chosen), adoption)
                yield f"{SDK} of profile {name}", version
