"""Seeds for the fuzz targets, from the models and fixtures:  make_seeds.py SOURCE_DIR SEEDS_DIR"""
import glob
import json
import os
import struct
import sys

source, seeds = sys.argv[1:]
MODELS = sorted(glob.glob(source + "/tests/models/*/")) + [source + "/models/demo/"]


def write(target, name, data):
    os.makedirs(f"{seeds}/{target}", exist_ok=True)
    with open(f"{seeds}/{target}/{name}", "wb") as f:
        f.write(data)


def safetensors():
    for path in sorted(glob.glob(source + "/tests/models/*/*.safetensors")):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        header = dict(list(header.items())[:12])  # small inputs fuzz faster; the offsets are made to fit
        at = 0
        for name, t in header.items():
            if name != "__metadata__":
                n = t["data_offsets"][1] - t["data_offsets"][0]
                t["data_offsets"] = [at, at + n]
                at += n
        stem = path.split("/")[-2] + "-" + path.split("/")[-1]
        write("safetensors", stem, struct.pack("<I", at) + json.dumps(header).encode())
    at, header = 0, {}  # all experts of a layer in one tensor, behind a prefix that goes
    for name, shape in [("gate_up_proj", [2, 4, 3]), ("down_proj", [2, 3, 2]), ("down_proj_scale_inv", [2, 1, 1])]:
        n = 2 * shape[0] * shape[1] * shape[2]
        header[f"model.language_model.layers.1.mlp.experts.{name}"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    write("safetensors", "stacked", struct.pack("<I", at) + json.dumps(header).encode())


def gguf():
    """A file for each type of tensor, two blocks of it, and keys of each kind."""
    def text(s):
        return struct.pack("<Q", len(s)) + s

    keys = [(b"u", 4, struct.pack("<I", 5)), (b"f", 6, struct.pack("<f", 0.5)), (b"b", 7, b"\1"), (b"s", 8, text(b"abc")),
            (b"texts", 9, struct.pack("<IQ", 8, 2) + text(b"a") + text(b"bc")), (b"numbers", 9, struct.pack("<IQ3I", 4, 3, 1, 2, 3))]
    blocks = {0: (1, 4), 1: (1, 2), 30: (1, 2), 8: (32, 34), 2: (32, 18), 6: (32, 22), 7: (32, 24), 10: (256, 84), 11: (256, 110), 12: (256, 144),
              13: (256, 176), 14: (256, 210), 20: (32, 18), 39: (32, 17)}
    for kind, (weights, size) in blocks.items():
        head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(text(name) + struct.pack("<I", k) + v for name, k, v in keys)
        head += text(b"t") + struct.pack("<IQQIQ", 2, weights, 2, kind, 0)
        write("gguf", f"type-{kind}", head + bytes(-len(head) % 32) + bytes(i & 255 for i in range(2 * size)))


def tokenizer():
    for which, name in enumerate(["v3", "v2", "code", "tiktoken", "tekken"]):
        with open(f"{source}/tests/fixtures/tokenizer-{name}.jsonl") as f:
            cases = [json.loads(line) for line in f]
        for i, case in enumerate(cases[:150]):
            write("tokenizer", f"{name}-{i}", bytes([which]) + case["text"].encode())
            ids = b"".join(struct.pack("<H", t) for t in case["ids"])
            write("tokenizer", f"{name}-{i}-ids", bytes([0x80 | which]) + ids)


def byte_level():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {chr(b) if b in own else chr(0x100 + others.index(b)): b for b in range(256)}


def tokenizer_json():
    for name, path in [("v3", "models/demo"), ("v2", "tests/models/v2-lite")]:
        with open(f"{source}/{path}/tokenizer.json") as f:
            tok = json.load(f)
        vocab = byte_level()
        for i, text in enumerate(["\u0120t", "he", "the", "12"]):
            vocab[text] = 256 + i
        tok["model"]["vocab"] = vocab
        for kind, merges in [("pairs", [["h", "e"], ["t", "he"]]), ("strings", ["\u0120 t", "1 2"])]:
            tok["model"]["merges"] = merges
            tok["model"]["ignore_merges"] = kind == "pairs"
            tok["added_tokens"] = [dict(a, id=300 + i) for i, a in enumerate(tok["added_tokens"][:4])]
            tok.pop("post_processor", None)
            write("tokenizer_json", f"{name}-{kind}", json.dumps(tok, ensure_ascii=False).encode())


def tiktoken():
    """Bytes alone, and the fixture's first tokens."""
    with open(f"{source}/tests/fixtures/tiktoken/tiktoken.model", "rb") as f:
        lines = f.readlines()
    for n in (256, 258, 300, 500):
        write("tiktoken", str(n), b"".join(lines[:n]))
    with open(f"{source}/tests/fixtures/tekken/tekken.json") as f:
        tok = json.load(f)
    vocab, special = tok["vocab"], tok["special_tokens"]
    for n, n_special in ((256, 3), (300, 8), (300, None)):
        tok["vocab"] = [{k: t[k] for k in ("rank", "token_bytes")} for t in vocab[:n]]
        tok["special_tokens"] = special[:n_special] if n_special else None
        tok["config"].update(default_num_special_tokens=n_special or 20, default_vocab_size=(n_special or 20) + n, version="v3")
        write("tiktoken", f"tekken-{n}-{n_special}", json.dumps(tok, separators=(",", ":")).encode())


def tokenizer_config():
    """Of the fixture, its added tokens behind 256 others."""
    with open(f"{source}/tests/fixtures/tiktoken/tokenizer_config.json") as f:
        config = json.load(f)
    added = config["added_tokens_decoder"]
    config["added_tokens_decoder"] = {str(256 + i): token for i, token in enumerate(list(added.values())[:6])}
    config["chat_template"] = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    short = {"tokenizer_class": config["tokenizer_class"], "bos_token": {"content": "<|reserved_token_256|>"}, "add_bos_token": True,
             "chat_template": [{"name": "other", "template": ""}, {"name": "default", "template": "{{ bos_token }}"}]}
    for name, one in [("fixture", config), ("short", short)]:
        write("tokenizer_config", name, json.dumps(one, ensure_ascii=False).encode())


def chat():
    with open(source + "/tests/fixtures/chat.jsonl") as f:
        for i, line in enumerate(f):
            write("chat", str(i), json.loads(line)["template"].encode())


def config():
    for path in MODELS:
        name = "config.json" if os.path.exists(path + "config.json") else "params.json"
        with open(path + name, "rb") as f:
            write("config", path.split("/")[-2], f.read())


def page_message():
    """parallel/page_message.c: two rows of four elements, and where they are the last ones a tail."""
    for name, last, tail in [("rows", 0, 0), ("last", 1, 4)]:
        header = struct.pack("<IIQIIIIIIQIIQQIIQQ", 0x67705442, 3, 7, 3, 0, 2, 0, 1, 4, 99, last, tail, 0, 16 + tail, last, 0, 0, 0)
        write("page_message", name, header + bytes(range(16 + tail)))


def varint(v):
    out = b""
    while v > 127:
        out, v = out + bytes([v & 127 | 128]), v >> 7
    return out + bytes([v])


def pb(*fields):
    """A protobuf message of (number, value): int, float, bytes or str, or a list of int (packed)."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value & (1 << 64) - 1)
        elif isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        else:
            body = b"".join(map(varint, value)) if isinstance(value, list) else value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(body)) + body
    return out


def intake():
    """proto/vllm_engine.proto, GenerateRequest"""
    ids = pb((1, "To be"), (2, [5, 7, 99, 1]))
    plain = [(1, 0.5), (2, 0.9), (3, 40), (4, 0.1), (5, 0.5), (6, -0.5), (7, 1.1), (8, 16), (9, 2), (14, 1), (22, 2), (24, 7)]
    for name, params in {"greedy": [(1, 0.0), (8, 4)], "all": plain, "stops": [(8, 8), (10, "ab"), (10, "\n\n"), (11, [3, 4]), (25, 1)],
                         "bias": [(8, 4), (26, pb((1, 5), (2, -1.5))), (26, pb((1, 6), (2, 2.5)))], "choices": [(8, 4), (15, 3)],
                         "prompt": [(8, 1), (23, 3)], "regex": [(8, 4), (17, "a*")]}.items():
        write("intake", name, pb((1, "r1"), (2, ids), (4, pb(*params)), (5, 1)))
    write("intake", "text", pb((1, "r2"), (3, "hello")))
    write("intake", "kv", pb((1, "r3"), (2, ids), (6, pb((1, "host"), (2, 80))), (9, 0)))


def intake_sglang():
    """proto/sglang_scheduler.proto, GenerateRequest"""
    ids = pb((1, "To be"), (2, [5, 7, 99, 1]))
    plain = [(1, 0.5), (2, 0.9), (3, 40), (4, 0.1), (5, 0.5), (6, -0.5), (7, 1.1), (8, 16), (18, 2), (19, 1), (21, 1)]
    for name, params, more in [("greedy", [(8, 4)], []), ("all", plain, [(5, 1), (6, -1), (7, 2), (17, 1)]),
                               ("stops", [(8, 8), (9, "ab"), (9, "\n\n"), (10, [3, 4]), (20, 1)], []), ("choices", [(8, 4), (17, 3)], []),
                               ("bias", [(8, 4), (22, pb((1, "5"), (2, -1.5))), (22, pb((1, "six"), (2, 2.5)))], []),
                               ("prompt", [(8, 1)], [(5, 1), (6, 2), (7, 3)]), ("regex", [(8, 4), (13, "a*")], []),
                               ("pd", [(8, 4)], [(10, pb((1, "host"), (2, 8998), (3, 7))), (16, 2)])]:
        write("intake", f"sglang-{name}", pb((1, "r1"), (2, ids), (4, pb(*params)), *more))


def control():
    """proto/control.proto, FromWorker and ToWorker"""
    sampling = pb((1, 0.5), (2, 9), (3, 8), (5, [3, 4]), (6, 1), (7, 2), (8, 0.9), (15, [4, 5]), (16, struct.pack("<2f", 1, -1)))
    token = [(1, 9), (3, 12), (4, 2), (5, 31999), (6, -0.25), (8, [3, 4]), (9, struct.pack("<2f", -1, -2)), (15, 64)]
    page = pb((1, 3), (2, 101))
    form_map = bytes(64)
    hello = pb((1, 1), (2, 1), (3, 4), (4, 2), (5, 2), (6, "host"), (7, 17), (8, 77), (9, "dp2"), (10, 64), (11, 64), (12, 4096), (13, 256),
               (15, 32000), (16, 4096), (17, [1, 2]), (20, "deepseek_v3"), (22, "{}"))
    seats = pb((1, 7), (2, pb((1, 5), (2, [0, 1]))), (3, pb((1, 7), (2, [4294967295, 2]))), (5, [3]))
    back = hello + pb((27, 5), (28, 3 << 32 | 5), (29, 9), (30, seats))
    write("control", "up-1-back", pb((1, back)))
    up = {1: hello, 2: pb((1, 5), (2, 10)), 3: b"", 4: pb((1, 5), (2, 1), (5, 3), (13, [0] * 13), (14, [1] * 16)),
          5: pb((1, 9), (2, 2), (3, page), (3, page), (5, 64)), 6: pb((1, pb(*token)), (1, pb(*token[:5], (7, 3)))),
          7: pb((1, 9), (2, 2), (3, 13), (4, "why")), 8: pb((1, 9), (2, 2)), 9: pb((1, 4)),
          10: pb((1, 9), (4, 1), (5, bytes(8)), (6, bytes(8))), 11: pb((1, 1), (2, "bye")), 12: pb((1, 9), (2, 2)),
          13: pb((1, 9), (2, 2), (3, 1), (4, struct.pack("<2f", -1, -2)), (5, [1, 2]), (6, struct.pack("<2f", -1, -2))),
          14: pb((1, 5), (2, [3, 1]), (3, "step"), (4, 7)), 15: b"", 16: pb((1, 9), (2, 2), (3, form_map)), 17: pb((1, [4, 0, 5])),
          18: pb((1, 99), (2, [1, 2, 3, 4] * 2))}
    write("control", "up-5-refused", pb((5, pb((1, 9), (2, 2), (4, 1), (6, form_map)))))
    for number, body in up.items():
        write("control", f"up-{number}", pb((number, body)))
    down = {1: pb((1, 3)), 2: pb((1, 9), (2, 2), (3, 4), (4, sampling), (5, 1), (9, [1, 2, 3, 4]), (20, bytes(16)), (21, 5), (22, [7])),
            3: pb((1, 9), (2, 2), (3, [1, 2, 3, 4]), (4, sampling), (5, 2), (6, page), (20, bytes(16))), 4: pb((1, 9), (2, 2)), 5: pb((1, 4)),
            6: pb((1, "bye")), 7: seats}
    write("control", "down-2-again", pb((2, pb((1, 9), (2, 2), (3, 2), (4, sampling), (9, [1, 2]), (25, form_map), (26, 5), (23, [0, 2]),
                                               (22, [7, 8, 9]), (24, [1, 2])))))
    write("control", "down-3-eval", pb((3, pb((1, 9), (2, 2), (3, [1, 2]), (4, sampling), (6, page), (7, 1), (8, bytes(8)), (23, [1]), (26, 5)))))
    for number, body in down.items():
        write("control", f"down-{number}", pb((number, body)))


def http():
    for i, path in enumerate(["/", "/status.json", "/metrics", "/health", "/ready", "/nothing?a=%41&b"]):
        write("http", f"get-{i}", bytes([8 * i]) + f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    write("http", "head", b"\x04HEAD /metrics HTTP/1.0\r\n\r\n")
    write("http", "two", b"\xffGET /ready HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    write("http", "post", b"\x40POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
    write("http", "chunked", b"\x40PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    write("http", "range", b"\x10GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-5\r\nAccept-Encoding: gzip\r\nCookie: a=b; c\r\nExpect: 100-continue\r\n\r\n")


def grammar():
    regexes = [r"^(\d{1,3}\.){3}\d{1,3}$", r"(?:a|[^b-d]+?)*x{2,}", r"(?P<n>\S\w[\]\-])|\u{1F600}\x41$", "a?b*|^c", r"[\s\D].\cA\0", r"^(?=.*\d)(?!.*--)[a-z\d-]{2,5}$|-"]
    ebnf = ['root ::= "a" b{2,3} | [^a-c\\n]* .\nb ::= ("x" | "")+ # c\n', 'root ::= "(" root ")" | "\\x41"?\n', 'root ::= i ("," i)*\n\ni ::= [0-9]{1,}']
    schemas = ['{"type":"object","properties":{"a":{"type":["integer","null"],"minimum":-1.5,"exclusiveMaximum":99},"b":{"$ref":"#/$defs/x~1"}},'
               '"required":["b"],"additionalProperties":{"enum":[1.5,"x",[{"k":null}]]},"$defs":{"x/":{"type":"string","format":"date"}}}',
               '{"type":"array","prefixItems":[{"const":1}],"items":{"anyOf":[{"$ref":"#"},{"minLength":1,"maxLength":3}]},"minItems":1}',
               '{"patternProperties":{"^a|b$":{"propertyNames":{"enum":["x","y"],"const":"x"},"additionalProperties":{"propertyNames":{"maxLength":3}}}}}',
               '{"items":{"anyOf":[{"enum":["a",1,1.0]},{"type":["null","boolean"]},{"$ref":"#/$defs/x"}]},"uniqueItems":true,"$defs":{"x":{"const":2}}}',
               '{"type":"object","properties":{"k":{"enum":["a","b"]}},"required":["k"],"dependencies":{"k":["x"],"x":{"not":{"const":1}}},'
               '"allOf":[{"if":{"properties":{"k":{"const":"a"}}},"then":{"required":["y"]},"else":{"not":{"oneOf":[{"required":["z"]},{"maxProperties":2}]}}}]}',
               '{"properties":{"ab":{"minimum":1}},"patternProperties":{"^a":{"type":"integer"},"b|c$":{}},"additionalProperties":{"const":"x"}}',
               '{"anyOf":[{"not":{"pattern":"^a|b$"},"type":"string"},{"if":{"type":"null"},"then":false,"else":{"not":{"enum":[1,"x"]}}}]}',
               '{"allOf":[{"properties":{"a":{"minimum":1}}},{"properties":{"a":{"type":"number","maximum":2e3}}}],"required":["a"]}']
    choices = ['["yes","no","\\u00e9"]']
    tags = ['{"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<a","<ab"],"tags":[{"begin":"<abc>",'
            '"content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":["</a>","</b>"]}],"at_least_one":true}}',
            '{"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"any_text","excludes":["aab"]},{"type":"or",'
            '"elements":[{"type":"regex","pattern":"1?"},{"type":"const_string","value":"x"}]}]}}']
    for kind, texts in enumerate([regexes, regexes, regexes, ebnf, schemas, choices, tags]):
        for i, text in enumerate(texts):
            read, rest = text.encode(), b"10.0.0.1 aabb(A),1"
            while True:  # until the byte says the constraint's length as fuzz_grammar.c reads it
                n = len(read) + len(rest)
                part = 255 * len(read) // n
                if (n * part + 254) // 255 == len(read):
                    break
                rest += b"1"
            write("grammar", f"{kind}-{i}", bytes([kind, part]) + read + rest)


for make in (safetensors, gguf, tokenizer, tokenizer_json, tiktoken, tokenizer_config, chat, config, page_message, intake, intake_sglang, control, http, grammar):
    make()
