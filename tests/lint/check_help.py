"""Every verb has a --help whose examples can be pasted: argp wraps lines of more than 79 columns, and a wrapped command is none.
It has a --version too, and fails with a word where the disk is full.

    check_help.py BIN_DIR"""
import re
import subprocess
import sys


def help_of(*verb):
    done = subprocess.run([f"{sys.argv[1]}/baton", *verb, "--help"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"baton {' '.join(verb)} --help: exit code {done.returncode}\n{done.stderr}"
    return done.stdout


def lost_words(*verb):
    """Answers of a verb that it gives wrongly, or that are lost without a word."""
    def ask(option, out):
        done = subprocess.run([f"{sys.argv[1]}/baton", *verb, option], stdout=out, stderr=subprocess.PIPE, text=True, timeout=20)
        return done, f"baton {' '.join((*verb, option))}: exit code {done.returncode}, {done.stdout!r}, {done.stderr!r}"
    done, text = ask("--version", subprocess.PIPE)
    if done.returncode != 0 or not re.fullmatch(r"baton [0-9.]+\n", done.stdout):
        yield text
    for option in ("--help", "--version"):
        with open("/dev/full", "w") as full:
            done, text = ask(option, full)
        if done.returncode == 0 or "stdout: " not in done.stderr:
            yield text


verbs = re.findall(r"^  ([a-z]+) {2,}", help_of(), re.M)
assert len(verbs) >= 13, verbs
wrong = [*lost_words()]
for verb in verbs:
    wrong += lost_words(verb)
    _, found, examples = help_of(verb).partition("\nExample")
    if not found:
        wrong.append(f"baton {verb} --help has no example")
    commands = examples.split("\n\n")[0].split("\n")[1:]  # up to prose, if there is any
    wrong += [f"baton {verb} --help: an example is wrapped: {line}" for line in commands if line and not line.startswith("  ")]
print("\n".join(wrong) or f"examples of {len(verbs)} verbs stand whole, and no word is lost")
sys.exit(bool(wrong))
