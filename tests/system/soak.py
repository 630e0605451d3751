#!/usr/bin/env python3
"""The soak: rounds of everything at once on pools that are too small, each round drawn from its seed.

    soak.py --bin DIR --source DIR [--seed N] [--rounds 1] [--setting local|hosts] [--faults 4] [--keep FOLDER]

A round is a cell of some shape, with spares or --renew, drafts, chunks and a cache of weights or without; clients with mixed requests, of which a
part leaves, aborts or passes its deadline; and faults at random moments: ranks are killed, told to end, and stopped; so are launchers and
coordinators; hosts lose power and links; `baton logits` runs beside it, and is killed.  It ends at rest or with a drain under load.

Each answer, and each that was cut off as far as it came, is that of the request alone, bit by bit, with exactly one terminal message; nobody waits
for ever; each page of each rank that is left is free or cached, no staging slot is quarantined; the cell leaves with 0, and leaves no
process, no shared memory and no file."""
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import hosts as net  # noqa: E402

net.enter()
os.environ["GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS"] = "100"    # of 5,000 a client finds a new coordinator 5 or 10 s after it is there

import cell as cells  # noqa: E402
import grpc  # noqa: E402
import load  # noqa: E402
import numpy as np  # noqa: E402
import tensors  # noqa: E402

CLIENTS, N_REQUESTS, REQUESTS_SEED, LONGEST, BACK_S = 16, 45, 1, 50, 240
PAGES = range(10, 14)    # as few as the largest request needs beside a layer that drafts, and some more
SHAPES = ["1+1", "1+2", "2+2", "1+3", "2+3", "both1", "both2", "both3"]
MAPS = ["prefill n1\nprefill n2\ndecode n1\ndecode n2\ndecode n3\nspare n3\nspare n1\n", "prefill n1\ndecode n2\ndecode n3\n",
        "prefill n1\nprefill n3\ndecode n1\ndecode n2\nspare n3\n", "both n1\nboth n2\nboth n3\n"]
SIGNALS = "SIGKILL", "SIGABRT", "SIGTERM"
FAULTS = dict(SIGKILL=6, SIGABRT=1, SIGTERM=1, pair=3, blink=2, stop=2, coordinator=0.7, launcher=0.3, logits=0.7, logits_killed=0.5)
HOST_FAULTS = dict(SIGKILL=2, pair=1, blink=1, coordinator=1, power_off=3, cut=2, blip=2)
WAYS = dict(end=8, leave=1, abort=1, deadline=1)
PROGRAMS = ("baton", "mpirun", "orterun", "orted", "prterun", "prted")


def drawn(rng, weights):
    return rng.choices(list(weights), list(weights.values()))[0]


class Round:
    def __init__(self, soak, seed):
        self.soak, self.a, self.seed, self.rng = soak, soak.a, seed, random.Random(seed)
        self.errors, self.counts, self.events, self.stopping, self.lost_hosts, self.beside = [], {}, [], False, {}, []
        self.forgiving = self.struck_above_ranks = False    # forgiving: requests may be refused, or end with the coordinator
        shape, more = self.draw_cell()
        self.what = f"{shape!r} {' '.join(more)}"
        print(f"seed {seed}: {self.what}", flush=True)
        if soak.hosts:
            self.cell = cells.Cell(self.a.bin, soak.model, "hosts", *soak.hosts.ranks(shape), *more, hosts=soak.hosts)
        else:
            self.cell = cells.Cell(self.a.bin, soak.model, shape, *more)
        self.cell.wait_ready()

    def draw_cell(self):
        rng, t = self.rng, self.a.timeout_s
        more = ["--http-port", "0", "--on-death", "replace", "--restarts", "50", "--timeout-s", str(t), "--rank-timeout-s", str(t + 1), "--rejoin-s", "3",
                "--orphan-s", "20", "--stall-s", "60", "--queue-s", "600", "--drain-s", "600", "--threads", "1", "--kv-bytes", str(rng.choice(PAGES) * load.page_bytes(self.soak.model))]
        more += rng.choice([[], ["--mtp", "2"], ["--speculate", "5"], ["--mtp", "1", "--speculate", "3"]])
        more += rng.choice([[], [], ["--chunk", "7"], ["--chunk", "64"], ["--chunk", "100"]])
        more += rng.choice([[], [], ["--max-rows", "128"]]) if "--chunk" in more else []
        more += rng.choice([[], ["--renew"]]) + rng.choice([[], ["--weights-cache", self.soak.cache]])
        if self.soak.hosts:
            return rng.choice(MAPS), more
        return rng.choice(SHAPES), more + rng.choice([[], ["--spares", "1"], ["--spares", "2"]])

    # ---- clients

    def clients(self):
        self.client = load.Client(self.soak.pb, self.soak.rpc, self.cell.channel())
        threads = [threading.Thread(target=self.work, args=(random.Random(f"{self.seed}/{i}"),), daemon=True) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        return threads

    def work(self, rng):
        while not self.stopping and not self.errors:
            request, way = rng.choice(self.soak.often), drawn(rng, WAYS)
            salt = rng.choice([None, None, None, "salt"])
            try:
                if way == "end":
                    got = self.client.run(*request, stream=rng.random() < 0.7, salt=salt)[0]
                    if got != self.soak.want[request[0]]:
                        self.errors.append(f"{request[0]} differs: {got} is not {self.soak.want[request[0]]}")
                else:
                    self.cut_off(rng, request, way, salt)
                self.counts[way] = self.counts.get(way, 0) + 1
            except grpc.RpcError as e:
                if e.code() != grpc.StatusCode.UNAVAILABLE or not self.forgiving:
                    self.errors.append(f"{request[0]} ({way}) at {time.strftime('%H:%M:%S')}: {e.code()} {e.details()}")
                time.sleep(0.05)
            except BaseException as e:
                self.errors.append(f"{request[0]} ({way}): {e!r}")

    def cut_off(self, rng, request, way, salt):
        """What has come by then is how the undisturbed answer begins."""
        q = self.client.request(*request)
        call = self.client.stub.Generate(q, timeout=rng.uniform(0.001, 2.0) if way == "deadline" else load.LIMIT_S, metadata=[("baton-cache-salt", salt)] if salt else None)
        got, most = {}, rng.choice([0, 1, 5, 40])
        try:
            for n, m in enumerate(call, 1):
                if m.HasField("chunk"):
                    got.setdefault(m.chunk.index, []).extend(m.chunk.token_ids)
                if n == most and way == "leave":
                    call.cancel()
                if n == most and way == "abort":
                    self.client.stub.Abort(self.soak.pb.AbortRequest(request_ids=[q.request_id]), timeout=load.LIMIT_S)
        except grpc.RpcError as e:
            if e.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED) and (e.code() != grpc.StatusCode.DEADLINE_EXCEEDED or way != "deadline"):
                raise
        for k, ids in got.items():
            want = self.soak.want[request[0]][k][0]
            assert ids == want[:len(ids)], f"choice {k} begins otherwise: {ids} is not {want}"

    # ---- faults

    def programs(self, *names):
        """Of the cell, not of what runs beside it; no children of another one's, which a rank has while MPI starts."""
        beside = {c for p in self.beside for c in cells.descendants(p.pid)}
        pids = {p for p in self.cell.processes() if cells.name_of(p) in [n[:15] for n in names]} - beside
        return sorted(pids - {c for p in pids for c in cells.descendants(p)})

    def send(self, pid, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def strike(self, kind):
        found = self.programs("baton-worker")
        if not found and kind in (*SIGNALS, "pair", "blink", "stop"):
            return    # those that are started again are not there yet
        self.rng.shuffle(found)
        self.events.append(f"{time.strftime('%H:%M:%S')} {kind} {found[:2]}")
        if kind in SIGNALS:
            self.send(found[0], getattr(signal, kind))
        elif kind == "pair":
            for pid in found[:2]:
                self.send(pid, signal.SIGKILL)
                time.sleep(self.rng.choice([0, 0.003, 0.02, 0.3]))
        elif kind in ("blink", "stop"):
            self.send(found[0], signal.SIGSTOP)
            time.sleep(0.2 if kind == "blink" else self.a.timeout_s + 3)
            self.send(found[0], signal.SIGCONT)
        elif kind in ("coordinator", "launcher"):
            self.forgiving = self.struck_above_ranks = True    # for good: what its end ends may come late
            for pid in self.programs("baton-coordinator" if kind == "coordinator" else self.rng.choice(["baton-launch", "mpirun"]))[:1]:
                self.send(pid, signal.SIGKILL)
        elif kind.startswith("logits"):
            self.start_logits(kind == "logits_killed")
        else:
            self.strike_host(kind)

    def strike_host(self, kind):
        i = self.rng.randrange(3)
        if i in self.lost_hosts:
            return self.revive()
        self.soak.hosts[i].power_off() if kind == "power_off" else self.soak.hosts[i].cut()
        if kind == "blip":
            time.sleep(0.5)
            return self.soak.hosts[i].mend()
        self.lost_hosts[i] = kind

    def revive(self):
        for i, kind in self.lost_hosts.items():
            if kind == "power_off":
                self.soak.hosts.power_on(i)
            else:
                self.soak.hosts[i].mend()
        self.lost_hosts = {}

    def start_logits(self, killed):
        out = os.path.join(self.soak.folder, f"out{len(self.beside)}")
        p = subprocess.Popen(self.soak.logits_command(out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        p.out, p.killed, p.said = out, killed, []
        p.reader = threading.Thread(target=lambda: p.said.extend(p.stdout), daemon=True)
        p.reader.start()
        self.beside.append(p)
        if killed:
            time.sleep(self.rng.uniform(0, 2))
            pids = [x for x in cells.descendants(p.pid) if cells.name_of(x) == "baton-worker"] or [p.pid]
            self.send(self.rng.choice([*pids, p.pid]), signal.SIGKILL)

    def check_logits(self):
        for p in self.beside:
            code = p.wait(BACK_S)
            p.reader.join(60)
            if not p.killed:
                assert code == 0, f"baton logits ended with {code}: {''.join(p.said)[-3000:]}"
                with open(p.out, "rb") as f:
                    assert f.read() == self.soak.logits, "baton logits has another answer beside a cell"
            if os.path.exists(p.out):
                os.remove(p.out)

    # ---- the end

    def wait_ended(self, before):
        """Until one more answer has ended: where the machine is busy a round would end before any, and would have compared none."""
        end = time.monotonic() + load.LIMIT_S
        while self.counts.get("end", 0) <= before and not self.errors:
            assert time.monotonic() < end, f"no answer has ended within {load.LIMIT_S} s of the last fault"
            time.sleep(0.02)

    def wait_drained(self):
        """Once it serves again, if it is being started."""
        end = time.monotonic() + BACK_S
        while True:
            try:
                return self.client.wait_drained()
            except grpc.RpcError as e:
                assert self.forgiving and e.code() == grpc.StatusCode.UNAVAILABLE and time.monotonic() < end, f"{e.code()} {e.details()}"
                time.sleep(0.2)

    def check_pools(self):
        end = time.monotonic() + BACK_S
        while True:
            ranks = [r for r in cells.status(self.cell.http)["ranks"] if r["role"] != "lost"]
            if ranks and all(r["pages_free"] + r["pages_cached"] == r["pages_total"] > 0 for r in ranks):
                break
            assert time.monotonic() < end, f"pages are missing: {ranks}"
            time.sleep(0.2)
        text = cells.page(self.cell.http, "/metrics")
        slots = re.findall(r"^baton_handoff_slots_quarantined\{[^}]*\} ([1-9]\d*)$", text, re.M)
        assert not slots, f"slots in quarantine: {slots}"
        return sum(float(x) for x in re.findall(r"^vllm:num_preemptions_total\{[^}]*\} ([0-9.e+]+)$", text, re.M))

    def join(self, threads):
        for t in threads:    # each call has a deadline
            t.join(load.LIMIT_S + 60)
        assert not any(t.is_alive() for t in threads), "a request never ended"
        self.check_answers()

    def check_answers(self):
        assert not self.errors, "\n".join(self.errors[:3])

    def run(self):
        begin, threads, retracted, before = time.monotonic(), self.clients(), None, 0
        for i in range(self.a.faults):
            time.sleep(self.rng.choice([0.02, 0.3, 1, 2]) * self.rng.uniform(0.5, 1.5))
            before = before if i else self.counts.get("end", 0)
            self.strike(drawn(self.rng, HOST_FAULTS if self.soak.hosts else FAULTS))
            self.check_answers()
        how = self.rng.choice(["rest", "rest", "SIGUSR1", "SIGTERM"])
        time.sleep(self.rng.uniform(0, 3))
        self.revive()
        self.wait_ended(before)
        if how == "rest":
            self.stopping = True
            self.join(threads)
            self.wait_drained()
            retracted = self.check_pools()
        else:
            self.forgiving = True
            threads.append(threading.Timer(1, setattr, (self, "stopping", True)))
            threads[-1].start()
        self.cell.note_scratch()
        self.events.append(f"{time.strftime('%H:%M:%S')} {how}")
        self.cell.process.send_signal(signal.SIGTERM if how == "rest" else getattr(signal, how))
        code = self.cell.wait_gone(load.LIMIT_S)
        self.join(threads)
        self.check_logits()
        may_fail = how != "rest" and (self.struck_above_ranks or any(re.search("no cell is left, and none will come|^baton-run: the ranks have ended", x) for x in self.cell.lines))
        assert code == 0 or (may_fail and code == 1), f"baton-run ended with {code}"    # 1: whoever drains starts nothing again
        self.cell.wait_nothing_left()
        self.soak.check_nothing_left()
        print(f"seed {self.seed}: {self.counts}, {retracted} retractions, {sum('starting again' in x for x in self.cell.lines)} starts again, {time.monotonic() - begin:.0f} s", flush=True)


class Soak:
    def __init__(self, a, pb, rpc, folder, hosts):
        self.a, self.pb, self.rpc, self.folder, self.hosts = a, pb, rpc, folder, hosts
        self.model, self.cache = os.path.join(a.source, "models/demo"), os.path.join(folder, "weights")
        os.mkdir(self.cache)
        self.requests = load.random_requests(N_REQUESTS, REQUESTS_SEED, longest=LONGEST)
        self.often = self.requests + 2 * self.requests[::3]    # little at first, and grows: of these pages run out
        with cells.Cell(a.bin, self.model, "both1", "--threads", "1") as cell, cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            self.want = load.each([(r[0], r) for r in self.requests], 8, lambda r: client.run(*r, salt=r[0])[0])
            assert cell.stop() == 0, cell.log()
        rng = random.Random(REQUESTS_SEED)
        ids = {f"c{i}.ids": np.array(load.random_ids(rng, 90), np.int32) for i in range(6)}
        tensors.write(os.path.join(folder, "ids"), ids | {f"c{i}.prompt": np.array([10 + 15 * i], np.int32) for i in range(6)})
        subprocess.run(self.logits_command(os.path.join(folder, "out")), check=True, capture_output=True)
        with open(os.path.join(folder, "out"), "rb") as f:
            self.logits = f.read()

    def logits_command(self, out):
        return [os.path.join(self.a.bin, "baton-logits"), "--model", self.model, "--ids", os.path.join(self.folder, "ids"), "--out", out, "--both", "1", "--threads", "1"]

    def check_nothing_left(self):
        """In this namespace nobody else's things are."""
        end = time.monotonic() + cells.GONE_S
        while left := [(p, cells.name_of(p)) for p in map(int, filter(str.isdigit, os.listdir("/proc")))
                       if (cells.name_of(p) or "").startswith(PROGRAMS) and cells.state_of(p) != "Z"] + os.listdir("/dev/shm"):
            assert time.monotonic() < end, f"left: {left}"
            time.sleep(0.1)
        for h in self.hosts.list if self.hosts else ():
            h.nothing_left(cells.GONE_S)
        left = [x for x in os.listdir(os.environ["TMPDIR"]) if x not in self.files]
        assert not left, f"files left: {left}"

    def run(self):
        self.files = os.listdir(os.environ["TMPDIR"])
        for seed in range(self.a.seed, self.a.seed + self.a.rounds):
            one = Round(self, seed)
            try:
                one.run()
            except BaseException as e:
                print(f"seed {seed} ({one.what}): {e!r}\n" + "\n".join([*one.events, one.cell.log()]), file=sys.stderr, flush=True)
                raise
            finally:
                if self.a.keep:
                    with open(os.path.join(self.a.keep, f"{seed}.log"), "w") as f:
                        f.write("\n".join([one.what, *one.errors, *one.events, *one.cell.lines]))


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--setting", choices=["local", "hosts"], default="local")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=1)
    ap.add_argument("--faults", type=int, default=4)
    ap.add_argument("--timeout-s", type=int, default=4)
    ap.add_argument("--keep", help="folder for the log of a round that fails")
    a = ap.parse_args()
    a.bin, a.source = os.path.abspath(a.bin), os.path.abspath(a.source)
    net.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    net.run("ip", "link", "set", "lo", "up")
    pb, rpc = cells.stubs(a.source)
    with tempfile.TemporaryDirectory() as folder:
        hosts = net.Hosts(3, folder) if a.setting == "hosts" else None
        try:
            Soak(a, pb, rpc, folder, hosts).run()
        finally:
            if hosts:
                hosts.close()
    return 0


sys.exit(main())
