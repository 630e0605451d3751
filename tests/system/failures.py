#!/usr/bin/env python3
"""Kills parts of a cell at every stage and holds what --on-death=stop promises.

    failures.py --bin DIR --source DIR [--only NAME]

After each fault: every open request has exactly one terminal status, an error that says why; baton-run has ended with a code other than 0 and a
line that names what died; no process of the cell is left within 15 seconds (plus the deadline, for a rank that hangs); nothing is left in /dev/shm
or /tmp."""
import itertools
import os
import signal
import sys
import tempfile
import threading
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402

HANG_DEADLINE_S = 5
MPIRUN = "mpirun", "orterun", "prterun"    # what it is called once it runs


class Fault:
    """A cell, what ran in it, and the checks after something was killed."""

    def __init__(self, a, ranks, *more):
        self.cell = cells.Cell(a.bin, os.path.join(a.source, "models/demo"), ranks, "--on-death", "stop", *more)
        self.endings, self.threads, self.started = [], [], threading.Semaphore(0)
        self.seen = set()

    def open_requests(self, pb, rpc, n, prompt, max_tokens, wait_first):
        """n clients, each with one request after the other until one ends with an error: there is always one to fail, however fast the cell is."""
        channel = self.cell.channel()
        stub = rpc.VllmEngineStub(channel)

        def ask(i, k):
            q = pb.GenerateRequest(request_id=f"fault-{prompt}-{i}-{k}", stream=True)
            q.tokenized.input_ids.extend([0] + [(7 * i + 13 * k) % 1500 + 8 for k in range(prompt - 1)])
            q.sampling_params.max_tokens, q.sampling_params.ignore_eos, q.sampling_params.temperature = max_tokens, True, 0.0
            for m, _ in enumerate(stub.Generate(q, timeout=300)):
                if wait_first and k == 0 and m == 2:
                    self.started.release()

        def run(i):
            if not wait_first:
                self.started.release()
            try:
                for k in itertools.count():
                    ask(i, k)
            except grpc.RpcError as e:
                self.endings.append((e.code(), e.details()))
                self.started.release()
        new = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(n)]
        self.threads += new
        for t in new:
            t.start()
        for _ in range(n):
            self.started.acquire()

    def note_processes(self):
        self.seen |= set(cells.descendants(self.cell.process.pid)) | {self.cell.process.pid}
        self.cell.note_scratch()
        assert self.cell.scratch, "no private folders found: the check of leftovers would see nothing"

    def check(self, what, named, extra_s=0):
        start = time.monotonic()
        code = self.cell.wait_gone(cells.GONE_S + extra_s)
        assert code not in (0, None), f"{what}: baton-run ended with {code}\n{self.cell.log()}"
        self.cell.wait_nothing_left(self.seen, cells.GONE_S + extra_s)
        for t in self.threads:
            t.join(60)
            assert not t.is_alive(), f"{what}: a request never ended"
        assert len(self.endings) == len(self.threads), f"{what}: {len(self.endings)} of {len(self.threads)} clients have their error"
        for ending in self.endings:
            assert ending[0] == grpc.StatusCode.UNAVAILABLE, f"{what}: ended with {ending}"
            assert ending[1], f"{what}: no reason given"
        assert any(part in line for part in named for line in self.cell.lines), f"{what}: no line names {named}:\n{self.cell.log()}"
        print(f"{what}: {len(self.endings)} requests ended with a reason, all gone after {time.monotonic() - start:.1f} s", flush=True)


def wait_for_rank(fault, rank):
    end = time.monotonic() + cells.START_S
    while time.monotonic() < end:
        found = fault.cell.ranks()
        if rank in found:
            return found[rank]
        time.sleep(0.005)
    raise AssertionError("the rank never appeared:\n" + fault.cell.log())


def at_start(a, pb, rpc):
    """From the first millisecond of a rank to its serving: four moments between start and load."""
    for delay in (0.0, 0.1, 0.3, 0.5):
        fault = Fault(a, "2+2")
        pid = wait_for_rank(fault, 2)
        time.sleep(delay)
        fault.note_processes()
        os.kill(pid, signal.SIGKILL)
        fault.check(f"rank 2 killed {delay} s after its start", ["rank 2", "rank=2", "baton-launch", "signal 9"])


def told_at_start(a, pb, rpc):
    """As somebody who is short of memory does.  Before a rank has attached nobody else hears of it."""
    for sig, said in ((signal.SIGTERM, "ended by SIGTERM"), (signal.SIGINT, "ended by SIGINT"), (signal.SIGUSR1, "signal 10")):
        fault = Fault(a, "2+2", "--on-death", "replace")
        pid = wait_for_rank(fault, 2)
        time.sleep(0.3)
        fault.note_processes()
        os.kill(pid, sig)
        fault.check(f"{sig.name} to rank 2 while it starts", ["rank=2", "baton-launch", said])


def mpirun_hangs(a, pb, rpc):
    """It does now and then when a rank dies while MPI starts, and then says nothing of it; where the others may go on, nobody else would end them."""
    fault = Fault(a, "2+2", "--on-death", "replace")
    pid = wait_for_rank(fault, 2)
    fault.note_processes()
    os.kill(cells.process_named(fault.cell, *MPIRUN), signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    fault.check("rank 2 killed while MPI starts, and mpirun hangs", ["1 of 4 ranks have failed"])


def ready(a, ranks, *more):
    fault = Fault(a, ranks, *more)
    fault.cell.wait_ready()
    fault.note_processes()
    return fault


def in_prefill(a, pb, rpc):
    for victim in (0, 1):
        fault = ready(a, "2+2", "--chunk", "8")
        fault.open_requests(pb, rpc, 4, 4000, 8, wait_first=False)
        time.sleep(0.4)
        os.kill(fault.cell.ranks()[victim], signal.SIGKILL)
        fault.check(f"prefill rank {victim} killed while it computes", [f"rank {victim}", "signal 9"])


def in_decode(a, pb, rpc):
    for victim, sig in ((2, signal.SIGKILL), (3, signal.SIGABRT)):
        fault = ready(a, "2+2")
        fault.open_requests(pb, rpc, 6, 40, 8000, wait_first=True)
        os.kill(fault.cell.ranks()[victim], sig)
        fault.check(f"decode rank {victim} killed by {sig.name} while it streams", [f"rank {victim}", "signal"])


def both_roles(a, pb, rpc):
    fault = ready(a, "both2")
    fault.open_requests(pb, rpc, 4, 40, 8000, wait_first=True)
    os.kill(fault.cell.ranks()[1], signal.SIGKILL)
    fault.check("one of two ranks with both roles killed", ["rank 1", "signal 9"])


def hangs(a, pb, rpc):
    for victim, role in ((3, "decode"), (1, "prefill")):
        fault = ready(a, "2+2", "--timeout-s", str(HANG_DEADLINE_S), "--chunk", "8")
        fault.open_requests(pb, rpc, 4, 40, 8000, wait_first=True)
        if role == "prefill":
            fault.open_requests(pb, rpc, 2, 4000, 8, wait_first=False)
            time.sleep(0.3)
        os.kill(fault.cell.ranks()[victim], signal.SIGSTOP)
        fault.check(f"{role} rank {victim} stopped", [f"rank {victim}"], HANG_DEADLINE_S)


def stuck_in_mpi(a, pb, rpc):
    """A call into MPI that never returns: the rank's own watchdog tells of it and ends it, about when the others' patience does, after
    which Open MPI 5 ends all ranks at once."""
    with tempfile.TemporaryDirectory() as folder:
        switch = os.path.join(folder, "stuck")
        for victim, role in ((2, "decode"), (0, "prefill")):
            os.environ.update(LD_PRELOAD=a.stuck_mpi, BT_STUCK_RANK=str(victim), BT_STUCK_FILE=switch)
            try:
                fault = ready(a, "2+2", "--timeout-s", str(HANG_DEADLINE_S))
            finally:
                del os.environ["LD_PRELOAD"]
            fault.open_requests(pb, rpc, 4, 40, 8000, wait_first=True)
            if role == "prefill":
                fault.open_requests(pb, rpc, 2, 4000, 8, wait_first=False)
            open(switch, "w").close()
            fault.check(f"{role} rank {victim} stuck in MPI", ["MPI has not come back from", f"ranks: {victim}"],
                        HANG_DEADLINE_S)
            os.unlink(switch)


def spare_killed(a, pb, rpc):
    """Nobody waits for it in MPI_Finalize, where Open MPI may: the cell ends as if it had never been there."""
    os.environ.update(LD_PRELOAD=a.stuck_mpi, BT_STUCK_END="1")
    try:
        cell = cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "1+1", "--spares", "1")
    finally:
        del os.environ["LD_PRELOAD"], os.environ["BT_STUCK_END"]
    with cell:
        os.kill(cell.ranks()[2], signal.SIGKILL)
        cell.wait_line("spare rank 2")
        assert cell.stop() == 0, cell.log()
        assert not any("had not left in time" in x or "MPI_Finalize" in x for x in cell.lines), cell.log()
    print("spare killed: the others end cleanly", flush=True)


def coordinator(a, pb, rpc):
    fault = ready(a, "1+1")
    fault.open_requests(pb, rpc, 2, 40, 8000, wait_first=True)
    os.kill(cells.process_named(fault.cell, "baton-coordinator"), signal.SIGKILL)
    fault.check("coordinator killed", ["coordinator"])


def launcher(a, pb, rpc):
    for names in (MPIRUN, ("baton-launch",)):
        fault = ready(a, "1+1")
        fault.open_requests(pb, rpc, 2, 40, 8000, wait_first=True)
        os.kill(cells.process_named(fault.cell, *names), signal.SIGKILL)
        fault.check(f"{names[0]} killed", ["baton-launch", "rank"])


def run_killed(a, pb, rpc):
    """baton-run itself: its children leave by themselves."""
    fault = ready(a, "1+1")
    fault.open_requests(pb, rpc, 2, 40, 8000, wait_first=True)
    os.kill(fault.cell.process.pid, signal.SIGKILL)
    fault.check("baton-run killed", [""])


def stopped_while_serving(a, pb, rpc):
    """SIGINT, and SIGTERM twice: open requests end with UNAVAILABLE, exit code 0, nothing left."""
    for sig in (signal.SIGTERM, signal.SIGINT):
        fault = ready(a, "2+2")
        fault.open_requests(pb, rpc, 4, 40, 8000, wait_first=True)
        fault.cell.process.send_signal(sig)
        if sig == signal.SIGTERM:  # the first one lets them finish
            time.sleep(0.3)
            assert fault.cell.process.poll() is None, "SIGTERM did not wait for the open requests"
            fault.cell.process.send_signal(sig)
        assert fault.cell.wait_gone(cells.GONE_S) == 0, fault.cell.log()
        for t in fault.threads:
            t.join(60)
        assert len(fault.endings) == 4 and all(e[0] == grpc.StatusCode.UNAVAILABLE for e in fault.endings), fault.endings
        fault.cell.wait_nothing_left(fault.seen)
        print(f"{sig.name} while serving: ended cleanly", flush=True)


FAULTS = [at_start, told_at_start, mpirun_hangs, in_prefill, in_decode, both_roles, hangs, stuck_in_mpi, spare_killed, coordinator, launcher, run_killed, stopped_while_serving]


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--stuck-mpi", metavar="FILE", help="tests/support/stuck_mpi.c as a library, for stuck_in_mpi and spare_killed")
    ap.add_argument("--only", choices=[f.__name__ for f in FAULTS])
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    for fault in FAULTS:
        if a.only in (None, fault.__name__):
            fault(a, pb, rpc)
    return 0


sys.exit(main())
