"""Runs the C of README.md, docs/guide.md, docs/recipes.md, docs/state_files.md, docs/tiers.md and docs/transfer.md against the build's library, and compares README's snippets in other languages with those
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


# The snippets of pages leave statuses out, and OpenMP need not be there.
LOOSE = ["-Wno-unused-result", "-Wno-unknown-pragmas"]


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


# The snippets of docs/recipes.md: on a model with a state, then on plain attention, whose pages a second cache has filled.
RECIPES = """
#include <kvcache.h>
#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif

static kvc_error err = {.struct_size = sizeof err};
static kvc_plan *plan;
static float row_data[16 * 2 * 16], out_data[16 * 2 * 16];
static unsigned char bytes_of_pages[65536];

static int failed(int line) {
  return err.status != KVC_OK ? printf("recipe before line %d: %s\\n", line, err.message), 1 : 0;
}

static DLTensor rows(float *data, int64_t *shape) {
  return (DLTensor){.data = data, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLFloat, 32, 1}, .shape = shape};
}

static void compute(kvc_cache *cache, kvc_seq seq, int64_t count) {
  kvc_forward *fwd;
  kvc_forward_desc desc = {.struct_size = sizeof desc, .num_seqs = 1, .seqs = &seq, .append_lengths = &count};
  DLTensor x = rows(row_data, (int64_t[]){count, 2, 16}), out = rows(out_data, x.shape);
  if (kvc_forward_begin(cache, &desc, &fwd, &err)) return;
  if (kvc_attn(fwd, 0, NULL, &x, &x, &x, &out, NULL, &err) || kvc_forward_end(fwd, &err)) kvc_forward_abort(fwd, NULL);
}

static int64_t import_pages(kvc_cache *cache, const DLManagedTensorVersioned *table) {
  const int64_t count = table->dl_tensor.shape[0];
  int64_t ids[8];
  for (int64_t i = 0; i < count; ++i) ids[i] = ((const int32_t *)table->dl_tensor.data)[i];
  kvc_layer_info info = {.struct_size = sizeof info};
  kvc_plan_layer_get(plan, 0, &info, &err);
  DLTensor names = {.data = ids, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLInt, 64, 1}, .shape = (int64_t[]){count}};
  DLTensor in = {.data = bytes_of_pages, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLUInt, 8, 1}};
  in.shape = (int64_t[]){count, (int64_t)info.page_bytes};
  kvc_pages_import(cache, 0, &names, &in, NULL, &err);
  return count;
}

static kvc_cache *make(kvc_layer *layers, int32_t num_layers, const kvc_executor *own) {
  kvc_config config = {.struct_size = sizeof config, .num_layers = num_layers, .layers = layers, .num_pages = 32};
  config.executor = own;
  kvc_cache *cache = NULL;
  if (kvc_plan_create(&config, &plan, &err) == KVC_OK) (void)kvc_cache_create(plan, &cache, &err);
  return cache;
}

SNIPPET(kvc_executor)

int main(void) {
  int64_t shape[] = {4};
  const kvc_state_spec state = {.struct_size = sizeof state, .ndim = 1, .shape = shape};
  kvc_layer layers[2] = {{.struct_size = sizeof layers[0], .num_q_heads = 2, .num_kv_heads = 2, .k_dim = 16},
                         {.struct_size = sizeof layers[0], .kind = KVC_LAYER_STATE, .num_states = 1, .states = &state}};
  kvc_cache *cache = make(layers, 2, &executor);
  if (failed(__LINE__)) return 1;
  const kvc_seq seq = 1, edited = 2;
  kvc_seq_add(cache, seq, &err);
  compute(cache, seq, 5);
  {
    SNIPPET
    if (failed(__LINE__)) return 1;
  }
  const int64_t pos = 3;
  {
    SNIPPET
    if (failed(__LINE__) || below != 0) return puts("the edit"), 1;
  }
  kvc_cache_destroy(cache);
  kvc_plan_destroy(plan);

  cache = make(layers, 1, NULL);
  if (failed(__LINE__)) return 1;
  kvc_seq_add(cache, seq, &err);
  const int32_t ids[32] = {5, 6, 7};
  const int64_t length = 32;
  kvc_forward *fwd;
  kvc_forward_desc desc = {.struct_size = sizeof desc, .num_seqs = 1, .seqs = &seq, .append_lengths = &length};
  SNIPPET
  {
    SNIPPET
    kvc_prefix_query query = {.struct_size = sizeof query, .tokens = ids, .num_tokens = 32};
    int64_t hit = 0;
    kvc_prefix_match(cache, &query, &hit, &err);
    if (failed(__LINE__) || num_pages != 2 || hit < 16) return printf("hit %lld\\n", (long long)hit), 1;
  }
  static unsigned char file[1 << 20];
  kvc_save_desc save = {.struct_size = sizeof save, .data = file, .size = sizeof file};
  uint64_t size = 0;
  kvc_seq_save(cache, 1, &seq, &save, NULL, &size, &err);
  kvc_load_desc load = {.struct_size = sizeof load, .data = file, .size = (size_t)size};
  {
    SNIPPET
    if (failed(__LINE__)) return 1;
  }
  {
    SNIPPET
    if (failed(__LINE__) || !kvc_cache_is_empty(cache)) return 1;
  }
  kvc_layer_info layer = {.struct_size = sizeof layer};
  kvc_plan_info info = {.struct_size = sizeof info};
  {
    SNIPPET
    if (failed(__LINE__) || layer.bytes_per_token == 0 || info.pool_bytes == 0) return 1;
  }
  kvc_cache_destroy(cache);
  kvc_plan_destroy(plan);
  return puts("recipes: ok") < 0;
}
"""


# The snippets of docs/state_files.md, docs/tiers.md and docs/transfer.md.
PAGES = """
#include <kvcache.h>
#include <stdio.h>
#include <unistd.h>

static kvc_error err = {.struct_size = sizeof err};

SNIPPET(pipe_end)

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
  {
    int64_t length = 0;
    const int64_t prompt_length = 20;
    if (kvc_seq_reserve(cache, 1, prompt_length, &err)) return failed();
    SNIPPET
    if (status || kvc_seq_length(other_cache, 1, &length, &err) || length != prompt_length) return failed() | 1;
  }
  {
    const int64_t prompt_length = 20;
    const kvc_transport_desc here = {.struct_size = sizeof here};
    kvc_transport *transport;
    if (kvc_transport_open(&here, &transport, &err)) return failed();
    SNIPPET
    if (status != KVC_E_CANCELLED || end != KVC_E_CANCELLED) return failed() | 1;
    kvc_transport_destroy(transport);
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
    # One that has its place out of order is named by a word of it.
    for word in re.findall(r"SNIPPET\((\w+)\)", program):
        named = next(text for text in found if word in text)
        found.remove(named)
        program = program.replace(f"SNIPPET({word})", named)
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
        guide = filled(GUIDE, "docs/guide.md")
        pages = filled(PAGES, "docs/state_files.md", "docs/tiers.md", "docs/transfer.md")
        recipes = filled(RECIPES, "docs/recipes.md")
        for number, (text, more) in enumerate([*((text, []) for text in programs), *((text, LOOSE) for text in (guide, pages, recipes))]):
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
    # rustdoc and `go test` run these.
    examples = {"rust": "bindings/rust/kvcache/src/lib.rs", "go": "bindings/go/example_test.go"}
    for language, path in examples.items():
        text = re.sub(r"^//! ?", "", (ROOT / path).read_text(), flags=re.M)
        if any(shown not in text for shown in snippets(f"bindings/{language}/README.md", language)):
            sys.exit(f"readme: the {language} of bindings/{language}/README.md is not in {path}")


if __name__ == "__main__":
    main()
