#!/usr/bin/env python3
"""Law A where law B is waived, on real ranks: a request that is placed again with its form map goes on bit by bit.

    waived.py WORKER SOURCE

A small coordinator in this process runs a request on one cell and keeps its tokens, logprobs and form map.  Then a cell of another shape,
with other pieces and nothing cached, gets the same request with the map and the first tokens as a replay: the rest must be equal to the
bit.  Without the map it is not, so that the test could fail."""
import concurrent.futures
import ctypes
import ctypes.util
import os
import queue
import random
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import grpc
    import stubs
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

WORKER, SOURCE = sys.argv[1:]
WAIT_S, PAGE, VOCAB, SEED, GIVEN = 180, 64, 2048, 99, 5

(control, control_grpc), = stubs.generate(SOURCE, "control")


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


xxh = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
xxh.XXH3_128bits_withSeed.restype = Hash
xxh.XXH3_128bits_withSeed.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]


def prefix_keys(ids):
    """proto/prefix_key.h, once more."""
    keys, before = b"", (SEED, ~SEED % 2**64)
    for i in range(len(ids) // PAGE):
        page = (ctypes.c_uint32 * PAGE)(*ids[i * PAGE:(i + 1) * PAGE])
        own = xxh.XXH3_128bits_withSeed(page, ctypes.sizeof(page), SEED)
        link = (ctypes.c_uint64 * 4)(*before, own.low, own.high)
        both = xxh.XXH3_128bits_withSeed(link, ctypes.sizeof(link), SEED)
        before = (both.low, both.high)
        keys += both.low.to_bytes(8, "little") + both.high.to_bytes(8, "little")
    return keys


class Cell(control_grpc.ControlServicer):
    """Ranks under mpirun, and what the coordinator does for them: one request at a time."""

    def __init__(self, shape, *flags):
        self.both = shape == "both1"
        n = 1 if self.both else 2
        self.out, self.news, self.wakes, self.number = [queue.Queue() for _ in range(n)], queue.Queue(), 0, 0
        self.share = "--share-generated" in flags
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(2 * n))
        control_grpc.add_ControlServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        roles = ["--both", "1"] if self.both else ["--prefill", "1", "--decode", "1"]
        self.ranks = subprocess.Popen(["mpirun", "-n", str(n), WORKER, "--model", f"{SOURCE}/models/demo", "--coordinator", f"127.0.0.1:{port}",
                                       "--kv-bytes", "64M", *roles, *flags])
        for _ in range(n):
            self.expect("ready")

    def Attach(self, messages, context):
        context.send_initial_metadata((("baton-control", "1"),))  # by which ranks know a coordinator
        rank = next(messages).hello.rank
        self.out[rank].put(control.ToWorker(welcome=control.Welcome(epoch=1)))

        def read():
            try:
                for m in messages:
                    self.news.put((rank, m.WhichOneof("body"), m))
            except grpc.RpcError:
                pass
            self.out[rank].put(None)
        threading.Thread(target=read, daemon=True).start()
        yield from iter(self.out[rank].get, None)

    def wake(self):
        self.wakes += 1
        for q in self.out:
            q.put(control.ToWorker(wake=control.Wake(wake=self.wakes)))

    def expect(self, *kinds):
        while True:
            rank, kind, m = self.news.get(timeout=WAIT_S)
            if kind == "wake_request":
                self.wake()
            assert kind not in ("failed", "leaving", "retracted"), m
            if kind in kinds:
                return rank, getattr(m, kind)

    def run(self, prompt, n, form_map=b"", replay=()):
        """({position: (id, logprob)}, form map, tokens that the decode rank held)"""
        self.number += 1
        head = dict(request=self.number, epoch=1, form_map=form_map, prefix_keys=prefix_keys(prompt),
                    sampling=control.Sampling(temperature=0.9, seed=11, max_tokens=n, ignore_eos=True, logprobs=True))
        self.out[-1].put(control.ToWorker(reserve=control.Reserve(
            n_prompt=len(prompt), prefill_rank=0, arrival=self.number, replay=replay, prefix_seed=SEED if self.share else 0,
            prompt_tokens=prompt if self.share else [], **head)))
        self.wake()
        _, ticket = self.expect("ticket")
        assert not ticket.refused
        head["form_map"] = form_map or ticket.form_map
        self.out[0].put(control.ToWorker(prefill=control.Prefill(prompt=prompt, decode_rank=len(self.out) - 1, pages=ticket.pages,
                                                                 held_tokens=ticket.held_tokens, **head)))
        self.wake()
        got, released, used = {}, 0, None
        while released < len(self.out):
            _, m = self.expect("tokens", "released", "form_map")
            if isinstance(m, control.FormMap):
                used = m.form_map
            elif isinstance(m, control.Released):
                released += 1
            else:
                for t in m.tokens:
                    assert got.setdefault(t.position - len(prompt), (t.id, t.logprob)) == (t.id, t.logprob)
        return got, used, ticket.held_tokens

    def close(self):
        for q in self.out:
            q.put(control.ToWorker(shutdown=control.Shutdown(reason="the test is over")))
        assert self.ranks.wait(WAIT_S) == 0
        self.server.stop(0).wait()


def check(what, got, want, n):
    assert all(got[i] == want[i] for i in range(GIVEN, n)), f"{what}: {got} is not {want}"


def go_on(what, shape, flags, prompt, n, want, form_map):
    cell = Cell(shape, *flags)
    free, other, _ = cell.run(prompt, n)
    assert other != form_map and any(free[i] != want[i] for i in range(n)), f"{what}: the map changes nothing here"
    got, used, _ = cell.run(prompt, n, form_map, [want[i][0] for i in range(GIVEN)])
    assert used == form_map, f"{what}: replayed with another map"
    check(what, got, want, n)
    cell.close()
    print(f"{what}: {n - GIVEN} tokens after a replay on {shape} are equal, bit by bit", flush=True)


def bits(form_map, word):
    return sum(bin(int.from_bytes(form_map[i:i + 8], "little")).count("1") for i in range(8 * word, len(form_map), 16))


def main():
    rng, n = random.Random(4), 40
    prompt = [rng.randrange(8, VOCAB) for _ in range(200)]
    for first, second in (("1+1", "both1"), ("both1", "1+1")):
        cell = Cell(first, "--form", "cost", "--chunk", "48")
        want, form_map, _ = cell.run(prompt, n)
        again, _, _ = cell.run(prompt, n)  # from the cache, whose map it takes over
        assert again == want and 0 < bits(form_map, 1) < len(prompt) and bits(form_map, 0) == 0
        cell.close()
        go_on("--form cost", second, ("--form", "cost", "--chunk", "512"), prompt, n, want, form_map)

        cell = Cell(first, "--share-generated", "--chunk", "64")
        reply, plain, _ = cell.run(prompt, 80)
        assert bits(plain, 0) == bits(plain, 1) == 0
        longer = prompt + [reply[i][0] for i in range(80)] + prompt[:10]
        want, form_map, held = cell.run(longer, n)
        assert held == 256 and bits(form_map, 0) == bits(form_map, 1) == 256 - len(prompt), (held, bits(form_map, 0))
        cell.close()
        go_on("--share-generated", second, ("--share-generated", "--chunk", "100"), longer, n, want, form_map)


main()
