"""A number in a user's file that nothing can have is refused where the file is read."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from ci.__main__ import main
from ci.cases.baselines import Baselines
from ci.latency.calibrate import find_own, read_own
from ci.latency.estimate import Line, Lines
from provisioning.errors import ExitCode, ManifestError
from provisioning.manifest.reader import read_toml

NET = "[models.net]\npath = 'net.py:net'\n"
METRIC = f"{NET}[models.net.metric]\nfunction = 'net.py:net'\nlabels = 'net.py:net'\n"
LIMITS = (
    *("min_sqnr_db", "min_sqnr_db_all", "min_sqnr_db_quantized", "max_above_noise_db"),
    *("min_cosine", "min_cosine_quantized", "max_abs", "min_equal", "min_equal_quantized"),
)
POLICIES = [
    "[reference]\nmin_rms = {}\nmin_spread = 0.1\n",
    "[reference]\nmin_rms = 0.1\nmin_spread = {}\n",
    "memory_bytes = {}\n",
    *(f"[budget]\n{name} = {{}}\n" for name in ("program_bytes", "cycles", "ms")),
    "[budget.operators]\nadd = {}\n",
    *(f"[schemes.fp16]\n{name} = {{}}\n" for name in LIMITS),
    "[schemes.fp16.outputs.0]\nmax_abs = {}\n",
    f"{NET}memory_bytes = {{}}\n",
    f"{NET}shapes = {{{{x = [1, {{}}]}}}}\n",
    f"{METRIC}max_drop = {{}}\n",
    f"{METRIC}max_drop = 1\nmin = {{}}\n",
    f"{NET}limits.fp16.max_abs = {{}}\n",
    f"{NET}budget.ms = {{}}\n",
    f"{NET}run.iteration = {{}}\n",
]
IMPOSSIBLE = ("inf", "-inf", "nan", "1e400", "1" + "0" * 400, "-1e300")


@pytest.mark.parametrize("form", POLICIES)
def test_an_impossible_number_in_a_policy_is_a_usage_error(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").touch()
    for value in IMPOSSIBLE if "min = " not in form else IMPOSSIBLE[:-1]:
        Path("qnn.toml").write_text('extends = "default"\n' + form.format(value))
        code = main(["test-emulator", "--list", "--policy", "qnn.toml"])
        shown = capsys.readouterr().err
        assert (code, "qnn.toml" in shown) == (ExitCode.USAGE, True), (value, shown)


@pytest.mark.parametrize(
    "words", ["deploy --wait", "sign lib.so --timeout", "update zig --cooldown", "fuzz --minutes"]
)
def test_an_impossible_number_of_an_option_is_a_usage_error(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, option = words.split()
    for value in IMPOSSIBLE:
        code = main([*words.split()[:-1], f"{option}={value}"])
        shown = capsys.readouterr().err
        assert (code, option in shown) == (ExitCode.USAGE, True), (value, shown)


@pytest.mark.parametrize("key", ["sqnr_db", "sqnr_db_quantized"])
def test_an_impossible_number_in_a_baseline_is_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "baselines.toml"
    for value in ("9.5", *IMPOSSIBLE):
        numbers = {"sqnr_db": "1", key: value}
        rows = "\n".join(f"{name} = {number}" for name, number in numbers.items())
        path.write_text(f'[cases."net fp16 SM8650"]\n{rows}\n')
        with nullcontext() if value == "9.5" else pytest.raises(ManifestError):
            read_toml(path.name, Baselines, path.parent)


LINE = Line(
    device="D", precision="float", soc="SM8650", base_ms=0.1, factor=2.0, hmx_factor=0.1, low=0.9,
    high=1.1, median_error=0.1, worst_error=0.2, order=0.9, least_ms=1.0, most_ms=9.0, models=(),
)  # fmt: skip


NUMBERS = [key for key, value in msgspec.structs.asdict(LINE).items() if isinstance(value, float)]


@pytest.mark.parametrize("key", NUMBERS)
def test_an_impossible_number_in_a_latency_line_is_refused(key: str, tmp_path: Path) -> None:
    policy = tmp_path / "qnn.toml"
    lines = msgspec.to_builtins(Lines(source="s", qnn="", lines=(LINE,)))
    path = find_own(policy)
    path.write_text(msgspec.json.encode(lines).decode())
    assert read_own(policy) == (LINE,)
    for value in ("-1", "1e300", "1e400", "1" + "0" * 400):
        lines["lines"][0][key] = 12345
        text = msgspec.json.encode(lines).decode().replace("12345", value)
        path.write_text(text)
        with pytest.raises(ManifestError):
            read_own(policy)
