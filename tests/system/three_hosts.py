#!/usr/bin/env python3
"""A cell over three hosts (network namespaces): mpirun with a rank map and an agent in place of ssh, ranks over TCP.

    three_hosts.py --bin DIR --source DIR [--only NAME]

first_token: one command starts it, the same tokens come as from one machine, nothing is left on any host.
program_missing: a start that cannot go on names the host that it waits for, and why.
node_killed: a host loses power under load; the cell is started again once the host is back, and every stream goes on where it was.
node_replaced: with a hostfile and --on-death=replace the ranks that are left go on without a restart, those on the host of a killed rank and those
beside a killed host, and spares on another host join.
link_cut_3s: nothing is lost and nobody is removed, nor by a slow link; then baton-run itself is killed, and nothing is left on any host.
one_way: what a prefill rank sends does not come to one of the decode ranks: every stream goes on by the other one.
slow_link: the log, the page and the metrics name the two ranks of each pair that a slow link is between, hand-offs and exchanges; nobody is removed.
link_cut_for_good: the side without the coordinator stops by itself; the cell is started again without that host, whose name the log and the page
give, the open requests go on, and the next start has the host again."""
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import hosts as net  # noqa: E402

net.enter()

import cell as cells  # noqa: E402
import grpc  # noqa: E402
import load  # noqa: E402

GONE_S = 120
MAP = "prefill n1\ndecode n2\ndecode n3\n"


def spread(a, hosts, *more, rank_map=MAP):
    """baton-run over the hosts, with a rank map."""
    return cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "hosts", *hosts.ranks(rank_map), *more, hosts=hosts)


class Load:
    """Requests with known answers: each stream is compared with the undisturbed one, and ends once."""

    def __init__(self, pb, rpc, cell):
        self.pb, self.stub = pb, rpc.VllmEngineStub(cell.channel())
        self.want, self.errors, self.threads = {}, [], []

    def ask(self, i, n, on_token=None):
        return load.ask(self.pb, self.stub, i, n, on_token)

    def learn(self, n, n_tokens):
        self.n_tokens = n_tokens
        self.want = load.ask_all(self.pb, self.stub, n, n_tokens)

    def start(self):
        """All of them at once; returns when each has some tokens."""
        started = threading.Semaphore(0)

        def one(i):
            def on_token(n):
                if n >= 3 and i not in seen:
                    seen.add(i)
                    started.release()
            try:
                got = self.ask(i, self.n_tokens, on_token)
                if got != self.want[i]:
                    self.errors.append(f"stream {i} differs")
            except (grpc.RpcError, AssertionError) as e:
                self.errors.append(f"stream {i}: {e}")
            started.release()
        seen = set()
        self.threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in self.want]
        for t in self.threads:
            t.start()
        for _ in self.threads:
            started.acquire()

    def finish(self, cell, seconds=cells.START_S):
        end = time.monotonic() + seconds
        for t in self.threads:
            t.join(max(0, end - time.monotonic()))
            assert not t.is_alive(), f"a request never ended\n{cell.log()}"
        assert not self.errors, f"{self.errors}\n{cell.log()}"


def stop(cell, hosts):
    cell.process.send_signal(signal.SIGINT)
    assert cell.wait_gone(GONE_S) == 0, cell.log()
    for h in hosts.list:
        h.nothing_left(GONE_S)


def first_token(a, pb, rpc, hosts):
    with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "1+1") as alone:
        alone.wait_ready()
        want = Load(pb, rpc, alone).ask(3, 24)
    cell = spread(a, hosts)
    cell.wait_ready()
    for i, name in enumerate(("n1", "n2", "n3")):
        assert len(hosts[i].processes("baton-worker")) == 1, f"{name}: {hosts[i].processes('baton')}"
    assert Load(pb, rpc, cell).ask(3, 24) == want, "three hosts compute other tokens than one"
    stop(cell, hosts)
    print("three hosts: the tokens of one machine, nothing left", flush=True)


def node_killed(a, pb, rpc, hosts):
    cell = spread(a, hosts, "--on-death", "restart", "--restarts", "20", "--stall-s", "20")
    cell.wait_ready()
    requests = Load(pb, rpc, cell)
    requests.learn(4, 300)
    requests.start()
    begin = time.monotonic()
    hosts[2].power_off()
    cell.wait_line("starting again")
    hosts.power_on(2)
    cell.wait_line("serving again")
    print(f"n3 killed and powered on again: serving again after {time.monotonic() - begin:.1f} s", flush=True)
    requests.finish(cell)
    stop(cell, hosts)


def slow_agent(a, pb, rpc, hosts):
    """It answers later than a restart waits at first, and no role can do without its host."""
    cell = spread(a, hosts, "--on-death", "restart", "--restarts", "20", rank_map="prefill n1\ndecode n2\n")
    cell.wait_ready()
    with open(hosts.agent) as f:
        text = f.read()
    with open(hosts.agent + ".new", "w") as f:
        f.write(text.replace("#!/bin/sh\n", "#!/bin/sh\nsleep 6\n", 1))
    os.chmod(hosts.agent + ".new", 0o755)
    os.replace(hosts.agent + ".new", hosts.agent)
    begin = time.monotonic()
    victim = next(iter(hosts[1].processes("baton-worker")))
    hosts[1].shell(f"kill -9 {victim}")
    cell.wait_line("waiting for an answer")
    cell.wait_line("serving again")
    print(f"an agent that takes 6 s: serving again after {time.monotonic() - begin:.1f} s", flush=True)
    stop(cell, hosts)


def program_missing(a, pb, rpc, hosts):
    """On one host; mpirun says nothing of it."""
    hosts[2].shell(f"mount -t tmpfs none {a.bin}")
    cell = spread(a, hosts, "--stall-s", "25")
    cell.wait_line("the start waits: host n3: ")
    assert cell.process.wait(cells.START_S) == 1
    log = cell.log()
    assert "no sign of life for 25 s while the ranks load; host n3: " in log and "not found" in log and "host n1: " not in log, log
    for h in hosts.list:
        h.nothing_left(GONE_S)
    print("a host without the program is named, with the reason", flush=True)


def node_replaced(a, pb, rpc, hosts):
    net.need_survival_of_hosts()
    path = os.path.join(hosts.scratch, "hostfile")
    with open(path, "w") as f:
        f.write("n1 slots=1\nn2 slots=2\nn3 slots=4\n")
    os.environ["OMPI_MCA_btl"] = "tcp,self"    # ranks leave nothing in /dev/shm by which one could tell whether others are there
    try:
        cell = cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "hosts", "--hostfile", path, "--prefill", "1", "--decode", "4", "--spares", "2",
                          "--control", f"{net.NET}.1:0", "--restarts", "5", hosts=hosts)
    finally:
        del os.environ["OMPI_MCA_btl"]
    cell.wait_ready()
    requests = Load(pb, rpc, cell)
    requests.learn(6, 300)
    requests.start()
    first = time.monotonic()
    os.kill(cell.ranks()[1], signal.SIGKILL)
    at = cell.wait_line("has taken seat")
    begin = time.monotonic()
    hosts[0].power_off()    # the only prefill rank
    cell.wait_line("has taken seat", after=at)
    joined = time.monotonic() - begin
    requests.finish(cell)
    lost = [line for line in cell.lines if "was lost" in line]
    assert len(lost) == 2 and "on n2" in lost[0] and "on n1" in lost[1] and not any("starting again" in line for line in cell.lines), cell.log()
    time.sleep(max(0, first + 22 - time.monotonic()))    # a daemon without ranks is ended after 20 s; n2's has one
    requests.start()
    requests.finish(cell)
    assert len([line for line in cell.lines if "was lost" in line]) == 2, cell.log()
    cell.process.send_signal(signal.SIGINT)
    assert cell.wait_gone(GONE_S) == 0, cell.log()
    for h in (hosts[1], hosts[2]):
        h.nothing_left(GONE_S)
    print(f"n1 killed: a spare on n3 has joined after {joined:.2f} s, every stream exact", flush=True)


def link_cut_3s(a, pb, rpc, hosts):
    cell = spread(a, hosts)
    cell.wait_ready()
    requests = Load(pb, rpc, cell)
    requests.learn(4, 300)
    requests.start()
    hosts[1].cut()
    time.sleep(3)
    hosts[1].mend()
    requests.finish(cell)
    hosts[1].slow("8mbit")
    end = time.monotonic() + cells.START_S
    while (n_waited := hosts[1].n_waited()) <= 100:    # a busy machine has little to send
        assert time.monotonic() < end, f"the link was not slow: {n_waited}"
        requests.start()
        requests.finish(cell)
    hosts[1].end_slow()
    assert not any("removed" in line or "was lost" in line for line in cell.lines), cell.log()
    seen = cells.descendants(cell.process.pid)
    cell.process.kill()    # and nothing stays behind, there or here
    for h in hosts.list:
        h.nothing_left(GONE_S)
    cell.wait_nothing_left(seen, GONE_S)
    print(f"a link cut for 3 s, and one that {n_waited} packets had to wait for: nothing lost; baton-run killed: nothing left", flush=True)


def link_cut_for_good(a, pb, rpc, hosts):
    cell = spread(a, hosts, "--on-death", "restart", "--restarts", "20", "--timeout-s", "3", "--rank-timeout-s", "4", "--http-port", "0")
    cell.wait_ready()
    requests = Load(pb, rpc, cell)
    requests.learn(3, 300)
    requests.start()
    begin = time.monotonic()
    hosts[2].cut()
    cell.wait_line("starting again")
    found = time.monotonic() - begin
    cell.wait_line("host n3 is left out: the control address")
    at = cell.wait_line("serving again")
    back = time.monotonic() - begin
    requests.finish(cell)
    status = {"cells": []}
    while not status["cells"]:    # on a busy machine it may have started once more
        assert time.monotonic() - begin < GONE_S, cell.log()
        time.sleep(0.2)
        status = cells.status(cell.http)
    assert status["cells"][0]["left_out"] == "n3" and {r["host"] for r in status["ranks"]} == {"n1", "n2"}, status["cells"]
    hosts[2].nothing_left(GONE_S)    # the cut side does not go on by itself
    hosts[2].mend()
    cell.wait_line("host n3 answers again")
    requests.start()
    os.kill(cell.ranks()[0], signal.SIGKILL)
    cell.wait_line("serving again", after=at)
    requests.finish(cell)
    assert len(hosts[2].processes("baton-worker")) == 1, f"n3 is not used again\n{cell.log()}"
    stop(cell, hosts)
    print(f"a link cut for good: found after {found:.1f} s, the other hosts served after {back:.1f} s, and the cut one when it was back", flush=True)


def one_way(a, pb, rpc, hosts):
    cell = spread(a, hosts, "--on-death", "replace", "--timeout-s", "2", "--http-port", "0")
    cell.wait_ready()
    requests = Load(pb, rpc, cell)
    requests.learn(8, 60)
    requests.start()
    requests.finish(cell)
    assert cells.status(cell.http)["avoided_links"] == []
    hosts[0].lose_to(hosts[1])    # the prefill rank to one of the decode ranks
    begin = time.monotonic()
    requests.start()
    requests.finish(cell)
    took = time.monotonic() - begin
    avoided = [line for line in cell.lines if "a hand-off from rank 0 to rank 1 stood still" in line]
    assert len(avoided) == 1, cell.log()
    (link,) = cells.status(cell.http)["avoided_links"]
    assert (link["from"], link["to"]) == (0, 1) and 600 - took < link["left_s"] <= 600, link
    at = len(cell.lines)
    for _ in range(3):
        requests.start()
        requests.finish(cell)
    assert not any("takes no pages" in line or "stands still" in line for line in cell.lines[at:]), cell.log()
    assert not any("was lost" in line or "starting again" in line for line in cell.lines), cell.log()
    stop(cell, hosts)
    print(f"pages of n1 do not come to n2: every stream exact after {took:.1f} s, and then by n3", flush=True)


def slow_link(a, pb, rpc, hosts):
    cell = spread(a, hosts, "--http-port", "0", rank_map="prefill n1\ndecode n1\ndecode n2\ndecode n3\n")
    cell.wait_ready()
    client, stopping, errors = load.Client(pb, rpc, cell.channel()), threading.Event(), []
    kinds = {"handoff": ({(0, 3)}, 192, 2), "exchange": ({(1, 3), (2, 3)}, 64, 24)}    # pairs; a request's tokens in and out, no prompt cached
    kind = "exchange"

    def go_on(i):
        rng = random.Random(i)
        try:
            while not stopping.is_set():
                _, n_prompt, n_tokens = kinds[kind]
                for _ in client.call(f"c{i}", load.random_ids(rng, n_prompt), n_tokens, {"ignore_eos": True}):
                    pass
        except grpc.RpcError as e:
            errors.append(e.details())

    def slow():
        """(plane, from, to) of the pairs that the page and the metrics name now"""
        page = {(v["plane"], v["from"], v["to"]) for v in cells.status(cell.http)["slow_links"]}
        metric = re.findall(r'baton_link_slowness\{model_name="demo",plane="(\w+)",from="(\d+)",to="(\d+)"', cells.page(cell.http, "/metrics"))
        return page & {(plane, int(a), int(b)) for plane, a, b in metric}

    threads = [threading.Thread(target=go_on, args=(i,), daemon=True) for i in range(8)]
    for t in threads:
        t.start()
    time.sleep(4)
    assert not slow(), f"no link is slow yet: {slow()}"
    hosts[2].slow("2mbit")
    begin, named, want = time.monotonic(), set(), set()
    for kind, (pairs, _, _) in kinds.items():
        want |= {(kind, *p) for p in pairs}
        while not want <= (named := named | slow()):
            assert time.monotonic() < begin + cells.START_S and not errors, f"named: {named}, want {want}; {errors}\n{cell.log()}"
            time.sleep(0.2)
        print(f"a slow link: its pairs ({kind}) named after {time.monotonic() - begin:.1f} s", flush=True)
    said = {m.group(1) for m in map(re.compile("the link between (.*) is slow").search, cell.lines) if m}
    assert named == want and len(said) == 3 and all("on n3)" in pair for pair in said), (named, said)
    hosts[2].end_slow()
    while slow():
        assert time.monotonic() < begin + 2 * cells.START_S, f"still named: {slow()}\n{cell.log()}"
        time.sleep(0.2)
    stopping.set()
    for t in threads:
        t.join(60)
    assert not errors and not any("removed" in line or "was lost" in line for line in cell.lines), cell.log()
    stop(cell, hosts)


CASES = [first_token, program_missing, node_killed, slow_agent, node_replaced, link_cut_3s, one_way, slow_link, link_cut_for_good]


def main():
    a = cells.case_arguments(__doc__, CASES).parse_args()
    a.bin, a.source = os.path.abspath(a.bin), os.path.abspath(a.source)
    scratch = tempfile.mkdtemp(prefix="bh")
    pb, rpc = cells.stubs(a.source)
    try:
        for case in cells.chosen(a, CASES):
            hosts = net.Hosts(3, scratch)
            try:
                case(a, pb, rpc, hosts)
            finally:
                hosts.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


sys.exit(main())
