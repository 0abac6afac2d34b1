"""What a profile asks of an environment, as data: manifests/policies/doctor.toml."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ToolPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program of the PATH, ``minimum`` an error below and ``advised`` a warning.

    One that is ``optional`` may be missing.
    """

    program: str
    minimum: str = ""
    advised: str = ""
    why: str = ""
    optional: bool = False


class PythonPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked of the interpreter that lowers.

    ``torch`` and ``executorch`` are the pin, from manifests/pairs.toml.
    ``modules`` maps a module that is imported to the distribution that has it; ``flatc_below``
    is the first executorch that brings its own flatc.
    """

    minimum: str
    below: str
    torch_minimum: str
    torch: str = ""
    executorch: str = ""
    modules: Mapping[str, str] = {}
    flatc_below: str = ""


class NdkPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every NDK must be; the pin is the profile's."""

    minimum: int
    host_tag: str


class DevicePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a device should have."""

    free_mb: int


class Fitness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one profile asks.

    ``sdk`` names the artifacts that may serve as the SDK, the best first; ``libraries`` maps
    its directories to the files that must lie there; ``skels`` says whether stubs and skels
    are shipped from it, ``staged`` what a device needs besides them; ``roots`` are the other
    artifacts that must be there.
    """

    machines: tuple[str, ...] = ("x86_64",)
    glibc: str = "2.34"
    cpu_flags: tuple[str, ...] = ()
    memory_gb: float = 0
    disk_gb: float = 0
    cores: int = 1
    sdk: tuple[str, ...] = ()
    libraries: Mapping[str, tuple[str, ...]] = {}
    skels: bool = False
    staged: tuple[str, ...] = ()
    headers: bool = False
    root_on_device: bool = False
    python: bool = False
    tools: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()


class DoctorPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of manifests/policies/doctor.toml."""

    headers: tuple[str, ...]
    host_libraries: tuple[str, ...]
    python: PythonPolicy
    ndk: NdkPolicy
    device: DevicePolicy
    tools: Mapping[str, ToolPolicy]
    profiles: Mapping[str, Fitness]
