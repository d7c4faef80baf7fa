"""`kvcache chat` as a person and as a pipe use it, on models with random weights. Argument: the command."""

import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

import tiny_gguf

command = sys.argv[1]
folder = tempfile.TemporaryDirectory()
root = pathlib.Path(folder.name)
model = tiny_gguf.write(root / "llama.gguf")


def run(lines, *arguments, path=model, data=None, max_new=24):
    if data is None:
        data = "".join(line + "\n" for line in lines).encode()
    return subprocess.run([command, "chat", "--model", path, "--max-new", str(max_new), *map(str, arguments)], input=data,
                          capture_output=True, timeout=300)


def chat(lines, *arguments, path=model):
    """What is written for each line."""
    result = run([part for line in lines for part in (line, "/go 0")], *arguments, path=path)
    assert (result.returncode, result.stderr) == (0, b""), f"{lines}: {result.returncode}: {result.stderr}"
    answers = re.split(rb"\(there is no branch 0, [^)]*\)\n", result.stdout)
    assert len(answers) == len(lines) + 1 and answers[-1] == b"", answers
    return answers[:-1]


def refused(part, *arguments, status, path=model, lines=()):
    result = run(lines, *arguments, path=path)
    assert result.returncode == status and part in result.stderr.decode(), (result.returncode, result.stderr)


# The same on any number of threads; undo and branches leave no trace; each architecture.
for architecture in ("llama", "qwen2", "qwen3", "gemma3"):
    path = tiny_gguf.write(root / f"{architecture}.gguf", architecture, layers=7 if architecture == "gemma3" else 2)
    plain = chat(["hello", "how are you?", "why?"], path=path)
    assert len(set(plain)) >= 2 and all(b"(--max-new)" in answer for answer in plain), plain
    assert chat(["hello", "how are you?", "why?"], "--threads", 1, path=path) == plain
    undone = chat(["hello", "something else altogether", "/undo", "how are you?", "why?"], path=path)
    assert [undone[0], *undone[3:]] == plain, f"{architecture}: {undone}"
    forked = chat(["hello", "/fork", "something else", "/go 1", "how are you?", "/go 2", "/undo", "how are you?", "/undo",
                   "/undo", "hello", "/go 1", "why?"], path=path)
    assert [forked[0], forked[4], forked[-1]] == plain and forked[7] == plain[1] and forked[10] == plain[0], forked
    # Another process goes on where the first one saved.
    saved = root / f"{architecture}.kvc"
    assert chat(["hello", "how are you?", f"/save {saved}"], path=path)[2] == f"(saved {saved})\n".encode()
    went_on = chat(["why?", "/undo", "why?", "/undo"], "--load", saved, path=path)
    assert [went_on[0], went_on[2]] == [plain[2]] * 2, f"{architecture}: {went_on}"
    # Undo goes through what was loaded, turn by turn, in branches of it and after a second save too.
    again = root / f"{architecture}.again.kvc"
    back = chat(["/undo", "how are you?", "/undo", f"/save {again}", "/fork", "/undo", "/undo", "hello", "/go 1", "how are you?",
                 "/undo", "/undo", "hello", "/undo", "/undo"], "--load", saved, path=path)
    assert [back[1], back[7], back[9], back[12]] == [plain[1], plain[0], plain[1], plain[0]], f"{architecture}: {back}"
    assert back[6] == back[14] == b"(there is no turn to take back)\n", back
    once = chat(["/undo", "/undo", "hello"], "--load", again, path=path)
    assert once[1] == b"(there is no turn to take back)\n" and once[2] == plain[0], f"{architecture}: {once}"
    # A chat without a turn has none to take back.
    assert chat([f"/save {again}"], path=path) == [f"(saved {again})\n".encode()]
    assert chat(["/undo", "hello"], "--load", again, path=path) == [b"(there is no turn to take back)\n", plain[0]]

# A file of other weights is refused, and one of another storage type.
refused("fp32", "--load", root / "llama.kvc", "--weights", "fp32", status=1)
refused("k_dtype", "--load", root / "llama.kvc", "--kv-dtype", "bf16", status=1)
refused("tiny llama", "--load", root / "qwen2.kvc", status=1)
bf16 = chat(["hello", "/stats"], "--kv-dtype", "bf16")
assert b"512 bytes per token" in bf16[1], bf16
assert b"1024 bytes per token" in chat(["hello", "/stats"])[1]
saved = root / "int8.kvc"
int8 = chat(["hello", "how are you?", f"/save {saved}"], "--kv-dtype", "int8")
assert int8[2] == f"(saved {saved})\n".encode(), int8
refused("k_dtype", "--load", saved, status=1)

# A full context says what is missing; --cut lets old turns go, and what is left is a conversation.
full = chat(["hello", "once more", "and again"], "--context", 80)
assert b"has room for" in full[-1] and b"--cut" in full[-1], full
cut = chat(["hello", "once more", "and again", "/stats"], "--context", 80, "--cut")
assert b"turn cut)" in cut[2] and b"of 80 tokens" in cut[3], cut
assert b"has room for" in chat(["x" * 200], "--context", 80, "--cut")[0]
# Turns that were loaded may go as well, and what a cut has left can be saved and taken back.
for path in (model, root / "gemma3.gguf"):
    full = chat(["hello", "once more", f"/save {saved}", "/stats"], "--context", 160, path=path)
    context = int(re.search(rb"(\d+) of 160 tokens", full[3])[1]) + 10
    cut = chat(["and again", "/stats", f"/save {saved}"], "--context", context, "--cut", "--load", saved, path=path)
    assert b"cut)" in cut[0] and b"of %d tokens" % context in cut[1], cut
    cut = chat(["/undo", "/undo", "/undo"], "--load", saved, path=path)
    assert cut[0] == b"(the last turn is taken back)\n" and cut[2] == b"(there is no turn to take back)\n", cut

# Bad input.
refused("is no GGUF file", path=__file__, status=1)
refused(f"--system {root}/missing: No such file", "--system", root / "missing", status=2)
refused(f"--system {root}: Is a directory", "--system", root, status=2)
(root / "long").write_text("word " * 400)
refused("the system text takes", "--system", root / "long", "--context", 100, status=2)
refused("attention on the CPU reads", "--kv-dtype", "int4", status=2)
other = tiny_gguf.write(root / "other.gguf", "llama")
other.write_bytes(other.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1))
refused('"mamba" is not served here', path=other, status=1)
environment = {**os.environ, "KVCACHE_MODEL_DIR": str(root / "nowhere")}
result = subprocess.run([command, "chat"], input=b"", capture_output=True, env=environment, timeout=60)
assert result.returncode == 1 and b"make demo" in result.stderr, result.stderr
result = run([], data=b"\xff\xfe broken \xc3\nhello\n")
assert result.returncode == 0, result.stderr
assert b"there is no command /nothing" in chat(["/nothing"])[0]
assert chat(["//undo"])[0].endswith(b"(--max-new)\n")

# An output that is closed.
process = subprocess.Popen([command, "chat", "--model", model, "--max-new", "5000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
process.stdin.write(b"hello\n")
process.stdin.flush()
process.stdout.read(1)
process.stdout.close()
process.stdin.close()
assert process.wait(timeout=120) == 1


class Terminal:
    """The chat on a pseudo terminal."""

    def __init__(self, *arguments, path=model):
        self.text = b""
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            os.environ.update(COLUMNS="20", TERM="dumb")
            os.execv(command, [command, "chat", "--model", str(path), *map(str, arguments)])

    def wait_for(self, pattern, seconds=120):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, f"no {pattern}: {self.text[-500:]}"
            if select.select([self.descriptor], [], [], 1)[0]:
                self.text += os.read(self.descriptor, 65536)
        found = re.search(pattern, self.text)
        self.text = self.text[found.end():]
        return found

    def type(self, line):
        os.write(self.descriptor, line.encode() + b"\n")

    def end(self):
        self.type("/quit")
        while True:
            try:
                if not os.read(self.descriptor, 65536):
                    break
            except OSError:
                break
        assert os.waitpid(self.process, 0)[1] == 0


# Ctrl-C ends an answer where it is: the next one is that of a chat whose answer was as short.
# Answers are far longer than a busy machine needs to send the signal.
patient = tiny_gguf.write(root / "patient.gguf", context=8192)
terminal = Terminal("--max-new", 3500, path=patient)
terminal.wait_for(b"> ")
terminal.type("hello")
terminal.wait_for(b"hello\r\n.{4}")
os.kill(terminal.process, signal.SIGINT)
terminal.wait_for(rb"\(stopped\)\r\n")
terminal.wait_for(b"> ")
terminal.type("/stats")
length = int(terminal.wait_for(rb"answer (\d+) tokens")[1])
assert 0 < length < 3500, length
terminal.wait_for(b"> ")
terminal.type("why?")
terminal.wait_for(rb"why\?\r\n")
answer = terminal.wait_for(rb"(?s).{200}")[0]
os.kill(terminal.process, signal.SIGINT)
terminal.wait_for(rb"\(stopped\)\r\n\r\n> ")
# A signal between the prompt and the read behind it is seen with the next one.
for _ in range(120):
    os.kill(terminal.process, signal.SIGINT)
    if select.select([terminal.descriptor], [], [], 1)[0]:
        break
terminal.wait_for(b"/quit or Ctrl-D")
terminal.end()

# A person takes back what another process has said.
terminal = Terminal("--max-new", 24, "--load", root / "llama.kvc")
plain = chat(["hello", "how are you?"])
taken_back = b"(the last turn is taken back)\n"
for line, shown in (("/undo", taken_back), ("how are you?", plain[1]), ("/undo", taken_back), ("/undo", taken_back),
                    ("/undo", b"(there is no turn to take back)\n"), ("hello", plain[0])):
    terminal.wait_for(rb"> $")
    terminal.type(line)
    terminal.wait_for(re.escape(line.encode() + b"\r\n" + shown.replace(b"\n", b"\r\n")))
terminal.end()

first = run(["hello", f"/save {root / 'stopped.kvc'}"], path=patient, max_new=length)
assert first.returncode == 0
second = run(["why?"], "--load", root / "stopped.kvc", path=patient, max_new=400)
assert second.stdout.replace(b"\n", b"\r\n").startswith(answer), (second.stdout, answer)
print("chat: ok")
