#!/usr/bin/env python3
"""What it costs to hold replies to constraints, beside a peer: a mask of the vocabulary before each token.

    bench_grammar.py --bin BUILD/bench/bench_grammar --model DIR [--peer PYTHON] [--rounds 3]

--peer: a Python with llguidance (`pip install llguidance`), which vLLM and SGLang offer too; it gets the same tokenizer, constraints and replies.
Prints a table: ms to read a constraint; us of a mask and a step, mean over the reply's tokens and the longest; for a reply that is the first to
come there, and for one that follows. Medians of the rounds, in turns."""
import argparse
import json
import os
import statistics
import subprocess
import sys

PERSON = {"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "email": {"type": "string", "pattern": "^[a-z.]+@[a-z.]+$"},
    "tags": {"type": "array", "items": {"type": "string"}}, "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]}},
    "required": ["name", "age"], "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}, "open": {"type": "boolean"}}, "required": ["city"],
                        "additionalProperties": False}}}
SAID = "The wind was up, and all along the shore the boats lay turned with their keels to the sky. "
REPLY = {"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "tags": ["poet", "engine", "first of them"], "home": {"city": "London", "open": True}}


def cases():
    counted = {"type": "object", "properties": {"said": {"type": "string", "maxLength": 1000}}, "required": ["said"], "additionalProperties": False}
    wide = {"type": "object", "properties": {f"field_{i}": {"type": ["string", "null"]} for i in range(60)}, "required": ["field_59"], "additionalProperties": False}
    nested = json.dumps([[{"k": [1, 2.5, "x"], "deep": {"er": {"still": None}}}] * 4] * 6)
    return [("person", "json_schema", json.dumps(PERSON), json.dumps(REPLY)),
            ("60 optional fields", "json_schema", json.dumps(wide), json.dumps({f"field_{i}": "word" if i % 2 else None for i in range(0, 60, 3)} | {"field_59": "end"})),
            ("any JSON", "json_schema", "{}", nested),
            ("string of at most 1,000", "json_schema", json.dumps(counted), json.dumps({"said": SAID * 9})),
            ("date", "regex", r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", "1953-07-20"),
            ("sentences", "regex", r"([A-Z][a-z]*( [a-z]+|, [a-z]+)*\. )+", SAID * 6)]


PEER = """
import json, sys, time, llguidance as g, numpy as np
from llguidance.numpy import fill_next_token_bitmask
tok = g.LLTokenizer(open(sys.argv[1]).read())
words = (tok.vocab_size + 31) // 32
for line in sys.stdin:
    c = json.loads(line)
    ids = tok.tokenize_str(c["reply"])
    t = time.perf_counter()
    text = g.LLMatcher.grammar_from_json_schema(c["text"]) if c["kind"] == "json_schema" else g.LLMatcher.grammar_from_regex(c["text"])
    m = g.LLMatcher(tok, text)
    assert not m.is_error(), m.get_error()
    read = (time.perf_counter() - t) * 1e3
    out, buf = [], np.zeros((1, words), dtype=np.int32)
    for again in range(2):
        us = []
        for i in ids:
            t = time.perf_counter()
            fill_next_token_bitmask(m, buf, 0)
            ok = m.consume_token(i)
            us.append((time.perf_counter() - t) * 1e6)
            assert ok, (c["name"], i)
        m.reset()
        out.append(us)
    print(json.dumps(dict(name=c["name"], tokens=len(ids), read_ms=read, first_us=sum(out[0]) / len(ids), first_max_us=max(out[0]),
                          again_us=sum(out[1]) / len(ids), again_max_us=max(out[1]))), flush=True)
"""


def run(command, lines):
    got = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert got.returncode == 0, got.stderr
    return {r["name"]: r for r in map(json.loads, got.stdout.splitlines())}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--peer")
    ap.add_argument("--rounds", type=int, default=3)
    a = ap.parse_args()
    lines = "".join(json.dumps(dict(name=n, kind=k, text=t, reply=r)) + "\n" for n, k, t, r in cases())
    commands = {"Baton": [a.bin, a.model]}
    if a.peer:
        commands["llguidance"] = [a.peer, "-c", PEER, os.path.join(a.model, "tokenizer.json")]
    rounds = {who: [] for who in commands}
    for _ in range(a.rounds):
        for who, command in commands.items():
            rounds[who].append(run(command, lines))
    print("| constraint | tokens | who | read, ms | first, us | longest | again, us | longest |\n|---|---|---|---|---|---|---|---|")
    for name, *_ in cases():
        for who in commands:
            v = {k: statistics.median(r[name][k] for r in rounds[who]) for k in ("tokens", "read_ms", "first_us", "first_max_us", "again_us", "again_max_us")}
            print(f"| {name} | {v['tokens']:.0f} | {who} | {v['read_ms']:.2f} | {v['first_us']:.0f} | {v['first_max_us']:.0f} | {v['again_us']:.1f} | {v['again_max_us']:.0f} |")
    return 0


sys.exit(main())
