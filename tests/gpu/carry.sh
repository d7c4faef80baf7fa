#!/bin/sh
# What a machine with a GPU but without build tools needs, from the build of this machine into build/gpu-carry: the libraries, the test programs, the
# command. Copy it there at the same place below the tree; tests/gpu/run.sh uses it.  carry.sh [BUILD]
set -eu
cd "$(dirname "$0")/../.."
from=${1:-build/cuda}
to=build/gpu-carry
[ -e "$from/libkvcache_cuda.so" ] || { echo "carry: no libkvcache_cuda.so in $from: make cuda" >&2; exit 1; }
rm -rf "$to"
mkdir -p "$to/bin" "$to/tests"
cp -L "$from/libkvcache.so.0" "$from/libkvcache_cuda.so" "$to/"
for program in bin/kvcache tests/cuda_device_test tests/conformance_test; do
  if [ -e "$from/$program" ]; then cp "$from/$program" "$to/$program"; else echo "carry: no $program in $from, left out"; fi
done
ln -s ../libkvcache_cuda.so "$to/bin/libkvcache_cuda.so"  # the command looks for it beside itself
find "$to" -type f -exec strip --strip-unneeded {} +
du -sh "$to"
