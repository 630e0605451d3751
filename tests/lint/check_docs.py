#!/usr/bin/env python3
"""Fails when a page names a file of the tree that is not there.

    check_docs.py SOURCE_ROOT

Every `folder/name.ending` between backticks in a Markdown page must exist."""
import glob
import os
import re
import sys

NAMED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:c|h|py|proto|md|cmake|sh|safetensors|json))`")
ELSEWHERE = ("build/",)


def main(root):
    pages = [page for pattern in ("*.md", "docs/**/*.md", "tests/*/README.md") for page in glob.glob(os.path.join(root, pattern), recursive=True)]
    named, missing = 0, []
    for page in pages:
        for name in NAMED.findall(open(page, encoding="utf-8").read()):
            named += 1
            if not name.startswith(ELSEWHERE) and not os.path.exists(os.path.join(root, name)):
                missing.append(f"{os.path.relpath(page, root)}: {name} does not exist")
    print("\n".join(missing) if missing else f"{len(pages)} pages name {named} files, all there")
    return 1 if missing or named == 0 else 0


sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
