"""Clients that begin calls and never finish them, or have more of them open than anybody needs: what they may cost is
bounded, and others are served after them."""
import os
import resource
import signal
import socket
import ssl
import struct
import time

from certificates import TlsCase
from harness import WAIT_S, Rank, Served, control, expected, grpc, main, vllm, vllm_grpc, wait_for

MIB = 1 << 20
SENT, MOST, LIMIT_S = 300000, 600 * MIB, 100
STREAMS = 16384  # BT_PUBLIC_STREAMS
MAY_TAKE = 420 * MIB  # coordinator/public.c lets gRPC hold 256 MiB and 64 messages; the rest is the process's own
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
INITIAL_WINDOW = 4
GENERATE, INFO, TOKENIZER = (f"/vllm.grpc.engine.VllmEngine/{name}" for name in ("Generate", "GetModelInfo", "GetTokenizer"))
WATCH = "/grpc.health.v1.Health/Watch"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path):
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers"),
             ("content-type", "application/grpc")]
    return b"".join(b"\0" + b"".join(bytes([len(t)]) + t.encode() for t in pair) for pair in pairs)


class Wire:
    """HTTP/2 by hand: sends as much as the windows allow, and waits so long for them to open."""

    def __init__(self, address, window_s):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(window_s)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        self.buffer, self.initial, self.windows, self.n_reset, self.open = b"", 65535, {0: 65535}, 0, True

    def hear(self):
        """One more piece from the server; False: nothing came."""
        try:
            piece = self.socket.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError:
            piece = b""
        self.open = self.open and piece != b""
        self.buffer += piece
        while len(self.buffer) >= 9:
            n, kind, flags = int.from_bytes(self.buffer[:3], "big"), self.buffer[3], self.buffer[4]
            if len(self.buffer) < 9 + n:
                break
            stream, body = int.from_bytes(self.buffer[5:9], "big"), self.buffer[9:9 + n]
            self.buffer = self.buffer[9 + n:]
            self.take(kind, flags, stream, body)
        return piece != b""

    def take(self, kind, flags, stream, body):
        if kind == WINDOW_UPDATE:
            self.windows[stream] = self.windows.get(stream, self.initial) + int.from_bytes(body, "big")
        elif kind == SETTINGS and not flags & 1:
            for at in range(0, len(body), 6):
                name, value = struct.unpack_from(">HI", body, at)
                if name == INITIAL_WINDOW:
                    self.windows = {s: w + (value - self.initial if s else 0) for s, w in self.windows.items()}
                    self.initial = value
            self.put(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.put(frame(PING, 1, 0, body))
        elif kind in (RST_STREAM, GOAWAY):
            self.n_reset += 1

    def put(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            self.open = False

    def begin(self, stream, n_bytes):
        """A message that lacks its last byte; what it holds is no request yet.  Returns what was sent."""
        return self.send(stream, struct.pack(">BI", 0, n_bytes + 1) + bytes(n_bytes))

    def call(self, stream, message, path=GENERATE):
        """A whole message."""
        return self.send(stream, struct.pack(">BI", 0, len(message)) + message, path)

    def send(self, stream, data, path=GENERATE):
        left = data
        self.windows.setdefault(stream, self.initial)
        self.put(frame(HEADERS, 4, stream, headers(path)))
        while left and self.open:
            n = min(self.windows[0], self.windows[stream], 16384, len(left))
            if n <= 0:
                if not self.hear():
                    break
                continue
            self.put(frame(DATA, 0, stream, left[:n]))
            self.windows[0] -= n
            self.windows[stream] -= n
            left = left[n:]
        return len(data) - len(left)


class Hostile(Served):
    def serves(self):
        messages = list(self.stub.Generate(self.request(), timeout=WAIT_S, wait_for_ready=True))
        self.assertEqual([t for m in messages for t in m.chunk.token_ids], expected([5, 200, 300], 20))

    def rss(self, what="VmRSS"):
        with open(f"/proc/{self.coordinator.process.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith(what))


class Unfinished(Hostile):
    def test_calls_that_never_end_have_a_bound(self):
        before, sent, n, n_reset, end = self.rss(), 0, 0, 0, time.monotonic() + LIMIT_S
        wires = []
        while n_reset <= 50 and sent < MOST and time.monotonic() < end:
            if not wires or not wires[-1].open:
                wires.append(Wire(self.address, 2))
            sent += wires[-1].begin(2 * n + 1, SENT)
            n += 1
            n_reset = sum(w.n_reset for w in wires)
        took = self.rss() - before
        print(f"{sent / MIB:.0f} MiB sent in {n} calls, {took / MIB:.0f} MiB taken, "
              f"{n_reset} calls reset", flush=True)
        self.assertGreater(n_reset, 0)
        if not any(name in os.environ for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")):  # they keep what is freed
            self.assertLess(took, MAY_TAKE)
        for wire in wires:
            wire.socket.close()
        time.sleep(1)
        self.serves()


class Asking(Hostile):
    """Memory goes by the tokens that come, not by those that are asked for, however often."""
    REQUESTS, CHOICES, TOP, BURSTS = 64, 16, 15, 4
    CELL, ARGS = dict(pages=1024), ("--queue-s", "600")

    def test_bursts_that_ask_for_much_take_little(self):
        self.serves()
        before = self.rss()
        for _ in range(self.BURSTS):
            self.cell.gate.clear()
            calls = [self.generate(n=self.CHOICES, logprobs=self.TOP, max_tokens=1900) for _ in range(self.REQUESTS)]
            wait_for(lambda: self.stub.GetServerInfo(vllm.GetServerInfoRequest()).active_requests == self.REQUESTS, "the burst")
            for call in calls:
                call.cancel()
            self.all_released()
        took = self.rss("VmHWM") - before
        print(f"{took / MIB:.1f} MiB taken", flush=True)
        self.assertLess(took, 32 * MIB)    # arrays of all that is asked for: 230 MiB
        self.cell.gate.set()
        self.serves()


class Flood(Hostile):
    """What many calls at once take goes back when the last one has ended."""
    CALLS, PROMPT = 2000, [7] * 1500
    CELL, ARGS = dict(pages=256), ("--queue-s", "600", "--queue-tokens", str(1 << 24))

    def test_memory_of_a_flood_goes_back(self):
        self.serves()
        before = self.rss("RssAnon")
        self.cell.gate.clear()
        calls = [self.generate(prompt=self.PROMPT, max_tokens=1) for _ in range(self.CALLS)]
        wait_for(lambda: self.stub.GetServerInfo(vllm.GetServerInfoRequest()).active_requests == self.CALLS, "the flood")
        took = self.rss("RssAnon") - before
        for call in calls:
            call.cancel()
        self.all_released()
        time.sleep(1)
        left = self.rss("RssAnon") - before
        print(f"{took / MIB:.1f} MiB taken, {left / MIB:.1f} MiB left", flush=True)
        if not any(name in os.environ for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")):  # they keep what is freed
            self.assertGreater(took, 20 * MIB)
            self.assertLess(left, took // 4)
        self.cell.gate.set()
        self.serves()


class Begun(Hostile):
    """Calls that are begun by the ten thousand, by clients that never acknowledge how many they may have, which is all that
    binds gRPC, and read no answer: memory is bounded, others are served at once, and the end is in order."""
    SANITIZED = any(name in os.environ for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"))  # they keep what is freed, and take their time
    CALLS = 10000 if SANITIZED else 50000
    MAY_TAKE = 20480 * (28 << 10)  # BT_PUBLIC_ALL_CALLS, and what each holds

    def begin_many(self, address, path, message=None):
        host, port = address.rsplit(":", 1)
        s = socket.socket()
        self.addCleanup(s.close)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect((host, int(port)))
        s.settimeout(2)
        head, body = headers(path), b"" if message is None else struct.pack(">BI", 0, len(message)) + message
        try:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
            for n in range(0, self.CALLS, 500):
                s.sendall(b"".join(frame(HEADERS, 4, 2 * k + 1, head) + (frame(DATA, 1, 2 * k + 1, body) if body else b"")
                                   for k in range(n, n + 500)))
        except OSError:  # it is no longer read, or cut off
            pass

    def check(self, address, path, message=None):
        before = self.rss()
        for _ in range(2):
            self.begin_many(address, path, message)
        self.serves()
        took = self.rss("VmHWM") - before
        print(f"{path}: {took / MIB:.0f} MiB taken", flush=True)
        if not self.SANITIZED:
            self.assertLess(took, self.MAY_TAKE)

    def test_requests_that_do_not_come(self):
        self.check(self.address, INFO)

    def test_methods_that_are_not_there(self):
        self.check(self.address, "/a/b")

    def test_watchers(self):
        self.check(self.address, WATCH, b"")

    def test_tokenizers_that_are_not_read(self):
        self.check(self.address, TOKENIZER, b"")

    def test_strangers_at_the_control_port(self):
        self.check(self.cell.address, "/a/b")

    def test_ranks_that_say_nothing(self):
        self.check(self.cell.address, "/baton.control.v1.Control/Attach")


class Compressed(Hostile):
    PLAIN = 50 * MIB

    def test_a_bomb_is_not_unpacked(self):
        before = self.rss()
        for address, method in ((self.address, "/vllm.grpc.engine.VllmEngine/Generate"),
                                (self.cell.address, "/baton.control.v1.Control/Attach")):
            with grpc.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
                code, details, n = self.error(channel.stream_stream(method)(iter([bytes(self.PLAIN)]), timeout=WAIT_S))
            self.assertEqual((code, n), (grpc.StatusCode.UNIMPLEMENTED, 0))
            self.assertIn("'gzip' is disabled", details)
        self.assertLess(self.rss("VmHWM") - before, self.PLAIN // 2)
        self.serves()


class Metadata(Hostile):
    """What proxies pass on of their users: tokens, certificates, baggage."""

    def check(self, metadata):
        self.cell.split_after = 3
        other = self.generate(self.request(max_tokens=20, ignore_eos=True))
        next(other)
        long = self.stub.Generate(self.request(max_tokens=2), timeout=WAIT_S, metadata=metadata)
        self.assertEqual(list(long)[-1].complete.completion_tokens, 2)
        self.cell.more_gate.set()
        self.assertEqual(list(other)[-1].complete.completion_tokens, 20)

    def test_long_value_leaves_other_calls_alone(self):
        self.check([("x-forwarded-client-cert", "a" * 30000)])

    def test_many_values_leave_other_calls_alone(self):
        self.check([(f"x-{i}", "0123456789") for i in range(600)])


class Headers(Hostile):
    """A call whose headers never end: none is there to be refused, and gRPC keeps what has come."""
    PIECES = 4000

    @classmethod
    def endless(cls, s):
        """How many pieces of 16 KB it takes until the connection is closed."""
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, headers(GENERATE)))
        name, length = b"\0\1x\x7f", b"\x81\x7c"  # a value of 127 + 15,873 bytes, as HPACK writes its length
        piece = frame(CONTINUATION, 0, 1, name + length + bytes(16000))
        try:
            for n in range(cls.PIECES):
                s.sendall(piece)
        except OSError:
            return n
        return cls.PIECES

    def check(self, open_one):
        self.serves()
        before = self.rss("VmHWM")
        with open_one() as s:
            n = self.endless(s)
        took = self.rss("VmHWM") - before
        print(f"{n} pieces sent, {took / MIB:.1f} MiB taken", flush=True)
        self.assertLess(n, self.PIECES)
        self.assertLess(took, 16 * MIB)  # 61 MiB of headers
        told = [x for x in self.coordinator.text().splitlines() if "a client, ipv4:127.0.0.1:" in x]
        self.assertEqual(len(told), 1, told)
        self.assertIn("has sent more than 64 KiB as the headers of a call, or to say that it goes: its connection is closed", told[0])
        self.serves()

    def plain(self, address):
        host, port = address.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=WAIT_S)

    def test_headers_without_end_are_not_kept(self):
        self.check(lambda: self.plain(self.address))

    def test_headers_without_end_at_the_control_port(self):
        self.check(lambda: self.plain(self.cell.address))


class HeadersByTls(TlsCase):
    def test_headers_without_end_close_their_connection(self):
        address = self.serve()
        host, port = address.rsplit(":", 1)
        tls = ssl.create_default_context(cafile=self.path("ca.pem"))
        tls.set_alpn_protocols(["h2"])
        with open(self.path("ca.pem"), "rb") as f:
            ca = grpc.ssl_channel_credentials(f.read())
        for _ in range(5):
            with tls.wrap_socket(socket.create_connection((host, int(port)), timeout=WAIT_S), server_hostname=host) as s:
                n = Headers.endless(s)
            print(f"{n} pieces sent", flush=True)
            self.assertLess(n, Headers.PIECES)
            with grpc.secure_channel(address, ca, [("grpc.use_local_subchannel_pool", 1)]) as channel:  # another one in its place is not held to that
                self.assertTrue(vllm_grpc.VllmEngineStub(channel).HealthCheck(vllm.HealthCheckRequest(), timeout=WAIT_S).healthy)
        self.assertEqual(self.coordinator.text().count("a client with TLS has sent more than 64 KiB"), 5)


class Log(Hostile):
    """What clients and strangers may make the coordinator log: lines are bounded, and what is refused has none."""
    DOUBLES, FLOOD = 200, 4000

    def lines(self, *words):
        return sum(all(w in line for w in words) for line in self.coordinator.text().splitlines())

    def test_refusals_are_not_logged(self):
        self.cell.gate.clear()
        first = self.generate(request_id="one")
        wait_for(lambda: self.cell.seen("prefill"), "the first request")
        before = self.lines("")
        for _ in range(self.DOUBLES):
            code, details, n = self.error(self.generate(request_id="one"))
            self.assertEqual((code, n), (grpc.StatusCode.ALREADY_EXISTS, 0))
            self.assertEqual(details, 'request_id "one" belongs to a request that still runs')
        self.assertEqual(self.lines(""), before)
        self.cell.gate.set()
        list(first)

    def test_flood_of_lines_is_cut(self):
        began = time.monotonic()
        for _ in range(self.FLOOD):
            self.cell.ranks[0].send(eval_rows=control.EvalRows(n_rows=1))
        self.cell.ranks[0].send(leaving=control.Leaving(reason="had enough"))
        self.cell.ranks[0].leave()
        self.assertEqual(self.coordinator.wait(), 1)
        self.assertIn("had enough", self.coordinator.line("failed"))
        self.assertLessEqual(self.lines("which has no meaning here"), 1000 + 100 * (time.monotonic() - began) + 1)


class Unread(Hostile):
    ARGS = ("--unread-s", "0.5")

    def test_clients_that_never_read_do_not_hold_up_a_drain(self):
        wire = Wire(self.address, 0.05)
        wire.put(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, 0)))
        for n, path in enumerate((INFO, WATCH, TOKENIZER)):
            wire.call(2 * n + 1, b"", path)
        wire.send(7, b"\0\0\0\0\5", path="/grpc.health.v1.Health/Check")  # five bytes, of which none comes
        for n in range(3, 11):
            wire.call(2 * n + 3, self.request(request_id=f"w{n}").SerializeToString())
        wait_for(lambda: '"w10": 3 prompt tokens' in self.coordinator.text(), "the last request")
        self.coordinator.process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + WAIT_S
        while self.coordinator.process.poll() is None and time.monotonic() < end:
            wire.hear()  # it lives, and answers pings
        self.assertEqual(self.coordinator.wait(), 0)
        for name in (INFO, WATCH, TOKENIZER, "w3", "w10"):
            self.assertIn(f'"{name}": its client, ipv4:127.0.0.1:{wire.socket.getsockname()[1]}, has taken no message for', self.coordinator.text())
        self.assertIn(f'"/grpc.health.v1.Health/Check": its client, ipv4:127.0.0.1:{wire.socket.getsockname()[1]}, has not finished its request for',
                      self.coordinator.text())
        wire.socket.close()

    def test_connections_without_a_call_are_closed(self):
        self.serves()
        wire = Wire(self.address, WAIT_S)
        end = time.monotonic() + WAIT_S
        while wire.open and time.monotonic() < end:
            wire.hear()
        self.assertFalse(wire.open)
        self.serves()  # the client, whose connection has been closed too, opens another one


class Connections(Hostile):
    FILES = 96
    BEFORE = staticmethod(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (Connections.FILES, Connections.FILES)))

    def test_more_than_files_may_be_open_are_closed_and_others_served_after_them(self):
        host, port = self.address.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port)), timeout=WAIT_S) for _ in range(2 * self.FILES)]
        for s in idle[self.FILES:]:
            try:
                self.assertEqual(s.recv(1), b"")
            except ConnectionResetError:
                pass
        self.assertIn("raise `ulimit -n`", self.coordinator.text())
        rank = Rank(self.cell, 1)  # for which there is room
        wait_for(lambda: rank.end is not None, "an answer of the control port")
        self.assertIn("is here already", rank.end[1])
        rank.cut()
        for s in idle:
            s.close()
        self.serves()


class TooMany(Hostile):
    ARGS = ("--queue-s", "200")

    def n_open(self):
        return self.stub.GetLoads(vllm.GetLoadsRequest()).loads[0].num_total_reqs

    def test_open_requests_have_a_bound(self):
        self.cell.gate.clear()
        wire = Wire(self.address, WAIT_S)
        for n in range(STREAMS):
            message = self.request((5,), request_id=f"w{n}").SerializeToString()
            self.assertEqual(wire.call(2 * n + 1, message), len(message) + 5)
        wait_for(lambda: self.n_open() == STREAMS, f"{STREAMS} open requests")
        code, details, n = self.error(self.generate())
        self.assertEqual((code, n), (grpc.StatusCode.RESOURCE_EXHAUSTED, 0))
        self.assertIn(f"{STREAMS} requests are open", details)
        wire.socket.close()
        wait_for(lambda: self.n_open() == 0, "the end of them all")
        self.cell.gate.set()
        self.serves()


main()
