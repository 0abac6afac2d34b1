"""The dev shell: a container with the checkout and the store, run as the calling user. It is
connected to the caller's stdin, stdout, stderr and terminal.

No container outlives the caller. The container reads from a pipe that the caller holds open, so it
exits even if the caller is killed, and is then removed.
"""

from __future__ import annotations

import hashlib
import io
import os
import select
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
import termios
import threading
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from docker.client import DockerClient
from docker.types import Mount
from docker.utils.socket import STDERR, STDOUT, frames_iter

from ci.images.build import Built
from ci.images.definition import LABEL, ImagePlan
from ci.images.engine import add_text, bind_mount, is_podman, read_file
from ci.packages.pip_settings import (
    SettingsError,
    format_settings,
    list_directories,
    read_settings,
)
from provisioning.console.command import user_path
from provisioning.console.git import ask_git
from provisioning.console.streams import terminal_shared, user_stdout
from provisioning.errors import ToolError, UnfitError
from provisioning.store.home import store_home

READ_BYTES = 1 << 16


def open_stream(client: DockerClient, container_id: str) -> socket.socket:
    """Return one socket for the container's stdin, stdout and stderr. Call this before the
    container starts, so that no output is lost.
    """
    streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    opened: Any = client.api.attach_socket(container_id, params=streams)
    # docker may wrap the socket in a SocketIO, which has neither sendall nor shutdown.
    stream: socket.socket = getattr(opened, "_sock", opened)
    # The client's time limit is for answers; a shell may be silent for hours.
    stream.settimeout(None)
    return stream


def copy_streams(stream: socket.socket, *, terminal: bool) -> None:
    """Copy stdin to ``stream``, and ``stream`` to stdout and stderr, until the container closes its
    side.

    If the container has a ``terminal``, its stderr is part of its stdout.
    """
    done = threading.Event()
    feeder = threading.Thread(target=_feed, args=(stream, done), daemon=True)
    feeder.start()
    try:
        for number, data in frames_iter(stream, terminal):  # type: ignore[no-untyped-call]
            os.write(STDERR if number == STDERR else STDOUT, data)
    finally:
        done.set()
        feeder.join(1.0)


def _feed(stream: socket.socket, done: threading.Event) -> None:
    with suppress(OSError, ValueError):
        while not done.is_set():
            # A thread that is blocked in a read of stdin could not be ended.
            if not select.select([0], [], [], 0.2)[0]:
                continue
            data = os.read(0, READ_BYTES)
            if not data:
                # So that a command which reads its stdin to the end, ends too.
                stream.shutdown(socket.SHUT_WR)
                return
            stream.sendall(data)


@contextmanager
def raw_terminal(client: DockerClient, container_id: str) -> Iterator[None]:
    """Switch the terminal to raw mode, so that each key is sent as it is typed. Also give the
    container the terminal's size, now and whenever it changes.

    The terminal's settings are restored at the end of the block.
    """
    before = termios.tcgetattr(0)
    former = signal.getsignal(signal.SIGWINCH)

    def resize(_number: int = 0, _frame: FrameType | None = None) -> None:
        size = shutil.get_terminal_size()
        with suppress(Exception):  # the container may have exited
            client.api.resize(container_id, height=size.lines, width=size.columns)

    try:
        tty.setraw(0)
        signal.signal(signal.SIGWINCH, resize)
        resize()
        yield
    finally:
        signal.signal(signal.SIGWINCH, former)
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        user_stdout().flush()


CALLER = "/run/qnn-ci-caller"
HOME = "/opt/qnn-ci/home"  # not the caller's home: root would own the mount points in it
GRACE_S = 5
SHELL_LABEL = f"{LABEL}.shell"
# The caller's variables that have the same meaning in the container.
PASSED = (
    *("CI", "NO_COLOR", "TERM", "QNN_CI_JOBS", "SOURCE_DATE_EPOCH"),
    *("QNN_CI_MIRROR", "QNN_CI_TORCH_INDEX"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)


@dataclass(frozen=True)
class ShellRequest:
    """The command to run, and the image to run it in. Without ``words``, an interactive shell is
    run.
    """

    plan: ImagePlan
    built: Built
    words: tuple[str, ...]
    read_only_store: bool = False


def run_shell(client: DockerClient, request: ShellRequest) -> int:
    """Run the command in a container until it ends, and return its exit code.

    On KeyboardInterrupt, the container is stopped before the exception is raised again.
    """
    terminal = sys.stdin.isatty() and user_stdout().isatty()
    with (
        terminal_shared(),
        _caller_pipe() as pipe,
        _prepared(client, request, pipe, terminal) as container_id,
    ):
        stream = open_stream(client, container_id)
        code = _Waiter(client, container_id)
        client.api.start(container_id)
        try:
            with raw_terminal(client, container_id) if terminal else nullcontext():
                copy_streams(stream, terminal=terminal)
        except KeyboardInterrupt:
            # An interactive shell ignores SIGINT and SIGTERM.
            first_signals = (signal.SIGHUP,) if terminal else (signal.SIGINT, signal.SIGTERM)
            for number in (*first_signals, signal.SIGKILL):
                with suppress(Exception):  # it may have exited by itself
                    client.api.kill(container_id, number.value)
                if code.ended(GRACE_S):
                    break
            raise
        finally:
            stream.close()
        return code.result()


@contextmanager
def _caller_pipe() -> Iterator[Path]:
    """Yield a pipe that only this process holds open. A process that reads from it notices when
    this process ends.
    """
    with tempfile.TemporaryDirectory(prefix="qnn-ci-caller-") as directory:
        path = Path(directory) / "pipe"
        os.mkfifo(path)
        path.chmod(0o666)  # for any user in the container
        # O_RDWR: opening a pipe only for writing would wait for the reader.
        end = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield path
        finally:
            os.close(end)


class _Waiter:
    """Waits for a container's exit code. Create it before the container starts."""

    def __init__(self, client: DockerClient, container_id: str) -> None:
        self.code = 1

        def wait() -> None:
            # Before the start, because a removed container has no exit code any more.
            answer = client.api.wait(container_id, condition="next-exit")
            self.code = int(answer["StatusCode"])

        self.thread = threading.Thread(target=wait, daemon=True)
        self.thread.start()

    def ended(self, timeout_s: float) -> bool:
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def result(self) -> int:
        self.thread.join()
        return self.code


@contextmanager
def _prepared(
    client: DockerClient, request: ShellRequest, pipe: Path, terminal: bool
) -> Iterator[str]:
    checkout, caller = request.plan.checkout, user_path(".").absolute()
    (checkout / ".nox").mkdir(exist_ok=True)
    volumes = _own_volumes(client, request)
    try:
        pip_settings = read_settings(os.environ)
    except SettingsError as error:
        fix = "correct that file (pip config debug lists all of them)"
        raise UnfitError("the shell was not started", why=str(error), fix=fix) from error
    config = client.api.create_host_config(
        mounts=[*_mounts(request, pipe, volumes), *_package_mounts(pip_settings)],
        # A process with the number 1 ignores signals without a handler, and does not reap orphans.
        init=True,
        auto_remove=True,
        # Without root, Podman maps the caller to root in the container, and files would belong to
        # other users outside.
        userns_mode="keep-id" if is_podman(client) and os.getuid() else None,
    )
    created = client.api.create_container(
        request.built.image_id,
        list(request.words) or None,
        user=f"{os.getuid()}:{os.getgid()}",
        tty=terminal,
        stdin_open=True,
        environment=_variables(request),
        working_dir=str(caller if caller.is_relative_to(checkout) else checkout),
        host_config=config,
        labels={SHELL_LABEL: request.plan.name},
    )
    container_id = str(created["Id"])
    try:
        _write_etc(client, container_id, pip_settings)
        yield container_id
    finally:
        with suppress(Exception):  # the engine has usually removed it already
            client.api.remove_container(container_id, force=True)


def _variables(request: ShellRequest) -> dict[str, str]:
    umask = os.umask(0)
    # The umask can only be read by setting it.
    os.umask(umask)
    variables = {
        "HOME": HOME,
        "QNN_CI_CHECKOUT": str(request.plan.checkout),
        "QNN_CI_PROFILE": request.plan.image.profile,
        "QNN_CI_UMASK": f"{umask:03o}",
        "QNN_CI_HOME": str(store_home()),
    }
    return {**{name: os.environ[name] for name in PASSED if name in os.environ}, **variables}


def _mounts(request: ShellRequest, pipe: Path, volumes: dict[str, str]) -> list[Mount]:
    """Return the mounts: the checkout, its git directory if that is outside, the store, the
    volumes, and the pipe.
    """
    checkout, home = request.plan.checkout, store_home()
    (home / "store").mkdir(parents=True, exist_ok=True)
    frozen = [home / "store"] if request.read_only_store else []
    return [
        # At the same paths as outside, since environments and builds contain absolute paths.
        *(bind_mount(path, path) for path in (checkout, *_outer_git(checkout), home)),
        *(bind_mount(path, path, read_only=True) for path in frozen),
        *(Mount(inside, name, type="volume") for name, inside in volumes.items()),
        bind_mount(pipe, Path(CALLER)),
    ]


def _package_mounts(pip_settings: Mapping[str, str]) -> list[Mount]:
    """Return mounts of the caller's directories in which pip looks for packages, and of the
    certificates with which it connects to an index, at the same paths."""
    certificates = [pip_settings.get(option, "") for option in ("cert", "client-cert")]
    paths = [Path(place) for place in (*list_directories(pip_settings), *certificates)]
    # A mount of /opt would hide the image's environments.
    shown = [path for path in paths if path.is_absolute() and not Path(HOME).is_relative_to(path)]
    return [bind_mount(path, path, read_only=True) for path in shown if path.exists()]


def _outer_git(checkout: Path) -> list[Path]:
    """Return a list with the common git directory of the checkout. Return an empty list if that is
    inside the checkout, or if there is none. (It is outside for a linked work tree.)
    """
    try:
        words = ("rev-parse", "--path-format=absolute", "--git-common-dir")
        directory = Path(ask_git(checkout, *words).decode().rstrip("\n"))
    except ToolError:  # it is not a repository, so nothing more is mounted
        return []
    return [] if checkout in directory.parents else [directory]


def _own_volumes(client: DockerClient, request: ShellRequest) -> dict[str, str]:
    """Create the caller's volumes unless they exist, and return their mount points. The keys are
    the volumes' names.

    One volume is for .nox, the other for a home directory with the caches of pip and ccache.
    """
    checkout = request.plan.checkout
    place = hashlib.sha256(str(checkout).encode()).hexdigest()[:8]
    volumes = {
        f"{LABEL}-home-{os.getuid()}": HOME,
        f"{LABEL}-nox-{os.getuid()}-{request.plan.name}-{place}": f"{checkout}/.nox",
    }
    existing = {str(volume.name) for volume in client.volumes.list(filters={"label": SHELL_LABEL})}
    for name in sorted(volumes.keys() - existing):
        client.volumes.create(name, labels={SHELL_LABEL: request.plan.name})
        # A new volume belongs to root, and the shell runs as the caller.
        owner = f"{os.getuid()}:{os.getgid()}"
        config = client.api.create_host_config(
            mounts=[Mount("/volume", name, type="volume")], auto_remove=True
        )
        created = client.api.create_container(
            request.built.image_id,
            ["/volume"],
            entrypoint=["chown", owner],
            user="0:0",
            host_config=config,
            labels={SHELL_LABEL: request.plan.name},
        )
        code = _Waiter(client, str(created["Id"]))
        client.api.start(created["Id"])
        code.result()
    return volumes


def _write_etc(client: DockerClient, container_id: str, pip_settings: Mapping[str, str]) -> None:
    """Write the caller's settings of pip to /etc/pip.conf in the container, not to its variables,
    which ``docker inspect`` shows: the URL of an index may contain a password. Add the caller's
    user and group to /etc/passwd and /etc/group unless the caller is root: git, ssh and getpass
    look up the names of these ids.
    """
    uid, gid = os.getuid(), os.getgid()
    lines = {"passwd": f"dev:x:{uid}:{gid}:dev:{HOME}:/bin/bash\n", "group": f"dev:x:{gid}:\n"}
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            add_text(archive, "pip.conf", format_settings(pip_settings))
            for name, line in lines.items() if uid else ():
                add_text(archive, name, read_file(client, container_id, f"/etc/{name}") + line)
        client.api.put_archive(container_id, "/etc", file.getvalue())
