#!/usr/bin/env python3
"""A second request that shares 1,000 tokens with the first, sent after that has ended, computes only what the prefill rank lacks and
hands over only what the decode rank lacks: in the metrics, in the usage and in the time to the first token.

    prefix.py --bin DIR --source DIR"""
import argparse
import os
import random
import re
import socket
import sys
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

SHARED, TAIL, TOKENS = 1000, 100, 4
PAGES = SHARED // load.PAGE_TOKENS


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def metrics(port):
    """Sums over all ranks, after the next beats."""
    time.sleep(0.6)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    sums = {}
    for name, labels, value in re.findall(r"^(baton_\w+)\{([^}]*)\} ([0-9.e+]+)$", text, re.M):
        kind = re.search(r'(?:kind|state)="(\w+)"', labels)
        key = name + (":" + kind.group(1) if kind else "")
        sums[key] = sums.get(key, 0) + float(value)
    return sums


def grown(after, before, name):
    return round(after[name] - before[name])


def check(a, pb, rpc, shape):
    rng = random.Random(3)
    model, port = os.path.join(a.source, "models/demo"), free_port()
    row_bytes = load.page_bytes(model) // load.PAGE_TOKENS
    shared = [0] + load.random_ids(rng, SHARED - 1)
    with cells.Cell(a.bin, model, shape, "--http-port", str(port)) as cell, cell.channel() as channel:
        client = load.Client(pb, rpc, channel)
        greedy = dict(temperature=0.0, ignore_eos=True)
        client.run("warm", load.random_ids(rng, 70), TOKENS, greedy)
        m0 = metrics(port)
        _, cached, cold_s = client.run("first", shared + load.random_ids(rng, TAIL), TOKENS, greedy)
        m1 = metrics(port)
        assert cached == 0 and grown(m1, m0, "baton_rank_rows_total:prompt") == SHARED + TAIL
        times = []
        for i in range(3):
            _, cached, first_s = client.run(f"again{i}", shared + load.random_ids(rng, TAIL), TOKENS, greedy)
            assert cached == PAGES * load.PAGE_TOKENS, f"{shape}: {cached} tokens cached"
            times.append(first_s)
            m2 = metrics(port)
            rest = SHARED + TAIL - cached
            assert grown(m2, m1, "baton_rank_rows_total:prompt") == rest, f"{shape}: computed more than {rest} prompt tokens"
            sent = grown(m2, m1, "baton_handoff_sent_bytes_total")
            assert sent == (0 if shape.startswith("both") else rest * row_bytes), f"{shape}: {sent} bytes handed over for {rest} tokens"
            m1 = m2
        assert min(times) < 0.6 * cold_s, f"{shape}: first token after {times} s, {cold_s} s without the cache"
        pages = {k.split(":")[1]: v for k, v in m2.items() if k.startswith("baton_rank_pages:")}
        assert pages["owned"] == 0 and pages["quarantined"] == 0 and pages["cached"] >= PAGES, pages
        assert pages["free"] + pages["cached"] == m2["baton_rank_pages_total"], pages
        assert cell.stop() == 0, cell.log()
    print(f"{shape}: {rest} of {SHARED + TAIL} tokens computed, {sent} bytes handed over; first token after {min(times) * 1e3:.1f} ms, "
          f"{cold_s * 1e3:.1f} ms without the cache", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", required=True)
    ap.add_argument("--source", required=True)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    for shape in ("1+1", "1+3", "2+2", "both2"):
        check(a, pb, rpc, shape)
    return 0


sys.exit(main())
