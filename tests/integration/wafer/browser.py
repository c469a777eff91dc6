"""A headless Chromium driven through its debugging pipe: what a page shows, asks for and complains of."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,2400",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One tab. `complaints` are console errors, exceptions and broken policies; `requests` the addresses asked for."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, os.fdopen(answers, "rb")
        self._waiting, self._last, self._session = b"", 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, page: Path) -> None:
        """Load a page and wait until its script has drawn it."""
        self.complaints.clear()
        self.requests.clear()
        self.send("Page.navigate", url=page.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
        assert self.evaluate("document.documentElement.dataset.drawn") == "yes", self.complaints

    def evaluate(self, expression: str) -> Any:
        """The JSON value of an expression of JavaScript in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def point_at(self, selector: str, index: int = 0, click: bool = False) -> None:
        x, y = self.evaluate(
            f"(async () => {{ const e = document.querySelectorAll({json.dumps(selector)})[{index}];"
            " e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);"  # until it has scrolled
            " const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        """The next answer or event; events that tell of faults or requests are kept."""
        while b"\0" not in self._waiting:
            read = self._answers.read1()
            assert read, "the browser ended"
            self._waiting += read
        line, _, self._waiting = self._waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.complaints.append(str(parameters))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
        return message


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with a profile of its own; it reads commands from descriptor 3 and answers on 4."""
    assert CHROMIUM
    flags = [*FLAGS, f"--user-data-dir={profile}"]
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{commands_out} 4>&{answers_in}', "bash", CHROMIUM, *flags],
        pass_fds=(commands_out, answers_in),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_out)
    os.close(answers_in)
    try:
        yield Browser(commands_in, answers_out)
    finally:
        os.close(commands_in)  # at which it ends
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
