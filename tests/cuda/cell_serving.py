#!/usr/bin/env python3
"""Serving on the CUDA back end, in real ranks: the module's twin runs the kernels on the CPU (BATON_CUDA_LIBRARY).

    cell_serving.py --bin DIR --source DIR

Each request runs alone on --both 1.  Then all arrive at once at one prefill and two decode ranks whose pools are so small that requests
are retracted, and behind a common prefix that is cached: ids, logprobs, alternatives and finish reasons are equal, bit by bit."""
import os
import random
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import cell as cells  # noqa: E402
import load  # noqa: E402

PAGES = 4
SHAPE = dict(like="v2-lite", hidden=64, layers=2, dense_layers=1, dense_dim=64, heads=2, kv_lora_rank=32, qk_nope_dim=16, qk_rope_dim=8, v_dim=16,
             experts=8, top_k=2, expert_dim=16, shared_experts=1, vocab=load.VOCAB, context=1024)


def make_model(a, folder):
    """A small model with the demo's tokenizer."""
    out = os.path.join(folder, "model")
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SHAPE.items()]
    subprocess.run([os.path.join(a.bin, "baton-synth"), *flags, out], check=True, stdout=subprocess.DEVNULL)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(a.source, "models/demo", name), out)
    return out


def make_requests():
    """Half of them behind one prefix of a page and a bit; every way to choose a token."""
    rng = random.Random(5)
    prefix = load.random_ids(rng, 66)
    ways = [dict(temperature=0.0, logprobs=4), dict(temperature=0.9, top_k=20, logprobs=1), dict(temperature=1.0, top_p=0.8, logprobs=0),
            dict(temperature=0.7, min_p=0.05, repetition_penalty=1.3), dict(temperature=0.0, logit_bias={9: 3.0}, n=2), dict(temperature=1.2)]
    out = []
    for i, way in enumerate(ways):
        ids = prefix + load.random_ids(rng, 5 + i) if i % 2 else load.random_ids(rng, 48 + i)
        out.append((f"r{i}", ids, 8 if i % 2 else 80 if i < 4 else 20, dict(seed=i, ignore_eos=True, **way)))
    return out


def run_together(client, requests):
    """Each of them twice; the results of both, and how many had cached tokens."""
    todo, results, hits = 2 * list(requests), [], []

    def work():
        name, ids, n, sampling = todo.pop()
        result, cached, _ = client.run(name, ids, n, sampling)
        results.append((name, result))
        hits.append(cached)
    load.in_threads(len(todo), work)
    return results, sum(c > 0 for c in hits)


def expect_gpus(cell, n_ranks):
    log = "\n".join(cell.lines)
    for rank in range(n_ranks):
        assert f"rank {rank} computes on GPU 0, with {n_ranks - 1} more ranks" in log, log
    assert log.count(f"MiB available to {n_ranks} ranks on this GPU") == n_ranks, log
    assert log.count("took memory of the device 0 times since ready") == n_ranks, log


def main():
    a = cells.arguments(__doc__).parse_args()
    pb, rpc = cells.stubs(a.source)
    requests = make_requests()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(a, folder)
        with cells.Cell(a.bin, model, "both1", "--threads", "1") as cell, cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            alone = {r[0]: client.run(*r)[0] for r in requests}
            assert cell.stop() == 0, cell.log()
            expect_gpus(cell, 1)
        size = load.page_bytes(model)
        with cells.Cell(a.bin, model, "1+2", "--threads", "1", "--http-port", "0", "--queue-s", "600", "--kv-bytes", str(PAGES * size)) as cell, cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            got, hits = run_together(client, requests)
            for name, choices in got:
                assert choices == alone[name], f"{name}: {choices} is not {alone[name]}"
            client.wait_drained()
            m = load.metrics(cell)
            load.expect_free(m)
            assert cell.stop() == 0, cell.log()
            expect_gpus(cell, 3)
        retracted = int(m["vllm:num_preemptions_total"])
    print(f"{sum(len(c[0]) for x in alone.values() for c in x)} tokens equal; {hits} requests with cached tokens, {retracted} retractions")
    assert hits > 0 and retracted > 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
