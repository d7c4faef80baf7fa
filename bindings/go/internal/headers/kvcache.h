/*
 * kvcache.h - the C interface of libkvcache, a paged KV cache of LLM serving as a library.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * WHAT IT IS
 *   Layer specs become a memory plan; token counts become page tables; Q, K and V become attention
 *   outputs. Tensors cross as DLPack, so any framework shares its memory. There are four ways in,
 *   and one implementation behind them:
 *
 *     whole cache        kvc_cache_create with KVC_STORAGE_OWNED or KVC_STORAGE_BORROWED, then
 *                        forwards with kvc_attn.
 *     bookkeeping only   KVC_STORAGE_NONE: lengths in, page ids out. No tensor memory exists.
 *     own kernels        kvc_kv_append or an append of the host program, kvc_export_page_table,
 *                        kvc_export_pool.
 *     operators          kvc_op_*: the same kernels over pools and page tables of the host
 *                        program, without a cache.
 *
 * A FIRST PROGRAM
 *   One layer, one sequence `seq`, a prompt of n = 100 tokens. q and out are [100, 32, 128], k and
 *   v [100, 8, 128]. Every call returns KVC_OK, or a status and a message in `err`.
 *
 *     kvc_layer layer = {.struct_size = sizeof layer, .num_q_heads = 32, .num_kv_heads = 8};
 *     layer.k_dim = 128;
 *     kvc_config config = {.struct_size = sizeof config, .num_layers = 1, .layers = &layer};
 *     config.num_pages = 1024;
 *     kvc_plan_create(&config, &plan, &err);
 *     kvc_cache_create(plan, &cache, &err);
 *     kvc_seq_add(cache, seq, &err);
 *     kvc_forward_desc desc = {.struct_size = sizeof desc, .num_seqs = 1, .seqs = &seq};
 *     desc.append_lengths = &n;
 *     kvc_forward_begin(cache, &desc, &fwd, &err);
 *     kvc_attn(fwd, 0, NULL, &q, &k, &v, &out, NULL, &err);    once per layer, in any order
 *     kvc_forward_end(fwd, &err);                              or kvc_forward_abort
 *     kvc_cache_destroy(cache), kvc_plan_destroy(plan);
 *
 * WHAT IS WHERE
 *   Basics      basic types and statuses, library
 *   Simple      plan, cache, sequences, forward, attention
 *   Sharing     prefix cache, events, copies and swap, state files
 *   Advanced    CUDA graphs, token trees, partial attention, recurrent state, operators
 *   Debug       reading and writing rows
 *   Export      pool and page tables for kernels of your own, zero-copy
 *   The function table for programs that load the library at run time is in kvcache_api.h.
 *
 * RULES OF EVERY CALL
 *   Guarantee   A call that fails leaves the cache as it was before, counters of kvc_stats aside,
 *               unless it is KVC_E_DEVICE. Outputs are written on success only, unless a comment
 *               says otherwise.
 *   Ownership   "borrowed for the call": not kept. "borrowed until X": must stay valid until X.
 *               "copied": free to go. "owned by caller": the caller destroys it.
 *   Refusals    What is not supported is refused by name (KVC_E_UNSUPPORTED). Nothing is ignored
 *               or approximated.
 *   Printing    Nothing is printed, nothing aborts, no exception crosses the boundary, and no
 *               environment variable changes a result.
 *
 * ERRORS
 *   A call that can fail returns kvc_status and takes a nullable kvc_error as its last argument
 *   (kvc_config_init alone takes none).
 *   The kvc_error is filled on failure and untouched on success. Its message names the argument
 *   and both values. Comments sort the statuses:
 *
 *     Expected:  A correct program meets these and handles them.
 *     Misuse:    A correct program never meets these: an argument, a call out of order, or a
 *                feature that the build, the device or the configuration does not have.
 *
 *   A function without one of the two lines has no such status. Where one status stands on both
 *   lines, its message tells which it is. Any call may return these where they apply; a comment
 *   names one of them only to add to it:
 *
 *     KVC_E_INVALID_ARGUMENT  A pointer that is not marked KVC_NULLABLE is NULL, or a struct_size
 *                             is too small to hold itself.
 *     KVC_E_UNSUPPORTED       An unknown bit in `flags`, a `reserved` field that is not 0, or an
 *                             entry in `ext`.
 *     KVC_E_VERSION           A struct is longer than the library's, and its tail is not zero.
 *     KVC_E_BUFFER_TOO_SMALL  An output array or string does not fit; see ARRAYS OUT.
 *     KVC_E_NO_MEMORY         The host or the device has no memory for tables or workspace.
 *     KVC_E_DEVICE            The device failed, in this call or before; see DEVICE.
 *     KVC_E_INTERNAL          A defect in the library.
 *
 * STRUCTS
 *   1. Structs cross by pointer. The caller sets `struct_size` to sizeof; all other bytes zero
 *      means default.
 *   2. A caller's struct may be shorter than the library's: the missing tail counts as zero.
 *   3. It may be longer: the unknown tail must be zero, else KVC_E_VERSION.
 *   4. Output structs: the library writes what fits, and stores the number of bytes that it filled
 *      in struct_size.
 *
 * ARRAYS OUT
 *   Strings and arrays are written into the caller's buffer. `*len` is its capacity in elements on
 *   entry and the needed count on return. A NULL buffer asks for the count (KVC_OK). Where the
 *   buffer is too small, nothing but `*len` is written, and the call returns
 *   KVC_E_BUFFER_TOO_SMALL. Counts of strings include the terminating NUL.
 *
 * TENSORS
 *   1. Inputs are const DLTensor *, borrowed for the call. Outputs are DLTensor *, allocated by
 *      the caller.
 *   2. data + byte_offset is honoured. NULL strides mean compact row-major. Any strides are
 *      accepted, but the last dimension must be contiguous. Zero-size tensors may have NULL data.
 *   3. Checks come in this order: ndim, dtype, device, shape, strides, alignment (to the element).
 *   4. Activations (q, k, v, out) are float32, float16 or bfloat16, each tensor its own.
 *   5. Tokens are packed over the batch, in the order of the forward's sequences.
 *      T = kvc_forward_num_tokens. More rows than T are padding: neither read nor written.
 *   6. An output must not share a byte with another output, an activation or an option's tensor
 *      of the same call (KVC_E_INVALID_ARGUMENT; the message names both), unless a comment allows
 *      it. Only bytes that the call uses count: heads of one fused buffer may be input and output
 *      side by side. Pools, tables, indices and memory that a caller borrows or exports are not
 *      compared.
 *   7. Statuses of a bad tensor, which comments call "tensors":
 *        KVC_E_SHAPE            rank, shape, stride or alignment
 *        KVC_E_DTYPE            element type
 *        KVC_E_DEVICE_MISMATCH  the tensor lies on another device than the call expects
 *
 * THREADING
 *   Different caches are independent. For one cache, the Threading line of a function says:
 *     any        From any thread at any time. "any, once": at the end of the object's life.
 *     shared     Takes a const kvc_cache * or reads a forward: may run concurrently with other
 *                such calls and with one call on the open forward.
 *     exclusive  Needs external exclusion: no other call on this cache or its forward at the same
 *                time. Fences and the deleters of exports are no calls on the cache.
 *     one call at a time per forward
 *                No other such call on the same forward; shared calls may run meanwhile.
 *   One forward is open at a time. A handle may move between threads. A kvc_plan is immutable and
 *   freely shared. Global mutable state is the logger, the modules' directory and the table that
 *   forward handles are looked up in; all three are safe to use from any thread.
 *   Threads of the library take no signals, and their names begin with "kvc-".
 *   After fork() the child may use the library as if it were new, whatever other threads of the
 *   parent were doing, and may go on with its copy of a CPU cache that no thread was using. Handles
 *   of forwards that are open then are open in both.
 *
 * DEVICE
 *   A cache lives where kvc_config.device says, and so do the tensors that it is given, unless a
 *   comment says "on the host". The Device line of a function says what it does there:
 *     host only          Enqueues nothing and never waits for a device, unless the comment says
 *                        when it does.
 *     enqueues           CUDA: the work is enqueued, and the call returns at once. CPU: complete
 *                        on return, and streams are ignored.
 *     blocks until done  Complete on return.
 *   Calls on an open forward use kvc_forward_desc.stream, calls with a stream argument use that
 *   one, and others use a stream of the library. One waits for the other on the device, whatever
 *   the streams. KVC_E_DEVICE: the device failed. The bookkeeping is intact, what lies on the
 *   device may not be, and every later call that needs the device says so again.
 *
 * LOADING AT RUN TIME
 *   dlopen with RTLD_NOW | RTLD_LOCAL, then kvc_get_api (kvcache_api.h). Do not dlclose while
 *   exported tensors live.
 *
 * STABILITY
 *   Everything here is append-only within SONAME libkvcache.so.0 as soon as 0.1 is released. */
#ifndef KVCACHE_H_
#define KVCACHE_H_

#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

/* DLPack before 1.0 has the same include guard, so one that was included first is all there is. */
#if !defined(DLPACK_MAJOR_VERSION) && !defined(SWIG)
#  error "kvcache.h needs DLPack 1.0 or later: an older dlpack.h was found or included before"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header's ABI: major << 16 | minor. Compare it with kvc_abi_version(). */
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

/* Gives an enum the type of the values that it lists where the language can. Functions and structs
 * use the integer types alone; enums have names for generators of bindings. */
#if defined(__cplusplus) || defined(__clang__) || \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#  define KVC_INT32_ENUM : int32_t
#else
#  define KVC_INT32_ENUM
#endif
#if defined(__clang__)
#  pragma clang diagnostic push
#  pragma clang diagnostic ignored "-Wpedantic"
#endif

/* ============================================================================================== */
/* Basic types and statuses                                                                       */
/* ============================================================================================== */

typedef struct kvc_plan kvc_plan;       /* Planned memory of a model; immutable. */
typedef struct kvc_cache kvc_cache;     /* Pages and sequences. */
typedef struct kvc_forward kvc_forward; /* The open forward: a number, see kvc_forward_begin. */
typedef struct kvc_fence kvc_fence;     /* Completion of copies. */

typedef int64_t kvc_seq;  /* Sequence id, >= 0, chosen by the caller. */
typedef void *kvc_stream; /* cudaStream_t of the host program. NULL: the legacy default stream.
                             Ignored on the CPU. */

/* Result of a call. Values never change; the list only grows at the end. */
typedef int32_t kvc_status;
enum kvc_status_value KVC_INT32_ENUM {
  KVC_OK = 0,
  KVC_E_INVALID_ARGUMENT = 1,  /* A NULL, negative or contradictory argument. */
  KVC_E_INVALID_STATE = 2,     /* The object is not in the state that the call needs: no open
                                  forward, a layer of another kind, a swapped sequence. */
  KVC_E_NOT_FOUND = 3,         /* Unknown sequence. */
  KVC_E_ALREADY_EXISTS = 4,    /* The sequence id is taken. */
  KVC_E_OUT_OF_RANGE = 5,      /* A position, length, count or index is beyond its limit. */
  KVC_E_SHAPE = 6,             /* A tensor's rank, shape, stride or alignment is not accepted. */
  KVC_E_DTYPE = 7,             /* A tensor's element type is not accepted. */
  KVC_E_DEVICE_MISMATCH = 8,   /* A tensor lives on another device than the call expects. */
  KVC_E_UNSUPPORTED = 9,       /* Meaningful, but not available in this build, on this device or in
                                  this combination. */
  KVC_E_NO_PAGES = 10,         /* Full now; expected. kvc_error.detail = pages and state slots
                                  missing. */
  KVC_E_NEVER_FITS = 11,       /* Could not be served even by an empty cache. */
  KVC_E_NO_MEMORY = 12,        /* A host or device allocation failed. */
  KVC_E_BUSY = 13,             /* The object is in use: open forward, exported memory. */
  KVC_E_BUFFER_TOO_SMALL = 14, /* The needed size is returned. */
  KVC_E_VERSION = 15,          /* A struct's tail or a version is not understood. */
  KVC_E_CORRUPT = 16,          /* An invariant does not hold, or a file is damaged. */
  KVC_E_IO = 17,               /* A file or a function that reads or writes one failed; sys_code =
                                  errno. */
  KVC_E_TIMEOUT = 18,          /* The time given to a wait or to a transfer is over. */
  KVC_E_PEER = 19,             /* The other side of a transfer is gone. */
  KVC_E_CANCELLED = 20,        /* A transfer was cancelled. */
  KVC_E_DEVICE = 21,           /* Device failure; sticky. sys_code = the device library's code. */
  KVC_E_INTERNAL = 22          /* A defect in the library. */
};

/* Details of a failure: 512 bytes, owned by the caller, no allocation. */
typedef struct kvc_error {
  size_t struct_size; /* 0 is taken as sizeof(kvc_error). */
  kvc_status status;  /* The status that the call returned. */
  int32_t sys_code;   /* errno or a device library's code, else 0. */
  int64_t detail;     /* A number that belongs to the status: missing pages, offending id, ... */
  char message[488];  /* NUL-terminated UTF-8. */
} kvc_error;

/* Head of a chained option struct. Unknown or repeated types are refused, never skipped. No types
 * are defined yet, so every `ext` field must be NULL. */
typedef struct kvc_ext {
  int32_t type;
  const struct kvc_ext *KVC_NULLABLE next;
} kvc_ext;

/* ============================================================================================== */
/* Library                                                                                        */
/* ============================================================================================== */

/* Returns the version of the loaded library's ABI, major << 16 | minor.
 *
 * Threading: any. Device: host only. */
KVC_API uint32_t kvc_abi_version(void) KVC_NOEXCEPT;

/* Returns version and build, for example "0.1.0 cpu". Static storage.
 *
 * Threading: any. Device: host only. */
KVC_API const char *kvc_version_string(void) KVC_NOEXCEPT;

/* Returns the name of a status, for example "KVC_E_NO_PAGES". Never NULL: a value that this library
 * does not know is "KVC_E_UNKNOWN".
 *
 * Threading: any. Device: host only. */
KVC_API const char *kvc_status_name(kvc_status status) KVC_NOEXCEPT;

/* Returns 1 when the build has a feature, and 0 when it has not or does not know the name.
 *
 *   back ends   "cpu", "cuda"
 *   types       "f32", "f16", "bf16"
 *   RoPE        "rope.half", "rope.interleaved", "rope.on_read", "rope.llama3", "rope.yarn",
 *               "rope.longrope", "rope.mrope"
 *   scores      "softcap", "sink_logits", "alibi", "bias"
 *   masks       "spans", "window", "window.sink", "chunk", "tree"
 *   layers      "mla", "cross", "shared", "v_is_k", "state", "linear"
 *   calls       "cascade", "shift", "ops", "resize", "export", "swap", "events"
 *   storage     "storage.borrowed", "storage.none", "layout.page_first"
 *   planning    "plan.quant", "plan.hf_json"
 *   prefixes    "prefix", "prefix.tail", "prefix.quota", "prefix.host"
 *
 * "cuda" says whether the CUDA back end was found, and loads it for that.
 * `name`: borrowed for the call; NULL gives 0.
 *
 * Threading: any. Device: host only. */
KVC_API int32_t kvc_has_feature(const char *KVC_NULLABLE name) KVC_NOEXCEPT;

/* Instruction set of the CPU kernels. Results differ between instruction sets by rounding only. */
typedef int32_t kvc_cpu_isa;
enum kvc_cpu_isa_value KVC_INT32_ENUM {
  KVC_CPU_ISA_AUTO = 0,      /* The best that the machine has. */
  KVC_CPU_ISA_REFERENCE = 1, /* Computes in double precision; slow, for comparing. */
  KVC_CPU_ISA_SCALAR = 2,
  KVC_CPU_ISA_AVX2 = 3,
  KVC_CPU_ISA_AVX512 = 4,
  KVC_CPU_ISA_AVX512_BF16 = 5
};

/* Bits of kvc_device_caps.dtypes. From KVC_DTYPE_F8_E4M3 on they are for kvc_quant. */
enum kvc_dtype_bit {
  KVC_DTYPE_F32 = 1,
  KVC_DTYPE_F16 = 2,
  KVC_DTYPE_BF16 = 4,
  KVC_DTYPE_F8_E4M3 = 8,
  KVC_DTYPE_F8_E5M2 = 16,
  KVC_DTYPE_INT8 = 32,
  KVC_DTYPE_INT4 = 64,
  KVC_DTYPE_F4_E2M1 = 128
};

typedef struct kvc_device_caps {
  size_t struct_size;
  int32_t backend_present;    /* 1: caches can be created on this device. */
  int32_t arch;               /* CPU: best kvc_cpu_isa of the machine. CUDA: 10 * compute
                                 capability. 0: unknown. */
  int32_t num_cores;          /* CPU: hardware threads that this process may use, or the CPU quota
                                 of its control group, rounded down, where that is less. CUDA:
                                 multiprocessors. */
  int32_t page_granularity;   /* Largest bytes in which memory of a pool is committed: on the CPU a
                                 huge page where the system has them. 0: unknown. */
  uint64_t dtypes;            /* Storage types that attention reads: KVC_DTYPE_* bits. */
  uint64_t isas;              /* CPU: bit i is set where kvc_cpu_isa i can be chosen. CUDA: 0. */
  uint64_t memory_bytes;      /* Physical memory; 0: unknown. */
  uint64_t memory_free_bytes; /* 0: unknown. */
  char name[64];
} kvc_device_caps;

/* Sets the directory in which modules lie: shared libraries of this project, loaded when they are
 * first needed. There is one, the CUDA back end libkvcache_cuda.so.
 *
 * Without this call, or after NULL, modules lie in the directory of the file that holds the
 * library's code: libkvcache.so, or the program that libkvcache.a is linked into. The dynamic
 * linker never searches for a module, so LD_LIBRARY_PATH, RUNPATH and its cache have no part in the
 * choice. What a module depends on itself (libc, libstdc++) the linker finds as usual.
 *
 * A failed search is remembered. Until the next successful kvc_module_path_set nothing is looked
 * for again: kvc_cache_create and kvc_op_* on a GPU answer KVC_E_UNSUPPORTED with the same message,
 * which names the file; kvc_has_feature answers 0 and kvc_device_query backend_present = 0. A
 * loaded module stays for the life of the process.
 *
 * `path`: absolute path of a directory, copied. It is not looked at before a module is needed.
 * Paths are compared as text; NULL is equal to NULL alone.
 *
 * Misuse:    KVC_E_INVALID_ARGUMENT  path is not absolute, or holds a '$', which the dynamic linker
 *                                    would replace.
 *            KVC_E_INVALID_STATE     A module has been loaded, and path is not the one in force.
 *                                    The message names the module's file.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_module_path_set(const char *KVC_NULLABLE path,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Reports what the library can do on a device.
 *
 * A kind of device without a back end in this build, or without a driver, is not an error:
 * backend_present is 0, and so is the rest. See kvc_has_feature("cuda") for whether the CUDA back
 * end was found. For kDLCUDA the call loads it, and CUDA makes the device's primary context.
 *
 * Expected:  KVC_E_UNSUPPORTED   A GPU that the back end has no code for (compute capability below
 *                                8.0).
 * Misuse:    KVC_E_OUT_OF_RANGE  The device id does not exist.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_device_query(DLDevice device, kvc_device_caps *out,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_log_level;
enum kvc_log_level_value KVC_INT32_ENUM {
  KVC_LOG_DEBUG = 0,
  KVC_LOG_INFO = 1,
  KVC_LOG_WARNING = 2,
  KVC_LOG_ERROR = 3
};

/* Receives one message, borrowed for the call. May be called from any thread. It must not call the
 * library and must not throw. */
typedef void (*kvc_log_fn)(void *user, kvc_log_level level, const char *message);

/* Sends messages of at least `min_level` to `fn`. NULL, the initial state, means silence.
 *
 * `user`: borrowed until the logger is replaced. On return no thread is in the previous `fn` any
 * more.
 *
 * Misuse:    KVC_E_INVALID_ARGUMENT  Unknown level.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_set_logger(kvc_log_fn KVC_NULLABLE fn, void *KVC_NULLABLE user,
                                  kvc_log_level min_level,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Plan: layer specs to bytes and pages; no device is touched                                     */
/* ============================================================================================== */

typedef int32_t kvc_layer_kind;
enum kvc_layer_kind_value KVC_INT32_ENUM {
  KVC_LAYER_ATTENTION = 0, /* K and V per token. */
  KVC_LAYER_MLA = 1,       /* One latent row [latent_rank + latent_rope_dim] per token for all heads
                              (DeepSeek-V2, arXiv:2405.04434). */
  KVC_LAYER_CROSS = 2,     /* K and V of the encoder's tokens, written once per sequence; see
                              kvc_attn_cross. */
  KVC_LAYER_STATE = 3,     /* Recurrent state of any shape; see kvc_state_get, kvc_attn_linear. */
  KVC_LAYER_SHARED = 4,    /* Keeps nothing: reads the K and V of source_layer (Gemma-3n). */
  KVC_LAYER_NONE = 5       /* Keeps nothing and is never attended (an MLP-only layer): a place
                              holder for its id. */
};

/* Bits of kvc_layer.flags. */
enum kvc_layer_flag {
  /* The K row is the V row too: it is stored once, v_dim = k_dim, v_dtype = k_dtype. Every `v`
   * argument of such a layer is NULL. Comments call these "K = V layers". */
  KVC_LAYER_V_IS_K = 1
};

/* Quantised storage. Values round to nearest even and saturate at the largest finite value.
 *
 *   everywhere      It is planned, paged, shared, swapped and exported.
 *   CPU, 8 bits     It is appended to, attended to, gathered and shifted, as other storage is.
 *   CPU, 4 bits     It is for the host program's own kernels: BORROWED and NONE alone, and
 *                   kvc_cache_create refuses OWNED. kvc_attn, kvc_kv_append, kvc_kv_gather, the
 *                   debug functions, and kvc_seq_shift of K that is stored rotated answer
 *                   KVC_E_UNSUPPORTED on such a layer.
 *   CUDA            It is appended to, attended to and gathered. kvc_attn_self, and kvc_seq_shift
 *                   of K that is stored rotated, answer KVC_E_UNSUPPORTED on such a layer.
 *
 * PER_TENSOR: x / scale beyond the largest or smallest element is clipped to it, infinities too.
 * kvc_stats.values_saturated counts it on the CPU.
 *
 * PER_TOKEN_HEAD: scale = largest |value| of the row / largest element, at least 2^-126. A row with
 * a NaN or an infinity is NaN as a whole when it is read; on CUDA only that element may be.
 *
 * kvc_layer.quant says it of K and V, kvc_layer.v_quant of V apart.
 *
 * kvc_layer.keep_tokens: attention sinks, the first few tokens, lose most where they are quantised.
 * The first N tokens of a sequence are then stored twice: as all others are, and as bfloat16. The
 * second is what attention, gathers and kvc_debug_get read.
 *
 *   a half with NONE   It is kept in its own type.
 *   memory             One page per sequence more, or a few where N tokens of all such layers do
 *                      not fit in one. Plans count them.
 *   windows            They drop none of the N tokens. A window of the sequence with sink tokens
 *                      has these unquantised.
 *   served by          OWNED storage on the CPU. NONE plans it and keeps its page tables;
 *                      kvc_cache_create refuses BORROWED and CUDA.
 *   the host's pages   kvc_export_pool, kvc_pages_export and kvc_pages_import answer
 *                      KVC_E_UNSUPPORTED on such a layer, because they would leave these rows out.
 *                      Files, swaps and kvc_pages_copy take them along. */
typedef int32_t kvc_quant;
enum kvc_quant_value KVC_INT32_ENUM {
  KVC_QUANT_NONE = 0,
  KVC_QUANT_PER_TENSOR = 1,     /* float8 (e4m3fn, e5m2) or int8. One scale for K and one for V:
                                   kvc_layer.k_scale and v_scale. */
  KVC_QUANT_PER_TOKEN_HEAD = 2, /* float8, int8 or int4. One float32 scale per token and head for K,
                                   and one for V; one for both where V lies in K. */
  KVC_QUANT_BLOCK16 = 3,        /* float4 (e2m1fn; NVFP4). One float8 scale per 16 elements; k_dim
                                   and v_dim are multiples of 16. Not where V lies in K (MLA, K =
                                   V layers). */
  KVC_QUANT_OFF = 4             /* kvc_layer.v_quant alone: V is not quantised, K is. */
};

typedef int32_t kvc_rope_mode;
enum kvc_rope_mode_value KVC_INT32_ENUM {
  KVC_ROPE_NONE = 0,      /* The library rotates nothing. */
  KVC_ROPE_ON_APPEND = 1, /* K is stored rotated; q is rotated when it attends. */
  KVC_ROPE_ON_READ = 2    /* K is stored unrotated and rotated whenever it is read. Sink tokens at a
                             bounded distance need it (kvc_seq_set_window). LONGROPE is always so,
                             see kvc_rope. */
};

typedef int32_t kvc_rope_style;
enum kvc_rope_style_value KVC_INT32_ENUM {
  KVC_ROPE_HALF = 0,       /* Pairs (i, i + rotary_dim/2): NeoX, Llama in Hugging Face's format. */
  KVC_ROPE_INTERLEAVED = 1 /* Pairs (2i, 2i + 1): GPT-J, Llama in Meta's own format and in GGUF. */
};

typedef int32_t kvc_rope_scaling;
enum kvc_rope_scaling_value KVC_INT32_ENUM {
  KVC_ROPE_SCALING_NONE = 0,
  KVC_ROPE_SCALING_LLAMA3 = 1,  /* Llama-3.1. Reads factor, low_freq_factor, high_freq_factor,
                                   original_context. */
  KVC_ROPE_SCALING_YARN = 2,    /* Peng et al., arXiv:2309.00071. Reads factor, beta_fast,
                                   beta_slow, original_context. */
  KVC_ROPE_SCALING_LONGROPE = 3 /* Ding et al., arXiv:2402.13753. Reads freq_factors up to
                                   original_context, long_freq_factors beyond. */
};

typedef int32_t kvc_rope_section_layout;
enum kvc_rope_section_layout_value KVC_INT32_ENUM {
  KVC_ROPE_SECTIONS_CONTIGUOUS = 0, /* The first sections[0] pairs take position row 0, the next
                                       sections[1] take row 1, ... (Qwen2-VL). */
  KVC_ROPE_SECTIONS_INTERLEAVED = 1 /* Pair i takes row i % n while that section has pairs left
                                       (i / n < sections[row]), else row 0 (Qwen3-VL; n =
                                       num_sections). */
};

/* Rotary position embedding (Su et al., arXiv:2104.09864). A layer gets one so, and several layers
 * may point at the same:
 *
 *   kvc_rope rope = {.struct_size = sizeof rope, .mode = KVC_ROPE_ON_APPEND, .theta = 500000};
 *   layer.rope = &rope;
 *
 * Pair i of the first rotary_dim elements at position p is rotated by the angle
 *   p * scale * theta^(-2i/rotary_dim) / freq_factors[i].
 * `scaling` changes the frequency, which is what p is multiplied by, further. The rotated elements
 * are then multiplied by attention_factor. Frequencies and angles are computed in double; their cos
 * and sin are float32.
 *
 * Wherever a layer has a rope mode, the caller hands over q and k unrotated. MLA layers: the pairs
 * are those of the latent_rope_dim elements that follow the latent; in q and k of kvc_attn_self
 * they are the last elements.
 *
 *   linear     scale = 1 / factor.
 *   LLAMA3     With w = 2 pi / frequency: unchanged for w below original_context /
 *              high_freq_factor; divided by factor above original_context / low_freq_factor; in
 *              between a mean that is linear in 1 / w.
 *   YARN       A ramp from unchanged (more than beta_fast turns in original_context) to divided by
 *              factor (fewer than beta_slow), linear in the index of the pair. Its ends follow from
 *              theta, without scale and freq_factors, and are rounded outwards to whole pairs.
 *   LONGROPE   A sequence that is longer than original_context with its new tokens (of a tree: its
 *              deepest path) uses long_freq_factors for all of its keys, else freq_factors. The
 *              length of the forward never decides. K is rotated on read, also with mode ON_APPEND:
 *              rotated rows could not follow a sequence across original_context, forwards or back,
 *              nor be shared by a long and a short one. With config.max_seq_len <= original_context
 *              the long factors are not used, and ON_APPEND is what it says.
 *   others     freq_factors and attention_factor express any frequencies.
 *
 * kvc_plan_create refuses a rope and names field and value:
 *   KVC_E_INVALID_ARGUMENT, KVC_E_OUT_OF_RANGE  A field that is not zero although `scaling`,
 *                      num_sections or mode NONE does not use it; a factor or frequency factor that
 *                      is not positive; sections that do not fit.
 *   KVC_E_UNSUPPORTED  A value of the enums above that is not listed; sections where K is rotated
 *                      on read. */
typedef struct kvc_rope {
  size_t struct_size;
  kvc_rope_mode mode;
  kvc_rope_style style;
  int32_t rotary_dim;       /* Even, <= k_dim; 0: k_dim. */
  int32_t num_freq_factors; /* 0, or rotary_dim/2. LONGROPE: rotary_dim/2. */
  double theta;             /* > 0, YARN > 1; 0: 10000. */
  double scale;             /* Factor on the position; 0: 1. */
  const float *KVC_NULLABLE freq_factors; /* > 0; copied by kvc_plan_create. */
  kvc_rope_scaling scaling;
  int32_t num_sections;     /* 0 or 1: one position per token. 2..4: M-RoPE, see
                               kvc_forward_desc.positions. */
  int32_t sections[4];      /* Pairs of each section, >= 0; they sum to rotary_dim/2. All may be 0
                               where num_sections is 0 or 1. */
  kvc_rope_section_layout section_layout;
  int32_t reserved;         /* 0 */
  double factor;            /* LLAMA3, YARN: > 0. LONGROPE: 0, or the longest context /
                               original_context, for attention_factor only. */
  double low_freq_factor;   /* LLAMA3: > 0; 0: 1. */
  double high_freq_factor;  /* LLAMA3: > low_freq_factor; 0: 4. */
  double beta_fast;         /* YARN: >= beta_slow; 0: 32. */
  double beta_slow;         /* YARN: > 0; 0: 1. */
  double attention_factor;  /* > 0. 0 with factor > 1: YARN 0.1 ln(factor) + 1, LONGROPE
                               sqrt(1 + ln(factor) / ln(original_context)). 0 otherwise: 1. */
  int64_t original_context; /* LLAMA3, YARN, LONGROPE: tokens, 1..2^31-1. */
  const float *KVC_NULLABLE long_freq_factors; /* LONGROPE: [num_freq_factors], copied. */
} kvc_rope;

/* One recurrent state of a STATE layer. In an array, the first element's struct_size is the stride
 * of all. */
typedef struct kvc_state_spec {
  size_t struct_size;
  int32_t ndim;                      /* 1..8 */
  DLDataType dtype;                  /* float32, float16, bfloat16; all zero: float32. */
  const int64_t *shape;              /* [ndim], of one sequence, each >= 1; copied. */
  const DLTensor *KVC_NULLABLE init; /* Value of an empty sequence: this shape and dtype, on the
                                        host, copied. NULL: zeros. */
} kvc_state_spec;

/* One layer of the model. In an array, the first element's struct_size is the stride of all. */
typedef struct kvc_layer {
  size_t struct_size;
  kvc_layer_kind kind;
  int32_t num_q_heads;     /* A multiple of num_kv_heads; 0: num_kv_heads. MLA: number of heads. */
  int32_t num_kv_heads;    /* >= 1. MLA: 0 or 1. SHARED: 0 or the source's. */
  int32_t k_dim;           /* Elements of a K (and q) head, 1..512. MLA: of q and k in kvc_attn_self
                              (128 + 64); 0: not used. SHARED: 0 or the source's. */
  int32_t v_dim;           /* Elements of a V (and out) head, 1..512; 0: k_dim. MLA: of v in
                              kvc_attn_self. SHARED: 0 or the source's. */
  kvc_quant quant;         /* Of K, and of V without v_quant; not OFF. */
  /* Storage type: float32, float16, bfloat16, or what quant says. All zero: bfloat16, whatever the
   * type of k. float32 rows are then rounded by up to 2^-8 of their value, so set float32 to
   * compare with a float32 reference. 4-bit types: k_dim and v_dim are even. */
  DLDataType k_dtype;
  DLDataType v_dtype;      /* All zero: k_dtype; with v_quant OFF bfloat16. Another v_quant than
                              quant needs it. */
  const kvc_rope *KVC_NULLABLE rope; /* Copied by kvc_plan_create. NULL: none. */
  int64_t window;          /* ATTENTION, MLA. 0: all keys. W >= 1: a query at position p sees keys
                              p-W+1..p. */
  int64_t chunk;           /* ATTENTION, MLA; not with window. 0: off. C >= 1: a query at position p
                              sees keys from p/C*C on (Llama-4). */
  int32_t source_layer;    /* SHARED: an ATTENTION or MLA layer of the same slice with a smaller
                              id. */
  int32_t latent_rank;     /* MLA: >= 1; latent_rank + latent_rope_dim <= 1024. */
  int32_t latent_rope_dim; /* MLA: even, >= 0. */
  int32_t flags;           /* KVC_LAYER_* bits. */
  const kvc_state_spec *KVC_NULLABLE states; /* STATE: [num_states], copied. */
  int32_t num_states;      /* STATE: 1..16. */
  int32_t reserved;        /* 0 */
  float k_scale, v_scale;  /* PER_TENSOR: value = stored element * scale; finite, > 0; 0: 1. Other
                              layers: 0. */
  /* V apart from K: its kind of quantisation, OFF for none. With quant NONE V alone is quantised.
   * 0: as quant. SHARED: 0 or the source's. MLA and K = V layers: 0 or quant. */
  kvc_quant v_quant;
  int32_t keep_tokens;     /* Quantised ATTENTION and MLA layers: so many leading tokens of a
                              sequence are kept unquantised, see kvc_quant. 0: none. SHARED: 0 or
                              the source's. */
} kvc_layer;

typedef int32_t kvc_storage;
enum kvc_storage_value KVC_INT32_ENUM {
  KVC_STORAGE_OWNED = 0,    /* The library allocates the pool, or asks `allocator` for it. */
  KVC_STORAGE_BORROWED = 1, /* The caller's tensors are the pool; see kvc_config.pool_tensors. */
  KVC_STORAGE_NONE = 2      /* No tensor memory: bookkeeping only. */
};

/* How the pool is laid out. Inside a page each layer has, in both layouts, with
 * P = kvc_group_info.page_size:
 *   1. ATTENTION, CROSS: K [num_kv_heads][P][k_dim], then V [num_kv_heads][P][v_dim].
 *      K = V layers: K alone. MLA: [P][latent_rank + latent_rope_dim].
 *   2. PER_TOKEN_HEAD: then K's scales [num_kv_heads][P], then V's. BLOCK16: then K's
 *      [num_kv_heads][P][k_dim / 16], then V's with v_dim. PER_TENSOR: no scales here. Each half
 *      has those of its own kind; V has none where it lies in K. float32 scales begin at a
 *      multiple of 4 bytes. */
typedef int32_t kvc_pool_layout;
enum kvc_pool_layout_value KVC_INT32_ENUM {
  KVC_POOL_LAYER_FIRST = 0, /* [layer][page]: the pages of one layer lie together. Fastest to
                               read. */
  KVC_POOL_PAGE_FIRST = 1   /* [page][layer]: all layers of a page lie together. One copy moves a
                               page. */
};

/* Memory for the pool from the host program. Neither function may throw. `free` may run on any
 * thread (an export's deleter). */
typedef struct kvc_allocator {
  size_t struct_size;
  void *KVC_NULLABLE user;
  /* Returns a block of at least `bytes`, aligned to `alignment`, or NULL. The content need not be
   * zero. */
  void *(*alloc)(void *user, DLDevice device, uint64_t bytes, uint64_t alignment);
  void (*free)(void *user, DLDevice device, void *ptr, uint64_t bytes);
} kvc_allocator;

/* Threads of the host program.
 *
 * 1. parallel_for calls fn(arg, task, worker) exactly once for each task in [0, num_tasks), in any
 *    order, on any threads. It returns when all are done.
 * 2. 0 <= worker < concurrency(user). No two running tasks of one parallel_for share a worker.
 * 3. fn does not throw; parallel_for and concurrency must not throw either.
 * 4. Caches that share an executor may call it at the same time. */
typedef struct kvc_executor {
  size_t struct_size;
  void *KVC_NULLABLE user;
  int32_t (*concurrency)(void *user); /* Constant, >= 1. */
  void (*parallel_for)(void *user, int64_t num_tasks,
                       void (*fn)(void *arg, int64_t task, int32_t worker), void *arg);
} kvc_executor;

/* Bits of kvc_config.flags. */
enum kvc_config_flag {
  /* Every layer group has page_size tokens per page, and pages of narrower groups are padded.
   * Without it, narrower groups get more tokens per page (kvc_group_info.page_size, a multiple of
   * page_size), so that little is padded. */
  KVC_CONFIG_PAD_PAGES = 1,
  /* Every page and state slot that a forward takes is filled with zeros before the forward writes
   * it. So no token of another sequence can be read from it, whatever the forward leaves unwritten.
   *
   * 1. A page that is copied on write takes over what the copied page holds.
   * 2. The cost is one write of the taken pages per kvc_forward_begin, on the forward's stream,
   *    also with KVC_FORWARD_REPLAY.
   * 3. The write is no part of a captured graph. While the stream is captured, it goes to a stream
   *    of the library, and begin waits for it.
   * 4. With storage NONE: KVC_E_UNSUPPORTED. */
  KVC_CONFIG_CLEAR_PAGES = 2,
  /* The memory of the pool and of the host pool is committed in the system's small pages. Without
   * it, huge pages of 2 MiB are advised where the pages of a layer (of the pool, with PAGE_FIRST)
   * fill one: they are faster to read, and the first token in one commits all of it. Where the
   * system can move memory to them (Linux 6.1), the pool gets them only when the pages in use would
   * fill one per layer.
   *
   * Not for BORROWED, NONE, CUDA devices or config.allocator: KVC_E_UNSUPPORTED. */
  KVC_CONFIG_NO_HUGE_PAGES = 4
};

/* What to plan. Zero it, set struct_size (or call kvc_config_init), then set the fields you
 * need. */
typedef struct kvc_config {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext; /* NULL */
  uint64_t flags;                  /* KVC_CONFIG_* bits. */
  DLDevice device;                 /* All zero: the CPU. kDLCUDA: a GPU, see kvc_device_query. */
  int32_t page_size;               /* Tokens per page of the widest layer group, 1..65536; 0: 16.
                                      See KVC_CONFIG_PAD_PAGES. */
  int32_t num_layers;              /* Layers of the whole model, >= 1. */
  const kvc_layer *layers;         /* [num_layers], copied. */
  /* Pipeline slice that is kept here, half open; both 0: all. Layer ids in calls stay global. Layer
   * groups and page tables are those of the whole model, so that all slices agree on them. A group
   * without a layer in the slice has page tables all the same. */
  int32_t layer_begin, layer_end;
  int32_t max_seqs;                /* Most sequences in one forward; 0: no limit. */
  int32_t forwards_in_flight;      /* At most 64. Where max_tokens_per_forward is set too, layers'
                                      windows keep their product m more tokens, see kvc_seq_pop. 0:
                                      they keep none, and the plan counts 1. */
  int64_t max_tokens_per_forward;  /* 0: no limit. */
  int64_t max_seq_len;             /* Longest sequence; 0: what the pages hold. The plan is refused
                                      where the pages cannot hold one. */
  /* num_pages or byte_budget, not both. Both 0: with borrowed storage the tensors' pages, else a
   * plan that answers questions but makes no cache. */
  int64_t num_pages;
  /* Bytes for everything that a sequence keeps: num_pages = byte_budget / page_bytes. Recurrent
   * states come out of the same bytes. With num_state_slots they are set aside first. Without, each
   * state slot takes ceil(state_slot_bytes / page_bytes) pages out of use while it lives. */
  uint64_t byte_budget;
  uint64_t host_byte_budget;       /* Bytes of host memory for kvc_swap_out, kvc_pages_swap and
                                      evicted prefix pages; 0: none. Without storage it can be
                                      planned, but makes no cache. */
  kvc_storage storage;
  kvc_pool_layout pool_layout;
  /* Borrowed storage: the pool. Borrowed until kvc_cache_destroy and until the deleter of every
   * export has run.
   *
   * 1. LAYER_FIRST: one tensor per region of a page, kvc_plan_info.num_layer_regions in all. A
   *    region has kvc_layer_info.region_bytes. With one layer group, there is one region per layer
   *    that keeps pages. PAGE_FIRST: one tensor.
   * 2. Dimension 0 counts pages and may have any stride of at least one page. The rest is compact
   *    and holds exactly one page of the region (PAGE_FIRST: of all regions).
   * 3. Any dtype of whole bytes; rank >= 1; address and page stride are aligned to the storage
   *    elements.
   * 4. One cache at a time may be made of a plan with borrowed tensors. */
  const DLTensor *const *KVC_NULLABLE pool_tensors;
  int32_t num_pool_tensors;
  int32_t num_threads;             /* Own CPU threads, the caller's included; 0: one per core
                                      (kvc_caps.num_cores); 1: the caller's only. Storage on a GPU:
                                      0 or 1, the caller's only. */
  kvc_cpu_isa cpu_isa;             /* Storage on a GPU: AUTO. */
  int32_t cp_size;                 /* Context parallel ranks that the tokens of a sequence are dealt
                                      out over, at most 1024; 0: 1. Each keeps
                                      ceil(tokens / cp_size) of them, but states and encoders' K and
                                      V whole. For plans alone: kvc_cache_create refuses more than
                                      1. Not with window, chunk or keep_tokens. */
  const kvc_allocator *KVC_NULLABLE allocator; /* Copied. `user` is borrowed until the cache and all
                                                  its exports are gone. */
  const kvc_executor *KVC_NULLABLE executor;   /* Copied. `user` is borrowed until
                                                  kvc_cache_destroy. It replaces own threads.
                                                  Storage on a GPU: NULL. */
  int64_t max_cross_len;           /* Most encoder tokens of one sequence; 0: no limit. Counted by
                                      max_seq_len and kvc_plan_request_pages. */
  /* Automatic checkpoints of recurrent state: where a forward ends on a multiple of this many
   * tokens. 0: page_size. -1: none. Else a multiple of page_size. They are given up, the earliest
   * positions first, when state slots or pages are missing. */
  int64_t state_stride;
  int64_t num_state_slots;         /* Most states kept, checkpoints included; a state is that of one
                                      sequence in all STATE layers. At least 2, because a forward
                                      keeps the state before and writes the one after. 0: as many as
                                      memory holds. */
  int64_t event_capacity;          /* Events kept for kvc_events_poll, at most 2^24; 0: none are
                                      made. */
} kvc_config;

/* Zeroes `struct_size` bytes and sets the size field. Pass sizeof(kvc_config).
 *
 * Misuse:    KVC_E_INVALID_ARGUMENT  config is NULL, or struct_size cannot hold the size field.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_config_init(kvc_config *config, size_t struct_size) KVC_NOEXCEPT;

/* How kvc_config_from_hf reads a file. All zero: as the file says. */
typedef struct kvc_hf_options {
  size_t struct_size;
  uint64_t flags; /* 0 */
  /* A model_type that is known ("llama" for a plain decoder). Its rules read a file whose own
   * model_type is missing or not known. Lists of kinds of layers and patterns of windows decide all
   * the same. One warning is logged. NULL: none. Borrowed for the call. */
  const char *KVC_NULLABLE assume;
  /* Layers of multi-token prediction that are appended, at most those of the model; 0: none. They
   * keep what the model's last layer without a window keeps; MiMo-V2's have its window. */
  int32_t mtp_layers;
  int32_t cp_size; /* Sets config->cp_size; 0: it stays. */
} kvc_hf_options;

/* Reads a Hugging Face `config.json` into the layers of a model.
 *
 * 1. Writes num_layers, layers and max_seq_len (the model's longest) of `config`. Encoder-decoders
 *    with a fixed encoder: max_cross_len too. Every other field is left as it is.
 * 2. A layer of the model that has two parts (self and cross attention; attention and state)
 *    becomes two entries, so ids count entries.
 * 3. Storage is of the model's torch_dtype (bfloat16 where it has none), or quantised as its
 *    quantization_config says, with scales of 1. Rotations are read, and set to
 *    KVC_ROPE_ON_APPEND.
 *
 *   json     NUL-terminated, borrowed for the call.
 *   opt      NULL: all defaults.
 *   config   config->struct_size must be set.
 *   layers   layers[0].struct_size must be set. NULL: only the count. Keep the array until
 *            kvc_plan_create has copied it.
 *   *n       Capacity of layers in elements on entry, elements needed on return. It is more than
 *            num_layers, because the elements behind the layers hold the rotations, state shapes
 *            and factors that the layers point at.
 *
 * Families (`kvcache plan --families` lists the names): Llama 2 to 4 and 3.2 Vision, Mistral,
 * Ministral, Mixtral, Qwen 2 to 3.5, Next and VL, Gemma 1 to 4 and 3n, GPT-OSS, DeepSeek V2 and V3,
 * Kimi-K2 and Kimi-Linear, Phi 1 to 4, GLM-4, ChatGLM, Cohere 1 and 2, OLMo 1 to 3, Granite,
 * StableLM, StarCoder 1 and 2, MiMo-V2, BLOOM, Falcon, MPT, GPT-2, GPT-J, GPT-NeoX, OPT, Jamba,
 * Mamba 1 and 2, Falcon-Mamba, Falcon-H1, Zamba 2, Bamba, Nemotron-H, LFM2, T5, BART, Whisper.
 * A family that has no rules of its own is read by its keys (docs/plan.md): rotations are then left
 * to the model, and one warning is logged for a model_type that is not known.
 *
 * Expected:  KVC_E_UNSUPPORTED       An encoder, a model_type whose keys do not say enough, a key
 *                                    that could change what is kept and that no rule reads, or a
 *                                    feature that the library has not (named); opt->mtp_layers of a
 *                                    model without any that are known.
 *            KVC_E_BUFFER_TOO_SMALL  layers has fewer than *n elements.
 * Misuse:    KVC_E_INVALID_ARGUMENT  Not JSON (detail = byte), a field that is missing or of the
 *                                    wrong type (the message names it), or opt->assume is not a
 *                                    known model_type, or the file's own is known.
 *            KVC_E_OUT_OF_RANGE      A number beyond reason, or opt->mtp_layers above those of the
 *                                    model (detail = their number).
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_config_from_hf(const char *json, const kvc_hf_options *KVC_NULLABLE opt,
                                      kvc_config *config, kvc_layer *KVC_NULLABLE layers, size_t *n,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_config_from_hf with opt = NULL, and its statuses.
 *
 * Expected:  those of kvc_config_from_hf.
 * Misuse:    those of kvc_config_from_hf.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_config_from_hf_json(const char *json, kvc_config *config,
                                           kvc_layer *KVC_NULLABLE layers, size_t *n,
                                           kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Checks a configuration and plans its memory.
 *
 * `config` and all that it points at are copied, except pool tensors' data and the `user` pointers.
 * `*out`: owned by caller, see kvc_plan_destroy. A cache keeps what it needs of the plan.
 *
 * Expected:  KVC_E_NEVER_FITS        The pages cannot hold one sequence of max_seq_len (detail =
 *                                    the longest that fits).
 *            KVC_E_UNSUPPORTED       The message names field and value.
 * Misuse:    KVC_E_INVALID_ARGUMENT  Contradictory or missing fields; a budget that holds no page
 *                                    (detail = bytes of one page).
 *            KVC_E_OUT_OF_RANGE      A field beyond its limit, or sizes that overflow.
 *            KVC_E_SHAPE, KVC_E_DEVICE_MISMATCH  Pool tensors.
 *            KVC_E_VERSION           Unknown struct tail.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_create(const kvc_config *config, kvc_plan **out,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT KVC_WARN_UNUSED;

/* Destroys a plan. NULL is accepted. Caches made from the plan stay valid.
 *
 * Threading: any, once. Device: host only. */
KVC_API void kvc_plan_destroy(kvc_plan *KVC_NULLABLE plan) KVC_NOEXCEPT;

typedef struct kvc_plan_info {
  size_t struct_size;
  int32_t page_size;         /* Tokens. */
  int32_t num_layers;        /* Layers of the whole model. */
  int32_t layer_begin, layer_end;
  int32_t num_groups;        /* Page tables per sequence; see kvc_plan_group_get. */
  int32_t num_layer_regions; /* Regions of a page that LAYER_FIRST keeps apart. With one layer
                                group, one per layer that keeps pages. See kvc_layer_info.region. */
  int64_t num_pages;
  uint64_t page_bytes;       /* One page, all layers of the slice. */
  uint64_t bytes_per_token;  /* One token, all layers of the slice. */
  uint64_t pool_bytes;       /* num_pages * page_bytes. */
  int64_t max_tokens;        /* Tokens that all pages hold together while no window has dropped
                                any. */
  int64_t max_seq_len;       /* Longest single sequence. */
  uint64_t state_slot_bytes; /* Recurrent state of one sequence, all STATE layers; 0: none. */
  int64_t num_state_slots;   /* 0: no limit. */
  int64_t state_slot_pages;  /* Pages that a state slot takes out of use; 0: states have memory of
                                their own. */
  int32_t prefix_block;      /* Tokens of a block of the prefix index: least common multiple of the
                                groups' page_size, times cp_size; at most INT32_MAX is told. */
  int32_t forwards_in_flight;
  int64_t num_host_pages;    /* host_byte_budget / page_bytes. */
  int64_t request_pages;     /* kvc_plan_request_pages(max_seq_len). */
  double concurrency;        /* Requests of max_seq_len tokens that the cache holds at once: the
                                lesser of num_pages / request_pages and, where it is set,
                                num_state_slots / 2; 0: no pages. */
  double waste;              /* Share of the bytes of such a request that is padding or lies behind
                                its last token, 0..1. */
  uint64_t cos_sin_bytes_per_token; /* Beside the pool, for every token that a sequence sees: cos
                                       and sin of layers that rotate K on read. Sequences at the
                                       same positions share them. 0: no such layer. */
  uint64_t host_bytes;       /* Most host memory of a cache that is full, see kvc_plan_info_get. 0:
                                no pages. */
} kvc_plan_info;

/* Reports the plan as numbers.
 *
 * host_bytes is an upper bound of kvc_stats.host_bytes, by which a container can be sized. It
 * allows for:
 *
 * 1. max_seqs sequences (0: one per page). Together they have max_tokens tokens, their ids are
 *    known, and no page is shared: the page tables of forks come on top.
 * 2. Forwards of max_tokens_per_forward tokens (0: max_tokens), in all layers.
 * 3. A pool on the CPU and a host pool that are full, the prefix index of both, state slots of all
 *    sequences, event_capacity events.
 * 4. As many workers as num_threads says. config.executor counts as kvc_caps.num_cores.
 *
 * On top come token trees of more than 64 nodes per sequence, windows and ALiBi of calls,
 * checkpoints by kvc_state_checkpoint, extra keys, namespaces with a quota, tiers, sequences that
 * were longer before, and on CUDA the pinned memory of forwards.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_info_get(const kvc_plan *plan, kvc_plan_info *out,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* A layer group: layers that see the same keys and share a page table.
 *
 * All groups take their pages from one pool. Every page has room for the layers of any group, which
 * lie one behind the other in it. Narrow groups have more tokens per page, and long kinds are cut
 * into several groups, whichever wastes less. Groups are ordered as the kinds first appear among
 * the layers.
 *
 * Kept rows (kvc_layer.keep_tokens) have groups of their own behind these, with page_size a divisor
 * of kvc_config.page_size. num_layers and first_layer then count the layers whose rows they are. */
typedef struct kvc_group_info {
  size_t struct_size;
  int32_t num_layers;
  int32_t is_cross;         /* 1: the group counts encoder tokens. */
  int64_t window;           /* Window of its layers; 0: none. */
  int64_t chunk;            /* Chunk of its layers; 0: none. */
  uint64_t page_bytes;      /* Bytes of a page that its layers use. */
  uint64_t padding_bytes;   /* Bytes of a page that they leave unused. */
  int32_t page_size;        /* Tokens per page. */
  int32_t first_layer;      /* Global id of its first layer in the slice; -1: none here. */
  int64_t request_pages;    /* Its part of kvc_plan_info.request_pages. */
  uint64_t bytes_per_token; /* One token in its layers. */
  int64_t keep_tokens;      /* Kept rows (kvc_layer.keep_tokens): its tables end after so many
                               tokens. 0: they have all. */
} kvc_group_info;

/* Reports a layer group.
 *
 * Misuse:    KVC_E_OUT_OF_RANGE  group is not in 0..num_groups-1.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_group_get(const kvc_plan *plan, int32_t group, kvc_group_info *out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef struct kvc_layer_info {
  size_t struct_size;
  kvc_layer_kind kind;
  int32_t group;            /* Page table that this layer reads: index for kvc_export_page_table;
                               -1: none. */
  int32_t num_q_heads, num_kv_heads, k_dim, v_dim;
  DLDataType k_dtype, v_dtype;
  uint64_t page_bytes;      /* The layer's part of one page. */
  uint64_t k_page_bytes;    /* Its K; V follows. */
  uint64_t v_page_bytes;
  uint64_t bytes_per_token;
  int64_t window, chunk;
  int32_t source_layer;     /* SHARED: the source. Others: -1. */
  int32_t latent_rank, latent_rope_dim;
  int32_t flags;
  int32_t num_states;
  int32_t region;           /* Region of a page where the layer lies: its tensor of LAYER_FIRST
                               borrowed storage; -1: none. */
  uint64_t state_bytes;     /* All states of the layer, one sequence. */
  uint64_t region_bytes;    /* Bytes of that region in one page. */
  uint64_t region_offset;   /* Byte of the region where the layer's part begins. */
  kvc_quant quant;          /* Of K. */
  int32_t page_size;        /* Tokens per page of its group; 0: keeps no pages. */
  uint64_t k_scale_bytes;   /* Scales of K in one page, behind V; 0: none. */
  uint64_t v_scale_bytes;
  kvc_quant v_quant;        /* Of V; NONE: it is not quantised. */
  int32_t keep_tokens;      /* Leading tokens that are kept unquantised. */
  int32_t kept_group;       /* Page table of their rows; -1: keep_tokens is 0. */
  int32_t reserved;
} kvc_layer_info;

/* Reports a layer as planned, defaults filled in.
 *
 * `layer`: id in the whole model, layer_begin <= layer < layer_end. SHARED: group, kept_group,
 * page_size, region and dims are the source's; bytes that it keeps itself are 0. MLA: k_page_bytes
 * is the latents', num_kv_heads 1, v_page_bytes 0. K = V layers: v_page_bytes 0.
 *
 * Misuse:    KVC_E_OUT_OF_RANGE  No such layer here.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_layer_get(const kvc_plan *plan, int32_t layer, kvc_layer_info *out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Returns the pages that a byte budget holds. May be 0.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_pages_for(const kvc_plan *plan, uint64_t byte_budget,
                                      int64_t *out_pages,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Returns the longest single request, in tokens, that a byte budget holds. May be 0.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_max_tokens(const kvc_plan *plan, uint64_t byte_budget,
                                       int64_t *out_tokens,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Returns the most pages that one request of `num_tokens` >= 0 tokens needs while it is computed,
 * when it shares nothing.
 *
 * It is the sum over layer groups, and two state slots (before and after a forward) where they come
 * out of the pages. With m = forwards_in_flight * max_tokens_per_forward (num_tokens where that has
 * no limit), a layer group needs
 *
 *   full attention   ceil(num_tokens / page_size)
 *   window W         ceil((W - 1 + m) / page_size) + 1 (vLLM's formula), and no more than full
 *                    attention
 *   chunk C          the same with C, without the + 1 where page_size divides C
 *   CROSS            ceil(max_cross_len / page_size)
 *
 * Misuse:    KVC_E_OUT_OF_RANGE  num_tokens is negative.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_request_pages(const kvc_plan *plan, int64_t num_tokens,
                                          int64_t *out_pages,
                                          kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Writes the plan as a table for people; see ARRAYS OUT.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_describe(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Writes the plan as JSON; see ARRAYS OUT.
 *
 * Fields: page_size, num_pages, page_bytes, bytes_per_token, pool_bytes, max_tokens, max_seq_len,
 * pool_layout, storage, concurrency, waste, groups[], layers[], and others. Fields may be added.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_to_json(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Returns the pages that every rank of one model has: the least of the plans' num_pages.
 *
 * Tensor and pipeline parallel ranks run one scheduler, so page ids must mean the same everywhere.
 * Give each rank's plan this number.
 *
 * Misuse:    KVC_E_INVALID_ARGUMENT  n = 0; a NULL plan; plans whose groups differ in number,
 *                                    page_size, window, chunk or kind (the message names both).
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_plan_min_pages(const kvc_plan *const *plans, size_t n, int64_t *out_pages,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Cache                                                                                          */
/* ============================================================================================== */

/* Makes an empty cache.
 *
 * `plan`: borrowed for the call. `*out`: owned by caller. On the CPU owned memory is reserved, not
 * touched: it costs physical memory as pages are written. On a GPU it is allocated, and the call
 * waits for that.
 *
 * Expected:  KVC_E_NO_MEMORY         The pool or the tables could not be allocated.
 *            KVC_E_UNSUPPORTED       config.cpu_isa is not available on this machine, or the device
 *                                    has no back end here.
 *            KVC_E_BUSY              Another cache has the plan's borrowed tensors.
 * Misuse:    KVC_E_INVALID_ARGUMENT  A plan without pages; a bad executor or allocator.
 *            KVC_E_UNSUPPORTED       OWNED storage of a type that the device does not attend to
 *                                    (kvc_quant: 4 bits on the CPU).
 *            KVC_E_DEVICE_MISMATCH   Pool tensors lie on another GPU, or are no memory of it.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_cache_create(const kvc_plan *plan, kvc_cache **out,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT KVC_WARN_UNUSED;

/* Destroys a cache. NULL is accepted. An open forward is dropped. Exported tensors stay valid until
 * their deleters run. On a GPU it waits until all that was enqueued for the cache is done.
 *
 * Threading: exclusive. Device: host only. */
KVC_API void kvc_cache_destroy(kvc_cache *KVC_NULLABLE cache) KVC_NOEXCEPT;

/* Forgets all sequences, the prefix index and what is on the host, and gives memory back as
 * kvc_cache_trim does.
 *
 * Misuse:    KVC_E_BUSY  A forward is open.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_cache_clear(kvc_cache *cache, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Gives the physical memory of free pages and free state slots back to the system. They read zero
 * until they are written, and cost memory again then. Pages that sequences or the prefix index hold
 * stay. A cache without sequences that is to sleep: kvc_prefix_reset first, where its prefixes need
 * not be kept.
 *
 *   pool               OWNED, on the CPU, without config.allocator: whole system pages between free
 *                      pages go back. Other pools keep what they have.
 *   host pool          Likewise, beside a cache on the CPU, unless kvc_pages_swap uses it.
 *   states             They go back on the CPU.
 *   CUDA               Nothing goes back, neither of the device nor of pinned host memory.
 *
 * *out_released (may be NULL): bytes that had memory and have none now.
 *
 * Misuse:    KVC_E_BUSY  A forward is open.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_cache_trim(kvc_cache *cache, uint64_t *KVC_NULLABLE out_released,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Grows the pool, or shrinks it when what is in use fits. Contents stay, and so do page ids, but
 * those that a shrink cuts off: where the library alone writes the pool (OWNED, and kvc_export_pool
 * was never called), such pages move to free places below. Cached prefixes there are forgotten. On
 * a GPU it waits until all that was enqueued for the cache is done.
 *
 * A tensor exported before keeps its shape; after a shrink the dropped pages in it may read zero.
 *
 * Expected:  KVC_E_BUSY          More pages are in use, those of states included (detail = how
 *                                many); a page that is cut off is in use and can't move (detail =
 *                                its id); or the pool has to move while exports of it live.
 *            KVC_E_NEVER_FITS    The configuration's max_seq_len would no longer fit (detail = the
 *                                longest that fits).
 *            KVC_E_NO_MEMORY     The larger pool cannot be allocated.
 * Misuse:    KVC_E_BUSY          A forward is open.
 *            KVC_E_OUT_OF_RANGE  num_pages < 1 or too large.
 *            KVC_E_UNSUPPORTED   Borrowed storage.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_cache_resize(kvc_cache *cache, int64_t num_pages,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Counters and gauges of a cache.
 *
 * pages_total = pages_used + pages_available. An available page is free, without data, or cached:
 * the prefix index alone knows it, and it keeps its content until it is evicted because somebody
 * needs it. */
typedef struct kvc_stats {
  size_t struct_size;
  int64_t num_seqs;
  int64_t total_length;         /* Tokens over all sequences; a shared token counts once per
                                   sequence. */
  int64_t pages_total;
  int64_t pages_available;
  int64_t pages_used;           /* Held by sequences, the open forward or pins, or taken out of use
                                   by state slots. */
  int64_t pages_shared;         /* Used pages that more than one sequence holds. */
  int64_t pages_peak;           /* Largest pages_used since creation. */
  uint64_t page_bytes;
  uint64_t pool_bytes;
  uint64_t forwards;            /* Ended forwards. */
  uint64_t forwards_aborted;
  uint64_t tokens_appended;     /* Tokens of ended forwards. */
  uint64_t pages_copied;        /* Copy-on-write copies. */
  uint64_t no_pages;            /* Begins that answered KVC_E_NO_PAGES. */
  uint64_t step_bytes;          /* Last begin: bytes that a device back end is sent (sequence
                                   deltas, new page ids). */
  uint64_t step_copies;         /* Last begin: number of host to device copies. */
  int64_t state_slots_used;     /* States and checkpoints of sequences. */
  uint64_t state_slot_bytes;
  uint64_t tree_tokens;         /* Uncommitted tree nodes over all sequences. */
  uint64_t cascades;            /* Shared prefixes read once for several sequences, attention calls
                                   together. */
  int64_t slots_unused;         /* Token slots of used pages behind the last token of their
                                   sequence: internal fragmentation. Divide by pages_used *
                                   page_size. */
  int64_t pages_indexed;        /* Pages that the prefix index knows, used ones included. */
  int64_t pages_cached;         /* Of these, pages that the index alone holds; counted in
                                   pages_available. */
  int64_t prefix_blocks;        /* Blocks in the index, both tiers. */
  int64_t prefix_blocks_host;   /* Of these, blocks with pages on the host. */
  int64_t prefix_pinned;        /* Pinned blocks. */
  uint64_t prefix_lookups;      /* Calls of kvc_prefix_attach. */
  uint64_t prefix_query_tokens;
  uint64_t prefix_hit_tokens;
  uint64_t recent_query_tokens; /* Of the last 1,000 lookups. */
  uint64_t recent_hit_tokens;
  uint64_t prefix_stored;       /* Blocks that became part of the index. */
  uint64_t prefix_duplicates;   /* Blocks that were there already: the sequence took the index's
                                   pages over. */
  uint64_t prefix_evicted;      /* Blocks that left the index for others. */
  uint64_t prefix_rejected;     /* Blocks that a quota kept out. */
  uint64_t prefix_demoted;      /* Pages that went to the host. */
  uint64_t prefix_promoted;     /* Pages that came back. */
  int64_t host_pages_total;
  int64_t host_pages_used;      /* By swapped sequences and by the index. */
  int64_t num_swapped_seqs;
  uint64_t pages_swapped_out;
  uint64_t pages_swapped_in;
  uint64_t copy_runs;           /* Contiguous copies that swaps and page copies were merged into. */
  uint64_t events_made;
  uint64_t events_lost;         /* Events overwritten before they were polled. */
  /* Histograms over time: bucket i counts [2^i, 2^(i+1)) milliseconds; bucket 0 also less. */
  uint64_t block_lifetime[32];  /* Evicted blocks, by time in the index. */
  uint64_t block_idle[32];      /* Evicted blocks, by time since their last use. */
  uint64_t block_reuse_gap[32]; /* Hits, one per kvc_prefix_attach that found something: by time
                                   since the use before of the last block that it found. */
  uint64_t cos_sin_bytes;       /* For layers that rotate K on read: cos and sin of the
                                   keys that sequences see, as of their last forwards. */
  uint64_t values_saturated;    /* Elements of K and V that were clipped when they were stored, as
                                   *out_saturated of kvc_op_quantize counts them. */
  int64_t state_slots_cached;   /* States that the prefix index alone keeps. They give way to
                                   those of sequences. */
  uint64_t host_bytes;          /* Host memory that the library has allocated for this cache, see
                                   kvc_cache_stats_get. */
} kvc_stats;

/* Reports the counters and gauges of a cache. Counters run from kvc_cache_create on;
 * kvc_cache_clear keeps them.
 *
 * values_saturated: an element of K or V counts each time that a caller's row is stored with one
 * scale per layer (KVC_QUANT_PER_TENSOR): by kvc_attn*, kvc_kv_append, kvc_mla_append or
 * kvc_debug_set_*. The number of threads does not change the sum.
 *
 *   rotated K          It counts as it is stored: rotated.
 *   K = V, latents     They count once.
 *   aborted forwards   What they stored stays counted.
 *   moved rows         They don't count again: copies, forks, swaps, files, kvc_seq_shift.
 *   CUDA               It counts nothing, and neither do the host program's own kernels.
 *
 * host_bytes: allocated, which is at least what is resident. Of this, pool and host pool count all
 * pages, written or not; pool_bytes and host_pages_total * page_bytes say how much that is.
 *
 *   counted       A pool on the CPU (config.allocator's too), the host pool, state slots, page
 *                 tables, sequences, the prefix index, events, cos and sin, scratch of attention,
 *                 pinned memory, queues of tiers.
 *   not counted   Borrowed pools, memory of a GPU, the plan, exports of page tables, transfers and
 *                 transports, stacks of threads, what a tier's module or the GPU's driver keeps,
 *                 what the heap adds to each block (16 bytes, say), what a call frees before it
 *                 returns.
 *   scratch       While a forward is open: as of its begin, where this was called before it.
 *
 * Arrays grow ahead of need, and keep their room: also that which a refused call has made.
 *
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_cache_stats_get(const kvc_cache *cache, kvc_stats *out,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Returns the pages that no sequence, forward or pin holds: free ones, and cached ones, which only
 * the prefix index knows. -1 when cache is NULL.
 *
 * Threading: shared. Device: host only. */
KVC_API int64_t kvc_cache_available_pages(const kvc_cache *cache) KVC_NOEXCEPT;

/* Returns the tokens over all sequences, each sequence counting its shared prefix. -1 when cache is
 * NULL.
 *
 * Threading: shared. Device: host only. */
KVC_API int64_t kvc_cache_total_length(const kvc_cache *cache) KVC_NOEXCEPT;

/* Returns 1 when no sequence exists and every page is available. 0 otherwise, also when cache is
 * NULL.
 *
 * Threading: shared. Device: host only. */
KVC_API int32_t kvc_cache_is_empty(const kvc_cache *cache) KVC_NOEXCEPT;

/* Recounts everything and compares: reference counts, free list, lengths, tables. O(pages).
 *
 * Expected:  KVC_E_CORRUPT  A defect in the library. The message names the page or the sequence.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_cache_check(const kvc_cache *cache,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Sequences: they never wait for a device                                                        */
/* ============================================================================================== */
/* 1. Lengths count committed tokens. Tokens of an open forward are not counted until
 *    kvc_forward_end. Positions are absolute: they never shrink because a window dropped tokens.
 * 2. Sequences of the open forward are locked: calls that change them answer KVC_E_BUSY. Other
 *    sequences may change meanwhile.
 * 3. While a sequence has an uncommitted token tree (see TOKEN TREES), or is swapped out (see
 *    kvc_swap_out), calls that name that under Misuse answer KVC_E_INVALID_STATE.
 * 4. Nothing more of a sequence is published to the prefix index after kvc_seq_shift,
 *    kvc_seq_set_window or kvc_debug_set_*, until it is empty again. */

/* Adds an empty sequence. Never fails for capacity.
 *
 * Misuse:    KVC_E_INVALID_ARGUMENT  seq < 0.
 *            KVC_E_ALREADY_EXISTS    The id is taken.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_add(kvc_cache *cache, kvc_seq seq,
                               kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Removes a sequence. Any order is legal: shared pages live on while another sequence uses them.
 *
 * Misuse:    KVC_E_NOT_FOUND  No such sequence.
 *            KVC_E_BUSY       It is in the open forward.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_remove(kvc_cache *cache, kvc_seq seq,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Adds `child` with the first `pos` tokens of `parent` (-1: all).
 *
 * Nothing is copied: pages are shared. A partial last page is copied by whoever appends to it
 * first; kvc_seq_can_append counts that page. The child inherits the window, the encoder tokens,
 * the checkpoints and known token ids up to pos, the namespace of the prefix index, and positions
 * that kvc_seq_shift has moved.
 *
 * Expected:  KVC_E_OUT_OF_RANGE      pos needs tokens that a window has dropped, or a state without
 *                                    a checkpoint there. The message says which; detail = the
 *                                    nearest possible position below, see kvc_seq_positions.
 * Misuse:    KVC_E_OUT_OF_RANGE      pos < -1, or beyond the length.
 *            KVC_E_NOT_FOUND         parent.
 *            KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT  child.
 *            KVC_E_BUSY              parent is in the open forward.
 *            KVC_E_INVALID_STATE     parent has an uncommitted token tree or is swapped out.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_fork(kvc_cache *cache, kvc_seq parent, kvc_seq child, int64_t pos,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Appends `n` tokens without content, for rows that come from elsewhere (kvc_pages_import,
 * kvc_export_pool, kvc_debug_set_layer).
 *
 * It is a forward of one sequence with KVC_FORWARD_PARTIAL in which no layer gets rows: they read
 * as that says, and the prefix index gets no block that contains one of these tokens.
 *
 * To have the rows found as prefixes, begin a forward with their token ids instead, import into its
 * pages (kvc_export_page_table says which), and end it: kvc_forward_end publishes full blocks.
 *
 * Expected:  KVC_E_NO_PAGES          detail = pages and state slots missing.
 *            KVC_E_NEVER_FITS        As kvc_forward_begin.
 * Misuse:    KVC_E_NOT_FOUND         No such sequence.
 *            KVC_E_INVALID_ARGUMENT  n < 1.
 *            KVC_E_OUT_OF_RANGE      Limits of the configuration.
 *            KVC_E_INVALID_STATE     It has an uncommitted token tree or is swapped out.
 *            KVC_E_BUSY              A forward is open.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_seq_reserve(kvc_cache *cache, kvc_seq seq, int64_t n,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Drops the last `n` tokens, 0 <= n <= length, also past a fork point. Siblings keep theirs, and
 * the prefix index keeps the blocks that it knows.
 *
 * Pages behind the windows of layers are freed when no later query sees them. Where the
 * configuration sets forwards_in_flight and max_tokens_per_forward, such a window keeps their
 * product m more tokens: rejected drafts, up to m tokens back from the most that the sequence has
 * had, can always be popped. Three things bring fewer: a fork has what its parent kept, a hit what
 * the index had, and a forward that finds no other pages takes what its end would drop. Windows of
 * kvc_seq_set_window keep none.
 *
 * Expected:  KVC_E_OUT_OF_RANGE   The rest would need tokens that a window has dropped, or a state
 *                                 without a checkpoint there. The message says which; detail = the
 *                                 nearest possible position below, see kvc_seq_positions.
 * Misuse:    KVC_E_OUT_OF_RANGE   n.
 *            KVC_E_NOT_FOUND      No such sequence.
 *            KVC_E_BUSY           It is in the open forward.
 *            KVC_E_INVALID_STATE  It has an uncommitted token tree or is swapped out.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_pop(kvc_cache *cache, kvc_seq seq, int64_t n,
                               kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Drops tokens [begin, end) of a sequence and moves the later ones by `delta` positions.
 *
 * delta = begin - end closes the gap (context shift). With begin = end the positions of the tokens
 * from begin on move, and nothing is dropped. Shared pages are made private first. Tokens appended
 * later continue after the last position. What a window has dropped stays dropped; the rest moves.
 *
 * K that is stored rotated: on the CPU, in owned storage that was not handed out, rows stay as they
 * are and queries are rotated to meet them, so that the error does not grow with the number of
 * shifts. Only a shift at another `begin` than the one before rotates the rows between the two.
 * What leaves the cache is rotated for the position it has, and rows are before the host program
 * gets or writes pages itself. Elsewhere (CUDA, BORROWED, after kvc_export_pool or
 * kvc_pages_import, with K = V layers) every shift rotates the rows and rounds them: in 16 and 8
 * bit, thousands of shifts by one token lose the small angles.
 *
 * Expected:  KVC_E_NO_PAGES       For private copies of shared pages, and for one page per layer
 *                                 group where a window has dropped tokens (detail = missing).
 *            KVC_E_OUT_OF_RANGE   The next token would see a token that a window has dropped.
 *            KVC_E_UNSUPPORTED    One of these:
 *                                 - The cache has STATE layers.
 *                                 - A delta other than begin - end, which leaves a gap, where the
 *                                   sequence or a layer has a window or chunk.
 *                                 - It would move K that is rotated ON_APPEND and stored in 4
 *                                   bits, or on CUDA quantised.
 *                                 - It would move a token to one of the first
 *                                   kvc_layer.keep_tokens places from behind them.
 * Misuse:    KVC_E_OUT_OF_RANGE   Not 0 <= begin <= end <= length, or positions would become
 *                                 negative, stop ascending, or exceed int32.
 *            KVC_E_NOT_FOUND      No such sequence.
 *            KVC_E_BUSY           It is in the open forward.
 *            KVC_E_INVALID_STATE  It has an uncommitted token tree or is swapped out.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_seq_shift(kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end,
                                 int64_t delta, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Limits what the sequence sees to its first `sink` tokens and the newest ones, in every ATTENTION
 * and MLA layer (StreamingLLM, arXiv:2309.17453).
 *
 * 1. A query at position p sees keys k < sink or k > p - (window - sink): at most `window` keys,
 *    itself included. Layers with a window of their own see what both allow.
 * 2. Pages that no later query sees are freed.
 * 3. With ON_READ rope, sink tokens keep the distance that they have at position window - 1. With
 *    other modes they keep their true distances.
 * 4. May be called again, for a larger window as long as its tokens are still there. A window
 *    cannot be taken off; one as long as the sequence will ever be hides nothing.
 *
 * Expected:  KVC_E_OUT_OF_RANGE      It needs tokens that are dropped.
 * Misuse:    KVC_E_UNSUPPORTED       No ATTENTION or MLA layer here; a layer with chunk; with sink
 *                                    tokens, a layer whose own window is larger than window - sink;
 *                                    positions that kvc_seq_shift has moved apart.
 *            KVC_E_INVALID_ARGUMENT  window < 1, sink < 0, or sink >= window.
 *            KVC_E_NOT_FOUND         No such sequence.
 *            KVC_E_BUSY              It is in the open forward.
 *            KVC_E_INVALID_STATE     It has an uncommitted token tree or is swapped out.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_seq_set_window(kvc_cache *cache, kvc_seq seq, int64_t window, int64_t sink,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Returns the committed tokens of a sequence. Tokens of an open forward are not counted until
 * kvc_forward_end.
 *
 * Misuse:    KVC_E_NOT_FOUND  No such sequence.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_length(const kvc_cache *cache, kvc_seq seq, int64_t *out_length,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef struct kvc_seq_info {
  size_t struct_size;
  int64_t length;           /* Committed tokens. */
  int64_t first_position;   /* First position that every layer group still keeps, sink tokens aside;
                               -1: empty. */
  int64_t last_position;    /* Last kept position; -1: empty. */
  int64_t num_pages;        /* Pages held, all layer groups together, without those that the open
                               forward has reserved. */
  int64_t num_shared_pages; /* Of these, pages that other sequences hold too. */
  int64_t window;           /* See kvc_seq_set_window; 0: none. */
  int64_t sink;             /* Sink tokens; 0: none. */
  int32_t in_forward;       /* 1: in the open forward. */
  int32_t num_checkpoints;  /* Positions < length with a recurrent state; 0 for caches without STATE
                               layers. */
  int64_t tree_nodes;       /* Uncommitted nodes. */
  int64_t cross_length;     /* Encoder tokens. */
  int32_t is_swapped;       /* 1: swapped out; num_pages are host pages. */
  int32_t reserved;
  int64_t known_tokens;     /* Leading tokens whose ids the cache knows: their blocks are in the
                               prefix index or can be. */
} kvc_seq_info;

/* Reports a sequence. O(pages of the sequence).
 *
 * Misuse:    KVC_E_NOT_FOUND  No such sequence.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_info_get(const kvc_cache *cache, kvc_seq seq, kvc_seq_info *out,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Writes all sequence ids, ascending; see ARRAYS OUT.
 *
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_list(const kvc_cache *cache, kvc_seq *KVC_NULLABLE ids, size_t *count,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Asks whether kvc_forward_begin with these `n` sequences and append lengths would find its pages.
 *
 * *out_missing_pages = 0: yes. > 0: pages and state slots that are missing now, added up.
 * Copy-on-write pages are counted, encoder tokens are not. A sequence with an uncommitted tree is
 * taken to be extended by roots. A first tree needs what a plain append of as many tokens needs;
 * where its nodes would exceed max_seq_len as plain tokens, this answers KVC_E_NEVER_FITS.
 * Arrays are borrowed for the call.
 *
 * Expected:  KVC_E_NEVER_FITS        As kvc_forward_begin.
 * Misuse:    KVC_E_NOT_FOUND         No such sequence.
 *            KVC_E_INVALID_ARGUMENT  n = 0, duplicate ids, lengths < 1.
 *            KVC_E_OUT_OF_RANGE      Limits of the configuration.
 *            KVC_E_BUSY              A sequence of the open forward.
 *            KVC_E_INVALID_STATE     A sequence that is swapped out.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_can_append(const kvc_cache *cache, size_t n, const kvc_seq *seqs,
                                      const int64_t *lengths, int64_t *out_missing_pages,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_seq_op;
enum kvc_seq_op_value KVC_INT32_ENUM {
  KVC_SEQ_FORK = 0,
  KVC_SEQ_POP = 1,
  KVC_SEQ_SHIFT = 2 /* Drop [pos, pos + 1) and close the gap. */
};

/* Asks whether the sequence could be forked at, popped back to, or shifted at position `pos` (-1:
 * its end).
 *
 * *out_nearest is the nearest position at or below `pos` where it could: `pos` itself when yes, -1
 * when there is none. An edit of the text from `pos` on goes back to it. A pos beyond the length is
 * taken for the length; SHIFT at the end asks for the last token. Pages for private copies are not
 * asked for.
 *
 * Misuse:    KVC_E_NOT_FOUND      No such sequence.
 *            KVC_E_UNSUPPORTED    Unknown op.
 *            KVC_E_OUT_OF_RANGE   pos < -1.
 *            KVC_E_BUSY           It is in the open forward.
 *            KVC_E_INVALID_STATE  It has an uncommitted token tree or is swapped out.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_can(const kvc_cache *cache, kvc_seq seq, kvc_seq_op op, int64_t pos,
                               int64_t *out_nearest, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Asks for the possible positions on both sides of `pos`, as kvc_seq_can takes it.
 *
 *   out_below   the nearest at or below
 *   out_above   the nearest at or above
 *
 * Both are `pos` where the operation is possible there. -1: there is none on that side.
 *
 * Misuse:    as kvc_seq_can.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_seq_positions(const kvc_cache *cache, kvc_seq seq, kvc_seq_op op,
                                     int64_t pos, int64_t *out_below, int64_t *out_above,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Forward: one open handle over a batch of sequences                                             */
/* ============================================================================================== */
/*   kvc_forward_begin   which sequences grow by how many tokens
 *   kvc_attn            once per layer; or kvc_attn_linear, kvc_attn_cross, ...
 *   kvc_forward_end     or kvc_forward_abort: as if begin had not happened, replaced encoder tokens
 *                       aside (kvc_forward_desc.cross_lengths) */

/* What a forward computes. `seqs`, `append_lengths`, `tree_parents` and `cross_lengths` are
 * borrowed for the call; `tokens` and `positions` are copied. */
typedef struct kvc_forward_desc {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext; /* NULL */
  kvc_stream KVC_NULLABLE stream;  /* Stream of all work until end or abort; ignored on the CPU. */
  size_t num_seqs;                 /* >= 1 */
  const kvc_seq *seqs;             /* [num_seqs], distinct. */
  const int64_t *append_lengths;   /* [num_seqs], >= 1. */
  /* Token trees, see TOKEN TREES: [sum of append_lengths]. NULL: no trees. */
  const int32_t *KVC_NULLABLE tree_parents;
  /* Ids of the new tokens, [sum of append_lengths], any int32. NULL: none. Full blocks are
   * published to the prefix index when the forward ends; nodes of a tree, when they are committed.
   * They go to the namespace of kvc_prefix_attach or kvc_prefix_insert; of a sequence that neither
   * has named, to the one with the empty salt. A sequence that once grows without ids publishes no
   * later block. What else K and V depend on (positions, bias, spans) is not part of a block's key:
   * name it by kvc_prefix_query.keys. */
  const int32_t *KVC_NULLABLE tokens;
  uint64_t flags;                  /* KVC_FORWARD_* bits. */
  /* Rotary positions given by the caller (M-RoPE, or any other numbering): int32 [sections, T], or
   * [T] for all sections alike, on the host. sections = the largest num_sections of the layers.
   * They rotate q and k of ON_APPEND layers and nothing else: windows, masks and lengths count
   * tokens. NULL: positions of the tokens. */
  const DLTensor *KVC_NULLABLE positions;
  /* [num_seqs]: encoder tokens that this forward writes to the CROSS layers of each sequence, 0:
   * none. NULL: none. Once per sequence, until it has no token (kvc_seq_pop to 0): then they
   * replace those of before, which are gone from begin on, also when the forward is aborted. */
  const int64_t *KVC_NULLABLE cross_lengths;
} kvc_forward_desc;

/* Bits of kvc_forward_desc.flags. */
enum kvc_forward_flag {
  /* Replay a captured forward; see CUDA GRAPHS. */
  KVC_FORWARD_REPLAY = 1,
  /* The forward may end without K and V in every layer (see kvc_forward_end), and publishes
   * nothing. The tokens of a layer that got none count as unwritten, on every storage, until they
   * are popped: no later forward, fork, swap or kvc_prefix_insert publishes a block that holds one.
   * They read as zeros on the CPU where the library owns the pool and nothing is exported, and with
   * KVC_CONFIG_CLEAR_PAGES; else as whatever their page held before. */
  KVC_FORWARD_PARTIAL = 2,
  /* kvc_attn_opt.spans that end behind the tokens which their sequence has with this forward are
   * refused with KVC_E_OUT_OF_RANGE. Without it they are cut there: the rows of an image that a
   * chunk of the prompt cuts in two see only its first part, and stay as they are. */
  KVC_FORWARD_WHOLE_SPANS = 4
};

/* Opens a forward: checks everything, reserves pages, and makes private what the new tokens share.
 *
 * Prefill, chunked prefill, decode and trees mix freely in one batch. `*out`: valid until
 * kvc_forward_end, kvc_forward_abort or kvc_cache_destroy. The handle is a number that is never
 * used again and never dereferenced: every later call that returns a status answers
 * KVC_E_INVALID_STATE, for ever. A begin that fails evicts nothing.
 *
 * Expected:  KVC_E_NO_PAGES    Full now: pages, or state slots, the message says which (detail =
 *                              missing).
 *            KVC_E_NEVER_FITS  One sequence alone (detail) would exceed the pool, max_seq_len, or,
 *                              with the checkpoints that the caller made, num_state_slots. The
 *                              deepest path of a tree counts against max_seq_len, all of its nodes
 *                              against the pool.
 * Misuse:    KVC_E_BUSY              A forward is open.
 *            KVC_E_NOT_FOUND         A sequence does not exist.
 *            KVC_E_INVALID_ARGUMENT  An empty batch, a duplicate id, a length < 1, a tree parent
 *                                    that is not below its node or below -1, KVC_TREE_NONE beside
 *                                    nodes of the same sequence.
 *            KVC_E_OUT_OF_RANGE      More sequences, tokens, tree nodes or encoder tokens than
 *                                    allowed.
 *            KVC_E_INVALID_STATE     A plain append to an uncommitted tree; encoder tokens for a
 *                                    sequence that has tokens and some of them already; a sequence
 *                                    that is swapped out.
 *            KVC_E_UNSUPPORTED       One of these:
 *                                    - Trees in a cache with STATE layers.
 *                                    - With ON_READ rope, a tree of a sequence with fewer committed
 *                                      tokens than sink tokens.
 *                                    - positions with an ON_READ layer.
 *                                    - Encoder tokens without a CROSS layer.
 *                                    - tokens with a CROSS layer.
 *            tensors                 positions.
 *            CUDA GRAPHS lists the statuses of captured and replayed forwards.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_forward_begin(kvc_cache *cache, const kvc_forward_desc *desc,
                                     kvc_forward **out,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT KVC_WARN_UNUSED;

/* Returns the new tokens of the whole batch (T). -1 when fwd is NULL or no longer open.
 *
 * Threading: shared. Device: host only. */
KVC_API int64_t kvc_forward_num_tokens(const kvc_forward *fwd) KVC_NOEXCEPT;

/* Writes the position of each new token, as RoPE takes it.
 *
 *   out   int32 [>= T], or [S, >= T] for S given position rows (S = 1 otherwise). With storage NONE
 *         it lies on the host.
 *
 * The position of a tree node is the committed length plus its depth. Caller-given positions come
 * back; row 0 when out has one dimension.
 *
 * Misuse:    KVC_E_INVALID_STATE  The forward is not open.
 *            tensors              out.
 * Threading: shared. Device: enqueues. */
KVC_API kvc_status kvc_forward_positions(kvc_forward *fwd, DLTensor *out,
                                         kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Makes the new tokens part of their sequences. The handle is dead afterwards.
 *
 * Where the library alone writes the pool (storage OWNED, and kvc_export_pool was never called),
 * every layer must have got its K and V in this forward, by kvc_attn, kvc_attn_fused_qkv,
 * kvc_kv_append or kvc_mla_append:
 *
 *   ATTENTION, MLA   always
 *   CROSS            in a forward that announced encoder tokens (kvc_attn_cross)
 *   STATE            never: a state that is not set is carried on
 *   SHARED, NONE     never: they have no rows of their own
 *
 * 1. A forward that leaves a layer out on purpose sets KVC_FORWARD_PARTIAL.
 * 2. What kvc_debug_set_* writes does not count.
 * 3. A replayed forward has got what the captured one got.
 * 4. Hosts that can write pages themselves (storage NONE or BORROWED, an exported pool) are not
 *    asked: they write every layer before end, or set the flag.
 *
 * Misuse:    KVC_E_INVALID_STATE  The forward is not open; or layers got no K and V (the message
 *                                 names them, detail = the first), and the forward stays open:
 *                                 append to them, or abort. CUDA GRAPHS lists what a capture adds.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_forward_end(kvc_forward *fwd, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Undoes the begin. NULL is accepted.
 *
 * Lengths, pages, tables, trees, windows and states are as before. Whatever was written to the new
 * slots is forgotten. Prefix blocks that the begin has evicted and automatic checkpoints that it
 * has given up do not come back.
 *
 * Misuse:    KVC_E_INVALID_STATE  The forward is not open. CUDA GRAPHS lists what a capture adds.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_forward_abort(kvc_forward *KVC_NULLABLE fwd,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Attention, inside a forward                                                                    */
/* ============================================================================================== */
/* 1. The order of layers is free. Calling a layer twice rewrites the same slots.
 * 2. Accumulation is float32 (KVC_CPU_ISA_REFERENCE: float64).
 * 3. lse is float32, the natural logarithm, and counts real keys only: sink logits do not count. A
 *    row that sees no key has out 0 and lse -inf.
 * 4. Nothing is written where a call fails.
 *
 * Misuse that all attention calls, kvc_kv_append and kvc_mla_append share; comments say "common":
 *   KVC_E_INVALID_STATE     The forward is not open, or the layer is of another kind. On CUDA: the
 *                           forward is replayed, or was begun before the capture of its stream.
 *   KVC_E_OUT_OF_RANGE      The layer is not in this cache.
 *   KVC_E_INVALID_ARGUMENT  An output overlaps.
 *   KVC_E_UNSUPPORTED       The cache has no storage, an option is not available, or the layer is
 *                           quantised where kvc_quant says no.
 *   tensors                 See TENSORS. */

/* Bits of kvc_attn_opt.flags. Without the first two, results change by rounding only. */
enum kvc_attn_flag {
  /* The same call gives the same bits. Always so on the CPU. */
  KVC_ATTN_DETERMINISTIC = 1,
  /* A token's output does not depend on the other sequences of the batch, nor on how its prompt was
   * cut into forwards; with LONGROPE, among cuts after which the sequence is on the same side of
   * original_context. Decode steps use the arithmetic of prefill, and shared prefixes are read by
   * each sequence. */
  KVC_ATTN_BATCH_INVARIANT = 2,
  /* Read shared prefixes once per sequence, even where reading them together would pay. In CUDA
   * graphs that is always so: a graph serves batches with other prefixes. */
  KVC_ATTN_NO_CASCADE = 4
};

/* Options of one attention call; NULL: all defaults. For query position p, key position j, head h:
 *
 *   s   = scale * (q . k);   with soft_cap c > 0: s = c * tanh(s / c)
 *   s   = s - alibi_slopes[h] * (p - j) + bias[h][t][j]
 *   O   = sum_j exp(s) v_j / (sum_j exp(s) + exp(sink_logits[h]))
 *   LSE = ln sum_j exp(s)
 *
 * Soft cap: Gemma-2. ALiBi: Press et al., arXiv:2108.12409. Sink logits: gpt-oss. */
typedef struct kvc_attn_opt {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext; /* NULL */
  uint64_t flags;                  /* KVC_ATTN_* bits. */
  float scale;                     /* 0: 1/sqrt(k_dim). */
  float soft_cap;                  /* >= 0; 0: off. */
  /* 0: the layer's. W >= 1: a query sees at most keys p-W+1..p in this call. W must not be above
   * the layer's own window, nor above window - sink of a sequence of the batch with sink tokens
   * (KVC_E_OUT_OF_RANGE). */
  int64_t window;
  const DLTensor *KVC_NULLABLE sink_logits;  /* float32 [num_q_heads]: one more term of O's
                                                denominator. */
  const DLTensor *KVC_NULLABLE alibi_slopes; /* float32 [num_q_heads]. */
  /* Additive bias, float32 [>= T, J] or [num_q_heads, >= T, J]. Column j belongs to token j of the
   * sequence; tree nodes follow the committed tokens in their order. J >= the longest sequence of
   * the batch with its new tokens. -inf masks a key; its K and V may then hold anything. Any other
   * value counts as 2.35e38 at most, either way: a row whose keys all have the least float32 sees
   * them alike. */
  const DLTensor *KVC_NULLABLE bias;
  /* Bidirectional spans, int32 [n, 3] on the host: (entry of the batch, begin, end) in absolute
   * positions, ascending and disjoint per entry. New tokens inside a span see it to its end (images
   * in Gemma-3), as far as tokens are there. Not with token trees, with moved positions, or in a
   * captured forward (KVC_E_UNSUPPORTED). */
  const DLTensor *KVC_NULLABLE spans;
} kvc_attn_opt;

/* Appends k and v (when given), then attends.
 *
 * New token i of a sequence sees every token up to and including itself, tree nodes their
 * ancestors, all within the windows of layer and sequence.
 *
 *           ATTENTION                        MLA (absorbed form)
 *   q       [>= T, num_q_heads, k_dim]       [>= T, num_q_heads, latent_rank + latent_rope_dim]
 *   k       [>= T, num_kv_heads, k_dim]      [>= T, 1, latent_rank + latent_rope_dim]: latents
 *   v       [>= T, num_kv_heads, v_dim]      NULL
 *   out     [>= T, num_q_heads, v_dim]       [>= T, num_q_heads, latent_rank]
 *   lse     float32 [>= T, num_q_heads]      the same
 *
 * 1. K = V layers: v is NULL. SHARED layers: k and v are NULL, and the source layer was appended to
 *    before. MLA: opt->scale must be given.
 * 2. k and v both NULL: the slots of this forward were filled before by kvc_kv_append or
 *    kvc_mla_append.
 *
 * Misuse:    common; and
 *            KVC_E_INVALID_ARGUMENT  One of k and v is NULL, or one is set that has to be NULL.
 *            KVC_E_INVALID_STATE     k and v are NULL and nothing was appended, unless the host can
 *                                    write the pool itself (borrowed or exported).
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
                            const DLTensor *q, const DLTensor *KVC_NULLABLE k,
                            const DLTensor *KVC_NULLABLE v, DLTensor *out,
                            DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Does what kvc_attn does on one packed tensor.
 *
 *   qkv   [>= T, num_q_heads + 2*num_kv_heads, k_dim]: q heads, then k heads, then v heads
 *   out   [>= T, num_q_heads, v_dim]
 *
 * Misuse:    common; and
 *            KVC_E_UNSUPPORTED  k_dim differs from v_dim, or a K = V layer.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_fused_qkv(kvc_forward *fwd, int32_t layer,
                                      const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *qkv,
                                      DLTensor *out, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Writes k and v into the slots of this forward of an ATTENTION layer.
 *
 *   k   [>= T, num_kv_heads, k_dim]
 *   v   [>= T, num_kv_heads, v_dim]; K = V layers: NULL
 *
 * Rows are rotated where the layer's rope mode is ON_APPEND, and rounded to nearest even to the
 * storage types.
 *
 * Misuse:    common; and
 *            KVC_E_INVALID_ARGUMENT  v is NULL, or is set on a K = V layer.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_kv_append(kvc_forward *fwd, int32_t layer, const DLTensor *k,
                                 const DLTensor *KVC_NULLABLE v,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Writes latents into the slots of this forward of an MLA layer.
 *
 *   latent   [>= T, latent_rank + latent_rope_dim], or [>= T, 1, latent_rank + latent_rope_dim]
 *
 * The last latent_rope_dim elements are rotated where the layer's rope mode is ON_APPEND.
 *
 * Misuse:    common.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_mla_append(kvc_forward *fwd, int32_t layer, const DLTensor *latent,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Prefix cache: prompts that begin alike share pages                                             */
/* ============================================================================================== */
/* The unit is a block of kvc_plan_info.prefix_block tokens, all layer groups together. A block is
 * found by its key, which names the block's tokens, all tokens before them, and the namespace:
 *
 *   root     = SHA-256("kvcache-prefix-1" | u64 salt_size | salt)
 *   key of i = SHA-256(key of i-1, or root | u32 k |
 *              for each of the k extra keys of the block:
 *                u32 type | u32 offset - i * block | u64 size | data |
 *              int32 tokens of the block)
 *
 * All integers are little endian. An extra key belongs to the block that holds the token at its
 * offset; the keys are ordered by (offset, type, data). Test vectors: tests/conformance/.
 *
 * 1. Publishing. A block is published when it is full and committed: by forwards that give
 *    `tokens`, or by kvc_prefix_insert. Equal blocks are kept once: a sequence that computed one
 *    again takes the index's pages over.
 * 2. Eviction. Pages that only the index knows (cached) are available, and are evicted when pages
 *    are needed: leaves first, least recently used first, lower priority first, never pages in use
 *    or pinned.
 * 3. Quotas. Blocks of a namespace with a quota (kvc_prefix_quota_set) go after all others, so that
 *    one tenant's traffic evicts its own blocks before another's.
 * 4. Host tier. With a host budget, evicted pages move to the host and come back on a hit.
 * 5. Hits. A hit has all that the next query sees in every layer group: all tokens, or the last W
 *    of a window. Recurrent states need a checkpoint at its end.
 * 6. Caches with CROSS layers: KVC_E_UNSUPPORTED, because encoder tokens are not part of the
 *    key. */

enum kvc_hash_size { KVC_HASH_BYTES = 32 };

typedef uint32_t kvc_prefix_key_type;
enum kvc_prefix_key_type_value {
  KVC_PREFIX_KEY_ADAPTER = 1, /* LoRA or other adapter, offset 0. */
  KVC_PREFIX_KEY_MEDIA = 2,   /* Digest of an image, audio or video; offset of its first token. */
  KVC_PREFIX_KEY_USER = 256   /* This and all above: the host program's own. */
};

/* Something besides tokens that K and V depend on. In an array, the first element's struct_size is
 * the stride of all. */
typedef struct kvc_prefix_key {
  size_t struct_size;
  kvc_prefix_key_type type; /* Not 0. */
  uint32_t reserved;        /* 0 */
  int64_t offset;           /* Token where it begins to matter, >= 0. */
  const void *KVC_NULLABLE data;
  size_t size;              /* Bytes, at most 4096. */
} kvc_prefix_key;

/* Bits of kvc_prefix_query.flags. */
enum kvc_prefix_flag {
  KVC_PREFIX_ALL_TOKENS = 1,  /* All num_tokens may hit. Without it, the last one is left to be
                                 computed. */
  KVC_PREFIX_WHOLE_BLOCKS = 2 /* No hit inside a block. Without it, the first tokens of a block that
                                 begins alike hit too (copied on write), up to its first extra key
                                 that differs or that only one of the two has. */
};

/* A prompt and its namespace. All arrays are borrowed for the call. kvc_prefix_attach and
 * kvc_prefix_insert copy salt, keys and priority into the sequence: they hold for the blocks that
 * it publishes later, so keys may have offsets behind num_tokens. num_tokens = 0 needs neither
 * tokens nor hashes. */
typedef struct kvc_prefix_query {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;     /* NULL */
  uint64_t flags;                      /* KVC_PREFIX_* bits. */
  int64_t num_tokens;                  /* >= 0 */
  /* [num_tokens]. May be NULL when hashes are given: then nothing hits inside a block, and new
   * blocks have no token ids (events without tokens). */
  const int32_t *KVC_NULLABLE tokens;
  /* [num_hashes][KVC_HASH_BYTES]: keys of the leading full blocks as kvc_prefix_hash makes them, so
   * that they are not computed again. A key names a block of the query's namespace only. That it is
   * the key of these tokens is trusted. */
  const uint8_t *KVC_NULLABLE hashes;
  size_t num_hashes;                   /* 0, or num_tokens / prefix_block when tokens is NULL. Fewer
                                          are completed from tokens. */
  const void *KVC_NULLABLE salt;       /* Namespace: a tenant, at most 4096 bytes. Nothing is shared
                                          across namespaces. */
  size_t salt_size;
  const kvc_prefix_key *KVC_NULLABLE keys; /* [num_keys], any order. */
  size_t num_keys;                     /* At most 1024. */
  int32_t priority;                    /* 0..100; higher stays longer. For the blocks that the
                                          sequence publishes, and those that it hits when higher. */
  int32_t reserved;                    /* 0 */
} kvc_prefix_query;

/* Computes the keys of the full blocks of `num_tokens` tokens. The result is the same in every
 * process and language.
 *
 *   out_hashes   [num_tokens / block_tokens][KVC_HASH_BYTES]; *len counts keys, see ARRAYS OUT
 *
 * Misuse:    KVC_E_INVALID_ARGUMENT  block_tokens < 1, NULL arrays, a key of type 0.
 *            KVC_E_OUT_OF_RANGE      Salt or key longer than 4096 bytes, offset < 0, more than 1024
 *                                    keys, too many tokens.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_prefix_hash(const int32_t *KVC_NULLABLE tokens, size_t num_tokens,
                                   int32_t block_tokens, const void *KVC_NULLABLE salt,
                                   size_t salt_size, const kvc_prefix_key *KVC_NULLABLE keys,
                                   size_t num_keys, uint8_t *KVC_NULLABLE out_hashes, size_t *len,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Returns the leading tokens that kvc_prefix_attach would find now.
 *
 * Of what lies on the host, that is only as much as pages are available, and a quota leaves room,
 * to bring it back. The call changes nothing and counts in no metric.
 *
 * Misuse of all functions that take a query; comments below say "query":
 *            KVC_E_INVALID_ARGUMENT  NULL; neither tokens nor hashes; a key of type 0.
 *            KVC_E_OUT_OF_RANGE      A length, count, offset or priority beyond its limit.
 *            KVC_E_UNSUPPORTED       The cache has a CROSS layer.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_prefix_match(const kvc_cache *cache, const kvc_prefix_query *query,
                                    int64_t *out_tokens, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Adds `seq` with the longest hit, in the query's namespace: later forwards with `tokens` publish
 * there.
 *
 * Its length is then *out_tokens, which is 0 when nothing hits. Pages on the host are copied back
 * as long as pages are available; the hit is shorter when they are not.
 *
 * Misuse:    query; and
 *            KVC_E_INVALID_ARGUMENT  seq < 0.
 *            KVC_E_ALREADY_EXISTS    The id is taken.
 *            KVC_E_BUSY              A forward is open.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_prefix_attach(kvc_cache *cache, kvc_seq seq, const kvc_prefix_query *query,
                                     int64_t *KVC_NULLABLE out_tokens,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* States that the first query->num_tokens tokens of `seq` are these, in this namespace, and
 * publishes their full blocks.
 *
 * query->num_tokens is at most the length. The call replaces what was known of the sequence.
 * *out_tokens: tokens of it that are in the index now. Publishing stops at the first token that a
 * KVC_FORWARD_PARTIAL has left unwritten. Where a quota makes older blocks go to the host, that
 * copy is enqueued.
 *
 * Misuse:    query; and
 *            KVC_E_NOT_FOUND      No such sequence.
 *            KVC_E_OUT_OF_RANGE   More tokens than the sequence has.
 *            KVC_E_BUSY           A forward is open.
 *            KVC_E_INVALID_STATE  Swapped out; an uncommitted tree; positions moved by
 *                                 kvc_seq_shift; a window set by kvc_seq_set_window; values written
 *                                 by kvc_debug_set_*; or older than kvc_prefix_reset.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_insert(kvc_cache *cache, kvc_seq seq, const kvc_prefix_query *query,
                                     int64_t *KVC_NULLABLE out_tokens,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Keeps the full blocks of the query that are in the index, on the device, from being evicted.
 *
 * Pins count: each needs its own kvc_prefix_unpin. Pinned pages are not available. *out_tokens:
 * tokens pinned.
 *
 * Misuse:    query.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_pin(kvc_cache *cache, const kvc_prefix_query *query,
                                  int64_t *KVC_NULLABLE out_tokens,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Undoes one kvc_prefix_pin of the same query. *out_tokens: tokens of the leading blocks that were
 * pinned.
 *
 * Misuse:    query.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_unpin(kvc_cache *cache, const kvc_prefix_query *query,
                                    int64_t *KVC_NULLABLE out_tokens,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Evicts until at least `pages` device pages are given up, or nothing evictable is left.
 *
 * Their contents go to the host when it has room, and are dropped otherwise. *out_freed: how many
 * device pages.
 *
 * Misuse:    KVC_E_OUT_OF_RANGE  pages is negative.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_prefix_evict(kvc_cache *cache, int64_t pages,
                                    int64_t *KVC_NULLABLE out_freed,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Forgets the whole index, pins and host copies too (new weights), and detaches all tiers.
 * Sequences keep their pages, but what they have computed so far is never published. State files of
 * the old weights are loaded with KVC_LOAD_NO_PUBLISH.
 *
 * Misuse:    KVC_E_BUSY  A forward is open.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_reset(kvc_cache *cache, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Gives the namespace `salt` a quota; 0: no quota.
 *
 * The device pages and states that the index holds for it stay within max_bytes. What does not fit
 * replaces its own least recently used blocks, or is not published. Other namespaces' traffic
 * evicts its blocks only when nothing else can be evicted. Shrinking evicts at once what is not in
 * use; copies to the host are enqueued.
 *
 * `salt`: borrowed for the call.
 *
 * Misuse:    KVC_E_OUT_OF_RANGE      Salt longer than 4096 bytes, or more than 4096 namespaces with
 *                                    quotas.
 *            KVC_E_INVALID_ARGUMENT  salt is NULL and salt_size is not 0.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_prefix_quota_set(kvc_cache *cache, const void *KVC_NULLABLE salt,
                                        size_t salt_size, uint64_t max_bytes,
                                        kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Events: what the prefix index holds, for routers                                               */
/* ============================================================================================== */
/* A consumer that starts from nothing (or from kvc_events_snapshot) and applies events in order
 * holds what the index holds: the tier for each key and layer group. The index holds a group of a
 * block when it holds all of the group's pages in the block. */

typedef int32_t kvc_event_type;
enum kvc_event_type_value KVC_INT32_ENUM {
  KVC_EVENT_STORED = 0,  /* The block's pages of `group` are in `tier` now. */
  KVC_EVENT_REMOVED = 1, /* They left `tier`. */
  KVC_EVENT_MOVED = 2,   /* They moved from `from_tier` to `tier`. */
  KVC_EVENT_CLEARED = 3  /* Nothing is held any more, in no tier. */
};

typedef int32_t kvc_tier;
enum kvc_tier_value KVC_INT32_ENUM {
  KVC_TIER_DEVICE = 0,
  KVC_TIER_HOST = 1,
  KVC_TIER_FILE = 2, /* Files of one process; see TIERS. Events do not name it. */
  KVC_TIER_REDIS = 3 /* Servers that several machines share; likewise. */
};

typedef struct kvc_event {
  size_t struct_size;
  uint64_t number;    /* 1, 2, 3, ... since the cache was made. A gap: events were lost, take a
                         snapshot. */
  kvc_event_type type;
  kvc_tier tier;
  kvc_tier from_tier; /* MOVED. */
  int32_t group;      /* Layer group; -1: the recurrent state at the block's end. */
  int32_t num_tokens; /* Tokens of the block. */
  int32_t reserved;
  /* STORED: [num_tokens]. NULL when unknown, or when the block has been removed since. Valid until
   * the next exclusive call on the cache. */
  const int32_t *KVC_NULLABLE tokens;
  uint8_t hash[KVC_HASH_BYTES];
  uint8_t parent[KVC_HASH_BYTES]; /* STORED: the block before, or the root of the namespace. */
} kvc_event;

/* Takes the oldest unpolled events, at most *count of them.
 *
 * out[0].struct_size is the stride of the array, and is written with the bytes filled: set it again
 * before the next call. *count on return: events written. When more than config.event_capacity
 * wait, the oldest are lost, which the next event's number shows.
 *
 * Misuse:    KVC_E_UNSUPPORTED  config.event_capacity is 0.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_events_poll(kvc_cache *cache, kvc_event *out, size_t *count,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Writes everything that the index holds as STORED events, parents before their children; see
 * ARRAYS OUT.
 *
 * *out_number: the number of the last event that they include. Apply polled events with larger
 * ones.
 *
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_events_snapshot(const kvc_cache *cache, kvc_event *KVC_NULLABLE out,
                                       size_t *count, uint64_t *out_number,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Copies and swap                                                                                */
/* ============================================================================================== */
/* 1. The host pool has kvc_plan_info.num_host_pages pages of the device's format. It is used in one
 *    of two ways, whichever comes first after creation or kvc_cache_clear:
 *      by sequences and the prefix index   kvc_swap_out, evicted pages
 *      by page ids                         kvc_pages_swap, where the host program says which page
 *                                          holds what
 *    The other way then answers KVC_E_INVALID_STATE.
 * 2. Copies run in the order of the calls. On the CPU they are complete on return, and fences are
 *    signalled.
 * 3. `out_fence`: NULL, or owned by caller. */

/* Moves sequences to the host: their pages, the states of STATE layers, their checkpoints.
 *
 * Pages and states that several of them share stay shared. Pages that others or the prefix index
 * hold stay on the device as well. A swapped sequence keeps id, length and namespace. Until it is
 * swapped in, only kvc_seq_remove, kvc_seq_length, kvc_seq_info_get, kvc_seq_list and kvc_swap_in
 * take it; others answer KVC_E_INVALID_STATE.
 *
 * Expected:  KVC_E_NO_PAGES          The host pool is full (detail = missing host pages).
 *            KVC_E_NO_MEMORY         Host memory for states.
 * Misuse:    KVC_E_NOT_FOUND         No such sequence.
 *            KVC_E_INVALID_ARGUMENT  n = 0, duplicate ids.
 *            KVC_E_INVALID_STATE     Swapped already; an uncommitted tree; the host pool is used by
 *                                    page ids.
 *            KVC_E_BUSY              A sequence of the open forward.
 *            KVC_E_UNSUPPORTED       No host budget.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_swap_out(kvc_cache *cache, size_t n, const kvc_seq *seqs,
                                kvc_stream KVC_NULLABLE stream,
                                kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Brings swapped sequences back to the device. What sequences of one kvc_swap_out shared is shared
 * again when they come back in one call.
 *
 * Expected:  KVC_E_NO_PAGES       detail = pages and state slots missing.
 * Misuse:    KVC_E_INVALID_STATE  Not swapped.
 *            Others as kvc_swap_out.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_swap_in(kvc_cache *cache, size_t n, const kvc_seq *seqs,
                               kvc_stream KVC_NULLABLE stream,
                               kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                               kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_swap_direction;
enum kvc_swap_direction_value KVC_INT32_ENUM {
  KVC_SWAP_OUT = 0, /* Device to host. */
  KVC_SWAP_IN = 1   /* Host to device. */
};

/* Copies whole pages (all layers) between the device pool and the host pool.
 *
 *   pairs   int64 [n, 2] on the CPU of (from, to), any n >= 0; borrowed for the call
 *
 * Runs of pages that are adjacent in both pools, ascending or descending, are copied at once. The
 * tables of sequences are not looked at: on the device, any page may be named.
 *
 * Misuse:    tensors                 pairs.
 *            KVC_E_OUT_OF_RANGE      A page id (detail = row).
 *            KVC_E_INVALID_ARGUMENT  A destination twice (detail = row).
 *            KVC_E_UNSUPPORTED       No storage, no host budget, unknown direction.
 *            KVC_E_INVALID_STATE     The host pool is used by sequences and the prefix index.
 *            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
 *                                    be rotated (kvc_seq_shift).
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_pages_swap(kvc_cache *cache, const DLTensor *pairs,
                                  kvc_swap_direction direction, kvc_stream KVC_NULLABLE stream,
                                  kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies whole pages inside the device pool, as kvc_pages_swap does between pools.
 *
 * Misuse:    tensors                 pairs.
 *            KVC_E_OUT_OF_RANGE      A page id (detail = row).
 *            KVC_E_INVALID_ARGUMENT  A destination twice (detail = row); or a page that is source
 *                                    of one pair and destination of another, whose result would
 *                                    depend on the order.
 *            KVC_E_UNSUPPORTED       No storage.
 *            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
 *                                    be rotated (kvc_seq_shift).
 *            KVC_E_INVALID_STATE     Such a sequence is swapped out.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_pages_copy(kvc_cache *cache, const DLTensor *pairs,
                                  kvc_stream KVC_NULLABLE stream,
                                  kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies a layer's parts of pages to the host, as they are stored.
 *
 *   ids   int64 [n] on the CPU, any n >= 0
 *   out   uint8 [n, kvc_layer_info.page_bytes] on the CPU, contiguous rows: a row is what
 *         kvc_export_pool shows as KVC_POOL_BYTES
 *
 * Pages of equal kvc_layout_fingerprint can be imported elsewhere as they are. SHARED layers: the
 * source's. The tables of sequences are not looked at: any page may be named. A page of a sequence
 * on its way (kvc_transfer_recv) is being written by the transport's thread: do not name it.
 *
 * Misuse:    tensors                 ids, out.
 *            KVC_E_OUT_OF_RANGE      layer; a page id (detail = row).
 *            KVC_E_UNSUPPORTED       No storage; a layer without pages.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_pages_export(const kvc_cache *cache, int32_t layer, const DLTensor *ids,
                                    DLTensor *out, kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies bytes of the host into a layer's parts of pages: the way back of kvc_pages_export.
 *
 *   ids   int64 [n] on the CPU, any n >= 0
 *   in    uint8 [n, kvc_layer_info.page_bytes] on the CPU, contiguous rows
 *
 * kvc_seq_reserve makes a sequence with pages to import into, and says how imported rows are found
 * as prefixes. From here on the host program counts as writing the pool itself, as after
 * kvc_export_pool.
 *
 * Misuse:    tensors                 ids, in.
 *            KVC_E_OUT_OF_RANGE      layer; a page id (detail = row).
 *            KVC_E_INVALID_ARGUMENT  A page twice (detail = row).
 *            KVC_E_UNSUPPORTED       No storage; a layer without pages.
 *            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
 *                                    be rotated (kvc_seq_shift).
 *            KVC_E_INVALID_STATE     Such a sequence is swapped out.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_pages_import(kvc_cache *cache, int32_t layer, const DLTensor *ids,
                                    const DLTensor *in, kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Asks whether the copies are complete: *out_done is 1 when they are, else 0.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_fence_query(const kvc_fence *fence, int32_t *out_done,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Waits for the copies, at most timeout_ns nanoseconds; negative: for ever.
 *
 * Expected:  KVC_E_TIMEOUT  Not done by then.
 * Threading: any. Device: blocks until done. */
KVC_API kvc_status kvc_fence_wait(const kvc_fence *fence, int64_t timeout_ns,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Lets what is enqueued on `stream` from now on wait for the copies. On the CPU: waits here.
 *
 * Threading: any. Device: enqueues on the stream. */
KVC_API kvc_status kvc_fence_wait_on_stream(const kvc_fence *fence, kvc_stream KVC_NULLABLE stream,
                                            kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Destroys a fence. NULL is accepted. The copies go on. A fence may outlive its cache.
 *
 * Threading: any, once. Device: host only. */
KVC_API void kvc_fence_destroy(kvc_fence *KVC_NULLABLE fence) KVC_NOEXCEPT;

/* ============================================================================================== */
/* State files                                                                                    */
/* ============================================================================================== */
/* 1. A state file holds whole sequences: lengths, windows, positions, token ids with their keys and
 *    namespace, the rows of every layer as stored (scales included), recurrent states with their
 *    checkpoints, encoder tokens. A page or state that several of its sequences share is in it
 *    once, and shared again when they are loaded.
 * 2. A sequence that was loaded goes on as the saved one would have: no token has to be computed
 *    again, and results have the same bits on the same kernels.
 * 3. Loading refuses a file whose layout differs (kvc_layout_fingerprint), and names the field and
 *    both values. Page size, rotations and windows are part of the layout. Device, pool layout,
 *    number of pages and query heads are not. KVC_LOAD_CONVERT accepts other activation types; a
 *    change of quantised storage stays refused.
 * 4. Every byte is covered by a digest (XXH3, 64 bits), checked before a sequence becomes visible.
 *    Digests find accidents. They do not authenticate: load files of people you trust.
 * 5. Slots without a token are written as zeros. Nothing of other sequences gets into a file.
 * 6. docs/state_files.md describes the format. Byte order is the machine's, and checked. */

/* Writes the fingerprint of the plan's layout, a text of 81 letters; see ARRAYS OUT. It is equal
 * exactly where pages and states can move between two caches without a change.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_layout_fingerprint(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                          kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Where a state file goes. Exactly one of path, data and write is set, or none to ask for the
 * size. All is borrowed for the call. */
typedef struct kvc_save_desc {
  size_t struct_size;
  uint64_t flags;       /* Must be 0. */
  /* A file. It is written beside its place, synchronised and renamed: a crash leaves the old file
   * or the new one. A symbolic link is followed. A new file has mode 0600. A file that is replaced
   * keeps mode, owner and group, or KVC_E_IO says that its owner cannot be kept. What is no regular
   * file, such as a FIFO or a device, is written in place, and a crash leaves a part of it. A FIFO
   * that no process reads is KVC_E_IO. */
  const char *KVC_NULLABLE path;
  void *KVC_NULLABLE data; /* Memory for `size` bytes. */
  size_t size;
  /* Takes the next `size` bytes, borrowed for the call. Returns 0, or an errno. It must not use the
   * cache. */
  int32_t (*KVC_NULLABLE write)(void *user, const void *data, size_t size);
  void *KVC_NULLABLE user; /* Its first argument. */
  /* A name of the model and its weights, at most 255 bytes; NULL: none. The layout says nothing of
   * weights. */
  const char *KVC_NULLABLE model_id;
  const kvc_ext *KVC_NULLABLE ext; /* NULL */
} kvc_save_desc;

/* Flags of kvc_load_desc. */
enum kvc_load_flag {
  /* Rows and states of other activation types are converted. */
  KVC_LOAD_CONVERT = 1,
  /* The prefix index gets no block of the sequences, and no page of it is shared with them: their
   * tokens count as unknown. For files of other weights, as before kvc_prefix_reset. */
  KVC_LOAD_NO_PUBLISH = 2
};

/* Where a state file comes from. Exactly one of path, data and read is set. All is borrowed for the
 * call. */
typedef struct kvc_load_desc {
  size_t struct_size;
  uint64_t flags;       /* KVC_LOAD_*. */
  const char *KVC_NULLABLE path; /* A file. */
  const void *KVC_NULLABLE data; /* `size` bytes in memory. */
  size_t size;
  /* Copies up to `size` bytes from `offset` on into `data`. Returns how many; 0 at the end; a
   * negated errno. Offsets ascend without gaps, and begin anew at 0 where the file is read twice.
   * It must not use the cache. */
  int64_t (*KVC_NULLABLE read)(void *user, uint64_t offset, void *data, size_t size);
  void *KVC_NULLABLE user;           /* Its first argument. */
  const char *KVC_NULLABLE model_id; /* The model_id that the file must have; NULL: any. */
  const kvc_ext *KVC_NULLABLE ext;   /* NULL */
} kvc_load_desc;

/* Saves n >= 1 sequences as a state file. *out_bytes: its size, also where it does not fit.
 *
 * Statuses of bad descs and files, which comments call "state file":
 *   Expected:  KVC_E_IO                A file, or the function, failed (sys_code = errno).
 *   Misuse:    KVC_E_INVALID_ARGUMENT  Not exactly one place; a model_id that is too long.
 *
 * Expected:  state file; and
 *            KVC_E_BUFFER_TOO_SMALL  desc->size; what was written is of no use.
 * Misuse:    state file; and
 *            KVC_E_NOT_FOUND         No such sequence.
 *            KVC_E_INVALID_ARGUMENT  n = 0, duplicate ids.
 *            KVC_E_INVALID_STATE     Swapped out; an uncommitted tree.
 *            KVC_E_BUSY              A sequence of the open forward.
 *            KVC_E_UNSUPPORTED       No storage.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_seq_save(const kvc_cache *cache, size_t n, const kvc_seq *seqs,
                                const kvc_save_desc *desc, kvc_stream KVC_NULLABLE stream,
                                uint64_t *KVC_NULLABLE out_bytes,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Adds the sequences of a state file under new ids, in the order in which they were saved.
 *
 * Their full blocks are published to the prefix index, and blocks that it knows already are shared.
 * A file is read once, or twice where room has to be made: a damaged file then evicts nothing.
 *
 * Expected:  state file; and
 *            KVC_E_NO_PAGES          detail = pages and state slots missing.
 *            KVC_E_CORRUPT           The file is damaged or truncated; the message says where.
 *            KVC_E_VERSION           A newer format, or another byte order.
 * Misuse:    state file; and
 *            KVC_E_INVALID_ARGUMENT  No state file; another model_id; n is not its number of
 *                                    sequences (detail); negative or duplicate ids.
 *            KVC_E_ALREADY_EXISTS    An id is taken.
 *            KVC_E_NEVER_FITS        More pages than the cache has.
 *            KVC_E_UNSUPPORTED       Another layout; no storage.
 *            KVC_E_BUSY              A forward is open.
 * Threading: exclusive; a thread reads ahead unless config.num_threads is 1.
 * Device:    blocks until done. */
KVC_API kvc_status kvc_seq_load(kvc_cache *cache, const kvc_load_desc *desc, size_t n,
                                const kvc_seq *seqs, kvc_stream KVC_NULLABLE stream,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Reads and checks a whole state file without a cache, and writes what it holds as JSON; see ARRAYS
 * OUT.
 *
 *   "format"       of the file
 *   "bytes"        its size
 *   "fingerprint"  of its layout; "layout": the fields behind it
 *   "model_id"
 *   "num_pages", "num_states", "page_bytes", "state_bytes"
 *   "sequences"    each with "id" (at its saving), "length", "cross_length", "num_known_tokens",
 *                  "num_checkpoints", "window", "sink", "namespace" (root of its keys);
 *                  "k_ahead", "k_ahead_begin": rotated K of tokens from there on stands so many
 *                  positions ahead (kvc_seq_shift)
 *
 * Expected:  state file; KVC_E_CORRUPT and KVC_E_VERSION as kvc_seq_load.
 * Misuse:    state file; KVC_E_INVALID_ARGUMENT as kvc_seq_load.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_state_file_describe(const kvc_load_desc *desc, char *KVC_NULLABLE buf,
                                           size_t *len, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Transfers                                                                                      */
/* ============================================================================================== */
/* 1. A transfer moves a sequence from one cache to another, of this process or of another machine:
 *    prefill here, decode there. The receiver comes first: it reserves the pages and writes a
 *    ticket. The host program brings the ticket to the sender by its own means, and the sender
 *    sends:
 *
 *      decode side                                     prefill side
 *      kvc_transfer_recv(cache, t, &desc, &x, err)
 *      kvc_transfer_ticket(x, buf, &len, err)   - - >  kvc_transfer_send(cache, t, &desc, &y, err)
 *      kvc_transfer_wait(x, timeout_ns, err)           kvc_transfer_wait(y, timeout_ns, err)
 *      kvc_transfer_destroy(x)                         kvc_transfer_destroy(y)
 *
 * 2. What arrives is what kvc_seq_save would write, except checkpoints before the end: tokens
 *    [begin, length) with the rows of every layer as stored, the recurrent state, windows,
 *    positions, encoder tokens, token ids with their keys. The sequence goes on as the sender's
 *    would, bit for bit.
 * 3. A sequence on its way is there from kvc_transfer_recv on, with its id and its full length, and
 *    is nobody's: calls on it answer KVC_E_BUSY. It becomes an ordinary one in one step, when all
 *    of it is here and every chunk has been compared with its digest (XXH3, 64 bits). That happens
 *    in kvc_transfer_wait, or in whichever exclusive call on the cache comes next. Where a transfer
 *    fails the cache is as it was before kvc_transfer_recv, likewise.
 * 4. Sending copies. The sender's sequence stays as it is and may be used, changed and removed: the
 *    transfer holds the pages that it reads.
 * 5. A page that a transfer writes is not given to others until nothing is on its way to it any
 *    more, whatever has failed.
 * 6. Layouts are compared before a byte moves (kvc_layout_fingerprint). Others are refused by name,
 *    on both sides.
 * 7. A transport moves the bytes. Its engine "loopback" connects transports of one process, "ucx"
 *    those of processes and machines. "ucx" is a module, libkvcache_transport_ucx.so, looked for as
 *    kvc_module_path_set says; docs/transfer.md has its settings and what each failure looks like.
 *    Messages are not encrypted and peers are not authenticated: whoever has a ticket can send.
 * 8. Times are in nanoseconds. In timeouts a negative one means for ever; in descs 0 means the
 *    default.
 * 9. While transfers of a cache are open, kvc_cache_clear and kvc_cache_resize answer KVC_E_BUSY,
 *    and kvc_cache_destroy ends them.
 *
 * Features: "transport.ucx": the module can be loaded. */

typedef struct kvc_transport kvc_transport; /* Moves bytes between caches. */
typedef struct kvc_transfer kvc_transfer;   /* A sequence on its way. */

/* Flags of kvc_transport_desc. */
enum kvc_transport_flag {
  /* No thread: the host program calls kvc_transport_progress. */
  KVC_TRANSPORT_MANUAL_PROGRESS = 1
};

/* How a transport is opened. Everything is borrowed for the call. */
typedef struct kvc_transport_desc {
  size_t struct_size;
  uint64_t flags;                       /* KVC_TRANSPORT_*. */
  const char *KVC_NULLABLE engine;      /* "loopback", "ucx"; NULL: "loopback". */
  /* Where peers reach it. "loopback": a name that is new in this process, at most 255 bytes; NULL:
   * one is made. "ucx": an IPv4 address of this machine with a port, as "10.0.0.5:7000";
   * port 0 or none: a free one; NULL: "127.0.0.1:0", for this machine alone. */
  const char *KVC_NULLABLE address;
  int64_t idle_ns;                      /* The other side said nothing for so long: 5 s. */
  int64_t beat_ns;                      /* What was not answered is said again after it: 1 s. */
  int64_t drain_ns;                     /* For what is on its way when a transfer ends: 1 s. */
  int64_t tombstone_ns;                 /* Ended transfers are known to late messages: 60 s. */
  uint64_t bytes_in_flight;             /* Of a sending transfer: 64 MiB. */
  int32_t resend_rounds;                /* How often chunks are sent again: 3. */
  int32_t reserved;                     /* Must be 0. */
  const kvc_ext *KVC_NULLABLE ext;      /* NULL */
} kvc_transport_desc;

/* Counters of a transport since it was opened. */
typedef struct kvc_transport_stats {
  size_t struct_size;
  int64_t transfers_open;
  uint64_t transfers_done;    /* Sent, or arrived. */
  uint64_t transfers_failed;
  uint64_t messages_sent;
  uint64_t messages_received;
  uint64_t bytes_sent;        /* Headers and payloads. */
  uint64_t bytes_received;
  uint64_t messages_refused;  /* For no open transfer, or out of place. */
  uint64_t messages_damaged;  /* Bytes that are no message. */
  uint64_t payloads_damaged;  /* Incomplete, or with another digest. */
} kvc_transport_stats;

/* Opens a transport. *out is owned by the caller: kvc_transport_destroy.
 *
 * Expected:  KVC_E_ALREADY_EXISTS    "loopback": desc->address is taken.
 *            KVC_E_IO                The system has no pipe or no random bytes; "ucx": the address
 *                                    is taken or not of this machine, or UCX does not start
 *                                    (sys_code = errno).
 *            KVC_E_UNSUPPORTED       "ucx": its module is not there, or does not match.
 * Misuse:    KVC_E_INVALID_ARGUMENT  desc->address, negative times.
 *            KVC_E_UNSUPPORTED       desc->engine, flags.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transport_open(const kvc_transport_desc *desc, kvc_transport **out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Where peers reach it, a text; see ARRAYS OUT. Tickets contain it.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transport_address(const kvc_transport *transport, char *KVC_NULLABLE buf,
                                         size_t *len, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* A descriptor that is readable (POLLIN) when kvc_transport_progress has work. The transport owns
 * it. Timers do not make it readable: progress is called every desc->beat_ns at least.
 *
 * Misuse:    KVC_E_INVALID_STATE  Not with KVC_TRANSPORT_MANUAL_PROGRESS.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transport_fd(const kvc_transport *transport, int32_t *out_fd,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Does what is due, after waiting at most timeout_ns for something.
 *
 * Misuse:    KVC_E_INVALID_STATE  Not with KVC_TRANSPORT_MANUAL_PROGRESS.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transport_progress(kvc_transport *transport, int64_t timeout_ns,
                                          kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Fills *out.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transport_stats_get(const kvc_transport *transport,
                                           kvc_transport_stats *out,
                                           kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Takes no new transfers, and waits for the open ones. What has not ended after timeout_ns is
 * cancelled and broken off. What has arrived stays.
 *
 * Expected:  KVC_E_TIMEOUT  Transfers were cancelled.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transport_close(kvc_transport *transport, int64_t timeout_ns,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Destroys a transport. Open transfers end as cancelled; their handles stay valid, and what has
 * arrived can still be waited for. NULL is accepted.
 *
 * Threading: any, once. Device: host only. */
KVC_API void kvc_transport_destroy(kvc_transport *KVC_NULLABLE transport) KVC_NOEXCEPT;

/* Runs once when a transfer has ended: it has arrived, is done or has failed, as for
 * kvc_transfer_fence. `status` is that of kvc_transfer_info.
 *
 * 1. It runs on the transport's thread, which moves nothing meanwhile, and may still do so when
 *    kvc_transfer_wait has returned. With KVC_TRANSPORT_MANUAL_PROGRESS it runs in
 *    kvc_transport_progress, kvc_transport_close or kvc_transfer_wait. Those that have not run by
 *    then run in kvc_transport_destroy. The library holds no lock meanwhile.
 * 2. kvc_transfer_destroy runs it where it has not run, with `transfer` = NULL and the status of
 *    the end: KVC_E_CANCELLED for a transfer that was not over. Where it runs on another thread,
 *    kvc_transfer_destroy waits for its return. `user` is not used afterwards.
 * 3. *out of kvc_transfer_recv and kvc_transfer_send is set before. Where they fail it never runs.
 * 4. It may call the library, as any thread may, and destroy `transfer` or the transport where no
 *    other call on them is open. It must not throw. */
typedef void (*kvc_transfer_fn)(void *user, kvc_transfer *transfer, kvc_status status);

/* Flags of kvc_recv_desc. */
enum kvc_transfer_flag {
  /* The prefix index gets the blocks of the sequence, and shares those that it has. Without it the
   * tokens that arrive count as unknown. */
  KVC_TRANSFER_PUBLISH = 1
};

/* What is received. Everything but `user` is borrowed for the call. */
typedef struct kvc_recv_desc {
  size_t struct_size;
  uint64_t flags;        /* KVC_TRANSFER_*. */
  /* A new id with begin = 0; or a sequence of the cache, to whose tokens, `begin` of them, others
   * are appended: what kvc_prefix_attach has found does not travel. A window that it has saves
   * pages: those that it hides are not reserved. */
  kvc_seq seq;
  int64_t begin;         /* Tokens that the sequence has; they are the sender's. */
  int64_t num_tokens;    /* Tokens that arrive, at least 1: the sender has begin + num_tokens. */
  int64_t cross_length;  /* Encoder tokens that arrive; 0 with begin > 0. */
  int64_t deadline_ns;   /* For all of it, from now on: 30 s; negative: none. */
  int64_t idle_ns;       /* As of the transport, for this transfer; negative: none. */
  int32_t priority;      /* Of its blocks, as kvc_prefix_query.priority; with PUBLISH. */
  int32_t reserved;      /* Must be 0. */
  /* The model_id that the sender must give; NULL: any. At most 255 bytes. */
  const char *KVC_NULLABLE model_id;
  const kvc_ext *KVC_NULLABLE ext; /* NULL */
  /* Tensor parallelism: rank tp_rank of tp_size (0: 1) keeps an equal run of the KV heads; the
   * senders are sender_tp_size ranks (0: as tp_size). One size divides the other. Where there are
   * more senders than receivers, each sends its part with the same ticket, and the sequence is
   * there when all have arrived. Latents (MLA) and states are whole on each rank. */
  int32_t tp_rank, tp_size, sender_tp_size, reserved2;
  kvc_transfer_fn KVC_NULLABLE on_done; /* NULL: none. */
  void *KVC_NULLABLE user;              /* Its first argument. */
} kvc_recv_desc;

typedef int32_t kvc_send_mode;
enum kvc_send_mode_value KVC_INT32_ENUM {
  KVC_SEND_NOW = 0, /* The sequence as it is: it has all tokens of the ticket. */
  /* The sequence has some of the ticket's tokens, or none, and forwards compute the others. Rows
   * leave layer by layer, when a call has written them and their page is full; the rest with the
   * end of the forward that brings the last token. The transfer ends (KVC_E_CANCELLED) when such a
   * forward is aborted, when the sequence is removed, popped, shifted or longer than the ticket
   * says, and when it has a token tree at the end of a forward. The deadline is for the whole
   * prefill. */
  KVC_SEND_AS_COMPUTED = 1
};

/* What is sent. Everything but `user` is borrowed for the call. */
typedef struct kvc_send_desc {
  size_t struct_size;
  uint64_t flags;      /* Must be 0. */
  kvc_seq seq;
  int64_t begin;       /* The first token that travels: the receiver's kvc_recv_desc.begin. */
  const void *ticket;  /* Of kvc_transfer_ticket. */
  size_t ticket_len;
  kvc_send_mode mode;
  int32_t reserved;    /* Must be 0. */
  int64_t deadline_ns; /* For all of it, from now on: 30 s; negative: none. */
  int64_t idle_ns;     /* As of the transport, for this transfer; negative: none. */
  const char *KVC_NULLABLE model_id; /* Name of the model and its weights; at most 255 bytes. */
  const kvc_ext *KVC_NULLABLE ext;   /* NULL */
  int32_t tp_rank, tp_size; /* As in kvc_recv_desc, of the sender. */
  kvc_transfer_fn KVC_NULLABLE on_done; /* NULL: none. */
  void *KVC_NULLABLE user;              /* Its first argument. */
} kvc_send_desc;

typedef int32_t kvc_transfer_state;
enum kvc_transfer_state_value KVC_INT32_ENUM {
  KVC_TRANSFER_WAITING = 0, /* For the other side. */
  KVC_TRANSFER_RUNNING = 1,
  KVC_TRANSFER_ARRIVED = 2, /* Everything is here and compared. The sender knows. */
  KVC_TRANSFER_ENDING = 3,  /* It has failed, and something may still be on its way. */
  KVC_TRANSFER_DONE = 4,    /* Sent; or the sequence is an ordinary one. */
  KVC_TRANSFER_FAILED = 5
};

/* What a transfer does. */
typedef struct kvc_transfer_info {
  size_t struct_size;
  kvc_transfer_state state;
  /* Of ENDING and FAILED, else KVC_OK: KVC_E_PEER (the connection is gone), KVC_E_TIMEOUT (deadline
   * or idle; a sender may have delivered all the same), KVC_E_CANCELLED, KVC_E_CORRUPT, KVC_E_BUSY
   * (the ticket is in use), KVC_E_NOT_FOUND (the receiver knows no such transfer),
   * KVC_E_UNSUPPORTED (another layout), KVC_E_INVALID_ARGUMENT (another model or sequence). */
  kvc_status status;
  int32_t is_receiving;
  int32_t reserved;
  uint64_t chunks_total;  /* 0 before the two sides have met. */
  uint64_t chunks_done;
  uint64_t chunks_resent;
  uint64_t bytes_total;
  uint64_t bytes_done;
  char message[256];      /* Why it has failed; empty: it has not. */
  char peer_message[256]; /* What the other side said; empty: nothing. */
} kvc_transfer_info;

/* Reserves room for a sequence and waits for its sender. *out is owned by the caller:
 * kvc_transfer_destroy.
 *
 * Expected:  KVC_E_NO_PAGES          detail = pages and state slots missing.
 *            KVC_E_NEVER_FITS        More pages than the cache has.
 * Misuse:    KVC_E_INVALID_ARGUMENT  num_tokens < 1, begin or cross_length < 0, model_id, seq < 0;
 *                                    tp_rank, tp_size, sender_tp_size.
 *            KVC_E_NOT_FOUND         begin > 0, and no such sequence.
 *            KVC_E_OUT_OF_RANGE      begin is not the length; limits of the configuration.
 *            KVC_E_INVALID_STATE     It has an uncommitted tree or is swapped out; the transport is
 *                                    closed.
 *            KVC_E_BUSY              A forward is open.
 *            KVC_E_UNSUPPORTED       No storage; a pool on CUDA; flags; more layer groups than a
 *                                    ticket of 4,096 bytes describes; KV heads that the senders
 *                                    cannot share.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_transfer_recv(kvc_cache *cache, kvc_transport *transport,
                                     const kvc_recv_desc *desc, kvc_transfer **out,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* What the sender needs, at most 4,096 bytes; see ARRAYS OUT. It is of use once. It names transport
 * and tokens, and is to be kept from strangers.
 *
 * Misuse:    KVC_E_INVALID_STATE  The transfer sends.
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transfer_ticket(const kvc_transfer *transfer, void *KVC_NULLABLE buf,
                                       size_t *len, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Sends a sequence to the writer of a ticket. *out is owned by the caller: kvc_transfer_destroy.
 *
 * Expected:  KVC_E_PEER              Nobody listens at the address of the ticket.
 * Misuse:    KVC_E_INVALID_ARGUMENT  No ticket; begin; mode; model_id; tp_rank, tp_size.
 *            KVC_E_CORRUPT           The ticket is damaged.
 *            KVC_E_VERSION           The ticket is of another version.
 *            KVC_E_NOT_FOUND         No such sequence.
 *            KVC_E_OUT_OF_RANGE      Its length, or its encoder tokens, are not the ticket's;
 *                                    AS_COMPUTED: it is longer.
 *            KVC_E_INVALID_STATE     It has an uncommitted tree or is swapped out; the transport is
 *                                    closed.
 *            KVC_E_BUSY              A forward is open; the ticket is in use here.
 *            KVC_E_UNSUPPORTED       No storage; a pool on CUDA; a ticket for another engine, or of
 *                                    another number of layer groups; flags.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_transfer_send(kvc_cache *cache, kvc_transport *transport,
                                     const kvc_send_desc *desc, kvc_transfer **out,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Fills *out.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transfer_query(const kvc_transfer *transfer, kvc_transfer_info *out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Waits for the end, at most timeout_ns. KVC_OK: all is sent, or the sequence is an ordinary one.
 * Otherwise the status is that of kvc_transfer_info and the message says why.
 *
 * Expected:  KVC_E_TIMEOUT  Not over by then, or the transfer's own (kvc_transfer_query tells).
 *            KVC_E_BUSY     It has arrived, and a forward is open: wait again after its end.
 *            Others as kvc_transfer_info.status.
 * Misuse:    KVC_E_INVALID_STATE  It has arrived, and its cache is gone.
 * Threading: exclusive, on the cache of a receiving transfer; any for a sending one. To wait beside
 *            other calls on the cache, wait for kvc_transfer_fence.
 * Device:    host only. */
KVC_API kvc_status kvc_transfer_wait(kvc_transfer *transfer, int64_t timeout_ns,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* A fence that is done when the transfer has arrived, is done or has failed. *out is owned by the
 * caller: kvc_fence_destroy.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transfer_fence(const kvc_transfer *transfer, kvc_fence **out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Ends a transfer; the other side is told. kvc_transfer_wait says when nothing is on its way any
 * more. One that is over stays as it is. One that has arrived, and is not a sequence yet, is given
 * up.
 *
 * Threading: any. Device: host only. */
KVC_API kvc_status kvc_transfer_cancel(kvc_transfer *transfer,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Destroys the handle, and cancels what is not over. What has arrived becomes a sequence all the
 * same. NULL is accepted. A handle may outlive its cache and its transport.
 *
 * Threading: any, once. Device: host only. */
KVC_API void kvc_transfer_destroy(kvc_transfer *KVC_NULLABLE transfer) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Tiers                                                                                          */
/* ============================================================================================== */
/* 1. A tier keeps blocks of the prefix cache outside the process: in files, or on servers of the
 *    Redis protocol, which several machines share. A block goes there when it is published. What a
 *    query does not find in the cache, kvc_prefix_attach reads back from there, in whole blocks,
 *    and kvc_prefix_match counts it. A process that has just started finds the prefixes of the
 *    last one.
 * 2. A tier is a cache. Whatever fails there is a miss: it is counted, logged once, and never an
 *    error of a call on sequences. After three failures in a row the tier is left alone for 1 s,
 *    then 2 s and so on up to 60 s.
 * 3. Values are named by their content: SHA-256 over block key, namespace, layout
 *    (kvc_layout_fingerprint), desc.model_id and desc.shard. So a value is only found where it
 *    means the same. The layout says nothing of weights: give each model, and each version of its
 *    weights, a model_id of its own.
 * 4. Every value is checked when it is read: key, shape, and a digest (XXH3, 128 bits) of its
 *    bytes. Digests find accidents. They do not authenticate: attach stores of people you trust.
 * 5. Writing is asynchronous and not durable. A process that is killed loses what waits, up to
 *    desc.queue_bytes, and nothing else becomes unreadable. A full queue drops blocks, which
 *    kvc_tier_stats counts.
 * 6. A layer's window or a recurrent state needs all that the next token sees: where a block lacks
 *    it, the hit ends earlier.
 * 7. kvc_prefix_reset detaches all tiers, because what they hold is of the old weights.
 * 8. Tiers are modules: libkvcache_tier_rocksdb.so and libkvcache_tier_redis.so, looked for as
 *    kvc_module_path_set says. docs/tiers.md has settings, limits and what each failure looks like.
 *
 * Features: "tier.file", "tier.redis": the module can be loaded. */

/* Where a tier is. Everything is borrowed for the call. */
typedef struct kvc_tier_desc {
  size_t struct_size;
  uint64_t flags;        /* Must be 0. */
  kvc_tier tier;         /* FILE or REDIS. */
  int32_t shard;         /* Tensor-parallel rank, where ranks have pages of the same layout. */
  const char *address;   /* FILE: a folder, made where it is missing; one process at a time.
                            REDIS: "host:port", one or several, separated by commas. */
  const char *KVC_NULLABLE model_id; /* The model and its weights, at most 255 bytes; NULL: "". */
  uint64_t byte_limit;   /* FILE: most bytes on disk. REDIS: 0, the server has a limit. */
  uint64_t queue_bytes;  /* Memory for blocks that wait to be written; 0: 64 MiB. At least two
                            blocks. */
  int32_t get_ms;        /* How long a call waits for the tier, beside 8 ms per MiB that it reads;
                            0: 1000. */
  int32_t put_ms;        /* REDIS: how long a write may take; 0: 1000. */
  int32_t connect_ms;    /* REDIS: how long a connection may take; 0: 1000. */
  int32_t reserved;      /* Must be 0. */
  int64_t ttl_s;         /* REDIS: seconds that a value is kept; 0: until the server evicts it. */
  const char *KVC_NULLABLE username; /* REDIS: for AUTH; NULL: none. */
  const char *KVC_NULLABLE password; /* REDIS: for AUTH; NULL: none. */
  const kvc_ext *KVC_NULLABLE ext;   /* NULL */
} kvc_tier_desc;

/* Counters of a tier since it was attached, and gauges. */
typedef struct kvc_tier_stats {
  size_t struct_size;
  uint64_t blocks_put;        /* Blocks written. */
  uint64_t blocks_dropped;    /* Blocks not written: the queue was full, or the tier left alone. */
  uint64_t blocks_put_failed; /* Blocks whose write failed. */
  uint64_t bytes_put;
  uint64_t lookups;           /* Questions which blocks are there. */
  uint64_t blocks_found;      /* Blocks that were there. */
  uint64_t blocks_got;        /* Blocks read. */
  uint64_t blocks_missed;     /* Blocks that were gone when they were read. */
  uint64_t blocks_corrupt;    /* Blocks whose bytes were damaged. */
  uint64_t blocks_timed_out;  /* Lookups and blocks that took too long. */
  uint64_t blocks_failed;     /* Lookups and blocks that failed otherwise. */
  uint64_t bytes_got;
  uint64_t waiting_bytes;     /* Gauge: bytes that wait to be written. */
  uint64_t stored_bytes;      /* Gauge: bytes that the tier holds, as far as it knows. */
} kvc_tier_stats;

/* Attaches a tier to a cache. Tiers are asked in the order in which they were attached.
 *
 * Expected:  KVC_E_UNSUPPORTED       The module is missing, and the message names the file looked
 *                                    for; a cache without storage, or with layers of kind CROSS.
 *            KVC_E_IO                The folder or the server cannot be used (sys_code = errno).
 *            KVC_E_BUSY              FILE: another process, or cache, uses the folder.
 *            KVC_E_TIMEOUT           REDIS: no answer within connect_ms.
 *            KVC_E_NO_MEMORY         The queue could not be allocated.
 * Misuse:    KVC_E_ALREADY_EXISTS    A tier of this kind is attached.
 *            KVC_E_INVALID_ARGUMENT  Another tier; no address; no byte_limit for FILE; a field that
 *                                    this kind of tier has no use for; a text that is too long.
 *            KVC_E_OUT_OF_RANGE      A negative time or shard; queue_bytes above 1 TiB.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_tier_attach(kvc_cache *cache, const kvc_tier_desc *desc,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* kvc_tier_attach of a FILE tier with nothing but a folder and its limit.
 *
 * Expected, Misuse: as kvc_tier_attach.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_tier_attach_file(kvc_cache *cache, const char *path, uint64_t byte_limit,
                                        kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Writes what waits and closes the tier, as kvc_cache_destroy does for all.
 *
 * Misuse:    KVC_E_NOT_FOUND         No such tier is attached.
 *            KVC_E_INVALID_ARGUMENT  Another tier than FILE and REDIS.
 * Threading: exclusive. Device: host only; blocks until done. */
KVC_API kvc_status kvc_tier_detach(kvc_cache *cache, kvc_tier tier,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Waits until the blocks that were published so far are written, or dropped. timeout_ms < 0: as
 * long as it takes.
 *
 * Expected:  KVC_E_TIMEOUT  Some still wait.
 * Threading: shared. Device: host only; blocks until done. */
KVC_API kvc_status kvc_tier_flush(const kvc_cache *cache, int64_t timeout_ms,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Reports the counters of a tier.
 *
 * Misuse:    KVC_E_NOT_FOUND         No such tier is attached.
 *            KVC_E_INVALID_ARGUMENT  Another tier than FILE and REDIS.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_tier_stats_get(const kvc_cache *cache, kvc_tier tier, kvc_tier_stats *out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* CUDA GRAPHS: KVC_FORWARD_REPLAY                                                                */
/* ============================================================================================== */
/* A forward whose begin finds its stream under capture becomes part of the graph, page tables
 * included. Nothing runs yet.
 *
 * Capture:
 *   1. Capture from kvc_forward_begin to kvc_forward_end.
 *   2. Launch the graph once after the end, before any other call on the cache: such a call would
 *      not wait for the launch.
 *   3. To discard the capture, abort instead of launching: then the forward never was.
 *   A captured begin waits until the device has done what the cache was given before. Calls after
 *   the launch wait for it, on whatever stream it was.
 *
 * Replay, for every further forward of the same shape (num_seqs, append_lengths, no trees, no
 * positions, no encoder tokens):
 *   1. kvc_forward_begin with KVC_FORWARD_REPLAY. It tells the device what changed, and enqueues
 *      nothing but the writes of KVC_CONFIG_CLEAR_PAGES.
 *   2. Launch the graph on the same stream.
 *   3. kvc_forward_end. Or abort instead of the launch.
 *   Lengths, pages, windows and states are the forward's own. Calls on layers are refused between
 *   begin and end.
 *
 * Limits:
 *   1. A captured forward has no `tokens`; replayed ones may.
 *   2. With ALiBi or ON_READ rope, a graph takes no sequence whose positions kvc_seq_shift has
 *      moved apart.
 *   3. Addresses that the graph has seen stay valid while max_seqs, max_tokens_per_forward,
 *      max_seq_len and max_cross_len of the configuration are set.
 *   4. The graph names memory of the cache. Do not launch it once the cache is destroyed.
 *
 * Misuse that it adds to kvc_forward_begin:
 *   KVC_E_UNSUPPORTED    KVC_FORWARD_REPLAY on the CPU. A captured or replayed forward with trees,
 *                        positions, encoder tokens or what else a graph does not take.
 *   KVC_E_INVALID_STATE  - KVC_FORWARD_REPLAY of a shape that was not captured, or beyond what its
 *                          graph serves, or when addresses have changed since.
 *                        - KVC_FORWARD_REPLAY while the stream is under capture.
 *                        - KVC_FORWARD_REPLAY without KVC_FORWARD_PARTIAL where the captured
 *                          forward left layers without K and V.
 *                        - Buffers that would have to grow during a capture.
 *                        - 32 captured forwards have ended and are not launched.
 *                        - The legacy default stream while a blocking stream is under capture.
 * Misuse that it adds to kvc_forward_end and kvc_forward_abort; the forward stays open:
 *   KVC_E_INVALID_STATE  - A capture that the forward is no part of has begun on its stream.
 *                        - Its stream is the legacy default one while a blocking stream is under
 *                          capture.
 *                        - kvc_forward_end alone: it was captured, and the capture is over. */

/* ============================================================================================== */
/* TOKEN TREES, for speculative decoding                                                          */
/* ============================================================================================== */
/* kvc_forward_desc.tree_parents has, for each new token, its parent's index inside the sequence's
 * whole uncommitted tree; -1: a root. Several roots are allowed.
 *
 * 1. parent < own index. A tree has at most KVC_MAX_TREE_NODES nodes.
 * 2. Further forwards extend the tree: the nodes of earlier forwards come first.
 * 3. All tokens of a sequence are KVC_TREE_NONE: a plain append. A sequence with an uncommitted
 *    tree must be extended as a tree.
 * 4. A node sees the committed tokens, its ancestors and itself.
 * 5. Until kvc_tree_commit, the sequence's length counts committed tokens only. */

enum kvc_tree_limit {
  KVC_TREE_NONE = -2,       /* In tree_parents: not part of a tree. */
  KVC_MAX_TREE_NODES = 4096 /* Nodes of one sequence's uncommitted tree. */
};

/* Accepts a path of each sequence's token tree.
 *
 * root -> leaves[i] becomes committed tokens, moved together in every layer. All other nodes are
 * dropped. Leaf -1 keeps nothing. Any subset of the sequences with trees, in any order. `seqs` and
 * `leaves`, [n], are borrowed for the call.
 *
 * Misuse:    KVC_E_NOT_FOUND         No such sequence.
 *            KVC_E_INVALID_ARGUMENT  n = 0, NULL arrays, duplicate ids.
 *            KVC_E_INVALID_STATE     A sequence without an uncommitted tree, or swapped out.
 *            KVC_E_OUT_OF_RANGE      leaf < -1, or no such node.
 *            KVC_E_BUSY              A sequence of the open forward.
 * Threading: exclusive. Device: enqueues. */
KVC_API kvc_status kvc_tree_commit(kvc_cache *cache, size_t n, const kvc_seq *seqs,
                                   const int32_t *leaves, kvc_stream KVC_NULLABLE stream,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Partial, cross and shared attention, inside a forward                                          */
/* ============================================================================================== */
/* The rules and the "common" misuse of section "Attention" hold here. */

/* Attends among the new tokens only, causal inside each sequence.
 *
 * Nothing is appended and no page is read. k and v are rounded to the layer's storage type and
 * rotated as an append would do, so that merging with kvc_attn_cached equals kvc_attn.
 *
 *           ATTENTION                        MLA (ragged form)
 *   q       [>= T, num_q_heads, k_dim]       [>= T, num_q_heads, k_dim]
 *   k       [>= T, num_kv_heads, k_dim]      [>= T, num_q_heads, k_dim]
 *   v       [>= T, num_kv_heads, v_dim]      [>= T, num_q_heads, v_dim]
 *   out     [>= T, num_q_heads, v_dim]       [>= T, num_q_heads, v_dim]
 *   lse     float32 [>= T, num_q_heads]      the same
 *
 * 1. K = V layers: v is NULL. MLA: v is given; over quantised latents, k and v are rounded to
 *    bfloat16.
 * 2. MLA: for the whole prompt merge with kvc_attn_cached, whose latent output the caller has
 *    projected to v_dim.
 * 3. Sink logits enter the denominator of this part alone. To merge parts of a model with sink
 *    logits, leave them out of both, and multiply the merged output by
 *    1 / (1 + exp(sink_logits[h] - lse)).
 *
 * Misuse:    common; and
 *            KVC_E_UNSUPPORTED       A token tree of several forwards; an MLA layer planned with
 *                                    k_dim = 0; quantised storage on CUDA.
 *            KVC_E_INVALID_ARGUMENT  v is NULL, or is set on a K = V layer.
 *            KVC_E_INVALID_STATE     In a capture: tables would have to grow. Run a forward with
 *                                    the call before the capture.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_self(kvc_forward *fwd, int32_t layer,
                                 const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                 const DLTensor *k, const DLTensor *KVC_NULLABLE v, DLTensor *out,
                                 DLTensor *KVC_NULLABLE lse,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attends from the new queries to the tokens that were cached before this forward.
 *
 * Those are all that the windows show; for token trees, the committed tokens. Nothing is appended.
 * A sequence that was empty has out 0 and lse -inf. q, out and lse are those of kvc_attn.
 *
 * Misuse:    common.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_cached(kvc_forward *fwd, int32_t layer,
                                   const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                   DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Merges two partial attentions over disjoint keys, in place into (out, lse).
 *
 *   out, other_out   [>= T, H, D], any activation types
 *   lse, other_lse   float32 [>= T, H]
 *
 * The weights are exp(lse) (Dao et al., FlashDecoding). A part with lse -inf does not count.
 *
 * Misuse:    KVC_E_INVALID_STATE     The forward is not open.
 *            KVC_E_INVALID_ARGUMENT  Overlapping tensors.
 *            tensors                 See TENSORS.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_merge(kvc_forward *fwd, DLTensor *out, DLTensor *lse,
                                  const DLTensor *other_out, const DLTensor *other_lse,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attends from every new token to all encoder tokens of its sequence, on a CROSS layer.
 *
 *   q     [>= T, num_q_heads, k_dim]
 *   k     [>= C, num_kv_heads, k_dim], C = sum of kvc_forward_desc.cross_lengths
 *   v     [>= C, num_kv_heads, v_dim]; K = V layers: NULL
 *   out   [>= T, num_q_heads, v_dim]
 *   lse   float32 [>= T, num_q_heads]
 *
 * k and v are packed in the order of the batch. They are given in the forward that announced them,
 * and NULL otherwise. Nothing is rotated. A sequence without encoder tokens has out 0 and lse -inf.
 *
 * Misuse:    common; and
 *            KVC_E_INVALID_STATE     k and v were announced but not given, or not announced.
 *            KVC_E_INVALID_ARGUMENT  One of k and v is NULL.
 *            KVC_E_UNSUPPORTED       opt.window or opt.spans.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_cross(kvc_forward *fwd, int32_t layer,
                                  const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                  const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v,
                                  DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attends to another layer's K and V, which that layer has appended in this forward: what kvc_attn
 * does on a SHARED layer, for a layer that is not in the plan.
 *
 *   q     [>= T, H, k_dim of the source], H any multiple of the source's kv heads
 *   out   [>= T, H, v_dim of the source]
 *   lse   float32 [>= T, H]
 *
 * q is rotated by the source's rope.
 *
 * Misuse:    common; and
 *            KVC_E_INVALID_STATE  Nothing was appended to the source, as in kvc_attn.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_shared_kv(kvc_forward *fwd, int32_t source_layer,
                                      const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                                      DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies the K and V of one sequence in one layer, as stored.
 *
 *           ATTENTION, CROSS                 MLA
 *   k_out   [>= n, num_kv_heads, k_dim]      [>= n, 1, latent_rank + latent_rope_dim]
 *   v_out   [>= n, num_kv_heads, v_dim]      NULL
 *
 * 1. Any sequence of the cache. n = its length including this forward's new tokens and its tree
 *    nodes, which come in the order of their slots. CROSS: n = encoder tokens.
 * 2. Either output may be NULL, not both. K = V layers: v_out is NULL.
 *
 * Expected:  KVC_E_OUT_OF_RANGE      A window has dropped tokens (detail = the first kept).
 * Misuse:    common; and
 *            KVC_E_NOT_FOUND         seq.
 *            KVC_E_INVALID_ARGUMENT  Both outputs are NULL, or v_out is set where it has to be
 *                                    NULL.
 *            KVC_E_INVALID_STATE     The sequence grows in this forward, and nothing was appended
 *                                    to the layer (as kvc_attn); or it is swapped out.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_kv_gather(kvc_forward *fwd, int32_t layer, kvc_seq seq,
                                 DLTensor *KVC_NULLABLE k_out, DLTensor *KVC_NULLABLE v_out,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Recurrent state: linear attention, Mamba, short convolutions                                   */
/* ============================================================================================== */
/* 1. There is one step of state per forward and sequence, whatever its number of tokens.
 * 2. kvc_state_get, kvc_attn_linear and kvc_state_conv read the state as it was before the forward.
 *    What is set becomes the state when the forward ends. A state that is not set is carried on. An
 *    empty sequence has the initial state.
 * 3. Checkpoints are kept where a forward ends on a multiple of config.state_stride (until their
 *    memory is needed), and by kvc_state_checkpoint (until popped below, or given up by
 *    kvc_state_checkpoint_release).
 * 4. B is the number of sequences of the batch.
 *
 * Misuse that functions on a forward share; comments say "state":
 *   KVC_E_INVALID_STATE  The forward is not open, or it is not a STATE layer.
 *   KVC_E_OUT_OF_RANGE   layer, state.
 *   KVC_E_UNSUPPORTED    The cache has no storage.
 *   tensors              See TENSORS. */

/* Reads state `state` of every sequence of the batch.
 *
 *   out   [>= B, shape...], any activation type, compact inside a state
 *
 * Misuse:    state.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_state_get(kvc_forward *fwd, int32_t layer, int32_t state, DLTensor *out,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Sets state `state` of every sequence of the batch.
 *
 *   value   [>= B, shape...], rounded to the state's dtype
 *
 * Misuse:    state.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_state_set(kvc_forward *fwd, int32_t layer, int32_t state,
                                 const DLTensor *value, kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Keeps the state of the sequence's present length until it is popped below it or removed. That
 * makes fork and pop to this position possible later.
 *
 * On the edge of a block that the sequence has published, the block gets the state too: prefixes
 * hit there.
 *
 * Misuse:    KVC_E_NOT_FOUND      No such sequence.
 *            KVC_E_BUSY           It is in the open forward.
 *            KVC_E_UNSUPPORTED    No STATE layer.
 *            KVC_E_INVALID_STATE  It is swapped out.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_state_checkpoint(kvc_cache *cache, kvc_seq seq,
                                        kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Gives up the checkpoint at position `pos`: its state slot is free once nobody else keeps it. The
 * sequence cannot be forked or popped to `pos` any more, unless that is its length. What the prefix
 * index has of it stays there.
 *
 * One checkpoint before each round of speculation, given up when the round is over, takes one slot.
 *
 * Misuse:    KVC_E_NOT_FOUND      No such sequence (detail = seq), or it has no checkpoint there
 *                                 (detail = the nearest one below, -1: none).
 *            KVC_E_BUSY           It is in the open forward.
 *            KVC_E_UNSUPPORTED    No STATE layer.
 *            KVC_E_INVALID_STATE  It is swapped out.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_state_checkpoint_release(kvc_cache *cache, kvc_seq seq, int64_t pos,
                                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Decay of a linear attention layer. Per head, with state S [Dk, Dv], for each token t in order:
 *
 *   S   = decay_t * S
 *   u   = beta_t (v_t - S^T k_t) with KVC_LINEAR_DELTA, else beta_t v_t
 *   S   = S + k_t u^T
 *   o_t = scale S^T q_t + d v_t
 *
 *   RetNet, Lightning   KVC_DECAY_HEAD
 *   Gated DeltaNet      KVC_DECAY_TOKEN with DELTA
 *   GLA                 KVC_DECAY_CHANNEL
 *   KDA                 KVC_DECAY_CHANNEL with DELTA
 *   Mamba-2 SSD         KVC_DECAY_TOKEN with decay = dt A, beta = dt, k = B, q = C, v = x, skip = D
 *   plain DeltaNet      KVC_DECAY_NONE with DELTA */
typedef int32_t kvc_decay;
enum kvc_decay_value KVC_INT32_ENUM {
  KVC_DECAY_NONE = 0,
  KVC_DECAY_HEAD = 1,   /* ln(decay): float32 [H]. */
  KVC_DECAY_TOKEN = 2,  /* ln(decay): [>= T, H]. */
  KVC_DECAY_CHANNEL = 3 /* ln(decay): [>= T, H, Dk]. */
};

/* Bits of kvc_linear_opt.flags. */
enum kvc_linear_flag {
  KVC_LINEAR_DELTA = 1 /* The delta rule. */
};

/* Options of linear attention; NULL: all defaults. */
typedef struct kvc_linear_opt {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;   /* NULL */
  uint64_t flags;                    /* KVC_LINEAR_* bits. */
  kvc_decay decay;
  int32_t state;                     /* Index of S in the layer's states. */
  float scale;                       /* 0: 1/sqrt(Dk). */
  int32_t reserved;                  /* 0 */
  const DLTensor *KVC_NULLABLE skip; /* d: float32 [H]; NULL: 0. */
} kvc_linear_opt;

/* Computes linear attention over the new tokens, as a step or as chunked prefill: reads and sets
 * the layer's state, whose shape is [H, Dk, Dv].
 *
 *   q, k     [>= T, Hk, Dk]; Hk divides H, and head h reads q and k head h / (H / Hk)
 *   v, out   [>= T, H, Dv]
 *   decay    float32: ln(decay) <= 0, of the shape that opt.decay says; NULL for NONE
 *   beta     float32 [>= T, H]; NULL: 1
 *
 * Arithmetic is in float32.
 *
 * Misuse:    state; and
 *            KVC_E_SHAPE             A state that is not [H, Dk, Dv].
 *            KVC_E_INVALID_ARGUMENT  decay is given or missing against opt; an output overlaps.
 *            KVC_E_OUT_OF_RANGE      opt.state, opt.scale.
 *            KVC_E_UNSUPPORTED       Flags, unknown opt.decay.
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_attn_linear(kvc_forward *fwd, int32_t layer,
                                   const kvc_linear_opt *KVC_NULLABLE opt, const DLTensor *q,
                                   const DLTensor *k, const DLTensor *v,
                                   const DLTensor *KVC_NULLABLE decay,
                                   const DLTensor *KVC_NULLABLE beta, DLTensor *out,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

typedef int32_t kvc_activation;
enum kvc_activation_value KVC_INT32_ENUM { KVC_ACTIVATION_NONE = 0, KVC_ACTIVATION_SILU = 1 };

/* Computes a causal depthwise convolution over the new tokens, and sets the state.
 *
 *   out[t, c] = act(bias[c] + sum_j weight[c, j] x[t - W + 1 + j, c])
 *
 * The last inputs are kept as state [C, W-1], newest last. W >= 2 is the kernel width.
 *
 *   x, out   [>= T, C]
 *   weight   float32 [C, W]
 *   bias     float32 [C], or NULL
 *
 * Misuse:    As kvc_attn_linear; the state is [C, W-1].
 * Threading: one call at a time per forward. Device: enqueues. */
KVC_API kvc_status kvc_state_conv(kvc_forward *fwd, int32_t layer, int32_t state, const DLTensor *x,
                                  const DLTensor *weight, const DLTensor *KVC_NULLABLE bias,
                                  kvc_activation activation, DLTensor *out,
                                  kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Operators: the same kernels over the host program's own pools and page tables, without a cache */
/* ============================================================================================== */
/* All tensors of a call lie on the host, or all on one CUDA device. Nothing is kept between calls.
 *
 * On the CPU:
 *   1. Tensors of pools are read and written in place.
 *   2. Every page id and length is checked against the pool before anything is written.
 *   3. The call is complete on return.
 *
 * On a CUDA device:
 *   1. The work is enqueued on opt->stream, and nothing waits. Tensors live until it is done.
 *   2. executor and cpu_isa are not used.
 *   3. Values inside tensors are seen on the device alone, so no status tells of them, and what
 *      lies outside is left out:
 *      - A slot, or a pair of pages, outside of the pool is skipped.
 *      - A sequence sees no key (out 0, lse -inf) when its length, table or page ids lie outside,
 *        when it is longer than its bias is wide, or when it has more rows than keys with full = 0.
 *      - Where qo_indptr does not ascend within the rows of q, nothing is computed.
 *   4. Scratch comes from a pool that the library keeps per device. In a capture it is memory of
 *      the graph, which can then be instantiated once and be no child of another.
 *
 * Misuse that operators share; comments say "operator":
 *   tensors                 Also types other than those that a function lists (pools without
 *                           quant: float32, float16, bfloat16), and tensors of several devices.
 *   KVC_E_OUT_OF_RANGE      A page id, a length, an indptr that does not ascend, no device of this
 *                           number, a scale of PER_TENSOR.
 *   KVC_E_INVALID_ARGUMENT  An output overlaps; an option, field or tensor that the function does
 *                           not use is set; both forms of a page table, or none.
 *   KVC_E_UNSUPPORTED       Not this device; a value that is not listed. */

typedef int32_t kvc_op_layout;
enum kvc_op_layout_value KVC_INT32_ENUM {
  KVC_OP_HND = 0, /* [num_pages, heads, page_size, dim]: the library's own. */
  KVC_OP_NHD = 1, /* [num_pages, page_size, heads, dim]: FlashInfer, vLLM. */
  KVC_OP_MLA = 2  /* [num_pages, page_size, latent_rank + latent_rope_dim]. */
};

/* One layer's pool. Any strides, but the last dimension is contiguous.
 *
 * With `quant`, on the CPU only, rows are stored as kvc_quant says: k and v are int8, float8_e4m3fn
 * or float8_e5m2. Appends write the scales of PER_TOKEN_HEAD, and pages are copied with theirs. The
 * scales are float32:
 *
 *   k_scales   HND [num_pages, heads, page_size], NHD [num_pages, page_size, heads],
 *              MLA [num_pages, page_size]
 *   v_scales   alike; NULL where v is */
typedef struct kvc_op_pool {
  size_t struct_size;
  const DLTensor *k;
  const DLTensor *KVC_NULLABLE v; /* NULL: MLA, or V is K. */
  kvc_op_layout layout;
  int32_t reserved;               /* 0 */
  kvc_quant quant;                /* NONE, PER_TENSOR, PER_TOKEN_HEAD. */
  float k_scale, v_scale;         /* PER_TENSOR: value = element * scale; finite, > 0; 0: 1. Else 0;
                                     v_scale also where v is NULL. */
  const DLTensor *KVC_NULLABLE k_scales; /* PER_TOKEN_HEAD; else NULL. */
  const DLTensor *KVC_NULLABLE v_scales;
} kvc_op_pool;

/* Page tables of B sequences, int32: either CSR (page_indptr, page_indices) or padded
 * (block_table). */
typedef struct kvc_op_table {
  size_t struct_size;
  const DLTensor *seq_lens;                  /* [B]: keys of each sequence, the new ones included;
                                                >= 0. */
  const DLTensor *KVC_NULLABLE qo_indptr;    /* [B+1]: rows of q of each sequence. NULL: one
                                                each. */
  const DLTensor *KVC_NULLABLE page_indptr;  /* [B+1] */
  const DLTensor *KVC_NULLABLE page_indices; /* [page_indptr[B]] */
  const DLTensor *KVC_NULLABLE block_table;  /* [B, most pages]; entries behind a sequence's pages
                                                are not read. */
} kvc_op_table;

typedef struct kvc_op_opt {
  size_t struct_size;
  const kvc_ext *KVC_NULLABLE ext;           /* NULL */
  const kvc_executor *KVC_NULLABLE executor; /* Borrowed for the call. NULL: the caller's thread
                                                only. */
  kvc_cpu_isa cpu_isa;
  int32_t full;                              /* Attention. 0: row i of n sees keys up to
                                                seq_len - n + i (causal). 1: every row sees all
                                                keys, and attn->window is 0. */
  const kvc_attn_opt *KVC_NULLABLE attn;     /* Attention: scale, soft_cap, window, sink_logits,
                                                alibi_slopes, bias, flags. spans are refused. */
  const DLTensor *KVC_NULLABLE positions;    /* Append, rotate: int32 [T]. Attention with a rope:
                                                [T] of the queries. */
  const kvc_rope *KVC_NULLABLE rope;         /* Append: K is rotated. Attention: q is rotated (K is
                                                stored rotated). Mode NONE: neither. */
  kvc_stream KVC_NULLABLE stream;            /* Stream of the work on a CUDA device; ignored on the
                                                CPU. */
} kvc_op_opt;

/* Writes k and v to slots of a pool.
 *
 *   slots   int64 [T] = page * page_size + offset; < 0: skip. T = length of slots
 *   k       [>= T, heads, k_dim]
 *   v       [>= T, heads, v_dim]; NULL where pool->v is
 *
 * Misuse:    operator; and
 *            KVC_E_UNSUPPORTED  opt->rope with layout MLA: rotate with kvc_op_rotate.
 * Threading: any, not two that write the same slots.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_append(const kvc_op_pool *pool, const kvc_op_opt *KVC_NULLABLE opt,
                                 const DLTensor *slots, const DLTensor *k,
                                 const DLTensor *KVC_NULLABLE v,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attends over the pages of a pool of layout HND or NHD.
 *
 *   q     [T, num_q_heads, k_dim]
 *   out   [T, num_q_heads, v_dim]
 *   lse   float32 [T, num_q_heads]
 *
 * On a CUDA device T is dimension 0 of q where qo_indptr is given, and rows behind the last cut
 * stay as they are. That holds for the two functions below too.
 *
 * Misuse:    operator; and
 *            KVC_E_UNSUPPORTED  KVC_ATTN_BATCH_INVARIANT on a CUDA device, here and in the two
 *                               below.
 * Threading: any.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_attention_paged(const kvc_op_pool *pool, const kvc_op_table *table,
                                          const kvc_op_opt *KVC_NULLABLE opt, const DLTensor *q,
                                          DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                          kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attends over packed keys and values.
 *
 *   q           [T, num_q_heads, k_dim]
 *   k           [K, num_kv_heads, k_dim]
 *   v           [K, num_kv_heads, v_dim]
 *   out         [T, num_q_heads, v_dim]
 *   lse         float32 [T, num_q_heads]
 *   qo_indptr   int32 [B+1]: cuts q into sequences
 *   kv_indptr   int32 [B+1]: cuts k and v; NULL: qo_indptr
 *
 * Misuse:    operator; and as kvc_op_attention_paged.
 * Threading: any.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_attention_ragged(const DLTensor *qo_indptr,
                                           const DLTensor *KVC_NULLABLE kv_indptr,
                                           const kvc_op_opt *KVC_NULLABLE opt, const DLTensor *q,
                                           const DLTensor *k, const DLTensor *v, DLTensor *out,
                                           DLTensor *KVC_NULLABLE lse,
                                           kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Attends over a pool of layout MLA, in the absorbed form.
 *
 *   q     [T, heads, latent_rank + latent_rope_dim]
 *   out   [T, heads, latent_rank]
 *   lse   float32 [T, heads]
 *
 * opt->attn->scale must be given.
 *
 * Misuse:    operator; and as kvc_op_attention_paged, and
 *            KVC_E_OUT_OF_RANGE  latent_rank is not in 1..elements of a row.
 * Threading: any.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_mla_paged(const kvc_op_pool *pool, const kvc_op_table *table,
                                    int32_t latent_rank, const kvc_op_opt *opt, const DLTensor *q,
                                    DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Does what kvc_attn_merge does without a forward. T = dimension 0 of out.
 *
 *   out, other_out   [T, H, D], any activation types
 *   lse, other_lse   float32 [T, H]
 *
 * Misuse:    operator.
 * Threading: any.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_merge(const kvc_op_opt *KVC_NULLABLE opt, DLTensor *out, DLTensor *lse,
                                const DLTensor *other_out, const DLTensor *other_lse,
                                kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies all keys of the table's sequences, packed in their order, quantised ones as their values.
 *
 *   k_out   [>= sum of seq_lens, heads, k_dim]
 *   v_out   [>= sum of seq_lens, heads, v_dim]
 *
 * Either output may be NULL, not both. Where pool->v is NULL, v_out is NULL. table->qo_indptr is
 * not used: NULL.
 *
 * Misuse:    operator.
 * Threading: any.
 * Device:    the CPU only, complete on return. */
KVC_API kvc_status kvc_op_gather(const kvc_op_pool *pool, const kvc_op_table *table,
                                 const kvc_op_opt *KVC_NULLABLE opt, DLTensor *KVC_NULLABLE k_out,
                                 DLTensor *KVC_NULLABLE v_out,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies pages inside a pool.
 *
 *   pairs   int64 [n, 2] of (from, to): distinct destinations, none of which is a source (on CUDA
 *           not checked)
 *
 * Misuse:    operator.
 * Threading: any, not on the same pages.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_copy_pages(const kvc_op_pool *pool, const kvc_op_opt *KVC_NULLABLE opt,
                                     const DLTensor *pairs,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Rotates x by opt->rope at opt->positions.
 *
 *   x, out   [T, heads, dim]; out may be x: same address, strides and type
 *
 * Misuse:    operator; and
 *            KVC_E_INVALID_ARGUMENT  opt->rope is NULL or of mode NONE.
 * Threading: any.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_rotate(const kvc_op_opt *opt, const DLTensor *x, DLTensor *out,
                                 kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Stores rows as a cache with this kvc_layer.quant stores them: the same scales and elements, bit
 * for bit.
 *
 *   x        [T, heads, dim], an activation type. T = dimension 0 of x
 *   out      [>= T, heads, dim], int8, float8_e4m3fn or float8_e5m2
 *   scales   float32. PER_TOKEN_HEAD: [>= T, heads], written. PER_TENSOR: [1], read; finite, > 0
 *
 * *out_saturated (may be NULL) counts the elements that were clipped: with PER_TENSOR, x / scale
 * beyond the largest or smallest finite element, infinities among them. NaN is no such element.
 * PER_TOKEN_HEAD clips none.
 *
 * Misuse:    operator; and
 *            KVC_E_INVALID_ARGUMENT  quant is NONE.
 *            KVC_E_OUT_OF_RANGE      The scale of PER_TENSOR is not finite, or not > 0.
 *            KVC_E_UNSUPPORTED       quant is BLOCK16; an out of 4 bits.
 * Threading: any.
 * Device:    the CPU only, complete on return. */
KVC_API kvc_status kvc_op_quantize(const kvc_op_opt *KVC_NULLABLE opt, kvc_quant quant,
                                   const DLTensor *x, DLTensor *out, DLTensor *scales,
                                   uint64_t *KVC_NULLABLE out_saturated,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Computes out = x * scale, as kvc_kv_gather reads quantised rows.
 *
 *   x        [T, heads, dim], int8, float8_e4m3fn or float8_e5m2. T = dimension 0 of x
 *   scales   float32. PER_TOKEN_HEAD: [>= T, heads]. PER_TENSOR: [1]; finite, > 0
 *   out      [>= T, heads, dim], an activation type
 *
 * Misuse:    operator; and as kvc_op_quantize.
 * Threading: any.
 * Device:    the CPU only, complete on return. */
KVC_API kvc_status kvc_op_dequantize(const kvc_op_opt *KVC_NULLABLE opt, kvc_quant quant,
                                     const DLTensor *x, const DLTensor *scales, DLTensor *out,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Computes linear attention, as kvc_attn_linear does, over the host program's own states.
 *
 *   states      [B, H, Dk, Dv], updated in place
 *   qo_indptr   int32 [B+1]: cuts the tokens into sequences; NULL: one each
 *   others      as kvc_attn_linear
 *
 * Misuse:    operator; and as kvc_attn_linear.
 * Threading: any, not on the same states.
 * Device:    the CPU, complete on return; CUDA, enqueues on opt->stream. */
KVC_API kvc_status kvc_op_linear_step(const kvc_linear_opt *KVC_NULLABLE linear,
                                      const kvc_op_opt *KVC_NULLABLE opt,
                                      const DLTensor *KVC_NULLABLE qo_indptr, DLTensor *states,
                                      const DLTensor *q, const DLTensor *k, const DLTensor *v,
                                      const DLTensor *KVC_NULLABLE decay,
                                      const DLTensor *KVC_NULLABLE beta, DLTensor *out,
                                      kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Debug: prove equality with another cache                                                       */
/* ============================================================================================== */
/* 1. Positions are absolute. K is as stored: rotated where the rope mode is ON_APPEND. Tensors have
 *    any activation type.
 * 2. A window drops whole pages. A position inside a dropped page is KVC_E_OUT_OF_RANGE here and in
 *    kvc_kv_gather, and its page is left out of exports (-1 in KVC_TABLE_BLOCK_TABLE). A position
 *    that no query sees any more but whose page is kept reads as stored.
 * 3. Setting makes shared pages private first, so siblings keep theirs. After every kvc_debug_set_*
 *    nothing of the sequence is published any more.
 * 4. An uncommitted token tree is no obstacle: the committed tokens are read and written.
 *
 * Statuses of all functions on rows; comments say "rows":
 *   Expected:  KVC_E_OUT_OF_RANGE      A window has dropped some of the tokens (detail = first kept
 *                                      of that layer).
 *              KVC_E_NO_PAGES          kvc_debug_set_*: no pages for private copies.
 *   Misuse:    KVC_E_OUT_OF_RANGE      Not 0 <= begin <= end <= length.
 *              KVC_E_NOT_FOUND         No such sequence.
 *              KVC_E_BUSY              kvc_debug_set_*: it is in the open forward.
 *              KVC_E_INVALID_STATE     It is swapped out.
 *              KVC_E_INVALID_ARGUMENT  k and v are both NULL.
 *              KVC_E_UNSUPPORTED       No storage, no layer of the kind, or, on the CPU, storage of
 *                                      4 bits.
 *              tensors                 See TENSORS. */

/* Copies the committed tokens [begin, end) of a sequence, all layers of the slice.
 *
 *   k   [layers, end - begin, num_kv_heads, k_dim], or NULL
 *   v   [layers, end - begin, num_kv_heads, v_dim], or NULL
 *
 * When layers differ, the heads and dims of the tensors are the largest ones. These parts are left
 * as they are: the rest of a smaller layer, layers that are not ATTENTION, and v of K = V layers.
 *
 * Expected, Misuse: rows.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_kv(const kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end,
                                    DLTensor *KVC_NULLABLE k, DLTensor *KVC_NULLABLE v,
                                    kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Overwrites the committed tokens [begin, begin + n), n = dimension 1 of k and v, with values as
 * they are to be stored (not rotated again). Shapes are those of kvc_debug_get_kv.
 *
 * Expected, Misuse: rows.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_kv(kvc_cache *cache, kvc_seq seq, int64_t begin,
                                    const DLTensor *KVC_NULLABLE k,
                                    const DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
                                    kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies the committed tokens [begin, end) of a sequence in the MLA layers.
 *
 *   latent   [layers, end - begin, latent_rank + latent_rope_dim], all layers of the slice
 *
 * Layers that are not MLA are left as they are. When latents differ in size, the last dimension is
 * the largest.
 *
 * Expected, Misuse: rows.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_mla(const kvc_cache *cache, kvc_seq seq, int64_t begin,
                                     int64_t end, DLTensor *latent, kvc_stream KVC_NULLABLE stream,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Overwrites the committed tokens [begin, begin + n) in the MLA layers, n = dimension 1 of latent,
 * as kvc_debug_set_kv does. The shape is that of kvc_debug_get_mla.
 *
 * Expected, Misuse: rows.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_mla(kvc_cache *cache, kvc_seq seq, int64_t begin,
                                     const DLTensor *latent, kvc_stream KVC_NULLABLE stream,
                                     kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies the committed tokens [begin, end) of a sequence in one layer of any kind that keeps pages.
 *
 *       ATTENTION, CROSS, SHARED           MLA
 *   k   [n, num_kv_heads, k_dim]           [n, 1, latent_rank + latent_rope_dim]
 *   v   [n, num_kv_heads, v_dim]           NULL
 *
 * CROSS: begin and end count encoder tokens. SHARED: the source's. K = V layers: v is NULL.
 *
 * Expected, Misuse: rows; and
 *            KVC_E_OUT_OF_RANGE      A layer that is not here.
 *            KVC_E_UNSUPPORTED       A layer without pages.
 *            KVC_E_INVALID_ARGUMENT  v is set where it has to be NULL.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_layer(const kvc_cache *cache, kvc_seq seq, int32_t layer,
                                       int64_t begin, int64_t end, DLTensor *KVC_NULLABLE k,
                                       DLTensor *KVC_NULLABLE v, kvc_stream KVC_NULLABLE stream,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Overwrites the committed tokens [begin, begin + n) in one layer, n = dimension 0 of k and v, with
 * values as they are to be stored. Shapes are those of kvc_debug_get_layer.
 *
 * Expected, Misuse: rows; and as kvc_debug_get_layer.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_layer(kvc_cache *cache, kvc_seq seq, int32_t layer, int64_t begin,
                                       const DLTensor *KVC_NULLABLE k,
                                       const DLTensor *KVC_NULLABLE v,
                                       kvc_stream KVC_NULLABLE stream,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Copies the state of a sequence at its committed length: out [shape...].
 *
 * Misuse:    KVC_E_NOT_FOUND      No such sequence.
 *            KVC_E_OUT_OF_RANGE   layer, state.
 *            KVC_E_UNSUPPORTED    No storage; not a STATE layer.
 *            KVC_E_INVALID_STATE  It is swapped out.
 *            tensors              out.
 * Threading: shared. Device: blocks until done. */
KVC_API kvc_status kvc_debug_get_state(const kvc_cache *cache, kvc_seq seq, int32_t layer,
                                       int32_t state, DLTensor *out,
                                       kvc_stream KVC_NULLABLE stream,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Replaces the state of a sequence at its committed length: value [shape...]. Earlier checkpoints,
 * published blocks and other sequences keep theirs.
 *
 * Expected:  KVC_E_NO_PAGES  No state slot for it.
 * Misuse:    KVC_E_BUSY      It is in the open forward.
 *            Others as kvc_debug_get_state.
 * Threading: exclusive. Device: blocks until done. */
KVC_API kvc_status kvc_debug_set_state(kvc_cache *cache, kvc_seq seq, int32_t layer, int32_t state,
                                       const DLTensor *value, kvc_stream KVC_NULLABLE stream,
                                       kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* ============================================================================================== */
/* Zero-copy export                                                                               */
/* ============================================================================================== */
/* `*out`: owned by caller, released by its deleter on any thread, also after kvc_cache_destroy. The
 * memory lives as long. */

/* What kvc_export_pool exports. page_size is kvc_layer_info.page_size. */
typedef int32_t kvc_pool_kind;
enum kvc_pool_kind_value KVC_INT32_ENUM {
  KVC_POOL_K = 0,    /* [num_pages, num_kv_heads, page_size, k_dim], strided view. MLA:
                        [num_pages, 1, page_size, latent_rank + latent_rope_dim]. */
  KVC_POOL_V = 1,    /* [num_pages, num_kv_heads, page_size, v_dim], strided view. */
  KVC_POOL_KV = 2,   /* [num_pages, 2, num_kv_heads, page_size, dim]; needs equal dims and dtypes of
                        K and V. */
  KVC_POOL_BYTES = 3 /* uint8 [num_pages, bytes of the layer's part of a page]. */
};

/* Exports the pool memory of one layer, writable and shared. SHARED layers: the source's.
 *
 * Elements are those of kvc_layer_info. Quantised layers: types of 4 bits are packed in pairs, and
 * strides count elements; their scales are in KVC_POOL_BYTES.
 *
 * Misuse:    KVC_E_OUT_OF_RANGE      layer.
 *            KVC_E_UNSUPPORTED       No storage; a layer without pages; V of MLA and K = V layers;
 *                                    KV of unequal K and V.
 *            KVC_E_INVALID_ARGUMENT  kind.
 *            KVC_E_BUSY              A forward or a transfer is open, and K of a sequence waits to
 *                                    be rotated (kvc_seq_shift).
 *            KVC_E_INVALID_STATE     Such a sequence is swapped out.
 * Threading: exclusive. Device: host only. */
KVC_API kvc_status kvc_export_pool(kvc_cache *cache, int32_t layer, kvc_pool_kind kind,
                                   struct DLManagedTensorVersioned **out,
                                   kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* What kvc_export_page_table exports. page_size is kvc_group_info.page_size; B and T are those of
 * the forward. */
typedef int32_t kvc_table_kind;
enum kvc_table_kind_value KVC_INT32_ENUM {
  KVC_TABLE_INDPTR = 0,        /* int32 [B+1]: CSR row pointer into INDICES. */
  KVC_TABLE_INDICES = 1,       /* int32 [sum of pages]: page ids, sequence after sequence. */
  KVC_TABLE_LAST_PAGE_LEN = 2, /* int32 [B]: tokens in the last page, 1..page_size; 0 for no token
                                  (CROSS). */
  KVC_TABLE_BLOCK_TABLE = 3,   /* int32 [B, most pages]: page ids, padded with -1. */
  KVC_TABLE_SLOT_MAPPING = 4,  /* int64 [T]: page * page_size + offset of each new token. */
  KVC_TABLE_SEQ_LENS = 5,      /* int32 [B]: length with the new tokens. */
  KVC_TABLE_QO_INDPTR = 6,     /* int32 [B+1]: CSR row pointer into the packed tokens. */
  KVC_TABLE_PAGE_POSITION = 7  /* int32 [sum of pages]: first token of each page of INDICES. */
};

/* Exports the page tables of the open forward's B sequences in one layer group, with the new tokens
 * (tree nodes included): a read-only snapshot in host memory, whatever the cache's device.
 *
 * INDPTR, INDICES and PAGE_POSITION list the pages that are kept. BLOCK_TABLE has -1 where a window
 * has dropped one. A CROSS group counts encoder tokens. `group`: 0..num_groups-1.
 *
 * Tables do not only grow. A begin puts a copy in the place of a shared last page. An end puts
 * pages of the prefix index in the place of equal ones, and drops those behind windows. Calls that
 * change a sequence and kvc_cache_resize may change any place. So a table is good for its forward
 * alone.
 *
 * Misuse:    KVC_E_OUT_OF_RANGE      group.
 *            KVC_E_INVALID_ARGUMENT  kind.
 *            KVC_E_INVALID_STATE     The forward is not open.
 * Threading: one call at a time per forward. Device: host only. */
KVC_API kvc_status kvc_export_page_table(kvc_forward *fwd, int32_t group, kvc_table_kind kind,
                                         struct DLManagedTensorVersioned **out,
                                         kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

/* Exports the ids of one sequence's kept pages: int32 [pages], ascending positions; a read-only
 * snapshot in host memory.
 *
 * They are the pages of its committed tokens and of the nodes of its uncommitted tree. Pages that
 * the open forward has reserved are not among them.
 *
 * Misuse:    KVC_E_NOT_FOUND      seq.
 *            KVC_E_OUT_OF_RANGE   group.
 *            KVC_E_INVALID_STATE  It is swapped out.
 * Threading: shared. Device: host only. */
KVC_API kvc_status kvc_export_seq_pages(const kvc_cache *cache, kvc_seq seq, int32_t group,
                                        struct DLManagedTensorVersioned **out,
                                        kvc_error *KVC_NULLABLE err) KVC_NOEXCEPT;

#if defined(__clang__)
#  pragma clang diagnostic pop
#endif

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_H_ */
