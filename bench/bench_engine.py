#!/usr/bin/env python3
"""The whole engine on the shape of a real model, against this machine's own roofs, measured in the same minute.

    bench_engine.py --build build/release [--model DIR] [--rounds 3] [--only NAMES] [--out docs/measurements/engine_cpu]

Makes a model with `baton synth` (V2-Lite's shape, 4 layers, seed 1) unless --model names one, starts a cell with one prefill and one
decode rank, and drives it with `baton bench`: random tokens, nothing shared, tokens drawn at temperature 1, so that requests choose
their experts apart.  Writes OUT.json and OUT.md.

    prefill n         n / (time to the first token of a lone prompt of n tokens): everything between client and client
    batch b, ctx c    b / (median pause between tokens while all b requests decode), each after a prompt of c tokens of its own, 16 for 0

The prompts of a batch are computed before its probe and come again then, from the caches of both ranks, so that all requests decode at
once; what the decode ranks wait for is counted, what prompts take is not.

Work is counted as for the peers: every token goes through every layer, and a step is bound by its operations or its bytes, whichever
takes longer; a weight in bf16 is two bytes, though ranks that decode, and any head, have it in 12 bits, so that a share can be above 1.
*Computed* is the wall's share of what is computed and read, part after part.  A prompt needs less: in the last layer tokens without
logits only fill their pages.  A step of decode needs more: projections, attention, dense layers, experts and the head wait for each other,
so each is bound by its own operations or bytes.

Every case is preceded by a probe of the roofs, cases take turns, and medians over all rounds count.  Two shares are given.  *Wall*: the
time that the roof would take / the time it took.  *CPU*: the same in CPU seconds of all ranks and of the probe's threads; where others
use the cores too, wall figures fall for reasons that are not the engine's, and these hold.  Exit code 77: skipped, with its reason."""
import argparse
import atexit
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SYNTH = ["--like", "v2-lite", "--layers", "4", "--seed", "1"]
TICKS = os.sysconf("SC_CLK_TCK")
CHUNK = 2048


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


# ---- what the work is at least

class Work:
    """Operations and bytes of a model's steps, from its config.json; weights in bf16, or in e4m3 all but gate, kv_b, embedding and head, or in
    4 bits those of the experts."""

    def __init__(self, c, in_12_bits=True):
        h, n, r = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"]
        dn, dr, dv, lat = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        layers, dense = c["num_hidden_layers"], c["first_k_dense_replace"]
        q = n * (dn + dr) * h if not r else r * h + n * (dn + dr) * r
        self.attention = layers * (q + (lat + dr) * h + n * (dn + dv) * lat + n * dv * h)
        self.dense = dense * 3 * h * c["intermediate_size"]
        self.n_moe, self.experts, self.top_k = layers - dense, c["n_routed_experts"], c["num_experts_per_tok"]
        self.expert = 3 * h * c["moe_intermediate_size"]
        self.shared = self.n_moe * (c["n_shared_experts"] * self.expert + self.experts * h)
        self.head = c["vocab_size"] * h
        self.qk_v = layers * n * (dn + dr + dv)
        self.kv_row = layers * (lat + dr) * 2
        self.absorbed = 2 * layers * n * (2 * lat + dr)
        self.positions = c["max_position_embeddings"]
        self.always = self.attention + self.dense + self.shared
        kv, expansion = (lat + dr) * h, n * (dn + dv) * lat
        last = self.shared / self.n_moe + self.top_k * self.expert if self.n_moe else 3 * h * c["intermediate_size"]
        # Of the last layer: weights that a token meets which goes on, those of its experts that others alone read, heads' operations.
        self.on = self.attention / layers - kv - expansion + last
        self.others_experts = (self.experts - self.top_k) * self.expert if self.n_moe else 0
        self.last_qk_v = n * (dn + dr + dv)
        method = c.get("quantization_config", {}).get("quant_method")
        self.width = width = 1 if method == "fp8" else 2  # bytes of a weight,
        self.expert_width = 9 / 16 if method == "compressed-tensors" else width  # and of an expert's
        self.attention_bytes = width * self.attention + (2 - width) * layers * expansion
        self.shared_bytes = width * self.shared + (2 - width) * self.n_moe * self.experts * h
        self.always_bytes = self.attention_bytes + width * self.dense + self.shared_bytes
        self.experts_bytes = self.expert_width * self.n_moe * self.experts * self.expert
        self.weight_bytes = self.always_bytes + self.experts_bytes + 2 * 2 * self.head
        # The same as a rank that decodes reads it: bf16 in 12 bits where it packs them so, but for heads of kv_b.
        bf16 = 1.5 if in_12_bits else 2
        read, expert_read = (bf16 if w == 2 else w for w in (width, self.expert_width))
        self.heads = layers * expansion
        self.attention_read = read * self.attention + (2 - read) * self.heads
        self.dense_read, self.head_read = read * self.dense, bf16 * self.head
        self.shared_read = read * self.shared + (bf16 - read) * self.n_moe * self.experts * h
        self.experts_read = expert_read * self.n_moe * self.experts * self.expert

    def prefill(self, n):
        """(operations, bytes) of a prompt: weights once a chunk, attention in the normal form, one row of logits."""
        token = self.always + self.n_moe * self.top_k * self.expert
        ops = 2 * n * token + 2 * self.qk_v * n * (n + 1) / 2 + 2 * self.head
        return ops, -(-n // CHUNK) * (self.always_bytes + self.experts_bytes) + 2 * self.head

    def computed(self, n):
        """The same without what the last layer leaves out: of n tokens one goes on, n - 1 need no attention."""
        ops, size = self.prefill(n)
        skipped = 2 * (n - 1) * self.on + 2 * self.last_qk_v * n * (n - 1) / 2
        return ops - skipped, size - self.expert_width * self.others_experts - 2 * self.head + self.head_read

    def decode(self, batch, context):
        """(operations, bytes) of a step: the experts that random tokens choose are read once each."""
        ops = 2 * batch * (self.always + self.n_moe * self.top_k * self.expert + self.head)
        return ops, self.always_bytes + self.chosen(batch) * self.experts_bytes + 2 * self.head + batch * context * self.kv_row

    def chosen(self, batch):
        """The part of the experts that so many random tokens choose."""
        return 1 - (1 - self.top_k / self.experts) ** batch

    def decode_parts(self, batch, context):
        """The same as it is read, with the operations of attention (absorbed), as the parts that wait for each other.  Routed and shared experts do not."""
        ops, _ = self.decode(batch, context)
        products = [(2 * batch * n, read) for n, read in ((self.attention, self.attention_read), (self.dense, self.dense_read), (self.head, self.head_read))]
        attention = batch * context * self.absorbed, batch * context * self.kv_row
        experts = ops - sum(o for o, _ in products), self.shared_read + self.chosen(batch) * self.experts_read
        return [*products, attention, experts]


# ---- the machine and its roofs

def read(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def machine():
    cpu = read("/proc/cpuinfo")
    flags = set((re.search(r"^flags\s*:\s*(.*)$", cpu, re.M) or [0, ""])[1].split())
    lscpu = run("lscpu") if shutil.which("lscpu") else ""
    cache = ", ".join(re.sub(r"\s+", " ", m) for m in re.findall(r"^(L\d\w? cache:\s+.*)$", lscpu, re.M))
    return {
        "cpu": (re.search(r"^model name\s*:\s*(.*)$", cpu, re.M) or [0, "unknown"])[1], "cores": len(os.sched_getaffinity(0)),
        "flags": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags], "caches": cache,
        "hypervisor": (re.search(r"^Hypervisor vendor:\s*(.*)$", lscpu, re.M) or [0, "none"])[1],
        "memory_gib": round(int(re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))[1]) / 2**20, 1), "kernel": os.uname().release}


class Roofs:
    def __init__(self, program, threads):
        self.command, self.samples = [program, str(threads)], []

    def probe(self):
        self.samples.append(json.loads(run(*self.command)))
        return self.samples[-1]


def shortest(work, roofs, suffix):
    """Seconds that the roofs leave, and which one binds."""
    ops, size = work
    times = {"arithmetic": ops / (roofs[f"gflops{suffix}"] * 1e9), "memory": size / (roofs[f"read_gbs{suffix}"] * 1e9)}
    bound = max(times, key=times.get)
    return times[bound], bound


def in_turn(parts, roofs):
    """Seconds that the roofs leave to parts of which each waits for the one before."""
    return sum(shortest(part, roofs, "")[0] for part in parts)


# ---- the cell

def cpu_seconds(pids):
    """(of these processes and the children that they waited for, of everything)"""
    def of(pid):
        fields = read(f"/proc/{pid}/stat").rsplit(")", 1)[-1].split()
        return sum(map(int, fields[11:15])) / TICKS if fields else 0

    busy = [int(x) for x in read("/proc/stat").split("\n", 1)[0].split()[1:9]]
    return sum(map(of, pids)), (sum(busy) - busy[3] - busy[4]) / TICKS


class Clock(threading.Thread):
    """CPU seconds of some processes over time, and what all others took."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.pids, self.at, self.own, self.all, self.ended = pids, [], [], [], False
        self.start()

    def run(self):
        while not self.ended:
            own, everything = cpu_seconds(self.pids)
            self.at.append(time.monotonic())
            self.own.append(own)
            self.all.append(everything)
            time.sleep(0.02)

    @staticmethod
    def value(xs, ys, x):
        for i in range(1, len(xs)):
            if xs[i] >= x:
                return ys[i - 1] + (ys[i] - ys[i - 1]) * min(1, max(0, (x - xs[i - 1]) / (xs[i] - xs[i - 1])))
        return ys[-1]

    def between(self, a, b):
        """(own CPU seconds, cores that others used)"""
        own, total = (self.value(self.at, y, b) - self.value(self.at, y, a) for y in (self.own, self.all))
        return own, max(0, total - own) / (b - a)


class Cell:
    def __init__(self, bin_dir, model, threads, prefill=1, decode=1, more=()):
        self.bin = bin_dir
        self.process = subprocess.Popen([os.path.join(bin_dir, "baton-run"), "--model", model, "--prefill", str(prefill), "--decode", str(decode),
                                         "--port", "0", "--threads", str(threads), "--chunk", str(CHUNK),
                                         "--kv-bytes", "256M",  # prompts soon have been in all pages, as in a server that has run for a while
                                         "--queue-s", "600",  # 32 prompts at once take minutes on a slow machine
                                         *more],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        atexit.register(self.process.terminate)  # however the program ends, the cell does
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
        start, log = time.monotonic(), []
        self.log = log
        for line in self.process.stdout:
            log.append(line)
            found = re.search(r"serving .* at (\S+:\d+)", line)
            if found:
                break
        else:
            raise SystemExit("the cell did not start:\n" + "".join(log))
        self.address, self.load_s = found[1], time.monotonic() - start
        threading.Thread(target=lambda: log.extend(self.process.stdout), daemon=True).start()
        self.pids = [int(p) for p in os.listdir("/proc") if p.isdigit() and self.is_ours(int(p))]
        self.clock = Clock(self.pids)

    def is_ours(self, pid):
        parent, name = pid, read(f"/proc/{pid}/comm").strip()
        while name == "baton-worker" and parent > 1 and parent != self.process.pid:
            parent = int((read(f"/proc/{parent}/stat").rsplit(")", 1)[-1].split() or [0, 0])[1])
        return name == "baton-worker" and parent == self.process.pid

    def packs_12_bits(self):
        """Whether the decode rank's bf16 weights are in 12 bits: it has told what it has loaded."""
        sizes = [float(x) for x in re.findall(r"loaded in .*: weights ([\d.]+) MiB", "".join(self.log))]
        return min(sizes) < 0.95 * max(sizes)

    def memory_gib(self):
        """Of each rank, its part of what it shares with the others, without the mapped files of the model."""
        kib = [sum(int(n) for n in re.findall(r"Pss_(?:Anon|Shmem):\s*(\d+)", read(f"/proc/{p}/smaps_rollup"))) for p in self.pids]
        return [round(k / 2**20, 2) for k in kib]

    def bench(self, folder, *args):
        out = os.path.join(folder, "run.json")
        run(os.path.join(self.bin, "baton-bench"), "--address", self.address, "--warmup", "0", "--json", out, "--token-times", "--quiet",
            *map(str, args))
        with open(out) as f:
            return json.load(f)

    def stop(self):
        self.clock.ended = True
        self.process.terminate()
        self.process.wait(30)


# ---- the cases: each sample is (seconds, CPU seconds a core, cores that others used)

def prefill_samples(cell, folder, n, requests, seed):
    got = cell.bench(folder, "-c", 1, "-n", requests, "--prompt-tokens", n, "--output-tokens", 1, "--seed", seed)
    for r in got["requests"]:
        a, b = (got["start_monotonic_s"] + r[k] / 1e3 for k in ("sent_ms", "first_ms"))
        cpu, others = cell.clock.between(a, b)
        yield b - a, cpu, others


def compute_prompts(cell, folder, batch, context, seed):
    """The prompts of decode_samples() with the same seed are in the caches of both ranks then: two tokens, since a prompt is handed over
    for the second one."""
    cell.bench(folder, "-c", batch, "-n", batch, "--prompt-tokens", context, "--output-tokens", 2, "--seed", seed)


def decode_samples(cell, folder, batch, context, tokens, seed):
    """One sample: the steps while every request decodes.  The first token of each is its prompt's."""
    while True:
        got = cell.bench(folder, "-c", batch, "-n", batch, "--prompt-tokens", context, "--output-tokens", tokens, "--seed", seed, "--temperature", 1)
        a, b = max(r["messages"][1][0] for r in got["requests"]), min(r["last_ms"] for r in got["requests"])
        times = [[t for t, _ in r["messages"] if a <= t <= b] for r in got["requests"]]
        pauses = [(y - x) / 1e3 for t in times for x, y in zip(t, t[1:])]
        if len(pauses) >= 16 * batch:
            break
        tokens *= 2  # the first answers ended before the last prompt was computed
    cpu, others = cell.clock.between(got["start_monotonic_s"] + a / 1e3, got["start_monotonic_s"] + b / 1e3)
    steps = statistics.mean(sum(a < t <= b for t in ts) for ts in times)
    yield statistics.median(pauses), cpu / steps, others


class Case:
    """tokens: of a sample; parts: what is computed, one after the other; prepare: what comes before a sample and does not count."""

    def __init__(self, name, work, parts, tokens, sample, prepare=None):
        self.name, self.work, self.parts, self.tokens, self.sample, self.prepare, self.rows = name, work, parts, tokens, sample, prepare, []

    def take(self, cell, folder, roofs, threads, seed):
        if self.prepare:
            self.prepare(cell, folder)
        before = roofs.probe()
        samples = list(self.sample(cell, folder, seed))
        after = roofs.probe()
        here = {k: (before[k] + after[k]) / 2 for k in before if k.startswith(("read_gbs", "gflops"))}
        for seconds, cpu, others in samples:
            cpu = max(cpu, 1 / TICKS)  # of a short sample no tick may be there
            wall, bound = shortest(self.work, here, "")
            ideal, _ = shortest(self.work, here, "_cpu")
            self.rows.append({"seconds": seconds, "cpu_seconds": cpu, "others_cores": others, "bound": bound,
                              "wall_share": wall / seconds, "cpu_share": ideal * threads / cpu,
                              "computed_share": in_turn(self.parts, here) / seconds})

    def result(self):
        mid = {k: statistics.median(r[k] for r in self.rows) for k in ("seconds", "cpu_seconds", "others_cores", "wall_share", "cpu_share", "computed_share")}
        return {"name": self.name, "tokens_per_s": self.tokens / mid["seconds"], "bound": statistics.mode(r["bound"] for r in self.rows),
                "gflop": self.work[0] / 1e9, "gbytes": self.work[1] / 1e9, **mid, "samples": self.rows}


def choose(cases, only):
    names = only.split(";") if only else [c.name for c in cases]
    unknown = set(names) - {c.name for c in cases}
    if unknown:
        raise SystemExit(f"--only names {', '.join(sorted(unknown))}; there are {'; '.join(c.name for c in cases)}")
    return [c for c in cases if c.name in names]


def make_cases(work, decode_tokens):
    def prefill(n, requests):
        return Case(f"prefill {n}", work.prefill(n), [work.computed(n)], n, lambda cell, folder, seed: prefill_samples(cell, folder, n, requests, seed))

    def decode(name, batch, context):
        seed = 100000 * batch + context  # the same prompts in each round
        middle = context + decode_tokens / 2
        return Case(name, work.decode(batch, middle), work.decode_parts(batch, middle), batch,
                    lambda cell, folder, _: decode_samples(cell, folder, batch, context, decode_tokens, seed),
                    lambda cell, folder: compute_prompts(cell, folder, batch, context, seed))

    long = min(8192, work.positions - 4 * decode_tokens)  # a sample may take more tokens
    return [prefill(512, 3), prefill(2048, 2), decode("batch 1, ctx 0", 1, 16), decode("batch 1, ctx 8k", 1, long),
            decode("batch 8, ctx 1k", 8, 1024), decode("batch 32, ctx 1k", 32, 1024)]


def heading(title, script, r):
    """The first lines of a report: how it was made, when and where."""
    m = r["machine"]
    return [f"# {title}", "", f"Made by `bench/{script}`, which says what each figure means.", "", f"- When: {r['when']}, commit {r['commit']}",
            f"- Machine: {m['cpu']}, {m['cores']} cores (hypervisor: {m['hypervisor']}), {m['memory_gib']} GiB, Linux {m['kernel']}; {' '.join(m['flags'])}"]


def about():
    """What heading() reads."""
    return {"when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": commit(), "machine": machine()}


def arguments(doc, rounds, model_required=True):
    """Of a bench with a model and a report; parse them."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--build", required=True, help="a build directory, with bin/ and bench/")
    ap.add_argument("--model", required=model_required, help="a model that `baton synth` made before")
    ap.add_argument("--rounds", type=int, default=rounds)
    ap.add_argument("--out", help="writes OUT.json and OUT.md (default: prints the tables)")
    return ap


def publish(report, text, out):
    """The text on stdout, and both as OUT.json and OUT.md; out: OUT or None."""
    if out:
        os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
        for suffix, content in ((".json", json.dumps(report, indent=1) + "\n"), (".md", text)):
            with open(out + suffix, "w") as f:
                f.write(content)
    print(text)


# ---- where time goes

def profile(cell, folder, args, seconds):
    """The shares of the functions in which the ranks spend their time under a load, by perf; None where it does not work."""
    if not shutil.which("perf"):
        return None
    data = os.path.join(folder, "perf.data")
    load = threading.Thread(target=cell.bench, args=(folder, *args), daemon=True)
    load.start()
    time.sleep(1)
    subprocess.run(["perf", "record", "-q", "-e", "cpu-clock", "-F", "499", "-o", data, "-p", ",".join(map(str, cell.pids)), "--", "sleep", str(seconds)],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    load.join()
    text = subprocess.run(["perf", "report", "-i", data, "--stdio", "--no-children", "-s", "symbol"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True).stdout
    found = re.findall(r"^\s*([\d.]+)%\s+\[[.k]\]\s+(\S+)", text, re.M)
    return [(float(p), name) for p, name in found if float(p) >= 0.8][:14] or None


def take_profiles(cell, folder):
    def load(requests, at_once, prompt, answer):
        return "-c", at_once, "-n", requests, "--prompt-tokens", prompt, "--output-tokens", answer, "--seed", 77, "--temperature", 1

    return {"prefill 2048": profile(cell, folder, load(6, 1, 2048, 1), 4), "batch 1, ctx 0": profile(cell, folder, load(1, 1, 16, 192), 4),
            "batch 32, ctx 0": profile(cell, folder, load(32, 32, 16, 64), 5)}


# ---- the report

def markdown(report):
    m, r = report["machine"], report["roofs"]
    lines = heading("The engine on this CPU", "bench_engine.py", report)
    lines += [f"- Caches: {m['caches']}",
             f"- Model: `{report['model']}`, {report['weights_gib']:.2f} GiB of {report['dtype']} weights; one prefill and one decode rank, {report['threads']} "
             f"threads each, chunks of {CHUNK}",
             f"- Roofs, median of {r['n']} probes between the cases: {r['read_gbs']:.1f} GB/s, {r['gflops'] / 1e3:.2f} TFLOP/s (`{r['kernels']}`) by the "
             f"wall's clock; {r['read_gbs_cpu']:.1f} GB/s, {r['gflops_cpu'] / 1e3:.2f} TFLOP/s by CPU time",
             f"- Start to serving: {report['load_s']:.1f} s; memory of the ranks: {', '.join(f'{x} GiB' for x in report['memory_gib'])}", "",
             "| case | tokens/s | bound by | share of roof, wall | computed | share of roof, CPU | of arithmetic, CPU | of memory, CPU | CPU s | others used |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for c in report["cases"]:
        ops, size = (report["threads"] / c["cpu_seconds"] * x for x in (c["gflop"] / r["gflops_cpu"], c["gbytes"] / r["read_gbs_cpu"]))
        lines.append(f"| {c['name']} | {c['tokens_per_s']:.1f} | {c['bound']} | {c['wall_share']:.2f} | {c['computed_share']:.2f} | {c['cpu_share']:.2f} | {ops:.2f} | {size:.2f} | "
                     f"{c['cpu_seconds']:.3f} | {c['others_cores']:.1f} cores |")
    lines += ["", "Shares count every token through every layer, as for the peers; *computed* counts what is computed, part after part: of a prompt's tokens without logits "
              "only the latents in the last layer; of a step projections, attention, dense layers, experts and head, each at its own roof, "
              "and weights in bf16 that are packed in 12 bits as 12 bits (elsewhere as two bytes, so that a share can be above 1). CPU s: of both ranks, for one prompt or one step; *others used*: cores' worth of time that other programs took meanwhile. With more than "
              "0.1 of that, read the CPU column: the wall's tokens/s are then a lower bound."]
    for name, rows in report["profiles"].items():
        lines += ["", f"## Where time goes: {name}", "", "| share | function |", "|---|---|"]
        lines += [f"| {p:.1f} % | `{f}` |" for p, f in rows]
    return "\n".join(lines) + "\n"


def commit():
    done = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() or "unknown"


def need_room(weight_bytes, folder, have_model):
    available = int(re.search(r"MemAvailable:\s*(\d+)", read("/proc/meminfo"))[1]) * 1024
    need = 1.85 * weight_bytes + (5 << 30)  # packed for each rank in its own way
    if available < need:
        skip(f"two ranks of this model need {need / 2**30:.1f} GiB of memory, {available / 2**30:.1f} GiB are free")
    if not have_model and shutil.disk_usage(folder).free < 1.1 * weight_bytes:
        skip(f"the model needs {1.1 * weight_bytes / 2**30:.1f} GiB of disk in {folder}")


def main():
    ap = arguments(__doc__, 3, model_required=False)
    ap.add_argument("--fp8", action="store_true", help="a model with matrices in e4m3 (`baton synth --fp8`)")
    ap.add_argument("--only", help="names of cases, with ; between them (default: all, and profiles)")
    ap.add_argument("--decode-tokens", type=int, default=48)
    args = ap.parse_args()
    synth = SYNTH + ["--fp8"] * args.fp8
    bin_dir, threads = os.path.join(args.build, "bin"), len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or os.path.join(folder, "model")
        if not args.model:
            tiny = os.path.join(folder, "shape")  # its config.json, with tiny experts, tells how large the model will be
            run(os.path.join(bin_dir, "baton-synth"), *synth, "--vocab", "2", "--hidden", "1", "--dense-dim", "1", "--expert-dim", "1", tiny)
            with open(os.path.join(tiny, "config.json")) as f:
                shape = dict(json.load(f), vocab_size=102400, hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408)
            need_room(Work(shape).weight_bytes, folder, False)
            print(run(os.path.join(bin_dir, "baton-synth"), *synth, model), end="", flush=True)
        with open(os.path.join(model, "config.json")) as f:
            config = json.load(f)
        need_room(Work(config).weight_bytes, folder, True)
        cell = Cell(bin_dir, model, threads)
        try:
            cell.bench(folder, "-c", 1, "-n", 2, "--prompt-tokens", 512, "--output-tokens", 4, "--seed", 999)
            work = Work(config, cell.packs_12_bits())
            cases, roofs = choose(make_cases(work, args.decode_tokens), args.only), Roofs(os.path.join(args.build, "bench", "bench_roofs"), threads)
            for i in range(args.rounds):
                for j, case in enumerate(cases):
                    case.take(cell, folder, roofs, threads, 1000 * i + j + 1)
                    row = case.rows[-1]
                    print(f"round {i + 1}: {case.name:32} {case.tokens / row['seconds']:9.1f} tokens/s, share of roof {row['wall_share']:.2f} wall, "
                          f"{row['cpu_share']:.2f} CPU, others {row['others_cores']:.1f} cores", flush=True)
            profiles = {} if args.only else take_profiles(cell, folder)
            memory = cell.memory_gib()
        finally:
            cell.stop()
    middle = {k: statistics.median(s[k] for s in roofs.samples) for k in roofs.samples[0] if k not in ("threads", "kernels")}
    report = {**about(), "threads": threads,
              "model": f"baton synth {' '.join(SYNTH)}" + " --fp8" * (work.width == 1), "dtype": "e4m3" if work.width == 1 else "bf16", "weights_gib": work.weight_bytes / 2**30, "load_s": cell.load_s, "memory_gib": memory,
              "roofs": {"n": len(roofs.samples), "kernels": roofs.samples[0]["kernels"], **middle},
              "cases": [c.result() for c in cases], "profiles": {k: v for k, v in profiles.items() if v}}
    publish(report, markdown(report), args.out)


if __name__ == "__main__":
    main()
