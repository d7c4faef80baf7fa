/*
 * Prefill in one process, decode in another: the prompt is computed here, its keys and values go
 * there over UCX, and generation goes on there with the same bits. Without arguments it forks both
 * processes on this machine. On two machines, or as examples/c/transfer_two_hosts does:
 *
 *   transfer decode SOCKET ADDRESS      ADDRESS: of this machine, as 10.0.0.5
 *   transfer prefill SOCKET ADDRESS
 *
 * SOCKET, a path, stands in for the host program's own way to bring a ticket to the other side.
 *
 * cc transfer.c $(pkg-config --cflags --libs kvcache) -lm && ./a.out
 */
#define _POSIX_C_SOURCE 200809L
#include <kvcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS = 4, Q_HEADS = 8, KV_HEADS = 2, DIM = 64, PROMPT = 3000, STEPS = 32, SKIPPED = 77 };
#define SECOND INT64_C(1000000000)

static void check(kvc_status status, const kvc_error *err) {
  if (status == KVC_OK) return;
  fprintf(stderr, "%s: %s\n", kvc_status_name(status), err->message);
  exit(1);
}

static void require(int holds, const char *what) {
  if (holds) return;
  perror(what);
  exit(1);
}

static kvc_cache *new_cache(void) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_layer layers[LAYERS] = {{0}};
  for (int i = 0; i < LAYERS; ++i) {
    layers[i].struct_size = sizeof layers[i];
    layers[i].num_q_heads = Q_HEADS;
    layers[i].num_kv_heads = KV_HEADS;
    layers[i].k_dim = DIM;
    layers[i].k_dtype = (DLDataType){kDLBfloat, 16, 1};
  }
  kvc_config config = {
      .struct_size = sizeof config, .num_layers = LAYERS, .layers = layers, .num_pages = 256};
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  check(kvc_plan_create(&config, &plan, &err), &err);
  check(kvc_cache_create(plan, &cache, &err), &err);
  kvc_plan_destroy(plan);
  return cache;
}

/* Weights that never change: a number from -1 to 1 for a token and a place. */
static float weight(uint32_t token, uint32_t place) {
  uint32_t x = token * 2654435761u + place * 40503u;
  x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
  return (float)(int32_t)x / 2147483648.0f;
}

static void fill(float *rows, const int32_t *tokens, int64_t count, int heads, uint32_t what) {
  for (int64_t t = 0; t < count; ++t)
    for (int i = 0; i < heads * DIM; ++i)
      rows[t * heads * DIM + i] = weight((uint32_t)tokens[t], what * 4096u + (uint32_t)i);
}

static int64_t tokens_computed = 0; /* By this process. */

/* Stands in for the model: one forward of sequence 1. The next token depends on every bit of the
 * last layer's output for the last one. */
static int32_t step(kvc_cache *cache, const int32_t *tokens, int64_t count) {
  tokens_computed += count;
  static float q[PROMPT * Q_HEADS * DIM], k[PROMPT * KV_HEADS * DIM], v[PROMPT * KV_HEADS * DIM],
      out[PROMPT * Q_HEADS * DIM];
  kvc_error err = {.struct_size = sizeof err};
  const kvc_seq seq = 1;
  kvc_forward_desc desc = {
      .struct_size = sizeof desc, .num_seqs = 1, .seqs = &seq, .append_lengths = &count};
  kvc_forward *fwd = NULL;
  check(kvc_forward_begin(cache, &desc, &fwd, &err), &err);
  int64_t q_shape[3] = {count, Q_HEADS, DIM}, kv_shape[3] = {count, KV_HEADS, DIM};
  const DLDataType f32 = {kDLFloat, 32, 1};
  const DLDevice cpu = {kDLCPU, 0};
  DLTensor q_view = {.data = q, .device = cpu, .ndim = 3, .dtype = f32, .shape = q_shape};
  DLTensor k_view = {.data = k, .device = cpu, .ndim = 3, .dtype = f32, .shape = kv_shape};
  DLTensor v_view = k_view, out_view = q_view;
  v_view.data = v, out_view.data = out;
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    fill(q, tokens, count, Q_HEADS, 3 * layer);
    fill(k, tokens, count, KV_HEADS, 3 * layer + 1);
    fill(v, tokens, count, KV_HEADS, 3 * layer + 2);
    check(kvc_attn(fwd, (int32_t)layer, NULL, &q_view, &k_view, &v_view, &out_view, NULL, &err),
          &err);
  }
  check(kvc_forward_end(fwd, &err), &err);
  uint32_t hash = 2166136261u;
  const unsigned char *bytes = (const unsigned char *)&out[(count - 1) * Q_HEADS * DIM];
  for (size_t i = 0; i < sizeof(float) * Q_HEADS * DIM; ++i) hash = (hash ^ bytes[i]) * 16777619u;
  return (int32_t)(hash % 32000);
}

static void generate(kvc_cache *cache, int32_t token, int32_t answer[STEPS]) {
  for (int i = 0; i < STEPS; ++i) answer[i] = token = step(cache, &token, 1);
}

static kvc_transport *open_transport(const char *address) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_transport_desc desc = {.struct_size = sizeof desc, .engine = "ucx", .address = address};
  kvc_transport *transport = NULL;
  check(kvc_transport_open(&desc, &transport, &err), &err);
  return transport;
}

/* What the two processes tell each other by their own means. */
struct note {
  size_t ticket_len;
  unsigned char ticket[4096];
};
struct result {
  int32_t first;         /* The token that follows the prompt. */
  int32_t answer[STEPS]; /* What one process alone generates behind it. */
};

static void tell(int line, const void *data, size_t size) {
  require(write(line, data, size) == (ssize_t)size, "write");
}
static void hear(int line, void *data, size_t size) {
  for (size_t at = 0; at < size;) {
    const ssize_t got = read(line, (char *)data + at, size - at);
    require(got > 0, "the other process has gone");
    at += (size_t)got;
  }
}

static int prefill(int line, const char *address) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_cache *cache = new_cache();
  kvc_transport *transport = open_transport(address);
  struct result result;
  static int32_t prompt[PROMPT];
  for (int i = 0; i < PROMPT; ++i) prompt[i] = (i * 7919) % 32000;
  check(kvc_seq_add(cache, 1, &err), &err);
  result.first = step(cache, prompt, PROMPT);

  struct note note;
  hear(line, &note, sizeof note);
  kvc_send_desc desc = {.struct_size = sizeof desc, .seq = 1};
  desc.ticket = note.ticket, desc.ticket_len = note.ticket_len;
  kvc_transfer *transfer = NULL;
  check(kvc_transfer_send(cache, transport, &desc, &transfer, &err), &err);
  check(kvc_transfer_wait(transfer, 60 * SECOND, &err), &err);
  kvc_transfer_info info = {.struct_size = sizeof info};
  check(kvc_transfer_query(transfer, &info, &err), &err);
  printf("prefill: %d tokens computed, %.1f MB sent in %d chunks\n", (int)tokens_computed,
         (double)info.bytes_done / 1e6, (int)info.chunks_done);
  fflush(stdout);
  kvc_transfer_destroy(transfer);

  generate(cache, result.first, result.answer); /* What to compare with. */
  tell(line, &result, sizeof result);
  kvc_transport_destroy(transport);
  kvc_cache_destroy(cache);
  return 0;
}

static int decode(int line, const char *address) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_cache *cache = new_cache();
  kvc_transport *transport = open_transport(address);
  kvc_recv_desc desc = {.struct_size = sizeof desc, .seq = 1, .num_tokens = PROMPT};
  kvc_transfer *transfer = NULL;
  check(kvc_transfer_recv(cache, transport, &desc, &transfer, &err), &err);
  struct note note = {.ticket_len = sizeof note.ticket};
  check(kvc_transfer_ticket(transfer, note.ticket, &note.ticket_len, &err), &err);
  tell(line, &note, sizeof note);
  check(kvc_transfer_wait(transfer, 60 * SECOND, &err), &err);
  kvc_transfer_destroy(transfer);

  struct result expected;
  hear(line, &expected, sizeof expected);
  int32_t answer[STEPS];
  generate(cache, expected.first, answer);
  check(kvc_cache_check(cache, &err), &err);
  kvc_transport_destroy(transport);
  kvc_cache_destroy(cache);
  const int same = memcmp(answer, expected.answer, sizeof answer) == 0;
  printf("decode: %d tokens received, %d computed, all generated: %s\n", PROMPT,
         (int)tokens_computed,
         same ? "those that one process alone generates" : "OTHERS than one process alone");
  return same && tokens_computed == STEPS ? 0 : 1;
}

/* The decode side listens, the prefill side connects. */
static int line_at(const char *path, int listens) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  require(strlen(path) < sizeof at.sun_path, path);
  strcpy(at.sun_path, path);
  const int line = socket(AF_UNIX, SOCK_STREAM, 0);
  require(line >= 0, "socket");
  if (!listens) {
    for (int i = 0; connect(line, (struct sockaddr *)&at, sizeof at) != 0; ++i) {
      require(i < 100, path);
      nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return line;
  }
  require(bind(line, (struct sockaddr *)&at, sizeof at) == 0 && listen(line, 1) == 0, path);
  const int accepted = accept(line, NULL, NULL);
  require(accepted >= 0, "accept");
  close(line);
  unlink(path);
  return accepted;
}

int main(int argc, char **argv) {
  const int is_decode = argc == 4 && strcmp(argv[1], "decode") == 0;
  if (argc != 1 && !is_decode && (argc != 4 || strcmp(argv[1], "prefill") != 0)) {
    fprintf(stderr, "usage: %s [decode|prefill SOCKET ADDRESS]\n", argv[0]);
    return 2;
  }
  if (argc == 4) {
    if (!kvc_has_feature("transport.ucx")) return SKIPPED;
    const int line = line_at(argv[2], is_decode);
    return is_decode ? decode(line, argv[3]) : prefill(line, argv[3]);
  }
  /* Fork first: UCX starts threads, which a child would not have. */
  int line[2];
  require(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0, "socketpair");
  const pid_t child = fork();
  require(child >= 0, "fork");
  close(line[child == 0 ? 0 : 1]);
  const int has_ucx = kvc_has_feature("transport.ucx");
  if (child == 0) return has_ucx ? prefill(line[1], NULL) : 0;
  int status = has_ucx ? decode(line[0], NULL) : SKIPPED, other = 0;
  if (!has_ucx) puts("skipped: the library was built without libkvcache_transport_ucx.so");
  require(waitpid(child, &other, 0) == child, "waitpid");
  return status != 0 ? status : !WIFEXITED(other) || WEXITSTATUS(other) != 0;
}
