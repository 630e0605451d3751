#!/usr/bin/env python3
"""The kill test: ranks die, stop and wake at random moments under mixed load, and no client's stream changes.

    chaos.py --bin DIR --source DIR [--faults 30] [--ranks 2+3] [--spares N] [--seed N] [--limit-p50 S] [--limit-p99 S]
             [--json FILE] [--plot FILE]

A cell that has lost a role is started again under the same coordinator, twice; then a new one is made.  After each: every stream equals its undisturbed run bit by bit (ids, logprobs, alternatives, finish
reason, for every choice), with exactly one terminal message; every rank that was left has found its page pool sound and left with 0; no
process, no zombie, and nothing in /dev/shm or /tmp is left.  A rank that was stopped and wakes after its removal leaves by itself.

A pause is the longest silence of a stream that was being answered when the fault came.  What a hang (SIGSTOP) costs is its detection
deadline more."""
import json
import os
import random
import re
import signal
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

CLIENTS, RESTARTS = 6, 2
TIMEOUT_S, RANK_S = 2, 3     # deadlines of ranks that wait for one another, and of the coordinator for a silent one
SHORT_S, LONG_S = 0.2, 5.0    # stops that nobody and that everybody notices
SETTLE_S = 20    # for a fault's streams to go on
EXPECTED = re.compile(r"a wait passed its deadline|the cell has failed: no (prefill|decode) rank is left|the worker died|lost: another rank|has lost its seat|gone or|the job has lost|PMIX ERROR")


def requests_of(seed, n):
    """load.random_requests, and some of several choices."""
    rng, out = random.Random(seed + 1), []
    for name, ids, most, sampling in load.random_requests(n, seed):
        if sampling.get("min_tokens", 0) > most:
            del sampling["min_tokens"]
        if rng.random() < 0.2 and sampling["temperature"] > 0:
            sampling = dict(sampling, n=rng.choice([2, 3]))
        out.append((name, ids, most, sampling))
    return out


class Stream:
    """One call: what came, and when."""

    def __init__(self, client, request):
        self.name, self.ids, self.most, self.sampling = request
        self.client, self.times, self.result, self.error = client, [], None, None

    def run(self):
        n = self.sampling.get("n", 1)
        got, ends = [([], [], []) for _ in range(n)], [None] * n
        self.times.append(time.monotonic())
        for m in self.client.call(self.name, self.ids, self.most, self.sampling):
            self.times.append(time.monotonic())
            part = m.chunk if m.HasField("chunk") else m.complete
            assert ends[part.index] is None, f"{self.name}: choice {part.index} goes on after its end"
            if m.HasField("complete"):
                ends[part.index] = part.finish_reason
                assert list(part.output_ids) == got[part.index][0], f"{self.name}: the last message has other tokens than the stream"
                continue
            ids, logprobs, tops = got[part.index]
            ids += part.token_ids
            logprobs += part.output_logprobs.token_logprobs
            tops += [(tuple(t.token_ids), tuple(t.values)) for t in part.output_logprobs.top_logprobs]
        assert None not in ends, f"{self.name}: ends {ends}"
        self.result = [(*g, end) for g, end in zip(got, ends)]

    def silence(self, at, until):
        """The longest one that the fault at `at` can have made; None: it was not being answered then."""
        gaps = [b - a for a, b in zip(self.times, self.times[1:]) if b > at and a < until]
        return max(gaps) if len(self.times) > 1 and self.times[1] < at < self.times[-1] and gaps else None


class Load:
    """Clients that send one request after the other until told to stop."""

    def __init__(self, pb, rpc, cell, requests, rng):
        self.client = load.Client(pb, rpc, cell.channel())
        self.requests, self.rng, self.streams, self.errors = requests, rng, [], []
        self.stopping, self.lock = False, threading.Lock()
        self.threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def _work(self):
        while not self.stopping and not self.errors:
            with self.lock:
                stream = Stream(self.client, self.rng.choice(self.requests))
                self.streams.append(stream)
            try:
                stream.run()
            except BaseException as e:
                stream.error = e
                self.errors.append((stream.name, e))

    def stop(self):
        self.stopping = True
        end = time.monotonic() + load.LIMIT_S
        for t in self.threads:
            t.join(max(0, end - time.monotonic()))
            assert not t.is_alive(), "a request never ended"


class Chaos:
    def __init__(self, a, pb, rpc, requests):
        self.a, self.pb, self.rpc, self.requests = a, pb, rpc, requests
        self.rng, self.faults, self.cell_number = random.Random(a.seed), [], 0
        self.want = {}
        model = os.path.join(a.source, "models/demo")
        with cells.Cell(a.bin, model, "1+1") as cell:
            client = load.Client(pb, rpc, cell.channel())
            for request in requests:
                stream = Stream(client, request)
                stream.run()
                self.want[request[0]] = stream.result

    def new_cell(self):
        more = ["--http-port", "0", "--on-death", "replace", "--timeout-s", str(TIMEOUT_S), "--rank-timeout-s", str(RANK_S), "--rejoin-s", "5", "--restarts", "5"]
        if self.a.spares:
            more += ["--spares", str(self.a.spares)]
        self.cell_number += 1
        self.dead, self.stopped, self.n_restarts = set(), {}, 0
        self.cell = cells.Cell(self.a.bin, os.path.join(self.a.source, "models/demo"), self.a.ranks, *more).wait_ready()
        self.pids = self.cell.ranks()
        self.seen = set(cells.descendants(self.cell.process.pid)) | {self.cell.process.pid}
        self.load = Load(self.pb, self.rpc, self.cell, self.requests, self.rng)
        self.learn_roles()

    def learn_roles(self):
        """What each rank does by now, as the status page says."""
        address = next(m.group(1) for m in (re.search(r"http://([\d.:]+)", x) for x in self.cell.lines) if m)
        with urllib.request.urlopen(f"http://{address}/status.json", timeout=5) as f:
            self.roles = {r["rank"]: r["role"] for r in json.load(f)["ranks"]}

    def victims(self):
        """Ranks whose loss leaves somebody, or a spare, for every role."""
        def serves(without):
            alive = [role for rank, role in self.roles.items() if rank not in self.dead and rank != without]
            return alive.count("spare") >= sum(role not in alive for role in ("prefill", "decode"))
        return [rank for rank, role in self.roles.items() if role != "lost" and rank not in self.dead and serves(rank)]

    def wear_out(self):
        """The last ranks of a role die, and the spares: the cell is started again under the same coordinator, and the streams go on there."""
        self.wake_stopped(all_of_them=True)
        role = self.rng.choice(["prefill", "decode"])
        alive = [rank for rank, its in self.roles.items() if its in ("spare", role) and rank not in self.dead]
        at, n_served = time.monotonic(), sum("serving again" in x for x in self.cell.lines)
        for rank in alive:
            os.kill(self.pids[rank], signal.SIGKILL)
        fault = dict(cell=self.cell_number, rank=alive[-1], kind="SIGKILL", at=at, back=None, twin=False, restart=True)
        self.faults.append(fault)
        self.settle([fault])
        end = time.monotonic() + SETTLE_S
        while sum("serving again" in x for x in self.cell.lines) == n_served:
            assert time.monotonic() < end, f"the cell has not been started again\n{self.cell.log()}"
            time.sleep(0.02)
        self.dead, self.n_restarts = set(), self.n_restarts + 1
        self.pids = self.cell.ranks()
        self.seen |= set(cells.descendants(self.cell.process.pid))
        time.sleep(0.3)
        fault["pauses"] = sorted(s for s in (x.silence(at, at + 1.0) for x in self.load.streams) if s is not None)
        self.learn_roles()

    def strike(self, quick):
        """One fault.  A stop may end before anybody gives the rank up, or long after."""
        victim = self.rng.choice(self.victims())
        kind = self.rng.choice(["SIGKILL", "SIGKILL", "SIGABRT", "SIGSTOP"])
        back = self.rng.choice([SHORT_S, LONG_S]) if kind == "SIGSTOP" else None
        if not quick:
            time.sleep(self.rng.uniform(0.05, 1.2))
        at = time.monotonic()
        os.kill(self.pids[victim], getattr(signal, kind))
        fault = dict(cell=self.cell_number, rank=victim, kind=kind, at=at, back=back, twin=quick)
        self.faults.append(fault)
        if back == SHORT_S:
            time.sleep(back)
            os.kill(self.pids[victim], signal.SIGCONT)
        else:
            self.dead.add(victim)
            if back:
                self.stopped[victim] = at + back
        return fault

    def wake_stopped(self, all_of_them=False):
        for rank, when in list(self.stopped.items()):
            if time.monotonic() < when and not all_of_them:
                continue
            self.learn_roles()
            os.kill(self.pids[rank], signal.SIGCONT)
            if self.roles[rank] != "lost":    # nobody needed it meanwhile
                self.dead.discard(rank)
                del self.stopped[rank]
                continue
            end = time.monotonic() + 10
            while os.path.exists(f"/proc/{self.pids[rank]}"):
                assert time.monotonic() < end, f"rank {rank} was removed while it was stopped, woke up, and is still there"
                time.sleep(0.02)
            del self.stopped[rank]

    def settle(self, faults):
        """Until each stream that the faults met has said something again, or ended."""
        end = time.monotonic() + SETTLE_S
        streams = [s for s in self.load.streams if s.times and s.result is None and s.error is None]
        counts = {id(s): len(s.times) for s in streams}
        while any(s.result is None and s.error is None and len(s.times) == counts[id(s)] for s in streams):
            assert time.monotonic() < end, f"a stream stands still {SETTLE_S} s after {faults}\n{self.cell.log()}"
            assert not self.load.errors, f"{self.load.errors}\n{self.cell.log()}"
            assert self.cell.process.poll() is None, "the cell has ended\n" + self.cell.log()
            time.sleep(0.01)

    def run_cell(self):
        self.new_cell()
        while len(self.faults) < self.a.faults:
            if not self.victims() or self.rng.random() < 0.05:
                if self.n_restarts == RESTARTS:
                    break
                self.wear_out()
                continue
            if self.rng.random() < 0.1:
                self.load.stop()    # a fault while nothing runs
                self.check_streams()
                faults = [self.strike(False)]
                self.load = Load(self.pb, self.rpc, self.cell, self.requests, self.rng)
            else:
                faults = [self.strike(False)]
                if self.rng.random() < 0.2 and self.victims() and len(self.faults) < self.a.faults:
                    time.sleep(self.rng.uniform(0, 0.03))    # while the others regroup
                    faults.append(self.strike(True))
            if self.stopped:    # then the pause may be that of the stop, which nobody may have noticed yet
                for f in faults:
                    f["beside"] = "SIGSTOP"
            self.settle(faults)
            self.wake_stopped()
            time.sleep(0.2)
            self.learn_roles()
            for f in faults:
                f["pauses"] = sorted(s for s in (x.silence(f["at"], f["at"] + 1.0) for x in self.load.streams) if s is not None)
        self.load.stop()
        self.check_streams()
        self.end_cell()

    def check_streams(self):
        assert not self.load.errors, f"{self.load.errors[:3]}\n{self.cell.log()}"
        for s in self.load.streams:
            assert s.result == self.want[s.name], f"{s.name} differs from its undisturbed run, after {self.faults[-5:]}: {s.result} is not {self.want[s.name]}\n{self.cell.log()}"
        self.n_streams = getattr(self, "n_streams", 0) + len(self.load.streams)

    def end_cell(self):
        self.load.client.wait_drained()
        self.wake_stopped(all_of_them=True)
        self.cell.note_scratch()
        code = self.cell.stop(30)
        assert code == 0, f"baton-run ended with {code}\n{self.cell.log()}"
        left = [p for p in self.seen if os.path.exists(f"/proc/{p}")]
        assert not left, f"processes are left: {left}\n{self.cell.log()}"
        assert not self.cell.leftovers(), f"left behind: {self.cell.leftovers()}"
        bad = [x for x in self.cell.lines if re.match(r"\d\d:\d\d:\d\d\.\d+ E ", x) and not EXPECTED.search(x)]
        assert not bad, "errors that no fault explains:\n" + "\n".join(bad)


KINDS = [("killed", lambda f: f["kind"] != "SIGSTOP" and not f.get("restart") and "beside" not in f), ("stopped for 0.2 s", lambda f: f["back"] == SHORT_S),
         ("stopped, removed", lambda f: f["back"] == LONG_S), ("cell restarted", lambda f: f.get("restart"))]


def percentile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def table(faults):
    """[(kind, faults, pauses, p50, p99, longest)]"""
    rows = []
    for kind, pick in KINDS:
        some = [f for f in faults if pick(f)]
        pauses = [p for f in some for p in f.get("pauses", [])]
        rows.append((kind, len(some), len(pauses), percentile(pauses, 0.5), percentile(pauses, 0.99), max(pauses, default=float("nan"))))
    return rows


def plot(faults, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    fig, ax = plt.subplots(figsize=(7, 4))
    for (kind, pick), color in zip(KINDS, ("#b23a3a", "#3c8d5a", "#2f6db3", "#c8781e")):
        pauses = sorted(p for f in faults if pick(f) for p in f.get("pauses", []))
        if pauses:
            ax.step(pauses, [(i + 1) / len(pauses) for i in range(len(pauses))], where="post", label=f"{kind} ({len(pauses)} streams)", color=color)
    ax.set_xscale("log")
    ax.set_xlabel("longest silence of a stream around a fault, seconds")
    ax.set_ylabel("part of the streams")
    ax.set_ylim(0, 1.02)
    ax.grid(True, color="#d8d8d8", linewidth=0.6)
    ax.legend()
    fig.tight_layout()
    fig.savefig(path)


def report(chaos, a):
    print(f"{len(chaos.faults)} faults in {chaos.cell_number} cells of {a.ranks} ranks and {a.spares} spares, {chaos.n_streams} streams: all as undisturbed")
    print(f"{'':20}{'faults':>8}{'streams':>9}{'p50 s':>8}{'p99 s':>8}{'longest s':>11}")
    for kind, n, m, p50, p99, longest in table(chaos.faults):
        print(f"{kind:20}{n:8}{m:9}{p50:8.3f}{p99:8.3f}{longest:11.3f}")
    worst = max((f for f in chaos.faults if f.get("pauses") and KINDS[0][1](f)), key=lambda f: f["pauses"][-1], default=None)
    if worst:
        print(f"longest of a kill: rank {worst['rank']} by {worst['kind']}{', while another one was lost' if worst['twin'] else ''} in cell {worst['cell']}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(ranks=a.ranks, spares=a.spares, seed=a.seed, streams=chaos.n_streams, cells=chaos.cell_number, faults=chaos.faults), f, indent=1)
    if a.plot:
        plot(chaos.faults, a.plot)


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--faults", type=int, default=30)
    ap.add_argument("--ranks", default="2+3")
    ap.add_argument("--spares", type=int, default=0)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--limit-p50", type=float, help="of the pauses after kills, seconds")
    ap.add_argument("--limit-p99", type=float)
    ap.add_argument("--json")
    ap.add_argument("--plot")
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    chaos = Chaos(a, pb, rpc, requests_of(a.seed, 40))
    try:
        while len(chaos.faults) < a.faults:
            chaos.run_cell()
    except BaseException:
        print(f"after {len(chaos.faults)} faults with seed {a.seed}; the last ones: {chaos.faults[-4:]}", file=sys.stderr)
        if getattr(chaos, "cell", None) and chaos.cell.process.poll() is None:
            for pid in cells.descendants(chaos.cell.process.pid):    # those that a fault has stopped do not end otherwise
                try:
                    os.kill(pid, signal.SIGCONT)
                except OSError:
                    pass
            chaos.load.stopping = True
            chaos.cell.stop(30)
        raise
    report(chaos, a)
    kills = table(chaos.faults)[0]
    for limit, got, name in ((a.limit_p50, kills[3], "p50"), (a.limit_p99, kills[4], "p99")):
        assert limit is None or got <= limit, f"the {name} of pauses after a kill is {got:.3f} s, at most {limit} s are promised"
    return 0


sys.exit(main())
