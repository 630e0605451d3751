#!/usr/bin/env python3
"""Fails when a page names a file of the tree, or links to a file or heading, that is not there, shows a command that may not be run, or is long
without a table of its sections.

    check_docs.py SOURCE_ROOT

Every `folder/name.ending` between backticks in a Markdown page must exist, and so must what [text](file#heading) says, from the
page's folder.  A script of the tree that begins a line or text between backticks, with arguments behind it, must be executable.  A page of more
than 10 sections links to each of them, in their order, before the first."""
import glob
import itertools
import os
import re
import sys

NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:c|h|cu|cuh|cpp|py|proto|md|cmake|sh|sbatch|safetensors|json))`")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
RUN = re.compile(r"(?:^ *|`)((?:[\w.-]+/)+[\w.-]+) \S", re.M)
ELSEWHERE = ("build/",)
MANY = 10


def read(page):
    with open(page, encoding="utf-8") as f:
        return f.read()


def headings(text, mark="#"):
    """Of a page, as GitHub calls them in links."""
    return [re.sub(r"[^\w -]", "", line.lstrip("#").strip().lower()).replace(" ", "-") for line in text.splitlines() if line.startswith(mark)]


def dead_links(page, text):
    for file, heading in LINK.findall(text):
        path = os.path.join(os.path.dirname(page), file) if file else page
        if not os.path.exists(path) or heading and heading not in headings(read(path)):
            yield file + (f"#{heading}" if heading else "")


def not_listed(text):
    """What is wrong with the list of the page's sections, if it wants one."""
    want, top = headings(text, "## "), text.partition("\n## ")[0]
    found = [heading for file, heading in LINK.findall(top) if not file]
    if len(want) > MANY and found != want:
        yield next(f"its {len(want)} sections want a list before the first of them, with links in their order: expected #{w}, found {f and '#' + f}"
                   for w, f in itertools.zip_longest(want, found) if w != f)


def not_executable(root, text):
    for name in sorted(set(RUN.findall(text))):
        path = os.path.join(root, name)
        if not os.path.isfile(path) or os.access(path, os.X_OK):
            continue
        with open(path, "rb") as f:
            if f.read(2) == b"#!":
                yield name


def main(root):
    pages = [page for pattern in ("*.md", "docs/**/*.md", "tests/*/README.md") for page in glob.glob(os.path.join(root, pattern), recursive=True)]
    named, missing = 0, []
    for page in pages:
        text = read(page)
        missing += [f"{os.path.relpath(page, root)}: the link to {link} leads nowhere" for link in dead_links(page, text)]
        missing += [f"{os.path.relpath(page, root)}: {wrong}" for wrong in not_listed(text)]
        missing += [f"{os.path.relpath(page, root)}: {name} is shown as a command, and is not executable" for name in not_executable(root, text)]
        for name in NAMED.findall(text):
            named += 1
            if not name.startswith(ELSEWHERE) and not os.path.exists(os.path.join(root, name)):
                missing.append(f"{os.path.relpath(page, root)}: {name} does not exist")
    print("\n".join(missing) if missing else f"{len(pages)} pages name {named} files, all there")
    return 1 if missing or named == 0 else 0


sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
