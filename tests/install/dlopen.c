/* A program that loads the library at run time and links nothing of it: one symbol, then the
 * function table. */
#include <dlfcn.h>
#include <kvcache_api.h>
#include <stdio.h>
#include <string.h>

typedef const kvc_api *(*get_api_fn)(uint32_t abi_version);

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  void *symbol = dlsym(library, "kvc_get_api");
  get_api_fn get_api;
  memcpy(&get_api, &symbol, sizeof get_api); /* the cast POSIX asks for is not ISO C */
  const kvc_api *api = get_api ? get_api(KVC_ABI_VERSION) : NULL;
  if (!api || api->struct_size < sizeof *api) {
    fprintf(stderr, "no table for ABI %x\n", (unsigned)KVC_ABI_VERSION);
    return 1;
  }
  const uint32_t other_major = KVC_ABI_VERSION + 0x10000u, newer_minor = KVC_ABI_VERSION + 1u;
  if (get_api(other_major) || get_api(newer_minor)) {
    fprintf(stderr, "a table was given out for an ABI the library does not know\n");
    return 1;
  }
  kvc_error err;
  memset(&err, 0, sizeof err);
  err.struct_size = sizeof err;
  if (api->seq_add(NULL, 1, &err) != KVC_E_INVALID_ARGUMENT ||
      err.status != KVC_E_INVALID_ARGUMENT || !err.message[0]) {
    fprintf(stderr, "a NULL cache was not refused through the table\n");
    return 1;
  }
  printf("%s\n", api->version_string());
  return 0;
}
