"""The operators' side: HTTP port, metrics, health Watch, draining, TLS, the cell's secret."""
import contextlib
import ctypes
import http.client
import json
import os
import re
import resource
import signal
import socket
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import grpc

from certificates import TlsCase, date  # noqa: E402
from harness import SOURCE, WAIT_S, Cell, Coordinator, Rank, Served, control, expected, health, health_grpc, main, vllm, vllm_grpc, wait_for

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def get(address, path, method="GET", timeout=WAIT_S):
    """(status, body)"""
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", method=method), timeout=timeout) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


READS = 1000
LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\} (\S+)$')


def parse(text):
    """{(name, labels): value}; checks the form, and that each metric has its type once and before its values."""
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in types, f"{name} twice"
            assert (kind == "counter") == name.endswith("_total"), f"{name}, a {kind}"
            types[name] = kind
        elif not line.startswith("# HELP "):
            found = LINE.match(line)
            assert found, line
            name, labels, value = found.groups()
            base = name if name in types else re.sub(r"_(bucket|sum|count)$", "", name)
            assert base in types, f"{name} without a type"
            assert (name, labels) not in values, f"{line} twice"
            values[name, labels] = float(value)
    return values


class Http(Served):
    ARGS = ("--http-port", "0")

    def setUp(self):
        super().setUp()
        self.http = self.coordinator.line("http")

    def metric(self, name, labels=""):
        text = get(self.http, "/metrics")[1]
        return parse(text)[name, 'model_name="demo"' + labels]

    def test_counts_what_clients_saw(self):
        for i in range(3):
            self.assertEqual(len(list(self.generate(prompt=[500, i], stream=True))[-1].complete.output_ids), 20)
        self.assertEqual(len(list(self.generate(prompt=[7, 1]))[-1].complete.output_ids), 8)  # ends by itself
        self.error(self.generate(max_tokens=10**6))
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: self.metric("vllm:num_requests_running") == 1, "the running one")
        call.cancel()
        wait_for(lambda: self.metric("vllm:request_success_total", ',finished_reason="abort"') == 1, "the abort")
        self.cell.gate.set()
        v = {k: x for k, x in parse(get(self.http, "/metrics")[1]).items()}
        model = 'model_name="demo"'
        self.assertEqual(v["vllm:generation_tokens_total", model], 68)
        self.assertEqual(v["vllm:prompt_tokens_total", model], 8)
        self.assertEqual(v["vllm:request_success_total", model + ',finished_reason="length"'], 3)
        self.assertEqual(v["vllm:request_success_total", model + ',finished_reason="stop"'], 1)
        self.assertEqual(v["baton_requests_total", model + ',status="INVALID_ARGUMENT"'], 1)
        self.assertEqual(v["vllm:time_to_first_token_seconds_count", model], 4)
        self.assertEqual(v["vllm:inter_token_latency_seconds_count", model], 64)
        self.assertEqual(v["vllm:e2e_request_latency_seconds_count", model], 4)
        self.assertEqual(v["vllm:request_prompt_tokens_sum", model], 8)
        for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
            buckets = [x for (n, _), x in v.items() if n == f"vllm:{name}_seconds_bucket"]
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(buckets[-1], v[f"vllm:{name}_seconds_count", model])

    def test_requests_that_cannot_be_parsed_are_counted(self):
        refused = lambda: self.metric("baton_requests_total", ',status="INVALID_ARGUMENT"')
        self.assertEqual(refused(), 0)
        for n, data in enumerate((b"\xff", b"\x0a\x01\xff", b"")):
            self.error(self.channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")(data, timeout=WAIT_S))
            wait_for(lambda: refused() == n + 1, "the refusal")
        with self.assertRaises(grpc.RpcError):    # no request
            self.channel.unary_unary("/vllm.grpc.engine.VllmEngine/Abort")(b"\xff", timeout=WAIT_S)
        self.error(self.generate(max_tokens=10**6))
        wait_for(lambda: refused() == 4, "the refusal")

    def test_parts_of_a_request_s_time_add_up(self):
        parts = {"queue": "request_queue_time", "prefill": "request_prefill_time", "decode": "request_decode_time",
                 "tpot": "request_time_per_output_token", "itl": "inter_token_latency", "ttft": "time_to_first_token", "e2e": "e2e_request_latency"}

        def read(part):
            v = parse(get(self.http, "/metrics")[1])
            return {name: v[f"vllm:{metric}_seconds_{part}", 'model_name="demo"'] for name, metric in parts.items()}

        self.cell.tickets_to_refuse = 2  # each decode rank: it waits until the first is asked again
        self.cell.gate.clear()
        call = self.generate(prompt=[500, 1], max_tokens=21)
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        begun = time.monotonic()
        wait_for(lambda: read("count")["queue"] == 1, "its time in the queue, before it has a token")
        held = time.monotonic() - begun
        self.cell.gate.set()
        list(call)
        wait_for(lambda: read("count")["e2e"] == 1, "its end")
        s = read("sum")
        self.assertGreaterEqual(s["queue"], 0.2)
        self.assertGreaterEqual(s["prefill"], held)
        self.assertAlmostEqual(s["queue"] + s["prefill"], s["ttft"], 6)
        self.assertAlmostEqual(s["ttft"] + s["decode"], s["e2e"], 6)
        self.assertAlmostEqual(s["tpot"] * 20, s["itl"], 6)
        self.cell.tickets_to_refuse = 10**6
        call = self.generate()
        wait_for(lambda: self.metric("vllm:num_requests_waiting") == 1, "the one that waits")
        call.cancel()
        wait_for(lambda: read("count")["queue"] == 2, "the one that gave up")
        self.assertEqual({name: n for name, n in read("count").items() if n != 1}, {"queue": 2, "itl": 20})
        self.error(self.generate(max_tokens=10**6))  # never in the queue
        wait_for(lambda: self.metric("baton_requests_total", ',status="INVALID_ARGUMENT"') == 1, "the refusal")
        self.assertEqual(read("count")["queue"], 2)

    def test_load_has_the_hit_rate_of_prefix_caches(self):
        self.assertEqual(self.stub.GetLoads(vllm.GetLoadsRequest()).loads[0].cache_hit_rate, 0)
        for rank, hit in ((0, 64), (1, 32), (2, 128)):    # a decode rank's saves only the transfer
            self.cell.ranks[rank].send(beat=control.Beat(progress=1, prefix_asked_tokens=128, prefix_hit_tokens=hit))
        wait_for(lambda: self.stub.GetLoads(vllm.GetLoadsRequest(dp_rank=0)).loads[0].cache_hit_rate == 96 / 256, "the beats")
        for rank in (1, -1):
            with self.assertRaises(grpc.RpcError) as refused:
                self.stub.GetLoads(vllm.GetLoadsRequest(dp_rank=rank))
            self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn(f"dp_rank is {rank}, expected 0", refused.exception.details())

    def test_shows_what_ranks_say(self):
        beat = control.Beat(progress=1, n_requests=3, pages_free=40, pages_total=64, pages_cached=9, slots_quarantined=2, steps=5,
                            handoff_bytes=4096, handoff_pages=2, gather_ns=10**9, model_ns=2 * 10**9, sample_ns=5 * 10**8,
                            prompt_rows=30, generated_rows=12, batch_rows=[1, 2, 3] + [0] * 9 + [4],
                            step_times=[5] + [0] * 14 + [1], handoff_ns=3 * 10**9, handoff_times=[0, 2] + [0] * 14, prefix_asked_tokens=128, prefix_hit_tokens=64,
                            draft_tokens=20, draft_right_tokens=15, drafts=9)
        self.cell.ranks[1].send(beat=beat)
        rank = ',rank="1",role="prefill"'
        wait_for(lambda: self.metric("baton_rank_requests", rank) == 3, "the beat")
        for name, labels, value in (("baton_rank_pages", ',state="free"', 40), ("baton_rank_pages", ',state="cached"', 9),
                                    ("baton_handoff_slots_quarantined", "", 2), ("baton_rank_pages", ',state="owned"', 15),
                                    ("baton_handoff_seconds_sum", "", 3), ("baton_handoff_seconds_count", "", 2),
                                    ("baton_handoff_seconds_bucket", ',le="0.00025"', 2),
                                    ("baton_rank_pool_pages", "", 64), ("baton_handoff_sent_bytes_total", "", 4096),
                                    ("baton_rank_steps_total", "", 5), ("baton_rank_phase_seconds_total", ',phase="model"', 2),
                                    ("baton_rank_phase_seconds_total", ',phase="gather"', 1),
                                    ("baton_batch_rows_bucket", ',le="4"', 6), ("baton_batch_rows_bucket", ',le="+Inf"', 10),
                                    ("baton_batch_rows_sum", "", 42), ("baton_step_seconds_bucket", ',le="0.000125"', 5),
                                    ("baton_rank_draft_tokens_total", "", 20), ("baton_rank_drafts_total", "", 9), ("baton_rank_draft_right_tokens_total", "", 15),
                                    ("baton_step_seconds_count", "", 6)):
            self.assertEqual(self.metric(name, rank + labels), value, name + labels)
        self.assertEqual(self.metric("vllm:prefix_cache_hits_total"), 64)
        self.assertEqual(self.metric("vllm:spec_decode_num_drafts_total"), 9)
        self.assertEqual(self.metric("vllm:spec_decode_num_draft_tokens_total"), 20)
        self.assertEqual(self.metric("vllm:spec_decode_num_accepted_tokens_total"), 15)
        self.assertEqual(self.metric("baton_rank_requests", ',rank="2",role="decode"'), 0)

    def test_pages_name_every_metric_and_no_other(self):
        with open(os.path.join(SOURCE, "docs", "operating.md"), encoding="utf-8") as f:
            page = f.read()
        name = r"((?:vllm:|baton_|process_)[a-z0-9_]+)"
        there = set(re.findall(f"^# TYPE {name} ", get(self.http, "/metrics")[1], re.M))
        self.assertEqual(set(re.findall(f"`{name}", page)), there)
        used = re.findall(name + r"[ {\[]", page.split("```yaml")[1].split("```")[0])
        self.assertGreater(len(used), 8)
        self.assertEqual({u.removesuffix("_bucket") for u in used} - there, set())

    def test_tells_of_its_process(self):
        pid, before = self.coordinator.process.pid, self.metric("process_open_fds")
        idle = [socket.create_connection((self.address.rsplit(":", 1)[0], int(self.address.rsplit(":", 1)[1])), WAIT_S) for _ in range(20)]
        try:
            wait_for(lambda: self.metric("process_open_fds") >= before + 20, "the connections")
            self.assertAlmostEqual(self.metric("process_open_fds"), len(os.listdir(f"/proc/{pid}/fd")), delta=5)
        finally:
            for s in idle:
                s.close()
        self.assertEqual(self.metric("process_max_fds"), resource.prlimit(pid, resource.RLIMIT_NOFILE)[0])
        started = self.metric("process_start_time_seconds")
        self.assertAlmostEqual(started, time.time(), delta=600)
        self.assertEqual(self.metric("process_start_time_seconds"), started) # else each scrape looks like a restart
        self.assertGreater(self.metric("process_cpu_seconds_total"), 0)
        self.assertAlmostEqual(self.metric("process_cpu_seconds_total"), self.cpu_s(), delta=0.5)
        with open(f"/proc/{pid}/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        self.assertLess(0.5 * resident, self.metric("process_resident_memory_bytes"))
        self.assertLess(self.metric("process_resident_memory_bytes"), 2 * resident)

    def test_shows_the_load_of_experts(self):
        self.cell.ranks[0].send(expert_load=control.ExpertLoad(rows=[5, 0, 7]))
        self.cell.ranks[1].send(expert_load=control.ExpertLoad(rows=[0, 2, 0]))
        self.cell.ranks[3].send(expert_load=control.ExpertLoad(rows=[0, 0, 3]))
        def rows(role):
            values = parse(get(self.http, "/metrics")[1])
            return [values.get(("baton_expert_rows_total", f'model_name="demo",role="{role}",expert="{i}"')) for i in range(3)]
        wait_for(lambda: (rows("prefill"), rows("decode")) == ([5, 2, 7], [0, 0, 3]), "the load")
        s = json.loads(get(self.http, "/status.json")[1])
        self.assertEqual((s["experts_prefill"]["rows"], s["experts_decode"]["rows"]), ([5, 2, 7], [0, 0, 3]))
        self.assertEqual((s["experts_prefill"]["imbalance"], s["experts_decode"]["imbalance"]), (1.5, 3))

    def test_status_lists_ranks_and_requests(self):
        self.cell.gate.clear()
        call = self.generate(request_id='<b>"x"</b>')
        wait_for(lambda: [q["state"] for q in json.loads(get(self.http, "/status.json")[1])["open_requests"]] == ["prefill"], "the request")
        s = json.loads(get(self.http, "/status.json")[1])
        self.assertEqual([r["role"] for r in s["ranks"]], ["prefill", "prefill", "decode", "decode"])
        self.assertEqual((s["phase"], s["address"], s["name"]), ("serving", self.address, "demo"))
        q = s["open_requests"][0]
        self.assertEqual((q["id"], q["prompt"], q["max_tokens"], q["state"]), ('<b>"x"</b>', 3, 20, "prefill"))
        self.cell.gate.set()
        list(call)
        wait_for(lambda: len(json.loads(get(self.http, "/status.json")[1])["history"]["generated"]) >= 2, "two seconds")

    def test_names_ranks_that_nothing_is_handed_over_between(self):
        def told():
            links = json.loads(get(self.http, "/status.json")[1])["avoided_links"]
            metrics = [(labels, v) for (name, labels), v in parse(get(self.http, "/metrics")[1]).items() if name == "baton_handoff_avoided_seconds"]
            return links, metrics
        self.assertEqual(told(), ([], []))
        pairs = self.cell.stand_still_once()
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))
        wait_for(lambda: all(told()), "the pair")
        (link,), ((labels, left_s),) = told()
        (a, b), = pairs
        self.assertEqual((link["cell"], link["from"], link["to"]), ("", a, b))
        self.assertEqual(labels, f'model_name="demo",from="{a}",to="{b}"')
        for s in (link["left_s"], left_s):
            self.assertTrue(600 - 2 * WAIT_S < s <= 600, s)

    def test_status_counts_all_choices_of_a_request_and_what_they_may_have(self):
        self.cell.gate.clear()
        call = self.generate(n=3, max_tokens=20)
        wait_for(lambda: [q["max_tokens"] for q in json.loads(get(self.http, "/status.json")[1])["open_requests"]] == [60], "the request")
        call.cancel()
        self.all_released()

    def test_page_needs_nothing_from_elsewhere(self):
        status, text = get(self.http, "/")
        self.assertEqual(status, 200)
        self.assertEqual([u for u in re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([a-z]+:[^"'\s)]*)""", text)
                          if not u.startswith("data:")], [])

    def test_other_requests_are_refused(self):
        self.assertEqual(get(self.http, "/nothing")[0], 404)
        self.assertEqual(get(self.http, "/metrics", "POST")[0], 405)
        self.assertEqual(get(self.http, "/metrics", "HEAD"), (200, ""))
        host, port = self.http.rsplit(":", 1)
        for junk in (b"\x00\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                     b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000):
            with socket.create_connection((host, int(port)), 5) as s:
                try:
                    s.sendall(junk)
                    s.settimeout(0.3)
                    s.recv(100)
                except OSError:
                    pass
        self.assertEqual(get(self.http, "/health"), (200, "ok\n"))
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))

    def test_many_readers_cost_little(self):
        """However often they ask, a snapshot is written out once: most of what an answer takes is its sending."""
        for rank in self.cell.ranks:
            rank.send(expert_load=control.ExpertLoad(rows=range(10**9, 10**9 + 1024)))
        wait_for(lambda: len(json.loads(get(self.http, "/status.json")[1]).get("experts_decode", {}).get("rows", ())) == 1024, "the load")

        def cpu_s(path):
            connection = http.client.HTTPConnection(self.http, timeout=WAIT_S)
            before = self.cpu_s()
            for _ in range(READS):
                connection.request("GET", path)
                self.assertGreater(len(connection.getresponse().read()), 0)
            connection.close()
            return self.cpu_s() - before

        short = cpu_s("/health")
        for path in ("/status.json", "/metrics"):
            self.assertLess(cpu_s(path), 3 * short + 0.15, f"{path}, against {short} s of /health")

    def cpu_s(self):
        with open(f"/proc/{self.coordinator.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_slow_readers_do_not_hold_the_port(self):
        host, port = self.http.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port)), 5) for _ in range(20)]
        try:
            for s in idle:
                s.sendall(b"GET /metrics HT")
            wait_for(lambda: get(self.http, "/ready") == (200, "ready\n"), "an answer beside them")
        finally:
            for s in idle:
                s.close()

    def test_a_byte_now_and_then_does_not_hold_a_connection(self):
        host, port = self.http.rsplit(":", 1)
        begin, again = time.monotonic(), http.client.HTTPConnection(self.http, timeout=WAIT_S)
        again.connect()
        first = again.sock
        with socket.create_connection((host, int(port)), 5) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: ")
            s.settimeout(2)
            while True:
                again.request("GET", "/ready")    # answered requests begin the time again
                again.getresponse().read()
                self.assertLess(time.monotonic() - begin, WAIT_S, "the connection is open yet")
                try:
                    s.sendall(b"x")
                    if s.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        self.assertGreater(time.monotonic() - begin, 15)
        again.request("GET", "/ready")
        self.assertEqual(again.getresponse().read(), b"ready\n")
        self.assertIs(again.sock, first)
        again.close()

    def half_open(self, n, address):
        """So many connections from an address of this machine, with half a request each where they are let in."""
        host, port = self.http.rsplit(":", 1)
        half = []
        for _ in range(n):
            half.append(socket.create_connection((host, int(port)), 5, (address, 0)))
            with contextlib.suppress(ConnectionError):
                half[-1].sendall(b"GET /me")
        return half

    def test_one_address_does_not_hold_the_port(self):
        half = self.half_open(300, "127.0.0.2")
        try:
            self.assertEqual(get(self.http, "/ready"), (200, "ready\n"))
        finally:
            for s in half:
                s.close()

    def test_more_connections_than_are_served_are_forgotten_when_they_close(self):
        """libmicrohttpd's epoll saw them only when they timed out, 10 s later."""
        half = [s for i in range(10) for s in self.half_open(60, f"127.0.0.{10 + i}")]
        with self.assertRaises(TimeoutError):
            get(self.http, "/ready", timeout=1)
        for s in half:
            s.close()
        begin = time.monotonic()
        self.assertEqual(get(self.http, "/ready"), (200, "ready\n"))
        self.assertLess(time.monotonic() - begin, 8)


COUNTED = control.Beat(progress=1, pages_total=64, prefix_asked_tokens=128, prefix_hit_tokens=64, draft_tokens=20, draft_right_tokens=15)


def sums(http):
    """Over ranks, of what the beats and loads of these tests count."""
    values = parse(get(http, "/metrics")[1])
    return {"prefix_hit": values["vllm:prefix_cache_hits_total", 'model_name="demo"'],
            "draft": values["vllm:spec_decode_num_draft_tokens_total", 'model_name="demo"'],
            **{role: [values.get(("baton_expert_rows_total", f'model_name="demo",role="{role}",expert="{i}"')) for i in range(3)]
               for role in ("prefill", "decode")}}


class Lost(Served):
    ARGS = ("--http-port", "0", "--on-death", "replace")

    def test_gauges_of_a_lost_rank_are_zero_and_its_counters_stay(self):
        """Sums over ranks are what there is; rates do not jump."""
        http = self.coordinator.line("http")
        self.cell.ranks[2].send(beat=control.Beat(progress=1, n_requests=3, pages_free=40, pages_total=64, pages_cached=9, steps=5))
        def of_rank(name, state=""):
            values = parse(get(http, "/metrics")[1])
            return next(x for (n, labels), x in values.items() if n == name and ',rank="2",' in labels and state in labels)
        gauges = [("baton_rank_ready", ""), ("baton_rank_requests", ""), ("baton_rank_pages", "free"), ("baton_rank_pages", "owned"),
                  ("baton_rank_pool_pages", ""), ("baton_rank_loaded_bytes", "")]
        wait_for(lambda: [of_rank(*g) for g in gauges] == [1, 3, 40, 15, 64, 5], "the beat")
        self.cell.ranks[2].cut()
        wait_for(lambda: [of_rank(*g) for g in gauges] == [0] * 6, "its loss")
        self.assertEqual(of_rank("baton_rank_steps_total", 'role="lost"'), 5)

    def test_sums_over_ranks_keep_what_a_lost_one_counted(self):
        http = self.coordinator.line("http")
        for rank in 0, 1, 2:
            self.cell.ranks[rank].send(beat=COUNTED)
            self.cell.ranks[rank].send(expert_load=control.ExpertLoad(rows=[5, 0, 7]))
        counted = {"prefix_hit": 128, "draft": 60, "prefill": [10, 0, 14], "decode": [5, 0, 7]}
        wait_for(lambda: sums(http) == counted, "the beats")
        for rank in 1, 2:
            self.cell.ranks[rank].cut()
            wait_for(lambda: f'rank="{rank}",role="lost"' in get(http, "/metrics")[1], "its loss")
        self.assertEqual(sums(http), counted)


class Left(unittest.TestCase):
    def test_sums_keep_what_a_cell_that_left_counted(self):
        c = Coordinator("--http-port", "0")
        self.addCleanup(c.close)
        http = c.line("http")
        cells = [Cell(c.line("control"), prefill=1, decode=1, hello={"name": name}).attach().ready() for name in ("a", "b")]
        for cell in cells:
            self.addCleanup(cell.close)
        wait_for(lambda: {"serving a", "serving b"} <= set(c.lines), "the cells")
        for rank in cells[0].ranks + cells[1].ranks:
            rank.send(beat=COUNTED)
            rank.send(expert_load=control.ExpertLoad(rows=[5, 0, 7]))
        counted = {"prefix_hit": 128, "draft": 80, "prefill": [10, 0, 14], "decode": [10, 0, 14]}
        wait_for(lambda: sums(http) == counted, "the beats")
        cells[0].ranks[0].send(drain=control.Drain())
        wait_for(lambda: 'cell="a"' not in get(http, "/metrics")[1], "the end of one")
        self.assertEqual(sums(http), counted)


class Phases(unittest.TestCase):
    def test_ready_follows_the_cell(self):
        c = Coordinator("--http-port", "0")
        self.addCleanup(c.close)
        http = c.line("http")
        self.assertEqual((get(http, "/health"), get(http, "/ready")), ((200, "ok\n"), (503, "starting\n")))
        cell = Cell(c.line("control"), prefill=1, decode=1)
        self.addCleanup(cell.close)
        cell.attach()
        wait_for(lambda: get(http, "/ready") == (503, "loading\n"), "loading")
        parse(get(http, "/metrics")[1])
        cell.ready()
        c.line("ready")
        wait_for(lambda: get(http, "/ready") == (200, "ready\n"), "ready")
        c.process.terminate()
        self.assertEqual(c.wait(), 0)

    def test_http_host_may_stand_in_brackets(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("no IPv6 here")
        for host in ("::1", "[::1]"):
            c = Coordinator("--http-port", "0", "--http-host", host)
            self.addCleanup(c.close)
            http = c.line("http")
            self.assertTrue(http.startswith("[::1]:"), http)
            self.assertEqual(get(http, "/health"), (200, "ok\n"))

    def test_http_port_in_use_is_said(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            c = Coordinator("--http-port", str(s.getsockname()[1]))
            self.addCleanup(c.close)
            self.assertEqual(c.wait(), 1)
            self.assertIn("Address already in use", c.line("failed"))


class Draining(Served):
    ARGS = ("--http-port", "0", "--drain-s", "300")  # longer than any wait here

    def drain(self, number):
        """Two requests run, one of them before its first token; then the signal."""
        self.cell.split_after = 3
        calls = [self.generate(request_id="live"), self.generate(stream=False)]
        next(calls[0])
        wait_for(lambda: len(self.cell.seen("prefill")) == 2, "the prefills")
        self.assertEqual(self.error(self.generate(request_id="live"))[0], grpc.StatusCode.ALREADY_EXISTS)  # nothing of it is waited for
        self.watch = health_grpc.HealthStub(self.channel).Watch(health.HealthCheckRequest())
        self.assertEqual(next(self.watch).status, health.HealthCheckResponse.SERVING)
        self.coordinator.process.send_signal(number)
        self.coordinator.line("draining")
        return calls


class Drain(Draining):
    def check_refused(self):
        code, details, n = self.error(self.generate())
        self.assertEqual((code, n), (UNAVAILABLE, 0))
        self.assertIn("draining", details)
        self.assertEqual(next(self.watch).status, health.HealthCheckResponse.NOT_SERVING)
        wait_for(lambda: get(self.coordinator.line("http"), "/ready") == (503, "draining\n"), "not ready")
        self.assertEqual(get(self.coordinator.line("http"), "/health")[0], 200)
        with self.assertRaises(grpc.RpcError) as e:
            self.stub.HealthCheck(vllm.HealthCheckRequest())
        self.assertEqual(e.exception.code(), UNAVAILABLE)

    def test_sigusr1_lets_running_requests_finish(self):
        self.finish(signal.SIGUSR1)

    def test_sigterm_lets_running_requests_finish(self):
        self.finish(signal.SIGTERM)

    def finish(self, number):
        calls = self.drain(number)
        self.check_refused()
        self.assertIsNone(self.coordinator.process.poll())
        self.cell.more_gate.set()
        for call in calls:
            self.assertEqual(list(list(call)[-1].complete.output_ids), expected([5, 200, 300], 20))
        self.assertEqual(self.coordinator.wait(), 0)
        self.cell.wait_shutdown()

    def test_idle_drain_ends_at_once(self):
        self.coordinator.process.send_signal(signal.SIGUSR1)
        self.assertEqual(self.coordinator.wait(), 0)
        self.assertNotIn("has not left", self.coordinator.text())

    def test_a_second_signal_ends_at_once(self):
        for first, second in ((signal.SIGUSR1, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)):
            with self.subTest(first=first, second=second):
                if self.coordinator.process.poll() is not None:
                    self.setUp()
                calls = self.drain(first)
                self.coordinator.process.send_signal(second)
                for call in calls:
                    self.assertEqual(self.error(call)[:2], (UNAVAILABLE, "the server is shutting down"))
                self.assertEqual(self.coordinator.wait(), 0)


class NoDrain(Served):
    ARGS = ("--drain-s", "0")

    def test_sigterm_ends_at_once(self):
        self.cell.split_after = 3
        call = self.generate()
        next(call)
        self.coordinator.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.error(call)[:2], (UNAVAILABLE, "the server is shutting down"))
        self.assertEqual(self.coordinator.wait(), 0)
        self.assertNotIn("draining", self.coordinator.lines)


class DrainLimit(Draining):
    ARGS = ("--http-port", "0", "--drain-s", "1")

    def test_limit_ends_what_still_runs(self):
        calls = self.drain(signal.SIGTERM)
        for call in calls:
            self.assertEqual(self.error(call)[:2], (UNAVAILABLE, "the server is shutting down"))
        self.assertEqual(self.coordinator.wait(), 0)


class BusyPoll(Served):
    """By CPU time, so that no other program matters: asleep, the loop wakes 20 times a second."""
    ARGS = ("--busy-poll",)

    def used(self):
        with open(f"/proc/{self.coordinator.process.pid}/stat", encoding="utf-8") as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def asleep(self):
        before, start = self.used(), time.monotonic()
        time.sleep(0.5)
        return self.used() - before < 0.1 * (time.monotonic() - start)

    def hold(self):
        """A request that runs and brings nothing for now."""
        self.cell.more_gate.clear()
        self.cell.split_after = 3
        call, before = self.generate(), self.used()
        next(call)
        wait_for(lambda: self.used() - before > 0.2, "a loop that is awake while a request runs")
        return call

    def finish(self, call):
        self.cell.more_gate.set()
        self.assertEqual(list(list(call)[-1].complete.output_ids), expected([5, 200, 300], 20))

    def test_awake_while_requests_run_and_only_then(self):
        wait_for(self.asleep, "sleep before the first request")
        self.finish(self.hold())
        wait_for(self.asleep, "sleep after the last request")
        call = self.hold()
        self.coordinator.process.send_signal(signal.SIGUSR1)
        self.coordinator.line("draining")  # what else there is to do is done
        self.finish(call)
        self.assertEqual(self.coordinator.wait(), 0)


class DrainOfALostCell(Draining):
    """Nobody starts it again: what is left ends with the reason, and so does the coordinator."""
    ARGS = (*Draining.ARGS, "--on-death", "restart", "--cell-wait-s", "300")

    def test_is_a_failure(self):
        calls = self.drain(signal.SIGUSR1)
        for rank in self.cell.ranks:
            rank.cut()
        for call in calls:
            code, details, _ = self.error(call)
            self.assertEqual(code, UNAVAILABLE)
            self.assertIn("rank", details)
        self.assertEqual(self.coordinator.wait(), 1)


class Watch(Served):
    ARGS = ("--drain-s", "300")

    def test_watchers_come_and_go(self):
        stub = health_grpc.HealthStub(self.channel)
        calls = [stub.Watch(health.HealthCheckRequest(service=s)) for s in ("", "vllm.grpc.engine.VllmEngine", "no.such")]
        got = [next(c).status for c in calls]
        r = health.HealthCheckResponse
        self.assertEqual(got, [r.SERVING, r.SERVING, r.SERVICE_UNKNOWN])
        for c in calls[1:]:
            c.cancel()
        for _ in range(50):
            c = stub.Watch(health.HealthCheckRequest())
            self.assertEqual(next(c).status, r.SERVING)
            c.cancel()
        seen = []
        threading.Thread(target=lambda: [seen.append(m.status) for m in calls[0]], daemon=True).start()
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))
        self.assertEqual(seen, [])  # only changes are told

    def test_open_watch_does_not_hold_the_end_up(self):
        call = health_grpc.HealthStub(self.channel).Watch(health.HealthCheckRequest())
        next(call)
        self.coordinator.process.terminate()
        self.assertEqual(self.coordinator.wait(), 0)


class Versions(unittest.TestCase):
    def test_rank_of_another_version_is_named(self):
        c = Coordinator("--http-port", "0")
        self.addCleanup(c.close)
        cell = Cell(c.line("control"), hello={"version": "9.9"}).attach().ready()
        self.addCleanup(cell.close)
        c.line("ready")
        ranks = json.loads(get(c.line("http"), "/status.json")[1])["ranks"]
        self.assertEqual([r["version"] for r in ranks], ["9.9"] * cell.n)
        self.assertRegex(c.text(), r" W coordinator .*decode rank 3 \(pid 1003 on testhost\) is of version 9\.9, this coordinator of \d+\.\d+\.\d+\+[0-9a-f]{8}: ")
        self.assertEqual(c.text().count("is of version"), cell.n)

    def test_rank_of_another_build_of_the_version_is_named(self):
        c = Coordinator("--http-port", "0")
        self.addCleanup(c.close)
        build = json.loads(get(c.line("http"), "/status.json")[1])["version"]
        other = build[:-8] + "00000000"
        cell = Cell(c.line("control"))
        self.addCleanup(cell.close)
        cell.ranks = [Rank(cell, i, version=other if i == 2 else build) for i in range(cell.n)]
        cell.ready()
        c.line("ready")
        self.assertIn(f"decode rank 2 (pid 1002 on testhost) is of version {other}, this coordinator of {build}: ", c.text())
        self.assertEqual(c.text().count("is of version"), 1)


class Waiting(Served):
    """All ranks are lost, and the cell may come back."""
    ARGS = ("--on-death", "restart", "--http-port", "0")

    def test_requests_that_wait_end_with_a_drain(self):
        for rank in self.cell.ranks:
            rank.cut()
        http = self.coordinator.line("http")
        wait_for(lambda: get(http, "/ready") == (503, "waiting\n"), "not ready")
        call = self.generate()
        wait_for(lambda: json.loads(get(http, "/status.json")[1])["waiting"] == 1, "the request")
        self.coordinator.process.send_signal(signal.SIGUSR1)
        code, details, n = self.error(call)
        self.assertEqual((code, n), (UNAVAILABLE, 0))
        self.assertIn("the server is draining: no cell is left, and none will come", details)
        self.assertEqual(self.coordinator.wait(), 1)

    def test_request_whose_cell_is_lost_in_a_drain_is_told_of_both(self):
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: self.cell.seen("prefill"), "the request")
        self.coordinator.process.send_signal(signal.SIGUSR1)
        self.coordinator.line("draining")
        for rank in self.cell.ranks:
            rank.cut()
        code, details, n = self.error(call)
        self.assertEqual((code, n), (UNAVAILABLE, 0))
        self.assertRegex(details, "^(prefill|decode) rank .* was lost: .*; the server is draining: no cell is left, and none will come$")
        self.assertEqual(self.coordinator.wait(), 1)

    def test_request_that_waits_for_a_cell_in_a_drain_is_told_that_none_has_come(self):
        """baton run is starting one, which does not come."""
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: self.cell.seen("prefill"), "the request")
        self.assertEqual(ctypes.CDLL(None).sigqueue(self.coordinator.process.pid, signal.SIGUSR1, ctypes.c_void_p(1)), 0)
        self.coordinator.line("draining")
        for rank in self.cell.ranks:
            rank.cut()
        self.coordinator.line("left")
        self.coordinator.process.send_signal(signal.SIGINT)
        self.assertEqual(self.error(call), (UNAVAILABLE, "the server is draining: no cell is left, and none will come", 0))
        self.assertEqual(self.coordinator.wait(), 0)

    def test_every_port_says_so(self):
        r = health.HealthCheckResponse
        stub = health_grpc.HealthStub(self.channel)
        watches = {s: stub.Watch(health.HealthCheckRequest(service=s)) for s in ("", "vllm.grpc.engine.VllmEngine")}
        self.assertEqual([next(w).status for w in watches.values()], [r.SERVING, r.SERVING])
        for rank in self.cell.ranks:
            rank.cut()
        self.assertEqual(next(watches["vllm.grpc.engine.VllmEngine"]).status, r.NOT_SERVING)
        status = {s: stub.Check(health.HealthCheckRequest(service=s)).status for s in watches}
        self.assertEqual(status, {"": r.SERVING, "vllm.grpc.engine.VllmEngine": r.NOT_SERVING})
        http = self.coordinator.line("http")
        wait_for(lambda: get(http, "/ready") == (503, "waiting\n"), "not ready")
        self.assertEqual(self.stub.GetLoads(vllm.GetLoadsRequest()).loads[0].token_usage, 1)
        wait_for(lambda: re.search(r"\nvllm:kv_cache_usage_perc\{.*\} 1\n", get(http, "/metrics")[1]), "full pages")
        again = Cell(self.coordinator.line("control")).attach().ready()
        self.addCleanup(again.close)
        self.assertEqual(next(watches["vllm.grpc.engine.VllmEngine"]).status, r.SERVING)


class Tls(TlsCase):
    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def ask(self, address, credentials):
        with (grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)) as channel:
            stub = vllm_grpc.VllmEngineStub(channel)
            try:
                request = vllm.GenerateRequest(request_id="a", tokenized=vllm.TokenizedInput(input_ids=[500, 3]),
                                               sampling_params=vllm.SamplingParams(temperature=0.0, max_tokens=5))
                return list(list(stub.Generate(request, timeout=WAIT_S))[-1].complete.output_ids)
            except grpc.RpcError as e:
                return e.code()

    def test_tls(self):
        address = self.serve()
        self.assertEqual(self.ask(address, grpc.ssl_channel_credentials(self.read("ca.pem"))), expected([500, 3], 5))
        self.assertEqual(self.ask(address, None), UNAVAILABLE)
        self.assertEqual(self.ask(address, grpc.ssl_channel_credentials(self.read("other.pem"))), UNAVAILABLE)

    def test_mutual_tls(self):
        address = self.serve("--tls-client-ca", self.path("ca.pem"))
        ca = self.read("ca.pem")
        good = grpc.ssl_channel_credentials(ca, self.read("client.key"), self.read("client.pem"))
        self.assertEqual(self.ask(address, good), expected([500, 3], 5))
        self.assertEqual(self.ask(address, grpc.ssl_channel_credentials(ca)), UNAVAILABLE)
        stranger = grpc.ssl_channel_credentials(ca, self.read("stranger.key"), self.read("stranger.pem"))
        self.assertEqual(self.ask(address, stranger), UNAVAILABLE)
        self.assertEqual(self.ask(address, good), expected([500, 3], 5))

    def replace(self, **files):
        """Each as a whole, as those who renew certificates do."""
        for name, text in files.items():
            with open(self.path("fresh"), "wb") as f:
                f.write(text)
            os.rename(self.path("fresh"), self.path(name.replace("_", ".")))

    def test_changed_files_are_read_again(self):
        ca, key, cert = self.read("ca.pem"), self.read("server.key"), self.read("server.pem")
        address = self.serve("--tls-client-ca", self.path("ca.pem"), "--http-port", "0")
        http = self.coordinator.line("http")
        self.addCleanup(self.replace, ca_pem=ca, server_key=key, server_pem=cert)

        def refused():
            return parse(get(http, "/metrics")[1]).get(("baton_tls_files_refused", 'model_name="demo"'))
        own = dict(private_key=self.read("client.key"), certificate_chain=self.read("client.pem"))
        other = dict(private_key=self.read("stranger.key"), certificate_chain=self.read("stranger.pem"))
        old, new = (grpc.ssl_channel_credentials(ca, **own), grpc.ssl_channel_credentials(self.read("other.pem"), **other))
        with grpc.secure_channel(address, old, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = vllm_grpc.VllmEngineStub(channel)
            stub.HealthCheck(vllm.HealthCheckRequest(), timeout=WAIT_S)
            self.assertEqual(refused(), 0)
            self.replace(server_pem=self.read("stranger.pem"))    # not the key's
            wait_for(lambda: "the ones before stay in use" in self.coordinator.text(), "the complaint")
            wait_for(lambda: refused() == 1, "the metric of the complaint")
            self.assertEqual(self.ask(address, old), expected([500, 3], 5))
            self.replace(server_key=self.read("stranger.key"), ca_pem=self.read("other.pem"))
            wait_for(lambda: "new connections get what" in self.coordinator.text(), "the new certificate")
            wait_for(lambda: refused() == 0, "the metric's end")
            wait_for(lambda: self.coordinator.text().count("/ca.pem: certificate 1 is valid until ") == 2, "a warning of the new one too")
            self.assertEqual(self.ask(address, new), expected([500, 3], 5))
            self.assertEqual(self.ask(address, old), UNAVAILABLE)
            stub.HealthCheck(vllm.HealthCheckRequest(), timeout=WAIT_S)    # the connection from before goes on

    def test_changed_certificate_without_authorities_of_clients(self):
        key, cert = self.read("server.key"), self.read("server.pem")
        address = self.serve()
        self.addCleanup(self.replace, server_key=key, server_pem=cert)
        self.replace(server_key=self.read("stranger.key"), server_pem=self.read("stranger.pem"))
        wait_for(lambda: "new connections get what" in self.coordinator.text(), "the new certificate")
        self.assertEqual(self.ask(address, grpc.ssl_channel_credentials(self.read("other.pem"))), expected([500, 3], 5))
        self.assertEqual(self.ask(address, grpc.ssl_channel_credentials(self.read("ca.pem"))), UNAVAILABLE)

    def test_certificates_that_are_not_valid_are_served_with_a_warning(self):
        now, day = time.time(), 86400
        date(self.folder.name, "long.pem", now - day, now + 99 * day)
        for start, end, says in ((now - 3 * day, now - day, "was valid until {1}"), (now + day, now + 99 * day, "is not valid before {0}"),
                                 (now - day, now + 6.9 * day, "is valid until {1}"), (now - day, now + 7.1 * day, None)):
            date(self.folder.name, "dated.pem", start, end)
            self.replace(chain_pem=self.read("long.pem") + self.read("dated.pem"))
            c = Coordinator("--tls-cert", self.path("chain.pem"), "--tls-key", self.path("server.key"))
            self.addCleanup(c.close)
            c.line("control")
            c.process.terminate()
            self.assertEqual(c.wait(), 0)
            told = re.findall("W coordinator - .* (/.*chain.pem: .*): replace the file, which is read again", c.text())
            times = [time.strftime("%F %H:%M UTC", time.gmtime(t)) for t in (start, end)]
            self.assertEqual(told, [f"{self.path('chain.pem')}: certificate 2 {says.format(*times)}"] if says else [])

    def test_bad_files_are_named(self):
        """Before any rank has attached: loading may take an hour."""
        self.replace(end_pem=b"-----END CERTIFICATE-----\n", nul_pem=self.read("server.pem") + b"\0")
        for cert, key, text in (("missing.pem", "server.key", "missing.pem: No such file"), ("server.key", "server.key", "CERTIFICATE"),
                                ("server.pem", "server.pem", "PRIVATE KEY"), ("server.pem", "client.key", "belong together"),
                                ("server.pem", "locked.key", "locked.key: the key has a passphrase"),
                                ("server.pem", "locked-old.key", "locked-old.key: the key has a passphrase"),
                                ("end.pem", "server.key", "end.pem: expected a PEM file"), ("nul.pem", "server.key", "nul.pem: expected a PEM file")):
            c = Coordinator("--tls-cert", self.path(cert), "--tls-key", self.path(key))
            self.addCleanup(c.close)
            self.assertEqual(c.wait(), 1)
            self.assertIn(text, c.line("failed"))


class Secret(unittest.TestCase):
    SECRET = "a-secret-of-some-length"

    def test_only_ranks_that_show_it_attach(self):
        c = Coordinator(env={"BATON_SECRET": self.SECRET})
        self.addCleanup(c.close)
        cell = Cell(c.line("control"), prefill=1, decode=1)
        self.addCleanup(cell.close)
        for value in (None, self.SECRET + "x", self.SECRET[:-1], "", self.SECRET.upper()):
            cell.metadata = None if value is None else [("baton-secret", value)]
            stranger = Rank(cell, 0)
            wait_for(lambda: stranger.end is not None, "the refusal")
            self.assertEqual(stranger.end[0], grpc.StatusCode.UNAUTHENTICATED)
            self.assertEqual(stranger.seen, [])
            stranger.cut()
        cell.metadata = [("baton-secret", self.SECRET)]
        cell.attach().ready()
        c.line("ready")
        self.assertNotIn(self.SECRET, c.text())
        with open(f"/proc/{c.process.pid}/cmdline") as f:
            self.assertNotIn(self.SECRET, f.read())

    def test_file(self):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write(self.SECRET + "\n")
            f.flush()
            c = Coordinator("--secret-file", f.name)
            self.addCleanup(c.close)
            cell = Cell(c.line("control"), prefill=1, decode=1)
            self.addCleanup(cell.close)
            stranger = Rank(cell, 0)
            wait_for(lambda: stranger.end is not None, "the refusal")
            cell.metadata = [("baton-secret", self.SECRET)]
            cell.attach().ready()
            c.line("ready")

    def test_bad_ones_are_refused_at_start(self):
        for args, env, text in (((), {"BATON_SECRET": "short"}, "expected 16 to 256"), (("--secret-file", "/nowhere/x"), {}, "No such file"),
                                (("--control", "0.0.0.0:0"), {}, "has no secret")):
            c = Coordinator(*args, env=env)
            self.addCleanup(c.close)
            self.assertEqual(c.wait(), 1)
            self.assertIn(text, c.line("failed"))


class FewFiles(Served):
    FILES = 96
    ARGS = ("--http-port", "0")
    BEFORE = staticmethod(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FewFiles.FILES, FewFiles.FILES)))

    def test_the_alert_fires_before_connections_are_closed(self):
        with open(os.path.join(SOURCE, "docs", "operating.md"), encoding="utf-8") as f:
            rule = re.search("alert: FewFiles, expr: '(.*)'", f.read())[1].replace('{job="baton"}', "")
        scraper = http.client.HTTPConnection(self.coordinator.line("http"), timeout=WAIT_S)     # as Prometheus, which keeps its connection
        self.addCleanup(scraper.close)

        def fires():
            scraper.request("GET", "/metrics")
            values = {name: v for (name, _), v in parse(scraper.getresponse().read().decode()).items() if name.startswith("process_")}
            return eval(rule, {"clamp_max": min}, values)

        self.assertFalse(fires())
        host, port = self.address.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port)), timeout=WAIT_S) for _ in range(self.FILES)]
        for s in idle:
            self.addCleanup(s.close)
        try:
            self.assertEqual(idle[-1].recv(1), b"")     # one too many
        except ConnectionResetError:
            pass
        wait_for(fires, "the alert")    # a page is as old as the snapshot


class LongName(Served):
    NAME = '"' + "\u20ac" * 200 + "end"
    ARGS = ("--http-port", "0", "--served-model-name", NAME)

    def test_metrics_tell_a_long_name_whole(self):
        text = get(self.coordinator.line("http"), "/metrics")[1]    # UTF-8
        self.assertEqual(set(re.findall(r'model_name="((?:[^"\\]|\\.)*)"', text)), {"\\" + self.NAME})


class Settings(unittest.TestCase):
    """flag > environment > file > default; that each place is read right is core.settings' test."""

    def test_one_precedence_and_its_report(self):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("queue-s = 11\nattach-s = 12\nload-s = 13\nserved-model-name = \"from file\"\n")
            f.flush()
            c = Coordinator("--config", f.name, "--queue-s", "31", env={"BATON_QUEUE_S": "21", "BATON_ATTACH_S": "22"})
            self.addCleanup(c.close)
            c.line("control")
            log = c.text()
            for part in ("queue-s=31 (flag)", "attach-s=22 (environment)", "load-s=13 (file)", "served-model-name=from file (file)",
                         "stall-s=600"):
                self.assertIn(part, log)
            cell = Cell(c.line("control"), prefill=1, decode=1).attach().ready()
            self.addCleanup(cell.close)
            with grpc.insecure_channel(c.line("ready")) as channel:
                info = vllm_grpc.VllmEngineStub(channel).GetModelInfo(vllm.GetModelInfoRequest(), timeout=WAIT_S)
            self.assertEqual(info.served_model_name, "from file")

    def test_wrong_settings_are_named(self):
        with tempfile.NamedTemporaryFile("w") as f:
            f.write("queue-s = 11\nqueues = 1\n")
            f.flush()
            c = Coordinator("--config", f.name)
            self.addCleanup(c.close)
            self.assertEqual(c.wait(), 64)
            self.assertIn(f"{f.name}:2: there is no setting \"queues\"", c.text())
        c = Coordinator(env={"BATON_QUEUE_S": "soon"})
        self.addCleanup(c.close)
        self.assertEqual(c.wait(), 64)
        self.assertIn("soon", c.text())
        c = Coordinator("--http-host", "::")
        self.addCleanup(c.close)
        self.assertEqual(c.wait(), 64)
        self.assertIn("--http-host has no effect without --http-port", c.text())
        c = Coordinator("--announce-fd", "999")
        self.addCleanup(c.close)
        self.assertEqual(c.wait(), 64)
        self.assertIn("--announce-fd is 999, expected a descriptor that is open", c.text())
        c = Coordinator("--host", 300 * "a")
        self.addCleanup(c.close)
        self.assertEqual(c.wait(), 64)
        self.assertIn("--host has 300 bytes, expected at most 251", c.text())

    def test_names_that_are_no_utf8_are_refused(self):
        """Nobody could parse what tells them: GetModelInfo, /metrics, /status.json."""
        with tempfile.TemporaryDirectory(suffix="\udcff") as folder:
            for option, value in (("--served-model-name", b"\xff\xfe"), ("--model", os.fsencode(folder))):
                c = Coordinator(option, value)
                self.addCleanup(c.close)
                self.assertEqual(c.wait(), 1)
                self.assertIn(f"{option} {value.decode('ascii', 'replace')}".replace("\ufffd", "?"), c.text())
                self.assertIn("in UTF-8", c.text())


if __name__ == "__main__":
    main()
