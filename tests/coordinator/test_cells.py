"""Several cells behind one coordinator: placement by load, drain, loss and replacement, with every stream exact."""
import threading
import time
import unittest

import grpc

from harness import WAIT_S, Cell, Coordinator, Rank, Served, control, expected, main, vllm, vllm_grpc, wait_for

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class NamedCell(Cell):
    """Ranks that say which cell they are of; notes what they are to replay."""

    def __init__(self, address, name, hello=None, **kw):
        super().__init__(address, hello=dict(hello or {}, name=name), **kw)
        self.name = name
        self.replays = []

    def on_reserve(self, rank, m):
        if m.replay:
            self.replays.append((m.request, list(m.replay)))
        super().on_reserve(rank, m)


class Cells(unittest.TestCase):
    ARGS = ()
    all_released = Served.all_released

    def setUp(self):
        self.coordinator = Coordinator(*self.ARGS)
        self.addCleanup(self.coordinator.close)
        self.control = self.coordinator.line("control")
        self.ids = 0

    def start(self, name, **kw):
        cell = NamedCell(self.control, name, **kw).attach().ready()
        self.addCleanup(cell.close)
        wait_for(lambda: f"serving {name}" in self.coordinator.lines, f"the cell {name}")
        return cell

    def open(self):
        self.channel = grpc.insecure_channel(self.coordinator.line("ready"))
        self.addCleanup(self.channel.close)
        self.stub = vllm_grpc.VllmEngineStub(self.channel)

    def send(self, prompt, n=20, timeout=WAIT_S):
        self.ids += 1
        request = vllm.GenerateRequest(request_id=f"r{self.ids}", stream=True, tokenized=vllm.TokenizedInput(input_ids=prompt),
                                       sampling_params=vllm.SamplingParams(max_tokens=n, temperature=0.0))
        return self.stub.Generate(request, timeout=timeout)

    def check(self, call, prompt, n=20):
        """The stream is the undisturbed one, chunk by chunk, and ends once."""
        out, ends = [], 0
        for m in call:
            if m.HasField("chunk"):
                out += m.chunk.token_ids
            else:
                ends += 1
        self.assertEqual(out, expected(prompt, n))
        self.assertEqual(ends, 1)

    def end(self):
        self.coordinator.process.terminate()
        self.assertEqual(self.coordinator.wait(), 0, self.coordinator.text())


class Placement(Cells):
    def test_requests_spread_over_cells_of_different_sizes(self):
        a, b = self.start("a"), self.start("b", prefill=1, decode=1)
        self.open()
        a.gate.clear()
        b.gate.clear()
        prompts = [[200 + i, 7, 8] for i in range(9)]
        calls = [self.send(p) for p in prompts]
        wait_for(lambda: len(a.seen("reserve")) + len(b.seen("reserve")) == 9, "all placed")
        self.assertGreater(len(a.seen("reserve")), len(b.seen("reserve")))  # it has twice the ranks
        self.assertGreaterEqual(len(b.seen("reserve")), 2)
        a.gate.set()
        b.gate.set()
        for call, p in zip(calls, prompts):
            self.check(call, p)
        self.end()

    def test_a_cached_prefix_counts_as_work_done(self):
        a, b = self.start("a"), self.start("b")
        self.open()
        prefix, other = list(range(100, 740)), list(range(200, 840))
        a.gate.clear()
        busy = self.send(other)
        wait_for(lambda: len(a.seen("reserve")) == 1, "the first one in a")
        self.check(self.send([*prefix, 1]), [*prefix, 1])    # so that this one goes to b
        self.assertEqual(len(b.seen("reserve")), 1)
        a.gate.set()
        self.check(busy, other)
        for i in range(2, 5):    # both have nothing to do, and a comes first
            self.all_released()
            self.check(self.send([*prefix, i]), [*prefix, i])
            self.assertEqual(len(b.seen("reserve")), i)
        b.gate.clear()
        calls = [self.send([*prefix, 10 + i]) for i in range(24)]    # more work waits in b than the prefix would save: a helps
        wait_for(lambda: len(a.seen("reserve")) + len(b.seen("reserve")) > 6 and len(a.seen("reserve")) > 1, "one more in a")
        b.gate.set()
        for i, call in enumerate(calls):
            self.check(call, [*prefix, 10 + i])
        self.end()

    def test_choices_that_a_small_cell_cannot_hold_together_go_to_a_large_one(self):
        small, large = self.start("small", prefill=1, decode=1, pages=4), self.start("large")
        self.open()
        small.gate.clear()
        large.gate.clear()
        prompts = [[200 + i, *range(300, 900)] for i in range(8)]  # each more than the small one can hold
        calls = [self.send(p) for p in prompts]
        wait_for(lambda: len(large.seen("reserve")) == 8, "load")
        request = vllm.GenerateRequest(request_id="four", tokenized=vllm.TokenizedInput(input_ids=[300, 7]),
                                       sampling_params=vllm.SamplingParams(max_tokens=100, n=4, temperature=0.0))
        call = self.stub.Generate(request, timeout=WAIT_S)
        wait_for(lambda: len(small.seen("reserve")) + len(large.seen("reserve")) == 9, "the request")
        self.assertEqual(small.seen("reserve"), [])
        call.cancel()
        for gate in (small.gate, large.gate):
            gate.set()
        for c, p in zip(calls, prompts):
            self.check(c, p)
        self.end()

    def test_what_waits_in_a_full_cell_goes_to_one_with_room(self):
        a = self.start("a", prefill=1, decode=1, pages=2, max_rows=1)
        self.open()
        a.gate.clear()
        first = self.send([300, 1, 1])
        wait_for(lambda: len(a.seen("prefill")) == 1, "the first")
        second = self.send([301, 1, 1])  # one row a step: it waits
        time.sleep(0.3)
        self.assertEqual(len(a.seen("reserve")), 1)
        b = self.start("b", prefill=1, decode=1)
        self.check(second, [301, 1, 1])
        self.assertEqual(len(b.seen("prefill")), 1)
        a.gate.set()
        self.check(first, [300, 1, 1])
        self.end()

    def test_cells_that_compute_other_bits_are_refused(self):
        a = self.start("a")
        self.open()
        for fields, words in ((dict(model_fingerprint=78), "another model"), (dict(arithmetic="tile32"), "arithmetic"),
                              (dict(n_ranks=4, n_prefill=0, n_decode=0), "both roles"), (dict(page_tokens=32), "page_tokens")):
            r = Rank(a, 0, name="b", **fields)
            wait_for(lambda: r.end is not None, "the refusal")
            self.assertIn(words, r.end[1])
            self.assertRegex(r.end[1], 'rank 0 of cell "b" on .*rank \\d of cell "a" on')
            r.cut()
        bad = Rank(a, 0, name="no such name!")
        wait_for(lambda: bad.end is not None, "the refusal")
        bad.cut()
        self.check(self.send([400, 1]), [400, 1])
        self.end()

    def test_a_cell_that_never_completes_is_forgotten_alone(self):
        self.coordinator.close()
        self.coordinator = Coordinator("--attach-s", "8")    # so long all ranks of a cell may take on a busy machine
        self.addCleanup(self.coordinator.close)
        self.control = self.coordinator.line("control")
        self.start("a")
        self.open()
        half = NamedCell(self.control, "b")
        self.addCleanup(half.close)
        half.ranks = [Rank(half, 2, name="b")]
        wait_for(lambda: any(l.startswith("lost b: ranks 0, 1, 3 of 4") for l in self.coordinator.lines), "the loss")
        self.check(self.send([400, 1]), [400, 1])
        wait_for(lambda: "left b" in self.coordinator.lines, "its end")
        b = self.start("b")
        wait_for(lambda: len(b.seen("welcome")) == 4, "all ranks' welcome")
        self.end()


class Change(Cells):
    def test_a_lost_cell_s_requests_go_on_in_another_one(self):
        a = self.start("a")
        self.open()
        a.split_after = 6
        prompts = [[500 + i, 3] for i in range(6)]
        calls = [self.send(p, 40) for p in prompts]
        got = [[next(c)] for c in calls]  # streaming; tokens may come together
        b = self.start("b")
        a.ranks[3].cut()
        for call, p, first in zip(calls, prompts, got):
            self.check(iter(list(first) + list(call)), p, 40)
        self.assertEqual(len(b.replays), 6)
        wait_for(lambda: any(l.startswith("lost a: decode rank 3 of cell a") for l in self.coordinator.lines), "word of the loss")
        wait_for(lambda: "left a" in self.coordinator.lines, "the rest of it")
        self.end()

    def test_drained_and_replaced_under_load(self):
        a = self.start("a")
        self.open()
        stop, failures, n_done = threading.Event(), [], [0]

        def load(i):
            k = 0
            while not stop.is_set():
                prompt = [200 + i, 200 + k % 700]
                try:
                    self.check(self.stub.Generate(vllm.GenerateRequest(
                        request_id=f"load-{i}-{k}", stream=True, tokenized=vllm.TokenizedInput(input_ids=prompt),
                        sampling_params=vllm.SamplingParams(max_tokens=30, temperature=0.0)), timeout=WAIT_S), prompt, 30)
                    n_done[0] += 1
                except Exception as e:  # noqa: BLE001
                    failures.append(e)
                    return
                k += 1
        threads = [threading.Thread(target=load, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        self.addCleanup(stop.set)
        cells = [a]
        for name in ("b", "c", "d"):
            cells.append(self.start(name))
            n = n_done[0]
            cells[-2].ranks[0].send(drain=control.Drain())
            wait_for(lambda: f"left {cells[-2].name}" in self.coordinator.lines, "the drained cell's end")
            wait_for(lambda: n_done[0] > n + 20 or failures, "requests on the new one")
        stop.set()
        for t in threads:
            t.join()
        self.assertEqual(failures, [])
        for cell in cells[:3]:
            cell.wait_shutdown()
        self.end()

    def test_drained_last_cell_ends_the_coordinator(self):
        a = self.start("a")
        self.open()
        a.gate.clear()
        call = self.send([600, 1])
        wait_for(lambda: a.seen("prefill"), "the request")
        for r in a.ranks:
            r.send(drain=control.Drain())
        time.sleep(0.3)
        self.assertIsNone(self.coordinator.process.poll())
        a.gate.set()
        self.check(call, [600, 1])
        self.assertEqual(self.coordinator.wait(), 0, self.coordinator.text())


class Wait(Cells):
    ARGS = ("--on-death", "restart", "--cell-wait-s", "100", "--http-port", "0")

    def status(self):
        import json
        import urllib.request
        with urllib.request.urlopen(f"http://{self.coordinator.line('http')}/status.json", timeout=WAIT_S) as f:
            return json.load(f)

    def phase(self):
        return self.status()["phase"]

    def test_requests_wait_for_the_cell_to_come_back(self):
        a = self.start("")
        self.open()
        a.split_after = 5
        call = self.send([700, 2], 40)
        got = [next(call)]
        a.ranks[0].cut()
        wait_for(lambda: self.phase() == "waiting", "the phase")
        fresh = self.send([701, 2])  # taken while nobody serves
        wait_for(lambda: [(q["state"], q["prompt"]) for q in self.status()["open_requests"]] == [("queued", 2)] * 2, "both to be shown")
        wait_for(lambda: "left " in self.coordinator.lines, "the old ranks' end")
        again = NamedCell(self.control, "").attach().ready()
        self.addCleanup(again.close)
        self.check(iter(got + list(call)), [700, 2], 40)
        self.check(fresh, [701, 2])
        (_, replay), = again.replays
        self.assertEqual(replay, expected([700, 2], 40)[:len(replay)])
        self.assertTrue(1 <= len(replay) <= 5, replay)
        wait_for(lambda: self.phase() == "serving", "the phase")
        self.end()


class WaitInVain(Wait):
    ARGS = ("--on-death", "restart", "--cell-wait-s", "3", "--http-port", "0")
    test_requests_wait_for_the_cell_to_come_back = None

    def test_no_cell_comes_back(self):
        a = self.start("")
        self.open()
        a.split_after = 5
        call = self.send([700, 2], 40)
        next(call)
        aborted = self.send([702, 2], 40)
        next(aborted)
        a.ranks[0].cut()
        wait_for(lambda: self.phase() == "waiting", "the phase")
        aborted.cancel()
        with self.assertRaises(grpc.RpcError) as e:
            list(call)
        self.assertEqual(e.exception.code(), UNAVAILABLE)
        self.assertIn("no cell that could go on with it came within 3.0 s", e.exception.details())
        self.end()


if __name__ == "__main__":
    main()
