#!/usr/bin/env python3
"""Drives cells of several shapes over the public protocol, as a gateway would, and holds law B on what clients see.

    serving.py --bin DIR --source DIR

The same requests (greedy and seeded temperature, with logprobs) go to every cell, one by one and 16 at once, streamed and not:
ids and logprobs must be equal to the bit everywhere.  On one cell: shapes of the messages, refusals, aborts, clients that leave,
and the accounts afterwards."""
import os
import random
import sys
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cell as cells  # noqa: E402
import load  # noqa: E402
import tensors  # noqa: E402

SHAPES = ["1+1", "2+2", "1+3", "3+1", "both1", "both2"]
LIMIT_S = 180


class Client:
    def __init__(self, pb, rpc, channel):
        self.pb, self.stub, self.n = pb, rpc.VllmEngineStub(channel), 0

    def request(self, ids, max_tokens, stream=True, request_id=None, **sampling):
        self.n += 1
        q = self.pb.GenerateRequest(request_id=request_id or f"t-{id(self)}-{self.n}-{random.random()}", stream=stream)
        q.tokenized.input_ids.extend(ids)
        q.sampling_params.max_tokens = max_tokens
        sampling.setdefault("temperature", 0.0)
        stop = sampling.pop("stop_token_ids", [])
        for key, value in sampling.items():
            setattr(q.sampling_params, key, value)
        q.sampling_params.stop_token_ids.extend(stop)
        return q

    def generate(self, q):
        """(ids, logprobs, complete, number of chunks)"""
        ids, logprobs, complete, chunks = [], [], None, 0
        for m in self.stub.Generate(q, timeout=LIMIT_S):
            if m.HasField("chunk"):
                assert complete is None, "a chunk after complete"
                chunks += 1
                ids += m.chunk.token_ids
                logprobs += m.chunk.output_logprobs.token_logprobs
            else:
                assert complete is None, "two completes"
                complete = m.complete
        assert complete is not None, "no complete"
        if not q.stream:
            assert chunks == 0, "chunks without stream"
            ids, logprobs = list(complete.output_ids), list(complete.output_logprobs.token_logprobs)
        else:
            assert list(complete.output_ids) in ([], ids), "complete holds other ids than the chunks"
        assert complete.prompt_tokens == len(q.tokenized.input_ids)
        assert complete.completion_tokens == len(ids)
        return ids, logprobs, complete, chunks


def request_set(source):
    """(name, prompt, max_tokens, sampling)"""
    golden = tensors.read(os.path.join(source, "tests/fixtures/demo/cases.safetensors"))
    rng, out = random.Random(5), []
    for name, prompt, n in (("chat", 12, 48), ("line", 17, 48), ("pages", 200, 32)):
        ids = [int(x) for x in golden[name + ".ids"][:prompt]]
        out.append((name, ids, n, dict(temperature=0.0, logprobs=1, ignore_eos=True)))
        out.append((name + "-warm", ids, n, dict(temperature=0.8, seed=41, logprobs=1, ignore_eos=True)))
    for i in range(10):
        ids = [0] + [rng.randrange(8, 2000) for _ in range(rng.choice([1, 5, 63, 64, 65, 130, 300]))]
        out.append((f"random{i}", ids, rng.randrange(1, 40), dict(temperature=rng.choice([0.0, 1.0]), seed=i, logprobs=1)))
    return out


def run_set(client, requests, parallel, stream):
    def one(ids, n, sampling):
        got = client.generate(client.request(ids, n, stream=stream, **sampling))
        return got[0], got[1], got[2].finish_reason
    return load.each(requests, parallel, one)


def same_everywhere(a, pb, rpc, requests):
    base = None
    for shape in SHAPES:
        with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), shape) as cell, cell.channel() as channel:
            client = Client(pb, rpc, channel)
            for parallel, stream in ((1, True), (16, True), (16, False)):
                got = run_set(client, requests, parallel, stream)
                base = base or got
                for name, want in base.items():
                    assert len(want[0]) == len(want[1]) > 0, f"{name}: {len(want[0])} ids, {len(want[1])} logprobs"
                    assert got[name] == want, f"{shape}, {parallel} at once, stream {stream}, {name}: {got[name]} is not {want}"
            assert_drained(client)
            code = cell.stop()
            assert code == 0, f"{shape}: exit code {code}\n{cell.log()}"
            cell.wait_nothing_left()
        print(f"{shape}: {len(requests)} requests equal alone, 16 at once, plain and streamed", flush=True)
    return base


def assert_drained(client, seconds=LIMIT_S):
    """Nothing runs, waits or holds tokens any more."""
    end = time.monotonic() + seconds
    while True:
        loads = client.stub.GetLoads(client.pb.GetLoadsRequest(), timeout=LIMIT_S).loads
        held = [(x.num_running_reqs, x.num_waiting_reqs, x.num_used_tokens) for x in loads]
        if held and all(h == (0, 0, 0) for h in held):
            return
        assert time.monotonic() < end, f"still held after {seconds} s: {held}"
        time.sleep(0.05)


def expect_refused(client, what, q, part, code=grpc.StatusCode.INVALID_ARGUMENT):
    try:
        client.generate(q)
    except grpc.RpcError as e:
        assert e.code() == code, f"{what}: {e.code()} {e.details()}"
        assert part in e.details(), f"{what}: \"{e.details()}\" does not name {part}"
        return
    raise AssertionError(f"{what} was not refused")


def refusals(client):
    ids = [0, 300, 301]
    r = client.request
    expect_refused(client, "empty prompt", r([], 4), "prompt")
    expect_refused(client, "an id outside the vocabulary", r([0, 2048], 4), "2048")
    expect_refused(client, "a prompt too long", r([5] * 8192, 4), "8192")
    expect_refused(client, "max_tokens past the context", r(ids, 8190), "8192")
    expect_refused(client, "max_tokens 0", r(ids, 0), "max_tokens")
    expect_refused(client, "a negative temperature", r(ids, 4, temperature=-1.0), "temperature")
    for field, value in (("top_p", 1.5), ("min_p", -0.1), ("n", 65), ("regex", "(a"), ("json_schema", "{"), ("logprobs", 21),
                         ("frequency_penalty", 3.0), ("presence_penalty", -3.0), ("repetition_penalty", -1.2), ("min_tokens", 5)):
        expect_refused(client, field, r(ids, 4, **{field: value}), field)
    stop = r(ids, 4)
    stop.sampling_params.stop.append("")
    expect_refused(client, "an empty stop string", stop, "stop")
    text = client.pb.GenerateRequest(request_id="text", text="hello", stream=True)
    expect_refused(client, "text", text, "text")
    nothing = client.pb.GenerateRequest(request_id="nothing", stream=True)
    expect_refused(client, "no input", nothing, "input")


def endings(client, base):
    """Stop tokens, lengths and aborts end as they should."""
    chat = base["chat"][0]
    prompt = client.chat_prompt
    ids, _, complete, _ = client.generate(client.request(prompt, 48, ignore_eos=True, stop_token_ids=[chat[5]]))
    assert ids == chat[:chat.index(chat[5]) + 1] and complete.finish_reason == "stop", (ids, complete.finish_reason)
    assert complete.matched_token_id == chat[5]
    ids, _, complete, _ = client.generate(client.request(prompt, 1))
    assert ids == chat[:1] and complete.finish_reason == "length"

    q = client.request(prompt, 8000, ignore_eos=True, request_id="to-abort")
    call = client.stub.Generate(q, timeout=LIMIT_S)
    next(call)
    expect_refused(client, "a live duplicate", client.request(prompt, 4, request_id="to-abort"), "to-abort",
                   grpc.StatusCode.ALREADY_EXISTS)
    client.stub.Abort(client.pb.AbortRequest(request_ids=["to-abort", "unknown"]), timeout=LIMIT_S)
    try:
        messages = list(call)
        assert messages[-1].complete.finish_reason == "abort"
    except grpc.RpcError as e:
        assert e.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED), e.code()
    client.generate(client.request(prompt, 4, request_id="to-abort"))  # an id is free again once it has ended

    for tokens_first in (0, 1, 3):  # clients that leave before the first token, and after some
        calls = [client.stub.Generate(client.request(prompt, 4000, ignore_eos=True), timeout=LIMIT_S) for _ in range(6)]
        for call in calls:
            for _ in range(tokens_first):
                next(call)
            call.cancel()
    assert_drained(client)
    expired = client.stub.Generate(client.request(prompt, 7000, ignore_eos=True), timeout=0.3)
    try:
        list(expired)
        raise AssertionError("a deadline of 0.3 s did not end 7000 tokens")
    except grpc.RpcError as e:
        assert e.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert_drained(client)


def one_cell(a, pb, rpc, requests, base):
    with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "2+2") as cell, cell.channel() as channel:
        client = Client(pb, rpc, channel)
        client.chat_prompt = requests[0][1]
        info = client.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=LIMIT_S)
        assert info.is_generation and info.vocab_size == 2048 and info.max_context_length == 8192 and list(info.eos_token_ids) == [1], info
        assert client.stub.HealthCheck(pb.HealthCheckRequest(), timeout=LIMIT_S).healthy
        for method in ("/vllm.grpc.engine.VllmEngine/Embed", "/sglang.grpc.scheduler.SglangScheduler/HealthCheck", "/no.such.Service/Call"):
            call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            try:
                call(b"", timeout=LIMIT_S)
                raise AssertionError(f"{method} answered")
            except grpc.RpcError as e:
                assert e.code() == grpc.StatusCode.UNIMPLEMENTED, f"{method}: {e.code()}"
        refusals(client)
        endings(client, base)
        again = run_set(client, requests, 16, True)
        assert again == base, "after refusals and aborts the answers differ"
        assert_drained(client)
        assert cell.stop() == 0, cell.log()
    print("2+2: message shapes, refusals, aborts and clients that leave", flush=True)


def main():
    ap = cells.arguments(__doc__)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    requests = request_set(a.source)
    base = same_everywhere(a, pb, rpc, requests)
    one_cell(a, pb, rpc, requests, base)
    return 0


sys.exit(main())
