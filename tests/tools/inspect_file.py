"""`kvcache inspect` of the file that `kvcache demo` saves: as text, as JSON, damaged, missing. Argument: the command."""

import json
import pathlib
import subprocess
import sys
import tempfile

command = sys.argv[1]


def run(*arguments):
    return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def shown(*arguments):
    result = run("inspect", *arguments)
    assert (result.returncode, result.stderr) == (0, ""), f"{arguments}: {result.returncode}: {result.stderr}"
    return result.stdout


def refused(part, *arguments):
    result = run("inspect", *arguments)
    assert (result.returncode, result.stdout) == (1, ""), f"{arguments}: {result.returncode}: {result.stdout}"
    assert part in result.stderr, result.stderr


with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "prompt.kvc"
    made = run("demo", "--quick", "--conversations", 2, "--max-new", 4, "--save", path)
    assert made.returncode == 0, made.stderr
    assert list(pathlib.Path(folder).iterdir()) == [path]
    file = json.loads(shown(path, "--json"))
    assert file["bytes"] == path.stat().st_size and len(file["sequences"]) == 1, file
    sequence = file["sequences"][0]
    assert sequence["length"] == 2033 and file["num_pages"] == 128, file
    assert file["fingerprint"].startswith("kvcache-layout-1:"), file
    text = shown(path)
    assert "1 sequence, 128 pages, 0 recurrent states" in text and "2,033" in text and "every digest matches" in text, text
    assert "layers[1].num_kv_heads = 2" in shown(path, "--layout")

    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    refused("digest", path)
    path.write_bytes(whole[:-1])
    refused(str(path), path)
    path.write_bytes(b"")
    refused(str(path), path)
    refused("No such file", path.parent / "missing.kvc")
    refused("no state file", __file__)
print("inspect: ok")
