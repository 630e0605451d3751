"""What the kill test found: faults by moment and kind, pauses by kind, a plot; and where it ran."""
import json
import os
import re
import subprocess
import time



def absorbed(f, *kinds):
    return f["kind"] in kinds and not f["restart"]


KINDS = ["SIGKILL", "SIGABRT", "stop 0.2 s", "stop", "cut 0.5 s", "cut", "power off"]
PAUSES = [("killed, absorbed", lambda f: absorbed(f, "SIGKILL", "SIGABRT") and not f["beside"]),
          ("killed beside a stop or a cut", lambda f: absorbed(f, "SIGKILL", "SIGABRT") and f["beside"]),
          ("stopped for 0.2 s", lambda f: absorbed(f, "stop 0.2 s")),
          ("stopped, removed", lambda f: absorbed(f, "stop")),
          ("link cut for 0.5 s", lambda f: absorbed(f, "cut 0.5 s")),
          ("link cut for good", lambda f: absorbed(f, "cut")),
          ("node killed", lambda f: absorbed(f, "power off")),
          ("cell restarted", lambda f: f["restart"] and not f["again_loading"]),
          ("cell restarted, struck again while it loads", lambda f: f["restart"] and f["again_loading"] and f["moment"] != "loading")]
COLORS = ("#b23a3a", "#d98a8a", "#3c8d5a", "#2f6db3", "#7a9f35", "#8053a0", "#444444", "#c8781e", "#c9a227")


def percentile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def pauses_of(faults):
    return [p for f in faults for p in f["pauses"]]


def rows(faults):
    """[(kind, faults, pauses, p50, p99, longest)], of kinds that occurred."""
    out = []
    for name, pick in PAUSES:
        some = [f for f in faults if pick(f)]
        pauses = pauses_of(some)
        if some:
            out.append((name, len(some), len(pauses), percentile(pauses, 0.5), percentile(pauses, 0.99), max(pauses, default=float("nan"))))
    return out


def longest(faults, pick):
    """The fault with the longest pause, in words."""
    f = max((f for f in faults if pick(f) and f["pauses"]), key=lambda f: f["pauses"][-1], default=None)
    return f and f"{f['pauses'][-1]:.3f} s: {f['victim']} of cell {f['cell']} by {f['kind']} at the moment \"{f['moment']}\", {f['again']} requests placed again"


def tables(run):
    """Lines of Markdown."""
    faults = run["faults"]
    kinds = [k for k in KINDS if any(f["kind"] == k for f in faults)]
    moments = list(dict.fromkeys([*run["moments"], *(f["moment"] for f in faults)]))
    out = ["| struck while | " + " | ".join(kinds) + " | requests placed again |", "|---" * (len(kinds) + 2) + "|"]
    for m in moments:
        here = [f for f in faults if f["moment"] == m]
        out.append(f"| {m} | " + " | ".join(str(sum(f["kind"] == k for f in here)) for k in kinds) + f" | {sum(f['again'] for f in here)} |")
    out += ["", "| fault | faults | streams | p50 s | p99 s | longest s |", "|---|---|---|---|---|---|"]
    out += [f"| {name} | {n} | {m} | {p50:.3f} | {p99:.3f} | {most:.3f} |" for name, n, m, p50, p99, most in rows(faults)]
    return out


def summary(run):
    faults, out = run["faults"], []
    out.append(f"{len(faults)} faults in {run['cells']} cells, {run['restarts']} restarts of a cell, {run['streams']} streams: each as undisturbed, bit by bit, with one end; "
               f"{run['fenced']} ranks woke up after their removal, and left.")
    for what, (_, pick) in (("a kill", PAUSES[0]), ("a cell restarted", PAUSES[-2])):
        text = longest(faults, pick)
        if text:
            out.append(f"The longest pause of {what}: {text}.")
    said = [(f["pauses"][-1], f["said"]) for f in faults if PAUSES[0][1](f) and f.get("said")]
    if said:
        out.append("What the log said during it:\n\n" + "\n".join(f"    {line}" for line in max(said)[1]))
    return out


def plot(run, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    matplotlib.rcParams["svg.hashsalt"] = "baton"
    fig, ax = plt.subplots(figsize=(7, 4))
    for (name, pick), color in zip(PAUSES, COLORS):
        pauses = sorted(pauses_of(f for f in run["faults"] if pick(f)))
        if pauses:
            ax.step(pauses, [(i + 1) / len(pauses) for i in range(len(pauses))], where="post", label=f"{name} ({len(pauses)} streams)", color=color)
    ax.set_xscale("log")
    ax.set_xlabel("longest silence of a stream around a fault, seconds")
    ax.set_ylabel("part of the streams")
    ax.set_ylim(0, 1.02)
    ax.grid(True, color="#d8d8d8", linewidth=0.6)
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(0, -0.18), ncol=2)  # below: curves fill the plot
    fig.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def text(run):
    """JSON, a line for each fault."""
    head = {k: v for k, v in run.items() if k != "faults"}
    lines = [json.dumps(dict(f, pauses=[round(p, 4) for p in f["pauses"]])) for f in run["faults"]]
    return json.dumps(head, indent=1)[:-2] + ',\n "faults": [\n  ' + ",\n  ".join(lines) + "\n ]\n}"


def write(run, path):
    with open(path, "w") as f:
        f.write(text(run) + "\n")


def clock_of(line):
    """Of a log line, as time.time(): "2026-01-31 12:34:56.789 I ...".  Open MPI's bytes may stand before it, or have cut it: 0."""
    at = re.search(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{3}) ", line)
    return time.mktime(time.strptime(at[1], "%Y-%m-%d %H:%M:%S")) + float(at[2]) if at else 0


def commit_of(source):
    done = subprocess.run(["git", "-C", source, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machine():
    with open("/proc/cpuinfo") as f:
        name = re.search(r"model name\s*: (.*)", f.read())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name.group(1) if name else os.uname().machine}, {os.cpu_count()} cores, {memory:.1f} GiB, {os.uname().sysname} {os.uname().release}"
