"""`image` with several names: each is told, and each can fail the call."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
import socket
import tarfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.images import digest, shell, wheels
from ci.images.build import Built
from ci.images.definition import LABEL, TOOLCHAINS
from ci.images.digest import Comparison
from ci.images.engine import is_podman
from ci.images.prune import Stale, find_bases, find_stale
from ci.verbs import image as verb
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.errors import DownloadError, ExitCode, ToolError, UnfitError, UsageError

CLIENT: Any = None


@pytest.mark.parametrize("equal", [(True, True), (False, True), (True, False)])
def test_one_image_of_several_that_differs_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, equal: tuple[bool, bool]
) -> None:
    answers = dict(zip(("aot", "emulator"), equal, strict=True))

    def compare(_client: Any, name: str, *_: Any, base: str) -> Comparison:
        assert base == "own"
        return Comparison(name, ("a", "a" if answers[name] else "b"), 3, {})

    monkeypatch.setattr(verb, "compare_builds", compare)
    args = Namespace(words=[*answers], check=True, base="own")
    outcome = verb._digest(CLIENT, args, Progress())
    assert (outcome.exit_code == ExitCode.OK) is all(equal)
    assert [(row["name"], row["equal"]) for row in outcome.data["images"]] == [*answers.items()]


def test_digests_of_several_images_are_told_each_with_its_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(_client: Any, name: str, _: Progress, *, base: str) -> Built:
        return Built(f"{name} on {base}", f"id-{name}", 1, fresh=True)

    monkeypatch.setattr(verb, "build_image", build)
    monkeypatch.setattr(
        verb, "describe_digest", lambda _, one: {"diff_ids": [f"{one.reference}-1", "2"]}
    )
    outcome = verb._digest(CLIENT, Namespace(words=["a", "b"], check=False, base="own"), Progress())
    rows = [line.removeprefix("  ") for line in outcome.text.splitlines()]
    assert rows == [
        *("a on own", "id id-a", "layer a on own-1", "layer 2"),
        *("b on own", "id id-b", "layer b on own-1", "layer 2"),
    ]
    assert outcome.exit_code == ExitCode.OK


@pytest.mark.parametrize(
    ("words", "diffs", "text"),
    [
        (["a", "b"], {"a": "-x", "b": "-y"}, "-x-y"),
        (["a", "b"], {"a": "", "b": ""}, "the locks are up to date\n"),
        ([], {verb.DEFAULT: "-z"}, "-z"),
    ],
)
def test_the_locks_of_each_image_are_compared_and_written_if_asked(
    monkeypatch: pytest.MonkeyPatch, words: list[str], diffs: dict[str, str], text: str
) -> None:
    asked = []

    def write(_client: Any, name: str, *_: Any, base: str, write: bool) -> str:
        asked.append((base, write))
        return diffs[name]

    monkeypatch.setattr(verb, "write_locks", write)
    for written in (True, False):
        args = Namespace(words=words, base="own", write=written)
        outcome = verb._lock(CLIENT, args, Progress())
        assert (outcome.text, outcome.data) == (text, {"diffs": diffs, "written": written})
    assert asked == [("own", True)] * len(diffs) + [("own", False)] * len(diffs)


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ((100_000_000, 1), ExitCode.OK),
        ((100_000_000, 101_000_000), ExitCode.FAILED),
        ((101_000_000, 1), ExitCode.FAILED),
        ((1, 100_000_001), ExitCode.FAILED),
    ],
)
def test_each_image_has_a_budget_in_megabytes(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], code: ExitCode
) -> None:
    left = [*sizes]
    plan = SimpleNamespace(image=SimpleNamespace(budget_mb=100))
    monkeypatch.setattr(verb, "plan_image", lambda *_: plan)
    monkeypatch.setattr(
        verb, "build", lambda _, name, *__: Built(name, "i", left.pop(0), fresh=False)
    )
    args = Namespace(words=["aot", "emulator"], base="", with_toolchains=False, push="")
    outcome = verb._build(CLIENT, args, Progress())
    assert outcome.exit_code == code
    assert [row["size_mb"] for row in outcome.data["images"]] == [
        -(-one // 1_000_000) for one in sizes
    ]
    assert outcome.text.count("over its budget") == sum(one > 100_000_000 for one in sizes)


def test_two_images_are_not_pushed_under_one_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Built("aot:1", "id", 1, fresh=True)
    plan = SimpleNamespace(image=SimpleNamespace(budget_mb=100))
    pushed: list[str] = []
    monkeypatch.setattr(verb, "plan_image", lambda *_: plan)
    monkeypatch.setattr(verb, "build", lambda *_: made)
    monkeypatch.setattr(verb, "push_image", lambda *given: pushed.append(given[2]))
    for words, push, times in (
        (["aot", "emulator"], "host:5000/me/qnn", 2),
        (["aot", "aot"], "host:5000/me/qnn:1", 1),
        (["aot", "emulator"], "host:5000/me/qnn:1", 0),
    ):
        pushed.clear()
        args = Namespace(words=words, base="", with_toolchains=False, push=push)
        with nullcontext() if times else pytest.raises(UsageError, match=f"as {push}"):
            verb._build(CLIENT, args, Progress())
        assert pushed == [push] * times


@pytest.mark.parametrize("push", ["", "me/aot:1"])
@pytest.mark.parametrize("bakes", [False, True])
def test_an_image_is_built_then_gets_its_toolchains_and_is_pushed_if_asked(
    monkeypatch: pytest.MonkeyPatch, bakes: bool, push: str
) -> None:
    """An image with toolchains may be larger than its budget."""
    done: list[Any] = []
    made = Built("aot:1", "id", 100_000_000, fresh=True)
    baked = Built("aot:1-toolchains", "id2", 900_000_000, fresh=False)
    plan = SimpleNamespace(image=SimpleNamespace(budget_mb=100))

    def note(*given: Any, answer: Any) -> Any:
        done.append([one for one in given if one is not CLIENT and not isinstance(one, Progress)])
        return answer

    monkeypatch.setattr(verb, "plan_image", lambda _, *names: plan if names == ("aot", "b") else 0)
    monkeypatch.setattr(verb, "build", lambda *_: made)
    monkeypatch.setattr(verb, "bake_toolchains", partial(note, answer=baked))
    monkeypatch.setattr(verb, "push_image", partial(note, answer="me/aot@sha256:0"))
    args = Namespace(words=["aot"], base="b", with_toolchains=bakes, push=push)
    outcome = verb._build(CLIENT, args, Progress())
    found = baked if bakes else made
    row = {
        "name": "aot",
        "reference": found.reference,
        "id": found.image_id,
        "size_mb": found.size_bytes // 1_000_000,
        "budget_mb": 100,
        "built": found.fresh,
        **({"pushed": "me/aot@sha256:0"} if push else {}),
    }
    assert (outcome.data, outcome.exit_code) == ({"images": [row]}, ExitCode.OK)
    assert done == [*([[plan, made]] if bakes else []), *([[found, push]] if push else [])]


@pytest.mark.parametrize("base", ["", "own"])
def test_an_action_has_the_engine_and_the_base(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setattr(verb, "connect_engine", lambda: nullcontext(CLIENT))
    monkeypatch.setattr(verb, "choose_base", lambda _, given, __: f"chosen {given}")
    asked: list[Any] = []

    def act(*given: Any) -> Outcome:
        asked.append(given)
        return Outcome("done")

    for name in ("build", "list"):
        monkeypatch.setitem(verb.ACTIONS, name, verb.Action("", act if name == "list" else fail))
    args, progress = Namespace(action="list", base=base or None), Progress()
    assert verb.execute(args, progress) == Outcome("done")
    assert asked == [(CLIENT, args, progress)]
    assert args.base == f"chosen {base}"


def fail(*_: Any) -> Outcome:
    raise AssertionError("another action")


@pytest.mark.parametrize("base", ["", "own"])
def test_a_base_that_is_chosen_is_remembered(monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(verb, "build_image", lambda *given, base: (*given, base))
    monkeypatch.setattr(verb, "find_checkout", lambda: "here")
    monkeypatch.setattr(verb, "remember_base", lambda *given: kept.append(given))
    progress = Progress()
    found = verb.build(CLIENT, "aot", Namespace(base=base), progress)
    assert found == (CLIENT, "aot", progress, base)
    assert kept == ([("here", "own")] if base else [])


@pytest.mark.parametrize(
    ("words", "name", "command"),
    [
        ([], verb.DEFAULT, ()),
        (["aot"], "aot", ()),
        (["aot", "make", "aot"], "aot", ("make", "aot")),
        (["make", "aot"], verb.DEFAULT, ("make", "aot")),
    ],
)
@pytest.mark.parametrize("bakes", [False, True])
def test_a_shell_runs_a_command_in_the_image_that_the_first_word_names(
    monkeypatch: pytest.MonkeyPatch, words: list[str], name: str, command: Any, bakes: bool
) -> None:
    images = SimpleNamespace(images={"aot": 1, verb.DEFAULT: 2})
    monkeypatch.setattr(verb, "read_images", lambda: images)
    monkeypatch.setattr(verb, "plan_image", lambda _, *names: names)
    monkeypatch.setattr(verb, "build", lambda _, name, *__: f"built {name}")
    monkeypatch.setattr(verb, "bake_toolchains", lambda _, plan, built, __: (plan, built))
    asked: list[Any] = []
    monkeypatch.setattr(verb, "run_shell", lambda _, request: asked.append(request) or 7)
    args = Namespace(words=words, base="b", with_toolchains=bakes, read_only_store=not bakes)
    assert verb._shell(CLIENT, args, Progress()).exit_code == 7
    plan, built = (name, "b"), f"built {name}"
    assert asked == [
        shell.ShellRequest(plan, (plan, built) if bakes else built, command, not bakes, bakes)  # type: ignore[arg-type]
    ]


def test_an_image_on_any_base_that_is_in_use_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that the engine no longer has keeps nothing."""
    known = SimpleNamespace(
        images={"aot": 1, "emulator": 2}, bases={"debian": SimpleNamespace(image="debian:12")}
    )

    def plan(_: Any, name: str, base: str) -> Any:
        if base == "gone":
            raise UsageError("no such base")
        return SimpleNamespace(reference=lambda: f"{name} on {base or 'the default'}")

    asked: list[Any] = []
    monkeypatch.setattr(verb, "read_images", lambda: known)
    monkeypatch.setattr(verb, "plan_image", plan)
    monkeypatch.setattr(verb, "find_bases", lambda _: {"debian:12", "own:1", "gone"})
    monkeypatch.setattr(verb, "find_stale", lambda _, current: asked.append(current) or [])
    outcome = verb._prune(CLIENT, Namespace(base="", dry_run=True), Progress())
    bases = ("the default", "debian", "own:1")
    assert asked == [{f"{name} on {base}" for name in known.images for base in bases}]
    assert outcome == Outcome("nothing is stale\n", {"dry_run": True, "stale": []})


def test_every_lock_that_differs_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    diffs = {"a": "", "b": "-1\n", "c": "+2\n"}
    monkeypatch.setattr(verb, "write_locks", lambda _, name, *__, **___: diffs[name])
    args = Namespace(words=[*diffs], base="", write=False)
    assert verb._lock(CLIENT, args, Progress()).text == "-1\n+2\n"
    args.words = ["a"]
    assert "up to date" in verb._lock(CLIENT, args, Progress()).text


@pytest.mark.parametrize(("dry", "told"), [(True, "would be removed"), (False, "removed")])
def test_what_prune_removes_is_told_in_megabytes(
    monkeypatch: pytest.MonkeyPatch, dry: bool, told: str
) -> None:
    stale = [Stale("image", "a", 2_000_000_000), Stale("volume", "b")]
    monkeypatch.setattr(verb, "read_images", lambda: SimpleNamespace(images={}, bases={}))
    monkeypatch.setattr(verb, "find_bases", lambda _: set())
    monkeypatch.setattr(verb, "find_stale", lambda *_: stale)
    monkeypatch.setattr(verb, "remove_stale", lambda _, found: found[:1])
    outcome = verb._prune(CLIENT, Namespace(base="", dry_run=dry), Progress())
    lines = [f"{told}: image a 2000 MB", f"{told}: volume b 0 MB"]
    assert outcome.text.splitlines() == (lines if dry else lines[:1])
    assert (outcome.data["dry_run"], len(outcome.data["stale"])) == (dry, 1 + dry)


TIMES = itertools.count()  # the time of a file makes no difference


def make_layer(**files: str) -> tarfile.TarFile:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(text), next(TIMES)
            tar.addfile(entry, io.BytesIO(text.encode()))
    stream.seek(0)
    return tarfile.open(fileobj=stream)


def test_every_layer_that_differs_is_told_with_all_its_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = {
        "one": [make_layer(same="1"), make_layer(a="1", b="1", c="1"), make_layer(d="1")],
        "two": [make_layer(same="1"), make_layer(a="2", c="1", e="1"), make_layer(d="2")],
    }
    digests = {"one": ["0", "1", "2"], "two": ["0", "3", "4"]}
    monkeypatch.setattr(digest, "_digests", lambda _, image: digests[image])
    monkeypatch.setattr(digest, "read_layers", lambda _, image: layers[image])
    found = digest.find_differences(CLIENT, "one", "two")
    assert found == {1: ("a", "b", "e"), 2: ("d",)}
    lines = digest.describe_comparison(Comparison("aot", ("one", "two"), 3, found))
    assert [line.strip() for line in lines] == [
        "aot: two clean builds with 3 layers are NOT equal",
        *("id one", "id two"),
        *("layer 1: differences in 3 paths", "a", "b", "e"),
        *("layer 2: differences in 1 path", "d"),
    ]
    assert digest.find_differences(CLIENT, "one", "one") == {}


def make_image(name: str, *tags: str, base: str = "") -> Any:
    labels = {f"{LABEL}.base": base} if base else {}
    return SimpleNamespace(id=name, tags=[*tags], attrs={"Size": 7}, labels=labels)


def test_whatever_is_stale_is_found_and_any_tag_keeps_an_image() -> None:
    labelled = [make_image("a", "x:1", "x:2", base="own"), make_image("b", "x:1", base="other")]
    named = [make_image("c", base="own"), make_image("d", f"docker.io/x:2{TOOLCHAINS}")]
    client: Any = SimpleNamespace(
        images=SimpleNamespace(list=lambda **by: named if "name" in by else labelled),
        containers=SimpleNamespace(list=lambda **_: [SimpleNamespace(id=n) for n in ("c1", "c2")]),
        volumes=SimpleNamespace(list=lambda **_: [SimpleNamespace(name=n) for n in ("v1", "v2")]),
    )
    stale = find_stale(client, {"x:2"})
    assert [(one.kind, one.name) for one in stale] == [
        *(("image", "b"), ("image", "c")),
        *(("container", "c1"), ("container", "c2"), ("volume", "v1"), ("volume", "v2")),
    ]
    assert find_bases(client) == {"own", "other"}


def test_a_lock_has_what_builds_packages_without_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(words: Any, more: Any, python: str) -> str:
        asked.extend([*words, *more, python])
        rows = [
            {
                "metadata": {"name": name, "version": "1"},
                "download_info": {"archive_info": {"hashes": {"sha256": name, "md5": "no"}}},
            }
            for name in ("C", "b")
        ]
        return f"WARNING: the cache is not used\n{json.dumps({'install': rows})}"

    monkeypatch.setattr(wheels, "_run_pip", answer)
    monkeypatch.setattr(wheels.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(wheels, "wanted_requirements", lambda _: ["antlr4-python3-runtime==4.9.3"])
    plan: Any = SimpleNamespace(base=SimpleNamespace(python="3.12"), checkout=None)
    lock = wheels.resolve_lock(plan, Progress())
    assert lock == "b==1 --hash=sha256:b\nc==1 --hash=sha256:C\n"
    assert asked == [
        *("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"),
        *("antlr4-python3-runtime==4.9.3", "setuptools", "wheel", "/bin/python3.12"),
    ]


def test_a_lock_needs_the_python_of_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.shutil, "which", lambda _: None)
    plan: Any = SimpleNamespace(base=SimpleNamespace(python="3.12", image="team/base"))
    with pytest.raises(UnfitError, match=r"python3\.12 is not on PATH") as caught:
        wheels.resolve_lock(plan, Progress())
    assert "team/base" in caught.value.fix


def test_every_wheel_of_a_lock_is_fetched_for_every_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    lock = tmp_path / "lock.txt"
    lock.write_text("a-b==1 --hash=sha256:0\ntorch==2\nc==3 --hash=sha256:1\n")
    ran: list[list[str]] = []
    monkeypatch.setattr(wheels, "_run_pip", lambda words, more: ran.append([*words, *more]))
    monkeypatch.setattr(wheels, "_fetch_torch", ran.append)
    place = tmp_path / "home/downloads/wheels/python-3.12"
    place.mkdir(parents=True)
    files = ["a_b-1-py3-none-any.whl", "c-3-py3-none-any.whl", "torch-2-cp312-x.whl"]
    for name in (*files, "c-30-py3-none-any.whl", "other-1-py3-none-any.whl"):
        (place / name).touch()
    plan: Any = SimpleNamespace(python_lock=lock, name="aot", base=SimpleNamespace(python="3.12"))
    assert [path.name for path in wheels.fetch_wheels(plan, Progress())] == files
    hashed, torch = ran
    for words in ran:
        named = [word for at, word in enumerate(words) if words[at - 1] == "--platform"]
        assert named[0] == "manylinux_2_34_x86_64"  # newest first; QNN needs this glibc, too
        assert {*named} > {"manylinux_2_17_x86_64", "manylinux2014_x86_64"}
        assert not any(re.search("_2_(3[5-9]|[4-9][0-9])_", name) for name in named)
    assert torch[-1] == "torch==2"
    assert (place / "requirements.txt").read_text() == "".join(
        f"{line}\n" for line in lock.read_text().splitlines() if "torch" not in line
    )
    assert hashed[-2:] == ["-r", place / "requirements.txt"]


@pytest.mark.parametrize(
    ("names", "podman"),
    [
        (["Engine", "Podman Engine"], True),
        (["podman"], True),
        (["Engine", "containerd"], False),
        ([None], False),
        ([], False),
        (None, False),
    ],
)
def test_podman_may_be_any_component(names: list[str] | None, podman: bool) -> None:
    components = names and [{"Name": name} if name else {} for name in names]
    client: Any = SimpleNamespace(version=lambda: {"Components": components})
    assert is_podman(client) is podman


def test_a_list_has_each_image_built_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    images = {name: SimpleNamespace(budget_mb=mb) for name, mb in (("aot", 5), ("emulator", 9))}
    found = {"emulator": Built("e:1", "id", 7_400_000, fresh=False)}
    monkeypatch.setattr(verb, "read_images", lambda: SimpleNamespace(images=images))
    monkeypatch.setattr(verb, "plan_image", lambda _, name, base: (name, base))
    monkeypatch.setattr(verb, "find_built", lambda _, plan: found.get(plan[0]))
    outcome = verb._list(CLIENT, Namespace(base="own"), Progress())
    rows = [" ".join(line.split()) for line in outcome.text.splitlines()]
    assert rows == [
        "image reference size budget",
        "aot not built - 5 MB",
        "emulator e:1 8 MB 9 MB",
    ]
    no, one = {"reference": "", "id": "", "size_mb": 0}, {"reference": "e:1", "id": "id"}
    assert outcome.data == {
        "images": [
            {"name": "aot", **no, "budget_mb": 5, "built": False},
            {"name": "emulator", **one, "size_mb": 8, "budget_mb": 9, "built": False},
        ]
    }


@pytest.mark.parametrize(
    ("given", "known", "chosen"),
    [("", "", ""), ("own", "last", "own"), ("", "last", "last"), ("", "gone", "")],
)
def test_a_base_that_is_given_goes_before_the_last_one(
    monkeypatch: pytest.MonkeyPatch, given: str, known: str, chosen: str
) -> None:
    def plan(_client: Any, _name: str, base: str) -> None:
        if base == "gone":
            raise UsageError("no such base")

    monkeypatch.setattr(verb, "find_checkout", lambda: None)
    monkeypatch.setattr(verb, "recall_base", lambda _: known)
    monkeypatch.setattr(verb, "plan_image", plan)
    assert verb.choose_base(CLIENT, given, Progress()) == chosen


def test_the_callers_user_and_group_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(shell.os, "getuid", lambda: 7)
    monkeypatch.setattr(shell.os, "getgid", lambda: 8)
    monkeypatch.setattr(shell, "read_file", lambda _, __, path: f"root of {path}\n")
    client: Any = SimpleNamespace(
        api=SimpleNamespace(put_archive=lambda _id, _where, data: sent.append(data))
    )
    shell._name_user(client, "c")
    with tarfile.open(fileobj=io.BytesIO(sent[0])) as tar:
        texts = {one.name: tar.extractfile(one).read().decode() for one in tar}  # type: ignore[union-attr]
    assert texts == {
        "passwd": f"root of /etc/passwd\ndev:x:7:8:dev:{shell.HOME}:/bin/bash\n",
        "group": "root of /etc/group\ndev:x:8:\n",
    }


def test_what_is_typed_is_sent_until_stdin_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = iter([[], [0], [], [0], [0]])
    typed = iter([b"one ", b"two", b""])
    waiting = SimpleNamespace(select=lambda *_: (next(ready), [], []))
    monkeypatch.setattr(shell, "select", waiting)
    monkeypatch.setattr(shell, "os", SimpleNamespace(read=lambda *_: next(typed)))
    done = threading.Event()
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with ours, theirs:
        shell._feed(ours, done)
        assert b"".join(iter(lambda: theirs.recv(9), b"")) == b"one two"
        done.set()
        shell._feed(ours, done)  # nothing is left to be read
        done.clear()
        theirs.close()
        ready, typed = iter([[0]]), iter([b"late"])
        shell._feed(ours, done)  # the container has exited


@pytest.mark.parametrize("breaks", [False, True])
def test_typing_ends_with_the_container(monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    fed: list[threading.Event] = []

    def pieces(*_: object) -> Iterator[tuple[int, bytes]]:
        if breaks:
            raise OSError("reset")
        return iter(())

    monkeypatch.setattr(shell, "_feed", lambda _, done: (fed.append(done), done.wait(5)))
    monkeypatch.setattr(shell, "_pieces", pieces)
    with pytest.raises(OSError, match="reset") if breaks else nullcontext():
        shell.copy_streams(CLIENT, terminal=False)
    assert [one.is_set() for one in fed] == [True]


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_a_container_is_attached_with_all_its_streams_and_no_limit(is_wrapped: bool) -> None:
    asked: list[tuple[str, dict[str, int]]] = []
    limits: list[float | None] = []
    stream: Any = SimpleNamespace(settimeout=limits.append)

    def attach_socket(name: str, params: dict[str, int]) -> Any:
        asked.append((name, params))
        return SimpleNamespace(_sock=stream) if is_wrapped else stream

    client: Any = SimpleNamespace(api=SimpleNamespace(attach_socket=attach_socket))
    assert shell.open_stream(client, "c1") is stream
    assert asked == [("c1", dict.fromkeys(("stdin", "stdout", "stderr", "stream"), 1))]
    assert limits == [None]


def test_a_terminal_has_the_lines_and_columns_of_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[tuple[str, dict[str, int]]] = []
    client: Any = SimpleNamespace(
        api=SimpleNamespace(resize=lambda name, **size: sizes.append((name, size)))
    )
    done: list[Any] = []
    settings = SimpleNamespace(
        tcgetattr=lambda _: ["before"], TCSADRAIN=1, tcsetattr=lambda *given: done.append(given)
    )
    monkeypatch.setattr(shell, "termios", settings)
    monkeypatch.setattr(shell, "tty", SimpleNamespace(setraw=done.append))
    monkeypatch.setattr(shell.shutil, "get_terminal_size", lambda: os.terminal_size((132, 43)))
    resized: list[int] = []
    former = signal.signal(signal.SIGWINCH, lambda number, _: resized.append(number))
    with shell.raw_terminal(client, "c1"):
        assert sizes == [("c1", {"height": 43, "width": 132})]
        assert done == [0]
        monkeypatch.setattr(shell.shutil, "get_terminal_size", lambda: os.terminal_size((80, 9)))
        signal.raise_signal(signal.SIGWINCH)
        assert sizes[1:] == [("c1", {"height": 9, "width": 80})]
        client.api = None  # the container may have exited
        signal.raise_signal(signal.SIGWINCH)
    signal.raise_signal(signal.SIGWINCH)
    signal.signal(signal.SIGWINCH, former)
    assert resized == [signal.SIGWINCH]  # the caller's own handler is back
    assert done == [0, (0, 1, ["before"])]


def test_pip_of_the_python_that_is_named_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[Any]] = []

    def run(argv: list[Any], *, fix: str) -> Any:
        ran.append(argv)
        return SimpleNamespace(output="a report")

    monkeypatch.setattr(wheels, "run_process", run)
    assert wheels._run_pip(["install"], ["a"], "/bin/python3.12") == "a report"
    (argv,) = ran
    assert argv[0] == "/bin/python3.12"
    quiet = ["--disable-pip-version-check", "--no-input"]
    assert argv[-5:] == ["pip", *quiet, "install", "a"]


def test_a_download_of_pip_that_fails_says_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(argv: object, *, fix: str) -> Any:
        raise ToolError("pip exited with 1", why="no matching distribution", fix=fix)

    monkeypatch.setattr(wheels, "run_process", fail)
    with pytest.raises(DownloadError) as caught:
        wheels._run_pip(["download"], ["torch"])
    assert caught.value.why == "no matching distribution"
    assert "index" in caught.value.fix
