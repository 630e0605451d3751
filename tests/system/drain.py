#!/usr/bin/env python3
"""A drain under load: what has begun ends well, what comes later is refused, and no call of a client without deadlines stays open, also
none that was on its way when the server left.

    drain.py --bin DIR --source DIR [--rounds N]"""
import os
import random
import signal
import sys
import threading
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

CLIENTS, REFUSALS, END_S = 24, 20, 180


class Client:
    """Asks again and again, until it has been refused so often that the server must be gone."""

    def __init__(self, pb, stub, number):
        self.pb, self.stub, self.number, self.rng = pb, stub, number, random.Random(number)
        self.ended, self.refused, self.wrong, self.asked = 0, 0, [], 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def ask(self):
        self.asked += 1
        q = self.pb.GenerateRequest(request_id=f"{self.number}-{self.asked}", stream=self.rng.random() < 0.7)
        q.tokenized.input_ids.extend(load.random_ids(self.rng, self.rng.choice([5, 100, 600])))
        q.sampling_params.max_tokens, q.sampling_params.ignore_eos = self.rng.choice([1, 5, 20]), True
        messages = 0
        try:
            for _ in self.stub.Generate(q):  # no deadline
                messages += 1
            self.ended += 1
        except grpc.RpcError as e:
            self.refused += 1
            if messages or e.code() != grpc.StatusCode.UNAVAILABLE:
                self.wrong.append(f"{q.request_id}: {e.code()} after {messages} messages: {e.details()}")

    def run(self):
        while self.refused < REFUSALS:
            self.ask()
            if self.refused:
                time.sleep(self.rng.choice([0, 0, 0.001, 0.02, 0.1]))


def drain(a, pb, rpc, i):
    rng = random.Random(i)
    with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), rng.choice(["1+1", "both1"]), "--queue-s", "600") as cell:
        channels = [cell.channel() for _ in range(rng.choice([1, 4]))]
        clients = [Client(pb, rpc.VllmEngineStub(channels[k % len(channels)]), k) for k in range(CLIENTS)]
        time.sleep(rng.uniform(0.3, 1.0))
        early = [c.wrong or c.refused for c in clients]
        assert not any(early), f"before the drain: {early}"
        cell.process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + END_S
        for c in clients:
            c.thread.join(max(0, end - time.monotonic()))
        open_ = [f"{c.number}-{c.asked}" for c in clients if c.thread.is_alive()]
        assert not open_, f"round {i}: {END_S} s after the drain began these calls are open: {open_}"
        wrong = [w for c in clients for w in c.wrong]
        assert not wrong, f"round {i}: {wrong}"
        assert cell.wait_gone() == 0, cell.log()
        [c.close() for c in channels]
    return sum(c.ended for c in clients), sum(c.refused for c in clients)


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--rounds", type=int, default=8)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    counts = [drain(a, pb, rpc, i) for i in range(a.rounds)]
    print(f"{a.rounds} drains with {CLIENTS} clients: {sum(c[0] for c in counts)} requests ended well, {sum(c[1] for c in counts)} were refused, "
          "none stayed open")
    return 0


sys.exit(main())
