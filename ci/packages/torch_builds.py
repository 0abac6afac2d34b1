"""Which build of torch an environment gets, and from which index.

On the default package index, torch is a CUDA build of several GB. PyTorch's own index has builds
for the CPU, and a company's index may have others.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from ci.packages.locks import Lock, list_pins

TORCH_VARIABLE = "QNN_CI_TORCH_INDEX"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def list_indexes() -> list[str]:
    """Return the URLs of the indexes on which torch is looked for, one after the other. An empty
    one stands for the index that pip's settings name."""
    index = os.environ.get(TORCH_VARIABLE)
    if index is None:
        return [CPU_INDEX, ""]
    return ["" if index == "none" else index]


def point_pip(index: str) -> dict[str, str]:
    """Return the variables with which pip looks for torch on an index."""
    if index == CPU_INDEX:  # a machine without access to it soon uses pip's index
        return {"PIP_INDEX_URL": index, "PIP_RETRIES": "0", "PIP_TIMEOUT": "3"}
    return {"PIP_INDEX_URL": index} if index else {}


def point_uv(index: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which uv looks for torch on an index."""
    if index == CPU_INDEX:
        return {"UV_TORCH_BACKEND": "cpu"}  # uv knows this index itself
    # Of equal versions, uv takes that of the first index.
    return {"UV_INDEX": f"{index} {variables.get('UV_INDEX', '')}".strip()} if index else {}


def choose_torch(
    resolve: Sequence[str], env: Mapping[str, str], lock: Lock
) -> tuple[list[str], dict[str, str]]:
    """Return the requirements of torch, and of what only the build of it needs that this machine
    finds, and the variables with which uv finds them. ``resolve`` is the command of uv that
    resolves requirements. If there is no such build, the installation fails, and uv reports why.

    The requirements have the hashes of the lock. A build that the lock does not know, such as that
    of a company's index, has none.
    """
    torch, source = f"torch=={lock.torch}", dict[str, str]()
    files = [f"--constraints={path}" for path in (lock.path, lock.cuda)]
    command = [*resolve, "--no-header", "--no-annotate", *files, "-"]
    resolved = [torch]
    for index in list_indexes():
        source = point_uv(index, env)
        # As with pip, a machine without access to PyTorch's index soon uses another.
        patience = {"UV_HTTP_RETRIES": "0", "UV_HTTP_CONNECT_TIMEOUT": "3"}
        variables = {**env, **source, **(patience if index == CPU_INDEX else {})}
        ended = subprocess.run(
            command, env=variables, input=torch, capture_output=True, text=True, check=False
        )
        if ended.returncode == 0:
            resolved = ended.stdout.splitlines()
            break
    installed = {pin.name for pin, _ in list_pins(lock.path)}
    pins = [line for line in resolved if line and line.partition("==")[0] not in installed]
    locked_lines = {}
    for path in (lock.builds, lock.cuda):
        for pin, line in list_pins(path):
            locked_lines[f"{pin.name}{pin.specifier}"] = line
    return [locked_lines.get(pin, pin) for pin in pins], source
