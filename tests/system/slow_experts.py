#!/usr/bin/env python3
"""--on-death replace: those who take long to read a lost rank's experts are waited for, and not removed.

    slow_experts.py --bin DIR --source DIR --slow-reads FILE [--only NAME]

all_read: every rank that is left reads for longer than a rank may be without progress. one_reads: one does for longer than the
others wait in an exchange. one_has_read: one hangs that has just read, and is removed as any other is, when the first wait for it has expired.
Every stream is the undisturbed one."""
import os
import re
import signal
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

TOKENS, QUIET_S = 600, 3


def lose_one(a, pb, rpc, *limits, hangs=None, **slow):
    with tempfile.TemporaryDirectory() as folder:
        switch = os.path.join(folder, "slow")
        os.environ.update(slow, LD_PRELOAD=a.slow_reads, BT_SLOW_FILE=switch)
        try:
            cell = cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "both3", "--on-death", "replace", *limits)
        finally:
            for name in ("LD_PRELOAD", "BT_SLOW_FILE", *slow):
                del os.environ[name]
        with cell.wait_ready(), cell.channel() as channel:
            stub, streams, begun, more = rpc.VllmEngineStub(channel), {}, threading.Barrier(4), threading.Semaphore(0)

            def stream(i):
                come = []

                def on_token(n):
                    come.append(n)
                    more.release()
                    if len(come) == 1:
                        begun.wait(60)
                streams[i] = load.ask(pb, stub, i, TOKENS, on_token)
            threads = [threading.Thread(target=stream, args=(i,), daemon=True) for i in range(3)]
            for t in threads:
                t.start()
            begun.wait(60)
            open(switch, "w").close()
            os.kill(cell.ranks()[1], signal.SIGKILL)
            if hangs is not None:
                cell.wait_line("regrouped in epoch")
                while more.acquire(blocking=False):
                    pass
                for _ in range(6):    # the ranks that are left make steps
                    more.acquire(timeout=60)
                os.kill(cell.ranks()[hangs], signal.SIGSTOP)
            for t in threads:
                t.join(120)
            log = "\n".join(cell.lines)
            assert len(streams) == 3, f"{sorted(streams)} of 3 streams ended:\n{cell.log()}"
            assert ("removed from the cell" in log) == (hangs is not None) and "made no progress" not in log, cell.log()
            os.unlink(switch)
            for i, got in load.ask_all(pb, stub, 3, TOKENS).items():
                assert got == streams[i], f"stream {i} differs"
    return log


def all_read(a, pb, rpc):
    log = lose_one(a, pb, rpc, "--rank-timeout-s", str(QUIET_S), "--log", "debug")
    took = [float(ms) for ms in re.findall(r"regrouped in epoch .* after ([0-9.]+) ms", log)]
    assert len(took) == 2 and min(took) > 1000 * QUIET_S, took


def one_reads(a, pb, rpc):
    log = lose_one(a, pb, rpc, "--timeout-s", "2", BT_SLOW_RANK="2")
    assert "rank 0 has waited too long" in log, log


def one_has_read(a, pb, rpc):
    log = lose_one(a, pb, rpc, "--timeout-s", "2", "--rank-timeout-s", "60", hangs=2, BT_SLOW_RANK="nobody")
    assert log.count("rank 0 has waited too long") == 1, log
    assert len(re.findall(r"rank=\d+ .*has lost its seat", log)) == 2, log    # one rank speaks for all


CASES = [all_read, one_reads, one_has_read]


def main():
    ap = cells.case_arguments(__doc__, CASES)
    ap.add_argument("--slow-reads", metavar="FILE", required=True, help="tests/support/slow_reads.c as a library")
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    for case in cells.chosen(a, CASES):
        case(a, pb, rpc)
    return 0


sys.exit(main())
