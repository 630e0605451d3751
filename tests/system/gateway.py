#!/usr/bin/env python3
"""A real OpenAI-compatible gateway in front of a cell: SMG, which tokenizes, speaks VllmEngine to the coordinator and HTTP to users.

    gateway.py --bin DIR --source DIR --cache DIR --version 1.9.0|newest [--sglang]

With --sglang the cell speaks both protocols, and the gateway SglangScheduler with it.  Installs that version with pip into a virtual environment below --cache and drives it over HTTP with its default flags, retries and
circuit breaker on.  The texts must be those that the engine gives for the same tokens without a gateway.  Skips (77), with the reason,
where pip cannot install it."""
import concurrent.futures
import json
import os
import random
import re
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402
import smg  # noqa: E402

MODEL = "demo"
WORDS = "the king and queen of night shall see a fool speak truth to love war crown blood heart sweet lord my thy".split()
CROWD, STREAMS, CLIENTS = 16, 64, 150
POOL_PAGES, HELD_PAGES = 100, 98
FREE_S = 180
PATIENT = ["--queue-s", "600"]    # a slow machine refuses nobody for that
ELSEWHERE = ["--public-model-path", "/not/here/demo"]    # a gateway on another machine has to fetch the tokenizer


def some_words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def chat_body(content, **more):
    return dict(model=MODEL, messages=[dict(role="user", content=content)], **{"max_tokens": 32, **more})


def text_body(prompt, **more):
    return dict(model=MODEL, prompt=prompt, **{"max_tokens": 32, **more})


def plain(g, path, body):
    status, reply = g.post(path, body)
    assert status == 200, f"{path}: {status} {reply}"
    return reply


def content(choice):
    return choice["message"]["content"] or "" if "message" in choice else choice["text"]


def texts(reply):
    assert [c["index"] for c in reply["choices"]] == list(range(len(reply["choices"])))
    return [content(c) for c in reply["choices"]]


class Streamed:
    """What the events of a streamed answer add up to."""

    def __init__(self, g, path, body, n=1):
        self.texts, self.reasons, self.usage, self.logprobs = [""] * n, [None] * n, None, []
        with g.stream(path, {**body, "stream": True, "stream_options": {"include_usage": True}}) as s:
            assert s.status == 200, f"{path}: {s.status} {s.rest()}"
            for event in s:
                assert "error" not in event, event
                self.usage = event.get("usage") or self.usage
                for c in event["choices"]:
                    self.texts[c["index"]] += (c["delta"].get("content") or "") if "delta" in c else c["text"]
                    self.reasons[c["index"]] = c.get("finish_reason") or self.reasons[c["index"]]
                    self.logprobs += (c.get("logprobs") or {}).get("content") or []
            assert s.done, "the stream ended without [DONE]"


# ---- what a user sees

def chat_and_completions(g, engine):
    """Plain and streamed, the text is the engine's own, and so is the account."""
    for path, body, prompt in (("/v1/chat/completions", chat_body, engine.chat_prompt), ("/v1/completions", text_body, str)):
        for said in ("Good morrow.", "What news from the king?"):
            want, ids = engine.text(prompt(said), 32)
            reply = plain(g, path, body(said, temperature=0))
            assert texts(reply) == [want], f"{path}: {texts(reply)} is not {want!r}"
            assert reply["usage"]["completion_tokens"] == len(ids) and reply["usage"]["prompt_tokens"] == len(engine.encode(prompt(said)))
            got = Streamed(g, path, body(said, temperature=0))
            assert got.texts == [want] and got.reasons == [reply["choices"][0]["finish_reason"]], (got.texts, got.reasons, want)
            assert all(got.usage[k] == reply["usage"][k] for k in ("prompt_tokens", "completion_tokens")), (got.usage, reply["usage"])


def choices_and_seeds(g, engine):
    warm = dict(temperature=0.9, seed=11)
    for path, body in (("/v1/chat/completions", chat_body), ("/v1/completions", text_body)):
        one = texts(plain(g, path, body("Speak.", **warm)))
        assert one == texts(plain(g, path, body("Speak.", **warm))), "equal seeds, other text"
        assert one != texts(plain(g, path, body("Speak.", temperature=0.9, seed=12))), "another seed, equal text"
        two = texts(plain(g, path, body("Speak.", n=2, **warm)))
        assert len(two) == 2 and two[0] == one[0] and two[1] != two[0], (one, two)
        got = Streamed(g, path, body("Speak.", n=2, **warm), n=2)
        assert got.texts == two and all(got.reasons), (got.texts, got.reasons, two)


def spoken(g, engine):
    """Which protocol the gateway has chosen."""
    status, workers = g.get("/workers")
    assert status == 200 and [w["runtime_type"] for w in workers["workers"]] == ["sglang"], (status, workers)


def choices(g, engine):
    """Where there are no seeds they are equal, and each is drawn anew where they are not."""
    for path, body, prompt in (("/v1/chat/completions", chat_body, engine.chat_prompt), ("/v1/completions", text_body, str)):
        want, _ = engine.text(prompt("Speak."), 32)
        assert texts(plain(g, path, body("Speak.", n=2, temperature=0))) == [want] * 2
        got = Streamed(g, path, body("Speak.", n=2, temperature=0), n=2)
        assert got.texts == [want] * 2 and all(got.reasons), (got.texts, got.reasons, want)
        two = texts(plain(g, path, body("Speak.", n=2, temperature=0.9)))
        assert two[0] != two[1] != want, two


def native(g, engine):
    """The gateway's own path of this protocol, which asks for logprobs of the prompt too."""
    ids = engine.encode("What news from the king?")
    for start in (0, 3):
        status, reply = g.post("/generate", dict(model=MODEL, input_ids=ids, sampling_params=dict(max_new_tokens=8, temperature=0), return_logprob=True,
                                                 logprob_start_len=start, top_logprobs_num=2))
        assert status == 200, f"{status} {reply}"
        reply = reply[0] if isinstance(reply, list) else reply
        _, want = engine.text("What news from the king?", 8)
        meta = reply["meta_info"]
        assert reply["output_ids"] == want and meta["prompt_tokens"] == len(ids) and meta["completion_tokens"] == 8, reply
        assert [t[1] for t in meta["output_token_logprobs"]] == want, meta
        for (value, _), sure in zip(((t[0], t[1]) for t in meta["output_token_logprobs"]), engine.logprobs):
            assert abs(value - sure) < 1e-4, (value, sure)
        assert [t[1] for t in meta["input_token_logprobs"]] == ids[start:], meta
        assert [t[0] is None for t in meta["input_token_logprobs"]] == [True] + [False] * (len(ids) - start - 1), meta


def logprobs(g, engine):
    body = chat_body("Tell me of the night.", temperature=0, logprobs=True, top_logprobs=3)
    want, ids = engine.text(engine.chat_prompt("Tell me of the night."), 32)
    reply = plain(g, "/v1/chat/completions", body)
    got = reply["choices"][0]["logprobs"]["content"]
    assert texts(reply) == [want] and len(got) == len(ids), (len(got), len(ids))
    for entry, value in zip(got, engine.logprobs):
        tops = [t["logprob"] for t in entry["top_logprobs"]]
        assert abs(entry["logprob"] - value) < 1e-4, (entry, value)
        assert len(tops) == 3 and tops == sorted(tops, reverse=True) and entry["logprob"] == tops[0], entry
    streamed = Streamed(g, "/v1/chat/completions", body).logprobs
    assert [e["logprob"] for e in streamed] == [e["logprob"] for e in got]


def stop_strings(g, engine):
    for path, body, prompt in (("/v1/chat/completions", chat_body, engine.chat_prompt), ("/v1/completions", text_body, str)):
        whole, ids = engine.text(prompt("Good morrow."), 32)
        stop = whole[8:12]
        want = whole[:whole.index(stop)]
        asked = body("Good morrow.", temperature=0, stop=["never so", stop])
        reply = plain(g, path, asked)
        assert texts(reply) == [want] and reply["choices"][0]["finish_reason"] == "stop", (reply, want)
        assert reply["usage"]["completion_tokens"] < len(ids), "the engine ran on past the stop string"
        got = Streamed(g, path, asked)
        assert got.texts == [want] and got.reasons == ["stop"], (got.texts, got.reasons, want)


def cached_tokens(g, engine):
    """Chat says them always, completions only when streamed."""
    said = some_words(random.Random(1), 250)
    n = len(engine.encode(engine.chat_prompt(said)))
    whole, found = (n - 1) // 64 * 64, []
    for ask in (lambda: plain(g, "/v1/chat/completions", chat_body(said, temperature=0))["usage"],
                lambda: plain(g, "/v1/chat/completions", chat_body(said, temperature=0))["usage"],
                lambda: Streamed(g, "/v1/chat/completions", chat_body(said, temperature=0)).usage,
                lambda: Streamed(g, "/v1/completions", text_body(engine.chat_prompt(said), temperature=0)).usage):
        usage = ask()
        assert usage["prompt_tokens"] == n, usage
        found.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
    assert found == [0, whole, whole, whole], f"{found} cached of {n}"


def many_streams(g, engine, temperatures=(0, 0.8)):
    """64 at once, each equal to its twin that ran alone."""
    rng = random.Random(2)
    bodies = [text_body(some_words(rng, rng.randrange(3, 60)), temperature=rng.choice(temperatures), seed=i, max_tokens=48) for i in range(CROWD)]
    alone = [texts(plain(g, "/v1/completions", b)) for b in bodies]
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        got = list(pool.map(lambda i: Streamed(g, "/v1/completions", bodies[i % CROWD]).texts, range(STREAMS)))
    for i, text in enumerate(got):
        assert text == alone[i % CROWD], f"stream {i}: {text} is not {alone[i % CROWD]}"


def many_greedy_streams(g, engine):
    many_streams(g, engine, (0,))


# ---- what users do to it

def wait_free(engine, what):
    """Nothing runs or waits in the cell, and every page is free or cached."""
    end = time.monotonic() + FREE_S
    while True:
        m = load.metrics(engine.cell)
        held = {k: m[k] for k in ("vllm:num_requests_running", "vllm:num_requests_waiting", "baton_rank_requests")}
        if not any(held.values()) and (load.all_free(m) or time.monotonic() > end):
            load.expect_free(m, what)
            return m
        assert time.monotonic() < end, f"{what}: after {FREE_S} s the cell still has {held}"


def disconnects(g, engine):
    """Users who leave take their requests with them, at whatever moment."""
    rng = random.Random(3)
    long = dict(max_tokens=6000, ignore_eos=True, temperature=0)
    for what, events, pause in (("before the first token", 0, 0.01), ("at once", 0, 0), ("after the first token", 1, 0),
                                ("after five", 5, 0)):
        before = wait_free(engine, "before")
        streams = [g.stream("/v1/completions", {**text_body(some_words(rng, 700 if events == 0 else 5), **long), "stream": True},
                            wait=events > 0) for _ in range(8)]
        for s in streams:
            for _ in range(events):
                next(s)
        time.sleep(pause)
        for s in streams:
            s.close()
        after = wait_free(engine, what)
        ended = after["baton_requests_total:CANCELLED"] - before["baton_requests_total:CANCELLED"]
        assert ended == (8 if events else ended) and after["baton_requests_total:OK"] == before["baton_requests_total:OK"], (what, ended)
        time.sleep(1)    # a step that was under way is counted when it ends
        rows = load.metrics(engine.cell)["baton_rank_rows_total:generated"]
        time.sleep(0.2)
        assert load.metrics(engine.cell)["baton_rank_rows_total:generated"] == rows, f"{what}: something runs on"


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
          "required": ["name", "age"], "additionalProperties": False}


def check_person(person):
    assert set(person) == {"name", "age"} and len(person["name"]) <= 10 and 0 <= person["age"] <= 130, person


def structured(g, engine):
    """Replies of a form: JSON that a schema describes, any JSON object, an expression, a grammar, and tools that must be called."""
    chat = "/v1/chat/completions"
    forms = [(dict(response_format=dict(type="json_schema", json_schema=dict(name="who", strict=True, schema=PERSON))), lambda t: check_person(json.loads(t))),
             (dict(response_format=dict(type="json_object")), lambda t: dict(json.loads(t))),
             (dict(regex="[a-z]{3,9}!"), lambda t: re.fullmatch("[a-z]{3,9}!", t) or 1 / 0),
             (dict(ebnf='root ::= "yes" | "no"'), lambda t: ["yes", "no"].index(t))]

    def ends(form, check, i):
        body = chat_body(f"Who speaks? {i}", **form, temperature=(0, 0.8)[i % 2], seed=i, max_tokens=300)
        reply = plain(g, chat, body)["choices"][0]
        if i % 2 == 0:
            assert Streamed(g, chat, body).texts == [content(reply)], (form, reply)
        if reply["finish_reason"] == "stop":
            check(content(reply))
        return reply["finish_reason"] == "stop"
    n_whole = sum(load.each([((k, i), *form, i) for k, form in enumerate(forms) for i in range(4)], CROWD, ends).values())
    assert n_whole >= 12, f"{n_whole} replies of 16 ended by themselves"
    tool = dict(type="function", function=dict(name="meet", parameters=PERSON))

    def called(choice, i):
        body = chat_body(f"Who? {i}", tools=[tool], tool_choice=choice, temperature=1, seed=i, max_tokens=500)
        return plain(g, chat, body)["choices"][0]
    for choice in ("required", dict(type="function", function=dict(name="meet"))):
        replies, calls = [], []
        while not calls and len(replies) < 40:    # no calls where tokens ran out before the last one's end
            replies += load.each([(i, choice, i) for i in range(len(replies), len(replies) + 8)], 8, called).values()
            calls = [c["function"] for r in replies for c in r["message"].get("tool_calls") or []]
        assert calls and all(c["name"] == "meet" for c in calls), replies
        for c in calls:
            check_person(json.loads(c["arguments"]))


def bad_input(g, engine):
    """Refused with a sentence, by gateway or engine; more often than the breaker would bear a failing worker."""
    chat, text = "/v1/chat/completions", "/v1/completions"
    schema = dict(type="json_schema", json_schema=dict(name="x", schema=dict(type="object", minProperties=7)))
    cases = [(chat, b"{\"model\": \"demo\", \"messages\": [", None), (chat, b"\xff\xfe\x00", None), (chat, b"", None),
             (chat, dict(model=MODEL, messages=[]), None), (chat, chat_body("x", max_tokens=0), None),
             (chat, chat_body("x", temperature=3.5), None), (chat, chat_body("x", n=99), None),
             (chat, chat_body("x", stop=[""]), None), (chat, chat_body("x", top_logprobs=99, logprobs=True), None),
             (chat, chat_body("x", response_format=schema), "json_schema"), (text, text_body("x", max_tokens=9000), "8192"),
             (text, text_body("word " * 9000), "8192"), (text, text_body(""), "prompt")]
    for _ in range(2):
        for path, body, part in cases:
            status, reply = g.post(path, body)
            assert status in (400, 422), f"{str(body)[:80]}: {status} {reply}"
            assert part is None or part in str(reply), f"{str(body)[:80]}: {reply} does not name {part}"
    status, reply = g.post(chat, dict(chat_body("x"), model="no-such-model"))
    assert status in (404, 500), f"an unknown model: {status} {reply}"
    assert texts(plain(g, text, text_body("Speak.", temperature=0))) == [engine.text("Speak.", 32)[0]]


def overload(g, engine):
    """Far more users than a small pool has room for: each is answered, and the breaker stays closed."""
    rng = random.Random(4)
    bodies = [text_body(some_words(rng, rng.randrange(5, 120)), temperature=0.8, seed=i, max_tokens=rng.randrange(8, 64), ignore_eos=True)
              for i in range(CROWD)]
    alone = [texts(plain(g, "/v1/completions", b)) for b in bodies]
    retracted = load.metrics(engine.cell)["vllm:num_preemptions_total"]

    def one(i):
        if i % 2:
            return Streamed(g, "/v1/completions", bodies[i % CROWD]).texts
        return texts(plain(g, "/v1/completions", bodies[i % CROWD]))
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for i, text in enumerate(pool.map(one, range(CLIENTS))):
            assert text == alone[i % CROWD], f"client {i}: {text} is not {alone[i % CROWD]}"
    m = wait_free(engine, "after the overload")
    refused = {k: v for k, v in m.items() if k.startswith("baton_requests_total:") and not k.endswith(":OK") and v}
    assert not refused, f"requests were refused: {refused}"
    return int(m["vllm:num_preemptions_total"] - retracted)


def refusal(g, engine):
    """A full queue refuses one user, after the gateway's own retries; nobody else notices, and with room everybody is served again."""
    rng = random.Random(5)
    hog = g.stream("/v1/completions", {**text_body(some_words(rng, 100), max_tokens=6000, ignore_eos=True), "stream": True})
    next(hog)
    long, short = some_words(rng, HELD_PAGES * 64), some_words(rng, 20)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lambda: texts(plain(g, "/v1/completions", text_body(long, temperature=0))))
        end = time.monotonic() + FREE_S
        while load.metrics(engine.cell)["vllm:num_requests_waiting"] != 1:
            assert time.monotonic() < end, "the request that does not fit is not waiting"
        status, reply = g.post("/v1/completions", text_body(short, temperature=0))
        assert status == 429 and "the queue is full" in str(reply), f"{status} {reply}"
        assert not waits.done() and next(hog), "somebody else was touched"
        hog.close()
        assert waits.result() == [engine.text(long, 32)[0]], "the one that waited has another text"
    assert texts(plain(g, "/v1/completions", text_body(short, temperature=0))) == [engine.text(short, 32)[0]]
    refused = wait_free(engine, "after the refusal")["baton_requests_total:RESOURCE_EXHAUSTED"]
    assert 1 <= refused <= 5, f"{refused} refusals for one user"
    return int(refused)


def replaced(a, model, program):
    """In the order of docs/operating.md a new server takes the place of the old one, and no user notices."""
    rng, stop, errors = random.Random(6), threading.Event(), []
    with cells.Cell(a.bin, model, "1+1", *PATIENT) as old, smg.Gateway(program, old.address) as g:
        g.wait_served(chat_body("Hello."))
        body = text_body(some_words(rng, 20), temperature=0)
        want = texts(plain(g, "/v1/completions", body))

        def user(n):
            while not stop.is_set():
                got = plain(g, "/v1/completions", body) if n % 2 else None
                if (texts(got) if got else Streamed(g, "/v1/completions", body).texts) != want:
                    errors.append(n)
        with cells.Cell(a.bin, model, "1+1", "--http-port", "0", *PATIENT) as new, concurrent.futures.ThreadPoolExecutor(4) as pool:
            new.wait_ready()
            users = [pool.submit(user, n) for n in range(4)]
            try:
                g.post("/workers", {"url": f"grpc://{new.address}"})
                end = time.monotonic() + FREE_S
                while [w["status"] for w in workers(g) if new.address in w["url"]] != ["ready"]:
                    assert time.monotonic() < end, workers(g)
                    time.sleep(0.1)
                assert g.delete("/workers/" + next(w["id"] for w in workers(g) if old.address in w["url"]))[0] < 300
                old.process.send_signal(signal.SIGUSR1)
                assert old.process.wait(FREE_S) == 0, old.log()
                before = load.metrics(new)["baton_requests_total:OK"]
                while load.metrics(new)["baton_requests_total:OK"] < before + 8:
                    assert time.monotonic() < end + FREE_S and not any(u.done() for u in users), "the new server has no requests"
                    time.sleep(0.1)
            finally:
                stop.set()
            for u in users:
                u.result()
        assert not errors, f"users {errors} got another text"


def workers(g):
    status, reply = g.get("/workers")
    assert status == 200, reply
    return reply["workers"]


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--cache", required=True)
    ap.add_argument("--version", required=True)
    ap.add_argument("--sglang", action="store_true")
    a = ap.parse_args()
    program, version = smg.install(a.cache, a.version)
    pb, rpc = cells.stubs(a.source)
    model = os.path.join(a.source, "models/demo")
    checks = [chat_and_completions, choices_and_seeds, logprobs, stop_strings, structured, cached_tokens, many_streams, disconnects, bad_input]
    if a.sglang:
        checks = [spoken, chat_and_completions, choices, native, logprobs, stop_strings, structured, cached_tokens, many_greedy_streams, disconnects, bad_input]
    with cells.Cell(a.bin, model, "2+2", "--http-port", "0", *PATIENT, *["--sglang", *ELSEWHERE] * a.sglang) as cell, smg.Gateway(program, cell.address) as g:
        engine = smg.Engine(a.bin, model, pb, rpc, cell)
        g.wait_served(chat_body("Hello."))
        for check in checks:
            start = time.monotonic()
            check(g, engine)
            print(f"smg {version}: {check.__name__}, {time.monotonic() - start:.1f} s", flush=True)
        assert cell.stop() == 0, cell.log()
    if a.sglang:
        return 0    # what a full cell does to users is not the protocol's
    with cells.Cell(a.bin, model, "1+1", "--http-port", "0", *PATIENT, *ELSEWHERE, "--kv-bytes", str(14 * load.page_bytes(model))) as cell, \
            smg.Gateway(program, cell.address) as g:
        engine = smg.Engine(a.bin, model, pb, rpc, cell)
        g.wait_served(chat_body("Hello."))
        chat_and_completions(g, engine)
        start = time.monotonic()
        n = overload(g, engine)
        print(f"smg {version}: overload, {CLIENTS} users at once, {n} retractions, {time.monotonic() - start:.1f} s", flush=True)
        assert cell.stop() == 0, cell.log()
    with cells.Cell(a.bin, model, "1+1", "--http-port", "0", *PATIENT, "--queue-tokens", "1000", "--kv-bytes",
                    str(POOL_PAGES * load.page_bytes(model))) as cell, smg.Gateway(program, cell.address) as g:
        engine = smg.Engine(a.bin, model, pb, rpc, cell)
        g.wait_served(chat_body("Hello."))
        start = time.monotonic()
        n = refusal(g, engine)
        print(f"smg {version}: refusal, {n} of the gateway's attempts, {time.monotonic() - start:.1f} s", flush=True)
        assert cell.stop() == 0, cell.log()
    start = time.monotonic()
    replaced(a, model, program)
    print(f"smg {version}: replaced, {time.monotonic() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
