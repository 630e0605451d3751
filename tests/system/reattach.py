#!/usr/bin/env python3
"""The coordinator dies or stops, and another one takes its place: the ranks stay, and a request that is sent again has the same tokens.

    reattach.py --bin DIR --source DIR [--only NAME] [--measure N]

moments: it is killed idle, and with requests in prefill, hand-off and decode; while the ranks regroup after a death, and while a spare
takes the place. loading: while the ranks read weights. stopped: longer than its deadline; when it wakes the cell is another one's.
strangers: with another secret or another model it is refused by name, and the ranks wait on. gone: nobody comes; the ranks leave, and
nothing is left of them. two_cells: both come back, and one that was to drain leaves then. worn: the last rank of a role dies, and the cell is started again under its coordinator.

With --measure N the coordinator of an idle 2+2 cell is killed and started N times: seconds from its start to the first token of a request."""
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import cell as cells  # noqa: E402
from ports import free_port  # noqa: E402

START_S, BACK_S = 180, 120
TOKENS = 120


class Process:
    """One of our programs, with its lines; killed at the end, whatever happens."""

    def __init__(self, argv, env=None, **more):
        self.lines = []
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}, **more)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def log(self):
        return "\n".join(self.lines[-80:])

    def wait_line(self, text, n=1, seconds=BACK_S):
        end = time.monotonic() + seconds
        while sum(text in line for line in self.lines) < n:
            assert time.monotonic() < end and (self.process.poll() is None or any(text in x for x in self.lines)), \
                f"no line \"{text}\" number {n}\n{self.log()}"
            time.sleep(0.005)

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def wait(self, seconds):
        code = self.process.wait(seconds)
        self.reader.join(60)
        return code


class Site:
    """Ports that coordinators follow one another on, and what was started there."""

    def __init__(self, a, pb, rpc, control=None):
        self.a, self.pb, self.rpc = a, pb, rpc
        self.model = os.path.join(a.source, "models/demo")
        self.listen = f"127.0.0.1:{free_port()}"
        self.control = control or self.listen
        self.port, self.http = free_port(), free_port()
        self.env = {"BATON_SECRET": "this-test-and-no-other"}
        self.started, self.want = [], {}

    def front(self, *more, model=None, env=None, listen=None, port=None, on_death="replace"):
        argv = [os.path.join(self.a.bin, "baton-coordinator"), "--model", model or self.model, "--control", listen or self.listen, "--port",
                str(port or self.port), "--http-port", str(0 if port else self.http), "--on-death", on_death, *more]
        self.started.append(Process(argv, env or self.env))
        return self.started[-1]

    def cell(self, prefill, decode, *more, name="one"):
        argv = [os.path.join(self.a.bin, "baton-run"), "--coordinator", self.control, "--cell", name, "--model", self.model, "--prefill",
                str(prefill), "--decode", str(decode), *more]
        self.started.append(Process(argv, self.env))
        return self.started[-1]

    def ask(self, i, n=TOKENS, port=None, times=None):
        """Tokens of request i, which is the same each time."""
        q = self.pb.GenerateRequest(request_id=f"r{i}-{time.monotonic_ns()}", stream=True)
        q.tokenized.input_ids.extend([0] + [(11 * i + 17 * k) % 1500 + 8 for k in range(20 + 60 * i)])
        q.sampling_params.max_tokens, q.sampling_params.ignore_eos, q.sampling_params.temperature, q.sampling_params.seed = n, True, 0.7, 3 + i
        out, ends = [], 0
        with grpc.insecure_channel(f"127.0.0.1:{port or self.port}") as channel:
            for m in self.rpc.VllmEngineStub(channel).Generate(q, timeout=300):
                if times is not None:
                    times.append(time.monotonic())
                if m.HasField("chunk"):
                    out += m.chunk.token_ids
                else:
                    ends += 1
        assert ends == 1, f"{ends} ends"
        return out

    def retry(self, i, n=TOKENS, seconds=BACK_S, **more):
        """As a client does that gets UNAVAILABLE."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.ask(i, n, **more)
            except grpc.RpcError as e:
                assert e.code() == grpc.StatusCode.UNAVAILABLE, e
                assert time.monotonic() < end and self.started[-1].process.poll() is None, f"nobody serves within {seconds} s: {e.details()}\n{self.started[-1].log()}"
                time.sleep(0.005)

    def learn(self, requests):
        self.want = {i: self.retry(i) for i in requests}

    def check(self, **more):
        for i, want in self.want.items():
            assert self.retry(i, **more) == want, f"request {i} has other tokens than before"

    def state(self):
        return cells.status(f"127.0.0.1:{self.http}")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            for p in self.started:
                print(f"---- {' '.join(p.process.args[:1])}\n{p.log()}", file=sys.stderr)
        for p in self.started:
            if p.process.poll() is None:
                p.kill(signal.SIGCONT)
                p.kill(signal.SIGINT)
        for p in self.started:
            try:
                p.process.wait(60)
            except subprocess.TimeoutExpired:
                for pid in [*cells.descendants(p.process.pid), p.process.pid]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                assert kind is not None, f"still there:\n{p.log()}"


def pids(run):
    """Its ranks, by number."""
    return cells.ranks_among(cells.descendants(run.process.pid))


def ended(site, n, endings, again=False, times=None):
    """Threads with requests that the end of the coordinator ends; each has one ending.  again: it is an error, however long that takes to come."""
    def one(i):
        try:
            site.ask(i % 4, (300, 3000)[i % 2], times=times)
            while again:
                site.ask(i % 4, 3000)
            endings.append("OK")
        except grpc.RpcError as e:
            endings.append(e.code())
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    return threads


def moments(a, pb, rpc):
    with Site(a, pb, rpc) as site:
        front = site.front()
        run = site.cell(2, 2, "--spares", "1")
        site.learn(range(4))
        before, rng, n = pids(run), random.Random(5), 0

        def again(what, endings, threads, *more):
            nonlocal front, n
            front.kill()
            front.wait(60)
            start = time.monotonic()
            front = site.front(*more)
            site.check()
            took = time.monotonic() - start
            for t in threads:
                t.join(BACK_S)
                assert not t.is_alive(), "a request never ended"
            assert len(endings) == len(threads) and all(e in ("OK", grpc.StatusCode.UNAVAILABLE) for e in endings), endings
            n += 1
            print(f"{what}: {endings.count('OK')} + {len(endings) - endings.count('OK')} requests ended; the same tokens, {took:.2f} s", flush=True)

        again("idle", [], [])
        for what, delay in (("in prefill", 0.03), ("in hand-off", 0.1), ("in decode", 0.5), ("at any moment", rng.uniform(0, 0.3))):
            endings = []
            threads = ended(site, 6, endings)
            time.sleep(delay)
            again(what, endings, threads)
        assert pids(run) == before, "ranks have been started anew"
        # A rank dies, and with it, or while the spare takes its place, the coordinator.
        for victim, delay in ((1, 0.0), (4, 0.02)):
            endings = []
            threads = ended(site, 4, endings)
            time.sleep(0.2)
            os.kill(before[victim], signal.SIGKILL)
            time.sleep(delay)
            again(f"as rank {victim} dies", endings, threads, "--rank-timeout-s", "10")  # so long it waits for the dead
        ranks = site.state()["ranks"]
        assert [r["state"] for r in ranks].count("lost") == 2, ranks
        left = pids(run)
        assert {k: v for k, v in before.items() if k in (0, 2, 3)} == left, f"{before} {left}"
        assert not any("does not add up" in line for line in run.lines), run.log()
        front.kill(signal.SIGTERM)
        assert front.wait(60) == 0, front.log()
        run.wait(60)


def loading(a, pb, rpc):
    with Site(a, pb, rpc) as site:
        front = site.front()
        run = site.cell(1, 2)
        front.wait_line("have attached")
        front.kill()
        front.wait(60)
        front = site.front()
        site.learn([1])
        front.kill()  # and once more, as it serves
        front.wait(60)
        site.front()
        site.check()
        run.wait_line("a coordinator drives this rank again")
        print("killed while the ranks load: they serve under the next one", flush=True)


class Address:
    """An address that leads to one coordinator, later to another one: connections are cut when it changes."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.name, self.to, self.pairs = f"127.0.0.1:{self.socket.getsockname()[1]}", None, []
        self.lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def lead(self, to):
        with self.lock:
            self.to = to
            for s in self.pairs:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self.pairs.clear()

    def _run(self):
        while True:
            here, _ = self.socket.accept()
            host, port = self.to.split(":")
            try:
                there = socket.create_connection((host, int(port)), 5)
            except OSError:
                here.close()
                continue
            with self.lock:
                self.pairs += [here, there]
            threading.Thread(target=self._copy, args=(here, there), daemon=True).start()

    def _copy(self, a, b):
        wait = selectors.DefaultSelector()
        wait.register(a, selectors.EVENT_READ, b)
        wait.register(b, selectors.EVENT_READ, a)
        try:
            while True:
                for key, _ in wait.select():
                    data = key.fileobj.recv(65536)
                    if not data:
                        return
                    key.data.sendall(data)
        except OSError:
            pass
        finally:
            a.close()
            b.close()


def stopped(a, pb, rpc):
    address = Address()
    with Site(a, pb, rpc, control=address.name) as site:
        address.to = site.listen
        first = site.front()
        run = site.cell(1, 2, "--coordinator-timeout-s", "12")
        site.learn([1, 2])
        endings, times = [], []
        threads = ended(site, 4, endings, again=True, times=times)
        while not times and any(t.is_alive() for t in threads):    # tokens come
            time.sleep(0.01)
        first.kill(signal.SIGSTOP)
        run.wait_line("another one at", n=3)  # every rank has waited as long as it may, and no longer
        warned = [x for x in run.lines if " W rank=" in x and "coordinator" in x]
        assert len(warned) == 3, warned  # each says so once
        listen, port = f"127.0.0.1:{free_port()}", free_port()
        address.lead(listen)
        site.front(listen=listen, port=port)
        site.check(port=port)
        first.kill(signal.SIGCONT)
        first.wait_line("the cell has failed")
        for t in threads:
            t.join(BACK_S)
            assert not t.is_alive(), "a request of the stopped coordinator never ended"
        assert all(e == grpc.StatusCode.UNAVAILABLE for e in endings) and len(endings) == 4, endings
        site.check(port=port)
        print("stopped for too long: another one took its cell, and it gave it up when it woke", flush=True)


def strangers(a, pb, rpc):
    scratch = tempfile.mkdtemp()
    try:
        with Site(a, pb, rpc) as site:
            front = site.front()
            run = site.cell(1, 1)
            site.learn([1])
            before = pids(run)
            other = os.path.join(scratch, "demo")
            shutil.copytree(site.model, other)
            with open(os.path.join(other, "config.json"), "a") as f:
                f.write("\n")
            for why, more in (("does not show the cell's secret", dict(env={"BATON_SECRET": "another-test-altogether"})), ("has another config.json", dict(model=other))):
                front.kill()
                front.wait(60)
                front = site.front(**more)
                run.wait_line(why, n=2)
            front.kill()
            front.wait(60)
            site.front()
            site.check()
            assert pids(run) == before
            print("strangers are refused by name, and the ranks wait for the right one", flush=True)
    finally:
        shutil.rmtree(scratch)


def gone(a, pb, rpc):
    with Site(a, pb, rpc) as site:
        front = site.front()
        run = site.cell(2, 1, "--spares", "1", "--orphan-s", "2")
        site.learn([1])
        seen = cells.descendants(run.process.pid)
        scratch = cells.scratch(seen)
        assert scratch, "no private folders found: the check of leftovers would see nothing"
        begin = time.monotonic()
        front.kill()
        assert run.wait(60) == 1, run.log()
        took = time.monotonic() - begin
        assert took > 2, f"left after {took} s"
        named = [x for x in run.lines if "has taken this rank within the 2 s of --orphan-s" in x]
        assert len({x.split("rank=")[1].split()[0] for x in named if "rank=" in x}) == 4, run.log()
        cells.wait_nothing_left(scratch, seen)
        print(f"nobody comes: all ranks have left after {took:.1f} s, and nothing is left of them", flush=True)


def two_cells(a, pb, rpc):
    with Site(a, pb, rpc) as site:
        front = site.front(on_death="restart")
        runs = [site.cell(1, 1, name=name) for name in ("one", "two")]
        site.learn(range(3))
        end = time.monotonic() + START_S
        while [c["state"] for c in site.state()["cells"]] != ["serving"] * 2:
            assert time.monotonic() < end, site.state()
            time.sleep(0.02)
        before = [pids(r) for r in runs]
        endings = []
        threads = ended(site, 6, endings)
        time.sleep(0.3)
        front.kill()
        front.wait(60)
        front = site.front(on_death="restart")
        site.check()
        for t in threads:
            t.join(BACK_S)
            assert not t.is_alive(), "a request never ended"
        front.wait_line("has come back with 2 of 2 ranks", n=2)
        end = time.monotonic() + BACK_S
        while [c["state"] for c in site.state()["cells"]] != ["serving"] * 2:
            assert time.monotonic() < end, site.state()
            time.sleep(0.02)
        assert [pids(r) for r in runs] == before
        threads = ended(site, 6, [], again=True)
        while site.state()["running"] < len(threads):
            time.sleep(0.005)
        runs[0].kill(signal.SIGUSR1)
        front.wait_line("cell \"one\" drains")
        front.kill()
        front.wait(60)
        front = site.front(on_death="restart")
        site.check()
        assert runs[0].wait(BACK_S) == 0, runs[0].log()
        front.wait_line("cell \"one\" has drained")
        assert pids(runs[1]) == before[1] and [c["name"] for c in site.state()["cells"] if c["state"] == "serving"] == ["two"]
        for t in threads:
            t.join(BACK_S)
        print("both cells have come back, and the one that drained has left then", flush=True)


def worn(a, pb, rpc):
    with Site(a, pb, rpc) as site:
        site.front("--cell-wait-s", str(BACK_S))
        run = site.cell(1, 2, "--on-death", "replace", "--restarts", "3")
        want, times, got = site.retry(1), [], []
        t = threading.Thread(target=lambda: got.append(site.ask(1, times=times)), daemon=True)
        t.start()
        while not times and t.is_alive():
            time.sleep(0.005)
        os.kill(pids(run)[0], signal.SIGKILL)
        run.wait_line("serving again")
        t.join(BACK_S)
        assert got == [want], f"{got} is not {want}\n{run.log()}"
        run.kill(signal.SIGUSR1)    # an end that is asked for is the end
        assert run.wait(60) == 0 and sum("starting again" in x for x in run.lines) == 1, run.log()
        print("the last prefill rank was killed: the cell was started again, and its request went on", flush=True)


def measure(a, pb, rpc):
    times = []
    with Site(a, pb, rpc) as site:
        front = site.front()
        site.cell(2, 2)
        site.learn([1])
        for _ in range(a.measure):
            front.kill()
            front.wait(60)
            time.sleep(0.5)
            came, start = [], time.monotonic()
            front = site.front()
            assert site.retry(1, times=came) == site.want[1]
            times.append(came[0] - start)
    times.sort()
    print(f"start of the coordinator to the first token of a request that is sent again, {len(times)} times: "
          f"p50 {times[len(times) // 2]:.3f} s, longest {times[-1]:.3f} s; all: {' '.join(f'{t:.3f}' for t in times)}", flush=True)


CASES = [moments, loading, stopped, strangers, gone, two_cells, worn]


def main():
    ap = cells.case_arguments(__doc__, CASES)
    ap.add_argument("--measure", type=int, default=0)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    if a.measure:
        measure(a, pb, rpc)
        return 0
    for case in cells.chosen(a, CASES):
        begin = time.monotonic()
        case(a, pb, rpc)
        print(f"{case.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    return 0


sys.exit(main())
