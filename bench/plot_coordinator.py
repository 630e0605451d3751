#!/usr/bin/env python3
"""Draws what bench_coordinator measured, every run of it, against the targets.

    plot_coordinator.py COORDINATOR_JSON OUT.svg

Needs matplotlib (Debian: python3-matplotlib); ends with code 77 and says so when it is missing."""
import json
import sys

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError as missing:
    print(f"skipped: {missing}; on Debian: apt install python3-matplotlib")
    sys.exit(77)

TARGET_US = {"stream32": 200, "burst256": 2000}  # at p99
TARGET_TOKENS = 200_000                          # a CPU second
P50, P99, TARGET = "#0072B2", "#D55E00", "#555555"
plt.rcParams.update({"font.size": 10, "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True, "axes.spines.top": False,
                     "axes.spines.right": False, "svg.hashsalt": "baton", "legend.frameon": False})


def latency(ax, name, cases):
    """Every run: hollow asleep, filled with --busy-poll."""
    for case in cases:
        runs = range(1, len(case["wire_p50_us"]) + 1)
        how, fill = (", busy polling", "full") if case["busy_poll"] else ("", "none")
        ax.plot(runs, case["wire_p50_us"], "o", color=P50, fillstyle=fill, label="p50" + how)
        ax.plot(runs, case["wire_p99_us"], "s", color=P99, fillstyle=fill, label="p99" + how)
    ax.axhline(TARGET_US[name], color=TARGET, linestyle="--", label="target at p99")
    ax.set(title=f"{name}: from rank to wire", xlabel="run", ylabel="µs", yscale="log", xticks=list(runs))
    ax.set_ylim(top=ax.get_ylim()[1] * 10)  # room for the legend
    ax.legend(ncol=2, fontsize=8, loc="upper center")


def throughput(ax, cases):
    for i, case in enumerate(cases):
        ax.plot([i] * len(case["tokens_per_cpu_s"]), case["tokens_per_cpu_s"], "o", color=P50)
    ax.axhline(TARGET_TOKENS, color=TARGET, linestyle="--", label="target")
    ax.set(title="Streamed tokens a CPU second", ylim=(0, None), xlim=(-0.5, len(cases) - 0.5))
    ax.set_xticks(range(len(cases)), [c["case"] for c in cases])
    ax.yaxis.set_major_formatter(lambda v, _: f"{v / 1000:g}k")
    ax.legend()


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as f:
        cases = json.load(f)
    fig, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for ax, name in zip(axes, TARGET_US):
        latency(ax, name, [c for c in cases if c["case"] == name])
    throughput(axes[2], [c for c in cases if c["case"] not in TARGET_US])
    fig.savefig(target, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
