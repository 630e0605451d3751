#!/usr/bin/env python3
"""Drafts by the model's own layer on the CUDA back end, in real ranks: the module's twin runs the kernels on the CPU (BATON_CUDA_LIBRARY).

    cell_mtp.py --bin DIR --source DIR

The demo model's texts without drafts, and then with them on one prefill and two decode ranks, whose rows travel as BATON_TRANSPORT says: ids,
logprobs and finish reasons are equal, bit by bit, drafts were right, and steps with their rows were launched as graphs."""
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "system"))
import cell as cells  # noqa: E402
import load  # noqa: E402
from cell_serving import expect_right, steps_ahead, steps_as_graphs  # noqa: E402


def make_requests():
    rng = random.Random(3)
    ways = [dict(temperature=0.0, logprobs=2), dict(temperature=0.7), dict(temperature=0.9, top_k=30, logit_bias={9: 2.0}),
            dict(temperature=0.0, repetition_penalty=1.2), dict(temperature=0.8, n=2), dict(temperature=0.0, min_tokens=20, stop_token_ids=list(range(8, 900))),
            dict(temperature=0.0, regex="([a-zA-Z ,']|\\n){40,200}[.!]")]
    return [(f"r{i}", load.random_ids(rng, 20 + 23 * i), 24, dict(seed=i, **way)) for i, way in enumerate(ways)]


def run_all(client, requests):
    todo, got = list(requests), []

    def work():
        request = todo.pop()
        got.append((request[0], client.run(*request)[0]))
    load.in_threads(len(todo), work)
    return got


def main():
    a = cells.arguments(__doc__).parse_args()
    pb, rpc = cells.stubs(a.source)
    model, requests = os.path.join(a.source, "models/demo"), make_requests()
    with cells.Cell(a.bin, model, "1+1", "--threads", "1") as cell, cell.channel() as channel:
        alone = dict(run_all(load.Client(pb, rpc, channel), requests))
        assert cell.stop() == 0, cell.log()
    with cells.Cell(a.bin, model, "1+2", "--threads", "1", "--http-port", "0", "--mtp", "2") as cell, cell.channel() as channel:
        client = load.Client(pb, rpc, channel)
        expect_right(run_all(client, requests), alone)
        client.wait_drained()
        m = load.metrics(cell, load.all_free)
        load.expect_free(m)
        assert cell.stop() == 0, cell.log()
        ahead, graphs = steps_ahead(cell), steps_as_graphs(cell)
    right = m["baton_rank_draft_right_tokens_total"]
    print(f"{sum(len(c[0]) for x in alone.values() for c in x)} tokens equal; {right:.0f} of {m['baton_rank_draft_tokens_total']:.0f} tokens of drafts were right, "
          f"{graphs} steps as graphs")
    assert right > 20 and graphs > 10 and ahead == 0
    return 0


sys.exit(main())
