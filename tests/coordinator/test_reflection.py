"""grpc.reflection: a client that has no .proto file learns from the server what it serves, and calls it."""
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from harness import WAIT_S, Served, expected, grpc, main, reflection

ENGINE, SECOND = "vllm.grpc.engine.VllmEngine", "sglang.grpc.scheduler.SglangScheduler"
VERSIONS = "grpc.reflection.v1", "grpc.reflection.v1alpha"
LIST = reflection.ServerReflectionRequest(list_services="").SerializeToString()
NOT_FOUND, INVALID = grpc.StatusCode.NOT_FOUND.value[0], grpc.StatusCode.INVALID_ARGUMENT.value[0]


def message_class(descriptor):
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory().GetPrototype(descriptor)    # protobuf before 4.22


class Streams(Served):
    def talk(self, messages, version=VERSIONS[0]):
        return self.channel.stream_stream(f"/{version}.ServerReflection/ServerReflectionInfo")(messages, timeout=WAIT_S)

    def silent(self):
        """A call that gets an answer, and asks no more."""
        def one():
            yield LIST
            self.coordinator.wait(WAIT_S)
        return self.talk(one())


class Asked(Streams):
    def ask(self, *requests, version=VERSIONS[0]):
        requests = [reflection.ServerReflectionRequest(host="h", **r) for r in requests]
        answers = [reflection.ServerReflectionResponse.FromString(m) for m in self.talk((r.SerializeToString() for r in requests), version)]
        self.assertEqual([a.original_request for a in answers], requests)
        self.assertEqual({a.valid_host for a in answers}, {"h"})
        return answers

    def file_of(self, **request):
        [answer] = self.ask(request)
        [packed] = answer.file_descriptor_response.file_descriptor_proto
        return descriptor_pb2.FileDescriptorProto.FromString(packed)

    def services(self, version=VERSIONS[0]):
        [answer] = self.ask(dict(list_services="*"), version=version)
        return [s.name for s in answer.list_services_response.service]

    def pool(self):
        pool = descriptor_pool.DescriptorPool()
        for name in self.services():
            pool.Add(self.file_of(file_containing_symbol=name))
        return pool

    def all_that_is_declared_is_served(self):
        pool = self.pool()
        for name in self.services():
            for method in pool.FindServiceByName(name).methods:
                call = self.channel.stream_stream(f"/{name}/{method.name}")(iter([]), timeout=WAIT_S)
                try:
                    list(call)
                except grpc.RpcError as e:
                    self.assertEqual(e.code(), grpc.StatusCode.INVALID_ARGUMENT, method.full_name)  # no message came


class Reflection(Asked):
    def test_both_versions_name_the_services(self):
        for version in VERSIONS:
            self.assertEqual(set(self.services(version)), {ENGINE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"})

    def test_all_that_is_declared_is_served(self):
        self.all_that_is_declared_is_served()

    def test_requests_can_be_made_from_it(self):
        pool = self.pool()
        generate = pool.FindMethodByName(ENGINE + ".Generate")
        request, response = (message_class(t) for t in (generate.input_type, generate.output_type))
        answers = self.channel.unary_stream(f"/{ENGINE}/Generate", request.SerializeToString, response.FromString)(
            request(request_id="r", tokenized=dict(input_ids=[5, 200, 300]), sampling_params=dict(temperature=0, max_tokens=20)), timeout=WAIT_S)
        self.assertEqual(list(list(answers)[-1].complete.output_ids), expected([5, 200, 300], 20))

    def test_symbols_have_their_files(self):
        for symbol in (ENGINE, ENGINE + ".Generate", "vllm.grpc.engine.SamplingParams", "vllm.grpc.engine.SamplingParams.min_p"):
            file = self.file_of(file_containing_symbol=symbol)
            self.assertEqual(file.package, "vllm.grpc.engine")
            self.assertEqual(self.file_of(file_by_filename=file.name), file)
        self.assertTrue(any("off, like 1" in at.trailing_comments for at in file.source_code_info.location))
        for symbol in ("ServingStatus", "SERVING"):     # an enum, and a value, whose name stands beside it
            self.assertEqual(self.file_of(file_containing_symbol="grpc.health.v1.HealthCheckResponse." + symbol).package, "grpc.health.v1")
        self.assertTrue(self.file_of(file_containing_symbol="vllm.grpc.engine.GenerateRequest.input"))     # a oneof

    def test_others_are_errors_and_the_stream_goes_on(self):
        symbols = ("", ".", "vllm", "vllm.grpc.engine", "vllm.grpc.engine.", "vllm.grpc.engine.Nothing", "vllm.grpc.engine.SamplingParams.nothing",
                   "grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING", "grpc.health.v1.HealthCheckResponse.NOTHING",
                   ENGINE + ".Nothing", ENGINE + ".Generate.more", ENGINE + "s", SECOND, "sglang.grpc.scheduler.SamplingParams", "baton.control.v1.Control", "x" * 200000)
        cases = [(dict(file_containing_symbol=s), NOT_FOUND) for s in symbols]
        cases += [(dict(file_by_filename=s), NOT_FOUND) for s in ("", "proto", "proto/sglang_scheduler.proto", "proto/control.proto", "../proto/health.proto")]
        cases += [({}, INVALID), (dict(all_extension_numbers_of_type="vllm.grpc.engine.SamplingParams"), NOT_FOUND),
                  (dict(file_containing_extension=dict(containing_type="a", extension_number=1)), NOT_FOUND)]
        for answer, (request, code) in zip(self.ask(*(r for r, _ in cases)), cases):
            self.assertEqual(answer.error_response.error_code, code, str(request)[:100])
            self.assertTrue(answer.error_response.error_message)

    def test_what_is_no_request_ends_the_call(self):
        code, details, n = self.error(self.talk(iter([LIST, b"\xff\xff\xff", LIST])))
        self.assertEqual((code, n), (grpc.StatusCode.INVALID_ARGUMENT, 1))
        self.assertIn("cannot be parsed", details)

    def test_open_streams_do_not_hold_up_the_end(self):
        calls = [self.silent() for _ in range(3)]
        for call in calls:
            next(call)
        self.coordinator.process.terminate()
        self.assertEqual(self.coordinator.wait(), 0)
        for call in calls:
            self.assertEqual(self.error(call)[0], grpc.StatusCode.UNAVAILABLE)


class Both(Asked):
    ARGS = ("--sglang",)

    def test_the_second_protocol_is_named_and_declared(self):
        self.assertLessEqual({ENGINE, SECOND}, set(self.services()))
        self.all_that_is_declared_is_served()


class Silent(Streams):
    ARGS = ("--unread-s", "2")

    def test_a_client_that_asks_no_more_is_cut_off(self):
        self.assertEqual(self.error(self.silent()), (grpc.StatusCode.DEADLINE_EXCEEDED, "no other request came for too long", 1))
        self.assertIn("has sent no other request for", self.coordinator.text())


main()
