/* A program that asks libkvcache.so for CUDA where there is none: told so, and nothing else
 * happens. no_driver.py runs it. */
#include <kvcache.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void expect(int condition, const char *what, const char *detail) {
  if (condition) return;
  ++failures;
  printf("%s: %s\n", what, detail);
}

int main(int argc, char **argv) {
  const int has_driver = argc > 1 && strcmp(argv[1], "driver") == 0;
  DLDevice device;
  memset(&device, 0, sizeof device);
  device.device_type = kDLCUDA;

  kvc_error error;
  memset(&error, 0, sizeof error);
  kvc_device_caps caps;
  memset(&caps, 0, sizeof caps);
  caps.struct_size = sizeof caps;
  const kvc_status queried = kvc_device_query(device, &caps, &error);
  if (has_driver) return failures;
  expect(queried == KVC_OK, "kvc_device_query", error.message);
  expect(caps.backend_present == 0, "kvc_device_query", "backend_present is not 0");

  kvc_layer layer;
  memset(&layer, 0, sizeof layer);
  layer.struct_size = sizeof layer;
  layer.num_kv_heads = 1;
  layer.k_dim = 64;
  kvc_config config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.device = device;
  config.num_layers = 1;
  config.layers = &layer;
  config.num_pages = 4;
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  kvc_status status = kvc_plan_create(&config, &plan, &error);
  if (status == KVC_OK) status = kvc_cache_create(plan, &cache, &error);
  expect(status == KVC_E_UNSUPPORTED, "creating a cache on CUDA gives", kvc_status_name(status));
  expect(status != KVC_OK && (strstr(error.message, "device") || strstr(error.message, "CUDA")),
         "a message that does not name the device", error.message);
  expect(cache == NULL, "kvc_cache_create", "a cache came out");
  kvc_plan_destroy(plan);
  return failures;
}
