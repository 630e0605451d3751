"""Hugging Face transformers on torch for the CPU, with its default cache, as it is fastest here: grouped products for the experts, sdpa
attention for prompts, plain attention for steps (torch's sdpa copies all keys and values there)."""
import time

import numpy as np
import torch
import transformers

PIECE = 1024


class Engine:
    name = "transformers"
    version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def __init__(self, model, threads, experts="grouped_mm"):
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model["folder"], dtype=torch.bfloat16, attn_implementation="sdpa",
                                                                       experts_implementation=experts)
        self.model.eval()
        self.vocab = self.model.config.vocab_size

    @torch.inference_mode()
    def logits(self, ids):
        return self.model(torch.tensor([ids])).logits[0].float().numpy()

    @torch.inference_mode()
    def logits_float32(self, ids):
        """The same weights, all arithmetic in float32: each matrix is widened while it is used."""
        linear = torch.nn.functional.linear
        embed = torch.nn.functional.embedding
        torch.nn.functional.linear = lambda x, w, b=None: linear(x.float(), w.float(), b)
        torch.nn.functional.embedding = lambda i, w, *more, **named: embed(i, w, *more, **named).float()
        try:
            return self.model(torch.tensor([ids])).logits[0].numpy()
        finally:
            torch.nn.functional.linear, torch.nn.functional.embedding = linear, embed

    @torch.inference_mode()
    def prefill(self, ids):
        start = time.perf_counter()
        out = self.model(torch.tensor([[int(i) for i in ids]]), use_cache=True, logits_to_keep=1)
        out.logits[0, -1].argmax().item()
        return time.perf_counter() - start

    def _context(self, ids):
        """The cache of a prompt, in pieces: the scores of 8,192 tokens at once take more memory than there is."""
        cache = transformers.DynamicCache(config=self.model.config)
        for start in range(0, len(ids), PIECE):
            self.model(torch.tensor([[int(i) for i in ids[start:start + PIECE]]]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache

    @torch.inference_mode()
    def decode(self, rng, batch, context, steps):
        cache = self._context(rng.integers(0, self.vocab, context))
        if batch > 1:
            cache.batch_repeat_interleave(batch)
        self.model.set_attn_implementation("eager")
        times = []
        for _ in range(steps + 2):
            tokens = torch.from_numpy(rng.integers(0, self.vocab, (batch, 1)).astype(np.int64))
            start = time.perf_counter()
            out = self.model(tokens, past_key_values=cache, use_cache=True)
            out.logits[:, -1].argmax(-1).tolist()
            times.append(time.perf_counter() - start)
        self.model.set_attn_implementation("sdpa")
        return times[2:]

    def close(self):
        del self.model
