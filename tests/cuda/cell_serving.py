#!/usr/bin/env python3
"""Serving on the CUDA back end, in real ranks: the module's twin runs the kernels on the CPU (BATON_CUDA_LIBRARY).

    cell_serving.py --bin DIR --source DIR

Each request runs alone on --both 1, without lookahead.  Then all arrive at once, with it, at one prefill and two decode ranks, whose rows
travel as BATON_TRANSPORT says and whose pools are so small that requests are retracted, and behind a common prefix that is cached; others
are cancelled or run into their deadline meanwhile.  Ids, logprobs, alternatives and finish reasons are equal, bit by bit, and decode steps
were launched as graphs."""
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import cell as cells  # noqa: E402
import load  # noqa: E402

PAGES, LIMIT_S = 4, 250
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
    """Half of them behind one prefix of a page and a bit; every way to choose a token, and to end."""
    rng = random.Random(5)
    prefix = load.random_ids(rng, 66)
    ways = [dict(temperature=0.0, logprobs=4), dict(temperature=0.9, top_k=20, logprobs=1), dict(temperature=1.0, top_p=0.8, logprobs=0),
            dict(temperature=0.7, min_p=0.05, repetition_penalty=1.3), dict(temperature=0.0, logit_bias={9: 3.0}, n=2), dict(temperature=1.2),
            dict(temperature=1.0, stop_token_ids=list(range(8, 120))), dict(temperature=1.0, stop=["e", "th"], n=2), dict(temperature=1.0, min_tokens=9, stop_token_ids=list(range(8, 1000))),
            dict(temperature=1.0, ignore_eos=False, regex="([a-z]{1,9} ){9}[a-z]*[.]"), dict(temperature=0.0, ignore_eos=False, n=2, json_object=True, logprobs=3)]
    out = []
    for i, way in enumerate(ways):
        ids = prefix + load.random_ids(rng, 5 + i) if i % 2 else load.random_ids(rng, 48 + i)
        out.append((f"r{i}", ids, 8 if i % 2 else 100 if i < 4 else 20, dict(dict(seed=i, ignore_eos=True), **way)))
    return out


def leave(client, request, alone, after, timeout):
    """Cancels it after so many messages, or has it run into its deadline; what came is how it begins alone."""
    got, call = [], client.call(*request, timeout=timeout)
    try:
        for i, m in enumerate(call):
            got.extend(m.chunk.token_ids)
            if i == after:
                call.cancel()
    except grpc.RpcError as e:
        assert e.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED), e
    assert got == alone[request[0]][0][0][:len(got)], f"{request[0]}: {got} is not how {alone[request[0]]} begins"


def run_together(client, requests, alone):
    """All of them, the first ones twice, and some that leave; the results, and how many had cached tokens."""
    todo, results, hits = [(r,) for r in requests + requests[:4]], [], []
    todo[3:3] = [(requests[0], 2, LIMIT_S), (requests[2], 9, LIMIT_S), (requests[0], -1, 3)]

    def work():
        request, *leaves = todo.pop()
        if leaves:
            leave(client, request, alone, *leaves)
            return
        result, cached, _ = client.run(*request)
        results.append((request[0], result))
        hits.append(cached)
    load.in_threads(len(todo), work)
    return results, sum(c > 0 for c in hits)


def expect_right(got, alone):
    for name, choices in got:
        assert choices == alone[name], f"{name}: {choices} is not {alone[name]}"


def retractions(cell):
    return int(load.metrics(cell)["vllm:num_preemptions_total"])


def run_until_retracted(client, cell, requests, alone):
    """Two of the long requests do not fit on one rank together, and of four each of the two ranks gets two; but they meet only if one is placed
    before the other has ended.  So they come again if they have not."""
    for _ in range(4):
        if retractions(cell) > 0:
            return
        todo, got = [requests[0], requests[2]] * 2, []

        def work():
            request = todo.pop()
            got.append((request[0], client.run(*request)[0]))
        load.in_threads(len(todo), work)
        expect_right(got, alone)


def steps_ahead(cell):
    """Of all ranks: steps that were launched while the one before was under way."""
    return sum(int(n) for n in re.findall(r"launched (\d+) steps ahead", "\n".join(cell.lines)))


def steps_as_graphs(cell):
    return sum(int(n) for n in re.findall(r"(\d+) decode steps of epoch \d+ were launched as graphs", "\n".join(cell.lines)))


def expect_gpus(cell, n_ranks):
    log = "\n".join(cell.lines)
    for rank in range(n_ranks):
        assert f"rank {rank} computes on GPU 0, with {n_ranks - 1} more ranks" in log, log
    assert log.count(f"MiB available to {n_ranks} ranks on this GPU") == n_ranks, log
    assert log.count("took memory of the device 0 times since ready") == n_ranks, log
    reckoned, taken = (sorted(map(float, re.findall(p, log))) for p in (r"([\d.]+) MiB of pinned host memory", r"([\d.]+) MiB of the host's are pinned"))
    assert len(reckoned) == len(taken) == n_ranks and all(abs(r - t) < 0.11 for r, t in zip(reckoned, taken)) and taken[0] > 36, log


def main():
    a = cells.arguments(__doc__).parse_args()
    pb, rpc = cells.stubs(a.source)
    requests = make_requests()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(a, folder)
        transport = os.environ.pop("BATON_TRANSPORT", "auto")    # between several ranks
        os.environ["BATON_LOOKAHEAD"] = "0"
        with cells.Cell(a.bin, model, "both1", "--threads", "1") as cell, cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            alone = {r[0]: client.run(*r)[0] for r in requests}
            assert cell.stop() == 0, cell.log()
            expect_gpus(cell, 1)
            assert steps_ahead(cell) == 0, cell.log()
        del os.environ["BATON_LOOKAHEAD"]
        os.environ["BATON_TRANSPORT"] = transport
        size = load.page_bytes(model)
        with cells.Cell(a.bin, model, "1+2", "--threads", "1", "--http-port", "0", "--queue-s", "600", "--kv-bytes", str(PAGES * size)) as cell, cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            got, hits = run_together(client, requests, alone)
            expect_right(got, alone)
            run_until_retracted(client, cell, requests, alone)
            client.wait_drained()
            m = load.metrics(cell, load.all_free)
            load.expect_free(m)
            assert cell.stop() == 0, cell.log()
            expect_gpus(cell, 3)
            ahead, graphs = steps_ahead(cell), steps_as_graphs(cell)
        retracted = int(m["vllm:num_preemptions_total"])
    print(f"{sum(len(c[0]) for x in alone.values() for c in x)} tokens equal; {hits} requests with cached tokens, {retracted} retractions, {ahead} steps launched ahead, "
          f"{graphs} as graphs")
    assert hits > 0 and retracted > 0 and ahead > 20 and graphs > 20
    assert {c[3] for choices in alone.values() for c in choices} == {"length", "stop"}, alone
    return 0


if __name__ == "__main__":
    sys.exit(main())
