"""Take the picture of the report page that the README shows, in a browser without a window.

Run the suite's two models next to the one that fails, then this module::

    ./nox -s test_emulator -- --model tests/realistic/lost.py:positions --model mlp \
        --model resnet --scheme fp16 --scheme 8a8w
    python -m tests.documented.picture
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

from tests.documented.pages import ROOT
from tests.stand_ins.browser import open_browser

REPORT = ROOT / "reports" / "test_emulator" / "index.html"
PICTURE = ROOT / "docs" / "images" / "report.webp"
LARGEST_BYTES = 60_000  # a README loads it at once
# The two lines below the title name the commit and the machine.
HIDE_THE_MACHINE = "document.querySelectorAll('header > p').forEach(line => line.remove())"


def take_picture(page: Path) -> bytes:
    """Return the top of a page as WebP. Skips, as a test, if there is no browser on PATH."""
    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        browser.resize(900, 720)
        browser.prefer("light")
        browser.open(page)
        browser.ask(HIDE_THE_MACHINE)
        shot = browser.send("Page.captureScreenshot", format="webp", quality=60)
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    picture = take_picture(REPORT)
    if len(picture) > LARGEST_BYTES:
        raise SystemExit(f"the picture has {len(picture)} bytes, {LARGEST_BYTES} are allowed")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(picture)
