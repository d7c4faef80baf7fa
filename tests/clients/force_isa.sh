# Read by the run scripts of the clients, with $root set. CPU_ISA=scalar, avx2, avx512 or avx512_bf16 lets every cache and operator of a
# client that asks for no instruction set compute with that one, by a library that is preloaded: clients' tests must pass on any machine.
# shellcheck shell=sh
case $CPU_ISA in
  reference) KVCACHE_TEST_ISA=1 ;;
  scalar) KVCACHE_TEST_ISA=2 ;;
  avx2) KVCACHE_TEST_ISA=3 ;;
  avx512) KVCACHE_TEST_ISA=4 ;;
  avx512_bf16) KVCACHE_TEST_ISA=5 ;;
  *) echo "CPU_ISA: expected reference, scalar, avx2, avx512 or avx512_bf16, got '$CPU_ISA'" >&2; exit 1 ;;
esac
mkdir -p "$root/build/clients"
"${CC:-cc}" -shared -fPIC -O1 -I"$root/include" -I"$root/.deps/include" "$root/tests/clients/force_isa.c" -ldl \
  -o "$root/build/clients/libforce_isa.so"
export KVCACHE_TEST_ISA
LD_PRELOAD=$root/build/clients/libforce_isa.so${LD_PRELOAD:+:$LD_PRELOAD}
export LD_PRELOAD
echo "instruction set: $CPU_ISA"
