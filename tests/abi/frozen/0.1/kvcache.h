/*
 * kvcache.h - the C interface of libkvcache, the KV cache of LLM serving as a library.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * WHAT IT DOES
 *   Layer specs in, bytes and pages planned; tokens in, pages shared; Q, K, V in, attention out. Tensors cross as
 *   DLPack, so any framework shares its memory. Four ways in, one implementation:
 *     whole cache        kvc_cache_create with KVC_STORAGE_OWNED or KVC_STORAGE_BORROWED, then forwards with kvc_attn
 *     bookkeeping only   KVC_STORAGE_NONE: lengths in, page ids out; no tensor memory anywhere
 *     own kernels        kvc_kv_append or your own append, kvc_export_page_table, kvc_export_pool
 *     operators          kvc_op_*: the same kernels over pools and page tables of the host, no cache
 *
 * ONE STEP OF A MODEL
 *   kvc_forward_begin(cache, &desc, &fwd, &err);               which sequences grow by how many tokens
 *   for each layer: kvc_attn(fwd, layer, NULL, q, k, v, out, NULL, &err);   or kvc_attn_linear, kvc_attn_cross, ...
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
 *               padding: neither read nor written. An output that shares a byte with another output, an
 *               activation or an option's tensor of the same call is refused (KVC_E_INVALID_ARGUMENT,
 *               the message names both), unless a comment allows it. Only bytes that the call uses
 *               count: heads of one fused buffer may be input and output side by side. Pools, tables,
 *               indices and memory that a caller borrows or exports are not compared.
 *   Threading   No global mutable state except the logger, the modules' directory and the table that forward
 *               handles are looked up in; all are safe to use from any thread. Different caches are
 *               independent. For one cache: functions
 *               taking const kvc_cache * may run concurrently with each other and with an open forward's attention;
 *               functions taking kvc_cache * (and begin, end, abort) need external exclusion. One forward is
 *               open at a time. A handle may move between threads. A kvc_plan is immutable and freely shared.
 *   Device      A cache lives where kvc_config.device says, and so do the tensors that it is given, unless a comment
 *               says "on the host". Each function says what it does there:
 *                 "host only"         touches no tensor memory and never waits for a device.
 *                 "enqueues"          CUDA: the work is enqueued and the call returns at once. Calls on an open forward
 *                                     use kvc_forward_desc.stream, calls with a stream argument that one, others a
 *                                     stream of the library; one waits for the other on the device, whatever the streams.
 *                                     CPU: complete on return, streams are ignored.
 *                 "blocks until done" complete on return.
 *               A kvc_stream is a cudaStream_t. KVC_E_DEVICE: the device failed; the bookkeeping is intact, what lies on the
 *               device may not be, and every later call that needs the device says so again.
 *   Refusals    What is not supported is refused by name (KVC_E_UNSUPPORTED). Nothing is ignored or approximated.
 *   Printing    Nothing is printed, nothing aborts, no exception crosses, no environment variable changes a result.
 *
 * LOADING AT RUN TIME
 *   dlopen with RTLD_NOW | RTLD_LOCAL, then kvc_get_api (kvcache_api.h). Do not dlclose while exported tensors live.
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
typedef struct kvc_forward kvc_forward; /* one open step over a batch: a number, see kvc_forward_begin */
typedef struct kvc_fence kvc_fence;     /* completion of copies */

typedef int64_t kvc_seq;   /* sequence id, chosen by the caller, >= 0 */
typedef void *kvc_stream;  /* cudaStream_t of the host program, NULL: the legacy default stream; ignored on the CPU */

/* Result of a call. Values never change; the list only grows at the end. */
typedef int32_t kvc_status;
enum {
  KVC_OK = 0,
  KVC_E_INVALID_ARGUMENT = 1,  /* NULL, negative, contradictory */
  KVC_E_INVALID_STATE = 2,     /* attention without an open forward, or on a layer of another kind */
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
 * "rope.half", "rope.interleaved", "rope.on_read", "rope.llama3", "rope.yarn", "rope.longrope", "rope.mrope", "softcap", "sink_logits",
 * "alibi", "bias", "spans", "window", "window.sink", "chunk", "tree", "mla", "cross", "shared", "v_is_k", "state", "linear",
 * "cascade", "shift", "ops", "storage.borrowed", "storage.none", "layout.page_first", "resize", "export", "plan.quant", "plan.hf_json", "prefix",
 * "prefix.tail", "prefix.quota", "prefix.host", "swap", "events".
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
enum {
  KVC_DTYPE_F32 = 1,
  KVC_DTYPE_F16 = 2,
  KVC_DTYPE_BF16 = 4,
  KVC_DTYPE_F8_E4M3 = 8, /* from here on: with kvc_quant */
  KVC_DTYPE_F8_E5M2 = 16,
  KVC_DTYPE_INT8 = 32,
  KVC_DTYPE_INT4 = 64,
  KVC_DTYPE_F4_E2M1 = 128
};

typedef struct kvc_device_caps {
  size_t struct_size;
  int32_t backend_present; /* 1: caches can be created on this device */
  int32_t arch;            /* CPU: best kvc_cpu_isa of the machine; CUDA: 10 * compute capability; 0: unknown */
  int32_t num_cores;       /* CPU: hardware threads this process may use */
  int32_t page_granularity;/* bytes of a memory page, 0: unknown */
  uint64_t dtypes;         /* storage types that attention reads, KVC_DTYPE_* bits */
  uint64_t isas;           /* CPU: bit i set: kvc_cpu_isa i can be chosen */
  uint64_t memory_bytes;   /* physical memory, 0: unknown */
  uint64_t memory_free_bytes;
  char name[64];
} kvc_device_caps;

/* Says where modules lie: shared libraries of this project that are loaded when they are first
 * needed. There is one, the CUDA back end libkvcache_cuda.so. Without this call, or after NULL,
 * modules lie in the directory of the file that holds the library's code: libkvcache.so, or the
 * program that libkvcache.a is linked into. The dynamic linker never searches for a module, so
 * LD_LIBRARY_PATH, RUNPATH and its cache have no part in the choice. What a module depends on itself
 * (libc, libstdc++) the linker finds as usual.
 * A failed search is remembered: until the next successful kvc_module_path_set every call that needs
 * the module fails with the same message, which names the file, and nothing is looked for again. A
 * loaded module stays for the life of the process.
 * `path`: absolute path of a directory, copied; not looked at before a module is needed.
 * KVC_E_INVALID_ARGUMENT: path is not absolute, or holds a '$', which the dynamic linker would
 * replace. KVC_E_INVALID_STATE: a module has been loaded, and path is not the one in force; the message
 * names the module's file.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_module_path_set(const char *KVC_NULLABLE path, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* What the library can do on a device. A device without a back end in this build, or without a
 * driver, is not an error: backend_present is 0. kvc_has_feature("cuda") says whether the CUDA back
 * end was found, and loads it for that.
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
  KVC_LAYER_ATTENTION = 0, /* K and V per token */
  KVC_LAYER_MLA = 1,       /* one latent row [latent_rank + latent_rope_dim] per token for all heads (DeepSeek-V2, arXiv:2405.04434) */
  KVC_LAYER_CROSS = 2,     /* K and V of the encoder's tokens, written once per sequence, see kvc_attn_cross */
  KVC_LAYER_STATE = 3,     /* recurrent state of any shape, see kvc_state_get and kvc_attn_linear */
  KVC_LAYER_SHARED = 4,    /* keeps nothing: reads the K and V of source_layer (Gemma-3n) */
  KVC_LAYER_NONE = 5       /* keeps nothing and is never attended (an MLP-only layer): a place holder for its id */
};

/* Bits of kvc_layer.flags. */
enum {
  KVC_LAYER_V_IS_K = 1 /* the K row is the V row too: stored once, v_dim = k_dim, v_dtype = k_dtype, v arguments are NULL */
};

/* Quantised storage. It is planned, paged, shared, swapped and exported everywhere. On CUDA it is appended to and attended to as well (but for
 * kvc_attn_self, and kvc_seq_shift of rotated K); on the CPU that is for the host's own kernels, and kvc_attn, kvc_kv_append and the
 * debug functions answer KVC_E_UNSUPPORTED on such a layer. Rows are rounded to the nearest element, beyond the largest one to it. */
typedef int32_t kvc_quant;
enum {
  KVC_QUANT_NONE = 0,
  KVC_QUANT_PER_TENSOR = 1,     /* float8 (e4m3fn, e5m2), int8: one scale for K and one for V, kvc_layer.k_scale and v_scale */
  KVC_QUANT_PER_TOKEN_HEAD = 2, /* float8, int8, int4: one float32 scale per token and head for K, one for V */
  KVC_QUANT_BLOCK16 = 3         /* float4 (e2m1fn; NVFP4): one float8 scale per 16 elements; k_dim and v_dim are multiples of 16 */
};

typedef int32_t kvc_rope_mode;
enum {
  KVC_ROPE_NONE = 0,      /* the library rotates nothing */
  KVC_ROPE_ON_APPEND = 1, /* K is stored rotated, q is rotated when it attends */
  KVC_ROPE_ON_READ = 2    /* K is stored unrotated and rotated whenever it is read: needed for sinks, whose distances change */
};

typedef int32_t kvc_rope_style;
enum {
  KVC_ROPE_HALF = 0,       /* pairs (i, i + rotary_dim/2): Llama, NeoX */
  KVC_ROPE_INTERLEAVED = 1 /* pairs (2i, 2i + 1): GPT-J, original RoPE */
};

typedef int32_t kvc_rope_scaling;
enum {
  KVC_ROPE_SCALING_NONE = 0,
  KVC_ROPE_SCALING_LLAMA3 = 1,  /* Llama-3.1: factor, low_freq_factor, high_freq_factor, original_context */
  KVC_ROPE_SCALING_YARN = 2,    /* Peng et al., arXiv:2309.00071: factor, beta_fast, beta_slow, original_context */
  KVC_ROPE_SCALING_LONGROPE = 3 /* Ding et al., arXiv:2402.13753: freq_factors up to original_context, long_freq_factors beyond */
};

typedef int32_t kvc_rope_section_layout;
enum {
  KVC_ROPE_SECTIONS_CONTIGUOUS = 0, /* the first sections[0] pairs turn by position row 0, the next sections[1] by row 1, ... (Qwen2-VL) */
  KVC_ROPE_SECTIONS_INTERLEAVED = 1 /* pair i turns by row i % n while that section has pairs left (i / n < sections[row]), else by row 0
                                       (Qwen3-VL; n = num_sections) */
};

/* Rotary embedding (Su et al., arXiv:2104.09864). Pair i of the first rotary_dim elements at position p is turned by
 *   p * scale * theta^(-2i/rotary_dim) / freq_factors[i],
 * the frequency (what p is multiplied by) changed further by `scaling`; the turned elements are then multiplied by attention_factor.
 * MLA layers: the pairs are those of the latent_rope_dim elements that follow the latent (in q and k of kvc_attn_self: the last ones).
 * Wherever a layer has a rope mode, the caller hands over q and k unrotated.
 *   linear    scale = 1 / factor.
 *   LLAMA3    w = 2 pi / frequency: unchanged below original_context / high_freq_factor, divided by factor above original_context /
 *             low_freq_factor, in between a mean that is linear in 1 / w.
 *   YARN      ramp from unchanged (more than beta_fast turns in original_context) to divided by factor (fewer than beta_slow), linear in
 *             the index of the pair. Its ends follow from theta, without scale and freq_factors, and are rounded outwards to whole pairs.
 *   LONGROPE  a sequence longer than original_context with its new tokens (of a tree: its deepest path) uses long_freq_factors, else freq_factors; never chosen by
 *             the length of the forward. ON_READ: for all keys; ON_APPEND: for the tokens appended from then on.
 *   others    freq_factors and attention_factor express any frequencies.
 * Frequencies and angles are computed in double; their cos and sin are float32.
 * The plan refuses, naming field and value: fields that `scaling`, num_sections or mode NONE does not use and that are not zero, a factor or
 * frequency factor that is not positive, sections that do not fit (KVC_E_INVALID_ARGUMENT, KVC_E_OUT_OF_RANGE); values of the enums above
 * that are not listed, sections with ON_READ (KVC_E_UNSUPPORTED). */
typedef struct kvc_rope {
  size_t struct_size;
  kvc_rope_mode mode;
  kvc_rope_style style;
  int32_t rotary_dim;       /* even, <= k_dim; 0: k_dim */
  int32_t num_freq_factors; /* 0, or rotary_dim/2. LONGROPE: rotary_dim/2 */
  double theta;             /* > 0, YARN > 1; 0: 10000 */
  double scale;             /* factor on the position; 0: 1 */
  const float *KVC_NULLABLE freq_factors; /* copied by kvc_plan_create; > 0 */
  kvc_rope_scaling scaling;
  int32_t num_sections;           /* 0 or 1: one position per token; 2..4: M-RoPE, see kvc_forward_desc.positions */
  int32_t sections[4];            /* pairs of each section, >= 0; they sum to rotary_dim/2. num_sections 0, 1: may all be 0 */
  kvc_rope_section_layout section_layout;
  int32_t reserved;               /* 0 */
  double factor;                  /* LLAMA3, YARN: > 0. LONGROPE: 0, or the longest context / original_context, for attention_factor only */
  double low_freq_factor;         /* LLAMA3: > 0; 0: 1 */
  double high_freq_factor;        /* LLAMA3: > low_freq_factor; 0: 4 */
  double beta_fast;               /* YARN: >= beta_slow; 0: 32 */
  double beta_slow;               /* YARN: > 0; 0: 1 */
  double attention_factor;        /* > 0; 0: with factor > 1 YARN 0.1 ln(factor) + 1, LONGROPE sqrt(1 + ln(factor) / ln(original_context));
                                     else 1 */
  int64_t original_context;       /* LLAMA3, YARN, LONGROPE: tokens, 1..2^31-1 */
  const float *KVC_NULLABLE long_freq_factors; /* LONGROPE: [num_freq_factors], copied */
} kvc_rope;

/* One recurrent state of a STATE layer. In an array, the first element's struct_size is the stride of all. */
typedef struct kvc_state_spec {
  size_t struct_size;
  int32_t ndim;                       /* 1..8 */
  DLDataType dtype;                   /* float32, float16, bfloat16; all zero: float32 */
  const int64_t *shape;               /* [ndim], of one sequence, each >= 1; copied */
  const DLTensor *KVC_NULLABLE init;  /* value of an empty sequence: this shape and dtype, on the host, copied; NULL: zeros */
} kvc_state_spec;

/* One layer of the model. In an array, the first element's struct_size is the stride of all. */
typedef struct kvc_layer {
  size_t struct_size;
  kvc_layer_kind kind;
  int32_t num_q_heads;  /* multiple of num_kv_heads; 0: num_kv_heads. MLA: the number of heads */
  int32_t num_kv_heads; /* >= 1. MLA: 0 or 1. SHARED: 0 or the source's */
  int32_t k_dim;        /* elements of a K (and q) head, 1..512. MLA: of q and k in kvc_attn_self (128 + 64), 0: not used. SHARED: 0 or
                           the source's */
  int32_t v_dim;        /* elements of a V (and out) head, 1..512; 0: k_dim. MLA: of v in kvc_attn_self. SHARED: 0 or the source's */
  kvc_quant quant;
  DLDataType k_dtype;   /* storage type: float32, float16, bfloat16, or what quant says. All zero:
                           bfloat16, whatever the type of k; float32 rows are then rounded by up to
                           2^-8 of their value, so set float32 to compare with a float32 reference.
                           4-bit types: k_dim and v_dim even */
  DLDataType v_dtype;   /* all zero: k_dtype */
  const kvc_rope *KVC_NULLABLE rope; /* copied by kvc_plan_create; NULL: none */
  int64_t window;       /* 0: all keys; W >= 1: a query at position p sees keys p-W+1..p. ATTENTION, MLA */
  int64_t chunk;        /* 0: off; C >= 1: a query at p sees keys from p/C*C on (Llama-4). Not with window. ATTENTION, MLA */
  int32_t source_layer; /* SHARED: an ATTENTION or MLA layer of the same slice with a smaller id */
  int32_t latent_rank;  /* MLA: >= 1; rank + rope dim <= 1024 */
  int32_t latent_rope_dim; /* MLA: even, >= 0 */
  int32_t flags;        /* KVC_LAYER_* */
  const kvc_state_spec *KVC_NULLABLE states; /* STATE: [num_states], copied */
  int32_t num_states;   /* STATE: 1..16 */
  int32_t reserved;     /* 0 */
  float k_scale, v_scale; /* quant PER_TENSOR: value = stored element * scale, finite, > 0; 0: 1. Others: 0 */
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
/* Inside a page each layer has, in both layouts, with P = kvc_group_info.page_tokens: K [num_kv_heads][P][k_dim], then V [num_kv_heads][P][v_dim];
 * quantised layers then K's scales [num_kv_heads][P] (BLOCK16: [num_kv_heads][P][k_dim / 16]), then V's. */

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

/* Bits of kvc_config.flags. */
enum {
  /* Every group has page_size tokens per page, and pages of narrower groups are padded. Without it, narrower groups get more tokens per page
   * (kvc_group_info.page_tokens, a multiple of page_size) so that little is padded. */
  KVC_CONFIG_PAD_PAGES = 1,
  /* Every page and state slot that a forward takes is filled with zeros before the forward writes it, so
   * that no token of another sequence can be read from it, whatever the forward leaves unwritten. A page
   * that is copied on write takes over what the copied page holds. Costs one write of the taken pages per
   * kvc_forward_begin, which goes to the forward's stream, also with KVC_FORWARD_REPLAY. It is no part of a
   * captured graph: while the stream is captured it goes to the library's own, and begin waits for it.
   * Storage NONE: KVC_E_UNSUPPORTED. */
  KVC_CONFIG_CLEAR_PAGES = 2
};

/* What to plan. Zero-initialise, set struct_size (or call kvc_config_init), then the fields you need. */
typedef struct kvc_config {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext; /* NULL: no extension is defined yet */
  uint64_t flags;                  /* KVC_CONFIG_* */
  DLDevice device;                 /* all zero: the CPU; kDLCUDA: a GPU, see kvc_device_query */
  int32_t page_size;               /* tokens per page, 1..65536; 0: 16. Of the widest group: see KVC_CONFIG_PAD_PAGES */
  int32_t num_layers;              /* layers of the whole model, >= 1 */
  const kvc_layer *layers;         /* [num_layers], copied */
  /* Pipeline slice kept here, half open; both 0: all. Layer ids in calls stay global. Groups and page tables are those of the whole
   * model, so that all slices agree on them; a group without a layer in the slice has page tables all the same. */
  int32_t layer_begin, layer_end;
  int32_t max_seqs;                /* sequences in one forward at most; 0: no limit */
  int32_t forwards_in_flight;      /* 0: 1; at most 64. Forwards whose tokens a window has to keep before it can drop any: counted by the plan */
  int64_t max_tokens_per_forward;  /* 0: no limit */
  int64_t max_seq_len;             /* longest sequence; 0: what the pages hold. The plan is refused when the pages can't hold one */
  int64_t num_pages;               /* num_pages or byte_budget, not both. Both 0: with borrowed storage the tensors' pages, else a plan
                                      that answers questions but makes no cache */
  /* Bytes for everything a sequence keeps: num_pages = byte_budget / page_bytes. Recurrent states come out of the same bytes: with num_state_slots
   * they are set aside first; without, each state slot takes ceil(state_slot_bytes / page_bytes) pages out of use while it lives. */
  uint64_t byte_budget;
  uint64_t host_byte_budget;       /* bytes of host memory for kvc_swap_out, kvc_pages_swap and evicted prefix pages; 0: none */
  kvc_storage storage;
  kvc_pool_layout pool_layout;
  /* Borrowed storage; borrowed until kvc_cache_destroy and until the deleter of every export has run. LAYER_FIRST: one tensor
   * per region of a page (kvc_plan_info.num_layer_regions, kvc_layer_info.region_bytes: with one group, one per layer that keeps pages); PAGE_FIRST: one tensor. Dimension 0 counts pages and may have any stride of at least one page; the rest is
   * compact and holds exactly one page of the region (or of all regions). Any dtype of whole bytes; rank >= 1; address and page stride aligned to
   * the storage elements. One cache at a time may be made of a plan with borrowed tensors. */
  const DLTensor *const *KVC_NULLABLE pool_tensors;
  int32_t num_pool_tensors;
  int32_t num_threads;             /* own CPU threads including the caller's; 0: one per core; 1: the caller's only. Storage on a GPU: the
                                      caller's only, 0 or 1 */
  kvc_cpu_isa cpu_isa;             /* storage on a GPU: AUTO */
  int32_t reserved;                /* 0 */
  const kvc_allocator *KVC_NULLABLE allocator; /* copied; `user` borrowed until the cache and all its exports are gone */
  const kvc_executor *KVC_NULLABLE executor;   /* copied; `user` borrowed until kvc_cache_destroy; replaces own threads. Storage on a
                                                  GPU: NULL */
  int64_t max_cross_len;           /* encoder tokens of one sequence at most; 0: no limit. Planned for by max_seq_len and request pages */
  int64_t state_stride;            /* automatic checkpoints of recurrent state where a forward ends on a multiple of this many tokens;
                                      0: page_size; -1: none; else a multiple of page_size. Given up, the earliest positions first, when state
                                      slots or pages are missing */
  int64_t num_state_slots;         /* states of one sequence (all STATE layers) kept at most, checkpoints included; 0: as many as memory holds */
  int64_t event_capacity;          /* events kept for kvc_events_poll, at most 2^24; 0: none are made */
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
  int32_t num_groups;       /* page tables per sequence; see kvc_plan_group_get */
  int32_t num_layer_regions; /* regions of a page that LAYER_FIRST keeps apart: with one group one per layer that keeps pages; see kvc_layer_info.region */
  int64_t num_pages;
  uint64_t page_bytes;      /* one page, all layers of the slice */
  uint64_t bytes_per_token; /* one token, all layers of the slice */
  uint64_t pool_bytes;      /* num_pages * page_bytes */
  int64_t max_tokens;       /* tokens all pages hold together while no window has dropped any */
  int64_t max_seq_len;      /* longest single sequence */
  uint64_t state_slot_bytes;/* recurrent state of one sequence, all STATE layers; 0: none */
  int64_t num_state_slots;  /* 0: no limit */
  int64_t state_slot_pages; /* pages that a state slot takes out of use; 0: states have memory of their own */
  int32_t prefix_block;     /* tokens of a block of the prefix index: least common multiple of the groups' page_tokens */
  int32_t forwards_in_flight;
  int64_t num_host_pages;   /* host_byte_budget / page_bytes */
  int64_t request_pages;    /* kvc_plan_request_pages(max_seq_len) */
  double concurrency;       /* requests of max_seq_len tokens that num_pages hold at once: num_pages / request_pages; 0: no pages */
  double waste;             /* share of the bytes of such a request that is padding or lies behind its last token, 0..1 */
} kvc_plan_info;

/* KVC_E_INVALID_ARGUMENT: NULL, struct_size too small.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_info_get(const kvc_plan *plan, kvc_plan_info *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Layers that see the same keys share a page table: a group. All groups take their pages from one pool; every page has room for the layers of any
 * group, which lie one behind the other in it. Narrow groups have more tokens per page, long kinds are cut into several groups, whichever
 * wastes less. Order: as the kinds first appear among the layers. */
typedef struct kvc_group_info {
  size_t struct_size;
  int32_t num_layers;
  int32_t is_cross;         /* 1: counts encoder tokens */
  int64_t window;           /* of its layers; 0: none */
  int64_t chunk;            /* of its layers; 0: none */
  uint64_t page_bytes;      /* that its layers use of a page */
  uint64_t padding_bytes;   /* that they leave unused */
  int32_t page_tokens;      /* tokens per page */
  int32_t first_layer;      /* global id of its first layer in the slice; -1: none here */
  int64_t request_pages;    /* its part of kvc_plan_info.request_pages */
  uint64_t bytes_per_token; /* of its layers */
} kvc_group_info;

/* KVC_E_OUT_OF_RANGE: group not in 0..num_groups-1.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_group_get(const kvc_plan *plan, int32_t group, kvc_group_info *out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef struct kvc_layer_info {
  size_t struct_size;
  kvc_layer_kind kind;
  int32_t group;            /* page table this layer reads: index for kvc_export_page_table; -1: none */
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim;
  DLDataType k_dtype, v_dtype;
  uint64_t page_bytes;      /* this layer's part of one page */
  uint64_t k_page_bytes;    /* its K part; V follows */
  uint64_t v_page_bytes;
  uint64_t bytes_per_token;
  int64_t window, chunk;
  int32_t source_layer;     /* SHARED; else -1 */
  int32_t latent_rank, latent_rope_dim;
  int32_t flags;
  int32_t num_states;
  int32_t region;           /* of a page, where the layer lies: the tensor of LAYER_FIRST borrowed storage; -1: none */
  uint64_t state_bytes;     /* all states of the layer, one sequence */
  uint64_t region_bytes;    /* of that region in one page */
  uint64_t region_offset;    /* where the layer's part begins in the region */
  kvc_quant quant;
  int32_t page_tokens;      /* of its group; 0: keeps no pages */
  uint64_t k_scale_bytes;   /* of one page, behind V; 0: none */
  uint64_t v_scale_bytes;
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

/* Pages that one request of `num_tokens` >= 0 tokens needs at most while it is computed, when it shares nothing: the sum over groups, and
 * two state slots (before and after a forward) where they come out of the pages.
 * A window W needs at most ceil((W - 1 + m) / page_tokens) + 1 pages, m = forwards_in_flight * max_tokens_per_forward (vLLM's formula).
 * A chunk C likewise, less the page over the edge where page_tokens divide it.
 * KVC_E_OUT_OF_RANGE: negative.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_request_pages(const kvc_plan *plan, int64_t num_tokens, int64_t *out_pages,
                                          kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The plan as a table for people; two-call string, see "Arrays out" above.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_describe(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The plan as JSON: page_size, num_pages, page_bytes, bytes_per_token, pool_bytes, max_tokens, max_seq_len, pool_layout, storage,
 * concurrency, waste, groups[], layers[]. Two-call string. Field names may be added.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_to_json(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Pages that every rank of one model has: the least of the plans' num_pages. Tensor and pipeline parallel ranks run one scheduler, so page
 * ids must mean the same everywhere: give each rank's plan this number.
 * KVC_E_INVALID_ARGUMENT: n = 0, a NULL plan, plans whose groups differ in number, page_tokens, window, chunk or kind (the message names both).
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_min_pages(const kvc_plan *const *plans, size_t n, int64_t *out_pages,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Read a Hugging Face `config.json` (NUL-terminated): the layers of a model and, in config, num_layers, layers and max_seq_len (the model's
 * longest; encoder-decoders with a fixed encoder: max_cross_len too); every other field is left as it is. A layer of the model that has two parts (self
 * and cross attention; attention and state) becomes two entries, so ids count entries. Give config->struct_size and, when layers is not NULL, layers[0].struct_size.
 * `*n`: capacity of layers in elements on entry, elements needed on return: more than num_layers, because the elements behind the layers hold
 * the rotations, state shapes and factors that they point at. Keep the array until kvc_plan_create has copied it. NULL: only the count.
 * Storage is of the model's torch_dtype (bfloat16 where it has none). Rotations are read, and set to KVC_ROPE_ON_APPEND.
 * Families (`kvcache plan --families` lists the names): Llama 2 to 4 and 3.2 Vision, Mistral, Ministral,
 * Mixtral, Qwen 2 to 3.5, Next and VL, Gemma 1 to 4 and 3n, GPT-OSS, DeepSeek V2 and V3, Kimi-K2 and
 * Kimi-Linear, Phi 1 to 4, GLM-4, ChatGLM, Cohere 1 and 2, OLMo 1 to 3, Granite, StableLM, StarCoder 1 and 2,
 * MiMo-V2, BLOOM, Falcon, MPT, GPT-2, GPT-J, GPT-NeoX, OPT, Jamba, Mamba 1 and 2, Falcon-Mamba, Falcon-H1,
 * Zamba 2, Bamba, Nemotron-H, LFM2, T5, BART, Whisper.
 * KVC_E_INVALID_ARGUMENT: not JSON (detail = byte), a missing field or one of the wrong type (the message names it). KVC_E_OUT_OF_RANGE: a
 * number beyond reason. KVC_E_UNSUPPORTED: an unknown model_type, or a feature that the library has not (named). KVC_E_BUFFER_TOO_SMALL.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_config_from_hf_json(const char *json, kvc_config *config, kvc_layer *KVC_NULLABLE layers, size_t *n,
                                           kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Cache                                                                                                 */
/* ==================================================================================================== */

/* Make an empty cache. `plan`: borrowed for the call. `*out`: owned by caller.
 * Owned memory is reserved, not touched: it costs physical memory as pages are written.
 * KVC_E_NO_MEMORY: the pool or the tables could not be allocated. KVC_E_INVALID_ARGUMENT: a plan without pages, a bad executor or
 * allocator. KVC_E_UNSUPPORTED: config.cpu_isa is not available on this machine. KVC_E_BUSY: another cache has the
 * plan's borrowed tensors.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_cache_create(const kvc_plan *plan, kvc_cache **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT
    KVC_WARN_UNUSED;

/* NULL is accepted. An open forward is dropped. Exported tensors stay valid until their deleters run.
 * Threading: exclusive. Device: host only. */
KVC_API void kvc_cache_destroy(kvc_cache *KVC_NULLABLE cache) KVC_NOEXCEPT;

/* Forget all sequences, the prefix index and what is on the host; page data is not touched.
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
  int64_t state_slots_used;  /* states and checkpoints kept */
  uint64_t state_slot_bytes;
  uint64_t tree_tokens;      /* uncommitted tree nodes over all sequences */
  uint64_t cascades;         /* shared prefixes read once for several sequences, attention calls together */
  int64_t slots_unused;      /* token slots of used pages behind the last token of their sequence: internal fragmentation; divide by pages_used
                                times page_tokens */
  int64_t pages_cached;      /* pages that the prefix index knows, used ones too */
  int64_t pages_evictable;   /* of these, held by the index alone: counted in pages_free */
  int64_t prefix_blocks;     /* in the index, both tiers */
  int64_t prefix_blocks_host;/* of these, with pages on the host */
  int64_t prefix_pinned;     /* pinned blocks */
  uint64_t prefix_lookups;   /* kvc_prefix_attach */
  uint64_t prefix_query_tokens;
  uint64_t prefix_hit_tokens;
  uint64_t recent_query_tokens; /* of the last 1,000 lookups */
  uint64_t recent_hit_tokens;
  uint64_t prefix_stored;    /* blocks that became part of the index */
  uint64_t prefix_duplicates;/* blocks that were there already: the sequence took the index's pages over */
  uint64_t prefix_evicted;   /* blocks that left it for others */
  uint64_t prefix_rejected;  /* blocks that a quota kept out */
  uint64_t prefix_demoted;   /* pages that went to the host */
  uint64_t prefix_promoted;  /* pages that came back */
  int64_t host_pages_total;
  int64_t host_pages_used;   /* by swapped sequences and by the index */
  int64_t num_swapped_seqs;
  uint64_t pages_swapped_out;
  uint64_t pages_swapped_in;
  uint64_t copy_runs;        /* contiguous copies that swaps and page copies were merged into */
  uint64_t events_made;
  uint64_t events_lost;      /* overwritten before they were polled */
  uint64_t block_lifetime[32]; /* evicted blocks by time in the index: bucket i counts [2^i, 2^(i+1)) milliseconds; bucket 0 also less */
  uint64_t block_idle[32];   /* evicted blocks by time since their last use */
  uint64_t block_reuse_gap[32]; /* hits by time since the block's use before */
} kvc_stats;

/* Threading: shared. Device: host only. */
KVC_API kvc_status kvc_cache_stats_get(const kvc_cache *cache, kvc_stats *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Pages not held by any sequence, forward or pin (those that only the prefix index holds are free); -1 when cache is NULL.
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
 * appends to it first (kvc_seq_can_append counts that page). The child inherits the window, the encoder tokens and the checkpoints up to pos.
 * KVC_E_NOT_FOUND: parent. KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT: child. KVC_E_BUSY. KVC_E_NO_MEMORY.
 * KVC_E_OUT_OF_RANGE: pos beyond the length, or needing tokens that a window has dropped, or a state without a checkpoint there
 * (detail = the nearest position that is possible). KVC_E_INVALID_STATE: an uncommitted token tree.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_fork(kvc_cache *cache, kvc_seq parent, kvc_seq child, int64_t pos,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Drop the last `n` tokens, 0 <= n <= length, also past a fork point; siblings keep theirs.
 * KVC_E_NOT_FOUND. KVC_E_BUSY. KVC_E_INVALID_STATE: an uncommitted token tree.
 * KVC_E_OUT_OF_RANGE: n, or the rest would need tokens that a window has dropped, or a state without a checkpoint there
 * (detail = the nearest position that is possible).
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_pop(kvc_cache *cache, kvc_seq seq, int64_t n, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Drop tokens [begin, end) of a sequence and move the later ones by `delta` positions: begin - end closes the gap (context shift). With
 * begin = end the positions of the tokens from begin on move and nothing is dropped. K that is stored rotated is re-rotated; shared pages are
 * made private first. Tokens appended later continue after the last position.
 * KVC_E_NOT_FOUND. KVC_E_BUSY. KVC_E_INVALID_STATE: an uncommitted token tree. KVC_E_NO_PAGES: for private copies (detail).
 * KVC_E_OUT_OF_RANGE: not 0 <= begin <= end <= length; positions would become negative, stop ascending, or exceed int32; a window has
 * dropped tokens of the sequence. KVC_E_UNSUPPORTED: the cache has STATE layers; positions that would leave a gap (delta other than begin - end)
 * on a sequence or layer with a window or chunk; a LONGROPE layer that rotates ON_APPEND (its K does not say by which factors).
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_seq_shift(kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end, int64_t delta,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Let the sequence see, in every ATTENTION and MLA layer, only its first `sink` tokens and the newest: a query at position p sees keys
 * k < sink or k > p - (window - sink), at most `window` keys, itself included (StreamingLLM, arXiv:2309.17453). Pages that no later
 * query sees are freed. With ON_READ rope, sinks keep the distance they have at position window - 1. May be called again when the tokens are still
 * there. Layers with a window of their own see what both allow.
 * KVC_E_NOT_FOUND. KVC_E_BUSY. KVC_E_INVALID_STATE: an uncommitted token tree. KVC_E_INVALID_ARGUMENT: window < 1, sink < 0,
 * sink >= window. KVC_E_OUT_OF_RANGE: needs tokens that are dropped. KVC_E_UNSUPPORTED: no ATTENTION or MLA layer here; a layer with chunk; with
 * sinks, a layer whose own window is larger than window - sink; positions that kvc_seq_shift has moved apart.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_set_window(kvc_cache *cache, kvc_seq seq, int64_t window, int64_t sink,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Committed tokens of a sequence; those of an open forward count from kvc_forward_end on.
 * KVC_E_NOT_FOUND.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_length(const kvc_cache *cache, kvc_seq seq, int64_t *out_length,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef struct kvc_seq_info {
  size_t struct_size;
  int64_t length;           /* committed tokens */
  int64_t first_position;   /* first position that every group still keeps, sinks aside; -1: empty */
  int64_t last_position;    /* last kept position; -1: empty */
  int64_t num_pages;        /* held, all groups together */
  int64_t num_shared_pages; /* of these, held by other sequences too */
  int64_t window;           /* kvc_seq_set_window; 0: none */
  int64_t sink;             /* 0: none */
  int32_t in_forward;       /* 1: in the open forward */
  int32_t num_checkpoints;  /* positions < length with a recurrent state; 0 for caches without STATE layers */
  int64_t tree_nodes;       /* uncommitted */
  int64_t cross_length;     /* encoder tokens */
  int32_t is_swapped;       /* 1: kvc_swap_out; num_pages are of the host */
  int32_t reserved;
  int64_t known_tokens;     /* leading tokens whose ids the cache knows, so that their blocks are in the prefix index or can be */
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
 * many pages (and state slots) are missing now. Counts copy-on-write pages. A sequence with an uncommitted tree is taken to be
 * extended as a tree. Arrays borrowed for the call.
 * KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT (n = 0, duplicate ids, lengths < 1), KVC_E_OUT_OF_RANGE (limits of the configuration),
 * KVC_E_NEVER_FITS: as begin. KVC_E_BUSY: a sequence of the open forward.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_can_append(const kvc_cache *cache, size_t n, const kvc_seq *seqs, const int64_t *lengths,
                                      int64_t *out_missing_pages, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_seq_op;
enum {
  KVC_SEQ_FORK = 0,
  KVC_SEQ_POP = 1,
  KVC_SEQ_SHIFT = 2 /* drop [pos, pos + 1) and close the gap */
};

/* Could the sequence be forked at, popped back to, or shifted at position `pos` (-1: its end)? *out_nearest is the nearest position where it
 * could (ties: the smaller): `pos` itself when yes; -1 when there is none.
 * KVC_E_NOT_FOUND. KVC_E_UNSUPPORTED: unknown op. KVC_E_OUT_OF_RANGE: pos < -1. KVC_E_BUSY: in the open forward. KVC_E_INVALID_STATE: an
 * uncommitted token tree.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_can(const kvc_cache *cache, kvc_seq seq, kvc_seq_op op, int64_t pos, int64_t *out_nearest,
                               kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Forward: one step over a batch                                                                        */
/* ==================================================================================================== */

typedef struct kvc_forward_desc {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;                 /* NULL: no extension is defined yet */
  kvc_stream KVC_NULLABLE stream;                  /* of all work until end or abort; ignored on the CPU */
  size_t num_seqs;                                 /* >= 1 */
  const kvc_seq *seqs;                             /* [num_seqs], distinct; borrowed for the call */
  const int64_t *append_lengths;                   /* [num_seqs], >= 1; borrowed for the call */
  /* Token trees: [sum of append_lengths], for each new token its parent's index inside the sequence's whole uncommitted tree (-1: a root),
   * parent < own index, at most KVC_MAX_TREE_NODES nodes; the nodes of earlier forwards come first. All tokens of a sequence KVC_TREE_NONE: a
   * plain append. A sequence with an uncommitted tree must be extended as a tree. NULL: no trees. Borrowed for the call. */
  const int32_t *KVC_NULLABLE tree_parents;
  /* Ids of the new tokens, [sum of append_lengths]: full blocks are published to the prefix index when the forward ends (nodes of a tree when
   * they are committed). A sequence that once grows without them publishes no later block. NULL: none. Copied. */
  const int32_t *KVC_NULLABLE tokens;
  uint64_t flags;                                  /* KVC_FORWARD_* */
  /* Rotary positions given by the caller (M-RoPE, or any other numbering): int32 [sections, T] (sections = the largest num_sections of
   * the layers) or [T] (all sections alike). They turn q and k of ON_APPEND layers and nothing else: windows, masks and lengths count tokens.
   * NULL: positions of the tokens. Copied. */
  const DLTensor *KVC_NULLABLE positions;
  /* [num_seqs]: encoder tokens that this forward writes to the CROSS layers of each sequence, 0: none. Once per sequence. NULL: none. Borrowed
   * for the call. */
  const int64_t *KVC_NULLABLE cross_lengths;
} kvc_forward_desc;

/* Bits of kvc_forward_desc.flags. */
enum {
  /* CUDA graphs. A forward whose begin finds its stream captured becomes part of the graph, page tables included; nothing runs yet. Launch
   * the graph once for it after the end and before the next call on the cache, which the launch would not wait for (or abort it, and
   * don't: then it never was). A captured begin waits until the device has done what the cache was given before; calls after the launch
   * wait for it, on whatever stream it was. Every further step of the same shape (num_seqs,
   * append_lengths, no trees, no positions, no encoder tokens): begin with this flag, which tells the device what changed and enqueues
   * nothing, launch the graph on the same stream, end (or abort instead of the launch). Lengths, pages, windows and states are the step's
   * own. Calls on layers are refused in between. A forward that is captured has no tokens, replayed ones may. With ALiBi or ON_READ rope a graph
   * takes no sequence whose positions kvc_seq_shift has moved apart. Addresses that the graph has seen stay valid while max_seqs,
   * max_tokens_per_forward, max_seq_len and max_cross_len of the configuration are set. The graph names memory of the cache: it is launched
   * no more once that is destroyed. */
  KVC_FORWARD_REPLAY = 1,
  /* The forward may end without K and V in every layer (see kvc_forward_end), and publishes nothing. The
   * tokens of a layer that got none count as unwritten, on every storage, until they are popped: no later
   * forward, fork, swap or kvc_prefix_insert publishes a block that holds one. They read as whatever their
   * page held before, or as zeros with KVC_CONFIG_CLEAR_PAGES. */
  KVC_FORWARD_PARTIAL = 2
};

enum {
  KVC_TREE_NONE = -2,       /* in tree_parents: not part of a tree */
  KVC_MAX_TREE_NODES = 4096 /* nodes of one sequence's uncommitted tree */
};

/* Open a step: check everything, reserve pages, make private what the new tokens share. Prefill, chunked prefill, decode and trees mix freely.
 * `*out`: valid until kvc_forward_end, kvc_forward_abort or kvc_cache_destroy. The handle is a number that is
 * never used again and never dereferenced: every later call with it answers KVC_E_INVALID_STATE, for ever.
 * KVC_E_BUSY: a forward is open. KVC_E_NOT_FOUND: sequence. KVC_E_INVALID_ARGUMENT: empty batch, duplicate id, a length < 1, a tree parent
 * that is not below its node. KVC_E_OUT_OF_RANGE: more sequences, tokens, tree nodes or encoder tokens than allowed.
 * KVC_E_INVALID_STATE: a plain append to an uncommitted tree; encoder tokens written twice.
 * KVC_E_NO_PAGES: full now (pages, or state slots, the message says which), detail = missing. KVC_E_NEVER_FITS: one sequence alone would
 * exceed the pool or max_seq_len. KVC_E_UNSUPPORTED: trees in a cache with STATE layers, or (with ON_READ rope) of a sequence with fewer
 * committed tokens than sinks; positions with an ON_READ layer; encoder tokens
 * without a CROSS layer; KVC_FORWARD_REPLAY on the CPU, or with trees, positions, encoder tokens or what else a graph does not take.
 * KVC_E_INVALID_STATE: KVC_FORWARD_REPLAY of a shape that was not captured, or beyond what its graph serves, or addresses have changed
 * since; buffers that would have to grow during a capture; 32 captured steps have ended and are not launched; the legacy default stream
 * while a blocking stream is captured.
 * KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH: positions. KVC_E_VERSION, KVC_E_NO_MEMORY, KVC_E_DEVICE.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_forward_begin(kvc_cache *cache, const kvc_forward_desc *desc, kvc_forward **out,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT KVC_WARN_UNUSED;

/* New tokens of the whole batch (T); -1 when fwd is NULL or no longer open.
 * Threading: shared. Device: host only. */
KVC_API int64_t kvc_forward_num_tokens(const kvc_forward *fwd) KVC_NOEXCEPT;

/* Position of each new token, as RoPE takes it: `out` int32 [>= T], or [S, >= T] for S given position rows (S = 1 otherwise). Tree nodes: the
 * committed length plus their depth. Caller-given positions come back, row 0 when out has one dimension.
 * KVC_E_INVALID_STATE: not open. KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH.
 * Threading: shared. Device: enqueues. */
KVC_API kvc_status kvc_forward_positions(kvc_forward *fwd, DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Make the new tokens part of their sequences. The handle is dead afterwards. Where the library alone writes
 * the pool (storage OWNED, and kvc_export_pool was never called), every layer must have got its K and V in
 * this forward, by kvc_attn, kvc_attn_fused_qkv, kvc_kv_append or kvc_mla_append:
 *   ATTENTION, MLA   always
 *   CROSS            in a forward that announced encoder tokens (kvc_attn_cross)
 *   STATE            never: a state that is not set is carried on
 *   SHARED, NONE     never: they have no rows of their own
 * A forward that leaves a layer out on purpose sets KVC_FORWARD_PARTIAL. What kvc_debug_set_* writes does not
 * count. A replayed forward has got what the captured one got. Hosts that can write pages themselves (storage
 * NONE or BORROWED, an exported pool) are not asked: they write every layer before end, or set the flag.
 * KVC_E_INVALID_STATE: not open; layers got no K and V (the message names them, detail = the first; the
 * forward stays open: append to them, or abort); it was captured, and the capture is over; a capture began on
 * its stream after it, or its stream is the legacy default one beside a blocking one's (it stays open).
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_forward_end(kvc_forward *fwd, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Undo the begin: lengths, pages, tables, trees, windows and states as before; whatever was written to the new slots is forgotten. NULL is
 * accepted.
 * KVC_E_INVALID_STATE: not open; a capture that it is no part of has begun on its stream (it stays open), as in kvc_forward_end.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_forward_abort(kvc_forward *KVC_NULLABLE fwd, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Accept a path of each sequence's token tree: root -> leaves[i] becomes committed tokens, moved together in every layer; all other nodes are
 * dropped. Leaf -1 keeps nothing. Any subset of the sequences with trees, any order.
 * KVC_E_NOT_FOUND. KVC_E_INVALID_ARGUMENT: n = 0, NULL arrays, duplicate ids. KVC_E_INVALID_STATE: a sequence without an uncommitted tree.
 * KVC_E_OUT_OF_RANGE: leaf < -1 or no such node. KVC_E_BUSY: in the open forward. KVC_E_NO_MEMORY.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_tree_commit(kvc_cache *cache, size_t n, const kvc_seq *seqs, const int32_t *leaves,
                                   kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Attention, inside a forward                                                                           */
/* ==================================================================================================== */
/* The order of layers is free; calling a layer twice rewrites the same slots. Accumulation is float32 (REFERENCE: float64).
 * Common statuses: KVC_E_INVALID_STATE: forward not open, layer of another kind. KVC_E_OUT_OF_RANGE:
 * layer not in this cache. KVC_E_INVALID_ARGUMENT: an output overlaps. KVC_E_UNSUPPORTED: the
 * cache has no storage; an option is not available. KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH: a tensor.
 * KVC_E_NO_MEMORY: workspace. Nothing is written then. */

/* Bits of kvc_attn_opt.flags. */
enum {
  /* The same call gives the same bits. Always so on the CPU. */
  KVC_ATTN_DETERMINISTIC = 1,
  /* A token's output does not depend on the other sequences of the batch, nor on how its prompt was cut into forwards: decode steps use the
   * arithmetic of prefill, and shared prefixes are read by each sequence. Without the flag both change results by rounding only. */
  KVC_ATTN_BATCH_INVARIANT = 2,
  /* Read shared prefixes once per sequence even where reading them together would pay. In CUDA graphs that is always
   * so: a graph serves batches with other prefixes. */
  KVC_ATTN_NO_CASCADE = 4
};

/* Options of one attention call; NULL: all defaults. For query position p, key position j, head h:
 *   s = scale * (q . k);   with soft_cap c > 0: s = c * tanh(s / c)
 *   s = s - alibi_slopes[h] * (p - j) + bias[h][t][j]
 *   O = sum_j exp(s) v_j / (sum_j exp(s) + exp(sink_logits[h])),   LSE = ln sum_j exp(s)
 * Soft cap: Gemma-2; ALiBi: Press et al., arXiv:2108.12409; sink logits: gpt-oss. */
typedef struct kvc_attn_opt {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;             /* NULL: no extension is defined yet */
  uint64_t flags;                              /* KVC_ATTN_* */
  float scale;                                 /* 0: 1/sqrt(k_dim) */
  float soft_cap;                              /* 0: off; >= 0 */
  /* 0: the layer's; W >= 1: sees at most keys p-W+1..p in this call; not above the layer's own, nor above window - sink of a sequence of the
   * batch with sinks (KVC_E_OUT_OF_RANGE) */
  int64_t window;
  const DLTensor *KVC_NULLABLE sink_logits;    /* float32 [num_q_heads]: one more term of O's denominator */
  const DLTensor *KVC_NULLABLE alibi_slopes;   /* float32 [num_q_heads] */
  /* Additive bias, float32 [>= T, J] or [num_q_heads, >= T, J]: column j belongs to token j of the sequence (tree nodes follow
   * the committed tokens in their order), J >= the longest sequence of the batch with its new tokens. -inf masks
   * a key; its K and V may then hold anything. Any other value counts as 2.35e38 at most, either way: a row
   * whose keys all have the least float32 sees them alike. */
  const DLTensor *KVC_NULLABLE bias;
  /* Bidirectional spans, int32 [n, 3]: (entry of the batch, begin, end) in absolute positions, ascending and disjoint per entry: new tokens
   * inside a span see it to its end (images in Gemma-3), as far as tokens are there. Not with token trees, nor with moved
   * positions (KVC_E_UNSUPPORTED). */
  const DLTensor *KVC_NULLABLE spans;
} kvc_attn_opt;

/* Append k and v (when given), then attend: new token i of a sequence sees every token up to and including itself, tree nodes their
 * ancestors, all within the windows of layer and sequence.
 * MLA layers (absorbed form): q [>= T, num_q_heads, rank + rope dim], k NULL or the latents [>= T, 1, rank + rope dim], v NULL, out
 * [>= T, num_q_heads, rank]; scale must be given. K = V layers: v NULL. SHARED layers: k and v NULL, the source layer was appended before.
 * q [>= T, num_q_heads, k_dim], k [>= T, num_kv_heads, k_dim], v [>= T, num_kv_heads, v_dim], out [>= T, num_q_heads, v_dim],
 * lse float32 [>= T, num_q_heads], natural logarithm, real keys only (sink logits do not count). A row that sees no key: out 0, lse -inf.
 * k and v both NULL: the slots of this forward were filled before by kvc_kv_append (KVC_E_INVALID_STATE when not, unless the host can
 * write the pool itself: borrowed or exported).
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                            const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v, DLTensor *out,
                            DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_attn on one packed tensor qkv [>= T, num_q_heads + 2*num_kv_heads, k_dim]: q heads, then k heads, then v heads.
 * KVC_E_UNSUPPORTED: k_dim differs from v_dim.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_fused_qkv(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
                                      const DLTensor *qkv, DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attention among the new tokens only: causal inside each sequence; nothing is appended and no page is read. k and v are rounded to the
 * layer's storage type and rotated as an append would do, so that merging with kvc_attn_cached equals kvc_attn.
 * MLA layers (ragged form): q, k [>= T, num_q_heads, k_dim], v [>= T, num_q_heads, v_dim], out [>= T, num_q_heads, v_dim]. For the whole prompt
 * merge with kvc_attn_cached, whose latent output the caller has projected to v_dim.
 * KVC_E_UNSUPPORTED: a token tree of several forwards.
 * Sink logits enter the denominator of this part alone; to merge parts of a model with sink logits, leave them out of both and multiply the
 * merged output by 1 / (1 + exp(sink_logits[h] - lse)).
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_self(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                 const DLTensor *k, const DLTensor *v, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The new queries over the tokens that were cached before this forward: all of them that the windows show. Nothing is appended. For token trees:
 * over the committed tokens.
 * A sequence that was empty: out 0, lse -inf.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_cached(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                   DLTensor *out, DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Merge two partial attentions over disjoint keys, in place into (out, lse): weights exp(lse) (Dao et al., FlashDecoding).
 * out, other_out [>= T, H, D], any activation types; lse, other_lse float32 [>= T, H]. A part with lse -inf does not count.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_merge(kvc_forward *fwd, DLTensor *out, DLTensor *lse, const DLTensor *other_out,
                                  const DLTensor *other_lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Write k [>= T, num_kv_heads, k_dim] and v [>= T, num_kv_heads, v_dim] into the slots of this forward: rotated when the layer's rope mode
 * is ON_APPEND, rounded to nearest even to the storage types.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_kv_append(kvc_forward *fwd, int32_t layer, const DLTensor *k, const DLTensor *v,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Write latents [>= T, latent_rank + latent_rope_dim] (or [>= T, 1, ...]) into the slots of this forward of an MLA layer: the last
 * latent_rope_dim elements rotated when the layer's rope mode is ON_APPEND.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_mla_append(kvc_forward *fwd, int32_t layer, const DLTensor *latent,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Encoder-decoder attention: every new token sees all encoder tokens of its sequence. k [>= C, num_kv_heads, k_dim] and v [>= C, num_kv_heads,
 * v_dim], C = sum of kvc_forward_desc.cross_lengths, packed in the order of the batch: given in the forward that announced them, NULL
 * otherwise. No rotation. A sequence without encoder tokens: out 0, lse -inf. opt.window and opt.spans are refused.
 * KVC_E_INVALID_STATE: announced but not given, or not announced.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_cross(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                  const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v, DLTensor *out,
                                  DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attention that reads another layer's K and V, which that layer has appended in this forward: what kvc_attn does on a SHARED layer, for a
 * layer that is not in the plan. q [>= T, H, k_dim of the source], H any multiple of the source's kv heads; rotated by the source's rope.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_shared_kv(kvc_forward *fwd, int32_t source_layer, const kvc_attn_opt *KVC_NULLABLE opt,
                                      const DLTensor *q, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copy a sequence's K and V of one layer, as stored, into k_out [>= n, num_kv_heads, k_dim] and v_out [>= n, num_kv_heads, v_dim],
 * n = its length including this forward's new tokens and its tree nodes, which come in the order of their slots. Either output may be NULL, not
 * both. Any sequence of the cache. MLA: k_out [>= n, 1, rank + rope dim], v_out NULL; K = V layers: v_out NULL; CROSS: n = encoder tokens.
 * KVC_E_OUT_OF_RANGE: a window has dropped tokens (detail = the first kept). KVC_E_NOT_FOUND: seq. KVC_E_INVALID_STATE: the sequence grows in this forward and nothing was appended to the layer (as kvc_attn).
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_kv_gather(kvc_forward *fwd, int32_t layer, kvc_seq seq, DLTensor *KVC_NULLABLE k_out,
                                 DLTensor *KVC_NULLABLE v_out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Recurrent state: linear attention, Mamba, short convolutions                                          */
/* ==================================================================================================== */
/* One step of state per forward and sequence, whatever its number of tokens. kvc_state_get, kvc_attn_linear and kvc_state_conv read the state as it
 * was before the forward; what is set becomes the state when the forward ends; a state that is not set is carried on. An empty sequence has the
 * initial state. Checkpoints are kept where a forward ends on a multiple of config.state_stride (until their memory is needed) and by kvc_state_checkpoint
 * (until popped below). */

/* State `state` of every sequence of the batch: out [>= B, shape...], any activation type, compact inside a state.
 * KVC_E_INVALID_STATE: not open, not a STATE layer. KVC_E_OUT_OF_RANGE: layer, state. KVC_E_SHAPE,
 * KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_state_get(kvc_forward *fwd, int32_t layer, int32_t state, DLTensor *out,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The other way: value [>= B, shape...], rounded to the state's dtype. Statuses as kvc_state_get.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_state_set(kvc_forward *fwd, int32_t layer, int32_t state, const DLTensor *value,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Keep the state of the sequence's present length until it is popped below it or removed: makes fork and pop to it possible later.
 * On the edge of a block that the sequence has published, the block gets the state too: prefixes hit there.
 * KVC_E_NOT_FOUND. KVC_E_BUSY: in the open forward. KVC_E_UNSUPPORTED: no STATE layer. KVC_E_NO_MEMORY.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_state_checkpoint(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Recurrence of a linear attention layer. Per head, with state S [Dk, Dv], for each token t in order:
 *   S = decay_t * S;   with DELTA: u = beta_t (v_t - S^T k_t), else u = beta_t v_t;   S = S + k_t u^T;   o_t = scale S^T q_t + d v_t
 * Families: RetNet, Lightning: HEAD_DECAY. Gated DeltaNet: TOKEN_DECAY with DELTA. GLA: CHANNEL_DECAY; KDA: CHANNEL_DECAY with DELTA.
 * Mamba-2 SSD: TOKEN_DECAY with decay = dt A, beta = dt, k = B, q = C, v = x, skip = D. Plain DeltaNet: NO_DECAY with DELTA. */
typedef int32_t kvc_decay;
enum {
  KVC_DECAY_NONE = 0,
  KVC_DECAY_HEAD = 1,   /* ln(decay): float32 [H] */
  KVC_DECAY_TOKEN = 2,  /* ln(decay): [>= T, H] */
  KVC_DECAY_CHANNEL = 3 /* ln(decay): [>= T, H, Dk] */
};
enum { KVC_LINEAR_DELTA = 1 /* the delta rule */ };

typedef struct kvc_linear_opt {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;     /* NULL: no extension is defined yet */
  uint64_t flags;                      /* KVC_LINEAR_* */
  kvc_decay decay;
  int32_t state;                       /* index of S in the layer's states */
  float scale;                         /* 0: 1/sqrt(Dk) */
  int32_t reserved;                    /* 0 */
  const DLTensor *KVC_NULLABLE skip;   /* d: float32 [H]; NULL: 0 */
} kvc_linear_opt;

/* Linear attention over the new tokens, step or chunked prefill: reads and sets the layer's state, whose shape is [H, Dk, Dv].
 * q, k [>= T, Hk, Dk], Hk divides H (head h reads q and k head h / (H / Hk)); v, out [>= T, H, Dv]; decay: ln(decay) <= 0, as
 * opt.decay says, NULL for NONE; beta [>= T, H] or NULL (1). Activation types; decay and beta float32. Arithmetic in float32.
 * KVC_E_INVALID_STATE: not open, not a STATE layer. KVC_E_SHAPE: also a state that is not [H, Dk, Dv]. KVC_E_INVALID_ARGUMENT: decay given
 * or missing against opt. KVC_E_OUT_OF_RANGE: opt.state, scale. KVC_E_UNSUPPORTED: flags, unknown opt.decay.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_linear(kvc_forward *fwd, int32_t layer, const kvc_linear_opt *KVC_NULLABLE opt, const DLTensor *q,
                                   const DLTensor *k, const DLTensor *v, const DLTensor *KVC_NULLABLE decay,
                                   const DLTensor *KVC_NULLABLE beta, DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_activation;
enum { KVC_ACTIVATION_NONE = 0, KVC_ACTIVATION_SILU = 1 };

/* Causal depthwise convolution over the new tokens with its last inputs kept as state [C, W-1] (newest last), W = kernel width >= 2:
 *   out[t, c] = act(bias[c] + sum_j weight[c, j] x[t - W + 1 + j, c]).
 * x, out [>= T, C]; weight float32 [C, W]; bias float32 [C] or NULL. Sets the state. Statuses as kvc_attn_linear.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_state_conv(kvc_forward *fwd, int32_t layer, int32_t state, const DLTensor *x, const DLTensor *weight,
                                  const DLTensor *KVC_NULLABLE bias, kvc_activation activation, DLTensor *out,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Debug: prove equality with another cache                                                              */
/* ==================================================================================================== */

/* Copy the committed tokens [begin, end) of a sequence, all layers of the slice, K as stored (rotated when ON_APPEND); what belongs to
 * layers that are not ATTENTION is left as it is:
 * k [layers, end - begin, num_kv_heads, k_dim], v [layers, end - begin, num_kv_heads, v_dim], any activation type.
 * When layers differ, the heads and dims of the tensors are the largest ones and the rest of a smaller layer is left as it is. Either may be NULL.
 * K = V layers: K only, v is left as it is.
 * A window drops whole pages. A position inside a dropped page is KVC_E_OUT_OF_RANGE here and in
 * kvc_kv_gather, and its page is left out of exports (-1 in KVC_TABLE_BLOCK_TABLE); one that no query sees any
 * more but whose page is kept reads as stored.
 * KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: not 0 <= begin <= end <= length, or a window has dropped some (detail = first kept of that layer).
 * KVC_E_UNSUPPORTED: no storage, no ATTENTION layer. KVC_E_SHAPE, KVC_E_DTYPE.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_kv(const kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end, DLTensor *KVC_NULLABLE k,
                                    DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The other way: overwrite the committed tokens [begin, begin + n), n = dimension 1 of k and v, with values as they are to be
 * stored (not rotated again). Shared pages are made private first, so siblings keep theirs.
 * KVC_E_NO_PAGES: for that. KVC_E_BUSY: in the open forward. Others as kvc_debug_get_kv.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_kv(kvc_cache *cache, kvc_seq seq, int64_t begin, const DLTensor *KVC_NULLABLE k,
                                    const DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_debug_get_kv for the MLA layers: latent [layers, n, latent_rank + latent_rope_dim].
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_mla(const kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end, DLTensor *latent,
                                     kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_debug_set_kv for the MLA layers.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_mla(kvc_cache *cache, kvc_seq seq, int64_t begin, const DLTensor *latent,
                                     kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_debug_get_kv for one layer of any kind that keeps pages: k [n, num_kv_heads, k_dim], v [n, num_kv_heads, v_dim]; MLA: k [n, 1, rank + rope dim];
 * CROSS: begin and end count encoder tokens; SHARED: the source's.
 * KVC_E_OUT_OF_RANGE: also a layer that is not here. KVC_E_UNSUPPORTED: a layer without pages.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_layer(const kvc_cache *cache, kvc_seq seq, int32_t layer, int64_t begin, int64_t end,
                                       DLTensor *KVC_NULLABLE k, DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_debug_set_kv for one layer.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_layer(kvc_cache *cache, kvc_seq seq, int32_t layer, int64_t begin,
                                       const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v,
                                       kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The state of a sequence at its committed length: out [shape...].
 * KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: layer, state. KVC_E_UNSUPPORTED: no storage, not a STATE layer.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_state(const kvc_cache *cache, kvc_seq seq, int32_t layer, int32_t state, DLTensor *out,
                                       kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Replace the state of a sequence at its committed length; earlier checkpoints, published blocks and other
 * sequences keep theirs. As after every kvc_debug_set_*, nothing of the sequence is published any more.
 * KVC_E_BUSY: in the open forward. KVC_E_NO_PAGES: no state slot for it. Others as kvc_debug_get_state.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_state(kvc_cache *cache, kvc_seq seq, int32_t layer, int32_t state, const DLTensor *value,
                                       kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Zero-copy export                                                                                      */
/* ==================================================================================================== */
/* `*out`: owned by caller, released by its deleter (any thread, also after kvc_cache_destroy). */

typedef int32_t kvc_pool_kind;
enum {
  KVC_POOL_K = 0,    /* [num_pages, num_kv_heads, page_size, k_dim], strided view; MLA: [num_pages, 1, page_size, rank + rope dim] */
  KVC_POOL_V = 1,    /* [num_pages, num_kv_heads, page_size, v_dim], strided view */
  KVC_POOL_KV = 2,   /* [num_pages, 2, num_kv_heads, page_size, dim]; needs equal dims and dtypes of K and V */
  KVC_POOL_BYTES = 3 /* uint8 [num_pages, bytes of the layer's part of a page] */
};

/* The pool memory of one layer, writable, shared. SHARED: the source's. Elements are those of kvc_layer_info (quantised layers: types of 4 bits
 * are packed in pairs, strides count elements; their scales are in BYTES).
 * KVC_E_OUT_OF_RANGE: layer. KVC_E_UNSUPPORTED: no storage, a layer without pages, V of MLA and K = V layers, or KV of unequal K and V. KVC_E_INVALID_ARGUMENT: kind.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_export_pool(kvc_cache *cache, int32_t layer, kvc_pool_kind kind,
                                   struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_table_kind;
enum {
  KVC_TABLE_INDPTR = 0,        /* int32 [B+1]: CSR row pointer into INDICES */
  KVC_TABLE_INDICES = 1,       /* int32 [sum of pages]: page ids, sequence after sequence */
  KVC_TABLE_LAST_PAGE_LEN = 2, /* int32 [B]: tokens in the last page, 1..page_size; 0 for no token (CROSS) */
  KVC_TABLE_BLOCK_TABLE = 3,   /* int32 [B, most pages]: page ids, padded with -1 */
  KVC_TABLE_SLOT_MAPPING = 4,  /* int64 [T]: page * page_size + offset of each new token */
  KVC_TABLE_SEQ_LENS = 5,      /* int32 [B]: length with the new tokens */
  KVC_TABLE_QO_INDPTR = 6,     /* int32 [B+1]: CSR row pointer into the packed tokens */
  KVC_TABLE_PAGE_POSITION = 7  /* int32 [sum of pages]: first token of each page of INDICES */
};

/* The page tables of the open forward's B sequences, as they are with the new tokens (tree nodes included); a read-only snapshot. INDPTR, INDICES and
 * PAGE_POSITION list the pages that are kept; BLOCK_TABLE has -1 where a window has dropped one. A CROSS group counts encoder tokens.
 * `group`: 0..num_groups-1. KVC_E_OUT_OF_RANGE: group. KVC_E_INVALID_ARGUMENT: kind. KVC_E_INVALID_STATE: not open. KVC_E_NO_MEMORY.
 * Threading: one call at a time per forward. Device: host only. */
KVC_API kvc_status kvc_export_page_table(kvc_forward *fwd, int32_t group, kvc_table_kind kind,
                                         struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Ids of the kept pages of one sequence's committed tokens (tree nodes included), int32 [pages], ascending positions; a read-only snapshot.
 * KVC_E_NOT_FOUND: seq. KVC_E_OUT_OF_RANGE: group. KVC_E_NO_MEMORY.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_export_seq_pages(const kvc_cache *cache, kvc_seq seq, int32_t group,
                                        struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Operators: the same kernels over the host's own pools and page tables; no cache, nothing is kept       */
/* ==================================================================================================== */
/* All tensors of a call lie on the host, or all on one CUDA device; each function says which it takes (KVC_E_UNSUPPORTED: not this device).
 * On the CPU: tensors of pools are read and written in place; every page id and length is checked against the pool before anything is written.
 * On a CUDA device: the work is enqueued on opt->stream, and nothing waits; tensors live until it is done. executor and cpu_isa are not used. What the
 *   tensors hold is seen there alone, so no status tells of it, and what lies outside is left out: a slot or pair of pages outside of the pool is skipped;
 *   a sequence whose length, table or page ids lie outside, which is longer than its bias is wide, or that has more rows than keys where full = 0, sees no key (out 0, lse -inf); where
 *   qo_indptr does not ascend within the rows of q nothing is computed. Scratch comes from a pool that the library keeps per device. In a capture it is
 *   memory of the graph, which can then be instantiated once and be no child of another.
 * Common statuses: KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH: a tensor, also storage types other than float32, float16, bfloat16, and tensors
 * of several devices. KVC_E_OUT_OF_RANGE: a page id, a length, an indptr that does not ascend, no device of this number. KVC_E_DEVICE: the device failed.
 * KVC_E_INVALID_ARGUMENT, KVC_E_UNSUPPORTED, KVC_E_NO_MEMORY. */

typedef int32_t kvc_op_layout;
enum {
  KVC_OP_HND = 0, /* [num_pages, heads, page_size, dim]: the library's own */
  KVC_OP_NHD = 1, /* [num_pages, page_size, heads, dim]: FlashInfer, vLLM */
  KVC_OP_MLA = 2  /* [num_pages, page_size, rank + rope dim] */
};

/* One layer's pool. Any strides but the last. */
typedef struct kvc_op_pool {
  size_t struct_size;
  const DLTensor *k;
  const DLTensor *KVC_NULLABLE v; /* NULL: MLA, or V is K */
  kvc_op_layout layout;
  int32_t reserved;               /* 0 */
} kvc_op_pool;

/* Page tables of B sequences: either CSR (page_indptr, page_indices) or padded (block_table); int32. */
typedef struct kvc_op_table {
  size_t struct_size;
  const DLTensor *seq_lens;                   /* [B]: keys of each sequence, the new ones included; >= 0 */
  const DLTensor *KVC_NULLABLE qo_indptr;     /* [B+1]: rows of q of each sequence; NULL: one each */
  const DLTensor *KVC_NULLABLE page_indptr;   /* [B+1] */
  const DLTensor *KVC_NULLABLE page_indices;  /* [page_indptr[B]] */
  const DLTensor *KVC_NULLABLE block_table;   /* [B, most pages]; entries behind a sequence's pages are not read */
} kvc_op_table;

typedef struct kvc_op_opt {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;             /* NULL: no extension is defined yet */
  const kvc_executor *KVC_NULLABLE executor;   /* borrowed for the call; NULL: the caller's thread only */
  kvc_cpu_isa cpu_isa;
  int32_t full;                                /* attention: 0: row i of n sees keys up to seq_len - n + i (causal); 1: every row sees all keys */
  const kvc_attn_opt *KVC_NULLABLE attn;       /* attention: scale, soft_cap, window, sink_logits, alibi, bias, flags; spans are refused */
  const DLTensor *KVC_NULLABLE positions;      /* append, rotate: int32 [T]. attention with a rope: [T] of the queries */
  const kvc_rope *KVC_NULLABLE rope;           /* append: K is rotated. attention: q is rotated (K is stored rotated). NONE: neither */
  kvc_stream KVC_NULLABLE stream;              /* of the work on a CUDA device; ignored on the CPU */
} kvc_op_opt;

/* Write k [>= T, heads, k_dim] and v [>= T, heads, v_dim] to `slots` int64 [T] = page * page_size + offset; < 0: skip. T = length of slots.
 * Threading: any, not two that write the same slots. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_append(const kvc_op_pool *pool, const kvc_op_opt *KVC_NULLABLE opt, const DLTensor *slots,
                                 const DLTensor *k, const DLTensor *KVC_NULLABLE v, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attention of q [T, num_q_heads, k_dim] over pages; out [T, num_q_heads, v_dim], lse float32 [T, num_q_heads].
 * On a CUDA device T is dimension 0 of q where qo_indptr is given, rows behind the last cut stay as they are, and KVC_ATTN_BATCH_INVARIANT is
 * KVC_E_UNSUPPORTED, for this and the two below.
 * Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_attention_paged(const kvc_op_pool *pool, const kvc_op_table *table, const kvc_op_opt *KVC_NULLABLE opt,
                                          const DLTensor *q, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                          kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attention of packed q [T, num_q_heads, k_dim] over packed k [K, num_kv_heads, k_dim], v [K, num_kv_heads, v_dim]; qo_indptr, kv_indptr int32
 * [B+1] cut them into sequences; kv_indptr NULL: qo_indptr.
 * Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_attention_ragged(const DLTensor *qo_indptr, const DLTensor *KVC_NULLABLE kv_indptr,
                                           const kvc_op_opt *KVC_NULLABLE opt, const DLTensor *q, const DLTensor *k,
                                           const DLTensor *v, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                           kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Absorbed MLA over a pool of layout MLA: q [T, heads, rank + rope dim], out [T, heads, latent_rank]; opt->attn->scale must be given.
 * Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_mla_paged(const kvc_op_pool *pool, const kvc_op_table *table, int32_t latent_rank,
                                    const kvc_op_opt *opt, const DLTensor *q, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_attn_merge without a forward: T = dimension 0 of out.
 * Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_merge(const kvc_op_opt *KVC_NULLABLE opt, DLTensor *out, DLTensor *lse, const DLTensor *other_out,
                                const DLTensor *other_lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copy all keys of the table's sequences, packed in their order, into k_out [>= sum of seq_lens, heads, k_dim] and v_out; either may be NULL.
 * Threading: any. Device: the CPU only, complete on return. */
KVC_API kvc_status kvc_op_gather(const kvc_op_pool *pool, const kvc_op_table *table, const kvc_op_opt *KVC_NULLABLE opt,
                                 DLTensor *KVC_NULLABLE k_out, DLTensor *KVC_NULLABLE v_out,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copy pages inside a pool: pairs int64 [n, 2] of (from, to), distinct destinations, none of which is a source (on CUDA not checked).
 * Threading: any, not on the same pages. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_copy_pages(const kvc_op_pool *pool, const kvc_op_opt *KVC_NULLABLE opt, const DLTensor *pairs,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Rotate x [T, heads, dim] into out (which may be x: same address, strides and type) by opt->rope at
 * opt->positions.
 * Threading: any. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_rotate(const kvc_op_opt *opt, const DLTensor *x, DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_attn_linear over the host's own states [B, H, Dk, Dv], updated in place; qo_indptr int32 [B+1] cuts the tokens into sequences, NULL: one each.
 * Threading: any, not on the same states. Device: the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_linear_step(const kvc_linear_opt *KVC_NULLABLE linear, const kvc_op_opt *KVC_NULLABLE opt,
                                      const DLTensor *KVC_NULLABLE qo_indptr, DLTensor *states, const DLTensor *q,
                                      const DLTensor *k, const DLTensor *v, const DLTensor *KVC_NULLABLE decay,
                                      const DLTensor *KVC_NULLABLE beta, DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Prefix cache: prompts that begin alike share pages                                                    */
/* ==================================================================================================== */
/* Unit: a block of kvc_plan_info.prefix_block tokens, all groups together. Blocks are found by their key, which names the block's tokens, all tokens before
 * them and the namespace:
 *   root     = SHA-256("kvcache-prefix-1" | u64 salt_size | salt)
 *   key of i = SHA-256(key of i-1, or root | u32 k | for each of the k extra keys of the block: u32 type | u32 offset - i * block | u64 size | data |
 *              int32 tokens of the block)
 * all integers little endian; an extra key belongs to the block that holds the token at its offset; they are ordered by (offset, type, data).
 * Test vectors: tests/conformance/.
 * A block is published when it is full and committed: by forwards that give `tokens`, or by kvc_prefix_insert. Equal blocks are kept once: a sequence
 * that computed one again takes the index's pages over. Pages that only the index holds count as free and are evicted when pages are needed: leaves
 * first, least recently used first, lower priority first, never pages in use or pinned. Blocks of a namespace with a quota
 * (kvc_prefix_quota_set) go after all others, so that one tenant's traffic evicts its own blocks before another's. With a host budget evicted pages
 * move to the host and come back on a hit.
 * A hit has all that the next query sees in every group: all tokens, or the last W of a window; recurrent states need a checkpoint at its end.
 * Caches with CROSS layers: KVC_E_UNSUPPORTED (encoder tokens are not part of the key). */

enum { KVC_HASH_BYTES = 32 };

typedef uint32_t kvc_prefix_key_type;
enum {
  KVC_PREFIX_KEY_ADAPTER = 1, /* LoRA or other adapter, offset 0 */
  KVC_PREFIX_KEY_MEDIA = 2,   /* digest of an image, audio or video, offset of its first token */
  KVC_PREFIX_KEY_USER = 256   /* this and all above: the host's own */
};

/* More than tokens that K and V depend on. In an array, the first element's struct_size is the stride of all. */
typedef struct kvc_prefix_key {
  size_t struct_size;
  kvc_prefix_key_type type;   /* not 0 */
  uint32_t reserved;          /* 0 */
  int64_t offset;             /* token where it begins to matter, >= 0 */
  const void *KVC_NULLABLE data;
  size_t size;                /* bytes, at most 4096 */
} kvc_prefix_key;

/* Bits of kvc_prefix_query.flags. */
enum {
  KVC_PREFIX_ALL_TOKENS = 1, /* all num_tokens may hit; without it the last one is left to be computed */
  KVC_PREFIX_WHOLE_BLOCKS = 2 /* no hit inside a block; without it the first tokens of a block that begins alike hit too (copied on write) */
};

typedef struct kvc_prefix_query {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;          /* NULL: no extension is defined yet */
  uint64_t flags;                           /* KVC_PREFIX_* */
  int64_t num_tokens;                       /* >= 0 */
  const int32_t *KVC_NULLABLE tokens;       /* [num_tokens]; may be NULL when hashes are given: then nothing hits inside a block, and new
                                               blocks have no token ids (events without tokens). Borrowed for the call */
  const uint8_t *KVC_NULLABLE hashes;       /* [num_hashes][KVC_HASH_BYTES]: keys of the leading full blocks as kvc_prefix_hash makes them, so that
                                               they are not computed again. A key names a block of the query's
                                               namespace only; that it is the key of these tokens is trusted.
                                               Borrowed for the call */
  size_t num_hashes;                        /* 0, or num_tokens / prefix_block when tokens is NULL; fewer are completed from tokens */
  const void *KVC_NULLABLE salt;            /* namespace: a tenant, at most 4096 bytes; nothing is shared across */
  size_t salt_size;
  const kvc_prefix_key *KVC_NULLABLE keys;  /* [num_keys], any order; borrowed for the call */
  size_t num_keys;                          /* at most 1024 */
  int32_t priority;                         /* of the blocks this call publishes, and of those it hits when higher: 0..100, higher stays longer */
  int32_t reserved;                         /* 0 */
} kvc_prefix_query;

/* Keys of the full blocks of `num_tokens` tokens: out_hashes [num_tokens / block_tokens][KVC_HASH_BYTES]; two-call array, *len counts keys.
 * Same result in every process and language.
 * KVC_E_INVALID_ARGUMENT: block_tokens < 1, NULL arrays, a key of type 0. KVC_E_OUT_OF_RANGE: salt or key longer than 4096 bytes, offset < 0.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_prefix_hash(const int32_t *KVC_NULLABLE tokens, size_t num_tokens, int32_t block_tokens,
                                   const void *KVC_NULLABLE salt, size_t salt_size, const kvc_prefix_key *KVC_NULLABLE keys,
                                   size_t num_keys, uint8_t *KVC_NULLABLE out_hashes, size_t *len,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Leading tokens that kvc_prefix_attach would find now: of what lies on the host only as much as pages are
 * free, and a quota leaves room, to bring it back. Changes nothing, counts in no metric.
 * KVC_E_INVALID_ARGUMENT: NULL, neither tokens nor hashes, a key of type 0. KVC_E_OUT_OF_RANGE: a length beyond its limit. KVC_E_UNSUPPORTED.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_prefix_match(const kvc_cache *cache, const kvc_prefix_query *query, int64_t *out_tokens,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Add `seq` with the longest hit (its length is then *out_tokens, 0 when nothing hits), in the query's namespace: later forwards with `tokens` publish there.
 * Pages on the host are copied back as long as pages are free; the hit is shorter when they are not.
 * Statuses of kvc_prefix_match and kvc_seq_add. KVC_E_BUSY: a forward is open.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_prefix_attach(kvc_cache *cache, kvc_seq seq, const kvc_prefix_query *query,
                                     int64_t *KVC_NULLABLE out_tokens, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Say that the first query->num_tokens (at most the length) tokens of `seq` are these, in this namespace, and publish their full blocks. Replaces what was
 * known of the sequence. *out_tokens: tokens of it that are in the index now. Blocks from the first token on that
 * a KVC_FORWARD_PARTIAL has left unwritten are not published.
 * KVC_E_NOT_FOUND. KVC_E_OUT_OF_RANGE: more tokens than the sequence has. KVC_E_BUSY: a forward is open. KVC_E_INVALID_STATE: swapped out; an
 * uncommitted tree; positions moved by kvc_seq_shift, a window set by kvc_seq_set_window, values written by kvc_debug_set_*, or older than
 * kvc_prefix_reset. Others as kvc_prefix_match.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_insert(kvc_cache *cache, kvc_seq seq, const kvc_prefix_query *query,
                                     int64_t *KVC_NULLABLE out_tokens, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Keep the full blocks of the query that are in the index (on the device) from being evicted; counts. *out_tokens: tokens pinned. Pinned pages are not free.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_pin(kvc_cache *cache, const kvc_prefix_query *query, int64_t *KVC_NULLABLE out_tokens,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Undo one kvc_prefix_pin of the same query; *out_tokens: tokens of the leading blocks that were pinned.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_unpin(kvc_cache *cache, const kvc_prefix_query *query, int64_t *KVC_NULLABLE out_tokens,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Evict until at least `pages` pages have left the index (to the host when it has room), or nothing evictable is left. *out_freed: how many did.
 * KVC_E_OUT_OF_RANGE: negative.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_prefix_evict(kvc_cache *cache, int64_t pages, int64_t *KVC_NULLABLE out_freed,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Forget the whole index, pins and host copies too (new weights). Sequences keep their pages, but what they have computed so far is never published.
 * KVC_E_BUSY: a forward is open.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_reset(kvc_cache *cache, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Give the namespace `salt` a quota: the device pages and states that the index holds for it stay within max_bytes (what does not fit replaces its own least
 * recently used blocks, or is not published), and other namespaces' traffic evicts them only when nothing else can be evicted. 0: no quota.
 * Shrinking evicts at once what is not in use.
 * KVC_E_OUT_OF_RANGE: salt longer than 4096 bytes, more than 4096 namespaces with quotas.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_quota_set(kvc_cache *cache, const void *KVC_NULLABLE salt, size_t salt_size, uint64_t max_bytes,
                                        kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Events: what the index holds, for routers                                                             */
/* ==================================================================================================== */

typedef int32_t kvc_event_type;
enum {
  KVC_EVENT_STORED = 0,  /* group `group` of the block is in `tier` now */
  KVC_EVENT_REMOVED = 1, /* and no longer */
  KVC_EVENT_MOVED = 2,   /* from `from_tier` to `tier` */
  KVC_EVENT_CLEARED = 3  /* nothing is held any more, in no tier */
};

typedef int32_t kvc_tier;
enum { KVC_TIER_DEVICE = 0, KVC_TIER_HOST = 1 };

/* A consumer that starts from nothing (or from kvc_events_snapshot) and applies events in order holds what the index holds: for each key and group the tier.
 * A group of a block is held when all its pages in the block are. */
typedef struct kvc_event {
  size_t struct_size;
  uint64_t number;           /* 1, 2, 3, ... since the cache was made; a gap: events were lost, take a snapshot */
  kvc_event_type type;
  kvc_tier tier;
  kvc_tier from_tier;        /* MOVED */
  int32_t group;             /* -1: the recurrent state at the block's end */
  int32_t num_tokens;        /* of the block */
  int32_t reserved;
  const int32_t *tokens;     /* STORED: [num_tokens], NULL when unknown or when the block has been removed since; valid until the next call that takes
                                kvc_cache * */
  uint8_t hash[KVC_HASH_BYTES];
  uint8_t parent[KVC_HASH_BYTES]; /* STORED: the block before, or the root of the namespace */
} kvc_event;

/* The oldest unpolled events, at most *count of them, into out (out[0].struct_size is the stride); *count: how many there were. When more than
 * config.event_capacity wait, the oldest are lost, which the next event's number shows.
 * KVC_E_UNSUPPORTED: config.event_capacity is 0.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_events_poll(kvc_cache *cache, kvc_event *out, size_t *count, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Everything that the index holds as STORED events, parents before their children; two-call array. *out_number: the number of the last event that they
 * include: apply polled events with larger ones.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_events_snapshot(const kvc_cache *cache, kvc_event *KVC_NULLABLE out, size_t *count, uint64_t *out_number,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ==================================================================================================== */
/* Copies and swap                                                                                       */
/* ==================================================================================================== */
/* The host pool has kvc_plan_info.num_host_pages pages of the device's format. It is used in one of two ways, whichever comes first after creation or
 * kvc_cache_clear: by sequences and the prefix index (kvc_swap_out, evicted pages), or by page ids (kvc_pages_swap), where the host program
 * says which page holds what. The other one then answers KVC_E_INVALID_STATE.
 * Copies run in the order of the calls; on the CPU they are complete on return and fences are signalled. `out_fence`: NULL, or owned by caller. */

/* Move sequences to the host: their pages, the states of STATE layers, their checkpoints. Pages and states that several of them share stay shared; pages
 * that others or the prefix index hold stay there as well. A swapped sequence keeps id, length and namespace; until it is swapped in only kvc_seq_remove, kvc_seq_length,
 * kvc_seq_info_get, kvc_seq_list and kvc_swap_in take it, others answer KVC_E_INVALID_STATE.
 * KVC_E_NOT_FOUND. KVC_E_INVALID_ARGUMENT: n = 0, duplicate ids. KVC_E_INVALID_STATE: swapped already, an uncommitted tree. KVC_E_BUSY: in the
 * open forward. KVC_E_NO_PAGES: the host pool is full (detail = missing host pages). KVC_E_UNSUPPORTED: no host budget. KVC_E_NO_MEMORY.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_swap_out(kvc_cache *cache, size_t n, const kvc_seq *seqs, kvc_stream KVC_NULLABLE stream,
                                kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Bring them back. What sequences of one kvc_swap_out shared is shared again when they come back in one call.
 * KVC_E_INVALID_STATE: not swapped. KVC_E_NO_PAGES: detail = pages (and state slots) missing. Others as kvc_swap_out.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_swap_in(kvc_cache *cache, size_t n, const kvc_seq *seqs, kvc_stream KVC_NULLABLE stream,
                               kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_swap_direction;
enum { KVC_SWAP_OUT = 0 /* device to host */, KVC_SWAP_IN = 1 /* host to device */ };

/* Copy whole pages (all layers) between the pools: pairs int64 [n, 2] on the CPU of (from, to), any n >= 0, borrowed for the call. Runs of pages that are adjacent
 * in both pools, ascending or descending, are copied at once. The tables of sequences are not looked at: on the device, any page may be named.
 * KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_DEVICE_MISMATCH: pairs. KVC_E_OUT_OF_RANGE: a page id (detail = row). KVC_E_INVALID_ARGUMENT: a destination twice
 * (detail = row). KVC_E_UNSUPPORTED: no storage, no host budget, unknown direction. KVC_E_INVALID_STATE: see above.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_pages_swap(kvc_cache *cache, const DLTensor *pairs, kvc_swap_direction direction,
                                  kvc_stream KVC_NULLABLE stream, kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* The same inside the device pool. Also refused (KVC_E_INVALID_ARGUMENT): a page that is source of one pair and destination of another, whose result
 * would depend on the order.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_pages_copy(kvc_cache *cache, const DLTensor *pairs, kvc_stream KVC_NULLABLE stream,
                                  kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* *out_done: 1 when the copies are complete, else 0.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_fence_query(const kvc_fence *fence, int32_t *out_done, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Wait for the copies, at most timeout_ns nanoseconds; negative: for ever.
 * KVC_E_TIMEOUT: not done by then.
 * Threading: any. Device: blocks until done. */
KVC_API kvc_status kvc_fence_wait(const kvc_fence *fence, int64_t timeout_ns, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Let what is enqueued on `stream` from now on wait for the copies. On the CPU: waits here.
 * Threading: any. Device: enqueues on the stream. */
KVC_API kvc_status kvc_fence_wait_on_stream(const kvc_fence *fence, kvc_stream KVC_NULLABLE stream,
                                            kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* NULL is accepted. The copies go on. A fence may outlive its cache.
 * Threading: any, once. Device: host only. */
KVC_API void kvc_fence_destroy(kvc_fence *KVC_NULLABLE fence) KVC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_H_ */
