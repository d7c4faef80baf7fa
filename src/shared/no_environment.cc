// In libkvcache.so the linker puts these in the place of the C library's functions (--wrap), so
// that nothing inside reads the environment. The caller is libcrypto's archive, whose start-up code
// lets OPENSSL_ia32cap override the instruction sets of the machine.
extern "C" {
char* __wrap_getenv(const char* name);
char* __wrap_secure_getenv(const char* name);

char* __wrap_getenv(const char*) { return nullptr; }
char* __wrap_secure_getenv(const char*) { return nullptr; }
}
