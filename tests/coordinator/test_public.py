"""The public protocol, as gateways use it."""
import hashlib
import io
import json
import os
import random
import shutil
import socket
import tempfile
import threading
import time
import zipfile

import grpc

from harness import (CONTEXT, EOS, SOURCE, VOCAB, WAIT_S, Cell, Coordinator, Served, control, expected, health, health_grpc, logprob, main, vllm,
                     vllm_grpc, wait_for)

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def parts(messages):
    """(ids of the chunks, the one complete)."""
    chunks = [m.chunk for m in messages if m.HasField("chunk")]
    completes = [m.complete for m in messages if m.HasField("complete")]
    assert len(completes) == 1 and messages[-1].HasField("complete"), messages
    return [i for c in chunks for i in c.token_ids], completes[0]


class Generate(Served):
    def test_plain_request_has_one_complete_with_everything(self):
        messages = list(self.generate(stream=False))
        self.assertEqual(len(messages), 1)
        want = vllm.GenerateComplete(output_ids=expected([5, 200, 300], 20), finish_reason="stop", prompt_tokens=3,
                                     completion_tokens=6, cached_tokens=0, index=0)
        self.assertEqual(messages[0].complete, want)
        self.assertEqual(want.output_ids[-1], EOS)
        self.all_released()

    def test_stream_has_each_token_once_then_the_complete(self):
        messages = list(self.generate())
        ids, complete = parts(messages)
        self.assertEqual(ids, expected([5, 200, 300], 20))
        self.assertEqual(list(complete.output_ids), ids)
        self.assertEqual((complete.finish_reason, complete.prompt_tokens, complete.completion_tokens), ("stop", 3, 6))
        for m in messages[:-1]:
            self.assertEqual((m.chunk.prompt_tokens, m.chunk.completion_tokens, m.chunk.index),
                             (3, len(m.chunk.token_ids), 0))
            self.assertFalse(m.chunk.HasField("output_logprobs"))
        self.all_released()

    def test_length_and_ignore_eos(self):
        ids, complete = parts(list(self.generate(max_tokens=4)))
        self.assertEqual((len(ids), complete.finish_reason), (4, "length"))
        ids, complete = parts(list(self.generate(max_tokens=40, ignore_eos=True)))
        self.assertEqual((ids, complete.finish_reason), (expected([5, 200, 300], 40, True), "length"))

    def test_first_token_may_be_the_last(self):
        for sampling in (dict(max_tokens=1), dict(prompt=(0, 9), max_tokens=50)):
            ids, complete = parts(list(self.generate(**sampling)))
            self.assertEqual(complete.completion_tokens, 1)
        self.all_released()
        wait_for(lambda: len(self.cell.seen("abort")) >= 2, "the decode ranks' aborts")

    def test_stop_token_id_is_named(self):
        stop = expected([5, 200, 300], 20)[2]
        complete = list(self.generate(stream=False, stop_token_ids=[stop]))[0].complete
        self.assertEqual((complete.finish_reason, complete.matched_token_id, complete.completion_tokens), ("stop", stop, 3))
        complete = list(self.generate(stream=False))[0].complete
        self.assertIsNone(complete.WhichOneof("matched_stop"))  # the model's own end

    def test_max_tokens_absent_goes_to_the_context(self):
        prompt = [500] * 1000
        ids, complete = parts(list(self.generate(prompt=prompt, max_tokens=None)))
        self.assertEqual((len(ids), complete.finish_reason), (CONTEXT - 1000, "length"))

    def test_logprobs_of_the_chosen_token(self):
        for stream in (False, True):
            for n, temperature in ((0, 0.0), (1, 0.0), (1, 0.7)):
                messages = list(self.generate(stream=stream, logprobs=n, temperature=temperature))
                carriers = [m.chunk for m in messages[:-1]] if stream else [messages[0].complete]
                lp = [c.output_logprobs for c in carriers]
                ids = [i for p in lp for i in p.token_ids]
                self.assertEqual(ids, expected([5, 200, 300], 20))
                self.assertEqual([v for p in lp for v in p.token_logprobs], [logprob(i) for i in range(len(ids))])
                # as many lists as tokens; these ranks send no alternatives
                self.assertEqual([len(t.values) for p in lp for t in p.top_logprobs], [0] * len(ids) * n)
                self.assertEqual(messages[-1].complete.HasField("output_logprobs"), not stream)    # once
        self.assertFalse(list(self.generate(stream=False))[0].complete.HasField("output_logprobs"))

    def test_sampling_travels_to_the_ranks(self):
        list(self.generate(temperature=0.75, seed=-3, max_tokens=9, ignore_eos=True, stop_token_ids=[7, 8], logprobs=0))
        for kind in ("reserve", "prefill"):
            _, m = self.cell.seen(kind)[0]
            s = m.sampling
            self.assertEqual((s.temperature, s.seed, s.max_tokens, s.ignore_eos, list(s.stop_token_ids), s.logprobs),
                             (0.75, 2**64 - 3, 9, True, [7, 8], True))
        list(self.generate(temperature=None))
        list(self.generate(temperature=1e-7))
        reserves = [m for _, m in sorted(self.cell.seen("reserve"), key=lambda x: x[1].request)]
        self.assertEqual([m.sampling.temperature for m in reserves[1:]], [1.0, 0.0])
        self.assertNotEqual(reserves[1].sampling.seed, reserves[2].sampling.seed)  # drawn anew

    def test_headers_come_with_the_first_message(self):
        self.cell.gate.clear()
        call = self.generate()
        got = []
        thread = threading.Thread(target=lambda: got.append(call.initial_metadata()))
        thread.start()
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        time.sleep(0.2)
        self.assertEqual(got, [])
        self.cell.gate.set()
        thread.join(WAIT_S)
        self.assertEqual(len(got), 1)
        parts(list(call))

    def test_slow_reader_gets_all_tokens_in_fewer_chunks(self):
        prompt = [500, 1]
        call = self.generate(prompt=prompt, max_tokens=1500)
        time.sleep(1.0)
        messages = list(call)
        ids, complete = parts(messages)
        self.assertEqual(ids, expected(prompt, 1500))
        self.assertEqual(complete.completion_tokens, 1500)

    def test_32_streams_at_once_do_not_mix(self):
        results, errors = {}, []

        def one(i):
            prompt = [100 + i, 3 * i, 17]
            try:
                ids, complete = parts(list(self.generate(prompt=prompt, max_tokens=50 + i, request_id=f"many-{i}")))
                results[i] = (ids == expected(prompt, 50 + i), complete.finish_reason, complete.completion_tokens)
            except Exception as e:
                errors.append((i, e))

        self.cell.gate.clear()
        threads = [threading.Thread(target=one, args=(i,)) for i in range(32)]
        for t in threads:
            t.start()
        wait_for(lambda: len(self.cell.seen("prefill")) == 32, "all of them")
        self.cell.gate.set()
        for t in threads:
            t.join(WAIT_S)
        self.assertEqual(errors, [])
        self.assertEqual(results, {i: (True, "length", 50 + i) for i in range(32)})
        decode = {rank for rank, _ in self.cell.seen("reserve")}
        prefill = {rank for rank, _ in self.cell.seen("prefill")}
        self.assertEqual((prefill, decode), ({0, 1}, {2, 3}))  # all ranks had work
        self.all_released()


class Refusals(Served):
    def refused(self, words, request=None, **kw):
        code, details, n = self.error(self.generate(request, **kw))
        self.assertEqual((code, n), (INVALID, 0), details)
        self.assertIn(words, details)

    def test_unsupported_fields_are_refused_by_name(self):
        cases = dict(json_schema="{", regex="(a", grammar="a", structural_tag="a", choice=vllm.ChoiceConstraint(),
                     truncate_prompt_tokens=5)
        for name, value in cases.items():
            with self.subTest(name):
                self.refused(name, **{name: value})
        self.refused("logprobs is 21", logprobs=21)
        self.refused("prompt_logprobs is 21", prompt_logprobs=21)
        self.refused("logprobs is -1", logprobs=-1)
        for value in (-0.5, float("nan"), float("inf")):
            self.refused("temperature", temperature=value)
        self.refused("top_p", top_p=float("nan"))
        for name, value in dict(kv_transfer_params=vllm.KvTransferParams(remote_host="h"), kv_transfer_params_json="{}",
                                mm_inputs=vllm.Undecoded(), media_refs=[vllm.Undecoded()],
                                extra_mm_inputs=[vllm.Undecoded()], data_parallel_rank=0).items():
            request = self.request()
            request.MergeFrom(vllm.GenerateRequest(**{name: value}))
            with self.subTest(name):
                self.refused(name, request)
        request = self.request()
        request.kv_transfer_params.remote_port = 1
        self.refused("kv_transfer_params", request)
        self.assertEqual(self.cell.seen("reserve"), [])

    def test_neutral_values_are_accepted(self):
        request = self.request(top_p=1.0, repetition_penalty=1.0, n=1, skip_special_tokens=True,
                               spaces_between_special_tokens=True, json_object=False, include_stop_str_in_output=True)
        request.data_parallel_rank = -1
        request.kv_transfer_params_json = ""
        request.tokenized.original_text = b"ignored\0\xff"
        parts(list(self.generate(request)))
        parts(list(self.generate(vllm.GenerateRequest(request_id="bare", tokenized=vllm.TokenizedInput(input_ids=[3, 4])))))

    def salted(self, *salts, prompt=range(5, 200), **kw):
        return self.stub.Generate(self.request(prompt=list(prompt), **kw), timeout=WAIT_S,
                                  metadata=[("baton-cache-salt", salt) for salt in salts])

    def test_prefix_keys_are_those_of_the_salt(self):
        replies = [[list(m.chunk.token_ids or m.complete.output_ids) for m in self.salted(*salt, stream=False)]
                   for salt in ([], ["a"], ["b" * 256], ["a"], [])]
        self.assertEqual(replies[1:], replies[:1] * 4)
        for order in ("reserve", "prefill"):
            keys = [bytes(m.prefix_keys) for _, m in sorted(self.cell.seen(order), key=lambda x: x[1].request)]
            self.assertEqual({len(k) for k in keys}, {3 * 16})
            self.assertEqual((keys[0], keys[1], len(set(keys))), (keys[4], keys[3], 3))
            pages = [k[i:i + 16] for k in keys[:3] for i in range(0, 48, 16)]
            self.assertEqual(len(set(pages)), len(pages))

    def test_salts_are_checked(self):
        for salts, words in ((["a" * 257], "baton-cache-salt has 257 bytes, expected 1 to 256"), ([""], "baton-cache-salt has 0 bytes"),
                             (["a b"], "baton-cache-salt has byte 0x20 at 1, expected visible ASCII"), (["a", "a"], "several times, expected once"),
                             (["x" * 8000], "baton-cache-salt has 8000 bytes")):
            with self.subTest(words):
                code, details, n = self.error(self.salted(*salts))
                self.assertEqual((code, n), (INVALID, 0), details)
                self.assertIn(words, details)
        self.assertEqual(self.cell.seen("reserve"), [])

    def test_prompts_are_checked(self):
        self.refused("empty", prompt=[])
        self.refused(f"token 1 of the prompt is {VOCAB}", prompt=[5, VOCAB])
        self.refused("context", prompt=[5] * CONTEXT)
        self.refused("context", prompt=[5] * 1000, max_tokens=CONTEXT - 999)
        self.refused("max_tokens is 0", max_tokens=0)
        self.refused("stop_token_ids", stop_token_ids=[VOCAB])
        self.refused("stop_token_ids", stop_token_ids=[2] * 1025)
        self.refused("text", vllm.GenerateRequest(request_id="t", text="hello"))
        self.refused("no input", vllm.GenerateRequest(request_id="t"))
        self.refused("request_id is empty", vllm.GenerateRequest(tokenized=vllm.TokenizedInput(input_ids=[3])))
        self.refused("request_id has", request_id="x" * 2000)
        self.refused("control characters", request_id="a\nb")

    def test_live_id_is_refused_and_free_after_its_end(self):
        self.cell.gate.clear()
        first = self.generate(request_id="same")
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        code, details, n = self.error(self.generate(request_id="same", stop=["x"], stop_token_ids=[7], logit_bias={9: 1}, regex="a+"))
        self.assertEqual((code, n), (grpc.StatusCode.ALREADY_EXISTS, 0))  # and what it brought is freed, as leak checkers see
        self.assertIn("same", details)
        self.cell.gate.set()
        parts(list(first))
        parts(list(self.generate(request_id="same")))

    def test_a_channel_with_a_retry_policy_sends_what_has_no_answer_again(self):
        """Since headers would be the beginning of an answer."""
        policy = {"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.5s", "maxBackoff": "5s", "backoffMultiplier": 2,
                                                "retryableStatusCodes": ["ALREADY_EXISTS"]}}
        self.cell.gate.clear()
        first = self.generate(request_id="same")
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        with grpc.insecure_channel(self.address, options=[("grpc.service_config", json.dumps({"methodConfig": [policy]}))]) as channel:
            second = vllm_grpc.VllmEngineStub(channel).Generate(self.request(request_id="same"), timeout=WAIT_S)
            time.sleep(0.2)
            self.cell.gate.set()
            parts(list(first))
            parts(list(second))

    def test_malformed_requests_harm_nobody(self):
        rng = random.Random(7)
        raw = self.channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")
        good = self.request(request_id="to-be-damaged", max_tokens=3).SerializeToString()
        codes = {}
        for i in range(1000):
            if i % 2 == 0:
                data = bytes(rng.randrange(256) for _ in range(rng.randrange(60)))
            else:
                data = bytearray(good)
                for _ in range(rng.randrange(1, 4)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                data = bytes(data[:rng.randrange(1, len(data) + 1)])
            try:
                list(raw(data, timeout=WAIT_S))
                code = grpc.StatusCode.OK
            except grpc.RpcError as e:
                code = e.code()
            codes[code] = codes.get(code, 0) + 1
        self.assertEqual(set(codes) - {INVALID, grpc.StatusCode.OK}, set())
        self.assertGreater(codes[INVALID], 500)
        ids, _ = parts(list(self.generate()))
        self.assertEqual(ids, expected([5, 200, 300], 20))
        self.all_released()

    def test_bytes_that_are_no_grpc_harm_nobody(self):
        rng = random.Random(8)
        for address in (self.address, self.cell.address):
            host, port = address.rsplit(":", 1)
            held = []
            for i in range(40):
                s = socket.create_connection((host, int(port)), timeout=WAIT_S)
                if i % 2:
                    s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                s.sendall(bytes(rng.randrange(256) for _ in range(rng.randrange(200))))
                held.append(s)
            ids, _ = parts(list(self.generate()))
            self.assertEqual(ids, expected([5, 200, 300], 20))
            for s in held:
                s.close()
        self.all_released()

    def test_messages_that_come_twice_are_refused(self):
        """A parser that merges them as protobuf-c 1.4.1 does computes another prompt than the one that is meant."""
        again = vllm.GenerateRequest(tokenized=vllm.TokenizedInput(input_ids=[5]), sampling_params=vllm.SamplingParams(max_tokens=3))
        for name in ("tokenized", "sampling_params"):
            part = vllm.GenerateRequest(**{name: getattr(again, name)})
            code, details, n = self.error(self.channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")(
                self.request().SerializeToString() + part.SerializeToString()))
            self.assertEqual((code, details, n), (INVALID, f"vllm.grpc.engine.GenerateRequest: GenerateRequest.{name} comes twice, expected once", 0))
        self.assertEqual(self.cell.seen("reserve"), [])

    def test_fields_that_nobody_knows_are_refused(self):
        unknown, raw = b"\xc2\x3e\x01x", self.channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")    # field 1000: "x"
        for part in ("", "tokenized", "sampling_params", "kv_transfer_params"):
            request = self.request()
            (getattr(request, part) if part else request).MergeFromString(unknown)
            name = (getattr(request, part) if part else request).DESCRIPTOR.name
            code, details, n = self.error(raw(request.SerializeToString()))
            self.assertEqual((code, n), (INVALID, 0))
            self.assertIn(f"field 1000 of {name} is not known here", details)
        self.assertEqual(self.cell.seen("reserve"), [])

    def test_texts_with_bytes_that_are_none_are_refused(self):
        for data, words in ((self.request(request_id="abcd").SerializeToString().replace(b"abcd", b"ab\xffd"), "GenerateRequest.request_id is not UTF-8 at byte 2 of its 4"),
                            (self.request(request_id="ab\0d").SerializeToString(), "GenerateRequest.request_id has a NUL at byte 2 of its 4"),
                            (self.request(stop=["ab", "\n\0"]).SerializeToString(), "SamplingParams.stop has a NUL at byte 1 of its 2")):
            code, details, n = self.error(self.channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")(data))
            self.assertEqual((code, details, n), (INVALID, "vllm.grpc.engine.GenerateRequest: " + words, 0))
        self.cell.gate.clear()
        call = self.generate(request_id="a")
        with self.assertRaises(grpc.RpcError) as refused:
            self.stub.Abort(vllm.AbortRequest(request_ids=["a\0b"]), timeout=WAIT_S)
        self.assertEqual(refused.exception.code(), INVALID)
        self.cell.gate.set()
        parts(list(call))  # it is another one


class Pool(Served):
    CELL = dict(pages=8)

    def test_the_longest_prompt_is_told(self):
        info = self.stub.GetModelInfo(vllm.GetModelInfoRequest())
        most = info.max_req_input_len
        self.assertEqual((most, info.max_context_length), (8 * 64 - 1, 8 * 64))
        self.assertEqual(parts(list(self.generate(prompt=[500] * most, max_tokens=None)))[1].prompt_tokens, most)
        self.assertEqual(self.error(self.generate(prompt=[500] * (most + 1), max_tokens=None))[0], INVALID)

    def test_more_than_a_ranks_pages_is_refused_at_once(self):
        code, details, _ = self.error(self.generate(prompt=[5] * 10, max_tokens=8 * 64))
        self.assertEqual(code, INVALID)
        self.assertIn("KV pages", details)
        ids, complete = parts(list(self.generate(prompt=[500] * 10, max_tokens=None)))  # what fits
        self.assertEqual((len(ids), complete.finish_reason), (8 * 64 - 10, "length"))

    def test_requests_wait_for_pages(self):
        self.cell.gate.clear()
        calls = [self.generate(prompt=[500 + i] * 320, max_tokens=100) for i in range(4)]  # 6 of 8 pages each
        wait_for(lambda: len(self.cell.seen("reserve")) == 2, "two reservations")
        wait_for(lambda: self.stub.GetLoads(vllm.GetLoadsRequest()).loads[0].num_waiting_reqs == 2, "two in the queue")
        self.cell.gate.set()
        for i, call in enumerate(calls):
            self.assertEqual(parts(list(call))[0], expected([500 + i] * 320, 100))
        self.all_released()


class Aborts(Served):
    def aborts_of(self, n_ranks):
        wait_for(lambda: len({rank for rank, _ in self.cell.seen("abort")}) >= n_ranks, f"aborts on {n_ranks} ranks")
        self.all_released()

    def test_client_gone_before_the_first_token(self):
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        call.cancel()
        self.aborts_of(2)

    def test_client_gone_while_decoding(self):
        self.cell.split_after = 3
        call = self.generate()
        next(call)
        call.cancel()
        self.aborts_of(1)

    def test_deadline_of_the_client_counts(self):
        self.cell.gate.clear()
        call = self.stub.Generate(self.request(), timeout=8)  # time to be placed, on a busy machine
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        self.assertEqual(self.error(call)[0], grpc.StatusCode.DEADLINE_EXCEEDED)
        self.aborts_of(2)

    def test_abort_ends_a_request_by_itself(self):
        self.cell.split_after = 3
        call = self.generate(request_id="victim")
        next(call)
        self.stub.Abort(vllm.AbortRequest(request_ids=["unknown", "victim", "victim"]))
        code, details, _ = self.error(call)
        self.assertEqual((code, details), (grpc.StatusCode.CANCELLED, "aborted by the client"))
        self.aborts_of(1)
        self.stub.Abort(vllm.AbortRequest(request_ids=["victim"]))  # has ended: fine

    def test_what_no_request_needs_is_not_read(self):
        """To unpack it would hold up every stream: 80 MB of empty strings took 17 s and 3 GB."""
        for n, code, words in ((2_000_000, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger"),
                               (100_000, grpc.StatusCode.INVALID_ARGUMENT, "SamplingParams has too many parts"),
                               (50_000, grpc.StatusCode.INVALID_ARGUMENT, "stop has 50000 strings")):
            got, details, _ = self.error(self.generate(stop=[""] * n))
            self.assertEqual(got, code)
            self.assertIn(words, details)
        with self.assertRaises(grpc.RpcError) as e:
            self.stub.Abort(vllm.AbortRequest(request_ids=["x"] * 5000))
        self.assertEqual((e.exception.code(), e.exception.details()),
                         (grpc.StatusCode.INVALID_ARGUMENT, "5000 request_ids, at most 4096 are allowed"))
        self.assertEqual(list(self.generate())[-1].complete.output_ids, expected([5, 200, 300], 20))

    def test_a_failed_request_takes_no_other_with_it(self):
        def fail(rank, reserve, m):
            if m.prompt[1] == 13:
                rank.send(failed=control.Failed(request=m.request, epoch=m.epoch, code=13, message="checksum"))
            else:
                self.cell.generate(rank, reserve, m)
        self.cell.on_prefill = fail
        calls = {i: self.generate(prompt=[500, i]) for i in (12, 13, 14)}
        self.assertEqual(self.error(calls[13]), (grpc.StatusCode.INTERNAL, "checksum", 0))
        for i in (12, 14):
            self.assertEqual(parts(list(calls[i]))[0], expected([500, i], 20))
        self.all_released()

    def test_a_failure_without_words_names_rank_and_request(self):
        self.cell.on_prefill = lambda rank, reserve, m: rank.send(failed=control.Failed(request=m.request, epoch=m.epoch, code=13))
        code, details, n = self.error(self.generate(request_id="mute"))
        self.assertEqual((code, n), (grpc.StatusCode.INTERNAL, 0))
        self.assertRegex(details, r'^rank [01] failed request "mute" and did not say why: its log may, at req=\d+; the request can be sent again$')

    def test_refused_ticket_is_tried_again(self):
        self.cell.tickets_to_refuse = 3
        ids, _ = parts(list(self.generate()))
        self.assertEqual(ids, expected([5, 200, 300], 20))
        numbers = [m.request for _, m in self.cell.seen("reserve")]
        self.assertEqual((len(numbers), len(set(numbers))), (4, 4))  # each placement has its own number
        self.all_released()

    def test_words_of_another_epoch_are_dropped(self):
        def stale(rank, reserve, m):
            for epoch in (m.epoch - 1, m.epoch + 1):
                rank.send(tokens=control.Tokens(tokens=[control.Token(request=m.request, position=len(m.prompt), epoch=epoch,
                                                                      id=999)]))
                rank.send(failed=control.Failed(request=m.request, epoch=epoch, code=13, message="no"))
            self.cell.generate(rank, reserve, m)
        self.cell.on_prefill = stale
        self.assertEqual(parts(list(self.generate()))[0], expected([5, 200, 300], 20))

    def test_absurd_tokens_fail_their_request_only(self):
        bad = {1: dict(position=2), 2: dict(position=3 + 20), 3: dict(choice=1), 4: dict(id=VOCAB),
               5: dict(position=3 + 19), 6: dict(position=3 + 5)}  # the last one leaves some out

        def absurd(rank, reserve, m):
            if m.prompt[1] in bad:
                fields = dict(request=m.request, position=len(m.prompt), epoch=m.epoch, id=3)
                fields.update(bad[m.prompt[1]])
                rank.send(tokens=control.Tokens(tokens=[control.Token(**fields)]))
            else:
                self.cell.generate(rank, reserve, m)
        self.cell.on_prefill = absurd
        for i in bad:
            code, details, _ = self.error(self.generate(prompt=[500, i, 9]))
            self.assertEqual(code, grpc.StatusCode.INTERNAL, details)
        self.assertEqual(parts(list(self.generate(prompt=[500, 7, 9])))[0], expected([500, 7, 9], 20))

    def test_wake_request_wakes_the_whole_group_once(self):
        self.cell.ranks[0].send(wake_request=control.WakeRequest(wake=0))
        wait_for(lambda: len(self.cell.seen("wake")) == 2, "wakes")
        self.assertEqual(sorted((r, m.wake) for r, m in self.cell.seen("wake")), [(0, 1), (1, 1)])
        self.cell.ranks[1].send(wake_request=control.WakeRequest(wake=0))  # already answered
        self.cell.ranks[2].send(wake_request=control.WakeRequest(wake=0))
        wait_for(lambda: len(self.cell.seen("wake")) == 4, "wakes")
        time.sleep(0.1)
        self.assertEqual(sorted((r, m.wake) for r, m in self.cell.seen("wake")), [(0, 1), (1, 1), (2, 1), (3, 1)])
        list(self.generate())
        wait_for(lambda: len(self.cell.seen("wake")) == 8, "wakes")
        for rank in range(4):  # placement: wake before work, on every rank of the group
            kinds = [k for k, _ in self.cell.ranks[rank].seen]
            self.assertEqual([m.wake for k, m in self.cell.ranks[rank].seen if k == "wake"], [1, 2])
            for work in ("reserve", "prefill"):
                if work in kinds:
                    self.assertGreater(kinds.index(work), len(kinds) - 1 - kinds[::-1].index("wake"))

    def test_wake_numbers_go_beyond_32_bits(self):
        self.cell.ranks[0].send(wake_request=control.WakeRequest(wake=(1 << 32) - 1))
        wait_for(lambda: len(self.cell.seen("wake")) == 2, "wakes")
        self.assertEqual([m.wake for _, m in self.cell.seen("wake")], [1 << 32] * 2)


class Both(Served):
    CELL = dict(both=2)

    def test_ranks_with_both_roles(self):
        for i in range(6):
            self.assertEqual(parts(list(self.generate(prompt=[500, i])))[0], expected([500, i], 20))
        for rank in self.cell.ranks:
            for kind, m in rank.seen:
                if kind == "reserve":
                    self.assertEqual(m.prefill_rank, rank.rank)
                if kind == "prefill":
                    self.assertEqual(m.decode_rank, rank.rank)
        self.all_released()

    def test_client_gone(self):
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        call.cancel()
        wait_for(lambda: len(self.cell.seen("abort")) == 1, "one abort")
        self.all_released()


class Facts(Served):
    def test_health(self):
        self.assertTrue(self.stub.HealthCheck(vllm.HealthCheckRequest()).healthy)
        stub = health_grpc.HealthStub(self.channel)
        for service in ("", "vllm.grpc.engine.VllmEngine"):
            self.assertEqual(stub.Check(health.HealthCheckRequest(service=service)).status,
                             health.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as e:
            stub.Check(health.HealthCheckRequest(service="other"))
        self.assertEqual(e.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_path_for_clients(self):
        for arg, path in (("/elsewhere/demo", "/elsewhere/demo"), ("none", "")):
            c = Coordinator("--public-model-path", arg)
            self.addCleanup(c.close)
            cell = Cell(c.line("control"), prefill=1, decode=1).attach().ready()
            self.addCleanup(cell.close)
            with grpc.insecure_channel(c.line("ready")) as channel:
                info = vllm_grpc.VllmEngineStub(channel).GetModelInfo(vllm.GetModelInfoRequest())
            self.assertEqual((info.model_path, info.tokenizer_path, info.served_model_name), (path, path, "demo"))

    def test_model_info(self):
        info = self.stub.GetModelInfo(vllm.GetModelInfoRequest())
        self.assertTrue(info.is_generation)
        self.assertEqual((info.served_model_name, info.max_context_length, info.vocab_size, info.model_type,
                          list(info.architectures), list(info.eos_token_ids)),
                         ("demo", CONTEXT, VOCAB, "deepseek_v3", ["DeepseekV3ForCausalLM"], [EOS]))
        self.assertTrue(info.tokenizer_path.endswith("/models/demo"))
        self.assertEqual(json.loads(info.default_sampling_params_json), {"temperature": 0.6, "top_p": 0.95})

    def test_server_info_and_loads(self):
        self.cell.split_after = 3
        call = self.generate()
        next(call)
        info = self.stub.GetServerInfo(vllm.GetServerInfoRequest())
        self.assertEqual((info.active_requests, info.is_paused, info.kv_connector), (1, False, ""))
        self.assertLess(abs(info.last_receive_timestamp - time.time()), 60)
        self.assertGreater(info.uptime_seconds, 0)
        loads = self.stub.GetLoads(vllm.GetLoadsRequest(include=["core", "disagg", "queues", "memory"]))
        self.assertEqual((len(loads.loads), loads.dp_rank_count), (1, 1))
        load = loads.loads[0]
        self.assertEqual((load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs), (1, 0, 1))
        self.assertEqual((load.num_used_tokens, load.max_total_num_tokens), (64, 2 * 64 * 64))
        with self.assertRaises(grpc.RpcError) as e:
            self.stub.GetLoads(vllm.GetLoadsRequest(dp_rank=1))
        self.assertEqual(e.exception.code(), INVALID)
        self.cell.more_gate.set()
        parts(list(call))
        self.all_released()

    def test_other_methods_are_unimplemented_at_once(self):
        paths = ["/vllm.grpc.engine.VllmEngine/Embed", "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents",
                 "/sglang.grpc.scheduler.SglangScheduler/HealthCheck",
                 "/trtllm.TrtllmService/HealthCheck", "/mlx.grpc.engine.MlxEngine/HealthCheck", "/no.such/Thing",
                 "/grpc.health.v1.Health/List", "/grpc.reflection.v1.ServerReflection/Other"]
        for path in paths * 5:
            for call in (self.channel.unary_unary, self.channel.unary_stream):
                with self.assertRaises(grpc.RpcError) as e:
                    reply = call(path)(b"", timeout=WAIT_S)
                    list(reply)
                self.assertEqual(e.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_pings_of_an_idle_gateway_are_welcome(self):
        channel = grpc.insecure_channel(self.address, options=[
            ("grpc.keepalive_time_ms", 100), ("grpc.keepalive_timeout_ms", 60000), ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0), ("grpc.http2.min_sent_ping_interval_without_data_ms", 100)])
        self.cell.gate.clear()
        call = vllm_grpc.VllmEngineStub(channel).Generate(self.request(), timeout=WAIT_S)
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        time.sleep(1.5)
        self.cell.gate.set()
        parts(list(call))
        channel.close()


class Tokenizer(Served):
    """A model of links, as the hub's cache has them, whose tokenizer a gateway elsewhere asks for."""
    PIECE = 64 << 10

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = os.path.join(folder.name, "model")
        demo = os.path.join(SOURCE, "models", "demo")
        os.mkdir(self.model)
        for name in os.listdir(demo):
            os.symlink(os.path.join(demo, name), os.path.join(self.model, name))
        self.ARGS = ("--model", self.model)

    def put(self, name, content):
        with open(os.path.join(self.model, name), "wb") as f:
            f.write(content)

    def fetch(self, stub=None):
        """The archive, whose pieces are whole and whose checksum stands in the last one alone."""
        chunks = list((stub or self.stub).GetTokenizer(vllm.GetTokenizerRequest(), timeout=WAIT_S))
        data = b"".join(c.data for c in chunks)
        self.assertEqual([c.sha256 for c in chunks], [""] * (len(chunks) - 1) + [hashlib.sha256(data).hexdigest()])
        self.assertEqual([len(c.data) for c in chunks], [self.PIECE] * (len(data) // self.PIECE) + [len(data) % self.PIECE])
        return data

    def files(self, data):
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            self.assertIsNone(z.testzip())
            self.assertEqual({(i.compress_type, i.date_time) for i in z.infolist()}, {(zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0))})
            return {name: z.read(name) for name in z.namelist()}

    def refused(self):
        self.assertEqual(self.error(self.stub.GetTokenizer(vllm.GetTokenizerRequest(), timeout=WAIT_S)),
                         (grpc.StatusCode.FAILED_PRECONDITION, "no tokenizer: see the server's log", 0))
        list(self.generate())

    def test_a_gateway_gets_the_files_as_they_were_at_the_start(self):
        want = {"special_tokens_map.json": random.Random(1).randbytes(5 * self.PIECE), "chat_template.jinja": b"{{ messages }}", "chat_template.json": b""}
        for name, content in want.items():
            self.put(name, content)
        for name in ("tekken.json", "tiktoken.model", "secret.json", "weights.model"):
            self.put(name, b"of no concern")
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
            with open(os.path.join(self.model, name), "rb") as f:
                want[name] = f.read()
        elsewhere = shutil.copytree(self.model, self.model + "-copy")   # no links, other times
        for name in os.listdir(elsewhere):
            os.utime(os.path.join(elsewhere, name), (1e9, 1e9))
        super().setUp()
        data = self.fetch()
        self.assertEqual(self.files(data), want)
        self.put("special_tokens_map.json", b"changed")
        os.remove(os.path.join(self.model, "tokenizer.json"))
        self.assertEqual(self.fetch(), data)
        other = Coordinator("--model", elsewhere)
        self.addCleanup(other.close)
        cell = Cell(other.line("control")).attach().ready()
        self.addCleanup(cell.close)
        with grpc.insecure_channel(other.line("ready")) as channel:
            self.assertEqual(self.fetch(vllm_grpc.VllmEngineStub(channel)), data)

    def test_clients_that_leave_or_wait_are_nobody_elses_trouble(self):
        self.put("special_tokens_map.json", bytes(100 * self.PIECE))
        super().setUp()
        calls = [self.stub.GetTokenizer(vllm.GetTokenizerRequest(), timeout=WAIT_S) for _ in range(20)]
        for call in calls:
            self.assertEqual(len(next(call).data), self.PIECE)
        for call in calls[:10]:
            call.cancel()
        self.fetch()
        list(self.generate())
        self.assertEqual(sum(len(c.data) for c in calls[10]), len(self.fetch()) - self.PIECE)

    def begin_many(self, stub):
        """Calls of which nobody reads more than a piece, until one is refused."""
        begun = []
        while len(begun) < 1000:
            call = stub.GetTokenizer(vllm.GetTokenizerRequest(), timeout=10 * WAIT_S)
            try:
                next(call)
            except grpc.RpcError as e:
                self.assertEqual((e.code(), e.details()), (grpc.StatusCode.RESOURCE_EXHAUSTED, "the tokenizer has been asked for too often: try again later"))
                return begun
            begun.append(call)
        raise AssertionError("none of 1000 calls was refused")

    def test_bytes_are_given_to_so_many_at_once_and_come_back(self):
        self.put("special_tokens_map.json", bytes(8 << 20))
        super().setUp()
        size = len(self.fetch())
        with grpc.insecure_channel(self.address, options=[("grpc.http2.bdp_probe", 0)]) as channel:
            stub = vllm_grpc.VllmEngineStub(channel)
            begun = self.begin_many(stub)
            self.assertGreaterEqual(len(begun), (2048 << 20) // size - 1)    # more on a slow machine, where bytes come back meanwhile
            list(self.generate())
            for call in begun:
                call.cancel()
            again = []
            wait_for(lambda: again.extend(self.begin_many(stub)) or len(again) > len(begun) / 2, "bytes that were not sent", 10)    # by time alone not even a fifth

    def test_the_only_tokenizer_is_in_it_also_where_it_is_not_understood_here(self):
        os.remove(os.path.join(self.model, "tokenizer.json"))
        self.put("tiktoken.model", b"of another kind")
        super().setUp()
        self.assertEqual(self.files(self.fetch())["tiktoken.model"], b"of another kind")
        self.assertIn("no stop strings and no structured output", self.coordinator.text())

    def test_a_model_without_one_has_none(self):
        os.remove(os.path.join(self.model, "tokenizer.json"))
        super().setUp()
        self.refused()

    def test_what_is_no_file_is_not_waited_for(self):
        os.mkfifo(os.path.join(self.model, "chat_template.jinja"))
        super().setUp()
        self.refused()
        self.assertIn("chat_template.jinja: expected a regular file, found a pipe", self.coordinator.text())

    def test_files_that_no_gateway_takes_are_not_held(self):
        with open(os.path.join(self.model, "special_tokens_map.json"), "wb") as f:
            f.truncate(199 << 20)
        super().setUp()
        self.refused()
        self.assertIn("special_tokens_map.json: expected at most 208666624 bytes in all files of the tokenizer, found more", self.coordinator.text())


if __name__ == "__main__":
    main()
