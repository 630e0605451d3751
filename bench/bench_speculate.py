#!/usr/bin/env python3
"""What `--speculate` brings, and what it costs.

    bench_speculate.py --build build/release --model DIR [--out docs/measurements/speculate]

Tokens a step: texts that the demo model goes on with, one request at a time, on cells of 1+1 ranks with drafts of up to 0, 1, 2, 4, 8 and 15
tokens.  Texts are the same for all of them, which is checked.  *Plays* are written at temperature 0 and 0.8; *lists* repeat a form, as
replies in JSON or code do.

Price: `bench_step` with DIR, a model that `baton synth` made: a step of one request and a draft of random tokens, so that each row chooses
experts of its own, against a step without.  Bytes are those of the weights that the step reads; they do not depend on the machine."""
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_engine  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "../models/demo")
DRAFTS = [0, 1, 2, 4, 8, 15]
N_TOKENS = 200
PLAYS = ["KING RICHARD III:\nA horse! a horse! my kingdom for a horse!", "ROMEO:\nBut, soft! what light through yonder window breaks?",
         "First Citizen:\nBefore we proceed any further, hear me speak.", "The king is dead, and", "JULIET:\nO Romeo, Romeo! wherefore art thou Romeo?"]
LISTS = ["".join(f"{who}:\nI am {who}, and I will speak.\n\n" for who in names)
         for names in (["ROMEO", "JULIET", "PARIS", "ROMEO", "JULIET", "PARIS"], ["KING", "QUEEN", "DUKE", "KING", "QUEEN"], ["First Citizen", "Second Citizen"] * 3)]
LOADS = [("plays, temperature 0", PLAYS, 0), ("plays, temperature 0.8", PLAYS, 0.8), ("lists, temperature 0", LISTS, 0)]
ROWS = {0: 3, 1: 8, 2: 9, 4: 10, 8: 11, 15: 12}  # bench_step's cases


def texts(bin_dir, n, prompts, temperature):
    """(the texts, tokens a step, rows a step)"""
    cell = bench_engine.Cell(bin_dir, DEMO, 1, more=("--speculate", str(n)))
    out, tokens = [], 0
    for seed, prompt in enumerate(prompts):
        got = subprocess.run([os.path.join(bin_dir, "baton-generate"), "--address", cell.address, "--model", DEMO, "--prompt", prompt, "--ignore-eos", "--max-tokens",
                              str(N_TOKENS), "--temperature", str(temperature), "--seed", str(seed)], check=True, capture_output=True, text=True)
        out.append(got.stdout)
        tokens += N_TOKENS - 1  # the first one is the prompt's
    cell.stop()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        said = re.search(r"rank=1 .* account: (\d+) steps; .* and (\d+) generated tokens", "".join(cell.log))
        if said:
            return out, tokens / int(said[1]), int(said[2]) / int(said[1])
        time.sleep(0.1)
    raise SystemExit("the decode rank did not say how many steps it took:\n" + "".join(cell.log))


def brought(bin_dir):
    rows = []
    for name, prompts, temperature in LOADS:
        runs = [texts(bin_dir, n, prompts, temperature) for n in DRAFTS]
        if any(got != runs[0][0] for got, _, _ in runs):
            raise SystemExit(f"{name}: the texts are not those without drafts")
        rows.append({"load": name, "tokens_a_step": [t for _, t, _ in runs], "rows_a_step": [r for _, _, r in runs]})
        print(f"{name}: " + ", ".join(f"{n}: {t:.2f} tokens of {r:.2f} rows" for n, (_, t, r) in zip(DRAFTS, runs)), flush=True)
    return rows


def price(build, model, rounds):
    rows = {n: [] for n in DRAFTS}
    for _ in range(rounds):
        for n in DRAFTS:
            line = subprocess.run([os.path.join(build, "bench/bench_step"), model, "2", "3", str(ROWS[n])], check=True, capture_output=True, text=True).stdout
            ms, cpu, gb, share = re.search(r"([\d.]+) ms .* CPU +([\d.]+) ms a thread; +([\d.]+) GB .* by CPU time ([\d.]+)", line).groups()
            rows[n].append({"ms": float(ms), "cpu_ms": float(cpu), "gbytes": float(gb), "cpu_share": float(share)})
            print(f"draft of {n}: {ms} ms, {gb} GB, share of roof {share}", flush=True)
    return [{"draft": n, **{k: bench_engine.statistics.median(r[k] for r in rows[n]) for k in rows[n][0]}} for n in DRAFTS]


def markdown(r):
    one = r["price"][0]
    lines = bench_engine.heading("Speculation", "bench_speculate.py", r)
    lines += [f"- Price: `baton synth {' '.join(bench_engine.SYNTH)} DIR`; tokens a step: models/demo, {N_TOKENS} tokens a text", "",
             "## Tokens a step, and rows", "", "| most tokens of a draft | " + " | ".join(map(str, DRAFTS)) + " |", "|---" * (len(DRAFTS) + 1) + "|"]
    lines += [f"| {x['load']} | " + " | ".join(f"{t:.2f} of {n:.2f}" for t, n in zip(x["tokens_a_step"], x["rows_a_step"])) + " |" for x in r["brought"]]
    lines += ["", "## Price of a step", "", "| tokens of the draft | weights read | of one row's | time, of one row's | share of roof, CPU | pays off with more right tokens than |",
              "|---|---|---|---|---|---|"]
    lines += [f"| {x['draft']} | {x['gbytes']:.2f} GB | {x['gbytes'] / one['gbytes']:.2f} | {x['cpu_ms'] / one['cpu_ms']:.2f} | {x['cpu_share']:.2f} | "
              f"{x['gbytes'] / one['gbytes'] - 1:.2f} |" for x in r["price"]]
    return "\n".join(lines) + "\n"


def main():
    args = bench_engine.arguments(__doc__, 3).parse_args()
    report = {**bench_engine.about(),
              "brought": brought(os.path.join(args.build, "bin")), "price": price(args.build, args.model, args.rounds)}
    bench_engine.publish(report, markdown(report), args.out)


if __name__ == "__main__":
    main()
