"""Sampling fields, stop strings and choices, against scripted ranks."""
import json
import os
import threading
import time

import grpc

from harness import SOURCE, VOCAB, WAIT_S, Served, control, main, vllm, vllm_grpc, wait_for

INVALID = grpc.StatusCode.INVALID_ARGUMENT

with open(os.path.join(SOURCE, "models", "demo", "tokenizer.json"), encoding="utf-8") as f:
    TOKENIZER = json.load(f)
IDS, BOS = TOKENIZER["model"]["vocab"], 0


def ids_of(text):
    """One token for each character; "^" is the one that begins a text."""
    return [BOS if c == "^" else IDS[{" ": "Ġ", "\n": "Ċ"}.get(c, c)] for c in text]


class Sampling(Served):
    def script(self, texts, top=0, until=None, finish=control.LENGTH):
        """The ranks answer choice k with the characters of texts[k]; before token `until` they wait for self.go."""
        self.go = threading.Event()
        self.seen = []

        def token(m, choice, i):
            ids = ids_of(texts[choice])
            return control.Token(request=m.request, choice=choice, position=len(m.prompt) + i, epoch=m.epoch, id=ids[i], logprob=-i,
                                 finish=finish if i + 1 == len(ids) else control.GOES_ON,
                                 top_ids=range(100, 100 + top), top_logprobs=[-k / 4 for k in range(top)],
                                 cached_tokens=2 if i == 0 else 0)

        def run(rank, reserve, m):
            choices = list(m.choices) or [0]
            self.seen += [(k, m.decode_rank) for k in choices]
            for i in range(max(len(texts[k]) for k in choices)):
                if i == until:
                    self.go.wait(WAIT_S)
                if m.request in self.cell.aborted:
                    return
                now = [token(m, k, i) for k in choices
                       if i < len(texts[k]) and (m.request, k) not in self.cell.dropped]
                for r in {rank.rank, m.decode_rank} if i == 0 and top == 0 else [rank.rank if i == 0 else m.decode_rank]:
                    if now:
                        self.cell.ranks[r].send(tokens=control.Tokens(tokens=now))
            for r in {rank.rank, m.decode_rank}:
                self.cell.ranks[r].send(released=control.Released(request=m.request, epoch=m.epoch))

        self.cell.on_prefill = run

    def choices(self, messages):
        """[(ids of the chunks, complete)] by index; no chunk comes behind its choice's complete, and without chunks they come in order."""
        completes, chunked = [], False
        for m in messages:
            if m.HasField("complete"):
                completes.append(m.complete)
            else:
                chunked = True
                self.assertNotIn(m.chunk.index, [c.index for c in completes])
        if chunked:
            completes.sort(key=lambda c: c.index)
        self.assertEqual([c.index for c in completes], list(range(len(completes))))
        ids = [[i for m in messages if m.HasField("chunk") and m.chunk.index == k for i in m.chunk.token_ids]
               for k in range(len(completes))]
        return list(zip(ids, completes))

    def refused(self, words, **kw):
        code, details, n = self.error(self.generate(**kw))
        self.assertEqual((code, n), (INVALID, 0), details)
        self.assertIn(words, details)

    def test_ranges_are_refused_by_name(self):
        nan = float("nan")
        for name, values in dict(top_p=(-0.1, 1.5, nan), min_p=(-0.1, 1.5, nan), frequency_penalty=(-2.5, 2.5, nan),
                                 presence_penalty=(-2.5, 2.5, nan), repetition_penalty=(-1.0, 1e9, nan),
                                 logit_bias=({VOCAB: 1.0}, {-1: 1.0}, {3: nan}), logprobs=(21, -1), min_tokens=(21,),
                                 n=(65,), stop=([""], ["x"] * 65, ["x" * 1025])).items():
            for value in values:
                with self.subTest(f"{name} {value}"):
                    self.refused(name, **{name: value})
        self.assertEqual(self.cell.seen("reserve"), [])

    def test_fields_travel_to_the_ranks(self):
        self.script(["ab"])
        want = dict(top_p=0.5, top_k=7, min_p=0.25, frequency_penalty=-1.5, presence_penalty=1.25, repetition_penalty=1.5,
                    min_tokens=2)
        list(self.generate(prompt=[5, 6, 7], logprobs=3, logit_bias={9: -2.5}, **want))
        for kind in ("reserve", "prefill"):
            _, m = self.cell.seen(kind)[0]
            self.assertEqual({k: getattr(m.sampling, k) for k in want}, want)
            self.assertEqual((m.sampling.logprobs, m.sampling.top_logprobs), (True, 3))
            self.assertEqual((list(m.sampling.bias_ids), list(m.sampling.biases)), ([9], [-2.5]))
        self.assertEqual(list(self.cell.seen("reserve")[0][1].prompt_tokens), [5, 6, 7])  # for the repetition penalty
        list(self.generate(prompt=[5, 6, 7], frequency_penalty=1.0))
        self.assertEqual(list(self.cell.seen("reserve")[1][1].prompt_tokens), [])

    def test_alternatives_of_each_token(self):
        self.script(["abc"], top=5)
        for stream in (False, True):
            messages = list(self.generate(stream=stream, logprobs=5))
            lps = [m.chunk.output_logprobs for m in messages[:-1]] if stream else [messages[0].complete.output_logprobs]
            self.assertEqual([i for p in lps for i in p.token_ids], ids_of("abc"))
            tops = [(list(t.token_ids), list(t.values)) for p in lps for t in p.top_logprobs]
            self.assertEqual(tops, [(list(range(100, 105)), [0, -0.25, -0.5, -0.75, -1.0])] * 3)

    def test_stop_string_ends_with_the_token_that_completes_it(self):
        self.script(["one STOP two"], until=9)  # nothing behind the match is needed
        for stream in (False, True):
            for include in (False, True):
                (ids, done), = self.choices(list(self.generate(stream=stream, stop=["no", "STOP"],
                                                               include_stop_str_in_output=include)))
                self.assertEqual(list(done.output_ids), ids_of("one STOP"))
                self.assertEqual(ids, ids_of("one STOP") if stream else [])
                self.assertEqual((done.finish_reason, done.matched_stop_str, done.completion_tokens), ("stop", "STOP", 8))
        wait_for(lambda: len(self.cell.aborted) == 4, "aborts on the ranks")
        self.go.set()
        self.all_released()

    def test_what_may_begin_a_stop_string_is_held_back(self):
        self.script(["ab STO c"], until=6)
        stream = self.generate(stop=["STOP"])
        got = []
        while len(got) < 3:
            got += next(stream).chunk.token_ids
        self.assertEqual(got, ids_of("ab "))
        rest = []
        threading.Thread(target=lambda: rest.extend(stream), daemon=True).start()
        time.sleep(0.3)
        self.assertEqual(rest, [])  # S, T and O have come, but may still become the stop string
        self.go.set()
        wait_for(lambda: rest and rest[-1].HasField("complete"), "the end")
        self.assertEqual([i for m in rest if m.HasField("chunk") for i in m.chunk.token_ids], ids_of("STO c"))
        self.assertEqual(rest[-1].complete.finish_reason, "length")

    def test_what_is_held_back_comes_with_the_end(self):
        self.script(["ab STO"])
        (ids, done), = self.choices(list(self.generate(stop=["STOP"])))
        self.assertEqual((ids, list(done.output_ids), done.finish_reason), (ids_of("ab STO"), ids_of("ab STO"), "length"))

    def test_stop_string_waits_for_min_tokens(self):
        self.script(["xxaxx"])
        (_, done), = self.choices(list(self.generate(stop=["x"], min_tokens=2)))
        self.assertEqual(list(done.output_ids), ids_of("xxax"))
        (_, done), = self.choices(list(self.generate(stop=["x"])))
        self.assertEqual(list(done.output_ids), ids_of("x"))

    def test_special_tokens_are_part_of_a_stop_string_where_they_are_shown(self):
        self.script(["a^b"])
        self.assertIn((BOS, True), [(t["id"], t["special"] and "begin" in t["content"]) for t in TOKENIZER["added_tokens"]])
        for skip, want in ((True, "a^b"), (False, "a^")):
            (_, done), = self.choices(list(self.generate(stop=["begin"], skip_special_tokens=skip)))
            self.assertEqual(list(done.output_ids), ids_of(want))

    def test_stop_string_completed_by_the_last_token_is_a_stop(self):
        self.script(["abc"])
        (_, done), = self.choices(list(self.generate(stop=["bc"], max_tokens=3)))
        self.assertEqual((done.finish_reason, done.matched_stop_str), ("stop", "bc"))

    def test_choices_come_with_their_index(self):
        texts = ["one", "fourteen", "b"]
        for stream in (False, True):
            self.script(texts)
            got = self.choices(list(self.generate(stream=stream, n=3, prompt=[5, 6, 7, 8])))
            self.assertEqual([list(d.output_ids) for _, d in got], [ids_of(t) for t in texts])
            self.assertEqual([ids for ids, _ in got], [ids_of(t) if stream else [] for t in texts])
            for _, done in got:
                self.assertEqual((done.prompt_tokens, done.cached_tokens, done.finish_reason), (4, 2, "length"))
            self.assertEqual(sorted(c for c, _ in self.seen), [0, 1, 2])
        self.assertEqual([list(m.choices) for _, m in self.cell.seen("reserve")], [[0, 1, 2]] * 2)  # one placement for all
        seeds = {m.sampling.seed for _, m in self.cell.seen("reserve")}
        self.assertEqual(len(seeds), 2)  # one for each request
        self.all_released()

    def test_choices_beyond_a_pool_are_refused(self):
        pages = self.cell.pages  # a prompt of 65 tokens is a full page, shared, and a row of another
        self.script(["a"] * 64, until=0)
        self.refused("KV pages", prompt=[5] * 65, n=pages, max_tokens=2)
        call = self.generate(prompt=[5] * 65, n=pages - 1, max_tokens=2)
        wait_for(lambda: self.cell.seen("reserve"), "the reservation")
        call.cancel()
        self.go.set()
        self.all_released()

    def test_name_is_taken_until_the_last_choice_ends(self):
        self.script(["a", "bcde"], until=3)
        call = self.generate(n=2, request_id="same")
        while next(call).chunk.index != 0:  # its only token ends choice 0
            pass
        code, details, _ = self.error(self.generate(request_id="same"))
        self.assertEqual(code, grpc.StatusCode.ALREADY_EXISTS)
        self.assertIn("still runs", details)
        self.go.set()
        list(call)

    def test_stop_string_ends_one_choice_alone(self):
        self.script(["xy STOP more", "plain text"])
        got = self.choices(list(self.generate(n=2, stop=["STOP"])))
        self.assertEqual([(list(d.output_ids), d.finish_reason, d.matched_stop_str) for _, d in got],
                         [(ids_of("xy STOP"), "stop", "STOP"), (ids_of("plain text"), "length", "")])
        self.all_released()

    def test_choice_of_a_stream_is_complete_when_it_ends(self):
        self.script(["plain text", "xy STOP", "b"], until=8)
        call = self.generate(n=3, stop=["STOP"])
        got = []
        while len([m for m in got if m.HasField("complete")]) < 2:  # choice 0 has not gone on by then
            got.append(next(call))
        self.assertFalse(self.go.is_set())
        self.assertEqual({m.complete.index for m in got if m.HasField("complete")}, {1, 2})
        self.go.set()
        got = self.choices(got + list(call))
        self.assertEqual([(ids, list(d.output_ids), d.finish_reason, d.matched_stop_str) for ids, d in got],
                         [(ids_of("plain text"), ids_of("plain text"), "length", ""), (ids_of("xy STOP"), ids_of("xy STOP"), "stop", "STOP"),
                          (ids_of("b"), ids_of("b"), "length", "")])
        self.all_released()

    def test_failure_of_a_choice_ends_all_without_complete(self):
        self.script(["abcdef", "ghijkl", "mnopqr"], until=2)
        call = self.generate(n=3, request_id="many")
        got = [next(call)]
        wait_for(lambda: len(self.seen) == 3, "all choices")
        request, decode = self.cell.seen("prefill")[0][1].request, self.cell.seen("prefill")[0][1].decode_rank
        self.cell.ranks[decode].send(failed=control.Failed(request=request, epoch=self.cell.seen("prefill")[0][1].epoch, code=13,
                                                           message="as scripted"))
        with self.assertRaises(grpc.RpcError) as e:
            got += list(call)
        self.assertEqual((e.exception.code(), e.exception.details()), (grpc.StatusCode.INTERNAL, "as scripted"))
        self.assertFalse([m for m in got if m.HasField("complete")])
        wait_for(lambda: len(self.cell.aborted) == 1, "the abort of all choices")
        self.go.set()
        self.all_released()

    def test_abort_and_disconnect_end_every_choice(self):
        for how in ("abort", "disconnect"):
            self.cell.aborted.clear()
            self.script(["abcdef", "ghijkl"], until=2)
            call = self.generate(n=2, request_id=how)
            next(call)
            wait_for(lambda: len(self.seen) == 2, "both choices")
            if how == "abort":
                self.stub.Abort(vllm.AbortRequest(request_ids=[how]))
                code, _, _ = self.error(call)
                self.assertEqual(code, grpc.StatusCode.CANCELLED)
            else:
                call.cancel()
            wait_for(lambda: len(self.cell.aborted) == 1, f"{how}: the abort of both choices")
            self.go.set()
            self.all_released()

    def test_an_id_is_taken_until_every_choice_has_ended(self):
        self.script(["STOP and never more", "plain text"], until=4)
        call = self.generate(n=2, stop=["STOP"], request_id="both")  # choice 0 ends with its fourth token
        for m in call:
            if m.HasField("chunk") and m.chunk.index == 1:
                break
        wait_for(lambda: self.cell.dropped, "the end of choice 0")
        code, details, _ = self.error(self.generate(request_id="both"))
        self.assertEqual(code, grpc.StatusCode.ALREADY_EXISTS)
        self.assertIn("both", details)
        self.stub.Abort(vllm.AbortRequest(request_ids=["both"]))  # finds choice 1, though choice 0 has ended
        self.assertEqual(self.error(call)[:2], (grpc.StatusCode.CANCELLED, "aborted by the client"))
        self.go.set()
        self.choices(list(self.generate(n=2, stop=["STOP"], request_id="both")))
        self.all_released()


class Turns(Served):
    CELL = dict(pages=128)

    def test_choices_take_turns_while_their_client_does_not_read(self):
        many, top, placed, said = 1900, 20, [], [0, 0, 0]  # such a message fills all that lies between coordinator and client
        self.cell.on_prefill = lambda rank, reserve, m: placed.append(m)
        channel = grpc.insecure_channel(self.address, options=[("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)])
        self.addCleanup(channel.close)
        call = vllm_grpc.VllmEngineStub(channel).Generate(self.request(n=3, logprobs=top, max_tokens=many + 2), timeout=WAIT_S)
        wait_for(lambda: placed, "the prefill")
        m, = placed
        rank = self.cell.ranks[m.decode_rank]

        def say(choice, n=1, finish=control.GOES_ON):
            rank.send(tokens=control.Tokens(tokens=[
                control.Token(request=m.request, epoch=m.epoch, choice=choice, position=len(m.prompt) + said[choice] + i, id=choice, finish=finish,
                              cached_tokens=0 if said[choice] + i else 2, top_ids=range(100, 100 + top), top_logprobs=[-k for k in range(top)]) for i in range(n)]))
            said[choice] += n

        say(1, many)
        for choice in range(3):
            say(choice)
        n = rank.count("wake")
        rank.send(wake_request=control.WakeRequest(wake=[m.wake for k, m in rank.seen if k == "wake"][-1]))
        wait_for(lambda: rank.count("wake") > n, "an answer to what was said behind the tokens")
        chunks = [next(call).chunk for _ in range(4)]
        self.assertEqual([(c.index, len(c.token_ids)) for c in chunks], [(1, many), (2, 1), (0, 1), (1, 1)])
        self.assertEqual({c.cached_tokens for c in chunks}, {2})  # whichever choice is heard of first
        for choice in range(3):
            say(choice, finish=control.STOP_EOS)
        self.assertEqual([m.complete.completion_tokens for m in call if m.HasField("complete")], [2, many + 2, 2])


class Speculating(Served):
    CELL = dict(hello=dict(speculates=True))

    def test_decode_ranks_get_what_drafts_are_made_of(self):
        list(self.generate(prompt=[5, 6, 7]))
        self.assertEqual(list(self.cell.seen("reserve")[0][1].prompt_tokens), [5, 6, 7])


class SharingGenerated(Served):
    CELL = dict(hello=dict(share_generated=True))

    def test_generated_pages_are_those_of_the_salt(self):
        for salt in (None, "a", "b", "a"):
            list(self.stub.Generate(self.request(prompt=[5, 6, 7]), timeout=WAIT_S, metadata=[("baton-cache-salt", salt)] if salt else None))
        seeds = [m.prefix_seed for _, m in sorted(self.cell.seen("reserve"), key=lambda x: x[1].request)]
        self.assertEqual((seeds[1], len(set(seeds)), 0 in seeds), (seeds[3], 3, False))


if __name__ == "__main__":
    main()
