"""All checks that need nothing but the tree, one process each, so that every finding is seen at once."""

import pathlib
import subprocess
import sys

CHECKS = ["format", "columns", "layering", "header_docs", "file_size", "class_width", "words", "walks", "no_print", "tree_text",
          "links", "snippets"]
SKIPPED = 77

folder = pathlib.Path(__file__).resolve().parent
statuses = [subprocess.run([sys.executable, str(folder / f"{check}.py")]).returncode for check in CHECKS]
sys.exit(1 if any(status not in (0, SKIPPED) for status in statuses) else 0)
