"""A headless Chromium that tests speak to over its pipe: no driver and no package is needed for that."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def program() -> str | None:
    """Returns the path of a browser, if there is one."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab of a browser."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = os.fdopen(to, "wb", buffering=0), os.fdopen(of, "rb", buffering=0)
        self._rest, self._number, self._session = b"", 0, None
        self._context: str | None = None
        #: Uncaught errors of the page, and what the browser complained about.
        self.said: list[str] = []

    def close(self) -> None:
        """Closes the pipe, which ends the browser."""
        self._to.close()
        self._of.close()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Calls a method of the DevTools protocol, and returns its result."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])
            if answer.get("sessionId") == self._session:
                self._hear(answer.get("method"), answer.get("params", {}))

    def _hear(self, method: str | None, event: dict[str, Any]) -> None:
        complains = method == "Log.entryAdded" and event["entry"]["level"] in ("warning", "error")
        if complains or method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(event))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._of.read(1 << 16)
            assert more, "the browser ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str, *, scheme: str = "light", width: int = 1280, height: int = 1000) -> None:
        """Opens a page in a new tab without a history."""
        self._session = None
        if self._context:
            self.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.said.clear()
        for domain in ("Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        # A picture has no bar to scroll with, so the page leaves no room for one either.
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Page.navigate", url=url)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Evaluates a script in the page, and returns its value."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 30) -> Any:
        """Waits until a script's value is true, and returns it."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, (script, self.said, self.run("document.body.innerText"))
            time.sleep(0.05)
        return value

    def press(self, key: str) -> None:
        """Presses a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: pathlib.Path) -> None:
        """Writes a picture of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Starts a browser, and ends it with everything that it started."""
    theirs, to = os.pipe()
    of, out = os.pipe()
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        # It reads from descriptor 3 and writes to 4.
        shell = f'exec 3<&{theirs} 4>&{out}; exec "$0" "$@"'
        arguments = [path, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", shell, *arguments],
            pass_fds=(theirs, out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs)
        os.close(out)
        tab = Browser(to, of)
        try:
            yield tab
        finally:
            tab.close()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            # Its helpers may still write into their directory for a moment.
            shutil.rmtree(profile, ignore_errors=True)
            pathlib.Path(profile).mkdir(exist_ok=True)
