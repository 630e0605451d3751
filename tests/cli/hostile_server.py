#!/usr/bin/env python3
"""baton-generate against servers that break the protocol: each gives a clear error, exit code 1, and no hang.

    hostile_server.py --bin DIR --source DIR"""
import argparse
import os
import subprocess
import sys
import time
from concurrent import futures

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import cell as cells  # noqa: E402

LIMIT_S = 200


def chunk(pb, *ids, logprobs=0):
    m = pb.GenerateResponse()
    m.chunk.token_ids.extend(ids)
    m.chunk.output_logprobs.token_logprobs.extend([-0.5] * logprobs)
    return m.SerializeToString()


def complete(pb, n, *ids):
    m = pb.GenerateResponse()
    m.complete.output_ids.extend(ids)
    m.complete.completion_tokens, m.complete.prompt_tokens, m.complete.finish_reason = n, 3, "stop"
    return m.SerializeToString()


class Hang(Exception):
    pass


class Die(Exception):
    """The server's process, with the request and without a word."""


def cases(pb):
    """(name, messages, flags, exit code, what it says)"""
    ok = [chunk(pb, 300), chunk(pb, 301), complete(pb, 2, 300, 301)]
    yield "a good answer", ok, [], 0, "2 generated (stop)"
    yield "ids far beyond the vocabulary", [chunk(pb, 2**32 - 1, 300), complete(pb, 2)], [], 0, "2 generated"
    yield "a chunk after complete", ok + [chunk(pb, 302)], [], 1, "after the complete one"
    yield "two completes", ok + [ok[-1]], [], 1, "after the complete one"
    yield "no complete", ok[:2], [], 1, "without a complete"
    yield "nothing at all", [], [], 1, "without a complete"
    yield "another count", [chunk(pb, 300), complete(pb, 7)], [], 1, "the server counts 7"
    yield "no logprobs", ok, ["--logprobs"], 1, "logprobs"
    yield "too few logprobs", [chunk(pb, 300, 301, logprobs=1), complete(pb, 2)], ["--logprobs"], 1, "1 logprobs"
    yield "garbage", [b"\xff\xff\xff\xff\xff"], [], 1, "cannot be parsed"
    yield "a text with a NUL", [chunk(pb, 300), complete(pb, 1).replace(b"stop", b"s\0op")], [], 1, "GenerateComplete.finish_reason has a NUL at byte 1 of its 4"
    yield "an empty message", [b""], [], 1, "empty answer"
    yield "silence", [Hang()], ["--timeout-s", "1"], 1, "nothing for 1 s"
    yield "silence after a token", [chunk(pb, 300), Hang()], ["--timeout-s", "1"], 1, "nothing for 1 s"
    yield "a server that dies", "dies", [], 1, "; the request may be sent again"
    yield "a status", [grpc.StatusCode.RESOURCE_EXHAUSTED], [], 1, "RESOURCE_EXHAUSTED: \"quoted\", ?[2J and ?"


def serve(messages):
    """A server that answers every Generate with these messages; returns it and its port."""
    def generate(request, context):
        for m in messages:
            if isinstance(m, Hang):
                while context.is_active():
                    time.sleep(0.02)
            elif isinstance(m, Die):
                time.sleep(0.3)    # the client looks every 50 ms whether it is connected
                os._exit(0)
            elif isinstance(m, grpc.StatusCode):
                context.abort(m, b"\"quoted\", \x1b[2J and \xff")
            else:
                yield m
    handler = grpc.method_handlers_generic_handler("vllm.grpc.engine.VllmEngine", {
        "Generate": grpc.unary_stream_rpc_method_handler(generate)})
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def ask(a, port, *flags):
    return subprocess.run([os.path.join(a.bin, "baton-generate"), "--address", f"127.0.0.1:{port}", "--model",
                           os.path.join(a.source, "models/demo"), "--prompt", "x", *flags], capture_output=True, text=True, timeout=LIMIT_S)


def ask_one_that_dies(a):
    with subprocess.Popen([sys.executable, __file__, "--bin", a.bin, "--source", a.source, "--die"], stdout=subprocess.PIPE, text=True) as server:
        try:
            return ask(a, int(server.stdout.readline()))
        finally:
            server.kill()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", required=True)
    ap.add_argument("--source", required=True)
    ap.add_argument("--die", action="store_true", help="be a server that ends with its first request")
    a = ap.parse_args()
    if a.die:
        _server, port = serve([Die()])
        print(port, flush=True)
        time.sleep(LIMIT_S)
    pb, _ = cells.stubs(a.source)
    failures = 0
    for name, messages, flags, code, says in cases(pb):
        if messages == "dies":
            run = ask_one_that_dies(a)
        else:
            server, port = serve(messages)
            run = ask(a, port, *flags)
            server.stop(0)
        good = run.returncode == code and says in run.stderr
        failures += not good
        print(f"{name}: {'ok' if good else f'FAILED: exit code {run.returncode}, stderr: {run.stderr}'}", flush=True)
    return 1 if failures else 0


sys.exit(main())
