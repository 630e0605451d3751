#!/usr/bin/env python3
"""Holds the distributed engine against the goldens and against itself, on every route.

    goldens.py --bin DIR --source DIR --model NAME [--turn N | --full] [--only ROUTE...]

A route is (ranks, attention form, chunk).  `baton-logits` runs every case of the model in the ranks that serve,
twice: with the goldens' routing forced, and free.  On each route:
  - forced: rms error over the stored rows <= 1.5 x bf16_forced_rms_error (of sparse attention the median row's, of
    bf16_forced_median_row_error), and the experts come back as forced;
  - free: median row error <= 1.5 x bf16_median_row_error, rows that saw other experts <= max(3, 2 x bf16_rows_rerouted);
  - laws A and B: logits and experts equal, bit by bit, those of every other route of the same form.
With --full the routes are the whole product of ranks, forms and chunks; without it every pair of two of them.  With --turn
half as many: each value with the model, each form with three of the ranks and chunks, and of eight models with turns
0 to 7 together the whole product.  Chunks of 1 and 7 take prompts of up to 256 tokens only."""
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cell as cells  # noqa: E402
import tensors  # noqa: E402

RANKS = ["1+1", "2+2", "1+3", "3+1", "both1", "both2"]
FORMS = ["role", "normal", "absorbed", "cost"]
CHUNKS = [0, 1, 7, 64]  # 0: whole
WAIVES_LAW_B = {"cost"}
SHORT_PROMPT = 256
LIMIT_S = 900  # of a route


def pairwise():
    """Routes in which every pair of values of two factors occurs: a Latin square over ranks x forms."""
    for r, f in itertools.product(range(len(RANKS)), range(len(FORMS))):
        yield RANKS[r], FORMS[f], CHUNKS[(r + f) % len(CHUNKS)]


def by_turns(turn):
    for r, k in itertools.product(range(len(RANKS)), range(2)):
        yield RANKS[r], FORMS[2 * k + (r + turn) % 2], CHUNKS[(r // 2 + r + 2 * k + turn // 2) % len(CHUNKS)]


def rank_flags(ranks):
    if ranks.startswith("both"):
        return ["--both", ranks[4:]]
    prefill, decode = ranks.split("+")
    return ["--prefill", prefill, "--decode", decode]


class Model:
    def __init__(self, source, name):
        self.dir = os.path.join(source, "models" if name == "demo" else "tests/models", name)
        fixtures = os.path.join(source, "tests", "fixtures", name)
        self.golden = tensors.read(os.path.join(fixtures, "cases.safetensors"))
        self.cases = json.load(open(os.path.join(fixtures, "cases.json")))
        self.has_experts = all(self.golden[name + ".experts"].size for name in self.cases)

    def inputs(self, short_only):
        """Each case twice, NAME.forced and NAME.free; and the names that it holds."""
        out, names = {}, []
        for name, info in self.cases.items():
            if short_only and info["prompt"] > SHORT_PROMPT:
                continue
            names.append(name)
            for kind in ("forced", "free"):
                out[f"{name}-{kind}.ids"] = self.golden[name + ".ids"]
                out[f"{name}-{kind}.prompt"] = np.array([info["prompt"]], np.int32)
            if self.has_experts:
                out[f"{name}-forced.experts"] = self.golden[name + ".experts"]
        return out, names


def run_route(a, model, route, folder):
    ranks, form, chunk = route
    inputs, names = model.inputs(short_only=chunk in (1, 7))
    src, dst = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
    tensors.write(src, inputs)
    command = [os.path.join(a.bin, "baton-logits"), "--model", model.dir, "--ids", src, "--out", dst,
               *rank_flags(ranks), "--form", form]
    if chunk:
        command += ["--chunk", str(chunk)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:    # NCCL warns on stdout
        limit = threading.Timer(LIMIT_S, cells.kill, [run])
        limit.start()
        try:
            said = "".join(cells.passed_on(run.stdout))
        except KeyboardInterrupt:
            cells.kill(run)
            raise
        finally:
            limit.cancel()
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nexit code {run.returncode}\n{said[-4000:]}")
    return tensors.read(dst), names


def rms(x):
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))


class Verdict:
    def __init__(self):
        self.checks = self.failures = 0

    def hold(self, ok, text):
        self.checks += 1
        if not ok:
            self.failures += 1
            print("FAILED", text, flush=True)


def check_goldens(v, where, model, name, out):
    info, want = model.cases[name], model.golden[name + ".logits"]
    first, experts = info["first_position"], model.golden[name + ".experts"]
    n_tokens = len(model.golden[name + ".ids"])

    forced, free = out[name + "-forced.logits"], out[name + "-free.logits"]
    v.hold(forced.shape == (n_tokens, want.shape[1]), f"{where} {name}: logits have shape {forced.shape}")
    error, fair = rms(forced[first:] - want), info["bf16_forced_rms_error"]
    if "bf16_forced_median_row_error" in info:
        error, fair = float(np.median([rms(row) for row in forced[first:] - want])), info["bf16_forced_median_row_error"]
    v.hold(error <= 1.5 * fair, f"{where} {name}: forced error {error:.5f}, limit 1.5 x {fair:.5f}")

    rows = np.sqrt(np.mean(np.square((free[first:] - want).astype(np.float64)), axis=1))
    median, limit = float(np.median(rows)), 1.5 * info["bf16_median_row_error"]
    v.hold(median <= limit, f"{where} {name}: free median row error {median:.5f}, limit {limit:.5f}")
    if not model.has_experts:
        return error / fair, 0
    v.hold(np.array_equal(out[name + "-forced.experts"], experts), f"{where} {name}: forced experts came back changed")
    moved = int((out[name + "-free.experts"] != experts).any(axis=(0, 2))[first:].sum())
    limit = max(3, 2 * info["bf16_rows_rerouted"])
    v.hold(moved <= limit, f"{where} {name}: {moved} rows saw other experts, limit {limit}")
    return error / fair, moved


def check_laws(v, where, form, keys, out, base):
    """Bit by bit against the first route of this form that held the case."""
    for key in keys:
        first = base.setdefault((form, key), (where, out[key]))
        same = first[1].tobytes() == out[key].tobytes()
        v.hold(same, f"{where} {key}: differs from {first[0]} in {int((first[1] != out[key]).sum())} elements")


def check_neighbours(v, a, model, folder):
    """Alone (one case at a time) against beside 7 others."""
    inputs, names = model.inputs(short_only=True)
    filler = {f"filler{i}.{k}": x for i in range(8) for k, x in
              (("ids", model.golden[names[i % len(names)] + ".ids"][: 9 + 5 * i]), ("prompt", np.array([3 + 5 * i], np.int32)))}
    outs = []
    for parallel, extra in ((1, {}), (8, filler)):
        src, dst = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        tensors.write(src, {**inputs, **extra})
        command = [os.path.join(a.bin, "baton-logits"), "--model", model.dir, "--ids", src, "--out", dst,
                   "--prefill", "2", "--decode", "1", "--parallel", str(parallel)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        v.hold(run.returncode == 0, f"{' '.join(command)}: exit code {run.returncode}: {run.stderr[-2000:]}")
        if run.returncode != 0:
            return
        outs.append(tensors.read(dst))
    for key in outs[0]:
        v.hold(outs[0][key].tobytes() == outs[1][key].tobytes(), f"{key}: alone and beside 7 others differ")


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--model", required=True)
    ap.add_argument("--full", action="store_true", help="the whole product of routes")
    ap.add_argument("--turn", type=int, help="half of the pairwise cover, another one for each number")
    ap.add_argument("--only", nargs="+", help="these routes, as 2+2/role/7 (chunk 0: whole)")
    a = ap.parse_args()
    routes = list(itertools.product(RANKS, FORMS, CHUNKS)) if a.full else list(pairwise() if a.turn is None else by_turns(a.turn))
    if a.only:
        routes = [(ranks, form, int(chunk)) for ranks, form, chunk in (route.split("/") for route in a.only)]
    model, v, base = Model(a.source, a.model), Verdict(), {}
    with tempfile.TemporaryDirectory() as folder:
        for route in routes:
            where = f"{a.model} {route[0]} {route[1]} chunk {route[2] or 'whole'}"
            out, names = run_route(a, model, route, folder)
            found = [check_goldens(v, where, model, name, out) for name in names]
            if route[1] not in WAIVES_LAW_B:
                kinds = itertools.product(names, ("forced", "free"), ("logits", "experts") if model.has_experts else ("logits",))
                check_laws(v, where, route[1], [f"{name}-{kind}.{what}" for name, kind, what in kinds], out, base)
            print(f"{where}: forced error {max(e for e, _ in found):.2f} x bf16, rows rerouted {max(m for _, m in found)}", flush=True)
        if not a.only:
            check_neighbours(v, a, model, folder)
    print(f"{len(routes)} routes, {v.checks} checks, {v.failures} failed")
    return 1 if v.failures or v.checks == 0 else 0


sys.exit(main())
