#!/usr/bin/env python3
"""Random requests, a third of which is cut off: aborted by name, left by the client, past its deadline; on pools so small that others
are retracted.  Afterwards nothing is held and no process has grown, and a rank whose pool does not add up has ended the cell.

    leaks.py --bin DIR --source DIR [--requests 2000]

Each rank checks its pool whenever it falls idle, and leaves with an error when a page is lost: so the cell must still be there, answer,
and end with code 0."""
import os
import random
import re
import sys
import threading
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

SHAPES = ["2+2", "both2"]
PAGES, PARALLEL = 12, 20  # pages: as many as the largest of the requests needs
QUEUE_S = "600"  # a slow machine refuses nobody
CUT = (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)
GROWTH_KIB, ROUNDS = 1024, 10  # of any process; memory that is touched for the first time comes in steps of 2 MiB, but not for ever


def rss_kib(cell):
    found = {}
    for pid in cells.descendants(cell.process.pid):
        name = cells.name_of(pid)
        if name in ("baton-worker", "baton-coordinat"):
            with open(f"/proc/{pid}/status") as f:
                found[f"{name} {pid}"] = int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
    return found


def one(client, rng, request):
    """Runs a request to its end or cuts it off; returns how it ended."""
    name, ids, n, sampling = request
    how = rng.choice(["end", "end", "end", "end", "abort", "leave", "deadline"])
    if how == "end":
        client.run(name, ids, n, sampling)
        return how
    q = client.pb.GenerateRequest(request_id=f"{name}-{rng.random()}", stream=True)
    q.tokenized.input_ids.extend(ids)
    q.sampling_params.max_tokens = n
    q.sampling_params.ignore_eos = True
    call = client.stub.Generate(q, timeout=rng.uniform(0.001, 0.3) if how == "deadline" else load.LIMIT_S)
    try:
        for _ in range(rng.choice([0, 0, 1, 3])):
            next(call, None)
        time.sleep(rng.choice([0, 0, 0.005, 0.05]))
        if how == "leave":
            call.cancel()
        elif how == "abort":
            client.stub.Abort(client.pb.AbortRequest(request_ids=[q.request_id]), timeout=load.LIMIT_S)
        for _ in call:
            pass
    except grpc.RpcError as e:
        assert e.code() in CUT, f"{how}: {e.code()} {e.details()}"
    return how


def storm(client, requests, seed):
    todo, lock, counts = list(requests), threading.Lock(), {}

    def work():
        while True:
            with lock:
                if not todo:
                    return
                request = todo.pop()
                rng = random.Random(seed * 100003 + len(todo))
            how = one(client, rng, request)
            with lock:
                counts[how] = counts.get(how, 0) + 1
    load.in_threads(PARALLEL, work)
    return counts


def flat(cell, client, requests, shape):
    """Runs them until no process has grown by it; a leak grows each time.  Returns how they ended and the most that one grew."""
    for i in range(ROUNDS):
        before = rss_kib(cell)
        ends = storm(client, requests, 2 + i)
        client.wait_drained()
        time.sleep(0.5)  # the ranks park, and look at their pools
        after = rss_kib(cell)
        assert before.keys() == after.keys(), f"{shape}: {before} {after}"
        grew = max(after[k] - before[k] for k in after)
        if grew < GROWTH_KIB:
            return ends, grew
    raise AssertionError(f"{shape}: in each of {ROUNDS} rounds of {len(requests)} requests some process grew, at last from {before} to {after} KiB")


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--requests", type=int, default=240)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    model = os.path.join(a.source, "models/demo")
    each = a.requests // len(SHAPES)
    for shape in SHAPES:
        requests = load.random_requests(each, 3, longest=100)
        with cells.Cell(a.bin, model, shape, "--http-port", "0", "--queue-s", QUEUE_S, "--kv-bytes",
                        str(PAGES * load.page_bytes(model))) as cell, cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            probe = requests[0]
            want = client.run(*probe)[0]
            first = storm(client, requests[:each // 2], 1)
            client.wait_drained()
            second, grew = flat(cell, client, requests[each // 2:], shape)
            m = load.metrics(cell, load.all_free)
            load.expect_free(m, shape)
            assert client.run(*probe)[0] == want, "the answer has changed"
            client.wait_drained()
            retracted = load.retracted(client, cell)
            client.wait_drained()
            ranks = len(cell.ranks())
            code = cell.stop()
            assert code == 0, f"{shape}: exit code {code}\n{cell.log()}"
            cell.wait_nothing_left()
        assert ranks == (2 if shape == "both2" else 4), f"{shape}: {ranks} ranks"
        ends = {how: first.get(how, 0) + second.get(how, 0) for how in ("end", "abort", "leave", "deadline")}
        assert all(ends.values()), f"{shape}: {ends}"
        print(f"{shape}: {each} requests: {ends}, {retracted} retractions; nothing held, at most {grew} KiB more", flush=True)
    return 0


sys.exit(main())
