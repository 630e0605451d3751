#!/usr/bin/env python3
"""Laws A and B under load: every stream is bit-equal to the request run alone.

    laws.py --bin DIR --source DIR [--requests 200] [--seed N] [--sparse]

First each request runs alone on a 1+1 cell, where a salt of its own keeps it from what is cached.  Then all of them arrive at random times on cells of
other shapes, with warm caches and pools so small that requests are retracted and resumed, and with speculation: by looking up, by the model's
own layer, or by both; then once more alone, with what is cached.
Ids, logprobs, alternatives and finish reasons must be equal to the bit, and every kind of event must have happened.

--sparse: a random model whose tokens attend to 48 positions, which most requests have more of; its drafts are seldom right."""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

ALONE_PAGES, CROWDED_PAGES, PARALLEL = 12, 14, 16
SHAPES = ["2+2", "1+3", "both2"]
DRAFTS = {"2+2": ["--mtp", "3"], "1+3": ["--speculate", "6"], "both2": ["--speculate", "3", "--mtp", "2"]}
QUEUE_S = "600"  # a slow machine refuses nobody


def run_alone(client, requests, cold):
    """Each request by itself; cold: with a salt that nobody else has, so that nothing is cached."""
    results = {}
    for name, ids, n, sampling in requests:
        results[name], cached, _ = client.run(name, ids, n, sampling, salt=name if cold else None)
        assert not cold or cached == 0, f"{name}: {cached} tokens were cached behind a salt of its own"
    return results


def run_together(client, requests, seed):
    """All of them, at random times, streamed or not, some with a salt; returns results and how many had cached tokens."""
    rng = random.Random(seed)
    todo = [(r, rng.random() < 0.7, rng.random() * 0.05, rng.choice([None, None, None, "salt"])) for r in rng.sample(requests, len(requests))]
    results, lock, hits = {}, threading.Lock(), []

    def work():
        while True:
            with lock:
                if not todo:
                    return
                (name, ids, n, sampling), stream, pause, salt = todo.pop(0)
            time.sleep(pause)
            results[name], cached, _ = client.run(name, ids, n, sampling, stream, salt=salt)
            if cached:
                hits.append(cached)
    load.in_threads(PARALLEL, work)
    return results, len(hits)


def expect_equal(what, got, want):
    for name, choices in want.items():
        for k, (g, w) in enumerate(zip(got[name], choices)):
            at = next((i for i, (x, y) in enumerate(zip(g[0], w[0])) if x != y), min(len(g[0]), len(w[0])))
            assert g == w, f"{what}, {name}, choice {k}: differs from the request alone, ids from token {at} of {len(w[0])}: {g} is not {w}"
        assert got[name] == choices


def sparse_model(bin_dir, source, folder):
    """A small model like V3.2, with the demo model's tokenizer."""
    model = os.path.join(folder, "sparse")
    sizes = dict(hidden=128, layers=4, dense_layers=1, heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_dim=32, qk_rope_dim=16, v_dim=32, dense_dim=256,
                 expert_dim=64, experts=16, groups=4, topk_groups=2, top_k=4, vocab=load.VOCAB, context=4096, index_topk=48, index_heads=8, index_dim=32, mtp=1)
    options = [x for k, v in sizes.items() for x in ("--" + k.replace("_", "-"), str(v))]
    subprocess.run([os.path.join(bin_dir, "baton-synth"), "--like", "v3.2", *options, model], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, "models/demo", name), model)
    return model


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--requests", type=int, default=40)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--sparse", action="store_true")
    ap.add_argument("--shapes", nargs="*", default=SHAPES)
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(a, sparse_model(a.bin, a.source, folder) if a.sparse else os.path.join(a.source, "models/demo"))


def run(a, model):
    pb, rpc = cells.stubs(a.source)
    size = load.page_bytes(model)
    requests = load.random_requests(a.requests, a.seed, longest=130)

    with cells.Cell(a.bin, model, "1+1", "--kv-bytes", str(ALONE_PAGES * size)) as cell, cell.channel() as channel:
        alone = run_alone(load.Client(pb, rpc, channel), requests, cold=True)
        assert cell.stop() == 0, cell.log()
    print(f"1+1: {len(requests)} requests alone, {sum(len(c[0]) for x in alone.values() for c in x)} tokens", flush=True)
    for shape in a.shapes:
        drafts = DRAFTS.get(shape, [])
        with cells.Cell(a.bin, model, shape, "--http-port", "0", "--queue-s", QUEUE_S, "--kv-bytes", str(CROWDED_PAGES * size),
                        *drafts) as cell, cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            got, hits = run_together(client, requests, a.seed)
            expect_equal(f"{shape} crowded", got, alone)
            expect_equal(f"{shape} alone, warm", run_alone(client, requests[:10], cold=False), alone if len(requests) <= 10 else
                         {r[0]: alone[r[0]] for r in requests[:10]})
            client.wait_drained()
            n = load.retracted(client, cell)
            right = load.metrics(cell)["baton_rank_draft_right_tokens_total"]
            assert cell.stop() == 0, cell.log()
        assert hits > 0, f"{shape}: no request had cached tokens"
        assert a.sparse or (right > 0) == (shape in DRAFTS), f"{shape}: {right} tokens of drafts were right"
        print(f"{shape}: equal; {hits} with cached tokens, {n} retractions, {right:.0f} tokens from drafts", flush=True)
    return 0


sys.exit(main())
