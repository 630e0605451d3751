#!/usr/bin/env python3
"""Draws the plots of a profile.

    plot.py PROFILE_JSON DIRECTORY

Writes time.svg, bytes.svg, crossover.svg and roofline.svg, and the same as PNG.  Needs matplotlib (Debian:
python3-matplotlib); ends with code 3 and says so when it is missing, and with 4 when a file cannot be written."""
import json
import math
import os
import sys

NO_MATPLOTLIB, NOT_WRITTEN = 3, 4

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib import ticker
except ImportError as missing:
    print(f"no plots: {missing}; on Debian: apt install python3-matplotlib, elsewhere: pip install matplotlib", file=sys.stderr)
    sys.exit(NO_MATPLOTLIB)

# One colour and marker a variant everywhere, told apart without colour too (Okabe and Ito's palette).
STYLE = {
    "CD": ("#0072B2", "o"),
    "CC": ("#E69F00", "s"),
    "A_CC": ("#CC79A7", "^"),
    "A_CC_ME": ("#009E73", "D"),
    "AM_CC_ME": ("#8C6D46", "v"),
    "fused": ("#D55E00", "*"),
}
GPU_LINES = {"A100-40GB": (0, (1, 1)), "RTX4080": (0, (4, 2, 1, 2))}
plt.rcParams.update({"font.size": 10, "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True,
                     "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "baton",
                     "legend.frameon": False})


def seconds(v, _=None):
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if v >= size * 0.9999:
            return f"{v / size:g} {unit}"
    return f"{v / 1e-9:g} ns"


def size_of(v, _=None):
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if v >= size * 0.9999:
            return f"{v / size:g} {unit}"
    return f"{v:g} B"


def tokens(v, _=None):
    v = int(round(v))
    return f"{v // 1024} Ki" if v >= 1024 and v % 1024 == 0 else str(v)


def rate(v, _=None):
    for unit, size in (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6)):
        if v >= size * 0.9999:
            return f"{v / size:g} {unit}"
    return f"{v:g}"


def context_axis(axis, values):
    axis.set_xscale("log", base=2)
    axis.set_xlabel("tokens in each request's context")
    axis.set_xticks(values)
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(tokens))
    axis.xaxis.set_minor_locator(ticker.NullLocator())


def save(figure, directory, name):
    for ending in ("svg", "png"):
        path = os.path.join(directory, f"{name}.{ending}")
        try:
            figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if ending == "svg" else None)
        except OSError as e:
            if os.path.isfile(path):
                os.remove(path)  # part of it
            print(f"baton profile: {path}: {e.strerror or e}", file=sys.stderr)
            sys.exit(NOT_WRITTEN)
    plt.close(figure)


def series(points, batch, variant, field):
    found = sorted((p["context"], p[field]) for p in points
                   if p["batch"] == batch and p["variant"] == variant and p.get(field, 0) > 0)
    return [x for x, _ in found], [y for _, y in found]


def panels(n, height=4.8):
    across = min(n, 2)
    down = math.ceil(n / across)
    figure, axes = plt.subplots(down, across, figsize=(6.4 * across, height * down), squeeze=False, sharey=True)
    flat = list(axes.flat)
    for axis in flat[n:]:
        axis.set_visible(False)
    return figure, flat[:n]


def shared_legend(figure, axes, columns):
    """Below all panels, each label once."""
    found = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            found.setdefault(label, handle)
    figure.tight_layout()
    figure.legend(found.values(), found.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=columns)


def plot_time(profile, directory):
    measured = profile["measurement"]["points"]
    batches = sorted({p["batch"] for p in measured})
    contexts = sorted({p["context"] for p in measured})
    figure, axes = panels(len(batches))
    for axis, batch in zip(axes, batches):
        for variant, (colour, marker) in STYLE.items():
            x, y = series(measured, batch, variant, "step_s")
            axis.plot(x, y, color=colour, marker=marker, label=variant, linewidth=2 if variant == "fused" else 1.4,
                      markersize=10 if variant == "fused" else 5.5, zorder=4 if variant == "fused" else 3)
        x, y = series(measured, batch, "fused", "roof_s")
        axis.plot(x, y, color="black", linewidth=1.2, linestyle="--", label="roof, absorbed")
        x, y = series(measured, batch, "CD", "roof_s")
        axis.plot(x, y, color=STYLE["CD"][0], linewidth=1.0, linestyle="--", label="roof, CD")
        for gpu, dashes in GPU_LINES.items():
            for variant in ("CD", "A_CC_ME"):
                x, y = series([p for p in profile.get("study001", []) if p["gpu"] == gpu], batch, variant, "step_s")
                if x:
                    axis.plot(x, y, color=STYLE[variant][0], linewidth=1.1, alpha=0.7, linestyle=dashes,
                              label=f"{variant} on {gpu} (study 001)")
        context_axis(axis, contexts)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(ticker.FuncFormatter(seconds))
        axis.yaxis.set_minor_locator(ticker.NullLocator())
        axis.set_title(f"batch {batch}")
    for axis in axes:
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("time of a decode step of one layer")
    figure.suptitle(f"{profile['model']['title']}: time against context, {profile['roof']['name']}")
    shared_legend(figure, axes, 4)
    save(figure, directory, "time")


def plot_bytes(profile, directory):
    variants = profile["analysis"]["variants"]
    points = profile.get("measurement", {}).get("points", [])
    batches = sorted({p["batch"] for p in points}) or [1, 32]
    contexts = [2 ** i for i in range(5, 18)]
    figure, axes = panels(len(batches))
    for axis, batch in zip(axes, batches):
        for v in variants:
            colour, _ = STYLE[v["name"]]
            if v["name"] == "fused":
                continue
            need = [v["weight_bytes"] + batch * n * v["cache_bytes"] for n in contexts]
            label = {"A_CC_ME": "A_CC_ME, fused"}.get(v["name"], v["name"])
            axis.plot(contexts, [y + batch * n * v["moved_bytes"] for n, y in zip(contexts, need)], color=colour,
                      label=label + (", with what it copies" if v["moved_bytes"] else ""))
        context_axis(axis, contexts[::2])
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(ticker.FuncFormatter(size_of))
        axis.yaxis.set_minor_locator(ticker.NullLocator())
        axis.set_title(f"batch {batch}")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("bytes that a decode step of one layer moves")
    figure.suptitle(f"{profile['model']['title']}: weights, cache and copies")
    shared_legend(figure, axes, 3)
    save(figure, directory, "bytes")


def plot_crossover(profile, directory):
    m = profile["model"]
    inner = m["kv_lora_rank"] * (m["qk_nope_dim"] + m["v_dim"])
    normal_pair = m["qk_nope_dim"] + m["qk_rope_dim"] + m["v_dim"]
    absorbed_pair = 2 * m["kv_lora_rank"] + m["qk_rope_dim"]
    steps = 200
    q_axis = [2 ** (12 * i / steps) for i in range(steps + 1)]
    kv_axis = [2 ** (5 + 12 * i / steps) for i in range(steps + 1)]
    ratio = [[math.log2((kv * inner + q * kv * normal_pair) / (q * inner + q * kv * absorbed_pair)) if q <= kv else math.nan
              for kv in kv_axis] for q in q_axis]
    figure, axis = plt.subplots(figsize=(7.6, 5.4))
    image = axis.pcolormesh(kv_axis, q_axis, ratio, cmap="RdBu_r", vmin=-6, vmax=6, shading="gouraud", rasterized=True)
    limit = profile["analysis"]["crossover"]["q_unbounded"]
    if limit > 0:
        line = [(kv, limit * kv / (kv + limit)) for kv in kv_axis]
        axis.plot(*zip(*line), color="black", linewidth=2, label=f"q* = {limit:.2f} kv / (kv + {limit:.2f})")
    axis.plot(kv_axis, kv_axis, color="black", linewidth=1, linestyle=":", label="q = kv: a whole prompt")
    context_axis(axis, [2 ** i for i in range(5, 18, 2)])
    axis.set_xlabel("kv: tokens attended to, the new ones among them")
    axis.set_yscale("log", base=2)
    axis.set_yticks([2 ** i for i in range(0, 13, 2)])
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(tokens))
    axis.set_ylim(1, 4096)
    axis.set_ylabel("q: new tokens")
    axis.grid(False)
    axis.text(2 ** 13, 6, "absorbed is cheaper", ha="center", va="center", color="white")
    axis.text(2 ** 14.3, 1100, "normal is cheaper", ha="center", va="center")
    bar = figure.colorbar(image, ax=axis, ticks=range(-6, 7, 2))
    bar.ax.set_yticklabels([f"{2 ** i}x" if i >= 0 else f"1/{2 ** -i}x" for i in range(-6, 7, 2)])
    bar.set_label("FLOP, normal / absorbed")
    axis.set_title(f"{m['title']}: which form, by FLOP")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2)
    save(figure, directory, "crossover")


def plot_roofline(profile, directory):
    roof = profile["roof"]
    points = profile.get("measurement", {}).get("points", [])
    peak = roof["flop_per_s"]
    figure, axis = plt.subplots(figsize=(7.6, 5.2))
    ridge = peak / roof["bytes_per_s"]
    ends = (0.25, max(4096, 4 * ridge))
    axis.plot([ends[0], ridge, ends[1]], [ends[0] * roof["bytes_per_s"], peak, peak], color="black", linewidth=1.6,
              label=f"roof: {size_of(float('%.3g' % roof['bytes_per_s']))}/s, {rate(float('%.3g' % peak))}")
    if points:
        for variant, (colour, marker) in STYLE.items():
            done = [p for p in points if p["variant"] == variant and "step_s" in p]
            axis.scatter([p["flops"] / p["bytes"] for p in done], [p["flops"] / p["step_s"] for p in done], color=colour,
                         marker=marker, s=[(40 if variant == "fused" else 20) + 14 * math.log2(p["batch"] + 1) for p in done], label=variant, alpha=0.85,
                         zorder=4 if variant == "fused" else 3, linewidths=0)
    else:
        for v in profile["analysis"]["variants"]:
            colour, marker = STYLE[v["name"]]
            intensity = v["key_flops"] / v["cache_bytes"]
            axis.scatter([min(intensity, ends[1])], [min(peak, intensity * roof["bytes_per_s"])], color=colour,
                         marker=marker, s=60, label=f"{v['name']}, bound of a long context", zorder=3)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(rate))
    axis.set_xlabel("arithmetic intensity: FLOP per byte of weights and cache")
    axis.set_ylabel("FLOP per second of the whole step")
    axis.set_title(f"{profile['model']['title']}: roofline, {roof['name']}" + ("\nlarger marks: larger batches" if points else ""))
    axis.legend(loc="lower right")
    save(figure, directory, "roofline")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as f:
        profile = json.load(f)
    plot_bytes(profile, sys.argv[2])
    plot_crossover(profile, sys.argv[2])
    plot_roofline(profile, sys.argv[2])
    if profile.get("measurement", {}).get("points"):
        plot_time(profile, sys.argv[2])


if __name__ == "__main__":
    main()
