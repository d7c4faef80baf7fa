/*
 * kvcache.h - the C interface of libkvcache, the KV cache of LLM serving as a library.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * WHAT IT DOES
 *   Layer specs in, bytes and pages planned; tokens in, pages shared; Q, K, V in, attention out. Tensors cross as
 *   DLPack, so any framework shares its memory. Three ways in, one implementation:
 *     whole cache        kvc_cache_create with KVC_STORAGE_OWNED or KVC_STORAGE_BORROWED, then forwards with kvc_attn
 *     bookkeeping only   KVC_STORAGE_NONE: lengths in, page ids out; no tensor memory anywhere
 *     own kernels        kvc_kv_append or your own append, kvc_export_page_table, kvc_export_pool
 *
 * ONE STEP OF A MODEL
 *   kvc_forward_begin(cache, &desc, &fwd, &err);               which sequences grow by how many tokens
 *   for each layer: kvc_attn(fwd, layer, NULL, q, k, v, out, NULL, &err);
 *   kvc_forward_end(fwd, &err);                                 or kvc_forward_abort: as if begin had not happened
 *
 * RULES THAT HOLD EVERYWHERE
 *   Statuses    A call that can fail returns kvc_status and takes a nullable kvc_error as its last argument: filled on
 *               failure, untouched on success. The message names the argument and both values.
 *   Guarantee   Any status other than KVC_E_DEVICE leaves the cache exactly as it was before the call. Outputs are
 *               written on success only, unless a comment says otherwise.
 *   Structs     By pointer; `struct_size` first and set by the caller to sizeof; all other bytes zero means default.
 *               A caller's struct may be shorter than the library's (the missing tail counts as zero) or longer (the
 *               unknown tail must be zero, else KVC_E_VERSION). Output structs: the library writes what fits and
 *               stores the number of bytes it filled in struct_size.
 *   Arrays out  Strings and arrays are written into the caller's buffer: `*len` is its capacity in elements on entry and
 *               the needed count on return. A NULL buffer asks for the count (KVC_OK). Too small: nothing but
 *               `*len` is written, KVC_E_BUFFER_TOO_SMALL. String counts include the terminating NUL.
 *   Ownership   "borrowed for the call": not kept. "borrowed until X": must stay valid until X. "copied": free to go.
 *               "owned by caller": the caller destroys it.
 *   Tensors     Inputs are const DLTensor *, borrowed for the call. Outputs are DLTensor * allocated by the caller.
 *               data + byte_offset is honoured; NULL strides mean compact row-major; any strides are accepted but
 *               the last dimension must be contiguous; zero-size tensors may have NULL data. Checked in this
 *               order: ndim, dtype, device, shape, strides, alignment (to the element). Element types of activations
 *               (q, k, v, out): float32, float16, bfloat16, each tensor its own. Tokens are packed over the
 *               batch in the order of the forward's sequences; T = kvc_forward_num_tokens. More rows than T are
 *               padding: neither read nor written. Outputs must not overlap inputs unless a comment allows it.
 *   Threading   No global mutable state except the logger. Different caches are independent. For one cache: functions
 *               taking const kvc_cache * may run concurrently with each other and with an open forward's attention;
 *               functions taking kvc_cache * (and begin, end, abort) need external exclusion. One forward is
 *               open at a time. A handle may move between threads. A kvc_plan is immutable and freely shared.
 *   Device      Everything in this version runs on the host and is complete when the call returns; kvc_stream
 *               arguments are reserved for device back ends and ignored on the CPU.
 *   Refusals    What is not supported is refused by name (KVC_E_UNSUPPORTED). Nothing is ignored or approximated.
 *   Printing    Nothing is printed, nothing aborts, no exception crosses, no environment variable changes a result.
 *
 * LOADING AT RUN TIME
 *   dlopen with RTLD_NOW | RTLD_LOCAL, then kvc_get_api. Do not dlclose while exported tensors live.
 *
 * STABILITY
 *   Everything here is append-only within SONAME libkvcache.so.0 as soon as 0.1 is released.
 */
#ifndef KVCACHE_H_
#define KVCACHE_H_

#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header's ABI: major << 16 | minor. Compare with kvc_abi_version(). */
#define KVC_ABI_VERSION_MAJOR 0
#define KVC_ABI_VERSION_MINOR 1
#define KVC_ABI_VERSION ((uint32_t)KVC_ABI_VERSION_MAJOR << 16 | (uint32_t)KVC_ABI_VERSION_MINOR)

#if defined(_WIN32) && !defined(KVC_STATIC)
#  ifdef KVC_BUILDING
#    define KVC_API __declspec(dllexport)
#  else
#    define KVC_API __declspec(dllimport)
#  endif
#elif defined(__GNUC__)
#  define KVC_API __attribute__((visibility("default")))
#else
#  define KVC_API
#endif

#if defined(__GNUC__)
#  define KVC_WARN_UNUSED __attribute__((warn_unused_result))
#else
#  define KVC_WARN_UNUSED
#endif

#ifdef __cplusplus
#  define KVC_NOEXCEPT noexcept
#else
#  define KVC_NOEXCEPT
#endif

/* Marks a pointer that may be NULL; every other pointer must not be. */
#define KVC_NULLABLE

/* ==================================================================================================== */
/* Basic types                                                                                           */
/* ==================================================================================================== */

typedef struct kvc_plan kvc_plan;       /* planned memory of a model: immutable */
typedef struct kvc_cache kvc_cache;     /* pages and sequences */
typedef struct kvc_forward kvc_forward; /* one open step over a batch; belongs to its cache */

typedef int64_t kvc_seq;   /* sequence id, chosen by the caller, >= 0 */
typedef void *kvc_stream;  /* device stream of the host program; ignored on the CPU */

/* Result of a call. Values never change; the list only grows at the end. */
typedef int32_t kvc_status;
enum {
  KVC_OK = 0,
  KVC_E_INVALID_ARGUMENT = 1,  /* NULL, negative, contradictory */
  KVC_E_INVALID_STATE = 2,     /* attention without an open forward, on a layer that is not there or of another kind */
  KVC_E_NOT_FOUND = 3,         /* unknown sequence */
  KVC_E_ALREADY_EXISTS = 4,    /* sequence id taken */
  KVC_E_OUT_OF_RANGE = 5,      /* position, length, count, index beyond its limit */
  KVC_E_SHAPE = 6,             /* tensor rank, shape, stride or alignment not accepted */
  KVC_E_DTYPE = 7,             /* tensor element type not accepted */
  KVC_E_DEVICE_MISMATCH = 8,   /* tensor lives on another device than the cache */
  KVC_E_UNSUPPORTED = 9,       /* meaningful, but not available in this build, on this device, in this combination */
  KVC_E_NO_PAGES = 10,         /* full now; expected; nothing changed; kvc_error.detail = pages missing */
  KVC_E_NEVER_FITS = 11,       /* could not be served even by an empty cache */
  KVC_E_NO_MEMORY = 12,        /* host or device allocation failed */
  KVC_E_BUSY = 13,             /* object is in use: open forward, exported memory */
  KVC_E_BUFFER_TOO_SMALL = 14, /* needed size returned */
  KVC_E_VERSION = 15,          /* struct tail or version not understood */
  KVC_E_CORRUPT = 16,          /* an invariant does not hold */
  KVC_E_IO = 17,
  KVC_E_TIMEOUT = 18,
  KVC_E_PEER = 19,
  KVC_E_CANCELLED = 20,
  KVC_E_DEVICE = 21,           /* device failure, sticky; sys_code = the device library's code */
  KVC_E_INTERNAL = 22          /* a defect in the library */
};

/* Details of a failure: 512 bytes, caller-owned, no allocation. struct_size 0 is taken as sizeof(kvc_error). */
typedef struct kvc_error {
  size_t struct_size;
  kvc_status status;  /* the status the call returned */
  int32_t sys_code;   /* errno or a device library's code, else 0 */
  int64_t detail;     /* a number that belongs to the status: missing pages, offending id, needed bytes */
  char message[488];  /* NUL-terminated UTF-8 */
} kvc_error;

/* Head of a chained option struct. Unknown or repeated types are refused, never skipped. No types are defined yet. */
typedef struct kvc_ext {
  int32_t type;
  const struct kvc_ext *next;
} kvc_ext;

/* ==================================================================================================== */
/* Library                                                                                               */
/* ==================================================================================================== */

/* Version of the loaded library's ABI, major << 16 | minor.
 * Threading: any. Device: host only. */
KVC_API uint32_t kvc_abi_version(void) KVC_NOEXCEPT;

/* Version and build, for example "0.1.0 cpu". Static storage.
 * Threading: any. Device: host only. */
KVC_API const char *kvc_version_string(void) KVC_NOEXCEPT;

/* Name of a status, for example "KVC_E_NO_PAGES"; "KVC_E_UNKNOWN" for a value this library does not know. Never NULL.
 * Threading: any. Device: host only. */
KVC_API const char *kvc_status_name(kvc_status status) KVC_NOEXCEPT;

/* 1 when the build has a feature, 0 when it has not or does not know the name. Names: "cpu", "cuda", "f32", "f16", "bf16",
 * "rope.half", "rope.interleaved", "softcap", "sinks", "alibi", "bias", "storage.borrowed", "storage.none",
 * "layout.page_first", "resize", "export".
 * `name`: borrowed for the call; NULL gives 0.
 * Threading: any. Device: host only. */
KVC_API int32_t kvc_has_feature(const char *KVC_NULLABLE name) KVC_NOEXCEPT;

/* Instruction set of the CPU kernels. AUTO takes the best the machine has. REFERENCE computes in double precision: slow, for
 * comparing. Results differ between instruction sets by rounding only. */
typedef int32_t kvc_cpu_isa;
enum {
  KVC_CPU_ISA_AUTO = 0,
  KVC_CPU_ISA_REFERENCE = 1,
  KVC_CPU_ISA_SCALAR = 2,
  KVC_CPU_ISA_AVX2 = 3,
  KVC_CPU_ISA_AVX512 = 4,
  KVC_CPU_ISA_AVX512_BF16 = 5
};

/* Bits of kvc_device_caps.dtypes. */
enum { KVC_DTYPE_F32 = 1, KVC_DTYPE_F16 = 2, KVC_DTYPE_BF16 = 4 };

typedef struct kvc_device_caps {
  size_t struct_size;
  int32_t backend_present; /* 1: caches can be created on this device */
  int32_t arch;            /* CPU: best kvc_cpu_isa of the machine; CUDA: 10 * compute capability; 0: unknown */
  int32_t num_cores;       /* CPU: hardware threads this process may use */
  int32_t page_granularity;/* bytes of a memory page, 0: unknown */
  uint64_t dtypes;         /* storage types, KVC_DTYPE_* bits */
  uint64_t isas;           /* CPU: bit i set: kvc_cpu_isa i can be chosen */
  uint64_t memory_bytes;   /* physical memory, 0: unknown */
  uint64_t memory_free_bytes;
  char name[64];
} kvc_device_caps;

/* What the library can do on a device. A device without a back end in this build is not an error: backend_present is 0.
 * KVC_E_INVALID_ARGUMENT: out NULL or struct_size too small. KVC_E_OUT_OF_RANGE: device id that does not exist.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_device_query(DLDevice device, kvc_device_caps *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_log_level;
enum { KVC_LOG_DEBUG = 0, KVC_LOG_INFO = 1, KVC_LOG_WARNING = 2, KVC_LOG_ERROR = 3 };

/* `message` is borrowed for the call. May be called from any thread; must not call the library and must not throw. */
typedef void (*kvc_log_fn)(void *user, kvc_log_level level, const char *message);

/* Send messages of at least `min_level` to `fn`; NULL: silence, the initial state. `user` is borrowed until the logger is replaced.
 * KVC_E_INVALID_ARGUMENT: unknown level.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_set_logger(kvc_log_fn KVC_NULLABLE fn, void *KVC_NULLABLE user, kvc_log_level min_level,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Plan: layer specs to bytes and pages; no device is touched                                             */
/* ==================================================================================================== */

typedef int32_t kvc_layer_kind;
enum {
  KVC_LAYER_ATTENTION = 0, /* K and V per token; the only kind of this version, the others are refused */
  KVC_LAYER_MLA = 1,
  KVC_LAYER_CROSS = 2,
  KVC_LAYER_STATE = 3,
  KVC_LAYER_SHARED = 4,
  KVC_LAYER_NONE = 5
};

typedef int32_t kvc_quant;
enum { KVC_QUANT_NONE = 0, KVC_QUANT_PER_TENSOR = 1, KVC_QUANT_PER_TOKEN_HEAD = 2 }; /* NONE only in this version */

typedef int32_t kvc_rope_mode;
enum {
  KVC_ROPE_NONE = 0,      /* the library rotates nothing */
  KVC_ROPE_ON_APPEND = 1, /* K is stored rotated, q is rotated when it attends */
  KVC_ROPE_ON_READ = 2    /* refused in this version */
};

typedef int32_t kvc_rope_style;
enum {
  KVC_ROPE_HALF = 0,       /* pairs (i, i + rotary_dim/2): Llama, NeoX */
  KVC_ROPE_INTERLEAVED = 1 /* pairs (2i, 2i + 1): GPT-J, original RoPE */
};

/* Rotary embedding (Su et al., arXiv:2104.09864). Pair i of the first rotary_dim elements at position p is turned by
 *   p * scale * theta^(-2i/rotary_dim) / freq_factors[i].
 * Wherever a layer has a rope mode, the caller hands over q and k unrotated. */
typedef struct kvc_rope {
  size_t struct_size;
  kvc_rope_mode mode;
  kvc_rope_style style;
  int32_t rotary_dim;       /* even, <= k_dim; 0: k_dim */
  int32_t num_freq_factors; /* 0, or rotary_dim/2 */
  double theta;             /* 0: 10000 */
  double scale;             /* factor on the position; 0: 1 */
  const float *KVC_NULLABLE freq_factors; /* copied by kvc_plan_create; > 0 */
} kvc_rope;

/* One layer of the model. In an array, the first element's struct_size is the stride of all. */
typedef struct kvc_layer {
  size_t struct_size;
  kvc_layer_kind kind;
  int32_t num_q_heads;  /* multiple of num_kv_heads; 0: num_kv_heads */
  int32_t num_kv_heads; /* >= 1 */
  int32_t k_dim;        /* elements of a K (and q) head, 1..512 */
  int32_t v_dim;        /* elements of a V (and out) head, 1..512; 0: k_dim */
  kvc_quant quant;
  DLDataType k_dtype;   /* storage type: float32, float16, bfloat16; all zero: bfloat16 */
  DLDataType v_dtype;   /* all zero: k_dtype */
  const kvc_rope *KVC_NULLABLE rope; /* copied by kvc_plan_create; NULL: none */
  int64_t window;       /* 0: all keys. Others are refused in this version */
  int64_t chunk;        /* 0. Others are refused in this version */
  int32_t source_layer; /* 0. Others are refused in this version */
  int32_t latent_rank;  /* 0. Others are refused in this version */
  int32_t latent_rope_dim; /* 0. Others are refused in this version */
  int32_t reserved;     /* 0 */
} kvc_layer;

typedef int32_t kvc_storage;
enum {
  KVC_STORAGE_OWNED = 0,    /* the library allocates the pool, or asks `allocator` for it */
  KVC_STORAGE_BORROWED = 1, /* the caller's tensors are the pool, see kvc_config.pool_tensors */
  KVC_STORAGE_NONE = 2      /* no tensor memory: bookkeeping only */
};

typedef int32_t kvc_pool_layout;
enum {
  KVC_POOL_LAYER_FIRST = 0, /* [layer][page]: the pages of one layer lie together; fastest to read */
  KVC_POOL_PAGE_FIRST = 1   /* [page][layer]: all layers of a page lie together; one copy moves a page */
};
/* Inside a page each layer has, in both layouts: K [num_kv_heads][page_size][k_dim], then V [num_kv_heads][page_size][v_dim]. */

/* Memory for the pool from the host program. Neither function may throw; free may run on any thread (an export's deleter). */
typedef struct kvc_allocator {
  size_t struct_size;
  void *KVC_NULLABLE user;
  /* Returns a block of at least `bytes` aligned to `alignment`, or NULL. The content need not be zero. */
  void *(*alloc)(void *user, DLDevice device, uint64_t bytes, uint64_t alignment);
  void (*free)(void *user, DLDevice device, void *ptr, uint64_t bytes);
} kvc_allocator;

/* Threads of the host program. parallel_for calls fn(arg, task, worker) exactly once for each task in [0, num_tasks), any order, any
 * threads, and returns when all are done; 0 <= worker < concurrency(user), and no two running tasks of one parallel_for share a worker.
 * fn does not throw; parallel_for and concurrency must not throw either. Caches that share an executor may call it at the same time. */
typedef struct kvc_executor {
  size_t struct_size;
  void *KVC_NULLABLE user;
  int32_t (*concurrency)(void *user); /* constant, >= 1 */
  void (*parallel_for)(void *user, int64_t num_tasks, void (*fn)(void *arg, int64_t task, int32_t worker), void *arg);
} kvc_executor;

/* What to plan. Zero-initialise, set struct_size (or call kvc_config_init), then the fields you need. */
typedef struct kvc_config {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext; /* NULL: no extension is defined yet */
  uint64_t flags;                  /* 0 */
  DLDevice device;                 /* all zero: the CPU */
  int32_t page_size;               /* tokens per page, 1..65536; 0: 16 */
  int32_t num_layers;              /* layers of the whole model, >= 1 */
  const kvc_layer *layers;         /* [num_layers], copied */
  int32_t layer_begin, layer_end;  /* pipeline slice kept here, half open; both 0: all. Layer ids in calls stay global */
  int32_t max_seqs;                /* sequences in one forward at most; 0: no limit */
  int32_t forwards_in_flight;      /* 0: 1. Others are refused in this version */
  int64_t max_tokens_per_forward;  /* 0: no limit */
  int64_t max_seq_len;             /* longest sequence; 0: what the pages hold. The plan is refused when the pages can't hold one */
  int64_t num_pages;               /* num_pages or byte_budget, not both. Both 0: with borrowed storage the tensors' pages, else a plan
                                      that answers questions but makes no cache */
  uint64_t byte_budget;            /* bytes for the pool: num_pages = byte_budget / page_bytes */
  uint64_t host_byte_budget;       /* 0. Others are refused in this version */
  kvc_storage storage;
  kvc_pool_layout pool_layout;
  /* Borrowed storage; borrowed until kvc_cache_destroy and until the deleter of every export has run. LAYER_FIRST: one tensor
   * per layer of the slice; PAGE_FIRST: one tensor. Dimension 0 counts pages and may have any stride of at least one page; the rest is
   * compact and holds exactly one page of the layer (or of all layers). Any dtype of whole bytes; rank >= 1; address and page stride aligned to
   * the storage elements. One cache at a time may be made of a plan with borrowed tensors. */
  const DLTensor *const *KVC_NULLABLE pool_tensors;
  int32_t num_pool_tensors;
  int32_t num_threads;             /* own CPU threads including the caller's; 0: one per core; 1: the caller's only */
  kvc_cpu_isa cpu_isa;
  int32_t reserved;                /* 0 */
  const kvc_allocator *KVC_NULLABLE allocator; /* copied; `user` borrowed until the cache and all its exports are gone */
  const kvc_executor *KVC_NULLABLE executor;   /* copied; `user` borrowed until kvc_cache_destroy; replaces own threads */
} kvc_config;

/* Zero `struct_size` bytes and set the size field. Pass sizeof(kvc_config).
 * KVC_E_INVALID_ARGUMENT: config NULL, or struct_size cannot hold the size field.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_config_init(kvc_config *config, size_t struct_size) KVC_NOEXCEPT;

/* Check a configuration and plan its memory. `config` and all it points at are copied, except pool tensors' data and the `user`
 * pointers. `*out`: owned by caller, see kvc_plan_destroy; a cache keeps what it needs of it.
 * KVC_E_INVALID_ARGUMENT: contradictory or missing fields; a budget that holds no page (detail = bytes of one page).
 * KVC_E_NEVER_FITS: the pages can't hold one sequence of max_seq_len (detail = the longest that fits).
 * KVC_E_OUT_OF_RANGE: a field beyond its limit, or sizes that overflow. KVC_E_UNSUPPORTED: names field and value.
 * KVC_E_SHAPE, KVC_E_DEVICE_MISMATCH: pool tensors. KVC_E_VERSION: unknown struct tail. KVC_E_NO_MEMORY.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_create(const kvc_config *config, kvc_plan **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT
    KVC_WARN_UNUSED;

/* NULL is accepted. Caches made from the plan stay valid.
 * Threading: any, once. Device: host only. */
KVC_API void kvc_plan_destroy(kvc_plan *KVC_NULLABLE plan) KVC_NOEXCEPT;

typedef struct kvc_plan_info {
  size_t struct_size;
  int32_t page_size;        /* tokens */
  int32_t num_layers;       /* of the whole model */
  int32_t layer_begin, layer_end;
  int32_t num_groups;       /* page tables per sequence; 1 in this version */
  int32_t reserved;
  int64_t num_pages;
  uint64_t page_bytes;      /* one page, all layers of the slice */
  uint64_t bytes_per_token; /* one token, all layers of the slice */
  uint64_t pool_bytes;      /* num_pages * page_bytes */
  int64_t max_tokens;       /* tokens all pages hold together */
  int64_t max_seq_len;      /* longest single sequence */
} kvc_plan_info;

/* KVC_E_INVALID_ARGUMENT: NULL, struct_size too small.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_info_get(const kvc_plan *plan, kvc_plan_info *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef struct kvc_layer_info {
  size_t struct_size;
  kvc_layer_kind kind;
  int32_t group;            /* page table this layer reads: index for kvc_export_page_table */
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim;
  DLDataType k_dtype, v_dtype;
  uint64_t page_bytes;      /* this layer's part of one page */
  uint64_t k_page_bytes;    /* its K part; V follows */
  uint64_t v_page_bytes;
  uint64_t bytes_per_token;
} kvc_layer_info;

/* A layer as planned, defaults filled in. `layer`: global id inside the slice.
 * KVC_E_OUT_OF_RANGE: no such layer here.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_layer_get(const kvc_plan *plan, int32_t layer, kvc_layer_info *out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Pages that a byte budget holds (may be 0).
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_pages_for(const kvc_plan *plan, uint64_t byte_budget, int64_t *out_pages,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Longest single request, in tokens, that a byte budget holds (may be 0).
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_max_tokens(const kvc_plan *plan, uint64_t byte_budget, int64_t *out_tokens,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Pages that one request of `num_tokens` >= 0 tokens needs when it shares nothing.
 * KVC_E_OUT_OF_RANGE: negative.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_request_pages(const kvc_plan *plan, int64_t num_tokens, int64_t *out_pages,
                                          kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The plan as a table for people; two-call string, see "Arrays out" above.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_describe(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The plan as JSON: page_size, num_pages, page_bytes, bytes_per_token, pool_bytes, max_tokens, max_seq_len, pool_layout, storage,
 * layers[]. Two-call string. Field names may be added.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_to_json(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Cache                                                                                                 */
/* ==================================================================================================== */

/* Make an empty cache. `plan`: borrowed for the call. `*out`: owned by caller.
 * Owned memory is reserved, not touched: it costs physical memory as pages are written.
 * KVC_E_NO_MEMORY: the pool or the tables could not be allocated. KVC_E_INVALID_ARGUMENT: a plan without pages, a bad executor or
 * allocator. KVC_E_UNSUPPORTED: config.cpu_isa is not available on this machine.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_cache_create(const kvc_plan *plan, kvc_cache **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT
    KVC_WARN_UNUSED;

/* NULL is accepted. An open forward is dropped. Exported tensors stay valid until their deleters run.
 * Threading: exclusive. Device: host only. */
KVC_API void kvc_cache_destroy(kvc_cache *KVC_NULLABLE cache) KVC_NOEXCEPT;

/* Forget all sequences; page data is not touched.
 * KVC_E_BUSY: a forward is open.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_cache_clear(kvc_cache *cache, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Grow the pool, or shrink it when the pages above are free. Page ids and contents stay. A tensor exported before keeps its shape; after a
 * shrink the dropped pages in it may read zero.
 * KVC_E_BUSY: a forward is open; a page above is in use (detail = its id); or the pool has to move while exports of it live.
 * KVC_E_OUT_OF_RANGE: num_pages < 1 or too large. KVC_E_UNSUPPORTED: borrowed storage. KVC_E_NO_MEMORY.
 * KVC_E_NEVER_FITS: the configuration's max_seq_len would no longer fit (detail = the longest that fits).
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_cache_resize(kvc_cache *cache, int64_t num_pages, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef struct kvc_stats {
  size_t struct_size;
  int64_t num_seqs;
  int64_t total_length;      /* tokens over all sequences; a shared token counts once per sequence */
  int64_t pages_total;
  int64_t pages_free;
  int64_t pages_used;        /* held by sequences or the open forward */
  int64_t pages_shared;      /* used pages that more than one sequence holds */
  int64_t pages_peak;        /* largest pages_used since creation */
  uint64_t page_bytes;
  uint64_t pool_bytes;
  uint64_t forwards;         /* ended */
  uint64_t forwards_aborted;
  uint64_t tokens_appended;  /* by ended forwards */
  uint64_t pages_copied;     /* copy-on-write copies */
  uint64_t no_pages;         /* begins answered KVC_E_NO_PAGES */
  uint64_t step_bytes;       /* last begin: bytes that a device back end is sent (sequence deltas, new page ids) */
  uint64_t step_copies;      /* last begin: number of host to device copies */
} kvc_stats;

/* Threading: shared. Device: host only. */
KVC_API kvc_status kvc_cache_stats_get(const kvc_cache *cache, kvc_stats *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Pages not held by any sequence or forward; -1 when cache is NULL.
 * Threading: shared. Device: host only. */
KVC_API int64_t kvc_cache_free_pages(const kvc_cache *cache) KVC_NOEXCEPT;

/* Tokens over all sequences, each sequence counting its shared prefix; -1 when cache is NULL.
 * Threading: shared. Device: host only. */
KVC_API int64_t kvc_cache_total_length(const kvc_cache *cache) KVC_NOEXCEPT;

/* 1: no sequence exists and every page is free. 0 otherwise, also when cache is NULL.
 * Threading: shared. Device: host only. */
KVC_API int32_t kvc_cache_is_empty(const kvc_cache *cache) KVC_NOEXCEPT;

/* Recount everything and compare: reference counts, free list, lengths, tables. O(pages).
 * KVC_E_CORRUPT: the message names the page or the sequence.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_cache_check(const kvc_cache *cache, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Sequences: host only, never wait for a device                                                         */
/* ==================================================================================================== */
/* Sequences of the open forward are locked: remove, fork from, and pop answer KVC_E_BUSY. Others may change meanwhile. */

/* Add an empty sequence. Never fails for capacity.
 * KVC_E_INVALID_ARGUMENT: seq < 0. KVC_E_ALREADY_EXISTS. KVC_E_NO_MEMORY.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_add(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Remove a sequence; any order is legal, shared pages live on while another sequence uses them.
 * KVC_E_NOT_FOUND. KVC_E_BUSY: in the open forward.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_remove(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Add `child` with the first `pos` tokens of `parent` (-1: all). Nothing is copied: pages are shared; a partial last page is copied by whoever
 * appends to it first (kvc_seq_can_append counts that page).
 * KVC_E_NOT_FOUND: parent. KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT: child. KVC_E_OUT_OF_RANGE: pos. KVC_E_BUSY. KVC_E_NO_MEMORY.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_fork(kvc_cache *cache, kvc_seq parent, kvc_seq child, int64_t pos,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Drop the last `n` tokens, 0 <= n <= length, also past a fork point; siblings keep theirs.
 * KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: n. KVC_E_BUSY.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_pop(kvc_cache *cache, kvc_seq seq, int64_t n, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Committed tokens of a sequence; those of an open forward count from kvc_forward_end on.
 * KVC_E_NOT_FOUND.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_length(const kvc_cache *cache, kvc_seq seq, int64_t *out_length,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef struct kvc_seq_info {
  size_t struct_size;
  int64_t length;           /* committed tokens */
  int64_t first_position;   /* first kept position; -1: empty */
  int64_t last_position;    /* last kept position; -1: empty */
  int64_t num_pages;
  int64_t num_shared_pages; /* of these, held by other sequences too */
  int64_t window;           /* 0: none */
  int64_t sink;             /* 0: none */
  int32_t in_forward;       /* 1: in the open forward */
  int32_t reserved;
} kvc_seq_info;

/* KVC_E_NOT_FOUND. O(pages of the sequence).
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_info_get(const kvc_cache *cache, kvc_seq seq, kvc_seq_info *out,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* All sequence ids, ascending; two-call array.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_list(const kvc_cache *cache, kvc_seq *KVC_NULLABLE ids, size_t *count,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Would kvc_forward_begin with these `n` sequences and append lengths find its pages? KVC_OK and *out_missing_pages = 0: yes; > 0: that
 * many pages are missing now. Counts copy-on-write pages. Arrays borrowed for the call.
 * KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT (n = 0, duplicate ids, lengths < 1), KVC_E_OUT_OF_RANGE (limits of the configuration),
 * KVC_E_NEVER_FITS: as begin. KVC_E_BUSY: a sequence of the open forward.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_can_append(const kvc_cache *cache, size_t n, const kvc_seq *seqs, const int64_t *lengths,
                                      int64_t *out_missing_pages, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_seq_op;
enum { KVC_SEQ_FORK = 0, KVC_SEQ_POP = 1 };

/* Could the sequence be forked at, or popped back to, position `pos` (-1: its end)? *out_nearest is the nearest position where it could:
 * `pos` itself when yes.
 * KVC_E_NOT_FOUND. KVC_E_UNSUPPORTED: unknown op. KVC_E_OUT_OF_RANGE: pos < -1. KVC_E_BUSY: in the open forward.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_can(const kvc_cache *cache, kvc_seq seq, kvc_seq_op op, int64_t pos, int64_t *out_nearest,
                               kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Forward: one step over a batch                                                                        */
/* ==================================================================================================== */

typedef struct kvc_forward_desc {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;                 /* NULL: no extension is defined yet */
  kvc_stream KVC_NULLABLE stream;                  /* ignored on the CPU */
  size_t num_seqs;                                 /* >= 1 */
  const kvc_seq *seqs;                             /* [num_seqs], distinct; borrowed for the call */
  const int64_t *append_lengths;                   /* [num_seqs], >= 1; borrowed for the call */
  const int32_t *KVC_NULLABLE tree_parents;        /* NULL. Others are refused in this version */
  const int32_t *KVC_NULLABLE tokens;              /* NULL. Others are refused in this version */
  uint64_t flags;                                  /* 0 */
} kvc_forward_desc;

/* Open a step: check everything, reserve pages, make private what the new tokens share. Prefill, chunked prefill and decode mix freely.
 * `*out`: valid until kvc_forward_end or kvc_forward_abort; belongs to the cache.
 * KVC_E_BUSY: a forward is open. KVC_E_NOT_FOUND: sequence. KVC_E_INVALID_ARGUMENT: empty batch, duplicate id, a length < 1.
 * KVC_E_OUT_OF_RANGE: more sequences or tokens than the configuration allows.
 * KVC_E_NO_PAGES: full now, detail = pages missing. KVC_E_NEVER_FITS: one sequence alone would exceed the pool or max_seq_len.
 * KVC_E_UNSUPPORTED, KVC_E_VERSION, KVC_E_NO_MEMORY.
 * Threading: exclusive. Device: host only on the CPU. */
KVC_API kvc_status kvc_forward_begin(kvc_cache *cache, const kvc_forward_desc *desc, kvc_forward **out,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT KVC_WARN_UNUSED;

/* New tokens of the whole batch (T); -1 when fwd is NULL or no longer open.
 * Threading: shared. Device: host only. */
KVC_API int64_t kvc_forward_num_tokens(const kvc_forward *fwd) KVC_NOEXCEPT;

/* Position of each new token: `out` int32 [>= T].
 * KVC_E_INVALID_STATE: not open. KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH.
 * Threading: shared. Device: complete on return. */
KVC_API kvc_status kvc_forward_positions(kvc_forward *fwd, DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Make the new tokens part of their sequences. The handle is dead afterwards. Every layer should have been appended to (by kvc_attn,
 * kvc_kv_append, or the host's own kernels): end does not check it, and slots that nobody wrote hold whatever was there before.
 * KVC_E_INVALID_STATE: not open (a dead handle is recognised as long as the cache lives and few forwards have passed).
 * Threading: exclusive. Device: host only on the CPU. */
KVC_API kvc_status kvc_forward_end(kvc_forward *fwd, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Undo the begin: lengths, pages, tables as before; whatever was written to the new slots is forgotten. NULL is accepted.
 * KVC_E_INVALID_STATE: not open.
 * Threading: exclusive. Device: host only on the CPU. */
KVC_API kvc_status kvc_forward_abort(kvc_forward *KVC_NULLABLE fwd, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Attention, inside a forward                                                                           */
/* ==================================================================================================== */
/* The order of layers is free; calling a layer twice rewrites the same slots. Accumulation is float32 (REFERENCE: float64).
 * Common statuses: KVC_E_INVALID_STATE: forward not open, layer not in this cache or of another kind. KVC_E_UNSUPPORTED: the
 * cache has no storage; an option is not available. KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH: a tensor.
 * KVC_E_NO_MEMORY: workspace. Nothing is written then. */

/* Bits of kvc_attn_opt.flags. */
enum {
  /* The same call gives the same bits. Always so on the CPU. */
  KVC_ATTN_DETERMINISTIC = 1,
  /* A token's output does not depend on the other sequences of the batch, nor on how its prompt was cut into forwards. The former
   * holds on the CPU without the flag; the flag makes decode steps use the arithmetic of prefill. */
  KVC_ATTN_BATCH_INVARIANT = 2
};

/* Options of one attention call; NULL: all defaults. For query position p, key position j, head h:
 *   s = scale * (q . k);   with soft_cap c > 0: s = c * tanh(s / c)
 *   s = s - alibi_slopes[h] * (p - j) + bias[h][t][j]
 *   O = sum_j exp(s) v_j / (sum_j exp(s) + exp(sinks[h])),   LSE = ln sum_j exp(s)
 * Soft cap: Gemma-2; ALiBi: Press et al., arXiv:2108.12409; sinks: gpt-oss. */
typedef struct kvc_attn_opt {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;             /* NULL: no extension is defined yet */
  uint64_t flags;                              /* KVC_ATTN_* */
  float scale;                                 /* 0: 1/sqrt(k_dim) */
  float soft_cap;                              /* 0: off; >= 0 */
  int64_t window;                              /* 0. Others are refused in this version */
  const DLTensor *KVC_NULLABLE sinks;          /* float32 [num_q_heads]: one more term of O's denominator */
  const DLTensor *KVC_NULLABLE alibi_slopes;   /* float32 [num_q_heads] */
  /* Additive bias, float32 [>= T, J] or [num_q_heads, >= T, J]: column j belongs to the key at absolute position j, J >= the longest
   * sequence of the batch with its new tokens. -inf masks a key; its K and V may then hold anything. */
  const DLTensor *KVC_NULLABLE bias;
} kvc_attn_opt;

/* Append k and v (when given), then attend: new token i of a sequence sees every token up to and including itself.
 * q [>= T, num_q_heads, k_dim], k [>= T, num_kv_heads, k_dim], v [>= T, num_kv_heads, v_dim], out [>= T, num_q_heads, v_dim],
 * lse float32 [>= T, num_q_heads], natural logarithm, real keys only (sinks do not count). A row that sees no key: out 0, lse -inf.
 * k and v both NULL: the slots of this forward were filled before by kvc_kv_append (KVC_E_INVALID_STATE when not, unless the host can
 * write the pool itself: borrowed or exported).
 * Threading: one call at a time per forward. Device: complete on return. */
KVC_API kvc_status kvc_attn(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                            const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v, DLTensor *out,
                            DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_attn on one packed tensor qkv [>= T, num_q_heads + 2*num_kv_heads, k_dim]: q heads, then k heads, then v heads.
 * KVC_E_UNSUPPORTED: k_dim differs from v_dim.
 * Threading: one call at a time per forward. Device: complete on return. */
KVC_API kvc_status kvc_attn_fused_qkv(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
                                      const DLTensor *qkv, DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attention among the new tokens only: causal inside each sequence; nothing is appended and no page is read. k and v are rounded to the
 * layer's storage type and rotated as an append would do, so that merging with kvc_attn_cached equals kvc_attn.
 * Sinks enter the denominator of this part alone; to merge parts of a model with sinks, leave them out of both and multiply the
 * merged output by 1 / (1 + exp(sinks[h] - lse)).
 * Threading: one call at a time per forward. Device: complete on return. */
KVC_API kvc_status kvc_attn_self(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                 const DLTensor *k, const DLTensor *v, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The new queries over the tokens that were cached before this forward: all of them, for each new token. Nothing is appended.
 * A sequence that was empty: out 0, lse -inf.
 * Threading: one call at a time per forward. Device: complete on return. */
KVC_API kvc_status kvc_attn_cached(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                   DLTensor *out, DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Merge two partial attentions over disjoint keys, in place into (out, lse): weights exp(lse) (Dao et al., FlashDecoding).
 * out, other_out [>= T, H, D], any activation types; lse, other_lse float32 [>= T, H]. A part with lse -inf does not count.
 * Threading: one call at a time per forward. Device: complete on return. */
KVC_API kvc_status kvc_attn_merge(kvc_forward *fwd, DLTensor *out, DLTensor *lse, const DLTensor *other_out,
                                  const DLTensor *other_lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Write k [>= T, num_kv_heads, k_dim] and v [>= T, num_kv_heads, v_dim] into the slots of this forward: rotated when the layer's rope mode
 * is ON_APPEND, rounded to nearest even to the storage types.
 * Threading: one call at a time per forward. Device: complete on return. */
KVC_API kvc_status kvc_kv_append(kvc_forward *fwd, int32_t layer, const DLTensor *k, const DLTensor *v,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copy a sequence's K and V of one layer, as stored, into k_out [>= n, num_kv_heads, k_dim] and v_out [>= n, num_kv_heads, v_dim],
 * n = its length including this forward's new tokens. Either output may be NULL, not both. Any sequence of the cache.
 * KVC_E_NOT_FOUND: seq. KVC_E_INVALID_STATE: the sequence grows in this forward and nothing was appended to the layer (as kvc_attn).
 * Threading: one call at a time per forward. Device: complete on return. */
KVC_API kvc_status kvc_kv_gather(kvc_forward *fwd, int32_t layer, kvc_seq seq, DLTensor *KVC_NULLABLE k_out,
                                 DLTensor *KVC_NULLABLE v_out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Debug: prove equality with another cache                                                              */
/* ==================================================================================================== */

/* Copy the committed tokens [begin, end) of a sequence, all layers of the slice, K as stored (rotated when ON_APPEND):
 * k [layers, end - begin, num_kv_heads, k_dim], v [layers, end - begin, num_kv_heads, v_dim], any activation type.
 * When layers differ, the heads and dims of the tensors are the largest ones and the rest of a smaller layer is left as it is. Either may be NULL.
 * KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: not 0 <= begin <= end <= length. KVC_E_UNSUPPORTED: no storage. KVC_E_SHAPE, KVC_E_DTYPE.
 * Threading: shared. Device: complete on return. */
KVC_API kvc_status kvc_debug_get_kv(const kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end, DLTensor *KVC_NULLABLE k,
                                    DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The other way: overwrite the committed tokens [begin, begin + n), n = dimension 1 of k and v, with values as they are to be
 * stored (not rotated again). Shared pages are made private first, so siblings keep theirs.
 * KVC_E_NO_PAGES: for that. KVC_E_BUSY: in the open forward. Others as kvc_debug_get_kv.
 * Threading: exclusive. Device: complete on return. */
KVC_API kvc_status kvc_debug_set_kv(kvc_cache *cache, kvc_seq seq, int64_t begin, const DLTensor *KVC_NULLABLE k,
                                    const DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Zero-copy export                                                                                      */
/* ==================================================================================================== */
/* `*out`: owned by caller, released by its deleter (any thread, also after kvc_cache_destroy). */

typedef int32_t kvc_pool_kind;
enum {
  KVC_POOL_K = 0,    /* [num_pages, num_kv_heads, page_size, k_dim], strided view */
  KVC_POOL_V = 1,    /* [num_pages, num_kv_heads, page_size, v_dim], strided view */
  KVC_POOL_KV = 2,   /* [num_pages, 2, num_kv_heads, page_size, dim]; needs equal dims and dtypes of K and V */
  KVC_POOL_BYTES = 3 /* uint8 [num_pages, bytes of the layer's part of a page] */
};

/* The pool memory of one layer, writable, shared.
 * KVC_E_OUT_OF_RANGE: layer. KVC_E_UNSUPPORTED: no storage, or KV of unequal K and V. KVC_E_INVALID_ARGUMENT: kind.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_export_pool(kvc_cache *cache, int32_t layer, kvc_pool_kind kind,
                                   struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_table_kind;
enum {
  KVC_TABLE_INDPTR = 0,        /* int32 [B+1]: CSR row pointer into INDICES */
  KVC_TABLE_INDICES = 1,       /* int32 [sum of pages]: page ids, sequence after sequence */
  KVC_TABLE_LAST_PAGE_LEN = 2, /* int32 [B]: tokens in the last page, 1..page_size */
  KVC_TABLE_BLOCK_TABLE = 3,   /* int32 [B, most pages]: page ids, padded with -1 */
  KVC_TABLE_SLOT_MAPPING = 4,  /* int64 [T]: page * page_size + offset of each new token */
  KVC_TABLE_SEQ_LENS = 5,      /* int32 [B]: length with the new tokens */
  KVC_TABLE_QO_INDPTR = 6      /* int32 [B+1]: CSR row pointer into the packed tokens */
};

/* The page tables of the open forward's B sequences, as they are with the new tokens; a read-only snapshot.
 * `group`: 0 in this version. KVC_E_OUT_OF_RANGE: group. KVC_E_INVALID_ARGUMENT: kind. KVC_E_INVALID_STATE: not open. KVC_E_NO_MEMORY.
 * Threading: one call at a time per forward. Device: host only on the CPU. */
KVC_API kvc_status kvc_export_page_table(kvc_forward *fwd, int32_t group, kvc_table_kind kind,
                                         struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Page ids of one sequence's committed tokens, int32 [pages], a read-only snapshot.
 * KVC_E_NOT_FOUND: seq. KVC_E_OUT_OF_RANGE: group. KVC_E_NO_MEMORY.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_export_seq_pages(const kvc_cache *cache, kvc_seq seq, int32_t group,
                                        struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Function table, for programs that load the library at run time                                        */
/* ==================================================================================================== */

/* Append-only; the functions are the ones above. */
typedef struct kvc_api {
  size_t struct_size;
  uint32_t abi_version; /* of the library */
  uint32_t reserved;
  /* 0.1 */
  uint32_t (*get_abi_version)(void);
  const char *(*version_string)(void);
  const char *(*status_name)(kvc_status status);
  int32_t (*has_feature)(const char *KVC_NULLABLE name);
  kvc_status (*device_query)(DLDevice device, kvc_device_caps *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*set_logger)(kvc_log_fn KVC_NULLABLE fn, void *KVC_NULLABLE user, kvc_log_level min_level,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*config_init)(kvc_config *config, size_t struct_size);
  kvc_status (*plan_create)(const kvc_config *config, kvc_plan **out, kvc_error *KVC_NULLABLE err);
  void (*plan_destroy)(kvc_plan *KVC_NULLABLE plan);
  kvc_status (*plan_info_get)(const kvc_plan *plan, kvc_plan_info *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_layer_get)(const kvc_plan *plan, int32_t layer, kvc_layer_info *out,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_pages_for)(const kvc_plan *plan, uint64_t byte_budget, int64_t *out_pages,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_max_tokens)(const kvc_plan *plan, uint64_t byte_budget, int64_t *out_tokens,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_request_pages)(const kvc_plan *plan, int64_t num_tokens, int64_t *out_pages,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_describe)(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_to_json)(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*cache_create)(const kvc_plan *plan, kvc_cache **out, kvc_error *KVC_NULLABLE err);
  void (*cache_destroy)(kvc_cache *KVC_NULLABLE cache);
  kvc_status (*cache_clear)(kvc_cache *cache, kvc_error *KVC_NULLABLE err);
  kvc_status (*cache_resize)(kvc_cache *cache, int64_t num_pages, kvc_error *KVC_NULLABLE err);
  kvc_status (*cache_stats_get)(const kvc_cache *cache, kvc_stats *out, kvc_error *KVC_NULLABLE err);
  int64_t (*cache_free_pages)(const kvc_cache *cache);
  int64_t (*cache_total_length)(const kvc_cache *cache);
  int32_t (*cache_is_empty)(const kvc_cache *cache);
  kvc_status (*cache_check)(const kvc_cache *cache, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_add)(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_remove)(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_fork)(kvc_cache *cache, kvc_seq parent, kvc_seq child, int64_t pos,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_pop)(kvc_cache *cache, kvc_seq seq, int64_t n, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_length)(const kvc_cache *cache, kvc_seq seq, int64_t *out_length,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_info_get)(const kvc_cache *cache, kvc_seq seq, kvc_seq_info *out,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_list)(const kvc_cache *cache, kvc_seq *KVC_NULLABLE ids, size_t *count,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_can_append)(const kvc_cache *cache, size_t n, const kvc_seq *seqs, const int64_t *lengths,
      int64_t *out_missing_pages, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_can)(const kvc_cache *cache, kvc_seq seq, kvc_seq_op op, int64_t pos, int64_t *out_nearest,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*forward_begin)(kvc_cache *cache, const kvc_forward_desc *desc, kvc_forward **out,
      kvc_error *KVC_NULLABLE err);
  int64_t (*forward_num_tokens)(const kvc_forward *fwd);
  kvc_status (*forward_positions)(kvc_forward *fwd, DLTensor *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*forward_end)(kvc_forward *fwd, kvc_error *KVC_NULLABLE err);
  kvc_status (*forward_abort)(kvc_forward *KVC_NULLABLE fwd, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
      const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v, DLTensor *out,
      DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_fused_qkv)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
      const DLTensor *qkv, DLTensor *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_self)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
      const DLTensor *q, const DLTensor *k, const DLTensor *v, DLTensor *out, DLTensor *KVC_NULLABLE lse,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_cached)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
      const DLTensor *q, DLTensor *out, DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_merge)(kvc_forward *fwd, DLTensor *out, DLTensor *lse, const DLTensor *other_out,
      const DLTensor *other_lse, kvc_error *KVC_NULLABLE err);
  kvc_status (*kv_append)(kvc_forward *fwd, int32_t layer, const DLTensor *k, const DLTensor *v,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*kv_gather)(kvc_forward *fwd, int32_t layer, kvc_seq seq, DLTensor *KVC_NULLABLE k_out,
      DLTensor *KVC_NULLABLE v_out, kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_get_kv)(const kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end,
      DLTensor *KVC_NULLABLE k, DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
      kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_set_kv)(kvc_cache *cache, kvc_seq seq, int64_t begin, const DLTensor *KVC_NULLABLE k,
      const DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*export_pool)(kvc_cache *cache, int32_t layer, kvc_pool_kind kind,
      struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err);
  kvc_status (*export_page_table)(kvc_forward *fwd, int32_t group, kvc_table_kind kind,
      struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err);
  kvc_status (*export_seq_pages)(const kvc_cache *cache, kvc_seq seq, int32_t group,
      struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err);
  /* end of 0.1 */
} kvc_api;

/* The table for a client compiled against `abi_version` (pass KVC_ABI_VERSION); NULL when the library cannot serve it: another
 * major version, or a newer minor one. Static storage.
 * Threading: any. Device: host only. */
KVC_API const kvc_api *kvc_get_api(uint32_t abi_version) KVC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_H_ */
