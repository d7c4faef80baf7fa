/*
 * kvcache.h for SWIG, the part that is the same for every target language: which declarations are wrapped, structs that
 * know their size, and handles that clean up after themselves. A language's own interface file sets its typemaps first
 * (how a kvc_error becomes an exception, what a status becomes) and includes this file last.
 *
 * Needs: swig -I<include> -I<folder of dlpack/dlpack.h>, SWIG >= 4.1.
 */
%{
#include <kvcache.h>
#include <stdlib.h>
#include <string.h>
%}

/* int64_t is long where long has 64 bits, or its pointers are of another type than the functions take. Java, C# and D
 * read `long` as 32 bits and need nothing. KVC_INT64_IS_LONG_LONG: on macOS, where it is long long. */
#if !defined(SWIGWORDSIZE64) && !defined(SWIGJAVA) && !defined(SWIGCSHARP) && !defined(SWIGD) && \
    !defined(KVC_INT64_IS_LONG_LONG)
#define SWIGWORDSIZE64
#endif

%include <stdint.i>
%include <carrays.i>

/* Arrays for the pointer fields of structs. The struct borrows: keep the array while it is used. */
%array_class(int64_t, Int64Array);
%array_class(int32_t, Int32Array);

/* Ruby's classes begin with a capital letter: Kvc_plan. */
#pragma SWIG nowarn=801
/* A keyword of Perl, which is no obstacle to a method. */
%warnfilter(314) kvc_ext::next;

/* DLPack's own exchange between frameworks. */
%ignore DLManagedTensor;
%ignore DLPackExchangeAPI;
%ignore DLPackExchangeAPIHeader;

/* Handles. Creating one is its constructor, destroying it its destructor; the functions for that are not wrapped. */
%ignore kvc_plan_create;
%ignore kvc_plan_destroy;
%ignore kvc_cache_create;
%ignore kvc_cache_destroy;
%ignore kvc_forward_begin;
%ignore kvc_fence_destroy;
%ignore kvc_transport_open;
%ignore kvc_transport_destroy;
%ignore kvc_transfer_destroy;

%nodefaultctor kvc_plan;
%nodefaultctor kvc_cache;
%nodefaultctor kvc_forward;
%nodefaultctor kvc_fence;
%nodefaultctor kvc_transport;
%nodefaultctor kvc_transfer;
/* kvc_forward_end and kvc_forward_abort end a forward; it belongs to its cache. */
%nodefaultdtor kvc_forward;

struct kvc_plan {};
struct kvc_cache {};
struct kvc_forward {};
struct kvc_fence {};
struct kvc_transport {};
struct kvc_transfer {};

/* A failed constructor leaves NULL, and the reason in `err`. */
%extend kvc_plan {
  kvc_plan(const kvc_config *config, kvc_error *err) {
    kvc_plan *plan = NULL;
    return kvc_plan_create(config, &plan, err) == KVC_OK ? plan : NULL;
  }
  ~kvc_plan() { kvc_plan_destroy($self); }
}
%extend kvc_cache {
  kvc_cache(const kvc_plan *plan, kvc_error *err) {
    kvc_cache *cache = NULL;
    return kvc_cache_create(plan, &cache, err) == KVC_OK ? cache : NULL;
  }
  ~kvc_cache() { kvc_cache_destroy($self); }
}
%extend kvc_forward {
  kvc_forward(kvc_cache *cache, const kvc_forward_desc *desc, kvc_error *err) {
    kvc_forward *forward = NULL;
    return kvc_forward_begin(cache, desc, &forward, err) == KVC_OK ? forward : NULL;
  }
}
%extend kvc_fence {
  ~kvc_fence() { kvc_fence_destroy($self); }
}
%extend kvc_transport {
  kvc_transport(const kvc_transport_desc *desc, kvc_error *err) {
    kvc_transport *transport = NULL;
    return kvc_transport_open(desc, &transport, err) == KVC_OK ? transport : NULL;
  }
  ~kvc_transport() { kvc_transport_destroy($self); }
}
%extend kvc_transfer {
  ~kvc_transfer() { kvc_transfer_destroy($self); }
}

/* A new struct is all zeros, which means default, but for its size. */
%define KVC_SIZED(type)
%extend type {
  type() {
    type *made = (type *)calloc(1, sizeof(type));
    if (made) made->struct_size = sizeof(type);
    return made;
  }
  ~type() { free($self); }
}
%enddef

/* A text that is assigned to a field is copied, and the copy is never freed: a struct does not say whose its texts are. */
%typemap(memberin) const char *path, const char *model_id, const char *address, const char *username, const char *password, const char *engine, const char *assume
    "$1 = $input ? strdup($input) : NULL;"

%include "abi_structs.i"

%include <dlpack/dlpack.h>
%include <kvcache.h>
