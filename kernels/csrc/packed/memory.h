// The memory that packed weights lie in.
#pragma once

#include <cstdint>
#include <memory>

namespace quire {

// Room for that many bytes, uninitialised, aligned as kAlignment says. Throws std::bad_alloc. Any thread may ask and let go.
std::shared_ptr<uint8_t> weight_memory(int64_t bytes);

}  // namespace quire
