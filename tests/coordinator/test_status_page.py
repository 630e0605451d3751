"""The status page in a real browser: what it shows, that it has no errors, and how it looks.

Screenshots stay in the folder that BT_SCREENSHOTS names, for people to look at."""
import collections
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
import zlib

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    print("skipped: no Chromium (Debian: apt-get install chromium)")
    sys.exit(77)

from harness import SOURCE, WAIT_S, Cell, Coordinator, Served, control, main, wait_for  # noqa: E402

WIDTH, HEIGHT = 1200, 1000
PREFILL, DECODE = (0x2F, 0x6F, 0xDE), (0xD9, 0x73, 0x0D)


def browse(address, *args):
    """(stdout, stderr) of a headless browser that has been at the page, or a file: URL, for some (virtual) seconds."""
    with tempfile.TemporaryDirectory() as profile:
        run = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                              "--no-first-run", "--disable-background-networking", "--enable-logging=stderr", f"--user-data-dir={profile}",
                              f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=3500", *args, address if "://" in address else f"http://{address}/"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, check=True)
    return run.stdout, run.stderr


def pixels(path):
    """(width, height, colours and how often each) of an 8 bit RGB or RGBA PNG."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, n = 8, b"", 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6), (depth, colour)
            n = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    raw, stride, before, colours = zlib.decompress(packed), width * n, bytes(width * n), collections.Counter()
    for y in range(height):
        kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        if kind == 2:    # most are: quickly
            line = bytearray((a + b) & 255 for a, b in zip(line, before))
        for i in range(stride if kind not in (0, 2) else 0):
            a, b, c = line[i - n] if i >= n else 0, before[i], before[i - n] if i >= n else 0
            if kind == 4:
                p = a + b - c
                pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
                predicted = a if pa <= pb and pa <= pc else b if pb <= pc else c
            else:
                predicted = a if kind == 1 else (a + b) // 2
            line[i] = (line[i] + predicted) & 255
        before = line
        colours.update(zip(line[::n], line[1::n], line[2::n]))
    return width, height, colours


class Browsed(Served):
    ARGS = ("--http-port", "0", "--queue-s", "300")

    def setUp(self):
        super().setUp()
        self.http = self.coordinator.line("http")

    def beats(self):
        """Prefill ranks 95 % busy, decode ranks 30 %; now and then a step takes long, and no beat comes."""
        begin, i = time.monotonic(), 0
        while not self.enough.wait(1.5 if i % 20 == 19 else 0.2):
            i, s = i + 1, time.monotonic() - begin
            for r in self.cell.ranks:
                busy = 0.95 if r.rank < 2 else 0.3
                r.send(beat=control.Beat(progress=i, at_ns=int(1e9 * (s + 1)), n_requests=2, pages_free=20, pages_total=64, pages_cached=16, slots_quarantined=4,
                                         steps=int(40 * s), model_ns=int(busy * 1e9 * s), gather_ns=int(5e6 * s), sample_ns=int(5e6 * s),
                                         prompt_rows=int(1600 * s), generated_rows=int(80 * s), handoff_bytes=int(5e6 * s),
                                         handoff_pages=int(70 * s)))

    def begin_beats(self):
        self.enough = threading.Event()
        self.addCleanup(self.enough.set)
        threading.Thread(target=self.beats, daemon=True).start()

    def status(self):
        with urllib.request.urlopen(f"http://{self.http}/status.json", timeout=WAIT_S) as reply:
            return json.load(reply)

    def look(self, name, closely=False):
        """The text of the page as it is, which has no errors; closely: and the colours of its picture."""
        folder = os.environ.get("BT_SCREENSHOTS")
        with tempfile.TemporaryDirectory() as other:
            path = os.path.join(folder or other, f"status_page_{name}.png")
            dom, log = browse(self.http, "--dump-dom", *([f"--screenshot={path}"] if folder or closely else []))
            self.assertNotIn("CONSOLE", log)
            if not closely:
                return dom
            width, height, colours = pixels(path)
        self.assertEqual((width, height), (WIDTH, HEIGHT))
        self.assertGreater(len(colours), 50)
        self.assertLess(max(colours.values()), 0.95 * width * height)
        return dom, colours


class Page(Browsed):
    def test_shows_the_cell(self):
        for i in range(3):
            list(self.generate())
        self.cell.split_after = 5
        call = self.stub.Generate(self.request(request_id="<img src=x onerror=alert(1)>", prompt=[500, 3, 4], max_tokens=40), timeout=300)
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        next(call)
        self.begin_beats()
        wait_for(lambda: self.status()["balance"]["limit"] == "prefill", "the verdict")
        def right(busy):
            return all(0.9 < b < 0.97 for b in busy[:2]) and all(0.27 < b < 0.31 for b in busy[2:])
        wait_for(lambda: right([r["busy"] for r in self.status()["ranks"]]), "the busy shares")
        time.sleep(4)  # they stay where they are, long steps or not
        busy = [r["busy"] for r in self.status()["ranks"]]
        self.assertTrue(right(busy), busy)
        dom, colours = self.look("loaded", closely=True)
        text = dom.split("<main>")[1].split("</main>")[0]
        for part in (">demo<", ">serving<", f"gRPC at {self.address}", "prefill group of 2, decode group of 2", "Prefill limits",
                     "P:D is 2:2", "testhost · 1003", "0 prefill", "3 decode", "&lt;img src=x onerror=alert(1)&gt;", "5 / 40", "MiB/s",
                     "1 open; 3 ended well"):
            self.assertTrue(part in text, part)
        self.assertFalse("<img" in text)
        for plot in ("p1", "p2", "p3", "p4"):
            drawn = text.split(f'id="{plot}"')[1].split("</svg>")[0]
            self.assertIn("<path", drawn, plot)
            self.assertNotIn("NaN", drawn, plot)
        for colour in (PREFILL, DECODE):  # bars of ranks and lines of plots
            self.assertGreater(colours.get(colour, 0), 500)
        self.cell.more_gate.set()
        self.assertEqual(len(list(call)[-1].complete.output_ids), 40)

    def test_waiting_requests_say_which_side_limits(self):
        """Two requests, of which none has another's prefix, leave 4 of a rank's 64 pages: more of them wait, whatever the ranks' times say."""
        self.begin_beats()
        self.cell.split_after = 1
        calls = [self.stub.Generate(self.request(prompt=[500 + i] * 1900, max_tokens=148), timeout=300) for i in range(6)]
        wait_for(lambda: self.status()["balance"]["limit"] == "decode" and self.status()["waiting"] > 0, "the verdict")
        self.assertTrue("Decode limits" in self.look("waiting"))
        self.coordinator.process.send_signal(signal.SIGUSR1)
        self.coordinator.line("draining")
        self.assertTrue(">draining<" in self.look("draining"))
        self.cell.more_gate.set()
        for call in calls:
            list(call)

    def test_a_step_is_as_long_as_it_was(self):
        """Steps of 4 s, with beats between their layers."""
        begin = time.monotonic()

        def told():
            s = time.monotonic() - begin
            self.cell.ranks[2].send(beat=control.Beat(progress=int(100 * s), at_ns=int(1e9 * (s + 1)), n_requests=2, steps=int(s / 4), model_ns=int(1e9 * s)))
            rank = self.status()["ranks"][2]
            return 3 < rank["step_s"] < 5 and 0.9 < rank["busy"] < 1.01
        wait_for(told, "the length of its steps")

    def test_idle_cell(self):
        page = self.look("idle")
        for part in ("No open request.", "Neither side limits: there is room", "Too little load"):
            self.assertTrue(part in page, part)


    def test_ranks_that_nothing_is_handed_over_between(self):
        pairs = self.cell.stand_still_once()
        list(self.generate())
        wait_for(lambda: self.status()["avoided_links"], "the pair")
        self.assertTrue(re.search("<div>a hand-off from rank %d to rank %d stood still: none goes there for [89] min " % pairs[0], self.look("avoided")))


class Lost(Browsed):
    ARGS = (*Browsed.ARGS, "--on-death", "replace")

    def test_lost_rank_is_named_and_shows_nothing_that_was(self):
        self.begin_beats()
        wait_for(lambda: self.status()["ranks"][2]["busy"] > 0.2, "its work")
        self.cell.ranks[2].cut()
        wait_for(lambda: self.status()["ranks"][2]["state"] == "lost", "its loss")
        text = self.look("lost").split("<main>")[1].split("</main>")[0]
        for part in ("1 of 4 ranks is lost: rank 2 on testhost", "2 lost", '<span class="bad">lost</span></td><td>–</td>'):
            self.assertTrue(part in text, part)


class Empty(Browsed):
    def setUp(self):
        self.coordinator = Coordinator(*self.ARGS)
        self.addCleanup(self.coordinator.close)
        self.cell = Cell(self.coordinator.line("control"))
        self.http = self.coordinator.line("http")

    def test_without_ranks_nothing_is_said_of_their_roles(self):
        text = self.look("empty").split("<main>")[1].split("</main>")[0]
        self.assertEqual(text.count("No rank is attached."), 3)
        self.assertTrue("prefill busy" in text)
        self.assertFalse("both roles" in text)


class Words(unittest.TestCase):
    """Parts of the page, without a cell."""

    @staticmethod
    def part(pattern):
        with open(os.path.join(SOURCE, "coordinator", "status.html"), encoding="utf-8") as page:
            return re.search(pattern, page.read(), re.S | re.M)[0]

    @classmethod
    def setUpClass(cls):
        function = cls.part(r"^function time\(s\) \{$.*?^\}$")
        with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
            file.write(f'<meta charset="utf-8">{cls.part("<style>.*?</style>")}<script>const int = n => Math.round(n);\n{function}\n'
                       "document.title = [getComputedStyle(document.documentElement).colorScheme,"
                       " [0, 1e-9, 1e-7, 4.4e-7, 1e-6, 1.5e-3, 0.25, 2].map(time).join(', ')].join('; ');</script>")
            file.flush()
            cls.scheme, cls.times = re.search("<title>(.*?); (.*?)</title>", browse(f"file://{file.name}", "--dump-dom")[0]).groups()

    def test_scroll_bars_are_dark_where_the_page_is(self):
        self.assertEqual(self.scheme, "light dark")

    def test_no_time_but_0_looks_like_0(self):
        """Tokens that come in one message are some 100 ns apart."""
        self.assertEqual(self.times, "–, 1 ns, 100 ns, 440 ns, 1 µs, 1.5 ms, 250 ms, 2.0 s")


if __name__ == "__main__":
    main()
