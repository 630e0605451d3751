#!/usr/bin/env python3
"""Structured output over the public protocols: every reply that ends by itself is what it was asked to be.

    structured.py --bin DIR --source DIR [--shapes 1+1,both2] [--requests 6]

Schemas, expressions, grammars and lists of texts, at several temperatures, alone and twelve at once, on cells of several shapes, with drafts too:
replies are read by Python's own json and re and by jsonschema; they are equal to the bit everywhere.  Then what is refused, thoughts before a
constrained reply, min_tokens, and the options of `baton generate`."""
import json
import os
import re
import subprocess
import sys
import tempfile

import grpc
import jsonschema

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]}},
    "required": ["name", "age", "kind", "home"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}, "open": {"type": "boolean"}},
                        "required": ["city"]}}}
CALLS = {  # as gateways ask for tool calls that must come
    "type": "array", "minItems": 1, "maxItems": 2,
    "items": {"type": "object", "anyOf": [
        {"properties": {"name": {"type": "string", "enum": ["weather"]},
                        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"]}},
         "required": ["name", "parameters"]},
        {"properties": {"name": {"type": "string", "enum": ["add"]},
                        "parameters": {"type": "object", "properties": {"a": {"type": "number", "minimum": -1, "maximum": 1}}, "required": ["a"]}},
         "required": ["name", "parameters"]}]}}
SUM = 'root ::= term (" + " term){1,3} " = " [0-9]{1,4}\nterm ::= [1-9] [0-9]? | "(" root ")"\n'
CHOICES = ["yes", "no", "I cannot say", "naïve"]


def schema(s):
    def check(text):
        jsonschema.validate(json.loads(text), s)
    return dict(json_schema=json.dumps(s)), check


def regex(r):
    def check(text):
        assert re.fullmatch(r, text), f"{text!r} does not match {r}"
    return dict(regex=r), check


def is_sum(text):
    term, last = r"(?:[1-9][0-9]?|\((?:S)\))", r"[1-9][0-9]?"
    for _ in range(6):
        last = term.replace("S", last + r"(?: \+ " + last + r"){1,3} = [0-9]{1,4}")
    assert re.fullmatch(last + r"(?: \+ " + last + r"){1,3} = [0-9]{1,4}", text) or text.count("(") > 5, text


def kinds(pb):
    """(sampling fields, what a whole reply must pass) by name."""
    return {"person": schema(PERSON), "calls": schema(CALLS), "date": regex(r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
            "words": regex(r"[a-z]{1,8}( [a-zäöü]{1,8}){0,5}[.!?]"), "sum": (dict(grammar=SUM), is_sum),
            "choice": (dict(choice=pb.ChoiceConstraint(choices=CHOICES)), lambda text: CHOICES.index(text)),
            "object": (dict(json_object=True), lambda text: dict(json.loads(text)))}


class Client:
    def __init__(self, pb, rpc, channel, texts):
        self.pb, self.stub, self.texts = pb, rpc.VllmEngineStub(channel), texts

    def generate(self, ids, max_tokens=500, **sampling):
        """[(ids, logprobs, finish reason)] by choice."""
        q = self.pb.GenerateRequest(request_id=os.urandom(8).hex(), stream=False, tokenized=self.pb.TokenizedInput(input_ids=ids),
                                    sampling_params=self.pb.SamplingParams(max_tokens=max_tokens, logprobs=2, **sampling))
        got = [m.complete for m in self.stub.Generate(q, timeout=load.LIMIT_S)]
        return [(tuple(c.output_ids), tuple(c.output_logprobs.token_logprobs), c.finish_reason) for c in got]

    def text(self, ids):
        return b"".join(self.texts[i] for i in ids).decode()

    def reply(self, choice, eos):
        """The text without the end, and whether it is whole."""
        ids, _, finish = choice
        assert finish in ("stop", "length") and (finish == "stop") == (ids[-1] == eos), choice
        return self.text(ids[:-1]) if finish == "stop" else None


def prompts(client):
    ids = {t: i for i, t in client.texts.items()}
    return [[0] + [ids[b] for b in (b"T", b"h", b"e")], [0] + list(range(20, 90))]


def requests(client, n):
    return [(f"{name}/{i}", prompts(client)[i % 2], dict(asked, temperature=(0.0, 0.7, 1.0, 1.4)[i % 4], seed=1000 + i, n=1 + (i == 3)))
            for name, (asked, _) in kinds(client.pb).items() for i in range(n)]


def check(client, got, eos):
    """Every whole reply is what it should be; of each kind some are whole."""
    for name, (_, passes) in kinds(client.pb).items():
        whole = [t for key, choices in got.items() if key.startswith(name + "/") for t in (client.reply(c, eos) for c in choices) if t is not None]
        assert whole, f"no reply of {name} ended by itself"
        for text in whole:
            passes(text)
        print(f"    {name}: {len(whole)} whole, such as {max(whole, key=len)!r}"[:160], flush=True)


def expect_refused(client, why, **sampling):
    try:
        client.generate([0, 20], **sampling)
    except grpc.RpcError as e:
        assert e.code() == grpc.StatusCode.INVALID_ARGUMENT and why in e.details(), f"{e.code()} {e.details()!r}, expected {why!r}"
        return
    raise AssertionError(f"{sampling} was not refused")


def check_edges(client, eos):
    ids = {t: i for i, t in client.texts.items()}
    begin, end = ids[b"<think>"], ids[b"</think>"]
    date = r"\d\d:\d\d"
    free = client.generate([0, 30, 31], temperature=0.0, max_tokens=30)[0][0]
    # thoughts that the prompt has begun are free, and so are all tokens up to their end
    got = client.generate([0, 30, begin, 31], temperature=0.0, max_tokens=30, regex=date)[0]
    assert got[0] == client.generate([0, 30, begin, 31], temperature=0.0, max_tokens=30)[0][0], got
    at = -1
    while at < 1:  # some thoughts, and their end
        bias = 6.0 if at < 0 else bias + 1.0
        got = client.generate([0, 30, begin, 31], temperature=1.0, seed=3, max_tokens=100, regex=date, logit_bias={end: bias})[0]
        at = got[0].index(end) if end in got[0] else 0
        assert bias < 20, f"no thought ended: {got}"
    assert re.fullmatch(date, client.reply((got[0][at + 1:], None, got[2]), eos)), got
    # and where it has ended them, or the request says so, the reply is constrained at once
    for more in (dict(grammar_from_first_token=True), dict()):
        prompt = [0, 30, begin, 31] if more else [0, begin, 31, end]
        assert re.fullmatch(date, client.reply(client.generate(prompt, temperature=0.0, regex=date, **more)[0], eos))
    # a text that is whole ends, whatever min_tokens says; before that nothing ends it
    got = client.generate([0, 30], temperature=0.0, min_tokens=50, max_tokens=60, choice=client.pb.ChoiceConstraint(choices=["yes"]))[0]
    assert client.reply(got, eos) == "yes", got
    got = client.generate([0, 30], temperature=0.0, min_tokens=12, max_tokens=60, regex="[a-z]*")[0]
    assert len(got[0]) >= 12 and re.fullmatch("[a-z]*", client.text(i for i in got[0] if i != eos)), got
    # a stop token ends a reply only where it may end
    got = client.generate([0, 30], temperature=0.0, max_tokens=60, regex="(ab){3}", stop_token_ids=[ids[b"<think>"]])[0]
    assert client.text(got[0][:-1]) == "ababab" and got[0][-1] in (eos, begin), got
    # logprobs are of the raw logits
    one = client.generate([0, 30, 31], temperature=0.0, max_tokens=1)[0]
    got = client.generate([0, 30, 31], temperature=0.0, max_tokens=1, choice=client.pb.ChoiceConstraint(choices=[client.texts[free[0]].decode()]))[0]
    assert got[:2] == one[:2] or client.texts[got[0][0]] != client.texts[free[0]], (got, one)
    expect_refused(client, "json_schema", json_schema="{")
    expect_refused(client, "json_schema", json_schema='{"type":"string","not":{}}')
    expect_refused(client, "regex", regex="(a")
    expect_refused(client, "grammar", grammar="root ::= x")
    expect_refused(client, "left recursion", grammar='root ::= root "a" | "a"')
    expect_refused(client, "choice", choice=client.pb.ChoiceConstraint(choices=[]))
    expect_refused(client, "ignore_eos", regex="a", ignore_eos=True)
    expect_refused(client, "allowed", regex="a" * 300000)


def check_cli(a, cell, model):
    run = [os.path.join(a.bin, "baton-generate"), "--address", cell.address, "--model", model, "--prompt", "The", "--max-tokens", "500", "--quiet"]

    def say(*more):
        return subprocess.run(run + list(more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=load.LIMIT_S).stdout.decode()
    assert say("--choice", "red", "--choice", "green").strip() in ("red", "green")
    assert re.fullmatch(r"\d{4}", say("--regex", r"\d{4}").strip())
    jsonschema.validate(json.loads(say("--json-schema", json.dumps(PERSON))), PERSON)
    with tempfile.NamedTemporaryFile("w", suffix=".regex") as f:
        f.write("(up|down)!\n")
        f.flush()
        assert say("--regex", "@" + f.name) in ("up!\n", "down!\n", "up!", "down!")
    bad = subprocess.run(run + ["--regex", "a", "--json-object"], capture_output=True, timeout=load.LIMIT_S)
    assert bad.returncode == 64 and b"--json-schema" in bad.stderr, bad


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--shapes", default="1+1,2+1,both2")
    ap.add_argument("--requests", type=int, default=4)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    model, base = os.path.join(a.source, "models/demo"), None
    drafts = {"2+1": ["--speculate", "4"], "both2": ["--mtp", "2", "--speculate", "3"]}
    for shape in a.shapes.split(","):
        with cells.Cell(a.bin, model, shape, *drafts.get(shape, [])) as cell, cell.channel() as channel:
            client = Client(pb, rpc, channel, load.token_texts(model))
            eos = client.stub.GetModelInfo(pb.GetModelInfoRequest()).eos_token_ids[0]
            for parallel in (1, 12):
                got = load.each(requests(client, a.requests), parallel, lambda ids, asked: client.generate(ids, **asked))
                base = base or got
                assert got == base, f"{shape}, {parallel} at once: " + str(next(k for k in base if got[k] != base[k]))
            print(f"{shape}: {len(got)} requests, equal", flush=True)
            if shape == a.shapes.split(",")[0]:
                check(client, got, eos)
                check_edges(client, eos)
                check_cli(a, cell, model)
            assert cell.stop() == 0, cell.log()
    return 0


sys.exit(main())
