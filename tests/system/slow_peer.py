#!/usr/bin/env python3
"""One decode rank made ten times slower (stopped for nine tenths of the time): the log and the status page name it, and nobody removes it.

    slow_peer.py --bin DIR --source DIR"""
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402

VICTIM, SEEN_S = 3, 120
JUDGED_S = 4    # of work: one that is slow for 3 is named


def main():
    ap = cells.arguments(__doc__)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "1+3", "--http-port", "0") as cell:
        stub = rpc.VllmEngineStub(cell.channel())
        stop, errors = threading.Event(), []

        def load(i):
            k = 0
            while not stop.is_set():
                q = pb.GenerateRequest(request_id=f"slow-{i}-{k}", stream=True)
                q.tokenized.input_ids.extend([0] + [(7 * i + 13 * j + k) % 1500 + 8 for j in range(40)])
                q.sampling_params.max_tokens, q.sampling_params.ignore_eos, q.sampling_params.temperature = 200, True, 0.0
                try:
                    for _ in stub.Generate(q, timeout=300):
                        if stop.is_set():
                            return
                except Exception as e:  # noqa: BLE001
                    errors.append(e)
                    return
                k += 1

        def page():
            seen = cells.status(cell.http)
            assert not seen["slow_links"], seen["slow_links"]
            return {r["rank"]: r for r in seen["ranks"]}

        def throttle(pid):
            while not stop.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.09)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.01)
        threads = [threading.Thread(target=load, args=(i,), daemon=True) for i in range(6)]
        for t in threads:
            t.start()
        end = time.monotonic() + SEEN_S
        while sum(n > 0 for n in cells.status(cell.http)["history"]["generated"]) < JUDGED_S:
            assert time.monotonic() < end and not errors, f"no {JUDGED_S} s of work within {SEEN_S} s; {errors}\n{cell.log()}"
            time.sleep(0.2)
        assert not any(r["slowness"] for r in page().values()), f"nobody is slow yet: {page()}"
        threads.append(threading.Thread(target=throttle, args=(cell.ranks()[VICTIM],), daemon=True))
        threads[-1].start()
        begin, shown = time.monotonic(), {}
        try:
            while not (VICTIM in shown and any(f"decode rank {VICTIM} (" in line and "is slow" in line for line in cell.lines)):
                assert time.monotonic() < begin + SEEN_S and not errors, f"not named within {SEEN_S} s; {errors}; {page()}\n{cell.log()}"
                time.sleep(0.2)
                shown = {rank: r["slowness"] for rank, r in page().items() if r["slowness"]}
            took = time.monotonic() - begin
            assert set(shown) == {VICTIM}, f"named: {shown}"
        finally:
            stop.set()
            for t in threads:
                t.join(120)
        assert not errors, errors
        assert not any("removed" in line or "was lost" in line for line in cell.lines), cell.log()
        assert not any("is slow" in line and f"decode rank {VICTIM} (" not in line for line in cell.lines), cell.log()
        print(f"rank {VICTIM} named after {took:.1f} s: {shown[VICTIM]:.1f} times the others", flush=True)
    return 0


sys.exit(main())
