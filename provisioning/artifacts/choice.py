"""Which QNN models are judged on, and with which adaptor: the wheel's, or others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.artifacts.environment import Environment
from provisioning.artifacts.overlays import BACKENDS

SDK_VARIABLE, ADAPTOR_VARIABLE = "QNN_CI_SDK", "QNN_CI_ADAPTOR"
WHEEL, PINNED, OVERLAY = "wheel", "pinned", "overlay"
WHEEL_PROFILE, SDK_PROFILE = "emulator", "emulator-sdk"


@dataclass(frozen=True)
class QnnChoice:
    """``sdk`` is ``wheel``, ``pinned`` or a directory; ``adaptor`` is ``wheel``, ``overlay``, the
    directory of one, or empty: whichever fits, the wheel's first."""

    sdk: str = WHEEL
    adaptor: str = ""

    @property
    def profile(self) -> str:
        """The profile whose environment it is."""
        return WHEEL_PROFILE if self.sdk == WHEEL else SDK_PROFILE

    @property
    def is_usual(self) -> bool:
        """Whether it is what the project pins and records: the wheel's runtime and adaptor."""
        return self.sdk == WHEEL and self.adaptor in {"", WHEEL}

    @property
    def words(self) -> str:
        """The options that repeat it."""
        adaptor = f" --adaptor {self.adaptor}" if self.adaptor else ""
        return f"--sdk {self.sdk}{adaptor}"


def chosen_sdk() -> Path | None:
    """The SDK's directory that QNN_CI_SDK names, whatever is pinned."""
    word = os.environ.get(SDK_VARIABLE, "")
    return None if word in {"", WHEEL, PINNED} else Path(word).expanduser().absolute()


def read_choice(sdk: str = "", adaptor: str = "") -> QnnChoice:
    """The choice of a command line, or of the variables where it says nothing.

    What it names becomes the variables' value, so that all that follows takes the same.
    """
    for name, word in ((SDK_VARIABLE, sdk), (ADAPTOR_VARIABLE, adaptor)):
        if word:
            os.environ[name] = word
    return QnnChoice(os.environ.get(SDK_VARIABLE) or WHEEL, os.environ.get(ADAPTOR_VARIABLE, ""))


def lay_over(environment: Environment, overlay: Path, base: Mapping[str, str]) -> Environment:
    """An environment in which Python finds the executorch of ``overlay``, and the loader its
    backend."""
    path = [str(overlay), *filter(None, [base.get("PYTHONPATH")])]
    libraries = [str(overlay / place) for place in BACKENDS if (overlay / place).is_dir()]
    variables = {
        **environment.variables,
        "PYTHONPATH": os.pathsep.join(path),
        "LD_LIBRARY_PATH": ":".join([*libraries, environment.variables["LD_LIBRARY_PATH"]]),
    }
    return replace(environment, variables=variables)
