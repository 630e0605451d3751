#!/usr/bin/env python3
"""What the ranks of one machine share: the memory of their weights, and its cores.

    bench_node.py --build build/release --model DIR [--out docs/measurements/node_cpu]

Memory: cells of 1+1 and 2+2 ranks.  *Each its own* is the sum of what the ranks' logs say their weights take; *in memory* is what
the file without a name takes in which they lie (fstat).

Cores: one prefill and one decode rank, with as many threads each as there are cores, and with half of them.  While one rank is alone at
work it should have all cores; while both work, more threads than cores must not cost.  Three loads: prompts of 1,024 tokens one after
the other; one stream; and 8 clients with prompts of 512 tokens and replies of 32.  Both cells come in turns, --rounds times; medians."""
import os
import re
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_engine  # noqa: E402

MIX = ("-c", 8, "-n", 8, "--prompt-tokens", 512, "--output-tokens", 32)


def store_gib(pids):
    """Of the shared weights of these processes, each file once."""
    found = {}
    for pid in pids:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            if os.readlink(path).startswith("/memfd:baton-weights"):
                found[os.stat(path).st_ino] = os.stat(path).st_blocks * 512 / 2**30
    return sum(found.values())


def memory(args, folder, prefill, decode):
    cell = bench_engine.Cell(os.path.join(args.build, "bin"), args.model, args.cores, prefill, decode)
    try:
        cell.bench(folder, "-c", 8, "-n", 8, "--prompt-tokens", 128, "--output-tokens", 8, "--seed", 5)
        log = "".join(cell.log)
        weights = [float(x) / 1024 for x in re.findall(r"loaded in [\d.]+ s: weights ([\d.]+) MiB", log)]
        loads = [float(x) for x in re.findall(r"loaded in ([\d.]+) s", log)]
        return {"ranks": f"{prefill}+{decode}", "own_gib": sum(weights), "memory_gib": store_gib(cell.pids), "load_s": max(loads), "start_s": cell.load_s}
    finally:
        cell.stop()


def cores(args, folder, threads):
    cell = bench_engine.Cell(os.path.join(args.build, "bin"), args.model, threads)
    try:
        cell.bench(folder, "-c", 1, "-n", 1, "--prompt-tokens", 512, "--output-tokens", 4, "--seed", 999)
        prompt = statistics.median(s for s, _, _ in bench_engine.prefill_samples(cell, folder, 1024, 3, 1))
        pause = next(bench_engine.decode_samples(cell, folder, 1, 16, 40, 2))[0]
        mixed = cell.bench(folder, *MIX, "--seed", 3)["requests"]
        seconds = (max(r["last_ms"] for r in mixed) - min(r["sent_ms"] for r in mixed)) / 1e3
        return {"threads": threads, "prompt_tokens_per_s": 1024 / prompt, "stream_tokens_per_s": 1 / pause, "mixed_requests_per_s": len(mixed) / seconds}
    finally:
        cell.stop()


def medians(runs):
    for n in sorted({x["threads"] for x in runs}, reverse=True):
        mine = [x for x in runs if x["threads"] == n]
        yield {k: statistics.median(x[k] for x in mine) for k in mine[0]}


def markdown(r):
    lines = bench_engine.heading("Ranks that share a machine", "bench_node.py", r)
    lines += [f"- Model: `baton synth {' '.join(bench_engine.SYNTH)} DIR`",
             "- Command: `python3 bench/bench_node.py --build build/release --model DIR --out docs/measurements/node_cpu`", "",
             "| prefill + decode ranks | weights, each its own | in memory | slowest rank's load | start to serving |", "|---|---|---|---|---|"]
    lines += [f"| {x['ranks']} | {x['own_gib']:.2f} GiB | {x['memory_gib']:.2f} GiB | {x['load_s']:.1f} s | {x['start_s']:.1f} s |" for x in r["memory"]]
    lines += ["", "| threads a rank | prompts alone | one stream alone | both roles at work |", "|---|---|---|---|"]
    lines += [f"| {x['threads']} | {x['prompt_tokens_per_s']:.0f} tokens/s | {x['stream_tokens_per_s']:.1f} tokens/s | {x['mixed_requests_per_s']:.2f} requests/s |"
              for x in medians(r["runs"])]
    return "\n".join(lines) + "\n"


def main():
    args = bench_engine.arguments(__doc__, 2).parse_args()
    args.cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        report = {**bench_engine.about(),
                  "memory": [memory(args, folder, *shape) for shape in ((1, 1), (2, 2))],
                  "runs": [cores(args, folder, n) for _ in range(args.rounds) for n in sorted({args.cores, max(1, args.cores // 2)}, reverse=True)]}
    bench_engine.publish(report, markdown(report), args.out)


if __name__ == "__main__":
    main()
