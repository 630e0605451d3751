#!/usr/bin/env python3
"""Draws a run of `baton bench`.

    plot.py RUN.json OUT.svg|OUT.png
    plot.py --check OUT                can OUT be drawn here?

RUN.json is what `baton bench --json` wrote."""
import json
import os
import sys

METRICS = (("ttft_ms", "TTFT", "#2f6db3"), ("itl_ms", "ITL", "#c8781e"), ("tpot_ms", "TPOT", "#3c8d5a"), ("e2e_ms", "e2e", "#7a5ba6"))
INK, FAINT, BAD = "#222222", "#d8d8d8", "#b23a3a"


def fail(text):
    print("plot: " + text, file=sys.stderr)
    sys.exit(1)


def check(out):
    folder = os.path.dirname(out) or "."
    if not os.access(folder, os.W_OK):
        fail(f"cannot write to {folder}")
    try:
        import matplotlib
    except ImportError:
        fail(f"matplotlib is missing for {sys.executable}: apt-get install python3-matplotlib, or {sys.executable} -m pip install matplotlib (BATON_PYTHON names another Python)")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({
        "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.edgecolor": "#888888",
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.6,
        "axes.labelcolor": INK, "text.color": INK, "legend.framealpha": 0.85, "legend.edgecolor": "#ffffff", "svg.fonttype": "none"})


def shares(ax, summary):
    """For each metric: the part of all values that is at most x."""
    from matplotlib.ticker import FuncFormatter
    most = 0
    for key, name, colour in METRICS:
        m = summary[key]
        if m["n"] == 0:
            continue
        x = [max(v, 1e-3) for v in m["quantiles"]]
        most = max(most, x[-1])
        ax.plot(x, range(101), color=colour, lw=1.6, label=f"{name}  p50 {m['p50']:.4g}   p99 {m['p99']:.4g}")
    ax.set(title="Share of values at most so long", xlabel="ms", ylabel="%", ylim=(0, 101))
    if most > 0:
        ax.set_xscale("log")
        ax.set_xlim(left=max(0.1, min(summary[k]["quantiles"][1] for k, _, _ in METRICS if summary[k]["n"])))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.legend(loc="upper left", bbox_to_anchor=(0, -0.18), ncol=2, fontsize=8)


def throughput(ax, run):
    t = run["timeline"]
    width = t["bin_s"]
    x = [(i + 0.5) * width for i in range(len(t["tokens_per_s"]))]
    ax.fill_between(x, t["tokens_per_s"], step="mid", color="#2f6db3", alpha=0.25, lw=0)
    ax.step(x, t["tokens_per_s"], where="mid", color="#2f6db3", lw=1.2)
    ax.set(title="Tokens generated a second", xlabel="s", ylabel="tokens/s", xlim=(0, width * len(x)))
    ax.set_ylim(bottom=0)
    other = ax.twinx()
    other.plot(x, t["running"], color="#c8781e", lw=1.2)
    other.set_ylabel("requests under way", color="#c8781e")
    other.set_ylim(bottom=0)
    other.grid(False)
    other.spines["right"].set_visible(True)


def first_tokens(ax, run):
    """TTFT over the time of arrival; requests that failed at the bottom."""
    summary = run["summary"]
    fine = [r for r in run["requests"] if r["status"] == "OK" and r["first_ms"] is not None]
    bad = [r for r in run["requests"] if r["status"] != "OK"]
    ax.scatter([r["due_ms"] / 1e3 for r in fine], [r["first_ms"] - r["due_ms"] for r in fine], s=10, color="#2f6db3", alpha=0.6, lw=0)
    if bad:
        ax.scatter([r["due_ms"] / 1e3 for r in bad], [0] * len(bad), s=18, marker="x", color=BAD, label=f"{len(bad)} failed", clip_on=False)
    if summary["slo_ttft_ms"] > 0:
        ax.axhline(summary["slo_ttft_ms"], color=BAD, lw=1, ls="--", label=f"limit {summary['slo_ttft_ms']:g} ms")
    ax.set(title="TTFT over the time of arrival", xlabel="s", ylabel="ms")
    ax.set_ylim(bottom=0)
    if bad or summary["slo_ttft_ms"] > 0:
        ax.legend(loc="upper right", fontsize=8)


def pace(ax, run):
    """TPOT over the prompt's length: what long contexts cost."""
    summary = run["summary"]
    fine = [r for r in run["requests"] if r["status"] == "OK" and r["tokens"] > 1]
    ax.scatter([r["prompt"] for r in fine], [(r["last_ms"] - r["first_ms"]) / (r["tokens"] - 1) for r in fine], s=10, color="#3c8d5a", alpha=0.6, lw=0)
    if summary["slo_itl_ms"] > 0:
        ax.axhline(summary["slo_itl_ms"], color=BAD, lw=1, ls="--", label=f"limit {summary['slo_itl_ms']:g} ms")
        ax.legend(loc="upper right", fontsize=8)
    ax.set(title="TPOT over the prompt's length", xlabel="prompt tokens", ylabel="ms a token")
    ax.set_ylim(bottom=0)


def draw(run, out):
    import matplotlib.pyplot as plt
    about, s = run["about"], run["summary"]
    load = f"{about['rate']:g} arrivals/s" if "rate" in about else f"{about['concurrency']} at once"
    lines = [f"{about['model'] or 'model'} at {about['address']}: {load}, prompts of {about['prompt_tokens']}, answers of {about['output_tokens']} tokens"
             + (f", {about['shared_prefix'] * 100:g} % shared" if about["shared_prefix"] else ""),
             f"{s['ok']} of {s['requests']} requests ended well in {s['seconds']:.1f} s   ·   {s['output_tokens_per_s']:.1f} tokens/s generated"
             f"   ·   {s['requests_per_s']:.2f} requests/s"
             + (f"   ·   goodput {s['goodput_per_s']:.2f}/s" if s["slo_ttft_ms"] or s["slo_itl_ms"] else "")]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.4))
    shares(axes[0][0], s)
    throughput(axes[0][1], run)
    first_tokens(axes[1][0], run)
    pace(axes[1][1], run)
    figure.suptitle(lines[0], x=0.02, ha="left", fontsize=12, fontweight="bold")
    figure.text(0.02, 0.925, lines[1], ha="left", fontsize=9.5)
    figure.tight_layout(rect=(0, 0, 1, 0.915), h_pad=2.2, w_pad=2.5)
    try:
        figure.savefig(out, dpi=130)
    except OSError as e:
        if os.path.isfile(out):
            os.remove(out)  # part of it
        fail(f"{out}: {e.strerror or e}")


def main():
    if len(sys.argv) != 3:
        fail("usage: plot.py RUN.json OUT.svg|OUT.png")
    check(sys.argv[2])
    if sys.argv[1] != "--check":
        with open(sys.argv[1], encoding="utf-8") as f:
            draw(json.load(f), sys.argv[2])


if __name__ == "__main__":
    main()
