"""A headless Chromium, driven by its own protocol over two pipes: nothing else is needed."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60


def find():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One process with one tab. Use it in a `with` statement."""

    def __init__(self, path):
        self.profile = tempfile.TemporaryDirectory(prefix="shiplap-pictures-",
                                                   ignore_cleanup_errors=True)
        commands, self.to_browser = os.pipe()
        self.from_browser, answers = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu",
                 "--hide-scrollbars", "--disable-background-networking", "--disable-extensions",
                 "--disable-dev-shm-usage", f"--user-data-dir={self.profile.name}"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # which Chromium does not offer to root
        # It reads file descriptor 3 and writes 4.
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', path, *flags],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.count = 0
        self.session = None
        self.unread = b""
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(timeout=10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        self.profile.cleanup()

    def read(self, deadline):
        """The next message."""
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.from_browser], [], [],
                                        max(0, deadline - time.monotonic()))
            chunk = os.read(self.from_browser, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError("the browser has ended" if ready else
                                   "the browser does not answer")
            self.unread += chunk
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **arguments):
        """What the browser answers; events that come first are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": arguments}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url, width, height, scheme, media="screen"):
        """Opens a page in a window of that size; what it complained about before is forgotten."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", media=media,
                  features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read(deadline))

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def point(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self):
        """Errors and warnings of the page since it was opened."""
        found = []
        for event in self.events:
            details = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(details["exceptionDetails"].get("text", "exception"))
            elif event.get("method") == "Runtime.consoleAPICalled" and details["type"] == "error":
                found.append(str(details["args"]))
            elif event.get("method") == "Log.entryAdded" and details["entry"]["level"] == "error":
                found.append(details["entry"]["text"])
        return found

    def shot(self):
        """The whole page as PNG, in base64."""
        return self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
