#!/usr/bin/env python3
"""baton-bench against a server whose every delay is known, and against a real cell of the demo model.

    test_bench.py --bin DIR --source DIR [--only NAME]"""
import argparse
import collections
import json
import os
import re
import resource
import signal
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree
from concurrent import futures

try:
    import grpc
    import grpc_tools  # noqa: F401
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import cell as cells  # noqa: E402

VOCAB, CONTEXT = 1000, 4096
first_s, token_s = 0.04, 0.01


class Server:
    """Answers as `script(request, number)` says: an iterator of ("wait", s), ("until", event), ("tokens", n), ("complete", n),
    ("abort", code, text)."""

    def __init__(self, pb, rpc):
        self.pb, self.script = pb, None
        outer = self

        class Servicer(rpc.VllmEngineServicer):
            def GetModelInfo(self, request, context):
                return pb.GetModelInfoResponse(vocab_size=VOCAB, max_context_length=CONTEXT, served_model_name="scripted")

            def Generate(self, request, context):
                yield from outer.generate(request, context)

        self.grpc = grpc.server(futures.ThreadPoolExecutor(128))
        rpc.add_VllmEngineServicer_to_server(Servicer(), self.grpc)
        self.port = self.grpc.add_insecure_port("127.0.0.1:0")
        self.grpc.start()
        self.reset(None)

    def reset(self, script):
        self.lock = threading.Lock()
        self.script, self.requests, self.running, self.most = script, [], 0, 0

    def generate(self, request, context):
        with self.lock:
            number = len(self.requests)
            self.requests.append(request)
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            for what, *with_what in self.script(request, number):
                if what == "wait":
                    time.sleep(with_what[0])
                elif what == "until":
                    with_what[0].wait(200)
                elif what == "tokens":
                    yield self.pb.GenerateResponse(chunk=self.pb.GenerateStreamChunk(token_ids=[1] * with_what[0]))
                elif what == "complete":
                    yield self.pb.GenerateResponse(complete=self.pb.GenerateComplete(completion_tokens=with_what[0], cached_tokens=3))
                else:
                    context.abort(*with_what)
        finally:
            with self.lock:
                self.running -= 1


def steady(request, number):
    n = request.sampling_params.max_tokens
    yield "wait", first_s
    yield "tokens", 1
    for _ in range(n - 1):
        yield "wait", token_s
        yield "tokens", 1
    yield "complete", n


def at_once(request, number):
    n = request.sampling_params.max_tokens
    yield "tokens", n
    yield "complete", n


class Bench:
    def __init__(self, program, address, folder):
        self.program, self.address, self.json = program, address, os.path.join(folder, "run.json")

    def __call__(self, *args, code=0, env=None, report=True, **more):
        """Runs it; returns (text, JSON)."""
        command = [self.program, "--address", self.address, *args, *(["--json", self.json] if report else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, env={**os.environ, **(env or {})}, **more)
        assert done.returncode == code, f"{' '.join(args)}: exit code {done.returncode}, expected {code}:\n{done.stdout}"
        if not report or not os.path.exists(self.json):
            return done.stdout, None
        with open(self.json) as f:
            run = json.load(f)
        os.remove(self.json)
        return done.stdout, run


def between(low, value, high, what):
    assert low <= value <= high, f"{what} is {value}, expected {low} to {high}"


def has(text, part):
    assert part in text, f"expected \"{part}\" in:\n{text}"


def prompts(server):
    return [list(r.tokenized.input_ids) for r in server.requests]


# ---- the tests: each gets the server and a Bench

def times_are_the_servers(server, bench):
    server.reset(steady)
    text, run = bench("-c", "4", "-n", "24", "--prompt-tokens", "5-9", "--output-tokens", "11", "--warmup", "0", "--token-times")
    s = run["summary"]
    assert (s["requests"], s["ok"], s["output_tokens"], s["messages"], s["cached_tokens"]) == (24, 24, 264, 264, 72), s
    assert server.most == 4, server.most
    times = collections.defaultdict(list)
    for r in run["requests"]:
        assert [n for _, n in r["messages"]] == [1] * 11 and r["messages"][0][0] == r["first_ms"] and r["messages"][-1][0] == r["last_ms"]
        at = [t - r["sent_ms"] for t, _ in r["messages"]]
        assert all(t >= 1e3 * (first_s + i * token_s) - 1e-3 for i, t in enumerate(at)), f"a token before the server sent it: {at}"
        times["ttft_ms"].append(at[0])
        times["tpot_ms"].append((at[-1] - at[0]) / 10)
        times["e2e_ms"].append(r["end_ms"] - r["sent_ms"])
        times["itl_ms"] += [b - a for a, b in zip(at, at[1:])]
    for name, values in times.items():
        assert s[name]["n"] == len(values) and abs(s[name]["p50"] - statistics.median(values)) < 1e-3, (name, s[name], values)
        assert abs(s[name]["mean"] - statistics.mean(values)) < 1e-3 and abs(s[name]["max"] - max(values)) < 1e-3, (name, s[name])
    between(40, s["ttft_ms"]["p50"], 2000, "TTFT")    # the upper ends are for other units, not for a busy machine
    between(0, s["tpot_ms"]["p50"], 500, "TPOT")
    between(140, s["e2e_ms"]["p50"], 7000, "e2e")
    assert s["e2e_ms"]["quantiles"] == sorted(s["e2e_ms"]["quantiles"])
    assert s["output_tokens_per_s"] * s["seconds"] - 264 < 1e-3
    has(text, "24 of 24 ended well")
    assert abs(sum(run["timeline"]["tokens_per_s"]) * run["timeline"]["bin_s"] - 264) < 1e-3


def a_seed_is_a_load(server, bench):
    def all_prompts(*args):
        server.reset(at_once)
        bench("-n", "40", "--warmup", "0", "--prompt-tokens", "zipf:4-400:1.3", "--output-tokens", "1-9", *args)
        return sorted(zip(prompts(server), (r.sampling_params.max_tokens for r in server.requests)))

    one = all_prompts("-c", "1", "--seed", "5")
    assert one == all_prompts("-c", "16", "--seed", "5"), "concurrency changes the requests"
    assert one == all_prompts("--rate", "2000", "--seed", "5"), "the rate changes the requests"
    assert one != all_prompts("-c", "1", "--seed", "6")
    lengths = sorted(len(p) for p, _ in one)
    assert len(one) == 40 and 4 <= lengths[0] and lengths[-1] <= 400 and lengths[20] < 60, lengths
    assert all(1 <= n <= 9 for _, n in one) and len({n for _, n in one}) > 4
    assert all(0 <= t < VOCAB for p, _ in one for t in p) and len({t for p, _ in one for t in p}) > 300
    assert len({r.request_id for r in server.requests}) == 40
    assert all(r.stream and r.sampling_params.ignore_eos and r.sampling_params.temperature == 0 for r in server.requests)


def a_list_of_lengths_is_even(server, bench):
    server.reset(at_once)
    bench("-n", "300", "-c", "8", "--warmup", "2", "--prompt-tokens", "3,7,11", "--output-tokens", "1")
    assert len(server.requests) == 302
    count = collections.Counter(len(p) for p in prompts(server))
    assert sorted(count) == [3, 7, 11] and min(count.values()) > 70, count


def prefixes_are_shared(server, bench):
    server.reset(at_once)
    bench("-n", "40", "-c", "4", "--warmup", "0", "--prompt-tokens", "100", "--output-tokens", "1", "--shared-prefix", "0.6", "--prefixes", "3")
    heads = collections.Counter(tuple(p[:60]) for p in prompts(server))
    assert len(heads) == 3 and min(heads.values()) > 5, heads.values()
    assert len({tuple(p[60:]) for p in prompts(server)}) == 40
    assert len({tuple(p[:61]) for p in prompts(server)}) > 30, "more than the part is shared"


def arrivals_do_not_wait(server, bench):
    many = threading.Event()

    def slow(request, number):
        if number == 24:
            many.set()
        yield "until", many
        yield "wait", 0.5
        yield from at_once(request, number)

    server.reset(slow)
    text, run = bench("--rate", "100", "-n", "100", "--warmup", "0", "--output-tokens", "2")
    due = [r["due_ms"] for r in run["requests"]]
    gaps = [b - a for a, b in zip([0] + due, due)]
    assert due == sorted(due)
    between(7, sum(gaps) / 100, 13, "the mean gap of 100 arrivals a second")
    variation = (sum((g - sum(gaps) / 100) ** 2 for g in gaps) / 100) ** 0.5 / (sum(gaps) / 100)
    between(0.7, variation, 1.3, "the variation of Poisson arrivals")
    assert server.most > 20, server.most
    assert all(r["first_ms"] - r["due_ms"] >= 500 for r in run["requests"]), "times count from the planned arrival"


def a_time_limits_what_is_sent(server, bench):
    server.reset(steady)
    _, run = bench("-c", "3", "--seconds", "1", "--output-tokens", "5")
    between(3, run["summary"]["ok"], 3 * 13, "requests of at least 80 ms, 3 at once, in 1 s")
    late = [r["sent_ms"] for r in run["requests"] if r["sent_ms"] >= 1000]
    assert len(late) <= 1 and run["summary"]["unfinished"] == 0, late    # one whose sending a busy machine has drawn out


def errors_are_counted_by_status(server, bench):
    def some_fail(request, number):
        if number % 4 == 0:
            yield "abort", grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full"
        elif number % 4 == 1:
            yield "tokens", 2
            yield "abort", grpc.StatusCode.UNAVAILABLE, b"a rank \x1b[2J\xff died"
        elif number % 4 == 2:
            yield "tokens", 1
            yield "complete", 2
        else:
            yield from at_once(request, number)

    server.reset(some_fail)
    text, run = bench("-n", "40", "-c", "1", "--warmup", "0", "--output-tokens", "2", code=1)
    codes = run["summary"]["codes"]
    assert {k: v["n"] for k, v in codes.items()} == {"OK": 10, "RESOURCE_EXHAUSTED": 10, "UNAVAILABLE": 10, "broken protocol": 10}, codes
    has(text, "10 with RESOURCE_EXHAUSTED: the queue is full")
    has(text, "10 with UNAVAILABLE: a rank ?[2J? died\n")
    assert codes["UNAVAILABLE"]["first"] == "a rank ?[2J? died", codes
    has(text, "10 with broken protocol: the complete message counts a different number of tokens than came")
    got = collections.defaultdict(set)
    for r in run["requests"]:
        got[r["status"]].add(r["tokens"])
    assert got.pop("UNAVAILABLE") <= {0, 2}    # gRPC drops messages that the status of a failure overtakes
    assert got == {"OK": {2}, "RESOURCE_EXHAUSTED": {0}, "broken protocol": {1}}, got
    assert run["summary"]["output_tokens"] == sum(r["tokens"] for r in run["requests"])
    # What had come counts, however its request ended; whole requests are those that ended well.
    first = sum(r["first_ms"] is not None for r in run["requests"])
    assert first >= 20 and [run["summary"][m]["n"] for m in ("ttft_ms", "tpot_ms", "e2e_ms")] == [first, 10, 10], run["summary"]
    assert re.search(rf"\n  ms +n +mean .*\n  TTFT +{first} .*\n  ITL +.*\n  TPOT +10 .*\n  e2e +10 ", text), text


def a_warm_up_that_fails_is_told(server, bench):
    def first_two_fail(request, number):
        if number < 2:
            yield "abort", grpc.StatusCode.UNAVAILABLE, "not yet"
        yield from at_once(request, number)

    server.reset(first_two_fail)
    text, run = bench("-n", "2", "-c", "1", "--warmup", "3", "--output-tokens", "2")
    assert text.startswith("Warm-up      2 of 3 failed with UNAVAILABLE: not yet\nRequests     2 of 2 ended well"), text
    assert run["summary"]["requests"] == run["summary"]["ok"] == 2, run["summary"]
    server.reset(at_once)
    text, _ = bench("-n", "2", "-c", "1", "--warmup", "3", "--output-tokens", "2")
    assert "Warm-up" not in text, text


def a_stream_without_an_end_is_broken(server, bench):
    def cut(request, number):
        yield "tokens", 1

    server.reset(cut)
    text, _ = bench("-n", "3", "--warmup", "0", code=1)
    has(text, "3 with broken protocol: the stream ended without a complete message")


def a_deadline_ends_what_hangs(server, bench):
    ended = threading.Event()

    def hang(request, number):
        if number == 1:
            yield "until", ended
        yield from at_once(request, number)

    server.reset(hang)
    text, run = bench("-n", "3", "-c", "3", "--warmup", "0", "--timeout-s", "10", code=1)    # a busy machine is given time
    ended.set()
    has(text, "1 with DEADLINE_EXCEEDED")


def goodput_counts_both_limits(server, bench):
    def mixed(request, number):
        yield "wait", 0.3 if number % 2 else 0
        yield "tokens", 1
        yield "wait", 0.3 if number % 4 == 0 else 0
        yield "tokens", 1
        yield "complete", 2

    server.reset(mixed)
    text, run = bench("-n", "16", "-c", "4", "--warmup", "0", "--output-tokens", "2", "--slo-ttft-ms", "150", "--slo-itl-ms", "150")
    s = run["summary"]
    kept = [(r["first_ms"] - r["due_ms"] <= 150, r["last_ms"] - r["first_ms"] <= 150) for r in run["requests"]]
    good = kept.count((True, True))    # 4, on a machine that is not busy with other things
    assert sum(not ttft for ttft, _ in kept) >= 8 and good <= 4, kept
    assert round(s["goodput_per_s"] * s["seconds"]) == good, (s["goodput_per_s"] * s["seconds"], kept)
    has(text, f"({100 * good / 16:.1f} %) with TTFT <= 150 ms and TPOT <= 150 ms")


def a_signal_reports_what_came(server, bench):
    ended = threading.Event()

    def four_and_no_more(request, number):
        yield "tokens", 1
        if number >= 4:
            yield "until", ended
        yield "tokens", request.sampling_params.max_tokens - 1
        yield "complete", request.sampling_params.max_tokens

    def stop(n, *args):
        """What is said after SIGINT, when n requests have come."""
        server.reset(four_and_no_more)
        ended.clear()
        command = [bench.program, "--address", bench.address, "-c", "4", "--seconds", "60", "--output-tokens", "30", *args]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        end = time.monotonic() + 60
        while len(server.requests) < n and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        text = process.communicate(timeout=60)[0]
        ended.set()
        assert process.returncode == 130, (process.returncode, text)
        return text

    warmed = stop(5, "--warmup", "9")
    assert warmed == "Stopped      in the warm-up, after 4 of 9 requests, with 1 under way: none was measured\n", warmed
    text = stop(8, "--warmup", "0", "--json", bench.json)
    has(text, "Unfinished   4 when the run was stopped")
    with open(bench.json) as f:
        run = json.load(f)
    s = run["summary"]
    assert s["stopped"] and s["unfinished"] == 4 and s["ok"] == 4, s
    assert s["ttft_ms"]["n"] == sum(r["first_ms"] is not None for r in run["requests"]), s


def usage_is_checked(server, bench):
    server.reset(steady)
    for args, part in (
            (("--rate", "5", "-c", "2"), "--rate goes without --concurrency"),
            (("--prompt-tokens", "0"), "--prompt-tokens is \"0\""),
            (("--prompt-tokens", "9-3"), "expected lengths"),
            (("--output-tokens", "zipf:1-9:"), "expected lengths"),
            (("--output-tokens", "1,2,"), "expected lengths"),
            (("--shared-prefix", "1.5"), "--shared-prefix must be a number from 0 to 1"),
            (("--rate", "nan"), "--rate must be a number"),
            (("--token-times",), "--token-times goes with --json"),
            (("--plot", "x.pdf"), "--plot is \"x.pdf\", expected a name that ends in .svg or .png"),
            (("--plot", "svg"), "--plot is \"svg\", expected"),
            (("--prefixes", "2"), "--prefixes goes with --shared-prefix"),
            (("word",), "\"word\" is not an option")):
        has(bench(*args, code=64, report=False)[0], part)
    has(bench("--prompt-tokens", "64-4090", code=1)[0], "a request of 4090 prompt and 64 output tokens does not fit into the context of 4096")
    has(bench("-n", "2", "--json", "/nowhere/run.json", code=1, report=False)[0], "--json /nowhere/run.json: directory /nowhere/: No such file or directory")
    has(bench("-n", "2", "--json", "/tmp", code=1, report=False)[0], "--json /tmp: expected a file, found a directory")
    assert not server.requests, "found out only after the load"
    done = subprocess.run([bench.program, "--address", "127.0.0.1:1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 1
    has(done.stdout, "cannot connect to 127.0.0.1:1 ")


def a_lost_report_is_an_error(server, bench):
    server.reset(steady)
    with open("/dev/full", "w") as full:
        done = subprocess.run([bench.program, "--address", bench.address, "-n", "2", "--json", bench.json], stdout=full, stderr=subprocess.PIPE, text=True,
                              timeout=300)
    assert done.returncode == 1, done.returncode
    has(done.stderr, "stdout: No space left on device")
    os.remove(bench.json)    # it is there
    has(bench("-n", "2", "--json", "/dev/full", code=1, report=False)[0], "baton bench: /dev/full: No space left on device")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)

    def up_to_1000_bytes():  # as on a disk that is nearly full
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    has(bench("-n", "2", "--json", bench.json, code=1, report=False, preexec_fn=up_to_1000_bytes)[0], f"{bench.json}: File too large")
    assert not os.path.exists(bench.json), "part of a report stays"
    link = bench.json + "-link"
    os.symlink(bench.json, link)
    bench("-n", "2", "--json", link, code=1, report=False, preexec_fn=up_to_1000_bytes)
    assert os.path.islink(link), "what led to the report is gone, which could be /dev/stdout"
    os.remove(bench.json)
    os.remove(link)


def plots_are_drawn(server, bench):
    server.reset(steady)
    folder = os.path.dirname(bench.json)
    without = os.path.join(folder, "python-without")
    with open(without, "w") as f:
        f.write(f"#!/bin/sh\nexec {sys.executable} -I -S \"$@\"\n")
    os.chmod(without, 0o755)
    text, _ = bench("-n", "2", "--plot", os.path.join(folder, "no.svg"), env={"BATON_PYTHON": without}, code=1)
    has(text, "matplotlib is missing")
    has(text, "python3-matplotlib")
    assert not server.requests, "found out only after the run"
    has(bench("-n", "2", "--plot", "x.svg", env={"BATON_PYTHON": "/no/such"}, code=1)[0], "\"/no/such\" is not there")
    teller = os.path.join(folder, "python-that-tells")
    with open(teller, "w") as f:
        f.write("#!/bin/sh\necho \"it is given $2\"\n")
    os.chmod(teller, 0o755)
    has(bench("-n", "2", "--plot", "x.svg", env={"BATON_PYTHON": teller, "TMPDIR": folder}, report=False)[0],
        f"it is given {folder}/baton-bench-")
    python = {"BATON_PYTHON": sys.executable}
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("matplotlib is not here: nothing drawn")
        return
    svg, png = os.path.join(folder, "run.svg"), os.path.join(folder, "run.png")
    bench("-n", "6", "--output-tokens", "4", "--plot", svg, "--slo-ttft-ms", "100", "--slo-itl-ms", "50", env=python, report=False)
    drawn = "".join(xml.etree.ElementTree.parse(svg).getroot().itertext())
    for part in ("scripted at 127.0.0.1:", "6 of 6 requests ended well", "goodput", "TTFT", "ITL", "limit 100 ms", "tokens/s"):
        has(drawn, part)

    server.reset(steady)  # of a plot that does not fit nothing stays
    text, _ = bench("-n", "2", "--plot", png, env=python, code=1, report=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)))
    has(text, f"plot: {png}: File too large\n")
    assert "Traceback" not in text and not os.path.exists(png), text

    def fails(request, number):
        yield "abort", grpc.StatusCode.UNAVAILABLE, "gone"

    server.reset(fails)  # a run without any number is drawn too
    bench("-n", "3", "--plot", png, env=python, code=1)
    with open(png, "rb") as f:
        assert f.read(8) == b"\x89PNG\r\n\x1a\n"


def bench_drives_a_real_cell(args, folder):
    with cells.Cell(args.bin, os.path.join(args.source, "models", "demo"), "1+1", "--threads", "1") as cell:
        bench = Bench(os.path.join(args.bin, "baton-bench"), cell.address, folder)
        text, run = bench("-c", "6", "-n", "24", "--prompt-tokens", "10-200", "--output-tokens", "8,24", "--temperature", "0.7")
        s = run["summary"]
        assert s["ok"] == 24 and s["output_tokens"] == sum(r["wanted"] for r in run["requests"]), s
        assert s["prompt_tokens"] == sum(r["prompt"] for r in run["requests"])
        assert 0 < s["ttft_ms"]["p50"] <= s["e2e_ms"]["p50"]
        _, run = bench("--rate", "40", "-n", "20", "--output-tokens", "4")
        assert run["summary"]["ok"] == 20
        print(re.sub(r"(?m)^", "  ", text))


TIMED = [times_are_the_servers, arrivals_do_not_wait, a_time_limits_what_is_sent, goodput_counts_both_limits]
UNTIMED = [a_seed_is_a_load, a_list_of_lengths_is_even, prefixes_are_shared, errors_are_counted_by_status, a_warm_up_that_fails_is_told,
           a_stream_without_an_end_is_broken, a_deadline_ends_what_hangs, a_signal_reports_what_came, usage_is_checked, a_lost_report_is_an_error,
           plots_are_drawn, bench_drives_a_real_cell]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bin", required=True)
    ap.add_argument("--source", required=True)
    ap.add_argument("--only")
    ap.add_argument("--part", choices=["timed", "untimed"], help="what measures times, or the rest")
    args = ap.parse_args()
    server = Server(*cells.stubs(args.source))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(os.path.join(args.bin, "baton-bench"), f"127.0.0.1:{server.port}", folder)
        for test in {"timed": TIMED, "untimed": UNTIMED}.get(args.part, TIMED + UNTIMED):
            if args.only in (None, test.__name__):
                test(args, folder) if test is bench_drives_a_real_cell else test(server, bench)
                print(f"{test.__name__:60} ok", flush=True)
    server.grpc.stop(None)


main()
