"""Drive Debian's Chromium over the DevTools protocol, for tests of the pages.

``Browser`` starts one process with an empty profile; each ``Tab`` is a page of its own with real input events. A tab
collects what a page must not do: errors, refusals of its policy, and requests to another server.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import websocket

WAIT_S = 30.0
KEYS = {
    "Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "ArrowLeft": (37, ""), "ArrowUp": (38, ""),
    "ArrowRight": (39, ""), "ArrowDown": (40, ""),
}  # fmt: skip
"""The virtual key codes of the keys of a walk, and the text that they make."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-port=0", "--remote-allow-origins=*", "--window-size=1400,900",
)  # fmt: skip


class Browser:
    """A Chromium process. ``close`` ends it and everything that it started; so does the end of the test process."""

    def __init__(self, profile: Path, *more: str) -> None:
        program = shutil.which("chromium")
        assert program is not None
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", program, *FLAGS, *more, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
        port_file = profile / "DevToolsActivePort"
        until(lambda: port_file.exists() and len(port_file.read_text().splitlines()) == 2)
        port, path = port_file.read_text().splitlines()
        self._connection = Connection(f"ws://127.0.0.1:{port}{path}")
        self._address = f"ws://127.0.0.1:{port}/devtools/page/"
        self.tabs: list[Tab] = []

    def tab(self, url: str = "about:blank", width: int = 1400, height: int = 900) -> Tab:
        target = self._connection.call("Target.createTarget", url="about:blank", newWindow=True)
        tab = Tab(Connection(f"{self._address}{target['targetId']}"), width, height)
        self.tabs.append(tab)
        tab.open(url)
        return tab

    def close(self) -> None:
        self._connection.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Connection:
    """Calls and events of one target."""

    def __init__(self, url: str) -> None:
        self._socket = websocket.create_connection(url, timeout=WAIT_S, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def close(self) -> None:
        self._socket.close()


class Tab:
    def __init__(self, connection: Connection, width: int, height: int) -> None:
        self._connection = connection
        self.call = connection.call
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.until(f"innerWidth === {width} && innerHeight === {height}")

    def open(self, url: str) -> None:
        """Leave the present document for another one, and wait until that is loaded."""
        loader = self.call("Page.navigate", url=url)["loaderId"]
        until(lambda: self.call("Page.getFrameTree")["frameTree"]["frame"]["loaderId"] == loader, what=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, its result."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str, timeout_s: float = WAIT_S) -> Any:
        """Wait until the expression is true. Returns its value."""
        return until(lambda: self.value(expression), timeout_s, expression)

    def shows(self, selector: str, text: str, timeout_s: float = WAIT_S) -> str:
        """Wait until an element shows a text that comes from a server or another process. Returns all that it shows."""
        place, wanted = json.dumps(selector), json.dumps(text)
        shown: str = self.until(
            f"((shown) => shown?.includes({wanted}) && shown)(document.querySelector({place})?.innerText)",
            timeout_s,
        )
        return shown

    def text(self, selector: str) -> str:
        """The text that an element shows now."""
        found: str = self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return found

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def click_on(self, selector: str, text: str = "") -> None:
        """Click in the middle of the first element with this selector that contains the text."""
        place = self.until(
            f"""(() => {{
                const wanted = {json.dumps(text)};
                const found = [...document.querySelectorAll({json.dumps(selector)})]
                    .find((element) => element.textContent.includes(wanted) && element.offsetParent);
                if (!found) return null;
                found.scrollIntoView({{ block: "nearest" }});
                const box = found.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        self.click(*place)

    def key(self, key: str, text: str = "", shift: bool = False) -> None:
        modifiers = 8 if shift else 0
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, modifiers=modifiers)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers)

    def press(self, key: str, shift: bool = False) -> None:
        """A key as a keyboard sends it, so that Chromium moves the focus and follows links by it."""
        code, text = KEYS[key]
        more = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def drag(self, x: float, y: float, dx: float, dy: float, steps: int = 5) -> None:
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for step in range(1, steps + 1):
            self.call(
                "Input.dispatchMouseEvent",
                type="mouseMoved", x=x + dx * step / steps, y=y + dy * step / steps, button="left", buttons=1,
            )  # fmt: skip
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x + dx, y=y + dy, button="left")

    def screenshot(self) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def colors(self, selector: str = "canvas") -> dict[str, int]:
        """How many pixels of a canvas have each color, as ``r,g,b``."""
        counted: dict[str, int] = self.value(
            f"""(() => {{
                const canvas = document.querySelector({json.dumps(selector)});
                const {{ data }} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
                const counts = {{}};
                for (let i = 0; i < data.length; i += 4) {{
                    const color = `${{data[i]}},${{data[i + 1]}},${{data[i + 2]}}`;
                    counts[color] = (counts[color] ?? 0) + 1;
                }}
                return counts;
            }})()"""
        )
        return counted

    def emulate(self, **features: str) -> None:
        """Media features, such as ``prefers_color_scheme="dark"``, or ``media="print"``."""
        media = features.pop("media", "")
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=listed)

    def complaints(self) -> list[str]:
        """Errors of scripts, messages of the log (refusals of the policy are there), and requests elsewhere."""
        self.value("1")
        found = []
        for event in self._connection.events:
            params = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(str(params["exceptionDetails"]))
                case "Log.entryAdded" if params["entry"]["level"] == "error":
                    found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
                case "Network.requestWillBeSent":
                    url = params["request"]["url"]
                    if not url.startswith(
                        (
                            "http://127.0.0.1:",
                            "https://127.0.0.1:",
                            "https://localhost:",
                            "file:",
                            "data:",
                            "blob:",
                        )
                    ):
                        found.append(f"a request to {url}")
        return found

    def close(self) -> None:
        with suppress(Exception):
            self.call("Page.close")
        self._connection.close()


def until(true: Callable[[], Any], timeout_s: float = WAIT_S, what: str = "") -> Any:
    """Wait until ``true`` returns something true, and return it."""
    deadline = time.monotonic() + timeout_s
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.03)
    return value
