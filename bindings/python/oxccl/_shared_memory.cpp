// torch's allocator of the CPU, from a length on over the heap of an oxccl communicator: compiled
// where it is used, against the torch that is there.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace {

using Take = void *(*)(void *heap, size_t bytes);
using Give = bool (*)(void *heap, void *at);

struct {
    c10::Allocator *usual;
    Take take;
    Give give;
    void *heap;
    size_t least;
} own;

void delete_own(void *at) { own.give(own.heap, at); }

// Of memory of either kind.
void delete_any(void *at) {
    if (at != nullptr && !own.give(own.heap, at)) own.usual->raw_deleter()(at);
}

struct SharedMemory final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        if (bytes >= own.least) {
            if (void *at = own.take(own.heap, bytes)) {
                return {at, at, &delete_own, c10::Device(c10::DeviceType::CPU)};
            }
        }
        return own.usual->allocate(bytes);
    }

    c10::DeleterFnPtr raw_deleter() const override { return &delete_any; }

    void copy_data(void *to, const void *from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
};

}  // namespace

extern "C" void oxccl_use_shared_memory(Take take, Give give, void *heap, size_t least) {
    static SharedMemory allocator;
    if (own.usual == nullptr) own.usual = c10::GetCPUAllocator();
    own.take = take, own.give = give, own.heap = heap, own.least = least;
    c10::SetCPUAllocator(&allocator, /*priority=*/1);
}
