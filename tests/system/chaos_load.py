"""The kill test's clients: mixed requests one after the other, each stream with the times of its messages."""
import random
import threading
import time

import load

CLIENTS, LONGEST = 6, 512


def requests_of(seed, n):
    """load.random_requests, and some of several choices, and long prompts with nothing in common, so that there is always one to prefill."""
    rng, out = random.Random(seed + 1), []
    for name, ids, most, sampling in load.random_requests(n, seed):
        if sampling.get("min_tokens", 0) > most:
            del sampling["min_tokens"]
        if rng.random() < 0.2 and sampling["temperature"] > 0:
            sampling = dict(sampling, n=rng.choice([2, 3]))
        out.append((name, ids, most, sampling))
    for i in range(n // 2):
        most = rng.randrange(8, 64)
        ids = [0] + load.random_ids(rng, rng.randrange(256, LONGEST - most))
        out.append((f"long{i}", ids, most, dict(temperature=0.8, seed=rng.randrange(1 << 30), ignore_eos=True, logprobs=1)))
    return out


class Stream:
    """One call: what came, and when."""

    def __init__(self, client, request):
        self.name, self.ids, self.most, self.sampling = request
        self.client, self.times, self.result, self.error = client, [], None, None

    def run(self):
        n = self.sampling.get("n", 1)
        got, ends = [([], [], []) for _ in range(n)], [None] * n
        self.times.append(time.monotonic())
        for m in self.client.call(self.name, self.ids, self.most, self.sampling):
            self.times.append(time.monotonic())
            part = m.chunk if m.HasField("chunk") else m.complete
            assert ends[part.index] is None, f"{self.name}: choice {part.index} goes on after its end"
            if m.HasField("complete"):
                ends[part.index] = part.finish_reason
                assert list(part.output_ids) == got[part.index][0], f"{self.name}: the last message has other tokens than the stream"
                continue
            ids, logprobs, tops = got[part.index]
            ids += part.token_ids
            logprobs += part.output_logprobs.token_logprobs
            tops += [(tuple(t.token_ids), tuple(t.values)) for t in part.output_logprobs.top_logprobs]
        assert None not in ends, f"{self.name}: ends {ends}"
        self.result = [(*g, end) for g, end in zip(got, ends)]

    def is_open(self):
        return bool(self.times) and self.result is None and self.error is None

    def silence(self, at, until):
        """The longest one that the fault at `at` can have made; None: it was not being answered then."""
        gaps = [b - a for a, b in zip(self.times, self.times[1:]) if b > at and a < until]
        return max(gaps) if len(self.times) > 1 and self.times[1] < at < self.times[-1] and gaps else None


class Load:
    """Clients that send one request after the other until told to stop."""

    def __init__(self, pb, rpc, cell, requests, rng):
        self.client = load.Client(pb, rpc, cell.channel())
        self.requests, self.rng, self.streams, self.errors = requests, rng, [], []
        self.stopping, self.lock = False, threading.Lock()
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def _work(self):
        while not self.stopping and not self.errors:
            with self.lock:
                stream = Stream(self.client, self.rng.choice(self.requests))
                self.streams.append(stream)
            try:
                stream.run()
            except BaseException as e:
                stream.error = e
                self.errors.append((stream.name, e))

    def open(self):
        return [s for s in self.streams[-2 * CLIENTS:] if s.is_open()]

    def stop(self):
        self.stopping = True
        end = time.monotonic() + load.LIMIT_S
        for t in self.threads:
            t.join(max(0, end - time.monotonic()))
            assert not t.is_alive(), "a request never ended"
