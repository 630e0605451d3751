"""llama.cpp by its C interface (llama-cpp-python), bf16 weights, fp16 cache, flash attention on: as the reference tables ran it."""
import ctypes
import os
import time

import llama_cpp as lc
import numpy as np

UBATCH = 512


class Engine:
    name = "llama.cpp"
    version = f"llama-cpp-python {lc.__version__}"

    def __init__(self, model, threads):
        self.threads, self.context, self.batch, self.gguf = threads, None, None, model["gguf"]
        lc.llama_backend_init()
        self.log = lc.llama_log_callback(lambda level, text, data: None)
        lc.llama_log_set(self.log, ctypes.c_void_p(0))
        self.model = lc.llama_model_load_from_file(model["gguf"].encode(), lc.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {model['gguf']}")
        self.vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))

    def _open(self, sequences, length):
        """A new context: each sequence has cells of its own."""
        self._close()
        p = lc.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = sequences * (-(-length // 256) * 256), max(length, 2048), UBATCH, sequences
        p.n_threads = p.n_threads_batch = self.threads
        p.flash_attn_type, p.kv_unified, p.no_perf = lc.LLAMA_FLASH_ATTN_TYPE_ENABLED, False, True
        self.context = lc.llama_init_from_model(self.model, p)
        if not self.context:
            raise SystemExit(f"llama.cpp has no memory for {sequences} sequences of {length} tokens")
        self.batch = lc.llama_batch_init(max(length, sequences, 2048), 0, 1)

    def _close(self):
        if self.context:
            lc.llama_batch_free(self.batch)
            lc.llama_free(self.context)
        self.context = None

    def _decode(self, rows, outputs):
        """rows: [(token, position, sequence)]; outputs: which of them want logits."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = int(token), position, 1, 0
            b.seq_id[i][0] = sequence
        for i in outputs:
            b.logits[i] = 1
        start = time.perf_counter()
        code = lc.llama_decode(self.context, b)
        lc.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        if code != 0:
            raise SystemExit(f"llama_decode of {len(rows)} rows: code {code}")
        return seconds

    def _row(self, i):
        return np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, i), (self.vocab,))

    def logits(self, ids):
        self._open(1, len(ids))
        self._decode([(t, i, 0) for i, t in enumerate(ids)], range(len(ids)))
        return np.stack([self._row(i).copy() for i in range(len(ids))])

    def prefill(self, ids):
        self._open(1, len(ids) + 1)
        seconds = self._decode([(t, i, 0) for i, t in enumerate(ids)], [len(ids) - 1])
        start = time.perf_counter()
        self._row(len(ids) - 1).argmax()
        return seconds + time.perf_counter() - start

    def _fill(self, ids):
        """Sequence 0 gets this context, or one of the same length that an earlier run has left: a long one takes minutes."""
        path, tokens, n = f"{self.gguf}.{len(ids)}".encode(), (ctypes.c_int32 * len(ids))(), ctypes.c_size_t()
        if os.path.exists(path) and lc.llama_state_seq_load_file(self.context, path, 0, tokens, len(ids), ctypes.byref(n)) != 0:
            return
        self._decode([(t, i, 0) for i, t in enumerate(ids)], [len(ids) - 1])
        lc.llama_state_seq_save_file(self.context, path, 0, (ctypes.c_int32 * len(ids))(*map(int, ids)), len(ids))

    def decode(self, rng, batch, context, steps):
        """Seconds of each step.  The context is computed once and copied into each sequence's own cells; the tokens that are fed differ,
        so that sequences choose experts of their own."""
        self._open(batch, context + steps + 2)
        self._fill(rng.integers(0, self.vocab, context))
        memory = lc.llama_get_memory(self.context)
        for s in range(1, batch):
            lc.llama_memory_seq_cp(memory, 0, s, -1, -1)
        times = []
        for step in range(steps + 2):
            tokens = rng.integers(0, self.vocab, batch)
            seconds = self._decode([(t, context + step, s) for s, t in enumerate(tokens)], range(batch))
            start = time.perf_counter()
            for i in range(batch):
                self._row(i).argmax()
            times.append(seconds + time.perf_counter() - start)
        return times[2:]

    def close(self):
        self._close()
        lc.llama_model_free(self.model)
