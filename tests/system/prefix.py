#!/usr/bin/env python3
"""A second request that shares 4,000 tokens with the first, sent after that has ended, computes only what the prefill rank lacks and
hands over only what the decode rank lacks: in the metrics, in the usage and in the time to the first token.  Requests of different
salts share nothing, and have the same reply, also with --share-generated, where requests are retracted, and after the coordinator was
started again, which the cached pages of a salt outlive.

    prefix.py --bin DIR --source DIR"""
import os
import random
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

SHARED, TAIL, TOKENS, AGAIN, SALTED = 4000, 100, 4, 3, 140
PAGES = SHARED // load.PAGE_TOKENS
POOL, SALTS, GROWS = 12, 6, 128    # pages of each rank, and requests that outgrow them


def grown(after, before, name):
    return round(after[name] - before[name])


def check(a, pb, rpc, shape):
    rng = random.Random(3)
    model = os.path.join(a.source, "models/demo")
    row_bytes = load.page_bytes(model) // load.PAGE_TOKENS
    shared = [0] + load.random_ids(rng, SHARED - 1)
    with cells.Cell(a.bin, model, shape, "--http-port", "0") as cell, cell.channel() as channel:
        client = load.Client(pb, rpc, channel)
        greedy = dict(temperature=0.0, ignore_eos=True)
        client.run("warm", load.random_ids(rng, 70), TOKENS, greedy)
        def said(rows, before=None):
            """Whether the ranks have told of so many prompt tokens, computed and handed over."""
            begin = before or dict.fromkeys(("baton_rank_rows_total:prompt", "baton_handoff_sent_bytes_total"), 0)
            return lambda m: (grown(m, begin, "baton_rank_rows_total:prompt") >= rows and load.all_free(m) and
                              (shape.startswith("both") or grown(m, begin, "baton_handoff_sent_bytes_total") >= rows * row_bytes))
        m0 = load.metrics(cell, said(70))
        _, cached, cold_s = client.run("first", shared + load.random_ids(rng, TAIL), TOKENS, greedy)
        m1 = load.metrics(cell, said(SHARED + TAIL, m0))
        assert cached == 0 and grown(m1, m0, "baton_rank_rows_total:prompt") == SHARED + TAIL
        times = []
        for i in range(AGAIN):
            _, cached, first_s = client.run(f"again{i}", shared + load.random_ids(rng, TAIL), TOKENS, greedy)
            assert cached == PAGES * load.PAGE_TOKENS, f"{shape}: {cached} tokens cached"
            times.append(first_s)
            rest = SHARED + TAIL - cached
            m2 = load.metrics(cell, said(rest, m1))
            assert grown(m2, m1, "baton_rank_rows_total:prompt") == rest, f"{shape}: computed more than {rest} prompt tokens"
            sent = grown(m2, m1, "baton_handoff_sent_bytes_total")
            assert sent == (0 if shape.startswith("both") else rest * row_bytes), f"{shape}: {sent} bytes handed over for {rest} tokens"
            m1 = m2
        assert min(times) < 0.6 * cold_s, f"{shape}: first token after {times} s, {cold_s} s without the cache"
        assert load.expect_free(m2, shape)["cached"] >= PAGES
        load.expect_expert_rows(cell, model, prompts=2 + AGAIN)
        m2 = load.metrics(cell)
        salts, mine, replies = [None, "a", "b", "a", "b", None], load.random_ids(rng, SALTED), []
        for i, salt in enumerate(salts):
            reply, cached, _ = client.run(f"salt{i}", mine, TOKENS, greedy, salt=salt)
            assert cached == (SALTED // load.PAGE_TOKENS * load.PAGE_TOKENS if salt in salts[:i] else 0), f"{shape}: {salts[:i + 1]}: {cached} cached"
            replies.append(reply)
            client.wait_drained()  # else the next one may go to another rank
        assert replies == replies[:1] * len(salts), f"{shape}: replies depend on the salt"
        rows = 3 * (SALTED + SALTED % load.PAGE_TOKENS)
        m3 = load.metrics(cell, said(rows, m2))
        assert grown(m3, m2, "baton_rank_rows_total:prompt") == rows, f"{shape}: {grown(m3, m2, 'baton_rank_rows_total:prompt')} prompt rows, not {rows}"
        assert cell.stop() == 0, cell.log()
    print(f"{shape}: {rest} of {SHARED + TAIL} tokens computed, {sent} bytes handed over; first token after {min(times) * 1e3:.1f} ms, "
          f"{cold_s * 1e3:.1f} ms without the cache", flush=True)


def check_salts(a, pb, rpc):
    model, rng, greedy = os.path.join(a.source, "models/demo"), random.Random(5), dict(temperature=0.0, ignore_eos=True)
    prompt, tail, replies, lock = load.random_ids(rng, SALTED), load.random_ids(rng, 9), {}, threading.Lock()
    names = iter([*(f"salt{i}" for i in range(SALTS)), None, "a", "b"])    # none is shared as a salt is

    def fresh(ids, tokens):
        """A salt that nobody has had, and the reply with it, which is the same for all."""
        with lock:
            salt = next(names)
        reply, cached, _ = client.run(salt, ids, tokens, greedy, salt=salt)
        assert cached == 0, f"{salt}: {cached} tokens cached\n{cell.log()}"
        assert replies.setdefault(len(ids), reply) == reply, f"{salt}: another reply\n{cell.log()}"
        return salt, list(reply[0][0])

    def again(salt):
        """All full pages are there, of the reply too, whoever was served meanwhile."""
        client.wait_drained()
        cached = client.run("again", longer, TOKENS, greedy, salt=salt)[1]
        assert cached == (len(longer) - 1) // load.PAGE_TOKENS * load.PAGE_TOKENS, f"{cached} tokens of {len(longer)} cached\n{cell.log()}"
        client.wait_drained()
    with cells.Cell(a.bin, model, "both1", "--share-generated", "--on-death", "restart", "--kv-bytes", str(POOL * load.page_bytes(model)),
                    "--http-port", "0") as cell:
        with cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            load.in_threads(SALTS, lambda: fresh(prompt, GROWS))
            n_retracted = int(load.metrics(cell, lambda m: m["vllm:num_preemptions_total"] > 0)["vllm:num_preemptions_total"])
            assert n_retracted > 0, f"nothing was retracted: {POOL} pages are too many for {SALTS} requests"
            client.wait_drained()
            longer = prompt + fresh(prompt, GROWS)[1] + tail
            again(None)
            a_salt, _ = fresh(longer, TOKENS)
            again(None)
        os.kill(cells.process_named(cell, "baton-coordinator"), signal.SIGKILL)
        cell.wait_line("serving again")
        with cell.channel() as channel:
            client = load.Client(pb, rpc, channel)
            again(None)
            again(a_salt)
            fresh(longer, TOKENS)
        assert cell.stop() == 0, cell.log()
    print(f"fresh salts have nothing cached after {n_retracted} retractions, beside shared replies and with another coordinator", flush=True)


def main():
    ap = cells.arguments(__doc__)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    for shape in ("1+1", "1+3", "2+2", "both2"):
        check(a, pb, rpc, shape)
    check_salts(a, pb, rpc)
    return 0


sys.exit(main())
