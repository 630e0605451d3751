"""Random small models of every family that transformers has too: `baton logits` against the Hugging Face implementation.

    python tests/oracles/random_models.py --bin build/release/bin --seed 1 --count 100

The models in tests/models have one config.json of each family.  This varies what a config.json may say: odd sizes, both ways to write RoPE, YaRN
with and without each of its numbers, kinds of gates, groups, defaults left out, stacked and single experts, bf16 and fp32.  A model that Baton
refuses is a failure, as these are all served; so is one whose error, routing forced, is more than twice that of Hugging Face's own bf16 run (the
median row; both against its fp32 run).  What is misread is off by far more.  A line for each model; one that fails keeps its folder below --keep.

Needs torch, transformers 5.24 and safetensors from PyPI.  Some two seconds a model.
"""
import argparse, json, math, os, random, shutil, subprocess, sys, tempfile
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging
import goldens

ARCHITECTURES = dict(
    deepseek_v2="DeepseekV2ForCausalLM", deepseek_v3="DeepseekV3ForCausalLM", glm4_moe_lite="Glm4MoeLiteForCausalLM",
    sarvam_mla="SarvamMLAForCausalLM", axk1="AXK1ForCausalLM", youtu="YoutuForCausalLM", mistral4="Mistral4ForCausalLM",
    deepseek_v32="DeepseekV32ForCausalLM", glm_moe_dsa="GlmMoeDsaForCausalLM")
SPARSE = ("deepseek_v32", "glm_moe_dsa")
BY_LAYER = ("axk1", *SPARSE)  # dense or sparse may be said of each layer; in glm4_moe_lite it is


def sizes(rng, family):
    heads, rope = rng.choice([1, 2, 3, 4, 5, 8, 12]), 2 * rng.randint(1, 20)
    hidden = heads * rng.randint(max(1, 24 // heads), 200 // heads)
    cfg = dict(
        model_type=family, architectures=[ARCHITECTURES[family]], hidden_size=hidden, num_hidden_layers=rng.randint(1, 4), num_attention_heads=heads,
        num_key_value_heads=heads, vocab_size=rng.randint(40, 500), intermediate_size=rng.randint(8, 200), kv_lora_rank=2 * rng.randint(2, 65),
        q_lora_rank=rng.randint(8, 90), qk_rope_head_dim=rope, qk_nope_head_dim=2 * rng.randint(1, 35), v_head_dim=rng.randint(1, 70),
        rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-2]), hidden_act="silu", max_position_embeddings=rng.choice([512, 163840]), attention_bias=False,
        tie_word_embeddings=rng.random() < 0.3, bos_token_id=0, eos_token_id=1)
    if family not in (*SPARSE, "axk1") and rng.random() < 0.4:
        cfg["q_lora_rank"] = None
    if rng.random() < 0.3:
        del cfg["attention_bias"]
    if family in SPARSE:  # scores of few indexer heads are 0 too often: any choice among ties is right
        indexers = rng.choice([1, 3, 16, 17, 32])
        cfg.update(index_n_heads=indexers, index_head_dim=rope + rng.randint(0, 40), index_topk=rng.choice([1, 5, 16, 33]) if indexers > 8 else 200)
    if family == "glm_moe_dsa":
        cfg["indexer_types"] = ["full"] + [rng.choice(["full", "shared"]) for _ in range(cfg["num_hidden_layers"] - 1)]
    return cfg


def add_rope(rng, cfg):
    theta, rope = rng.choice([10000, 50000.0, 500.5, 2.5, 8e6]), {"rope_type": "default"}
    if cfg["model_type"] == "mistral4" or rng.random() < 0.65:
        rope = {rng.choice(["type", "rope_type"]): "yarn", "factor": rng.choice([1.0, 2.25, 40]),
                "original_max_position_embeddings": rng.choice([8, 64, 4096])}
        may = dict(beta_fast=[32, 8.5, 4], beta_slow=[1, 0.5], mscale=[1.0, 0.707, 2, 0], mscale_all_dim=[1.0, 0.3, 1.7, 0], attention_factor=[1.3])
        rope.update({k: rng.choice(v) for k, v in may.items() if rng.random() < (0.15 if k == "attention_factor" else 0.7)})
    old = rng.random() < 0.5
    if cfg["model_type"] == "mistral4":
        rope["llama_4_scaling_beta"] = rng.choice([0, 0.1, 2.0])
        rope["partial_rotary_factor"] = cfg["qk_rope_head_dim"] / (cfg["qk_rope_head_dim"] + cfg["qk_nope_head_dim"])
    if old:
        cfg["rope_theta"] = theta
        if "factor" in rope or rng.random() < 0.5:
            cfg["rope_scaling"] = rope if "factor" in rope else None
    else:
        cfg["rope_parameters"] = dict(rope, rope_theta=theta)


def add_experts(rng, cfg):
    family, layers = cfg["model_type"], cfg["num_hidden_layers"]
    groups = rng.choice([1, 1, 2, 3, 8]) if family != "mistral4" else 1
    size, kept = rng.randint(2, 6), rng.randint(1, groups)
    cfg.update(n_routed_experts=groups * size, num_experts_per_tok=rng.randint(1, min(kept * size, 12)), moe_intermediate_size=rng.randint(4, 90),
               n_shared_experts=rng.choice([1, 1, 2]), norm_topk_prob=rng.random() < 0.5 and family != "deepseek_v2",
               routed_scaling_factor=rng.choice([1.0, 2.5, 0.37]), n_group=groups, topk_group=kept)
    if family == "deepseek_v2":
        cfg["topk_method"] = rng.choice(["greedy", "group_limited_greedy"])
    dense = rng.randint(0, layers)
    if family == "glm4_moe_lite" or family in BY_LAYER and rng.random() < 0.5:
        cfg["mlp_layer_types"] = ["dense"] * dense + ["sparse"] * (layers - dense)
    else:
        cfg["first_k_dense_replace"] = dense
    if family in ("axk1", "sarvam_mla") and cfg["norm_topk_prob"]:
        del cfg["norm_topk_prob"]  # the default, as is
        if cfg["routed_scaling_factor"] == 2.5:
            del cfg["routed_scaling_factor"]
    if family == "sarvam_mla" and rng.random() < 0.5:  # the names in its published config.json
        cfg["num_experts"], cfg["num_shared_experts"] = cfg.pop("n_routed_experts"), cfg.pop("n_shared_experts")


def config(rng, family):
    cfg = sizes(rng, family)
    add_rope(rng, cfg)
    if family != "youtu":
        add_experts(rng, cfg)
    return cfg


def weights(rng, generator, cfg):
    """Of bf16's values, large enough that gates and attention choose."""
    family, hidden, heads = cfg["model_type"], cfg["hidden_size"], cfg["num_attention_heads"]
    nope, rope, value, latent, q_rank = (cfg[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"))
    experts, width = cfg.get("n_routed_experts", cfg.get("num_experts", 0)), cfg.get("moe_intermediate_size", 0)
    shared, w = cfg.get("n_shared_experts", cfg.get("num_shared_experts", 0)), {}
    types = cfg.get("mlp_layer_types") or ["sparse" if experts and i >= cfg["first_k_dense_replace"] else "dense"
                                           for i in range(cfg["num_hidden_layers"])]

    def matrix(name, *shape, gain=1.0):
        w[name] = torch.randn(*shape, generator=generator) * gain / math.sqrt(shape[-1])

    def norm(name, n):
        w[name + ".weight"] = 1 + 0.2 * torch.randn(n, generator=generator)

    def mlp(name, n):
        matrix(name + ".gate_proj.weight", n, hidden, gain=1.5)
        matrix(name + ".up_proj.weight", n, hidden)
        matrix(name + ".down_proj.weight", hidden, n)

    for i, kind in enumerate(types):
        layer, attn, moe = f"model.layers.{i}.", f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        for name in ("input_layernorm", "post_attention_layernorm", *(["post_mlp_layernorm"] if family == "axk1" else [])):
            norm(layer + name, hidden)
        if q_rank:
            matrix(attn + "q_a_proj.weight", q_rank, hidden)
            norm(attn + "q_a_layernorm", q_rank)
        matrix(attn + ("q_b_proj" if q_rank else "q_proj") + ".weight", heads * (nope + rope), q_rank or hidden, gain=1.7)
        matrix(attn + "kv_a_proj_with_mqa.weight", latent + rope, hidden, gain=1.3)
        norm(attn + "kv_a_layernorm", latent)
        matrix(attn + "kv_b_proj.weight", heads * (nope + value), latent, gain=1.7)
        matrix(attn + "o_proj.weight", hidden, heads * value)
        if family in SPARSE and cfg.get("indexer_types", ["full"] * len(types))[i] == "full":
            n, dim = cfg["index_n_heads"], cfg["index_head_dim"]
            matrix(attn + "indexer.wq_b.weight", n * dim, q_rank, gain=1.5)
            matrix(attn + "indexer.wk.weight", dim, hidden)
            matrix(attn + "indexer.weights_proj.weight", n, hidden)
            norm(attn + "indexer.k_norm", dim)
            w[attn + "indexer.k_norm.bias"] = 0.1 * torch.randn(dim, generator=generator)
        if kind == "dense":
            mlp(layer + "mlp", cfg["intermediate_size"])
            continue
        matrix(moe + "gate.weight", experts, hidden, gain=2.5)
        if family not in ("deepseek_v2", "mistral4"):
            w[moe + "gate.e_score_correction_bias"] = 0.15 * torch.randn(experts, generator=generator)
        if family == "mistral4" or rng.random() < 0.3:
            matrix(moe + "experts.gate_up_proj", experts, 2 * width, hidden, gain=1.3)
            matrix(moe + "experts.down_proj", experts, hidden, width)
        else:
            for e in range(experts):
                mlp(f"{moe}experts.{e}", width)
        mlp(moe + "shared_experts", width * shared)
    matrix("model.embed_tokens.weight", cfg["vocab_size"], hidden, gain=math.sqrt(hidden))
    norm("model.norm", hidden)
    if not cfg["tie_word_embeddings"]:
        matrix("lm_head.weight", cfg["vocab_size"], hidden, gain=2.0)
    kind = rng.choice([torch.bfloat16, torch.float32])
    return {k: (v if k.endswith("correction_bias") else v.bfloat16().to(kind)).contiguous() for k, v in w.items()}


def row_error(logits, ref):
    return float((logits.float() - ref).pow(2).mean(-1).sqrt().median())


def compare(rng, folder, binaries, cfg):
    """How many times Hugging Face's own error in bf16 Baton's is, and on which ranks."""
    ref, low = goldens.load(folder)
    ids = [rng.randrange(cfg["vocab_size"]) for _ in range(rng.choice([23, 70, 97]))]
    want = ref.run(torch.tensor([ids])).logits[0].float()
    experts = goldens.ascending(ref.topk)[0].int()
    theirs = row_error(low.run(torch.tensor([ids]), forced=list(experts.long()) if ref.topk else None).logits[0], want)
    case = {"case.ids": torch.tensor(ids, dtype=torch.int32), "case.prompt": torch.tensor([rng.randint(1, len(ids))], dtype=torch.int32)}
    if ref.topk:
        case["case.experts"] = experts.contiguous()
    save_file(case, os.path.join(folder, "case.safetensors"))
    ranks = rng.choice([["--prefill", "1", "--decode", "1"], ["--prefill", "1", "--decode", "2"], ["--both", "2"]])
    route = [*ranks, "--form", rng.choice(["role", "normal", "absorbed"]), *rng.choice([[], ["--chunk", "7"]])]
    subprocess.run([os.path.join(binaries, "baton-logits"), "--model", folder, "--ids", os.path.join(folder, "case.safetensors"), "--out",
                    os.path.join(folder, "out.safetensors"), *route], stderr=subprocess.PIPE, text=True, check=True)
    return row_error(load_file(os.path.join(folder, "out.safetensors"))["case.logits"], want) / theirs, " ".join(route)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", required=True)
    ap.add_argument("--seed", type=int, default=1, help="of the first model; the next ones have the following numbers")
    ap.add_argument("--count", type=int, default=100)
    ap.add_argument("--keep", default="random_models", help="where the folders of failing models go")
    a = ap.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    failed = 0
    for seed in range(a.seed, a.seed + a.count):
        rng, family = random.Random(seed), list(ARCHITECTURES)[seed % len(ARCHITECTURES)]
        folder = tempfile.mkdtemp()
        cfg = config(rng, family)
        json.dump(cfg, open(os.path.join(folder, "config.json"), "w"), indent=1)
        save_file(weights(rng, torch.Generator().manual_seed(seed), cfg), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        try:
            ratio, said = compare(rng, folder, a.bin, cfg)
            ok, said = ratio <= 2, f"{ratio:.2f} of bf16's error, {said}"
        except subprocess.CalledProcessError as e:
            ok, said = False, e.stderr.strip().splitlines()[-1]
        print(f"{seed} {family}: {'ok' if ok else 'FAILED'}: {said}", flush=True)
        failed += not ok
        if ok:
            shutil.rmtree(folder)
        else:
            shutil.move(folder, os.path.join(a.keep, str(seed)))
    print(f"{a.count} models, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
