"""A headless Chromium for tests, driven through ChromeDriver (W3C WebDriver, without a package)."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
DRIVER = shutil.which("chromedriver")
needs_driver = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Chromium and ChromeDriver"
)
# The key under which WebDriver states an element.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def dumped(address: str, folder: Path) -> str:
    """Return a page as Chromium leaves it, without network; its profile lies in `folder`."""
    how = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]
    profile = f"--user-data-dir={(folder / 'profile').absolute()}"
    command = [str(CHROMIUM), *how, profile, "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


class Browser:
    """One window with a touch screen; downloads go to the folder `downloads`."""

    def __init__(self, port: int, downloads: Path, width: int, height: int) -> None:
        self.url = f"http://127.0.0.1:{port}/session"
        options = {
            "binary": CHROMIUM,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu"],
            "mobileEmulation": {"deviceMetrics": {"width": width, "height": height}},
            "prefs": {"download.default_directory": str(downloads.absolute())},
        }
        found = self("", capabilities={"alwaysMatch": {"goog:chromeOptions": options}})
        self.url += f"/{found['sessionId']}"

    def __call__(self, path: str, method: str = "POST", **body: Any) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        request = Request(self.url + path, data, headers, method=method)
        with urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def open(self, page: Path) -> None:
        self("/url", url=page.absolute().as_uri())

    def script(self, text: str, *arguments: Any) -> Any:
        """Run JavaScript in the page; return its result, of which a promise is awaited."""
        return self("/execute/sync", script=text, args=[*arguments])

    def until(self, text: str) -> None:
        """Wait until a JavaScript expression is true, for at most twenty seconds."""
        waited = """
            return new Promise((done, failed) => {
              const end = Date.now() + 20_000;
              const look = () => (%s) ? done(true) : Date.now() > end
                ? failed(new Error("waited in vain")) : setTimeout(look, 20);
              look();
            });"""
        self.script(waited % text)

    def find(self, selector: str) -> str:
        found = self("/element", using="css selector", value=selector)
        return str(found[ELEMENT])

    def spoken(self, selector: str) -> tuple[str, str]:
        """Return the role and the name of an element, as a screen reader gets them."""
        place = f"/element/{self.find(selector)}/computed"
        return self(f"{place}role", "GET"), self(f"{place}label", "GET")

    def press(self, *keys: str) -> None:
        each = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self("/actions", actions=[{"type": "key", "id": "keyboard", "actions": each}])

    def drag(self, *selectors: str) -> None:
        """Touch the first element, and move the finger over the others; one alone is a tap."""
        moves = [
            {"type": "pointerMove", "origin": {ELEMENT: self.find(each)}, "x": 0, "y": 0}
            for each in selectors
        ]
        steps = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp"}]
        touch = {"pointerType": "touch"}
        finger = {"type": "pointer", "id": "finger", "parameters": touch, "actions": steps}
        self("/actions", actions=[finger])


@contextmanager
def browser(downloads: Path, width: int = 1366, height: int = 680) -> Iterator[Browser]:
    """Open a browser, and close it at the end of the block."""
    command = [str(DRIVER), "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        ports = (re.search(r"successfully on port (\d+)", line) for line in driver.stdout)
        try:
            opened = Browser(int(next(filter(None, ports))[1]), downloads, width, height)
            try:
                yield opened
            finally:
                opened("", "DELETE")  # which closes the window
        finally:
            driver.terminate()
