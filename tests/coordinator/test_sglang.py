"""The second public protocol, --sglang: it says what the first one says, in its own messages."""
import json
import os
import random

from harness import CONTEXT, EOS, SOURCE, VOCAB, WAIT_S, Served, control, expected, grpc, health, health_grpc, logprob, main, sglang, sglang_grpc, vllm, wait_for

INVALID = grpc.StatusCode.INVALID_ARGUMENT
SERVICE = "sglang.grpc.scheduler.SglangScheduler"
PROMPT = (5, 200, 300)


class Spoken(Served):
    ARGS = ("--sglang",)

    def setUp(self):
        super().setUp()
        self.other = sglang_grpc.SglangSchedulerStub(self.channel)

    def asked(self, prompt=PROMPT, request_id=None, sampling=None, **fields):
        self.ids += 1
        fields.setdefault("stream", True)
        return sglang.GenerateRequest(request_id=request_id or f"s{self.ids}", tokenized=sglang.TokenizedInput(input_ids=list(prompt)),
                                      sampling_params=sglang.SamplingParams(**{"max_new_tokens": 20, **(sampling or {})}), **fields)

    def ask(self, request=None, **kw):
        return self.other.Generate(request or self.asked(**kw), timeout=WAIT_S)

    def answer(self, **kw):
        """(chunks, completes by index, as they come without chunks); each message names the request, and chunks count all tokens of their
        choice so far."""
        request = self.asked(**kw)
        messages = list(self.ask(request))
        self.assertEqual({m.request_id for m in messages}, {request.request_id})
        chunks = [m.chunk for m in messages if m.HasField("chunk")]
        completes = [m.complete for m in messages if m.HasField("complete")]
        if chunks:
            completes.sort(key=lambda c: c.index)
        n = {}
        for c in chunks:
            n[c.index] = n.get(c.index, 0) + len(c.token_ids)
            self.assertEqual((c.completion_tokens, c.prompt_tokens), (n[c.index], len(request.tokenized.input_ids)))
        self.assertEqual([c.index for c in completes], list(range(max(1, request.sampling_params.n))))
        return chunks, completes


class Generate(Spoken):
    def test_plain_and_streamed(self):
        want = sglang.GenerateComplete(output_ids=expected(PROMPT, 20), finish_reason="stop", prompt_tokens=3, completion_tokens=6, index=0)
        self.assertEqual(self.answer(stream=False), ([], [want]))
        chunks, completes = self.answer()
        self.assertEqual(([i for c in chunks for i in c.token_ids], completes), (expected(PROMPT, 20), [want]))
        self.assertEqual(want.output_ids[-1], EOS)
        self.all_released()

    def test_what_is_left_out_means_off(self):
        self.answer(sampling=dict(top_k=-1))
        bare = sglang.GenerateRequest(request_id="bare", tokenized=sglang.TokenizedInput(input_ids=[500, 4]))
        self.assertEqual(list(list(self.ask(bare))[0].complete.output_ids), expected([500, 4], CONTEXT - 2))    # greedy, up to the context
        for _, m in self.cell.seen("reserve"):
            s = m.sampling
            self.assertEqual((s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty, s.logprobs, s.prompt_logprobs), (0, 0, 0, 0, 0, False, 0))

    def test_sampling_travels_to_the_ranks(self):
        self.answer(sampling=dict(temperature=0.75, top_p=0.5, top_k=7, min_p=0.25, frequency_penalty=1, presence_penalty=-1, repetition_penalty=1.5,
                                  max_new_tokens=9, min_new_tokens=4, ignore_eos=True, stop_token_ids=[7, 8], logit_bias={"5": -1.5, "999": 2}))
        s = self.cell.seen("reserve")[0][1].sampling
        self.assertEqual((s.temperature, s.top_p, s.top_k, s.min_p, s.frequency_penalty, s.presence_penalty, s.repetition_penalty),
                         (0.75, 0.5, 7, 0.25, 1, -1, 1.5))
        self.assertEqual((s.max_tokens, s.min_tokens, s.ignore_eos, list(s.stop_token_ids)), (9, 4, True, [7, 8]))
        self.assertEqual(dict(zip(s.bias_ids, s.biases)), {5: -1.5, 999: 2})
        self.answer()
        self.assertNotEqual(*[m.sampling.seed for _, m in self.cell.seen("reserve")])    # each draws its own

    def test_ends_are_named(self):
        stop = expected(PROMPT, 20)[2]
        _, [done] = self.answer(sampling=dict(stop_token_ids=[stop]))
        self.assertEqual((done.finish_reason, done.matched_token_id, done.completion_tokens), ("stop", stop, 3))
        _, [done] = self.answer(sampling=dict(max_new_tokens=4))
        self.assertEqual((done.finish_reason, done.WhichOneof("matched_stop")), ("length", None))

    def test_a_stop_string_is_named(self):
        ids = expected(PROMPT, 5)
        with open(os.path.join(SOURCE, "models", "demo", "tokenizer.json"), encoding="utf-8") as f:
            text = next(t for t, i in json.load(f)["model"]["vocab"].items() if i == ids[3]).replace("Ġ", " ")
        _, [done] = self.answer(sampling=dict(stop=["never", text]))
        self.assertEqual((done.finish_reason, done.matched_stop_str, list(done.output_ids)), ("stop", text, ids[:4]))

    def test_choices_come_with_their_index(self):
        def all_choices(rank, reserve, m):
            for k in (1, 0):
                tokens = self.cell.tokens(reserve, m.prompt)
                for t in tokens:
                    t.choice = k
                rank.send(tokens=control.Tokens(tokens=tokens))
            rank.send(released=control.Released(request=m.request, epoch=m.epoch))
        self.cell.on_prefill = all_choices
        for stream in (False, True):
            chunks, completes = self.answer(stream=stream, sampling=dict(n=2))
            self.assertEqual([list(c.output_ids) for c in completes], [expected(PROMPT, 20)] * 2)
            for k in (0, 1) if stream else ():
                self.assertEqual([i for c in chunks if c.index == k for i in c.token_ids], expected(PROMPT, 20))

    def test_logprobs_of_the_answer(self):
        for stream in (False, True):
            chunks, completes = self.answer(stream=stream, return_logprob=True, logprob_start_len=-1, top_logprobs_num=2)
            carriers = chunks if stream else completes
            self.assertEqual([i for c in carriers for i in c.output_logprobs.token_ids], expected(PROMPT, 20))
            self.assertEqual([v for c in carriers for v in c.output_logprobs.token_logprobs], [logprob(i) for i in range(6)])
            self.assertFalse(any(c.HasField("input_logprobs") for c in chunks + completes))
        chunks, [done] = self.answer(top_logprobs_num=99)    # of no effect without return_logprob
        self.assertFalse(any(c.HasField("output_logprobs") for c in [*chunks, done]))
        self.assertEqual([m.sampling.top_logprobs for _, m in self.cell.seen("reserve")], [2, 2, 0])

    def test_logprobs_of_the_prompt_from_a_token_on(self):
        def with_prompt(rank, reserve, m):
            n = len(m.prompt) - 1
            rank.send(prompt_logprobs=control.PromptLogprobs(request=m.request, epoch=m.epoch, position=1, logprobs=[-1.5 - i for i in range(n)],
                                                             top_ids=range(n), top_logprobs=[-0.5 - i for i in range(n)]))
            tokens, decode = self.cell.tokens(reserve, m.prompt), self.cell.ranks[m.decode_rank]
            for sender, some in ((rank, tokens[:1]), (decode, tokens[1:])):    # the decode rank repeats no first token then
                sender.send(tokens=control.Tokens(tokens=some))
                sender.send(released=control.Released(request=m.request, epoch=m.epoch))
        self.cell.on_prefill = with_prompt
        prompt = [500, 21, 22, 23]
        for start in range(4):
            for stream in (False, True):
                chunks, completes = self.answer(prompt=prompt, stream=stream, return_logprob=True, logprob_start_len=start, top_logprobs_num=1)
                [got] = [c.input_logprobs for c in chunks + completes if c.HasField("input_logprobs")]
                self.assertEqual(list(got.token_ids), prompt[start:])
                self.assertEqual([v.value if v.HasField("value") else None for v in got.token_logprobs], [None] + [-1.5 - i for i in range(start, 3)])
                self.assertEqual([(list(t.token_ids), list(t.values)) for t in got.top_logprobs], [([], [])] + [([i], [-0.5 - i]) for i in range(start, 3)])
        code, details, _ = self.error(self.ask(prompt=prompt, return_logprob=True, logprob_start_len=4))
        self.assertEqual((code, details), (INVALID, "logprob_start_len is 4, but the prompt has 4 tokens"))


class Refusals(Spoken):
    def refused(self, words, **kw):
        code, details, n = self.error(self.ask(**kw))
        self.assertEqual((code, n), (INVALID, 0), details)
        self.assertIn(words, details)

    def test_unsupported_fields_are_refused_by_name(self):
        for name, value in dict(regex="(a", json_schema="{", ebnf_grammar="a", structural_tag="a", custom_params=sglang.Undecoded(), stream_interval=0).items():
            with self.subTest(name):
                self.refused(name, sampling={name: value})
        for name, value in dict(mm_inputs=sglang.Undecoded(), input_embeds=[0.5], token_ids_logprob=[3], return_hidden_states=True, custom_logit_processor="x",
                                disaggregated_params=sglang.DisaggregatedParams(bootstrap_host="h"), lora_id="l", data_parallel_rank=1).items():
            with self.subTest(name):
                self.refused(name, **{name: value})
        for one in (dict(bootstrap_port=1), dict(bootstrap_room=1)):
            self.refused("disaggregated_params", disaggregated_params=sglang.DisaggregatedParams(**one))
        self.assertEqual(self.cell.seen("reserve"), [])

    def test_limits_are_told_in_its_own_words(self):
        for words, kw in (("max_new_tokens is 0", dict(sampling=dict(max_new_tokens=0))),
                          (f"max_new_tokens {CONTEXT}", dict(sampling=dict(max_new_tokens=CONTEXT))),
                          ("min_new_tokens is 9, more than max_new_tokens, which is 4", dict(sampling=dict(max_new_tokens=4, min_new_tokens=9))),
                          ("top_logprobs_num is 21", dict(return_logprob=True, top_logprobs_num=21, logprob_start_len=-1)),
                          ("top_logprobs_num is -1", dict(return_logprob=True, top_logprobs_num=-1)),
                          ("top_k is -2", dict(sampling=dict(top_k=-2))), ("n is 65", dict(sampling=dict(n=65))),
                          ('logit_bias names "five", which is no token id', dict(sampling=dict(logit_bias={"five": 1}))),
                          ('logit_bias names "5x"', dict(sampling=dict(logit_bias={"5x": 1}))), ('logit_bias names ""', dict(sampling=dict(logit_bias={"": 1}))),
                          (f"logit_bias names token {VOCAB}", dict(sampling=dict(logit_bias={str(VOCAB): 1}))),
                          ("logit_bias names token 5 twice", dict(sampling=dict(logit_bias={"5": 1, "05": 1}))),
                          ('which is no token id', dict(sampling=dict(logit_bias={"9" * 30: 1}))), ("the prompt is empty", dict(prompt=[]))):
            with self.subTest(words):
                self.refused(words, **kw)
        self.refused("no input", request=sglang.GenerateRequest(request_id="t"))
        self.refused("request_id is empty", request=sglang.GenerateRequest(tokenized=sglang.TokenizedInput(input_ids=[3])))

    def test_what_changes_nothing_is_accepted(self):
        request = self.asked(log_metrics=True, data_parallel_rank=-1, require_reasoning=True, timestamp=sglang.Undecoded(), stream=False,
                             disaggregated_params=sglang.DisaggregatedParams(),
                             sampling=dict(stream_interval=5, no_stop_trim=True, skip_special_tokens=True, spaces_between_special_tokens=True, n=1))
        self.assertEqual(list(list(self.ask(request))[0].complete.output_ids), expected(PROMPT, 20))

    def test_fields_that_nobody_knows_are_refused(self):
        unknown, raw = b"\xc2\x3e\x01x", self.channel.unary_stream(f"/{SERVICE}/Generate")    # field 1000: "x"
        for part in ("", "tokenized", "sampling_params", "disaggregated_params"):
            request = self.asked()
            (getattr(request, part) if part else request).MergeFromString(unknown)
            code, details, n = self.error(raw(request.SerializeToString()))
            self.assertEqual((code, n), (INVALID, 0))
            self.assertIn("field 1000 of", details)

    def test_malformed_requests_harm_nobody(self):
        rng = random.Random(9)
        raw = self.channel.unary_stream(f"/{SERVICE}/Generate")
        good, codes = self.asked(request_id="to-be-damaged", sampling=dict(max_new_tokens=3)).SerializeToString(), {}
        for i in range(500):
            data = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                list(raw(bytes(data[:rng.randrange(1, len(data) + 1)]), timeout=WAIT_S))
                code = grpc.StatusCode.OK
            except grpc.RpcError as e:
                code = e.code()
            codes[code] = codes.get(code, 0) + 1
        self.assertEqual(set(codes) - {INVALID, grpc.StatusCode.OK}, set())
        self.assertGreater(codes[INVALID], 200)
        self.answer()
        self.all_released()


class Beside(Spoken):
    def test_names_are_one_space(self):
        """A request has one name, whichever protocol it came by and is aborted by."""
        self.cell.gate.clear()
        first = self.ask(request_id="same")
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        self.assertEqual(self.error(self.generate(request_id="same"))[0], grpc.StatusCode.ALREADY_EXISTS)
        self.assertTrue(self.other.Abort(sglang.AbortRequest(request_id="same", reason="enough")).success)
        self.assertEqual(self.error(first)[:2], (grpc.StatusCode.CANCELLED, "aborted by the client"))
        again = self.other.Abort(sglang.AbortRequest(request_id="same"))
        self.assertEqual((again.success, again.message), (False, "no such request is live"))
        second = self.ask(request_id="same")
        wait_for(lambda: len(self.cell.seen("prefill")) == 2, "the prefill")
        self.stub.Abort(vllm.AbortRequest(request_ids=["same"]))
        self.assertEqual(self.error(second)[0], grpc.StatusCode.CANCELLED)
        second = self.generate(request_id="same")
        wait_for(lambda: len(self.cell.seen("prefill")) == 3, "the prefill")
        self.assertTrue(self.other.Abort(sglang.AbortRequest(request_id="same")).success)
        self.assertEqual(self.error(second)[0], grpc.StatusCode.CANCELLED)
        self.all_released()

    def test_client_gone(self):
        self.cell.split_after = 3
        call = self.ask()
        next(call)
        call.cancel()
        wait_for(lambda: self.cell.seen("abort"), "the abort")
        self.all_released()

    def test_facts_are_those_of_the_other(self):
        self.assertTrue(self.other.HealthCheck(sglang.HealthCheckRequest()).healthy)
        check = health_grpc.HealthStub(self.channel).Check
        self.assertEqual(check(health.HealthCheckRequest(service=SERVICE)).status, health.HealthCheckResponse.SERVING)
        ours, theirs = self.other.GetModelInfo(sglang.GetModelInfoRequest()), self.stub.GetModelInfo(vllm.GetModelInfoRequest())
        for name in ("model_path", "tokenizer_path", "is_generation", "served_model_name", "max_context_length", "vocab_size", "model_type", "eos_token_ids",
                     "bos_token_id", "max_req_input_len", "architectures", "default_sampling_params_json"):
            self.assertEqual(getattr(ours, name), getattr(theirs, name), name)
            self.assertTrue(getattr(ours, name) or name == "bos_token_id", name)
        self.assertEqual([m.SerializeToString() for m in self.other.GetTokenizer(sglang.GetTokenizerRequest())],
                         [m.SerializeToString() for m in self.stub.GetTokenizer(vllm.GetTokenizerRequest())])
        self.cell.split_after = 3
        call = self.ask()
        next(call)
        info = self.other.GetServerInfo(sglang.GetServerInfoRequest())
        self.assertEqual((info.active_requests, info.server_type, info.max_total_num_tokens), (1, "baton", 2 * 64 * 64))
        loads = self.other.GetLoads(sglang.GetLoadsRequest(include=["core"]))
        self.assertEqual((loads.dp_rank_count, loads.loads[0].num_running_reqs, loads.loads[0].num_used_tokens), (1, 1, 64))
        self.cell.more_gate.set()
        list(call)

    def test_what_is_not_served_is_unimplemented(self):
        for method in ("Embed", "SubscribeKvEvents", "FlushCache", "StartProfile", "LoadLoRAAdapter"):
            with self.assertRaises(grpc.RpcError) as e:
                self.channel.unary_unary(f"/{SERVICE}/{method}")(b"", timeout=WAIT_S)
            self.assertEqual(e.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


class Draining(Spoken):
    ARGS = ("--sglang", "--drain-s", "60")

    def test_a_gateway_that_registers_is_sent_away(self):
        self.cell.gate.clear()
        call = self.ask()
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        self.coordinator.process.terminate()
        wait_for(lambda: self.error_of(self.other.HealthCheck, sglang.HealthCheckRequest()) == grpc.StatusCode.UNAVAILABLE, "the drain")
        self.assertEqual(self.error(self.ask())[0], grpc.StatusCode.UNAVAILABLE)
        self.cell.gate.set()
        self.assertEqual(list(list(call)[-1].complete.output_ids), expected(PROMPT, 20))
        self.assertEqual(self.coordinator.wait(WAIT_S), 0, self.coordinator.text())

    def error_of(self, method, request):
        try:
            method(request, timeout=WAIT_S)
        except grpc.RpcError as e:
            return e.code()
        return None


if __name__ == "__main__":
    main()
