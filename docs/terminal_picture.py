"""Types lines into a command in a pseudo terminal and draws what the terminal then shows.

    python3 docs/terminal_picture.py docs/chat.svg "kvcache chat" build/bin/kvcache chat <docs/chat_lines.txt

Arguments: the picture; the command as the picture says it; the command with its options. It is given a line of the standard input each
time it shows the prompt "> ", and the end of the input after the last one. Its standard error is not part of the picture.
"""

import html
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import termios

PROMPT = b"> "
COLUMNS = 64
CHARACTER, LINE, MARGIN = 8.4, 20, 18
SECONDS = 120

STYLE = """.ground { fill: #f6f8fa; stroke: #d0d7de } text { font: 14px ui-monospace, monospace; fill: #1f2328; white-space: pre }
.typed { font-weight: bold } .prompt { fill: #0969da } .note { fill: #656d76 }
@media (prefers-color-scheme: dark) { .ground { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 } .prompt { fill: #58a6ff }
.note { fill: #8b949e } }"""


def record(command, lines):
    """What the terminal shows, as bytes."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (50, COLUMNS))
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(follower)
    shown, waiting = b"", list(lines)
    while process.poll() is None or select.select([leader], [], [], 0.2)[0]:
        ready, _, _ = select.select([leader], [], [], SECONDS)
        if not ready:
            process.kill()
            raise SystemExit(f"terminal_picture: nothing for {SECONDS} s after {shown[-80:]!r}")
        try:
            part = os.read(leader, 4096)
        except OSError:  # The command has ended.
            break
        shown += part
        if shown.endswith(b"\n" + PROMPT) or shown == PROMPT:
            os.write(leader, (waiting.pop(0) + "\n").encode() if waiting else b"\x04")
    if process.wait() != 0:
        raise SystemExit(f"terminal_picture: {command[0]} ended with {process.returncode}")
    return shown


def rows_of(text):
    """Lines as the terminal breaks them, with the class of each."""
    for line in text.rstrip().split("\n"):
        kind = "typed" if line.startswith(PROMPT.decode()) else "note" if re.fullmatch(r"\(.*\)", line) else ""
        for begin in range(0, max(1, len(line)), COLUMNS):
            yield kind, line[begin:begin + COLUMNS]


def picture(title, text):
    rows = [("typed", "$ " + title), *rows_of(text)]
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, len(rows) * LINE + 2 * MARGIN - 4
    drawn = []
    for number, (kind, row) in enumerate(rows):
        content = html.escape(row)
        if kind == "typed":
            content = f'<tspan class="prompt">{html.escape(row[:2])}</tspan><tspan class="typed">{html.escape(row[2:])}</tspan>'
        drawn.append(f'<text x="{MARGIN}" y="{MARGIN + 11 + number * LINE}" class="{kind}">{content}</text>')
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">',
                      f"<title>{html.escape(title)} in a terminal</title>", f"<style>{STYLE}</style>",
                      f'<rect class="ground" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>', *drawn, "</svg>"]) + "\n"


def main():
    target, title, *command = sys.argv[1:]
    shown = record(command, sys.stdin.read().splitlines()).decode().replace("\r\n", "\n")
    text = shown.rstrip().removesuffix(PROMPT.decode().rstrip())
    pathlib.Path(target).write_text(picture(title, text))


if __name__ == "__main__":
    main()
