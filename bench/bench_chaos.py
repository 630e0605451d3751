#!/usr/bin/env python3
"""The kill test as a long run (tests/system/chaos.py, whose options it has), and the page of what it found.

    bench_chaos.py --bin build/release/bin --source . [--setting local|hosts] [--faults 1000] [--seed N] --out docs/measurements/chaos
    bench_chaos.py --bin build/release/bin --source . --take RUN.json --out ...       a run that --json has kept

Adds the run to OUT.json, one for each setting, and writes OUT.md and OUT-SETTING.svg.  Exit code 77: skipped, with its reason."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tests/system"))
import chaos  # noqa: E402
import chaos_report  # noqa: E402

SETTINGS = {"local": "2 prefill and 3 decode ranks and 2 spares on this machine",
            "hosts": "the same over three network namespaces by TCP; links are cut, and hosts lose power"}


def page(runs, name):
    out = ["# What a fault costs", "",
           "Made by `bench/bench_chaos.py`, which is the kill test (`tests/system/chaos.py`) as a long run: a cell under continuous load of mixed requests, contexts",
           "up to 512 tokens of the demo model, is struck again and again. Every stream is compared with its undisturbed run, bit by bit; each has one end; every rank",
           "that is left has found its page pool sound; no process, no zombie and no shared memory is left. A pause is the longest silence of a stream that was being",
           "answered when the fault came. Ranks wait `--timeout-s`, here 2 s, for one another before they say so: that is the pause of a hang. A cell that dies again before it has",
           "served for a minute is started after a wait that doubles (0.2, 0.4, 0.8 s and so on), which is part of the last row's pauses.", ""]
    for setting, run in runs.items():
        minutes = f" --minutes {run['minutes']:g}" if run.get("minutes") else ""
        out += [f"## {setting}: {SETTINGS[setting]}", "", f"- When: {run['when']}, {run['seconds'] / 60:.0f} minutes; commit {run['commit']}", f"- Machine: {run['machine']}; load average {run['load']}",
                f"- Command: `python3 bench/bench_chaos.py --bin build/release/bin --source . --setting {setting} --faults {run['asked']} --seed {run['seed']} --timeout-s {run.get('timeout_s', 2)} --stall-s {run['stall_s']}{minutes} --out docs/measurements/chaos`", ""]
        out += [x + "\n" for x in chaos_report.summary(run)]
        out += [*chaos_report.tables(run), "", f"![pauses, {setting}]({name}-{setting}.svg)", ""]
    return "\n".join(out)


def main():
    ap = chaos.arguments(__doc__)
    ap.set_defaults(faults=1000)
    ap.add_argument("--take", help="a run that --json has kept, instead of a new one")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    if a.take:
        with open(a.take) as f:
            run = json.load(f)
    else:
        run = chaos.run(a)
    print("\n".join([*chaos_report.summary(run), "", *chaos_report.tables(run)]))
    runs = {}
    if os.path.exists(a.out + ".json"):
        with open(a.out + ".json") as f:
            runs = {r["setting"]: r for r in json.load(f)}
    runs[run["setting"]] = run
    runs = {s: runs[s] for s in SETTINGS if s in runs}
    with open(a.out + ".json", "w") as f:
        f.write("[\n" + ",\n".join(chaos_report.text(r) for r in runs.values()) + "\n]\n")
    with open(a.out + ".md", "w") as f:
        f.write(page(runs, os.path.basename(a.out)))
    chaos_report.plot(run, f"{a.out}-{run['setting']}.svg")
    chaos.hold(a, run)
    return 0


sys.exit(main())
