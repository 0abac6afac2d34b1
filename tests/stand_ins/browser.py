"""A headless browser that a test clicks through: Chromium's DevTools protocol over a pipe.

https://chromedevtools.github.io/devtools-protocol/: messages are JSON, each ended by a NUL byte,
to file descriptor 3 of the browser and from its descriptor 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.programs import NOT_INSTALLED, find_program

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)
WAIT_S = 60.0
# Where an element is, scrolled into view; null if it is not shown.
FIND = """(() => {
  const one = %s;
  one.scrollIntoView({block: "center"});
  const box = one.getBoundingClientRect();
  return box.width && box.height ? [box.x + box.width / 2, box.y + box.height / 2] : null;
})()"""


class Browser:
    """A page in a browser. ``console`` holds what its console and the browser's log said."""

    def __init__(self, to: int, answers: int) -> None:
        self.to, self.answers = to, answers
        self.number, self.session, self.rest = 0, "", b""
        self.console: list[str] = []
        self.events: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **words: Any) -> dict[str, Any]:
        """Return what the browser answers to a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": words}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.read()).get("id") != self.number:
            self.note(answer)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def read(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            assert select.select([self.answers], [], [], WAIT_S)[0], "the browser says nothing"
            data = os.read(self.answers, 1 << 20)
            assert data, "the browser ended"
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def note(self, event: dict[str, Any]) -> None:
        method, words = event.get("method", ""), event.get("params", {})
        self.events.append(method)
        if method == "Log.entryAdded":
            self.console.append(words["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(words["exceptionDetails"]))

    def open(self, page: Path, fragment: str = "") -> None:
        """Open a page and wait until it has loaded; anew, if it is the one that is shown."""
        for url in ("about:blank", f"{page.as_uri()}{fragment}"):
            self.events.clear()
            self.send("Page.navigate", url=url)
            while "Page.loadEventFired" not in self.events:
                self.note(self.read())

    def ask(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        words = {"returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", expression=expression, **words)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click on the first element of a CSS selector, as a mouse does."""
        place = self.ask(FIND % f"document.querySelector({json.dumps(selector)})")
        assert place, f"{selector} is not shown"
        for kind in ("mousePressed", "mouseReleased"):
            words = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, **words)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.send("Input.insertText", text=text)

    def resize(self, width: int, height: int = 800) -> None:
        """Give the page so many CSS pixels."""
        words = {"deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **words)

    def prefer(self, scheme: str) -> None:
        """Prefer ``dark`` or ``light``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def allow_scripts(self, *, allowed: bool) -> None:
        """Whether pages that are opened from now on may run scripts of theirs."""
        self.send("Emulation.setScriptExecutionDisabled", value=not allowed)

    def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot")["data"])


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with a new profile; skips the test, with the reason, where there is none."""
    program = next(filter(None, map(find_program, BROWSERS)), None)
    if program is None:
        pytest.skip(f"{NOT_INSTALLED}{' or '.join(BROWSERS)}")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    shell = 'in=$1 out=$2; shift 2; eval "exec \\"\\$@\\" 3<&$in 4>&$out"'
    argv = [program, *OPTIONS, f"--user-data-dir={profile}"]
    with subprocess.Popen(
        ["bash", "-c", shell, "sh", str(theirs_in), str(theirs_out), *argv],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
