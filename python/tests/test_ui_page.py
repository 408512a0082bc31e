"""The page of a running server in a headless Chromium: content, keyboard, colours, a token, 1,000 ranks."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import bowstring
import pytest
from browser import Browser, browser, program
from conftest import ROOT, package_environment

PAGE = (ROOT / "src" / "flight" / "server" / "ops" / "page.html").read_bytes()
CAUSES = ["store", "cache", "decode", "transform", "batch", "queue", "wire", "consumer"]
TOKEN = "correct-horse-battery"
ADDRESSES = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
#: Milliseconds of script for one drawing.
FRAME = 60


def shares(draw: random.Random) -> list[float]:
    """Returns eight shares that sum to 100."""
    weights = [draw.random() for _ in CAUSES]
    parts = [int(1000 * weight / sum(weights)) for weight in weights]
    parts[0] += 1000 - sum(parts)
    return [part / 10 for part in parts]


def snapshot(ranks: int, tick: int) -> dict[str, Any]:
    """Returns a snapshot of a server with so many ranks."""
    draw = random.Random(tick)
    steps, step = 1200, 100 + tick
    rank = [
        {
            "plan": 0,
            "dataset": "<img src=x onerror=alert(1)>",
            "epoch": 2,
            "rank": number,
            "step": step - (90 if number == 7 else number % 3),
            "lag": 90 if number == 7 else number % 3,
            "gang": "train",
            "generation": 4,
            "local": number % 2 == 0,
            "doing": CAUSES[number % 8],
            "seconds": 0.25,
            "shares": shares(draw),
            "rows_per_second": 100.0,
            "rows": 3200,
        }
        for number in range(ranks)
    ]
    first = [cell * steps // 240 for cell in range(240)]
    strip = {"row_groups": 20480, "first": first, "last": [min(steps - 1, begin + 40) for begin in first]}
    plan = {"dataset": "photos", "epoch": 2, "world": ranks, "steps": steps, "rows": 1281167, "lanes": 16}
    waits = {"kind": "barrier", "round": 13, "arrived": ranks - 1, "missing": [7]}
    gang = {"gang": "train", "phase": "running", "generation": 4, "world_size": ranks, "present": ranks, "missing": []}
    origin = {"address": "s3://bucket/", "requests": 9, "failures": 3, "bytes": 1, "in_flight": 16, "lately": 800}
    times = {"mean_seconds": 0.21, "median_seconds": 0.13, "p99_seconds": 2.1}
    error = {"kind": "store", "call": "DoGet", "dataset": "photos", "rank": 3, "times": 4, "first": 1.0, "last": 2.0}
    cache = {"hits": 9, "hit_bytes": 3 << 30, "shared": 0, "shared_bytes": 0, "misses": 1, "origin_bytes": 1 << 30}
    counts = {
        "peer_hits": 2,
        "peer_bytes": 1 << 30,
        "kept": 5,
        "refused": 1,
        "evicted": 7,
        "damaged": 0,
        "failures": 0,
        "bypassed": 0,
    }
    sentence = "Ranks wait for data 63.1 % of their time, most of it for the store (31.0 %)."
    return {
        "schema": 1,
        "version": "0.1.0",
        "phase": "ready",
        "time": time.time(),
        "uptime_seconds": 7300.0,
        "named": True,
        "causes": CAUSES,
        "shares": shares(draw),
        "bottleneck": {"cause": "store", "waited": 63.1, "sentence": sentence, "advice": "a nearer store"},
        "datasets": [{"name": "photos", "streams": ranks, "rows_per_second": 1234567.0, "bytes_per_second": 3.2e9}],
        "plans": [{**plan, "ahead": step, "behind": step - 90, "strip": strip}],
        "ranks": rank,
        "ranks_left_off": 0,
        "gangs": [{**gang, "acknowledged": {"epoch": 2, "step": 9}, "why": "", "rounds": 12, "waits": waits}],
        "cache": {**cache, **counts},
        "memory": {"used": 1 << 30, "budget": 4 << 30, "written": 0},
        "origins": [{**origin, **times, "hedged": 7, "hedges_won": 5}],
        "errors": [error],
        "row_groups_decoded": 12345,
        "rows_decoded": 99,
    }


def digest(tag: bytes) -> str:
    """Returns the digest of the page's only element of a kind, as the server computes it."""
    content = re.search(b"<%b>(.*?)</%b>" % (tag, tag), PAGE, re.DOTALL)
    assert content is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(content[1]).digest()).decode()}'"


class Simulated(http.server.BaseHTTPRequestHandler):
    """Serves the page with the server's policy, and ten snapshots a second."""

    ranks = 8
    token: str | None = None
    #: Events after which the connection ends.
    events = 1 << 30

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        """Answers a request."""
        if self.path == "/ui":
            policy = f"script-src {digest(b'script')}; style-src {digest(b'style')}; connect-src 'self'; img-src data:"
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-security-policy", f"default-src 'none'; {policy}; form-action 'none'")
            self.end_headers()
            self.wfile.write(PAGE)
        elif self.path != "/ui/events":
            self.send_error(404)
        elif self.token and self.headers.get("authorization") != f"Bearer {self.token}":
            self.send_error(401)
        else:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            try:
                for tick in range(self.events):
                    self.wfile.write(b"data: " + json.dumps(snapshot(self.ranks, tick)).encode() + b"\n\n")
                    time.sleep(0.1)
            except OSError:
                # The page is gone.
                return


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    """A browser."""
    path = program()
    if path is None:
        pytest.skip("no Chromium on PATH, nor in CHROMIUM")
    with browser(path) as found:
        yield found


class Site:
    """Simulated servers of one test."""

    def __init__(self) -> None:
        self.servers: list[http.server.ThreadingHTTPServer] = []

    def __call__(self, **settings: object) -> str:
        """Starts one, and returns the address of its page."""
        kind = type("Simulated", (Simulated,), settings)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/ui"


@pytest.fixture
def site() -> Iterator[Site]:
    """Starts simulated servers, and ends them."""
    started = Site()
    yield started
    for server in started.servers:
        server.shutdown()
        server.server_close()


def frames(tab: Browser, least: int) -> float:
    """Waits for so many drawings; returns the milliseconds of the quickest of seven, when nothing else had the processor."""
    times = []
    for drawing in range(least, least + 7):
        times.append(tab.wait(f"+document.body.dataset.frames >= {drawing} && +document.body.dataset.milliseconds"))
    return min(times)


def kept(tab: Browser, name: str) -> None:
    """Keeps a picture for a person to look at, if a directory is named."""
    directory = os.environ.get("PAGE_PICTURES")
    if directory:
        tab.picture(pathlib.Path(directory) / f"{name}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("ranks", [1, 8, 1000])
def test_it_shows_ranks_quickly(tab: Browser, site: Site, ranks: int, scheme: str) -> None:
    tab.open(site(ranks=ranks), scheme=scheme)
    took = frames(tab, 3)
    assert took < FRAME, f"{took} ms for {ranks} ranks"
    kept(tab, f"ui-{ranks}-{scheme}")
    text = tab.run("document.body.innerText")
    for part in (
        "Ranks wait for data 63.1 % of their time, most of it for the store (31.0 %).",
        "A nearer store.",
        f"{ranks:,} open stream{'s'[: ranks - 1]}",
        "20,480 row groups in 16 lanes",
        "s3://bucket/",
        "1.0 GiB of 4.0 GiB in flight (25 %)",
        "3.0 GiB from the cache (60 %)",
        "1.0 GiB from other hosts",
        f"{ranks:,} of {ranks:,}",
        "barrier 13",
        "DoGet",
    ):
        assert part in text, part
    assert tab.run("document.getElementById('ranks').rows.length") == min(ranks, 32)
    # An address is in one line.
    heights = "[...document.querySelectorAll('#origins tr, #errors tr')].map(row => row.getBoundingClientRect().height)"
    assert len({round(height) for height in tab.run(heights)}) == 1
    # Texts of others stay texts.
    assert "<img src=x" in text
    assert tab.run("document.images.length") == 0
    # Each bar is full.
    width = "[...bar.children].reduce((sum, one) => sum + parseFloat(one.style.width), 0)"
    widths = tab.run(f"[...document.querySelectorAll('#ranks .bar')].map(bar => {width})")
    assert all(abs(width - 100) < 0.2 for width in widths)
    dark = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(20, 23, 27)") == (scheme == "dark"), dark
    assert tab.said == []


def test_it_is_used_by_keyboard_and_says_what_it_draws(tab: Browser, site: Site) -> None:
    tab.open(site(ranks=100))
    frames(tab, 2)
    tab.run("document.getElementById('map').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.wait("document.getElementById('said').textContent").startswith("Rank 2 of 100")
    tab.press("End")
    tab.wait("document.getElementById('said').textContent.startsWith('Rank 99 of')")
    # Whatever can be clicked can be reached, and has a name; so have drawings.
    unnamed = """[...document.querySelectorAll('button, select, input, canvas, [role=img]')].filter(one =>
        !(one.textContent || one.getAttribute('aria-label') || one.labels?.length)).map(one => one.outerHTML)"""
    assert tab.run(unnamed) == []
    named = "document.getElementById(one.getAttribute('aria-labelledby'))"
    assert tab.run(f"[...document.querySelectorAll('section')].every(one => {named})")
    # A theme stays, and wins over the system's.
    for expected in ("light", "dark", "system"):
        tab.run("document.getElementById('theme').click()")
        assert tab.run("localStorage.getItem('bowstring-theme')") == expected
    tab.run("document.getElementById('pause').click()")
    # The drawing that the new theme asked for.
    time.sleep(0.3)
    drawn = tab.run("document.body.dataset.frames")
    time.sleep(0.5)
    assert tab.run("document.body.dataset.frames") == drawn
    assert tab.run("document.getElementById('state').textContent") == "paused"


def contrast(one: str, other: str) -> float:
    """Returns the contrast of two colours of the form rgb(1, 2, 3), as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_texts_have_contrast(tab: Browser, site: Site, scheme: str) -> None:
    tab.open(site(), scheme=scheme)
    frames(tab, 2)
    script = """[...document.querySelectorAll('h1, h2, p, td, th, small, span, button, label')].filter(one =>
        one.textContent.trim() && one.checkVisibility()).map(one => {
      let at = one, back;
      while (at && (back = getComputedStyle(at).backgroundColor) === 'rgba(0, 0, 0, 0)') at = at.parentElement;
      return [getComputedStyle(one).color, back, one.textContent.slice(0, 40)];
    })"""
    found = tab.run(script)
    assert len(found) > 40
    poor = [(text, ink, back) for ink, back, text in found if contrast(ink, back) < 4.5]
    assert poor == []


def test_it_asks_for_a_token_and_forgets_a_wrong_one(tab: Browser, site: Site) -> None:
    tab.open(site(token=TOKEN))
    give = "document.getElementById('token').value = {!r}; document.getElementById('give').click()"
    tab.wait("document.getElementById('ask').open")
    tab.run(give.format("wrong"))
    tab.wait("document.getElementById('ask').open && document.getElementById('ask').innerText.includes('not one of')")
    assert tab.run("sessionStorage.getItem('bowstring-token')") is None
    tab.run(give.format(TOKEN))
    tab.wait("+document.body.dataset.frames >= 2 && !document.getElementById('ask').open")
    assert tab.run("sessionStorage.getItem('bowstring-token')") == TOKEN
    assert TOKEN not in tab.run("document.documentElement.outerHTML")
    assert tab.run("document.cookie + JSON.stringify(localStorage)") == "{}"


def test_it_goes_on_after_the_connection_ended(tab: Browser, site: Site) -> None:
    tab.open(site(events=3))
    tab.wait("+document.body.dataset.frames >= 8")
    assert tab.run("document.getElementById('state').textContent") == "live"


def test_it_shows_a_real_server(tab: Browser, photos: pathlib.Path) -> None:
    command = [sys.executable, "-m", "bowstring", "serve", f"photos={photos}", "--print-address", *ADDRESSES]
    server = subprocess.Popen(command, env=package_environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        flight, admin = (server.stdout.readline().strip() for _ in range(2))
        loader = bowstring.Loader(f"{flight}/photos", batch_size=2)
        next(iter(loader))
        tab.open(f"{admin}/ui")
        # Events come with the policy that the server itself sends.
        tab.wait("+document.body.dataset.frames >= 2 && document.getElementById('ranks').rows.length === 1")
        assert "photos" in tab.run("document.getElementById('ranks').innerText")
        assert "Ranks wait for data" in tab.run("document.getElementById('finding').textContent")
        kept(tab, "ui-real")
        assert [one for one in tab.said if "favicon" not in one] == []
        loader.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
