"""Every verb has a --help whose examples can be pasted: argp wraps lines of more than 79 columns, and a wrapped command is none.

    check_help.py BIN_DIR"""
import re
import subprocess
import sys


def help_of(*verb):
    done = subprocess.run([f"{sys.argv[1]}/baton", *verb, "--help"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"baton {' '.join(verb)} --help: exit code {done.returncode}\n{done.stderr}"
    return done.stdout


verbs = re.findall(r"^  ([a-z]+) {2,}", help_of(), re.M)
assert len(verbs) >= 13, verbs
wrong = []
for verb in verbs:
    _, found, examples = help_of(verb).partition("\nExample")
    if not found:
        wrong.append(f"baton {verb} --help has no example")
    commands = examples.split("\n\n")[0].split("\n")[1:]  # up to prose, if there is any
    wrong += [f"baton {verb} --help: an example is wrapped: {line}" for line in commands if line and not line.startswith("  ")]
print("\n".join(wrong) or f"examples of {len(verbs)} verbs stand whole")
sys.exit(bool(wrong))
