#!/usr/bin/env python3
"""The kill test: ranks die, stop and wake, links are cut and hosts lose power, under mixed load, and no client's stream changes.

    chaos.py --bin DIR --source DIR [--setting local|hosts] [--faults 30] [--seed N] [--timeout-s N] [--limit-p50 S] [--limit-p99 S] [--limit-restart S]
             [--json FILE] [--plot FILE]

A cell of 2 prefill and 3 decode ranks with 2 spares: on this machine, or (hosts) over three network namespaces by TCP.  Faults are dealt from a
deck that has each kind at each moment once: a rank is struck while cells load, while nothing runs, while a prompt is computed, while its pages are
handed over, while tokens are generated, while the others regroup after another loss, and while a spare joins.  When too few ranks are left, the
last ones of a role die: the cell is started again under the same coordinator, twice; then a new one is made.

After each cell: every stream equals its undisturbed run bit by bit (ids, logprobs, alternatives, finish reason, for every choice), with exactly one
terminal message; every rank that was left has found its page pool sound and left with 0; no process, no zombie, and nothing in /dev/shm or /tmp is
left.  A rank that was stopped and wakes after its removal leaves by itself, and so do those of a host whose link is cut for good.

A pause is the longest silence of a stream that was being answered when the fault came.  What a hang costs is its detection deadline more."""
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
if "hosts" in sys.argv:
    import hosts as net
    net.enter()
import cell as cells  # noqa: E402
import chaos_report  # noqa: E402
import load  # noqa: E402
from chaos_load import Load, Stream, requests_of  # noqa: E402

RESTARTS = 2
SHORT_S = 0.2    # a stop that nobody notices; the other one, "stop", is longer than every deadline
STOPS = ("stop 0.2 s", "stop")
CUT_S = 0.5
LONG_S = 0.5     # a pause of which the log's own words are kept
TELLING = re.compile(r" [WE] (?!.*queued again)|has taken seat|prepares for seat|regrouped in epoch|serves with")
POOL_PAGES = 160
SETTLE_S = 120   # for a fault's streams to go on
AGAIN_S = 240    # for a cell to be started again, over hosts that have been powered on a moment ago too
GONE_S = 120     # for a host that is cut off to end what runs there
MOMENTS = ["loading", "idle", "prefill", "hand-off", "decode", "regrouping", "joining"]
SIGNALS = ["SIGKILL", "SIGABRT", *STOPS]
LINKS = ["cut 0.5 s", "cut", "power off"]
MAP = "prefill n1\nprefill n2\ndecode n1\ndecode n2\ndecode n3\nspare n3\nspare n1\n"
HOST_OF = [0, 1, 0, 1, 2, 2, 0]
N_SEATS = MAP.count("prefill") + MAP.count("decode")
EXPECTED = re.compile(r"a wait passed its deadline|the cell has failed: |the worker died|lost: another rank|has lost its seat|gone or|no coordinator at|the job has lost|PMIX ERROR|has been removed from its cell|"
                      r"the coordinator has not said|rank \d+ is to prepare|MPI did not start")


class Chaos:
    def __init__(self, a, pb, rpc, hosts=None):
        self.a, self.pb, self.rpc, self.hosts = a, pb, rpc, hosts
        self.rng, self.requests = random.Random(a.seed), requests_of(a.seed, 40)
        self.faults, self.deck, self.cell_number, self.n_streams, self.n_fenced, self.n_all_restarts = [], [], 0, 0, 0, 0
        self.when, self.begin = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), time.monotonic()
        self.stop_s = {"stop 0.2 s": SHORT_S, "stop": a.timeout_s + 3}
        self.want, self.model = {}, os.path.join(a.source, "models/demo")
        with cells.Cell(a.bin, self.model, "1+1") as cell:
            client = load.Client(pb, rpc, cell.channel())
            for request in self.requests:
                stream = Stream(client, request)
                stream.run()
                self.want[request[0]] = stream.result

    # ---- the cell

    def new_cell(self):
        more = ["--http-port", "0", "--on-death", "replace", "--timeout-s", str(self.a.timeout_s), "--rank-timeout-s", str(self.a.timeout_s + 1), "--rejoin-s", "5",
                "--restarts", "20", "--orphan-s", "5", "--stall-s", str(self.a.stall_s), "--kv-bytes", str(POOL_PAGES * load.page_bytes(self.model))]
        if self.hosts:
            self.cell = cells.Cell(self.a.bin, self.model, "hosts", *self.hosts.ranks(MAP), *more, hosts=self.hosts)
        else:
            self.cell = cells.Cell(self.a.bin, self.model, "2+3", "--spares", "2", *more)
        self.cell.wait_ready()
        self.cell_number, self.n_restarts, self.seen, self.lost_hosts = self.cell_number + 1, 0, set(), {}
        self.begin_generation()
        self.load = Load(self.pb, self.rpc, self.cell, self.requests, self.rng)

    def begin_generation(self):
        """All ranks are there, for the first time or again."""
        self.first_line = len(self.cell.lines)
        self.dead, self.stopped, self.pids = set(), {}, self.cell.ranks()
        self.seen |= set(cells.descendants(self.cell.process.pid)) | {self.cell.process.pid}
        self.learn_roles()

    def status(self):
        address = next(m.group(1) for m in (re.search(r"http://([\d.:]+)", x) for x in self.cell.lines) if m)
        return cells.status(address)

    def learn_roles(self):
        """What each rank does by now; a spare that prepares has its role already."""
        self.roles = {r["rank"]: r["role"] for r in self.status()["ranks"]}
        for m in map(re.compile(r"spare rank (\d+) prepares for seat \d+ of the (\w+) group").search, self.cell.lines[self.first_line:]):
            if m and self.roles.get(int(m.group(1))) == "spare":
                self.roles[int(m.group(1))] = "prefill" if m.group(2) == "first" else "decode"

    def end_cell(self):
        self.load.stop()
        self.check_streams()
        self.load.client.wait_drained()
        self.wake_stopped(all_of_them=True)
        self.check_pools()
        self.revive_hosts()
        self.cell.note_scratch()
        self.wait_until("an end of zombies", lambda: not any(cells.state_of(p) == "Z" for p in cells.descendants(self.cell.process.pid)))
        code = self.cell.stop()
        assert code == 0, f"baton-run ended with {code}\n{self.cell.log()}"
        self.cell.wait_nothing_left(self.seen)
        for h in self.hosts.list if self.hosts else ():
            h.nothing_left(GONE_S)
        levels = {level: [x for x in self.cell.lines if re.match(rf"\S+ \d\d:\d\d:\d\d\.\d+ {level} ", x)] for level in "EI"}
        assert levels["I"], f"no line of the log is known as one\n{self.cell.log()}"
        bad = [x for x in levels["E"] if not EXPECTED.search(x)]
        assert not bad, "errors that no fault explains:\n" + "\n".join(bad)

    def check_streams(self):
        assert not self.load.errors, f"{self.load.errors[:3]}\n{self.cell.log()}"
        for s in self.load.streams:
            assert s.result == self.want[s.name], f"{s.name} differs from its undisturbed run, after {self.faults[-5:]}: {s.result} is not {self.want[s.name]}\n{self.cell.log()}"
        self.n_streams += len(self.load.streams)

    def check_pools(self):
        """Each page of each rank that is left is free or cached."""
        end = time.monotonic() + 60
        while True:
            ranks = [r for r in self.status()["ranks"] if r["role"] != "lost"]
            bad = [r for r in ranks if r["pages_free"] + r["pages_cached"] != r["pages_total"]]
            if ranks and not bad:
                return
            assert time.monotonic() < end, f"pages are missing: {bad}"
            time.sleep(0.1)

    # ---- who can be struck

    def serves(self, without):
        """Somebody is left for every role, or spares for all empty seats: which of them they take first depends on when each loss becomes known."""
        alive = [role for rank, role in self.roles.items() if role != "lost" and rank not in self.dead | without]
        seated = len(alive) - alive.count("spare")
        return {"prefill", "decode"} <= set(alive) or alive.count("spare") >= N_SEATS - seated

    def alive(self, *roles):
        return [rank for rank, role in self.roles.items() if role in roles and rank not in self.dead]

    def targets(self, kind, roles, beside=frozenset()):
        """Ranks, or hosts, of these roles that may be lost beside others."""
        ranks = [r for r in self.alive(*roles) if r not in beside]
        if kind not in LINKS:
            return [r for r in ranks if kind == "stop 0.2 s" or self.serves(beside | {r})]
        found = sorted({HOST_OF[r] for r in ranks} - set(self.lost_hosts))
        return [h for h in found if kind == "cut 0.5 s" or self.serves(beside | self.ranks_on(h))]

    def ranks_on(self, host):
        return {r for r in self.roles if HOST_OF[r] == host}

    def roles_at(self, moment):
        return {"prefill": ("prefill",), "decode": ("decode",), "hand-off": ("prefill", "decode")}.get(moment, ("prefill", "decode", "spare"))

    def pairs(self, kind, moment):
        """(first, second) of a rank that is killed and what is struck then."""
        if moment == "joining" and not self.alive("spare"):
            return []
        return [(r, v) for r in self.targets("SIGKILL", ("prefill", "decode")) for v in self.targets(kind, ("prefill", "decode", "spare"), frozenset([r]))]

    def possible(self, card):
        moment, kind = card
        if moment == "loading":
            return self.n_restarts < RESTARTS
        return bool(self.pairs(kind, moment) if moment in ("regrouping", "joining") else self.targets(kind, self.roles_at(moment)))

    def draw(self):
        """A card of the deck that can be played now; None: the cell is worn out."""
        if not self.deck:
            self.deck = [(m, k) for m in MOMENTS for k in (SIGNALS if not self.hosts or m == "loading" else [*LINKS, "SIGKILL", "stop"])
                         if not self.a.only or f"{m}:{k}" in self.a.only]
            self.rng.shuffle(self.deck)
        found = [c for c in self.deck if self.possible(c)]
        if len(self.alive("prefill", "decode", "spare")) > 5:    # a cell is not started again before it is worn
            found = [c for c in found if c[0] != "loading"] or found
        joining = [c for c in found if c[0] == "joining"]    # possible while there are spares
        card = self.rng.choice(joining) if joining and self.rng.random() < 0.5 else found[0] if found else None
        if card:
            self.deck.remove(card)
        return card

    # ---- moments

    def wait_until(self, what, condition, seconds=SETTLE_S, pause=0.0003):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"{what} did not come within {seconds} s\n{self.said()}"
            assert not self.load.errors, f"{self.load.errors}\n{self.said()}"
            assert self.cell.process.poll() is None, "the cell has ended\n" + self.cell.log()
            time.sleep(pause)

    def said(self):
        """What the log says of this generation, but for the ordinary course of requests."""
        return "\n".join([x for x in self.cell.lines[self.first_line:] if " I coordinator req=" not in x][-200:])

    def await_moment(self, moment):
        time.sleep(self.rng.uniform(0.02, 0.4))
        if moment == "prefill":
            after = self.rng.uniform(0.001, 0.008)
            self.wait_until("a prompt that is computed", lambda: any(len(s.times) == 1 and after < time.monotonic() - s.times[0] < 0.05 for s in self.load.open()))
        elif moment == "hand-off":
            waiting = {}

            def first_token():
                for s in self.load.open():
                    if len(s.times) == 1:
                        waiting[id(s)] = s
                return any(len(s.times) == 2 for s in waiting.values())
            self.wait_until("a first token", first_token)
        elif moment == "decode":
            self.wait_until("a token", lambda: any(len(s.times) > 2 for s in self.load.open()))

    # ---- faults

    def note(self, moment, kind, victim, **more):
        name = f"rank {victim}" if kind not in LINKS else f"host n{victim + 1}"
        fault = dict(cell=self.cell_number, moment=moment, kind=kind, victim=name, at=time.monotonic(), clock=time.time(), line=len(self.cell.lines), restart=False,
                     again_loading=False, beside=bool(self.stopped), load=os.getloadavg()[0], pauses=[], again=0, **more)
        self.faults.append(fault)
        return fault

    def send(self, victim, number):
        """The cell may have removed it meanwhile, or be about to, since a rank that gets little of a busy machine looks like one that stands still."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[victim], number)

    def strike(self, moment, kind, victim):
        fault = self.note(moment, kind, victim)
        if kind in LINKS:
            self.strike_host(kind, victim)
            return fault
        self.send(victim, getattr(signal, kind) if kind not in STOPS else signal.SIGSTOP)
        if kind == "stop 0.2 s":
            time.sleep(self.stop_s[kind])
            self.send(victim, signal.SIGCONT)
            return fault
        self.dead.add(victim)
        if kind in STOPS:
            self.stopped[victim] = fault["at"] + self.stop_s[kind]
            fault["beside"] = True
        return fault

    def strike_host(self, kind, host):
        if kind == "power off":
            self.hosts[host].power_off()
        else:
            self.hosts[host].cut()
        if kind == "cut 0.5 s":
            time.sleep(CUT_S)
            self.hosts[host].mend()
            return
        self.lost_hosts[host] = kind
        self.dead |= self.ranks_on(host)
        for rank in self.ranks_on(host):
            if self.stopped.pop(rank, None) and kind == "cut":
                self.send(rank, signal.SIGCONT)    # it has to end by itself

    def revive_hosts(self):
        for host, kind in self.lost_hosts.items():
            if kind == "power off":
                self.hosts.power_on(host)
            else:
                self.hosts[host].nothing_left(GONE_S)    # the side without the coordinator ends by itself
                self.hosts[host].mend()
        self.lost_hosts = {}

    def wake_stopped(self, all_of_them=False):
        for rank, when in list(self.stopped.items()):
            if time.monotonic() < when and not all_of_them:
                continue
            self.learn_roles()
            self.send(rank, signal.SIGCONT)
            del self.stopped[rank]
            if self.roles.get(rank, "lost") != "lost":    # nobody needed it meanwhile
                self.dead.discard(rank)
                continue
            end = time.monotonic() + 60
            while cells.state_of(self.pids[rank]) not in (None, "Z"):
                assert time.monotonic() < end, f"rank {rank} was removed while it was stopped, woke up, and is still there\n{self.cell.log()}"
                time.sleep(0.02)
            self.n_fenced += 1

    def settle(self, faults):
        """Until each stream that the faults met goes on, or has ended, and the dead are known as lost; then the streams' pauses.  What comes right after
        a fault was on its way before."""
        streams, begin = [s for s in self.load.streams if s.is_open()], time.monotonic() + 0.25
        self.wait_until(f"a token of each stream after {faults}", lambda: time.monotonic() > begin and not any(s.is_open() and s.times[-1] < begin for s in streams))
        self.wake_stopped()
        self.wait_until(f"the loss of all of {self.dead - set(self.stopped)}", self.knows_losses, pause=0.05)
        if self.has_failed():
            self.begin_unplanned(faults)
        for f in faults:
            if f["moment"] in ("regrouping", "joining") and self.came_late(f):
                self.deck.append((f["moment"], f["kind"]))
                f["moment"] = "decode"
            f["pauses"] = sorted(s for s in (x.silence(f["at"], f["at"] + 1.0) for x in self.load.streams) if s is not None)
            f["again"] = sum("queued again" in x for x in self.cell.lines[f["line"]:])
            if f["pauses"] and f["pauses"][-1] > LONG_S and f["kind"] in ("SIGKILL", "SIGABRT") and not f["restart"] and not f["beside"]:
                f["said"] = [x for x in self.cell.lines[f["line"]:] if TELLING.search(x)][:12]

    def knows_losses(self):
        """The coordinator has missed the ranks that died.  Those of a host that is cut off it misses when their deadlines pass."""
        if self.has_failed():
            return True
        self.learn_roles()
        return all(self.roles.get(r) == "lost" for r in self.dead - set(self.stopped) - {r for h in self.lost_hosts for r in self.ranks_on(h)})

    def has_failed(self):
        """The cell of this generation, with a role that nobody had any more."""
        return any("the cell has failed" in x for x in self.cell.lines[self.first_line:])

    def begin_unplanned(self, faults):
        """A busy machine has kept more ranks from answering than the faults have struck: the cell is started again here too."""
        removed = {int(m.group(1)) for m in map(re.compile(r" rank (\d+) \(.*\) is removed from the cell").search, self.cell.lines[self.first_line:]) if m}
        assert removed - self.dead, f"the cell was lost, which no fault explains: {self.dead} were struck\n{self.said()}"
        print(f"cell {self.cell_number} was lost by itself: ranks {removed - self.dead} were too slow", file=sys.stderr, flush=True)
        for f in faults:
            f["restart"] = True
        self.wake_stopped(all_of_them=True)
        self.revive_hosts()
        self.begin_again()

    def play_pair(self, moment, kind):
        """A rank is killed; as soon as the others hear of it, or a spare prepares for its seat, something else is struck."""
        first, second = self.rng.choice(self.pairs(kind, moment))
        self.await_moment("decode")
        faults = [self.strike("decode" if self.roles[first] == "decode" else "prefill", self.rng.choice(["SIGKILL", "SIGABRT"]), first)]
        if moment == "joining":
            joiner = self.await_joiner(faults[0]["line"])
            if joiner is not None and kind not in LINKS and (kind == "stop 0.2 s" or self.serves({joiner})) and self.rng.random() < 0.6:
                second = joiner
        time.sleep(self.rng.uniform(0, 0.002 if moment == "joining" else 0.012))
        faults.append(self.strike(moment, kind, second))
        faults[0]["beside"] = faults[0]["beside"] or kind not in ("SIGKILL", "SIGABRT")    # the pause may be the other one's
        return faults

    def await_joiner(self, line):
        """The spare that prepares; None: there was none any more."""
        found, end = [], time.monotonic() + 2
        while not found and time.monotonic() < end:
            found = [x for x in self.cell.lines[line:] if "prepares for seat" in x]
            time.sleep(0.0003)
        return int(re.search(r"spare rank (\d+)", found[0]).group(1)) if found else None

    def came_late(self, fault):
        """What it was to disturb was over before it: then the deck has the card again."""
        lines = self.cell.lines[fault["line"] - 200 if fault["line"] > 200 else 0:]
        before = [x for x in lines if "regrouped in epoch" in x or "has taken seat" in x or "prepares for seat" in x]
        before = [x for x in before if abs(chaos_report.clock_of(x) - fault["clock"]) < 0.5 and chaos_report.clock_of(x) < fault["clock"]]
        if fault["moment"] == "joining":
            return not before or "has taken seat" in [x for x in before if "seat" in x][-1]
        return any("regrouped in epoch" in x for x in before)    # the first rank of the group says so for all

    def play(self, moment, kind):
        if moment in ("regrouping", "joining"):
            return self.play_pair(moment, kind)
        victim = self.rng.choice(self.targets(kind, self.roles_at(moment)))
        if moment == "idle":
            self.load.stop()
            self.check_streams()
            time.sleep(self.rng.uniform(0.05, 0.4))
        else:
            self.await_moment(moment)
        faults = [self.strike(moment, kind, victim)]
        if moment == "idle":
            self.load = Load(self.pb, self.rpc, self.cell, self.requests, self.rng)
            time.sleep(0.1)    # for its streams to be there
        return faults

    def wear_out(self, loading=None):
        """The last ranks of a role die, and the spares: the cell is started again under the same coordinator, and the streams go on there.
        loading: what strikes one of the ranks that are started."""
        self.wake_stopped(all_of_them=True)
        self.revive_hosts()
        time.sleep(0.3)    # spares that woke up take their seats
        self.learn_roles()
        if self.has_failed():
            self.begin_unplanned([])
        victims = self.alive("spare", self.rng.choice(["prefill", "decode"]))
        assert victims, f"a role has nobody left, which no fault explains: {self.roles}\n{self.cell.log()}"
        old = set(self.pids.values())
        faults = [self.note("last of a role", "SIGKILL", victims[-1])]
        for rank in victims:
            self.send(rank, signal.SIGKILL)
        if loading:
            faults.append(self.strike_loading(loading, old))
        for f in faults:
            f["restart"], f["again_loading"] = True, bool(loading)
        self.begin_again()
        self.settle(faults)

    def begin_again(self):
        self.wait_until("a cell started again", self.serves_again, AGAIN_S)
        self.n_restarts, self.n_all_restarts = self.n_restarts + 1, self.n_all_restarts + 1
        self.begin_generation()

    def serves_again(self):
        """The cell has been started since this generation began, and it is not one whose start has been given up, and which is about to end."""
        marks = [m.group(0) for m in map(re.compile("ending them|ranks have ended|serving again").search, self.cell.lines[self.first_line:]) if m]
        given_up = max((i for i, m in enumerate(marks) if m == "ending them"), default=-1)
        return marks[-1:] == ["serving again"] and (given_up < 0 or "ranks have ended" in marks[given_up:])

    def strike_loading(self, kind, old):
        fresh = {}

        def all_started():
            fresh.update((r, p) for r, p in self.cell.ranks().items() if p not in old)
            return len(fresh) == len(self.roles)
        self.wait_until("new ranks", all_started)
        time.sleep(self.rng.uniform(0, 0.4))
        victim = self.rng.choice(sorted(fresh))
        late = self.serves_again()
        fault = self.note("loading" if not late else "decode", kind, victim)
        self.pids = fresh
        self.send(victim, getattr(signal, kind) if kind not in STOPS else signal.SIGSTOP)
        self.seen |= set(fresh.values())
        if kind in STOPS:
            time.sleep(self.stop_s[kind])
            self.send(victim, signal.SIGCONT)
        if late:
            self.deck.append(("loading", kind))
        return fault

    # ---- all of it

    def enough(self):
        """As many as were asked for, and every moment among them where that can be."""
        struck = {f["moment"] for f in self.faults}
        if self.a.minutes and time.monotonic() - self.begin > 60 * self.a.minutes:
            return True
        return len(self.faults) >= self.a.faults and (self.a.faults < 30 or self.a.only or struck >= set(MOMENTS) or len(self.faults) >= 2 * self.a.faults)

    def run_cell(self):
        self.new_cell()
        while not self.enough():
            card = self.draw()
            if card is None or card[0] == "loading":
                if card is None and self.n_restarts >= RESTARTS:
                    break
                self.wear_out(card and card[1])
            else:
                self.settle(self.play(*card))
        self.end_cell()

    def run(self):
        """Returns what chaos_report takes."""
        try:
            while not self.enough():
                self.run_cell()
                print(f"{time.monotonic() - self.begin:.0f} s: {len(self.faults)} of {self.a.faults} faults, {self.n_streams} streams, cell {self.cell_number} has ended",
                      file=sys.stderr, flush=True)
        except BaseException:
            print(f"after {len(self.faults)} faults with seed {self.a.seed}; the last ones: {self.faults[-4:]}", file=sys.stderr)
            self.give_up()
            raise
        return self.found()

    def found(self):
        loads = sorted(f["load"] for f in self.faults) or [0]
        return dict(setting=self.a.setting, seed=self.a.seed, asked=self.a.faults, minutes=self.a.minutes, timeout_s=self.a.timeout_s, stall_s=self.a.stall_s, when=self.when, seconds=round(time.monotonic() - self.begin),
                    commit=chaos_report.commit_of(self.a.source), machine=chaos_report.machine(), load=f"{loads[len(loads) // 2]:.1f} in the middle, {loads[-1]:.1f} at most",
                    moments=MOMENTS, streams=self.n_streams, cells=self.cell_number, restarts=self.n_all_restarts, fenced=self.n_fenced,
                    faults=[{k: v for k, v in f.items() if k not in ("at", "line", "clock")} for f in self.faults])

    def give_up(self):
        cell = getattr(self, "cell", None)
        if cell is not None and self.a.keep_log:
            with open(self.a.keep_log, "w") as f:
                f.write("\n".join(cell.lines))
            chaos_report.write(self.found(), self.a.keep_log + ".json")
        if cell is None or cell.process.poll() is not None:
            return
        for pid in cell.ranks().values():    # those that a fault has stopped do not end otherwise
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                pass
        self.load.stopping = True
        cell.stop()


def arguments(doc):
    ap = cells.arguments(doc)
    ap.add_argument("--setting", choices=["local", "hosts"], default="local")
    ap.add_argument("--faults", type=int, default=30)
    ap.add_argument("--only", action="append", help="MOMENT:KIND to strike, of all; may be given several times")
    ap.add_argument("--minutes", type=float, help="no new fault after so long")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--timeout-s", type=int, default=2, help="how long ranks wait for one another; the coordinator waits a second longer for a silent one")
    ap.add_argument("--stall-s", type=int, default=15, help="how long ranks that load may say nothing; below 5 some starts are given up")
    ap.add_argument("--limit-p50", type=float, help="of the pauses after kills, seconds")
    ap.add_argument("--limit-p99", type=float)
    ap.add_argument("--limit-restart", type=float, help="of the longest pause of a cell that was restarted")
    ap.add_argument("--json")
    ap.add_argument("--plot")
    ap.add_argument("--keep-log", help="where the cell's log goes when the test fails")
    return ap


def run(a):
    """The whole test; returns what it found."""
    a.bin, a.source = os.path.abspath(a.bin), os.path.abspath(a.source)
    pb, rpc = cells.stubs(a.source)
    if a.setting == "local":
        return Chaos(a, pb, rpc).run()
    net.need_survival_of_hosts()
    with tempfile.TemporaryDirectory(prefix="bh", ignore_cleanup_errors=True) as scratch:
        hosts = net.Hosts(3, scratch)
        try:
            return Chaos(a, pb, rpc, hosts).run()
        finally:
            hosts.close()


def hold(a, found):
    """The limits that were given."""
    rows = {name: (p50, p99, most) for name, _, _, p50, p99, most in chaos_report.rows(found["faults"])}
    kills, restarts = rows.get("killed, absorbed", (0, 0, 0)), rows.get("cell restarted", (0, 0, 0))
    missing = set(MOMENTS) - {f["moment"] for f in found["faults"]}
    assert not missing or a.only or a.faults < 30, f"nothing was struck at these moments: {missing}"
    for limit, got, name in ((a.limit_p50, kills[0], "median of pauses after a kill"), (a.limit_p99, kills[1], "p99 of pauses after a kill"),
                             (a.limit_restart, restarts[2], "longest pause of a restart")):
        assert limit is None or got <= limit, f"the {name} is {got:.3f} s, at most {limit} s are promised"


def main():
    a = arguments(__doc__).parse_args()
    found = run(a)
    print("\n".join([*chaos_report.summary(found), "", *chaos_report.tables(found)]))
    if a.json:
        chaos_report.write(found, a.json)
    if a.plot:
        chaos_report.plot(found, a.plot)
    hold(a, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
