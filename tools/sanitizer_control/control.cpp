// Planted faults, which the sanitizers must find: a store that should be a release, and a read
// past the end of a buffer. The memory is shared by two Rust threads, as the executor's is.
#include <cstdint>

extern "C" void produce(uint64_t* data, uint64_t* flag, bool planted) {
    for (int i = 0; i < 64; i++) data[i] = i + 1;
    __atomic_store_n(flag, 1, planted ? __ATOMIC_RELAXED : __ATOMIC_RELEASE);
}

extern "C" uint64_t consume(const uint64_t* data, const uint64_t* flag, int len) {
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {}
    uint64_t sum = 0;
    for (int i = 0; i < len; i++) sum += data[i];
    return sum;
}
