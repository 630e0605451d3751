#!/usr/bin/env python3
"""Baton beside llama.cpp and Hugging Face transformers on the same random weights and the same cores.

    peers.py check  --build B --model DIR --gguf FILE --work W [--only NAMES]
    peers.py time   --build B --model DIR --gguf FILE --work W [--only NAMES] [--points NAMES] [--rounds N]
    peers.py report --build B --model DIR --work W --out docs/measurements/peers

`run` beside this file makes everything that these need, and calls them in this order.

check compares logits over tokens drawn with a fixed seed: every pair of engines may differ by at most twice the bf16 error, which is what
transformers' own bf16 run strays from its float32 run (compare.py).  Unless they agree, nothing is timed: W/check.json says.
time lets the engines take turns, each in a process of its own that loads the model and measures two or three points, so that rivals run
within the same minutes; the roofs are probed before and after every point, and the better probe counts: whatever disturbs one makes the
roof look lower than it is.  It appends to W/times.jsonl: call it as often as you like.
report takes medians over all runs that other programs did not disturb and writes OUT.json, OUT.md and OUT.svg.

A point is a prompt of n tokens (time to its first token) or a step of a batch: each sequence has a context of its own of c random tokens,
and different random tokens in each step, so that sequences choose different experts.  Shares are the roof's time / the median time, for
every token through every layer (bench_engine.py), whatever an engine does instead: more, or less where nobody reads the last layer."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
import bench_engine  # noqa: E402

ENGINES = ("baton", "llama", "transformers")
#         name: (kind, tokens or batch, context, samples or steps); a request has some prompt: 16 tokens stand for 0
POINTS = {"prefill 512": ("prefill", 512, 0, 3), "prefill 2048": ("prefill", 2048, 0, 2), "batch 1, ctx 0": ("decode", 1, 16, 48),
          "batch 1, ctx 8k": ("decode", 1, 8192, 24), "batch 8, ctx 1k": ("decode", 8, 1024, 24), "batch 32, ctx 1k": ("decode", 32, 1024, 16)}
# An engine loads the model once for each of these, then it is the next one's turn.
TOGETHER = [["prefill 512", "prefill 2048", "batch 1, ctx 0"], ["batch 1, ctx 8k", "batch 8, ctx 1k"], ["batch 32, ctx 1k"]]
# A step of transformers takes up to seconds here, so that few are taken, and with --slow only.
SLOW = {("transformers", "batch 8, ctx 1k"), ("transformers", "batch 32, ctx 1k"), ("transformers", "batch 1, ctx 8k")}
SLOW_STEPS = 5
CHECK_TOKENS, CHECK_SEED = 64, 7
SETTLE_S = 1  # until an engine's threads no longer spin and leave their cores to the probe of the roofs


def model_of(args):
    return {"folder": args.model, "gguf": args.gguf, "build": args.build}


def load_engine(name, args):
    # The peers' threads are OpenMP's.  One that slept wakes on the core of another, by chance, where other programs run: half the speed.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000000")
    module = __import__("engine_" + name)
    return module.Engine(model_of(args), args.threads)


def itself(args, *more):
    """This program in a new process: an engine's memory goes with it."""
    command = [sys.executable, "-B", os.path.abspath(__file__), *more, "--build", args.build, "--model", args.model, "--work", args.work,
               "--threads", str(args.threads)]
    if args.gguf:
        command += ["--gguf", args.gguf]
    if subprocess.run(command).returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed")


# ---- do they compute the same

def vocabulary(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)["vocab_size"]


def check_tokens(args):
    import numpy as np
    return [int(t) for t in np.random.default_rng(CHECK_SEED).integers(0, vocabulary(args.model), CHECK_TOKENS)]


def logits(args):
    """Of one engine, or of "float32"; into W/logits-NAME.npy."""
    import numpy as np
    ids = check_tokens(args)
    if args.only == "baton":
        import engine_baton
        found = engine_baton.logits(model_of(args), ids)
    elif args.only == "float32":
        import engine_transformers
        found = engine_transformers.Engine(model_of(args), args.threads, experts="eager").logits_float32(ids)
    else:
        engine = load_engine(args.only, args)
        found = engine.logits(ids)
        engine.close()
    np.save(os.path.join(args.work, f"logits-{args.only}"), found)


def check(args):
    import numpy as np
    import compare
    engines, have = sorted({*args.only.split(","), "transformers"}), {}
    for name in [*engines, "float32"]:
        itself(args, "logits", "--only", name)
        have[name] = np.load(os.path.join(args.work, f"logits-{name}.npy"))
    exact = have.pop("float32")
    figures, wrong = compare.compare(exact, have["transformers"], have)
    figures.update(tokens=CHECK_TOKENS, times=compare.TIMES, same=not wrong, wrong=wrong, model=fingerprint(args.model))
    with open(os.path.join(args.work, "check.json"), "w") as f:
        json.dump(figures, f, indent=1)
    print(json.dumps(figures, indent=1))
    if wrong:
        raise SystemExit("the engines do not compute the same: nothing is timed\n" + "\n".join(wrong))


def fingerprint(folder):
    """Names, sizes and times of the checkpoint's files: enough to see that it is the one that was checked."""
    return [[n, os.stat(p).st_size, os.stat(p).st_mtime_ns] for n in sorted(os.listdir(folder)) for p in [os.path.join(folder, n)]]


def need_check(args, engines):
    path = os.path.join(args.work, "check.json")
    if not os.path.exists(path):
        raise SystemExit(f"{path} is missing: run `check` first")
    with open(path) as f:
        done = json.load(f)
    if not done["same"]:
        raise SystemExit("the engines do not compute the same: nothing is timed\n" + "\n".join(done["wrong"]))
    if done["model"] != fingerprint(args.model):
        raise SystemExit(f"{path} is about another model than {args.model}: run `check` again")
    missing = [e for e in engines if e not in done["to_float32"]]
    if missing:
        raise SystemExit(f"{path} knows nothing of {', '.join(missing)}: run `check` again")


# ---- how fast

def family(pid):
    """This process and all below it."""
    parents = {int(p): bench_engine.read(f"/proc/{p}/stat").rsplit(")", 1)[-1].split()[1:2] for p in os.listdir("/proc") if p.isdigit()}
    found = [pid]
    for above in found:
        found += [p for p, parent in parents.items() if parent == [str(above)]]
    return found


def timed(args):
    """One engine, some points, in this process."""
    import numpy as np
    roofs = bench_engine.Roofs(os.path.join(args.build, "bench", "bench_roofs"), args.threads)
    engine = load_engine(args.only, args)
    rng = np.random.default_rng(time.time_ns())
    vocab = vocabulary(args.model)
    engine.prefill(rng.integers(0, vocab, 128))

    def probe():
        time.sleep(SETTLE_S)
        return roofs.probe()

    ours = family(os.getpid())
    for name in args.points.split(";"):
        kind, n, context, samples = POINTS[name]
        before = probe()
        began, (own, everything) = time.monotonic(), bench_engine.cpu_seconds(ours)
        if kind == "prefill":
            seconds = [engine.prefill(rng.integers(0, vocab, n)) for _ in range(samples)]
        else:
            seconds = engine.decode(rng, n, context, SLOW_STEPS if (args.only, name) in SLOW else samples)
        now = bench_engine.cpu_seconds(ours)
        others = max(0, now[1] - everything - (now[0] - own)) / (time.monotonic() - began)
        after = probe()
        row = {"engine": args.only, "version": engine.version, "point": name, "at": time.time(), "seconds": statistics.median(seconds),
               "samples": len(seconds), "others_cores": others, "roofs": {k: max(before[k], after[k]) for k in ("read_gbs", "gflops")},
               "kernels": before["kernels"]}
        with open(os.path.join(args.work, "times.jsonl"), "a") as f:
            f.write(json.dumps(row) + "\n")
        print(f"{args.only:12} {name:18} {n / row['seconds']:9.1f} tokens/s   ({row['roofs']['read_gbs']:.1f} GB/s, "
              f"{row['roofs']['gflops'] / 1e3:.2f} TFLOP/s, others {others:.2f} cores)", flush=True)
    engine.close()


def take_times(args):
    engines, wanted = args.only.split(","), args.points.split(";") if args.points else list(POINTS)
    need_check(args, engines)
    for _ in range(args.rounds):
        for group in TOGETHER:
            for engine in engines:
                points = [p for p in group if p in wanted and ((engine, p) not in SLOW or args.slow)]
                if points:
                    itself(args, "one", "--only", engine, "--points", ";".join(points))


def read_times(work):
    with open(os.path.join(work, "times.jsonl")) as f:
        return [json.loads(line) for line in f]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["check", "time", "report", "logits", "one"])
    ap.add_argument("--build", required=True, help="a build directory, with bin/ and bench/")
    ap.add_argument("--model", required=True)
    ap.add_argument("--gguf", help="the same model for llama.cpp")
    ap.add_argument("--work", required=True, help="where results are kept")
    ap.add_argument("--only", default=",".join(ENGINES), help="engines, comma-separated: " + ",".join(ENGINES))
    ap.add_argument("--points", help="points, semicolon-separated: " + "; ".join(POINTS))
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--slow", action="store_true", help="transformers too at points where it takes minutes")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--out", help="report: OUT.json, OUT.md, OUT.svg")
    args = ap.parse_args()
    unknown = [x for x in args.only.split(",") if x not in (*ENGINES, "float32")] + [x for x in (args.points or "").split(";") if x and x not in POINTS]
    if unknown:
        ap.error(f"unknown: {', '.join(unknown)}")
    if args.what == "report":
        import report
        report.write(args, read_times(args.work))
        return
    {"check": check, "time": take_times, "logits": logits, "one": timed}[args.what](args)


if __name__ == "__main__":
    main()
