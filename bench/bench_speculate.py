#!/usr/bin/env python3
"""What drafts bring, of `--speculate` and of `--mtp`, and what they cost.

    bench_speculate.py --build build/release --model DIR [--out docs/measurements/speculate]

Tokens a step: texts that the demo model goes on with, one request at a time, on cells of 1+1 ranks with drafts of several lengths: looked up, by
the model's layer for multi-token prediction, which was trained with it, and by both.  Texts are the same for all of them, which is checked.
*Plays* are written at temperature 0, 0.8 and 1.2; *lists* repeat a form, as replies in JSON or code do.

Price: `bench_step` with DIR, a model that `baton synth` made: a step of one request and a draft of random tokens, so that each row chooses
experts of its own, against a step without; and with the layer that drafts behind it.  Bytes are those of the weights that the step reads; they do
not depend on the machine.  Head and dense layer are a large part of a model of few layers: so they are reckoned for the whole model too, whose
layers with experts read what these do."""
import json
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_engine  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "../models/demo")
DRAFTS = [0, 1, 2, 4, 8, 15]
LAYER = [1, 2, 3]  # tokens that it drafts
WAYS = [("none", [])] + [(f"looked up, {n}", ["--speculate", str(n)]) for n in DRAFTS[1:]] + [(f"the layer's, {n}", ["--mtp", str(n)]) for n in LAYER] + \
    [("the layer's, 2, or looked up, 4", ["--mtp", "2", "--speculate", "4"])]
N_TOKENS = 200
PLAYS = ["KING RICHARD III:\nA horse! a horse! my kingdom for a horse!", "ROMEO:\nBut, soft! what light through yonder window breaks?",
         "First Citizen:\nBefore we proceed any further, hear me speak.", "The king is dead, and", "JULIET:\nO Romeo, Romeo! wherefore art thou Romeo?"]
LISTS = ["".join(f"{who}:\nI am {who}, and I will speak.\n\n" for who in names)
         for names in (["ROMEO", "JULIET", "PARIS", "ROMEO", "JULIET", "PARIS"], ["KING", "QUEEN", "DUKE", "KING", "QUEEN"], ["First Citizen", "Second Citizen"] * 3)]
LOADS = [("plays, temperature 0", PLAYS, 0), ("plays, temperature 0.8", PLAYS, 0.8), ("plays, temperature 1.2", PLAYS, 1.2), ("lists, temperature 0", LISTS, 0)]
CASES = {0: 3, 1: 8, 2: 9, 4: 10, 8: 11, 15: 12}  # of bench_step
LAYER_CASES = {1: 16, 2: 17, 3: 18}
LAYERS = 27  # of V2-Lite


def texts(bin_dir, way, prompts, temperature):
    """(the texts, tokens a step, rows a step)"""
    cell = bench_engine.Cell(bin_dir, DEMO, 1, more=way)
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
        runs = [texts(bin_dir, way, prompts, temperature) for _, way in WAYS]
        if any(got != runs[0][0] for got, _, _ in runs):
            raise SystemExit(f"{name}: the texts are not those without drafts")
        rows.append({"load": name, "tokens_a_step": [t for _, t, _ in runs], "rows_a_step": [r for _, _, r in runs]})
        print(f"{name}: " + "; ".join(f"{w}: {t:.2f} tokens of {r:.2f} rows" for (w, _), (_, t, r) in zip(WAYS, runs)), flush=True)
    return rows


def step(build, model, case):
    line = subprocess.run([os.path.join(build, "bench/bench_step"), model, "2", "3", str(case)], check=True, capture_output=True, text=True).stdout
    ms, cpu, gb, share = re.search(r"([\d.]+) ms .* CPU +([\d.]+) ms a thread; +([\d.]+) GB .* by CPU time ([\d.]+)", line).groups()
    return {"ms": float(ms), "cpu_ms": float(cpu), "gbytes": float(gb), "cpu_share": float(share)}


def price(build, model, rounds):
    cases = [(n, False, c) for n, c in CASES.items()] + [(n, True, c) for n, c in LAYER_CASES.items()]
    taken = {c: [] for c in cases}
    for _ in range(rounds):
        for c in cases:
            taken[c].append(step(build, model, c[2]))
            print(f"draft of {c[0]}{', and drafting as many' * c[1]}: {taken[c][-1]}", flush=True)
    return [{"draft": n, "drafts": drafts, **{k: statistics.median(r[k] for r in got) for k in got[0]}} for (n, drafts, _), got in taken.items()]


def whole(model, gbytes, layer):
    """What a step of all of V2-Lite's layers reads; layer: of that, what the layer that drafts reads with its head."""
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    h, heads, latent, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    q, v = heads * (c["qk_nope_head_dim"] + rope), heads * c["v_head_dim"]
    attention = h * q + h * (latent + rope) + latent * heads * (c["qk_nope_head_dim"] + c["v_head_dim"]) + v * h
    once = 2e-9 * (c["vocab_size"] * h + c["first_k_dense_replace"] * (attention + 3 * h * c["intermediate_size"]))
    return once + layer + (gbytes - layer - once) / (c["num_hidden_layers"] - c["first_k_dense_replace"]) * (LAYERS - c["first_k_dense_replace"])


def with_whole(model, rows):
    alone = {x["draft"]: x["gbytes"] for x in rows if not x["drafts"]}
    for x in rows:
        if x["drafts"] and x["draft"] not in alone:  # three rows are not measured without: between two and four
            alone[x["draft"]] = (alone[x["draft"] - 1] + alone[x["draft"] + 1]) / 2
        x["whole_gbytes"] = whole(model, x["gbytes"], x["gbytes"] - alone[x["draft"]] if x["drafts"] else 0)
    return rows


def plot(r):
    """Tokens a step of each way that drafts, as bars; the paler part: rows that were computed for it."""
    left, height, gap, unit = 230, 18, 14, 120
    parts, y = [], 34
    for x in r["brought"]:
        parts.append(f'<text x="10" y="{y + 13}" font-weight="bold">{x["load"]}</text>')
        y += height + 4
        for (name, _), tokens, rows in zip(WAYS, x["tokens_a_step"], x["rows_a_step"]):
            colour = "#0072B2" if "layer" in name else "#D55E00" if "looked" in name else "#555555"
            parts.append(f'<text x="{left - 10}" y="{y + 12}" text-anchor="end">{name}</text>'
                         f'<rect x="{left}" y="{y}" width="{unit * rows:.1f}" height="{height - 3}" fill="{colour}" opacity="0.25"/>'
                         f'<rect x="{left}" y="{y}" width="{unit * tokens:.1f}" height="{height - 3}" fill="{colour}"/>'
                         f'<text x="{left + unit * rows + 6:.1f}" y="{y + 12}">{tokens:.2f} of {rows:.2f}</text>')
            y += height
        y += gap
    title = '<text x="10" y="18" font-weight="bold">Tokens a step, of so many rows</text>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{y}" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/>{title}{"".join(parts)}</svg>\n')


def markdown(r, name):
    one = r["price"][0]
    lines = bench_engine.heading("Speculation", "bench_speculate.py", r)
    lines += [f"- Price: `baton synth {' '.join(bench_engine.SYNTH)} --mtp 1 DIR`; tokens a step: models/demo, {N_TOKENS} tokens a text", "",
              "## Tokens a step, of so many rows", "", "| drafts, and their most tokens | " + " | ".join(x["load"] for x in r["brought"]) + " |", "|---" * (len(r["brought"]) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(f"{x['tokens_a_step'][i]:.2f} of {x['rows_a_step'][i]:.2f}" for x in r["brought"]) + " |" for i, (name, _) in enumerate(WAYS)]
    lines += ["", f"![Tokens a step]({name}.svg)", "", "## Price of a step", "", f"| tokens of the draft | weights read | of one row's | time, of one row's | share of roof, CPU | weights of all {LAYERS} layers, of one row's: pays off with more right tokens than what is above 1 |",
              "|---|---|---|---|---|---|"]
    lines += [f"| {x['draft']}{', and the layer drafts as many' * x['drafts']} | {x['gbytes']:.2f} GB | {x['gbytes'] / one['gbytes']:.2f} | {x['cpu_ms'] / one['cpu_ms']:.2f} | {x['cpu_share']:.2f} | "
              f"{x['whole_gbytes']:.2f} GB, {x['whole_gbytes'] / one['whole_gbytes']:.2f} |" for x in r["price"]]
    return "\n".join(lines) + "\n"


def main():
    args = bench_engine.arguments(__doc__, 3).parse_args()
    report = {**bench_engine.about(),
              "brought": brought(os.path.join(args.build, "bin")), "price": with_whole(args.model, price(args.build, args.model, args.rounds))}
    bench_engine.publish(report, markdown(report, os.path.basename(args.out or "speculate")), args.out)
    if args.out:
        with open(args.out + ".svg", "w") as f:
            f.write(plot(report))


if __name__ == "__main__":
    main()
