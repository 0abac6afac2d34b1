"""From an empty machine to a verdict by the ``shell`` blocks of docs/guides/air-gapped.md.

A network namespace has two mirrors on loopback; every other address is refused.

It downloads and installs some hundred MB, so it runs where QNN_CI_TEST_ISOLATED is set.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "guides" / "air-gapped.md").read_text("utf-8")
PREPARING, ISOLATED = re.findall(r"```shell\n(.*?)```", PAGE, re.DOTALL)
NAMESPACES = (["unshare", "-rn"], ["sudo", "-n", "unshare", "-n"])
INSIDE = """
ip link set lo up
if python3 -c "import socket; socket.create_connection(('192.0.2.1', 443), 5)" 2>/dev/null; then
    echo "there is a network" && exit 99
fi
python3 -m http.server --bind 127.0.0.1 --directory served 8765 >server.log 2>&1 &
trap "kill $!" EXIT
until python3 -c "import socket; socket.create_connection(('127.0.0.1', 8765))" 2>/dev/null; do
    :
done
mkdir home
export HOME="$PWD/home" PIP_CONFIG_FILE=/dev/null
export PIP_INDEX_URL=http://127.0.0.1:8765/simple QNN_CI_MIRROR=http://127.0.0.1:8765/mirror
"""


def find_namespace() -> list[str]:
    """How a command starts that has no network; empty if that cannot be had here."""
    tried = (
        [*words, "ip", "link", "set", "lo", "up"]
        for words in NAMESPACES
        if shutil.which(words[0]) and shutil.which("ip")
    )
    works = (
        namespace
        for namespace in tried
        if subprocess.run(namespace, check=False, capture_output=True).returncode == 0
    )
    return next(works, [])[:-5]


@pytest.mark.skipif(
    not os.environ.get("QNN_CI_TEST_ISOLATED"), reason="QNN_CI_TEST_ISOLATED is not set"
)
def test_a_machine_without_a_network_judges_models_from_a_mirror(tmp_path: Path) -> None:
    """The machine has wheels in the layout of an index, and the files that ``fetch --to`` wrote."""
    namespace = find_namespace()
    if not namespace:
        pytest.skip("no command can be started without a network here")
    served = tmp_path / "served"
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}
    lines = PREPARING.replace("--wheel-dir wheels", f"--wheel-dir {tmp_path}/wheels")
    lines = lines.replace("qnn-ci fetch", "python3 -m ci fetch").replace(
        "mirror\n", f"{served}/mirror\n"
    )
    subprocess.run(["sh", "-ec", lines], cwd=ROOT, env=variables, check=True)
    for wheel in (tmp_path / "wheels").iterdir():
        place = served / "simple" / canonicalize_name(parse_wheel_filename(wheel.name)[0])
        place.mkdir(parents=True, exist_ok=True)
        wheel.rename(place / wheel.name)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "QNN_CI_"))
    }
    argv = [*namespace, "env", f"PATH={programs}", "sh", "-ec", INSIDE + ISOLATED]
    ended = subprocess.run(
        argv, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert ended.stdout.count("passed: 1 passed, 0 failed") == 2
    reports = {path.parent.name for path in tmp_path.glob("reports/*/report.json")}
    assert reports == {"test_emulator", "test_onnx"}
