#!/usr/bin/env python3
"""Every sampling field over the public protocol, on cells of several shapes.

    sampling.py --bin DIR --source DIR [--shapes 1+1,both2]

The same requests (filters, penalties, bias, min_tokens, stop strings, choices, alternatives, each with two seeds) go to every cell, one by
one (those of the second seed to the first cell only) and 12 at once: ids, logprobs and alternatives must be equal to the bit everywhere.
Then what each field promises is read off the answers themselves."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cell as cells  # noqa: E402
import load  # noqa: E402
import tensors  # noqa: E402

LIMIT_S = 180


def fields(seed):
    """Sampling parameters by name of the case."""
    warm = dict(temperature=0.9, seed=seed)
    return {
        "greedy": dict(temperature=0.0),
        "plain": warm,
        "top_k": dict(warm, top_k=7),
        "top_p": dict(warm, top_p=0.8),
        "min_p": dict(warm, min_p=0.1),
        "all filters": dict(temperature=1.5, seed=seed, top_k=40, top_p=0.9, min_p=0.02),
        "repetition": dict(temperature=0.0, repetition_penalty=1.4),
        "frequency": dict(temperature=0.0, frequency_penalty=1.5),
        "presence": dict(warm, presence_penalty=1.7),
        "all penalties": dict(warm, presence_penalty=-0.5, frequency_penalty=0.3, repetition_penalty=1.1, top_p=0.95),
        "bias": dict(warm, logit_bias={300: 4.0, 301: -100.0}),
        "min_tokens": dict(temperature=1.0, seed=seed, min_tokens=20, ignore_eos=False),
        "choices": dict(warm, n=3),
        "greedy choices": dict(temperature=0.0, n=2, frequency_penalty=0.5),
    }


def prompts(source):
    golden = tensors.read(os.path.join(source, "tests/fixtures/demo/cases.safetensors"))
    return {name: [int(x) for x in golden[name + ".ids"][:n]] for name, n in (("chat", 12), ("pages", 130))}


class Client:
    def __init__(self, pb, rpc, channel):
        self.pb, self.stub = pb, rpc.VllmEngineStub(channel)

    def generate(self, ids, max_tokens=32, stream=True, **sampling):
        """{index: (ids, logprobs, alternatives, finish_reason, matched)}"""
        sampling.setdefault("ignore_eos", True)
        sampling.setdefault("logprobs", 3)
        q = self.pb.GenerateRequest(request_id=f"s-{random.getrandbits(64):x}", stream=stream,
                                    tokenized=self.pb.TokenizedInput(input_ids=ids),
                                    sampling_params=self.pb.SamplingParams(max_tokens=max_tokens, **sampling))
        parts, out = {}, {}
        for m in self.stub.Generate(q, timeout=LIMIT_S):
            c = m.chunk if m.HasField("chunk") else m.complete
            lp = c.output_logprobs
            if m.HasField("chunk") or not stream:
                got = parts.setdefault(c.index, ([], [], []))
                got[0].extend(c.token_ids if m.HasField("chunk") else c.output_ids)
                got[1].extend(lp.token_logprobs)
                got[2].extend((tuple(t.token_ids), tuple(t.values)) for t in lp.top_logprobs)
            if m.HasField("complete"):
                which = c.WhichOneof("matched_stop")
                assert (stream or c.index == len(out)) and c.completion_tokens == len(parts[c.index][0])
                out[c.index] = (*parts[c.index], c.finish_reason, getattr(c, which) if which else None)
        assert len(out) == max(1, sampling.get("n", 1)), f"{len(out)} completes"
        return out


def run_all(client, cases, parallel, stream):
    return load.each(cases, parallel, lambda ids, sampling: client.generate(ids, stream=stream, **sampling))


def check_promises(client, source, base):
    prompt = prompts(source)["chat"]
    for name, choices in base.items():
        for ids, logprobs, tops, _, _ in choices.values():
            assert len(ids) == len(logprobs) == len(tops), name
            for token, value, (top_ids, values) in zip(ids, logprobs, tops):
                assert len(top_ids) == 3 and list(values) == sorted(values, reverse=True), (name, top_ids, values)
                assert token not in top_ids or values[top_ids.index(token)] == value, name
                assert token in top_ids or value <= values[-1], name
    for kind in ("chat", "pages"):
        greedy = base[f"{kind}/greedy/0"][0]
        assert all(t == top_ids[0] for t, (top_ids, _) in zip(greedy[0], greedy[2])), "greedy takes the highest"
        for i in range(2):
            assert greedy == base[f"{kind}/greedy/{i}"][0], "a seed changes nothing at temperature 0"
            three = base[f"{kind}/choices/{i}"]
            assert three[0] == base[f"{kind}/plain/{i}"][0], "choice 0 is the request without n"
            assert len({tuple(three[k][0]) for k in range(3)}) == 3, "choices draw on their own"
            assert 301 not in base[f"{kind}/bias/{i}"][0][0]
            assert len(base[f"{kind}/min_tokens/{i}"][0][0]) >= 20
        same = base[f"{kind}/greedy choices/0"]
        assert same[0] == same[1], "choices at temperature 0 are equal"
    one = client.generate(prompt, temperature=1.2, seed=1, top_k=1)
    assert one[0][0] == base["chat/greedy/0"][0][0], "top_k 1 is greedy"
    forced = client.generate(prompt, temperature=0.0, logit_bias={77: 1000.0}, max_tokens=5)[0]
    assert forced[0] == [77] * 5, forced
    assert forced[1] != [0.0] * 5, "logprobs are of the raw logits"
    ids = client.generate(prompt, temperature=0.0, frequency_penalty=2.0, presence_penalty=2.0, max_tokens=64)[0][0]
    plain = client.generate(prompt, temperature=0.0, max_tokens=64)[0][0]
    assert len(set(ids)) > len(set(plain)), (len(set(ids)), len(set(plain)))
    eos = client.stub.GetModelInfo(client.pb.GetModelInfoRequest()).eos_token_ids[0]
    ended = client.generate(prompt, temperature=0.0, logit_bias={eos: 1000.0}, min_tokens=4, ignore_eos=False)[0]
    assert len(ended[0]) == 5 and ended[0][4] == eos and eos not in ended[0][:4] and ended[3] == "stop", ended
    stopped = client.generate(prompt, temperature=0.0, stop_token_ids=[plain[6]])[0]
    at = plain.index(plain[6])
    assert (stopped[0], stopped[3], stopped[4]) == (plain[:at + 1], "stop", plain[6]), stopped


def input_logprobs(client, ids, stream, **sampling):
    """(values, alternatives) of the prompt's tokens; they come once, in the first message."""
    q = client.pb.GenerateRequest(request_id=f"p-{random.getrandbits(64):x}", stream=stream,
                                  tokenized=client.pb.TokenizedInput(input_ids=ids),
                                  sampling_params=client.pb.SamplingParams(max_tokens=3, temperature=0.0, logprobs=4, **sampling))
    got = []
    for i, m in enumerate(client.stub.Generate(q, timeout=LIMIT_S)):
        c = m.chunk if m.HasField("chunk") else m.complete
        if c.HasField("input_logprobs"):
            assert i == 0 and c.index == 0, "input_logprobs belong into the first message"
            p = c.input_logprobs
            assert list(p.token_ids) == ids and not p.token_logprobs[0].HasField("value")
            got.append(([t.value for t in p.token_logprobs[1:]], [(tuple(t.token_ids), tuple(t.values)) for t in p.top_logprobs[1:]]))
    assert len(got) == 1, f"{len(got)} input_logprobs"
    return got[0]


def check_prompt_logprobs(client, source):
    """Equal over repetitions, though the prompt is in the caches by then; and the alternatives are those of the same rows."""
    base = {}
    for name, ids in prompts(source).items():
        base[name] = input_logprobs(client, ids, True, prompt_logprobs=4)
        for stream, n in ((False, 1), (True, 2)):
            assert input_logprobs(client, ids, stream, n=n, prompt_logprobs=4) == base[name], name
        assert input_logprobs(client, ids, True, prompt_logprobs=0) == (base[name][0], []), name
        values, tops = base[name]
        for token, value, (top_ids, top_values) in zip(ids[1:], values, tops):
            assert len(top_ids) == 4 and list(top_values) == sorted(top_values, reverse=True)
            assert value == top_values[top_ids.index(token)] if token in top_ids else value <= top_values[-1]
        for cut in (3, len(ids) - 1):  # what follows a shorter prompt is chosen from the same row
            after = client.generate(ids[:cut], temperature=0.0, logprobs=4, max_tokens=1)[0]
            assert after[2][0] == tops[cut - 1], (name, cut, after[2][0], tops[cut - 1])
    return base


def check_stop_strings(client, a, model):
    """Against the text that baton itself decodes."""
    vocab = load.token_texts(model)  # special ones are not skipped: skip_special_tokens is not set
    prompt = prompts(a.source)["chat"]
    plain = client.generate(prompt, temperature=0.0, max_tokens=48)[0][0]
    words = [vocab[i] for i in plain]
    text = b"".join(words)
    at = next(k for k in range(6, 40) if all(w.isascii() and len(w) > 1 for w in words[k:k + 3]))
    stop = (words[at][1:] + words[at + 1] + words[at + 2][:1])  # begins and ends within tokens
    end, n = text.index(stop) + len(stop), 0
    while len(b"".join(words[:n])) < end:
        n += 1
    stop = stop.decode()
    for stream in (False, True):
        got = client.generate(prompt, stream=stream, temperature=0.0, max_tokens=48, stop=["never so", stop])[0]
        assert (got[0], got[3], got[4]) == (plain[:n], "stop", stop), (got, plain[:n], stop)
    got = client.generate(prompt, temperature=0.0, max_tokens=48, stop=["never so"])[0]
    assert (got[0], got[3], got[4]) == (plain, "length", None)


def main():
    parser = cells.arguments(__doc__)
    parser.add_argument("--shapes", default="1+1,2+2,1+3,both2")
    a = parser.parse_args()
    pb, rpc = cells.stubs(a.source)
    model = os.path.join(a.source, "models/demo")
    cases = [(f"{name}/{case}/{i}", ids, sampling) for name, ids in prompts(a.source).items() for i in range(2)
             for case, sampling in fields(100 + i).items()]
    base = prompt_base = None
    for shape in a.shapes.split(","):
        with cells.Cell(a.bin, model, shape) as cell, cell.channel() as channel:
            client = Client(pb, rpc, channel)
            for parallel, stream in ((1, True), (12, True), (12, False)):
                got = run_all(client, [c for c in cases if base is None or parallel > 1 or c[0].endswith("/0")], parallel, stream)
                base = base or got
                for name, choices in got.items():
                    assert choices == base[name], f"{shape}, {parallel} at once, stream {stream}, {name}: {choices} is not {base[name]}"
            check_promises(client, a.source, base)
            check_stop_strings(client, a, model)
            inputs = check_prompt_logprobs(client, a.source)
            prompt_base = prompt_base or inputs
            assert inputs == prompt_base, f"{shape}: logprobs of the prompt differ"
            assert cell.stop() == 0, cell.log()
        print(f"{shape}: {len(cases)} requests equal alone, 12 at once, plain and streamed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
