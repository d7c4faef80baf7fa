/* Preloaded into a client's tests. Every plan and every ragged attention that leaves the
 * instruction set to the library gets the one that the variable KVCACHE_TEST_ISA numbers
 * (kvc_cpu_isa). The library itself reads no environment. See force_isa.sh. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <kvcache.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvc_cpu_isa forced(void) {
  const char *given = getenv("KVCACHE_TEST_ISA");
  return given ? (kvc_cpu_isa)atoi(given) : KVC_CPU_ISA_AUTO;
}

/* The library's own function. The library may have been loaded for an extension module alone, where
 * RTLD_NEXT does not look. */
static void *own(const char *name) {
  void *library = dlopen("libkvcache.so.0", RTLD_NOW | RTLD_NOLOAD);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "force_isa: no %s in libkvcache.so.0\n", name);
    abort();
  }
  return function;
}

static size_t smaller(size_t one, size_t other) { return one < other ? one : other; }

kvc_status kvc_plan_create(const kvc_config *config, kvc_plan **out, kvc_error *err) KVC_NOEXCEPT {
  typedef kvc_status create_function(const kvc_config *, kvc_plan **, kvc_error *);
  create_function *create = own("kvc_plan_create");
  const size_t needed = offsetof(kvc_config, cpu_isa) + sizeof(kvc_cpu_isa);
  if (!config || config->struct_size < needed || config->cpu_isa != KVC_CPU_ISA_AUTO) {
    return create(config, out, err);
  }
  kvc_config changed;
  memset(&changed, 0, sizeof changed);
  memcpy(&changed, config, smaller(config->struct_size, sizeof changed));
  changed.cpu_isa = forced();
  return create(&changed, out, err);
}

kvc_status kvc_op_attention_ragged(const DLTensor *qo_indptr, const DLTensor *kv_indptr,
                                   const kvc_op_opt *opt, const DLTensor *q, const DLTensor *k,
                                   const DLTensor *v, DLTensor *out, DLTensor *lse,
                                   kvc_error *err) KVC_NOEXCEPT {
  typedef kvc_status attend_function(const DLTensor *, const DLTensor *, const kvc_op_opt *,
                                     const DLTensor *, const DLTensor *, const DLTensor *,
                                     DLTensor *, DLTensor *, kvc_error *);
  attend_function *attend = own("kvc_op_attention_ragged");
  kvc_op_opt changed;
  memset(&changed, 0, sizeof changed);
  changed.struct_size = sizeof changed;
  if (opt) {
    memcpy(&changed, opt, smaller(opt->struct_size, sizeof changed));
  }
  if (changed.cpu_isa == KVC_CPU_ISA_AUTO) {
    changed.cpu_isa = forced();
  }
  return attend(qo_indptr, kv_indptr, &changed, q, k, v, out, lse, err);
}
