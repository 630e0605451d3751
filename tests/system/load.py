"""What the system tests share: random requests with common prefixes, a client, the metrics, and the size of pools that are too small."""
import json
import os
import random
import re
import threading
import time

import cell as cells

PAGE_TOKENS = 64
LIMIT_S = 300
VOCAB = 2048
CONSTRAINTS = [
    dict(json_schema='{"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer"},"of":{"$ref":"#"}},"required":["name"]}'),
    dict(regex="([a-z]{1,9} ){3,40}[a-z]+"), dict(grammar='root ::= "[" (root ("," root)*)? "]" | [a-z ]+\n'), dict(json_object=True)]


def page_bytes(model):
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    return c["num_hidden_layers"] * PAGE_TOKENS * 2 * (c["kv_lora_rank"] + c["qk_rope_head_dim"] + c.get("index_head_dim", 0))


def token_texts(model):
    """The bytes of each id, from tokenizer.json."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    of = {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}  # the byte-level alphabet
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as f:
        tokens = json.load(f)
    texts = {i: bytes(of[c] for c in t) for t, i in tokens["model"]["vocab"].items() if all(c in of for c in t)}
    return texts | {t["id"]: t["content"].encode() for t in tokens["added_tokens"]}


def metrics(cell, until=lambda m: True, seconds=120):
    """Sums over the ranks of a cell that has an HTTP port, by name and by kind, state or status, once all ranks have had their say: ranks speak five
    times a second, and slow ones are waited for until what they say is so, or so many seconds have passed."""
    end = time.monotonic() + seconds
    while True:
        time.sleep(0.6)
        text = cells.page(cell.http, "/metrics")
        sums = {}
        for name, labels, value in re.findall(r"^([a-z_:]+)\{([^}]*)\} ([0-9.e+-]+)$", text, re.M):
            kind = re.search(r'(?:kind|state|status)="(\w+)"', labels)
            key = name + (":" + kind.group(1) if kind else "")
            sums[key] = sums.get(key, 0) + float(value)
        if until(sums) or time.monotonic() > end:
            return sums


def pages_of(m):
    return {k.split(":")[1]: v for k, v in m.items() if k.startswith("baton_rank_pages:")}


def all_free(m):
    """Every page of every rank is free or cached, as far as the ranks have said."""
    pages = pages_of(m)
    return pages["owned"] == 0 and m["baton_handoff_slots_quarantined"] == 0 and pages["free"] + pages["cached"] == m["baton_rank_pool_pages"] > 0


def expect_free(m, what=""):
    """The same, or who has what."""
    assert all_free(m), f"{what}: {pages_of(m)} of {m['baton_rank_pool_pages']}, {m['baton_handoff_slots_quarantined']} slots in quarantine"
    return pages_of(m)


def retracted(client, cell, seconds=LIMIT_S):
    """How many retractions there have been.  None so far, by chance: requests that are small at first and together outgrow every pool, until one is."""
    end, pages = time.monotonic() + seconds, int(metrics(cell)["baton_rank_pool_pages"]) // len(cell.ranks())
    while not (n := int(metrics(cell)["vllm:num_preemptions_total"])):
        assert time.monotonic() < end, f"nothing was retracted: pools of {pages} pages are too large for this test"
        request = ("grows", random_ids(random.Random(1), 5), (pages - 1) * PAGE_TOKENS - 5, dict(temperature=0.0, ignore_eos=True))
        got = []
        in_threads(16, lambda: got.append(client.run(*request)[0]))
        assert all(g == got[0] for g in got), f"one request has several answers: {got}"
    return n


def expect_expert_rows(cell, model, prompts):
    """Every computed row has run through its experts in every layer that has them, but in the last layer only one row for each of so many prompts and
    all that were generated: the rest have no logits.  Ranks say so once a second."""
    with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    before_last = c["num_hidden_layers"] - c["first_k_dense_replace"] - 1

    def want(m):
        prompt, generated = (m["baton_rank_rows_total:" + k] for k in ("prompt", "generated"))
        return c["num_experts_per_tok"] * (before_last * (prompt + generated) + prompts + generated)
    m = metrics(cell, lambda m: m["baton_expert_rows_total"] == want(m) > 0)
    assert m["baton_expert_rows_total"] == want(m) > 0, f"experts ran {m['baton_expert_rows_total']} rows, expected {want(m)}"


def random_ids(rng, n):
    return [rng.randrange(8, VOCAB) for _ in range(n)]


def random_requests(n, seed, longest=60):
    """(name, ids, max_tokens, sampling) of n requests, most of them behind one of a few common prefixes, some held to a grammar."""
    rng, held, out = random.Random(seed), random.Random(seed), []
    prefixes = [random_ids(rng, k) for k in (64, 130, 200, 320)]
    for i in range(n):
        head = rng.choice(prefixes + [[]])
        ids = [0] + head + random_ids(rng, rng.choice([0, 1, 7, 62, 63, 64, 65, 100]))
        warm = rng.random() < 0.6
        sampling = dict(temperature=rng.choice([0.5, 0.8, 1.0, 1.3]) if warm else 0.0, seed=rng.randrange(1 << 30), ignore_eos=rng.random() < 0.7)
        if rng.random() < 0.8:
            sampling["logprobs"] = rng.choice([0, 1, 4])
        if warm and rng.random() < 0.5:
            sampling.update(rng.choice([dict(top_k=rng.randrange(1, 60)), dict(top_p=rng.choice([0.3, 0.8, 0.95])), dict(min_p=0.05)]))
        most = rng.randrange(1, longest)
        if rng.random() < 0.3:
            sampling.update(rng.choice([dict(repetition_penalty=1.3), dict(frequency_penalty=0.7), dict(presence_penalty=0.9), dict(min_tokens=min(5, most))]))
        if rng.random() < 0.2:
            sampling["logit_bias"] = {rng.randrange(8, VOCAB): rng.choice([-8.0, 3.0]) for _ in range(4)}
        if i % 3 != 0 and rng.random() < 0.2:
            sampling["stop"] = rng.choice([["the"], ["s of", "\n\n"], ["e", "zz"]])
        if i % 3 != 0 and rng.random() < 0.2:
            sampling["n"] = 2
        if i % 3 == 0:  # little at first, and grows: these are retracted where pages are few
            ids, most, sampling["ignore_eos"] = ids[-20:], rng.randrange(longest, 3 * longest), True
        if i % 5 == 4:
            sampling.update(held.choice(CONSTRAINTS), ignore_eos=False)
        out.append((f"r{i}", ids, most, sampling))
    return out


class Client:
    def __init__(self, pb, rpc, channel):
        self.pb, self.stub = pb, rpc.VllmEngineStub(channel)

    def request(self, name, ids, max_tokens, sampling, stream=True):
        q = self.pb.GenerateRequest(request_id=f"{name}-{random.random()}", stream=stream)
        q.tokenized.input_ids.extend(ids)
        q.sampling_params.max_tokens = max_tokens
        for key, value in sampling.items():
            field = getattr(q.sampling_params, key)
            if isinstance(value, list):
                field.extend(value)
            elif isinstance(value, dict):
                field.update(value)
            else:
                setattr(q.sampling_params, key, value)
        return q

    def call(self, name, ids, max_tokens, sampling, stream=True, timeout=LIMIT_S, salt=None):
        q = self.request(name, ids, max_tokens, sampling, stream)
        return self.stub.Generate(q, timeout=timeout, metadata=[("baton-cache-salt", salt)] if salt else None)

    def run(self, name, ids, max_tokens, sampling, stream=True, salt=None):
        """([(ids, logprobs, alternatives, finish) of each choice], cached tokens, seconds to the first message)"""
        start, first = time.monotonic(), None
        parts, done, cached = {}, {}, None
        for m in self.call(name, ids, max_tokens, sampling, stream, salt=salt):
            first = first or time.monotonic() - start
            part = m.chunk if m.HasField("chunk") else m.complete
            if m.HasField("chunk") or not stream:
                assert part.index not in done, f"{name}: a chunk after complete"
                got = parts.setdefault(part.index, ([], [], []))
                got[0].extend(part.token_ids if m.HasField("chunk") else part.output_ids)
                got[1].extend(part.output_logprobs.token_logprobs)
                got[2].extend((tuple(t.token_ids), tuple(t.values)) for t in part.output_logprobs.top_logprobs)
            if m.HasField("complete"):
                assert part.index not in done and (stream or part.index == len(done)), f"{name}: complete {part.index} after {list(done)}"
                assert part.prompt_tokens == len(ids) and part.completion_tokens == len(parts[part.index][0]), f"{name}: usage does not add up"
                cached = part.cached_tokens
                assert cached % PAGE_TOKENS == 0 and cached < len(ids), f"{name}: {cached} of {len(ids)} cached"
                done[part.index] = (*parts[part.index], part.finish_reason)
        assert len(done) == sampling.get("n", 1), f"{name}: {len(done)} completes"
        return [done[i] for i in sorted(done)], cached, first

    def held(self):
        loads = self.stub.GetLoads(self.pb.GetLoadsRequest(), timeout=LIMIT_S).loads
        return [(x.num_running_reqs, x.num_waiting_reqs, x.num_used_tokens) for x in loads]

    def wait_drained(self, seconds=LIMIT_S):
        """Nothing runs, waits or holds tokens any more."""
        end = time.monotonic() + seconds
        while True:
            held = self.held()
            if held and all(h == (0, 0, 0) for h in held):
                return
            assert time.monotonic() < end, f"still held after {seconds} s: {held}"
            time.sleep(0.05)


def ask(pb, stub, i, n, on_token=None):
    """Request number i streams n tokens, always the same ones, and ends once; on_token(how many) with each message: True leaves.  Returns them."""
    q = pb.GenerateRequest(request_id=f"r{i}-{time.monotonic_ns()}", stream=True)
    q.tokenized.input_ids.extend([0] + [(11 * i + 17 * k) % 1500 + 8 for k in range(30 + 7 * i)])
    q.sampling_params.max_tokens, q.sampling_params.ignore_eos = n, True
    q.sampling_params.temperature, q.sampling_params.seed = 0.8, 100 + i
    out, ends, call = [], 0, stub.Generate(q, timeout=LIMIT_S)
    for m in call:
        if m.HasField("chunk"):
            out += m.chunk.token_ids
            if on_token and on_token(len(out)):
                call.cancel()
                return out
        else:
            ends += 1
    assert ends == 1, f"{ends} ends"
    return out


def ask_all(pb, stub, n_requests, n):
    """Requests number 0 to n_requests - 1, all at once: what each gives, by number."""
    return each([(i, i) for i in range(n_requests)], n_requests, lambda i: ask(pb, stub, i, n))


def each(cases, parallel, work):
    """{name: work(*rest)} of cases (name, *rest), so many at once; an exception of any of them is raised here."""
    results, todo, lock = {}, list(cases), threading.Lock()

    def some():
        while True:
            with lock:
                if not todo:
                    return
                name, *rest = todo.pop(0)
            results[name] = work(*rest)
    in_threads(parallel, some)
    return results


def in_threads(n, work):
    """Runs work() in n threads; the first exception of any of them is raised here."""
    errors = []

    def guarded():
        try:
            work()
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if errors:
        raise errors[0]
