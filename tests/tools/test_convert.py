"""baton convert: checkpoints of this tree as GGUF files, come back bit for bit and compute the same; every type of tensor against the decoders
of tests/support/gguf_files.py; and files that are not what they say.

    test_convert.py BIN_DIR SOURCE_DIR"""
import array
import base64
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from gguf_files import ARRAY, BF16, BOOL, F16, F32, F32_KEY, I32, STRING, TYPES, U8, U16, U32, U64, Gguf, decode, random_blocks, text  # noqa: E402

BIN, SOURCE = sys.argv[1], sys.argv[2]
A = "deepseek2."


# ---- checkpoints of Hugging Face as GGUF


def read_checkpoint(folder):
    """{name: (dtype, shape, bytes)} of all safetensors files."""
    out = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as f:
                n = struct.unpack("<Q", f.read(8))[0]
                header, data = json.loads(f.read(n)), f.read()
            header.pop("__metadata__", None)
            assert not set(header) & set(out), f"{folder}: a tensor stands in two files"
            out.update({t: (i["dtype"], i["shape"], data[slice(*i["data_offsets"])]) for t, i in header.items()})
    return out


def widen(raw):
    return b"".join(bytes(2) + raw[i:i + 2] for i in range(0, len(raw), 2))


def keys_of(c, legacy=False):
    s = c["rope_scaling"]
    dn, dr, dv, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    keys = {"general.architecture": (STRING, "deepseek2"), "general.name": (STRING, "a test"), A + "block_count": (U32, c["num_hidden_layers"]),
            A + "context_length": (U32, c["max_position_embeddings"]), A + "embedding_length": (U32, c["hidden_size"]),
            A + "feed_forward_length": (U32, c["intermediate_size"]), A + "attention.head_count": (U32, c["num_attention_heads"]),
            A + "attention.head_count_kv": (U32, c["num_attention_heads"] if legacy else 1),
            A + "attention.layer_norm_rms_epsilon": (F32_KEY, c["rms_norm_eps"]), A + "rope.freq_base": (F32_KEY, c["rope_theta"]),
            A + "rope.dimension_count": (U32, dr), A + "attention.kv_lora_rank": (U32, rank),
            A + "attention.key_length": (U32, dn + dr if legacy else rank + dr), A + "attention.value_length": (U32, dv if legacy else rank),
            A + "leading_dense_block_count": (U32, c["first_k_dense_replace"]), A + "expert_count": (U32, c["n_routed_experts"]),
            A + "expert_used_count": (U32, c["num_experts_per_tok"]), A + "expert_shared_count": (U64, c["n_shared_experts"]),
            A + "expert_feed_forward_length": (U32, c["moe_intermediate_size"]), A + "expert_weights_scale": (F32_KEY, c["routed_scaling_factor"]),
            A + "expert_weights_norm": (BOOL, c["norm_topk_prob"]), A + "expert_gating_func": (U32, 2 if c["scoring_func"] == "sigmoid" else 1),
            A + "expert_group_count": (U32, c["n_group"]), A + "expert_group_used_count": (U32, c["topk_group"]),
            "tokenizer.ggml.bos_token_id": (U32, c["bos_token_id"]), "tokenizer.ggml.eos_token_id": (U32, c["eos_token_id"])}
    if not legacy:
        keys.update({A + "attention.key_length_mla": (U32, dn + dr), A + "attention.value_length_mla": (U32, dv)})
    if c["q_lora_rank"]:
        keys[A + "attention.q_lora_rank"] = (U32, c["q_lora_rank"])
    if s is not None:
        keys.update({A + "rope.scaling.type": (STRING, "yarn"), A + "rope.scaling.factor": (F32_KEY, s["factor"]),
                     A + "rope.scaling.original_context_length": (U32, s["original_max_position_embeddings"]),
                     A + "rope.scaling.yarn_beta_fast": (F32_KEY, s["beta_fast"]), A + "rope.scaling.yarn_beta_slow": (F32_KEY, s["beta_slow"]),
                     A + "rope.scaling.yarn_log_multiplier": (F32_KEY, 0.1 * s["mscale_all_dim"])})
    return keys


MATRICES = {"self_attn.q_proj": "attn_q", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.o_proj": "attn_output",
            "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
            "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
            "mlp.shared_experts.down_proj": "ffn_down_shexp"}
FLOATS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_a_layernorm": "attn_q_a_norm",
          "self_attn.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate": "ffn_gate_inp"}


def tensors_of(c, t, legacy=False, fused=False):
    out = {}

    def matrix(name, source):
        out[name] = (t[source][1][::-1], BF16, t[source][2])

    def floats(name, source):
        out[name] = (t[source][1][::-1], F32, widen(t[source][2]))

    matrix("token_embd.weight", "model.embed_tokens.weight")
    matrix("output.weight", "lm_head.weight")
    floats("output_norm.weight", "model.norm.weight")
    n, dn, dv, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    for layer in range(c["num_hidden_layers"]):
        at, to = f"model.layers.{layer}.", f"blk.{layer}."
        for table, put in ((MATRICES, matrix), (FLOATS, floats)):
            for source, name in table.items():
                if f"{at}{source}.weight" in t:
                    put(f"{to}{name}.weight", f"{at}{source}.weight")
        if legacy:
            matrix(to + "attn_kv_b.weight", at + "self_attn.kv_b_proj.weight")
        both = array.array("H", t[at + "self_attn.kv_b_proj.weight"][2])
        keys, values = array.array("H"), array.array("H")
        for h in range(n):
            head = both[h * (dn + dv) * rank:(h + 1) * (dn + dv) * rank]
            for column in range(rank):
                keys += head[column:dn * rank:rank]
            values += head[dn * rank:]
        out[to + "attn_k_b.weight"] = ([dn, rank, n], BF16, keys.tobytes())
        out[to + "attn_v_b.weight"] = ([rank, dv, n], BF16, values.tobytes())
        if layer < c["first_k_dense_replace"]:
            continue
        bias = at + "mlp.gate.e_score_correction_bias"
        if bias in t:
            out[to + "exp_probs_b.bias"] = (t[bias][1], F32, t[bias][2])
        experts = range(c["n_routed_experts"])

        def stack(*parts):
            return b"".join(t[f"{at}mlp.experts.{e}.{part}.weight"][2] for e in experts for part in parts)

        inner, hidden = t[at + "mlp.experts.0.gate_proj.weight"][1]
        if fused:
            out[to + "ffn_gate_up_exps.weight"] = ([hidden, 2 * inner, len(experts)], BF16, stack("gate_proj", "up_proj"))
        else:
            out[to + "ffn_gate_exps.weight"] = ([hidden, inner, len(experts)], BF16, stack("gate_proj"))
            out[to + "ffn_up_exps.weight"] = ([hidden, inner, len(experts)], BF16, stack("up_proj"))
        out[to + "ffn_down_exps.weight"] = ([inner, hidden, len(experts)], BF16, stack("down_proj"))
    return out


def vocabulary_of(folder, pre, n_rows):
    """A tokenizer.json as keys; ids that nobody has are padding, as far as the model has rows."""
    tok = json.load(open(os.path.join(folder, "tokenizer.json"), encoding="utf-8"))
    tokens, kinds = [f"[PAD{i}]" for i in range(n_rows)], [5] * n_rows
    for word, i in tok["model"]["vocab"].items():
        tokens[i], kinds[i] = word, 1
    for a in tok["added_tokens"]:
        tokens[a["id"]], kinds[a["id"]] = a["content"], 3 if a["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
    return {"tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, pre), "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
            "tokenizer.ggml.token_type": (ARRAY, (I32, kinds)), "tokenizer.ggml.merges": (ARRAY, (STRING, merges)),
            "tokenizer.ggml.add_bos_token": (BOOL, True)}


def model_of(folder, **how):
    c = json.load(open(os.path.join(folder, "config.json")))
    return c, Gguf(keys_of(c, how.get("legacy", False)), tensors_of(c, read_checkpoint(folder), **how))


# ---- runs


WORK = tempfile.mkdtemp(prefix="baton-convert-")


def path(name):
    return os.path.join(WORK, name)


def run(*args, code=0, limit=None):
    command = [os.path.join(BIN, "baton-" + args[0]), *args[1:]]
    if limit is not None:
        command = ["/bin/sh", "-c", f'ulimit -f {limit}; exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300)
    assert done.returncode == code, f"{command}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def convert(gguf, *options, **how):
    """Into a folder that is new each time; returns it, and what was said."""
    shutil.rmtree(path("out"), ignore_errors=True)
    file = gguf if isinstance(gguf, str) else gguf.write(path("in.gguf"), **how)
    return path("out"), run("convert", file, path("out"), *options)


def refused(said, gguf, *options, **how):
    """The conversion fails with these words, and leaves nothing."""
    shutil.rmtree(path("out"), ignore_errors=True)
    file = gguf if isinstance(gguf, str) else gguf.write(path("in.gguf"), **how)
    out = run("convert", file, path("out"), *options, code=1)
    for part in [said] if isinstance(said, str) else said:
        assert part in out, f"\"{part}\" is not in: {out}"
    assert not os.path.exists(path("out")), f"{said}: something is left: {os.listdir(path('out'))}"


# ---- what comes back

MODELS = {"v2-lite": {}, "v2": {"legacy": True}, "kimi-k2": {"fused": True}, "moonlight": {}, "glm-flash": {}}
EXACT = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
         "qk_rope_head_dim", "v_head_dim", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "n_shared_experts",
         "num_experts_per_tok", "first_k_dense_replace", "topk_method", "scoring_func", "n_group", "topk_group", "norm_topk_prob",
         "routed_scaling_factor", "rms_norm_eps", "rope_theta", "rope_scaling", "max_position_embeddings", "bos_token_id", "eos_token_id"]


def expect_same(folder, out, n_layers):
    want, got = read_checkpoint(folder), read_checkpoint(out)
    want = {name: t for name, t in want.items() if not any(name.startswith(f"model.layers.{i}.") for i in range(n_layers, n_layers + 2))}
    assert set(want) == set(got), sorted(set(want) ^ set(got))[:8]
    for name in want:
        assert want[name] == got[name], f"{name}: {want[name][:2]} and {got[name][:2]} differ"
    a, b = (json.load(open(os.path.join(f, "config.json"))) for f in (folder, out))
    for field in EXACT:
        assert a[field] == b[field], f"{folder}: {field}: {a[field]!r}, converted {b[field]!r}"
    assert b["model_type"] == ("deepseek_v3" if a["scoring_func"] == "sigmoid" else "deepseek_v2")


def logits_of(folder, name):
    """The bytes that baton logits writes for the golden cases of at most 64 tokens."""
    goldens = os.path.join(SOURCE, "tests/fixtures", name, "cases.safetensors")
    cases = json.load(open(os.path.join(SOURCE, "tests/fixtures", name, "cases.json")))
    with open(goldens, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(n)), f.read()
    tensors = {}
    for case, info in cases.items():
        t = header[case + ".ids"]
        if t["shape"][0] <= 64:
            tensors[case + ".ids"] = (t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
            tensors[case + ".prompt"] = ("I32", [1], struct.pack("<i", info["prompt"]))
    assert tensors
    at, parts, out = {}, [], 0
    for key, (dtype, shape, raw) in tensors.items():
        at[key] = dict(dtype=dtype, shape=shape, data_offsets=[out, out + len(raw)])
        parts.append(raw)
        out += len(raw)
    raw = json.dumps(at).encode()
    with open(path("ids.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw + b"".join(parts))
    run("logits", "--model", folder, "--prefill", "1", "--decode", "1", "--ids", path("ids.safetensors"), "--out", path("logits.safetensors"))
    return open(path("logits.safetensors"), "rb").read()


def models_come_back_bit_for_bit():
    for name, how in MODELS.items():
        folder = os.path.join(SOURCE, "tests/models", name)
        c, gguf = model_of(folder, **how)
        out, said = convert(gguf)
        assert "no tokenizer: the file has no vocabulary" in said, said
        expect_same(folder, out, c["num_hidden_layers"])
        assert "expected" not in run("inspect", out)
        if name == "v2-lite":
            assert logits_of(folder, name) == logits_of(out, name), "logits differ"


def demo_comes_back_with_its_tokenizer():
    folder = os.path.join(SOURCE, "models/demo")
    c, gguf = model_of(folder)
    config = json.load(open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8"))
    gguf.keys.update(vocabulary_of(folder, "deepseek-v3", c["vocab_size"]))
    gguf.keys["tokenizer.chat_template"] = (STRING, config["chat_template"])
    gguf.keys["tokenizer.ggml.padding_token_id"] = (U32, 2)
    out, said = convert(gguf, "--file-mib", "5")
    assert "no tokenizer" not in said and " in 4 files" in said, said
    assert sorted(os.listdir(out)) == ["config.json", *(f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)),
                                       "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
    expect_same(folder, out, c["num_hidden_layers"])
    got = json.load(open(os.path.join(out, "tokenizer_config.json"), encoding="utf-8"))
    for field in ("bos_token", "eos_token", "pad_token", "add_bos_token", "add_eos_token", "chat_template", "tokenizer_class"):
        assert got[field] == config[field], (field, got[field])
    expect_same_files(folder, out)
    expect_same_tokens(folder, out, "tokenizer-v3.jsonl")
    run("run", "--model", out, "--prefill", "1", "--decode", "1", "--chat", "Good morrow.", "--max-tokens", "4")


def expect_same_files(folder, out):
    a, b = (json.load(open(os.path.join(f, "tokenizer.json"), encoding="utf-8")) for f in (folder, out))
    for field in ("pre_tokenizer", "decoder", "post_processor", "added_tokens", "normalizer"):
        assert a[field] == b[field], f"{field}: {a[field]} and {b[field]}"


def expect_same_tokens(folder, out, fixture):
    with open(os.path.join(SOURCE, "tests/fixtures", fixture)) as f:
        cases = [json.loads(line) for line in f]
    assert len(cases) > 100
    for field, flags in (("text", []), ("ids", ["--decode"])):
        lines = "".join(json.dumps(case[field]) + "\n" for case in cases)
        said = [subprocess.run([os.path.join(BIN, "baton-tokenize"), "--model", f, *flags], input=lines, capture_output=True, text=True, timeout=120)
                for f in (folder, out)]
        assert [s.returncode for s in said] == [0, 0] and said[0].stdout == said[1].stdout, said[1].stderr
        if field == "text":
            assert [json.loads(line) for line in said[1].stdout.splitlines()] == [case["ids"] for case in cases]


def tokenizer_of_v2_comes_back():
    folder = os.path.join(SOURCE, "tests/models/v2-lite")
    c, gguf = model_of(folder)
    gguf.keys.update(vocabulary_of(folder, "deepseek-llm", c["vocab_size"]))
    out, _ = convert(gguf)
    expect_same_files(folder, out)
    expect_same_tokens(folder, out, "tokenizer-v2.jsonl")
    gguf.keys["tokenizer.ggml.pre"] = (STRING, "tekken")
    out, said = convert(gguf)
    assert "no tokenizer: expected model gpt2" in said and "tekken" in said, said
    assert not os.path.exists(os.path.join(out, "tokenizer.json"))
    gguf.keys["tokenizer.ggml.pre"] = (STRING, "\x1b[31mred")
    said = convert(gguf)[1]
    assert "\x1b" not in said and "[31mred" in said, said


def tokens_of_tiktoken(folder):
    """tiktoken.model as keys, as llama.cpp writes them: a token's merge is what merging its bytes by lower ranks alone leaves."""
    ranks = {}
    for line in open(os.path.join(folder, "tiktoken.model"), "rb").read().splitlines():
        text, rank = line.split()
        ranks[base64.b64decode(text)] = int(rank)
    added = json.load(open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8"))["added_tokens_decoder"]
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    shown = {b: chr(b) if b in own else chr(0x100 + others.index(b)) for b in range(256)}
    tokens, merges = [""] * len(ranks), []

    def text_of(token):
        return "".join(shown[b] for b in token)

    for token, rank in ranks.items():
        tokens[rank] = text_of(token)
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], len(ranks)))
            parts[best:best + 2] = [parts[best] + parts[best + 1]]
        if len(token) > 1:
            merges.append((rank, " ".join(map(text_of, parts))))
    tokens += [added[str(i)]["content"] if str(i) in added else f"<|reserved_token_{i}|>" for i in range(len(ranks), len(ranks) + 256)]
    return {"tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, "kimi-k2"), "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
            "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * len(ranks) + [3] * 256)),
            "tokenizer.ggml.merges": (ARRAY, (STRING, [m for _, m in sorted(merges)]))}


def tokenizer_of_kimi_becomes_a_tokenizer_json():
    folder = os.path.join(SOURCE, "tests/fixtures/tiktoken")
    _, gguf = model_of(os.path.join(SOURCE, "models/demo"))
    gguf.keys.update(tokens_of_tiktoken(folder))
    out, _ = convert(gguf)
    expect_same_tokens(folder, out, "tokenizer-tiktoken.jsonl")
    assert json.load(open(os.path.join(out, "tokenizer_config.json"), encoding="utf-8"))["add_bos_token"] is False


# ---- types

SMALL = dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=2, vocab_size=48, q_lora_rank=None, kv_lora_rank=256, qk_nope_head_dim=32,
             qk_rope_head_dim=16, v_head_dim=32, intermediate_size=96, moe_intermediate_size=32, n_routed_experts=3, n_shared_experts=1,
             num_experts_per_tok=2, first_k_dense_replace=1, scoring_func="sigmoid", n_group=1, topk_group=1, norm_topk_prob=True,
             routed_scaling_factor=2.5, rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=4096, bos_token_id=0, eos_token_id=1,
             rope_scaling=None)


def small_model(rng, kinds=None, **sizes):
    """Every tensor of SMALL, of the type that `kinds` gives for the part of its name after the layer, else of BF16."""
    c, kinds = {**SMALL, **sizes}, kinds or {}
    h, n, e, i = c["hidden_size"], c["num_attention_heads"], c["n_routed_experts"], c["moe_intermediate_size"]
    dn, dr, dv, rank, wide = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"], c["intermediate_size"]
    shapes = {"token_embd": [h, c["vocab_size"]], "output_norm": [h], "output": [h, c["vocab_size"]]}
    for layer in range(c["num_hidden_layers"]):
        at = f"blk.{layer}."
        shapes.update({at + "attn_norm": [h], at + "ffn_norm": [h], at + "attn_q": [h, n * (dn + dr)], at + "attn_kv_a_mqa": [h, rank + dr],
                       at + "attn_kv_a_norm": [rank], at + "attn_k_b": [dn, rank, n], at + "attn_v_b": [rank, dv, n], at + "attn_output": [n * dv, h]})
        if layer < c["first_k_dense_replace"]:
            shapes.update({at + "ffn_gate": [h, wide], at + "ffn_up": [h, wide], at + "ffn_down": [wide, h]})
            continue
        shapes.update({at + "ffn_gate_inp": [h, e], at + "ffn_gate_exps": [h, i, e], at + "ffn_up_exps": [h, i, e], at + "ffn_down_exps": [i, h, e],
                       at + "ffn_gate_shexp": [h, i], at + "ffn_up_shexp": [h, i], at + "ffn_down_shexp": [i, h]})
    tensors = {}
    for name, ne in shapes.items():
        kind = kinds.get(name.split(".")[-1], BF16)
        tensors[name + ".weight"] = (ne, kind, random_blocks(kind, math.prod(ne), rng))
    if c["scoring_func"] == "sigmoid":
        for layer in range(c["first_k_dense_replace"], c["num_hidden_layers"]):
            tensors[f"blk.{layer}.exp_probs_b.bias"] = ([e], F32, struct.pack(f"<{e}f", *(rng.gauss(0, 1) for _ in range(e))))
    return Gguf(keys_of(c), tensors)


PLACES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", **{v: k for k, v in MATRICES.items()}, "attn_kv_a_norm": "self_attn.kv_a_layernorm",
          "ffn_gate_inp": "mlp.gate"}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def expect_decoded(gguf, sizes):
    """Every tensor comes out as the decoders here have it."""
    got = read_checkpoint(convert(gguf)[0])
    for name, (ne, kind, raw) in gguf.tensors.items():
        want, parts = decode(kind, raw), name.split(".")
        at = f"model.layers.{parts[1]}." if parts[0] == "blk" else ""
        stem = parts[-2]
        if name.endswith(".bias"):
            assert got[at + "mlp.gate.e_score_correction_bias"] == ("F32", ne, raw), name
        elif stem in WHOLE:
            assert got[WHOLE[stem] + ".weight"] == ("BF16", ne[::-1], want), (name, kind)
        elif stem.endswith("_exps"):
            size = len(want) // ne[2]
            for e in range(ne[2]):
                expert = got[f"{at}mlp.experts.{e}.{stem.split('_')[1]}_proj.weight"]
                assert expert == ("BF16", [ne[1], ne[0]], want[e * size:(e + 1) * size]), (name, kind, e)
        elif stem in ("attn_k_b", "attn_v_b"):
            both = array.array("H", got[at + "self_attn.kv_b_proj.weight"][2])
            rank, dn, dv = (sizes[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
            mine = array.array("H", want)
            for h in range(ne[2]):
                for d in range(dn if stem == "attn_k_b" else dv):
                    row = mine[h * rank * dn + d:(h + 1) * rank * dn:dn] if stem == "attn_k_b" else mine[(h * dv + d) * rank:(h * dv + d + 1) * rank]
                    at_row = (h * (dn + dv) + d + (0 if stem == "attn_k_b" else dn)) * rank
                    assert both[at_row:at_row + rank] == row, (name, kind, h, d)
        else:
            assert got[f"{at}{PLACES[stem]}.weight"] == ("BF16", ne[::-1], want), (name, kind)


def every_type_is_decoded():
    """Two files: types of 256 weights need rows of as many, so that not every tensor can have every type."""
    rng = random.Random(5)
    first = {"token_embd": 12, "output": 14, "attn_q": 13, "attn_kv_a_mqa": 10, "ffn_gate": 11, "ffn_up": 12, "ffn_down": 7, "attn_k_b": 8, "attn_v_b": 14,
             "attn_output": 6, "ffn_gate_exps": 10, "ffn_up_exps": 11, "ffn_down_exps": 20, "ffn_gate_inp": F32, "ffn_gate_shexp": 13, "ffn_norm": F32,
             "attn_norm": F16, "ffn_up_shexp": 39, "ffn_down_shexp": 2}
    second = {"token_embd": F16, "output": F32, "attn_k_b": 6, "attn_v_b": 11, "ffn_gate_exps": 39, "ffn_up_exps": 2, "ffn_down_exps": 7, "attn_q": 20,
              "ffn_down": 8, "ffn_gate_shexp": 12, "attn_output": BF16, "attn_kv_a_mqa": 23, "ffn_down_shexp": 3}
    assert set(first.values()) | set(second.values()) == set(TYPES)
    for kinds in (first, second):
        expect_decoded(small_model(rng, kinds), SMALL)


def tensors_longer_than_a_chunk_come_whole():
    """They are written 2^20 weights at a time, which here end within a head of kv_b_proj."""
    sizes = {**SMALL, "num_attention_heads": 24, "qk_nope_head_dim": 96, "v_head_dim": 96, "vocab_size": 4500}
    expect_decoded(small_model(random.Random(16), {"output": 12}, **sizes), sizes)


# ---- keys


def config_of(gguf):
    out, _ = convert(gguf)
    return json.load(open(os.path.join(out, "config.json")))


def what_old_files_leave_out_is_known():
    rng, tiny = random.Random(6), dict(hidden_size=32, kv_lora_rank=32, num_attention_heads=1, intermediate_size=32, moe_intermediate_size=32)
    yarn = dict(factor=40.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0, mscale_all_dim=0.707)
    groups = [A + "expert_group_count", A + "expert_group_used_count"]
    for n, scoring, want in ((160, "softmax", (8, 3)), (256, "sigmoid", (8, 4)), (64, "softmax", (1, 1)), (384, "sigmoid", (1, 1))):
        yarn["beta_fast"] = 1.0 if n == 384 else 32.0
        gguf = small_model(rng, n_routed_experts=n, scoring_func=scoring, norm_topk_prob=scoring == "sigmoid", rope_scaling=yarn, **tiny)
        left_out = groups + [A + "rope.scaling.yarn_beta_fast", A + "rope.scaling.yarn_beta_slow"]
        if scoring == "softmax":
            left_out += [A + "expert_gating_func", A + "rope.scaling.yarn_log_multiplier", A + "expert_weights_norm"]
        for key in left_out:
            del gguf.keys[key]
        c = config_of(gguf)
        assert (c["n_group"], c["topk_group"]) == want and c["scoring_func"] == scoring, c
        assert c["rope_scaling"] == dict(type="yarn", mscale=0.707, **yarn), c["rope_scaling"]
        method = "noaux_tc" if scoring == "sigmoid" else "group_limited_greedy" if want[0] > 1 else "greedy"
        assert c["topk_method"] == method, c


def a_gate_without_its_key_is_told_by_its_bias():
    folder = os.path.join(SOURCE, "tests/models/glm-flash")
    c, gguf = model_of(folder)
    for unsaid in ({}, {A + "expert_gating_func": (U32, 0)}):
        gguf.keys = {**{k: v for k, v in gguf.keys.items() if k != A + "expert_gating_func"}, **unsaid}
        expect_same(folder, convert(gguf)[0], c["num_hidden_layers"])


def every_end_of_an_answer_is_kept():
    gguf = small_model(random.Random(14))
    eos, eot, eom = ("tokenizer.ggml." + key for key in ("eos_token_id", "eot_token_id", "eom_token_id"))
    for ids, want in (({eos: 1, eot: 5, eom: 6}, [1, 5, 6]), ({eos: 1, eot: 1}, 1), ({eos: 1, eom: 7}, [1, 7]), ({eot: 5}, 5)):
        gguf.keys = {**{k: v for k, v in gguf.keys.items() if k not in (eos, eot, eom)}, **{k: (U32, v) for k, v in ids.items()}}
        assert config_of(gguf)["eos_token_id"] == want, (ids, want)
    refused(["key " + eom, "found 48"], Gguf({**gguf.keys, eom: (U32, 48)}, gguf.tensors))


def keys_without_effect_are_no_reason_to_refuse():
    gguf = small_model(random.Random(15))
    for key, kind, none, some in (("attention.temperature_scale", F32_KEY, 0.0, 0.1), ("rope.scale_linear", F32_KEY, 1.0, 4.0), ("logit_scale", F32_KEY, 1.0, 0.5),
                                  ("attn_logit_softcapping", F32_KEY, 0.0, 50.0), ("attention.sliding_window", U32, 0, 4096)):
        convert(Gguf({**gguf.keys, A + key: (kind, none)}, gguf.tensors))
        refused([f"key {A}{key}: expected it absent or", f"found {some:g}"], Gguf({**gguf.keys, A + key: (kind, some)}, gguf.tensors))
    refused("rope.scaling.type: expected one beside its factor", Gguf({**gguf.keys, A + "rope.scaling.factor": (F32_KEY, 40.0)}, gguf.tensors))
    refused("expert_group_used_count: expected a number", Gguf({k: v for k, v in gguf.keys.items() if k != A + "expert_group_used_count"}, gguf.tensors))


def layers_for_prediction_are_left_out():
    rng = random.Random(7)
    gguf = small_model(rng)
    for name in [n for n in gguf.tensors if n.startswith("blk.1.")]:
        gguf.tensors[name.replace("blk.1.", "blk.2.")] = gguf.tensors[name]
    gguf.tensors["blk.2.nextn.eh_proj.weight"] = ([512, 256], BF16, bytes(2 * 512 * 256))
    gguf.keys.update({A + "block_count": (U32, 3), A + "nextn_predict_layers": (U32, 1)})
    out, said = convert(gguf)
    assert "1 layer for multi-token prediction left out: --mtp is for the published checkpoint" in said, said
    config = json.load(open(os.path.join(out, "config.json")))
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (2, 0), config
    assert not any(name.startswith("model.layers.2.") for name in read_checkpoint(out))
    del gguf.tensors["blk.2.nextn.eh_proj.weight"]
    refused(["tensor blk.2.nextn.eh_proj.weight: expected", "a layer of the model itself"], gguf)
    gguf.tensors = {name: t for name, t in gguf.tensors.items() if not name.startswith("blk.2.")}
    assert "left out" in convert(gguf)[1]  # they had been before


def an_output_that_is_missing_is_the_embedding():
    gguf = small_model(random.Random(8))
    del gguf.tensors["output.weight"]
    got = read_checkpoint(convert(gguf, version=2)[0])
    assert got["lm_head.weight"] == got["model.embed_tokens.weight"]


def files_of_a_set_are_one_model():
    gguf = small_model(random.Random(9))
    want = read_checkpoint(convert(gguf)[0])
    first = gguf.split(path("set"), 4)
    assert read_checkpoint(convert(first)[0]) == want
    refused(["expected the first of 4 files", "found number 2"], path("set-00002-of-00004.gguf"))
    shutil.copy(path("set-00003-of-00004.gguf"), path("set-00004-of-00004.gguf"))
    refused(["set-00004-of-00004.gguf", "expected file 4 of 4, found number 3"], first)
    os.remove(path("set-00004-of-00004.gguf"))
    refused("set-00004-of-00004.gguf: No such file", first)
    gguf.split(path("set"), 4)
    short = Gguf({"split.no": (U16, 3), "split.count": (U16, 4)}, {})
    short.write(path("set-00004-of-00004.gguf"))
    refused("tensors in all, found", first)
    Gguf({"split.no": (U16, 3), "split.count": (U16, 5)}, {}).write(path("set-00004-of-00004.gguf"))
    refused("expected file 4 of 4, found number 4 of 5", first)
    shutil.copy(path("set-00002-of-00004.gguf"), first)
    refused(["expected the first of 4 files", "found number 2"], first)


# ---- files that are not what they say


def broken_files_are_refused_by_name():
    gguf = small_model(random.Random(10))
    refused("begins 47 47 55 58", gguf, magic=b"GGUX")
    refused("expected a number from 2 to 3, found 1", gguf, version=1)
    refused("expected a number from 2 to 3, found 50331648", gguf, version=0x03000000)
    for count in (1 << 63, 1 << 40, (1 << 64) - 1, 1 << 21):
        refused("number of tensors: expected", gguf, n_tensors=count)
        refused("number of keys: expected", gguf, n_keys=count)
    refused("byte", gguf, n_tensors=len(gguf.tensors) + 1)
    refused("expected a GGUF file, found an empty one", write_bytes(b""))
    refused("expected a regular file, found a directory", WORK)
    refused("No such file", path("none.gguf"))

    def one_key(raw):
        return dict(more_keys=raw, n_keys=len(gguf.keys) + 1)

    refused("expected a string of 4611686018427387904 bytes", gguf, **one_key(text("x") + struct.pack("<IQ", STRING, 1 << 62)))
    refused("length of a list: expected", gguf, **one_key(text("x") + struct.pack("<IIQ", ARRAY, U32, 1 << 62)))
    refused("no list of lists", gguf, **one_key(text("x") + struct.pack("<IIQ", ARRAY, ARRAY, 0)))
    refused("type of a value: expected a number from 0 to 12, found 13", gguf, **one_key(text("x") + struct.pack("<I", 13)))
    refused("found one with a zero in it", gguf, **one_key(text("x\0y") + struct.pack("<IB", U8, 0)))
    refused("general.alignment: expected a number from 1", gguf, **one_key(text("general.alignment") + struct.pack("<II", U32, 0)))
    refused("key general.name: expected it once", gguf, **one_key(text("general.name") + struct.pack("<IB", U8, 0)))

    def one_tensor(name, ne, kind=F32, offset=0):
        raw = text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne) + struct.pack("<IQ", kind, offset)
        return dict(more_tensors=raw, n_tensors=len(gguf.tensors) + 1)

    refused("tensor token_embd.weight: expected it once", gguf, **one_tensor("token_embd.weight", [256]))
    refused("a dimension: expected a number from 1", gguf, **one_tensor("x", [256, 0]))
    refused("number of dimensions: expected a number from 1 to 4, found 5", gguf, **one_tensor("x", [1] * 5))
    refused("tensor x: expected at most the file's", gguf, **one_tensor("x", [1 << 62, 1 << 62]))
    refused("tensor x: expected at most the file's", gguf, **one_tensor("x", [1 << 40]))
    refused(["tensor x: expected one of the types F32, F16,", "found 16 (IQ2_XXS)"], gguf, **one_tensor("x", [256], kind=16))
    refused("found 1000 (unknown)", gguf, **one_tensor("x", [256], kind=1000))
    refused("rows of whole blocks of 256 (Q4_K), found 32", gguf, **one_tensor("x", [32], kind=12))
    refused("expected an offset that 32 divides, found 4", gguf, **one_tensor("x", [32], offset=4))
    refused("offset of a tensor: expected", gguf, **one_tensor("x", [32], offset=1 << 50))
    size = len(gguf.bytes()) // 32 * 32
    refused("expected 128 bytes at offset", gguf, **one_tensor("x", [32], offset=size))
    refused("name of a tensor: expected", gguf, **one_tensor("x" * 128, [32]))
    refused(["tensor blk.9.attn_k_b.weight", "no place for it"], gguf, **one_tensor("blk.9.attn_k_b.weight", [32]))
    refused(["tensor blk.4294967296.attn_k_b.weight", "no place for it"], gguf, **one_tensor("blk.4294967296.attn_k_b.weight", [32]))
    refused(["tensor blk.0.attn_q.bias", "no place for it"], gguf, **one_tensor("blk.0.attn_q.bias", [32]))


def write_bytes(raw):
    with open(path("raw.gguf"), "wb") as f:
        f.write(raw)
    return path("raw.gguf")


def wrong_models_are_refused_by_name():
    base = small_model(random.Random(11))
    for key in base.keys:
        optional = ("split", "tokenizer", "general.name", "head_count_kv", "_mla", "shared_count", "weights_", "gating", "group", "attention.key_length", "attention.value_length")
        if any(part in key for part in optional):
            continue
        gguf = Gguf({k: v for k, v in base.keys.items() if k != key}, base.tensors)
        refused([f"key {key}: expected", "found nothing"], gguf)
    for key, kind, v, said in ((A + "block_count", U32, 4000, "found 4000"), (A + "block_count", STRING, "2", "expected a whole number, found a string"),
                               (A + "block_count", I32, -2, "found one below 0"), (A + "rope.freq_base", F32_KEY, math.nan, "found nan"),
                               (A + "rope.freq_base", U32, 10000, "expected a real number, found u32"), (A + "expert_gating_func", U32, 3, "found 3"),
                               (A + "rope.scaling.type", STRING, "linear", "found \"linear\""), (A + "rope.scaling.type", STRING, "yarn", "rope.scaling.factor"),
                               (A + "rope.dimension_count", U32, 48, "keys of a head"), (A + "expert_used_count", U32, 9, "num_experts_per_tok"),
                               (A + "attention.temperature_scale", F32_KEY, 0.1, "temperature_scale"), ("general.architecture", STRING, "llama", "found \"llama\""),
                               (A + "expert_weights_norm", U32, 1, "expected a bool, found u32"), (A + "expert_gating_func", U32, 1, "expert_weights_norm: expected false"),
                               (A + "nextn_predict_layers", U32, 2, "block_count"), (A + "nextn_predict_layers", U32, 3, "nextn_predict_layers (3)"),
                               (A + "leading_dense_block_count", U32, 3, "leading_dense_block_count (3)"), (A + "block_count", U32, 1, "tensor blk.1."), ("tokenizer.ggml.bos_token_id", U32, 48, "found 48")):
        refused(said, Gguf({**base.keys, key: (kind, v)}, base.tensors))
    for name in base.tensors:
        gguf = Gguf(base.keys, {k: v for k, v in base.tensors.items() if k != name})
        if name != "output.weight":
            refused([f"tensor {name}: expected", "found nothing"], gguf)
        ne, kind, raw = base.tensors[name]
        gguf.tensors = {**base.tensors, name: ([*ne[:-1], 2 * ne[-1]], kind, 2 * raw)}
        if name != "token_embd.weight":
            refused([f"tensor {name}: expected", "found {"], gguf)


def wrong_vocabularies_are_refused_by_name():
    folder = os.path.join(SOURCE, "tests/models/v2-lite")
    c, base = model_of(folder)
    good = vocabulary_of(folder, "deepseek-llm", c["vocab_size"])
    tokens, kinds, merges = (good["tokenizer.ggml." + k][1][1] for k in ("tokens", "token_type", "merges"))
    for key, v, said in (("tokens", (STRING, tokens + ["x"]), "expected 1 to 320"), ("tokens", (STRING, []), "expected 1 to 320"),
                         ("tokens", (U32, [1]), "expected a list of strings, found u32"), ("token_type", (I32, kinds[:-1]), "one for each token, found 319"),
                         ("token_type", (F32_KEY, kinds), "numbers of 32 bits"), ("tokens", (STRING, tokens[:-1] + [tokens[5]]), "found \""),
                         ("tokens", (STRING, [b"\xff", *tokens[1:]]), "tokens[0]: expected UTF-8"), ("merges", (STRING, merges + ["zz qq"]), "model.merges"),
                         ("merges", (STRING, merges + ["zz"]), "model.merges")):
        refused(said, Gguf({**base.keys, **good, "tokenizer.ggml." + key: (ARRAY, v)}, base.tensors))
    last = {"tokenizer.ggml.tokens": (ARRAY, (STRING, [*tokens[:-1], b"\xff"])), "tokenizer.ggml.token_type": (ARRAY, (I32, [*kinds[:-1], 5])),
            "tokenizer.ggml.bos_token_id": (U32, len(tokens) - 1)}  # it is none of the unused ones, whatever its kind says
    refused(f"tokens[{len(tokens) - 1}]: expected UTF-8", Gguf({**base.keys, **good, **last}, base.tensors))
    missing = {k: v for k, v in good.items() if not k.endswith("merges")}
    refused("tokenizer.ggml.merges: expected a list of strings, found nothing", Gguf({**base.keys, **missing}, base.tensors))


def damaged_files_never_crash():
    """Cut anywhere, the file is refused; with bytes that are turned it is refused or converted, and nothing else happens."""
    rng = random.Random(12)
    tiny = dict(hidden_size=32, kv_lora_rank=32, num_attention_heads=1, intermediate_size=32, moe_intermediate_size=32, vocab_size=32)
    raw = small_model(rng, **tiny).bytes()
    header = raw.index(b"exp_probs_b.bias") + 64
    for cut in [*rng.sample(range(header), 60), len(raw) - 32, header, 1, 3, 4, 8, 23, 24]:
        refused("raw.gguf: ", write_bytes(raw[:cut]))
    for _ in range(250):
        bad = bytearray(raw)
        for _ in range(rng.choice([1, 1, 4])):
            bad[rng.randrange(header)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        shutil.rmtree(path("out"), ignore_errors=True)
        done = subprocess.run([os.path.join(BIN, "baton-convert"), write_bytes(bytes(bad)), path("out")], capture_output=True, timeout=60)
        assert done.returncode in (0, 1), done
        assert os.path.exists(path("out")) == (done.returncode == 0), done


def nothing_is_overwritten_and_nothing_half_written_left():
    gguf = small_model(random.Random(13))
    out, _ = convert(gguf)
    before = sorted(os.listdir(out))
    said = run("convert", path("in.gguf"), out, code=1)
    assert "expected an empty directory" in said and sorted(os.listdir(out)) == before, said
    c, demo = model_of(os.path.join(SOURCE, "models/demo"))
    demo.keys.update(vocabulary_of(os.path.join(SOURCE, "models/demo"), "deepseek-v3", c["vocab_size"]))
    demo.write(path("demo.gguf"))
    shutil.rmtree(out)
    said = run("convert", path("demo.gguf"), out, code=1, limit=8000)
    assert "File too large" in said and not os.path.exists(out), said
    os.mkdir(out)
    run("convert", path("demo.gguf"), out, code=1, limit=8000)
    assert os.listdir(out) == [], "an empty directory is not as it was"
    for args in ([], [path("in.gguf")], [path("in.gguf"), out, "x"]):
        run("convert", *args, code=64)


try:
    for test in (models_come_back_bit_for_bit, demo_comes_back_with_its_tokenizer, tokenizer_of_v2_comes_back,
                 tokenizer_of_kimi_becomes_a_tokenizer_json, every_type_is_decoded, tensors_longer_than_a_chunk_come_whole,
                 what_old_files_leave_out_is_known, a_gate_without_its_key_is_told_by_its_bias, every_end_of_an_answer_is_kept,
                 keys_without_effect_are_no_reason_to_refuse, layers_for_prediction_are_left_out, an_output_that_is_missing_is_the_embedding,
                 files_of_a_set_are_one_model, broken_files_are_refused_by_name, wrong_models_are_refused_by_name,
                 wrong_vocabularies_are_refused_by_name, damaged_files_never_crash, nothing_is_overwritten_and_nothing_half_written_left):
        test()
        print(f"{test.__name__:70} ok", flush=True)
finally:
    shutil.rmtree(WORK)
