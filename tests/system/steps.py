#!/usr/bin/env python3
"""What must happen within so many steps, counted in the ranks' own logs of a running cell, not in seconds.

    steps.py --bin DIR --source DIR

Fairness: a short prompt that comes while long ones are computed is done two steps later at most (a long one's turn, then its own), and
streams go on with every step.  Endings: two steps after the word that a request was aborted, that its client has gone or that its
deadline has passed has reached a rank, none of the rank's pages is the request's."""
import itertools
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

MOST, WAIT_S = 2, 180
STREAM, SHORT, LONG = 6, 20, 6000    # tokens of a prompt
N_LONG, N_SHORT, N_THREADS, N_STREAMS = 3, 8, 4, 4
ENDINGS = 90
PATIENT = ["--queue-s", "600"]  # a slow machine refuses nobody
CUT = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)

STEP = re.compile(r" rank=(\d+) .*?step \d+: (\d+) prompt and (\d+) generated rows")
COME = re.compile(r" rank=(\d+) .*?(prompt|abort) of request (\d+) has come")
DONE = re.compile(r" rank=(\d+) req=(\d+) .*?the prompt's (\d+) tokens are computed")
HAS = re.compile(r" rank=(\d+) req=(\d+) .*?(?:reserved \d+ pages|queued: \d+ prompt tokens)")
FREE = re.compile(r" rank=(\d+) .*?request (\d+) (?:is gone|has no pages)")


def events(lines):
    """(what, rank, request or (prompt rows, generated rows)) in the order in which each rank said so."""
    for line in lines:
        for what, pattern in (("step", STEP), ("come", COME), ("done", DONE), ("has", HAS), ("free", FREE)):
            found = pattern.search(line)
            if not found:
                continue
            if what == "come":
                yield found.group(2), int(found.group(1)), int(found.group(3))
            elif what == "step":
                yield what, int(found.group(1)), (int(found.group(2)), int(found.group(3)))
            else:
                yield what, int(found.group(1)), int(found.group(2))
            break


def steps_between(lines, start, end):
    """{(rank, request): steps that the rank began between the two events}, of those where both happened in this order"""
    open_, closed = {}, {}
    for what, rank, value in events(lines):
        if what == "step":
            for key in open_:
                open_[key] += key[0] == rank
        elif what == start:
            open_[rank, value] = 0
        elif what == end and (rank, value) in open_:
            closed[rank, value] = open_.pop((rank, value))
    return closed


def are_soon(took):
    """At most MOST steps each, but for a few with one more: which was being planned when the word came."""
    return max(took) <= MOST + 1 and sum(n > MOST for n in took) <= len(took) // 8


def prompt_lengths(lines):
    found = (DONE.search(line) for line in lines)
    return {int(m.group(2)): int(m.group(3)) for m in found if m}


def mixed_steps(lines):
    """(generated rows, streams that must be among them) of each step that has prompt rows too.  A stream may join MOST steps after its prompt, and
    leaves as many before the word that it has no pages any more."""
    lengths, steps, begun, ended = prompt_lengths(lines), [], {}, {}
    for what, _, value in events(lines):
        if what == "step":
            steps.append(value)
        elif what == "done" and lengths[value] == STREAM:
            begun[value] = len(steps) + MOST
        elif what == "free" and value in begun:
            ended[value] = len(steps) - MOST
    return [(generated, sum(at <= i < ended.get(r, len(steps)) for r, at in begun.items()))
            for i, (prompt, generated) in enumerate(steps) if prompt > 0]


def wait_for(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        time.sleep(0.005)


def in_background(work):
    """A thread; its exception is raised by join()."""
    errors = []

    def run():
        try:
            work()
        except BaseException as e:
            errors.append(e)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join():
        thread.join()
        if errors:
            raise errors[0]
    return join


def fairness(a, pb, rpc, shape):
    rng = random.Random(5)
    greedy = dict(temperature=0.0, ignore_eos=True)
    with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), shape, "--log", "debug", "--chunk", "512",
                    *PATIENT) as cell, cell.channel() as channel:
        client = load.Client(pb, rpc, channel)
        over, answered = threading.Event(), threading.Event()

        def stream():
            while True:
                for _ in client.call("stream", [0, *load.random_ids(rng, STREAM - 1)], 8000, greedy):
                    if over.is_set():
                        return

        def long_prompts():
            while True:
                client.run("long", load.random_ids(rng, LONG), 1, greedy)
                if answered.is_set():
                    return
        streams = [in_background(stream) for _ in range(N_STREAMS)]
        wait_for(lambda: sum("tokens are computed" in line for line in cell.lines) >= N_STREAMS, "the streams' prompts")
        first = len(cell.lines)
        longs = [in_background(long_prompts) for _ in range(N_LONG)]
        wait_for(lambda: sum("has come" in line for line in cell.lines[first:]) >= N_LONG, "the long prompts")
        load.in_threads(N_THREADS, lambda: [client.run("short", load.random_ids(rng, SHORT), 1, greedy) for _ in range(N_SHORT)])
        answered.set()
        [join() for join in longs]
        over.set()
        [join() for join in streams]
        client.wait_drained()
        assert cell.stop() == 0, cell.log()
    lines = cell.lines[first:]
    lengths, took = prompt_lengths(lines), steps_between(lines, "prompt", "done")
    amid = [r for what, _, r in events(lines) if what == "done"]
    amid = amid[:max(i for i, r in enumerate(amid) if lengths[r] == LONG)]  # those done before the last long one
    short = {key: n for key, n in took.items() if lengths[key[1]] == SHORT and key[1] in amid}
    assert len(short) >= N_SHORT, f"{shape}: only {len(short)} short prompts came among the long ones"
    assert are_soon(short.values()), f"{shape}: steps until a short prompt was done: {sorted(short.values())}"
    chunks = [n for key, n in took.items() if lengths[key[1]] == LONG]
    assert len(chunks) >= N_LONG and min(chunks) > 4 * MOST, f"{shape}: the long prompts took {chunks} steps: too few to see anything"
    if shape.startswith("both"):
        mixed = mixed_steps(cell.lines)
        assert any(n == N_STREAMS for _, n in mixed) and all(generated >= n for generated, n in mixed), f"{shape}: streams stood still: {mixed}"
    print(f"{shape}: {len(short)} short prompts among {len(chunks)} of {LONG} tokens, each done after at most {max(short.values())} steps", flush=True)


def abort_until(client, name, over):
    """An Abort may overtake its Generate: again, until that has ended."""
    while not over.wait(0.02):
        client.stub.Abort(client.pb.AbortRequest(request_ids=[name]), timeout=load.LIMIT_S)


def cut_off(client, rng, i):
    """One request that ends before its time."""
    how, over = ("abort", "leave", "deadline")[i % 3], threading.Event()
    q = client.pb.GenerateRequest(request_id=f"cut-{i}", stream=True)
    q.tokenized.input_ids.extend(load.random_ids(rng, rng.choice([5, 70, 900, 3000])))
    q.sampling_params.max_tokens, q.sampling_params.ignore_eos = 4000, True
    call = client.stub.Generate(q, timeout=rng.uniform(0.02, 0.4) if how == "deadline" else load.LIMIT_S)
    join = None
    try:
        for _ in range(rng.choice([0, 0, 1, 5])):
            next(call, None)
        if how == "leave":
            time.sleep(rng.choice([0.001, 0.02]))
            call.cancel()
        elif how == "abort":
            join = in_background(lambda: abort_until(client, q.request_id, over))
        for _ in call:
            pass
        raise AssertionError(f"{how}: 4,000 tokens were not cut off")
    except grpc.RpcError as e:
        assert e.code() in CUT, f"{how}: {e.code()} {e.details()}"
    finally:
        over.set()
        if join:
            join()


def endings(a, pb, rpc, shape):
    """So many, and more where too many were cut off before a rank had them."""
    with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), shape, "--log", "debug", *PATIENT) as cell, cell.channel() as channel:
        client, numbers, end = load.Client(pb, rpc, channel), itertools.count(), time.monotonic() + WAIT_S

        def work():
            for i in numbers:
                if i >= ENDINGS and (time.monotonic() > end or len(steps_between(list(cell.lines), "abort", "free")) >= ENDINGS // 2):
                    return
                cut_off(client, random.Random(i), i)
        load.in_threads(8, work)
        client.wait_drained()
        assert cell.stop() == 0, cell.log()
    kept = {(rank, r) for what, rank, r in events(cell.lines) if what == "has"}
    kept -= {(rank, r) for what, rank, r in events(cell.lines) if what == "free"}
    assert not kept, f"{shape}: (rank, request) that never gave their pages back: {kept}"
    took = steps_between(cell.lines, "abort", "free")
    assert len(took) >= ENDINGS // 2, f"{shape}: only {len(took)} requests were cut off on a rank"
    assert are_soon(took.values()), f"{shape}: steps until an ended request's pages were free: {sorted(took.values())}"
    print(f"{shape}: {len(took)} times requests were cut off on a rank that had them; free after at most {max(took.values())} steps",
          flush=True)


def main():
    ap = cells.arguments(__doc__)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    for shape in ("1+1", "both1"):
        fairness(a, pb, rpc, shape)
    for shape in ("2+2", "both2"):
        endings(a, pb, rpc, shape)
    return 0


sys.exit(main())
