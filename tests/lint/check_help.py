"""Every verb has a --help for terminals of 80 columns whose examples can be pasted: argp wraps lines of more than 79 columns, and a wrapped command is none.
It has a --version too, fails with a word where the disk is full and without one where nobody reads, and refuses options that are empty by name.
Options that the pages name are of some verb.

    check_help.py BIN_DIR SOURCE_ROOT"""
import glob
import os
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
        done = subprocess.run([f"{sys.argv[1]}/baton", *verb, option], stdout=out, stderr=subprocess.PIPE, text=True, timeout=20,
                              restore_signals=False)  # SIGPIPE is ignored, as by many parents
        return done, f"baton {' '.join((*verb, option))}: exit code {done.returncode}, {done.stdout!r}, {done.stderr!r}"
    done, text = ask("--version", subprocess.PIPE)
    if done.returncode != 0 or not re.fullmatch(r"baton [0-9.]+\n", done.stdout):
        yield text
    for option in ("--help", "--version"):
        with open("/dev/full", "w") as full:
            done, text = ask(option, full)
        if done.returncode == 0 or "stdout: " not in done.stderr:
            yield text
        reader, writer = os.pipe()
        os.close(reader)
        done, text = ask(option, writer)
        os.close(writer)
        if done.returncode == 0 or done.stderr:  # whoever reads has heard enough
            yield text


MAY_BE_EMPTY = {("generate", "--prompt"), ("chat", "--message"), ("chat", "--system"), ("worker", "--left-out")}


def taken_empty(verb):
    """Options of a verb that take an empty value, or refuse it namelessly.  Nothing is done: what a verb cannot do without is missing."""
    for option in sorted(set(re.findall(r"(--[a-z-]+)=", help_of(verb)))):
        done = subprocess.run([f"{sys.argv[1]}/baton-{verb}", option + "="], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
        if (verb, option) not in MAY_BE_EMPTY and (done.returncode == 0 or f"{option} " not in done.stderr):
            yield f"baton {verb} {option}=: exit code {done.returncode}, {done.stderr!r}"


NOT_OURS = {"--no-kill", "--exclusive", "--model-path", "--parser"}    # Slurm's and SMG's


def not_of_a_verb(verbs):
    """Options at the beginning of what stands between backticks in the pages."""
    known = NOT_OURS.union(*(re.findall(r"--[a-z][a-z0-9-]*", help_of(verb)) for verb in verbs))
    for page in sorted([*glob.glob(f"{sys.argv[2]}/*.md"), *glob.glob(f"{sys.argv[2]}/docs/*.md")]):
        with open(page, encoding="utf-8") as f:
            named = set(re.findall(r"`(--[a-z][a-z0-9-]*)", f.read()))
        yield from (f"{os.path.basename(page)}: no verb has {option}" for option in sorted(named - known))


verbs = re.findall(r"^  ([a-z]+) {2,}", help_of(), re.M)
assert len(verbs) >= 13, verbs
wrong = [*lost_words(), *not_of_a_verb(verbs)]
wrong += [f"baton --help: more than 79 columns: {line}" for line in help_of().split("\n") if len(line) > 79]
for verb in verbs:
    wrong += [*lost_words(verb), *taken_empty(verb)]
    _, found, examples = help_of(verb).partition("\nExample")
    if not found:
        wrong.append(f"baton {verb} --help has no example")
    commands = examples.split("\n\n")[0].split("\n")[1:]  # up to prose, if there is any
    wrong += [f"baton {verb} --help: an example is wrapped: {line}" for line in commands if line and not line.startswith("  ")]
print("\n".join(wrong) or f"examples of {len(verbs)} verbs stand whole, no word is lost, and nothing is taken that is empty")
sys.exit(bool(wrong))
