// Memory for kernels, aligned to cache lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace quire {

constexpr int64_t kAlignment = 64;

constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
template <class T>
using Memory = std::unique_ptr<T, FreeMemory>;

// Room for `count` of T, uninitialised. Throws std::bad_alloc.
template <class T>
Memory<T> allocate(int64_t count) {
  const int64_t bytes = aligned(std::max<int64_t>(count, 1) * int64_t(sizeof(T)));
  Memory<T> memory(static_cast<T*>(std::aligned_alloc(size_t(kAlignment), size_t(bytes))));
  if (!memory) throw std::bad_alloc();
  return memory;
}

// Memory that only grows; zeros when it is new.
template <class T>
class Scratch {
 public:
  T* reserve(int64_t count) {
    if (count > size_ || !memory_) {
      memory_.reset();
      size_ = 0;
      memory_ = allocate<T>(count);
      std::fill_n(memory_.get(), count, T{});
      size_ = count;
    }
    return memory_.get();
  }
  T* get() const { return memory_.get(); }
  int64_t num_bytes() const { return size_ * int64_t(sizeof(T)); }

 private:
  Memory<T> memory_;
  int64_t size_ = 0;
};

}  // namespace quire
