#!/usr/bin/env python3
"""1,000 malformed requests at the doors of a live cell while 16 good ones run: the good ones are untouched, bit for bit.

    malformed.py --bin DIR --source DIR [--requests 1000] [--seed N]

The doors: the public port (bytes that are no HTTP/2, HTTP/2 that is no gRPC, gRPC that is no protobuf, protobuf with absurd fields), the
HTTP port, the control port (no secret, a wrong one, garbage).  What can be answered must be refused; nothing may stay behind."""
import concurrent.futures
import itertools
import os
import random
import re
import socket
import struct
import sys
import threading
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cell as cells  # noqa: E402
import load  # noqa: E402

GOOD, ROUNDS, LIMIT_S = 16, 4, 60
GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
METHODS = ["Generate", "Abort", "HealthCheck", "GetModelInfo", "GetServerInfo", "GetLoads", "GetTokenizer"]
ATTACH = "/baton.control.v1.Control/Attach"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


# ---- HTTP/2 by hand

def frame(kind, flags, stream, payload=b"", length=None):
    n = len(payload) if length is None else length
    return struct.pack(">I", n)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return bytes([min(len(raw), 126)]) + raw[:126]


def headers(path, **more):
    """HPACK: literals without indexing."""
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers"),
             ("content-type", "application/grpc"), *((k.replace("_", "-"), v) for k, v in more.items())]
    return b"".join(b"\0" + literal(k) + literal(v) for k, v in pairs)


def message(body, flag=0, length=None):
    return struct.pack(">BI", flag, len(body) if length is None else length) + body


def http2_garbage(rng):
    """Bytes of a client that speaks HTTP/2 worse and worse."""
    settings, noise = frame(4, 0, 0), rng.randbytes(rng.randrange(1, 300))
    body = headers(rng.choice([GENERATE, ATTACH, "/", "no slash", "/" + "x" * 120]))
    call = frame(1, 4, 1, headers(GENERATE))
    return rng.choice([
        noise,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise,  # a TLS client
        PREFACE[:rng.randrange(1, len(PREFACE))] + noise,
        PREFACE + noise,
        PREFACE + settings + frame(rng.randrange(256), rng.randrange(256), rng.randrange(1 << 31), noise),
        PREFACE + settings + frame(1, 4, 1, noise),  # HPACK garbage
        PREFACE + settings + frame(1, 5, 1, body),  # headers, and no message
        PREFACE + settings + frame(1, 4, 1, body) + frame(0, 1, 1, noise),
        PREFACE + settings + call + frame(0, 1, 1, message(noise)),
        PREFACE + settings + call + frame(0, 1, 1, message(noise, length=1 << 31)),
        PREFACE + settings + call + frame(0, 1, 1, message(noise, length=len(noise) + 9)),
        PREFACE + settings + call + frame(0, 1, 1, message(noise, flag=1)),  # compressed, it says
        PREFACE + settings + call + frame(0, 0, 1, message(b"")) + frame(3, 0, 1, struct.pack(">I", rng.randrange(20))),
        PREFACE + settings + frame(1, 4, 2, headers(GENERATE)),  # a server's stream number
        PREFACE + settings + frame(1, 0, 1, body) + frame(0, 1, 1, noise),  # no CONTINUATION
        PREFACE + settings + frame(0, 1, 77, noise),  # data of no stream
        PREFACE + settings + frame(8, 0, 0, struct.pack(">I", 0)),  # no window at all
        PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, 0xffffffff)),  # a window too large
        PREFACE + settings + frame(1, 4, 1, headers(GENERATE, grpc_timeout="99999999999999S", grpc_encoding="no")) + frame(0, 1, 1, message(noise)),
        PREFACE + settings + frame(0, 0, 1, noise, length=(1 << 24) - 1),
        PREFACE + b"".join(frame(1, 5, 2 * k + 1, headers(GENERATE)) + frame(3, 0, 2 * k + 1, struct.pack(">I", 8)) for k in range(50)),
    ])


def http1_garbage(rng):
    noise = rng.randbytes(rng.randrange(1, 500))
    return rng.choice([
        noise,
        noise + b"\r\n\r\n",
        b"GET " + b"/" * 20000 + b" HTTP/1.1\r\n\r\n",
        b"GET /../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%00%ff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n" + noise,
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + noise,
        b"DELETE /status.json HTTP/9.9\r\n" + b"X: y\r\n" * 3000,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-" + noise,
        PREFACE + frame(4, 0, 0),
    ])


def throw(address, data, rng):
    """Sends bytes, reads a little of what comes, and leaves in one of the ways that clients have."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as s:
        try:
            s.sendall(data)
            if rng.random() < 0.5:
                s.shutdown(socket.SHUT_WR)
                s.settimeout(0.05)
                s.recv(4096)
            elif rng.random() < 0.5:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        except OSError:
            pass  # the server has closed first


# ---- gRPC with bad contents

def absurd(pb, rng):
    """A well-formed request that nobody can mean."""
    q = pb.GenerateRequest(request_id=f"bad-{rng.random()}", stream=rng.random() < 0.5)
    q.tokenized.input_ids.extend([5, 6, 7])
    q.sampling_params.max_tokens, q.sampling_params.temperature = 4, 0.0
    s = q.sampling_params
    huge, nan = 0xffffffff, float("nan")
    rng.choice([
        lambda: q.tokenized.input_ids.append(rng.choice([2048, huge])),
        lambda: q.tokenized.ClearField("input_ids"),
        lambda: q.tokenized.input_ids.extend([5] * rng.choice([8192, 300000])),
        lambda: setattr(s, "max_tokens", rng.choice([0, 8190, huge])),
        lambda: setattr(s, "temperature", rng.choice([nan, -1.0, float("inf")])),
        lambda: setattr(s, "top_p", rng.choice([nan, 7.0, -2.0])),
        lambda: setattr(s, "min_p", rng.choice([nan, 7.0, -2.0])),
        lambda: setattr(s, "n", rng.choice([65, huge])),
        lambda: setattr(s, "logprobs", rng.choice([21, -7, 0x7fffffff])),
        lambda: setattr(s, "prompt_logprobs", rng.choice([21, -7])),
        lambda: setattr(s, "min_tokens", huge),
        lambda: setattr(s, "frequency_penalty", rng.choice([nan, 1e30])),
        lambda: setattr(s, "presence_penalty", rng.choice([nan, -1e30])),
        lambda: setattr(s, "repetition_penalty", rng.choice([nan, -1.0])),
        lambda: s.logit_bias.update({rng.choice([-1, 2048, 0x7fffffff]): 1.0}),
        lambda: s.logit_bias.update({5: nan}),
        lambda: s.stop.append(""),
        lambda: s.stop.extend(["x"] * 5000),
        lambda: s.stop.append("y" * 2000000),
        lambda: s.stop_token_ids.append(huge),
        lambda: setattr(s, "json_schema", rng.choice(["{", "[" * 100000, '{"not": {}}'])),
        lambda: setattr(s, "regex", "(" * 1000),
        lambda: setattr(q, "request_id", rng.choice(["", "a\nb", "z" * 100000])),
        lambda: setattr(q, "text", "words"),
    ])()
    return GENERATE, q.SerializeToString()


def damaged(pb, rng):
    """Bytes of a request of which some are wrong; good ones by chance do no harm either."""
    q = pb.GenerateRequest(request_id=f"damaged-{rng.random()}", stream=True)
    q.tokenized.input_ids.extend([5, 6, 7])
    q.sampling_params.max_tokens = 2
    data = bytearray(q.SerializeToString())
    if rng.random() < 0.3:
        data = bytearray(rng.randbytes(rng.randrange(200)))
    for _ in range(rng.randrange(1, 6)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    del data[rng.randrange(len(data) + 1):]
    return "/vllm.grpc.engine.VllmEngine/" + rng.choice(METHODS), bytes(data)


def refused(channel, method, data, must, metadata=None):
    call = channel.stream_stream(method, request_serializer=bytes, response_deserializer=bytes)
    try:
        for _ in call(iter([data]), timeout=LIMIT_S, metadata=metadata):
            pass
    except grpc.RpcError as e:
        assert e.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN), \
            f"{method} of {len(data)} bytes: {e.code()} {e.details()}"
        return
    assert not must, f"{method} took {data[:200]!r}"


class Doors:
    def __init__(self, pb, cell, channel):
        control = next(m.group(1) for m in (re.search(r"workers attach on (127\.0\.0\.1:\d+)", line) for line in cell.lines) if m)
        self.pb, self.cell, self.channel = pb, cell, channel
        self.control, self.control_channel = control, grpc.insecure_channel(control)
        self.counts, self.lock = {}, threading.Lock()

    def one(self, rng):
        what = rng.choice(["bytes at the public port", "absurd fields", "damaged protobuf", "bytes at the HTTP port",
                           "bytes at the control port", "a stranger at the control port"])
        if what == "bytes at the public port":
            throw(self.cell.address, http2_garbage(rng), rng)
        elif what == "absurd fields":
            refused(self.channel, *absurd(self.pb, rng), must=True)
        elif what == "damaged protobuf":
            refused(self.channel, *damaged(self.pb, rng), must=False)
        elif what == "bytes at the HTTP port":
            throw(self.cell.http, http1_garbage(rng), rng)
        elif what == "bytes at the control port":
            throw(self.control, http2_garbage(rng), rng)
        else:
            secret = rng.choice([None, [("baton-secret", "wrong")], [("baton-secret", "")]])
            refused(self.control_channel, ATTACH, rng.choice([b"", rng.randbytes(50), b"\x0a\x04\x08\x01\x10\x00"]), True, secret)
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1


def open_files(cell):
    return len(os.listdir(f"/proc/{cells.process_named(cell, 'baton-coordinator')}/fd"))


def wait_closed(cell, before):
    end = time.monotonic() + 60
    while open_files(cell) > before + 4:
        assert time.monotonic() < end, f"the coordinator has {open_files(cell)} files open, {before} before"
        time.sleep(0.1)


def attack(doors, n, seed, enough):
    """At least n, and until it is enough."""
    numbers, lock = itertools.count(), threading.Lock()

    def work():
        while True:
            with lock:
                i = next(numbers)
            if i >= n and enough():
                return
            doors.one(random.Random(seed * 1000003 + i))
    load.in_threads(8, work)


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--requests", type=int, default=1000)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    pb, rpc = cells.stubs(a.source)
    good = load.random_requests(GOOD, 9, longest=20)
    with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), "2+2", "--http-port", "0", "--queue-s", "600") as cell, \
            cell.channel() as channel, cell.channel() as other:
        client = load.Client(pb, rpc, channel)
        alone = {r[0]: client.run(*r)[0] for r in good}
        client.wait_drained()
        doors, files, over, rounds, todo = Doors(pb, cell, other), open_files(cell), threading.Event(), [], list(good)

        def keep_asking():
            request = todo.pop()
            while not over.is_set():
                got = client.run(*request)[0]
                assert got == alone[request[0]], f"{request[0]} is not what it was alone: {got} is not {alone[request[0]]}"
                rounds.append(request[0])
        with concurrent.futures.ThreadPoolExecutor(GOOD) as pool:
            asking = [pool.submit(keep_asking) for _ in good]
            try:
                attack(doors, a.requests, a.seed, lambda: len(rounds) >= ROUNDS * GOOD)
            finally:
                over.set()
            [f.result() for f in asking]
        client.wait_drained()
        doors.control_channel.close()
        wait_closed(cell, files)
        assert sum(doors.counts.values()) >= a.requests and len(doors.counts) == 6, doors.counts
        assert set(rounds) == set(alone), "a good one never ended"
        assert cell.stop() == 0, cell.log()
    print(f"{sum(doors.counts.values())} malformed requests {doors.counts}: {len(rounds)} good ones beside them, all equal to the bit", flush=True)
    return 0


sys.exit(main())
