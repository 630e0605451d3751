#!/usr/bin/env python3
"""Converts a deepseek_v2 checkpoint with softmax gate to GGUF in bf16, for llama.cpp.

    to_gguf.py MODEL OUT.gguf

MODEL is a folder with config.json and bf16 safetensors, as `baton synth --like v2-lite` writes it.  Matrices keep their bits.  What
llama.cpp wants otherwise: the experts of a layer as one tensor, kv_b_proj as two (K transposed, for the absorbed form), norms and gates
in fp32.  There is no vocabulary: tokens go in and logits come out.  Memory use is one layer's experts of one kind."""
import json
import os
import struct
import sys

import gguf
import numpy as np

BF16, F32 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F32
PLAIN = {"self_attn.q_proj": "attn_q", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.o_proj": "attn_output",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp"}
FLOAT = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_a_layernorm": "attn_q_a_norm",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate": "ffn_gate_inp"}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


class Checkpoint:
    """The tensors of all safetensors files of a folder, mapped, bf16 as uint16."""

    def __init__(self, folder):
        self.at = {}
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".safetensors"):
                continue
            path = os.path.join(folder, name)
            with open(path, "rb") as f:
                size = struct.unpack("<Q", f.read(8))[0]
                header = json.loads(f.read(size))
            for tensor, info in header.items():
                if tensor == "__metadata__":
                    continue
                if info["dtype"] != "BF16":
                    raise SystemExit(f"{path}: {tensor} has dtype {info['dtype']}, expected BF16")
                self.at[tensor] = (path, 8 + size + info["data_offsets"][0], tuple(info["shape"]))

    def __getitem__(self, name):
        if name not in self.at:
            raise SystemExit(f"the checkpoint has no tensor {name}")
        path, offset, shape = self.at[name]
        return np.memmap(path, dtype=np.uint16, mode="r", offset=offset, shape=shape)


def to_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def plan(config, checkpoint):
    """[(name, shape, type, function that gives the data)] in the file's order."""
    c, t, out = config, checkpoint, []

    def plain(name, source):
        out.append((name, t[source].shape, BF16, lambda: t[source]))

    def floats(name, source):
        out.append((name, t[source].shape, F32, lambda: to_float(t[source])))

    plain("token_embd.weight", "model.embed_tokens.weight")
    floats("output_norm.weight", "model.norm.weight")
    plain("output.weight", "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight")
    n, dn, dv, rank = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    for layer in range(c["num_hidden_layers"]):
        at, to = f"model.layers.{layer}.", f"blk.{layer}."
        for source, name in FLOAT.items():
            if at + source + ".weight" in t.at:
                floats(to + name + ".weight", at + source + ".weight")
        for source, name in PLAIN.items():
            if at + source + ".weight" in t.at:
                plain(to + name + ".weight", at + source + ".weight")

        def heads(first, last, turn, source=at + "self_attn.kv_b_proj.weight"):
            part = t[source].reshape(n, dn + dv, rank)[:, first:last]
            return np.ascontiguousarray(part.transpose(0, 2, 1) if turn else part)
        out.append((to + "attn_k_b.weight", (n, rank, dn), BF16, lambda f=heads: f(0, dn, True)))
        out.append((to + "attn_v_b.weight", (n, dv, rank), BF16, lambda f=heads: f(dn, dn + dv, False)))
        if layer < c["first_k_dense_replace"]:
            continue
        for source, name in EXPERTS.items():
            def experts(at=at, source=source):
                return np.stack([t[f"{at}mlp.experts.{e}.{source}.weight"] for e in range(c["n_routed_experts"])])
            shape = t[f"{at}mlp.experts.0.{source}.weight"].shape
            out.append((to + name + ".weight", (c["n_routed_experts"], *shape), BF16, experts))
    return out


def check(c):
    """What this converter does not know is refused by name."""
    want = {"model_type": ("deepseek_v2",), "topk_method": ("greedy",), "scoring_func": ("softmax",), "moe_layer_freq": (1,)}
    for key, allowed in want.items():
        if c.get(key) not in allowed:
            raise SystemExit(f"config.json: {key} is {c.get(key)!r}, expected one of {allowed}")
    if c["rope_scaling"] is not None and c["rope_scaling"]["mscale"] != c["rope_scaling"]["mscale_all_dim"]:
        raise SystemExit("config.json: mscale and mscale_all_dim differ, expected the same")


def write_keys(w, c):
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(1)  # the latent
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("no_vocab")
    # llama.cpp knows models without it by their number of layers; 0 says it for any number.
    w.add_q_lora_rank(c["q_lora_rank"] or 0)
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_value_length(c["kv_lora_rank"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    scaling = c["rope_scaling"]
    if scaling is not None:
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(scaling["factor"])
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def convert(folder, path):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    check(config)
    tensors = plan(config, Checkpoint(folder))
    w = gguf.GGUFWriter(path, "deepseek2")
    write_keys(w, config)
    for name, shape, kind, _ in tensors:
        width = 2 if kind == BF16 else 4
        # Of a raw type the writer takes the shape in bytes.
        raw = (*shape[:-1], shape[-1] * 2) if kind == BF16 else shape
        w.add_tensor_info(name, raw, np.dtype(np.uint8 if kind == BF16 else np.float32), int(np.prod(shape)) * width,
                          raw_dtype=BF16 if kind == BF16 else None)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for _, shape, kind, data in tensors:
        values = data()
        assert values.shape == tuple(shape)
        w.write_tensor_data(np.ascontiguousarray(values).view(np.uint8) if kind == BF16 else values)
    w.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    convert(sys.argv[1], sys.argv[2])
