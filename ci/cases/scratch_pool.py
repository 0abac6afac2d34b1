"""The scratch directory of a run and its pool, which starts before the environment is proven."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import current_process
from pathlib import Path

from ci.cases.pool import EXECUTORCH, Pool
from provisioning.artifacts.environment import locate_profile
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError
from provisioning.files import scratch_directory

SOCKET, MAX_SOCKET_PATH = "listener-12345678", 108  # unix(7)


class Workshop:
    """One pool at a time, whose temporary files are all below ``scratch``."""

    def __init__(self, scratch: Path, imports: Sequence[str] = EXECUTORCH) -> None:
        self.scratch, self.imports = scratch, imports
        self.pool: Pool | None = None
        self.variables: Mapping[str, str] = {}

    def guess_pool(self, profile: str) -> None:
        """Start the imports for what seems to be provisioned already: they take seconds."""
        with suppress(QnnCiError):
            self.open_pool(locate_profile(profile, Progress()).apply(os.environ))

    def open_pool(self, variables: Mapping[str, str]) -> Pool:
        """The pool whose environment is ``variables``; one of another environment is ended."""
        if self.pool is None or variables != self.variables:
            self.close()
            self.variables = variables
            empty = self.scratch / "cwd"
            empty.mkdir(exist_ok=True)
            self.pool = Pool({**variables, "TMPDIR": str(self.scratch)}, empty, self.imports)
        return self.pool

    def close(self) -> None:
        if self.pool:
            self.pool.close()


@contextmanager
def open_workshop(imports: Sequence[str] = EXECUTORCH) -> Iterator[Workshop]:
    """A workshop, which is cleared at the end. Raises OSError where there is no room."""
    with (
        scratch_directory(Path(tempfile.gettempdir()), "qnn-ci") as scratch,
        sockets_below(scratch),
    ):
        workshop = Workshop(scratch, imports)
        try:
            yield workshop
        finally:
            workshop.close()


@contextmanager
def sockets_below(directory: Path) -> Iterator[None]:
    """Let multiprocessing make its sockets in ``directory``, so that they go with it when the
    process is killed; where the path is too long for one, they are where they were."""
    config: dict[str, str | None] = current_process()._config  # type: ignore[attr-defined]
    before = config.get("tempdir")
    if len(str(directory / SOCKET)) < MAX_SOCKET_PATH:
        config["tempdir"] = str(directory)
    try:
        yield
    finally:
        config["tempdir"] = before
