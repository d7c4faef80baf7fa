//go:build !kvcache_link

package kvcache

/*
#cgo linux LDFLAGS: -ldl
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include "shim.h"

typedef struct shim_loaded {
  uintptr_t api;    // 0: the message says why not
  int32_t opened;   // 0: there is no such file, or it is no library
  int32_t reserved;
  char file[1024];  // the file that the loader took
  char message[1024];
} shim_loaded;

static void shim_load(const char *path, shim_loaded *out) {
  out->api = 0;
  snprintf(out->file, sizeof out->file, "%s", path);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(out->message, sizeof out->message, "%s", dlerror());
    return;
  }
  out->opened = 1;
  void *symbol = dlsym(library, "kvc_get_api");
  uint32_t (*abi_version)(void) = (uint32_t(*)(void))dlsym(library, "kvc_abi_version");
  if (symbol == NULL || abi_version == NULL) {
    snprintf(out->message, sizeof out->message, "it is not libkvcache: kvc_get_api or kvc_abi_version is missing");
    dlclose(library);
    return;
  }
  Dl_info info;
  if (dladdr(symbol, &info) != 0) snprintf(out->file, sizeof out->file, "%s", info.dli_fname);
  const kvc_api *api = ((const kvc_api *(*)(uint32_t))symbol)(KVC_ABI_VERSION);
  if (api == NULL || api->struct_size < sizeof(kvc_api)) {
    const uint32_t version = abi_version();
    snprintf(out->message, sizeof out->message, "its ABI version is %u.%u, needed is %u.%u", version >> 16,
             version & 0xFFFF, KVC_ABI_VERSION >> 16, KVC_ABI_VERSION & 0xFFFF);
    if (api != NULL && version == KVC_ABI_VERSION)
      snprintf(out->message + strlen(out->message), sizeof out->message - strlen(out->message),
               " (a build before its release: %zu bytes of functions, needed are %zu)", api->struct_size,
               sizeof(kvc_api));
    dlclose(library);
    return;
  }
  out->api = (uintptr_t)api;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

// Load opens the library: the file at path; when path is "", the file that the environment variable
// KVCACHE_LIB names; when that is not set, what the loader of the system finds by name. It stays loaded.
func Load(path string) (*Library, error) {
	if path == "" {
		path = os.Getenv("KVCACHE_LIB")
	}
	if path == "" {
		path = "libkvcache.so.0"
		if runtime.GOOS == "darwin" {
			path = "libkvcache.0.dylib"
		}
	}
	name, err := cText("path", path)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(name))
	loaded := (*C.shim_loaded)(C.calloc(1, C.sizeof_shim_loaded))
	if loaded == nil {
		return nil, &Error{Status: ErrNoMemory, Msg: "no memory to load " + path}
	}
	defer C.free(unsafe.Pointer(loaded))
	C.shim_load(name, loaded)
	if loaded.api == 0 {
		err := &Error{Status: ErrVersion}
		err.Msg = "cannot use the library " + C.GoString(&loaded.file[0]) + ": " + C.GoString(&loaded.message[0])
		if loaded.opened == 0 {
			err.Status = ErrIO
			err.Msg += fmt.Sprintf("; install libkvcache with ABI version %d.%d, or give its path in "+
				"KVCACHE_LIB or to Load", ABIVersion>>16, ABIVersion&0xFFFF)
		}
		return nil, err
	}
	return &Library{api: loaded.api, path: C.GoString(&loaded.file[0])}, nil
}
