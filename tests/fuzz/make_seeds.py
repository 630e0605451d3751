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


def tokenizer():
    for which, name in enumerate(["v3", "v2", "code"]):
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


def config():
    for path in MODELS:
        with open(path + "config.json", "rb") as f:
            write("config", path.split("/")[-2], f.read())


def page_message():
    header = struct.pack("<IIQIIIIIIQIIfIQQQQ", 0x67705442, 1, 7, 3, 0, 2, 0, 1, 4, 99, 1, 42, -0.5, 0, 16, 0, 0, 0)
    write("page_message", "small", header + bytes(range(16)))


for make in (safetensors, tokenizer, tokenizer_json, config, page_message):
    make()
