"""The table, the figures and the plot of peers.py's samples."""
import json
import os
import statistics
import time

import bench_engine
import peers

# Shares of the roof that the project aims at; prefill: with AMX, without.
TARGETS = {"prefill 512": (0.6, 0.85), "prefill 2048": (0.6, 0.82), "batch 1, ctx 0": 0.95, "batch 1, ctx 8k": 0.92, "batch 8, ctx 1k": 0.88,
           "batch 32, ctx 1k": 0.85}
OTHERS_MAX = 0.4  # cores: a run during which other programs took more does not count
COLOURS = {"baton": "#1f5fa8", "llama": "#c8642c", "transformers": "#7a7a7a"}


def target(point, kernels):
    t = TARGETS[point]
    return t if isinstance(t, float) else t[kernels != "amx"]


def least_seconds(work, point, roofs):
    """(what the roofs leave, which one binds)"""
    kind, n, context, steps = peers.POINTS[point]
    done = work.prefill(n) if kind == "prefill" else work.decode(n, context + steps / 2)
    return bench_engine.shortest(done, roofs, "")


def undisturbed(rows):
    return [r for r in rows if r["others_cores"] <= OTHERS_MAX]


def summarise(work, rows):
    """{point: {engine: figures}}: medians over all undisturbed runs; each run's share is of the roofs probed around it."""
    found, rows = {}, undisturbed(rows)
    for point in peers.POINTS:
        for engine in peers.ENGINES:
            mine = [r for r in rows if r["point"] == point and r["engine"] == engine]
            if not mine:
                continue
            least = [least_seconds(work, point, r["roofs"]) for r in mine]
            seconds = statistics.median(r["seconds"] for r in mine)
            speeds = [peers.POINTS[point][1] / r["seconds"] for r in mine]
            found.setdefault(point, {})[engine] = {
                "seconds": seconds, "tokens_per_s": peers.POINTS[point][1] / seconds, "runs": len(mine), "from": min(speeds), "to": max(speeds),
                "bound": least[0][1],
                "share": statistics.median(s / r["seconds"] for (s, _), r in zip(least, mine)),
                "roofs": {k: statistics.median(r["roofs"][k] for r in mine) for k in ("read_gbs", "gflops")}}
    return found


def cell(figures):
    return f"{figures['tokens_per_s']:.1f} ({figures['share']:.2f})" if figures else "-"


def table(found, kernels):
    lines = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for engine in peers.ENGINES:
        if any(engine in f for f in found.values()):
            lines.append(f"| {engine} | " + " | ".join(cell(f.get(engine)) for f in found.values()) + " |")
    lines.append("| *target share* | " + " | ".join(f"{target(p, kernels):.2f}" for p in found) + " |")
    ratios = []
    for f in found.values():
        best = max((x["tokens_per_s"] for e, x in f.items() if e != "baton"), default=None)
        ratios.append(f"{f['baton']['tokens_per_s'] / best:.2f}x" if best and "baton" in f else "-")
    return lines + ["| **baton / best peer** | " + " | ".join(ratios) + " |"]


def plot(found):
    """Tokens/s of each engine over the best one's, as bars."""
    left, height, gap = 150, 18, 14
    parts, y = [], 34
    for point, f in found.items():
        best = max(x["tokens_per_s"] for x in f.values())
        parts.append(f'<text x="{left - 10}" y="{y + 13}" text-anchor="end">{point}</text>')
        for engine in peers.ENGINES:
            if engine in f:
                x = f[engine]
                width = 380 * x["tokens_per_s"] / best
                parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{height - 3}" fill="{COLOURS[engine]}"/>'
                             f'<text x="{left + width + 6:.1f}" y="{y + 12}">{engine} {x["tokens_per_s"]:.0f}</text>')
                y += height
        y += gap
    title = '<text x="10" y="18" font-weight="bold">Tokens/s, each point\'s best engine at full width</text>'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{y}" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/>{title}{"".join(parts)}</svg>\n')


def speed(x):
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}"


def markdown(r, name):
    m, c = r["machine"], r["check"]
    roofs = [x["roofs"] for f in r["points"].values() for x in f.values()]
    lines = ["# Baton beside its peers on this CPU", "", "Made by `bench/peers/run`; `bench/peers/peers.py` says what each figure means.", "",
             f"- When: {r['from']} to {r['to']} UTC; {', '.join(r['versions'].values())}",
             f"- Machine: {m['cpu']}, {m['cores']} cores (hypervisor: {m['hypervisor']}), {m['memory_gib']} GiB, Linux {m['kernel']}; {' '.join(m['flags'])}",
             f"- Model: `baton synth {' '.join(bench_engine.SYNTH)}`, {r['weights_gib']:.2f} GiB of bf16 weights; {r['threads']} threads in all; Baton with "
             "one prefill and one decode rank, through its public protocol",
             f"- Roofs, medians of each point's runs: {min(x['read_gbs'] for x in roofs):.1f} to {max(x['read_gbs'] for x in roofs):.1f} GB/s, "
             f"{min(x['gflops'] for x in roofs) / 1e3:.2f} to {max(x['gflops'] for x in roofs) / 1e3:.2f} TFLOP/s (`{r['kernels']}`)",
             f"- The same is computed: over {c['tokens']} random tokens the bf16 error is {c['bf16_error']:.3f} (logits' rms {c['logits_rms']:.2f}); "
             + ", ".join(f"{k}: {v:.3f}" for k, v in c["pairs"].items()) + f"; allowed {c['times'] * c['bf16_error']:.3f}", "",
             "Tokens/s, in brackets the share of the roof probed around each run:", ""]
    runs = "; ".join(f"{p}: " + ", ".join(f"{e} {x['runs']} ({speed(x['from'])} to {speed(x['to'])})" for e, x in f.items()) for p, f in r["points"].items())
    lines += table(r["points"], r["kernels"]) + ["", f"![Tokens/s]({name}.svg)", "", f"Runs a point, their slowest and fastest: {runs}. Left out: "
              f"{len(r['rows']) - len(undisturbed(r['rows']))} runs during which other programs took more than {OTHERS_MAX} cores."]
    return "\n".join(lines) + "\n"


def versions(rows):
    """All that each engine had: runs may lie hours apart."""
    of = {}
    for r in rows:
        of.setdefault(r["engine"], {})[r["version"]] = None
    return {engine: f"{engine}: {' and '.join(found)}" for engine, found in of.items()}


def write(args, rows):
    if not undisturbed(rows):
        raise SystemExit(f"other programs took more than {OTHERS_MAX} cores during each of the {len(rows)} runs: nothing to report")
    with open(os.path.join(args.model, "config.json")) as f:
        work = bench_engine.Work(json.load(f))
    with open(os.path.join(args.work, "check.json")) as f:
        check = json.load(f)
    day = [time.strftime("%Y-%m-%d %H:%M", time.gmtime(f(r["at"] for r in rows))) for f in (min, max)]
    report = {"from": day[0], "to": day[1], "versions": versions(rows), "machine": bench_engine.machine(),
              "threads": args.threads, "weights_gib": work.weight_bytes / 2**30, "kernels": rows[0]["kernels"],
              "check": {k: v for k, v in check.items() if k != "model"}, "points": summarise(work, rows), "rows": rows}
    text = markdown(report, os.path.basename(args.out or "peers"))
    if args.out:
        for suffix, content in ((".json", json.dumps(report, indent=1) + "\n"), (".md", text), (".svg", plot(report["points"]))):
            with open(args.out + suffix, "w") as f:
                f.write(content)
    print(text)
