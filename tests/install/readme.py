"""Runs the C of README.md, docs/guide.md, docs/state_files.md and docs/tiers.md against the build's library, and compares README's snippets in other languages with those
of the bindings, whose tests run them.

Usage: readme.py <build folder> <C compiler> <DLPack include folder>
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)
    if result.returncode:
        sys.exit(f"readme: failed: {' '.join(str(part) for part in command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def snippets(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / path).read_text(), re.S | re.M)


# The snippets of the guide lie inside a step of two layers and inside a tree of two nodes.
GUIDE = """
#include <kvcache.h>
#include <stdio.h>

static kvc_cache *cache;
static kvc_forward *fwd;
static kvc_error err = {.struct_size = sizeof err};
enum { num_layers = 2, tokens = 3 };
static float q_data[tokens * 4 * 16], k_data[tokens * 2 * 16], v_data[tokens * 2 * 16], out_data[tokens * 4 * 16];

static int expect(int64_t length) {
  int64_t found = -1;
  if (err.status == KVC_OK && kvc_seq_length(cache, 7, &found, &err) == KVC_OK && found == length) return 0;
  printf("length %lld, expected %lld: %s\\n", (long long)found, (long long)length, err.message);
  return 1;
}

int main(void) {
  kvc_layer layers[num_layers];
  for (int i = 0; i < num_layers; ++i)
    layers[i] = (kvc_layer){.struct_size = sizeof layers[0], .num_q_heads = 4, .num_kv_heads = 2, .k_dim = 16};
  kvc_config config = {.struct_size = sizeof config, .num_layers = num_layers, .layers = layers, .num_pages = 8};
  kvc_plan *plan;
  if (kvc_plan_create(&config, &plan, &err) || kvc_cache_create(plan, &cache, &err)) return puts(err.message), 1;
  kvc_seq_add(cache, 7, &err);
  DLTensor q = {.data = q_data, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLFloat, 32, 1}};
  q.shape = (int64_t[]){tokens, 4, 16};
  DLTensor out = q, k = q;
  out.data = out_data, k.data = k_data, k.shape = (int64_t[]){tokens, 2, 16};
  DLTensor v = k;
  v.data = v_data;
  kvc_forward_desc desc = {.struct_size = sizeof desc, .num_seqs = 1};
  desc.seqs = (kvc_seq[]){7}, desc.append_lengths = (int64_t[]){tokens};
  {
    SNIPPET
  }
  if (expect(tokens)) return 1;
  desc.tree_parents = (int32_t[]){-1, 0, 0};
  if (kvc_forward_begin(cache, &desc, &fwd, &err) != KVC_OK) return puts(err.message), 1;
  for (int32_t layer = 0; layer < num_layers; ++layer) kvc_attn(fwd, layer, NULL, &q, &k, &v, &out, NULL, &err);
  kvc_forward_end(fwd, &err);
  const size_t n = 1;
  const kvc_seq seqs[] = {7};
  const int32_t leaves[] = {1};
  {
    SNIPPET
  }
  if (expect(tokens + 2)) return 1;
  kvc_cache_destroy(cache);
  kvc_plan_destroy(plan);
  return puts("guide: ok") < 0;
}
"""


# The snippets of docs/state_files.md and docs/tiers.md.
PAGES = """
#include <kvcache.h>
#include <stdio.h>

static kvc_error err = {.struct_size = sizeof err};

static int failed(void) {
  return err.status != KVC_OK ? puts(err.message), 1 : 0;
}

int main(void) {
  kvc_layer layer = {.struct_size = sizeof layer, .num_q_heads = 4, .num_kv_heads = 2, .k_dim = 16};
  kvc_config config = {.struct_size = sizeof config, .num_layers = 1, .layers = &layer, .num_pages = 8};
  kvc_plan *plan;
  kvc_cache *cache, *other_cache;
  if (kvc_plan_create(&config, &plan, &err) || kvc_cache_create(plan, &cache, &err) || kvc_cache_create(plan, &other_cache, &err))
    return failed();
  for (kvc_seq seq = 1; seq <= 3; ++seq) kvc_seq_add(cache, seq, &err);
  {
    SNIPPET
  }
  if (failed()) return 1;
  {
    SNIPPET
    if (status != KVC_E_UNSUPPORTED && failed()) return 1;
  }
  kvc_cache_destroy(cache);
  kvc_cache_destroy(other_cache);
  kvc_plan_destroy(plan);
  return puts("pages: ok") < 0;
}
"""


def filled(program, *pages):
    """The program with the snippets of the pages in their places."""
    found = [text for page in pages for text in snippets(page, "c")]
    if len(found) != program.count("SNIPPET"):
        sys.exit(f"readme: {pages} have {len(found)} snippets in C, expected {program.count('SNIPPET')}: put each into the program above")
    for text in found:
        program = program.replace("SNIPPET", text, 1)
    return program


def check_heart(heart, program):
    """The calls of the first snippet are those of the whole program, in the same order."""
    at = 0
    for line in heart.splitlines():
        call = line.split("/*")[0].strip().rstrip(";")
        at = program.find(call, at)
        if at < 0:
            sys.exit(f"readme: the program of README.md does not have, in this place: {call}")


def main():
    build, compiler, dlpack = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    heart, *programs = snippets("README.md", "c")
    if not programs:
        sys.exit("readme: README.md has no program in C")
    check_heart(heart, programs[0])
    with tempfile.TemporaryDirectory() as scratch:
        # The snippets of pages leave statuses out, to be short.
        guide = filled(GUIDE, "docs/guide.md")
        pages = filled(PAGES, "docs/state_files.md", "docs/tiers.md")
        for number, (text, more) in enumerate([*((text, []) for text in programs), *((text, ["-Wno-unused-result"]) for text in (guide, pages))]):
            source = pathlib.Path(scratch) / f"snippet{number}.c"
            source.write_text(text)
            program = source.with_suffix("")
            run([compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", *more, source, "-o", program, f"-I{ROOT / 'include'}", f"-I{dlpack}",
                 f"-L{build}", "-lkvcache"])
            printed = run([program], cwd=scratch, env={**os.environ, "LD_LIBRARY_PATH": str(build)})
            print(printed)
            if text in programs and f"`{printed.strip()}`" not in (ROOT / "README.md").read_text():
                sys.exit(f"readme: README.md does not say that its program prints: {printed}")
    for language in ("python", "rust", "go"):
        shown, tested = snippets("README.md", language), snippets(f"bindings/{language}/README.md", language)
        if not shown or any(text not in tested for text in shown):
            sys.exit(f"readme: the {language} of README.md is not that of bindings/{language}/README.md")


if __name__ == "__main__":
    main()
