#!/usr/bin/env python3
"""The processes of an idle cell sleep, and a request wakes them.

    idle.py --bin DIR --source DIR

How often its threads wake says whether a process sleeps, and /proc/PID/stat whether one of them never does; what a wake costs is
the machine's: 0.1 to 1 ms of a core that a host lends.  Waking is what a short request takes longer after a pause than right after
another one: the lower quartile of many, since other work on the machine disturbs single ones.  If anything slept for its time whatever
comes, both would take longer."""
import contextlib
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

IDLE_S, WAKES, SHARE, FIRST_S, WAKE_S = 5, 60, 0.05, 0.02, 0.005
REQUEST = ("short", [0, 300, 301], 1, dict(temperature=0.0))


def quartile(values):
    return statistics.quantiles(values, n=4)[0]


def spent(pid):
    """CPU seconds, and how often its threads have gone to sleep."""
    fields = cells.stat_of(pid)
    sleeps = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/status") as f:
            sleeps += sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), sleeps


def processes(cell):
    found = {pid: cells.name_of(pid) for pid in cells.descendants(cell.process.pid)}
    return {pid: name for pid, name in found.items() if name and name.startswith("baton")}


def idle(running):
    """A core's share and wakes per second, by cell and process, while all of these cells are idle."""
    time.sleep(0.5)
    before = {pid: spent(pid) for cell in running.values() for pid in processes(cell)}
    time.sleep(IDLE_S)
    return {shape: {f"{name} {pid}": tuple((now - then) / IDLE_S for now, then in zip(spent(pid), before[pid]))
                    for pid, name in processes(cell).items()}
            for shape, cell in running.items()}


def waking(clients):
    """By shape: seconds to the first token right after another request, and how much later it comes after a pause.  One cell after the other is
    asked, while the rest are idle; the first of a round wakes the machine as well, so that they take turns."""
    busy, paused = {shape: [] for shape in clients}, {shape: [] for shape in clients}
    asked = list(clients.items())
    for _ in range(27):
        time.sleep(0.15)
        asked.append(asked.pop(0))
        for shape, client in asked:
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
        idling = idle({shape: cell for shape, (cell, _) in running.items()})
        woken = waking({shape: client for shape, (_, client) in running.items()})
        for shape, (cell, _) in running.items():
            used, (first, late) = idling[shape], woken[shape]
            share, wakes = (max(values) for values in zip(*used.values()))
            assert len(used) >= 3 and share < SHARE and wakes < WAKES, f"{shape}: share of a core, wakes a second: {used}"
            assert first < FIRST_S and late < WAKE_S, f"{shape}: first token {first * 1e3:.2f} ms, {late * 1e3:.2f} ms later after a pause"
            assert cell.stop() == 0, cell.log()
            print(f"{shape}: idle at most {share * 100:.2f} % of a core and {wakes:.0f} wakes a second, first token {first * 1e3:.2f} ms, "
                  f"{late * 1e3:.2f} ms later after a pause", flush=True)
    return 0


sys.exit(main())
