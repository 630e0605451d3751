"""baton-generate and baton-bench against the real coordinator and scripted ranks: every sampling flag reaches the rank, stop texts
are cut off, choices and logprobs are shown, TLS and mutual TLS work, and what is wrong is told.

    BT_COORDINATOR=... test_clients.py BIN_DIR"""
import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "coordinator"))
from harness import SOURCE, Cell, Coordinator, Served, control, wait_for  # noqa: E402
from certificates import TlsCase  # noqa: E402

BIN = sys.argv.pop(1)
MODEL = os.path.join(SOURCE, "models", "demo")


def run(program, *args, stdin=""):
    """(exit code, stdout, stderr)"""
    done = subprocess.run([os.path.join(BIN, program), *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


class Flags(Served):
    def generate(self, *args, prompt="To be"):
        code, out, err = run("baton-generate", "-a", self.address, "--model", MODEL, "--prompt", prompt, "--no-bos", *args)
        self.assertEqual(code, 0, err)
        return out, err

    def answer(self, *args):
        return json.loads(self.generate("--json", *args)[0])

    def sampling(self):
        return self.cell.seen("reserve")[-1][1].sampling

    def test_every_field_reaches_the_rank(self):
        self.answer("--max-tokens", "9", "--min-tokens", "2", "--temperature", "0.5", "--top-k", "40", "--top-p", "0.75", "--min-p", "0.125",
                    "--frequency-penalty", "1.5", "--presence-penalty", "-1.5", "--repetition-penalty", "1.25", "--seed", "-7",
                    "--logit-bias", "17=-2.5", "--logit-bias", "18:100", "--stop-token", "31", "--stop-token", "32", "--ignore-eos")
        s = self.sampling()
        self.assertEqual((s.max_tokens, s.min_tokens, s.temperature, s.top_k, s.top_p, s.min_p), (9, 2, 0.5, 40, 0.75, 0.125))
        self.assertEqual((s.frequency_penalty, s.presence_penalty, s.repetition_penalty), (1.5, -1.5, 1.25))
        self.assertEqual((dict(zip(s.bias_ids, s.biases)), list(s.stop_token_ids), s.ignore_eos), ({17: -2.5, 18: 100}, [31, 32], True))
        seed = s.seed
        self.answer("--max-tokens", "2", "--seed", "-7")
        self.assertEqual(self.sampling().seed, seed)
        self.assertEqual((self.sampling().temperature, self.sampling().min_tokens), (0, 0))

    def test_the_salt_reaches_the_keys(self):
        for salt in ([], ["--cache-salt", "a"], ["--cache-salt", "b"], ["--cache-salt", "a"]):
            self.generate("--max-tokens", "1", *salt, prompt="To be, or not " * 40)
        keys = [bytes(m.prefix_keys) for _, m in sorted(self.cell.seen("prefill"), key=lambda x: x[1].request)]
        self.assertEqual((keys[1], len(set(keys)), b"" in keys), (keys[3], 3, False))

    def test_a_stop_text_is_cut_off(self):
        whole = self.answer("--max-tokens", "12")
        text = whole["text"]
        stop = text[6:9]  # across tokens; the answer's tokens are those of the scripted ranks
        at = text.find(stop)
        for more in ([], ["--no-stream"]):
            a = self.answer("--max-tokens", "12", "--stop", stop, *more)
            self.assertEqual((a["text"], a["finish_reason"], a["matched_stop"]), (text[:at], "stop", stop))
            self.assertEqual(self.generate("--max-tokens", "12", "--stop", stop, "--stop", "never", *more)[0], text[:at] + "\n")
        a = self.answer("--max-tokens", "12", "--stop", stop, "--include-stop")
        self.assertEqual(a["text"], text[:at] + stop)
        self.assertEqual(a["ids"], whole["ids"][:len(a["ids"])])

    def test_a_stop_text_within_a_token(self):
        """Of one byte, or twice in the token that completes it: the text is what --json says, with nothing of it or behind it."""
        def say(rank, reserve, m):
            rank.send(released=control.Released(request=m.request, epoch=m.epoch))
            self.cell.ranks[m.decode_rank].send(tokens=control.Tokens(tokens=[
                control.Token(request=m.request, position=len(m.prompt) + i, epoch=m.epoch, id=704, finish=control.LENGTH if i == 2 else control.GOES_ON)
                for i in range(3)]))
            self.cell.ranks[m.decode_rank].send(released=control.Released(request=m.request, epoch=m.epoch))
        self.cell.on_prefill = say
        self.assertEqual(self.answer("--max-tokens", "3")["text"], 3 * " RICHARD")
        for stop, text, more in (("R", " ", []), (" ", "", []), ("D", " RICHAR", []), ("RD R", " RICHA", []), ("R", " R", ["--include-stop"]),
                                 ("RD R", " RICHARD R", ["--include-stop"]), ("X", 3 * " RICHARD", [])):
            for way in ([], ["--no-stream"]):
                with self.subTest(stop=stop, more=more + way):
                    self.assertEqual(self.answer("--max-tokens", "3", "--stop", stop, *more, *way)["text"], text)
                    self.assertEqual(self.generate("--max-tokens", "3", "--stop", stop, *more, *way)[0], text + "\n")

    def test_what_begins_the_prompt(self):
        """add_bos_token decides; without it, the post_processor of tokenizer.json; --bos and --no-bos before both."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(MODEL, "tokenizer.json"), folder)
            with open(os.path.join(MODEL, "tokenizer_config.json")) as f:
                config = json.load(f)
            for add, option, want in ((True, [], True), (False, [], False), (None, [], True), (None, ["--no-bos"], False), (False, ["--bos"], True)):
                config["add_bos_token"] = add
                with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
                    json.dump({k: v for k, v in config.items() if v is not None}, f)
                code, _, err = run("baton-generate", "-a", self.address, "--model", folder, "--prompt", "", "--max-tokens", "1", *option)
                self.assertEqual((code, "the prompt is empty" in err), (0, False) if want else (1, True), err)
        self.assertEqual([list(m.prompt) for _, m in self.cell.seen("prefill")], 3 * [[0]])

    def both_choices(self, rank, reserve, m):
        """Ranks that answer choice k with the ids 300 + 10 k + i."""
        decode, n = self.cell.ranks[m.decode_rank], m.sampling.max_tokens
        rank.send(released=control.Released(request=m.request, epoch=m.epoch))
        for i in range(n):
            decode.send(tokens=control.Tokens(tokens=[
                control.Token(request=m.request, choice=k, position=len(m.prompt) + i, epoch=m.epoch, id=300 + 10 * k + i, logprob=-1,
                              finish=control.LENGTH if i + 1 == n else control.GOES_ON) for k in m.choices]))
        decode.send(released=control.Released(request=m.request, epoch=m.epoch))

    def test_choices(self):
        self.cell.on_prefill = self.both_choices
        for more in ([], ["--no-stream"]):
            a = self.answer("-n", "2", "--max-tokens", "3", *more)
            self.assertEqual([c["ids"] for c in a["choices"]], [[300, 301, 302], [310, 311, 312]])
            self.assertEqual((a["completion_tokens"], a["choices"][1]["finish_reason"]), (6, "length"))
        out, _ = self.generate("-n", "2", "--max-tokens", "3")
        self.assertIn("--- choice 0 (length)\n", out)
        self.assertIn("--- choice 1 (length)\n", out)

    def test_logprobs(self):
        out, _ = self.generate("--max-tokens", "3", "--logprobs")
        self.assertEqual([float(line.split()[0]) for line in out.splitlines()], [-0.125, -0.25, -0.375])
        a = self.answer("--max-tokens", "3", "--logprobs")
        self.assertEqual(a["logprobs"], [-0.125, -0.25, -0.375])
        out, _ = self.generate("--max-tokens", "3", "--json")
        self.assertEqual([n for n in re.findall(r"[1-9][\d.]*", out) if len(n.replace(".", "")) > 9], [], out)  # more digits than a float has

    def test_logprobs_of_the_prompt_come_before_the_answer(self):
        def with_prompt(rank, reserve, m):
            rank.send(prompt_logprobs=control.PromptLogprobs(request=m.request, epoch=m.epoch, position=1, logprobs=[-1.5] * (len(m.prompt) - 1)))
            tokens, decode = self.cell.tokens(reserve, m.prompt), self.cell.ranks[m.decode_rank]
            for sender, some in ((rank, tokens[:1]), (decode, tokens[1:])):    # the decode rank repeats no first token then
                sender.send(tokens=control.Tokens(tokens=some))
                sender.send(released=control.Released(request=m.request, epoch=m.epoch))
        self.cell.on_prefill = with_prompt
        text = self.answer("--max-tokens", "3", "--prompt-logprobs")["text"]
        for more in ([], ["--no-stream"]):
            out, _ = self.generate("--max-tokens", "3", "--prompt-logprobs", *more)
            first, second, rest = out.split("\n", 2)
            self.assertEqual((first.split()[:2], second.split()[:2], rest), (["prompt", "-"], ["prompt", "-1.500000"], text + "\n"))
        out, _ = self.generate("--max-tokens", "3", "--prompt-logprobs", "--logprobs")
        self.assertEqual([line.split()[0] for line in out.splitlines()], ["prompt", "prompt", "-0.125000", "-0.250000", "-0.375000"])

    def test_wrong_usage_names_the_flag(self):
        for args, words in ((["--top-p", "1.5"], "--top-p must be"), (["--logit-bias", "x"], "expected ID=X"), (["--stop", ""], "--stop has 0 bytes"), (["--cache-salt", "a\n"], "--cache-salt has byte 0x0a at 1"),
                            (["--choices", "65"], "--choices must be"), (["--logprobs=21"], "--logprobs must be"), (["--tls-cert", "a"], "--tls-key go together"),
                            (["--tls-server-name", "a"], "goes with --tls-ca"),
                            (["--json-schema", "@"], "--json-schema @: No such file"), (["--regex", "@/nowhere"], "--regex @/nowhere: No such file"),
                            (["--top-p", "0.9"], "--top-p has no effect with --temperature 0")):
            code, _, err = run("baton-generate", *args, "--prompt", "x")
            self.assertEqual(code, 64, args)
            self.assertIn(words, err)


class Errors(Served):
    """A line says what was expected and found, and what to do: no code's name before it."""

    def says(self, words, program, *args, stdin=""):
        code, out, err = run(program, *args, stdin=stdin)
        self.assertEqual((code, out), (1, ""), err)
        self.assertEqual(err[:len(words)], words)
        return err

    def test_nobody_listens(self):
        for program in ("generate", "chat", "bench"):
            err = self.says(f"baton {program}: cannot connect to 127.0.0.1:1 without TLS: Connection refused; expected the address that `baton run` printed",
                            f"baton-{program}", "-a", "127.0.0.1:1", stdin="x")
            self.assertEqual(err.count("\n"), 1)

    def test_silent_name_servers_are_named_soon(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent, tempfile.NamedTemporaryFile("w") as f:
            try:
                silent.bind(("127.0.0.77", 53))
                probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
            except OSError as e:
                self.skipTest(str(e))
            if probe.returncode != 0:
                self.skipTest("namespaces are refused here")
            f.write("nameserver 127.0.0.77\n")
            f.flush()
            start = time.monotonic()
            done = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', f.name,
                                   os.path.join(BIN, "baton-generate"), "--address", "cell.example:8000", "--prompt", "x"],
                                  capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 1)
            self.assertIn("cannot connect to cell.example:8000 without TLS: no name server has answered for 20 s;", done.stderr)
            self.assertLess(time.monotonic() - start, 60)

    def test_refusals_and_files(self):
        ask = "baton-generate", "-a", self.address, "--prompt", "x"
        self.says(f"baton generate: {self.address}: INVALID_ARGUMENT: ", *ask, "--model", MODEL, "--max-tokens", "99999")
        self.says("baton generate: /nowhere: No such file", *ask, "--model", "/nowhere")
        self.says(f"baton generate: {__file__}: expected a PEM file with a CERTIFICATE\n", *ask, "--tls-ca", __file__)
        self.says("baton generate: stdin is empty: expected a prompt there", *ask[:-2], "--model", MODEL)
        self.says("baton tokenize: stdin line 1: expected a JSON string, found", "baton-tokenize", "--model", MODEL, stdin="x\n")
        self.says("baton inspect: /nowhere/config.json: No such file", "baton-inspect", "/nowhere")

    def test_an_interrupted_prompt_ends_silently(self):
        asked = subprocess.Popen([os.path.join(BIN, "baton-generate"), "-a", self.address, "--model", MODEL], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def handled():
            with open(f"/proc/{asked.pid}/status") as f:
                return int(next(line for line in f if line.startswith("SigCgt:")).split()[1], 16) >> (signal.SIGINT - 1) & 1
        wait_for(handled, "the handler")
        asked.send_signal(signal.SIGINT)
        with asked.stdin, asked.stdout, asked.stderr:
            self.assertEqual((asked.wait(60), asked.stdout.read(), asked.stderr.read()), (130, b"", b""))

    def test_a_client_that_stood_still_waits_on(self):
        """As under Ctrl-Z, or with its machine: its own silence is not the server's."""
        held = []
        self.cell.on_prefill = lambda *order: held.append(order)
        asked = subprocess.Popen([os.path.join(BIN, "baton-generate"), "-a", self.address, "--model", MODEL, "--prompt", "To be", "--max-tokens", "1",
                                  "--timeout-s", "4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: held, "the prompt")
        asked.send_signal(signal.SIGSTOP)
        time.sleep(5)
        asked.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        self.cell.generate(*held[0])
        _, err = asked.communicate(timeout=60)
        self.assertEqual(asked.returncode, 0, err)

    def test_a_tokenizer_elsewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(MODEL, "config.json"), os.path.join(folder, "config.json"))
            c = Coordinator("--model", folder)
            self.addCleanup(c.close)
            cell = Cell(c.line("control")).attach().ready()
            self.addCleanup(cell.close)
            address = c.line("ready")
            err = self.says(f"baton generate: {folder}/tokenizer.json: No such file", "baton-generate", "-a", address, "--prompt", "x")
            self.assertIn(f"{address} names that directory; if it lies on another machine, give --model DIR", err)
            code, _, err = run("baton-generate", "-a", address, "--model", os.path.join(MODEL, "tokenizer.json"), "--prompt", "x", "--max-tokens", "1")
            self.assertEqual(code, 0, err)

    def test_a_long_path_to_the_tokenizer(self):
        path = "/" + "./" * 600 + MODEL[1:]
        c = Coordinator("--public-model-path", path)
        self.addCleanup(c.close)
        cell = Cell(c.line("control")).attach().ready()
        self.addCleanup(cell.close)
        address = c.line("ready")
        for given in ([], ["--model", path]):
            code, _, err = run("baton-generate", "-a", address, *given, "--prompt", "x", "--max-tokens", "2")
            self.assertEqual(code, 0, err)


class Conversation(Served):
    """baton-chat on a terminal.  A chat's prompt begins with id 0, after which the scripted ranks say the end at once."""

    def setUp(self):
        super().setUp()
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.model = made.name  # whose template needs none of the ids that the scripted ranks lack
        shutil.copy(os.path.join(MODEL, "tokenizer.json"), made.name)
        with open(os.path.join(MODEL, "tokenizer_config.json")) as f:
            config = json.load(f)
        config["chat_template"] = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}"
        with open(os.path.join(made.name, "tokenizer_config.json"), "w") as f:
            json.dump(config, f)

    def talk(self, *lines, args=(), end="\x04"):
        """(exit code, what the terminal showed)"""
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        # Not by a function before the program: Python would fork, which waits for ever for threads of a server of gRPC's.
        chat = subprocess.Popen(["setsid", "--ctty", os.path.join(BIN, "baton-chat"), "-a", self.address, "--model", self.model, *args],
                                stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        shown = ""

        def more():
            self.assertTrue(select.select([master], [], [], 60)[0], f"nothing more within 60 s:\n{shown}")
            with contextlib.suppress(OSError):  # the other side is closed
                return os.read(master, 65536).decode()
            return ""
        try:
            for i, line in enumerate([*lines, end]):
                while shown.count("> ") < i + 1:
                    shown += more()
                os.write(master, (line + "\n" if line != end else end).encode())
            while text := more():
                shown += text
            return chat.wait(60), shown
        finally:
            chat.kill()

    def prompts(self):
        return [m.n_prompt for _, m in self.cell.seen("reserve")]

    def test_it_ends_as_its_answers_did(self):
        self.assertEqual(self.talk("QZ", "ZQ")[0], 0)
        self.assertEqual(self.talk("QZ", end="\x03")[0], 130)
        code, shown = self.talk("QZ" * 20, "Q" * 5000, "ZQ")
        self.assertEqual(code, 1)
        self.assertIn("the line has the 4095 bytes that a terminal passes on", shown)
        self.assertEqual(shown.count("prompt tokens"), 2)

    def test_the_mark_at_an_answers_end_is_not_said_again(self):
        self.assertIn("<\uff5cend", self.talk("QZ", "ZQ", args=["--keep-special"])[1])
        kept = self.prompts()
        self.talk("QZ", "ZQ")
        self.assertEqual(self.prompts(), 2 * kept)

    def test_a_byte_of_zero_is_refused(self):
        code, _, err = run("baton-chat", "-a", self.address, "--model", MODEL, stdin="hello\0world\n")
        self.assertEqual(code, 1)
        self.assertIn("a byte of zero after 5 others", err)


class Logits(unittest.TestCase):
    """What is wrong with the cases or the settings is said before a cell starts."""

    def ask(self, *args, env=None):
        done = subprocess.run([os.path.join(BIN, "baton-logits"), "--model", MODEL, "--out", "/dev/null", *args], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=300, env={**os.environ, **(env or {})})
        return done.returncode, done.stdout

    def test_cases_that_are_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(os.path.join(folder, "pipe"))
            for name, words in (("", "found a directory"), ("pipe", "found a pipe"), ("nothing", "No such file")):
                code, out = self.ask("--ids", os.path.join(folder, name))
                self.assertEqual(code, 1, out)
                self.assertIn(f"--ids {os.path.join(folder, name)}: ", out)
                self.assertIn(words, out)

    def test_more_experts_than_there_are(self):
        for name, text in (("config.json", {"n_routed_experts": 8, "num_experts_per_tok": 9}),
                           ("params.json", {"moe": {"num_experts": 8, "num_experts_per_tok": 9}})):
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, name), "w") as f:
                    json.dump(text, f)
                code, out = self.ask("--model", folder, "--ids", __file__)
                self.assertEqual(code, 1, out)
                self.assertIn(f"{folder}/{name}: field num_experts_per_tok: expected 1 to 8, the number of experts\n", out)

    def test_settings_from_a_file_and_the_environment(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
            f.write("ids = /from/the/file\nparallel = 2\n")
            f.flush()
            code, out = self.ask("--config", f.name)
            self.assertEqual(code, 1, out)
            self.assertIn("--ids /from/the/file: ", out)
            code, out = self.ask("--config", f.name, env={"BATON_IDS": "/from/the/environment"})
            self.assertIn("--ids /from/the/environment: ", out)
            self.assertIn(" ids=/from/the/environment (environment) ", out)
            self.assertIn(" parallel=2 (file) ", out)
            code, out = self.ask("--config", f.name, env={"BATON_TIMEOUT_S": "soon"})
            self.assertEqual(code, 64, out)
            self.assertIn('--timeout-s is "soon" by the environment', out)
            code, out = self.ask("--config", f.name, "--timeout-s", "5", env={"BATON_TIMEOUT_S": "soon", "BATON_PARALLEL": "3"})
            self.assertEqual(code, 64, out)
            for words in ('--timeout-s is "soon" by the environment', '--parallel is "2" by the file', '--parallel is "3" by the environment'):
                self.assertIn(words, out)
            code, out = self.ask("--config", f.name, "--cell", "a")
            self.assertEqual(code, 64, out)
            self.assertIn("--cell has no effect: leave it out, since its cell has no coordinator", out)
            f.write("nonsense = 1\n")
            f.flush()
            code, out = self.ask("--config", f.name)
            self.assertEqual(code, 64, out)
            self.assertIn(f"{f.name}:3: there is no setting", out)


class Tls(TlsCase):
    def ask(self, address, *args):
        return run("baton-generate", "-a", address, "--model", MODEL, "--prompt", "To be", "--no-bos", "--max-tokens", "4", "--json", *args)

    def test_tls(self):
        address = self.serve()
        code, out, err = self.ask(address, "--tls-ca", self.path("ca.pem"))
        self.assertEqual(code, 0, err)
        self.assertEqual(len(json.loads(out)["ids"]), 4)
        for args in ([], ["--tls"], ["--tls-ca", self.path("other.pem")]):
            code, _, err = self.ask(address, *args)
            self.assertEqual(code, 1, args)
            self.assertIn(f"cannot connect to {address} with{'' if args else 'out'} TLS: ", err)
        code, out, err = run("baton-bench", "-a", address, "-n", "2", "-c", "1", "--prompt-tokens", "8", "--output-tokens", "4", "--warmup", "0", "--tls-ca",
                             self.path("ca.pem"))
        self.assertEqual(code, 0, err + out)

    def test_mutual_tls(self):
        address = self.serve("--tls-client-ca", self.path("ca.pem"))
        ca = ["--tls-ca", self.path("ca.pem")]
        code, out, err = self.ask(address, *ca, "--tls-cert", self.path("client.pem"), "--tls-key", self.path("client.key"))
        self.assertEqual(code, 0, err)
        code, _, err = self.ask(address, *ca)
        self.assertEqual(code, 1)
        self.assertIn("--tls-cert for one with --tls-client-ca", err)
        self.assertEqual(self.ask(address, *ca, "--tls-cert", self.path("stranger.pem"), "--tls-key", self.path("stranger.key"))[0], 1)

    def test_run_chat(self):
        def chat(*args):
            return run("baton-run", "--model", MODEL, "--both", "1", "--chat", "To be", "--max-tokens", "4", "--tls-cert", self.path("server.pem"),
                       "--tls-key", self.path("server.key"), *args)
        client = ["--chat-tls-cert", self.path("client.pem"), "--chat-tls-key", self.path("client.key")]
        for args in ([], ["--chat-tls-ca", self.path("ca.pem")], ["--tls-client-ca", self.path("ca.pem"), *client]):
            code, out, err = chat(*args)
            self.assertEqual(code, 0, err)
            self.assertNotEqual(out.strip(), "")
        code, _, err = chat("--chat-tls-ca", self.path("other.pem"))
        self.assertEqual(code, 1, err)
        self.assertIn("cannot connect to ", err)
        for args, words in ((["--tls-client-ca", self.path("ca.pem")], "needs --chat-tls-cert"), (client[:2], "--chat-tls-key go together")):
            code, _, err = chat(*args)
            self.assertEqual(code, 64, err)
            self.assertIn(words, err)

    def test_bad_files_are_named(self):
        for args, words in ((["--tls-ca", "/nowhere.pem"], "/nowhere.pem: No such file"), (["--tls-ca", self.path("server.key")], "with a CERTIFICATE")):
            code, _, err = self.ask("127.0.0.1:1", *args)
            self.assertEqual(code, 1)
            self.assertIn(words, err)


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1)
