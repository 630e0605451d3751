"""Golden outputs of a model's layer for multi-token prediction, over the ids of its golden cases (goldens.py).

    python tests/oracles/goldens_mtp.py --model models/demo --out tests/fixtures/demo

transformers leaves the layer out, so it is loaded as one decoder layer more and run by the formula of DeepSeek-V3 (arXiv 2412.19437
section 2.2, in the order of the published weights): row i is
    x = eh_proj [ enorm(embed(ids[i+1])) | hnorm(h_i) ],  h_i the main model's output after its final norm;  the layer, at position i;
    logits = lm_head shared_head.norm(.)
The yardsticks are those of goldens.py: the float32 run on the bf16 weights, and the error of the bf16 run with free routing.

Written to --out:  mtp.safetensors, per case NAME of T tokens, the last R of its rows 0 .. T-2 (24 of demo, all of a micro model):
    NAME.logits     f32 [R, V]
    NAME.experts    i32 [T-1, k]    experts that the layer's gate chooses in the float32 run, ascending
    NAME.chained    f32 [R', V]     of the first case: the second draft of row i, of the last rows of 0 .. T-3.  In place of h_i stands what
                                    shared_head.norm makes of row i, with ids[i+2], at position i+1, behind the rows 0 .. i of the first
and mtp.json, per case and for NAME.chained: first_position (the first row's i), logits_rms, and bf16_median_row_error, bf16_rows_rerouted
(another expert in some layer, this one included) over these rows.
"""
import argparse, json, os, shutil
import torch
from goldens import Tracer, ascending, dequantised
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

LOGITS_KEPT = 50000  # of a case


class Mtp:
    """The main model and the layer, taken out of it."""

    def __init__(self, src, dtype):
        cfg = json.load(open(os.path.join(src, "config.json")))
        self.n = cfg["num_hidden_layers"]
        config = AutoConfig.for_model(**{**cfg, "num_hidden_layers": self.n + 1})
        model = AutoModelForCausalLM.from_pretrained(src, config=config, dtype=dtype, attn_implementation="eager",
                                                     experts_implementation="eager").eval()
        self.tracer, self.main, self.layer, self.keep = Tracer(model), model, model.model.layers[self.n], LOGITS_KEPT // config.vocab_size
        model.model.layers = model.model.layers[: self.n]
        w, p = load_file(os.path.join(src, "model.safetensors")), f"model.layers.{self.n}."
        h = config.hidden_size
        self.eh_proj = torch.nn.Linear(2 * h, h, bias=False)
        self.enorm, self.hnorm, self.norm = (type(model.model.norm)(h, eps=config.rms_norm_eps) for _ in range(3))
        for module, name in ((self.eh_proj, "eh_proj"), (self.enorm, "enorm"), (self.hnorm, "hnorm"), (self.norm, "shared_head.norm")):
            module.load_state_dict({"weight": w[p + name + ".weight"]})
            module.to(dtype)
        for copy, of in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
            assert torch.equal(w[p + copy + ".weight"], w[of + ".weight"]), "one embedding and one head"

    def run_main(self, ids):
        """The final norm's output for ids [1, n]; keeps what the layers were called with."""
        kept, normed = {}, []
        hooks = [self.main.model.layers[-1].register_forward_pre_hook(lambda m, a, kw: kept.update(kw), with_kwargs=True),
                 self.main.model.norm.register_forward_hook(lambda m, a, out: normed.append(out))]
        self.tracer.run(ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        self.kw = {k: kept[k] for k in ("attention_mask", "position_ids", "position_embeddings")}
        return normed[0]

    def join(self, hidden, ids):
        return self.eh_proj(torch.cat([self.enorm(self.main.model.embed_tokens(ids)), self.hnorm(hidden)], -1))

    def run_layer(self, x):
        """After shared_head.norm, of joined rows that stand at positions 0 .. n-1."""
        n = x.shape[1]
        y = self.layer(x, attention_mask=self.kw["attention_mask"][:, :, :n, :n], position_ids=self.kw["position_ids"][:, :n],
                       position_embeddings=tuple(e[:, :n] for e in self.kw["position_embeddings"]))
        return self.norm(y[0] if isinstance(y, tuple) else y)

    @torch.no_grad()
    def drafts(self, ids, chained):
        """Logits of rows 0 .. T-2, experts [Lm+1, T-1, k] and the logits of the second drafts of the last rows of 0 .. T-3."""
        first = self.join(self.run_main(ids[:, :-1]), ids[:, 1:])
        out = self.run_layer(first)
        logits, experts, more = self.main.lm_head(out)[0].float(), ascending(self.tracer.topk)[0], []
        if chained:
            second = self.join(out[:, :-1], ids[:, 2:])
            for i in range(max(second.shape[1] - self.keep, 0), second.shape[1]):
                y = self.run_layer(torch.cat([first[:, : i + 1], second[:, i: i + 1]], 1))
                more.append(self.main.lm_head(y[:, -1:])[0, 0].float())
        return logits, experts, torch.stack(more) if chained else None


def compare(want, got, n_rows):
    rows = (got - want).pow(2).mean(-1).sqrt()
    return dict(first_position=n_rows - want.shape[0], logits_rms=float(want.pow(2).mean().sqrt()), bf16_median_row_error=float(rows.median()))


def case(name, ref, low, ids, chained, tensors, table):
    x, n, keep = torch.tensor([ids]), len(ids) - 1, ref.keep
    logits, experts, more = ref.drafts(x, chained)
    free, moved, more_free = low.drafts(x, chained)
    moved = (moved != experts).any(-1).any(0)[-keep:]
    tensors[f"{name}.logits"], tensors[f"{name}.experts"] = logits[-keep:].contiguous(), experts[-1].int().contiguous()
    table[name] = dict(compare(logits[-keep:], free[-keep:], n), bf16_rows_rerouted=int(moved.sum()))
    if chained:
        tensors[f"{name}.chained"], table[f"{name}.chained"] = more.contiguous(), compare(more, more_free, n - 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    torch.set_num_threads(1)
    src = dequantised(a.model)
    ref, low = Mtp(src, torch.float32), Mtp(src, torch.bfloat16)
    if src != a.model:
        shutil.rmtree(src)
    cases, info = load_file(os.path.join(a.out, "cases.safetensors")), json.load(open(os.path.join(a.out, "cases.json")))
    tensors, table = {}, {}
    for i, name in enumerate(info):
        case(name, ref, low, cases[name + ".ids"].tolist(), i == 0, tensors, table)
    save_file(tensors, os.path.join(a.out, "mtp.safetensors"))
    json.dump(table, open(os.path.join(a.out, "mtp.json"), "w"), indent=1)
    for k, v in table.items():
        print(a.out, k, {b: (round(c, 5) if isinstance(c, float) else c) for b, c in v.items()}, flush=True)


if __name__ == "__main__":
    main()
