"""Find the store's directory, create the directories in it, and check that it can be written.

./nox checks this before it installs packages, so this module imports none.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from provisioning.console.caller import caller_path
from provisioning.errors import UnfitError
from provisioning.files import explain_writes

HOME_VARIABLE = "QNN_CI_HOME"
APPLICATION = "executorch-qnn-ci"
FIX = f"set {HOME_VARIABLE} to a writable directory"
# Group and others.
OTHERS_WRITE = 0o022
PARTS = ("store", "downloads", "locks", "pins")


def store_home() -> Path:
    """Return ``$QNN_CI_HOME``, or executorch-qnn-ci in the user's cache directory.

    A relative path is relative to the directory where ./nox was called. Raises UnfitError if there
    is no home directory, or if the path is not a directory or may not be opened.
    """
    configured = os.environ.get(HOME_VARIABLE)
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        home = Path(configured).expanduser() if configured else Path(cache) / APPLICATION
    except RuntimeError as error:
        fix = f"set {HOME_VARIABLE} or HOME to a writable directory"
        raise UnfitError("there is no home directory", why=str(error), fix=fix) from error
    home = caller_path(home)
    try:
        os.stat(f"{home}/.")  # noqa: PTH116 - the dot, which a Path drops, asks for entry
    except PermissionError as error:
        raise UnfitError(
            f"the store {home} cannot be opened", why=error.strerror or "", fix=FIX
        ) from error
    except OSError as error:
        if os.path.lexists(home):  # a file, or a link to nothing
            problem = f"the path of the store, {home}, is not a directory"
            raise UnfitError(problem, fix=FIX) from error
    return home


def make_directories(home: Path) -> None:
    """Create the store's directories in ``home`` with its permissions, regardless of the umask.

    If others can write to an existing directory of this user but not to ``home``, the directory is
    also given the permissions of ``home``. Raises OSError.
    """
    home.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(home.stat().st_mode)
    # mkdir's mode is subject to the umask, which would close a shared store to its other users.
    for path in (home / part for part in PARTS):
        with suppress(FileExistsError):
            path.mkdir()
            path.chmod(mode)
        state = path.stat()
        if state.st_mode & OTHERS_WRITE & ~mode and state.st_uid == os.geteuid():
            path.chmod(mode)


def explain_errors(home: Path) -> AbstractContextManager[None]:
    """Turn an OSError in the block into a StoreError. If the disk is full, the error states the
    free space.
    """
    return explain_writes(home, FIX)


def require_store() -> None:
    """Create the store's directories, and check that files can be written into them. Raises
    UnfitError and StoreError.

    A store that contains something is not checked: what a run needs may all be in it, and is then
    only read.
    """
    home = store_home()
    with suppress(OSError):
        if any((home / "store").iterdir()):
            return
    with explain_errors(home):
        make_directories(home)
        for part in PARTS:
            _try_writing(home / part)


def _try_writing(directory: Path) -> None:
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:  # it names a file with a random name
        raise OSError(error.errno, error.strerror, str(directory)) from None
