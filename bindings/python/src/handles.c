/* Handles of the library in capsules, and whose turn it is.
 * The library asks its callers to keep changes of a cache apart from everything else; Python
 * threads cannot be asked that. So each cache has a lock: shared functions read, changes write,
 * functions of the open forward read and take turns. Nobody waits for a lock while holding the GIL,
 * so that a log function, which needs the GIL, may be called under a lock. */
#include <pthread.h>
#include <stdlib.h>

#include "binding.h"

struct kvcpy_handle {
  void *pointer;         /* the library's; NULL: closed */
  const char *kind;      /* name of the capsule */
  kvcpy_handle *cache;   /* of a forward: its cache; of a cache: itself */
  kvcpy_handle *forward; /* of a cache: its open forward */
  /* Of a forward: the capsule of its cache; of a cache: what its memory is borrowed from */
  PyObject *owner;
  pthread_rwlock_t lock; /* of a cache */
  pthread_mutex_t turn;  /* of a forward */
};

static const char CACHE[] = "kvc_cache", FORWARD[] = "kvc_forward", PLAN[] = "kvc_plan",
                  FENCE[] = "kvc_fence";

static kvcpy_handle *new_handle(void *pointer, const char *kind, kvcpy_handle *cache) {
  kvcpy_handle *handle = calloc(1, sizeof *handle);
  if (!handle) return NULL;
  handle->pointer = pointer;
  handle->kind = kind;
  handle->cache = cache ? cache : handle;
  if (kind == CACHE) pthread_rwlock_init(&handle->lock, NULL);
  pthread_mutex_init(&handle->turn, NULL);
  return handle;
}

static void free_handle(kvcpy_handle *handle) {
  if (handle->kind == CACHE) pthread_rwlock_destroy(&handle->lock);
  pthread_mutex_destroy(&handle->turn);
  free(handle);
}

void *kvcpy_pointer_of(PyObject *capsule, const char *kind) {
  if (!PyCapsule_IsValid(capsule, kind)) {
    kvcpy_refuse_type("handle", kind, capsule);
    return NULL;
  }
  return PyCapsule_GetPointer(capsule, kind);
}

kvcpy_handle *kvcpy_handle_of(PyObject *capsule, const char *kind) {
  return kvcpy_pointer_of(capsule, kind);
}

int kvcpy_is_open(PyObject *capsule, const char *kind) {
  kvcpy_handle *handle = kvcpy_pointer_of(capsule, kind);
  if (!handle) PyErr_Clear();
  return handle && handle->pointer;
}

static int try_lock(kvcpy_handle *handle, int mode) {
  if (mode == KVCPY_EXCLUSIVE) return pthread_rwlock_trywrlock(&handle->cache->lock) == 0;
  if (pthread_rwlock_tryrdlock(&handle->cache->lock)) return 0;
  if (mode == KVCPY_ATTEND && pthread_mutex_trylock(&handle->turn)) {
    pthread_rwlock_unlock(&handle->cache->lock);
    return 0;
  }
  return 1;
}

/* The turn comes first: who waits for it must not keep changes from being made by those who have
 * it. */
static void wait_lock(kvcpy_handle *handle, int mode) {
  if (mode == KVCPY_EXCLUSIVE) {
    pthread_rwlock_wrlock(&handle->cache->lock);
    return;
  }
  if (mode == KVCPY_ATTEND) pthread_mutex_lock(&handle->turn);
  pthread_rwlock_rdlock(&handle->cache->lock);
}

static void unlock(kvcpy_handle *handle, int mode) {
  pthread_rwlock_unlock(&handle->cache->lock);
  if (mode == KVCPY_ATTEND) pthread_mutex_unlock(&handle->turn);
}

void *kvcpy_enter(kvcpy_hold *hold, kvcpy_handle *handle, int mode) {
  hold->handle = handle;
  hold->mode = mode & KVCPY_MODE;
  hold->thread = NULL;
  if (!(mode & KVCPY_QUICK) || !try_lock(handle, hold->mode)) {
    hold->thread = PyEval_SaveThread();
    wait_lock(handle, hold->mode);
  }
  hold->entered = handle->pointer != NULL;
  return handle->pointer;
}

int kvcpy_leave(kvcpy_hold *hold) {
  kvcpy_handle *handle = hold->handle;
  unlock(handle, hold->mode);
  if (hold->thread) PyEval_RestoreThread(hold->thread);
  if (hold->entered) return 0;
  kvcpy_fail(KVC_E_INVALID_STATE, handle->kind == CACHE
                                      ? "the cache is closed"
                                      : "the forward has ended, or its cache is closed");
  return -1;
}

/* Nobody can be inside: a call holds a reference to the capsule. */
static void cache_gone(PyObject *capsule) {
  kvcpy_handle *handle = PyCapsule_GetPointer(capsule, CACHE);
  PyObject *owner = handle->owner;
  if (handle->pointer) {
    PyThreadState *thread = PyEval_SaveThread(); /* its threads end, and may log */
    kvc_cache_destroy(handle->pointer);
    PyEval_RestoreThread(thread);
  }
  free_handle(handle);
  Py_XDECREF(owner);
}

/* A forward that nobody has ended is given up. */
static void forward_gone(PyObject *capsule) {
  PyObject *type, *value, *trace;
  kvcpy_handle *handle = PyCapsule_GetPointer(capsule, FORWARD);
  PyObject *owner = handle->owner;
  if (handle->pointer) {
    kvcpy_hold hold;
    kvc_forward *forward;
    PyErr_Fetch(&type, &value, &trace);
    forward = kvcpy_enter(&hold, handle, KVCPY_EXCLUSIVE | KVCPY_QUICK);
    if (forward) {
      kvc_forward_abort(forward, NULL);
      kvcpy_forward_closed(handle);
    }
    if (kvcpy_leave(&hold)) PyErr_Clear();
    PyErr_Restore(type, value, trace);
  }
  free_handle(handle);
  Py_XDECREF(owner);
}

PyObject *kvcpy_cache_capsule(kvc_cache *cache) {
  PyObject *capsule;
  kvcpy_handle *handle = new_handle(cache, CACHE, NULL);
  if (!handle) {
    kvc_cache_destroy(cache);
    return PyErr_NoMemory();
  }
  capsule = PyCapsule_New(handle, CACHE, cache_gone);
  if (!capsule) {
    kvc_cache_destroy(cache);
    free_handle(handle);
  }
  return capsule;
}

kvcpy_handle *kvcpy_forward_opened(kvcpy_handle *cache, kvc_forward *forward) {
  kvcpy_handle *handle = new_handle(forward, FORWARD, cache);
  if (handle)
    cache->forward = handle;
  else
    kvc_forward_abort(forward, NULL);
  return handle;
}

PyObject *kvcpy_forward_capsule(kvcpy_handle *forward, PyObject *cache) {
  PyObject *capsule = PyCapsule_New(forward, FORWARD, forward_gone);
  if (!capsule) return NULL; /* the cache's own end takes care of the forward */
  Py_INCREF(cache);
  forward->owner = cache;
  return capsule;
}

void kvcpy_forward_closed(kvcpy_handle *forward) {
  if (forward->cache->forward == forward) forward->cache->forward = NULL;
  forward->pointer = NULL;
}

PyObject *kvcpy_cache_close(PyObject *capsule) {
  kvcpy_hold hold;
  kvc_cache *cache;
  kvcpy_handle *handle = kvcpy_handle_of(capsule, CACHE);
  if (!handle) return NULL;
  cache = kvcpy_enter(&hold, handle, KVCPY_EXCLUSIVE);
  if (handle->forward) kvcpy_forward_closed(handle->forward);
  if (cache) kvc_cache_destroy(cache);
  handle->pointer = NULL;
  if (kvcpy_leave(&hold)) PyErr_Clear(); /* closing twice is fine */
  Py_RETURN_NONE;
}

PyObject *kvcpy_cache_keep(PyObject *capsule, PyObject *owner) {
  kvcpy_handle *handle = kvcpy_handle_of(capsule, CACHE);
  if (!handle) return NULL;
  Py_XDECREF(handle->owner);
  Py_INCREF(owner);
  handle->owner = owner;
  Py_RETURN_NONE;
}

static void plan_gone(PyObject *capsule) { kvc_plan_destroy(PyCapsule_GetPointer(capsule, PLAN)); }

PyObject *kvcpy_plan_capsule(kvc_plan *plan) {
  PyObject *capsule = PyCapsule_New(plan, PLAN, plan_gone);
  if (!capsule) kvc_plan_destroy(plan);
  return capsule;
}

static void fence_gone(PyObject *capsule) {
  kvc_fence_destroy(PyCapsule_GetPointer(capsule, FENCE));
}

PyObject *kvcpy_fence_capsule(kvc_fence *fence) {
  PyObject *capsule;
  if (!fence) Py_RETURN_NONE;
  capsule = PyCapsule_New(fence, FENCE, fence_gone);
  if (!capsule) kvc_fence_destroy(fence);
  return capsule;
}
