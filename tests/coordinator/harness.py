"""A coordinator process and a cell of scripted ranks that speak the control protocol to it.

The ranks compute a function that a test can compute too: token i after a prompt is
(sum(prompt) + 7 i) mod vocab (never the end-of-text id by itself), logprob -(i + 1) / 8, and the
end-of-text token comes at index prompt[0] when prompt[0] < 100.
"""
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
try:
    import grpc
    import stubs
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BINARY = os.environ["BT_COORDINATOR"]
os.environ["BATON_RANK_TIMEOUT_S"] = "100"  # above WAIT_S: scripted ranks say nothing while a test waits, however busy the machine
os.environ["no_proxy"] = "127.0.0.1,::1,[::1]"  # whatever proxies the environment names
WAIT_S = 60.0  # a busy machine keeps a test waiting, and nothing is held by how long
VOCAB, CONTEXT, EOS, PAGE_TOKENS = 1000, 2048, 1, 64

(control, control_grpc), (vllm, vllm_grpc), (sglang, sglang_grpc), (health, health_grpc), (reflection, _) = stubs.generate(
    SOURCE, "control", "vllm_engine", "sglang_scheduler", "health", "reflection")


def expected(prompt, n, ignore_eos=False):
    """The first n tokens after the prompt, cut behind the end-of-text token."""
    out = []
    for i in range(n):
        if prompt[0] < 100 and i == prompt[0] and not ignore_eos:
            return out + [EOS]
        token = (sum(prompt) + 7 * i) % VOCAB
        out.append(token if token != EOS else 2)
    return out


def logprob(i):
    return -(i + 1) / 8


def wait_for(condition, what, seconds=WAIT_S):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.002)


class Rank:
    """One rank: a thread reads its stream; replies go through a queue."""

    def __init__(self, cell, rank, name="", **hello):
        self.cell, self.rank = cell, rank
        self.out = queue.Queue()
        self.seen = []  # every message, in order
        self.held = {}  # request -> Reserve
        self.end = None  # the status that ended the stream
        facts = dict(protocol=1, cell=name, rank=rank, n_ranks=cell.n, n_prefill=cell.prefill, n_decode=cell.decode,
                     host="testhost", pid=1000 + rank, model_fingerprint=77, arithmetic="test", n_pages=cell.pages,
                     page_tokens=PAGE_TOKENS, max_rows=cell.max_rows, epoch=4, vocab_size=VOCAB,
                     max_context=CONTEXT, eos_tokens=[EOS], bos_token=0, pad_token=-1, model_type="deepseek_v3",
                     architecture="DeepseekV3ForCausalLM",
                     default_sampling_json='{"temperature": 0.6, "top_p": 0.95}')
        facts.update(hello)
        self.send(hello=control.Hello(**facts))
        self.channel = grpc.insecure_channel(cell.address)
        self.call = control_grpc.ControlStub(self.channel).Attach(iter(self.out.get, None), metadata=cell.metadata)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def send(self, **body):
        self.out.put(control.FromWorker(**body))

    def _read(self):
        try:
            for m in self.call:
                kind = m.WhichOneof("body")
                self.seen.append((kind, getattr(m, kind)))
                self.cell.on_message(self, kind, getattr(m, kind))
            self.end = (grpc.StatusCode.OK, "")
        except grpc.RpcError as e:
            self.end = (e.code(), e.details())

    def count(self, kind):
        return sum(1 for k, _ in self.seen if k == kind)

    def leave(self):
        self.out.put(None)

    def cut(self):
        self.call.cancel()
        self.channel.close()


class Cell:
    """All ranks.  Hooks: gate (set: tokens flow), tickets_to_refuse, on_prefill (replaces the default)."""

    def __init__(self, address, prefill=2, decode=2, both=0, pages=64, max_rows=64, hello=None):
        self.address, self.pages, self.max_rows, self.hello = address, pages, max_rows, hello or {}
        self.prefill, self.decode = (0, 0) if both else (prefill, decode)
        self.n = both or prefill + decode
        self.lock = threading.RLock()
        self.gate = threading.Event()
        self.gate.set()
        self.tickets_to_refuse = 0
        self.on_prefill = None
        self.repeats_replayed = False  # the decode rank sends again what is replayed
        self.split_after = None  # tokens after which decoding waits for more_gate
        self.more_gate = threading.Event()
        self.aborted = set()
        self.dropped = set()  # (request, choice) that the client needs no more
        self.leave_on_shutdown = True
        self.metadata = None  # headers of the ranks' streams
        self.ranks = []

    def attach(self):
        self.ranks = [Rank(self, i, **self.hello) for i in range(self.n)]
        return self

    def ready(self):
        for r in self.ranks:
            r.send(progress=control.Progress(done_bytes=5, total_bytes=10))
            r.send(ready=control.Ready())
        return self

    def on_message(self, rank, kind, m):
        with self.lock:
            if kind == "reserve":
                self.on_reserve(rank, m)
            elif kind == "prefill":
                reserve = self.ranks[m.decode_rank].held.get(m.request)
                threading.Thread(target=self.on_prefill or self.generate, args=(rank, reserve, m), daemon=True).start()
            elif kind == "abort" and m.only_choice:
                self.dropped.add((m.request, m.only_choice - 1))
            elif kind == "abort":
                self.aborted.add(m.request)
                rank.held.pop(m.request, None)
                rank.send(released=control.Released(request=m.request, epoch=m.epoch))
            elif kind == "shutdown" and self.leave_on_shutdown:
                rank.send(leaving=control.Leaving(reason="as asked"))
                rank.leave()

    def on_reserve(self, rank, m):
        if self.tickets_to_refuse > 0:
            self.tickets_to_refuse -= 1
            rank.send(ticket=control.Ticket(request=m.request, epoch=m.epoch, refused=True))
            return
        n = -(-(m.n_prompt + m.sampling.max_tokens) // PAGE_TOKENS)
        rank.held[m.request] = m
        rank.send(ticket=control.Ticket(request=m.request, epoch=m.epoch,
                                        pages=[control.Page(id=i, generation=m.request) for i in range(n)]))

    def tokens(self, reserve, prompt):
        s = reserve.sampling
        ids = expected(list(prompt), s.max_tokens, s.ignore_eos)
        out = []
        for i, token in enumerate(ids):
            finish = control.GOES_ON
            if token == EOS and not s.ignore_eos:
                finish = control.STOP_EOS
            elif token in s.stop_token_ids:
                finish = control.STOP_TOKEN
            elif i + 1 == s.max_tokens:
                finish = control.LENGTH
            out.append(control.Token(request=reserve.request, position=len(prompt) + i, epoch=reserve.epoch, id=token,
                                     logprob=logprob(i), finish=finish))
            if finish != control.GOES_ON:
                break
        return out

    def generate(self, rank, reserve, m):
        """First token from the prefill rank, then all but what is replayed from the decode rank; where nothing is, the first one again."""
        self.gate.wait(WAIT_S)
        if m.request in self.aborted:
            return
        tokens = self.tokens(reserve, m.prompt)
        decode = self.ranks[m.decode_rank]
        released = control.Released(request=m.request, epoch=m.epoch)
        both = decode is rank
        if not both:
            rank.send(tokens=control.Tokens(tokens=tokens[:1]))
            rank.send(released=released)
            if len(tokens) == 1:
                return  # the coordinator aborts on the decode rank
        for i, t in enumerate(tokens):
            if self.split_after is not None and i == self.split_after:
                self.more_gate.wait(10 * WAIT_S)
            if i < len(reserve.replay) and not self.repeats_replayed:
                continue
            with self.lock:
                if m.request not in decode.held:
                    return
                decode.send(tokens=control.Tokens(tokens=[t]))
        decode.held.pop(m.request, None)
        decode.send(released=released)

    def stand_still_once(self):
        """The first hand-off from now on does: (prefill rank, decode rank) comes to the list that is returned."""
        pairs = []

        def hand_over(rank, reserve, m):
            with self.lock:
                still = not pairs
                if still:
                    pairs.append((rank.rank, m.decode_rank))
            if still:
                rank.send(failed=control.Failed(request=m.request, epoch=m.epoch, code=14, message="no grant", stands_still=True))
                rank.send(released=control.Released(request=m.request, epoch=m.epoch))
            else:
                self.generate(rank, reserve, m)
        self.on_prefill = hand_over
        return pairs

    def seen(self, kind):
        return [(r.rank, m) for r in self.ranks for k, m in r.seen if k == kind]

    def wait_shutdown(self, ranks=range(4)):
        """These ranks, and no others, are told to leave; a rank's thread may hear of it after the coordinator's end."""
        wait_for(lambda: {r for r, _ in self.seen("shutdown")} >= set(ranks), f"the shutdown of ranks {list(ranks)}")
        assert sorted(r for r, _ in self.seen("shutdown")) == sorted(ranks), self.seen("shutdown")

    def close(self):
        self.gate.set()
        self.more_gate.set()
        for r in self.ranks:
            r.cut()


class Coordinator:
    """The process, its announcements and its log."""

    def __init__(self, *args, port="0", env=None, stderr=None, before=None):
        self.read_fd, write_fd = os.pipe()
        self.log = tempfile.TemporaryFile()
        model = os.path.join(SOURCE, "models", "demo")
        self.process = subprocess.Popen([BINARY, "--model", model, "--port", port, "--announce-fd", str(write_fd), *args],
                                        pass_fds=[write_fd], stderr=stderr or self.log,
                                        env={**os.environ, **(env or {})}, preexec_fn=before)
        os.close(write_fd)
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        with os.fdopen(self.read_fd) as f:
            for line in f:
                self.lines.append(line.rstrip("\n"))

    def line(self, word, seconds=WAIT_S):
        """The rest of the first line that starts with the word."""
        wait_for(lambda: any(l.split(" ")[0] == word for l in self.lines) or self.process.poll() is not None,
                 f"the line {word}", seconds)
        if self.process.poll() is not None:
            self.reader.join(WAIT_S)    # what it said last may lie unread
        found = [l for l in self.lines if l.split(" ")[0] == word]
        assert found, f"no line {word} but {self.lines}\n{self.text()}"
        return found[0][len(word) + 1:]

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def wait(self, seconds=WAIT_S):
        return self.process.wait(seconds)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


class Served(unittest.TestCase):
    """A ready cell for each test."""

    CELL, ARGS, STDERR, BEFORE = {}, (), None, None  # BEFORE: called in the coordinator's process before the program

    def setUp(self):
        self.coordinator = Coordinator(*self.ARGS, stderr=self.STDERR, before=self.BEFORE)
        self.addCleanup(self.coordinator.close)
        self.cell = Cell(self.coordinator.line("control"), **self.CELL).attach().ready()
        self.addCleanup(self.cell.close)
        self.address = self.coordinator.line("ready")
        self.channel = grpc.insecure_channel(self.address)
        self.addCleanup(self.channel.close)
        self.stub = vllm_grpc.VllmEngineStub(self.channel)
        self.ids = 0

    def tearDown(self):
        """Whatever a test did, the end is clean (with sanitizers: no leak either)."""
        if self.coordinator.process.poll() is None:
            self.cell.gate.set()
            self.coordinator.process.terminate()
            self.assertEqual(self.coordinator.wait(WAIT_S), 0, self.coordinator.text())

    def request(self, prompt=(5, 200, 300), stream=True, request_id=None, **sampling):
        self.ids += 1
        sampling.setdefault("temperature", 0.0)
        sampling.setdefault("max_tokens", 20)
        sampling = {k: v for k, v in sampling.items() if v is not None}
        return vllm.GenerateRequest(request_id=request_id or f"r{self.ids}", stream=stream,
                                    tokenized=vllm.TokenizedInput(input_ids=list(prompt)),
                                    sampling_params=vllm.SamplingParams(**sampling))

    def generate(self, request=None, **kw):
        return self.stub.Generate(request or self.request(**kw), timeout=WAIT_S)

    def error(self, call):
        """(code, details) of a call that must fail, and how many messages came before."""
        n = 0
        try:
            for _ in call:
                n += 1
        except grpc.RpcError as e:
            return e.code(), e.details(), n
        raise AssertionError("the call ended well")

    def all_released(self):
        """Nothing is left in the coordinator."""
        def idle():
            load = self.stub.GetLoads(vllm.GetLoadsRequest()).loads[0]
            return load.num_total_reqs == 0 and load.num_used_tokens == 0
        wait_for(idle, "an idle coordinator")


def main():
    sys.exit(0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1)
