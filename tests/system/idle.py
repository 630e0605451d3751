#!/usr/bin/env python3
"""An idle cell uses less than 1 % of a core for each process, and wakes within 5 ms.

    idle.py --bin DIR --source DIR

CPU time is what /proc/PID/stat says of every process of the cell.  Waking is what a short request takes longer after a pause than
right after another one: the lower quartile of many, since other work on the machine disturbs single ones."""
import contextlib
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

IDLE_S, SHARE, WAKE_S = 5, 0.01, 0.005
REQUEST = ("short", [0, 300, 301], 1, dict(temperature=0.0))


def quartile(values):
    return statistics.quantiles(values, n=4)[0]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes(cell):
    found = {}
    for pid in cells.descendants(cell.process.pid):
        with open(f"/proc/{pid}/comm") as f:
            name = f.read().strip()
        if name.startswith("baton"):
            found[pid] = name
    return found


def idle_shares(running):
    """Of a core, by cell and process, while all of these cells are idle."""
    time.sleep(0.5)
    before = {pid: cpu_seconds(pid) for cell in running.values() for pid in processes(cell)}
    time.sleep(IDLE_S)
    return {shape: {f"{name} {pid}": (cpu_seconds(pid) - before[pid]) / IDLE_S for pid, name in processes(cell).items()}
            for shape, cell in running.items()}


def waking(clients):
    """By shape: seconds to the first token right after another request, and how much later it comes after a pause.  One cell after the other is
    asked, while the rest are idle."""
    busy, paused = {shape: [] for shape in clients}, {shape: [] for shape in clients}
    for _ in range(25):
        time.sleep(0.15)
        for shape, client in clients.items():
            paused[shape].append(client.run(*REQUEST)[2])
            busy[shape].append(min(client.run(*REQUEST)[2] for _ in range(2)))
    return {shape: (quartile(busy[shape]), quartile(paused[shape]) - quartile(busy[shape])) for shape in clients}


def main():
    ap = cells.arguments(__doc__)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    with contextlib.ExitStack() as stack:
        running = {}
        for shape in ("1+1", "2+2", "both2"):
            cell = stack.enter_context(cells.Cell(a.bin, os.path.join(a.source, "models/demo"), shape))
            client = load.Client(pb, rpc, stack.enter_context(cell.channel()))
            for _ in range(5):
                client.run(*REQUEST)
            client.wait_drained()
            running[shape] = (cell, client)
        shares = idle_shares({shape: cell for shape, (cell, _) in running.items()})
        woken = waking({shape: client for shape, (_, client) in running.items()})
        for shape, (cell, _) in running.items():
            used, (first, late) = shares[shape], woken[shape]
            assert len(used) >= 3 and max(used.values()) < SHARE, f"{shape}: shares of a core while idle: {used}"
            assert late < WAKE_S, f"{shape}: {late * 1e3:.2f} ms later after a pause"
            assert cell.stop() == 0, cell.log()
            print(f"{shape}: idle at most {max(used.values()) * 100:.2f} % of a core, first token {first * 1e3:.2f} ms, "
                  f"{late * 1e3:.2f} ms later after a pause", flush=True)
    return 0


sys.exit(main())
