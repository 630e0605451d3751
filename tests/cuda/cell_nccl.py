#!/usr/bin/env python3
"""Ranks on GPUs with NCCL between them: the module's twin has a NCCL whose ranks are processes of this machine (tests/cuda/fake/nccl.h).

    cell_nccl.py --bin DIR --source DIR

Each request runs alone on --both 1, without lookahead.  Then all arrive at once, with it, at two prefill and three decode ranks, where one
rank is killed in a hand-off, one in an exchange of the decode group within a graph, and one stops in one; two spares take the first two seats.  Once they
have, all requests arrive again.  Every stream is equal, bit by bit, the ranks that wait for the one that stopped name it, with operation
and epoch, and the spares' steps are launched as graphs too.

Then a spare is killed, for which no communicator is made anew, and a rank of each group at once, as if their machine were lost, while
requests run.  Then NCCL fails again and again although all ranks are there: one of them leaves, and says why.  Operations stay on
the GPUs of both decode ranks although their communicator has ended: the ranks leave, and a spare goes on.  Last, a GPU breaks in a hand-off."""
import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
import time

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import cell as cells  # noqa: E402
import load  # noqa: E402
from cell_serving import make_model, make_requests, steps_ahead  # noqa: E402

TIMEOUT_S = 20
PREFILL, KILLED, STOPPED, SPARES = 0, 3, 4, 2    # 0 is also the one that gives the hand-off's communicators their numbers
FATES = f"{PREFILL}:hand-off:2:{signal.SIGKILL} {KILLED}:group:40:{signal.SIGKILL} {STOPPED}:group:90:{signal.SIGSTOP}"


def expect_lines(cell, *patterns):
    log = "\n".join(cell.lines)
    for p in patterns:
        assert re.search(p, log), f"no line has \"{p}\":\n{log}"


def run_alone(a, model, requests):
    os.environ["BATON_LOOKAHEAD"] = "0"
    with cells.Cell(a.bin, model, "both1", "--threads", "1", "--transport", "auto") as cell, cell.channel() as channel:
        client = load.Client(*a.stubs, channel)
        alone = {r[0]: client.run(*r)[0] for r in requests}
        assert cell.stop() == 0, cell.log()
        expect_lines(cell, "between ranks: MPI, through host memory: a cell of one rank needs no other")
        assert steps_ahead(cell) == 0, cell.log()
    del os.environ["BATON_LOOKAHEAD"]
    return alone


def run_all(client, requests, alone):
    todo, got = list(requests), []

    def work():
        request = todo.pop()
        got.append((request[0], client.run(*request)[0]))
    load.in_threads(len(todo), work)
    for name, choices in got:
        assert choices == alone[name], f"{name}: {choices} is not {alone[name]}"
    return len(got)


def run_struck(a, model, requests, alone):
    more = ["--threads", "1", "--queue-s", "600", "--on-death", "replace", "--timeout-s", str(TIMEOUT_S), "--rank-timeout-s", str(6 * TIMEOUT_S),
            "--spares", str(SPARES)]
    os.environ["BT_FAKE_NCCL"] = FATES
    with cells.Cell(a.bin, model, "2+3", *more) as cell, cell.channel() as channel:
        stopped = cell.ranks()[STOPPED]
        try:
            client = load.Client(*a.stubs, channel)
            n = run_all(client, requests, alone)
            at = 0
            for _ in range(SPARES):
                at = cell.wait_line("has taken seat", after=at)
            n += run_all(client, requests, alone)
            client.wait_drained()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
        assert cell.stop() == 0, cell.log()
        assert steps_ahead(cell) > 20, cell.log()
        expect_lines(cell, f"between ranks: NCCL, which all {5 + SPARES} of them have", "hand-off by NCCL in epoch 1: all 5 ranks",
                     r"graphs of decode steps for up to \d+ rows, with their exchanges", r"rank [56] has taken seat \d of the decode group",
                     f"signal {signal.SIGKILL} at an operation of NCCL, hand-off of epoch",
                     f"signal {signal.SIGKILL} at an operation of NCCL, group of [23] ranks",
                     f"signal {signal.SIGSTOP} at an operation of NCCL, group of [23] ranks",
                     rf"(by NCCL, call of the roll|step plan) .*nothing came from ranks: {STOPPED}",
                     r"rank=[56] .* decode steps of epoch \d+ were launched as graphs")
        assert not [x for x in cell.lines if "captured operation" in x], cell.log()
        del os.environ["BT_FAKE_NCCL"]
        return n, sum(" E rank=" in x and "though all" in x for x in cell.lines)


def run_without_a_machine(a, model, requests, alone):
    with cells.Cell(a.bin, model, "2+2", "--threads", "1", "--queue-s", "600", "--on-death", "replace", "--timeout-s", str(TIMEOUT_S),
                    "--rank-timeout-s", str(6 * TIMEOUT_S), "--spares", "1") as cell, cell.channel() as channel:
        client, lost = load.Client(*a.stubs, channel), [cell.ranks()[rank] for rank in (1, 3)]
        os.kill(cell.ranks()[4], signal.SIGKILL)
        cell.wait_line("spare rank 4")

        def strike():
            time.sleep(0.7)
            for pid in lost:
                os.kill(pid, signal.SIGKILL)
        striker = threading.Thread(target=strike)
        striker.start()
        while striker.is_alive():
            run_all(client, requests, alone)
        n = run_all(client, requests, alone)
        client.wait_drained()
        assert cell.stop() == 0, cell.log()
        expect_lines(cell, "hand-off by NCCL in epoch 1: all 4 ranks", "hand-off by NCCL in epoch [3-9]: all [23] ranks", "regrouped in epoch")
        assert not [x for x in cell.lines if re.search("hand-off by NCCL in epoch [2-9]: all 4 ranks", x)], cell.log()    # not for a spare
    return n


def run_in_vain(a, model):
    os.environ["BT_FAKE_NCCL"] = "1:group:5:0"
    with cells.Cell(a.bin, model, "1+2", "--threads", "1", "--on-death", "replace", "--timeout-s", "4") as cell, cell.channel() as channel:
        stub = a.stubs[1].VllmEngineStub(channel)
        try:
            load.ask(a.stubs[0], stub, 0, 400)    # one that is left alone needs no NCCL
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.UNAVAILABLE, e
        cell.wait_lines("decode rank [12] .* was lost: .*NCCL", 1)  # the client may hear of it first
        regroups = sum("rank=1" in x and "regrouped in epoch" in x for x in cell.lines)
        assert 2 <= regroups <= 3, f"{regroups} new beginnings:\n{cell.log()}"
    del os.environ["BT_FAKE_NCCL"]


def run_without_gpus(a, model):
    os.environ["BT_FAKE_NCCL"] = "1:group:5:-1 2:group:5:-1"
    with cells.Cell(a.bin, model, "1+2", "--threads", "1", "--on-death", "replace", "--timeout-s", "4", "--spares", "1") as cell, cell.channel() as channel:
        stub = a.stubs[1].VllmEngineStub(channel)
        assert len(load.ask(a.stubs[0], stub, 0, 40)) == 40
        expect_lines(cell, "decode rank [12] .* was lost: .*CUDA has not come back from the GPU's steps of the last group for")
        assert cell.stop() == 0, cell.log()
    del os.environ["BT_FAKE_NCCL"]


def run_with_a_broken_gpu(a, model):
    """A kernel's fault that the hand-off meets, while no step runs: the rank leaves at once, since its requests would wait for it in vain."""
    os.environ["BT_FAKE_NCCL"] = "1:hand-off:4:-2"
    with cells.Cell(a.bin, model, "1+1", "--threads", "1", "--on-death", "replace", "--timeout-s", "8", "--spares", "1") as cell, cell.channel() as channel:
        stub = a.stubs[1].VllmEngineStub(channel)
        for i in range(5):
            assert len(load.ask(a.stubs[0], stub, i, 10)) == 10
        expect_lines(cell, "decode rank 1 .* was lost: .*an illegal memory access was encountered: a kernel launched before",
                     "rank 2 has taken seat 0 of the decode group")
        assert cell.stop() == 0, cell.log()
        assert not [x for x in cell.lines if "takes no pages" in x], cell.log()
    del os.environ["BT_FAKE_NCCL"]


def main():
    a = cells.arguments(__doc__).parse_args()
    a.stubs = cells.stubs(a.source)
    os.environ["BT_FAKE_GPU"] = "devices=8,mib=256"    # a rank gives all of it to pages, and writes it: seconds of each
    requests = make_requests()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(a, folder)
        alone = run_alone(a, model, requests)
        n, n_in_vain = run_struck(a, model, requests, alone)
        n += run_without_a_machine(a, model, requests, alone)
        run_in_vain(a, model)
        run_without_gpus(a, model)
        run_with_a_broken_gpu(a, model)
    print(f"{n} requests equal to {len(alone)} alone, three of five ranks lost; {n_in_vain} waits passed their deadline though all answered")
    return 0


sys.exit(main())
