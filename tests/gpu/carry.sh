#!/bin/sh
# Copies what a machine with a GPU but without build tools needs from a build folder: the libraries
# side by side, the test programs, the command. They find each other wherever the folder lies.
# tests/gpu/run.sh uses build/gpu-carry.  carry.sh [BUILD [TO]]
set -eu
cd "$(dirname "$0")/../.."
from=${1:-build-cuda}
to=${2:-build/gpu-carry}
[ -e "$from/libkvcache_cuda.so" ] || { echo "carry: no libkvcache_cuda.so in $from: make cuda" >&2; exit 1; }
rm -rf "$to"
mkdir -p "$to/bin" "$to/tests"
cp -L "$from/libkvcache.so.0" "$from/libkvcache_cuda.so" "$to/"
for program in bin/kvcache tests/cuda_device_test tests/conformance_test; do
  if [ -e "$from/$program" ]; then cp "$from/$program" "$to/$program"; else echo "carry: no $program in $from, left out"; fi
done
ln -s ../libkvcache_cuda.so "$to/bin/libkvcache_cuda.so"  # the command looks for it beside itself
find "$to" -type f -exec strip --strip-unneeded {} +
# A path of this machine would be one of nobody's there.
for file in "$to"/* "$to"/tests/*; do
  [ -f "$file" ] || continue
  if readelf -d "$file" | grep -E 'R(UN)?PATH.*\[[^$]' >&2; then
    echo "carry: $file has the path of a folder of this machine" >&2
    exit 1
  fi
done
du -sh "$to"
