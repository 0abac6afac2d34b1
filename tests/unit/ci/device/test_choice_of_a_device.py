"""What a device reports, which device is taken, what is refused, and what a start leaves."""

from __future__ import annotations

import re
import tarfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.cases.engine import RunError
from ci.cases.runners import SPEED
from ci.device import connection, runner
from ci.device.bundle import Bundle, BundleFile, Target
from ci.device.connection import LARGE_BYTES, Answer, Device, DeviceFacts, identify, open_device
from ci.device.runner import AFTER, BEFORE, EXECUTORCH, MEMORY, DeviceProgram, DeviceRunner
from ci.models.tensors import TensorInfo
from ci.report.schema import Heat
from ci.verbs import deploy
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError, StoreError, ToolError, UnfitError, UsageError
from provisioning.files import hash_file

BOARD = DeviceFacts("aarch64", "QCS9100", user="me", free_bytes=1 << 30, dsp=("/dev/a",))
PHONE = replace(BOARD, soc="SM8650", android="16", model="Pixel")


def answer_with(*lines: str) -> Any:
    answer = "\n".join(lines).encode()
    return SimpleNamespace(name="adb:1", place="/p", ask=lambda _: answer)


def test_the_facts_of_a_device_are_read_from_its_answers() -> None:
    rows = ("machine=aarch64", "soc0_machine=KERNEL", "soc0_soc_id=557", "soc=sm8650", "model=M 1")
    other_rows = ("android=16", "api=36", "user=shell", "dsp=/dev/a", "closed=/dev/b", "dsp=/dev/c")
    facts = identify(answer_with(*rows, *other_rows, "library=/x", "library=/y", "free_kb=3"))
    assert facts == DeviceFacts(
        *("aarch64", "SM8650", "M 1", "16", "shell", 3072),
        dsp=("/dev/a", "/dev/c"),
        closed=("/dev/b",),
        libraries=("/x", "/y"),
    )
    assert identify(answer_with("machine=x86_64", "soc=", "soc0_machine=sa8295")).soc == "SA8295"
    for lacks, message in ((("tar",), "no tar"), (("sha256sum", "tar"), "no sha256sum and no tar")):
        with pytest.raises(UnfitError, match=f"^adb:1 has {message}"):
            identify(answer_with("machine=aarch64", *(f"lacks={lack}" for lack in lacks)))


def make_bundle(target: Target = Target.ANDROID, *socs: str) -> Bundle:
    files = tuple(BundleFile(name, "0" * 64, 1 << 20) for name in ("a.so", "b.so"))
    named = socs or ("SM8550", "SM8650")
    return Bundle(target=target, socs=named, runner="runner", qnn="", files=files)


@pytest.mark.parametrize(
    ("facts", "target", "expected_words"),
    [
        (PHONE, Target.ANDROID, ()),
        (BOARD, Target.LINUX, ("QCS9100", "SM8550, SM8650", "--soc QCS9100")),
        (replace(BOARD, soc=""), Target.LINUX, ()),
        (replace(PHONE, soc="UNKNOWN"), Target.ANDROID, ()),
        (replace(PHONE, machine="armv8l"), Target.ANDROID, ()),
        (replace(PHONE, machine="armv7l"), Target.ANDROID, ("is armv7l", "for aarch64-android")),
        (replace(BOARD, machine="x86_64", closed=("/d",), dsp=()), Target.EMULATOR, ()),
        (PHONE, Target.EMULATOR, ("is aarch64", "for x86_64-linux")),
        (PHONE, Target.LINUX, ("runs Android", "for aarch64-linux", "build_linux")),
        (replace(PHONE, android=""), Target.ANDROID, ("runs Linux", "for aarch64-android")),
        (replace(PHONE, closed=("/dev/b",)), Target.ANDROID, ()),  # one node is open
        (replace(PHONE, closed=("/b", "/c"), dsp=()), Target.ANDROID, ("me may not open /b, /c",)),
        (replace(PHONE, free_bytes=66 << 20), Target.ANDROID, ()),
        (replace(PHONE, free_bytes=None), Target.ANDROID, ()),  # not reported
        (replace(PHONE, free_bytes=0), Target.ANDROID, ("only 0 MiB", "66 MiB", "--place")),
        (replace(PHONE, free_bytes=65 << 20), Target.ANDROID, ("only 65 MiB", "66 MiB", "--place")),
    ],
)
def test_a_device_is_refused_before_anything_is_sent(
    facts: DeviceFacts, target: Target, expected_words: tuple[str, ...]
) -> None:
    device = StandIn("adb:1", (), "/p")
    error = UnfitError if "--place" not in expected_words else StoreError
    with pytest.raises(error) if expected_words else nullcontext() as caught:
        deploy.require_match(device, facts, make_bundle(target))
    assert not expected_words or all(
        word in str(caught.value) for word in ("adb:1", *expected_words)
    )


@dataclass(frozen=True)
class StandIn(Device):
    """A device that has no files of a bundle, except ``present``, with the contents ``digest``."""

    present: tuple[str, ...] = ()
    digest: str = "0" * 64

    def peek_digests(self, directory: str) -> dict[str, str]:
        assert directory == f"/p/bundles/{make_bundle().digest[:16]}"
        return dict.fromkeys(self.present, self.digest)


@pytest.mark.parametrize(
    ("present", "digest", "free_mib", "refused_why"),
    [
        (("a.so", "b.so"), "0", 64, ""),
        (("a.so", "b.so"), "0", 63, "what it lacks of the bundle and its runs may need 64 MiB"),
        (("a.so",), "0", 65, ""),
        (("a.so",), "0", 64, "what it lacks of the bundle and its runs may need 65 MiB"),
        # Another file of the same name is sent again.
        (("a.so", "b.so"), "1", 65, "the bundle and its runs may need 66 MiB"),
    ],
)
def test_files_that_a_device_already_has_need_no_space(
    present: tuple[str, ...], digest: str, free_mib: int, refused_why: str
) -> None:
    device = StandIn("adb:1", (), "/p", present, digest * 64)
    facts = replace(PHONE, free_bytes=free_mib << 20)
    with pytest.raises(StoreError) if refused_why else nullcontext() as caught:
        deploy.require_match(device, facts, make_bundle())
    assert not refused_why or caught.value.why == refused_why


FOUND = {
    "adb:one": replace(PHONE, soc="SM8550"),
    "adb:two": PHONE,
    "adb:three": PHONE,
    "adb:none": replace(PHONE, soc=""),
}


@pytest.mark.parametrize(
    ("soc", "names", "expected"),
    [
        ("soc=sm8650", (), ["adb:two", "adb:three"]),
        ("soc=SM8650", ("adb:three", "adb:gone", "adb:three"), ["adb:three"]),
        ("soc=SM8650", ("adb:one", "adb:none"), "adb:one has SM8550; adb:none has no known SoC"),
        ("soc=SM8650", ("adb:gone", "adb:one"), "adb:gone: missing; adb:one has SM8550"),
        ("soc=SM8750", (), "--soc SM8750"),
        ("model=SM8650", (), "does not specify a known SoC"),
        ("soc=SM1", (), "does not specify a known SoC"),
    ],
)
def test_any_considers_all_devices_with_the_wanted_soc(
    soc: str, names: tuple[str, ...], expected: list[str] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(word: str, *_: object) -> tuple[Device, DeviceFacts]:
        if word not in FOUND:
            raise UnfitError("missing")
        return Device(word, (), "/p"), FOUND[word]

    def list_names(bundle: Bundle) -> list[str]:
        choice = deploy.DeviceChoice(names, soc, None)
        rows = deploy.list_candidates(choice, bundle, Progress())
        assert all(facts is FOUND[device.name] for device, facts in rows)
        return [device.name for device, _ in rows]

    states = {name.removeprefix("adb:"): "device" for name in FOUND} | {"gone": "unauthorized"}
    monkeypatch.setattr(deploy, "list_phones", lambda: states)
    monkeypatch.setattr(deploy, "find_device", find)
    if isinstance(expected, str):
        with pytest.raises(QnnCiError, match=re.escape(expected)):
            list_names(make_bundle())
        return
    assert list_names(make_bundle()) == expected
    hosts = [name for name in dict.fromkeys(names or FOUND) if name in FOUND]
    assert list_names(make_bundle(Target.EMULATOR)) == hosts  # with whatever SoC


@pytest.mark.parametrize(
    ("states", "why", "fix"),
    [
        ({}, "adb lists no device", "connect a phone, or pass boards"),
        ({"a": "unauthorized"}, "adb:a: a is unauthorized", "accept this computer's key"),
        (
            {"a": "offline", "b": "no permissions"},
            "adb:a: a is offline; adb:b: ",
            "connect a phone",
        ),
    ],
)
def test_any_says_why_no_listed_phone_is_ready(
    states: dict[str, str], why: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "require_client", lambda name, _: name)
    for module in (connection, deploy):
        monkeypatch.setattr(module, "list_phones", lambda *_: states)
    choice = deploy.DeviceChoice((), "soc=SM8650", None)
    with pytest.raises(UnfitError, match="there is no usable device with SM8650") as caught:
        deploy.list_candidates(choice, make_bundle(), Progress())
    assert caught.value.why.startswith(why)
    assert caught.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("word", "place", "name", "ends", "place_on_device"),
    [
        ("adb:x", "", "adb:x", ("-s", "x", "shell", "-T"), "/data/local/tmp/qnn-ci"),
        ("adb:x", "/q", "adb:x", ("-s", "x", "shell", "-T"), "/q"),
        ("ssh:a", "", "ssh:a", ("--", "a"), "qnn-ci"),
        ("ssh:me@a:2", "/q", "ssh:me@a:2", ("-p", "2", "--", "me@a"), "/q"),
        ("ssh:[::1]:22", "", "ssh:[::1]:22", ("-p", "22", "--", "::1"), connection.BOARD_PLACE),
        ("ssh:me@[::1]", "", "ssh:me@[::1]", ("--", "me@::1"), connection.BOARD_PLACE),
        ("ssh:a:b", "", "ssh:a:b", ("--", "a:b"), connection.BOARD_PLACE),
    ],
)
def test_a_device_argument_becomes_the_command_line_of_adb_or_ssh(
    word: str,
    place: str,
    name: str,
    ends: tuple[str, ...],
    place_on_device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "require_client", lambda name, _: name)
    monkeypatch.setattr(connection, "choose_phone", lambda _, serial: serial or "only")
    assert open_device("adb").name == "adb:only"
    for wrong in ("usb:1", "ssh:", "ssh:-oProxyCommand=x", ""):
        with pytest.raises(UsageError, match="--device"):
            open_device(wrong)
    device = open_device(word, place)
    options = ("BatchMode=yes", "StrictHostKeyChecking=yes")
    options += ("ServerAliveInterval=10", "ServerAliveCountMax=6")
    first = (
        ("-T", *(text for option in options for text in ("-o", option))) if word[0] == "s" else ()
    )
    assert (device.name, device.place) == (name, place_on_device)
    assert device.client == (word[:3], *first, *ends)


def make_start() -> DeviceProgram:
    device = SimpleNamespace(name="adb:1", place="/p", ask=lambda *_, **__: b"")
    bundle = SimpleNamespace(target=Target.LINUX, runner="runner")
    lease: Any = SimpleNamespace(
        device=device,
        bundle=bundle,
        directory="/p/b",
        renew=lambda **_: None,
        starts=1,
        dialect=EXECUTORCH,
    )
    run = SimpleNamespace(iteration=1, warm_up=0, flags={})
    compiled = SimpleNamespace(outputs=[TensorInfo("float32", (2,))], sets=1)
    spec = SimpleNamespace(source=SimpleNamespace(run=run), slug="s")
    program: Any = SimpleNamespace(spec=spec, compiled=compiled, path=Path("program.pte"))
    return DeviceProgram(lease, program, 7.9)


def test_the_figures_of_a_start_include_heat_before_and_after_it() -> None:
    program = make_start()
    files = {BEFORE: b"zone a 1000\n", AFTER: b"zone b 2000\nstatus of_system 2\n", SPEED: b"4.5"}
    program.note_start({**files, MEMORY: b"2"})
    program.unequal = [2, 4]
    notes = program.finish()
    assert [fault.split(" on ")[0] for fault in notes.faults] == ["start 2", "start 4"]
    assert notes.device is not None
    assert (notes.run_ms, notes.device.peak_memory_bytes) == (4.5, 2048)
    assert notes.device.before == Heat(hottest_c=1, zone="a")
    assert notes.device.after == Heat(hottest_c=2, zone="b", status=2)


@pytest.mark.parametrize(
    ("unpacked", "message", "lacks"),
    [
        (ValueError("the archive is incomplete"), "archive of a run: the archive is inc", "adb:1"),
        (tarfile.ReadError("empty"), "adb:1 did not send the archive of a run: empty", "adb:1"),
        ((True, 137), "the runner exceeded 8 s and was stopped", ""),
        ((False, 137), "the runner exited with code 137", ""),
        ((False, 0), "output_0_0.raw", ""),
    ],
)
def test_a_device_run_without_outputs_states_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpacked: Any, message: str, lacks: str
) -> None:
    program = make_start()
    program.runner.name = "adb:1"  # type: ignore[misc]
    program.program.directory = tmp_path  # type: ignore[misc]

    def unpack(*_: Any) -> tuple[bool, int]:
        if isinstance(unpacked, Exception):
            raise unpacked
        unpacked_outputs: tuple[bool, int] = unpacked
        return unpacked_outputs

    monkeypatch.setattr(program, "unpack", unpack)
    with pytest.raises(RunError, match=message) as caught:
        program.run_once(1)
    assert caught.value.lacks == lacks
    if unpacked == (False, 0):
        (tmp_path / "outputs").mkdir(parents=True)
        (tmp_path / "outputs" / "output_0_0.raw").write_bytes(np.float32([1, 2]).tobytes())
        ((output,),) = program.run_once(1)
        assert output.tolist() == [1, 2]


# -- calls, with this computer as the device -------------------------------------------------------


@pytest.fixture
def local_device(tmp_path: Path) -> Device:
    return Device("ssh:here", ("sh", "-c"), str(tmp_path / "a place"))


@pytest.mark.parametrize(
    ("first", "calls"),
    [
        ("exit 0", 2),
        ("exit 1", 1),
        ("echo hello; exit 0", 1),
        ("echo the connection ended >&2; exit 0", 1),
    ],
)
def test_a_device_script_is_retried_only_if_it_certainly_did_not_start(
    tmp_path: Path, first: str, calls: int
) -> None:
    count = tmp_path / "count"
    client = f'echo >> {count}; test -e {count}.2 || {{ touch {count}.2; {first}; }}; sh -c "$0"'
    device = Device("adb:a", ("sh", "-c", client), "/p")
    if calls == 1:
        with pytest.raises(ToolError):
            device.call("cat", data=b"in")
    else:
        assert device.call("cat", data=b"in") == Answer(0, b"in", "")
    assert len(count.read_text()) == calls


def tell(call: Any) -> tuple[str, str, str]:
    with pytest.raises(QnnCiError) as caught:
        call()
    return caught.value.what, caught.value.why, caught.value.fix


def test_a_pushed_file_arrives_whole_and_is_sent_once(local_device: Device, tmp_path: Path) -> None:
    files = {name: tmp_path / f"my {name}" for name in ("a", "b", "c")}
    for name, path in files.items():
        path.write_text(f"bytes of {name}")
    digests = {name: hash_file(path) for name, path in files.items()}
    target = f"{local_device.place}/x y"
    assert local_device.push(target, files, digests) == 3 * len("bytes of a")
    assert local_device.list_digests(target) == digests
    Path(target, "b").write_text("other")
    Path(target, ".part.1").mkdir()
    assert local_device.push(target, files, digests) == len("bytes of b")
    assert {path.name: path.read_text() for path in Path(target).iterdir()} == {
        name: path.read_text() for name, path in files.items()
    }
    for name in ("a b", "$(a)", "$a", "a;b", "-rf", ".hidden", "../a", "a/b", "", "a\n"):
        with pytest.raises(UsageError, match="is not a valid file name"):
            local_device.push(f"{target}.new", {**files, name: files["a"]}, {**digests, name: "0"})
    assert not Path(f"{target}.new").exists()
    wrong = {**digests, "a": digests["b"]}
    message, why, fix = tell(lambda: local_device.push(target, files, wrong))
    assert "a did not arrive completely" in message
    assert "SHA-256" in why
    assert "again" in fix


def test_only_missing_files_are_sent_and_large_ones_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"there": 1, "a": LARGE_BYTES // 2, "b": LARGE_BYTES, "large": LARGE_BYTES + 1}
    for name, size in sizes.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    files = {name: tmp_path / name for name in sizes}
    answers = [Answer(0, b"", ""), Answer(0, b"", ""), Answer(1, b"", "the device's words")]
    times: list[float] = []
    monkeypatch.setattr(Device, "list_digests", lambda *_: {"there": "1", "a": "0"})
    monkeypatch.setattr(
        Device,
        "call",
        lambda *_, timeout_s, **__: times.append(timeout_s) or answers[len(times) - 1],
    )
    device = Device("adb:1", (), "/p")
    assert device.push("/d", files, dict.fromkeys(sizes, "1")) == sum(sizes.values()) - 1
    assert times == pytest.approx([140, 180], abs=0.01)  # each with its size's time
    del files["large"]
    with pytest.raises(ToolError, match="adb:1: a, b did not arrive") as caught:
        device.push("/d", files, dict.fromkeys(sizes, "1"))
    assert caught.value.why == "the device's words"


@pytest.mark.parametrize(
    ("files", "left", "message"),
    [
        ([], [], "a place was removed"),
        (
            ["bundles/0123456789abcdef/runner", "cases/x/log.txt", "running", "lease/held"],
            *([], "was removed"),
        ),
        (["new.host-1/held"], [], "was removed"),
        (
            ["bundles/0123456789abcdef/runner", "photo.jpg", "dir/a"],
            ["photo.jpg", "dir/a"],
            "except 2 files and directories",
        ),
        (["photo.jpg", "cases/mine"], ["photo.jpg", "cases/mine"], "nothing was removed"),
    ],
)
def test_cleaning_a_device_removes_only_files_of_this_project(
    tmp_path: Path, files: list[str], left: list[str], message: str
) -> None:
    place = tmp_path / "a place"
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("")
    try:
        text = deploy.clean_device(Device("ssh:here", ("sh", "-c"), str(place))).text
    except UsageError as error:
        text = error.what
    assert message in text
    assert {path for path in place.rglob("*") if path.is_file()} == {place / name for name in left}


def test_a_push_whose_first_run_began_but_lost_its_output_is_sent_again(tmp_path: Path) -> None:
    # As adb's client does when the link breaks: exit code 0 without output. The script has begun.
    client = f"""if [ ! -e '{tmp_path}/lost' ] && [ -n "$(echo "$1" | grep 'tar -x')" ]; then
        touch '{tmp_path}/lost'; sh -c "$1" > /dev/null 2>&1 < /dev/null; exit 0
    fi
    exec sh -c "$1" """
    device = Device("adb:a", ("sh", "-c", client, "sh"), str(tmp_path / "place"))
    file = tmp_path / "runner"
    file.write_bytes(b"the bytes")
    target = tmp_path / "place"
    assert device.push(str(target), {"runner": file}, {"runner": hash_file(file)}) == 9
    assert (tmp_path / "lost").exists()
    assert (target / "runner").read_bytes() == b"the bytes"
    assert device.list_digests(str(target)) == {"runner": hash_file(file)}
    assert [path.name for path in target.iterdir()] == ["runner"]


LOST = '[ -e "$LOST" ] && exec sleep 600; touch "$LOST"'


@pytest.mark.parametrize(
    ("client", "timeout_s", "message", "why", "fix"),
    [
        (
            "echo refused >&2; exit 255",
            *(600, "ssh:a cannot be reached", "refused"),
            "see whether this works: sh -c 'echo refused >&2; exit 255' true",
        ),
        (
            "echo 'Host key verification failed.' >&2; exit 255",
            *(600, "ssh:a cannot be reached", "Host key verification failed."),
            "connect once by hand, and compare the key's fingerprint with the device's: ssh ssh://a",
        ),
        ("exit 3", 600, "ssh:a cannot be reached", "sh exited with 3", ""),
        ("sleep 600", 0.05, "ssh:a did not answer in time", "", ""),
        ("echo one >&2; exec sleep 600", 0.3, "ssh:a did not answer in time", "", ""),
        (LOST, 0.3, "ssh:a did not answer in time", "", ""),
    ],
)
def test_a_device_that_does_not_answer_is_an_error_with_a_fix(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: str,
    timeout_s: float,
    message: str,
    why: str,
    fix: str,
) -> None:
    monkeypatch.setenv("LOST", str(tmp_path / "lost"))
    device = Device("ssh:a", ("sh", "-c", client), "/p")
    shown = tell(lambda: device.call("true", timeout_s=timeout_s))
    assert (shown[0], why in shown[1], fix in shown[2]) == (message, True, True)


def test_a_failing_device_command_or_a_missing_client_is_an_error_with_a_fix(
    local_device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tell(lambda: local_device.ask("false", timeout_s=600)) == (
        "ssh:here: a command on the device exited with code 1",
        "one of these commands failed: false",
        "",
    )
    full = "echo one >&2; echo 'x: No space left on device' >&2; exit 1"
    assert tell(lambda: local_device.call(full)) == (
        "ssh:here has no space left",
        "x: No space left on device",
        f"free space on the device, or remove {local_device.place} from it",
    )
    assert tell(lambda: local_device.ask("echo denied >&2; false; true"))[1] == "denied"
    monkeypatch.setenv("PATH", "/nowhere")
    assert tell(lambda: open_device("ssh:a")) == (
        "ssh is not on PATH",
        "it is the client that connects to the device",
        "install OpenSSH's client (Debian, Ubuntu: openssh-client)",
    )


@pytest.mark.parametrize(
    ("phones", "serial", "starts"),
    [
        ("", "", ("adb lists no phone", "listed: none", "connect a phone")),
        (
            "a device, b offline",
            "",
            ("adb lists 2 phones", "listed: a (", "pass --device adb:a or --device adb:b"),
        ),
        ("a unauthorized, b device", "a", ("a is unauthorized", "adb lists: a (", "accept this")),
        ("a authorizing", "", ("a is authorizing", "adb lists: a (authorizing)", "accept this")),
        ("a device", "b", ("b is missing", "adb lists: a (device)", "connect this phone")),
        ("a offline", "", ("a is offline", "adb lists: a (offline)", "reconnect the phone")),
        ("a no permissions (x)", "", ("a is no p", "adb lists: a (no perm", "install udev rules")),
    ],
)
def test_the_error_for_an_unusable_phone_lists_the_connected_phones(
    phones: str, serial: str, starts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dict(row.split(None, 1) for row in phones.split(", ") if row)
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    monkeypatch.setattr(connection, "list_phones", lambda _: rows)
    shown = tell(lambda: connection.choose_phone("adb", serial))
    assert all(line.startswith(start) for line, start in zip(shown, starts, strict=True)), shown


def test_every_phone_of_adb_devices_is_listed_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adb = tmp_path / "adb"
    listed = "printf 'List of\\na\\tdevice\\n\\nb\\toffline\\n'; echo ' no server' >&2"
    adb.write_text(f"#!/bin/sh\n{listed}\nsleep $LATE\nexit $CODE\n")
    adb.chmod(0o755)
    monkeypatch.setenv("CODE", "0")
    monkeypatch.setenv("LATE", "0")
    assert connection.list_phones(str(adb)) == {"a": "device", "b": "offline"}
    monkeypatch.setenv("CODE", "4")
    failed = tell(lambda: connection.list_phones(str(adb)))
    assert failed[:2] == ("adb devices exited with 4", "no server")
    monkeypatch.setenv("CODE", "0")
    monkeypatch.setenv("LATE", "600")
    monkeypatch.setattr(connection, "ANSWER_S", 0.1)
    assert "did not end" in tell(lambda: connection.list_phones(str(adb)))[0]
    monkeypatch.setenv("PATH", "/nowhere")
    shown = tell(connection.list_phones)
    assert (shown[0], shown[2]) == ("adb is not on PATH", connection.ADB_FIX)


def test_a_lease_is_released_even_if_its_block_raises(local_device: Device) -> None:
    def make(device: Device, owner: str) -> DeviceRunner:
        bundle: Any = None
        return DeviceRunner(device, bundle, "/d", Progress(), owner=owner)

    mine, other_runner = make(local_device, "me"), make(local_device, "other")
    with pytest.raises(RuntimeError), runner.lease_first([mine]):
        raise RuntimeError
    assert other_runner.take() is None

    class Lost(Device):
        def call(self, script: str, **_: Any) -> Answer:
            if "mv lease old" in script:
                raise errors.pop()
            return Answer(0, b"", "")

    errors: list[QnnCiError] = [ToolError("gone"), StoreError("full")]
    for _ in range(2):  # the lease expires later
        with runner.lease_first([make(Lost("adb:1", (), "/p"), "me")]):
            pass
    assert errors == []
